use super::super::wire::request;
use super::*;
use crate::export::{BlockSizes, Export};
use crate::memory::{MemoryLimits, ServerMemory, TenantMemory};
use mqfq_blk::FlowId;
use mqfq_blk::client::DeviceIndex;
use proptest::prelude::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const PIECE: u32 = 128 << 10;
const ROOMY: Limits = Limits { requests_max: 1 << 20, bytes_max: 1 << 40, piece_bytes: PIECE };

fn limits(requests_max: usize, bytes_max: u64) -> Limits {
    Limits { requests_max, bytes_max, piece_bytes: PIECE }
}

/// 128 MiB, payloads up to 32 MiB, structured replies and block status.
fn session() -> Session {
    let export = Export {
        name: "a".to_owned(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(0),
        id: crate::export::ExportId(mqfq_blk::slots::Slot::first(0)),
        tenant: crate::export::TenantId(mqfq_blk::slots::Slot::first(0)),
        state: crate::export::ExportState::default(),
        offset_bytes: 0,
        size_bytes: 128 * MIB,
        read_only: false,
        block: BlockSizes::DEFAULT,
        memory: TenantMemory::unbounded(),
        caps: mqfq_blk::cap::Caps::none(),
    };
    Session { export: Arc::new(export), structured: true, extended: false, block_status: true }
}

fn header(command: Command, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let command = command as u16;
    RequestHeader { flags: 0, command, cookie, offset_bytes, length_bytes: length_bytes.into() }.encode(&mut bytes);
    bytes
}

fn write(cookie: u64, offset_bytes: u64, payload: &[u8]) -> Vec<u8> {
    [header(Command::Write, cookie, offset_bytes, payload.len() as u32), payload.to_vec()].concat()
}

/// `taken` in words that can be compared.
fn told(taken: &Taken) -> String {
    match taken {
        Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer }) => {
            let payload = buffer.as_ref().filter(|_| *op == Op::Write);
            let payload = payload.map(|buffer| buffer.as_slice()[..*length_bytes as usize].to_vec());
            format!("{cookie}: {op:?} fua={fua} {offset_bytes}+{length_bytes} {payload:?}")
        }
        other => format!("{other:?}"),
    }
}

/// Takes everything from `input`, cut at `cuts`; missing payloads of at least `direct_bytes` are received directly. A
/// large write is put together from its pieces of `piece_bytes`, so it is told as if it were one.
fn run_pieces(input: &[u8], cuts: &[usize], direct_bytes: usize, piece_bytes: u32) -> Vec<String> {
    let mut transmission = Transmission::new(session(), Limits { piece_bytes, ..ROOMY });
    let mut all = Vec::new();
    let mut large: Option<Request> = None;
    let mut gathered = Vec::new();
    let mut held: Vec<u8> = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([input.len()]) {
        let mut piece = &input[from..to];
        from = to;
        if transmission.payload_missing_bytes() >= direct_bytes.max(1) {
            let (mut buffer, start, end) = transmission.take_payload().unwrap();
            let count = piece.len().min(end - start);
            buffer.as_mut_slice()[start..start + count].copy_from_slice(&piece[..count]);
            transmission.put_payload(buffer, count);
            piece = &piece[count..];
        }
        held.extend_from_slice(piece);
        loop {
            let (used, taken) = transmission.advance(&held);
            held.drain(..used);
            if matches!(taken, Taken::More) {
                break;
            }
            match taken {
                Taken::LargeWrite(request) => {
                    large = Some(request);
                    continue;
                }
                Taken::Piece(Piece { offset_bytes, length_bytes, buffer, is_last }) => {
                    let request = large.as_ref().unwrap();
                    assert_eq!(offset_bytes, request.offset_bytes + gathered.len() as u64);
                    let end_bytes = offset_bytes + u64::from(length_bytes);
                    assert!(is_last || end_bytes.is_multiple_of(u64::from(piece_bytes)), "{end_bytes} is no boundary");
                    gathered.extend_from_slice(&buffer.as_slice()[..length_bytes as usize]);
                    assert_eq!(is_last, gathered.len() == request.length_bytes as usize);
                    transmission.account().give(Buffer::memory_bytes(length_bytes));
                    if is_last {
                        let mut buffer = Buffer::new(gathered.len());
                        buffer.as_mut_slice()[..gathered.len()].copy_from_slice(&std::mem::take(&mut gathered));
                        let whole = Request { buffer: Some(buffer), ..large.take().unwrap() };
                        all.push(told(&Taken::Request(whole)));
                    }
                    continue;
                }
                ref other => all.push(told(other)),
            }
            if matches!(taken, Taken::Disconnect | Taken::Broken(_)) {
                return all;
            }
        }
    }
    all
}

