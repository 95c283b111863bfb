//! `mqfq-lab bench bound`: the fairness theorems, held against every interval of generated histories.
//!
//! # What it shows
//! For two flows that stay backlogged, how far their service over weight drifts apart over *any* interval, as a share
//! of what the theorems allow. The real policy runs, without a clock: a seed decides the requests of flows, the order
//! in which workers run and the request that the device ends next; some histories are made by hand to come close.
//! Beside it, shares of saturated flows over a second of virtual time.
//!
//! | file | answers |
//! |---|---|
//! | [`history`] | what happened? |
//! | [`checker`] | over every interval, how far did two flows drift apart? |
//! | [`limits`] | how far may they? |
//! | [`judge`] | the one over the other |
//! | [`machine`] | what does the real policy do if workers and device take turns like this? |
//! | [`workload`], [`adversary`], [`threads`] | order of turns, by chance (wrong costs, withdrawals), by hand, by threads |
//! | [`trace`] | what the kernel's elevator did, by its tracepoints |
//! | [`cases`], [`shares`] | the named workloads |
//! | [`report`] | JSON, tables, SVG |
//!
//! # What is promised
//! No share above 1, decided in integers, and no saturated flow off its weighted share by more than 1%. If a promise is
//! broken, the command prints everything and then fails.
//!
//! # What would make it lie
//! A bound that is far above what can happen is kept by anything. So the histories by hand are there: they show that
//! the bounds on dispatched and completed service are nearly reached. See lab/bench/README.md.

pub mod adversary;
pub mod cases;
pub mod checker;
pub mod history;
pub mod judge;
pub mod limits;
pub mod machine;
pub mod report;
pub mod shares;
pub mod threads;
pub mod trace;
pub mod workload;

use crate::contender::Form;
use crate::shell;
use cases::{Case, FORMS, Played, Source};
use judge::Verdict;
use limits::Limits;
use mqfq_blk::random::Random;
use mqfq_report::progress::Progress;
use mqfq_sched::policy::PolicyKind;
use report::{BoundReport, BoundRow, SharesRow, Trajectory};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct BoundOptions {
    /// Folder for the picture.
    #[arg(long, default_value = ".")]
    pub out: Option<PathBuf>,
    /// Where chance begins; the same seed gives the same histories.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Multiplies the length or number of the histories.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub scale: u64,
    /// Only the cases whose name begins with this.
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// In place of all cases, the trace of a kernel's elevator in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["case", "seed", "scale"])]
    pub trace: Option<PathBuf>,
}

/// Name of the picture's file.
const SVG_NAME: &str = "mqfq-bound.svg";

/// The case whose pair is drawn over time.
const DRAWN_CASE: &str = "device full of each, T=1 MiB";

/// Largest deviation from a weighted share that is promised.
pub const SHARES_TOLERANCE: f64 = 0.01;

/// Runs all cases and prints them.
///
/// # Errors
/// One sentence: something failed, or a promise is broken.
pub fn run(options: &BoundOptions, json: bool) -> Result<(), String> {
    let report = match &options.trace {
        Some(path) => judge_trace(path)?,
        None => measure(options)?,
    };
    shell::print(&report, json, || report.text())?;
    let broken = report.broken();
    if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
}

