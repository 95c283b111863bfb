//! The lower edge: a device, and the queue of it that a worker owns.

#[cfg(feature = "uring")]
pub mod file;
pub mod memory;
pub mod model;
pub mod null;
pub mod store;

pub use crate::request::DeviceInfo;

use crate::buffer::Buffer;
use crate::extents::{Answer, Stored};
use crate::foreign::BufferSlice;
use crate::request::{Op, Status};
use crate::tag::Tag;
use mqfq_sched::policy::{ClassWeights, QueueClass};
use mqfq_sched::topology::HctxId;
use std::any::Any;

/// Payload that one reap of a device in memory copies, bytes: beyond it the rest waits for the next reap. It bounds how
/// long a worker stays away from its other clients, to about 15 us; a turn of its loop has four rounds of reaps. One
/// command is always carried out, however long.
pub const REAP_BYTES_MAX: u64 = 128 << 10;

/// Number of commands with payloads of these lengths, bytes, that one reap carries out: see [`REAP_BYTES_MAX`].
pub(crate) fn reaped_at_once(payload_bytes: impl Iterator<Item = u64>) -> usize {
    let mut sum_bytes = 0;
    let fits = |&bytes: &u64| {
        let is_first = sum_bytes == 0;
        sum_bytes += bytes;
        is_first || sum_bytes <= REAP_BYTES_MAX
    };
    payload_bytes.take_while(fits).count()
}

/// A request as the device sees it. Already validated: inside the device, aligned to its block, not too long.
#[derive(Debug)]
pub struct Command {
    /// Handed back in [`Reaped`].
    pub tag: Tag,
    /// The operation.
    pub op: Op,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub length_bytes: u32,
    /// Stable before completion.
    pub fua: bool,
    /// As in [`crate::request::Submission`]. Travels through the device and comes back in [`Reaped`].
    pub buffer: Option<Buffer>,
    /// Number of this use of the tag. Goes back in [`Reaped`], so that an earlier use's end is not taken for this
    /// one's.
    pub generation: u32,
    /// Queue of a set that it goes to ([`Device::has_class_queues`]). Queues that are no sets ignore it.
    pub class: QueueClass,
}

impl Command {
    /// A command that is not FUA, the first use of its tag.
    #[inline]
    pub fn new(tag: Tag, op: Op, offset_bytes: u64, length_bytes: u32, buffer: Option<Buffer>) -> Command {
        let class = QueueClass::default();
        Command { tag, op, offset_bytes, length_bytes, fua: false, buffer, generation: 0, class }
    }

    /// Bytes that a device in memory copies or clears for it.
    pub(crate) fn payload_bytes(&self) -> u64 {
        match self.op {
            Op::Read | Op::Write | Op::WriteZeroes { .. } | Op::FastZeroes { .. } => self.length_bytes.into(),
            Op::Flush | Op::Discard => 0,
            // As long as a worker may be kept.
            Op::Extents => REAP_BYTES_MAX,
        }
    }

    /// The bytes of its buffer that it is about.
    ///
    /// # Panics
    /// If a command that moves bytes came without its buffer, or the buffer is shorter: the layers above validate.
    #[inline]
    pub fn room(&mut self) -> BufferSlice<'_> {
        let op = self.op;
        let buffer = self.buffer.as_mut().unwrap_or_else(|| panic!("a command to {op:?} came without its buffer"));
        buffer.room(self.length_bytes as usize)
    }

    /// An empty answer to a question for extents.
    ///
    /// # Panics
    /// If it came without its buffer: the layers above validate.
    pub fn answer(&mut self) -> Answer<'_> {
        let buffer = self.buffer.as_mut().expect("a question for extents came with its buffer");
        Answer::new(buffer, self.length_bytes.into())
    }

    /// The completion of a question for extents where all bytes are `stored`.
    pub fn ended_as(mut self, stored: Stored) -> Reaped {
        let length_bytes = self.length_bytes.into();
        self.answer().push(length_bytes, stored);
        self.ended(Status::Ok)
    }

    /// The completion of this command with `status`; gives its buffer back.
    #[inline]
    pub fn ended(self, status: Status) -> Reaped {
        let Command { tag, buffer, generation, .. } = self;
        Reaped { tag, generation, status, buffer }
    }
}

