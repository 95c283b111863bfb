//! Policy `d2fq`: device-direct fair queueing.
//!
//! Answers: to which of three classes of device queues does the next request of this flow go, so that flows are served
//! by their weights though nothing waits in the scheduler? Source: Woo, Ahn, Lee, Jeong, "D2FQ: Device-Direct Fair
//! Queueing for NVMe SSDs", FAST 2021 (cited as "D2FQ section n").
//!
//! # Shape
//! ```text
//!   submit ──▶ class_of: flow.vt - gvt        < tau_m          < tau_l         otherwise          equation 1
//!                                               │                │                │
//!              the worker's device queues      high           medium             low         weights: the ratio, its root, 1
//!                                               └────────────────┼────────────────┘
//!                                                 weighted round robin in the device
//!                                                                │
//!   complete ◀── flow.vt += cost / weight, then gvt follows ◀────┘                                  Figure 10
//!   adjust   ──▶ once per period, one worker: the ratio by equations 2 and 3
//! ```
//! | part | file |
//! |---|---|
//! | global virtual time (gvt): Figure 9, ids that cannot alias | `gvt.rs` |
//! | flows: virtual time, activity, grace period | `flow_state.rs` |
//! | the ratio, equations 2 and 3 | `ratio.rs` |
//!
//! No queue, no token and no throttle: submit is dispatch, and the only thing decided is the class.
//!
//! # Grace period
//! A flow with nothing in flight keeps its place for so long, because a flow that asks for the next thing when it has
//! the last one only seems idle in between. No timer runs for its end, so it is found when it matters: by the flow's
//! own next request, which then starts at gvt; and, of the flow that holds gvt, by the workers, each of which looks at
//! the holder at a completion once per quarter of the period. Until then an absent holder stops gvt, and all others run
//! ahead of it: at 3 GB/s, past tau_l after 2.8 ms. So 2 ms, and not 200 as the published code has. It should not be
//! much shorter than the device needs for tau_m (1.4 ms) either: a flow that stays away longer is forgiven what it is
//! ahead, up to tau_m of which it got from the high queues, and the others should have been served as much meanwhile.
//!
//! # Virtual time for ever
//! Virtual time is compared by signed distance on a circle of 2^64 units ([`VTime`]), which half an hour may go round
//! once. Points that could leave the half that compares are moved:
//! * A flow more than a quarter of that (2^61 units, 2 PiB of service at the default weight) ahead of gvt is put there.
//!   It got all that while no flow behind it used the device, and stays in the low class.
//! * A flow more than a quarter behind is put there: its one request took so long that others were served 2 PiB
//!   meanwhile. Each queue looks for such flows when gvt has come into another eighth of the circle, so none is ever
//!   much more than half behind. One that is idle is moved as well, so that its number means something.
//!
//! # Invariants
//! G1 to G3 of `gvt.rs`, F1 to F3 of `flow_state.rs`, and
//! D1. A flow at or behind gvt gets the high class; an inactive one would be at gvt, and gets it.
//! D2. A flow that is alone keeps gvt with it and gets the high class always.
//! D3. A change of a weight changes what completions from then on charge. No virtual time jumps.
//!
//! There is no bound on unfairness: what the classes are worth is the device's affair, and the ratio follows by
//! seconds.
//!
//! # Cost
//! A request of a flow that has others in flight at this worker: a few loads and stores of the worker's own, one add on
//! the flow's line, one multiplication, and a compare-and-exchange on gvt if the flow holds it or is behind. The first
//! one in flight at a worker and the last: an add each on the flow's line. No division, no allocation.

mod flow_state;
mod gvt;
mod options;
mod ratio;

pub use gvt::{GlobalVtime, Gvt};
pub use options::D2fqOptions;

use self::flow_state::{Block, Flow, QueueFlow};
use self::ratio::{Adjuster, Sample};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    ClassWeights, Descriptor, DirectPolicy, DispatchToken, Done, Entry, Kick, Pick, Policy, PolicyError, PolicyKind,
    PolicyOptions, QueueClass, Registered,
};
use mqfq_sched::sync::CachePadded;
use mqfq_sched::sync::{AtomicU32, AtomicU64, Mutex, Ordering::Relaxed};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};

/// How far a flow may be from gvt: a quarter of what compares.
const DISTANCE_MAX: VSpan = VSpan(1 << 61);

/// Longest charge that is added without a look at where it leads: the queues that there may be, each with one, stay
/// within what compares.
const SPAN_MAX: u64 = 1 << 50;

