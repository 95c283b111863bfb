//! Tenants, exports, devices and listeners that come, change and go by SIGHUP, under clients of others.

use crate::client::{Client, Handshake, is_closed};
use crate::server::reload;
use crate::server::{Server, pattern};
use mqfq_testing::machine;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const CONFIG: &str = "[server]
workers = 2
drain-s = 20
[device.d]
kind = \"memory\"
size = \"16MiB\"
policy = \"mqfq\"
[tenant.a]
[export.a]
device = \"d\"
tenant = \"a\"
size = \"4MiB\"
nbd = \"unix:@/a.sock\"
";

/// The added sections: a tenant with an export on a device.
fn added(name: &str, device: &str, offset: &str, size: &str) -> String {
    format!(
        "[tenant.{name}]\nweight = 300\n[export.{name}]\ndevice = \"{device}\"\ntenant = \"{name}\"\n\
         offset = \"{offset}\"\nsize = \"{size}\"\nnbd = \"unix:@/{name}.sock\"\n"
    )
}

/// The config that a server starts with, and `more`.
fn with(server: &Server, more: &str) -> String {
    let folder = server.join("").display().to_string();
    format!("{CONFIG}{more}").replace("@/", &folder)
}

/// Reloads the config that the server started with, and `more`.
fn change(server: &mut Server, more: &str) -> Value {
    let text = with(server, more);
    become_so(server, &text)
}

/// The server is to be that.
fn become_so(server: &mut Server, text: &str) -> Value {
    reload(server, |_| text.to_owned())
}

fn lines(said: &Value) -> Vec<String> {
    assert_eq!(said["reloaded"], true, "{said}");
    let text = |change: &Value, key: &str| change[key].as_str().unwrap_or("-").to_owned();
    let line =
        |change: &Value| ["device", "tenant", "export", "key", "from", "to"].map(|key| text(change, key)).join(" ");
    said["changes"].as_array().unwrap().iter().map(line).collect()
}

/// Runs `change` while a client of export `a` writes and reads back; returns how often it did.
fn under_load(server: &mut Server, change: impl FnOnce(&mut Server, &dyn Fn())) {
    let socket = server.socket("a");
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    struct StopAtEnd<'a>(&'a AtomicBool);
    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::connect(&socket, "a");
            while !stop.load(Ordering::Relaxed) {
                let round = rounds.load(Ordering::Relaxed);
                let (bytes, offset) = (pattern(8192, round as u8), round % 64 * 8192);
                client.write(offset, &bytes).unwrap();
                assert!(client.read(offset, 8192).unwrap() == bytes, "round {round}");
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _stop = StopAtEnd(&stop);
        // Returns when the client has got on.
        let gets_on = || {
            let until = rounds.load(Ordering::Relaxed) + 20;
            while rounds.load(Ordering::Relaxed) < until {
                assert!(!stop.load(Ordering::Relaxed));
                std::thread::yield_now();
            }
        };
        gets_on();
        change(server, &gets_on);
        gets_on();
    });
}

#[test]
fn tenants_exports_and_listeners_come_and_go_and_those_who_stay_notice_nothing() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    under_load(&mut server, |server, gets_on| {
        for round in 0..3 {
            let at_two = "[\"unix:@/b.sock\", \"unix:@/b2.sock\"]";
            let said = change(server, &added("b", "d", "4MiB", "1MiB").replace("\"unix:@/b.sock\"", at_two));
            assert_eq!(lines(&said), ["d b - added  ", "d b b added  "], "round {round}");
            let mut client = Client::connect(&server.socket("b"), "b");
            client.write(0, &pattern(4096, 9)).unwrap();
            let mut other = Client::connect(&server.socket("b2"), "b");
            assert!(other.read(0, 4096).unwrap() == pattern(4096, 9));
            gets_on();
            let said = change(server, "");
            assert_eq!(lines(&said), ["d b - removed  ", "d b b removed  "]);
            assert!(client.is_closed() && other.is_closed(), "with everything answered");
            let is_there = ["b", "b2"].map(|name| server.socket(name).exists());
            assert_eq!(is_there, [false; 2], "the listeners' sockets go with it");
            gets_on();
        }
        // The bytes of an export that goes are another's, by another address, in one step.
        change(server, &added("b", "d", "4MiB", "1MiB"));
        let mut before = Client::connect(&server.socket("b"), "b");
        let said = change(server, &added("c", "d", "4MiB", "2MiB"));
        let changed = ["d c - added  ", "d b - removed  ", "d c c added  ", "d b b removed  "];
        assert_eq!(lines(&said), changed);
        assert!(before.is_closed());
        let mut client = Client::connect(&server.socket("c"), "c");
        assert!(client.read(0, 4096).unwrap() == [0; 4096], "the bytes of another tenant were erased");
    });
    let last = server.terminate();
    let tenants: Vec<&str> = last["devices"][0]["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tenant| tenant["name"].as_str().unwrap())
        .collect();
    assert_eq!(tenants, ["a", "c"], "{last}");
}

