//! A connection's receive buffer: bytes that came and were not used.
//!
//! Small while the client is quiet, large once the client fills it: many idle connections cost little, and a busy one
//! gets many requests with each receive.

use mqfq_blk::buffer::Buffer;

/// The receive buffer of one connection.
#[derive(Debug)]
pub struct Inbox {
    /// `None` before the first receive and while one is in flight.
    buffer: Option<Buffer>,
    start: usize,
    end: usize,
    largest_bytes: usize,
    /// The last receive filled all the room it had.
    overflowing: bool,
}

impl Inbox {
    /// Empty, without a buffer; it will not grow beyond `largest_bytes`.
    pub fn new(largest_bytes: usize) -> Inbox {
        Inbox { buffer: None, start: 0, end: 0, largest_bytes, overflowing: false }
    }

    /// An inbox with `unread` bytes, which another process received.
    pub fn with(unread: &[u8], largest_bytes: usize) -> Inbox {
        // One more than there are, so that there is room for the next receive.
        let mut buffer = Buffer::new(unread.len() + 1);
        buffer.as_mut_slice()[..unread.len()].copy_from_slice(unread);
        Inbox { buffer: Some(buffer), end: unread.len(), ..Inbox::new(largest_bytes) }
    }

    /// Bytes that came and were not used.
    pub fn unread(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.as_slice()[self.start..self.end])
    }

    /// Unread bytes, to be decrypted in place.
    pub fn unread_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer.as_mut_slice()[self.start..self.end])
    }

    /// Bytes came that were not used, also while the buffer is lent.
    pub fn is_holding(&self) -> bool {
        self.end > self.start
    }

    /// It holds as much as it may.
    pub fn is_full(&self) -> bool {
        self.end - self.start >= self.largest_bytes
    }

    /// Adds `bytes` that came by another way than a receive. They must fit its largest buffer.
    pub fn append(&mut self, bytes: &[u8]) {
        let (mut buffer, from, _) = self.lend(self.end - self.start + bytes.len() + 1);
        buffer.as_mut_slice()[from..from + bytes.len()].copy_from_slice(bytes);
        self.put_back(buffer, bytes.len());
    }

    /// The first `count` of them are used.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "{count} used, {} were there", self.end - self.start);
        self.start += count;
    }

    /// Lends the buffer, of at least `wanted_bytes`, for a receive: from the first number to the second. What is unread
    /// is moved to the front; that is less than one message, because a receive begins when all whole ones are used.
    pub fn lend(&mut self, wanted_bytes: usize) -> (Buffer, usize, usize) {
        let unread = self.end - self.start;
        let wanted_bytes = if self.overflowing { self.largest_bytes } else { wanted_bytes.min(self.largest_bytes) };
        let buffer = match self.buffer.take() {
            Some(mut buffer) if buffer.capacity_bytes() >= wanted_bytes => {
                buffer.as_mut_slice().copy_within(self.start..self.end, 0);
                buffer
            }
            smaller => {
                let mut buffer = Buffer::new(wanted_bytes);
                if let Some(smaller) = smaller {
                    buffer.as_mut_slice()[..unread].copy_from_slice(&smaller.as_slice()[self.start..self.end]);
                }
                buffer
            }
        };
        (self.start, self.end) = (0, unread);
        let room = buffer.capacity_bytes();
        assert!(unread < room, "{unread} bytes unread fill the buffer: a message is longer than it");
        (buffer, unread, room)
    }

    /// Takes the buffer back, with `received_bytes` more in it.
    pub fn put_back(&mut self, buffer: Buffer, received_bytes: usize) {
        self.end += received_bytes;
        self.overflowing = self.end == buffer.capacity_bytes();
        self.buffer = Some(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(inbox: &mut Inbox, wanted_bytes: usize, bytes: &[u8]) -> usize {
        let (mut buffer, from, to) = inbox.lend(wanted_bytes);
        let count = bytes.len().min(to - from);
        buffer.as_mut_slice()[from..from + count].copy_from_slice(&bytes[..count]);
        inbox.put_back(buffer, count);
        to
    }

    #[test]
    fn unread_bytes_survive_the_next_receive() {
        let mut inbox = Inbox::new(4096);
        receive(&mut inbox, 4096, b"abcdef");
        inbox.consume(4);
        assert_eq!(inbox.unread(), b"ef");
        receive(&mut inbox, 4096, b"gh");
        assert_eq!(inbox.unread(), b"efgh");
    }

    #[test]
    fn it_grows_when_it_is_filled_and_keeps_what_it_holds() {
        let mut inbox = Inbox::new(128 << 10);
        let message = vec![b'x'; 4096];
        assert_eq!(receive(&mut inbox, 4096, &message), 4096);
        inbox.consume(4095);
        assert_eq!(receive(&mut inbox, 4096, b"y"), 128 << 10, "filled once: as large as it may be");
        assert_eq!(inbox.unread(), b"xy");
    }

    #[test]
    fn it_stays_small_for_a_quiet_client() {
        let mut inbox = Inbox::new(128 << 10);
        for _ in 0..100 {
            assert_eq!(receive(&mut inbox, 4096, &[0; 4095]), 4096);
            inbox.consume(4095);
        }
    }

    #[test]
    fn it_is_full_when_it_holds_as_much_as_it_may() {
        let mut inbox = Inbox::new(4096);
        assert!(!inbox.is_full());
        receive(&mut inbox, 4096, &[0; 4095]);
        assert!(!inbox.is_full());
        receive(&mut inbox, 4096, &[0; 1]);
        assert!(inbox.is_full());
        inbox.consume(1);
        assert!(!inbox.is_full());
    }

    #[test]
    fn what_comes_by_another_way_has_as_much_room_as_it_needs_and_one_byte() {
        let mut inbox = Inbox::new(128 << 10);
        receive(&mut inbox, 4096, &[1; 4095]);
        inbox.consume(4000);
        inbox.append(&[2]);
        assert_eq!(inbox.unread(), [&[1; 95][..], &[2]].concat());
        assert_eq!(inbox.buffer.as_ref().unwrap().capacity_bytes(), 4096);
        inbox.append(&[3; 4000]);
        assert_eq!(inbox.unread().len(), 4096);
        // It was not filled by a client that sends more than there is room for.
        assert_eq!(receive(&mut inbox, 1, &[]), 8192);
    }

    #[test]
    fn a_buffer_that_is_large_enough_is_used_again() {
        let mut inbox = Inbox::new(128 << 10);
        receive(&mut inbox, 4096, b"ab");
        let before = inbox.unread().as_ptr();
        inbox.consume(1);
        receive(&mut inbox, 4096, b"c");
        assert_eq!((inbox.unread().as_ptr(), inbox.unread()), (before, &b"bc"[..]));
    }
}
