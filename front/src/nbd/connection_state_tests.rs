//! States that are written by hand, field by field: each field arrives as it was sent, and a state that no server
//! writes is refused with a sentence. And a client that asks in its handshake and does not read the answers.

use super::handover::{packed_state, unpack};
use super::*;
use crate::export::PAYLOAD_BYTES_MAX;
use crate::nbd::transmit::SKIPPED_BYTES_MAX;
use mqfq_blk::state::{StateReader, StateWriter, VERSION};

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

/// A part of the replies: how many end in it, and its bytes.
type Gathered = Vec<(u32, &'static [u8])>;

/// A large request. Numbers of operations and failures are those of `large.rs`.
struct LargeState {
    cookie: u64,
    op: u8,
    fua: bool,
    offset_bytes: u64,
    /// Lengths of the request and of a piece, and bytes handed over and in the stream.
    lengths_bytes: [u32; 4],
    failed: u8,
    cut: bool,
    /// Pieces that were read: first byte, and bytes.
    ready: Vec<(u64, Vec<u8>)>,
}

impl LargeState {
    fn pack(&self, writer: &mut StateWriter) {
        writer.u8(self.op);
        writer.flag(self.fua);
        writer.u64(self.offset_bytes);
        self.lengths_bytes.iter().for_each(|bytes| writer.u32(*bytes));
        // Upper halves.
        (0..4).for_each(|_| writer.u32(0));
        writer.u8(self.failed);
        writer.flag(self.cut);
        writer.u8(self.ready.len() as u8);
        for (offset_bytes, bytes) in &self.ready {
            writer.u64(*offset_bytes);
            writer.bytes(bytes);
        }
    }
}

/// A request that was given back.
struct RecalledState {
    cookie: u64,
    op: u8,
    fua: bool,
    offset_bytes: u64,
    length_bytes: u32,
    payload: Option<Vec<u8>>,
}

struct PayloadState {
    cookie: u64,
    fua: bool,
    offset_bytes: u64,
    length_bytes: u32,
    after_bytes: Option<u32>,
    has_memory: bool,
    filled: Vec<u8>,
}

enum StageState {
    Header,
    Payload(PayloadState),
    Skip(u32),
    Over,
    None,
}

/// A connection past its handshake.
struct State {
    is_ending: bool,
    draining: bool,
    unread: &'static [u8],
    streaming: bool,
    gathered: Gathered,
    behind: Gathered,
    structured: bool,
    block_status: bool,
    extended: bool,
    larges: Vec<LargeState>,
    writes: bool,
    recalled: Vec<RecalledState>,
    stage: StageState,
}

impl State {
    fn bytes(&self) -> Vec<u8> {
        let mut writer = StateWriter::new(VERSION);
        writer.flag(self.is_ending);
        writer.flag(self.draining);
        writer.bytes(self.unread);
        put_replies(self.streaming, [&self.gathered, &self.behind], &mut writer);
        writer.flag(true);
        // The export.
        writer.bytes(b"a");
        [SIZE as u64, SIZE as u64].into_iter().for_each(|bytes| writer.u64(bytes));
        writer.flag(true);
        [512, PAYLOAD_BYTES_MAX].into_iter().for_each(|bytes| writer.u32(bytes));
        writer.flag(self.structured);
        writer.flag(self.block_status);
        writer.flag(self.extended);
        writer.u32(self.larges.len() as u32);
        for large in &self.larges {
            writer.u64(large.cookie);
            large.pack(&mut writer);
        }
        writer.flag(self.writes);
        writer.u32(self.recalled.len() as u32);
        for RecalledState { cookie, op, fua, offset_bytes, length_bytes, payload } in &self.recalled {
            writer.u64(*cookie);
            writer.u8(*op);
            writer.flag(*fua);
            writer.u64(*offset_bytes);
            writer.u32(*length_bytes);
            payload.iter().for_each(|bytes| writer.bytes(bytes));
        }
        // Once: the server is shutting down.
        writer.flag(false);
        match &self.stage {
            StageState::Header => writer.u8(0),
            StageState::Payload(payload) => {
                writer.u8(1);
                writer.u64(payload.cookie);
                writer.flag(payload.fua);
                writer.u64(payload.offset_bytes);
                writer.u32(payload.length_bytes);
                writer.flag(payload.after_bytes.is_some());
                payload.after_bytes.iter().for_each(|bytes| writer.u32(*bytes));
                writer.flag(payload.has_memory);
                writer.bytes(&payload.filled);
            }
            StageState::Skip(bytes) => {
                writer.u8(2);
                writer.u32(*bytes);
            }
            StageState::Over => writer.u8(3),
            StageState::None => writer.u8(4),
        }
        writer.into_bytes()
    }

    fn payload(&mut self) -> &mut PayloadState {
        let StageState::Payload(payload) = &mut self.stage else { panic!("it has no payload") };
        payload
    }
}

fn put_replies(streaming: bool, both: [&Gathered; 2], writer: &mut StateWriter) {
    writer.flag(streaming);
    for gathered in both {
        writer.u32(gathered.len() as u32);
        for (replies, bytes) in gathered {
            writer.u32(*replies);
            writer.bytes(bytes);
        }
    }
}

/// Exports of the process that goes on: one that is read-only, of blocks of 512 bytes.
fn exports() -> Arc<ExportTable> {
    let mut export = Export::clone(&table().all()[0]);
    export.read_only = true;
    export.block.min_bytes = 512;
    Arc::new(ExportTable::new([export]).unwrap())
}

fn taken(state: &[u8]) -> Result<Connection, String> {
    unpack(state, exports(), NbdOptions::default())
}

fn refusal(state: &[u8]) -> String {
    taken(state).map(drop).unwrap_err()
}

fn large(cookie: u64, op: u8, lengths_bytes: [u32; 4]) -> LargeState {
    let offset_bytes = cookie * u64::from(MIB);
    LargeState { cookie, op, fua: true, offset_bytes, lengths_bytes, failed: 0, cut: false, ready: Vec::new() }
}

/// A long read of which two pieces wait for their turn in the stream.
fn long_read(streamed_bytes: u32) -> LargeState {
    let mut read = large(5, 0, [512 * KIB, 64 * KIB, 384 * KIB, streamed_bytes]);
    let at = |bytes: u32| read.offset_bytes + u64::from(bytes);
    read.ready = vec![(at(128 * KIB), vec![1; 512]), (at(192 * KIB), vec![2; 1024])];
    read
}

/// A client of structured replies that has left, with two or more of each list, in the middle of a large write.
fn of_structured_replies() -> State {
    let write = large(3, 1, [384 * KIB, 128 * KIB, 128 * KIB, 0]);
    let payload = PayloadState {
        cookie: write.cookie,
        fua: true,
        offset_bytes: write.offset_bytes + u64::from(128 * KIB),
        length_bytes: 128 * KIB,
        after_bytes: Some(128 * KIB),
        has_memory: true,
        filled: vec![9; 700],
    };
    let recalled = |cookie: u64, op, fua, length_bytes: u32, payload| {
        let offset_bytes = if length_bytes > 0 { cookie * 512 } else { 0 };
        RecalledState { cookie, op, fua, offset_bytes, length_bytes, payload }
    };
    State {
        is_ending: true,
        draining: true,
        unread: b"unread",
        streaming: false,
        gathered: vec![(1, b"one"), (2, b"two, three")],
        behind: vec![],
        structured: true,
        block_status: true,
        extended: false,
        larges: vec![large(1, 2, [8 * MIB, 4 * MIB, 4 * MIB, 0]), large(2, 4, [9 * MIB, 2 * MIB, 3 * MIB, 0]), write],
        writes: true,
        recalled: vec![
            recalled(11, 5, true, 0, None),
            recalled(12, 0, false, 512, None),
            recalled(13, 1, true, 1024, Some(vec![7; 1024])),
            recalled(14, 2, true, MIB, None),
            recalled(15, 3, false, 4 * MIB, None),
            recalled(16, 4, true, 2 * MIB, None),
        ],
        stage: StageState::Payload(payload),
    }
}

/// A client of simple replies in the middle of a stream, whose last write was refused.
fn of_simple_replies() -> State {
    State {
        is_ending: false,
        streaming: true,
        gathered: vec![(0, b"header"), (0, b"piece")],
        behind: vec![(1, b"one"), (3, b"two, three, four")],
        structured: false,
        larges: vec![large(4, 3, [8 * MIB, 4 * MIB, 0, 0]), long_read(128 * KIB)],
        writes: false,
        stage: StageState::Skip(1000),
        ..of_structured_replies()
    }
}

/// A client in the middle of a short write.
fn of_a_short_write() -> State {
    let mut state = of_structured_replies();
    state.larges.truncate(2);
    (state.writes, state.draining) = (false, false);
    let payload = state.payload();
    (payload.after_bytes, payload.length_bytes) = (None, 1024);
    state
}

/// Makes a state another one.
type Change = fn(&mut State);

/// A state that others are made of.
type Base = fn() -> State;

/// A sentence, and changes of a state after each of which it is the refusal.
type Refused = (&'static str, Base, &'static [Change]);

fn with(of: Base, change: Change) -> State {
    let mut state = of();
    change(&mut state);
    state
}

#[test]
fn each_field_of_a_state_arrives_as_it_was_sent() {
    let accepted: [(Base, Change); 14] = [
        (of_structured_replies, |_| {}),
        (of_simple_replies, |_| {}),
        (of_simple_replies, |state| state.larges.reverse()),
        (of_a_short_write, |_| {}),
        (of_a_short_write, |state| state.payload().fua = false),
        (of_a_short_write, |state| state.stage = StageState::Over),
        (of_a_short_write, |state| state.stage = StageState::Header),
        (of_structured_replies, |state| (state.payload().has_memory, state.payload().filled) = (false, vec![])),
        (of_structured_replies, |state| state.larges[2].failed = 1),
        (of_structured_replies, |state| state.larges[2].failed = 2),
        (of_structured_replies, |state| state.larges[2].failed = 3),
        (of_structured_replies, |state| state.larges[2].failed = 4),
        (of_structured_replies, |state| state.larges[2].failed = 5),
        (of_structured_replies, |state| state.larges[2].failed = 6),
    ];
    for (number, (of, change)) in accepted.into_iter().enumerate() {
        let state = with(of, change).bytes();
        let client = taken(&state).unwrap_or_else(|why| panic!("state {number}: {why}"));
        assert!(packed_state(&client) == state, "state {number}");
        assert!(!client.is_fresh);
    }
}

#[test]
fn requests_and_memory_that_arrive_are_counted() {
    let counted = |of: Base| {
        let client = taken(&of().bytes()).unwrap();
        let ProtocolPhase::Transmitting(transmission) = &client.phase else { panic!("the handshake is over") };
        transmission.under_way()
    };
    let memory = |lengths: &[u32]| lengths.iter().map(|bytes| Buffer::memory_bytes(*bytes)).sum::<u64>();
    // Replies, large requests, what was given back; bytes of replies, of reads and writes given back, of payloads.
    assert_eq!(counted(of_structured_replies), (3 + 3 + 6, 13 + memory(&[512, 1024, 128 * KIB])));
    assert_eq!(counted(of_a_short_write), (3 + 2 + 6 + 1, 13 + memory(&[512, 1024, 1024])));
    assert_eq!(counted(of_simple_replies), (4 + 2 + 6, 30 + memory(&[512, 1024, 512, 1024])));
}

#[test]
fn a_large_write_that_was_cut_is_packed_as_such() {
    let mut cut = Large::new(Op::Write, false, u64::from(MIB), u64::from(256 * KIB), 128 * KIB);
    cut.cut();
    let [mut packed, mut written] = [(); 2].map(|()| StateWriter::new(VERSION));
    cut.pack(&mut packed);
    // 5: the server is shutting down.
    LargeState { fua: false, failed: 5, cut: true, ..large(1, 1, [256 * KIB, 128 * KIB, 0, 0]) }.pack(&mut written);
    assert_eq!(packed.into_bytes(), written.into_bytes());
}

#[test]
fn a_large_range_travels_with_all_bits_of_its_lengths() {
    let mut long = Large::new(Op::FastZeroes { may_unmap: true }, true, 0, 9 << 32, 4 * MIB);
    for _ in 0..1025 {
        let piece = long.next().unwrap();
        long.issued(piece);
        long.ended(piece.place);
    }
    let mut writer = StateWriter::new(VERSION);
    long.pack(&mut writer);
    let state = writer.into_bytes();
    let export = &table().all()[0];
    let mut account = crate::memory::Account::new(export.memory.clone(), 0);
    let there = Large::unpack(&mut StateReader::new(VERSION, &state), export, &mut account).unwrap();
    let issued_bytes = 1025 * u64::from(4 * MIB);
    assert_eq!((there.op, there.length_bytes, there.issued_bytes()), (long.op, 9 << 32, issued_bytes));
}

#[test]
fn a_state_that_no_server_writes_is_refused_with_a_sentence() {
    let refused: [Refused; 25] = [
        ("writes nothing", of_structured_replies, &[|state| state.larges.clear()]),
        (
            "writes twice",
            of_structured_replies,
            &[|state| state.writes = false, |state| state.larges.truncate(2), |state| state.larges.reverse()],
        ),
        (
            "has a stream of structured replies",
            of_a_short_write,
            &[
                |state| state.larges[1] = long_read(0),
                |state| (state.larges[1], state.streaming) = (long_read(128 * KIB), true),
            ],
        ),
        (
            "has a stream that has not begun",
            of_simple_replies,
            &[|state| (state.streaming, state.behind) = (false, vec![])],
        ),
        (
            "has a stream of no request",
            of_simple_replies,
            &[|state| state.larges.truncate(1), |state| state.larges[0] = long_read(0)],
        ),
        (
            "has a flush of some bytes",
            of_simple_replies,
            &[|state| state.recalled[0].offset_bytes = 512, |state| state.recalled[0].length_bytes = 512],
        ),
        ("has a request of no kind", of_simple_replies, &[|state| state.recalled[1].op = 8]),
        ("has a request of no kind", of_structured_replies, &[|state| state.larges[0].op = 8]),
        (
            "has a request that is no blocks of any device",
            of_simple_replies,
            &[
                |state| state.recalled[1].offset_bytes = 1,
                |state| state.recalled[1].length_bytes = 0,
                |state| state.recalled[5].length_bytes = 1000,
            ],
        ),
        (
            "has a request that is too large",
            of_simple_replies,
            &[
                |state| state.recalled[1].length_bytes = 128 * KIB + 512,
                |state| state.recalled[5].length_bytes = 4 * MIB + 512,
            ],
        ),
        (
            "has a write without its payload",
            of_simple_replies,
            &[|state| state.recalled[2].payload = Some(vec![7; 1023])],
        ),
        ("has a large request of no kind", of_structured_replies, &[|state| state.larges[0].op = 5]),
        ("has a failure of no kind", of_structured_replies, &[|state| state.larges[2].failed = 7]),
        (
            "has a large request that is no blocks of any device",
            of_structured_replies,
            &[|state| state.larges[0].offset_bytes = 100, |state| state.larges[0].lengths_bytes[0] = 8 * MIB + 1],
        ),
        (
            "has a large request in pieces that are no power of two",
            of_structured_replies,
            &[|state| state.larges[0].lengths_bytes[1] = 3 * MIB, |state| state.larges[0].lengths_bytes[1] = 256],
        ),
        (
            "has a large request in pieces that are too large",
            of_structured_replies,
            &[|state| state.larges[0].lengths_bytes[1] = 8 * MIB, |state| state.larges[2].lengths_bytes[1] = 256 * KIB],
        ),
        (
            "has a large request that is beyond its end",
            of_structured_replies,
            &[|state| state.larges[0].lengths_bytes[2] = 9 * MIB, |state| state.larges[0].lengths_bytes[3] = 5 * MIB],
        ),
        (
            "has a large request that was cut and has not failed",
            of_structured_replies,
            &[|state| state.larges[2].cut = true],
        ),
        (
            "has a large request that is over and was not answered",
            of_structured_replies,
            &[
                |state| state.larges[0].lengths_bytes[2] = 8 * MIB,
                |state| state.larges[0].failed = 1,
                |state| (state.larges[2].cut, state.larges[2].failed) = (true, 1),
            ],
        ),
        (
            "has pieces that nobody has read",
            of_simple_replies,
            &[
                |state| state.larges[0].ready = vec![(state.larges[0].offset_bytes, vec![1])],
                |state| state.larges[1].ready = vec![(state.larges[1].offset_bytes, vec![1]); 5],
            ],
        ),
        (
            "has pieces that are not of their request",
            of_simple_replies,
            &[
                |state| state.larges[1].ready[0].0 -= 1,
                |state| state.larges[1].ready[1].0 = state.larges[1].ready[0].0 + 511,
                |state| state.larges[1].ready[1].0 += u64::from(192 * KIB) - 1023,
                |state| state.larges[1].ready[1].1.clear(),
            ],
        ),
        (
            "skips more than is skipped of any payload",
            of_simple_replies,
            &[|state| state.stage = StageState::Skip(SKIPPED_BYTES_MAX + 1)],
        ),
        ("has a stream of requests at no stage", of_simple_replies, &[|state| state.stage = StageState::None]),
        (
            "has a large write of which nothing comes",
            of_structured_replies,
            &[|state| state.stage = StageState::Header, |state| state.stage = StageState::Over],
        ),
        (
            "has a piece that is not the next of its write",
            of_structured_replies,
            &[
                |state| state.payload().offset_bytes += 512,
                |state| state.payload().length_bytes -= 512,
                |state| (state.payload().length_bytes, state.payload().after_bytes) = (256 * KIB, None),
            ],
        ),
    ];
    let of_payloads: [Refused; 4] = [
        (
            "has a write that is no blocks of any device",
            of_a_short_write,
            &[
                |state| state.payload().offset_bytes += 1,
                |state| (state.payload().length_bytes, state.payload().after_bytes) = (0, Some(512)),
                |state| (state.payload().length_bytes, state.payload().after_bytes) = (512, Some(u32::MAX)),
            ],
        ),
        (
            "has a write longer than its export takes",
            of_a_short_write,
            &[|state| state.payload().length_bytes = PAYLOAD_BYTES_MAX + 512],
        ),
        (
            "has more of a payload than there is",
            of_a_short_write,
            &[|state| state.payload().filled = vec![9; 1025], |state| state.payload().has_memory = false],
        ),
        (
            "has a write without memory",
            of_a_short_write,
            &[|state| (state.payload().has_memory, state.payload().filled) = (false, vec![])],
        ),
    ];
    for (why, of, changes) in refused.into_iter().chain(of_payloads) {
        for (number, change) in changes.iter().enumerate() {
            assert_eq!(refusal(&with(of, *change).bytes()), format!("its state {why}"), "change {number}");
        }
    }
}

#[test]
fn a_state_with_bytes_left_over_and_a_handshake_with_replies_are_refused() {
    let longer = [of_structured_replies().bytes(), vec![0]].concat();
    assert_eq!(refusal(&longer), "its state has bytes left over");
    for (streaming, gathered) in [(false, vec![(1, &b"one"[..])]), (true, vec![])] {
        let mut writer = StateWriter::new(VERSION);
        [false; 2].into_iter().for_each(|flag| writer.flag(flag));
        writer.bytes(b"");
        put_replies(streaming, [&gathered, &vec![]], &mut writer);
        writer.flag(false);
        assert_eq!(refusal(&writer.into_bytes()), "its state has replies in its handshake");
    }
}

#[test]
fn a_handshake_that_does_not_read_its_answers_is_not_read_from() {
    // Each list is answered with 25 + 20 bytes and a description of 4096; a thousand are below the limit of options.
    const ANSWER_BYTES: usize = 45 + 4096;
    let exports = table();
    let export = Export { description: "d".repeat(4096), ..Export::clone(&exports.lookup("a").unwrap()) };
    let exports = Arc::new(ExportTable::new([export]).unwrap());
    let mut peer = connect_to(exports, NbdOptions::default(), &Stats::new(&NAMES));
    peer.reads = false;
    peer.say(&[vec![0, 0, 0, 3], option(option::LIST, b"").repeat(1000)].concat());
    // A receive brings 4 KiB of options, of which some sixteen are answered.
    assert_eq!(peer.incoming.len(), 1000 * option(option::LIST, b"").len() + 4 - 4096, "one receive");
    let unsent = peer.fake.send.as_ref().unwrap().0.iter().map(|part| part.as_slice().len()).sum::<usize>();
    assert!(unsent <= (16 << 10) + ANSWER_BYTES, "{unsent} bytes unsent");
    peer.reads = true;
    peer.run();
    assert_eq!(peer.read.len(), 18 + 1000 * ANSWER_BYTES);
}

#[test]
fn a_list_of_any_number_of_exports_waits_in_the_memory_of_a_few() {
    let of = |number: u32| {
        let id = crate::export::ExportId(mqfq_blk::slots::Slot::first(number));
        let (name, description) = (format!("{number:04096}"), "d".repeat(4096));
        Export { id, name, description, ..Export::clone(&table().all()[0]) }
    };
    let exports = Arc::new(ExportTable::new((0..500).map(of)).unwrap());
    let mut peer = connect_to(exports, NbdOptions::default(), &Stats::new(&NAMES));
    peer.ask(&[0, 0, 0, 3]);
    peer.reads = false;
    peer.say(&option(option::LIST, b""));
    let sent: usize = peer.fake.send.as_ref().unwrap().0.iter().map(|part| part.as_slice().len()).sum();
    let waits = peer.client.replies.append(|out| out.len());
    assert!(sent + waits <= 2 * ((16 << 10) + 3 * 4096), "{sent} bytes are being sent, {waits} wait");
    peer.reads = true;
    peer.run();
    assert_eq!(peer.read.len(), 500 * (20 + 4 + 2 * 4096) + 20, "the whole list");
}
