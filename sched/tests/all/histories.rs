//! Generated histories: workers that sleep and run only when something wakes them, in any order, held against the
//! oracle at every step. Three questions: does MQFQ do what the oracle admits, does anything ever stand still (I4), and
//! does any interval of any history break the bound (I6)?

use crate::bench_top;
use bench_top::*;
use mqfq_policies::{MQFQ_SERIAL, SFQD};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_testing::random::{Random, for_seeds};
use std::collections::{BTreeSet, VecDeque};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A machine, some tenants and options, none of them usual.
fn random_env(rng: &mut Random, kind: PolicyKind) -> Env {
    random_env_of(rng, kind, false)
}

/// As [`random_env`], with a D that is changed while it runs if `depth_auto`.
fn random_env_of(rng: &mut Random, kind: PolicyKind, depth_auto: bool) -> Env {
    let topology = match rng.index(5) {
        0 => Topology::flat(1),
        1 => Topology::flat(2),
        2 => Topology::new(2, 1, 2),
        3 => Topology::new(2, 2, 2),
        _ => Topology::flat(11),
    };
    let mut tenants = Vec::new();
    for name in &NAMES[..1 + rng.index(6)] {
        let mut hctxs: Vec<u16> = (0..topology.hctx_count() as u16).filter(|_| rng.chance(2)).collect();
        if hctxs.is_empty() {
            hctxs.push(rng.index(topology.hctx_count()) as u16);
        }
        let weight = rng.of(&[1, 7, 50, 100, 100, 300, 10_000]);
        let request_bytes = rng.of(&[1, 512, 4 * KIB, 4 * KIB, 20_001, 64 * KIB]);
        tenants.push(tenant(name, weight, request_bytes, &hctxs));
    }
    let options = PolicyOptions {
        kind,
        depth_auto,
        depth: rng.of(&[1, 2, 3, 16, 40]),
        window: rng.of(&[VSpan(0), VSpan(1), VSpan(100), VSpan::from_bytes(4 * KIB), VSpan::from_bytes(64 * KIB)]),
        token_unit_bytes: rng.of(&[None, None, Some(4096), Some(512)]),
        start: VTime::from_raw(rng.of(&[0, u64::MAX, u64::MAX - (1 << 32), (1 << 63) - (1 << 30), 12345])),
        ..PolicyOptions::new(kind)
    };
    let options = random_form(rng, options, topology.hctx_count());
    let device_depth = rng.of(&[usize::MAX, usize::MAX, 1, 3]);
    Env::new(options, &topology, &tenants).device_depth(device_depth)
}

/// The paper's form, the relaxed form with its default numbers, or with any that are allowed.
fn random_form(rng: &mut Random, options: PolicyOptions, hctx_count: usize) -> PolicyOptions {
    let half = options.window.0 / 2;
    match rng.index(3) {
        0 => options,
        1 => options.relaxed(hctx_count),
        _ => PolicyOptions {
            quantum: VSpan(if half == 0 { 0 } else { 1 << rng.index(half.ilog2() as usize + 1) }),
            lease: VSpan((rng.next_u64() % (half + 1)) & !63),
            token_batch: rng.of(&[1, 2, 5, 32]),
            token_share: rng.of(&[0, 1, 3]),
            ..options
        },
    }
}

/// As [`random_env`], with a T that changes, from `least` up to 128 times as much, in the paper's form and in the
/// relaxed one; half of them with a D that changes, too.
fn random_env_of_windows(rng: &mut Random, kind: PolicyKind) -> Env {
    let depth_auto = rng.chance(2);
    let env = random_env_of(rng, kind, depth_auto);
    let hctxs = env.queues.len();
    let least = VSpan(rng.of(&[128, 4096, 1 << 20, 1 << 23]));
    let options = PolicyOptions {
        window: VSpan(least.0 << rng.index(8)),
        window_least: Some(least),
        token_unit_bytes: env.options.token_unit_bytes,
        depth: env.options.depth,
        depth_auto,
        start: env.options.start,
        ..PolicyOptions::new(kind)
    };
    // The lease of 11 queues is not a grain for the smallest of these windows.
    let is_relaxed = least.0 > 4096 && rng.chance(2);
    let options = if is_relaxed { options.relaxed(hctxs) } else { options };
    let topology = if hctxs == 4 { Topology::new(2, 1, 2) } else { Topology::flat(hctxs) };
    Env::new(options, &topology, &env.tenants).device_depth(rng.of(&[usize::MAX, usize::MAX, 1, 3]))
}

