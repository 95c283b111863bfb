//! Each refusal, to the letter: a config error is read by a person at three in the morning.

use super::machine::Files;
use super::*;
use mqfq_blk::slots::Slot;
use mqfq_blk::split::Split;
use mqfq_blk::{CostModel, CostTerm, OwnOptions, PolicyKind, PolicyOptions, VSpan, WINDOW_LEAST};
use mqfq_policies::{BFQ, BfqOptions, D2FQ, D2fqOptions, KYBER, KyberOptions, MQ_DEADLINE, MqDeadlineOptions, SFQD};
use std::path::Path;

mod bounds;
mod depth;

use depth::{auto, auto_window};

/// A machine with one file, `/disk`, of 1 MiB; `/disk-again` is the same file. `/cdrom` has its size and cannot be
/// written.
struct OneDisk;

impl Files for OneDisk {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        match path.to_str() {
            Some("/disk" | "/disk-again" | "/cdrom") => Ok(1 << 20),
            Some("/empty") => Ok(0),
            _ => Err("No such file or directory".into()),
        }
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        if path == Path::new("/cdrom") { Err("Read-only file system".into()) } else { Ok(()) }
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        if path == Path::new("/disk-again") { "/disk".into() } else { path.into() }
    }
}

pub(super) fn plan(text: &str) -> Result<Plan, String> {
    let checked = Config::parse("c.toml", text).and_then(|config| config.check(&OneDisk));
    checked.map_err(|error| error.to_string())
}

pub(super) fn refusal(text: &str) -> String {
    plan(text).expect_err("this config must be refused")
}

/// A config that is right, 13 lines; tests add to it or replace a line of it.
pub(super) const GOOD: &str = r#"[device.fast]
kind = "memory"
size = "1MiB"

[tenant.alice]
weight = 200

[export.root]
device = "fast"
tenant = "alice"
size = "256KiB"
nbd = "unix:/run/a.sock"
"#;

pub(super) fn good_with(old: &str, new: &str) -> String {
    assert_eq!(GOOD.matches(old).count(), 1, "{old:?} stands in GOOD once");
    GOOD.replace(old, new)
}

#[test]
fn a_good_config_becomes_a_plan_in_indices() {
    let more = r#"
[device.slow]
kind = "model"
preset = "flash-60k"
size = "8MiB"
policy = "sfqd"
expert = { depth = 32, window = 0, queue-depth = 65535 }
cost = { write = { per-byte = 2.5, base = "1KiB" } }

[tenant.bob]

[export.bob-1]
device = "slow"
tenant = "bob"
nbd = ["unix:/run/a.sock", "tcp:127.0.0.1:10809"]
offset = "1MiB"
read-only = true
description = "what bob reads"

[export.alice-2]
device = "slow"
tenant = "alice"
size = "1MiB"
nbd = "tcp:[::1]:10809"

[server]
workers = 2
pin = false
"#;
    let plan = plan(&format!("{GOOD}{more}")).unwrap();
    assert_eq!((plan.server.workers, plan.server.pin), (Some(2), false));
    assert!(plan.warnings.is_empty());
    let [fast, slow] = plan.devices.values().collect::<Vec<_>>()[..] else { panic!("two devices") };
    let [fast_policy, slow_policy] = [fast, slow].map(|device| device.config.policy.options(2));
    assert_eq!(fast_policy, auto(auto_window(PolicyOptions::new(PolicyKind::Mqfq))).relaxed(2));
    assert_eq!((fast_policy.depth, fast_policy.window.bytes()), (64, 65_536));
    assert_eq!((fast_policy.token_unit_bytes, fast.config.queue_depth), (Some(4096), 1024));
    assert_eq!((slow_policy.kind, slow_policy.depth), (SFQD, 32));
    assert_eq!((slow_policy.window, slow_policy.token_unit_bytes), (VSpan(0), Some(4096)));
    assert_eq!(slow.config.queue_depth, 65_535);
    assert_eq!(slow.config.cost.write, CostTerm { base_bytes: 1024, per_byte_256ths: 640 });
    assert_eq!(slow.config.cost.read, CostModel::FLAT.read);

    // A flow per tenant and device: alice is flow 0 of both, bob is flow 1 of slow.
    let flows = |device: &DevicePlan| {
        device.flows.values().map(|flow| (flow.tenant.clone(), flow.weight.get())).collect::<Vec<_>>()
    };
    assert_eq!(flows(fast), [("alice".into(), 200)]);
    assert_eq!(flows(slow), [("alice".into(), 200), ("bob".into(), 100)]);
    let placed: Vec<_> = plan
        .exports
        .values()
        .map(|e| (e.name.as_str(), e.device.place(), e.flow.place(), e.offset_bytes, e.size_bytes))
        .collect();
    assert_eq!(
        placed,
        [("root", 0, 0, 0, 256 << 10), ("bob-1", 1, 1, 1 << 20, 7 << 20), ("alice-2", 1, 0, 0, 1 << 20)],
        "bob-1 has no size: 8 MiB - 1 MiB remain"
    );
    let shown: Vec<_> = plan.exports.values().map(|e| (e.read_only, e.description.as_deref())).collect();
    assert_eq!(shown, [(false, None), (true, Some("what bob reads")), (false, None)]);
    // Exports that share an address share a listener.
    let listeners: Vec<_> = plan
        .listeners
        .iter()
        .map(|(address, exports)| (address.to_string(), exports.iter().map(|slot| slot.place()).collect()))
        .collect();
    assert_eq!(
        listeners,
        [
            ("unix:/run/a.sock".into(), vec![0, 1]),
            ("tcp:127.0.0.1:10809".into(), vec![1]),
            ("tcp:[::1]:10809".into(), vec![2])
        ]
    );
}

