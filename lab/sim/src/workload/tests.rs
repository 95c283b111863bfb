//! Requests of sources, played against a device that takes a fixed time: rates, mixes and places, with the tolerance
//! that the number of draws allows, for fixed seeds.

use super::*;
use crate::scenario::{Background, Load, Pattern};
use mqfq_blk_watched::Weight;
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND_NS: u64 = 1_000_000_000;

fn load(arrival: Arrival) -> Load {
    Load { arrival, sizes: vec![(4096, 100)], read_percent: 100, pattern: Pattern::Random, cpu_ns: 0 }
}

fn tenant(threads: u32, load: Load) -> Tenant {
    Tenant {
        name: "t".into(),
        count: 1,
        weight: Weight::DEFAULT,
        group: None,
        class: mqfq_blk_watched::PriorityClass::BestEffort,
        threads,
        first_worker: 0,
        on_workers: Vec::new(),
        caps: mqfq_blk_watched::cap::CapLimits::NONE,
        goal_ns: 0,
        socket: None,
        load,
        background: None,
        start_ns: 0,
        stop_ns: None,
    }
}

fn closed(depth: u32) -> Load {
    load(Arrival::Closed { depth, think_ns: 0, bursts: None })
}

fn open(rate_per_s: f64, poisson: bool, bursts: Option<(u64, u64)>) -> Load {
    load(Arrival::Open { rate_per_s, poisson, bursts })
}

#[derive(Default)]
struct Played {
    /// By client: when each request was made, and what it was.
    asked: Vec<Vec<(u64, Ask)>>,
    /// By client: the most in flight at once.
    in_flight_max: Vec<usize>,
    /// Calls of `next` in all.
    calls: u64,
}

/// Plays `sources` until `end_ns`; each request takes `device_ns`, any number at once.
fn play(mut sources: Vec<Box<dyn Source>>, device_ns: u64, end_ns: u64) -> Played {
    let clients = sources.len();
    let mut played = Played { asked: vec![Vec::new(); clients], in_flight_max: vec![0; clients], calls: 0 };
    let mut in_flight = vec![0; clients];
    // The time that a client asked for last; at most one call is made for it.
    let mut timers: Vec<Option<u64>> = vec![Some(0); clients];
    // Completions: time, order of arising, client.
    let mut completions: BTreeSet<(u64, u64, usize)> = BTreeSet::new();
    let mut order = 0;
    loop {
        let timer = (0..clients).filter_map(|client| Some((timers[client]?, client))).min();
        let completion = completions.first().map(|(at_ns, _, client)| (*at_ns, *client));
        let (now_ns, client) = match (timer, completion) {
            (Some(timer), Some(completion)) if timer.0 < completion.0 => timer,
            (Some(timer), None) => timer,
            (_, Some(completion)) => {
                completions.pop_first();
                in_flight[completion.1] -= 1;
                sources[completion.1].completed(completion.0);
                completion
            }
            (None, None) => break,
        };
        if now_ns >= end_ns {
            break;
        }
        timers[client] = None;
        loop {
            played.calls += 1;
            order += 1;
            match sources[client].next(now_ns) {
                Step::Ask(ask) => {
                    assert!(ask.arrived_ns <= now_ns, "a request from the future");
                    played.asked[client].push((now_ns, ask));
                    in_flight[client] += 1;
                    played.in_flight_max[client] = played.in_flight_max[client].max(in_flight[client]);
                    completions.insert((now_ns + device_ns, order, client));
                }
                Step::WaitUntil(at_ns) => {
                    assert!(at_ns > now_ns, "a wait for the past");
                    timers[client] = Some(at_ns);
                    break;
                }
                Step::WaitForCompletion => {
                    assert!(in_flight[client] > 0, "a wait for nothing");
                    break;
                }
                Step::Done => break,
            }
        }
    }
    played
}

fn play_one(tenant: &Tenant, device_ns: u64, end_ns: u64) -> Played {
    play(sources(tenant, 0, GIB, 1).unwrap(), device_ns, end_ns)
}

/// The first `count` requests of a thread that never waits.
fn first(tenant: &Tenant, count: usize) -> Vec<Ask> {
    let mut source = sources(tenant, 0, GIB, 1).unwrap().remove(0);
    let asked = (0..count).map(|_| {
        loop {
            match source.next(0) {
                Step::Ask(ask) => break ask,
                _ => {
                    source.completed(0);
                }
            }
        }
    });
    asked.collect()
}

