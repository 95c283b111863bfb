//! Policies, devices and keys that `cargo lab serve` has beside those of `mqfq serve`.
//!
//! `block-layer`, `software-queues` and `hardware-queues` of a device: which queues its workers share.

use crate::forms;
use mqfq_blk::device::Device;
use mqfq_blk::device::model::presets::Preset;
use mqfq_blk::{PolicyKind, PriorityClass};
use mqfq_blkmq::{BlockLayer, HardwareQueues, MultiQueue, QueueLayout, Spread, multi_queue};
use mqfq_config::text::{quoted, shown};
use mqfq_config::{ConfigError, Section};
use mqfq_daemon::config::other::{OtherKeys, OtherKind, OtherMedium, Preparation};
use mqfq_daemon::config::{Additions, DeviceConfig, ServerConfig, TenantConfig, preset, required_size};
use mqfq_nvme::Arbitration;
use mqfq_nvme::choice::prepare;
use mqfq_nvme::device::NvmeDevice;
use std::any::Any;
use std::sync::Arc;

/// Policies and devices of the laboratory.
pub const ADDITIONS: Additions = Additions {
    policies: mqfq_policies::REGISTRY,
    kinds: &[OtherKind {
        name: "nvme",
        keys: &["kind", "preset", "size", "arbitration", "queue-pairs"],
        expert: &["slowed"],
        read: nvme,
    }],
    server: OtherKeys { keys: &["spin-us"], read: server },
    device: OtherKeys { keys: &DEVICE_KEYS, read: device },
    tenant: OtherKeys { keys: &["class"], read: tenant },
};

/// `spin-us`: a worker whose modelled drive moves again within this time spins instead of sleeping.
fn server(section: &Section<'_, '_>, server: &mut ServerConfig) -> Result<(), ConfigError> {
    server.spin_us = section.get("spin-us").map_or(Ok(server.spin_us), |spin| spin.number(0..=1_000_000))?;
    Ok(())
}

/// Keys of `[device.NAME]`.
const DEVICE_KEYS: [&str; 10] = [
    "block-layer",
    "software-queues",
    "hardware-queues",
    "async-writes",
    "token-unit",
    "form",
    "quantum",
    "lease",
    "token-batch",
    "token-share",
];

/// The layout of queues; `async-writes`: writes without FUA are a cache's write-back, and no program waits for them.
/// Default false. The unit of D and the form of the policy.
fn device(section: &Section<'_, '_>, device: &mut DeviceConfig) -> Result<(), ConfigError> {
    if let Some(other) = forms::read(section, device)? {
        device.policy.set_other(other);
    }
    let policies = [Some(device.policy.options(1)), device.policy.fallback(1)].map(|of| of.map(|policy| policy.kind));
    let layout = read_layout(section, policies.into_iter().flatten())?;
    let policy = device.policy.clone();
    device.preparation = Preparation {
        settings: format!("{layout:?}"),
        prepare: Some(Arc::new(move |options, topology, clock| {
            let fallback = policy.fallback(topology.hctx_count());
            prepare(with_queues(&options.device), layout, fallback)(options, topology, clock)
        })),
    };
    device.path.async_writes = section.get("async-writes").map_or(Ok(false), |flag| flag.flag())?;
    Ok(())
}

/// A device of this program, with what it has for queues that workers share.
fn with_queues(device: &Arc<dyn Device>) -> Arc<dyn MultiQueue> {
    let any: Arc<dyn Any + Send + Sync> = device.clone();
    match any.downcast::<NvmeDevice>() {
        Ok(drive) => drive,
        Err(_) => multi_queue(device),
    }
}

/// `class`: `"realtime"`, `"best-effort"` (default) or `"idle"`, for policies that have classes.
fn tenant(section: &Section<'_, '_>, tenant: &mut TenantConfig) -> Result<(), ConfigError> {
    if let Some(class) = section.get("class") {
        let name = class.choice(&PriorityClass::ALL.map(PriorityClass::name))?;
        tenant.class = name.parse().expect("a choice of all names");
    }
    Ok(())
}

