//! How is a worker shared out when its own time is scarce: clients with sockets, on a device that answers at once.
//!
//! A turn of the loop is the unit of time here: clients answer at once to replies sent at the end of one, and their
//! requests lie in their sockets when the next turn looks.

use super::tests::VirtualHost;
use super::*;
use crate::buffer::Buffer;
use crate::client::{Context, DeviceIndex, Event, Refused};
use crate::device::null::NullDevice;
use crate::device::{Device, QueueOptions};
use crate::hctx::{CLIENT_BYTES, HwCtxOptions};
use crate::path_options::PathOptions;
use crate::request::{Op, Submission};
use crate::stage::StageLimits;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::topology::Topology;
use std::cell::Cell;
use std::rc::Rc;

/// Requests of one connection that are completed; all that its client is told of.
type Done = Rc<Cell<u64>>;

/// One connection, which keeps `depth` requests in flight.
struct Connection {
    flow: FlowId,
    length_bytes: u32,
    /// Requests in its socket.
    waiting: u32,
    /// The most that one look brings.
    look_max: u32,
    /// The most that one send carries.
    send_max: u32,
    inbox: u32,
    held: Option<Submission>,
    /// A look is asked for.
    looks: bool,
    gathered: u32,
    left: u64,
    done: Done,
}

impl Connection {
    fn pump(&mut self, context: &mut dyn Context) {
        while self.held.is_none() && self.inbox > 0 {
            self.inbox -= 1;
            let (flow, length_bytes) = (self.flow, self.length_bytes);
            let buffer = Some(Buffer::new(length_bytes as usize));
            let (op, offset_bytes, fua, cookie) = (Op::Read, 0, false, 0);
            self.hand_over(context, Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie });
        }
        if self.held.is_none() && !self.looks && self.waiting + self.gathered > 0 {
            self.looks = true;
            // It has ended when the next turn looks.
            context.timer(0, 0);
        }
    }

    fn hand_over(&mut self, context: &mut dyn Context, submission: Submission) {
        if let Err(Refused::TenantFull(submission)) = context.submit(DeviceIndex(0), submission) {
            self.held = Some(submission);
        }
    }
}

impl Client for Connection {
    fn start(&mut self, context: &mut dyn Context) {
        self.pump(context);
    }

    fn event(&mut self, context: &mut dyn Context, _: Event) {
        self.looks = false;
        let brings = self.waiting.min(self.look_max);
        self.waiting -= brings;
        self.inbox += brings;
        self.pump(context);
    }

    fn completed(&mut self, _: &mut dyn Context, _: Completion) {
        self.gathered += 1;
        self.done.set(self.done.get() + 1);
    }

    fn turn_end(&mut self, context: &mut dyn Context) {
        let sent = self.gathered.min(self.send_max);
        self.gathered -= sent;
        let asked = self.left.min(sent.into()) as u32;
        self.left -= u64::from(asked);
        self.waiting += asked;
        self.pump(context);
    }

    fn room(&mut self, context: &mut dyn Context) {
        if let Some(submission) = self.held.take() {
            self.hand_over(context, submission);
        }
        self.pump(context);
    }

    fn drain(&mut self, _: &mut dyn Context) {}

    fn is_done(&self) -> bool {
        false
    }
}

/// Connections of one tenant.
#[derive(Clone, Copy)]
struct Load {
    connections: u32,
    depth: u32,
    length_bytes: u32,
    look_max: u32,
    /// Requests of each in all.
    requests: u64,
}

impl Load {
    fn of(connections: u32) -> Load {
        Load { connections, depth: 256, length_bytes: 4096, look_max: 4096, requests: u64::MAX }
    }
}

/// A worker with two tenants of weights 1:3, and their completions.
fn worker_of(fair_turns: bool, loads: [Load; 2]) -> (Worker<VirtualHost>, [Done; 2]) {
    let options = PolicyOptions { depth: 64, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let weights = [100, 300].map(|weight| Weight::new(weight).unwrap());
    let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(1), &weights).unwrap());
    let null = NullDevice::new(1 << 20);
    let options = QueueOptions {
        hctx: HctxId(0),
        depth: 64,
        #[cfg(feature = "uring")]
        ring: None,
        interrupt: Arc::new(|hctx| panic!("{hctx:?} interrupted by a device that has nothing to say")),
    };
    let hctx = HwCtx::new(HwCtxOptions {
        id: HctxId(0),
        policy,
        device: null.open_queue(options).unwrap(),
        queue_depth: 64,
        limits: vec![StageLimits::DEFAULT; 2],
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    });
    let options = WorkerOptions { fair_turns, ..WorkerOptions::default() };
    let mut worker = Worker::new(VirtualHost::default(), vec![hctx], vec![null.info()], options);
    let done = [Done::default(), Done::default()];
    for (tenant, load) in loads.into_iter().enumerate() {
        for _ in 0..load.connections {
            let first = load.requests.min(load.depth.into()) as u32;
            worker.adopt(Box::new(Connection {
                flow: FlowId(tenant as u32),
                length_bytes: load.length_bytes,
                waiting: first,
                look_max: load.look_max,
                send_max: (CLIENT_BYTES / load.length_bytes).max(1),
                inbox: 0,
                held: None,
                looks: false,
                gathered: 0,
                left: load.requests - u64::from(first),
                done: done[tenant].clone(),
            }));
        }
    }
    (worker, done)
}

