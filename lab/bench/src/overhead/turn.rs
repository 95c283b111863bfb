//! One worker's turns on one policy, without a device: what is measured, by the clock and by counting instructions.
//!
//! # Shape
//! As a worker calls it (`blk/src/path/hctx.rs`), in whole batches, so that a clock can stand between the steps:
//!
//! ```text
//!   reap: complete x 64  ──▶  clients: submit x 64  ──▶  run: pick until refused
//!         (all that is out)         (for the flows completed)   (D = 64 are out again)
//! ```
//! A closed loop: a flow gets a request for each that completes, so that every flow keeps what it has staged.
//!
//! The loop itself (a ring of grants, a list of flows) is in every figure, that of `none` included: read differences.

use crate::contender::Contender;
use mqfq_policies::BfqOptions;
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, AnyQueue, Done, Entry, Grant, Handle, OwnOptions, Pick, Policy};
use mqfq_sched::topology::{HctxId, Topology};

/// Requests per turn, and D: the paper's drive (MQFQ section 4), and the largest batch of a worker.
pub const TURN: usize = 64;

/// Size of each request, in bytes-equivalent.
pub const REQUEST_BYTES: u64 = 4096;

/// How much is staged besides what is on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regime {
    /// Every flow keeps several requests staged: there is something to decide.
    Backlogged,
    /// The queue is empty after each turn's picks.
    Shallow,
}

impl Regime {
    /// Both.
    pub const ALL: [Regime; 2] = [Regime::Backlogged, Regime::Shallow];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Regime::Backlogged => "backlogged",
            Regime::Shallow => "shallow",
        }
    }

    /// Requests that each of `flows` flows keeps staged while [`TURN`] are out: four or more, and two turns in all or
    /// more, so that no turn empties the queue.
    pub const fn staged_per_flow(self, flows: u32) -> u32 {
        match self {
            Regime::Backlogged => {
                let two_turns = (2 * TURN as u32).div_ceil(flows);
                if two_turns > 4 { two_turns } else { 4 }
            }
            Regime::Shallow => 0,
        }
    }
}

/// One thing to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// Contender.
    pub contender: Contender,
    /// Flows that take turns.
    pub flows: u32,
    /// How much is staged.
    pub regime: Regime,
}

impl Case {
    /// All of them for these numbers of flows. Those that are compared stand next to each other.
    pub fn all(contenders: &[Contender], flows: &[u32]) -> Vec<Case> {
        let mut cases = Vec::new();
        for regime in Regime::ALL {
            for &flows in flows {
                cases.extend(contenders.iter().map(|&contender| Case { contender, flows, regime }));
            }
        }
        cases
    }
}

/// A policy, its queue, and what is out. Between turns [`TURN`] requests are out.
pub struct Turns {
    policy: AnyPolicy,
    queue: AnyQueue,
    /// It refuses by itself once D are out.
    has_depth: bool,
    out: Vec<Grant>,
    completed: Vec<(FlowId, Handle)>,
}

impl Turns {
    /// Everything staged and dispatched.
    ///
    /// # Errors
    /// One sentence: a policy cannot be built so.
    pub fn new(case: Case, window_bytes: u64) -> Result<Turns, String> {
        let mut options = case.contender.options(TURN as u32, window_bytes, 1);
        // Time stands still here: a policy that waits for a flow's next request would wait for ever.
        options.own = OwnOptions::of(&BfqOptions { slice_idle_ns: 0, ..BfqOptions::DEFAULT });
        let weights = vec![Weight::DEFAULT; case.flows as usize];
        let policy = AnyPolicy::new(&options, &Topology::flat(1), &weights).map_err(|error| error.to_string())?;
        let per_flow = case.regime.staged_per_flow(case.flows);
        let requests = (per_flow * case.flows) as usize + TURN;
        let queue = policy.open_queue(HctxId(0), requests);
        let has_depth = policy.kind().has_depth();
        let mut turns =
            Turns { policy, queue, has_depth, out: Vec::with_capacity(TURN), completed: Vec::with_capacity(requests) };
        turns.completed.extend((0..requests as u32).map(|n| (FlowId(n % case.flows), Handle(n))));
        overhead_submit(&mut turns);
        overhead_pick(&mut turns);
        Ok(turns)
    }

