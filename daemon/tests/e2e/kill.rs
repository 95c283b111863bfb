//! `kill -9` under write load on a file device: writes acknowledged before an acknowledged flush, or with FUA, are
//! there.
//!
//! A kill of the process is not a power cut: bytes that reached the kernel survive it. It can lose writes that the
//! daemon acknowledged before handing them to the kernel, and can leave a file half written by a queue of operations
//! that ended anywhere.
//!
//! Each round writes to one daemon, kills it, starts the next on the same file, and reads everything back from that
//! one, which then is the next round's victim.
//!
//! QEMU with `reconnect-delay` repeats a request whose connection broke, and hands an error reply to its guest.
//! `qemu-img bench` ends at the first error. `MQFQ_RESTARTS=50` has as many rounds.

use crate::client::{CMD_FLUSH, CMD_WRITE, Client, FLAG_FUA, Request};
use crate::server::{Folder, Server, arg, ended};
use mqfq_testing::authority::Authority;
use mqfq_testing::tools::need;
use mqfq_testing::{Random, machine};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// Blocks of one connection, which no other writes.
const BLOCKS: usize = 256;
const CONNECTIONS: usize = 2;
const IN_FLIGHT_MAX: usize = 32;

const CONFIG: &str = "[server]\nworkers = 2\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\n[tenant.t]\n[export.e]\n\
                      device = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/s.sock\"\n";

/// Possible contents of a block: the version that must be there, and later ones that may have replaced it. Versions of
/// a block are written one after another, never two at once.
#[derive(Clone, Default)]
struct Block {
    /// Acknowledged before an acknowledged flush was sent, or with FUA. 0: zeroes, never written.
    durable: u64,
    /// Sent after that, in order.
    later: Vec<u64>,
    /// Newest acknowledged version.
    acknowledged: u64,
    in_flight: bool,
}

/// The effect of a request in flight once it is answered.
enum Pending {
    Write {
        block: usize,
        version: u64,
        fua: bool,
    },
    /// The newest acknowledged version of each block when the flush was sent.
    Flush {
        covers: Vec<u64>,
    },
}

/// One connection's blocks over all rounds.
struct Lane {
    first_block: usize,
    blocks: Vec<Block>,
    next_version: u64,
    random: Random,
    /// Writes that became durable by an acknowledged flush or FUA, and flushes acknowledged: that the test tests.
    made_durable: u64,
}

impl Lane {
    fn new(index: usize, seed: u64) -> Lane {
        Lane {
            first_block: index * BLOCKS,
            blocks: vec![Block::default(); BLOCKS],
            next_version: 1,
            random: Random::new(seed ^ index as u64),
            made_durable: 0,
        }
    }

    /// Keeps [`IN_FLIGHT_MAX`] requests in flight until the server is gone. `answered` is called after each answer.
    fn write_until_killed(&mut self, client: Client, mut answered: impl FnMut()) {
        let mut receiver = client.split();
        let mut sender = client;
        let mut pending: HashMap<u64, Pending> = HashMap::new();
        let mut cookie = 0;
        let mut open = true;
        loop {
            while open && pending.len() < IN_FLIGHT_MAX {
                cookie += 1;
                let (request, payload, meaning) = self.next_request(cookie);
                pending.insert(cookie, meaning);
                open = sender.send(request, &payload).is_ok();
            }
            let Some(reply) = receiver.reply() else { break };
            assert_eq!(reply.error, 0);
            match pending.remove(&reply.cookie).expect("an answer to a request in flight") {
                Pending::Write { block, version, fua } => {
                    let block = &mut self.blocks[block];
                    block.in_flight = false;
                    block.acknowledged = version;
                    if fua {
                        self.made_durable += block.settle(version);
                    }
                }
                Pending::Flush { covers } => {
                    let blocks = self.blocks.iter_mut().zip(covers);
                    self.made_durable += blocks.map(|(block, version)| block.settle(version)).sum::<u64>();
                }
            }
            answered();
        }
        self.blocks.iter_mut().for_each(|block| block.in_flight = false);
    }

