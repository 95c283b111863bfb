//! `mqfq-lab bench overhead`: what a policy costs per request, in nanoseconds and in instructions.
//!
//! # What it measures
//! One worker on one policy, nothing else: no device, no ring, no buffers ([`turn`]). Per request and step (submit,
//! pick, complete, and all three), for each policy, with 1, 8 and 1,000 flows, `backlogged` and `shallow`. What
//! fairness costs is the difference to `none`: the table has it.
//!
//! # How
//! Nanoseconds: in interleaved rounds, as [`crate::rounds`] explains; whole batches of one step are timed, never a
//! single call, and what the clock itself takes is subtracted; `all` is timed without a clock in between. Median,
//! smallest and largest of the rounds. Instructions: [`callgrind`], in one run for all cases.
//!
//! # What would make it lie
//! Everything stays in the caches of one core. See lab/bench/README.md.

pub mod callgrind;
pub mod turn;

use crate::contender::contenders;
use crate::rounds::Rounds;
use crate::shell;
use callgrind::Instructions;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;
use turn::{Case, TURN, Turns};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct OverheadOptions {
    /// Interleaved rounds, of which the median counts.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// T of mqfq and mqfq-serial.
    #[arg(long = "window-kib", value_name = "WINDOW_KIB", default_value = "64", value_parser = crate::options::kib())]
    pub window_bytes: u64,
    /// Each relaxation of mqfq alone, too.
    #[arg(long)]
    pub relaxations: bool,
    /// Do not count instructions.
    #[arg(long = "no-instructions", action = clap::ArgAction::SetFalse)]
    pub instructions: bool,
    /// Be what callgrind counts the instructions of, and print nothing.
    #[arg(long, hide = true)]
    pub probe: bool,
    /// The program that callgrind runs; `None`: the one that is running.
    #[arg(skip)]
    pub mqfq: Option<PathBuf>,
}

/// Numbers of flows.
pub const FLOWS: [u32; 3] = [1, 8, 1000];

/// Turns before each measurement: every flow of the largest case is served, and what others evicted is back.
const WARM_UP_TURNS: u32 = 70;

/// Turns of each measurement: 6,400 requests, about a millisecond.
const MEASURED_TURNS: u32 = 100;

/// The argument that makes the program be what is counted.
pub const PROBE_ARGUMENT: &str = "--probe";

/// The argument that sets [`OverheadOptions::relaxations`].
pub const RELAXATIONS_ARGUMENT: &str = "--relaxations";

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OverheadReport {
    /// One entry per policy, number of flows, regime and step.
    pub rows: Vec<OverheadRow>,
    /// D of the policies that have one, and requests per turn.
    pub depth: u32,
    /// T of `mqfq` and `mqfq-serial`, bytes at the default weight.
    pub window_bytes: u64,
    /// Cost of each request, bytes-equivalent.
    pub request_bytes: u64,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Missing parts, and the reasons.
    pub notes: Vec<String>,
}

/// One step of one policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OverheadRow {
    /// Its name in configs, or that of one of its forms.
    pub policy: String,
    /// `faithful` to its paper, `relaxed`, or the one relaxation that it has: `quantum`, `lease`, `batch`.
    pub form: String,
    /// Flows that take turns.
    pub flows: u32,
    /// `backlogged`: every flow keeps several requests staged; `shallow`: the queue is empty after each turn.
    pub regime: String,
    /// Requests that each flow keeps staged while D are out.
    pub staged_per_flow: u32,
    /// `submit`, `pick`, `complete` or `all`.
    pub step: String,
    /// Time per request, median of the rounds.
    pub ns_per_request: f64,
    /// Smallest of the rounds.
    pub ns_per_request_min: f64,
    /// Largest of the rounds.
    pub ns_per_request_max: f64,
    /// Instructions per request; `null` where they were not counted, see `notes`.
    pub instructions_per_request: Option<f64>,
}

/// The steps, in the order of the rows.
const STEPS: [&str; 4] = ["submit", "pick", "complete", "all"];

/// Measures and prints.
///
/// # Errors
/// One sentence.
pub fn run(options: &OverheadOptions, json: bool) -> Result<(), String> {
    if options.probe {
        return probe(options);
    }
    let report = measure(options)?;
    shell::print(&report, json, || report.text())
}

fn probe(options: &OverheadOptions) -> Result<(), String> {
    callgrind::probe(&cases(options), options.window_bytes)
}

fn cases(options: &OverheadOptions) -> Vec<Case> {
    Case::all(&contenders(options.relaxations), &FLOWS)
}

