//! The end: SIGTERM answers admitted requests, a second one does not wait, SIGUSR1 tells how it goes.

use crate::client::{CMD_READ, CMD_WRITE, Client, Request};
use crate::server::{Folder, Server, arg, mqfq};
use mqfq_testing::machine;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};

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
        let (mut stays, mut removal, mut after) = (stays, None, 0);
        while after < 100 {
            stays.write(0, &[after; 4096]).unwrap();
            if removal.is_none() && answers.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
                removal = Some(scope.spawn(remove));
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
