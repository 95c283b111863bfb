//! The policy over each rival of its structures: the invariants of ARCHITECTURE.md, step by step against the oracle,
//! and with workers that are interrupted at any access to memory that they share.
//!
//! The second kind runs each worker as a coroutine and lets chance choose, before each access, the worker that goes on.
//! So the races that the structures close by looking twice really happen, some thousand times per history, and the same
//! way in every run. What it cannot show is a fence that is missing: accesses take effect in the order in which they
//! are made.

// The oracle once more, over the scheduler whose atomics tell a watcher (`main.rs`).
#[allow(dead_code, reason = "other tests ask it more")]
#[path = "../../../../testing/src/oracle.rs"]
mod oracle;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use mqfq_policies_watched::MQFQ_SERIAL;
use mqfq_sched_watched::cost::Cost;
use mqfq_sched_watched::flow::{FlowId, Weight};
use mqfq_sched_watched::policy::{
    DispatchToken, Done, Entry, Grant, Handle, OwnOptions, Pick, PolicyKind, PolicyOptions,
};
use mqfq_sched_watched::topology::{HctxId, Topology};
use mqfq_sched_watched::vtime::VTime;
use mqfq_sched_watched::watched;
use mqfq_sim::form::ByHand;
use mqfq_sim::rivals::{self, Inspect, PolicyVisitor, with_policy};
use mqfq_sim::scenario::{GvtKind, Policy, TokensKind, Unthrottle, VirtualTimeKind};
use oracle::{Oracle, narrow};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

const POLL: Unthrottle = Unthrottle::Poll { period_ns: 1000 };

fn shipped() -> Policy {
    Policy {
        kind: PolicyKind::Mqfq,
        depth: 3,
        depth_auto: false,
        window_bytes: 64 << 10,
        window_auto: false,
        relaxed: None,
        token_unit_bytes: None,
        virtual_time: VirtualTimeKind::Mindicator,
        tokens: TokensKind::TokenTree,
        unthrottle: Unthrottle::Wheel,
        own: OwnOptions::DEFAULT,
        global_vtime: GvtKind::Sloppy,
    }
}

/// All combinations, the scheduler's own first.
fn combinations() -> Vec<Policy> {
    use TokensKind::{AtomicCounter, ScalableBitmap, TokenTree};
    use VirtualTimeKind::{ArrayScan, Mindicator, Off};
    let mut all = Vec::new();
    for (virtual_time, unthrottle) in [
        (Mindicator, Unthrottle::Wheel),
        (ArrayScan, Unthrottle::Wheel),
        (Mindicator, POLL),
        (ArrayScan, POLL),
        (Off, Unthrottle::Wheel),
    ] {
        for tokens in [TokenTree, AtomicCounter, ScalableBitmap] {
            all.push(Policy { virtual_time, tokens, unthrottle, ..shipped() });
        }
    }
    all
}

fn weights(values: &[u64]) -> Vec<Weight> {
    values.iter().map(|&value| Weight::new(value).expect("in range")).collect()
}

fn of<T: Copy>(rng: &mut ChaCha8Rng, items: &[T]) -> T {
    items[rng.random_range(0..items.len())]
}

/// One of `combinations` with numbers of its own, and a machine.
fn draw(rng: &mut ChaCha8Rng, policy: &Policy) -> (Policy, Topology) {
    let topology = of(rng, &[(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2), (1, 11, 1)]);
    let policy = Policy {
        depth: of(rng, &[1, 1, 2, 3, 16, 70]),
        window_bytes: of(rng, &[0, 1, 4 << 10, 64 << 10]),
        window_auto: false,
        relaxed: rng.random::<bool>().then(ByHand::default),
        token_unit_bytes: match policy.tokens {
            TokensKind::ScalableBitmap => None,
            _ => of(rng, &[None, Some(4096), Some(512)]),
        },
        ..policy.clone()
    };
    (policy, Topology::new(topology.0, topology.1, topology.2))
}

