//! Policy `mqfq`: multi-queue fair queueing.
//!
//! Answers: may the first request of this queue go to the device now, and if not, which worker will tell? Source: MQFQ
//! section 2.1, Figure 2, and sections 3.1 to 3.3. Figure 2 leaves out "logic to mitigate races"; that logic is what
//! most of this text is about.
//!
//! # Example
//! Two tenants, each on a worker of its own, have many reads of 4 KiB waiting. Tenant A has weight 100 and B weight
//! 300, T is 5 KiB, D is 8 requests. At weight 100 a read is 4 KiB of virtual time long, at weight 300 a third of that.
//! So A's start tags are 0, 4, 8, 12, ... KiB and B's are 0, 1.33, 2.67, 4, ... KiB. The workers pick in turn, A first;
//! all numbers are KiB of virtual time, in the exact form:
//!
//! | worker |  gvt | start tag | gvt + T | result     |
//! |--------|-----:|----------:|--------:|------------|
//! | A      | 0.00 |     0.00 |    5.00 | dispatch 1 |
//! | B      | 0.00 |     0.00 |    5.00 | dispatch 2 |
//! | A      | 1.33 |     4.00 |    6.33 | dispatch 3 |
//! | B      | 1.33 |     1.33 |    6.33 | dispatch 4 |
//! | A      | 2.67 |     8.00 |    7.67 | throttled  |
//! | B      | 2.67 |     2.67 |    7.67 | dispatch 5 |
//! | A      | 4.00 |     8.00 |    9.00 | dispatch 6 |
//! | B      | 4.00 |     4.00 |    9.00 | dispatch 7 |
//! | A      | 5.33 |    12.00 |   10.33 | throttled  |
//! | B      | 5.33 |     5.33 |   10.33 | dispatch 8 |
//! | A      | 6.67 |    12.00 |   11.67 | throttled  |
//! | B      | 6.67 |     6.67 |   11.67 | no token   |
//!
//! Global virtual time (gvt) is the smaller of the two start tags that wait. T lets A run ahead by one request; from
//! then on A dispatches once whenever B's three reads have moved gvt by 4 KiB: one to three, as the weights say. After
//! eight dispatches all D tokens are out. If A's first read completes now, A is throttled and has no use for its token,
//! so the token wakes B, which dispatches the read at 6.67.
//!
//! # Shape
//! ```text
//!  worker's own                 shared by all workers                              file
//!  ┌───────────────────┐ lead   mindicator ── global virtual time (gvt)            mindicator.rs
//!  │ stage queue:      │──────▶ flow table ── finish tags                          account.rs
//!  │ FIFO per flow,    │ token  token tree ── D units of depth                     token_tree.rs
//!  │ flows by lead tag │◀─────▶ ready set ─── may go, has no token                 ready_set.rs
//!  └───────────────────┘        throttle wheel ─ may not go before gvt gets there  throttle_wheel.rs
//! ```
//! `submit`: start tag = later(gvt, the flow's finish tag); stage; if it is the first, publish it. `pick`: lead within
//! T of gvt? a token? then pop, publish the next lead, move gvt, turn the wheel. `complete`: the token goes to a ready
//! queue that is due before the own one, else to the own queue if that may go, else to the nearest ready one.
//!
//! A queue whose worker sleeps is in one of three states, each ended by one event:
//!
//! | state     | stands in             | ended by                                                                     |
//! |-----------|-----------------------|------------------------------------------------------------------------------|
//! | Idle      | nothing               | its own `submit`                                                             |
//! | Throttled | wheel, mindicator     | worker moving gvt to its slot: marks it ready, kicks if the root has a token |
//! | NoToken   | ready set, mindicator | worker giving a token back: claims the mark, kicks                           |
//!
//! # Invariants
//! I1-I9 of ARCHITECTURE.md, "What must always hold". Of these, the policy makes:
//! P1. A leaf of the mindicator shows the lead of its queue, moved into [gvt, gvt + `HORIZON`] and rounded down to a
//!     quantum that was in force since the queue last announced, whenever no operation on the queue is under way; and
//!     the worker that changed a leaf calls `query` and turns the wheel before it returns.
//! P2. A free token below the root lies on the path of a queue whose worker is awake: it is running, was kicked, or
//!     owes a pick (`policy/mod.rs`). A worker that goes to sleep leaves nothing on its path (`percolate`), save in
//!     state NoToken, where it found nothing there.
//! P3. If a free token lies at the root and a sleeping queue is marked ready, an awake worker has yet to search the
//!     ready set.
//!
//! P2 and P3 together are I4: with no worker awake, every free token is at the root, so no queue is marked; and a queue
//! that may go is marked, because the worker that moved gvt that far took it out of the wheel, which marks it.
//!
//! # Races
//! **Token given back against ready mark** (P3). Both sides write, fence, look.
//! | step | A picks, no token                        | B completes, none ready                          |
//! |------|------------------------------------------|--------------------------------------------------|
//! |  1   | acquire fails                            | search finds none                                |
//! |  2   | marks itself ready, **fence**            | token to the root, **fence**                     |
//! |  3   | acquires again                           | searches again, at the end of its next pick      |
//! A's fence first: B's second search claims A and kicks. B's first: A's second acquire finds the token. A may also be
//! claimed although it found a token: the kick makes it pick once more, for nothing.
//!
//! **Virtual time against the wheel** (I4, T). The same shape, inside `throttle` and `turn`; the table is in
//! `throttle_wheel.rs`. The turner then does what A does above on behalf of the queue that it took out: mark, fence,
//! look for a token at the root.
//!
//! **A kicked queue that has no use for the token.** B claims Q and puts a token on the path that they share, while Q's
//! own earlier pick has just emptied Q.
//! | step | B completes                 | Q                                         | R, ready, asleep |
//! |------|-----------------------------|-------------------------------------------|------------------|
//! |  1   | claims Q's mark             | picks: Idle, percolates nothing           |                  |
//! |  2   | token to LCA(B, Q), kicks Q |                                           |                  |
//! |  3   |                             | picks: Idle *again*, percolates, searches | is kicked        |
//! So every pick that ends in Idle or Throttled percolates and searches, not only the first. The mark may also be a
//! wrong one, left behind by a turner for a queue that has gone on meanwhile: the same chain passes it on. A search
//! wakes as many as there are tokens at the root; one that is woken and takes none searches in its turn. No fence is
//! needed there: the waker's fence after it put the token happens before the kicked worker's search.
//!
//! **A turner marks the very queue that is about to sleep.** Tokens lie at the root; no other queue is ready.
//! | step | A picks, throttled              | B turns the wheel              | ready set |
//! |------|---------------------------------|--------------------------------|-----------|
//! |  1   | takes a place in the wheel      |                                |           |
//! |  2   |                                 | takes A out, marks it          | A         |
//! |  3   | searches for others, claims *A* |                                | none      |
//! |  4   |                                 | searches, finds none to kick   | none      |
//! A has claimed its own wake-up, so it does not sleep: the pick starts again.
//!
//! **The last request of the slowest queue.** Its dispatch empties the queue, and that may move gvt for all queues. So
//! depart, query and turn follow in the same pick; nothing is left for the pick that answers Idle.
//!
//! **Both raise, neither sees the minimum.** A's and B's leaves go up together and each finds the root still held down
//! by the other. Mindicator M3: the later of the two brings the root up, and *it* has yet to query. A stale gvt delays,
//! none is lost.
//!
//! **A late, low lead.** A takes a start tag and is stopped; the others move gvt past it; A stages and publishes. gvt
//! does not go back (I8); the leaf shows gvt instead, which changes no minimum; the request may go at once. Its flow
//! was not backlogged before, so no bound is touched but that of an interval which begins while the submit is under
//! way.
//!
//! **An earlier head in a throttled queue.** Its owner publishes it, and by contract picks: the pick withdraws the
//! queue from the wheel, whatever slot it was in, and decides afresh.
//!
//! # Bounded unfairness (Theorems 1 and 2, and tighter)
//! Let f and m be backlogged throughout an interval, gvt = v1 at its start and v2 at its end. A backlogged flow's
//! requests tile the axis; what was dispatched before has start tags <= v1 + T; what is staged has start tags >= gvt.
//! So f dispatches at most what starts in [v1, v2 + T], and at least what starts in (v1 + T, v2):
//!
//! ```text
//!   v2 - v1 - T - l_f/r_f  <=  dispatched_f / r_f  <=  v2 - v1 + T + l_f/r_f
//!   two flows:     |dispatched_f / r_f - dispatched_m / r_m|  <=  2T + l_f/r_f + l_m/r_m
//!   and, as completed differs from dispatched by what is on the device at either end, at most D requests:
//!                  |completed_f / r_f - completed_m / r_m|    <=  2T + (D + 1) (l_f/r_f + l_m/r_m)
//! ```
//! The paper has D + 1 times 2T. With token units the device holds at most D + u - 1 units of `unit` bytes (u: those of
//! the largest request, not clamped to D), and `(D + u - 1) unit / r` stands in place of `D l / r`. Tags are rounded by
//! less than a grain, once per flow and end: a quarter byte in all at the default weight.
//!
//! # A window that changes
//! `set_window` puts another T, q and L in force while workers run. Example: two flows read 4 KiB each, T is 256 KiB,
//! and the first request of m waits at 0. So gvt is 0, and f is dispatched up to start tag 256 KiB: 65 requests. Now T
//! becomes 16 KiB. f's next starts at 260 KiB and may go once gvt is 244 KiB, after 61 requests of m: 244 KiB apart,
//! over an interval in which T was 16 KiB throughout. The T of an interval alone says nothing. What counts is how far
//! ahead of gvt a request can start that was dispatched until then. Let
//!
//! ```text
//!   s(t) = largest gvt + T of all moments until t        no request dispatched until t starts after it
//!   a(t) = s(t) - gvt                                    the window in effect: T, or if T was lowered by x and gvt
//!                                                        has moved by y since, T + x - y, if that is more
//! ```
//! In the argument above a request dispatched before the interval starts at or before s1 (in place of v1 + T), and one
//! dispatched in it at or before s2 (in place of v2 + T). So with a1 = s1 - v1 and a2 = s2 - v2
//!
//! ```text
//!   |dispatched_f / r_f - dispatched_m / r_m|  <=  a1 + a2 + l_f/r_f + l_m/r_m
//! ```
//! which is at most twice the largest T of the interval, if a T that was lowered counts until gvt has moved by the
//! difference. In the example a1 is 256 KiB. Likewise a D that was lowered counts until what is out has come down to it
//! (T2 in `token_tree.rs`), and L is the longest lease since the flow was last idle: credit and what is in hand only
//! shrink under a shorter one (L1 in `flow/account.rs`).
//!
//! The three words are read one by one, and a reader may see some of them changed and some not. That harms nothing that
//! was proved: a request goes by one T, which was in force; any q gives a gvt that lags; any L is a lease. But a leaf
//! that was rounded by an old q may hold gvt more than the new T below the lead, which would throttle the very queue
//! for ever (I5). So a queue that is about to wait rounds its lead anew, and looks whether it still should when it has
//! its place; the setter of the window empties the wheel ("A window that changes", `throttle_wheel.rs`):
//!
//! | step | A: throttles itself                                  | B: T := 16 KiB, q := 8 KiB       |
//! |------|------------------------------------------------------|----------------------------------|
//! |  1   | leaf := lead, rounded by q; takes a place, **fence** | q, L, T := new, **fence**        |
//! |  2   | reads q and T: if they are others, begins again      | empties the wheel, marks A ready |
//!
//! Either A's fence is first, and B finds A in the wheel; or B's, and A sees all of the new numbers. A queue without a
//! token or with a full device queue may keep an old leaf: it is ready, and its next pick is one of the above. B marks
//! and does not kick: it picks after it, or pauses, and finds the marks in the search in which that ends (P3).
//!
//! # The relaxed form
//! Three numbers of [`PolicyOptions`] trade exactness in virtual time for shared lines that are written less often.
//! With 0, 0 and 1 they are the paper's.
//!
//! *Quantum q.* Leaves show leads rounded down to q, so gvt moves in steps of q, and an operation that leaves the
//! rounded lead as it was touches nothing shared. The argument above needs of gvt only that no staged request starts
//! before it and that no request starts more than T after it when it goes; a gvt that is rounded down has both, so the
//! bound stays as it is. The price of q is concurrency: the queue of the smallest lead m sees gvt at m - q at worst, so
//! it is T - q that it may run ahead. It can always go, because q <= T/2.
//!
//! *Lease L.* `flow/account.rs`, "Leases": what a flow's requests cost between two points of the axis differs from
//! their distance by at most k L, for a flow on k > 1 queues. In the argument above that is k L more at either side:
//!
//! ```text
//!   |dispatched_f / r_f - dispatched_m / r_m|  <=  2T + l_f/r_f + l_m/r_m + k_f L + k_m L
//! ```
//! and a flow on one queue adds nothing. I9 holds in each queue: a request that was submitted later elsewhere may have
//! the earlier start tag, by what is leased in between.
//!
//! *Who is due.* `due.rs`: a token that comes back may go to another queue, whose tenant has no second request there.
//!
//! *Token batch.* A queue that must go to the tree takes tokens for what it has staged, and the tokens of completed
//! requests stay at the leaf until the pick that follows. P2 covers both: the worker is awake and owes a pick, which
//! uses them or, before the worker sleeps, moves them to the root and searches the ready set. The bound has no term for
//! tokens beyond D. A queue that waits for one may wait for the end of the others' run; it cannot be passed by more
//! than T.
//!
//! # Other structures
//! `Mqfq<S>` is the same policy over anything that keeps the promises of `structures.rs`, to be compared with what
//! ships. A store of tokens without paths has them all at its root, also tokens that `complete` gives back for the own
//! queue. Their worker is awake and owes a pick. Either that takes a token; or it finds none after its mark and its
//! fence, so another has taken it; or it ends in `rest`, whose `percolate` fences and which searches the ready set.
//! That is P3.
//!
//! # Cost
//! A request on a queue that keeps its tokens, in the paper's form: submit one load of gvt and one add on the flow's
//! line; pick a load of gvt, a load and a store of the own token leaf, a store on the own mindicator leaf (with a
//! fence) and loads of shared lines that change once per move of the minimum; complete a load and a store of the own
//! token leaf. In the relaxed form the add happens once per L of the flow's service, the mindicator's part once per q
//! of virtual time. No lock, no loop over queues.

