//! Descriptors that a stranger passed over a socket (SCM_RIGHTS), and the sockets on which one may still lie unread.
//!
//! The last close of a file waits for as long as its owner likes: a TCP socket with SO_LINGER and unsent data, a file
//! of FUSE whose server answers no FLUSH, a unix socket in whose queue such a descriptor lies. No worker closes one.
//! A [`Passed`] that is dropped goes to the [`Door`] by which it came, and a thread of its own closes it.
//!
//! ```text
//!   worker: drop ─▶ queue of the door ─▶ closer: one door's descriptors, one after the other
//! ```
//!
//! # Bounds
//! A close that waits holds up the closes of its own door alone: before a closer begins, another one is there for the
//! other doors. So there is at most one closer more than doors whose closes wait.
//!
//! A door counts its descriptors until they are closed, waiting ones included. Its user takes nothing more from a
//! stranger while the door is full ([`Door::is_full`]), so a stranger whose closes wait shuts its own address only.
//! Doors have [`OPEN_MAX`] descriptors each and half of the process's together, but [`OPEN_LEAST`] in any case.
//!
//! Without closers (an engine that is stepped, a test) a descriptor is closed where it is dropped.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, thread};

/// A door with so many open descriptors is full.
pub const OPEN_MAX: usize = 2048;

/// A door with fewer is not full, however many other doors have: those of one front-end with all its queues.
pub const OPEN_LEAST: usize = 256;

/// Closers that wait for work, at most.
const IDLE_MAX: usize = 2;

/// Descriptors of all doors.
static OPEN: AtomicUsize = AtomicUsize::new(0);

static CLOSERS: OnceLock<Closers> = OnceLock::new();

/// A descriptor that a stranger has passed, or another whose close may wait for a stranger.
#[derive(Debug)]
pub struct Passed {
    /// Taken when it is dropped.
    file: Option<OwnedFd>,
    door: Option<Arc<Door>>,
}

impl From<OwnedFd> for Passed {
    /// A descriptor of our own, which is closed where it is dropped.
    fn from(file: OwnedFd) -> Passed {
        Passed { file: Some(file), door: None }
    }
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("taken by drop alone").as_fd()
    }
}

impl AsRawFd for Passed {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let (Some(file), Some(door)) = (self.file.take(), self.door.take()) {
            door.close(file);
        }
    }
}

/// A door where strangers pass descriptors: one address.
#[derive(Debug, Default)]
pub struct Door {
    /// Open descriptors that came by it.
    open: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    files: VecDeque<OwnedFd>,
    /// The door is in the list of the closers, or one of them has it.
    is_listed: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state behind the lock is whole after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Door {
    /// A door without descriptors.
    pub fn new() -> Arc<Door> {
        Arc::default()
    }

    /// Notes that `file` came by this door.
    pub fn pass(self: &Arc<Door>, file: OwnedFd) -> Passed {
        // Relaxed, both: counts, by which no memory is published.
        self.open.fetch_add(1, Relaxed);
        OPEN.fetch_add(1, Relaxed);
        Passed { file: Some(file), door: Some(self.clone()) }
    }

    /// Number of descriptors that came by it and are not closed.
    pub fn open(&self) -> usize {
        // Relaxed: a count.
        self.open.load(Relaxed)
    }

    /// It has `times` the descriptors that a door may have: nothing more is to be taken from a stranger here.
    pub fn is_full(&self, times: usize) -> bool {
        let open = self.open();
        // Relaxed: a count.
        open >= OPEN_MAX * times || (open >= OPEN_LEAST * times && OPEN.load(Relaxed) >= open_max())
    }

    fn close(self: Arc<Door>, file: OwnedFd) {
        let Some(closers) = CLOSERS.get() else {
            drop(file);
            return self.closed();
        };
        let mut queue = locked(&self.queue);
        queue.files.push_back(file);
        let is_listed = std::mem::replace(&mut queue.is_listed, true);
        drop(queue);
        if !is_listed {
            closers.list(self);
        }
    }

    fn closed(&self) {
        // Relaxed, both: counts.
        self.open.fetch_sub(1, Relaxed);
        OPEN.fetch_sub(1, Relaxed);
    }

    /// Closes the descriptors that wait here, one after the other.
    fn close_all(&self) {
        loop {
            let mut queue = locked(&self.queue);
            let Some(file) = queue.files.pop_front() else {
                queue.is_listed = false;
                return;
            };
            drop(queue);
            // Here it may wait.
            drop(file);
            self.closed();
        }
    }
}

/// Has the kernel refuse descriptors that are sent to `socket`, which takes none: it would close them on the worker
/// that receives the bytes. False: a kernel before Linux 6.16, or no unix socket.
pub fn refuse(socket: impl AsFd) -> bool {
    // Source: include/uapi/asm-generic/socket.h.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (off, bytes) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the one number.
    unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), bytes) == 0 }
}

