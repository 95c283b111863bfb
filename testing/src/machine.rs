//! Locks the machine: most tests share it, those that compare rates have it alone. And time that it lost itself.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// For a test whose outcome does not depend on speed. Hold it to the end.
pub fn shared() -> RwLockReadGuard<'static, ()> {
    // A test that failed while it held the lock left nothing half done: there is no data behind it.
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that compares rates: no other test runs beside it. Hold it to the end.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Time for which the hypervisor kept a processor from this machine, in clock ticks of all processors since the start.
/// 0: the machine is no virtual one. Source: proc(5), `/proc/stat`, the eighth number.
pub fn stolen_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    first.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}
