//! The policy over each rival of its structures, under real threads that sleep and are woken only by kicks: every
//! request completes, no token is lost, never more than D requests are out, virtual time never goes back. The
//! simulator's own tests interrupt workers anywhere, but on one thread, where accesses take effect in order. Here they
//! need not; what x86-64 orders by itself, as it does around each read-modify-write, this cannot show either.
//!
//! A lost wake-up is found when it happens, without a timeout: the last worker to fall asleep looks whether anything is
//! left to do, and one that polls while nothing completes looks in vain only so often.

use mqfq_blk::random::Random;
use mqfq_sched_watched::cost::Cost;
use mqfq_sched_watched::flow::{FlowId, Weight};
use mqfq_sched_watched::policy::{DispatchToken, Done, Entry, Handle, OwnOptions, Pick, PolicyKind};
use mqfq_sched_watched::topology::{HctxId, Topology};
use mqfq_sim::form::ByHand;
use mqfq_sim::rivals::{Inspect, PolicyVisitor, with_policy};
use mqfq_sim::scenario::{GvtKind, Policy, TokensKind, Unthrottle, VirtualTimeKind};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

const WEIGHTS: [u64; 4] = [1, 100, 300, 10_000];

/// Requests of each worker.
const REQUESTS: u32 = if cfg!(debug_assertions) { 10_000 } else { 50_000 };

/// Looks in vain of one that polls, each followed by a turn for other threads, while nothing completes.
const LOOKS_MAX: u32 = 3_000_000;

/// Sleeping and kicked workers; under one lock, because this is the test and not what is tested.
struct Sleepers {
    kicked: Vec<bool>,
    asleep: Vec<bool>,
    failed: bool,
}

struct Machine<P> {
    policy: Arc<P>,
    depth: u32,
    polls: bool,
    sleepers: Mutex<Sleepers>,
    wake: Condvar,
    out: AtomicU32,
    completed: AtomicU32,
    requests: u32,
}

impl<P: Inspect> Machine<P> {
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
            if nobody_moves || sleepers.failed {
                self.wake.notify_all();
                let completed = self.completed.load(SeqCst);
                let is_lost = completed != self.requests && !std::mem::replace(&mut sleepers.failed, true);
                drop(sleepers);
                assert!(
                    !is_lost,
                    "everybody sleeps after {completed} of {} requests: a wake-up was lost",
                    self.requests
                );
                return false;
            }
            sleepers = self.wake.wait(sleepers).unwrap();
        }
    }

    /// A worker that panics must not leave the others asleep for ever.
    fn worker(&self, hctx: HctxId, queue: P::Queue) {
        let work = std::panic::AssertUnwindSafe(|| self.work(hctx, queue));
        if let Err(panic) = std::panic::catch_unwind(work) {
            self.sleepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).failed = true;
            self.wake.notify_all();
            std::panic::resume_unwind(panic);
        }
    }

    fn work(&self, hctx: HctxId, mut queue: P::Queue) {
        let mut random = Random::new(hctx.index() as u64);
        let mut below = |bound: usize| random.below(bound as u64) as usize;
        let kick = &mut |other: HctxId| self.kick(other);
        let mut device: Vec<(FlowId, DispatchToken)> = Vec::new();
        let (mut submitted, mut looks, mut completed) = (0, 0, 0);
        let mut last_handle = [0; WEIGHTS.len()];
        let mut last_vtime = self.policy.global_vtime().unwrap();
        loop {
            for _ in 0..below(4) {
                if submitted < REQUESTS && self.policy.staged(&queue) < 32 {
                    submitted += 1;
                    let flow = FlowId(below(WEIGHTS.len()) as u32);
                    let cost = Cost([1, 512, 4096, 4096, 65_536][below(5)]);
                    self.policy.submit(&mut queue, Entry::read(flow, cost, Handle(submitted)), 0, kick);
                }
            }
            let mut dispatched = false;
            let last = loop {
                let grant = match self.policy.pick(&mut queue, 0, kick) {
                    Pick::Dispatch(grant) => grant,
                    last => break last,
                };
                dispatched = true;
                let out = self.out.fetch_add(1, SeqCst) + 1;
                assert!(out <= self.depth, "I2: {out} requests are out");
                let last = &mut last_handle[grant.flow.0 as usize];
                assert!(*last < grant.handle.0, "I9: {} after {last}", grant.handle.0);
                *last = grant.handle.0;
                device.push((grant.flow, grant.token));
            };
            let now = self.policy.global_vtime().unwrap();
            assert!(!now.is_before(last_vtime), "I8: {now:?} after {last_vtime:?}");
            last_vtime = now;
            // At least one if nothing else keeps this worker awake.
            let idle = !dispatched && submitted == REQUESTS;
            let finish = if idle { device.len().min(1) } else { below(device.len() + 1) };
            for _ in 0..finish {
                let (flow, token) = device.swap_remove(below(device.len()));
                self.out.fetch_sub(1, SeqCst);
                self.policy.complete(&mut queue, Done::read(flow, Handle(0)), token, 0, kick);
                self.completed.fetch_add(1, SeqCst);
            }
            // With something staged and nothing on the device, only others can end Throttled or NoToken: let them.
            let waits = submitted == REQUESTS || (self.policy.staged(&queue) > 0 && below(2) == 0);
            if dispatched || finish > 0 || !device.is_empty() || !waits {
                continue;
            }
            if self.polls && last == Pick::Throttled {
                std::thread::yield_now();
                let before = std::mem::replace(&mut completed, self.completed.load(SeqCst));
                looks = if completed == before { looks + 1 } else { 0 };
                assert!(looks < LOOKS_MAX, "{completed} of {} requests, and virtual time stands", self.requests);
            } else if !self.sleep(hctx) {
                return;
            }
        }
    }
}

