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
    let seconds: Vec<String> =
        shares.chunks(10).map(|windows| format!("{:.3}", windows.iter().sum::<f64>() / windows.len() as f64)).collect();
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