/// Workers that are awake: kicked, or with something to do of their own.
#[derive(Default)]
struct Awake(BTreeSet<HctxId>);

impl Awake {
    fn wake(&mut self, hctx: HctxId) {
        self.0.insert(hctx);
    }

    /// One step of one worker that is awake: it picks once, and sleeps if there was nothing, or pauses if its device
    /// queue is full.
    fn step(&mut self, env: &mut Env, rng: &mut Random) {
        self.0.append(&mut env.kicked);
        let awake: Vec<HctxId> = self.0.iter().copied().collect();
        if awake.is_empty() {
            return;
        }
        let hctx = rng.of(&awake);
        if !env.has_room(hctx) {
            env.pause(hctx);
            self.0.remove(&hctx);
        } else if !env.pick(hctx) {
            self.0.remove(&hctx);
        }
        self.0.append(&mut env.kicked);
    }

    /// Lets them all go to sleep, in any order, and sees that none has left anything undone.
    fn settle(&mut self, env: &mut Env, rng: &mut Random) {
        let mut steps = 0;
        while !self.0.is_empty() || !env.kicked.is_empty() {
            self.step(env, rng);
            steps += 1;
            // Each step dispatches, or puts a worker to sleep; a sleeper is woken by a token or a turn of the wheel.
            assert!(steps < 5000, "workers kick each other without end");
        }
        assert_no_one_could_work(env);
    }
}

/// I4. With every worker asleep, nothing is staged or no token is free. (The queue with the smallest start tag may
/// always go, so "staged and unthrottled" is "staged".) A worker whose device queue is full is excused, and then so are
/// workers that wait for virtual time, which it holds back.
fn assert_no_one_could_work(env: &Env) {
    let Some(free) = env.policy.free_units() else { return };
    if free <= 0 {
        return;
    }
    let workers = || (0..env.queues.len()).map(|n| HctxId(n as u16));
    if workers().all(|hctx| env.has_room(hctx)) {
        assert_eq!(env.staged(), 0, "{free} tokens are free and requests are staged, yet everybody sleeps");
    }
    if env.options.kind != SFQD {
        // The wheel wakes late by at most T/8, or by 63 units; where T changes, by half of the smallest.
        let late = env.options.window_least.map_or(env.options.window.0 / 8, |least| least.0 / 2);
        let window = env.options.window.0 - late;
        let due = |hctx: &HctxId| {
            let lead = env.oracle.lead(*hctx);
            lead.is_some_and(|lead| lead.start_tag <= env.oracle.global_vtime() + u128::from(window))
        };
        let stuck = workers().filter(|&hctx| env.has_room(hctx)).find(due);
        assert_eq!(stuck, None, "{free} tokens are free");
    }
}

