//! D and T: a number, or found while the device runs.

use super::*;

#[test]
fn the_depth_is_found_unless_it_is_a_number() {
    for policy in ["mqfq", "mqfq-serial", "sfqd"] {
        let kind = policy.parse().unwrap();
        let shipped = |options: PolicyOptions| mqfq_demo::harness::as_shipped(options, 4);
        let found = shipped(auto(auto_window(PolicyOptions::new(kind))));
        for keys in ["", "depth = \"auto\"\n"] {
            assert_eq!(scheduler(&format!("{keys}policy = \"{policy}\""), 4).0, found);
        }
        let in_requests = scheduler(&format!("policy = \"{policy}\"\ntoken-unit = \"request\""), 4).0;
        assert_eq!((in_requests.depth_auto, in_requests.token_unit_bytes), (true, None));
        let number = scheduler(&format!("policy = \"{policy}\"\ndepth = 100"), 4).0;
        let expected = shipped(auto_window(PolicyOptions { depth: 100, ..PolicyOptions::new(kind) }));
        assert_eq!(number, expected, "in requests, as ever");
    }
    // What is set by hand of a queue's part of D stays.
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
fn the_window_is_found_in_the_relaxed_form_unless_it_or_what_follows_it_is_a_number() {
    let found = mqfq_demo::harness::as_shipped(auto(auto_window(PolicyOptions::new(PolicyKind::Mqfq))), 4);
    for keys in ["", "window = \"auto\"", "form = \"relaxed\"\nwindow = \"auto\"", "token-share = 16"] {
        let options = scheduler(keys, 4).0;
        assert_eq!(PolicyOptions { tokens_follow_depth: true, ..options }, found, "{keys}");
    }
    // What comes out at T = 64 KiB is what has always shipped.
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
