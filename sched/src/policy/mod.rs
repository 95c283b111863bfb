//! Scheduling policies: one trait, one folder per policy, one enum to choose at run time.
//!
//! A worker owns one [`Policy::Queue`] per device (its part of the policy's state, so it needs no lock) and calls, on
//! its own thread: [`Policy::submit`] for each admitted request, [`Policy::pick`] until it no longer dispatches,
//! [`Policy::complete`] for each request that the device finished. State that workers share is inside the policy.
//!
//! # Policies that stage nothing
//! One that leaves arbitration to the device ([`Policy::as_direct`]) is never asked to submit or pick. For each request
//! the worker asks [`DirectPolicy::class_of`], hands the request to that queue of the device, says so by
//! [`DirectPolicy::dispatched`] ([`DirectPolicy::direct`] is both), and later calls [`DirectPolicy::ended`]; after
//! completions it asks [`DirectPolicy::adjust`].
//!
//! # What a worker owes the others
//! Work conservation (I4) is the policies' promise, and it rests on this: after a `submit`, a `complete` or a kick, and
//! before it sleeps, a worker picks until the answer is not [`Pick::Dispatch`]. A worker that cannot (its device queue
//! is full) says so by [`Policy::pause`], and picks again when it can. Batches are fine: any number of `submit` and
//! `complete`, then the picks.

mod any;
mod contract;
mod descriptor;
mod direct;
mod kind;
pub mod mqfq;
pub mod none;
mod options;
mod other;
mod registry;
pub mod tunables;

pub use crate::shared::token_tree::DispatchToken;
pub use any::{AnyDirect, AnyPolicy, AnyQueue};
pub use contract::{Done, Entry, Grant, Handle, Kick, Pick, Policy};
pub use descriptor::Descriptor;
pub use direct::{ClassWeights, DirectPolicy, NotDirect, QueueClass};
pub use kind::{PolicyKind, UnknownPolicy};
pub use mqfq::{Mqfq, MqfqQueue, structures};
pub use none::{Fifo, FifoQueue};
pub use options::{PolicyError, PolicyOptions, WindowTerms, validate_own};
pub use other::{DynPolicy, DynQueue, OtherPolicy};
pub use registry::{Registered, Registry};
pub use tunables::{KeyText, NoOptions, OwnOptions, Tunable, Tunables};
