//! Requests of tenants, and their times. Pure: time comes in, requests go out.
//!
//! A [`Source`] is one thread of a tenant. Its owner (a client on a worker, real or virtual) calls [`Source::next`] at
//! the start, after each completion and at the time that it asked for, until it says to wait.
//!
//! ```text
//!   arrival   closed · chain · open · phases · a trace   when requests come (one file each)
//!   shape     sizes · mix · random, sequential, zipfian  what they are
//!   models    names for both, with where the numbers are from
//! ```

mod background;
mod closed;
pub mod models;
mod open;
pub mod random;
mod shape;
#[cfg(test)]
mod tests;
pub mod trace;

pub use trace::{Trace, TraceRequest};

use crate::scenario::{Arrival, Tenant};
use mqfq_blk_watched::request::Op;
use random::{Random, fnv};
use shape::{Shape, Shapes};
use std::rc::Rc;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Read, write or flush.
    pub op: Op,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub length_bytes: u32,
    /// When it came (of an open loop: should have come; of a chain: when the chain began): latencies begin here.
    pub arrived_ns: u64,
}

/// Operation of a request that moves bytes.
fn moves(is_write: bool) -> Op {
    if is_write { Op::Write } else { Op::Read }
}

/// Next action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Submit this, then call [`Source::next`] again.
    Ask(Ask),
    /// Call again at this time, or after a completion if that is earlier.
    WaitUntil(u64),
    /// Call again after a completion.
    WaitForCompletion,
    /// Nothing more will come.
    Done,
}

/// One thread of a tenant.
pub trait Source {
    /// Next action at `now_ns`, which never goes back.
    fn next(&mut self, now_ns: u64) -> Step;

    /// A request of this thread completed. Returns whether it counts as one of the tenant: of a chain only the last
    /// step does.
    fn completed(&mut self, now_ns: u64) -> bool;
}

/// The clients of tenant number `number` of as many as `tenant.count` says: one for each thread, then the background's.
/// Equal arguments give equal requests. No source allocates once it is made.
///
/// # Errors
/// A request that does not fit the device or a thread's part of it.
pub fn sources(
    tenant: &Tenant,
    number: u32,
    device_size_bytes: u64,
    seed: u64,
) -> Result<Vec<Box<dyn Source>>, String> {
    make(tenant, number, device_size_bytes, seed).map_err(|why| format!("tenant {}: {why}", tenant.name))
}

/// One thread whose requests are made up.
fn threads_source(arrival: &Arrival, shape: Shape, start_ns: u64, barrier: &Rc<closed::Barrier>) -> Box<dyn Source> {
    match *arrival {
        Arrival::Closed { depth, think_ns, bursts } => {
            Box::new(closed::Closed::new(shape, depth, think_ns, start_ns, bursts))
        }
        Arrival::Chain { ref steps, think_ns } => Box::new(closed::Chain::new(shape, steps.clone(), think_ns)),
        Arrival::Open { rate_per_s, poisson, bursts } => {
            Box::new(open::Open::new(shape, start_ns, rate_per_s, poisson, bursts))
        }
        Arrival::Phases { depth, requests, compute_ns } => {
            Box::new(closed::Phases::new(shape, depth, requests, compute_ns, barrier.clone()))
        }
        Arrival::Trace { .. } => unreachable!("a trace has its own requests"),
    }
}

fn make(tenant: &Tenant, number: u32, device_size_bytes: u64, seed: u64) -> Result<Vec<Box<dyn Source>>, String> {
    let name_hash = fnv(tenant.name.as_bytes());
    let random = |thread| Random::of(seed, name_hash, number, thread);
    let (load, threads, start_ns) = (&tenant.load, tenant.threads, tenant.start_ns);
    let mut sources: Vec<Box<dyn Source>> = Vec::with_capacity(tenant.clients() as usize);
    if let Arrival::Trace { trace, stretch, depth } = &load.arrival {
        for thread in 0..threads {
            sources.push(Box::new(open::Replay::new(trace.clone(), *stretch, *depth, start_ns, thread, threads)));
        }
        return Ok(sources);
    }
    let tenant_key = random(u32::MAX).below(u64::MAX);
    let shapes = Shapes::new(load, tenant_key, device_size_bytes)?;
    let barrier = closed::Barrier::new(threads);
    for thread in 0..threads {
        let shape = shapes.thread(random(thread), thread, threads)?;
        sources.push(threads_source(&load.arrival, shape, start_ns, &barrier));
    }
    if let Some(options) = tenant.background {
        let debt = background::Debt::default();
        let owe = |source| -> Box<dyn Source> {
            Box::new(background::Owing { source, debt: debt.clone(), per_request_bytes: options.per_request_bytes })
        };
        sources = sources.into_iter().map(owe).collect();
        sources.push(Box::new(background::Background::new(options, debt, device_size_bytes, random(threads))?));
    }
    Ok(sources)
}
