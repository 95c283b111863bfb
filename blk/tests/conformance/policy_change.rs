//! Another policy while requests are under way: it drains, switches, and loses nothing.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event, Refused};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, FlowId, PolicyKind, PolicyOptions, PriorityClass, Weight};
use mqfq_policies::{D2FQ, MQ_DEADLINE, MQFQ_SERIAL, SFQD};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BLOCK_BYTES: u64 = 4096;
const DEPTH: u64 = 48;
const FLOWS: u32 = 3;

/// State that the test and its clients share.
#[derive(Default)]
struct Shared {
    completed: AtomicU64,
    stop: AtomicBool,
}

/// Writes a value of its own to each of its blocks, reads it back, over and over, all blocks at once.
struct Writer {
    shared: Arc<Shared>,
    number: u64,
    /// By block: how often it has completed. Even: the next is a write.
    rounds: Vec<u64>,
    in_flight: u64,
    refused: Vec<u64>,
    /// Told when it is done: how many requests completed.
    done: mpsc::Sender<u64>,
}

impl Writer {
    fn value(&self, block: u64, round: u64) -> u8 {
        (self.number * 31 + block * 7 + round / 2 * 3 + 1) as u8
    }

    fn submit(&mut self, context: &mut dyn Context, block: u64) {
        let round = self.rounds[block as usize];
        let op = if round.is_multiple_of(2) { Op::Write } else { Op::Read };
        let mut buffer = Buffer::new(BLOCK_BYTES as usize);
        let value = self.value(block, round);
        buffer.as_mut_slice().fill(if op == Op::Write { value } else { !value });
        let submission = Submission {
            flow: FlowId(self.number as u32 % FLOWS),
            op,
            offset_bytes: (self.number * DEPTH + block) * BLOCK_BYTES,
            length_bytes: BLOCK_BYTES as u32,
            fua: false,
            buffer: Some(buffer),
            cookie: block,
        };
        match context.submit(DeviceIndex(0), submission) {
            Ok(()) => self.in_flight += 1,
            Err(Refused::TenantFull(_)) => self.refused.push(block),
        }
    }
}

impl Client for Writer {
    fn start(&mut self, context: &mut dyn Context) {
        (0..DEPTH).for_each(|block| self.submit(context, block));
    }

    fn event(&mut self, _: &mut dyn Context, event: Event) {
        unreachable!("{event:?} was not asked for");
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let block = completion.cookie;
        self.in_flight -= 1;
        assert_eq!(completion.status, Status::Ok);
        let round = self.rounds[block as usize];
        if completion.op == Op::Read {
            let value = self.value(block, round);
            let bytes = completion.buffer.as_ref().expect("the read's buffer").as_slice();
            assert!(bytes[..BLOCK_BYTES as usize].iter().all(|&byte| byte == value), "block {block}, round {round}");
        }
        self.rounds[block as usize] += 1;
        self.shared.completed.fetch_add(1, Ordering::Relaxed);
        if !self.shared.stop.load(Ordering::Relaxed) {
            self.submit(context, block);
        }
    }

    fn turn_end(&mut self, _: &mut dyn Context) {
        if self.is_done() {
            // The test may have gone.
            let _ = self.done.send(self.rounds.iter().sum());
        }
    }

    fn room(&mut self, context: &mut dyn Context) {
        if !self.shared.stop.load(Ordering::Relaxed) {
            std::mem::take(&mut self.refused).into_iter().for_each(|block| self.submit(context, block));
        }
    }

    fn drain(&mut self, _: &mut dyn Context) {}

    fn is_done(&self) -> bool {
        self.in_flight == 0 && self.shared.stop.load(Ordering::Relaxed)
    }
}

/// Its queues are sets if there can be any.
fn engine(device: Arc<dyn Device>, workers: usize, requests_max: u32) -> Engine {
    let kind = if device.has_class_queues() { D2FQ } else { PolicyKind::None };
    let flow = |number| FlowOptions {
        name: format!("flow-{number}"),
        weight: Weight::DEFAULT,
        class: PriorityClass::default(),
        limits: StageLimits { requests_max, bytes_max: 1 << 30 },
        goal: None,
    };
    let device = DeviceOptions {
        grouping: Default::default(),
        name: "device".into(),
        device,
        policy: PolicyOptions::new(kind),
        prepare: None,
        queue_depth: 64,
        flows: (0..FLOWS).map(flow).collect(),
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    };
    Engine::start(EngineOptions { workers, pin: false, spin_ns: 50_000, devices: vec![device] }).expect("it starts")
}

