//! A server in its sandbox does all that a server does: serves, reports, traces, changes, is replaced, ends.

use crate::client::Client;
use crate::control::{ask, refused};
use crate::server::{Folder, Server, arg, pattern};
use mqfq_testing::authority::Authority;
use mqfq_testing::tools::{need, run_ok, uri};
use mqfq_testing::{machine, user};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const MIB: u64 = 1 << 20;

fn config(level: &str, more: &str) -> String {
    format!(
        "[server]\nsandbox = \"{level}\"\nupgrade = \"unix:@/upgrade.sock\"\nworkers = 2\n[control]\n\
         listen = \"unix:@/control.sock\"\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\n[tenant.t]\n\
         [export.a]\ndevice = \"d\"\ntenant = \"t\"\nsize = \"8MiB\"\nnbd = [\"unix:@/a.sock\", \"tcp:localhost:0\"]\n{more}"
    )
}

/// Another export, at another socket.
const B: &str = "[export.b]\ndevice = \"d\"\ntenant = \"t\"\noffset = \"8MiB\"\nnbd = \"unix:@/b.sock\"\n";

/// The server reads `config` now.
fn reload(server: &mut Server, config: &str) -> serde_json::Value {
    let text = config.replace('@', arg(server.folder().path()));
    std::fs::write(server.join("config.toml"), text).unwrap();
    server.signal(libc::SIGHUP);
    server.next_line()
}

#[test]
fn a_server_serves_reports_changes_and_is_replaced_in_its_sandbox() {
    need!("nbdcopy", "cmp");
    let _machine = machine::shared();
    for level in ["live", "strict"] {
        let folder = Folder::new();
        folder.file("disk", 16 * MIB);
        let mut server = Server::start_in(folder, &config(level, ""));
        // Threads that were there before have it as well.
        let mut looked_at = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap() {
            // A thread of the start that has ended by now has no status any more.
            let Ok(status) = std::fs::read_to_string(thread.unwrap().path().join("status")) else { continue };
            assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
            looked_at += 1;
        }
        assert!(looked_at > 1, "the main thread and the workers stay");
        let source = server.folder().patterned_file("source", 8 << 20, 1);
        let (back, socket) = (server.join("back"), server.join("a.sock"));
        run_ok("nbdcopy", &["--flush", arg(&source), &uri(&socket, "a")]);
        run_ok("nbdcopy", &[&uri(&socket, "a"), arg(&back)]);
        run_ok("cmp", &[arg(&source), arg(&back)]);
        assert!(server.report()["devices"].is_array());
        for tracing in [true, false] {
            server.signal(libc::SIGUSR2);
            let said = server.next_line();
            assert_eq!(said["tracing"], tracing);
            assert_eq!(said["trace"].is_string(), !tracing, "{said}");
        }
        let heavier = config(level, "").replace("[tenant.t]", "[tenant.t]\nweight = 200");
        assert_eq!(reload(&mut server, &heavier)["reloaded"], true);
        // A socket that comes: within a folder of the config, or not at all; and the server goes on either way.
        let said = reload(&mut server, &config(level, B));
        assert_eq!(said["reloaded"], level == "live", "{said}");
        let sentence = said["error"].as_str().unwrap_or("ermission denied");
        assert!(sentence.contains("ermission denied"), "{sentence}");
        let mut server = server.replace(&config(level, ""));
        run_ok("nbdcopy", &[&uri(&socket, "a"), arg(&back)]);
        run_ok("cmp", &[arg(&source), arg(&back)]);
        assert_eq!(reload(&mut server, &heavier)["reloaded"], true);
        server.terminate();
    }
}

