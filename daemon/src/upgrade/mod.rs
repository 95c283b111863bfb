//! Upgrade: another process takes the place of this one, and no client notices.
//!
//! ```text
//!  old  serves ─────────────────────▶│ holds still: nothing under way, state ─▶│      ends
//!        ▲ Hello   │ Welcome  Ready ▲ │ State, More…      ▲ Taken
//!        │         ▼                │ ▼                   │
//!  new   connects ─ config, devices, engine: all that can fail ─ reads, checks ─│ serves
//!                                                                           commit point
//! ```
//!
//! # The commit point
//! is the moment at which `Taken` is in the queue of the old one's socket. Before it only the old process may touch a
//! client or a device, after it only the new one. The kernel decides, under one lock of its own, between the new one's
//! sending and the old one's `hear_no_more`:
//!
//! | the new one's send | the old one, when it looks | who serves |
//! |---|---|---|
//! | succeeds | finds `Taken`, also after `hear_no_more` | new |
//! | fails, the old one says `No` | has given up before (time, or the new one's `No`) | old |
//! | fails, the old one says nothing | is dead | new, unless the state that came is empty by now |
//!
//! The old one makes the state empty before it goes on, and says `No` then. So a new one that hears no `No`, because it
//! did not read for as long as the old one tried, does not go on with an old state.
//!
//! # Kills
//! | killed | before it holds still | while it holds still, before `Taken` | after `Taken` |
//! |---|---|---|---|
//! | new | old serves on, without a pause | old serves on | connections close, as at any kill; the old one has ended |
//! | old | as at any kill; new says so and ends | before all of the state has come: the same. After: new serves | new serves |
//!
//! Nothing acknowledged is lost in any of them: acknowledged requests had been done by the device before, and while the
//! old process holds still no request is under way on a device.
//!
//! # What both have open
//! Sockets and files of devices are open in both from `Welcome` on; a lock (flock) is the open file's. So a process
//! that gives up only closes. The new one removes no socket's file and gives no lock back before it serves.
//!
//! | file | answers |
//! |---|---|
//! | `wire.rs` | how do they speak? |
//! | `handover.rs` | what goes from one to the other? |
//! | `old.rs` | how does a server let another one take its place? |
//! | `new.rs` | how does a server take another one's place? |
//! | `receive.rs` | where does all of it go there? |
//! | `store.rs` | how does the same go through systemd's descriptor store? |

mod handover;
mod new;
mod old;
mod receive;
mod store;
#[cfg(test)]
mod tests;
mod wire;

pub use handover::{HandoverState, key};
pub use new::{Replaced, wait_for_end};
pub use old::{Outcome, Serving, Upgrades, hand_over};
pub use receive::{HandoverResult, Received, install};
pub use store::{forget_the_rest, is_there, keep};

use crate::output::{LAST_LINES_WAIT, Output};
use mqfq_front::socket::{Listening, SocketAddress};
use serde::Serialize;
use std::os::fd::OwnedFd;

/// Listens at `address`, with a socket that another process had there if there is one.
///
/// # Errors
/// One sentence.
pub fn listen(
    address: &SocketAddress,
    mode: u32,
    backlog: i32,
    inherited: Option<OwnedFd>,
) -> Result<Listening, String> {
    match inherited {
        Some(socket) => address.adopt(socket),
        None => address.listen(mode, backlog),
    }
}

/// A replacement, for reports.
#[derive(Serialize)]
pub struct ReplacedReport {
    /// The replaced process.
    pub pid: u32,
    /// Its connections that stayed.
    pub connections: usize,
    /// Time without a server.
    pub pause_us: u64,
}

/// Ends the process without dropping anything: the sockets' files, the locks and the clients are another process's now,
/// and a drop here would take them away from it.
pub fn leave(output: &Output, print_stats: bool, report: &mut dyn FnMut(), last: String) -> ! {
    output.report(last);
    if print_stats {
        report();
    }
    output.finish(Some(LAST_LINES_WAIT));
    std::process::exit(0);
}
