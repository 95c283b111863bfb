//! Which steps of a script that fails are enough to fail?
//!
//! Steps are left out in runs, the longest first, as long as what is left fails with the same words; then numbers of
//! what remains are made smaller. Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
//! TSE 2002 (ddmin without its complements).

use crate::run::{Failure, run};
use crate::script::Script;

/// Two failures are the same if they say the same up to their first number.
fn kind(failure: &Failure) -> &str {
    failure.what.split(|c: char| c.is_ascii_digit()).next().unwrap_or("")
}

/// A script that fails as `script` does, in which no single step can be left out, found in at most `runs_max` runs.
pub fn shrink(script: &Script, failure: &Failure, runs_max: usize) -> (Script, usize) {
    let mut best =
        Script { steps: script.steps[..=failure.step.min(script.steps.len() - 1)].to_vec(), ..script.clone() };
    let mut runs = 0;
    let fails = |candidate: &Script, runs: &mut usize| {
        *runs += 1;
        *runs <= runs_max && run(candidate).is_err_and(|other| kind(&other) == kind(failure))
    };
    if !fails(&best, &mut runs) {
        return (script.clone(), runs);
    }
    let mut length = best.steps.len().next_power_of_two() / 2;
    while length > 0 && runs < runs_max {
        let mut from = 0;
        while from < best.steps.len() && runs < runs_max {
            let to = (from + length).min(best.steps.len());
            let mut shorter = best.clone();
            shorter.steps.drain(from..to);
            if fails(&shorter, &mut runs) { best = shorter } else { from = to }
        }
        length /= 2;
    }
    for at in 0..best.steps.len() {
        while matches!(best.steps[at].name, "io" | "drive") && best.steps[at].numbers[1] > 1 && runs < runs_max {
            let mut smaller = best.clone();
            smaller.steps[at].numbers[1] /= 2;
            if !fails(&smaller, &mut runs) {
                break;
            }
            best = smaller;
        }
    }
    (best, runs)
}
