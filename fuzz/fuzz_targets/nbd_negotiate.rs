//! The handshake: no bytes make it panic, cutting them changes nothing, and its answers are whole.
#![no_main]

#[path = "../export.rs"]
mod export;

use arbitrary::Arbitrary;
use export::export;
use libfuzzer_sys::fuzz_target;
use mqfq_front::export::{BlockSizes, Export, ExportTable};
use mqfq_front::nbd::negotiate::{Negotiation, Progress};
use mqfq_front::nbd::wire::{self, Reader};
use std::sync::Arc;

#[derive(Arbitrary, Debug)]
struct Input {
    client_flags: u32,
    pieces: Vec<Piece>,
    cuts: Vec<u16>,
}

#[derive(Arbitrary, Debug)]
enum Piece {
    /// An option with its right length.
    Option { number: u8, data: Vec<u8> },
    /// INFO or GO with data of the right form.
    Info { go: bool, name: Name, kinds: Vec<u16> },
    /// LIST_META_CONTEXT or SET_META_CONTEXT with data of the right form.
    Meta { set: bool, name: Name, queries: Vec<Name> },
    /// An option's header, with no data behind it.
    Header { number: u32, length_bytes: u32 },
    /// Arbitrary bytes.
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Name {
    Empty,
    First,
    Second,
    BaseAllocation,
    Base,
    Other(Vec<u8>),
}

impl Name {
    fn counted(&self) -> Vec<u8> {
        let bytes: &[u8] = match self {
            Name::Empty => b"",
            Name::First => b"a",
            Name::Second => b"b",
            Name::BaseAllocation => b"base:allocation",
            Name::Base => b"base:",
            Name::Other(bytes) => bytes,
        };
        [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [&header(number, data.len() as u32)[..], data].concat()
}

fn header(number: u32, length_bytes: u32) -> Vec<u8> {
    [&wire::OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &length_bytes.to_be_bytes()].concat()
}

impl Piece {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Piece::Option { number, data } => option(u32::from(*number), data),
            Piece::Info { go, name, kinds } => {
                let number = if *go { wire::option::GO } else { wire::option::INFO };
                let count = (kinds.len() as u16).to_be_bytes().to_vec();
                let kinds = kinds.iter().flat_map(|kind| kind.to_be_bytes()).collect();
                option(number, &[name.counted(), count, kinds].concat())
            }
            Piece::Meta { set, name, queries } => {
                let number = if *set { wire::option::SET_META_CONTEXT } else { wire::option::LIST_META_CONTEXT };
                let count = (queries.len() as u32).to_be_bytes().to_vec();
                let queries = queries.iter().flat_map(Name::counted).collect();
                option(number, &[name.counted(), count, queries].concat())
            }
            Piece::Header { number, length_bytes } => header(*number, *length_bytes),
            Piece::Raw(bytes) => bytes.clone(),
        }
    }
}

fn table() -> Arc<ExportTable> {
    let export = |name: &str, read_only, min_bytes| Export {
        name: name.to_owned(),
        description: "described".to_owned(),
        ..export(0, 1 << 20, read_only, BlockSizes { min_bytes, ..BlockSizes::DEFAULT })
    };
    Arc::new(ExportTable::new([export("a", false, 1), export("b", true, 512)]).expect("both are well formed"))
}

/// Answers, how it ended, and what was not used.
fn run(input: &[u8], cuts: &[usize]) -> (Vec<u8>, String, Vec<u8>) {
    let mut negotiation = Negotiation::new(table());
    let mut answers = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([input.len()]) {
        let mut piece = &input[from..to];
        from = to;
        loop {
            let (used, progress) = negotiation.advance(piece, &mut answers, &mut |_| true);
            piece = &piece[used..];
            match progress {
                Progress::More => {
                    assert!(piece.is_empty());
                    break;
                }
                Progress::Answered { .. } | Progress::StartTls => {}
                end @ (Progress::Transmit(_) | Progress::Close { .. }) => {
                    return (answers, format!("{end:?}"), [piece, &input[to..]].concat());
                }
            }
        }
    }
    (answers, "waiting".to_owned(), Vec::new())
}

fuzz_target!(|input: Input| {
    let pieces: Vec<u8> = input.pieces.iter().flat_map(Piece::bytes).collect();
    let bytes = [&input.client_flags.to_be_bytes()[..], &pieces].concat();
    let mut cuts: Vec<usize> = input.cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
    cuts.sort_unstable();

    let (answers, end, left) = run(&bytes, &[]);
    assert_eq!(run(&bytes, &cuts), (answers.clone(), end, left));

    // All answers are whole option replies, but for the last if that is the answer to EXPORT_NAME.
    let mut reader = Reader(&answers);
    while reader.0.starts_with(&wire::OPTION_REPLY_MAGIC.to_be_bytes()) {
        reader.bytes(16).expect("magic, option, type");
        reader.counted().expect("data as long as announced");
    }
    assert!(matches!(reader.0.len(), 0 | 10 | 134), "{} bytes are left over", reader.0.len());
});
