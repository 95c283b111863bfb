//! Each refusal, to the letter; and that what is read is what was written.

use super::*;
use crate::any::AnyScenario;
use crate::machine;
use mqfq_blk_watched::{CostModel, PriorityClass};
use mqfq_blkmq_watched::{QueueLayout, Spread};
use mqfq_policies_watched::{BfqOptions, D2fqOptions, KyberOptions, MqDeadlineOptions};

mod drives;

/// Page that describes the keys.
const PAGE: &str = include_str!("../../../../docs/lab/scenarios.md");

/// A scenario that is right, 14 lines; tests add to it or replace a line of it.
const GOOD: &str = r#"[run]
seed = 7

[machine]
preset = "haswell-2x8"

[device]
kind = "nvme"
preset = "nvmf-dram"
size = "64GiB"

[tenant.fio]
load = "closed"
depth = 128
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse("s.toml", text).map_err(|error| error.to_string())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err("this scenario must be refused")
}

fn good_with(old: &str, new: &str) -> String {
    assert_eq!(GOOD.matches(old).count(), 1, "{old:?} stands in GOOD once");
    GOOD.replace(old, new)
}

/// GOOD with lines added to the tenant's section.
fn tenant(more: &str) -> String {
    format!("{GOOD}{more}\n")
}

#[test]
fn what_is_left_out_has_its_default() {
    let scenario = parse(GOOD).unwrap();
    assert_eq!((scenario.seed, scenario.warm_up_ns, scenario.measured_ns), (7, 20_000_000, 100_000_000));
    assert_eq!(scenario.machine.workers, 32, "2 x 8 x 2 hardware threads");
    assert_eq!(scenario.machine, Machine { workers: 32, ..machine::preset("haswell-2x8").unwrap() });
    assert_eq!(
        scenario.device,
        Device {
            preset: Some("nvmf-dram".into()),
            size_bytes: 64 << 30,
            queue_depth: 1024,
            queue_pairs: 3072,
            arbitration: None,
            inside_max: None,
            slowed: 1,
            volatile_cache: None,
            spells: Spells::default(),
            strangers: None,
            queues: QueueLayout::default(),
            split: Split::Off,
            floor_thousandths: 700,
            cost: CostModel::FLAT,
            follow_writes: false
        }
    );
    let policy = &scenario.policy;
    assert_eq!((policy.kind, policy.depth, policy.window_bytes), (PolicyKind::Mqfq, 64, 65_536));
    assert_eq!(policy.relaxed, Some(crate::form::ByHand::default()));
    let [fio] = &scenario.tenants[..] else { panic!("one tenant") };
    assert_eq!((fio.name.as_str(), fio.count, fio.threads, fio.weight), ("fio", 1, 1, Weight::DEFAULT));
    assert_eq!(fio.load.arrival, Arrival::Closed { depth: 128, think_ns: 0, bursts: None });
    assert_eq!((&fio.load.sizes[..], fio.load.read_percent, fio.load.cpu_ns), (&[(4096, 100)][..], 100, 0));
    assert_eq!((fio.load.pattern, fio.background, fio.stop_ns), (Pattern::Random, None, None));
}

