//! The engine: devices, their policies and flows, and the workers that run them.
//!
//! This is what an embedder starts. Clients come and go; so do flows (`engine/flows.rs`) and devices; policies and
//! weights can be changed (`engine/change.rs`). The workers are fixed at start.

mod change;
mod flows;
mod pause;
mod prepare;

pub use prepare::{Finding, Prepare, Settled};

use crate::client::{ClientFilter, MakeClient, POLL_NS_MIN};
use crate::counters::FlowCounters;
use crate::device::{Ailing, Device, DeviceInfo, Health};
use crate::passed::start_closers;
use crate::path_options::PathOptions;
use crate::split::{SplitControl, SplitState};
use crate::stage::StageLimits;
use crate::stats::{FlowStats, HctxStats, Trouble};
use crate::table::{Swept, UnderWay};
use crate::trace::Trace;
use crate::tuning::{Found, GoalState, InForce, Tuning};
use crate::worker::WorkerContext;
use crate::worker::bell::Bell;
use crate::worker::clock::Clock;
use crate::worker::cores;
use crate::worker::host::{Mail, Sweep};
use crate::worker::steps::Steps;
use crate::worker::thread::{self, EngineShared, Running, SharedDevice};
use crate::worker::wake_up;
use flows::FlowCapacity;
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::{EffectiveWeight, Group, GroupId, Tree};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, ClassWeights, PolicyOptions};
use mqfq_sched::topology::Topology;
use mqfq_sched::write_cost::WriteCost;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most workers of an engine.
pub const WORKERS_MAX: usize = 1024;

/// One tenant's flow on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowOptions {
    /// Name of the tenant, for reports.
    pub name: String,
    /// Weight of the tenant on this device.
    pub weight: Weight,
    /// Its priority class, for policies that have them: `mq-deadline` and `bfq`.
    pub class: PriorityClass,
    /// Its bound on each worker.
    pub limits: StageLimits,
    /// Its latency goal, held where D is found. Default: none.
    pub goal: Option<FlowGoal>,
}

/// A flow's latency goal, which is its tenant's or its group's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowGoal {
    /// Owner of the goal: flows of one owner meet it together.
    pub owner: String,
    /// Nine of ten requests of at most [`GOAL_BYTES_MAX`](crate::tuning::GOAL_BYTES_MAX) take no longer from
    /// submission to completion, ns ([`GOAL_NS`](crate::tuning::GOAL_NS)).
    pub goal_ns: u64,
    /// The least throughput of the device that the goal may leave, thousandths, 1..=1000; the largest of its flows'
    /// counts.
    pub floor_thousandths: u32,
}

/// Groups of flows on one device.
#[derive(Clone, Debug, Default)]
pub struct Grouping {
    /// The groups and their flows; empty, or the policy has groups.
    pub tree: Tree,
    /// The groups' names, for reports, by `GroupId`.
    pub names: Vec<String>,
}

impl FlowOptions {
    /// A tenant of the default weight, class and bound.
    pub fn new(name: &str) -> FlowOptions {
        FlowOptions {
            name: name.to_owned(),
            weight: Weight::DEFAULT,
            class: PriorityClass::default(),
            limits: StageLimits::DEFAULT,
            goal: None,
        }
    }
}

/// The options of one device and of its policy.
#[derive(Clone)]
pub struct DeviceOptions {
    /// Name of the device, for reports.
    pub name: String,
    /// The device itself, opened.
    pub device: Arc<dyn Device>,
    /// Policy that shares it out.
    pub policy: PolicyOptions,
    /// Prepares the device before its queues are opened; `None`: it needs nothing.
    pub prepare: Option<Prepare>,
    /// Commands on each worker's queue at once, 1..=65535, in a set of class queues on each of the three up to
    /// [`TagSet::CLASS_DEPTH_MAX`](crate::tag::TagSet::CLASS_DEPTH_MAX). Policies with a depth D never use more than D.
    pub queue_depth: u16,
    /// The flows, by `FlowId`.
    pub flows: Vec<FlowOptions>,
    /// Groups of the flows. Default: none.
    pub grouping: Grouping,
    /// Cost of each request.
    pub cost: CostModel,
    /// Treatment of requests besides scheduling.
    pub path: PathOptions,
}

