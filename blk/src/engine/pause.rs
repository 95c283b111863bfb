//! An engine that holds still while another process takes its place, or goes on if none does.
//!
//! ```text
//!   pause:    Pause ─▶ all workers     no client is read from, no connection accepted, no byte sent;
//!             wait until all are quiet requests on the devices end, those that wait for them are recalled
//!   pack:     Pack ─▶ all workers      each hands over its clients
//!   resume:   Resume ─▶ all workers    all go on as if nothing had happened
//! ```
//! Pack is a second message: a listener may have accepted a connection and sent it to another worker just before it was
//! asked to pause. When all workers are quiet, no listener accepts any more and each such message is in a mailbox, in
//! front of Pack.
//!
//! Requests that wait for a device are given back to their clients, which travel with them: a pause takes as long as
//! the requests on the devices, and not as long as all that wait, which may be seconds. On a worker with a client that
//! takes nothing back ([`Client::takes_back`](crate::client::Client::takes_back)) all of them end before. A resumed
//! client submits its requests again, and is charged for them a second time.
//!
//! Invariant: between a pause that ended well and the resume the engine has no command on a device and moves no byte of
//! a client's, so another process may do both.

use super::Engine;
use crate::client::PackedClient;
use crate::worker::host::Mail;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

impl Engine {
    /// Has every client pause, and waits until nothing is under way. Clients that cannot travel are drained. `recalls`:
    /// requests that wait for a device are given back; the state that is packed then must be of a version that has it
    /// ([`RECALLED_SINCE`](crate::state::RECALLED_SINCE)).
    ///
    /// # Errors
    /// One sentence: after `patience` something was still under way. Then all clients were resumed.
    pub fn pause(&self, recalls: bool, patience: Duration) -> Result<(), String> {
        let (quiet, is_quiet) = mpsc::channel();
        let pause = || Mail::Pause { recalls, quiet: quiet.clone() };
        (0..self.workers()).for_each(|worker| self.shared.send(worker, pause()));
        drop(quiet);
        let until_ns = self.clock().now_ns().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        for _ in 0..self.workers() {
            let left = Duration::from_nanos(until_ns.saturating_sub(self.clock().now_ns()));
            if let Err(error) = self.shared.answer(&is_quiet, left) {
                self.resume();
                let patience_s = patience.as_secs_f64();
                return Err(match error {
                    RecvTimeoutError::Timeout => format!("requests were still under way after {patience_s} s"),
                    RecvTimeoutError::Disconnected => "a worker has ended".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Packs its clients for another process, as state of `version`; to be called between a pause and the
    /// resume.
    ///
    /// # Errors
    /// One sentence: descriptors that could not be copied, or a worker that has ended or was not quiet for `patience`.
    pub fn pack(&self, version: u16, patience: Duration) -> Result<Vec<PackedClient>, String> {
        let ask = |worker| {
            let (packed, reply) = mpsc::channel();
            self.shared.send(worker, Mail::Pack { version, packed });
            reply
        };
        let replies: Vec<_> = (0..self.workers()).map(ask).collect();
        let mut all = Vec::new();
        for reply in replies {
            let packed = self.shared.answer(&reply, patience).map_err(|_| "a worker does not answer".to_owned())?;
            all.extend(packed.map_err(|error| format!("a connection's descriptor cannot be copied: {error}"))?);
        }
        Ok(all)
    }

    /// Goes on with every client.
    pub fn resume(&self) {
        (0..self.workers()).for_each(|worker| self.shared.send(worker, Mail::Resume));
    }
}

// Do all workers still turn? For a watchdog, which must not be content with a process that merely exists.

impl Engine {
    /// Turns that each worker has ended, in the order of the workers; the numbers wrap.
    pub fn turns(&self) -> Vec<u64> {
        self.shared.turns()
    }

    /// Has each worker turn once more, also one that sleeps: its number in [`Engine::turns`] will change soon, unless
    /// it hangs.
    pub fn wake_workers(&self) {
        self.shared.bells.iter().for_each(|bell| bell.kick());
    }
}
