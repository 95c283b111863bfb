//! Which kind of file is a descriptor that a front-end passed? No call here asks a file system or takes a lock that a
//! stranger may hold, so none waits.
//!
//! | for | kind | is seen by |
//! |---|---|---|
//! | a kick, a call, an error | eventfd | its link in /proc |
//! | messages of ours | stream socket of this machine | SO_DOMAIN, SO_TYPE |
//! | memory | tmpfs (a memfd is one), hugetlbfs | F_GET_SEALS, which no other file has |

use super::rule::Rule;
use rustix::fs::Stat;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::os::fd::{AsFd, AsRawFd};

/// `file` is an eventfd. The kernel gives such a link to no other file: a path begins with a slash.
///
/// # Errors
/// [`Rule::UnfitDescriptor`]: it is another file, or /proc is not there.
pub fn eventfd(file: impl AsFd) -> Result<(), Rule> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let link = rustix::fs::readlink(path, Vec::new()).map_err(|_| Rule::UnfitDescriptor)?;
    if link.as_bytes() == b"anon_inode:[eventfd]" { Ok(()) } else { Err(Rule::UnfitDescriptor) }
}

/// `file` is a stream socket of this machine.
///
/// # Errors
/// [`Rule::UnfitDescriptor`]: it is another file.
pub fn channel(file: impl AsFd) -> Result<(), Rule> {
    let is_unix = sockopt::socket_domain(&file) == Ok(AddressFamily::UNIX);
    let is_stream = sockopt::socket_type(&file) == Ok(SocketType::STREAM);
    if is_unix && is_stream { Ok(()) } else { Err(Rule::UnfitDescriptor) }
}

/// Status (`fstat`) of a file whose pages are memory.
///
/// # Errors
/// [`Rule::UnfitMemory`]: it is another file.
pub fn memory(file: impl AsFd) -> Result<Stat, Rule> {
    // Before the second call, which a file system of a stranger would be asked.
    rustix::fs::fcntl_get_seals(&file).and_then(|_| rustix::fs::fstat(&file)).map_err(|_| Rule::UnfitMemory)
}

#[cfg(test)]
mod tests {
    use super::super::guest::tests::file;
    use super::super::queue_control::bell;
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    /// A file of each kind, with the uses for which it may be passed.
    fn all() -> Vec<(&'static str, OwnedFd, [bool; 3])> {
        const NONE: [bool; 3] = [false; 3];
        let (reader, _writer) = std::io::pipe().unwrap();
        let opened = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let located = rustix::fs::open("/dev/shm", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        vec![
            ("eventfd", bell().unwrap(), [true, false, false]),
            ("pipe", reader.into(), NONE),
            ("unix socket", UnixStream::pair().unwrap().0.into(), [false, true, false]),
            ("memfd", file(4096), [false, false, true]),
            ("datagrams", UnixDatagram::unbound().unwrap().into(), NONE),
            ("TCP socket", TcpListener::bind("127.0.0.1:0").unwrap().into(), NONE),
            ("file of a disk", std::fs::File::open(std::env::current_exe().unwrap()).unwrap().into(), NONE),
            ("device", opened("/dev/null"), NONE),
            ("/proc", opened("/proc/self/maps"), NONE),
            ("epoll", epoll, NONE),
            ("a place", located, NONE),
        ]
    }

    #[test]
    fn each_kind_of_file_is_taken_for_its_own_purpose_and_no_other() {
        for (name, file, expected) in all() {
            let unfit = Err(Rule::UnfitDescriptor);
            let results = [eventfd(&file), channel(&file)];
            assert!(results.iter().all(|result| result.is_ok() || *result == unfit), "{name}");
            let memory = memory(&file);
            assert!(memory.is_ok() || memory.as_ref().err() == Some(&Rule::UnfitMemory), "{name}");
            let is = [results[0].is_ok(), results[1].is_ok(), memory.is_ok()];
            assert_eq!(is, expected, "{name}");
        }
    }
}
