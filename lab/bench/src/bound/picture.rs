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
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// How one pair's difference went.
#[derive(Clone, PartialEq, Debug)]
pub struct Trajectory {
    /// The case.
    pub title: String,
    /// The difference of service completed.
    pub points: Vec<Point>,
    /// What the tight bound allows between any two points.
    pub bound_bytes: f64,
}

const WIDTH_PX: u32 = 1100;
const TITLE_PX: u32 = 64;
const ROW_PX: u32 = 22;
const NAMES_PX: i32 = 250;
const TRAJECTORY_PX: u32 = 380;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Blue, vermilion and green of Okabe and Ito's palette: told apart by every eye.
const TIGHT: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const THEOREM: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const DISPATCHED: RGBColor = RGBColor(0x00, 0x9e, 0x73);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws to a file.
///
/// # Errors
/// One sentence naming the file.
pub fn write(path: &Path, report: &BoundReport, trajectory: Option<&Trajectory>) -> Result<(), String> {
    let text = render(report, trajectory)?;
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &BoundReport, trajectory: Option<&Trajectory>) -> Result<String, String> {
    let bars_px = (report.rows.len() as u32 + 2) * ROW_PX;
    let height_px = TITLE_PX + bars_px + trajectory.map_or(0, |_| TRAJECTORY_PX);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, height_px)).into_drawing_area();
        draw(&root, report, trajectory, bars_px).map_err(|error| format!("cannot draw the picture: {error}"))?;
        root.present().map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, report: &BoundReport, trajectory: Option<&Trajectory>, bars_px: u32) -> Drawn {
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(TITLE_PX);
    let title = "Largest unfairness over every interval, as a share of what is allowed";
    head.draw(&Text::new(title, (14, 8), (FONT, 19).into_font().color(&INK)))?;
    let legend = [
        (TIGHT, "completed, of 2T + (D+1)(l/r + l/r)", 14),
        (THEOREM, "completed, of Theorem 2", 330),
        (DISPATCHED, "dispatched, of 2T + l/r + l/r", 580),
    ];
    for (colour, words, x) in legend {
        head.draw(&Rectangle::new([(x, 40), (x + 24, 50)], colour.filled()))?;
        head.draw(&Text::new(words, (x + 30, 38), (FONT, 13).into_font().color(&INK)))?;
    }
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
    let style = |size: i32, h| (FONT, size).into_font().color(&INK).pos(Pos::new(h, VPos::Center));
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let line = if quarter == 4 { INK.stroke_width(2) } else { INK.mix(0.15).stroke_width(1) };
        area.draw(&PathElement::new([(x(share), 0), (x(share), bottom)], line))?;
        area.draw(&Text::new(format!("{share:.2}"), (x(share), bottom + 12), style(12, HPos::Center)))?;
    }
    for (at, row) in report.rows.iter().enumerate() {
        let top = (at as u32 * ROW_PX) as i32;
        let name = if row.form == "faithful" { row.case.clone() } else { format!("{}, {}", row.case, row.form) };
        area.draw(&Text::new(name, (left - 8, top + ROW_PX as i32 / 2), style(12, HPos::Right)))?;
        let shares = [
            (row.largest_share_of_tight_bound, TIGHT),
            (row.largest_share_of_bound, THEOREM),
            (row.largest_share_of_dispatch_bound, DISPATCHED),
        ];
        for ((share, colour), bar) in shares.into_iter().zip(0..) {
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
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(&trajectory.title, (FONT, 15).into_font().color(&INK))
        .x_label_area_size(36)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..end, bottom - air..top + air)?;
    let label = (FONT, 12).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_desc("events of the history")
        .y_desc("difference of completed service over weight, KiB")
        .axis_desc_style(label.clone())
        .label_style(label.clone())
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for line in [bottom, top] {
        chart.draw_series([PathElement::new([(0.0, line), (end, line)], THEOREM.stroke_width(2))])?;
    }
    let words = format!("no two points may lie farther apart than these lines: {bound:.1} KiB");
    let at = (end / 2.0, top + air / 2.0);
    let style = label.pos(Pos::new(HPos::Center, VPos::Center));
    chart.draw_series([Text::new(words, at, style)])?;
    let points = trajectory.points.iter().map(|point| (point.at as f64, kib(point.difference_bytes)));
    chart.draw_series(LineSeries::new(points, TIGHT.stroke_width(1)))?;
    Ok(())
}
