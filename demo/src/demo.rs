//! `mqfq demo`: what fair queueing does, in a quarter of a minute, with nothing to prepare.
//!
//! # What it shows
//! Two tenants on the modelled drive `flash-60k`, attached through real NBD sockets, in each of three
//! [`scenes`], under `none` and `mqfq`. `none` is fast and lets the greedy one take the drive; `mqfq`
//! gives the modest one back most of what it had alone, and the drive stays full.
//!
//! # What would make it lie
//! Slowdowns are ratios of bandwidths of the same drive model, policy and sockets, so a slow machine shifts both sides;
//! but if the cores cannot carry what the drive gives, the drive is no longer what is shared. The run says so, and
//! draws nothing, when the greedy tenant alone, or all tenants together, stay below [`DRIVE_SHARE_MIN`] of the drive's
//! rate. The model's flush takes the time of a cached write whatever was written before it, as on a drive whose cache
//! survives a power cut; elsewhere a commit takes longer. See lab/bench/README.md.

use crate::cores::{Cores, Shares};
use crate::drive;
use crate::harness::{self, HANGS, Rig, RigOptions, Transport};
use crate::load::Window;
use crate::phases::{self, Lengths, Measured};
use crate::report::{self, DemoReport, PolicyReport, SceneReport};
use crate::scenes::{self, POLICIES, Scene};
use mqfq_blk::PolicyOptions;
use mqfq_blk::device::Device;
use mqfq_report::plot;
use mqfq_report::print_line;
use mqfq_report::progress::Progress;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
        // 3 scenes x 2 policies x (2 x 0.6 s alone + 1.4 s together) = 15.6 s, and a little for starting.
        let lengths = Lengths { alone: Window::from_ms(150, 450), shared: Window::from_ms(200, 1_200) };
        DemoOptions { json: false, out: PathBuf::from("."), lengths }
    }
}

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
    print_scenes(&report.scenarios)?;
    if let Some(path) = &report.svg_path {
        print_line(format_args!("picture: {path}\n"))?;
    }
    report.sentence.map_or(Ok(()), print_line)
}

/// Prints the table of each scene.
///
/// # Errors
/// One sentence: stdout cannot be written.
pub(crate) fn print_scenes(scenes: &[SceneReport]) -> Result<(), String> {
    for scene in scenes {
        print_line(format_args!("{}: {}", scene.scenario, scene.description))?;
        print_line(format_args!("{}", scene.table().render()))?;
    }
    Ok(())
}

/// Runs the demo and writes its picture.
///
/// # Errors
/// One sentence.
pub fn measure(options: &DemoOptions) -> Result<DemoReport, String> {
    let begun = Instant::now();
    let scenes = scenes::all();
    let runs = (scenes.len() * POLICIES.len()) as f64;
    let mut progress = Progress::timed(scenes.len() * POLICIES.len() * 3, runs * options.lengths.total_s(2));
    let (mut reports, mut drawn) = (Vec::new(), Vec::new());
    for scene in &scenes {
        let workers = harness::workers(Transport::Nbd);
        let mut measured = Vec::new();
        for kind in POLICIES {
            let place = Place {
                device: drive::demo_drive()?,
                queue_depth: drive::DEMO_QUEUE_DEPTH,
                transport: Transport::Nbd,
                workers,
                latest: None,
            };
            let policy = scene.policy(kind, workers);
            measured.push(measure_one(scene, &place, policy, options.lengths, &mut progress)?);
        }
        let (report, panels) = scene_report(scene, measured);
        reports.push(report);
        drawn.push(panels);
    }
    progress.finish();
    let machine_limits = machine_limits(&scenes, &reports);
    let svg_path = match machine_limits {
        Some(_) => None,
        None => Some(draw(&options.out, SVG_NAME, drive::DEMO_PRESET, &drawn)?),
    };
    Ok(DemoReport {
        sentence: report::sentence(&reports).filter(|_| machine_limits.is_none()),
        scenarios: reports,
        device: drive::DEMO_PRESET.into(),
        svg_path,
        machine_limits,
        elapsed_s: begun.elapsed().as_secs_f64(),
    })
}

/// Writes the picture of `scenes` on the drive `name` into a file of `folder`; returns its path.
///
/// # Errors
/// One sentence: the folder or the file cannot be written.
pub(crate) fn draw(folder: &Path, file: &str, name: &str, scenes: &[plot::Scene]) -> Result<String, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
    let path = folder.join(file);
    let title = format!("A modest tenant beside a greedy one on the drive {name}");
    plot::write(&path, &title, "both tenants at once; before: the modest one alone", scenes)?;
    Ok(path.display().to_string())
}

/// Place of a measurement.
pub(crate) struct Place {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Commands on each worker's device queue at once.
    pub queue_depth: u16,
    /// Path of the load to the engine.
    pub transport: Transport,
    /// Workers of the engine.
    pub workers: usize,
    /// When a scene ends at the latest; `None`: it waits for the device.
    pub latest: Option<Instant>,
}

