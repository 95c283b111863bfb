//! The backings of a device, each with a region of its addresses.
//!
//! ```text
//!   address:  63   62 ........ 48 47 ................. 0
//!             0    number         offset in the backing       of a pool
//!             0    offset in the one backing                  of a file
//! ```
//! An export of a pool begins where its backing's region does, so each comparison of ranges of a device (for overlap,
//! the owner, requests under way) tells backings apart too. Only a queue takes an address to pieces, once for each
//! command.
//!
//! # Invariants
//! B1. A command reaches the backing of its number and no other: a length that leaves its backing is refused, and the
//!     largest backing is a region.
//! B2. A number gets another backing only after each queue has let go of the one before, of which it has no command
//!     ([`FileQueue::follow`](super::queue)). A descriptor is closed with the last queue's hold on it.
//! B3. Idle backings cost no queue a step: no turn goes over all of them.

use super::backing::{Backing, TRANSFER_BYTES_MAX};
use super::open::{self, Opened};
use super::{FileDevice, FileOptions, Health, PREFERRED_BYTES_MIN, watch};
use crate::device::{Ailing, DeviceInfo};
use crate::state::{StateFault, StateReader, StateWriter};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bits of an offset in a backing of a pool: 256 TiB.
pub const REGION_BITS: u32 = 48;

/// Addresses of a backing of a pool, bytes.
pub const REGION_BYTES: u64 = 1 << REGION_BITS;

/// Most backings of a pool.
pub const BACKINGS_MAX: u16 = 1 << 15;

/// The number of the backing that a pool has at this address.
pub const fn number_of(address: u64) -> u16 {
    (address >> REGION_BITS) as u16
}

/// The first address of a backing of a pool.
pub const fn region_of(number: u16) -> u64 {
    (number as u64) << REGION_BITS
}

/// Most backings of a pool that one look at them looks at: thousands of file systems' answers take their time.
const LOOKS_MAX: usize = 1000;

/// Backings by number.
type Backings = Vec<Option<Arc<Backing>>>;

/// The backings that there are. Workers ask when they are told of a change, never for a request.
pub(super) struct Pool {
    /// Bits of an offset in a backing.
    pub(super) offset_bits: u32,
    backings: Mutex<Backings>,
    /// The number at which the next look at them begins.
    next_look: AtomicUsize,
}

