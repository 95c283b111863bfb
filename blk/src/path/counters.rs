//! Counters that one worker writes and any thread reads, without either of them waiting.
//!
//! Answers: how does a scrape learn what a worker has counted, if it must cost that worker nothing? Each context has a
//! [`Counters`]: words of its own, and words of each flow. Its worker changes a word by a load and a store, which is
//! one instruction on memory and no locked one; a reader takes each word as it finds it.
//!
//! # Runs
//! Time is read once per turn of a worker's loop, so requests that were dispatched and reaped in one batch have the
//! same latencies to the nanosecond, and mostly the same operation and length. Such a *run* is only counted. When
//! another begins ([`FlowCounters::begin_run`]), it goes into the counters and histograms as one entry: finding a place
//! in three of them costs more than all else that is done at a completion. A reader adds the run that is under way.
//!
//! ```text
//!   worker   version odd │ fence │ counters += run │ run = another │ version even     (each run)
//!   reader   version ─▶ counters, run ─▶ fence ─▶ version: the same and even? else again, at most READS_MAX times
//! ```
//! A reader that meets a change each time takes the counters without the run: less than is true, never more.
//!
//! # Memory
//! [`FlowCounters`] is 6.1 KB for each flow on each worker. The words of flows that are known at the start are one
//! zeroed piece, of which the system hands out pages as flows complete something: 10,000 flows of which none is served
//! take address space only, and 61 MB per worker if all are. More flows take further pieces ([`Counters::grow`]).
//!
//! # Invariants
//! B1. A word is written by the worker of its context alone. A flow's goal is written by the worker that steps the
//!     tuning as well, at each step, so one that is lost comes again.
//! B2. A reader never sees more than there was.
//! B3. Words only grow, but for those of the run, and those of a flow that is gone ([`Counters::clear`]).
//!
//! # Orderings
//! Where nothing else is said, every access is Relaxed: each word is right for itself, and late is as good. Atomics of
//! `std`, and not of `mqfq_sched::sync`: no decision hangs on them, so neither a model nor the simulator's charge for
//! shared memory has to see them.

use crate::latencies::{self, BUCKETS, Latencies};
use crate::request::{Op, Status};
use crate::stats::{FlowStats, HctxStats};
use mqfq_sched::flow::FlowId;
use mqfq_sched::goal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Tries of a reader before it does without the run that is under way.
const READS_MAX: usize = 16;

/// Pieces of memory that counters may have: each after the second doubles it.
const PIECES: usize = 21;

/// Flows of the first piece, at least.
const FIRST_FLOWS: usize = 8;

/// A number that one thread writes.
#[derive(Default, Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// The word as a reader on any thread finds it.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }
}

/// Counters of one flow on one context.
// Not aligned to lines: its neighbours are written by the same worker, and memory that is aligned to more than 16 bytes
// is zeroed by writing, page after page.
#[derive(Debug)]
pub struct FlowCounters {
    /// The run's operation, end and length ([`kind_of`]); its latencies; how many; all of its costs.
    run_kind: Word,
    run_queued_ns: Word,
    run_device_ns: Word,
    run_count: Word,
    /// Time with a request under way, ns, and until when it is counted ([`FlowCounters::count`]).
    active_ns: Word,
    active_until_ns: Word,
    /// Time with a request waiting here, ns, and until when it is counted.
    waited_ns: Word,
    waited_until_ns: Word,
    /// Odd while the run goes into the counters.
    version: Word,
    /// Cost of completed requests, bytes-equivalent.
    cost: Word,
    completed: [Word; Op::COUNT],
    total_ns_sum: [Word; Op::COUNT],
    bytes: [Word; Op::COUNT],
    failed: Word,
    queued_ns_sum: Word,
    device_ns_sum: Word,
    queued_ns: Buckets,
    device_ns: Buckets,
    total_ns: Buckets,
    /// The flow's latency goal, ns; 0: none. Written by the worker that steps the tuning, too.
    goal_ns: Word,
    /// Its requests that a goal is about, by time from submission to completion over the goal.
    goal: [Word; goal::BUCKETS],
}

