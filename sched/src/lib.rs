//! Multi-queue fair queueing: the scheduling core.
//!
//! No dependency, no clock, no thread, no I/O, and no allocation after construction. The caller passes `now_ns` in and
//! gets back what to do.
//!
//! | room | has | uses |
//! |---|---|---|
//! | `base` | virtual time, costs, topology, atomics, wake-ups | |
//! | `flow` | flows, weights, groups, charges | `base` |
//! | `shared` | what queues share: mindicator, token tree, throttle wheel, ready set | `base` |
//! | `queue` | a worker's queue of staged requests | `base`, `flow` |
//! | `policy` | the interface of a policy; `mqfq` and `none` | all above |
//! | `tune` | D, T and the cost of a write, found while the device runs; latency goals | `base`, `policy` |
//! | `door` | the scheduler for any program: start here | `base`, `flow`, `policy` |
//!
//! The room `door` is for any program. The others are its parts, public under the feature `internals` for schedulers of
//! one's own, and change without a new major version. The trait of a policy is one of them.
//!
//! Source: Hedayati, Shen, Scott, Marty, "Multi-Queue Fair Queueing", USENIX ATC 2019 (cited as "MQFQ section n").

#![cfg_attr(not(any(test, mqfq_loom, watched)), no_std)]
#![cfg_attr(not(watched), warn(clippy::missing_panics_doc, clippy::missing_errors_doc))]
#![cfg_attr(
    not(feature = "internals"),
    allow(dead_code, unused_imports, reason = "the door needs a part of the parts")
)]

extern crate alloc;
#[cfg(all(feature = "std", not(any(test, mqfq_loom, watched))))]
extern crate std;

mod base {
    //! Words that every room uses: virtual time, costs, queues and their topology, atomics, wake-ups.

    pub mod class;
    pub mod cost;
    #[cfg(all(test, not(mqfq_loom)))]
    #[allow(dead_code, reason = "the tests of other crates use the rest")]
    pub mod random;
    pub mod sync;
    pub mod topology;
    pub mod vtime;
    pub mod wake;
}
#[cfg(not(watched))]
pub mod door;
#[cfg(not(feature = "internals"))]
mod flow;
#[cfg(feature = "internals")]
pub mod flow;
#[cfg(not(feature = "internals"))]
mod policy;
#[cfg(feature = "internals")]
pub mod policy;
mod queue {
    //! One worker's queue of staged requests, ordered by start tag.

    mod lane_order;
    pub mod stage_queue;
}
mod shared {
    //! State that the queues of a device share without a lock: virtual time, dispatch tokens, and which queue waits.

    pub mod mindicator;
    pub mod ready_set;
    pub mod throttle_wheel;
    pub mod token_tree;
}
mod tune {
    //! Parameters that follow the device while it runs: D and goals that lower it, the window T, the cost of a write.

    pub mod depth;
    pub mod goal;
    pub mod window_rule;
    pub mod write_cost;
}

#[cfg(not(feature = "internals"))]
use base::{class, cost, sync, topology, vtime, wake};
#[cfg(feature = "internals")]
pub use base::{class, cost, sync, topology, vtime, wake};
#[cfg(feature = "internals")]
pub use queue::stage_queue;
#[cfg(not(feature = "internals"))]
use queue::stage_queue;
#[cfg(not(feature = "internals"))]
use shared::{mindicator, ready_set, throttle_wheel, token_tree};
#[cfg(feature = "internals")]
pub use shared::{mindicator, ready_set, throttle_wheel, token_tree};
#[cfg(not(feature = "internals"))]
use tune::{depth, goal, window_rule, write_cost};
#[cfg(feature = "internals")]
pub use tune::{depth, goal, window_rule, write_cost};

#[cfg(all(watched, not(mqfq_loom)))]
pub use sync::watched;

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Misuses 1 to 5 of `tests/misuse.rs`. The sixth, without the feature `internals`: a policy's trait has no name.
///
/// ```compile_fail,E0382
/// # let scheduler = mqfq_sched::door::Scheduler::builder().build().unwrap();
/// # let tenant = scheduler.add_tenant(1).unwrap();
/// let permit = tenant.acquire_blocking(1).unwrap();
/// permit.finish(1);
/// permit.finish(1);
/// ```
///
/// ```compile_fail,E0599
/// # let scheduler = mqfq_sched::door::Scheduler::builder().build().unwrap();
/// # let tenant = scheduler.add_tenant(1).unwrap();
/// let permit = tenant.acquire_blocking(1).unwrap();
/// let copy = permit.clone();
/// ```
///
/// ```compile_fail,E0451
/// let permit = mqfq_sched::door::Permit {};
/// ```
///
/// ```compile_fail,E0499
/// # let scheduler = mqfq_sched::door::Scheduler::builder().build().unwrap();
/// # let tenant = scheduler.add_tenant(1).unwrap();
/// let mut worker = scheduler.worker::<u32>(0).unwrap();
/// std::thread::scope(|threads| {
///     threads.spawn(|| worker.next(0));
///     threads.spawn(|| worker.next(0));
/// });
/// ```
///
/// ```compile_fail,E0499
/// # let scheduler = mqfq_sched::door::Scheduler::builder().build().unwrap();
/// # let tenant = scheduler.add_tenant(1).unwrap();
/// let mut worker = scheduler.worker::<u32>(0).unwrap();
/// let turn = worker.turn(0);
/// worker.next(0);
/// drop(turn);
/// ```
#[cfg(doctest)]
struct DoesNotCompile;