/// Submissions, completions in any order, picks of awake workers, changes of weights, and of T where it may change.
fn random_history(env: &mut Env, rng: &mut Random, steps: usize, change_weights: bool) {
    let mut awake = Awake::default();
    let (submit, complete) = (1 + rng.index(5), 1 + rng.index(5));
    for _ in 0..steps {
        match rng.index(submit + complete + 4) {
            n if n < submit => {
                let flow = rng.index(env.tenants.len());
                let hctx = HctxId(rng.of(&env.tenants[flow].hctxs));
                if env.staged_at(hctx) < 60 {
                    env.submit(FlowId(flow as u32), hctx);
                    awake.wake(hctx);
                }
            }
            n if n < submit + complete => {
                if env.in_flight() > 0 {
                    let position = rng.index(env.in_flight());
                    awake.wake(env.complete_at(position));
                }
            }
            _ => awake.step(env, rng),
        }
        if rng.chance(40) {
            awake.settle(env, rng);
        }
        if env.options.depth_auto && rng.chance(30) {
            let hctx = HctxId(rng.index(env.queues.len()) as u16);
            env.set_depth(hctx, rng.of(&[1, 2, 3, 16, 40, 200]));
            awake.wake(hctx);
        }
        if change_weights && rng.chance(50) {
            let name = NAMES[rng.index(env.tenants.len())];
            env.set_weight(name, rng.of(&[1, 33, 100, 900, 10_000]));
        }
        if let Some(least) = env.options.window_least
            && rng.chance(20)
        {
            env.set_window(VSpan(least.0 << rng.index(8)));
            awake.wake(HctxId(rng.index(env.queues.len()) as u16));
        }
    }
    awake.settle(env, rng);
    // From here on only the device acts. Everything must come out.
    while env.in_flight() > 0 {
        let position = rng.index(env.in_flight());
        awake.wake(env.complete_at(position));
        awake.settle(env, rng);
    }
    assert_eq!(env.staged(), 0, "requests are staged, the device is empty, and everybody sleeps");
}

/// One history: a machine, options and tenants, then steps, all drawn from `seed`. Returns the number of steps.
fn history_of(seed: u64) -> u64 {
    let rng = &mut Random::new(seed);
    let kind = rng.of(&[PolicyKind::Mqfq, PolicyKind::Mqfq, PolicyKind::Mqfq, MQFQ_SERIAL, SFQD]);
    let mut env = random_env(rng, kind);
    let steps = rng.of(&[50, 500, 5000]);
    random_history(&mut env, rng, steps, true);
    env.steps
}

/// Histories from `first_seed` on, until they have made `steps` steps. Says which seed failed.
fn histories(first_seed: u64, steps: u64, mut progress: impl FnMut(u64, u64)) -> (u64, u64) {
    let (mut seed, mut made) = (first_seed, 0);
    while made < steps {
        match std::panic::catch_unwind(|| history_of(seed)) {
            Ok(of_this) => made += of_this,
            Err(panic) => {
                eprintln!("the failing seed is {seed}: cargo xtask histories --seed {seed} --steps 1 runs it alone");
                std::panic::resume_unwind(panic);
            }
        }
        seed += 1;
        progress(seed, made);
    }
    (seed - first_seed, made)
}

#[test]
fn three_million_steps_are_what_the_oracle_admits() {
    // Unoptimised, a step takes some ten times as long.
    let steps = if cfg!(debug_assertions) { 300_000 } else { 3_000_000 };
    let (count, made) = histories(1, steps, |_, _| ());
    println!("{count} histories, {made} steps");
    assert!(made >= steps);
}

#[test]
#[ignore = "takes as long as it is asked to: cargo xtask histories"]
fn as_many_steps_as_asked_for() {
    let asked = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (steps, first_seed) = (asked("MQFQ_HISTORY_STEPS", 10_000_000), asked("MQFQ_HISTORY_SEED", 1));
    let mut told = 0;
    let (count, made) = histories(first_seed, steps, |seed, made| {
        if made / (steps / 10).max(1) > told {
            told = made / (steps / 10).max(1);
            println!("seeds {first_seed} to {}: {made} steps", seed - 1);
        }
    });
    println!("{count} histories, seeds {first_seed} to {}, {made} steps", first_seed + count - 1);
}

#[test]
fn mqfq_does_what_the_oracle_admits_and_never_stands_still() {
    for_seeds(600, |rng| {
        let mut env = random_env(rng, PolicyKind::Mqfq);
        random_history(&mut env, rng, 400, true);
    });
}

