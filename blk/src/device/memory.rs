//! A device in memory, as fast as memory: commands are carried out when they are reaped, in the order of submission.
//!
//! The worker copies, so one reap copies a bounded number of bytes ([`REAP_BYTES_MAX`](super::REAP_BYTES_MAX)); the
//! rest waits for the next.
//!
//! Its bytes end with the process. So nothing that is completed becomes any safer by a flush, there is no cache that a
//! flush could empty, and `volatile_cache` is false; FUA and flush are accepted and have nothing to do.

use crate::device::store::SparseStore;
use crate::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped, reaped_at_once};
use crate::request::Status;
use crate::tag::Tag;
use std::collections::VecDeque;
use std::sync::Arc;

/// Largest transfer, bytes: what NBD clients assume of a server that does not say.
const TRANSFER_BYTES_MAX: u32 = 32 << 20;

/// A device whose bytes lie in a [`SparseStore`].
pub struct MemoryDevice {
    store: Arc<SparseStore>,
}

impl MemoryDevice {
    /// A device of `size_bytes` zeroes that takes any alignment. Memory is taken as it is written.
    pub fn new(size_bytes: u64) -> MemoryDevice {
        MemoryDevice { store: Arc::new(SparseStore::new(size_bytes)) }
    }

    /// A queue of it, which may change threads.
    pub fn queue(&self, options: &QueueOptions) -> impl DeviceQueue + Send + use<> {
        let depth = options.depth as usize;
        MemoryQueue { store: self.store.clone(), submitted: VecDeque::with_capacity(depth), depth }
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size_bytes: self.store.size_bytes(),
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            volatile_cache: false,
            pages_align_bytes: 0,
        }
    }

    #[cfg(feature = "uring")]
    fn pack(&self, version: u16) -> Result<crate::client::Packed, String> {
        self.store.pack(version)
    }

    #[cfg(feature = "uring")]
    fn unpack(&self, packed: crate::client::Packed, version: u16) -> Result<(), String> {
        self.store.unpack(packed, version)
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(self.queue(&options)))
    }
}

struct MemoryQueue {
    store: Arc<SparseStore>,
    submitted: VecDeque<Command>,
    depth: usize,
}

impl DeviceQueue for MemoryQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.submitted.len() == self.depth {
            return Err(QueueFull(command));
        }
        self.submitted.push_back(command);
        Ok(())
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {}

    fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
        let count = reaped_at_once(self.submitted.iter().map(Command::payload_bytes));
        out.extend(self.submitted.drain(..count).map(|mut command| {
            let status = self.store.execute(&mut command);
            command.ended(status)
        }));
    }

    fn abort(&mut self, tag: Tag, _now_ns: u64) -> bool {
        // It ends with the next reap.
        self.submitted.iter().any(|command| command.tag == tag)
    }

    fn reset(&mut self, _now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        given_back.extend(self.submitted.drain(..).map(|command| command.ended(Status::TimedOut)));
        true
    }

    fn next_event_ns(&self) -> Option<u64> {
        (!self.submitted.is_empty()).then_some(0)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len()
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::request::Op;
    use mqfq_sched::topology::HctxId;

    fn queue(device: &MemoryDevice, hctx: u16) -> Box<dyn DeviceQueue> {
        let options = QueueOptions {
            hctx: HctxId(hctx),
            depth: 4,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(|hctx| panic!("{hctx:?} interrupted by a device that has nothing to say")),
        };
        device.open_queue(options).unwrap()
    }

    fn run(queue: &mut dyn DeviceQueue, op: Op, offset_bytes: u64, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = Buffer::new(bytes.len());
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let length_bytes = bytes.len() as u32;
        let command = Command::new(Tag(3), op, offset_bytes, length_bytes, Some(buffer));
        queue.submit(command).unwrap();
        queue.ring_doorbell(0);
        let mut out = Vec::new();
        queue.reap(0, &mut out);
        let Reaped { tag, status, buffer, .. } = out.pop().unwrap();
        assert_eq!((tag, status), (Tag(3), Status::Ok));
        buffer.unwrap().as_slice()[..bytes.len()].to_vec()
    }

    #[test]
    fn what_one_queue_wrote_another_reads() {
        let device = MemoryDevice::new(1 << 20);
        let (mut a, mut b) = (queue(&device, 0), queue(&device, 1));
        run(&mut *a, Op::Write, 777, b"hello");
        assert_eq!(run(&mut *b, Op::Read, 776, &[0xee; 7]), b"\0hello\0");
    }

    #[test]
    fn discarded_and_zeroed_bytes_read_as_zero() {
        let device = MemoryDevice::new(1 << 20);
        let mut queue = queue(&device, 0);
        for op in [Op::Discard, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false }] {
            run(&mut *queue, Op::Write, 0, b"hello");
            run(&mut *queue, op, 1, &[1; 3]);
            assert_eq!(run(&mut *queue, Op::Read, 0, &[0xee; 5]), b"h\0\0\0o", "{op:?}");
        }
    }

    #[test]
    fn one_reap_copies_a_bounded_number_of_bytes_and_at_least_one_command() {
        let mut queue = queue(&MemoryDevice::new(4 << 20), 0);
        let read = |tag, length_bytes| {
            Command::new(Tag(tag), Op::Read, 0, length_bytes, Some(Buffer::new(length_bytes as usize)))
        };
        // 128 KiB at once: the first alone is more; then 64 + 64; then the rest.
        [1 << 20, 64 << 10, 64 << 10, 4096].iter().zip(0..).for_each(|(&length, tag)| {
            queue.submit(read(tag, length)).unwrap();
        });
        let mut counts = Vec::new();
        while queue.next_event_ns() == Some(0) {
            let mut out = Vec::new();
            queue.reap(0, &mut out);
            counts.push(out.iter().map(|reaped| reaped.tag.0).collect::<Vec<_>>());
        }
        assert_eq!(counts, [vec![0], vec![1, 2], vec![3]]);
    }

    #[test]
    fn the_queue_is_as_deep_as_it_was_opened() {
        let mut queue = queue(&MemoryDevice::new(4096), 0);
        let flush = |tag| Command::new(Tag(tag), Op::Flush, 0, 0, None);
        (0..4).for_each(|tag| queue.submit(flush(tag)).unwrap());
        let QueueFull(back) = queue.submit(flush(9)).unwrap_err();
        assert_eq!(back.tag, Tag(9));
        assert_eq!(queue.in_flight(), 4);
    }
}
