//! The lock under which a unix socket is bound.
//!
//! It is flock on a file beside the socket that the server's user alone can open: mode 0600, one for each user. (The
//! folder itself, or a file that others may read, can be locked by anyone who may open it, for as long as they like.)
//! The file is there only while a socket is bound.

use mqfq_blk::worker::clock::Clock;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::{File, TryLockError};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A socket is bound within microseconds, so a holder of this long is stuck. The first such wait ends a start or a
/// change.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

const AGAIN: Duration = Duration::from_millis(2);

/// Held until it is dropped, which removes the file.
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits at most `within` for the lock of the sockets in `folder`. `None`: this user cannot make such a file there,
    /// or another user has put one in its place.
    ///
    /// # Errors
    /// One sentence: another process of this user holds it.
    pub(super) fn take(folder: &Path, within: Duration) -> Result<Option<Lock>, String> {
        let path = folder.join(format!(".mqfq-{}.lock", rustix::process::geteuid().as_raw()));
        let clock = Clock::start();
        loop {
            let Some(file) = open(&path) else { return Ok(None) };
            match file.try_lock() {
                // The file that was locked may be one that its holder has removed meanwhile.
                Ok(()) if super::identity(&path).ok() == about(&file) => return Ok(Some(Lock { path, _file: file })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if u128::from(clock.now_ns()) >= within.as_nanos() => {
                    let holder = holder(&file).map_or("a process".to_owned(), |pid| format!("process {pid}"));
                    let (path, within_s) = (path.display(), within.as_secs_f64());
                    return Err(format!("{holder} has held the lock {path} for {within_s} s; it has to end first"));
                }
                Err(TryLockError::WouldBlock) => std::thread::park_timeout(AGAIN),
                Err(TryLockError::Error(_)) => return Ok(None),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that stays is the next server's.
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// The file, made if it is not there. `None`: it cannot be, or others can open it.
fn open(path: &Path) -> Option<File> {
    // A pipe in its place must not hold the server up, nor a link lead it elsewhere.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_private = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o077 == 0;
    is_private.then(|| File::from(file))
}

fn about(file: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Process that has locked it, where the kernel tells: processes of other namespaces are missing, and some file systems
/// have other numbers. Source: `lock_get_status` of Linux, `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn holder(file: &File) -> Option<u32> {
    let (device, inode) = about(file)?;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let locked = format!("{major:02x}:{minor:02x}:{inode}");
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let words = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    words.filter(|words| words.get(5) == Some(&locked.as_str())).find_map(|words| words[4].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::SocketAddress;
    use super::*;
    use mqfq_testing::Folder;
    use std::sync::mpsc;

    fn names(folder: &Folder) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// True if a socket can be listened on within a generous limit: a thread that waits for ever is left behind.
    fn listens(path: PathBuf) -> bool {
        let (says, said) = mpsc::channel();
        std::thread::spawn(move || says.send(SocketAddress::Unix(path).listen(0o600, 8).map(drop)));
        said.recv_timeout(Duration::from_secs(60)).expect("it waits for what another user may hold").is_ok()
    }

    #[test]
    fn no_lock_that_another_user_can_hold_stops_a_socket_from_being_bound() {
        let folder = Folder::new();
        let of_folder = File::open(folder.path()).unwrap();
        of_folder.lock().unwrap();
        assert!(listens(folder.join("socket")));
        assert_eq!(names(&folder), [""; 0], "nothing stays");
        // A file in place of the lock that others can open is not waited for, nor a pipe, and neither is removed.
        let taken = Lock::take(folder.path(), WITHIN).unwrap().expect("it is the test's folder");
        let name = taken.path.clone();
        drop(taken);
        let file = File::create(&name).unwrap();
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).unwrap();
        file.lock().unwrap();
        assert!(listens(folder.join("socket")) && name.exists());
        std::fs::remove_file(&name).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &name, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        assert!(listens(folder.join("socket")) && name.exists());
    }

    #[test]
    fn a_lock_that_is_not_given_back_ends_the_wait_with_the_pid_of_its_holder() {
        let folder = Folder::new();
        let held = Lock::take(folder.path(), WITHIN).unwrap().unwrap();
        let refused = Lock::take(folder.path(), Duration::from_millis(20)).err().expect("it is held");
        let expected = format!("process {} has held the lock ", std::process::id());
        assert!(refused.starts_with(&expected) && refused.contains("for 0.02 s"), "{refused}");
        drop(held);
        assert!(Lock::take(folder.path(), Duration::ZERO).unwrap().is_some());
        assert_eq!(names(&folder), [""; 0]);
    }

    #[test]
    fn of_servers_that_find_a_stale_socket_at_once_one_has_it_and_its_file_stays() {
        for _ in 0..50 {
            let folder = Folder::new();
            let path = folder.join("socket");
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(8);
            let listening: Vec<_> = std::thread::scope(|scope| {
                let server = || {
                    start.wait();
                    SocketAddress::Unix(path.clone()).listen(0o600, 8)
                };
                let servers: Vec<_> = (0..8).map(|_| scope.spawn(server)).collect();
                servers.into_iter().filter_map(|server| server.join().unwrap().ok()).collect()
            });
            assert_eq!((listening.len(), names(&folder)), (1, vec!["socket".to_owned()]));
            std::os::unix::net::UnixStream::connect(&path).expect("the one that has it is there");
        }
    }
}
