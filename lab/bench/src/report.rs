//! Report of `mqfq-lab bench fairness`: the JSON contract, as types. Keys are stable and carry their unit.

use mqfq_demo::report::FormReport;
use mqfq_report::table::{Align, Table, mb_per_s};
use serde::{Deserialize, Serialize};

/// Results of `mqfq-lab bench fairness`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FairnessReport {
    /// One entry per case.
    pub cases: Vec<FairnessCase>,
    /// The device model.
    pub device: String,
    /// `inside` (the load lives in the workers) or `nbd` (real sockets).
    pub transport: String,
    /// Length of each measurement, seconds.
    pub measured_s: f64,
}

/// Two saturating tenants in one setting.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FairnessCase {
    /// Its short name.
    pub case: String,
    /// One sentence about the load.
    pub description: String,
    /// The second tenant's weight over the first's.
    pub expected_ratio: f64,
    /// Largest `deviation` that the project promises for `mqfq`.
    pub tolerance: f64,
    /// One entry per policy, `mqfq` first, `none` beside it.
    pub policies: Vec<FairnessPolicy>,
}

/// One case under one policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FairnessPolicy {
    /// As in the configuration.
    pub policy: String,
    /// D, in tokens; `null` for a policy without one.
    pub depth: Option<u32>,
    /// T, in bytes at the default weight; `null` for a policy without one.
    pub window_bytes: Option<u64>,
    /// The form that it ran in.
    #[serde(flatten)]
    pub form: FormReport,
    /// Both tenants together.
    pub total_bytes_per_s: f64,
    /// The second tenant's bytes over the first's. `null` if the first got nothing.
    pub ratio: Option<f64>,
    /// `|ratio / expected_ratio - 1|`.
    pub deviation: Option<f64>,
    /// The deviation is within the case's tolerance.
    pub within: bool,
    /// Both tenants.
    pub tenants: Vec<FairnessTenant>,
}

/// One tenant of a fairness case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FairnessTenant {
    /// Its name.
    pub name: String,
    /// Its weight, 1..=10000.
    pub weight: u16,
    /// Its bandwidth.
    pub bytes_per_s: f64,
    /// 99th percentile of request to completion.
    pub p99_ns: u64,
}

impl FairnessReport {
    /// One line per case and policy.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("case", Align::Left),
            ("policy", Align::Left),
            ("first MB/s", Align::Right),
            ("second MB/s", Align::Right),
            ("ratio", Align::Right),
            ("expected", Align::Right),
            ("deviation", Align::Right),
            ("allowed", Align::Right),
            ("total MB/s", Align::Right),
        ]);
        for case in &self.cases {
            for (at, policy) in case.policies.iter().enumerate() {
                table.row(vec![
                    if at == 0 { case.case.clone() } else { String::new() },
                    policy.policy.clone(),
                    mb_per_s(policy.tenants[0].bytes_per_s),
                    mb_per_s(policy.tenants[1].bytes_per_s),
                    policy.ratio.map_or("starved".into(), |ratio| format!("{ratio:.3}")),
                    format!("{:.3}", case.expected_ratio),
                    policy.deviation.map_or("-".into(), |deviation| format!("{:.2}%", deviation * 100.0)),
                    format!("{:.0}%", case.tolerance * 100.0),
                    mb_per_s(policy.total_bytes_per_s),
                ]);
            }
        }
        table
    }
}
