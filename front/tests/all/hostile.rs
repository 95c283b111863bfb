//! Guests and hypervisors that do what no honest one would: they harm themselves, and their neighbour gets every
//! answer.

use crate::guest::{
    BASE, EVENT_IDX, FLUSH, Guest, IN, INDIRECT, LOG_ALL, MEMORY_BYTES, Machine, NEXT, OUT, WRITE, data_at, readable,
    request_at,
};
use crate::server::{LIMIT, Server, ServerOptions};
use mqfq_front::front_end::{ListenOptions, drain_export};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

pub fn two() -> Server {
    Server::start(ServerOptions { weights: vec![100, 100], ..ServerOptions::default() })
}

/// A neighbour that writes and reads its own bytes.
pub struct Neighbour {
    guest: Guest,
    rounds: u8,
}

impl Neighbour {
    pub fn attach(server: &Server) -> Neighbour {
        Neighbour { guest: Guest::attach(&server.socket(1), Machine::new(), 1, 64, EVENT_IDX), rounds: 0 }
    }

    pub fn is_unharmed(&mut self) {
        self.rounds += 1;
        self.guest.machine.write(data_at(0), &[self.rounds; 4096]);
        assert_eq!(self.guest.one(OUT, 0, 4096), 0);
        self.guest.machine.write(data_at(0), &[0; 4096]);
        assert_eq!(self.guest.one(IN, 0, 4096), 0);
        assert_eq!(self.guest.machine.read(data_at(0), 4096), [self.rounds; 4096]);
    }
}

/// Waits until the front-end was told that a ring is broken.
fn broke(guest: &Guest) {
    assert!(readable(guest.queues[0].error.as_raw_fd()));
}

#[test]
fn a_hostile_table_stops_its_own_queue_and_a_reset_starts_it_anew() {
    type Spoil = fn(&mut Guest);
    let table: [(&str, Spoil); 10] = [
        ("bad_head", |guest| guest.offer(0, &[64])),
        ("ring_overrun", |guest| {
            guest.queues[0].offered = 300;
            guest.offer(0, &[]);
        }),
        ("chain_too_long", |guest| {
            guest.descriptor(0, 5, request_at(0), 16, NEXT, 5);
            guest.offer(0, &[5]);
        }),
        ("bad_descriptor_address", |guest| {
            guest.descriptor(0, 5, MEMORY_BYTES, 16, NEXT, 6);
            guest.offer(0, &[5]);
        }),
        ("bad_descriptor_address", |guest| {
            guest.descriptor(0, 5, 0u64.wrapping_sub(BASE).wrapping_sub(8), 16, NEXT, 6);
            guest.offer(0, &[5]);
        }),
        ("bad_descriptor_address", |guest| {
            guest.descriptor(0, 5, request_at(0), u32::MAX, NEXT, 6);
            guest.offer(0, &[5]);
        }),
        ("bad_indirect", |guest| {
            guest.descriptor(0, 5, request_at(0), 64, 4, 0);
            let inner = [&(BASE + request_at(0)).to_le_bytes()[..], &64u32.to_le_bytes(), &4u16.to_le_bytes(), &[0; 2]];
            guest.machine.write(request_at(0), &inner.concat());
            guest.offer(0, &[5]);
        }),
        ("out_of_order", |guest| {
            guest.descriptor(0, 5, request_at(0), 16, WRITE | NEXT, 6);
            guest.descriptor(0, 6, request_at(0), 16, 0, 0);
            guest.offer(0, &[5]);
        }),
        ("no_status", |guest| {
            guest.descriptor(0, 5, request_at(0), 16, 0, 0);
            guest.offer(0, &[5]);
        }),
        ("bad_head", |guest| {
            // Twice at once: the first is under way when the second is met.
            let head = guest.request(0, 0, OUT, 0, 4096);
            guest.offer(0, &[head, head]);
        }),
    ];
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    for (rule, spoil) in table {
        let before = server.broken(0, rule);
        let mut guest = Guest::attach(&server.socket(0), Machine::new(), 2, 64, EVENT_IDX | INDIRECT);
        spoil(&mut guest);
        broke(&guest);
        assert_eq!(server.broken(0, rule), before + 1, "{rule}");
        // The other queue goes on, and the neighbour.
        let head = guest.request(1, 1, IN, 0, 512);
        guest.offer(1, &[head]);
        assert_eq!((guest.wait(1, 1)[0].0, guest.status(1)), (head, 0), "{rule}");
        neighbour.is_unharmed();
        guest.front.reset_device().unwrap();
    }
    drop(neighbour);
    server.drain();
}

