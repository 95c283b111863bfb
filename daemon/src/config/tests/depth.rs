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
