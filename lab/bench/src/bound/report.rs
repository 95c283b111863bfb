//! Report of `mqfq-lab bench bound`: the JSON contract, as types, and the table.
//!
//! # Picture
//! The picture of `mqfq-lab bench bound`: how close each case came to its bounds, and how one case went.
//!
//! ```text
//!  case            |====== tight bound         one bar per bound and case, the whole width is the bound
//!                  |== Theorem 2
//!  ...
//!  difference of the pair's weighted service over time, between the lines that the tight bound allows
//! ```

use super::checker::Point;
use super::judge::{Share, Verdict};
use crate::shell::{or_dash, table};
use mqfq_report::chart::{Area, Axes, BLUE, Drawn, GREEN, INK, Mark, VERMILION, anchored, font, legend, svg, text};
use mqfq_report::table::Align::{Left, Right};
use mqfq_report::table::Table;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde::{Deserialize, Serialize};

/// Results of `mqfq-lab bench bound`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BoundReport {
    /// One entry per case.
    pub rows: Vec<BoundRow>,
    /// Weighted shares of saturated flows over a second of virtual time.
    pub shares: Vec<SharesRow>,
    /// Largest deviation that is promised for `shares`.
    pub shares_tolerance: f64,
    /// Intervals covered in all cases.
    pub intervals: u64,
    /// Value of `--seed`.
    pub seed: u64,
    /// Value of `--scale`.
    pub scale: u64,
    /// Where the picture lies, if there is one.
    pub svg_path: Option<String>,
    /// Wall-clock time of the whole run, seconds.
    pub elapsed_s: f64,
}

/// One case: the largest share of each bound over every interval of every pair of flows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BoundRow {
    /// Its short name.
    pub case: String,
    /// Its load, in one line.
    pub description: String,
    /// As in the configuration.
    pub policy: String,
    /// `faithful`: as in the paper. `relaxed`: with quantised leaves, leases and batched tokens.
    pub form: String,
    /// Flows; of several machines the most.
    pub flows: usize,
    /// Hctxs; of several machines the most.
    pub hctxs: usize,
    /// D; `null` if the case has several machines with different ones.
    pub depth: Option<u32>,
    /// T, in bytes at the default weight; `null` as for `depth`.
    pub window_bytes: Option<u64>,
    /// Bytes that one unit of D stands for; `null`: a request.
    pub token_unit_bytes: Option<u32>,
    /// Seed of this case; follows from `--seed` and the name.
    pub seed: u64,
    /// Histories that were evaluated.
    pub histories: u64,
    /// Their events: dispatches, completions, flows that became backlogged or drained.
    pub steps: u64,
    /// Intervals covered: every two moments of every stretch in which two flows stayed backlogged.
    pub intervals: u64,
    /// Share of Theorem 2's bound on service completed. `null`: no two flows were backlogged at once.
    pub largest_share_of_bound: Option<f64>,
    /// Share of the tight bound on service completed.
    pub largest_share_of_tight_bound: Option<f64>,
    /// Share of the bound on service dispatched.
    pub largest_share_of_dispatch_bound: Option<f64>,
    /// Share of Theorem 1's bound on service completed, where D is 1. It does not hold for that; see
    /// lab/bench/README.md.
    pub largest_share_of_theorem_1: Option<f64>,
    /// Service over weight, in bytes at the default weight, of the pair behind `largest_share_of_tight_bound`.
    pub largest_unfairness_bytes: Option<f64>,
    /// Bound of that pair.
    pub tight_bound_bytes: Option<f64>,
    /// The bounds that are broken, by name.
    pub broken: Vec<String>,
}

/// Saturated flows in one setting.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SharesRow {
    /// Its short name.
    pub case: String,
    /// As in the configuration.
    pub policy: String,
    /// `faithful`: as in the paper. `relaxed`: with quantised leaves, leases and batched tokens.
    pub form: String,
    /// Flows.
    pub flows: usize,
    /// Over one second of virtual time: the largest `|share / weighted share - 1|` of any flow.
    pub largest_deviation: f64,
    /// No more than what is promised.
    pub within: bool,
}

fn value(share: Option<Share>) -> Option<f64> {
    share.map(|share| share.value())
}