impl DeviceOptions {
    /// A device that begins with this policy: 64 commands on each worker's queue, costs of [`CostModel::FLAT`], and the
    /// path as shipped.
    pub fn new(name: &str, device: Arc<dyn Device>, policy: PolicyOptions, flows: Vec<FlowOptions>) -> DeviceOptions {
        DeviceOptions {
            name: name.to_owned(),
            device,
            policy,
            prepare: None,
            queue_depth: 64,
            flows,
            grouping: Grouping::default(),
            cost: CostModel::FLAT,
            path: PathOptions::default(),
        }
    }
}

/// The options of an engine: its workers and its devices.
#[derive(Clone)]
pub struct EngineOptions {
    /// Workers, 1..=[`WORKERS_MAX`].
    pub workers: usize,
    /// Bind each worker to a core of its own, where allowed and where there is one for each.
    pub pin: bool,
    /// A worker whose device model moves again within this time spins instead of sleeping, ns. Only the software NVMe
    /// controller needs it: its drives are faster than a sleep.
    pub spin_ns: u64,
    /// The devices, by `DeviceIndex`.
    pub devices: Vec<DeviceOptions>,
}

/// Counters of one flow, over all workers.
#[derive(Clone, Debug)]
pub struct NamedFlowStats {
    /// Name of the tenant, as configured.
    pub name: String,
    /// Counters of the tenant on this device.
    pub stats: FlowStats,
    /// By worker: time of its last completion for the tenant, ns since the engine started; 0: never. Empty in
    /// [`Engine::sums`].
    pub last_ns: Vec<u64>,
    /// Bytes of cost submitted to the high, medium and low queues since the policy was made, of a policy with class
    /// queues.
    pub class_bytes: Option<[u64; 3]>,
    /// Its weight, as last set.
    pub weight: Weight,
    /// The weight at which it competes now, of a policy that knows.
    pub effective_weight: Option<EffectiveWeight>,
    /// The group that it is in.
    pub group: Option<GroupId>,
    /// State of its latency goal, if it has one that is held here.
    pub goal: Option<GoalState>,
}

/// A group of flows as it is now.
#[derive(Clone, Debug)]
pub struct GroupStats {
    /// Its name, as configured.
    pub name: String,
    /// The group that it is in.
    pub parent: Option<GroupId>,
    /// Its weight, as last set.
    pub weight: Weight,
    /// The weight at which it competes now, of a policy that knows.
    pub effective_weight: Option<EffectiveWeight>,
}

/// Counters of one device.
#[derive(Clone, Debug)]
pub struct DeviceStats {
    /// Name of the device, as configured.
    pub name: String,
    /// The policy's name.
    pub policy: &'static str,
    /// Options it was made with.
    pub options: PolicyOptions,
    /// The weights of the device's class queues, of a policy that sets them.
    pub class_weights: Option<ClassWeights>,
    /// Parameters found while the policy runs, and why they are these; `None` if its figures are numbers.
    pub in_force: Option<InForce>,
    /// D is at most this for latency goals' sake; `None`: it is as found or set.
    pub depth_cap: Option<u32>,
    /// Cost of a write in 256ths of the cost model's, if it is followed.
    pub write_cost_256ths: Option<u32>,
    /// Size of the parts of large requests now, and why.
    pub split: SplitState,
    /// Operations that still work.
    pub health: Health,
    /// Parts that do not carry out all operations.
    pub ailing: Vec<Ailing>,
    /// Counters of the tenants, by flow.
    pub flows: Vec<NamedFlowStats>,
    /// The groups that they are in.
    pub groups: Vec<GroupStats>,
    /// Counters by hctx, which is by worker.
    pub hctxs: Vec<HctxStats>,
}

/// Time of a core that a worker asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerStats {
    /// Time that it wanted a core, since its start, ns: its thread ran, or waited for a core. Time in which it spun for
    /// another worker or a device does not count. `None`: the kernel does not say.
    pub wanted_ns: Option<u64>,
    /// Time that it stayed awake for a kick or a guest's next request that did not come, since its start, ns. Each of
    /// several queues that waited at the same time counts.
    pub in_vain_ns: u64,
    /// As [`Engine::poll_ns`].
    pub poll_ns: u64,
}

