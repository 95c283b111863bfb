//! Model check of the grant to another worker, with what wakes that worker.
//!
//! Run: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p mqfq-policies --release --lib loom`.

use super::*;
use crate::MQ_DEADLINE;
use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
use mqfq_sched::sync::model::Builder;

/// Race: A completes, picks, and grants B's request, while B, which has just found no token, falls asleep (C2).
/// Shown to fail if `Central::pick` does not kick the owner of a grant.
#[test]
fn loom_grant_by_deadline_to_another_worker_meets_it_falling_asleep() {
    Builder::new().check(|| {
        let options = options(MQ_DEADLINE);
        one_token_passes_to_a_worker_that_falls_asleep(MqDeadline::new(&options, 2, 2));
    });
}