/// Latencies by bucket, and the longest.
#[derive(Debug)]
struct Buckets {
    counts: [Word; BUCKETS],
    max_ns: Word,
}

impl Buckets {
    fn record_n(&self, ns: u64, times: u64) {
        self.counts[latencies::index_of(ns)].add(times);
        if ns > self.max_ns.get() {
            self.max_ns.set(ns);
        }
    }

    fn read(&self, into: &mut Latencies) {
        for (index, count) in self.counts.iter().enumerate() {
            let count = count.get();
            if count > 0 {
                into.put(index, count);
            }
        }
        into.reached(self.max_ns.get());
    }
}

/// Operation, end and length of a run's requests in one word. Never 0.
#[inline(always)]
fn kind_of(op: Op, status: Status, length_bytes: u32) -> u64 {
    u64::from(length_bytes) << 32 | (op.index() as u64) << 8 | (status as u64) << 1 | 1
}

impl FlowCounters {
    /// Counts one completion, at `now_ns`.
    ///
    /// Active time is that of requests which overlap, once. Where a request outlives a later one, the pause before the
    /// later one is not active time, although the first one spans it.
    #[inline(always)]
    pub(crate) fn count(&self, op: Op, status: Status, length_bytes: u32, queued_ns: u64, device_ns: u64, now_ns: u64) {
        let until_ns = self.active_until_ns.get();
        if now_ns > until_ns {
            self.active_ns.add((now_ns - until_ns).min(queued_ns + device_ns));
            self.active_until_ns.set(now_ns);
        }
        let kind = kind_of(op, status, length_bytes);
        if kind != self.run_kind.get() || queued_ns != self.run_queued_ns.get() || device_ns != self.run_device_ns.get()
        {
            self.begin_run(kind, queued_ns, device_ns, now_ns);
        }
        self.run_count.add(1);
    }

    /// The flow was served so much.
    #[inline(always)]
    pub(crate) fn charge(&self, cost: u64) {
        self.cost.add(cost);
    }

    #[inline(never)]
    fn begin_run(&self, kind: u64, queued_ns: u64, device_ns: u64, now_ns: u64) {
        let version = self.version.get();
        self.version.set(version + 1);
        // Release: pairs with the Acquire fence of `read`. A reader that sees a later word sees the odd version.
        fence(Ordering::Release);
        self.end_run();
        if queued_ns > 0 {
            self.wait(queued_ns, now_ns.saturating_sub(device_ns));
        }
        self.run_kind.set(kind);
        self.run_queued_ns.set(queued_ns);
        self.run_device_ns.set(device_ns);
        self.run_count.set(0);
        // Release: pairs with the Acquire load of `read`, which then sees all of the above.
        self.version.0.store(version + 2, Ordering::Release);
    }

    /// A request that waited so long was dispatched at this time. Times that overlap count once, as in
    /// [`FlowCounters::count`]; a run is as long as its first request.
    fn wait(&self, queued_ns: u64, dispatched_ns: u64) {
        let until_ns = self.waited_until_ns.get();
        if dispatched_ns > until_ns {
            self.waited_ns.add((dispatched_ns - until_ns).min(queued_ns));
            self.waited_until_ns.set(dispatched_ns);
        }
    }

