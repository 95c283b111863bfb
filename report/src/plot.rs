//! Bandwidth of tenants over time, as parts of what each gets alone: one panel per setting, side by side.
//!
//! # Shape
//! ```text
//!                      without mqfq                  with mqfq
//!   a reader      100% |‾‾‾‾|______ reader     100% |‾‾‾‾|‾‾‾‾‾‾ reader
//!   beside bulk     0% |    |‾‾‾‾‾‾ bulk         0% |    |‾‾‾‾‾‾ bulk
//! ```
//! Tenants whose bandwidths lie a thousandfold apart have one scale this way, and a panel shows all of them: 100% is
//! the bandwidth of the tenant alone, under the same setting. The shaded part is the one in which all run.

use crate::chart::{Area, Axes, Drawn, INK, SHADE, colour, font, svg, text};
use plotters::prelude::*;
use std::path::Path;

/// A tenant's curve in a panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// The tenant's result in words; it stands above the panel in the curve's colour.
    pub label: String,
    /// Begin of the first step, seconds.
    pub start_s: f64,
    /// Bytes per second in each step.
    pub bytes_per_s: Vec<f64>,
    /// Throughput of the tenant alone: 100%.
    pub alone_bytes_per_s: f64,
}

/// One panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// Its title: the setting.
    pub title: String,
    /// Length of a step, seconds.
    pub step_s: f64,
    /// Begin of the part in which all run, seconds.
    pub shared_s: f64,
    /// The tenants, in the same order in every panel.
    pub curves: Vec<Curve>,
}

/// One scene: a row of panels.
#[derive(Clone, PartialEq, Debug)]
pub struct Scene {
    /// The scene in a sentence.
    pub title: String,
    /// One panel per setting.
    pub panels: Vec<Panel>,
}

const WIDTH_PX: u32 = 1260;
const TITLE_PX: u32 = 62;
const SCENE_TITLE_PX: u32 = 32;
const PANEL_TITLE_PX: u32 = 44;
const PANEL_PX: u32 = 170;

/// Top of each panel, percent: a tenant in a burst gets more than its mean alone.
const TOP_PERCENT: f64 = 118.0;

/// Draws `scenes` under `title` as an SVG document. `shaded` says what the shaded part shows, and the one before it.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(title: &str, shaded: &str, scenes: &[Scene]) -> Result<String, String> {
    let height_px = TITLE_PX + scenes.len() as u32 * (SCENE_TITLE_PX + PANEL_TITLE_PX + PANEL_PX);
    svg((WIDTH_PX, height_px), |root| draw(root, title, shaded, scenes))
}

