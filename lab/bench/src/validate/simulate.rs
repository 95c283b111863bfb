//! Measured settings, once more as scenarios of the simulator ([`crate::scenario`]).

use crate::contender::Contender;
use crate::fairness::Case;
use crate::model;
use crate::scale::load::{DEVICE_BYTES, Fixed, REQUEST_BYTES};
use crate::scale::setting::{Placement, Setting};
use crate::scenario::{Setup, Text, in_turn};
use mqfq_blk::PolicyOptions;
use mqfq_blkmq::BlockLayer;
use mqfq_demo::load::Window;
use mqfq_sim::outcome::Outcome;

/// Simulated before anything is counted on the null device, in place of [`crate::scale`]'s warm-up: no cache is cold
/// and no predictor learns, so that only the queues have to fill.
const COHERENCE_WARM_UP_NS: u64 = 500_000;

/// Counted after that: some ten thousand requests, of which each costs the same.
const COHERENCE_MEASURED_NS: u64 = 4_000_000;

/// One contender in one setting of [`crate::scale`].
///
/// # Errors
/// One sentence.
pub fn coherence(contender: Contender, setting: Setting, fixed: Fixed) -> Result<Outcome, String> {
    coherence_text(contender, setting, fixed).run("validate")
}

/// One case of [`crate::fairness`] under one policy.
///
/// # Errors
/// One sentence.
pub fn shares(case: &Case, policy: &PolicyOptions, workers: usize, window: Window) -> Result<Outcome, String> {
    shares_text(case, policy, workers, window).run("validate")
}

fn coherence_text(contender: Contender, setting: Setting, fixed: Fixed) -> Text {
    let Setting { workers, placement, flows } = setting;
    let here = setting.flows_of_worker(0).count() as u32;
    let depth = u32::from(fixed.depth_per_worker) * workers as u32;
    let mut text = Text::new(&Setup {
        warm_up_ns: COHERENCE_WARM_UP_NS,
        measured_ns: COHERENCE_MEASURED_NS,
        workers,
        machine: "",
        device: &format!("kind = \"null\"\nsize = \"{DEVICE_BYTES}\"\nqueue-depth = {}\n", fixed.queue_depth(here)),
        layer: BlockLayer::Mq,
        policy: &contender.options(depth, fixed.window_bytes, workers),
    });
    let load = fixed.load(workers, here);
    for flow in 0..flows {
        let on_workers: Vec<usize> =
            (0..workers).filter(|&worker| setting.flows_of_worker(worker).contains(&flow)).collect();
        debug_assert!(placement == Placement::All || on_workers.len() == 1);
        text.tenant(&format!("flow-{flow}"), 100, &load, &on_workers, 0);
    }
    debug_assert_eq!(load.request_bytes, REQUEST_BYTES);
    text
}

fn shares_text(case: &Case, policy: &PolicyOptions, workers: usize, window: Window) -> Text {
    let mut text = Text::new(&Setup {
        warm_up_ns: window.warm_up_ns,
        measured_ns: window.end_ns - window.warm_up_ns,
        workers,
        machine: "",
        device: &model::demo_drive(),
        layer: BlockLayer::Mq,
        policy,
    });
    for each in &case.tenants {
        // As `harness::run_inside` attaches them: connection n on worker n modulo the workers.
        text.tenant(each.name, each.weight.get(), &each.load, &in_turn(&each.load, 0, workers), 0);
    }
    text
}
