//! Where counters come from: a running engine, or a test.

use mqfq_blk::engine::{Engine, EngineStats};
use std::sync::Arc;

/// A limit of a tenant's own, and how long it held the tenant's requests back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limited {
    /// Name of the tenant, or of its export if exports have weights.
    pub tenant: String,
    /// The export whose limit it is. `None`: it is the tenant's.
    pub export: Option<String>,
    /// The config's key: `max-iops`.
    pub key: String,
    /// Time during which it held requests back, ns, since the start: workers that it held back at the same time count
    /// once, and one that it still holds back counts.
    pub waited_ns: u64,
}

/// Owner of the counters.
pub trait Source: Send + Sync + 'static {
    /// All counters. Asks each worker for its requests under way.
    fn stats(&self) -> EngineStats;

    /// Counters without latencies and requests under way; asks no worker.
    fn sums(&self) -> EngineStats;

    /// Limits of tenants that have any; a tenant may have several.
    fn limited(&self) -> Vec<Limited>;

    /// The device of an export, and the name there under which its requests count. `None`: there is no such export.
    fn export(&self, name: &str) -> Option<(String, String)>;

    /// Exports of a device: the name under which the requests of each count, and its first address.
    fn exports(&self, device: &str) -> Vec<(String, u64)>;
}

/// An engine, its tenants' limits, and its exports.
pub struct Running<F, E, D> {
    /// Has the counters.
    pub engine: Arc<Engine>,
    /// Answers [`Source::limited`].
    pub limited: F,
    /// Answers [`Source::export`].
    pub export: E,
    /// Answers [`Source::exports`].
    pub exports: D,
}

impl<F, E, D> Source for Running<F, E, D>
where
    F: Fn() -> Vec<Limited> + Send + Sync + 'static,
    E: Fn(&str) -> Option<(String, String)> + Send + Sync + 'static,
    D: Fn(&str) -> Vec<(String, u64)> + Send + Sync + 'static,
{
    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    fn sums(&self) -> EngineStats {
        self.engine.sums()
    }

    fn limited(&self) -> Vec<Limited> {
        (self.limited)()
    }

    fn export(&self, name: &str) -> Option<(String, String)> {
        (self.export)(name)
    }

    fn exports(&self, device: &str) -> Vec<(String, u64)> {
        (self.exports)(device)
    }
}