/// Draws to a file.
///
/// # Errors
/// One sentence naming the file.
pub fn write(path: &Path, title: &str, shaded: &str, scenes: &[Scene]) -> Result<(), String> {
    let document = render(title, shaded, scenes)?;
    std::fs::write(path, document).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn draw(root: &Area<'_>, title: &str, shaded: &str, scenes: &[Scene]) -> Drawn {
    let (head, mut rest) = root.split_vertically(TITLE_PX);
    text(&head, title, (14, 8), 20)?;
    draw_legend(&head, shaded)?;
    for scene in scenes {
        let (scene_head, below) = rest.split_vertically(SCENE_TITLE_PX);
        text(&scene_head, scene.title.as_str(), (14, 10), 17)?;
        let (panels, below) = below.split_vertically(PANEL_TITLE_PX + PANEL_PX);
        for (panel, area) in scene.panels.iter().zip(panels.split_evenly((1, scene.panels.len().max(1)))) {
            draw_panel(&area, panel)?;
        }
        rest = below;
    }
    Ok(())
}

fn draw_legend(head: &Area<'_>, shaded: &str) -> Drawn {
    let y = 42;
    head.draw(&PathElement::new([(14, y), (44, y)], INK.stroke_width(2)))?;
    text(head, "bandwidth at the tenant's client; 100%: its bandwidth alone", (50, y - 7), 13)?;
    head.draw(&Rectangle::new([(440, y - 7), (470, y + 6)], SHADE.filled()))?;
    text(head, shaded, (476, y - 7), 13)?;
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Drawn {
    let (head, area) = area.split_vertically(PANEL_TITLE_PX);
    text(&head, panel.title.as_str(), (62, 2), 15)?;
    for (at, curve) in panel.curves.iter().enumerate() {
        let colour = colour(at);
        let style = font(13).color(&colour);
        let width_px = head.dim_in_pixel().0 as i32 - 62;
        let left_px = 62 + width_px * at as i32 / panel.curves.len() as i32;
        head.draw(&Text::new(curve.label.clone(), (left_px, 24), style))?;
    }
    let end_of = |curve: &Curve| curve.start_s + curve.bytes_per_s.len() as f64 * panel.step_s;
    let end_s = panel.curves.iter().map(end_of).fold(panel.step_s, f64::max);
    let axes = Axes {
        x: 0.0..end_s,
        y: 0.0..TOP_PERCENT,
        x_label: "time, s",
        y_label: "of alone",
        room_px: (32, 56),
        font_px: 11,
        ticks: (8, 5),
        shaded_x: Some(panel.shared_s..end_s),
        x_text: &|x| format!("{x:.1}"),
        y_text: &|y| format!("{y:.0}%"),
    };
    let mut chart = ChartBuilder::on(&area);
    chart.margin(6);
    let mut chart = axes.draw(chart)?;
    for (at, curve) in panel.curves.iter().enumerate() {
        let alone_bytes_per_s = curve.alone_bytes_per_s.max(1.0);
        let point = |(step, bytes_per_s): (usize, &f64)| {
            let percent = 100.0 * bytes_per_s / alone_bytes_per_s;
            (curve.start_s + (step as f64 + 0.5) * panel.step_s, percent.min(TOP_PERCENT))
        };
        let points = curve.bytes_per_s.iter().enumerate().map(point);
        chart.draw_series(LineSeries::new(points, colour(at).stroke_width(2)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenes() -> Vec<Scene> {
        let curve = |label: &str, start_s: f64, level: f64| Curve {
            label: label.into(),
            start_s,
            bytes_per_s: vec![level; 40],
            alone_bytes_per_s: level,
        };
        let panel = |title: &str| Panel {
            title: title.into(),
            step_s: 0.05,
            shared_s: 1.0,
            curves: vec![curve("reader: 5 of 5 MB/s", 0.0, 5e6), curve("bulk: 360 of 360 MB/s", 1.0, 360e6)],
        };
        let panels = || ["without", "with"].map(panel).to_vec();
        ["moderate", "shallow"].map(|title| Scene { title: title.into(), panels: panels() }).to_vec()
    }

    #[test]
    fn every_panel_is_named_and_has_its_units_and_all_tenants() {
        let text = render("Bandwidth over time", "both; before: the reader alone", &scenes()).unwrap();
        let count = |what: &str| text.matches(what).count();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert_eq!((count("time, s"), count("of alone")), (4, 4), "2 scenes x 2 settings");
        for label in ["reader: 5 of 5 MB/s", "bulk: 360 of 360 MB/s"] {
            assert_eq!(count(label), 4, "{label}");
        }
        assert!(text.contains("both; before: the reader alone"));
    }

    #[test]
    fn nothing_at_all_is_still_a_picture() {
        let empty = Scene { title: "empty".into(), panels: vec![] };
        assert!(render("Bandwidth over time", "nothing", &[empty]).unwrap().starts_with("<svg"));
    }

    #[test]
    fn tenants_a_thousandfold_apart_are_drawn_at_the_same_height() {
        let mut alike = scenes();
        alike[0].panels[0].curves[1] = Curve { start_s: 0.0, ..alike[0].panels[0].curves[1].clone() };
        let text = render("Bandwidth over time", "both", &alike[..1]).unwrap();
        let curve = |colour: &str| {
            let line = text.lines().find(|line| line.contains("polyline") && line.contains(colour)).unwrap();
            line.split("points=").nth(1).map(str::to_owned)
        };
        assert_eq!(curve("#0072B2"), curve("#D55E00"), "each has 100% of its own throughout");
    }
}
