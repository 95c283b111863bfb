//! More workers than sets of class queues, in virtual time: shares stay those of the weights, and every request
//! completes once.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Device, QueueOptions};
use mqfq_blk::hctx::{HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::{CostModel, FlowId, HctxId, OwnOptions, PolicyKind, PolicyOptions, Topology, Weight};
use mqfq_blkmq::{QueueLayout, QueueMap, SharedQueues};
use mqfq_nvme::device::{NvmeDevice, NvmeDeviceOptions};
use mqfq_policies::{D2FQ, D2fqOptions};
use mqfq_sched::policy::AnyPolicy;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const READ_BYTES: u32 = 4096;
const SIZE_BYTES: u64 = 64 << 20;
const WORKERS: usize = 3;

/// Workers that shall look.
type Due = Arc<Mutex<BTreeSet<u16>>>;

fn wake(due: &Due, worker: HctxId) {
    due.lock().unwrap().insert(worker.0);
}

/// Three workers in a closed loop on the drive `zssd`.
struct Rig {
    hctxs: Vec<HwCtx<AnyPolicy>>,
    due: Due,
    now_ns: u64,
    submitted: u64,
    /// By flow.
    completed: Vec<u64>,
    offset: u64,
    completions: Vec<(Owner, Completion)>,
}

impl Rig {
    fn new(kind: PolicyKind, queue_pairs: u16, queue_depth: u16, weights: &[u64], low_threshold_bytes: u64) -> Rig {
        let drive = NvmeDevice::new(NvmeDeviceOptions {
            preset: "zssd",
            size_bytes: SIZE_BYTES,
            seed: 1,
            queue_pairs_max: Some(queue_pairs),
            ..NvmeDeviceOptions::default()
        });
        let drive = drive.unwrap();
        // So that the weights of the classes are found in milliseconds instead of seconds.
        let d2fq = D2fqOptions { adjust_period_ns: 5_000_000, low_threshold_bytes, ..D2fqOptions::DEFAULT };
        let options = PolicyOptions { own: OwnOptions::of(&d2fq), ..PolicyOptions::new(kind) };
        let weights: Vec<Weight> = weights.iter().map(|&weight| Weight::new(weight).unwrap()).collect();
        let topology = Topology::flat(WORKERS);
        let policy = Arc::new(AnyPolicy::new(&options, &topology, &weights).unwrap());
        let due = Due::default();
        let woken = due.clone();
        let interrupt = Arc::new(move |hctx: HctxId| wake(&woken, hctx));
        let map = QueueMap::of_sets(&QueueLayout::default(), &topology, &drive, queue_depth).unwrap();
        let device = SharedQueues::open(Arc::new(drive), map, queue_depth).unwrap();
        let hctx = |worker: u16| {
            let options = QueueOptions {
                hctx: HctxId(worker),
                depth: queue_depth,
                #[cfg(feature = "uring")]
                ring: None,
                interrupt: interrupt.clone(),
            };
            let options = HwCtxOptions {
                id: HctxId(worker),
                policy: policy.clone(),
                device: device.open_queue(options).unwrap(),
                queue_depth,
                limits: vec![StageLimits { requests_max: 1024, bytes_max: 1 << 30 }; weights.len()],
                cost: CostModel::FLAT,
                path: PathOptions::TIMELESS.for_device(&device.info()),
            };
            HwCtx::new(options).with_class_queues()
        };
        let hctxs = (0..WORKERS as u16).map(hctx).collect();
        let completed = vec![0; weights.len()];
        Rig { hctxs, due, now_ns: 0, submitted: 0, completed, offset: 0, completions: Vec::new() }
    }

    fn submit(&mut self, worker: u16, flow: u32) {
        // A step that visits the drive's dies in no order.
        self.offset = (self.offset + 7919 * u64::from(READ_BYTES)) % SIZE_BYTES;
        let submission = Submission {
            flow: FlowId(flow),
            op: Op::Read,
            offset_bytes: self.offset,
            length_bytes: READ_BYTES,
            fua: false,
            buffer: Some(Buffer::new(READ_BYTES as usize)),
            cookie: u64::from(worker),
        };
        let due = self.due.clone();
        let mut kick = |to: HctxId| wake(&due, to);
        let owner = Owner(flow);
        let taken = self.hctxs[usize::from(worker)].submit(owner, submission, self.now_ns, &mut kick);
        taken.unwrap_or_else(|_| panic!("within the bound"));
        self.submitted += 1;
        kick(HctxId(worker));
    }

    /// Lets all due workers run, and replaces ended requests if `refill`.
    fn run(&mut self, refill: bool) {
        loop {
            let next = self.due.lock().unwrap().pop_first();
            let Some(worker) = next else { break };
            let due = self.due.clone();
            let mut kick = |to: HctxId| wake(&due, to);
            let hctx = &mut self.hctxs[usize::from(worker)];
            let run = hctx.run(self.now_ns, &mut kick);
            let reaped = hctx.reap(self.now_ns, &mut kick, &mut self.completions);
            hctx.take_room();
            if run.again || reaped > 0 || hctx.next_event_ns().is_some_and(|at_ns| at_ns <= self.now_ns) {
                kick(HctxId(worker));
            }
            for (Owner(flow), completion) in std::mem::take(&mut self.completions) {
                assert_eq!(completion.cookie, u64::from(worker), "to the worker that asked");
                self.completed[flow as usize] += 1;
                if refill {
                    self.submit(worker, flow);
                }
            }
        }
    }

    fn run_until(&mut self, until_ns: u64) {
        self.run(true);
        while self.now_ns < until_ns {
            self.advance();
            self.run(true);
        }
    }

    fn advance(&mut self) {
        let next_ns = self.hctxs.iter().filter_map(HwCtx::next_event_ns).min();
        self.now_ns = self.now_ns.max(next_ns.expect("something is under way"));
        self.due.lock().unwrap().extend(0..WORKERS as u16);
    }

    fn finish(&mut self) {
        while self.completed.iter().sum::<u64>() < self.submitted {
            self.run(false);
            if self.hctxs.iter().any(|hctx| hctx.in_flight() > 0) {
                self.advance();
            }
        }
        for hctx in &self.hctxs {
            assert_eq!((hctx.staged(), hctx.admitted(), hctx.in_flight()), (0, 0, 0));
        }
    }
}

/// Shares of the flows in a tenth of a second, with `each` reads in flight per flow and worker.
fn shares(kind: PolicyKind, queue_pairs: u16, weights: &[u64], each: usize) -> Vec<f64> {
    let mut rig = Rig::new(kind, queue_pairs, 1024, weights, 256 << 10);
    for worker in 0..WORKERS as u16 {
        for flow in 0..weights.len() as u32 {
            (0..each).for_each(|_| rig.submit(worker, flow));
        }
    }
    rig.run_until(60_000_000);
    let before = rig.completed.clone();
    rig.run_until(160_000_000);
    let reads: Vec<f64> = rig.completed.iter().zip(before).map(|(after, before)| (after - before) as f64).collect();
    rig.finish();
    let all: f64 = reads.iter().sum();
    assert!(all > 0.9 * 750_000.0 * 0.1, "the drive is kept busy: {all} reads");
    reads.iter().map(|reads| reads / all).collect()
}

/// The tolerance is the paper's evaluation's: within 3% of the ideal share, for each tenant.
#[test]
fn three_workers_share_by_weight_over_a_set_of_each_and_over_one_for_all() {
    let weights = [800, 600, 400, 200];
    for queue_pairs in [9, 3] {
        let shares = shares(D2FQ, queue_pairs, &weights, 64);
        for (share, weight) in shares.iter().zip(weights) {
            let ideal = weight as f64 / 2000.0;
            assert!((share / ideal - 1.0).abs() <= 0.03, "{queue_pairs} queue pairs: {shares:?}");
        }
    }
    let shares = shares(PolicyKind::None, 3, &weights, 64);
    assert!(shares.iter().all(|share| (share / 0.25 - 1.0).abs() <= 0.03), "none knows no weights: {shares:?}");
}

/// The tenant of worker 0 has 8 times as many requests in flight as each of the two others that share its set. (A third
/// of the drive's throughput takes 85 in flight, with the 256 that are inside it.)
#[test]
fn a_deep_tenant_takes_no_more_over_a_shared_set_than_its_weight() {
    let mut rig = Rig::new(D2FQ, 3, 1024, &[100, 100, 100], 1 << 20);
    for (flow, each) in [(0, 1024), (1, 128), (2, 128)] {
        (0..each).for_each(|_| rig.submit(flow as u16, flow));
    }
    rig.run_until(60_000_000);
    let before = rig.completed.clone();
    rig.run_until(160_000_000);
    let reads: Vec<u64> = rig.completed.iter().zip(before).map(|(after, before)| after - before).collect();
    rig.finish();
    for shallow in [reads[1], reads[2]] {
        let ratio = reads[0] as f64 / shallow as f64;
        assert!((ratio - 1.0).abs() <= 0.05, "{reads:?}");
    }
}

#[test]
fn every_request_comes_back_over_sets_that_are_shallower_than_what_is_asked_for() {
    for (queue_pairs, queue_depth) in [(3, 1), (3, 5), (6, 2), (9, 3)] {
        let mut rig = Rig::new(D2FQ, queue_pairs, queue_depth, &[100, 300], 1 << 20);
        for worker in 0..WORKERS as u16 {
            (0..40).for_each(|number| rig.submit(worker, number % 2));
        }
        rig.run_until(20_000_000);
        assert!(rig.completed.iter().all(|&reads| reads > 100), "{:?}", rig.completed);
        rig.finish();
        assert_eq!(rig.completed.iter().sum::<u64>(), rig.submitted);
    }
    assert_eq!(mqfq_blk::table::lost_requests(), 0);
}