pub(super) mod about;
mod due;
mod in_group;
mod leave;
mod queue;
pub mod structures;

pub use self::queue::MqfqQueue;
use self::queue::{Queue, Waiting, share_of};
use self::structures::{Shipped, Structures, Tokens, VirtualTime, Wheel};
use super::{
    Descriptor, DispatchToken, Done, Entry, Grant, Handle, Kick, NoOptions, NotDirect, Pick, Policy, PolicyError,
    PolicyOptions, Registered, WindowTerms,
};
use crate::cost::Cost;
use crate::flow::{
    Ahead, EffectiveWeight, FlowId, FlowTable, GroupId, Interval, Lease, TAG_GRAIN, Tree, Weight, align,
};
use crate::mindicator::Mindicator;
use crate::ready_set::ReadySet;
use crate::stage_queue::{StageQueue, Staged};
use crate::sync::{AtomicU32, Ordering, Setting};
use crate::throttle_wheel::ThrottleWheel;
use crate::token_tree::TokenTree;
use crate::topology::{HctxId, Topology};
use crate::vtime::{VSpan, VTime};
use about::ABOUT;

/// Largest distance ahead of gvt at which a leaf of the mindicator shows a lead. A lead may be farther (1 TiB at weight
/// 1 is 2^57 units long), the mindicator compares only up to its reach; a leaf that shows less than the lead is moved
/// on by `announce`.
const HORIZON: VSpan = VSpan(1 << 53);

