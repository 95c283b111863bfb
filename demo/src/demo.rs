//! `mqfq demo`: what fair queueing does, in half a minute, with nothing to prepare.
//!
//! # What it shows
//! Two tenants on the software NVMe drive `flash-60k`, attached through real NBD sockets. In each scenario a modest
//! reader meets a greedy one, under `none` and `mqfq`. `none` is fast and lets the greedy one take the drive; `mqfq`
//! gives the reader back most of what it had alone, and the drive stays full.
//!
//! * `moderate` is the paper's FlashX case (MQFQ section 5.1: slowed 3.78 times under none, 1.33 under MQFQ).
//! * `shallow` is what a depth in requests cannot handle: big requests against a single small one. Tokens are units of
//!   4 KiB here, and D is the drive's bandwidth-delay product (lab/bench/README.md, "How D was chosen").
//!
//! # What would make it lie
//! Slowdowns are ratios of bandwidths of the same drive model, policy and sockets, so a slow machine shifts both sides;
//! but if the cores cannot carry what the drive gives, the drive is no longer what is shared. The run says so, and
//! draws nothing, when the greedy tenant alone, or all tenants together, stay below [`DRIVE_SHARE_MIN`] of the drive's
//! rate. See lab/bench/README.md.

use crate::drive;
use crate::harness::{self, Rig, RigOptions, Tenant, Transport};
use crate::load::{Load, Window};
use crate::phases::{self, Lengths};
use crate::report::{DemoReport, ScenarioReport};
use mqfq_blk::{PolicyKind, PolicyOptions, VSpan, Weight};
use mqfq_report::plot;
use mqfq_report::print_line;
use mqfq_report::progress::Progress;
use std::path::PathBuf;
use std::time::Instant;

/// The greedy tenant alone, and all tenants together, must reach this share of what the drive can do, or the machine is
/// the limit.
const DRIVE_SHARE_MIN: f64 = 0.9;

/// Name of the picture's file.
const SVG_NAME: &str = "mqfq-demo.svg";

/// Options of `mqfq demo`.
#[derive(Clone, PartialEq, Debug)]
pub struct DemoOptions {
    /// One JSON object on stdout instead of tables.
    pub json: bool,
    /// Folder for the picture.
    pub out: PathBuf,
    /// How long each phase lasts.
    pub lengths: Lengths,
}

impl Default for DemoOptions {
    fn default() -> Self {
        // 2 scenarios x 2 policies x (2 x 0.95 s alone + 1.8 s together) = 14.8 s, and a little for starting.
        let lengths = Lengths { alone: Window::from_ms(200, 750), shared: Window::from_ms(300, 1_500) };
        DemoOptions { json: false, out: PathBuf::from("."), lengths }
    }
}

/// Two tenants, and the policies' settings that suit them.
pub struct Scenario {
    /// Short name.
    pub name: &'static str,
    /// One sentence.
    pub description: &'static str,
    /// The modest one first.
    pub tenants: [Tenant; 2],
    /// D, in tokens.
    pub depth: u32,
    /// T: how far a queue may run ahead of the slowest one.
    pub window: VSpan,
    /// Bytes that a token stands for; `None`: a token is one request.
    pub token_unit_bytes: Option<u32>,
}

impl Scenario {
    /// The settings of a policy in this scenario, in the form that ships.
    pub fn policy(&self, kind: PolicyKind, workers: usize) -> PolicyOptions {
        let exact = PolicyOptions {
            depth: self.depth,
            window: self.window,
            token_unit_bytes: self.token_unit_bytes,
            ..PolicyOptions::new(kind)
        };
        harness::as_shipped(exact, workers)
    }
}

const KIB: u32 = 1024;

