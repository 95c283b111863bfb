//! No value of a config breaks or floods the sentence that refuses it.

use super::tests::{GOOD, good_with, plan, refusal};
use super::{Config, Medium};
use mqfq_blk::device::file::OnFailure;
use mqfq_blk::slots::Slot;

/// A tenant's or device's name stands in each line about it, so it cannot break one.
#[test]
fn a_name_of_a_tenant_or_device_is_one_short_printable_line() {
    let named = |old: &str, new: &str| GOOD.replace(&format!("[{old}]"), &format!("[{new}]"));
    let fits = "n".repeat(255);
    let tenant = named("tenant.alice", &format!("tenant.{fits}")).replace("\"alice\"", &format!("\"{fits}\""));
    assert_eq!(plan(&tenant).unwrap().devices[Slot::first(0)].flows[Slot::first(0)].tenant, fits);
    let allowed = "allowed are 1 to 255 bytes without \"/\" and control characters";
    for (section, line) in [("tenant.alice", 5), ("device.fast", 1)] {
        let kind = section.split('.').next().unwrap();
        assert_eq!(
            refusal(&named(section, &format!("{kind}.{fits}n"))),
            format!("c.toml:{line}: {kind}.{fits}n: this name has 256 bytes, {allowed}")
        );
        assert_eq!(
            refusal(&named(section, &format!("{kind}.\"a\\nmqfq: b\\u001b[31m\""))),
            format!("c.toml:{line}: {kind}.\"a\\nmqfq: b\\u{{1b}}[31m\": this name has a control character, {allowed}")
        );
        assert_eq!(
            refusal(&named(section, &format!("{kind}.\"\""))),
            format!("c.toml:{line}: {kind}.\"\": this name has 0 bytes, {allowed}")
        );
    }
}

