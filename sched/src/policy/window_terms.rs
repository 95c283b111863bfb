//! T, and the numbers that follow from it.

use crate::flow::TAG_GRAIN;
use crate::vtime::VSpan;

/// T, and the numbers of the relaxed form that follow from it: what can change while MQFQ runs. Fields as in
/// [`PolicyOptions`](super::PolicyOptions).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowTerms {
    /// T.
    pub window: VSpan,
    /// q.
    pub quantum: VSpan,
    /// L.
    pub lease: VSpan,
}

impl WindowTerms {
    /// The terms of the relaxed form for T = `window` and so many queues, 0 of which count as 1: see
    /// [`PolicyOptions::relaxed`](super::PolicyOptions::relaxed).
    pub const fn relaxed(window: VSpan, hctx_count: usize) -> WindowTerms {
        let queues = match hctx_count {
            0 => 1,
            1..8 => hctx_count as u64,
            _ => 8,
        };
        let lease = window.0 / (2 * queues);
        let quantum = if window.0 < VSpan::from_bytes(128).0 { 0 } else { 1 << lease.ilog2() };
        WindowTerms { window, quantum: VSpan(quantum), lease: VSpan(lease - lease % TAG_GRAIN.0) }
    }
}
