//! A regular file or a block device as a device, or many of them as one: a pool of backings; by io_uring.
//!
//! # What it promises
//! F1. Any offset and length works. Aligned requests go straight between the caller's buffer and the drive (O_DIRECT,
//!     where it can be had); others make a detour over a bounce buffer ([`work`]), and never undo a concurrent write to
//!     the blocks at their edges ([`gate`]).
//! F2. A flush that ended well means that every write acknowledged before it was submitted is on stable storage; a
//!     write with FUA is so by itself. Once the page cache has lost a write, no flush that was under way
//!     ([`syncs`]) and no later one claims otherwise: the device has failed, for
//!     every client that could have relied on its own flush, and does what [`OnFailure`] says.
//! F3. Bytes never written, discarded or zeroed read as zero, whether or not the file system can punch holes.
//! F4. A read fills its whole length, whatever the kernel returned at a time, or fails: if the file ends before the
//!     device does, another process has cut it. From when that is noticed, whatever reaches beyond its end fails, so
//!     that no write makes it long again with a hole in the middle, and so does every flush: acknowledged bytes may be
//!     gone ([`watch`]).
//! F5. Memory that the kernel may still touch is never freed: a queue dropped with commands in flight leaks them.
//! F7. A command of several requests is one readv or writev. One that is aborted is cancelled where the kernel can; it
//!     ends once, and none of its steps begins after that. A queue cannot be reset: the kernel owns the buffers until
//!     it is done.
//! F8. No request makes a worker sleep in the kernel, on whatever file system: unless the file can be read and written
//!     without waiting (FMODE_NOWAIT of Linux), a thread of the kernel's carries each request out.
//! F6. One daemon at a time: the file is locked while it is open, a block device opened exclusively; except to be
//!     measured ([`FileOptions::beside_others`]), by reads alone.
//!
//! | file | answers |
//! |---|---|
//! | `open.rs` | what is this path, how large, how aligned, what other process uses it |
//! | `patience.rs` | does a live process use it, or has the kernel not yet closed a dead one's files |
//! | `elevator.rs` | which drives below schedule by themselves |
//! | `work.rs` | one command as a sequence of system calls, as a function of their results |
//! | `gate.rs` | which writes may share a block at a time |
//! | `syncs.rs` | which of several syncs is told of a lost page |
//! | `watch.rs` | what did another process do to the file while it is served |
//! | `extents.rs` | which bytes are stored |
//! | `queue.rs` | one worker's queue: commands, the ring, the gate |
//! | `backing.rs` | what do all queues share of a file or block device? |
//! | `pool.rs` | which backing has which addresses |

mod backing;
mod elevator;
mod extents;
mod gate;
mod open;
mod patience;
mod pool;
mod queue;
mod syncs;
mod watch;
mod work;

#[cfg(all(test, not(mqfq_loom)))]
mod tests;

use super::{Ailing, Device, DeviceInfo, DeviceQueue, Health, QueueOptions};
use crate::client::Packed;
use crate::state::{StateReader, StateWriter};
use backing::Backing;
pub use backing::OnFailure;
pub use elevator::drive_of;
use pool::Pool;
pub use pool::{BACKINGS_MAX, REGION_BITS, REGION_BYTES, number_of, region_of};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Best size and alignment where the drive's own block is smaller, bytes: a page, the unit of file systems and caches.
const PREFERRED_BYTES_MIN: u32 = 4096;

/// I/O past the page cache, or through it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direct {
    /// Direct I/O if the file can, else through the page cache with a warning.
    #[default]
    Auto,
    /// Direct I/O, or opening fails.
    Always,
    /// Through the page cache.
    Never,
}

/// Options to open a file device with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// A regular file or a block device.
    pub path: PathBuf,
    /// Bytes to serve, from the first on. `None`: all that there are.
    pub size_bytes: Option<u64>,
    /// I/O past the page cache, or through it.
    pub direct: Direct,
    /// Make a file of `size_bytes` if there is none, and extend (sparsely) one that is shorter.
    pub create: bool,
    /// Open it to be read alone, as a file that may not be written (a mount that is read-only, a drive that is)
    /// demands. Requests that change its bytes then fail; callers should not submit them. Not together with `create`.
    pub read_only: bool,
    /// Open the file to measure it, without a lock: other programs may use it, and a block device may be mounted.
    /// Includes `read_only`. Not in a process that serves the file, as [`FileDevice::look`].
    pub beside_others: bool,
    /// Operations still carried out once it has failed.
    pub on_failure: OnFailure,
}

impl FileOptions {
    /// All of an existing file, directly if it can.
    pub fn new(path: impl Into<PathBuf>) -> FileOptions {
        FileOptions {
            path: path.into(),
            size_bytes: None,
            direct: Direct::Auto,
            create: false,
            read_only: false,
            beside_others: false,
            on_failure: OnFailure::Fail,
        }
    }

