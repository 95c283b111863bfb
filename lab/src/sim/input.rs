//! Jobs and their texts: figures and scenarios that the program has, or that a user named.

use mqfq_report::progress::Progress;
use mqfq_sim::any::{self, AnyOutcome};
use mqfq_sim::embedded;
use mqfq_sim::figure::{Extent, Figure, Job};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Runs every job, `threads` at once (`None`: one per CPU). The outcomes come in the order of the jobs.
pub(super) fn simulate(jobs: &[Job], threads: Option<usize>) -> Result<Vec<AnyOutcome>, String> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0))
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    let progress = Mutex::new(Progress::new(jobs.len()));
    let outcomes = pool.install(|| mqfq_bench::simulate::simulate(jobs, &progress));
    progress.lock().unwrap_or_else(PoisonError::into_inner).finish();
    outcomes
}

/// The figure that the program has under this name, or the file of this path.
pub(super) fn read_figure(name: &str, extent: Extent) -> Result<Figure, String> {
    let read =
        |file: &str, text: &str| Figure::read(name, file, text, extent, &any::check).map_err(|error| error.to_string());
    match embedded::figure(name) {
        Some(text) => read(&embedded::figure_file(name), text),
        None => read(name, &read_file(name, "figure", embedded::FIGURES)?),
    }
}

/// The text of a file that a user named. `known` is what could have been named instead.
pub(super) fn read_file(name: &str, what: &str, known: &[(&str, &str)]) -> Result<String, String> {
    let path = Path::new(name);
    if path.extension().is_none() && !path.exists() {
        let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "there is no {what} \"{name}\", there are {}, or the path of a TOML file",
            known.join(", ")
        ));
    }
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {what} {name}: {}", crate::plain(&error)))
}

/// A number of simulations at once.
pub(super) fn jobs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(jobs) if (1..=1024).contains(&jobs) => Ok(jobs),
        _ => Err(format!("{text} is not a number from 1 to 1024")),
    }
}
