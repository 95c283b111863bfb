//! Drives with spells, and a D that is found under them.

use super::*;
use mqfq_blk_watched::request::Op;
use mqfq_nvme_watched::media::VolatileCache;
use mqfq_nvme_watched::spells::{Late, Pauses, Slow};

#[test]
fn a_drive_has_the_spells_that_are_written_and_no_others() {
    let device = |more: &str| good_with("size = \"64GiB\"", &format!("size = \"64GiB\"\n{more}"));
    assert_eq!(parse(GOOD).unwrap().device.spells, Spells::default());
    let more = "slow-spell = { from = \"1ms\", until = \"3ms\", times = 4 }\npauses = { every = \"200ms\", length = \"20ms\" }\n\
                late = { permille = 10, times = 20 }";
    let spells = Spells {
        slow: Some(Slow { from_ns: 1_000_000, until_ns: 3_000_000, times: 4 }),
        pauses: Some(Pauses { every_ns: 200_000_000, length_ns: 20_000_000 }),
        late: Some(Late { permille: 10, times: 20 }),
        write_drift: None,
    };
    assert_eq!(parse(&device(more)).unwrap().device.spells, spells);
    let more = "strangers = { depth = 64, size = \"4KiB\", every = \"2s\", length = \"1s\" }";
    let strangers = Strangers { depth: 64, size_bytes: 4096, every_ns: 2_000_000_000, length_ns: 1_000_000_000 };
    assert_eq!(parse(&device(more)).unwrap().device.strangers, Some(strangers));
    for (more, expected) in [
        (
            "strangers = { depth = 1, size = \"4KiB\", every = \"1s\", length = \"2s\" }",
            "strangers.length: \"2s\" is out of range, allowed is 0s to 1s",
        ),
        (
            "pauses = { every = \"1ms\", length = \"1ms\" }",
            "pauses.length: \"1ms\" is out of range, allowed is 0s to 999999ns",
        ),
        ("late = { permille = 1001, times = 2 }", "late.permille: 1001 is out of range, allowed is 0 to 1000"),
        (
            "slow-spell = { from = \"2ms\", until = \"3ms\" }",
            "slow-spell.times: this key is missing, allowed is a number",
        ),
    ] {
        assert_eq!(refusal(&device(more)), format!("s.toml:11: device.{expected}"));
    }
    let null = good_with(
        "kind = \"nvme\"\npreset = \"nvmf-dram\"",
        "kind = \"null\"\npauses = { every = \"1ms\", length = \"1us\" }",
    );
    assert!(refusal(&null).starts_with("s.toml:9: device.pauses: unknown key, allowed are kind, size"));
}

#[test]
fn the_depth_is_a_number_or_is_found_from_where_it_is_told_to_start() {
    let policy = |lines: &str| format!("{GOOD}[policy]\n{lines}\n");
    let read = |lines: &str| parse(&policy(lines)).unwrap_or_else(|refused| panic!("{refused}")).policy;
    let plain = read("");
    assert_eq!((plain.depth_auto, plain.depth, plain.token_unit_bytes), (false, 64, None));
    let found = read("depth = \"auto\"");
    assert_eq!((found.depth_auto, found.depth, found.token_unit_bytes), (true, 64, Some(4096)));
    let found = read("kind = \"sfqd\"\ndepth = \"auto\"\ndepth-start = 4096\ntoken-unit = \"8KiB\"");
    assert_eq!((found.depth_auto, found.depth, found.token_unit_bytes), (true, 4096, Some(8192)));
    let refused = |lines: &str| refusal(&policy(lines));
    for lines in ["depth-start = 8", "depth = 8\ndepth-start = 8"] {
        assert!(refused(lines).ends_with("policy.depth-start: says where depth = \"auto\" starts, allowed with it"));
    }
    assert_eq!(
        refused("kind = \"none\"\ndepth = \"auto\""),
        "s.toml:17: policy.depth: \"auto\" is no setting of policy none, allowed with mqfq, mqfq-serial and sfqd"
    );
    let other = parse(&policy("depth = \"auto\"\ntokens = \"atomic-counter\"")).unwrap();
    assert_eq!(
        crate::run::run(&other).expect_err("a counter has a fixed depth"),
        "policy: depth \"auto\" needs tokens whose number can change, allowed is tokens \"token-tree\""
    );
}

