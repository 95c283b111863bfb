//! The D and T in force on a device, and why, in one sentence.
//!
//! Answers: with which D and T does a device run now, who chose them, and with which throughput? A number was set, or
//! was found while the device runs (`blk/src/path/tuning.rs`). Programs get the same numbers by key (`report.rs`).

use mqfq_blk::engine::DeviceStats;
use mqfq_blk::tuning::{InForce, Reason, State, WindowReason, WindowState};
use mqfq_blk::{PolicyOptions, VSpan};
use mqfq_config::size;
use serde::Serialize;
use std::collections::BTreeMap;

/// T of a device that finds it.
#[derive(Serialize)]
pub struct WindowReport {
    bytes: u64,
    /// Time since it was set last, or since the start.
    age_ns: u64,
    /// Half a sentence.
    reason: String,
    /// Flows that wait, mean.
    waiting_flows: f64,
    /// Times that it has changed.
    changes: u64,
}

impl WindowReport {
    /// T as it was at `at_ns`.
    pub fn new(window: &WindowState, at_ns: u64) -> WindowReport {
        WindowReport {
            bytes: window.window_bytes,
            age_ns: at_ns.saturating_sub(window.changed_ns),
            reason: window.to_string(),
            waiting_flows: window.waiting_hundredths as f64 / 100.0,
            changes: window.changes,
        }
    }
}

/// The initial D and T of a device: "D 64 units of 4KiB (nothing is measured yet); T 64KiB, set". `None`: its policy
/// has neither.
pub fn at_start(options: &PolicyOptions) -> Option<String> {
    said(options, None).map(|parts| parts.join("; "))
}

/// The D and T in force now. `bytes_per_s`: the device's throughput.
pub fn now(device: &DeviceStats, bytes_per_s: Option<f64>) -> Option<String> {
    let mut parts = said(&device.options, device.in_force.as_ref())?;
    parts.extend(device.depth_cap.map(|cap| format!("at most {cap} units for a latency goal")));
    parts.extend(bytes_per_s.map(rate));
    parts.push(device.split.to_string());
    Some(parts.join("; "))
}

fn said(options: &PolicyOptions, in_force: Option<&InForce>) -> Option<Vec<String>> {
    if !options.kind.has_depth() {
        return None;
    }
    let at_ns = in_force.map_or(0, |in_force| in_force.at_ns);
    let mut parts = vec![depth(options, in_force.and_then(|in_force| in_force.depth.as_ref()), at_ns)];
    if options.kind.has_window() {
        parts.push(window(options, in_force.and_then(|in_force| in_force.window.as_ref()), at_ns));
    }
    Some(parts)
}

fn depth(options: &PolicyOptions, found: Option<&State>, at_ns: u64) -> String {
    let units = |depth: u32| match options.token_unit_bytes {
        Some(bytes) => format!("D {depth} units of {}", size::display(bytes.into())),
        None => format!("D {depth} requests"),
    };
    match found {
        None if options.depth_auto => format!("{} ({})", units(options.depth), Reason::Start.text()),
        None => format!("{}, set", units(options.depth)),
        Some(State { reason: Reason::Start, chosen, .. }) => format!("{} ({})", units(*chosen), Reason::Start.text()),
        Some(State { chosen, chosen_ns, reason, .. }) => {
            format!("{}, found {} ({})", units(*chosen), ago(at_ns, *chosen_ns), reason.text())
        }
    }
}

fn window(options: &PolicyOptions, found: Option<&WindowState>, at_ns: u64) -> String {
    let bytes = |window: VSpan| format!("T {}", size::display(window.bytes()));
    match found {
        None if options.window_least.is_some() => format!("{} (no queue has waited yet)", bytes(options.window)),
        None => format!("{}, set", bytes(options.window)),
        Some(state) => {
            let window = bytes(VSpan::from_bytes(state.window_bytes));
            match (state.reason, state.changes) {
                (WindowReason::Start, _) | (_, 0) => format!("{window} ({state})"),
                _ => format!("{window}, found {} ({state})", ago(at_ns, state.changed_ns)),
            }
        }
    }
}

fn ago(at_ns: u64, then_ns: u64) -> String {
    let seconds = at_ns.saturating_sub(then_ns) as f64 / 1e9;
    if seconds < 10.0 { format!("{seconds:.1} s ago") } else { format!("{seconds:.0} s ago") }
}

