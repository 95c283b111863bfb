//! fio: a foreign load generator that verifies what it wrote, and that shows weights as bandwidth.

use crate::server::{Folder, Server, arg};
use mqfq_testing::machine;
use mqfq_testing::tools::{need, run_ok, uri};
use serde_json::Value;

const MIB: u64 = 1 << 20;

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

#[test]
fn fio_finds_every_checksum_on_memory() {
    need!("fio");
    let _machine = machine::shared();
    verifies("kind = \"memory\"\nsize = \"32MiB\"", |_| {});
}

#[test]
fn fio_finds_every_checksum_on_a_file() {
    need!("fio");
    let _machine = machine::shared();
    verifies("kind = \"file\"\npath = \"@/disk\"", |folder| drop(folder.file("disk", 32 * MIB)));
}

#[test]
fn fio_finds_every_checksum_on_the_software_controller() {
    need!("fio");
    let _machine = machine::shared();
    verifies("kind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"32MiB\"", |_| {});
}

#[test]
fn fio_finds_every_checksum_under_each_elevator() {
    need!("fio");
    let _machine = machine::shared();
    for policy in ["mq-deadline", "kyber", "bfq"] {
        // A depth of 8 for 64 requests in flight, so that the policy has something to order.
        let keys = format!("policy = \"{policy}\"\ndepth = 8");
        verifies(&format!("kind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"32MiB\"\n{keys}"), |_| {});
    }
}

/// Two tenants that both ask for more than the drive has get bandwidth by weight: 1:3. One run measures both at the
/// same time, so the machine's speed cancels out.
///
/// Each has 2 connections of depth 256. The drive (45,000 reads a second for weight 3) is 11 ms behind that, so neither
/// runs dry while the system does not schedule its fio thread: who has nothing to ask for has no claim to its share.
#[test]
fn two_saturating_tenants_of_weight_1_and_3_share_1_to_3() {
    need!("fio");
    let _machine = machine::alone();
    let server = Server::start(
        r#"
[server]
workers = 2

[device.d]
kind = "nvme"
preset = "flash-60k"
size = "128MiB"
depth = 64
window = "64KiB"

[tenant.one]
weight = 100

[tenant.three]
weight = 300

[export.one]
device = "d"
tenant = "one"
size = "64MiB"
nbd = "unix:@/one.sock"

[export.three]
device = "d"
tenant = "three"
offset = "64MiB"
size = "64MiB"
nbd = "unix:@/three.sock"
"#,
    );
    let job = |name: &str| format!("[{name}]\nuri={}\n", uri(&server.socket(name), name));
    let report = fio(
        server.folder(),
        &format!(
            "[global]\nioengine=nbd\nthread\nrw=randread\nbs=4k\niodepth=256\nsize=64m\nnumjobs=2\nnorandommap\n\
             randrepeat=0\ntime_based\nruntime=8\nramp_time=1\n{}{}",
            job("one"),
            job("three")
        ),
    );
    let bytes = |name: &str| {
        let jobs = report["jobs"].as_array().unwrap().iter().filter(|job| job["jobname"] == name);
        jobs.map(|job| job["read"]["io_bytes"].as_f64().unwrap()).sum::<f64>()
    };
    let (one, three) = (bytes("one"), bytes("three"));
    let ratio = three / one;
    println!("weights 1:3 gave 1:{ratio:.3} ({one} and {three} bytes)");
    assert!((ratio / 3.0 - 1.0).abs() <= 0.05, "1:3 came out as 1:{ratio:.3}");
}