    /// One request in 16 is a flush, one in 16 a write with FUA, the others are writes.
    fn next_request(&mut self, cookie: u64) -> (Request, Vec<u8>, Pending) {
        let kind = self.random.below(16);
        if kind == 0 {
            let covers = self.blocks.iter().map(|block| block.acknowledged).collect();
            return (Request { cookie, ..Request::of(CMD_FLUSH) }, Vec::new(), Pending::Flush { covers });
        }
        let block = loop {
            // Far fewer requests are in flight than there are blocks.
            let block = self.random.below(BLOCKS as u64) as usize;
            if !self.blocks[block].in_flight {
                break block;
            }
        };
        let (version, fua) = (self.next_version, kind == 1);
        self.next_version += 1;
        self.blocks[block].in_flight = true;
        self.blocks[block].later.push(version);
        let request = Request {
            cookie,
            flags: if fua { FLAG_FUA } else { 0 },
            offset_bytes: ((self.first_block + block) * BLOCK_BYTES) as u64,
            length_bytes: BLOCK_BYTES as u32,
            ..Request::of(CMD_WRITE)
        };
        (request, self.content(block, version).repeat(BLOCK_BYTES / 16), Pending::Write { block, version, fua })
    }

    /// 16 bytes that name the block and the version.
    fn content(&self, block: usize, version: u64) -> Vec<u8> {
        if version == 0 {
            return vec![0; 16];
        }
        [((self.first_block + block) as u64).to_be_bytes(), version.to_be_bytes()].concat()
    }

    /// Reads every block: each sector holds the durable version or one sent after it (a kill may cut a write between
    /// sectors), all bytes of a sector alike. The next round starts from the versions found.
    fn verify(&mut self, client: &mut Client, context: &str) {
        let length_bytes = (BLOCKS * BLOCK_BYTES) as u32;
        let bytes = client.read((self.first_block * BLOCK_BYTES) as u64, length_bytes).unwrap();
        for index in 0..BLOCKS {
            let held = &bytes[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES];
            let block = &self.blocks[index];
            let allowed: Vec<u64> = std::iter::once(block.durable).chain(block.later.iter().copied()).collect();
            for sector in held.chunks(SECTOR_BYTES) {
                let whole = |version: &u64| {
                    let content = self.content(index, *version);
                    sector.chunks(16).all(|piece| piece == content)
                };
                assert!(
                    allowed.iter().any(whole),
                    "{context}: block {} holds {:02x?}.., allowed are versions {allowed:?}",
                    self.first_block + index,
                    &sector[..16],
                );
            }
        }
        // A block cut in the middle may be cut again; writing it anew would hide that, so it keeps its versions. A
        // whole one is durable from here on: it was read back from the file by a daemon that never had it in memory.
        for index in 0..BLOCKS {
            let held = &bytes[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES];
            let block = &self.blocks[index];
            let versions = std::iter::once(block.durable).chain(block.later.iter().copied());
            let whole = versions.into_iter().find(|version| held == self.content(index, *version).repeat(256));
            if let Some(version) = whole {
                self.blocks[index] = Block { durable: version, acknowledged: version, ..Block::default() };
            }
        }
    }
}

impl Block {
    /// `version` is durable now; returns 1 if it was not before.
    fn settle(&mut self, version: u64) -> u64 {
        if version <= self.durable {
            return 0;
        }
        self.durable = version;
        self.later.retain(|later| *later > version);
        1
    }
}

