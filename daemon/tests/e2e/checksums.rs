//! fio as a client: it writes, reads everything back, and compares checksums.

use crate::server::{Folder, Server, arg};
use mqfq_testing::tools::{run_ok, uri};
use serde_json::Value;

pub const MIB: u64 = 1 << 20;

/// Runs the job file `text` and returns fio's own report.
pub fn fio(folder: &Folder, text: &str) -> Value {
    let path = folder.join("job.fio");
    std::fs::write(&path, text).unwrap();
    // fio leaves verify state files where it runs; here they would lie in the source tree.
    let aux = format!("--aux-path={}", arg(&folder.join("")));
    let output = run_ok("fio", &["--output-format=json", &aux, arg(&path)]);
    // fio's nbd engine may print notes before the object.
    let start = output.find('{').unwrap_or_else(|| panic!("no JSON in {output}"));
    serde_json::from_str(&output[start..]).unwrap_or_else(|error| panic!("{error} in {output}"))
}

/// Random writes of mixed sizes on four connections at once, then every block read back and its checksum compared.
pub fn verifies(keys: &str, prepare: impl FnOnce(&Folder)) {
    let folder = Folder::new();
    prepare(&folder);
    let config = format!(
        "[server]\nworkers = 2\n[device.d]\n{keys}\n[tenant.t]\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\n\
         nbd = \"unix:@/s.sock\"\n"
    );
    let server = Server::start_in(folder, &config);
    let uri = uri(&server.join("s.sock"), "e");
    let report = fio(
        server.folder(),
        &format!(
            "[global]\nioengine=nbd\nuri={uri}\nthread\nrw=randwrite\nbssplit=4k/40:8k/20:16k/20:64k/10:256k/10\n\
             blockalign=4k\niodepth=16\nsize=8m\noffset_increment=8m\nnumjobs=4\nverify=crc32c\ndo_verify=1\n\
             verify_fatal=1\nverify_state_save=0\nrandseed=1\ngroup_reporting\n[v]\n"
        ),
    );
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    assert_eq!(job["write"]["io_bytes"], 32 * MIB, "4 jobs of 8 MiB");
    assert_eq!(job["read"]["io_bytes"], 32 * MIB, "every byte was read back");
    let stats = server.terminate();
    assert_eq!(stats["devices"][0]["tenants"][0]["failed"], 0);
}
