//! Runs a scenario.
//!
//! Builds what [`blk's engine`](mqfq_blk_watched::worker) builds, a policy, a context and a worker for each hctx, on
//! virtual cores ([`crate::cores`]) and gives them clients. When nothing will happen any more the run is over; if a
//! request is still under way then, a wake-up was lost, and that is an error: each run is a test of work conservation
//! (I4) and of conservation of tokens (I1).

use crate::backlog::{Backlog, Wait};
use crate::client::{Given, Identity, Recorder, SimClient};
use crate::coherence::{Ps, ps};
use crate::connection::Connection;
use crate::cores::{self, Cores, Finished};
use crate::drive::{Drive, SimDevice};
use crate::host::{Common, VirtualHost};
use crate::machine::Distances;
use crate::outcome::{BacklogOutcome, DepthAt, GoalOutcome, Outcome, TenantOutcome, Together, WeightsOutcome};
use crate::rivals::{self, Inspect, PolicyVisitor};
use crate::scenario::{Arrival, Scenario, SocketOptions, Tenant};
use crate::socket::Socket;
use crate::timed::{Counted, Timed};
use crate::workload;
use mqfq_blk_watched::cap::{Cap, CapLimits, Capped, Caps};
use mqfq_blk_watched::client::Client;
use mqfq_blk_watched::counters::{self, FlowCounters};
use mqfq_blk_watched::device::{Device, QueueOptions};
use mqfq_blk_watched::hctx::{CLIENT_BYTES, HwCtx, HwCtxOptions};
use mqfq_blk_watched::path_options::PathOptions;
use mqfq_blk_watched::split::{AUTO_BYTES_MIN, Split, SplitControl};
use mqfq_blk_watched::stage::StageLimits;
use mqfq_blk_watched::stats::{FlowStats, HctxStats};
use mqfq_blk_watched::tuning::{Goal, GoalState, Goals, Tuning};
use mqfq_blk_watched::worker::{Worker, WorkerOptions};
use mqfq_blk_watched::{FlowId, HctxId, Weight};
use mqfq_blk_watched::{Group, GroupId, Tree};
use mqfq_blkmq_watched::{BlockLayer, DeviceQueues, MultiQueue, QueueMap};
use mqfq_sched_watched::policy::Policy;
use mqfq_sched_watched::write_cost::WriteCost;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Requests of an open loop or a trace that one thread may have staged before it is told to wait.
const STAGED_MAX: u32 = 1024;

/// Bytes that a connection sent at once before turns were bounded: with `intake = "round"`.
const ROUND_SEND_BYTES: u32 = 128 << 10;

/// Runs it.
///
/// # Errors
/// One sentence: options that no policy, device or load can be made of; or a wake-up that was lost.
pub fn run(scenario: &Scenario) -> Result<Outcome, String> {
    run_as(Run { scenario, is_counted: false }).map(|(outcome, _)| outcome)
}

/// Runs it, and keeps what the data path counted: what a server says of its tenants is made of that.
///
/// # Errors
/// As [`run`].
pub fn run_counted(scenario: &Scenario) -> Result<(Outcome, Counters), String> {
    run_as(Run { scenario, is_counted: true })
}

/// Counts of the data path over a whole run, warm-up included.
pub struct Counters {
    /// When the last worker ended, ns.
    pub end_ns: u64,
    /// By flow, over all workers.
    pub flows: Vec<FlowStats>,
    /// By flow, by worker: when it last completed something of the flow, ns; 0: never.
    pub last_ns: Vec<Vec<u64>>,
    /// By flow: for how long its cap on requests and its cap on bytes held it back, ns.
    pub held_ns: Vec<[u64; 2]>,
    /// By worker.
    pub hctxs: Vec<HctxStats>,
    /// By worker: time that it neither slept nor spun, ns.
    pub wanted_ns: Vec<u64>,
}

