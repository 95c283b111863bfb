//! The worker's loop with real sockets and threads: clients live, talk, wait for room, drain and end.
#![cfg(feature = "uring")]

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event, Part, Refused};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::device::{Command, Device, DeviceQueue, QueueOptions};
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::tag::Tag;
use mqfq_blk::{CostModel, FlowId, PolicyKind, PolicyOptions, PriorityClass, VSpan, Weight};
use mqfq_nvme::device::{NvmeDevice, NvmeDeviceOptions};
use mqfq_sched::topology::HctxId;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BLOCK_BYTES: u32 = 4096;

/// A toy protocol: each byte received asks for one block of that byte to be written at that block number and read
/// back; each answer is the first byte of the block. Pipelined; answers come in the order of completion.
struct Toy {
    socket: OwnedFd,
    receiving: bool,
    sending: bool,
    closed: bool,
    in_flight: u32,
    answers: Vec<u8>,
    waiting: Vec<Submission>,
}

impl Toy {
    fn new(socket: OwnedFd) -> Toy {
        let (answers, waiting) = (Vec::new(), Vec::new());
        Toy { socket, receiving: false, sending: false, closed: false, in_flight: 0, answers, waiting }
    }

    fn receive(&mut self, context: &mut dyn Context) {
        if !self.receiving && !self.closed && self.waiting.is_empty() {
            self.receiving = true;
            context.receive(self.socket.as_raw_fd(), Buffer::new(4096), 0, 4096, 0);
        }
    }

    fn submit(&mut self, context: &mut dyn Context, submission: Submission) {
        match context.submit(DeviceIndex(0), submission) {
            Ok(()) => self.in_flight += 1,
            Err(Refused::TenantFull(submission)) => self.waiting.push(submission),
        }
    }
}

fn submission(op: Op, block: u8) -> Submission {
    let mut buffer = Buffer::new(BLOCK_BYTES as usize);
    buffer.as_mut_slice().fill(block);
    Submission {
        flow: FlowId(0),
        op,
        offset_bytes: u64::from(block) * u64::from(BLOCK_BYTES),
        length_bytes: BLOCK_BYTES,
        fua: false,
        buffer: Some(buffer),
        cookie: u64::from(block),
    }
}

impl Client for Toy {
    fn start(&mut self, context: &mut dyn Context) {
        self.receive(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        match event {
            Event::Received { buffer, result, .. } => {
                self.receiving = false;
                let length = result.unwrap_or(0);
                self.closed |= length == 0;
                for &block in &buffer.as_slice()[..length] {
                    self.submit(context, submission(Op::Write, block));
                }
            }
            Event::Sent { result, .. } => {
                self.sending = false;
                self.closed |= result.is_err();
            }
            other => unreachable!("it asks for neither, yet got {other:?}"),
        }
        self.receive(context);
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        assert_eq!(completion.status, Status::Ok);
        self.in_flight -= 1;
        let block = completion.cookie as u8;
        match completion.op {
            Op::Write => self.submit(context, submission(Op::Read, block)),
            _ => self.answers.push(completion.buffer.expect("a read's buffer comes back").as_slice()[0]),
        }
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        if !self.sending && !self.answers.is_empty() {
            self.sending = true;
            let answers = std::mem::take(&mut self.answers);
            context.send(self.socket.as_raw_fd(), vec![Part::Bytes(answers)], 0);
        }
    }

    fn room(&mut self, context: &mut dyn Context) {
        for submission in std::mem::take(&mut self.waiting) {
            self.submit(context, submission);
        }
        self.receive(context);
    }

    fn drain(&mut self, context: &mut dyn Context) {
        self.closed = true;
        if self.receiving {
            context.shutdown(self.socket.as_raw_fd());
        }
    }

    fn is_done(&self) -> bool {
        self.closed && self.in_flight == 0 && self.waiting.is_empty() && self.answers.is_empty()
    }
}

fn engine(kind: PolicyKind, workers: usize, requests_max: u32) -> Engine {
    let flow = FlowOptions {
        name: "toy".to_owned(),
        weight: Weight::DEFAULT,
        class: PriorityClass::default(),
        limits: StageLimits { requests_max, bytes_max: 1 << 20 },
        goal: None,
    };
    // A direct policy needs a device with class queues.
    let drive = NvmeDeviceOptions { preset: "zssd", size_bytes: 1 << 20, ..NvmeDeviceOptions::default() };
    let held: Arc<dyn Device> = match kind.is_direct() {
        true => Arc::new(NvmeDevice::new(drive).unwrap()),
        false => Arc::new(MemoryDevice::new(1 << 20)),
    };
    let device = DeviceOptions {
        grouping: Default::default(),
        name: "memory".to_owned(),
        device: held,
        policy: PolicyOptions { kind, depth: 2, window: VSpan::from_bytes(64 << 10), ..PolicyOptions::new(kind) },
        prepare: None,
        queue_depth: 4,
        flows: vec![flow],
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    };
    Engine::start(EngineOptions { workers, pin: false, spin_ns: 0, devices: vec![device] }).unwrap()
}

/// Attaches a client and returns the other end of its socket.
fn attach(engine: &Engine) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    engine.attach(Box::new(move || Box::new(Toy::new(theirs.into()))));
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    ours
}

