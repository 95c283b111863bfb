//! Cost of global virtual time: the mindicator and the scanned array under the same load.
//!
//! An *operation* is what a dispatch does to virtual time (MQFQ section 4.3.1): the lead of the dispatching queue goes
//! up by a request, it is published, and global virtual time is brought up to date.
//!
//! Each worker owns every n-th queue and dispatches from them in turn, requests of 1 to 8 KiB. A queue whose lead is
//! more than T ahead is passed over, as the scheduler does, so no worker runs away from another that is slower; passing
//! over is not an operation.
//!
//! In the relaxed form ([`PolicyOptions::relaxed`]) leads are shown rounded down to a quantum, and a dispatch after
//! which the queue shows the same as before publishes nothing and asks nothing. That is a way to use a structure and
//! not the structure's own, so the arrays get it too.

use super::lines::{Counted, Directory};
use super::threads::{self, Stop};
use mqfq_blk::random::Random;
use mqfq_blk::worker::cores::Cpu;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::topology::Topology;
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_sched_watched::watched;
use mqfq_sim::rivals::array_scan::ArrayScan;
use mqfq_sim::rivals::word::Word;

/// T: how far ahead of global virtual time a lead may be.
const WINDOW: VSpan = VSpan::from_bytes(64 * 1024);
/// Requests are one to this many times `REQUEST_BYTES`.
const REQUESTS_MAX: u64 = 8;
const REQUEST_BYTES: u64 = 1024;

/// Something that keeps the smallest lead of many queues.
pub trait VirtualTime: Sync {
    /// The lead of `queue` is `lead` now; only its owner says so.
    fn publish(&self, queue: usize, lead: VTime);
    /// Brings global virtual time up to the smallest lead.
    fn query(&self) -> VTime;
    /// Global virtual time as the last `query` left it.
    fn global_vtime(&self) -> VTime;
}

impl<W: Word, const SLOTS: usize> VirtualTime for ArrayScan<W, SLOTS> {
    fn publish(&self, queue: usize, lead: VTime) {
        self.publish(queue, watched_point(lead));
    }

    fn query(&self) -> VTime {
        VTime::from_raw(self.query().raw())
    }

    fn global_vtime(&self) -> VTime {
        VTime::from_raw(self.global_vtime().raw())
    }
}

/// Returns `point` as a type of the simulator's scheduler: the arrays are its rivals.
fn watched_point(point: VTime) -> mqfq_sched_watched::vtime::VTime {
    mqfq_sched_watched::vtime::VTime::from_raw(point.raw())
}

/// The mindicator that ships, and the same source with counting atomics.
macro_rules! mindicator {
    ($sched:ident) => {
        impl VirtualTime for $sched::mindicator::Mindicator {
            fn publish(&self, queue: usize, lead: VTime) {
                self.publish($sched::topology::HctxId(queue as u16), $sched::vtime::VTime::from_raw(lead.raw()));
            }

            fn query(&self) -> VTime {
                VTime::from_raw(self.query().raw())
            }

            fn global_vtime(&self) -> VTime {
                VTime::from_raw(self.global_vtime().raw())
            }
        }
    };
}

mindicator!(mqfq_sched);
mindicator!(mqfq_sched_watched);

/// How exactly a queue shows its lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As the paper does.
    Faithful,
    /// The relaxed form: rounded down to the quantum of [`PolicyOptions::relaxed`].
    Quantised,
}

impl Form {
    /// Both.
    pub const ALL: [Form; 2] = [Form::Faithful, Form::Quantised];

    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Faithful => "faithful",
            Form::Quantised => "relaxed",
        }
    }

    /// Clears what is below the quantum.
    fn mask(self) -> u64 {
        let options = PolicyOptions { window: WINDOW, ..PolicyOptions::new(PolicyKind::Mqfq) };
        match self {
            Form::Faithful => u64::MAX,
            // Quantum for two queues: T/4, whatever their number, so that numbers of queues can be compared.
            Form::Quantised => !(options.relaxed(2).quantum.0.max(1) - 1),
        }
    }
}

/// Compared structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Structure {
    /// [`mqfq_sched::mindicator`].
    Mindicator,
    /// [`ArrayScan`], each slot on lines of its own.
    ArrayScan,
    /// [`ArrayScan`], slots side by side.
    ArrayScanPacked,
}

