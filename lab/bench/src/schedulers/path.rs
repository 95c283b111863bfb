//! The data path of some workers in virtual time, each request charged with what its instructions take.
//!
//! # What it answers
//! What a workload gives on a drive if cores take time: requests per second, latencies, and how busy the cores are. The
//! data path, the policies and the drive's model are those that ship; the clock is not one. A sleeping thread here is
//! woken after tens of microseconds, more than the drives of this study take for a request, so depth 1 cannot be
//! measured with a clock.
//!
//! # Shape
//! Steps of workers, in the order of virtual time. A worker does one thing at a time and is busy for what it costs:
//!
//! ```text
//!   reap k  ──▶ busy k x back   ──▶ run        clients have their answers when the reap's time is over,
//!   submit m ─▶ busy m x to_device ─▶ run      and a request reaches the drive when the submit's time is over
//! ```
//!
//! What picking costs is part of `to_device`, so a request that waits in the policy was charged for it when it came:
//! what a worker does in all is right, and only a request that is picked long after it was staged is picked for
//! nothing.
//!
//! # What is not in it
//! System calls, sockets, interrupts, waking up; waiting for locks and for lines of other cores (`mqfq-lab bench
//! scale`, `mqfq-lab bench transfers` and the simulator have those). A policy with one lock looks better here than on
//! many busy cores.

use crate::schedulers::watch::{self, WatchedQueue};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Device, DeviceQueue, QueueOptions};
use mqfq_blk::hctx::{HwCtx, HwCtxOptions};
use mqfq_blk::queues::BlockLayer;
use mqfq_blk::request::{Op, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::{CostModel, FlowId, HctxId, PolicyOptions, Topology, Weight};
use mqfq_demo::load::{Load, Requests};
use mqfq_sched::policy::AnyPolicy;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most workers: whom the drive has news for is one word.
pub const WORKERS_MAX: usize = 64;

/// Size of the drive that tenants spread over. Its model chooses dies at random.
const DRIVE_BYTES: u64 = 64 << 30;

/// What a request costs a core, picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// From the client to the drive: submission, picking, dispatch.
    pub to_device_ps: u64,
    /// From the drive to the client.
    pub back_ps: u64,
}

/// When it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// When so many requests have completed; the first tenth is warm-up.
    Requests(u64),
    /// At this time; the first quarter is warm-up.
    Ns(u64),
}

/// A tenant: its requests, and what its threads compute between an answer and the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// What it asks for.
    pub load: Load,
    /// Computing of the client, on a core of its own, ns.
    pub think_ns: u64,
}

/// What runs.
pub struct PathOptions<'a> {
    /// The drive, not used before: its time starts at 0.
    pub device: &'a dyn Device,
    /// Who goes first.
    pub policy: PolicyOptions,
    /// What stands between clients and the drive.
    pub layer: BlockLayer,
    /// Commands on each worker's device queue.
    pub queue_depth: u16,
    /// Who asks; each is a flow of the default weight.
    pub tenants: &'a [Tenant],
    /// Workers; connections take them in turn.
    pub workers: usize,
    /// What a request costs.
    pub costs: Costs,
}

/// What a tenant got.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Median from the client's request to its answer.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Mean.
    pub mean_ns: f64,
}

struct Connection {
    tenant: usize,
    worker: usize,
    requests: Requests,
    asked_ps: Vec<u64>,
    free_cookies: Vec<u64>,
    buffers: Vec<Buffer>,
}

struct Worker {
    hctx: HwCtx<AnyPolicy>,
    /// Busy until then.
    free_ps: u64,
    /// When, in which order, which connection.
    arrivals: BinaryHeap<Reverse<(u64, u64, usize)>>,
    must_run: bool,
}

/// Latencies and bytes of a tenant, as they come.
#[derive(Default)]
struct Counted {
    latencies_ns: Vec<u64>,
    bytes: u64,
}

/// A path under way.
pub struct Path<'a> {
    options: PathOptions<'a>,
    workers: Vec<Worker>,
    connections: Vec<Connection>,
    news: Arc<AtomicU64>,
    sequence: u64,
    completed: u64,
    now_ps: u64,
    counted: Vec<Counted>,
    counted_from_ps: Option<u64>,
}

