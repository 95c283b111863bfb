//! Messages to a service manager, and its gifts: readiness, a watchdog, sockets. Without one (no NOTIFY_SOCKET, no
//! LISTEN_FDS) all of this does nothing. Source: sd_notify(3), sd_listen_fds(3).
//!
//! All that it is told goes through [`send`]. The words are those of the crate sd-notify; the socket is not, because
//! the crate waits without limit for a manager that does not read.
//!
//! The watchdog is answered by a thread that has each worker turn once more and sees that it did, so that a server of
//! which one worker hangs is started anew, however well the rest is.

use crate::log_format::{About, Level};
use crate::output::Output;
use mqfq_blk::engine::Engine;
use mqfq_front::takeover::Inherited;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use sd_notify::NotifyState;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Looks of the watchdog's thread in the time within which it must have answered.
const LOOKS: u32 = 4;

/// For the manager to take one message: its queue holds ten or so.
const TAKES_MAX: Duration = Duration::from_secs(2);

/// Tells the manager, if it listens; a message that cannot be sent is dropped.
fn tell(state: &[NotifyState<'_>]) {
    let _ = send(state, &[], TAKES_MAX);
}

/// Tells the manager `state`, with `descriptors`, and waits for room in its queue for `patience` at most. Without a
/// manager this is nothing.
///
/// # Errors
/// There is no such socket, or no room in time.
pub fn send(state: &[NotifyState<'_>], descriptors: &[BorrowedFd<'_>], patience: Duration) -> io::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let path = path.as_encoded_bytes();
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(path)?,
    };
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    let mut space = [MaybeUninit::uninit(); 64];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    let text: String = state.iter().map(|state| format!("{state}\n")).collect();
    let text = [IoSlice::new(text.as_bytes())];
    let mut send = || rustix::net::sendmsg_addr(&socket, &address, &text, &mut control, SendFlags::NOSIGNAL);
    // A wait for room is interrupted without a signal, too: by what the kernel wants to end on this thread.
    rustix::io::retry_on_intr(&mut send)?;
    Ok(())
}

/// The server serves, or serves again after a reload.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The config is read again; [`ready`] follows.
pub fn reloading() {
    // Type=notify-reload wants the time; where it cannot be had there is only the word.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// The server answers what it has admitted, and ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("answering admitted requests")]);
}

/// Another process serves from now on, which the manager is to look after.
pub fn is_now(process: u32) {
    tell(&[NotifyState::MainPid(process)]);
}

/// A descriptor that was passed, and what the service manager calls it.
pub type Passed = (String, OwnedFd);

/// The descriptors that were passed to this process: sockets, and what an earlier process left in the store
/// ([`crate::upgrade`]).
///
/// # Errors
/// One sentence: what was said of them cannot be read.
pub fn sockets() -> Result<Vec<Passed>, String> {
    // A count of none goes with an empty list of names, which is one name to the reader of names.
    if sd_notify::listen_fds().is_ok_and(|fds| fds.len() == 0) {
        return Ok(Vec::new());
    }
    let passed = sd_notify::listen_fds_with_names();
    let passed =
        passed.map_err(|error| format!("cannot take the sockets of LISTEN_FDS: {}", mqfq_report::plain(&error)))?;
    // SAFETY: the service manager passed these descriptors to this process alone (LISTEN_PID is ours), they have no
    // other owner, and this is called once.
    Ok(passed.map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) })).collect())
}

/// Says which of the sockets that were passed no export is served at.
pub fn say_left(inherited: &Inherited, output: &Output) {
    for name in inherited.left() {
        output.note(&format!("the socket {name:?} was passed to this server, and no export is served there"));
    }
}

/// The turns of all workers at the last look.
struct Looks {
    turns: Vec<u64>,
}

impl Looks {
    /// The first worker that has not turned since the last look.
    fn look(&mut self, turns: Vec<u64>) -> Option<usize> {
        let stuck = turns.iter().zip(&self.turns).position(|(now, before)| now == before);
        self.turns = turns;
        stuck
    }
}

/// Answers the watchdog, if there is one, as long as all workers of the engine turn.
///
/// # Errors
/// One sentence: the thread cannot be started.
pub fn start_watchdog(engine: &Arc<Engine>, output: &Output) -> Result<(), String> {
    let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let (engine, output) = (Arc::downgrade(engine), output.clone());
    let watch = move || answer(&engine, limit / LOOKS, &output, || tell(&[NotifyState::Watchdog]));
    let thread = std::thread::Builder::new().name("mqfq-watchdog".into()).spawn(watch);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))
}

/// The thread's whole life: it ends with the engine.
fn answer(engine: &Weak<Engine>, pause: Duration, output: &Output, alive: impl Fn()) {
    let mut looks = Looks { turns: Vec::new() };
    let mut was_stuck = None;
    while let Some(running) = engine.upgrade() {
        let stuck = looks.look(running.turns());
        running.wake_workers();
        // Not kept while it waits: the engine ends when its last user is gone.
        drop(running);
        match stuck {
            None => alive(),
            Some(worker) if was_stuck != stuck => {
                let sentence = format!("worker {worker} does not turn, the watchdog is not answered");
                output.say(Level::Error, About::default(), &sentence);
            }
            Some(_) => {}
        }
        was_stuck = stuck;
        std::thread::park_timeout(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_has_not_turned_between_two_looks_is_found() {
        let mut looks = Looks { turns: Vec::new() };
        assert_eq!(looks.look(vec![0, 0, 0]), None, "there was no look before");
        assert_eq!(looks.look(vec![1, 1, u64::MAX]), None);
        assert_eq!(looks.look(vec![2, 1, 0]), Some(1));
        assert_eq!(looks.look(vec![3, 2, 0]), Some(2));
        assert_eq!(looks.look(vec![4, 3, 1]), None);
    }
}
