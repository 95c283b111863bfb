//! What a figure shows of programs that compete for cores: who got how much of them, and what came of it.
//!
//! # What is fair
//! ```text
//!   fair    a program's part, by weight, of all cores
//!   due     the smaller of that and of what the program uses when it is alone
//!   lag     how far a program is from its part, by weight, of what all programs got together, of that part (P-MQFQ section 2.4)
//! ```
//! A program that does not use its fair share even alone cannot be given it. So `of-due` is what a scheduler can be
//! blamed for, and `of-fair` what the program got.

use super::X;
use super::metric::Reference;
use crate::cpu::Outcome;
use crate::cpu::outcome::ProgramOutcome;

/// Which number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfPrograms {
    /// Its part of the machine's time, 0..=1.
    CpuShare,
    /// Cores that it, or all together, used on average.
    CoresUsed,
    /// Cores that it used, over those that are fair.
    OfFair,
    /// Cores that it used, over those that it is due.
    OfDue,
    /// How far it is from its part of what all got, of that part.
    Lag,
    /// What P-MQFQ's equation 3 says of the same; x is l_nc / l_max.
    Equation3,
    /// Pieces of its work per second.
    ItemsPerS,
    /// Computing per second, over that of the baseline. Spinning and switching are none of it.
    Speedup,
    /// Time that the same computing takes, over that of the baseline.
    RelativeTime,
    /// Geometric mean of all programs' speedups.
    WeightedSpeedup,
    /// Threads put on another core than before, per second.
    MigrationsPerS,
    /// Threads that blocked, per second.
    BlocksPerS,
    /// Part of the cores' time on which something ran, 0..=1.
    Utilisation,
}

impl OfPrograms {
    /// What it compares with.
    pub fn reference(self) -> Reference {
        match self {
            OfPrograms::OfDue => Reference::Alone,
            OfPrograms::Speedup | OfPrograms::RelativeTime | OfPrograms::WeightedSpeedup => Reference::Baseline,
            _ => Reference::None,
        }
    }
}

/// The number; `None` if it does not exist.
pub fn value(kind: OfPrograms, name: Option<&str>, run: &Outcome, other: Option<&Outcome>, x: &X) -> Option<f64> {
    let find = |outcome: &'_ Outcome| outcome.programs.iter().position(|program| Some(program.name.as_str()) == name);
    let own = || find(run).map(|at| &run.programs[at]);
    let chosen = || run.programs.iter().filter(|program| name.is_none_or(|name| program.name == name));
    let per_s = |count: u64| count as f64 / (run.measured_ns as f64 * 1e-9);
    match kind {
        OfPrograms::CpuShare => Some(own()?.share),
        OfPrograms::CoresUsed => Some(chosen().map(|program| program.cores_used).sum()),
        OfPrograms::OfFair => Some(own()?.cores_used / fair_cores(run, own()?)),
        OfPrograms::OfDue => {
            let other = other?;
            let alone = other.programs[find(other)?].cores_used;
            quotient(own()?.cores_used, fair_cores(run, own()?).min(alone))
        }
        OfPrograms::Lag => {
            let all_ns: u64 = run.programs.iter().map(|program| program.cpu_ns).sum();
            let fair_ns = all_ns as f64 * part(run, own()?);
            quotient((fair_ns - own()?.cpu_ns as f64).abs(), fair_ns)
        }
        OfPrograms::Equation3 => match x {
            X::Number(ratio) => Some(mqfq_cpu::lag::lag(run.cores as u16, *ratio)),
            X::Label(_) => None,
        },
        OfPrograms::ItemsPerS => Some(own()?.items_per_s),
        OfPrograms::Speedup => speedup(own()?, other?),
        OfPrograms::RelativeTime => {
            speedup(own()?, other?).filter(|speedup| *speedup > 0.0).map(|speedup| 1.0 / speedup)
        }
        OfPrograms::WeightedSpeedup => {
            let speedups: Option<Vec<f64>> = run.programs.iter().map(|program| speedup(program, other?)).collect();
            let speedups = speedups?;
            let logs: f64 = speedups.iter().map(|speedup| libm::log(*speedup)).sum();
            Some(libm::exp(logs / speedups.len() as f64))
        }
        OfPrograms::MigrationsPerS => Some(per_s(chosen().map(|program| program.migrations).sum())),
        OfPrograms::BlocksPerS => Some(per_s(chosen().map(|program| program.blocks).sum())),
        OfPrograms::Utilisation => Some(1.0 - run.idle_ns as f64 / (run.measured_ns as f64 * f64::from(run.cores))),
    }
}

/// Its part of the weights.
fn part(run: &Outcome, program: &ProgramOutcome) -> f64 {
    let all: f64 = run.programs.iter().map(|program| f64::from(program.weight)).sum();
    f64::from(program.weight) / all
}

fn fair_cores(run: &Outcome, program: &ProgramOutcome) -> f64 {
    f64::from(run.cores) * part(run, program)
}

fn speedup(own: &ProgramOutcome, baseline: &Outcome) -> Option<f64> {
    let before = baseline.programs.iter().find(|program| program.name == own.name)?;
    // Not items: of a program whose items are long a run has few.
    quotient(own.useful_ns as f64, before.useful_ns as f64)
}

fn quotient(numerator: f64, denominator: f64) -> Option<f64> {
    (denominator > 0.0).then(|| numerator / denominator)
}
