//! The real policy with workers, a device and a clockless order of steps, all in one thread.
//!
//! # What it answers
//! What does the scheduler that ships do if its workers run in this order and the device finishes requests in that one?
//! The driver of the machine decides both: [`super::workload`] by seeded chance, [`super::adversary`] by hand. Each
//! step is written into a [`History`].
//!
//! # Shape
//! ```text
//!  submit(flow, hctx) ─▶ stage queue of hctx ─ step(hctx): one pick ─▶ device ─ complete(position) ─▶ token back
//!                              awake: workers that were kicked, or have something to do of their own
//! ```
//! A worker runs only if it is awake, as threads do that sleep until they are kicked (`sched/src/policy/mod.rs`, "What
//! a worker owes the others"). If no worker is awake, the device is empty and something waits, a wake-up was lost.

use super::history::{Event, History};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, AnyQueue, DispatchToken, Done, Entry, Grant, Handle, Pick, Policy, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use std::collections::VecDeque;

/// A request on the device.
pub struct OnDevice {
    /// The flow that asked for it, by number.
    pub flow: u32,
    /// Its size.
    pub bytes: u64,
    announced: u64,
    hctx: u16,
    /// How often its queue had been closed.
    closed: u32,
    token: DispatchToken,
}

/// A request, under its handle.
#[derive(Clone, Copy)]
struct Request {
    flow: u32,
    announced: u64,
    bytes: u64,
    /// Given up, and the scheduler was not told.
    is_dead: bool,
}

/// Result of one step of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A request of this flow, of this size, went to the device.
    Dispatched(u32, u64),
    /// Nothing may go, for now; the worker sleeps.
    Sleeps,
}

/// Workers that are awake, each once, in no order.
struct Awake {
    list: Vec<u16>,
    places: Vec<Option<usize>>,
}

impl Awake {
    fn insert(&mut self, hctx: u16) {
        let place = &mut self.places[usize::from(hctx)];
        if place.is_none() {
            *place = Some(self.list.len());
            self.list.push(hctx);
        }
    }

    fn remove(&mut self, hctx: u16) {
        if let Some(place) = self.places[usize::from(hctx)].take() {
            self.list.swap_remove(place);
            if let Some(&moved) = self.list.get(place) {
                self.places[usize::from(moved)] = Some(place);
            }
        }
    }
}

/// See the module's text.
pub struct Machine {
    policy: AnyPolicy,
    queues: Vec<AnyQueue>,
    capacity_requests: usize,
    /// Requests that the device queue of one hctx holds.
    device_queue_depth: usize,
    /// Oldest first.
    device: VecDeque<OnDevice>,
    on_hctx: Vec<usize>,
    /// By handle, and the handles that are free.
    requests: Vec<Request>,
    free_handles: Vec<u32>,
    /// Handles of a flow that wait at an hctx, in order: `flow * hctxs + hctx`.
    waiting_at: Vec<VecDeque<u32>>,
    /// Per hctx whose worker is away: the handles that stand aside. And how often its queue was closed.
    away: Vec<Option<Vec<u32>>>,
    closed: Vec<u32>,
    /// The scheduler is told what requests did cost, and which are given up.
    is_told: bool,
    awake: Awake,
    history: History,
    options: PolicyOptions,
    /// Latest point, over all moments, at which a request that was dispatched can start: virtual time plus T.
    frontier: Option<VTime>,
    /// How much farther that is from virtual time than the T of the options.
    more_units: i64,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Enough was seen; requests still on the device are dropped without harm.
        for request in self.device.drain(..) {
            request.token.into_units();
        }
    }
}

