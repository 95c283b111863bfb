//! The picture of `mqfq-lab bench bound`: how close each case came to its bounds, and how one case went.
//!
//! # Shape
//! ```text
//!  case            |====== tight bound         one bar per bound and case, the whole width is the bound
//!                  |== Theorem 2
//!  ...
//!  difference of the pair's weighted service over time, between the lines that the tight bound allows
//! ```

use super::checker::Point;
use super::report::BoundReport;
use mqfq_report::chart::{Area, Axes, BLUE, Drawn, GREEN, INK, Mark, VERMILION, anchored, font, legend, svg, text};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

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
