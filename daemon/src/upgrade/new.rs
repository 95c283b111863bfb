//! How does a server take another one's place?
//!
//! ```text
//!   connect ─▶ what can be opened only once ─▶ (config, devices, engine) ─▶ take ─▶ (listeners, connections) ─▶ commit
//! ```
//! Until [`Taking::commit`] nothing here touches a client, a device or a socket's file, so dropping everything leaves
//! the old server as it was.

use super::handover::{HandoverState, Opened, backing_of};
use super::wire::{ENDED_IN_THE_MIDDLE, Hello, Kind, Link, Message, monotonic_ns, poll_in, read_memory_file};
use mqfq_blk::state::{StateReader, VERSIONS};
use mqfq_front::socket::SocketAddress;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// For each message that the old one can send at once.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// For the old one to hold still, and for its state.
const STATE_MAX: Duration = Duration::from_secs(60);

/// For the old process to end, once it may.
const END_MAX: Duration = Duration::from_secs(60);

/// The source of the state.
#[derive(Debug)]
pub(super) enum From {
    /// A server that runs; the version that both know.
    Running(Link),
    /// A server that has ended.
    Store(HandoverState, u16),
}

/// Things that another process has left or lends.
#[derive(Debug)]
pub struct Inherited {
    opened: Opened,
    from: From,
}

impl Inherited {
    /// Asks the server that listens for upgrades on `address`. `discards_unsaved`: changes that its config file does
    /// not have may be lost.
    ///
    /// # Errors
    /// One sentence: no server is there, or it refuses.
    pub fn of_running(address: &SocketAddress, discards_unsaved: bool) -> Result<Inherited, String> {
        let failed = |why: String| format!("cannot replace the server at {address}: {why}");
        let SocketAddress::Unix(path) = address else { return Err(failed("it is no unix socket".to_owned())) };
        let stream = UnixStream::connect(path).map_err(|error| failed(mqfq_report::plain(&error)))?;
        let mut link = Link::new(stream).map_err(|error| failed(mqfq_report::plain(&error)))?;
        let (versions, pid) = ((*VERSIONS.start(), *VERSIONS.end()), std::process::id());
        let hello = Hello { versions, pid, discards_unsaved };
        // Its answer says more than a failed send.
        let _ = link.send(Kind::Hello, &hello.encode(), &[]);
        let Message { body, mut descriptors, .. } = link.expect(Kind::Welcome, ANSWER_MAX).map_err(failed)?;
        let mut reader = StateReader::new(0, &body);
        let mut numbers = || Some((reader.u16().ok()?, reader.u32().ok()? as usize));
        let wrong = || failed("its Welcome makes no sense".to_owned());
        let (version, count) = numbers().filter(|(version, _)| VERSIONS.contains(version)).ok_or_else(wrong)?;
        while descriptors.len() < count {
            descriptors.extend(link.expect(Kind::More, ANSWER_MAX).map_err(failed)?.descriptors);
        }
        let mut reader = StateReader::new(version, &body[6..]);
        let opened = Opened::decode(&mut reader, &mut descriptors.into_iter()).map_err(|fault| failed(fault.into()))?;
        Ok(Inherited { opened, from: From::Running(link) })
    }

    pub(super) fn of_store(opened: Opened, handover: HandoverState, version: u16) -> Inherited {
        Inherited { opened, from: From::Store(handover, version) }
    }

    /// The file of a device, by the device's name; once.
    pub fn file(&mut self, device: &str) -> Option<File> {
        self.opened.files.remove(device).map(File::from)
    }

    /// Numbers of backings, by the name of the pool and the path.
    pub fn numbers(&self) -> BTreeMap<(String, PathBuf), u16> {
        let backings = self.opened.files.keys().filter_map(|key| backing_of(key));
        backings.map(|(pool, number, path)| ((pool.to_owned(), path.to_owned()), number)).collect()
    }

    /// A listening socket that is not a front end's; once.
    pub fn socket(&mut self, address: &SocketAddress) -> Option<OwnedFd> {
        self.opened.sockets.remove(&address.to_string())
    }

    /// [`Inherited::socket`] has one.
    pub fn has_socket(&self, address: &SocketAddress) -> bool {
        self.opened.sockets.contains_key(&address.to_string())
    }

    /// The listener at this address comes along ([`super::key`]).
    pub fn listens_at(&self, address: &str) -> bool {
        self.opened.addresses.contains(address)
    }

    /// Says that everything is prepared that can fail without clients, and takes the rest. From here on clients wait.
    ///
    /// # Errors
    /// One sentence: the other one could not hold still, or its state makes no sense. It serves on.
    pub fn take(self) -> Result<Taking, String> {
        let pid = self.opened.pid;
        let failed = |why: String| format!("cannot replace process {pid}: {why}");
        let (handover, version, link, state) = match self.from {
            From::Store(handover, version) => (handover, version, None, None),
            From::Running(mut link) => {
                // As above, for the answer.
                let _ = link.send(Kind::Ready, &[], &[]);
                let (handover, version, state) = receive(&mut link).map_err(failed)?;
                (handover, version, Some(link), Some(state))
            }
        };
        // The process is asked whether it has ended, not its number, which may be another's by then.
        // SAFETY: no memory is involved.
        let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as libc::c_int;
        // SAFETY: the descriptor is new and ours alone.
        let process = (process >= 0 && link.is_some()).then(|| unsafe { OwnedFd::from_raw_fd(process) });
        Ok(Taking { pid, since_ns: handover.since_ns, handover, version, link, state, process })
    }

