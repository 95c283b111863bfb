//! Decides which queue has the device, for how long, and when to wait. All of bfq but its lock.
//!
//! # A turn
//! ```text
//!   choose class ── choose group ── choose queue          B-WF2Q+ at two levels (service_tree.rs)
//!        │
//!        ▼   its next request  ── budget left? ── within the timeout? ──▶ dispatch, charge both levels
//!   in service
//!        │   nothing staged:  worth waiting for?  no: end of turn
//!        │                                        requests on the device: wait for them
//!        ▼                                        none: wait until completed + slice-idle   (Next::Later)
//!   end of turn: what it got is charged at both levels, the feedback sets its next budget
//! ```
//! A group is a flow (a tenant). A group's budget is that of the queue of it that would be served next, so its turn and
//! its queue's are one.
//!
//! # Invariants
//! A1. A queue is active in its group's tree if and only if something of it is staged, or it is in service. A group is
//!     active in its class's tree if and only if one of its queues is.
//! A2. A queue is spare if and only if it has nothing staged, nothing on the device, and is not in service; a process
//!     without a queue takes a free one, or the one that has been spare for longest. There is one queue more than can
//!     be in use.
//! A3. While something is staged, either a request is on the device, or `next` names a request or a time.

use super::budget::{Expiry, Limits, PeakRate};
use super::heap::NONE;
use super::options::BfqOptions;
use super::queue::{Arrival, Queue, Requests};
use super::raising::Raising;
use super::service_tree::{Entity, Place, Scheduled, ServiceTree};
use crate::central::{Next, Waiting};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::CostKind;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{Done, Entry};
use mqfq_sched::sync::touch;
use mqfq_sched::topology::HctxId;

/// Weight of each queue within its group: processes of a tenant are equal.
const QUEUE_WEIGHT: u64 = 100;

/// Factor on the charge of an async request.
const ASYNC_CHARGE: u64 = 3;

/// The idle class gets a turn of a smallest budget if it has waited for so long.
const IDLE_CLASS_TURN_NS: u64 = 200_000_000;

/// One tenant: its entity in a service tree, its class, and how many requests it has staged and in flight.
struct Group {
    entity: Entity,
    tree: ServiceTree,
    /// Configured weight; the entity's is that times the factor of raising.
    weight: u64,
    class: PriorityClass,
    /// The tree that it is in while it is active.
    class_now: PriorityClass,
    staged: u32,
    in_flight: u32,
    raising: Raising,
}

impl Scheduled for Group {
    fn entity(&mut self) -> &mut Entity {
        &mut self.entity
    }
    fn entity_ref(&self) -> &Entity {
        &self.entity
    }
}

impl Group {
    fn is_pending(&self) -> bool {
        self.staged + self.in_flight > 0
    }

    fn raised_weight(&self) -> u64 {
        self.weight * self.raising.coefficient()
    }
}

// Memory bounds that docs/lab/policies.md states.
const _: () =
    assert!(size_of::<Group>() <= 256 && size_of::<Queue>() <= 256 && size_of::<super::queue::Request>() <= 80);

/// The queue in service.
#[derive(Clone, Copy)]
struct Turn {
    queue: u32,
    began_ns: u64,
}

/// The state of `bfq` under its lock: its tenants, and whose turn it is.
pub(super) struct Scheduler {
    options: BfqOptions,
    /// D: most units on the device.
    depth: u32,
    groups: Box<[Group]>,
    trees: [ServiceTree; 3],
    queues: Box<[Queue]>,
    /// By hctx, then flow and kind: the queue, or [`NONE`].
    index: Box<[Box<[u32]>]>,
    free_queues: u32,
    /// Queues that have been spare for longest, and for shortest.
    spare: (u32, u32),
    requests: Requests,
    turn: Option<Turn>,
    staged: u32,
    /// Groups with something staged or on the device, and those among them whose weight is raised.
    pending_groups: u32,
    raised_groups: u32,
    async_units: u32,
    peak: PeakRate,
    limits: Limits,
    idle_class_since_ns: u64,
    /// Latest time that a caller passed.
    now_ns: u64,
}

