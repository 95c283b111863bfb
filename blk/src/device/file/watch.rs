//! Has another process cut the file that is served, or given its name to another file?
//!
//! The lock keeps other daemons out, and nothing else: `truncate`, `mv` and `rm` need no lock, and the kernel does not
//! report them.
//!
//! | what happened | noticed by | from then on |
//! |---|---|---|
//! | the file ends before the device does | a read that meets the end, or [`check_up`] | whatever reaches beyond the end fails, and every flush |
//! | the page cache lost a write, or the drive is gone | the request that met it | all requests fail, or all but reads |
//! | a block device has no bytes any more: the drive was pulled out | [`check_up`] | the same |
//! | a write or a flush finds no space | [`check_up`] | told alone, with the thin pool of a volume |
//! | its name is gone, or another file's | [`check_up`] | the file that was opened is served on, and its lock protects it alone |
//!
//! No request asks the kernel for any of this: it costs the data path a comparison. So after a cut that is not noticed
//! yet, a write beyond the file's end makes it longer, and the bytes cut off before it read as zeroes.

use super::backing::{Backing, OnFailure};
use crate::request::Op;
use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// Identity and size of the file when it was opened, and changes seen since.
pub(super) struct Watch {
    path: PathBuf,
    identity: Identity,
    /// Bytes that are served. Only grows.
    // Ordering: Relaxed. A client that may use more bytes has heard of them by a message that is sent after this.
    size_bytes: AtomicU64,
    /// The file ends here or before, as far as seen; all ones while it has its full size.
    // Ordering: every access is Relaxed. It only shrinks, no memory is published through it, and a request that was
    // submitted after a failed one was reaped sees what that one saw, by way of the thread that reaped it.
    ends_at_bytes: AtomicU64,
    /// The longest that it was seen, bytes, and how much of that was told.
    // Ordering: every access is Relaxed. Numbers that only grow.
    longest_bytes: AtomicU64,
    told_bytes: AtomicU64,
    /// Words for the pool that it is of and that may be full.
    pool_below: Option<String>,
    /// A look at it is under way, which may hang with its file system.
    // Ordering: Relaxed. Of two looks at a time each is as good.
    is_looked_at: AtomicBool,
    told: Mutex<Told>,
}

/// States already reported to the user.
#[derive(Default)]
struct Told {
    is_cut: bool,
    is_failed: bool,
    is_elsewhere: bool,
    /// Looks until space that is missing is told again.
    looks_until_full: u32,
}

/// Looks from one report that space is missing to the next: a minute.
const FULL_LOOKS: u32 = 60;

/// Number of a block device, or of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Identity {
    BlockDevice { number: u64 },
    File { file_system: u64, number: u64 },
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        if metadata.file_type().is_block_device() {
            Identity::BlockDevice { number: metadata.rdev() }
        } else {
            Identity::File { file_system: metadata.dev(), number: metadata.ino() }
        }
    }
}

impl Watch {
    /// Watches the file at `path`, which has just been opened.
    pub(super) fn new(path: &Path, metadata: &Metadata, size_bytes: u64, pool_below: Option<String>) -> Watch {
        Watch {
            path: path.to_owned(),
            identity: Identity::of(metadata),
            size_bytes: AtomicU64::new(size_bytes),
            ends_at_bytes: AtomicU64::new(u64::MAX),
            longest_bytes: AtomicU64::new(0),
            told_bytes: AtomicU64::new(0),
            pool_below,
            is_looked_at: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    /// Pretends a block device, which no test can pull out.
    #[cfg(all(test, not(mqfq_loom)))]
    pub(super) fn take_for_block_device(&mut self) {
        self.identity = Identity::BlockDevice { number: 0 };
    }

    /// Bytes that are served.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Relaxed)
    }

    /// At least so many bytes are served from now on.
    pub(super) fn grow(&self, size_bytes: u64) {
        self.size_bytes.fetch_max(size_bytes, Relaxed);
    }

    /// It was seen longer than it is served, and than was told before.
    pub(super) fn take_grown(&self) -> bool {
        let longest_bytes = self.longest_bytes.load(Relaxed);
        longest_bytes > self.size_bytes().max(self.told_bytes.fetch_max(longest_bytes, Relaxed))
    }

    /// Words for the pool that it is of and that may be full.
    pub(super) fn pool_below(&self) -> Option<&str> {
        self.pool_below.as_deref()
    }

    /// The path it was opened at.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Requests that end beyond this fail.
    pub(super) fn ends_at_bytes(&self) -> u64 {
        self.ends_at_bytes.load(Relaxed)
    }
}

impl Backing {
    /// A request met the end of the file before that of the device: acknowledged bytes may be gone, so no later flush
    /// may end well.
    pub(super) fn note_cut(&self, ends_at_bytes: u64) {
        self.watch.ends_at_bytes.fetch_min(ends_at_bytes, Relaxed);
        self.lost_writes.store(true, Relaxed);
    }

