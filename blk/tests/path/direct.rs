//! A policy that stages nothing: where its requests go, and when they wait. The policy here names the class queue by
//! the flow, so that each test sees the path and not a scheduler.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::Remains;
use mqfq_blk::device::{Command, DeviceQueue, QueueFull, Reaped};
use mqfq_blk::hctx::{Full, HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::split::Split;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::{CostModel, FlowId, HctxId, Weight};
use mqfq_sched::cost::Cost;
use mqfq_sched::policy::{ClassWeights, DirectPolicy, DispatchToken, Done, Entry, Kick, Pick, Policy, QueueClass};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// Flow n goes to the nth class; weights are given once, at the first completion.
#[derive(Default)]
struct ByFlow {
    calls: Mutex<Vec<String>>,
}

impl ByFlow {
    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Policy for ByFlow {
    type Queue = u32;
    type Direct<'a> = &'a ByFlow;

    fn open_queue(&self, _: HctxId, _: usize) -> u32 {
        0
    }

    fn submit(&self, _: &mut u32, _: Entry, _: u64, _: &mut impl Kick) {
        panic!("a direct policy was asked to stage a request");
    }

    fn pick(&self, _: &mut u32, _: u64, _: &mut impl Kick) -> Pick {
        panic!("a direct policy was asked to arbitrate");
    }

    fn complete(&self, _: &mut u32, _: Done, _: DispatchToken, _: u64, _: &mut impl Kick) {
        panic!("a direct policy was given a token back");
    }

    fn as_direct(&self) -> Option<&ByFlow> {
        Some(self)
    }

    fn set_weight(&self, _: FlowId, _: Weight) {}

    fn staged(&self, _: &u32) -> usize {
        0
    }
}

impl DirectPolicy<u32> for &ByFlow {
    fn ended(self, queue: &mut u32, flow: FlowId, cost: Cost, _: u64) {
        *queue += 1;
        self.note(format!("ended {} {}", flow.0, cost.0));
    }

    fn class_of(self, _: &u32, flow: FlowId, _: u64) -> QueueClass {
        QueueClass::ALL[flow.0 as usize % 3]
    }

    fn dispatched(self, _: &mut u32, flow: FlowId, cost: Cost, class: QueueClass, _: u64) {
        self.note(format!("dispatched {} {} {}", flow.0, cost.0, class.name()));
    }

    fn adjust(self, queue: &mut u32, _: u64) -> Option<ClassWeights> {
        (*queue == 1).then_some(ClassWeights { high: 9, medium: 3, low: 1 })
    }
}

/// Commands and calls that the device saw.
#[derive(Default)]
struct Seen {
    held: Vec<Command>,
    ended: Vec<Reaped>,
    doorbells: usize,
    weights: Option<ClassWeights>,
    refuses: bool,
}

struct SeenQueue(Rc<RefCell<Seen>>);

impl DeviceQueue for SeenQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        let mut seen = self.0.borrow_mut();
        if seen.refuses {
            return Err(QueueFull(command));
        }
        seen.held.push(command);
        Ok(())
    }

    fn ring_doorbell(&mut self, _: u64) {
        self.0.borrow_mut().doorbells += 1;
    }

    fn reap(&mut self, _: u64, out: &mut Vec<Reaped>) {
        out.append(&mut self.0.borrow_mut().ended);
    }

    fn next_event_ns(&self) -> Option<u64> {
        None
    }

    fn in_flight(&self) -> usize {
        self.0.borrow().held.len()
    }

    fn reset(&mut self, _: u64, out: &mut Vec<Reaped>) -> bool {
        out.extend(self.0.borrow_mut().held.drain(..).map(|command| command.ended(Status::TimedOut)));
        true
    }

    fn set_class_weights(&mut self, weights: ClassWeights, _: u64) -> bool {
        self.0.borrow_mut().weights = Some(weights);
        true
    }
}

