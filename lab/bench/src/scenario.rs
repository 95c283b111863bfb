//! A measurement as a scenario of the simulator: with which text?
//!
//! The text is what a person would write, with every number that the measurement has: policy options as they are handed
//! to an engine, workers, flows, depths, sizes, mixes and placement. So what differs is the machine.

use mqfq_blk::PolicyOptions;
use mqfq_blkmq::BlockLayer;
use mqfq_demo::load::Load;
use mqfq_sched::policy::Tunable;
use mqfq_sim::outcome::Outcome;
use mqfq_sim::run::run;
use mqfq_sim::scenario::Scenario;
use std::fmt::Write as _;

/// The machine of the simulator that stands for this one; it is given as many cores as there are workers.
pub const MACHINE: &str = "user-space-2";

/// A machine on which nothing takes time but the drive: keys of `[machine]`.
pub const FREE: &str = "memory = \"free\"\n[machine.latency]\nsubmit-ns = 0.0\ndispatch-ns = 0.0\ncomplete-ns = 0.0\n\
                        doorbell-ns = 0.0\nturn-ns = 0.0\nkick-ns = 0.0\nwake-same-socket-ns = 0.0\n\
                        wake-other-socket-ns = 0.0\nsleep-ns = 0.0\ninterrupt-ns = 0.0\ntimer-ns = 0.0\n\
                        patience-ns = 0.0\njitter-share = 0.0\n";

/// All of a scenario but its tenants.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// Simulated before anything is counted, ns.
    pub warm_up_ns: u64,
    /// Counted after that, ns.
    pub measured_ns: u64,
    /// Cores, each with a worker.
    pub workers: usize,
    /// Further keys of `[machine]`, and its latencies.
    pub machine: &'a str,
    /// Keys of `[device]`.
    pub device: &'a str,
    /// Block layer.
    pub layer: BlockLayer,
    /// Policy.
    pub policy: &'a PolicyOptions,
}

/// The text of a scenario.
pub struct Text(String);

impl Text {
    /// Without tenants yet.
    pub fn new(setup: &Setup<'_>) -> Text {
        let Setup { warm_up_ns, measured_ns, workers, machine, device, layer, policy } = *setup;
        let layer = match layer {
            BlockLayer::Mq => String::new(),
            layer => format!("block-layer = \"{}\"\n", layer.name()),
        };
        Text(format!(
            "[run]\nwarm-up = \"{warm_up_ns}ns\"\nmeasured = \"{measured_ns}ns\"\n[machine]\npreset = \"{MACHINE}\"\n\
             cores-per-socket = {workers}\nworkers = {workers}\n{machine}[device]\n{device}{layer}[policy]\n{}",
            policy_text(policy)
        ))
    }

    /// A tenant with a thread on each of `on_workers`, which thinks between an answer and its next request.
    pub fn tenant(&mut self, name: &str, weight: u16, load: &Load, on_workers: &[usize], think_ns: u64) {
        let Load { depth, request_bytes, write_percent, .. } = load;
        write!(
            self.0,
            "[tenant.{name}]\nweight = {weight}\nload = \"closed\"\nthreads = {}\non-workers = {on_workers:?}\ndepth = {depth}\n\
             size = \"{request_bytes}\"\nread-percent = {}\npattern = \"random\"\nthink = \"{think_ns}ns\"\n",
            on_workers.len(),
            100 - write_percent
        )
        .expect("a string takes all");
    }

    /// Simulates it; `name` is for messages.
    ///
    /// # Errors
    /// One sentence: what cannot be.
    pub fn run(&self, name: &str) -> Result<Outcome, String> {
        run(&Scenario::parse(name, &self.0).map_err(|error| error.to_string())?)
    }
}

/// Workers of a tenant's connections, of which the first is on worker `first`: they take the workers in turn.
pub fn in_turn(load: &Load, first: usize, workers: usize) -> Vec<usize> {
    (first..first + usize::from(load.connections)).map(|number| number % workers).collect()
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
    let mut own = policy.own;
    for key in kind.keys() {
        let written = |tunable: Tunable<'_>| match tunable {
            Tunable::Time(ns, _) => format!("\"{ns}ns\""),
            Tunable::Size(bytes, _) => format!("\"{bytes}\""),
            Tunable::Count(count, _) => count.to_string(),
            Tunable::Flag(flag) => flag.to_string(),
        };
        let value = own.tune(*kind, key.name, written).expect("it is one of its keys");
        writeln!(text, "{} = {value}", key.name).expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::WINDOW_LEAST;
    use mqfq_demo::harness::{as_shipped, by_default};
    use mqfq_sim::rivals;

    #[test]
    fn the_text_of_every_policy_is_read_as_the_same_options() {
        for kind in mqfq_policies::ALL {
            for policy in [PolicyOptions::new(kind), as_shipped(PolicyOptions::new(kind), 4), by_default(kind, 4)] {
                let setup = Setup {
                    warm_up_ns: 0,
                    measured_ns: 1_000,
                    workers: 4,
                    machine: FREE,
                    device: "kind = \"null\"\nsize = \"1GiB\"\n",
                    layer: BlockLayer::Mq,
                    policy: &policy,
                };
                let mut text = Text::new(&setup);
                text.tenant("one", 100, &Load::random_reads(1, 1, 4096), &[0], 0);
                let read = Scenario::parse("text", &text.0).unwrap();
                let read = rivals::options(&read.policy, 4).unwrap();
                // The source of the simulator's policies is compiled twice, so only what they say can be compared.
                assert_eq!(format!("{read:?}"), format!("{policy:?}"), "{WINDOW_LEAST:?}");
            }
        }
    }
}
