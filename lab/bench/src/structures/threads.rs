//! Workers as threads, each pinned to a CPU of its own, for a given time.

use mqfq_blk::worker::cores::{self, Cpu};
use mqfq_sim::rivals::word::Padded;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Told to all workers when the time is over.
#[derive(Default)]
pub struct Stop(Padded<AtomicBool>);

impl Stop {
    /// True when the time is over.
    pub fn is_due(&self) -> bool {
        // Relaxed: says nothing but itself; the threads are joined before anything is read.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        // Relaxed: as above.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work(worker, stop)` on one thread per CPU of `cpus`, all starting together, for `milliseconds`; then `wake` is
/// called once, for those that sleep. Returns what each worker returned, and the time from start to stop in ns.
///
/// # Errors
/// One sentence, if a thread cannot be pinned.
pub fn run<R: Send>(
    cpus: &[Cpu],
    milliseconds: u64,
    work: impl Fn(usize, &Stop) -> R + Sync,
    wake: impl FnOnce(),
) -> Result<(Vec<R>, u64), String> {
    let stop = Stop::default();
    let start = Barrier::new(cpus.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(worker, &cpu)| {
                let (work, stop, start) = (&work, &stop, &start);
                scope.spawn(move || {
                    let pinned = cores::pin(cpu);
                    start.wait();
                    pinned.map(|()| work(worker, stop)).map_err(|error| (cpu.number, error))
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let elapsed_ns = began.elapsed().as_nanos() as u64;
        stop.set();
        wake();
        let mut results = Vec::new();
        for thread in threads {
            let result = thread.join().expect("a worker does not panic");
            results.push(result.map_err(|(cpu, error)| format!("cannot pin a thread to CPU {cpu}: {error}"))?);
        }
        Ok((results, elapsed_ns))
    })
}
