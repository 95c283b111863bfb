//! Bad input at the command line: one exact sentence on stderr, nothing on stdout, a non-zero exit.

use crate::server::{Folder, Server, arg, mqfq};
use mqfq_testing::machine;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

const GOOD: &str = r#"[device.fast]
kind = "memory"
size = "1MiB"

[tenant.alice]
weight = 200

[export.root]
device = "fast"
tenant = "alice"
size = "256KiB"
nbd = "unix:@/a.sock"
"#;

/// `serve` and `check` both refuse the config with `expected`, where `@` is the folder.
fn refuses(folder: &Folder, config: &str, expected: &str) {
    let here = folder.join("");
    let here = here.to_str().unwrap().trim_end_matches('/');
    let path = folder.join("config.toml");
    std::fs::write(&path, config.replace('@', here)).unwrap();
    let expected = format!("mqfq: {}\n", expected.replace('@', here));
    for command in ["serve", "check"] {
        for arguments in [vec![command], vec![command, "--json"]] {
            let mut arguments = arguments;
            arguments.push(path.to_str().unwrap());
            let output = mqfq(&arguments);
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{arguments:?}");
            assert!(output.stdout.is_empty(), "{arguments:?}");
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        }
    }
}

fn good_with(old: &str, new: &str) -> String {
    assert_eq!(GOOD.matches(old).count(), 1, "{old:?} stands in GOOD once");
    GOOD.replace(old, new)
}

#[test]
fn a_config_that_cannot_work_is_refused_in_one_sentence() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let cases = [
        (
            good_with("weight = 200", "weigth = 200"),
            "@/config.toml:6: tenant.alice.weigth: unknown key, allowed are weight, group, latency, staged-requests, staged-bytes, memory, max-iops, max-bytes-per-s, identity; did you mean weight?",
        ),
        (
            good_with("weight = 200", "weight = 0"),
            "@/config.toml:6: tenant.alice.weight: 0 is out of range, allowed is 1 to 10000",
        ),
        (
            good_with("weight = 200", "weight = 10001"),
            "@/config.toml:6: tenant.alice.weight: 10001 is out of range, allowed is 1 to 10000",
        ),
        (
            format!(
                "{GOOD}[export.swap]\ndevice = \"fast\"\ntenant = \"alice\"\noffset = \"128KiB\"\nsize = \"256KiB\"\n\
                 nbd = \"unix:@/b.sock\"\n"
            ),
            "@/config.toml:13: export.swap: overlaps export.root in bytes 131072 to 262143 of device fast, allowed only \
             if both say shared = true",
        ),
        (
            good_with("size = \"256KiB\"", "size = \"2MiB\""),
            "@/config.toml:11: export.root.size: 2097152 bytes from offset 0 ends past the end of device fast, allowed \
             is up to byte 1048576",
        ),
        (
            good_with("kind = \"memory\"\nsize = \"1MiB\"", "kind = \"file\"\npath = \"@/nowhere\""),
            "@/config.toml:3: device.fast.path: cannot open @/nowhere: No such file or directory",
        ),
        (
            good_with("kind = \"memory\"", "kind = \"memory\"\nexpert.depth = 0"),
            "@/config.toml:3: device.fast.expert.depth: 0 is out of range, allowed is 1 to 65535 or \"auto\"",
        ),
        (
            good_with("kind = \"memory\"", "kind = \"memory\"\nwindow = \"8KiB\""),
            "@/config.toml:3: device.fast.window: now stands in [device.fast.expert]",
        ),
        (
            good_with("kind = \"memory\"", "kind = \"memory\"\npolicy = \"none\"\nform = \"exact\""),
            "@/config.toml:4: device.fast.form: is a key of cargo lab serve alone",
        ),
        (
            good_with("device = \"fast\"", "device = \"slow\""),
            "@/config.toml:9: export.root.device: there is no device \"slow\", defined are fast",
        ),
        (
            // The software controller has logical blocks of 512 bytes, which no export may cut.
            good_with("kind = \"memory\"", "kind = \"model\"\npreset = \"flash-460k\"").replace("256KiB", "1000"),
            "@/config.toml:9: export.root: offset 0 and size 1000 do not fit device fast, allowed are multiples of its \
             block of 512 bytes",
        ),
        (
            good_with("[tenant.alice]", "[server]\nuser = \"no such user\"\n\n[tenant.alice]"),
            "server.user: there is no user \"no such user\", allowed is a name or a number",
        ),
        (
            good_with("[tenant.alice]", "[control]\nlisten = \"unix:@/a.sock\"\n\n[tenant.alice]"),
            "@/config.toml:15: export.root.nbd: unix:@/a.sock is taken by control.listen, allowed is another address",
        ),
    ];
    for (config, expected) in cases {
        refuses(&folder, &config, expected);
    }
}