#[test]
fn every_key_is_read() {
    let scenario = parse(
        r#"
[run]
seed = 3
warm-up = "5ms"
measured = "1s"
windows = "10ms"
[machine]
preset = "haswell-2x6"
workers = 12
sockets = 4
cores-per-socket = 3
threads-per-core = 1
latency = { wake-other-socket-ns = 1500, two-threads-factor = 1.3, lines-under-lock = 4, fence-ns = 12.5 }
[device]
kind = "null"
size = "1GiB"
queue-depth = 32
queue-pairs = 7
[policy]
kind = "mqfq"
depth = 128
window = "128KiB"
token-unit = "4KiB"
form = "relaxed"
quantum = "32KiB"
lease = "1KiB"
token-batch = 8
virtual-time = "array-scan"
tokens = "scalable-bitmap"
unthrottle = "poll 2us"
[tenant.a]
weight = 300
class = "idle"
count = 10
threads = 6
first-worker = 11
start = "1ms"
stop = "900ms"
load = "open"
rate = 50000.5
poisson = true
burst-on = "1ms"
burst-off = "4ms"
sizes = { "4KiB" = 70, "8KiB" = 30 }
read-percent = 80
pattern = "zipf"
theta = 0.5
cpu = "3us"
background = { per-request = "5KiB", size = "256KiB", read-percent = 40, depth = 4 }
[tenant.b]
on-workers = [0, 2, 4]
load = "phases"
depth = 32
phase-requests = 500
compute = "2ms"
pattern = "sequential"
size = 512
"#,
    )
    .unwrap();
    assert_eq!((scenario.seed, scenario.warm_up_ns, scenario.measured_ns), (3, 5_000_000, 1_000_000_000));
    assert_eq!((scenario.window_ns, scenario.tells_backlog), (Some(10_000_000), false));
    let machine = &scenario.machine;
    assert_eq!(
        (machine.sockets, machine.cores_per_socket, machine.threads_per_core, machine.workers),
        (4, 3, 1, 12),
        "12 workers on 12 threads"
    );
    let latency = &machine.latency;
    assert_eq!((latency.wake_other_socket_ns, latency.two_threads_factor, latency.fence_ns), (1500.0, 1.3, 12.5));
    assert_eq!(latency.lines_under_lock, 4);
    assert_eq!(
        scenario.device,
        Device {
            preset: None,
            size_bytes: 1 << 30,
            queue_depth: 32,
            queue_pairs: 7,
            arbitration: None,
            inside_max: None,
            slowed: 1,
            spells: Spells::default(),
            queues: QueueLayout::default(),
            ..Device::new(None, 0, 1)
        }
    );
    let policy = &scenario.policy;
    assert_eq!((policy.depth, policy.window_bytes, policy.token_unit_bytes), (128, 131_072, Some(4096)));
    let by_hand = policy.relaxed.expect("it is in the relaxed form");
    assert_eq!(
        (by_hand.quantum_bytes, by_hand.lease_bytes, by_hand.token_batch),
        (Some(32 << 10), Some(1024), Some(8))
    );
    assert_eq!(
        (policy.virtual_time, policy.tokens, policy.unthrottle),
        (VirtualTimeKind::ArrayScan, TokensKind::ScalableBitmap, Unthrottle::Poll { period_ns: 2000 })
    );
    let [a, b] = &scenario.tenants[..] else { panic!("two tenants") };
    assert_eq!((a.class, b.class), (PriorityClass::Idle, PriorityClass::BestEffort));
    assert_eq!((a.weight.get(), a.count, a.threads, a.clients(), a.first_worker), (300, 10, 6, 7, 11));
    assert_eq!((a.start_ns, a.stop_ns), (1_000_000, Some(900_000_000)));
    assert_eq!(
        a.load,
        Load {
            arrival: Arrival::Open { rate_per_s: 50_000.5, poisson: true, bursts: Some((1_000_000, 4_000_000)) },
            sizes: vec![(4096, 70), (8192, 30)],
            read_percent: 80,
            pattern: Pattern::Zipf { theta: 0.5 },
            cpu_ns: 3_000,
        }
    );
    let background = Background { per_request_bytes: 5120, size_bytes: 256 << 10, read_percent: 40, depth: 4 };
    assert_eq!(a.background, Some(background));
    assert_eq!(b.load.arrival, Arrival::Phases { depth: 32, requests: 500, compute_ns: 2_000_000 });
    assert_eq!((b.load.pattern, &b.load.sizes[..]), (Pattern::Sequential, &[(512, 100)][..]));
    assert_eq!(scenario.flows(), 11);
}

#[test]
fn clients_take_the_workers_in_turn() {
    let scenario = parse(&tenant(
        "count = 3\nthreads = 2\nfirst-worker = 30\n[tenant.b]\nload = \"closed\"\non-workers = [5, 9]\nthreads = 3",
    ));
    let scenario = scenario.unwrap();
    let [fio, b] = &scenario.tenants[..] else { panic!("two tenants") };
    let workers = |tenant: &Tenant, number| -> Vec<usize> {
        (0..tenant.clients()).map(|client| tenant.worker_of(number, client, scenario.machine.workers)).collect()
    };
    // 32 workers: 30, 31, then 0 again.
    assert_eq!([workers(fio, 0), workers(fio, 1), workers(fio, 2)], [[30, 31], [0, 1], [2, 3]]);
    assert_eq!(workers(b, 0), [5, 9, 5]);
}

#[test]
fn every_field_of_the_latencies_is_a_key() {
    let latency = machine::preset("haswell-2x8").unwrap().latency;
    let shown = format!("{latency:?}");
    let fields = shown.trim_start_matches("Latencies { ").trim_end_matches(" }").split(", ");
    for field in fields.map(|field| field.split(':').next().unwrap()) {
        let key = field.replace('_', "-");
        let value = match key.as_str() {
            "two-threads-factor" => "1.75",
            "jitter-share" => "0.375",
            "locks-barge" => {
                if latency.locks_barge {
                    "false"
                } else {
                    "true"
                }
            }
            "locks-ticket" => {
                if latency.locks_ticket {
                    "false"
                } else {
                    "true"
                }
            }
            "shared-words" => "7",
            _ => "37",
        };
        let text = good_with("[device]", &format!("[machine.latency]\n{key} = {value}\n[device]"));
        let scenario = parse(&text).unwrap_or_else(|refused| panic!("{refused}"));
        let now = format!("{:?}", scenario.machine.latency);
        assert!(now.contains(&format!("{field}: {value}")), "{key} sets {field}: {now}");
        assert!(PAGE.contains(&format!("`{key}`")), "docs/lab/scenarios.md says nothing about {key}");
    }
}

