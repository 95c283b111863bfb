//! `mqfq demo`: what fair queueing does, in a quarter of a minute, with nothing to prepare.
//!
//! # What it shows
//! Two tenants on the modelled drive `flash-60k`, attached through real NBD sockets, in each of three
//! [`scenes`], under `none` and `mqfq`. `none` is fast and lets the greedy one take the drive; `mqfq`
//! gives the modest one back most of what it had alone, and the drive stays full.
//!
//! # What would make it lie
//! Slowdowns are ratios of bandwidths of the same drive model, policy and sockets, so a slow machine shifts both sides;
//! but if the cores cannot carry what the drive gives, the drive is no longer what is shared. A run in which the greedy
//! tenant alone, or all tenants together, stay below [`DRIVE_SHARE_MIN`] of the drive's rate is measured again, and the
//! report counts these. After [`RUNS_MAX`] such runs the demo says so, and draws nothing. The model's flush takes the
//! time of a cached write whatever was written before it, as on a drive whose cache survives a power cut; elsewhere a
//! commit takes longer. See lab/bench/README.md.

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

/// Runs of a scene under a policy, at most. A virtual machine's host may take its cores for tenths of a second.
const RUNS_MAX: u32 = 3;

/// Tenants of a scene, and phases of a run: each of them alone, and both together.
const TENANTS: usize = 2;
const POLICY_STEPS: usize = TENANTS + 1;

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
    if let Some(sentence) = report.sentence {
        print_line(sentence)?;
    }
    match report.measured_again {
        0 => Ok(()),
        runs => print_line(format_args!("Measured again, because the cores were the limit: {runs} of the runs.")),
    }
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
    let mut progress =
        Progress::timed(scenes.len() * POLICIES.len() * POLICY_STEPS, runs * options.lengths.total_s(TENANTS));
    let (mut reports, mut drawn) = (Vec::new(), Vec::new());
    let (mut machine_limits, mut measured_again) = (None, 0);
    for scene in &scenes {
        let workers = harness::workers(Transport::Nbd);
        let mut measured = Vec::new();
        for kind in POLICIES {
            let policy = scene.policy(kind, workers);
            // Where the cores are the limit in one scene, the others are measured once.
            let runs_max = if machine_limits.is_none() { RUNS_MAX } else { 1 };
            let (ran, limit, repeats) = repeat(runs_max, |repeats| {
                let place = Place {
                    device: drive::demo_drive()?,
                    queue_depth: drive::DEMO_QUEUE_DEPTH,
                    transport: Transport::Nbd,
                    workers,
                    latest: None,
                };
                if repeats > 0 {
                    progress.again(POLICY_STEPS, options.lengths.total_s(TENANTS));
                }
                let ran = measure_one(scene, &place, policy, options.lengths, &mut progress)?;
                let limit = machine_limit(scene, &ran.report(scene));
                Ok((ran, limit))
            })?;
            machine_limits = machine_limits.or(limit);
            measured_again += repeats;
            measured.push(ran);
        }
        let (report, panels) = scene_report(scene, measured);
        reports.push(report);
        drawn.push(panels);
    }
    progress.finish();
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
        measured_again,
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

impl Ran {
    fn report(&self, scene: &Scene) -> PolicyReport {
        let who: Vec<_> = scene.tenants.iter().map(|tenant| (tenant.name, tenant.weight.get())).collect();
        phases::report(&self.policy, &who, &self.measured)
    }
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
    let policies: Vec<PolicyReport> = runs.iter().map(|ran| ran.report(scene)).collect();
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

/// Runs until no limit of the machine is told, `runs_max` times at most. Returns the last run, its limit, and the runs
/// before it. `run` is told how many these are.
fn repeat<R>(
    runs_max: u32,
    mut run: impl FnMut(u32) -> Result<(R, Option<String>), String>,
) -> Result<(R, Option<String>, u32), String> {
    let mut repeats = 0;
    loop {
        let (ran, limit) = run(repeats)?;
        if limit.is_none() || repeats + 1 >= runs_max {
            return Ok((ran, limit, repeats));
        }
        repeats += 1;
    }
}

/// Why the numbers are of the machine: the first phase in which the drive was not kept busy, as a sentence.
fn machine_limit(scene: &Scene, policy: &PolicyReport) -> Option<String> {
    let drive_bytes_per_s = drive::demo_bytes_per_s(scene.tenants[1].load.request_bytes);
    let phases =
        [("the greedy tenant alone", policy.tenants[1].alone_bytes_per_s), ("all together", policy.total_bytes_per_s)];
    phases.into_iter().find_map(|(who, bytes_per_s)| {
        let share = bytes_per_s / drive_bytes_per_s;
        (share < DRIVE_SHARE_MIN).then(|| {
            format!(
                "in {} under {}, {who} reached {:.0}% of what the drive can do, at least {:.0}% are needed: the cores \
                 were the limit and not the drive, so nothing is drawn; try again when nothing else runs",
                scene.name,
                policy.policy,
                share * 100.0,
                DRIVE_SHARE_MIN * 100.0
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{FormReport, TenantReport};
    use mqfq_blk::PolicyKind;

    /// A report in which the greedy tenant alone, and all together, reached these parts of what the drive can do.
    fn report(scene: &Scene, kind: PolicyKind, [alone, all]: [f64; 2]) -> PolicyReport {
        let drive_bytes_per_s = drive::demo_bytes_per_s(scene.tenants[1].load.request_bytes);
        PolicyReport {
            policy: kind.to_string(),
            depth: None,
            token_unit_bytes: None,
            window_bytes: None,
            form: FormReport::default(),
            total_bytes_per_s: all * drive_bytes_per_s,
            tenants: ["reader", "greedy"].map(|name| tenant(name, alone * drive_bytes_per_s)).into(),
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
        let [moderate, shallow, _] = scenes::all();
        let limit = |scene, kind, reached| machine_limit(scene, &report(scene, kind, reached));
        assert_eq!(limit(&moderate, PolicyKind::None, [0.9, 0.91]), None);
        let begins = |sentence: Option<String>, begin: &str| assert!(sentence.unwrap().starts_with(begin));
        begins(
            limit(&moderate, PolicyKind::None, [0.89, 1.0]),
            "in moderate under none, the greedy tenant alone reached 89% of what the drive can do, at least 90%",
        );
        begins(
            limit(&shallow, PolicyKind::Mqfq, [0.5, 1.0]),
            "in shallow under mqfq, the greedy tenant alone reached 50%",
        );
        begins(limit(&shallow, PolicyKind::Mqfq, [1.0, 0.67]), "in shallow under mqfq, all together reached 67%");
    }
    #[test]
    fn a_run_is_repeated_while_the_cores_are_its_limit_and_three_times_at_most() {
        let limited = |run: u32, until: u32| Ok((run, (run < until).then(|| format!("limit of {run}"))));
        assert_eq!(repeat(RUNS_MAX, |run| limited(run, 0)), Ok((0, None, 0)));
        assert_eq!(repeat(RUNS_MAX, |run| limited(run, 2)), Ok((2, None, 2)));
        assert_eq!(repeat(RUNS_MAX, |run| limited(run, 9)), Ok((2, Some("limit of 2".into()), 2)));
        assert_eq!(repeat(1, |run| limited(run, 9)), Ok((0, Some("limit of 0".into()), 0)));
        assert_eq!(repeat(RUNS_MAX, |_| Err::<((), _), _>("broke".into())), Err("broke".into()));
    }
}
