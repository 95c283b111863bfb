//! The global virtual time of `d2fq` by other means: what its one word with a holder is compared with.
//!
//! Source: D2FQ section 4.3, "Scalability", and Figure 17.
//!
//! | name | what it does |
//! |---|---|
//! | `sloppy` | the scheduler's own: one word, moved by the flow that holds it |
//! | `mindicator` | a leaf for each flow, as MQFQ has one for each queue |
//! | `serial-scan` | "inspecting all flows every time of accessing gvt" |
//! | `off` | nothing is kept: the paper's None, which "performs no gvt tracking" |
//!
//! The scan is [`ArrayScan`], with a slot for each flow in place of one for each queue. A flow that is served on
//! several workers has its slot written by each of them, and may show an older time of its own until its next
//! completion; the mindicator's leaves have one writer each, so it needs a flow on one worker only, and a leaf for
//! each.
//!
//! With `off` every flow is soon far ahead, and goes to the low queues with all others: no flow is throttled against
//! another.

use super::array_scan::ArrayScan;
use crate::scenario::GvtKind;
use mqfq_policies_watched::{D2fq, GlobalVtime, Gvt};
use mqfq_sched_watched::flow::FlowId;
use mqfq_sched_watched::mindicator::Mindicator;
use mqfq_sched_watched::policy::PolicyOptions;
use mqfq_sched_watched::topology::{HctxId, Topology};
use mqfq_sched_watched::vtime::VTime;
use mqfq_sched_watched::watched::AtomicU64;

/// Any of them.
#[allow(clippy::large_enum_variant, reason = "one per device, never moved on the path")]
pub enum AnyGvt {
    /// The scheduler's own.
    Sloppy(Gvt),
    /// A leaf for each flow.
    Mindicator {
        /// The tree.
        tree: Mindicator,
        /// Flows.
        flows: usize,
    },
    /// All flows, one after the other.
    SerialScan {
        /// A slot for each flow.
        all: ArrayScan<AtomicU64, 1>,
        /// Flows.
        flows: usize,
    },
    /// Nothing.
    Off(VTime),
}

impl AnyGvt {
    /// One for so many flows on the workers of `topology`.
    ///
    /// # Errors
    /// One sentence: more flows than the mindicator has leaves.
    pub fn new(kind: GvtKind, options: &PolicyOptions, topology: &Topology, flows: usize) -> Result<AnyGvt, String> {
        let start = D2fq::start(options);
        Ok(match kind {
            GvtKind::Sloppy => AnyGvt::Sloppy(Gvt::new(start)),
            GvtKind::Mindicator if flows > topology.hctx_count() => {
                return Err(format!(
                    "policy: global-vtime \"mindicator\" has a leaf for each worker, {}, and there are {flows} flows",
                    topology.hctx_count()
                ));
            }
            GvtKind::Mindicator => AnyGvt::Mindicator { tree: Mindicator::new(topology, start), flows },
            GvtKind::SerialScan => AnyGvt::SerialScan { all: ArrayScan::new(flows, start), flows },
            GvtKind::Off => AnyGvt::Off(start),
        })
    }
}

/// A flow's leaf.
fn leaf(flow: FlowId) -> HctxId {
    HctxId(flow.0 as u16)
}

impl GlobalVtime for AnyGvt {
    fn now(&self) -> VTime {
        match self {
            AnyGvt::Sloppy(gvt) => gvt.now(),
            AnyGvt::Mindicator { tree, .. } => tree.global_vtime(),
            AnyGvt::SerialScan { all, .. } => all.query(),
            AnyGvt::Off(start) => *start,
        }
    }

    fn update(&self, flow: FlowId, vtime: VTime) -> i64 {
        match self {
            AnyGvt::Sloppy(gvt) => gvt.update(flow, vtime),
            AnyGvt::Mindicator { tree, .. } => {
                let ahead = vtime.since(tree.global_vtime());
                tree.publish(leaf(flow), vtime);
                tree.query();
                ahead
            }
            AnyGvt::SerialScan { all, .. } => {
                let ahead = vtime.since(all.global_vtime());
                all.publish(flow.0 as usize, vtime);
                all.query();
                ahead
            }
            AnyGvt::Off(_) => 0,
        }
    }

    fn release_inactive(&self, is_inactive: impl Fn(FlowId) -> bool) {
        let inactive = |flows: usize| (0..flows as u32).map(FlowId).filter(|&flow| is_inactive(flow));
        match self {
            AnyGvt::Sloppy(gvt) => gvt.release_inactive(is_inactive),
            AnyGvt::Mindicator { tree, flows } => inactive(*flows).for_each(|flow| {
                tree.depart(leaf(flow));
                tree.query();
            }),
            AnyGvt::SerialScan { all, flows } => inactive(*flows).for_each(|flow| {
                all.depart(flow.0 as usize);
                all.query();
            }),
            AnyGvt::Off(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_policies_watched::D2FQ;

    fn gvt(kind: GvtKind, flows: usize) -> AnyGvt {
        AnyGvt::new(kind, &PolicyOptions::new(D2FQ), &Topology::flat(4), flows).unwrap()
    }

    /// A time in grains of the scheduler's own.
    fn at(gvt: &AnyGvt, grains: u64) -> VTime {
        let AnyGvt::Off(start) = gvt else { return VTime::from_raw(grains << 17) };
        VTime::from_raw(start.raw() + (grains << 17))
    }

    #[test]
    fn the_last_of_the_active_flows_holds_back_time_in_all_of_them() {
        for kind in [GvtKind::Sloppy, GvtKind::Mindicator, GvtKind::SerialScan] {
            let gvt = gvt(kind, 3);
            for (flow, grains) in [(0, 1), (1, 2), (0, 3), (1, 4), (0, 5)] {
                gvt.update(FlowId(flow), at(&gvt, grains));
            }
            let before = gvt.now();
            assert!((0..=4 << 17).contains(&before.since(at(&gvt, 1))), "{kind:?}: {before:?}");
            gvt.update(FlowId(1), at(&gvt, 9));
            assert!(gvt.now().since(at(&gvt, 5)) <= 0, "{kind:?}: flow 0 is at 5");
            gvt.release_inactive(|flow| flow == FlowId(0));
            gvt.update(FlowId(1), at(&gvt, 10));
            assert_eq!(gvt.now(), at(&gvt, 10), "{kind:?}: flow 1 is alone");
        }
    }

    #[test]
    fn without_one_time_stands_still() {
        let gvt = gvt(GvtKind::Off, 3);
        assert_eq!(gvt.update(FlowId(1), at(&gvt, 7)), 0);
        assert_eq!(gvt.now(), at(&gvt, 0));
    }

    #[test]
    fn a_mindicator_without_a_leaf_for_each_flow_is_refused() {
        let options = PolicyOptions::new(D2FQ);
        let Err(why) = AnyGvt::new(GvtKind::Mindicator, &options, &Topology::flat(4), 5) else { panic!("refused") };
        assert_eq!(why, "policy: global-vtime \"mindicator\" has a leaf for each worker, 4, and there are 5 flows");
    }
}