fn turns(worker: &mut Worker<VirtualHost>, count: u32) {
    for _ in 0..count {
        let busy = worker.turn();
        worker.enter(busy);
    }
}

/// The second tenant's bytes over the first's, in turns in which both are always backlogged.
fn ratio(fair_turns: bool, loads: [Load; 2]) -> f64 {
    let (mut worker, done) = worker_of(fair_turns, loads);
    turns(&mut worker, 20);
    let before = done.each_ref().map(|done| done.get());
    turns(&mut worker, 100);
    let bytes = |tenant: usize| (done[tenant].get() - before[tenant]) as f64 * f64::from(loads[tenant].length_bytes);
    bytes(1) / bytes(0)
}

#[test]
fn a_worker_that_is_the_bottleneck_is_shared_by_weight_and_not_by_connection() {
    for (light, heavy) in [(4, 4), (1, 4), (4, 1), (16, 1)] {
        let loads = [Load::of(light), Load::of(heavy)];
        let (before, after) = (ratio(false, loads), ratio(true, loads));
        println!(
            "{light}:{heavy} connections: 1:{before:.3} with turns that do not end, 1:{after:.3} with those that do"
        );
        assert!((after / 3.0 - 1.0).abs() < 0.02, "{light}:{heavy} connections gave 1:{after:.3}");
        if light > heavy {
            assert!(before < 1.0, "the test has teeth: {before}");
        }
    }
}

#[test]
fn sizes_do_not_count_either() {
    for (light_bytes, heavy_bytes) in [(4 << 10, 64 << 10), (64 << 10, 4 << 10), (512, 4 << 10)] {
        let loads = [light_bytes, heavy_bytes].map(|length_bytes| Load { length_bytes, ..Load::of(2) });
        let after = ratio(true, loads);
        assert!((after / 3.0 - 1.0).abs() < 0.03, "{light_bytes} and {heavy_bytes} bytes gave 1:{after:.3}");
    }
}

/// Requests like writes: one look at a socket brings a part of their payloads.
#[test]
fn a_tenant_of_which_each_look_brings_little_keeps_its_last_request_staged_and_its_share() {
    for look_max in [2, 3, 8] {
        let heavy = Load { length_bytes: 64 << 10, depth: 64, look_max, ..Load::of(1) };
        let (before, after) = (ratio(false, [Load::of(4), heavy]), ratio(true, [Load::of(4), heavy]));
        println!("{look_max} of 64 KiB each look: 1:{before:.3} and 1:{after:.3}");
        assert!((after / 3.0 - 1.0).abs() < 0.05, "{look_max} a look gave 1:{after:.3}");
        assert!(before < 2.0, "the test has teeth: {before}");
    }
}

#[test]
fn where_nobody_competes_turns_are_as_long_as_ever() {
    for load in [Load::of(1), Load::of(4), Load { length_bytes: 64 << 10, ..Load::of(2) }] {
        let nobody = Load { connections: 0, ..Load::of(1) };
        let alone = |fair_turns| {
            let (mut worker, [_, done]) = worker_of(fair_turns, [nobody, load]);
            turns(&mut worker, 30);
            done.get()
        };
        assert_eq!(alone(true), alone(false));
    }
}

/// Few requests in flight of each of many connections: each turn serves them all, and they share the cost of a look.
#[test]
fn turns_that_serve_shallow_tenants_are_as_long_as_ever() {
    for depth in [1, 2, 8, 15] {
        let loads = [Load { depth, ..Load::of(8) }; 2];
        let served = |fair_turns| {
            let (mut worker, done) = worker_of(fair_turns, loads);
            turns(&mut worker, 30);
            done.map(|done| done.get())
        };
        assert_eq!(served(true), served(false), "depth {depth}");
    }
}

#[test]
fn a_turn_that_ended_early_loses_no_request_and_no_wake_up() {
    for requests in [1, 2, 63, 1000] {
        let loads = [Load { requests, ..Load::of(3) }, Load { requests, look_max: 5, ..Load::of(1) }];
        let (mut worker, done) = worker_of(true, loads);
        // Ends when the worker sleeps with nothing left to come, and not before that.
        worker.work();
        assert_eq!(done.map(|done| done.get()), [3 * requests, requests]);
        assert_eq!(worker.hctxs()[0].admitted(), 0);
    }
}

#[test]
fn a_flow_whose_looks_bring_nothing_is_hardly_held_back() {
    let mut staging = crate::stage::Staging::new(&[StageLimits::DEFAULT]);
    assert!(staging.admit(FlowId(0), 4096));
    let mut held = 0;
    for _ in 0..1000 {
        if staging.hold_back(FlowId(0)) {
            held += 1;
            staging.held_back(FlowId(0));
        }
    }
    assert_eq!(held, 20, "the times 0, 2, 6, 14, 30, 62 and each 64th from there on");
    // A look that brings something counts for all that did not.
    while !staging.hold_back(FlowId(0)) {}
    assert!(staging.admit(FlowId(0), 4096));
    staging.held_back(FlowId(0));
    assert!(staging.hold_back(FlowId(0)));
}
