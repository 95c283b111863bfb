//! Is a file that is locked in use, or has the kernel merely not yet closed it for a process that was killed?
//!
//! A daemon that is killed and started again at once may find its own lock. Requests that io_uring still carries out
//! keep the file open, and the kernel closes it a few milliseconds *after* the parent has heard of the death:
//!
//! | step | killed daemon (kernel's side)             | supervisor and new daemon |
//! |------|-------------------------------------------|---------------------------|
//! |  1   | ends; its process locks (fcntl) are gone  |                           |
//! |  2   |                                           | hears of it, starts anew  |
//! |  3   |                                           | flock: would block        |
//! |  4   | last request put, file closed, flock gone |                           |
//! |  5   |                                           | flock: taken              |
//!
//! So a daemon holds two locks: flock, which protects as long as anything can still be written, and a process lock as
//! its signature, gone with the process in step 1. Busy and signed: a live process has the file, refuse at once and
//! name it. Busy and not signed: try again for a second. (The kernel does not announce step 4; all one can do is wait.)

use std::fs::File;
use std::os::fd::AsRawFd;

/// Attempts before a lock without a living owner counts as one, and the wait between them: a second in all, of which a
/// killed daemon on a loaded machine took some tens of milliseconds.
const ATTEMPTS: u32 = 100;
const WAIT_MS: i32 = 10;

/// Outcome of an attempt to have the file alone.
pub(super) enum Attempt<T> {
    /// It succeeded or failed.
    Done(Result<T, String>),
    /// Another process has it.
    Busy {
        /// The living process that signed it.
        holder: Option<i32>,
        /// Error to report if it is not signed and stays busy.
        otherwise: &'static str,
    },
}

/// Attempts until the file is free, or used by a living process, or for a second.
pub(super) fn until_closed<T>(mut attempt: impl FnMut() -> Attempt<T>) -> Result<T, String> {
    let mut attempts_left = ATTEMPTS;
    loop {
        match attempt() {
            Attempt::Done(result) => return result,
            Attempt::Busy { holder: Some(process), .. } => return Err(format!("is served by process {process}")),
            Attempt::Busy { otherwise, .. } if attempts_left == 0 => return Err(otherwise.into()),
            Attempt::Busy { .. } => attempts_left -= 1,
        }
        // SAFETY: no descriptors are polled, so no memory is read.
        unsafe { libc::poll(std::ptr::null_mut(), 0, WAIT_MS) };
    }
}

fn whole_file() -> libc::flock {
    // SAFETY: flock is a C struct of integers; zero means "from the start, to the end, by no process".
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Leaves our process lock on the file. It only names this process, so a file system that has none costs nothing but
/// that. A file that is opened to be read takes no other lock than a reader's, which is in the way of [`holder`]'s
/// question just as well.
pub(super) fn sign(file: &File, read_only: bool) {
    let mut lock = whole_file();
    if read_only {
        lock.l_type = libc::F_RDLCK as libc::c_short;
    }
    // SAFETY: the descriptor is open and the kernel reads one flock.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
}

/// The living process, this one included, that signed the file.
pub(super) fn holder(file: &File) -> Option<i32> {
    // The question of an open file description's lock: those of processes are in its way, our own too.
    let mut lock = whole_file();
    // SAFETY: the descriptor is open and the kernel reads and writes one flock.
    let answered = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    (answered && lock.l_type != libc::F_UNLCK as libc::c_short && lock.l_pid > 0).then_some(lock.l_pid)
}

/// Unlocks the file, even if other processes still hold it open.
pub(super) fn unlock(file: &File) {
    // SAFETY: no memory is involved, and the descriptor is open. An error would mean that there was no lock.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}
