//! Interface of a policy that stages nothing, and the class queues that it names.
//!
//! Such a policy leaves arbitration to the device: it names one of three class queues for each request. A policy says
//! once, by [`Policy::as_direct`](super::Policy::as_direct), whether it is one. A policy that stages answers with
//! [`NotDirect`], of which there is no value, so that no caller can ask it for a class.

use crate::cost::Cost;
use crate::flow::FlowId;

/// A policy that names class queues, as a reference to it or the like. `Q` is the part of its state that one worker
/// owns.
pub trait DirectPolicy<Q>: Copy {
    /// The class queue that a request of this flow goes to now.
    fn class_of(self, queue: &Q, flow: FlowId, now_ns: u64) -> QueueClass;

    /// A request of this flow was admitted for the queue that [`DirectPolicy::class_of`] named.
    fn dispatched(self, queue: &mut Q, flow: FlowId, cost: Cost, class: QueueClass, now_ns: u64);

    /// Both in one: [`DirectPolicy::class_of`] now, and [`DirectPolicy::dispatched`] for it.
    #[inline(always)]
    fn direct(self, queue: &mut Q, flow: FlowId, cost: Cost, now_ns: u64) -> QueueClass {
        let class = self.class_of(queue, flow, now_ns);
        self.dispatched(queue, flow, cost, class, now_ns);
        class
    }

    /// The device finished a request of this flow that [`DirectPolicy::dispatched`] was told of on this queue.
    // Not a branch of `Policy::complete`: in the choice among all policies it would take registers that every other
    // policy then had to save.
    fn ended(self, queue: &mut Q, flow: FlowId, cost: Cost, now_ns: u64);

    /// Asked after each reap that brought something: weights that the device's class queues shall have from now on, if
    /// they change.
    fn adjust(self, queue: &mut Q, now_ns: u64) -> Option<ClassWeights>;
}

/// [`Policy::Direct`](super::Policy::Direct) of a policy that stages its requests. It has no value.
#[derive(Clone, Copy, Debug)]
pub enum NotDirect {}

impl<Q> DirectPolicy<Q> for NotDirect {
    fn class_of(self, _queue: &Q, _flow: FlowId, _now_ns: u64) -> QueueClass {
        match self {}
    }

    fn dispatched(self, _queue: &mut Q, _flow: FlowId, _cost: Cost, _class: QueueClass, _now_ns: u64) {
        match self {}
    }

    fn ended(self, _queue: &mut Q, _flow: FlowId, _cost: Cost, _now_ns: u64) {
        match self {}
    }

    fn adjust(self, _queue: &mut Q, _now_ns: u64) -> Option<ClassWeights> {
        match self {}
    }
}

// Class queues: the device's own arbitration, as a policy sees it.
//
// Source: D2FQ section 2.3: "three priority classes of I/O command queues, each with a configurable weight", which is
// NVMe's weighted round robin (NVMe 1.3 section 4.11.2) without its urgent class. A policy that uses them names one
// for each request ([`DirectPolicy::class_of`](super::DirectPolicy::class_of)).

/// One queue of a set of three. The device's urgent class is not among them: it would starve the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum QueueClass {
    /// The queue from which the device takes most commands.
    High,
    /// The moderate one; also where the requests of policies go that do not use classes.
    #[default]
    Medium,
    /// The queue from which the device takes fewest commands.
    Low,
}

impl QueueClass {
    /// All of them.
    pub const ALL: [QueueClass; 3] = [QueueClass::High, QueueClass::Medium, QueueClass::Low];

    /// 0, 1, 2: its place in [`QueueClass::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            QueueClass::High => "high",
            QueueClass::Medium => "medium",
            QueueClass::Low => "low",
        }
    }
}

/// Number of commands of each class that the device fetches in a round, 1..=256 each: HPW, MPW and LPW plus one (NVMe
/// 1.3 section 5.21.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClassWeights {
    /// Weight of the high queues.
    pub high: u16,
    /// Weight of the medium queues.
    pub medium: u16,
    /// Weight of the low queues.
    pub low: u16,
}

impl ClassWeights {
    /// Largest weight of a class: the fields have 8 bits, 0's based.
    pub const MAX: u16 = 256;

    /// All alike: plain round robin among the classes.
    pub const EQUAL: ClassWeights = ClassWeights { high: 1, medium: 1, low: 1 };

    /// Weights by [`QueueClass::index`].
    pub const fn by_class(self) -> [u16; 3] {
        [self.high, self.medium, self.low]
    }
}