fn run_cut(input: &[u8], cuts: &[usize], direct_bytes: usize) -> Vec<String> {
    run_pieces(input, cuts, direct_bytes, PIECE)
}

fn run(input: &[u8]) -> Vec<String> {
    run_cut(input, &[], usize::MAX)
}

#[test]
fn requests_come_out_as_they_went_in() {
    let input = [
        header(Command::Read, 1, 4096, 512),
        write(2, 100, b"payload"),
        header(Command::Flush, 3, 0, 0),
        header(Command::Trim, 4, 0, 1 << 20),
        header(Command::BlockStatus, 5, 0, 4096),
        header(Command::Disconnect, 6, 0, 0),
        header(Command::Read, 7, 0, 512),
    ];
    let payload = Some(b"payload".to_vec());
    assert_eq!(
        run(&input.concat()),
        [
            "1: Read fua=false 4096+512 None".to_owned(),
            format!("2: Write fua=false 100+7 {payload:?}"),
            "3: Flush fua=false 0+0 None".to_owned(),
            "4: Discard fua=false 0+1048576 None".to_owned(),
            "5: Extents fua=false 0+4096 None".to_owned(),
            "Disconnect".to_owned(),
        ]
    );
}

#[test]
fn a_refused_write_is_skipped_and_the_next_request_is_understood() {
    let input = [write(1, 128 * MIB, b"past the end"), header(Command::Flush, 2, 0, 0)].concat();
    assert_eq!(
        run(&input),
        [
            "Refused { cookie: 1, offset_bytes: 134217728, command: Some(Write), rule: OutOfRange }",
            "2: Flush fua=false 0+0 None"
        ]
    );
}

#[test]
fn a_refused_write_too_long_to_skip_breaks_the_stream() {
    let longest = header(Command::Write, 1, 0, SKIPPED_BYTES_MAX);
    assert_eq!(run(&longest), ["Refused { cookie: 1, offset_bytes: 0, command: Some(Write), rule: PayloadOverMax }"]);
    let longer = header(Command::Write, 1, 0, SKIPPED_BYTES_MAX + 1);
    assert_eq!(run(&longer), ["Broken(PayloadTooLong)"]);
    // It counts for nothing any more, and what comes behind it is not read as requests.
    let mut transmission = Transmission::new(session(), ROOMY);
    let (used, _) = transmission.advance(&longer);
    assert_eq!(transmission.under_way(), (0, 0));
    assert_eq!(transmission.advance(&header(Command::Flush, 8, 0, 0)).0, 0, "after {used} bytes");
}

#[test]
fn another_magic_breaks_the_stream_and_nothing_is_taken_after_it() {
    let mut bad = header(Command::Read, 1, 0, 512);
    bad[0] ^= 1;
    assert_eq!(run(&[bad.clone(), header(Command::Read, 2, 0, 512)].concat()), ["Broken(BadRequestMagic)"]);
    let mut transmission = Transmission::new(session(), ROOMY);
    transmission.advance(&bad);
    assert!(matches!(transmission.advance(&header(Command::Read, 2, 0, 512)), (0, Taken::More)));
}

#[test]
fn requests_past_the_limit_stay_where_they_are_until_a_reply_left() {
    let mut transmission = Transmission::new(session(), limits(2, MIB));
    let read = header(Command::Read, 1, 0, 512);
    assert!(matches!(transmission.advance(&read), (28, Taken::Request(_))));
    // An error's reply waits for the client like any other.
    assert!(matches!(transmission.advance(&header(Command::Cache, 2, 0, 512)), (28, Taken::Refused { .. })));
    assert!(matches!(transmission.advance(&read), (0, Taken::Full)));
    assert!(matches!(transmission.advance(&header(Command::Cache, 2, 0, 512)), (0, Taken::Full)));
    transmission.replied(1);
    assert!(matches!(transmission.advance(&read), (28, Taken::Request(_))));
    assert_eq!(transmission.under_way(), (2, 8192), "two pages for two reads of 512 bytes");
}

