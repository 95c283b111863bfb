//! Values that just fit, and values a byte larger.

use super::*;
use mqfq_blk::slots::Slot;

#[test]
fn an_export_past_its_devices_end_is_refused() {
    // The device has 1 MiB = 1048576 bytes.
    assert_eq!(
        refusal(&good_with("size = \"256KiB\"", "size = \"256KiB\"\noffset = \"769KiB\"")),
        "c.toml:11: export.root.size: 262144 bytes from offset 787456 ends past the end of device fast, allowed is up to \
         byte 1048576"
    );
    assert!(
        plan(&good_with("size = \"256KiB\"", "size = \"256KiB\"\noffset = \"768KiB\"")).is_ok(),
        "768 + 256 = 1024"
    );
    // One byte: of the offset, and of the size.
    let bytes = |size: u64, offset: u64| good_with("size = \"256KiB\"", &format!("size = {size}\noffset = {offset}"));
    assert_eq!(
        refusal(&bytes(262_144, 786_433)),
        "c.toml:11: export.root.size: 262144 bytes from offset 786433 ends past the end of device fast, allowed is up to \
         byte 1048576"
    );
    assert_eq!(
        refusal(&bytes(1_048_577, 0)),
        "c.toml:11: export.root.size: 1048577 bytes from offset 0 ends past the end of device fast, allowed is up to \
         byte 1048576"
    );
    for (size, offset) in [(1_048_576, 0), (1, 1_048_575)] {
        let export = &plan(&bytes(size, offset)).expect("it ends with its device").exports[Slot::first(0)];
        assert_eq!((export.offset_bytes, export.size_bytes), (offset, size));
    }
    let rest = plan(&good_with("size = \"256KiB\"", "offset = 1048575")).expect("one byte remains");
    assert_eq!((rest.exports[Slot::first(0)].offset_bytes, rest.exports[Slot::first(0)].size_bytes), (1_048_575, 1));
    assert_eq!(
        refusal(&good_with("size = \"256KiB\"", "offset = \"1MiB\"")),
        "c.toml:8: export.root: what remains from offset 1048576 ends past the end of device fast, allowed is up to byte \
         1048576"
    );
    let wraps = good_with("size = \"256KiB\"", "size = 9223372036854775807\noffset = 9223372036854775807");
    assert!(refusal(&wraps).contains("past the end"), "the sum does not wrap");
}

#[test]
fn two_exports_overlap_only_if_both_say_so() {
    let second = |extra: &str| {
        format!("[export.swap]\ndevice = \"fast\"\ntenant = \"alice\"\nnbd = \"unix:/b\"\nsize = \"128KiB\"\n{extra}")
    };
    let overlap = "c.toml:13: export.swap: overlaps export.root in bytes 131072 to 262143 of device fast, allowed only if \
                   both say shared = true";
    assert_eq!(refusal(&format!("{GOOD}{}", second("offset = \"128KiB\"\n"))), overlap);
    assert_eq!(refusal(&format!("{GOOD}{}", second("offset = \"128KiB\"\nshared = true\n"))), overlap);
    let first = good_with("size = \"256KiB\"", "size = \"256KiB\"; shared = true").replace("; ", "\n");
    assert!(plan(&format!("{first}{}", second("offset = \"128KiB\"\nshared = true\n"))).is_ok());
    assert!(plan(&format!("{GOOD}{}", second("offset = \"256KiB\"\n"))).is_ok(), "touching is not overlapping");
}

#[test]
fn two_tenants_exports_may_touch_and_not_overlap_by_a_byte() {
    // root is bytes 262144 to 524287 of alice. bob's export comes behind it, or before.
    let two = |offset: u64, size: u64| {
        let root = good_with("size = \"256KiB\"", "size = \"256KiB\"\noffset = \"256KiB\"");
        format!(
            "{root}[tenant.bob]\n[export.swap]\ndevice = \"fast\"\ntenant = \"bob\"\nnbd = \"unix:/b\"\n\
             size = {size}\noffset = {offset}\n"
        )
    };
    for (offset, size) in [(524_288, 4096), (524_288, 524_288), (0, 262_144), (262_143, 1)] {
        assert!(plan(&two(offset, size)).is_ok(), "{size} bytes from {offset} touch");
    }
    for (offset, size, bytes) in [
        (524_287, 4096, "524287 to 524287"),
        (524_287, 1, "524287 to 524287"),
        (0, 262_145, "262144 to 262144"),
        (262_144, 1, "262144 to 262144"),
        (0, 1_048_576, "262144 to 524287"),
    ] {
        assert_eq!(
            refusal(&two(offset, size)),
            format!(
                "c.toml:15: export.swap: overlaps export.root in bytes {bytes} of device fast, allowed only if both say \
                 shared = true"
            )
        );
    }
}

