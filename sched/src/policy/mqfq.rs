//! Policy `mqfq`: multi-queue fair queueing.
//!
//! Answers: may the first request of this queue go to the device now, and if not, who will tell? Source: MQFQ section
//! 2.1, Figure 2, and sections 3.1 to 3.3. Figure 2 leaves out "logic to mitigate races"; that logic is what most of
//! this text is about.
//!
//! # Shape
//! ```text
//!  worker's own                 shared by all workers                              file
//!  ┌───────────────────┐ lead   mindicator ── global virtual time (gvt)            mindicator.rs
//!  │ stage queue:      │──────▶ flow table ── finish tags                          flow.rs
//!  │ FIFO per flow,    │ token  token tree ── D units of depth                     token_tree.rs
//!  │ flows by lead tag │◀─────▶ ready set ─── may go, has no token                 ready_set.rs
//!  └───────────────────┘        throttle wheel ─ may not go before gvt gets there  throttle_wheel.rs
//! ```
//! `submit`: start tag = later(gvt, the flow's finish tag); stage; if it is the first, publish it. `pick`: lead within
//! T of gvt? a token? then pop, publish the next lead, move gvt, turn the wheel. `complete`: the token goes to the own
//! queue if that may go, else to the nearest ready one.
//!
//! A queue whose worker sleeps is in one of three states, each with somebody who ends it:
//!
//! | state     | stands in             | ended by                                                                     |
//! |-----------|-----------------------|------------------------------------------------------------------------------|
//! | Idle      | nothing               | its own `submit`                                                             |
//! | Throttled | wheel, mindicator     | whoever moves gvt to its slot: marks it ready, kicks if the root has a token |
//! | NoToken   | ready set, mindicator | whoever gives a token back: claims the mark, kicks                           |
//!
//! # Invariants
//! I1-I9 of ARCHITECTURE.md, "What must always hold". Those that are made here:
//! P1. A leaf of the mindicator shows the lead of its queue, moved into [gvt, gvt + `HORIZON`], whenever no operation
//!     on the queue is under way; and whoever changed a leaf calls `query` and turns the wheel before it returns.
//! P2. A free token below the root lies on the path of a queue whose worker is awake: it is running, was kicked, or
//!     owes a pick (`policy/mod.rs`). A worker that goes to sleep leaves nothing on its path (`percolate`), save in
//!     state NoToken, where it found nothing there.
//! P3. If a free token lies at the root and a sleeping queue is marked ready, somebody awake has yet to search the
//!     ready set.
//!
//! P2 and P3 together are I4: with nobody awake, every free token is at the root, so nobody is marked; and a queue that
//! may go is marked, because whoever moved gvt that far took it out of the wheel, which marks it.
//!
//! # Races
//! **Token given back against ready mark** (P3). Both sides write, fence, look.
//! | step | A picks, no token                        | B completes, nobody ready                        |
//! |------|------------------------------------------|--------------------------------------------------|
//! |  1   | acquire fails                            | search finds nobody                              |
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
//! **A turner marks the very queue that is about to sleep.** Tokens lie at the root; nobody else is ready.
//! | step | A picks, throttled              | B turns the wheel              | ready set |
//! |------|---------------------------------|--------------------------------|-----------|
//! |  1   | takes a place in the wheel      |                                |           |
//! |  2   |                                 | takes A out, marks it          | A         |
//! |  3   | searches for others, claims *A* |                                | none      |
//! |  4   |                                 | searches, finds nobody to kick | none      |
//! A has claimed its own wake-up, so it does not sleep: the pick starts again.
//!
//! **The last request of the slowest queue.** Its dispatch empties the queue, and that may move gvt for everybody. So
//! depart, query and turn follow in the same pick; nothing is left for the pick that answers Idle.
//!
//! **Both raise, neither sees the minimum.** A's and B's leaves go up together and each finds the root still held down
//! by the other. Mindicator M3: the later of the two brings the root up, and *it* has yet to query. A stale gvt delays,
//! nobody's is lost.
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
//! # Cost
//! A request on a queue that keeps its tokens: submit one load of gvt and one add on the flow's line; pick a load of
//! gvt, one read-modify-write on the own token leaf, a store on the own mindicator leaf (with a fence) and loads of
//! shared lines that change once per move of the minimum; complete one read-modify-write on the own token leaf. No
//! lock, no loop over queues.