/// Counters of an engine, one moment per worker.
#[derive(Clone, Debug)]
pub struct EngineStats {
    /// Time of the question, ns since the engine started.
    pub at_ns: u64,
    /// Counters of the devices, in the order of [`EngineOptions`].
    pub devices: Vec<DeviceStats>,
    /// The workers, by number.
    pub workers: Vec<WorkerStats>,
}

/// A device's configuration, as last changed.
struct Current {
    name: String,
    settled: Settled,
    policy: PolicyOptions,
    /// By `FlowId`; `None`: an empty place. Behind them the policy has places for more.
    flows: Vec<Option<FlowOptions>>,
    grouping: Grouping,
    capacity: FlowCapacity,
    /// Figures found under the policy before that found any.
    found: Option<Found>,
    shared: Arc<SharedDevice>,
}

/// A running engine. Dropping it stops the workers at once; [`Engine::drain`] first if clients matter.
pub struct Engine {
    shared: Arc<EngineShared>,
    topology: Topology,
    /// By device; `None`: the index is free. Held for moments.
    current: Mutex<Vec<Option<Current>>>,
    /// Held during a change, so that changes come one after another.
    changing: Mutex<()>,
    /// Held during a sweep.
    sweeping: Mutex<()>,
    threads: Vec<JoinHandle<()>>,
}

/// A device whose counters are read: its sums, its flows, and where the counters are.
type DeviceRead = (DeviceStats, Vec<FlowId>, Arc<SharedDevice>);

impl Engine {
    /// Starts the workers.
    ///
    /// # Errors
    /// One sentence: a number out of range, a policy's options, a device without what its policy needs, a device queue
    /// or ring that could not be opened.
    pub fn start(options: EngineOptions) -> Result<Engine, String> {
        let clock = Clock::start();
        check(&options)?;
        thread::check_ring()?;
        start_closers().map_err(|error| format!("cannot start the thread that closes descriptors: {error}"))?;
        let cpus = cores::allowed_cpus();
        let topology = cores::topology(&cpus, options.workers);
        let bells: Result<Vec<Arc<Bell>>, _> = (0..options.workers).map(|_| Bell::new().map(Arc::new)).collect();
        let bells = bells.map_err(|error| format!("cannot make an eventfd: {error}"))?;
        let EngineOptions { workers, pin, .. } = options;
        // Where each CPU has a worker, one that stays awake takes the core from its own clients.
        let is_spare = options.workers < cpus.len();
        let poll_ns = wake_up::poll_ns(is_spare.then(|| wake_up::measure(&cpus, clock)).flatten());
        let mut engine = Engine::over(&options, topology, clock, None, bells, poll_ns)?;
        let (sender, started) = mpsc::channel();
        for index in 0..workers {
            let pinned = pin && workers <= cpus.len();
            let cpu = pinned.then(|| cpus[index]);
            let thread = thread::start(engine.shared.clone(), index, cpu, sender.clone());
            engine.threads.push(thread.map_err(|error| format!("cannot start worker {index}: {error}"))?);
        }
        drop(sender);
        for _ in 0..workers {
            started.recv().map_err(|_| "a worker ended before it had started".to_owned())??;
        }
        Ok(engine)
    }

    /// Starts an engine without threads: the caller makes each worker of its [`WorkerContext`], on a host of its own,
    /// and steps it ([`Worker::step`](crate::worker::Worker::step)) as `steps` says. Devices begin with the configured
    /// policies. The workers stop, when the engine is dropped, at their next step.
    ///
    /// # Errors
    /// As [`Engine::start`], but for queues that a worker opens.
    pub fn start_stepped(options: EngineOptions, steps: Steps) -> Result<(Engine, Vec<WorkerContext>), String> {
        check(&options)?;
        let topology = Topology::flat(options.workers);
        let bells = (0..options.workers).map(|_| Arc::new(Bell::silent())).collect();
        let clock = Clock::made_up(steps.now_ns);
        let engine = Engine::over(&options, topology, clock, Some(steps), bells, POLL_NS_MIN)?;
        let context = |index| WorkerContext { shared: engine.shared.clone(), index };
        let contexts = (0..options.workers).map(context).collect();
        Ok((engine, contexts))
    }

