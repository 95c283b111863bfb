//! Workers of the data path that ships on a software drive, one step after the other: what callgrind counts.
//!
//! # Shape
//! Nothing takes time but the drive, so its own next event is the only clock:
//!
//! ```text
//!   drive's next event ──▶ told workers reap ──▶ each answer is followed by a request ──▶ run, until none must
//! ```
//! How many requests a worker reaps at once follows from the drive and the workload alone, so that what is counted of
//! one policy does not depend on what was counted of another. Answers that come at one time are reaped together.

use super::watch::{self, WatchedQueue};
use super::workload::Tenant;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{DeviceQueue, QueueOptions};
use mqfq_blk::hctx::{HwCtx, HwCtxOptions};
use mqfq_blk::request::{Completion, Op, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::{CostModel, FlowId, HctxId, PolicyOptions, Topology, Weight};
use mqfq_blkmq::{BlockLayer, MultiQueue};
use mqfq_demo::load::Requests;
use mqfq_sched::policy::AnyPolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most workers: one bit each in a word.
pub const WORKERS_MAX: usize = 64;

/// Size of the drive that tenants spread over.
const DRIVE_BYTES: u64 = 64 << 30;

/// Options of a walk.
pub struct WalkOptions<'a> {
    /// The drive, not used before: its time starts at 0.
    pub device: &'a dyn MultiQueue,
    /// Policy.
    pub policy: PolicyOptions,
    /// Block layer.
    pub layer: BlockLayer,
    /// Commands on each worker's device queue.
    pub queue_depth: u16,
    /// Tenants; each is a flow of the default weight. Their computing is not counted.
    pub tenants: &'a [Tenant],
    /// Workers; connections take them in turn.
    pub workers: usize,
}

struct Connection {
    flow: FlowId,
    worker: usize,
    requests: Requests,
    length_bytes: u32,
    buffers: Vec<Buffer>,
}

struct Worker {
    hctx: HwCtx<AnyPolicy>,
    must_run: bool,
}

/// Workers under way.
pub struct Walk {
    workers: Vec<Worker>,
    connections: Vec<Connection>,
    /// A bit for each worker that the drive has interrupted.
    news: Arc<AtomicU64>,
    /// Connections whose next request is due.
    asking: Vec<usize>,
    completions: Vec<(Owner, Completion)>,
    completed: u64,
    now_ns: u64,
}

impl Walk {
    /// Everybody asks for the first time at 0.
    ///
    /// # Errors
    /// One sentence: a policy or a load that cannot be.
    pub fn new(options: &WalkOptions<'_>) -> Result<Walk, String> {
        let WalkOptions { device, policy, layer, queue_depth, tenants, workers } = *options;
        assert!((1..=WORKERS_MAX).contains(&workers), "{workers} workers");
        let weights = vec![Weight::DEFAULT; tenants.len()];
        let made = AnyPolicy::new(&policy, &Topology::flat(workers), &weights).map_err(|error| error.to_string())?;
        let made = Arc::new(made);
        let news = Arc::new(AtomicU64::new(0));
        let limits = |tenant: &Tenant| StageLimits {
            requests_max: u32::from(tenant.load.connections) * u32::from(tenant.load.depth),
            bytes_max: u64::MAX,
        };
        let limits: Vec<StageLimits> = tenants.iter().map(limits).collect();
        let has_classes = policy.kind.is_direct() && device.offers_class_queues();
        let worker = |index: usize| {
            let id = HctxId(index as u16);
            let heard = news.clone();
            let interrupt = Arc::new(move |HctxId(to)| {
                // Relaxed: one thread.
                heard.fetch_or(1 << to, Ordering::Relaxed);
            });
            let queue = QueueOptions { hctx: id, depth: queue_depth, ring: None, interrupt };
            let device: Box<dyn DeviceQueue> =
                if has_classes { device.open_class_queues(queue)? } else { device.open_queue(queue)? };
            // Counts of each flow are for `mqfq ctl`; here they would be 100 KB for each of 128 tenants on each worker.
            let hctx = HwCtx::new(HwCtxOptions {
                id,
                policy: made.clone(),
                device: Box::new(WatchedQueue(device)),
                queue_depth,
                limits: limits.clone(),
                cost: CostModel::FLAT,
                path: mqfq_blk::path_options::PathOptions::TIMELESS,
            })
            .without_flow_stats();
            let hctx = if has_classes { hctx.with_class_queues() } else { hctx };
            Ok(Worker { hctx: if layer.is_bypass() { hctx.raw() } else { hctx }, must_run: false })
        };
        let workers_made = (0..workers).map(worker).collect::<Result<Vec<Worker>, String>>()?;
        let (mut connections, mut asking) = (Vec::new(), Vec::new());
        for (flow, Tenant { load, .. }) in tenants.iter().enumerate() {
            for number in 0..load.connections {
                let index = connections.len();
                connections.push(Connection {
                    flow: FlowId(flow as u32),
                    worker: index % workers,
                    requests: Requests::new(load, number, DRIVE_BYTES)?,
                    length_bytes: load.request_bytes,
                    buffers: (0..load.depth).map(|_| Buffer::new(load.request_bytes as usize)).collect(),
                });
                asking.extend((0..load.depth).map(|_| index));
            }
        }
        Ok(Walk { workers: workers_made, connections, news, asking, completions: Vec::new(), completed: 0, now_ns: 0 })
    }

