//! Requests that go in pieces, and the memory that they hold.

use super::*;
use crate::export::Export;
use crate::memory::{Account, MemoryLimits, ServerMemory};

/// A connection past its handshake whose tenant has this memory.
pub(super) fn structured_of(memory: Arc<TenantMemory>, options: NbdOptions) -> Peer<Connection> {
    let export = Export { memory, ..Export::clone(&table().all()[0]) };
    let mut peer = Peer { has_turns: true, ..Peer::new(connection_to(export, options), 2 * SIZE) };
    peer.ask(&structured_handshake());
    peer
}

/// A connection to an export of 12 MiB at the device's beginning.
fn long_connection() -> Connection {
    let export = Export { offset_bytes: 0, size_bytes: 12 << 20, ..Export::clone(&table().all()[0]) };
    connection_to(export, NbdOptions::default())
}

fn connection_to(export: Export, options: NbdOptions) -> Connection {
    let (socket, _) = UnixStream::pair().unwrap();
    let table = Arc::new(ExportTable::new([export]).unwrap());
    let place = ConnectionSlots::new(&table, &options.listen, Stats::new(&NAMES)).enter(socket.into());
    Connection::new(place, table, Arc::new(options))
}

/// Connections whose pieces are 4 KiB.
fn small_pieces() -> NbdOptions {
    NbdOptions { piece_bytes: 4096, ..NbdOptions::default() }
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 3 + index / 4096) as u8).collect()
}

#[test]
fn a_large_write_goes_in_pieces_of_which_four_are_under_way() {
    let mut peer = structured_with(small_pieces(), &Stats::new(&NAMES));
    let bytes = payload(40_000);
    peer.executes = false;
    // 4096 - 100, then 4096 each: the second boundary is that of the export.
    let request = header(Command::Write, request::FUA, 1, 100, 40_000);
    peer.say(&[request, bytes.clone(), read(2, 0, 10)].concat());
    let staged = |peer: &Peer<Connection>| -> Vec<_> {
        peer.fake.staged.iter().map(|it| (it.offset_bytes - SIZE as u64, it.length_bytes, it.fua)).collect()
    };
    assert_eq!(staged(&peer), [(100, 3996, true), (4096, 4096, true), (8192, 4096, true), (12_288, 4096, true)]);
    assert!(peer.fake.receive.is_none(), "it waits for the device");
    peer.executes = true;
    peer.run();
    assert_eq!(peer.fake.executed.len(), 10 + 1, "the pieces, and the read");
    assert_eq!(&peer.fake.store[SIZE + 100..SIZE + 40_100], &bytes[..]);
    assert_eq!(errors(&peer.read), [(1, 0), (2, 0)]);
}

#[test]
fn a_large_read_holds_memory_for_four_pieces_and_is_answered_in_chunks() {
    let memory = ServerMemory::new(MemoryLimits { server_bytes: 1 << 30, tenants: 1 }).tenant(1 << 30);
    let mut peer = structured_of(memory.clone(), small_pieces());
    let bytes = payload(1 << 20);
    peer.fake.store[SIZE..SIZE + (1 << 20)].copy_from_slice(&bytes);
    peer.reads = false;
    peer.executes = false;
    peer.say(&[read(1, 0, 1 << 20), read(2, 7, 3)].concat());
    assert_eq!(memory.held_bytes(), 5 * 4096, "four pieces, and the small read that overtakes them");
    // The last comes first.
    peer.fake.staged.make_contiguous().reverse();
    peer.executes = true;
    peer.run();
    peer.reads = true;
    peer.run();
    let whole = [&[0; 8][..], &bytes].concat();
    let small = [&7_u64.to_be_bytes()[..], &bytes[7..10]].concat();
    assert_eq!(chunks(&peer.read), [(2, 1, small), (1, 1, whole)]);
    assert_eq!(memory.held_bytes(), 0);
}

