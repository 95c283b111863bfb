//! A guest's descriptors and requests: none makes it panic, and what is accepted lies in the guest's memory and in the
//! export.
#![no_main]

#[path = "../export.rs"]
mod export;

use arbitrary::Arbitrary;
use export::export;
use libfuzzer_sys::fuzz_target;
use mqfq_blk::request::Op;
use mqfq_front::export::BlockSizes;
use mqfq_front::vhost_user_blk::chain::{self, Chain};
use mqfq_front::vhost_user_blk::disk::{Disk, DiskRequest};
use mqfq_front::vhost_user_blk::guest::{GuestMemory, RegionText};
use mqfq_front::vhost_user_blk::wire;

const MEMORY_BYTES: u64 = 64 << 10;
const SIZE: u16 = 16;
const OFFSET_BYTES: u64 = 8192;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Where the second half of the guest's memory begins, after a gap of so many pages.
    gap_pages: u8,
    descriptors: Vec<(u32, u16, u8, u8)>,
    /// Written into the memory behind the table: headers and indirect tables.
    bytes: Vec<u8>,
    kind: u8,
    sector: u32,
    head: u8,
    block_exp: u8,
    size_blocks: u16,
    read_only: bool,
    has_indirect: bool,
}

fuzz_target!(|input: Input| {
    let block_bytes = 1u32 << (input.block_exp % 13);
    let block =
        BlockSizes { min_bytes: block_bytes, preferred_bytes: 4096, payload_bytes_max: 1 << 20, pages_align_bytes: 0 };
    let export =
        export(OFFSET_BYTES, (u64::from(input.size_blocks) + 1) * u64::from(block_bytes), input.read_only, block);
    let disk = Disk::new(&export);
    let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, MEMORY_BYTES).unwrap();
    let mut memory = GuestMemory::default();
    let half = MEMORY_BYTES / 2;
    let second = half + (u64::from(input.gap_pages) << 12);
    for (guest_addr, file_offset) in [(0, 0), (second, half)] {
        let text = RegionText { guest_addr, size_bytes: half, user_addr: guest_addr, file_offset };
        memory.add(&text, &file).unwrap();
    }
    let write = |at: u64, bytes: &[u8]| {
        if let Some(span) = memory.span(at, bytes.len() as u32) {
            memory.write(&span, bytes);
        }
    };
    for (place, (addr, length, flags, next)) in input.descriptors.iter().take(SIZE.into()).enumerate() {
        let words = [&u64::from(*addr >> 8).to_le_bytes()[..], &u32::from(*length).to_le_bytes()].concat();
        let (flags, next) = (u16::from(flags % 8), u16::from(next % 20));
        let rest = [flags, next].map(u16::to_le_bytes).concat();
        write(place as u64 * 16, &[words, rest].concat());
    }
    write(1024, &input.bytes);
    let kind = u32::from(input.kind % 16).to_le_bytes();
    write(4096, &[&kind[..], &[0; 4], &u64::from(input.sector).to_le_bytes()].concat());
    let table = memory.area(0, usize::from(SIZE) * wire::DESCRIPTOR_BYTES, 16).unwrap();
    let mut chain = Chain::default();
    if chain.read(&memory, &table, SIZE, input.head.into(), input.has_indirect).is_err() {
        return;
    }
    let Ok((status, asked)) = disk.ask(&memory, &mut chain) else { return };
    assert_eq!(memory.span(status.guest_addr, 1), Some(status));
    for span in chain.readable.iter().chain(&chain.writable) {
        let last = span.guest_addr + u64::from(span.length_bytes) - 1;
        assert!(memory.span(last, 1).is_some(), "{span:?} leaves the memory");
    }
    let Ok(DiskRequest::Io { op, offset_bytes, length_bytes }) = asked else { return };
    for range in &chain.ranges {
        assert!(range.offset_bytes >= OFFSET_BYTES && range.length_bytes > 0);
        assert!(range.offset_bytes + range.length_bytes <= OFFSET_BYTES + export.size_bytes);
    }
    match op {
        Op::Read => assert_eq!(length_bytes, chain::length_bytes(&chain.writable)),
        Op::Write => assert_eq!(length_bytes + 16, chain::length_bytes(&chain.readable)),
        _ => {}
    }
    assert!(op == Op::Flush || offset_bytes >= OFFSET_BYTES);
    assert!(op == Op::Flush || offset_bytes + length_bytes <= OFFSET_BYTES + export.size_bytes);
    assert!((offset_bytes | length_bytes) % u64::from(block_bytes) == 0);
    assert!(!input.read_only || matches!(op, Op::Read | Op::Flush));
});