    /// True if a caller steps its workers on one thread ([`Engine::start_stepped`]).
    pub fn is_stepped(&self) -> bool {
        self.shared.steps.is_some()
    }

    /// An engine without workers as yet.
    fn over(
        options: &EngineOptions,
        topology: Topology,
        clock: Clock,
        steps: Option<Steps>,
        bells: Vec<Arc<Bell>>,
        poll_ns: u64,
    ) -> Result<Engine, String> {
        let probe = steps.is_none().then_some(clock);
        let prepared = prepare(options, &topology, probe)?.into_iter();
        let current: Vec<Current> = prepared.map(|prepared| prepared.assemble(options.workers)).collect();
        let devices = current.iter().map(|device| device.shared.clone()).collect();
        let shared = Arc::new(EngineShared::new(clock, steps, bells, devices, options.spin_ns, poll_ns));
        Ok(Engine {
            shared,
            topology,
            current: Mutex::new(current.into_iter().map(Some).collect()),
            changing: Mutex::new(()),
            sweeping: Mutex::new(()),
            threads: Vec::new(),
        })
    }

    /// Checks all that [`Engine::start`] refuses without opening a queue to stay; returns each device's policy.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn check(options: &EngineOptions) -> Result<Vec<Settled>, String> {
        check(options)?;
        thread::check_ring()?;
        let topology = cores::topology(&cores::allowed_cpus(), options.workers);
        Ok(prepare(options, &topology, Some(Clock::start()))?.into_iter().map(|prepared| prepared.settled).collect())
    }

    /// Makes a client live on one of the workers, round robin.
    pub fn attach(&self, make: MakeClient) {
        self.shared.attach(make);
    }

    /// Makes a client live on the worker of this index.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn attach_to(&self, worker: usize, make: MakeClient) {
        self.shared.send(worker, Mail::Attach(make));
    }

    /// Has `action` called, once, when a worker panics (or now, if one has): on that worker's thread, with its index,
    /// after the panic hook. If `action` panics in turn, the process is aborted.
    ///
    /// A worker that panics takes its clients along, and keeps its part of the devices: tokens are lost, and virtual
    /// time waits for its requests. The other workers go on, more and more of their tenants stand still, and no call
    /// repairs it. Ending the process is the right action of a server.
    pub fn on_worker_panic(&self, action: impl FnOnce(usize) + Send + 'static) {
        self.shared.on_panic(Box::new(action));
    }

    /// Has `action` called whenever a worker finds that commands of a device take too long: on that worker's thread,
    /// with the device's index and the trouble since. The worker's tenants wait meanwhile, so it hands over and does no
    /// more: it neither blocks nor allocates nor says anything. The first action stays.
    pub fn on_trouble(&self, action: impl Fn(usize, Trouble) + Send + Sync + 'static) {
        self.shared.on_trouble(Box::new(action));
    }

    /// Size, units and features of a device, by its index.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn device(&self, index: usize) -> DeviceInfo {
        self.shared_device(index).device.info()
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.shared.bells.len()
    }

    /// Time for which a worker stays awake for a kick or a guest's next request, as long as that pays, ns: four of the
    /// wake-ups that were measured at the start, 50 to 250 us; 50 us where each CPU has a worker.
    pub fn poll_ns(&self) -> u64 {
        self.shared.poll_ns
    }

    /// The engine's clock: the `now_ns` of its clients.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Asks every client to drain and waits until all are done. Clients still there after `grace` have their sockets
    /// shut down, and their requests on a device are waited for as long again, 5 s at least: a device that never ends a
    /// request does not hold up the drain for ever. Returns whether all were done within `grace`. New clients are not
    /// taken any more.
    pub fn drain(&self, grace: Duration) -> bool {
        self.drain_by(Mail::Drain, || Mail::Abort, grace)
    }

    /// As [`Engine::drain`], for some clients. Others go on, and new ones are taken, unless the caller has them refused
    /// before.
    pub fn drain_some(&self, whose: ClientFilter, grace: Duration) -> bool {
        self.drain_by(|gone| Mail::DrainSome { whose, gone }, || Mail::AbortSome(whose), grace)
    }

    fn drain_by(&self, ask: impl Fn(mpsc::Sender<()>) -> Mail, abort: impl Fn() -> Mail, grace: Duration) -> bool {
        let (sender, drained) = mpsc::channel();
        for worker in 0..self.workers() {
            self.shared.send(worker, ask(sender.clone()));
        }
        drop(sender);
        let clock = self.clock();
        let mut until_ns = clock.now_ns().saturating_add(nanoseconds(grace));
        let (mut in_time, mut answers) = (true, 0);
        while answers < self.workers() {
            let left = Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
            match self.shared.answer(&drained, left) {
                Ok(()) => answers += 1,
                Err(mpsc::RecvTimeoutError::Timeout) if in_time => {
                    in_time = false;
                    (0..self.workers()).for_each(|worker| self.shared.send(worker, abort()));
                    // A shut-down socket ends at once; requests on the device remain.
                    until_ns = clock.now_ns().saturating_add(nanoseconds(grace.max(LAST_REQUESTS_LEAST)));
                }
                Err(_) => return false,
            }
        }
        in_time
    }

    /// Has every worker record the requests that complete on every device from now on: the last `capacity` of each. See
    /// [`crate::trace`]. Earlier records are dropped.
    pub fn start_trace(&self, capacity: usize) {
        (0..self.workers()).for_each(|worker| self.shared.send(worker, Mail::StartTrace { capacity }));
    }

    /// Stops recording, and returns the records by worker, then by device; none for a worker that has ended.
    pub fn take_trace(&self) -> Vec<Vec<Trace>> {
        let ask = |worker| {
            let (sender, reply) = mpsc::channel();
            self.shared.send(worker, Mail::TakeTrace(sender));
            reply
        };
        let replies: Vec<_> = (0..self.workers()).map(ask).collect();
        replies.into_iter().map(|reply| self.shared.answer(&reply, Duration::MAX).unwrap_or_default()).collect()
    }

    /// Requests under way, by worker, then by device. Each worker looks at its table in pieces between requests.
    fn sweep(&self) -> Vec<Result<Vec<Swept>, Missing>> {
        // One after another: a worker makes one sweep at a time.
        let _sweeping = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner);
        let flows: Vec<usize> = {
            let of = |device: &Option<Current>| device.as_ref().map_or(0, |device| device.flows.len());
            self.current().iter().map(of).collect()
        };
        let empty = || flows.iter().map(|flows| Swept::new(*flows)).collect();
        // A channel for each, so that the answers come in the order of the workers and not in that of their speed.
        let ask = |worker| {
            let (reply, swept) = mpsc::channel();
            self.shared.send(worker, Mail::Sweep(Sweep { found: empty(), reply, at: (0, 0) }));
            swept
        };
        let replies: Vec<_> = (0..self.workers()).map(ask).collect();
        let clock = self.clock();
        let until_ns = clock.now_ns() + SWEEP_PATIENCE_NS;
        let swept = |reply: mpsc::Receiver<_>| {
            let left = Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
            self.shared.answer(&reply, left).map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => Missing::Late,
                mpsc::RecvTimeoutError::Disconnected => Missing::Gone,
            })
        };
        replies.into_iter().map(swept).collect()
    }

    /// Counters so far. The workers' are read in place; each reports its requests under way, and if one does not within
    /// a second they are missing.
    pub fn stats(&self) -> EngineStats {
        self.read(self.sweep(), true)
    }

    /// Counters without latencies and requests under way: no worker is asked.
    pub fn sums(&self) -> EngineStats {
        self.read((0..self.workers()).map(|_| Err(Missing::Late)).collect(), false)
    }

    /// Health of each device, by name. Asks no worker.
    pub fn health(&self) -> Vec<(String, Health)> {
        let current = self.current();
        current.iter().flatten().map(|device| (device.name.clone(), device.shared.device.health())).collect()
    }

    /// Parts that do not carry out all operations, each with its device. Asks no worker.
    pub fn ailing(&self) -> Vec<(String, Ailing)> {
        let current = self.current();
        let of = |device: &Current| {
            let name = device.name.clone();
            device.shared.ailing().into_iter().map(move |part| (name.clone(), part))
        };
        current.iter().flatten().flat_map(of).collect()
    }

    fn read(&self, swept: Vec<Result<Vec<Swept>, Missing>>, with_latencies: bool) -> EngineStats {
        let at_ns = self.clock().now_ns();
        // By index; none where there is no device, and in a device none where there is no flow.
        let mut devices: Vec<Option<DeviceRead>> = {
            let current = self.current();
            let stats = |current: &Option<Current>| current.as_ref().map(|current| stats_of(current, at_ns));
            current.iter().map(stats).collect()
        };
        for (worker, swept) in swept.into_iter().enumerate() {
            let swept = match swept {
                Ok(swept) => swept,
                Err(Missing::Late) => Vec::new(),
                Err(Missing::Gone) => continue,
            };
            let mut swept = swept.into_iter();
            for device in &mut devices {
                let Swept { flows, in_flight, staged, .. } = swept.next().unwrap_or_default();
                let Some((device, ids, shared)) = device else { continue };
                let Some(counters) = shared.counters[worker].get() else { continue };
                device.hctxs.push(HctxStats { in_flight, staged, ..counters.read() });
                for (sum, id) in device.flows.iter_mut().zip(ids) {
                    let UnderWay { requests, oldest_ns } = flows.get(id.0 as usize).copied().unwrap_or(UnderWay::NONE);
                    counters.add_flow(*id, &mut sum.stats, with_latencies);
                    if with_latencies {
                        sum.last_ns.resize(worker, 0);
                        sum.last_ns.push(counters.flow(*id).map_or(0, FlowCounters::last_ns));
                    }
                    sum.stats.under_way += requests;
                    let oldest_ns = (requests > 0).then_some(oldest_ns);
                    sum.stats.oldest_ns = [sum.stats.oldest_ns, oldest_ns].into_iter().flatten().min();
                }
            }
        }
        let workers = (0..self.workers()).map(|worker| WorkerStats {
            wanted_ns: self.shared.wanted_ns(worker),
            in_vain_ns: self.shared.in_vain_ns(worker),
            poll_ns: self.poll_ns(),
        });
        let devices = devices.into_iter().flatten().map(|(device, ..)| device).collect();
        EngineStats { at_ns, devices, workers: workers.collect() }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for worker in 0..self.workers() {
            self.shared.send(worker, Mail::Stop);
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has already said so.
            drop(thread.join());
        }
    }
}

