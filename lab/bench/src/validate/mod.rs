//! `mqfq-lab bench validate`: what the simulator says of this machine, beside what the machine does.
//!
//! # What it compares
//! * Shares and throughput: the cases of [`crate::fairness`] under both of its policies, ten scenarios. Promised: each
//!   tenant's share within two percentage points, the total within 15%.
//! * Coherence: requests per second of the null device with one worker and with two, the settings of [`crate::scale`].
//!   What a policy loses from one worker to two is what the simulator's model of cache lines and locks is for. Nothing
//!   is promised; the report says which rows are within 15%.
//!
//! # How
//! First everything is measured, then everything simulated, so that the two do not meet on the cores.
//! Coherence is measured in interleaved rounds, of which the median counts; shares once, [`SHARES_TIMES`] times as
//! long.
//!
//! # What would make it lie
//! See lab/bench/README.md. Above all: a machine that others use is not the machine that is simulated, and a
//! simulator's parameter that was calibrated to a row here proves nothing by agreeing with that row.

mod report;

use crate::contender::{Contender, contenders};
use crate::fairness::FairnessPolicy;
use crate::fairness::{self, Case, POLICIES, WARM_UP_MS};
use crate::model;
use crate::options::{Runs, defaults};
use crate::rounds::{Rounds, interleaved, median};
use crate::scale::load::{self, DEVICE_BYTES, Fixed, REQUEST_BYTES, Seen};
use crate::scale::setting::{Placement, Setting, worker_counts};
use crate::scale::{ScaleOptions, few_cpus};
use crate::scenario::{Setup, Text, in_turn};
use crate::shell::Record;
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_blkmq::BlockLayer;
use mqfq_demo::harness::{self, Transport};
use mqfq_demo::load::Window;
use mqfq_report::progress::Progress;
use mqfq_sim::outcome::Outcome;
pub use report::{CoherenceRow, SharesRow, SharesTenant, Validation};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct ValidateOptions {
    /// Most workers of the second part.
    #[arg(long, default_value_t = 2, value_parser = crate::options::workers)]
    pub workers: usize,
    /// Each relaxation of mqfq alone, too.
    #[arg(long)]
    pub relaxations: bool,
    /// Fail if a share is not within two percentage points, or a total not within 15%.
    #[arg(long)]
    pub check: bool,
    /// How much is measured: of the second part. Shares are measured once, ten times as long.
    #[command(flatten)]
    pub runs: Runs<5, 300>,
}

/// Shares are measured so many times as long as one round of the other part: queues of 256 requests make single moments
/// uneven.
pub const SHARES_TIMES: u64 = 10;

/// Largest difference of a share that is promised, percentage points.
pub const SHARE_POINTS_MAX: f64 = 2.0;

/// Largest difference of a rate that is promised for totals and looked for in the rest, part of what was measured.
pub const RATE_DIFFERENCE_MAX: f64 = 0.15;

/// Measures, simulates, prints, draws and records.
///
/// # Errors
/// One sentence: something failed, or with `check` something is outside what is promised.
pub fn run(options: &ValidateOptions, json: bool) -> Result<(), String> {
    let mut report = measure(options)?;
    report.publish(&options.runs, json)?;
    match report.outside() {
        outside if options.check && !outside.is_empty() => {
            Err(format!("the simulator is outside its promise in: {}", outside.join(", ")))
        }
        _ => Ok(()),
    }
}

/// One contender in one setting, and what each round saw.
struct Coherence {
    contender: Contender,
    setting: Setting,
    rounds: Vec<Seen>,
}

/// Measures, then simulates.
///
/// # Errors
/// One sentence.
pub fn measure(options: &ValidateOptions) -> Result<Record<Validation>, String> {
    let fixed: Fixed = defaults::<ScaleOptions>().fixed;
    let cases = fairness::cases();
    let shares_ms = SHARES_TIMES * options.runs.measured_ms;
    let workers = harness::workers(Transport::Inside);
    let settings = worker_counts(options.workers.max(1)).into_iter().flat_map(|workers| Setting::all(workers, None));
    let contenders = contenders(options.relaxations);
    let mut coherence: Vec<Coherence> = settings
        .flat_map(|setting| {
            contenders.iter().map(move |&contender| Coherence { contender, setting, rounds: Vec::new() })
        })
        .collect();
    let rounds = options.runs.rounds;
    let scenarios: Vec<(&Case, PolicyKind)> = cases.iter().flat_map(|case| POLICIES.map(|kind| (case, kind))).collect();
    let mut progress = Progress::new(scenarios.len() * 2 + coherence.len() * (rounds as usize + 1));
    let mut measured = Vec::new();
    for &(case, kind) in &scenarios {
        progress.step(&format!("{} under {kind}", case.name));
        measured.push(fairness::measure_one(case, kind, Transport::Inside, shares_ms)?);
    }
    let name = |at: usize| format!("{} workers, {}", coherence[at].setting.workers, coherence[at].contender.label);
    let seen = interleaved(rounds, (coherence.len(), contenders.len()), &mut progress, name, |at| {
        load::measure(coherence[at].contender, coherence[at].setting, fixed, options.runs.measured_ms)
    })?;
    coherence.iter_mut().zip(seen).for_each(|(case, rounds)| case.rounds = rounds);
    let mut shares = Vec::new();
    for (&(case, kind), measured) in scenarios.iter().zip(&measured) {
        progress.step(&format!("{} under {kind}, simulated", case.name));
        let window = Window::from_ms(WARM_UP_MS, shares_ms);
        let simulated = simulated_shares(case, &harness::by_default(kind, workers), workers, window)?;
        shares.push(shares_row(case, measured, &simulated));
    }
    let mut rows = Vec::new();
    for case in &coherence {
        progress.step(&format!("{} workers, {}, simulated", case.setting.workers, case.contender.label));
        rows.push(coherence_row(case, &simulated_coherence(case.contender, case.setting, fixed)?));
    }
    progress.finish();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = rows.iter().map(|row| row.workers).max().unwrap_or(0);
    let notes = [report::notes(&rows), few_cpus(most, cpus)].concat();
    let results = Validation {
        shares,
        coherence: rows,
        simulated_machine: crate::scenario::MACHINE.into(),
        shares_measured_ms: shares_ms,
        shares_workers: workers,
    };
    Ok(Record { notes, ..Record::new(results, &options.runs, &[]) })
}

