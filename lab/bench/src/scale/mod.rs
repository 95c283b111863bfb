//! `mqfq-lab bench scale`: requests per second of the `null` device with one worker, two, and so on.
//!
//! # What it measures
//! The whole block layer with its load inside the workers ([`load`]), each worker on a core of its own: nothing is left
//! but admission, staging, the policy, dispatch and completion. Three ways for flows to be placed ([`setting`]): each
//! on a worker of its own, one on all workers, as many as workers on all of them. What workers share then is the
//! policy, so what is lost against `none` is what sharing costs.
//!
//! # How
//! Interleaved rounds, as [`crate::rounds`] explains; each round begins with another policy. A rate is the median
//! of its rounds; a ratio (to one worker, to `none`, to `mqfq-serial`) is the median of the ratios within one round.
//!
//! # What would make it lie
//! A core that other processes use; a virtual machine's neighbours. See lab/bench/README.md.

pub mod layers;
pub mod load;
mod reader;
pub mod setting;

use crate::contender::{Contender, contenders};
use crate::options::Runs;
use crate::rounds::{Rounds, interleaved, median, ratio_of_any};
use crate::shell::{Record, Results, Style, millions, or_dash, table, whole};
use load::{Fixed, Seen};
use mqfq_report::panel::{self, Along, Panel, Point, Series};
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use serde::{Deserialize, Serialize};
use setting::Setting;

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct ScaleOptions {
    /// N, by default one per CPU.
    #[arg(long, value_parser = crate::options::workers)]
    pub workers: Option<usize>,
    /// Flows: of each worker where each has its own, in all where all share them. By default one per worker, and
    /// where all share them once a single one and once as many as workers.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub flows: Option<u32>,
    /// Options common to all measurements.
    #[command(flatten)]
    pub fixed: Fixed,
    /// Each relaxation of mqfq alone, too.
    #[arg(long)]
    pub relaxations: bool,
    /// Figures 6, 7, 9 and 10 and Table 2 of the blk-mq paper in place of the policies: one queue under one lock, two
    /// levels of queues, and no block layer.
    #[arg(long, conflicts_with_all = ["flows", "window_bytes", "depth_per_worker", "writes", "relaxations"])]
    pub layers: bool,
    /// How much is measured.
    #[command(flatten)]
    pub runs: Runs<7, 300>,
}

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Scale {
    /// One entry per number of workers, placement, number of flows and policy.
    pub rows: Vec<ScaleRow>,
    /// Size of each request.
    pub request_bytes: u32,
    /// `read` or `write`.
    pub op: String,
}

/// One policy on so many workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScaleRow {
    /// Its name in configs, or that of one of its forms.
    pub policy: String,
    /// `faithful` to its paper, `relaxed`, or the one relaxation that it has: `quantum`, `lease`, `batch`.
    pub form: String,
    /// Workers, each on a core of its own where there are as many.
    pub workers: usize,
    /// `own`: each flow on one worker; `all`: each flow on every worker.
    pub placement: String,
    /// Flows in all.
    pub flows: u32,
    /// All workers together, median of the rounds.
    pub requests_per_s: f64,
    /// Smallest of the rounds.
    pub smallest: f64,
    /// Largest of the rounds.
    pub largest: f64,
    /// Over the rate of one worker with the same placement; `null` if that was 0, as in an instant on a busy machine.
    pub speed_up: Option<f64>,
    /// Over the rate of `none` in the same setting.
    pub over_none: Option<f64>,
    /// Over the rate of `mqfq-serial` in the same setting.
    pub over_mqfq_serial: Option<f64>,
    /// CPU time of the process, all threads, per request.
    pub cpu_ns_per_request: f64,
    /// Kicks between workers, per request.
    pub kicks_per_request: f64,
    /// Times that picking ended because the lead was more than T ahead, per request.
    pub throttled_per_request: f64,
    /// Times that picking ended because D were out, per request.
    pub no_token_per_request: f64,
    /// T, bytes at the default weight; `null` for a policy without one.
    pub window_bytes: Option<u64>,
    /// Quantum of the mindicator's leaves, bytes at the default weight; `null` for a policy without a window.
    pub quantum_bytes: Option<u64>,
    /// Virtual time that a queue takes of a flow at once, likewise.
    pub lease_bytes: Option<u64>,
    /// Tokens that a queue may take at once; `null` for a policy without a window.
    pub token_batch: Option<u32>,
    /// D over the number of workers; `null` for a policy without one.
    pub depth_per_worker: Option<u16>,
    /// Requests that each worker's clients keep in flight.
    pub in_flight_per_worker: u32,
}

