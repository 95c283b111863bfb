//! The policies that do not ship: what the papers compare with, and what the kernel has.
//!
//! They enter by the seam of [`mqfq_sched::policy`]: each is a type with [`Policy`](mqfq_sched::policy::Policy) and
//! [`Registered`](mqfq_sched::policy::Registered), and [`REGISTRY`] has them beside those that ship.

/// The policy of a folder as a kind, `KIND`.
macro_rules! kind {
    ($policy:ident) => {
        #[doc = concat!("See [`", stringify!($policy), "`].")]
        pub const KIND: mqfq_sched::policy::PolicyKind = {
            static OTHER: mqfq_sched::policy::OtherPolicy = mqfq_sched::policy::OtherPolicy::of::<$policy>();
            mqfq_sched::policy::PolicyKind::Other(&OTHER)
        };
    };
}

pub mod bfq;
mod central;
pub mod d2fq;
pub mod kyber;
pub mod mq_deadline;
pub mod mqfq_serial;
pub mod offset_order;
#[cfg(all(test, not(loom)))]
mod registry_tests;
pub mod sfqd;
#[cfg(all(test, loom))]
mod sleeper_model;

pub use bfq::{Bfq, BfqOptions, KIND as BFQ};
pub use central::CentralQueue;
pub use d2fq::{D2fq, D2fqOptions, D2fqQueue, GlobalVtime, Gvt, KIND as D2FQ, Thresholds};
pub use kyber::{KIND as KYBER, Kyber, KyberDomain, KyberOptions, KyberQueue};
pub use mq_deadline::{KIND as MQ_DEADLINE, MqDeadline, MqDeadlineOptions};
pub use mqfq_serial::{KIND as MQFQ_SERIAL, MqfqSerial};
pub use sfqd::{KIND as SFQD, Sfqd};

use mqfq_sched::policy::{PolicyKind, Registry};

/// Policies that stage requests, and so need of a device no more than a queue.
pub const STAGED: [PolicyKind; 7] = [PolicyKind::None, MQ_DEADLINE, KYBER, BFQ, SFQD, MQFQ_SERIAL, PolicyKind::Mqfq];

/// All policies, the shipped ones included, in the order in which tables show them.
pub const ALL: [PolicyKind; 8] = [PolicyKind::None, MQ_DEADLINE, KYBER, BFQ, SFQD, MQFQ_SERIAL, PolicyKind::Mqfq, D2FQ];

/// Policies that the laboratory's programs can run.
pub const REGISTRY: Registry = Registry::new(&ALL);
