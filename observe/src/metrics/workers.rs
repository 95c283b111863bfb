//! Families of the workers: how they wait.

use super::{Family, Of, SECONDS, family};

pub(super) const IN_VAIN_HELP: &str = "Time that a worker stayed awake for what did not come";
pub(super) const POLL_HELP: &str = "Longest time that a worker stays awake for what it waits for";

pub(super) fn families() -> [Family; 2] {
    [
        family("worker_in_vain", IN_VAIN_HELP, SECONDS, Of::Worker(|worker| worker.in_vain_ns, true)),
        family("worker_poll", POLL_HELP, SECONDS, Of::Worker(|worker| worker.poll_ns, false)),
    ]
}

/// Label of a worker, between the braces.
pub(super) fn label(worker: usize) -> Vec<u8> {
    format!("worker=\"{worker}\"").into_bytes()
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