#[test]
fn an_unknown_key_is_named_with_those_that_exist() {
    assert_eq!(
        refusal(&good_with("weight = 200", "wieght = 200")),
        "c.toml:6: tenant.alice.wieght: unknown key, allowed are weight, group, latency, staged-requests, staged-bytes, memory, max-iops, max-bytes-per-s, identity; did you mean weight?"
    );
    assert_eq!(
        refusal(&format!("{GOOD}[devices.x]\n")),
        "c.toml:13: devices: unknown key, allowed are server, control, tls, address, device, group, tenant, export; did you mean device?"
    );
    let other_kind = |key: &str| refusal(&good_with("size = \"1MiB\"", &format!("size = \"1MiB\"\n{key}")));
    let of = |kind: &str| format!("is for kind {kind} only, and this device is of kind memory");
    assert_eq!(other_kind("preset = \"optane\""), format!("c.toml:4: device.fast.preset: {}", of("model")));
    let direct = format!("c.toml:4: device.fast.expert.direct: {}", of("file"));
    assert_eq!(other_kind("expert.direct = \"auto\""), direct);
    assert_eq!(
        other_kind("expert.deph = 3"),
        "c.toml:4: device.fast.expert.deph: unknown key, allowed are depth, window, split, queue-depth, retries; did you mean depth?"
    );
    assert_eq!(
        other_kind("expert = 3"),
        "c.toml:4: device.fast.expert: an integer does not fit here, allowed is a table"
    );
}

#[test]
fn d2fq_has_the_keys_of_its_fallback() {
    let device = |keys: &str| good_with("kind = \"memory\"", keys);
    let config = |keys: &str| {
        plan(&device(keys)).unwrap_or_else(|error| panic!("{keys}: {error}")).devices[Slot::first(0)].config.clone()
    };
    // Whether the device has class queues is found out when it is there.
    let memory = "kind = \"memory\"\npolicy = \"d2fq\"";
    let d2fq = config(memory);
    assert_eq!((d2fq.policy.options(4).kind, d2fq.policy.fallback(4)), (D2FQ, None));
    let expert = "expert = { depth = 13, window = \"32KiB\" }";
    let falls_back = config(&format!("{memory}\nwithout-wrr = \"mqfq\"\n{expert}"));
    let fallback = falls_back.policy.fallback(4).unwrap();
    let (window, token_unit_bytes) = (VSpan::from_bytes(32 << 10), Some(4096));
    let mqfq = PolicyOptions { depth: 13, window, token_unit_bytes, ..PolicyOptions::new(PolicyKind::Mqfq) };
    assert_eq!(fallback, mqfq.relaxed(4));
    assert_eq!(falls_back.policy.written().kind, PolicyKind::Mqfq);
    assert_eq!(falls_back.policy.options(4), d2fq.policy.options(4), "the keys are the fallback's");
    for (keys, expected) in [
        (
            "kind = \"memory\"\nwithout-wrr = \"mqfq\"".to_owned(),
            "without-wrr: is no setting of policy mqfq, allowed with d2fq",
        ),
        (format!("{memory}\nwithout-wrr = \"none\""), "without-wrr: \"none\" is not known, allowed are refuse, mqfq"),
    ] {
        let message = refusal(&device(&keys));
        assert!(message.ends_with(&format!("device.fast.{expected}")), "{message}");
    }
}

