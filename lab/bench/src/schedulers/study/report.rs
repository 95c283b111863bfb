//! Results of `mqfq-lab bench schedulers`, as types: the JSON contract. Keys are stable and carry their unit.
//! And the pictures: one figure with a panel per workload and measure, one with the antagonists.

use super::real::Power;
use crate::shell::{OutFiles, Results, Style, or_dash, table, whole};
use mqfq_report::panel::{self, Along, Panel, Series};
use mqfq_report::table::Align::{Left, Right};
use mqfq_report::table::Table;
use serde::{Deserialize, Serialize};

/// Everything.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Study {
    /// One entry per device, workload, depth and policy: Figures 1 to 5.
    pub rows: Vec<Row>,
    /// Table 1: depth 1.
    pub table_1: Vec<Latency>,
    /// A modest tenant beside a greedy one.
    pub contended: Vec<ContendedRow>,
    /// 128 KiB at depth 256 against 512 bytes at depth 1 on 63 tags.
    pub tags: Vec<TagsRow>,
    /// The answers, one per device.
    pub verdicts: Vec<Verdict>,
    /// Time of an instruction, ns; `null` where a clock was read.
    pub ns_per_instruction: Option<f64>,
    /// The model of energy.
    pub power: Power,
    /// Fewer depths and requests.
    pub quick: bool,
}

/// One policy under one workload at one depth.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// A preset's name, or the path of a file.
    pub device: String,
    /// Its name in configs.
    pub policy: String,
    /// `single-read`, `single-write`, `single-mixed`, `multi-read`, `multi-write`, `multi-mixed`, `multi-read-4k-8k`,
    /// `point-lookup`.
    pub workload: String,
    /// Requests in flight, or processes with one each.
    pub depth: u16,
    /// Requests per second of all tenants.
    pub iops: f64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Time of a core per request; simulated: with waiting for locks and for lines of other cores.
    pub cpu_ns_per_io: f64,
    /// Instructions of block layer and policy per request; `null` where a clock was read.
    pub instructions_per_io: Option<f64>,
    /// By the stated model.
    pub joules_per_million: f64,
    /// `simulated, instructions counted`, or `clock`.
    pub how: String,
}

/// One line of Table 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// As in [`Row::device`].
    pub device: String,
    /// Whose path and policy: `mqfq`, this project's; `linux`, what the kernel's path and elevators took in
    /// instructions when they were counted, on the same drive.
    pub path: String,
    /// As in [`Row::policy`].
    pub policy: String,
    /// Median of a 4 KiB read at depth 1.
    pub read_p50_ns: f64,
    /// More than `none`, percent.
    pub read_over_none_percent: f64,
    /// Median of a 4 KiB write at depth 1; `null` where none was made.
    pub write_p50_ns: Option<f64>,
    /// More than `none`, percent.
    pub write_over_none_percent: Option<f64>,
}

/// One policy beside one antagonist.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ContendedRow {
    /// As in [`Row::device`].
    pub device: String,
    /// As in [`Row::policy`].
    pub policy: String,
    /// `crowd` or `bulk`.
    pub antagonist: String,
    /// D; `null` for a policy without one.
    pub depth: Option<u32>,
    /// Bytes that a unit of D stands for; `null`: a request.
    pub token_unit_bytes: Option<u32>,
    /// The modest tenant's bytes per second alone over those beside the antagonist.
    pub slowdown: f64,
    /// Its median latency beside the antagonist.
    pub p50_ns: u64,
    /// Its 99th percentile beside the antagonist.
    pub p99_ns: u64,
    /// Its 99th percentile alone.
    pub alone_p99_ns: u64,
    /// Its service over its due, 0 to 1.
    pub fair_share: f64,
    /// Both together, over both together under `none`.
    pub total_over_none: f64,
}

/// The small tenant of the test of tags.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TagsRow {
    /// As in [`Row::device`].
    pub device: String,
    /// As in [`Row::policy`].
    pub policy: String,
    /// Unit of the policy's D: `requests` (the paper; no matter for a policy without D) or `work`, units of 4 KiB.
    pub form: String,
    /// Requests per second alone.
    pub alone_iops: f64,
    /// Mean latency alone.
    pub alone_mean_ns: f64,
    /// Requests per second beside the large tenant.
    pub iops: f64,
    /// Mean latency beside it.
    pub mean_ns: f64,
    /// `iops` over those under `none`.
    pub over_none: f64,
    /// Bytes per second of the large tenant.
    pub large_bytes_per_s: f64,
}