const _: () = assert!(HORIZON.0 < Mindicator::REACH.0 && PolicyOptions::WINDOW_MAX.0 < HORIZON.0);
// A minimum that the mindicator rounded would not be the tag that it stands for.
const _: () = assert!(TAG_GRAIN.0 == Mindicator::GRAIN.0);

/// Multi-queue fair queueing, over what ships unless `S` says otherwise. See the module's text.
pub struct Mqfq<S: Structures = Shipped> {
    options: PolicyOptions,
    /// Mask that clears all below a quantum.
    quantum_mask: Setting,
    /// L, units; 0 in the exact form, which it does not leave.
    lease: Setting,
    flows: FlowTable,
    virtual_time: S::VirtualTime,
    tokens: S::Tokens,
    wheel: S::Wheel,
    ready: ReadySet,
    /// `PolicyOptions::token_batch` and `token_share`, which follow D. Read by queues of a device whose D changes, when
    /// they go to the tree anyway; each has a copy.
    token_batch: AtomicU32,
    token_share: AtomicU32,
    hctx_count: usize,
}

/// Mask that clears all below `quantum` from a point of virtual time.
const fn mask_of(quantum: VSpan) -> u64 {
    if quantum.0 > TAG_GRAIN.0 { !(quantum.0 - 1) } else { !(TAG_GRAIN.0 - 1) }
}

