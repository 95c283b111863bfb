//! Real workers over shared queues: every request completes once, to the client that asked, with the right bytes; and a
//! drain ends.

#![cfg(feature = "uring")]

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event, MakeClient, Refused};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{FileDevice, FileOptions};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::lost_requests;
use mqfq_blk::{CostModel, FlowId, PolicyKind, PolicyOptions, VSpan};
use mqfq_blkmq::{HardwareQueues, MultiQueue, QueueLayout, Spread, multi_queue, prepare};
use mqfq_nvme::device::{NvmeDevice, NvmeDeviceOptions};
use mqfq_policies::{D2FQ, SFQD};
use mqfq_testing_devices::fault::{Fault, FaultPlan, FaultRule, When};
use mqfq_testing_devices::faulty::Faulty;
use std::sync::{Arc, mpsc};
use std::time::Duration;

const WORKERS: usize = 3;
const BLOCK_BYTES: u32 = 4096;
/// Blocks of one client, each with one request in flight.
const BLOCKS: u64 = 8;
const SIZE_BYTES: u64 = WORKERS as u64 * BLOCKS * BLOCK_BYTES as u64;
/// Fewer than the clients want at once, so that tags are waited for.
const QUEUE_DEPTH: u16 = 5;

/// Writes each of its blocks and reads it back, over and over.
struct Hammer {
    worker: u64,
    /// Requests to make; with `None` until it is drained.
    left: Option<u64>,
    keeps_bytes: bool,
    /// By block: its requests that have completed. Even: the next is a write, odd: the read that checks it.
    rounds: [u64; BLOCKS as usize],
    in_flight: [bool; BLOCKS as usize],
    waiting: Vec<Submission>,
    stopping: bool,
    report: Option<mpsc::Sender<u64>>,
}

impl Hammer {
    fn value(&self, block: usize) -> u8 {
        (self.rounds[block] / 2 * 7 + self.worker * 31 + block as u64 + 1) as u8
    }

    fn next(&mut self, context: &mut dyn Context, block: usize) {
        if self.stopping || self.left == Some(0) {
            return;
        }
        self.left = self.left.map(|left| left - 1);
        let mut buffer = Buffer::new(BLOCK_BYTES as usize);
        let (op, fill) = match self.rounds[block] % 2 {
            0 => (Op::Write, self.value(block)),
            // A fill that must be gone at its end.
            _ => (Op::Read, !self.value(block)),
        };
        buffer.as_mut_slice().fill(fill);
        let submission = Submission {
            flow: FlowId(0),
            op,
            offset_bytes: (self.worker * BLOCKS + block as u64) * u64::from(BLOCK_BYTES),
            length_bytes: BLOCK_BYTES,
            fua: false,
            buffer: Some(buffer),
            cookie: self.worker << 32 | block as u64,
        };
        assert!(!std::mem::replace(&mut self.in_flight[block], true));
        self.submit(context, submission);
    }

    fn submit(&mut self, context: &mut dyn Context, submission: Submission) {
        if let Err(Refused::TenantFull(submission)) = context.submit(DeviceIndex(0), submission) {
            self.waiting.push(submission);
        }
    }

    fn report_if_over(&mut self) {
        if self.in_flight.contains(&true) || !(self.stopping || self.left == Some(0)) {
            return;
        }
        if let Some(report) = self.report.take() {
            report.send(self.rounds.iter().sum()).expect("the test waits for it");
        }
    }
}

impl Client for Hammer {
    fn start(&mut self, context: &mut dyn Context) {
        (0..BLOCKS as usize).for_each(|block| self.next(context, block));
    }

    fn event(&mut self, _: &mut dyn Context, _: Event) {
        unreachable!("it asks for no event")
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        assert_eq!(completion.status, Status::Ok);
        assert_eq!(completion.cookie >> 32, self.worker, "another client's completion");
        let block = completion.cookie as u32 as usize;
        assert!(std::mem::take(&mut self.in_flight[block]), "block {block} completed twice");
        if completion.op == Op::Read && self.keeps_bytes {
            let buffer = completion.buffer.expect("a read's buffer comes back");
            let value = self.value(block);
            assert!(buffer.as_slice()[..BLOCK_BYTES as usize].iter().all(|&byte| byte == value), "block {block}");
        }
        self.rounds[block] += 1;
        self.next(context, block);
        self.report_if_over();
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        for submission in std::mem::take(&mut self.waiting) {
            self.submit(context, submission);
        }
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.stopping = true;
        for submission in std::mem::take(&mut self.waiting) {
            self.in_flight[submission.cookie as u32 as usize] = false;
        }
        self.report_if_over();
    }

    fn is_done(&self) -> bool {
        self.report.is_none()
    }
}

