//! What was measured, once more as scenarios of the simulator.
//!
//! A scenario is written as the text that a person would write, with every number that the measurement had: policy
//! options as they were handed to the engine, workers, flows, depths, sizes, mixes and placement. So what differs is
//! the machine.

use crate::contender::Contender;
use crate::fairness::Case;
use crate::scale::load::{DEVICE_BYTES, Fixed, REQUEST_BYTES};
use crate::scale::setting::{Placement, Setting};
use mqfq_blk::PolicyOptions;
use mqfq_demo::drive;
use mqfq_demo::load::{Load, Window};
use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::Scenario;
use std::fmt::Write as _;

/// The machine of the simulator that stands for this one; it is given as many cores as there are workers.
pub const MACHINE: &str = "user-space-2";

/// Simulated before anything is counted on the null device, in place of [`crate::scale`]'s warm-up: no cache is cold
/// and no predictor learns, so that only the queues have to fill.
const COHERENCE_WARM_UP_US: u64 = 500;

/// Counted after that: some ten thousand requests, of which each costs the same.
const COHERENCE_MEASURED_US: u64 = 4_000;

/// One contender in one setting of [`crate::scale`].
///
/// # Errors
/// One sentence.
pub fn coherence(contender: Contender, setting: Setting, fixed: Fixed) -> Result<Outcome, String> {
    simulate(&coherence_text(contender, setting, fixed))
}

/// One case of [`crate::fairness`] under one policy.
///
/// # Errors
/// One sentence.
pub fn shares(case: &Case, policy: &PolicyOptions, workers: usize, window: Window) -> Result<Outcome, String> {
    simulate(&shares_text(case, policy, workers, window))
}

fn simulate(text: &str) -> Result<Outcome, String> {
    run(&Scenario::parse("validate", text).map_err(|error| error.to_string())?)
}

fn coherence_text(contender: Contender, setting: Setting, fixed: Fixed) -> String {
    let Setting { workers, placement, flows } = setting;
    let here = setting.flows_of_worker(0).count() as u32;
    let depth = u32::from(fixed.depth_per_worker) * workers as u32;
    let policy = contender.options(depth, fixed.window_bytes, workers);
    let mut text = head(
        workers,
        &format!("warm-up = \"{COHERENCE_WARM_UP_US}us\"\nmeasured = \"{COHERENCE_MEASURED_US}us\""),
        &format!("kind = \"null\"\nsize = \"{DEVICE_BYTES}\"\nqueue-depth = {}", fixed.queue_depth(here)),
        &policy,
    );
    let load = fixed.load(workers, here);
    for flow in 0..flows {
        let on_workers: Vec<usize> =
            (0..workers).filter(|&worker| setting.flows_of_worker(worker).contains(&flow)).collect();
        debug_assert!(placement == Placement::All || on_workers.len() == 1);
        tenant(&mut text, &format!("flow-{flow}"), 100, &load, &on_workers);
    }
    debug_assert_eq!(load.request_bytes, REQUEST_BYTES);
    text
}

fn shares_text(case: &Case, policy: &PolicyOptions, workers: usize, window: Window) -> String {
    let (warm_up_ns, measured_ns) = (window.warm_up_ns, window.end_ns - window.warm_up_ns);
    let mut text = head(
        workers,
        &format!("warm-up = \"{warm_up_ns}ns\"\nmeasured = \"{measured_ns}ns\""),
        &format!(
            "kind = \"nvme\"\npreset = \"{}\"\nsize = \"{}\"\nqueue-depth = {}",
            drive::DEMO_PRESET,
            drive::DEMO_BYTES,
            drive::DEMO_QUEUE_DEPTH
        ),
        policy,
    );
    for each in &case.tenants {
        // As `harness::run_inside` attaches them: connection n on worker n modulo the workers.
        let on_workers: Vec<usize> = (0..usize::from(each.load.connections)).map(|number| number % workers).collect();
        tenant(&mut text, each.name, each.weight.get(), &each.load, &on_workers);
    }
    text
}

fn head(workers: usize, run: &str, device: &str, policy: &PolicyOptions) -> String {
    format!(
        "[run]\n{run}\n[machine]\npreset = \"{MACHINE}\"\ncores-per-socket = {workers}\nworkers = {workers}\n[device]\n{device}\n\
         [policy]\n{}",
        policy_text(policy)
    )
}

/// The options as they are, not as a form would make them again.
fn policy_text(policy: &PolicyOptions) -> String {
    let PolicyOptions { kind, depth, window, quantum, lease, token_batch, token_share, token_unit_bytes, .. } = policy;
    let depth = if policy.depth_auto { "\"auto\"".to_owned() } else { depth.to_string() };
    let window = if policy.window_least.is_some() { "auto".to_owned() } else { window.bytes().to_string() };
    let mut text = format!("kind = \"{kind}\"\ndepth = {depth}\nwindow = \"{window}\"\n");
    if let Some(unit) = token_unit_bytes {
        writeln!(text, "token-unit = \"{unit}\"").expect("a string takes all");
    }
    if kind.has_window() && policy.window_least.is_none() {
        let (quantum, lease) = (quantum.bytes(), lease.bytes());
        writeln!(text, "form = \"relaxed\"\nquantum = \"{quantum}\"\nlease = \"{lease}\"\ntoken-batch = {token_batch}\ntoken-share = {token_share}")
            .expect("a string takes all");
    }
    text
}

/// A tenant with a thread on each of `on_workers`.
fn tenant(text: &mut String, name: &str, weight: u16, load: &Load, on_workers: &[usize]) {
    let Load { depth, request_bytes, write_percent, .. } = load;
    write!(
        text,
        "[tenant.{name}]\nweight = {weight}\nload = \"closed\"\nthreads = {}\non-workers = {on_workers:?}\ndepth = {depth}\n\
         size = \"{request_bytes}\"\nread-percent = {}\npattern = \"random\"\n",
        on_workers.len(),
        100 - write_percent
    )
    .expect("a string takes all");
}