struct Rig {
    hctx: HwCtx<ByFlow>,
    policy: Arc<ByFlow>,
    seen: Rc<RefCell<Seen>>,
    completions: Vec<(Owner, Completion)>,
    cookie: u64,
}

impl Rig {
    fn new(
        depth: u16,
        requests_max: u32,
        path: PathOptions,
        shape: impl FnOnce(HwCtx<ByFlow>) -> HwCtx<ByFlow>,
    ) -> Rig {
        let (policy, seen) = (Arc::new(ByFlow::default()), Rc::new(RefCell::new(Seen::default())));
        let hctx = HwCtx::new(HwCtxOptions {
            id: HctxId(0),
            policy: policy.clone(),
            device: Box::new(SeenQueue(seen.clone())),
            queue_depth: depth,
            limits: vec![StageLimits { requests_max, bytes_max: 1 << 20 }; 6],
            cost: CostModel::FLAT,
            path,
        });
        Rig { hctx: shape(hctx), policy, seen, completions: Vec::new(), cookie: 0 }
    }

    fn plain(depth: u16, requests_max: u32) -> Rig {
        Rig::new(depth, requests_max, PathOptions::TIMELESS, HwCtx::with_class_queues)
    }

    fn submit_at(&mut self, flow: u32, offset_bytes: u64) -> bool {
        self.submit_as(flow, Op::Read, offset_bytes, false)
    }

    fn submit_as(&mut self, flow: u32, op: Op, offset_bytes: u64, fua: bool) -> bool {
        let cookie = self.cookie;
        let (flow, length_bytes) = (FlowId(flow), 4096);
        let submission = Submission { flow, op, offset_bytes, length_bytes, fua, buffer: None, cookie };
        match self.hctx.submit(Owner(flow.0), submission, 0, &mut |_| panic!("nobody is kicked")) {
            Ok(()) => {
                self.cookie += 1;
                true
            }
            Err(Full(back)) => {
                assert_eq!(back.cookie, cookie, "a refused submission comes back whole");
                false
            }
        }
    }

    fn submit(&mut self, flow: u32) -> bool {
        self.submit_at(flow, self.cookie * 8192)
    }

    fn run(&mut self) -> usize {
        let run = self.hctx.run(0, &mut |_| panic!("nobody is kicked"));
        assert!(!run.again, "there is nothing to arbitrate");
        run.dispatched
    }

    /// Number of commands on the device, by class.
    fn held(&self) -> [usize; 3] {
        QueueClass::ALL.map(|class| self.seen.borrow().held.iter().filter(|command| command.class == class).count())
    }

    /// The device ends the oldest command of a class; the worker reaps and runs.
    fn end(&mut self, class: QueueClass) {
        let mut seen = self.seen.borrow_mut();
        let at = seen.held.iter().position(|command| command.class == class).expect("it holds one of this class");
        let command = seen.held.remove(at);
        seen.ended.push(command.ended(Status::Ok));
        drop(seen);
        self.hctx.reap(0, &mut |_| panic!("nobody is kicked"), &mut self.completions);
        self.run();
    }

    fn cookies(&mut self) -> Vec<u64> {
        self.completions.drain(..).map(|(_, completion)| completion.cookie).collect()
    }
}

#[test]
fn a_request_is_in_the_devices_queue_before_submit_returns_and_the_doorbell_follows_once() {
    let mut rig = Rig::plain(8, 64);
    (0..3).for_each(|flow| assert!(rig.submit(flow)));
    assert_eq!(rig.held(), [1, 1, 1], "by class, with nothing run yet");
    assert_eq!((rig.hctx.staged(), rig.seen.borrow().doorbells), (0, 0));
    assert_eq!(rig.run(), 3);
    assert_eq!(rig.run(), 0);
    assert_eq!(rig.seen.borrow().doorbells, 1, "no doorbell without news");
    for class in QueueClass::ALL {
        rig.end(class);
    }
    assert_eq!(rig.cookies(), [0, 1, 2]);
    let calls = [
        "dispatched 0 4096 high",
        "dispatched 1 4096 medium",
        "dispatched 2 4096 low",
        "ended 0 4096",
        "ended 1 4096",
        "ended 2 4096",
    ];
    assert_eq!(*rig.policy.calls.lock().unwrap(), calls);
    assert_eq!(rig.seen.borrow().weights, Some(ClassWeights { high: 9, medium: 3, low: 1 }));
}

