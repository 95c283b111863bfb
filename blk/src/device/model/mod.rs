//! A modelled drive: a model of time says when a command ends, a store in memory holds the bytes.
//!
//! # Shape
//! ```text
//!  worker 0: ModelQueue ─┐ doorbell, reap: lock, advance(now), unlock    ┌────────────────────────────────┐
//!  worker 1: ModelQueue ─┼─────────────────────────────────────────────▶ │ Drive: what waits in each      │
//!  worker 2: ModelQueue ─┘  ◀── interrupt: "worker 1 has completions" ── │ queue, and the [`Media`] inside │
//!       └── bytes, without the drive's lock ──▶ SparseStore              └────────────────────────────────┘
//! ```
//! The drive has no thread: any worker that looks moves it on, for all. A drive that is full inside fetches one command
//! from each queue in turn, as NVMe's round robin does. Bytes move at the reap, for reads and writes alike: no client
//! was told before it that the command ended, and every later command sees them.
//!
//! # Durability
//! The medium is memory of this process: a kill of the server loses all of it, flushed or not. A flush takes its time.
//! With a volatile cache (`MediaOptions::cache`; no preset has one by itself) FUA and flush cost what is written back.
//!
//! # The wake-up that must not be lost
//! A worker with commands in flight sleeps until `next_event_ns`. Another worker may move the drive past that time: it
//! stores the ends and sets `news` under the lock, and kicks the owner afterwards. A kicked worker runs a full turn
//! before it sleeps, in which `reap` sees `news`. The time may be stale in one direction only: a doorbell can make the
//! drive's next event earlier, but that event is the other worker's: a later command never hastens an earlier one.

pub mod media;
pub mod presets;
pub mod spells;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;

use super::store::SparseStore;
use super::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use crate::request::{Op, Status};
use crate::tag::Tag;
use media::{Media, Work};
use mqfq_sched::topology::HctxId;
use presets::{BLOCK_BYTES, Preset, TRANSFER_BYTES_MAX};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Queues that it is made for at most: one for each worker there can be.
const QUEUES_MAX: usize = 1024;

/// No event: nothing is inside the drive.
const NEVER: u64 = u64::MAX;

/// A modelled drive.
pub struct ModelDevice {
    shared: Arc<Shared>,
    info: DeviceInfo,
}

struct Shared {
    drive: Mutex<Drive>,
    store: SparseStore,
    /// Time of the next end inside, or [`NEVER`]: as of when the lock was last held.
    next_event_ns: AtomicU64,
}

/// State that the lock protects.
struct Drive {
    media: Media,
    /// By queue; `None`: dropped.
    lanes: Vec<Option<Lane>>,
    /// Commands that wait in all lanes.
    waiting: usize,
    /// Queue whose turn is next.
    turn: usize,
    /// By slot of the medium: queue and tag. `None`: free, or given up and busy until the medium is done with it.
    inside: Box<[Option<(usize, Tag)>]>,
    free: Vec<u16>,
    /// Queues with ends that their workers have not been told of.
    news: Vec<usize>,
    now_ns: u64,
}

/// The drive's side of a queue.
struct Lane {
    hctx: HctxId,
    news: Arc<AtomicBool>,
    waiting: VecDeque<(Tag, Work)>,
    ended: Vec<(Tag, Status)>,
}