impl BoundRow {
    /// Takes over what was found.
    pub fn set(&mut self, verdict: &Verdict) {
        self.steps = verdict.events;
        self.intervals = verdict.intervals;
        self.largest_share_of_bound = value(verdict.theorem_2);
        self.largest_share_of_tight_bound = value(verdict.tight);
        self.largest_share_of_dispatch_bound = value(verdict.dispatched);
        self.largest_share_of_theorem_1 = value(verdict.theorem_1);
        self.largest_unfairness_bytes = verdict.tight.map(|share| share.unfairness_bytes);
        self.tight_bound_bytes = verdict.tight.map(|share| share.limit_bytes);
        self.broken = verdict.broken().into_iter().map(String::from).collect();
    }
}

/// A share with four decimals, rounded towards 0: what is below 1 is not shown as 1.
fn share(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{:.4}", (value * 1e4).floor() / 1e4))
}

impl BoundReport {
    /// One line per case.
    pub fn table(&self) -> Table {
        table(
            &self.rows,
            &[
                ("case", Left, |row: &BoundRow| row.case.clone()),
                ("form", Left, |row| row.form.clone()),
                ("flows", Right, |row| row.flows.to_string()),
                ("D", Right, |row| or_dash(row.depth.map(f64::from), 0)),
                ("T KiB", Right, |row| row.window_bytes.map_or("-".into(), |bytes| (bytes >> 10).to_string())),
                ("intervals", Right, |row| row.intervals.to_string()),
                ("Theorem 2", Right, |row| share(row.largest_share_of_bound)),
                ("tight", Right, |row| share(row.largest_share_of_tight_bound)),
                ("dispatched", Right, |row| share(row.largest_share_of_dispatch_bound)),
                ("Theorem 1", Right, |row| share(row.largest_share_of_theorem_1)),
            ],
        )
    }

    /// One line per setting of saturated flows.
    pub fn shares_table(&self) -> Table {
        table(
            &self.shares,
            &[
                ("saturated flows", Left, |row: &SharesRow| row.case.clone()),
                ("form", Left, |row| row.form.clone()),
                ("flows", Right, |row| row.flows.to_string()),
                ("deviation %", Right, |row| format!("{:.3}", row.largest_deviation * 100.0)),
            ],
        )
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let tables = format!("{}\n{}\n", self.table().render(), self.shares_table().render());
        let sum = format!("{} intervals, seed {}, {:.1} s\n", self.intervals, self.seed, self.elapsed_s);
        let picture = self.svg_path.as_ref().map_or(String::new(), |path| format!("shares of the bounds: {path}\n"));
        tables + &sum + &picture
    }

    /// Broken promises, one sentence each.
    pub fn broken(&self) -> Vec<String> {
        let rows = self.rows.iter().flat_map(|row| {
            row.broken.iter().map(|bound| format!("{} ({}, seed {}) breaks {bound}", row.case, row.form, row.seed))
        });
        let shares = self.shares.iter().filter(|row| !row.within);
        rows.chain(
            shares.map(|row| format!("{} ({}) is off by {:.2}%", row.case, row.form, row.largest_deviation * 100.0)),
        )
        .collect()
    }
}

/// How one pair's difference went.
#[derive(Clone, PartialEq, Debug)]
pub struct Trajectory {
    /// The case.
    pub title: String,
    /// The difference of service completed.
    pub points: Vec<Point>,
    /// Limit of the tight bound between any two points.
    pub bound_bytes: f64,
}

const WIDTH_PX: u32 = 1100;
const TITLE_PX: u32 = 64;
const ROW_PX: u32 = 22;
const NAMES_PX: i32 = 250;
const TRAJECTORY_PX: u32 = 380;
/// Service completed over the tight bound and Theorem 2; service dispatched over its bound.
const BARS: [(RGBColor, &str); 3] = [
    (BLUE, "completed, of 2T + (D+1)(l/r + l/r)"),
    (VERMILION, "completed, of Theorem 2"),
    (GREEN, "dispatched, of 2T + l/r + l/r"),
];

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &BoundReport, trajectory: Option<&Trajectory>) -> Result<String, String> {
    let bars_px = (report.rows.len() as u32 + 2) * ROW_PX;
    let height_px = TITLE_PX + bars_px + trajectory.map_or(0, |_| TRAJECTORY_PX);
    svg((WIDTH_PX, height_px), |root| draw(root, report, trajectory, bars_px))
}

