//! A test environment for the elevators: workers, a device and tenants in one thread and in virtual time, for policies
//! that look at what a request does, where it lies and how long it took.
//!
//! Kicks and the times of `Pick::Later` go into sets instead of to threads. At every step: a request is dispatched once
//! and by the worker that submitted it, no worker kicks itself, and no more than D units are out (but for the debt of
//! one).

#![allow(dead_code, reason = "each test binary uses its part")]

use mqfq_sched::cost::{Cost, CostKind, CostModel};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, AnyQueue, DispatchToken, Done, Entry, Grant, Handle, Pick, Policy, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use std::collections::{BTreeMap, BTreeSet};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
pub const KIB: u64 = 1 << 10;

/// Requests that one queue can stage in a test.
pub const CAPACITY_REQUESTS: usize = 1024;

/// What a test submits.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    pub flow: u32,
    pub kind: CostKind,
    pub is_sync: bool,
    pub offset_bytes: u64,
    pub length_bytes: u32,
}

pub fn read(flow: u32, offset_bytes: u64) -> Io {
    Io { flow, kind: CostKind::Read, is_sync: true, offset_bytes, length_bytes: 4096 }
}

/// A write that nobody waits for.
pub fn write(flow: u32, offset_bytes: u64) -> Io {
    Io { kind: CostKind::Write, is_sync: false, ..read(flow, offset_bytes) }
}

/// A write that must be stable before it completes.
pub fn write_sync(flow: u32, offset_bytes: u64) -> Io {
    Io { is_sync: true, ..write(flow, offset_bytes) }
}

pub fn discard(flow: u32, offset_bytes: u64) -> Io {
    Io { kind: CostKind::Discard, ..write(flow, offset_bytes) }
}

pub fn flush(flow: u32) -> Io {
    Io { kind: CostKind::Flush, length_bytes: 0, ..read(flow, 0) }
}

/// How a pick ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Picked {
    Dispatched(Handle),
    NoToken,
    Later(u64),
    Idle,
}

struct Submitted {
    io: Io,
    hctx: HctxId,
    submitted_ns: u64,
    dispatched_ns: Option<u64>,
    token: Option<DispatchToken>,
}

pub struct Rig {
    pub policy: AnyPolicy,
    pub options: PolicyOptions,
    pub queues: Vec<AnyQueue>,
    pub now_ns: u64,
    pub kicked: BTreeSet<HctxId>,
    /// Who was told to pick again, and when.
    pub later: BTreeMap<HctxId, u64>,
    /// Everything dispatched, in order.
    pub log: Vec<Handle>,
    requests: Vec<Submitted>,
    /// On the device, oldest first.
    pub in_flight: Vec<Handle>,
    staged: Vec<usize>,
    under_way: Vec<usize>,
    /// Requests that the device queue of one hctx holds.
    room: usize,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The test has seen enough; what is still on the device is nobody's loss.
        for token in self.requests.iter_mut().filter_map(|request| request.token.take()) {
            token.into_units();
        }
    }
}

impl Rig {
    pub fn new(options: PolicyOptions, hctxs: usize, flows: usize) -> Rig {
        let policy = AnyPolicy::new(&options, &Topology::flat(hctxs), &vec![Weight::DEFAULT; flows]);
        let policy = policy.expect("the options of a test are good");
        let queues = (0..hctxs).map(|n| policy.open_queue(HctxId(n as u16), CAPACITY_REQUESTS)).collect();
        Rig {
            policy,
            options,
            queues,
            now_ns: 0,
            kicked: BTreeSet::new(),
            later: BTreeMap::new(),
            log: Vec::new(),
            requests: Vec::new(),
            in_flight: Vec::new(),
            staged: vec![0; hctxs],
            under_way: vec![0; flows],
            room: usize::MAX,
        }
    }

    /// Device queues of `requests` each, which make workers pause.
    pub fn device_depth(mut self, requests: usize) -> Rig {
        self.room = requests;
        self
    }

    pub fn submit(&mut self, hctx: u16, io: Io) -> Handle {
        let handle = Handle(self.requests.len() as u32);
        let hctx = HctxId(hctx);
        let now_ns = self.now_ns;
        let request = Submitted { io, hctx, submitted_ns: now_ns, dispatched_ns: None, token: None };
        self.requests.push(request);
        self.staged[hctx.index()] += 1;
        self.under_way[io.flow as usize] += 1;
        let Io { flow, kind, is_sync, offset_bytes, length_bytes } = io;
        let cost = CostModel::FLAT.cost(kind, length_bytes.into());
        let entry = Entry { flow: FlowId(flow), cost, handle, kind, is_sync, offset_bytes, length_bytes };
        let kicked = &mut self.kicked;
        self.policy.submit(&mut self.queues[hctx.index()], entry, now_ns, &mut |other| {
            assert_ne!(other, hctx, "a worker kicked itself");
            kicked.insert(other);
        });
        handle
    }

