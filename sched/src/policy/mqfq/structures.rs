//! The structures of MQFQ's shared state, as traits: the shipped ones, and others that a simulation puts in their
//! place.
//!
//! Answers: what does the policy ask of its structures, and no more? MQFQ section 4.3 compares its scheduler with ones
//! in which a single structure is another. With these traits the rest stays the same code, races and fences included.
//!
//! | part           | what ships        | promises below |
//! |----------------|-------------------|----------------|
//! | [`VirtualTime`] | [`Mindicator`]    | V1, V2, V3     |
//! | [`Tokens`]      | [`TokenTree`]     | K1, K2, K3, K4 |
//! | [`Wheel`]       | [`ThrottleWheel`] | W              |
//!
//! Flow table, stage queues and the ready set are the policy's own and are not exchanged: they say what a tenant is
//! charged and which queue waits, and no figure of the paper replaces them.
//!
//! # Cost
//! None. The types are known when the policy is compiled; each method of what ships is forwarded and inlined.

use crate::mindicator::Mindicator;
use crate::policy::DispatchToken;
use crate::throttle_wheel::{ThrottleWheel, WheelSlot};
use crate::token_tree::TokenTree;
use crate::topology::HctxId;
use crate::vtime::{VSpan, VTime};

/// A choice of all three.
pub trait Structures: Send + Sync + 'static {
    /// Keeps the smallest lead.
    type VirtualTime: VirtualTime;
    /// Keeps D.
    type Tokens: Tokens;
    /// Lets throttled queues go.
    type Wheel: Wheel;
}

/// The structures of the shipped policy: mindicator, token tree and throttle wheel.
#[derive(Clone, Copy, Debug)]
pub struct Shipped;

impl Structures for Shipped {
    type VirtualTime = Mindicator;
    type Tokens = TokenTree;
    type Wheel = ThrottleWheel;
}

/// The leads of all queues, and the global virtual time (gvt) that follows the smallest.
///
/// V1. gvt does not go back (I8), and keeps its value while no queue is present.
/// V2. gvt does not pass a lead whose `publish` returned before the `query` that moves gvt began (I3, I6). The
///     mindicator promises more (M1).
/// V3. If each caller calls `query` after its `publish` or `depart`, gvt is the smallest lead, in multiples of 64
///     units, when all have returned (I4, I5). So two that change their leads at once need a sequentially consistent
///     fence between their writes and what they read.
///
/// A thread that sees a gvt must see the leads that it came from: Release by the mover, Acquire by the reader (leases,
/// F1 in `flow/account.rs`).
pub trait VirtualTime: Send + Sync {
    /// The lead of `hctx` is `lead` now. Only the owner of `hctx` says so.
    fn publish(&self, hctx: HctxId, lead: VTime);
    /// `hctx` has nothing staged any more. Only its owner says so.
    fn depart(&self, hctx: HctxId);
    /// Moves gvt up to the smallest lead, if that is later, and returns it.
    fn query(&self) -> VTime;
    /// gvt, as the last `query` left it.
    fn global_vtime(&self) -> VTime;
    /// Lead that the queue of `hctx` showed lately, near `now`; None if it is not present, or not kept apart from the
    /// others.
    fn lead_of(&self, hctx: HctxId, now: VTime) -> Option<VTime> {
        let _ = (hctx, now);
        None
    }
}

/// The free units of depth. What is free lies in one pool, the *root*, or on the *paths* of queues, where only some can
/// take it. A structure without paths keeps all in the pool.
///
/// K1. Free units and those in tokens are D together, but for calls under way (I1).
/// K2. A token is given out only while a free unit is there; one of several units may leave the pool below 0 (I2).
/// K3. A unit given back meets a worker that looks for one (I4, R3 in `ready_set.rs`). If one worker marks itself
///     ready, fences and calls `acquire_batch`, and another calls `release_root`, or `release_local` and then
///     `percolate`, and searches the ready set, one sees what the other did. So `release_root` and `percolate` end with
///     a sequentially consistent fence if they, or the `release_local` before, have put anything where others take it.
///     And no call under way may hide a free unit from `acquire_batch` or `root_units` of another, unless it looks
///     again after it has shown it.
/// K4. After `percolate` nothing lies on the path of that queue (P2).
pub trait Tokens: Send + Sync {
    /// Takes `units` (1..=D) from where only the worker of `hctx` takes; None if they are not there.
    fn acquire_own(&self, hctx: HctxId, units: u32) -> Option<DispatchToken>;
    /// Takes `units` (1..=D) from the path of `hctx` and the pool. May take up to `spare` more, to be found by
    /// `acquire_own`.
    fn acquire_batch(&self, hctx: HctxId, units: u32, spare: u32) -> Option<DispatchToken>;
    /// Gives a token that `hctx` took back for its own next request.
    fn release_local(&self, hctx: HctxId, token: DispatchToken);
    /// Gives a token that `from` took back where `to` can take it. The caller kicks `to`.
    fn release_toward(&self, from: HctxId, to: HctxId, token: DispatchToken);
    /// Gives a token that `hctx` took back to the pool, for any queue.
    fn release_root(&self, hctx: HctxId, token: DispatchToken);
    /// `hctx` goes to sleep: units on its path go to the pool.
    fn percolate(&self, hctx: HctxId);
    /// Changes D, in the pool: added units meet workers that look for them (K3), removed ones are owed. False if it
    /// cannot.
    fn set_depth(&self, depth: u32) -> bool {
        let _ = depth;
        false
    }
    /// D as it is now, if it can be changed.
    fn depth(&self) -> Option<u32> {
        None
    }
    /// The pool owes units, so that a token which one gives back is of no use to another. May be false while it does:
    /// then a worker is woken for nothing.
    fn is_in_debt(&self) -> bool;
    /// Units in the pool; below 0 is a debt. A hint, unless a sequentially consistent fence of the caller's stands
    /// before it.
    fn root_units(&self) -> i64;
    /// All free units. Exact only while no thread calls anything else.
    fn total_units(&self) -> i64;
}

