//! CPU time shared fairly between parallel programs: P-MQFQ, and the schedulers that it is compared with, as pure
//! policies.
//!
//! Source: "Preemptive Multi-Queue Fair Queuing" (P-MQFQ). The crate has no clock and no thread: the driver of a
//! policy, in this project the simulator, passes in the time and the threads' steps.

pub mod bound;
pub mod by_hand;
mod central;
pub mod cfs;
pub mod core_set;
pub mod decay;
pub mod fair_queue;
pub mod gleaner;
pub mod ideal;
pub mod kinds;
pub mod lag;
mod order;
pub mod patience;
pub mod pin;
pub mod places;
pub mod pmqfq;
pub mod relaxed_co;
pub mod run_queues;
pub mod scheduler;
pub mod vtime;
pub mod xen_credit;