/// Measures.
///
/// # Errors
/// One sentence. That instructions cannot be counted is a note, not an error.
pub fn measure(options: &OverheadOptions) -> Result<OverheadReport, String> {
    let cases = cases(options);
    let rounds = options.rounds.max(1);
    let mut progress = Progress::new(rounds as usize + 1);
    let mut timed: Vec<Timed> = Vec::new();
    for &case in &cases {
        timed.push(Timed::new(Turns::new(case, options.window_bytes)?));
    }
    for round in 1..=rounds {
        progress.step(&format!("round {round} of {rounds}"));
        let clock_ns = clock_ns();
        timed.iter_mut().for_each(|timed| timed.round(clock_ns));
    }
    let mut notes = Vec::new();
    let mut counted = None;
    if options.instructions {
        progress.step("instructions, under callgrind");
        match count(options, &cases) {
            Ok(found) => counted = Some(found),
            Err(reason) => notes.push(format!("instructions were not counted: {reason}")),
        }
    } else {
        notes.push("instructions were not asked for".into());
    }
    progress.finish();
    let rows = cases.iter().zip(&timed).enumerate();
    let rows = rows.flat_map(|(at, (&case, timed))| rows_of(case, timed, counted.as_ref().map(|counted| counted[at])));
    Ok(OverheadReport {
        rows: rows.collect(),
        depth: TURN as u32,
        window_bytes: options.window_bytes,
        request_bytes: turn::REQUEST_BYTES,
        rounds,
        notes,
    })
}

fn count(options: &OverheadOptions, cases: &[Case]) -> Result<Vec<Instructions>, String> {
    let program = shell::program(options.mqfq.as_ref())?;
    let mut arguments = ["bench", "overhead", PROBE_ARGUMENT, "--window-kib"].map(String::from).to_vec();
    arguments.push((options.window_bytes >> 10).to_string());
    if options.relaxations {
        arguments.push(RELAXATIONS_ARGUMENT.into());
    }
    callgrind::count(&program, &arguments, cases)
}

/// A case under way, and nanoseconds per request of each step in each round so far.
struct Timed {
    turns: Turns,
    ns: [Vec<f64>; STEPS.len()],
}

impl Timed {
    fn new(turns: Turns) -> Timed {
        Timed { turns, ns: Default::default() }
    }

    fn round(&mut self, clock_ns: f64) {
        self.turns.run(WARM_UP_TURNS);
        let start = Instant::now();
        self.turns.run(MEASURED_TURNS);
        let all_ns = start.elapsed().as_nanos() as f64 - clock_ns;
        let mut steps_ns = [0.0; 3];
        for _ in 0..MEASURED_TURNS {
            let start = Instant::now();
            turn::overhead_complete(&mut self.turns);
            let completed = Instant::now();
            turn::overhead_submit(&mut self.turns);
            let submitted = Instant::now();
            turn::overhead_pick(&mut self.turns);
            let picked = Instant::now();
            for (sum_ns, (from, to)) in
                steps_ns.iter_mut().zip([(completed, submitted), (submitted, picked), (start, completed)])
            {
                *sum_ns += (to - from).as_nanos() as f64 - clock_ns;
            }
        }
        let requests = f64::from(MEASURED_TURNS) * TURN as f64;
        for (series, sum_ns) in self.ns.iter_mut().zip([steps_ns[0], steps_ns[1], steps_ns[2], all_ns]) {
            series.push(sum_ns / requests);
        }
    }
}

/// Time between two looks at the clock with nothing in between.
fn clock_ns() -> f64 {
    let mut looks: Vec<f64> = (0..1000)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    looks.sort_by(f64::total_cmp);
    // The mean of the middle half: looks are whole numbers of the clock's own step.
    let middle = &looks[looks.len() / 4..looks.len() * 3 / 4];
    middle.iter().sum::<f64>() / middle.len() as f64
}

fn rows_of(case: Case, timed: &Timed, counted: Option<Instructions>) -> [OverheadRow; STEPS.len()] {
    std::array::from_fn(|step| {
        let ns = Rounds::of(timed.ns[step].iter().copied());
        OverheadRow {
            policy: case.contender.label.into(),
            form: case.contender.form.name().into(),
            flows: case.flows,
            regime: case.regime.name().into(),
            staged_per_flow: case.regime.staged_per_flow(case.flows),
            step: STEPS[step].into(),
            ns_per_request: ns.median(),
            ns_per_request_min: ns.smallest(),
            ns_per_request_max: ns.largest(),
            instructions_per_request: counted.map(|Instructions { submit, pick, complete }| {
                [submit, pick, complete, submit + pick + complete][step]
            }),
        }
    })
}