fn run_as(run: Run<'_>) -> Result<(Outcome, Counters), String> {
    let scenario = run.scenario;
    let distances = Distances::new(&scenario.machine);
    let weights: Vec<Weight> =
        scenario.tenants.iter().flat_map(|tenant| (0..tenant.count).map(|_| tenant.weight)).collect();
    let topology = distances.topology();
    let of_flow = scenario.tenants.iter().flat_map(|tenant| (0..tenant.count).map(|_| tenant.group)).collect();
    let tree = Tree { groups: scenario.groups.clone(), of_flow };
    rivals::with_policy_in_groups(&scenario.policy, &topology, &weights, &tree, run)?
}

struct Run<'a> {
    scenario: &'a Scenario,
    /// Flows are counted.
    is_counted: bool,
}

impl PolicyVisitor for Run<'_> {
    type Output = Result<(Outcome, Counters), String>;

    fn visit<P: Inspect + 'static>(self, policy: Arc<P>) -> Result<(Outcome, Counters), String> {
        let Run { scenario, is_counted } = self;
        let inside = policy.clone();
        let classes = scenario.tenants.iter().flat_map(|tenant| (0..tenant.count).map(|_| tenant.class));
        for (class, flow) in classes.zip(0..) {
            policy.set_class(FlowId(flow), class);
        }
        let layer = scenario.device.queues.layer;
        let workers = scenario.machine.workers;
        let end_ns = scenario.warm_up_ns + scenario.measured_ns;
        let counted = Counted { flows: scenario.flows() as usize, from_ns: scenario.warm_up_ns, to_ns: end_ns };
        let timed = Arc::new(Timed::new(policy, &scenario.machine.latency, layer, counted));
        let tuning = Tuning::new(&rivals::options(&scenario.policy, workers)?, workers);
        timed.watch(tuning.clone());
        let recorder = Rc::new(RefCell::new(Recorder {
            given: scenario.tenants.iter().map(|tenant| Given::new(tenant.count)).collect(),
            from_ns: scenario.warm_up_ns,
            to_ns: end_ns,
            window_ns: scenario.window_ns,
            tells_backlog: scenario.tells_backlog,
            in_flight: 0,
            failed: 0,
        }));
        let flows = scenario.tenants.iter().map(|tenant| tenant.count as usize).sum();
        let mut limits = vec![vec![StageLimits { requests_max: 0, bytes_max: u64::MAX }; flows]; workers];
        let mut clients: Vec<Vec<Box<dyn Client>>> = (0..workers).map(|_| Vec::new()).collect();
        // Nor is a request cut into fewer parts for want of places.
        let parts_max = match scenario.device.split {
            Split::Off => 1,
            Split::Bytes(bytes) => Split::BYTES_MAX / bytes,
            Split::Auto => Split::BYTES_MAX / AUTO_BYTES_MIN,
        };
        let control = Arc::new(SplitControl::new(scenario.device.split, workers));
        let send_bytes = if scenario.machine.intake_is_fair { CLIENT_BYTES } else { ROUND_SEND_BYTES };
        let mut sockets: Vec<Vec<Rc<RefCell<Socket>>>> = (0..workers).map(|_| Vec::new()).collect();
        let mut flow = 0;
        let mut caps_of_flow = Vec::new();
        for (index, tenant) in scenario.tenants.iter().enumerate() {
            for number in 0..tenant.count {
                let cap = Cap::new(tenant.caps);
                let caps = (tenant.caps != CapLimits::NONE).then(|| Caps::new(Cap::new(CapLimits::NONE), cap.clone()));
                caps_of_flow.push(cap);
                let sources = workload::sources(tenant, number, scenario.device.size_bytes, scenario.seed)?;
                for (thread, source) in sources.into_iter().enumerate() {
                    let worker = tenant.worker_of(number, thread as u32, workers);
                    let identity = Identity {
                        tenant: index,
                        number,
                        flow: FlowId(flow as u32),
                        start_ns: tenant.start_ns,
                        stop_ns: tenant.stop_ns.unwrap_or(end_ns).min(end_ns),
                        cpu_ns: tenant.load.cpu_ns,
                    };
                    let limits = &mut limits[worker][flow];
                    let Some(SocketOptions { buffer_bytes, network_ns }) = tenant.socket else {
                        limits.requests_max += staged_max(tenant, thread) * parts_max;
                        clients[worker].push(Box::new(SimClient::new(
                            identity,
                            source,
                            recorder.clone(),
                            caps.clone(),
                        )));
                        continue;
                    };
                    *limits = StageLimits::DEFAULT;
                    let socket = Socket::new(identity, source, recorder.clone(), buffer_bytes, network_ns);
                    let socket = Rc::new(RefCell::new(socket));
                    clients[worker].push(Box::new(Connection::new(
                        socket.clone(),
                        sockets[worker].len() as i32,
                        send_bytes,
                        caps.clone(),
                    )));
                    sockets[worker].push(socket);
                }
                flow += 1;
            }
        }
        let device = &scenario.device;
        // SQ spends the time of a dispatch under its lock; the others spend it before (`Timed`).
        let under_lock = if layer == BlockLayer::Sq { ps(scenario.machine.latency.dispatch_ns) } else { 0 };
        let info = SimDevice::new(device, under_lock);
        let topology = Distances::new(&scenario.machine).topology();
        // On a device without classes a direct policy has one queue like any other.
        let has_classes = timed.is_direct() && info.offers_class_queues();
        let map = match has_classes {
            true => QueueMap::of_sets(&device.queues, &topology, &info, device.queue_depth)?,
            false => QueueMap::new(&device.queues, &topology, &info, device.queue_depth)?,
        };
        let drive = match &device.preset {
            Some(_) => Drive::nvme(device, map.hardware_queues(), has_classes, scenario.seed, end_ns)?,
            None => Drive::null(),
        };
        let common = Common::new(workers, &scenario.machine.latency);
        let bells = common.bells.clone();
        let interrupt = Arc::new(move |hctx: HctxId| Common::kick(&bells, hctx.index()));
        let queues = DeviceQueues::open(&info, map, device.queue_depth, interrupt)?;
        let write_cost = device.follow_writes.then(|| Arc::new(WriteCost::new(device.cost, workers)));
        let goals = goals(scenario);
        let has_goals = !goals.goals.is_empty();
        let mut bodies: Vec<Box<dyn FnOnce() -> CoreResult>> = Vec::new();
        let has_sockets = scenario.tenants.iter().any(|tenant| tenant.socket.is_some());
        let fair_turns = has_sockets && scenario.machine.intake_is_fair;
        for (worker, ((limits, clients), sockets)) in limits.into_iter().zip(clients).zip(sockets).enumerate() {
            let hctx = HctxId(worker as u16);
            let queue = match queues.port(hctx, device.queue_depth) {
                Some(port) => port,
                None => {
                    // The cores are interrupted by `Drive` itself.
                    let options = QueueOptions { hctx, depth: device.queue_depth, interrupt: Arc::new(|_| {}) };
                    if has_classes { info.open_class_queues(options)? } else { info.open_queue(options)? }
                }
            };
            let context = HwCtx::new(HwCtxOptions {
                id: hctx,
                policy: timed.clone(),
                device: queue,
                queue_depth: device.queue_depth,
                limits,
                cost: device.cost,
                path: PathOptions {
                    plug: scenario.machine.latency.calls_max,
                    split: device.split,
                    ..PathOptions::TIMELESS
                },
            })
            .with_split(control.clone());
            let mut context = if is_counted || has_goals { context } else { context.without_flow_stats() };
            context.set_tuning(tuning.clone(), 0);
            let context = if has_classes { context.with_class_queues() } else { context };
            let context = match &write_cost {
                Some(cost) => context.with_write_cost(cost.clone()),
                None => context,
            };
            let context = if layer.is_bypass() { context.raw() } else { context };
            let latency = &scenario.machine.latency;
            let host = VirtualHost::new(worker, common.clone(), latency, scenario.policy.unthrottle, layer)
                .with_sockets(sockets)
                .with_stolen(scenario.machine.stolen, scenario.seed << 16 | worker as u64);
            let host = match queues.map().is_private() {
                true => host,
                false => host.with_news(info.interrupt_of(queues.map().hardware_of(hctx))),
            };
            let patience_ns = latency.patience_ns as u64;
            let options = WorkerOptions { patience_ns, ended_max: 64, fair_turns, ..WorkerOptions::default() };
            let described = info.info();
            bodies.push(Box::new(move || {
                let mut worker = Worker::new(host, vec![context], vec![described], options);
                clients.into_iter().for_each(|client| worker.adopt(client));
                worker.work();
                let (host, contexts) = worker.into_parts();
                let counters = contexts[0].counters().clone();
                CoreResult {
                    reschedules: host.reschedules(),
                    spun_ns: host.spun_ns(),
                    stats: contexts[0].stats(),
                    counters,
                }
            }));
        }
        if let Some(tuning) = tuning.as_ref().filter(|_| has_goals) {
            tuning.set_goals(&goals);
        }
        let idle = recorder.clone();
        let finished = cores::run(Cores::new(&scenario.machine, drive, scenario.seed), bodies, move || {
            match idle.borrow().in_flight {
                0 => Ok(()),
                left => Err(format!("{left} requests are under way and nothing will ever happen: a wake-up was lost")),
            }
        })?;
        if let Some(free) = inside.free_units()
            && let depth = inside.depth().unwrap_or(scenario.policy.depth)
            && free != i64::from(depth)
        {
            return Err(format!("{free} units of depth are left of {depth}: a token was lost or made"));
        }
        let recorder = recorder.borrow();
        if recorder.failed > 0 {
            return Err(format!("the device failed {} requests", recorder.failed));
        }
        let class_bytes = timed.class_bytes();
        let split = (scenario.device.split != Split::Off).then(|| control.state().to_string());
        let outcome = outcome(scenario, &recorder.given, &finished, &class_bytes, info.class_weights());
        let mut depths = timed.depths();
        if let Some(&DepthAt { depth, .. }) = depths.last() {
            depths.push(DepthAt { at_ns: end_ns, depth });
        }
        let counters = counters(&finished, if is_counted { &caps_of_flow } else { &[] });
        let goals = tuning.as_deref().map_or(Vec::new(), goals_at_end);
        Ok((Outcome { depths, found_windows: timed.windows(), split, goals, ..outcome }, counters))
    }
}

