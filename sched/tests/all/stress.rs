//! Real threads, one per hctx, that sleep and are woken only by kicks: every request completes, no token is lost, never
//! more than D requests are out, virtual time never goes back. Loom checks small cases in every interleaving; this
//! checks long ones in some.
//!
//! A lost wake-up is found when it happens, without a timeout: the last worker to fall asleep looks whether anything is
//! left to do.

use mqfq_policies::{MQFQ_SERIAL, SFQD};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    AnyPolicy, AnyQueue, DispatchToken, Done, Entry, Handle, Pick, Policy, PolicyKind, PolicyOptions,
};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_testing::random::Random;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

/// Workers asleep, and workers kicked; under one lock, because this is the test and not what is tested.
struct Sleepers {
    kicked: Vec<bool>,
    asleep: Vec<bool>,
    finished: bool,
}

struct Machine {
    policy: AnyPolicy,
    options: PolicyOptions,
    sleepers: Mutex<Sleepers>,
    wake: Condvar,
    out: AtomicU64,
    completed: AtomicU64,
    requests: u64,
}

impl Machine {
    fn kick(&self, hctx: HctxId) {
        self.sleepers.lock().unwrap().kicked[hctx.index()] = true;
        self.wake.notify_all();
    }

    /// Sleeps until kicked; false when everything is done.
    fn sleep(&self, hctx: HctxId) -> bool {
        let mut sleepers = self.sleepers.lock().unwrap();
        sleepers.asleep[hctx.index()] = true;
        loop {
            if std::mem::take(&mut sleepers.kicked[hctx.index()]) {
                sleepers.asleep[hctx.index()] = false;
                return true;
            }
            let nobody_moves = sleepers.asleep.iter().all(|&asleep| asleep) && !sleepers.kicked.contains(&true);
            if nobody_moves || sleepers.finished {
                let completed = self.completed.load(SeqCst);
                sleepers.finished = true;
                self.wake.notify_all();
                assert_eq!(completed, self.requests, "everybody sleeps and requests are left: a wake-up was lost");
                return false;
            }
            sleepers = self.wake.wait(sleepers).unwrap();
        }
    }

    /// A worker that panics must not leave the others asleep for ever.
    fn worker(&self, hctx: HctxId, queue: AnyQueue, rng: Random, requests: u64) {
        let work = std::panic::AssertUnwindSafe(|| self.work(hctx, queue, rng, requests));
        if let Err(panic) = std::panic::catch_unwind(work) {
            self.sleepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).finished = true;
            self.wake.notify_all();
            std::panic::resume_unwind(panic);
        }
    }

    fn work(&self, hctx: HctxId, mut queue: AnyQueue, mut rng: Random, requests: u64) {
        let mut left = requests;
        let mut in_flight: Vec<(FlowId, DispatchToken)> = Vec::new();
        let mut last_vtime = self.policy.global_vtime();
        let mut last_handle = [0; 4];
        let mut next_handle = 0;
        loop {
            let kick = &mut |other: HctxId| self.kick(other);
            for _ in 0..rng.index(4) {
                if left > 0 && self.policy.staged(&queue) < 32 {
                    left -= 1;
                    next_handle += 1;
                    let flow = FlowId(rng.index(4) as u32);
                    let cost = Cost(rng.of(&[1, 512, 4096, 4096, 65_536]));
                    self.policy.submit(&mut queue, Entry::read(flow, cost, Handle(next_handle)), 0, kick);
                }
            }
            let mut dispatched = false;
            while let Pick::Dispatch(grant) = self.policy.pick(&mut queue, 0, kick) {
                dispatched = true;
                let out = self.out.fetch_add(1, SeqCst) + 1;
                assert!(out <= u64::from(self.options.depth), "I2: {out} requests are out");
                let last = &mut last_handle[grant.flow.0 as usize];
                assert!(*last < grant.handle.0, "I9: {} after {last}", grant.handle.0);
                *last = grant.handle.0;
                in_flight.push((grant.flow, grant.token));
            }
            let now = self.policy.global_vtime();
            assert!(!now.unwrap().is_before(last_vtime.unwrap()), "I8: {now:?} after {last_vtime:?}");
            last_vtime = now;
            // The device: finishes some of what it has, at least one if nothing else keeps this worker awake.
            let idle = !dispatched && left == 0;
            let finish = if idle { in_flight.len().min(1) } else { rng.index(in_flight.len() + 1) };
            for _ in 0..finish {
                let (flow, token) = in_flight.swap_remove(rng.index(in_flight.len()));
                self.out.fetch_sub(1, SeqCst);
                self.policy.complete(&mut queue, Done::read(flow, Handle(0)), token, 0, kick);
                self.completed.fetch_add(1, SeqCst);
            }
            // With something staged and nothing in flight, only others can end Throttled or NoToken: let them.
            let waits = left == 0 || (self.policy.staged(&queue) > 0 && rng.chance(2));
            let nothing_to_do = finish == 0 && in_flight.is_empty() && waits;
            if nothing_to_do && !dispatched && !self.sleep(hctx) {
                assert_eq!(self.policy.staged(&queue), 0);
                return;
            }
        }
    }
}

