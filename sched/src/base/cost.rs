//! The cost of a request before weight: bytes-equivalent, by operation and length.
//!
//! `cost = base + per_byte * length`, per kind of operation (reads and writes do not cost the same). The flat
//! bytes model of the paper (MQFQ section 4: length of requests advances virtual time) is [`CostModel::FLAT`].
//! Integer arithmetic only; `per_byte` is in 256ths so that "a write costs 2.5 reads" can be said.

/// Service that a request uses, before weight, in bytes-equivalent (one byte of a plain read costs 1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cost(pub u64);

/// The kinds of operation that a cost model tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CostKind {
    /// Read of stored bytes.
    Read,
    /// Write of bytes.
    Write,
    /// Deallocate or write zeroes: no bytes go over the link.
    Discard,
    /// Flush of a volatile cache.
    Flush,
}

/// Cost of one kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostTerm {
    /// Charged once per request, bytes-equivalent.
    pub base_bytes: u64,
    /// Charged per byte of length, in 256ths of a byte-equivalent (256 = one).
    pub per_byte_256ths: u32,
}

/// Cost per kind of operation for one device profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostModel {
    /// Cost of a read.
    pub read: CostTerm,
    /// Cost of a write.
    pub write: CostTerm,
    /// Deallocate.
    pub discard: CostTerm,
    /// Flushes.
    pub flush: CostTerm,
    /// Write zeroes. `None`: as a write, also where that follows the device ([`crate::write_cost`]).
    pub write_zeroes: Option<CostTerm>,
}

impl CostModel {
    /// A byte read or written, or made zero, costs one; a discard or flush costs as much as 4 KiB, because nothing may
    /// be free: a request of cost 0 would let a tenant submit without end at one start tag.
    pub const FLAT: CostModel = CostModel {
        read: CostTerm { base_bytes: 0, per_byte_256ths: 256 },
        write: CostTerm { base_bytes: 0, per_byte_256ths: 256 },
        discard: CostTerm { base_bytes: 4096, per_byte_256ths: 0 },
        flush: CostTerm { base_bytes: 4096, per_byte_256ths: 0 },
        write_zeroes: None,
    };

    /// Cost term of a request of `kind`; [`CostModel::zeroes`] has that of writing zeroes.
    pub const fn term(&self, kind: CostKind) -> CostTerm {
        match kind {
            CostKind::Read => self.read,
            CostKind::Write => self.write,
            CostKind::Discard => self.discard,
            CostKind::Flush => self.flush,
        }
    }

    /// Cost term of writing zeroes, while writes cost as the model says.
    pub const fn zeroes(&self) -> CostTerm {
        match self.write_zeroes {
            Some(term) => term,
            None => self.write,
        }
    }

    /// Cost of a request of `kind` and `length_bytes`; at least 1.
    pub const fn cost(&self, kind: CostKind, length_bytes: u64) -> Cost {
        self.term(kind).cost(length_bytes)
    }
}

impl CostTerm {
    /// Cost of a request of `length_bytes`; at least 1, at most [`COST_MAX`].
    #[inline]
    pub const fn cost(&self, length_bytes: u64) -> Cost {
        // An overflow is more than the largest cost by far.
        let Some(moved) = length_bytes.checked_mul(self.per_byte_256ths as u64) else { return COST_MAX };
        let Some(total) = (moved >> 8).checked_add(self.base_bytes) else { return COST_MAX };
        // 1 to COST_MAX, in one comparison.
        match total.wrapping_sub(1) >> COST_MAX.0.trailing_zeros() {
            0 => Cost(total),
            _ => Cost(if total == 0 { 1 } else { COST_MAX.0 }),
        }
    }
}

/// Largest cost of one request, bytes-equivalent (1 TiB): keeps `cost / weight` far below half the circle at weight 1.
pub const COST_MAX: Cost = Cost(1 << 40);

const _: () = assert!(COST_MAX.0.is_power_of_two());

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_free() {
        assert_eq!(CostModel::FLAT.cost(CostKind::Read, 0), Cost(1));
        assert_eq!(CostModel::FLAT.cost(CostKind::Flush, 0), Cost(4096));
        assert_eq!(CostModel::FLAT.cost(CostKind::Discard, 1 << 40), Cost(4096));
    }

    #[test]
    fn zeroes_cost_as_a_write_unless_the_model_says_otherwise() {
        let dear = CostTerm { base_bytes: 100, per_byte_256ths: 512 };
        assert_eq!(CostModel::FLAT.zeroes().cost(1 << 20), Cost(1 << 20));
        assert_eq!(CostModel { write: dear, ..CostModel::FLAT }.zeroes(), dear);
        let own = CostModel { write: dear, write_zeroes: Some(CostModel::FLAT.discard), ..CostModel::FLAT };
        assert_eq!(own.zeroes().cost(1 << 20), Cost(4096));
    }

    #[test]
    fn a_part_of_a_byte_is_left_out_once_per_request() {
        // 2.5 per byte and 10 for each request: 3 bytes are 17.5; a 256th per byte is 1 from 256 bytes on, and never
        // nothing.
        let model = |base_bytes, per_byte_256ths| CostModel {
            read: CostTerm { base_bytes, per_byte_256ths },
            ..CostModel::FLAT
        };
        let cost = |model: CostModel, length_bytes| model.cost(CostKind::Read, length_bytes).0;
        assert_eq!([2, 3, 4].map(|length_bytes| cost(model(10, 640), length_bytes)), [15, 17, 20]);
        assert_eq!([1, 255, 256, 511, 512].map(|length_bytes| cost(model(0, 1), length_bytes)), [1, 1, 1, 1, 2]);
    }

    #[test]
    fn a_huge_request_saturates_instead_of_wrapping() {
        assert_eq!(CostModel::FLAT.cost(CostKind::Write, u64::MAX), COST_MAX);
        let dear = CostTerm { base_bytes: u64::MAX, per_byte_256ths: 256 };
        assert_eq!((dear.cost(1), dear.cost(COST_MAX.0)), (COST_MAX, COST_MAX));
    }
}
