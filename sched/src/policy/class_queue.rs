//! Class queues: the device's own arbitration, as a policy sees it.
//!
//! Source: D2FQ section 2.3: "three priority classes of I/O command queues, each with a configurable weight", which is
//! NVMe's weighted round robin (NVMe 1.3 section 4.11.2) without its urgent class. A policy that uses them names one
//! for each request ([`DirectPolicy::class_of`](super::DirectPolicy::class_of)).

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

/// How many commands of each class the device fetches in a round, 1..=256 each: HPW, MPW and LPW plus one (NVMe 1.3
/// section 5.21.1.1).
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
