//! Kicks between workers: a wake word and the eventfd that a sleeping worker's ring reads.

use mqfq_sched::wake::WakeWord;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// One worker's bell. Shared by all threads that may kick it, and alone on its cache lines (128 bytes, because x86-64
/// prefetches the other line of a pair): to kick one worker must not slow another.
#[derive(Debug)]
#[repr(align(128))]
pub struct Bell {
    word: WakeWord,
    /// `None`: the caller that steps the worker looks at the word.
    event: Option<OwnedFd>,
}

impl Bell {
    /// A bell for a worker that runs.
    ///
    /// # Errors
    /// The error of `eventfd`.
    pub fn new() -> std::io::Result<Bell> {
        // SAFETY: eventfd takes no pointers; a non-negative result is a descriptor with no other owner.
        let event = unsafe {
            let event = libc::eventfd(0, libc::EFD_CLOEXEC);
            if event < 0 {
                return Err(std::io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(event)
        };
        Ok(Bell { word: WakeWord::default(), event: Some(event) })
    }

    /// A bell that wakes no thread: the caller that steps the worker looks at [`Bell::is_kicked`] instead.
    pub fn silent() -> Bell {
        Bell { word: WakeWord::default(), event: None }
    }

    /// Makes the worker run a full turn soon. The work for it was published before.
    pub fn kick(&self) {
        if self.word.kick()
            && let Some(event) = &self.event
        {
            let one = 1u64.to_ne_bytes();
            // SAFETY: `one` is 8 readable bytes for the duration of the call; the descriptor is ours.
            let written = unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            // A failure is EAGAIN only on a non-blocking eventfd whose count is full, and ours is neither.
            debug_assert_eq!(written, 8, "eventfd refused a kick");
        }
    }

    /// See [`WakeWord::may_sleep`].
    pub fn may_sleep(&self) -> bool {
        self.word.may_sleep()
    }

    /// See [`WakeWord::is_kicked`].
    pub fn is_kicked(&self) -> bool {
        self.word.is_kicked()
    }

    /// See [`WakeWord::woke`].
    pub fn woke(&self) {
        self.word.woke();
    }

    /// Descriptor from which the worker's ring reads 8 bytes, to be woken; -1 for a silent bell.
    pub fn event(&self) -> RawFd {
        self.event.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}
