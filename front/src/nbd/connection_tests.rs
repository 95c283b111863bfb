use super::super::rule::Rule;
use super::super::wire::{Reader, RequestHeader, option, request};
use super::*;
use crate::connection_slots::ConnectionSlots;
use crate::export::BlockSizes;
use crate::fake::Peer;
use crate::front_end::ListenOptions;
use crate::memory::TenantMemory;
use crate::stats::Stats;
use mqfq_blk::FlowId;
use mqfq_blk::client::DeviceIndex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

#[path = "connection_handover_tests.rs"]
mod handover;
#[path = "connection_large_tests.rs"]
mod large;
#[path = "connection_state_tests.rs"]
mod state;
#[path = "connection_tls_tests.rs"]
pub(super) mod tls;

/// The device is twice as long as the export, which begins in its middle.
const SIZE: usize = 4 << 20;

fn table() -> Arc<ExportTable> {
    let export = Export {
        name: "a".to_owned(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(3),
        id: crate::export::ExportId(mqfq_blk::slots::Slot::first(0)),
        tenant: crate::export::TenantId(mqfq_blk::slots::Slot::first(0)),
        state: crate::export::ExportState::default(),
        offset_bytes: SIZE as u64,
        size_bytes: SIZE as u64,
        read_only: false,
        block: BlockSizes::DEFAULT,
        memory: TenantMemory::unbounded(),
        caps: mqfq_blk::cap::Caps::none(),
    };
    Arc::new(ExportTable::new([export]).unwrap())
}

fn listen(listen: ListenOptions) -> NbdOptions {
    NbdOptions { listen, ..NbdOptions::default() }
}

fn connect_to(exports: Arc<ExportTable>, options: NbdOptions, stats: &Arc<Stats>) -> Peer<Connection> {
    // The socket is only a number here: the fake moves the bytes.
    let (socket, _) = UnixStream::pair().unwrap();
    let place = ConnectionSlots::new(&exports, &options.listen, stats.clone()).enter(socket.into());
    // Tests of TLS count the turns of handshakes.
    let has_turns = options.listen.tls.is_none();
    let connection = Connection::new(place, exports, Arc::new(options));
    Peer { has_turns, ..Peer::new(connection, 2 * SIZE) }
}

fn connect_with(options: NbdOptions, stats: &Arc<Stats>) -> Peer<Connection> {
    connect_to(table(), options, stats)
}

fn connect() -> Peer<Connection> {
    connect_with(NbdOptions::default(), &Stats::new(&NAMES))
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Fixed newstyle, structured replies, base:allocation, GO to the default export.
fn structured_handshake() -> Vec<u8> {
    let context = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat();
    [
        vec![0, 0, 0, 3],
        option(option::STRUCTURED_REPLY, b""),
        option(option::SET_META_CONTEXT, &context),
        option(option::GO, &[0; 6]),
    ]
    .concat()
}

/// A connection past its handshake.
fn structured_with(options: NbdOptions, stats: &Arc<Stats>) -> Peer<Connection> {
    let mut peer = connect_with(options, stats);
    peer.ask(&structured_handshake());
    peer
}

fn structured() -> Peer<Connection> {
    structured_with(NbdOptions::default(), &Stats::new(&NAMES))
}

fn simple() -> Peer<Connection> {
    let mut peer = connect();
    peer.ask(&[vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat());
    peer
}

fn header(command: Command, flags: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    numbered(command as u16, flags, cookie, offset_bytes, length_bytes)
}

fn numbered(command: u16, flags: u16, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    RequestHeader { flags, command, cookie, offset_bytes, length_bytes: length_bytes.into() }.encode(&mut bytes);
    bytes
}

fn read(cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    header(Command::Read, 0, cookie, offset_bytes, length_bytes)
}

fn write(cookie: u64, offset_bytes: u64, payload: &[u8]) -> Vec<u8> {
    [header(Command::Write, 0, cookie, offset_bytes, payload.len() as u32), payload.to_vec()].concat()
}

fn flush(cookie: u64) -> Vec<u8> {
    header(Command::Flush, 0, cookie, 0, 0)
}

/// Structured replies: cookie, type, payload. The chunks of one read, in whatever order they came, are told as one.
fn chunks(bytes: &[u8]) -> Vec<(u64, u16, Vec<u8>)> {
    let mut reader = Reader(bytes);
    let mut all = Vec::new();
    let mut pieces: BTreeMap<u64, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    while !reader.0.is_empty() {
        assert_eq!(reader.u32(), Some(0x668e_33ef));
        let flags = reader.u16().unwrap();
        let (kind, cookie) = (reader.u16().unwrap(), reader.u64().unwrap());
        let payload = reader.counted().unwrap().to_vec();
        if kind != 1 {
            assert_eq!(flags, 1, "only reads have several chunks");
            pieces.remove(&cookie);
            all.push((cookie, kind, payload));
            continue;
        }
        let offset_bytes = u64::from_be_bytes(payload[..8].try_into().unwrap());
        let of_read = pieces.entry(cookie).or_default();
        assert!(of_read.insert(offset_bytes, payload[8..].to_vec()).is_none(), "{offset_bytes} twice");
        if flags == 1 {
            let of_read = pieces.remove(&cookie).unwrap();
            let first = *of_read.keys().next().unwrap();
            let mut whole = first.to_be_bytes().to_vec();
            for (offset_bytes, data) in of_read {
                assert_eq!(offset_bytes, first + whole.len() as u64 - 8, "a gap");
                whole.extend(data);
            }
            all.push((cookie, kind, whole));
        }
    }
    assert!(pieces.is_empty(), "reads without an end: {:?}", pieces.keys());
    all
}

/// Cookie and error number of each reply, 0 for success.
fn errors(bytes: &[u8]) -> Vec<(u64, u32)> {
    let error = |(cookie, kind, payload): (u64, u16, Vec<u8>)| {
        (cookie, if kind == 0x8001 { u32::from_be_bytes(payload[..4].try_into().unwrap()) } else { 0 })
    };
    chunks(bytes).into_iter().map(error).collect()
}

#[test]
fn a_whole_conversation_with_simple_replies() {
    let mut peer = connect();
    assert_eq!(std::mem::take(&mut peer.read), b"NBDMAGICIHAVEOPT\0\x03");
    let chosen = peer.ask(&[vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat());
    assert_eq!(chosen, b"\0\0\0\0\0\x40\0\0\x09\x6d", "4 MiB and its flags");
    let ok = |cookie: u8| [b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0", &[cookie][..]].concat();
    assert_eq!(peer.ask(&write(1, 10, b"hello")), ok(1));
    assert_eq!(&peer.fake.store[SIZE + 10..SIZE + 15], b"hello", "the export begins at the device's middle");
    assert_eq!(peer.ask(&read(2, 9, 7)), [&ok(2)[..], b"\0hello\0"].concat());
    assert_eq!(peer.ask(&flush(3)), ok(3));
    assert_eq!(peer.ask(&header(Command::Trim, 0, 4, 10, 1)), ok(4));
    assert_eq!(peer.ask(&header(Command::WriteZeroes, request::NO_HOLE, 5, 14, 1)), ok(5));
    assert_eq!(peer.ask(&read(6, 10, 5)), [&ok(6)[..], b"\0ell\0"].concat());
    // 22 = EINVAL: no structured replies, so no block status, and no sentence.
    let refused = peer.ask(&header(Command::BlockStatus, 0, 7, 0, 512));
    assert_eq!(refused, b"\x67\x44\x66\x98\0\0\0\x16\0\0\0\0\0\0\0\x07");
    assert_eq!(peer.ask(&header(Command::Disconnect, 0, 8, 0, 0)), b"");
    assert!(peer.gone());
}

#[test]
fn a_whole_conversation_with_structured_replies() {
    let mut peer = structured();
    assert_eq!(chunks(&peer.ask(&write(1, 10, b"hello"))), [(1, 0, vec![])]);
    let data = [&10_u64.to_be_bytes()[..], b"hello"].concat();
    assert_eq!(chunks(&peer.ask(&read(2, 10, 5))), [(2, 1, data)]);
    assert_eq!(chunks(&peer.ask(&flush(4))), [(4, 0, vec![])]);
    let sentence = Rule::OutOfRange.sentence().as_bytes();
    let error = [&22_u32.to_be_bytes()[..], &(sentence.len() as u16).to_be_bytes(), sentence].concat();
    assert_eq!(chunks(&peer.ask(&read(5, SIZE as u64, 1))), [(5, 0x8001, error)]);
    peer.end();
    assert!(peer.gone(), "a client may leave without saying so");
}

#[test]
fn fua_and_may_unmap_reach_the_device() {
    let mut peer = structured();
    let base = SIZE as u64;
    peer.say(&[header(Command::Write, request::FUA, 1, 0, 1), vec![7]].concat());
    peer.say(&header(Command::Trim, request::FUA, 2, 0, 512));
    peer.say(&header(Command::WriteZeroes, request::NO_HOLE, 3, 512, 512));
    peer.say(&header(Command::WriteZeroes, request::FUA, 4, 512, 512));
    peer.say(&header(Command::Read, request::FUA, 5, 0, 512));
    peer.say(&header(Command::Flush, request::FUA, 6, 0, 0));
    assert_eq!(
        peer.fake.executed,
        [
            (Op::Write, base, 1, true),
            (Op::Discard, base, 512, true),
            (Op::WriteZeroes { may_unmap: false }, base + 512, 512, false),
            (Op::WriteZeroes { may_unmap: true }, base + 512, 512, true),
            (Op::Read, base, 512, false),
            (Op::Flush, 4194304, 0, false),
        ]
    );
}

#[test]
fn requests_that_follow_go_at_once_are_understood() {
    let mut peer = connect();
    let answers = peer.ask(&[structured_handshake(), write(1, 0, b"early"), read(2, 0, 5)].concat());
    assert!(answers.ends_with(b"early"));
}

#[test]
fn a_device_error_is_answered_with_its_number_and_a_sentence() {
    let mut peer = structured();
    for (status, errno) in [
        (Status::Io, 5),
        (Status::TimedOut, 5),
        (Status::NoSpace, 28),
        (Status::Invalid, 22),
        (Status::Unsupported, 22),
        (Status::Shutdown, 108),
    ] {
        peer.status = status;
        for request in [read(1, 0, 512), write(1, 0, b"x"), flush(1)] {
            let replies = chunks(&peer.ask(&request));
            let [(1, 0x8001, payload)] = &replies[..] else { panic!("one error, not {replies:?}") };
            assert_eq!(payload[..4], u32::to_be_bytes(errno));
            assert_eq!(payload[6..], *status.to_string().as_bytes());
        }
    }
}

#[test]
fn a_burst_of_requests_is_one_receive_and_one_send_for_each_turn_of_16() {
    let mut peer = structured();
    let (sends, burst) = (peer.sends, (0..32).flat_map(|cookie| read(cookie, cookie * 4096, 4096)));
    (peer.executes, peer.reads) = (false, false);
    peer.incoming.extend(burst);
    assert!(peer.turn());
    assert_eq!((peer.fake.staged.len(), peer.incoming.len()), (16, 0), "all are received");
    peer.execute();
    peer.client.turn_end(&mut peer.fake);
    assert_eq!(peer.fake.send.as_ref().map(|(parts, _)| parts.len()), Some(32), "a header and the data of each");
    (peer.executes, peer.reads) = (true, true);
    peer.run();
    assert_eq!((peer.sends, chunks(&peer.read).len()), (sends + 2, 32));
}

#[test]
fn a_client_that_does_not_read_stops_itself_at_its_limit() {
    let options = NbdOptions { requests_in_flight_max: 4, ..NbdOptions::default() };
    let mut peer = structured_with(options, &Stats::new(&NAMES));
    peer.reads = false;
    let burst: Vec<u8> = (0..100).flat_map(|cookie| read(cookie, 0, 4096)).collect();
    peer.say(&burst);
    assert_eq!(peer.fake.executed.len(), 4);
    assert!(peer.fake.receive.is_none(), "nothing more is read from it");
    peer.reads = true;
    peer.run();
    assert_eq!(errors(&peer.read), (0..100).map(|cookie| (cookie, 0)).collect::<Vec<_>>());
    assert!(peer.fake.receive.is_some());
}

#[test]
fn errors_count_against_the_limit_like_any_reply() {
    let options = NbdOptions { requests_in_flight_max: 4, ..NbdOptions::default() };
    let stats = Stats::new(&NAMES);
    let mut peer = structured_with(options, &stats);
    peer.reads = false;
    peer.say(&header(Command::Cache, 0, 1, 0, 512).repeat(1000));
    assert_eq!(stats.broken(Rule::UnknownCommand), 4);
    peer.reads = true;
    peer.run();
    assert_eq!(stats.broken(Rule::UnknownCommand), 1000);
}

#[test]
fn bytes_in_flight_are_bounded() {
    let options = listen(ListenOptions { bytes_in_flight_max: 256 << 10, ..ListenOptions::default() });
    let mut peer = structured_with(options, &Stats::new(&NAMES));
    peer.executes = false;
    let burst: Vec<u8> = (0..8).flat_map(|cookie| read(cookie, 0, 128 << 10)).collect();
    peer.say(&burst);
    assert_eq!(peer.fake.staged.len(), 2, "2 of 128 KiB are 256 KiB");
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read).len(), 8);
}

#[test]
fn bytes_of_failed_requests_are_given_back() {
    // 1 MiB at once. 4 MiB of reads fail, then as many of writes; neither keeps memory from later requests.
    let options = listen(ListenOptions { bytes_in_flight_max: 1 << 20, ..ListenOptions::default() });
    let mut peer = structured_with(options, &Stats::new(&NAMES));
    peer.status = Status::Io;
    let reads: Vec<u8> = (0..8).flat_map(|cookie| read(cookie, 0, 512 << 10)).collect();
    assert_eq!(errors(&peer.ask(&reads)), (0..8).map(|cookie| (cookie, 5)).collect::<Vec<_>>());
    let writes: Vec<u8> = (0..8).flat_map(|cookie| write(cookie, 0, &vec![1; 512 << 10])).collect();
    assert_eq!(errors(&peer.ask(&writes)), (0..8).map(|cookie| (cookie, 5)).collect::<Vec<_>>());
    peer.status = Status::Ok;
    assert_eq!(errors(&peer.ask(&read(9, 0, 1 << 20))), [(9, 0)], "all of the limit is free");
}

#[test]
fn a_full_tenant_is_not_read_from_and_loses_nothing() {
    let mut peer = structured();
    peer.fake.staged_max = 3;
    peer.executes = false;
    let burst: Vec<u8> = (0..10).flat_map(|cookie| write(cookie, cookie * 10, &[cookie as u8; 10])).collect();
    peer.say(&burst);
    assert_eq!(peer.fake.staged.len(), 3);
    assert!(peer.fake.receive.is_none());
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read).len(), 10);
    let expected: Vec<u8> = (0..10).flat_map(|cookie| [cookie; 10]).collect();
    assert_eq!(peer.fake.store[SIZE..SIZE + 100], expected);
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_write_loses_only_that() {
    let stats = Stats::new(&NAMES);
    let mut peer = structured_with(NbdOptions::default(), &stats);
    peer.executes = false;
    let half = &write(2, 100, b"second")[..30];
    peer.say(&[&write(1, 0, b"first")[..], half].concat());
    peer.end();
    assert!(!peer.client.is_done(), "the first is not answered");
    peer.executes = true;
    peer.run();
    assert_eq!(&peer.fake.store[SIZE..SIZE + 5], b"first");
    assert_eq!(&peer.fake.store[SIZE + 100..SIZE + 106], &[0; 6]);
    assert_eq!(errors(&peer.read), [(1, 0)]);
    assert!(peer.gone());
    assert_eq!(stats.broken(Rule::Truncated), 1);
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_large_write_frees_its_buffer() {
    let stats = Stats::new(&NAMES);
    let mut peer = structured_with(NbdOptions::default(), &stats);
    peer.say(&write(1, 0, &vec![1; 1 << 20])[..400_000]);
    assert_eq!(peer.fake.receive.as_ref().unwrap().user, user::PAYLOAD);
    peer.end();
    assert!(peer.gone());
    assert_eq!(stats.broken(Rule::Truncated), 1);
}

#[test]
fn a_large_payload_is_received_into_the_requests_own_buffers() {
    let mut peer = structured();
    let payload: Vec<u8> = (0..1_u32 << 20).map(|index| (index / 7) as u8).collect();
    peer.say(&write(1, 0, &payload)[..28]);
    let receive = peer.fake.receive.as_ref().unwrap();
    assert_eq!((receive.user, receive.start, receive.end), (user::PAYLOAD, 0, 128 << 10), "one piece");
    peer.say(&payload);
    assert_eq!(&peer.fake.store[SIZE..SIZE + payload.len()], &payload[..]);
    assert_eq!(errors(&peer.ask(&flush(2))), [(1, 0), (2, 0)]);
}

#[test]
fn a_disconnect_waits_for_what_is_under_way() {
    let mut peer = structured();
    peer.executes = false;
    peer.say(&[read(1, 0, 512), header(Command::Disconnect, 0, 2, 0, 0), read(3, 0, 512)].concat());
    assert!(!peer.client.is_done());
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0)], "and nothing after it");
    assert!(peer.gone());
}

