//! `mqfq demo --device PATH`: the demo's two scenes of reads on a drive of the user's, in half a minute.
//!
//! # What it does to the drive
//! It reads. The path is opened with O_RDONLY, beside its other users and without a lock, and the tenants submit reads
//! alone ([`scenes::reads`]). It asks nothing, and a path that cannot be read, or holds less than [`SIZE_BYTES_MIN`],
//! is refused in one sentence.
//!
//! # Shape
//! A pilot measures how many requests per second the drive serves. The greedy tenants then have in flight what it
//! serves in [`GREEDY_NS`], at most as many as on the modelled drive: so a slow drive is as crowded as a fast one, and
//! the run ends in time. Tenants live inside the workers, because sockets would cost more than a fast drive takes. D
//! and T are found while the drive runs, as a server finds them; the part before the figures is longer for that.
//!
//! # What would make it lie
//! Reads that do not reach the drive ([`crate::beneath`]), an elevator below, and other users of the drive: each is a
//! note. A scene in which the cores were the limit is left out with a note. A drive that collects garbage or is hot
//! changes from phase to phase; a second run tells.

use crate::beneath;
use crate::cores::Shares;
use crate::demo::{self, Place};
use crate::harness::{self, HANGS, Rig, RigOptions, Tenant, Transport};
use crate::load::{Load, Window};
use crate::phases::Lengths;
use crate::report::{self, DriveReport, SceneReport};
use crate::scenes::{self, GREEDY_REQUESTS, LARGE_BYTES, POLICIES, SMALL_BYTES};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{FileDevice, FileOptions};
use mqfq_blk::{PolicyKind, PolicyOptions, Weight};
use mqfq_report::print_line;
use mqfq_report::progress::Progress;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smallest drive or file: less lies in a drive's own cache.
const SIZE_BYTES_MIN: u64 = 64 << 20;

/// Time of the drive that a greedy tenant's requests in flight take.
const GREEDY_NS: u64 = 250_000_000;

/// The modest reader beside them, in times as much with fair queueing as without: from here on it is worth it.
const GAIN_MIN: f64 = 1.25;

/// The drive's work with fair queueing over that without it: less is a price.
const WORK_MIN: f64 = 0.9;

/// Part of their time that workers work or wait for a core, above which the cores and not the drive are the limit.
const WORKED_MAX: f64 = 0.9;

/// Part of their time that workers wait for a core, above which other programs disturb the figures.
const WAITED_MAX: f64 = 0.1;

/// End of the whole at the latest: the part of it that a drive that is fast enough needs is 28 s.
const LATEST: Duration = Duration::from_secs(40);

/// Commands on each worker's device queue at once.
const QUEUE_DEPTH: u16 = 1023;

/// Name of the picture's file.
const SVG_NAME: &str = "mqfq-demo-device.svg";

/// Options of `mqfq demo --device`.
#[derive(Clone, PartialEq, Debug)]
pub struct DriveOptions {
    /// A block device or a regular file.
    pub path: PathBuf,
    /// One JSON object on stdout instead of tables.
    pub json: bool,
    /// Folder for the picture.
    pub out: PathBuf,
    /// The pilot's two loads.
    pub pilot: Window,
    /// Phases without fair queueing and with it.
    pub lengths: [Lengths; 2],
    /// Time after which a scene ends, whether or not the drive has answered.
    pub latest: Duration,
}

impl DriveOptions {
    /// As a user runs it: 2 pilots of 0.4 s, and 2 scenes x (2 x 2 x 1.4 s alone + 3 s + 5 s together) = 28 s in all.
    pub fn new(path: PathBuf) -> DriveOptions {
        let alone = Window::from_ms(400, 1_000);
        let lengths = [Window::from_ms(500, 2_500), Window::from_ms(2_500, 2_500)];
        DriveOptions {
            path,
            json: false,
            out: PathBuf::from("."),
            pilot: Window::from_ms(100, 300),
            lengths: lengths.map(|shared| Lengths { alone, shared }),
            latest: LATEST,
        }
    }
}

