//! The software NVMe controller as a device: it says when and how a command ends, a store in memory holds the bytes.
//!
//! # Shape
//! ```text
//!  worker 0: NvmeQueue ─┐ doorbell, reap: lock, advance(now), unlock     ┌──────────────────────────────┐
//!  worker 1: NvmeQueue ─┼──────────────────────────────────────────────▶ │ Controller (one queue pair   │
//!  worker 2: NvmeQueue ─┘   ◀── interrupt: "worker 1 has completions" ── │ per worker), its model clock │
//!       └── bytes, without the controller's lock ──▶ SparseStore         └──────────────────────────────┘
//! ```
//! The controller has no thread: any worker that looks moves it on, for all. Commands of one lock-step
//! are written and read together; bytes are copied after the lock is released, on the thread of the worker whose they
//! are.
//!
//! # Class queues
//! A set is three queue pairs, one of each class, behind one [`DeviceQueue`]: submissions go to the pair of their
//! class, completions are taken from all three, and there is one doorbell, one interrupt and one reset for them.
//! Weights are the controller's and hold for all sets. A controller that offers weighted round robin is enabled with
//! it, whether a set is opened or not.
//!
//! # When bytes move
//! At the reap, for reads and writes alike. Before the reap no client was told that the command ended, so any order
//! among commands in flight together is one that a drive may choose; after it every later command sees them (S1 of the
//! store).
//!
//! # Durability
//! The medium is memory of this process: a kill of the daemon loses all of it, flushed or not. The model has the time
//! of a drive: a flush takes as long as on the drive, and since no preset has a volatile cache, FUA costs nothing and
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
//! The interrupt (a kick) of step 3 comes after step 2's store, and a kicked worker runs a full turn before it sleeps,
//! in which `reap` sees `news`. Without B, A's own timer at V leads to the same place. V itself may be stale in one
//! direction only: a doorbell of B's can make the *controller's* next event earlier, but that event is B's, and none of
//! A's can come before the V that A saw (a later command may delay those already inside, never hasten them).

use crate::command::BLOCKS_MAX;
use crate::presets::{BLOCK_BYTES, TRANSFER_BYTES_MAX};
use crate::{
    ArbClass, ArbitrationFeature, ArbitrationWeights, Controller, ControllerOptions, DatasetRange, HostQueuePair,
    Mechanism, QueuePairOptions, Select, SubmissionEntry,
};
use mqfq_blk::device::store::SparseStore;
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::{Tag, TagSet};
use mqfq_blkmq::{MultiQueue, QueueLimits};
use mqfq_sched::policy::ClassWeights;
use mqfq_sched::topology::HctxId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use crate::presets::ALL as PRESETS;
pub use crate::{Arbitration, Preset};

/// Queue pairs of a drive of which the options say nothing else: one for each worker there can be.
const QUEUE_PAIRS_MAX: u16 = 1024;

/// By [`mqfq_sched::policy::QueueClass::index`].
const CLASSES: [ArbClass; 3] = [ArbClass::High, ArbClass::Medium, ArbClass::Low];

/// Bytes that one Write Zeroes can name; longer ones are several commands, one after the other.
const WRITE_ZEROES_BYTES_MAX: u32 = BLOCKS_MAX * BLOCK_BYTES;

/// No event: nothing is inside the controller.
const NEVER: u64 = u64::MAX;

/// Options of a software drive.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NvmeDeviceOptions<'a> {
    /// Name of one of [`PRESETS`].
    pub preset: &'a str,
    /// Size: a multiple of 512 bytes, not 0.
    pub size_bytes: u64,
    /// Seed of the model's random numbers.
    pub seed: u64,
    /// Whether it has weighted round robin; `None`: as the preset says.
    pub arbitration: Option<Arbitration>,
    /// Queue pairs that there can be, at least 1; `None`: 1024. A set of class queues takes three. (D2FQ's drive had
    /// 32.)
    pub queue_pairs_max: Option<u16>,
}

/// A software NVMe drive: the controller says when and how a command ends, a store in memory holds the bytes.
pub struct NvmeDevice {
    shared: Arc<Shared>,
    info: DeviceInfo,
}