    /// Puts the run into the counters.
    fn end_run(&self) {
        let (kind, count) = (self.run_kind.get(), self.run_count.get());
        if count == 0 || is_recalled(kind) {
            return;
        }
        let (queued_ns, device_ns) = (self.run_queued_ns.get(), self.run_device_ns.get());
        let (index, is_ok, length_bytes) = parts_of(kind);
        self.completed[index].add(count);
        self.total_ns_sum[index].add((queued_ns + device_ns) * count);
        if is_ok {
            self.bytes[index].add(length_bytes * count);
        } else {
            self.failed.add(count);
        }
        self.queued_ns_sum.add(queued_ns * count);
        self.device_ns_sum.add(device_ns * count);
        self.queued_ns.record_n(queued_ns, count);
        self.device_ns.record_n(device_ns, count);
        self.total_ns.record_n(queued_ns + device_ns, count);
        let goal_ns = self.goal_ns.get();
        if goal_ns != 0 && is_of_goal(index, length_bytes) {
            self.goal[goal::bucket_of(queued_ns + device_ns, goal_ns)].add(count);
        }
    }

    /// The flow has this goal from now on, ns; 0: none.
    pub(crate) fn set_goal(&self, goal_ns: u64) {
        if self.goal_ns.get() != goal_ns {
            self.goal_ns.set(goal_ns);
        }
    }

    /// Bytes read and written, without the run under way.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.bytes[Op::Read.index()].get() + self.bytes[Op::Write.index()].get()
    }

    /// Adds the requests that a goal is about to `into`, with the run if none begins or ends meanwhile.
    pub(crate) fn read_goal(&self, into: &mut goal::Counts) {
        for _ in 0..READS_MAX {
            // Acquire: pairs with the Release store in `begin_run`.
            let version = self.version.0.load(Ordering::Acquire);
            let mut seen: goal::Counts = std::array::from_fn(|bucket| self.goal[bucket].get());
            let (kind, count) = (self.run_kind.get(), self.run_count.get());
            let (total_ns, goal_ns) = (self.run_queued_ns.get() + self.run_device_ns.get(), self.goal_ns.get());
            // Acquire: pairs with the Release fence in `begin_run`. A word of a later run brings its version.
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.get() == version {
                let (index, _, length_bytes) = parts_of(kind);
                if count > 0 && goal_ns > 0 && !is_recalled(kind) && is_of_goal(index, length_bytes) {
                    seen[goal::bucket_of(total_ns, goal_ns)] += count;
                }
                into.iter_mut().zip(seen).for_each(|(sum, seen)| *sum += seen);
                return;
            }
        }
        into.iter_mut().zip(&self.goal).for_each(|(sum, word)| *sum += word.get());
    }

    /// Adds the counts to `into`, with the run if none begins or ends meanwhile. `with_latencies`: and not the sums
    /// alone, which are a tenth of the memory.
    pub fn read(&self, into: &mut FlowStats, with_latencies: bool) {
        for _ in 0..READS_MAX {
            // Acquire: pairs with the Release store in `begin_run`.
            let version = self.version.0.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let mut seen = FlowStats::default();
                self.read_counters(&mut seen, with_latencies);
                let (kind, count) = (self.run_kind.get(), self.run_count.get());
                let (queued_ns, device_ns) = (self.run_queued_ns.get(), self.run_device_ns.get());
                // Acquire: pairs with the Release fence in `begin_run`. A word of a later run brings its version.
                fence(Ordering::Acquire);
                if self.version.get() == version {
                    let (index, is_ok, length_bytes) = parts_of(kind);
                    if count > 0 && !is_recalled(kind) {
                        seen.count_run(index, is_ok, length_bytes, queued_ns, device_ns, count, with_latencies);
                    }
                    return into.merge(&seen);
                }
            }
            std::hint::spin_loop();
        }
        // The histograms may hold a run of which the counters do not know yet, and the other way round.
        self.read_counters(into, with_latencies);
    }

    fn read_counters(&self, into: &mut FlowStats, with_latencies: bool) {
        for (sums, words) in [
            (&mut into.completed, &self.completed),
            (&mut into.total_ns_sum, &self.total_ns_sum),
            (&mut into.bytes, &self.bytes),
        ] {
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum += word.get());
        }
        into.failed += self.failed.get();
        into.cost += self.cost.get();
        into.active_ns += self.active_ns.get();
        into.waited_ns += self.waited_ns.get();
        // Time is read once a turn: a request of the first bucket was dispatched in the turn in which it came.
        let completed: u64 = self.completed.iter().map(Word::get).sum();
        into.waited += completed.saturating_sub(self.queued_ns.counts[0].get());
        into.queued_ns_sum += self.queued_ns_sum.get();
        into.device_ns_sum += self.device_ns_sum.get();
        if !with_latencies {
            return;
        }
        self.queued_ns.read(&mut into.queued_ns);
        self.device_ns.read(&mut into.device_ns);
        self.total_ns.read(&mut into.total_ns);
    }

    /// Time of the flow's last completion here; 0: there was none.
    pub fn last_ns(&self) -> u64 {
        self.active_until_ns.get()
    }

    /// True if no request of the flow has completed here.
    fn is_untouched(&self) -> bool {
        self.run_kind.get() == 0
    }
}

