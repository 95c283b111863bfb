//! The workers of a machine that exists only here, in turns on one thread, and the lines that their policy moves.
//!
//! # Shape
//! Each worker does what `blk/src/worker/mod.rs` and `blk/src/path/hctx.rs` do with a device that completes what a
//! worker has out before the worker's next turn: a closed loop of [`IN_LOOP`] requests.
//!
//! ```text
//!   complete all that is out ──▶ submit one for each ──▶ pick until refused, at most BATCH_MAX ──▶ next worker
//! ```
//! A worker that is refused with nothing out sleeps, and has turns again when it was kicked.
//!
//! # Order of turns
//! Workers go round by round, in each round in another order, which chance gives (with a fixed seed); none twice in a
//! row, if there are several. A worker's neighbours come no sooner after it than others.
//!
//! # Where a line comes from
//! A copy to read comes from the nearest worker that has one. A line to write must be taken from all that have a copy:
//! it is as far as the farthest of them. A line that no worker has had comes from memory, which is no transfer between
//! cores.

use crate::contender::Contender;
use crate::structures::lines::{Copies, WORKERS_MAX};
use mqfq_blk::random::Random;
use mqfq_sched::topology::{Distance, HctxId, Topology};
use mqfq_sched_watched::cost::Cost;
use mqfq_sched_watched::flow::{FlowId, Weight};
use mqfq_sched_watched::policy::{AnyPolicy, AnyQueue, Done, Entry, Grant, Handle, Pick, Policy, PolicyOptions};
use mqfq_sched_watched::vtime::{VSpan, VTime};
use mqfq_sched_watched::wake::WakeWord;
use mqfq_sched_watched::watched::{self, Access, Kind};
use std::collections::VecDeque;

/// D for each worker.
pub const DEPTH_PER_WORKER: u32 = 64;

/// Most requests that a worker dispatches in one turn (`BATCH_MAX` of `blk/src/path/hctx.rs`).
const BATCH_MAX: usize = 64;

/// Requests of each worker, staged or out.
pub const IN_LOOP: u32 = 128;

/// Size of each request, in bytes-equivalent.
pub const REQUEST_BYTES: u64 = 4096;

/// Where the flows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each worker has a flow of its own.
    Own,
    /// All workers share one flow.
    All,
}

impl Placement {
    /// Both.
    pub const ALL: [Placement; 2] = [Placement::Own, Placement::All];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Own => "own",
            Placement::All => "all",
        }
    }
}

/// How long a worker goes on before the next one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interleaving {
    /// One whole turn. The least that workers can disturb each other.
    Turn,
    /// One call of the policy. The most, short of two at the same moment.
    Call,
}

impl Interleaving {
    /// Both.
    pub const ALL: [Interleaving; 2] = [Interleaving::Turn, Interleaving::Call];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Interleaving::Turn => "turn",
            Interleaving::Call => "call",
        }
    }
}

/// One thing to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// Contender.
    pub contender: Contender,
    /// Sockets, cores of each, hardware threads of each: a worker on every one.
    pub machine: (usize, usize, usize),
    /// Where the flows are.
    pub placement: Placement,
    /// How workers take turns.
    pub interleaving: Interleaving,
    /// T.
    pub window_bytes: u64,
}

/// Operation of a worker on its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// `Policy::submit`.
    Submit,
    /// `Policy::pick`, and the word that says whether the worker sleeps.
    Pick,
    /// `Policy::complete`.
    Complete,
}

/// Counts, or their average.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Moved<N> {
    /// Lines that came from the other hardware thread of the same core.
    pub same_core: N,
    /// From another core of the same socket.
    pub same_socket: N,
    /// From another socket.
    pub other_socket: N,
    /// Read-modify-writes of a line that had to move.
    pub shared_rmws: N,
    /// Fences.
    pub fences: N,
}

/// The averages of a case, per request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PerRequest {
    /// Averages of each step, in the order of [`Step`].
    pub steps: [Moved<f64>; 3],
    /// Kicks.
    pub kicks: f64,
}

impl PerRequest {
    /// All steps together.
    pub fn all(&self) -> Moved<f64> {
        let sum = |of: fn(&Moved<f64>) -> f64| self.steps.iter().map(of).sum();
        Moved {
            same_core: sum(|moved| moved.same_core),
            same_socket: sum(|moved| moved.same_socket),
            other_socket: sum(|moved| moved.other_socket),
            shared_rmws: sum(|moved| moved.shared_rmws),
            fences: sum(|moved| moved.fences),
        }
    }
}

