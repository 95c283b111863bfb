//! Scenarios through the simulator, several at once. How many at once changes the time that it takes and nothing else.

use mqfq_report::progress::Progress;
use mqfq_sim::any::{self, AnyOutcome};
use mqfq_sim::figure::Job;
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Runs every job on the threads of the pool that it is called in, and says which has begun. The outcomes come in the
/// order of the jobs.
///
/// # Errors
/// One sentence: of the first job that fails.
pub fn simulate(jobs: &[Job], progress: &Mutex<Progress>) -> Result<Vec<AnyOutcome>, String> {
    let one = |job: &Job| {
        progress.lock().unwrap_or_else(PoisonError::into_inner).step(&job.label);
        any::run(&job.file, &job.scenario).map_err(|error| format!("{}: {error}", job.label))
    };
    // One by one, since one scenario may take as long as all others.
    let outcomes: Vec<Result<AnyOutcome, String>> = jobs.par_iter().with_max_len(1).map(one).collect();
    outcomes.into_iter().collect()
}
