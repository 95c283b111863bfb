//! The software NVMe controller as a device: it says when and how a command ends, a store in memory holds the bytes.
//!
//! # Shape
//! ```text
//!  worker 0: NvmeQueue ─┐ doorbell, reap: lock, advance(now), unlock     ┌──────────────────────────────┐
//!  worker 1: NvmeQueue ─┼──────────────────────────────────────────────▶ │ Controller (one queue pair   │
//!  worker 2: NvmeQueue ─┘   ◀── interrupt: "worker 1 has completions" ── │ per worker), its model clock │
//!       └── bytes, without the controller's lock ──▶ SparseStore         └──────────────────────────────┘
//! ```
//! Nobody's thread belongs to the controller: whichever worker looks moves it on, for all. Commands of one lock-step are
//! written and read together; bytes are copied after the lock is released, on the thread of the worker whose they are.
//!
//! # When bytes move
//! At the reap, for reads and writes alike. Before the reap nobody was told that the command ended, so any order among
//! commands in flight together is one that a drive may choose; after it every later command sees them (S1 of the store).
//!
//! # Durability
//! The medium is memory of this process: a kill of the daemon loses all of it, flushed or not. What the model has is time:
//! a flush takes as long as on the drive, and since no preset has a volatile cache, FUA costs nothing and
//! `volatile_cache` is false. It is a device to measure and test with.
//!
//! # The wake-up that must not be lost
//! A worker with commands in flight sleeps until `next_event_ns`, which another worker may overtake:
//!
//! | step | A: sleeps until event V (its own) | B: busy |
//! |---|---|---|
//! | 1 | reads `news` = false, `next_event_ns` = V | |
//! | 2 | | at V: lock, advance, posts A's completion; sets A's `news`; unlock |
//! | 3 | | interrupts A |
//! | 4 | sleeps, or is about to | |
//!
//! The interrupt (a kick) of step 3 comes after step 2's store, and a kicked worker runs a full turn before it sleeps, in
//! which `reap` sees `news`. Without B, A's own timer at V leads to the same place. V itself may be stale in one direction
//! only: a doorbell of B's can make the *controller's* next event earlier, but that event is B's, and none of A's can come
//! before the V that A saw (a later command may delay those already inside, never hasten them).

use crate::device::store::SparseStore;
use crate::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueLimits, QueueOptions, Reaped, Tag};
use crate::request::{Op, Status};
use mqfq_nvme::command::BLOCKS_MAX;
use mqfq_nvme::presets::{BLOCK_BYTES, TRANSFER_BYTES_MAX};
use mqfq_nvme::{ArbClass, Controller, DatasetRange, HostQueuePair, QueuePairOptions, SubmissionEntry};
use mqfq_sched::topology::HctxId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use mqfq_nvme::Preset;
pub use mqfq_nvme::presets::ALL as PRESETS;

/// Most workers that can open a queue.
const QUEUE_PAIRS_MAX: u16 = 1024;

/// Bytes that one Write Zeroes can name; longer ones are several commands, one after the other.
const WRITE_ZEROES_BYTES_MAX: u32 = BLOCKS_MAX * BLOCK_BYTES;

/// What a list of PRP entries names: whole pages, but at its two ends (NVMe 1.3 section 4.3). Requests of whole pages can always
/// share one.
const PAGE_BYTES: u32 = 4096;

/// Requests of one command: the largest transfer, in pages.
const SEGMENTS_MAX: u16 = (TRANSFER_BYTES_MAX / PAGE_BYTES) as u16;

/// No event: nothing is inside the controller.
const NEVER: u64 = u64::MAX;

/// What a software drive is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmeDeviceOptions<'a> {
    /// Name of one of [`PRESETS`].
    pub preset: &'a str,
    /// Size: a multiple of 512 bytes, not 0.
    pub size_bytes: u64,
    /// Of the model's random numbers.
    pub seed: u64,
}

/// A software NVMe drive. See the file's text.
pub struct NvmeDevice {
    shared: Arc<Shared>,
    info: DeviceInfo,
}

struct Shared {
    driver: Mutex<Driver>,
    store: SparseStore,
    /// When the controller's next completion comes, or [`NEVER`]: as of the last time that anybody held the lock.
    next_event_ns: AtomicU64,
}

/// What the lock protects.
struct Driver {
    controller: Controller,
    /// By queue identifier minus one.
    owners: Vec<Owner>,
}

