//! The workers of one policy, a device and tenants, in one thread and in virtual time. A test submits the requests and
//! ends them on the device.
//!
//! ```text
//!  submit ─▶ stage queue ─▶ run: pick until there is no room or nothing may go ─▶ device ─▶ finish ─▶ token back
//!               ▲  kicked workers run until none is kicked; `Pick::Later` is kept in `later`
//! ```
//! Kicks and the times of `Pick::Later` go into sets in place of threads. At every step: a request is dispatched once
//! and by the worker that submitted it, no worker kicks itself, and no more than D units are out (but for the debt of
//! one).

use mqfq_sched::cost::{Cost, CostKind, CostModel};
use mqfq_sched::flow::Tree;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, AnyQueue, DispatchToken, Done, Entry, Grant, Handle, Pick, Policy, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// A microsecond, ns.
pub const US: u64 = 1_000;
/// A millisecond, ns.
pub const MS: u64 = 1_000 * US;
/// A second, ns.
pub const SECOND: u64 = 1_000 * MS;
/// A KiB, bytes.
pub const KIB: u64 = 1 << 10;

/// Requests that one queue can stage unless a test says otherwise.
pub const CAPACITY_REQUESTS: usize = 1024;

/// A request that a test submits.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Number of the flow.
    pub flow: u32,
    /// Its operation.
    pub kind: CostKind,
    /// A thread waits for it.
    pub is_sync: bool,
    /// Where it begins.
    pub offset_bytes: u64,
    /// Its size.
    pub length_bytes: u32,
}

/// A synchronous read of 4 KiB.
pub fn read(flow: u32, offset_bytes: u64) -> Io {
    Io { flow, kind: CostKind::Read, is_sync: true, offset_bytes, length_bytes: 4096 }
}

/// A write for which no thread waits.
pub fn write(flow: u32, offset_bytes: u64) -> Io {
    Io { kind: CostKind::Write, is_sync: false, ..read(flow, offset_bytes) }
}

/// A write that must be stable before it completes.
pub fn write_sync(flow: u32, offset_bytes: u64) -> Io {
    Io { is_sync: true, ..write(flow, offset_bytes) }
}

/// A discard of 4 KiB.
pub fn discard(flow: u32, offset_bytes: u64) -> Io {
    Io { kind: CostKind::Discard, ..write(flow, offset_bytes) }
}

/// A flush.
pub fn flush(flow: u32) -> Io {
    Io { kind: CostKind::Flush, length_bytes: 0, ..read(flow, 0) }
}

/// How a pick ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Picked {
    /// This request went to the device.
    Dispatched(Handle),
    /// Nothing is near enough to virtual time.
    Throttled,
    /// D units are out.
    NoToken,
    /// Nothing before this time.
    Later(u64),
    /// Nothing is staged.
    Idle,
}

/// A request, from its submission on.
pub struct Request {
    /// The submitted operation.
    pub io: Io,
    /// Hctx whose worker has the request.
    pub hctx: HctxId,
    /// Time of its submission.
    pub submitted_ns: u64,
    /// Time of its dispatch.
    pub dispatched_ns: Option<u64>,
    cost: Cost,
    token: Option<DispatchToken>,
}

/// See the module's text.
pub struct Rig {
    /// The policy that is tested.
    pub policy: AnyPolicy,
    /// Options of the policy.
    pub options: PolicyOptions,
    /// Queues by hctx.
    pub queues: Vec<AnyQueue>,
    /// Virtual time.
    pub now_ns: u64,
    /// Workers that were kicked and have not run since.
    pub kicked: BTreeSet<HctxId>,
    /// Kicks, those of workers that were kicked already too.
    pub kicks_sent: u64,
    /// Workers that were told to pick again, and when.
    pub later: BTreeMap<HctxId, u64>,
    /// Everything dispatched, in order.
    pub log: Vec<Handle>,
    /// On the device, oldest first.
    pub in_flight: Vec<Handle>,
    requests: Vec<Request>,
    staged: Vec<usize>,
    in_flight_on: Vec<usize>,
    /// Units of the tokens in flight.
    units_out: u32,
    under_way: Vec<usize>,
    room: usize,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The test is over; requests still on the device may be dropped.
        for token in self.requests.iter_mut().filter_map(|request| request.token.take()) {
            token.into_units();
        }
    }
}