/// Place where throttled queues wait.
///
/// W. When `throttle` has returned a place, either `turn` calls `unthrottle` for that hctx once gvt has got to its lead
/// (W1
///    and W2 of `throttle_wheel.rs`), or its worker picks again by itself, without being told, as long as it is
///    throttled (I4).
pub trait Wheel: Send + Sync {
    /// Place of a queue while it is throttled.
    type Place: Copy + Send;
    /// A request with start tag `lead` may go at `gvt` (I3). True for the smallest lead, even if gvt is 63 units
    /// behind.
    fn is_due(&self, lead: VTime, gvt: VTime) -> bool;
    /// Puts `hctx` to wait. None: virtual time has moved meanwhile, it need not wait.
    fn throttle(&self, hctx: HctxId, lead: VTime, gvt: impl FnMut() -> VTime) -> Option<Self::Place>;
    /// Gives up a place; false if `unthrottle` has been or will be called for it.
    fn withdraw(&self, hctx: HctxId, place: Self::Place) -> bool;
    /// gvt is `gvt` now: calls `unthrottle` for queues that may go now.
    fn turn(&self, gvt: VTime, unthrottle: impl FnMut(HctxId));
    /// T.
    fn window(&self) -> VSpan;
    /// T is `window` from now on: calls `unthrottle` for queues that have a place, which W then promises no more. A
    /// `throttle` that returns a place and did not see this one's change has fenced before this one looked.
    fn set_window(&self, window: VSpan, unthrottle: impl FnMut(HctxId));
}

impl VirtualTime for Mindicator {
    #[inline(always)]
    fn publish(&self, hctx: HctxId, lead: VTime) {
        self.publish(hctx, lead);
    }

    #[inline(always)]
    fn depart(&self, hctx: HctxId) {
        self.depart(hctx);
    }

    #[inline(always)]
    fn query(&self) -> VTime {
        self.query()
    }

    #[inline(always)]
    fn global_vtime(&self) -> VTime {
        self.global_vtime()
    }

    fn lead_of(&self, hctx: HctxId, now: VTime) -> Option<VTime> {
        self.lead_of(hctx, now)
    }
}

impl Tokens for TokenTree {
    #[inline(always)]
    fn acquire_own(&self, hctx: HctxId, units: u32) -> Option<DispatchToken> {
        self.acquire_own(hctx, units)
    }

    #[inline(always)]
    fn acquire_batch(&self, hctx: HctxId, units: u32, spare: u32) -> Option<DispatchToken> {
        self.acquire_batch(hctx, units, spare)
    }

    #[inline(always)]
    fn release_local(&self, hctx: HctxId, token: DispatchToken) {
        self.release_local(hctx, token);
    }

    #[inline(always)]
    fn release_toward(&self, from: HctxId, to: HctxId, token: DispatchToken) {
        self.release_toward(from, to, token);
    }

    #[inline(always)]
    fn release_root(&self, _hctx: HctxId, token: DispatchToken) {
        self.release_root(token);
    }

    #[inline(always)]
    fn percolate(&self, hctx: HctxId) {
        self.percolate(hctx);
    }

    fn set_depth(&self, depth: u32) -> bool {
        self.set_depth(depth);
        true
    }

    fn depth(&self) -> Option<u32> {
        Some(self.depth())
    }

    #[inline(always)]
    fn is_in_debt(&self) -> bool {
        self.root_units() < 0
    }

    #[inline(always)]
    fn root_units(&self) -> i64 {
        self.root_units()
    }

    fn total_units(&self) -> i64 {
        self.total_units()
    }
}

impl Wheel for ThrottleWheel {
    type Place = WheelSlot;

    #[inline(always)]
    fn is_due(&self, lead: VTime, gvt: VTime) -> bool {
        self.is_due(lead, gvt)
    }

    #[inline(always)]
    fn throttle(&self, hctx: HctxId, lead: VTime, gvt: impl FnMut() -> VTime) -> Option<WheelSlot> {
        self.throttle(hctx, lead, gvt)
    }

    #[inline(always)]
    fn withdraw(&self, hctx: HctxId, place: WheelSlot) -> bool {
        self.withdraw(hctx, place)
    }

    #[inline(always)]
    fn turn(&self, gvt: VTime, unthrottle: impl FnMut(HctxId)) {
        self.turn(gvt, unthrottle);
    }

    fn window(&self) -> VSpan {
        self.window()
    }

    fn set_window(&self, window: VSpan, unthrottle: impl FnMut(HctxId)) {
        self.set_window(window, unthrottle);
    }
}
