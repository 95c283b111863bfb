//! The data path takes no memory: not a context's submit, run and reap, and not the loop of a worker around it.
//! A flow's first completion takes none either: its counters lie in a piece that was taken with the context. Policies
//! have `sched/tests/all/no_allocation.rs`.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::device::{Device, QueueOptions};
use mqfq_blk::hctx::{Full, HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Submission};
use mqfq_blk::split::Split;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::tuning::Tuning;
use mqfq_blk::{CostModel, FlowId, HctxId, OwnOptions, PolicyKind, PolicyOptions, Topology, VSpan, Weight};
use mqfq_policies::BfqOptions;
use mqfq_sched::policy::{AnyPolicy, Policy};
use mqfq_sched::write_cost::WriteCost;
use mqfq_testing::allocations::{Counting, allocations};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HCTXS: u16 = 2;
/// Requests that each flow may stage on each context.
const STAGED_MAX: u32 = 4;
const QUEUE_DEPTH: u16 = 16;
const REQUEST_BYTES: u32 = 4096;

fn read(flow: u32, buffer: Buffer) -> Submission {
    Submission {
        flow: FlowId(flow),
        op: Op::Read,
        offset_bytes: 0,
        length_bytes: REQUEST_BYTES,
        fua: false,
        buffer: Some(buffer),
        cookie: 0,
    }
}

/// A policy that does not wait for a flow's next request while others have some.
fn at_once(kind: PolicyKind) -> PolicyOptions {
    let bfq = BfqOptions { slice_idle_ns: 0, ..BfqOptions::DEFAULT };
    PolicyOptions { own: OwnOptions::of(&bfq), ..PolicyOptions::new(kind) }
}

fn contexts(options: &PolicyOptions, flows: u32, split: Split) -> Vec<HwCtx<AnyPolicy>> {
    let path = PathOptions { split, ..PathOptions::default() };
    contexts_on(options, flows, QUEUE_DEPTH, path)
}

/// Contexts on a device whose queues take `device_depth` commands.
fn contexts_on(options: &PolicyOptions, flows: u32, device_depth: u16, path: PathOptions) -> Vec<HwCtx<AnyPolicy>> {
    let weights = vec![Weight::DEFAULT; flows as usize];
    let policy = Arc::new(AnyPolicy::new(options, &Topology::flat(usize::from(HCTXS)), &weights).unwrap());
    let device = NullDevice::new(1 << 20);
    let cost = Arc::new(WriteCost::new(CostModel::FLAT, HCTXS.into()));
    let tuning = Tuning::new(options, usize::from(HCTXS));
    let context = |n| {
        let queue = QueueOptions {
            hctx: HctxId(n),
            depth: device_depth,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(|hctx| panic!("{hctx:?} interrupted by a device that has nothing to say")),
        };
        let mut context = HwCtx::new(HwCtxOptions {
            id: HctxId(n),
            policy: policy.clone(),
            device: device.open_queue(queue).unwrap(),
            queue_depth: QUEUE_DEPTH,
            // A request may be cut into at most a quarter of the bound.
            limits: vec![
                StageLimits {
                    requests_max: if path.split == Split::Off { STAGED_MAX } else { 12 },
                    bytes_max: 1 << 20
                };
                flows as usize
            ],
            cost: CostModel::FLAT,
            path: path.for_device(&device.info()),
        });
        context.set_tuning(tuning.clone(), 0);
        context.with_write_cost(cost.clone())
    };
    (0..HCTXS).map(context).collect()
}

/// Completes one request of each flow on each context. Returns the allocations.
fn complete_one_of_each(contexts: &mut [HwCtx<AnyPolicy>], flows: u32) -> u64 {
    let mut spare = Some(Buffer::new(REQUEST_BYTES as usize));
    let mut completions: Vec<(Owner, Completion)> = Vec::with_capacity(1);
    let mut kick = |hctx: HctxId| panic!("{hctx:?} has nothing staged, yet it is kicked");
    let before = allocations();
    for context in contexts {
        for flow in 0..flows {
            let buffer = spare.take().expect("the last request has completed");
            context.submit(Owner(0), read(flow, buffer), 0, &mut kick).expect("nothing else is staged");
            context.run(0, &mut kick);
            context.reap(0, &mut kick, &mut completions);
            spare = completions.pop().expect("alone on the device, it is dispatched at once").1.buffer;
        }
    }
    allocations() - before
}

