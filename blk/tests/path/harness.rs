//! Contexts of several workers over one device, in virtual time: time goes from event to event, kicks and interrupts
//! are answered, and every request is accounted for.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::hctx::{Full, HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::stats::HctxStats;
use mqfq_blk::table::Owner;
use mqfq_blk::tag::Tag;
use mqfq_blk::{CostModel, FlowId, HctxId, OwnOptions, PolicyKind, PolicyOptions, Topology, VSpan, Weight};
use mqfq_policies::BfqOptions;
use mqfq_sched::policy::AnyPolicy;
use mqfq_testing_devices::fault::FaultDevice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A quarter of a MiB: the window of every policy here that has one.
pub const WINDOW_BYTES: u64 = 256 << 10;

/// Options of a rig.
#[derive(Clone)]
pub struct Setup {
    pub kind: PolicyKind,
    pub workers: usize,
    pub weights: Vec<u64>,
    /// D.
    pub depth: u32,
    pub queue_depth: u16,
    pub path: PathOptions,
    /// Requests that each flow may stage on each worker.
    pub requests_max: u32,
}

impl Setup {
    /// One worker and one flow over first come, first served.
    pub fn plain(path: PathOptions) -> Setup {
        let (kind, weights) = (PolicyKind::None, vec![100]);
        Setup { kind, workers: 1, weights, depth: 64, queue_depth: 64, path, requests_max: 256 }
    }
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub struct RequestSpec {
    pub flow: u32,
    pub op: Op,
    pub offset_bytes: u64,
    pub length_bytes: u32,
    pub fill: u8,
}

/// A request's end.
#[derive(Debug)]
pub struct Ended {
    pub worker: usize,
    pub asked: RequestSpec,
    pub completion: Completion,
}

/// Workers that shall look.
type Due = Arc<Mutex<BTreeSet<usize>>>;

fn wake(due: &Due, worker: HctxId) {
    due.lock().unwrap().insert(usize::from(worker.0));
}

pub struct Rig {
    pub hctxs: Vec<HwCtx<AnyPolicy>>,
    pub policy: Arc<AnyPolicy>,
    pub now_ns: u64,
    pub outstanding: BTreeMap<u64, RequestSpec>,
    depth: u32,
    next_cookie: u64,
    due: Due,
    /// Kicks of runs and reaps.
    kicks: u64,
    completions: Vec<(Owner, Completion)>,
}

impl Rig {
    pub fn new(setup: &Setup, device: &dyn Device) -> Rig {
        let Setup { kind, workers, weights, depth, queue_depth, path, requests_max } = setup.clone();
        // Turns that are short beside a test's few milliseconds, so that each flow gets some of them.
        let bfq = BfqOptions {
            slice_idle_ns: 100_000,
            timeout_sync_ns: 1_000_000,
            max_budget_bytes: 1,
            low_latency: false,
            ..BfqOptions::DEFAULT
        };
        let window = VSpan::from_bytes(WINDOW_BYTES);
        let own = OwnOptions::of(&bfq);
        let options = PolicyOptions { depth, window, own, ..PolicyOptions::new(kind) };
        let weights: Vec<Weight> = weights.iter().map(|&weight| Weight::new(weight).unwrap()).collect();
        let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(workers), &weights).unwrap());
        let due = Due::default();
        let hctx = |number: u16| {
            let interrupted = due.clone();
            let queue = device.open_queue(QueueOptions {
                hctx: HctxId(number),
                depth: queue_depth,
                #[cfg(feature = "uring")]
                ring: None,
                interrupt: Arc::new(move |hctx| wake(&interrupted, hctx)),
            });
            HwCtx::new(HwCtxOptions {
                id: HctxId(number),
                policy: policy.clone(),
                device: queue.unwrap(),
                queue_depth,
                limits: vec![StageLimits { requests_max, bytes_max: 64 << 20 }; weights.len()],
                cost: CostModel::FLAT,
                path: path.for_device(&device.info()),
            })
        };
        let hctxs = (0..workers as u16).map(hctx).collect();
        let (outstanding, completions) = (BTreeMap::new(), Vec::new());
        Rig { hctxs, policy, now_ns: 0, outstanding, depth, next_cookie: 0, due, kicks: 0, completions }
    }

    /// Stages a request. `None`: its flow has its bound staged.
    pub fn submit(&mut self, worker: usize, asked: RequestSpec, fua: bool) -> Option<u64> {
        let RequestSpec { op, length_bytes, fill, .. } = asked;
        let buffer = matches!(op, Op::Read | Op::Write).then(|| {
            let mut buffer = Buffer::new(length_bytes as usize);
            let letter = if op == Op::Read { 0xee } else { fill };
            buffer.as_mut_slice()[..length_bytes as usize].fill(letter);
            buffer
        });
        self.submit_with(worker, asked, fua, buffer)
    }

    /// As [`Rig::submit`], with this payload.
    pub fn submit_with(&mut self, worker: usize, asked: RequestSpec, fua: bool, buffer: Option<Buffer>) -> Option<u64> {
        let RequestSpec { flow, op, offset_bytes, length_bytes, .. } = asked;
        let cookie = self.next_cookie;
        let submission = Submission { flow: FlowId(flow), op, offset_bytes, length_bytes, fua, buffer, cookie };
        let due = self.due.clone();
        let mut kick = |to: HctxId| wake(&due, to);
        match self.hctxs[worker].submit(Owner(flow), submission, self.now_ns, &mut kick) {
            Ok(()) => {
                self.next_cookie += 1;
                self.outstanding.insert(cookie, asked);
                self.due.lock().unwrap().insert(worker);
                Some(cookie)
            }
            Err(Full(_)) => None,
        }
    }

    pub fn read(&mut self, flow: u32, offset_bytes: u64, length_bytes: u32) {
        self.ask(flow, Op::Read, offset_bytes, length_bytes, 0)
    }

    pub fn write(&mut self, flow: u32, offset_bytes: u64, length_bytes: u32, fill: u8) {
        self.ask(flow, Op::Write, offset_bytes, length_bytes, fill)
    }

    /// Writes these bytes.
    pub fn write_bytes(&mut self, flow: u32, offset_bytes: u64, bytes: &[u8]) {
        let length_bytes = bytes.len() as u32;
        let mut buffer = Buffer::new(bytes.len());
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let asked = RequestSpec { flow, op: Op::Write, offset_bytes, length_bytes, fill: 0 };
        self.submit_with(0, asked, false, Some(buffer)).expect("within the bound");
    }

    /// On the first worker, not FUA.
    pub fn ask(&mut self, flow: u32, op: Op, offset_bytes: u64, length_bytes: u32, fill: u8) {
        self.submit(0, RequestSpec { flow, op, offset_bytes, length_bytes, fill }, false).expect("within the bound");
    }

    /// Lets every worker that has something to do do it, at this time. Returns the ended requests.
    pub fn run(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some(worker) = self.next_due() {
            let due = self.due.clone();
            let kick = |to: HctxId| wake(&due, to);
            let run = self.hctxs[worker].run(self.now_ns, &mut |to: HctxId| {
                self.kicks += 1;
                kick(to);
            });
            let reaped = self.reap(worker);
            if run.again || !reaped.is_empty() || self.hctxs[worker].next_event_ns().is_some_and(|at_ns| at_ns == 0) {
                kick(HctxId(worker as u16));
            }
            ended.extend(reaped);
        }
        ended
    }

    /// Requests that one worker's device has finished at this time, before that worker goes on.
    pub fn reap(&mut self, worker: usize) -> Vec<Ended> {
        let due = self.due.clone();
        let hctx = &mut self.hctxs[worker];
        let mut kick = |to: HctxId| {
            self.kicks += 1;
            wake(&due, to);
        };
        let count = hctx.reap(self.now_ns, &mut kick, &mut self.completions);
        hctx.take_room();
        if count > self.completions.len() {
            // Parts ended, and there are tags and tokens for other requests.
            wake(&due, HctxId(worker as u16));
        }
        let mut ended = Vec::new();
        for (Owner(flow), completion) in self.completions.drain(..) {
            let cookie = completion.cookie;
            let asked = self.outstanding.remove(&cookie);
            let asked = asked.unwrap_or_else(|| panic!("request {cookie} ended twice (I10)"));
            assert_eq!((asked.flow, asked.op), (flow, completion.op), "to its owner");
            ended.push(Ended { worker, asked, completion });
        }
        ended
    }

    /// Goes on to this time, at which every worker looks.
    pub fn go_to(&mut self, now_ns: u64) -> Vec<Ended> {
        self.now_ns = now_ns;
        self.wake_all();
        self.run()
    }

    fn next_due(&mut self) -> Option<usize> {
        self.due.lock().unwrap().pop_first()
    }

    /// Time of the next event, if nothing is asked.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.hctxs.iter().filter_map(HwCtx::next_event_ns).min()
    }

    /// Goes on to the next event, if there is one.
    pub fn advance(&mut self) -> Option<Vec<Ended>> {
        let next_ns = self.next_event_ns()?;
        self.now_ns = self.now_ns.max(next_ns);
        // An interrupt is for one worker, a time for all that look: all do.
        self.wake_all();
        Some(self.run())
    }

    /// Every worker has something to do.
    pub fn wake_all(&self) {
        self.due.lock().unwrap().extend(0..self.hctxs.len());
    }

    /// Goes on until nothing is under way.
    pub fn finish(&mut self) -> Vec<Ended> {
        let mut all = self.run();
        let mut idle = 0;
        while !self.outstanding.is_empty() {
            let Some(ended) = self.advance() else {
                panic!("{} requests are under way and nothing will ever happen", self.outstanding.len())
            };
            idle = if ended.is_empty() { idle + 1 } else { 0 };
            assert!(idle < 100_000, "at {} ns: {:?} never end", self.now_ns, self.outstanding);
            all.extend(ended);
        }
        all
    }

    /// Nothing is left anywhere: no request, no tag, and all units of depth are back.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.outstanding.is_empty(), "{:?}", self.outstanding);
        for hctx in &self.hctxs {
            assert_eq!((hctx.staged(), hctx.admitted(), hctx.in_flight()), (0, 0, 0), "staged, in the table, tags out");
        }
        if let Some(free) = self.policy.free_units() {
            assert_eq!(free, i64::from(self.depth), "units of depth");
        }
        assert_eq!(self.stats().kicks, self.kicks, "kicks are counted");
        assert_eq!(mqfq_blk::table::lost_requests(), 0);
    }

    /// Counters of all workers.
    pub fn stats(&self) -> HctxStats {
        let mut sum = HctxStats::default();
        self.hctxs.iter().for_each(|hctx| sum.merge(&hctx.stats()));
        sum
    }
}

