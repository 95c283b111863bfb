//! Keys of the laboratory, and each refusal to the letter.

use super::ADDITIONS;
use mqfq_blk::PriorityClass;
use mqfq_blkmq::{BlockLayer, HardwareQueues, QueueLayout, Spread};
use mqfq_daemon::config::{Config, DeviceConfig, Medium, extend};

/// The config of a device and a tenant with these keys, the first of them in lines 4 and following.
fn config(device: &str, tenant: &str) -> Result<Config, String> {
    extend(ADDITIONS);
    let text = format!("[tenant.t]\n{tenant}\n[device.d]\n{device}\nsize = \"1MiB\"\n");
    Config::parse("c.toml", &text).map_err(|error| error.to_string())
}

fn device(keys: &str) -> Result<DeviceConfig, String> {
    config(keys, "").map(|config| config.devices[0].clone())
}

#[test]
fn a_drive_has_its_presets_arbitration_unless_another_is_named() {
    let settings = |keys: &str| {
        device(&format!("kind = \"nvme\"\npreset = \"flash-60k\"\n{keys}")).map(|device| match device.medium {
            Medium::Other(other) => other.settings,
            medium => panic!("{medium:?}"),
        })
    };
    let with = |read_ns, arbitration, queue_pairs| {
        Ok(format!("nvme flash-60k, {read_ns} ns a read, {arbitration}, {queue_pairs} queue pairs"))
    };
    assert_eq!(settings(""), with(770_000, "rr", 1024));
    assert_eq!(settings("expert.slowed = 20"), with(15_400_000, "rr", 1024));
    assert_eq!(settings("arbitration = \"wrr\"\nqueue-pairs = 32"), with(770_000, "wrr", 32));
    assert_eq!(settings("arbitration = \"wrr-ignored\""), with(770_000, "wrr-ignored", 1024));
    for (key, expected) in [
        ("arbitration = \"urgent\"", "arbitration: \"urgent\" is not known, allowed are rr, wrr, wrr-ignored"),
        ("queue-pairs = 0", "queue-pairs: 0 is out of range, allowed is 1 to 1024"),
    ] {
        assert_eq!(settings(key), Err(format!("c.toml:6: device.d.{expected}")));
    }
}

#[test]
fn a_tenant_has_a_class_and_a_device_may_hold_back_writes() {
    let class = |keys: &str| config("kind = \"null\"", keys).map(|config| config.tenants[0].class);
    assert_eq!(class(""), Ok(PriorityClass::BestEffort));
    assert_eq!(class("class = \"realtime\""), Ok(PriorityClass::RealTime));
    let sentence = "c.toml:2: tenant.t.class: \"rt\" is not known, allowed are realtime, best-effort, idle";
    assert_eq!(class("class = \"rt\""), Err(sentence.to_owned()));
    let async_writes = |keys: &str| device(&format!("kind = \"null\"\n{keys}")).unwrap().path.async_writes;
    assert_eq!([async_writes(""), async_writes("async-writes = true")], [false, true]);
}

#[test]
fn a_worker_spins_for_as_long_as_the_server_says() {
    extend(ADDITIONS);
    let spin_us = |keys: &str| {
        let config = Config::parse("c.toml", &format!("[server]\n{keys}\n"));
        config.map(|config| config.server.spin_us).map_err(|error| error.to_string())
    };
    assert_eq!([spin_us(""), spin_us("spin-us = 0"), spin_us("spin-us = 1000000")], [Ok(50), Ok(0), Ok(1_000_000)]);
    let sentence = "c.toml:2: server.spin-us: 1000001 is out of range, allowed is 0 to 1000000";
    assert_eq!(spin_us("spin-us = 1000001"), Err(sentence.to_owned()));
}

#[test]
fn the_queues_of_both_levels_are_read_and_what_cannot_be_is_refused() {
    let with = |keys: &str| device(&format!("kind = \"memory\"\n{keys}"));
    let low_latency = QueueLayout { layer: BlockLayer::LowLatency, ..QueueLayout::default() };
    let two = QueueLayout { hardware: HardwareQueues::Count(2), ..QueueLayout::default() };
    for (keys, layout) in [
        ("", QueueLayout::default()),
        ("hardware-queues = \"per-socket\"", QueueLayout::mq(Spread::PerCore, Spread::PerSocket)),
        ("hardware-queues = 2", two),
        ("policy = \"none\"\nblock-layer = \"sq\"", QueueLayout::SQ),
        ("policy = \"none\"\nblock-layer = \"raw\"", QueueLayout::RAW),
        ("policy = \"none\"\nsoftware-queues = \"single\"", QueueLayout::mq(Spread::Single, Spread::PerCore)),
        ("policy = \"d2fq\"\nblock-layer = \"low-latency\"", low_latency),
    ] {
        assert_eq!(with(keys).unwrap().preparation.settings, format!("{layout:?}"), "{keys}");
    }
    for (keys, expected) in [
        (
            "policy = \"d2fq\"\nblock-layer = \"low-latency\"\nwithout-wrr = \"mqfq\"",
            "block-layer: block layer low-latency has no queue to schedule in, so it needs a policy that stages nothing, and mqfq does",
        ),
        (
            "policy = \"d2fq\"\nsoftware-queues = \"single\"",
            "software-queues: a single software queue is one queue for all workers, and policy d2fq fills class queues of each worker's own: allowed is policy none",
        ),
        (
            "block-layer = \"sq\"",
            "block-layer: block layer sq has one queue for all workers, and policy mqfq stages requests per worker: allowed is policy none",
        ),
        (
            "policy = \"none\"\nblock-layer = \"raw\"\nhardware-queues = 2",
            "hardware-queues: is fixed by block-layer = \"raw\", allowed with \"mq\"",
        ),
        (
            "hardware-queues = 0",
            "hardware-queues: 0 is not known, allowed are \"per-core\", \"per-socket\", \"single\", or a number of queues from 1 to 65535",
        ),
        (
            "software-queues = \"percore\"",
            "software-queues: \"percore\" is not known, allowed are per-core, per-socket, single",
        ),
    ] {
        let message = with(keys).unwrap_err();
        assert!(message.ends_with(&format!("device.d.{expected}")), "{message}");
    }
}
