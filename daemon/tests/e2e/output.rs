//! Streams that cannot be written: tenants are served, signals are heeded and the process ends, whatever stdout and
//! stderr lead to.

use crate::client::{CMD_READ, Client, Request};
use crate::server::{Folder, Server, arg, command, ended, mqfq};
use mqfq_testing::machine;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

const CONFIG: &str = "[server]
workers = 2
[device.d]
kind = \"memory\"
size = \"1MiB\"
[tenant.a]
[export.a]
device = \"d\"
tenant = \"a\"
nbd = \"unix:@/a.sock\"
";

/// A device that no export uses: each reading of the config says so on stderr.
const UNUSED: &str = "[device.unused]\nkind = \"null\"\nsize = \"1MiB\"\n";

/// A pipe full to the last byte.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    // Opens the pipe once more, so that only this end does not block.
    let own = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filler = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(own).unwrap();
    while filler.write(&[b'.'; 4096]).is_ok() {}
    while filler.write(b".").is_ok() {}
    (reader, writer.into())
}

/// Streams that take nothing; what keeps one open comes with it.
fn unwritable() -> [(&'static str, Option<PipeReader>, Stdio); 3] {
    let (reader, full) = full_pipe();
    let (_, without_reader) = std::io::pipe().unwrap();
    let full_disk = File::options().write(true).open("/dev/full").unwrap();
    [
        ("a full pipe that nobody reads", Some(reader), full),
        ("a pipe without a reader", None, without_reader.into()),
        ("a full disk", None, full_disk.into()),
    ]
}

#[test]
fn a_device_that_times_out_while_stderr_cannot_be_written_takes_no_tenant_along() {
    let _machine = machine::shared();
    for (name, _keeps, stderr) in unwritable() {
        let config = CONFIG.replace(
            "kind = \"memory\"\nsize = \"1MiB\"",
            "kind = \"model\"\npreset = \"flash-60k\"\nsize = \"32MiB\"\npolicy = \"none\"\ntimeout = \"1ms\"",
        );
        let mut server = Server::start_with_stderr(&config, stderr);
        let socket = server.socket("a");
        // On both workers; 25 MB from a drive of 240 MB/s, of which each command may take 1 ms.
        let mut clients = [Client::connect(&socket, "a"), Client::connect(&socket, "a")];
        for number in 0..200 {
            let request = Request { cookie: number, length_bytes: 128 << 10, ..Request::of(CMD_READ) };
            let offset_bytes = number % 100 * (128 << 10);
            clients[number as usize % 2].send(Request { offset_bytes, ..request }, &[]).unwrap();
        }
        for client in &mut clients {
            for answered in 0..100 {
                let reply = client.reply().unwrap_or_else(|| panic!("{name}: closed after {answered} answers"));
                if reply.error == 0 {
                    client.stream.read_exact(&mut vec![0; 128 << 10]).unwrap();
                }
            }
        }
        server.signal(libc::SIGUSR1);
        let stats = server.next_line();
        let hctxs = stats["devices"][0]["hctxs"].as_array().unwrap();
        let timeouts: u64 = hctxs.iter().map(|hctx| hctx["timeouts"].as_u64().unwrap()).sum();
        assert!(timeouts > 0, "{name}: nothing was to be said: {stats}");
        for _ in 0..4 {
            // Both workers serve new connections. An error is an answer: on a busy machine this may take longer than a
            // millisecond too.
            let _ = Client::connect(&socket, "a").flush();
        }
        server.terminate();
    }
}

#[test]
fn a_device_that_times_out_is_told_of_on_stderr() {
    let _machine = machine::shared();
    let (reader, stderr) = std::io::pipe().unwrap();
    let config = CONFIG.replace(
        "kind = \"memory\"\nsize = \"1MiB\"",
        "kind = \"model\"\npreset = \"flash-60k\"\nsize = \"32MiB\"\npolicy = \"none\"\ntimeout = \"1ms\"",
    );
    let server = Server::start_with_stderr(&config, stderr.into());
    let mut client = Client::connect(&server.socket("a"), "a");
    // A worker that the machine keeps waiting finds that all have ended by then, and none too late. So: until one is.
    for round in 0.. {
        for number in 0..100 {
            let request =
                Request { offset_bytes: number * (128 << 10), length_bytes: 128 << 10, ..Request::of(CMD_READ) };
            client.send(request, &[]).unwrap();
        }
        let mut data = vec![0; 128 << 10];
        for _ in 0..100 {
            if client.reply().expect("an answer").error == 0 {
                client.stream.read_exact(&mut data).unwrap();
            }
        }
        let mut wait = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd of ours, for the duration of the call. The line comes up to a second after its commands.
        if unsafe { libc::poll(&raw mut wait, 1, 2_000) } > 0 {
            break;
        }
        assert!(round < 30, "the server says nothing of commands that take longer than 1 ms");
    }
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.starts_with("mqfq: device d: ") && line.contains(" commands timed out"), "{line}");
}

