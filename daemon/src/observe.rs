//! What watches a running server: the engine's counters, and the caps of its tenants, for `/metrics`, the page and
//! *why* (`observe`).

use crate::config::LiveCaps;
use mqfq_blk::engine::Engine;
use mqfq_observe::source::Running;
use mqfq_observe::watcher::Watcher;
use std::sync::Arc;

/// Watches `engine` from now on, until what is returned is dropped. `caps` are those of the exports of `tenant_of`: the
/// tenant of each export, by name.
///
/// # Errors
/// One sentence: the thread cannot be started.
pub fn start(engine: Arc<Engine>, caps: &LiveCaps, tenant_of: &[(String, String)]) -> Result<Arc<Watcher>, String> {
    let watched = caps.watched(tenant_of);
    let limited = move || watched.iter().map(|limit| limit.waited()).collect();
    Watcher::start(Arc::new(Running { engine, limited }))
        .map_err(|error| format!("cannot start a thread: {}", crate::plain(&error)))
}
