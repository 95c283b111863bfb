//! Numbers that a figure shows of programs that compete for cores: their parts of the cores, and the effects.
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
use super::metric::{Kind, OfPrograms, Reference, Whose, of_programs, quotient};
use crate::cpu::Outcome;
use crate::cpu::outcome::ProgramOutcome;
use Reference::{Alone, Baseline, None as Nothing};
use Whose::{All, Either, Tenant};

/// Kinds of programs.
pub static KINDS: &[Kind] = &[
    // Part of the machine's time.
    of_programs("cpu-share", Tenant, Nothing, |on| Some(on.own?.share)),
    // Cores used on average; over those that are fair, and that are due.
    of_programs("cores-used", Either, Nothing, |on| Some(sum(on, |program| program.cores_used))),
    of_programs("of-fair", Tenant, Nothing, |on| Some(on.own?.cores_used / fair_cores(on.run, on.own?))),
    of_programs("of-due", Tenant, Alone, |on| {
        let alone = same(on.other?, on.own?)?.cores_used;
        quotient(on.own?.cores_used, fair_cores(on.run, on.own?).min(alone))
    }),
    // How far it is from its part of what all got, of that part; and P-MQFQ's equation 3 for that, where x is
    // l_nc / l_max.
    of_programs("lag", Tenant, Nothing, |on| {
        let all_ns: u64 = on.run.programs.iter().map(|program| program.cpu_ns).sum();
        let fair_ns = all_ns as f64 * part(on.run, on.own?);
        quotient((fair_ns - on.own?.cpu_ns as f64).abs(), fair_ns)
    }),
    of_programs("equation-3", Tenant, Nothing, |on| match on.x {
        X::Number(ratio) => Some(mqfq_cpu::lag::lag(on.run.cores as u16, *ratio)),
        X::Label(_) => None,
    }),
    // Pieces of work.
    of_programs("items-per-s", Tenant, Nothing, |on| Some(on.own?.items_per_s)),
    // Computing per second over that of the baseline, spinning and switching not counted; the time that it takes; and
    // the geometric mean of all programs' speedups.
    of_programs("speedup", Tenant, Baseline, |on| speedup(on.own?, on.other?)),
    of_programs("relative-time", Tenant, Baseline, |on| quotient(1.0, speedup(on.own?, on.other?)?)),
    of_programs("weighted-speedup", All, Baseline, |on| {
        let speedups: Option<Vec<f64>> = on.run.programs.iter().map(|program| speedup(program, on.other?)).collect();
        let speedups = speedups?;
        let logs: f64 = speedups.iter().map(|speedup| libm::log(*speedup)).sum();
        Some(libm::exp(logs / speedups.len() as f64))
    }),
    // Threads put on another core than before, and threads that blocked.
    of_programs("migrations-per-s", Either, Nothing, |on| Some(sum(on, |program| program.migrations as f64) / s(on))),
    of_programs("blocks-per-s", Either, Nothing, |on| Some(sum(on, |program| program.blocks as f64) / s(on))),
    // Part of the cores' time on which something ran.
    of_programs("utilisation", All, Nothing, |on| {
        Some(1.0 - on.run.idle_ns as f64 / (on.run.measured_ns as f64 * f64::from(on.run.cores)))
    }),
];

/// Sum over the program that is named, or over all.
fn sum(on: &OfPrograms<'_>, of: fn(&ProgramOutcome) -> f64) -> f64 {
    on.own.map_or_else(|| on.run.programs.iter().map(of).sum(), of)
}

/// Measured time, s.
fn s(on: &OfPrograms<'_>) -> f64 {
    on.run.measured_ns as f64 * 1e-9
}

/// The program in another run.
fn same<'a>(run: &'a Outcome, program: &ProgramOutcome) -> Option<&'a ProgramOutcome> {
    run.programs.iter().find(|other| other.name == program.name)
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
    let before = same(baseline, own)?;
    // Not items: of a program whose items are long a run has few.
    quotient(own.useful_ns as f64, before.useful_ns as f64)
}