struct Stress<'a> {
    policy: &'a Policy,
    workers: usize,
}

impl PolicyVisitor for Stress<'_> {
    type Output = ();

    fn visit<P: Inspect>(self, policy: Arc<P>) {
        let workers = self.workers;
        let queues: Vec<P::Queue> = (0..workers).map(|n| policy.open_queue(HctxId(n as u16), 32)).collect();
        let machine = Machine {
            policy,
            depth: self.policy.depth,
            polls: matches!(self.policy.unthrottle, Unthrottle::Poll { .. }),
            sleepers: Mutex::new(Sleepers {
                kicked: vec![false; workers],
                asleep: vec![false; workers],
                failed: false,
            }),
            wake: Condvar::new(),
            out: AtomicU32::new(0),
            completed: AtomicU32::new(0),
            requests: REQUESTS * workers as u32,
        };
        std::thread::scope(|scope| {
            for (n, queue) in queues.into_iter().enumerate() {
                let machine = &machine;
                scope.spawn(move || machine.worker(HctxId(n as u16), queue));
            }
        });
        assert_eq!(machine.policy.free_units(), Some(i64::from(machine.depth)), "I1: tokens were lost or made");
    }
}

/// MQFQ in the paper's form on two sockets, but for the given structures.
fn stress(virtual_time: VirtualTimeKind, tokens: TokensKind, unthrottle: Unthrottle) {
    let weights = WEIGHTS.map(|weight| Weight::new(weight).unwrap());
    for (depth, relaxed, topology) in
        [(1, false, Topology::flat(2)), (3, false, Topology::new(2, 2, 1)), (6, true, Topology::new(2, 1, 2))]
    {
        let policy = Policy {
            kind: PolicyKind::Mqfq,
            depth,
            depth_auto: false,
            window_bytes: 64 << 10,
            window_auto: false,
            relaxed: relaxed.then(ByHand::default),
            token_unit_bytes: None,
            virtual_time,
            tokens,
            unthrottle,
            own: OwnOptions::DEFAULT,
            global_vtime: GvtKind::Sloppy,
        };
        let visitor = Stress { policy: &policy, workers: topology.hctx_count() };
        with_policy(&policy, &topology, &weights, visitor).unwrap();
    }
}

const POLL: Unthrottle = Unthrottle::Poll { period_ns: 1000 };

#[test]
fn with_an_array_scan_no_wake_up_and_no_token_is_lost() {
    stress(VirtualTimeKind::ArrayScan, TokensKind::TokenTree, Unthrottle::Wheel);
}

#[test]
fn with_one_counter_no_wake_up_and_no_token_is_lost() {
    stress(VirtualTimeKind::Mindicator, TokensKind::AtomicCounter, Unthrottle::Wheel);
    stress(VirtualTimeKind::Off, TokensKind::AtomicCounter, Unthrottle::Wheel);
}

#[test]
fn with_a_scalable_bitmap_no_wake_up_and_no_token_is_lost() {
    stress(VirtualTimeKind::Mindicator, TokensKind::ScalableBitmap, Unthrottle::Wheel);
    stress(VirtualTimeKind::Off, TokensKind::ScalableBitmap, Unthrottle::Wheel);
}

#[test]
fn with_virtual_time_off_no_wake_up_and_no_token_is_lost() {
    stress(VirtualTimeKind::Off, TokensKind::TokenTree, Unthrottle::Wheel);
}

#[test]
fn with_polling_nobody_waits_for_ever() {
    stress(VirtualTimeKind::Mindicator, TokensKind::TokenTree, POLL);
    stress(VirtualTimeKind::ArrayScan, TokensKind::AtomicCounter, POLL);
}