#[test]
fn a_modelled_drive_is_its_preset_as_often_slowed_as_the_key_says() {
    let medium = |keys: &str| {
        let text = good_with("kind = \"memory\"", &format!("kind = \"model\"\n{keys}"));
        plan(&text).map(|plan| plan.devices[Slot::first(0)].config.medium.clone())
    };
    let drive = |times| Ok(Medium::Model { preset: presets::FLASH_60K.slowed(times), size_bytes: 1 << 20 });
    assert_eq!(medium("preset = \"flash-60k\""), drive(1));
    assert_eq!(medium("preset = \"flash-60k\"\nexpert.slowed = 20"), drive(20));
    for (keys, expected) in [
        ("", "1: device.fast.preset: this key is missing, allowed is flash-460k, flash-60k, optane, nvmf-dram, zssd"),
        (
            "preset = \"optane\"\nexpert.slowed = 1001",
            "4: device.fast.expert.slowed: 1001 is out of range, allowed is 1 to 1000",
        ),
        (
            "preset = \"floppy\"",
            "3: device.fast.preset: \"floppy\" is not known, allowed are flash-460k, flash-60k, optane, nvmf-dram, zssd",
        ),
    ] {
        assert_eq!(medium(keys), Err(format!("c.toml:{expected}")));
    }
}

#[test]
fn a_number_out_of_range_is_refused_with_its_range_and_never_clamped() {
    for (text, shown) in
        [("0", "0"), ("10001", "10001"), ("-1", "-1"), ("99999999999999999999", "99999999999999999999")]
    {
        assert_eq!(
            refusal(&good_with("weight = 200", &format!("weight = {text}"))),
            format!("c.toml:6: tenant.alice.weight: {shown} is out of range, allowed is 1 to 10000")
        );
    }
    for depth in ["0", "65536"] {
        assert_eq!(
            refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\nexpert.depth = {depth}"))),
            format!("c.toml:3: device.fast.expert.depth: {depth} is out of range, allowed is 1 to 65535 or \"auto\"")
        );
    }
    assert_eq!(
        refusal(&good_with("kind = \"memory\"", "kind = \"memory\"\nexpert.queue-depth = 65536")),
        "c.toml:3: device.fast.expert.queue-depth: 65536 is out of range, allowed is 1 to 65535"
    );
    assert_eq!(
        refusal(&format!("{GOOD}[server]\nworkers = 0\n")),
        "c.toml:14: server.workers: 0 is out of range, allowed is 1 to 1024"
    );
    assert_eq!(
        refusal(&good_with("kind = \"memory\"", "kind = \"memory\"\ncost.write.per-byte = 1001")),
        "c.toml:3: device.fast.cost.write.per-byte: 1001 is out of range, allowed is 0 to 1000"
    );
}

/// The scheduler's options for a device with these keys.
fn scheduler(keys: &str, workers: usize) -> PolicyOptions {
    let text = good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}"));
    let plan = plan(&text).unwrap_or_else(|error| panic!("{keys}: {error}"));
    let options = plan.devices[Slot::first(0)].config.policy.options(workers);
    assert_eq!(options.validate(), Ok(()), "{keys}, {workers} workers");
    options
}

#[test]
fn mqfq_is_relaxed_for_its_window_and_workers() {
    // The mqfq of the measurements is the one that ships.
    for policy in ["mqfq", "mqfq-serial"] {
        let exact = PolicyOptions {
            token_unit_bytes: Some(4096),
            ..PolicyOptions::new(mqfq_policies::REGISTRY.find(policy).unwrap())
        };
        for workers in [1, 2, 3, 8, 16, 1024] {
            for window_bytes in [0, 1, 127, 128, 1000, 64 << 10, 1 << 40] {
                let window = VSpan::from_bytes(window_bytes);
                let keys = format!("policy = \"{policy}\"\nexpert = {{ depth = 64, window = {window_bytes} }}");
                let shipped = mqfq_demo::harness::as_shipped(PolicyOptions { window, ..exact }, workers);
                assert_eq!(scheduler(&keys, workers), shipped, "{keys}, {workers} workers");
            }
        }
    }
    // T = 64 KiB: a quantum and a lease of T/2 over 4 workers. D = 64: a quarter of 16.
    let options = scheduler("", 4);
    assert_eq!((options.quantum.bytes(), options.lease.bytes(), options.token_batch), (8 << 10, 8 << 10, 4));
    // Without a window there is nothing to round to or to lease.
    let options = scheduler("expert.window = 0", 4);
    assert_eq!((options.quantum, options.lease, options.token_batch), (VSpan(0), VSpan(0), 4));
    for (policy, token_unit_bytes) in [("none", None), ("sfqd", Some(4096))] {
        let exact =
            PolicyOptions { token_unit_bytes, ..PolicyOptions::new(mqfq_policies::REGISTRY.find(policy).unwrap()) };
        assert_eq!(scheduler(&format!("policy = \"{policy}\"\nexpert.depth = 64"), 2), exact);
    }
}

