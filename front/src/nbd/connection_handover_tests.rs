//! A connection that goes on in another process: to the byte, wherever it is, and from no state that it cannot have.

use super::*;
use crate::fake::Fake;
use crate::nbd::negotiate::OPTIONS_MAX;
use crate::nbd::wire::option_reply;
use mqfq_blk::state::{EXTENDED_SINCE, LISTING_SINCE, StateReader, VERSION};

/// Pauses the connection as a worker does. Of the bytes that have come `received` get into the receive in flight before
/// it is cancelled, and of the send in flight `sent` have left. Of requests that wait for the device `recalled` are
/// given back, if it takes any.
fn pause_and_recall(peer: &mut Peer<Connection>, received: usize, sent: usize, recalled: usize) {
    let takes_back = peer.client.takes_back();
    peer.client.pause(&mut peer.fake);
    if takes_back {
        let status = std::mem::replace(&mut peer.status, Status::Recalled);
        peer.execute_some(recalled.min(peer.fake.staged.len()));
        peer.status = status;
    }
    if let Some(receive) = peer.fake.receive.take() {
        let crate::fake::Receive { mut buffer, start, end, user } = receive;
        let count = received.min(end - start).min(peer.incoming.len());
        for byte in &mut buffer.as_mut_slice()[start..start + count] {
            *byte = peer.incoming.pop_front().unwrap();
        }
        let result = if count > 0 { Ok(count) } else { Err(Errno::CANCELED.raw_os_error()) };
        peer.client.event(&mut peer.fake, Event::Received { user, buffer, result, descriptors: Default::default() });
    }
    if let Some((parts, user)) = peer.fake.send.take() {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.as_slice()).copied().collect();
        let sent_bytes = sent.min(all.len() - 1);
        peer.read.extend(&all[..sent_bytes]);
        peer.client.event(&mut peer.fake, Event::SentInPart { user, parts, sent_bytes });
    }
    while !peer.fake.staged.is_empty() {
        peer.execute();
    }
    peer.client.turn_end(&mut peer.fake);
    assert!(peer.fake.receive.is_none() && peer.fake.send.is_none(), "it asks for nothing");
    assert!(peer.client.is_paused());
}

fn pause(peer: &mut Peer<Connection>, received: usize, sent: usize) {
    pause_and_recall(peer, received, sent, 0);
}

fn packed(peer: &Peer<Connection>) -> Vec<u8> {
    packed_state(&peer.client)
}

pub(super) fn packed_state(client: &Connection) -> Vec<u8> {
    let PackedClient { listener, is_listener, packed } = client.pack(VERSION).unwrap().expect("it is open");
    assert_eq!((listener, is_listener, packed.descriptors.len()), (client.place.listener(), false, 1));
    packed.state
}

pub(super) fn unpack(state: &[u8], exports: Arc<ExportTable>, options: NbdOptions) -> Result<Connection, String> {
    let (socket, _) = UnixStream::pair().unwrap();
    let place = ConnectionSlots::new(&exports, &options.listen, Stats::new(&NAMES)).enter_handed_over(socket.into());
    Connection::unpack(place, exports, Arc::new(options), &mut StateReader::new(VERSION, state))
}

/// The peer and the device, with the connection of another process between them.
fn hand_over(peer: Peer<Connection>, options: NbdOptions) -> Peer<Connection> {
    let state = packed(&peer);
    let again = unpack(&state, table(), options.clone()).unwrap();
    assert!(packed_state(&again) == state, "all that was packed is there again");
    hand_over_to(table(), peer, options)
}

/// Hands `peer` over to a process that has these exports.
fn hand_over_to(exports: Arc<ExportTable>, peer: Peer<Connection>, options: NbdOptions) -> Peer<Connection> {
    let state = packed(&peer);
    let Peer { client, fake, incoming, ended, reads, executes, piece_bytes, read, sends, .. } = peer;
    let has_turns = true;
    assert!(!fake.shut_down, "the socket is the other's as well");
    drop(client);
    let fake = Fake { store: fake.store, staged_max: fake.staged_max, executed: fake.executed, ..Fake::default() };
    let client = unpack(&state, exports, options).unwrap();
    let (incoming_descriptors, status) = (Vec::new(), Status::Ok);
    let mut peer = Peer {
        client,
        fake,
        incoming,
        incoming_descriptors,
        ended,
        reads,
        executes,
        status,
        piece_bytes,
        read,
        sends,
        has_turns,
    };
    peer.client.start(&mut peer.fake);
    peer.client.turn_end(&mut peer.fake);
    peer
}

