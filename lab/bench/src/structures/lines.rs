//! How many cache lines move? Counted, on a machine that exists only here.
//!
//! The structures run with atomics that write down each access ([`mqfq_sched_watched::watched`]), one worker's
//! operation after the other on one thread, and each access is looked up in the simulator's directory of the copies of
//! its line ([`mqfq_sim::coherence`]), without its times.
//!
//! # What is not counted
//! Retries: no operation is interrupted by another. Lines that are only ever read (the tree's shape): every worker has
//! a copy. Where a copy comes from: a transfer within a core and one between sockets count the same. ([`Copies`] has
//! the previous holders; [`crate::transfers`] makes distances of that.)

use mqfq_sched_watched::watched::{Access, Kind};
use mqfq_sim::coherence::{self, Need};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Most workers of a directory: one bit each.
pub const WORKERS_MAX: usize = 128;

/// Copies of lines, by worker.
pub struct Copies(coherence::Copies);

impl Default for Copies {
    fn default() -> Copies {
        Copies(coherence::Copies::new(WORKERS_MAX))
    }
}

impl Copies {
    /// `worker` makes an access. If its line had to move, returns the other workers that had a copy: one bit per
    /// worker, none for a line that came from memory. `None` if it could be made at once; a fence always can.
    pub fn access(&mut self, worker: usize, access: &Access) -> Option<u128> {
        assert!(worker < WORKERS_MAX, "worker {worker} of a directory of {WORKERS_MAX}");
        if access.kind == Kind::Fence {
            return None;
        }
        let line = self.0.line(access);
        if self.0.need(worker, line, access.kind) == Need::Hit {
            return None;
        }
        let holders = self.0.holders(line).iter().rev().fold(0, |all, &word| all << 64 | u128::from(word));
        self.0.moved(worker, line, access.kind);
        Some(holders & !(1 << worker))
    }
}

/// The number of the line that an access is to.
pub fn line_of(access: &Access) -> usize {
    access.line()
}

/// Mean cost of an operation, in steps that do not depend on a clock.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// Loads.
    pub loads_per_operation: f64,
    /// Plain stores.
    pub stores_per_operation: f64,
    /// Atomic read-modify-writes, failed compare-and-exchanges included.
    pub read_modify_writes_per_operation: f64,
    /// Read-modify-writes on a line of which others had a copy.
    pub shared_read_modify_writes_per_operation: f64,
    /// Fences.
    pub fences_per_operation: f64,
    /// Different lines that an operation touches.
    pub lines_touched_per_operation: f64,
    /// Different lines that it writes.
    pub lines_written_per_operation: f64,
    /// Lines that had to come from another worker, or be taken from others, before the access could be made.
    pub line_transfers_per_operation: f64,
    /// How often the one line that is taken from others most often, to be written, is taken. Copies can be read by many
    /// at once, but a line that is written goes from hand to hand: however many workers there are, they do no more
    /// operations per second than that line can change hands, divided by this number.
    pub busiest_line_taken_per_operation: f64,
}

/// Copies of lines by worker, and the counts so far.
#[derive(Default)]
pub struct Directory {
    copies: Copies,
    /// How often each line was taken to be written in operations that were counted.
    taken: HashMap<usize, u64>,
    operations: u64,
    loads: u64,
    stores: u64,
    read_modify_writes: u64,
    shared_read_modify_writes: u64,
    fences: u64,
    touched: u64,
    written: u64,
    transfers: u64,
    /// Kept from call to call, for their room.
    touched_now: Vec<usize>,
    written_now: Vec<usize>,
}

fn different(lines: &mut Vec<usize>) -> u64 {
    lines.sort_unstable();
    lines.dedup();
    lines.len() as u64
}

impl Directory {
    /// Takes accesses of `worker` into the copies, without counting them.
    pub fn see(&mut self, worker: usize, accesses: &[Access]) {
        for access in accesses {
            self.copies.access(worker, access);
        }
    }

