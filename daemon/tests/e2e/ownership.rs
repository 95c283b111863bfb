//! Bytes that change tenants, on the devices that there are, through changes, upgrades and kills.

use crate::client::{Client, Handshake};
use crate::control::{self, ctl, get, said};
use crate::server::reload;
use crate::server::{Folder, Server, pattern};
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE_BYTES: usize = 1 << 20;

/// Keys of a device of 8 MiB, of each kind.
const DEVICES: [&str; 3] = [
    "kind = \"memory\"\nsize = \"8MiB\"",
    "kind = \"model\"\npreset = \"flash-460k\"\nsize = \"8MiB\"",
    "kind = \"file\"\npath = \"@/disk\"",
];

/// A config of one export `stay`, with more sections.
fn config(device: &str, more: &str) -> String {
    format!(
        "[server]\nworkers = 2\nupgrade = \"unix:@/upgrade\"\n[device.d]\n{device}\n[tenant.t]\n[tenant.u]\n[export.stay]\n\
         device = \"d\"\ntenant = \"t\"\noffset = \"7MiB\"\nnbd = \"unix:@/s.sock\"\n{more}"
    )
}

fn export(name: &str, tenant: &str, offset: &str, size: &str, more: &str) -> String {
    format!(
        "[export.{name}]\ndevice = \"d\"\ntenant = \"{tenant}\"\noffset = \"{offset}\"\nsize = \"{size}\"\n\
         nbd = \"unix:@/s.sock\"\n{more}\n"
    )
}

fn a() -> String {
    export("a", "t", "0", "1MiB", "")
}

fn b(more: &str) -> String {
    export("b", "u", "0", "1MiB", more)
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::File::create(folder.join("disk")).unwrap().set_len(8 << 20).unwrap();
    folder
}

/// A server that wrote to export `a`, and the bytes.
fn written(device: &str) -> (Server, Vec<u8>) {
    let server = Server::start_in(folder(), &config(device, &a()));
    let bytes = pattern(SIZE_BYTES, 7);
    let mut client = Client::connect(&server.socket("s"), "a");
    client.write(0, &bytes).unwrap();
    client.flush().unwrap();
    (server, bytes)
}

/// A client of an export that may have to be erased first.
fn await_export(socket: &Path, export: &str) -> Client {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        match Handshake::start(socket).try_go(export) {
            Ok(client) => return client,
            Err(_) => assert!(Instant::now() < end, "{export} is not offered"),
        }
        std::thread::yield_now();
    }
}

fn is_offered(server: &Server, export: &str) -> bool {
    Handshake::start(&server.socket("s")).try_go(export).is_ok()
}

fn change(server: &mut Server, config: &str) {
    let config = config.replace('@', server.folder().path().to_str().unwrap());
    let line = reload(server, |_| config.clone());
    assert_eq!(line["reloaded"], true, "{line}");
}

#[test]
fn bytes_of_an_export_that_is_gone_read_as_zero_to_the_next_tenant_on_each_kind_of_device() {
    for device in DEVICES {
        let (mut server, bytes) = written(device);
        change(&mut server, &config(device, ""));
        change(&mut server, &config(device, &a()));
        let read = await_export(&server.socket("s"), "a").read(0, SIZE_BYTES as u32).unwrap();
        assert!(read == bytes, "{device}: its tenant has them again");
        // Bytes that a shrink cuts off and a growth brings back are unowned.
        change(&mut server, &config(device, &export("a", "t", "0", "512KiB", "")));
        change(&mut server, &config(device, &a()));
        let mut client = await_export(&server.socket("s"), "a");
        let end = Instant::now() + Duration::from_secs(120);
        while client.size_bytes < SIZE_BYTES as u64 && Instant::now() < end {
            client = await_export(&server.socket("s"), "a");
        }
        let read = client.read(0, SIZE_BYTES as u32).unwrap();
        let (first, rest) = read.split_at(SIZE_BYTES / 2);
        assert!(first == &bytes[..SIZE_BYTES / 2] && rest.iter().all(|byte| *byte == 0), "{device}: it grew");
        change(&mut server, &config(device, &b("")));
        let read = await_export(&server.socket("s"), "b").read(0, SIZE_BYTES as u32).unwrap();
        assert!(read.iter().all(|byte| *byte == 0), "{device}: another tenant's bytes");
        server.terminate();
    }
}

#[test]
fn bytes_that_are_to_be_kept_are_and_another_tenant_of_an_export_must_say() {
    let (mut server, bytes) = written(DEVICES[0]);
    let other = |more| config(DEVICES[0], &export("a", "u", "0", "1MiB", more));
    let text = other("").replace('@', server.folder().path().to_str().unwrap());
    let line = reload(&mut server, |_| text.clone());
    let error = line["error"].as_str().unwrap();
    assert!(
        error.contains("export.a: its bytes are tenant t's and it is tenant u's: allowed are keep-data"),
        "{error}"
    );
    assert!(is_offered(&server, "a"), "nothing was changed");
    change(&mut server, &other("keep-data = true"));
    let read = await_export(&server.socket("s"), "a").read(0, SIZE_BYTES as u32).unwrap();
    assert!(read == bytes);
    server.terminate();
}