#[test]
fn with_a_depth_that_changes_nothing_stands_still_and_no_interval_breaks_the_bound() {
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL, SFQD] {
        for_seeds(if kind == PolicyKind::Mqfq { 300 } else { 50 }, |rng| {
            let mut env = random_env_of(rng, kind, true);
            if kind != SFQD {
                env.record();
            }
            random_history(&mut env, rng, 500, false);
            if kind != SFQD {
                assert_bounds(&env);
            }
        });
    }
}

#[test]
fn with_a_window_that_changes_too() {
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL] {
        for_seeds(if kind == PolicyKind::Mqfq { 250 } else { 30 }, |rng| {
            let mut env = random_env_of_windows(rng, kind);
            random_history(&mut env, rng, 400, true);
        });
    }
}

#[test]
fn sfqd_never_stands_still() {
    for_seeds(100, |rng| {
        let mut env = random_env(rng, SFQD);
        random_history(&mut env, rng, 400, true);
    });
}

/// Goyal, Vin and Cheng's tags, D requests at once (Jin, Chase and Kaur): virtual time is the start tag of the last one
/// that went, and the largest finish tag once the device is idle and nothing is staged.
#[test]
fn sfqd_is_start_time_fair_queueing_with_a_depth() {
    for_seeds(60, |rng| {
        let weights = [100, 50, 200, 400];
        let depth = rng.of(&[1u32, 2, 5]);
        let tenants: Vec<Tenant> = (0..4).map(|n| tenant(NAMES[n], weights[n], 4 * KIB, &[0])).collect();
        let mut env = Env::flat(PolicyOptions { depth, ..PolicyOptions::new(SFQD) }, &tenants);
        // Tags in bytes at the default weight; by flow, the start tags of what is staged.
        let (mut vtime, mut finish, mut staged) = (0u64, [0u64; 4], [const { VecDeque::new() }; 4]);
        for _ in 0..500 {
            let is_staged = staged.iter().any(|of: &VecDeque<u64>| !of.is_empty());
            match rng.below(4) {
                0 if env.staged() < 12 => {
                    let (flow, blocks) = (rng.index(4), rng.between(1, 16));
                    env.submit_cost(FlowId(flow as u32), HctxId(0), Cost(blocks * 4 * KIB));
                    let start = finish[flow].max(vtime);
                    staged[flow].push_back(start);
                    finish[flow] = start + blocks * 4 * KIB * 100 / weights[flow];
                }
                1 | 2 if env.in_flight() > 0 => {
                    env.complete_at(rng.index(env.in_flight()));
                    if env.in_flight() == 0 && !is_staged {
                        vtime = finish.into_iter().fold(vtime, u64::max);
                    }
                }
                _ => {
                    let goes = is_staged && env.in_flight() < depth as usize;
                    assert_eq!(env.pick(HctxId(0)), goes);
                    if goes {
                        let least = staged.iter().filter_map(VecDeque::front).min().copied();
                        let flow = env.log.last().expect("one went").flow.0 as usize;
                        assert_eq!(staged[flow].pop_front(), least, "flow {flow} is not the first");
                        vtime = vtime.max(least.expect("one is staged"));
                    }
                }
            }
            assert_eq!(env.policy.global_vtime(), Some(VTime::from_raw(vtime * 1024)));
        }
    });
}

#[test]
fn serial_mqfq_makes_the_same_history() {
    for_seeds(50, |rng| {
        let seed = rng.next_u64();
        let run = |kind| {
            let rng = &mut Random::new(seed);
            let mut env = random_env(rng, kind);
            random_history(&mut env, rng, 300, true);
            (env.log.clone(), env.kicks_sent)
        };
        assert_eq!(run(PolicyKind::Mqfq), run(MQFQ_SERIAL));
    });
}