fn options(device: Arc<dyn MultiQueue>, kind: PolicyKind, layout: QueueLayout) -> EngineOptions {
    let limits = StageLimits { requests_max: BLOCKS as u32 - 2, bytes_max: 1 << 20 };
    let flow = FlowOptions { limits, ..FlowOptions::new("hammer") };
    let policy = PolicyOptions { kind, depth: 4, window: VSpan::from_bytes(64 << 10), ..PolicyOptions::new(kind) };
    let device = DeviceOptions {
        grouping: Default::default(),
        name: "d".to_owned(),
        device: device.clone(),
        policy,
        prepare: Some(prepare(device, layout)),
        queue_depth: QUEUE_DEPTH,
        flows: vec![flow],
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    };
    EngineOptions { workers: WORKERS, pin: false, spin_ns: 50_000, devices: vec![device] }
}

/// A client on each worker; the channel yields each one's number of completed requests.
fn attach(engine: &Engine, requests: Option<u64>, keeps_bytes: bool) -> mpsc::Receiver<u64> {
    let (sender, reports) = mpsc::channel();
    for worker in 0..WORKERS {
        let report = Some(sender.clone());
        let make: MakeClient = Box::new(move || {
            Box::new(Hammer {
                worker: worker as u64,
                left: requests,
                keeps_bytes,
                rounds: [0; BLOCKS as usize],
                in_flight: [false; BLOCKS as usize],
                waiting: Vec::new(),
                stopping: false,
                report,
            })
        });
        engine.attach_to(worker, make);
    }
    reports
}

fn layouts() -> Vec<QueueLayout> {
    use Spread::{PerCore, PerSocket, Single};
    let mut layouts: Vec<QueueLayout> = [
        (PerCore, PerCore),
        (PerCore, PerSocket),
        (PerCore, Single),
        (PerSocket, PerSocket),
        (Single, PerCore),
        (Single, Single),
    ]
    .map(|(software, hardware)| QueueLayout::mq(software, hardware))
    .into();
    layouts.push(QueueLayout { hardware: HardwareQueues::Count(2), ..QueueLayout::default() });
    layouts.extend([QueueLayout::SQ, QueueLayout::RAW]);
    layouts
}

/// Every layout that the policy takes.
fn each_completes_once(device: &dyn Fn() -> Arc<dyn MultiQueue>, kind: PolicyKind, requests: u64, keeps_bytes: bool) {
    for layout in layouts().into_iter().filter(|layout| layout.check_policy(kind).is_ok()) {
        let engine = Engine::start(options(device(), kind, layout)).unwrap();
        let reports = attach(&engine, Some(requests), keeps_bytes);
        let counts: Vec<u64> = reports.iter().take(WORKERS).collect();
        assert_eq!(counts, [requests; WORKERS], "{kind} over {layout:?}");
        assert!(engine.drain(Duration::from_secs(60)), "{kind} over {layout:?}");
        let stats = engine.stats();
        let dispatched: u64 = stats.devices[0].hctxs.iter().map(|hctx| hctx.dispatched).sum();
        assert_eq!(dispatched, requests * WORKERS as u64, "{kind} over {layout:?}");
    }
    assert_eq!(lost_requests(), 0);
}

fn memory() -> Arc<dyn MultiQueue> {
    Arc::new(MemoryDevice::new(SIZE_BYTES))
}

fn nvme() -> Arc<dyn MultiQueue> {
    let options =
        NvmeDeviceOptions { preset: "nvmf-dram", size_bytes: SIZE_BYTES, seed: 3, ..NvmeDeviceOptions::default() };
    Arc::new(NvmeDevice::new(options).unwrap())
}

fn fault() -> Arc<dyn MultiQueue> {
    let rules = vec![FaultRule::any(When::Chance(5_000), Fault::Delay { ns: 20_000 })];
    Arc::new(Faulty::new(memory(), FaultPlan { seed: 1, rules, reorder: 3, ..FaultPlan::default() }))
}

#[test]
fn every_request_over_memory_completes_once_with_its_bytes() {
    each_completes_once(&memory, PolicyKind::None, 3_000, true);
    each_completes_once(&memory, PolicyKind::Mqfq, 3_000, true);
}

#[test]
fn every_request_over_null_completes_once() {
    each_completes_once(&|| Arc::new(NullDevice::new(SIZE_BYTES)), PolicyKind::None, 3_000, false);
}

#[test]
fn every_request_over_a_drive_completes_once_with_its_bytes() {
    each_completes_once(&nvme, PolicyKind::None, 600, true);
    each_completes_once(&nvme, PolicyKind::Mqfq, 600, true);
}