impl Mqfq {
    /// A scheduler for the queues of `topology`. The options have been validated.
    pub fn new(options: &PolicyOptions, topology: &Topology, weights: &[Weight]) -> Self {
        let start = align(options.start);
        let virtual_time = Mindicator::new(topology, start);
        let tokens = TokenTree::for_requests(topology, options.depth, options.units_max());
        let hctxs = topology.hctx_count();
        let wheel = match options.window_least {
            None => ThrottleWheel::with_quantum(hctxs, options.window, options.quantum, start),
            Some(least) => ThrottleWheel::for_windows(hctxs, least, options.window, start),
        };
        Mqfq::build(options, topology, weights, (virtual_time, tokens, wheel))
    }
}

impl<S: Structures> Mqfq<S> {
    /// A scheduler over other structures, which are as the options say (D, T and the start of virtual time, rounded
    /// down to [`TAG_GRAIN`]), for the queues of `topology` and one flow per weight. The options' kind is not looked
    /// at.
    ///
    /// # Errors
    /// The first thing wrong with the options or the number of flows.
    pub fn with_structures(
        options: &PolicyOptions,
        topology: &Topology,
        weights: &[Weight],
        structures: (S::VirtualTime, S::Tokens, S::Wheel),
    ) -> Result<Self, PolicyError> {
        options.validate_for(weights)?;
        Ok(Mqfq::build(options, topology, weights, structures))
    }

