//! The demo's picture: bandwidth over time, small multiples, one SVG.
//!
//! # Shape
//! ```text
//!                      none          sfqd          mqfq
//! moderate: reader     |‾‾|__|__     |‾‾|__|‾‾     |‾‾|__|‾‾     each row has one scale, so that a row can be
//!           crowd      |__|‾‾|‾‾     ...                         compared by eye
//! shallow:  reader
//!           bulk
//! ```
//! Within a panel time runs through the phases (each tenant alone, then all together; the last is shaded). A dashed
//! line marks what the tenant had alone: how far the curve falls below it in the shaded part is the slowdown.

use crate::chart::{Area, Axes, Drawn, INK, SHADE, anchored, colour, font, svg, text};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use std::path::Path;

/// A tenant's curve in one panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Name of the tenant.
    pub tenant: String,
    /// Bytes per second in each step, over all phases.
    pub bytes_per_s: Vec<f64>,
    /// Throughput of the tenant alone.
    pub alone_bytes_per_s: f64,
    /// Alone over shared; written into the shaded part.
    pub slowdown: Option<f64>,
}

/// One scenario under one policy: a column of panels, one per tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// Name of the policy.
    pub policy: String,
    /// When each phase starts, seconds, the first being 0; the last phase is the shared one.
    pub phase_starts_s: Vec<f64>,
    /// Length of a step, seconds.
    pub step_s: f64,
    /// One curve per tenant, in the same order in every column.
    pub curves: Vec<Curve>,
}

/// One scenario: a block of rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    /// Name and sentence of the scenario.
    pub title: String,
    /// One column per policy.
    pub columns: Vec<Column>,
}

const WIDTH_PX: u32 = 1260;
const TITLE_PX: u32 = 56;
const BLOCK_TITLE_PX: u32 = 34;
const PANEL_PX: u32 = 170;

/// Draws `blocks` under `title` as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(title: &str, blocks: &[Block]) -> Result<String, String> {
    let rows: u32 = blocks.iter().map(|block| rows_of(block) as u32).sum();
    let height_px = TITLE_PX + blocks.len() as u32 * BLOCK_TITLE_PX + rows * PANEL_PX;
    svg((WIDTH_PX, height_px), |root| draw(root, title, blocks))
}