impl ModelDevice {
    /// A drive of `size_bytes`, a multiple of 512, whose random numbers are those of `seed`.
    ///
    /// # Errors
    /// One sentence: a size that is no multiple of the block.
    pub fn new(preset: Preset, size_bytes: u64, seed: u64) -> Result<ModelDevice, String> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
            return Err(format!("a modelled drive's size is a multiple of {BLOCK_BYTES} bytes, not {size_bytes}"));
        }
        let inside_max = preset.media.inside_max;
        let drive = Mutex::new(Drive {
            media: Media::new(preset.media, seed),
            lanes: Vec::new(),
            waiting: 0,
            turn: 0,
            inside: vec![None; usize::from(inside_max)].into(),
            free: (0..inside_max).rev().collect(),
            news: Vec::new(),
            now_ns: 0,
        });
        let info = DeviceInfo {
            size_bytes,
            block_bytes: BLOCK_BYTES,
            preferred_bytes: preset.media.page_bytes,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            volatile_cache: preset.media.cache.is_some(),
            pages_align_bytes: 0,
        };
        let (store, next_event_ns) = (SparseStore::new(size_bytes), AtomicU64::new(NEVER));
        Ok(ModelDevice { shared: Arc::new(Shared { drive, store, next_event_ns }), info })
    }

    /// A queue of it, which may change threads.
    pub fn queue(&self, options: QueueOptions) -> impl DeviceQueue + Send + use<> {
        let QueueOptions { hctx, depth, interrupt, .. } = options;
        let depth = usize::from(depth);
        let news = Arc::new(AtomicBool::new(false));
        let mut drive = self.shared.lock();
        let lane = Lane {
            hctx,
            news: news.clone(),
            waiting: VecDeque::with_capacity(depth),
            ended: Vec::with_capacity(depth),
        };
        let index = drive.lanes.iter().position(Option::is_none).unwrap_or(drive.lanes.len());
        if index == drive.lanes.len() {
            drive.lanes.push(None);
            drive.news.reserve(index + 1);
        }
        drive.lanes[index] = Some(lane);
        ModelQueue {
            shared: self.shared.clone(),
            index,
            news,
            interrupt,
            flights: (0..depth).map(|_| None).collect(),
            in_flight: 0,
            staged: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            others: Vec::with_capacity(QUEUES_MAX),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Drive> {
        self.drive.lock().expect("a worker panicked inside the modelled drive")
    }
}

impl Device for ModelDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    #[cfg(feature = "uring")]
    fn pack(&self, version: u16) -> Result<crate::client::Packed, String> {
        self.shared.store.pack(version)
    }

    #[cfg(feature = "uring")]
    fn unpack(&self, packed: crate::client::Packed, version: u16) -> Result<(), String> {
        self.shared.store.unpack(packed, version)
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(self.queue(options)))
    }
}

impl Drive {
    fn lane(&mut self, index: usize) -> &mut Lane {
        self.lanes[index].as_mut().expect("a queue with commands is there")
    }

    /// Handles everything that happens up to `now_ns`, each at its own time, so that nothing depends on how often a
    /// worker looks.
    fn advance(&mut self, now_ns: u64) {
        let now_ns = self.now_ns.max(now_ns);
        while let Some((ended_ns, slot)) = self.media.next_ended(now_ns) {
            self.now_ns = ended_ns;
            self.free.push(slot);
            if let Some((index, tag)) = self.inside[usize::from(slot)].take() {
                self.end(index, tag, Status::Ok);
            }
            self.fetch();
        }
        self.now_ns = now_ns;
    }

    fn end(&mut self, index: usize, tag: Tag, status: Status) {
        self.lane(index).ended.push((tag, status));
        if !self.news.contains(&index) {
            self.news.push(index);
        }
    }

    /// Fetches while there is room inside and something to fetch.
    fn fetch(&mut self) {
        while self.waiting > 0
            && let Some(slot) = self.free.pop()
        {
            let lanes = self.lanes.len();
            let mut turns = (0..lanes).map(|step| (self.turn + step) % lanes);
            let has_one = |index: &usize| self.lanes[*index].as_ref().is_some_and(|lane| !lane.waiting.is_empty());
            let index = turns.find(has_one).expect("one of them waits");
            let (tag, work) = self.lane(index).waiting.pop_front().expect("it waits here");
            self.waiting -= 1;
            self.turn = index + 1;
            self.inside[usize::from(slot)] = Some((index, tag));
            self.media.begin(Some(work), slot, self.now_ns);
        }
    }

    /// Gives up commands of a queue: the one of `tag`, or all. Those inside keep their places until the medium is done
    /// with them. Returns the number of commands.
    fn give_up(&mut self, index: usize, tag: Option<Tag>) -> usize {
        let is_it = |found: Tag| tag.is_none_or(|tag| tag == found);
        let lane = self.lanes[index].as_mut().expect("a queue with commands is there");
        let before = lane.waiting.len();
        lane.waiting.retain(|&(found, _)| !is_it(found));
        let withdrawn = before - lane.waiting.len();
        self.waiting -= withdrawn;
        let is_its = |it: &Option<(usize, Tag)>| it.is_some_and(|(of, found)| of == index && is_it(found));
        let inside = self.inside.iter_mut().filter(|it| is_its(it));
        withdrawn + inside.filter_map(Option::take).count()
    }
}

/// One worker's queue.
struct ModelQueue {
    shared: Arc<Shared>,
    /// Number of its lane.
    index: usize,
    news: Arc<AtomicBool>,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
    /// By tag.
    flights: Box<[Option<Command>]>,
    in_flight: usize,
    /// Commands for the next doorbell.
    staged: Vec<(Tag, Work)>,
    /// Taken from the drive, not yet worked on.
    ended: Vec<(Tag, Status)>,
    /// Workers to interrupt once the lock is released.
    others: Vec<HctxId>,
}