/// One writer per worker and flow.
fn attach(engine: &Engine, shared: &Arc<Shared>) -> mpsc::Receiver<u64> {
    let (done, receiver) = mpsc::channel();
    for number in 0..engine.workers() as u64 * u64::from(FLOWS) {
        let (shared, done) = (shared.clone(), done.clone());
        let rounds = vec![0; DEPTH as usize];
        let make = move || Writer { shared, number, rounds, in_flight: 0, refused: Vec::new(), done };
        engine.attach_to(number as usize % engine.workers(), Box::new(move || Box::new(make())));
    }
    receiver
}

/// Waits until `requests` more have completed.
fn wait_for(shared: &Shared, requests: u64) {
    let until = shared.completed.load(Ordering::Relaxed) + requests;
    while shared.completed.load(Ordering::Relaxed) < until {
        std::thread::yield_now();
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Goes from each policy that the device takes to each other one, in both forms of `mqfq`, while `device` is kept busy.
fn change_all(device: Arc<dyn Device>, requests_max: u32) {
    let engine = engine(device, 2, requests_max);
    let shared = Arc::new(Shared::default());
    let done = attach(&engine, &shared);
    let is_taken = |kind: &PolicyKind| engine.has_class_queues(0) || !kind.is_direct();
    let mut forms: Vec<PolicyOptions> =
        mqfq_policies::ALL.into_iter().filter(is_taken).map(PolicyOptions::new).collect();
    forms.push(PolicyOptions::new(PolicyKind::Mqfq).relaxed(2));
    forms.push(PolicyOptions { depth: 3, ..PolicyOptions::new(PolicyKind::Mqfq) });
    for from in 0..forms.len() {
        for to in 0..forms.len() {
            for policy in [forms[from], forms[to]] {
                engine.set_policy(0, policy, PATIENCE).expect("it changes");
                assert_eq!(engine.policy(0), policy);
                assert_eq!(engine.stats().devices[0].policy, policy.kind.name());
                engine.set_weight(0, FlowId(1), Weight::new(1 + 17 * from as u64).expect("in range"));
                wait_for(&shared, 300);
            }
        }
    }
    shared.stop.store(true, Ordering::Relaxed);
    let writers = engine.workers() * FLOWS as usize;
    let completed: u64 = (0..writers).map(|_| done.recv_timeout(PATIENCE).expect("each writer gets all back")).sum();
    let stats = engine.stats();
    let counted: u64 = stats.devices[0].flows.iter().map(|flow| flow.stats.requests()).sum();
    let dispatched: u64 = stats.devices[0].hctxs.iter().map(|hctx| hctx.dispatched).sum();
    assert_eq!(
        (counted, dispatched),
        (completed, completed),
        "each request went to the device once and came back once"
    );
    assert_eq!(mqfq_blk::table::lost_requests(), 0);
}

#[test]
fn a_policy_changes_under_load_and_every_request_completes_once() {
    change_all(Arc::new(MemoryDevice::new(1 << 30)), 256);
}

#[test]
fn a_policy_changes_while_tenants_are_refused_for_want_of_room() {
    // 5 requests of each flow may be staged on a worker, of 48 that its client has.
    change_all(Arc::new(MemoryDevice::new(1 << 30)), 5);
}

#[test]
fn a_policy_changes_under_load_on_a_drive_that_takes_its_time() {
    change_all(Arc::new(ModelDevice::new(presets::OPTANE, 1 << 30, 1).expect("whole blocks")), 256);
}

#[test]
fn a_depth_that_was_found_is_kept_while_another_policy_is_in_force() {
    let engine = engine(Arc::new(ModelDevice::new(presets::OPTANE, 1 << 30, 1).expect("whole blocks")), 1, 256);
    let shared = Arc::new(Shared::default());
    let done = attach(&engine, &shared);
    let number = PolicyOptions::new(PolicyKind::Mqfq);
    let auto = PolicyOptions {
        depth: 1,
        depth_auto: true,
        token_unit_bytes: Some(PolicyOptions::AUTO_TOKEN_UNIT_BYTES),
        ..number
    };
    let depth = || engine.stats().devices[0].in_force.and_then(|in_force| in_force.depth);
    engine.set_policy(0, auto, PATIENCE).expect("it changes");
    let found = loop {
        wait_for(&shared, 100);
        if let Some(state) = depth().filter(|state| state.phases >= 16) {
            break state;
        }
    };
    for other in [PolicyOptions::new(PolicyKind::None), number] {
        engine.set_policy(0, other, PATIENCE).expect("it changes");
        assert_eq!(depth(), None);
        wait_for(&shared, 100);
    }
    engine.set_policy(0, auto, PATIENCE).expect("it changes");
    let again = depth().expect("it is found");
    assert!(again.phases >= found.phases, "{found:?}, and then {again:?}");
    shared.stop.store(true, Ordering::Relaxed);
    (0..FLOWS).for_each(|_| _ = done.recv_timeout(PATIENCE).expect("each writer gets all back"));
}

/// Asks for `each` blocks per flow at once, one flow after the other, and reports their flows as they complete.
struct Burst {
    each: u64,
    flows: Vec<u32>,
    order: Vec<u32>,
    done: mpsc::Sender<Vec<u32>>,
}

impl Client for Burst {
    mqfq_testing::ignores!(turn_end, room, drain);

    fn start(&mut self, context: &mut dyn Context) {
        for (index, &flow) in self.flows.iter().enumerate() {
            for n in 0..self.each {
                let submission = Submission {
                    flow: FlowId(flow),
                    op: Op::Read,
                    offset_bytes: (index as u64 * self.each + n) * BLOCK_BYTES,
                    length_bytes: BLOCK_BYTES as u32,
                    fua: false,
                    buffer: Some(Buffer::new(BLOCK_BYTES as usize)),
                    cookie: flow.into(),
                };
                context.submit(DeviceIndex(0), submission).expect("within the bound");
            }
        }
    }

    fn event(&mut self, _: &mut dyn Context, event: Event) {
        unreachable!("{event:?} was not asked for");
    }

    fn completed(&mut self, _: &mut dyn Context, completion: Completion) {
        self.order.push(completion.cookie as u32);
        if self.is_done() {
            self.done.send(std::mem::take(&mut self.order)).expect("the test waits for it");
            self.flows.clear();
        }
    }

    fn is_done(&self) -> bool {
        self.order.len() as u64 == self.each * self.flows.len() as u64
    }
}

#[test]
fn weights_and_classes_stay_with_their_flows_under_another_policy() {
    // D = 1 and one worker, so requests complete in the policy's order.
    let flow = |name: &str, class| FlowOptions {
        name: name.into(),
        weight: Weight::DEFAULT,
        class,
        limits: StageLimits { requests_max: 256, bytes_max: 1 << 30 },
        goal: None,
    };
    let device = DeviceOptions {
        grouping: Default::default(),
        name: "device".into(),
        device: Arc::new(MemoryDevice::new(1 << 30)),
        policy: PolicyOptions::new(PolicyKind::None),
        prepare: None,
        queue_depth: 64,
        flows: vec![
            flow("a", PriorityClass::BestEffort),
            flow("b", PriorityClass::BestEffort),
            flow("c", PriorityClass::RealTime),
        ],
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    };
    let options = EngineOptions { workers: 1, pin: false, spin_ns: 50_000, devices: vec![device] };
    let engine = Engine::start(options).expect("it starts");
    let order = |kind: PolicyKind, flows: &[u32]| {
        let policy = PolicyOptions { depth: 1, ..PolicyOptions::new(kind) };
        engine.set_policy(0, policy, PATIENCE).expect("it changes");
        let (done, order) = mpsc::channel();
        let flows = flows.to_vec();
        engine.attach(Box::new(move || Box::new(Burst { each: 40, flows, order: Vec::new(), done })));
        order.recv_timeout(PATIENCE).expect("all come back")
    };
    let of_first_40 = |order: Vec<u32>, flow: u32| order[..40].iter().filter(|&&of| of == flow).count();
    assert_eq!(of_first_40(order(SFQD, &[0, 1]), 1), 20);
    // Set under one policy, and kept by the two that follow.
    engine.set_weight(0, FlowId(1), Weight::new(300).expect("in range"));
    assert_eq!(of_first_40(order(MQFQ_SERIAL, &[0, 1]), 1), 30);
    assert_eq!(of_first_40(order(SFQD, &[0, 1]), 1), 30);
    // mq-deadline serves the class of c first, which was given at the start.
    assert_eq!(of_first_40(order(MQ_DEADLINE, &[0, 2]), 2), 40);
    assert_eq!(of_first_40(order(MQ_DEADLINE, &[0, 1]), 1), 0, "one class: by offset");
}

#[test]
fn options_that_no_policy_can_be_built_from_change_nothing() {
    let engine = engine(Arc::new(MemoryDevice::new(1 << 20)), 1, 256);
    let before = engine.policy(0);
    let bad = PolicyOptions { depth: 0, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let error = engine.set_policy(0, bad, PATIENCE).unwrap_err();
    assert_eq!(error, "device device: depth 0 is out of range, allowed is 1 to 65535");
    assert_eq!(engine.policy(0), before);
}

/// Memory behind a gate: while it is shut, nothing is handed back.
struct Gated {
    memory: MemoryDevice,
    is_shut: Arc<AtomicBool>,
}

struct GatedQueue {
    memory: Box<dyn DeviceQueue>,
    is_shut: Arc<AtomicBool>,
}

impl Device for Gated {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(GatedQueue { memory: self.memory.open_queue(options)?, is_shut: self.is_shut.clone() }))
    }
}

impl DeviceQueue for GatedQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.memory.submit(command)
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.memory.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        if !self.is_shut.load(Ordering::Relaxed) {
            self.memory.reap(now_ns, out);
        }
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.memory.next_event_ns()
    }

    fn in_flight(&self) -> usize {
        self.memory.in_flight()
    }
}