#[test]
fn queues_that_workers_share_are_read_and_what_cannot_be_is_refused() {
    let with = |device: &str, policy: &str, machine: &str| {
        parse(&format!(
            "[machine]\npreset = \"user-space-2\"\n{machine}\n[device]\nkind = \"null\"\nsize = \"1GiB\"\n{device}\n[policy]\nkind = \"{policy}\"\n\
             [tenant.a]\nload = \"closed\"\n"
        ))
    };
    let queues = |device: &str| with(device, "none", "").unwrap().device.queues;
    assert_eq!(queues("block-layer = \"sq\""), QueueLayout::SQ);
    assert_eq!(queues("block-layer = \"raw\""), QueueLayout::RAW);
    assert_eq!(queues("hardware-queues = \"single\""), QueueLayout::mq(Spread::PerCore, Spread::Single));
    assert_eq!(queues("software-queues = \"per-socket\""), QueueLayout::mq(Spread::PerSocket, Spread::PerCore));
    for (device, policy, machine, expected) in [
        (
            "software-queues = \"single\"",
            "mqfq",
            "",
            "s.toml:7: device.software-queues: a single software queue is one queue for all workers, and policy mqfq stages requests per worker: allowed is policy none",
        ),
        (
            "block-layer = \"sq\"\nhardware-queues = 1",
            "none",
            "",
            "s.toml:8: device.hardware-queues: is fixed by block-layer = \"sq\", allowed with \"mq\"",
        ),
        (
            "hardware-queues = \"single\"",
            "none",
            "memory = \"free\"",
            "s.toml:7: device.hardware-queues: queues that workers share have locks, allowed is machine.memory = \"modelled\"",
        ),
    ] {
        assert_eq!(with(device, policy, machine).unwrap_err().to_string(), expected);
    }
}

#[test]
fn every_name_stands_on_the_page() {
    let policies = mqfq_policies_watched::ALL.map(PolicyKind::name);
    let drives = mqfq_nvme_watched::presets::ALL.map(|preset| preset.name);
    // `ycsb-a` to `ycsb-f` stand there as a range.
    let models = crate::workload::models::NAMES
        .iter()
        .filter(|name| !matches!(**name, "ycsb-b" | "ycsb-c" | "ycsb-d" | "ycsb-e"));
    for name in policies.iter().chain(&drives).chain(machine::NAMES).chain(models) {
        assert!(PAGE.contains(&format!("`{name}`")), "docs/lab/scenarios.md says nothing about {name}");
    }
}

#[test]
fn every_example_can_be_run() {
    let replay = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/replay.toml");
    let examples =
        crate::embedded::SCENARIOS.iter().copied().chain([(replay, include_str!("../../testdata/replay.toml"))]);
    for (name, text) in examples {
        let scenario = AnyScenario::parse(name, text).unwrap_or_else(|refused| panic!("{refused}"));
        // Programs have their loads in the profiles, which parsing has looked up.
        let AnyScenario::Block(scenario) = scenario else { continue };
        for tenant in &scenario.tenants {
            let sources = crate::workload::sources(tenant, tenant.count - 1, scenario.device.size_bytes, scenario.seed);
            assert_eq!(sources.map(|made| made.len()), Ok(tenant.clients() as usize), "{name}");
        }
    }
}

#[test]
fn an_unknown_key_is_refused_with_those_that_exist() {
    assert_eq!(
        refusal(&good_with("seed", "sead")),
        "s.toml:2: run.sead: unknown key, allowed are seed, warm-up, measured, windows, backlog; did you mean seed?"
    );
    assert_eq!(
        refusal(&format!("{GOOD}[figure]\n")),
        "s.toml:15: figure: unknown key, allowed are run, machine, device, policy, group, tenant"
    );
    assert_eq!(
        refusal(&tenant("rate = 5")),
        "s.toml:15: tenant.fio.rate: unknown key, allowed are weight, group, class, count, threads, first-worker, on-workers, start, stop, load, \
         model, cpu, socket, max-iops, max-bytes-per-s, latency, depth, think, burst-on, burst-off, size, sizes, read-percent, pattern, theta, background",
        "the rate is an open loop's"
    );
    assert!(
        refusal(&good_with("[device]", "[machine.latency]\nsleep = 3\n[device]"))
            .starts_with("s.toml:8: machine.latency.sleep: unknown key, allowed are calls-max, code-per-access-ns, ")
    );
}

