//! One backing of a device, as all of its queues share it.

use super::extents;
use super::gate::{Gate, REGIONS_OF_POOL_MAX};
use super::patience;
use super::syncs::Syncs;
use super::watch::Watch;
use crate::device::Health;
use crate::request::Status;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Largest read or write, bytes: what NBD clients may assume that a server takes (NBD protocol, "Block size
/// constraints").
pub(super) const TRANSFER_BYTES_MAX: u32 = 32 << 20;

/// Requests of a device that has lost acknowledged writes, or whose drive is gone, until it is opened anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// All of them fail.
    #[default]
    Fail,
    /// Reads are carried out; everything else fails.
    ReadOnly,
}

/// Commands, and questions for extents, that have not ended in time and could not be ended yet. While there are some, a
/// pool's backing takes no more, so that it holds no more of the pool's depth.
#[derive(Default)]
pub(super) struct Hanging {
    // Ordering: Relaxed. A command too many is as if it had come a moment earlier.
    count: AtomicU32,
    /// When the first of them had timed out, ns of the workers' clock.
    // Ordering: Relaxed. What is shown may be a moment old.
    since_ns: AtomicU64,
}

impl Hanging {
    pub(super) fn is_some(&self) -> bool {
        // Relaxed: see `count`.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// When the first of them had timed out. `None`: there is none.
    pub(super) fn since_ns(&self) -> Option<u64> {
        // Relaxed: see `since_ns`.
        self.is_some().then(|| self.since_ns.load(Ordering::Relaxed))
    }

    /// There is one more.
    pub(super) fn begin(&self, now_ns: u64) {
        // Relaxed: see the fields.
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// One has ended.
    pub(super) fn end(&self) {
        // Relaxed: see `count`.
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// State of one backing that all queues share.
pub(super) struct Backing {
    pub(super) file: File,
    /// Offsets and lengths of reads and writes must be multiples of this, a power of two; 1: through the page cache.
    pub(super) align_bytes: u32,
    /// Unit of holes in the same way; larger than `align_bytes` on a block device through the page cache.
    pub(super) clear_align_bytes: u32,
    /// `None` where no write needs a read-modify-write.
    pub(super) gate: Option<Gate>,
    /// A read or write may put the thread that submits it to sleep, so that a thread of the kernel's has to do it.
    pub(super) may_sleep: bool,
    /// Through the page cache alone.
    pub(super) syncs: Option<Syncs>,
    /// The file system said so once. Hints: a queue that has not seen them asks again.
    pub(super) punch_unsupported: AtomicBool,
    pub(super) zero_range_unsupported: AtomicBool,
    /// The kernel writes zeroes where the drive cannot: it says nothing then. Of block devices.
    pub(super) zero_range_may_write: bool,
    /// A flush failed in the page cache: Linux reports a lost page once, then takes it for clean. Or the file was cut.
    pub(super) lost_writes: AtomicBool,
    /// It lost writes otherwise than by a cut, or its drive is gone. Stays so until another one is opened.
    pub(super) failed: AtomicBool,
    pub(super) on_failure: OnFailure,
    pub(super) hanging: Hanging,
    /// A command found no space since the last look at the backing.
    // Ordering: Relaxed. A look too late is told a second later.
    pub(super) no_space: AtomicBool,
    pub(super) watch: Watch,
    pub(super) read_only: bool,
    pub(super) questions: Arc<extents::Questions>,
    /// No other process serves it: the lock goes when this one closes it.
    pub(super) is_own: AtomicBool,
}

impl Backing {
    pub(super) fn health(&self) -> Health {
        // Relaxed: the health shown may be a moment old.
        match (self.failed.load(Ordering::Relaxed), self.on_failure) {
            (true, OnFailure::Fail) => Health::Failed,
            (true, OnFailure::ReadOnly) => Health::ReadOnly,
            (false, _) if self.lost_writes.load(Ordering::Relaxed) => Health::Cut,
            (false, _) => Health::Well,
        }
    }

    /// The status of a command that met this errno.
    #[cold]
    pub(super) fn status_of(&self, errno: i32) -> Status {
        let status = status_of_errno(errno);
        if status == Status::NoSpace {
            // Relaxed: see `no_space`.
            self.no_space.store(true, Ordering::Relaxed);
        }
        status
    }

    /// It is one of many, and takes little memory.
    pub(super) fn is_of_pool(&mut self, size_bytes: u64) {
        self.gate = self.gate.take().map(|_| Gate::of_regions(size_bytes, REGIONS_OF_POOL_MAX));
    }
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Backing {
    /// The lock is the open file's, which a worker's ring may keep open for a moment after the worker has ended.
    fn drop(&mut self) {
        // Relaxed: the last owner drops it, alone.
        if self.is_own.load(Ordering::Relaxed) {
            patience::unlock(&self.file);
        }
    }
}

/// The one place where an errno of the file becomes a status.
pub(super) fn status_of_errno(errno: i32) -> Status {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Status::NoSpace,
        libc::EINVAL => Status::Invalid,
        libc::EOPNOTSUPP | libc::ENOSYS => Status::Unsupported,
        libc::ECANCELED | libc::ESHUTDOWN | libc::ENODEV | libc::ENXIO => Status::Shutdown,
        _ => Status::Io,
    }
}
