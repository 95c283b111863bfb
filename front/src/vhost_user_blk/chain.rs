//! A chain of descriptors: which memory does one request lend, to read and to write?
//!
//! Source: VIRTIO 1.2, sections 2.7.4 to 2.7.6. Every descriptor is copied once and judged by the copy. A guest that
//! changes it meanwhile gets one of the two.
//!
//! ```text
//!   head ─▶ readable … ─▶ writable … ─▶ end          or, as the last of them,  ─▶ indirect ─▶ a table with the rest
//! ```

use super::disk::Range;
use super::guest::{Area, GuestMemory, Span};
use super::rule::Rule;
use super::wire::{
    DESCRIPTOR_BYTES, DESCRIPTOR_INDIRECT, DESCRIPTOR_NEXT, DESCRIPTOR_WRITE, QUEUE_SIZE_MAX, REQUEST_HEADER_BYTES,
};

/// Descriptors of one chain, at most: as many as a queue may have entries, which VIRTIO says as well.
const DESCRIPTORS_MAX: u32 = QUEUE_SIZE_MAX as u32;

/// The memory of one request. Used again for the next one.
#[derive(Debug, Default)]
pub struct Chain {
    /// Memory that the device reads, in order; neighbours are joined.
    pub readable: Vec<Span>,
    /// Memory that the device writes.
    pub writable: Vec<Span>,
    /// Ranges of a discard or zeroing after the first, the last of them first.
    pub ranges: Vec<Range>,
    /// Descriptors that were read for it, whether or not it broke a rule.
    pub descriptors: u32,
    /// The region of memory in which the last one's was: the next one's is there more often than not.
    near: usize,
}

/// One descriptor, copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The guest's address.
    pub guest_addr: u64,
    /// Length of its memory.
    pub length_bytes: u32,
    /// Flags as the guest wrote them.
    pub flags: u16,
    /// The next descriptor's place.
    pub next: u16,
}

impl Descriptor {
    /// From its two words, as they stand in memory.
    fn of_words(words: [u64; 2]) -> Descriptor {
        let [guest_addr, rest] = words.map(u64::from_le);
        let (length_bytes, flags, next) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        Descriptor { guest_addr, length_bytes, flags, next }
    }

    fn read(bytes: &[u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let (addr, rest) = bytes.split_first_chunk().expect("16 bytes");
        let (length, rest) = rest.split_first_chunk().expect("8 bytes");
        let (flags, next) = rest.split_first_chunk().expect("4 bytes");
        Descriptor {
            guest_addr: u64::from_le_bytes(*addr),
            length_bytes: u32::from_le_bytes(*length),
            flags: u16::from_le_bytes(*flags),
            next: u16::from_le_bytes([next[0], next[1]]),
        }
    }
}

/// Source of descriptors.
enum Table<'a> {
    Queue(&'a Area),
    Indirect(Span),
}

impl Chain {
    /// Reads the chain that begins with `head` of the table of `size` descriptors. `has_indirect`: those were
    /// negotiated.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn read(
        &mut self,
        memory: &GuestMemory,
        table: &Area,
        size: u16,
        head: u16,
        has_indirect: bool,
    ) -> Result<(), Rule> {
        self.clear();
        let (mut table, mut size, mut next) = (Table::Queue(table), u32::from(size), u32::from(head));
        for number in 0..DESCRIPTORS_MAX {
            self.descriptors = number + 1;
            if next >= size {
                return Err(Rule::BadHead);
            }
            let descriptor = table.descriptor(memory, next);
            let Descriptor { guest_addr, length_bytes, flags, .. } = descriptor;
            if flags & DESCRIPTOR_INDIRECT != 0 {
                let is_first = matches!(table, Table::Queue(_));
                let entries = indirect_entries(length_bytes)
                    .filter(|_| has_indirect && is_first && flags & DESCRIPTOR_NEXT == 0)
                    .ok_or(Rule::BadIndirect)?;
                let span = memory.span(guest_addr, length_bytes).ok_or(Rule::BadDescriptorAddress)?;
                (table, size, next) = (Table::Indirect(span), entries, 0);
                continue;
            }
            self.add(memory, &descriptor)?;
            if flags & DESCRIPTOR_NEXT == 0 {
                return Ok(());
            }
            next = u32::from(descriptor.next);
        }
        Err(Rule::ChainTooLong)
    }

    fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.ranges.clear();
        self.descriptors = 0;
    }

    fn add(&mut self, memory: &GuestMemory, descriptor: &Descriptor) -> Result<(), Rule> {
        let &Descriptor { guest_addr, length_bytes, flags, .. } = descriptor;
        // SeaBIOS sends data of no bytes.
        if length_bytes == 0 {
            return Ok(());
        }
        let span = memory.span_near(&mut self.near, guest_addr, length_bytes).ok_or(Rule::BadDescriptorAddress)?;
        self.append(span, flags & DESCRIPTOR_WRITE != 0)
    }

    fn append(&mut self, span: Span, is_writable: bool) -> Result<(), Rule> {
        if !is_writable && !self.writable.is_empty() {
            return Err(Rule::OutOfOrder);
        }
        let spans = if is_writable { &mut self.writable } else { &mut self.readable };
        // The header is read on its own: data are seldom its neighbours, and shall begin with a span of their own.
        let is_header = !is_writable && spans.len() == 1 && spans[0].length_bytes as usize == REQUEST_HEADER_BYTES;
        if is_header || !spans.last_mut().is_some_and(|last| last.join(&span)) {
            spans.push(span);
        }
        Ok(())
    }
}

/// Descriptors of an indirect table so long, if it is whole and not too long.
fn indirect_entries(length_bytes: u32) -> Option<u32> {
    let entries = length_bytes / DESCRIPTOR_BYTES as u32;
    let is_whole = length_bytes.is_multiple_of(DESCRIPTOR_BYTES as u32);
    (is_whole && (1..=DESCRIPTORS_MAX).contains(&entries)).then_some(entries)
}

impl Table<'_> {
    /// Its descriptor `number`, which is inside.
    fn descriptor(&self, memory: &GuestMemory, number: u32) -> Descriptor {
        let at = number as usize * DESCRIPTOR_BYTES;
        let (memory, offset) = match self {
            // Inside: the area is as long as the table.
            Table::Queue(area) => (&area.memory, area.offset + at),
            Table::Indirect(span) => memory.memory(&span.part(at as u32, DESCRIPTOR_BYTES as u32)),
        };
        if let Some(words) = memory.words(offset) {
            return Descriptor::of_words(words);
        }
        // An indirect table that a guest has put at an odd address.
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let _ = memory.copy_to(offset, &mut bytes);
        Descriptor::read(&bytes)
    }
}

/// Bytes of `spans` together.
pub fn length_bytes(spans: &[Span]) -> u64 {
    spans.iter().map(|span| u64::from(span.length_bytes)).sum()
}

/// Copies the bytes of `spans` from byte `at` on into `bytes`, which they have.
pub fn copy_to(memory: &GuestMemory, spans: &[Span], at: u32, bytes: &mut [u8]) {
    for_each_part(spans, at, bytes.len(), |span, from| {
        memory.read(&span, &mut bytes[from..from + span.length_bytes as usize]);
    });
}

/// Copies `bytes` to byte `at` of `spans`, which have room for them.
pub fn copy_from(memory: &GuestMemory, spans: &[Span], at: u32, bytes: &[u8]) {
    for_each_part(spans, at, bytes.len(), |span, from| {
        memory.write(&span, &bytes[from..from + span.length_bytes as usize]);
    });
}