#[test]
fn a_reset_forgets_what_a_broken_ring_had_under_way() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    let head = guest.request(0, 0, OUT, 0, 4096);
    guest.offer(0, &[head, head]);
    broke(&guest);
    guest.reset();
    assert_eq!(guest.one(IN, 0, 512), 0, "the ring that was is not gone on with");
    assert_eq!(server.broken(0, "bad_head"), 1);
    let machine = guest.machine.clone();
    drop(guest);
    // Nor by the next server's queue in the same area.
    let mut next = Guest::attach(&server.socket(0), machine, 1, 64, EVENT_IDX);
    assert_eq!(next.one(IN, 8, 512), 0);
    server.drain();
}

#[test]
fn a_request_that_makes_no_sense_ends_with_a_status_and_the_queue_goes_on() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, 0);
    assert_eq!(guest.one(99, 0, 0), 2, "unknown");
    assert_eq!(guest.one(IN, 1 << 60, 512), 1, "a sector whose byte wraps");
    assert_eq!(guest.one(IN, 2048, 512), 1, "past the end");
    assert_eq!(guest.one(OUT, 0, 100), 1, "no sector's length");
    guest.descriptor(0, 0, request_at(0), 8, NEXT, 2);
    guest.offer(0, &[0]);
    assert_eq!((guest.wait(0, 1).len(), guest.status(0)), (1, 1), "half a header");
    assert_eq!(guest.one(FLUSH, 0, 0), 0);
    assert_eq!(
        [server.broken(0, "unknown_request"), server.broken(0, "bad_range"), server.broken(0, "no_header")],
        [1, 3, 1]
    );
    server.drain();
}