#[test]
fn i11_an_export_grows_and_shrinks_under_its_clients_and_nobody_reaches_past_its_end() {
    let _machine = machine::shared();
    let mut server = Server::start(&(CONFIG.to_owned() + &added("b", "d", "4MiB", "1MiB")));
    under_load(&mut server, |server, _| {
        let mut client = Client::connect(&server.socket("b"), "b");
        let mib = 1 << 20;
        assert_eq!(client.write(mib, &[1; 4096]), Err(28), "ENOSPC past the end");
        let said = change(server, &added("b", "d", "4MiB", "2MiB"));
        assert_eq!(lines(&said), ["d b b size 1MiB 2MiB"]);
        client.write(mib, &[1; 4096]).unwrap();
        assert_eq!(client.read(mib, 4096).unwrap(), [1; 4096]);
        let said = change(server, &added("b", "d", "4MiB", "512KiB"));
        assert_eq!(lines(&said), ["d b b size 2MiB 512KiB"]);
        assert_eq!((client.write(mib, &[2; 4096]), client.read(mib, 4096)), (Err(28), Err(22)));
        client.write(0, &[3; 4096]).unwrap();
        // Another one has those bytes now.
        let both = added("b", "d", "4MiB", "512KiB") + &added("c", "d", "5MiB", "1MiB");
        change(server, &both);
        let mut other = Client::connect(&server.socket("c"), "c");
        assert!(other.read(0, 4096).unwrap() == [0; 4096], "erased");
        let said = change(server, &both.replace("size = \"512KiB\"", "size = \"512KiB\"\nread-only = true"));
        assert_eq!(lines(&said), ["d b b read-only false true"]);
        assert_eq!(client.write(0, &[4; 4096]), Err(1), "EPERM, of a client that was there before");
        assert_eq!(client.read(0, 4096).unwrap(), [3; 4096]);
        other.write(0, &[5; 4096]).unwrap();
    });
    server.terminate();
}

