//! Counters and latency histograms, per flow and per hctx, owned by the worker that writes them.
//!
//! No atomics: a reader asks each worker for a copy and merges. Latencies name both ends (GLOSSARY.md): `queued_ns`
//! submitted to dispatched, `device_ns` dispatched to reaped, `total_ns` submitted to completed. Two significant
//! digits: a reported latency is at most 1% off.
//!
//! Time is read once per turn of a worker's loop, so requests that were dispatched and reaped in one batch have the
//! same latencies to the nanosecond. A run of equal ones is counted and goes into the histograms as one entry: finding
//! a place in three of them costs more than all else that is done at a completion. [`FlowStats::settle`] ends a run.

use crate::request::{Completion, Op, Status};
use hdrhistogram::Histogram;

/// Longest latency told apart, ns (100 s); longer ones count as this.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// What one flow (or one hctx) has done.
#[derive(Clone, Debug)]
pub struct FlowStats {
    /// Requests completed, by operation: read, write, flush, discard, write zeroes.
    pub completed: [u64; Op::COUNT],
    /// Time from submission to completion of all of them together, ns, by operation.
    pub total_ns_sum: [u64; Op::COUNT],
    /// Bytes asked for in requests that ended well, by operation; a flush has none.
    pub bytes: [u64; Op::COUNT],
    /// Of those, requests that ended with an error.
    pub failed: u64,
    /// Submitted to dispatched.
    pub queued_ns: Histogram<u64>,
    /// Dispatched to reaped.
    pub device_ns: Histogram<u64>,
    /// Submitted to completed.
    pub total_ns: Histogram<u64>,
    /// The last completions, all of the same latencies, not yet in the histograms.
    run: Run,
}

/// So many completions that were queued and on the device equally long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Run {
    queued_ns: u64,
    device_ns: u64,
    count: u64,
}

impl Default for FlowStats {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("bounds 1..100 s, 2 digits");
        FlowStats {
            completed: [0; Op::COUNT],
            total_ns_sum: [0; Op::COUNT],
            bytes: [0; Op::COUNT],
            failed: 0,
            queued_ns: histogram(),
            device_ns: histogram(),
            total_ns: histogram(),
            run: Run::default(),
        }
    }
}

impl FlowStats {
    /// Counts one completion.
    #[inline]
    pub fn record(&mut self, completion: &Completion) {
        let &Completion { op, status, length_bytes, queued_ns, device_ns, .. } = completion;
        self.count(op, status, length_bytes, queued_ns, device_ns);
    }

    /// The same, by what is counted of it.
    #[inline(always)]
    pub(crate) fn count(&mut self, op: Op, status: Status, length_bytes: u32, queued_ns: u64, device_ns: u64) {
        let index = op.index();
        self.completed[index] += 1;
        self.total_ns_sum[index] += queued_ns + device_ns;
        if status == Status::Ok {
            self.bytes[index] += u64::from(length_bytes);
        } else {
            self.failed += 1;
        }
        if (queued_ns, device_ns) != (self.run.queued_ns, self.run.device_ns) {
            self.begin_run(queued_ns, device_ns);
        }
        self.run.count += 1;
    }

    #[inline(never)]
    fn begin_run(&mut self, queued_ns: u64, device_ns: u64) {
        self.settle();
        self.run = Run { queued_ns, device_ns, count: 0 };
    }

    /// Puts the completions counted last into the histograms. Call before reading those.
    pub fn settle(&mut self) {
        let Run { queued_ns, device_ns, count } = std::mem::take(&mut self.run);
        if count > 0 {
            self.queued_ns.saturating_record_n(queued_ns, count);
            self.device_ns.saturating_record_n(device_ns, count);
            self.total_ns.saturating_record_n(queued_ns + device_ns, count);
        }
    }