/// Runs all cases and draws the picture.
///
/// # Errors
/// One sentence.
pub fn measure(options: &BoundOptions) -> Result<BoundReport, String> {
    let begun = Instant::now();
    let is_wanted = |name: &str| options.case.as_deref().is_none_or(|wanted| name.starts_with(wanted));
    let cases: Vec<Case> = cases::cases().into_iter().filter(|case| is_wanted(&case.name)).collect();
    let shares_cases: Vec<_> = shares::cases().into_iter().filter(|case| is_wanted(case.name)).collect();
    if cases.is_empty() && shares_cases.is_empty() {
        return Err(format!("no case begins with {:?}", options.case.as_deref().unwrap_or("")));
    }
    let mut progress = Progress::new((cases.len() + shares_cases.len()) * FORMS.len());
    let mut rows = Vec::new();
    let mut trajectory = None;
    for (case, form) in cases.iter().flat_map(|case| FORMS.map(|form| (case, form))) {
        progress.step(&format!("{}, {}", case.name, form.name()));
        let (row, drawn) = judge_case(case, form, options.seed, options.scale)?;
        rows.push(row);
        trajectory = trajectory.or(drawn);
    }
    let mut shares = Vec::new();
    for (case, form) in shares_cases.iter().flat_map(|case| FORMS.map(|form| (case, form))) {
        progress.step(&format!("{}, {}", case.name, form.name()));
        let plan = case.in_form(form);
        let deviation = shares::measure(&plan, PolicyKind::Mqfq, seed_of(options.seed, case.name))?.largest();
        shares.push(SharesRow {
            case: case.name.into(),
            policy: PolicyKind::Mqfq.name().into(),
            form: form.name().into(),
            flows: plan.flows.len(),
            largest_deviation: deviation,
            within: deviation <= SHARES_TOLERANCE,
        });
    }
    progress.finish();
    let mut report = BoundReport {
        intervals: rows.iter().map(|row| row.intervals).sum(),
        rows,
        shares,
        shares_tolerance: SHARES_TOLERANCE,
        seed: options.seed,
        scale: options.scale,
        svg_path: None,
        elapsed_s: 0.0,
    };
    if let Some(folder) = &options.out {
        let path = shell::write(folder, SVG_NAME, &report::render(&report, trajectory.as_ref())?)?;
        report.svg_path = Some(path.display().to_string());
    }
    report.elapsed_s = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// A trace of the kernel's elevator: one row.
fn judge_trace(path: &Path) -> Result<BoundReport, String> {
    let begun = Instant::now();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let trace = trace::parse(&text).map_err(|sentence| format!("{}: {sentence}", path.display()))?;
    let mut row = BoundRow {
        case: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        description: "recorded by tracepoints in a kernel".into(),
        policy: PolicyKind::Mqfq.name().into(),
        form: Form::AllThree.name().into(),
        flows: trace.history.flows.len(),
        hctxs: trace.queues,
        depth: Some(trace.options.depth),
        window_bytes: Some(trace.options.window.bytes()),
        token_unit_bytes: trace.options.token_unit_bytes,
        histories: 1,
        ..BoundRow::default()
    };
    row.set(&trace.verdict());
    Ok(BoundReport {
        intervals: row.intervals,
        rows: vec![row],
        shares: Vec::new(),
        shares_tolerance: SHARES_TOLERANCE,
        seed: 0,
        scale: 1,
        svg_path: None,
        elapsed_s: begun.elapsed().as_secs_f64(),
    })
}

/// A case's own seed: cases that are added or left out do not change the others.
fn seed_of(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed, |seed, byte| Random::new(seed ^ u64::from(byte)).next_u64())
}

/// Bounds of a history.
pub fn limits_of(played: &Played) -> Limits {
    let limits = Limits::new(&played.options, &played.history.flows).with_under_way(played.under_way);
    if played.is_late { limits.charged_late() } else { limits }
}

/// One case: its row, and the trajectory of its worst pair if it is the case that is drawn.
fn judge_case(case: &Case, form: Form, seed: u64, scale: u64) -> Result<(BoundRow, Option<Trajectory>), String> {
    let seed = seed_of(seed, &case.name);
    let mut row = BoundRow {
        case: case.name.clone(),
        description: case.description.clone(),
        form: form.name().into(),
        seed,
        ..BoundRow::default()
    };
    let several = matches!(case.source, Source::RandomMachines(..));
    let mut verdict = Verdict::default();
    let mut trajectory = None;
    case.play(form, seed, scale, |played| {
        let found = Verdict::of(&played.history, &limits_of(played));
        if case.name == DRAWN_CASE
            && let Some(share) = found.tight
        {
            trajectory = Some(Trajectory {
                title: format!("{}, {}: {}", case.name, form.name(), case.description),
                points: checker::trajectory(&played.history, share.pair.0, share.pair.1),
                bound_bytes: share.limit_bytes,
            });
        }
        verdict.merge(&found);
        row.histories += 1;
        row.policy = played.options.kind.name().into();
        row.flows = row.flows.max(played.history.flows.len());
        row.hctxs = row.hctxs.max(played.hctxs);
        if !several {
            row.depth = Some(played.options.depth);
            row.window_bytes = Some(played.options.window.bytes());
            row.token_unit_bytes = played.options.token_unit_bytes;
        }
    })?;
    row.set(&verdict);
    Ok((row, trajectory))
}
