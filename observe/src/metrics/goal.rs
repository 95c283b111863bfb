//! Families about latency goals.

use super::{Family, Of, SECONDS, family};
use mqfq_blk::tuning::Fares;
pub(super) use mqfq_blk::tuning::GoalState;

pub(super) const CAP_HELP: &str = "Largest D that latency goals leave; missing while none holds it down";
pub(super) const GOAL_HELP: &str = "Latency goal: nine of ten small requests take no longer";
pub(super) const P90_HELP: &str = "Nine of ten small requests took no longer when the goal was last judged";
pub(super) const MET_HELP: &str = "1 if the goal was met when it was last judged, else 0";

/// 1 or 0.
pub(super) fn is_met(goal: &GoalState) -> u64 {
    u64::from(goal.fares == Fares::Met)
}

pub(super) fn cap() -> Family {
    family("device_depth_cap_units", CAP_HELP, None, Of::Device(|device| device.depth_cap.map(u64::from)))
}

pub(super) fn goal() -> Family {
    family("tenant_latency_goal", GOAL_HELP, SECONDS, Of::Goal(|goal| goal.goal_ns, true))
}

pub(super) fn p90() -> Family {
    family("tenant_latency_p90", P90_HELP, SECONDS, Of::Goal(|goal| goal.p90_ns, true))
}

pub(super) fn met() -> Family {
    family("tenant_latency_goal_met", MET_HELP, None, Of::Goal(is_met, false))
}
