//! `mqfq calibrate`: from the user's options to a device, and from its measurements to tables, a picture and a config.
//!
//! | named | opened | writes |
//! |---|---|---|
//! | TARGET, a file or block device | as `kind = "file"` opens it: locked, a block device exclusively | with `--destructive` |
//! | `--scratch FOLDER` | a file that the command makes, fills and removes | yes |
//! | `--preset NAME` | the modelled drive, in virtual time | yes |
//! | `--config FILE DEVICE` | as that section says | as above; `memory` and `null`: yes |
//!
//! SIGINT and SIGTERM end it after the load that is under way, at most some seconds; a scratch file is removed.

use crate::config::{Config, Medium};
use crate::signals::Signals;
use clap::{ArgGroup, Args};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::presets::Preset;
use mqfq_blk::device::null::NullDevice;
use mqfq_calibrate::bench::{Bench, ModelBench, WallBench};
use mqfq_calibrate::finding::Finding;
use mqfq_calibrate::report::{self, Report};
use mqfq_calibrate::sweep::{self, Extent, Plan};
use mqfq_config::text::{quoted, shown};
use mqfq_config::{duration, size};
use mqfq_report::plain;
use mqfq_report::print_line;
use mqfq_report::progress::Progress;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The picture's name.
const SVG_NAME: &str = "mqfq-calibrate.svg";

/// How long each load runs on a real device, ns: as planned, and with `--quick`.
const STEP_NS: [u64; 2] = [600_000_000, 100_000_000];

/// Requests of each load on a modelled drive: as planned, and with `--quick`.
const STEP_REQUESTS: [u64; 2] = [20_000, 2_000];

/// Most workers that load a device unless told otherwise: as many as the measurements of the laboratory take.
const WORKERS: u16 = 4;

/// Most workers that may be asked for.
const WORKERS_MAX: u16 = 64;

/// Smallest device: some requests of the largest size.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// Pieces in which a scratch file is filled, bytes.
const FILL_BYTES: usize = 1 << 20;

/// Arguments of `mqfq calibrate`.
#[derive(Args, Debug, Clone)]
#[command(group(ArgGroup::new("what").required(true).args(["target", "scratch", "preset", "config"])))]
#[group(skip)]
pub struct CalibrateOptions {
    /// A regular file or block device. It is only read, unless --destructive stands there, too.
    pub target: Option<PathBuf>,
    /// Make a file in FOLDER, measure reads and writes on it, and remove it.
    #[arg(long, value_name = "FOLDER")]
    pub scratch: Option<PathBuf>,
    /// A modelled drive, in virtual time: flash-460k, flash-60k, optane, nvmf-dram or zssd.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// The device of that name in a config file.
    #[arg(long, num_args = 2, value_names = ["FILE", "DEVICE"])]
    pub config: Option<Vec<String>>,
    /// Also measure writes. OVERWRITES TARGET, or the device of the config.
    #[arg(long, conflicts_with_all = ["scratch", "preset"])]
    pub destructive: bool,
    /// Go through the page cache.
    #[arg(long, conflicts_with_all = ["preset", "config"])]
    pub buffered: bool,
    /// Size of the scratch file: 64MiB to 1TiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = scratch_size)]
    #[arg(conflicts_with_all = ["target", "preset", "config"])]
    pub size: u64,
    /// Shorter loads: 10 to 20 seconds in all, and numbers that repeat less well.
    #[arg(long)]
    pub quick: bool,
    /// How long each of about 60 loads (120 with writes) runs, in three parts: 1ms to 2s. Default: 600ms, with --quick
    /// 100ms.
    #[arg(long, value_name = "DURATION", value_parser = step, conflicts_with_all = ["preset", "quick"])]
    pub step: Option<u64>,
    /// Workers that load the device, at most: 1 to 64. Default: one per CPU, up to 4.
    #[arg(long, value_name = "N", value_parser = workers(), conflicts_with = "preset")]
    pub workers: Option<u16>,
    /// Seed of random request addresses, and of a modelled drive's random numbers: 0 or more.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// NAME of [device.NAME] in what is printed. Default: from what is measured.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Folder for the picture.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub out: PathBuf,
}

/// A number of workers.
fn workers() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(WORKERS_MAX))
}

/// The size of a scratch file.
fn scratch_size(text: &str) -> Result<u64, String> {
    let allowed = 64 << 20..=1_u64 << 40;
    match size::parse(text).filter(|bytes| allowed.contains(bytes)) {
        Some(bytes) => Ok(bytes),
        None => Err(format!("it is not a size from 64MiB to 1TiB, such as 1GiB: {}", shown(text))),
    }
}