#[test]
fn bytes_are_limited_but_one_request_always_fits() {
    let mut transmission = Transmission::new(session(), limits(10, 64 << 10));
    let read = header(Command::Read, 1, 0, PIECE);
    assert!(matches!(transmission.advance(&read), (28, Taken::Request(_))), "twice the limit, alone");
    assert!(matches!(transmission.advance(&header(Command::Read, 2, 0, 1)), (0, Taken::Full)));
    assert!(matches!(transmission.advance(&header(Command::Trim, 3, 0, 2 << 20)), (28, Taken::Request(_))), "no bytes");
    transmission.account().give(128 << 10);
    // A write is charged before its payload is there: its buffer is.
    assert!(matches!(transmission.advance(&header(Command::Write, 4, 0, 64 << 10)), (28, Taken::More)));
    assert_eq!(transmission.under_way(), (3, 64 << 10));
}

#[test]
fn a_large_request_takes_no_memory_when_it_is_announced() {
    let mut transmission = Transmission::new(session(), limits(10, MIB));
    for cookie in 0..9 {
        let read = header(Command::Read, cookie, 0, 32 << 20);
        assert!(matches!(transmission.advance(&read), (28, Taken::Request(_))));
    }
    assert!(matches!(transmission.advance(&header(Command::Write, 9, 0, 32 << 20)), (28, Taken::LargeWrite(_))));
    assert_eq!(transmission.under_way(), (10, 0));
    assert!(transmission.take_payload().is_none(), "there is no buffer to receive into");
    // The first piece gets a buffer at the next call, and no other gets one until it has come.
    assert!(matches!(transmission.advance(&[]), (0, Taken::More)));
    assert_eq!(transmission.under_way(), (10, 128 << 10));
    assert!(matches!(transmission.advance(&[7; 1000]), (1000, Taken::More)));
    assert_eq!(transmission.under_way(), (10, 128 << 10));
    assert_eq!(transmission.payload_missing_bytes(), (128 << 10) - 1000);
}

#[test]
fn a_piece_waits_for_memory_and_says_for_whose() {
    let memory = ServerMemory::new(MemoryLimits { server_bytes: 256 << 10, tenants: 1 }).tenant(256 << 10);
    let mut session = session();
    Arc::make_mut(&mut session.export).memory = memory.clone();
    let mut other = Account::new(memory, MIB);
    other.take(192 << 10).unwrap();
    let mut transmission = Transmission::new(session, limits(10, 192 << 10));
    assert!(
        matches!(transmission.advance(&header(Command::Read, 9, 0, 1)), (28, Taken::Request(_))),
        "the first always"
    );
    transmission.advance(&header(Command::Write, 1, 0, 1 << 20));
    assert!(matches!(transmission.advance(&[1; 10]), (0, Taken::NoMemory)), "192 + 4 + 128 > 256");
    transmission.account().give(4096);
    other.take(4096).unwrap();
    other.give(128 << 10);
    assert!(matches!(transmission.advance(&[1; 128 << 10]), (0x20000, Taken::Piece(_))));
    assert!(matches!(transmission.advance(&[1; 10]), (0, Taken::Full)), "128 + 128 > 192, its own");
    transmission.account().give(128 << 10);
    assert!(matches!(transmission.advance(&[1; 10]), (10, Taken::More)));
    assert!(matches!(transmission.advance(&header(Command::Read, 2, 0, 1)), (28, Taken::More)), "it is payload");
}