// Shorter spans are told by their upper bits.
const _: () = assert!(SPAN_MAX.is_power_of_two());
const _: () = assert!(SPAN_MAX * mqfq_sched::topology::HCTXS_MAX as u64 <= DISTANCE_MAX.0);
const _: () = assert!(2 * D2fqOptions::LOW_THRESHOLD_MAX_BYTES <= DISTANCE_MAX.bytes());

/// tau_m, tau_l and tau_w of the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Distance ahead of global virtual time from which on requests go to the medium queues.
    pub medium: VSpan,
    /// Distance from which on they go to the low queues.
    pub low: VSpan,
    /// The ratio of the classes is too small.
    pub unfair: VSpan,
}

kind!(D2fq);

/// Device-direct fair queueing over the global virtual time that ships unless `G` says otherwise. See the module's
/// text.
pub struct D2fq<G: GlobalVtime = Gvt> {
    flows: Box<[Flow]>,
    /// Flows of each queue, four to a block.
    queue_flows: Box<[Block]>,
    blocks_per_queue: usize,
    medium: i64,
    low: i64,
    grace_ns: u64,
    look_every_ns: u64,
    adjust_period_ns: u64,
    gvt: G,
    next_adjust_ns: CachePadded<AtomicU64>,
    /// The H/L ratio in use, for reports.
    ratio: AtomicU32,
    adjuster: Mutex<Adjuster>,
}

/// One worker's part.
pub struct D2fqQueue {
    /// Index of its first block.
    first_block: usize,
    /// When it looks at the holder of gvt again.
    next_look_ns: u64,
    /// The eighth of the circle that gvt was in when it looked last.
    octant: u64,
}

impl D2fq {
    /// The policy for so many queues, and one flow per weight. The options have been validated.
    ///
    /// # Errors
    /// More flows than have names of their own.
    pub fn new(options: &PolicyOptions, hctx_count: usize, flows: &[Weight]) -> Result<D2fq, PolicyError> {
        if flows.len() > Gvt::FLOWS_MAX {
            let (kind, count, most) = (KIND, flows.len(), Gvt::FLOWS_MAX);
            return Err(PolicyError::TooManyFlowsOf { kind, count, most });
        }
        let gvt = Gvt::with_quantum(options.start, options.own.get::<D2fqOptions>().vtime_quantum());
        D2fq::with_gvt(options, hctx_count, flows, gvt)
    }

    /// Start of virtual time with these options: of all flows, and of the global one.
    pub const fn start(options: &PolicyOptions) -> VTime {
        VTime::from_raw(options.start.raw() & !(Gvt::GRAIN.0 - 1))
    }
}

impl<G: GlobalVtime> D2fq<G> {
    /// Returns a policy over another global virtual time, which stands where [`D2fq::start`] says.
    ///
    /// # Errors
    /// If the options are wrong or there are no flows.
    pub fn with_gvt(
        options: &PolicyOptions,
        hctx_count: usize,
        flows: &[Weight],
        gvt: G,
    ) -> Result<D2fq<G>, PolicyError> {
        options.validate_for(flows)?;
        let tunables: D2fqOptions = options.own.get();
        let start = D2fq::start(options);
        let blocks_per_queue = flows.len().div_ceil(Block::LEN);
        let adjuster = Adjuster::new(tunables.class_ratio, flows.len(), start);
        let low = VSpan::from_bytes(tunables.low_threshold_bytes).0 as i64;
        Ok(D2fq {
            flows: flows.iter().map(|&weight| Flow::new(weight, start, tunables.grace_period_ns)).collect(),
            queue_flows: (0..hctx_count * blocks_per_queue).map(|_| Block::new()).collect(),
            blocks_per_queue,
            medium: low / 2,
            low,
            grace_ns: tunables.grace_period_ns,
            look_every_ns: tunables.grace_period_ns / 4,
            // A ratio that is fixed is told once.
            adjust_period_ns: if tunables.class_ratio == 0 { tunables.adjust_period_ns } else { u64::MAX },
            gvt,
            next_adjust_ns: CachePadded::new(AtomicU64::new(0)),
            ratio: AtomicU32::new(adjuster.ratio()),
            adjuster: Mutex::new(adjuster),
        })
    }

    /// Virtual time of the flow that holds it, rounded down to [`Gvt::GRAIN`].
    pub fn global_vtime(&self) -> VTime {
        self.gvt.now()
    }