#[test]
fn a_broken_stream_is_answered_up_to_the_break_logged_and_closed() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log: crate::front_end::Log = {
        let lines = lines.clone();
        Arc::new(move |line: LogLine<'_>| {
            assert_eq!(line.export, Some("a"));
            lines.lock().unwrap().push(line.text.to_owned());
        })
    };
    let stats = Stats::new(&NAMES);
    let mut peer = structured_with(listen(ListenOptions { log: Some(log), ..ListenOptions::default() }), &stats);
    peer.say(&[read(1, 0, 512), vec![0; 28], read(2, 0, 512)].concat());
    assert_eq!(errors(&peer.read), [(1, 0)]);
    assert!(peer.gone());
    assert_eq!(stats.broken(Rule::BadRequestMagic), 1);
    let expected = "nbd: closing a connection of export \"a\": bad_request_magic: \
                    a request did not begin with the magic number of requests";
    assert_eq!(*lines.lock().unwrap(), [expected]);
}

#[test]
fn a_broken_socket_closes_at_once_and_completions_find_nobody() {
    let mut peer = structured();
    peer.executes = false;
    peer.reads = false;
    peer.say(&[read(1, 0, 512), flush(2), header(Command::Cache, 0, 3, 0, 0)].concat());
    // The answer to the third is on its way when the client goes.
    peer.finish_send(Err(32));
    assert!(peer.client.is_done() && peer.fake.shut_down);
    assert_eq!(peer.fake.withdrawals, 1, "what waits for the device is given up");
    peer.executes = true;
    peer.run();
    assert!(peer.gone());
    assert!(peer.fake.send.is_none());
}