#[test]
fn an_unknown_name_is_refused_with_those_that_exist() {
    assert_eq!(
        refusal(&good_with("haswell-2x8", "skylake")),
        format!("s.toml:5: machine.preset: \"skylake\" is not known, allowed are {}", machine::NAMES.join(", "))
    );
    assert_eq!(
        refusal(&good_with("nvmf-dram", "floppy")),
        "s.toml:9: device.preset: \"floppy\" is not known, allowed are flash-460k, flash-60k, optane, nvmf-dram, zssd"
    );
    assert_eq!(
        refusal(&good_with("\"nvme\"", "\"file\"")),
        "s.toml:8: device.kind: \"file\" is not known, allowed are nvme, null"
    );
    assert_eq!(
        refusal(&good_with("\"nvme\"", "\"null\"")),
        "s.toml:9: device.preset: unknown key, allowed are kind, size, queue-depth, queue-pairs, block-layer, software-queues, hardware-queues, split, throughput-floor, cost"
    );
    let policy = |lines: &str| refusal(&format!("{GOOD}[policy]\n{lines}\n"));
    assert_eq!(
        policy("kind = \"cfq\""),
        format!(
            "s.toml:16: policy.kind: \"cfq\" is not known, allowed are {}",
            mqfq_policies_watched::ALL.map(PolicyKind::name).join(", ")
        )
    );
    assert_eq!(
        policy("virtual-time = \"scan\""),
        "s.toml:16: policy.virtual-time: \"scan\" is not known, allowed are mindicator, array-scan, off"
    );
    assert_eq!(
        policy("tokens = \"bitmap\""),
        "s.toml:16: policy.tokens: \"bitmap\" is not known, allowed are token-tree, atomic-counter, scalable-bitmap"
    );
    for value in ["poll", "poll 0s", "poll 1", "wheels"] {
        assert_eq!(
            policy(&format!("unthrottle = \"{value}\"")),
            format!(
                "s.toml:16: policy.unthrottle: \"{value}\" is not known, allowed are \"wheel\", or \"poll \" and a duration (\"poll 1us\")"
            )
        );
    }
    assert_eq!(
        refusal(&good_with("\"closed\"", "\"loop\"")),
        "s.toml:13: tenant.fio.load: \"loop\" is not known, allowed are closed, open, phases, chain, trace"
    );
    assert_eq!(
        refusal(&tenant("model = \"redis\"")),
        "s.toml:15: tenant.fio.model: \"redis\" is not known, allowed are flashx-pagerank, aerospike, ycsb-a, ycsb-b, ycsb-c, ycsb-d, \
         ycsb-e, ycsb-f"
    );
}

#[test]
fn an_impossible_topology_is_refused() {
    let machine =
        |lines: &str| refusal(&good_with("preset = \"haswell-2x8\"", &format!("preset = \"haswell-2x8\"\n{lines}")));
    assert_eq!(machine("sockets = 0"), "s.toml:6: machine.sockets: 0 is out of range, allowed is 1 to 8");
    assert_eq!(machine("sockets = 9"), "s.toml:6: machine.sockets: 9 is out of range, allowed is 1 to 8");
    assert_eq!(
        machine("cores-per-socket = 1025"),
        "s.toml:6: machine.cores-per-socket: 1025 is out of range, allowed is 1 to 1024"
    );
    assert_eq!(
        machine("threads-per-core = 3"),
        "s.toml:6: machine.threads-per-core: 3 is out of range, allowed is 1 to 2"
    );
    assert_eq!(
        machine("workers = 33"),
        "s.toml:6: machine.workers: 33 workers are more than the machine's 2 x 8 x 2 = 32 hardware threads, allowed is 1 to 32"
    );
    assert_eq!(machine("workers = 1025"), "s.toml:6: machine.workers: 1025 is out of range, allowed is 1 to 1024");
    assert_eq!(
        machine("sockets = 8\ncores-per-socket = 65"),
        "s.toml:4: machine.workers: this key is missing and the machine has 1040 hardware threads, allowed is 1 to 1024"
    );
    assert_eq!(
        refusal(&good_with("preset = \"haswell-2x8\"", "")),
        format!("s.toml:4: machine.preset: this key is missing, allowed is {}", machine::NAMES.join(", "))
    );
    assert_eq!(
        refusal(&good_with("[device]", "latency = { two-threads-factor = 2.5 }\n[device]")),
        "s.toml:7: machine.latency.two-threads-factor: 2.5 is out of range, allowed is 1 to 2"
    );
}

#[test]
fn the_tunables_of_an_elevator_are_read_and_its_depth_is_the_device_queues() {
    let policy = |lines: &str| parse(&format!("{GOOD}[policy]\n{lines}\n")).unwrap().policy;
    let plain = policy("kind = \"mq-deadline\"");
    assert_eq!(
        (plain.depth, plain.relaxed, plain.own.get::<MqDeadlineOptions>()),
        (1024, None, MqDeadlineOptions::DEFAULT)
    );
    assert_eq!(policy("kind = \"mq-deadline\"\ndepth = 3").depth, 3);
    let keys = "read-expire = \"1ms\"\nwrite-expire = \"2ms\"\nwrites-starved = 3\nfifo-batch = 4\nprio-aging-expire = \"5ms\"";
    let expected = MqDeadlineOptions {
        read_expire_ns: 1_000_000,
        write_expire_ns: 2_000_000,
        writes_starved: 3,
        fifo_batch: 4,
        prio_aging_expire_ns: 5_000_000,
    };
    let set = policy(&format!("kind = \"mq-deadline\"\n{keys}"));
    assert_eq!(set.own.get::<MqDeadlineOptions>(), expected);
    let kyber = policy("kind = \"kyber\"\nread-latency = \"75us\"\nwrite-latency = \"1ms\"").own.get::<KyberOptions>();
    assert_eq!(kyber, KyberOptions { read_latency_ns: 75_000, write_latency_ns: 1_000_000, ..KyberOptions::DEFAULT });
    assert_eq!(
        crate::rivals::options(&set, 2).unwrap().own.get::<MqDeadlineOptions>().fifo_batch,
        4,
        "and arrive in the policy"
    );
}

