//! The data path of several workers in virtual time: the very `HwCtx` that the workers run, with a scripted device.
//!
//! Kicks are counted and answered by a run of the kicked context, in an order drawn from a seed, so each test covers
//! many interleavings of whole steps. (Interleavings inside a step are the model checker's, in `mqfq-sched`.)

use mqfq_blk::device::{Command, DeviceQueue, QueueFull, Reaped};
use mqfq_blk::hctx::{Full, HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::slots::{NoPlace, Slot, Slots};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::{CostModel, FlowId, HctxId, PolicyKind, PolicyOptions, Topology, VSpan, VTime, Weight};
use mqfq_policies::{MQFQ_SERIAL, SFQD};
use mqfq_sched::policy::AnyPolicy;
use mqfq_testing::Random;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// A device that holds commands until the test lets them go, in any order.
#[derive(Default)]
struct Script {
    held: RefCell<Vec<(u16, Command)>>,
    done: RefCell<Vec<(u16, Command)>>,
    /// Commands that a queue takes before it is full.
    room: Cell<usize>,
    most_held: Cell<usize>,
}

struct ScriptQueue {
    hctx: u16,
    script: Rc<Script>,
}

impl DeviceQueue for ScriptQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        let mut held = self.script.held.borrow_mut();
        if held.iter().filter(|(hctx, _)| *hctx == self.hctx).count() >= self.script.room.get() {
            return Err(QueueFull(command));
        }
        held.push((self.hctx, command));
        self.script.most_held.set(self.script.most_held.get().max(held.len()));
        Ok(())
    }

    fn ring_doorbell(&mut self, _: u64) {}

    fn reap(&mut self, _: u64, out: &mut Vec<Reaped>) {
        for (_, command) in self.script.done.borrow_mut().extract_if(.., |(hctx, _)| *hctx == self.hctx) {
            out.push(command.ended(Status::Ok));
        }
    }

    fn next_event_ns(&self) -> Option<u64> {
        None
    }

    fn in_flight(&self) -> usize {
        self.script.held.borrow().iter().filter(|(hctx, _)| *hctx == self.hctx).count()
    }
}

struct Env {
    hctxs: Vec<HwCtx<AnyPolicy>>,
    script: Rc<Script>,
    kicked: RefCell<Vec<u16>>,
    completions: Vec<(Owner, Completion)>,
    outstanding: BTreeMap<u64, u32>,
    next_cookie: u64,
    now_ns: u64,
    depth: u32,
}