struct Shared {
    driver: Mutex<Driver>,
    store: SparseStore,
    /// Time of the controller's next completion, or [`NEVER`]: as of when the lock was last held.
    next_event_ns: AtomicU64,
    /// CAP.AMS offers weighted round robin.
    has_class_queues: bool,
    queue_pairs_max: u16,
}

/// State that the lock protects.
struct Driver {
    controller: Controller,
    /// By queue identifier minus one; `None`: deleted.
    owners: Vec<Option<Owner>>,
}

#[derive(Clone)]
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
        let NvmeDeviceOptions { preset, size_bytes, seed, arbitration, queue_pairs_max } = options;
        let preset = Preset::by_name(preset).map_err(|unknown| unknown.to_string())?;
        let arbitration = arbitration.unwrap_or(Arbitration::of(&preset));
        NvmeDevice::build(preset, arbitration, size_bytes, queue_pairs_max.unwrap_or(QUEUE_PAIRS_MAX), seed)
    }

    /// A drive with times of one's own.
    ///
    /// # Errors
    /// One sentence: a size that is no multiple of the block.
    pub fn with_preset(preset: Preset, size_bytes: u64, seed: u64) -> Result<NvmeDevice, String> {
        NvmeDevice::build(preset, Arbitration::of(&preset), size_bytes, QUEUE_PAIRS_MAX, seed)
    }

    /// A drive of this preset with another arbitration and number of queue pairs.
    ///
    /// # Errors
    /// One sentence: a size that is no multiple of the block, or no queue pair.
    pub fn build(
        preset: Preset,
        arbitration: Arbitration,
        size_bytes: u64,
        queue_pairs_max: u16,
        seed: u64,
    ) -> Result<NvmeDevice, String> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
            return Err(format!("an nvme device's size is a multiple of {BLOCK_BYTES} bytes, not {size_bytes}"));
        }
        if queue_pairs_max == 0 {
            return Err("an nvme device has at least 1 queue pair, not 0".to_string());
        }
        let options = ControllerOptions::of(&preset, size_bytes, queue_pairs_max, seed);
        let mut controller = Controller::new(ControllerOptions { arbitration, ..options });
        // Weights are equal and the burst is one until they are set, and then it differs from round robin by
        // nothing: a queue outside a set is a medium one.
        let has_class_queues = controller.enable(Mechanism::Weighted, 0).is_ok();
        let info = DeviceInfo {
            size_bytes,
            block_bytes: BLOCK_BYTES,
            preferred_bytes: preset.media.page_bytes,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            volatile_cache: false,
            pages_align_bytes: 0,
        };
        let driver = Mutex::new(Driver { controller, owners: Vec::new() });
        let (store, next_event_ns) = (SparseStore::new(size_bytes), AtomicU64::new(NEVER));
        let shared = Arc::new(Shared { driver, store, next_event_ns, has_class_queues, queue_pairs_max });
        Ok(NvmeDevice { shared, info })
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

    #[cfg(feature = "uring")]
    fn pack(&self, version: u16) -> Result<mqfq_blk::client::Packed, String> {
        self.shared.store.pack(version)
    }

    #[cfg(feature = "uring")]
    fn unpack(&self, packed: mqfq_blk::client::Packed, version: u16) -> Result<(), String> {
        self.shared.store.unpack(packed, version)
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(self.open_shared_queue(options)?)
    }
}

impl MultiQueue for NvmeDevice {
    fn queue_limits(&self) -> QueueLimits {
        // A ring of 65536 entries holds one command fewer.
        QueueLimits { queues_max: self.shared.queue_pairs_max.into(), depth_max: u16::MAX }
    }

    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(Box::new(self.open([ArbClass::default()], options)?))
    }

    fn offers_class_queues(&self) -> bool {
        self.shared.has_class_queues
    }

    fn open_class_queues(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        if !self.shared.has_class_queues {
            return Err("it has no weighted round robin among classes of queues".to_string());
        }
        if options.depth > TagSet::CLASS_DEPTH_MAX {
            let (depth, max) = (options.depth, TagSet::CLASS_DEPTH_MAX);
            return Err(format!(
                "three class queues of {depth} commands each have no tags: allowed are up to {max} each"
            ));
        }
        Ok(Box::new(self.open(CLASSES, options)?))
    }
}