#[test]
fn check_refuses_what_the_machine_would_refuse_to_serve() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let token = |name: &str, text: &str, mode| {
        std::fs::write(folder.join(name), text).unwrap();
        std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    token("good", "0123456789abcdef", 0o600);
    token("open", "0123456789abcdef", 0o644);
    token("short", "0123", 0o600);
    std::fs::write(folder.join("odd"), [0; 1000]).unwrap();
    let with = |section: &str| format!("{section}\n{GOOD}");
    let control = |listen: &str, token: &str| {
        with(&format!("[control]\nlisten = [\"unix:@/c.sock\", \"{listen}\"]\ntoken-file = \"@/{token}\"\n"))
    };
    let none = |what: &str| {
        format!(
            "cannot listen on unix:@/none/{what}: there is no folder @/none, allowed is one that exists (RuntimeDirectory= of \
             a systemd unit makes it)"
        )
    };
    let cases = [
        (
            control("tcp:127.0.0.1:0", "none"),
            "@/config.toml:3: control.token-file: cannot read @/none: No such file or directory".to_owned(),
        ),
        (
            control("tcp:127.0.0.1:0", "open"),
            "@/config.toml:3: control.token-file: @/open has mode 644: others can read it, allowed is at most 600"
                .into(),
        ),
        (
            control("tcp:127.0.0.1:0", "short"),
            "@/config.toml:3: control.token-file: @/short holds no token, allowed are at least 16 printable ASCII \
             characters, no space"
                .into(),
        ),
        (
            // An address of documentation (RFC 5737), which no machine has.
            control("tcp:192.0.2.1:80", "good"),
            "cannot listen on tcp:192.0.2.1:80: Cannot assign requested address".into(),
        ),
        (control("unix:@/none/control", "good"), none("control")),
        (with("[server]\nupgrade = \"unix:@/none/upgrade\"\n"), none("upgrade")),
        (good_with("unix:@/a.sock", "unix:@/none/a.sock"), none("a.sock")),
        (good_with("nbd = \"unix:@/a.sock\"", "vhost-user = \"unix:@/none/a.sock\""), none("a.sock")),
        (
            good_with("unix:@/a.sock", "unix:@/odd"),
            "cannot listen on unix:@/odd: the file exists and is not a socket".into(),
        ),
        (
            good_with("unix:@/a.sock", "unix:@/odd/a.sock"),
            "cannot listen on unix:@/odd/a.sock: @/odd is not a folder".into(),
        ),
    ];
    for (config, expected) in cases {
        refuses(&folder, &config, &expected);
    }
    // The sentence has the block of the file system.
    let odd = good_with(
        "kind = \"memory\"\nsize = \"1MiB\"",
        "kind = \"file\"\npath = \"@/odd\"\nexpert.direct = \"always\"",
    );
    std::fs::write(folder.join("config.toml"), odd.replace("256KiB", "1000").replace('@', arg(folder.path()))).unwrap();
    let [serve, check] = ["serve", "check"].map(|command| mqfq(&[command, arg(&folder.join("config.toml"))]));
    assert!(
        String::from_utf8_lossy(&serve.stderr).contains("odd: direct I/O is demanded, but its length of 1000 bytes")
    );
    assert_eq!((serve.stderr, serve.status.code()), (check.stderr, check.status.code()));
    for socket in ["a.sock", "c.sock"] {
        assert!(!folder.join(socket).exists(), "a check makes nothing");
    }
}

