//! A descriptor to give up when the process has no other left, so that a client that waits can be turned away.
//!
//! A process without descriptors cannot accept, and so cannot refuse either: its clients would hang. With one that is
//! given up, the next client is accepted in its place. By then others may have been closed. So a listener that accepts
//! while the reserve is given up takes it back first: if that succeeds there are descriptors, and the client stays.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One descriptor, for all listeners of a process.
#[derive(Debug)]
pub struct Reserve {
    open: fn() -> Option<OwnedFd>,
    held: Mutex<Option<OwnedFd>>,
}

impl Default for Reserve {
    /// Nothing is held before the first [`Reserve::take_back`].
    fn default() -> Reserve {
        Reserve::opened_by(|| File::open("/dev/null").ok().map(OwnedFd::from))
    }
}

impl Reserve {
    pub(crate) fn opened_by(open: fn() -> Option<OwnedFd>) -> Reserve {
        Reserve { open, held: Mutex::new(None) }
    }

    /// True: there is one descriptor more now. False: another listener has given it up already.
    pub fn give_up(&self) -> bool {
        self.held().take().is_some()
    }

    /// True: it is held. False: no descriptor is left.
    pub fn take_back(&self) -> bool {
        let mut held = self.held();
        if held.is_none() {
            *held = (self.open)();
        }
        held.is_some()
    }

    fn held(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