impl NvmeDevice {
    /// Opens a queue pair for each of these classes, or none.
    fn open<const N: usize>(&self, classes: [ArbClass; N], options: QueueOptions) -> Result<NvmeQueue<N>, String> {
        let QueueOptions { hctx, depth, interrupt, .. } = options;
        let news = Arc::new(AtomicBool::new(false));
        let tags = N * depth as usize;
        let mut driver = self.shared.lock();
        let Driver { controller, owners } = &mut *driver;
        let mut hosts = Vec::with_capacity(N);
        for class in classes {
            // A ring holds one command fewer than it has entries.
            match HostQueuePair::create(controller, QueuePairOptions { entries: u32::from(depth) + 1, class }) {
                Ok(host) => {
                    // A command's identifier is its tag, which in a set can be beyond the ring of its queue.
                    host.reserve_deallocates(controller, tags);
                    hosts.push(host);
                }
                Err(status) => {
                    // Time 0: nothing happens that has not.
                    for host in hosts {
                        host.delete(controller, 0);
                    }
                    return Err(self.refusal(N, depth, status));
                }
            }
        }
        for host in &hosts {
            let index = host.id().0 as usize - 1;
            owners.resize(owners.len().max(index + 1), None);
            owners[index] = Some(Owner { hctx, news: news.clone() });
        }
        drop(driver);
        let hosts: [HostQueuePair; N] = hosts.try_into().unwrap_or_else(|_| unreachable!("one for each class"));
        Ok(NvmeQueue {
            shared: self.shared.clone(),
            hosts,
            news,
            interrupt,
            depth: depth as usize,
            flights: (0..tags).map(|_| None).collect(),
            in_flight: [0; N],
            staged: Vec::with_capacity(tags),
            ended: Vec::with_capacity(tags),
            others: Vec::with_capacity(self.shared.queue_pairs_max as usize),
        })
    }

    fn refusal(&self, queues: usize, depth: u16, status: crate::Status) -> String {
        let what = if queues == 1 { "a queue".to_string() } else { format!("a set of {queues} queues") };
        let why = match status {
            crate::Status::INVALID_QUEUE_IDENTIFIER => {
                format!("fewer than {queues} of its {} queue pairs are free", self.shared.queue_pairs_max)
            }
            status => status.to_string(),
        };
        format!("the NVMe controller refused {what} of depth {depth}: {why}")
    }
}

/// A command on its way.
struct Flight {
    command: Command,
    /// Bytes of a long Write Zeroes that earlier commands covered.
    covered_bytes: u32,
}

/// An entry for the submission ring.
enum Entry {
    Plain(SubmissionEntry),
    Deallocate { cid: u16, range: DatasetRange },
}

/// One queue pair, or a set of one for each class. Loops over pairs are unrolled for either, so one alone pays for no
/// set.
struct NvmeQueue<const N: usize> {
    shared: Arc<Shared>,
    /// By lane: the command's class in a set, else 0.
    hosts: [HostQueuePair; N],
    news: Arc<AtomicBool>,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
    /// Commands that each lane takes.
    depth: usize,
    /// By tag, which is also the command identifier.
    flights: Box<[Option<Flight>]>,
    /// By lane.
    in_flight: [usize; N],
    /// Entries for the next doorbell.
    staged: Vec<Entry>,
    /// Taken from the completion ring, not yet worked on.
    ended: Vec<(u16, crate::Status)>,
    /// Workers to interrupt once the lock is released.
    others: Vec<HctxId>,
}

/// A further action under one hold of the lock.
enum Ask {
    Nothing,
    Abort(Tag),
    Weights(ArbitrationWeights),
}

impl<const N: usize> NvmeQueue<N> {
    fn lane(command: &Command) -> usize {
        if N == 1 { 0 } else { command.class.index() }
    }

    /// The lane of a command in flight.
    fn lane_of(flights: &[Option<Flight>], tag: u16) -> usize {
        if N == 1 {
            return 0;
        }
        flights[tag as usize].as_ref().map_or_else(|| panic!("{tag} is not in flight"), |it| Self::lane(&it.command))
    }

    fn total_in_flight(&self) -> usize {
        self.in_flight.iter().sum()
    }