#[test]
fn a_guest_that_rewrites_its_descriptors_meanwhile_harms_itself_only() {
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    let machine = guest.machine.clone();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let writer = std::thread::spawn(move || {
        let mut number = 0u64;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Addresses, lengths and flags of the first 12 descriptors, any header's kind and sector.
            let (place, value) = ((number >> 33) % 12, (number >> 40) as u32);
            machine.write(place * 16 + (number >> 20) % 4 * 4, &value.to_le_bytes());
            machine.write(request_at(place / 3) + 8, &value.to_le_bytes());
        }
    });
    for _ in 0..100 {
        let mut heads = Vec::new();
        for request in 0..4 {
            heads.push(guest.request(0, request, if request % 2 == 0 { IN } else { OUT }, request.into(), 4096));
        }
        guest.offer(0, &heads);
        neighbour.is_unharmed();
        if guest.queues[0].error.read().is_ok() {
            // This connection's ring is broken, so the guest connects anew.
            drop(guest);
            guest = Guest::attach(&server.socket(0), Machine { inflight: None, ..Machine::new() }, 1, 64, EVENT_IDX);
        } else {
            guest.ended(0);
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    drop(guest);
    neighbour.is_unharmed();
    drop(neighbour);
    server.drain();
}

#[test]
fn a_million_kicks_cost_at_most_a_look_each_and_lose_nothing() {
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    for round in 0..10 {
        (0..100_000).for_each(|_| guest.kick(0));
        neighbour.is_unharmed();
        assert_eq!(guest.one(IN, round, 512), 0);
    }
    assert!(server.own(0, "kicks") <= 1_000_010, "a kick is seen once at most");
    let counts = server.stats[0].counts();
    assert_eq!(counts.requests[0], ("read", 10));
    server.drain();
}

#[test]
fn memory_that_is_cut_under_load_stops_the_queue_that_has_it() {
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    assert_eq!(guest.one(IN, 0, 4096), 0);
    let head = guest.request(0, 0, OUT, 0, 4096);
    guest.offer_quietly(0, &[head]);
    // Everything behind the ring: headers, status bytes, data.
    rustix::fs::ftruncate(&*guest.machine.file, 1 << 20).unwrap();
    guest.kick(0);
    broke(&guest);
    assert_eq!(server.broken(0, "memory_lost"), 1);
    neighbour.is_unharmed();
    drop(guest);
    // Even the rings: the next connection is served.
    let guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    rustix::fs::ftruncate(&*guest.machine.file, 0).unwrap();
    guest.kick(0);
    broke(&guest);
    drop(guest);
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    assert_eq!(guest.one(OUT, 0, 4096), 0);
    neighbour.is_unharmed();
    drop((guest, neighbour));
    server.drain();
}

#[test]
fn a_region_is_taken_away_and_given_back_under_a_running_queue() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    let extra = rustix::fs::memfd_create("extra", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&extra, 1 << 20).unwrap();
    let mut region = guest.machine.region();
    (region.guest_phys_addr, region.userspace_addr) = (0x9000_0000, 0x1000);
    (region.memory_size, region.mmap_handle) = (1 << 20, extra.as_fd().as_raw_fd());
    for _ in 0..20 {
        guest.front.add_mem_region(&region).unwrap();
        assert!(guest.front.add_mem_region(&region).is_err(), "twice");
        let head = guest.request(0, 0, IN, 0, 4096);
        guest.descriptor(0, 1, 0x9000_0000 - BASE, 4096, WRITE | NEXT, 2);
        guest.offer(0, &[head]);
        assert_eq!((guest.wait(0, 1)[0].0, guest.status(0)), (head, 0));
        guest.front.remove_mem_region(&region).unwrap();
        assert!(guest.front.remove_mem_region(&region).is_err(), "twice");
        assert_eq!(guest.one(IN, 0, 4096), 0);
    }
    assert!(server.broken(0, "bad_region") == 40);
    server.drain();
}