/// The seeds of a test, each with a history of every combination; a failure names both.
fn for_each(seeds: u64, mut body: impl FnMut(&mut ChaCha8Rng, &Policy)) {
    for seed in 0..seeds {
        for policy in combinations() {
            let run = std::panic::AssertUnwindSafe(|| body(&mut ChaCha8Rng::seed_from_u64(seed), &policy));
            if let Err(panic) = std::panic::catch_unwind(run) {
                eprintln!("seed {seed}, {policy:?}");
                watched::watch(None);
                std::panic::resume_unwind(panic);
            }
        }
    }
}

const WEIGHTS: [u64; 4] = [1, 100, 300, 10_000];

// ---- Step by step
// -----------------------------------------------------------------------------------------------------------

/// Workers that run one operation at a time, in any order, and sleep until they are kicked.
struct Steps<'a> {
    policy: &'a Policy,
    topology: &'a Topology,
    rng: &'a mut ChaCha8Rng,
}

struct OnDevice {
    hctx: usize,
    flow: FlowId,
    token: DispatchToken,
}

struct Env<'a, P: Inspect> {
    scenario: &'a Policy,
    options: PolicyOptions,
    policy: Arc<P>,
    queues: Vec<P::Queue>,
    /// `None`: virtual time is off, and the oracle would not admit what is dispatched.
    oracle: Option<Oracle>,
    requests: Vec<(FlowId, u32)>,
    is_dispatched: Vec<bool>,
    device: Vec<OnDevice>,
    units_out: i64,
    /// Requests of one worker that the device takes.
    room: usize,
    awake: BTreeSet<usize>,
    last_vtime: VTime,
    last_handle: Vec<[Option<u32>; WEIGHTS.len()]>,
}

impl PolicyVisitor for Steps<'_> {
    type Output = ();

    fn visit<P: Inspect>(self, policy: Arc<P>) {
        let hctxs = self.topology.hctx_count();
        let options = rivals::options(self.policy, hctxs).expect("drawn in range");
        let is_off = self.policy.virtual_time == VirtualTimeKind::Off;
        let mut env = Env {
            scenario: self.policy,
            options,
            queues: (0..hctxs).map(|n| policy.open_queue(HctxId(n as u16), 40)).collect(),
            oracle: (!is_off).then(|| Oracle::new(&options, hctxs, &weights(&WEIGHTS))),
            requests: Vec::new(),
            is_dispatched: Vec::new(),
            device: Vec::new(),
            units_out: 0,
            room: of(self.rng, &[usize::MAX, 1, 3]),
            awake: BTreeSet::new(),
            last_vtime: policy.global_vtime().expect("mqfq has one"),
            last_handle: vec![[None; WEIGHTS.len()]; hctxs],
            policy,
        };
        for _ in 0..200 {
            match self.rng.random_range(0..12) {
                0..4 => env.submit(self.rng),
                4..7 if !env.device.is_empty() => env.complete(self.rng),
                _ => env.step(self.rng),
            }
            if self.rng.random_range(0..40) == 0 {
                env.settle(self.rng);
            }
        }
        env.settle(self.rng);
        while !env.device.is_empty() {
            env.complete(self.rng);
            env.settle(self.rng);
        }
        assert!(
            env.is_dispatched.iter().all(|&is| is),
            "requests are staged, the device is empty, and everybody sleeps"
        );
        assert_eq!(env.policy.free_units(), Some(i64::from(env.options.depth)), "I1");
    }
}

