//! The stream of requests: no bytes make it panic, cutting them changes nothing, and what is taken may be executed.
#![no_main]

#[path = "../export.rs"]
mod export;

use arbitrary::Arbitrary;
use export::export;
use libfuzzer_sys::fuzz_target;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::request::Op;
use mqfq_front::export::BlockSizes;
use mqfq_front::nbd::transmit::{Limits, Piece as Part, Request, Taken, Transmission};
use mqfq_front::nbd::validate::Session;
use mqfq_front::nbd::wire::{RequestHeader, request};
use std::sync::Arc;

#[derive(Arbitrary, Debug)]
struct Input {
    min_block: u8,
    blocks: u16,
    read_only: bool,
    structured: bool,
    block_status: bool,
    requests_max: u8,
    bytes_max: u16,
    piece_shift: u8,
    direct_bytes: u16,
    pieces: Vec<Piece>,
    cuts: Vec<u16>,
    extended: bool,
}

#[derive(Arbitrary, Debug)]
enum Piece {
    /// A request with a payload as long as it says, if it is a write.
    Request { command: u8, flags: u8, cookie: u64, block: u16, length_bytes: u16 },
    /// A header with any numbers, and no payload.
    Header { flags: u16, command: u16, cookie: u64, offset_bytes: u64, length_bytes: u32 },
    /// Arbitrary bytes.
    Raw(Vec<u8>),
}

impl Piece {
    fn bytes(&self, min_bytes: u32, extended: bool, out: &mut Vec<u8>) {
        let put = |mut header: RequestHeader, out: &mut Vec<u8>| match extended {
            false => header.encode(out),
            true => {
                // A write says so, most often.
                header.flags ^= if header.command == 1 { request::PAYLOAD } else { 0 };
                header.encode_extended(out);
            }
        };
        match self {
            Piece::Request { command, flags, cookie, block, length_bytes } => {
                let command = u16::from(command % 10);
                let offset_bytes = u64::from(*block) * u64::from(min_bytes);
                let length_bytes = u64::from(*length_bytes);
                let (flags, cookie) = (u16::from(*flags), *cookie);
                put(RequestHeader { flags, command, cookie, offset_bytes, length_bytes }, out);
                if command == 1 {
                    out.extend((0..length_bytes).map(|index| index as u8));
                }
            }
            Piece::Header { flags, command, cookie, offset_bytes, length_bytes } => {
                let header = RequestHeader {
                    flags: *flags,
                    command: *command,
                    cookie: *cookie,
                    offset_bytes: *offset_bytes,
                    length_bytes: u64::from(*length_bytes),
                };
                put(header, out);
            }
            Piece::Raw(bytes) => out.extend(bytes),
        }
    }
}

/// The taken request as text that can be compared; checks that it is allowed.
fn told(taken: &Taken, session: &Session) -> String {
    let export = &session.export;
    match taken {
        Taken::Request(Request { cookie, op, fua, offset_bytes, length_bytes, buffer }) => {
            let length = *length_bytes;
            assert!(offset_bytes + length <= export.size_bytes);
            assert_eq!((offset_bytes | length) % u64::from(export.block.min_bytes), 0);
            assert_eq!(*op == Op::Flush, *length_bytes == 0);
            assert_eq!(matches!(op, Op::Write | Op::Extents), buffer.is_some());
            assert!(!export.read_only || matches!(op, Op::Read | Op::Flush | Op::Extents));
            assert!(session.block_status || *op != Op::Extents);
            let payload = buffer.as_ref().filter(|_| *op == Op::Write);
            let payload = payload.map(|buffer| buffer.as_slice()[..*length_bytes as usize].to_vec());
            format!("{cookie} {op:?} {fua} {offset_bytes} {length_bytes} {payload:?}")
        }
        other => format!("{other:?}"),
    }
}