impl Env {
    fn new(kind: PolicyKind, hctxs: usize, weights: &[u64], depth: u32, queue_depth: u16) -> Env {
        let window = VSpan::from_bytes(64 << 10);
        let options = PolicyOptions {
            kind,
            depth,
            window,
            start: VTime::from_raw(u64::MAX - (1 << 20)),
            ..PolicyOptions::new(kind)
        };
        let weights: Vec<Weight> = weights.iter().map(|&weight| Weight::new(weight).unwrap()).collect();
        let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(hctxs), &weights).unwrap());
        let script = Rc::new(Script::default());
        script.room.set(usize::MAX);
        let hctx = |hctx| {
            HwCtx::new(HwCtxOptions {
                id: HctxId(hctx),
                policy: policy.clone(),
                device: Box::new(ScriptQueue { hctx, script: script.clone() }),
                queue_depth,
                limits: vec![StageLimits { requests_max: 64, bytes_max: 8 << 20 }; weights.len()],
                cost: CostModel::FLAT,
                path: PathOptions::default(),
            })
        };
        let hctxs = (0..hctxs as u16).map(hctx).collect();
        let (completions, outstanding) = (Vec::new(), BTreeMap::new());
        Env { hctxs, script, kicked: RefCell::default(), completions, outstanding, next_cookie: 0, now_ns: 0, depth }
    }

    fn submit(&mut self, hctx: usize, flow: u32, length_bytes: u32) -> bool {
        let cookie = self.next_cookie;
        let submission = Submission {
            flow: FlowId(flow),
            op: Op::Read,
            offset_bytes: 0,
            length_bytes,
            fua: false,
            buffer: None,
            cookie,
        };
        let kicked = &self.kicked;
        let mut kick = |hctx: HctxId| kicked.borrow_mut().push(hctx.0);
        match self.hctxs[hctx].submit(Owner(flow), submission, self.now_ns, &mut kick) {
            Ok(()) => {
                self.next_cookie += 1;
                self.outstanding.insert(cookie, flow);
                true
            }
            Err(Full(back)) => {
                assert_eq!(back.cookie, cookie, "a refused submission comes back whole");
                false
            }
        }
    }

    fn run(&mut self, hctx: usize) {
        let kicked = &self.kicked;
        let mut kick = |to: HctxId| {
            assert_ne!(to.0 as usize, hctx, "a kick of oneself");
            kicked.borrow_mut().push(to.0);
        };
        while self.hctxs[hctx].run(self.now_ns, &mut kick).again {}
    }

    /// Reaps and then runs, as a worker does. The caller runs the kicked ones.
    fn reap(&mut self, hctx: usize) {
        let kicked = &self.kicked;
        let mut kick = |to: HctxId| kicked.borrow_mut().push(to.0);
        self.hctxs[hctx].reap(self.now_ns, &mut kick, &mut self.completions);
        for (Owner(flow), completion) in self.completions.drain(..) {
            let submitted = self.outstanding.remove(&completion.cookie);
            assert_eq!(submitted, Some(flow), "a request completes once, to its owner (I10)");
        }
        self.run(hctx);
    }

    fn settle(&mut self, draw: &mut Random) {
        loop {
            let mut kicked = self.kicked.borrow_mut();
            if kicked.is_empty() {
                return;
            }
            let next = draw.index(kicked.len());
            let hctx = kicked.swap_remove(next);
            drop(kicked);
            self.run(hctx as usize);
        }
    }

    /// Lets time pass until a policy that holds back wants to be asked again. False if none does.
    fn wait(&mut self, draw: &mut Random) -> bool {
        let Some(next_ns) = self.hctxs.iter().filter_map(HwCtx::next_event_ns).min() else { return false };
        assert!(next_ns > self.now_ns, "a worker is to come back at {next_ns} at {}", self.now_ns);
        self.now_ns = next_ns;
        for hctx in 0..self.hctxs.len() {
            if self.hctxs[hctx].next_event_ns() == Some(next_ns) {
                self.run(hctx);
                self.settle(draw);
            }
        }
        true
    }

    fn finish_one(&mut self, draw: &mut Random) {
        let mut held = self.script.held.borrow_mut();
        if held.is_empty() {
            return;
        }
        let next = draw.index(held.len());
        let (hctx, command) = held.swap_remove(next);
        drop(held);
        self.script.done.borrow_mut().push((hctx, command));
        self.reap(hctx as usize);
        self.settle(draw);
    }

    fn staged(&self) -> usize {
        self.hctxs.iter().map(HwCtx::staged).sum()
    }
}

#[test]
fn under_any_interleaving_every_request_completes_once_and_the_device_holds_at_most_d() {
    for kind in mqfq_policies::ALL {
        for seed in 0..60 {
            let draw = &mut Random::new(seed);
            let depth = [1, 2, 7, 64][draw.index(4)];
            let hctxs = [1, 2, 5][draw.index(3)];
            let queue_depth = [1, 3, 128][draw.index(3)];
            let mut env = Env::new(kind, hctxs, &[1, 100, 10_000], depth, queue_depth);
            env.script.room.set([1, 2, 1000][draw.index(3)]);
            for _ in 0..600 {
                if draw.index(2) == 0 {
                    let (hctx, flow) = (draw.index(hctxs), draw.index(3) as u32);
                    env.submit(hctx, flow, [512, 4096, 65536, 1 << 20][draw.index(4)]);
                    env.run(hctx);
                    env.settle(draw);
                } else {
                    env.finish_one(draw);
                }
            }
            while !env.outstanding.is_empty() {
                if env.script.held.borrow().is_empty() {
                    assert!(env.wait(draw), "{kind} seed {seed}: work is left, the device is idle (I4)");
                } else {
                    env.finish_one(draw);
                }
            }
            assert_eq!(env.staged(), 0);
            if kind.has_depth() {
                assert!(env.script.most_held.get() <= env.depth as usize, "{kind} seed {seed}: I2");
            }
        }
    }
}

