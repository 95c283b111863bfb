//! `mqfq-lab bench blkmq`: Figures 6, 7, 9, 10 and Table 2 of the blk-mq paper, on the machine at hand with the `null`
//! device.
//!
//! # What it measures
//! 512-byte reads from clients on the workers, each worker on a core of its own: 32 in flight on each for throughput,
//! one for latency (section 4.2). Three block layers, which are configurations of one: SQ, with one queue and one lock;
//! MQ, with its two levels in every shape that the paper has; Raw, with none. It is user space: there is no system
//! call, no interrupt and no libaio, so Raw is far cheaper than the paper's, and what MQ adds weighs more.
//!
//! # How
//! Interleaved rounds: each begins with another case. A rate or mean is the median of its rounds, `over_raw` the median
//! of the ratios within one round, p99 the median, and the maximum that of all rounds.
//!
//! # What would make it lie
//! A core that somebody else uses: a worker that loses its core with the lock of SQ stops all others, and each maximum
//! is then the length of a time slice. See lab/bench/README.md.

pub mod load;
mod picture;

use crate::machine::{self, Machine};
use crate::rounds::{Rounds, interleaved, median, ratio_of_any};
use crate::scale::setting::worker_counts;
use crate::shell::{self, Output, Results, Style, place_line};
use load::Seen;
use mqfq_blk::machine::allowed_cpus;
use mqfq_blk::queues::{BlockLayer, HardwareQueues, QueueLayout, Spread};
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Requests in flight on each worker for throughput: the paper's.
pub const DEPTH: u16 = 32;

/// What to run.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct BlkmqOptions {
    /// Most workers; by default one per CPU.
    #[arg(long, value_parser = crate::options::workers)]
    pub workers: Option<usize>,
    /// How often each case is run.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Length of each measurement.
    #[arg(
        long = "milliseconds",
        value_name = "MILLISECONDS",
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=600_000)
    )]
    pub measured_ms: u64,
    /// Draw FOLDER/mqfq-blkmq.svg.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Where the record goes.
    #[command(flatten)]
    pub keep: crate::options::Keep,
}

impl Default for BlkmqOptions {
    fn default() -> Self {
        crate::options::defaults()
    }
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BlkmqReport {
    /// One entry per figure, series and number of workers.
    pub rows: Vec<BlkmqRow>,
    /// The paper's Table 2: the largest latency of each block layer in Figures 6 and 7.
    pub table2: Vec<MaximumRow>,
    /// Day, UTC.
    pub date: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// Socket of each worker's core, by worker.
    pub sockets: Vec<u16>,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Size of each read.
    pub request_bytes: u32,
    /// What to know before reading the rows.
    pub notes: Vec<String>,
    /// Where the picture lies, if one was drawn.
    pub svg_path: Option<String>,
}

/// One block layer on so many workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BlkmqRow {
    /// Of the paper: 6, 7, 9 or 10.
    pub figure: u32,
    /// `sq`, `mq` or `raw`.
    pub layer: String,
    /// `per-core`, `per-socket` or `single`.
    pub software_queues: String,
    /// `per-core`, `per-socket` or `single`.
    pub hardware_queues: String,
    /// Workers, each on a core of its own where there are as many.
    pub workers: usize,
    /// Reads in flight on each.
    pub depth: u16,
    /// All workers together, median of the rounds.
    pub iops: f64,
    /// Smallest of the rounds.
    pub smallest_iops: f64,
    /// Largest of the rounds.
    pub largest_iops: f64,
    /// Over Raw with as many workers and the same depth.
    pub over_raw: Option<f64>,
    /// From submission to completion.
    pub mean_ns: f64,
    /// From submission to completion, 99th percentile.
    pub p99_ns: u64,
    /// The same, the largest of all rounds.
    pub max_ns: u64,
}

/// A column of Table 2.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MaximumRow {
    /// `sq`, `mq` or `raw`.
    pub layer: String,
    /// The largest latency of any request.
    pub max_ns: u64,
}

/// One layout on so many workers at one depth, and what each round saw.
struct Case {
    layout: QueueLayout,
    workers: usize,
    depth: u16,
    rounds: Vec<Seen>,
}

/// The series of a figure: its layouts, and its depth.
fn figures() -> [(u32, u16, Vec<QueueLayout>); 4] {
    use Spread::{PerCore, PerSocket, Single};
    let mq = QueueLayout::mq;
    // The paper's MQ has a software queue per core and a hardware queue per socket (section 5); ours ships with both
    // per core.
    let layers = vec![QueueLayout::SQ, mq(PerCore, PerSocket), mq(PerCore, PerCore), QueueLayout::RAW];
    [
        (6, DEPTH, layers.clone()),
        (7, 1, layers),
        (9, DEPTH, [Single, PerSocket, PerCore].map(|hardware| mq(Single, hardware)).into()),
        (10, DEPTH, [Single, PerSocket, PerCore].map(|hardware| mq(PerCore, hardware)).into()),
    ]
}

