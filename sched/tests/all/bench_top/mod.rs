//! Backlogged tenants on [`mqfq_testing::rig`], in the order of steps that a test chooses; time stands still.
//!
//! Every step of MQFQ is held against the oracle, and the invariants that hold at every step are checked at every step:
//! tokens are conserved (I1), at most D requests are out (I2), virtual time does not go back (I8), and what is
//! dispatched is what the oracle admits (I3, I9).

#![allow(dead_code, reason = "each test binary uses its part")]

use mqfq_policies::{MQFQ_SERIAL, SFQD};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::Tree;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{Entry, Handle, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_testing::oracle::{Oracle, narrow};
pub use mqfq_testing::rig::KIB;
use mqfq_testing::rig::{Picked, Rig, read};
use std::ops::{Deref, DerefMut};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Requests that one queue can stage in a test.
pub const CAPACITY_REQUESTS: usize = 512;

pub fn mqfq(depth: u32, window_bytes: u64) -> PolicyOptions {
    PolicyOptions { depth, window: VSpan::from_bytes(window_bytes), ..PolicyOptions::new(PolicyKind::Mqfq) }
}

pub fn weight(value: u64) -> Weight {
    Weight::new(value).expect("a weight of a test is in range")
}

/// A tenant: its weight, the size of its requests, and the hctxs at which it submits them.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub name: &'static str,
    pub weight: u64,
    pub request_bytes: u64,
    pub hctxs: Vec<u16>,
}

pub fn tenant(name: &'static str, weight: u64, request_bytes: u64, hctxs: &[u16]) -> Tenant {
    Tenant { name, weight, request_bytes, hctxs: hctxs.to_vec() }
}

/// A request that left its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatched {
    pub hctx: HctxId,
    pub flow: FlowId,
    pub handle: Handle,
}

/// Service and state of all flows at one moment: after one step.
#[derive(Clone)]
pub struct Moment {
    pub dispatched_bytes: Vec<u64>,
    pub completed_bytes: Vec<u64>,
    pub backlogged: Vec<bool>,
    /// How far beyond virtual time a request can start that was dispatched until now, units: T, or what is left of a
    /// longer one that there was.
    pub ahead_units: u128,
}

pub struct Env {
    rig: Rig,
    pub options: PolicyOptions,
    pub oracle: Oracle,
    pub tenants: Vec<Tenant>,
    /// Every step, if [`Env::record`] was called.
    pub history: Option<Vec<Moment>>,
    /// Everything dispatched, in order.
    pub log: Vec<Dispatched>,
    /// Calls of the policy: submit, pick, complete, pause, set a weight.
    pub steps: u64,
    /// The largest D so far.
    pub depth_max: u32,
    /// Costs by handle.
    costs: Vec<Cost>,
    staged_by: Vec<Vec<usize>>,
    dispatched_bytes: Vec<u64>,
    completed_bytes: Vec<u64>,
    last_vtime: Option<VTime>,
    /// The latest point at which a dispatched request can start: of all moments, virtual time plus T.
    frontier: u128,
    /// Longest lease so far.
    pub lease_max: VSpan,
    /// Requests kept staged per tenant, at each of its hctxs.
    backlog_requests: Vec<usize>,
}

impl Deref for Env {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl DerefMut for Env {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.rig
    }
}

impl Env {
    pub fn new(options: PolicyOptions, topology: &Topology, tenants: &[Tenant]) -> Env {
        let weights: Vec<Weight> = tenants.iter().map(|tenant| weight(tenant.weight)).collect();
        let rig = Rig::on(options, topology, &weights, &Tree::default(), CAPACITY_REQUESTS);
        let hctxs = topology.hctx_count();
        Env {
            options,
            oracle: Oracle::new(&options, hctxs, &weights),
            last_vtime: rig.policy.global_vtime(),
            rig,
            frontier: 0,
            lease_max: options.lease,
            tenants: tenants.to_vec(),
            history: None,
            log: Vec::new(),
            steps: 0,
            depth_max: options.depth,
            costs: Vec::new(),
            staged_by: vec![vec![0; tenants.len()]; hctxs],
            dispatched_bytes: vec![0; tenants.len()],
            completed_bytes: vec![0; tenants.len()],
            backlog_requests: vec![0; tenants.len()],
        }
    }

