//! Report of `bench validate`: JSON keys, tables, and the entry of a record. Its picture has bars in pairs, measured
//! and simulated: the second tenant's share of each scenario, then requests per second of each policy.

use super::{RATE_DIFFERENCE_MAX, SHARE_POINTS_MAX};
use crate::shell::{Results, Style, millions, or_dash, table};
use mqfq_report::chart::{BLUE, GREY};
use mqfq_report::panel::{self, Panel, Series};
use mqfq_report::table::Align::{Left, Right};
use mqfq_report::table::{Table, mb_per_s};
use serde::{Deserialize, Serialize};

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Validation {
    /// One entry per case of `bench fairness` and policy.
    pub shares: Vec<SharesRow>,
    /// One entry per number of workers, placement, number of flows and policy.
    pub coherence: Vec<CoherenceRow>,
    /// The simulator's machine that stands for it.
    pub simulated_machine: String,
    /// Length of each measurement and simulation of shares, milliseconds.
    pub shares_measured_ms: u64,
    /// Workers that shares are measured and simulated with.
    pub shares_workers: usize,
}

/// One case of `bench fairness` under one policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SharesRow {
    /// The case's name.
    pub scenario: String,
    /// As in the configuration.
    pub policy: String,
    /// Both tenants.
    pub tenants: Vec<SharesTenant>,
    /// Both tenants together, measured.
    pub measured_bytes_per_s: f64,
    /// Both tenants together, simulated.
    pub simulated_bytes_per_s: f64,
    /// Simulated over measured; `null` if nothing was served.
    pub ratio: Option<f64>,
    /// Each share and the total are as near as is promised.
    pub within: bool,
}

/// One tenant's part of the bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SharesTenant {
    /// Its name.
    pub name: String,
    /// Its weight, 1..=10000.
    pub weight: u16,
    /// 0..=1.
    pub measured_share: f64,
    /// 0..=1.
    pub simulated_share: f64,
    /// Simulated less measured, percentage points.
    pub difference_points: f64,
}

/// One policy on so many workers, on the null device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CoherenceRow {
    /// Its name in configs, or that of one of its forms.
    pub policy: String,
    /// As in `bench scale`.
    pub form: String,
    /// Workers, each on a core of its own.
    pub workers: usize,
    /// `own`: each flow on one worker; `all`: each flow on every worker.
    pub placement: String,
    /// Flows in all.
    pub flows: u32,
    /// All workers together, median of the rounds.
    pub measured_requests_per_s: f64,
    /// Smallest of the rounds.
    pub smallest: f64,
    /// Largest of the rounds.
    pub largest: f64,
    /// All workers together, in virtual time.
    pub simulated_requests_per_s: f64,
    /// Simulated over measured; `null` if nothing was served.
    pub ratio: Option<f64>,
    /// The rates differ by at most 15% of what was measured.
    pub within: bool,
    /// Kicks that the policy made, per request.
    pub measured_kicks_per_request: f64,
    /// Kicks, simulated.
    pub simulated_kicks_per_request: f64,
    /// Times that picking ended because D were out, per request.
    pub measured_no_token_per_request: f64,
    /// Picks without a token, simulated.
    pub simulated_no_token_per_request: f64,
}

/// Notes for the reader.
pub(super) fn notes(rows: &[CoherenceRow]) -> Vec<String> {
    let mut notes = Vec::new();
    let rate = |workers: usize| {
        let is_it = |row: &&CoherenceRow| row.policy == "none" && row.workers == workers && row.placement == "own";
        rows.iter().find(is_it).map(|row| row.measured_requests_per_s)
    };
    if let (Some(one), Some(two)) = (rate(1), rate(2))
        && two < 1.8 * one
    {
        notes.push(format!(
            "none shares nothing, yet 2 workers did only {:.2} times what one did: the cores were not all ours, and no other row of \
             several workers can be compared",
            two / one
        ));
    }
    notes
}

fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

impl Validation {
    /// The scenarios whose shares or total are outside what is promised.
    pub fn outside(&self) -> Vec<String> {
        let rows = self.shares.iter().filter(|row| !row.within);
        rows.map(|row| format!("{} under {}", row.scenario, row.policy)).collect()
    }

    fn shares_table(&self) -> Table {
        let mut table = Table::new(&[
            ("scenario", Left),
            ("policy", Left),
            ("tenant", Left),
            ("measured", Right),
            ("simulated", Right),
            ("points", Right),
            ("measured MB/s", Right),
            ("simulated MB/s", Right),
            ("ratio", Right),
            ("", Left),
        ]);
        for row in &self.shares {
            for (at, tenant) in row.tenants.iter().enumerate() {
                let first = |text: String| if at == 0 { text } else { String::new() };
                table.row(vec![
                    first(row.scenario.clone()),
                    first(row.policy.clone()),
                    tenant.name.clone(),
                    percent(tenant.measured_share),
                    percent(tenant.simulated_share),
                    format!("{:+.2}", tenant.difference_points),
                    first(mb_per_s(row.measured_bytes_per_s)),
                    first(mb_per_s(row.simulated_bytes_per_s)),
                    first(or_dash(row.ratio, 3)),
                    first(if row.within { "OK" } else { "NOT" }.into()),
                ]);
            }
        }
        table
    }

