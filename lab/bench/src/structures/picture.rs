//! The picture of `mqfq-lab bench structures`: six panels, one SVG. Above what was timed here, below what was counted.

use super::report::{CountedRow, Row, Structures, TOKENS, VIRTUAL_TIME, WAKE_UP};
use mqfq_report::panel::{self, Along, Panel, Point, Series};

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &Structures) -> Result<String, String> {
    let title = "MQFQ's structures beside their rivals: timed on this machine (above), counted for others (below)";
    panel::render(title, &panels(report))
}

fn panels(report: &Structures) -> [Panel; 6] {
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
    let place = |workers: usize| if workers == 0 { "ideal machine".into() } else { format!("here, {workers} workers") };
    let wake_ups = panel_of("wake-up: median delay", "", "ns", delays, &place);
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
    panel_of(title, places, values, points, &|place| place.to_string())
}

/// A panel of values over a few places, one curve per structure; `text` says what a place is called.
fn panel_of(
    title: &str,
    places: &str,
    values: &str,
    points: Vec<(String, usize, f64)>,
    text: &dyn Fn(usize) -> String,
) -> Panel {
    let mut at: Vec<usize> = points.iter().map(|&(_, place, _)| place).collect();
    at.sort_unstable();
    at.dedup();
    let title = if at.is_empty() { format!("{title}: not measured with one worker") } else { title.into() };
    let points = points.into_iter().map(|(name, place, value)| {
        let x = at.binary_search(&place).expect("every place is in the list") as f64;
        (name, Point { x, y: Some(value), ..Point::default() })
    });
    let series = Series::by_name(points);
    Panel::lines(title, Along::Places(at.iter().map(|&place| text(place)).collect()), places, values).with(series)
}