#[test]
fn a_read_in_one_chunk_is_no_longer_than_a_piece() {
    let read = |length_bytes: u32| {
        let mut bytes = Vec::new();
        let (flags, command) = (request::DF, Command::Read as u16);
        let length_bytes = length_bytes.into();
        RequestHeader { flags, command, cookie: 1, offset_bytes: 0, length_bytes }.encode(&mut bytes);
        run(&bytes)
    };
    assert_eq!(read(PIECE), [format!("1: Read fua=false 0+{PIECE} None")]);
    assert_eq!(
        read(PIECE + 1),
        ["Refused { cookie: 1, offset_bytes: 0, command: Some(Read), rule: TooLongForOneChunk }"]
    );
}

#[test]
fn a_disconnect_needs_no_room() {
    let mut transmission = Transmission::new(session(), limits(1, MIB));
    assert!(matches!(transmission.advance(&header(Command::Read, 1, 0, 512)), (28, Taken::Request(_))));
    assert!(matches!(transmission.advance(&header(Command::Disconnect, 2, 0, 0)), (28, Taken::Disconnect)));
    transmission.replied(1);
    let late = header(Command::Read, 3, 0, 512);
    assert!(matches!(transmission.advance(&late), (0, Taken::More)), "nothing is taken behind it");
    assert!(transmission.between_requests());
}

#[test]
fn pieces_are_to_come_from_the_announcement_of_a_large_write_to_its_last_one() {
    let mut transmission = Transmission::new(session(), ROOMY);
    let mut take = |bytes: &[u8]| {
        transmission.advance(bytes);
        transmission.in_large_write()
    };
    assert!(!take(&[]));
    assert!(!take(&header(Command::Write, 1, 0, 8)), "a write that is one piece");
    assert!(!take(&[0; 8]));
    assert!(take(&header(Command::Write, 2, 0, 2 * PIECE)));
    assert!(take(&[0; PIECE as usize]), "the first of two");
    assert!(!take(&[0; PIECE as usize]));
}

#[test]
fn a_payload_may_be_received_into_its_own_buffer() {
    let payload: Vec<u8> = (0..100_000).map(|index| index as u8).collect();
    let input = [write(1, 0, &payload), header(Command::Flush, 2, 0, 0)].concat();
    let expected = run(&input);
    for cuts in [&[28, 100_028][..], &[1000, 2000, 99_000], &[28, 29, 30], &[50_000]] {
        assert_eq!(run_cut(&input, cuts, 1), expected, "{cuts:?}");
        assert_eq!(run_pieces(&input, cuts, 1, 4096), expected, "{cuts:?}, 25 pieces");
    }
    let mut transmission = Transmission::new(session(), ROOMY);
    transmission.advance(&input[..28]);
    let _buffer = transmission.take_payload().unwrap();
    assert!(transmission.take_payload().is_none(), "it is out");
    assert!(matches!(transmission.advance(&[]), (0, Taken::More)));
}