impl Machine {
    /// A machine with nothing submitted. `flows` has per flow its weight and the number of hctxs on which it will
    /// submit.
    ///
    /// # Errors
    /// One sentence: options that no policy can be built from.
    pub fn new(
        options: &PolicyOptions,
        topology: &Topology,
        flows: &[(Weight, u32)],
        capacity_requests: usize,
    ) -> Result<Machine, String> {
        let weights: Vec<Weight> = flows.iter().map(|(weight, _)| *weight).collect();
        let policy = AnyPolicy::new(options, topology, &weights).map_err(|error| error.to_string())?;
        let hctxs = topology.hctx_count();
        Ok(Machine {
            queues: (0..hctxs).map(|n| policy.open_queue(HctxId(n as u16), capacity_requests)).collect(),
            policy,
            capacity_requests,
            device_queue_depth: usize::MAX,
            device: VecDeque::new(),
            on_hctx: vec![0; hctxs],
            requests: Vec::new(),
            free_handles: Vec::new(),
            waiting_at: vec![VecDeque::new(); hctxs * flows.len()],
            away: vec![None; hctxs],
            closed: vec![0; hctxs],
            is_told: false,
            awake: Awake { list: Vec::new(), places: vec![None; hctxs] },
            history: History::new(flows.iter().map(|(weight, hctxs)| (weight.get(), *hctxs))),
            options: *options,
            frontier: None,
            more_units: 0,
        })
    }

    /// Costs are known at the end, and requests may be withdrawn. `is_told`: the scheduler learns of either. Before the
    /// first request.
    pub fn charge_late(&mut self, is_told: bool) {
        self.is_told = is_told;
        if let AnyPolicy::Mqfq(mqfq) = &mut self.policy {
            mqfq.charge_late(self.queues.len() == 1);
        }
    }

    /// T is `window` from now on, in the form that there is. A worker picks after it.
    pub fn set_window(&mut self, window: VSpan) {
        let terms = self.options.terms_of(window, self.queues.len());
        self.look_ahead();
        self.policy.set_window(&terms);
        self.look_ahead();
        self.awake.insert(0);
    }

    /// After each step of a policy whose T changes, and what it did to the history: writes down how far ahead of
    /// virtual time requests may start.
    fn look_ahead(&mut self) {
        let (Some(now), Some(terms)) = (self.policy.global_vtime(), self.policy.window_terms()) else { return };
        if self.options.window_least.is_none() {
            return;
        }
        let reach = now.plus(terms.window);
        let frontier = self.frontier.map_or(reach, |frontier| frontier.later(reach));
        self.frontier = Some(frontier);
        let more_units = frontier.since(now) - self.options.window.0 as i64;
        if more_units != self.more_units {
            self.more_units = more_units;
            self.history.push(Event::Ahead { more_units });
        }
    }

    /// Device queues of `requests` each, so that workers have to pause.
    pub fn set_device_queue_depth(&mut self, requests: usize) {
        self.device_queue_depth = requests;
    }

    /// A request of the flow arrives at the worker of `hctx`, which wakes. False: its queue is full, nothing happened.
    pub fn submit(&mut self, flow: u32, hctx: u16, bytes: u64) -> bool {
        self.submit_announced(flow, hctx, bytes, bytes)
    }

    /// As [`Machine::submit`], of a request that will have cost `bytes`.
    pub fn submit_announced(&mut self, flow: u32, hctx: u16, announced: u64, bytes: u64) -> bool {
        let queue = &mut self.queues[usize::from(hctx)];
        if self.policy.staged(queue) == self.capacity_requests || self.away[usize::from(hctx)].is_some() {
            return false;
        }
        let request = Request { flow, announced, bytes, is_dead: false };
        let handle = self.free_handles.pop().unwrap_or_else(|| {
            self.requests.push(request);
            self.requests.len() as u32 - 1
        });
        self.requests[handle as usize] = request;
        self.stage(hctx, handle);
        true
    }

    fn stage(&mut self, hctx: u16, handle: u32) {
        let Request { flow, announced, .. } = self.requests[handle as usize];
        let hctxs = self.queues.len();
        self.waiting_at[flow as usize * hctxs + usize::from(hctx)].push_back(handle);
        let entry = Entry::read(FlowId(flow), Cost(announced), Handle(handle));
        let awake = &mut self.awake;
        let queue = &mut self.queues[usize::from(hctx)];
        self.policy.submit(queue, entry, 0, &mut |other: HctxId| awake.insert(other.0));
        self.awake.insert(hctx);
        self.history.submitted(flow);
        self.look_ahead();
    }

