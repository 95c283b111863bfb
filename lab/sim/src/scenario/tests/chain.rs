//! Chains, and the volatile cache that their flushes write back.

use super::*;
use mqfq_blk_watched::request::Op;
use mqfq_nvme_watched::media::VolatileCache;

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
