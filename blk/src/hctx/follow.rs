//! The cost of writes, followed: what one context tells of its completions, and what it charges from then on.
//!
//! Once per reap that brought something, and not per request: a context whose device does not follow costs looks at one
//! word. [`WriteCost`] has the estimate and the reasons.

use super::shared::Charges;
use crate::request::{Completion, Op, Status};
use crate::table::Owner;
use mqfq_sched::cost::CostKind;
use mqfq_sched::topology::HctxId;
use mqfq_sched::write_cost::WriteCost;
use std::sync::Arc;

/// What a context that follows the cost of writes has.
pub(super) struct Follow {
    cost: Arc<WriteCost>,
    /// Since then requests wait here; `None`: at the last look there were none.
    waiting_since_ns: Option<u64>,
}

impl Follow {
    /// Nothing completed yet.
    pub(super) fn new(cost: Arc<WriteCost>) -> Follow {
        Follow { cost, waiting_since_ns: None }
    }

    /// The context of `hctx` completed these, and `staged` requests wait: the charge of a write is brought up to date.
    pub(super) fn completed(
        &mut self,
        hctx: HctxId,
        completions: &[(Owner, Completion)],
        staged: usize,
        now_ns: u64,
        charges: &mut Charges,
    ) {
        for (_, completion) in completions.iter().filter(|(_, completion)| completion.status == Status::Ok) {
            let kind = match completion.op {
                Op::Read => CostKind::Read,
                Op::Write => CostKind::Write,
                Op::Flush | Op::Discard | Op::WriteZeroes { .. } => continue,
            };
            self.cost.count(hctx, kind, completion.length_bytes.into());
        }
        let waiting = (staged > 0).then_some(now_ns);
        if let (Some(since_ns), Some(_)) = (self.waiting_since_ns, waiting) {
            self.cost.waited(hctx, now_ns.saturating_sub(since_ns));
        }
        self.waiting_since_ns = waiting;
        charges.set_write(self.cost.term(now_ns));
    }
}
