//! Locks the machine: most tests share it, those that compare rates have it alone.

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