impl<P: Inspect> Env<'_, P> {
    fn submit(&mut self, rng: &mut ChaCha8Rng) {
        let hctx = rng.random_range(0..self.queues.len());
        if self.policy.staged(&self.queues[hctx]) == 40 {
            return;
        }
        let flow = FlowId(rng.random_range(0..WEIGHTS.len() as u32));
        let cost = Cost(of(rng, &[1, 512, 4096, 4096, 20_001, 65_536]));
        let entry = Entry::read(flow, cost, Handle(self.requests.len() as u32));
        self.requests.push((flow, self.options.units(cost)));
        self.is_dispatched.push(false);
        if let Some(oracle) = &mut self.oracle {
            oracle.submit(HctxId(hctx as u16), entry);
        }
        let Env { policy, queues, awake, .. } = self;
        policy.submit(&mut queues[hctx], entry, 0, &mut |other: HctxId| {
            awake.insert(other.index());
        });
        self.awake.insert(hctx);
        self.check();
    }

    fn complete(&mut self, rng: &mut ChaCha8Rng) {
        let OnDevice { hctx, flow, token } = self.device.swap_remove(rng.random_range(0..self.device.len()));
        self.units_out -= i64::from(token.units());
        if let Some(oracle) = &mut self.oracle {
            oracle.complete(token.units());
        }
        let Env { policy, queues, awake, .. } = self;
        policy.complete(&mut queues[hctx], Done::read(flow, Handle(0)), token, 0, &mut |other: HctxId| {
            awake.insert(other.index());
        });
        self.awake.insert(hctx);
        self.check();
    }

    fn has_room(&self, hctx: usize) -> bool {
        self.device.iter().filter(|request| request.hctx == hctx).count() < self.room
    }

    /// A worker that is awake picks once, or pauses; and sleeps, if that was for nothing.
    fn step(&mut self, rng: &mut ChaCha8Rng) {
        let awake: Vec<usize> = self.awake.iter().copied().collect();
        if awake.is_empty() {
            return;
        }
        let hctx = of(rng, &awake);
        self.awake.remove(&hctx);
        if !self.has_room(hctx) {
            let Env { policy, queues, awake, .. } = self;
            policy.pause(&mut queues[hctx], &mut |other: HctxId| {
                awake.insert(other.index());
            });
        } else if self.pick(hctx) {
            self.awake.insert(hctx);
        }
    }

    /// True if the worker may not sleep yet.
    fn pick(&mut self, hctx: usize) -> bool {
        let id = HctxId(hctx as u16);
        let Env { policy, queues, awake, .. } = self;
        let pick = policy.pick(&mut queues[hctx], 0, &mut |other: HctxId| {
            assert_ne!(other, id, "a worker kicked itself");
            awake.insert(other.index());
        });
        if let Some(oracle) = &mut self.oracle {
            match &pick {
                Pick::Dispatch(grant) => {
                    assert_eq!(oracle.admits(id, grant.handle), Ok(()), "I3, at {}", oracle.global_vtime());
                    oracle.dispatch(id).expect("admitted");
                }
                Pick::Throttled => assert!(oracle.lead(id).is_some() && !oracle.is_eligible(id)),
                Pick::NoToken => assert!(oracle.is_eligible(id)),
                Pick::Later(_) => unreachable!("fair queueing does not wait for time"),
                Pick::Idle => assert_eq!(oracle.lead(id), None),
            }
        }
        match pick {
            Pick::Dispatch(Grant { handle, flow, token }) => {
                let (owner, units) = self.requests[handle.0 as usize];
                assert_eq!((flow, token.units()), (owner, units));
                assert!(!std::mem::replace(&mut self.is_dispatched[handle.0 as usize], true), "twice");
                let last = self.last_handle[hctx][flow.0 as usize].replace(handle.0);
                assert!(last < Some(handle.0), "I9: {handle:?} after {last:?}");
                self.units_out += i64::from(units);
                self.device.push(OnDevice { hctx, flow, token });
                self.check();
                return true;
            }
            Pick::NoToken if self.scenario.tokens != TokensKind::TokenTree => {
                // With one pool and no other worker inside, no token means that there is none, or that it was given to
                // a queue that is called and has not picked yet.
                assert!(self.policy.free_units() <= Some(0) || self.awake.iter().any(|awake| *awake != hctx));
            }
            Pick::Throttled => {
                assert_ne!(
                    self.scenario.virtual_time,
                    VirtualTimeKind::Off,
                    "nobody is throttled with virtual time off"
                );
            }
            _ => {}
        }
        self.check();
        false
    }

    fn check(&mut self) {
        let depth = i64::from(self.options.depth);
        assert_eq!(self.policy.free_units(), Some(depth - self.units_out), "I1");
        assert!(self.device.len() as i64 <= depth, "I2");
        let now = self.policy.global_vtime().expect("mqfq has one");
        assert!(!now.is_before(self.last_vtime), "I8");
        self.last_vtime = now;
        match &self.oracle {
            Some(oracle) => assert_eq!(now, narrow(oracle.global_vtime())),
            None => assert_eq!(now, VTime::ZERO, "it is off"),
        }
    }

    /// All go to sleep; pollers look again whenever all others sleep. I4: then no worker could do anything.
    fn settle(&mut self, rng: &mut ChaCha8Rng) {
        for _ in 0..5000 {
            while !self.awake.is_empty() {
                self.step(rng);
            }
            let before = self.device.len();
            if matches!(self.scenario.unthrottle, Unthrottle::Poll { .. }) {
                self.awake.extend(0..self.queues.len());
                while !self.awake.is_empty() {
                    self.step(rng);
                }
            }
            if self.device.len() == before {
                self.nobody_could_work();
                return;
            }
        }
        panic!("workers wake each other without end");
    }

    fn nobody_could_work(&self) {
        let all_have_room = (0..self.queues.len()).all(|hctx| self.has_room(hctx));
        if all_have_room && self.policy.free_units() > Some(0) {
            let staged: usize = self.queues.iter().map(|queue| self.policy.staged(queue)).sum();
            assert_eq!(staged, 0, "I4: tokens are free and requests are staged, yet everybody sleeps");
        }
    }
}

