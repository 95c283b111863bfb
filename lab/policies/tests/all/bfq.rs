//! Known behaviour of bfq, the bad included: exact shares if it may wait, the device for one queue at a time, a wait
//! after each queue that runs dry, and the cost of all that. In virtual time, on a device with latency and parallelism.

use crate::closed_loop;

use closed_loop::{Env, MS, Options, S, Tenant, US, ratio};
use mqfq_policies::{BFQ, Bfq, BfqOptions};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, Entry, Handle, OwnOptions, Pick, Policy, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_testing::Random;

const KIB: u64 = 1 << 10;

/// Bfq's defaults without weight raising, and with budgets of at most 128 KiB: a turn is 32 requests of 4 KiB.
const EXACT: BfqOptions = BfqOptions { low_latency: false, max_budget_bytes: 128 * KIB, ..BfqOptions::DEFAULT };

fn env(bfq: BfqOptions, tenants: &[Tenant]) -> Env {
    Env::new(Options { bfq, ..Options::default() }, tenants)
}

fn bfq(env: &Env) -> &Bfq {
    env.rig.policy.downcast_ref().expect("the policy is bfq")
}

#[test]
fn weights_are_exact_within_two_turns_each() {
    // One and four requests at a time, small and large ones: what each got over its weight differs by no more than two
    // turns' each.
    let turn_bytes = |tenant: &Tenant| (128 * KIB).max(u64::from(tenant.bytes)) as f64;
    for weights in [[1, 2, 3], [100, 1000, 100], [1, 10, 100]] {
        for (depths, sizes) in [([1; 3], [4; 3]), ([1, 4, 32], [4; 3]), ([4; 3], [4, 64, 16]), ([1; 3], [4, 256, 16])] {
            let tenants: Vec<Tenant> = (0..3)
                .map(|n| Tenant {
                    weight: weights[n],
                    depth: depths[n],
                    bytes: (sizes[n] * KIB) as u32,
                    ..Tenant::at(n as u16)
                })
                .collect();
            let mut env = env(EXACT, &tenants);
            env.run_until(S);
            for a in 0..3 {
                for b in 0..a {
                    let of = |n: usize| env.bytes(n) as f64 / weights[n] as f64;
                    let allowed =
                        [a, b].iter().map(|&n| 2.0 * turn_bytes(&tenants[n]) / weights[n] as f64).sum::<f64>();
                    assert!(
                        (of(a) - of(b)).abs() <= allowed,
                        "weights {weights:?}, depths {depths:?}, KiB {sizes:?}: tenants {a} and {b} got {} and {} bytes",
                        env.bytes(a),
                        env.bytes(b)
                    );
                }
            }
            assert!(env.bytes(0) > 1 << 18, "the lightest got {} bytes, the bound says nothing", env.bytes(0));
        }
    }
}

#[test]
fn without_waiting_the_weights_of_shallow_tenants_are_lost() {
    // One request at a time each, 1:10. A tenant with none staged when the other's is done has lost its turn, so they
    // alternate.
    let tenants = [Tenant { weight: 100, ..Tenant::at(0) }, Tenant { weight: 1000, ..Tenant::at(1) }];
    let shares = |slice_idle_ns| {
        let mut env = env(BfqOptions { slice_idle_ns, ..EXACT }, &tenants);
        env.run_until(2 * S);
        ratio(env.bytes(1), env.bytes(0))
    };
    assert!((9.5..10.5).contains(&shares(8 * MS)), "{}", shares(8 * MS));
    assert!((0.9..1.1).contains(&shares(0)), "{}", shares(0));
}

