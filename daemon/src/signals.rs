//! Signals, taken by the main thread between two instructions of its choice and never inside a handler.
//!
//! They are blocked before any thread starts (threads inherit the mask), then waited for with `sigwaitinfo`. The other
//! ways: a crate that installs handlers and wakes a pipe (signal-hook) or a signalfd, both made for a loop that waits
//! on descriptors too. The main thread waits for nothing else, so the plain call is all it takes.
//!
//! Signals by which the kernel answers a system call, and whose default is to end the process for what one client did,
//! are ignored; the call then fails, and that client is told. SIGXFSZ: a write past RLIMIT_FSIZE (EFBIG). SIGPIPE:
//! a pipe or socket without a reader (EPIPE); Rust's runtime ignores it before `main`. SIGBUS cannot come of a client:
//! no file is mapped into memory.

use std::mem::MaybeUninit;

/// The request of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalRequest {
    /// SIGTERM or SIGINT: drain and exit.
    Stop,
    /// SIGUSR1: print the counters.
    Report,
    /// SIGUSR2: begin to record requests, or end it and write the records.
    Trace,
    /// SIGHUP: read the config again.
    Reload,
    /// SIGRTMIN, from a thread of this process: another process is ready to take its place.
    Upgrade,
}

/// Has [`Signals::wait`] return [`SignalRequest::Upgrade`].
pub fn ask_for_upgrade() {
    // SAFETY: the signal goes to this process, which has it blocked and waits for it; no memory is involved. It fails
    // for nothing that can be here.
    unsafe { libc::kill(libc::getpid(), libc::SIGRTMIN()) };
}

/// SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP and SIGRTMIN, blocked.
pub struct Signals {
    all: libc::sigset_t,
    stop: libc::sigset_t,
}

impl Signals {
    /// Blocks them in this thread and in those that it starts from now on, and has the process ignore SIGXFSZ.
    pub fn block() -> Signals {
        // SAFETY: no handler is installed, and no memory is involved. It fails only for a number that is no signal.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let upgrade = libc::SIGRTMIN();
        let all = set_of(&[libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGHUP, upgrade]);
        let stop = set_of(&[libc::SIGTERM, libc::SIGINT]);
        change_mask(libc::SIG_BLOCK, &all);
        Signals { all, stop }
    }

    /// Waits for the next one.
    pub fn wait(&self) -> SignalRequest {
        loop {
            // SAFETY: the set is initialised; a null siginfo is allowed.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.all, std::ptr::null_mut()) };
            match signal {
                libc::SIGTERM | libc::SIGINT => return SignalRequest::Stop,
                libc::SIGUSR1 => return SignalRequest::Report,
                libc::SIGUSR2 => return SignalRequest::Trace,
                libc::SIGHUP => return SignalRequest::Reload,
                signal if signal == libc::SIGRTMIN() => return SignalRequest::Upgrade,
                // EINTR: a debugger or a stop-and-continue; nothing was taken.
                _ => {}
            }
        }
    }

    /// SIGTERM or SIGINT has come and was not taken yet.
    pub fn stop_is_pending(&self) -> bool {
        let mut pending = set_of(&[]);
        // SAFETY: the set is there to be written, and initialised whatever comes of the call.
        let result = unsafe { libc::sigpending(&raw mut pending) };
        let is_pending = |signal| {
            // SAFETY: the set is initialised.
            unsafe { libc::sigismember(&raw const pending, signal) == 1 }
        };
        result == 0 && (is_pending(libc::SIGTERM) || is_pending(libc::SIGINT))
    }

    /// From here on SIGTERM and SIGINT end the process at once, as they do by default, also one that is pending: for
    /// who does not want to wait for the drain.
    pub fn stop_waits_no_longer(&self) {
        change_mask(libc::SIG_UNBLOCK, &self.stop);
    }
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; sigaddset then changes it. Both fail only for numbers that are no
    // signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: `set` is initialised and the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) };
    assert_eq!(error, 0, "pthread_sigmask refuses only an unknown `how`");
}

/// Raises the soft limit on open files to the hard one: each connection takes one, and the usual soft limit (1024)
/// would end a crowd of clients with an error that names none of this.
pub fn raise_open_files_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid rlimit. Failure leaves the limit as it was, which is what we would do about it.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_waits_until_it_is_asked_for() {
        let signals = Signals::block();
        // SAFETY: raise sends to this thread, which has the signal blocked.
        unsafe {
            libc::raise(libc::SIGUSR1);
        }
        assert!(!signals.stop_is_pending(), "of the others no one stops");
        assert_eq!(signals.wait(), SignalRequest::Report);
        // SAFETY: as above.
        unsafe {
            libc::raise(libc::SIGTERM);
        }
        assert!(signals.stop_is_pending());
        assert_eq!(signals.wait(), SignalRequest::Stop);
        assert!(!signals.stop_is_pending(), "it was taken");
    }
}
