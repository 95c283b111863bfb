//! Options of a worker, fixed at its start.

use crate::client::POLL_NS_MIN;

/// Options of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerOptions {
    /// A worker whose next device event is nearer than this goes round again instead of sleeping, ns.
    pub spin_ns: u64,
    /// Time that a worker that waits for another spins before it sleeps, ns, as long as that pays; 0: it sleeps at
    /// once.
    pub patience_ns: u64,
    /// Longest time that looking for a client's next request pays, ns.
    pub poll_ns: u64,
    /// Most ended operations that one look at the host brings: memory for so many is taken at the start.
    pub ended_max: usize,
    /// Turns end for the sake of fairness ([`HwCtx::begin_turn`](crate::hctx::HwCtx::begin_turn)). Off for clients that
    /// have staged all that they have: there are no sockets in which requests could wait.
    pub fair_turns: bool,
}

impl Default for WorkerOptions {
    /// Options for a device that interrupts, on real cores.
    fn default() -> WorkerOptions {
        WorkerOptions { spin_ns: 0, patience_ns: POLL_NS_MIN, poll_ns: POLL_NS_MIN, ended_max: 0, fair_turns: true }
    }
}
