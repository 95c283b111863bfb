//! What `mqfq-lab bench d2fq` found: the JSON contract, the tables, and what is asked of it.

use super::count::{CostRow, LoneRow};
use super::figures::{FigureClaim, FigureRow, Figures};
use super::iops::IopsRow;
use crate::machine::Machine;
use crate::shell::{self, OutFiles, Results, Style, place_line};
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct D2fqReport {
    /// By the paper's number: `5` to `8`, `11a` to `11c`, and so on to `19`.
    pub figures: BTreeMap<String, Vec<FigureRow>>,
    /// What must hold of the figures.
    pub claims: Vec<FigureClaim>,
    /// Instructions of a request, eight busy tenants.
    pub cost: Vec<CostRow>,
    /// A lone tenant by depth, virtual time.
    pub lone: Vec<LoneRow>,
    /// By the clock.
    pub iops: Vec<IopsRow>,
    /// What is asked of all this, and whether it is so.
    pub verdicts: Vec<Verdict>,
    /// What an instruction takes in `lone`.
    pub ns_per_instruction: f64,
    /// Fewer points and depths, shorter times.
    pub quick: bool,
    /// Day, UTC.
    pub date: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// What is missing, and why.
    pub notes: Vec<String>,
    /// Where the pictures lie, if they were drawn.
    pub svg_paths: Vec<String>,
    /// The pictures, by name.
    #[serde(skip)]
    pub pictures: Vec<(String, String)>,
}

/// One thing that is asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// One sentence.
    pub asked: String,
    /// What was found.
    pub value: f64,
    /// Smallest that is good.
    pub at_least: Option<f64>,
    /// Largest that is good.
    pub at_most: Option<f64>,
    /// It is so.
    pub held: bool,
}

impl Verdict {
    fn at_most(asked: impl Into<String>, value: f64, limit: f64) -> Verdict {
        Verdict { asked: asked.into(), value, at_least: None, at_most: Some(limit), held: value <= limit }
    }

    fn at_least(asked: impl Into<String>, value: f64, limit: f64) -> Verdict {
        Verdict { asked: asked.into(), value, at_least: Some(limit), at_most: None, held: value >= limit }
    }
}

/// What is asked, of whatever was measured.
pub fn verdicts(figures: &Figures, cost: &[CostRow], lone: &[LoneRow], iops: &[IopsRow]) -> Vec<Verdict> {
    let mut all = Vec::new();
    let instructions = |stack: &str| cost.iter().find(|row| row.stack == stack).map(|row| row.instructions_per_request);
    if let [Some(none), Some(d2fq), Some(mqfq)] = ["none", "d2fq", "mqfq"].map(instructions) {
        all.push(Verdict::at_most("instructions per request of d2fq over none", d2fq / none, 1.1));
        // None's are what a request takes when nobody schedules.
        let fewer = 1.0 - (d2fq - none).max(0.0) / (mqfq - none);
        all.push(Verdict::at_least("part of mqfq's scheduling instructions that d2fq saves", fewer, 0.45));
    }
    for row in iops.iter().filter(|row| row.stack == "d2fq") {
        let asked = format!("IOPS of d2fq over none, device {}, workers {}", row.device, row.workers);
        all.push(Verdict::at_least(asked, row.over_none, 0.97));
    }
    let low_latency = || lone.iter().filter(|row| row.stack == "ll-d2fq");
    if low_latency().next().is_some() {
        let least = low_latency().map(|row| row.bandwidth_over_none).fold(f64::INFINITY, f64::min);
        let most = low_latency().map(|row| row.latency_over_none).fold(0.0, f64::max);
        all.push(Verdict::at_least(
            "bandwidth of a lone tenant on ll-d2fq over none, the worst of all depths",
            least,
            1.0,
        ));
        all.push(Verdict::at_most(
            "mean latency of a lone tenant on ll-d2fq over none, the worst of all depths",
            most,
            1.0,
        ));
    }
    for figure in ["11a", "11b", "11c"] {
        let own = figures.bandwidths().filter(|(name, row)| *name == figure && row.policy == "d2fq");
        let off = own.map(|(_, row)| (row.bytes_per_s / row.ideal_bytes_per_s - 1.0).abs());
        if let Some(most) = off.reduce(f64::max) {
            all.push(Verdict::at_most(
                format!("Figure {figure}: how far a tenant is from its ideal under d2fq"),
                most,
                0.03,
            ));
        }
    }
    all
}