/// Two contexts whose flows fill their bound, are refused, and are told of room only now and then, as by a worker that
/// makes several rounds in one turn.
fn churn(options: &PolicyOptions, flows: u32) {
    let mut contexts = contexts(options, flows, Split::Off);
    let mut buffers: Vec<Buffer> =
        (0..64 + STAGED_MAX * flows * u32::from(HCTXS)).map(|_| Buffer::new(REQUEST_BYTES as usize)).collect();
    let mut completions: Vec<(Owner, Completion)> = Vec::with_capacity(usize::from(QUEUE_DEPTH));
    let first = complete_one_of_each(&mut contexts, flows);
    assert_eq!(first, 0, "{options:?}: what first completions took");
    let mut kicked = [false; HCTXS as usize];
    let (mut completed, mut refused, mut told) = (0u64, 0u64, 0u64);
    let before = allocations();
    for round in 0..6000u32 {
        let n = kicked.iter().position(|&kicked| kicked).unwrap_or(round as usize % contexts.len());
        kicked[n] = false;
        let mut kick = |hctx: HctxId| kicked[hctx.index()] = true;
        let context = &mut contexts[n];
        let now_ns = u64::from(round) * 100;
        for next in 0..20 {
            let Some(buffer) = buffers.pop() else { break };
            let flow = (round / 7 + next / 5) % flows;
            if let Err(Full(back)) = context.submit(Owner(0), read(flow, buffer), now_ns, &mut kick) {
                refused += 1;
                buffers.extend(back.buffer);
            }
        }
        while context.run(now_ns, &mut kick).again {}
        context.reap(now_ns, &mut kick, &mut completions);
        for (_, completion) in completions.drain(..) {
            completed += 1;
            buffers.extend(completion.buffer);
        }
        if round % 16 < u32::from(HCTXS) {
            told += context.take_room().count() as u64;
        }
    }
    let allocated = allocations() - before;
    let seen = format!("{completed} completed, {refused} refused, {told} told of room");
    assert_eq!(allocated, 0, "{options:?}, {flows} flows: {seen}");
    assert!(completed > 10_000 && refused > 1_000 && told > 50, "{options:?}, {flows} flows, too rarely: {seen}");
}

#[test]
fn a_context_takes_no_memory_from_its_first_request_on() {
    for kind in mqfq_policies::ALL {
        for flows in [1, 8, 1000] {
            let options = PolicyOptions { depth: 8, window: VSpan::from_bytes(16 << 10), ..at_once(kind) };
            churn(&options, flows);
            churn(&options.relaxed(usize::from(HCTXS)), flows);
            if kind.tunes_depth() {
                churn(&PolicyOptions { depth_auto: true, ..options }.relaxed(usize::from(HCTXS)), flows);
            }
        }
    }
}

#[test]
fn parts_take_no_memory_once_as_many_were_under_way() {
    // Each round: both flows stage a read of four blocks and one of a block; with auto, every end is counted.
    for (kind, split) in
        mqfq_policies::ALL.into_iter().flat_map(|kind| [Split::Bytes(4096), Split::Auto].map(|s| (kind, s)))
    {
        let mut context = contexts(&at_once(kind), 2, split).remove(0);
        let mut buffers: Vec<Buffer> = (0..4).map(|_| Buffer::new(4 * REQUEST_BYTES as usize)).collect();
        let mut completions: Vec<(Owner, Completion)> = Vec::with_capacity(8);
        let mut kick = |hctx: HctxId| panic!("{hctx:?} has nothing staged, yet it is kicked");
        let mut before = 0;
        for round in 0..400u64 {
            if round == 10 {
                before = allocations();
            }
            for (flow, length_bytes) in [(0, 3 * REQUEST_BYTES), (1, 3 * REQUEST_BYTES), (0, 1), (1, 1)] {
                let buffer = buffers.pop().expect("all are back");
                let submission = Submission { length_bytes, ..read(flow, buffer) };
                context.submit(Owner(0), submission, round, &mut kick).expect("within the bound");
            }
            while completions.len() < 4 {
                context.run(round, &mut kick);
                context.reap(round, &mut kick, &mut completions);
            }
            buffers.extend(completions.drain(..).filter_map(|(_, completion)| completion.buffer));
        }
        assert_eq!(allocations() - before, 0, "{kind}, split {split}");
        let stats = context.stats();
        assert_eq!(
            (stats.split, stats.parts),
            if split == Split::Auto { (0, 0) } else { (800, 2400) },
            "{kind}, {split}"
        );
    }
}

