//! The end: SIGTERM answers admitted requests, a second one does not wait, SIGUSR1 tells how it goes.
//! Streams that cannot be written: tenants are served, signals are heeded and the process ends all the same.

use crate::client::{CMD_READ, CMD_WRITE, Client, Request};
use crate::server::{Folder, Server, arg, command, ended, mqfq};
use crate::start::CONFIG;
use mqfq_testing::machine;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;

const BLOCK_BYTES: u64 = 4096;
const CONNECTIONS: u64 = 4;
const IN_FLIGHT_MAX: u64 = 64;
/// Blocks of one connection, written in turn, over and over. Far more than it has in flight, so that a block's writes
/// follow each other.
const BLOCKS: u64 = 1024;
/// Answers, on all connections together, after which the signal is sent.
const SIGNAL_AT: u64 = 2000;

/// Writes until the server closes the connection. Calls `answered` after each answer, which must not be an error.
/// Writes are numbered from 1; number n goes to block n mod [`BLOCKS`]. Returns the numbers that were answered.
fn write_until_closed(client: Client, first_block: u64, mut answered: impl FnMut()) -> Vec<u64> {
    let mut receiver = client.split();
    let mut sender = client;
    let mut written = Vec::new();
    let (mut sent, mut in_flight) = (0, 0);
    let mut open = true;
    loop {
        while open && in_flight < IN_FLIGHT_MAX {
            let number = sent + 1;
            let request = Request {
                cookie: number,
                offset_bytes: (first_block + number % BLOCKS) * BLOCK_BYTES,
                length_bytes: BLOCK_BYTES as u32,
                ..Request::of(CMD_WRITE)
            };
            // A closed socket: requests sent before may still have answers to read.
            open = sender.send(request, &content(number)).is_ok();
            sent += u64::from(open);
            in_flight += u64::from(open);
        }
        let Some(reply) = receiver.reply() else { return written };
        in_flight -= 1;
        assert_eq!(reply.error, 0, "write {}", reply.cookie);
        written.push(reply.cookie);
        answered();
    }
}

fn content(number: u64) -> Vec<u8> {
    number.to_be_bytes().repeat(BLOCK_BYTES as usize / 8)
}