#[test]
fn the_tunables_of_bfq_are_read_and_arrive_in_the_policy() {
    let policy = |lines: &str| parse(&format!("{GOOD}[policy]\nkind = \"bfq\"\n{lines}\n")).unwrap().policy;
    assert_eq!((policy("").depth, policy("").own.get::<BfqOptions>()), (1024, BfqOptions::DEFAULT));
    let keys = "slice-idle = \"1ms\"\ntimeout-sync = \"2ms\"\nmax-budget = \"3MiB\"\nlow-latency = false\nstrict-guarantees = true\n\
                fifo-expire-sync = \"4ms\"\nfifo-expire-async = \"5ms\"";
    let expected = BfqOptions {
        slice_idle_ns: 1_000_000,
        timeout_sync_ns: 2_000_000,
        max_budget_bytes: 3 << 20,
        low_latency: false,
        strict_guarantees: true,
        fifo_expire_sync_ns: 4_000_000,
        fifo_expire_async_ns: 5_000_000,
    };
    assert_eq!(crate::rivals::options(&policy(keys), 2).unwrap().own.get::<BfqOptions>(), expected);
    assert_eq!(
        refusal(&format!("{GOOD}[policy]\nkind = \"sfqd\"\nslice-idle = \"1ms\"\n")),
        "s.toml:17: policy.slice-idle: is no setting of policy sfqd, allowed with bfq"
    );
}

#[test]
fn a_drive_can_be_slower_and_narrower_than_itself_and_choose_among_queues_by_weight() {
    let device =
        |lines: &str| parse(&good_with("size = \"64GiB\"", &format!("size = \"64GiB\"\n{lines}"))).unwrap().device;
    let split = |value: &str| device(&format!("split = \"{value}\"")).split;
    assert_eq!([split("off"), split("auto"), split("12KiB")], [Split::Off, Split::Auto, Split::Bytes(12 << 10)]);
    let set = device("arbitration = \"wrr-ignored\"\ninside-max = 16\nslowed = 10\nqueue-pairs = 32");
    assert_eq!((set.arbitration, set.inside_max, set.slowed), (Some(Arbitration::WeightedIgnored), Some(16), 10));
    assert_eq!(set.queue_pairs, 32);
    let refused = |line: &str| refusal(&good_with("size = \"64GiB\"", &format!("size = \"64GiB\"\n{line}")));
    assert_eq!(
        refused("arbitration = \"urgent\""),
        "s.toml:11: device.arbitration: \"urgent\" is not known, allowed are rr, wrr, wrr-ignored"
    );
    assert_eq!(
        refused("split = \"4097B\""),
        "s.toml:11: device.split: \"4097B\" is no multiple of 4KiB, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB"
    );
    assert_eq!(
        refused("split = \"2MiB\""),
        "s.toml:11: device.split: \"2MiB\" is out of range, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB"
    );
    assert_eq!(refused("inside-max = 0"), "s.toml:11: device.inside-max: 0 is out of range, allowed is 1 to 65535");
    let drifting = device("write-drift = { times = 4, period = \"8s\" }\ncost = \"auto\"");
    assert_eq!(
        drifting.spells.write_drift,
        Some(mqfq_nvme_watched::spells::Drift { times: 4, period_ns: 8_000_000_000 })
    );
    assert_eq!((drifting.follow_writes, drifting.cost), (true, CostModel::FLAT));
    assert!(!device("cost = \"bytes\"").follow_writes);
    assert_eq!(
        refused("write-drift = { times = 65, period = \"8s\" }"),
        "s.toml:11: device.write-drift.times: 65 is out of range, allowed is 1 to 64"
    );
    assert_eq!(refused("cost = \"time\""), "s.toml:11: device.cost: \"time\" is not known, allowed are bytes, auto");
    assert_eq!(refused("slowed = 1001"), "s.toml:11: device.slowed: 1001 is out of range, allowed is 1 to 1000");
    assert_eq!(
        refused("queue-pairs = 3073"),
        "s.toml:11: device.queue-pairs: 3073 is out of range, allowed is 1 to 3072"
    );
    let free = "[machine]\npreset = \"skylake-2x4\"\nmemory = \"free\"\n[device]\nkind = \"null\"\nsize = \"1GiB\"\nqueue-pairs = 23\n\
                [policy]\nkind = \"d2fq\"\n[tenant.a]\nload = \"closed\"";
    assert_eq!(
        refusal(free),
        "s.toml:7: device.queue-pairs: 23 for 8 workers, which need 3 each, means that they share queues, which have locks, allowed is \
         machine.memory = \"modelled\""
    );
    assert!(parse(&free.replace("23", "24")).is_ok(), "a set for each worker");
    let null = "[machine]\npreset = \"haswell-2x8\"\n[device]\nkind = \"null\"\nslowed = 2";
    assert_eq!(
        refusal(null),
        "s.toml:5: device.slowed: unknown key, allowed are kind, size, queue-depth, queue-pairs, block-layer, software-queues, \
         hardware-queues, split, throughput-floor, cost"
    );
}

