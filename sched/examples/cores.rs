//! A loop per core: two workers share four permits between two tenants, 1:3, and take turns.
//!
//! `cargo run --release -p mqfq-sched --example cores`

use mqfq_sched::door::{Next, Scheduler, Tenant, Worker};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

const JOBS: usize = 100_000;

/// Pushes jobs for both tenants, and runs what may start, until all are done.
fn run(mut worker: Worker<usize>, tenants: &[Tenant], done: &[AtomicUsize], clock: Instant) {
    let mut permits = Vec::new();
    while done.iter().map(|done| done.load(Relaxed)).sum::<usize>() < JOBS {
        let mut turn = worker.turn(clock.elapsed().as_nanos() as u64);
        // One lock for the whole turn: what has ended, what has come, what may start.
        for (permit, cost) in permits.drain(..) {
            turn.finish(permit, cost);
        }
        for (name, tenant) in tenants.iter().enumerate() {
            while turn.try_push(tenant, 100, name).is_ok() {}
        }
        while let Next::Job(permit, name) = turn.next() {
            done[name].fetch_add(1, Relaxed);
            permits.push((permit, 100));
        }
        drop(turn);
        if permits.is_empty() {
            // The other worker may be away: its jobs must not hold ours up.
            worker.pass();
            std::thread::yield_now();
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().places(2).permits(4).tenant_jobs(16).build()?;
    let tenants = [scheduler.add_tenant(1)?, scheduler.add_tenant(3)?];
    let (done, clock) = ([AtomicUsize::new(0), AtomicUsize::new(0)], Instant::now());
    let workers = [scheduler.worker(0)?, scheduler.worker(1)?];
    std::thread::scope(|scope| {
        for worker in workers {
            let (tenants, done) = (&tenants, &done);
            scope.spawn(move || run(worker, tenants, done, clock));
        }
    });
    let [one, three] = done.map(AtomicUsize::into_inner);
    println!("{one} jobs to {three}, a ratio of {:.3}", three as f64 / one as f64);
    Ok(())
}