impl Scheduler {
    pub(super) fn new(options: &BfqOptions, depth: u32, hctx_count: usize, weights: &[Weight]) -> Scheduler {
        let group = |weight: &Weight| Group {
            entity: Entity::new(u64::from(weight.get())),
            tree: ServiceTree::EMPTY,
            weight: u64::from(weight.get()),
            class: PriorityClass::BestEffort,
            class_now: PriorityClass::BestEffort,
            staged: 0,
            in_flight: 0,
            raising: Raising::NEW,
        };
        Scheduler {
            options: *options,
            depth,
            groups: weights.iter().map(group).collect(),
            trees: [ServiceTree::EMPTY; 3],
            queues: Box::new([]),
            index: (0..hctx_count).map(|_| Box::default()).collect(),
            free_queues: 0,
            spare: (NONE, NONE),
            requests: Requests::new(0),
            turn: None,
            staged: 0,
            pending_groups: 0,
            raised_groups: 0,
            async_units: 0,
            peak: PeakRate::default(),
            limits: Limits::new(options.max_budget_bytes, None, options.timeout_sync_ns),
            idle_class_since_ns: 0,
            now_ns: 0,
        }
    }

    /// Makes room for `capacity` requests, some of them of one more hctx.
    pub(super) fn open(&mut self, hctx: HctxId, capacity: usize) {
        assert_eq!(self.staged, 0, "hctx {} opens its queue after requests were staged", hctx.0);
        self.requests = Requests::new(capacity);
        self.index[hctx.index()] = vec![NONE; 2 * self.groups.len()].into();
        let opened = self.index.iter().filter(|row| !row.is_empty()).count();
        // Each queue that is not spare has a request staged or on the device, or is in service.
        let queues = (2 * self.groups.len() * opened).min(capacity + self.depth as usize + 1);
        self.queues = (0..queues).map(|_| Queue::new(FlowId(0), HctxId(0), true, 0)).collect();
        self.free_queues = queues as u32;
    }

    pub(super) fn set_weight(&mut self, flow: FlowId, weight: Weight) {
        self.groups[flow.0 as usize].weight = u64::from(weight.get());
    }

    pub(super) fn set_class(&mut self, flow: FlowId, class: PriorityClass) {
        self.groups[flow.0 as usize].class = class;
    }

    pub(super) fn peak_bytes_per_s(&self) -> Option<u64> {
        self.peak.bytes_per_s()
    }

    pub(super) fn max_budget_bytes(&self) -> u64 {
        self.limits.max_bytes
    }

    pub(super) fn is_raised(&self, flow: FlowId) -> bool {
        self.groups[flow.0 as usize].raising.is_raised()
    }

    /// Budget that the feedback allows a process in its next turn.
    pub(super) fn budget_bytes(&self, flow: FlowId, hctx: HctxId, is_sync: bool) -> Option<u64> {
        let queue = self.index[hctx.index()][slot(flow, is_sync)];
        (queue != NONE).then(|| self.queues[queue as usize].budget_bytes)
    }

    /// Takes in a request of `hctx`.
    pub(super) fn submit(&mut self, hctx: HctxId, entry: Entry, units: u32, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let now_ns = self.now_ns;
        let Entry { flow, cost, handle, is_sync, offset_bytes, .. } = entry;
        let (charge, expiry_ns) = match is_sync {
            true => (1, self.options.fifo_expire_sync_ns),
            false => (ASYNC_CHARGE, self.options.fifo_expire_async_ns),
        };
        let place = self.queue_of(flow, hctx, is_sync);
        self.note_arrival_at_group(flow);
        let queue = &mut self.queues[place as usize];
        if queue.staged == 0 && queue.in_flight == 0 && queue.completed_ns > 0 {
            queue.think.sample(now_ns - queue.completed_ns, 4 * self.options.slice_idle_ns);
        }
        let arrival = Arrival {
            offset_bytes,
            expires_ns: now_ns + expiry_ns,
            handle,
            units,
            charge_bytes: cost.0.saturating_mul(charge),
        };
        queue.push(&mut self.requests, arrival);
        self.staged += 1;
        if queue.entity.place() == Place::Out {
            self.activate(place);
        }
    }

