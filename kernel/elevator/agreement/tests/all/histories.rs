//! Generated histories: every grant of the C core is one that the oracle allows, virtual time and tokens are the same
//! after each step, and no request that may go is left waiting.

use mqfq_elevator_agreement::{State, World};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{Entry, Handle, PolicyKind, PolicyOptions, WindowTerms};
use mqfq_sched::topology::HctxId;
use mqfq_sched::vtime::VSpan;
use mqfq_testing::oracle::{Oracle, narrow};
use mqfq_testing::random::{Random, for_seeds};

/// Steps in all; `MQFQ_SOAK=n` takes n times as many.
const STEPS: u64 = 100_000;
const SEEDS: u64 = 50;

/// The core and the oracle, side by side.
struct Both {
    world: World,
    oracle: Oracle,
    hctxs: usize,
    /// Requests on the device: queue and units.
    out: Vec<(HctxId, u32)>,
    handles: u32,
    /// By flow: the queues to which it submits.
    homes: Vec<Vec<u16>>,
}

impl Both {
    fn new(random: &mut Random) -> Both {
        let hctxs = random.of(&[1usize, 1, 2, 3, 4, 8, 9, 17]);
        let sockets = random.between(1, 3) as u16;
        let mut socket_of: Vec<u16> = (0..hctxs).map(|hctx| hctx as u16 % sockets).collect();
        if random.chance(2) {
            socket_of.sort_unstable();
        }
        let flows = random.between(1, 9) as usize;
        let weights: Vec<Weight> = (0..flows).map(|_| weight(random)).collect();
        let homes = (0..flows)
            .map(|_| match random.below(3) {
                0 => (0..hctxs as u16).collect(),
                1 => vec![random.below(hctxs as u64) as u16],
                _ => (0..2).map(|_| random.below(hctxs as u64) as u16).collect(),
            })
            .collect();
        let (depth, window) = (random.of(&[1u32, 2, 5, 16, 64]), window(random));
        let options = PolicyOptions {
            depth,
            // So that a request takes its units, however small D is.
            depth_auto: true,
            window,
            token_unit_bytes: Some(4096),
            ..PolicyOptions::new(PolicyKind::Mqfq)
        };
        let options = options.with_terms(WindowTerms::relaxed(window, hctxs));
        Both {
            world: World::new(&socket_of, depth, window, &weights),
            oracle: Oracle::new(&options, hctxs, &weights),
            hctxs,
            out: Vec::new(),
            handles: 0,
            homes,
        }
    }

    fn check(&self) {
        assert_eq!(self.world.global_vtime(), narrow(self.oracle.global_vtime()), "virtual time");
        assert_eq!(self.world.free_units(), self.oracle.free_units(), "free units");
    }

    fn submit(&mut self, random: &mut Random) {
        let flow = FlowId(random.below(self.homes.len() as u64) as u32);
        let hctx = HctxId(random.of(&self.homes[flow.0 as usize]));
        let cost = Cost(match random.below(4) {
            0 => 4096,
            1 => 512 * random.between(1, 16),
            2 => 4096 * random.between(1, 64),
            _ => random.between(1, 300_000),
        });
        self.handles += 1;
        let units = match random.chance(2) {
            true => self.world.enter(hctx, flow, cost, self.handles.into()),
            false => {
                self.world.submit(hctx, flow, cost, self.handles.into());
                None
            }
        };
        self.oracle.submit_deferred(hctx, Entry::read(flow, cost, Handle(self.handles)));
        if let Some(units) = units {
            // As if it had been picked at once.
            self.oracle.look(hctx);
            let lead = self.oracle.lead(hctx).expect("the oracle has it");
            assert_eq!((lead.handle.0, lead.units), (self.handles, units), "another request goes first");
            self.oracle.dispatch(hctx).expect("the oracle allows it");
            self.out.push((hctx, units));
        }
    }

    /// As a kernel does: nothing if there is no work.
    fn pick(&mut self, hctx: HctxId) -> bool {
        if !self.world.has_work(hctx) {
            return false;
        }
        self.oracle.look(hctx);
        let State::Dispatch(handle, units) = self.world.pick(hctx) else { return false };
        let lead = self.oracle.lead(hctx).expect("the oracle has a request there");
        assert_eq!((u64::from(lead.handle.0), lead.units), (handle, units), "another request goes first");
        self.oracle.dispatch(hctx).expect("the oracle allows it");
        self.out.push((hctx, units));
        true
    }

    fn settle(&mut self, hctx: HctxId) {
        self.oracle.look(hctx);
        self.world.settle(hctx);
    }

    fn complete(&mut self, random: &mut Random) {
        if !self.out.is_empty() {
            let (hctx, units) = self.out.swap_remove(random.index(self.out.len()));
            self.world.complete(hctx, units);
            self.oracle.complete(units);
        }
    }

    fn all(&self) -> impl Iterator<Item = HctxId> + use<> {
        (0..self.hctxs as u16).map(HctxId)
    }

    /// Picks for as long as a kernel would.
    fn run_to_rest(&mut self) {
        while let Some(hctx) = self.all().find(|&hctx| self.world.has_work(hctx)) {
            self.pick(hctx);
            self.check();
        }
        let left = self.oracle.must_serve();
        assert_eq!(left, None, "it may go, a token is free, and nobody will ever pick");
    }

    fn change(&mut self, random: &mut Random) {
        match random.below(3) {
            0 => {
                let (flow, weight) = (FlowId(random.below(self.homes.len() as u64) as u32), weight(random));
                self.world.set_weight(flow, weight);
                self.oracle.set_weight(flow, weight);
            }
            1 => {
                let depth = random.between(1, 80) as u32;
                self.world.set_depth(depth);
                self.oracle.set_depth(depth);
            }
            _ => {
                let window = window(random);
                self.world.set_window(window);
                self.oracle.set_window(WindowTerms::relaxed(window, self.hctxs));
                // With a unit for each, a queue that is within the new T looks again at once (W4).
                if self.world.free_units() >= self.hctxs as i64 {
                    let left = self.all().find(|&hctx| self.oracle.is_eligible(hctx) && !self.world.has_work(hctx));
                    assert_eq!(left, None, "it is within the new T and was not told");
                }
            }
        }
        self.world.refresh();
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..40 => self.submit(random),
            40..70 => {
                let hctx = HctxId(random.below(self.hctxs as u64) as u16);
                self.pick(hctx);
                if random.chance(2) {
                    self.settle(hctx);
                }
            }
            70..95 => self.complete(random),
            95..97 => self.change(random),
            _ => self.run_to_rest(),
        }
        self.check();
    }
}

fn weight(random: &mut Random) -> Weight {
    let value = random.of(&[1, 7, 100, 100, 100, 300, 333, 10_000]);
    Weight::new(value).expect("in range")
}

fn window(random: &mut Random) -> VSpan {
    VSpan::from_bytes(random.of(&[16u64, 16, 17, 32, 64, 100, 256, 1024, 16_384]) << 10)
}

#[test]
fn every_grant_is_one_that_the_oracle_allows_and_nobody_waits_in_vain() {
    let soak = std::env::var("MQFQ_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    for_seeds(SEEDS * soak, |random| {
        let mut both = Both::new(random);
        for _ in 0..STEPS / SEEDS {
            both.step(random);
        }
        while !both.out.is_empty() || both.all().any(|hctx| both.oracle.staged(hctx) > 0) {
            both.run_to_rest();
            both.complete(random);
            both.check();
        }
    });
}