/// One step of a conversation.
#[derive(Clone, Debug)]
enum Step {
    /// So many bytes more are sent.
    Say(usize),
    /// The device ends so many requests.
    Execute(usize),
    /// The send in flight ends.
    Read,
    /// Another process goes on; of the receive and the send in flight so many bytes have moved, and so many requests
    /// are given back.
    HandOver(usize, usize, usize),
    /// No other process came up.
    RollBack(usize, usize, usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let moved = || prop_oneof![Just(0_usize), 1..40_usize, 1000..200_000_usize];
    prop_oneof![
        3 => prop_oneof![1..60_usize, 1000..150_000_usize].prop_map(Step::Say),
        2 => (1..6_usize).prop_map(Step::Execute),
        2 => Just(Step::Read),
        2 => (moved(), moved(), 0..4_usize).prop_map(|(received, sent, back)| Step::HandOver(received, sent, back)),
        1 => (moved(), moved(), 0..4_usize).prop_map(|(received, sent, back)| Step::RollBack(received, sent, back)),
    ]
}

/// A request that conflicts with no other under way: the first MiB is read, the others are written.
fn any_request() -> impl Strategy<Value = (Command, u32)> {
    let length = || prop_oneof![1..9000_u32, 100_000..400_000_u32];
    prop_oneof![
        4 => length().prop_map(|length| (Command::Read, length)),
        4 => length().prop_map(|length| (Command::Write, length)),
        1 => Just((Command::Flush, 0)),
        1 => (1..9000_u32).prop_map(|length| (Command::Trim, length)),
        1 => length().prop_map(|length| (Command::WriteZeroes, length)),
        1 => Just((Command::Cache, 512)),
    ]
}

/// The conversation, the handshake included.
fn conversation(handshake: Vec<u8>, requests: &[(Command, u32)]) -> Vec<u8> {
    let mut input = handshake;
    for (cookie, (command, length_bytes)) in requests.iter().enumerate() {
        let offset_bytes = match command {
            Command::Read => 1000 * cookie as u64,
            Command::Flush => 0,
            _ => (1 << 20) + cookie as u64 * 400_000,
        };
        // Every other one is to be stable before its answer.
        let flags = if cookie % 2 == 0 && *command != Command::Cache { request::FUA } else { 0 };
        input.extend(header(*command, flags, cookie as u64, offset_bytes, *length_bytes));
        if *command == Command::Write {
            input.extend((0..*length_bytes).map(|at| (at / 5) as u8 ^ cookie as u8));
        }
    }
    input
}

fn simple_handshake() -> Vec<u8> {
    [vec![0, 0, 0, 3], option(option::EXPORT_NAME, b"a")].concat()
}

/// Replies after the handshake, by cookie: error, and data.
fn simple_replies(mut bytes: &[u8], requests: &[(Command, u32)]) -> BTreeMap<u64, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    while !bytes.is_empty() {
        let mut reader = Reader(bytes);
        assert_eq!(reader.u32(), Some(0x6744_6698));
        let (error, cookie) = (reader.u32().unwrap(), reader.u64().unwrap());
        let (command, length_bytes) = requests[cookie as usize];
        let length_bytes = if command == Command::Read && error == 0 { length_bytes as usize } else { 0 };
        let data = reader.bytes(length_bytes).unwrap().to_vec();
        assert!(all.insert(cookie, (error, data)).is_none(), "two replies to {cookie}");
        bytes = reader.0;
    }
    all
}

