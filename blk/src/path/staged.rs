//! The path of a policy that stages: admitted requests wait in the policy's queue until the policy grants them.
//!
//! ```text
//!   submit ──▶ admit ──▶ policy.submit                              (stage)
//!   run    ──▶ policy.pick ──▶ tag ──▶ device.submit … ring_doorbell (dispatch)
//!   reap   ──▶ device.reap ──▶ policy.complete ──▶ Completion        (complete)
//! ```

use super::complete::Ending;
use super::context::{BATCH_MAX, Run};
use super::request_path::RequestPath;
use crate::trace::TraceEvent;
use mqfq_sched::policy::{DispatchToken, Done, Kick, Pick, Policy, QueueClass};
use mqfq_sched::topology::HctxId;

/// State of this path alone: why the last run ended.
#[derive(Debug, Default)]
pub(super) struct StagedPath {
    /// The policy held back the staged requests until another worker goes on.
    pub(super) is_held_back: bool,
    /// Time at which the policy wants to be asked again, if it holds back the staged requests.
    pub(super) later_ns: Option<u64>,
}

impl StagedPath {
    /// Dispatches what the policy grants, at most a batch.
    #[inline(always)]
    pub(super) fn run<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64, kick: &mut impl Kick) -> Run {
        // Without competition or measurement, requests do not pay for it.
        if shared.turn.is_watched() {
            return self.run_watched(shared, now_ns, kick);
        }
        if shared.meter.is_on() {
            return self.run_metered(shared, now_ns, kick);
        }
        self.run_as::<P, false, false>(shared, now_ns, kick)
    }

    /// [`StagedPath::run`] while flows compete.
    #[inline(never)]
    fn run_watched<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64, kick: &mut impl Kick) -> Run {
        self.run_as::<P, true, true>(shared, now_ns, kick)
    }

    /// [`StagedPath::run`] where something is measured.
    #[inline(never)]
    fn run_metered<P: Policy>(&mut self, shared: &mut RequestPath<P>, now_ns: u64, kick: &mut impl Kick) -> Run {
        self.run_as::<P, false, true>(shared, now_ns, kick)
    }

    #[inline(always)]
    fn run_as<P: Policy, const IS_WATCHED: bool, const IS_METERED: bool>(
        &mut self,
        shared: &mut RequestPath<P>,
        now_ns: u64,
        kick: &mut impl Kick,
    ) -> Run {
        let mut kicks = 0;
        let mut counting = |hctx: HctxId| {
            kicks += 1;
            kick.kick(hctx);
        };
        let mut again = false;
        let mut full = false;
        let mut is_waiting = false;
        if self.is_held_back {
            shared.counters.let_go(now_ns);
        }
        *self = StagedPath::default();
        let batch_max = if IS_WATCHED && shared.turn.is_over() { 0 } else { BATCH_MAX };
        let mut dispatched = shared.hand_over_left(now_ns);
        while shared.commands.refused.is_none() {
            if dispatched >= batch_max {
                again = true;
                break;
            }
            // Without a tag there is no point in picking: commands of ours fill the device queue, and the reap of the
            // first of them leads here again.
            let Some(tag) = shared.commands.tags.acquire() else {
                full = true;
                break;
            };
            match shared.policy.pick(&mut shared.queue, now_ns, &mut counting) {
                Pick::Dispatch(grant) => {
                    let handle = grant.handle;
                    dispatched += shared.dispatch::<IS_METERED>(tag, grant, QueueClass::default(), now_ns);
                    if IS_WATCHED && shared.ends_turn(handle) {
                        again = true;
                        break;
                    }
                    continue;
                }
                Pick::Throttled => {
                    // The queue that virtual time waits for has no token, and no kick tells this one when it could go.
                    is_waiting = IS_METERED && shared.meter.finds_depth() && shared.policy.is_out_of_units();
                    self.hold_back(shared, TraceEvent::Throttled, now_ns);
                }
                Pick::NoToken => {
                    is_waiting = true;
                    self.hold_back(shared, TraceEvent::NoToken, now_ns);
                }
                Pick::Later(at_ns) => self.wait(shared, at_ns, now_ns),
                Pick::Idle => shared.counters.stats().idle.add(1),
            }
            shared.commands.tags.release(tag);
            break;
        }
        if full || shared.commands.refused.is_some() {
            shared.policy.pause(&mut shared.queue, &mut counting);
        }
        if IS_METERED && shared.meter.is_on() {
            let waiting_flows = if self.is_held_back { shared.policy.staged_flows(&shared.queue) } else { 0 };
            shared.meter.picked(is_waiting, waiting_flows as u64);
        }
        shared.ring(dispatched, now_ns);
        if kicks > 0 {
            shared.turn.compete();
            shared.counters.stats().kicks.add(kicks);
        }
        Run { dispatched, again }
    }

    /// Notes that the policy holds back the staged requests, for this reason.
    #[inline(never)]
    fn hold_back<P: Policy>(&mut self, shared: &mut RequestPath<P>, why: TraceEvent, now_ns: u64) {
        self.is_held_back = true;
        shared.counters.hold_back(why, now_ns);
    }

    /// The policy holds back the staged requests until `at_ns`, in the hope of a better request.
    #[inline(never)]
    fn wait<P: Policy>(&mut self, shared: &mut RequestPath<P>, at_ns: u64, now_ns: u64) {
        self.later_ns = Some(at_ns);
        shared.counters.stats().later.add(1);
        shared.counters.mark(TraceEvent::Later, now_ns);
    }
}

impl<P: Policy> Ending<P> for StagedPath {
    #[inline(always)]
    fn ended(policy: &P, queue: &mut P::Queue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        policy.complete(queue, done, token, now_ns, kick);
    }
}
