//! Histories of real threads: several workers inside the policy at once.
//!
//! # What it answers
//! Do the bounds hold where operations overlap? Each worker submits to its own queue, picks until it may not, and
//! finishes what it dispatched. It never sleeps, so no worker has to be kicked.
//!
//! # How the order is taken
//! One shared counter stamps the moments between operations: before and after each. The history is made of the stamps,
//! so that what it claims is certain. A request *waits* from the end of its submit to the beginning of the pick that
//! took it, a flow is backlogged while some request of it waits in this sense, a request counts as dispatched from the
//! end of that pick on, and as completed when its token is about to go back.
//!
//! # What overlapping adds to the bounds
//! Two requests of a flow for each hctx where it submits. Let [t1, t2] lie between stamps, f be backlogged throughout,
//! and gvt be v1 and v2 there. The proof in `sched/src/policy/mqfq/mod.rs` says which start tags f can and must have
//! dispatched in between; requests that it does not speak of are these.
//!
//! | at t1 or t2 | | per hctx |
//! |---|---|--:|
//! | a pick or a submit is under way | its request is popped and not counted, or has a tag and does not hold gvt back | 1 |
//! | a late, low lead waits | its submit was overtaken by gvt; it then holds gvt where it was published, so the next is not low | 1 |
//!
//! With k hctxs f can get up to 2 k of its requests more than the proof says, and m that many of its own fewer. While f
//! is backlogged its start tags leave no gap above v1: a request that waits holds gvt below its own finish tag, or, if
//! it is late and low, where gvt was when it was published. From dispatch to completion, as stamped, a request holds
//! its token, so what is on the device is bounded as before.

use super::history::{Event, History};
use mqfq_blk::random::Random;
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, AnyQueue, DispatchToken, Done, Entry, Handle, Pick, Policy, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Saturated flows on workers that are threads.
#[derive(Clone, Debug)]
pub struct ThreadsPlan {
    /// The scheduler.
    pub options: PolicyOptions,
    /// Threads, each with one hctx.
    pub workers: usize,
    /// Per flow: weight, size of its requests in bytes, and the hctxs where it submits.
    pub flows: Vec<(u64, u64, Vec<u16>)>,
    /// Dispatches of each worker.
    pub dispatches: u64,
}

/// Requests of a flow, for each hctx where it submits, that the bounds have to allow for operations that overlap.
pub const UNDER_WAY: u32 = 2;

/// Requests of a flow that wait at each of its hctxs.
const WAITING: u32 = 8;

/// When things happened to one request; the stamps are those of the shared counter.
pub(super) struct Stamps {
    pub(super) flow: u32,
    pub(super) bytes: u64,
    pub(super) submitted: u64,
    pub(super) pick_began: Option<u64>,
    pub(super) dispatched: Option<u64>,
    pub(super) completed: Option<u64>,
}

struct Shared {
    clock: Clock,
    start: Barrier,
    /// Workers that have nothing left to do.
    finished: AtomicUsize,
}

/// The order of everything. What is stamped later was later: the stamps of all threads have one total order, and no
/// operation of the policy moves across a stamp of its own thread.
struct Clock(AtomicU64);