fn talk(input: &[u8], steps: &[Step], options: &NbdOptions, staged_max: usize) -> Peer<Connection> {
    let mut peer = connect_with(options.clone(), &Stats::new(&NAMES));
    peer.fake.staged_max = staged_max;
    peer.fake.store[SIZE..].iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at % 251) as u8);
    let mut left = input;
    (peer.reads, peer.executes) = (false, false);
    for step in steps {
        match step {
            Step::Say(count) => {
                let (said, rest) = left.split_at((*count).min(left.len()));
                left = rest;
                peer.say(said);
            }
            Step::Execute(count) => {
                let count = (*count).min(peer.fake.staged.len());
                peer.execute_some(count);
                peer.client.turn_end(&mut peer.fake);
                peer.run();
            }
            Step::Read => {
                if peer.finish_send(Ok(())) {
                    peer.client.turn_end(&mut peer.fake);
                }
                peer.run();
            }
            Step::HandOver(received, sent, recalled) => {
                pause_and_recall(&mut peer, *received, *sent, *recalled);
                peer = hand_over(peer, options.clone());
            }
            Step::RollBack(received, sent, recalled) => {
                pause_and_recall(&mut peer, *received, *sent, *recalled);
                packed(&peer);
                peer.client.resume(&mut peer.fake);
                peer.client.turn_end(&mut peer.fake);
            }
        }
    }
    (peer.reads, peer.executes) = (true, true);
    peer.say(left);
    peer.run();
    peer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_conversation_goes_on_to_the_byte_wherever_it_is_handed_over(
        requests in prop::collection::vec(any_request(), 1..7),
        steps in prop::collection::vec(any_step(), 1..40),
        is_structured in any::<bool>(),
        piece_bytes in prop_oneof![Just(4096_u32), Just(64 << 10), Just(128 << 10)],
        requests_in_flight_max in 1..8_usize,
        staged_max in 0..4_usize,
    ) {
        let handshake = if is_structured { structured_handshake() } else { simple_handshake() };
        let input = conversation(handshake.clone(), &requests);
        let options = NbdOptions { piece_bytes, requests_in_flight_max, ..NbdOptions::default() };
        let whole = talk(&input, &[], &options, 0);
        let peer = talk(&input, &steps, &options, staged_max);
        // The handshake's answer does not depend on the cuts.
        let said = connect_with(options.clone(), &Stats::new(&NAMES)).ask(&handshake).len();
        let (greeting, replies) = peer.read.split_at(said);
        prop_assert_eq!(greeting, &whole.read[..said]);
        if is_structured {
            let sorted = |bytes: &[u8]| { let mut all = chunks(bytes); all.sort(); all };
            prop_assert_eq!(sorted(replies), sorted(&whole.read[said..]));
        } else {
            let of = |bytes: &[u8]| simple_replies(bytes, &requests);
            prop_assert_eq!(of(replies), of(&whole.read[said..]));
        }
        prop_assert!(peer.fake.store == whole.fake.store);
        let executed = |peer: &Peer<Connection>| {
            let mut all: Vec<_> = peer.fake.executed.iter().map(|one| format!("{one:?}")).collect();
            all.sort();
            all
        };
        prop_assert_eq!(executed(&peer), executed(&whole), "each request once, with its flags");
        let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("the handshake is over") };
        prop_assert_eq!(transmission.under_way(), (0, 0));
    }

    /// The state of a connection in the middle of something, with some of its bytes changed.
    #[test]
    fn a_state_with_any_bytes_is_refused_or_goes_on_without_a_panic(
        requests in prop::collection::vec(any_request(), 1..5),
        steps in prop::collection::vec(any_step(), 1..12),
        is_structured in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        recalled in 0..4_usize,
    ) {
        let handshake = if is_structured { structured_handshake() } else { simple_handshake() };
        let input = conversation(handshake, &requests);
        let options = NbdOptions { piece_bytes: 4096, ..NbdOptions::default() };
        let mut peer = connect_with(options.clone(), &Stats::new(&NAMES));
        peer.reads = false;
        let (said, _) = input.split_at(input.len() * 3 / 4);
        steps.iter().for_each(|_| peer.run());
        peer.say(said);
        pause_and_recall(&mut peer, 100, 10, recalled);
        let mut state = packed(&peer);
        let before = state.clone();
        // Not only in the payloads, which are most of it.
        for (index, byte) in &changes {
            let at = index.index(state.len().min(200));
            state[at] = *byte;
        }
        if let Some(cut) = cut {
            let length = cut.index(state.len());
            state.truncate(length);
        }
        if let Ok(client) = unpack(&state, table(), options.clone()) {
            let mut peer = Peer { has_turns: true, ..Peer::new(client, 2 * SIZE) };
            peer.say(&read(1, 0, 4096));
            peer.end();
        }
        for length in [0, 1, before.len() / 2, before.len() - 1] {
            prop_assert!(unpack(&before[..length], table(), options.clone()).is_err());
        }
    }
}

