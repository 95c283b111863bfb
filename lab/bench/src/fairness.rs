//! `mqfq-lab bench fairness`: service of two tenants that both want everything.
//!
//! # What it shows
//! Under `mqfq` each tenant's part of a saturated drive follows its weight, whatever the size of its requests and the
//! number of its queues; under `none`, beside it, large requests and many queues take the drive. Five cases on the
//! software drive `flash-60k`, ten seconds each.
//!
//! # What it measures
//! `ratio` is the second tenant's bytes over the first's, `deviation` is `|ratio / expected - 1|`: stricter than
//! comparing shares. The promise is 2% for equal weights and 3% for others. If a promise is broken, the command prints
//! everything and then fails.
//!
//! # What would make it lie
//! Both tenants must be backlogged on every worker where they run, all the time: their depths are far above D, which is
//! found, as are T and parts: nothing is set but the weights. Without
//! sockets (the default) nothing but the block layer runs; `--nbd` sends the same load through real sockets, where a
//! machine that cannot carry the drive's rate leaves tenants not backlogged, and shares then say nothing.

use crate::shell;
use mqfq_blk::{PolicyKind, Weight};
use mqfq_demo::harness::{self, Rig, RigOptions, Tenant, Transport};
use mqfq_demo::load::{Load, Window};
use mqfq_demo::report::FormReport;
use mqfq_demo::{drive, phases};
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table, mb_per_s};
use serde::{Deserialize, Serialize};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct FairnessOptions {
    /// Through real NBD sockets instead of inside the workers.
    #[arg(long)]
    pub nbd: bool,
    /// Length of each measurement.
    #[arg(long = "seconds", value_name = "SECONDS", default_value = "10", value_parser = crate::options::seconds())]
    pub measured_ms: u64,
}

/// Time for queues to fill before anything is counted.
pub const WARM_UP_MS: u64 = 300;

/// The policies that are compared.
pub const POLICIES: [PolicyKind; 2] = [PolicyKind::Mqfq, PolicyKind::None];

/// Two saturating tenants and what `mqfq` promises them.
pub struct Case {
    /// Short name.
    pub name: &'static str,
    /// One sentence.
    pub description: &'static str,
    /// The tenants; the promise is about the second's bytes over the first's.
    pub tenants: [Tenant; 2],
    /// Largest deviation promised.
    pub tolerance: f64,
}

impl Case {
    /// The second tenant's weight over the first's.
    pub fn expected_ratio(&self) -> f64 {
        f64::from(self.tenants[1].weight.get()) / f64::from(self.tenants[0].weight.get())
    }
}

const KIB: u32 = 1024;

/// The five cases.
///
/// # Panics
/// Never: the weights are constants in range.
pub fn cases() -> [Case; 5] {
    let tenant = |name, weight, load: Load| Tenant {
        name,
        weight: Weight::new(weight).expect("a constant between 1 and 10000"),
        load,
    };
    let second = |load: Load| Load { seed: 2, ..load };
    // Depths of 256 in all per tenant, far above what D is found to be, so that both stay backlogged on every worker.
    let four_queues = Load::random_reads(4, 64, 4 * KIB);
    [
        Case {
            name: "sizes",
            description: "equal weights, 4 KiB against 64 KiB requests",
            tenants: [
                tenant("small", 100, four_queues),
                tenant("large", 100, second(Load::random_reads(4, 64, 64 * KIB))),
            ],
            tolerance: 0.02,
        },
        Case {
            name: "queues",
            description: "equal weights, one queue against four",
            tenants: [
                tenant("one", 100, Load::random_reads(1, 256, 4 * KIB)),
                tenant("four", 100, second(Load::random_reads(4, 256, 4 * KIB))),
            ],
            tolerance: 0.02,
        },
        Case {
            name: "weights 1:3",
            description: "weights 100 and 300, the same load",
            tenants: [tenant("light", 100, four_queues), tenant("heavy", 300, second(four_queues))],
            tolerance: 0.03,
        },
        Case {
            name: "weights 1:10",
            description: "weights 100 and 1000, the same load",
            tenants: [tenant("light", 100, four_queues), tenant("heavy", 1000, second(four_queues))],
            tolerance: 0.03,
        },
        Case {
            name: "writes",
            description: "equal weights, 4 KiB reads against 16 KiB requests of which 30% write",
            tenants: [
                tenant("reads", 100, four_queues),
                tenant("mixed", 100, second(Load { write_percent: 30, ..Load::random_reads(4, 64, 16 * KIB) })),
            ],
            tolerance: 0.02,
        },
    ]
}

