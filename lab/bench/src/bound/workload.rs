//! Generated workloads: requests of flows and their times, the order of workers, and the request that the device ends
//! next.
//!
//! # Shape
//! A [`Plan`] and a seed determine a run. In each step flows whose next phase or burst is due submit, and then either
//! the device finishes a request or a worker that is awake picks once. Which one is chance, and the chances change as
//! the run goes on: the device is now fast, now slow, so that it is empty at times and full at others.

use super::history::History;
use super::machine::{Machine, Step};
use mqfq_blk::random::Random;
use mqfq_sched::flow::Weight;
use mqfq_sched::policy::PolicyOptions;
use mqfq_sched::topology::Topology;
use mqfq_sched::vtime::VSpan;
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Sizes of a flow's requests, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// All the same.
    One(u64),
    /// Any of these, equally often.
    Of(&'static [u64]),
    /// From one to the other, each power of two equally often, and in multiples of 512.
    Between(u64, u64),
}

/// When a flow asks for service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Demand {
    /// Requests that always wait at each of its hctxs.
    Saturated(u32),
    /// Saturated for about as many steps, then nothing for about as many.
    ComesAndGoes {
        /// Requests that wait at each hctx.
        waiting: u32,
        /// Mean length of a phase.
        steps: u64,
    },
    /// Up to so many requests at once, then nothing for a while.
    Bursts {
        /// Most requests of a burst.
        requests_max: u32,
        /// Mean time between bursts.
        steps: u64,
    },
    /// So many under way; a completion is followed at once by the next, at any of its hctxs.
    ClosedLoop(u32),
}

/// One flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowPlan {
    /// 1..=10000.
    pub weight: u64,
    /// Sizes of its requests.
    pub sizes: Sizes,
    /// Where it submits; at least one.
    pub hctxs: Vec<u16>,
    /// When.
    pub demand: Demand,
}

/// Which request the device finishes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceOrder {
    /// The request that has been there longest.
    Oldest,
    /// Any.
    Random,
    /// The request that came last.
    Newest,
    /// The smallest.
    Smallest,
    /// Any but those of flow 0, as long as there are others.
    FlowZeroLast,
}

/// In which order workers run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// All that are awake run until they sleep before anything else happens.
    Prompt,
    /// One step of any that is awake, in between anything else.
    Random,
    /// As `Random`, but the upper half of the hctxs almost never gets its turn.
    Lazy,
}

/// When a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// After so many dispatches.
    Dispatches(u64),
    /// When the device has finished requests of so many bytes together.
    CompletedBytes(u64),
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scheduler.
    pub options: PolicyOptions,
    /// Sockets, cores of each, hctxs of each core.
    pub topology: [usize; 3],
    /// Flows.
    pub flows: Vec<FlowPlan>,
    /// The device.
    pub device: DeviceOrder,
    /// Requests that one hctx may have there; none: no limit but D.
    pub device_queue_depth: Option<usize>,
    /// The workers.
    pub pace: Pace,
    /// How T changes; `None`: it stays.
    pub windows: Option<Windows>,
    /// How requests differ from what was announced; `None`: they do not.
    pub late: Option<Late>,
    /// When it ends.
    pub end: End,
}

/// A T that changes: any of these windows, for about so many steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    /// The smallest, as the options have it.
    pub least: VSpan,
    /// The largest is so many times twice the smallest.
    pub doublings: u32,
    /// Mean time between changes.
    pub steps: u64,
}

/// Costs that are known at the end, and requests that are given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late {
    /// A request costs up to so many times what was announced, mostly of flows of even number, or down to so small a
    /// part of it, mostly of the others; 1: the same.
    pub wrong_by: u64,
    /// One step in so many withdraws a request of some flow; `None`: none does.
    pub steps_per_withdrawal: Option<u64>,
    /// One step in so many a worker goes away, or comes back if it is; `None`: none does.
    pub steps_per_absence: Option<u64>,
    /// The scheduler is told of either.
    pub is_told: bool,
}

/// Requests that one hctx can stage.
const CAPACITY_REQUESTS: usize = 1 << 11;

/// Steps for which the device keeps its speed.
const SPEED_STEPS: u64 = 256;

struct Run<'a> {
    plan: &'a Plan,
    machine: Machine,
    random: Random,
    /// Per flow: it wants its waiting requests replaced.
    saturates: Vec<bool>,
    /// Per hctx: the saturating flows that submit there.
    flows_at: Vec<Vec<u32>>,
    /// When the next phase or burst of a flow is due.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    now: u64,
    dispatches: u64,
    completed_bytes: u64,
    /// Steps out of 8 that the device takes, if it can.
    speed_in_8: u64,
}