struct Owner {
    hctx: HctxId,
    /// The owner's completion ring may hold something new.
    news: Arc<AtomicBool>,
}

impl NvmeDevice {
    /// A drive by name.
    ///
    /// # Errors
    /// One sentence: unknown preset (it lists them) or a size that is no multiple of the block.
    pub fn new(options: NvmeDeviceOptions<'_>) -> Result<NvmeDevice, String> {
        let NvmeDeviceOptions { preset, size_bytes, seed } = options;
        NvmeDevice::with_preset(Preset::by_name(preset).map_err(|unknown| unknown.to_string())?, size_bytes, seed)
    }

    /// A drive with times of one's own.
    ///
    /// # Errors
    /// One sentence: a size that is no multiple of the block.
    pub fn with_preset(preset: Preset, size_bytes: u64, seed: u64) -> Result<NvmeDevice, String> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
            return Err(format!("an nvme device's size is a multiple of {BLOCK_BYTES} bytes, not {size_bytes}"));
        }
        let controller = Controller::new(preset.controller(size_bytes, QUEUE_PAIRS_MAX, seed));
        let info = DeviceInfo {
            size_bytes,
            block_bytes: BLOCK_BYTES,
            preferred_bytes: preset.media.page_bytes,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            volatile_cache: false,
            segments_max: SEGMENTS_MAX,
            segment_align_bytes: PAGE_BYTES,
        };
        let driver = Mutex::new(Driver { controller, owners: Vec::new() });
        let shared = Shared { driver, store: SparseStore::new(size_bytes), next_event_ns: AtomicU64::new(NEVER) };
        Ok(NvmeDevice { shared: Arc::new(shared), info })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().expect("a worker panicked inside the NVMe controller")
    }
}

impl Device for NvmeDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn queue_limits(&self) -> QueueLimits {
        // A ring of 65536 entries holds one command fewer.
        QueueLimits { queues_max: QUEUE_PAIRS_MAX.into(), depth_max: u16::MAX }
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(self.open_shared_queue(options)?)
    }

    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        let QueueOptions { hctx, depth, interrupt, .. } = options;
        let news = Arc::new(AtomicBool::new(false));
        let mut driver = self.shared.lock();
        // A ring holds one command fewer than it has entries.
        let pair = QueuePairOptions { entries: u32::from(depth) + 1, class: ArbClass::default() };
        let host = HostQueuePair::create(&mut driver.controller, pair)
            .map_err(|status| format!("the NVMe controller refused a queue of depth {depth}: {status}"))?;
        driver.owners.push(Owner { hctx, news: news.clone() });
        drop(driver);
        let depth = depth as usize;
        Ok(Box::new(NvmeQueue {
            shared: self.shared.clone(),
            host,
            news,
            interrupt,
            flights: (0..depth).map(|_| None).collect(),
            in_flight: 0,
            staged: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            others: Vec::with_capacity(QUEUE_PAIRS_MAX as usize),
        }))
    }
}

/// A command on its way.
struct Flight {
    command: Command,
    /// Of a long Write Zeroes: bytes that earlier commands covered.
    covered_bytes: u32,
}

/// An entry for the submission ring.
enum Entry {
    Plain(SubmissionEntry),
    Deallocate { cid: u16, range: DatasetRange },
}

struct NvmeQueue {
    shared: Arc<Shared>,
    host: HostQueuePair,
    news: Arc<AtomicBool>,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
    /// By tag, which is also the command identifier.
    flights: Box<[Option<Flight>]>,
    in_flight: usize,
    /// For the next doorbell.
    staged: Vec<Entry>,
    /// Taken from the completion ring, not yet worked on.
    ended: Vec<(u16, mqfq_nvme::Status)>,
    /// Workers to interrupt once the lock is released.
    others: Vec<HctxId>,
}