#[test]
fn the_tunables_of_d2fq_are_read_and_arrive_in_the_policy() {
    let policy = |lines: &str| parse(&format!("{GOOD}[policy]\nkind = \"d2fq\"\n{lines}\n")).unwrap().policy;
    assert_eq!((policy("").depth, policy("").own.get::<D2fqOptions>()), (64, D2fqOptions::DEFAULT));
    let keys = "low-threshold = \"1MiB\"\nclass-ratio = 3\nadjust-period = \"100ms\"\ngrace-period = \"1ms\"\nvtime-quantum = \"4KiB\"";
    let expected = D2fqOptions {
        low_threshold_bytes: 1 << 20,
        class_ratio: 3,
        adjust_period_ns: 100_000_000,
        grace_period_ns: 1_000_000,
        vtime_quantum_bytes: 4096,
    };
    assert_eq!(crate::rivals::options(&policy(keys), 2).unwrap().own.get::<D2fqOptions>(), expected);
    assert_eq!(
        refusal(&format!("{GOOD}[policy]\nkind = \"mqfq\"\nclass-ratio = 3\n")),
        "s.toml:17: policy.class-ratio: is no setting of policy mqfq, allowed with d2fq"
    );
}

#[test]
fn a_run_has_so_many_windows_at_most() {
    let refused = |windows: &str| refusal(&good_with("seed = 7", &format!("seed = 7\nwindows = \"{windows}\"")));
    assert_eq!(refused("1us"), "s.toml:3: run.windows: the run has 120000 windows of this length, allowed are 100000");
    assert_eq!(refused("1ns"), "s.toml:3: run.windows: \"1ns\" is out of range, allowed is 1us to 3600s");
}

#[test]
fn a_policys_settings_belong_to_it() {
    let policy = |lines: &str| refusal(&format!("{GOOD}[policy]\n{lines}\n"));
    assert_eq!(policy("depth = 0"), "s.toml:16: policy.depth: 0 is out of range, allowed is 1 to 65535 or \"auto\"");
    assert_eq!(
        policy("kind = \"sfqd\"\nform = \"exact\""),
        "s.toml:17: policy.form: is no setting of policy sfqd, allowed with mqfq and mqfq-serial"
    );
    assert_eq!(
        policy("form = \"exact\"\nlease = 0"),
        "s.toml:17: policy.lease: is fixed by form = \"exact\", allowed with form = \"relaxed\""
    );
    assert_eq!(
        policy("kind = \"mqfq-serial\"\ntokens = \"token-tree\""),
        "s.toml:17: policy.tokens: is no setting of policy mqfq-serial, allowed with mqfq"
    );
    assert_eq!(
        policy("kind = \"sfqd\"\nfifo-batch = 4"),
        "s.toml:17: policy.fifo-batch: is no setting of policy sfqd, allowed with mq-deadline"
    );
    assert_eq!(
        policy("kind = \"mq-deadline\"\nread-expire = \"3601s\""),
        "s.toml:17: policy.read-expire: \"3601s\" is out of range, allowed is 0s to 3600s"
    );
    assert_eq!(
        policy("kind = \"mqfq\"\nglobal-vtime = \"off\""),
        "s.toml:17: policy.global-vtime: is no setting of policy mqfq, allowed with d2fq"
    );
    assert_eq!(
        policy("kind = \"d2fq\"\nglobal-vtime = \"exact\""),
        "s.toml:17: policy.global-vtime: \"exact\" is not known, allowed are sloppy, mindicator, serial-scan, off"
    );
    assert_eq!(
        policy("quantum = \"48KiB\""),
        "s.toml:16: policy.quantum: 48KiB is out of range, allowed is 0 or a power of two up to 32KiB, half the window"
    );
    assert_eq!(
        policy("window = \"1KiB\"\nlease = 513"),
        "s.toml:17: policy.lease: 513 is out of range, allowed is 0 to 512, half the window"
    );
}