#[test]
fn on_one_queue_without_a_window_the_order_is_the_oracles() {
    // One hctx leaves no choice of queue, so the oracle can predict each dispatch instead of only admitting it: the
    // order of (start tag, arrival). `sfqd` with D = 1 is the same algorithm there, as long as its virtual time, the
    // tag of the last dispatch, is also the smallest staged: both queues are kept full from the start.
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL, SFQD] {
        for_seeds(50, |rng| {
            let start = VTime::from_raw(rng.of(&[0, u64::MAX - (1 << 26)]));
            let options = PolicyOptions { kind, start, ..mqfq(1, 0) };
            let tenants: Vec<Tenant> = (0..4)
                .map(|n| tenant(NAMES[n], rng.of(&[1, 100, 333, 10_000]), rng.of(&[512, 4 * KIB, 9999]), &[0]))
                .collect();
            let mut model = Env::flat(PolicyOptions { kind: PolicyKind::Mqfq, ..options }, &tenants).oracle.clone();
            let mut env = Env::flat(options, &tenants);
            let hctx = HctxId(0);
            let mut next = 0;
            let mut submit = |env: &mut Env, model: &mut mqfq_testing::oracle::Oracle, flow: usize| {
                let cost = mqfq_sched::cost::Cost(tenants[flow].request_bytes);
                let handle = mqfq_sched::policy::Handle(next);
                next += 1;
                let flow = FlowId(flow as u32);
                model.submit(hctx, mqfq_sched::policy::Entry::read(flow, cost, handle));
                env.submit(flow, hctx);
            };
            for n in 0..12 {
                submit(&mut env, &mut model, n % 4);
            }
            for _ in 0..200 {
                let expected = model.dispatch(hctx).expect("D = 1 and nothing in flight");
                assert!(env.pick(hctx));
                assert_eq!(env.log.last().map(|last| last.handle), Some(expected.handle));
                submit(&mut env, &mut model, expected.flow.0 as usize);
                env.complete_at(0);
                model.complete(expected.units);
            }
            env.drain();
        });
    }
}

/// Over every interval throughout which both tenants were backlogged, the most by which the difference of their service
/// over weight is larger than what T allows; all in bytes times 100 and the product of the weights.
///
/// From moment i to moment j that is `|x_j - x_i| - (t_i + t_j)` with `x = A r_b - B r_a` and t how far ahead of
/// virtual time a dispatched request can start. So the largest over all i and j is the largest `x - t` less the
/// smallest `x + t`.
fn largest_unfairness(env: &Env, a: usize, b: usize, service: impl Fn(&Moment) -> &Vec<u64>) -> i128 {
    let (weight_a, weight_b) = (i128::from(env.tenants[a].weight), i128::from(env.tenants[b].weight));
    let mut largest = i128::MIN;
    let mut range: Option<(i128, i128)> = None;
    for moment in env.history.as_ref().expect("recorded") {
        if !(moment.backlogged[a] && moment.backlogged[b]) {
            range = None;
            continue;
        }
        let x = 100 * (i128::from(service(moment)[a]) * weight_b - i128::from(service(moment)[b]) * weight_a);
        // In bytes at weight 100, rounded up, and a byte for the grain of tags.
        let ahead = (moment.ahead_units.div_ceil(1024) as i128 + 1) * weight_a * weight_b;
        let (low, high) = range.unwrap_or((i128::MAX, i128::MIN));
        let (low, high) = (low.min(x + ahead), high.max(x - ahead));
        range = Some((low, high));
        largest = largest.max(high - low);
    }
    largest
}