impl Moved<f64> {
    /// Lines that moved, wherever they came from.
    pub fn transfers(&self) -> f64 {
        self.same_core + self.same_socket + self.other_socket
    }
}

impl Moved<u64> {
    fn over(&self, requests: u64) -> Moved<f64> {
        let average = |count: u64| count as f64 / requests as f64;
        Moved {
            same_core: average(self.same_core),
            same_socket: average(self.same_socket),
            other_socket: average(self.other_socket),
            shared_rmws: average(self.shared_rmws),
            fences: average(self.fences),
        }
    }
}

/// Plays a case and counts.
///
/// # Errors
/// One sentence: a policy cannot be built so.
pub fn count(case: Case) -> Result<PerRequest, String> {
    let mut machine = Machine::new(case)?;
    machine.play(WARM_UP_REQUESTS_PER_WORKER);
    machine.traffic.start();
    machine.requests = [0; 3];
    let workers = machine.workers.len() as u64;
    machine.play((COUNTED_REQUESTS_MIN / workers).max(COUNTED_REQUESTS_PER_WORKER_MIN));
    let Machine { traffic, requests, .. } = &machine;
    // Each step over its own requests: at the end not all that was submitted is dispatched and completed.
    Ok(PerRequest {
        steps: std::array::from_fn(|step| traffic.steps[step].over(requests[step])),
        kicks: traffic.kicks as f64 / requests[Step::Pick as usize] as f64,
    })
}

/// Until virtual time has gone through the longest window twice.
const WARM_UP_REQUESTS_PER_WORKER: u64 = 512;

/// Requests counted on small machines: the pattern of sleeps repeats only after long.
const COUNTED_REQUESTS_MIN: u64 = 16 << 10;

/// Requests of each worker on large machines: eight batches.
const COUNTED_REQUESTS_PER_WORKER_MIN: u64 = 512;

/// Copies of lines, and transfers since [`Traffic::start`].
struct Traffic {
    copies: Copies,
    /// For each worker, the workers on the same core and on the same socket, itself included: one bit each.
    near: Vec<(u128, u128)>,
    steps: [Moved<u64>; 3],
    kicks: u64,
}

impl Traffic {
    fn new(topology: &Topology) -> Traffic {
        let workers = || (0..topology.hctx_count() as u16).map(HctxId);
        let within = |own, most| {
            workers().filter(|&other| topology.distance(own, other) <= most).map(|other| 1 << other.0).sum::<u128>()
        };
        let near = workers().map(|own| (within(own, Distance::Core), within(own, Distance::Socket)));
        Traffic { copies: Copies::default(), near: near.collect(), steps: Default::default(), kicks: 0 }
    }

    fn start(&mut self) {
        (self.steps, self.kicks) = Default::default();
    }

