//! Counters and latencies, per flow and per hctx, as a reader has them.
//!
//! Answers: how many requests, bytes and nanoseconds has a flow, or a context, had until now? The worker's side is
//! `counters.rs`: a reader copies words from there and sums them over the workers. Latencies name both ends
//! (GLOSSARY.md): `queued_ns` submitted to dispatched, `device_ns` dispatched to reaped, `total_ns` submitted to
//! completed. They are in buckets (`latencies.rs`): a reported one is at most 6.25% off.

use crate::latencies::{self, Latencies};
use crate::request::Op;

/// Statistics of one flow (or one hctx).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowStats {
    /// Requests completed, by operation: read, write, flush, discard, write zeroes.
    pub completed: [u64; Op::COUNT],
    /// Time from submission to completion of all of them together, ns, by operation.
    pub total_ns_sum: [u64; Op::COUNT],
    /// Bytes asked for in requests that ended well, by operation; a flush has none.
    pub bytes: [u64; Op::COUNT],
    /// Completed requests that ended with an error.
    pub failed: u64,
    /// Cost charged, bytes-equivalent: service before weight.
    pub cost: u64,
    /// Time with a request under way, ns, up to the last completion. With several workers: the sum of their times.
    pub active_ns: u64,
    /// Time with a request waiting here, ns, up to the last run's dispatch. With several workers: the sum of theirs.
    pub waited_ns: u64,
    /// Requests that waited here for 64 ns or more.
    pub waited: u64,
    /// All times from submission to dispatch together, ns: over an interval, the mean number that waited here.
    pub queued_ns_sum: u64,
    /// All times from dispatch to reap together, ns: over an interval, the mean number on the device.
    pub device_ns_sum: u64,
    /// Time from submission to dispatch.
    pub queued_ns: Latencies,
    /// Time from dispatch to reap.
    pub device_ns: Latencies,
    /// Time from submission to completion.
    pub total_ns: Latencies,
    /// Requests admitted and not completed, as of the last sweep.
    pub under_way: u64,
    /// When the oldest of them was submitted, ns since the engine started.
    pub oldest_ns: Option<u64>,
}

impl FlowStats {
    /// Counts so many requests that were queued and on the device equally long.
    #[expect(clippy::too_many_arguments, reason = "all that is the same of a run")]
    pub(crate) fn count_run(
        &mut self,
        index: usize,
        is_ok: bool,
        length_bytes: u64,
        queued_ns: u64,
        device_ns: u64,
        count: u64,
        with_latencies: bool,
    ) {
        self.completed[index] += count;
        self.total_ns_sum[index] += (queued_ns + device_ns) * count;
        if is_ok {
            self.bytes[index] += length_bytes * count;
        } else {
            self.failed += count;
        }
        self.queued_ns_sum += queued_ns * count;
        self.device_ns_sum += device_ns * count;
        self.waited += if queued_ns >= latencies::UNIT_NS { count } else { 0 };
        if with_latencies {
            self.queued_ns.record_n(queued_ns, count);
            self.device_ns.record_n(device_ns, count);
            self.total_ns.record_n(queued_ns + device_ns, count);
        }
    }

    /// Adds another worker's counts.
    pub fn merge(&mut self, other: &FlowStats) {
        for (mine, theirs) in [
            (&mut self.completed, other.completed),
            (&mut self.total_ns_sum, other.total_ns_sum),
            (&mut self.bytes, other.bytes),
        ] {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
        self.failed += other.failed;
        self.cost += other.cost;
        self.active_ns += other.active_ns;
        self.waited_ns += other.waited_ns;
        self.waited += other.waited;
        self.queued_ns_sum += other.queued_ns_sum;
        self.device_ns_sum += other.device_ns_sum;
        self.queued_ns.add(&other.queued_ns);
        self.device_ns.add(&other.device_ns);
        self.total_ns.add(&other.total_ns);
        self.under_way += other.under_way;
        self.oldest_ns = [self.oldest_ns, other.oldest_ns].into_iter().flatten().min();
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

/// Hands the list of an hctx's counts to a macro, which makes a struct of it: one for its worker, one for readers.
macro_rules! of_hctx {
    ($make:ident) => {
        $make! {
            /// Commands on the device now.
            in_flight,
            /// Requests in the policy's queue now.
            staged,
            /// Time with at least one command on the device, ns.
            busy_ns,
            /// Commands on the device times how long they were there, ns: over `busy_ns` it is their mean number.
            in_flight_ns,
            /// Requests handed to the device.
            dispatched,
            /// Doorbells rung; `dispatched / doorbells` is the batch size.
            doorbells,
            /// Times that picking ended because the lead request was more than T ahead.
            throttled,
            /// Times that picking ended because the device held D.
            no_token,
            /// Times that picking ended because the policy waits for a better request than those staged.
            later,
            /// Times that picking ended because nothing was staged.
            idle,
            /// Submissions refused because the flow had its bound staged.
            refused,
            /// Kicks sent to other workers.
            kicks,
            /// Requests that went to the device in parts.
            split,
            /// Parts of those requests; in `dispatched` each counts as a request.
            parts,
            /// Commands that were on the device for longer than the timeout.
            timeouts,
            /// Timed-out commands that the device could be asked to give up.
            aborts,
            /// Resets of the device queue, after aborts that did not help.
            resets,
            /// Requests that went to the device again after a reset.
            replays,
            /// Commands that timed out and that the device neither ended, gave up, nor gave back by a reset. They wait
            /// on.
            stuck,
            /// Ends that the device reported of commands that it had already given back; ignored.
            late_completions,
            /// Time during which the last pick was throttled, ns.
            throttled_ns,
            /// Time during which the last pick found no token, ns.
            no_token_ns,
            /// Cost of requests completed by flows that are gone, bytes-equivalent.
            gone_cost,
        }
    };
}
pub(crate) use of_hctx;

macro_rules! hctx_stats {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// Statistics of one hctx.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct HctxStats {
            $($(#[doc = $text])* pub $name: u64,)*
        }

        impl HctxStats {
            /// Adds another worker's counts.
            pub fn merge(&mut self, other: &HctxStats) {
                $(self.$name += other.$name;)*
            }
        }
    };
}
of_hctx!(hctx_stats);

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

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn merged_workers_count_together() {
        let (mut a, mut b) = (FlowStats::default(), FlowStats::default());
        a.count_run(0, true, 4096, 1000, 2000, 1, true);
        b.count_run(0, false, 4096, 1000, 2000, 1, true);
        (a.oldest_ns, b.oldest_ns) = (None, Some(7));
        a.merge(&b);
        assert_eq!((a.requests(), a.failed, a.transferred_bytes(), a.total_ns_sum[0]), (2, 1, 4096, 6000));
        assert_eq!((a.queued_ns_sum, a.device_ns_sum, a.oldest_ns), (2000, 4000, Some(7)));
        assert_eq!(a.total_ns.len(), 2);
        assert!(a.total_ns.max_ns().abs_diff(3000) <= 30, "1% of 3000");
    }
}
