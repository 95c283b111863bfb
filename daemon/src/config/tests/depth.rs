//! A device's D and T, each a number or found while the device runs; its costs and its profile.

use super::*;

/// The options as they are where D is found.
pub(super) fn auto(options: PolicyOptions) -> PolicyOptions {
    PolicyOptions { depth_auto: true, token_unit_bytes: Some(4096), ..options }
}

/// The options where T is found as well.
pub(super) fn auto_window(options: PolicyOptions) -> PolicyOptions {
    let window_least = options.kind.has_window().then_some(WINDOW_LEAST);
    PolicyOptions { window_least, ..options }
}

#[test]
fn the_depth_is_found_unless_it_is_a_number() {
    for policy in ["mqfq", "mqfq-serial", "sfqd"] {
        let kind = mqfq_policies::REGISTRY.find(policy).unwrap();
        let shipped = |options: PolicyOptions| mqfq_demo::harness::as_shipped(options, 4);
        let found = shipped(auto(auto_window(PolicyOptions::new(kind))));
        for keys in ["", "expert.depth = \"auto\"\n"] {
            assert_eq!(scheduler(&format!("{keys}policy = \"{policy}\""), 4), found);
            assert_eq!(mqfq_demo::harness::by_default(kind, 4), found, "what demo and measurements run");
        }
    }
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    for policy in ["none", "kyber"] {
        assert_eq!(
            refused(&format!("policy = \"{policy}\"\nexpert.depth = \"auto\"")),
            format!(
                "c.toml:4: device.fast.expert.depth: \"auto\" is no setting of policy {policy}, allowed with mqfq, mqfq-serial and sfqd"
            )
        );
    }
    assert_eq!(
        refused("expert.depth = \"deep\""),
        "c.toml:3: device.fast.expert.depth: \"deep\" is not known, allowed is 1 to 65535 or \"auto\""
    );
    assert_eq!(
        refused("expert.depth = true"),
        "c.toml:3: device.fast.expert.depth: a boolean does not fit here, allowed is a whole number, 1 to 65535 or \"auto\""
    );
}

#[test]
fn a_depth_that_was_found_means_the_same_when_it_is_set() {
    for policy in ["mqfq", "mqfq-serial", "sfqd"] {
        let found = scheduler(&format!("policy = \"{policy}\""), 4);
        let set = scheduler(&format!("policy = \"{policy}\"\nexpert.depth = 193"), 4);
        let expected = PolicyOptions { depth_auto: false, depth: 193, ..found };
        let expected = if expected.kind.has_window() { expected.relaxed(4) } else { expected };
        assert_eq!((set, set.token_unit_bytes), (expected, Some(4096)), "{policy}");
    }
    let elevator = scheduler("policy = \"kyber\"\nexpert.depth = 54", 4);
    assert_eq!(elevator.token_unit_bytes, None, "an elevator counts requests");
}

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

#[test]
fn the_window_is_found_unless_it_is_a_number() {
    let found = mqfq_demo::harness::as_shipped(auto(auto_window(PolicyOptions::new(PolicyKind::Mqfq))), 4);
    for keys in ["", "expert.window = \"auto\""] {
        assert_eq!(scheduler(keys, 4), found, "{keys}");
    }
    // T = 64 KiB gives the options that have always shipped.
    assert_eq!(found.window.bytes(), 64 << 10);
    assert_eq!(found.terms(), scheduler("expert.window = \"64KiB\"", 4).terms());
    for keys in ["expert.window = \"64KiB\"", "policy = \"sfqd\""] {
        assert_eq!(scheduler(keys, 4).window_least, None, "{keys}");
    }
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    assert_eq!(
        refused("policy = \"sfqd\"\nexpert.window = \"auto\""),
        "c.toml:4: device.fast.expert.window: \"auto\" is no setting of policy sfqd, allowed with mqfq and mqfq-serial"
    );
    assert_eq!(
        refused("expert.window = \"wide\""),
        "c.toml:3: device.fast.expert.window: \"wide\" is not known, allowed is 0 to 1TiB or \"auto\""
    );
}