/// The demo's scenarios.
pub fn scenarios() -> [Scenario; 2] {
    let tenant = |name, load| Tenant { name, weight: Weight::DEFAULT, load };
    [
        Scenario {
            name: "moderate",
            description: "a 4 KiB reader of depth 16 against eight 4 KiB queues of depth 128",
            tenants: [
                tenant("reader", Load::random_reads(1, 16, 4 * KIB)),
                tenant("greedy", Load { seed: 2, ..Load::random_reads(8, 128, 4 * KIB) }),
            ],
            depth: 64,
            window: VSpan::from_bytes(64 << 10),
            token_unit_bytes: None,
        },
        Scenario {
            name: "shallow",
            description: "a 4 KiB reader of depth 1 against eight 128 KiB queues of depth 16",
            tenants: [
                tenant("reader", Load::random_reads(1, 1, 4 * KIB)),
                tenant("greedy", Load { seed: 2, ..Load::random_reads(8, 16, 128 * KIB) }),
            ],
            depth: 160,
            window: VSpan::from_bytes(64 << 10),
            token_unit_bytes: Some(4 * KIB),
        },
    ]
}

/// The policies that the demo compares.
pub const POLICIES: [PolicyKind; 2] = [PolicyKind::None, PolicyKind::Mqfq];

/// Runs the demo and prints it.
///
/// # Errors
/// One sentence.
pub fn run(options: &DemoOptions) -> Result<(), String> {
    let report = measure(options)?;
    if options.json {
        print_line(mqfq_report::json(&report)?)?;
        return Ok(());
    }
    if let Some(sentence) = report.machine_limits {
        return Err(sentence);
    }
    for scenario in &report.scenarios {
        print_line(format_args!("{}: {}", scenario.scenario, scenario.description))?;
        print_line(scenario.table().render())?;
        scenario.sentence().map_or(Ok(()), |sentence| print_line(format_args!("{sentence}\n")))?;
    }
    if let Some(path) = &report.svg_path {
        print_line(format_args!("bandwidth over time: {path}"))?;
    }
    Ok(())
}

/// Runs the demo and writes its picture.
///
/// # Errors
/// One sentence.
pub fn measure(options: &DemoOptions) -> Result<DemoReport, String> {
    let begun = Instant::now();
    let scenarios = scenarios();
    let mut progress = Progress::new(scenarios.len() * POLICIES.len() * 3);
    let mut reports = Vec::new();
    let mut blocks = Vec::new();
    for scenario in &scenarios {
        let mut policies = Vec::new();
        let mut columns = Vec::new();
        for kind in POLICIES {
            let (report, column) = measure_one(scenario, kind, options.lengths, &mut progress)?;
            policies.push(report);
            columns.push(column);
        }
        let title = format!("{}: {}", scenario.name, scenario.description);
        blocks.push(plot::Block { title, columns });
        reports.push(ScenarioReport {
            scenario: scenario.name.into(),
            description: scenario.description.into(),
            policies,
        });
    }
    progress.finish();
    std::fs::create_dir_all(&options.out)
        .map_err(|error| format!("cannot make the folder {}: {error}", options.out.display()))?;
    let machine_limits = machine_limits(&scenarios, &reports);
    let svg_path = match machine_limits {
        Some(_) => None,
        None => {
            let path = options.out.join(SVG_NAME);
            let preset = drive::DEMO_PRESET;
            let title = format!("Bandwidth over time on the drive {preset}: who gets it under which policy");
            plot::write(&path, &title, &blocks)?;
            Some(path.display().to_string())
        }
    };
    Ok(DemoReport {
        scenarios: reports,
        device: drive::DEMO_PRESET.into(),
        svg_path,
        machine_limits,
        elapsed_s: begun.elapsed().as_secs_f64(),
    })
}

/// One scenario under one policy.
///
/// # Errors
/// One sentence.
pub fn measure_one(
    scenario: &Scenario,
    kind: PolicyKind,
    lengths: Lengths,
    progress: &mut Progress,
) -> Result<(crate::report::PolicyReport, plot::Column), String> {
    let workers = harness::workers(Transport::Nbd);
    let policy = scenario.policy(kind, workers);
    let mut rig = Rig::start(RigOptions {
        device: drive::demo_drive()?,
        policy,
        queue_depth: drive::DEMO_QUEUE_DEPTH,
        tenants: &scenario.tenants,
        transport: Transport::Nbd,
        workers,
        pin: false,
    })?;
    let measured = phases::run(&mut rig, scenario.tenants.len(), lengths, &mut |who| {
        let who = who.map_or("all together".into(), |index| format!("{} alone", scenario.tenants[index].name));
        progress.step(&format!("{} under {kind}: {who}", scenario.name));
    })?;
    rig.stop();
    let names: Vec<&str> = scenario.tenants.iter().map(|tenant| tenant.name).collect();
    let who: Vec<(&str, u16)> = scenario.tenants.iter().map(|tenant| (tenant.name, tenant.weight.get())).collect();
    Ok((phases::report(&policy, &who, &measured), phases::column(&policy, &names, lengths, &measured)))
}