    /// Device queues of `requests` each: what limits a policy without a depth, and makes workers pause.
    pub fn device_depth(mut self, requests: usize) -> Env {
        self.rig = self.rig.device_depth(requests);
        self
    }

    /// Tenants on as many hctxs as they name, one socket.
    pub fn flat(options: PolicyOptions, tenants: &[Tenant]) -> Env {
        let last = tenants.iter().flat_map(|tenant| &tenant.hctxs).max().expect("a tenant submits somewhere");
        Env::new(options, &Topology::flat(usize::from(*last) + 1), tenants)
    }

    pub fn flow(&self, name: &str) -> FlowId {
        let index = self.tenants.iter().position(|tenant| tenant.name == name);
        FlowId(index.unwrap_or_else(|| panic!("no tenant is called {name}")) as u32)
    }

    fn is_mqfq(&self) -> bool {
        [PolicyKind::Mqfq, MQFQ_SERIAL].contains(&self.options.kind)
    }

    /// One request of the tenant's size.
    pub fn submit(&mut self, flow: FlowId, hctx: HctxId) {
        self.submit_cost(flow, hctx, Cost(self.tenants[flow.0 as usize].request_bytes));
    }

    pub fn submit_cost(&mut self, flow: FlowId, hctx: HctxId, cost: Cost) {
        self.steps += 1;
        self.staged_by[hctx.index()][flow.0 as usize] += 1;
        let handle = self.rig.submit_cost(hctx.0, read(flow.0, 0), cost);
        self.costs.push(cost);
        if self.is_mqfq() {
            self.oracle.submit(hctx, Entry::read(flow, cost, handle));
        }
        self.check();
    }

    /// One `pick`, held against the oracle.
    pub fn pick(&mut self, hctx: HctxId) -> bool {
        self.steps += 1;
        if self.is_mqfq() {
            self.oracle.look(hctx);
        }
        let picked = self.rig.pick(hctx);
        if self.is_mqfq() {
            match picked {
                Picked::Dispatched(handle) => {
                    let admitted = self.oracle.admits(hctx, handle);
                    let now = self.oracle.global_vtime();
                    assert_eq!(admitted, Ok(()), "{hctx:?} dispatched {handle:?}, virtual time {now}");
                    let request = self.oracle.dispatch(hctx).expect("admitted");
                    assert_eq!(request.units, self.rig.units(handle));
                }
                Picked::Throttled => assert!(
                    self.oracle.lead(hctx).is_some() && !self.oracle.is_eligible(hctx),
                    "{hctx:?} throttled although its lead {:?} is within T of {}",
                    self.oracle.lead(hctx),
                    self.oracle.global_vtime()
                ),
                Picked::NoToken => {
                    assert!(self.oracle.is_eligible(hctx), "{hctx:?} asks for a token that it cannot use")
                }
                Picked::Later(_) => unreachable!("fair queueing does not wait for time"),
                Picked::Idle => assert_eq!(self.oracle.lead(hctx), None, "{hctx:?} claims to be idle"),
            }
        }
        let Picked::Dispatched(handle) = picked else {
            self.check();
            return false;
        };
        let flow = FlowId(self.rig.io(handle).flow);
        self.staged_by[hctx.index()][flow.0 as usize] -= 1;
        self.dispatched_bytes[flow.0 as usize] += self.costs[handle.0 as usize].0;
        self.log.push(Dispatched { hctx, flow, handle });
        self.check();
        self.refill(hctx);
        true
    }

    /// Runs an awake worker until it can dispatch no more.
    pub fn run(&mut self, hctx: HctxId) {
        while self.has_room(hctx) {
            if !self.pick(hctx) {
                return;
            }
        }
        self.pause(hctx);
    }

