//! The demo in virtual time: the data path that ships, the drive model that ships, and no clock, thread or socket.
//!
//! # What it answers
//! What a scenario gives if the machine costs nothing: where the knee of D lies, and which part of a measured figure is
//! the machine's. It is also the test of the demo's promises that no busy machine can break.
//!
//! # What would make it lie
//! It is a scenario of the simulator in which cores take no time. With `think_ns` = 0 it is the bound that a real
//! machine approaches from below.

use crate::scenario::{FREE, Setup, Text, in_turn};
use mqfq_blk::PolicyOptions;
use mqfq_blkmq::BlockLayer;
use mqfq_demo::drive;
use mqfq_demo::harness::Tenant;
use mqfq_demo::load::Window;
use mqfq_sim::outcome::TenantOutcome;

/// Model of a run on the demo's drive.
pub struct ModelOptions<'a> {
    /// Policy.
    pub policy: PolicyOptions,
    /// The tenants.
    pub tenants: &'a [Tenant],
    /// Hctxs; connections take them in turn.
    pub workers: usize,
    /// From a completion to the arrival of the request that follows it.
    pub think_ns: u64,
}

/// Runs the tenants named in `who` together for `window`; their outcomes come in that order.
///
/// # Errors
/// One sentence: options that no policy or queue can be made of; or a wake-up that was lost.
pub fn run(options: &ModelOptions<'_>, who: &[usize], window: Window) -> Result<Vec<TenantOutcome>, String> {
    // As in a server, large requests are cut where D is found.
    let split = if options.policy.depth_auto { "split = \"auto\"\n" } else { "" };
    let mut text = Text::new(&Setup {
        warm_up_ns: window.warm_up_ns,
        measured_ns: window.end_ns - window.warm_up_ns,
        workers: options.workers,
        machine: FREE,
        device: &(demo_drive() + split),
        layer: BlockLayer::Mq,
        policy: &options.policy,
    });
    let mut connections = 0;
    for (number, tenant) in options.tenants.iter().enumerate() {
        let on_workers = in_turn(&tenant.load, connections, options.workers);
        connections += on_workers.len();
        if who.contains(&number) {
            text.tenant(tenant.name, tenant.weight.get(), &tenant.load, &on_workers, options.think_ns);
        }
    }
    let mut all = text.run("model")?.tenants;
    let name = |&number: &usize| options.tenants[number].name;
    Ok(who
        .iter()
        .map(name)
        .filter_map(|name| Some(all.swap_remove(all.iter().position(|one| one.name == name)?)))
        .collect())
}

/// Keys of the demo's drive.
pub fn demo_drive() -> String {
    let (preset, bytes, depth) = (drive::DEMO_PRESET, drive::DEMO_BYTES, drive::DEMO_QUEUE_DEPTH);
    format!("kind = \"nvme\"\npreset = \"{preset}\"\nsize = \"{bytes}\"\nqueue-depth = {depth}\n")
}