    /// The flow's queue at `hctx`, made if it has none.
    fn queue_of(&mut self, flow: FlowId, hctx: HctxId, is_sync: bool) -> u32 {
        let slot = slot(flow, is_sync);
        let known = self.index[hctx.index()][slot];
        touch(&self.index[hctx.index()], slot);
        if known != NONE {
            self.withdraw_spare(known);
            return known;
        }
        let place = if self.free_queues > 0 {
            self.free_queues -= 1;
            self.free_queues
        } else {
            let oldest = self.spare.0;
            assert!(oldest != NONE, "all {} queues are in use", self.queues.len());
            self.withdraw_spare(oldest);
            let Queue { flow, hctx, is_sync, .. } = self.queues[oldest as usize];
            self.index[hctx.index()][self::slot(flow, is_sync)] = NONE;
            oldest
        };
        let budget_bytes = if is_sync { self.limits.first_bytes() } else { self.limits.max_bytes };
        self.queues[place as usize] = Queue::new(flow, hctx, is_sync, budget_bytes);
        self.index[hctx.index()][slot] = place;
        place
    }

    /// Marks a queue as one that could be given to another process (A2).
    fn make_spare(&mut self, place: u32) {
        let queue = &mut self.queues[place as usize];
        (queue.is_spare, queue.spare_earlier, queue.spare_later) = (true, self.spare.1, NONE);
        match self.spare.1 {
            NONE => self.spare.0 = place,
            last => self.queues[last as usize].spare_later = place,
        }
        self.spare.1 = place;
    }

    fn withdraw_spare(&mut self, place: u32) {
        touch(&self.queues, place as usize);
        let queue = &mut self.queues[place as usize];
        if !std::mem::take(&mut queue.is_spare) {
            return;
        }
        let (earlier, later) = (queue.spare_earlier, queue.spare_later);
        match earlier {
            NONE => self.spare.0 = later,
            _ => self.queues[earlier as usize].spare_later = later,
        }
        match later {
            NONE => self.spare.1 = earlier,
            _ => self.queues[later as usize].spare_earlier = earlier,
        }
    }

    fn note_arrival_at_group(&mut self, flow: FlowId) {
        touch(&self.groups, flow.0 as usize);
        let group = &mut self.groups[flow.0 as usize];
        if !group.is_pending() {
            self.pending_groups += 1;
            if self.options.low_latency {
                group.raising.begin(self.now_ns);
            }
            self.raised_groups += u32::from(group.raising.is_raised());
        }
        group.staged += 1;
    }

    /// A queue that was out has its first request.
    fn activate(&mut self, place: u32) {
        let queue = &self.queues[place as usize];
        let flow = queue.flow.0;
        let budget_bytes = self.turn_budget(place);
        let group = &mut self.groups[flow as usize];
        group.tree.activate(&mut self.queues, place, QUEUE_WEIGHT, budget_bytes);
        match group.entity.place() {
            Place::InService => {}
            Place::Out => {
                group.class_now = group.class;
                let (class, weight) = (group.class_now, group.raised_weight());
                if class == PriorityClass::Idle && self.trees[class as usize].active() == 0 {
                    self.idle_class_since_ns = self.now_ns;
                }
                self.trees[class as usize].activate(&mut self.groups, flow, weight, budget_bytes);
            }
            Place::Waiting | Place::Eligible => {
                // The newcomer may be served before the others of its group, and then its budget is the group's.
                let next = group.tree.next(&mut self.queues).expect("one has just been activated");
                let budget_bytes = self.queues[next as usize].entity.budget_bytes();
                let class = group.class_now;
                self.trees[class as usize].rebudget(&mut self.groups, flow, budget_bytes);
            }
        }
        self.preempt_for(flow);
    }

    /// Ends the turn in service if a flow has come that goes before it: of a higher class, or raised beside a flow that
    /// is not.
    fn preempt_for(&mut self, flow: u32) {
        let Some(Turn { queue, .. }) = self.turn else { return };
        let ours = &self.groups[self.queues[queue as usize].flow.0 as usize];
        let theirs = &self.groups[flow as usize];
        let is_higher = theirs.class_now < ours.class_now;
        let is_raised = theirs.class_now == ours.class_now && theirs.raising.is_raised() && !ours.raising.is_raised();
        if is_higher || is_raised {
            self.end_turn(Expiry::Preempted);
        }
    }

