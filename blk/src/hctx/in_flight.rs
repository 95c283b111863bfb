//! The uses of a tag, told apart.
//!
//! A tag is used again and again. A device that ends a command twice, or after it has given it back (a late end after
//! an abort or a reset), must not end the one that uses the tag now: its client would be told of data that it never
//! got. So each use has a number, which goes down with the command and comes up with its end. An end of another number
//! is ignored.
//!
//! ```text
//!   generation   0      1        2      3        4 …         wraps after 2^31 uses of one tag
//!                free   out      free   out      free
//! ```

use mqfq_sched::policy::Handle;

#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    /// The first request of its command.
    pub(super) head: Handle,
    /// Odd while the device has the command.
    pub(super) generation: u32,
}

impl InFlight {
    pub(super) const FREE: InFlight = InFlight { head: Handle(u32::MAX), generation: 0 };

    /// The device has a command of this tag, or will have it.
    pub(super) fn is_out(&self) -> bool {
        !self.generation.is_multiple_of(2)
    }

    /// The tag is used for a command that begins with this request. Returns which use it is.
    #[inline(always)]
    pub(super) fn begin(&mut self, head: Handle) -> u32 {
        self.head = head;
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Ends this use of the tag. `None`: it was over already.
    #[inline(always)]
    pub(super) fn end(&mut self, generation: u32) -> Option<Handle> {
        if self.generation != generation {
            return None;
        }
        self.generation = generation.wrapping_add(1);
        Some(self.head)
    }
}
