//! Throttled queues that wake by themselves: the throttle wheel is compared with them.
//!
//! Source: MQFQ section 4.3.2. "The timer is armed whenever the queue is throttled and upon firing, reschedules the
//! dispatch routine." There is no structure at all. The worker whose pick ends in `Throttled` arms a timer and picks
//! again; that is the worker's part, and what keeps promise W of `structures.rs`.
//!
//! # Cost
//! Nothing that workers share. What it costs is picks for nothing, and time between what lets a queue go and its next
//! look.

use mqfq_sched_watched::mindicator::Mindicator;
use mqfq_sched_watched::policy::structures::{VirtualTime, Wheel};
use mqfq_sched_watched::sync::Setting;
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::vtime::{VSpan, VTime};

/// Knows T, and no queue.
pub struct Polling {
    window: Setting,
}

impl Polling {
    /// T = `window`; less than 63 units counts as that, as in the throttle wheel, and for its reason.
    pub fn new(window: VSpan) -> Self {
        Polling { window: Setting::new(window.0.max(Mindicator::GRAIN.0 - 1), true) }
    }
}

impl Wheel for Polling {
    type Place = ();

    fn is_due(&self, lead: VTime, gvt: VTime) -> bool {
        !gvt.is_before(lead.minus(self.window()))
    }

    fn throttle(&self, _hctx: HctxId, _lead: VTime, _gvt: impl FnMut() -> VTime) -> Option<()> {
        Some(())
    }

    fn withdraw(&self, _hctx: HctxId, (): ()) -> bool {
        true
    }

    fn turn(&self, _gvt: VTime, _unthrottle: impl FnMut(HctxId)) {}

    fn window(&self) -> VSpan {
        VSpan(self.window.get())
    }

    /// A waiting worker sees it at its next look.
    fn set_window(&self, window: VSpan, _unthrottle: impl FnMut(HctxId)) {
        self.window.set(window.0.max(Mindicator::GRAIN.0 - 1));
    }
}

// Virtual time that stands still, and a wheel that holds no queue back: MQFQ section 4.3.3 compares tokens under them.
//
// "To isolate the impact of these data structures, we disable virtual time computation." Nothing is told and nothing
// is read: no access to memory that workers share. Finish tags are still added up: the stage queue is in their order,
// and what a tenant is charged is no part of what is switched off.
//
// Each of the two alone breaks the policy: virtual time that stands still throttles every queue for good, and with no
// queue held back there is no fairness to keep a time for. [`super::AnyVirtualTime`] and [`super::AnyWheel`] are built
// together for that reason.

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

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_sched_watched::throttle_wheel::ThrottleWheel;

    #[test]
    fn who_may_go_is_as_in_the_wheel() {
        for window in [0, 1, 63, 64, 1000, 1 << 26] {
            let (polling, wheel) =
                (Polling::new(VSpan(window)), ThrottleWheel::new(2, VSpan(window), VTime::from_raw(0)));
            for ahead in [0, 1, 63, 64, 65, 999, 1000, 1001, (1 << 26) - 1, 1 << 26, (1 << 26) + 1] {
                for gvt in [0, u64::MAX - 100, 1 << 40] {
                    let gvt = VTime::from_raw(gvt);
                    let lead = gvt.plus(VSpan(ahead));
                    assert_eq!(polling.is_due(lead, gvt), wheel.is_due(lead, gvt), "{ahead} ahead, T = {window}");
                }
            }
        }
    }
}
