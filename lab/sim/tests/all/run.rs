//! Whole runs: the same bytes each time, nothing lost, and what a machine of few parts must give.

use crate::placement;

use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::Scenario;

fn outcome(text: &str) -> Outcome {
    let scenario = Scenario::parse("test.toml", text).unwrap();
    run(&scenario).unwrap()
}

/// Two tenants on a drive: `a` asks for large requests, `b` for small ones, both for all that they can get.
fn two(policy: &str) -> String {
    format!(
        r#"
        [run]
        warm-up = "2ms"
        measured = "10ms"
        [machine]
        preset = "haswell-2x8"
        workers = 8
        [device]
        kind = "nvme"
        preset = "nvmf-dram"
        size = "1GiB"
        [policy]
        {policy}
        [tenant.a]
        load = "closed"
        threads = 4
        depth = 64
        size = "16KiB"
        [tenant.b]
        load = "closed"
        threads = 4
        first-worker = 4
        depth = 64
        size = "4KiB"
        "#
    )
}

#[test]
fn a_scenario_and_its_seed_give_the_same_bytes_wherever_memory_lies() {
    for kind in mqfq_policies_watched::ALL {
        let text = two(&format!("kind = \"{kind}\"\ndepth = 128"));
        placement::choose(0);
        let first = serde_json::to_string(&outcome(&text)).unwrap();
        for order in 1..4 {
            placement::choose(order);
            assert_eq!(first, serde_json::to_string(&outcome(&text)).unwrap(), "{kind}, order {order}");
        }
        let other_seed = text.replace("[run]", "[run]\nseed = 2");
        assert_ne!(first, serde_json::to_string(&outcome(&other_seed)).unwrap(), "{kind}: the seed does something");
    }
}

#[test]
fn bytes_are_shared_equally_under_mqfq_and_by_request_without() {
    // Without a policy the drive serves one request of each in turn, so the large ones get four times the bytes.
    let ratio = |policy: &str| {
        let Outcome { tenants, .. } = outcome(&two(policy));
        tenants[0].bytes as f64 / tenants[1].bytes as f64
    };
    let none = ratio("kind = \"none\"");
    assert!((3.5..4.5).contains(&none), "{none}");
    for policy in ["mqfq", "mqfq-serial", "sfqd"] {
        let fair = ratio(&format!("kind = \"{policy}\"\ndepth = 128"));
        assert!((0.97..1.03).contains(&fair), "{policy}: {fair}");
    }
}

#[test]
fn a_closed_loop_of_one_sees_the_latency_of_drive_and_machine() {
    let Outcome { tenants, requests_per_s, .. } = outcome(
        r#"
        [run]
        measured = "10ms"
        [machine]
        preset = "haswell-2x8"
        workers = 1
        latency.jitter-share = 0
        [device]
        kind = "nvme"
        preset = "nvmf-dram"
        size = "1GiB"
        [policy]
        kind = "none"
        [tenant.a]
        load = "closed"
        depth = 1
        size = "4KiB"
        "#,
    );
    // 23 us of network and target (+-10% each), 864 ns of link, an interrupt of 1 us, and 3.6 us of block layer.
    let p50_ns = tenants[0].p50_ns as f64;
    assert!((26_000.0..31_000.0).contains(&p50_ns), "{p50_ns}");
    let from_latency = 1e9 / tenants[0].mean_ns;
    assert!((requests_per_s / from_latency - 1.0).abs() < 0.02, "one at a time: {requests_per_s} {from_latency}");
}

#[test]
fn every_policy_and_every_replacement_ends_with_all_its_tokens() {
    // `run` itself refuses a run with a request left under way or a token lost. Uneven bursts on more workers than
    // tenants.
    for policy in [
        "kind = \"none\"",
        "kind = \"sfqd\"\ndepth = 16",
        "kind = \"mqfq-serial\"\ndepth = 16",
        "kind = \"mqfq\"\ndepth = 16\nform = \"exact\"",
        "kind = \"mqfq\"\ndepth = 16",
        "kind = \"mqfq\"\ndepth = 16\nwindow = \"0\"",
        "kind = \"mqfq\"\ndepth = 16\nvirtual-time = \"array-scan\"",
        "kind = \"mqfq\"\ndepth = 16\nvirtual-time = \"off\"",
        "kind = \"mqfq\"\ndepth = 16\ntokens = \"atomic-counter\"",
        "kind = \"mqfq\"\ndepth = 16\ntokens = \"scalable-bitmap\"",
        "kind = \"mqfq\"\ndepth = 16\nunthrottle = \"poll 1us\"",
    ] {
        let outcome = outcome(&format!(
            r#"
            [run]
            measured = "5ms"
            [machine]
            preset = "haswell-2x8"
            workers = 32
            [device]
            kind = "nvme"
            preset = "optane"
            size = "1GiB"
            [policy]
            {policy}
            [tenant.bursts]
            load = "open"
            threads = 5
            rate = 100000
            poisson = true
            burst-on = "100us"
            burst-off = "300us"
            size = "4KiB"
            read-percent = 50
            [tenant.steady]
            load = "closed"
            threads = 7
            first-worker = 3
            depth = 3
            think = "5us"
            size = "8KiB"
            weight = 300
            "#
        ));
        assert!(outcome.tenants.iter().all(|tenant| tenant.requests > 100), "{policy}: {outcome:?}");
    }
}

