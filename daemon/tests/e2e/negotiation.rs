//! Every way from a socket to an export: what nbdinfo and libnbd's shell see, and what raw bytes get.

use crate::client::{Handshake, OPT_ABORT, OPT_EXPORT_NAME, REP_ACK};
use crate::server::Server;
use mqfq_testing::machine;
use mqfq_testing::tools::{need, run, run_ok, uri};
use serde_json::{Value, json};
use std::io::{Read, Write};

/// Two exports of one memory device on one socket (and on TCP): `disk` of 1 MiB, and read-only `rom` of 64 KiB.
fn server() -> Server {
    Server::start(
        r#"
[device.d]
kind = "memory"
size = "2MiB"

[tenant.t]

[export.disk]
device = "d"
tenant = "t"
size = "1MiB"
nbd = ["unix:@/s.sock", "tcp:127.0.0.1:0"]
description = "a disk"

[export.rom]
device = "d"
tenant = "t"
offset = "1MiB"
size = "64KiB"
nbd = "unix:@/s.sock"
read-only = true
"#,
    )
}

/// Runs a Python program in libnbd's shell; `h` is a fresh handle and `socket` the server's socket.
fn nbdsh(server: &Server, program: &str) {
    let start = format!("socket = {:?}\n", server.join("s.sock"));
    run_ok("nbdsh", &["-c", &format!("{start}{program}")]);
}

#[test]
fn nbdinfo_sees_every_field_as_configured() {
    need!("nbdinfo");
    let _machine = machine::shared();
    let server = server();
    let info = |name: &str| {
        let text = run_ok("nbdinfo", &["--json", &uri(&server.join("s.sock"), name)]);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let disk = info("disk");
    assert_eq!(disk["protocol"], "newstyle-fixed");
    assert_eq!(disk["TLS"], false);
    assert_eq!(disk["structured"], true);
    let expected = [
        ("export-name", json!("disk")),
        ("description", json!("a disk")),
        ("contexts", json!(["base:allocation"])),
        ("is_rotational", json!(false)),
        ("is_read_only", json!(false)),
        ("can_cache", json!(false)),
        ("can_df", json!(true)),
        ("can_fast_zero", json!(true)),
        ("can_flush", json!(true)),
        ("can_fua", json!(true)),
        ("can_multi_conn", json!(true)),
        ("can_trim", json!(true)),
        ("can_zero", json!(true)),
        ("block_size_minimum", json!(1)),
        ("block_size_preferred", json!(4096)),
        ("block_size_maximum", json!(33_554_432)),
        ("export-size", json!(1_048_576)),
    ];
    let fields = disk["exports"][0].as_object().unwrap();
    for (key, value) in &expected {
        assert_eq!(fields.get(*key), Some(value), "{key} of {disk:#}");
    }
    let rom = &info("rom")["exports"][0];
    assert_eq!(rom["export-size"], 65_536);
    assert_eq!(rom["is_read_only"], true);
    assert_eq!(rom["can_trim"], false);
    assert_eq!(rom["can_zero"], false);
    assert_eq!(rom["description"], Value::Null);
}

#[test]
fn nbdinfo_lists_both_exports_and_maps_what_is_data() {
    need!("nbdinfo");
    let _machine = machine::shared();
    let server = server();
    let socket = server.join("s.sock");
    let list: Value = serde_json::from_str(&run_ok("nbdinfo", &["--list", "--json", &uri(&socket, "")])).unwrap();
    let mut names: Vec<_> = list["exports"].as_array().unwrap().iter().map(|export| &export["export-name"]).collect();
    names.sort_by_key(|name| name.to_string());
    assert_eq!(names, ["disk", "rom"]);
    assert_eq!(run_ok("nbdinfo", &["--size", &uri(&socket, "disk")]).trim(), "1048576");
    // The map covers the export exactly, whatever the device tells apart.
    let map: Value = serde_json::from_str(&run_ok("nbdinfo", &["--map", "--json", &uri(&socket, "disk")])).unwrap();
    let lengths = map.as_array().unwrap().iter().map(|extent| extent["length"].as_u64().unwrap());
    assert_eq!(lengths.sum::<u64>(), 1 << 20);
}

#[test]
fn an_export_on_tcp_is_the_export_on_unix() {
    need!("nbdinfo");
    let _machine = machine::shared();
    let server = server();
    // Port 0 let the kernel choose; the ready line names its choice.
    let listeners = server.ready["exports"][0]["nbd"].as_array().unwrap();
    let tcp = listeners.iter().filter_map(Value::as_str).find_map(|address| address.strip_prefix("tcp:")).unwrap();
    assert_eq!(run_ok("nbdinfo", &["--size", &format!("nbd://{tcp}/disk")]).trim(), "1048576");
    let refused = run("nbdinfo", &["--size", &format!("nbd://{tcp}/rom")]);
    assert!(!refused.status.success(), "rom is not served there");
}

#[test]
fn libnbd_lists_informs_and_goes() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
h.set_opt_mode(True)
h.connect_unix(socket)
assert h.get_protocol() == "newstyle-fixed"
found = {}
h.opt_list(lambda name, description: found.update({name: description}))
assert found == {"disk": "a disk", "rom": ""}, found
h.set_full_info(True)
h.set_export_name("rom")
h.opt_info()
assert h.get_size() == 65536 and h.is_read_only()
h.set_export_name("disk")
h.opt_info()
assert h.get_size() == 1048576 and not h.is_read_only()
assert h.get_export_description() == "a disk"
assert h.get_block_size(nbd.SIZE_PREFERRED) == 4096
h.opt_go()
h.pwrite(b"x" * 512, 512)
assert h.pread(1024, 0) == b"\0" * 512 + b"x" * 512
h.shutdown()
"#,
    );
}

