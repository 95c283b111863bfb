//! The picture of `bench blkmq`: a panel for each of the paper's figures, a curve for each series.

use super::{BlkmqReport, BlkmqRow};
use mqfq_report::panel::{self, Along, Panel, Point, Series};

/// What is drawn of a row, in the unit of its axis.
type Value = fn(&BlkmqRow) -> f64;

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &BlkmqReport) -> Result<String, String> {
    let panel = |figure: u32, title: &str, unit: &str, value: Value| {
        let points = report.rows.iter().filter(|row| row.figure == figure).map(|row| {
            let name = match row.layer.as_str() {
                "mq" => format!("mq, hardware {}", row.hardware_queues),
                layer => layer.to_string(),
            };
            (name, Point { x: row.workers as f64, y: Some(value(row)), ..Point::default() })
        });
        Panel::lines(title, Along::Numbers, "workers", unit).with(Series::by_name(points))
    };
    let millions: Value = |row| row.iops / 1e6;
    let panels = [
        panel(6, "Figure 6: throughput, 32 in flight per worker", "million IOPS", millions),
        panel(7, "Figure 7: mean latency, 1 in flight per worker", "ns", |row| row.mean_ns),
        panel(9, "Figure 9: a single software queue", "million IOPS", millions),
        panel(10, "Figure 10: a software queue per core", "million IOPS", millions),
    ];
    panel::render(&format!("SQ, MQ and Raw on the null device of {}", report.machine.host), &panels)
}
