//! A device under test and queues on it, driven by hand: the ring where the device uses one, the clock where it has a
//! model of time, a parked thread where it waits for another queue.

use crate::watchdog::{self, Doing, Watch};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::extents::{self, Extent, Stored};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_blkmq::{MultiQueue, QueueLayout, QueueMap, SharedQueues};
use mqfq_sched::policy::QueueClass;
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_testing_devices::solo::SoloRing;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Fill of a recycled buffer before a read: some other tenant's bytes.
pub const POISON: u8 = 0xee;

/// A device, and the objects that must outlive it.
pub struct Rig {
    pub device: Arc<dyn Device>,
    /// Its model of time, common to all queues.
    clock_ns: Arc<AtomicU64>,
    /// The watchdog of its queues.
    watch: Watch,
    /// A folder to remove, a loop device to give back; after the device.
    holds: Option<Box<dyn Any>>,
}

impl Rig {
    pub fn new(device: impl Device + 'static) -> Rig {
        Rig { device: Arc::new(device), clock_ns: Arc::default(), watch: Watch::nobody(), holds: None }
    }

    /// If the test of this name is stuck, the process ends and reports the state of the rig's queues.
    pub fn watched(self, test: &'static str) -> Rig {
        Rig { watch: Watch::begin(test), ..self }
    }

    pub fn holding(self, what: impl Any) -> Rig {
        Rig { holds: Some(Box::new(what)), ..self }
    }

    /// The test, as the watchdog knows it.
    pub fn test(&self) -> Arc<watchdog::Test> {
        self.watch.test()
    }

    /// The object that the rig holds for the device.
    pub fn held<T: Any>(&self) -> &T {
        self.holds.as_ref().and_then(|holds| holds.downcast_ref()).expect("the rig holds one of these")
    }

    pub fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Smallest unit, bytes.
    pub fn block(&self) -> u64 {
        u64::from(self.info().block_bytes)
    }

    /// A queue for this thread.
    pub fn open(&self, hctx: u16, depth: u16) -> Driver {
        self.opener()(hctx, depth)
    }

    /// Opens queues on another thread.
    pub fn opener(&self) -> impl Fn(u16, u16) -> Driver + Send + Sync + use<> {
        let (device, clock_ns, test) = (self.device.clone(), self.clock_ns.clone(), self.test());
        move |hctx, depth| Driver::open(&device, &clock_ns, test.queue(hctx, depth), hctx, depth)
    }
}

/// One queue and the thread that owns it.
pub struct Driver {
    /// Before the ring: a queue dropped with entries in flight leaks their buffers.
    queue: Box<dyn DeviceQueue>,
    ring: SoloRing,
    clock_ns: Arc<AtomicU64>,
    watched: watchdog::Queue,
}

impl Driver {
    fn open(
        device: &Arc<dyn Device>,
        clock_ns: &Arc<AtomicU64>,
        watched: watchdog::Queue,
        hctx: u16,
        depth: u16,
    ) -> Driver {
        let ring = SoloRing::new().expect("the suite needs io_uring");
        let thread = std::thread::current();
        let options = QueueOptions {
            hctx: HctxId(hctx),
            depth,
            ring: Some(ring.device_ring()),
            // A token that is kept until the thread parks: an interrupt before the park is not lost.
            interrupt: Arc::new(move |_| thread.unpark()),
        };
        Driver { queue: device.open_queue(options).unwrap(), ring, clock_ns: clock_ns.clone(), watched }
    }

    fn now_ns(&self) -> u64 {
        self.clock_ns.load(SeqCst)
    }