fn shares_row(case: &Case, measured: &FairnessPolicy, simulated: &Outcome) -> SharesRow {
    let part = |bytes_per_s: f64, total: f64| if total > 0.0 { bytes_per_s / total } else { 0.0 };
    let tenants: Vec<SharesTenant> = measured
        .tenants
        .iter()
        .zip(&simulated.tenants)
        .map(|(measured_tenant, simulated_tenant)| {
            let measured_share = part(measured_tenant.bytes_per_s, measured.total_bytes_per_s);
            let simulated_share = part(simulated_tenant.bytes_per_s, simulated.bytes_per_s);
            SharesTenant {
                name: measured_tenant.name.clone(),
                weight: measured_tenant.weight,
                measured_share,
                simulated_share,
                difference_points: 100.0 * (simulated_share - measured_share),
            }
        })
        .collect();
    let ratio = ratio(simulated.bytes_per_s, measured.total_bytes_per_s);
    let points = tenants.iter().map(|tenant| tenant.difference_points.abs()).fold(0.0, f64::max);
    SharesRow {
        scenario: case.name.into(),
        policy: measured.policy.clone(),
        tenants,
        measured_bytes_per_s: measured.total_bytes_per_s,
        simulated_bytes_per_s: simulated.bytes_per_s,
        ratio,
        within: points <= SHARE_POINTS_MAX && is_near(ratio),
    }
}

fn coherence_row(case: &Coherence, simulated: &Outcome) -> CoherenceRow {
    let of = |value: fn(&Seen) -> f64| median(&case.rounds, value);
    let rates = Rounds::of(case.rounds.iter().map(|seen| seen.requests_per_s));
    let measured_requests_per_s = rates.median();
    let ratio = ratio(simulated.requests_per_s, measured_requests_per_s);
    // Counts per second of the whole run, over all of its requests.
    let per_request = |per_s: f64| if simulated.requests_per_s > 0.0 { per_s / simulated.requests_per_s } else { 0.0 };
    CoherenceRow {
        policy: case.contender.label.into(),
        form: case.contender.form.name().into(),
        workers: case.setting.workers,
        placement: case.setting.placement.name().into(),
        flows: case.setting.flows,
        measured_requests_per_s,
        smallest: rates.smallest(),
        largest: rates.largest(),
        simulated_requests_per_s: simulated.requests_per_s,
        ratio,
        within: is_near(ratio),
        measured_kicks_per_request: of(|seen| seen.kicks_per_request),
        simulated_kicks_per_request: per_request(simulated.policy_kicks_per_s),
        measured_no_token_per_request: of(|seen| seen.no_token_per_request),
        simulated_no_token_per_request: per_request(simulated.no_token_per_s),
    }
}

/// `None` where nothing was measured, as in an instant on a busy machine.
fn ratio(simulated: f64, measured: f64) -> Option<f64> {
    (measured > 0.0).then(|| simulated / measured)
}

fn is_near(ratio: Option<f64>) -> bool {
    ratio.is_some_and(|ratio| (ratio - 1.0).abs() <= RATE_DIFFERENCE_MAX)
}

/// Simulated before anything is counted on the null device, in place of [`crate::scale`]'s warm-up: no cache is cold
/// and no predictor learns, so that only the queues have to fill.
const COHERENCE_WARM_UP_NS: u64 = 500_000;

/// Counted after that: some ten thousand requests, of which each costs the same.
const COHERENCE_MEASURED_NS: u64 = 4_000_000;

/// One contender in one setting of [`crate::scale`].
///
/// # Errors
/// One sentence.
pub fn simulated_coherence(contender: Contender, setting: Setting, fixed: Fixed) -> Result<Outcome, String> {
    coherence_text(contender, setting, fixed).run("validate")
}

