//! How much of this process's address space may guests take? A file costs its owner nothing until it is written, so a
//! front-end may offer one of 128 TiB: all that a process can map.
//!
//! | | one guest | all guests | and in any case, one guest |
//! |---|---|---|---|
//! | bytes | 16 TiB | 64 TiB | 256 GiB, while all have less than 96 TiB |
//! | mappings | 160 | 16,384 | 16, while all have fewer than 24,576 |
//!
//! A table of regions takes the place of another that is still mapped, so a guest has 8 TiB of memory at most. An
//! address space has 128 TiB, and a process 65,530 mappings unless `vm.max_map_count` says otherwise: what is left is
//! the server's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bounds on mapped memory.
#[derive(Clone, Copy)]
struct Bound {
    guest: u64,
    all: u64,
    /// Beyond `all` a guest may have so much.
    least: u64,
    /// As long as all have no more than this.
    all_least: u64,
}

const BYTES: Bound = Bound { guest: 16 << 40, all: 64 << 40, least: 256 << 30, all_least: 96 << 40 };
const MAPPINGS: Bound = Bound { guest: 160, all: 16_384, least: 16, all_least: 24_576 };

/// Sum of the bytes held.
#[derive(Debug, Default)]
struct Sum {
    bytes: AtomicU64,
    mappings: AtomicU64,
}

/// Sum of all guests.
static ALL: Sum = Sum { bytes: AtomicU64::new(0), mappings: AtomicU64::new(0) };

/// Memory that one guest has mapped.
#[derive(Debug, Default)]
pub struct Mapped(Sum);

/// A part of the address space; given back when it is dropped.
#[derive(Debug)]
pub struct Lease {
    guest: Arc<Mapped>,
    bytes: u64,
}

impl Bound {
    fn admits(self, guest: u64, all: u64) -> bool {
        guest <= self.guest && (all <= self.all || (guest <= self.least && all <= self.all_least))
    }
}

impl Sum {
    /// Counts a mapping more. Bytes and mappings with it.
    fn add(&self, bytes: u64) -> [u64; 2] {
        // Relaxed, all: counts, by which no memory is published. Each judges by its own step.
        [self.bytes.fetch_add(bytes, Relaxed) + bytes, self.mappings.fetch_add(1, Relaxed) + 1]
    }

    fn subtract(&self, bytes: u64) {
        // Relaxed, both: counts.
        self.bytes.fetch_sub(bytes, Relaxed);
        self.mappings.fetch_sub(1, Relaxed);
    }
}

impl Mapped {
    /// A lease of a mapping of `bytes`. `None`: the guest, or all guests together, have too much.
    pub fn lease(self: &Arc<Mapped>, bytes: u64) -> Option<Lease> {
        // No sum wraps: 2^32 guests would have to ask at once.
        if bytes > BYTES.guest {
            return None;
        }
        let ([guest_bytes, guest_mappings], [all_bytes, all_mappings]) = (self.0.add(bytes), ALL.add(bytes));
        // Dropped if it is not to be.
        let lease = Lease { guest: self.clone(), bytes };
        let fits = BYTES.admits(guest_bytes, all_bytes) && MAPPINGS.admits(guest_mappings, all_mappings);
        fits.then_some(lease)
    }

    /// Bytes that all guests of this process have mapped.
    pub fn all_bytes() -> u64 {
        // Relaxed: a count.
        ALL.bytes.load(Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.guest.0.subtract(self.bytes);
        ALL.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_guests_and_that_of_all_and_leaves_each_guest_its_least() {
        let tib = 1 << 40;
        for (guest, all, expected) in [
            (16 * tib, 64 * tib, true),
            (16 * tib + 1, 20 * tib, false),
            (tib, 64 * tib + 1, false),
            (256 << 30, 64 * tib + 1, true),
            (256 << 30, 96 * tib, true),
            (256 << 30, 96 * tib + 1, false),
        ] {
            assert_eq!(BYTES.admits(guest, all), expected, "{guest} of {all}");
        }
        assert!(MAPPINGS.admits(160, 16_384) && !MAPPINGS.admits(161, 161) && MAPPINGS.admits(16, 16_385));
    }

    #[test]
    fn a_guest_that_has_all_it_may_gets_no_more_until_it_gives_something_back() {
        let guest = Arc::new(Mapped::default());
        let most = guest.lease(15 << 40).unwrap();
        let rest = guest.lease(1 << 40).unwrap();
        assert!(guest.lease(1).is_none() && guest.lease(u64::MAX).is_none());
        assert!(Arc::new(Mapped::default()).lease(1).is_some(), "another guest has its own");
        drop(rest);
        let small: Vec<Lease> = (0..159).map(|_| guest.lease(4096).unwrap()).collect();
        assert!(guest.lease(4096).is_none(), "the mappings are counted as well");
        drop((most, small));
        assert_eq!((guest.0.bytes.load(Relaxed), guest.0.mappings.load(Relaxed)), (0, 0));
    }
}
