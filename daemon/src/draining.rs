//! The end of a server, and a sentence about its waits.

use crate::output::Output;
use mqfq_blk::engine::{DeviceStats, Engine};
use mqfq_config::text::{counted, shown};
use std::sync::mpsc;
use std::time::Duration;

/// Time from the begin of a drain to a sentence about it.
const DRAIN_TOLD: Duration = Duration::from_secs(1);

/// Requests that a device has not ended.
pub fn requests_left(device: &DeviceStats) -> u64 {
    device.hctxs.iter().map(|hctx| hctx.in_flight + hctx.staged).sum()
}

/// Drains, and says what it waits for after [`DRAIN_TOLD`]. Returns whether all was answered within `drain_s`.
pub fn drain(engine: &Engine, drain_s: u64, output: &Output) -> bool {
    let (over, is_over) = mpsc::channel::<()>();
    let tell = move || {
        let is_long = is_over.recv_timeout(DRAIN_TOLD) == Err(mpsc::RecvTimeoutError::Timeout);
        // At the end of that time another sentence says what is left.
        if is_long && drain_s > DRAIN_TOLD.as_secs() {
            let requests = |device: &DeviceStats| {
                let left = usize::try_from(requests_left(device)).unwrap_or(usize::MAX);
                (left > 0).then(|| format!("{} of device {}", counted(left, "request"), shown(&device.name)))
            };
            let mut what: Vec<String> = engine.stats().devices.iter().filter_map(requests).collect();
            what.push("clients to take their replies".to_owned());
            output.note(&format!("draining: waits up to {drain_s} s for {}", what.join(", ")));
        }
    };
    std::thread::scope(|scope| {
        // Without a thread nothing is said.
        let _ = std::thread::Builder::new().name("mqfq-draining".into()).spawn_scoped(scope, tell);
        let all_answered = engine.drain(Duration::from_secs(drain_s));
        drop(over);
        all_answered
    })
}