    fn build(
        options: &PolicyOptions,
        topology: &Topology,
        weights: &[Weight],
        (virtual_time, tokens, wheel): (S::VirtualTime, S::Tokens, S::Wheel),
    ) -> Self {
        Mqfq {
            options: *options,
            quantum_mask: Setting::new(mask_of(options.quantum), options.window_least.is_some()),
            lease: Setting::new(options.lease.0, options.window_least.is_some()),
            flows: FlowTable::new(weights, align(options.start)),
            virtual_time,
            tokens,
            wheel,
            ready: ReadySet::new(topology),
            token_batch: AtomicU32::new(options.token_batch),
            token_share: AtomicU32::new(options.token_share),
            hctx_count: topology.hctx_count(),
        }
    }

    /// Smallest lead start tag over all queues, never going back.
    pub fn global_vtime(&self) -> VTime {
        self.virtual_time.global_vtime()
    }

    /// D as it is now; `None` over structures whose D cannot be changed.
    pub fn depth(&self) -> Option<u32> {
        self.tokens.depth()
    }

    /// Units of D in the token tree. Exact only while no worker is inside the policy.
    pub fn free_units(&self) -> i64 {
        self.tokens.total_units()
    }

    /// A lead as a leaf shows it: rounded down to the quantum.
    #[inline]
    fn quantised(&self, lead: VTime) -> VTime {
        VTime::from_raw(lead.raw() & self.quantum_mask.get())
    }

    /// T and what goes with it, in force.
    fn terms(&self) -> WindowTerms {
        if self.options.window_least.is_none() {
            return self.options.terms();
        }
        let quantum = !self.quantum_mask.get() + 1;
        WindowTerms {
            window: self.wheel.window(),
            quantum: VSpan(if quantum > TAG_GRAIN.0 { quantum } else { 0 }),
            lease: VSpan(self.lease.get()),
        }
    }

    /// True if the leaf shows less than it should of this lead: it was farther than `HORIZON`.
    #[inline]
    fn is_far(&self, queue: &Queue<S>, lead: VTime) -> bool {
        queue.shown.is_before(self.quantised(lead))
    }

    /// Publishes the lead of a queue, or that it has none. True if the leaf has changed.
    fn publish(&self, queue: &mut Queue<S>) -> bool {
        let Some(lead) = queue.stage.lead() else {
            let was_shown = core::mem::replace(&mut queue.is_shown, false);
            if was_shown {
                self.virtual_time.depart(queue.hctx);
            }
            return was_shown;
        };
        let now = self.virtual_time.global_vtime();
        let shown = self.quantised(lead.later(now).earlier(now.plus(HORIZON)));
        if queue.is_shown && queue.shown == shown {
            return false;
        }
        (queue.shown, queue.is_shown) = (shown, true);
        self.virtual_time.publish(queue.hctx, shown);
        true
    }

    /// Publishes the lead of a queue, or that it has none (P1).
    #[inline]
    fn announce(&self, queue: &mut Queue<S>, kick: &mut impl Kick) {
        let is_told = match queue.stage.lead() {
            Some(lead) => queue.is_shown && queue.shown == self.quantised(lead),
            None => !queue.is_shown,
        };
        if !is_told {
            self.announce_change(queue, kick);
        }
    }

    #[inline(never)]
    fn announce_change(&self, queue: &mut Queue<S>, kick: &mut impl Kick) {
        while self.publish(queue) {
            self.advance(queue.hctx, kick);
            // Again only if the lead is farther than the leaf can show, and what it shows was the smallest: then gvt
            // has come there, and the leaf can show more.
            let far = queue.stage.lead().is_some_and(|lead| self.is_far(queue, lead));
            if !far || self.global_vtime().is_before(queue.shown) {
                return;
            }
        }
    }

    /// After each change of a leaf: moves gvt, turns the wheel, and wakes the queues that may go now (P1).
    fn advance(&self, from: HctxId, kick: &mut impl Kick) {
        let now = self.virtual_time.query();
        let mut unthrottled = false;
        self.wheel.turn(now, |hctx| {
            self.ready.mark(hctx);
            unthrottled = true;
        });
        self.flows.refresh_if_due(now);
        if unthrottled {
            // If this takes our own mark, nothing is lost: we are in an operation after which our worker picks.
            self.wake_ready(from, kick);
        }
    }