    /// The structure that keeps it.
    pub fn gvt(&self) -> &G {
        &self.gvt
    }

    /// The three thresholds.
    pub fn thresholds(&self) -> Thresholds {
        let low = self.low as u64;
        Thresholds { medium: VSpan(low / 2), low: VSpan(low), unfair: VSpan(2 * low) }
    }

    /// The H/L ratio now.
    pub fn ratio(&self) -> u32 {
        // Relaxed: a report.
        self.ratio.load(Relaxed)
    }

    /// The weights of the classes now.
    pub fn class_weights(&self) -> ClassWeights {
        ratio::class_weights(self.ratio())
    }

    /// Virtual time of a flow. Of an inactive one: where it was.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn flow_vtime(&self, flow: FlowId) -> VTime {
        self.flow(flow).vtime()
    }

    /// It has something in flight, or is within its grace period.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn is_active(&self, flow: FlowId, now_ns: u64) -> bool {
        !self.flow(flow).is_inactive(now_ns, self.grace_ns)
    }

    /// Bytes of cost that a flow has submitted so far to each class, by [`QueueClass::index`].
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn class_bytes(&self, flow: FlowId) -> [u64; 3] {
        let _ = self.flow(flow);
        let mut sum = [0u64; 3];
        for blocks in self.queue_flows.chunks(self.blocks_per_queue) {
            let own = blocks[flow.0 as usize / Block::LEN].0[flow.0 as usize % Block::LEN].class_bytes();
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.wrapping_add(own));
        }
        sum
    }

    #[inline(always)]
    fn flow(&self, flow: FlowId) -> &Flow {
        match self.flows.get(flow.0 as usize) {
            Some(flow) => flow,
            None => panic_no_flow(flow, self.flows.len()),
        }
    }

    /// A queue's part of a flow that exists.
    #[inline(always)]
    fn own(&self, queue: &D2fqQueue, flow: FlowId) -> &QueueFlow {
        let block = &self.queue_flows[queue.first_block + flow.0 as usize / Block::LEN];
        &block.0[flow.0 as usize % Block::LEN]
    }

    /// Equation 1.
    #[inline(always)]
    fn class_for(&self, shared: &Flow, own: &QueueFlow, now_ns: u64) -> QueueClass {
        // Relaxed: only this worker writes it.
        if own.in_flight.load(Relaxed) == 0 && shared.is_inactive(now_ns, self.grace_ns) {
            return QueueClass::High;
        }
        let gap = shared.vtime().since(self.gvt.now());
        if gap < self.medium {
            QueueClass::High
        } else if gap < self.low {
            QueueClass::Medium
        } else {
            QueueClass::Low
        }
    }

    /// A request of the flow goes to the queue of that class.
    #[inline(always)]
    fn goes(&self, shared: &Flow, own: &QueueFlow, cost: Cost, class: QueueClass, now_ns: u64) {
        // Relaxed: only this worker reads and writes it.
        let in_flight = own.in_flight.load(Relaxed);
        if in_flight == 0 {
            shared.enter(now_ns, self.grace_ns, &self.gvt);
        }
        own.in_flight.store(in_flight.wrapping_add(1), Relaxed);
        own.submitted(class, cost.0);
    }

    /// Charges a span of [`SPAN_MAX`] or more. What is longer is too long to be added blindly: never further ahead of
    /// gvt than is allowed.
    #[cold]
    fn charge_much(&self, flow: &Flow, units: u128) -> VTime {
        if units == u128::from(SPAN_MAX) {
            return flow.charge(VSpan(SPAN_MAX));
        }
        let latest = self.gvt.now().plus(DISTANCE_MAX);
        let mut left = units.min(u128::from(DISTANCE_MAX.0)) as u64;
        loop {
            let step = left.min(SPAN_MAX);
            let vtime = flow.charge(VSpan(step));
            left -= step;
            if latest.is_before(vtime) {
                flow.clamp_to(latest);
                return latest;
            }
            if left == 0 {
                return vtime;
            }
        }
    }

    /// Once per quarter of the grace period: a holder of gvt that went away, and flows that are about to be too far
    /// behind to compare.
    #[inline(never)]
    fn look(&self, queue: &mut D2fqQueue, now_ns: u64) {
        queue.next_look_ns = now_ns.saturating_add(self.look_every_ns);
        self.gvt.release_inactive(|flow| self.flow(flow).is_inactive(now_ns, self.grace_ns));
        let gvt = self.gvt.now();
        if octant(gvt) != queue.octant {
            queue.octant = octant(gvt);
            let earliest = gvt.minus(DISTANCE_MAX);
            self.flows.iter().for_each(|flow| flow.raise_to(earliest));
        }
    }

    /// A period may have ended.
    #[cold]
    fn end_period(&self, due_ns: u64, now_ns: u64) -> Option<ClassWeights> {
        let next_ns = now_ns.saturating_add(self.adjust_period_ns);
        // Relaxed: it says which worker does it; the data is under the lock.
        self.next_adjust_ns.compare_exchange(due_ns, next_ns, Relaxed, Relaxed).ok()?;
        let mut adjuster = self.adjuster.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let gvt = self.gvt.now();
        let told = adjuster.period_ends(gvt, self.thresholds(), |n| {
            let flow = &self.flows[n];
            Sample {
                vtime: flow.vtime(),
                is_active: !flow.is_inactive(now_ns, self.grace_ns),
                // Relaxed: a change that is seen late counts in the next period.
                activations: flow.activations.load(Relaxed),
                class_bytes: self.class_bytes(FlowId(n as u32)),
            }
        });
        // Relaxed: a report.
        self.ratio.store(adjuster.ratio(), Relaxed);
        told
    }
}