/// Index of the operation, whether it ended well, and its length.
fn parts_of(kind: u64) -> (usize, bool, u64) {
    ((kind >> 8 & 0xff) as usize, kind >> 1 & 0x7f == Status::Ok as u64, kind >> 32)
}

/// A goal is about flushes, and reads and writes of no more than [`goal::GOAL_BYTES_MAX`].
fn is_of_goal(index: usize, length_bytes: u64) -> bool {
    index <= Op::Flush.index() && length_bytes <= u64::from(goal::GOAL_BYTES_MAX)
}

/// Requests that were given back are counted when they have ended.
fn is_recalled(kind: u64) -> bool {
    kind >> 1 & 0x7f == Status::Recalled as u64
}

/// Counters of one context and its flows: its worker writes them, any thread reads them.
#[derive(Debug)]
pub struct Counters {
    pub(crate) stats: HctxCounters,
    first: Box<[FlowCounters]>,
    /// Counters of the flows behind the first ones.
    more: [OnceLock<Box<[FlowCounters]>>; PIECES],
}

impl Counters {
    /// Counters of zeros for so many flows.
    pub fn new(flows: usize) -> Counters {
        let first = if flows == 0 { 0 } else { flows.next_power_of_two().max(FIRST_FLOWS) };
        Counters { stats: HctxCounters::default(), first: zeroed(first), more: Default::default() }
    }

    /// A flow's words, if flows are counted and the counters were grown to have it.
    #[inline(always)]
    pub fn flow(&self, flow: FlowId) -> Option<&FlowCounters> {
        match self.first.get(flow.0 as usize) {
            Some(counters) => Some(counters),
            None => self.flow_behind(flow),
        }
    }

    #[cold]
    fn flow_behind(&self, flow: FlowId) -> Option<&FlowCounters> {
        let (piece, index) = self.place(flow.0 as usize)?;
        self.more[piece].get()?.get(index)
    }

    /// The piece of a flow behind the first ones, and its place there: piece n begins at `first << n` and is as long.
    fn place(&self, flow: usize) -> Option<(usize, usize)> {
        let piece = flow.checked_div(self.first.len())?.checked_ilog2()? as usize;
        (piece < PIECES).then(|| (piece, flow - (self.first.len() << piece)))
    }

    /// Has words of flows 0 to `flows` - 1 from now on. For the control plane, before the first request of such a flow.
    /// Counters without flows stay without.
    pub fn grow(&self, flows: usize) {
        let Some((last, _)) = flows.checked_sub(1).and_then(|last| self.place(last)) else { return };
        for (piece, words) in self.more[..=last].iter().enumerate() {
            words.get_or_init(|| zeroed(self.first.len() << piece));
        }
    }