#[test]
fn a_second_group_makes_32_threads_as_slow_as_one() {
    // 32 threads with one request each on a device that takes 32 at once, and a second tenant with one. Alone they are
    // all on the device at once. Beside it each is waited for in turn, and the device has one request at a time.
    let many = Tenant { hctxs: (0..32).collect(), ..Tenant::at(0) };
    let other = Tenant::at(32);
    let requests = |slice_idle_ns, tenants: &[Tenant]| {
        let mut env = env(BfqOptions { slice_idle_ns, ..EXACT }, tenants);
        env.run_until(500 * MS);
        (0..tenants.len()).map(|tenant| env.requests(tenant)).sum::<u64>()
    };
    let alone = requests(8 * MS, std::slice::from_ref(&many));
    let one = requests(8 * MS, std::slice::from_ref(&other));
    let beside = requests(8 * MS, &[many.clone(), other.clone()]);
    let no_waiting = requests(0, &[many, other]);
    assert!((31.0..33.0).contains(&ratio(alone, one)), "{alone} requests of 32 threads alone, {one} of one");
    assert!((0.9..1.1).contains(&ratio(beside, one)), "{beside} requests beside another group, {one} of one thread");
    assert!(ratio(no_waiting, one) > 25.0, "{no_waiting} requests without waiting, {one} of one thread");
}

#[test]
fn one_group_alone_is_never_waited_for() {
    // Two processes of one tenant, the second with a pause after each request that is shorter than slice-idle.
    let pausing = Tenant { hctxs: vec![0, 1], think_ns: MS, ..Tenant::at(0) };
    let mut env = env(EXACT, &[pausing]);
    env.run_until(S);
    assert_eq!(env.laters, 0);
    // A second group, and it does.
    let mut env = self::env(EXACT, &[Tenant { think_ns: MS, ..Tenant::at(0) }, Tenant::at(1)]);
    env.run_until(S);
    assert!(env.laters > 100, "{} waits", env.laters);
}

#[test]
fn who_thinks_for_longer_than_slice_idle_is_not_waited_for() {
    // It asks once in 20 ms; after a few times the device no longer stands still for 8 of them.
    let slow = Tenant { think_ns: 20 * MS, ..Tenant::at(0) };
    let mut env = env(EXACT, &[slow, Tenant::at(1)]);
    env.run_until(S);
    let before = env.requests(1);
    env.run_until(3 * S);
    // 100 us each: 20000 in two seconds, less the 100 of the slow one.
    assert!(env.requests(1) - before > 19_500, "{} requests in 2 s", env.requests(1) - before);
}

#[test]
fn a_turn_is_as_many_requests_as_fit_its_budget_the_last_to_the_byte() {
    // Nothing completes and no time passes, so budgets alone end turns. Two thirds of 128 KiB at first: 21 of 4 KiB;
    // a queue that used up what it had gets all of it next time, which is 32 exactly.
    let options = PolicyOptions { depth: 1000, own: OwnOptions::of(&EXACT), ..PolicyOptions::new(BFQ) };
    let policy = AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT; 2]).unwrap();
    let mut queue = policy.open_queue(HctxId(0), 400);
    let mut kick = |_: HctxId| panic!("nobody else is there");
    for handle in 0..400 {
        policy.submit(&mut queue, Entry::read(FlowId(handle % 2), Cost(4096), Handle(handle)), 0, &mut kick);
    }
    let mut turns: Vec<(u32, u32)> = Vec::new();
    for _ in 0..21 + 21 + 4 * 32 {
        let Pick::Dispatch(grant) = policy.pick(&mut queue, 0, &mut kick) else { panic!("there is more to dispatch") };
        grant.token.into_units();
        match turns.last_mut() {
            Some((flow, requests)) if *flow == grant.flow.0 => *requests += 1,
            _ => turns.push((grant.flow.0, 1)),
        }
    }
    assert_eq!(turns, [(0, 21), (1, 21), (0, 32), (1, 32), (0, 32), (1, 32)]);
}

#[test]
fn a_turn_ends_at_the_timeout_however_large_the_budget() {
    // Budgets that would last for seconds: each has the device for 125 ms, and not much more or less.
    let options = BfqOptions { max_budget_bytes: 1 << 40, low_latency: false, ..BfqOptions::DEFAULT };
    let mut env = env(options, &[Tenant { depth: 4, ..Tenant::at(0) }, Tenant { depth: 4, ..Tenant::at(1) }]);
    env.run_until(2 * S + 500 * MS);
    let longest = env.longest_run_ns();
    assert!((124 * MS..126 * MS).contains(&longest), "{longest} ns");
    // 20 turns of 125 ms, 10 each.
    assert!((0.9..1.1).contains(&ratio(env.bytes(0), env.bytes(1))));
}

