use super::super::wire::request;
use super::*;
use crate::export::{BlockSizes, Export};
use mqfq_blk::FlowId;
use mqfq_blk::client::DeviceIndex;
use proptest::prelude::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const ROOMY: Limits = Limits { requests_max: 1 << 20, bytes_max: 1 << 40 };

/// 128 MiB, payloads up to 32 MiB, structured replies and block status.
fn session() -> Session {
    let export = Export {
        name: "a".to_owned(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(0),
        tenant: 0,
        offset_bytes: 0,
        size_bytes: 128 * MIB,
        read_only: false,
        block: BlockSizes::DEFAULT,
    };
    Session { export: Arc::new(export), structured: true, block_status: true }
}

fn header(command: Command, cookie: u64, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let command = command as u16;
    RequestHeader { flags: 0, command, cookie, offset_bytes, length_bytes }.encode(&mut bytes);
    bytes
}

fn write(cookie: u64, offset_bytes: u64, payload: &[u8]) -> Vec<u8> {
    [header(Command::Write, cookie, offset_bytes, payload.len() as u32), payload.to_vec()].concat()
}

/// What was taken, in words that can be compared.
fn told(taken: &Taken) -> String {
    match taken {
        Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer }) => {
            let payload = buffer.as_ref().map(|buffer| buffer.as_slice()[..*length_bytes as usize].to_vec());
            format!("{cookie}: {op:?} fua={fua} {offset_bytes}+{length_bytes} {payload:?}")
        }
        other => format!("{other:?}"),
    }
}

/// Takes everything from `input`, cut at `cuts`; missing payloads of at least `direct_bytes` are received directly.
fn run_cut(session: Session, input: &[u8], cuts: &[usize], direct_bytes: usize) -> Vec<String> {
    let mut transmission = Transmission::new(session, ROOMY);
    let mut all = Vec::new();
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
            all.push(told(&taken));
            if matches!(taken, Taken::Disconnect | Taken::Broken(_)) {
                return all;
            }
        }
    }
    all
}

fn run(input: &[u8]) -> Vec<String> {
    run_cut(session(), input, &[], usize::MAX)
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
            "BlockStatus { cookie: 5, length_bytes: 4096 }".to_owned(),
            "Disconnect".to_owned(),
        ]
    );
}

#[test]
fn a_refused_write_is_skipped_and_the_next_request_is_understood() {
    let input = [write(1, 128 * MIB, b"past the end"), header(Command::Flush, 2, 0, 0)].concat();
    assert_eq!(
        run(&input),
        ["Refused { cookie: 1, command: Some(Write), rule: OutOfRange }", "2: Flush fua=false 0+0 None"]
    );
}

#[test]
fn a_refused_write_too_long_to_skip_breaks_the_stream() {
    let longest = header(Command::Write, 1, 0, SKIPPED_BYTES_MAX);
    assert_eq!(run(&longest), ["Refused { cookie: 1, command: Some(Write), rule: PayloadOverMax }"]);
    let longer = header(Command::Write, 1, 0, SKIPPED_BYTES_MAX + 1);
    assert_eq!(run(&longer), ["Broken(PayloadTooLong)"]);
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
    let mut transmission = Transmission::new(session(), Limits { requests_max: 2, bytes_max: MIB });
    let read = header(Command::Read, 1, 0, 512);
    assert!(matches!(transmission.advance(&read), (28, Taken::Request(_))));
    // An error's reply waits for the client like any other.
    assert!(matches!(transmission.advance(&header(Command::Cache, 2, 0, 512)), (28, Taken::Refused { .. })));
    assert!(matches!(transmission.advance(&read), (0, Taken::Full)));
    assert!(matches!(transmission.advance(&header(Command::Cache, 2, 0, 512)), (0, Taken::Full)));
    transmission.replied(1);
    assert!(matches!(transmission.advance(&read), (28, Taken::Request(_))));
    assert_eq!(transmission.under_way(), (2, 1024));
}

