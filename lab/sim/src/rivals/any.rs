//! One type for each structure and all its rivals, so that the choice is a line in a scenario and the data path is
//! compiled once for all of them.
//!
//! The match costs the simulator time and no virtual time: which arm it takes is no access to memory that workers
//! share.

use super::array_scan::ArrayScan;
use super::polling::Polling;
use super::polling::{NoVirtualTime, NoWheel};
use super::tokens::AtomicCounter;
use super::tokens::BitmapTokens;
use mqfq_sched_watched::mindicator::Mindicator;
use mqfq_sched_watched::policy::DispatchToken;
use mqfq_sched_watched::policy::structures::{Structures, Tokens, VirtualTime, Wheel};
use mqfq_sched_watched::throttle_wheel::{ThrottleWheel, WheelSlot};
use mqfq_sched_watched::token_tree::TokenTree;
use mqfq_sched_watched::topology::HctxId;
use mqfq_sched_watched::vtime::{VSpan, VTime};
use mqfq_sched_watched::watched::AtomicU64;

/// Any of each.
pub struct Any;

impl Structures for Any {
    type VirtualTime = AnyVirtualTime;
    type Tokens = AnyTokens;
    type Wheel = AnyWheel;
}

/// Virtual-time structure.
pub enum AnyVirtualTime {
    /// The scheduler's own.
    Mindicator(Mindicator),
    /// All leads, one after the other; each on lines of its own, as the leaves of the mindicator are.
    ArrayScan(ArrayScan<AtomicU64, 1>),
    /// Nothing; only with [`AnyWheel::Off`].
    Off(NoVirtualTime),
}

/// Token structure.
pub enum AnyTokens {
    /// The scheduler's own.
    TokenTree(TokenTree),
    /// One number.
    AtomicCounter(AtomicCounter<AtomicU64>),
    /// Bits, spread over lines.
    ScalableBitmap(BitmapTokens<AtomicU64>),
}

/// Release of throttled queues.
#[allow(clippy::large_enum_variant, reason = "one per device, never moved on the path")]
pub enum AnyWheel {
    /// The scheduler's own.
    Wheel(ThrottleWheel),
    /// Each looks again by itself.
    Polling(Polling),
    /// No queue is throttled; only with [`AnyVirtualTime::Off`].
    Off(NoWheel),
}

/// Makes a call on whichever structure it is.
macro_rules! on_each {
    ($self:expr, $one:ident => $call:expr; $($arm:path),*) => {
        match $self {
            $($arm($one) => $call,)*
        }
    };
}

macro_rules! on_virtual_time {
    ($self:expr, $one:ident => $call:expr) => {
        on_each!($self, $one => $call; AnyVirtualTime::Mindicator, AnyVirtualTime::ArrayScan, AnyVirtualTime::Off)
    };
}

impl VirtualTime for AnyVirtualTime {
    fn publish(&self, hctx: HctxId, lead: VTime) {
        on_virtual_time!(self, one => VirtualTime::publish(one, hctx, lead));
    }

    fn depart(&self, hctx: HctxId) {
        on_virtual_time!(self, one => VirtualTime::depart(one, hctx));
    }

    fn query(&self) -> VTime {
        on_virtual_time!(self, one => VirtualTime::query(one))
    }

    fn global_vtime(&self) -> VTime {
        on_virtual_time!(self, one => VirtualTime::global_vtime(one))
    }
}

macro_rules! on_tokens {
    ($self:expr, $one:ident => $call:expr) => {
        on_each!($self, $one => $call; AnyTokens::TokenTree, AnyTokens::AtomicCounter, AnyTokens::ScalableBitmap)
    };
}

impl Tokens for AnyTokens {
    fn acquire_own(&self, hctx: HctxId, units: u32) -> Option<DispatchToken> {
        on_tokens!(self, one => Tokens::acquire_own(one, hctx, units))
    }

    fn acquire_batch(&self, hctx: HctxId, units: u32, spare: u32) -> Option<DispatchToken> {
        on_tokens!(self, one => Tokens::acquire_batch(one, hctx, units, spare))
    }

    fn release_local(&self, hctx: HctxId, token: DispatchToken) {
        on_tokens!(self, one => Tokens::release_local(one, hctx, token));
    }

    fn release_toward(&self, from: HctxId, to: HctxId, token: DispatchToken) {
        on_tokens!(self, one => Tokens::release_toward(one, from, to, token));
    }

    fn release_root(&self, hctx: HctxId, token: DispatchToken) {
        on_tokens!(self, one => Tokens::release_root(one, hctx, token));
    }

    fn percolate(&self, hctx: HctxId) {
        on_tokens!(self, one => Tokens::percolate(one, hctx));
    }

    fn is_in_debt(&self) -> bool {
        on_tokens!(self, one => Tokens::is_in_debt(one))
    }

    fn root_units(&self) -> i64 {
        on_tokens!(self, one => Tokens::root_units(one))
    }

    fn total_units(&self) -> i64 {
        on_tokens!(self, one => Tokens::total_units(one))
    }
}

impl Wheel for AnyWheel {
    /// `None`: of a wheel that takes no places.
    type Place = Option<WheelSlot>;

    fn is_due(&self, lead: VTime, gvt: VTime) -> bool {
        on_each!(self, one => Wheel::is_due(one, lead, gvt); AnyWheel::Wheel, AnyWheel::Polling, AnyWheel::Off)
    }

    fn throttle(&self, hctx: HctxId, lead: VTime, gvt: impl FnMut() -> VTime) -> Option<Self::Place> {
        match self {
            AnyWheel::Wheel(wheel) => Wheel::throttle(wheel, hctx, lead, gvt).map(Some),
            AnyWheel::Polling(polling) => polling.throttle(hctx, lead, gvt).map(|()| None),
            AnyWheel::Off(off) => off.throttle(hctx, lead, gvt).map(|()| None),
        }
    }

    fn withdraw(&self, hctx: HctxId, place: Self::Place) -> bool {
        match (self, place) {
            (AnyWheel::Wheel(wheel), Some(slot)) => Wheel::withdraw(wheel, hctx, slot),
            _ => true,
        }
    }

    fn turn(&self, gvt: VTime, unthrottle: impl FnMut(HctxId)) {
        on_each!(self, one => Wheel::turn(one, gvt, unthrottle); AnyWheel::Wheel, AnyWheel::Polling, AnyWheel::Off);
    }

    fn window(&self) -> VSpan {
        on_each!(self, one => Wheel::window(one); AnyWheel::Wheel, AnyWheel::Polling, AnyWheel::Off)
    }

    fn set_window(&self, window: VSpan, unthrottle: impl FnMut(HctxId)) {
        match self {
            AnyWheel::Wheel(wheel) => Wheel::set_window(wheel, window, unthrottle),
            AnyWheel::Polling(polling) => polling.set_window(window, unthrottle),
            AnyWheel::Off(off) => off.set_window(window, unthrottle),
        }
    }
}
