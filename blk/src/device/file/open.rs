//! Opening the file or block device, and finding its abilities.

use super::backing::Backing;
use super::gate::Gate;
use super::patience::{self, Attempt};
use super::syncs::Syncs;
use super::watch::{self, Watch};
use super::{Direct, FileOptions, elevator};
use crate::buffer::ALIGNMENT_BYTES;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Block of direct I/O on a regular file whose file system does not tell (before Linux 6.1, or tmpfs): the largest
/// logical block of drives in the field, because a guess too small fails writes and one too large only copies some.
const BLOCK_BYTES_GUESS: u32 = 4096;

/// Result of opening a file: the file, its size, and warnings for the user.
pub(super) struct Opened {
    pub(super) backing: Backing,
    pub(super) size_bytes: u64,
    pub(super) warnings: Vec<String>,
}

/// Opens what `options` name. An error is one sentence that starts with the path.
pub(super) fn open(options: &FileOptions) -> Result<Opened, String> {
    let path = options.path.display();
    open_unnamed(options).map_err(|sentence| format!("{path}: {sentence}"))
}

/// Opens `file` in place of its path; another process serves it, and has locked it.
pub(super) fn adopt(options: &FileOptions, file: File) -> Result<Opened, String> {
    let path = options.path.display();
    let same = || {
        let (there, here) = (file.metadata()?, std::fs::metadata(&options.path)?);
        let is_device = here.file_type().is_block_device() && there.file_type().is_block_device();
        let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        Ok::<_, io::Error>(if is_device { there.rdev() == here.rdev() } else { identity(&there) == identity(&here) })
    };
    match same() {
        Ok(true) => measure(options, file, false).map_err(|sentence| format!("{path}: {sentence}")),
        Ok(false) => Err(format!("{path}: is another file than the one that is served")),
        Err(error) => Err(format!("{path}: cannot be looked at: {error}")),
    }
}

/// The process that served it before has ended.
pub(super) fn own(backing: &Backing) {
    patience::sign(&backing.file, backing.read_only);
    // Relaxed: only `drop` reads it, which has the last reference.
    backing.is_own.store(true, Ordering::Relaxed);
}

/// Measures the file as [`open`] would, without the lock and without making the file: a server may be serving it.
pub(super) fn look(options: &FileOptions) -> Result<Opened, String> {
    let options = &FileOptions { create: false, ..options.clone() };
    let file = open_file(options, true).and_then(|file| measure(options, file, false));
    file.map_err(|sentence| format!("{}: {sentence}", options.path.display()))
}

fn open_unnamed(options: &FileOptions) -> Result<Opened, String> {
    if options.beside_others {
        return open_beside_others(options);
    }
    let file = open_file(options, false)?;
    lock(&file, options.read_only)?;
    measure(options, file, true)
}

/// Opens it to be read, without a lock; a warning says if a block device has other users.
fn open_beside_others(options: &FileOptions) -> Result<Opened, String> {
    let options = &FileOptions { create: false, read_only: true, ..options.clone() };
    let mut how = OpenOptions::new();
    how.read(true);
    // O_EXCL asks whether the kernel uses it. It is not kept, so that others may begin to use it.
    let alone = || how.clone().custom_flags(libc::O_EXCL).open(&options.path);
    let is_busy = |error: io::Error| error.raw_os_error() == Some(libc::EBUSY);
    let is_used = is_block_device(options)? && alone().is_err_and(is_busy);
    let file = how.open(&options.path).map_err(|error| refused(&error, "read"))?;
    let mut opened = measure(options, file, false)?;
    if is_used {
        opened.warnings.push(format!(
            "{}: is in use: mounted, part of another device, or served; what its users do is in the figures",
            options.path.display()
        ));
    }
    Ok(opened)
}