/// Duration of a load, ns.
fn step(text: &str) -> Result<u64, String> {
    match duration::parse(text).filter(|ns| (1_000_000..=2_000_000_000).contains(ns)) {
        Some(ns) => Ok(ns),
        None => Err(format!("it is not a duration from 1ms to 2s, such as 600ms: {}", shown(text))),
    }
}

/// A device to calibrate.
struct Target {
    /// Name in titles.
    title: String,
    /// Name of the printed section, unless the user gives another.
    name: String,
    bench: Box<dyn Bench>,
    is_model: bool,
    writes: bool,
    /// Removed at the end.
    _scratch: Option<Scratch>,
}

/// Calibrates, and prints the findings.
///
/// # Errors
/// One sentence.
pub fn calibrate(options: &CalibrateOptions, json: bool) -> Result<(), String> {
    let signals = Signals::block();
    let begun = Instant::now();
    let go_on = || if signals.stop_is_pending() { Err("interrupted".to_string()) } else { Ok(()) };
    let Target { title, name, mut bench, is_model, writes, _scratch } = target(options, &go_on)?;
    let info = bench.info();
    if info.size_bytes < SIZE_BYTES_MIN {
        return Err(format!("{title}: holds {} bytes, allowed are {SIZE_BYTES_MIN} or more", info.size_bytes));
    }
    let quick = usize::from(options.quick);
    let extent = match is_model {
        true => Extent::Requests(STEP_REQUESTS[quick]),
        false => Extent::Time(options.step.unwrap_or(STEP_NS[quick])),
    };
    let seed = options.seed;
    let plan = Plan { sizes_bytes: Plan::SIZES_BYTES.to_vec(), depth_max: Plan::DEPTH_MAX, extent, writes, seed };
    let mut progress = Progress::new(plan.steps_max());
    let curves = sweep::run(&mut *bench, &plan, &mut |what| {
        progress.step(what);
        go_on()
    });
    progress.finish();
    let finding = Finding::of(curves.map_err(|why| format!("{title}: {why}"))?);
    std::fs::create_dir_all(&options.out)
        .map_err(|error| format!("cannot make the folder {}: {}", options.out.display(), plain(&error)))?;
    let svg = options.out.join(SVG_NAME);
    std::fs::write(&svg, report::picture(&title, &finding.curves)?)
        .map_err(|error| format!("cannot write {}: {}", svg.display(), plain(&error)))?;
    let config = report::config(options.name.as_deref().unwrap_or(&name), &finding);
    let report = Report {
        target: title,
        virtual_time: is_model,
        elapsed_s: begun.elapsed().as_secs_f64(),
        config,
        svg_path: svg.display().to_string(),
        finding,
    };
    if json {
        return print_line(mqfq_report::json(&report)?);
    }
    print_line(format_args!("{}, {:.0} s\n", report.target, report.elapsed_s))?;
    print_line(report::points(&report.finding.curves).render())?;
    print_line(report::terms(&report.finding.terms).render())?;
    for note in &report.finding.notes {
        print_line(format_args!("note: {note}"))?;
    }
    print_line(format_args!("picture: {}\n\n{}", report.svg_path, report.config.trim_end()))
}

fn target(options: &CalibrateOptions, go_on: &dyn Fn() -> Result<(), String>) -> Result<Target, String> {
    let direct = if options.buffered { Direct::Never } else { Direct::Auto };
    if let Some(preset) = &options.preset {
        let preset = Preset::by_name(preset).map_err(|unknown| unknown.to_string())?;
        return model(preset, preset.name, options);
    }
    if let Some(folder) = &options.scratch {
        let scratch = Scratch::fill(folder, options.size, go_on)?;
        let file = FileOptions { direct, ..FileOptions::new(&scratch.0) };
        let target = file_target(&file, "scratch", true, options)?;
        return Ok(Target { title: format!("a file in {}", folder.display()), _scratch: Some(scratch), ..target });
    }
    if let Some(words) = &options.config {
        return of_config(Path::new(&words[0]), &words[1], options);
    }
    let path = options.target.as_ref().expect("clap wants one of them");
    let name = path.file_name().map_or("device".to_string(), |name| name.to_string_lossy().into_owned());
    let file = FileOptions { direct, read_only: !options.destructive, ..FileOptions::new(path) };
    file_target(&file, &name, options.destructive, options)
}