#[test]
fn extended_headers_take_a_payload_where_they_say_so_and_lengths_beyond_4_gib() {
    let header = |command: Command, flags, cookie, offset_bytes, length_bytes| {
        let mut bytes = Vec::new();
        let command = command as u16;
        RequestHeader { flags, command, cookie, offset_bytes, length_bytes }.encode_extended(&mut bytes);
        bytes
    };
    let mut session = Session { extended: true, ..session() };
    Arc::make_mut(&mut session.export).size_bytes = 1 << 40;
    let take = |input: &[u8]| {
        let limits = Limits { requests_max: 99, bytes_max: 16 * MIB, piece_bytes: PIECE };
        let mut transmission = Transmission::new(session.clone(), limits);
        let (mut at, mut all) = (0, Vec::new());
        loop {
            let (used, taken) = transmission.advance(&input[at..]);
            at += used;
            match taken {
                Taken::More => break,
                taken => all.push(told(&taken)),
            }
            if matches!(transmission.stage, Stage::Over) {
                break;
            }
        }
        (all, input.len() - at)
    };
    let input = [
        header(Command::Read, 0, 1, 4096, 512),
        header(Command::Write, request::PAYLOAD | request::FUA, 2, 100, 7),
        b"payload".to_vec(),
        header(Command::Trim, 0, 3, 512, 5 << 32),
        header(Command::BlockStatus, 0, 4, 0, 1 << 40),
        // Without a payload none is skipped, with one all of it.
        header(Command::Write, 0, 5, 0, 512),
        header(Command::BlockStatus, request::PAYLOAD, 6, 4096, 5),
        b"ab\0\0\x21".to_vec(),
        header(Command::Read, 0, 7, 0, 1 << 32),
        header(Command::Disconnect, request::PAYLOAD, 8, 0, 0),
    ];
    let refused = |cookie, offset_bytes, command, rule| {
        format!("Refused {{ cookie: {cookie}, offset_bytes: {offset_bytes}, command: Some({command}), rule: {rule} }}")
    };
    let expected = [
        "1: Read fua=false 4096+512 None".to_owned(),
        format!("2: Write fua=true 100+7 {:?}", Some(b"payload")),
        format!("3: Discard fua=false 512+{} None", 5_u64 << 32),
        format!("4: Extents fua=false 0+{} None", u32::MAX),
        refused(5, 0, "Write", "PayloadMismatch"),
        refused(6, 4096, "BlockStatus", "PayloadMismatch"),
        refused(7, 0, "Read", "PayloadOverMax"),
        "Disconnect".to_owned(),
    ];
    assert_eq!(take(&input.concat()), (expected.to_vec(), 0));
    let mut cut = input.concat();
    cut.truncate(31);
    assert_eq!(take(&cut), (vec![], 31), "one byte of the header is missing");
    let broken = vec!["Broken(BadRequestMagic)".to_owned()];
    let mut compact = Vec::new();
    RequestHeader { flags: 0, command: 0, cookie: 1, offset_bytes: 0, length_bytes: 512 }.encode(&mut compact);
    assert_eq!(take(&compact), (broken.clone(), 0), "without waiting for more");
    assert_eq!(run(&input[0][..]), broken, "where they were not agreed on");
    let long = header(Command::Trim, request::PAYLOAD, 1, 0, u64::from(SKIPPED_BYTES_MAX) + 1);
    assert_eq!(take(&long).0, ["Broken(PayloadTooLong)"]);
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    // Numbers around the limits: the export's end, an empty length, the longest payload.
    let offset = prop_oneof![0..2 * MIB, 128 * MIB - 70_000..128 * MIB + 10, any::<u64>()];
    let length = prop_oneof![0..5000_u32, 60_000..70_000_u32];
    let flags = prop_oneof![Just(0), Just(request::FUA), any::<u16>()];
    (0..10_u16, flags, any::<u64>(), offset, length).prop_map(|(command, flags, cookie, offset_bytes, length_bytes)| {
        let mut bytes = Vec::new();
        let header = RequestHeader { flags, command, cookie, offset_bytes, length_bytes: length_bytes.into() };
        header.encode(&mut bytes);
        if command == Command::Write as u16 {
            bytes.extend((0..length_bytes).map(|index| (u64::from(index) ^ cookie) as u8));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_cuts_take_the_same_requests(
        requests in prop::collection::vec(any_request(), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        direct_bytes in prop_oneof![Just(1_usize), Just(4096), Just(usize::MAX)],
        piece_bytes in prop_oneof![Just(4096_u32), Just(32 << 10), Just(PIECE)],
    ) {
        let input = requests.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        // A read in one chunk is refused above the size of a piece, which is not what this is about.
        prop_assume!(requests.iter().all(|request| request[5] & request::DF as u8 == 0));
        prop_assert_eq!(run_pieces(&input, &cuts, direct_bytes, piece_bytes), run(&input));
    }

    #[test]
    fn garbage_never_panics(input in prop::collection::vec(any::<u8>(), 0..400), magic in any::<bool>()) {
        let start = if magic { 0x2560_9513_u32.to_be_bytes().to_vec() } else { Vec::new() };
        run(&[start, input].concat());
    }
}

#[test]
fn every_cut_of_a_short_conversation_takes_the_same_requests() {
    let input =
        [write(1, 0, b"one"), header(Command::Read, 2, 0, 9), write(3, 128 * MIB, b"off"), write(4, 5, b"four")]
            .concat();
    let expected = run(&input);
    assert_eq!(expected.len(), 4);
    for cut in 0..=input.len() {
        assert_eq!(run_cut(&input, &[cut], 1), expected, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (1..input.len()).collect();
    assert_eq!(run_cut(&input, &every_byte, usize::MAX), expected);
}
