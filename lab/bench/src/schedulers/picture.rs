//! The pictures of `bench schedulers`: one figure with a panel per workload and measure, one with the antagonists.

use super::report::{ContendedRow, Row, Study, in_order};
use mqfq_report::panel::{self, Along, Panel, Series};

const FIGURE_PX: (u32, u32) = (330, 230);
const CONTENDED_PX: (u32, u32) = (440, 260);

/// Label and value of a row of panels.
type Measure<R> = (&'static str, fn(&R) -> f64);

const MEASURES: [Measure<Row>; 5] = [
    ("thousand I/Os per s", |row| row.iops / 1e3),
    ("median, us", |row| row.p50_ns as f64 / 1e3),
    ("p99, us", |row| row.p99_ns as f64 / 1e3),
    ("CPU ms per million", |row| row.cpu_ns_per_io),
    ("J per million", |row| row.joules_per_million),
];

const CONTENDED: [Measure<ContendedRow>; 3] = [
    ("slowed, times", |row| row.slowdown),
    ("fair share", |row| row.fair_share),
    ("total, of none's", |row| row.total_over_none),
];

/// Figures 1 to 5 of one device: workloads across, measures down.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn figures(report: &Study, device: &str) -> Result<String, String> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.device == device).collect();
    let workloads = in_order(rows.iter().map(|row| row.workload.as_str()));
    let policies = in_order(rows.iter().map(|row| row.policy.as_str()));
    let panels = MEASURES.iter().flat_map(|(label, value)| {
        let (rows, policies) = (&rows, &policies);
        workloads.iter().map(move |workload| {
            let series = policies.iter().enumerate().map(|(at, policy)| {
                let own = rows.iter().filter(|row| row.workload == *workload && row.policy == *policy);
                Series::new(*policy, at, own.map(|row| (f64::from(row.depth).log2(), value(row))))
            });
            Panel::lines(*workload, Along::Doubling, "depth", label).with(series.collect())
        })
    });
    let how = in_order(rows.iter().map(|row| row.how.as_str())).join(" and ");
    let title = format!("Schedulers on {device}: {how}");
    panel::render_alike(&title, workloads.len(), FIGURE_PX, &panels.collect::<Vec<_>>())
}

/// Each device's modest tenant beside both antagonists: slowdown, 99th percentile, and what is left of the total.
///
/// # Errors
/// As [`figures`].
pub fn contended(report: &Study) -> Result<String, String> {
    let devices = in_order(report.contended.iter().map(|row| row.device.as_str()));
    let policies = in_order(report.contended.iter().map(|row| row.policy.as_str()));
    let antagonists = in_order(report.contended.iter().map(|row| row.antagonist.as_str()));
    let mut panels = Vec::new();
    for device in devices {
        for antagonist in &antagonists {
            for (label, value) in &CONTENDED {
                let own =
                    || report.contended.iter().filter(|row| row.device == device && row.antagonist == *antagonist);
                let series = policies.iter().enumerate().map(|(at, policy)| {
                    Series::new(*policy, at, own().filter(|row| row.policy == *policy).map(|row| (0.0, value(row))))
                });
                let title = format!("{device}, {antagonist}: {label}");
                panels.push(Panel::bars_at(title, vec![String::new()], label).with(series.collect()));
            }
        }
    }
    let title = "A modest tenant beside a greedy one: simulated, instructions counted";
    panel::render_alike(title, CONTENDED.len() * antagonists.len(), CONTENDED_PX, &panels)
}