/// Measures and prints.
///
/// # Errors
/// One sentence.
pub fn run(options: &DriveOptions) -> Result<(), String> {
    let report = measure(options)?;
    if options.json {
        return print_line(mqfq_report::json(&report)?);
    }
    demo::print_scenes(&report.scenarios)?;
    for note in &report.notes {
        print_line(format_args!("note: {note}"))?;
    }
    if let Some(path) = &report.svg_path {
        print_line(format_args!("picture: {path}"))?;
    }
    print_line(format_args!("\n{}", report.sentence))
}

/// Measures and writes the picture.
///
/// # Errors
/// One sentence.
pub fn measure(options: &DriveOptions) -> Result<DriveReport, String> {
    let begun = Instant::now();
    let latest = Some(begun + options.latest);
    let name = options.path.display().to_string();
    let device = open(&options.path)?;
    let mut notes = device.warnings().to_vec();
    notes.extend(beneath::notes(&options.path));
    let (size_bytes, device) = (device.info().size_bytes, Arc::new(device) as Arc<dyn Device>);

    let workers = harness::workers(Transport::Inside);
    let pilot_s = options.pilot.end_ns as f64 * 1e-9;
    let scenes_s: f64 = options.lengths.iter().map(|lengths| lengths.total_s(2)).sum();
    let mut progress = Progress::timed(2 + 2 * POLICIES.len() * 3, 2.0 * (pilot_s + scenes_s));
    let mut greedy_requests = GREEDY_REQUESTS;
    for (requests, bytes) in greedy_requests.iter_mut().zip([SMALL_BYTES, LARGE_BYTES]) {
        progress.step_of(pilot_s, &format!("reads of {} KiB", bytes >> 10));
        let most =
            pilot(&device, bytes, workers, options.pilot, latest).map_err(|sentence| format!("{name}: {sentence}"))?;
        *requests = most.clamp(16, *requests);
    }
    let scenes = scenes::reads(greedy_requests);
    let (mut reports, mut drawn) = (Vec::new(), Vec::new());
    'scenes: for scene in &scenes {
        let mut runs = Vec::new();
        for (kind, lengths) in POLICIES.into_iter().zip(options.lengths) {
            let (device, transport) = (device.clone(), Transport::Inside);
            let place = Place { device, queue_depth: QUEUE_DEPTH, transport, workers, latest };
            let policy = harness::by_default(kind, workers);
            match demo::measure_one(scene, &place, policy, lengths, &mut progress) {
                Ok(ran) => runs.push(ran),
                // The scenes before it count.
                Err(sentence) if sentence == HANGS && !reports.is_empty() => {
                    notes.push(format!("{}: {sentence}, so the scene does not count", scene.name));
                    break 'scenes;
                }
                Err(sentence) => return Err(format!("{name}: {sentence}")),
            }
        }
        let Shares { worked, waited } = runs.iter().map(|ran| ran.shares).fold(Shares::default(), Shares::max);
        if worked + waited > WORKED_MAX || waited > WAITED_MAX {
            notes.push(format!(
                "{}: the workers worked {:.0}% of the time and waited {:.0}% of it for a core, so the scene does not count",
                scene.name,
                worked * 100.0,
                waited * 100.0
            ));
            continue;
        }
        let is_searching = runs.iter().any(|ran| ran.is_searching);
        let (report, panels) = demo::scene_report(scene, runs);
        if is_searching && report.work().is_some_and(|work| work < WORK_MIN) {
            notes.push(format!("{}: D was still being searched, so in time mqfq may do more work", scene.name));
        }
        reports.push(report);
        drawn.push(panels);
    }
    progress.finish();
    let (is_worth_it, sentence) = verdict(&name, &reports);
    let svg_path = match is_worth_it {
        Some(_) => Some(demo::draw(&options.out, SVG_NAME, &name, &drawn)?),
        None => None,
    };
    Ok(DriveReport {
        svg_path,
        scenarios: reports,
        device: name,
        size_bytes,
        notes,
        is_worth_it,
        sentence,
        elapsed_s: begun.elapsed().as_secs_f64(),
    })
}

