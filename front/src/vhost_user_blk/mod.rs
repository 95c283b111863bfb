//! vhost-user-blk: disks for virtual machines, whose queues our workers serve in the guest's own memory.
//!
//! `docs/use/vhost-user-blk.md` says what is spoken and how hypervisors are told. The parts, from the socket inwards:
//!
//! | module | answers |
//! |---|---|
//! | `front_end` | which addresses, and what listens there? (the rest is [`crate::listener`]) |
//! | [`connection`] | what does one front-end's socket do with the queues? |
//! | [`session`] | what has the front-end said, and which queue can run? (messages in, answers out) |
//! | `notice` | how does a front-end hear that its disk has another size? |
//! | [`queue_control`] | how do a connection and its queues tell each other? which connection has the export? |
//! | [`queue`] | what does one queue do with its ring and the block layer? |
//! | [`run`], `poll` | what of a queue is under way? for how long does it look without being kicked? |
//! | [`ring`], [`split`] | which heads are new, which have ended, which side is to be woken? |
//! | [`chain`] | which memory does one request lend? |
//! | [`disk`] | what does a request ask for, and is it one that we execute? |
//! | [`guest`] | where are the guest's addresses? |
//! | [`kind`], [`mapped`] | is a descriptor what it should be? how much may be mapped? |
//! | [`inflight`] | what was under way when a server was killed? |
//! | [`log`] | which pages were written? |
//! | [`rule`], [`wire`] | names of all rules; numbers of the protocol |
//!
//! # Who is trusted with what
//! No client with anything: the front-end (a hypervisor) and the guest each reach their own disk's requests, and can
//! spoil those. Memory that they may write at any time is read once and copied before it is checked. Bounds:
//!
//! | of a connection | at most |
//! |---|---|
//! | queues, entries of each | 64, 1024 |
//! | descriptors of a request | 1024 |
//! | regions of memory | 64 |
//! | bytes mapped | 16 TiB, of all guests 64 TiB |
//! | bytes of a message; descriptors with it | 512; 8 |
//! | open descriptors of an address | 2048, twice as many with those of the one that has the disk |
//! | memory of copies | that of a connection, for each queue, and of its tenant |
//! | front-ends at a time | 1 |

pub mod chain;
pub mod connection;
pub mod disk;
mod front_end;
pub mod guest;
pub mod inflight;
pub mod kind;
pub mod log;
pub mod mapped;
mod notice;
mod poll;
pub mod queue;
pub mod queue_control;
pub mod ring;
pub mod rule;
pub mod run;
pub mod session;
pub mod split;
pub mod wire;

pub use front_end::VhostUser;

use crate::stats::{Names, names_of};
use rule::Rule;

/// Numbers that only this front end has, by place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// Kicks that came.
    Kicks,
    /// Looks at a ring without a kick.
    Looks,
    /// Bytes of requests that went through buffers of ours.
    CopiedBytes,
}

/// Names of its counters.
pub static NAMES: Names = Names {
    front_end: "vhost-user",
    requests: disk::REQUESTS,
    rules: names_of!(Rule),
    crowded_out: Rule::HandshakeCrowdedOut as usize,
    // Each may hold 129 descriptors, and one export has one front-end at a time.
    handshakes_max: 8,
    own: &["kicks", "looks", "copied_bytes"],
};

#[cfg(test)]
mod kill {
    //! A kill before any store, in tests: the store unwinds, and nothing behind it happens.

    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// Stores until the kill; `None`: none comes.
        static STORES_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    struct Killed;

    /// Before each store that outlives the server.
    pub fn step() {
        match STORES_LEFT.get() {
            Some(0) => resume_unwind(Box::new(Killed)),
            left => STORES_LEFT.set(left.map(|stores| stores - 1)),
        }
    }

    /// Does `turn`, which is killed once it has made so many stores, and says whether it came to its end.
    pub fn after(stores: usize, turn: impl FnOnce()) -> bool {
        STORES_LEFT.set(Some(stores));
        let done = catch_unwind(AssertUnwindSafe(turn));
        STORES_LEFT.set(None);
        match done {
            Ok(()) => true,
            Err(why) if why.is::<Killed>() => false,
            Err(why) => resume_unwind(why),
        }
    }
}
