//! The picture of `bench scale`: requests per second over workers, one panel per placement, one curve per policy.

use super::ScaleReport;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

const WIDTH_PX: u32 = 1260;
const HEIGHT_PX: u32 = 440;
const TITLE_PX: u32 = 40;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Okabe and Ito's palette: told apart by every eye.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xf0, 0xe4, 0x42),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// One policy in one panel: workers, median, smallest and largest in millions per second.
struct Curve<'a> {
    policy: &'a str,
    points: Vec<(f64, [f64; 3])>,
}

struct Panel<'a> {
    title: String,
    curves: Vec<Curve<'a>>,
}

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &ScaleReport) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, HEIGHT_PX)).into_drawing_area();
        draw(&root, report).map_err(|error| format!("cannot draw the picture: {error}"))?;
        root.present().map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, report: &ScaleReport) -> Drawn {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TITLE_PX);
    let title = format!("Requests per second of the null device on {}", report.machine.host);
    head.draw(&Text::new(title, (14, 10), (FONT, 19).into_font().color(&INK)))?;
    let panels = panels(report);
    let workers_max = report.rows.iter().map(|row| row.workers).max().unwrap_or(1) as f64;
    let top = report.rows.iter().map(|row| row.largest / 1e6).fold(0.001, f64::max) * 1.08;
    for (area, panel) in body.split_evenly((1, panels.len().max(1))).iter().zip(&panels) {
        draw_panel(area, panel, 0.5..workers_max + 0.5, top)?;
    }
    Ok(())
}

/// What belongs together: each flow on its own worker; one flow on all; as many as given (or as workers) on all. With
/// one worker a flow on all is also as many as workers.
fn panels(report: &ScaleReport) -> Vec<Panel<'_>> {
    let panel = |title: &str, is_in: &dyn Fn(&super::ScaleRow) -> bool| {
        let mut curves: Vec<Curve<'_>> = Vec::new();
        for row in report.rows.iter().filter(|row| is_in(row)) {
            let point = (row.workers as f64, [row.requests_per_s, row.smallest, row.largest].map(|rate| rate / 1e6));
            match curves.iter_mut().find(|curve| curve.policy == row.policy) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { policy: &row.policy, points: vec![point] }),
            }
        }
        Panel { title: title.to_string(), curves }
    };
    [
        panel("each flow on a worker of its own", &|row| row.placement == "own"),
        panel("one flow on all workers", &|row| row.placement == "all" && row.flows == 1),
        panel("every flow on all workers", &|row| row.placement == "all" && (row.flows > 1 || row.workers == 1)),
    ]
    .into_iter()
    .filter(|panel| panel.curves.iter().any(|curve| !curve.points.is_empty()))
    .collect()
}

fn draw_panel(area: &Area<'_>, panel: &Panel<'_>, workers: Range<f64>, top: f64) -> Drawn {
    let label = (FONT, 12).into_font().color(&INK);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .caption(&panel.title, (FONT, 15).into_font().color(&INK))
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(workers, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_desc("workers")
        .y_desc("million requests/s")
        .axis_desc_style(label.clone())
        .label_style(label.clone())
        .x_labels(9)
        .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{x}") } else { String::new() })
        .y_labels(6)
        .draw()?;
    for (at, curve) in panel.curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let line = curve.points.iter().map(|&(workers, [median, ..])| (workers, median));
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?
            .label(curve.policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(line.map(|point| Circle::new(point, 3, colour.filled())))?;
        chart.draw_series(curve.points.iter().map(|&(workers, [_, smallest, largest])| {
            PathElement::new([(workers, smallest), (workers, largest)], colour.mix(0.6))
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(label)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;
    use crate::contender::{MQFQ, NONE};

    #[test]
    fn every_panel_has_its_units_and_every_policy_a_curve() {
        let report = report(&[(NONE, 1, &[1000.0]), (MQFQ, 1, &[800.0]), (NONE, 2, &[2000.0]), (MQFQ, 2, &[1500.0])]);
        let text = render(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        // One worker belongs to both kinds of sharing, so there are two panels.
        assert_eq!(text.matches("million requests/s").count(), 2);
        assert_eq!(text.matches("\nmqfq\n").count(), 2, "{text}");
    }
}
