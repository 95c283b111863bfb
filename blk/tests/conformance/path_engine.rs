//! Timeouts, resets and parts on real threads: an engine over a device that forgets commands, and one over a
//! file.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::split::Split;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::stats::HctxStats;
use mqfq_blk::{CostModel, FlowId, PolicyKind, PolicyOptions, PriorityClass, Weight};
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, OnAbort, OnReset, When};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BLOCK: u32 = 4096;
const CLIENTS: usize = 4;
/// Requests of each client: first it writes its blocks, then it reads them.
const BLOCKS: u64 = 400;
/// Requests in one go, next to each other.
const BATCH: u64 = 16;

/// Writes its blocks, batch by batch, then reads them; tells how many requests ended with which status, or with wrong
/// bytes.
struct WriteThenRead {
    number: u64,
    /// Length of each block.
    length_bytes: u32,
    submitted: u64,
    in_flight: u64,
    ends: [u64; 3],
    /// Blocks whose write failed.
    unknown: Vec<bool>,
    report: Option<mpsc::Sender<[u64; 3]>>,
}

impl WriteThenRead {
    /// Contents of a block: another byte in each KiB.
    fn bytes_of(&self, block: u64) -> Vec<u8> {
        let mut bytes = vec![block as u8 ^ self.number as u8; self.length_bytes as usize];
        bytes.chunks_mut(1024).zip(0..).for_each(|(kib, n)| kib.fill(kib[0].wrapping_add(n)));
        bytes
    }

    fn next_batch(&mut self, context: &mut dyn Context) {
        for _ in 0..BATCH.min(2 * BLOCKS - self.submitted) {
            let (block, op) = (self.submitted % BLOCKS, if self.submitted < BLOCKS { Op::Write } else { Op::Read });
            let mut buffer = Buffer::new(self.length_bytes as usize);
            buffer.as_mut_slice().fill(0xee);
            if op == Op::Write {
                buffer.as_mut_slice()[..self.length_bytes as usize].copy_from_slice(&self.bytes_of(block));
            }
            let submission = Submission {
                flow: FlowId(self.number as u32 % 2),
                op,
                offset_bytes: (self.number * BLOCKS + block) * u64::from(self.length_bytes),
                length_bytes: self.length_bytes,
                fua: false,
                buffer: Some(buffer),
                cookie: block,
            };
            context.submit(DeviceIndex(0), submission).expect("within the bound");
            (self.submitted, self.in_flight) = (self.submitted + 1, self.in_flight + 1);
        }
    }
}

impl Client for WriteThenRead {
    fn start(&mut self, context: &mut dyn Context) {
        self.next_batch(context);
    }

    fn event(&mut self, _context: &mut dyn Context, event: Event) {
        unreachable!("asked for no event, got {event:?}");
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let block = completion.cookie as usize;
        let bytes = completion.buffer.expect("it comes back");
        let is_right = bytes.as_slice()[..self.length_bytes as usize] == self.bytes_of(completion.cookie);
        match completion.status {
            Status::Ok if completion.op == Op::Read && !is_right && !self.unknown[block] => self.ends[2] += 1,
            Status::Ok => self.ends[0] += 1,
            Status::TimedOut => {
                self.ends[1] += 1;
                self.unknown[block] |= completion.op == Op::Write;
            }
            other => panic!("{other}"),
        }
        self.in_flight -= 1;
        if self.in_flight > 0 {
            return;
        }
        self.next_batch(context);
        if self.in_flight == 0
            && let Some(report) = self.report.take()
        {
            report.send(self.ends).expect("the test waits for it");
        }
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, _context: &mut dyn Context) {}

    fn is_done(&self) -> bool {
        self.report.is_none()
    }
}

/// Runs all clients on two workers. Sums of how requests ended, and the counters.
fn run(kind: PolicyKind, device: Arc<dyn Device>, path: PathOptions) -> ([u64; 3], HctxStats) {
    run_with(kind, device, path, BLOCK)
}

