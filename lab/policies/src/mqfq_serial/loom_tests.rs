//! Model check of the lock with what wakes a worker: the structures below have theirs.
//!
//! Run: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p mqfq-policies --release --lib loom`.

use super::*;
use crate::MQFQ_SERIAL;
use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
use mqfq_sched::sync::model::Builder;

/// Race: A gives the only token back and kicks B, which has just found none and falls asleep.
/// Shown to fail if the kick is sent but not rung (`WakeWord::kick` answers false), and if `pass_on` does not kick.
#[test]
fn loom_token_under_one_lock_meets_the_worker_that_falls_asleep() {
    for relaxed in [false, true] {
        Builder::new().check(move || {
            let options = options(MQFQ_SERIAL);
            let options = if relaxed { options.relaxed(2) } else { options };
            one_token_passes_to_a_worker_that_falls_asleep(MqfqSerial::new(
                &options,
                &Topology::flat(2),
                &[Weight::DEFAULT; 2],
            ));
        });
    }
}