    /// The worker goes away, or is back if it is away. `closes`: it closes its queue for good, in place of standing
    /// aside, and another one comes in its place. The machine steps a worker that is away if it is kicked: its empty
    /// queue passes a token on.
    ///
    /// # Panics
    /// If the policy is another one than `mqfq`.
    pub fn go_or_come(&mut self, hctx: u16, closes: bool) {
        let at = usize::from(hctx);
        if let Some(handles) = self.away[at].take() {
            handles.into_iter().for_each(|handle| self.stage(hctx, handle));
            return;
        }
        let AnyPolicy::Mqfq(mqfq) = &self.policy else { panic!("{} has no such call", self.policy.kind()) };
        let (awake, requests, mut handles) = (&mut self.awake, &self.requests, Vec::new());
        let mut kick = |other: HctxId| awake.insert(other.0);
        let each = |_: FlowId, Handle(handle)| {
            handles.push(handle);
            Cost(requests[handle as usize].announced)
        };
        if closes {
            // One that takes its place, and has no meaning until the other is closed.
            let next = AnyQueue::Mqfq(mqfq.open_queue(HctxId(hctx), self.capacity_requests));
            let AnyQueue::Mqfq(queue) = std::mem::replace(&mut self.queues[at], next) else { return };
            mqfq.close(queue, each, &mut kick);
            self.closed[at] += 1;
        } else if let AnyQueue::Mqfq(queue) = &mut self.queues[at] {
            mqfq.step_aside(queue, each, &mut kick);
        }
        for &handle in &handles {
            let Request { flow, announced, .. } = self.requests[handle as usize];
            self.history.withdrawn(flow, announced);
        }
        let hctxs = self.queues.len();
        self.waiting_at.iter_mut().skip(at).step_by(hctxs).for_each(VecDeque::clear);
        if closes {
            self.free_handles.append(&mut handles);
        }
        self.away[at] = Some(handles);
        self.look_ahead();
    }

    /// Some hctx whose worker is away.
    pub fn away(&self) -> Option<u16> {
        self.away.iter().position(Option::is_some).map(|at| at as u16)
    }

    /// The flow gives up the request at `position` of those that wait at `hctx`, oldest first; the worker wakes.
    ///
    /// # Panics
    /// If there is none, or the policy does not know it.
    pub fn withdraw(&mut self, flow: u32, hctx: u16, position: usize) {
        let hctxs = self.queues.len();
        let waiting = &mut self.waiting_at[flow as usize * hctxs + usize::from(hctx)];
        let handle = waiting.remove(position).expect("it waits");
        let Request { announced, is_dead, .. } = &mut self.requests[handle as usize];
        let announced = *announced;
        match (&self.policy, &mut self.queues[usize::from(hctx)]) {
            (AnyPolicy::Mqfq(mqfq), AnyQueue::Mqfq(queue)) if self.is_told => {
                let (name, awake) = ((FlowId(flow), Handle(handle), Cost(announced)), &mut self.awake);
                assert!(mqfq.withdraw(queue, name, &mut |other: HctxId| awake.insert(other.0)), "it is staged there");
                self.free_handles.push(handle);
            }
            _ => *is_dead = true,
        }
        self.awake.insert(hctx);
        self.history.withdrawn(flow, announced);
        self.look_ahead();
    }

    /// One pick of a worker, or a pause if its device queue is full.
    pub fn step(&mut self, hctx: u16) -> Step {
        loop {
            match self.pick(hctx) {
                Ok(step) => return step,
                Err((flow, handle, token)) => {
                    let awake = &mut self.awake;
                    let queue = &mut self.queues[usize::from(hctx)];
                    let done = Done::read(FlowId(flow), handle);
                    self.policy.complete(queue, done, token, 0, &mut |other: HctxId| awake.insert(other.0));
                }
            }
        }
    }

