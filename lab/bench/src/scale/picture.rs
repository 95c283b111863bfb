//! The picture of `bench scale`: requests per second over workers, one panel per placement, one curve per policy with
//! its smallest and largest round.

use super::{Scale, ScaleRow};
use mqfq_report::panel::{self, Along, Panel, Point, Series};

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &Scale, host: &str) -> Result<String, String> {
    panel::render(&format!("Requests per second of the null device on {}", host), &panels(report))
}

/// Panels: each flow on its own worker; one flow on all; as many as given (or as workers) on all. With one worker a
/// flow on all is also as many as workers.
fn panels(report: &Scale) -> Vec<Panel> {
    let panel = |title: &str, is_in: &dyn Fn(&ScaleRow) -> bool| {
        let points = report.rows.iter().filter(|row| is_in(row)).map(|row| {
            let [y, smallest, largest] = [row.requests_per_s, row.smallest, row.largest].map(|rate| rate / 1e6);
            let spread = Some((smallest, largest));
            (row.policy.clone(), Point { x: row.workers as f64, y: Some(y), stated: None, spread })
        });
        Panel::lines(title, Along::Numbers, "workers", "million requests/s").with(Series::by_name(points))
    };
    [
        panel("each flow on a worker of its own", &|row| row.placement == "own"),
        panel("one flow on all workers", &|row| row.placement == "all" && row.flows == 1),
        panel("every flow on all workers", &|row| row.placement == "all" && (row.flows > 1 || row.workers == 1)),
    ]
    .into_iter()
    .filter(|panel| !panel.series.is_empty())
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;
    use crate::contender::{MQFQ, NONE};

    #[test]
    fn every_panel_has_its_units_and_every_policy_a_curve() {
        let report = report(&[(NONE, 1, &[1000.0]), (MQFQ, 1, &[800.0]), (NONE, 2, &[2000.0]), (MQFQ, 2, &[1500.0])]);
        let text = render(&report, "test").unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        // One worker belongs to both kinds of sharing, so there are two panels.
        assert_eq!(text.matches("million requests/s").count(), 2);
        assert_eq!(text.matches("\nmqfq\n").count(), 2, "{text}");
    }
}