#[test]
fn a_config_of_a_server_that_runs_is_good() {
    let _machine = machine::shared();
    let folder = Folder::new();
    std::fs::write(folder.join("disk"), [0; 1 << 20]).unwrap();
    let config = good_with("kind = \"memory\"\nsize = \"1MiB\"", "kind = \"file\"\npath = \"@/disk\"");
    let config = format!("[control]\nlisten = \"unix:@/c.sock\"\n[server]\nupgrade = \"unix:@/u.sock\"\n{config}");
    let server = Server::start_in(folder, &config);
    let checked = mqfq(&["check", server.join("config.toml").to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
    server.terminate();
}

#[test]
fn a_config_that_is_not_there_is_refused() {
    let output = mqfq(&["serve", "/nowhere/config.toml"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "mqfq: cannot read config /nowhere/config.toml: No such file or directory\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn bad_arguments_are_refused_in_one_sentence() {
    let output = mqfq(&["serve"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "mqfq: the following required arguments were not provided: <CONFIG>, see mqfq serve --help\n"
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_socket_path_in_use_is_refused_and_left_alone() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let path = folder.join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let config = folder.join("config.toml");
    std::fs::write(&config, GOOD.replace("@/a.sock", path.to_str().unwrap())).unwrap();
    let output = mqfq(&["serve", config.to_str().unwrap()]);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("mqfq: cannot listen on unix:{}: a server is already listening there\n", path.display())
    );
    assert_eq!(output.status.code(), Some(1));
    // The owner's socket still works.
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop(listener);
}

#[test]
fn a_socket_that_a_killed_server_left_is_taken_over() {
    let _machine = machine::shared();
    let server = Server::start(GOOD);
    let path = server.join("a.sock");
    let folder = server.kill_nine();
    assert!(path.exists(), "kill -9 leaves the socket file");
    let server = Server::start_in(folder, GOOD);
    crate::client::Client::connect(&path, "root").read(0, 512).unwrap();
    server.terminate();
    assert!(!path.exists(), "an orderly end removes it");
}

/// Two schedulers on one file would each believe that it has the file alone. `check` touches nothing, so it is content.
#[test]
fn a_file_that_another_server_serves_is_refused() {
    let _machine = machine::shared();
    let folder = Folder::new();
    folder.file("disk", 1 << 20);
    let config = GOOD.replace("kind = \"memory\"\nsize = \"1MiB\"", "kind = \"file\"\npath = \"@/disk\"");
    let server = Server::start_in(folder, &config);
    let text = std::fs::read_to_string(server.join("config.toml")).unwrap();
    let second = server.join("second.toml");
    std::fs::write(&second, text.replace("a.sock", "second.sock")).unwrap();
    let output = mqfq(&["serve", second.to_str().unwrap()]);
    let disk = server.join("disk");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!(
            "mqfq: {}:3: device.fast.path: {}: is served by process {}\n",
            second.display(),
            disk.display(),
            server.ready["pid"]
        )
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(!server.join("second.sock").exists());
    assert!(mqfq(&["check", second.to_str().unwrap()]).status.success());
    server.terminate();
}

#[test]
fn check_says_what_would_be_served_without_serving_it() {
    let folder = Folder::new();
    let config = folder.join("config.toml");
    std::fs::write(&config, GOOD.replace('@', folder.join("").to_str().unwrap().trim_end_matches('/'))).unwrap();
    let output = mqfq(&["check", "--json", config.to_str().unwrap()]);
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ready"], false);
    assert_eq!(report["exports"][0]["name"], "root");
    assert_eq!(report["exports"][0]["size_bytes"], 262_144);
    assert_eq!(report["exports"][0]["tenant"], "alice");
    assert!(!folder.join("a.sock").exists());
}
