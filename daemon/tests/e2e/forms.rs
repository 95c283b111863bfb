//! The numbers of MQFQ's form, from the config to the last reply.

use crate::client::{CMD_WRITE, Client, Request};
use crate::server::{Server, pattern};
use mqfq_testing::machine;
use serde_json::{Value, json};

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