#[test]
fn an_export_that_is_not_what_the_client_was_told_is_refused_by_what_differs() {
    let mut peer = structured();
    pause(&mut peer, 0, 0);
    let state = packed(&peer);
    let with = |change: fn(&mut Export)| {
        let mut export = Export::clone(&table().all()[0]);
        change(&mut export);
        let table = Arc::new(ExportTable::new([export]).unwrap());
        unpack(&state, table, NbdOptions::default()).map(drop)
    };
    assert_eq!(with(|_| {}), Ok(()));
    let differs =
        |what: &str| Err(format!("export \"a\" has a connection and another {what} than its client was told"));
    assert_eq!(with(|export| export.size_bytes /= 2), differs("size"));
    assert_eq!(with(|export| export.offset_bytes = 0), differs("offset"));
    assert_eq!(with(|export| export.read_only = true), differs("read-only flag"));
    assert_eq!(with(|export| export.block.min_bytes = 512), differs("minimum block"));
    assert_eq!(with(|export| export.block.payload_bytes_max /= 2), differs("largest payload"));
    let gone = "export \"a\" has a connection and is no longer there";
    assert_eq!(with(|export| export.name = "b".to_owned()), Err(gone.to_owned()));
    assert_eq!(with(|export| export.state.close()), Err(gone.to_owned()));
}

#[test]
fn a_list_of_exports_goes_on_in_another_process_without_those_that_have_gone() {
    let of = |number: u32| {
        let id = crate::export::ExportId(mqfq_blk::slots::Slot::first(number));
        Export { id, name: format!("{number:02}"), description: "d".repeat(4096), ..Export::clone(&table().all()[0]) }
    };
    let with = |count| Arc::new(ExportTable::new((0..count).map(of)).unwrap());
    for (left, gone) in [(20, 0), (19, 1), (10, 10)] {
        let mut peer = connect_to(with(20), NbdOptions::default(), &Stats::new(&NAMES));
        peer.ask(&[0, 0, 0, 3]);
        peer.reads = false;
        peer.say(&option(option::LIST, b""));
        pause(&mut peer, 0, 100);
        assert!(peer.client.pack(LISTING_SINCE - 1).unwrap().is_none(), "an older state has no place for it");
        let mut peer = hand_over_to(with(left), peer, NbdOptions::default());
        peer.reads = true;
        peer.run();
        let said = std::mem::take(&mut peer.read);
        let listed = super::tls::replies(&said);
        assert_eq!((listed.len(), listed.last()), (20 - gone + 1, Some(&(3, 1))), "{left} are left");
    }
}

#[test]
fn a_handshake_that_was_handed_over_needs_tls_as_before() {
    let options = super::tls::tls_options(&super::tls::KEYS, true);
    let mut peer = connect_with(options.clone(), &Stats::new(&NAMES));
    peer.ask(&[0, 0, 0, 3]);
    pause(&mut peer, 0, 0);
    let mut peer = hand_over(peer, options);
    let refused = super::tls::replies(&peer.ask(&option(option::LIST, b"")));
    assert_eq!(refused, [(3, option_reply::ERR_TLS_REQD)]);
}

#[test]
fn whose_export_is_being_drained_for_good_stays_behind() {
    let mut peer = structured();
    pause(&mut peer, 0, 0);
    assert!(peer.client.pack(VERSION).unwrap().is_some());
    let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("the handshake is over") };
    transmission.session().export.state.close();
    assert!(peer.client.pack(VERSION).unwrap().is_none());
}

#[test]
fn a_client_that_reads_nothing_is_handed_over_with_all_that_it_is_owed() {
    let mut peer = structured();
    peer.reads = false;
    peer.say(&(0..20).flat_map(|cookie| read(cookie, 0, 100_000)).collect::<Vec<u8>>());
    pause(&mut peer, 0, 77);
    let state = packed(&peer);
    assert!(state.len() > 1_000_000, "{} bytes", state.len());
    let mut peer = hand_over(peer, NbdOptions::default());
    let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("the handshake is over") };
    let (requests, bytes) = transmission.under_way();
    assert!(requests > 10 && bytes > 1_000_000, "{requests} requests, {bytes} bytes are counted here");
    peer.reads = true;
    peer.run();
    assert_eq!(errors(&peer.read).len(), 20);
}