impl Structure {
    /// All of them, ours first.
    pub const ALL: [Structure; 3] = [Structure::Mindicator, Structure::ArrayScan, Structure::ArrayScanPacked];

    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Structure::Mindicator => "mindicator",
            Structure::ArrayScan => "array-scan",
            Structure::ArrayScanPacked => "array-scan-packed",
        }
    }

    /// Operations of `cpus.len()` pinned workers in `milliseconds`, and the time they took in ns.
    ///
    /// # Errors
    /// One sentence, if a worker cannot be pinned.
    pub fn time(self, form: Form, cpus: &[Cpu], topology: &Topology, milliseconds: u64) -> Result<(u64, u64), String> {
        use std::sync::atomic::AtomicU64;
        let load = Load { queues: topology.hctx_count(), form };
        let queues = load.queues;
        match self {
            Structure::Mindicator => {
                time(&mqfq_sched::mindicator::Mindicator::new(topology, VTime::ZERO), load, cpus, milliseconds)
            }
            Structure::ArrayScan => {
                time(&ArrayScan::<AtomicU64, 1>::new(queues, watched_point(VTime::ZERO)), load, cpus, milliseconds)
            }
            Structure::ArrayScanPacked => {
                time(&ArrayScan::<AtomicU64, 16>::new(queues, watched_point(VTime::ZERO)), load, cpus, milliseconds)
            }
        }
    }

    /// Cost of an operation, in accesses and lines.
    pub fn count(self, form: Form, topology: &Topology, workers: usize) -> Counted {
        let load = Load { queues: topology.hctx_count(), form };
        let queues = load.queues;
        match self {
            Structure::Mindicator => {
                use mqfq_sched_watched::{mindicator::Mindicator, vtime::VTime};
                count(&Mindicator::new(&super::counted_topology(topology), VTime::ZERO), load, workers)
            }
            Structure::ArrayScan => {
                count(&ArrayScan::<watched::AtomicU64, 1>::new(queues, watched_point(VTime::ZERO)), load, workers)
            }
            Structure::ArrayScanPacked => {
                count(&ArrayScan::<watched::AtomicU64, 16>::new(queues, watched_point(VTime::ZERO)), load, workers)
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Load {
    queues: usize,
    form: Form,
}

/// A worker's queues and what it does with them.
struct Worker {
    /// Number and lead.
    queues: Vec<(usize, VTime)>,
    next: usize,
    random: Random,
    mask: u64,
}

impl Worker {
    fn new(load: Load, worker: usize, workers: usize) -> Worker {
        let own = (worker..load.queues).step_by(workers).map(|queue| (queue, VTime::ZERO)).collect();
        Worker { queues: own, next: 0, random: Random::new(worker as u64), mask: load.form.mask() }
    }

    fn all(load: Load, workers: usize) -> Vec<Worker> {
        (0..workers).map(|worker| Worker::new(load, worker, workers)).collect()
    }

    fn arrive(&self, virtual_time: &impl VirtualTime) {
        self.queues.iter().for_each(|&(queue, lead)| virtual_time.publish(queue, lead));
    }

    /// Dispatches from the next own queue; false if that queue is too far ahead.
    fn step(&mut self, virtual_time: &impl VirtualTime) -> bool {
        let count = self.queues.len();
        let (queue, lead) = &mut self.queues[self.next];
        self.next = if self.next + 1 == count { 0 } else { self.next + 1 };
        if virtual_time.global_vtime().is_before(lead.minus(WINDOW)) {
            return false;
        }
        let shown = lead.raw() & self.mask;
        *lead = lead.plus(VSpan::from_bytes(REQUEST_BYTES * (1 + self.random.below(REQUESTS_MAX))));
        if lead.raw() & self.mask != shown {
            virtual_time.publish(*queue, VTime::from_raw(lead.raw() & self.mask));
            virtual_time.query();
        }
        true
    }
}

fn time(virtual_time: &impl VirtualTime, load: Load, cpus: &[Cpu], milliseconds: u64) -> Result<(u64, u64), String> {
    let workers = cpus.len();
    Worker::all(load, workers).iter().for_each(|worker| worker.arrive(virtual_time));
    let work = |worker: usize, stop: &Stop| {
        let mut worker = Worker::new(load, worker, workers);
        let mut operations = 0_u64;
        while !stop.is_due() {
            if worker.step(virtual_time) {
                operations += 1;
            } else {
                std::hint::spin_loop();
            }
        }
        operations
    };
    let (operations, elapsed_ns) = threads::run(cpus, milliseconds, work, || ())?;
    Ok((operations.iter().sum(), elapsed_ns))
}

fn count(virtual_time: &impl VirtualTime, load: Load, workers: usize) -> Counted {
    let queues = load.queues;
    let mut lines = Directory::default();
    let mut all = Worker::all(load, workers);
    all.iter().for_each(|worker| worker.arrive(virtual_time));
    // Until every queue has been dispatched from twice, leads still stand as they were set up.
    let warm_up = 2 * queues + 200;
    let mut accesses = Vec::new();
    let (mut turn, mut operations) = (0, 0);
    while operations < warm_up + 4 * queues + 2000 {
        let worker = turn % workers;
        let dispatched = watched::record(&mut accesses, || all[worker].step(virtual_time));
        if dispatched && operations >= warm_up {
            lines.count(worker, &accesses);
            lines.end_operation();
        } else {
            lines.see(worker, &accesses);
        }
        operations += usize::from(dispatched);
        turn += 1;
    }
    lines.counted()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All workers for `steps` turns each: global virtual time after each turn.
    fn history(virtual_time: &impl VirtualTime, load: Load, workers: usize) -> Vec<u64> {
        let mut all = Worker::all(load, workers);
        all.iter().for_each(|worker| worker.arrive(virtual_time));
        let mut seen = Vec::new();
        for turn in 0..5000 {
            all[turn % workers].step(virtual_time);
            seen.push(virtual_time.global_vtime().raw());
        }
        seen
    }

    #[test]
    fn all_contenders_keep_the_same_virtual_time() {
        let sizes = [(1, 1), (2, 2), (2, 8), (3, 40)];
        for ((workers, queues), form) in sizes.iter().flat_map(|&size| Form::ALL.map(|form| (size, form))) {
            let load = Load { queues, form };
            let topology = Topology::flat(queues);
            let ours = history(&mqfq_sched::mindicator::Mindicator::new(&topology, VTime::ZERO), load, workers);
            let counting = mqfq_sched_watched::mindicator::Mindicator::new(
                &super::super::counted_topology(&topology),
                mqfq_sched_watched::vtime::VTime::ZERO,
            );
            assert_eq!(ours, history(&counting, load, workers));
            let padded = ArrayScan::<std::sync::atomic::AtomicU64, 1>::new(queues, watched_point(VTime::ZERO));
            assert_eq!(ours, history(&padded, load, workers));
            let packed = ArrayScan::<std::sync::atomic::AtomicU64, 16>::new(queues, watched_point(VTime::ZERO));
            assert_eq!(ours, history(&packed, load, workers));
            assert!(ours.is_sorted() && ours.last() > Some(&0));
        }
    }

    #[test]
    fn threads_that_raise_together_in_an_array_lose_no_raise_and_pass_no_lead() {
        const THREADS: u64 = 3;
        const ROUNDS: u64 = 5000;
        let array = ArrayScan::<std::sync::atomic::AtomicU64, 1>::new(THREADS as usize, watched_point(VTime::ZERO));
        (0..THREADS).for_each(|queue| VirtualTime::publish(&array, queue as usize, VTime::ZERO));
        let barrier = std::sync::Barrier::new(THREADS as usize);
        let wrong = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (array, barrier) = (&array, &barrier);
                    scope.spawn(move || {
                        let mut wrong = Vec::new();
                        for round in 1..=ROUNDS {
                            let grains = |count: u64| VTime::from_raw(count * 64);
                            let lead = grains(round * 8 + (thread + round) % THREADS);
                            VirtualTime::publish(array, thread as usize, lead);
                            let passed = lead.is_before(VirtualTime::query(array));
                            barrier.wait();
                            // No assertion before the last barrier, or the others would wait for ever.
                            if passed || VirtualTime::global_vtime(array) != grains(round * 8) {
                                wrong.push((round, thread, passed));
                            }
                            barrier.wait();
                        }
                        wrong
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(wrong, [], "rounds that ended with virtual time behind, or beyond a lead (true)");
    }

    #[test]
    fn a_scan_reads_every_queue_and_a_mindicator_does_not() {
        let topology = Topology::flat(64);
        let count = |structure: Structure| structure.count(Form::Faithful, &topology, 2);
        // Every slot, virtual time twice (may it go? the scan's start), and the array's own store and fence.
        assert_eq!(count(Structure::ArrayScan).loads_per_operation, 66.0);
        assert_eq!(count(Structure::ArrayScan).stores_per_operation, 1.0);
        assert!(count(Structure::Mindicator).loads_per_operation < 33.0);
        let one = Structure::Mindicator.count(Form::Faithful, &Topology::flat(1), 1);
        assert_eq!(one.line_transfers_per_operation, 0.0, "a single worker shares nothing");
    }
    #[test]
    fn a_quantum_spares_most_of_what_is_told() {
        // Requests of 4.5 KiB on the average and a quantum of T/4 = 16 KiB: fewer than one dispatch in three shows.
        let topology = Topology::flat(16);
        for structure in Structure::ALL {
            let [faithful, relaxed] = Form::ALL.map(|form| structure.count(form, &topology, 16));
            assert_eq!(faithful.stores_per_operation, 1.0);
            assert!((0.2..0.33).contains(&relaxed.stores_per_operation), "{structure:?}: {relaxed:?}");
            assert!(relaxed.line_transfers_per_operation < faithful.line_transfers_per_operation / 2.0);
        }
    }
}