impl OverheadReport {
    /// The row of a policy, a number of flows, a regime and a step.
    pub fn row(&self, policy: &str, flows: u32, regime: &str, step: &str) -> Option<&OverheadRow> {
        self.rows.iter().find(|row| {
            (row.policy.as_str(), row.flows, row.regime.as_str(), row.step.as_str()) == (policy, flows, regime, step)
        })
    }

    /// One line per case: the steps, all of them, and what that is more than `none`.
    fn table(&self) -> Table {
        let mut columns = vec![("regime", Align::Left), ("flows", Align::Right), ("policy", Align::Left)];
        let numbers = ["submit ns", "pick ns", "complete ns", "all ns", "+none", "submit in", "pick in"];
        columns.extend(numbers.into_iter().chain(["complete in", "all in", "+none"]).map(|name| (name, Align::Right)));
        let mut table = Table::new(&columns);
        for case in self.rows.chunks(STEPS.len()) {
            let all = &case[STEPS.len() - 1];
            let none = self.row("none", all.flows, &all.regime, "all").unwrap_or(all);
            let mut cells = vec![all.regime.clone(), all.flows.to_string(), all.policy.clone()];
            cells.extend(case.iter().map(|row| format!("{:.1}", row.ns_per_request)));
            cells.push(format!("{:+.1}", all.ns_per_request - none.ns_per_request));
            let whole = |count: Option<f64>| count.map_or("-".into(), |count| format!("{count:.0}"));
            cells.extend(case.iter().map(|row| whole(row.instructions_per_request)));
            let more = all.instructions_per_request.zip(none.instructions_per_request);
            cells.push(more.map_or("-".into(), |(all, none)| format!("{:+.0}", all - none)));
            table.row(cells);
        }
        table
    }

    /// The table with a line on what it is of, for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "per request, one worker, D = {}, T = {} KiB, requests of {} KiB; ns: median of {} rounds; in: instructions\n\n{}",
            self.depth,
            self.window_bytes >> 10,
            self.request_bytes >> 10,
            self.rounds,
            self.table().render()
        );
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{MQFQ, NONE};
    use turn::Regime;

    fn report(instructions: bool) -> OverheadReport {
        let rows = [(NONE, 4.0), (MQFQ, 20.0)].into_iter().flat_map(|(contender, ns)| {
            let case = Case { contender, flows: 8, regime: Regime::Backlogged };
            let mut timed = Timed::new(Turns::new(case, 64 << 10).unwrap());
            timed.ns = [ns, 2.0 * ns, ns, 4.0 * ns].map(|ns| vec![2.0 * ns, ns, 0.5 * ns]);
            rows_of(case, &timed, instructions.then_some(Instructions { submit: ns, pick: 2.0, complete: 3.0 }))
        });
        OverheadReport {
            rows: rows.collect(),
            depth: 64,
            window_bytes: 64 << 10,
            request_bytes: 4096,
            rounds: 3,
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_row_has_the_median_of_the_rounds_and_the_sum_of_the_steps() {
        let json = serde_json::to_value(report(true)).unwrap();
        let row = &json["rows"][7];
        assert_eq!((&row["policy"], &row["step"], &row["flows"]), (&"mqfq".into(), &"all".into(), &8.into()));
        assert_eq!(row["ns_per_request"], 80.0, "the middle of 160, 80 and 40");
        assert_eq!((&row["ns_per_request_min"], &row["ns_per_request_max"]), (&40.0.into(), &160.0.into()));
        assert_eq!(row["instructions_per_request"], 25.0, "20 + 2 + 3");
    }

    #[test]
    fn the_table_says_how_much_more_than_none_it_is() {
        let text = report(true).text();
        let mqfq = text.lines().last().unwrap();
        assert_eq!(
            mqfq.split_whitespace().collect::<Vec<_>>(),
            ["backlogged", "8", "mqfq", "20.0", "40.0", "20.0", "80.0", "+64.0", "20", "2", "3", "25", "+16"]
        );
    }

    #[test]
    fn what_was_not_counted_is_null_and_not_zero() {
        let json = serde_json::to_value(report(false)).unwrap();
        assert!(json["rows"][0]["instructions_per_request"].is_null());
        assert!(report(false).text().lines().last().unwrap().trim_end().ends_with('-'));
    }
}