/// A device whose queues refuse commands although there are tags for them, as those that several workers share do, and
/// are not always reset when they are asked to be.
pub struct Narrow {
    inner: FaultDevice,
    room: Arc<[AtomicUsize]>,
    refuses_resets: Arc<AtomicBool>,
}

impl Narrow {
    /// `inner`, with a queue for each of `workers`, which takes all commands.
    pub fn new(inner: FaultDevice, workers: usize) -> Narrow {
        let room = (0..workers).map(|_| AtomicUsize::new(usize::MAX)).collect();
        Narrow { inner, room, refuses_resets: Arc::default() }
    }

    /// From now on the queues are reset, or are not.
    pub fn refuse_resets(&self, refuses: bool) {
        self.refuses_resets.store(refuses, Ordering::Relaxed);
    }

    /// From now on this worker's queue holds at most `commands`.
    pub fn set_room(&self, worker: usize, commands: usize) {
        self.room[worker].store(commands, Ordering::Relaxed);
    }
}

impl Device for Narrow {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        let (worker, room, refuses_resets) = (options.hctx.index(), self.room.clone(), self.refuses_resets.clone());
        let inner = self.inner.open_queue(options)?;
        Ok(Box::new(NarrowQueue { inner, room, worker, refuses_resets, has_refused: false, may_retry: false }))
    }
}