#[test]
fn a_held_request_of_a_broken_connection_is_forgotten() {
    let mut peer = structured();
    peer.fake.staged_max = 1;
    peer.executes = false;
    peer.reads = false;
    peer.say(&[header(Command::Cache, 0, 1, 0, 0), read(2, 0, 512), read(3, 0, 512)].concat());
    peer.finish_send(Err(32));
    peer.executes = true;
    peer.run();
    assert!(peer.gone());
    assert_eq!(peer.fake.executed.len(), 1);
}

/// QEMU and the kernel hand an error to their user, and repeat a request whose connection broke.
#[test]
fn a_drain_answers_what_came_in_full_and_nothing_else_and_closes() {
    let stats = Stats::new(&NAMES);
    for late in [&write(2, 10, b"second")[30..], &[&write(2, 10, b"second")[30..], &read(3, 0, 5)].concat()] {
        let mut peer = structured_with(NbdOptions::default(), &stats);
        peer.executes = false;
        peer.say(&[write(1, 0, b"first"), write(2, 10, b"second")[..30].to_vec()].concat());
        peer.drain();
        assert!(!peer.client.is_done(), "the first is not answered");
        peer.say(late);
        assert!(peer.read.is_empty() && peer.fake.receive.is_none());
        peer.executes = true;
        peer.run();
        assert_eq!(errors(&peer.read), [(1, 0)]);
        assert!(peer.gone());
        assert_eq!(&peer.fake.store[SIZE..SIZE + 16], b"first\0\0\0\0\0\0\0\0\0\0\0");
    }
}