#[test]
fn requests_for_the_next_turn_travel_unread() {
    let mut peer = structured();
    peer.incoming.extend((0..20).flat_map(|cookie| read(cookie, 0, 4096)));
    assert!(peer.turn());
    assert!(peer.finish_send(Ok(())));
    assert_eq!(errors(&peer.read).len(), 16);
    pause(&mut peer, 0, 0);
    let mut peer = hand_over(peer, NbdOptions::default());
    peer.run();
    assert_eq!(errors(&peer.read).len(), 20);
}

#[test]
fn requests_that_wait_for_the_device_travel_as_such_and_not_as_their_replies() {
    const READS: u64 = 32;
    let mut peer = structured();
    peer.executes = false;
    let reads: Vec<u8> = (0..READS).flat_map(|cookie| read(cookie, 0, 32 << 10)).collect();
    peer.say(&reads);
    assert_eq!(peer.fake.staged.len() as u64, READS);
    pause_and_recall(&mut peer, 0, 0, usize::MAX);
    assert!(peer.fake.executed.is_empty(), "all were given back");
    let state = packed(&peer);
    let bytes = state.len() as u64;
    assert!(bytes <= READS * 28 + 200, "{bytes} bytes of state for {READS} reads of 32 KiB");
    let refused = peer.client.pack(1).unwrap_err().to_string();
    assert_eq!(refused, "a request was given back, and the state has no place for it");
    let mut peer = hand_over(peer, NbdOptions::default());
    let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("the handshake is over") };
    assert_eq!(transmission.under_way().0 as u64, READS);
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read).len() as u64, READS, "each is answered once");
    let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("the handshake is over") };
    assert_eq!(transmission.under_way(), (0, 0));
}

#[test]
fn a_handshake_that_is_late_while_it_is_paused_is_closed_when_it_goes_on_and_not_before() {
    let mut peer = connect();
    pause(&mut peer, 0, 0);
    peer.pass_ns(20_000_000_000);
    assert!(!peer.fake.shut_down, "the socket may be another process's by now");
    peer.client.resume(&mut peer.fake);
    assert!(peer.fake.shut_down);
}

#[test]
fn a_client_that_leaves_while_it_is_paused_leaves_the_next_process() {
    let mut peer = structured();
    peer.reads = false;
    peer.say(&read(1, 0, 10));
    peer.ended = true;
    // The end comes instead of the cancellation.
    peer.client.pause(&mut peer.fake);
    peer.run();
    pause(&mut peer, 0, 0);
    let mut peer = hand_over(peer, NbdOptions::default());
    peer.reads = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0)]);
    assert!(peer.gone());
}

/// Four reads of a tenant that has room for two: two are staged, one is held, and one has not been looked at.
fn four_reads_where_there_is_room_for_two() -> Peer<Connection> {
    let mut peer = structured();
    (peer.fake.staged_max, peer.executes) = (2, false);
    peer.say(&(0..4).flat_map(|cookie| read(cookie, 0, 512)).collect::<Vec<u8>>());
    assert_eq!((peer.fake.staged.len(), peer.client.held.is_some()), (2, true));
    peer
}

#[test]
fn what_is_given_back_is_kept_while_a_full_tenant_gets_room() {
    let mut peer = four_reads_where_there_is_room_for_two();
    peer.client.pause(&mut peer.fake);
    peer.status = Status::Recalled;
    // The device ends nothing: all that has a place is given back, one by one.
    let mut given_back = 0;
    while given_back < 10 && !peer.fake.staged.is_empty() {
        peer.execute_some(1);
        given_back += 1;
    }
    assert_eq!((given_back, peer.client.recalled.len()), (3, 3), "each once");
    peer.status = Status::Ok;
    pause(&mut peer, 0, 0);
    let mut peer = hand_over(peer, NbdOptions::default());
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[test]
fn what_comes_back_after_a_pause_that_nobody_used_goes_to_the_device_again() {
    let mut peer = four_reads_where_there_is_room_for_two();
    peer.client.pause(&mut peer.fake);
    peer.client.resume(&mut peer.fake);
    peer.status = Status::Recalled;
    peer.execute_some(1);
    (peer.status, peer.executes) = (Status::Ok, true);
    peer.client.turn_end(&mut peer.fake);
    peer.run();
    assert_eq!(errors(&peer.read).len(), 4, "each is answered once");
    assert!(errors(&peer.read).iter().all(|(_, error)| *error == 0));
    let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("the handshake is over") };
    assert_eq!(transmission.under_way(), (0, 0));
}