impl Rig {
    /// Flows of the default weight on so many hctxs of one socket.
    pub fn new(options: PolicyOptions, hctxs: usize, flows: usize) -> Rig {
        Rig::with_weights(options, hctxs, &vec![Weight::DEFAULT; flows], CAPACITY_REQUESTS)
    }

    /// Flows of these weights; each queue stages at most `capacity_requests`.
    ///
    /// # Panics
    /// If there is no such policy, as everything here.
    pub fn with_weights(options: PolicyOptions, hctxs: usize, weights: &[Weight], capacity_requests: usize) -> Rig {
        Rig::with_tree(options, hctxs, weights, &Tree::default(), capacity_requests)
    }

    /// As [`Rig::with_weights`], with the flows in groups.
    ///
    /// # Panics
    /// As [`Rig::with_weights`].
    pub fn with_tree(
        options: PolicyOptions,
        hctxs: usize,
        weights: &[Weight],
        tree: &Tree,
        capacity_requests: usize,
    ) -> Rig {
        Rig::on(options, &Topology::flat(hctxs), weights, tree, capacity_requests)
    }

    /// As [`Rig::with_tree`], on a machine of this shape.
    ///
    /// # Panics
    /// As [`Rig::with_weights`].
    pub fn on(
        options: PolicyOptions,
        topology: &Topology,
        weights: &[Weight],
        tree: &Tree,
        capacity_requests: usize,
    ) -> Rig {
        let hctxs = topology.hctx_count();
        let policy = AnyPolicy::with_tree(&options, topology, weights, tree);
        let policy = policy.expect("the options of a test are good");
        let queues = (0..hctxs).map(|n| policy.open_queue(HctxId(n as u16), capacity_requests)).collect();
        Rig {
            policy,
            options,
            queues,
            now_ns: 0,
            kicked: BTreeSet::new(),
            kicks_sent: 0,
            later: BTreeMap::new(),
            log: Vec::new(),
            requests: Vec::new(),
            in_flight: Vec::new(),
            staged: vec![0; hctxs],
            in_flight_on: vec![0; hctxs],
            units_out: 0,
            under_way: vec![0; weights.len()],
            room: usize::MAX,
        }
    }

    /// Device queues of `requests` each, which make workers pause.
    #[must_use]
    pub fn device_depth(mut self, requests: usize) -> Rig {
        self.room = requests;
        self
    }

    /// A request comes to the worker of `hctx`, which does not run yet.
    pub fn submit(&mut self, hctx: u16, io: Io) -> Handle {
        self.submit_cost(hctx, io, CostModel::FLAT.cost(io.kind, io.length_bytes.into()))
    }

    /// As [`Rig::submit`], at another cost than that of its bytes.
    pub fn submit_cost(&mut self, hctx: u16, io: Io, cost: Cost) -> Handle {
        let handle = Handle(self.requests.len() as u32);
        let hctx = HctxId(hctx);
        let now_ns = self.now_ns;
        let Io { flow, kind, is_sync, offset_bytes, length_bytes } = io;
        self.requests.push(Request { io, hctx, submitted_ns: now_ns, dispatched_ns: None, cost, token: None });
        self.staged[hctx.index()] += 1;
        self.under_way[flow as usize] += 1;
        let entry = Entry { flow: FlowId(flow), cost, handle, kind, is_sync, offset_bytes, length_bytes };
        let mut kick = kick(&mut self.kicked, &mut self.kicks_sent, hctx);
        self.policy.submit(&mut self.queues[hctx.index()], entry, now_ns, &mut kick);
        handle
    }