    /// All of an existing file, to be measured by reads beside its other users.
    pub fn to_measure(path: impl Into<PathBuf>) -> FileOptions {
        FileOptions { read_only: true, beside_others: true, ..FileOptions::new(path) }
    }
}

/// A regular file or a block device, opened and measured, or a pool of them; its queues use io_uring.
pub struct FileDevice {
    pool: Arc<Pool>,
    /// The backing of a file; `None`: of a pool.
    one: Option<Arc<Backing>>,
    info: DeviceInfo,
    warnings: Vec<String>,
}

impl FileDevice {
    /// Opens and locks the file.
    ///
    /// # Errors
    /// One sentence that starts with the path: it is missing, a directory, in use, too short, or not accessible.
    pub fn open(options: &FileOptions) -> Result<FileDevice, String> {
        FileDevice::of(open::open(options)?)
    }

    /// Finds out whether [`FileDevice::open`] would succeed but for a server that serves the file now, and its
    /// [`FileDevice::warnings`] then.
    ///
    /// It opens and closes the file, which takes the signature of a server in this process from it: a process that
    /// serves the file does not look.
    ///
    /// # Errors
    /// One sentence as for [`FileDevice::open`].
    pub fn look(options: &FileOptions) -> Result<Vec<String>, String> {
        open::look(options).map(|opened| opened.warnings)
    }

    fn of(opened: open::Opened) -> Result<FileDevice, String> {
        let open::Opened { backing, size_bytes, warnings } = opened;
        let info = DeviceInfo { size_bytes, ..pool::info_of(backing.align_bytes, backing.align_bytes) };
        let one = Arc::new(backing);
        Ok(FileDevice { pool: Arc::new(Pool::of_one(one.clone())), one: Some(one), info, warnings })
    }

    /// Goes on with `file`, which another process has opened with the same options and serves: the lock is the open
    /// file's, so both have it. Until [`Device::own`] nothing is done that would take the file from the other one.
    ///
    /// # Errors
    /// One sentence as for [`FileDevice::open`], or that the path leads elsewhere.
    pub fn adopt(options: &FileOptions, file: File) -> Result<FileDevice, String> {
        FileDevice::of(open::adopt(options, file)?)
    }

    /// Warnings for the user, one sentence each: a scheduler of the drive's own below this one, or no direct I/O
    /// where it was hoped for.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Unit of direct I/O, bytes; `None` through the page cache.
    pub fn direct_block_bytes(&self) -> Option<u32> {
        self.one.as_ref().map(|one| one.align_bytes).filter(|align_bytes| *align_bytes > 1)
    }
}

impl Device for FileDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn info_at(&self, offset_bytes: u64) -> DeviceInfo {
        self.info_from(offset_bytes)
    }

    fn ring_file(&self) -> Option<BorrowedFd<'_>> {
        self.one.as_ref().map(|one| one.file.as_fd())
    }

    fn check_up(&self) -> Vec<String> {
        self.pool.check_up()
    }

    fn health(&self) -> Health {
        // A pool is as well as it was: its backings have a health each.
        self.one.as_ref().map_or(Health::Well, |one| one.health())
    }

    fn ailing(&self) -> Vec<Ailing> {
        if self.is_pool() { self.pool.ailing() } else { Vec::new() }
    }

    fn pack(&self, version: u16) -> Result<Packed, String> {
        let mut writer = StateWriter::new(version);
        match &self.one {
            None => self.pack_pool(&mut writer),
            Some(one) => {
                writer.u64(self.info.size_bytes);
                // Relaxed: every worker has reported since, by a message, that it has nothing under way.
                writer.flag(one.lost_writes.load(Ordering::Relaxed));
            }
        }
        Ok(Packed { state: writer.into_bytes(), descriptors: Vec::new() })
    }

    fn unpack(&self, packed: Packed, version: u16) -> Result<(), String> {
        let mut reader = StateReader::new(version, &packed.state);
        let Some(one) = &self.one else { return self.unpack_pool(&mut reader) };
        let size_bytes = reader.u64()?;
        if size_bytes != self.info.size_bytes {
            return Err(format!("had {size_bytes} bytes there and has {} here", self.info.size_bytes));
        }
        // Relaxed: a worker's first client comes by a message that is sent after this.
        one.lost_writes.store(reader.flag()?, Ordering::Relaxed);
        reader.end()?;
        watch::learn(one);
        Ok(())
    }

    fn own(&self) {
        self.pool.all().iter().for_each(|(_, backing)| open::own(backing));
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(queue::FileQueue::open(self.pool.clone(), options)?))
    }
}
