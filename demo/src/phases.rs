//! A scenario under one policy: each tenant alone, in turn, then all together, on one engine and one time axis.

use crate::harness::Rig;
use crate::load::{Counted, SERIES_STEP_NS, Window};
use crate::report::{FormReport, PolicyReport, TenantReport};
use mqfq_blk::PolicyOptions;
use mqfq_report::plot::{Curve, Panel};

/// Length of a step of the picture. Shallow tenants complete a request every few milliseconds; in shorter steps one
/// sees single requests and no bandwidth.
const PICTURE_STEP_NS: u64 = 50_000_000;

/// How long each phase lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Each tenant alone.
    pub alone: Window,
    /// All together.
    pub shared: Window,
}

impl Lengths {
    /// Time of all phases for so many tenants, seconds.
    pub fn total_s(&self, tenants: usize) -> f64 {
        (self.alone.end_ns * tenants as u64 + self.shared.end_ns) as f64 * 1e-9
    }
}

/// One tenant's part.
pub struct Measured {
    /// Counts while no other tenant runs.
    pub alone: Counted,
    /// Counts while all run.
    pub shared: Counted,
}

/// Runs the phases for `tenants` tenants; `begin` is told before each one.
///
/// # Errors
/// As [`Rig::run`].
pub fn run(
    rig: &mut Rig,
    tenants: usize,
    lengths: Lengths,
    begin: &mut dyn FnMut(Option<usize>),
) -> Result<Vec<Measured>, String> {
    let mut alone = Vec::new();
    for index in 0..tenants {
        begin(Some(index));
        alone.extend(rig.run(&[index], lengths.alone)?);
    }
    begin(None);
    let everybody: Vec<usize> = (0..tenants).collect();
    let shared = rig.run(&everybody, lengths.shared)?;
    Ok(alone.into_iter().zip(shared).map(|(alone, shared)| Measured { alone, shared }).collect())
}

/// The numbers for a report. `who` gives each tenant's name and weight.
pub fn report(policy: &PolicyOptions, who: &[(&str, u16)], measured: &[Measured]) -> PolicyReport {
    let tenants: Vec<TenantReport> = who
        .iter()
        .zip(measured)
        .map(|(&(name, weight), measured)| {
            let (alone, shared) = (measured.alone.bytes_per_s(), measured.shared.bytes_per_s());
            TenantReport {
                name: name.into(),
                weight,
                alone_bytes_per_s: alone,
                shared_bytes_per_s: shared,
                slowdown: TenantReport::slowdown_of(alone, shared),
                p99_ns: measured.shared.p99_ns(),
                alone_p99_ns: measured.alone.p99_ns(),
            }
        })
        .collect();
    let (depth, window_bytes) = limits(policy);
    PolicyReport {
        policy: policy.kind.name().into(),
        depth,
        token_unit_bytes: depth.and(policy.token_unit_bytes),
        window_bytes,
        form: form(policy),
        total_bytes_per_s: tenants.iter().map(|tenant| tenant.shared_bytes_per_s).sum(),
        tenants,
    }
}

/// D and T of a policy, where it has them.
pub fn limits(policy: &PolicyOptions) -> (Option<u32>, Option<u64>) {
    let (depth, window_bytes) = (policy.depth, policy.window.bytes());
    (policy.kind.has_depth().then_some(depth), policy.kind.has_window().then_some(window_bytes))
}

/// The form of a policy, where it has several.
pub fn form(policy: &PolicyOptions) -> FormReport {
    if !policy.kind.has_window() {
        return FormReport::default();
    }
    FormReport {
        quantum_bytes: Some(policy.quantum.bytes()),
        lease_bytes: Some(policy.lease.bytes()),
        token_batch: Some(policy.token_batch),
    }
}

/// The panel of the picture: the first tenant alone, then all at once. `labels` are the tenants'.
pub fn panel(title: &str, labels: Vec<String>, lengths: Lengths, measured: &[Measured]) -> Panel {
    let steps = |window: Window| (window.end_ns / PICTURE_STEP_NS) as usize;
    let (alone_steps, shared_steps) = (steps(lengths.alone), steps(lengths.shared));
    let step_s = PICTURE_STEP_NS as f64 * 1e-9;
    let shared_s = alone_steps as f64 * step_s;
    let curves = labels.into_iter().zip(measured).enumerate().map(|(index, (label, measured))| {
        let (mut bytes_per_s, mut start_s) = (Vec::new(), shared_s);
        if index == 0 {
            (bytes_per_s, start_s) = (per_step(&measured.alone, alone_steps), 0.0);
        }
        bytes_per_s.extend(per_step(&measured.shared, shared_steps));
        Curve { label, start_s, bytes_per_s, alone_bytes_per_s: measured.alone.bytes_per_s() }
    });
    Panel { title: title.into(), step_s, shared_s, curves: curves.collect() }
}

/// The first `steps` steps of the picture.
fn per_step(counted: &Counted, steps: usize) -> Vec<f64> {
    let merged = (PICTURE_STEP_NS / SERIES_STEP_NS) as usize;
    let mut values: Vec<f64> = counted
        .series_bytes
        .chunks(merged)
        .map(|step| step.iter().sum::<u64>() as f64 / (PICTURE_STEP_NS as f64 * 1e-9))
        .collect();
    values.resize(steps, 0.0);
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::PolicyKind;

    /// A tenant that completes `bytes` every 10 ms of a window of 100 ms warm-up and 100 ms measured.
    fn steady(bytes: u32) -> Counted {
        let mut counted = Counted::new(Window::from_ms(100, 100));
        for step in 0..20 {
            counted.record(step * 10_000_000, 1_000_000, bytes);
        }
        counted
    }

    fn lengths() -> Lengths {
        Lengths { alone: Window::from_ms(100, 100), shared: Window::from_ms(100, 100) }
    }

    #[test]
    fn slowdown_is_alone_over_shared_and_the_total_is_that_of_all() {
        let measured = [
            Measured { alone: steady(4_000), shared: steady(1_000) },
            Measured { alone: steady(8_000), shared: steady(6_000) },
        ];
        let report = report(&PolicyOptions::new(PolicyKind::None), &[("a", 100), ("b", 200)], &measured);
        // 10 steps of 10 ms in 100 ms measured: 100 completions a second.
        assert_eq!(report.tenants[0].alone_bytes_per_s, 400_000.0);
        assert_eq!(report.tenants[0].slowdown, Some(4.0));
        assert_eq!(report.total_bytes_per_s, 700_000.0);
        assert_eq!(
            (report.depth, report.window_bytes, report.form),
            (None, None, FormReport::default()),
            "it has none"
        );
    }

    #[test]
    fn the_panel_has_the_first_tenant_alone_and_then_all() {
        let measured = [
            Measured { alone: steady(1_000), shared: steady(500) },
            Measured { alone: steady(2_000), shared: steady(1_500) },
        ];
        let panel = panel("with", vec!["a".into(), "b".into()], lengths(), &measured);
        // 200 ms a phase in steps of 50 ms: 4 steps. 5 completions in a step are bytes x 100 per second.
        assert_eq!(panel.curves[0].bytes_per_s, [1e5, 1e5, 1e5, 1e5, 5e4, 5e4, 5e4, 5e4]);
        assert_eq!(panel.curves[1].bytes_per_s, [1.5e5; 4]);
        assert_eq!((panel.shared_s, panel.curves[0].start_s, panel.curves[1].start_s), (0.2, 0.0, 0.2));
        assert_eq!(panel.curves[1].alone_bytes_per_s, 2e5);
    }
}