/// Measures, prints, draws and records.
///
/// # Errors
/// One sentence.
pub fn run(options: &BlkmqOptions, json: bool) -> Result<(), String> {
    let mut report = measure(options)?;
    shell::publish(&mut report, Output { json, out: options.out.as_deref(), record: options.keep.record.as_deref() })
}

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &BlkmqOptions) -> Result<BlkmqReport, String> {
    let cpus = allowed_cpus();
    let counts = worker_counts(options.workers.unwrap_or(cpus.len()).max(1));
    let mut cases: Vec<Case> = Vec::new();
    for &workers in &counts {
        for (_, depth, layouts) in figures() {
            for layout in layouts {
                // Figures 6 and 10 have two series in common.
                if !cases.iter().any(|case| (case.layout, case.workers, case.depth) == (layout, workers, depth)) {
                    cases.push(Case { layout, workers, depth, rounds: Vec::new() });
                }
            }
        }
    }
    let (rounds, count) = (options.rounds.max(1), cases.len());
    let mut progress = Progress::new(rounds as usize * count);
    let name = |at: usize| {
        let Case { layout, workers, depth, .. } = &cases[at];
        let [layer, software, hardware] = names(layout);
        format!("{workers} workers, depth {depth}, {layer} {software} {hardware}")
    };
    let seen = interleaved(rounds, (count, count), &mut progress, name, |at| {
        let Case { layout, workers, depth, .. } = cases[at];
        load::measure(layout, workers, depth, options.measured_ms)
    })?;
    cases.iter_mut().zip(seen).for_each(|(case, rounds)| case.rounds = rounds);
    progress.finish();
    let mut rows = Vec::new();
    for (figure, depth, layouts) in figures() {
        for layout in layouts {
            rows.extend(counts.iter().map(|&workers| row(figure, layout, workers, depth, &cases)));
        }
    }
    let most = counts.last().copied().unwrap_or(1);
    let mut report = BlkmqReport {
        table2: table2(&rows),
        rows,
        date: machine::today(),
        machine: Machine::this(options.keep.host.as_deref(), &[]),
        sockets: (0..most).map(|worker| cpus[worker % cpus.len()].socket).collect(),
        rounds,
        measured_ms: options.measured_ms,
        request_bytes: load::REQUEST_BYTES,
        notes: Vec::new(),
        svg_path: None,
    };
    report.notes = notes(&report, cpus.len());
    Ok(report)
}

fn names(layout: &QueueLayout) -> [&'static str; 3] {
    let hardware = match layout.hardware {
        HardwareQueues::Spread(spread) => spread.name(),
        HardwareQueues::Count(_) => unreachable!("no figure has a number of queues"),
    };
    [layout.layer.name(), layout.software.name(), hardware]
}

fn row(figure: u32, layout: QueueLayout, workers: usize, depth: u16, cases: &[Case]) -> BlkmqRow {
    let find = |layout| cases.iter().find(|case| (case.layout, case.workers, case.depth) == (layout, workers, depth));
    let case = find(layout).expect("every series of every figure was measured");
    let raw = find(QueueLayout::RAW).expect("so was Raw at each depth");
    let of = |value: fn(&Seen) -> f64| median(&case.rounds, value);
    let iops = Rounds::of(case.rounds.iter().map(|seen| seen.iops));
    let [layer, software_queues, hardware_queues] = names(&layout).map(str::to_string);
    BlkmqRow {
        figure,
        layer,
        software_queues,
        hardware_queues,
        workers,
        depth,
        iops: iops.median(),
        smallest_iops: iops.smallest(),
        largest_iops: iops.largest(),
        over_raw: ratio_of_any(&case.rounds, &raw.rounds, |seen| seen.iops),
        mean_ns: of(|seen| seen.mean_ns),
        p99_ns: of(|seen| seen.p99_ns as f64) as u64,
        max_ns: case.rounds.iter().map(|seen| seen.max_ns).max().unwrap_or(0),
    }
}

fn table2(rows: &[BlkmqRow]) -> Vec<MaximumRow> {
    let of = |layer: BlockLayer| {
        let own = rows.iter().filter(|row| matches!(row.figure, 6 | 7) && row.layer == layer.name());
        MaximumRow { layer: layer.name().into(), max_ns: own.map(|row| row.max_ns).max().unwrap_or(0) }
    };
    [BlockLayer::Sq, BlockLayer::Mq, BlockLayer::Raw].map(of).into()
}

/// What a reader must know about these rows.
fn notes(report: &BlkmqReport, cpus: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if report.sockets.iter().all(|&socket| socket == report.sockets[0]) {
        notes.push("one socket: one hardware queue per socket is a single one".to_string());
    }
    if report.sockets.len() > cpus {
        notes.push(format!("rows of more than {cpus} workers share CPUs, of which this process has {cpus}"));
    }
    notes
}