/// Opens a drive or file to be read.
///
/// # Errors
/// One sentence: it cannot be read, or is too small.
fn open(path: &Path) -> Result<FileDevice, String> {
    let mut file = FileOptions::to_measure(path);
    // The end of a file that is no whole block would keep all of it in the page cache.
    let length_bytes = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    file.size_bytes = length_bytes.map(|bytes| bytes & !(u64::from(LARGE_BYTES) - 1)).filter(|&bytes| bytes > 0);
    let device = FileDevice::open(&file)?;
    match device.info().size_bytes {
        enough if enough >= SIZE_BYTES_MIN => Ok(device),
        few => {
            let mib = SIZE_BYTES_MIN >> 20;
            Err(format!("{}: holds {few} bytes, at least {mib} MiB are needed to measure a drive", path.display()))
        }
    }
}

/// Requests of `bytes` that the drive serves in [`GREEDY_NS`].
fn pilot(
    device: &Arc<dyn Device>,
    bytes: u32,
    workers: usize,
    window: Window,
    latest: Option<Instant>,
) -> Result<u16, String> {
    let load = Load { seed: 3, ..Load::random_reads(8, 4, bytes) };
    let mut rig = Rig::start(RigOptions {
        device: device.clone(),
        policy: PolicyOptions::new(PolicyKind::None),
        queue_depth: QUEUE_DEPTH,
        tenants: &[Tenant { name: "the pilot", weight: Weight::DEFAULT, load }],
        transport: Transport::Inside,
        workers,
        pin: false,
        latest,
    })?;
    let ran = rig.run(&[0], window);
    match &ran {
        Err(sentence) if sentence == HANGS => rig.abandon(),
        _ => rig.stop(),
    }
    let counted = ran?.remove(0);
    Ok((counted.requests_per_s() * GREEDY_NS as f64 * 1e-9).min(f64::from(u16::MAX)) as u16)
}

