//! Large requests in parts where D is found: a part is measured as the request that it is to the policy.

use mqfq_sim::run::run;
use mqfq_sim::scenario::Scenario;

const PARTS: &str = r#"
[run]
warm-up = "1ms"
measured = "250ms"
[machine]
preset = "user-space-2"
workers = 1
[device]
kind = "nvme"
preset = "optane"
size = "1GiB"
split = "16KiB"
[policy]
kind = "mqfq"
depth = "auto"
depth-start = 1
[tenant.bulk]
load = "closed"
depth = 64
size = "128KiB"
"#;

#[test]
fn a_depth_is_found_where_every_request_is_cut() {
    let outcome = run(&Scenario::parse("parts.toml", PARTS).unwrap()).unwrap();
    let last = outcome.depths.last().expect("D is found").depth;
    // A part is four units: with two beyond the first, 9, optane gives 0.97 of its best.
    assert!((9..=65).contains(&last), "{:?}", outcome.depths);
}