#[test]
fn a_tenant_must_do_something_that_can_be_done() {
    assert_eq!(
        refusal(&good_with("load = \"closed\"\ndepth = 128\n", "")),
        "s.toml:12: tenant.fio.load: this key is missing, allowed is one of closed, open, phases, chain, trace, or a model"
    );
    assert_eq!(
        refusal(&good_with("[tenant.fio]\nload = \"closed\"\ndepth = 128\n", "")),
        "s.toml:1: no [tenant.NAME] section, at least one is needed"
    );
    assert_eq!(
        refusal(&good_with("depth = 128", "depth = 0")),
        "s.toml:14: tenant.fio.depth: 0 is out of range, allowed is 1 to 65535"
    );
    let out_of_range = |line: &str, key: &str, allowed: &str| {
        let value = line.split("= ").nth(1).unwrap();
        assert_eq!(
            refusal(&tenant(line)),
            format!("s.toml:15: tenant.fio.{key}: {value} is out of range, allowed is {allowed}")
        );
    };
    out_of_range("weight = 0", "weight", "1 to 10000");
    assert_eq!(
        refusal(&tenant("class = \"rt\"")),
        "s.toml:15: tenant.fio.class: \"rt\" is not known, allowed are realtime, best-effort, idle"
    );
    out_of_range("count = 0", "count", "1 to 1000000");
    out_of_range("threads = 0", "threads", "1 to 4096");
    out_of_range("first-worker = 32", "first-worker", "0 to 31");
    out_of_range("read-percent = 101", "read-percent", "0 to 100");
    out_of_range("size = \"64MiB\"", "size", "512 to 32MiB");
    out_of_range("start = \"120ms\"", "start", "0s to 119999999ns");
    assert_eq!(
        refusal(&tenant("on-workers = [0, 32]")),
        "s.toml:15: tenant.fio.on-workers: 32 is out of range, allowed is 0 to 31"
    );
    assert_eq!(
        refusal(&tenant("on-workers = []")),
        "s.toml:15: tenant.fio.on-workers: 0 numbers do not fit here, allowed is a list of worker numbers, 0 to 31"
    );
    assert_eq!(
        refusal(&tenant("on-workers = [1]\nfirst-worker = 1")),
        "s.toml:16: tenant.fio.first-worker: does not go together with on-workers, allowed is one of the two"
    );
    assert_eq!(
        refusal(&tenant("start = \"2ms\"\nstop = \"2ms\"")),
        "s.toml:16: tenant.fio.stop: \"2ms\" is out of range, allowed is 2000001ns to 3600s"
    );
    assert_eq!(
        refusal(&tenant("cpu = \"3\"")),
        "s.toml:15: tenant.fio.cpu: \"3\" is not a duration, allowed is a whole number followed by ns, us, ms or s (\"50ms\")"
    );
    assert_eq!(
        refusal(&tenant("cpu = 3")),
        "s.toml:15: tenant.fio.cpu: an integer does not fit here, allowed is a whole number followed by ns, us, ms or s (\"50ms\")"
    );
    assert_eq!(
        refusal(&tenant("count = 1000000\n[tenant.b]\nload = \"closed\"\ncount = 100000")),
        "s.toml:16: tenant.b: with this tenant there are 1100000 flows and 1100000 clients, allowed are 1048576 and 4194304"
    );
}

#[test]
fn sizes_are_whole_blocks_whose_parts_sum_to_100() {
    let sizes = |value: &str| refusal(&tenant(&format!("sizes = {value}")));
    assert_eq!(
        sizes("{ \"4KiB\" = 70, \"8KiB\" = 20 }"),
        "s.toml:15: tenant.fio.sizes: the parts sum to 90, allowed is 100"
    );
    assert_eq!(
        sizes("{ \"4KiB\" = 50, 4096 = 50 }"),
        "s.toml:15: tenant.fio.sizes.4096: 4096 bytes stand here twice, allowed is once"
    );
    assert_eq!(
        sizes("{ \"4K\" = 100 }"),
        "s.toml:15: tenant.fio.sizes.4K: \"4K\" is no size that fits, allowed is 512 to 32MiB"
    );
    assert_eq!(
        sizes("{ 1000 = 100 }"),
        "s.toml:15: tenant.fio.sizes.1000: 1000 is no multiple of 512, allowed are whole blocks"
    );
    assert_eq!(
        sizes("\"4KiB\""),
        "s.toml:15: tenant.fio.sizes: the string \"4KiB\" does not fit here, allowed is a table of sizes and percentages ({ \"4KiB\" = 70, \
         \"64KiB\" = 30 })"
    );
    assert_eq!(
        refusal(&tenant("size = \"4KiB\"\nsizes = { \"4KiB\" = 100 }")),
        "s.toml:16: tenant.fio.sizes: does not go together with size, allowed is one of the two"
    );
    assert_eq!(
        refusal(&good_with("64GiB", "1048577")),
        "s.toml:10: device.size: 1048577 is no multiple of 512, allowed are whole blocks"
    );
}

#[test]
fn skew_belongs_to_zipf_and_lies_between_0_and_1() {
    let zipf = |theta: &str| tenant(&format!("pattern = \"zipf\"\ntheta = {theta}"));
    for theta in ["0", "1", "0.0", "1.0"] {
        let shown = theta.trim_end_matches(".0");
        assert_eq!(
            refusal(&zipf(theta)),
            format!("s.toml:16: tenant.fio.theta: {shown} is out of range, allowed is more than 0 and less than 1")
        );
    }
    assert_eq!(refusal(&zipf("1.5")), "s.toml:16: tenant.fio.theta: 1.5 is out of range, allowed is 0 to 1");
    assert_eq!(parse(&tenant("pattern = \"zipf\"")).unwrap().tenants[0].load.pattern, Pattern::Zipf { theta: 0.99 });
    assert_eq!(
        refusal(&tenant("theta = 0.5")),
        "s.toml:15: tenant.fio.theta: is the skew of zipf, allowed with pattern = \"zipf\""
    );
}