#[test]
fn ends_of_cut_requests_take_no_memory_not_even_the_first_ones() {
    // Each of thirty flows has six reads of two parts under way: in a context that was made for them, and in one that
    // was made for one flow and has grown. The first time this thread has not kept parts of lent buffers yet.
    const FLOWS: u32 = 30;
    let options = at_once(PolicyKind::Mqfq);
    let mut kick = |hctx: HctxId| panic!("{hctx:?} has nothing staged, yet it is kicked");
    for (flows_before, is_first) in [(FLOWS, true), (FLOWS, false), (1, false)] {
        let split = Split::Bytes(REQUEST_BYTES);
        let mut context = contexts(&options, flows_before, split).remove(0);
        if flows_before < FLOWS {
            let limits = vec![StageLimits { requests_max: 12, bytes_max: 1 << 20 }; FLOWS as usize];
            let weights = vec![Weight::DEFAULT; FLOWS as usize];
            let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(usize::from(HCTXS)), &weights).unwrap());
            let queue = policy.open_queue(HctxId(0), HwCtx::<AnyPolicy>::capacity_requests(&limits));
            context.freeze(0);
            context.grow(&limits);
            context.thaw(Some((policy, queue)), 0, &mut kick);
            (0..FLOWS).for_each(|flow| context.set_limits(FlowId(flow), limits[flow as usize]));
        }
        let reads = 6 * FLOWS as usize;
        for flow in (0..6).flat_map(|_| 0..FLOWS) {
            let length_bytes = 2 * REQUEST_BYTES;
            let submission = Submission { length_bytes, ..read(flow, Buffer::new(length_bytes as usize)) };
            context.submit(Owner(0), submission, 0, &mut kick).expect("within the bound");
        }
        let mut completions: Vec<(Owner, Completion)> = Vec::with_capacity(reads);
        let before = allocations();
        while completions.len() < reads {
            context.run(0, &mut kick);
            context.reap(0, &mut kick, &mut completions);
        }
        let taken = allocations() - before;
        assert!(taken == 0 || is_first, "made for {flows_before}: {taken}");
        assert_eq!(context.stats().parts, 2 * reads as u64);
    }
}

#[test]
fn a_device_that_refuses_costs_no_memory_where_nothing_times_out() {
    for kind in mqfq_policies::ALL {
        let mut context = contexts_on(&at_once(kind), 2, 3, PathOptions::TIMELESS).remove(0);
        let mut completions: Vec<(Owner, Completion)> = Vec::with_capacity(8);
        let mut buffers: Vec<Buffer> = (0..8).map(|_| Buffer::new(REQUEST_BYTES as usize)).collect();
        let mut kick = |hctx: HctxId| panic!("{hctx:?} has nothing staged, yet it is kicked");
        let (before, mut blocked) = (allocations(), 0);
        for round in 0..20u64 {
            for flow in (0..4).flat_map(|_| 0..2) {
                let buffer = buffers.pop().expect("all are back");
                context.submit(Owner(0), read(flow, buffer), round, &mut kick).expect("within the bound");
            }
            while buffers.len() < 8 {
                context.run(round, &mut kick);
                blocked += usize::from(context.is_blocked());
                context.reap(round, &mut kick, &mut completions);
                buffers.extend(completions.drain(..).filter_map(|(_, completion)| completion.buffer));
            }
        }
        assert_eq!(allocations() - before, 0, "{kind}");
        assert!(blocked >= 20, "{kind}: {blocked}");
    }
}

