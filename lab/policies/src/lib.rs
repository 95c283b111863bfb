//! The policies that do not ship: what the papers compare with, and what the kernel has.
//!
//! They enter by the seam of [`mqfq_sched::policy`]: each is a type with [`Policy`](mqfq_sched::policy::Policy) and
//! [`Registered`](mqfq_sched::policy::Registered), and [`REGISTRY`] has them beside those that ship.

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

pub use bfq::{Bfq, BfqOptions};
pub use central::CentralQueue;
pub use d2fq::{D2fq, D2fqOptions, D2fqQueue, GlobalVtime, Gvt, Thresholds};
pub use kyber::{Kyber, KyberDomain, KyberOptions, KyberQueue};
pub use mq_deadline::{MqDeadline, MqDeadlineOptions};
pub use mqfq_serial::MqfqSerial;
pub use sfqd::Sfqd;

use mqfq_sched::policy::{OtherPolicy, PolicyKind, Registry};

/// Each policy as a kind.
macro_rules! kinds {
    ($($name:ident = $policy:ident,)*) => {
        $(
            #[doc = concat!("See [`", stringify!($policy), "`].")]
            pub const $name: PolicyKind = {
                static OTHER: OtherPolicy = OtherPolicy::of::<$policy>();
                PolicyKind::Other(&OTHER)
            };
        )*
    };
}

kinds! {
    MQ_DEADLINE = MqDeadline,
    KYBER = Kyber,
    BFQ = Bfq,
    SFQD = Sfqd,
    MQFQ_SERIAL = MqfqSerial,
    D2FQ = D2fq,
}

/// Policies that stage requests, and so need of a device no more than a queue.
pub const STAGED: [PolicyKind; 7] = [PolicyKind::None, MQ_DEADLINE, KYBER, BFQ, SFQD, MQFQ_SERIAL, PolicyKind::Mqfq];

/// All policies, the shipped ones included, in the order in which tables show them.
pub const ALL: [PolicyKind; 8] = [PolicyKind::None, MQ_DEADLINE, KYBER, BFQ, SFQD, MQFQ_SERIAL, PolicyKind::Mqfq, D2FQ];

/// Policies that the laboratory's programs can run.
pub const REGISTRY: Registry = Registry::new(&ALL);
