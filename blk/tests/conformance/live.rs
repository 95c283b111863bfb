//! Flows and devices that come and go while others are served: no client is disturbed, nothing is inherited, nothing
//! stays.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, ClientFilter, Context, DeviceIndex, Event, Label, Refused, Remains};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, DeviceStats, Engine, EngineOptions, FlowOptions, Grouping};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions, Weight};
use mqfq_blk::{Group, GroupId, Tree};
use mqfq_policies::SFQD;
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, When};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BLOCK_BYTES: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests of one flow, over all its clients.
#[derive(Default)]
struct Count {
    submitted: AtomicU64,
    completed: AtomicU64,
}

/// Writes a value of its own to its block and reads it back, `depth` of both at a time, until it is drained.
struct Writer {
    device: DeviceIndex,
    flow: FlowId,
    number: u64,
    depth: u64,
    in_flight: u64,
    is_refused: bool,
    is_draining: bool,
    count: Arc<Count>,
}

impl Writer {
    fn submit(&mut self, context: &mut dyn Context) {
        while !self.is_draining && !self.is_refused && self.in_flight < self.depth {
            let block = self.number * 64 + self.in_flight;
            let mut buffer = Buffer::new(BLOCK_BYTES as usize);
            buffer.as_mut_slice().fill(self.number as u8);
            let submission = Submission {
                flow: self.flow,
                op: Op::Write,
                offset_bytes: block * BLOCK_BYTES,
                length_bytes: BLOCK_BYTES as u32,
                fua: false,
                buffer: Some(buffer),
                cookie: block,
            };
            match context.submit(self.device, submission) {
                Ok(()) => {
                    self.in_flight += 1;
                    self.count.submitted.fetch_add(1, Ordering::Relaxed);
                }
                Err(Refused::TenantFull(_)) => self.is_refused = true,
            }
        }
    }
}

impl Client for Writer {
    fn start(&mut self, context: &mut dyn Context) {
        self.submit(context);
    }

    fn event(&mut self, _: &mut dyn Context, event: Event) {
        unreachable!("{event:?} was not asked for");
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        assert_eq!(completion.status, Status::Ok);
        self.in_flight -= 1;
        self.count.completed.fetch_add(1, Ordering::Relaxed);
        self.submit(context);
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        self.is_refused = false;
        self.submit(context);
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.is_draining = true;
    }

    fn is_done(&self) -> bool {
        self.is_draining && self.in_flight == 0
    }

    fn label(&self) -> Label {
        Label { client: Some(self.number), export: Some(u64::from(self.device.0) << 32 | u64::from(self.flow.0)) }
    }
}

fn options(name: &str, kind: PolicyKind, flows: &[&str]) -> DeviceOptions {
    let flows = flows.iter().map(|name| FlowOptions::new(name)).collect();
    DeviceOptions::new(name, Arc::new(MemoryDevice::new(64 << 20)), PolicyOptions::new(kind), flows)
}

fn engine(devices: Vec<DeviceOptions>) -> Engine {
    Engine::start(EngineOptions { workers: 2, pin: false, spin_ns: 0, devices }).expect("it starts")
}

/// A client of the flow on each worker.
fn attach(engine: &Engine, device: usize, flow: u32, numbers: [u64; 2], depth: u64) -> Arc<Count> {
    let count = Arc::new(Count::default());
    for (worker, number) in numbers.into_iter().enumerate() {
        let (device, flow, count) = (DeviceIndex(device as u16), FlowId(flow), count.clone());
        let (in_flight, is_refused, is_draining) = (0, false, false);
        let writer = Writer { device, flow, number, depth, in_flight, is_refused, is_draining, count };
        engine.attach_to(worker, Box::new(|| Box::new(writer)));
    }
    count
}

fn drain(engine: &Engine, device: usize, flow: u32) {
    assert!(engine.drain_some(ClientFilter::Export((device as u64) << 32 | u64::from(flow)), PATIENCE));
}