    /// Kicks ready queues, nearest first, one for each token at the root. True if our own mark was among them.
    fn wake_ready(&self, from: HctxId, kick: &mut impl Kick) -> bool {
        let mut own = false;
        let mut tokens = self.tokens.root_units();
        while tokens > 0 {
            match self.ready.take_nearest(from) {
                Some(hctx) if hctx == from => own = true,
                Some(hctx) => {
                    kick.kick(hctx);
                    tokens -= 1;
                }
                None => break,
            }
        }
        own
    }

    /// Before this worker may sleep in Idle or Throttled: tokens on its path go to others (P2, P3). True if one of
    /// these is the worker itself: a turner has marked it, so pick again.
    fn rest(&self, hctx: HctxId, kick: &mut impl Kick) -> bool {
        self.ready.answer(hctx);
        self.tokens.percolate(hctx);
        self.wake_ready(hctx, kick)
    }

    /// Stages a request of a flow that has no other in this queue.
    #[inline(never)]
    fn submit_first(&self, queue: &mut Queue<S>, flow: FlowId, cost: Cost, payload: Waiting, kick: &mut impl Kick) {
        let now = self.virtual_time.global_vtime();
        let (interval, lease) = if self.lease.get() == 0 {
            (self.flows.charge(flow, cost, now), Lease::default())
        } else {
            self.flows.charge_first(flow, cost, now)
        };
        let Interval { start_tag, span } = interval;
        if queue.stage.push_lane(Staged { flow, start_tag, span, payload }, lease) {
            self.announce(queue, kick);
        }
    }

    /// We are awake and need not be woken: Figure 2 begins with the same two steps. A turner that has just taken us out
    /// of the wheel may mark us after this; the mark then leads to a kick for nothing.
    #[inline(never)]
    fn unlist(&self, queue: &mut Queue<S>) {
        queue.is_listed = false;
        self.ready.unmark(queue.hctx);
        self.ready.set_shallow(queue.hctx, false);
        self.ready.answer(queue.hctx);
        if let Some(place) = queue.place.take() {
            // If a turner has it, its mark may come yet: the next pick looks once more.
            queue.is_listed = !self.wheel.withdraw(queue.hctx, place);
        }
    }

    /// Puts a queue to wait until its lead is due. False if it must pick again.
    #[inline(never)]
    fn throttle(&self, queue: &mut Queue<S>, lead: VTime, kick: &mut impl Kick) -> bool {
        let mut wanted = lead;
        if self.is_far(queue, lead) {
            self.announce_change(queue, kick);
            // By what the leaf shows and not by the lead: gvt comes to the first and not by itself to the second.
            if self.is_far(queue, lead) {
                wanted = queue.shown;
            }
        }
        queue.is_listed = true;
        queue.place = self.wheel.throttle(queue.hctx, wanted, || self.virtual_time.global_vtime());
        // A quantum that was set meanwhile: what the leaf shows is to be rounded by that one, or virtual time may stop
        // before the place. `throttle` has fenced: if the setter did not find our place, we see what it has set.
        if wanted == lead && self.is_far(queue, lead) {
            return false;
        }
        queue.place.is_some() && !self.rest(queue.hctx, kick)
    }

    /// Takes over what a queue's part of D is now. On ways that go to shared lines anyway: a queue whose part has grown
    /// gets here by giving a token away, one whose part has shrunk when its own tokens have gone into the debt.
    #[inline]
    fn follow_depth(&self, queue: &mut Queue<S>) {
        if self.options.depth_auto {
            // Relaxed: numbers that say which queue keeps tokens, not how many there are.
            let share = share_of(self.token_share.load(Ordering::Relaxed));
            queue.room += share - queue.share;
            queue.share = share;
            // Relaxed: as above.
            queue.batch = self.token_batch.load(Ordering::Relaxed);
        }
    }

    /// A token for the first request of `queue`, and if they are there also for the requests behind it; or None with
    /// the queue marked ready.
    #[inline(never)]
    fn acquire(&self, queue: &mut Queue<S>, units: u32) -> Option<DispatchToken> {
        self.follow_depth(queue);
        let hctx = queue.hctx;
        if self.yields(queue) {
            return None;
        }
        let spare = queue.batch.min(queue.stage.len() as u32) - 1;
        if let Some(token) = self.tokens.acquire_batch(hctx, units, spare) {
            return Some(token);
        }
        self.ready.answer(hctx);
        self.ready.set_shallow(hctx, queue.stage.first_is_alone());
        // Ends with the fence of the first table.
        self.ready.mark(hctx);
        let token = self.tokens.acquire_batch(hctx, units, spare);
        if token.is_some() {
            self.ready.unmark(hctx);
            self.ready.set_shallow(hctx, false);
        } else {
            queue.is_listed = true;
        }
        token
    }

