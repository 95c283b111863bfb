//! When is T found, and when is it a number?

use super::*;

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
