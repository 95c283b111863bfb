//! Tenants in closed loops on a device with latency and parallelism, in virtual time: for policies that look at the
//! clock. The workers are those of [`mqfq_testing::rig`], here driven by a list of events.

#![allow(dead_code, reason = "each test binary uses its part")]

use mqfq_policies::{BFQ, BfqOptions};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::CostKind;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{Handle, OwnOptions, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::HctxId;
use mqfq_testing::Random;
use mqfq_testing::rig::{Io, Rig};
pub use mqfq_testing::rig::{MS, SECOND as S, US};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Device and scheduler.
#[derive(Clone, Copy)]
pub struct Options {
    pub kind: PolicyKind,
    pub bfq: BfqOptions,
    /// D.
    pub depth: u32,
    /// Requests that the device works on at once; others wait in it.
    pub parallelism: usize,
    /// Time on the device of each request.
    pub latency_ns: u64,
    /// It takes up to so many times as long, at random, so that requests end in any order.
    pub spread: u64,
    /// Requests that the device queue of one worker takes.
    pub room: usize,
    /// Requests that one worker may have staged.
    pub staged_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            kind: BFQ,
            bfq: BfqOptions::DEFAULT,
            depth: 32,
            parallelism: 32,
            latency_ns: 100 * US,
            spread: 1,
            room: usize::MAX,
            staged_max: 256,
        }
    }
}

/// A tenant: the same at each of its hctxs.
#[derive(Clone)]
pub struct Tenant {
    pub weight: u64,
    pub class: PriorityClass,
    pub hctxs: Vec<u16>,
    /// Requests in flight at each hctx.
    pub depth: u32,
    pub bytes: u32,
    pub is_sync: bool,
    /// Time from a completion to the next request.
    pub think_ns: u64,
    pub start_ns: u64,
    /// Requests after which it stops.
    pub requests_max: u64,
    pub is_random: bool,
}