    /// Runs so many turns.
    pub fn run(&mut self, turns: u32) {
        for _ in 0..turns {
            overhead_complete(self);
            overhead_submit(self);
            overhead_pick(self);
        }
    }
}

// Functions of their own, never inlined: their names are what callgrind's profile is searched for (`callgrind.rs`). The
// kicks go nowhere, for there is no other worker.

/// Submits for each request that was completed.
#[inline(never)]
pub fn overhead_submit(turns: &mut Turns) {
    let Turns { policy, queue, completed, .. } = turns;
    for (flow, handle) in completed.drain(..) {
        // All over the device: an elevator that sorts has something to sort.
        let offset_bytes = u64::from(handle.0.wrapping_mul(0x9E37_79B1)) * REQUEST_BYTES;
        let entry = Entry { offset_bytes, ..Entry::read(flow, Cost(REQUEST_BYTES), handle) };
        policy.submit(queue, entry, 0, &mut |_: HctxId| ());
    }
}

/// Picks until the policy refuses. `none` never does: it stops when the device queue would be full.
#[inline(never)]
pub fn overhead_pick(turns: &mut Turns) {
    let Turns { policy, queue, has_depth, out, .. } = turns;
    while *has_depth || out.len() < TURN {
        let Pick::Dispatch(grant) = policy.pick(queue, 0, &mut |_: HctxId| ()) else { break };
        out.push(grant);
    }
    assert_eq!(out.len(), TURN, "a turn is {TURN} requests");
}

/// Completes all that is out.
#[inline(never)]
pub fn overhead_complete(turns: &mut Turns) {
    let Turns { policy, queue, out, completed, .. } = turns;
    for Grant { handle, flow, token } in out.drain(..) {
        completed.push((flow, handle));
        policy.complete(queue, Done::read(flow, handle), token, 0, &mut |_: HctxId| ());
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // A token that is dropped is a bug elsewhere.
        overhead_complete(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::contenders;
    use mqfq_policies::{BFQ, MQ_DEADLINE};
    use std::collections::BTreeMap;

    #[test]
    fn a_backlogged_queue_never_empties_and_a_shallow_one_always_does() {
        for contender in contenders(true) {
            for flows in [1, 8, 1000] {
                for (regime, staged) in [(Regime::Backlogged, 128.max(4 * flows)), (Regime::Shallow, 0)] {
                    let mut turns = Turns::new(Case { contender, flows, regime }, 64 << 10).unwrap();
                    for _ in 0..20 {
                        turns.run(1);
                        assert_eq!(turns.policy.staged(&turns.queue), staged as usize, "{contender:?} {flows}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_flow_takes_part() {
        // 64 requests a turn, 8 flows of one weight: each has 8 in each turn under any policy, for their requests were
        // staged in turn.
        for contender in contenders(true) {
            let case = Case { contender, flows: 8, regime: Regime::Backlogged };
            let mut turns = Turns::new(case, 64 << 10).unwrap();
            turns.run(3);
            let mut served = BTreeMap::new();
            if [BFQ, MQ_DEADLINE].contains(&contender.kind) {
                // One flow at a time, so a turn of ours may be all one flow's; or by offset, whosever it is.
                for _ in 0..40 {
                    turns.run(1);
                    turns.out.iter().for_each(|grant| *served.entry(grant.flow).or_insert(0) += 1);
                }
                let (least, most) = (served.values().min().unwrap(), served.values().max().unwrap());
                assert!(served.len() == 8 && most < &(2 * least), "{served:?}");
                continue;
            }
            turns.out.iter().for_each(|grant| *served.entry(grant.flow).or_insert(0) += 1);
            assert!(served.len() == 8 && served.values().all(|&requests| requests == 8), "{contender:?}: {served:?}");
        }
    }
}
