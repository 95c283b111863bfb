//! Service of tenants where the worker's CPU is the bottleneck and requests wait in sockets.

use mqfq_blk_watched::Weight;
use mqfq_sim::embedded;
use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::{Arrival, Scenario, Tenant};

/// The scenario that comes with the program, shorter and changed: with turns that serve sockets as they come, and with
/// fair ones.
fn both(change: impl Fn(&mut Scenario)) -> [Outcome; 2] {
    [false, true].map(|intake_is_fair| {
        let text = embedded::scenario("intake").expect("it comes with the program");
        let mut scenario = Scenario::parse("intake.toml", text).unwrap();
        (scenario.warm_up_ns, scenario.measured_ns) = (5_000_000, 10_000_000);
        scenario.machine.intake_is_fair = intake_is_fair;
        change(&mut scenario);
        run(&scenario).unwrap()
    })
}

/// The second tenant's bytes over the first's, with either kind of turns; and the requests per second of both with fair
/// turns over those with the others.
fn compare(name: &str, change: impl Fn(&mut Scenario)) -> (f64, f64, f64) {
    let [round, fair] = both(change);
    let ratio = |outcome: &Outcome| outcome.tenants[1].bytes as f64 / outcome.tenants[0].bytes as f64;
    let total = fair.requests_per_s / round.requests_per_s;
    println!("{name}: 1:{:.3} before, 1:{:.3}, {total:.3} of the requests", ratio(&round), ratio(&fair));
    (ratio(&round), ratio(&fair), total)
}

fn closed(tenant: &mut Tenant, connections: u32, depth: u32, size_bytes: u32) {
    (tenant.threads, tenant.load.sizes) = (connections, vec![(size_bytes, 100)]);
    tenant.load.arrival = Arrival::Closed { depth, think_ns: 0, bursts: None };
}

const KIB: u32 = 1 << 10;

#[test]
fn weights_count_and_connections_do_not_where_the_worker_is_the_bottleneck() {
    for ((light, heavy), round) in [((4, 4), 1.0), ((1, 4), 4.0), ((4, 1), 0.25)] {
        let (before, after, total) = compare(&format!("{light}:{heavy} connections"), |scenario| {
            (scenario.tenants[0].threads, scenario.tenants[1].threads) = (light, heavy);
        });
        assert!((before / round - 1.0).abs() < 0.02, "it shows the fault: {before}");
        assert!((after / 3.0 - 1.0).abs() < 0.02, "{after}");
        assert!(total > 0.97, "{total}");
    }
}

#[test]
fn neither_do_sizes_or_other_weights() {
    for (light_bytes, heavy_bytes) in [(4 * KIB, 64 * KIB), (64 * KIB, 4 * KIB)] {
        let (_, after, _) = compare(&format!("{light_bytes} and {heavy_bytes} bytes"), |scenario| {
            closed(&mut scenario.tenants[0], 4, 256, light_bytes);
            closed(&mut scenario.tenants[1], 4, 256, heavy_bytes);
        });
        assert!((after / 3.0 - 1.0).abs() < 0.03, "{after}");
    }
    let (_, after, _) = compare("weights 1:9, 4:1 connections", |scenario| {
        (scenario.tenants[1].threads, scenario.tenants[1].weight) = (1, Weight::new(900).unwrap());
    });
    assert!((after / 9.0 - 1.0).abs() < 0.03, "{after}");
}

/// One receive brings one or two of them.
#[test]
fn neither_do_writes_of_which_a_receive_brings_little() {
    let (before, after, _) = compare("reads of 4 KiB, one connection that writes 64 KiB", |scenario| {
        closed(&mut scenario.tenants[1], 1, 64, 64 * KIB);
        scenario.tenants[1].load.read_percent = 0;
    });
    assert!(before < 0.5, "it shows the fault: {before}");
    assert!((after / 3.0 - 1.0).abs() < 0.05, "{after}");
}

#[test]
fn what_does_not_wait_in_sockets_is_served_as_ever() {
    for depth in [1, 8] {
        let (_, _, total) = compare(&format!("40 tenants of depth {depth}"), |scenario| {
            for tenant in &mut scenario.tenants {
                closed(tenant, 1, depth, 4 * KIB);
                tenant.count = 20;
            }
        });
        assert!((total - 1.0).abs() < 0.001, "{total}");
    }
    let (_, _, total) = compare("one tenant that competes with nobody", |scenario| {
        scenario.tenants[0].load.arrival = Arrival::Open { rate_per_s: 0.001, poisson: false, bursts: None };
    });
    assert!(total > 0.97, "{total}");
}

/// Each tenant has a worker of its own. The heavy one is held by its core, and the light one's worker waits for it.
#[test]
fn weights_hold_across_workers_that_are_the_bottleneck() {
    for (name, light, heavy) in [("apart", vec![0], vec![1]), ("light on both", vec![0, 1], vec![0])] {
        let (before, after, _) = compare(name, |scenario| {
            scenario.machine.workers = 2;
            scenario.machine.memory_is_free = false;
            (scenario.tenants[0].on_workers, scenario.tenants[1].on_workers) = (light.clone(), heavy.clone());
        });
        assert!(before < 2.5, "it shows the fault: {before}");
        assert!((after / 3.0 - 1.0).abs() < 0.05, "{after}");
    }
}

/// With D and T as they are found. A T that followed D alone gave 0.76, 0.31 and 0.09 of the requests under `none`.
#[test]
fn full_cores_do_not_wait_for_each_others_turns() {
    for (workers, least) in [(2, 0.92), (4, 0.92), (16, 0.9)] {
        let [none, mqfq] = ["kind = \"none\"", "kind = \"mqfq\"\ndepth = \"auto\"\nwindow = \"auto\""].map(|policy| {
            let text = embedded::scenario("intake").expect("it comes with the program");
            let machine = format!("preset = \"user-space-8x128\"\nworkers = {workers}");
            let text = text.replace("preset = \"user-space-2\"\nworkers = 1", &machine);
            let text = text.replace("threads = 4", &format!("threads = {workers}"));
            let text = text.replace("memory = \"free\"\n", "");
            let text = text.replace("kind = \"mqfq\"\ndepth = 64\nwindow = \"64KiB\"", policy);
            let mut scenario = Scenario::parse("intake.toml", &text).unwrap();
            // T is found after 18 ms at the latest.
            (scenario.warm_up_ns, scenario.measured_ns) = (30_000_000, 10_000_000);
            assert_eq!((scenario.machine.workers, scenario.machine.memory_is_free), (workers, false));
            assert!(scenario.tenants.iter().all(|tenant| tenant.threads == workers as u32));
            run(&scenario).unwrap()
        });
        let ratio_of = |outcome: &Outcome| outcome.tenants[1].bytes as f64 / outcome.tenants[0].bytes as f64;
        let (before, ratio) = (ratio_of(&none), ratio_of(&mqfq));
        assert!((before - 1.0).abs() < 0.1, "none has no weights: {before}");
        let total = mqfq.requests_per_s / none.requests_per_s;
        println!("{workers} workers: 1:{ratio:.3}, {total:.3} of the requests under none");
        assert!((ratio / 3.0 - 1.0).abs() < 0.02, "{workers} workers: {ratio}");
        assert!(total > least, "{workers} workers: {total}");
    }
}