#[test]
fn cores_are_stolen_for_times_between_two_and_the_longer_one_is_no_shorter() {
    let with = |least: &str, most: &str| {
        let stops = format!("stops-least = \"{least}\", stops-most = \"{most}\"");
        let text = good_with(
            "[machine]",
            &format!("[machine]\nstolen = {{ runs-least = \"1us\", runs-most = \"2us\", {stops} }}"),
        );
        parse(&text).map(|scenario| scenario.machine.stolen)
    };
    assert_eq!(with("1ms", "10ms"), Ok(Some(Stolen { runs_ns: (1_000, 2_000), stops_ns: (1_000_000, 10_000_000) })));
    let shorter = with("10ms", "1ms").unwrap_err();
    assert!(shorter.contains("machine.stolen.stops-most: "), "{shorter}");
}

// Chains, and the volatile cache that their flushes write back.

#[test]
fn a_chain_is_a_commit_unless_its_steps_are_named() {
    let chain = |more: &str| good_with("load = \"closed\"\ndepth = 128", &format!("load = \"chain\"{more}"));
    let arrival = |more: &str| parse(&chain(more)).unwrap().tenants.remove(0).load.arrival;
    let steps = [Op::Write, Op::Write, Op::Flush, Op::Write, Op::Flush];
    assert_eq!(arrival(""), Arrival::Chain { steps: steps.into(), think_ns: 0 });
    let steps = [Op::Read, Op::Flush];
    let own = arrival("\nsteps = [\"read\", \"flush\"]\nthink = \"2us\"");
    assert_eq!(own, Arrival::Chain { steps: steps.into(), think_ns: 2_000 });
    let allowed = "allowed is a list of \"read\", \"write\" and \"flush\", 1 to 64 of them";
    let none = format!("s.toml:14: tenant.fio.steps: 0 steps do not fit here, {allowed}");
    assert_eq!(refusal(&chain("\nsteps = []")), none);
    let why = "does not go together with load = \"chain\", whose steps say what they are";
    assert_eq!(refusal(&chain("\nread-percent = 0")), format!("s.toml:14: tenant.fio.read-percent: {why}"));
}

#[test]
fn a_volatile_cache_is_that_of_the_preset_unless_its_keys_say_otherwise() {
    let cache = |preset: &str, keys: &str| {
        let device = format!("kind = \"nvme\"\npreset = \"{preset}\"\nsize = \"1GiB\"\nvolatile-cache = {keys}");
        let text = format!("[machine]\npreset = \"user-space-2\"\n[device]\n{device}\n[tenant.a]\nload = \"chain\"\n");
        Scenario::parse("s.toml", &text).map(|scenario| scenario.device.volatile_cache)
    };
    let of_flash = VolatileCache { flush_ns: 1_600_000, back_bytes_per_s: 2_000_000_000, size_bytes: 64 << 20 };
    assert_eq!(cache("flash-460k", "{}").unwrap(), Some(of_flash));
    let own = VolatileCache { flush_ns: 2_000, back_bytes_per_s: 1 << 20, size_bytes: 4096 };
    let keys = "{ flush = \"2us\", back = \"1MiB\", size = \"4KiB\" }";
    assert_eq!(cache("flash-460k", keys).unwrap(), Some(own));
    assert_eq!(cache("optane", keys).unwrap(), Some(own));
    let refused = cache("optane", "{}").unwrap_err().to_string();
    assert!(refused.contains("device.volatile-cache.flush: this key is missing"), "{refused}");
}