fn kill_rounds(rounds: u64, seed: u64) {
    println!("{rounds} rounds, seed {seed}");
    let mut random = Random::new(seed);
    let folder = Folder::new();
    folder.file("disk", (CONNECTIONS * BLOCKS * BLOCK_BYTES) as u64);
    let mut lanes: Vec<Lane> = (0..CONNECTIONS).map(|index| Lane::new(index, seed)).collect();
    let mut server = Server::start_in(folder, CONFIG);
    for round in 0..rounds {
        let socket = server.join("s.sock");
        // Killed by the number of answers, not by the clock: 1 to 400, while all connections are writing.
        let kill_at = 1 + random.below(400);
        let answers = std::sync::atomic::AtomicU64::new(0);
        let (sender, killed) = std::sync::mpsc::channel();
        let folder = std::thread::scope(|scope| {
            for lane in &mut lanes {
                let (client, answers, sender) = (Client::connect(&socket, "e"), &answers, sender.clone());
                scope.spawn(move || {
                    lane.write_until_killed(client, || {
                        // Relaxed: only the one thread that gets this very number goes on.
                        if answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1 == kill_at {
                            sender.send(()).unwrap();
                        }
                    });
                });
            }
            killed.recv().expect("the load reaches the number of answers");
            server.kill_nine()
        });
        server = Server::start_in(folder, CONFIG);
        let context = format!("seed {seed}, round {round}, killed after {kill_at} answers");
        let mut client = Client::connect(&socket, "e");
        lanes.iter_mut().for_each(|lane| lane.verify(&mut client, &context));
        if round % 500 == 499 {
            println!("{} rounds", round + 1);
        }
    }
    let made_durable: u64 = lanes.iter().map(|lane| lane.made_durable).sum();
    println!("{made_durable} writes were durable before their kill");
    assert!(made_durable > rounds * 10, "too few writes were flushed for this test to mean anything");
    server.terminate();
}

#[test]
fn kill_nine_loses_nothing_that_was_flushed() {
    let _machine = machine::shared();
    kill_rounds(200, 1);
}

/// `MQFQ_KILL_ROUNDS` more rounds (1,000 if unset) from `MQFQ_KILL_SEED`.
#[test]
#[ignore = "long; run by cargo xtask kill-test"]
fn kill_nine_many_times() {
    let _machine = machine::shared();
    let number = |name: &str, default| {
        let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}"));
        std::env::var(name).map_or(default, parse)
    };
    kill_rounds(number("MQFQ_KILL_ROUNDS", 1000), number("MQFQ_KILL_SEED", 2));
}