#[test]
fn a_front_end_that_stops_in_the_middle_of_a_message_or_talks_nonsense_is_closed() {
    let listen = ListenOptions { handshake_timeout: Duration::from_millis(50), ..ListenOptions::default() };
    let server = Server::start(ServerOptions { weights: vec![100, 100], listen, ..ServerOptions::default() });
    let mut neighbour = Neighbour::attach(&server);
    let say = |bytes: &[u8]| {
        let mut socket = UnixStream::connect(server.socket(0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.write_all(bytes).unwrap();
        socket
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let is_closed = |mut socket: UnixStream| socket.read_to_end(&mut Vec::new()).is_ok_and(|count| count == 0);
    for (bytes, rule) in [
        (words(&[1, 1]), "handshake_too_slow"),
        (words(&[1, 2, 0]), "bad_header"),
        (words(&[1, 1 | 4, 0]), "bad_header"),
        (words(&[1, 1, 1 << 20]), "message_too_long"),
        (words(&[200, 1, 0]), "unknown_message"),
        (words(&[2, 1, 4, 0]), "bad_payload"),
        (words(&[2, 1, 8, u32::MAX, u32::MAX]), "unoffered_features"),
        (words(&[8, 1, 8, 64, 8]), "no_such_queue"),
        (words(&[8, 1, 8, 0, 100]), "bad_queue_size"),
        (words(&[12, 1, 8, 0, 0]), "bad_descriptors"),
        (words(&[12, 1, 8, 1 << 8, 0]), "bad_descriptors"),
        (words(&[5, 1, 8, 1, 0]), "bad_descriptors"),
        (words(&[25, 1, 13, 0, 1, 0]).into_iter().chain([1]).collect(), "bad_config"),
        (words(&[31, 1, 20, 0, 0, 0, 0, 0x0008_0100]), "bad_inflight"),
    ] {
        let before = server.broken(0, rule);
        assert!(is_closed(say(&bytes)), "{rule}");
        assert_eq!(server.broken(0, rule), before + 1, "{rule}");
    }
    let slow = server.broken(0, "handshake_too_slow");
    drop(say(&words(&[2, 1, 8, 0])));
    neighbour.is_unharmed();
    // Its end is seen first, or, on a busy machine, that it has taken too long.
    let is_counted = || server.broken(0, "truncated") + server.broken(0, "handshake_too_slow") == slow + 1;
    let start = Instant::now();
    while !is_counted() && start.elapsed() < LIMIT {
        std::thread::yield_now();
    }
    assert!(is_counted());
    server.drain();
}

#[test]
fn a_second_front_end_waits_for_the_first_and_goes_on_where_it_was() {
    let server = Server::start(ServerOptions::default());
    let mut first = Guest::attach(&server.socket(0), Machine::new(), 2, 64, EVENT_IDX);
    first.machine.write(data_at(0), &[7; 4096]);
    assert_eq!(first.one(OUT, 8, 4096), 0);
    let machine = first.machine.clone();
    let path = server.socket(0);
    let second = std::thread::spawn(move || Guest::attach(&path, machine, 2, 64, EVENT_IDX));
    assert_eq!(first.one(IN, 0, 4096), 0, "the first is not disturbed");
    drop(first);
    let mut second = second.join().unwrap();
    assert_eq!(second.one(IN, 8, 4096), 0);
    assert_eq!(second.machine.read(data_at(0), 4096), [7; 4096]);
    // A ring that is stopped says where it is, and goes on from there.
    let base = second.front.get_vring_base(0).unwrap();
    assert_eq!(base as u16, second.queues[0].offered);
    server.drain();
}

#[test]
fn a_drained_export_lets_its_front_end_go_and_takes_no_other() {
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 2, 64, EVENT_IDX);
    assert_eq!(guest.one(OUT, 0, 4096), 0);
    assert!(drain_export(&server.engine, &server.exports[0], LIMIT));
    assert!(readable(guest.front.as_raw_fd()), "its socket is closed");
    assert!(Guest::try_attach(&server.socket(0), Machine::new(), 1, 64, 0).is_err());
    neighbour.is_unharmed();
    server.drain();
}

#[test]
fn a_guest_that_turns_its_cache_off_gets_stable_writes() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX | 1 << 11);
    assert_eq!(guest.one(OUT, 0, 4096), 0);
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    let (_, config) = guest.front.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    assert_eq!(config[32], 0);
    assert_eq!(guest.one(OUT, 0, 4096), 0);
    assert!(guest.front.set_config(0, VhostUserConfigFlags::WRITABLE, &[0]).is_err(), "the capacity is not its own");
    server.drain();
}

#[test]
fn pages_that_are_written_are_logged_while_that_is_asked_for() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX | LOG_ALL);
    let bits = ((BASE + MEMORY_BYTES) / 4096 / 8) as usize;
    let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, bits as u64).unwrap();
    let region = VhostUserDirtyLogRegion { mmap_size: bits as u64, mmap_offset: 0, mmap_handle: file.as_raw_fd() };
    guest.front.set_log_base(0, Some(region)).unwrap();
    assert_eq!((guest.one(IN, 0, 4096), guest.one(FLUSH, 0, 0)), (0, 0));
    let log = mqfq_blk::foreign::ForeignMemory::map(file.as_fd(), 0, bits).unwrap();
    let mut bytes = vec![0; bits];
    assert!(log.copy_to(0, &mut bytes));
    let marked: Vec<u64> = (0..bits as u64 * 8)
        .filter(|page| bytes[*page as usize / 8] & 1 << (page % 8) != 0)
        .map(|page| page << 12)
        .collect();
    assert_eq!(marked, [BASE + request_at(0), BASE + data_at(0)], "the status byte's page and the data's");
    guest.front.set_features(guest.features & !LOG_ALL).unwrap();
    assert_eq!(guest.one(IN, 0, 8192), 0);
    assert!(log.copy_to(0, &mut bytes));
    assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 2, "nothing more");
    server.drain();
}