/// Everything taken. A reply leaves only when nothing else can happen.
fn run(session: &Session, limits: Limits, input: &[u8], cuts: &[usize], direct_bytes: usize) -> Vec<String> {
    let mut transmission = Transmission::new(session.clone(), limits);
    let mut all = Vec::new();
    let mut held = Vec::new();
    // A large write is put together from its pieces.
    let mut large: Option<Request> = None;
    let mut gathered = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([input.len()]) {
        let mut piece = &input[from..to];
        from = to;
        if direct_bytes > 0 && transmission.payload_missing_bytes() >= direct_bytes {
            let (mut buffer, start, end) = transmission.take_payload().expect("nobody has it");
            let count = piece.len().min(end - start);
            buffer.as_mut_slice()[start..start + count].copy_from_slice(&piece[..count]);
            transmission.put_payload(buffer, count);
            piece = &piece[count..];
        }
        held.extend_from_slice(piece);
        loop {
            let (used, taken) = transmission.advance(&held);
            held.drain(..used);
            let (requests, bytes) = transmission.under_way();
            assert!(requests <= limits.requests_max);
            // One buffer is always allowed, and takes at least a page.
            assert!(bytes <= limits.bytes_max.max(u64::from(limits.piece_bytes.max(4096)).next_power_of_two()));
            match taken {
                Taken::More => break,
                Taken::Full => {
                    assert!(requests > 0, "one request always fits");
                    // Neither a payload in progress nor a large write is among those that are answered.
                    transmission.replied(requests - usize::from(large.is_some()));
                    transmission.account().give(bytes);
                }
                Taken::LargeWrite(request) => large = Some(request),
                Taken::Piece(Part { offset_bytes, length_bytes, buffer, is_last }) => {
                    let request = large.as_ref().expect("pieces follow their request");
                    assert_eq!(offset_bytes, request.offset_bytes + gathered.len() as u64);
                    assert!(length_bytes <= limits.piece_bytes);
                    gathered.extend_from_slice(&buffer.as_slice()[..length_bytes as usize]);
                    transmission.account().give(Buffer::memory_bytes(length_bytes));
                    if is_last {
                        let mut buffer = Buffer::new(gathered.len());
                        buffer.as_mut_slice()[..gathered.len()].copy_from_slice(&std::mem::take(&mut gathered));
                        let whole = large.take().expect("as above");
                        assert_eq!(buffer.capacity_bytes(), Buffer::memory_bytes(whole.length_bytes as u32) as usize);
                        all.push(told(&Taken::Request(Request { buffer: Some(buffer), ..whole }), session));
                    }
                }
                taken => {
                    all.push(told(&taken, session));
                    if matches!(taken, Taken::Disconnect | Taken::Broken(_)) {
                        return all;
                    }
                }
            }
        }
    }
    all
}

fuzz_target!(|input: Input| {
    let min_bytes = 1 << (input.min_block % 13);
    let block = BlockSizes { min_bytes, preferred_bytes: 4096, payload_bytes_max: 32768, pages_align_bytes: 0 };
    let export = export(0, (u64::from(input.blocks) + 1) * u64::from(min_bytes), input.read_only, block);
    let session = Session {
        export: Arc::new(export),
        structured: input.structured || input.extended,
        extended: input.extended,
        block_status: (input.structured || input.extended) && input.block_status,
    };
    let limits = Limits {
        requests_max: usize::from(input.requests_max).max(1),
        bytes_max: u64::from(input.bytes_max),
        piece_bytes: (4096 << (input.piece_shift % 4)).max(min_bytes),
    };
    let mut bytes = Vec::new();
    input.pieces.iter().for_each(|piece| piece.bytes(min_bytes, input.extended, &mut bytes));
    let mut cuts: Vec<usize> = input.cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
    cuts.sort_unstable();

    // Reads in one chunk have a limit of one piece, so the pieces are the same; what a large write is cut into changes
    // nothing.
    let roomy = Limits { requests_max: usize::MAX, bytes_max: u64::MAX / 2, ..limits };
    let whole = run(&session, roomy, &bytes, &[], 0);
    assert_eq!(run(&session, limits, &bytes, &cuts, usize::from(input.direct_bytes)), whole);
});