#[test]
fn sighup_changes_what_it_may_while_stderr_cannot_be_written() {
    let _machine = machine::shared();
    for (name, _keeps, stderr) in unwritable() {
        let mut server = Server::start_with_stderr(&format!("{CONFIG}{UNUSED}"), stderr);
        let mut client = Client::connect(&server.socket("a"), "a");
        let path = server.join("config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        for weight in [200, 300] {
            std::fs::write(&path, text.replace("[tenant.a]", &format!("[tenant.a]\nweight = {weight}"))).unwrap();
            server.signal(libc::SIGHUP);
            let reloaded = server.next_line();
            assert_eq!(reloaded["reloaded"], true, "{name}: {reloaded}");
            assert_eq!(reloaded["changes"][0]["to"], weight.to_string(), "{name}");
        }
        // A refusal is told there too.
        std::fs::write(&path, "no TOML").unwrap();
        server.signal(libc::SIGHUP);
        assert_eq!(server.next_line()["reloaded"], false, "{name}");
        client.write(0, b"still served").unwrap();
        assert_eq!(client.read(0, 12).unwrap(), b"still served", "{name}");
        drop(client);
        server.terminate();
    }
}

#[test]
fn sigterm_ends_a_server_whose_streams_nobody_reads() {
    let _machine = machine::shared();
    let folder = Folder::new();
    for (name, _keeps, stderr) in unwritable() {
        // Ready is told on stdout, which is full from then on.
        let (reader, stdout) = std::io::pipe().unwrap();
        let own = format!("/proc/self/fd/{}", stdout.as_raw_fd());
        let mut filler = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(own).unwrap();
        let mut server = command(&folder, &format!("{CONFIG}{UNUSED}")).stdout(stdout).stderr(stderr).spawn().unwrap();
        let mut reader = BufReader::new(reader);
        reader.read_line(&mut String::new()).unwrap();
        while filler.write(&[b'.'; 4096]).is_ok() {}
        while filler.write(b".").is_ok() {}
        // The kernel gives the lowest pending signal first, so the report and the reload come before the end.
        for signal in [libc::SIGUSR1, libc::SIGHUP, libc::SIGTERM] {
            // SAFETY: no memory is involved; the child is ours and not yet waited for.
            assert_eq!(unsafe { libc::kill(server.id() as libc::pid_t, signal) }, 0);
        }
        assert_eq!(ended(&mut server).code(), Some(0), "stderr is {name}");
        assert!(!folder.join("a.sock").exists(), "{name}: an orderly end");
    }
}

/// A command whose output cannot be written says so by its status and a sentence, without a backtrace.
#[test]
fn a_command_whose_stdout_cannot_be_written_fails_with_one_sentence() {
    let folder = Folder::new();
    let config = folder.join("config.toml");
    std::fs::write(&config, CONFIG.replace('@', arg(&folder.join("")))).unwrap();
    let commands: [&[&str]; 4] =
        [&["check", arg(&config)], &["check", "--json", arg(&config)], &["--help"], &["--version"]];
    for arguments in commands {
        for (stdout, why) in [("/dev/full", "no storage space"), ("", "broken pipe")] {
            let stdout = match stdout {
                "" => Stdio::from(std::io::pipe().unwrap().1),
                path => Stdio::from(File::options().write(true).open(path).unwrap()),
            };
            let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
            let output = command.args(arguments).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.starts_with("mqfq: cannot write to stdout: "), "{arguments:?}, {why}: {stderr}");
            assert_eq!(stderr.lines().count(), 1, "{arguments:?}, {why}: {stderr}");
            assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}, {why}: {}", output.status);
        }
    }
    assert!(mqfq(&["check", arg(&config)]).status.success());
}