    /// Adds another worker's counts, which are settled.
    pub fn merge(&mut self, other: &FlowStats) {
        debug_assert_eq!(other.run.count, 0, "counts that are merged are settled");
        for (mine, theirs) in [
            (&mut self.completed, other.completed),
            (&mut self.total_ns_sum, other.total_ns_sum),
            (&mut self.bytes, other.bytes),
        ] {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
        self.failed += other.failed;
        for (mine, theirs) in [
            (&mut self.queued_ns, &other.queued_ns),
            (&mut self.device_ns, &other.device_ns),
            (&mut self.total_ns, &other.total_ns),
        ] {
            mine.add(theirs).expect("histograms of one shape");
        }
    }

    /// Bytes read and written.
    pub fn transferred_bytes(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }

    /// Requests completed, of all kinds.
    pub fn requests(&self) -> u64 {
        self.completed.iter().sum()
    }
}

/// What one hctx has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HctxStats {
    /// Commands on the device now.
    pub in_flight: u64,
    /// Requests in the policy's queue now.
    pub staged: u64,
    /// Time with at least one command on the device, ns.
    pub busy_ns: u64,
    /// Commands on the device times how long they were there, ns: over `busy_ns` it is their mean number.
    pub in_flight_ns: u64,
    /// Requests handed to the device.
    pub dispatched: u64,
    /// Doorbells rung; `dispatched / doorbells` is the batch size.
    pub doorbells: u64,
    /// Times that picking ended because the lead request was more than T ahead.
    pub throttled: u64,
    /// Times that picking ended because the device held D.
    pub no_token: u64,
    /// Times that picking ended because the policy waits for a better request than those staged.
    pub later: u64,
    /// Times that picking ended because nothing was staged.
    pub idle: u64,
    /// Submissions refused because the flow had its bound staged.
    pub refused: u64,
    /// Kicks sent to other workers.
    pub kicks: u64,
    /// Commands handed to the device: fewer than `dispatched` where requests were merged, more where they went again.
    pub commands: u64,
    /// Requests that joined another's command.
    pub merged: u64,
    /// Merged commands that ended badly, so that their requests went alone.
    pub taken_apart: u64,
    /// Requests that went to the device in parts.
    pub split: u64,
    /// Those parts; in `dispatched` and `merged` each counts as a request.
    pub parts: u64,
    /// Commands that were on the device for longer than the timeout.
    pub timeouts: u64,
    /// Of those, commands that the device could be asked to give up.
    pub aborts: u64,
    /// Resets of the device queue, after aborts that did not help.
    pub resets: u64,
    /// Requests that went to the device again after a reset.
    pub replays: u64,
    /// Commands that timed out and that the device neither ended, gave up, nor gave back by a reset. They wait on.
    pub stuck: u64,
    /// Ends that the device reported of commands that it had already given back; ignored.
    pub late_completions: u64,
}

/// Commands in trouble on one device queue, since it was last told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trouble {
    /// As in [`HctxStats::timeouts`].
    pub timeouts: u64,
    /// As in [`HctxStats::resets`].
    pub resets: u64,
    /// As in [`HctxStats::stuck`].
    pub stuck: u64,
}

impl HctxStats {
    /// Adds another worker's counts.
    pub fn merge(&mut self, other: &HctxStats) {
        self.in_flight += other.in_flight;
        self.staged += other.staged;
        self.busy_ns += other.busy_ns;
        self.in_flight_ns += other.in_flight_ns;
        self.dispatched += other.dispatched;
        self.doorbells += other.doorbells;
        self.throttled += other.throttled;
        self.no_token += other.no_token;
        self.later += other.later;
        self.idle += other.idle;
        self.refused += other.refused;
        self.kicks += other.kicks;
        self.commands += other.commands;
        self.merged += other.merged;
        self.taken_apart += other.taken_apart;
        self.split += other.split;
        self.parts += other.parts;
        self.timeouts += other.timeouts;
        self.aborts += other.aborts;
        self.resets += other.resets;
        self.replays += other.replays;
        self.stuck += other.stuck;
        self.late_completions += other.late_completions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_workers_count_together() {
        let completion = Completion {
            cookie: 0,
            status: Status::Ok,
            op: Op::Read,
            length_bytes: 4096,
            buffer: None,
            queued_ns: 1000,
            device_ns: 2000,
        };
        let (mut a, mut b) = (FlowStats::default(), FlowStats::default());
        a.record(&completion);
        b.record(&Completion { status: Status::Io, ..completion });
        b.settle();
        a.merge(&b);
        a.settle();
        assert_eq!((a.requests(), a.failed, a.transferred_bytes(), a.total_ns_sum[0]), (2, 1, 4096, 6000));
        assert_eq!(a.total_ns.len(), 2);
        assert!(a.total_ns.max().abs_diff(3000) <= 30, "1% of 3000");
    }

    #[test]
    fn runs_of_equal_latencies_count_as_each_one_would() {
        let mut stats = FlowStats::default();
        // 3 x (1000, 2000), 1 x (1000, 5000), 2 x (1000, 2000).
        for device_ns in [2000, 2000, 2000, 5000, 2000, 2000] {
            let (status, op) = (Status::Ok, Op::Read);
            stats.record(&Completion {
                cookie: 0,
                status,
                op,
                length_bytes: 1,
                buffer: None,
                queued_ns: 1000,
                device_ns,
            });
        }
        stats.settle();
        stats.settle();
        let counts = |histogram: &Histogram<u64>, ns| histogram.count_at(ns);
        assert_eq!((counts(&stats.device_ns, 2000), counts(&stats.device_ns, 5000)), (5, 1));
        assert_eq!((counts(&stats.total_ns, 3000), counts(&stats.total_ns, 6000)), (5, 1));
        assert_eq!((counts(&stats.queued_ns, 1000), stats.queued_ns.len()), (6, 6));
    }
}