/// The answer for one device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// As in [`Row::device`].
    pub device: String,
    /// Lowest median at depth 1.
    pub latency: String,
    /// Most requests per second at the largest depth. Policies within 1% tie, and the one that costs less is named.
    pub throughput: String,
    /// Least time of a core per request, over all cells.
    pub cpu: String,
    /// Cells in which `none` costs least, and all cells.
    pub none_is_cheapest_in: [usize; 2],
    /// Fairest beside the antagonists of those that keep 95% of the drive's rate: the worse of its two shares counts;
    /// of those within 15%, one without a lock if there is one, and the one that costs least. `null` where no tenant
    /// competed.
    pub fairness: Option<String>,
    /// D for this drive, in units of 4 KiB; `null` where it was not looked for.
    pub depth: Option<u32>,
    /// Three sentences.
    pub sentences: Vec<String>,
}

/// Microseconds with two decimals below 100, as the paper's Table 1.
pub fn us(ns: f64) -> String {
    if ns < 100_000.0 { format!("{:.2}", ns / 1e3) } else { format!("{:.0}", ns / 1e3) }
}

impl Study {
    /// Names of devices, in the order in which they come.
    pub fn devices(&self) -> Vec<&str> {
        in_order(self.rows.iter().map(|row| row.device.as_str()))
    }

    /// Table 1.
    pub fn table_1(&self, device: &str) -> Table {
        fn percent(line: &Latency, over: f64) -> String {
            if line.policy == "none" { "-".into() } else { format!("{over:.2}%") }
        }
        table(
            self.table_1.iter().filter(|line| line.device == device),
            &[
                ("path", Left, |line: &Latency| line.path.clone()),
                ("scheduler", Left, |line| line.policy.clone()),
                ("read us", Right, |line| us(line.read_p50_ns)),
                ("% diff.", Right, |line| percent(line, line.read_over_none_percent)),
                ("write us", Right, |line| line.write_p50_ns.map_or("-".into(), us)),
                ("% diff.", Right, |line| line.write_over_none_percent.map_or("-".into(), |over| percent(line, over))),
            ],
        )
    }

    /// One figure: a line per workload and depth, a column per policy.
    pub fn figure(&self, device: &str, workloads: &[&str], name: &str, value: &dyn Fn(&Row) -> String) -> Table {
        let rows: Vec<&Row> =
            self.rows.iter().filter(|row| row.device == device && workloads.contains(&row.workload.as_str())).collect();
        let policies = in_order(rows.iter().map(|row| row.policy.as_str()));
        let mut columns = vec![(name, Left), ("depth", Right)];
        columns.extend(policies.iter().map(|&policy| (policy, Right)));
        let mut table = Table::new(&columns);
        let mut lines: Vec<(&str, u16)> = rows.iter().map(|row| (row.workload.as_str(), row.depth)).collect();
        lines.dedup();
        for (workload, depth) in lines {
            let cell = |policy: &&str| {
                let row =
                    rows.iter().find(|row| (row.workload == workload) && row.depth == depth && row.policy == *policy);
                row.map_or("-".into(), |row| value(row))
            };
            let mut cells = vec![workload.to_string(), depth.to_string()];
            cells.extend(policies.iter().map(cell));
            table.row(cells);
        }
        table
    }

    /// A modest tenant beside a greedy one.
    pub fn contended_table(&self, device: &str) -> Table {
        table(
            self.contended.iter().filter(|row| row.device == device),
            &[
                ("antagonist", Left, |row: &ContendedRow| row.antagonist.clone()),
                ("policy", Left, |row| row.policy.clone()),
                ("D", Right, |row| or_dash(row.depth.map(f64::from), 0)),
                ("slowed", Right, |row| format!("{:.2}", row.slowdown)),
                ("p50 us", Right, |row| us(row.p50_ns as f64)),
                ("p99 us", Right, |row| us(row.p99_ns as f64)),
                ("p99 alone", Right, |row| us(row.alone_p99_ns as f64)),
                ("fair share", Right, |row| format!("{:.2}", row.fair_share)),
                ("total / none", Right, |row| format!("{:.3}", row.total_over_none)),
            ],
        )
    }

    /// Large requests against small ones on few tags.
    pub fn tags_table(&self, device: &str) -> Table {
        table(
            self.tags.iter().filter(|row| row.device == device),
            &[
                ("policy", Left, |row: &TagsRow| row.policy.clone()),
                ("D counts", Left, |row| row.form.clone()),
                ("alone I/O/s", Right, |row| whole(row.alone_iops)),
                ("mean us", Right, |row| us(row.alone_mean_ns)),
                ("beside I/O/s", Right, |row| whole(row.iops)),
                ("mean us", Right, |row| us(row.mean_ns)),
                ("/ none", Right, |row| format!("{:.2}", row.over_none)),
                ("large MB/s", Right, |row| whole(row.large_bytes_per_s / 1e6)),
            ],
        )
    }