    /// Lets every kicked worker run until none is kicked any more.
    pub fn run_kicked(&mut self) {
        while let Some(hctx) = self.kicked.pop_first() {
            self.run(hctx);
        }
    }

    pub fn run_all(&mut self) {
        for hctx in 0..self.queues.len() {
            self.run(HctxId(hctx as u16));
        }
        self.run_kicked();
    }

    pub fn in_flight(&self) -> usize {
        self.rig.in_flight.len()
    }

    /// The device finishes one request; its worker is told, and does not run yet.
    pub fn complete_at(&mut self, position: usize) -> HctxId {
        self.steps += 1;
        let handle = self.rig.in_flight[position];
        self.completed_bytes[self.rig.io(handle).flow as usize] += self.costs[handle.0 as usize].0;
        if self.is_mqfq() {
            self.oracle.complete(self.rig.units(handle));
        }
        let hctx = self.rig.finish(handle);
        self.check();
        hctx
    }

    /// The device finishes its oldest request, and every worker that may run does.
    pub fn complete_oldest(&mut self) {
        let hctx = self.complete_at(0);
        self.run(hctx);
        self.run_kicked();
    }

    /// The device queue of a worker is full: it stops picking although it could go on.
    pub fn pause(&mut self, hctx: HctxId) {
        self.steps += 1;
        self.rig.pause(hctx);
        self.check();
    }

    /// Puts another D in force, by the worker of `hctx`, which picks after it.
    pub fn set_depth(&mut self, hctx: HctxId, depth: u32) {
        self.steps += 1;
        self.depth_max = self.depth_max.max(depth);
        self.options.depth = depth;
        self.oracle.set_depth(depth);
        self.rig.set_depth(hctx, depth);
        self.check();
    }

    /// T is `window` from now on, in the form that there is. A worker has yet to pick after it.
    pub fn set_window(&mut self, window: VSpan) {
        self.steps += 1;
        let terms = self.options.terms_of(window, self.queues.len());
        self.options = self.options.with_terms(terms);
        self.lease_max = self.lease_max.max(terms.lease);
        self.oracle.set_window(terms);
        self.policy.set_window(&terms);
        assert_eq!(self.policy.window_terms(), Some(terms));
        self.check();
    }

    pub fn set_weight(&mut self, name: &str, value: u64) {
        self.steps += 1;
        let flow = self.flow(name);
        self.oracle.set_weight(flow, weight(value));
        self.policy.set_weight(flow, weight(value));
    }

    /// From now on every tenant has `requests` staged at each of its hctxs, at any moment.
    pub fn keep_backlogged(&mut self, requests: usize) -> &mut Self {
        self.backlog_requests.fill(requests);
        self.refill_all()
    }

    /// As `keep_backlogged`, for one tenant; 0 lets it run dry.
    pub fn set_backlog(&mut self, name: &str, requests: usize) -> &mut Self {
        let flow = self.flow(name);
        self.backlog_requests[flow.0 as usize] = requests;
        self.refill_all()
    }

    fn refill_all(&mut self) -> &mut Self {
        for hctx in 0..self.queues.len() {
            self.refill(HctxId(hctx as u16));
        }
        self.run_all();
        self
    }

    fn refill(&mut self, hctx: HctxId) {
        for flow in 0..self.tenants.len() {
            if self.tenants[flow].hctxs.contains(&hctx.0) {
                while self.staged_by[hctx.index()][flow] < self.backlog_requests[flow] {
                    self.submit(FlowId(flow as u32), hctx);
                }
            }
        }
    }

    /// Lets the device complete, oldest first, until `count` more requests were dispatched.
    pub fn dispatch(&mut self, count: usize) -> &mut Self {
        let goal = self.log.len() + count;
        while self.log.len() < goal {
            assert!(self.in_flight() > 0, "nothing is in flight, nothing is dispatched: the device stands still");
            self.complete_oldest();
        }
        self
    }

    /// Completes everything, until nothing is staged.
    pub fn drain(&mut self) {
        self.backlog_requests.fill(0);
        self.run_all();
        while self.in_flight() > 0 {
            self.complete_oldest();
        }
        assert_eq!(self.staged(), 0, "requests are staged, the device is empty, and nobody moves");
    }

