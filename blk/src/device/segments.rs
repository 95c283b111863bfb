//! The further buffers of a command that was merged from several requests.
//!
//! # Shape
//! ```text
//!   Command.buffer   first request's          Command.more   None: there are no others (8 bytes, nothing behind them)
//!                                                            Some: length of the first; buffer and length of each other
//! ```
//! Requests of one command lie next to each other on the device, in the order of the buffers.
//!
//! Cost: nothing for a command of one request. The list of a merged one is made by the data path and used again
//! (`merge.rs`).

use super::{Command, Reaped};
use crate::buffer::Buffer;
use crate::foreign::Room;

/// One request's part of a merged command.
#[derive(Debug)]
pub struct Segment {
    /// Its bytes.
    pub buffer: Buffer,
    /// How many of them the request is about.
    pub length_bytes: u32,
}

/// What is behind [`Segments`].
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) first_bytes: u32,
    pub(crate) rest: Vec<Segment>,
}

/// The buffers of a merged command after the first one; empty for a command of one request.
#[derive(Debug, Default)]
pub struct Segments(pub(crate) Option<Box<List>>);

impl Segments {
    /// Of a command of one request.
    pub const NONE: Segments = Segments(None);

    /// No further buffers.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The lengths of all parts and the room of the further ones, if there are further ones: first, then each.
    #[cfg(feature = "uring")]
    pub(crate) fn lengths(&self) -> Option<(u32, impl Iterator<Item = (u32, usize)>)> {
        let list = self.0.as_ref()?;
        let rest = list.rest.iter().map(|segment| (segment.length_bytes, segment.buffer.capacity_bytes()));
        Some((list.first_bytes, rest))
    }

    /// Further buffers.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.rest.len())
    }

    /// No further buffers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Command::for_each_segment`], of a command of `length_bytes` at `offset_bytes` whose first buffer is
    /// `first`.
    #[inline]
    pub(crate) fn for_each(
        &mut self,
        first: &mut Buffer,
        offset_bytes: u64,
        length_bytes: u32,
        mut each: impl FnMut(u64, Room<'_>),
    ) {
        let Some(list) = &mut self.0 else {
            return each(offset_bytes, first.room(length_bytes as usize));
        };
        let (mut at_bytes, end_bytes) = (offset_bytes, offset_bytes + u64::from(length_bytes));
        let rest = list.rest.iter_mut().map(|segment| (&mut segment.buffer, segment.length_bytes));
        for (buffer, segment_bytes) in std::iter::once((first, list.first_bytes)).chain(rest) {
            let piece_bytes = u64::from(segment_bytes).min(end_bytes - at_bytes);
            if piece_bytes == 0 {
                return;
            }
            each(at_bytes, buffer.room(piece_bytes as usize));
            at_bytes += piece_bytes;
        }
    }
}

impl Reaped {
    /// The command's buffers, in order.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let rest = self.more.0.iter().flat_map(|list| &list.rest).map(|segment| &segment.buffer);
        self.buffer.iter().chain(rest)
    }
}

impl Command {
    /// Its buffers, in order.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let rest = self.more.0.iter().flat_map(|list| &list.rest).map(|segment| &segment.buffer);
        self.buffer.iter().chain(rest)
    }

    /// Buffers of the command.
    pub fn segments(&self) -> usize {
        usize::from(self.buffer.is_some()) + self.more.len()
    }

    /// Calls `each` with the bytes of each buffer and where on the device they lie, in order, as far as the command's
    /// length goes.
    ///
    /// # Panics
    /// If a command that moves bytes came without its buffer, or a buffer is shorter than its part: the layers above
    /// validate.
    #[inline]
    pub fn for_each_segment(&mut self, each: impl FnMut(u64, Room<'_>)) {
        let &mut Command { op, offset_bytes, length_bytes, .. } = self;
        let first = self.buffer.as_mut().unwrap_or_else(|| panic!("a command to {op:?} came without its buffer"));
        self.more.for_each(first, offset_bytes, length_bytes, each);
    }

    /// Adds a request's buffer behind those that the command has. For tests of devices: the data path merges in
    /// `merge.rs`.
    #[must_use]
    pub fn and(mut self, buffer: Buffer, length_bytes: u32) -> Command {
        let first_bytes = self.length_bytes;
        let list = self.more.0.get_or_insert_with(|| Box::new(List { first_bytes, rest: Vec::new() }));
        list.rest.push(Segment { buffer, length_bytes });
        self.length_bytes += length_bytes;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Op;
    use crate::tag::Tag;

    #[test]
    fn a_command_knows_how_many_buffers_it_has_beside_the_first() {
        let one = Command::new(Tag(0), Op::Write, 0, 512, Some(Buffer::new(512)));
        assert_eq!((one.more.len(), one.more.is_empty(), one.more.is_none(), one.segments()), (0, true, true, 1));
        assert_eq!(Command::new(Tag(0), Op::Flush, 0, 0, None).segments(), 0);
        let three = one.and(Buffer::new(512), 512).and(Buffer::new(512), 100);
        assert_eq!((three.more.len(), three.more.is_empty(), three.segments()), (2, false, 3));
        assert_eq!((three.length_bytes, three.more.is_none()), (1124, false));
    }

    #[test]
    fn each_buffer_gets_its_bytes_as_far_as_the_command_goes() {
        let buffer = |length_bytes| Some(Buffer::new(length_bytes));
        let pieces = |mut command: Command| {
            let mut pieces = Vec::new();
            command.for_each_segment(|at_bytes, room| pieces.push((at_bytes, room.len())));
            pieces
        };
        let one = |length_bytes| Command::new(Tag(0), Op::Write, 4096, length_bytes, buffer(1024));
        assert_eq!(pieces(one(700)), [(4096, 700)]);
        let three = |length_bytes| {
            let command = one(512).and(Buffer::new(1024), 1024).and(Buffer::new(512), 100);
            Command { length_bytes, ..command }
        };
        assert_eq!(pieces(three(1636)), [(4096, 512), (4608, 1024), (5632, 100)]);
        assert_eq!(pieces(three(600)), [(4096, 512), (4608, 88)]);
        assert_eq!(pieces(three(512)), [(4096, 512)], "nothing is left for the others");
    }
}