#[test]
fn a_device_that_keeps_requests_keeps_its_policy_and_goes_on() {
    let is_shut = Arc::new(AtomicBool::new(false));
    let gated = Gated { memory: MemoryDevice::new(1 << 30), is_shut: is_shut.clone() };
    let engine = engine(Arc::new(gated), 2, 256);
    let shared = Arc::new(Shared::default());
    let done = attach(&engine, &shared);
    wait_for(&shared, 100);
    is_shut.store(true, Ordering::Relaxed);
    let mqfq = PolicyOptions::new(PolicyKind::Mqfq);
    let error = engine.set_policy(0, mqfq, Duration::from_millis(1)).unwrap_err();
    assert_eq!(error, "device device: requests did not come back from it within 0.001 s; it keeps the policy none");
    assert_eq!(engine.policy(0).kind, PolicyKind::None);
    is_shut.store(false, Ordering::Relaxed);
    // Requests that waited outside the policy meanwhile are staged in the old one, and a second attempt succeeds.
    wait_for(&shared, 1000);
    engine.set_policy(0, mqfq, PATIENCE).expect("it changes now");
    wait_for(&shared, 1000);
    shared.stop.store(true, Ordering::Relaxed);
    let writers = engine.workers() * FLOWS as usize;
    let completed: u64 = (0..writers).map(|_| done.recv_timeout(PATIENCE).expect("each writer gets all back")).sum();
    assert_eq!(completed, shared.completed.load(Ordering::Relaxed));
}

#[test]
fn a_policy_that_the_device_has_no_queues_for_or_its_path_no_room_is_refused() {
    let start = |kind: PolicyKind, bypass| {
        let flows = vec![FlowOptions::new("a")];
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        let path = PathOptions { bypass, ..PathOptions::default() };
        let device = DeviceOptions { path, ..DeviceOptions::new("device", memory, PolicyOptions::new(kind), flows) };
        Engine::start(EngineOptions { workers: 1, pin: false, spin_ns: 0, devices: vec![device] })
    };
    let refusal = |kind, bypass| start(kind, bypass).err().expect("refused");
    assert_eq!(refusal(D2FQ, true), "device device: policy d2fq needs class queues, and the device has none");
    assert_eq!(
        refusal(PolicyKind::Mqfq, true),
        "device device: policy mqfq stages requests, and this device's path has nowhere to keep them"
    );
    assert!(start(PolicyKind::Mqfq, false).is_ok());
    let engine = start(PolicyKind::None, true).expect("it starts");
    let error = engine.set_policy(0, PolicyOptions::new(PolicyKind::None), PATIENCE).unwrap_err();
    assert_eq!(error, "device device: its path has nowhere to keep requests while a policy changes");
}