#[cfg(feature = "uring")]
mod worker {
    use super::{REQUEST_BYTES, allocations, read};
    use mqfq_blk::buffer::Buffer;
    use mqfq_blk::client::{Client, Context, DeviceIndex, Event};
    use mqfq_blk::device::Device;
    use mqfq_blk::device::null::NullDevice;
    use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
    use mqfq_blk::foreign::ForeignMemory;
    use mqfq_blk::path_options::PathOptions;
    use mqfq_blk::request::Completion;
    use mqfq_blk::stage::StageLimits;
    use mqfq_blk::{CostModel, PolicyKind, PolicyOptions, PriorityClass, Weight};
    use mqfq_nvme::device::{NvmeDevice, NvmeDeviceOptions};
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};

    const WORKERS: usize = 2;
    const FLOWS: u32 = 2;
    const CLIENTS: usize = WORKERS * FLOWS as usize;
    const IN_FLIGHT: u32 = 32;
    /// Completions of a client, once all are there, before the count begins: clients bring buffers.
    const WARM_UP: u64 = 1_000;
    const COUNTED: u64 = 50_000;

    /// Keeps its requests in flight and reports its worker's thread's allocations meanwhile.
    struct Counter {
        flow: u32,
        /// Count that all clients share.
        started: Arc<AtomicUsize>,
        completed: u64,
        in_flight: u32,
        before: u64,
        draining: bool,
        /// Bounded, because a channel without a bound allocates as it is written to.
        report: mpsc::SyncSender<u64>,
    }

    impl Counter {
        fn submit(&mut self, context: &mut dyn Context, buffer: Buffer) {
            self.in_flight += 1;
            context.submit(DeviceIndex(0), read(self.flow, buffer)).expect("the bound is not below what is in flight");
        }
    }

    impl Client for Counter {
        fn start(&mut self, context: &mut dyn Context) {
            (0..IN_FLIGHT).for_each(|_| self.submit(context, Buffer::new(REQUEST_BYTES as usize)));
            self.started.fetch_add(1, SeqCst);
        }

        fn event(&mut self, _: &mut dyn Context, event: Event) {
            unreachable!("this client asked for no socket operation, yet one ended: {event:?}");
        }

        fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
            self.in_flight -= 1;
            // SeqCst: nothing here is about speed.
            self.completed += u64::from(self.started.load(SeqCst) == CLIENTS);
            if self.completed == WARM_UP {
                self.before = allocations();
            }
            if self.completed == WARM_UP + COUNTED {
                self.report.send(allocations() - self.before).expect("the test waits for it");
            }
            // On and on, so that the other worker's client does not end up alone: until the engine drains.
            if !self.draining {
                self.submit(context, completion.buffer.expect("a read brings its buffer back"));
            }
        }

        fn turn_end(&mut self, _: &mut dyn Context) {}

        fn room(&mut self, _: &mut dyn Context) {}

        fn drain(&mut self, _: &mut dyn Context) {
            self.draining = true;
        }

        fn is_done(&self) -> bool {
            self.in_flight == 0
        }
    }

    /// Two flows on a device that completes at once, or nearly.
    fn engine(policy: PolicyOptions, workers: usize) -> Engine {
        let limits = StageLimits { requests_max: IN_FLIGHT, bytes_max: 1 << 20 };
        let flow = |name: &str| FlowOptions {
            name: name.into(),
            weight: Weight::DEFAULT,
            class: PriorityClass::default(),
            limits,
            goal: None,
        };
        // A direct policy needs a device with class queues.
        let drive = NvmeDeviceOptions { preset: "zssd", size_bytes: 1 << 20, ..NvmeDeviceOptions::default() };
        let device: Arc<dyn Device> = match policy.kind.is_direct() {
            true => Arc::new(NvmeDevice::new(drive).unwrap()),
            false => Arc::new(NullDevice::new(1 << 20)),
        };
        Engine::start(EngineOptions {
            workers,
            pin: false,
            spin_ns: 0,
            devices: vec![DeviceOptions {
                grouping: Default::default(),
                name: "null".into(),
                device,
                policy,
                prepare: None,
                queue_depth: 64,
                flows: vec![flow("a"), flow("b")],
                cost: CostModel::FLAT,
                path: PathOptions::default(),
            }],
        })
        .unwrap()
    }

    #[test]
    fn a_worker_takes_no_memory_once_it_is_warm() {
        // Policies that may run on a device without class queues, as null is.
        let faithful = mqfq_policies::STAGED.map(|kind| PolicyOptions { depth: 16, ..PolicyOptions::new(kind) });
        let relaxed = faithful.map(|options| options.relaxed(WORKERS));
        for policy in faithful.into_iter().chain(relaxed) {
            let engine = engine(policy, WORKERS);
            let (report, allocated) = mpsc::sync_channel(CLIENTS);
            let started = Arc::new(AtomicUsize::new(0));
            for worker in 0..WORKERS {
                for flow in 0..FLOWS {
                    let (report, started) = (report.clone(), started.clone());
                    let client = move || {
                        let (completed, in_flight, before, draining) = (0, 0, 0, false);
                        Counter { flow, started, completed, in_flight, before, draining, report }
                    };
                    engine.attach_to(worker, Box::new(move || Box::new(client())));
                }
            }
            drop(report);
            // Four clients on two threads: each reports the allocations of its whole thread.
            assert_eq!(allocated.iter().take(CLIENTS).collect::<Vec<u64>>(), [0; CLIENTS], "{policy:?}");
            assert!(engine.drain(std::time::Duration::from_secs(60)), "{policy:?}: clients were left");
        }
    }

    /// Kicks itself, and at each kick reads into foreign memory.
    struct Guest {
        kick: OwnedFd,
        memory: Arc<ForeignMemory>,
        completed: u64,
        kicks: bool,
        before: u64,
        is_done: bool,
        report: mpsc::SyncSender<u64>,
    }

    impl Client for Guest {
        fn start(&mut self, context: &mut dyn Context) {
            context.count(self.kick.as_raw_fd(), 0);
            context.signal(self.kick.as_raw_fd(), 0);
        }

        fn event(&mut self, context: &mut dyn Context, event: Event) {
            let Event::Counted { result, .. } = event else { return };
            assert_eq!(result, Ok(1));
            let buffer = self.memory.buffer(0, REQUEST_BYTES as usize).expect("inside");
            context.submit(DeviceIndex(0), read(0, buffer)).expect("one at a time");
            context.count(self.kick.as_raw_fd(), 0);
        }

        fn completed(&mut self, _: &mut dyn Context, completion: Completion) {
            assert!(completion.buffer.is_some_and(|buffer| buffer.is_foreign()));
            self.completed += 1;
            self.kicks = true;
            if self.completed == WARM_UP {
                self.before = allocations();
            }
            if self.completed == 4 * WARM_UP {
                self.is_done = true;
                self.report.send(allocations() - self.before).expect("the test waits for it");
            }
        }

        fn turn_end(&mut self, context: &mut dyn Context) {
            if std::mem::take(&mut self.kicks) {
                context.signal(self.kick.as_raw_fd(), 0);
            }
        }

        fn room(&mut self, _: &mut dyn Context) {}

        fn drain(&mut self, _: &mut dyn Context) {
            self.is_done = true;
        }

        fn is_done(&self) -> bool {
            self.is_done
        }
    }

    #[test]
    fn a_client_without_a_socket_takes_no_memory_once_it_is_warm() {
        let engine = engine(PolicyOptions::new(PolicyKind::Mqfq), 1);
        let file = tempfile::tempfile().unwrap();
        file.set_len(REQUEST_BYTES.into()).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, REQUEST_BYTES as usize).unwrap();
        // SAFETY: eventfd takes no pointers; a non-negative result is a descriptor that is not shared.
        let kick = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
        let (report, allocated) = mpsc::sync_channel(1);
        let (completed, kicks, before, is_done) = (0, false, 0, false);
        engine.attach(Box::new(move || Box::new(Guest { kick, memory, completed, kicks, before, is_done, report })));
        assert_eq!(allocated.recv(), Ok(0));
    }
}