/// One case of [`crate::fairness`] under one policy.
///
/// # Errors
/// One sentence.
pub fn simulated_shares(
    case: &Case,
    policy: &PolicyOptions,
    workers: usize,
    window: Window,
) -> Result<Outcome, String> {
    shares_text(case, policy, workers, window).run("validate")
}

fn coherence_text(contender: Contender, setting: Setting, fixed: Fixed) -> Text {
    let Setting { workers, placement, flows } = setting;
    let here = setting.flows_of_worker(0).count() as u32;
    let depth = u32::from(fixed.depth_per_worker) * workers as u32;
    let mut text = Text::new(&Setup {
        warm_up_ns: COHERENCE_WARM_UP_NS,
        measured_ns: COHERENCE_MEASURED_NS,
        workers,
        machine: "",
        device: &format!("kind = \"null\"\nsize = \"{DEVICE_BYTES}\"\nqueue-depth = {}\n", fixed.queue_depth(here)),
        layer: BlockLayer::Mq,
        policy: &contender.options(depth, fixed.window_bytes, workers),
    });
    let load = fixed.load(workers, here);
    for flow in 0..flows {
        let on_workers: Vec<usize> =
            (0..workers).filter(|&worker| setting.flows_of_worker(worker).contains(&flow)).collect();
        debug_assert!(placement == Placement::All || on_workers.len() == 1);
        text.tenant(&format!("flow-{flow}"), 100, &load, &on_workers, 0);
    }
    debug_assert_eq!(load.request_bytes, REQUEST_BYTES);
    text
}

fn shares_text(case: &Case, policy: &PolicyOptions, workers: usize, window: Window) -> Text {
    let mut text = Text::new(&Setup {
        warm_up_ns: window.warm_up_ns,
        measured_ns: window.end_ns - window.warm_up_ns,
        workers,
        machine: "",
        device: &model::demo_drive(),
        layer: BlockLayer::Mq,
        policy,
    });
    for each in &case.tenants {
        // As `harness::run_inside` attaches them: connection n on worker n modulo the workers.
        text.tenant(each.name, each.weight.get(), &each.load, &in_turn(&each.load, 0, workers), 0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::MQFQ;
    use crate::fairness::FairnessTenant;
    use crate::scale::setting::Placement;

    fn simulated(case: &Case) -> Outcome {
        let policy = harness::by_default(PolicyKind::Mqfq, 2);
        simulated_shares(case, &policy, 2, Window::from_ms(5, 20)).unwrap()
    }

    fn measured(shares: [f64; 2], total: f64) -> FairnessPolicy {
        let tenant =
            |share: f64| FairnessTenant { name: "t".into(), weight: 100, bytes_per_s: share * total, p99_ns: 1 };
        FairnessPolicy {
            policy: "mqfq".into(),
            depth: None,
            window_bytes: None,
            form: Default::default(),
            total_bytes_per_s: total,
            ratio: None,
            deviation: None,
            within: true,
            tenants: shares.map(tenant).into(),
        }
    }

    #[test]
    fn two_points_of_a_share_or_a_seventh_of_the_total_are_outside() {
        let [case, ..] = fairness::cases();
        let simulated = simulated(&case);
        let part = simulated.tenants[0].bytes_per_s / simulated.bytes_per_s;
        let row = |points: f64, times: f64| {
            let part = part + points / 100.0;
            shares_row(&case, &measured([part, 1.0 - part], simulated.bytes_per_s * times), &simulated)
        };
        assert!(row(0.0, 1.0).within && row(1.9, 1.0).within && row(-1.9, 0.9).within);
        assert!(!row(2.1, 1.0).within && !row(-2.1, 1.0).within, "a share");
        assert!(!row(0.0, 0.85).within && !row(0.0, 1.2).within, "the total");
        assert!((row(1.5, 1.0).tenants[0].difference_points + 1.5).abs() < 1e-9);
        let nothing = shares_row(&case, &measured([0.0, 0.0], 0.0), &simulated);
        assert!(!nothing.within && nothing.ratio.is_none());
    }

    #[test]
    fn a_rate_is_the_median_of_its_rounds() {
        let fixed = defaults::<ScaleOptions>().fixed;
        let setting = Setting { workers: 2, placement: Placement::All, flows: 1 };
        let simulated = simulated_coherence(MQFQ, setting, fixed).unwrap();
        let seen = |times: f64| Seen {
            requests_per_s: simulated.requests_per_s * times,
            cpu_ns_per_request: 1.0,
            kicks_per_request: 0.0,
            throttled_per_request: 0.0,
            no_token_per_request: 0.0,
        };
        let rounds = [0.1, 1.0, 3.0].map(seen).into();
        let row = coherence_row(&Coherence { contender: MQFQ, setting, rounds }, &simulated);
        assert_eq!((row.ratio, row.within), (Some(1.0), true));
        assert_eq!((row.smallest, row.largest), (0.1 * simulated.requests_per_s, 3.0 * simulated.requests_per_s));
    }
}