    /// One hold of the lock: puts staged entries into the rings, moves the controller to `now_ns`, asks, takes ended
    /// commands.
    fn drive(&mut self, now_ns: u64, ask: Ask) {
        let mut driver = self.shared.lock();
        let Driver { controller, owners } = &mut *driver;
        for entry in self.staged.drain(..) {
            let host = &mut self.hosts[Self::lane_of(&self.flights, entry.cid())];
            let submitted = match entry {
                Entry::Plain(entry) => host.submit(controller, entry),
                Entry::Deallocate { cid, range } => host.submit_deallocate(controller, cid, range),
            };
            // As many slots as commands may be in flight, and the SQHD of a command's completion frees its slot.
            submitted.unwrap_or_else(|full| panic!("{:?}: no slot for {full:?}", host.id()));
        }
        for host in &mut self.hosts {
            host.ring(controller, now_ns);
        }
        controller.advance(now_ns);
        match ask {
            Ask::Nothing => {}
            Ask::Abort(Tag(cid)) => {
                // It has ended if there is no such command, which the next lines find.
                controller.abort(self.hosts[Self::lane_of(&self.flights, cid)].id(), cid, now_ns);
            }
            Ask::Weights(weights) => set_weights(controller, weights, now_ns),
        }
        for host in &mut self.hosts {
            while let Some(completion) = host.poll(controller) {
                self.ended.push((completion.cid, completion.status));
            }
            host.ring_completions(controller, now_ns);
        }
        let own = self.hosts.each_ref().map(HostQueuePair::id);
        controller.take_interrupts(|queue| {
            if !own.contains(&queue) {
                let owner = owners[queue.0 as usize - 1].as_ref().expect("a deleted queue has no news");
                // Release: pairs with the Acquire in `has_news`. The completions themselves are under the lock.
                owner.news.store(true, Ordering::Release);
                // A set has news in up to three queues, and is interrupted once.
                if self.others.last() != Some(&owner.hctx) {
                    self.others.push(owner.hctx);
                }
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
        // Acquire: pairs with the Release in another worker's `drive`. False although it has just been set: the
        // interrupt that follows brings us back.
        self.news.load(Ordering::Acquire)
    }

    /// Works on ended commands: moves bytes, and continues a long Write Zeroes.
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
            let mut ended = translated(status);
            if status.is_success() {
                ended = self.shared.store.execute(&mut flight.command);
            }
            self.in_flight[Self::lane(&flight.command)] -= 1;
            out.push(flight.command.ended(ended));
        }
    }
}

/// Set Features of the Arbitration feature: other weights, the same burst.
fn set_weights(controller: &mut Controller, weights: ArbitrationWeights, now_ns: u64) {
    let current = controller.get_features(ArbitrationFeature::ID, Select::Current);
    let set = current.and_then(|dword| {
        let feature = ArbitrationFeature { weights, ..ArbitrationFeature::from_dword(dword) };
        controller.set_features(ArbitrationFeature::ID, feature.to_dword(), false, now_ns)
    });
    set.unwrap_or_else(|status| panic!("every controller has the Arbitration feature: {status}"));
}

impl Entry {
    fn cid(&self) -> u16 {
        match self {
            Entry::Plain(entry) => entry.cid(),
            Entry::Deallocate { cid, .. } => *cid,
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
            Op::WriteZeroes { .. } | Op::FastZeroes { .. } => left_bytes.min(WRITE_ZEROES_BYTES_MAX),
            _ => left_bytes,
        };
        self.covered_bytes += piece_bytes;
        let (slba, blocks) = (start_bytes / u64::from(BLOCK_BYTES), piece_bytes / BLOCK_BYTES);
        match op {
            Op::Flush => Entry::Plain(SubmissionEntry::flush(cid)),
            // An NLB of 0 is one block, so there is no read or write of nothing; the empty range of a deallocate is
            // one. No preset has a volatile cache, so a completed deallocate is as stable as FUA asks.
            _ if blocks == 0 || op == Op::Discard => Entry::Deallocate { cid, range: DatasetRange { slba, blocks } },
            // Takes the time of an empty deallocate; the store answers.
            Op::Extents => Entry::Deallocate { cid, range: DatasetRange { slba, blocks: 0 } },
            Op::Read => Entry::Plain(SubmissionEntry::read(cid, slba, blocks, u64::from(cid))),
            Op::Write => Entry::Plain(SubmissionEntry::write(cid, slba, blocks, fua, u64::from(cid))),
            Op::WriteZeroes { may_unmap } | Op::FastZeroes { may_unmap } => {
                Entry::Plain(SubmissionEntry::write_zeroes(cid, slba, blocks, may_unmap, fua))
            }
            Op::Discard => unreachable!("handled above"),
        }
    }
}

/// The controller's status in the block layer's words.
fn translated(status: crate::Status) -> Status {
    use crate::Status as Nvme;
    match status {
        status if status.is_success() => Status::Ok,
        Nvme::ABORT_REQUESTED => Status::TimedOut,
        Nvme::INVALID_OPCODE => Status::Unsupported,
        Nvme::INVALID_FIELD | Nvme::LBA_OUT_OF_RANGE => Status::Invalid,
        _ => Status::Io,
    }
}

impl<const N: usize> DeviceQueue for NvmeQueue<N> {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        let lane = Self::lane(&command);
        if self.in_flight[lane] == self.depth {
            return Err(QueueFull(command));
        }
        let tag = command.tag.0 as usize;
        let mut flight = Flight { command, covered_bytes: 0 };
        self.staged.push(flight.next_entry());
        let before = self.flights[tag].replace(flight);
        assert!(before.is_none(), "tag {tag} is already in flight");
        self.in_flight[lane] += 1;
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        if !self.staged.is_empty() {
            self.drive(now_ns, Ask::Nothing);
        }
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        if self.total_in_flight() == 0 {
            return;
        }
        // Relaxed: as in `next_event_ns`.
        if self.has_news() || self.shared.next_event_ns.load(Ordering::Relaxed) <= now_ns {
            self.drive(now_ns, Ask::Nothing);
        }
        self.finish(out);
        if !self.staged.is_empty() {
            // The rest of a long Write Zeroes. Commands that it may already have ended wait for the next reap.
            self.drive(now_ns, Ask::Nothing);
        }
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        let is_inside = self.flights.get(tag.0 as usize).is_some_and(Option::is_some);
        if is_inside {
            self.drive(now_ns, Ask::Abort(tag));
        }
        is_inside
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        // First take ended commands.
        self.drive(now_ns, Ask::Nothing);
        let mut driver = self.shared.lock();
        for host in &mut self.hosts {
            host.recreate(&mut driver.controller, now_ns);
        }
        // Relaxed: as in `drive`.
        self.shared.next_event_ns.store(driver.controller.next_event_ns().unwrap_or(NEVER), Ordering::Relaxed);
        drop(driver);
        for (tag, place) in self.flights.iter_mut().enumerate() {
            if self.ended.iter().all(|&(cid, _)| cid as usize != tag)
                && let Some(flight) = place.take()
            {
                self.in_flight[Self::lane(&flight.command)] -= 1;
                given_back.push(flight.command.ended(Status::TimedOut));
            }
        }
        true
    }

    fn next_event_ns(&self) -> Option<u64> {
        if self.total_in_flight() == 0 {
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
        self.total_in_flight()
    }

    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        if !self.shared.has_class_queues {
            return false;
        }
        let ClassWeights { high, medium, low } = weights;
        let weights = ArbitrationWeights::new(high, medium, low);
        self.drive(
            now_ns,
            Ask::Weights(weights.unwrap_or_else(|| panic!("weights of 1 to 256, not {high}:{medium}:{low}"))),
        );
        true
    }
}

/// Delete I/O Submission and Completion Queue: commands in flight end with the queue and are not carried out.
impl<const N: usize> Drop for NvmeQueue<N> {
    fn drop(&mut self) {
        // After a panic inside the controller no worker goes on.
        let Ok(mut driver) = self.shared.driver.lock() else { return };
        let Driver { controller, owners } = &mut *driver;
        for host in &self.hosts {
            // Time 0: a queue ends at whatever time the controller has come to.
            let deleted = controller.delete_io_queue_pair(host.id(), 0);
            debug_assert!(deleted.is_ok(), "{:?} was deleted by somebody else", host.id());
            owners[host.id().0 as usize - 1] = None;
        }
    }
}

#[cfg(test)]
mod tests;
