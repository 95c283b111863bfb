//! `cargo lab serve`: the daemon with every policy.

use crate::checksums::{MIB, verifies};
use crate::client::Client;
use crate::server::{Server, pattern, reload, with_policy};
use mqfq_testing::machine;
use mqfq_testing::tools::need;
use serde_json::json;

#[test]
fn fio_finds_every_checksum_under_each_elevator() {
    need!("fio");
    let _machine = machine::shared();
    for policy in ["mq-deadline", "kyber", "bfq"] {
        // A depth of 8 for 64 requests in flight, so that the policy has something to order.
        let keys = format!("policy = \"{policy}\"\nexpert.depth = 8");
        verifies(&format!("kind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"32MiB\"\n{keys}"), |_| {});
    }
}

#[test]
fn sighup_goes_through_every_policy_that_stages_and_each_serves() {
    let _machine = machine::shared();
    let mut server = Server::of_tenants("kind = \"memory\"\nsize = \"2MiB\"\npolicy = \"none\"", &["a", "b"], MIB);
    let mut clients = ["a", "b"].map(|name| Client::connect(&server.socket(name), name));
    for (seed, policy) in ["mq-deadline", "kyber", "bfq", "sfqd", "mqfq-serial", "mqfq", "none"].into_iter().enumerate()
    {
        let said = reload(&mut server, |text| with_policy(text, policy));
        assert_eq!((&said["reloaded"], &said["changes"][0]["to"]), (&true.into(), &policy.into()), "{said}");
        for client in &mut clients {
            let bytes = pattern(64 << 10, seed as u8);
            client.write(0, &bytes).unwrap();
            assert!(client.read(0, 64 << 10).unwrap() == bytes, "{policy}");
        }
    }
    assert_eq!(server.terminate()["devices"][0]["policy"], "none");
}

#[test]
fn a_device_that_cannot_be_had_leaves_no_socket_behind() {
    let _machine = machine::shared();
    let mut server = Server::of_tenants("kind = \"memory\"\nsize = \"2MiB\"", &["a"], MIB);
    let more = "[device.e]\nkind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"2MiB\"\narbitration = \"wrr-ignored\"\n\
                policy = \"d2fq\"\n[tenant.b]\n[export.b]\ndevice = \"e\"\ntenant = \"b\"\nnbd = \"unix:@/b.sock\"\n";
    let socket = server.join("b.sock");
    let more = more.replace("@/b.sock", socket.to_str().expect("a path of ours is UTF-8"));
    let said = reload(&mut server, |text| text + &more);
    let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(error.contains("device e: policy d2fq needs weighted round robin") && !socket.exists(), "{error}");
    server.terminate();
}

#[test]
fn the_form_of_mqfq_and_its_numbers_can_be_set() {
    crate::checksums::serve_and_tell(&[
        ("form = \"exact\"", [json!("exact"), json!(0), json!(0), json!(1), json!(0)]),
        (
            "quantum = \"4KiB\"\nlease = 0\ntoken-batch = 2\ntoken-share = 0",
            [json!("relaxed"), json!(4096), json!(0), json!(2), json!(0)],
        ),
    ]);
}
