//! Changes while tenants are served: policies and weights by SIGHUP, a trace by SIGUSR2.

use crate::client::Client;
use crate::server::{Server, pattern, reload, with_policy};
use mqfq_testing::machine;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const CONFIG: &str = "[server]
workers = 2
[device.d]
kind = \"memory\"
size = \"8MiB\"
policy = \"none\"
[tenant.a]
[tenant.b]
weight = 100
[export.a]
device = \"d\"
tenant = \"a\"
size = \"4MiB\"
nbd = \"unix:@/a.sock\"
[export.b]
device = \"d\"
tenant = \"b\"
offset = \"4MiB\"
nbd = \"unix:@/b.sock\"
";

#[test]
fn sighup_changes_policies_and_weights_under_clients_that_notice_nothing() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    /// Ends the clients even if the test fails, which otherwise would wait for them.
    struct StopAtEnd<'a>(&'a AtomicBool);
    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let sockets = ["a", "b"].map(|name| (name, server.socket(name)));
    std::thread::scope(|scope| {
        let clients: Vec<_> = sockets
            .iter()
            .map(|(name, socket)| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut client = Client::connect(socket, name);
                    let mut rounds = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let bytes = pattern(8192, rounds as u8);
                        let offset = rounds % 64 * 8192;
                        client.write(offset, &bytes).unwrap();
                        assert!(client.read(offset, 8192).unwrap() == bytes, "{name}: round {rounds}");
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let stop = StopAtEnd(&stop);
        let mut before = "none".to_owned();
        for policy in ["mqfq", "none"].repeat(6) {
            let said = reload(&mut server, |text| with_policy(text, policy));
            assert_eq!(said["reloaded"], true, "{said}");
            let change = &said["changes"][0];
            assert_eq!(
                (&change["device"], &change["key"], &change["tenant"]),
                (&"d".into(), &"policy".into(), &Value::Null)
            );
            assert_eq!((&change["from"], &change["to"]), (&before.as_str().into(), &policy.into()), "{said}");
            policy.clone_into(&mut before);
            server.signal(libc::SIGUSR1);
            assert_eq!(server.next_line()["devices"][0]["policy"], policy);
        }
        let said = reload(&mut server, |text| text.replace("weight = 100", "weight = 300"));
        assert_eq!(said["changes"].as_array().unwrap().len(), 1, "{said}");
        assert_eq!((&said["changes"][0]["tenant"], &said["changes"][0]["to"]), (&"b".into(), &"300".into()));
        drop(stop);
        clients.into_iter().for_each(|client| assert!(client.join().expect("no client noticed") > 0));
    });
    let last = server.terminate();
    assert_eq!(last["devices"][0]["tenants"][0]["failed"], 0);
}

#[test]
fn a_config_that_is_wrong_or_asks_for_a_restart_changes_nothing() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    let said = reload(&mut server, |text| text.replace("\"none\"", "\"cfq\""));
    assert_eq!((&said["reloaded"], &said["changes"]), (&false.into(), &Value::Array(Vec::new())));
    let error = said["error"].as_str().unwrap();
    assert!(error.contains("config.toml:6: device.d.policy: ") && error.contains("allowed are none"), "{error}");
    let said = reload(&mut server, |text| text.replace("\"cfq\"", "\"mqfq\"").replace("\"8MiB\"", "\"9MiB\""));
    let error = said["error"].as_str().unwrap();
    assert!(error.contains("config.toml:3: device.d: this device cannot change while serving"), "{error}");
    let said = reload(&mut server, |text| text.replace("\"9MiB\"", "\"8MiB\"").replace("\"mqfq\"", "\"none\""));
    assert_eq!((&said["reloaded"], said["changes"].as_array().unwrap().len()), (&true.into(), 0));
    let mut client = Client::connect(&server.socket("a"), "a");
    assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
    let last = server.terminate();
    assert_eq!(last["devices"][0]["policy"], "none");
}

#[test]
fn sighup_changes_the_weights_of_groups_tenants_and_exports_and_the_report_tells_them() {
    let _machine = machine::shared();
    let config = CONFIG
        .replace("\"none\"", "\"mqfq\"")
        .replace("[tenant.a]", "[group.acme]\nweight = 300\n[tenant.a]\ngroup = \"acme\"")
        .replace("tenant = \"b\"", "tenant = \"b\"\nweight = 40");
    let mut server = Server::start(&config);
    let clients = ["a", "b"].map(|name| Client::connect(&server.socket(name), name));
    for mut client in clients {
        client.write(0, &pattern(4096, 1)).unwrap();
    }
    let acme = reload(&mut server, |text| text.replace("weight = 300", "weight = 200"));
    let tenant = reload(&mut server, |text| text.replace("weight = 100", "weight = 50"));
    let export = reload(&mut server, |text| text.replace("weight = 40", "weight = 60"));
    let told = [acme, tenant, export].map(|said| {
        let change = &said["changes"][0];
        let text = |key: &str| change[key].as_str().map(str::to_owned);
        (text("group"), text("tenant"), text("export"), text("from"), text("to"))
    });
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(told[0], (some("acme"), None, None, some("300"), some("200")));
    assert_eq!(told[1], (None, some("b"), None, some("100"), some("50")));
    assert_eq!(told[2], (None, some("b"), some("b"), some("40"), some("60")));
    let moved = reload(&mut server, |text| text.replace("[tenant.a]\ngroup = \"acme\"", "[tenant.a]"));
    assert_eq!(
        (&moved["reloaded"], &moved["changes"][0]["key"], &moved["changes"][0]["to"]),
        (&true.into(), &"group".into(), &"none".into())
    );
    let back = reload(&mut server, |text| text.replace("[tenant.a]", "[tenant.a]\ngroup = \"acme\""));
    assert_eq!((&back["reloaded"], &back["changes"][0]["to"]), (&true.into(), &"acme".into()), "{back}");
    let last = server.terminate();
    let device = &last["devices"][0];
    let row = |kind: &str, at: usize| (device[kind][at]["name"].clone(), device[kind][at]["weight"].clone());
    assert_eq!([row("groups", 0), row("groups", 1)], [("acme".into(), 200.into()), ("b".into(), 50.into())]);
    assert_eq!([row("tenants", 0), row("tenants", 1)], [("a".into(), 100.into()), ("b/b".into(), 60.into())]);
    assert!(device["groups"][0]["effective_share"].is_number(), "{device}");
}

