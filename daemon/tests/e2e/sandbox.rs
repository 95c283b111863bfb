//! A server in its sandbox does what a server does: serves, reports, traces, changes, is replaced, ends.

use crate::server::{Folder, Server, arg};
use mqfq_testing::machine;
use mqfq_testing::tools::{need, run_ok, uri};

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
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
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