/// Runs a workload.
///
/// # Errors
/// One sentence: the plan is impossible, or requests wait and no worker will ever move again.
pub fn run(plan: &Plan, seed: u64) -> Result<History, String> {
    let [sockets, cores, threads] = plan.topology;
    let topology = Topology::new(sockets, cores, threads);
    let mut flows = Vec::new();
    let mut flows_at = vec![Vec::new(); topology.hctx_count()];
    for (number, flow) in plan.flows.iter().enumerate() {
        let weight = Weight::new(flow.weight).map_err(|error| error.to_string())?;
        flows.push((weight, flow.hctxs.len() as u32));
        for &hctx in &flow.hctxs {
            flows_at[usize::from(hctx)].push(number as u32);
        }
    }
    let mut machine = Machine::new(&plan.options, &topology, &flows, CAPACITY_REQUESTS)?;
    if let Some(requests) = plan.device_queue_depth {
        machine.set_device_queue_depth(requests);
    }
    if let Some(late) = plan.late {
        machine.charge_late(late.is_told);
    }
    let mut run = Run {
        plan,
        machine,
        random: Random::new(seed),
        saturates: vec![false; plan.flows.len()],
        flows_at,
        due: BinaryHeap::new(),
        now: 0,
        dispatches: 0,
        completed_bytes: 0,
        speed_in_8: 4,
    };
    run.start();
    while !run.has_ended() {
        run.step()?;
    }
    Ok(run.machine.into_history())
}