#[test]
fn a_drain_executes_requests_that_wait_for_their_limits() {
    let options = NbdOptions { requests_in_flight_max: 2, ..NbdOptions::default() };
    let mut peer = structured_with(options, &Stats::new(&NAMES));
    peer.executes = false;
    let burst: Vec<u8> = (0..10).flat_map(|cookie| write(cookie, cookie, &[b'a' + cookie as u8])).collect();
    peer.say(&burst);
    peer.drain();
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), (0..10).map(|cookie| (cookie, 0)).collect::<Vec<_>>());
    assert!(peer.gone());
    assert_eq!(&peer.fake.store[SIZE..SIZE + 10], b"abcdefghij");
}

#[test]
fn a_drain_reads_nothing_behind_the_requests_that_waited_for_their_limits() {
    let options = NbdOptions { requests_in_flight_max: 2, ..NbdOptions::default() };
    let mut peer = structured_with(options, &Stats::new(&NAMES));
    peer.executes = false;
    peer.say(&[write(1, 0, b"a"), write(2, 1, b"b"), write(3, 2, b"c")].concat());
    assert!(peer.fake.receive.is_none(), "the third waits for its limit");
    peer.drain();
    // The first two end; the third is under way when the fourth comes.
    assert!(peer.execute());
    peer.client.turn_end(&mut peer.fake);
    peer.say(&write(4, 3, b"d"));
    assert_eq!((peer.fake.staged.len(), errors(&peer.read)), (1, vec![(1, 0), (2, 0)]));
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0), (2, 0), (3, 0)]);
    assert!(peer.gone());
    assert_eq!(&peer.fake.store[SIZE..SIZE + 4], b"abc\0");
}