    fn coherence_table(&self) -> Table {
        table(
            &self.coherence,
            &[
                ("workers", Right, |row: &CoherenceRow| row.workers.to_string()),
                ("placement", Left, |row| row.placement.clone()),
                ("flows", Right, |row| row.flows.to_string()),
                ("policy", Left, |row| row.policy.clone()),
                ("measured Mreq/s", Right, |row| millions(row.measured_requests_per_s)),
                ("smallest", Right, |row| millions(row.smallest)),
                ("largest", Right, |row| millions(row.largest)),
                ("simulated", Right, |row| millions(row.simulated_requests_per_s)),
                ("ratio", Right, |row| or_dash(row.ratio, 3)),
                ("within 15%", Left, |row| if row.within { "yes" } else { "no" }.into()),
                ("kicks", Right, |row| format!("{:.4}", row.measured_kicks_per_request)),
                ("simulated", Right, |row| format!("{:.4}", row.simulated_kicks_per_request)),
            ],
        )
    }
}

impl Results for Validation {
    const NAME: &'static str = "validate";
    const TITLE: &'static str = "Simulated beside measured";

    fn head(&self) -> Vec<String> {
        vec![
            format!("simulated as {}", self.simulated_machine),
            format!(
                "shares: the cases of `mqfq-lab bench fairness`, {} workers, {} ms each; promised are {SHARE_POINTS_MAX} percentage \
                 points of each share and {:.0}% of the total",
                self.shares_workers,
                self.shares_measured_ms,
                100.0 * RATE_DIFFERENCE_MAX
            ),
            "requests per second: the null device as in `mqfq-lab bench scale`; kicks are per request; nothing is promised"
                .into(),
        ]
    }

    fn body(&self, style: Style) -> String {
        format!("{}\n{}", style.table(&self.shares_table()), style.table(&self.coherence_table()))
    }

    fn pictures(&self, host: &str) -> Result<Vec<(String, String)>, String> {
        Ok(vec![("validate".into(), render(self, host)?)])
    }
}

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
pub(super) mod tests {
    use super::*;
    use crate::options::defaults;
    use crate::shell::Record;
    use crate::validate::ValidateOptions;

    /// Two scenarios, of which one is outside, and two policies on one and two workers.
    pub(in super::super) fn report() -> Record<Validation> {
        let tenant = |name: &str, measured_share: f64, points: f64| SharesTenant {
            name: name.into(),
            weight: 100,
            measured_share,
            simulated_share: measured_share + points / 100.0,
            difference_points: points,
        };
        let shares = |policy: &str, points: f64| SharesRow {
            scenario: "sizes".into(),
            policy: policy.into(),
            tenants: vec![tenant("small", 0.5, -points), tenant("large", 0.5, points)],
            measured_bytes_per_s: 200e6,
            simulated_bytes_per_s: 210e6,
            ratio: Some(1.05),
            within: points.abs() <= SHARE_POINTS_MAX,
        };
        let coherence = |policy: &str, workers: usize, rate: f64| CoherenceRow {
            policy: policy.into(),
            form: "relaxed".into(),
            workers,
            placement: "own".into(),
            flows: workers as u32,
            measured_requests_per_s: rate,
            smallest: rate,
            largest: rate,
            simulated_requests_per_s: rate * 1.2,
            ratio: Some(1.2),
            within: false,
            measured_kicks_per_request: 0.5,
            simulated_kicks_per_request: 0.25,
            measured_no_token_per_request: 0.0,
            simulated_no_token_per_request: 0.0,
        };
        let results = Validation {
            shares: vec![shares("mqfq", 0.5), shares("none", 3.0)],
            coherence: vec![
                coherence("none", 1, 10e6),
                coherence("mqfq", 1, 9e6),
                coherence("none", 2, 15e6),
                coherence("mqfq", 2, 14e6),
            ],
            simulated_machine: "user-space-2".into(),
            shares_measured_ms: 1000,
            shares_workers: 2,
        };
        let notes = notes(&results.coherence);
        Record { notes, ..Record::new(results, &defaults::<ValidateOptions>().runs, &[]) }
    }

    #[test]
    fn what_is_outside_is_named_and_a_busy_machine_noticed() {
        let report = report();
        assert_eq!(report.outside(), ["sizes under none"]);
        assert!(report.notes[0].contains("2 workers did only 1.50 times"), "{:?}", report.notes);
        let text = report.text();
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().trim_end();
        assert!(line(" small ").ends_with("OK") && line(" small ").contains("-0.50"), "{text}");
        assert!(report.markdown().contains("* note: none shares nothing"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["shares"][1]["within"], &json["coherence"][3]["workers"]), (&false.into(), &2.into()));
    }

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