impl Clock {
    fn stamp(&self) -> u64 {
        // SeqCst: stamps are to be in one order with the policy's own sequentially consistent steps.
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Runs the threads and puts their histories together.
///
/// # Errors
/// One sentence: options that no policy can be built from.
pub fn run(plan: &ThreadsPlan, seed: u64) -> Result<History, String> {
    let mut weights = Vec::new();
    for (weight, ..) in &plan.flows {
        weights.push(Weight::new(*weight).map_err(|error| error.to_string())?);
    }
    let policy =
        AnyPolicy::new(&plan.options, &Topology::flat(plan.workers), &weights).map_err(|error| error.to_string())?;
    let shared =
        Shared { clock: Clock(AtomicU64::new(0)), start: Barrier::new(plan.workers), finished: AtomicUsize::new(0) };
    let logs: Vec<Vec<Stamps>> = std::thread::scope(|scope| {
        let spawn = |worker: usize| {
            let (policy, shared) = (&policy, &shared);
            scope.spawn(move || {
                shared.start.wait();
                work(plan, policy, shared, worker as u16, seed)
            })
        };
        let threads: Vec<_> = (0..plan.workers).map(spawn).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<Stamps>>| match thread.join() {
            Ok(log) => log,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    let flows = plan.flows.iter().zip(&weights).map(|((.., hctxs), weight)| (weight.get(), hctxs.len() as u32));
    Ok(merge(History::new(flows), &logs))
}

/// One worker's life.
fn work(plan: &ThreadsPlan, policy: &AnyPolicy, shared: &Shared, hctx: u16, seed: u64) -> Vec<Stamps> {
    let clock = &shared.clock;
    let mut random = Random::new(seed ^ (u64::from(hctx) << 32));
    let own: Vec<usize> = (0..plan.flows.len()).filter(|&flow| plan.flows[flow].2.contains(&hctx)).collect();
    let mut queue = policy.open_queue(HctxId(hctx), own.len() * WAITING as usize);
    let mut waiting = vec![0; plan.flows.len()];
    let mut log: Vec<Stamps> = Vec::new();
    let mut device: Vec<(usize, DispatchToken)> = Vec::new();
    let mut dispatches = 0;
    // No worker sleeps, so a kick finds its worker awake.
    let kick = &mut |_: HctxId| {};
    while dispatches < plan.dispatches || !device.is_empty() {
        let ends = dispatches >= plan.dispatches;
        for &flow in &own {
            while waiting[flow] < WAITING && !ends {
                let bytes = plan.flows[flow].1;
                let handle = Handle(log.len() as u32);
                policy.submit(&mut queue, Entry::read(FlowId(flow as u32), Cost(bytes), handle), 0, kick);
                waiting[flow] += 1;
                let (flow, submitted) = (flow as u32, clock.stamp());
                log.push(Stamps { flow, bytes, submitted, pick_began: None, dispatched: None, completed: None });
            }
        }
        for _ in 0..1 + random.below(4) {
            let began = clock.stamp();
            let Pick::Dispatch(grant) = policy.pick(&mut queue, 0, kick) else { break };
            let request = grant.handle.0 as usize;
            log[request].pick_began = Some(began);
            log[request].dispatched = Some(clock.stamp());
            waiting[log[request].flow as usize] -= 1;
            device.push((request, grant.token));
            dispatches += 1;
        }
        let count = device.len() as u64;
        for _ in 0..random.below(count + 1).max(u64::from(count > 0 && ends)) {
            let (request, token) = device.swap_remove(random.below(device.len() as u64) as usize);
            log[request].completed = Some(clock.stamp());
            policy.complete(&mut queue, Done::read(FlowId(log[request].flow), Handle(0)), token, 0, kick);
        }
        if device.is_empty() {
            std::thread::yield_now();
        }
    }
    leave(policy, &mut queue, shared, plan.workers, &mut log);
    log
}

/// Dispatches the waiting requests, one by one. Then the worker picks on, as the others may kick it, until no worker
/// has any left.
fn leave(policy: &AnyPolicy, queue: &mut AnyQueue, shared: &Shared, workers: usize, log: &mut [Stamps]) {
    let kick = &mut |_: HctxId| {};
    let mut finished = false;
    // Relaxed: a count of finished threads; their stamps are read after they were joined.
    while shared.finished.load(Ordering::Relaxed) < workers {
        let began = shared.clock.stamp();
        match policy.pick(queue, 0, kick) {
            Pick::Dispatch(grant) => {
                let stamps = &mut log[grant.handle.0 as usize];
                stamps.pick_began = Some(began);
                stamps.dispatched = Some(shared.clock.stamp());
                stamps.completed = Some(shared.clock.stamp());
                policy.complete(queue, Done::read(grant.flow, grant.handle), grant.token, 0, kick);
            }
            Pick::Idle if !finished => {
                finished = true;
                // Relaxed: as above.
                shared.finished.fetch_add(1, Ordering::Relaxed);
            }
            Pick::Throttled | Pick::NoToken | Pick::Later(_) | Pick::Idle => std::thread::yield_now(),
        }
    }
}

/// The history that the stamps are evidence of.
pub(super) fn merge(mut history: History, logs: &[Vec<Stamps>]) -> History {
    enum Moment {
        Waits,
        Leaves,
        Dispatched,
        Completed,
    }
    let mut moments: Vec<(u64, Moment, u32, u64)> = Vec::new();
    for stamps in logs.iter().flatten() {
        let &Stamps { flow, bytes, submitted, pick_began, dispatched, completed } = stamps;
        moments.push((submitted, Moment::Waits, flow, bytes));
        moments.extend(pick_began.map(|at| (at, Moment::Leaves, flow, bytes)));
        moments.extend(dispatched.map(|at| (at, Moment::Dispatched, flow, bytes)));
        moments.extend(completed.map(|at| (at, Moment::Completed, flow, bytes)));
    }
    moments.sort_unstable_by_key(|(at, ..)| *at);
    let mut waiting = vec![0u64; history.flows.len()];
    for (_, moment, flow, bytes) in moments {
        let waiting = &mut waiting[flow as usize];
        match moment {
            Moment::Waits => {
                *waiting += 1;
                if *waiting == 1 {
                    history.push(Event::Backlogged { flow });
                }
            }
            Moment::Leaves => {
                *waiting -= 1;
                if *waiting == 0 {
                    history.push(Event::Drained { flow });
                }
            }
            Moment::Dispatched => history.push(Event::Dispatched { flow, bytes }),
            Moment::Completed => history.push(Event::Completed { flow, bytes }),
        }
    }
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_backlogged_only_while_a_request_certainly_waits() {
        // The pick of the first began at 3 and ended at 6; the second was submitted by 5. In between nothing certainly
        // waits. Dispatches count from the end of the pick.
        let stamps = |submitted, pick_began, dispatched| Stamps {
            flow: 0,
            bytes: 4096,
            submitted,
            pick_began: Some(pick_began),
            dispatched: Some(dispatched),
            completed: None,
        };
        let history = merge(History::new([(100, 2)]), &[vec![stamps(1, 3, 6)], vec![stamps(5, 7, 8)]]);
        assert_eq!(
            history.events,
            [
                Event::Backlogged { flow: 0 },
                Event::Drained { flow: 0 },
                Event::Backlogged { flow: 0 },
                Event::Dispatched { flow: 0, bytes: 4096 },
                Event::Drained { flow: 0 },
                Event::Dispatched { flow: 0, bytes: 4096 },
            ]
        );
        assert_eq!(history.flows[0].largest_bytes, 4096);
    }
}