/// Goals of the tenants: each of several by the same name has it for itself.
fn goals(scenario: &Scenario) -> Goals {
    let flows = scenario.tenants.iter().flat_map(|tenant| (0..tenant.count).map(move |_| tenant));
    let with_goal = (0..).map(FlowId).zip(flows).filter(|(_, tenant)| tenant.goal_ns > 0);
    let goal = |(flow, tenant): (FlowId, &Tenant)| Goal {
        name: tenant.name.clone(),
        goal_ns: tenant.goal_ns,
        flows: vec![flow],
    };
    Goals { floor_thousandths: scenario.device.floor_thousandths, goals: with_goal.map(goal).collect() }
}

fn goals_at_end(tuning: &Tuning) -> Vec<GoalOutcome> {
    let Some(now) = tuning.goals() else { return Vec::new() };
    let goal = |(tenant, state): (String, GoalState)| GoalOutcome {
        tenant,
        goal_ns: state.goal_ns,
        fares: state.fares.name(),
        p90_ns: state.p90_ns,
        depth: state.depth,
        kept_thousandths: state.kept_thousandths,
        periods: state.periods,
        met: state.met,
        cap: now.cap,
    };
    now.goals.into_iter().map(goal).collect()
}

struct CoreResult {
    reschedules: u64,
    spun_ns: u64,
    stats: HctxStats,
    counters: Arc<counters::Counters>,
}