struct NarrowQueue {
    inner: Box<dyn DeviceQueue>,
    room: Arc<[AtomicUsize]>,
    worker: usize,
    refuses_resets: Arc<AtomicBool>,
    has_refused: bool,
    /// Something has ended since it refused.
    may_retry: bool,
}

impl DeviceQueue for NarrowQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.may_retry = false;
        self.has_refused = self.inner.in_flight() >= self.room[self.worker].load(Ordering::Relaxed);
        if self.has_refused { Err(QueueFull(command)) } else { self.inner.submit(command) }
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.inner.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        let before = out.len();
        self.inner.reap(now_ns, out);
        self.may_retry |= self.has_refused && out.len() > before;
    }

    fn next_event_ns(&self) -> Option<u64> {
        if self.may_retry { Some(0) } else { self.inner.next_event_ns() }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        self.inner.abort(tag, now_ns)
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        !self.refuses_resets.load(Ordering::Relaxed) && self.inner.reset(now_ns, given_back)
    }
}

/// The bytes that a read brought.
pub fn bytes(ended: &Ended) -> &[u8] {
    let buffer = ended.completion.buffer.as_ref().expect("a read's end has its buffer");
    &buffer.as_slice()[..ended.asked.length_bytes as usize]
}

/// Whether a read brought nothing but `fill`.
pub fn is_all(ended: &Ended, fill: u8) -> bool {
    ended.completion.status == Status::Ok && bytes(ended).iter().all(|&byte| byte == fill)
}