#[test]
fn half_a_request_has_its_time_anew_in_the_process_that_goes_on_and_none_while_it_is_paused() {
    const SECOND_NS: u64 = 1_000_000_000;
    let half = |is_handed_over: bool| {
        let mut peer = structured();
        peer.say(&write(1, 0, &[7; 4096])[..100]);
        peer.pass_ns(50 * SECOND_NS);
        pause(&mut peer, 0, 0);
        peer.pass_ns(50 * SECOND_NS);
        assert!(!peer.fake.shut_down, "the socket may be another process's by now");
        if is_handed_over {
            peer = hand_over(peer, NbdOptions::default());
        } else {
            peer.client.resume(&mut peer.fake);
            peer.client.turn_end(&mut peer.fake);
        }
        peer
    };
    for is_handed_over in [false, true] {
        let mut peer = half(is_handed_over);
        peer.pass_ns(60 * SECOND_NS - 1);
        assert!(!peer.fake.shut_down);
        peer.pass_ns(1);
        assert!(peer.fake.shut_down, "handed over: {is_handed_over}");
    }
}

#[test]
fn requests_that_were_given_back_are_no_client_that_stalls() {
    let mut peer = structured();
    peer.executes = false;
    peer.say(&[read(1, 0, 4096), write(2, 0, &[7; 4096])].concat());
    pause_and_recall(&mut peer, 0, 0, 2);
    let mut peer = hand_over(peer, NbdOptions::default());
    assert_eq!(peer.fake.staged.len(), 2);
    peer.pass_ns(3_600_000_000_000);
    assert!(!peer.fake.shut_down && peer.fake.timers.is_empty(), "they wait for us");
    peer.executes = true;
    peer.run();
    assert_eq!(errors(&peer.read), [(1, 0), (2, 0)]);
}

#[test]
fn a_write_that_comes_while_its_export_changes_stops_no_upgrade_and_is_refused_by_the_next_process() {
    const HALF: u64 = SIZE as u64 / 2;
    // A small one, and the second piece of a large one.
    for (length_bytes, said_bytes) in [(4096, 1000), (256 << 10, 28 + (128 << 10))] {
        for (read_only, expected) in [(false, Errno::NOSPC), (true, Errno::INVAL)] {
            let exports = table();
            let export = exports.lookup("a").unwrap();
            let mut peer = connect_to(exports, NbdOptions::default(), &Stats::new(&NAMES));
            peer.ask(&structured_handshake());
            let asked = write(1, HALF, &vec![7; length_bytes]);
            peer.say(&asked[..said_bytes]);
            let changed = if read_only {
                export.state.set_read_only(true);
                Export { read_only, ..Export::clone(&export) }
            } else {
                export.state.resize(HALF);
                Export { size_bytes: HALF, ..Export::clone(&export) }
            };
            pause(&mut peer, 0, 0);
            let exports = Arc::new(ExportTable::new([changed]).unwrap());
            let mut peer = hand_over_to(exports, peer, NbdOptions::default());
            let executed = peer.fake.executed.len();
            let errors = errors(&peer.ask(&asked[said_bytes..]));
            assert_eq!(errors, [(1, expected.raw_os_error() as u32)], "{length_bytes} bytes, read-only: {read_only}");
            assert_eq!(peer.fake.executed.len(), executed, "nothing of it is carried out");
        }
    }
}