impl Run<'_> {
    fn start(&mut self) {
        for flow in 0..self.plan.flows.len() as u32 {
            match self.plan.flows[flow as usize].demand {
                Demand::Saturated(_) => {
                    self.saturates[flow as usize] = true;
                    self.fill(flow);
                }
                Demand::ComesAndGoes { steps, .. } | Demand::Bursts { steps, .. } => {
                    let at = self.random.below(steps);
                    self.due.push(Reverse((at, flow)));
                }
                Demand::ClosedLoop(_) => self.begin_loop(flow),
            }
        }
    }

    fn has_closed_loops(&self) -> bool {
        self.plan.flows.iter().any(|flow| matches!(flow.demand, Demand::ClosedLoop(1..)))
    }

    fn begin_loop(&mut self, flow: u32) {
        if let Demand::ClosedLoop(requests) = self.plan.flows[flow as usize].demand {
            (0..requests).for_each(|_| self.submit_anywhere(flow));
        }
    }

    fn has_ended(&self) -> bool {
        match self.plan.end {
            End::Dispatches(dispatches) => self.dispatches >= dispatches,
            End::CompletedBytes(bytes) => self.completed_bytes >= bytes,
        }
    }

    /// One thing happens.
    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        if self.now.is_multiple_of(SPEED_STEPS) {
            self.speed_in_8 = [1, 4, 7][self.random.below(3) as usize];
        }
        while let Some(&Reverse((at, flow))) = self.due.peek()
            && at <= self.now
        {
            self.due.pop();
            self.next_phase(flow);
        }
        if let Some(Windows { least, doublings, steps }) = self.plan.windows
            && self.random.below(steps) == 0
        {
            let doublings = self.random.below(u64::from(doublings) + 1);
            self.machine.set_window(VSpan(least.0 << doublings));
        }
        if let Some(steps) = self.plan.late.and_then(|late| late.steps_per_withdrawal)
            && self.random.below(steps) == 0
        {
            self.withdraw();
        }
        if let Some(steps) = self.plan.late.and_then(|late| late.steps_per_absence)
            && self.random.below(steps) == 0
        {
            let hctx = self.random.below(self.machine.hctxs() as u64) as u16;
            let closes = self.random.below(4) == 0;
            self.go_or_come(hctx, closes);
        }
        let (some_awake, some_on_device) = (!self.machine.awake().is_empty(), !self.machine.device().is_empty());
        let device_first = self.random.below(8) < self.speed_in_8;
        if some_on_device && (device_first && self.plan.pace != Pace::Prompt || !some_awake) {
            self.complete();
        } else if some_awake && self.plan.pace == Pace::Prompt {
            while let Some(&hctx) = self.machine.awake().first() {
                self.pick(hctx);
            }
        } else if some_awake {
            let hctx = self.any_awake();
            self.pick(hctx);
        } else if let Some(&Reverse((at, _))) = self.due.peek() {
            self.now = at;
        } else if let Some(hctx) = self.machine.away() {
            self.go_or_come(hctx, false);
        } else if self.machine.staged() == 0 && self.has_closed_loops() {
            // Their requests were dropped with a queue, or found none.
            (0..self.plan.flows.len() as u32).for_each(|flow| self.begin_loop(flow));
        } else {
            let waiting = self.machine.staged();
            return Err(format!("{waiting} requests wait, the device is empty, and nobody will ever move again"));
        }
        Ok(())
    }

    /// Any request of any flow is given up, if it has one at an hctx that is drawn.
    fn withdraw(&mut self) {
        let flow = self.random.below(self.plan.flows.len() as u64) as usize;
        let hctxs = &self.plan.flows[flow].hctxs;
        let hctx = hctxs[self.random.below(hctxs.len() as u64) as usize];
        let flow = flow as u32;
        let waiting = self.machine.waiting_at(flow, hctx);
        if waiting > 0 {
            self.machine.withdraw(flow, hctx, self.random.below(waiting.into()) as usize);
            match self.plan.flows[flow as usize].demand {
                Demand::ClosedLoop(_) => self.submit_anywhere(flow),
                _ => self.fill_at(flow, hctx),
            }
        }
    }

    fn go_or_come(&mut self, hctx: u16, closes: bool) {
        self.machine.go_or_come(hctx, closes);
        for at in 0..self.flows_at[usize::from(hctx)].len() {
            let flow = self.flows_at[usize::from(hctx)][at];
            self.fill_at(flow, hctx);
        }
    }

    fn any_awake(&mut self) -> u16 {
        let half = self.machine.hctxs() as u16 / 2;
        let mut hctx = 0;
        // A lazy worker must come up thirty times before it gets a turn, or there is no other.
        for _ in 0..if self.plan.pace == Pace::Lazy { 30 } else { 1 } {
            let awake = self.machine.awake();
            hctx = awake[self.random.below(awake.len() as u64) as usize];
            if hctx < half {
                break;
            }
        }
        hctx
    }

    fn pick(&mut self, hctx: u16) {
        if let Step::Dispatched(..) = self.machine.step(hctx) {
            self.dispatches += 1;
            for at in 0..self.flows_at[usize::from(hctx)].len() {
                let flow = self.flows_at[usize::from(hctx)][at];
                self.fill_at(flow, hctx);
            }
        }
    }

    fn complete(&mut self) {
        let device = self.machine.device();
        let count = device.len() as u64;
        let position = match self.plan.device {
            DeviceOrder::Oldest => 0,
            DeviceOrder::Newest => count as usize - 1,
            DeviceOrder::Random => self.random.below(count) as usize,
            DeviceOrder::Smallest => {
                let smallest = device.iter().enumerate().min_by_key(|(_, request)| request.bytes);
                smallest.map_or(0, |(position, _)| position)
            }
            DeviceOrder::FlowZeroLast => device.iter().position(|request| request.flow != 0).unwrap_or(0),
        };
        self.completed_bytes += device[position].bytes;
        let flow = self.machine.complete(position);
        if let Demand::ClosedLoop(_) = self.plan.flows[flow as usize].demand {
            self.submit_anywhere(flow);
        }
    }

    /// Carries out the flow's due action, and sets its next phase or burst.
    fn next_phase(&mut self, flow: u32) {
        let steps = match self.plan.flows[flow as usize].demand {
            Demand::ComesAndGoes { steps, .. } => {
                let saturates = !self.saturates[flow as usize];
                self.saturates[flow as usize] = saturates;
                if saturates {
                    self.fill(flow);
                }
                steps
            }
            Demand::Bursts { requests_max, steps } => {
                let requests = 1 + self.random.below(u64::from(requests_max));
                (0..requests).for_each(|_| self.submit_anywhere(flow));
                steps
            }
            Demand::Saturated(_) | Demand::ClosedLoop(_) => return,
        };
        let at = self.now + 1 + self.random.below(2 * steps);
        self.due.push(Reverse((at, flow)));
    }

    fn fill(&mut self, flow: u32) {
        for at in 0..self.plan.flows[flow as usize].hctxs.len() {
            let hctx = self.plan.flows[flow as usize].hctxs[at];
            self.fill_at(flow, hctx);
        }
    }

    /// As many requests of the flow wait at `hctx` as it wants there.
    fn fill_at(&mut self, flow: u32, hctx: u16) {
        let (Demand::Saturated(waiting) | Demand::ComesAndGoes { waiting, .. }) = self.plan.flows[flow as usize].demand
        else {
            return;
        };
        while self.saturates[flow as usize] && self.machine.waiting_at(flow, hctx) < waiting {
            if !self.submit(flow, hctx) {
                return;
            }
        }
    }

    fn submit_anywhere(&mut self, flow: u32) {
        let hctxs = &self.plan.flows[flow as usize].hctxs;
        let hctx = hctxs[self.random.below(hctxs.len() as u64) as usize];
        // A burst that does not fit any more is cut short.
        let _ = self.submit(flow, hctx);
    }

    /// False: the queue is full.
    fn submit(&mut self, flow: u32, hctx: u16) -> bool {
        let announced = self.size(flow);
        let Some(Late { wrong_by, .. }) = self.plan.late else { return self.machine.submit(flow, hctx, announced) };
        let factor = 1 + self.random.below(wrong_by);
        let is_usual = self.random.below(4) > 0;
        let is_more = flow.is_multiple_of(2) == is_usual;
        let bytes = if is_more { announced * factor } else { (announced / factor).max(1) };
        self.machine.submit_announced(flow, hctx, announced, bytes)
    }

    fn size(&mut self, flow: u32) -> u64 {
        match self.plan.flows[flow as usize].sizes {
            Sizes::One(bytes) => bytes,
            Sizes::Of(sizes) => sizes[self.random.below(sizes.len() as u64) as usize],
            Sizes::Between(smallest, largest) => {
                let doublings = u64::from((largest / smallest).ilog2());
                let below = smallest << self.random.below(doublings + 1);
                // Up to the next power of two, but not beyond the largest.
                let bytes = below + self.random.below(below / 512) * 512;
                bytes.min(largest)
            }
        }
    }
}
