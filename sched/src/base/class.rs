//! Priority classes: which flows a policy may make wait for which others, whatever their weights.
//!
//! The classes are those of ionice(1) and of cgroup v2's `io.prio.class`. `mq-deadline` and `bfq` serve a class only
//! when the one above has nothing to do (but for their rules against starvation); fair queueing has weights instead and
//! does not look at them.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// A flow's priority class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PriorityClass {
    /// Class that goes before all others.
    RealTime,
    /// Class of a flow that names none.
    #[default]
    BestEffort,
    /// Only when no other flow wants the device.
    Idle,
}

impl PriorityClass {
    /// All of them, the first served first.
    pub const ALL: [PriorityClass; 3] = [PriorityClass::RealTime, PriorityClass::BestEffort, PriorityClass::Idle];

    /// The name in configs.
    pub const fn name(self) -> &'static str {
        match self {
            PriorityClass::RealTime => "realtime",
            PriorityClass::BestEffort => "best-effort",
            PriorityClass::Idle => "idle",
        }
    }
}

/// A name that is no class's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownClass(pub String);

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown class {:?}, allowed are realtime, best-effort, idle", self.0)
    }
}

impl core::error::Error for UnknownClass {}

impl FromStr for PriorityClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        PriorityClass::ALL.into_iter().find(|class| class.name() == name).ok_or_else(|| UnknownClass(name.to_owned()))
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_wrong_ones_list_the_right_ones() {
        for class in PriorityClass::ALL {
            assert_eq!(class.name().parse(), Ok(class));
        }
        let error = "rt".parse::<PriorityClass>().unwrap_err();
        assert_eq!(error.to_string(), "unknown class \"rt\", allowed are realtime, best-effort, idle");
    }
}
