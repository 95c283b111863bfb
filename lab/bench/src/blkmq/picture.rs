//! The picture of `bench blkmq`: a panel for each of the paper's figures, a curve for each series.

use super::{BlkmqReport, BlkmqRow};
use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH_PX: u32 = 1120;
const PANEL_PX: u32 = 400;
const TITLE_PX: u32 = 40;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Okabe and Ito's palette: told apart by every eye.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0xd5, 0x5e, 0x00), RGBColor(0x56, 0xb4, 0xe9), RGBColor(0x00, 0x72, 0xb2), RGBColor(0x77, 0x77, 0x77)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// What is drawn of a row, in the unit of its axis.
type Value = fn(&BlkmqRow) -> f64;

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &BlkmqReport) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH_PX, TITLE_PX + 2 * PANEL_PX)).into_drawing_area();
        draw(&root, report).map_err(|error| format!("cannot draw the picture: {error}"))?;
        root.present().map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, report: &BlkmqReport) -> Drawn {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TITLE_PX);
    let title = format!("SQ, MQ and Raw on the null device of {}", report.machine.host);
    head.draw(&Text::new(title, (14, 10), (FONT, 19).into_font().color(&INK)))?;
    let millions: Value = |row| row.iops / 1e6;
    let panels: [(u32, &str, &str, Value); 4] = [
        (6, "Figure 6: throughput, 32 in flight per worker", "million IOPS", millions),
        (7, "Figure 7: mean latency, 1 in flight per worker", "ns", |row| row.mean_ns),
        (9, "Figure 9: a single software queue", "million IOPS", millions),
        (10, "Figure 10: a software queue per core", "million IOPS", millions),
    ];
    for (area, (figure, title, label, value)) in body.split_evenly((2, 2)).iter().zip(panels) {
        draw_panel(area, report, figure, (title, label), value)?;
    }
    Ok(())
}

fn draw_panel(
    area: &Area<'_>,
    report: &BlkmqReport,
    figure: u32,
    (title, y_label): (&str, &str),
    value: Value,
) -> Drawn {
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in report.rows.iter().filter(|row| row.figure == figure) {
        let name = match row.layer.as_str() {
            "mq" => format!("mq, hardware {}", row.hardware_queues),
            layer => layer.to_string(),
        };
        let point = (row.workers as f64, value(row));
        match curves.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => curves.push((name, vec![point])),
        }
    }
    let most = report.sockets.len() as f64;
    let top = curves.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(0.001, f64::max) * 1.1;
    let label = (FONT, 12).into_font().color(&INK);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .caption(title, (FONT, 15).into_font().color(&INK))
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.5..most + 0.5, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_desc("workers")
        .y_desc(y_label)
        .axis_desc_style(label.clone())
        .label_style(label.clone())
        .x_labels(9)
        .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{x}") } else { String::new() })
        .y_labels(6)
        .draw()?;
    for (at, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(label)
        .draw()?;
    Ok(())
}
