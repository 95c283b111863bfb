//! A policy's answer to a worker, and its word to the others.

use super::{DispatchToken, Handle};
use crate::flow::FlowId;
use crate::topology::HctxId;

/// A request that may go to the device now.
#[derive(PartialEq, Eq, Debug)]
pub struct Grant {
    /// The name given at submit.
    pub handle: Handle,
    /// Flow of the request.
    pub flow: FlowId,
    /// Goes back by [`Policy::complete`](super::Policy::complete).
    pub token: DispatchToken,
}

/// Next step of a worker.
#[derive(PartialEq, Eq, Debug)]
pub enum Pick {
    /// Hand this request to the device, then pick again.
    Dispatch(Grant),
    /// Requests are staged, but the first is more than T ahead of global virtual time. A kick will come.
    Throttled,
    /// A request may go as far as fairness is concerned, but the device holds D. A kick will come.
    NoToken,
    /// Requests are staged, and the policy holds them back until this time, ns, in the hope of a better one. Pick again
    /// then, and after a submit, a complete or a kick. They need not be this queue's: the worker that is told looks
    /// again for all.
    Later(u64),
    /// Nothing is staged here.
    Idle,
}

/// How a policy tells other workers that they should pick again. Called only for workers other than the caller's.
///
/// A kick must not be lost: after `kick(h)` the worker of `h` must call [`Policy::pick`](super::Policy::pick) at least
/// once, even if it was about to sleep.
pub trait Kick {
    /// Make the worker of `hctx` pick again soon.
    fn kick(&mut self, hctx: HctxId);
}

impl<F: FnMut(HctxId)> Kick for F {
    fn kick(&mut self, hctx: HctxId) {
        self(hctx)
    }
}