#[test]
fn an_open_loop_has_a_rate_and_whole_bursts() {
    let open = |more: &str| refusal(&good_with("load = \"closed\"\ndepth = 128", &format!("load = \"open\"{more}")));
    assert_eq!(
        open(""),
        "s.toml:12: tenant.fio.rate: this key is missing, allowed is requests per second of each thread"
    );
    assert_eq!(open("\nrate = 0"), "s.toml:14: tenant.fio.rate: 0 is out of range, allowed is 0.001 to 1000000000");
    assert_eq!(
        open("\nrate = 1\nburst-on = \"1ms\""),
        "s.toml:15: tenant.fio.burst-on: stands alone, allowed are burst-on and burst-off together"
    );
}

#[test]
fn a_model_sets_every_key_and_each_can_be_set_again() {
    let model = |text: &str| {
        let text = good_with("load = \"closed\"\ndepth = 128", text);
        parse(&text).unwrap_or_else(|refused| panic!("{refused}")).tenants.remove(0)
    };
    let aerospike = model("model = \"aerospike\"");
    assert_eq!((aerospike.threads, &aerospike.load.sizes[..]), (16, &[(512, 100)][..]));
    let changed = model("model = \"aerospike\"\nthreads = 4\ndepth = 32\ncpu = \"9us\"\nsize = \"4KiB\"");
    assert_eq!((changed.threads, &changed.load.sizes[..], changed.load.cpu_ns), (4, &[(4096, 100)][..], 9_000));
    assert_eq!(changed.load.arrival, Arrival::Closed { depth: 32, think_ns: 0, bursts: None });
    let flashx = model("model = \"flashx-pagerank\"\ncompute = \"5ms\"");
    assert_eq!(flashx.load.arrival, Arrival::Phases { depth: 8, requests: 16_845, compute_ns: 5_000_000 });
    let open = model("model = \"ycsb-a\"\nload = \"open\"\nrate = 1000\nbackground = { read-percent = 0 }");
    assert_eq!(open.load.arrival, Arrival::Open { rate_per_s: 1000.0, poisson: false, bursts: None });
    assert_eq!(
        open.background.map(|background| (background.per_request_bytes, background.read_percent)),
        Some((9728, 0))
    );
    assert_eq!(model("model = \"ycsb-a\"\nbackground = { per-request = 0 }").background, None);
    assert_eq!(open.load.pattern, Pattern::Zipf { theta: 0.99 });
}

#[test]
fn a_trace_that_cannot_be_played_is_refused_with_its_own_line() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let with = |trace: &str, device: &str| {
        let text = good_with("load = \"closed\"\ndepth = 128", &format!("load = \"trace\"\ntrace = \"{trace}\""));
        Scenario::parse(&format!("{folder}/s.toml"), &text.replace("64GiB", device)).map_err(|refused| refused.message)
    };
    let scenario = with("fio-3.33.iolog", "1MiB").unwrap();
    let Arrival::Trace { trace, stretch, depth } = &scenario.tenants[0].load.arrival else { panic!("a trace") };
    assert_eq!((trace.requests.len(), *stretch, *depth), (24, 1.0, None), "fio wrote number_ios=24");
    let scenario = with("fio-version-2.iolog", "1MiB").unwrap();
    let Arrival::Trace { trace, depth, .. } = &scenario.tenants[0].load.arrival else { panic!("a trace") };
    assert_eq!((trace.timed, *depth), (false, Some(1)), "without times as fio plays it: iodepth=1");
    assert_eq!(with("none.log", "1MiB"), Err(format!("cannot read {folder}/none.log: No such file or directory")));
    assert_eq!(
        with("blkparse.txt", "1MiB"),
        Err(format!(
            "{folder}/blkparse.txt:2: 4096 bytes at 1048576 end past the device, allowed is up to byte 1048576"
        ))
    );
}

#[test]
fn a_tenant_alone_is_the_same_tenant() {
    let scenario = parse(&tenant("[tenant.b]\nload = \"closed\"")).unwrap();
    let alone = scenario.alone(1);
    assert_eq!(alone.tenants, scenario.tenants[1..]);
    assert_eq!((&alone.machine, &alone.device, alone.seed), (&scenario.machine, &scenario.device, scenario.seed));
}

#[test]
fn sockets_have_sizes_and_times_and_turns_are_fair_unless_told() {
    let socket = |keys: &str| Scenario::parse("s.toml", &tenant(&format!("socket = {{ {keys} }}"))).unwrap();
    let scenario = socket("");
    assert!(scenario.machine.intake_is_fair);
    assert_eq!(scenario.tenants[0].socket, Some(SocketOptions { buffer_bytes: 208 << 10, network_ns: 5_000 }));
    let chosen = socket("buffer = \"4KiB\", network = \"1ms\"").tenants[0].socket;
    assert_eq!(chosen, Some(SocketOptions { buffer_bytes: 4096, network_ns: 1_000_000 }));
    let small = refusal(&tenant("socket = { buffer = \"1KiB\" }"));
    assert!(small.starts_with("s.toml:15: tenant.fio.socket.buffer: "), "{small}");
    let unknown = refusal(&tenant("socket = { size = \"1KiB\" }"));
    assert!(unknown.ends_with("unknown key, allowed are buffer, network"), "{unknown}");
}