#[test]
fn what_nobody_waits_for_is_charged_three_times() {
    let writer = Tenant { depth: 32, is_sync: false, ..Tenant::at(0) };
    let mut env = env(EXACT, &[writer, Tenant { depth: 32, ..Tenant::at(1) }]);
    env.run_until(S);
    let reads = ratio(env.bytes(1), env.bytes(0));
    assert!((2.9..3.1).contains(&reads), "{reads} bytes read for one written");
}

#[test]
fn async_requests_take_at_most_half_of_the_device_and_less_beside_a_raised_flow() {
    let writer = Tenant { depth: 64, is_sync: false, ..Tenant::at(0) };
    let mut env = self::env(EXACT, std::slice::from_ref(&writer));
    env.run_until(S);
    assert_eq!(env.most_in_flight, 16);
    // D = 32: 6 while the writer's own weight is raised, the first 3 s of it.
    let mut env = self::env(BfqOptions { low_latency: true, ..EXACT }, &[writer]);
    env.run_until(S);
    assert_eq!(env.most_in_flight, 6);
    env.run_until(4 * S);
    assert_eq!(env.most_in_flight, 16);
}

#[test]
fn classes_are_strict_and_the_idle_class_does_not_starve() {
    let tenant = |class, hctx| Tenant { class, depth: 8, ..Tenant::at(hctx) };
    let tenants = [PriorityClass::RealTime, PriorityClass::BestEffort, PriorityClass::Idle];
    let tenants: Vec<Tenant> = tenants.iter().zip(0..).map(|(&class, hctx)| tenant(class, hctx)).collect();
    let mut env = env(EXACT, &tenants);
    env.run_until(2 * S);
    // Best effort gets only requests from before the first real-time one.
    assert!(env.requests(1) <= 8, "{} of best effort beside real time", env.requests(1));
    // The idle class gets one request in 200 ms: a turn of 4 KiB.
    assert!((9..=12).contains(&env.requests(2)), "{} of the idle class in 2 s", env.requests(2));
    let mut env = self::env(EXACT, &tenants[1..]);
    env.run_until(2 * S);
    let part = ratio(env.bytes(1), env.bytes(0));
    assert!(env.requests(1) >= 9 && part < 0.01, "{} of the idle class, {part} of the other's bytes", env.requests(1));
}

#[test]
fn a_realtime_request_ends_the_turn_of_another_class() {
    // Turns of 125 ms; the real-time tenant asks each 5 ms and is served at once: its own 100 us and what is on the
    // device.
    let options = BfqOptions { max_budget_bytes: 1 << 40, low_latency: false, ..BfqOptions::DEFAULT };
    let pinger = Tenant { class: PriorityClass::RealTime, think_ns: 5 * MS, ..Tenant::at(0) };
    let heavy = Tenant { depth: 64, ..Tenant::at(1) };
    let worst = |class| {
        let mut env = env(options, &[Tenant { class, ..pinger.clone() }, heavy.clone()]);
        env.run_until(2 * S);
        env.worst_ns(0)
    };
    let (realtime, best_effort) = (worst(PriorityClass::RealTime), worst(PriorityClass::BestEffort));
    assert!(realtime <= 300 * US, "{realtime} ns at worst");
    assert!(best_effort > 100 * realtime, "{best_effort} ns at worst in the same class");
}

#[test]
fn a_new_light_flow_beside_a_heavy_one_is_faster_with_weight_raising() {
    // The heavy one has long since used up its own raising when the light one comes, reads 40 times with 15 ms in
    // between, and leaves.
    let heavy = Tenant { depth: 64, ..Tenant::at(0) };
    let light = Tenant { start_ns: 4 * S, requests_max: 40, think_ns: 15 * MS, ..Tenant::at(1) };
    let mean = |low_latency| {
        // A slow device, 2 ms each: it is the turns that count.
        let bfq = BfqOptions { low_latency, ..BfqOptions::DEFAULT };
        let mut env =
            Env::new(Options { bfq, latency_ns: 2 * MS, ..Options::default() }, &[heavy.clone(), light.clone()]);
        env.run_until(14 * S);
        assert_eq!(env.requests(1), 40);
        env.mean_ns(1)
    };
    let (on, off) = (mean(true), mean(false));
    assert!(off > 20 * on, "{on} ns with weight raising, {off} without");
}