impl D2fqReport {
    fn cost_table(&self) -> Table {
        let mut table = Table::new(&[
            ("stack", Align::Left),
            ("to the device", Align::Right),
            ("back", Align::Right),
            ("instructions", Align::Right),
            ("/ none", Align::Right),
        ]);
        for row in &self.cost {
            table.row(vec![
                row.stack.clone(),
                format!("{:.0}", row.to_device_instructions),
                format!("{:.0}", row.back_instructions),
                format!("{:.0}", row.instructions_per_request),
                format!("{:.2}", row.over_none),
            ]);
        }
        table
    }

    fn lone_table(&self) -> Table {
        let columns = ["depth", "instructions", "mean us", "p99 us", "MB/s", "bandwidth / none", "latency / none"];
        let columns: Vec<_> =
            [("stack", Align::Left)].into_iter().chain(columns.map(|name| (name, Align::Right))).collect();
        let mut table = Table::new(&columns);
        for row in &self.lone {
            table.row(vec![
                row.stack.clone(),
                row.depth.to_string(),
                format!("{:.0}", row.instructions_per_request),
                format!("{:.2}", row.mean_ns / 1e3),
                format!("{:.2}", row.p99_ns as f64 / 1e3),
                format!("{:.1}", row.bytes_per_s / 1e6),
                format!("{:.4}", row.bandwidth_over_none),
                format!("{:.4}", row.latency_over_none),
            ]);
        }
        table
    }

    fn iops_table(&self) -> Table {
        let mut table = Table::new(&[
            ("device", Align::Left),
            ("workers", Align::Right),
            ("stack", Align::Left),
            ("M IOPS", Align::Right),
            ("smallest", Align::Right),
            ("largest", Align::Right),
            ("/ none", Align::Right),
        ]);
        for row in &self.iops {
            let millions = |rate: f64| format!("{:.3}", rate / 1e6);
            table.row(vec![
                row.device.clone(),
                row.workers.to_string(),
                row.stack.clone(),
                millions(row.requests_per_s),
                millions(row.smallest),
                millions(row.largest),
                format!("{:.3}", row.over_none),
            ]);
        }
        table
    }

    fn bandwidth_table(&self) -> Table {
        let mut table = Table::new(&[
            ("figure", Align::Left),
            ("policy", Align::Left),
            ("tenant", Align::Left),
            ("weight", Align::Right),
            ("MB/s", Align::Right),
            ("ideal MB/s", Align::Right),
            ("off", Align::Right),
        ]);
        for (figure, rows) in &self.figures {
            for row in rows {
                let FigureRow::Bandwidth(row) = row else { continue };
                table.row(vec![
                    figure.clone(),
                    row.policy.clone(),
                    row.tenant.clone(),
                    row.weight.to_string(),
                    format!("{:.0}", row.bytes_per_s / 1e6),
                    format!("{:.0}", row.ideal_bytes_per_s / 1e6),
                    format!("{:+.1}%", (row.bytes_per_s / row.ideal_bytes_per_s - 1.0) * 100.0),
                ]);
            }
        }
        table
    }

    fn claim_table(&self) -> Table {
        let mut table =
            Table::new(&[("figure", Align::Left), ("found", Align::Right), ("", Align::Left), ("claim", Align::Left)]);
        for claim in &self.claims {
            let value = claim.value.map_or("-".into(), |value| format!("{value:.3}"));
            let verdict = match (claim.held, claim.as_expected) {
                (true, _) => "holds",
                (false, true) => "does not hold, as its file says",
                (false, false) => "DOES NOT HOLD",
            };
            table.row(vec![claim.figure.clone(), value, verdict.into(), claim.claim.clone()]);
        }
        table
    }