#[test]
fn sighup_lets_the_depth_and_the_window_be_found_and_sets_them_again() {
    let _machine = machine::shared();
    const SET: &str = "policy = \"mqfq\"\nexpert = { depth = 48, window = \"32KiB\" }";
    let mut server = Server::start(&CONFIG.replace("policy = \"none\"", SET));
    let mut client = Client::connect(&server.socket("a"), "a");
    let mut in_force = |server: &mut Server| {
        // Four measurements and more: up to three in a row are thrown away on a machine that is busy with others.
        for offset in (0..1024).map(|request| request % 512) {
            assert_eq!(client.read(offset * 4096, 4096).unwrap().len(), 4096);
        }
        server.signal(libc::SIGUSR1);
        server.next_line()["devices"][0]["in_force"].clone()
    };
    let starts = |sentence: &Value, with: &str| sentence["sentence"].as_str().unwrap().starts_with(with);
    for _ in 0..2 {
        let set = in_force(&mut server);
        assert!(starts(&set, "D 48 units of 4KiB, set; T 32KiB, set; "), "{set}");
        assert_eq!((&set["depth"], &set["window"]), (&Value::Null, &Value::Null));
        let said = reload(&mut server, |text| text.replace("= 48", "= \"auto\"").replace("\"32KiB\"", "\"auto\""));
        assert_eq!((&said["reloaded"], said["changes"].as_array().unwrap().len()), (&true.into(), 1), "{said}");
        let found = in_force(&mut server);
        // One request at a time fills nothing, so there is nothing to learn; the report says that it was looked at.
        assert!(starts(&found, "D 64 units of 4KiB, found "), "{found}");
        assert_eq!((&found["depth"]["state"], &found["window"]["bytes"]), (&"quiet".into(), &(64 << 10).into()));
        assert!(found["depth"]["phases"].as_u64().unwrap() > 0, "{found}");
        let said = reload(&mut server, |text| {
            text.replace("depth = \"auto\"", "depth = 48").replace("window = \"auto\"", "window = \"32KiB\"")
        });
        assert_eq!(said["reloaded"], true, "{said}");
    }
    server.terminate();
}

#[test]
fn sigusr2_begins_a_trace_and_the_next_one_writes_it() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    let mut client = Client::connect(&server.socket("b"), "b");
    client.read(0, 4096).unwrap();
    server.signal(libc::SIGUSR2);
    assert_eq!(server.next_line()["tracing"], true);
    for block in 0..20 {
        client.write(block * 4096, &pattern(4096, 1)).unwrap();
    }
    client.read(4096, 512).unwrap();
    client.flush().unwrap();
    server.signal(libc::SIGUSR2);
    let said = server.next_line();
    assert_eq!((&said["tracing"], &said["requests"], &said["requests_lost"]), (&false.into(), &22.into(), &0.into()));
    let path = server.join("trace.json");
    assert_eq!(said["trace"].as_str(), path.to_str());
    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // Each kind of event is as the format asks; begin and end come in pairs, properly nested.
    let mut open: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let processes: BTreeMap<u64, &str> = events
        .iter()
        .filter(|event| event["ph"] == "M" && event["name"] == "process_name")
        .map(|event| (event["pid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap()))
        .collect();
    for event in events {
        let (ph, name) = (event["ph"].as_str().unwrap(), event["name"].as_str().unwrap());
        match ph {
            "M" => assert!(event["args"]["name"].is_string()),
            "i" => assert!(event["ts"].is_number() && event["s"] == "t"),
            "b" | "e" => {
                assert_eq!(processes[&event["pid"].as_u64().unwrap()], "tenant b on d");
                assert!(event["cat"] == "request" && event["tid"].is_u64());
                let (id, ts) = (event["id"].as_u64().unwrap(), event["ts"].as_f64().unwrap());
                let open = open.entry(id).or_default();
                if ph == "b" {
                    *names.entry(name.to_owned()).or_default() += 1;
                    open.push((name.to_owned(), ts));
                } else {
                    let (began, from) = open.pop().expect("an end after its beginning");
                    assert!(began == name && from <= ts, "{began} at {from} is ended by {name} at {ts}");
                }
            }
            other => panic!("{other} was not written"),
        }
    }
    assert!(open.values().all(Vec::is_empty));
    let expected = [("device", 22), ("flush", 1), ("queued", 22), ("read 512", 1), ("write 4096", 20)];
    assert_eq!(names, expected.map(|(name, count)| (name.to_owned(), count)).into());
    server.terminate();
}