/// Half of the descriptors that this process may have.
fn open_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes the one struct.
        let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
        if is_known { usize::try_from(limit.rlim_cur / 2).unwrap_or(usize::MAX) } else { usize::MAX }
    })
}

/// Work that may wait for as long as a stranger or a file system likes.
pub(crate) trait MayWait: Send + Sync {
    /// Does what there is to do, on a closer.
    fn work(&self);
}

impl MayWait for Door {
    fn work(&self) {
        self.close_all();
    }
}

/// Has a closer do this work, which is listed once until it is done. False: there are no closers.
pub(crate) fn give_to_closers(work: Arc<dyn MayWait>) -> bool {
    let closers = CLOSERS.get();
    closers.is_some_and(|closers| {
        closers.list(work);
        true
    })
}

/// The threads that close, and the doors that wait for one.
struct Closers {
    list: Mutex<List>,
    more: Condvar,
}

struct List {
    /// Each door is here once at most, and so is what else may wait.
    waiting: VecDeque<Arc<dyn MayWait>>,
    /// Closers that wait for work, or are on their way to that.
    idle: usize,
}

/// Starts the closers of this process, once. After it has given up its privileges: a thread keeps those that it had.
///
/// # Errors
/// No thread can be made.
pub fn start_closers() -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = locked(&STARTING);
    if CLOSERS.get().is_none() {
        begin()?;
        let list = Mutex::new(List { waiting: VecDeque::new(), idle: 1 });
        let _ = CLOSERS.set(Closers { list, more: Condvar::new() });
    }
    Ok(())
}

fn begin() -> io::Result<()> {
    let work = || CLOSERS.wait().work();
    thread::Builder::new().name("mqfq-closer".into()).stack_size(64 << 10).spawn(work).map(drop)
}

impl Closers {
    fn list(&self, work: Arc<dyn MayWait>) {
        let mut list = locked(&self.list);
        list.waiting.push_back(work);
        let wakes = list.idle > 0;
        drop(list);
        if wakes {
            self.more.notify_one();
        }
    }

    /// Runs a closer, which is counted as idle.
    fn work(&self) {
        let mut list = locked(&self.list);
        loop {
            list = self.more.wait_while(list, |list| list.waiting.is_empty()).unwrap_or_else(PoisonError::into_inner);
            let work = list.waiting.pop_front();
            // The last one is replaced before work that may wait.
            let is_last = list.idle == 1;
            list.idle -= usize::from(!is_last);
            drop(list);
            let is_replaced = is_last && begin().is_ok();
            work.into_iter().for_each(|work| work.work());
            list = locked(&self.list);
            // Where no thread could be made, this one was counted as idle all the time.
            if !is_last || is_replaced {
                if list.idle >= IDLE_MAX {
                    return;
                }
                list.idle += 1;
            }
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use mqfq_testing::stranger::lingering;
    use std::io::Read;

    #[test]
    fn a_close_that_waits_holds_up_its_own_door_alone_and_not_whoever_drops() {
        start_closers().unwrap();
        let doors: Vec<Arc<Door>> = (0..8).map(|_| Door::new()).collect();
        let mut peers = Vec::new();
        for door in &doors[..7] {
            let (socket, peer) = lingering();
            drop(door.pass(socket));
            peers.push(peer);
        }
        let (mut reader, writer) = io::pipe().unwrap();
        drop(doors[7].pass(writer.into()));
        // Ends when the other end is closed, and never otherwise.
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(doors[..7].iter().all(|door| door.open() == 1), "their closes wait");
        drop(peers);
        for door in &doors {
            while door.open() > 0 {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_door_is_full_at_its_bound_and_every_close_makes_room() {
        let door = Door::new();
        let (_reader, writer) = io::pipe().unwrap();
        let one = || door.pass(writer.try_clone().unwrap().into());
        let mut held: Vec<Passed> = (0..OPEN_LEAST).map(|_| one()).collect();
        assert_eq!((door.open(), door.is_full(1)), (OPEN_LEAST, open_max() <= OPEN_LEAST));
        // Counted, and never closed: how many a process may have does not matter here.
        door.open.fetch_add(OPEN_MAX - OPEN_LEAST, Relaxed);
        assert!(door.is_full(1) && !door.is_full(2));
        held.pop();
        while door.open() >= OPEN_MAX {
            thread::yield_now();
        }
        assert!(!door.is_full(1));
    }
}