#[test]
fn a_strict_sandbox_refuses_a_reopen_that_would_close_a_socket_and_makes_one_that_keeps_it() {
    let folder = Folder::new();
    folder.file("disk", 16 * MIB);
    folder.file("other", MIB);
    let other = "[device.o]\nkind = \"file\"\npath = \"@/other\"\n[export.o]\ndevice = \"o\"\ntenant = \"t\"\n\
                 nbd = \"unix:@/a.sock\"\n";
    let server = Server::start_in(folder, &config("strict", other));
    let reopen = |device: &str| refused(ask(&server, "POST", &format!("/v1/devices/{device}/reopen"), &[], None));
    let [mut a, mut o] = ["a", "o"].map(|export| Client::connect(&server.socket("a"), export));
    // The TCP address has an export of this device alone.
    let (status, sentence) = reopen("d");
    assert_eq!(status, 409, "{sentence}");
    let expected = "device d cannot be reopened with sandbox = \"strict\": tcp:localhost:0 has exports of this device \
                    alone and could not be bound again; allowed is";
    assert!(sentence.starts_with(expected), "{sentence}");
    a.write(0, &pattern(4096, 3)).unwrap();
    let (status, applied) = ask(&server, "POST", "/v1/devices/o/reopen", &[], None);
    assert_eq!((status, &applied["changed"]), (200, &true.into()), "{applied}");
    assert!(o.is_closed(), "its client was disconnected");
    let mut o = Client::connect(&server.socket("a"), "o");
    assert_eq!(o.read(0, 4096).unwrap(), [0; 4096]);
    assert_eq!(a.read(0, 4096).unwrap(), pattern(4096, 3));
    drop((a, o));
    server.terminate();
}

/// Id of the user and group that own nothing.
const NOBODY: u32 = 65_534;

/// The server has this id for all four ids of user and group, without other groups and capabilities.
fn assert_is_nobody(server: &Server) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of every process");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for name in ["Uid:", "Gid:"] {
        assert_eq!(field(name), vec![NOBODY.to_string(); 4], "{status}");
    }
    assert_eq!(field("Groups:"), Vec::<String>::new(), "{status}");
    for name in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(name), ["0000000000000000"], "{status}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), (vec!["1".into()], vec!["2".into()]), "{status}");
}

#[test]
fn a_server_of_root_becomes_its_user_and_serves_changes_and_is_replaced_as_that() {
    if !user::is_root() {
        return eprintln!("skipped: only root can become another user");
    }
    let _machine = machine::shared();
    let folder = Folder::new();
    let authority = Authority::new();
    authority.sign(folder.path(), "server", "localhost");
    let only_root = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().uid(), 0);
    };
    let key = folder.join("server-key.pem");
    for path in [&folder.file("disk", 16 * MIB), &folder.file("other", MIB), &key] {
        only_root(path);
    }
    // The folder is the user's, as /run/mqfq is.
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let tls = "[tls]\ncertificate = \"@/server-cert.pem\"\nkey = \"@/server-key.pem\"\n";
    let config = |more: &str| config("live", more).replace("[server]", &format!("{tls}[server]\nuser = \"nobody\""));
    let mut server = Server::start_in(folder, &config(""));
    assert_is_nobody(&server);
    let bytes = pattern(1 << 20, 3);
    let mut client = Client::connect(&server.socket("a"), "a");
    client.write(0, &bytes).unwrap();
    client.flush().unwrap();
    // The key is root's: it was read before, and cannot be read again; the server goes on as it was.
    let said = reload(&mut server, &config(""));
    let sentence = said["error"].as_str().unwrap_or_default();
    assert!(sentence.contains("ermission denied") && sentence.contains("server-key.pem"), "{said}");
    assert_eq!(client.read(0, 1 << 20).unwrap(), bytes);
    // A key that the user may read takes its place.
    authority.sign(server.folder().path(), "server", "localhost");
    std::os::unix::fs::chown(&key, Some(NOBODY), None).unwrap();
    assert_eq!(reload(&mut server, &config(""))["reloaded"], true);
    // A socket that comes is the user's; a device that is root's does not come.
    assert_eq!(reload(&mut server, &config(B))["reloaded"], true);
    assert_eq!(std::fs::metadata(server.socket("b")).unwrap().uid(), NOBODY);
    let other = "[device.o]\nkind = \"file\"\npath = \"@/other\"\n[export.o]\ndevice = \"o\"\ntenant = \"t\"\n\
                 nbd = \"unix:@/o.sock\"\n";
    let said = reload(&mut server, &config(&format!("{B}{other}")));
    assert!(said["error"].as_str().unwrap_or_default().contains("ermission denied"), "{said}");
    // Root starts another server in its place, which opens root's files, and becomes the user as well.
    let server = server.replace(&config(&format!("{B}{other}")));
    assert_is_nobody(&server);
    assert_eq!(client.read(0, 1 << 20).unwrap(), bytes, "it did not notice");
    for name in ["b", "o"] {
        let mut client = Client::connect(&server.socket(name), name);
        client.write(0, &bytes[..4096]).unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), bytes[..4096]);
    }
    drop(client);
    server.terminate();
}
