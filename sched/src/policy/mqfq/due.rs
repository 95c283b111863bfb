//! A token for a tenant that has one request at a time.
//!
//! Answers: does a token that came back go to another queue before the own one?
//!
//! # Who is due
//! Under one lock a token that comes back goes to the smallest start tag. Here it goes to the own queue, as long as its
//! lead is within T of gvt: no shared line is touched, and workers do not wait for each other. A tenant that has one
//! request at a time then waits for T of the others' service at each of them. So a worker that had its part of D on the
//! device when a token comes back calls a *shallow* queue: one that is ready, and whose first request is the only one
//! of its flow there. It calls the one with the smallest lead, if that is not after its own. Where every flow has more
//! requests waiting, nothing is called: they lose nothing by the wait, and T keeps them together.
//!
//! Example: T is 256 KiB, B reads 128 KiB at depth 32, Q writes 8 KiB at depth 1, D is 97 units of 4 KiB. Q's start tag
//! is gvt, which is B's lead. The next completion of B sends Q's write to the device; without this, two more reads of B
//! went first. On `flash-60k` a write takes 960 us in place of 2,350, as under `sfqd`.
//!
//! The bound has no term for it: it decides which queue dispatches, not how much.
//!
//! # Race: a token for the queue that is due, and its giver
//! B gives its only token to Q, which it has called, and then looks for a token itself. It would find the one that it
//! gave away, since both look there.
//!
//! | step | B completes, picks                                  | Q, called                           |
//! |------|-----------------------------------------------------|-------------------------------------|
//! |  1   | claims Q's mark, calls Q, token to LCA(B, Q), kicks |                                     |
//! |  2   | marks itself, **fence**                             | answers, **fence**, picks           |
//! |  3   | Q still called? then sleeps                         | before it sleeps: searches, kicks B |
//!
//! Either Q's search finds B's mark, or B sees that Q has picked, and goes on (`ready_set.rs`, second table). B waits
//! once for a token that it gave, and its own next completion wakes it in any case: a worker that is away stops no
//! other.
//!
//! # Cost
//! A completion of a queue with its part of D on the device reads one line per socket, which changes only while shallow
//! queues wait.

use super::queue::Queue;
use super::structures::{Structures, Tokens, VirtualTime};
use super::{DispatchToken, Kick, Mqfq};
use crate::topology::HctxId;

impl<S: Structures> Mqfq<S> {
    /// True if the queue that our last token was given to has not picked since: that one is to have it, and searches
    /// for ours, which is marked ready, before it sleeps. Once per token: a worker that is away stops ours no longer.
    pub(super) fn yields(&self, queue: &mut Queue<S>) -> bool {
        let hctx = queue.hctx;
        let Some(due) = queue.yields_to.take().filter(|due| self.ready.is_called(*due)) else { return false };
        // P2: a part of the units that the first request needs.
        self.tokens.percolate(hctx);
        // Ends with the fence of the second table in `ready_set.rs`.
        self.ready.mark(hctx);
        if self.ready.is_called(due) {
            queue.is_listed = true;
            return true;
        }
        self.ready.unmark(hctx);
        false
    }

    /// Claims the shallow queue that waits for a token and is due first, if its lead is not after ours and `units` that
    /// come back leave something beyond the root's debt.
    #[inline]
    pub(super) fn call_due(&self, queue: &Queue<S>, units: u32) -> Option<HctxId> {
        self.ready.call_first(queue.hctx, |other| {
            if self.tokens.root_units() + i64::from(units) <= 0 {
                return None;
            }
            let now = self.virtual_time.global_vtime();
            let shown = self.virtual_time.lead_of(other, now).unwrap_or(now);
            let is_due = queue.stage.lead().is_none_or(|lead| !lead.is_before(shown));
            is_due.then(|| shown.since(now))
        })
    }

    /// After a completion of a queue that had its share out: the token, unless another queue waits for one and has got
    /// it, because it is due before, or because the share is still out.
    #[inline(never)]
    pub(super) fn share_out(
        &self,
        queue: &mut Queue<S>,
        token: DispatchToken,
        kick: &mut impl Kick,
    ) -> Option<DispatchToken> {
        self.follow_depth(queue);
        let hctx = queue.hctx;
        if let Some(due) = self.call_due(queue, token.units()) {
            if self.is_for_one(&token) {
                self.tokens.release_toward(hctx, due, token);
            } else {
                self.tokens.release_root(hctx, token);
            }
            queue.yields_to = Some(due);
            kick.kick(due);
            return None;
        }
        if queue.room > 0 || !self.is_for_one(&token) {
            return Some(token);
        }
        // Ours would be the nearest. We pick after this and need no mark.
        self.ready.unmark(hctx);
        self.give_away(hctx, token, kick)
    }
}