impl<P: Inspect> Drop for Env<'_, P> {
    fn drop(&mut self) {
        // After a failed test, requests on the device are dropped without harm.
        self.device.drain(..).for_each(|request| _ = request.token.into_units());
    }
}

#[test]
fn with_each_rival_the_policy_does_what_the_oracle_admits_and_never_stands_still() {
    for_each(if cfg!(debug_assertions) { 60 } else { 400 }, |rng, policy| {
        let (policy, topology) = draw(rng, policy);
        with_policy(&policy, &topology, &weights(&WEIGHTS), Steps { policy: &policy, topology: &topology, rng })
            .unwrap();
    });
}

// ---- Interrupted anywhere
// ---------------------------------------------------------------------------------------------------

std::thread_local! {
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
    static CHANCE: RefCell<Option<ChaCha8Rng>> = const { RefCell::new(None) };
}

fn suspend() {
    let yielder = YIELDER.get();
    // SAFETY: `Interrupted::visit` sets it before each resume to the yielder of the worker that it resumes, which is
    // the one that we are in, so it lives as long as this call.
    unsafe { (*yielder).suspend(()) };
}

/// The watcher: before one access in three, another worker goes on.
fn perhaps_suspend(_: watched::Access) {
    let is_time = CHANCE.with_borrow_mut(|chance| chance.as_mut().is_some_and(|chance| chance.random_range(0..3) == 0));
    if is_time && !YIELDER.get().is_null() {
        suspend();
    }
}

struct Shared {
    kicked: RefCell<Vec<bool>>,
    asleep: RefCell<Vec<bool>>,
    out: Cell<u32>,
    completed: Cell<u32>,
}

struct Interrupted<'a> {
    policy: &'a Policy,
    topology: &'a Topology,
    rng: &'a mut ChaCha8Rng,
    requests: u32,
}