    /// Budget of a turn of a queue with something staged: at least its next request.
    fn turn_budget(&mut self, place: u32) -> u64 {
        let queue = &mut self.queues[place as usize];
        let group = &self.groups[queue.flow.0 as usize];
        let budget_bytes = match () {
            () if group.class == PriorityClass::Idle => self.limits.min_bytes(),
            () if group.raising.is_raised() => self.limits.raised_bytes(),
            () => queue.budget_bytes.min(self.limits.max_bytes),
        };
        let (_, first) = queue.next(&self.requests, self.now_ns).expect("it has something staged");
        budget_bytes.max(first)
    }

    /// Decides what goes to the device now.
    pub(super) fn next(&mut self, now_ns: u64) -> Next {
        self.now_ns = self.now_ns.max(now_ns);
        if self.staged == 0 || self.options.strict_guarantees && self.peak.in_flight() > 0 {
            return Next::Nothing;
        }
        loop {
            let Some(turn) = self.turn else {
                self.begin_turn();
                continue;
            };
            touch(&self.queues, turn.queue as usize);
            let queue = &mut self.queues[turn.queue as usize];
            let ends_ns = turn.began_ns + self.options.timeout_sync_ns;
            if self.now_ns >= ends_ns {
                self.end_turn(Expiry::Timeout);
                continue;
            }
            let Some((request, charge_bytes)) = queue.next(&self.requests, self.now_ns) else {
                let (is_busy, completed_ns) = (queue.in_flight > 0, queue.completed_ns);
                let waits_until_ns = completed_ns.max(turn.began_ns) + self.options.slice_idle_ns;
                if !self.is_worth_waiting_for(turn.queue) {
                    self.end_turn(Expiry::Empty);
                } else if is_busy {
                    return Next::Nothing;
                } else if self.now_ns < waits_until_ns {
                    return Next::Later(waits_until_ns.min(ends_ns));
                } else {
                    self.end_turn(Expiry::Idle);
                }
                continue;
            };
            let served_bytes = queue.entity.served_bytes();
            if served_bytes > 0 && served_bytes.saturating_add(charge_bytes) > queue.entity.budget_bytes() {
                self.end_turn(Expiry::Exhausted);
                continue;
            }
            if !queue.is_sync && self.async_units >= self.async_units_max() {
                return Next::Nothing;
            }
            return self.dispatch(turn.queue, request);
        }
    }

    /// Another worker than `own` with something staged, to kick when `own` cannot wait for a time.
    pub(super) fn somebody_else(&mut self, own: HctxId) -> Option<HctxId> {
        for tree in 0..self.trees.len() {
            // The queue that comes next is as good as any other.
            let Some(group) = self.trees[tree].next(&mut self.groups) else { continue };
            let queue = self.groups[group as usize].tree.next(&mut self.queues)?;
            let hctx = self.queues[queue as usize].hctx;
            return (hctx != own).then_some(hctx);
        }
        None
    }

    fn dispatch(&mut self, place: u32, request: u32) -> Next {
        let queue = &mut self.queues[place as usize];
        let (flow, hctx, is_sync) = (queue.flow, queue.hctx, queue.is_sync);
        let request = queue.take(&mut self.requests, request);
        queue.in_flight += 1;
        let group = &mut self.groups[flow.0 as usize];
        group.staged -= 1;
        group.in_flight += 1;
        group.raising.serve(request.charge_bytes);
        group.tree.serve(&mut self.queues, place, request.charge_bytes);
        let class = group.class_now;
        self.trees[class as usize].serve(&mut self.groups, flow.0, request.charge_bytes);
        self.staged -= 1;
        self.async_units += if is_sync { 0 } else { request.units };
        self.peak.dispatched(self.now_ns);
        Next::Request(flow, Waiting { handle: request.handle, units: request.units, hctx })
    }

    /// Half of D, or 3/16 of it while a flow's weight is raised; at least one request.
    fn async_units_max(&self) -> u32 {
        let part = if self.raised_groups > 0 { self.depth * 3 / 16 } else { self.depth / 2 };
        part.max(1)
    }