    /// As [`Machine::step`]. `Err`: a request that was given up, with its token.
    fn pick(&mut self, hctx: u16) -> Result<Step, (u32, Handle, DispatchToken)> {
        let awake = &mut self.awake;
        let mut kick = |other: HctxId| awake.insert(other.0);
        let queue = &mut self.queues[usize::from(hctx)];
        if self.on_hctx[usize::from(hctx)] >= self.device_queue_depth {
            self.policy.pause(queue, &mut kick);
            self.awake.remove(hctx);
            return Ok(Step::Sleeps);
        }
        match self.policy.pick(queue, 0, &mut kick) {
            Pick::Dispatch(Grant { handle, token, .. }) => {
                let Request { flow, announced, bytes, is_dead } = self.requests[handle.0 as usize];
                self.free_handles.push(handle.0);
                if is_dead {
                    return Err((flow, handle, token));
                }
                let waiting = &mut self.waiting_at[flow as usize * self.queues.len() + usize::from(hctx)];
                waiting.retain(|&other| other != handle.0);
                self.on_hctx[usize::from(hctx)] += 1;
                let closed = self.closed[usize::from(hctx)];
                self.device.push_back(OnDevice { flow, bytes, announced, hctx, closed, token });
                self.history.announced(flow, announced, bytes);
                self.history.dispatched(flow, bytes);
                self.look_ahead();
                self.awake.insert(hctx);
                Ok(Step::Dispatched(flow, bytes))
            }
            Pick::Throttled | Pick::NoToken | Pick::Later(_) | Pick::Idle => {
                self.look_ahead();
                self.awake.remove(hctx);
                Ok(Step::Sleeps)
            }
        }
    }

    /// The device finishes the request at `position`, oldest first; its worker wakes up. Returns the request's flow.
    ///
    /// # Panics
    /// If the device holds no such request.
    pub fn complete(&mut self, position: usize) -> u32 {
        let OnDevice { flow, bytes, announced, hctx, closed, token } =
            self.device.remove(position).expect("the device holds it");
        self.on_hctx[usize::from(hctx)] -= 1;
        self.history.completed(flow, bytes);
        if let AnyPolicy::Mqfq(mqfq) = &self.policy
            && self.is_told
        {
            mqfq.correct(FlowId(flow), Cost(announced), Cost(bytes));
            if self.closed[usize::from(hctx)] != closed {
                let awake = &mut self.awake;
                mqfq.give_back(HctxId(hctx), token, &mut |other: HctxId| awake.insert(other.0));
                return flow;
            }
        }
        let awake = &mut self.awake;
        let queue = &mut self.queues[usize::from(hctx)];
        self.policy
            .complete(queue, Done::read(FlowId(flow), Handle(0)), token, 0, &mut |other: HctxId| awake.insert(other.0));
        self.awake.insert(hctx);
        flow
    }

    /// Requests on the device, oldest first.
    pub fn device(&self) -> &VecDeque<OnDevice> {
        &self.device
    }

    /// Workers that are awake, in no order.
    pub fn awake(&self) -> &[u16] {
        &self.awake.list
    }

    /// Number of hctxs.
    pub fn hctxs(&self) -> usize {
        self.queues.len()
    }

    /// Requests of the flow that wait at `hctx`.
    pub fn waiting_at(&self, flow: u32, hctx: u16) -> u32 {
        self.waiting_at[flow as usize * self.queues.len() + usize::from(hctx)].len() as u32
    }

    /// Requests that wait anywhere.
    pub fn staged(&self) -> usize {
        self.queues.iter().map(|queue| self.policy.staged(queue)).sum()
    }

    /// The history so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Ends the run.
    pub fn into_history(mut self) -> History {
        std::mem::take(&mut self.history)
    }
}
