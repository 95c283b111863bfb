//! `mqfq-lab bench transfers`: how many cache lines a policy moves per request, and how far, on machines of any size.
//!
//! # What it counts
//! The whole policy, not a structure alone ([`crate::structures`] does that): transfers of cache lines by the distance
//! they come from, read-modify-writes of lines that others had, and fences, of submit, pick and complete. The source
//! that ships, compiled with atomics that write down what is done to them, on one thread ([`workers`]): the same
//! numbers on each run and each machine.
//!
//! # Two interleavings
//! How often a line changes hands depends on how workers interleave. `turn` has each do a whole turn of its loop before
//! the next begins: the least. `call` has another worker after each call of the policy: the most, short of two at the
//! same moment. Real workers are in between.
//!
//! # What would make it lie
//! What is not atomic is not seen: what `sfqd` keeps under its lock. See lab/bench/README.md.

pub mod workers;

use crate::contender::{CONTENDERS, Contender, NONE};
use crate::shell;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use workers::{Case, Interleaving, Moved, PerRequest, Placement};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct TransfersOptions {
    /// Only the machines with so many workers or fewer.
    #[arg(long = "workers", value_name = "WORKERS", default_value = "128", value_parser = crate::options::count(128))]
    pub workers_max: usize,
}

/// Machines: sockets, cores of each, hardware threads of each.
pub const MACHINES: [(usize, usize, usize); 5] = [(1, 1, 1), (1, 2, 1), (1, 16, 1), (2, 4, 2), (2, 32, 2)];

/// Windows.
pub const WINDOWS_BYTES: [u64; 2] = [64 << 10, 1 << 20];

/// The steps, in the order of the rows.
const STEPS: [&str; 4] = ["submit", "pick", "complete", "all"];

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransfersReport {
    /// One entry per machine, interleaving, placement, window, policy and step.
    pub rows: Vec<TransfersRow>,
    /// D for each worker.
    pub depth_per_worker: u32,
    /// Requests of each worker, staged or on the device.
    pub requests_per_worker: u32,
    /// Cost of each request, bytes-equivalent.
    pub request_bytes: u64,
    /// Parts that are not in the counts.
    pub notes: Vec<String>,
}

/// One step of one policy on one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransfersRow {
    /// Its name in configs, or that of one of its forms.
    pub policy: String,
    /// `faithful` to its paper, or `relaxed`.
    pub form: String,
    /// Sockets of the machine.
    pub sockets: usize,
    /// Cores of each socket.
    pub cores: usize,
    /// Hctxs of each core, each with a worker.
    pub hctxs: usize,
    /// `own`: each worker has a flow; `all`: they share one.
    pub placement: String,
    /// T, at the default weight.
    pub window_bytes: u64,
    /// Another worker after each `turn`, or after each `call` of the policy.
    pub interleaving: String,
    /// `submit`, `pick`, `complete` or `all`.
    pub step: String,
    /// Lines that came from the other hardware thread of the core.
    pub transfers_same_core_per_request: f64,
    /// Lines that came from another core of the socket.
    pub transfers_same_socket_per_request: f64,
    /// Lines that came from another socket.
    pub transfers_other_socket_per_request: f64,
    /// Atomic read-modify-writes of a line that had to come from others.
    pub shared_rmws_per_request: f64,
    /// Fences.
    pub fences_per_request: f64,
    /// Kicks, of all steps.
    pub kicks_per_request: f64,
}

/// Counts and prints.
///
/// # Errors
/// One sentence.
pub fn run(options: &TransfersOptions, json: bool) -> Result<(), String> {
    let report = measure(options)?;
    shell::print(&report, json, || report.text())
}

/// Counts.
///
/// # Errors
/// One sentence.
pub fn measure(options: &TransfersOptions) -> Result<TransfersReport, String> {
    let cases = cases(options.workers_max);
    let mut progress = Progress::new(cases.len());
    let mut rows = Vec::new();
    for case in cases {
        let (sockets, cores, hctxs) = case.machine;
        progress.step(&format!("{} on {sockets} x {cores} x {hctxs}", case.contender.label));
        rows.extend(rows_of(case, &workers::count(case)?));
    }
    progress.finish();
    Ok(TransfersReport {
        rows,
        depth_per_worker: workers::DEPTH_PER_WORKER,
        requests_per_worker: workers::IN_LOOP,
        request_bytes: workers::REQUEST_BYTES,
        notes: vec![
            "sfqd: of what lies under its lock only the lock's own line is counted, the rest moves as well: a lower bound"
                .into(),
        ],
    })
}

/// All of them on machines of so many workers or fewer. Those that are compared stand next to each other. For a single
/// worker placements and interleavings are all the same.
fn cases(workers_max: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for interleaving in Interleaving::ALL {
        for machine in MACHINES.into_iter().filter(|(sockets, cores, hctxs)| sockets * cores * hctxs <= workers_max) {
            for placement in Placement::ALL {
                if machine == (1, 1, 1) && (placement, interleaving) != (Placement::Own, Interleaving::Turn) {
                    continue;
                }
                for window_bytes in WINDOWS_BYTES {
                    let case =
                        |contender: Contender| Case { contender, machine, placement, interleaving, window_bytes };
                    cases.extend(CONTENDERS.map(case));
                }
            }
        }
    }
    cases
}