fn counters(finished: &Finished<CoreResult>, caps: &[Arc<Cap>]) -> Counters {
    let end_ns = finished.end / 1000;
    let held = |cap: &Arc<Cap>| [Capped::Iops, Capped::Bytes].map(|limit| cap.held_ns(limit, end_ns));
    let by_worker = |flow: FlowId| finished.results.iter().map(move |core| core.counters.flow(flow));
    let stats = |flow| {
        let mut sum = FlowStats::default();
        by_worker(flow).flatten().for_each(|counters| counters.read(&mut sum, true));
        sum
    };
    let last_ns = |flow| by_worker(flow).map(|counters| counters.map_or(0, FlowCounters::last_ns)).collect();
    let wanted = |(core, slept): (&CoreResult, &Ps)| end_ns.saturating_sub(slept / 1000 + core.spun_ns);
    let ids = || (0..caps.len() as u32).map(FlowId);
    Counters {
        end_ns,
        flows: ids().map(stats).collect(),
        last_ns: ids().map(last_ns).collect(),
        held_ns: caps.iter().map(held).collect(),
        hctxs: finished.results.iter().map(|core| core.stats).collect(),
        wanted_ns: finished.results.iter().zip(&finished.slept).map(wanted).collect(),
    }
}

/// Room for all that a client can have in flight: back-pressure would hide requests from the scheduler. Open loops and
/// traces without a depth have no such number, and meet the bound that a tenant's clients meet.
fn staged_max(tenant: &Tenant, client: usize) -> u32 {
    if let Some(background) = tenant.background.filter(|_| client == tenant.threads as usize) {
        return background.depth;
    }
    match tenant.load.arrival {
        Arrival::Closed { depth, .. } | Arrival::Phases { depth, .. } => depth,
        Arrival::Trace { depth, .. } => depth.unwrap_or(STAGED_MAX),
        Arrival::Chain { .. } => 1,
        Arrival::Open { .. } => STAGED_MAX,
    }
}