    /// A single token goes to the nearest queue that can use it, over the node that we share. Several may serve several
    /// queues, and while the root owes, no queue can use any: both go over the root.
    #[inline]
    fn is_for_one(&self, token: &DispatchToken) -> bool {
        token.units() == 1 && !self.tokens.is_in_debt()
    }

    /// Gives a token to the nearest queue that waits for one; back if there is none.
    #[inline(never)]
    fn give_away(&self, hctx: HctxId, token: DispatchToken, kick: &mut impl Kick) -> Option<DispatchToken> {
        let Some(nearest) = self.ready.take_nearest(hctx) else { return Some(token) };
        self.tokens.release_toward(hctx, nearest, token);
        // Our own mark is of no use: we pick after this.
        if nearest != hctx {
            kick.kick(nearest);
        }
        None
    }

    /// Gives a token that the own queue cannot use to the nearest that can.
    #[inline(never)]
    fn pass_on(&self, hctx: HctxId, token: DispatchToken, kick: &mut impl Kick) {
        let mut token = Some(token);
        if token.as_ref().is_some_and(|token| self.is_for_one(token)) {
            self.ready.unmark(hctx);
            token = token.and_then(|token| self.give_away(hctx, token, kick));
        }
        let Some(token) = token else { return };
        // Ends with the fence of the first table. A queue that became ready since we looked is found by the pick that
        // follows.
        self.tokens.release_root(hctx, token);
    }
}

