//! Counters of the connections of one listener, for metrics.
//!
//! Each connection counts for itself and adds its counts here once per turn of its worker's loop, so that workers do
//! not fight for these cache lines request by request.

use super::rule::Rule;
use super::wire::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Commands of the protocol, and one place for all that are unknown.
const COMMANDS: usize = Command::ALL.len() + 1;

/// Counters of one listener.
// Ordering: every access is Relaxed. The numbers are independent of each other, are only reported, and no memory is
// published through them.
#[derive(Debug)]
pub struct NbdStats {
    connections: AtomicUsize,
    connections_total: AtomicU64,
    connections_refused: AtomicU64,
    requests: [AtomicU64; COMMANDS],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    broken_rules: [AtomicU64; Rule::ALL.len()],
}

/// The counters at one moment, each read by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdCounts {
    /// Connections open now, those in their handshakes included.
    pub connections: usize,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Clients that were refused an export because its tenant may have no more connections, and clients that were
    /// closed at once because the process had no descriptor left.
    pub connections_refused: u64,
    /// Requests by command, refused ones included; unknown commands together as `unknown`.
    pub requests: Vec<(&'static str, u64)>,
    /// Bytes of reads answered.
    pub read_bytes: u64,
    /// Bytes of writes answered.
    pub written_bytes: u64,
    /// How often each rule was broken.
    pub broken_rules: Vec<(&'static str, u64)>,
}

impl NbdStats {
    /// All zero.
    pub fn new() -> Arc<NbdStats> {
        Arc::new(NbdStats {
            connections: AtomicUsize::new(0),
            connections_total: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            requests: Default::default(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            broken_rules: [const { AtomicU64::new(0) }; Rule::ALL.len()],
        })
    }

    /// Reads every counter.
    pub fn counts(&self) -> NbdCounts {
        let names = Command::ALL.map(Command::name).into_iter().chain(["unknown"]);
        NbdCounts {
            connections: self.connections.load(Relaxed),
            connections_total: self.connections_total.load(Relaxed),
            connections_refused: self.connections_refused.load(Relaxed),
            requests: names.zip(self.requests.iter().map(|count| count.load(Relaxed))).collect(),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            broken_rules: Rule::ALL.map(|rule| (rule.name(), self.broken(rule))).to_vec(),
        }
    }

    /// How often `rule` was broken.
    pub fn broken(&self, rule: Rule) -> u64 {
        self.broken_rules[rule as usize].load(Relaxed)
    }

    pub(super) fn count_broken(&self, rule: Rule) {
        self.broken_rules[rule as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn count_opened(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.connections_total.fetch_add(1, Relaxed);
    }

    pub(super) fn count_closed(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    pub(super) fn count_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }
}

/// What one connection counted and has not yet added.
#[derive(Debug, Default)]
pub(super) struct Counted {
    requests: [u64; COMMANDS],
    read_bytes: u64,
    written_bytes: u64,
    any: bool,
}

impl Counted {
    pub(super) fn request(&mut self, command: Option<Command>) {
        self.requests[command.map_or(COMMANDS - 1, |command| command as usize)] += 1;
        self.any = true;
    }

    pub(super) fn read(&mut self, bytes: u32) {
        self.read_bytes += u64::from(bytes);
        self.any = true;
    }

    pub(super) fn written(&mut self, bytes: u32) {
        self.written_bytes += u64::from(bytes);
        self.any = true;
    }

    pub(super) fn add_to(&mut self, stats: &NbdStats) {
        if !std::mem::take(&mut self.any) {
            return;
        }
        let add = |own: &mut u64, shared: &AtomicU64| {
            if *own > 0 {
                shared.fetch_add(std::mem::take(own), Relaxed);
            }
        };
        self.requests.iter_mut().zip(&stats.requests).for_each(|(own, shared)| add(own, shared));
        add(&mut self.read_bytes, &stats.read_bytes);
        add(&mut self.written_bytes, &stats.written_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_once() {
        let stats = NbdStats::new();
        let mut counted = Counted::default();
        counted.request(Some(Command::Read));
        counted.request(None);
        counted.read(512);
        counted.add_to(&stats);
        counted.add_to(&stats);
        let counts = stats.counts();
        assert_eq!(
            counts.requests.iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
            [&("read", 1), &("unknown", 1)]
        );
        assert_eq!(counts.read_bytes, 512);
    }
}