    /// Sets a flow's words to zero: for its worker, when the slot of a flow that is gone goes to another one. No
    /// worker has a request of it.
    pub fn clear(&self, flow: FlowId) {
        let Some(counters) = self.flow(flow) else { return };
        self.stats.gone_cost.add(counters.cost.get());
        let version = counters.version.get();
        counters.version.set(version + 1);
        // Release: as in `begin_run`. A reader takes no run of which a part is gone.
        fence(Ordering::Release);
        let FlowCounters { run_kind, run_queued_ns, run_device_ns, run_count, version: _, cost, failed, .. } = counters;
        [run_kind, run_queued_ns, run_device_ns, run_count, cost, failed].into_iter().for_each(|word| word.set(0));
        let FlowCounters { active_ns, active_until_ns, queued_ns_sum, device_ns_sum, .. } = counters;
        [active_ns, active_until_ns, queued_ns_sum, device_ns_sum].into_iter().for_each(|word| word.set(0));
        [&counters.waited_ns, &counters.waited_until_ns].into_iter().for_each(|word| word.set(0));
        let FlowCounters { completed, total_ns_sum, bytes, queued_ns, device_ns, total_ns, .. } = counters;
        completed.iter().chain(total_ns_sum).chain(bytes).for_each(|word| word.set(0));
        for Buckets { counts, max_ns } in [queued_ns, device_ns, total_ns] {
            counts.iter().for_each(|word| word.set(0));
            max_ns.set(0);
        }
        std::iter::once(&counters.goal_ns).chain(&counters.goal).for_each(|word| word.set(0));
        // Release: as in `begin_run`.
        counters.version.0.store(version + 2, Ordering::Release);
    }

    /// Statistics of a flow here. `None`: it has done nothing, or is not counted.
    pub fn read_flow(&self, flow: FlowId) -> Option<Box<FlowStats>> {
        let mut stats = Box::<FlowStats>::default();
        self.add_flow(flow, &mut stats, true).then_some(stats)
    }

    /// Adds the counts of a flow here ([`FlowCounters::read`]); false: there are none, or it is not counted.
    pub fn add_flow(&self, flow: FlowId, into: &mut FlowStats, with_latencies: bool) -> bool {
        let counters = self.flow(flow).filter(|counters| !counters.is_untouched());
        counters.inspect(|counters| counters.read(into, with_latencies)).is_some()
    }

    /// Statistics of the context.
    pub fn read(&self) -> HctxStats {
        self.stats.read()
    }

    /// Number of flows that it has words for.
    pub fn flows(&self) -> usize {
        let more = self.more.iter().map_while(OnceLock::get).map(|piece| piece.len());
        self.first.len() + more.sum::<usize>()
    }
}

/// Words of so many flows, in memory that the system has zeroed and, if it is much, hands out page by page.
fn zeroed(flows: usize) -> Box<[FlowCounters]> {
    // SAFETY: all bits zero is a valid `AtomicU64`, and `FlowCounters` has nothing but those.
    unsafe { Box::new_zeroed_slice(flows).assume_init() }
}