/// Measures, prints, draws and records.
///
/// # Errors
/// One sentence.
pub fn run(options: &ScaleOptions, json: bool) -> Result<(), String> {
    match options.layers {
        true => layers::measure(options)?.publish(&options.runs, json),
        false => measure(options)?.publish(&options.runs, json),
    }
}

/// One policy in one setting, and what each round saw.
struct Case {
    contender: Contender,
    setting: Setting,
    rounds: Vec<Seen>,
}

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &ScaleOptions) -> Result<Record<Scale>, String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let most = options.workers.unwrap_or(cpus).max(1);
    let settings: Vec<Setting> =
        setting::worker_counts(most).into_iter().flat_map(|workers| Setting::all(workers, options.flows)).collect();
    let contenders = contenders(options.relaxations);
    let of = |setting| contenders.iter().map(move |&contender| Case { contender, setting, rounds: Vec::new() });
    let mut cases: Vec<Case> = settings.into_iter().flat_map(of).collect();
    let rounds = options.runs.rounds;
    let mut progress = Progress::new(rounds as usize * cases.len());
    let name = |at: usize| {
        let Case { contender, setting, .. } = &cases[at];
        format!("{} workers, {}, {}", setting.workers, setting.curve(), contender.label)
    };
    let seen = interleaved(rounds, (cases.len(), contenders.len()), &mut progress, name, |at| {
        load::measure(cases[at].contender, cases[at].setting, options.fixed, options.runs.measured_ms)
    })?;
    cases.iter_mut().zip(seen).for_each(|(case, rounds)| case.rounds = rounds);
    progress.finish();
    let results = Scale {
        rows: cases.iter().map(|case| row(case, &cases, options.fixed)).collect(),
        request_bytes: load::REQUEST_BYTES,
        op: if options.fixed.writes { "write" } else { "read" }.into(),
    };
    Ok(Record { notes: notes(&results.rows, cpus), ..Record::new(results, &options.runs, &[]) })
}

/// The row of a case; `all` are those that it is compared with.
fn row(case: &Case, all: &[Case], fixed: Fixed) -> ScaleRow {
    let Case { contender, setting, .. } = case;
    let of = |value: fn(&Seen) -> f64| median(&case.rounds, value);
    let over = |is_base: &dyn Fn(&&Case) -> bool| {
        let base = all.iter().find(is_base).unwrap_or(case);
        ratio_of_any(&case.rounds, &base.rounds, |seen| seen.requests_per_s)
    };
    let beside = |label: &str| over(&|other| other.setting == *setting && other.contender.label == label);
    let rates = Rounds::of(case.rounds.iter().map(|seen| seen.requests_per_s));
    let policy = contender.options(fixed.depth_per_worker.into(), fixed.window_bytes, setting.workers);
    let policy = contender.has_window().then_some(policy);
    ScaleRow {
        policy: contender.label.into(),
        form: contender.form.name().into(),
        workers: setting.workers,
        placement: setting.placement.name().into(),
        flows: setting.flows,
        requests_per_s: rates.median(),
        smallest: rates.smallest(),
        largest: rates.largest(),
        speed_up: over(&|other| {
            other.setting.workers == 1 && other.setting.placement == setting.placement && other.contender == *contender
        }),
        over_none: beside("none"),
        over_mqfq_serial: beside("mqfq-serial"),
        cpu_ns_per_request: of(|seen| seen.cpu_ns_per_request),
        kicks_per_request: of(|seen| seen.kicks_per_request),
        throttled_per_request: of(|seen| seen.throttled_per_request),
        no_token_per_request: of(|seen| seen.no_token_per_request),
        window_bytes: policy.map(|policy| policy.window.bytes()),
        quantum_bytes: policy.map(|policy| policy.quantum.bytes()),
        lease_bytes: policy.map(|policy| policy.lease.bytes()),
        token_batch: policy.map(|policy| policy.token_batch),
        depth_per_worker: contender.has_depth().then_some(fixed.depth_per_worker),
        in_flight_per_worker: fixed.in_flight_per_worker(),
    }
}