#[test]
fn the_elevators_have_their_constants_and_the_depth_of_the_device_queue() {
    let elevator = |keys: &str| scheduler(keys, 2);
    let default = PolicyOptions { depth: 1024, ..PolicyOptions::new(MQ_DEADLINE) };
    assert_eq!(elevator("policy = \"mq-deadline\""), default);
    let keys = "policy = \"mq-deadline\"\nexpert.queue-depth = 31\n";
    assert_eq!(elevator(keys), PolicyOptions { depth: 31, ..default });
    assert_eq!(elevator(&format!("{keys}expert.depth = 7")), PolicyOptions { depth: 7, ..default });
    assert_eq!(elevator("policy = \"kyber\""), PolicyOptions { depth: 1024, ..PolicyOptions::new(KYBER) });
    assert_eq!(scheduler("expert.queue-depth = 31", 2).depth, 64, "fair queueing has a D of its own");
}

#[test]
fn each_tunable_of_an_elevator_can_be_set() {
    let keys = "policy = \"mq-deadline\"\nread-expire = \"100ms\"\nwrite-expire = \"0s\"\nwrites-starved = 0\nfifo-batch = 1\n\
                prio-aging-expire = \"3600s\"";
    let expected = MqDeadlineOptions {
        read_expire_ns: 100_000_000,
        write_expire_ns: 0,
        writes_starved: 0,
        fifo_batch: 1,
        prio_aging_expire_ns: 3_600_000_000_000,
    };
    assert_eq!(scheduler(keys, 2).own.get::<MqDeadlineOptions>(), expected);
    let kyber =
        scheduler("policy = \"kyber\"\nread-latency = \"75us\"\nwrite-latency = \"1ns\"", 2).own.get::<KyberOptions>();
    assert_eq!(kyber, KyberOptions { read_latency_ns: 75_000, write_latency_ns: 1, ..KyberOptions::DEFAULT });
}

#[test]
fn a_tunable_out_of_range_or_of_another_policy_is_refused() {
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    let deadline = |keys: &str| refused(&format!("policy = \"mq-deadline\"\n{keys}"));
    assert_eq!(
        deadline("fifo-batch = 0"),
        "c.toml:4: device.fast.fifo-batch: 0 is out of range, allowed is 1 to 65535"
    );
    assert_eq!(
        deadline("read-expire = \"3601s\""),
        "c.toml:4: device.fast.read-expire: \"3601s\" is out of range, allowed is 0s to 3600s"
    );
    for key in [
        "read-expire = \"1s\"",
        "write-expire = \"1s\"",
        "writes-starved = 2",
        "fifo-batch = 16",
        "prio-aging-expire = \"1s\"",
    ] {
        let name = key.split(' ').next().unwrap();
        for policy in ["none", "kyber", "sfqd", "mqfq-serial", "mqfq"] {
            assert_eq!(
                refused(&format!("policy = \"{policy}\"\n{key}")),
                format!("c.toml:4: device.fast.{name}: is no setting of policy {policy}, allowed with mq-deadline")
            );
        }
    }
    for key in ["read-latency", "write-latency"] {
        for policy in ["none", "sfqd", "mq-deadline", "mqfq-serial", "mqfq"] {
            assert_eq!(
                refused(&format!("policy = \"{policy}\"\n{key} = \"1ms\"")),
                format!("c.toml:4: device.fast.{key}: is no setting of policy {policy}, allowed with kyber")
            );
        }
        assert_eq!(
            refused(&format!("policy = \"kyber\"\n{key} = \"0s\"")),
            format!("c.toml:4: device.fast.{key}: \"0s\" is out of range, allowed is 1ns to 3600s")
        );
    }
}