/// Makes of the list of an hctx's counts the words that its worker writes, and the numbers that others read of them.
macro_rules! hctx_counts {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// The words of [`HctxStats`].
        #[derive(Default, Debug)]
        #[repr(align(128))]
        pub(crate) struct HctxCounters {
            $(pub(crate) $name: Word,)*
        }

        impl HctxCounters {
            pub(crate) fn read(&self) -> HctxStats {
                HctxStats { $($name: self.$name.get(),)* }
            }
        }
    };
}
crate::stats::of_hctx!(hctx_counts);

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    fn read(counters: &Counters, flow: u32) -> FlowStats {
        *counters.read_flow(FlowId(flow)).expect("it was counted")
    }

    #[test]
    fn a_flow_that_goes_leaves_its_cost_with_the_context() {
        let counters = Counters::new(1);
        let flow = counters.flow(FlowId(0)).unwrap();
        flow.count(Op::Read, Status::Ok, 512, 1000, 2000, 9000);
        flow.charge(512);
        counters.clear(FlowId(0));
        counters.clear(FlowId(0));
        assert_eq!((counters.read_flow(FlowId(0)), counters.read().gone_cost), (None, 512));
    }

    #[test]
    fn runs_of_equal_completions_count_as_each_one_would() {
        let counters = Counters::new(1);
        let flow = counters.flow(FlowId(0)).unwrap();
        // 3 x (1000, 2000), 1 x (1000, 5000), 2 x (1000, 2000), the last of them a write that fails.
        for device_ns in [2000, 2000, 2000, 5000, 2000] {
            flow.count(Op::Read, Status::Ok, 512, 1000, device_ns, 9000);
            flow.charge(512);
        }
        flow.count(Op::Write, Status::Io, 4096, 1000, 2000, 9000);
        let stats = read(&counters, 0);
        assert_eq!((stats.completed, stats.bytes, stats.failed), ([5, 1, 0, 0, 0, 0], [5 * 512, 0, 0, 0, 0, 0], 1));
        assert_eq!(stats.total_ns_sum, [4 * 3000 + 6000, 3000, 0, 0, 0, 0]);
        assert_eq!((stats.queued_ns_sum, stats.device_ns_sum, stats.cost), (6000, 5 * 2000 + 5000, 5 * 512));
        let counts = |seen: &Latencies, ns| seen.counts()[latencies::index_of(ns)];
        assert_eq!((counts(&stats.device_ns, 2000), counts(&stats.device_ns, 5000)), (5, 1));
        assert_eq!((counts(&stats.total_ns, 3000), counts(&stats.total_ns, 6000)), (5, 1));
        assert_eq!((counts(&stats.queued_ns, 1000), stats.queued_ns.len()), (6, 6));
        assert_eq!((stats.device_ns.max_ns(), stats.total_ns.max_ns()), (5000, 6000));
        assert_eq!(read(&counters, 0).completed, stats.completed, "to read changes nothing");
    }

    #[test]
    fn active_time_is_that_with_a_request_under_way_whatever_their_number() {
        let counters = Counters::new(1);
        let flow = counters.flow(FlowId(0)).unwrap();
        // Eight at a time for 3 us, a pause of 97, and again; the last one overlaps the eight before it.
        for end_ns in [3_000, 103_000] {
            (0..8).for_each(|_| flow.count(Op::Read, Status::Ok, 512, 1_000, 2_000, end_ns));
        }
        flow.count(Op::Read, Status::Ok, 512, 0, 2_000, 104_000);
        assert_eq!((read(&counters, 0).active_ns, flow.last_ns()), (7_000, 104_000));
        counters.clear(FlowId(0));
        assert_eq!((counters.read_flow(FlowId(0)), flow.last_ns()), (None, 0));
        flow.count(Op::Read, Status::Ok, 512, 0, 2_000, 204_000);
        assert_eq!(read(&counters, 0).active_ns, 2_000, "the next flow in its place");
    }

    #[test]
    fn time_with_a_request_that_waits_is_that_of_requests_that_overlap_once() {
        let counters = Counters::new(1);
        let flow = counters.flow(FlowId(0)).unwrap();
        // Dispatched at 8000 after 3000, twice; at 9000 after 2000, of which 1000 are new; at 20,000 at once; and at
        // 30,000 after 500.
        for (queued_ns, device_ns, end_ns) in
            [(3_000, 2_000, 10_000), (3_000, 2_000, 10_000), (2_000, 1_000, 10_000), (0, 10, 20_010), (500, 1, 30_001)]
        {
            flow.count(Op::Read, Status::Ok, 512, queued_ns, device_ns, end_ns);
        }
        let stats = read(&counters, 0);
        assert_eq!((stats.waited_ns, stats.waited), (3_000 + 1_000 + 500, 4));
        counters.clear(FlowId(0));
        flow.count(Op::Read, Status::Ok, 512, 70, 20, 100);
        assert_eq!((read(&counters, 0).waited_ns, read(&counters, 0).waited), (70, 1), "the next flow in its place");
    }

    #[test]
    fn a_reader_beside_a_writer_never_sees_more_than_there_is_nor_less_than_before() {
        const ROUNDS: u64 = 20_000;
        let counters = Counters::new(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flow = counters.flow(FlowId(0)).unwrap();
                // Each second one begins another run.
                (0..ROUNDS).for_each(|n| flow.count(Op::Read, Status::Ok, 8, n / 2, 1, n));
            });
            let mut before = 0;
            while before < ROUNDS {
                let mut stats = FlowStats::default();
                counters.add_flow(FlowId(0), &mut stats, true);
                let seen = stats.completed[0];
                assert!(seen <= ROUNDS && stats.bytes[0] <= 8 * ROUNDS, "{seen}");
                // Without the run it may be less than before by that run, which is two.
                assert!(seen + 2 >= before, "{seen} after {before}");
                before = before.max(seen);
            }
        });
        assert_eq!(read(&counters, 0).completed[0], ROUNDS);
    }

    #[test]
    fn small_requests_of_a_flow_with_a_goal_are_counted_by_their_time_over_it() {
        let counters = Counters::new(1);
        let flow = counters.flow(FlowId(0)).unwrap();
        let counts = || {
            let mut counts = [0; goal::BUCKETS];
            flow.read_goal(&mut counts);
            let seen = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            seen.map(|(bucket, count)| (bucket, *count)).collect::<Vec<_>>()
        };
        flow.count(Op::Read, Status::Ok, 4096, 400, 601, 1);
        flow.count(Op::Read, Status::Ok, 4096, 1, 1, 1);
        assert_eq!(counts(), [], "it has no goal");
        flow.set_goal(8000);
        assert_eq!(counts(), [(0, 1)], "the run under way");
        let most = goal::GOAL_BYTES_MAX;
        for (op, length_bytes, total_ns) in [
            (Op::Read, most, 8000),
            (Op::Read, most, 8000),
            (Op::Write, 512, 8001),
            (Op::Flush, 0, 9000),
            (Op::Read, most + 1, 1),
            (Op::Discard, 512, 1),
            (Op::WriteZeroes { may_unmap: false }, 512, 1),
        ] {
            flow.count(op, Status::Ok, length_bytes, 1, total_ns - 1, 1);
        }
        flow.count(Op::Read, Status::Recalled, 512, 1, 1, 1);
        assert_eq!(counts(), [(0, 1), (7, 2), (8, 2)]);
        counters.clear(FlowId(0));
        assert_eq!(counts(), []);
        flow.count(Op::Read, Status::Ok, 512, 1, 1, 1);
        assert_eq!(counts(), [], "the next flow in its place has no goal");
    }

    #[test]
    fn flows_that_come_later_have_words_of_their_own_and_start_at_nothing() {
        let counters = Counters::new(3);
        assert_eq!((counters.flows(), counters.flow(FlowId(8)).is_some()), (8, false));
        counters.grow(40);
        assert_eq!(counters.flows(), 64, "8, and pieces of 8, 16 and 32");
        for flow in 0..64 {
            (0..=flow).for_each(|_| counters.flow(FlowId(flow)).unwrap().count(Op::Read, Status::Ok, 1, 0, 0, 1));
        }
        for flow in 0..64 {
            assert_eq!(read(&counters, flow).completed[0], u64::from(flow) + 1);
        }
        counters.clear(FlowId(20));
        assert!(counters.read_flow(FlowId(20)).is_none());
        assert_eq!((read(&counters, 19).requests(), read(&counters, 21).requests()), (20, 22));
        let none = Counters::new(0);
        none.grow(10);
        assert!(none.flow(FlowId(0)).is_none() && none.flow(FlowId(9)).is_none(), "flows are not counted");
    }

    #[test]
    fn a_flow_takes_as_much_memory_as_the_page_says() {
        assert_eq!((size_of::<FlowCounters>(), align_of::<FlowCounters>()), (6104, 8));
    }
}