/// Most queue pairs of a drive: one for each worker that there can be.
const QUEUE_PAIRS_MAX: u16 = 1024;

/// Start of the drive's random numbers, so that two servers of one config behave alike.
const SEED: u64 = 1;

/// `kind = "nvme"`: the software NVMe controller. `preset` and `slowed`: its medium. `arbitration`: `"rr"`, `"wrr"`,
/// `"wrr-ignored"`, default the preset's. `queue-pairs`: I/O queues that it has, default 1024.
fn nvme(section: &Section<'_, '_>) -> Result<OtherMedium, ConfigError> {
    let (preset, size_bytes) = (preset(section)?, required_size(section)?);
    let arbitration = section.get("arbitration").map(|entry| {
        let name = entry.choice(&Arbitration::ALL.map(|(name, _)| name))?;
        Ok(Arbitration::by_name(&name).expect("a choice of all names"))
    });
    let arbitration = arbitration.transpose()?.unwrap_or(Arbitration::of(&preset));
    let queue_pairs = section.get("queue-pairs").map(|pairs| pairs.number(1..=QUEUE_PAIRS_MAX));
    let queue_pairs = queue_pairs.transpose()?.unwrap_or(QUEUE_PAIRS_MAX);
    let Preset { name, media, .. } = preset;
    Ok(OtherMedium {
        size_bytes,
        settings: format!(
            "nvme {name}, {} ns a read, {}, {queue_pairs} queue pairs",
            media.read_ns,
            arbitration.name()
        ),
        open: Arc::new(move || Ok(Arc::new(NvmeDevice::build(preset, arbitration, size_bytes, queue_pairs, SEED)?))),
    })
}

const KEYS: [&str; 3] = ["block-layer", "software-queues", "hardware-queues"];

/// Values of `hardware-queues`.
const HARDWARE: &str = "\"per-core\", \"per-socket\", \"single\", or a number of queues";

/// The layout that a device's section asks for, if each of the policies that it may get can run on it.
///
/// # Errors
/// An unknown name; a number of queues with a block layer that has no choice; a policy that cannot.
pub fn read_layout(
    section: &Section<'_, '_>,
    mut policies: impl Iterator<Item = PolicyKind>,
) -> Result<QueueLayout, ConfigError> {
    let names = BlockLayer::ALL.map(BlockLayer::name);
    let layer = section.get("block-layer").map(|entry| entry.choice(&names)).transpose()?;
    let mut layout = match layer.as_deref() {
        Some("sq") => QueueLayout::SQ,
        Some("raw") => QueueLayout::RAW,
        Some("low-latency") => QueueLayout { layer: BlockLayer::LowLatency, ..QueueLayout::default() },
        _ => QueueLayout::default(),
    };
    for key in &KEYS[1..] {
        if let Some(entry) = section.get(key).filter(|_| layout.layer != BlockLayer::Mq) {
            let layer = layout.layer.name();
            return Err(entry.place().error(format!("is fixed by block-layer = \"{layer}\", allowed with \"mq\"")));
        }
    }
    if let Some(entry) = section.get("software-queues") {
        let chosen = entry.choice(&Spread::ALL.map(Spread::name))?;
        layout.software =
            Spread::ALL.into_iter().find(|spread| spread.name() == chosen).expect("a choice of all names");
    }
    if let Some(entry) = section.get("hardware-queues") {
        let value = entry.value()?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let value = value.as_str().map_or_else(|| shown(&text), quoted);
        let wrong = |()| entry.place().error(format!("{value} is not known, allowed are {HARDWARE} from 1 to 65535"));
        layout.hardware = text.parse::<HardwareQueues>().map_err(wrong)?;
    }
    let chosen = KEYS.iter().find_map(|key| section.get(key));
    match (policies.try_for_each(|policy| layout.check_policy(policy)), chosen) {
        (Err(why), Some(entry)) => Err(entry.place().error(why)),
        _ => Ok(layout),
    }
}

#[cfg(test)]
mod tests {
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
}