fn draw(root: &Area<'_>, report: &BoundReport, trajectory: Option<&Trajectory>, bars_px: u32) -> Drawn {
    let (head, rest) = root.split_vertically(TITLE_PX);
    text(&head, "Largest unfairness over every interval, as a share of what is allowed", (14, 8), 19)?;
    legend(&head, 38, &BARS.map(|(colour, words)| (Mark::Bar(colour.into()), words.to_string())))?;
    let (bars, below) = rest.split_vertically(bars_px);
    draw_bars(&bars, report)?;
    match trajectory {
        Some(trajectory) => draw_trajectory(&below, trajectory),
        None => Ok(()),
    }
}

fn draw_bars(area: &Area<'_>, report: &BoundReport) -> Drawn {
    let (left, right) = (NAMES_PX, WIDTH_PX as i32 - 40);
    let x = |share: f64| left + (share.min(1.04) * f64::from(right - left)) as i32;
    let bottom = (report.rows.len() as u32 * ROW_PX) as i32;
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let line = if quarter == 4 { INK.stroke_width(2) } else { INK.mix(0.15).stroke_width(1) };
        area.draw(&PathElement::new([(x(share), 0), (x(share), bottom)], line))?;
        area.draw(&Text::new(format!("{share:.2}"), (x(share), bottom + 12), anchored(12, HPos::Center)))?;
    }
    for (at, row) in report.rows.iter().enumerate() {
        let top = (at as u32 * ROW_PX) as i32;
        let name = if row.form == "faithful" { row.case.clone() } else { format!("{}, {}", row.case, row.form) };
        area.draw(&Text::new(name, (left - 8, top + ROW_PX as i32 / 2), anchored(12, HPos::Right)))?;
        let shares =
            [row.largest_share_of_tight_bound, row.largest_share_of_bound, row.largest_share_of_dispatch_bound];
        for ((share, (colour, _)), bar) in shares.into_iter().zip(BARS).zip(0..) {
            if let Some(share) = share {
                let y = top + 2 + bar * 6;
                area.draw(&Rectangle::new([(left, y), (x(share), y + 5)], colour.filled()))?;
            }
        }
    }
    Ok(())
}

fn draw_trajectory(area: &Area<'_>, trajectory: &Trajectory) -> Drawn {
    let kib = |bytes: f64| bytes / 1024.0;
    let backlogged = || trajectory.points.iter().filter(|point| point.both_backlogged);
    let low = backlogged().map(|point| kib(point.difference_bytes)).fold(f64::INFINITY, f64::min);
    let high = backlogged().map(|point| kib(point.difference_bytes)).fold(f64::NEG_INFINITY, f64::max);
    let end = trajectory.points.last().map_or(1, |point| point.at) as f64;
    if low > high {
        return Ok(());
    }
    let bound = kib(trajectory.bound_bytes);
    // The bound is about the distance between any two points: the band is put around what was found.
    let (bottom, top) = ((low + high - bound) / 2.0, (low + high + bound) / 2.0);
    let air = bound * 0.08;
    let axes = Axes {
        x: 0.0..end,
        y: bottom - air..top + air,
        x_label: "events of the history",
        y_label: "difference of completed service over weight, KiB",
        room_px: (36, 76),
        font_px: 12,
        ticks: (10, 10),
        shaded_x: None,
        x_text: &|x| format!("{x:.0}"),
        y_text: &|y| format!("{y:.0}"),
    };
    let mut chart = ChartBuilder::on(area);
    chart.margin(10).caption(&trajectory.title, font(15));
    let mut chart = axes.draw(chart)?;
    for line in [bottom, top] {
        chart.draw_series([PathElement::new([(0.0, line), (end, line)], VERMILION.stroke_width(2))])?;
    }
    let words = format!("no two points may lie farther apart than these lines: {bound:.1} KiB");
    let at = (end / 2.0, top + air / 2.0);
    chart.draw_series([Text::new(words, at, anchored(12, HPos::Center))])?;
    let points = trajectory.points.iter().map(|point| (point.at as f64, kib(point.difference_bytes)));
    chart.draw_series(LineSeries::new(points, BLUE.stroke_width(1)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_one_is_not_shown_as_one() {
        assert_eq!(share(Some(0.999_99)), "0.9999");
        assert_eq!(share(Some(1.0)), "1.0000");
        assert_eq!(share(None), "-");
    }
}