#[cold]
#[inline(never)]
fn panic_no_flow(flow: FlowId, count: usize) -> ! {
    panic!("flow {} does not exist, there are {count}", flow.0);
}

/// The eighth of the circle that a point lies in.
const fn octant(point: VTime) -> u64 {
    point.raw() >> 61
}

impl<G: GlobalVtime> Policy for D2fq<G> {
    type Queue = D2fqQueue;
    type Direct<'a>
        = &'a D2fq<G>
    where
        Self: 'a;

    fn open_queue(&self, hctx: HctxId, _capacity_requests: usize) -> D2fqQueue {
        let first_block = hctx.index() * self.blocks_per_queue;
        assert!(first_block < self.queue_flows.len(), "queue {} does not exist", hctx.index());
        D2fqQueue { first_block, next_look_ns: 0, octant: octant(self.gvt.now()) }
    }

    fn submit(&self, _queue: &mut D2fqQueue, _entry: Entry, _now_ns: u64, _kick: &mut impl Kick) {
        unreachable!("a direct policy stages nothing")
    }

    fn pick(&self, _queue: &mut D2fqQueue, _now_ns: u64, _kick: &mut impl Kick) -> Pick {
        Pick::Idle
    }

    fn complete(&self, queue: &mut D2fqQueue, done: Done, token: DispatchToken, now_ns: u64, _kick: &mut impl Kick) {
        let units = token.into_units();
        debug_assert_eq!(units, 0, "a token of {units} units came back to a policy that hands out none");
        self.ended(queue, done.flow, done.cost, now_ns);
    }

    #[inline]
    fn as_direct(&self) -> Option<&D2fq<G>> {
        Some(self)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.flow(flow).rate.set(weight);
    }

    fn retire(&self, flow: FlowId) -> bool {
        self.flow(flow).retire(self.grace_ns);
        let block = flow.0 as usize / Block::LEN;
        for blocks in self.queue_flows.chunks(self.blocks_per_queue) {
            blocks[block].0[flow.0 as usize % Block::LEN].retire();
        }
        true
    }

    fn staged(&self, _queue: &D2fqQueue) -> usize {
        0
    }
}

impl Registered for D2fq {
    const ABOUT: Descriptor = Descriptor {
        is_fair: true,
        is_direct: true,
        ..Descriptor::new("d2fq", "device-direct fair queueing: the device arbitrates, among queues of three classes")
    };

    const FALLBACK: Option<PolicyKind> = Some(PolicyKind::Mqfq);

    type Options = D2fqOptions;

    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError> {
        D2fq::new(options, topology.hctx_count(), flows)
    }

    fn global_vtime(&self) -> Option<VTime> {
        Some(self.global_vtime())
    }

    fn class_weights(&self) -> Option<ClassWeights> {
        Some(self.class_weights())
    }

    fn class_bytes(&self, flow: FlowId) -> Option<[u64; 3]> {
        Some(self.class_bytes(flow))
    }
}

impl<G: GlobalVtime> DirectPolicy<D2fqQueue> for &D2fq<G> {
    #[inline]
    fn class_of(self, queue: &D2fqQueue, flow: FlowId, now_ns: u64) -> QueueClass {
        self.class_for(self.flow(flow), self.own(queue, flow), now_ns)
    }