#[test]
fn each_tunable_of_bfq_can_be_set_within_its_range_and_only_there() {
    let default = PolicyOptions { depth: 1024, ..PolicyOptions::new(BFQ) };
    assert_eq!(scheduler("policy = \"bfq\"", 2), default);
    let keys = [
        "slice-idle = \"0\"",
        "timeout-sync = \"1ms\"",
        "max-budget = \"1MiB\"",
        "low-latency = false",
        "strict-guarantees = true",
        "fifo-expire-sync = \"2ms\"",
        "fifo-expire-async = \"100s\"",
    ];
    let expected = BfqOptions {
        slice_idle_ns: 0,
        timeout_sync_ns: 1_000_000,
        max_budget_bytes: 1 << 20,
        low_latency: false,
        strict_guarantees: true,
        fifo_expire_sync_ns: 2_000_000,
        fifo_expire_async_ns: 100_000_000_000,
    };
    assert_eq!(scheduler(&format!("policy = \"bfq\"\n{}", keys.join("\n")), 2).own.get::<BfqOptions>(), expected);
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    for key in keys {
        let name = key.split(' ').next().unwrap();
        assert_eq!(
            refused(&format!("policy = \"mq-deadline\"\n{key}")),
            format!("c.toml:4: device.fast.{name}: is no setting of policy mq-deadline, allowed with bfq")
        );
    }
    for (key, value, allowed) in [
        ("slice-idle", "1001ms", "0s to 1s"),
        ("timeout-sync", "999us", "1ms to 10s"),
        ("max-budget", "2TiB", "0 to 1TiB"),
        ("fifo-expire-sync", "0s", "1ms to 100s"),
        ("fifo-expire-async", "101s", "1ms to 100s"),
    ] {
        assert_eq!(
            refused(&format!("policy = \"bfq\"\n{key} = \"{value}\"")),
            format!("c.toml:4: device.fast.{key}: \"{value}\" is out of range, allowed is {allowed}")
        );
    }
}

#[test]
fn each_tunable_of_d2fq_can_be_set_within_its_range_and_only_there() {
    let own = OwnOptions::of(&D2fqOptions::SHIPPED);
    let shipped = PolicyOptions { own, ..PolicyOptions::new(D2FQ) };
    assert_eq!(scheduler("policy = \"d2fq\"", 2), shipped);
    let keys = [
        "low-threshold = \"1MiB\"",
        "class-ratio = 3",
        "adjust-period = \"100ms\"",
        "grace-period = \"200ms\"",
        "vtime-quantum = \"0\"",
    ];
    let expected = D2fqOptions {
        low_threshold_bytes: 1 << 20,
        class_ratio: 3,
        adjust_period_ns: 100_000_000,
        grace_period_ns: 200_000_000,
        vtime_quantum_bytes: 0,
    };
    assert_eq!(scheduler(&format!("policy = \"d2fq\"\n{}", keys.join("\n")), 2).own.get::<D2fqOptions>(), expected);
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    for key in keys {
        let name = key.split(' ').next().unwrap();
        assert_eq!(
            refused(&format!("policy = \"mqfq\"\n{key}")),
            format!("c.toml:4: device.fast.{name}: is no setting of policy mqfq, allowed with d2fq")
        );
    }
    for (key, value, allowed) in [
        ("low-threshold", "\"63KiB\"", "64KiB to 1TiB"),
        ("class-ratio", "257", "0 to 256"),
        ("adjust-period", "\"999us\"", "1ms to 3600s"),
        ("grace-period", "\"11s\"", "0s to 10s"),
        ("vtime-quantum", "\"2MiB\"", "0 to 1MiB"),
    ] {
        assert_eq!(
            refused(&format!("policy = \"d2fq\"\n{key} = {value}")),
            format!("c.toml:4: device.fast.{key}: {value} is out of range, allowed is {allowed}")
        );
    }
}

#[test]
fn a_value_of_the_wrong_type_or_word_is_told_what_fits() {
    assert_eq!(
        refusal(&good_with("weight = 200", "weight = \"200\"")),
        "c.toml:6: tenant.alice.weight: the string \"200\" does not fit here, allowed is a whole number, 1 to 10000"
    );
    assert_eq!(
        refusal(&good_with("kind = \"memory\"", "kind = \"ram\"")),
        "c.toml:2: device.fast.kind: \"ram\" is not known, allowed are null, memory, file, pool, model"
    );
    assert_eq!(
        refusal(&good_with("kind = \"memory\"", "kind = \"memory\"\npolicy = \"cfq\"")),
        format!(
            "c.toml:3: device.fast.policy: \"cfq\" is not known, allowed are {}",
            mqfq_policies::ALL.map(PolicyKind::name).join(", ")
        )
    );
    assert_eq!(
        refusal(&good_with("size = \"1MiB\"", "size = \"1MB\"")),
        "c.toml:3: device.fast.size: \"1MB\" is not a size, allowed is bytes (4096), or a whole number followed by KiB, \
         MiB, GiB or TiB (\"64KiB\")"
    );
    assert_eq!(
        refusal(&good_with("weight = 200", "weight = 200\n[server]\npin = 1\n")),
        "c.toml:8: server.pin: an integer does not fit here, allowed is true or false"
    );
    assert_eq!(refusal("device = 1\n"), "c.toml:1: device: an integer does not fit here, allowed is a table");
}