/// Runs with blocks of this length.
fn run_with(kind: PolicyKind, device: Arc<dyn Device>, path: PathOptions, length_bytes: u32) -> ([u64; 3], HctxStats) {
    let flow = |name: &str| FlowOptions {
        name: name.into(),
        weight: Weight::DEFAULT,
        class: PriorityClass::default(),
        limits: StageLimits::DEFAULT,
        goal: None,
    };
    let device = DeviceOptions {
        grouping: Default::default(),
        name: "device".into(),
        device,
        policy: PolicyOptions::new(kind),
        prepare: None,
        queue_depth: 64,
        flows: vec![flow("a"), flow("b")],
        cost: CostModel::FLAT,
        path,
    };
    let options = EngineOptions { workers: 2, pin: false, spin_ns: 0, devices: vec![device] };
    let engine = Engine::start(options).unwrap();
    let (sender, ends) = mpsc::channel();
    for number in 0..CLIENTS as u64 {
        let report = Some(sender.clone());
        let unknown = vec![false; BLOCKS as usize];
        let client = WriteThenRead { number, length_bytes, submitted: 0, in_flight: 0, ends: [0; 3], unknown, report };
        engine.attach_to(number as usize % 2, Box::new(move || Box::new(client)));
    }
    let mut sum = [0; 3];
    for _ in 0..CLIENTS {
        let ends = ends.recv().expect("the workers live");
        sum.iter_mut().zip(ends).for_each(|(sum, end)| *sum += end);
    }
    let mut stats = HctxStats::default();
    engine.stats().devices[0].hctxs.iter().for_each(|hctx| stats.merge(hctx));
    assert!(engine.drain(Duration::from_secs(60)), "every request has ended");
    (sum, stats)
}

const REQUESTS: u64 = CLIENTS as u64 * BLOCKS * 2;

#[test]
fn a_device_that_forgets_commands_holds_nobody_up_for_ever() {
    // Policies that may run on a device without class queues, as memory is.
    for kind in mqfq_policies::STAGED {
        for (on_abort, on_reset) in
            [(OnAbort::Ends { after_ns: 0 }, OnReset::Refused), (OnAbort::Ignored, OnReset::Works)]
        {
            let rules =
                vec![FaultRule::any(When::Nth(100), Fault::Forget), FaultRule::any(When::Nth(900), Fault::Lose)];
            let plan = FaultPlan { seed: 1, rules, on_abort, on_reset, ..FaultPlan::default() };
            let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(64 << 20)), plan));
            // Memory answers at once; but a worker of a busy machine may be stopped for longer than any timeout, and
            // then finds that much has expired. So timeouts are not counted, only checked to be the failures.
            let path = PathOptions { timeout_ns: 20_000_000, ..PathOptions::default() };
            let (ends, stats) = run(kind, device.clone(), path);
            assert_eq!((ends.iter().sum::<u64>(), ends[2]), (REQUESTS, 0), "{kind}: each ends once, with its bytes");
            // A reset for the first may save the second.
            let least = if on_reset == OnReset::Works { 1 } else { 2 };
            assert!((least..=stats.timeouts).contains(&ends[1]), "{kind}: {ends:?} {stats:?}");
            assert_eq!(stats.resets > 0, on_reset == OnReset::Works, "{kind}: {stats:?}");
            assert_eq!((device.forgotten(), stats.stuck, stats.late_completions), (0, 0, 0), "{kind}");
        }
    }
}

#[test]
fn requests_of_a_file_in_parts_are_the_same_bytes_aligned_or_not() {
    // The second length is no multiple of a page: parts meet within one, and O_DIRECT reads and writes around them.
    let cases = [(Direct::Auto, 5 * BLOCK), (Direct::Never, 5 * BLOCK), (Direct::Auto, 20 * 1024 + 512)];
    for (direct, length_bytes) in cases {
        let folder = tempfile::tempdir().unwrap();
        let options = FileOptions {
            size_bytes: Some(64 << 20),
            direct,
            create: true,
            ..FileOptions::new(folder.path().join("disk"))
        };
        let device = Arc::new(FileDevice::open(&options).expect("free, and in a folder of ours"));
        let path = PathOptions { split: Split::Bytes(2 * BLOCK), ..PathOptions::default() };
        let (ends, stats) = run_with(PolicyKind::Mqfq, device, path, length_bytes);
        assert_eq!(ends, [REQUESTS, 0, 0], "{direct:?} {length_bytes}");
        // Some requests that begin within a page have a part more than the three of the others.
        assert_eq!((stats.split, stats.dispatched), (REQUESTS, stats.parts), "{stats:?}");
        assert!((3 * REQUESTS..=4 * REQUESTS).contains(&stats.parts), "{stats:?}");
    }
}