/// The server reads each socket in order, so admitted requests are a prefix of those sent: if each of them was
/// answered, the answered ones have no gap. On the file device the bytes tell the rest: written if and only if
/// answered.
#[test]
fn sigterm_answers_every_admitted_request_and_executes_no_other() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let disk = folder.file("disk", CONNECTIONS * BLOCKS * BLOCK_BYTES);
    let config = "[server]\nworkers = 2\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\nexpert.depth = 8\n[tenant.t]\n\
                  [export.e]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/s.sock\"\n";
    let mut server = Server::start_in(folder, config);
    let answers = AtomicU64::new(0);
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CONNECTIONS)
            .map(|index| {
                let client = Client::connect(&server.join("s.sock"), "e");
                let (server, answers) = (&server, &answers);
                scope.spawn(move || {
                    write_until_closed(client, index * BLOCKS, || {
                        // Relaxed: only the one thread that gets this very number sends the signal.
                        if answers.fetch_add(1, Ordering::Relaxed) + 1 == SIGNAL_AT {
                            server.signal(libc::SIGTERM);
                        }
                    })
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(server.next_line()["draining"], true);
    let stats = server.next_line();
    let (status, stderr) = server.wait();
    assert!(status.success(), "{status}: {stderr}");

    let mut written_in_all = 0;
    let held = std::fs::read(&disk).unwrap();
    for (index, mut seen) in seen.into_iter().enumerate() {
        seen.sort_unstable();
        let written = seen.len() as u64;
        written_in_all += written;
        assert!(seen.into_iter().eq(1..=written), "connection {index}: the answers have a gap");
        for block in 0..BLOCKS {
            // The newest write to this block that was answered well: the largest n <= written with n mod BLOCKS =
            // block.
            let newest = written.saturating_sub((written + BLOCKS - block) % BLOCKS);
            let at = ((index as u64 * BLOCKS + block) * BLOCK_BYTES) as usize;
            let bytes = &held[at..at + BLOCK_BYTES as usize];
            assert!(bytes == content(newest), "connection {index}, block {block}: write {newest} expected");
        }
    }
    let tenant = &stats["devices"][0]["tenants"][0];
    assert_eq!(tenant["writes"], written_in_all, "the counters agree with the clients");
    assert_eq!(tenant["failed"], 0);
}

#[test]
fn a_removed_export_answers_no_request_with_an_error_and_other_exports_clients_stay() {
    let _machine = machine::shared();
    let mut config = "[server]\nworkers = 2\n[control]\nlisten = \"unix:@/c.sock\"\n[device.d]\nkind = \"model\"\n\
                      preset = \"flash-60k\"\nexpert.slowed = 10\nsize = \"16MiB\"\n[tenant.t]\n"
        .to_owned();
    for (name, offset) in [("goes", 0), ("stays", 8)] {
        config += &format!(
            "[export.{name}]\ndevice = \"d\"\ntenant = \"t\"\noffset = \"{offset}MiB\"\nsize = \"8MiB\"\n\
             nbd = \"unix:@/{name}.sock\"\n"
        );
    }
    let server = Server::start(&config);
    let [goes, stays] = ["goes", "stays"].map(|name| Client::connect(&server.socket(name), name));
    let answers = AtomicU64::new(0);
    let remove = || {
        let done = mqfq(&["ctl", "--socket", &format!("unix:{}", arg(&server.join("c.sock"))), "export", "rm", "goes"]);
        assert!(done.status.success(), "{done:?}");
    };
    std::thread::scope(|scope| {
        // Relaxed: a count of answers, which orders nothing.
        let answered = || _ = answers.fetch_add(1, Ordering::Relaxed);
        let until_removed = scope.spawn(move || write_until_closed(goes, 0, answered));
        let (mut stays, mut removal, mut is_asked, mut after) = (stays, None::<ScopedJoinHandle<()>>, false, 0);
        while after < 100 {
            stays.write(0, &[after; 4096]).unwrap();
            if !is_asked && answers.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                (removal, is_asked) = (Some(scope.spawn(remove)), true);
            }
            // A removal that failed would be waited for without end.
            if let Some(removal) = removal.take_if(|removal| removal.is_finished()) {
                removal.join().unwrap();
            }
            after += u8::from(until_removed.is_finished());
        }
        assert!(until_removed.join().unwrap().len() as u64 >= IN_FLIGHT_MAX);
    });
    server.terminate();
}

#[test]
fn an_idle_server_ends_at_once_and_closes_its_connections() {
    let _machine = machine::shared();
    let server = Server::of_tenants("kind = \"null\"\nsize = \"1MiB\"", &["t"], 1 << 20);
    let mut client = Client::connect(&server.socket("t"), "t");
    client.read(0, 4096).unwrap();
    server.terminate();
    assert!(client.is_closed());
}

/// A client that does not read its replies holds the drain up; the first SIGTERM waits for it, the second does not.
#[test]
fn a_second_sigterm_ends_at_once() {
    let _machine = machine::shared();
    let mut server = Server::of_tenants("kind = \"memory\"\nsize = \"4MiB\"", &["t"], 4 << 20);
    let mut stuck = Client::connect(&server.socket("t"), "t");
    // 64 replies of 1 MiB fit no socket buffer.
    for cookie in 0..64 {
        stuck.send(Request { cookie, length_bytes: 1 << 20, ..Request::of(CMD_READ) }, &[]).unwrap();
    }
    let mut first = [0; 16];
    stuck.stream.read_exact(&mut first).unwrap();
    server.signal(libc::SIGTERM);
    assert_eq!(server.next_line()["draining"], true);
    server.signal(libc::SIGTERM);
    let (status, _) = server.wait();
    assert_eq!(status.signal(), Some(libc::SIGTERM));
}

/// With such a client and only one SIGTERM, the grace time ends the server.
#[test]
fn a_client_that_does_not_read_delays_the_end_by_no_more_than_the_grace_time() {
    let _machine = machine::shared();
    let config = "[server]\ndrain-s = 1\n[device.d]\nkind = \"memory\"\nsize = \"4MiB\"\n[tenant.t]\n[export.t]\n\
                  device = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/t.sock\"\n";
    let mut server = Server::start(config);
    let mut stuck = Client::connect(&server.socket("t"), "t");
    for cookie in 0..64 {
        stuck.send(Request { cookie, length_bytes: 1 << 20, ..Request::of(CMD_READ) }, &[]).unwrap();
    }
    let mut first = [0; 16];
    stuck.stream.read_exact(&mut first).unwrap();
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait();
    assert_eq!(status.code(), Some(1));
    assert_eq!(stderr, "mqfq: some clients did not take their replies within 1 s and were disconnected\n");
}

/// Counters of hctxs are told apart by their place, so the place must not depend on which worker answers first.
#[test]
fn counters_of_hctxs_stand_in_the_order_of_their_workers() {
    let _machine = machine::shared();
    let config = "[server]\nworkers = 2\n[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n[export.t]\n\
                  device = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/t.sock\"\n";
    let mut server = Server::start(config);
    let mut client = Client::connect(&server.socket("t"), "t");
    // One connection lives on one worker: its hctx alone counts, whichever it is.
    let mut place = None;
    for round in 1..=50 {
        client.read(0, 4096).unwrap();
        server.signal(libc::SIGUSR1);
        let stats = server.next_line();
        let dispatched = |index: usize| stats["devices"][0]["hctxs"][index]["dispatched"].as_u64().unwrap();
        let counts = [dispatched(0), dispatched(1)];
        assert_eq!(counts[0] + counts[1], round);
        let here = usize::from(counts[0] == 0);
        assert_eq!(*place.get_or_insert(here), here, "round {round}: the hctxs changed places");
    }
    server.terminate();
}

#[test]
fn sigusr1_prints_the_counters_and_the_server_goes_on() {
    let _machine = machine::shared();
    let mut server = Server::of_tenants("kind = \"memory\"\nsize = \"2MiB\"", &["a", "b"], 1 << 20);
    let mut client = Client::connect(&server.socket("b"), "b");
    for _ in 0..10 {
        client.read(0, 4096).unwrap();
    }
    client.write(0, &[1; 512]).unwrap();
    client.flush().unwrap();
    server.signal(libc::SIGUSR1);
    let stats = server.next_line();
    let device = &stats["devices"][0];
    assert_eq!(device["policy"], "mqfq");
    assert_eq!(device["tenants"][0]["requests"], 0);
    let b = &device["tenants"][1];
    assert_eq!((&b["reads"], &b["writes"], &b["flushes"]), (&10.into(), &1.into(), &1.into()));
    assert_eq!(b["transferred_bytes"], 10 * 4096 + 512);
    client.read(0, 4096).unwrap();
    let last = server.terminate();
    assert_eq!(last["devices"][0]["tenants"][1]["reads"], 11);
}

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