/// Least wait for the last requests of clients that were shut down.
const LAST_REQUESTS_LEAST: Duration = Duration::from_secs(5);

/// A duration as the engine's clock counts; centuries are without end.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Time in which all workers must report their requests under way.
const SWEEP_PATIENCE_NS: u64 = 1_000_000_000;

/// Reason why a worker did not report its requests under way.
enum Missing {
    /// It is busy with something else.
    Late,
    /// It has ended.
    Gone,
}

/// Counters of a device that need no worker, and the places of its flows.
fn stats_of(current: &Current, at_ns: u64) -> (DeviceStats, Vec<FlowId>, Arc<SharedDevice>) {
    let Running { policy, tuning } = current.shared.running();
    let goals = tuning.as_ref().and_then(|tuning| tuning.goals());
    let states: BTreeMap<&str, GoalState> =
        goals.iter().flat_map(|goals| &goals.goals).map(|(owner, state)| (owner.as_str(), *state)).collect();
    let flows = || current.flows.iter().enumerate().filter_map(|(place, flow)| Some((place, flow.as_ref()?)));
    let named = |(place, flow): (usize, &FlowOptions)| NamedFlowStats {
        name: flow.name.clone(),
        stats: FlowStats::default(),
        last_ns: Vec::new(),
        class_bytes: policy.class_bytes(FlowId(place as u32)),
        weight: flow.weight,
        effective_weight: policy.effective_weight(FlowId(place as u32)),
        group: current.grouping.tree.of_flow.get(place).copied().flatten(),
        goal: flow.goal.as_ref().and_then(|goal| states.get(goal.owner.as_str()).copied()),
    };
    let Grouping { tree, names } = &current.grouping;
    let group = |(number, (name, group)): (u32, (&String, &Group))| GroupStats {
        name: name.clone(),
        parent: group.parent,
        weight: group.weight,
        effective_weight: policy.effective_weight_of(GroupId(number)),
    };
    let stats = DeviceStats {
        name: current.name.clone(),
        policy: current.policy.kind.name(),
        options: current.policy,
        class_weights: policy.class_weights(),
        depth_cap: goals.as_ref().and_then(|goals| goals.cap),
        in_force: tuning.and_then(|tuning| tuning.in_force(at_ns)),
        write_cost_256ths: current.shared.write_cost.as_ref().map(|cost| cost.estimate_256ths()),
        split: current.shared.split.state(),
        health: current.shared.device.health(),
        ailing: current.shared.ailing(),
        flows: flows().map(named).collect(),
        groups: (0..).zip(names.iter().zip(&tree.groups)).map(group).collect(),
        hctxs: Vec::new(),
    };
    (stats, flows().map(|(place, _)| FlowId(place as u32)).collect(), current.shared.clone())
}