fn outcome(
    scenario: &Scenario,
    given: &[Given],
    finished: &Finished<CoreResult>,
    class_bytes: &[[u64; 3]],
    class_weights: Vec<WeightsOutcome>,
) -> Outcome {
    let measured_s = scenario.measured_ns as f64 * 1e-9;
    let all_s = finished.end as f64 * 1e-12;
    let mut tenants: Vec<TenantOutcome> =
        scenario.tenants.iter().zip(given).map(|(tenant, given)| tenant_outcome(tenant, given, measured_s)).collect();
    let bytes_per_s: f64 = tenants.iter().map(|tenant| tenant.bytes_per_s).sum();
    let requests_per_s: f64 = tenants.iter().map(|tenant| tenant.requests_per_s).sum();
    let parts = parts_by_weight(scenario);
    let mut class_bytes = class_bytes.iter();
    for ((tenant, outcome), part) in scenario.tenants.iter().zip(&mut tenants).zip(parts) {
        let (part, of) = part;
        outcome.ideal_bytes_per_s = bytes_per_s * part / of;
        for by_class in class_bytes.by_ref().take(tenant.count as usize) {
            outcome.class_bytes.iter_mut().zip(by_class).for_each(|(sum, bytes)| *sum += bytes);
        }
    }
    let cores = scenario.machine.workers as f64;
    let busy_share = 1.0 - finished.counts.slept as f64 / (finished.end as f64 * cores);
    let cpu_ns_per_s = busy_share * cores * 1e9;
    let sum = |of: fn(&CoreResult) -> u64| finished.results.iter().map(of).sum::<u64>() as f64 / all_s;
    Outcome {
        measured_ns: scenario.measured_ns,
        requests_per_s,
        bytes_per_s,
        together: together(given),
        tenants,
        events: finished.counts.events,
        kicks_per_s: finished.counts.kicks as f64 / all_s,
        policy_kicks_per_s: sum(|core| core.stats.kicks),
        reschedules_per_s: sum(|core| core.reschedules),
        throttled_per_s: sum(|core| core.stats.throttled),
        no_token_per_s: sum(|core| core.stats.no_token),
        busy_share,
        cpu_ns_per_request: (requests_per_s > 0.0).then(|| cpu_ns_per_s / requests_per_s),
        cpu_ns_per_kib: (bytes_per_s > 0.0).then(|| cpu_ns_per_s / (bytes_per_s / 1024.0)),
        memory: finished.memory,
        window_ns: scenario.window_ns,
        class_weights,
        depths: Vec::new(),
        split: None,
        found_windows: Vec::new(),
        backlog: scenario.tells_backlog.then(|| backlog(given, scenario.measured_ns)),
        goals: Vec::new(),
    }
}