/// A note if there are more workers than CPUs.
pub(crate) fn few_cpus(workers: usize, cpus: usize) -> Vec<String> {
    let note = format!("rows of more than {cpus} workers share CPUs, of which this process has {cpus}");
    (workers > cpus).then_some(note).into_iter().collect()
}

/// Notes for the reader.
fn notes(rows: &[ScaleRow], cpus: usize) -> Vec<String> {
    let mut notes = few_cpus(rows.iter().map(|row| row.workers).max().unwrap_or(0), cpus);
    let mut shares_nothing = rows.iter().filter(|row| row.policy == "none" && row.workers <= cpus);
    if let Some(row) =
        shares_nothing.rfind(|row| row.speed_up.is_some_and(|speed_up| speed_up < 0.9 * row.workers as f64))
    {
        notes.push(format!(
            "none shares nothing, yet {} workers did only {:.2} times what one did: the cores were not all ours, so read over_none",
            row.workers,
            row.speed_up.unwrap_or_default()
        ));
    }
    notes
}

impl Results for Scale {
    const NAME: &'static str = "scale";
    const TITLE: &'static str = "Requests per second by number of workers";

    fn head(&self) -> Vec<String> {
        let setting = self.rows.iter().find(|row| row.window_bytes.is_some());
        let line = |row: &ScaleRow| {
            format!(
                "{} KiB {}s, null device, {} in flight on each worker, D = {} per worker, T = {} KiB; counts are per request",
                self.request_bytes >> 10,
                self.op,
                row.in_flight_per_worker,
                row.depth_per_worker.unwrap_or_default(),
                row.window_bytes.unwrap_or_default() >> 10
            )
        };
        setting.map(line).into_iter().collect()
    }

    fn body(&self, style: Style) -> String {
        style.table(&table(
            &self.rows,
            &[
                ("workers", Right, |row: &ScaleRow| row.workers.to_string()),
                ("placement", Left, |row| row.placement.clone()),
                ("flows", Right, |row| row.flows.to_string()),
                ("policy", Left, |row| row.policy.clone()),
                ("Mreq/s", Right, |row| millions(row.requests_per_s)),
                ("smallest", Right, |row| millions(row.smallest)),
                ("largest", Right, |row| millions(row.largest)),
                ("/ 1 worker", Right, |row| or_dash(row.speed_up, 2)),
                ("/ mqfq-serial", Right, |row| or_dash(row.over_mqfq_serial, 2)),
                ("/ none", Right, |row| or_dash(row.over_none, 3)),
                ("CPU ns", Right, |row| whole(row.cpu_ns_per_request)),
                ("kicks", Right, |row| format!("{:.4}", row.kicks_per_request)),
                ("throttled", Right, |row| format!("{:.4}", row.throttled_per_request)),
                ("no token", Right, |row| format!("{:.4}", row.no_token_per_request)),
            ],
        ))
    }

    fn pictures(&self, host: &str) -> Result<Vec<(String, String)>, String> {
        Ok(vec![("scale".into(), picture(self, host)?)])
    }
}

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn picture(report: &Scale, host: &str) -> Result<String, String> {
    panel::render(&format!("Requests per second of the null device on {}", host), &panels(report))
}

