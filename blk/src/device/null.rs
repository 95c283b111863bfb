//! A device that completes every command at once and keeps nothing: measures the cost of the layers above.

use crate::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use crate::edge::list::VacantEntry;
use crate::extents::Stored;
use crate::request::{Op, Status};

/// Largest transfer, bytes: what NBD clients assume of a server that does not say.
const TRANSFER_BYTES_MAX: u32 = 32 << 20;

/// A device without bytes: reads return zeroes, all other commands succeed and do nothing.
#[derive(Clone, Copy, Debug)]
pub struct NullDevice {
    info: DeviceInfo,
}

impl NullDevice {
    /// A device of `size_bytes` that takes any alignment.
    pub fn new(size_bytes: u64) -> NullDevice {
        NullDevice::with_info(DeviceInfo {
            size_bytes,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            // Nothing is kept, so nothing can be lost.
            volatile_cache: false,
            pages_align_bytes: 0,
        })
    }

    /// A device that says this of itself.
    pub fn with_info(info: DeviceInfo) -> NullDevice {
        NullDevice { info }
    }

    /// A queue of it, which may change threads.
    pub fn queue(&self, options: &QueueOptions) -> impl DeviceQueue + Send + use<> {
        let depth = options.depth as usize;
        NullQueue { ended: Vec::with_capacity(depth), depth }
    }
}

impl Device for NullDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    #[cfg(feature = "uring")]
    fn pack(&self, _version: u16) -> Result<crate::client::Packed, String> {
        Ok(crate::client::Packed::default())
    }

    #[cfg(feature = "uring")]
    fn unpack(&self, _packed: crate::client::Packed, _version: u16) -> Result<(), String> {
        Ok(())
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(self.queue(&options)))
    }
}

struct NullQueue {
    ended: Vec<Reaped>,
    depth: usize,
}

impl DeviceQueue for NullQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        match command.op {
            Op::Read => self.read(command),
            Op::Extents => self.extents(command),
            _ => self.end(command),
        }
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {}

    fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
        if out.is_empty() && out.capacity() >= self.depth {
            // One list for the other: nothing is copied.
            std::mem::swap(out, &mut self.ended);
        } else {
            out.append(&mut self.ended);
        }
    }

    fn reset(&mut self, _now_ns: u64, _given_back: &mut Vec<Reaped>) -> bool {
        // Everything has ended.
        true
    }

    fn next_event_ns(&self) -> Option<u64> {
        (!self.ended.is_empty()).then_some(0)
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }
}

impl NullQueue {
    /// As any other command: all that is asked about reads as zero.
    #[cold]
    fn extents(&mut self, mut command: Command) -> Result<(), QueueFull> {
        if self.ended.len() < self.depth {
            let length_bytes = command.length_bytes.into();
            command.answer().push(length_bytes, Stored::Hole);
        }
        self.end(command)
    }

    /// As any other command, with zeroes. Kept apart: the loop's saves on the stack would be made for every command.
    #[inline(never)]
    fn read(&mut self, mut command: Command) -> Result<(), QueueFull> {
        if self.ended.len() < self.depth {
            // A recycled buffer holds a former tenant's bytes.
            command.room().fill(0);
        }
        self.end(command)
    }

    #[inline(always)]
    fn end(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.ended.len() == self.depth {
            return Err(QueueFull(command));
        }
        match VacantEntry::within(&mut self.ended) {
            Some(place) => place.fill(command.ended(Status::Ok)),
            None => unreachable!("the list has room for the depth"),
        }
        Ok(())
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::tag::Tag;
    use mqfq_sched::topology::HctxId;
    use std::sync::Arc;

    fn queue(depth: u16) -> Box<dyn DeviceQueue> {
        let options = QueueOptions {
            hctx: HctxId(0),
            depth,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(|hctx| panic!("{hctx:?} interrupted by a device that has nothing to say")),
        };
        NullDevice::new(1 << 20).open_queue(options).unwrap()
    }

    fn read(tag: u16) -> Command {
        let mut buffer = Buffer::new(8192);
        buffer.as_mut_slice().fill(0xee);
        Command::new(Tag(tag), Op::Read, 0, 5000, Some(buffer))
    }

    #[test]
    fn a_read_is_all_zeroes_and_no_more_than_asked_for() {
        let mut queue = queue(1);
        queue.submit(read(0)).unwrap();
        let mut out = Vec::new();
        queue.reap(0, &mut out);
        let buffer = out[0].buffer.as_ref().unwrap();
        assert!(buffer.as_slice()[..5000].iter().all(|&byte| byte == 0));
        assert_eq!(buffer.as_slice()[5000], 0xee);
    }

    #[test]
    fn the_queue_is_as_deep_as_it_was_opened() {
        let mut queue = queue(2);
        queue.submit(read(0)).unwrap();
        queue.submit(read(1)).unwrap();
        let QueueFull(back) = queue.submit(read(0)).unwrap_err();
        assert_eq!(back.length_bytes, 5000);
        assert_eq!((queue.in_flight(), queue.next_event_ns()), (2, Some(0)));
        let mut out = Vec::new();
        queue.reap(0, &mut out);
        assert_eq!(out.len(), 2);
        assert_eq!((queue.in_flight(), queue.next_event_ns()), (0, None));
    }
}