#[test]
fn a_missing_key_is_told_what_to_write() {
    assert_eq!(
        refusal(&good_with("kind = \"memory\"", "")),
        "c.toml:1: device.fast.kind: this key is missing, allowed is null, memory, file, pool, model"
    );
    assert_eq!(
        refusal(&good_with("nbd = \"unix:/run/a.sock\"", "")),
        "c.toml:8: export.root: no address says where it is served, allowed is at least one of nbd, ublk, vhost-user"
    );
    assert_eq!(refusal(""), "c.toml:1: no [export.NAME] section, at least one is needed");
}

#[test]
fn an_address_names_its_kind() {
    let refused = |text: &str| refusal(&good_with("\"unix:/run/a.sock\"", text));
    for (text, why) in [
        ("/run/a.sock", "expected unix:PATH or tcp:HOST:PORT"),
        ("unix:", "no path follows \"unix:\""),
        ("tcp:10809", "expected tcp:HOST:PORT"),
        ("tcp:localhost:65536", "its port is not a number from 0 to 65535"),
    ] {
        assert_eq!(
            refused(&format!("{text:?}")),
            format!("c.toml:12: export.root.nbd: \"{text}\" is not an address to listen on: {why}")
        );
    }
    let allowed = "allowed is \"unix:PATH\" (at most 107 bytes), \"tcp:HOST:PORT\", or a list of these";
    let long = format!("unix:/{}", "s".repeat(107));
    assert_eq!(
        refused(&format!("{long:?}")),
        format!("c.toml:12: export.root.nbd: \"{long}\" is too long for a socket, {allowed}")
    );
    assert_eq!(
        refused("[\"unix:/a\", \"unix:/a\"]"),
        "c.toml:12: export.root.nbd: unix:/a is listed twice, allowed is once"
    );
    assert_eq!(refused("[]"), format!("c.toml:12: export.root.nbd: this list does not fit here, {allowed}"));
}

#[test]
fn a_socket_mode_is_octal() {
    let server = |mode: &str| format!("{GOOD}[server]\nsocket-mode = \"{mode}\"\n");
    assert_eq!(plan(&server("0660")).unwrap().server.socket_mode, 0o660);
    for mode in ["1000", "rw", "8", "", "+7", "-1"] {
        assert_eq!(
            refusal(&server(mode)),
            format!(
                "c.toml:14: server.socket-mode: \"{mode}\" is no mode, allowed is \"0\" to \"777\" in octal digits"
            )
        );
    }
}