#[test]
fn raising_ends_and_then_shares_are_by_weight_again() {
    let tenants = [Tenant { weight: 100, ..Tenant::at(0) }, Tenant { weight: 300, start_ns: 5 * S, ..Tenant::at(1) }];
    let mut env = env(BfqOptions { low_latency: true, ..EXACT }, &tenants);
    env.run_until(5 * S + 500 * MS);
    assert!(!bfq(&env).is_raised(FlowId(0)) && bfq(&env).is_raised(FlowId(1)));
    let before = [env.bytes(0), env.bytes(1)];
    env.run_until(8 * S - 500 * MS);
    // 100 against 300 * 30.
    let raised = ratio(env.bytes(1) - before[1], env.bytes(0) - before[0]);
    assert!((80.0..100.0).contains(&raised), "{raised} to 1 while raised");
    env.run_until(9 * S);
    assert!(!bfq(&env).is_raised(FlowId(1)));
    let before = [env.bytes(0), env.bytes(1)];
    env.run_until(12 * S);
    let after = ratio(env.bytes(1) - before[1], env.bytes(0) - before[0]);
    assert!((2.9..3.1).contains(&after), "{after} to 1 afterwards");
}

#[test]
fn the_peak_rate_is_found_and_sets_the_largest_budget() {
    // 32 at once, 64 KiB each, 100 us: 20.97 GB/s.
    let mut env =
        env(BfqOptions { max_budget_bytes: 0, ..EXACT }, &[Tenant { depth: 64, bytes: 64 << 10, ..Tenant::at(0) }]);
    env.run_until(250 * MS);
    assert_eq!((bfq(&env).peak_bytes_per_s(), bfq(&env).max_budget_bytes()), (None, 16_384 * 512));
    env.run_until(2 * S);
    let due = 32.0 * 65_536.0 * 1e4;
    let peak = bfq(&env).peak_bytes_per_s().expect("2 s are enough");
    assert!((0.99..1.01).contains(&(peak as f64 / due)), "{peak} bytes/s, the device does {due}");
    assert_eq!(bfq(&env).max_budget_bytes(), peak / 8, "what it does in 125 ms");
}

#[test]
fn greedy_queues_get_the_largest_budget_and_modest_ones_the_smallest() {
    let modest = Tenant { think_ns: 12 * MS, ..Tenant::at(0) };
    let mut env = env(EXACT, &[modest, Tenant { depth: 32, ..Tenant::at(1) }]);
    let budget = |env: &Env, n: u32| bfq(env).budget_bytes(FlowId(n), HctxId(n as u16), true);
    assert_eq!(budget(&env, 0), None);
    env.run_until(3 * S);
    assert_eq!([budget(&env, 0), budget(&env, 1)], [Some(4 * KIB), Some(128 * KIB)]);
}

#[test]
fn strict_guarantees_are_one_request_at_a_time() {
    let tenants = [Tenant { depth: 16, ..Tenant::at(0) }, Tenant { depth: 16, weight: 200, ..Tenant::at(1) }];
    let mut env = env(BfqOptions { strict_guarantees: true, ..EXACT }, &tenants);
    env.run_until(2 * S);
    assert_eq!(env.most_in_flight, 1);
    let shares = ratio(env.bytes(1), env.bytes(0));
    assert!((1.95..2.05).contains(&shares), "{shares}");
    let mut env = self::env(EXACT, &tenants);
    env.run_until(S);
    assert!(env.most_in_flight > 8);
}