#[test]
fn a_closed_loop_never_has_more_than_its_depth_in_flight() {
    let played = play_one(&tenant(3, closed(8)), 100_000, SECOND_NS / 10);
    assert_eq!(played.in_flight_max, [8, 8, 8]);
    // 8 at once, 100 us each, 100 ms: 8000 per thread.
    assert!(played.asked.iter().all(|asked| asked.len() == 8000), "{}", played.asked[0].len());
}

#[test]
fn think_time_lies_between_a_completion_and_the_next_request() {
    let played = play_one(
        &tenant(1, load(Arrival::Closed { depth: 4, think_ns: 300_000, bursts: None })),
        100_000,
        SECOND_NS / 10,
    );
    assert_eq!(played.in_flight_max, [4]);
    // Each of 4 takes 100 + 300 us: 4 x 250 in 100 ms.
    assert_eq!(played.asked[0].len(), 1000);
    assert!(played.asked[0].iter().all(|(at_ns, ask)| *at_ns == ask.arrived_ns && at_ns % 400_000 == 0));
}

#[test]
fn a_closed_loop_in_bursts_asks_while_it_is_on() {
    let bursts = Some((10_000_000, 30_000_000));
    let played = play_one(&tenant(1, load(Arrival::Closed { depth: 4, think_ns: 0, bursts })), 100_000, SECOND_NS / 10);
    // On from 0 to 10, from 40 to 50 and from 80 to 90 ms: 4 at once, 100 us each.
    assert_eq!(played.asked[0].len(), 3 * 4 * 100);
    assert!(played.asked[0].iter().all(|(at_ns, _)| at_ns % 40_000_000 < 10_000_000));
}

#[test]
fn an_open_loop_keeps_its_rate_whatever_completes() {
    // The device takes a second per request: nothing completes.
    let played = play_one(&tenant(2, open(50_000.0, false, None)), SECOND_NS, SECOND_NS / 2);
    for asked in &played.asked {
        assert!((25_000 - 1..=25_000 + 1).contains(&asked.len()), "half a second at 50 000/s: {}", asked.len());
        let gaps: BTreeSet<u64> = asked.windows(2).map(|two| two[1].0 - two[0].0).collect();
        assert!(gaps.iter().all(|gap| (19_999..=20_001).contains(gap)), "20 us apart, rounded to ns: {gaps:?}");
    }
    let [one, other] = [0, 1].map(|thread: usize| played.asked[thread][0].0);
    assert_ne!(one, other, "threads do not march in step");
}