#[test]
fn a_drain_executes_the_request_that_a_full_tenant_held_back() {
    let mut peer = structured();
    peer.fake.staged_max = 1;
    peer.executes = false;
    peer.say(&[write(1, 0, b"one"), write(2, 3, b"two"), write(3, 6, b"six")].concat());
    peer.drain();
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0), (2, 0), (3, 0)]);
    assert!(peer.gone());
    assert_eq!(&peer.fake.store[SIZE..SIZE + 9], b"onetwosix");
}

#[test]
fn a_drain_whose_time_is_over_closes_although_the_device_has_not_ended_its_requests() {
    let mut peer = structured();
    peer.executes = false;
    peer.say(&write(1, 0, b"a"));
    peer.client.abort(&mut peer.fake);
    assert!(!peer.client.is_done(), "nothing was to be drained");
    peer.drain();
    peer.say(&write(2, 1, b"b"));
    assert!(peer.fake.receive.is_none() && !peer.client.is_done(), "one is under way, and nothing is in flight");
    peer.client.abort(&mut peer.fake);
    assert!(peer.client.is_done() && peer.fake.shut_down);
    // The reply of a request that ends later has no connection to go to.
    peer.executes = true;
    peer.run();
    assert!(peer.gone() && peer.read.is_empty());
}