impl ModelQueue {
    /// One hold of the lock: moves the drive to `now_ns`, hands it staged commands, `act`s and takes ended commands.
    fn drive(&mut self, now_ns: u64, act: impl FnOnce(&mut Drive)) {
        let mut drive = self.shared.lock();
        drive.advance(now_ns);
        drive.waiting += self.staged.len();
        drive.lane(self.index).waiting.extend(self.staged.drain(..));
        drive.fetch();
        act(&mut drive);
        drive.advance(now_ns);
        self.ended.append(&mut drive.lane(self.index).ended);
        while let Some(index) = drive.news.pop() {
            if index != self.index {
                let lane = drive.lane(index);
                // Release: pairs with the Acquire in `has_news`. The ends themselves are under the lock.
                lane.news.store(true, Ordering::Release);
                self.others.push(lane.hctx);
            }
        }
        // Relaxed: stored under the lock, and set only under the lock; what it announced was taken above.
        self.news.store(false, Ordering::Relaxed);
        // Relaxed: see "The wake-up": a worker needs no newer value than the one that it stored or saw last.
        self.shared.next_event_ns.store(drive.media.next_end_ns().unwrap_or(NEVER), Ordering::Relaxed);
        drop(drive);
        for hctx in self.others.drain(..) {
            (self.interrupt)(hctx);
        }
    }

    fn has_news(&self) -> bool {
        // Acquire: pairs with the Release in another worker's `drive`. False although it has just been set: the
        // interrupt that follows brings us back.
        self.news.load(Ordering::Acquire)
    }
}

/// The command as the medium sees it. A command without bytes takes the time of an empty deallocate.
fn work(command: &Command) -> Work {
    let bytes = command.length_bytes;
    match command.op {
        Op::Flush => Work::Flush,
        Op::Extents => Work::Hint,
        _ if bytes == 0 => Work::Deallocate,
        Op::Discard => Work::Deallocate,
        Op::Read => Work::Read { bytes },
        Op::Write => Work::Write { bytes, fua: command.fua },
        Op::WriteZeroes { .. } | Op::FastZeroes { .. } => Work::WriteZeroes,
    }
}

impl DeviceQueue for ModelQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.in_flight == self.flights.len() {
            return Err(QueueFull(command));
        }
        let tag = command.tag;
        self.staged.push((tag, work(&command)));
        let before = self.flights[usize::from(tag.0)].replace(command);
        assert!(before.is_none(), "{tag:?} is already in flight");
        self.in_flight += 1;
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        if !self.staged.is_empty() {
            self.drive(now_ns, |_| ());
        }
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        if self.in_flight == 0 {
            return;
        }
        // Relaxed: as in `next_event_ns`.
        if self.has_news() || self.shared.next_event_ns.load(Ordering::Relaxed) <= now_ns {
            self.drive(now_ns, |_| ());
        }
        for (tag, status) in self.ended.drain(..) {
            let flight = self.flights[usize::from(tag.0)].take();
            let mut command = flight.unwrap_or_else(|| panic!("the drive ended {tag:?}, which was not in flight"));
            let status = if status == Status::Ok { self.shared.store.execute(&mut command) } else { status };
            self.in_flight -= 1;
            out.push(command.ended(status));
        }
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        let is_inside = self.flights.get(usize::from(tag.0)).is_some_and(Option::is_some);
        if is_inside {
            let index = self.index;
            self.drive(now_ns, |drive| {
                // It has ended if there is no such command.
                if drive.give_up(index, Some(tag)) > 0 {
                    drive.end(index, tag, Status::TimedOut);
                }
            });
        }
        is_inside
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        let index = self.index;
        self.drive(now_ns, |drive| {
            drive.give_up(index, None);
        });
        for (tag, place) in (0..).map(Tag).zip(&mut self.flights) {
            if self.ended.iter().all(|&(ended, _)| ended != tag)
                && let Some(command) = place.take()
            {
                self.in_flight -= 1;
                given_back.push(command.ended(Status::TimedOut));
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

/// Commands in flight end with the queue and are not carried out.
impl Drop for ModelQueue {
    fn drop(&mut self) {
        // After a panic inside the drive no worker goes on.
        let Ok(mut drive) = self.shared.drive.lock() else { return };
        drive.give_up(self.index, None);
        drive.news.retain(|&index| index != self.index);
        drive.lanes[self.index] = None;
    }
}