/// Whether fair queueing is worth it on the drive `name`, by the scenes that count, and the result in words. `None`:
/// there are none.
fn verdict(name: &str, scenes: &[SceneReport]) -> (Option<bool>, String) {
    if scenes.is_empty() {
        let sentence = "The workers lacked cores, so the drive was not measured and nothing is drawn; try again when nothing else runs.";
        return (None, sentence.into());
    }
    let helps = scenes.iter().any(|scene| scene.gain().is_none_or(|gain| gain >= GAIN_MIN));
    let costs = scenes.iter().any(|scene| scene.work().is_some_and(|work| work < WORK_MIN));
    let verdict = match (helps, costs) {
        (true, true) => format!("On {name} mqfq helps the modest tenant, at a price."),
        (true, false) => format!("On {name} mqfq helps."),
        (false, _) => format!("On {name} `none` is enough for these loads."),
    };
    let sentence =
        report::sentence(scenes).unwrap_or_else(|| format!("Without mqfq {name} served nothing to both at once."));
    (Some(helps), format!("{verdict} {sentence}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{FormReport, PolicyReport, TenantReport};
    use crate::scratch::Scratch;
    use rustix::fs::{OFlags, fcntl_getfl};
    use std::os::unix::fs::PermissionsExt;

    fn file(folder: &Scratch, bytes: u64) -> PathBuf {
        let path = folder.path().join("drive");
        let mut content = vec![0; 1 << 20];
        crate::load::scramble(&mut content, 1);
        std::fs::write(&path, content).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    #[test]
    fn a_drive_is_opened_to_be_read_alone() {
        let folder = Scratch::new().unwrap();
        let path = file(&folder, SIZE_BYTES_MIN + 77);
        let device = open(&path).unwrap();
        assert_eq!(device.info().size_bytes, SIZE_BYTES_MIN, "whole blocks");
        let flags = fcntl_getfl(device.ring_file().unwrap()).unwrap();
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
    }

    #[test]
    fn a_drive_that_has_not_answered_when_the_time_is_over_is_told_in_one_sentence() {
        let folder = Scratch::new().unwrap();
        let path = file(&folder, SIZE_BYTES_MIN);
        let sentence = measure(&DriveOptions {
            out: folder.path().to_owned(),
            pilot: Window::from_ms(0, 1_000),
            latest: Duration::ZERO,
            ..DriveOptions::new(path.clone())
        })
        .unwrap_err();
        assert_eq!(sentence, format!("{}: {HANGS}", path.display()));
    }

    #[test]
    fn a_run_leaves_every_byte_as_it_was() {
        let folder = Scratch::new().unwrap();
        let path = file(&folder, SIZE_BYTES_MIN);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let before = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap());
        let lengths = Lengths { alone: Window::from_ms(5, 20), shared: Window::from_ms(5, 40) };
        let report = measure(&DriveOptions {
            out: folder.path().to_owned(),
            pilot: Window::from_ms(5, 20),
            lengths: [lengths; 2],
            ..DriveOptions::new(path.clone())
        })
        .unwrap();
        assert_eq!(before, (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap()));
        // On a machine that does something else no scene counts, and nothing is drawn.
        let left_out = report.notes.iter().filter(|note| note.contains("the scene does not count")).count();
        assert_eq!(report.scenarios.len() + left_out, 2, "{report:?}");
        assert!(report.notes.iter().any(|note| note.contains("are holes")), "{:?}", report.notes);
        assert_eq!(report.svg_path.is_some(), left_out < 2);
        assert_eq!(report.is_worth_it.is_some(), left_out < 2);
        if let Some(path) = report.svg_path {
            assert!(std::fs::read_to_string(path).unwrap().contains("with mqfq"));
        }
    }

    #[test]
    fn the_verdict_says_what_one_would_gain_or_that_none_is_enough_or_that_the_cores_were_the_limit() {
        let scene_of = |with: f64, work: f64| {
            let tenant = |shared_bytes_per_s| TenantReport {
                name: "reader".into(),
                weight: 100,
                alone_bytes_per_s: 10e6,
                shared_bytes_per_s,
                slowdown: None,
                p99_ns: 0,
                alone_p99_ns: 0,
            };
            let policy = |policy: &str, bytes_per_s, work| PolicyReport {
                policy: policy.into(),
                depth: None,
                token_unit_bytes: None,
                window_bytes: None,
                form: FormReport::default(),
                total_bytes_per_s: 100e6 * work,
                tenants: vec![tenant(bytes_per_s)],
            };
            SceneReport {
                scenario: "shallow".into(),
                description: String::new(),
                modest: "a reader of one".into(),
                commit_bytes: None,
                policies: vec![policy("none", 4e6, 1.0), policy("mqfq", with, work)],
            }
        };
        let scene = |with| scene_of(with, 0.95);
        let begins = |scenes: &[SceneReport], is_worth_it, begin: &str| {
            let (worth, said) = verdict("/dev/x", scenes);
            assert_eq!(worth, is_worth_it);
            assert!(said.starts_with(begin), "{said}");
        };
        let beside = "Beside a greedy neighbour, without mqfq and with it, a reader of one got 4.00 and 4.00 MB/s";
        begins(&[scene(4e6), scene(5.1e6)], Some(true), &format!("On /dev/x mqfq helps. {beside}"));
        let enough = format!("On /dev/x `none` is enough for these loads. {beside}");
        begins(&[scene(4e6), scene(4.9e6)], Some(false), &enough);
        begins(&[scene_of(5.1e6, 0.8)], Some(true), "On /dev/x mqfq helps the modest tenant, at a price.");
        begins(&[], None, "The workers lacked cores, so the drive was not measured and nothing is drawn");
    }

    #[test]
    fn a_path_that_is_too_small_or_not_there_is_refused_in_one_sentence() {
        let folder = Scratch::new().unwrap();
        let path = file(&folder, SIZE_BYTES_MIN - 1);
        let refusal = |path: &Path| open(path).err().unwrap();
        let expected =
            format!("{}: holds 66977792 bytes, at least 64 MiB are needed to measure a drive", path.display());
        assert_eq!(refusal(&path), expected);
        let nothing = folder.path().join("nothing");
        assert_eq!(refusal(&nothing), format!("{}: no such file or block device", nothing.display()));
        assert!(refusal(folder.path()).ends_with("is a directory, not a file or block device"));
    }
}
