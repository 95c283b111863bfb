//! State of one worker in `mqfq`: its stage queue, and its part of the shared structures.

use super::structures::{Structures, Wheel};
use crate::flow::Lease;
use crate::stage_queue::StageQueue;
use crate::throttle_wheel::WheelSlot;
use crate::topology::HctxId;
use crate::vtime::VTime;

/// State of one worker. `P` is its place in the throttle wheel.
pub struct MqfqQueue<P = WheelSlot> {
    pub(super) hctx: HctxId,
    /// Stage queue; with each flow that has requests here, the queue's lease on it.
    pub(super) stage: StageQueue<Waiting, Lease>,
    /// Lead that the own leaf of the mindicator shows, if it shows any.
    pub(super) shown: VTime,
    pub(super) is_shown: bool,
    /// Place in the throttle wheel, if the last pick took one.
    pub(super) place: Option<P>,
    /// Queue that got our last token because it was due before us; our next look for a token leaves it that.
    pub(super) yields_to: Option<HctxId>,
    /// The last pick left a mark in the ready set or a place in the wheel, which a turner makes into a mark.
    pub(super) is_listed: bool,
    /// Number of further units that it may have on the device before it gives tokens away: `share` less those there.
    pub(super) room: i32,
    /// A queue with this many units out gives freed tokens away (`PolicyOptions::token_share`); in the paper's form
    /// more than there can be.
    pub(super) share: i32,
    /// `PolicyOptions::token_batch`.
    pub(super) batch: u32,
}

impl<P> MqfqQueue<P> {
    /// Requests that it can stage at once.
    pub fn capacity(&self) -> usize {
        self.stage.capacity()
    }
}

/// Units out from which on a queue gives tokens away; 0 is never.
pub(super) const fn share_of(token_share: u32) -> i32 {
    if token_share == 0 { i32::MAX / 2 } else { token_share as i32 }
}

/// State of a worker of `Mqfq<S>`.
pub(super) type Queue<S> = MqfqQueue<<<S as Structures>::Wheel as Wheel>::Place>;

/// A staged request: its handle, and its units of D.
#[derive(Clone, Copy, Default)]
pub(super) struct Waiting {
    pub(super) handle: u32,
    pub(super) units: u32,
}
