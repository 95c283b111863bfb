//! The picture of `mqfq-lab bench structures`: six panels, one SVG. Above what was timed here, below what was counted.

use super::report::{CountedRow, Row, StructuresReport, TOKENS, VIRTUAL_TIME, WAKE_UP};
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE_PX: (u32, u32) = (1320, 800);
const TITLE_PX: u32 = 40;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Blue for ours, then vermilion and green for its rivals, of Okabe and Ito's palette: told apart by every eye.
const COLOURS: [RGBColor; 3] = [RGBColor(0x00, 0x72, 0xb2), RGBColor(0xd5, 0x5e, 0x00), RGBColor(0x00, 0x9e, 0x73)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A panel: values over a few labelled places, one line per structure.
struct Panel {
    title: String,
    places: String,
    values: String,
    labels: Vec<String>,
    series: Vec<(String, Vec<(usize, f64)>)>,
}

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &StructuresReport) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE_PX).into_drawing_area();
        draw(&root, report).map_err(|error| format!("cannot draw the picture: {error}"))?;
        root.present().map_err(|error| format!("cannot draw the picture: {error}"))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, report: &StructuresReport) -> Drawn {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TITLE_PX);
    let title = "MQFQ's structures beside their rivals: timed on this machine (above), counted for others (below)";
    head.draw(&Text::new(title, (14, 12), (FONT, 18).into_font().color(&INK)))?;
    for (area, panel) in body.split_evenly((2, 3)).iter().zip(panels(report)) {
        draw_panel(area, &panel)?;
    }
    Ok(())
}

fn panels(report: &StructuresReport) -> [Panel; 6] {
    let most = report.placement.len();
    let timed = |title: &str, places: &str, keep: &dyn Fn(&Row) -> bool, place: &dyn Fn(&Row) -> usize| {
        let rows = report.rows.iter().filter(|row| keep(row));
        let points = rows.map(|row| (name(&row.structure, &row.form), place(row), row.ns_per_operation));
        panel(title, places, "ns per operation of a worker", points.collect())
    };
    let counted = |title: &str, keep: &dyn Fn(&CountedRow) -> bool| {
        let rows = report.counted_rows.iter().filter(|row| keep(row));
        let points =
            rows.map(|row| (name(&row.structure, &row.form), row.workers, row.counted.line_transfers_per_operation));
        panel(title, "workers", "line transfers per operation", points.collect())
    };
    let is = |row: &Row, pattern: &str| row.pattern.as_deref() == Some(pattern);
    let delays = report.rows.iter().filter(|row| row.workers == most).filter_map(|row| {
        let delay_ns = row.wake_up.as_ref()?.wake_up_delay_p50_ns?;
        Some((row.structure.clone(), row.workers, delay_ns as f64))
    });
    let delays: Vec<_> = delays
        .chain(report.counted_rows.iter().filter_map(|row| {
            let ideal = row.ideal.as_ref().filter(|_| row.workers == 2)?;
            Some((row.structure.clone(), 0, ideal.ideal_delay_p50_ns as f64))
        }))
        .collect();
    let mut wake_ups = panel("wake-up: median delay", "", "ns", delays);
    wake_ups.labels.iter_mut().for_each(|label| {
        *label = if label == "0" { "ideal machine".into() } else { format!("here, {label} workers") };
    });
    [
        timed(
            &format!("global virtual time, {most} workers"),
            "queues",
            &|row| row.stands_for == VIRTUAL_TIME && row.workers == most,
            &|row| row.queues,
        ),
        timed("dispatch tokens, handed on", "workers", &|row| is(row, "handed-on"), &|row| row.workers),
        wake_ups,
        counted("global virtual time, one queue per worker", &|row| row.stands_for == VIRTUAL_TIME),
        counted("dispatch tokens, kept", &|row| row.stands_for == TOKENS && row.pattern.as_deref() == Some("kept")),
        counted("wake-up: per dispatch of the mover", &|row| row.stands_for == WAKE_UP),
    ]
}

fn name(structure: &str, form: &Option<String>) -> String {
    match form.as_deref() {
        None | Some("faithful") => structure.into(),
        Some(form) => format!("{structure}, {form}"),
    }
}

fn panel(title: &str, places: &str, values: &str, points: Vec<(String, usize, f64)>) -> Panel {
    let mut at: Vec<usize> = points.iter().map(|&(_, place, _)| place).collect();
    at.sort_unstable();
    at.dedup();
    let mut series: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for (name, place, value) in points {
        let index = at.binary_search(&place).expect("every place is in the list");
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((index, value)),
            None => series.push((name, vec![(index, value)])),
        }
    }
    series.iter_mut().for_each(|(_, points)| points.sort_by_key(|&(index, _)| index));
    let labels = at.iter().map(usize::to_string).collect();
    Panel { title: title.into(), places: places.into(), values: values.into(), labels, series }
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Drawn {
    let values = || panel.series.iter().flat_map(|(_, points)| points.iter().map(|&(_, value)| value));
    // Room above the curves for the legend.
    let top = values().fold(0.0, f64::max) * if panel.series.len() > COLOURS.len() { 1.6 } else { 1.35 };
    if top == 0.0 && values().count() == 0 {
        let text = format!("{}: not measured with one worker", panel.title);
        area.draw(&Text::new(text, (14, 14), (FONT, 14).into_font().color(&INK)))?;
        return Ok(());
    }
    let right = panel.labels.len() as f64 - 0.5;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .caption(&panel.title, (FONT, 15).into_font().color(&INK))
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.5..right, 0.0..top.max(1.0))?;
    let label = (FONT, 12).into_font().color(&INK);
    let at_places = |x: &f64| match panel.labels.get(x.round() as usize) {
        Some(label) if (x - x.round()).abs() < 1e-6 && *x > -0.5 => label.clone(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.5))
        .x_desc(&panel.places)
        .y_desc(&panel.values)
        .axis_desc_style(label.clone())
        .label_style(label.clone())
        .x_labels(2 * panel.labels.len() + 1)
        .y_labels(5)
        .x_label_formatter(&at_places)
        .y_label_formatter(&|y| if top < 10.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .draw()?;
    for (number, (name, points)) in panel.series.iter().enumerate() {
        // The relaxed forms come after the faithful ones, in the same order.
        let colour = COLOURS[number % COLOURS.len()].mix(if number < COLOURS.len() { 1.0 } else { 0.4 });
        let points: Vec<(f64, f64)> = points.iter().map(|&(index, value)| (index as f64, value)).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
        // A legend of our own, inside the panel: top left, one line per structure.
        let at = (78, 34 + 16 * number as i32);
        area.draw(&Circle::new((at.0, at.1 + 6), 4, colour.filled()))?;
        area.draw(&Text::new(name.clone(), (at.0 + 10, at.1), label.clone()))?;
    }
    Ok(())
}
