//! Large requests where D is found: a part is measured as the request that it is to the policy, and a queue that is
//! throttled because another waits for a token counts as one that waits.

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

/// Each of two workers has large requests, one also a reader with one small request at a time. A large request is
/// longer than T, so the queue that the reader holds back is throttled while the reader waits for a token.
const LONGER_THAN_T: &str = r#"
[run]
warm-up = "800ms"
measured = "200ms"
[machine]
preset = "user-space-2"
[device]
kind = "nvme"
preset = "zssd"
size = "1GiB"
[policy]
kind = "mqfq"
depth = "auto"
depth-start = 1
window = "16KiB"
[tenant.reader]
load = "closed"
depth = 1
size = "4KiB"
[tenant.bulk]
load = "closed"
threads = 8
depth = 16
size = "128KiB"
"#;

#[test]
fn a_depth_is_found_where_requests_are_longer_than_the_window() {
    let outcome = run(&Scenario::parse("longer.toml", LONGER_THAN_T).unwrap()).unwrap();
    let last = outcome.depths.last().expect("D is found").depth;
    assert!((33..=129).contains(&last), "{:?}", outcome.depths);
}

/// Three tenants whose few large requests are more than the device needs in flight.
fn three_sizes(depth: &str) -> Scenario {
    let text = format!(
        "[run]\nwarm-up = \"100ms\"\nmeasured = \"200ms\"\n[machine]\npreset = \"user-space-2\"\n\
         [device]\nkind = \"nvme\"\npreset = \"flash-460k\"\nsize = \"1GiB\"\n[policy]\nkind = \"mqfq\"\n{depth}\n\
         [tenant.a]\nweight = 300\nload = \"closed\"\ndepth = 16\nsize = \"64KiB\"\n\
         [tenant.b]\nweight = 200\nload = \"closed\"\ndepth = 16\nsize = \"64KiB\"\n\
         [tenant.c]\nweight = 100\nload = \"closed\"\ndepth = 16\nsize = \"128KiB\"\n"
    );
    Scenario::parse("three.toml", &text).unwrap()
}

#[test]
fn a_depth_that_was_found_gives_the_same_shares_when_it_is_set_in_its_units() {
    let found = run(&three_sizes("depth = \"auto\"")).unwrap();
    let depth = found.depths.last().expect("D is found").depth;
    // How far the worst tenant is from its part.
    let error = |depth: &str| {
        let outcome = run(&three_sizes(depth)).unwrap();
        let errors = outcome.tenants.iter().map(|tenant| (tenant.bytes_per_s / tenant.ideal_bytes_per_s - 1.0).abs());
        errors.fold(0.0, f64::max)
    };
    let [auto, units, requests] = ["\"auto\"".to_owned(), format!("{depth}\ntoken-unit = \"4KiB\""), depth.to_string()]
        .map(|depth| error(&format!("depth = {depth}")));
    println!("D {depth}: found {auto}, set {units}, in requests {requests}");
    assert!(units < auto + 0.02 && requests > 3.0 * units, "found {auto}, set {units}, in requests {requests}");
}