    /// Shares would be lost if another were served before the next request of this queue, and that is likely to come
    /// soon; or the device takes one request at a time, and then it costs little.
    fn is_worth_waiting_for(&self, place: u32) -> bool {
        let queue = &self.queues[place as usize];
        let group = &self.groups[queue.flow.0 as usize];
        let idle_ns = self.options.slice_idle_ns;
        if !queue.is_sync || idle_ns == 0 || group.class_now == PriorityClass::Idle {
            return false;
        }
        let others = self.pending_groups - u32::from(group.is_pending());
        self.options.strict_guarantees || queue.think.mean_ns() <= idle_ns && (others > 0 || self.depth == 1)
    }

    /// Chooses a class, in it a group, in that a queue. Something is staged.
    fn begin_turn(&mut self) {
        let idle = PriorityClass::Idle as usize;
        let is_idle_due = self.trees[idle].active() > 0 && self.now_ns - self.idle_class_since_ns >= IDLE_CLASS_TURN_NS;
        let busy = |tree: &usize| self.trees[*tree].active() > 0;
        let class = if is_idle_due { idle } else { (0..3).find(busy).expect("what is staged is active") };
        if class == idle {
            self.idle_class_since_ns = self.now_ns;
        }
        let group = self.trees[class].select(&mut self.groups).expect("it has active groups");
        let queue =
            self.groups[group as usize].tree.select(&mut self.queues).expect("an active group has active queues");
        self.turn = Some(Turn { queue, began_ns: self.now_ns });
    }

    fn end_turn(&mut self, expiry: Expiry) {
        let Some(Turn { queue: place, .. }) = self.turn.take() else { return };
        let queue = &mut self.queues[place as usize];
        let flow = queue.flow.0;
        if queue.is_sync {
            queue.budget_bytes = self.limits.next_bytes(queue.budget_bytes, queue.entity.served_bytes(), expiry);
        }
        let group = &mut self.groups[flow as usize];
        if group.raising.lapse(self.now_ns) && group.is_pending() {
            self.raised_groups -= 1;
        }
        let next_bytes = if queue.staged > 0 { Some(self.turn_budget(place)) } else { None };
        let group = &mut self.groups[flow as usize];
        group.tree.end_turn(&mut self.queues, place, QUEUE_WEIGHT, next_bytes);
        let next = group.tree.next(&mut self.queues);
        let next_bytes = next.map(|next| self.queues[next as usize].entity.budget_bytes());
        let (class, weight) = (group.class_now, group.raised_weight());
        self.trees[class as usize].end_turn(&mut self.groups, flow, weight, next_bytes);
        let queue = &self.queues[place as usize];
        if queue.staged == 0 && queue.in_flight == 0 {
            self.make_spare(place);
        }
    }

    /// The device finished a request of `hctx` that had so many units.
    pub(super) fn complete(&mut self, hctx: HctxId, done: Done, units: u32, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let Done { flow, is_sync, kind, length_bytes, .. } = done;
        let moved_bytes = if matches!(kind, CostKind::Read | CostKind::Write) { u64::from(length_bytes) } else { 0 };
        if self.peak.completed(moved_bytes, self.now_ns) {
            self.limits =
                Limits::new(self.options.max_budget_bytes, self.peak.bytes_per_s(), self.options.timeout_sync_ns);
        }
        self.async_units -= if is_sync { 0 } else { units };
        let place = self.index[hctx.index()][slot(flow, is_sync)];
        touch(&self.queues, place as usize);
        let queue = &mut self.queues[place as usize];
        queue.in_flight -= 1;
        queue.completed_ns = self.now_ns;
        let group = &mut self.groups[flow.0 as usize];
        group.in_flight -= 1;
        if !group.is_pending() {
            self.pending_groups -= 1;
            self.raised_groups -= u32::from(group.raising.is_raised());
            group.raising.end(self.now_ns, self.options.slice_idle_ns);
        }
        if queue.staged == 0 && queue.in_flight == 0 && queue.entity.place() == Place::Out {
            self.make_spare(place);
        }
    }
}

/// A flow's queue among those of an hctx.
fn slot(flow: FlowId, is_sync: bool) -> usize {
    2 * flow.0 as usize + usize::from(is_sync)
}