    fn see(&mut self, worker: usize, step: Step, accesses: &[Access]) {
        let counts = &mut self.steps[step as usize];
        for access in accesses {
            counts.fences += u64::from(access.kind == Kind::Fence);
            let Some(others) = self.copies.access(worker, access) else { continue };
            if others == 0 {
                continue;
            }
            counts.shared_rmws += u64::from(access.kind.is_read_modify_write());
            let (core, socket) = self.near[worker];
            let is_within = |set: u128| match access.kind {
                Kind::Load => others & set != 0,
                _ => others & !set == 0,
            };
            *if is_within(core) {
                &mut counts.same_core
            } else if is_within(socket) {
                &mut counts.same_socket
            } else {
                &mut counts.other_socket
            } += 1;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Complete,
    Submit,
    Pick,
    Asleep,
    /// Kicked while it slept.
    Rung,
}

struct Worker {
    queue: AnyQueue,
    phase: Phase,
    /// On the device.
    out: VecDeque<Grant>,
    /// Completed, to be submitted again.
    idle: VecDeque<(FlowId, Handle)>,
    dispatched_in_turn: usize,
}

/// Alone on its lines, as the `Bell` of `blk` is.
#[repr(align(128))]
#[derive(Default)]
struct Bell(WakeWord);

struct Machine {
    policy: AnyPolicy,
    workers: Vec<Worker>,
    bells: Vec<Bell>,
    interleaving: Interleaving,
    traffic: Traffic,
    /// Requests that made each step.
    requests: [u64; 3],
    random: Random,
    order: Vec<usize>,
    /// Kept from call to call, for their room.
    accesses: Vec<Access>,
    rung: Vec<usize>,
}

impl Machine {
    fn new(case: Case) -> Result<Machine, String> {
        let (sockets, cores, hctxs) = case.machine;
        let count = sockets * cores * hctxs;
        assert!(count <= WORKERS_MAX, "{count} workers of a directory of {WORKERS_MAX}");
        let options = case.contender.options(DEPTH_PER_WORKER * count as u32, case.window_bytes, count);
        let flows = if case.placement == Placement::Own { count } else { 1 };
        let topology = mqfq_sched_watched::topology::Topology::new(sockets, cores, hctxs);
        let policy = AnyPolicy::new(&counting(&options), &topology, &vec![Weight::DEFAULT; flows])
            .map_err(|error| error.to_string())?;
        let workers = (0..count).map(|worker| Worker {
            queue: policy.open_queue(mqfq_sched_watched::topology::HctxId(worker as u16), IN_LOOP as usize),
            phase: Phase::Submit,
            out: VecDeque::with_capacity(IN_LOOP as usize),
            idle: (0..IN_LOOP).map(|handle| (FlowId((worker % flows) as u32), Handle(handle))).collect(),
            dispatched_in_turn: 0,
        });
        Ok(Machine {
            workers: workers.collect(),
            policy,
            bells: (0..count).map(|_| Bell::default()).collect(),
            interleaving: case.interleaving,
            traffic: Traffic::new(&Topology::new(sockets, cores, hctxs)),
            requests: [0; 3],
            random: Random::new(0),
            order: (0..count).collect(),
            accesses: Vec::new(),
            rung: Vec::new(),
        })
    }

    /// Rounds until so many requests were dispatched for each worker on the average.
    fn play(&mut self, requests_per_worker: u64) {
        let dispatched = |machine: &Machine| machine.requests[Step::Pick as usize];
        let until = dispatched(self) + requests_per_worker * self.workers.len() as u64;
        // The phases of all workers would stay together, and all of them would submit at the same time.
        if self.interleaving == Interleaving::Call && self.requests == [0; 3] {
            let calls = 3 * BATCH_MAX;
            for worker in 0..self.workers.len() {
                for _ in 0..worker * calls / self.workers.len() {
                    self.call(worker);
                }
            }
        }
        while dispatched(self) < until {
            self.shuffle();
            let mut is_awake = false;
            for at in 0..self.order.len() {
                let worker = self.order[at];
                is_awake |= self.workers[worker].phase != Phase::Asleep;
                match self.interleaving {
                    Interleaving::Turn => while !self.call(worker) {},
                    Interleaving::Call => {
                        self.call(worker);
                    }
                }
            }
            assert!(is_awake, "all workers sleep, and each has requests staged");
        }
    }

    /// The next round's order.
    fn shuffle(&mut self) {
        let count = self.order.len();
        let last = self.order[count - 1];
        for at in (1..count).rev() {
            self.order.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        if count > 1 && self.order[0] == last {
            self.order.swap(0, count - 1);
        }
    }

    /// The next call that a worker makes. True if its turn ends with that.
    fn call(&mut self, worker: usize) -> bool {
        if self.workers[worker].phase == Phase::Rung {
            self.record(worker, Step::Pick, |_, _, bells, _| bells[worker].0.woke());
            self.workers[worker].phase = Phase::Pick;
        }
        let Worker { phase, out, idle, .. } = &self.workers[worker];
        match phase {
            Phase::Asleep => return true,
            Phase::Complete if !out.is_empty() => {
                self.complete(worker);
                return false;
            }
            Phase::Complete | Phase::Submit if !idle.is_empty() => {
                self.submit(worker);
                return false;
            }
            Phase::Complete | Phase::Submit | Phase::Pick | Phase::Rung => {}
        }
        let is_over = !self.pick(worker);
        let Worker { phase, dispatched_in_turn, out, .. } = &mut self.workers[worker];
        *phase = Phase::Pick;
        if !is_over && *dispatched_in_turn < BATCH_MAX {
            return false;
        }
        (*phase, *dispatched_in_turn) = (Phase::Complete, 0);
        if is_over && out.is_empty() && self.record(worker, Step::Pick, |_, _, bells, _| bells[worker].0.may_sleep()) {
            self.workers[worker].phase = Phase::Asleep;
        }
        true
    }

    fn complete(&mut self, worker: usize) {
        let Some(Grant { handle, flow, token }) = self.workers[worker].out.pop_front() else { return };
        self.record(worker, Step::Complete, |policy, queue, bells, rung| {
            policy.complete(queue, Done::read(flow, Handle(0)), token, 0, &mut |hctx| ring(bells, rung, hctx));
        });
        self.requests[Step::Complete as usize] += 1;
        self.workers[worker].idle.push_back((flow, handle));
    }

    fn submit(&mut self, worker: usize) {
        let Some((flow, handle)) = self.workers[worker].idle.pop_front() else { return };
        self.workers[worker].phase = Phase::Submit;
        let entry = Entry::read(flow, Cost(REQUEST_BYTES), handle);
        self.record(worker, Step::Submit, |policy, queue, bells, rung| {
            policy.submit(queue, entry, 0, &mut |hctx| ring(bells, rung, hctx));
        });
        self.requests[Step::Submit as usize] += 1;
    }

    /// False if the policy refuses.
    fn pick(&mut self, worker: usize) -> bool {
        let picked = self.record(worker, Step::Pick, |policy, queue, bells, rung| {
            policy.pick(queue, 0, &mut |hctx| ring(bells, rung, hctx))
        });
        let Pick::Dispatch(grant) = picked else { return false };
        let worker = &mut self.workers[worker];
        worker.out.push_back(grant);
        worker.dispatched_in_turn += 1;
        self.requests[Step::Pick as usize] += 1;
        true
    }

    /// Makes a call, follows its lines, and remembers the workers that it rang.
    fn record<R>(
        &mut self,
        worker: usize,
        step: Step,
        call: impl FnOnce(&AnyPolicy, &mut AnyQueue, &[Bell], &mut Rung) -> R,
    ) -> R {
        let mut rung = Rung { sleepers: std::mem::take(&mut self.rung), kicks: 0 };
        let (policy, queue, bells) = (&self.policy, &mut self.workers[worker].queue, &self.bells[..]);
        let result = watched::record(&mut self.accesses, || call(policy, queue, bells, &mut rung));
        self.traffic.see(worker, step, &self.accesses);
        self.traffic.kicks += rung.kicks;
        rung.sleepers.drain(..).for_each(|sleeper| self.workers[sleeper].phase = Phase::Rung);
        self.rung = rung.sleepers;
        result
    }
}

/// Workers that a call has kicked.
struct Rung {
    /// Kicked workers that slept.
    sleepers: Vec<usize>,
    kicks: u64,
}

fn ring(bells: &[Bell], rung: &mut Rung, hctx: mqfq_sched_watched::topology::HctxId) {
    rung.kicks += 1;
    if bells[hctx.index()].0.kick() {
        rung.sleepers.push(hctx.index());
    }
}

/// Returns the options for the source that counts.
fn counting(options: &mqfq_sched::policy::PolicyOptions) -> PolicyOptions {
    // The tunables of the elevators are their defaults in both.
    let kind = mqfq_policies_watched::REGISTRY.find(options.kind.name()).expect("both sources have the same policies");
    PolicyOptions {
        depth: options.depth,
        window: VSpan(options.window.0),
        token_unit_bytes: options.token_unit_bytes,
        quantum: VSpan(options.quantum.0),
        lease: VSpan(options.lease.0),
        token_batch: options.token_batch,
        token_share: options.token_share,
        start: VTime::from_raw(options.start.raw()),
        ..PolicyOptions::new(kind)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A token that is dropped is a bug elsewhere.
        for worker in 0..self.workers.len() {
            while !self.workers[worker].out.is_empty() {
                self.complete(worker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{CONTENDERS, MQFQ, MQFQ_FAITHFUL, MQFQ_SERIAL, NONE, SFQD};

    fn access(kind: Kind, line: usize) -> Access {
        Access { kind, address: line * 64, lock_bytes: 0 }
    }

    fn case(contender: Contender, machine: (usize, usize, usize)) -> Case {
        let (placement, interleaving) = (Placement::All, Interleaving::Call);
        Case { contender, machine, placement, interleaving, window_bytes: 1 << 20 }
    }

    #[test]
    fn a_line_to_read_comes_from_the_nearest_and_one_to_write_from_all() {
        // 2 sockets of 2 cores of 2 hctxs: 0 1 | 2 3 || 4 5 | 6 7.
        let mut traffic = Traffic::new(&Topology::new(2, 2, 2));
        let mut moved = |worker, kind| {
            traffic.start();
            traffic.see(worker, Step::Pick, &[access(kind, 5)]);
            let Moved { same_core, same_socket, other_socket, shared_rmws, .. } = traffic.steps[Step::Pick as usize];
            [same_core, same_socket, other_socket, shared_rmws]
        };
        assert_eq!(moved(4, Kind::Store), [0, 0, 0, 0], "from memory");
        assert_eq!(moved(0, Kind::Load), [0, 0, 1, 0], "from 4");
        assert_eq!(moved(2, Kind::Load), [0, 1, 0, 0], "0 is nearer than 4");
        assert_eq!(moved(1, Kind::Load), [1, 0, 0, 0], "0 is nearest");
        assert_eq!(moved(1, Kind::Load), [0, 0, 0, 0], "it has a copy");
        assert_eq!(moved(0, Kind::ReadModifyWrite), [0, 0, 1, 1], "from 1, 2 and 4");
        assert_eq!(moved(0, Kind::ReadModifyWrite), [0, 0, 0, 0], "alone with it");
        assert_eq!(moved(1, Kind::Store), [1, 0, 0, 0], "from 0 alone");
        assert_eq!(moved(3, Kind::ReadModifyWrite), [0, 1, 0, 1], "from 1 alone");
    }

    #[test]
    fn nobody_comes_twice_in_a_row_and_everybody_once_in_a_round() {
        let mut machine = Machine::new(case(NONE, (1, 5, 1))).unwrap();
        let mut last = machine.order[4];
        for _ in 0..200 {
            machine.shuffle();
            assert_ne!(machine.order[0], last);
            last = machine.order[4];
            let mut sorted = machine.order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn one_worker_moves_nothing() {
        for contender in CONTENDERS {
            for placement in Placement::ALL {
                let counted = count(Case { placement, ..case(contender, (1, 1, 1)) }).unwrap();
                assert_eq!(counted.all().transfers(), 0.0, "{contender:?}");
                assert_eq!(counted.all().shared_rmws, 0.0, "{contender:?}");
            }
        }
    }

    #[test]
    fn none_shares_nothing_and_a_lock_goes_from_hand_to_hand() {
        for machine in [(1, 2, 1), (2, 2, 2)] {
            let none = count(case(NONE, machine)).unwrap().all();
            assert_eq!((none.transfers(), none.shared_rmws, none.fences), (0.0, 0.0, 0.0));
            // Each call takes the lock after another worker's, unless that one sleeps: a submit, a pick and a complete
            // per request at least.
            for contender in [SFQD, MQFQ_SERIAL] {
                let locked = count(case(contender, machine)).unwrap();
                assert!(locked.steps.iter().all(|step| step.shared_rmws >= 0.9), "{contender:?}: {locked:?}");
            }
        }
    }

    #[test]
    fn sixteen_workers_move_a_fifth_of_the_lines_in_the_relaxed_form() {
        let all = |contender, placement, interleaving| {
            let case = Case { placement, interleaving, ..case(contender, (1, 16, 1)) };
            count(case).unwrap().all().transfers()
        };
        // One flow for all of them. Its leases are T/16, 16 requests, and a queue that moves virtual time tells 15
        // others.
        let relaxed = all(MQFQ, Placement::All, Interleaving::Call);
        let faithful = all(MQFQ_FAITHFUL, Placement::All, Interleaving::Call);
        assert!(relaxed < 1.5 && faithful > 5.0 * relaxed, "{relaxed} {faithful}");
        assert!(all(MQFQ, Placement::All, Interleaving::Turn) < 0.6);
        // A flow for each.
        let relaxed = all(MQFQ, Placement::Own, Interleaving::Call);
        let faithful = all(MQFQ_FAITHFUL, Placement::Own, Interleaving::Call);
        assert!(relaxed < 0.3 && faithful > 5.0 * relaxed, "{relaxed} {faithful}");
    }

    #[test]
    fn a_count_does_not_depend_on_where_things_lie_in_memory() {
        let case = case(MQFQ_FAITHFUL, (2, 2, 2));
        let first = count(case).unwrap();
        let between: Vec<Vec<u8>> = (0..1000).map(|size| vec![0; size]).collect();
        assert_eq!(first, count(case).unwrap());
        drop(between);
    }
}
