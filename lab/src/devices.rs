//! Policies, devices and keys that `cargo lab serve` has beside those of `mqfq serve`.

use crate::{forms, queues};
use mqfq_blk::PriorityClass;
use mqfq_blk::device::Device;
use mqfq_blk::device::model::presets::Preset;
use mqfq_blkmq::{MultiQueue, multi_queue};
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
    let layout = queues::read(section, policies.into_iter().flatten())?;
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

#[cfg(test)]
mod tests;