use super::{DispatchToken, Entry, Grant, Handle, Kick, Pick, Policy, PolicyOptions};
use crate::flow::{FlowId, FlowTable, Interval, TAG_GRAIN, Weight, align};
use crate::mindicator::Mindicator;
use crate::ready_set::ReadySet;
use crate::stage_queue::{StageQueue, Staged};
use crate::throttle_wheel::{ThrottleWheel, WheelSlot};
use crate::token_tree::TokenTree;
use crate::topology::{HctxId, Topology};
use crate::vtime::{VSpan, VTime};

/// How far ahead of gvt a leaf of the mindicator shows a lead. A lead may be farther (1 TiB at weight 1 is 2^57 units
/// long), the mindicator compares only up to its reach; a leaf that shows less than the lead is moved on by `announce`.
const HORIZON: VSpan = VSpan(1 << 53);

const _: () = assert!(HORIZON.0 < Mindicator::REACH.0 && PolicyOptions::WINDOW_MAX.0 < HORIZON.0);
// A minimum that the mindicator rounded would not be the tag that it stands for.
const _: () = assert!(TAG_GRAIN.0 == Mindicator::GRAIN.0);

/// Multi-queue fair queueing. See the module's text.
pub struct Mqfq {
    options: PolicyOptions,
    flows: FlowTable,
    mindicator: Mindicator,
    tokens: TokenTree,
    wheel: ThrottleWheel,
    ready: ReadySet,
}

/// What one worker owns.
pub struct MqfqQueue {
    hctx: HctxId,
    stage: StageQueue<Waiting>,
    /// What the own leaf of the mindicator shows, while something is staged.
    shown: VTime,
    /// Place in the throttle wheel, if the last pick took one.
    place: Option<WheelSlot>,
}

#[derive(Clone, Copy, Default)]
struct Waiting {
    handle: u32,
    units: u32,
}

impl Mqfq {
    /// A scheduler for the queues of `topology`. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, topology: &Topology, weights: &[Weight]) -> Self {
        let start = align(options.start);
        Mqfq {
            options: *options,
            flows: FlowTable::new(weights, start),
            mindicator: Mindicator::new(topology, start),
            tokens: TokenTree::new(topology, options.depth),
            wheel: ThrottleWheel::new(topology.hctx_count(), options.window, start),
            ready: ReadySet::new(topology),
        }
    }

    /// Smallest lead start tag over all queues, never going back.
    pub fn global_vtime(&self) -> VTime {
        self.mindicator.global_vtime()
    }

    /// Units of D in the token tree. Exact only while no worker is inside the policy.
    pub fn free_units(&self) -> i64 {
        self.tokens.total_units()
    }

    /// Publishes the lead of a queue, or that it has none.
    fn publish(&self, queue: &mut MqfqQueue) {
        match queue.stage.lead() {
            Some(lead) => {
                let now = self.mindicator.global_vtime();
                queue.shown = lead.later(now).earlier(now.plus(HORIZON));
                self.mindicator.publish(queue.hctx, queue.shown);
            }
            None => self.mindicator.depart(queue.hctx),
        }
    }

    /// Tells everybody about the lead of a queue, or that it has none (P1).
    fn announce(&self, queue: &mut MqfqQueue, kick: &mut impl Kick) {
        loop {
            self.publish(queue);
            self.advance(queue.hctx, kick);
            // Again only if the lead is farther than the leaf can show, and what it shows was the smallest: then gvt
            // has come there, and the leaf can show more.
            let far = queue.stage.lead().is_some_and(|lead| queue.shown.is_before(lead));
            if !far || self.global_vtime().is_before(queue.shown) {
                return;
            }
        }
    }

    /// After each change of a leaf: moves gvt, turns the wheel, and wakes those whom that lets go (P1).
    fn advance(&self, from: HctxId, kick: &mut impl Kick) {
        let now = self.mindicator.query();
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

    /// Before this worker may sleep in Idle or Throttled: what lies on its path goes to others (P2, P3). True if one of
    /// those others is itself: a turner has marked it, so pick again.
    fn rest(&self, hctx: HctxId, kick: &mut impl Kick) -> bool {
        self.tokens.percolate(hctx);
        self.wake_ready(hctx, kick)
    }

    /// A token for the first request of `queue`, or None with the queue marked ready.
    fn acquire(&self, hctx: HctxId, units: u32) -> Option<DispatchToken> {
        if let Some(token) = self.tokens.acquire(hctx, units) {
            return Some(token);
        }
        // Ends with the fence of the first table.
        self.ready.mark(hctx);
        let token = self.tokens.acquire(hctx, units)?;
        self.ready.unmark(hctx);
        Some(token)
    }
}