#[test]
fn bytes_are_limited_but_one_request_always_fits() {
    let mut transmission = Transmission::new(session(), Limits { requests_max: 10, bytes_max: MIB });
    let large = header(Command::Read, 1, 0, 2 << 20);
    assert!(matches!(transmission.advance(&large), (28, Taken::Request(_))), "twice the limit, alone");
    assert!(matches!(transmission.advance(&header(Command::Read, 2, 0, 1)), (0, Taken::Full)));
    assert!(matches!(transmission.advance(&header(Command::Trim, 3, 0, 2 << 20)), (28, Taken::Request(_))), "no bytes");
    transmission.bytes_freed(2 << 20);
    // A write is charged before its payload is there: its buffer is.
    assert!(matches!(transmission.advance(&header(Command::Write, 4, 0, 1 << 20)), (28, Taken::More)));
    assert_eq!(transmission.under_way(), (3, 1 << 20));
}

#[test]
fn a_disconnect_needs_no_room() {
    let mut transmission = Transmission::new(session(), Limits { requests_max: 1, bytes_max: MIB });
    assert!(matches!(transmission.advance(&header(Command::Read, 1, 0, 512)), (28, Taken::Request(_))));
    assert!(matches!(transmission.advance(&header(Command::Disconnect, 2, 0, 0)), (28, Taken::Disconnect)));
}

#[test]
fn a_write_that_was_not_complete_when_the_shutdown_began_is_refused() {
    let mut transmission = Transmission::new(session(), ROOMY);
    let input = write(1, 0, b"payload");
    assert!(matches!(transmission.advance(&input[..30]), (30, Taken::More)));
    assert!(!transmission.between_requests());
    transmission.shut_down();
    let (used, taken) = transmission.advance(&input[30..]);
    assert_eq!(used, 5);
    assert!(matches!(taken, Taken::Refused { cookie: 1, rule: Rule::ShuttingDown, .. }));
    assert_eq!(transmission.under_way(), (1, 0), "its reply is to come, its buffer is free");
    assert!(transmission.between_requests());
}

#[test]
fn a_payload_may_be_received_into_its_own_buffer() {
    let payload: Vec<u8> = (0..100_000).map(|index| index as u8).collect();
    let input = [write(1, 0, &payload), header(Command::Flush, 2, 0, 0)].concat();
    let expected = run(&input);
    for cuts in [&[28, 100_028][..], &[1000, 2000, 99_000], &[28, 29, 30], &[50_000]] {
        assert_eq!(run_cut(session(), &input, cuts, 1), expected, "{cuts:?}");
    }
    let mut transmission = Transmission::new(session(), ROOMY);
    transmission.advance(&input[..28]);
    let _buffer = transmission.take_payload().unwrap();
    assert!(transmission.take_payload().is_none(), "it is out");
    assert!(matches!(transmission.advance(&[]), (0, Taken::More)));
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    // Numbers around the limits: the export's end, an empty length, the longest payload.
    let offset = prop_oneof![0..2 * MIB, 128 * MIB - 70_000..128 * MIB + 10, any::<u64>()];
    let length = prop_oneof![0..5000_u32, 60_000..70_000_u32];
    let flags = prop_oneof![Just(0), Just(request::FUA), any::<u16>()];
    (0..10_u16, flags, any::<u64>(), offset, length).prop_map(|(command, flags, cookie, offset_bytes, length_bytes)| {
        let mut bytes = Vec::new();
        RequestHeader { flags, command, cookie, offset_bytes, length_bytes }.encode(&mut bytes);
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
    ) {
        let input = requests.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(run_cut(session(), &input, &cuts, direct_bytes), run(&input));
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
        assert_eq!(run_cut(session(), &input, &[cut], 1), expected, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (1..input.len()).collect();
    assert_eq!(run_cut(session(), &input, &every_byte, usize::MAX), expected);
}