/// A device before its queues are opened.
struct Prepared {
    /// As prepared: the device is the one to serve.
    options: DeviceOptions,
    settled: Settled,
    policy: AnyPolicy,
    capacity: FlowCapacity,
}

fn prepare(options: &EngineOptions, topology: &Topology, probe: Option<Clock>) -> Result<Vec<Prepared>, String> {
    options.devices.iter().map(|device| Prepared::new(device, topology, probe)).collect()
}

impl Prepared {
    fn new(device: &DeviceOptions, topology: &Topology, probe: Option<Clock>) -> Result<Prepared, String> {
        let named = |error: String| format!("device {}: {error}", device.name);
        let mut options = device.clone();
        let settled = options.settle(topology, probe).map_err(named)?;
        let flows: Vec<Option<FlowOptions>> = device.flows.iter().cloned().map(Some).collect();
        let built = flows::build(&settled.policy, topology, &flows, &device.grouping.tree);
        let (policy, capacity) = built.map_err(|error| named(error.to_string()))?;
        options.check_policy(settled.policy.kind).map_err(named)?;
        Ok(Prepared { options, settled, policy, capacity })
    }

    fn assemble(self, workers: usize) -> Current {
        let Prepared { options: device, settled, policy, capacity } = self;
        let split = Arc::new(SplitControl::new(device.path.split, workers));
        split.set_policy(settled.policy.kind.has_depth());
        let tuning = Tuning::new(&settled.policy, workers);
        let flows: Vec<Option<FlowOptions>> = device.flows.into_iter().map(Some).collect();
        if let Some(tuning) = &tuning {
            tuning.set_goals(&flows::goals_of(&flows));
        }
        let shared = Arc::new(SharedDevice {
            device: device.device,
            running: Mutex::new(Running { policy: Arc::new(policy), tuning }),
            queue_depth: device.queue_depth,
            limits: capacity.limits.clone(),
            cost: device.cost,
            write_cost: device.path.follow_writes.then(|| Arc::new(WriteCost::new(device.cost, workers))),
            path: device.path,
            split,
            counters: (0..workers).map(|_| OnceLock::new()).collect(),
        });
        Current {
            name: device.name,
            policy: settled.policy,
            settled,
            flows,
            grouping: device.grouping,
            capacity,
            found: None,
            shared,
        }
    }
}

fn check(options: &EngineOptions) -> Result<(), String> {
    if !(1..=WORKERS_MAX).contains(&options.workers) {
        return Err(format!("{} workers are out of range, allowed is 1 to {WORKERS_MAX}", options.workers));
    }
    if options.devices.len() > usize::from(u16::MAX) {
        return Err(format!("{} devices are too many, allowed are 65535", options.devices.len()));
    }
    options.devices.iter().try_for_each(check_device)
}

fn check_device(device: &DeviceOptions) -> Result<(), String> {
    if device.queue_depth == 0 {
        return Err(format!("device {}: queue depth 0 is out of range, allowed is 1 to 65535", device.name));
    }
    if device.flows.is_empty() {
        return Err(format!("device {}: it has no flow, at least one is needed", device.name));
    }
    Ok(())
}
