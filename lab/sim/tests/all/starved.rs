//! Workers that other programs keep from their cores: what a device's D and the cost of its writes do meanwhile.
//! `--nocapture` prints each run.

use mqfq_sim::run::run;
use mqfq_sim::scenario::{Machine, Scenario, Stolen};

const MS: u64 = 1_000_000;

/// Two readers and a writer of weights 300:100:100 on a drive of 7500 reads or 2900 writes of 4 KiB per second.
const SCENARIO: &str = r#"
[run]
measured = "12s"
windows = "1s"
[machine]
preset = "user-space-2"
workers = 2
memory = "free"
[device]
kind = "nvme"
preset = "flash-60k"
slowed = 8
size = "64GiB"
cost = "auto"
[policy]
kind = "mqfq"
depth = "auto"
window = "auto"
[tenant.heavy]
weight = 300
load = "closed"
depth = 256
size = "4KiB"
[tenant.reader]
load = "closed"
depth = 256
size = "4KiB"
[tenant.writer]
load = "closed"
depth = 256
size = "4KiB"
read-percent = 0
"#;

#[test]
fn workers_that_lose_their_cores_for_up_to_50_ms_starve_no_tenant() {
    let scenario = Scenario::parse("starved.toml", SCENARIO).unwrap();
    let stolen = Stolen { runs_ns: (MS, 100 * MS), stops_ns: (MS, 50 * MS) };
    for seed in [3, 4, 5] {
        let machine = Machine { stolen: Some(stolen), ..scenario.machine.clone() };
        let outcome = run(&Scenario { seed, machine, ..scenario.clone() }).unwrap();
        let [heavy, reader, writer] = &outcome.tenants[..] else { panic!("three tenants") };
        let requests = |tenant: &mqfq_sim::outcome::TenantOutcome| -> Vec<u64> {
            tenant.windows.iter().take(12).map(|window| window.requests).collect()
        };
        let depths = outcome.depths.iter().map(|at| at.depth);
        let (least, most) = (depths.clone().min().unwrap(), depths.max().unwrap());
        println!("seed {seed}: D {least} to {most}, requests of each second:");
        for tenant in [heavy, reader, writer] {
            println!("{:?}, longest {} ms", requests(tenant), tenant.max_ns / MS);
        }
        // D is as without stops, or twice that while the device stands still between them.
        assert!(least >= 16 && most <= 129, "seed {seed}: D {least} to {most}");
        for (read, written) in requests(reader).into_iter().zip(requests(writer)) {
            assert!(
                written * 4 > read,
                "seed {seed}: {read} reads and {written} writes in a second, a write costs 2.6"
            );
        }
        let shares = heavy.requests as f64 / reader.requests as f64;
        assert!((2.9..3.1).contains(&shares), "seed {seed}: weights 300:100 gave {shares}:1");
    }
}
