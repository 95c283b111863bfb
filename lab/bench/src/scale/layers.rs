//! `mqfq-lab bench scale --layers`: Figures 6, 7, 9, 10 and Table 2 of the blk-mq paper, on the machine at hand with
//! the `null` device.
//!
//! # What it measures
//! 512-byte reads from clients on the workers, each worker on a core of its own: 32 in flight on each for throughput,
//! one for latency (section 4.2). Three block layers, which are configurations of one: SQ, with one queue and one lock;
//! MQ, with its two levels in every shape that the paper has; Raw, with none. It is user space: there is no system
//! call, no interrupt and no libaio, so Raw is far cheaper than the paper's, and what MQ adds weighs more.
//!
//! # How
//! As [`crate::scale`]; the maximum is that of all rounds.
//!
//! # What would make it lie
//! A core that other processes use: a worker that loses its core with the lock of SQ stops all others, and each maximum
//! is then the length of a time slice. See lab/bench/README.md.

use super::ScaleOptions;
use super::reader::{self, Seen};
use super::setting::worker_counts;
use crate::rounds::{Rounds, interleaved, median, ratio_of_any};
use crate::shell::{Record, Results, Style, millions, or_dash, table, us, whole};
use mqfq_blk::worker::cores::allowed_cpus;
use mqfq_blkmq::{BlockLayer, HardwareQueues, QueueLayout, Spread};
use mqfq_report::panel::{self, Along, Panel, Point, Series};
use mqfq_report::progress::Progress;
use mqfq_report::table::Align::{Left, Right};
use serde::{Deserialize, Serialize};

/// Requests in flight on each worker for throughput: the paper's.
const DEPTH: u16 = 32;

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Layers {
    /// One entry per figure, series and number of workers.
    pub rows: Vec<LayersRow>,
    /// The paper's Table 2: the largest latency of each block layer in Figures 6 and 7.
    pub table2: Vec<MaximumRow>,
    /// Socket of each worker's core, by worker.
    pub sockets: Vec<u16>,
}

