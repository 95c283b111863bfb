//! What of a disk goes to another machine in a live migration, beside what the hypervisor knows by itself.
//!
//! Source: the vhost-user specification, "Migrating back-end state". Queues are empty when they have stopped, and the
//! hypervisor has their indices, so little is left:
//!
//! ```text
//!   "mqfq-vub" 8 │ version 2 │ writes may stay in a cache 1 │ 0 1 │ capacity in bytes 8         little-endian
//! ```
//!
//! It goes through a pipe: whoever reads sees its end when the writer has closed it. A pipe that does not block is the
//! only file that never makes a worker wait, so no other is taken.

use super::kind;
use super::rule::Rule;
use mqfq_blk::passed::Passed;
use rustix::fs::OFlags;
use rustix::io::Errno;

const MAGIC: &[u8; 8] = b"mqfq-vub";
const VERSION: u16 = 1;
const STATE_BYTES: usize = 20;

/// What goes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Writes may stay in a cache until the guest flushes.
    pub writeback: bool,
    /// What the guest has seen as its disk's size.
    pub capacity_bytes: u64,
}

/// A transfer that was begun.
pub enum Transfer {
    /// It was written whole, or not.
    Saved(Result<(), Rule>),
    /// It will have been written to this pipe when the front-end asks.
    Loading(Passed),
}

/// The pipe that `descriptor` is, from now on one that does not block.
///
/// # Errors
/// [`Rule::UnfitDescriptor`]: it is none.
pub fn pipe(descriptor: Passed) -> Result<Passed, Rule> {
    kind::pipe(&descriptor)?;
    let flags = rustix::fs::fcntl_getfl(&descriptor).map_err(|_| Rule::BadDescriptors)?;
    rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK).map_err(|_| Rule::BadDescriptors)?;
    Ok(descriptor)
}

impl State {
    fn bytes(self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = u8::from(self.writeback);
        bytes[12..].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        bytes
    }

    fn of(bytes: &[u8]) -> Option<State> {
        let bytes: &[u8; STATE_BYTES] = bytes.try_into().ok()?;
        let capacity_bytes = u64::from_le_bytes(*bytes.last_chunk()?);
        let state = State { writeback: bytes[10] == 1, capacity_bytes };
        (state.bytes() == *bytes).then_some(state)
    }

    /// Writes it to `pipe`, which is closed then: its end is the state's.
    ///
    /// # Errors
    /// [`Rule::BadState`]: there was no room for it.
    pub fn save(self, pipe: Passed) -> Result<(), Rule> {
        match rustix::io::write(&pipe, &self.bytes()) {
            Ok(STATE_BYTES) => Ok(()),
            Ok(_) | Err(_) => Err(Rule::BadState),
        }
    }

    /// Reads one from `pipe`, which its writer has closed.
    ///
    /// # Errors
    /// [`Rule::BadState`]: it is none, or has no end yet.
    pub fn load(pipe: &Passed) -> Result<State, Rule> {
        // One byte more than it has: that there is nothing behind it is seen as well.
        let (mut bytes, mut have) = ([0; STATE_BYTES + 1], 0);
        while have < bytes.len() {
            match rustix::io::read(pipe, &mut bytes[have..]) {
                Ok(0) => return State::of(&bytes[..have]).ok_or(Rule::BadState),
                Ok(count) => have += count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Rule::BadState),
            }
        }
        Err(Rule::BadState)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    fn passed(file: impl Into<OwnedFd>) -> Passed {
        file.into().into()
    }

    #[test]
    fn a_state_arrives_as_it_was_and_nothing_else_does() {
        for state in
            [State { writeback: true, capacity_bytes: 1 << 40 }, State { writeback: false, capacity_bytes: 512 }]
        {
            let (reader, writer) = std::io::pipe().unwrap();
            state.save(pipe(passed(writer)).unwrap()).unwrap();
            assert_eq!(State::load(&pipe(passed(reader)).unwrap()), Ok(state));
        }
        let whole = State { writeback: true, capacity_bytes: 512 }.bytes();
        assert_eq!(&whole, b"mqfq-vub\x01\0\x01\0\0\x02\0\0\0\0\0\0", "as another version reads it");
        let other = |at: usize, value: u8| {
            let mut bytes = whole.to_vec();
            bytes[at] = value;
            bytes
        };
        for bytes in [
            vec![],
            whole[..19].to_vec(),
            [&whole[..], &[0]].concat(),
            other(0, 0),
            other(8, 2),
            other(10, 2),
            other(11, 1),
        ] {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(&bytes).unwrap();
            drop(writer);
            assert_eq!(State::load(&pipe(passed(reader)).unwrap()), Err(Rule::BadState), "{bytes:?}");
        }
    }

    #[test]
    fn a_pipe_without_an_end_a_full_one_and_a_file_make_nobody_wait() {
        let state = State { writeback: true, capacity_bytes: 512 };
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer) = (pipe(passed(reader)).unwrap(), pipe(passed(writer)).unwrap());
        assert_eq!(State::load(&reader), Err(Rule::BadState), "nobody has closed it");
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        assert_eq!(state.save(writer), Err(Rule::BadState), "no room");
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(pipe(file.into()).err(), Some(Rule::UnfitDescriptor));
    }
}