#[test]
fn poisson_gaps_have_the_mean_of_the_rate_and_as_much_deviation() {
    let played = play_one(&tenant(1, open(100_000.0, true, None)), 1, SECOND_NS);
    let gaps: Vec<f64> = played.asked[0].windows(2).map(|two| (two[1].0 - two[0].0) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
    // With 100 000 draws the mean is off by 0.3% (one sigma), the deviation by about 0.5%; four of them are allowed.
    assert!((mean / 10_000.0 - 1.0).abs() < 0.012, "{mean}");
    assert!((deviation / mean - 1.0).abs() < 0.02, "{deviation}");
}

#[test]
fn bursts_keep_the_rate_while_on_and_ask_nothing_while_off() {
    for poisson in [false, true] {
        let played = play_one(&tenant(1, open(100_000.0, poisson, Some((1_000_000, 4_000_000)))), 1, SECOND_NS);
        assert!(played.asked[0].iter().all(|(at_ns, _)| at_ns % 5_000_000 < 1_000_000), "on for 1 ms of 5");
        // 200 ms are on: 20 000 requests. Poisson: sigma 141, four of them allowed.
        let tolerance = if poisson { 566 } else { 1 };
        assert!(played.asked[0].len().abs_diff(20_000) <= tolerance, "{}", played.asked[0].len());
    }
}

#[test]
fn an_open_loop_that_falls_behind_keeps_the_times_at_which_requests_should_have_come() {
    let tenant = Tenant { start_ns: 1_000_000, ..tenant(1, open(10_000.0, false, None)) };
    let mut source = sources(&tenant, 0, GIB, 1).unwrap().remove(0);
    let Step::WaitUntil(first_ns) = source.next(1_000_000) else { panic!("the first comes within a gap") };
    assert!((1_000_000..1_100_000).contains(&first_ns), "none before the start");
    // Called 10 gaps late, it gives all that came meanwhile, each with its time.
    let late_ns = first_ns + 1_000_000;
    for n in 0..11 {
        let Step::Ask(ask) = source.next(late_ns) else { panic!("11 have come") };
        assert!(ask.arrived_ns.abs_diff(first_ns + n * 100_000) <= 1);
    }
    assert!(matches!(source.next(late_ns), Step::WaitUntil(at_ns) if at_ns > late_ns));
}

#[test]
fn the_threads_of_a_phase_wait_for_each_other_and_compute() {
    let (device_ns, compute_ns) = (100_000, 2_000_000);
    let phases = load(Arrival::Phases { depth: 4, requests: 40, compute_ns });
    let played = play_one(&tenant(3, phases), device_ns, 20_000_000);
    assert_eq!(played.in_flight_max, [4, 4, 4]);
    // A phase is 10 rounds of 4 in 100 us, then 2 ms: 3 ms. In 20 ms 7 begin.
    for asked in &played.asked {
        let starts: Vec<u64> = asked.iter().step_by(40).map(|(at_ns, _)| *at_ns).collect();
        assert_eq!(
            starts,
            [0, 3, 6, 9, 12, 15, 18].map(|ms| ms * 1_000_000),
            "exactly, though waiting threads only look"
        );
    }
    assert!(played.calls < 4000, "looking is rare: {} calls for {} requests", played.calls, played.asked[0].len() * 3);
}

#[test]
fn a_slow_thread_holds_the_others_at_the_barrier() {
    let phases = load(Arrival::Phases { depth: 1, requests: 1, compute_ns: 0 });
    let mut sources = sources(&tenant(2, phases), 0, GIB, 1).unwrap();
    for source in &mut sources {
        assert!(matches!(source.next(0), Step::Ask(_)));
        assert_eq!(source.next(0), Step::WaitForCompletion);
    }
    sources[0].completed(1_000);
    let Step::WaitUntil(look_ns) = sources[0].next(1_000) else { panic!("the other is not there") };
    assert!(matches!(sources[0].next(look_ns), Step::WaitUntil(_)), "still not");
    sources[1].completed(90_000);
    assert!(matches!(sources[1].next(90_000), Step::Ask(_)), "the last one leaves at once");
    assert!(matches!(sources[0].next(91_000), Step::Ask(_)), "and the first when it looks");
}

#[test]
fn mixes_have_their_parts() {
    let mixed = Load { sizes: vec![(4096, 70), (8192, 20), (65_536, 10)], read_percent: 80, ..closed(1) };
    let asked = first(&tenant(1, mixed), 100_000);
    let part = |count: usize| count as f64 / asked.len() as f64 * 100.0;
    // With 100 000 draws a part of 70% is off by 0.145 points (one sigma); four of them are allowed.
    for (bytes, expected) in [(4096, 70.0), (8192, 20.0), (65_536, 10.0)] {
        let found = part(asked.iter().filter(|ask| ask.length_bytes == bytes).count());
        assert!((found - expected).abs() < 0.6, "{bytes}: {found}");
    }
    let reads = part(asked.iter().filter(|ask| ask.op == Op::Read).count());
    assert!((reads - 80.0).abs() < 0.6, "{reads}");
    let writes_only = first(&tenant(1, Load { read_percent: 0, ..closed(1) }), 1000);
    assert!(writes_only.iter().all(|ask| ask.op == Op::Write));
    assert!(first(&tenant(1, closed(1)), 1000).iter().all(|ask| ask.op == Op::Read));
}

#[test]
fn random_places_are_aligned_and_spread_evenly() {
    let mixed = Load { sizes: vec![(4096, 50), (12_288, 50)], ..closed(1) };
    let asked = first(&tenant(1, mixed), 100_000);
    assert!(asked.iter().all(|ask| ask.offset_bytes % u64::from(ask.length_bytes) == 0));
    assert!(asked.iter().all(|ask| ask.offset_bytes + u64::from(ask.length_bytes) <= GIB));
    let mut sixteenths = [0u32; 16];
    asked.iter().for_each(|ask| sixteenths[(ask.offset_bytes / (GIB / 16)) as usize] += 1);
    // 6250 each; sigma is 77, four of them are allowed.
    assert!(sixteenths.iter().all(|count| count.abs_diff(6250) < 310), "{sixteenths:?}");
}

#[test]
fn popular_places_are_few_scattered_and_the_tenants_own() {
    let zipf = Load { pattern: Pattern::Zipf { theta: 0.99 }, ..closed(1) };
    let popular = |name: &str| {
        let mut places: BTreeMap<u64, u32> = BTreeMap::new();
        let asked = first(&Tenant { name: name.into(), ..tenant(1, zipf.clone()) }, 100_000);
        asked.iter().for_each(|ask| *places.entry(ask.offset_bytes).or_default() += 1);
        let mut places: Vec<(u32, u64)> = places.into_iter().map(|(place, count)| (count, place)).collect();
        places.sort_unstable_by(|a, b| b.cmp(a));
        places
    };
    let places = popular("a");
    // 2^18 places: the first gets 1 in zeta(262144, 0.99) = 13.9 of the requests, the second 2^-0.99 of that.
    assert!((places[0].0 as f64 / (100_000.0 / 13.9) - 1.0).abs() < 0.05, "{}", places[0].0);
    assert!((places[1].0 as f64 / places[0].0 as f64 - 0.5035).abs() < 0.03, "{}", places[1].0);
    // Scattered: the ten most popular do not lie in one sixteenth of the device.
    let sixteenths: BTreeSet<u64> = places[..10].iter().map(|(_, place)| place / (GIB / 16)).collect();
    assert!(sixteenths.len() >= 5, "{sixteenths:?}");
    assert_ne!(places[0].1, popular("b")[0].1, "another tenant has other favourites");
}

#[test]
fn sequential_threads_go_through_their_own_parts() {
    let sequential = Load { pattern: Pattern::Sequential, ..closed(1) };
    let played = play(sources(&tenant(4, sequential.clone()), 0, MIB, 1).unwrap(), 1000, 200_000);
    for (thread, asked) in played.asked.iter().enumerate() {
        let part = 256 << 10;
        let from = part * thread as u64;
        let places: Vec<u64> = asked.iter().map(|(_, ask)| ask.offset_bytes).collect();
        assert!(places.iter().all(|place| (from..from + part).contains(place)), "thread {thread}");
        // 64 places of 4 KiB, each once before the first comes again.
        assert_eq!(places[..64].iter().collect::<BTreeSet<_>>().len(), 64);
        assert!(places.windows(2).all(|two| two[1] == two[0] + 4096 || two[1] == from));
        assert_eq!(places[64], places[0]);
    }
    let refused = sources(&tenant(512, sequential), 0, MIB, 1).map(|_| ());
    assert_eq!(refused, Err("tenant t: a thread's part of 2048 bytes has no room for 4096 bytes in sequence".into()));
}

#[test]
fn equal_seeds_give_equal_requests_and_anything_else_others() {
    let zipf = Load { read_percent: 50, pattern: Pattern::Zipf { theta: 0.9 }, ..open(1e6, true, None) };
    let zipf = tenant(2, zipf);
    let asked = |tenant: &Tenant, number, seed| play(sources(tenant, number, GIB, seed).unwrap(), 1, 1_000_000).asked;
    let base = asked(&zipf, 0, 1);
    assert!(base[0].len() > 900, "1 ms at 1 M/s");
    assert_eq!(base, asked(&zipf, 0, 1));
    assert_ne!(base[0], base[1], "another thread");
    assert_ne!(base, asked(&zipf, 1, 1), "another of its count");
    assert_ne!(base, asked(&zipf, 0, 2), "another seed");
    assert_ne!(base, asked(&Tenant { name: "u".into(), ..zipf.clone() }, 0, 1), "another tenant");
}

#[test]
fn the_first_requests_of_a_seed_are_these() {
    // Written down, so that a machine or a library that draws differently is noticed.
    let zipf = Load { read_percent: 50, pattern: Pattern::Zipf { theta: 0.99 }, ..open(1e6, true, None) };
    let asked = play(sources(&tenant(1, zipf), 0, GIB, 1).unwrap(), 1, 100_000).asked.remove(0);
    let shown: Vec<_> =
        asked[..4].iter().map(|(at_ns, ask)| (*at_ns, ask.op == Op::Write, ask.offset_bytes / 4096)).collect();
    assert_eq!(shown, FIRST);
}

/// Time, whether it writes, and block.
const FIRST: [(u64, bool, u64); 4] =
    [(645, true, 123_841), (891, true, 184_233), (1847, false, 38_002), (2514, true, 28_299)];

fn trace(count: u64, timed: bool) -> Trace {
    let request =
        |n| TraceRequest { at_ns: n * 1000, is_write: n % 2 == 1, offset_bytes: n * 4096, length_bytes: 4096 };
    Trace { requests: (0..count).map(request).collect(), timed }
}

#[test]
fn a_trace_is_played_once_by_its_threads_in_turn() {
    let arrival = Arrival::Trace { trace: trace(100, true), stretch: 2.5, depth: None };
    let replay = Tenant { start_ns: 500, ..tenant(3, Load { sizes: Vec::new(), ..load(arrival) }) };
    let played = play_one(&replay, SECOND_NS, SECOND_NS);
    for (thread, asked) in played.asked.iter().enumerate() {
        for (n, (at_ns, ask)) in asked.iter().enumerate() {
            let of_trace = (thread + 3 * n) as u64;
            assert_eq!((ask.offset_bytes / 4096, ask.op == Op::Write), (of_trace, of_trace % 2 == 1));
            assert_eq!((*at_ns, ask.arrived_ns), (500 + of_trace * 2500, *at_ns), "its time, stretched");
        }
    }
    assert_eq!(played.asked.iter().map(Vec::len).collect::<Vec<_>>(), [34, 33, 33]);
}

#[test]
fn a_trace_without_times_is_played_at_its_depth() {
    let arrival = Arrival::Trace { trace: trace(100, false), stretch: 1.0, depth: Some(4) };
    let played = play_one(&tenant(1, Load { sizes: Vec::new(), ..load(arrival) }), 50_000, SECOND_NS);
    assert_eq!(played.in_flight_max, [4]);
    assert_eq!(played.asked[0].len(), 100);
    assert!(
        played.asked[0].iter().all(|(at_ns, ask)| ask.arrived_ns == *at_ns),
        "latencies begin when it is asked for"
    );
    // 4 at once, 50 us each, and none before its 1 us: 25 rounds; the last begins after 24.
    assert_eq!(played.asked[0][96].0, 24 * 50_000);
}

#[test]
fn the_background_moves_what_the_threads_owe() {
    let background = Background { per_request_bytes: 9728, size_bytes: 1 << 20, read_percent: 47, depth: 2 };
    let store = Tenant { background: Some(background), ..tenant(4, closed(1)) };
    let played = play_one(&store, 50_000, SECOND_NS);
    let foreground: usize = played.asked[..4].iter().map(Vec::len).sum();
    assert_eq!((played.asked.len(), foreground), (5, 80_000), "4 threads of 20 000, and the background");
    // 80 000 x 9728 B are 742 MiB; one may still be owed.
    assert!((741..=742).contains(&played.asked[4].len()), "{}", played.asked[4].len());
    assert!(played.asked[4].iter().all(|(_, ask)| ask.length_bytes == 1 << 20));
    let reads = played.asked[4].iter().filter(|(_, ask)| ask.op == Op::Read).count() as f64 / 742.0;
    // Sigma of 742 draws is 1.8 points; four of them are allowed.
    assert!((reads - 0.47).abs() < 0.073, "{reads}");
    assert!(played.in_flight_max[4] <= 2);
    for is_write in [false, true] {
        let places: Vec<u64> = played.asked[4]
            .iter()
            .filter(|(_, ask)| (ask.op == Op::Write) == is_write)
            .map(|(_, ask)| ask.offset_bytes)
            .collect();
        assert!(places.windows(2).all(|two| two[1] == two[0] + MIB || two[1] == 0), "in sequence");
    }
}

#[test]
fn every_model_asks_for_something() {
    for name in models::NAMES {
        let models::Model { threads, load, background } = models::model(name).unwrap();
        let played = play_one(&Tenant { background, ..tenant(threads, load) }, 100_000, SECOND_NS / 10);
        assert!(played.asked[..threads as usize].iter().all(|asked| asked.len() >= 1000), "{name}");
    }
}

#[test]
fn each_step_of_a_chain_waits_for_the_one_before_and_the_last_one_counts() {
    let steps = [Op::Write, Op::Flush, Op::Read];
    let chain = load(Arrival::Chain { steps: steps.into(), think_ns: 500 });
    let mut source = sources(&tenant(1, chain), 0, GIB, 1).unwrap().pop().unwrap();
    for begun_ns in [10, 810] {
        for (step, op) in steps.into_iter().enumerate() {
            let now_ns = begun_ns + 100 * step as u64;
            let Step::Ask(ask) = source.next(now_ns) else { panic!("step {step} may go") };
            let length_bytes = if op == Op::Flush { 0 } else { 4096 };
            assert_eq!((ask.op, ask.length_bytes, ask.arrived_ns), (op, length_bytes, begun_ns));
            assert_eq!(source.next(now_ns + 1), Step::WaitForCompletion, "one step at a time");
            assert_eq!(source.completed(now_ns + 100), step == 2);
        }
        assert_eq!(source.next(begun_ns + 301), Step::WaitUntil(begun_ns + 800));
    }
}