    #[inline]
    fn dispatched(self, queue: &mut D2fqQueue, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64) {
        self.goes(self.flow(flow), self.own(queue, flow), cost, class, now_ns);
    }

    #[inline(always)]
    fn direct(self, queue: &mut D2fqQueue, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        let (shared, own) = (self.flow(flow), self.own(queue, flow));
        let class = self.class_for(shared, own, now_ns);
        self.goes(shared, own, cost, class, now_ns);
        class
    }

    #[inline(always)] // once per request, and what is rare in it is not inlined
    fn ended(self, queue: &mut D2fqQueue, flow: FlowId, cost: Cost, now_ns: u64) {
        let shared = self.flow(flow);
        let own = self.own(queue, flow);
        let span = own.whole(shared.rate.span_fixed(cost));
        let vtime = if span >> SPAN_MAX.trailing_zeros() == 0 {
            shared.charge(VSpan(span as u64))
        } else {
            self.charge_much(shared, span)
        };
        // Relaxed: only this worker reads and writes it.
        let in_flight = own.in_flight.load(Relaxed);
        debug_assert_ne!(in_flight, 0, "flow {} completed more than it dispatched", flow.0);
        own.in_flight.store(in_flight.wrapping_sub(1), Relaxed);
        if in_flight == 1 {
            shared.leave(now_ns);
        }
        if now_ns >= queue.next_look_ns {
            self.look(queue, now_ns);
        }
        if self.gvt.update(flow, vtime) > DISTANCE_MAX.0 as i64 {
            shared.clamp_to(self.gvt.now().plus(DISTANCE_MAX));
        }
    }