fn stress(options: PolicyOptions, topology: &Topology, requests_per_worker: u64, seed: u64) {
    let weights = [1, 100, 300, 10_000].map(|value| Weight::new(value).unwrap());
    let workers = topology.hctx_count();
    // An interpreter is thousands of times slower, and changes threads far more often.
    let requests_per_worker = match (cfg!(miri), cfg!(debug_assertions)) {
        (true, _) => 40,
        (false, true) => requests_per_worker,
        (false, false) => requests_per_worker * 10,
    };
    let policy = AnyPolicy::new(&options, topology, &weights).unwrap();
    let queues: Vec<AnyQueue> = (0..workers).map(|n| policy.open_queue(HctxId(n as u16), 32)).collect();
    let machine = Machine {
        policy,
        options,
        sleepers: Mutex::new(Sleepers { kicked: vec![false; workers], asleep: vec![false; workers], finished: false }),
        wake: Condvar::new(),
        out: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        requests: requests_per_worker * workers as u64,
    };
    std::thread::scope(|scope| {
        for (n, queue) in queues.into_iter().enumerate() {
            let machine = &machine;
            let rng = Random::new(seed.wrapping_mul(1000) + n as u64);
            scope.spawn(move || machine.worker(HctxId(n as u16), queue, rng, requests_per_worker));
        }
    });
    assert_eq!(machine.policy.free_units(), Some(i64::from(options.depth)), "I1: tokens were lost or made");
}

fn options(kind: PolicyKind, depth: u32, window: VSpan) -> PolicyOptions {
    // Near the wrap: 2^40 units are 1 GiB at weight 100, but only 10 MiB at weight 1, which these tests dispatch.
    PolicyOptions { depth, window, start: VTime::from_raw(u64::MAX - (1 << 40)), ..PolicyOptions::new(kind) }
}

const WINDOW: VSpan = VSpan::from_bytes(64 << 10);

#[test]
fn one_token_between_two_workers() {
    stress(options(PolicyKind::Mqfq, 1, VSpan(0)), &Topology::flat(2), 10_000, 1);
}

#[test]
fn no_window_and_four_workers() {
    stress(options(PolicyKind::Mqfq, 3, VSpan(0)), &Topology::new(2, 2, 1), 5000, 2);
}

#[test]
fn two_sockets_with_a_window() {
    stress(options(PolicyKind::Mqfq, 4, WINDOW), &Topology::new(2, 1, 2), 10_000, 3);
}

#[test]
fn requests_of_several_units() {
    let options = PolicyOptions { token_unit_bytes: Some(4096), ..options(PolicyKind::Mqfq, 20, WINDOW) };
    stress(options, &Topology::new(2, 2, 1), 5000, 4);
}

#[test]
fn one_token_between_two_workers_in_the_relaxed_form() {
    stress(options(PolicyKind::Mqfq, 1, WINDOW).relaxed(2), &Topology::flat(2), 10_000, 7);
}

#[test]
fn two_sockets_in_the_relaxed_form() {
    stress(options(PolicyKind::Mqfq, 6, WINDOW).relaxed(4), &Topology::new(2, 2, 1), 5000, 8);
}

#[test]
fn several_units_in_the_relaxed_form() {
    let options = PolicyOptions { token_unit_bytes: Some(4096), ..options(PolicyKind::Mqfq, 20, WINDOW).relaxed(2) };
    stress(options, &Topology::new(2, 1, 2), 5000, 9);
}

#[test]
fn under_one_lock() {
    stress(options(MQFQ_SERIAL, 4, WINDOW), &Topology::flat(3), 3000, 5);
}

#[test]
fn strict_order() {
    stress(options(SFQD, 4, VSpan(0)), &Topology::flat(3), 3000, 6);
}