impl PolicyVisitor for Interrupted<'_> {
    type Output = ();

    fn visit<P: Inspect>(self, policy: Arc<P>) {
        let hctxs = self.topology.hctx_count();
        let options = rivals::options(self.policy, hctxs).expect("drawn in range");
        let shared = Rc::new(Shared {
            kicked: RefCell::new(vec![false; hctxs]),
            asleep: RefCell::new(vec![false; hctxs]),
            out: Cell::new(0),
            completed: Cell::new(0),
        });
        let polls = matches!(self.policy.unthrottle, Unthrottle::Poll { .. });
        let mut yielders: Vec<*const Yielder<(), ()>> = vec![std::ptr::null(); hctxs];
        let mut workers: Vec<_> = (0..hctxs)
            .map(|n| {
                let worker = Worker {
                    id: HctxId(n as u16),
                    queue: policy.open_queue(HctxId(n as u16), 40),
                    policy: policy.clone(),
                    shared: shared.clone(),
                    options,
                    polls,
                    rng: ChaCha8Rng::from_rng(self.rng),
                    left: self.requests,
                };
                Coroutine::new(move |yielder: &Yielder<(), ()>, ()| {
                    YIELDER.set(yielder);
                    worker.work();
                })
            })
            .collect();
        CHANCE.set(Some(ChaCha8Rng::from_rng(self.rng)));
        let before = watched::watch(Some(perhaps_suspend));
        let (mut steps, mut completed) = (0, 0);
        loop {
            let may_run: Vec<usize> =
                (0..hctxs).filter(|&n| !shared.asleep.borrow()[n] || shared.kicked.borrow()[n]).collect();
            if may_run.is_empty() {
                break;
            }
            let next = of(self.rng, &may_run);
            YIELDER.set(yielders[next]);
            let result = workers[next].resume(());
            yielders[next] = YIELDER.get();
            YIELDER.set(std::ptr::null());
            assert!(matches!(result, CoroutineResult::Yield(())), "a worker ended");
            let last = std::mem::replace(&mut completed, shared.completed.get());
            steps = if completed == last { steps + 1 } else { 0 };
            assert!(steps < 1_000_000, "I4: workers go on and on, and {completed} requests is all that they complete");
        }
        watched::watch(before);
        let (completed, all) = (shared.completed.get(), self.requests * hctxs as u32);
        assert_eq!(completed, all, "I4: everybody sleeps and requests are left");
        assert_eq!(policy.free_units(), Some(i64::from(options.depth)), "I1");
        // They sleep for good, with nothing on their stacks that must be dropped but queues.
        workers.into_iter().for_each(|mut worker| worker.force_unwind());
    }
}

struct Worker<P: Inspect> {
    id: HctxId,
    queue: P::Queue,
    policy: Arc<P>,
    shared: Rc<Shared>,
    options: PolicyOptions,
    polls: bool,
    rng: ChaCha8Rng,
    left: u32,
}

impl<P: Inspect> Worker<P> {
    fn work(mut self) {
        let shared = self.shared.clone();
        let kick = &mut |other: HctxId| shared.kicked.borrow_mut()[other.index()] = true;
        let mut device: Vec<(FlowId, DispatchToken)> = Vec::new();
        let mut last_vtime = self.policy.global_vtime().expect("mqfq has one");
        let mut last_handle = [0; WEIGHTS.len()];
        let mut next_handle = 0;
        loop {
            for _ in 0..self.rng.random_range(0..4) {
                if self.left > 0 && self.policy.staged(&self.queue) < 40 {
                    self.left -= 1;
                    next_handle += 1;
                    let flow = FlowId(self.rng.random_range(0..WEIGHTS.len() as u32));
                    let cost = Cost(of(&mut self.rng, &[1, 512, 4096, 4096, 65_536]));
                    self.policy.submit(&mut self.queue, Entry::read(flow, cost, Handle(next_handle)), 0, kick);
                }
            }
            let mut dispatched = false;
            let last = loop {
                match self.policy.pick(&mut self.queue, 0, kick) {
                    Pick::Dispatch(grant) => {
                        dispatched = true;
                        shared.out.set(shared.out.get() + 1);
                        assert!(shared.out.get() <= self.options.depth, "I2: {} requests are out", shared.out.get());
                        let last = &mut last_handle[grant.flow.0 as usize];
                        assert!(*last < grant.handle.0, "I9: {} after {last}", grant.handle.0);
                        *last = grant.handle.0;
                        device.push((grant.flow, grant.token));
                    }
                    last => break last,
                }
            };
            let now = self.policy.global_vtime().expect("mqfq has one");
            assert!(!now.is_before(last_vtime), "I8: {now:?} after {last_vtime:?}");
            last_vtime = now;
            let finish = if !dispatched && self.left == 0 {
                device.len().min(1)
            } else {
                self.rng.random_range(0..=device.len())
            };
            for _ in 0..finish {
                let (flow, token) = device.swap_remove(self.rng.random_range(0..device.len()));
                shared.out.set(shared.out.get() - 1);
                self.policy.complete(&mut self.queue, Done::read(flow, Handle(0)), token, 0, kick);
                shared.completed.set(shared.completed.get() + 1);
            }
            if self.polls && last == Pick::Throttled {
                // Its timer will fire.
                suspend();
                continue;
            }
            // With something staged and nothing on the device, only others can end Throttled or NoToken: let them.
            let waits = self.left == 0 || (self.policy.staged(&self.queue) > 0 && self.rng.random());
            if finish == 0 && device.is_empty() && !dispatched && waits {
                let own = self.id.index();
                shared.asleep.borrow_mut()[own] = true;
                while !shared.kicked.borrow()[own] {
                    suspend();
                }
                shared.asleep.borrow_mut()[own] = false;
                shared.kicked.borrow_mut()[own] = false;
            }
        }
    }
}