/// Runs all cases and prints them.
///
/// # Errors
/// One sentence: something failed, or `mqfq` broke its promise in some case.
pub fn run(options: &FairnessOptions, json: bool) -> Result<(), String> {
    let report = measure(options)?;
    shell::print(&report, json, || {
        let cases = report.cases.iter().map(|case| format!("{}: {}\n", case.case, case.description));
        format!("{}\n{}\n", cases.collect::<String>(), report.table().render())
    })?;
    let broken: Vec<&str> = report
        .cases
        .iter()
        .filter(|case| case.policies.iter().any(|policy| policy.policy == "mqfq" && !policy.within))
        .map(|case| case.case.as_str())
        .collect();
    if broken.is_empty() { Ok(()) } else { Err(format!("mqfq was outside its promise in: {}", broken.join(", "))) }
}

/// Runs all cases.
///
/// # Errors
/// One sentence.
pub fn measure(options: &FairnessOptions) -> Result<FairnessReport, String> {
    let transport = if options.nbd { Transport::Nbd } else { Transport::Inside };
    let cases = cases();
    let mut progress = Progress::new(cases.len() * POLICIES.len());
    let mut reports = Vec::new();
    for case in &cases {
        let mut policies = Vec::new();
        for kind in POLICIES {
            progress.step(&format!("{} under {kind}", case.name));
            policies.push(measure_one(case, kind, transport, options.measured_ms)?);
        }
        reports.push(FairnessCase {
            case: case.name.into(),
            description: case.description.into(),
            expected_ratio: case.expected_ratio(),
            tolerance: case.tolerance,
            policies,
        });
    }
    progress.finish();
    Ok(FairnessReport {
        cases: reports,
        device: drive::DEMO_PRESET.into(),
        transport: transport.name().into(),
        measured_s: options.measured_ms as f64 * 1e-3,
    })
}

/// One case under one policy.
///
/// # Errors
/// One sentence.
pub fn measure_one(
    case: &Case,
    kind: PolicyKind,
    transport: Transport,
    measured_ms: u64,
) -> Result<FairnessPolicy, String> {
    let workers = harness::workers(transport);
    let policy = harness::by_default(kind, workers);
    let mut rig = Rig::start(RigOptions {
        device: drive::demo_drive()?,
        policy,
        queue_depth: drive::DEMO_QUEUE_DEPTH,
        tenants: &case.tenants,
        transport,
        workers,
        pin: false,
        latest: None,
    })?;
    let counted = rig.run(&[0, 1], Window::from_ms(WARM_UP_MS, measured_ms))?;
    let policy = rig.in_force(&policy);
    rig.stop();
    let tenants: Vec<FairnessTenant> = case
        .tenants
        .iter()
        .zip(&counted)
        .map(|(tenant, counted)| FairnessTenant {
            name: tenant.name.into(),
            weight: tenant.weight.get(),
            bytes_per_s: counted.bytes_per_s(),
            p99_ns: counted.p99_ns(),
        })
        .collect();
    let ratio = (counted[0].bytes > 0).then(|| counted[1].bytes as f64 / counted[0].bytes as f64);
    let deviation = ratio.map(|ratio| (ratio / case.expected_ratio() - 1.0).abs());
    let (depth, window_bytes) = phases::limits(&policy);
    Ok(FairnessPolicy {
        policy: kind.name().into(),
        depth,
        window_bytes,
        form: phases::form(&policy),
        total_bytes_per_s: tenants.iter().map(|tenant| tenant.bytes_per_s).sum(),
        ratio,
        deviation,
        within: deviation.is_some_and(|deviation| deviation <= case.tolerance),
        tenants,
    })
}

// Report of `mqfq-lab bench fairness`: the JSON contract, as types. Keys are stable and carry their unit.

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
