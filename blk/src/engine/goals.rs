//! Latency goals of a device's flows, as its tuning holds them.

use super::{Engine, FlowGoal, FlowOptions};
use crate::tuning::{Goal, Goals};
use mqfq_sched::flow::FlowId;
use std::collections::BTreeMap;

/// The goals of these flows, by place: one for each owner.
pub(super) fn of(flows: &[Option<FlowOptions>]) -> Goals {
    let mut by_owner: BTreeMap<&str, Goal> = BTreeMap::new();
    let mut floor_thousandths = None;
    for (flow, options) in (0..).map(FlowId).zip(flows) {
        let Some(FlowGoal { owner, goal_ns, floor_thousandths: floor }) =
            options.as_ref().and_then(|of| of.goal.as_ref())
        else {
            continue;
        };
        let new = || Goal { name: owner.clone(), goal_ns: *goal_ns, flows: Vec::new() };
        by_owner.entry(owner).or_insert_with(new).flows.push(flow);
        floor_thousandths = floor_thousandths.max(Some(*floor));
    }
    let default = Goals::default();
    Goals {
        floor_thousandths: floor_thousandths.unwrap_or(default.floor_thousandths),
        goals: by_owner.into_values().collect(),
    }
}

impl Engine {
    /// Has the tuning of a device hold the goals of its present flows.
    pub(super) fn put_goals(&self, device: usize) {
        let goals = self.of(device, |at| of(&at.flows));
        if let Some(tuning) = self.shared_device(device).running().tuning {
            tuning.set_goals(&goals);
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn flows_of_one_owner_have_one_goal_and_the_largest_floor_counts() {
        let flow = |name: &str, owner: Option<&str>, floor_thousandths| {
            let goal = owner.map(|owner| FlowGoal { owner: owner.to_owned(), goal_ns: 7, floor_thousandths });
            Some(FlowOptions { goal, ..FlowOptions::new(name) })
        };
        let flows = [flow("a", Some("x"), 500), None, flow("b", None, 0), flow("c", Some("x"), 600)];
        let goal = Goal { name: "x".into(), goal_ns: 7, flows: vec![FlowId(0), FlowId(3)] };
        assert_eq!(of(&flows), Goals { floor_thousandths: 600, goals: vec![goal] });
        assert_eq!(of(&flows[1..3]), Goals::default());
    }
}