/// Draws to a file.
///
/// # Errors
/// One sentence naming the file.
pub fn write(path: &Path, title: &str, blocks: &[Block]) -> Result<(), String> {
    std::fs::write(path, render(title, blocks)?).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn rows_of(block: &Block) -> usize {
    block.columns.iter().map(|column| column.curves.len()).max().unwrap_or(0)
}

fn draw(root: &Area<'_>, title: &str, blocks: &[Block]) -> Drawn {
    let (head, mut rest) = root.split_vertically(TITLE_PX);
    text(&head, title, (14, 8), 19)?;
    draw_legend(&head)?;
    for block in blocks {
        let (block_head, below) = rest.split_vertically(BLOCK_TITLE_PX);
        text(&block_head, block.title.as_str(), (14, 10), 15)?;
        let rows = rows_of(block);
        let (panels, below) = below.split_vertically(rows as u32 * PANEL_PX);
        let panels = panels.split_evenly((rows, block.columns.len().max(1)));
        for row in 0..rows {
            let top_mb_per_s = top_of_row(block, row);
            for (at, column) in block.columns.iter().enumerate() {
                if let Some(curve) = column.curves.get(row) {
                    draw_panel(&panels[row * block.columns.len() + at], column, curve, colour(row), top_mb_per_s)?;
                }
            }
        }
        rest = below;
    }
    Ok(())
}

/// One scale for a row: its largest value and a little air.
fn top_of_row(block: &Block, row: usize) -> f64 {
    let values = block.columns.iter().filter_map(|column| column.curves.get(row));
    let top = values.flat_map(|curve| curve.bytes_per_s.iter().copied().chain([curve.alone_bytes_per_s]));
    top.fold(0.0_f64, f64::max).max(1.0) / 1e6 * 1.08
}

fn draw_legend(head: &Area<'_>) -> Drawn {
    let y = 38;
    head.draw(&PathElement::new([(14, y), (44, y)], INK.stroke_width(2)))?;
    text(head, "bandwidth as the tenant's client saw it", (50, y - 7), 13)?;
    draw_dashes(head, 320, 350, y)?;
    text(head, "what it had alone (mean)", (356, y - 7), 13)?;
    head.draw(&Rectangle::new([(540, y - 7), (570, y + 6)], SHADE.filled()))?;
    text(head, "all tenants together; before: each alone, in turn", (576, y - 7), 13)?;
    Ok(())
}

fn draw_dashes(area: &Area<'_>, from: i32, to: i32, y: i32) -> Drawn {
    for x in (from..to).step_by(8) {
        area.draw(&PathElement::new([(x, y), ((x + 5).min(to), y)], INK.stroke_width(1)))?;
    }
    Ok(())
}

fn draw_panel(panel: &Area<'_>, column: &Column, curve: &Curve, colour: RGBColor, top_mb_per_s: f64) -> Drawn {
    let end_s = curve.bytes_per_s.len() as f64 * column.step_s;
    let decimals = if top_mb_per_s < 2.0 {
        2
    } else if top_mb_per_s < 10.0 {
        1
    } else {
        0
    };
    let axes = Axes {
        x: 0.0..end_s.max(column.step_s),
        y: 0.0..top_mb_per_s,
        x_label: "time, s",
        y_label: "MB/s",
        room_px: (32, 58),
        font_px: 11,
        ticks: (6, 4),
        shaded_x: column.phase_starts_s.last().map(|&shared_s| shared_s..end_s),
        x_text: &|x| format!("{x:.1}"),
        y_text: &|y| format!("{y:.decimals$}"),
    };
    let mut chart = ChartBuilder::on(panel);
    chart.margin(6).caption(format!("{}: {}", column.policy, curve.tenant), font(13));
    let mut chart = axes.draw(chart)?;
    for &start_s in column.phase_starts_s.iter().skip(1) {
        chart.draw_series([PathElement::new([(start_s, 0.0), (start_s, top_mb_per_s)], INK.mix(0.35))])?;
    }
    let alone_mb_per_s = curve.alone_bytes_per_s / 1e6;
    let dashes = 60;
    chart.draw_series((0..dashes).map(|dash| {
        let x = |part: f64| end_s * (f64::from(dash) + part) / f64::from(dashes);
        PathElement::new([(x(0.0), alone_mb_per_s), (x(0.55), alone_mb_per_s)], INK.stroke_width(1))
    }))?;
    if let Some(&shared_s) = column.phase_starts_s.last() {
        // Above a curve that fell below half, below one that did not: out of its way.
        let fell = curve.slowdown.is_none_or(|slowdown| slowdown > 2.0);
        let at = ((shared_s + end_s) / 2.0, top_mb_per_s * if fell { 0.72 } else { 0.3 });
        let text = curve.slowdown.map_or("starved".into(), |slowdown| format!("slowed {slowdown:.2} times"));
        chart.draw_series([Text::new(text, at, anchored(13, HPos::Center))])?;
    }
    let points = curve
        .bytes_per_s
        .iter()
        .enumerate()
        .map(|(step, bytes_per_s)| ((step as f64 + 0.5) * column.step_s, bytes_per_s / 1e6));
    chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Vec<Block> {
        let curve = |tenant: &str, level: f64| Curve {
            tenant: tenant.into(),
            bytes_per_s: (0..75).map(|step| if step < 25 { level } else { level / 3.0 }).collect(),
            alone_bytes_per_s: level,
            slowdown: Some(3.0),
        };
        let column = |policy: &str| Column {
            policy: policy.into(),
            phase_starts_s: vec![0.0, 1.25, 2.5],
            step_s: 0.05,
            curves: vec![curve("reader", 5e6), curve("bulk", 360e6)],
        };
        ["moderate", "shallow"]
            .map(|title| Block { title: title.into(), columns: ["none", "sfqd", "mqfq"].map(column).to_vec() })
            .to_vec()
    }

    #[test]
    fn every_panel_is_named_and_has_its_units() {
        let text = render("Bandwidth over time", &blocks()).unwrap();
        let count = |what: &str| text.matches(what).count();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for policy in ["none", "sfqd", "mqfq"] {
            assert_eq!(count(&format!("{policy}: reader")), 2, "one per scenario");
        }
        assert_eq!((count("MB/s"), count("time, s")), (12, 12), "2 scenarios x 2 tenants x 3 policies");
        assert!(text.contains("what it had alone"));
        assert_eq!(count("slowed 3.00 times"), 12);
    }

    #[test]
    fn nothing_at_all_is_still_a_picture() {
        let empty = Block { title: "empty".into(), columns: vec![] };
        assert!(render("Bandwidth over time", &[empty]).unwrap().starts_with("<svg"));
    }

    #[test]
    fn a_row_has_one_scale() {
        // 360 MB/s and 8% of air, whatever the other row needs.
        assert!((top_of_row(&blocks()[0], 1) - 388.8).abs() < 1e-9);
    }
}