    /// Counts accesses of `worker` as part of an operation.
    pub fn count(&mut self, worker: usize, accesses: &[Access]) {
        self.touched_now.clear();
        self.written_now.clear();
        for access in accesses {
            let line = line_of(access);
            let moved = self.copies.access(worker, access).is_some();
            self.transfers += u64::from(moved);
            if moved && access.kind != Kind::Load {
                *self.taken.entry(line).or_default() += 1;
            }
            match access.kind {
                // Only under a lock, without other workers: the cost is the line.
                Kind::Load | Kind::Touch => self.loads += 1,
                Kind::Store => self.stores += 1,
                Kind::ReadModifyWrite | Kind::Lock | Kind::Unlock => {
                    self.read_modify_writes += 1;
                    self.shared_read_modify_writes += u64::from(moved);
                }
                Kind::Fence => {
                    self.fences += 1;
                    continue;
                }
            }
            self.touched_now.push(line);
            if access.kind != Kind::Load {
                self.written_now.push(line);
            }
        }
        self.touched += different(&mut self.touched_now);
        self.written += different(&mut self.written_now);
    }

    /// An operation ends.
    pub fn end_operation(&mut self) {
        self.operations += 1;
    }

    /// The average over all operations.
    pub fn counted(&self) -> Counted {
        let per_operation = |count: u64| count as f64 / self.operations.max(1) as f64;
        Counted {
            loads_per_operation: per_operation(self.loads),
            stores_per_operation: per_operation(self.stores),
            read_modify_writes_per_operation: per_operation(self.read_modify_writes),
            shared_read_modify_writes_per_operation: per_operation(self.shared_read_modify_writes),
            fences_per_operation: per_operation(self.fences),
            lines_touched_per_operation: per_operation(self.touched),
            lines_written_per_operation: per_operation(self.written),
            line_transfers_per_operation: per_operation(self.transfers),
            busiest_line_taken_per_operation: per_operation(self.taken.values().copied().max().unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(kind: Kind, address: usize) -> Access {
        Access { kind, address, lock_bytes: 0 }
    }

    #[test]
    fn many_may_read_and_who_writes_is_alone() {
        let mut copies = Copies::default();
        let cases = [
            (0, Kind::Load, Some(0), "nobody had it"),
            (0, Kind::Store, None, "alone with it"),
            (1, Kind::Load, Some(0b1), "worker 0 had it"),
            (0, Kind::Load, None, "it kept its copy"),
            (0, Kind::ReadModifyWrite, Some(0b10), "worker 1 has a copy"),
            (0, Kind::ReadModifyWrite, None, "no more"),
            (1, Kind::Store, Some(0b1), "worker 0 has it"),
            (1, Kind::Fence, None, "a fence has no line"),
        ];
        for (worker, kind, moves, why) in cases {
            assert_eq!(copies.access(worker, &access(kind, 640)), moves, "{why}");
        }
    }

    #[test]
    fn words_of_one_line_count_once_and_fences_not_at_all() {
        let mut lines = Directory::default();
        let operation = [
            access(Kind::Load, 128),
            access(Kind::ReadModifyWrite, 136),
            access(Kind::Fence, 0),
            access(Kind::Load, 192),
        ];
        lines.see(1, &operation);
        lines.count(0, &operation);
        lines.end_operation();
        let counted = lines.counted();
        assert_eq!((counted.loads_per_operation, counted.fences_per_operation), (2.0, 1.0));
        assert_eq!((counted.lines_touched_per_operation, counted.lines_written_per_operation), (2.0, 1.0));
        // To read the first, to write it, to read the second.
        assert_eq!(counted.line_transfers_per_operation, 3.0);
        assert_eq!(counted.busiest_line_taken_per_operation, 1.0, "the first, to be written");
        assert_eq!(counted.shared_read_modify_writes_per_operation, 1.0);
    }
}