#[test]
fn cores_that_do_nothing_but_share_a_flow_are_slowed_by_its_lines() {
    // Without a device in the way: what the paper's form loses to sharing, and the relaxed one does not.
    let per_worker = |workers: usize, form: &str| {
        let outcome = outcome(&format!(
            r#"
            [run]
            warm-up = "100us"
            measured = "500us"
            [machine]
            preset = "user-space-8x128"
            workers = {workers}
            [device]
            kind = "null"
            size = "1GiB"
            [policy]
            kind = "mqfq"
            form = "{form}"
            depth = {}
            window = "1MiB"
            [tenant.all]
            load = "closed"
            threads = {workers}
            depth = 128
            size = "1KiB"
            "#,
            64 * workers
        ));
        outcome.requests_per_s / workers as f64
    };
    let (exact, relaxed) =
        (per_worker(8, "exact") / per_worker(1, "exact"), per_worker(8, "relaxed") / per_worker(1, "relaxed"));
    assert!(exact < 0.6 && relaxed > 1.5 * exact, "of one worker's rate: exact {exact}, relaxed {relaxed}");
}

#[test]
fn timers_do_not_multiply() {
    // Arrivals by the clock and computing before each: two things to wait for, and one timer.
    let text = r#"
        [run]
        measured = "20ms"
        [machine]
        preset = "haswell-2x8"
        workers = 1
        [device]
        kind = "nvme"
        preset = "optane"
        size = "1GiB"
        [policy]
        kind = "none"
        [tenant.service]
        load = "open"
        rate = 20000
        poisson = true
        burst-on = "1ms"
        burst-off = "1ms"
        size = "4KiB"
        cpu = "5us"
    "#;
    let outcome = outcome(text);
    let per_request = outcome.events as f64 / outcome.tenants[0].requests as f64;
    assert!(outcome.tenants[0].requests > 100 && per_request < 20.0, "{per_request} events per request");
}

/// A run ends with an error if a request is left under way, so each of these is a test that no wake-up was lost.
#[test]
fn no_layout_of_queues_loses_a_wake_up_on_a_drive_or_the_null_device() {
    let devices = ["kind = \"null\"", "kind = \"nvme\"\npreset = \"nvmf-dram\""];
    let layouts = [
        ("none", "block-layer = \"sq\""),
        ("none", "block-layer = \"raw\""),
        ("none", "hardware-queues = \"per-socket\""),
        ("none", "hardware-queues = 3"),
        ("none", "software-queues = \"per-socket\"\nhardware-queues = \"per-socket\""),
        ("none", "software-queues = \"single\""),
        ("none", "software-queues = \"single\"\nhardware-queues = \"single\""),
        ("mqfq", "hardware-queues = \"single\""),
        ("sfqd", "hardware-queues = \"per-socket\""),
    ];
    for device in devices {
        for (policy, layout) in layouts {
            let outcome = outcome(&format!(
                "[run]\nwarm-up = \"100us\"\nmeasured = \"300us\"\n[machine]\npreset = \"westmere-2x6\"\n[device]\n{device}\n\
                 size = \"1GiB\"\nqueue-depth = 10\n{layout}\n[policy]\nkind = \"{policy}\"\n[tenant.a]\nload = \"closed\"\ndepth = 8\n\
                 threads = 12\n"
            ));
            assert!(outcome.tenants[0].requests > 10, "{policy} with {layout} on {device}");
        }
    }
}

#[test]
fn a_ticket_lock_takes_longer_to_hand_on_the_more_cores_wait() {
    let sq = |workers: usize, ticket: bool| {
        let text = format!(
            "[run]\nwarm-up = \"1ms\"\nmeasured = \"2ms\"\n[machine]\npreset = \"nehalem-4x8\"\nworkers = {workers}\n[machine.latency]\n\
             locks-ticket = {ticket}\n[device]\nkind = \"null\"\nsize = \"1GiB\"\nblock-layer = \"sq\"\n[policy]\nkind = \"none\"\n\
             [tenant.a]\nload = \"closed\"\nthreads = {workers}\n"
        );
        outcome(&text).requests_per_s
    };
    let alone = sq(1, true) / sq(1, false);
    assert!((0.99..=1.01).contains(&alone), "with nobody waiting they are the same: {alone}");
    let (few, many) = (sq(3, true) / sq(3, false), sq(8, true) / sq(8, false));
    assert!(many < 0.8 * few && few < 1.0, "{few} of a queued lock with three cores, {many} with eight");
}