impl NvmeQueue {
    /// One hold of the lock: puts what is staged into the ring, moves the controller to `now_ns`, aborts, takes what ended.
    fn drive(&mut self, now_ns: u64, abort: Option<Tag>) {
        let mut driver = self.shared.lock();
        let Driver { controller, owners } = &mut *driver;
        for entry in self.staged.drain(..) {
            let submitted = match entry {
                Entry::Plain(entry) => self.host.submit(controller, entry),
                Entry::Deallocate { cid, range } => self.host.submit_deallocate(controller, cid, range),
            };
            // As many slots as commands may be in flight, and the SQHD of a command's completion frees its slot.
            submitted.unwrap_or_else(|full| panic!("{:?}: no slot for {full:?}", self.host.id()));
        }
        self.host.ring(controller, now_ns);
        controller.advance(now_ns);
        if let Some(Tag(cid)) = abort {
            // It has ended if there is no such command, which the next line finds.
            controller.abort(self.host.id(), cid, now_ns);
        }
        while let Some(completion) = self.host.poll(controller) {
            self.ended.push((completion.cid, completion.status));
        }
        self.host.ring_completions(controller, now_ns);
        let own = self.host.id();
        controller.take_interrupts(|queue| {
            if queue != own {
                let owner = &owners[queue.0 as usize - 1];
                // Release: pairs with the Acquire in `has_news`. The completions themselves are under the lock.
                owner.news.store(true, Ordering::Release);
                self.others.push(owner.hctx);
            }
        });
        // Relaxed: stored under the lock, and set only under the lock; what it announced was taken above.
        self.news.store(false, Ordering::Relaxed);
        // Relaxed: see "The wake-up": a worker needs no newer value than the one that it stored or saw last.
        self.shared.next_event_ns.store(controller.next_event_ns().unwrap_or(NEVER), Ordering::Relaxed);
        drop(driver);
        for hctx in self.others.drain(..) {
            (self.interrupt)(hctx);
        }
    }

    fn has_news(&self) -> bool {
        // Acquire: pairs with the Release in another worker's `drive`. False although it has just been set: the interrupt
        // that follows brings us back.
        self.news.load(Ordering::Acquire)
    }

    /// Works on what ended: moves bytes, and continues a long Write Zeroes.
    fn finish(&mut self, out: &mut Vec<Reaped>) {
        for (cid, status) in self.ended.drain(..) {
            let place = &mut self.flights[cid as usize];
            let Some(mut flight) = place.take() else {
                panic!("the controller completed {cid}, which was not in flight")
            };
            if status.is_success() && flight.covers_less() {
                self.staged.push(flight.next_entry());
                *place = Some(flight);
                continue;
            }
            if status.is_success() {
                self.shared.store.execute(&mut flight.command);
            }
            self.in_flight -= 1;
            out.push(flight.command.ended(translated(status)));
        }
    }
}

impl Flight {
    fn covers_less(&self) -> bool {
        self.covered_bytes < self.command.length_bytes
    }

    /// The command's (next) entry, and the range that it covers.
    fn next_entry(&mut self) -> Entry {
        let Command { tag: Tag(cid), op, offset_bytes, length_bytes, fua, .. } = self.command;
        let start_bytes = offset_bytes + u64::from(self.covered_bytes);
        let left_bytes = length_bytes - self.covered_bytes;
        let piece_bytes = match op {
            Op::WriteZeroes { .. } => left_bytes.min(WRITE_ZEROES_BYTES_MAX),
            _ => left_bytes,
        };
        self.covered_bytes += piece_bytes;
        let (slba, blocks) = (start_bytes / u64::from(BLOCK_BYTES), piece_bytes / BLOCK_BYTES);
        match op {
            Op::Flush => Entry::Plain(SubmissionEntry::flush(cid)),
            // An NLB of 0 is one block, so there is no read or write of nothing; the empty range of a deallocate is one.
            // No preset has a volatile cache, so a completed deallocate is as stable as FUA asks.
            _ if blocks == 0 || op == Op::Discard => Entry::Deallocate { cid, range: DatasetRange { slba, blocks } },
            Op::Read => Entry::Plain(SubmissionEntry::read(cid, slba, blocks, u64::from(cid))),
            Op::Write => Entry::Plain(SubmissionEntry::write(cid, slba, blocks, fua, u64::from(cid))),
            Op::WriteZeroes { may_unmap } => {
                Entry::Plain(SubmissionEntry::write_zeroes(cid, slba, blocks, may_unmap, fua))
            }
            Op::Discard => unreachable!("handled above"),
        }
    }
}

/// The controller's status in the block layer's words.
fn translated(status: mqfq_nvme::Status) -> Status {
    use mqfq_nvme::Status as Nvme;
    match status {
        status if status.is_success() => Status::Ok,
        Nvme::ABORT_REQUESTED => Status::TimedOut,
        Nvme::INVALID_OPCODE => Status::Unsupported,
        Nvme::INVALID_FIELD | Nvme::LBA_OUT_OF_RANGE => Status::Invalid,
        _ => Status::Io,
    }
}

