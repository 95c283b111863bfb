//! Are the decisions of a real kernel the reference's, and which event shows it?
//!
//! `two-cpus-pick.trace` is 4.6 ms of Linux 7.2.12 under `scx_pmqfq` (a barrier of 300 us beside hogs, the guest's case
//! `scx --only trace`). At its 4.18th ms CPU 0 picks the last waiting thread of one program, CPU 2 finds that program's
//! queue empty and begins a thread of the other one, which is further ahead, and only then CPU 0 begins.

use scx_pmqfq::check::check;
use scx_pmqfq::trace::{self, Kind};

const TRACE: &[u8] = include_bytes!("two-cpus-pick.trace");

#[test]
fn a_recorded_run_has_no_decision_that_the_reference_would_not_take() {
    let (head, events) = trace::read(TRACE).unwrap();
    let found = check(&head, &events);
    assert_eq!((found.events, found.decisions, found.not_allowed), (137, 14, 0));
    assert_eq!(found.verdict(), Ok(()));
}

#[test]
fn without_the_moments_of_picking_the_same_run_looks_wrong() {
    let (head, mut events) = trace::read(TRACE).unwrap();
    events.retain(|event| event.kind != Kind::Pick);
    let found = check(&head, &events);
    assert_eq!(found.verdict(), Err("1 of 15 decisions are none of the reference's".into()));
}