#[test]
fn bytes_change_tenants_through_an_upgrade_as_through_a_change() {
    for device in DEVICES {
        let (mut server, _) = written(device);
        change(&mut server, &config(device, ""));
        let server = server.replace(&config(device, &b("")));
        let read = await_export(&server.socket("s"), "b").read(0, SIZE_BYTES as u32).unwrap();
        assert!(read.iter().all(|byte| *byte == 0), "{device}: another tenant's bytes");
        server.terminate();
    }
}

#[test]
fn a_config_that_gives_a_tenants_bytes_to_another_while_no_server_runs_shows_none_of_them() {
    let device = DEVICES[2];
    let (server, bytes) = written(device);
    let folder = server.kill_nine();
    let mut server = Server::start_in(folder, &config(device, &b("")));
    let note = server.note_with("export.b");
    assert!(note.contains("its bytes are tenant t's and it is tenant u's: allowed are keep-data = false"), "{note}");
    assert!(!is_offered(&server, "b"), "neither shown nor erased");
    // Removed while a server ran, and added while none did.
    let folder = server.kill_nine();
    let mut server = Server::start_in(folder, &config(device, &a()));
    let read = await_export(&server.socket("s"), "a").read(0, SIZE_BYTES as u32).unwrap();
    assert!(read == bytes, "its tenant has them all the while");
    change(&mut server, &config(device, ""));
    let folder = server.kill_nine();
    let server = Server::start_in(folder, &config(device, &b("")));
    let read = await_export(&server.socket("s"), "b").read(0, SIZE_BYTES as u32).unwrap();
    assert!(read.iter().all(|byte| *byte == 0), "another tenant's bytes");
    server.terminate();
}

#[test]
fn a_server_in_its_sandbox_keeps_its_record() {
    let device = DEVICES[2];
    for sandbox in ["live", "strict"] {
        let within =
            |more: &str| config(device, more).replace("[server]\n", &format!("[server]\nsandbox = \"{sandbox}\"\n"));
        let server = Server::start_in(folder(), &within(&a()));
        Client::connect(&server.socket("s"), "a").write(0, &pattern(SIZE_BYTES, 7)).unwrap();
        let mut server = server;
        change(&mut server, &within(""));
        change(&mut server, &within(&b("")));
        let read = await_export(&server.socket("s"), "b").read(0, SIZE_BYTES as u32).unwrap();
        assert!(read.iter().all(|byte| *byte == 0), "{sandbox}: another tenant's bytes");
        let record = std::fs::read_to_string(server.join("config.toml.owners.0")).unwrap()
            + &std::fs::read_to_string(server.join("config.toml.owners.1")).unwrap();
        assert!(record.contains("\"u\""), "{record}");
        server.terminate();
    }
}

#[test]
fn ctl_finds_room_lists_what_is_free_asks_before_bytes_are_lost_and_says_who_is_in_the_way() {
    let server = Server::start(control::CONFIG);
    let refused = |args: &[&str]| {
        let output = ctl(&server, args);
        assert!(!output.status.success(), "{args:?} was taken");
        String::from_utf8(output.stderr).unwrap()
    };
    let nbd = format!("unix:{}", server.join("web.sock").display());
    let add = ["export", "add", "new", "--tenant", "db", "--size", "1MiB", "--nbd", &nbd];
    assert_eq!(refused(&add), "mqfq: no device has room for 1MiB in one piece: device d is full\n");
    Client::connect(&server.socket("web"), "web").write(2 << 20, &pattern(SIZE_BYTES, 7)).unwrap();
    assert_eq!(
        refused(&["export", "resize", "web", "2MiB"]),
        "mqfq: export web shrinks from 4MiB to 2MiB, and what is beyond is lost: --yes does it\n"
    );
    assert!(refused(&["export", "set", "web", "--size", "2MiB"]).contains("--yes does it"));
    said(&ctl(&server, &["export", "resize", "web", "2MiB", "--yes"]));
    let shown = said(&ctl(&server, &["device", "show", "d"]));
    let free = "free: 2MiB at offset 2MiB\nfree in all: 2MiB of 8MiB\n";
    assert!(shown.ends_with(free), "{shown}");
    said(&ctl(&server, &add));
    let new = get(&server, "/v1/exports/new");
    assert_eq!((&new["in_force"]["device"], &new["configured"]["offset"]), (&"d".into(), &"2MiB".into()));
    let read = await_export(&server.socket("web"), "new").read(0, SIZE_BYTES as u32).unwrap();
    assert!(read.iter().all(|byte| *byte == 0), "web's bytes");
    assert_eq!(
        refused(&["export", "resize", "web", "3MiB"]),
        "mqfq: export new begins where export web would have to end, and a resize moves nothing: allowed is up to 2MiB\n"
    );
    said(&ctl(&server, &["export", "rm", "new"]));
    said(&ctl(&server, &["export", "resize", "web", "3MiB"]));
    server.terminate();
}
