//! The picture of `bench validate`: bars in pairs, measured and simulated. First the second tenant's share of each
//! scenario, then requests per second of each policy, one panel per setting.

use super::report::Validation;
use mqfq_report::chart::{BLUE, GREY};
use mqfq_report::panel::{self, Panel, Series};

const PANEL_PX: (u32, u32) = (1260, 300);

/// Names, each with what was measured and what was simulated.
type Pairs = Vec<(String, [f64; 2])>;

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &Validation, host: &str) -> Result<String, String> {
    let title = format!("{host} (grey) and its simulation {} (blue)", report.simulated_machine);
    let panels: Vec<Panel> = std::iter::once(shares(report)).chain(coherence(report)).collect();
    panel::render_alike(&title, 1, PANEL_PX, &panels)
}

fn bars(title: String, unit: &str, pairs: Pairs) -> Panel {
    let series = [("measured", GREY), ("simulated", BLUE)].into_iter().enumerate().map(|(which, (name, colour))| {
        let points = pairs.iter().enumerate().map(|(at, (_, pair))| (at as f64, pair[which]));
        Series { colour, ..Series::new(name, which, points) }
    });
    let series = series.collect();
    Panel::bars_at(title, pairs.into_iter().map(|(name, _)| name).collect(), unit).with(series)
}

fn shares(report: &Validation) -> Panel {
    let pairs = report.shares.iter().filter_map(|row| {
        let second = row.tenants.last()?;
        let shares = [second.measured_share, second.simulated_share].map(|share| 100.0 * share);
        Some((format!("{}, {}", row.scenario, row.policy), shares))
    });
    bars("share of the second tenant".into(), "percent", pairs.collect())
}

fn coherence(report: &Validation) -> Vec<Panel> {
    let mut panels: Vec<(String, Pairs)> = Vec::new();
    for row in &report.coherence {
        let placed = match (row.placement.as_str(), row.flows) {
            ("own", _) => "own flows".into(),
            (_, 1) => "one flow".into(),
            (_, flows) => format!("{flows} flows on all"),
        };
        let title = format!("{} {}, {placed}", row.workers, if row.workers == 1 { "worker" } else { "workers" });
        let rates = [row.measured_requests_per_s, row.simulated_requests_per_s].map(|rate| rate / 1e6);
        match panels.last_mut() {
            Some((last, pairs)) if *last == title => pairs.push((row.policy.clone(), rates)),
            _ => panels.push((title, vec![(row.policy.clone(), rates)])),
        }
    }
    panels.into_iter().map(|(title, pairs)| bars(title, "million requests/s", pairs)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn every_row_has_a_pair_of_bars_and_its_name() {
        let report = report();
        let text = render(&report, "test").unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        let bars = |colour: &str| text.matches(&format!("fill=\"{colour}\"")).count();
        // One of each is the legend's.
        let pairs = report.shares.len() + report.coherence.len() + 1;
        assert_eq!((bars("#0072B2"), bars("#777777")), (pairs, pairs));
        for title in ["share of the second tenant", "1 worker, own flows", "2 workers, own flows", "sizes, none"] {
            assert!(text.contains(title), "{title}");
        }
    }
}