fn rate(bytes_per_s: f64) -> String {
    match bytes_per_s {
        rate if rate >= 1e9 => format!("{:.1} GB/s", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
        rate => format!("{:.1} kB/s", rate / 1e3),
    }
}

/// Bytes that each tenant of each device was served until a report, so that the next one can say how many per second.
#[derive(Default)]
pub struct Rates {
    at_ns: u64,
    /// Bytes by name of the device, then of the tenant: both come and go.
    bytes: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Rates {
    /// Per device, bytes per second since the last call, or since the start. `None`: no time has passed.
    pub fn since_last(&mut self, devices: &[DeviceStats], at_ns: u64) -> Vec<Option<f64>> {
        let elapsed_s = at_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        let (mut rates, mut bytes) = (Vec::new(), BTreeMap::new());
        for device in devices {
            let before = self.bytes.get(&device.name);
            let (mut served, mut flows) = (0, BTreeMap::new());
            for flow in &device.flows {
                let now: u64 = flow.stats.bytes.iter().sum();
                let earlier = before.and_then(|flows| flows.get(&flow.name)).copied().unwrap_or(0);
                // Less than before: another tenant has the name.
                served += now.saturating_sub(earlier);
                flows.insert(flow.name.clone(), now);
            }
            rates.push((elapsed_s > 0.0).then(|| served as f64 / elapsed_s));
            bytes.insert(device.name.clone(), flows);
        }
        *self = Rates { at_ns, bytes };
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::engine::NamedFlowStats;
    use mqfq_blk::split::{Split, SplitControl};
    use mqfq_blk::stats::FlowStats;
    use mqfq_blk::{PolicyKind, Weight};
    use mqfq_policies::SFQD;

    fn device(options: PolicyOptions, in_force: Option<InForce>, bytes: u64) -> DeviceStats {
        let mut stats = FlowStats::default();
        stats.bytes[0] = bytes;
        DeviceStats {
            name: "fast".into(),
            policy: options.kind.name(),
            options,
            class_weights: None,
            in_force,
            depth_cap: None,
            write_cost_256ths: None,
            split: SplitControl::new(Split::Auto, 1).state(),
            health: Default::default(),
            ailing: Vec::new(),
            flows: vec![NamedFlowStats {
                last_ns: Vec::new(),
                name: "alice".into(),
                stats,
                class_bytes: None,
                weight: Weight::DEFAULT,
                effective_weight: None,
                goal: None,
                group: None,
            }],
            groups: Vec::new(),
            hctxs: Vec::new(),
        }
    }

    fn auto() -> PolicyOptions {
        PolicyOptions {
            depth_auto: true,
            token_unit_bytes: Some(4096),
            window_least: Some(VSpan::from_bytes(16 << 10)),
            ..PolicyOptions::new(PolicyKind::Mqfq)
        }
    }

    #[test]
    fn what_was_found_is_said_with_its_age_and_reason() {
        let depth = State {
            depth: 161,
            chosen: 129,
            chosen_ns: 8_000_000_000,
            reason: Reason::Found,
            step: 32,
            phases: 9,
            probes: Default::default(),
        };
        let window = WindowState {
            window_bytes: 65_536,
            reason: WindowReason::Quotient,
            depth: 129,
            unit_bytes: 4096,
            waiting_hundredths: 812,
            reaped_hundredths: 103,
            changes: 1,
            changed_ns: 17_500_000_000,
        };
        let in_force =
            InForce { at_ns: 20_000_000_000, depth: Some(depth), depths: Default::default(), window: Some(window) };
        assert_eq!(
            now(&device(auto(), Some(in_force), 0), Some(3.14e9)).as_deref(),
            Some(
                "D 129 units of 4KiB, found 12 s ago (deeper gains less than it costs, shallower loses work); \
                 T 64KiB, found 2.5 s ago (129 units of 4KiB over 8.1 flows that wait); 3.1 GB/s; split off: too few requests yet"
            )
        );
        let never = WindowState { changes: 0, changed_ns: 0, ..window };
        let in_force = InForce { window: Some(never), depth: None, ..in_force };
        let options = PolicyOptions { depth_auto: false, ..auto() };
        assert_eq!(
            now(&device(options, Some(in_force), 0), Some(0.0)).as_deref(),
            Some(
                "D 64 units of 4KiB, set; T 64KiB (129 units of 4KiB over 8.1 flows that wait); 0.0 kB/s; split off: too few requests yet"
            )
        );
    }

    #[test]
    fn what_is_set_and_what_is_not_found_yet_are_told_apart() {
        let said = |options| at_start(&options).unwrap_or_default();
        assert_eq!(said(PolicyOptions::new(PolicyKind::Mqfq)), "D 64 requests, set; T 64KiB, set");
        assert_eq!(said(PolicyOptions::new(SFQD)), "D 64 requests, set");
        assert_eq!(said(auto()), "D 64 units of 4KiB (nothing is measured yet); T 64KiB (no queue has waited yet)");
        assert_eq!(at_start(&PolicyOptions::new(PolicyKind::None)), None);
    }

    #[test]
    fn the_rate_is_that_since_the_last_report() {
        let mut rates = Rates::default();
        let of = |bytes| [device(auto(), None, bytes)];
        assert_eq!(rates.since_last(&of(4000), 2_000_000_000), [Some(2000.0)], "since the start");
        assert_eq!(rates.since_last(&of(4000), 3_000_000_000), [Some(0.0)]);
        assert_eq!(rates.since_last(&of(9000), 3_500_000_000), [Some(10_000.0)]);
        assert_eq!(rates.since_last(&of(9000), 3_500_000_000), [None]);
        assert_eq!(rates.since_last(&of(5000), 4_000_000_000), [Some(0.0)], "a tenant has gone");
        assert_eq!(rates.since_last(&of(6000), 4_500_000_000), [Some(2000.0)]);
    }

    #[test]
    fn the_rate_is_that_of_who_is_there_when_a_tenant_or_a_device_has_gone() {
        let mut rates = Rates::default();
        let (mut fast, mut slow) = (device(auto(), None, 9000), device(auto(), None, 1000));
        slow.name = "slow".into();
        let mut bob = fast.flows[0].clone();
        (bob.name, bob.stats.bytes[0]) = ("bob".into(), 500);
        fast.flows.push(bob);
        rates.since_last(&[fast.clone(), slow.clone()], 1_000_000_000);
        fast.flows.remove(0);
        fast.flows[0].stats.bytes[0] = 700;
        assert_eq!(rates.since_last(&[fast], 2_000_000_000), [Some(200.0)], "alice has gone");
        assert_eq!(rates.since_last(&[slow], 3_000_000_000), [Some(1000.0)], "fast has gone, and slow is there again");
    }
}
