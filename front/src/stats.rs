//! Counters of the connections of one listener, for metrics.
//!
//! Each connection counts for itself and adds its counts here once per turn of its worker's loop, so that workers do
//! not fight for these cache lines request by request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Names of a front end's counters, in logs, metrics and reports. Stable.
#[derive(Debug)]
pub struct Names {
    /// The front end.
    pub front_end: &'static str,
    /// Requests are counted by these.
    pub requests: &'static [&'static str],
    /// Rules that a client can break.
    pub rules: &'static [&'static str],
    /// The rule, by its place among the rules, that a handshake breaks which is the oldest of too many.
    pub crowded_out: usize,
    /// Most handshakes at a time of a listener.
    pub handshakes_max: usize,
    /// Numbers that only this front end has.
    pub own: &'static [&'static str],
}

/// The names of all rules of an enum that lists them in `ALL`, by place: [`Names::rules`].
macro_rules! names_of {
    ($rule:ty) => {
        &{
            let mut names = [""; <$rule>::ALL.len()];
            let mut place = 0;
            while place < names.len() {
                names[place] = <$rule>::ALL[place].name();
                place += 1;
            }
            names
        }
    };
}
pub(crate) use names_of;

/// Counters of one listener.
// Ordering: every access is Relaxed. The numbers are independent of each other, are only reported, and no memory is
// published through them.
#[derive(Debug)]
pub struct Stats {
    names: &'static Names,
    connections: AtomicUsize,
    connections_total: AtomicU64,
    connections_refused: AtomicU64,
    requests: Box<[AtomicU64]>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    broken_rules: Box<[AtomicU64]>,
    own: Box<[AtomicU64]>,
}

/// The counters at one moment, each read by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Connections open now, those in their handshakes included.
    pub connections: usize,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Clients that were refused an export because its tenant may have no more connections, and clients that were
    /// closed at once because the process had no descriptor left.
    pub connections_refused: u64,
    /// Requests by kind, refused ones included.
    pub requests: Vec<(&'static str, u64)>,
    /// Bytes of reads answered.
    pub read_bytes: u64,
    /// Bytes of writes answered.
    pub written_bytes: u64,
    /// Number of times that each rule was broken.
    pub broken_rules: Vec<(&'static str, u64)>,
    /// Numbers that only this front end has.
    pub own: Vec<(&'static str, u64)>,
}

impl Stats {
    /// All zero.
    pub fn new(names: &'static Names) -> Arc<Stats> {
        let zeroes = |names: &[&str]| names.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(Stats {
            names,
            connections: AtomicUsize::new(0),
            connections_total: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            requests: zeroes(names.requests),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            broken_rules: zeroes(names.rules),
            own: zeroes(names.own),
        })
    }

    /// Names of the counters.
    pub fn names(&self) -> &'static Names {
        self.names
    }

    /// Reads every counter.
    pub fn counts(&self) -> Counts {
        let named = |names: &'static [&'static str], counts: &[AtomicU64]| {
            names.iter().copied().zip(counts.iter().map(|count| count.load(Relaxed))).collect()
        };
        Counts {
            connections: self.connections.load(Relaxed),
            connections_total: self.connections_total.load(Relaxed),
            connections_refused: self.connections_refused.load(Relaxed),
            requests: named(self.names.requests, &self.requests),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            broken_rules: named(self.names.rules, &self.broken_rules),
            own: named(self.names.own, &self.own),
        }
    }

    /// Number of times that `rule`, by its place in [`Names::rules`], was broken.
    pub fn broken(&self, rule: impl Into<usize>) -> u64 {
        self.broken_rules[rule.into()].load(Relaxed)
    }

    /// `rule` was broken.
    pub fn count_broken(&self, rule: impl Into<usize>) {
        self.broken_rules[rule.into()].fetch_add(1, Relaxed);
    }

    /// Adds to the number at this place in [`Names::own`].
    pub fn add_own(&self, place: usize, value: u64) {
        self.own[place].fetch_add(value, Relaxed);
    }

    /// A client came.
    pub fn count_opened(&self) {
        self.connections.fetch_add(1, Relaxed);
        self.connections_total.fetch_add(1, Relaxed);
    }

    /// A client left.
    pub fn count_closed(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    /// A client was refused.
    pub fn count_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }
}

/// Counts of one client that are not yet added.
#[derive(Debug)]
pub struct Counted {
    requests: Box<[u64]>,
    read_bytes: u64,
    written_bytes: u64,
    any: bool,
}

impl Counted {
    /// Nothing yet, of a front end with these names.
    pub fn new(names: &Names) -> Counted {
        let requests = names.requests.iter().map(|_| 0).collect();
        Counted { requests, read_bytes: 0, written_bytes: 0, any: false }
    }

    /// A request came, of the kind at this place in [`Names::requests`].
    pub fn request(&mut self, kind: usize) {
        self.requests[kind] += 1;
        self.any = true;
    }

    /// A read was answered.
    pub fn read(&mut self, bytes: u32) {
        self.read_bytes += u64::from(bytes);
        self.any = true;
    }

    /// A write was answered.
    pub fn written(&mut self, bytes: u32) {
        self.written_bytes += u64::from(bytes);
        self.any = true;
    }

    /// Adds it, and begins anew. Once per turn of the worker's loop.
    pub fn add_to(&mut self, stats: &Stats) {
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

    const NAMES: Names = Names {
        front_end: "test",
        requests: &["read", "write", "unknown"],
        rules: &["crowded_out", "late"],
        crowded_out: 0,
        handshakes_max: 16,
        own: &["kicks"],
    };

    #[test]
    fn counts_are_added_once() {
        let stats = Stats::new(&NAMES);
        let mut counted = Counted::new(&NAMES);
        counted.request(0);
        counted.request(2);
        counted.read(512);
        counted.add_to(&stats);
        counted.add_to(&stats);
        stats.count_broken(1usize);
        stats.add_own(0, 7);
        let counts = stats.counts();
        assert_eq!(counts.requests, [("read", 1), ("write", 0), ("unknown", 1)]);
        assert_eq!((counts.read_bytes, counts.written_bytes), (512, 0));
        assert_eq!(counts.broken_rules, [("crowded_out", 0), ("late", 1)]);
        assert_eq!(counts.own, [("kicks", 7)]);
    }
}