    /// Table of the winners.
    pub fn verdict_table(&self) -> Table {
        table(
            &self.verdicts,
            &[
                ("device", Left, |verdict: &Verdict| verdict.device.clone()),
                ("latency", Left, |verdict| verdict.latency.clone()),
                ("throughput", Left, |verdict| verdict.throughput.clone()),
                ("CPU", Left, |verdict| verdict.cpu.clone()),
                ("none cheapest in", Left, |verdict| {
                    let [cheapest, cells] = verdict.none_is_cheapest_in;
                    format!("{cheapest} of {cells} cells")
                }),
                ("fairness", Left, |verdict| verdict.fairness.clone().unwrap_or("-".into())),
            ],
        )
    }

    /// All tables of one device, each with its heading.
    fn tables(&self, device: &str) -> Vec<(String, Table)> {
        let single = ["single-read", "single-write", "single-mixed"];
        let multi = ["multi-read", "multi-write", "multi-mixed", "multi-read-4k-8k"];
        let lookup = ["point-lookup"];
        let all: Vec<&str> = single.iter().chain(&multi).chain(&lookup).copied().collect();
        let iops = |row: &Row| format!("{:.1}", row.iops / 1e3);
        let joules = |row: &Row| format!("{:.1}", row.joules_per_million);
        let p50 = |row: &Row| us(row.p50_ns as f64);
        let p99 = |row: &Row| us(row.p99_ns as f64);
        let cpu = |row: &Row| format!("{:.1}", row.cpu_ns_per_io);
        let mut tables = vec![
            ("Table 1: median latency at depth 1".to_string(), self.table_1(device)),
            ("Figure 1: thousand I/Os per second, one tenant".into(), self.figure(device, &single, "workload", &iops)),
            ("Figure 2: thousand I/Os per second, many tenants".into(), self.figure(device, &multi, "workload", &iops)),
            ("Figure 3: joules per million I/Os, one tenant".into(), self.figure(device, &single, "workload", &joules)),
            (
                "Figure 4: joules per million I/Os, many tenants".into(),
                self.figure(device, &multi, "workload", &joules),
            ),
            ("Figure 5a: thousand I/Os per second, look-ups".into(), self.figure(device, &lookup, "workload", &iops)),
            ("Figure 5b: joules per million I/Os, look-ups".into(), self.figure(device, &lookup, "workload", &joules)),
            ("Median latency, us".into(), self.figure(device, &all, "workload", &p50)),
            ("99th percentile, us".into(), self.figure(device, &all, "workload", &p99)),
            // A nanosecond per I/O is a millisecond per million.
            ("CPU time, ms per million I/Os".into(), self.figure(device, &all, "workload", &cpu)),
        ];
        if self.contended.iter().any(|row| row.device == device) {
            tables.push(("A modest tenant beside a greedy one".into(), self.contended_table(device)));
        }
        tables.push(("512 B at depth 1 beside 128 KiB at depth 256 on 63 tags".into(), self.tags_table(device)));
        tables.retain(|(_, table)| table.has_rows());
        tables
    }
}

impl Results for Study {
    const NAME: &'static str = "schedulers";
    const TITLE: &'static str = "Which scheduler for which drive";
    const OUT: OutFiles = OutFiles::All;

    fn head(&self) -> Vec<String> {
        let mut head = Vec::new();
        if let Some(ns) = self.ns_per_instruction {
            head.push(format!("virtual time; each request takes its counted instructions, {ns} ns each"));
        }
        let Power { idle_w, core_w, drive_w } = self.power;
        head.push(format!(
            "energy by a model: {idle_w} W idle, {core_w} W for each busy core, {drive_w} W for the drive at full rate"
        ));
        head
    }

    fn body(&self, style: Style) -> String {
        let headed = |device: &str, (heading, table): (String, Table)| (format!("{device}: {heading}"), table);
        let devices = self.devices().into_iter();
        let all = devices.flat_map(|device| self.tables(device).into_iter().map(move |one| headed(device, one)));
        let tables = style.tables(all);
        let verdicts = style.table(&self.verdict_table());
        let name = |verdict: &Verdict| match style {
            Style::Text => verdict.device.clone(),
            Style::Markdown => format!("**{}**", verdict.device),
        };
        let sentences: String = (self.verdicts.iter())
            .map(|verdict| format!("\n{}: {}\n", name(verdict), verdict.sentences.join(" ")))
            .collect();
        match style {
            Style::Text => format!("{tables}\nWhich scheduler?\n\n{verdicts}{sentences}"),
            // The answers first.
            Style::Markdown => format!("{verdicts}{sentences}\n{tables}"),
        }
    }

    fn pictures(&self, _: &str) -> Result<Vec<(String, String)>, String> {
        let mut pictures = Vec::new();
        for device in self.devices() {
            let of: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
            let name = format!("{}-{}", Self::NAME, of.trim_start_matches('-'));
            pictures.push((name, figures(self, device)?));
        }
        if !self.contended.is_empty() {
            pictures.push((format!("{}-contended", Self::NAME), contended(self)?));
        }
        Ok(pictures)
    }
}

/// Each once, in the order in which they come first.
pub fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

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