/// The device `name` of a config.
fn of_config(file: &Path, name: &str, options: &CalibrateOptions) -> Result<Target, String> {
    let config = Config::read(file)?;
    let names = || {
        let names: Vec<_> = config.devices.iter().map(|device| quoted(&device.name)).collect();
        if names.is_empty() { "none, for it has no device".to_string() } else { names.join(", ") }
    };
    let found = config.devices.iter().find(|device| device.name == name);
    let device = found
        .ok_or_else(|| format!("{}: has no [device.NAME] {}, allowed is {}", file.display(), quoted(name), names()))?;
    match &device.medium {
        Medium::Null { size_bytes } => Ok(wall(Arc::new(NullDevice::new(*size_bytes)), name, name, true, options)),
        Medium::Memory { size_bytes } => Ok(wall(Arc::new(MemoryDevice::new(*size_bytes)), name, name, true, options)),
        Medium::File { path, size, direct, .. } => {
            let size_bytes = size.as_ref().map(|size| size.value);
            let read_only = !options.destructive;
            let file = FileOptions { size_bytes, direct: *direct, read_only, ..FileOptions::new(&path.value) };
            file_target(&file, name, options.destructive, options)
        }
        Medium::Pool { .. } => {
            Err(format!("device {} is a pool, allowed is the path of one of its backings", quoted(name)))
        }
        Medium::Model { preset, .. } => model(*preset, name, options),
        Medium::Other(other) => Ok(wall((other.open)()?, name, name, true, options)),
    }
}

fn model(preset: Preset, name: &str, options: &CalibrateOptions) -> Result<Target, String> {
    Ok(Target {
        title: format!("modelled drive {}, in virtual time", preset.name),
        name: name.to_string(),
        bench: Box::new(ModelBench::new(preset, options.seed)?),
        is_model: true,
        writes: true,
        _scratch: None,
    })
}

fn file_target(file: &FileOptions, name: &str, writes: bool, options: &CalibrateOptions) -> Result<Target, String> {
    let device = FileDevice::open(file)?;
    device.warnings().iter().for_each(|warning| crate::output::tell(warning));
    if let Ok(metadata) = std::fs::metadata(&file.path)
        && metadata.is_file()
        // st_blocks counts in 512 bytes, whatever the file system's block is.
        && metadata.blocks().saturating_mul(512) < metadata.len() / 10 * 9
    {
        crate::output::tell(&format!(
            "{}: has holes, and reads of those ask nothing of the drive",
            file.path.display()
        ));
    }
    let title = file.path.display().to_string();
    Ok(wall(Arc::new(device), &title, name, writes, options))
}

fn wall(device: Arc<dyn Device>, title: &str, name: &str, writes: bool, options: &CalibrateOptions) -> Target {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = options.workers.unwrap_or_else(|| u16::try_from(cpus).unwrap_or(u16::MAX).clamp(1, WORKERS));
    let bench = Box::new(WallBench::new(device, workers));
    Target { title: title.to_string(), name: name.to_string(), bench, is_model: false, writes, _scratch: None }
}

/// A file that is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// A file of so many bytes in `folder`, each of them written, so that none of its reads is of a hole.
    fn fill(folder: &Path, size_bytes: u64, go_on: &dyn Fn() -> Result<(), String>) -> Result<Scratch, String> {
        let path = folder.join(format!("mqfq-calibrate-{}", std::process::id()));
        let named =
            |error: std::io::Error| format!("cannot make the scratch file {}: {}", path.display(), plain(&error));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(named)?;
        let scratch = Scratch(path.clone());
        write_all(&mut file, size_bytes, go_on, &named)?;
        Ok(scratch)
    }
}

fn write_all(
    file: &mut File,
    size_bytes: u64,
    go_on: &dyn Fn() -> Result<(), String>,
    named: &dyn Fn(std::io::Error) -> String,
) -> Result<(), String> {
    let mut piece = vec![0; FILL_BYTES];
    mqfq_demo::load::scramble(&mut piece, 1);
    let mut left_bytes = size_bytes;
    while left_bytes > 0 {
        go_on()?;
        let bytes = left_bytes.min(FILL_BYTES as u64);
        file.write_all(&piece[..bytes as usize]).map_err(named)?;
        left_bytes -= bytes;
    }
    file.sync_all().map_err(named)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            crate::output::tell(&format!("cannot remove the scratch file {}: {}", self.0.display(), plain(&error)));
        }
    }
}