#[test]
fn libnbd_may_choose_again_after_an_unknown_export() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
import errno
h.set_opt_mode(True)
h.connect_unix(socket)
for option in (h.opt_info, h.opt_go):
    h.set_export_name("nobody")
    try:
        option()
        assert False, "an unknown export was accepted"
    except nbd.Error as refused:
        assert refused.errnum == errno.ENOENT, refused
    assert h.aio_is_negotiating()
h.set_export_name("disk")
h.opt_go()
assert h.get_size() == 1048576
h.shutdown()
"#,
    );
}

#[test]
fn libnbd_may_leave_before_it_chooses() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
h.set_opt_mode(True)
h.connect_unix(socket)
h.opt_abort()
assert h.aio_is_closed()
"#,
    );
}

#[test]
fn libnbd_goes_by_export_name_alone_with_and_without_zeroes() {
    need!("nbdsh");
    let _machine = machine::shared();
    // Without the fixed newstyle flag libnbd sends EXPORT_NAME, the only option that exists then.
    nbdsh(
        &server(),
        r#"
for flags in (0, nbd.HANDSHAKE_FLAG_NO_ZEROES):
    h = nbd.NBD()
    h.set_handshake_flags(flags)
    h.set_export_name("disk")
    h.connect_unix(socket)
    assert h.get_protocol() == "newstyle", h.get_protocol()
    assert not h.get_structured_replies_negotiated()
    assert h.get_size() == 1048576
    h.pwrite(b"y" * 4096, 8192)
    assert h.pread(4096, 8192) == b"y" * 4096
    h.shutdown()
h = nbd.NBD()
h.set_handshake_flags(0)
h.set_export_name("nobody")
try:
    h.connect_unix(socket)
    assert False, "an unknown export was accepted"
except nbd.Error:
    pass
"#,
    );
}

#[test]
fn libnbd_works_with_structured_replies_and_without() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
import errno
for structured in (True, False):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    h.set_export_name("disk")
    h.connect_unix(socket)
    assert h.get_structured_replies_negotiated() == structured
    assert h.can_df() == structured
    h.set_strict_mode(0)
    h.pwrite(b"z" * 1000, 1)
    assert h.pread(1002, 0) == b"\0" + b"z" * 1000 + b"\0"
    if structured:
        assert h.pread(1000, 1, nbd.CMD_FLAG_DF) == b"z" * 1000
    try:
        h.pread(512, 1048576)
        assert False, "a read past the end was answered"
    except nbd.Error as refused:
        assert refused.errnum == errno.EINVAL, refused
    h.zero(1000, 1, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    assert h.pread(1002, 0) == b"\0" * 1002
    h.flush()
    h.trim(4096, 0)
    h.shutdown()
"#,
    );
}