    fn verdict_table(&self) -> Table {
        let mut table =
            Table::new(&[("asked", Align::Left), ("found", Align::Right), ("limit", Align::Left), ("", Align::Left)]);
        for verdict in &self.verdicts {
            let limit = match (verdict.at_least, verdict.at_most) {
                (Some(least), _) => format!("at least {least}"),
                (None, Some(most)) => format!("at most {most}"),
                (None, None) => String::new(),
            };
            let held = if verdict.held { "yes" } else { "NO" };
            table.row(vec![verdict.asked.clone(), format!("{:.3}", verdict.value), limit, held.into()]);
        }
        table
    }

    fn sections(&self) -> [(&'static str, Table); 6] {
        [
            ("What is asked", self.verdict_table()),
            ("Bandwidth by weight", self.bandwidth_table()),
            ("Claims of the figures", self.claim_table()),
            ("Instructions per request, eight tenants of depth 32", self.cost_table()),
            ("A lone tenant, 8 KiB reads (Figure 16)", self.lone_table()),
            ("IOPS by the clock, 128 reads of 512 B in flight per worker", self.iops_table()),
        ]
    }
}

impl Results for D2fqReport {
    const NAME: &'static str = "d2fq";
    const TITLE: &'static str = "Fair queueing by the device";
    const OUT: OutFiles = OutFiles::All;

    fn place(&self) -> (&Machine, &str) {
        (&self.machine, &self.date)
    }

    fn head(&self) -> Vec<String> {
        let mut head = vec![
            place_line(&self.date, &self.machine),
            "figures, instructions and the lone tenant are the same on every machine; IOPS are this one's".into(),
            format!("the lone tenant's instructions take {} ns each", self.ns_per_instruction),
        ];
        if self.quick {
            head.push("quick: fewer points and shorter times".into());
        }
        head.extend(shell::notes(&self.notes));
        head
    }

    fn body(&self, style: Style) -> String {
        style.tables(self.sections().map(|(title, table)| (title.to_string(), table)))
    }

    fn pictures(&self) -> Result<Vec<(String, String)>, String> {
        Ok(self.pictures.clone())
    }

    fn drawn(&mut self, paths: Vec<String>) {
        self.svg_paths = paths;
    }

    fn picture_paths(&self) -> Vec<&str> {
        self.svg_paths.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(stack: &str, instructions_per_request: f64) -> CostRow {
        CostRow {
            stack: stack.into(),
            to_device_instructions: 0.0,
            back_instructions: instructions_per_request,
            instructions_per_request,
            over_none: 1.0,
        }
    }

    #[test]
    fn what_is_asked_is_held_against_what_was_found() {
        let rows = [cost("none", 1000.0), cost("d2fq", 1090.0), cost("mqfq", 1200.0)];
        let found = verdicts(&Figures::default(), &rows, &[], &[]);
        // 1.09 of none; 110 of mqfq's 200 instructions saved.
        let values: Vec<(f64, bool)> = found.iter().map(|verdict| (verdict.value, verdict.held)).collect();
        assert_eq!(values.len(), 2);
        assert!((values[0].0 - 1.09).abs() < 1e-9 && values[0].1);
        assert!((values[1].0 - 0.55).abs() < 1e-9 && values[1].1);
        let dear = [cost("none", 1000.0), cost("d2fq", 1150.0), cost("mqfq", 1200.0)];
        let held: Vec<bool> =
            verdicts(&Figures::default(), &dear, &[], &[]).iter().map(|verdict| verdict.held).collect();
        assert_eq!(held, [false, false], "15% more, and only a quarter saved");
        let none = verdicts(&Figures::default(), &[], &[], &[]);
        assert!(none.is_empty(), "nothing is said of what was not measured");
    }

    #[test]
    fn iops_are_asked_of_d2fq_on_each_device_and_number_of_workers() {
        let row = |stack: &str, workers, over_none| IopsRow {
            device: "null".into(),
            workers,
            stack: stack.into(),
            requests_per_s: 1e6,
            smallest: 1e6,
            largest: 1e6,
            over_none,
        };
        let rows = [row("none", 1, 1.0), row("d2fq", 1, 0.98), row("d2fq", 2, 0.9), row("mqfq", 1, 0.5)];
        let found = verdicts(&Figures::default(), &[], &[], &rows);
        assert_eq!(found.iter().map(|verdict| verdict.held).collect::<Vec<_>>(), [true, false]);
    }
}