#[test]
fn with_requests_staged_the_device_is_never_below_d() {
    // Work conservation, seen at the device: 4 contexts, D = 8, and always more than 8 requests of a flow that is not
    // ahead of others: whatever finishes, 8 are on the device again at once.
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL, SFQD] {
        let draw = &mut Random::new(7);
        let mut env = Env::new(kind, 4, &[100], 8, 64);
        for n in 0..200 {
            env.submit(n % 4, 0, 4096);
            env.run(n % 4);
            env.settle(draw);
        }
        while env.staged() > 0 {
            assert_eq!(env.script.held.borrow().len(), 8, "{kind}: {} staged", env.staged());
            env.finish_one(draw);
        }
    }
}

#[test]
fn a_flow_with_three_times_the_weight_gets_three_times_the_bytes_on_other_queues_too() {
    // Weights 100 and 300, 16 KiB against 4 KiB, flow 0 on two contexts and flow 1 on a third. 2,000 completions: bytes
    // as 1 to 3, off by at most the tight bound of I6 (T = 64 KiB, D = 8): at weight 100 2T + (D + 1)(16 KiB + 4 KiB
    // / 3) = 128 + 9 * 17.4 = 284 KiB. Weighted service x of each: x / 16 KiB + 3x / 4 KiB = 2,000, so about 2,460 KiB.
    let draw = &mut Random::new(3);
    let mut env = Env::new(PolicyKind::Mqfq, 3, &[100, 300], 8, 64);
    for _ in 0..2000 {
        for (hctx, flow, length_bytes) in [(0, 0, 16384), (1, 0, 16384), (2, 1, 4096)] {
            while env.submit(hctx, flow, length_bytes) {}
            env.run(hctx);
        }
        env.settle(draw);
        env.finish_one(draw);
    }
    let bytes = |hctx: usize, flow: u32| {
        env.hctxs[hctx].counters().read_flow(FlowId(flow)).map_or(0, |stats| stats.transferred_bytes())
    };
    let weighted = [bytes(0, 0) + bytes(1, 0), bytes(2, 1) / 3];
    assert!(weighted[0] > 2000 << 10, "{weighted:?}");
    assert!(weighted[0].abs_diff(weighted[1]) <= 284 << 10, "{weighted:?}");
}

// Slots beside a map from every name given out to its value.

proptest! {
    #[test]
    fn a_name_finds_its_thing_or_nothing(
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200),
    ) {
        const MAX: u32 = 7;
        let mut slots = Slots::new(MAX);
        let mut given: Vec<Slot> = Vec::new();
        let mut there: HashMap<Slot, usize> = HashMap::new();
        for (step, (inserts, index)) in steps.into_iter().enumerate() {
            if inserts {
                match slots.insert(step) {
                    Ok(slot) => {
                        prop_assert!(!given.contains(&slot), "{slot:?} was given out before");
                        given.push(slot);
                        there.insert(slot, step);
                    }
                    Err(NoPlace) => prop_assert_eq!(there.len(), MAX as usize),
                }
            } else if !given.is_empty() {
                let slot = *index.get(&given);
                prop_assert_eq!(slots.remove(slot), there.remove(&slot));
            }
            for slot in &given {
                prop_assert_eq!(slots.get(*slot), there.get(slot));
            }
            prop_assert_eq!(slots.len(), there.len());
            prop_assert!(slots.iter().all(|(slot, thing)| there.get(&slot) == Some(thing)));
            prop_assert!(slots.places() <= MAX as usize);
        }
    }
}
