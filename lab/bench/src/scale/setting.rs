//! Placement of the flows: the settings that one number of workers is measured in.

/// Which workers a flow submits on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each flow on one worker.
    Own,
    /// Each flow on every worker.
    All,
}

impl Placement {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Own => "own",
            Placement::All => "all",
        }
    }
}

/// Workers, and the flows on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Workers, at least 1.
    pub workers: usize,
    /// Which workers a flow is on.
    pub placement: Placement,
    /// Flows in all; with [`Placement::Own`] a multiple of the workers.
    pub flows: u32,
}

impl Setting {
    /// The settings of `workers` workers. `flows`: per worker where each has its own, in all where all share them;
    /// `None`: one per worker, and where all share them once a single one, once as many as workers.
    pub fn all(workers: usize, flows: Option<u32>) -> Vec<Setting> {
        let setting = |placement, flows| Setting { workers, placement, flows };
        let mut settings = vec![setting(Placement::Own, flows.unwrap_or(1) * workers as u32)];
        match flows {
            Some(flows) => settings.push(setting(Placement::All, flows)),
            None => {
                settings.push(setting(Placement::All, 1));
                if workers > 1 {
                    settings.push(setting(Placement::All, workers as u32));
                }
            }
        }
        settings
    }

    /// The flows that have a client on this worker.
    pub fn flows_of_worker(&self, worker: usize) -> std::ops::Range<u32> {
        match self.placement {
            Placement::All => 0..self.flows,
            Placement::Own => {
                let part = self.flows / self.workers as u32;
                worker as u32 * part..(worker as u32 + 1) * part
            }
        }
    }

    /// Name of a curve over the number of workers: the settings of one name.
    pub fn curve(&self) -> &'static str {
        match (self.placement, self.flows) {
            (Placement::Own, _) => "each flow on a worker of its own",
            (Placement::All, 1) => "one flow on all workers",
            (Placement::All, _) => "every flow on all workers",
        }
    }
}

/// The numbers of workers from 1 to `most`: all up to 4, then powers of two and what lies halfway, and `most`.
pub fn worker_counts(most: usize) -> Vec<usize> {
    let is_one = |&workers: &usize| {
        let power = 1 << workers.ilog2();
        workers <= 4 || workers == power || workers == power + power / 2 || workers == most
    };
    (1..=most).filter(is_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_flows_meet_nobody_and_shared_ones_everybody() {
        let settings = Setting::all(2, None);
        let flows = |setting: &Setting| [0, 1].map(|worker| setting.flows_of_worker(worker).collect::<Vec<_>>());
        assert_eq!(flows(&settings[0]), [vec![0], vec![1]], "own");
        assert_eq!(flows(&settings[1]), [vec![0], vec![0]], "one on all");
        assert_eq!(flows(&settings[2]), [vec![0, 1], vec![0, 1]], "as many as workers, on all");
        assert_eq!(settings.len(), 3);
        assert_eq!(Setting::all(1, None).len(), 2, "one flow is as many as workers");
        assert_eq!(flows(&Setting::all(2, Some(2))[0]), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn few_workers_are_all_measured_and_many_in_steps() {
        assert_eq!(worker_counts(1), [1]);
        assert_eq!(worker_counts(3), [1, 2, 3]);
        assert_eq!(worker_counts(16), [1, 2, 3, 4, 6, 8, 12, 16]);
        assert_eq!(worker_counts(10), [1, 2, 3, 4, 6, 8, 10]);
    }
}
