//! Costs of requests, and profiles of devices.

use super::super::{Medium, Profile};
use super::{good_with, plan, refusal};
use mqfq_blk::slots::Slot;
use mqfq_blk::{CostModel, CostTerm};

/// A device with these keys: what its requests cost, whether that of writes is followed, its profile, its D.
fn device(keys: &str) -> (CostModel, bool, Option<Profile>, u32) {
    let plan = plan(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}"))).unwrap();
    let config = &plan.devices[Slot::first(0)].config;
    assert!(matches!(config.medium, Medium::Memory { .. }));
    (config.cost, config.path.follow_writes, config.profile, config.policy.options(1).depth)
}

fn refused(keys: &str) -> String {
    refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")))
}

#[test]
fn the_cost_of_writes_is_followed_only_where_that_is_asked_for() {
    assert_eq!(device(""), (CostModel::FLAT, false, None, 64));
    assert_eq!(device("cost = \"bytes\""), (CostModel::FLAT, false, None, 64));
    assert_eq!(device("cost = \"auto\""), (CostModel::FLAT, true, None, 64));
    let (cost, follows, ..) = device("cost = { write = { per-byte = 2.5 }, auto = true }");
    assert_eq!((cost.write, follows), (CostTerm { base_bytes: 0, per_byte_256ths: 640 }, true));
    assert_eq!(
        refused("cost = \"latency\""),
        "c.toml:3: device.fast.cost: \"latency\" is not known, allowed are bytes, auto"
    );
    assert_eq!(
        refused("cost = 3"),
        "c.toml:3: device.fast.cost: an integer does not fit here, allowed is \"bytes\", \"auto\" or a table"
    );
}

#[test]
fn zeroes_cost_as_a_write_unless_the_config_says_otherwise() {
    assert_eq!(device("cost = { write = { per-byte = 2.5 } }").0.zeroes().per_byte_256ths, 640);
    let (cost, ..) = device("cost = { write = { base = 100 }, write-zeroes = { per-byte = 0.5 } }");
    assert_eq!(cost.write_zeroes, Some(CostTerm { base_bytes: 100, per_byte_256ths: 128 }));
    let (cost, ..) = device("cost = { write-zeroes = { base = \"4KiB\", per-byte = 0 } }");
    assert_eq!((cost.zeroes(), cost.write), (CostModel::FLAT.discard, CostModel::FLAT.write));
    assert_eq!(
        refused("cost = { zeroes = { base = 1 } }"),
        "c.toml:3: device.fast.cost.zeroes: unknown key, allowed are read, write, discard, flush, write-zeroes, auto"
    );
}

#[test]
fn a_profile_is_where_d_starts_unless_d_is_set() {
    let profile = "profile = { knee = 133, knee-requests = 54, latency = \"102us\", bandwidth = 2758232122 }";
    let (.., known, depth) = device(profile);
    let known = known.unwrap();
    assert_eq!((known.latency_ns, known.bandwidth_bytes_per_s), (Some(102_000), Some(2_758_232_122)));
    assert_eq!((known.write_latency_ns, known.write_bandwidth_bytes_per_s, depth), (None, None, 133));
    let depth = |keys: &str| device(&format!("{profile}\n{keys}")).3;
    assert_eq!(depth("expert.depth = \"auto\""), 133);
    assert_eq!(depth("expert.depth = 7"), 7);
    assert_eq!(depth("policy = \"kyber\""), 1024, "an elevator has its queue depth");
}

#[test]
fn a_profile_that_cannot_be_is_refused() {
    assert_eq!(
        refused("profile = { latency = \"1us\" }"),
        "c.toml:3: device.fast.profile.knee: this key is missing, allowed is 1 to 65535"
    );
    assert_eq!(
        refused("profile = { knee = 0 }"),
        "c.toml:3: device.fast.profile.knee: 0 is out of range, allowed is 1 to 65535"
    );
    assert_eq!(
        refused("profile = { knee = 1, latency = \"61s\" }"),
        "c.toml:3: device.fast.profile.latency: \"61s\" is out of range, allowed is 1ns to 60s"
    );
    assert_eq!(
        refused("profile = { knee = 1, depth = 3 }"),
        "c.toml:3: device.fast.profile.depth: unknown key, allowed are knee, knee-requests, latency, bandwidth, write-latency, write-bandwidth"
    );
}