// The three operations are inlined by force into `AnyPolicy`: with `mqfq-serial` as a second caller the compiler would
// not, and what a call saves and restores is a fifth of what an operation does.
impl<S: Structures> Policy for Mqfq<S> {
    type Queue = Queue<S>;
    type Direct<'a>
        = NotDirect
    where
        Self: 'a;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> Queue<S> {
        let stage = StageQueue::new(capacity_requests);
        MqfqQueue {
            hctx,
            stage,
            shown: self.global_vtime(),
            is_shown: false,
            place: None,
            yields_to: None,
            is_listed: false,
            room: share_of(self.options.token_share),
            share: share_of(self.options.token_share),
            batch: self.options.token_batch,
        }
    }

    #[inline(always)]
    fn submit(&self, queue: &mut Queue<S>, entry: Entry, _now_ns: u64, kick: &mut impl Kick) {
        let Entry { flow, cost, handle, .. } = entry;
        let now = self.virtual_time.global_vtime();
        let payload = Waiting { handle: handle.0, units: self.options.units_of(&entry) };
        let Some(mut behind) = queue.stage.behind(flow) else {
            return self.submit_first(queue, flow, cost, payload, kick);
        };
        let interval = match self.lease.get() {
            0 => match self.flows.charge_alone(flow, cost, now) {
                None => return behind.defer(cost, payload),
                alone => alone,
            },
            lease => self.flows.charge_alone_leased(flow, cost, now, behind.kept_mut(), VSpan(lease)),
        };
        let Some(Interval { start_tag, span }) = interval else {
            return self.submit_in_group(behind, flow, cost, now, payload);
        };
        behind.push(start_tag, span, payload);
    }

    #[inline(always)]
    fn pick(&self, queue: &mut Queue<S>, _now_ns: u64, kick: &mut impl Kick) -> Pick {
        loop {
            if queue.is_listed {
                self.unlist(queue);
            }
            let Some(lead) = queue.stage.peek() else {
                if self.rest(queue.hctx, kick) {
                    continue;
                }
                return Pick::Idle;
            };
            if !self.wheel.is_due(lead.start_tag, self.virtual_time.global_vtime()) {
                if !self.throttle(queue, lead.start_tag, kick) {
                    continue;
                }
                return Pick::Throttled;
            }
            let Waiting { handle, units } = lead.payload;
            let token = match self.tokens.acquire_own(queue.hctx, units) {
                Some(token) => token,
                None => match self.acquire(queue, units) {
                    Some(token) => token,
                    None => return Pick::NoToken,
                },
            };
            let next = queue.stage.drop_first_and(
                |flow, cost, lease| self.promote(flow, cost, lease),
                |at: &Option<Ahead>, cost, lease| at.as_ref()?.cut(cost, lease).map(|it| (it.start_tag, it.span)),
                |flow, lease| self.flows.give_back(flow, lease),
            );
            debug_assert!(queue.is_shown, "a queue with a lead shows one (P1)");
            if next.is_none_or(|lead| queue.shown != self.quantised(lead)) {
                self.announce(queue, kick);
            }
            queue.room -= units as i32;
            return Pick::Dispatch(Grant { handle: Handle(handle), flow: lead.flow, token });
        }
    }

    #[inline(always)]
    fn complete(&self, queue: &mut Queue<S>, _done: Done, token: DispatchToken, _now_ns: u64, kick: &mut impl Kick) {
        let units = token.units() as i32;
        queue.room += units;
        let token = if queue.room > units {
            token
        } else {
            match self.share_out(queue, token, kick) {
                Some(token) => token,
                None => return,
            }
        };
        let is_due = |lead| self.wheel.is_due(lead, self.virtual_time.global_vtime());
        if queue.batch > 1 || queue.stage.lead().is_some_and(is_due) {
            // The pick that follows takes it, or passes it on (P2). In the paper's form it takes it: it cannot be
            // throttled by then, since gvt does not go back, and a lead that comes before this one is due too.
            self.tokens.release_local(queue.hctx, token);
        } else {
            self.pass_on(queue.hctx, token, kick);
        }
    }

    fn pause(&self, queue: &mut Queue<S>, kick: &mut impl Kick) {
        // A mark of our own that this takes is no loss: the worker picks when its device queue has room.
        self.rest(queue.hctx, kick);
    }

    #[inline(never)]
    fn withdraw(&self, queue: &mut Queue<S>, name: (FlowId, Handle, Cost), kick: &mut impl Kick) -> bool {
        Mqfq::withdraw(self, queue, name, kick)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.flows.set_weight(flow, weight);
    }

    fn retire(&self, flow: FlowId) -> bool {
        self.flows.retire(flow, self.global_vtime());
        true
    }

    fn set_depth(&self, from: HctxId, depth: u32, kick: &mut impl Kick) -> bool {
        if !(1..=PolicyOptions::DEPTH_MAX).contains(&depth) || !self.tokens.set_depth(depth) {
            return false;
        }
        if self.options.tokens_follow_depth {
            let (batch, share) = PolicyOptions::token_parts(depth, self.hctx_count);
            // Relaxed: as in `follow_depth`.
            self.token_batch.store(batch, Ordering::Relaxed);
            self.token_share.store(share, Ordering::Relaxed);
        }
        // P3: tokens lie at the root, and we are awake. If this takes our own mark, nothing is lost: we pick after it.
        self.wake_ready(from, kick);
        true
    }

    fn set_group_weight(&self, group: GroupId, weight: Weight) {
        if self.flows.has_groups() {
            self.flows.set_group_weight(group, weight);
        }
    }

    fn set_window(&self, terms: &WindowTerms) {
        let WindowTerms { window, quantum, lease } = *terms;
        let is_exact = self.lease.get() == 0;
        assert_eq!(lease.0 == 0, is_exact, "a lease of {lease:?}: the form stays");
        self.quantum_mask.set(mask_of(quantum));
        self.lease.set(lease.0);
        self.flows.set_step_period(PolicyOptions::step_period(window));
        // Last: it fences, so that a queue that sees this window after it took a place sees all three.
        self.wheel.set_window(window, |hctx| self.ready.mark(hctx));
    }

    fn window_terms(&self) -> Option<WindowTerms> {
        Some(self.terms())
    }

    fn is_out_of_units(&self) -> bool {
        self.tokens.root_units() <= 0
    }

    fn staged_flows(&self, queue: &Queue<S>) -> usize {
        queue.stage.flows()
    }

    fn staged(&self, queue: &Queue<S>) -> usize {
        queue.stage.len()
    }
}

impl Registered for Mqfq {
    const ABOUT: Descriptor = ABOUT;

    type Options = NoOptions;

    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(Mqfq::new(options, topology, flows))
    }

    fn set_tree(&mut self, tree: &Tree) {
        self.flows.set_tree(tree, PolicyOptions::step_period(self.options.window));
    }

    fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
        Some(self.flows.effective_weight(flow, self.global_vtime()))
    }

    fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        self.flows.effective_weight_of(group)
    }

    fn global_vtime(&self) -> Option<VTime> {
        Some(self.global_vtime())
    }

    fn depth(&self) -> Option<u32> {
        self.depth()
    }

    fn free_units(&self) -> Option<i64> {
        Some(self.free_units())
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;