impl DeviceQueue for NvmeQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.in_flight == self.flights.len() {
            return Err(QueueFull(command));
        }
        let tag = command.tag.0 as usize;
        let mut flight = Flight { command, covered_bytes: 0 };
        self.staged.push(flight.next_entry());
        let before = self.flights[tag].replace(flight);
        assert!(before.is_none(), "tag {tag} is already in flight");
        self.in_flight += 1;
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        if !self.staged.is_empty() {
            self.drive(now_ns, None);
        }
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        if self.in_flight == 0 {
            return;
        }
        // Relaxed: as in `next_event_ns`.
        if self.has_news() || self.shared.next_event_ns.load(Ordering::Relaxed) <= now_ns {
            self.drive(now_ns, None);
        }
        self.finish(out);
        if !self.staged.is_empty() {
            // The rest of a long Write Zeroes. What it may already have ended waits for the next reap.
            self.drive(now_ns, None);
        }
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        let is_inside = self.flights.get(tag.0 as usize).is_some_and(Option::is_some);
        if is_inside {
            self.drive(now_ns, Some(tag));
        }
        is_inside
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        // What has ended by now has.
        self.drive(now_ns, None);
        let mut driver = self.shared.lock();
        self.host.recreate(&mut driver.controller, now_ns);
        // Relaxed: as in `drive`.
        self.shared.next_event_ns.store(driver.controller.next_event_ns().unwrap_or(NEVER), Ordering::Relaxed);
        drop(driver);
        for (tag, place) in self.flights.iter_mut().enumerate() {
            if self.ended.iter().all(|&(cid, _)| cid as usize != tag)
                && let Some(flight) = place.take()
            {
                self.in_flight -= 1;
                given_back.push(flight.command.ended(Status::TimedOut));
            }
        }
        true
    }

    fn next_event_ns(&self) -> Option<u64> {
        if self.in_flight == 0 {
            return None;
        }
        if self.has_news() || !self.ended.is_empty() {
            return Some(0);
        }
        // Relaxed: at least as new as what this worker stored, which is new enough; see "The wake-up".
        let next_ns = self.shared.next_event_ns.load(Ordering::Relaxed);
        (next_ns != NEVER).then_some(next_ns)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    const MIB: u64 = 1 << 20;

    fn device(size_bytes: u64) -> NvmeDevice {
        NvmeDevice::new(NvmeDeviceOptions { preset: "flash-460k", size_bytes, seed: 1 }).unwrap()
    }

    /// A queue whose interrupts are recorded.
    fn queue(device: &NvmeDevice, hctx: u16, depth: u16) -> (Box<dyn DeviceQueue>, Arc<Mutex<Vec<HctxId>>>) {
        let interrupted = Arc::new(Mutex::new(Vec::new()));
        let record = interrupted.clone();
        let options = QueueOptions {
            hctx: HctxId(hctx),
            depth,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(move |hctx| record.lock().unwrap().push(hctx)),
        };
        (device.open_queue(options).unwrap(), interrupted)
    }

    fn command(tag: u16, op: Op, offset_bytes: u64, length_bytes: u32, fill: u8) -> Command {
        let buffer = matches!(op, Op::Read | Op::Write).then(|| {
            let mut buffer = Buffer::new(length_bytes as usize);
            buffer.as_mut_slice().fill(fill);
            buffer
        });
        Command::new(Tag(tag), op, offset_bytes, length_bytes, buffer)
    }

    /// Submits one command and runs until it ended; returns it and when.
    fn run(queue: &mut dyn DeviceQueue, command: Command, now_ns: u64) -> (Reaped, u64) {
        queue.submit(command).unwrap();
        queue.ring_doorbell(now_ns);
        let mut out = Vec::new();
        loop {
            let event_ns = queue.next_event_ns().expect("a command is in flight");
            queue.reap(event_ns - 1, &mut out);
            assert!(out.is_empty(), "ended before its time");
            queue.reap(event_ns, &mut out);
            if let Some(reaped) = out.pop() {
                assert!(out.is_empty());
                return (reaped, event_ns);
            }
        }
    }

    #[test]
    fn bytes_come_back_and_each_command_takes_its_time() {
        let device = device(MIB);
        let (mut queue, _) = queue(&device, 0, 4);
        let (written, write_ns) = run(&mut *queue, command(0, Op::Write, 8192, 8192, 7), 0);
        assert_eq!(written.status, Status::Ok);
        // Two pages of 20 us +- 10% at once, then 3666 ns + 8192 B / 2 GB/s = 7762 ns.
        assert!((18_000 + 7_762..=22_000 + 7_762).contains(&write_ns), "{write_ns}");
        let (read, read_ns) = run(&mut *queue, command(1, Op::Read, 8192 - 512, 4096, 0xee), write_ns);
        let bytes = &read.buffer.as_ref().unwrap().as_slice()[..4096];
        assert!(bytes[..512].iter().all(|&byte| byte == 0) && bytes[512..].iter().all(|&byte| byte == 7));
        // 100 us +- 10%, then 2174 ns.
        assert!((92_173..=112_174).contains(&(read_ns - write_ns)), "{}", read_ns - write_ns);
    }

    #[test]
    fn discarded_and_zeroed_bytes_read_as_zero() {
        let device = device(MIB);
        let (mut queue, _) = queue(&device, 0, 4);
        let mut now_ns = 0;
        for op in [Op::Discard, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false }] {
            for step in [command(3, Op::Write, 0, 1536, 7), command(3, op, 512, 512, 0), command(2, Op::Flush, 0, 0, 0)]
            {
                let (reaped, at_ns) = run(&mut *queue, step, now_ns);
                assert_eq!(reaped.status, Status::Ok);
                now_ns = at_ns;
            }
            let (reaped, at_ns) = run(&mut *queue, command(3, Op::Read, 0, 1536, 0xee), now_ns);
            let bytes = reaped.buffer.unwrap();
            assert_eq!([511, 512, 1023, 1024].map(|at| bytes.as_slice()[at]), [7, 0, 0, 7], "{op:?}");
            now_ns = at_ns;
        }
    }

    #[test]
    fn a_large_read_is_one_command() {
        // 128 KiB as one command: one time per command, 711 ns + 46811 ns, after 32 dies at once.
        let device = device(64 * MIB);
        let (mut queue, _) = queue(&device, 0, 4);
        let (_, at_ns) = run(&mut *queue, command(0, Op::Read, 0, 128 << 10, 0), 0);
        assert!((90_000 + 47_522..=110_000 + 47_523).contains(&at_ns), "{at_ns}");
        assert_eq!(device.info().transfer_bytes_max, 32 << 20);
        let (reaped, _) = run(&mut *queue, command(0, Op::Read, 0, 32 << 20, 0xee), at_ns);
        assert_eq!(reaped.status, Status::Ok);
        assert!(reaped.buffer.unwrap().as_slice()[..32 << 20].iter().all(|&byte| byte == 0), "never written");
    }

    #[test]
    fn a_long_write_zeroes_is_several_commands_and_one_completion() {
        // 100 MiB are 32 + 32 + 32 + 4 MiB: four times 20 us + 711 ns, one after the other.
        let device = device(200 * MIB);
        let (mut queue, _) = queue(&device, 0, 1);
        let (_, start_ns) = run(&mut *queue, command(0, Op::Write, 100 * MIB - 512, 1024, 7), 0);
        let zeroes = command(0, Op::WriteZeroes { may_unmap: true }, 0, 100 << 20, 0);
        let (reaped, at_ns) = run(&mut *queue, zeroes, start_ns);
        assert_eq!((reaped.status, at_ns - start_ns), (Status::Ok, 4 * 20_711));
        assert_eq!(queue.in_flight(), 0);
        let (reaped, _) = run(&mut *queue, command(0, Op::Read, 100 * MIB - 512, 1024, 0xee), at_ns);
        let bytes = reaped.buffer.unwrap();
        assert_eq!([0, 511, 512, 1023].map(|at| bytes.as_slice()[at]), [0, 0, 7, 7]);
    }

    #[test]
    fn whoever_moves_the_controller_interrupts_the_owners_of_what_ended() {
        let device = device(MIB);
        let (mut a, a_interrupted) = queue(&device, 4, 8);
        let (mut b, b_interrupted) = queue(&device, 7, 8);
        a.submit(command(0, Op::Read, 0, 4096, 0)).unwrap();
        a.ring_doorbell(0);
        assert_eq!(b.next_event_ns(), None, "nothing of its own is in flight");
        // B's doorbell a second later finds that A's read has long ended.
        b.submit(command(0, Op::Flush, 0, 0, 0)).unwrap();
        b.ring_doorbell(1_000_000_000);
        assert_eq!(*b_interrupted.lock().unwrap(), [HctxId(4)]);
        assert_eq!(a.next_event_ns(), Some(0), "at once");
        let mut out = Vec::new();
        // A's clock is behind; its completion is there all the same.
        a.reap(0, &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(a.next_event_ns(), None);
        assert!(a_interrupted.lock().unwrap().is_empty());
    }

    #[test]
    fn a_reset_gives_back_what_has_not_ended_and_none_of_it_is_carried_out() {
        let device = device(MIB);
        let (mut queue, _) = queue(&device, 0, 8);
        (0..4).for_each(|tag| queue.submit(command(tag, Op::Write, u64::from(tag) * 4096, 4096, 7)).unwrap());
        queue.ring_doorbell(0);
        // One has ended by the time of the reset, and is reaped as ever.
        let first_ns = queue.next_event_ns().unwrap();
        let (mut given_back, mut out) = (Vec::new(), Vec::new());
        assert!(queue.reset(first_ns, &mut given_back));
        assert_eq!((given_back.len(), queue.in_flight()), (3, 1));
        assert!(given_back.iter().all(|reaped| reaped.buffer.is_some()));
        let again = command(given_back[0].tag.0, Op::Flush, 0, 0, 0);
        queue.submit(again).unwrap();
        queue.ring_doorbell(first_ns);
        queue.reap(1_000_000_000, &mut out);
        assert_eq!(out.iter().map(|reaped| reaped.status).collect::<Vec<_>>(), [Status::Ok; 2]);
        assert_eq!((queue.in_flight(), queue.next_event_ns()), (0, None));
        let written = (0..4).filter(|tag| {
            let mut bytes = [0; 4096];
            device.shared.store.read(tag * 4096, &mut bytes);
            bytes == [7; 4096]
        });
        assert_eq!(written.count(), 1);
    }

    #[test]
    fn a_full_queue_gives_the_command_back() {
        let device = device(MIB);
        let (mut queue, _) = queue(&device, 0, 2);
        (0..2).for_each(|tag| queue.submit(command(tag, Op::Read, 0, 512, 0)).unwrap());
        let QueueFull(back) = queue.submit(command(5, Op::Read, 0, 512, 0)).unwrap_err();
        assert_eq!((back.tag, queue.in_flight()), (Tag(5), 2));
        assert_eq!(queue.next_event_ns(), None, "the doorbell was not rung");
    }

    #[test]
    fn a_full_queue_of_random_work_ends_once_each_over_many_passes_of_the_rings() {
        // 3000 commands through rings of 17 entries, reaped late or early as it falls.
        let device = device(64 * MIB);
        let (mut queue, _) = queue(&device, 0, 16);
        let mut random = mqfq_nvme::random::Random::new(3);
        let (mut free, mut out): (Vec<u16>, Vec<_>) = ((0..16).collect(), Vec::new());
        let (mut submitted, mut ended, mut now_ns) = (0, 0, 0);
        while ended < 3000 {
            while submitted < 3000 && random.below(4) > 0 {
                let Some(tag) = free.pop() else { break };
                let op = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes { may_unmap: false }];
                let op = op[random.below(5) as usize];
                let length_bytes = if op == Op::Flush { 0 } else { 512 << random.below(8) };
                queue.submit(command(tag, op, random.below(1000) * 4096, length_bytes, 1)).unwrap();
                submitted += 1;
            }
            queue.ring_doorbell(now_ns);
            now_ns += random.below(60_000);
            queue.reap(now_ns, &mut out);
            for reaped in out.drain(..) {
                assert_eq!(reaped.status, Status::Ok);
                assert!(!free.contains(&reaped.tag.0), "{:?} ended twice", reaped.tag);
                free.push(reaped.tag.0);
                ended += 1;
            }
            assert_eq!(queue.in_flight(), 16 - free.len());
        }
        assert_eq!(free.len(), 16);
    }

    #[test]
    fn bad_options_are_answered_with_a_sentence() {
        let named = |preset, size_bytes| NvmeDevice::new(NvmeDeviceOptions { preset, size_bytes, seed: 0 }).err();
        assert_eq!(
            named("floppy", MIB).unwrap(),
            "unknown preset \"floppy\": choose one of flash-460k, flash-60k, optane, nvmf-dram, zssd"
        );
        let sentence = "an nvme device's size is a multiple of 512 bytes, not 1000";
        assert_eq!(named("zssd", 1000).unwrap(), sentence);
        assert!(named("zssd", 0).is_some());
        assert!(PRESETS.iter().all(|preset| named(preset.name, MIB).is_none()));
    }
}