fn talk(socket: &mut UnixStream) {
    let blocks: Vec<u8> = (0..=255).collect();
    socket.write_all(&blocks).unwrap();
    let mut answers = [0; 256];
    socket.read_exact(&mut answers).unwrap();
    answers.sort_unstable();
    assert_eq!(answers.as_slice(), blocks);
}

#[test]
fn every_request_of_every_client_is_answered_under_each_policy() {
    // Policies that may run on a device without class queues, as memory is.
    for kind in mqfq_policies::STAGED {
        for workers in [1, 3] {
            let engine = engine(kind, workers, 1024);
            let mut sockets: Vec<_> = (0..5).map(|_| attach(&engine)).collect();
            sockets.iter_mut().for_each(talk);
            sockets.iter_mut().for_each(talk);
            let stats = engine.stats();
            assert_eq!(stats.devices[0].flows[0].stats.requests(), 5 * 2 * 2 * 256, "{}", kind.name());
            assert_eq!(stats.devices[0].flows[0].stats.failed, 0);
        }
    }
    assert_eq!(mqfq_blk::table::lost_requests(), 0);
}

#[test]
fn a_client_of_a_full_tenant_waits_and_loses_nothing() {
    // One request may be staged, 512 come from each of two clients.
    let engine = engine(PolicyKind::Mqfq, 1, 1);
    let mut sockets: Vec<_> = (0..2).map(|_| attach(&engine)).collect();
    sockets.iter_mut().for_each(talk);
    assert!(engine.stats().devices[0].hctxs[0].refused > 0, "the bound was reached");
}

#[test]
fn a_drain_waits_for_clients_and_ends_idle_ones() {
    let engine = engine(PolicyKind::Mqfq, 2, 1024);
    let mut sockets: Vec<_> = (0..4).map(|_| attach(&engine)).collect();
    sockets.iter_mut().for_each(talk);
    assert!(engine.drain(Duration::from_secs(20)), "no client needed to be cut off");
    for mut socket in sockets {
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "the engine closed its end");
    }
}

#[test]
fn a_client_that_never_ends_is_cut_off_after_the_grace_time() {
    struct Stubborn(Toy);
    impl Client for Stubborn {
        fn start(&mut self, context: &mut dyn Context) {
            self.0.start(context);
        }
        fn event(&mut self, context: &mut dyn Context, event: Event) {
            self.0.event(context, event);
        }
        fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
            self.0.completed(context, completion);
        }
        fn turn_end(&mut self, context: &mut dyn Context) {
            self.0.turn_end(context);
        }
        fn room(&mut self, context: &mut dyn Context) {
            self.0.room(context);
        }
        fn drain(&mut self, _: &mut dyn Context) {}
        fn is_done(&self) -> bool {
            self.0.is_done()
        }
    }
    let engine = engine(PolicyKind::None, 1, 1024);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    engine.attach(Box::new(move || Box::new(Stubborn(Toy::new(theirs.into())))));
    talk(&mut ours);
    assert!(!engine.drain(Duration::from_millis(1)));
    assert_eq!(ours.read(&mut [0]).unwrap(), 0);
}

#[test]
fn an_engine_dropped_in_mid_air_does_not_hang() {
    let engine = engine(PolicyKind::Mqfq, 2, 1024);
    let mut socket = attach(&engine);
    socket.write_all(&[7; 64]).unwrap();
    drop(engine);
}

/// Asks for timers `after` its start and reports each one's name, and how much too late or (below 0) too early. It is
/// done with the first timer.
struct Waiter {
    after: Vec<Duration>,
    asked_ns: Vec<u64>,
    told: mpsc::Sender<(u32, i64)>,
    is_done: bool,
}

impl Client for Waiter {
    mqfq_testing::ignores!(completed, turn_end, room);