    #[inline]
    fn adjust(self, _queue: &mut D2fqQueue, now_ns: u64) -> Option<ClassWeights> {
        // Relaxed: a hint; `end_period` decides.
        let due_ns = self.next_adjust_ns.load(Relaxed);
        if now_ns < due_ns { None } else { self.end_period(due_ns, now_ns) }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod oracle_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    //! Model checks of global virtual time and of activation: one race each.
    //!
    //! Run: `cargo xtask loom`.

    use super::*;
    use mqfq_sched::sync::model::{Arc, model, thread};

    /// So many grains.
    fn at(grains: u64) -> VTime {
        VTime::from_raw(grains * Gvt::GRAIN.0)
    }

    const HOLDER: FlowId = FlowId(0);
    const OTHER: FlowId = FlowId(1);

    /// Global virtual time held by [`HOLDER`], at 100 grains.
    fn held() -> Gvt {
        let gvt = Gvt::new(VTime::ZERO);
        gvt.update(HOLDER, at(100));
        gvt
    }

    /// Race: the holder moves up from 100 to 300 while a flow at 50 completes (Figure 9, update against update). The
    /// flow behind has it at the end (G2): the holder's move does not run over it. Shown to fail if `update` stores
    /// without comparing.
    #[test]
    fn loom_the_holders_move_does_not_run_over_a_flow_behind() {
        model(|| {
            let gvt = Arc::new(held());
            let theirs = gvt.clone();
            let holder = thread::spawn(move || theirs.update(HOLDER, at(300)));
            gvt.update(OTHER, at(50));
            holder.join().unwrap();
            assert_eq!((gvt.holder(), gvt.now()), (Some(OTHER), at(50)));
        });
    }

    /// Race: two flows behind the holder complete at once; the one farther behind has it at the end, in either order.
    /// Shown to fail if a failed compare-and-exchange is not tried again.
    #[test]
    fn loom_of_two_flows_behind_the_one_farther_behind_has_it() {
        model(|| {
            let gvt = Arc::new(held());
            let theirs = gvt.clone();
            let farther = thread::spawn(move || theirs.update(FlowId(2), at(20)));
            gvt.update(OTHER, at(50));
            farther.join().unwrap();
            assert_eq!((gvt.holder(), gvt.now()), (Some(FlowId(2)), at(20)));
        });
    }

    /// Race: a worker releases on behalf of the holder, which it found inactive, while a flow behind takes global
    /// virtual time (update against release): it is not taken off that flow. Shown to fail if the release stores
    /// without comparing.
    #[test]
    fn loom_a_release_is_not_of_who_took_it_meanwhile() {
        model(|| {
            let gvt = Arc::new(held());
            let theirs = gvt.clone();
            let behind = thread::spawn(move || theirs.update(OTHER, at(50)));
            gvt.release_inactive(|flow| flow == HOLDER);
            behind.join().unwrap();
            assert_eq!((gvt.holder(), gvt.now()), (Some(OTHER), at(50)));
        });
    }

    /// Two workers, two flows. [`HOLDER`] holds global virtual time and has been away since time 0, [`OTHER`] is far
    /// ahead with a request in flight.
    fn away() -> (Arc<D2fq>, [D2fqQueue; 2]) {
        let policy = Arc::new(D2fq::new(&PolicyOptions::new(KIND), 2, &[Weight::DEFAULT; 2]).unwrap());
        let [mut mine, mut theirs] = [0, 1].map(|n| policy.open_queue(HctxId(n), 1));
        policy.dispatched(&mut theirs, HOLDER, Cost(1 << 20), QueueClass::High, 0);
        complete(&policy, &mut theirs, HOLDER, 1 << 20, 0);
        policy.dispatched(&mut mine, OTHER, Cost(1 << 24), QueueClass::High, 0);
        (policy, [mine, theirs])
    }

    /// Past the grace period.
    const NOW_NS: u64 = 10_000_000;

    fn complete(policy: &D2fq, queue: &mut D2fqQueue, flow: FlowId, bytes: u64, now_ns: u64) {
        let done = Done { cost: Cost(bytes), ..Done::read(flow, mqfq_sched::policy::Handle(0)) };
        policy.complete(queue, done, DispatchToken::new(0), now_ns, &mut |_: HctxId| ());
    }

    /// Race: a worker looks, finds the holder inactive, releases it and takes global virtual time for a flow that is
    /// ahead, while the holder comes back, is put at global virtual time and completes (release against activation). At
    /// the end global virtual time is past neither flow (G3), and the returning flow has paid. Shown to fail if the
    /// release is tried again after the word has moved, and if `update` does not release or `release_inactive` does not
    /// acquire.
    #[test]
    fn loom_a_holder_that_comes_back_is_not_left_behind() {
        model(|| {
            let (policy, [mut mine, mut theirs]) = away();
            let held = policy.global_vtime();
            let other = policy.clone();
            let returning = thread::spawn(move || {
                other.dispatched(&mut theirs, HOLDER, Cost(1 << 20), QueueClass::High, NOW_NS);
                // It looks at no holder: the other worker has looked.
                theirs.next_look_ns = u64::MAX;
                complete(&other, &mut theirs, HOLDER, 1 << 20, NOW_NS);
            });
            complete(&policy, &mut mine, OTHER, 1 << 24, NOW_NS);
            returning.join().unwrap();
            let (gvt, ahead) = (policy.global_vtime(), policy.flow_vtime(OTHER));
            let [returned, other] = [HOLDER, OTHER].map(|flow| policy.flow_vtime(flow));
            assert!(!returned.is_before(gvt) && !other.is_before(gvt), "{gvt:?} is past {returned:?} or {other:?}");
            let paid = VSpan::from_bytes(1 << 20);
            assert!(
                [held, ahead].map(|start| start.plus(paid)).contains(&returned),
                "{returned:?} after {held:?} or {ahead:?}"
            );
        });
    }

    /// Race: a flow that was away has its next requests at two workers at once, one of which completes (activation
    /// against activation). It is put at global virtual time before a worker charges it, and no charge is lost (F2).
    /// Shown to fail if it is put there by a store, if it counts as active before it is, if `charge` or `leave` does
    /// not release, and if `enter` does not acquire.
    #[test]
    fn loom_a_flow_that_returns_at_two_workers_pays_from_global_virtual_time_on() {
        model(|| {
            let (policy, [mut mine, mut theirs]) = away();
            // Global virtual time moves on without it.
            complete(&policy, &mut mine, OTHER, 1 << 24, NOW_NS);
            let start = policy.global_vtime();
            let other = policy.clone();
            let returning = thread::spawn(move || {
                theirs.next_look_ns = u64::MAX;
                other.dispatched(&mut theirs, HOLDER, Cost(1 << 20), QueueClass::High, NOW_NS);
                complete(&other, &mut theirs, HOLDER, 1 << 20, NOW_NS);
            });
            policy.dispatched(&mut mine, HOLDER, Cost(1 << 20), QueueClass::High, NOW_NS);
            returning.join().unwrap();
            assert_eq!(policy.flow_vtime(HOLDER), start.plus(VSpan::from_bytes(1 << 20)));
            assert!(!policy.flow_vtime(OTHER).is_before(policy.global_vtime()));
        });
    }
}