/// Service while all tenants wait.
fn backlog(given: &[Given], measured_ns: u64) -> BacklogOutcome {
    let waits: Vec<&[Wait]> = given.iter().map(|given| &given.waits[..]).collect();
    let Backlog { total_ns, bytes } = Backlog::of(&waits);
    let all: u64 = bytes.iter().sum();
    let share = |&bytes: &u64| if all > 0 { bytes as f64 / all as f64 } else { 0.0 };
    BacklogOutcome { time_part: total_ns as f64 / measured_ns as f64, shares: bytes.iter().map(share).collect() }
}

/// Latencies of all tenants.
fn together(given: &[Given]) -> Together {
    let Some((first, others)) = given.split_first() else { return Together::default() };
    let mut all = first.total_ns.clone();
    others.iter().for_each(|one| all.add(&one.total_ns).expect("all have one range"));
    Together { p50_ns: all.value_at_quantile(0.5), p99_ns: all.value_at_quantile(0.99) }
}

/// Each tenant's part by weight, or by the weights of its groups and its own in them, if all compete; and of how much.
fn parts_by_weight(scenario: &Scenario) -> Vec<(f64, f64)> {
    let at = |group: GroupId| group.0 as usize;
    let own = |tenant: &Tenant| f64::from(tenant.weight.get()) * f64::from(tenant.count);
    // A group counts if it has a tenant.
    let mut is_used = vec![false; scenario.groups.len()];
    for tenant in &scenario.tenants {
        let mut group = tenant.group;
        while let Some(of) = group {
            is_used[at(of)] = true;
            group = scenario.groups[at(of)].parent;
        }
    }
    let inside = |parent: Option<GroupId>| {
        let tenants = scenario.tenants.iter().filter(|tenant| tenant.group == parent).map(own);
        let groups =
            scenario.groups.iter().zip(&is_used).filter(|(group, is_used)| group.parent == parent && **is_used);
        tenants.chain(groups.map(|(group, _)| f64::from(group.weight.get()))).sum::<f64>()
    };
    let top = inside(None);
    let of_groups: Vec<f64> = (0..).map(GroupId).zip(&scenario.groups).map(|(group, _)| inside(Some(group))).collect();
    let part = |tenant: &Tenant| {
        let (mut part, mut group) = (own(tenant), tenant.group);
        while let Some(of) = group {
            let Group { weight, parent } = scenario.groups[at(of)];
            part = part / of_groups[at(of)] * f64::from(weight.get());
            group = parent;
        }
        part
    };
    scenario.tenants.iter().map(|tenant| (part(tenant), top)).collect()
}

fn tenant_outcome(tenant: &Tenant, given: &Given, measured_s: f64) -> TenantOutcome {
    let bytes: u64 = given.bytes.iter().sum();
    let mean_bytes = bytes as f64 / f64::from(tenant.count);
    let deviation = |&bytes: &u64| if mean_bytes > 0.0 { (bytes as f64 / mean_bytes - 1.0).abs() } else { 0.0 };
    TenantOutcome {
        name: tenant.name.clone(),
        weight: tenant.weight.get().into(),
        requests: given.requests,
        bytes,
        requests_per_s: given.requests as f64 / measured_s,
        bytes_per_s: bytes as f64 / measured_s,
        mean_ns: if given.requests > 0 { given.total_ns_sum as f64 / given.requests as f64 } else { 0.0 },
        p50_ns: given.total_ns.value_at_quantile(0.5),
        p90_ns: given.total_ns.value_at_quantile(0.9),
        p99_ns: given.total_ns.value_at_quantile(0.99),
        p99_9_ns: given.total_ns.value_at_quantile(0.999),
        p99_99_ns: given.total_ns.value_at_quantile(0.9999),
        max_ns: given.total_ns.max(),
        // `outcome` sets it from all tenants together.
        ideal_bytes_per_s: 0.0,
        class_bytes: [0; 3],
        windows: given.windows.clone(),
        share_deviation_max: given.bytes.iter().map(deviation).fold(0.0, f64::max),
    }
}