/// A config's value is shown in quotes, on one line, and a long one only at its beginning: here are a line break, an
/// escape code and a megabyte in each kind of value.
#[test]
fn no_value_breaks_the_line_of_its_refusal_or_fills_the_terminal() {
    let hostile = "a\nb\u{1b}[31m";
    let (toml, shown) = (r#""a\nb\u001b[31m""#, r#""a\nb\u{1b}[31m""#);
    assert_eq!(format!("{hostile:?}"), shown);
    let long = "7".repeat(1 << 20);
    let cases: [(&str, &str); 12] = [
        ("kind = \"memory\"", "kind = @"),
        ("kind = \"memory\"", "kind = \"memory\"\npolicy = @"),
        ("kind = \"memory\"", "kind = \"memory\"\ntimeout = @"),
        ("kind = \"memory\"", "kind = \"memory\"\nexpert.split = @"),
        ("kind = \"memory\"", "kind = \"memory\"\n@ = 1"),
        ("kind = \"memory\"\nsize = \"1MiB\"", "kind = \"file\"\npath = @"),
        ("size = \"1MiB\"", "size = @"),
        ("\"unix:/run/a.sock\"", "@"),
        ("device = \"fast\"", "device = @"),
        ("tenant = \"alice\"", "tenant = @"),
        ("[tenant.alice]", "[tenant.alice]\nstaged-bytes = @\n[server]\nsocket-mode = @\n[tenant.bob]"),
        ("[device.fast]", "[device.@]"),
    ];
    for (old, new) in cases {
        let refused = refusal(&good_with(old, &new.replace('@', toml)));
        assert!(refused.contains(shown), "{new}: {refused}");
        assert!(!refused.contains(char::is_control), "{new}: {refused:?}");
        let refused = refusal(&good_with(old, &new.replace('@', &format!("\"{long}\""))));
        assert!(refused.contains("777\"... (1048576 bytes)"), "{new}: {refused}");
        assert!(refused.len() < 1500, "{new}: {} bytes", refused.len());
    }
    let server = |mode: &str| refusal(&format!("{GOOD}[server]\nsocket-mode = {mode}\n"));
    assert!(server(toml).contains(shown) && server(&format!("\"{long}\"")).len() < 500);
    for number in [("weight = 200", "weight = @"), ("size = \"1MiB\"", "size = @")] {
        let refused = refusal(&good_with(number.0, &number.1.replace('@', &long)));
        assert!(refused.contains("777\"... (1048576 bytes) ") && refused.len() < 500, "{} bytes", refused.len());
    }
    // Text that is not TOML: the parser's message is one line too.
    for text in [format!("[\"{long}\"]\n[\"{long}\"]"), format!("a = {long}x"), "a = \"b\u{1b}\"".to_owned()] {
        let refused = refusal(&text);
        assert!(refused.len() < 5000 && !refused.contains(char::is_control), "{} bytes", refused.len());
    }
}

#[test]
fn a_long_list_of_names_is_cut() {
    let more: String = (0..1000).map(|number| format!("[tenant.t{number}]\n")).collect();
    let refused = refusal(&format!("{}{more}", good_with("tenant = \"alice\"", "tenant = \"nobody\"")));
    assert!(refused.ends_with("there is no tenant \"nobody\", defined are alice, t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14 and 985 more"), "{refused}");
}

#[test]
fn a_nul_in_a_path_is_told_as_that() {
    let allowed = "allowed is \"unix:PATH\" (at most 107 bytes), \"tcp:HOST:PORT\", or a list of these";
    assert_eq!(
        refusal(&good_with("unix:/run/a.sock", "unix:/run\\u0000.sock")),
        format!(
            "c.toml:12: export.root.nbd: \"unix:/run\\0.sock\" holds a NUL character, which ends a path, {allowed}"
        )
    );
    assert_eq!(
        refusal(&good_with("kind = \"memory\"\nsize = \"1MiB\"", "kind = \"file\"\npath = \"/disk\\u0000\"")),
        "c.toml:3: device.fast.path: holds a NUL character, which ends a path, allowed is a path without"
    );
}

#[test]
fn a_space_between_number_and_unit_is_refused_by_name() {
    assert_eq!(
        refusal(&good_with("size = \"1MiB\"", "size = \"1 MiB\"")),
        "c.toml:3: device.fast.size: \"1 MiB\" is not a size, because of its space, allowed is bytes (4096), or a whole \
         number followed by KiB, MiB, GiB or TiB (\"64KiB\")"
    );
    assert_eq!(
        refusal(&good_with("kind = \"memory\"", "kind = \"memory\"\ntimeout = \"50 ms\"")),
        "c.toml:3: device.fast.timeout: \"50 ms\" is not a duration, because of its space, allowed is a whole number \
         followed by ns, us, ms or s (\"50ms\")"
    );
}

#[test]
fn what_a_device_does_after_a_failure_is_one_of_two() {
    let with = |keys: &str| good_with("kind = \"memory\"", &format!("kind = \"file\"\npath = \"/x\"\n{keys}"));
    assert_eq!(
        refusal(&with("on-failure = \"panic\"")),
        "c.toml:4: device.fast.on-failure: \"panic\" is not known, allowed are fail, read-only"
    );
    for (keys, wanted) in [("", OnFailure::Fail), ("on-failure = \"read-only\"", OnFailure::ReadOnly)] {
        let config = Config::parse("c.toml", &with(keys)).unwrap();
        let Medium::File { on_failure, .. } = config.devices[0].medium else { panic!("{keys}") };
        assert_eq!(on_failure, wanted, "{keys}");
    }
}

#[test]
fn what_is_not_toml_is_refused_with_its_line() {
    assert!(refusal("[device.fast\n").starts_with("c.toml:1: not valid TOML: "), "{}", refusal("[device.fast\n"));
    let twice = refusal(&good_with("weight = 200", "weight = 200\nweight = 300"));
    assert_eq!(twice, "c.toml:7: not valid TOML: weight stands here for the second time, allowed is once");
}

#[test]
fn an_export_name_may_be_empty_but_not_longer_than_the_protocol_carries() {
    assert_eq!(plan(&good_with("[export.root]", "[export.\"\"]")).unwrap().exports[Slot::first(0)].name, "");
    let name = "n".repeat(4097);
    assert_eq!(
        refusal(&good_with("[export.root]", &format!("[export.{name}]"))),
        format!(
            "c.toml:8: export.\"{}\"... (4097 bytes): this name has 4097 bytes, allowed are 0 to 4096 bytes \
             without \"/\" and control characters",
            &name[..256]
        )
    );
}

/// A slash stands between tenant and export in counters and paths.
#[test]
fn no_name_has_a_slash() {
    for (section, kind, line, most) in [
        ("[tenant.alice]", "tenant", 5, "1 to 255"),
        ("[device.fast]", "device", 1, "1 to 255"),
        ("[export.root]", "export", 8, "0 to 4096"),
        ("[export.root]", "group", 8, "1 to 255"),
    ] {
        let rest = if kind == "group" { "\n[export.root]" } else { "" };
        assert_eq!(
            refusal(&good_with(section, &format!("[{kind}.\"a/b\"]{rest}"))),
            format!(
                "c.toml:{line}: {kind}.\"a/b\": this name has a \"/\", allowed are {most} bytes without \"/\" and \
                 control characters"
            )
        );
    }
}

#[test]
fn a_name_that_no_section_has_is_refused_with_those_that_exist() {
    assert_eq!(
        refusal(&good_with("device = \"fast\"", "device = \"fats\"")),
        "c.toml:9: export.root.device: there is no device \"fats\", defined are fast; did you mean fast?"
    );
    assert_eq!(
        refusal(&good_with("tenant = \"alice\"", "tenant = \"bob\"")),
        "c.toml:10: export.root.tenant: there is no tenant \"bob\", defined are alice"
    );
    assert_eq!(
        refusal(&good_with("[tenant.alice]\nweight = 200\n", "\n\n")),
        "c.toml:10: export.root.tenant: there is no tenant \"alice\", none is defined"
    );
}
