//! Virtual time that stands still, and a wheel that holds no queue back: MQFQ section 4.3.3 compares tokens under them.
//!
//! "To isolate the impact of these data structures, we disable virtual time computation." Nothing is told and nothing
//! is read: no access to memory that workers share. Finish tags are still added up: the stage queue is in their order,
//! and what a tenant is charged is no part of what is switched off.
//!
//! Each of the two alone breaks the policy: virtual time that stands still throttles every queue for good, and with no
//! queue held back there is no fairness to keep a time for. [`super::AnyVirtualTime`] and [`super::AnyWheel`] are built
//! together for that reason.

use mqfq_sched_watched::policy::structures::{VirtualTime, Wheel};
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::vtime::{VSpan, VTime};

/// Virtual time that stands still.
pub struct NoVirtualTime {
    /// Where it stands.
    pub start: VTime,
}

impl VirtualTime for NoVirtualTime {
    fn publish(&self, _hctx: HctxId, _lead: VTime) {}

    fn depart(&self, _hctx: HctxId) {}

    fn query(&self) -> VTime {
        self.start
    }

    fn global_vtime(&self) -> VTime {
        self.start
    }
}

/// A wheel that holds no queue back.
pub struct NoWheel;

impl Wheel for NoWheel {
    type Place = ();

    fn is_due(&self, _lead: VTime, _gvt: VTime) -> bool {
        true
    }

    fn throttle(&self, _hctx: HctxId, _lead: VTime, _gvt: impl FnMut() -> VTime) -> Option<()> {
        None
    }

    fn withdraw(&self, _hctx: HctxId, (): ()) -> bool {
        true
    }

    fn turn(&self, _gvt: VTime, _unthrottle: impl FnMut(HctxId)) {}

    /// As far as virtual time goes.
    fn window(&self) -> VSpan {
        VSpan(u64::MAX)
    }

    fn set_window(&self, _window: VSpan, _unthrottle: impl FnMut(HctxId)) {}
}
