//! Weighted shares of saturated flows over one second of virtual time.
//!
//! # What it answers
//! The theorems bound a difference in bytes; over a second of a fast device that is a small part of what each flow
//! gets. How small? Each flow's part of the device, against its part of the weights.
//!
//! # The device
//! A link that moves 2 GB per second, one request after the other in the order of dispatch, and never rests: every flow
//! always has requests waiting. So time is what it has moved, and one second is 2 * 10^9 bytes. Counted from 100 ms on.

use super::checker::Service;
use super::history::{Event, History};
use super::workload::{self, Demand, DeviceOrder, End, FlowPlan, Pace, Plan, Sizes};
use crate::contender::Form;
use mqfq_sched::policy::{PolicyKind, PolicyOptions};
use mqfq_sched::vtime::VSpan;

/// Bytes that the device moves in a second.
pub const BYTES_PER_S: u64 = 2_000_000_000;

/// Moved before anything is counted: 100 ms.
pub const WARM_UP_BYTES: u64 = BYTES_PER_S / 10;

const KIB: u64 = 1 << 10;

/// Saturated flows in one setting.
#[derive(Clone, Debug)]
pub struct SharesCase {
    /// Short name.
    pub name: &'static str,
    /// Flows and machine.
    pub plan: Plan,
}

impl SharesCase {
    /// The case in one form of the scheduler.
    pub fn in_form(&self, form: Form) -> Plan {
        let options = form.of(self.plan.options, self.plan.topology.iter().product());
        Plan { options, ..self.plan.clone() }
    }
}

/// All cases.
pub fn cases() -> Vec<SharesCase> {
    let flow = |weight, bytes, hctxs: &[u16]| FlowPlan {
        weight,
        sizes: Sizes::One(bytes),
        hctxs: hctxs.to_vec(),
        demand: Demand::Saturated(96),
    };
    let case = |name, topology, flows: Vec<FlowPlan>| SharesCase {
        name,
        plan: Plan {
            options: PolicyOptions { window: VSpan::from_bytes(64 * KIB), ..PolicyOptions::new(PolicyKind::Mqfq) },
            topology,
            flows,
            device: DeviceOrder::Oldest,
            device_queue_depth: None,
            pace: Pace::Prompt,
            windows: None,
            late: None,
            end: End::CompletedBytes(WARM_UP_BYTES + BYTES_PER_S),
        },
    };
    let few = |count: usize, weights: &[u64], sizes: &[u64]| -> Vec<FlowPlan> {
        let size = |n: usize| sizes[n % sizes.len()];
        let flow = |n: usize| flow(weights[n % weights.len()], size(n), &[(n % 4) as u16]);
        let saturated = Demand::Saturated(if count > 16 { 4 } else { 96 });
        (0..count).map(|n| FlowPlan { demand: saturated, ..flow(n) }).collect()
    };
    vec![
        case("4 KiB against 64 KiB", [1, 4, 1], few(2, &[100], &[4 * KIB, 64 * KIB])),
        case("one queue against four", [1, 4, 1], vec![flow(100, 4 * KIB, &[0]), flow(100, 4 * KIB, &[0, 1, 2, 3])]),
        case("weights 1:3", [1, 4, 1], few(2, &[100, 300], &[4 * KIB])),
        case("weights 1:10", [1, 4, 1], few(2, &[100, 1000], &[4 * KIB])),
        case("weights 1:100", [1, 4, 1], few(2, &[100, 10_000], &[4 * KIB])),
        case("weights 1:10000", [1, 4, 1], few(2, &[1, 10_000], &[512, 4 * KIB])),
        case("8 flows, sizes and weights", [2, 2, 1], {
            few(8, &[50, 100, 200, 400, 100, 300, 800, 50], &[4 * KIB, 64 * KIB, 512, 256 * KIB])
        }),
        case("100 flows", [2, 2, 1], few(100, &[100], &[4 * KIB])),
    ]
}

/// Shares of one case.
#[derive(Clone, PartialEq, Debug)]
pub struct Shares {
    /// Per flow: its part of the bytes over its part of the weights, less 1.
    pub deviations: Vec<f64>,
}

impl Shares {
    /// The largest deviation, without its sign.
    pub fn largest(&self) -> f64 {
        self.deviations.iter().fold(0.0, |largest: f64, deviation| largest.max(deviation.abs()))
    }
}

/// Runs a case under `kind` and counts what each flow got within the second.
///
/// # Errors
/// One sentence: the scheduler stands still.
pub fn measure(plan: &Plan, kind: PolicyKind, seed: u64) -> Result<Shares, String> {
    // `none` has no depth of its own; its device queues must be what stops it.
    let device_queue_depth = (kind == PolicyKind::None).then_some(plan.options.depth as usize);
    let plan = Plan { options: PolicyOptions { kind, ..plan.options }, device_queue_depth, ..plan.clone() };
    let history = workload::run(&plan, seed)?;
    let got = served_after(&history, Service::Completed, WARM_UP_BYTES);
    let total: u64 = got.iter().sum();
    let weights: u64 = plan.flows.iter().map(|flow| flow.weight).sum();
    let deviations = got.iter().zip(&plan.flows).map(|(&bytes, flow)| {
        let share = bytes as f64 / total as f64;
        share / (flow.weight as f64 / weights as f64) - 1.0
    });
    Ok(Shares { deviations: deviations.collect() })
}

/// Per flow: bytes served after `skip_bytes` were served together.
fn served_after(history: &History, service: Service, skip_bytes: u64) -> Vec<u64> {
    let mut got = vec![0; history.flows.len()];
    let mut total = 0;
    for event in &history.events {
        let served = match (*event, service) {
            (Event::Dispatched { flow, bytes }, Service::Dispatched) => Some((flow, bytes)),
            (Event::Completed { flow, bytes }, Service::Completed) => Some((flow, bytes)),
            _ => None,
        };
        if let Some((flow, bytes)) = served {
            total += bytes;
            if total > skip_bytes {
                got[flow as usize] += bytes;
            }
        }
    }
    got
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_follows_the_warm_up_counts() {
        let mut history = History::new([(100, 1), (100, 1)]);
        for (flow, bytes) in [(0, 600), (1, 600), (0, 500), (1, 300)] {
            history.submitted(flow);
            history.dispatched(flow, bytes);
            history.completed(flow, bytes);
        }
        // 600, 1200: the second request crosses 1000 and counts whole.
        assert_eq!(served_after(&history, Service::Completed, 1000), [500, 900]);
        assert_eq!(served_after(&history, Service::Dispatched, 1000), [500, 900]);
    }
}