/// Panels: each flow on its own worker; one flow on all; as many as given (or as workers) on all. With one worker a
/// flow on all is also as many as workers.
fn panels(report: &Scale) -> Vec<Panel> {
    let panel = |title: &str, is_in: &dyn Fn(&ScaleRow) -> bool| {
        let points = report.rows.iter().filter(|row| is_in(row)).map(|row| {
            let [y, smallest, largest] = [row.requests_per_s, row.smallest, row.largest].map(|rate| rate / 1e6);
            let spread = Some((smallest, largest));
            (row.policy.clone(), Point { x: row.workers as f64, y: Some(y), stated: None, spread })
        });
        Panel::lines(title, Along::Numbers, "workers", "million requests/s").with(Series::by_name(points))
    };
    [
        panel("each flow on a worker of its own", &|row| row.placement == "own"),
        panel("one flow on all workers", &|row| row.placement == "all" && row.flows == 1),
        panel("every flow on all workers", &|row| row.placement == "all" && (row.flows > 1 || row.workers == 1)),
    ]
    .into_iter()
    .filter(|panel| !panel.series.is_empty())
    .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::contender::{MQFQ, MQFQ_SERIAL, NONE};
    use setting::Placement;

    /// Rates in thousands of requests per second, one per round, on a machine of one and two workers.
    pub(crate) fn report(rates: &[(Contender, usize, &[f64])]) -> Record<Scale> {
        let seen = |&rate: &f64| Seen {
            requests_per_s: rate * 1e3,
            cpu_ns_per_request: 100.0,
            kicks_per_request: 0.5,
            throttled_per_request: 0.0,
            no_token_per_request: 0.0,
        };
        let case = |&(contender, workers, rates): &(Contender, usize, &[f64])| Case {
            contender,
            setting: Setting { workers, placement: Placement::All, flows: 1 },
            rounds: rates.iter().map(seen).collect(),
        };
        let cases: Vec<Case> = rates.iter().map(case).collect();
        let options: ScaleOptions = crate::options::defaults();
        let rows: Vec<ScaleRow> = cases.iter().map(|case| row(case, &cases, options.fixed)).collect();
        let notes = notes(&rows, 2);
        let results = Scale { rows, request_bytes: load::REQUEST_BYTES, op: "read".into() };
        Record { notes, ..Record::new(results, &options.runs, &[]) }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine halves its clock in the third round: all rates fall, no ratio changes.
        let report = report(&[
            (NONE, 1, &[1000.0, 1000.0, 500.0]),
            (MQFQ_SERIAL, 1, &[500.0, 500.0, 250.0]),
            (MQFQ, 1, &[800.0, 800.0, 400.0]),
            (NONE, 2, &[2000.0, 2000.0, 1000.0]),
            (MQFQ_SERIAL, 2, &[400.0, 400.0, 200.0]),
            (MQFQ, 2, &[1200.0, 1200.0, 600.0]),
        ]);
        let row = report.rows.last().unwrap();
        assert_eq!((row.requests_per_s, row.smallest, row.largest), (1_200_000.0, 600_000.0, 1_200_000.0));
        assert_eq!((row.speed_up, row.over_none, row.over_mqfq_serial), (Some(1.5), Some(0.6), Some(3.0)));
        assert_eq!(report.notes, Vec::<String>::new());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["rows"][5]["policy"], &json["rows"][5]["placement"]), (&"mqfq".into(), &"all".into()));
        assert_eq!((&json["rows"][0]["window_bytes"], &json["rows"][5]["window_bytes"]), (&().into(), &262_144.into()));
    }

    #[test]
    fn cores_that_were_not_ours_are_noticed() {
        let report = report(&[(NONE, 1, &[1000.0]), (NONE, 2, &[1500.0])]);
        assert!(report.notes[0].contains("2 workers did only 1.50 times"), "{:?}", report.notes);
        assert!(report.text().contains("note: none shares nothing") && report.markdown().contains("* note: none"));
    }

    #[test]
    fn every_panel_has_its_units_and_every_policy_a_curve() {
        let report = report(&[(NONE, 1, &[1000.0]), (MQFQ, 1, &[800.0]), (NONE, 2, &[2000.0]), (MQFQ, 2, &[1500.0])]);
        let text = picture(&report, "test").unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        // One worker belongs to both kinds of sharing, so there are two panels.
        assert_eq!(text.matches("million requests/s").count(), 2);
        assert_eq!(text.matches("\nmqfq\n").count(), 2, "{text}");
    }
}