    fn start(&mut self, context: &mut dyn Context) {
        for (user, after) in self.after.iter().enumerate() {
            let at_ns = context.now_ns() + after.as_nanos() as u64;
            self.asked_ns.push(at_ns);
            context.timer(at_ns, user as u32);
        }
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        let Event::Timer { user } = event else { unreachable!("it asked for timers only, not for {event:?}") };
        let late_ns = context.now_ns() as i64 - self.asked_ns[user as usize] as i64;
        self.told.send((user, late_ns)).unwrap();
        self.is_done = user == 0;
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.is_done = true;
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

fn attach_waiter(engine: &Engine, after: &[Duration]) -> mpsc::Receiver<(u32, i64)> {
    let (told, waiter) = mpsc::channel();
    let after = after.to_vec();
    engine.attach_to(0, Box::new(move || Box::new(Waiter { after, asked_ns: Vec::new(), told, is_done: false })));
    waiter
}

#[test]
fn timers_come_in_order_and_never_early_and_a_client_that_is_done_is_not_kept_by_one() {
    let engine = engine(PolicyKind::None, 1, 1024);
    let ms = Duration::from_millis;
    // 0 last: the client is done with it, an hour before its fourth.
    let waiter = attach_waiter(&engine, &[ms(3), ms(1), ms(2), ms(3_600_000), Duration::ZERO]);
    let told: Vec<(u32, i64)> = waiter.iter().collect();
    assert_eq!(told.iter().map(|(user, _)| *user).collect::<Vec<_>>(), [4, 1, 2, 0], "and then it was dropped");
    assert!(told.iter().all(|(_, late_ns)| *late_ns >= 0), "{told:?}");

    // Its number is another client's now: the cancelled timer's end reaches none.
    let waiter = attach_waiter(&engine, &[ms(1)]);
    assert_eq!(waiter.iter().map(|(user, _)| user).collect::<Vec<_>>(), [0]);
    let waiter = attach_waiter(&engine, &[ms(3_600_000), ms(3_600_000)]);
    assert!(engine.drain(Duration::from_secs(20)), "no timer holds up a drain");
    assert_eq!(waiter.iter().count(), 0);
}

#[test]
fn a_panic_of_a_worker_is_told_and_nobody_waits_for_it() {
    struct Panicking(Toy);
    impl Client for Panicking {
        mqfq_testing::ignores!(completed, turn_end, room, drain);

        fn start(&mut self, context: &mut dyn Context) {
            self.0.start(context);
        }
        fn event(&mut self, context: &mut dyn Context, event: Event) {
            // With requests admitted, on the device and in this client's hands.
            self.0.event(context, event);
            panic!("injected by the test");
        }

        fn is_done(&self) -> bool {
            false
        }
    }
    let engine = engine(PolicyKind::Mqfq, 2, 1024);
    let (sender, panicked) = mpsc::channel();
    engine.on_worker_panic(move |worker| sender.send(worker).unwrap());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    engine.attach_to(1, Box::new(move || Box::new(Panicking(Toy::new(theirs.into())))));
    ours.write_all(&[1, 2, 3]).unwrap();
    assert_eq!(panicked.recv(), Ok(1));

    assert_eq!(engine.stats().devices[0].hctxs.len(), 1, "the other worker answers, for this one nobody waits");
    let (alive, dropped) = mpsc::channel::<()>();
    engine.attach_to(1, Box::new(move || unreachable!("no worker is left to make this client: {alive:?}")));
    assert_eq!(dropped.recv(), Err(mpsc::RecvError), "a client for it is dropped at once");
    let (late, told) = mpsc::channel();
    engine.on_worker_panic(move |worker| late.send(worker).unwrap());
    assert_eq!(told.try_recv(), Ok(1), "who asks afterwards is told at once");
    assert!(!engine.drain(Duration::from_secs(20)), "not all clients were answered");
}

/// Otherwise the worker's panic would go unreported, and its clients wait for ever. The test starts itself again as the
/// process that is to end.
#[test]
fn a_process_whose_action_on_a_panic_panics_in_turn_is_aborted() {
    const VICTIM: &str = "MQFQ_TEST_VICTIM_ACTION";
    if std::env::var_os(VICTIM).is_some() {
        let engine = engine(PolicyKind::Mqfq, 2, 1024);
        engine.on_worker_panic(|_| panic!("injected into the action"));
        engine.attach_to(1, Box::new(|| panic!("injected into the worker")));
        loop {
            std::thread::park();
        }
    }
    // A process that goes on half dead fails the test instead of hanging it.
    let victim = std::process::Command::new("timeout")
        .args(["--signal=KILL", "60"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "worker::a_process_whose_action_on_a_panic_panics_in_turn_is_aborted"])
        .env(VICTIM, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&victim.stderr);
    // `timeout` passes SIGABRT on.
    assert_eq!(victim.status.signal().or(victim.status.code().map(|code| code - 128)), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("injected into the worker") && text.contains("injected into the action"), "{text}");
}

// Drives with a model of time under real threads: several workers move one drive, and each gets its own commands back.

const WORKERS: u16 = 3;
const DEPTH: u16 = 16;
const COMMANDS_PER_WORKER: u64 = 4_000;
/// Bytes that belong to one worker.
const REGION_BYTES: u64 = 16 << 20;

/// State that the workers share, as in the real engine: a clock, and a bell for each that makes it run a turn.
struct Machine {
    now_ns: AtomicU64,
    bells: [AtomicBool; WORKERS as usize],
}

/// One worker: writes a value of its own to a block, reads the block back, over and over, `DEPTH` blocks at once. It
/// takes a turn when its bell rang or the event that it waits for is due; until then it only lets time pass.
fn work(device: &dyn Device, machine: &Arc<Machine>, worker: u16) {
    let bells = machine.clone();
    let mut queue = device
        .open_queue(QueueOptions {
            hctx: HctxId(worker),
            depth: DEPTH,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(move |HctxId(hctx)| bells.bells[hctx as usize].store(true, Ordering::Release)),
        })
        .expect("a queue for each worker");
    let block = |tag: u16| u64::from(worker) * REGION_BYTES + u64::from(tag) * 4096;
    let command = |op, tag: u16, fill: u8| {
        let mut buffer = Buffer::new(4096);
        buffer.as_mut_slice().fill(fill);
        let offset_bytes = block(tag);
        Command::new(Tag(tag), op, offset_bytes, 4096, Some(buffer))
    };
    let value = |round: u64| (round * 7 + u64::from(worker) + 1) as u8;
    // By tag: how many of its commands have ended. Even: the next is a write, odd: the read that checks it.
    let mut ended = [0u64; DEPTH as usize];
    let mut left = COMMANDS_PER_WORKER;
    (0..DEPTH).for_each(|tag| queue.submit(command(Op::Write, tag, value(0))).expect("room for each tag"));
    left -= u64::from(DEPTH);
    queue.ring_doorbell(machine.now_ns.load(Ordering::Acquire));
    let mut out = Vec::new();
    while queue.in_flight() > 0 {
        sleep(&*queue, machine, worker);
        let now_ns = machine.now_ns.load(Ordering::Acquire);
        queue.reap(now_ns, &mut out);
        for reaped in out.drain(..) {
            assert_eq!(reaped.status, Status::Ok);
            let Tag(tag) = reaped.tag;
            let count = &mut ended[tag as usize];
            if *count % 2 == 1 {
                let bytes = &reaped.buffer.as_ref().expect("the read's buffer").as_slice()[..4096];
                assert!(bytes.iter().all(|&byte| byte == value(*count / 2)), "worker {worker} block {tag}");
            }
            *count += 1;
            if left > 0 {
                left -= 1;
                // A read's buffer begins with a fill that must be gone at its end.
                let next = match *count % 2 {
                    0 => command(Op::Write, tag, value(*count / 2)),
                    _ => command(Op::Read, tag, !value(*count / 2)),
                };
                queue.submit(next).expect("its tag is free again");
            }
        }
        queue.ring_doorbell(now_ns);
    }
    assert_eq!(ended.iter().sum::<u64>(), COMMANDS_PER_WORKER);
}

/// Sleeps like a worker: looks once when its next event is, then only at the bell and the clock.
fn sleep(queue: &dyn DeviceQueue, machine: &Machine, worker: u16) {
    let until_ns = queue.next_event_ns().expect("commands are in flight and were announced");
    let bell = &machine.bells[worker as usize];
    while !bell.swap(false, Ordering::AcqRel) && machine.now_ns.load(Ordering::Acquire) < until_ns {
        // Time passes a little for each look, so that workers overtake each other in all ways.
        machine.now_ns.fetch_add(100, Ordering::AcqRel);
    }
}

#[test]
fn each_worker_gets_its_own_commands_back_although_any_of_them_moves_the_drive() {
    let size_bytes = u64::from(WORKERS) * REGION_BYTES;
    let model = ModelDevice::new(presets::FLASH_460K, size_bytes, 11).expect("whole blocks");
    let nvme = NvmeDevice::with_preset(presets::FLASH_460K, size_bytes, 11).expect("whole blocks");
    for device in [&model as &dyn Device, &nvme] {
        let machine = Arc::new(Machine { now_ns: AtomicU64::new(0), bells: [const { AtomicBool::new(false) }; 3] });
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let machine = &machine;
                scope.spawn(move || work(device, machine, worker));
            }
        });
    }
}
