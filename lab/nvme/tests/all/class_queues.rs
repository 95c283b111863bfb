//! Policies that leave the arbitration to the device: which devices start with one, and which fall back or fail.

#![cfg(feature = "uring")]

use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_blkmq::{MultiQueue, QueueLayout};
use mqfq_nvme::choice::prepare;
use mqfq_nvme::device::{Arbitration, NvmeDevice, NvmeDeviceOptions};
use mqfq_policies::D2FQ;
use std::sync::Arc;
use std::time::Duration;

fn start(device: Arc<dyn MultiQueue>, kind: PolicyKind, fallback: Option<PolicyKind>) -> Result<Engine, String> {
    let prepare = Some(prepare(device.clone(), QueueLayout::default(), fallback.map(PolicyOptions::new)));
    let flows = vec![FlowOptions::new("a")];
    let device = DeviceOptions { prepare, ..DeviceOptions::new("d", device, PolicyOptions::new(kind), flows) };
    Engine::start(EngineOptions { workers: 2, pin: false, spin_ns: 50_000, devices: vec![device] })
}

fn memory() -> Arc<dyn MultiQueue> {
    Arc::new(MemoryDevice::new(1 << 20))
}

const HAS_NONE: &str = "policy d2fq needs weighted round robin among the device's queues, and this one has none";

#[test]
fn a_device_without_class_queues_is_refused_or_falls_back() {
    let error = start(memory(), D2FQ, None).err().expect("refused");
    assert_eq!(error, format!("device d: {HAS_NONE}; allowed is another policy, or one to fall back to"));
    let engine = start(memory(), D2FQ, Some(PolicyKind::Mqfq)).unwrap();
    assert_eq!(engine.settled(0).fell_back.as_deref(), Some(HAS_NONE));
    assert_eq!((engine.policy(0).kind, engine.stats().devices[0].policy), (PolicyKind::Mqfq, "mqfq"));
    assert!(!engine.has_class_queues(0));
    let error = start(memory(), D2FQ, Some(D2FQ)).err().expect("refused");
    assert_eq!(
        error,
        "device d: policy d2fq needs what it is to replace: allowed is a policy that schedules by itself"
    );
}

fn zssd(arbitration: Arbitration) -> Arc<dyn MultiQueue> {
    let arbitration = Some(arbitration);
    let options =
        NvmeDeviceOptions { preset: "zssd", size_bytes: 1 << 20, arbitration, ..NvmeDeviceOptions::default() };
    Arc::new(NvmeDevice::new(options).unwrap())
}

#[test]
fn a_device_that_ignores_weights_is_found_out() {
    let works = start(zssd(Arbitration::Weighted), D2FQ, Some(PolicyKind::Mqfq)).unwrap();
    assert!(works.settled(0).finding.unwrap().has_effect());
    assert_eq!((works.settled(0).fell_back.as_deref(), works.policy(0).kind), (None, D2FQ));
    assert!(works.has_class_queues(0));
    let ignored = start(zssd(Arbitration::WeightedIgnored), D2FQ, Some(PolicyKind::Mqfq)).unwrap();
    assert!(!ignored.settled(0).finding.unwrap().has_effect());
    assert_eq!((ignored.policy(0).kind, ignored.has_class_queues(0)), (PolicyKind::Mqfq, false));
    let reason = ignored.settled(0).fell_back.clone().unwrap();
    assert!(reason.contains("on this one it has no effect: high to low weights of 16:1 gave "), "{reason}");
    let error = start(zssd(Arbitration::WeightedIgnored), D2FQ, None).err().expect("refused");
    assert!(
        error.starts_with("device d: ") && error.ends_with("allowed is another policy, or one to fall back to"),
        "{error}"
    );
    // A policy that needs no class queues causes no reads.
    let plain = start(zssd(Arbitration::WeightedIgnored), PolicyKind::Mqfq, None).unwrap();
    assert_eq!(plain.settled(0).finding, None);
}

#[test]
fn a_device_that_was_opened_without_class_queues_does_not_change_to_a_policy_that_needs_them() {
    let engine = start(memory(), PolicyKind::Mqfq, None).unwrap();
    let error = engine.set_policy(0, PolicyOptions::new(D2FQ), Duration::from_secs(1)).unwrap_err();
    assert_eq!(
        error,
        "device d: policy d2fq needs class queues, and they are made at the start, when it is the policy then; it keeps the policy mqfq"
    );
    assert_eq!(engine.policy(0).kind, PolicyKind::Mqfq);
}