impl BlkmqReport {
    fn table(&self) -> Table {
        let mut columns = vec![("figure", Align::Right), ("layer", Align::Left)];
        columns.extend([("software", Align::Left), ("hardware", Align::Left)]);
        let numbers = ["workers", "depth", "M IOPS", "smallest", "largest", "/ raw", "mean ns", "p99 ns", "max us"];
        columns.extend(numbers.map(|name| (name, Align::Right)));
        let mut table = Table::new(&columns);
        for row in &self.rows {
            let millions = |rate: f64| format!("{:.3}", rate / 1e6);
            table.row(vec![
                row.figure.to_string(),
                row.layer.clone(),
                row.software_queues.clone(),
                row.hardware_queues.clone(),
                row.workers.to_string(),
                row.depth.to_string(),
                millions(row.iops),
                millions(row.smallest_iops),
                millions(row.largest_iops),
                row.over_raw.map_or("-".into(), |ratio| format!("{ratio:.3}")),
                format!("{:.0}", row.mean_ns),
                row.p99_ns.to_string(),
                format!("{:.0}", row.max_ns as f64 / 1e3),
            ]);
        }
        table
    }

    fn maxima(&self) -> Table {
        let mut table = Table::new(&[("layer", Align::Left), ("largest latency, us", Align::Right)]);
        for row in &self.table2 {
            table.row(vec![row.layer.clone(), format!("{:.0}", row.max_ns as f64 / 1e3)]);
        }
        table
    }
}

impl Results for BlkmqReport {
    const NAME: &'static str = "blkmq";
    const TITLE: &'static str = "SQ, MQ and Raw by number of workers";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn head(&self) -> Vec<String> {
        let sockets: Vec<String> = self.sockets.iter().map(u16::to_string).collect();
        let mut head = vec![
            place_line(&self.date, &self.machine),
            format!("workers on sockets {}", sockets.join(" ")),
            format!("{} B reads, null device, user space: no system call per request", self.request_bytes),
            format!("{} interleaved rounds of {} ms: median, smallest, largest", self.rounds, self.measured_ms),
        ];
        head.extend(shell::notes(&self.notes));
        head
    }

    fn body(&self, style: Style) -> String {
        let mark = if style == Style::Markdown { ":\n" } else { "" };
        format!("{}\nTable 2{mark}\n{}", style.table(&self.table()), style.table(&self.maxima()))
    }

    fn pictures(&self) -> Result<Vec<(String, String)>, String> {
        Ok(vec![("blkmq".into(), picture::render(self)?)])
    }

    fn drawn(&mut self, paths: Vec<String>) {
        self.svg_path = paths.into_iter().next();
    }

    fn picture_paths(&self) -> Vec<&str> {
        self.svg_path.as_deref().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every case of one worker once, for a moment.
    fn report() -> BlkmqReport {
        let keep = crate::options::Keep { host: Some("test".into()), record: None };
        let options = BlkmqOptions { workers: Some(2), rounds: 1, measured_ms: 5, keep, ..BlkmqOptions::default() };
        measure(&options).unwrap()
    }

    #[test]
    fn every_series_of_every_figure_has_a_row_for_each_number_of_workers() {
        let report = report();
        let count = |figure| report.rows.iter().filter(|row| row.figure == figure).count();
        assert_eq!([6, 7, 9, 10].map(count), [8, 8, 6, 6]);
        // Figures 6 and 10 show the same measurement.
        let iops = |figure| {
            let same = |row: &&BlkmqRow| {
                (row.figure, row.layer.as_str(), row.hardware_queues.as_str(), row.workers)
                    == (figure, "mq", "per-core", 2)
            };
            report.rows.iter().find(same).unwrap().iops
        };
        assert_eq!(iops(6), iops(10));
        assert!(report.rows.iter().filter(|row| row.layer == "raw").all(|row| row.over_raw.is_none_or(|r| r == 1.0)));
        let layers: Vec<&str> = report.table2.iter().map(|row| row.layer.as_str()).collect();
        assert_eq!(layers, ["sq", "mq", "raw"]);
        let largest = report.rows.iter().filter(|row| row.figure <= 7).map(|row| row.max_ns).max();
        assert_eq!(report.table2.iter().map(|row| row.max_ns).max(), largest);
        let svg = picture::render(&report).unwrap();
        assert_eq!(svg.matches("Figure ").count(), 4, "a panel for each");
        let json = mqfq_report::json(&report).unwrap();
        // Decimals may change in their last digit on the way.
        let back: BlkmqReport = serde_json::from_str(&json).unwrap();
        assert_eq!((back.rows.len(), back.table2), (report.rows.len(), report.table2));
    }
}