    /// From now on requests end as [`OnFailure`] says.
    pub(super) fn note_failed(&self) {
        self.failed.store(true, Relaxed);
    }

    /// Acknowledged writes are gone: no flush ends well any more, and requests end as [`OnFailure`] says.
    pub(super) fn note_lost_writes(&self) {
        self.lost_writes.store(true, Relaxed);
        self.note_failed();
    }

    /// No flush, nor a write with FUA, may end well.
    pub(super) fn has_lost_writes(&self) -> bool {
        // Relaxed: a command submitted after the failed flush was reaped sees it, by way of the thread that reaped it;
        // one that overlapped with it, by way of its view (`syncs.rs`).
        self.lost_writes.load(Relaxed)
    }

    /// The device has failed, and does not carry out this operation any more.
    pub(super) fn refuses(&self, op: Op) -> bool {
        // Relaxed: a request submitted after the failure was reaped sees it, by way of the thread that reaped it.
        self.failed.load(Relaxed) && (op != Op::Read || self.on_failure == OnFailure::Fail)
    }
}

/// Takes over lost writes from another process: a cut, if the file is too short, else a failure.
pub(super) fn learn(backing: &Backing) {
    if backing.lost_writes.load(Relaxed) {
        match end_bytes(&backing.file) {
            Ok(end_bytes) if end_bytes < backing.watch.size_bytes() => backing.note_cut(end_bytes),
            _ => backing.note_failed(),
        }
    }
}

/// Where the file ends. (Metadata say 0 of a block device.)
pub(super) fn end_bytes(mut file: &File) -> io::Result<u64> {
    // All reads and writes name their offset, so moving the file's own does no harm.
    file.seek(SeekFrom::End(0))
}

/// Looks at the file and at its name, unless another look is under way; returns news for the user.
pub(super) fn check_up(backing: &Backing) -> Vec<String> {
    if backing.watch.is_looked_at.swap(true, Relaxed) {
        return Vec::new();
    }
    let sentences = look(backing);
    backing.watch.is_looked_at.store(false, Relaxed);
    sentences
}

fn look(backing: &Backing) -> Vec<String> {
    let Watch { path, identity, told, .. } = &backing.watch;
    let size_bytes = backing.watch.size_bytes();
    // An error of the file system is no proof of anything; requests meet it, too.
    let now = end_bytes(&backing.file).ok();
    backing.watch.longest_bytes.fetch_max(now.unwrap_or(0), Relaxed);
    let shorter = now.filter(|end_bytes| *end_bytes < size_bytes);
    if let Some(end_bytes) = shorter {
        backing.note_cut(end_bytes);
    }
    // Linux takes the bytes of a drive that was pulled out away, and then finds nothing to read and no space to
    // write: no request ends with ENODEV.
    let is_pulled = shorter == Some(0) && matches!(identity, Identity::BlockDevice { .. });
    if is_pulled {
        backing.note_failed();
    }
    let is_elsewhere = match std::fs::metadata(path) {
        Ok(metadata) => Identity::of(&metadata) != *identity,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sentences = Vec::new();
    let ends_at_bytes = backing.watch.ends_at_bytes();
    if ends_at_bytes < size_bytes && !std::mem::replace(&mut told.is_cut, true) && !is_pulled {
        sentences.push(format!(
            "{}: was cut to {ends_at_bytes} bytes while {size_bytes} are served: whatever reaches beyond them fails, and every \
             flush, until the device is reopened (mqfq ctl device reopen) or the server started anew",
            path.display()
        ));
    }
    if backing.failed.load(Relaxed) && !std::mem::replace(&mut told.is_failed, true) {
        let rest = match backing.on_failure {
            OnFailure::Fail => "every request",
            OnFailure::ReadOnly => "whatever is not a read",
        };
        sentences.push(format!(
            "{}: has failed: acknowledged writes were lost, or the drive is gone: {rest} fails until the \
             device is reopened (mqfq ctl device reopen)",
            path.display()
        ));
    }
    let no_space = || match backing.watch.pool_below() {
        Some(pool) => format!("; it is {pool}: is that full?"),
        None => String::new(),
    };
    told.looks_until_full = told.looks_until_full.saturating_sub(1);
    if backing.no_space.swap(false, Relaxed) && told.looks_until_full == 0 {
        told.looks_until_full = FULL_LOOKS;
        sentences.push(format!("{}: has no space for a write{}", path.display(), no_space()));
    }
    // The name of a drive goes with it.
    if is_elsewhere && !told.is_elsewhere && !is_pulled {
        sentences.push(format!(
            "{}: was removed or replaced: the file that was opened is served on, and if it has no other name, its bytes end with \
             the server",
            path.display()
        ));
    }
    told.is_elsewhere = is_elsewhere;
    sentences
}