fn rows_of(case: Case, counted: &PerRequest) -> [TransfersRow; STEPS.len()] {
    let [submit, pick, complete] = counted.steps;
    let (sockets, cores, hctxs) = case.machine;
    let row = |(step, moved): (&str, Moved<f64>)| TransfersRow {
        policy: case.contender.label.into(),
        form: case.contender.form.name().into(),
        sockets,
        cores,
        hctxs,
        placement: case.placement.name().into(),
        window_bytes: case.window_bytes,
        interleaving: case.interleaving.name().into(),
        step: step.into(),
        transfers_same_core_per_request: moved.same_core,
        transfers_same_socket_per_request: moved.same_socket,
        transfers_other_socket_per_request: moved.other_socket,
        shared_rmws_per_request: moved.shared_rmws,
        fences_per_request: moved.fences,
        kicks_per_request: counted.kicks,
    };
    let steps = [submit, pick, complete, counted.all()];
    std::array::from_fn(|at| row((STEPS[at], steps[at])))
}

impl TransfersRow {
    /// Lines that moved, wherever they came from.
    pub fn transfers_per_request(&self) -> f64 {
        self.transfers_same_core_per_request
            + self.transfers_same_socket_per_request
            + self.transfers_other_socket_per_request
    }
}

impl TransfersReport {
    /// One line per machine, placement, window and policy of an interleaving; without `none`, which shares nothing.
    fn table(&self, interleaving: Interleaving) -> Table {
        let mut columns = vec![("machine", Align::Left), ("flows", Align::Left), ("T KiB", Align::Right)];
        columns.push(("policy", Align::Left));
        let numbers = ["submit", "pick", "complete", "all", "core", "socket", "other", "rmws", "fences", "kicks"];
        columns.extend(numbers.map(|name| (name, Align::Right)));
        let mut table = Table::new(&columns);
        let is_shown =
            |case: &&[TransfersRow]| case[0].interleaving == interleaving.name() && case[0].policy != NONE.label;
        for case in self.rows.chunks(STEPS.len()).filter(is_shown) {
            let all = &case[STEPS.len() - 1];
            let mut cells = vec![
                format!("{}x{}x{}", all.sockets, all.cores, all.hctxs),
                all.placement.clone(),
                (all.window_bytes >> 10).to_string(),
                all.policy.clone(),
            ];
            cells.extend(case.iter().map(|row| digits(row.transfers_per_request())));
            cells.extend(
                [
                    all.transfers_same_core_per_request,
                    all.transfers_same_socket_per_request,
                    all.transfers_other_socket_per_request,
                    all.shared_rmws_per_request,
                    all.fences_per_request,
                    all.kicks_per_request,
                ]
                .map(digits),
            );
            table.row(cells);
        }
        table
    }

    /// The tables with a line on what they are of, for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "per request of {} KiB, D = {} and {} requests per worker; cache lines moved by step, and all by where they \
             came from;\nread-modify-writes of lines that moved, fences and kicks of all steps; machine: sockets x cores x hctxs; \
             none moves nothing\n",
            self.request_bytes >> 10,
            self.depth_per_worker,
            self.requests_per_worker,
        );
        for interleaving in Interleaving::ALL {
            let name = interleaving.name();
            text += &format!("\nanother worker after each {name}\n\n{}", self.table(interleaving).render());
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }
}

/// Zero as one digit: most of what is good here is zero.
fn digits(count: f64) -> String {
    if count == 0.0 { "0".into() } else { format!("{count:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::MQFQ;

    #[test]
    fn the_row_of_all_is_the_sum_of_the_steps() {
        let case = Case {
            contender: MQFQ,
            machine: (2, 32, 2),
            placement: Placement::All,
            interleaving: Interleaving::Call,
            window_bytes: 1 << 20,
        };
        let moved = |same_core, other_socket| Moved { same_core, other_socket, ..Moved::default() };
        let steps = [moved(1.0, 0.5), moved(2.0, 0.0), Moved { same_socket: 4.0, fences: 1.0, ..Moved::default() }];
        let rows = rows_of(case, &PerRequest { steps, kicks: 0.25 });
        let json = serde_json::to_value(&rows[3]).unwrap();
        assert_eq!(
            (&json["policy"], &json["step"], &json["placement"]),
            (&"mqfq".into(), &"all".into(), &"all".into())
        );
        assert_eq!((&json["sockets"], &json["cores"], &json["hctxs"]), (&2.into(), &32.into(), &2.into()));
        assert_eq!(json["transfers_same_core_per_request"], 3.0);
        assert_eq!(json["transfers_same_socket_per_request"], 4.0);
        assert_eq!(json["transfers_other_socket_per_request"], 0.5);
        assert_eq!(json["fences_per_request"], 1.0);
        assert_eq!(rows[3].transfers_per_request(), 7.5);
    }

    #[test]
    fn two_workers_are_counted_and_shown() {
        let report = measure(&TransfersOptions { workers_max: 2 }).unwrap();
        let names: Vec<&str> = report.rows.iter().step_by(STEPS.len()).map(|row| row.policy.as_str()).collect();
        // One worker with two windows; two workers with two interleavings, placements and windows.
        let expected = CONTENDERS.map(|contender| contender.label).repeat(2 + 8);
        assert_eq!(names, expected);
        let text = report.text();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("1x")).collect();
        assert_eq!(lines.len(), 10 * (CONTENDERS.len() - 1));
        assert!(lines[..8].iter().all(|line| line.starts_with("1x1x1")), "one worker first");
        assert!(text.trim_end().ends_with("a lower bound"));
    }
}