#[test]
fn the_parts_of_a_run_sum_to_the_whole_and_percentiles_are_in_order() {
    let outcome = outcome(&two("kind = \"none\"").replace("[run]", "[run]\nwindows = \"1ms\""));
    let count = (outcome.measured_ns / 1_000_000) as usize;
    for tenant in &outcome.tenants {
        let counted = &tenant.windows[tenant.windows.len() - count..];
        assert_eq!(counted.iter().map(|window| window.bytes).sum::<u64>(), tenant.bytes, "{}", tenant.name);
        assert_eq!(counted.iter().map(|window| window.requests).sum::<u64>(), tenant.requests);
        let tail = [tenant.p50_ns, tenant.p90_ns, tenant.p99_ns, tenant.p99_9_ns, tenant.p99_99_ns, tenant.max_ns];
        assert!(tail.is_sorted() && tail[0] > 0, "{tail:?}");
        assert_eq!(tenant.class_bytes, [0; 3], "none chooses no class");
    }
    let ideal: f64 = outcome.tenants.iter().map(|tenant| tenant.ideal_bytes_per_s).sum();
    assert!((ideal / outcome.bytes_per_s - 1.0).abs() < 1e-9);
    let workers = 8.0;
    let busy_ns = outcome.cpu_ns_per_request.unwrap() * outcome.requests_per_s;
    assert!((busy_ns / (outcome.busy_share * workers * 1e9) - 1.0).abs() < 1e-9, "{busy_ns}");
}

/// Three of weight 3 beside one of weight 1, each with a core, on a drive that takes few commands inside; `drive` and
/// `policy` are lines of those sections.
fn four_on_a_narrow_drive(memory: &str, drive: &str, policy: &str) -> Outcome {
    outcome(&format!(
        r#"
        [run]
        warm-up = "60ms"
        measured = "60ms"
        [machine]
        preset = "skylake-2x4"
        memory = "{memory}"
        workers = 4
        [device]
        kind = "nvme"
        preset = "zssd"
        size = "1GiB"
        inside-max = 16
        {drive}
        [policy]
        kind = "d2fq"
        low-threshold = "1MiB"
        {policy}
        [tenant.light]
        load = "closed"
        depth = 64
        weight = 25
        [tenant.heavy]
        load = "closed"
        count = 3
        first-worker = 1
        depth = 64
        weight = 75
        "#
    ))
}

/// Bytes of one of `heavy` over those of `light`.
fn heavy_over_light(outcome: &Outcome) -> f64 {
    outcome.tenants[1].bytes as f64 / 3.0 / outcome.tenants[0].bytes as f64
}

#[test]
fn a_drive_that_weighs_classes_keeps_to_weights_and_is_told_the_ratio() {
    let outcome = four_on_a_narrow_drive("free", "", "class-ratio = 16");
    let ratio = heavy_over_light(&outcome);
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
    let told: Vec<_> = outcome.class_weights.iter().map(|told| (told.high, told.medium, told.low)).collect();
    assert_eq!(told, [(16, 4, 1)], "a fixed ratio is told once");
    let [light, heavy] = &outcome.tenants[..] else { panic!("two") };
    assert_eq!(heavy.class_bytes[1..], [0, 0], "who is behind goes to the high queues");
    assert!(light.class_bytes[1] + light.class_bytes[2] > light.class_bytes[0], "{:?}", light.class_bytes);
    for tenant in [light, heavy] {
        // Bytes submitted in the time that counts equal those completed in it, but for those in flight at its ends.
        let submitted: u64 = tenant.class_bytes.iter().sum();
        assert!(submitted.abs_diff(tenant.bytes) <= 3 * 64 * 4096, "{submitted} and {}", tenant.bytes);
    }
}

#[test]
fn workers_that_share_sets_of_queues_lose_nothing_and_keep_to_weights() {
    let outcome = four_on_a_narrow_drive("modelled", "queue-pairs = 7", "class-ratio = 16");
    let ratio = heavy_over_light(&outcome);
    assert!((2.9..3.1).contains(&ratio), "two sets of three for four workers: {ratio}");
}

#[test]
fn a_drive_without_classes_is_shared_by_its_own_turns_and_told_nothing() {
    for drive in ["arbitration = \"rr\"", "arbitration = \"wrr-ignored\""] {
        let outcome = four_on_a_narrow_drive("free", drive, "class-ratio = 16");
        let ratio = heavy_over_light(&outcome);
        assert!((0.95..1.05).contains(&ratio), "{drive}: each queue in turn, {ratio}");
    }
    assert!(four_on_a_narrow_drive("free", "arbitration = \"rr\"", "").class_weights.is_empty());
}

#[test]
fn without_a_block_layer_classes_are_named_all_the_same() {
    let outcome = four_on_a_narrow_drive("free", "block-layer = \"low-latency\"", "class-ratio = 16");
    let ratio = heavy_over_light(&outcome);
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
}