/// Measures an open file. `is_own`: no other process serves it.
fn measure(options: &FileOptions, file: File, is_own: bool) -> Result<Opened, String> {
    let metadata = file.metadata().map_err(|error| format!("its size cannot be read: {error}"))?;
    let is_block_device = metadata.file_type().is_block_device();
    let (size_bytes, length_bytes) = if is_block_device {
        size_of_block_device(&file, options.size_bytes)?
    } else {
        size_of_regular_file(&file, &metadata, options)?
    };
    let logical_block_bytes = if is_block_device { logical_block_bytes(&file)? } else { 1 };
    let mut warnings = Vec::new();
    let align_bytes = match direct_alignment(&file, options.direct, logical_block_bytes, size_bytes, length_bytes) {
        Ok(align_bytes) => align_bytes,
        Err(reason) if options.direct == Direct::Auto => {
            warnings.push(format!("{}: {reason}; using the page cache", options.path.display()));
            1
        }
        Err(reason) => return Err(format!("direct I/O is demanded, but {reason}")),
    };
    let is_fuse = is_on_fuse(&file);
    let may_sleep = is_fuse || may_sleep(&file);
    if is_fuse {
        let connection = libc::minor(metadata.dev());
        warnings.push(format!(
            "{}: is on FUSE, which lets few requests be under way, so threads of the kernel submit them; a number such as \
             256 in /sys/fs/fuse/connections/{connection}/max_background lets more",
            options.path.display()
        ));
    }
    let number = if is_block_device { metadata.rdev() } else { metadata.dev() };
    let below = elevator::warnings(Path::new("/sys"), libc::major(number), libc::minor(number));
    warnings.extend(below.into_iter().map(|warning| format!("{}: {warning}", options.path.display())));
    let pool_below = elevator::pool_below(Path::new("/sys"), libc::major(number), libc::minor(number));
    Ok(Opened {
        backing: Backing {
            file,
            align_bytes,
            clear_align_bytes: clear_alignment(align_bytes, is_block_device, logical_block_bytes),
            gate: (align_bytes > 1).then(|| Gate::new(size_bytes)),
            may_sleep,
            syncs: (align_bytes == 1).then(Syncs::new),
            punch_unsupported: AtomicBool::new(false),
            zero_range_unsupported: AtomicBool::new(false),
            zero_range_may_write: is_block_device,
            lost_writes: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            on_failure: options.on_failure,
            hanging: Default::default(),
            no_space: AtomicBool::new(false),
            watch: Watch::new(&options.path, &metadata, size_bytes, pool_below.filter(|_| is_block_device)),
            read_only: options.read_only,
            questions: Default::default(),
            is_own: AtomicBool::new(is_own),
        },
        size_bytes,
        warnings,
    })
}

/// Opens it. `is_look`: a block device that another server serves is opened all the same.
fn open_file(options: &FileOptions, is_look: bool) -> Result<File, String> {
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    let is_missing = || std::fs::metadata(&options.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if options.create && is_missing() {
        if options.size_bytes.is_none() {
            return Err("does not exist, and without a size it cannot be created".into());
        }
        // Only the owner may read what tenants store.
        how.create_new(true).mode(0o600);
    } else if is_block_device(options)? {
        // On a block device O_EXCL means: not mounted, not part of a RAID, not opened like this by another.
        how.custom_flags(libc::O_EXCL);
    }
    let purpose = if options.read_only { "read" } else { "read and write" };
    patience::until_closed(|| match how.open(&options.path) {
        Ok(file) => Attempt::Done(Ok(file)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EBUSY) => {
                let holder = File::open(&options.path).ok().and_then(|file| patience::holder(&file));
                if is_look && holder.is_some() {
                    how.custom_flags(0);
                }
                let holder = holder.filter(|_| !is_look);
                Attempt::Busy {
                    holder,
                    otherwise: "is in use: mounted, part of another device, or perhaps served by another server",
                }
            }
            _ => Attempt::Done(Err(refused(&error, purpose))),
        },
    })
}

/// True if the path leads to a block device and not to a regular file. An error: it leads to neither.
fn is_block_device(options: &FileOptions) -> Result<bool, String> {
    match std::fs::metadata(&options.path) {
        Ok(metadata) if metadata.file_type().is_block_device() => Ok(true),
        Ok(metadata) if metadata.is_dir() => Err("is a directory, not a file or block device".into()),
        Ok(metadata) if !metadata.is_file() => Err("is neither a regular file nor a block device".into()),
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("no such file or block device".into()),
        Err(error) => Err(format!("cannot be looked at: {error}")),
    }
}

/// Reason why a file cannot be opened to be used for `purpose`.
fn refused(error: &io::Error, purpose: &str) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => format!("no permission to {purpose}"),
        _ => format!("cannot be opened to {purpose}: {error}"),
    }
}

/// Keeps a second daemon out for as long as the file is open. The kernel drops the lock when the process ends, however
/// it ends.
fn lock(file: &File, read_only: bool) -> Result<(), String> {
    patience::until_closed(|| {
        // SAFETY: no memory is involved, and the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            patience::sign(file, read_only);
            return Attempt::Done(Ok(()));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Attempt::Done(Err(format!("cannot be locked: {error}")));
        }
        Attempt::Busy { holder: patience::holder(file), otherwise: "is locked by another process" }
    })
}

/// Size to serve and length of the whole.
fn size_of_regular_file(file: &File, metadata: &Metadata, options: &FileOptions) -> Result<(u64, u64), String> {
    let length_bytes = metadata.len();
    let size_bytes = options.size_bytes.unwrap_or(length_bytes);
    if size_bytes == 0 {
        return Err("has no bytes to serve; give it a size".into());
    }
    if size_bytes <= length_bytes {
        return Ok((size_bytes, length_bytes));
    }
    if !options.create {
        return Err(format!("holds {length_bytes} bytes, fewer than the {size_bytes} it is to serve"));
    }
    file.set_len(size_bytes).map_err(|error| format!("cannot be extended to {size_bytes} bytes: {error}"))?;
    // The new length must survive a crash like the writes that will rely on it.
    file.sync_all().map_err(|error| format!("cannot be extended to {size_bytes} bytes: {error}"))?;
    Ok((size_bytes, size_bytes))
}