#[test]
fn parts_go_to_the_queue_of_their_class_and_wait_there_for_places() {
    let path = PathOptions { split: Split::Bytes(4096), ..PathOptions::TIMELESS };
    let mut rig = Rig::new(2, 64, path, HwCtx::with_class_queues);
    let (flow, op, buffer) = (FlowId(2), Op::Write, Some(Buffer::new(5 * 4096)));
    let whole = Submission { flow, op, offset_bytes: 0, length_bytes: 5 * 4096, fua: true, buffer, cookie: 9 };
    rig.hctx.submit(Owner(2), whole, 0, &mut |_| panic!("nobody is kicked")).unwrap();
    assert!(rig.submit(0));
    assert_eq!((rig.run(), rig.held(), rig.hctx.staged()), (3, [1, 0, 2], 3));
    for left in [2, 1, 0, 0, 0] {
        assert!(rig.cookies().is_empty());
        assert!(rig.seen.borrow().held.iter().filter(|command| command.class == QueueClass::Low).all(|part| part.fua));
        rig.end(QueueClass::Low);
        assert_eq!(rig.hctx.staged(), left);
    }
    assert_eq!(rig.cookies(), [9]);
    rig.end(QueueClass::High);
    assert_eq!((rig.hctx.in_flight(), rig.hctx.admitted()), (0, 0));
}

#[test]
fn a_full_class_keeps_nothing_from_another_and_goes_on_in_order() {
    let mut rig = Rig::plain(2, 64);
    (0..5).for_each(|_| assert!(rig.submit(2)));
    assert!(rig.submit(0) && rig.submit(1));
    assert_eq!((rig.run(), rig.held(), rig.hctx.staged()), (4, [1, 1, 2], 3));
    assert_eq!(rig.hctx.in_flight(), 4);
    for left in [2, 1, 0, 0, 0] {
        rig.end(QueueClass::Low);
        assert_eq!((rig.hctx.staged(), rig.held()[0]), (left, 1));
    }
    assert_eq!(rig.cookies(), [0, 1, 2, 3, 4]);
    rig.end(QueueClass::High);
    rig.end(QueueClass::Medium);
    assert_eq!((rig.hctx.in_flight(), rig.hctx.admitted()), (0, 0));
}

#[test]
fn what_waits_for_a_place_is_bounded_per_flow_and_the_flow_is_told_of_room() {
    let mut rig = Rig::plain(1, 4);
    (0..5).for_each(|_| assert!(rig.submit(2)));
    assert!(!rig.submit(2), "one on the device, four wait");
    assert!(rig.submit(5), "another flow of the same class has a bound of its own");
    assert!(rig.submit(0), "and the other classes are free");
    assert_eq!(rig.hctx.take_room().next(), None);
    rig.end(QueueClass::Low);
    assert_eq!(rig.hctx.take_room().collect::<Vec<_>>(), [FlowId(2)]);
}

#[test]
fn a_device_queue_that_refuses_keeps_the_order() {
    let mut rig = Rig::plain(8, 64);
    rig.seen.borrow_mut().refuses = true;
    (0..4).for_each(|_| assert!(rig.submit(1)));
    assert_eq!((rig.run(), rig.hctx.is_blocked()), (0, true));
    rig.seen.borrow_mut().refuses = false;
    assert_eq!((rig.run(), rig.hctx.is_blocked(), rig.held()), (4, false, [0, 4, 0]));
    (0..4).for_each(|_| rig.end(QueueClass::Medium));
    assert_eq!(rig.cookies(), [0, 1, 2, 3]);
}

