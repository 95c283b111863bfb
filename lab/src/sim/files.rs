//! Jobs and their texts, figures and scenarios that the program has or that a user named; and results as files and as
//! text.

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

/// The name of a figure or scenario as that of its files: `mqfq/8` is mqfq-8, `my/own.toml` is own.
pub(super) fn file_stem(name: &str) -> String {
    match name.strip_suffix(".toml") {
        Some(path) => Path::new(path).file_name().map_or("own".into(), |stem| stem.to_string_lossy().into_owned()),
        None => name.replace('/', "-"),
    }
}

/// Writes a file into a folder, which is made. Returns its path.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<String, String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make the folder {}: {}", folder.display(), crate::plain(&error)))?;
    let path = folder.join(name);
    std::fs::write(&path, text)
        .map_err(|error| format!("cannot write {}: {}", path.display(), crate::plain(&error)))?;
    Ok(path.display().to_string())
}

/// A table as CSV.
pub(super) fn csv<C: AsRef<[u8]>, R: IntoIterator<Item = C>>(
    header: &[&str],
    rows: impl Iterator<Item = R>,
) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot write CSV: {error}");
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    writer.write_record(header).map_err(|error| failed(&error))?;
    for row in rows {
        writer.write_record(row).map_err(|error| failed(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(&error))?;
    String::from_utf8(bytes).map_err(|error| failed(&error))
}

/// A number with as many digits as say something.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        large if large >= 1000.0 => format!("{value:.0}"),
        large if large >= 100.0 => format!("{value:.1}"),
        small if small < 0.01 => format!("{value:.1e}"),
        _ => format!("{value:.3}"),
    }
}

/// A number as text, or the mark for a number that does not exist.
pub(super) fn maybe(value: Option<f64>) -> String {
    value.map_or("-".into(), number)
}