    /// Completes so many more requests, or a few more.
    ///
    /// # Panics
    /// If nothing will ever happen again: a wake-up was lost.
    pub fn pass(&mut self, requests: u64) {
        let until = self.completed + requests;
        while self.completed < until {
            self.ask();
            self.run();
            self.reap();
        }
    }

    fn ask(&mut self) {
        for index in self.asking.drain(..) {
            let connection = &mut self.connections[index];
            let next = connection.requests.advance();
            let submission = Submission {
                flow: connection.flow,
                op: if next.write { Op::Write } else { Op::Read },
                offset_bytes: next.offset_bytes,
                length_bytes: connection.length_bytes,
                fua: false,
                buffer: Some(connection.buffers.pop().expect("a request follows an answer")),
                cookie: 0,
            };
            let mut kicked = 0;
            let owner = Owner(index as u32);
            let (worker, now_ns) = (connection.worker, self.now_ns);
            watch::schedulers_submit(&mut self.workers[worker].hctx, owner, submission, now_ns, &mut kick(&mut kicked));
            wake(&mut self.workers, kicked | 1 << worker);
        }
    }

    fn run(&mut self) {
        while let Some(index) = self.workers.iter().position(|worker| worker.must_run) {
            let worker = &mut self.workers[index];
            let mut kicked = 0;
            worker.must_run = watch::schedulers_run(&mut worker.hctx, self.now_ns, &mut kick(&mut kicked)).again;
            wake(&mut self.workers, kicked);
        }
    }

    /// Advances to the drive's next event; workers told of it reap, and run next.
    fn reap(&mut self) {
        // Relaxed: one thread.
        let told = self.news.swap(0, Ordering::Relaxed);
        if told == 0 {
            let next_ns = self.workers.iter().filter_map(|worker| worker.hctx.next_event_ns()).min();
            let next_ns = next_ns.expect("requests are under way and nothing will ever happen: a wake-up was lost");
            self.now_ns = self.now_ns.max(next_ns);
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            let is_due = worker.hctx.next_event_ns().is_some_and(|at_ns| at_ns <= self.now_ns);
            if told & 1 << index == 0 && !is_due {
                continue;
            }
            let mut kicked = 1 << index;
            watch::schedulers_reap(&mut worker.hctx, self.now_ns, &mut kick(&mut kicked), &mut self.completions);
            wake(&mut self.workers, kicked);
        }
        for (Owner(connection), completion) in self.completions.drain(..) {
            self.completed += 1;
            self.connections[connection as usize].buffers.extend(completion.buffer);
            self.asking.push(connection as usize);
        }
    }
}

/// Notes the workers that were kicked.
fn kick(kicked: &mut u64) -> impl FnMut(HctxId) {
    |HctxId(to)| *kicked |= 1 << to
}

/// These workers run next.
fn wake(workers: &mut [Worker], kicked: u64) {
    for (index, worker) in workers.iter_mut().enumerate() {
        worker.must_run |= kicked & 1 << index != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_demo::load::Load;
    use mqfq_nvme::device::{NvmeDevice, Preset};

    #[test]
    fn every_policy_walks_on_with_several_workers_at_any_depth() {
        for kind in mqfq_policies::ALL {
            for depth in [1, 64] {
                let device = NvmeDevice::with_preset(Preset::by_name("zssd").unwrap(), watch::STORED_BYTES, 1).unwrap();
                let tenants = [Tenant { load: Load::random_reads(2, depth, 4096), think_ns: 0 }; 3];
                let (policy, layer, queue_depth) = (PolicyOptions::new(kind), BlockLayer::Mq, 256);
                let options =
                    WalkOptions { device: &device, policy, layer, queue_depth, tenants: &tenants, workers: 4 };
                let mut walk = Walk::new(&options).unwrap();
                walk.pass(2_000);
                assert!(walk.completed >= 2_000 && walk.now_ns > 0, "{kind}: {} at {} ns", walk.completed, walk.now_ns);
                let in_flight = walk.asking.len()
                    + walk.connections.iter().map(|one| usize::from(depth) - one.buffers.len()).sum::<usize>();
                assert!(in_flight >= usize::from(depth), "{kind}: {in_flight}");
            }
        }
    }
}
