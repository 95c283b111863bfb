//! May a device run a policy that leaves the arbitration to it, and which one does it run if not?
//!
//! A device's claim that it serves class queues by their weights is not enough: drives were sold that take the weights
//! and ignore them, and on those the policy would share nothing out. So it is measured ([`crate::probe`]).

use crate::probe::{DEADLINE_NS, Failure, Finding, Probe};
use mqfq_blk::device::QueueOptions;
use mqfq_blk::engine::{Prepare, Settled};
use mqfq_blk::worker::clock::Clock;
use mqfq_blkmq::{MultiQueue, QueueLayout, QueueMap, share};
use mqfq_sched::policy::PolicyOptions;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Has an engine serve `device`, which is that of the options, through queues of `layout`. If its policy leaves the
/// arbitration to it, some hundreds of reads measure it first. `fallback`: policy in its place if the device lacks
/// class queues, or if they have no effect; `None`: the device is refused.
pub fn prepare(device: Arc<dyn MultiQueue>, layout: QueueLayout, fallback: Option<PolicyOptions>) -> Prepare {
    Arc::new(move |options, topology, clock| {
        let policy = options.policy;
        if policy.kind.is_direct() && device.offers_class_queues() {
            // Errors in the numbers are reported before measuring.
            QueueMap::of_sets(&layout, topology, &*device, options.queue_depth)?;
        }
        let settled = match clock {
            Some(clock) => settle(&*device, policy, fallback, clock)?,
            None => Settled::configured(policy),
        };
        share(options, &device, &layout, topology, settled.policy.kind)?;
        Ok(settled)
    })
}

fn settle(
    device: &dyn MultiQueue,
    policy: PolicyOptions,
    fallback: Option<PolicyOptions>,
    clock: Clock,
) -> Result<Settled, String> {
    if let Some(fallback) = fallback.filter(|fallback| fallback.kind.is_direct()) {
        return Err(format!(
            "policy {} needs what it is to replace: allowed is a policy that schedules by itself",
            fallback.kind
        ));
    }
    let kind = policy.kind;
    if !kind.is_direct() {
        return Ok(Settled::configured(policy));
    }
    let (finding, reason) = if device.offers_class_queues() {
        let found = probe(device, clock)?;
        let reason = match &found {
            Ok(finding) if finding.has_effect() => {
                return Ok(Settled { policy, finding: Some(*finding), fell_back: None });
            }
            Ok(finding) => format!(
                "on this one it has no effect: high to low weights of {:.0}:1 gave {:.2}:1 over {} reads",
                finding.expected_ratio, finding.weighted_ratio, finding.requests
            ),
            Err(failure) => format!("whether this one has it could not be measured: {failure}"),
        };
        (found.ok(), reason)
    } else {
        (None, "this one has none".to_owned())
    };
    let reason = format!("policy {kind} needs weighted round robin among the device's queues, and {reason}");
    match fallback {
        Some(policy) => Ok(Settled { policy, finding, fell_back: Some(reason) }),
        None => Err(format!("{reason}; allowed is another policy, or one to fall back to")),
    }
}

/// Measures on queues that are gone afterwards.
///
/// A device that interrupts is waited for. One that says when its next event is has no clock of its own, so it is told
/// that it is then: no look is late, however busy the machine. If it was ahead of the clock at the end, the probe waits
/// until the clock is there.
fn probe(device: &dyn MultiQueue, clock: Clock) -> Result<Result<Finding, Failure>, String> {
    let probe = Probe::new(device.info(), device.queue_limits());
    let interrupted = Arc::new(AtomicBool::new(false));
    let seen = interrupted.clone();
    let options = QueueOptions {
        hctx: HctxId(0),
        depth: probe.queue_depth(),
        ring: None,
        // Relaxed: it only says that a look is worth it; completions lie under the device's lock.
        interrupt: Arc::new(move |_| seen.store(true, Ordering::Relaxed)),
    };
    let mut queue = device.open_class_queues(options)?;
    let start_ns = clock.now_ns();
    let mut told_ns = start_ns;
    let wait = |until_ns| {
        if until_ns < start_ns.saturating_add(DEADLINE_NS) {
            told_ns = until_ns;
            return until_ns;
        }
        loop {
            let now_ns = clock.now_ns();
            // Relaxed: as above.
            if now_ns >= until_ns || interrupted.swap(false, Ordering::Relaxed) {
                return now_ns;
            }
            std::hint::spin_loop();
        }
    };
    let found = probe.run(&mut *queue, start_ns, wait);
    drop(queue);
    while clock.now_ns() < told_ns {
        std::thread::yield_now();
    }
    Ok(found)
}