#[test]
fn with_each_rival_workers_that_are_interrupted_anywhere_finish_their_work() {
    for_each(if cfg!(debug_assertions) { 60 } else { 600 }, |rng, policy| {
        let (policy, topology) = draw(rng, policy);
        // A lost wake-up shows only if nothing comes after it, so most histories are short.
        let requests = of(rng, &[1, 2, 2, 3, 40]);
        let visitor = Interrupted { policy: &policy, topology: &topology, rng, requests };
        with_policy(&policy, &topology, &weights(&WEIGHTS), visitor).unwrap();
    });
}

// ---- What goes together
// -----------------------------------------------------------------------------------------------------

struct NameOfType;

impl PolicyVisitor for NameOfType {
    type Output = &'static str;

    fn visit<P: Inspect>(self, _policy: Arc<P>) -> &'static str {
        std::any::type_name::<P>()
    }
}

fn type_of(policy: &Policy) -> Result<&'static str, String> {
    with_policy(policy, &Topology::flat(2), &weights(&[100]), NameOfType)
}

#[test]
fn what_ships_is_the_policy_that_ships() {
    for policy in combinations() {
        let is_any_policy = type_of(&policy).unwrap().ends_with("::AnyPolicy");
        assert_eq!(is_any_policy, policy == shipped(), "{policy:?}");
    }
    for kind in mqfq_policies_watched::ALL {
        assert!(type_of(&Policy { kind, ..shipped() }).unwrap().ends_with("::AnyPolicy"));
    }
}

#[test]
fn what_does_not_go_together_is_one_sentence() {
    let wrong = |policy: Policy| type_of(&policy).unwrap_err();
    let serial = Policy { kind: MQFQ_SERIAL, tokens: TokensKind::AtomicCounter, ..shipped() };
    assert_eq!(wrong(serial), "policy: structures can be replaced under kind \"mqfq\" only, not under \"mqfq-serial\"");
    let never = Policy { unthrottle: Unthrottle::Poll { period_ns: 0 }, ..shipped() };
    assert_eq!(wrong(never), "policy: a poll period of 0 ns is out of range, allowed is 1 or more");
    let nothing = Policy { unthrottle: POLL, virtual_time: VirtualTimeKind::Off, ..shipped() };
    assert_eq!(wrong(nothing), "policy: there is nothing to poll for with virtual time off, nobody is throttled then");
    let units = Policy { tokens: TokensKind::ScalableBitmap, token_unit_bytes: Some(4096), ..shipped() };
    assert_eq!(
        wrong(units),
        "policy: a scalable bitmap has tokens of one unit each, so it cannot be used with a token unit"
    );
    let deep = Policy { depth: 0, tokens: TokensKind::AtomicCounter, ..shipped() };
    assert_eq!(wrong(deep), "policy: depth 0 is out of range, allowed is 1 to 65535");
}

#[test]
fn options_are_the_form_and_what_the_scenario_sets() {
    let relaxed = rivals::options(&Policy { relaxed: Some(ByHand::default()), ..shipped() }, 2).unwrap();
    let expected = PolicyOptions { depth: 3, ..PolicyOptions::new(PolicyKind::Mqfq) };
    assert_eq!(relaxed, expected.relaxed(2));
    assert_eq!(rivals::options(&shipped(), 2), Ok(expected));
    let by_hand = ByHand { lease_bytes: Some(0), token_batch: Some(1), ..ByHand::default() };
    let own = Policy { relaxed: Some(by_hand), ..shipped() };
    let own = rivals::options(&own, 2).unwrap();
    assert_eq!((own.lease.0, own.token_batch, own.quantum), (0, 1, relaxed.quantum));
}
