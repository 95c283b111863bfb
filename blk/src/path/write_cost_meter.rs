//! The cost of writes, followed: how one context reports its completions, and its charges from then on.
//!
//! Once per reap that brought something, and not per request: a context whose device does not follow costs looks at one
//! word. [`WriteCost`] has the estimate and the reasons.

use crate::request::{Completion, Op, Status};
use crate::table::Owner;
use mqfq_sched::cost::{CostKind, CostTerm};
use mqfq_sched::topology::HctxId;
use mqfq_sched::write_cost::WriteCost;
use std::sync::Arc;

/// State of a context that follows the cost of writes.
pub(super) struct WriteCostMeter {
    cost: Arc<WriteCost>,
    /// Time since which requests wait here; `None`: at the last look there were none.
    waiting_since_ns: Option<u64>,
}

impl WriteCostMeter {
    /// Follows `cost`; no request completed yet.
    pub(super) fn new(cost: Arc<WriteCost>) -> WriteCostMeter {
        WriteCostMeter { cost, waiting_since_ns: None }
    }

    /// The context of `hctx` completed these; `staged` requests wait, `out` are on the device. Returns the charge of a
    /// write from now on.
    pub(super) fn completed(
        &mut self,
        hctx: HctxId,
        completions: &[(Owner, Completion)],
        [staged, out]: [usize; 2],
        now_ns: u64,
    ) -> CostTerm {
        for (_, completion) in completions.iter().filter(|(_, completion)| completion.status == Status::Ok) {
            let kind = match completion.op {
                Op::Read => CostKind::Read,
                Op::Write => CostKind::Write,
                _ => continue,
            };
            self.cost.count(hctx, kind, completion.length_bytes.into());
        }
        let waiting = (staged > 0).then_some(now_ns);
        if let (Some(since_ns), Some(_)) = (self.waiting_since_ns, waiting) {
            self.cost.waited(hctx, now_ns.saturating_sub(since_ns), out == 0 && completions.len() > 1);
        }
        self.waiting_since_ns = waiting;
        self.cost.term(now_ns)
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::hctx::HwCtx;
    use crate::path::hctx::tests::{context, reap, serve, submit};
    use crate::path_options::PathOptions;
    use crate::split::Split;
    use mqfq_sched::cost::CostModel;
    use mqfq_sched::policy::AnyPolicy;

    #[test]
    fn a_reap_that_brings_a_request_or_a_part_is_looked_at_and_one_that_brings_nothing_is_not() {
        let path = PathOptions { split: Split::Bytes(4096), ..PathOptions::TIMELESS };
        let mut hctx = context(path).with_write_cost(Arc::new(WriteCost::new(CostModel::FLAT, 1)));
        let since_ns = |hctx: &HwCtx<AnyPolicy>| hctx.shared.write_cost.as_ref().expect("it follows").waiting_since_ns;
        // Twelve parts for eight tags.
        assert!(submit(&mut hctx, Op::Read, 0, 12 * 4096));
        assert_eq!((reap(&mut hctx, 5), since_ns(&hctx)), (0, None), "nothing was on the device");
        assert_eq!((serve(&mut hctx, 10), since_ns(&hctx)), (8, Some(10)), "parts, and four wait");
        assert_eq!((reap(&mut hctx, 20), since_ns(&hctx)), (0, Some(10)));
        assert_eq!((serve(&mut hctx, 30), since_ns(&hctx)), (4, None), "no request waits");
        // Requests of one block each.
        (0..9).for_each(|_| assert!(submit(&mut hctx, Op::Write, 0, 4096)));
        assert_eq!((serve(&mut hctx, 40), since_ns(&hctx)), (8, Some(40)));
        assert_eq!((serve(&mut hctx, 50), since_ns(&hctx)), (1, None));
    }

    #[test]
    fn a_worker_that_finds_several_requests_done_and_none_left_while_others_wait_has_emptied_the_device() {
        let cost = Arc::new(WriteCost::new(CostModel::FLAT, 1));
        let mut hctx = context(PathOptions::TIMELESS).with_write_cost(cost.clone());
        (0..20).for_each(|_| assert!(submit(&mut hctx, Op::Read, 0, 4096)));
        assert_eq!((serve(&mut hctx, 10), cost.waits_ns(HctxId(0))), (8, [0, 0]), "eight tags, twelve wait");
        assert_eq!((serve(&mut hctx, 30), cost.waits_ns(HctxId(0))), (8, [20, 20]), "all eight at once, four wait");
        assert_eq!((serve(&mut hctx, 60), cost.waits_ns(HctxId(0))), (4, [20, 20]), "no request waits");
    }
}