#[test]
fn a_cost_per_byte_is_rounded_to_the_nearest_256th() {
    let read = |per_byte: &str| {
        let text = good_with(
            "kind = \"memory\"",
            &format!("kind = \"memory\"\ncost = {{ read = {{ per-byte = {per_byte} }} }}"),
        );
        plan(&text).unwrap().devices[Slot::first(0)].config.cost.read.per_byte_256ths
    };
    // 255.74, 0.49, 0.51 and 25.6 256ths.
    let all = ["1", "0.999", "0.0019", "0.002", "0.1", "0", "1000"].map(read);
    assert_eq!(all, [256, 256, 0, 1, 26, 0, 256_000]);
}

#[test]
fn each_key_of_the_server_can_be_set_and_has_its_own_default() {
    let server = |keys: &str| plan(&format!("{GOOD}[server]\n{keys}")).unwrap().server;
    let default = ServerConfig::default();
    assert_eq!(server(""), default);
    assert_eq!(server("workers = 3"), ServerConfig { workers: Some(3), ..default.clone() });
    assert_eq!(server("pin = false"), ServerConfig { pin: false, ..default.clone() });
    assert_eq!(server("connections = 7"), ServerConfig { connections_max: 7, ..default.clone() });
    assert_eq!(server("socket-mode = \"666\""), ServerConfig { socket_mode: 0o666, ..default.clone() });
    assert_eq!(server("handshake-s = 3600"), ServerConfig { handshake_s: 3600, ..default.clone() });
    assert_eq!(server("stall-s = 86400"), ServerConfig { stall_s: 86_400, ..default.clone() });
    assert_eq!(server("drain-s = 1"), ServerConfig { drain_s: 1, ..default });
    let of = server("user = \"u\"\ngroup = \"g\"\npaths = [\"/a\", \"/b\"]").privilege;
    assert_eq!((of.user.as_deref(), of.group.as_deref(), of.paths.len()), (Some("u"), Some("g"), 2));
}

#[test]
fn a_file_is_opened_as_its_section_says() {
    for (word, direct) in [("auto", Direct::Auto), ("always", Direct::Always), ("never", Direct::Never)] {
        let of_file = format!("kind = \"file\"\npath = \"/x\"\nexpert.direct = \"{word}\"");
        let config = Config::parse("c.toml", &good_with("kind = \"memory\"\nsize = \"1MiB\"", &of_file)).unwrap();
        let Medium::File { direct: is, .. } = &config.devices[0].medium else { panic!("it is a file") };
        assert_eq!(*is, direct);
    }
}

#[test]
fn what_is_exactly_as_long_as_it_may_be_is_taken() {
    let description = "d".repeat(4096);
    let with =
        |text: &str| plan(&good_with("device = \"fast\"", &format!("device = \"fast\"\ndescription = \"{text}\"")));
    assert_eq!(with(&description).unwrap().exports[Slot::first(0)].description, Some(description.clone()));
    assert_eq!(
        with(&format!("{description}d")).unwrap_err(),
        "c.toml:10: export.root.description: 4097 bytes are too long, allowed are 4096"
    );
    let name = "n".repeat(4096);
    assert_eq!(
        plan(&good_with("[export.root]", &format!("[export.{name}]"))).unwrap().exports[Slot::first(0)].name,
        name
    );
    let address = format!("unix:/{}", "s".repeat(106));
    let listeners = plan(&good_with("unix:/run/a.sock", &address)).unwrap().listeners;
    assert_eq!(listeners[0].0.to_string(), address, "a path of 107 bytes");
}

#[test]
fn a_zero_size_is_refused() {
    assert_eq!(
        refusal(&good_with("size = \"256KiB\"", "size = 0")),
        "c.toml:11: export.root.size: 0 is out of range, allowed is 1 to 9223372036854775807"
    );
    assert_eq!(
        refusal(&good_with("size = \"1MiB\"", "size = \"0MiB\"")),
        "c.toml:3: device.fast.size: \"0MiB\" is out of range, allowed is 1 to 9223372036854775807"
    );
}

#[test]
fn an_upgrade_comes_by_a_unix_socket() {
    let read = |text: &str| Config::parse("c.toml", &format!("[server]\n{text}\n")).map(|config| config.server.upgrade);
    let address = read("upgrade = \"unix:/run/u\"").unwrap().unwrap();
    assert_eq!(address.to_string(), "unix:/run/u");
    for text in ["tcp:localhost:1", "/run/u", "unix:"] {
        let sentence = read(&format!("upgrade = \"{text}\"")).unwrap_err().to_string();
        let expected = format!(
            "c.toml:2: server.upgrade: \"{text}\" is no unix socket, allowed is \"unix:PATH\" (at most 107 bytes)"
        );
        assert_eq!(sentence, expected);
    }
}
