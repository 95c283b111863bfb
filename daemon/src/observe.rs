//! Observers of a running server: the engine's counters, and the caps of its tenants, for `/metrics`, the page and
//! *why* (`observe`).

use crate::config::caps::WatchedCaps;
use crate::live::Owners;
use mqfq_blk::engine::Engine;
use mqfq_observe::source::Running;
use mqfq_observe::watcher::Watcher;
use std::sync::Arc;

/// Watches `engine`, its caps and its exports from now on, until the returned value is dropped.
///
/// # Errors
/// One sentence: the thread cannot be started.
pub fn start(engine: Arc<Engine>, caps: WatchedCaps, owners: Owners) -> Result<Arc<Watcher>, String> {
    let clock = engine.clone();
    let limited = move || caps.waited(clock.clock().now_ns());
    let export = move |name: &str| owners.counted(name);
    Watcher::start(Arc::new(Running { engine, limited, export }))
        .map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))
}