#[test]
fn the_server_of_a_demo_ends_with_it_also_when_it_is_killed() {
    let _machine = machine::shared();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
    command.args(["demo", "--live"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(demo.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("the page: "), "{line}");
    let pid = demo.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let server: libc::pid_t = children.trim().parse().expect("one child");
    // SAFETY: no memory is involved. The demo has not waited for it, so the number is still its own.
    let end = unsafe { libc::syscall(libc::SYS_pidfd_open, server, 0) } as libc::c_int;
    assert!(end >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and ours alone.
    let end = unsafe { OwnedFd::from_raw_fd(end) };
    demo.kill().unwrap();
    demo.wait().unwrap();
    let mut readable = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd is there to be read and written.
    assert_eq!(unsafe { libc::poll(&raw mut readable, 1, 60_000) }, 1, "the server goes on without anybody");
    let folder = line.split_once("-L 9118:").unwrap().1.split_once("/control.sock").unwrap().0;
    let _ = std::fs::remove_dir_all(folder);
}

/// Requests after which the server goes, in each round. The bench has [`IN_FLIGHT`] under way then.
const REQUESTS: u64 = 100;

const IN_FLIGHT: &str = "16";

fn rounds() -> u64 {
    std::env::var("MQFQ_RESTARTS").map_or(2, |rounds| rounds.parse().expect("a number"))
}

/// One export at `address`, of a tenant whose cap keeps the bench from ending too early.
fn config(address: &str, more: &str) -> String {
    format!(
        "{more}[server]\nworkers = 2\nupgrade = \"unix:@/upgrade.sock\"\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\n\
         [tenant.t]\nmax-iops = 1000\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"{address}\"\n"
    )
}

fn with_disk() -> Folder {
    let folder = Folder::new();
    drop(folder.file("disk", 16 << 20));
    folder
}

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench {
    running: Running,
    said: PathBuf,
}

impl Bench {
    /// Writes until it has met so many `rounds` and more, at 1,000 requests per second.
    fn start(folder: &Folder, image: &str, rounds: u64) -> Bench {
        let said = folder.join("bench");
        let out = File::create(&said).unwrap();
        let mut bench = Command::new("qemu-img");
        bench.args(["bench", "-w", "-t", "none", "-s", "4096", "-d", IN_FLIGHT]);
        bench.args(["-c", &((rounds + 2) * 8 * REQUESTS).to_string(), "--image-opts", image]);
        let running = Running(bench.stderr(out.try_clone().unwrap()).stdout(out).spawn().unwrap());
        Bench { running, said }
    }

    /// The bench has had [`REQUESTS`] answers from this server, and is not at its end.
    fn goes_on(&mut self, server: &mut Server) {
        let served = |server: &mut Server| server.report()["devices"][0]["tenants"][0]["writes"].as_u64().unwrap();
        let before = served(server);
        while served(server) < before + REQUESTS {
            assert!(self.running.0.try_wait().unwrap().is_none(), "it has ended: {}", self.said());
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap()
    }

    fn ends_well(mut self) {
        assert!(ended(&mut self.running.0).success(), "{}", self.said());
    }
}

#[test]
fn qemu_sees_no_error_of_a_server_that_is_stopped_and_started_again() {
    need!("qemu-img");
    let _machine = machine::shared();
    let config = config("unix:@/s.sock", "");
    let mut server = Server::start_in(with_disk(), &config);
    let socket = server.join("s.sock");
    let image = format!("driver=nbd,server.type=unix,server.path={},export=e,reconnect-delay=100", arg(&socket));
    let mut bench = Bench::start(server.folder(), &image, rounds());
    for _ in 0..rounds() {
        bench.goes_on(&mut server);
        server.signal(libc::SIGTERM);
        server = Server::start_in(server.leaves().1, &config);
    }
    bench.goes_on(&mut server);
    bench.ends_well();
    server.terminate();
}

/// A session of TLS cannot travel, so it ends, and its client comes back to the next process.
#[test]
fn qemu_sees_no_error_of_a_server_that_is_replaced_under_tls() {
    need!("qemu-img", "qemu-storage-daemon");
    let _machine = machine::shared();
    let (folder, authority) = (with_disk(), Authority::new());
    authority.sign(folder.path(), "server", "localhost");
    let client = authority.client(&folder, "a");
    let tls = "[tls]\ncertificate = \"@/server-cert.pem\"\nkey = \"@/server-key.pem\"\nclient-ca = \"@/ca-cert.pem\"\n";
    // The port is not known before, and the next process has the socket of the one before.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config(&format!("tcp:127.0.0.1:{port}"), tls);
    let mut server = Server::start_in(folder, &config);
    // The bench takes no certificate, so it writes through QEMU's own server, which has one.
    let credentials = format!("tls-creds-x509,id=t,dir={},endpoint=client", client.display());
    let node = format!(
        "driver=nbd,node-name=n,server.type=inet,server.host=localhost,server.port={port},export=e,tls-creds=t,\
         reconnect-delay=100"
    );
    let socket = server.join("proxy.sock");
    let listen = format!("addr.type=unix,addr.path={}", arg(&socket));
    let mut proxy = Command::new("qemu-storage-daemon");
    proxy.args(["--object", &credentials, "--blockdev", &node, "--nbd-server", &listen]);
    proxy.args(["--export", "type=nbd,id=x,node-name=n,name=e,writable=on"]);
    let _proxy = Running(proxy.stdout(Stdio::null()).spawn().unwrap());
    let image = format!("driver=nbd,server.type=unix,server.path={},export=e,open-timeout=60", arg(&socket));
    let mut bench = Bench::start(server.folder(), &image, rounds());
    for _ in 0..rounds() {
        bench.goes_on(&mut server);
        server = server.replace(&config);
    }
    bench.goes_on(&mut server);
    bench.ends_well();
    server.terminate();
}