impl<'a> Path<'a> {
    /// Everybody asks for the first time at 0.
    ///
    /// # Errors
    /// One sentence: a policy or a load that cannot be.
    pub fn new(options: PathOptions<'a>) -> Result<Path<'a>, String> {
        assert!((1..=WORKERS_MAX).contains(&options.workers), "{} workers", options.workers);
        let weights = vec![Weight::DEFAULT; options.tenants.len()];
        let policy = AnyPolicy::new(&options.policy, &Topology::flat(options.workers), &weights)
            .map_err(|error| error.to_string())?;
        let policy = Arc::new(policy);
        let news = Arc::new(AtomicU64::new(0));
        let limits: Vec<StageLimits> = options
            .tenants
            .iter()
            .map(|tenant| StageLimits {
                requests_max: u32::from(tenant.load.connections) * u32::from(tenant.load.depth),
                bytes_max: u64::MAX,
            })
            .collect();
        let mut workers = Vec::new();
        for index in 0..options.workers {
            let id = HctxId(index as u16);
            let heard = news.clone();
            let queue = QueueOptions {
                hctx: id,
                depth: options.queue_depth,
                ring: None,
                interrupt: Arc::new(move |HctxId(to)| {
                    // Relaxed: one thread.
                    heard.fetch_or(1 << to, Ordering::Relaxed);
                }),
            };
            let has_classes = options.policy.kind.is_direct() && options.device.has_class_queues();
            let device: Box<dyn DeviceQueue> = if has_classes {
                options.device.open_class_queues(queue)?
            } else {
                options.device.open_queue(queue)?
            };
            let hctx = HwCtx::new(HwCtxOptions {
                id,
                policy: policy.clone(),
                device: Box::new(WatchedQueue(device)),
                queue_depth: options.queue_depth,
                limits: limits.clone(),
                cost: CostModel::FLAT,
                path: mqfq_blk::path::PathOptions::TIMELESS,
            })
            // What is counted of each flow is for `mqfq ctl`; here it would be 100 KB for each of 128 tenants on each
            // worker.
            .without_flow_stats();
            let hctx = if has_classes { hctx.with_class_queues() } else { hctx };
            let hctx = if options.layer.is_bypass() { hctx.raw() } else { hctx };
            workers.push(Worker { hctx, free_ps: 0, arrivals: BinaryHeap::new(), must_run: false });
        }
        let mut path = Path {
            workers,
            connections: Vec::new(),
            news,
            sequence: 0,
            completed: 0,
            now_ps: 0,
            counted: options.tenants.iter().map(|_| Counted::default()).collect(),
            counted_from_ps: None,
            options,
        };
        for tenant in 0..path.options.tenants.len() {
            let load = path.options.tenants[tenant].load;
            for number in 0..load.connections {
                let index = path.connections.len();
                path.connections.push(Connection {
                    tenant,
                    worker: index % path.workers.len(),
                    requests: Requests::new(&load, number, DRIVE_BYTES)?,
                    asked_ps: vec![0; load.depth.into()],
                    free_cookies: (0..u64::from(load.depth)).collect(),
                    buffers: Vec::new(),
                });
                (0..load.depth).for_each(|_| path.expect(0, index));
            }
        }
        Ok(path)
    }

    fn expect(&mut self, at_ps: u64, connection: usize) {
        let worker = self.connections[connection].worker;
        self.workers[worker].arrivals.push(Reverse((at_ps, self.sequence, connection)));
        self.sequence += 1;
    }

    /// Completes so many more requests, and counts nothing of them.
    ///
    /// # Panics
    /// If nothing will ever happen again: a wake-up was lost.
    pub fn pass(&mut self, requests: u64) {
        let until = self.completed + requests;
        while self.completed < until {
            self.step();
        }
    }

    /// Runs to the end and tells what each tenant got.
    ///
    /// # Panics
    /// As [`Path::pass`].
    pub fn finish(mut self, until: Until) -> Vec<Seen> {
        let s = self.count(until);
        self.counted.iter_mut().map(|counted| counted.seen(s)).collect()
    }

    /// Runs to the end and tells what all tenants got together.
    ///
    /// # Panics
    /// As [`Path::pass`].
    pub fn finish_together(mut self, until: Until) -> Seen {
        let s = self.count(until);
        let mut all = Counted::default();
        for counted in self.counted {
            all.latencies_ns.extend(counted.latencies_ns);
            all.bytes += counted.bytes;
        }
        all.seen(s)
    }

    /// Runs to the end. Seconds that count.
    fn count(&mut self, until: Until) -> f64 {
        match until {
            Until::Requests(requests) => {
                self.pass(requests / 10);
                self.counted_from_ps = Some(self.now_ps);
                self.pass(requests - requests / 10);
            }
            Until::Ns(ns) => {
                while self.now_ps < ns / 4 * 1000 {
                    self.step();
                }
                self.counted_from_ps = Some(self.now_ps);
                while self.now_ps < ns * 1000 {
                    self.step();
                }
            }
        }
        (self.now_ps - self.counted_from_ps.unwrap_or(0)).max(1) as f64 * 1e-12
    }

    /// When this worker does something next.
    fn next_ps(&self, index: usize) -> Option<u64> {
        let worker = &self.workers[index];
        // Relaxed: one thread.
        let is_told = worker.must_run || self.news.load(Ordering::Relaxed) & (1 << index) != 0;
        let event_ps = worker.hctx.next_event_ns().map(|ns| ns.saturating_mul(1000));
        let arrival_ps = worker.arrivals.peek().map(|Reverse((at_ps, ..))| *at_ps);
        let next_ps = is_told.then_some(0).into_iter().chain(event_ps).chain(arrival_ps).min()?;
        Some(next_ps.max(worker.free_ps).max(self.now_ps))
    }

    fn step(&mut self) {
        let next = (0..self.workers.len()).filter_map(|index| Some((self.next_ps(index)?, index))).min();
        let (at_ps, index) = next.expect("requests are under way and nothing will ever happen: a wake-up was lost");
        self.now_ps = at_ps;
        let now_ns = at_ps.div_ceil(1000);
        // Relaxed: one thread.
        self.news.fetch_and(!(1 << index), Ordering::Relaxed);
        let mut kicked: u64 = 0;
        let mut kick = |HctxId(to): HctxId| kicked |= 1 << to;
        let mut completions = Vec::new();
        let worker = &mut self.workers[index];
        let reaped = watch::schedulers_reap(&mut worker.hctx, now_ns, &mut kick, &mut completions);
        let mut submitted = 0;
        if reaped > 0 {
            worker.must_run = true;
            for (nth, (Owner(connection), completion)) in completions.into_iter().enumerate() {
                let answered_ps = at_ps + (nth as u64 + 1) * self.options.costs.back_ps;
                self.answer(connection as usize, completion, answered_ps);
            }
        } else {
            while let Some(&Reverse((asked_ps, _, connection))) = worker.arrivals.peek()
                && asked_ps <= at_ps
            {
                worker.arrivals.pop();
                let submission = self.connections[connection].ask(asked_ps, self.options.tenants);
                let owner = Owner(connection as u32);
                watch::schedulers_submit(&mut worker.hctx, owner, submission, now_ns, &mut kick);
                submitted += 1;
            }
            if submitted > 0 {
                worker.must_run = true;
            } else {
                // Told to, or the policy held something back until now.
                worker.must_run = watch::schedulers_run(&mut worker.hctx, now_ns, &mut kick).again;
            }
        }
        let costs = self.options.costs;
        self.workers[index].free_ps = at_ps + reaped as u64 * costs.back_ps + submitted * costs.to_device_ps;
        for (to, worker) in self.workers.iter_mut().enumerate() {
            worker.must_run |= kicked & (1 << to) != 0;
        }
    }

    fn answer(&mut self, index: usize, completion: mqfq_blk::request::Completion, at_ps: u64) {
        let connection = &mut self.connections[index];
        let latency_ns = (at_ps - connection.asked_ps[completion.cookie as usize]) / 1000;
        connection.free_cookies.push(completion.cookie);
        connection.buffers.extend(completion.buffer);
        let tenant = connection.tenant;
        self.completed += 1;
        if self.counted_from_ps.is_some() {
            self.counted[tenant].latencies_ns.push(latency_ns);
            self.counted[tenant].bytes += u64::from(completion.length_bytes);
        }
        self.expect(at_ps + self.options.tenants[tenant].think_ns * 1000, index);
    }
}

impl Connection {
    fn ask(&mut self, asked_ps: u64, tenants: &[Tenant]) -> Submission {
        let next = self.requests.advance();
        let length_bytes = tenants[self.tenant].load.request_bytes;
        let cookie = self.free_cookies.pop().expect("an arrival follows an answer");
        self.asked_ps[cookie as usize] = asked_ps;
        Submission {
            flow: FlowId(self.tenant as u32),
            op: if next.write { Op::Write } else { Op::Read },
            offset_bytes: next.offset_bytes,
            length_bytes,
            fua: false,
            buffer: Some(self.buffers.pop().unwrap_or_else(|| Buffer::new(length_bytes as usize))),
            cookie,
        }
    }
}

impl Counted {
    fn seen(&mut self, s: f64) -> Seen {
        self.latencies_ns.sort_unstable();
        let all = &self.latencies_ns;
        let at = |share: f64| all.get((all.len() as f64 * share) as usize).copied().unwrap_or(0);
        Seen {
            iops: all.len() as f64 / s,
            bytes_per_s: self.bytes as f64 / s,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            mean_ns: all.iter().sum::<u64>() as f64 / all.len().max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::PolicyKind;
    use mqfq_blk::device::nvme::{NvmeDevice, Preset};

    fn read_at_depth(kind: PolicyKind, depth: u16, costs: Costs) -> Seen {
        let preset = Preset::by_name("optane").unwrap();
        let device = NvmeDevice::with_preset(preset, watch::STORED_BYTES, 1).unwrap();
        let tenants = [Tenant { load: Load::random_reads(1, depth, 4096), think_ns: 0 }];
        let (policy, queue_depth) = (PolicyOptions::new(kind), 256);
        let (layer, workers) = (BlockLayer::Mq, 1);
        let options = PathOptions { device: &device, policy, layer, queue_depth, tenants: &tenants, workers, costs };
        Path::new(options).unwrap().finish_together(Until::Requests(20_000))
    }

    #[test]
    fn a_request_takes_the_drives_time_and_its_own_instructions() {
        // 8 us of medium, a little more or less, and 1,818 ns of link; then 300 ns there and 200 ns back.
        for kind in PolicyKind::ALL {
            let free = read_at_depth(kind, 1, Costs { to_device_ps: 0, back_ps: 0 });
            let paid = read_at_depth(kind, 1, Costs { to_device_ps: 300_000, back_ps: 200_000 });
            assert!(free.p50_ns.abs_diff(9_818) <= 100, "{kind}: {}", free.p50_ns);
            assert!(paid.p50_ns.abs_diff(free.p50_ns + 500) <= 2, "{kind}: {} and {}", paid.p50_ns, free.p50_ns);
            assert!((paid.iops * paid.mean_ns * 1e-9 - 1.0).abs() < 1e-3, "{kind}: a closed loop of depth 1: {paid:?}");
        }
    }

    #[test]
    fn a_core_that_is_busy_all_the_time_is_what_limits() {
        // 5 us a request: 200 thousand per second, of the 550 thousand that the drive has; less the 10 us that the
        // worker waits for the first answer when all 64 went out together, of 320.
        let seen = read_at_depth(PolicyKind::None, 64, Costs { to_device_ps: 3_000_000, back_ps: 2_000_000 });
        assert!((seen.iops / 194_000.0 - 1.0).abs() < 0.02, "{}", seen.iops);
        let drive = read_at_depth(PolicyKind::None, 64, Costs { to_device_ps: 0, back_ps: 0 });
        assert!((drive.iops / 550_000.0 - 1.0).abs() < 0.02, "{}", drive.iops);
    }
}
