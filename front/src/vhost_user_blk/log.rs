//! Pages of the guest that were written, for a live migration.
//!
//! Source: the vhost-user specification, "Migration". A bit for each page of 4 KiB of the guest's addresses, set after
//! the page was written: the front-end clears it before it copies the page.

use super::guest::Span;
use mqfq_blk::foreign::ForeignMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PAGE_BYTES: u64 = 4096;

/// The bits, in memory of the front-end's.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    memory: Arc<ForeignMemory>,
    offset: usize,
    length_bytes: usize,
}

impl DirtyLog {
    /// `length_bytes` of bits from `offset` of the mapping on, which has them.
    pub fn new(memory: Arc<ForeignMemory>, offset: usize, length_bytes: usize) -> DirtyLog {
        DirtyLog { memory, offset, length_bytes }
    }

    /// A span was written.
    pub fn mark(&self, span: &Span) {
        self.mark_range(span.guest_addr, span.length_bytes);
    }

    /// `length_bytes` from the guest's address `from` on were written. Pages beyond the log are not marked.
    pub fn mark_range(&self, from: u64, length_bytes: u32) {
        let last = from.saturating_add(u64::from(length_bytes.max(1)) - 1) / PAGE_BYTES;
        for page in from / PAGE_BYTES..=last {
            let byte = usize::try_from(page / 8).ok().filter(|byte| *byte < self.length_bytes);
            let Some(word) = byte.and_then(|byte| self.memory.atomic_u8(self.offset + byte)) else { return };
            // Release: pairs with the front-end's exchange of the byte, after which it copies the page.
            word.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest::tests::file;
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn every_page_that_was_touched_is_marked_and_no_other() {
        let file = file(4096);
        let memory = ForeignMemory::map(file.as_fd(), 0, 4096).unwrap();
        let log = DirtyLog::new(memory.clone(), 8, 4);
        log.mark_range(4095, 2);
        log.mark_range(9 * 4096, 4096);
        log.mark_range(31 * 4096, 1 << 20);
        log.mark_range(u64::MAX, 1);
        let mut bits = [0; 8];
        assert!(memory.copy_to(6, &mut bits));
        assert_eq!(bits, [0, 0, 0b11, 0b10, 0, 0x80, 0, 0]);
    }
}