/// Calls `each` with each part of the `length` bytes from `at` on, and where in them it begins.
pub fn for_each_part(spans: &[Span], at: u32, length: usize, mut each: impl FnMut(Span, usize)) {
    let (mut skip, mut done) = (at, 0);
    for span in spans {
        if skip >= span.length_bytes {
            skip -= span.length_bytes;
            continue;
        }
        if done == length {
            return;
        }
        let part = span.part(skip, (span.length_bytes - skip).min((length - done) as u32));
        skip = 0;
        each(part, done);
        done += part.length_bytes as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::tests::{queue, write};
    use super::*;

    fn descriptor(addr: u64, length: u32, flags: u16, next: u16) -> Vec<u8> {
        [&addr.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
    }

    const NEXT: u16 = DESCRIPTOR_NEXT;
    const WRITE: u16 = DESCRIPTOR_WRITE;
    const INDIRECT: u16 = DESCRIPTOR_INDIRECT;

    /// Reads a chain of head 0, of a table of 4 and of what lies at 0x10000.
    fn read(table: &[Vec<u8>], indirect: &[Vec<u8>], has_indirect: bool) -> Result<Chain, Rule> {
        let (memory, ring) = queue(4, false);
        write(&memory, 0, &table.concat());
        if !indirect.is_empty() {
            write(&memory, 0x10000, &indirect.concat());
        }
        let mut chain = Chain::default();
        chain.read(&memory, ring.descriptors(), 4, 0, has_indirect).map(|()| chain)
    }

    fn spans(spans: &[Span]) -> Vec<(u64, u32)> {
        spans.iter().map(|span| (span.guest_addr, span.length_bytes)).collect()
    }

    #[test]
    fn a_chain_is_followed_and_neighbours_are_joined() {
        let chain = read(
            &[
                descriptor(0x20000, 16, NEXT, 2),
                descriptor(0x22000, 1, WRITE, 0),
                descriptor(0x20010, 4096, NEXT, 3),
                descriptor(0x21010, 512, NEXT, 1),
            ],
            &[],
            false,
        )
        .unwrap();
        assert_eq!(spans(&chain.readable), [(0x20000, 16), (0x20010, 4608)]);
        assert_eq!(spans(&chain.writable), [(0x22000, 1)]);
    }

    #[test]
    fn a_descriptor_is_the_same_by_words_and_by_bytes() {
        let words = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718u64];
        let bytes = words.map(u64::to_ne_bytes).concat().try_into().unwrap();
        assert_eq!(Descriptor::of_words(words), Descriptor::read(&bytes));
        // A table at an odd address.
        let rest = [descriptor(0x30000, 4096, WRITE | NEXT, 1), descriptor(0x31000, 1, WRITE, 0)].concat();
        let (memory, ring) = queue(4, false);
        write(&memory, 0, &descriptor(0x10003, 32, INDIRECT, 0));
        write(&memory, 0x10003, &rest);
        let mut chain = Chain::default();
        chain.read(&memory, ring.descriptors(), 4, 0, true).unwrap();
        assert_eq!(spans(&chain.writable), [(0x30000, 4097)]);
    }

    #[test]
    fn a_chain_that_is_read_again_has_nothing_of_the_one_before() {
        let (memory, ring) = queue(4, false);
        let table = [
            descriptor(0x20000, 16, NEXT, 1),
            descriptor(0x22000, 1, WRITE, 0),
            descriptor(0x30000, 32, NEXT, 3),
            descriptor(0x31000, 2, WRITE, 0),
        ];
        write(&memory, 0, &table.concat());
        let mut chain = Chain::default();
        for (head, readable, writable) in [(0, (0x20000, 16), (0x22000, 1)), (2, (0x30000, 32), (0x31000, 2))] {
            chain.read(&memory, ring.descriptors(), 4, head, false).unwrap();
            assert_eq!((spans(&chain.readable), spans(&chain.writable)), (vec![readable], vec![writable]));
            assert_eq!((chain.ranges.len(), chain.descriptors), (0, 2));
            // Ranges of a request that was refused amid them stay behind.
            chain.ranges.push(Range { op: mqfq_blk::request::Op::Discard, offset_bytes: 0, length_bytes: 512 });
        }
    }

    #[test]
    fn a_descriptor_of_nothing_adds_nothing() {
        let nothing = [descriptor(u64::MAX, 0, NEXT | WRITE, 1), descriptor(0x20000, 1, 0, 0)];
        let chain = read(&nothing, &[], false).unwrap();
        assert_eq!((spans(&chain.readable), chain.writable.len()), (vec![(0x20000, 1)], 0));
    }

    #[test]
    fn an_indirect_table_may_stand_alone_or_last() {
        let rest = [descriptor(0x30000, 4096, WRITE | NEXT, 1), descriptor(0x31000, 1, WRITE, 0)];
        let alone = read(&[descriptor(0x10000, 32, INDIRECT, 0)], &rest, true).unwrap();
        assert_eq!(spans(&alone.writable), [(0x30000, 4097)]);
        let last = [descriptor(0x20000, 16, NEXT, 1), descriptor(0x10000, 32, INDIRECT, 0)];
        let last = read(&last, &rest, true).unwrap();
        assert_eq!((last.readable.len(), length_bytes(&last.writable)), (1, 4097));
    }

    #[test]
    fn what_a_hostile_guest_writes_is_refused_by_name() {
        let fine = descriptor(0x20000, 16, 0, 0);
        for (table, rest, rule) in [
            (vec![descriptor(0x20000, 16, NEXT, 0)], vec![], Rule::ChainTooLong),
            (vec![descriptor(0x20000, 16, NEXT, 1), descriptor(0x20000, 16, NEXT, 0)], vec![], Rule::ChainTooLong),
            (vec![descriptor(0x20000, 16, NEXT, 4)], vec![], Rule::BadHead),
            (vec![descriptor(1 << 20, 16, 0, 0)], vec![], Rule::BadDescriptorAddress),
            (vec![descriptor((1 << 20) - 8, 16, 0, 0)], vec![], Rule::BadDescriptorAddress),
            (vec![descriptor(u64::MAX - 7, 16, 0, 0)], vec![], Rule::BadDescriptorAddress),
            (vec![descriptor(0x20000, u32::MAX, 0, 0)], vec![], Rule::BadDescriptorAddress),
            (vec![descriptor(0x20000, 1, WRITE | NEXT, 1), fine.clone()], vec![], Rule::OutOfOrder),
            (vec![descriptor(0x10000, 16, INDIRECT | NEXT, 1)], vec![], Rule::BadIndirect),
            (vec![descriptor(0x10000, 0, INDIRECT, 1)], vec![], Rule::BadIndirect),
            (vec![descriptor(0x10000, 17, INDIRECT, 1)], vec![], Rule::BadIndirect),
            (vec![descriptor(0x10000, 16 * 1025, INDIRECT, 1)], vec![], Rule::BadIndirect),
            (vec![descriptor(1 << 20, 16, INDIRECT, 1)], vec![], Rule::BadDescriptorAddress),
            (vec![descriptor(0x10000, 16, INDIRECT, 0)], vec![descriptor(0x10000, 16, INDIRECT, 0)], Rule::BadIndirect),
            (vec![descriptor(0x10000, 16, INDIRECT, 0)], vec![descriptor(0x20000, 8, NEXT, 1)], Rule::BadHead),
            (vec![descriptor(0x10000, 16, INDIRECT, 0)], vec![descriptor(0x20000, 8, NEXT, 0)], Rule::ChainTooLong),
        ] {
            assert_eq!(read(&table, &rest, true).err(), Some(rule), "{rule:?}");
        }
        let not_negotiated = read(&[descriptor(0x10000, 16, INDIRECT, 0)], &[fine], false);
        assert_eq!(not_negotiated.err(), Some(Rule::BadIndirect));
    }

    #[test]
    fn bytes_are_copied_across_spans() {
        let (memory, _) = queue(4, false);
        let spans = [memory.span(0x20000, 3).unwrap(), memory.span(0x30000, 5).unwrap()];
        copy_from(&memory, &spans, 2, b"abcde");
        let mut back = [0; 8];
        copy_to(&memory, &spans, 0, &mut back);
        assert_eq!(&back, b"\0\0abcde\0");
        let mut part = [0; 2];
        copy_to(&memory, &spans, 4, &mut part);
        assert_eq!(&part, b"cd");
        let parts = |at, length| {
            let mut all = Vec::new();
            for_each_part(&spans, at, length, |span, from| all.push((span.guest_addr, span.length_bytes, from)));
            all
        };
        assert_eq!(parts(0, 3), [(0x20000, 3, 0)], "none is empty");
        assert_eq!(parts(3, 5), [(0x30000, 5, 0)]);
        assert_eq!(parts(2, 2), [(0x20002, 1, 0), (0x30000, 1, 1)]);
        assert_eq!(parts(7, 1), [(0x30004, 1, 0)]);
    }
}