/// One block layer on so many workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayersRow {
    /// Figure of the paper: 6, 7, 9 or 10.
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
    /// Longest of all rounds.
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

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &ScaleOptions) -> Result<Record<Layers>, String> {
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
    let (rounds, count) = (options.runs.rounds, cases.len());
    let mut progress = Progress::new(rounds as usize * count);
    let name = |at: usize| {
        let Case { layout, workers, depth, .. } = &cases[at];
        let [layer, software, hardware] = names(layout);
        format!("{workers} workers, depth {depth}, {layer} {software} {hardware}")
    };
    let seen = interleaved(rounds, (count, count), &mut progress, name, |at| {
        let Case { layout, workers, depth, .. } = cases[at];
        reader::measure(layout, workers, depth, options.runs.measured_ms)
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
    let sockets: Vec<u16> = (0..most).map(|worker| cpus[worker % cpus.len()].socket).collect();
    let mut notes = super::few_cpus(most, cpus.len());
    if sockets.iter().all(|&socket| socket == sockets[0]) {
        notes.push("one socket: one hardware queue per socket is a single one".to_string());
    }
    let results = Layers { table2: table2(&rows), rows, sockets };
    Ok(Record { notes, ..Record::new(results, &options.runs, &[]) })
}

fn names(layout: &QueueLayout) -> [&'static str; 3] {
    let hardware = match layout.hardware {
        HardwareQueues::Spread(spread) => spread.name(),
        HardwareQueues::Count(_) => unreachable!("no figure has a number of queues"),
    };
    [layout.layer.name(), layout.software.name(), hardware]
}

fn row(figure: u32, layout: QueueLayout, workers: usize, depth: u16, cases: &[Case]) -> LayersRow {
    let find = |layout| cases.iter().find(|case| (case.layout, case.workers, case.depth) == (layout, workers, depth));
    let case = find(layout).expect("every series of every figure was measured");
    let raw = find(QueueLayout::RAW).expect("so was Raw at each depth");
    let of = |value: fn(&Seen) -> f64| median(&case.rounds, value);
    let iops = Rounds::of(case.rounds.iter().map(|seen| seen.iops));
    let [layer, software_queues, hardware_queues] = names(&layout).map(str::to_string);
    LayersRow {
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

fn table2(rows: &[LayersRow]) -> Vec<MaximumRow> {
    let of = |layer: BlockLayer| {
        let own = rows.iter().filter(|row| matches!(row.figure, 6 | 7) && row.layer == layer.name());
        MaximumRow { layer: layer.name().into(), max_ns: own.map(|row| row.max_ns).max().unwrap_or(0) }
    };
    [BlockLayer::Sq, BlockLayer::Mq, BlockLayer::Raw].map(of).into()
}

impl Results for Layers {
    const NAME: &'static str = "blkmq";
    const TITLE: &'static str = "SQ, MQ and Raw by number of workers";

    fn head(&self) -> Vec<String> {
        let sockets: Vec<String> = self.sockets.iter().map(u16::to_string).collect();
        vec![
            format!("workers on sockets {}", sockets.join(" ")),
            "512 B reads, null device, user space: no system call per request".into(),
        ]
    }

    fn body(&self, style: Style) -> String {
        let rows = table(
            &self.rows,
            &[
                ("figure", Right, |row: &LayersRow| row.figure.to_string()),
                ("layer", Left, |row| row.layer.clone()),
                ("software", Left, |row| row.software_queues.clone()),
                ("hardware", Left, |row| row.hardware_queues.clone()),
                ("workers", Right, |row| row.workers.to_string()),
                ("depth", Right, |row| row.depth.to_string()),
                ("M IOPS", Right, |row| millions(row.iops)),
                ("smallest", Right, |row| millions(row.smallest_iops)),
                ("largest", Right, |row| millions(row.largest_iops)),
                ("/ raw", Right, |row| or_dash(row.over_raw, 3)),
                ("mean ns", Right, |row| whole(row.mean_ns)),
                ("p99 ns", Right, |row| row.p99_ns.to_string()),
                ("max us", Right, |row| us(row.max_ns as f64)),
            ],
        );
        let maxima = table(
            &self.table2,
            &[
                ("layer", Left, |row: &MaximumRow| row.layer.clone()),
                ("largest latency, us", Right, |row| us(row.max_ns as f64)),
            ],
        );
        let mark = if style == Style::Markdown { ":\n" } else { "" };
        format!("{}\nTable 2{mark}\n{}", style.table(&rows), style.table(&maxima))
    }

    fn pictures(&self, host: &str) -> Result<Vec<(String, String)>, String> {
        Ok(vec![("blkmq".into(), render(self, host)?)])
    }
}

/// Value drawn of a row, in the unit of its axis.
type Value = fn(&LayersRow) -> f64;

/// A panel for each of the paper's figures, a curve for each series.
fn render(report: &Layers, host: &str) -> Result<String, String> {
    let panel = |figure: u32, title: &str, unit: &str, value: Value| {
        let points = report.rows.iter().filter(|row| row.figure == figure).map(|row| {
            let name = match row.layer.as_str() {
                "mq" => format!("mq, hardware {}", row.hardware_queues),
                layer => layer.to_string(),
            };
            (name, Point { x: row.workers as f64, y: Some(value(row)), ..Point::default() })
        });
        Panel::lines(title, Along::Numbers, "workers", unit).with(Series::by_name(points))
    };
    let millions: Value = |row| row.iops / 1e6;
    let panels = [
        panel(6, "Figure 6: throughput, 32 in flight per worker", "million IOPS", millions),
        panel(7, "Figure 7: mean latency, 1 in flight per worker", "ns", |row| row.mean_ns),
        panel(9, "Figure 9: a single software queue", "million IOPS", millions),
        panel(10, "Figure 10: a software queue per core", "million IOPS", millions),
    ];
    panel::render(&format!("SQ, MQ and Raw on the null device of {}", host), &panels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every case of one worker once, for a moment.
    fn report() -> Record<Layers> {
        let mut options: ScaleOptions = crate::options::defaults();
        (options.workers, options.runs.rounds, options.runs.measured_ms) = (Some(2), 1, 5);
        measure(&options).unwrap()
    }

    #[test]
    fn every_series_of_every_figure_has_a_row_for_each_number_of_workers() {
        let report = report();
        let count = |figure| report.rows.iter().filter(|row| row.figure == figure).count();
        assert_eq!([6, 7, 9, 10].map(count), [8, 8, 6, 6]);
        // Figures 6 and 10 show the same measurement.
        let iops = |figure| {
            let same = |row: &&LayersRow| {
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
        let svg = render(&report, "test").unwrap();
        assert_eq!(svg.matches("Figure ").count(), 4, "a panel for each");
        let json = mqfq_report::json(&report).unwrap();
        // Decimals may change in their last digit on the way.
        let back: Record<Layers> = serde_json::from_str(&json).unwrap();
        assert_eq!((back.rows.len(), &back.table2), (report.rows.len(), &report.table2));
    }
}
