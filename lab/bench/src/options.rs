//! Options that several commands read alike. Each command's own stand at its `...Options`, which are read from the
//! command line as they are.

use clap::builder::TypedValueParser;
use std::path::PathBuf;

/// How much is measured, with defaults, and where the results go.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct Runs<const ROUNDS: u32, const MS: u64> {
    /// How often each case is measured.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Length of each measurement.
    #[arg(
        long = "milliseconds",
        value_name = "MILLISECONDS",
        default_value_t = MS,
        value_parser = clap::value_parser!(u64).range(1..=600_000)
    )]
    pub measured_ms: u64,
    /// Write the pictures, and of some commands the tables, into FOLDER.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Write the report, and the pictures, into FOLDER/HOST/DATE.
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,
    /// HOST in the record, if not the machine's own name.
    #[arg(long, requires = "record")]
    pub host: Option<String>,
}

/// Returns a command's options at their defaults.
pub fn defaults<A: clap::Args>() -> A {
    let command = A::augment_args(clap::Command::new("defaults").no_binary_name(true));
    let matches = command.get_matches_from(std::iter::empty::<&str>());
    A::from_arg_matches(&matches).expect("every option has a default")
}

/// Most workers that can be asked for.
pub const WORKERS_MAX: usize = 256;

/// A number of workers.
#[cfg(feature = "whole")]
pub(crate) fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers) if (1..=WORKERS_MAX).contains(&workers) => Ok(workers),
        _ => Err(format!("{text} is not a number from 1 to {WORKERS_MAX}")),
    }
}

/// Time of an instruction, ns.
pub(crate) fn ns_per_instruction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ns) if (0.01..=10.0).contains(&ns) => Ok(ns),
        _ => Err(format!("{text} is not a number from 0.01 to 10")),
    }
}

/// KiB, as bytes.
pub(crate) fn kib() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(0..=1 << 30).map(|kib| kib << 10)
}

/// Seconds from 1 to an hour, as milliseconds.
#[cfg(feature = "whole")]
pub(crate) fn seconds() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..=3600).map(|seconds| seconds * 1000)
}

/// A count of at most `most`.
#[cfg(feature = "whole")]
pub(crate) fn count(most: i64) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u16).range(1..=most).map(usize::from)
}
