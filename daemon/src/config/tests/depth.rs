//! D: a number, or found while the device runs.

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
        for keys in ["", "depth = \"auto\"\n"] {
            assert_eq!(scheduler(&format!("{keys}policy = \"{policy}\""), 4).0, found);
            assert_eq!(mqfq_demo::harness::by_default(kind, 4), found, "what demo and measurements run");
        }
        let in_requests = scheduler(&format!("policy = \"{policy}\"\ntoken-unit = \"request\""), 4).0;
        assert_eq!((in_requests.depth_auto, in_requests.token_unit_bytes), (true, None));
    }
    // A queue's part of D stays if it is set by hand.
    let by_hand = scheduler("token-batch = 3", 4).0;
    assert_eq!((by_hand.token_batch, by_hand.tokens_follow_depth), (3, false));
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    for policy in ["none", "kyber"] {
        assert_eq!(
            refused(&format!("policy = \"{policy}\"\ndepth = \"auto\"")),
            format!(
                "c.toml:4: device.fast.depth: \"auto\" is no setting of policy {policy}, allowed with mqfq, mqfq-serial and sfqd"
            )
        );
    }
    assert_eq!(
        refused("depth = \"deep\""),
        "c.toml:3: device.fast.depth: \"deep\" is not known, allowed is 1 to 65535 or \"auto\""
    );
    assert_eq!(
        refused("depth = true"),
        "c.toml:3: device.fast.depth: a boolean does not fit here, allowed is a whole number, 1 to 65535 or \"auto\""
    );
}

#[test]
fn a_depth_that_was_found_means_the_same_when_it_is_set() {
    for policy in ["mqfq", "mqfq-serial", "sfqd"] {
        let found = scheduler(&format!("policy = \"{policy}\""), 4).0;
        let set = scheduler(&format!("policy = \"{policy}\"\ndepth = 193"), 4).0;
        let expected = PolicyOptions { depth_auto: false, depth: 193, ..found };
        let expected = if expected.kind.has_window() { expected.relaxed(4) } else { expected };
        assert_eq!((set, set.token_unit_bytes), (expected, Some(4096)), "{policy}");
        let requests = scheduler(&format!("policy = \"{policy}\"\ndepth = 54\ntoken-unit = \"request\""), 4).0;
        assert_eq!((requests.depth, requests.token_unit_bytes), (54, None));
    }
    let elevator = scheduler("policy = \"kyber\"\ndepth = 54", 4).0;
    assert_eq!(elevator.token_unit_bytes, None, "an elevator counts requests");
}

#[test]
fn each_number_of_the_relaxed_form_can_be_set_by_hand() {
    let default = scheduler("window = \"64KiB\"", 2).0;
    let set = |keys: &str| scheduler(keys, 2).0;
    let kib = |kib: u64| VSpan::from_bytes(kib << 10);
    assert_eq!(set("quantum = \"32KiB\""), PolicyOptions { quantum: kib(32), ..default }, "half the window");
    assert_eq!(set("quantum = 1"), PolicyOptions { quantum: VSpan::from_bytes(1), ..default });
    assert_eq!(set("lease = \"32KiB\""), PolicyOptions { lease: kib(32), ..default }, "half the window");
    assert_eq!(set("lease = 4097"), PolicyOptions { lease: VSpan::from_bytes(4097), ..default });
    let by_hand = PolicyOptions { tokens_follow_depth: false, ..auto_window(default) };
    assert_eq!(set("token-batch = 65535"), PolicyOptions { token_batch: 65_535, ..by_hand });
    assert_eq!(
        set("quantum = 0\nlease = 0\ntoken-batch = 1\ntoken-share = 0"),
        auto(PolicyOptions::new(PolicyKind::Mqfq)),
        "each at what the exact form has"
    );
    assert_eq!(set("window = 0\nquantum = 0\nlease = 0").window, VSpan(0));
}