/// I6 over every interval of the history, for every pair of tenants, in integers times 100 r_a r_b.
fn assert_bounds(env: &Env) {
    // The largest D in the interval.
    let depth = i128::from(env.depth_max);
    let largest_units = |n: usize| i128::from(env.options.units(mqfq_sched::cost::Cost(env.tenants[n].request_bytes)));
    let units_max = (0..env.tenants.len()).map(largest_units).max().unwrap_or(1);
    for a in 0..env.tenants.len() {
        for b in 0..a {
            let (weight_a, weight_b) = (i128::from(env.tenants[a].weight), i128::from(env.tenants[b].weight));
            let (length_a, length_b) = (env.tenants[a].request_bytes.into(), env.tenants[b].request_bytes.into());
            let over_weight = |a: i128, b: i128| 100 * (a * weight_b + b * weight_a);
            // The lease of each queue of a flow that has several (`flow/account.rs`, L2).
            let queues = |n: usize| match env.tenants[n].hctxs.len() {
                1 => 0,
                several => several as i128,
            };
            let lease = i128::from(env.lease_max.0.div_ceil(1024)) * weight_a * weight_b;
            let leases = (queues(a) + queues(b)) * lease;
            // Beyond 2T, which `largest_unfairness` has taken off.
            let dispatched = leases + over_weight(length_a, length_b);
            // Bound of what is on the device: D requests, or D + u - 1 units. A request takes ceil(length / unit)
            // units.
            let on_device = |n: usize, length: i128| match env.options.token_unit_bytes {
                None => depth * length,
                Some(_) => ((depth + units_max - 1) / largest_units(n)).min(depth) * length,
            };
            let completed = dispatched + over_weight(on_device(a, length_a), on_device(b, length_b));
            let names = (env.tenants[a].name, env.tenants[b].name);
            let found = largest_unfairness(env, a, b, |moment| &moment.dispatched_bytes);
            assert!(
                found <= dispatched,
                "{names:?}: dispatched differs by {found} more than T allows, not {dispatched}"
            );
            let found = largest_unfairness(env, a, b, |moment| &moment.completed_bytes);
            assert!(found <= completed, "{names:?}: completed differs by {found} more than T allows, not {completed}");
            if env.options.token_unit_bytes.is_none() {
                // The paper's Theorem 2 (and Theorem 1 for D = 1, less one request each) follows.
                let theorem = (depth + 1) * over_weight(length_a, length_b);
                assert!(completed - leases <= theorem);
            }
        }
    }
}

#[test]
fn i6_no_interval_is_more_unfair_than_the_bound() {
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL] {
        for_seeds(400, |rng| {
            let mut env = random_env(rng, kind);
            env.record();
            // Tenants are backlogged for stretches of different length, so that intervals of all kinds come up.
            for _ in 0..6 {
                for name in &NAMES[..env.tenants.len()] {
                    let backlog = rng.of(&[0, 2, 2, 3]);
                    env.set_backlog(name, backlog);
                }
                for _ in 0..rng.index(120) {
                    if env.in_flight() == 0 {
                        break;
                    }
                    let position = rng.index(env.in_flight());
                    let hctx = env.complete_at(position);
                    env.run(hctx);
                    env.run_kicked();
                }
            }
            env.drain();
            assert_bounds(&env);
        });
    }
}

#[test]
fn i6_holds_under_any_interleaving_of_workers() {
    for_seeds(400, |rng| {
        let mut env = random_env(rng, PolicyKind::Mqfq);
        env.record();
        random_history(&mut env, rng, 600, false);
        assert_bounds(&env);
    });
}

#[test]
fn i6_holds_while_the_window_changes() {
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL] {
        for_seeds(if kind == PolicyKind::Mqfq { 250 } else { 30 }, |rng| {
            let mut env = random_env_of_windows(rng, kind);
            env.record();
            random_history(&mut env, rng, 600, false);
            assert_bounds(&env);
        });
    }
}

#[test]
fn i6_the_bound_would_notice_an_unfair_scheduler() {
    // This measure applied to `none`: 64 KiB against 4 KiB requests, one each in turn, 300 rounds. If it passed, the
    // bound would be too loose to say anything.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 64 * KIB, &[1])];
    let mut env = Env::flat(PolicyOptions::new(PolicyKind::None), &tenants).device_depth(4);
    env.record().keep_backlogged(3).dispatch(600);
    let bound = 100 * 100 * (2 * 64 + (64 + 1) * (4 + 64)) * KIB as i128;
    assert!(largest_unfairness(&env, 0, 1, |moment| &moment.dispatched_bytes) > bound);
    env.drain();
}