fn await_completions(count: &Count, more: u64) {
    let until = count.completed.load(Ordering::Relaxed) + more;
    while count.completed.load(Ordering::Relaxed) < until {
        std::thread::yield_now();
    }
}

fn named(stats: &DeviceStats) -> Vec<(&str, u64, u16)> {
    stats.flows.iter().map(|flow| (flow.name.as_str(), flow.stats.requests(), flow.weight.get())).collect()
}

#[test]
fn a_flow_in_the_place_of_another_starts_with_nothing_of_it() {
    for kind in mqfq_policies::ALL.into_iter().filter(|kind| !kind.is_direct()) {
        let engine = engine(vec![options("d", kind, &["stays", "goes"])]);
        let stays = attach(&engine, 0, 0, [0, 1], 8);
        let goes = attach(&engine, 0, 1, [2, 3], 8);
        await_completions(&goes, 100);
        drain(&engine, 0, 1);
        let one = |flow: Option<FlowOptions>| [Some(FlowOptions::new("stays")), flow];
        engine.change_flows(0, &BTreeMap::from([(1, None)]), None, PATIENCE).unwrap();
        assert_eq!(engine.stats().devices[0].flows.len(), 1, "{kind}");
        let next = FlowOptions { weight: Weight::MAX, ..FlowOptions::new("next") };
        engine.set_flows(0, &one(Some(next)), &Grouping::default(), PATIENCE).unwrap();
        let stats = engine.stats();
        assert_eq!(named(&stats.devices[0])[1], ("next", 0, 10_000), "{kind}: counters are its own");
        let next = attach(&engine, 0, 1, [4, 5], 8);
        await_completions(&next, 100);
        await_completions(&stays, 100);
        assert!(engine.drain(PATIENCE), "{kind}");
        for count in [stays, goes, next] {
            let [submitted, completed] = [&count.submitted, &count.completed].map(|sum| sum.load(Ordering::Relaxed));
            assert_eq!(submitted, completed, "{kind}: each once");
        }
    }
}

#[test]
fn more_flows_than_there_are_places_come_under_load_and_each_is_served_by_its_bound() {
    let engine = engine(vec![options("d", PolicyKind::Mqfq, &["flow-0"])]);
    let first = attach(&engine, 0, 0, [0, 1], 8);
    let mut flows = vec![Some(FlowOptions::new("flow-0"))];
    let mut counts = Vec::new();
    for flow in 1..40u32 {
        let limits = StageLimits { requests_max: 1 + flow * 16, bytes_max: 1 << 20 };
        flows.push(Some(FlowOptions { limits, ..FlowOptions::new(&format!("flow-{flow}")) }));
        if flow % 2 == 0 {
            engine.set_flows(0, &flows, &Grouping::default(), PATIENCE).unwrap();
        } else {
            let one = (flow as usize, flows[flow as usize].clone());
            engine.change_flows(0, &BTreeMap::from([one]), None, PATIENCE).unwrap();
        }
        counts.push(attach(&engine, 0, flow, [u64::from(flow) * 2, u64::from(flow) * 2 + 1], 32));
        await_completions(&counts[flow as usize - 1], 40);
    }
    await_completions(&first, 100);
    assert!(engine.drain(PATIENCE));
    assert_eq!(engine.stats().devices[0].flows.len(), 40);
    assert!(
        counts
            .iter()
            .all(|count| { count.submitted.load(Ordering::Relaxed) == count.completed.load(Ordering::Relaxed) })
    );
}