#[test]
fn a_drain_closes_idle_connections_and_handshakes_at_once() {
    for mut peer in [structured(), simple(), connect()] {
        peer.drain();
        assert!(peer.gone());
    }
}

#[test]
fn a_handshake_costs_4_kib_and_a_quiet_connection_16() {
    let mut peer = connect();
    assert_eq!(peer.fake.receive.as_ref().unwrap().buffer.capacity_bytes(), 4 << 10);
    peer.say(&structured_handshake());
    peer.say(&flush(1));
    assert_eq!(peer.fake.receive.as_ref().unwrap().buffer.capacity_bytes(), 16 << 10);
    peer.say(&vec![write(2, 0, &[0; 4096]); 8].concat());
    assert_eq!(peer.fake.receive.as_ref().unwrap().buffer.capacity_bytes(), 128 << 10, "a burst of more than 16 KiB");
}

/// A client that said `said_bytes` is closed by `rule` after so long, not before, and leaves nothing behind.
fn is_closed_after(ns: u64, mut peer: Peer<Connection>, stats: &Stats, rule: Rule, said_bytes: usize) {
    peer.pass_ns(ns - 1);
    assert!(!peer.fake.shut_down && !peer.client.is_done(), "{said_bytes} bytes");
    peer.pass_ns(1);
    assert!(peer.fake.shut_down && peer.client.is_done(), "{said_bytes} bytes");
    assert_eq!(stats.broken(rule), 1);
    peer.reads = true;
    peer.run();
    assert!(peer.gone());
    drop(peer);
    assert_eq!(stats.counts().connections, 0, "its place is free");
}

#[test]
fn a_handshake_without_an_end_is_closed_when_its_time_is_over() {
    const SECOND_NS: u64 = 1_000_000_000;
    let options = listen(ListenOptions { handshake_timeout: Duration::from_secs(10), ..ListenOptions::default() });
    // Nothing; a part of an option; a whole handshake but for its last byte; one after which the client does not read.
    let handshake = structured_handshake();
    let unread = [vec![0, 0, 0, 3], option(option::LIST, b"").repeat(1000)].concat();
    for (said, reads) in
        [(&[][..], true), (&handshake[..7], true), (&handshake[..handshake.len() - 1], true), (&unread, false)]
    {
        let stats = Stats::new(&NAMES);
        let mut peer = connect_with(options.clone(), &stats);
        peer.reads = reads;
        peer.say(said);
        is_closed_after(10 * SECOND_NS, peer, &stats, Rule::HandshakeTooSlow, said.len());
    }
}

#[test]
fn the_time_of_a_handshake_says_nothing_about_what_follows() {
    let stats = Stats::new(&NAMES);
    let mut peer = connect_with(NbdOptions::default(), &stats);
    peer.pass_ns(9_000_000_000);
    peer.ask(&structured_handshake());
    peer.executes = false;
    peer.say(&flush(1));
    peer.pass_ns(3_600_000_000_000);
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&std::mem::take(&mut peer.read)), [(1, 0)]);
    assert_eq!((stats.broken(Rule::HandshakeTooSlow), peer.fake.shut_down), (0, false));

    // One that ended in time and has gone.
    let mut peer = connect();
    peer.end();
    assert!(peer.gone());
    peer.pass_ns(3_600_000_000_000);
    assert!(peer.gone());
}

