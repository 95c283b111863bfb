//! Tenants in closed loops on a device with latency and parallelism, in virtual time: for policies that look at the
//! clock.
//!
//! Workers are those of `HwCtx`: they pick after a submit, a completion, a kick, and at the time that a policy named.

#![allow(dead_code, reason = "each test binary uses its part")]

use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::{Cost, CostKind};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    AnyPolicy, AnyQueue, BfqOptions, DispatchToken, Done, Entry, Handle, Pick, Policy, PolicyKind, PolicyOptions,
};
use mqfq_sched::topology::{HctxId, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

/// Device and scheduler.
#[derive(Clone, Copy)]
pub struct Options {
    pub kind: PolicyKind,
    pub bfq: BfqOptions,
    /// D.
    pub depth: u32,
    /// Requests that the device works on at once; others wait in it.
    pub parallelism: usize,
    /// What it takes for each.
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
            kind: PolicyKind::Bfq,
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
    /// From a completion to the next request.
    pub think_ns: u64,
    pub start_ns: u64,
    /// It stops after so many.
    pub requests_max: u64,
    pub is_random: bool,
}

impl Tenant {
    /// One that reads 4 KiB after the other at one hctx.
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

struct Request {
    tenant: usize,
    hctx: u16,
    submitted_ns: u64,
    dispatched_ns: u64,
    token: Option<DispatchToken>,
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
    pub policy: AnyPolicy,
    queues: Vec<AnyQueue>,
    options: Options,
    tenants: Vec<Tenant>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    pub now_ns: u64,
    requests: Vec<Request>,
    free: Vec<u32>,
    /// When each of the device's units has done what it has.
    units_free_ns: Vec<u64>,
    counted: Vec<Counted>,
    in_flight_on: Vec<usize>,
    pub in_flight: usize,
    pub most_in_flight: usize,
    /// Times that a worker was told to come back later.
    pub laters: u64,
    /// Where requests went, in the order of dispatch.
    pub offsets: Vec<u64>,
    random: u64,
    /// Whose requests are dispatched, and since when.
    run: (usize, u64),
    longest_run_ns: u64,
}

impl Drop for Env {
    fn drop(&mut self) {
        for token in self.requests.iter_mut().filter_map(|request| request.token.take()) {
            token.into_units();
        }
    }
}

pub fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

impl Env {
    /// The same with other random numbers.
    pub fn seeded(mut self, seed: u64) -> Env {
        self.random = (seed << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self
    }

    pub fn new(options: Options, tenants: &[Tenant]) -> Env {
        let weights: Vec<Weight> = tenants.iter().map(|tenant| Weight::new(tenant.weight).unwrap()).collect();
        let policy_options =
            PolicyOptions { depth: options.depth, bfq: options.bfq, ..PolicyOptions::new(options.kind) };
        let hctxs = 1 + tenants.iter().flat_map(|tenant| &tenant.hctxs).max().expect("a tenant submits somewhere");
        let policy = AnyPolicy::new(&policy_options, &Topology::flat(usize::from(hctxs)), &weights).unwrap();
        for (flow, tenant) in tenants.iter().enumerate() {
            policy.set_class(FlowId(flow as u32), tenant.class);
        }
        let queues = (0..hctxs).map(|hctx| policy.open_queue(HctxId(hctx), options.staged_max)).collect();
        let mut env = Env {
            policy,
            queues,
            options,
            tenants: tenants.to_vec(),
            events: BinaryHeap::new(),
            sequence: 0,
            now_ns: 0,
            requests: Vec::new(),
            free: Vec::new(),
            units_free_ns: vec![0; options.parallelism],
            counted: vec![Counted::default(); tenants.len()],
            in_flight_on: vec![0; usize::from(hctxs)],
            in_flight: 0,
            most_in_flight: 0,
            laters: 0,
            offsets: Vec::new(),
            random: 1,
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
            self.now_ns = at_ns;
            let mut awake = BTreeSet::new();
            match event {
                Event::Arrive { tenant, hctx } => {
                    self.arrive(tenant, hctx, &mut awake);
                    awake.insert(hctx);
                }
                Event::Complete { request } => {
                    awake.insert(self.complete(request, &mut awake.clone()));
                }
                Event::Wake { hctx } => {
                    awake.insert(hctx);
                }
            }
            while let Some(hctx) = awake.pop_first() {
                self.pick_all(hctx, &mut awake);
            }
        }
        self.now_ns = self.now_ns.max(until_ns.min(1 << 62));
        let staged: usize = self.queues.iter().map(|queue| self.policy.staged(queue)).sum();
        assert!(!self.events.is_empty() || staged == 0, "{staged} requests are staged and nothing will happen");
    }

    /// Everything that will ever happen: all tenants have a `requests_max`. Each request was dispatched once and all
    /// tokens are back.
    pub fn run_out(&mut self) {
        self.run_until(u64::MAX);
        for (tenant, counted) in self.tenants.iter().zip(&self.counted) {
            assert_eq!((counted.submitted, counted.requests), (tenant.requests_max, tenant.requests_max));
        }
        assert_eq!(self.policy.free_units(), Some(i64::from(self.options.depth)));
    }

    /// 0..bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn arrive(&mut self, tenant: usize, hctx: u16, awake: &mut BTreeSet<u16>) {
        let Tenant { bytes, is_sync, requests_max, is_random, .. } = self.tenants[tenant];
        let submitted = &mut self.counted[tenant].submitted;
        if *submitted >= requests_max {
            return;
        }
        let offset_bytes =
            u64::from(bytes) * if is_random { self.draw() % (1 << 20) } else { self.counted[tenant].submitted };
        self.counted[tenant].submitted += 1;
        let request = Request { tenant, hctx, submitted_ns: self.now_ns, dispatched_ns: 0, token: None };
        let number = match self.free.pop() {
            Some(free) => {
                self.requests[free as usize] = request;
                free
            }
            None => {
                self.requests.push(request);
                self.requests.len() as u32 - 1
            }
        };
        let entry = Entry {
            flow: FlowId(tenant as u32),
            cost: Cost(u64::from(bytes)),
            handle: Handle(number),
            kind: if is_sync { CostKind::Read } else { CostKind::Write },
            is_sync,
            offset_bytes,
            length_bytes: bytes,
        };
        self.offset_of(number, offset_bytes);
        let kick = &mut |other: HctxId| {
            awake.insert(other.0);
        };
        self.policy.submit(&mut self.queues[usize::from(hctx)], entry, self.now_ns, kick);
    }

    /// Remembers where a request goes, in the place of its time of dispatch until it has one.
    fn offset_of(&mut self, number: u32, offset_bytes: u64) {
        self.requests[number as usize].dispatched_ns = offset_bytes;
    }

    fn complete(&mut self, number: u32, awake: &mut BTreeSet<u16>) -> u16 {
        let request = &mut self.requests[number as usize];
        let (tenant, hctx) = (request.tenant, request.hctx);
        let token = request.token.take().expect("it was dispatched");
        let Tenant { bytes, is_sync, think_ns, .. } = self.tenants[tenant];
        let total_ns = self.now_ns - request.submitted_ns;
        let done = Done {
            flow: FlowId(tenant as u32),
            handle: Handle(number),
            kind: if is_sync { CostKind::Read } else { CostKind::Write },
            is_sync,
            length_bytes: bytes,
            cost: Cost(bytes.into()),
            submitted_ns: request.submitted_ns,
            dispatched_ns: request.dispatched_ns,
        };
        let counted = &mut self.counted[tenant];
        counted.requests += 1;
        counted.bytes += u64::from(bytes);
        counted.total_ns += total_ns;
        counted.worst_ns = counted.worst_ns.max(total_ns);
        self.in_flight -= 1;
        self.in_flight_on[usize::from(hctx)] -= 1;
        self.free.push(number);
        let kick = &mut |other: HctxId| {
            awake.insert(other.0);
        };
        self.policy.complete(&mut self.queues[usize::from(hctx)], done, token, self.now_ns, kick);
        self.at(self.now_ns + think_ns, Event::Arrive { tenant, hctx });
        hctx
    }

    fn pick_all(&mut self, hctx: u16, awake: &mut BTreeSet<u16>) {
        loop {
            let kick = &mut |other: HctxId| {
                assert_ne!(other.0, hctx, "a worker kicked itself");
                awake.insert(other.0);
            };
            if self.in_flight_on[usize::from(hctx)] >= self.options.room {
                return self.policy.pause(&mut self.queues[usize::from(hctx)], kick);
            }
            match self.policy.pick(&mut self.queues[usize::from(hctx)], self.now_ns, kick) {
                Pick::Dispatch(grant) => {
                    let number = grant.handle.0;
                    self.offsets.push(self.requests[number as usize].dispatched_ns);
                    let request = &mut self.requests[number as usize];
                    assert!(request.token.is_none() && request.hctx == hctx, "dispatched twice, or by another worker");
                    request.token = Some(grant.token);
                    request.dispatched_ns = self.now_ns;
                    let tenant = request.tenant;
                    if self.run.0 != tenant {
                        self.run = (tenant, self.now_ns);
                    }
                    self.longest_run_ns = self.longest_run_ns.max(self.now_ns - self.run.1);
                    self.in_flight += 1;
                    self.in_flight_on[usize::from(hctx)] += 1;
                    self.most_in_flight = self.most_in_flight.max(self.in_flight);
                    let latency_ns = self.options.latency_ns * (1 + self.draw() % self.options.spread);
                    let unit = self.units_free_ns.iter_mut().min().expect("a device does at least one at once");
                    *unit = (*unit).max(self.now_ns) + latency_ns;
                    let done_ns = *unit;
                    self.at(done_ns, Event::Complete { request: number });
                }
                Pick::Later(at_ns) => {
                    assert!(at_ns > self.now_ns, "told to come back at {at_ns} at {}", self.now_ns);
                    self.laters += 1;
                    self.at(at_ns, Event::Wake { hctx });
                    return;
                }
                Pick::Throttled | Pick::NoToken | Pick::Idle => return,
            }
        }
    }
}