fn size_of_block_device(file: &File, wanted_bytes: Option<u64>) -> Result<(u64, u64), String> {
    let length_bytes = watch::end_bytes(file).map_err(|error| format!("its size cannot be read: {error}"))?;
    let size_bytes = wanted_bytes.unwrap_or(length_bytes);
    if size_bytes == 0 {
        return Err("has no bytes to serve".into());
    }
    if size_bytes > length_bytes {
        return Err(format!("holds {length_bytes} bytes, fewer than the {size_bytes} it is to serve"));
    }
    Ok((size_bytes, length_bytes))
}

fn logical_block_bytes(file: &File) -> Result<u32, String> {
    let mut block_bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int where we point it.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET as _, &raw mut block_bytes) } != 0 {
        return Err(format!("its block size cannot be read: {}", io::Error::last_os_error()));
    }
    Ok(block_bytes.max(1) as u32)
}

/// Turns direct I/O on if it may be; answers the unit of offsets and lengths, 1 without direct I/O. An error says why
/// direct I/O is impossible.
fn direct_alignment(
    file: &File,
    direct: Direct,
    logical_block_bytes: u32,
    size_bytes: u64,
    length_bytes: u64,
) -> Result<u32, String> {
    if direct == Direct::Never {
        return Ok(1);
    }
    let (memory_bytes, offset_bytes) = match stated_alignment(file) {
        Some((0, _) | (_, 0)) => return Err("the file system does not do it for this file".into()),
        Some(stated) => stated,
        None if logical_block_bytes > 1 => (logical_block_bytes, logical_block_bytes),
        None => (BLOCK_BYTES_GUESS, BLOCK_BYTES_GUESS),
    };
    if memory_bytes as usize > ALIGNMENT_BYTES || !offset_bytes.is_power_of_two() {
        return Err(format!("it asks for memory aligned to {memory_bytes} and offsets to {offset_bytes} bytes"));
    }
    // Later blocks of a buffer are where offsets put them, so one number serves for both.
    let offset_bytes = offset_bytes.max(memory_bytes.next_power_of_two());
    // Writing the last block whole would make a file that ends inside it longer.
    if size_bytes.next_multiple_of(u64::from(offset_bytes)) > length_bytes {
        return Err(format!("its length of {length_bytes} bytes is not a multiple of {offset_bytes}"));
    }
    // SAFETY: no memory is involved, and the descriptor is open.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) } != 0 {
        return Err(format!("the file system refuses it: {}", io::Error::last_os_error()));
    }
    Ok(offset_bytes)
}

/// True if reads and writes of the file may sleep although they are asked not to. Linux marks each open file that
/// honours the request, and refuses a read with RWF_NOWAIT of any other (EOPNOTSUPP) without asking the file system.
/// ext4, XFS, Btrfs and block devices have the mark; FUSE, NFS and tmpfs do not (6.18). io_uring tries a read of a file
/// without it at once if the file can be polled, which one of FUSE can, and then sleeps.
fn may_sleep(file: &File) -> bool {
    let mut byte = 0u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the vector names one byte, which lives through the call, and the descriptor is open.
    let result = unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, 0, libc::RWF_NOWAIT) };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP)
}

/// A file system in user space: beyond its `max_background` requests (12 unless it says otherwise) the thread that
/// submits one sleeps. Source: linux fs/fuse/dev.c, uapi/linux/magic.h.
fn is_on_fuse(file: &File) -> bool {
    const FUSE_SUPER_MAGIC: i128 = 0x6573_5546;
    let mut answer = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open, and the kernel writes at most one statfs.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), answer.as_mut_ptr()) };
    // SAFETY: statfs is made of integers, so zeroes are one too.
    result == 0 && i128::from(unsafe { answer.assume_init() }.f_type) == FUSE_SUPER_MAGIC
}

/// Unit of a hole's offset and length. On a block device its blocks. A file may be cut anywhere, but its system
/// zeroes the rest of a page in the page cache, which direct writes to the same page would have to go around: so
/// holes are whole pages there, and the rest is written.
fn clear_alignment(align_bytes: u32, is_block_device: bool, logical_block_bytes: u32) -> u32 {
    if is_block_device {
        align_bytes.max(logical_block_bytes)
    } else if align_bytes > 1 {
        align_bytes.max(ALIGNMENT_BYTES as u32)
    } else {
        1
    }
}

/// Alignment of memory and of offsets for direct I/O on this file as statx states it (Linux 6.1); 0: none is possible.
fn stated_alignment(file: &File) -> Option<(u32, u32)> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; the kernel writes at most one statx.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN | libc::STATX_TYPE,
            answer.as_mut_ptr(),
        )
    };
    // SAFETY: statx is made of integers, so zeroes are one too, and the kernel fills in whole fields.
    let answer = unsafe { answer.assume_init() };
    let is_stated = result == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0;
    is_stated.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}