#[test]
fn groups_change_under_load_and_what_a_policy_cannot_have_changes_nothing() {
    let engine = engine(vec![options("d", SFQD, &["a", "b"])]);
    let both = [attach(&engine, 0, 0, [0, 1], 8), attach(&engine, 0, 1, [2, 3], 8)];
    let flows = ["a", "b"].map(|name| Some(FlowOptions::new(name)));
    let group = |weight| Group { weight: Weight::new(weight).unwrap(), parent: None };
    let grouping = |weight, of_flow: Vec<Option<GroupId>>| Grouping {
        tree: Tree { groups: vec![group(weight)], of_flow },
        names: vec!["g".into()],
    };
    for of_flow in [vec![Some(GroupId(0)), None], vec![Some(GroupId(0)); 2], vec![None, Some(GroupId(0))]] {
        engine.set_flows(0, &flows, &grouping(300, of_flow.clone()), PATIENCE).unwrap();
        engine.set_flows(0, &flows, &grouping(200, of_flow), PATIENCE).unwrap();
        both.iter().for_each(|count| await_completions(count, 50));
        assert_eq!(engine.stats().devices[0].groups[0].weight.get(), 200);
    }
    engine.set_flows(0, &flows, &Grouping::default(), PATIENCE).unwrap();
    engine.set_policy(0, PolicyOptions::new(PolicyKind::None), PATIENCE).unwrap();
    let refused = engine.set_flows(0, &flows, &grouping(300, vec![Some(GroupId(0)); 2]), PATIENCE).unwrap_err();
    assert!(refused.starts_with("device d: ") && refused.contains("none"), "{refused}");
    assert!(engine.stats().devices[0].groups.is_empty());
    both.iter().for_each(|count| await_completions(count, 50));
    assert!(engine.drain(PATIENCE));
}

#[test]
fn a_device_comes_and_goes_under_the_load_of_another_and_its_index_is_used_again() {
    let engine = engine(vec![options("stays", PolicyKind::Mqfq, &["a"])]);
    let stays = attach(&engine, 0, 0, [0, 1], 8);
    for round in 0..10 {
        let name = format!("guest-{round}");
        engine.add_device(1, &options(&name, SFQD, &["x", "y"])).unwrap();
        let twice = engine.add_device(1, &options("other", SFQD, &["x"])).unwrap_err();
        assert_eq!(twice, format!("device other: device {name} has not gone yet"));
        let guests = [attach(&engine, 1, 0, [2, 3], 4), attach(&engine, 1, 1, [4, 5], 4)];
        guests.iter().for_each(|count| await_completions(count, 20));
        assert_eq!(engine.stats().devices[1].name, name);
        engine.await_end(1, Remains::Bytes(0, 64 * BLOCK_BYTES), PATIENCE).unwrap();
        (0..2).for_each(|flow| drain(&engine, 1, flow));
        engine.remove_device(1, PATIENCE).unwrap();
        assert_eq!(engine.stats().devices.len(), 1);
    }
    let faulty = DeviceOptions { queue_depth: 0, ..options("faulty", PolicyKind::Mqfq, &["x"]) };
    assert!(engine.add_device(1, &faulty).unwrap_err().contains("queue depth 0 is out of range"));
    await_completions(&stays, 100);
    assert!(engine.drain(PATIENCE));
}

#[test]
fn a_drain_ends_although_a_device_never_does() {
    let plan = FaultPlan { rules: vec![FaultRule::any(When::Always, Fault::Forget)], ..FaultPlan::default() };
    let silent = FaultDevice::new(Arc::new(MemoryDevice::new(64 << 20)), plan);
    let hangs = DeviceOptions { device: Arc::new(silent), ..options("hangs", PolicyKind::None, &["a"]) };
    let engine = engine(vec![options("works", PolicyKind::Mqfq, &["a"]), hangs]);
    let works = attach(&engine, 0, 0, [0, 1], 8);
    let asked = attach(&engine, 1, 0, [2, 3], 1);
    while asked.submitted.load(Ordering::Relaxed) < 2 {
        std::thread::yield_now();
    }
    let moment = Duration::from_millis(1);
    assert!(!engine.drain_some(ClientFilter::Export(1 << 32), moment));
    await_completions(&works, 100);
    let stays = engine.remove_device(1, moment).unwrap_err();
    assert_eq!(stays, "device hangs: requests did not come back from it within 0.001 s");
    assert!(!engine.drain(moment), "nor does it hold up the end");
    assert_eq!(asked.completed.load(Ordering::Relaxed), 0);
}