    /// One pick of a worker.
    pub fn pick(&mut self, hctx: HctxId) -> Picked {
        self.kicked.remove(&hctx);
        self.later.remove(&hctx);
        let queue = &mut self.queues[hctx.index()];
        let picked = self.policy.pick(queue, self.now_ns, &mut kick(&mut self.kicked, &mut self.kicks_sent, hctx));
        match picked {
            Pick::Dispatch(Grant { handle, flow, token }) => {
                let request = &mut self.requests[handle.0 as usize];
                assert_eq!((request.hctx, request.io.flow), (hctx, flow.0), "{handle:?} is another's");
                assert_eq!(request.dispatched_ns, None, "{handle:?} was dispatched twice");
                request.dispatched_ns = Some(self.now_ns);
                self.units_out += token.units();
                request.token = Some(token);
                self.staged[hctx.index()] -= 1;
                self.in_flight_on[hctx.index()] += 1;
                self.in_flight.push(handle);
                self.log.push(handle);
                self.check();
                Picked::Dispatched(handle)
            }
            Pick::Later(at_ns) => {
                assert!(at_ns > self.now_ns, "told at {} to look again at {at_ns}", self.now_ns);
                self.later.insert(hctx, at_ns);
                Picked::Later(at_ns)
            }
            Pick::NoToken => Picked::NoToken,
            Pick::Idle => Picked::Idle,
            Pick::Throttled => Picked::Throttled,
        }
    }

    fn check(&self) {
        // Most of the time no flow owes anything, and which request is the largest does not matter.
        if self.units_out >= self.options.depth {
            let largest = self.in_flight.iter().map(|&handle| self.units(handle)).max().unwrap_or(0);
            let (out, depth) = (self.units_out, self.options.depth);
            assert!(out < depth + largest.max(1), "{out} units are out, D is {depth}");
        }
        for (n, queue) in self.queues.iter().enumerate() {
            assert_eq!(self.policy.staged(queue), self.staged[n], "staged at hctx {n}");
        }
    }

    /// The device queue of `hctx` takes one more.
    pub fn has_room(&self, hctx: HctxId) -> bool {
        self.in_flight_on[hctx.index()] < self.room
    }

    /// One run of a worker that is awake.
    pub fn run(&mut self, hctx: u16) {
        let hctx = HctxId(hctx);
        while self.has_room(hctx) {
            let Picked::Dispatched(_) = self.pick(hctx) else { return };
        }
        self.pause(hctx);
    }

    /// The device queue of a worker is full: it stops picking although it could go on.
    pub fn pause(&mut self, hctx: HctxId) {
        self.kicked.remove(&hctx);
        let mut kick = kick(&mut self.kicked, &mut self.kicks_sent, hctx);
        self.policy.pause(&mut self.queues[hctx.index()], &mut kick);
    }

    /// Puts another D in force by the worker of `hctx`, which picks after it. After a reduction tokens near a worker
    /// are still used, so the largest D bounds the units that are out.
    pub fn set_depth(&mut self, hctx: HctxId, depth: u32) {
        self.options.depth = self.options.depth.max(depth);
        let mut kick = kick(&mut self.kicked, &mut self.kicks_sent, hctx);
        let is_changed = self.policy.set_depth(hctx, depth, &mut kick);
        assert!(is_changed && self.policy.depth() == Some(depth));
    }

    /// Lets every kicked worker run until none is kicked any more.
    pub fn run_kicked(&mut self) {
        while let Some(hctx) = self.kicked.pop_first() {
            self.run(hctx.0);
        }
    }

    /// Lets every worker run.
    pub fn run_all(&mut self) {
        for hctx in 0..self.queues.len() {
            self.run(hctx as u16);
        }
        self.run_kicked();
    }

    /// The device finishes a request; its worker is told, and does not run yet.
    pub fn finish(&mut self, handle: Handle) -> HctxId {
        let position = self.in_flight.iter().position(|&other| other == handle);
        self.in_flight.remove(position.expect("the request is on the device"));
        let request = &mut self.requests[handle.0 as usize];
        let Request { io, hctx, submitted_ns, cost, .. } = *request;
        let done = Done {
            flow: FlowId(io.flow),
            handle,
            kind: io.kind,
            is_sync: io.is_sync,
            length_bytes: io.length_bytes,
            cost,
            submitted_ns,
            dispatched_ns: request.dispatched_ns.expect("it is on the device"),
        };
        let token = request.token.take().expect("it is on the device");
        self.units_out -= token.units();
        self.under_way[io.flow as usize] -= 1;
        self.in_flight_on[hctx.index()] -= 1;
        let mut kick = kick(&mut self.kicked, &mut self.kicks_sent, hctx);
        self.policy.complete(&mut self.queues[hctx.index()], done, token, self.now_ns, &mut kick);
        hctx
    }