#[test]
fn libnbd_gets_base_allocation_and_no_context_that_does_not_exist() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
h.set_opt_mode(True)
h.connect_unix(socket)
h.set_export_name("disk")
contexts = []
h.opt_list_meta_context(lambda name: contexts.append(name))
assert contexts == ["base:allocation"], contexts
h.add_meta_context("base:allocation")
h.add_meta_context("qemu:dirty-bitmap:none")
h.opt_go()
assert h.can_meta_context("base:allocation")
assert not h.can_meta_context("qemu:dirty-bitmap:none")
h.pwrite(b"d" * 65536, 65536)
covered = 0
seen = []
def extents(context, offset, entries, error):
    global covered
    assert context == "base:allocation"
    assert error.value == 0
    covered += sum(entries[0::2])
    seen.extend(zip(entries[0::2], entries[1::2]))
h.block_status(262144, 0, extents)
assert 0 < covered, seen
# Wherever the map says "reads as zero" it must not be where we wrote.
at = 0
for length, flags in seen:
    if flags & nbd.STATE_ZERO:
        assert at + length <= 65536 or 131072 <= at, seen
    at += length
h.shutdown()
"#,
    );
}

#[test]
fn a_read_only_export_refuses_every_change() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
import errno
h.set_export_name("rom")
h.connect_unix(socket)
h.set_strict_mode(0)
for change in (lambda: h.pwrite(b"x", 0), lambda: h.zero(512, 0), lambda: h.trim(512, 0)):
    try:
        change()
        assert False, "a change was accepted"
    except nbd.Error as refused:
        assert refused.errnum == errno.EPERM, refused
assert h.pread(512, 0) == b"\0" * 512
h.shutdown()
"#,
    );
}

#[test]
fn a_flush_on_one_connection_covers_writes_on_another() {
    need!("nbdsh");
    let _machine = machine::shared();
    nbdsh(
        &server(),
        r#"
a, b = nbd.NBD(), nbd.NBD()
for h in (a, b):
    h.set_export_name("disk")
    h.connect_unix(socket)
    assert h.can_multi_conn()
a.pwrite(b"m" * 4096, 0)
b.flush()
assert b.pread(4096, 0) == b"m" * 4096
"#,
    );
}

#[test]
fn export_name_is_answered_by_size_flags_and_zeroes_unless_refused() {
    let _machine = machine::shared();
    let server = server();
    // Fixed newstyle with and without NO_ZEROES: 8 + 2 bytes, and 124 zeroes for a client that did not refuse them.
    for (client_flags, zeroes) in [(1_u32, 124), (3, 0)] {
        let mut handshake = Handshake::greeted(&server.join("s.sock"));
        handshake.stream.write_all(&client_flags.to_be_bytes()).unwrap();
        handshake.option(OPT_EXPORT_NAME, b"disk");
        let mut answer = vec![1; 10 + zeroes];
        handshake.stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], (1_u64 << 20).to_be_bytes());
        assert!(answer[10..].iter().all(|byte| *byte == 0));
        // Nothing follows before a request: a flush (command 3) is answered at once and by 16 bytes.
        let flush = crate::client::Request { cookie: 77, ..crate::client::Request::of(crate::client::CMD_FLUSH) };
        handshake.stream.write_all(&flush.header()).unwrap();
        let mut reply = [0; 16];
        handshake.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[8..], 77_u64.to_be_bytes());
        assert_eq!(reply[4..8], [0; 4]);
    }
}

#[test]
fn abort_is_acknowledged_and_then_the_connection_ends() {
    let _machine = machine::shared();
    let server = server();
    let mut handshake = Handshake::start(&server.join("s.sock"));
    handshake.option(OPT_ABORT, &[]);
    assert_eq!(handshake.reply(OPT_ABORT), Some((REP_ACK, vec![])));
    assert!(crate::client::is_closed(&mut handshake.stream));
}