/// A finished command.
#[derive(Debug)]
pub struct Reaped {
    /// The tag of the command that ended.
    pub tag: Tag,
    /// As in [`Command::generation`].
    pub generation: u32,
    /// Its outcome.
    pub status: Status,
    /// The command's buffer.
    pub buffer: Option<Buffer>,
}

/// The command did not fit: the device queue is full. Nothing happened; the command comes back.
#[derive(Debug)]
pub struct QueueFull(pub Command);

/// Options to open a device queue with.
pub struct QueueOptions {
    /// Worker that it is for.
    pub hctx: HctxId,
    /// Commands in flight at once, 1..=65535; in a set of class queues, in each of the three.
    pub depth: u16,
    /// The worker's ring, for devices that do real I/O.
    #[cfg(feature = "uring")]
    pub ring: Option<crate::ring::DeviceRing>,
    /// Called with the hctx of another worker that has completions to reap on this device ("interrupt").
    pub interrupt: std::sync::Arc<dyn Fn(HctxId) + Send + Sync>,
}

/// A device's remaining operations. Its file has the details.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Health {
    /// All operations.
    #[default]
    Well,
    /// Its file was cut: nothing beyond the end, and no flush.
    Cut,
    /// It has failed: reads alone.
    ReadOnly,
    /// It has failed: nothing.
    Failed,
}

impl Health {
    /// All values, from most to fewest operations.
    pub const ALL: [Health; 4] = [Health::Well, Health::Cut, Health::ReadOnly, Health::Failed];

    /// Name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Health::Well => "well",
            Health::Cut => "cut",
            Health::ReadOnly => "read-only",
            Health::Failed => "failed",
        }
    }
}

/// A part of a device that does not carry out all operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ailing {
    /// Its path.
    pub part: String,
    /// Its first address on the device.
    pub offset_bytes: u64,
    /// Its state in a word: a [`Health::name`], or "hanging".
    pub state: &'static str,
    /// Words for the pool that it is of and that may be full: "a volume of the thin pool VG/POOL".
    pub pool_below: Option<String>,
    /// When the first of its commands that have no end yet had timed out, ns of the engine's clock; of the engine's
    /// answer, when it was sent. `None`: there is none.
    pub hangs_since_ns: Option<u64>,
}

/// A device, shared by all workers.
pub trait Device: Any + Send + Sync {
    /// Its size, units and features. Constant.
    fn info(&self) -> DeviceInfo;

    /// Properties as an export that begins at `offset_bytes` sees them: a device may have parts that differ.
    /// `size_bytes` is where that part ends. May change while nothing of that part is under way.
    fn info_at(&self, offset_bytes: u64) -> DeviceInfo {
        let _ = offset_bytes;
        self.info()
    }

