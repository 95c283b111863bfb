//! Generated histories of the elevators: workers that sleep and run only when something wakes them, requests of every
//! kind, in any order and at any pace. Each request leaves once, everything comes out, no token is lost, no worker
//! stands still.

use mqfq_policies::{KYBER, Kyber, KyberDomain, KyberOptions, MQ_DEADLINE, MqDeadlineOptions};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::CostKind;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{Handle, OwnOptions, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::HctxId;
use mqfq_testing::Random;
use mqfq_testing::rig::*;
use std::collections::BTreeSet;

const ELEVATORS: [PolicyKind; 2] = [MQ_DEADLINE, KYBER];

const FLOWS: usize = 5;

/// Options, none of them usual.
fn options(kind: PolicyKind, rng: &mut Random) -> PolicyOptions {
    let mq_deadline = MqDeadlineOptions {
        read_expire_ns: rng.of(&[0, MS, 500 * MS]),
        write_expire_ns: rng.of(&[0, MS, 5 * SECOND]),
        writes_starved: rng.of(&[0, 1, 2, 100]),
        fifo_batch: rng.of(&[1, 2, 16, 1000]),
        prio_aging_expire_ns: rng.of(&[0, 20 * MS, 10 * SECOND]),
    };
    let kyber = KyberOptions {
        read_latency_ns: rng.of(&[1, 100_000, 2 * MS]),
        write_latency_ns: rng.of(&[1, 100_000, 10 * MS]),
        discard_latency_ns: rng.of(&[1, 5 * SECOND]),
        read_depth: rng.of(&[1, 2, 7, 256]),
        write_depth: rng.of(&[1, 3, 128]),
        discard_depth: rng.of(&[1, 2, 64]),
        other_depth: rng.of(&[1, 2, 16]),
    };
    PolicyOptions {
        depth: rng.of(&[1, 2, 3, 16, 64, 1000]),
        token_unit_bytes: rng.of(&[None, None, Some(4096)]),
        own: if kind == KYBER { OwnOptions::of(&kyber) } else { OwnOptions::of(&mq_deadline) },
        ..PolicyOptions::new(kind)
    }
}

fn random_io(rng: &mut Random) -> Io {
    let kind = rng.of(&[
        CostKind::Read,
        CostKind::Read,
        CostKind::Read,
        CostKind::Write,
        CostKind::Write,
        CostKind::Discard,
        CostKind::Flush,
    ]);
    let length_bytes = if kind == CostKind::Flush { 0 } else { rng.of(&[512, 4096, 4096, 128 << 10]) };
    Io {
        flow: rng.index(FLOWS) as u32,
        kind,
        is_sync: matches!(kind, CostKind::Read | CostKind::Flush) || rng.index(3) == 0,
        offset_bytes: rng.index(64) as u64 * 4096,
        length_bytes,
    }
}

/// Workers that are awake: kicked, or with something to do of their own.
struct History {
    rig: Rig,
    awake: BTreeSet<HctxId>,
    /// Its device queue was full when it last ran.
    paused: BTreeSet<HctxId>,
}

impl History {
    fn new(kind: PolicyKind, rng: &mut Random) -> History {
        let rig = Rig::new(options(kind, rng), rng.of(&[1, 2, 3, 8]), FLOWS);
        let room = rng.of(&[usize::MAX, usize::MAX, 1, 3]);
        History { rig: rig.device_depth(room), awake: BTreeSet::new(), paused: BTreeSet::new() }
    }

    /// One step of one worker that is awake: it picks once, and sleeps if there was nothing, or pauses if its device
    /// queue is full.
    fn step(&mut self, rng: &mut Random) {
        self.awake.append(&mut self.rig.kicked);
        let awake: Vec<HctxId> = self.awake.iter().copied().collect();
        if awake.is_empty() {
            return;
        }
        let hctx = rng.of(&awake);
        if !self.rig.has_room(hctx) {
            self.rig.pause(hctx);
            self.paused.insert(hctx);
            self.awake.remove(&hctx);
        } else {
            self.paused.remove(&hctx);
            if !matches!(self.rig.pick(hctx), Picked::Dispatched(_)) {
                self.awake.remove(&hctx);
            }
        }
        self.awake.append(&mut self.rig.kicked);
    }

    /// Lets them all go to sleep, in any order, and sees that none has left anything undone (I4).
    fn settle(&mut self, rng: &mut Random) {
        let mut steps = 0;
        while !self.awake.is_empty() || !self.rig.kicked.is_empty() {
            self.step(rng);
            steps += 1;
            assert!(steps < 20_000, "workers kick each other without end");
        }
        let staged = self.rig.staged();
        if let Some(kyber) = self.rig.policy.downcast_ref::<Kyber>() {
            self.check_tokens(kyber);
        }
        // Workers whose device queue is full are excused: they look again when it has room.
        if staged > 0 && self.paused.is_empty() && self.rig.later.is_empty() {
            assert!(!self.rig.in_flight.is_empty(), "{staged} are staged, the device is idle, and everybody sleeps");
            if self.rig.options.kind == MQ_DEADLINE {
                let free = self.rig.policy.free_units().unwrap();
                assert!(free <= 0, "{free} units are free, {staged} are staged, and everybody sleeps");
            }
        }
    }

    /// With all workers asleep, each token of a domain that is out belongs to a request on the device, or to one that
    /// waits for another token: at most one per worker. And the depth of a domain holds.
    fn check_tokens(&self, kyber: &Kyber) {
        for (domain, kind) in [
            (KyberDomain::Read, CostKind::Read),
            (KyberDomain::Write, CostKind::Write),
            (KyberDomain::Discard, CostKind::Discard),
            (KyberDomain::Other, CostKind::Flush),
        ] {
            let out = kyber.domain_out(domain) as usize;
            let on_device = self.rig.in_flight_of(|_, io| io.kind == kind);
            let spare = out.checked_sub(on_device).expect("a request has a token");
            assert!(spare <= self.rig.queues.len(), "{domain:?}: {out} tokens are out for {on_device} requests");
            if self.rig.staged() == 0 {
                assert_eq!(spare, 0, "{domain:?}: {out} tokens are out for {on_device} requests, and none waits");
            }
        }
    }

    fn finish(&mut self, handle: Handle) {
        let hctx = self.rig.finish(handle);
        self.awake.insert(hctx);
    }

    fn finish_any(&mut self, rng: &mut Random) {
        let handle = rng.of(&self.rig.in_flight);
        self.finish(handle);
    }

    /// Lets time pass; workers that were told to look again then do.
    fn pass(&mut self, ns: u64) {
        self.rig.now_ns += ns;
        let now_ns = self.rig.now_ns;
        self.awake.extend(self.rig.later.iter().filter(|&(_, &at_ns)| at_ns <= now_ns).map(|(&hctx, _)| hctx));
    }

    fn run(&mut self, rng: &mut Random, steps: usize) {
        let (submit, complete) = (1 + rng.index(5), 1 + rng.index(5));
        let pace_ns = rng.of(&[1_000, 100_000, 10 * MS]);
        for _ in 0..steps {
            match rng.index(submit + complete + 4) {
                n if n < submit => {
                    let hctx = HctxId(rng.index(self.rig.queues.len()) as u16);
                    if self.rig.staged_at(hctx) < 60 {
                        self.rig.submit(hctx.0, random_io(rng));
                        self.awake.insert(hctx);
                    }
                }
                n if n < submit + complete => {
                    if !self.rig.in_flight.is_empty() {
                        self.finish_any(rng);
                    }
                }
                _ => self.step(rng),
            }
            self.pass(rng.index(pace_ns as usize) as u64);
            if rng.index(40) == 0 {
                self.settle(rng);
            }
            if rng.index(100) == 0 {
                self.rig.policy.set_class(FlowId(rng.index(FLOWS) as u32), rng.of(&PriorityClass::ALL));
            }
        }
        self.settle(rng);
        // From here on only the device and the clock act. Everything must come out.
        while !self.rig.in_flight.is_empty() || !self.rig.later.is_empty() {
            if self.rig.in_flight.is_empty() {
                let at_ns = *self.rig.later.values().min().unwrap();
                self.pass(at_ns.saturating_sub(self.rig.now_ns));
            } else {
                self.finish_any(rng);
                self.pass(1_000);
            }
            self.settle(rng);
        }
        assert_eq!(self.rig.staged(), 0, "requests are staged, the device is empty, and everybody sleeps");
        assert_eq!(
            self.rig.policy.free_units(),
            Some(i64::from(self.rig.options.depth)),
            "I1: tokens were lost or made"
        );
    }
}

#[test]
fn every_request_of_a_generated_history_leaves_once_and_nobody_stands_still() {
    let count = if cfg!(debug_assertions) { 150 } else { 1500 };
    for kind in ELEVATORS {
        for seed in 0..count {
            let outcome = std::panic::catch_unwind(|| {
                let rng = &mut Random::new(seed);
                History::new(kind, rng).run(rng, [100, 1000][seed as usize % 2]);
            });
            if let Err(panic) = outcome {
                eprintln!("the failing history is that of {kind} with seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}