    pub fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        let (tag, shown) = (command.tag, watchdog::shown(&command));
        self.queue.submit(command)?;
        self.watched.submitted(tag, shown);
        Ok(())
    }

    pub fn ring_doorbell(&mut self) {
        self.queue.ring_doorbell(self.now_ns());
    }

    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    pub fn try_follow(&mut self, number: u16) -> Result<(), String> {
        self.queue.follow(number)
    }

    #[track_caller]
    pub fn follow(&mut self, number: u16) {
        self.try_follow(number).expect("nothing is under way");
    }

    /// Reaps the ended commands, after the next possible step: an entry of the ring ended, or time went to the next
    /// event. None, if only another queue can help.
    pub fn turn(&mut self) -> Vec<Reaped> {
        self.turn_or_stuck().0
    }

    fn turn_or_stuck(&mut self) -> (Vec<Reaped>, bool) {
        let mut out = Vec::new();
        self.queue.reap(self.now_ns(), &mut out);
        let mut stuck = false;
        if out.is_empty() {
            if let Some(next_ns) = self.queue.next_event_ns() {
                self.clock_ns.fetch_max(next_ns, SeqCst);
            } else {
                self.watched.does(Doing::Waiting, self.ring.in_flight());
                stuck = self.ring.turn(&mut *self.queue).unwrap() == 0;
                self.watched.does(Doing::Running, self.ring.in_flight());
            }
            self.queue.reap(self.now_ns(), &mut out);
        }
        self.watched.reaped(&out);
        (out, stuck)
    }

    /// Waits until something ended.
    pub fn wait(&mut self) -> Vec<Reaped> {
        assert!(self.in_flight() > 0, "nothing is in flight");
        loop {
            let (out, stuck) = self.turn_or_stuck();
            if !out.is_empty() {
                return out;
            }
            if stuck {
                self.watched.does(Doing::Parked, self.ring.in_flight());
                std::thread::park();
                self.watched.does(Doing::Running, self.ring.in_flight());
            }
        }
    }

    /// Waits until everything ended.
    pub fn wait_all(&mut self) -> Vec<Reaped> {
        let mut all = Vec::new();
        while self.in_flight() > 0 {
            all.extend(self.wait());
        }
        all
    }

    /// One command from its submission to its end, alone in the queue.
    #[track_caller]
    pub fn run(&mut self, command: Command) -> Reaped {
        let tag = command.tag;
        self.submit(command).expect("there is room for one");
        self.ring_doorbell();
        let mut all = self.wait_all();
        assert_eq!(all.len(), 1, "one command, one end");
        let reaped = all.pop().unwrap();
        assert_eq!(reaped.tag, tag);
        reaped
    }

    #[track_caller]
    pub fn ok(&mut self, command: Command) -> Option<Buffer> {
        let shown = format!("{command:?}");
        let Reaped { status, buffer, .. } = self.run(command);
        assert_eq!(status, Status::Ok, "{shown}");
        buffer
    }

    #[track_caller]
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        self.ok(write(0, offset_bytes, bytes));
    }

    #[track_caller]
    pub fn read(&mut self, offset_bytes: u64, length: usize) -> Vec<u8> {
        self.ok(read(0, offset_bytes, length)).expect("a read's buffer comes back").as_slice()[..length].to_vec()
    }

    /// Extents of a range, over as many answers as it takes: offset, length, state.
    #[track_caller]
    pub fn extents(&mut self, offset_bytes: u64, length: u64, extents_max: usize) -> Vec<(u64, u64, Stored)> {
        let (mut at, end) = (offset_bytes, offset_bytes + length);
        let mut all = Vec::new();
        while at < end {
            let buffer = Some(extents::ask(extents_max));
            let command = Command::new(Tag(0), Op::Extents, at, (end - at) as u32, buffer);
            let buffer = self.ok(command).expect("its buffer comes back");
            let answer: Vec<_> = extents::answered(&buffer).collect();
            assert!((1..=extents_max).contains(&answer.len()), "{answer:?}");
            for Extent { length_bytes, stored } in answer {
                assert!(length_bytes > 0 && at + length_bytes <= end, "{length_bytes} at {at} of what ends at {end}");
                all.push((at, length_bytes, stored));
                at += length_bytes;
            }
        }
        all
    }
}

pub fn write(tag: u16, offset_bytes: u64, bytes: &[u8]) -> Command {
    let mut buffer = Buffer::new(bytes.len());
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let length_bytes = bytes.len() as u32;
    Command::new(Tag(tag), Op::Write, offset_bytes, length_bytes, Some(buffer))
}

/// A read into a poisoned buffer.
pub fn read(tag: u16, offset_bytes: u64, length: usize) -> Command {
    let mut buffer = Buffer::new(length);
    buffer.as_mut_slice().fill(POISON);
    Command::new(Tag(tag), Op::Read, offset_bytes, length as u32, Some(buffer))
}

pub fn plain(tag: u16, op: Op, offset_bytes: u64, length: usize) -> Command {
    Command::new(Tag(tag), op, offset_bytes, length as u32, None)
}

/// Bytes that differ at each place and with each `salt`, none of them zero or poison.
pub fn pattern(offset_bytes: u64, length: usize, salt: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(31).wrapping_add(at >> 9).wrapping_add(salt * 17) % 199) as u8 + 1;
    (offset_bytes..offset_bytes + length as u64).map(byte).collect()
}

/// More queues than a claim opens.
const PORTS: usize = 64;

/// Tags of a hardware queue: more than the claims that count on theirs have in flight together.
const TAGS: u16 = 128;

/// A device through the ports of shared queues.
pub fn shared(inner: impl MultiQueue, layout: QueueLayout) -> SharedQueues {
    let map = QueueMap::new(&layout, &Topology::flat(PORTS), &inner, TAGS).unwrap();
    assert!(!map.is_private());
    SharedQueues::open(Arc::new(inner), map, TAGS).unwrap()
}

/// A device with class queues, through sets of them: commands go round the classes by their tags, each time it has run
/// empty with another one first.
pub struct Classes(pub Arc<dyn MultiQueue>);

struct ClassesQueue {
    set: Box<dyn DeviceQueue + Send>,
    depth: usize,
    shift: usize,
}

impl Device for Classes {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        let depth = options.depth;
        // No class has more of the tags below the depth than these.
        let set = self.0.open_class_queues(QueueOptions { depth: depth.div_ceil(3), ..options })?;
        Ok(Box::new(ClassesQueue { set, depth: depth.into(), shift: 0 }))
    }
}

impl DeviceQueue for ClassesQueue {
    fn submit(&mut self, mut command: Command) -> Result<(), QueueFull> {
        match self.set.in_flight() {
            0 => self.shift += 1,
            full if full == self.depth => return Err(QueueFull(command)),
            _ => {}
        }
        command.class = QueueClass::ALL[(usize::from(command.tag.0) + self.shift) % 3];
        self.set.submit(command)
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.set.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        self.set.reap(now_ns, out);
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.set.next_event_ns()
    }

    fn in_flight(&self) -> usize {
        self.set.in_flight()
    }
}