#[test]
fn who_stops_in_the_middle_of_a_request_or_takes_no_reply_is_closed_when_its_time_is_over() {
    const SECOND_NS: u64 = 1_000_000_000;
    let half_header = read(1, 0, 4096)[..27].to_vec();
    let half_payload = write(1, 0, &[7; 4096])[..4000].to_vec();
    // Into the request's own buffers.
    let half_large = write(1, 0, &vec![7; 1 << 20])[..300 << 10].to_vec();
    // Skipped: beyond the end.
    let half_refused = write(1, SIZE as u64, &[7; 4096])[..4000].to_vec();
    let unread = read(1, 0, 4096);
    // A client that says goodbye stays until its replies leave.
    let unread_end = [read(1, 0, 4096), header(Command::Disconnect, 0, 2, 0, 0)].concat();
    for (said, reads) in [
        (half_header, true),
        (half_payload, true),
        (half_large, true),
        (half_refused, true),
        (unread, false),
        (unread_end, false),
    ] {
        let stats = Stats::new(&NAMES);
        let mut peer = structured_with(listen(ListenOptions::default()), &stats);
        peer.pass_ns(7 * SECOND_NS);
        peer.reads = reads;
        peer.say(&said);
        is_closed_after(60 * SECOND_NS, peer, &stats, Rule::Stalled, said.len());
    }
}

#[test]
fn a_byte_in_time_is_enough_and_who_waits_for_us_or_is_idle_is_left_alone() {
    const SECOND_NS: u64 = 1_000_000_000;
    let stats = Stats::new(&NAMES);
    let mut peer =
        structured_with(listen(ListenOptions { stall_timeout: Duration::from_secs(5), ..Default::default() }), &stats);
    // A byte each 4 s.
    for byte in write(1, 0, &[7; 40]) {
        peer.say(&[byte]);
        peer.pass_ns(4 * SECOND_NS);
    }
    assert_eq!(errors(&std::mem::take(&mut peer.read)), [(1, 0)]);
    // Idle, in which no timer is left.
    peer.pass_ns(3600 * SECOND_NS);
    assert!(peer.fake.timers.is_empty(), "{:?}", peer.fake.timers);
    // A device that takes an hour.
    peer.executes = false;
    peer.say(&read(2, 0, 4096));
    peer.pass_ns(3600 * SECOND_NS);
    peer.executes = true;
    peer.run();
    // A tenant that is full: half a request lies in the inbox, and the connection does not receive.
    (peer.fake.staged_max, peer.executes) = (1, false);
    peer.say(&[read(3, 0, 512), read(4, 0, 512), read(5, 0, 512)[..9].to_vec()].concat());
    peer.pass_ns(3600 * SECOND_NS);
    (peer.fake.staged_max, peer.executes) = (0, true);
    peer.run();
    assert_eq!(errors(&peer.read), [(2, 0), (3, 0), (4, 0)]);
    assert_eq!((stats.broken(Rule::Stalled), peer.fake.shut_down), (0, false));
    // From here on the rest of the request is waited for.
    peer.pass_ns(5 * SECOND_NS);
    assert_eq!((stats.broken(Rule::Stalled), peer.fake.shut_down), (1, true));
}

#[test]
fn a_new_time_limit_holds_for_those_who_are_there() {
    let stats = Stats::new(&NAMES);
    let options = listen(ListenOptions::default());
    let since = options.listen.since.clone();
    let mut peer = structured_with(options, &stats);
    // The look that the handshake's replies asked for has been.
    peer.pass_ns(60_000_000_000);
    since.set(1 << 20, Duration::from_secs(10), Duration::from_secs(2), 0o600);
    peer.say(&[0]);
    peer.pass_ns(2_000_000_000);
    assert_eq!((stats.broken(Rule::Stalled), peer.fake.shut_down), (1, true));
}

#[test]
fn what_happened_is_counted() {
    let stats = Stats::new(&NAMES);
    let mut peer = structured_with(NbdOptions::default(), &stats);
    peer.say(&[write(1, 0, b"12345"), read(2, 0, 3), read(3, 0, 3), read(4, 0, 0), flush(5)].concat());
    peer.say(&[header(Command::Trim, 0, 6, 0, 512), header(Command::WriteZeroes, 0, 7, 0, 512)].concat());
    peer.status = Status::Io;
    peer.say(&[write(8, 0, b"123"), read(9, 0, 7)].concat());
    let counts = stats.counts();
    let requests: Vec<_> = counts.requests.iter().filter(|(_, count)| *count > 0).copied().collect();
    assert_eq!(requests, [("read", 4), ("write", 2), ("flush", 1), ("trim", 1), ("write_zeroes", 1)]);
    assert_eq!(
        (counts.read_bytes, counts.written_bytes, counts.connections),
        (6, 5, 1),
        "bytes that were moved, not those that were named or failed"
    );
    assert_eq!(stats.broken(Rule::ZeroLength), 1);
    drop(peer);
    assert_eq!(stats.counts().connections, 0);
}