    /// Tells a server that runs why it is not replaced.
    pub fn give_up(&mut self, sentence: &str) {
        if let From::Running(link) = &mut self.from {
            link.say_no(sentence);
        }
    }
}

fn receive(link: &mut Link) -> Result<(HandoverState, u16, File), String> {
    let Message { body, descriptors, .. } = link.expect(Kind::State, STATE_MAX)?;
    let count = StateReader::new(0, &body).u32()? as usize;
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| "its state came without a file".to_owned())?;
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        descriptors.extend(link.expect(Kind::More, ANSWER_MAX)?.descriptors);
    }
    let mut file = File::from(file);
    let bytes = read_memory_file(&mut file)
        .map_err(|error| format!("its state cannot be read: {}", mqfq_report::plain(&error)))?;
    let (handover, version) = HandoverState::decode(&bytes, descriptors)?;
    Ok((handover, version, file))
}

/// Everything that has come from another process, which holds still or has ended.
#[derive(Debug)]
pub struct Taking {
    /// The process whose place is taken.
    pub pid: u32,
    /// Time at which the other one held still, from [`HandoverState`].
    since_ns: u64,
    /// The handover.
    pub handover: HandoverState,
    /// The version that its state is of.
    pub version: u16,
    link: Option<Link>,
    /// The file of a running server that `handover` is from, which it makes empty if it serves on.
    state: Option<File>,
    process: Option<OwnedFd>,
}

/// The process whose place was taken, for reports.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    /// Its number.
    pub pid: u32,
    /// Time without a server, ns.
    pub pause_ns: u64,
}

impl Taking {
    /// The commit point: from here on this process serves. The second value ends when the other process has, and its
    /// locks with it.
    ///
    /// # Errors
    /// One sentence: the other one has given up waiting, and serves on.
    pub fn commit(mut self) -> Result<(Replaced, Option<OwnedFd>), String> {
        if let Some(link) = &mut self.link
            && link.send(Kind::Taken, &[], &[]).is_err()
        {
            // It says why, if it serves on; a dead one says nothing (the head of `mod.rs`).
            match link.receive(ANSWER_MAX) {
                Ok(None) if self.is_of_now() => {}
                Err(why) if why == ENDED_IN_THE_MIDDLE && self.is_of_now() => {}
                Ok(None) => {
                    let why = "it has served on since it held still, and ended before it could say so";
                    return Err(format!("cannot replace process {}: {why}", self.pid));
                }
                Ok(Some(Message { body, .. })) => {
                    let why = String::from_utf8_lossy(&body).into_owned();
                    return Err(format!("cannot replace process {}: {why}", self.pid));
                }
                Err(why) => return Err(format!("cannot replace process {}: {why}", self.pid)),
            }
        }
        let pause_ns = monotonic_ns().saturating_sub(self.since_ns);
        Ok((Replaced { pid: self.pid, pause_ns }, self.process))
    }

    /// No process has served since the state was made.
    fn is_of_now(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.metadata().is_ok_and(|about| about.len() > 0))
    }

    /// Tells a server that runs why it is not replaced.
    pub fn give_up(&mut self, sentence: &str) {
        if let Some(link) = &mut self.link {
            link.say_no(sentence);
        }
    }
}

/// Waits until a process has ended, but not for ever.
pub fn wait_for_end(process: Option<OwnedFd>) {
    if let Some(process) = process {
        poll_in(process.as_fd(), END_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::super::handover::HandoverState;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn taking() -> (Taking, Link) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let link = Some(Link::new(ours).unwrap());
        let state = Some(super::super::wire::memory_file(b"state").unwrap());
        let (since_ns, handover) = (monotonic_ns(), HandoverState::default());
        (Taking { pid: 7, since_ns, handover, version: 1, link, state, process: None }, Link::new(theirs).unwrap())
    }

    #[test]
    fn the_new_server_serves_unless_the_old_one_says_that_it_does() {
        let (taking, mut old) = taking();
        assert_eq!(taking.commit().unwrap().0.pid, 7);
        assert!(old.expect(Kind::Taken, PATIENCE).is_ok(), "the old one is there");

        let (taking, old) = super::tests::taking();
        drop(old);
        assert!(taking.commit().is_ok(), "the old one has died");

        let (taking, mut old) = super::tests::taking();
        old.hear_no_more();
        old.say_no("it took too long");
        assert_eq!(taking.commit().unwrap_err(), "cannot replace process 7: it took too long");

        let (taking, old) = super::tests::taking();
        old.hear_no_more();
        drop(old);
        assert!(taking.commit().is_ok(), "the old one has died while it gave up, and so has not gone on");

        let (taking, old) = super::tests::taking();
        old.hear_no_more();
        taking.state.as_ref().unwrap().set_len(0).unwrap();
        drop(old);
        let late = "cannot replace process 7: it has served on since it held still, and ended before it could say so";
        assert_eq!(taking.commit().unwrap_err(), late, "its No was not heard, and what came is of the past");
    }

    #[test]
    fn one_that_finds_nobody_says_so() {
        let path = std::env::temp_dir().join(format!("mqfq-upgrade-nobody-{}", std::process::id()));
        let refused = Inherited::of_running(&SocketAddress::Unix(path.clone()), false).unwrap_err();
        let (start, end) = (format!("cannot replace the server at unix:{}: ", path.display()), "No such file");
        assert!(refused.starts_with(&start) && refused.contains(end), "{refused}");
    }
}
