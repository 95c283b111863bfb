//! NAS parallel benchmarks, OpenMP, class C, blocking (P-MQFQ section 4.1): nine programs.
//!
//! # Where the numbers are from
//! All are loops that end with a barrier of all threads, and P-MQFQ says that they "have much longer non-critical
//! sections and less frequent synchronization" than PARSEC's (section 4.2), but for EP, which "is embarrassingly
//! parallel and uses no synchronization". The number of iterations is that of the suite's class C (BT 200, CG 75 with
//! 25 steps of conjugate gradients each, FT 20, IS 10, LU 250, MG 20, SP 400, UA 200); how many parallel loops an
//! iteration has, and how long one takes, is ASSUMED: work of all threads between two barriers, at ten seconds and more
//! of 48 cores a program.
//!
//! | program | work of all threads between two barriers | what else |
//! |---|---|---|
//! | BT | 200 ms | |
//! | CG | 30 ms | a sum of all threads after each, behind a mutex |
//! | EP | none: no barrier | |
//! | FT | 400 ms | |
//! | IS | 60 ms | |
//! | LU | 100 ms | |
//! | MG | 10 to 160 ms: coarse and fine grids in turn | |
//! | SP | 80 ms | |
//! | UA | 40 ms | 64 mutexes of shared points |

use super::super::body::{Body, Step, Time};
use super::Parameters;

const MS: u64 = 1_000_000;

fn phase(all_ns: u64, given: Parameters) -> Step {
    Step::Compute(Time::around(given.compute_ns.unwrap_or((all_ns / u64::from(given.threads)).max(1_000)), 10))
}

fn loops(given: Parameters, mut steps: Vec<Step>) -> Body {
    steps.extend([Step::Barrier(0), Step::Done]);
    Body { barriers: vec![given.threads], ..Body::of(given.threads, steps) }
}

pub fn bt(given: Parameters) -> Body {
    loops(given, vec![phase(200 * MS, given)])
}

pub fn cg(given: Parameters) -> Body {
    let sum = Step::Compute(Time::Fixed(given.critical_ns.unwrap_or(300)));
    let steps = vec![phase(30 * MS, given), Step::Lock { first: 0, count: 1 }, sum, Step::Unlock];
    Body { mutexes: 1, ..loops(given, steps) }
}

pub fn ft(given: Parameters) -> Body {
    loops(given, vec![phase(400 * MS, given)])
}

pub fn is(given: Parameters) -> Body {
    loops(given, vec![phase(60 * MS, given)])
}

pub fn lu(given: Parameters) -> Body {
    loops(given, vec![phase(100 * MS, given)])
}

/// Down to the coarse grid and back.
pub fn mg(given: Parameters) -> Body {
    let grids = [160, 40, 10, 40].map(|ms| [phase(ms * MS, given), Step::Barrier(0)]);
    let mut steps: Vec<Step> = grids.into_iter().flatten().collect();
    steps.pop();
    loops(given, steps)
}

pub fn sp(given: Parameters) -> Body {
    loops(given, vec![phase(80 * MS, given)])
}

pub fn ua(given: Parameters) -> Body {
    let point = Step::Compute(Time::Fixed(given.critical_ns.unwrap_or(1_000)));
    let steps = vec![phase(40 * MS, given), Step::Lock { first: 0, count: 64 }, point, Step::Unlock];
    Body { mutexes: 64, ..loops(given, steps) }
}