impl Policy for Mqfq {
    type Queue = MqfqQueue;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> MqfqQueue {
        MqfqQueue { hctx, stage: StageQueue::new(capacity_requests), shown: self.global_vtime(), place: None }
    }

    fn submit(&self, queue: &mut MqfqQueue, entry: Entry, _now_ns: u64, kick: &mut impl Kick) {
        let Entry { flow, cost, handle } = entry;
        let Interval { start_tag, finish_tag } = self.flows.charge(flow, cost, self.mindicator.global_vtime());
        let span = VSpan(finish_tag.since(start_tag) as u64);
        let payload = Waiting { handle: handle.0, units: self.options.units(cost) };
        if queue.stage.push(Staged { flow, start_tag, span, payload }) {
            self.announce(queue, kick);
        }
    }

    fn pick(&self, queue: &mut MqfqQueue, _now_ns: u64, kick: &mut impl Kick) -> Pick {
        let hctx = queue.hctx;
        loop {
            // We are awake and need not be woken: Figure 2 begins with the same two steps.
            self.ready.unmark(hctx);
            if let Some(place) = queue.place.take() {
                self.wheel.withdraw(hctx, place);
            }
            let Some(lead) = queue.stage.peek() else {
                if self.rest(hctx, kick) {
                    continue;
                }
                return Pick::Idle;
            };
            if !self.wheel.is_due(lead.start_tag, self.mindicator.global_vtime()) {
                if queue.shown.is_before(lead.start_tag) {
                    self.announce(queue, kick);
                }
                // By what the leaf shows and not by the lead: gvt comes to the first and not by itself to the second.
                queue.place = self.wheel.throttle(hctx, queue.shown, || self.mindicator.global_vtime());
                if queue.place.is_none() || self.rest(hctx, kick) {
                    continue;
                }
                return Pick::Throttled;
            }
            let Waiting { handle, units } = lead.payload;
            let Some(token) = self.acquire(hctx, units) else { return Pick::NoToken };
            queue.stage.pop();
            self.announce(queue, kick);
            return Pick::Dispatch(Grant { handle: Handle(handle), flow: lead.flow, token });
        }
    }

    fn complete(&self, queue: &mut MqfqQueue, _flow: FlowId, token: DispatchToken, _now_ns: u64, kick: &mut impl Kick) {
        let hctx = queue.hctx;
        let now = self.mindicator.global_vtime();
        if queue.stage.lead().is_some_and(|lead| self.wheel.is_due(lead, now)) {
            // The pick that follows takes it (P2). It cannot be throttled by then: gvt does not go back, and a lead
            // that comes before this one is due too.
            self.tokens.release_local(hctx, token);
            return;
        }
        // A single token goes to the nearest who can use it, over the node that we share. Several may serve several
        // queues, and while the root owes, nobody can use any: both go over the root.
        if token.units() == 1 && self.tokens.root_units() >= 0 {
            self.ready.unmark(hctx);
            if let Some(nearest) = self.ready.take_nearest(hctx) {
                self.tokens.release_toward(hctx, nearest, token);
                if nearest != hctx {
                    kick.kick(nearest);
                }
                return;
            }
        }
        // Ends with the fence of the first table. Who became ready since we looked is found by the pick that follows.
        self.tokens.release_root(token);
    }

    fn pause(&self, queue: &mut MqfqQueue, kick: &mut impl Kick) {
        // A mark of our own that this takes is no loss: the worker picks when its device queue has room.
        self.rest(queue.hctx, kick);
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.flows.set_weight(flow, weight);
    }

    fn staged(&self, queue: &MqfqQueue) -> usize {
        queue.stage.len()
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