fn any_request() -> impl Strategy<Value = (u16, u16, u64, u32)> {
    let offset = prop_oneof![0..100_000_u64, SIZE as u64 - 50_000..SIZE as u64 + 10];
    let flags = prop_oneof![4 => Just(0), 1 => Just(request::FUA), 1 => 0..64_u16];
    (0..9_u16, flags, offset, prop_oneof![0..200_u32, 40_000..60_000_u32])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_pieces_and_limits_give_the_same_answers(
        requests in prop::collection::vec(any_request(), 1..12),
        payload_piece_bytes in prop_oneof![Just(4096_u32), Just(16 << 10), Just(128 << 10)],
        piece_bytes in prop_oneof![1..50_usize, 1000..100_000_usize],
        requests_in_flight_max in 1..8_usize,
        staged_max in 1..4_usize,
    ) {
        let mut input = structured_handshake();
        for (cookie, (command, flags, offset_bytes, length_bytes)) in requests.into_iter().enumerate() {
            // A disconnect ends the conversation, and a read in one chunk has a limit; the others are what this is
            // about.
            let command = if command == Command::Disconnect as u16 { 77 } else { command };
            let flags = if command == Command::Read as u16 { flags & !request::DF } else { flags };
            input.extend(numbered(command, flags, cookie as u64, offset_bytes, length_bytes));
            if command == Command::Write as u16 {
                input.extend((0..length_bytes).map(|index| (index as usize ^ cookie) as u8));
            }
        }
        // Refused requests overtake executed ones, so replies are compared in the order of their requests.
        let talk = |mut peer: Peer<Connection>| {
            let handshake = peer.ask(&input[..structured_handshake().len()]);
            let mut replies = chunks(&peer.ask(&input[structured_handshake().len()..]));
            replies.sort();
            peer.end();
            assert!(peer.gone());
            let executed_bytes: u64 = peer.fake.executed.iter().map(|(_, _, length, _)| u64::from(*length)).sum();
            (handshake, replies, peer.fake.store, executed_bytes)
        };
        let mut pieces = connect_with(
            NbdOptions { requests_in_flight_max, piece_bytes: payload_piece_bytes, ..NbdOptions::default() },
            &Stats::new(&NAMES),
        );
        pieces.piece_bytes = piece_bytes;
        pieces.fake.staged_max = staged_max;
        prop_assert!(talk(pieces) == talk(connect()));
    }

    #[test]
    fn garbage_never_panics(
        greeted in any::<bool>(),
        garbage in prop::collection::vec(any::<u8>(), 0..300),
        piece_bytes in 1..40_usize,
    ) {
        let mut peer = connect();
        peer.piece_bytes = piece_bytes;
        if greeted {
            peer.say(&structured_handshake());
            peer.say(&0x2560_9513_u32.to_be_bytes());
        }
        peer.say(&garbage);
        peer.end();
        prop_assert!(peer.gone());
    }
}

#[test]
fn i11_requests_that_came_before_an_export_shrank_end_before_its_new_end() {
    let exports = table();
    let state = exports.all()[0].state.clone();
    let mut peer = connect_to(exports, NbdOptions::default(), &Stats::new(&NAMES));
    peer.ask(&structured_handshake());
    // A write whose header is valid, and of whose payload one byte has not come.
    let end = SIZE as u64;
    let whole = write(1, end - 4096, &[7; 4096]);
    let (most, last) = whole.split_at(whole.len() - 1);
    assert!(peer.ask(most).is_empty());
    state.resize(end - 4096);
    let told = chunks(&peer.ask(last));
    assert_eq!((told[0].0, told[0].2[3]), (1, 28), "ENOSPC, as of a request that came now: {told:?}");
    assert!(peer.fake.store.iter().all(|byte| *byte == 0), "nothing was written");
    let told = chunks(&peer.ask(&write(2, end - 4096, &[7; 512])));
    assert_eq!((told[0].0, told[0].2[3]), (2, 28));
    let told = chunks(&peer.ask(&read(3, end - 4096 - 512, 512)));
    assert_eq!((told[0].0, &told[0].2[8..]), (3, &[0; 512][..]), "inside as ever");
    state.resize(end);
    let told = chunks(&peer.ask(&read(4, end - 512, 512)));
    assert_eq!((told[0].0, told[0].2.len()), (4, 8 + 512), "it grew, and the client may use it without asking");
    // A large read of which pieces are left to hand over when the export shrinks.
    peer.executes = false;
    peer.say(&read(5, 0, SIZE as u32));
    state.resize(512 << 10);
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(5, 22)], "its first pieces came, then an error");
    assert!(peer.fake.executed.iter().all(|&(_, offset, length, _)| offset + u64::from(length) <= 2 * end));
}
