//! Threads: a thread per request waits for a permit, as in a server that has a thread per connection.
//!
//! `cargo run --release -p mqfq-sched --example threads`

use mqfq_sched::door::Scheduler;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().permits(2).build()?;
    let tenants = [scheduler.add_tenant(1)?, scheduler.add_tenant(3)?];
    let (served, all) = ([AtomicUsize::new(0), AtomicUsize::new(0)], AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for n in 0..32 {
            let (tenant, served, all) = (&tenants[n % 2], &served[n % 2], &all);
            scope.spawn(move || {
                while all.fetch_add(1, Relaxed) < 4000 {
                    let Ok(permit) = tenant.acquire_blocking(1000) else { return };
                    // The work: here other threads get to the queue meanwhile.
                    std::thread::yield_now();
                    served.fetch_add(1, Relaxed);
                    permit.finish(1000);
                }
            });
        }
    });
    let [one, three] = served.map(AtomicUsize::into_inner);
    println!("{one} requests to {three}, a ratio of {:.2}", three as f64 / one as f64);
    Ok(())
}