impl Tenant {
    /// A tenant that reads 4 KiB after 4 KiB at one hctx.
    pub fn at(hctx: u16) -> Tenant {
        Tenant {
            weight: 100,
            class: PriorityClass::BestEffort,
            hctxs: vec![hctx],
            depth: 1,
            bytes: 4096,
            is_sync: true,
            think_ns: US,
            start_ns: 0,
            requests_max: u64::MAX,
            is_random: false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { tenant: usize, hctx: u16 },
    Complete { request: u32 },
    Wake { hctx: u16 },
}

#[derive(Clone, Default)]
struct Counted {
    submitted: u64,
    requests: u64,
    bytes: u64,
    total_ns: u64,
    worst_ns: u64,
}

pub struct Env {
    pub rig: Rig,
    options: Options,
    tenants: Vec<Tenant>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// When each of the device's units has done what it has.
    units_free_ns: Vec<u64>,
    counted: Vec<Counted>,
    pub most_in_flight: usize,
    /// Times that a worker was told to come back later.
    pub laters: u64,
    /// Offsets of requests, in the order of dispatch.
    pub offsets: Vec<u64>,
    random: Random,
    /// Tenant whose requests are dispatched, and since when.
    run: (usize, u64),
    longest_run_ns: u64,
}

pub fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

impl Env {
    /// Returns this environment with other random numbers.
    pub fn seeded(mut self, seed: u64) -> Env {
        self.random = Random::new(seed);
        self
    }

    pub fn new(options: Options, tenants: &[Tenant]) -> Env {
        let weights: Vec<Weight> = tenants.iter().map(|tenant| Weight::new(tenant.weight).unwrap()).collect();
        let own = OwnOptions::of(&options.bfq);
        let policy_options = PolicyOptions { depth: options.depth, own, ..PolicyOptions::new(options.kind) };
        let hctxs = 1 + tenants.iter().flat_map(|tenant| &tenant.hctxs).max().expect("a tenant submits somewhere");
        let rig = Rig::with_weights(policy_options, usize::from(hctxs), &weights, options.staged_max);
        for (flow, tenant) in tenants.iter().enumerate() {
            rig.policy.set_class(FlowId(flow as u32), tenant.class);
        }
        let mut env = Env {
            rig: rig.device_depth(options.room),
            options,
            tenants: tenants.to_vec(),
            events: BinaryHeap::new(),
            sequence: 0,
            units_free_ns: vec![0; options.parallelism],
            counted: vec![Counted::default(); tenants.len()],
            most_in_flight: 0,
            laters: 0,
            offsets: Vec::new(),
            random: Random::new(1),
            run: (usize::MAX, 0),
            longest_run_ns: 0,
        };
        for (number, tenant) in tenants.iter().enumerate() {
            for &hctx in &tenant.hctxs {
                (0..tenant.depth).for_each(|_| env.at(tenant.start_ns, Event::Arrive { tenant: number, hctx }));
            }
        }
        env
    }

    pub fn bytes(&self, tenant: usize) -> u64 {
        self.counted[tenant].bytes
    }

    pub fn requests(&self, tenant: usize) -> u64 {
        self.counted[tenant].requests
    }

    pub fn mean_ns(&self, tenant: usize) -> u64 {
        self.counted[tenant].total_ns / self.counted[tenant].requests
    }

    pub fn worst_ns(&self, tenant: usize) -> u64 {
        self.counted[tenant].worst_ns
    }

    /// The longest time during which only one tenant's requests were dispatched, from the first to the last of them.
    pub fn longest_run_ns(&self) -> u64 {
        self.longest_run_ns
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    /// Plays on until this time.
    pub fn run_until(&mut self, until_ns: u64) {
        while let Some(&Reverse((at_ns, _, event))) = self.events.peek() {
            if at_ns > until_ns {
                break;
            }
            self.events.pop();
            self.rig.now_ns = at_ns;
            let hctx = match event {
                Event::Arrive { tenant, hctx } => {
                    self.arrive(tenant, hctx);
                    HctxId(hctx)
                }
                Event::Complete { request } => self.complete(Handle(request)),
                Event::Wake { hctx } => HctxId(hctx),
            };
            let first = self.rig.log.len();
            self.rig.kicked.insert(hctx);
            self.rig.run_kicked();
            (first..self.rig.log.len()).for_each(|at| self.dispatched(self.rig.log[at]));
            for (hctx, at_ns) in std::mem::take(&mut self.rig.later) {
                self.laters += 1;
                self.at(at_ns, Event::Wake { hctx: hctx.0 });
            }
        }
        self.rig.now_ns = self.rig.now_ns.max(until_ns.min(1 << 62));
        let staged = self.rig.staged();
        assert!(!self.events.is_empty() || staged == 0, "{staged} requests are staged and nothing will happen");
    }

    /// Everything that will ever happen: all tenants have a `requests_max`. Each request was dispatched once and all
    /// tokens are back.
    pub fn run_out(&mut self) {
        self.run_until(u64::MAX);
        for (tenant, counted) in self.tenants.iter().zip(&self.counted) {
            assert_eq!((counted.submitted, counted.requests), (tenant.requests_max, tenant.requests_max));
        }
        assert_eq!(self.rig.policy.free_units(), Some(i64::from(self.options.depth)));
    }

    fn arrive(&mut self, tenant: usize, hctx: u16) {
        let Tenant { bytes, is_sync, requests_max, is_random, .. } = self.tenants[tenant];
        let submitted = &mut self.counted[tenant].submitted;
        if *submitted >= requests_max {
            return;
        }
        let place = if is_random { self.random.below(1 << 20) } else { *submitted };
        *submitted += 1;
        let kind = if is_sync { CostKind::Read } else { CostKind::Write };
        let offset_bytes = u64::from(bytes) * place;
        self.rig.submit(hctx, Io { flow: tenant as u32, kind, is_sync, offset_bytes, length_bytes: bytes });
    }

    fn complete(&mut self, request: Handle) -> HctxId {
        let (now_ns, io) = (self.rig.now_ns, self.rig.io(request));
        let total_ns = now_ns - self.rig.request(request).submitted_ns;
        let counted = &mut self.counted[io.flow as usize];
        counted.requests += 1;
        counted.bytes += u64::from(io.length_bytes);
        counted.total_ns += total_ns;
        counted.worst_ns = counted.worst_ns.max(total_ns);
        let hctx = self.rig.finish(request);
        let tenant = io.flow as usize;
        self.at(now_ns + self.tenants[tenant].think_ns, Event::Arrive { tenant, hctx: hctx.0 });
        hctx
    }

    fn dispatched(&mut self, request: Handle) {
        let (now_ns, io) = (self.rig.now_ns, self.rig.io(request));
        self.offsets.push(io.offset_bytes);
        if self.run.0 != io.flow as usize {
            self.run = (io.flow as usize, now_ns);
        }
        self.longest_run_ns = self.longest_run_ns.max(now_ns - self.run.1);
        self.most_in_flight = self.most_in_flight.max(self.rig.in_flight.len());
        let latency_ns = self.options.latency_ns * (1 + self.random.below(self.options.spread));
        let unit = self.units_free_ns.iter_mut().min().expect("a device does at least one at once");
        *unit = (*unit).max(now_ns) + latency_ns;
        let done_ns = *unit;
        self.at(done_ns, Event::Complete { request: request.0 });
    }
}
