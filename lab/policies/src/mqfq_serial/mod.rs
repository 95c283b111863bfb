//! Policy `mqfq-serial`: the same MQFQ with every operation under one lock.
//!
//! Answers: what are the lock-free structures worth? Source: MQFQ section 4.3, "MQFQ-serial". It is [`Mqfq`] itself and
//! not a second implementation, so the two differ in nothing but the lock, and a history that runs on one thread is the
//! same to the request in both.
//!
//! Kicks are sent while the lock is held, as an implementation under a queue lock would. A [`Kick`] that called back
//! into the policy would deadlock; the trait has it tell other workers, nothing else.

use mqfq_sched::flow::{EffectiveWeight, GroupId, Tree};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    Descriptor, DispatchToken, Done, Entry, Kick, NoOptions, NotDirect, Pick, Policy, PolicyError, PolicyOptions,
    Registered, WindowTerms,
};
use mqfq_sched::policy::{Mqfq, MqfqQueue};
use mqfq_sched::sync::Mutex;
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::VTime;

kind!(MqfqSerial);

/// [`Mqfq`] under one lock.
pub struct MqfqSerial {
    lock: Mutex<()>,
    mqfq: Mqfq,
}

impl MqfqSerial {
    /// A scheduler for the queues of `topology`. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, topology: &Topology, weights: &[Weight]) -> Self {
        MqfqSerial { lock: Mutex::new(()), mqfq: Mqfq::new(options, topology, weights) }
    }

    /// The scheduler below the lock, to look at.
    pub fn mqfq(&self) -> &Mqfq {
        &self.mqfq
    }

    fn locked<R>(&self, operation: impl FnOnce(&Mqfq) -> R) -> R {
        // A panic under the lock is a bug of ours that has already been reported; the structures below are consistent
        // after every single step, so the others need not follow.
        let _guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        operation(&self.mqfq)
    }
}

/// Operations of [`Mqfq`], each under the lock.
macro_rules! under_the_lock {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $($(#[$attribute])*
        fn $name(&self, $($argument: $type),*) $(-> $result)? {
            self.locked(|mqfq| mqfq.$name($($argument),*))
        })*
    };
}

impl Policy for MqfqSerial {
    type Queue = MqfqQueue;
    type Direct<'a> = NotDirect;

    under_the_lock! {
        fn open_queue(hctx: HctxId, capacity_requests: usize) -> MqfqQueue;
        #[inline(never)]
        fn submit(queue: &mut MqfqQueue, entry: Entry, now_ns: u64, kick: &mut impl Kick);
        #[inline(never)]
        fn pick(queue: &mut MqfqQueue, now_ns: u64, kick: &mut impl Kick) -> Pick;
        #[inline(never)]
        fn complete(queue: &mut MqfqQueue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick);
        fn pause(queue: &mut MqfqQueue, kick: &mut impl Kick);
        fn set_weight(flow: FlowId, weight: Weight);
        fn retire(flow: FlowId) -> bool;
        fn set_depth(from: HctxId, depth: u32, kick: &mut impl Kick) -> bool;
        fn set_group_weight(group: GroupId, weight: Weight);
        fn set_window(terms: &WindowTerms);
    }

    fn window_terms(&self) -> Option<WindowTerms> {
        self.mqfq.window_terms()
    }

    fn is_out_of_units(&self) -> bool {
        // One word, without the lock.
        self.mqfq.is_out_of_units()
    }

    fn staged_flows(&self, queue: &MqfqQueue) -> usize {
        // The queue is the caller's own; no lock.
        self.mqfq.staged_flows(queue)
    }

    fn staged(&self, queue: &MqfqQueue) -> usize {
        // The queue is the caller's own; no lock.
        self.mqfq.staged(queue)
    }
}

impl Registered for MqfqSerial {
    const ABOUT: Descriptor = Descriptor {
        has_depth: true,
        tunes_depth: true,
        has_window: true,
        is_fair: true,
        has_groups: true,
        ..Descriptor::new("mqfq-serial", "`mqfq` with every operation under one lock")
    };

    type Options = NoOptions;

    fn make(options: &PolicyOptions, topology: &Topology, flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(MqfqSerial::new(options, topology, flows))
    }

    fn set_tree(&mut self, tree: &Tree) {
        self.mqfq.set_tree(tree);
    }

    fn effective_weight(&self, flow: FlowId) -> Option<EffectiveWeight> {
        self.mqfq.effective_weight(flow)
    }

    fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        self.mqfq.effective_weight_of(group)
    }

    fn global_vtime(&self) -> Option<VTime> {
        Some(self.mqfq.global_vtime())
    }

    fn depth(&self) -> Option<u32> {
        self.mqfq.depth()
    }

    fn free_units(&self) -> Option<i64> {
        Some(self.mqfq.free_units())
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    //! Model check of the lock with what wakes a worker: the structures below have theirs.
    //!
    //! Run: `cargo xtask loom`.

    use super::*;
    use crate::MQFQ_SERIAL;
    use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
    use mqfq_sched::sync::model::Builder;

    /// Race: A gives the only token back and kicks B, which has just found none and falls asleep.
    /// Shown to fail if the kick is sent but not rung (`WakeWord::kick` answers false), and if `pass_on` does not kick.
    #[test]
    fn loom_token_under_one_lock_meets_the_worker_that_falls_asleep() {
        for relaxed in [false, true] {
            Builder::new().check(move || {
                let options = options(MQFQ_SERIAL);
                let options = if relaxed { options.relaxed(2) } else { options };
                one_token_passes_to_a_worker_that_falls_asleep(MqfqSerial::new(
                    &options,
                    &Topology::flat(2),
                    &[Weight::DEFAULT; 2],
                ));
            });
        }
    }
}