#[test]
fn fua_reaches_the_device_whichever_way_a_write_goes() {
    type Shape = fn(HwCtx<ByFlow>) -> HwCtx<ByFlow>;
    let shapes: [Shape; 4] =
        [|hctx| hctx, HwCtx::with_class_queues, HwCtx::raw, |hctx: HwCtx<ByFlow>| hctx.with_class_queues().raw()];
    for shape in shapes {
        // One tag of each class: a request that waits for a tag has to keep the flag as well.
        let mut rig = Rig::new(2, 64, PathOptions::TIMELESS, shape);
        let fua = [true, false, false, true, true, false, true];
        let mut seen = vec![None; fua.len()];
        let mut left = (0..).zip(fua);
        let mut next = left.next();
        while seen.contains(&None) {
            while let Some((block, fua)) = next
                && rig.submit_as(1, Op::Write, block * 4096, fua)
            {
                next = left.next();
            }
            rig.run();
            let class = rig.seen.borrow().held[0].class;
            for command in &rig.seen.borrow().held {
                seen[(command.offset_bytes / 4096) as usize] = Some(command.fua);
            }
            rig.end(class);
        }
        assert_eq!(seen, fua.map(Some));
    }
}

#[test]
fn a_device_queue_that_refuses_without_a_block_layer_keeps_no_tag() {
    let mut rig = Rig::new(2, 64, PathOptions::TIMELESS, HwCtx::raw);
    rig.seen.borrow_mut().refuses = true;
    (0..10).for_each(|_| assert!(!rig.submit(1)));
    assert_eq!(rig.hctx.in_flight(), 0);
    rig.seen.borrow_mut().refuses = false;
    assert!(rig.submit(1) && rig.submit(1));
    assert_eq!((rig.run(), rig.hctx.in_flight()), (2, 2));
    let class = rig.seen.borrow().held[0].class;
    (0..2).for_each(|_| rig.end(class));
    assert_eq!((rig.cookies(), rig.hctx.in_flight()), (vec![0, 1], 0));
    assert_eq!(rig.hctx.take_room().collect::<Vec<_>>(), [FlowId(1)], "told once of the room");
}

#[test]
#[should_panic(expected = "no block layer, no change of policy")]
fn without_a_block_layer_no_other_policy_is_taken() {
    let mut rig = Rig::new(2, 64, PathOptions::TIMELESS, HwCtx::raw);
    rig.hctx.freeze(0);
    rig.hctx.thaw(Some((Arc::new(ByFlow::default()), 0)), 0, &mut |_| panic!("nobody is kicked"));
}

#[test]
fn requests_that_go_again_wait_for_a_tag_and_nobody_looks_for_it_meanwhile() {
    const TIMEOUT_NS: u64 = 1_000;
    let path = PathOptions { timeout_ns: TIMEOUT_NS, ..PathOptions::default() };
    let mut rig = Rig::new(2, 64, path, HwCtx::with_class_queues);
    let kick = &mut |_| panic!("nobody is kicked");
    assert!(rig.submit(0));
    rig.run();
    rig.hctx.reap(TIMEOUT_NS, kick, &mut rig.completions);
    // One more of its class, and two of another, which have not timed out when the queue is reset.
    for (flow, cookie) in [(0, 1), (1, 2), (1, 3)] {
        let (flow, op) = (FlowId(flow), Op::Read);
        let one = Submission { flow, op, offset_bytes: 0, length_bytes: 4096, fua: false, buffer: None, cookie };
        assert!(rig.hctx.submit(Owner(0), one, TIMEOUT_NS * 3 / 2, kick).is_ok());
    }
    rig.hctx.run(TIMEOUT_NS * 3 / 2, kick);
    rig.hctx.reap(TIMEOUT_NS * 2, kick, &mut rig.completions);
    assert_eq!((rig.held(), rig.cookies()), ([0, 0, 0], vec![0]), "all came back, and one had timed out");
    assert_eq!(rig.hctx.next_event_ns(), Some(0), "there are tags");
    rig.hctx.run(TIMEOUT_NS * 2, kick);
    assert_eq!(rig.held(), [0, 2, 0], "in the queue for requests that know no class");
    assert_ne!(rig.hctx.next_event_ns(), Some(0), "the device says when there is another");
    (0..3).for_each(|_| rig.end(QueueClass::Medium));
    assert_eq!(rig.cookies().len(), 3);
}