#[test]
fn each_large_request_of_a_connection_has_two_pieces_under_way_and_the_first_four() {
    let mut peer = structured_with(small_pieces(), &Stats::new(&NAMES));
    peer.executes = false;
    peer.say(&[read(1, 0, 40_960), read(2, 0, 40_960), write(3, 0, &payload(40_960)), read(4, 5, 1)].concat());
    let reads = |peer: &Peer<Connection>| peer.fake.staged.iter().filter(|it| it.op == Op::Read).count();
    assert_eq!(reads(&peer), 4 + 2, "of the first read, which was alone when it came, and of the second");
    assert_eq!(peer.fake.staged.len(), 4 + 2 + 2, "and of the write; what follows it waits");
    for executed in 1..=16 {
        peer.execute_some(1);
        let staged = peer.fake.staged.len();
        assert!((4..=8).contains(&staged), "{staged} after {executed} of 30: two of each that has them left");
    }
    peer.executes = true;
    peer.run();
    assert_eq!(peer.fake.executed.len(), 3 * 10 + 1);
    assert_eq!(errors(&peer.read).iter().filter(|(cookie, error)| *cookie == 3 && *error == 0).count(), 1);
}

#[test]
fn a_burst_is_taken_in_one_turn_while_flows_compete() {
    let mut peer = structured();
    (peer.executes, peer.fake.is_contended) = (false, true);
    peer.incoming.extend((0..32).flat_map(|cookie| read(cookie, cookie * 4096, 4096)));
    assert!(peer.turn());
    assert_eq!(peer.fake.staged.len(), 32);
}

#[test]
fn a_client_that_reads_nothing_holds_what_a_connection_may() {
    let memory = ServerMemory::new(MemoryLimits { server_bytes: 1 << 30, tenants: 1 }).tenant(1 << 30);
    let options = NbdOptions {
        listen: ListenOptions { bytes_in_flight_max: 100 << 10, ..ListenOptions::default() },
        ..small_pieces()
    };
    let mut peer = structured_of(memory.clone(), options);
    peer.reads = false;
    let burst: Vec<u8> = (0..100).flat_map(|cookie| read(cookie, 0, 1 << 20)).collect();
    peer.say(&burst);
    assert_eq!(memory.held_bytes(), 100 << 10);
    peer.reads = true;
    peer.run();
    assert_eq!(chunks(&peer.read).len(), 100);
    assert_eq!(memory.held_bytes(), 0);
}