/// Why the numbers are of the machine: the first phase in which the drive was not kept busy, as a sentence.
fn machine_limits(scenarios: &[Scenario], reports: &[ScenarioReport]) -> Option<String> {
    for (scenario, report) in scenarios.iter().zip(reports) {
        let drive_bytes_per_s = drive::demo_bytes_per_s(scenario.tenants[1].load.request_bytes);
        for policy in &report.policies {
            let greedy = &policy.tenants[1];
            let phases =
                [("the greedy tenant alone", greedy.alone_bytes_per_s), ("all together", policy.total_bytes_per_s)];
            for (who, bytes_per_s) in phases {
                let share = bytes_per_s / drive_bytes_per_s;
                if share < DRIVE_SHARE_MIN {
                    return Some(format!(
                        "in {} under {}, {who} reached {:.0}% of what the drive can do, at least {:.0}% are needed: the \
                         cores were the limit and not the drive, so nothing is drawn; try again when nothing else runs",
                        scenario.name,
                        policy.policy,
                        share * 100.0,
                        DRIVE_SHARE_MIN * 100.0
                    ));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{FormReport, PolicyReport, TenantReport};

    /// A report in which each policy reached these parts of what the drive can do: the greedy tenant alone, and all.
    fn report(scenario: &Scenario, reached: [(f64, f64); 2]) -> ScenarioReport {
        let drive_bytes_per_s = drive::demo_bytes_per_s(scenario.tenants[1].load.request_bytes);
        let policy = |(kind, (alone, all)): (PolicyKind, (f64, f64))| PolicyReport {
            policy: kind.to_string(),
            depth: None,
            token_unit_bytes: None,
            window_bytes: None,
            form: FormReport::default(),
            total_bytes_per_s: all * drive_bytes_per_s,
            tenants: ["reader", "greedy"].map(|name| tenant(name, alone * drive_bytes_per_s)).into(),
        };
        ScenarioReport {
            scenario: scenario.name.into(),
            description: scenario.description.into(),
            policies: POLICIES.into_iter().zip(reached).map(policy).collect(),
        }
    }

    fn tenant(name: &str, alone_bytes_per_s: f64) -> TenantReport {
        TenantReport {
            name: name.into(),
            weight: 100,
            alone_bytes_per_s,
            shared_bytes_per_s: alone_bytes_per_s,
            slowdown: Some(1.0),
            p99_ns: 0,
            alone_p99_ns: 0,
        }
    }

    #[test]
    fn numbers_of_a_busy_machine_are_refused_with_the_phase_that_tells() {
        let scenarios = scenarios();
        let limits = |moderate, shallow| {
            let reports = [report(&scenarios[0], moderate), report(&scenarios[1], shallow)];
            machine_limits(&scenarios, &reports)
        };
        let quiet = [(0.99, 0.98), (0.97, 0.91)];
        assert_eq!(limits(quiet, quiet), None);
        let begins = |sentence: Option<String>, begin: &str| assert!(sentence.unwrap().starts_with(begin));
        begins(
            limits([(0.89, 1.0), (1.0, 1.0)], quiet),
            "in moderate under none, the greedy tenant alone reached 89% of what the drive can do, at least 90%",
        );
        begins(limits(quiet, [(1.0, 1.0), (0.5, 1.0)]), "in shallow under mqfq, the greedy tenant alone reached 50%");
        begins(limits(quiet, [(1.0, 1.0), (1.0, 0.67)]), "in shallow under mqfq, all together reached 67%");
    }
}