#[test]
fn what_came_while_the_policy_was_changed_goes_when_it_is_done() {
    let mut rig = Rig::plain(2, 64);
    assert!(rig.submit(0));
    rig.hctx.freeze(0);
    (0..4).for_each(|_| assert!(rig.submit(0)));
    assert_eq!((rig.held(), rig.hctx.is_quiet()), ([1, 0, 0], false));
    rig.end(QueueClass::High);
    assert!(rig.hctx.is_quiet());
    let policy = Arc::new(ByFlow::default());
    rig.hctx.thaw(Some((policy.clone(), 0)), 0, &mut |_| panic!("nobody is kicked"));
    assert_eq!((rig.run(), rig.held(), rig.hctx.staged()), (2, [2, 0, 0], 2));
    (0..4).for_each(|_| rig.end(QueueClass::High));
    assert_eq!(rig.cookies(), [0, 1, 2, 3, 4]);
    assert_eq!(policy.calls.lock().unwrap().len(), 8, "four of each");
}

#[test]
fn without_class_queues_all_classes_are_one_queue_in_one_order() {
    let mut rig = Rig::new(2, 64, PathOptions::TIMELESS, |hctx| hctx);
    // Requests that wait come from the lowest class to the highest.
    for flow in [0, 1, 2, 1, 0, 2] {
        assert!(rig.submit(flow));
    }
    assert_eq!((rig.run(), rig.hctx.staged()), (2, 4));
    let ended = |rig: &mut Rig| {
        let class = rig.seen.borrow().held[0].class;
        rig.end(class);
    };
    (0..6).for_each(|_| ended(&mut rig));
    assert_eq!(rig.cookies(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn what_comes_between_a_reap_and_the_run_after_it_goes_behind_what_waits() {
    for shape in [|hctx: HwCtx<ByFlow>| hctx, HwCtx::with_class_queues] {
        let mut rig = Rig::new(1, 64, PathOptions::TIMELESS, shape);
        assert!(rig.submit(1) && rig.submit(1));
        rig.run();
        let command = rig.seen.borrow_mut().held.remove(0);
        rig.seen.borrow_mut().ended.push(command.ended(Status::Ok));
        rig.hctx.reap(0, &mut |_| panic!("nobody is kicked"), &mut rig.completions);
        // A tag is free, and the second has waited for it.
        assert!(rig.submit(1));
        rig.run();
        let class = rig.seen.borrow().held[0].class;
        (0..2).for_each(|_| rig.end(class));
        assert_eq!(rig.cookies(), [0, 1, 2]);
    }
}

#[test]
fn the_low_latency_layer_asks_for_the_class_and_counts_nothing_else() {
    let mut rig = Rig::new(1, 64, PathOptions::TIMELESS, |hctx| hctx.with_class_queues().raw());
    (0..3).for_each(|flow| assert!(rig.submit(flow)));
    assert_eq!((rig.held(), rig.hctx.admitted()), ([1, 1, 1], 3));
    assert!(!rig.submit(2), "no place, and nowhere to wait");
    assert_eq!(rig.policy.calls.lock().unwrap().len(), 3, "the policy was not told of what was refused");
    assert_eq!((rig.run(), rig.run(), rig.seen.borrow().doorbells), (3, 0, 1), "no doorbell without news");
    assert_eq!((rig.hctx.stats().doorbells, rig.hctx.stats().dispatched), (1, 3));
    rig.end(QueueClass::Low);
    assert_eq!(rig.hctx.take_room().collect::<Vec<_>>(), [FlowId(2)]);
    assert!(rig.submit(2));
    rig.run();
    for class in [QueueClass::Low, QueueClass::High, QueueClass::Medium] {
        rig.end(class);
    }
    assert_eq!((rig.cookies(), rig.hctx.in_flight()), (vec![2, 3, 0, 1], 0));
    assert_eq!(rig.seen.borrow().weights, Some(ClassWeights { high: 9, medium: 3, low: 1 }));
    assert_eq!(rig.hctx.counters().flows(), 0);
}

#[test]
fn without_a_block_layer_a_flow_has_requests_from_their_submission_to_their_end() {
    let mut rig = Rig::new(4, 64, PathOptions::TIMELESS, |hctx| hctx.with_class_queues().raw());
    let (flow, op) = (FlowId(1), Op::Flush);
    let submission = Submission { flow, op, offset_bytes: 0, length_bytes: 0, fua: false, buffer: None, cookie: 0 };
    rig.hctx.submit(Owner(1), submission, 100, &mut |_| ()).unwrap();
    let has = |rig: &Rig, whose| [99, 100, 101].map(|until_ns| rig.hctx.has_any(whose, until_ns));
    for whose in [Remains::Flow(flow), Remains::All, Remains::Bytes(0, 1)] {
        assert_eq!(has(&rig, whose), [false, true, true], "{whose:?}");
    }
    assert_eq!(has(&rig, Remains::Flow(FlowId(2))), [false; 3]);
    rig.run();
    rig.end(QueueClass::ALL[1]);
    assert_eq!(has(&rig, Remains::All), [false; 3]);
}

impl Rig {
    /// Submits a write of `parts` parts of 4 KiB.
    fn write_parts(&mut self, flow: u32, parts: u32) -> bool {
        let (flow, op, length_bytes) = (FlowId(flow), Op::Write, parts * 4096);
        let buffer = Some(Buffer::new(length_bytes as usize));
        let submission = Submission { flow, op, offset_bytes: 0, length_bytes, fua: false, buffer, cookie: 0 };
        self.hctx.submit(Owner(flow.0), submission, 0, &mut |_| panic!("nobody is kicked")).is_ok()
    }
}

#[test]
fn parts_of_every_flow_up_to_its_bound_find_room_beside_those_on_all_class_queues() {
    let path = PathOptions { split: Split::Bytes(4096), ..PathOptions::TIMELESS };
    let mut rig = Rig::new(2, 8, path, HwCtx::with_class_queues);
    // Two parts each, as a quarter of the bound: one request of each class is on the device, four of each flow wait.
    let taken = [0, 1, 2, 3, 4, 5].map(|flow| (0..10).take_while(|_| rig.write_parts(flow, 2)).count());
    assert_eq!((taken, rig.held()), ([5, 5, 5, 4, 4, 4], [2; 3]));
    assert_eq!((rig.hctx.admitted(), rig.hctx.staged()), (54, 48));
    for class in (0..9).flat_map(|_| QueueClass::ALL).flat_map(|class| [class; 2]) {
        rig.end(class);
    }
    assert_eq!((rig.completions.len(), rig.hctx.admitted(), rig.hctx.is_idle()), (27, 0, true));
}

#[test]
fn the_policy_is_asked_for_weights_when_something_has_ended_a_part_too_and_not_otherwise() {
    let path = PathOptions { split: Split::Bytes(4096), ..PathOptions::TIMELESS };
    let mut rig = Rig::new(2, 64, path, HwCtx::with_class_queues);
    assert!(rig.write_parts(0, 2));
    rig.run();
    rig.end(QueueClass::ALL[0]);
    assert!(rig.completions.is_empty() && rig.seen.borrow_mut().weights.take().is_some(), "the first of two parts");
    rig.hctx.reap(0, &mut |_| panic!("nobody is kicked"), &mut rig.completions);
    assert_eq!(rig.seen.borrow().weights, None, "nothing has ended");
}