#[test]
fn a_large_simple_read_is_one_stream_and_the_others_wait_behind_it() {
    let mut peer = connect_with(small_pieces(), &Stats::new(&NAMES));
    peer.ask(&[vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat());
    let bytes = payload(100_000);
    peer.fake.store[SIZE..SIZE + 100_000].copy_from_slice(&bytes);
    peer.executes = false;
    peer.say(&[read(1, 0, 100_000), read(2, 3, 4), read(3, 50_000, 50_000), flush(4)].concat());
    assert_eq!(peer.fake.staged.len(), 4 + 2, "the second stream has not begun");
    peer.fake.staged.make_contiguous().reverse();
    peer.executes = true;
    peer.run();
    let ok = |cookie: u8| [b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0", &[cookie][..]].concat();
    let expected = [&ok(4)[..], &ok(2), &bytes[3..7], &ok(1), &bytes, &ok(3), &bytes[50_000..]].concat();
    assert!(peer.read == expected, "{} bytes, expected {}", peer.read.len(), expected.len());
}

#[test]
fn a_failed_piece_fails_the_whole_once_and_the_next_request_is_understood() {
    let memory = ServerMemory::new(MemoryLimits { server_bytes: 1 << 30, tenants: 1 }).tenant(1 << 30);
    for request in [read(1, 0, 100_000), write(1, 0, &payload(100_000))] {
        let mut peer = structured_of(memory.clone(), small_pieces());
        peer.status = Status::NoSpace;
        peer.say(&request);
        peer.status = Status::Ok;
        assert_eq!(errors(&peer.ask(&flush(2))), [(1, 28), (2, 0)]);
        // Four were under way when the first failed; a fifth was never made, but for a write piece that had come by
        // then.
        assert!(peer.fake.executed.len() <= 4 + 1 + 1, "{} pieces", peer.fake.executed.len());
        assert_eq!(memory.held_bytes(), 0);
        peer.end();
        assert!(peer.gone());
    }
}

#[test]
fn a_simple_read_that_fails_in_the_middle_ends_the_connection() {
    let stats = Stats::new(&NAMES);
    let mut peer = connect_with(small_pieces(), &stats);
    peer.ask(&[vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat());
    peer.executes = false;
    peer.say(&read(1, 0, 100_000));
    peer.execute_some(1);
    peer.status = Status::Io;
    peer.executes = true;
    peer.run();
    assert!(peer.gone());
    assert_eq!(stats.broken(Rule::FailedInTheMiddle), 1);
    // At its beginning there is still a number to say it with: 5 is EIO.
    let mut peer = connect_with(small_pieces(), &stats);
    peer.ask(&[vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat());
    peer.status = Status::Io;
    assert_eq!(peer.ask(&read(1, 0, 100_000)), b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x01");
}

#[test]
fn a_large_write_that_will_not_come_is_over_when_its_pieces_are_and_gets_no_answer() {
    let whole = write(1, 0, &payload(100_000));
    // The client goes; the server drains.
    for drains in [false, true] {
        let mut peer = structured_with(small_pieces(), &Stats::new(&NAMES));
        peer.executes = false;
        peer.say(&whole[..28 + 10_000]);
        assert_eq!(peer.fake.staged.len(), 2);
        if drains {
            peer.drain();
        } else {
            peer.end();
        }
        assert!(!peer.client.is_done(), "two pieces are under way");
        peer.executes = true;
        peer.run();
        assert_eq!(errors(&peer.read), []);
        assert!(peer.gone());
        assert_eq!(peer.fake.executed.len(), 2);
    }
}

#[test]
fn memory_that_others_hold_is_asked_for_again() {
    let memory = ServerMemory::new(MemoryLimits { server_bytes: 64 << 10, tenants: 1 }).tenant(64 << 10);
    let mut other = Account::new(memory.clone(), 1 << 30);
    other.take(64 << 10).unwrap();
    for request in [read(1, 0, 100_000), write(1, 0, &payload(100_000))] {
        let mut peer = structured_of(memory.clone(), small_pieces());
        peer.executes = false;
        peer.say(&request);
        assert_eq!(peer.fake.staged.len(), 1, "one piece is always to be had");
        (0..3).for_each(|_| peer.pass_ns(MEMORY_RETRY_NS));
        assert_eq!(peer.fake.timers.iter().filter(|(_, user)| *user == user::MEMORY).count(), 1);
        assert_eq!(peer.fake.staged.len(), 1);
        other.give(60 << 10);
        peer.pass_ns(MEMORY_RETRY_NS);
        assert_eq!(peer.fake.staged.len(), 4, "as many pieces as may be under way");
        peer.executes = true;
        peer.run();
        assert_eq!(errors(&peer.read), [(1, 0)]);
        drop(peer);
        other.take(60 << 10).unwrap();
        assert_eq!(memory.held_bytes(), 64 << 10);
    }
}

#[test]
fn a_long_range_without_payload_goes_in_pieces_too() {
    let mut peer = structured();
    // The export is as long as one piece; a piece begins at its first byte.
    let zeroes = header(Command::WriteZeroes, request::FUA, 1, 0, SIZE as u32);
    assert_eq!(errors(&peer.ask(&zeroes)), [(1, 0)]);
    assert_eq!(peer.fake.executed, [(Op::WriteZeroes { may_unmap: true }, SIZE as u64, SIZE as u32, true)]);
    let mut peer = Peer::new(long_connection(), 12 << 20);
    peer.ask(&structured_handshake());
    assert_eq!(errors(&peer.ask(&header(Command::Trim, request::FUA, 1, 512, (9 << 20) + 512))), [(1, 0)]);
    let mib = |offset: u64, length: u32| (Op::Discard, offset, length, true);
    let (first, whole) = ((4 << 20) - 512, 4 << 20);
    assert_eq!(peer.fake.executed, [mib(512, first), mib(4 << 20, whole), mib(8 << 20, (1 << 20) + 1024)]);
}

// Block status, and zeroes that must be fast: what the client hears of what the device said.

fn extents(extents: &[[u32; 2]]) -> Vec<u8> {
    let numbers = extents.iter().flatten().flat_map(|number| number.to_be_bytes());
    [0, 0, 0, 1].into_iter().chain(numbers).collect()
}

fn status(peer: &mut Peer<Connection>, flags: u16, offset_bytes: u64, length_bytes: u32) -> (u64, u16, Vec<u8>) {
    let mut all = chunks(&peer.ask(&header(Command::BlockStatus, flags, 3, offset_bytes, length_bytes)));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn block_status_tells_extents_and_of_a_device_that_does_not_say_data() {
    let mut peer = structured();
    peer.ask(&write(1, 10, b"hello"));
    assert_eq!(status(&mut peer, 0, 0, 1024), (3, 5, extents(&[[512, 0], [512, 3]])));
    assert_eq!(status(&mut peer, request::REQ_ONE, 0, 1024), (3, 5, extents(&[[512, 0]])));
    assert_eq!(status(&mut peer, 0, 600, 1024), (3, 5, extents(&[[1024, 3]])));
    for unknown in [Status::Unsupported, Status::Recalled] {
        peer.status = unknown;
        assert_eq!(status(&mut peer, 0, 600, 1024), (3, 5, extents(&[[1024, 0]])), "{unknown:?}");
    }
    peer.status = Status::Io;
    let (cookie, kind, error) = status(&mut peer, 0, 0, 512);
    assert_eq!((cookie, kind, &error[..4]), (3, 0x8001, &5_u32.to_be_bytes()[..]));
    let ProtocolPhase::Transmitting(transmission) = &mut peer.client.phase else { panic!("the handshake is over") };
    assert_eq!(transmission.under_way(), (0, 0), "each gave its memory back");
}

#[test]
fn block_status_waits_for_memory_as_a_read_does() {
    let memory = crate::memory::ServerMemory::new(crate::memory::MemoryLimits { server_bytes: 8192, tenants: 1 });
    let memory = memory.tenant(8192);
    let mut other = crate::memory::Account::new(memory.clone(), 1 << 30);
    other.take(8192).unwrap();
    let mut peer = large::structured_of(memory, NbdOptions::default());
    peer.executes = false;
    let ask = |cookie| header(Command::BlockStatus, 0, cookie, 0, 512);
    peer.say(&[ask(1), ask(2)].concat());
    assert_eq!(peer.fake.staged.len(), 1, "one is always to be had");
    other.give(8192);
    peer.executes = true;
    peer.pass_ns(MEMORY_RETRY_NS);
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0), (2, 0)]);
}

#[test]
fn zeroes_that_would_be_slow_are_not_supported_in_any_length() {
    let mut peer = structured();
    let zero = |flags, length_bytes| header(Command::WriteZeroes, flags, 1, 0, length_bytes);
    assert_eq!(errors(&peer.ask(&zero(request::FAST_ZERO, SIZE as u32))), [(1, 0)]);
    assert_eq!(peer.fake.executed, [(Op::FastZeroes { may_unmap: true }, SIZE as u64, SIZE as u32, false)]);
    peer.status = Status::Unsupported;
    for length_bytes in [512, SIZE as u32] {
        assert_eq!(errors(&peer.ask(&zero(request::FAST_ZERO, length_bytes))), [(1, 95)]);
    }
    assert_eq!(errors(&peer.ask(&zero(0, 512))), [(1, 22)]);
}
