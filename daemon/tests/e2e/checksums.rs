//! fio as a client: it writes, reads everything back, and compares checksums. And the numbers of MQFQ's form, from the
//! config to the last reply. The laboratory's tests take this file in.

use crate::client::{CMD_WRITE, Client, Request};
use crate::server::{Folder, Server, arg, pattern};
use mqfq_testing::machine;
use mqfq_testing::tools::{run_ok, uri};
use serde_json::{Value, json};

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

const REQUEST_BYTES: usize = 4096;

/// Requests that one connection has in flight.
const REQUESTS: usize = 64;

/// Writes `REQUESTS` requests at once from `offset_bytes` on, and reads their bytes back.
fn write_and_read_back(mut client: Client, offset_bytes: u64, seed: u8) {
    let data = pattern(REQUESTS * REQUEST_BYTES, seed);
    for (index, block) in data.chunks(REQUEST_BYTES).enumerate() {
        let request = Request {
            cookie: index as u64,
            offset_bytes: offset_bytes + (index * REQUEST_BYTES) as u64,
            length_bytes: REQUEST_BYTES as u32,
            ..Request::of(CMD_WRITE)
        };
        client.send(request, block).unwrap();
    }
    let mut answered = [false; REQUESTS];
    for _ in 0..REQUESTS {
        let reply = client.reply().expect("an answer");
        assert_eq!(reply.error, 0);
        assert!(!std::mem::replace(&mut answered[reply.cookie as usize], true), "answered twice: {reply:?}");
    }
    assert!(client.read(offset_bytes, data.len() as u32).unwrap() == data, "other bytes came back");
}

#[test]
fn every_request_is_served_and_the_form_is_told_with_its_numbers() {
    serve_and_tell(&[
        ("", [json!("relaxed"), json!(2048), json!(2048), json!(1), json!(2)]),
        ("policy = \"none\"", [Value::Null, Value::Null, Value::Null, Value::Null, Value::Null]),
    ]);
}

/// Keys of a device, and form, quantum, lease, token batch and token share for T = 8 KiB, D = 4 and two workers. A
/// window of two requests and a depth of four: queues throttle each other and wait for tokens.
pub fn serve_and_tell(cases: &[(&str, [Value; 5])]) {
    let _machine = machine::shared();
    for (keys, told) in cases {
        let device = format!(
            "kind = \"model\"\npreset = \"flash-460k\"\nsize = \"2MiB\"\n\
             expert = {{ depth = 4, window = \"8KiB\" }}\n{keys}"
        );
        let server = Server::of_tenants(&device, &["a", "b"], 1 << 20);
        for export in server.ready["exports"].as_array().unwrap() {
            for (key, expected) in
                ["form", "quantum_bytes", "lease_bytes", "token_batch", "token_share"].iter().zip(told)
            {
                assert_eq!(&export[key], expected, "{keys}: {key}");
            }
        }
        // Three connections take the two workers in turn: one tenant is on both.
        let parts = [("a", 0), ("b", 0), ("b", 512 << 10)];
        let clients = parts.map(|(name, offset)| (Client::connect(&server.socket(name), name), offset));
        std::thread::scope(|scope| {
            for (seed, (client, offset_bytes)) in clients.into_iter().enumerate() {
                scope.spawn(move || write_and_read_back(client, offset_bytes, seed as u8));
            }
        });
        let stats = server.terminate();
        let requests = |tenant: usize| stats["devices"][0]["tenants"][tenant]["requests"].as_u64().unwrap();
        // Each connection's writes, and its read of 256 KiB, which goes in two pieces.
        assert_eq!([requests(0), requests(1)], [REQUESTS as u64 + 2, 2 * (REQUESTS as u64 + 2)], "{keys}");
    }
}