/// Result of one scene under one policy.
pub(crate) struct Ran {
    /// The policy, with the D and T in force at its end.
    policy: PolicyOptions,
    lengths: Lengths,
    measured: Vec<Measured>,
    /// Cores, while both tenants ran.
    pub shares: Shares,
    /// D was still being searched at its end.
    pub is_searching: bool,
}

/// One scene under one policy.
///
/// # Errors
/// One sentence.
pub(crate) fn measure_one(
    scene: &Scene,
    place: &Place,
    policy: PolicyOptions,
    lengths: Lengths,
    progress: &mut Progress,
) -> Result<Ran, String> {
    let mut rig = Rig::start(RigOptions {
        device: place.device.clone(),
        policy,
        queue_depth: place.queue_depth,
        tenants: &scene.tenants,
        transport: place.transport,
        workers: place.workers,
        pin: false,
        latest: place.latest,
    })?;
    let with = report::setting(policy.kind.name());
    let mut cores = None;
    let ran = phases::run(&mut rig, scene.tenants.len(), lengths, &mut |who| {
        if who.is_none() {
            cores = Some(Cores::now());
        }
        let length = if who.is_some() { lengths.alone } else { lengths.shared };
        let who = who.map_or("both at once".into(), |index| format!("{} alone", scene.tenants[index].name));
        progress.step_of(length.end_ns as f64 * 1e-9, &format!("{}, {with}: {who}", scene.name));
    });
    let measured = match ran {
        Ok(measured) => measured,
        Err(sentence) => {
            if sentence == HANGS {
                rig.abandon();
            }
            return Err(sentence);
        }
    };
    let shares = cores.map_or(Shares::default(), |cores| cores.since(place.workers));
    let found = rig.stats().devices.first().and_then(|device| device.in_force?.depth);
    let is_searching = found.is_some_and(|depth| ["start", "searching", "changed"].contains(&depth.reason.name()));
    let policy = rig.in_force(&policy);
    rig.stop();
    Ok(Ran { policy, lengths, measured, shares, is_searching })
}

/// Report and picture of a scene under all policies.
pub(crate) fn scene_report(scene: &Scene, runs: Vec<Ran>) -> (SceneReport, plot::Scene) {
    let who: Vec<(&str, u16)> = scene.tenants.iter().map(|tenant| (tenant.name, tenant.weight.get())).collect();
    let policies: Vec<PolicyReport> = runs.iter().map(|ran| phases::report(&ran.policy, &who, &ran.measured)).collect();
    let report = SceneReport {
        scenario: scene.name.into(),
        description: scene.description.clone(),
        modest: scene.modest.into(),
        commit_bytes: scene.commit_bytes(),
        policies,
    };
    let panel = |(ran, policy): (Ran, &PolicyReport)| {
        phases::panel(&report::setting(&policy.policy), report.labels(policy), ran.lengths, &ran.measured)
    };
    let panels = runs.into_iter().zip(&report.policies).map(panel).collect();
    let title = format!("{}: {}", scene.name, scene.description);
    (report, plot::Scene { title, panels })
}

/// Why the numbers are of the machine: the first phase in which the drive was not kept busy, as a sentence.
fn machine_limits(scenes: &[Scene], reports: &[SceneReport]) -> Option<String> {
    for (scene, report) in scenes.iter().zip(reports) {
        let drive_bytes_per_s = drive::demo_bytes_per_s(scene.tenants[1].load.request_bytes);
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
                        scene.name,
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
    use crate::report::{FormReport, TenantReport};
    use mqfq_blk::PolicyKind;

    /// A report in which each policy reached these parts of what the drive can do: the greedy tenant alone, and all.
    fn report(scene: &Scene, reached: [(f64, f64); 2]) -> SceneReport {
        let drive_bytes_per_s = drive::demo_bytes_per_s(scene.tenants[1].load.request_bytes);
        let policy = |(kind, (alone, all)): (PolicyKind, (f64, f64))| PolicyReport {
            policy: kind.to_string(),
            depth: None,
            token_unit_bytes: None,
            window_bytes: None,
            form: FormReport::default(),
            total_bytes_per_s: all * drive_bytes_per_s,
            tenants: ["reader", "greedy"].map(|name| tenant(name, alone * drive_bytes_per_s)).into(),
        };
        SceneReport {
            scenario: scene.name.into(),
            description: scene.description.clone(),
            modest: scene.modest.into(),
            commit_bytes: scene.commit_bytes(),
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
        let scenes = scenes::all();
        let limits = |moderate, shallow| {
            let reports = [report(&scenes[0], moderate), report(&scenes[1], shallow)];
            machine_limits(&scenes, &reports)
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
