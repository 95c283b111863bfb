//! The pictures of `bench schedulers`: one figure with a panel per workload and measure, one with the antagonists.

use super::report::{ContendedRow, Row, SchedulersReport, in_order};
use plotters::coord::Shift;
use plotters::prelude::*;

const PANEL_PX: (u32, u32) = (330, 230);
const TITLE_PX: u32 = 64;
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

/// What a row of panels shows.
struct Measure {
    label: &'static str,
    of: fn(&Row) -> f64,
    from_zero: bool,
}

const MEASURES: [Measure; 5] = [
    Measure { label: "thousand I/Os per s", of: |row| row.iops / 1e3, from_zero: true },
    Measure { label: "median, us", of: |row| row.p50_ns as f64 / 1e3, from_zero: true },
    Measure { label: "p99, us", of: |row| row.p99_ns as f64 / 1e3, from_zero: true },
    Measure { label: "CPU ms per million", of: |row| row.cpu_ns_per_io, from_zero: true },
    Measure { label: "J per million", of: |row| row.joules_per_million, from_zero: true },
];

/// Figures 1 to 5 of one device: workloads across, measures down.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn figures(report: &SchedulersReport, device: &str) -> Result<String, String> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.device == device).collect();
    let workloads = in_order(rows.iter().map(|row| row.workload.as_str()));
    let policies = in_order(rows.iter().map(|row| row.policy.as_str()));
    let size = (PANEL_PX.0 * workloads.len().max(1) as u32, TITLE_PX + PANEL_PX.1 * MEASURES.len() as u32);
    let draw = |root: &Area<'_>| -> Drawn {
        let body = head(root, &format!("Schedulers on {device}: {}", how(&rows)), &policies)?;
        let panels = body.split_evenly((MEASURES.len(), workloads.len().max(1)));
        for (at, panel) in panels.iter().enumerate() {
            let (measure, workload) = (&MEASURES[at / workloads.len()], workloads[at % workloads.len()]);
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.workload == workload).collect();
            draw_panel(panel, workload, measure, &rows, &policies)?;
        }
        Ok(())
    };
    svg(size, draw)
}

fn how(rows: &[&Row]) -> String {
    in_order(rows.iter().map(|row| row.how.as_str())).join(" and ")
}

/// Each device's modest tenant beside both antagonists: slowdown, 99th percentile, and what is left of the total.
///
/// # Errors
/// As [`figures`].
pub fn contended(report: &SchedulersReport) -> Result<String, String> {
    let devices = in_order(report.contended.iter().map(|row| row.device.as_str()));
    let policies = in_order(report.contended.iter().map(|row| row.policy.as_str()));
    let antagonists = in_order(report.contended.iter().map(|row| row.antagonist.as_str()));
    type Value = fn(&ContendedRow) -> f64;
    let measures: [(&str, Value); 3] = [
        ("slowed, times", |row| row.slowdown),
        ("fair share", |row| row.fair_share),
        ("total, of none's", |row| row.total_over_none),
    ];
    let columns = measures.len() * antagonists.len().max(1);
    let size = (PANEL_PX.0 * columns as u32, TITLE_PX + PANEL_PX.1 * devices.len().max(1) as u32);
    let draw = |root: &Area<'_>| -> Drawn {
        let title = "A modest tenant beside a greedy one: virtual time, instructions counted";
        let body = head(root, title, &policies)?;
        let panels = body.split_evenly((devices.len().max(1), columns));
        for (at, panel) in panels.iter().enumerate() {
            let Some(device) = devices.get(at / columns) else { continue };
            let Some(antagonist) = antagonists.get(at % columns / measures.len()) else { continue };
            let (label, value) = measures[at % measures.len()];
            let bars: Vec<(usize, f64)> = report
                .contended
                .iter()
                .filter(|row| row.device == *device && row.antagonist == *antagonist)
                .map(|row| (policies.iter().position(|policy| *policy == row.policy).unwrap_or(0), value(row)))
                .collect();
            draw_bars(panel, &format!("{device}, {antagonist}: {label}"), &bars, policies.len())?;
        }
        Ok(())
    };
    svg(size, draw)
}

fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = root.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&root));
        drawn.map_err(|error| format!("cannot draw the picture: {error}"))?;
        root.present().map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

/// Title and legend; what is below them comes back.
fn head<'a>(root: &Area<'a>, title: &str, policies: &[&str]) -> Result<Area<'a>, Box<dyn std::error::Error>> {
    let (head, body) = root.split_vertically(TITLE_PX);
    head.draw(&Text::new(title.to_string(), (14, 8), (FONT, 19).into_font().color(&INK)))?;
    for (at, policy) in policies.iter().enumerate() {
        let x = 14 + 120 * at as i32;
        head.draw(&PathElement::new([(x, 46), (x + 20, 46)], COLOURS[at % COLOURS.len()].stroke_width(3)))?;
        head.draw(&Text::new(policy.to_string(), (x + 26, 39), (FONT, 13).into_font().color(&INK)))?;
    }
    Ok(body)
}

fn draw_panel(area: &Area<'_>, workload: &str, measure: &Measure, rows: &[&Row], policies: &[&str]) -> Drawn {
    let label = (FONT, 11).into_font().color(&INK);
    let top = rows.iter().map(|row| (measure.of)(row)).fold(0.0, f64::max).max(1e-9) * 1.08;
    let bottom = if measure.from_zero { 0.0 } else { top };
    let right = rows.iter().map(|row| row.depth).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .caption(workload, (FONT, 13).into_font().color(&INK))
        .x_label_area_size(30)
        .y_label_area_size(54)
        .build_cartesian_2d((1.0..f64::from(right).max(2.0)).log_scale().base(2.0), bottom..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_desc("depth")
        .y_desc(measure.label)
        .axis_desc_style(label.clone())
        .label_style(label)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_labels(4)
        .draw()?;
    for (at, policy) in policies.iter().enumerate() {
        let points = rows.iter().filter(|row| row.policy == *policy);
        let points = points.map(|row| (f64::from(row.depth), (measure.of)(row)));
        chart.draw_series(LineSeries::new(points, COLOURS[at % COLOURS.len()].stroke_width(2)))?;
    }
    Ok(())
}

fn draw_bars(area: &Area<'_>, title: &str, bars: &[(usize, f64)], policies: usize) -> Drawn {
    let label = (FONT, 11).into_font().color(&INK);
    let top = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max).max(1e-9) * 1.15;
    let mut chart = ChartBuilder::on(area)
        .margin(6)
        .caption(title, (FONT, 13).into_font().color(&INK))
        .x_label_area_size(10)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..policies.max(1) as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .label_style(label.clone())
        .y_labels(4)
        .draw()?;
    for &(at, value) in bars {
        let x = at as f64;
        let bar = Rectangle::new([(x + 0.15, 0.0), (x + 0.85, value)], COLOURS[at % COLOURS.len()].filled());
        chart.draw_series([bar])?;
        let text = if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        chart.draw_series([Text::new(text, (x + 0.1, value + top * 0.07), label.clone())])?;
    }
    Ok(())
}