#[test]
fn every_request_over_sets_of_class_queues_completes_once_with_its_bytes() {
    // A set for each of three workers, two for three, and one.
    for (queue_pairs, hardware) in [
        (9, HardwareQueues::default()),
        (6, HardwareQueues::default()),
        (6, HardwareQueues::Count(1)),
        (3, HardwareQueues::default()),
    ] {
        let drive = NvmeDeviceOptions {
            preset: "zssd",
            size_bytes: SIZE_BYTES,
            queue_pairs_max: Some(queue_pairs),
            ..NvmeDeviceOptions::default()
        };
        let layout = QueueLayout { hardware, ..QueueLayout::default() };
        let device = Arc::new(NvmeDevice::new(drive).unwrap());
        let engine = Engine::start(options(device, D2FQ, layout)).unwrap();
        let reports = attach(&engine, Some(600), true);
        assert_eq!(reports.iter().take(WORKERS).collect::<Vec<u64>>(), [600; WORKERS], "{queue_pairs}, {hardware:?}");
        // The policy changes over them while they are full, to one that knows no classes and back.
        let reports = attach(&engine, None, true);
        for kind in [PolicyKind::Mqfq, PolicyKind::None, D2FQ] {
            engine.set_policy(0, PolicyOptions::new(kind), Duration::from_secs(60)).unwrap();
        }
        assert!(engine.drain(Duration::from_secs(60)), "{queue_pairs}, {hardware:?}");
        assert_eq!(reports.iter().count(), WORKERS, "{queue_pairs}, {hardware:?}");
    }
    assert_eq!(lost_requests(), 0);
}

#[test]
fn every_request_over_delays_and_reordering_completes_once_with_its_bytes() {
    each_completes_once(&fault, PolicyKind::None, 600, true);
    each_completes_once(&fault, SFQD, 600, true);
}

#[test]
fn a_drain_ends_with_requests_under_way_over_every_layout() {
    for device in [memory, nvme] {
        for layout in layouts() {
            let engine = Engine::start(options(device(), PolicyKind::None, layout)).unwrap();
            let reports = attach(&engine, None, true);
            // Asking for counters is answered between turns, so all of them are at work then.
            drop(engine.stats());
            assert!(engine.drain(Duration::from_secs(60)), "{layout:?}");
            assert_eq!(reports.iter().count(), WORKERS, "{layout:?}");
        }
    }
    assert_eq!(lost_requests(), 0);
}

#[test]
fn a_policy_changes_over_shared_queues_and_not_without_a_block_layer() {
    let patience = Duration::from_secs(60);
    // No server begins with a policy over shared software queues that stages by itself, but each keeps its promises.
    for layout in [QueueLayout::mq(Spread::PerCore, Spread::Single), QueueLayout::SQ] {
        let engine = Engine::start(options(memory(), PolicyKind::None, layout)).unwrap();
        let reports = attach(&engine, None, true);
        for kind in [PolicyKind::Mqfq, SFQD, PolicyKind::None] {
            engine.set_policy(0, PolicyOptions { depth: 4, ..PolicyOptions::new(kind) }, patience).unwrap();
        }
        assert!(engine.drain(patience), "{layout:?}");
        assert_eq!(reports.iter().count(), WORKERS, "{layout:?}");
    }
    let engine = Engine::start(options(memory(), PolicyKind::None, QueueLayout::RAW)).unwrap();
    let refused = engine.set_policy(0, PolicyOptions::new(PolicyKind::Mqfq), patience);
    let why = "device d: its path has nowhere to keep requests while a policy changes";
    assert_eq!(refused.unwrap_err(), why);
}

#[test]
fn a_file_is_not_shared_and_other_layouts_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let file = || FileOptions { size_bytes: Some(1 << 20), create: true, ..FileOptions::new(&path) };
    let refusal = |device, kind, layout| Engine::start(options(device, kind, layout)).err().expect("refused");
    let single = QueueLayout::mq(Spread::PerCore, Spread::Single);
    let file: Arc<dyn Device> = Arc::new(FileDevice::open(&file()).unwrap());
    assert_eq!(
        refusal(multi_queue(&file), PolicyKind::None, single),
        "device d: its queues belong to one worker each: allowed is one hardware queue per core"
    );
    assert_eq!(
        refusal(memory(), PolicyKind::Mqfq, QueueLayout::RAW),
        "device d: block layer raw has no queue, and policy mqfq stages requests per worker: allowed is policy none"
    );
    assert_eq!(
        refusal(memory(), D2FQ, QueueLayout::default()),
        "device d: it has no weighted round robin among classes of queues"
    );
    let many = QueueLayout { hardware: HardwareQueues::Count(4), ..QueueLayout::default() };
    assert_eq!(
        refusal(memory(), PolicyKind::None, many),
        "device d: 4 hardware queues are out of range, allowed is 1 to 3 with 3 workers on a device of 1024 queues"
    );
}