#[test]
fn a_handshake_that_was_too_long_and_whose_end_is_not_read_stops_no_upgrade() {
    let mut peer = connect();
    peer.say(&[vec![0, 0, 0, 3], option(99, b"").repeat(OPTIONS_MAX as usize - 100)].concat());
    peer.reads = false;
    peer.say(&option(99, b"").repeat(101));
    assert_eq!(peer.client.life, Life::Ending);
    pause(&mut peer, 0, 0);
    let mut peer = hand_over(peer, NbdOptions::default());
    peer.reads = true;
    peer.run();
    assert!(peer.gone());
}

#[test]
fn a_handshake_that_has_asked_about_an_export_goes_on_where_there_is_none_of_that_name() {
    let mut peer = connect();
    let handshake = structured_handshake();
    let (asked, go) = handshake.split_at(handshake.len() - option(option::GO, &[0; 6]).len());
    peer.say(asked);
    pause(&mut peer, 0, 0);
    let other = Export { name: "b".to_owned(), ..Export::clone(&table().all()[0]) };
    let exports = Arc::new(ExportTable::new([other]).unwrap());
    let mut peer = hand_over_to(exports, peer, NbdOptions::default());
    peer.ask(go);
    let ProtocolPhase::Transmitting(transmission) = &peer.client.phase else { panic!("it has chosen the other one") };
    assert!(!transmission.session().block_status);
}

#[test]
fn a_client_of_extended_headers_goes_on_with_them_where_they_are_known() {
    let mut peer = connect();
    let contexts = [&[0, 0, 0, 1], &b"a"[..], &[0, 0, 0, 1, 0, 0, 0, 15], b"base:allocation"].concat();
    let asked = [
        vec![0, 0, 0, 3],
        option(option::EXTENDED_HEADERS, b""),
        option(option::SET_META_CONTEXT, &contexts),
        option(option::GO, &[0, 0, 0, 1, b'a', 0, 0]),
    ];
    let (handshake, go) = asked.split_at(3);
    peer.ask(&handshake.concat());
    pause(&mut peer, 0, 0);
    assert!(peer.client.pack(EXTENDED_SINCE - 1).unwrap().is_none(), "an older state has no place for it");
    let mut peer = hand_over(peer, NbdOptions::default());
    peer.ask(&go.concat());
    let ask = |command: Command, flags, cookie, offset_bytes, length_bytes| {
        let mut bytes = Vec::new();
        let command = command as u16;
        RequestHeader { flags, command, cookie, offset_bytes, length_bytes }.encode_extended(&mut bytes);
        bytes
    };
    let reply = |kind: u16, cookie: u64, offset_bytes: u64, payload: &[u8]| {
        let numbers = [cookie, offset_bytes, payload.len() as u64].map(u64::to_be_bytes).concat();
        [b"\x6e\x8a\x27\x8c\0\x01", &kind.to_be_bytes()[..], &numbers, payload].concat()
    };
    let write = [ask(Command::Write, request::PAYLOAD, 1, 512, 512), vec![7; 512]].concat();
    assert_eq!(peer.ask(&write), reply(0, 1, 512, b""));
    pause(&mut peer, 0, 0);
    assert!(peer.client.pack(EXTENDED_SINCE - 1).unwrap().is_none());
    let mut peer = hand_over(peer, NbdOptions::default());
    let data = [&1023_u64.to_be_bytes()[..], &[7, 0]].concat();
    assert_eq!(peer.ask(&ask(Command::Read, 0, 2, 1023, 2)), reply(1, 2, 1023, &data));
    let extents = [1 << 32 | 3, 512, 3, 512, 0, 512, 3].map(u64::to_be_bytes).concat();
    assert_eq!(peer.ask(&ask(Command::BlockStatus, 0, 3, 0, 1536)), reply(6, 3, 0, &extents));
    assert_eq!(peer.ask(&ask(Command::Trim, 0, 4, 4096, SIZE as u64 - 4096)), reply(0, 4, 4096, b""));
    peer.status = Status::Unsupported;
    let refused = peer.ask(&ask(Command::WriteZeroes, request::FAST_ZERO, 5, 4096, 4096));
    let sentence = Status::Unsupported.to_string();
    let error = [&95_u32.to_be_bytes()[..], &(sentence.len() as u16).to_be_bytes(), sentence.as_bytes()].concat();
    assert_eq!(refused, reply(0x8001, 5, 4096, &error));
    // A compact header ends it.
    assert_eq!(peer.ask(&flush(6)), b"");
    assert!(peer.gone());
}
