//! Families of the workers (how they wait), and families about latency goals.

use super::{Family, Of, SECONDS, family};
use mqfq_blk::tuning::Fares;
pub(super) use mqfq_blk::tuning::GoalState;

pub(super) const IN_VAIN_HELP: &str = "Time that a worker stayed awake for what did not come";
pub(super) const POLL_HELP: &str = "Longest time that a worker stays awake for what it waits for";

pub(super) fn of_workers() -> [Family; 2] {
    [
        family("worker_in_vain", IN_VAIN_HELP, SECONDS, Of::Worker(|worker| worker.in_vain_ns, true)),
        family("worker_poll", POLL_HELP, SECONDS, Of::Worker(|worker| worker.poll_ns, false)),
    ]
}

/// Label of a worker, between the braces.
pub(super) fn label(worker: usize) -> Vec<u8> {
    format!("worker=\"{worker}\"").into_bytes()
}

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

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::scrape;
    use crate::metrics::Format;
    use mqfq_blk::engine::WorkerStats;

    pub(in super::super) fn two() -> Vec<WorkerStats> {
        let worker =
            |n: u64| WorkerStats { in_vain_ns: n * 1_500_000_000, poll_ns: n * 52_000, ..WorkerStats::default() };
        vec![worker(1), worker(2)]
    }

    #[test]
    fn each_worker_has_its_time_in_vain_and_the_longest_that_it_stays_awake() {
        let mut scrape = scrape(1);
        scrape.stats.workers = two();
        let text = scrape.text(Format::OpenMetrics);
        for line in [
            "in_vain_seconds_total{worker=\"0\"} 1.5\n",
            "in_vain_seconds_total{worker=\"1\"} 3.0\n",
            "poll_seconds{worker=\"0\"} 0.000052\n",
            "poll_seconds{worker=\"1\"} 0.000104\n",
        ] {
            assert!(text.contains(&format!("mqfq_worker_{line}")), "{line} is not in\n{text}");
        }
    }
}