#[test]
fn requests_of_a_queue_go_in_offset_order_until_one_is_too_old() {
    // One request on the device at a time, 16 staged, anywhere on the device: the order is a sweep.
    let options = Options { bfq: EXACT, depth: 1, ..Options::default() };
    let tenant = Tenant { depth: 16, is_random: true, ..Tenant::at(0) };
    let mut env = Env::new(options, std::slice::from_ref(&tenant));
    env.run_until(S);
    let descents = env.offsets.windows(2).filter(|pair| pair[1] < pair[0]).count();
    // A sweep over 16 that wait takes more than 16 of them along on average; any order would descend every second time.
    assert!(descents * 10 < env.offsets.len(), "{descents} of {} go back", env.offsets.len());
    // Expired at once, they go in the order in which they came.
    let bfq = BfqOptions { fifo_expire_sync_ns: MS, ..EXACT };
    let mut env = Env::new(Options { bfq, ..options }, &[tenant]);
    env.run_until(S);
    let descents = env.offsets.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(descents * 3 > env.offsets.len(), "{descents} of {} go back", env.offsets.len());
}

/// A machine, options and tenants, none of them usual.
fn unusual(seed: u64) -> Env {
    let mut random = Random::new(seed);
    let mut below = |bound: u64| random.below(bound);
    let hctxs = 1 + below(5) as u16;
    let tenants: Vec<Tenant> = (0..1 + below(6))
        .map(|_| Tenant {
            weight: [1, 7, 100, 300, 10_000][below(5) as usize],
            class: PriorityClass::ALL[below(3) as usize],
            hctxs: (0..1 + below(3)).map(|_| below(u64::from(hctxs)) as u16).collect(),
            depth: 1 + below(9) as u32,
            bytes: [512, 4096, 20_480, 1 << 20][below(4) as usize],
            is_sync: below(3) > 0,
            think_ns: [1, US, 100 * US, 9 * MS, 60 * MS, 2100 * MS][below(6) as usize],
            start_ns: below(3) * below(S),
            requests_max: 1 + below(120),
            is_random: below(2) == 0,
        })
        .collect();
    let bfq = BfqOptions {
        slice_idle_ns: [0, 8 * MS, 8 * MS, 100 * MS][below(4) as usize],
        timeout_sync_ns: [MS, 125 * MS][below(2) as usize],
        max_budget_bytes: [0, 1, 1 << 20, 1 << 40][below(4) as usize],
        low_latency: below(2) == 0,
        strict_guarantees: below(4) == 0,
        fifo_expire_sync_ns: [MS, 125 * MS][below(2) as usize],
        fifo_expire_async_ns: [MS, 250 * MS][below(2) as usize],
    };
    let options = Options {
        bfq,
        depth: [1, 2, 5, 40][below(4) as usize],
        parallelism: [1, 4, 64][below(3) as usize],
        latency_ns: [5 * US, 100 * US, 3 * MS][below(3) as usize],
        spread: [1, 20][below(2) as usize],
        room: [1, 3, usize::MAX][below(3) as usize],
        // Few places, so that queues are given from one process to another.
        staged_max: 6 * 3 * 9,
        ..Options::default()
    };
    Env::new(options, &tenants).seeded(seed)
}

#[test]
fn in_any_history_each_request_goes_once_and_nothing_stands_still() {
    for seed in 0..400 {
        let outcome = std::panic::catch_unwind(|| unusual(seed).run_out());
        assert!(outcome.is_ok(), "the failing seed is {seed}");
    }
}

#[test]
fn more_processes_than_queues_take_turns_with_them() {
    // 300 tenants at two workers are 1200 possible queues; with room for 4 requests per worker and D = 2 there are 11.
    let tenants: Vec<Tenant> = (0..300)
        .map(|n: u64| Tenant {
            hctxs: vec![(n % 2) as u16],
            start_ns: n / 2 * MS,
            requests_max: 3,
            is_sync: !n.is_multiple_of(3),
            ..Tenant::at(0)
        })
        .collect();
    let options =
        Options { depth: 2, staged_max: 4, bfq: BfqOptions { slice_idle_ns: 0, ..EXACT }, ..Options::default() };
    Env::new(options, &tenants).run_out();
}