    pub fn pick(&mut self, hctx: HctxId) -> Picked {
        self.kicked.remove(&hctx);
        self.later.remove(&hctx);
        let kicked = &mut self.kicked;
        let pick = self.policy.pick(&mut self.queues[hctx.index()], self.now_ns, &mut |other| {
            assert_ne!(other, hctx, "a worker kicked itself");
            kicked.insert(other);
        });
        match pick {
            Pick::Dispatch(Grant { handle, flow, token }) => {
                let request = &mut self.requests[handle.0 as usize];
                assert_eq!((request.hctx, request.io.flow), (hctx, flow.0), "{handle:?} is another's");
                assert_eq!(request.dispatched_ns, None, "{handle:?} was dispatched twice");
                request.dispatched_ns = Some(self.now_ns);
                request.token = Some(token);
                self.staged[hctx.index()] -= 1;
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
            Pick::Throttled => unreachable!("elevators have no window"),
        }
    }

    fn check(&self) {
        let units = |handle: &Handle| self.request(*handle).token.as_ref().map_or(0, DispatchToken::units);
        let out: u32 = self.in_flight.iter().map(units).sum();
        let largest = self.in_flight.iter().map(units).max().unwrap_or(0);
        assert!(out < self.options.depth + largest.max(1), "{out} units are out, D is {}", self.options.depth);
        for (n, queue) in self.queues.iter().enumerate() {
            assert_eq!(self.policy.staged(queue), self.staged[n], "staged at hctx {n}");
        }
    }

    pub fn has_room(&self, hctx: HctxId) -> bool {
        self.in_flight_of(|request_hctx, _| request_hctx == hctx) < self.room
    }

    /// What a worker does when it is awake.
    pub fn run(&mut self, hctx: u16) {
        let hctx = HctxId(hctx);
        while self.has_room(hctx) {
            let Picked::Dispatched(_) = self.pick(hctx) else { return };
        }
        self.pause(hctx);
    }

    pub fn pause(&mut self, hctx: HctxId) {
        self.kicked.remove(&hctx);
        let kicked = &mut self.kicked;
        self.policy.pause(&mut self.queues[hctx.index()], &mut |other| {
            assert_ne!(other, hctx, "a worker kicked itself");
            kicked.insert(other);
        });
    }

    /// Lets every kicked worker run until nobody is kicked any more.
    pub fn run_kicked(&mut self) {
        while let Some(hctx) = self.kicked.pop_first() {
            self.run(hctx.0);
        }
    }

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
        let Submitted { io, hctx, submitted_ns, .. } = *request;
        let done = Done {
            flow: FlowId(io.flow),
            handle,
            kind: io.kind,
            is_sync: io.is_sync,
            length_bytes: io.length_bytes,
            cost: Cost(io.length_bytes.max(1).into()),
            submitted_ns,
            dispatched_ns: request.dispatched_ns.expect("it is on the device"),
        };
        let token = request.token.take().expect("it is on the device");
        self.under_way[io.flow as usize] -= 1;
        let kicked = &mut self.kicked;
        self.policy.complete(&mut self.queues[hctx.index()], done, token, self.now_ns, &mut |other| {
            assert_ne!(other, hctx, "a worker kicked itself");
            kicked.insert(other);
        });
        hctx
    }

    /// The device finishes a request, and everybody who may run does.
    pub fn complete(&mut self, handle: Handle) {
        let hctx = self.finish(handle);
        self.run(hctx.0);
        self.run_kicked();
    }

    /// The same for the oldest that is on the device.
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

    pub fn staged(&self) -> usize {
        self.staged.iter().sum()
    }

    pub fn staged_at(&self, hctx: HctxId) -> usize {
        self.staged[hctx.index()]
    }

    fn request(&self, handle: Handle) -> &Submitted {
        &self.requests[handle.0 as usize]
    }

    pub fn io(&self, handle: Handle) -> Io {
        self.request(handle).io
    }

    /// Whose worker has it.
    pub fn hctx(&self, handle: Handle) -> HctxId {
        self.request(handle).hctx
    }

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

    /// The offsets of what was dispatched from position `from` of the log on, in blocks of 4 KiB.
    pub fn blocks_from(&self, from: usize) -> Vec<u64> {
        self.log[from..].iter().map(|&handle| self.io(handle).offset_bytes / 4096).collect()
    }
}

/// SplitMix64 (Steele et al., OOPSLA 2014): the few random numbers that a test needs, the same on every machine.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 0..bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}
