//! Figures that are found while a device runs, in virtual time: D beside large requests, D and the cost of writes on
//! workers without cores, and the cost of writes.

mod split {
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
            let errors =
                outcome.tenants.iter().map(|tenant| (tenant.bytes_per_s / tenant.ideal_bytes_per_s - 1.0).abs());
            errors.fold(0.0, f64::max)
        };
        let [auto, units, requests] =
            ["\"auto\"".to_owned(), format!("{depth}\ntoken-unit = \"4KiB\""), depth.to_string()]
                .map(|depth| error(&format!("depth = {depth}")));
        println!("D {depth}: found {auto}, set {units}, in requests {requests}");
        assert!(units < auto + 0.02 && requests > 3.0 * units, "found {auto}, set {units}, in requests {requests}");
    }
}

mod starved {
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
}

mod write_cost {
    //! Shares of a drive's time where a write's cost is followed, and where it is not. `--nocapture` prints both.

    use mqfq_nvme_watched::presets::FLASH_60K;
    use mqfq_nvme_watched::spells::Spells;
    use mqfq_sim::outcome::Outcome;
    use mqfq_sim::run::run;
    use mqfq_sim::scenario::{Device, Scenario};

    const SCENARIO: &str = include_str!("../../scenarios/write-cost.toml");

    const REQUEST_BYTES: u32 = 4096;

    /// The scenario with `old` replaced by `new`.
    fn with(old: &str, new: &str) -> Scenario {
        assert_eq!(SCENARIO.matches(old).count(), 1, "{old:?} stands there once");
        Scenario::parse("write-cost.toml", &SCENARIO.replace(old, new)).unwrap()
    }

    /// Reader's part of the drive's time in each part of the run, and in all that was measured.
    fn reader_shares(scenario: &Scenario, outcome: &Outcome) -> (Vec<f64>, f64) {
        let write_drift = scenario.device.spells.write_drift;
        let window_ns = scenario.window_ns.unwrap();
        let [read_ns, write_ns] = [FLASH_60K.media.read_link, FLASH_60K.media.write_link]
            .map(|link| 1e9 / link.commands_per_s(REQUEST_BYTES) as f64);
        let [reader, writer] = &outcome.tenants[..] else { panic!("two tenants") };
        let measured_from = (scenario.warm_up_ns / window_ns) as usize;
        let times: Vec<(f64, f64)> = reader
            .windows
            .iter()
            .zip(&writer.windows)
            .zip(0..)
            .skip(measured_from)
            .map(|((reads, writes), at)| {
                let middle_ns = at * window_ns + window_ns / 2;
                let factor = write_drift.map_or(1.0, |drift| drift.factor_256ths(middle_ns) as f64 / 256.0);
                (reads.requests as f64 * read_ns, writes.requests as f64 * write_ns * factor)
            })
            .collect();
        let share = |(read, write): (f64, f64)| read / (read + write);
        let all = times.iter().fold((0.0, 0.0), |sum, time| (sum.0 + time.0, sum.1 + time.1));
        (times.into_iter().map(share).collect(), share(all))
    }

    /// Reader's parts of a run; prints its second parts.
    fn run_and_print(name: &str, scenario: &Scenario) -> (Vec<f64>, f64) {
        let (shares, all) = reader_shares(scenario, &run(scenario).unwrap());
        let seconds: Vec<String> = shares
            .chunks(10)
            .map(|windows| format!("{:.3}", windows.iter().sum::<f64>() / windows.len() as f64))
            .collect();
        println!("{name}: reader's share {all:.3}, each half second: {}", seconds.join(" "));
        (shares, all)
    }

    #[test]
    fn shares_of_the_drives_time_stay_while_the_cost_of_writes_drifts() {
        let (shares, all) = run_and_print("cost = \"auto\"", &with("cost = \"auto\"", "cost = \"auto\""));
        assert!((all - 0.5).abs() < 0.01, "{all}");
        // The cost moves by up to three quarters of itself in a second; the estimate is some tenths of a second late.
        let mean_off = shares.iter().map(|share| (share - 0.5).abs()).sum::<f64>() / shares.len() as f64;
        assert!(mean_off < 0.04, "{mean_off}");
        let by_bytes = with("warm-up = \"1s\"\nmeasured = \"8s\"", "warm-up = \"0s\"\nmeasured = \"2s\"");
        let by_bytes = Scenario { device: Device { follow_writes: false, ..by_bytes.device.clone() }, ..by_bytes };
        let (_, by_bytes) = run_and_print("cost = \"bytes\"", &by_bytes);
        assert!(by_bytes < 0.25, "{by_bytes}: by bytes a write costs 2.6 times what it is charged, and more");
    }

    #[test]
    fn a_cost_that_stays_is_found_and_kept() {
        let (shares, all) = run_and_print("steady, \"auto\"", &{
            let steady = with("measured = \"8s\"", "measured = \"1500ms\"");
            Scenario { device: Device { spells: Spells::default(), ..steady.device.clone() }, ..steady }
        });
        assert!((all - 0.5).abs() < 0.005, "{all}");
        let most = shares.iter().map(|share| (share - 0.5).abs()).fold(0.0, f64::max);
        assert!(most < 0.06, "{most}: an eighth more or less in force is 3% of the time, in a phase");
    }
}
