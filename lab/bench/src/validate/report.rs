//! What `bench validate` reports: JSON keys, tables, and the entry of a record.

use super::{RATE_DIFFERENCE_MAX, SHARE_POINTS_MAX, picture};
use crate::machine::Machine;
use crate::shell::{self, Results, Style, place_line};
use mqfq_report::table::{Align, Table, mb_per_s};
use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ValidateReport {
    /// One entry per case of `bench fairness` and policy.
    pub shares: Vec<SharesRow>,
    /// One entry per number of workers, placement, number of flows and policy.
    pub coherence: Vec<CoherenceRow>,
    /// Day, UTC.
    pub date: String,
    /// Where it was measured.
    pub machine: Machine,
    /// The simulator's machine that stands for it.
    pub simulated_machine: String,
    /// Interleaved rounds of the coherence part.
    pub rounds: u32,
    /// Length of each of their measurements, milliseconds.
    pub measured_ms: u64,
    /// Length of each measurement and simulation of shares, milliseconds.
    pub shares_measured_ms: u64,
    /// Workers that shares are measured and simulated with.
    pub shares_workers: usize,
    /// What to know before reading the rows.
    pub notes: Vec<String>,
    /// Where the picture lies, if one was drawn.
    pub svg_path: Option<String>,
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
    /// The same, simulated.
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
    /// The same, simulated.
    pub simulated_kicks_per_request: f64,
    /// Times that picking ended because D were out, per request.
    pub measured_no_token_per_request: f64,
    /// The same, simulated.
    pub simulated_no_token_per_request: f64,
}

/// What a reader must know about these rows.
pub(super) fn notes(report: &ValidateReport, cpus: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let rate = |workers: usize| {
        let is_it = |row: &&CoherenceRow| row.policy == "none" && row.workers == workers && row.placement == "own";
        report.coherence.iter().find(is_it).map(|row| row.measured_requests_per_s)
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
    if report.coherence.iter().any(|row| row.workers > cpus) {
        notes.push(format!("rows of more than {cpus} workers share CPUs, of which this process has {cpus}"));
    }
    notes
}

fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"))
}

impl ValidateReport {
    /// The scenarios whose shares or total are outside what is promised.
    pub fn outside(&self) -> Vec<String> {
        let rows = self.shares.iter().filter(|row| !row.within);
        rows.map(|row| format!("{} under {}", row.scenario, row.policy)).collect()
    }

    fn shares_table(&self) -> Table {
        let mut table = Table::new(&[
            ("scenario", Align::Left),
            ("policy", Align::Left),
            ("tenant", Align::Left),
            ("measured", Align::Right),
            ("simulated", Align::Right),
            ("points", Align::Right),
            ("measured MB/s", Align::Right),
            ("simulated MB/s", Align::Right),
            ("ratio", Align::Right),
            ("", Align::Left),
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
                    first(times(row.ratio)),
                    first(if row.within { "OK" } else { "NOT" }.into()),
                ]);
            }
        }
        table
    }

    fn coherence_table(&self) -> Table {
        let mut table = Table::new(&[
            ("workers", Align::Right),
            ("placement", Align::Left),
            ("flows", Align::Right),
            ("policy", Align::Left),
            ("measured Mreq/s", Align::Right),
            ("smallest", Align::Right),
            ("largest", Align::Right),
            ("simulated", Align::Right),
            ("ratio", Align::Right),
            ("within 15%", Align::Left),
            ("kicks", Align::Right),
            ("simulated", Align::Right),
        ]);
        let millions = |rate: f64| format!("{:.3}", rate / 1e6);
        for row in &self.coherence {
            table.row(vec![
                row.workers.to_string(),
                row.placement.clone(),
                row.flows.to_string(),
                row.policy.clone(),
                millions(row.measured_requests_per_s),
                millions(row.smallest),
                millions(row.largest),
                millions(row.simulated_requests_per_s),
                times(row.ratio),
                if row.within { "yes" } else { "no" }.into(),
                format!("{:.4}", row.measured_kicks_per_request),
                format!("{:.4}", row.simulated_kicks_per_request),
            ]);
        }
        table
    }
}

impl Results for ValidateReport {
    const NAME: &'static str = "validate";
    const TITLE: &'static str = "Simulated beside measured";

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn head(&self) -> Vec<String> {
        let mut head = vec![
            format!("{}; simulated as {}", place_line(&self.date, &self.machine), self.simulated_machine),
            format!(
                "shares: the cases of `mqfq-lab bench fairness`, {} workers, {} ms each; promised are {SHARE_POINTS_MAX} percentage \
                 points of each share and {:.0}% of the total",
                self.shares_workers,
                self.shares_measured_ms,
                100.0 * RATE_DIFFERENCE_MAX
            ),
            format!(
                "requests per second: the null device as in `mqfq-lab bench scale`, {} interleaved rounds of {} ms: median, smallest, \
                 largest; kicks are per request; nothing is promised",
                self.rounds, self.measured_ms
            ),
        ];
        head.extend(shell::notes(&self.notes));
        head
    }

    fn body(&self, style: Style) -> String {
        format!("{}\n{}", style.table(&self.shares_table()), style.table(&self.coherence_table()))
    }

    fn pictures(&self) -> Result<Vec<(String, String)>, String> {
        Ok(vec![("validate".into(), picture::render(self)?)])
    }

    fn drawn(&mut self, paths: Vec<String>) {
        self.svg_path = paths.into_iter().next();
    }

    fn picture_paths(&self) -> Vec<&str> {
        self.svg_path.as_deref().into_iter().collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two scenarios, of which one is outside, and two policies on one and two workers.
    pub(in super::super) fn report() -> ValidateReport {
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
        let mut report = ValidateReport {
            shares: vec![shares("mqfq", 0.5), shares("none", 3.0)],
            coherence: vec![
                coherence("none", 1, 10e6),
                coherence("mqfq", 1, 9e6),
                coherence("none", 2, 15e6),
                coherence("mqfq", 2, 14e6),
            ],
            date: "2026-01-02".into(),
            machine: Machine::this(Some("test"), &[]),
            simulated_machine: "user-space-2".into(),
            rounds: 3,
            measured_ms: 100,
            shares_measured_ms: 1000,
            shares_workers: 2,
            notes: Vec::new(),
            svg_path: None,
        };
        report.notes = notes(&report, 2);
        report
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
}