impl Pool {
    /// One backing with all addresses.
    pub(super) fn of_one(backing: Arc<Backing>) -> Pool {
        Pool { offset_bits: 63, backings: Mutex::new(vec![Some(backing)]), next_look: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Backings> {
        // A list is whole after each statement.
        self.backings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backing of this number.
    pub(super) fn get(&self, number: usize) -> Option<Arc<Backing>> {
        self.lock().get(number).cloned().flatten()
    }

    /// The backings that there are.
    pub(super) fn all(&self) -> Vec<(u16, Arc<Backing>)> {
        let numbered = (0..).zip(self.lock().clone());
        numbered.filter_map(|(number, backing)| Some((number, backing?))).collect()
    }

    /// Backings that are not well.
    pub(super) fn ailing(&self) -> Vec<Ailing> {
        let ailing = |(number, backing): (u16, &Option<Arc<Backing>>)| {
            let backing = backing.as_ref()?;
            let hangs_since_ns = backing.hanging.since_ns();
            let state = match backing.health() {
                Health::Well if hangs_since_ns.is_some() => "hanging",
                Health::Well => return None,
                health => health.name(),
            };
            let part = backing.watch.path().display().to_string();
            let pool_below = backing.watch.pool_below().map(str::to_owned);
            Some(Ailing { part, offset_bytes: region_of(number), state, pool_below, hangs_since_ns })
        };
        (0..).zip(&*self.lock()).filter_map(ailing).collect()
    }

    /// News about some backings, about all of them in as many calls as it takes. Left out are those at which another
    /// call looks, and those of several that hang: a look would hang, too.
    pub(super) fn check_up(&self) -> Vec<String> {
        let all = self.all();
        // Relaxed: of two looks at a time each is as good.
        let first = self.next_look.fetch_add(LOOKS_MAX, Ordering::Relaxed) % all.len().max(1);
        let looked = all.iter().cycle().skip(first).take(LOOKS_MAX.min(all.len()));
        let looked = looked.filter(|(_, backing)| all.len() == 1 || !backing.hanging.is_some());
        looked.flat_map(|(_, backing)| watch::check_up(backing)).collect()
    }

    /// It has many backings.
    pub(super) fn is_pool(&self) -> bool {
        self.offset_bits == REGION_BITS
    }
}

impl FileDevice {
    /// A pool without backings.
    pub fn pool() -> FileDevice {
        let info = DeviceInfo { size_bytes: i64::MAX as u64, ..info_of(PREFERRED_BYTES_MIN, 0) };
        let pool = Pool { offset_bits: REGION_BITS, backings: Mutex::default(), next_look: AtomicUsize::new(0) };
        FileDevice { pool: Arc::new(pool), one: None, info, warnings: Vec::new() }
    }

    /// Opens a backing of a pool; `file`: as [`FileDevice::adopt`]. Queues that are open use it once they
    /// [follow](crate::device::DeviceQueue::follow). Returns warnings for the user, one sentence each.
    ///
    /// # Errors
    /// One sentence that starts with the path: as [`FileDevice::open`], it is larger than a region, or the number is
    /// taken.
    pub fn add(&self, number: u16, options: &FileOptions, file: Option<File>) -> Result<Vec<String>, String> {
        let path = options.path.display();
        let opened = match file {
            Some(file) => open::adopt(options, file)?,
            None => open::open(options)?,
        };
        let Opened { mut backing, size_bytes, warnings } = opened;
        if size_bytes > REGION_BYTES || !self.pool.is_pool() || number >= BACKINGS_MAX {
            return Err(format!("{path}: has {size_bytes} bytes, allowed in a pool are {REGION_BYTES}"));
        }
        backing.is_of_pool(size_bytes);
        let mut backings = self.pool.lock();
        let place = usize::from(number);
        if backings.len() <= place {
            backings.resize(place + 1, None);
        }
        if let Some(other) = &backings[place] {
            return Err(format!("{path}: the place of {} is not free yet", other.watch.path().display()));
        }
        backings[place] = Some(Arc::new(backing));
        Ok(warnings)
    }

    /// The backing of this number is gone for queues that follow; it is closed when all have. Its path; `None`: there
    /// is none.
    pub fn remove(&self, number: u16) -> Option<PathBuf> {
        let mut backings = self.pool.lock();
        let gone = backings.get_mut(usize::from(number))?.take()?;
        while backings.last().is_some_and(Option::is_none) {
            backings.pop();
        }
        Some(gone.watch.path().to_owned())
    }

    /// Serves `size_bytes` of a backing from now on, if that is more than before.
    ///
    /// # Errors
    /// One sentence that starts with the path: it has fewer.
    pub fn grow(&self, number: u16, size_bytes: u64) -> Result<(), String> {
        let backing = self.pool.get(number.into()).ok_or("this backing is gone")?;
        if size_bytes <= backing.watch.size_bytes() {
            return Ok(());
        }
        let path = backing.watch.path().display();
        let end_bytes =
            watch::end_bytes(&backing.file).map_err(|error| format!("{path}: its size cannot be read: {error}"))?;
        let whole_bytes = end_bytes.min(REGION_BYTES) / u64::from(backing.align_bytes) * u64::from(backing.align_bytes);
        if size_bytes > whole_bytes {
            return Err(format!("{path}: holds {whole_bytes} bytes, fewer than the {size_bytes} it is to serve"));
        }
        backing.watch.grow(size_bytes);
        Ok(())
    }

    /// Descriptors of the backings, each with number and path, for a process that takes this one's place.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn lend(&self) -> std::io::Result<Vec<(u16, PathBuf, File)>> {
        let lent = |(number, backing): (u16, Arc<Backing>)| {
            Ok((number, backing.watch.path().to_owned(), backing.file.try_clone()?))
        };
        self.pool.all().into_iter().map(lent).collect()
    }

    /// A backing that [`Device::check_up`](crate::device::Device::check_up) has seen to be longer than it is served;
    /// each length is told once.
    pub fn take_grown(&self) -> Option<u16> {
        let is_grown = |(_, backing): &(u16, Arc<Backing>)| backing.watch.take_grown();
        self.pool.all().into_iter().find(is_grown).map(|(number, _)| number)
    }

    /// It has many backings.
    pub fn is_pool(&self) -> bool {
        self.pool.is_pool()
    }

    /// Properties as an export that begins at this address sees them; `size_bytes` is the first address after the last
    /// byte that it may have.
    pub(super) fn info_from(&self, address: u64) -> DeviceInfo {
        if !self.pool.is_pool() {
            return self.info;
        }
        let number = number_of(address);
        match self.pool.get(number.into()) {
            Some(backing) => DeviceInfo {
                size_bytes: region_of(number) + backing.watch.size_bytes(),
                ..info_of(backing.align_bytes, backing.align_bytes)
            },
            None => DeviceInfo { size_bytes: region_of(number), ..self.info },
        }
    }

    /// The state of each backing of a pool.
    pub(super) fn pack_pool(&self, writer: &mut StateWriter) {
        let all = self.pool.all();
        writer.u32(all.len() as u32);
        for (number, backing) in all {
            writer.u16(number);
            writer.bytes(backing.watch.path().as_os_str().as_bytes());
            writer.u64(backing.watch.size_bytes());
            // Relaxed: as in `pack`.
            writer.flag(backing.lost_writes.load(Ordering::Relaxed));
        }
    }

    /// Goes on with the state of each backing that is here too.
    pub(super) fn unpack_pool(&self, reader: &mut StateReader<'_>) -> Result<(), String> {
        for _ in 0..reader.u32()? {
            let (number, path) = (reader.u16()?, reader.bytes()?.to_vec());
            let (size_bytes, is_lost) = (reader.u64()?, reader.flag()?);
            let Some(backing) = self.pool.get(number.into()) else { continue };
            let here = backing.watch.path();
            if here.as_os_str().as_bytes() != path {
                return Err(format!("has {} where the server before has another backing", here.display()));
            }
            let size_here = backing.watch.size_bytes();
            if size_here < size_bytes {
                return Err(format!("had {size_bytes} bytes of {} there and has {size_here} here", here.display()));
            }
            // Relaxed: as in `unpack`.
            backing.lost_writes.store(is_lost, Ordering::Relaxed);
            watch::learn(&backing);
        }
        reader.end().map_err(|fault: StateFault| fault.into())
    }
}

/// Properties of a backing with this unit of direct I/O, but for its size.
pub(super) fn info_of(align_bytes: u32, pages_align_bytes: u32) -> DeviceInfo {
    DeviceInfo {
        size_bytes: 0,
        block_bytes: 1,
        preferred_bytes: PREFERRED_BYTES_MIN.max(align_bytes),
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        // The page cache, or the drive's: nothing is promised before a flush.
        volatile_cache: true,
        pages_align_bytes,
    }
}