    /// The device finishes a request, and every worker that may run does.
    pub fn complete(&mut self, handle: Handle) {
        let hctx = self.finish(handle);
        self.run(hctx.0);
        self.run_kicked();
    }

    /// As [`Rig::complete`], for the oldest request on the device.
    pub fn complete_oldest(&mut self) -> Handle {
        let handle = *self.in_flight.first().expect("something is on the device");
        self.complete(handle);
        handle
    }

    /// Goes on to the earliest time that a worker was told, and lets it run.
    pub fn wait(&mut self) {
        let (&hctx, &at_ns) = self.later.iter().min_by_key(|&(_, &at_ns)| at_ns).expect("somebody waits for a time");
        self.now_ns = self.now_ns.max(at_ns);
        self.run(hctx.0);
        self.run_kicked();
    }

    /// Completes everything, until nothing is staged.
    pub fn drain(&mut self) {
        self.run_all();
        while !self.in_flight.is_empty() || !self.later.is_empty() {
            if self.in_flight.is_empty() { self.wait() } else { _ = self.complete_oldest() }
        }
        assert_eq!(self.staged(), 0, "requests are staged, the device is empty, and nobody moves");
        assert_eq!(self.policy.free_units(), Some(i64::from(self.options.depth)), "I1: tokens were lost or made");
    }

    /// Requests that wait anywhere.
    pub fn staged(&self) -> usize {
        self.staged.iter().sum()
    }

    /// Requests that wait at `hctx`.
    pub fn staged_at(&self, hctx: HctxId) -> usize {
        self.staged[hctx.index()]
    }

    /// A request, as it was submitted and dispatched.
    pub fn request(&self, handle: Handle) -> &Request {
        &self.requests[handle.0 as usize]
    }

    /// Operation of a request.
    pub fn io(&self, handle: Handle) -> Io {
        self.request(handle).io
    }

    /// Hctx whose worker has the request.
    pub fn hctx(&self, handle: Handle) -> HctxId {
        self.request(handle).hctx
    }

    /// The request went to the device.
    pub fn is_dispatched(&self, handle: Handle) -> bool {
        self.request(handle).dispatched_ns.is_some()
    }

    /// Requests of a flow that were submitted and not completed.
    pub fn under_way(&self, flow: u32) -> usize {
        self.under_way[flow as usize]
    }

    /// Requests on the device for which this holds.
    pub fn in_flight_of(&self, holds: impl Fn(HctxId, Io) -> bool) -> usize {
        self.in_flight.iter().filter(|&&handle| holds(self.request(handle).hctx, self.io(handle))).count()
    }

    /// Units that a request has on the device.
    pub fn units(&self, handle: Handle) -> u32 {
        self.request(handle).token.as_ref().map_or(0, DispatchToken::units)
    }

    /// Units on the device.
    pub fn units_out(&self) -> u32 {
        self.units_out
    }

    /// Requests of the device queue of `hctx`.
    pub fn in_flight_on(&self, hctx: HctxId) -> usize {
        self.in_flight_on[hctx.index()]
    }

    /// The offsets of what was dispatched from position `from` of the log on, in blocks of 4 KiB.
    pub fn blocks_from(&self, from: usize) -> Vec<u64> {
        self.log[from..].iter().map(|&handle| self.io(handle).offset_bytes / 4096).collect()
    }
}

/// Notes the workers that the worker of `own` kicks, and how often.
fn kick<'a>(kicked: &'a mut BTreeSet<HctxId>, sent: &'a mut u64, own: HctxId) -> impl FnMut(HctxId) + 'a {
    move |other| {
        assert_ne!(other, own, "a worker kicked itself");
        *sent += 1;
        kicked.insert(other);
    }
}