    pub fn staged_of(&self, flow: FlowId, hctx: HctxId) -> usize {
        self.staged_by[hctx.index()][flow.0 as usize]
    }

    pub fn dispatched_bytes(&self, name: &str) -> u64 {
        self.dispatched_bytes[self.flow(name).0 as usize]
    }

    pub fn completed_bytes(&self, name: &str) -> u64 {
        self.completed_bytes[self.flow(name).0 as usize]
    }

    /// Two tenants that were backlogged from the first step on share by weight, within the bound that is proved in
    /// `policy/mqfq/mod.rs`: `|A/r_a - B/r_b| <= 2T + l_a/r_a + l_b/r_b`, and a lease for each queue of a flow that is
    /// on several, here times `r_a r_b`, in integers. `sfqd` has no T and grants up to D requests that their worker has
    /// not picked up.
    pub fn expect_shares_by_weight(&self, a: &str, b: &str) {
        let of = |name: &str| &self.tenants[self.flow(name).0 as usize];
        let (weight_a, weight_b) = (u128::from(of(a).weight), u128::from(of(b).weight));
        let (got_a, got_b) = (u128::from(self.dispatched_bytes(a)), u128::from(self.dispatched_bytes(b)));
        let requests = u128::from(of(a).request_bytes) * weight_b + u128::from(of(b).request_bytes) * weight_a;
        let slack = match self.options.kind {
            kind if kind == SFQD => requests * (u128::from(self.options.depth) + 1),
            _ => {
                let queues = |name: &str| Some(of(name).hctxs.len()).filter(|queues| *queues > 1).unwrap_or(0);
                let leases = (queues(a) + queues(b)) as u128 * u128::from(self.options.lease.0);
                let units = 2 * u128::from(self.options.window.0) + leases;
                requests + units * weight_a * weight_b / (100 * 1024)
            }
        };
        let difference = (got_a * weight_b).abs_diff(got_b * weight_a);
        assert!(
            difference <= slack,
            "{a} of weight {weight_a} got {got_a} bytes and {b} of weight {weight_b} got {got_b}: off by {difference}, \
             allowed is {slack} (bytes x weight)"
        );
    }

    pub fn record(&mut self) -> &mut Self {
        self.history = Some(Vec::new());
        self
    }

    fn check(&mut self) {
        let outside = i64::from(self.units_out());
        if let Some(free) = self.policy.free_units() {
            let granted = if self.is_mqfq() { 0 } else { i64::from(self.options.depth) - free - outside };
            assert!(granted >= 0);
            assert_eq!(free + outside + granted, i64::from(self.options.depth), "I1: tokens are conserved");
            // After D was reduced, tokens near a worker may still be used; `token_tree` has the sharper bound.
            assert!(self.in_flight() <= self.depth_max as usize, "I2: at most D requests on the device");
        }
        if let (Some(now), Some(last)) = (self.policy.global_vtime(), self.last_vtime) {
            assert!(!now.is_before(last), "I8: virtual time went back from {last:?} to {now:?}");
            self.last_vtime = Some(now);
        }
        if self.is_mqfq() {
            assert_eq!(self.policy.free_units(), Some(self.oracle.free_units()));
            assert_eq!(self.policy.global_vtime(), Some(narrow(self.oracle.global_vtime())), "virtual time");
            // A T of less than a grain of tags counts as a unit less than that.
            let window = u128::from(self.options.window.0.max(63));
            self.frontier = self.frontier.max(self.oracle.global_vtime() + window);
        }
        if let Some(history) = &mut self.history {
            let staged = |flow: usize| self.staged_by.iter().any(|flows| flows[flow] > 0);
            history.push(Moment {
                dispatched_bytes: self.dispatched_bytes.clone(),
                completed_bytes: self.completed_bytes.clone(),
                backlogged: (0..self.tenants.len()).map(staged).collect(),
                ahead_units: self.frontier.saturating_sub(self.oracle.global_vtime()),
            });
        }
    }
}