    /// The file below it, if it is one, for a process that takes this one's place.
    #[cfg(feature = "uring")]
    fn ring_file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// News about it since the last call for its user, one sentence each. For a thread that may wait, now and then;
    /// never called by a worker. A call beside one that has not returned leaves out the part at which that one looks.
    fn check_up(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its remaining operations. For any thread, at any time; does not wait.
    fn health(&self) -> Health {
        Health::Well
    }

    /// Parts of it that do not carry out all operations. For any thread, at any time; does not wait.
    fn ailing(&self) -> Vec<Ailing> {
        Vec::new()
    }

    /// State of it in this process, packed as `version` for the process that takes its place. Called
    /// while no command is under way. Its file, if it has one ([`Device::ring_file`]), was handed over before.
    ///
    /// # Errors
    /// Why it cannot, in words that follow "device NAME "; as it stands here, that it never can.
    #[cfg(feature = "uring")]
    fn pack(&self, version: u16) -> Result<crate::client::Packed, String> {
        let _ = version;
        Err("cannot be handed over to another process".to_owned())
    }

    /// Goes on with the state from [`Device::pack`] of the same kind and size in another process; before its first
    /// command.
    ///
    /// # Errors
    /// Why it cannot, in words as above.
    #[cfg(feature = "uring")]
    fn unpack(&self, packed: crate::client::Packed, version: u16) -> Result<(), String> {
        let _ = (packed, version);
        Err("cannot be taken over from another process".to_owned())
    }

    /// The process from which it was taken over has ended: what it kept for that process is this one's.
    fn own(&self) {}

    /// The queue of one worker; called on that worker's thread, once.
    ///
    /// # Errors
    /// One sentence for the user.
    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String>;

    /// Each of its queues is a set of three, one of each class, with its depth of commands in each: a command goes to
    /// the queue of its [`Command::class`], and its tag is below three times the depth. The weights of the classes are
    /// equal until they are set ([`DeviceQueue::set_class_weights`]). Constant.
    fn has_class_queues(&self) -> bool {
        false
    }
}

/// One worker's queue on a device. `submit` any number, then `ring_doorbell` once; `reap` later. Every command
/// submitted is reaped exactly once.
pub trait DeviceQueue {
    /// Puts a command into the queue. The device need not look at it before the doorbell.
    ///
    /// # Errors
    /// [`QueueFull`] with the command if the queue holds its depth. A queue that refuses sooner, because it shares
    /// places with others, says when there is one again: by [`DeviceQueue::next_event_ns`] or by an interrupt.
    fn submit(&mut self, command: Command) -> Result<(), QueueFull>;

    /// Tells the device about the commands submitted since the last call.
    fn ring_doorbell(&mut self, now_ns: u64);

    /// Moves finished commands into `out`.
    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>);

    /// Time at which the device next needs a call of `reap` (its model of time moves), if it does not interrupt.
    /// `None`: nothing in flight, or completions come through the ring.
    fn next_event_ns(&self) -> Option<u64>;

    /// Commands in flight.
    fn in_flight(&self) -> usize;

    /// The command of `tag` shall end now, it has taken too long. If the device could give it up, it ends with
    /// [`Status::TimedOut`] and is not carried out afterwards (it may have been before); if it ended by itself
    /// meanwhile, as it did. Either end is reaped, now or later. False: the device cannot ask for that, or has no such
    /// command, and nothing happened.
    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        let _ = (tag, now_ns);
        false
    }

    /// A command that has timed out holds no depth of the device's any more: it hangs at a part of the device, beside
    /// which the others go on. Constant.
    fn has_parts(&self) -> bool {
        false
    }

    /// The queue shall begin anew. Every command that has not ended comes back in `given_back`, with its buffers (its
    /// status there means nothing), and none of them is carried out afterwards. Ended commands are reaped as usual.
    /// False: the device cannot, and nothing happened.
    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        let _ = (now_ns, given_back);
        false
    }

    /// Sets the weights of the device's class queues, for all sets of it, from now on. False: it has none, and nothing
    /// happened.
    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        let _ = (weights, now_ns);
        false
    }

    /// The part of this number of the device has come, or gone, or is another one since the queue was opened or
    /// followed last: commands go by it from now on.
    ///
    /// # Errors
    /// One sentence: commands of the part before are under way, and nothing has changed.
    fn follow(&mut self, number: u16) -> Result<(), String> {
        let _ = number;
        Ok(())
    }

    /// An operation that this queue put on the worker's ring (`ring::DeviceRing`) ended: `user` as given there,
    /// `result` as the kernel's CQE says. Its command is handed out by the next `reap`.
    fn ring_event(&mut self, user: u32, result: i32) {
        unreachable!("this device put nothing on the ring, yet got event {user} with result {result}");
    }
}