#[test]
fn split_timeout_and_retries_are_read_and_refused_out_of_range() {
    let path = |keys: &str| plan(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    let read = path("timeout = \"50ms\"\nexpert = { split = \"16KiB\", retries = 0 }").unwrap();
    let read = read.devices[Slot::first(0)].config.path;
    let expected =
        PathOptions { split: Split::Bytes(16 << 10), timeout_ns: 50_000_000, retries: 0, ..PathOptions::default() };
    assert_eq!(read, expected);
    let shipped = PathOptions { split: Split::Auto, ..PathOptions::default() };
    assert_eq!(path("").unwrap().devices[Slot::first(0)].config.path, shipped);
    let split =
        |value: &str| path(&format!("expert.split = \"{value}\"")).unwrap().devices[Slot::first(0)].config.path.split;
    assert_eq!([split("off"), split("auto"), split("1MiB")], [Split::Off, Split::Auto, Split::Bytes(1 << 20)]);
    assert_eq!(path("expert.split = 65536").unwrap().devices[Slot::first(0)].config.path.split, Split::Bytes(64 << 10));
    assert_eq!(path("timeout = \"off\"").unwrap().devices[Slot::first(0)].config.path.timeout_ns, 0);
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    for (keys, sentence) in [
        (
            "expert.split = \"5KiB\"",
            "c.toml:3: device.fast.expert.split: \"5KiB\" is no multiple of 4KiB, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB",
        ),
        (
            "expert.split = \"2MiB\"",
            "c.toml:3: device.fast.expert.split: \"2MiB\" is out of range, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB",
        ),
        (
            "expert.split = 8",
            "c.toml:3: device.fast.expert.split: 8 is out of range, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB",
        ),
        (
            "expert.split = 6000",
            "c.toml:3: device.fast.expert.split: 6000 is no multiple of 4KiB, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB",
        ),
        (
            "expert.split = \"foo\"",
            "c.toml:3: device.fast.expert.split: \"foo\" is not known, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB",
        ),
        (
            "expert.split = true",
            "c.toml:3: device.fast.expert.split: a boolean does not fit here, allowed is \"auto\", \"off\" or 4KiB to 1MiB in steps of 4KiB",
        ),
        ("timeout = \"10us\"", "c.toml:3: device.fast.timeout: \"10us\" is out of range, allowed is 1ms to 86400s"),
        ("expert.retries = 256", "c.toml:3: device.fast.expert.retries: 256 is out of range, allowed is 0 to 255"),
    ] {
        assert_eq!(refused(keys), sentence);
    }
}

#[test]
fn a_file_must_exist_and_belong_to_one_device() {
    let file =
        |path: &str| good_with("kind = \"memory\"\nsize = \"1MiB\"", &format!("kind = \"file\"\npath = \"{path}\""));
    assert_eq!(plan(&file("/disk")).unwrap().devices[Slot::first(0)].size_bytes, 1 << 20);
    for (size, size_bytes) in [("1MiB", 1 << 20), ("1048575B", (1 << 20) - 1), ("512KiB", 1 << 19)] {
        let plan = plan(&file(&format!("/disk\"\nsize = \"{size}"))).expect("the file has so many bytes");
        assert_eq!(
            (plan.devices[Slot::first(0)].size_bytes, plan.exports[Slot::first(0)].size_bytes),
            (size_bytes, 256 << 10),
            "{size}"
        );
    }
    assert_eq!(
        refusal(&file("/disk\"\nsize = \"1048577B")),
        "c.toml:4: device.fast.size: 1048577 bytes is more than /disk has, allowed is 1 to 1048576"
    );
    assert_eq!(
        refusal(&file("/nowhere")),
        "c.toml:3: device.fast.path: cannot open /nowhere: No such file or directory"
    );
    assert_eq!(
        refusal(&file("/empty")),
        "c.toml:3: device.fast.path: /empty is empty, allowed is a file that has its full size"
    );
    assert_eq!(
        refusal(&file("/disk\"\nsize = \"2MiB")),
        "c.toml:4: device.fast.size: 2097152 bytes is more than /disk has, allowed is 1 to 1048576"
    );
    assert_eq!(
        refusal(&format!("{}[device.twin]\nkind = \"file\"\npath = \"/disk-again\"\n", file("/disk"))),
        "c.toml:15: device.twin.path: /disk-again belongs to device fast already"
    );
}

#[test]
fn a_device_that_no_export_uses_is_left_out_with_a_warning() {
    let plan = plan(&format!("{GOOD}[device.spare]\nkind = \"null\"\nsize = \"1TiB\"\n")).unwrap();
    assert_eq!(plan.devices.len(), 1);
    assert_eq!(plan.warnings, ["c.toml:13: device.spare: no export uses this device, it is not started"]);
}

#[test]
fn a_file_that_only_readers_use_need_not_be_writable() {
    let file = |keys: &str| {
        let text = good_with("kind = \"memory\"\nsize = \"1MiB\"", "kind = \"file\"\npath = \"/cdrom\"");
        text.replace("size = \"256KiB\"", &format!("size = \"256KiB\"\n{keys}"))
    };
    let second = |keys: &str| {
        let start = "[export.more]\ndevice = \"fast\"\ntenant = \"alice\"\noffset = \"512KiB\"\nnbd = \"unix:/b\"\n";
        format!("{}{start}{keys}", file("read-only = true"))
    };
    let refused = "c.toml:3: device.fast.path: cannot write to /cdrom: Read-only file system, allowed are exports with \
                   read-only = true";
    assert_eq!(refusal(&file("")), refused);
    assert_eq!(refusal(&second("")), refused, "one export that is written is enough");
    assert!(plan(&file("read-only = true")).unwrap().devices[Slot::first(0)].read_only);
    assert!(plan(&second("read-only = true\n")).unwrap().devices[Slot::first(0)].read_only);
    // No export uses the device, so it is not checked.
    assert!(plan(&format!("{GOOD}[device.spare]\nkind = \"file\"\npath = \"/cdrom\"\n")).is_ok());
    assert!(!plan(GOOD).unwrap().devices[Slot::first(0)].read_only);
}

// The program that ships refuses the laboratory's policies and keys.

#[test]
fn the_product_names_its_own_kinds_of_device_and_says_where_the_other_is() {
    let kind =
        |name: &str| Config::parse("c.toml", &format!("[device.fast]\nkind = \"{name}\"\n")).unwrap_err().to_string();
    assert_eq!(
        kind("nvme"),
        "c.toml:2: device.fast.kind: \"nvme\" is a kind of the laboratory: cargo lab serve, allowed here are \
         null, memory, file, pool, model, of which model is a modelled drive"
    );
    assert_eq!(
        kind("ram"),
        "c.toml:2: device.fast.kind: \"ram\" is not known, allowed are null, memory, file, pool, model"
    );
}

#[test]
fn the_product_names_its_own_policies_and_says_where_the_others_are() {
    let known: &'static Known = Box::leak(Box::new(Known::new(Additions::policies(mqfq_blk::Registry::PRODUCT))));
    let refused = |keys: &str| {
        let text = format!("[device.fast]\nkind = \"null\"\nsize = \"1MiB\"\n{keys}");
        Config::parse_with(known, "c.toml", &text).err().map(|error| error.to_string())
    };
    for kind in mqfq_policies::ALL {
        let sentence = (!["none", "mqfq"].contains(&kind.name())).then(|| {
            format!(
                "c.toml:4: device.fast.policy: \"{kind}\" is a policy of the laboratory: cargo lab serve, allowed here are \
                 none, mqfq"
            )
        });
        assert_eq!(refused(&format!("policy = \"{kind}\"")), sentence);
    }
    let sentence = "c.toml:4: device.fast.policy: \"cfq\" is not known, allowed are none, mqfq";
    assert_eq!(refused("policy = \"cfq\"").as_deref(), Some(sentence));
    for key in mqfq_policies::REGISTRY.all_keys() {
        let why = refused(&format!("{key} = 1")).unwrap_or_default();
        assert!(
            why.starts_with(&format!("c.toml:4: device.fast.{key}: unknown key, allowed are kind, size, ")),
            "{why}"
        );
    }
}

#[test]
fn a_key_that_stands_elsewhere_is_refused_with_its_place() {
    let known: &'static Known = Box::leak(Box::new(Known::new(Additions::policies(mqfq_blk::Registry::PRODUCT))));
    let refused = |name: &str, keys: &str| {
        let text = format!("[device.{name}]\nkind = \"null\"\nsize = \"1MiB\"\n{keys} = 1");
        Config::parse_with(known, "c.toml", &text).unwrap_err().to_string()
    };
    for key in other::LABORATORY_KEYS {
        for key in [key.to_owned(), format!("expert.{key}")] {
            let sentence = format!("c.toml:4: device.fast.{key}: is a key of cargo lab serve alone");
            assert_eq!(refused("fast", &key), sentence);
        }
    }
    for key in ["depth", "window", "split", "queue-depth", "retries", "direct", "slowed"] {
        let sentence = format!("c.toml:4: device.fast.{key}: now stands in [device.fast.expert]");
        assert_eq!(refused("fast", key), sentence);
    }
    let quoted = "c.toml:4: device.\"a b\".depth: now stands in [device.\"a b\".expert]";
    assert_eq!(refused("\"a b\"", "depth"), quoted);
}

#[test]
fn a_key_of_the_server_that_the_laboratory_has_is_refused_with_its_place() {
    for key in other::LABORATORY_SERVER_KEYS {
        let refused = Config::parse("c.toml", &format!("[server]\n{key} = 1\n")).unwrap_err().to_string();
        assert_eq!(refused, format!("c.toml:2: server.{key}: is a key of cargo lab serve alone"));
    }
}

/// Few keys: the server finds the rest by itself.
#[test]
fn a_device_has_eleven_keys_and_seven_for_experts() {
    let known = Known::new(Additions::policies(mqfq_blk::Registry::PRODUCT));
    let count = |keys: &[Vec<&'static str>]| {
        let keys: std::collections::BTreeSet<_> = keys.concat().into_iter().filter(|key| *key != "expert").collect();
        keys.len()
    };
    assert_eq!((count(&known.device_keys), count(&known.expert_keys)), (11, 7));
}
