//! When is T found, and when is it a number?

use super::*;

#[test]
fn the_window_is_found_in_the_relaxed_form_unless_it_or_what_follows_it_is_a_number() {
    let found = mqfq_demo::harness::as_shipped(auto(auto_window(PolicyOptions::new(PolicyKind::Mqfq))), 4);
    for keys in ["", "window = \"auto\"", "form = \"relaxed\"\nwindow = \"auto\"", "token-share = 16"] {
        let options = scheduler(keys, 4).0;
        assert_eq!(PolicyOptions { tokens_follow_depth: true, ..options }, found, "{keys}");
    }
    // T = 64 KiB gives the options that have always shipped.
    assert_eq!(found.window.bytes(), 64 << 10);
    assert_eq!(found.terms(), scheduler("window = \"64KiB\"", 4).0.terms());
    for keys in ["window = \"64KiB\"", "quantum = \"8KiB\"", "lease = 0", "form = \"exact\"", "policy = \"sfqd\""] {
        assert_eq!(scheduler(keys, 4).0.window_least, None, "{keys}");
    }
    let refused = |keys: &str| refusal(&good_with("kind = \"memory\"", &format!("kind = \"memory\"\n{keys}")));
    assert_eq!(
        refused("policy = \"sfqd\"\nwindow = \"auto\""),
        "c.toml:4: device.fast.window: \"auto\" is no setting of policy sfqd, allowed with mqfq and mqfq-serial"
    );
    assert_eq!(
        refused("form = \"exact\"\nwindow = \"auto\""),
        "c.toml:4: device.fast.window: \"auto\" is no setting of form = \"exact\", allowed with form = \"relaxed\""
    );
    assert_eq!(
        refused("window = \"auto\"\nlease = \"4KiB\""),
        "c.toml:4: device.fast.lease: follows window = \"auto\", allowed with a window that is a size"
    );
    assert_eq!(
        refused("window = \"wide\""),
        "c.toml:3: device.fast.window: \"wide\" is not known, allowed is 0 to 1TiB or \"auto\""
    );
}