#[test]
fn devices_come_and_go_with_their_exports_and_server_limits_change() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    let device = "[device.e]\nkind = \"memory\"\nsize = \"2MiB\"\npolicy = \"none\"\n";
    under_load(&mut server, |server, gets_on| {
        for _ in 0..3 {
            let more = device.to_owned() + &added("b", "e", "0", "1MiB");
            let said = change(server, &more);
            assert_eq!(lines(&said), ["e - - added  ", "e b b added  "]);
            let mut client = Client::connect(&server.socket("b"), "b");
            client.write(4096, &pattern(4096, 3)).unwrap();
            assert!(client.read(4096, 4096).unwrap() == pattern(4096, 3));
            let report = server.report();
            assert_eq!(report["devices"][1]["name"], "e");
            gets_on();
            let said = change(server, "");
            assert_eq!(lines(&said), ["e b b removed  ", "e - - removed  "]);
            assert!(client.is_closed());
            assert_eq!(server.report()["devices"].as_array().unwrap().len(), 1);
        }
        let text = with(server, "").replace("drain-s = 20", "drain-s = 21\nconnections = 3\nmemory = \"1MiB\"");
        let text =
            text.replace("drain-s", "connection-memory = \"1MiB\"\nhandshake-s = 1\nsocket-mode = \"640\"\ndrain-s");
        let said = become_so(server, &text);
        let server_keys = [
            "- - - connections 1024 3",
            "- - - memory 256MiB 1MiB",
            "- - - connection-memory 16MiB 1MiB",
            "- - - handshake-s 10 1",
            "- - - socket-mode 600 640",
            "- - - drain-s 20 21",
        ];
        assert_eq!(lines(&said), server_keys);
        let mode = std::fs::metadata(server.socket("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "of a socket that was there");
        // It says nothing, and one second is over before ten.
        let mut silent = Handshake::start(&server.socket("a"));
        assert!(is_closed(&mut silent.stream));
        let clients: Vec<_> = (0..2).map(|_| Client::connect(&server.socket("a"), "a")).collect();
        assert!(Handshake::start(&server.socket("a")).try_go("a").is_err(), "three are admitted, one writes");
        drop(clients);
    });
    server.terminate();
}

#[test]
fn i12_what_fails_half_way_changes_nothing() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    let taken = std::os::unix::net::UnixListener::bind(server.socket("b")).unwrap();
    under_load(&mut server, |server, _| {
        let refused = |server: &mut Server, more: &str, what: &str| {
            let text = with(server, more);
            let said = become_so(server, &text.replace("policy = \"mqfq\"", "policy = \"none\""));
            let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
            assert!(said["reloaded"] == false && error.contains(what), "{error}");
            assert_eq!(said["changes"].as_array().unwrap().len(), 0);
            let report = server.report();
            let devices = report["devices"].as_array().unwrap();
            assert_eq!((&devices[0]["policy"], devices.len()), (&"mqfq".into(), 1), "as before: {what}");
        };
        let device = "[device.e]\nkind = \"memory\"\nsize = \"2MiB\"\n";
        let all = device.to_owned() + &added("b", "e", "0", "1MiB");
        refused(server, &all, "a server is already listening there");
        refused(server, &added("b", "d", "2MiB", "1MiB"), "overlaps export.a in bytes 2097152 to 3145727 of device d");
        refused(server, &added("b", "d", "15MiB", "2MiB"), "ends past the end of device d");
        refused(server, &added("b", "e", "0", "1MiB"), "there is no device \"e\"");
        let same = added("b", "d", "4MiB", "1MiB") + &added("c", "d", "5MiB", "1MiB").replace("c.sock", "C.sock");
        let collide = same.replace("nbd = \"unix:@/C.sock\"", "nbd = [\"unix:@/C.sock\", \"unix:@/C.sock\"]");
        refused(server, &collide, "is listed twice, allowed is once");
        drop(taken);
        std::fs::remove_file(server.socket("b")).unwrap();
        let said = change(server, &added("b", "d", "4MiB", "1MiB"));
        assert_eq!(lines(&said), ["d b - added  ", "d b b added  "], "the next proposal is as good as the first");
        Client::connect(&server.socket("b"), "b").write(0, &[1; 512]).unwrap();
    });
    server.terminate();
}

/// Descriptors, and memory in KiB, of the server's process.
fn holds(server: &Server) -> (usize, u64) {
    let folder = format!("/proc/{}", server.id());
    let status = std::fs::read_to_string(format!("{folder}/status")).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let memory = memory.trim().trim_end_matches(" kB").parse().unwrap();
    (std::fs::read_dir(format!("{folder}/fd")).unwrap().count(), memory)
}

/// `MQFQ_CHURN_ROUNDS`: rounds, if not so few that the suite need not wait for them. `cargo xtask soak` makes 10,000.
#[test]
fn churn_leaves_no_descriptor_and_no_memory_behind() {
    let _machine = machine::shared();
    let rounds = std::env::var("MQFQ_CHURN_ROUNDS").map_or(24, |rounds| rounds.parse().expect("a number"));
    let mut server = Server::start(CONFIG);
    let device = "[device.e]\nkind = \"memory\"\nsize = \"2MiB\"\npolicy = \"mqfq\"\n";
    let more = device.to_owned() + &added("b", "e", "0", "1MiB") + &added("c", "d", "4MiB", "1MiB");
    let round = |server: &mut Server| {
        assert_eq!(change(server, &more)["reloaded"], true);
        let mut clients = ["b", "c"].map(|name| Client::connect(&server.socket(name), name));
        clients.iter_mut().for_each(|client| client.write(0, &[1; 4096]).unwrap());
        assert_eq!(change(server, "")["reloaded"], true);
        assert!(clients.iter_mut().all(Client::is_closed));
    };
    // Memory that is taken once and kept: stacks, free lists, places.
    (0..rounds / 4).for_each(|_| round(&mut server));
    let (descriptors, memory_kib) = holds(&server);
    (rounds / 4..rounds).for_each(|_| round(&mut server));
    let after = holds(&server);
    assert_eq!(after.0, descriptors, "descriptors after {rounds} rounds");
    assert!(after.1 < memory_kib + 16 * 1024, "{memory_kib} KiB, then {} after {rounds} rounds", after.1);
    server.terminate();
}
