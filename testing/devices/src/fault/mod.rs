//! A device that goes wrong on purpose: wraps any other and follows a plan.
//!
//! Everything is drawn from the plan's seed, so a failure found once is found again (with one thread; several threads
//! draw in the order in which they come). Time is the `now_ns` of the calls.
//!
//! | fault | effect that the layers above see |
//! |---|---|
//! | error | the command did nothing and failed |
//! | delay | it took longer |
//! | stall | nothing at all completed for a while |
//! | torn write | its first sectors are stored, the rest is not, and it failed |
//! | forget | it is not carried out and never completes |
//! | lose | it is carried out and never completes |
//! | what an abort does | nothing; or the forgotten command comes back, now or later; or it comes back and completes once more, which breaks what a device promises |
//! | what a reset does | gives all back; or nothing; or gives all back and completes it later, which breaks what a device promises |
//! | reorder | completions come in another order, none much later than it would have |
//! | volatile cache, power cut | acknowledged writes that no flush or FUA covered are gone, or partly |
//!
//! # Invariants
//! X1. Without rules, reordering and cache the device is the inner one.
//! X2. A command is submitted to the inner device at most once, and reaped exactly once unless forgotten, lost, or the
//!     plan says that it completes late.
//! X3. With a volatile cache, what an acknowledged flush or FUA covered survives every cut ([`cache`]: V1).

mod cache;
mod extent;
mod queue;

use cache::Cache;
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueOptions};
use mqfq_blk::random::Random;
use mqfq_blk::request::{Op, Status};
use mqfq_sched::topology::HctxId;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Failure of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It does nothing and ends with this status.
    Error(Status),
    /// It ends this many nanoseconds after it would have.
    Delay {
        /// Nanoseconds.
        ns: u64,
    },
    /// No command of any queue ends until this many nanoseconds after this one's doorbell.
    Stall {
        /// Nanoseconds.
        ns: u64,
    },
    /// A write, write zeroes or discard stores some of its first sectors (512 bytes, or the inner device's block if
    /// that is larger), none or all but one included, and ends with this status. Any other command is not carried out.
    Torn(Status),
    /// It is not carried out and never ends. Its place in the queue stays taken.
    Forget,
    /// It is carried out and never ends. Its place in the queue stays taken.
    Lose,
}

/// Effect of an abort on a forgotten or lost command. A command that has only not ended yet ends as it would have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnAbort {
    /// The device says that it will, and does nothing.
    #[default]
    Ignored,
    /// The device says that it cannot.
    Refused,
    /// A forgotten or lost command comes back so many nanoseconds later.
    Ends {
        /// Nanoseconds.
        after_ns: u64,
    },
    /// A forgotten or lost command comes back, and completes well once more so many nanoseconds later.
    EndsTwice {
        /// Nanoseconds.
        after_ns: u64,
    },
}

/// Effect of a queue's reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnReset {
    /// All commands come back, if the inner device can.
    #[default]
    Works,
    /// The device says that it cannot.
    Refused,
    /// All commands come back, and complete well so many nanoseconds later.
    EndsLate {
        /// Nanoseconds.
        after_ns: u64,
    },
}

/// Choice among the commands that a rule fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Every one.
    Always,
    /// The n-th, counted from 0 over all queues; once.
    Nth(u64),
    /// So many of 65536, by chance.
    Chance(u32),
}

/// A kind of operation, for a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// [`Op::Read`].
    Read,
    /// [`Op::Write`].
    Write,
    /// [`Op::Flush`].
    Flush,
    /// [`Op::Discard`].
    Discard,
    /// [`Op::WriteZeroes`].
    WriteZeroes,
    /// [`Op::Extents`].
    Extents,
}

impl Kind {
    fn of(op: Op) -> Kind {
        match op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard => Kind::Discard,
            Op::WriteZeroes { .. } | Op::FastZeroes { .. } => Kind::WriteZeroes,
            Op::Extents => Kind::Extents,
        }
    }
}

/// One rule of a plan: a fault, and the commands that have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultRule {
    /// Only commands of this kind; `None`: all.
    pub kind: Option<Kind>,
    /// Only commands that touch these bytes of the device; `None`: all.
    pub bytes: Option<Range<u64>>,
    /// Choice among these commands.
    pub when: When,
    /// Failure of the commands chosen.
    pub fault: Fault,
}

impl FaultRule {
    /// A rule about commands of every kind, anywhere.
    pub fn any(when: When, fault: Fault) -> FaultRule {
        FaultRule { kind: None, bytes: None, when, fault }
    }

    /// A rule about commands of one kind, anywhere.
    pub fn of(kind: Kind, when: When, fault: Fault) -> FaultRule {
        FaultRule { kind: Some(kind), ..FaultRule::any(when, fault) }
    }

    fn fits(&self, command: &Command) -> bool {
        let span = span_of(command);
        self.kind.is_none_or(|kind| kind == Kind::of(command.op))
            && self.bytes.as_ref().is_none_or(|bytes| bytes.start < span.end && span.start < bytes.end)
    }
}

/// The longest that reordering holds a completion back, besides all else that delays it, nanoseconds. A bound must be:
/// while fewer commands are in flight than are gathered there is always one more to wait for, and a completion that
/// luck passes over would wait beyond any timeout, which no device in order does. As long as a flash drive takes for a
/// read, so that commands begun after one can end before it.
pub const REORDER_HOLD_MAX_NS: u64 = 100_000;

/// Faults to inject.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// Seed of all random choices.
    pub seed: u64,
    /// The first rule that applies to a command decides; all that fit it count it.
    pub rules: Vec<FaultRule>,
    /// Completions of a queue are gathered until there are this many, or nothing else is in flight, or one has been
    /// held back for [`REORDER_HOLD_MAX_NS`], and handed out in random order; 0 and 1: as they come.
    pub reorder: usize,
    /// Writes stay in a cache that [`FaultDevice::power_cut`] empties until a flush or FUA covers them.
    pub volatile_cache: bool,
    /// Effect of an abort.
    pub on_abort: OnAbort,
    /// Effect of a reset.
    pub on_reset: OnReset,
}

/// A device that wraps another one and fails by plan.
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
}

/// State that all queues share.
struct Shared {
    info: DeviceInfo,
    plan: FaultPlan,
    state: Mutex<State>,
}

struct State {
    random: Random,
    /// Commands that each rule fitted.
    counts: Vec<u64>,
    stalled_until_ns: u64,
    forgotten: usize,
    /// Power cuts so far. A command submitted before a cut and not reaped fails.
    epoch: u64,
    cache: Cache,
    /// Some queue carries out a destage (V2).
    is_destaging: bool,
    /// Queues that wait to destage.
    waiting: Vec<(HctxId, Interrupt)>,
}

type Interrupt = Arc<dyn Fn(HctxId) + Send + Sync>;

impl FaultDevice {
    /// `inner`, with the faults of `plan`.
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> FaultDevice {
        let info = inner.info();
        let volatile_cache = info.volatile_cache || plan.volatile_cache;
        // It looks at the bytes that pass.
        let info = DeviceInfo { volatile_cache, pages_align_bytes: 0, ..info };
        let state = State {
            random: Random::new(plan.seed),
            counts: vec![0; plan.rules.len()],
            stalled_until_ns: 0,
            forgotten: 0,
            epoch: 0,
            cache: Cache::default(),
            is_destaging: false,
            waiting: Vec::new(),
        };
        FaultDevice { inner, shared: Arc::new(Shared { info, plan, state: Mutex::new(state) }) }
    }

    /// A queue with its faults over one that `open` opens in place of the inner device's. `lanes`: 1, or the class
    /// queues of a set, which a device with commands of its own cannot have.
    ///
    /// # Errors
    /// One sentence: the inner queue could not be opened, or has no room for the device's own commands.
    pub fn open_over(
        &self,
        lanes: usize,
        options: QueueOptions,
        open: impl FnOnce(QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String>,
    ) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(Box::new(queue::FaultQueue::open(self.shared.clone(), lanes, options, open)?))
    }

    /// Commands of its own on each inner queue, which write back the volatile cache. They have no class.
    pub fn own_commands(&self) -> u16 {
        if self.shared.plan.volatile_cache { cache::TAGS } else { 0 }
    }

    /// Nothing completes before `now_ns` reaches this, in addition to the plan.
    pub fn stall_until(&self, ns: u64) {
        let mut state = self.shared.state();
        state.stalled_until_ns = state.stalled_until_ns.max(ns);
    }

    /// Commands that will never complete unless they are aborted or reset.
    pub fn forgotten(&self) -> usize {
        self.shared.state().forgotten
    }

    /// Takes the power away and gives it back. Commands in flight fail, even those carried out; with a volatile cache,
    /// bytes that no acknowledged flush or FUA covered are lost, or some of them.
    pub fn power_cut(&self) {
        let mut state = self.shared.state();
        let State { cache, random, epoch, .. } = &mut *state;
        *epoch += 1;
        cache.cut(random, self.shared.sector_bytes());
    }

    /// A power cut now may lose these bytes: a command has brought them to `offset_bytes`, whether its end was told or
    /// not, and nothing has covered them.
    pub fn may_lose(&self, offset_bytes: u64, bytes: &[u8]) -> bool {
        self.shared.state().cache.may_lose(offset_bytes, bytes)
    }

    /// True if a power cut now would lose nothing.
    pub fn is_clean(&self) -> bool {
        self.shared.state().cache.is_empty()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is a test's own; a panic of one test thread should not hide behind the next one's.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws this command's fault, if it has one.
    fn draw(&self, state: &mut State, command: &Command) -> Option<Fault> {
        let mut fault = None;
        for (rule, count) in self.plan.rules.iter().zip(&mut state.counts) {
            if !rule.fits(command) {
                continue;
            }
            let nth = *count;
            *count += 1;
            let applies = match rule.when {
                When::Always => true,
                When::Nth(n) => n == nth,
                // Drawn for every command that fits, so that one rule's luck does not depend on another's.
                When::Chance(per_65536) => state.random.chance(per_65536),
            };
            if applies && fault.is_none() {
                fault = Some(rule.fault);
            }
        }
        fault
    }

    /// Bytes that a drive stores as a whole or not at all.
    fn sector_bytes(&self) -> u64 {
        cache::SECTOR_BYTES.max(u64::from(self.info.block_bytes))
    }
}

fn span_of(command: &Command) -> Range<u64> {
    command.offset_bytes..command.offset_bytes + u64::from(command.length_bytes)
}

impl Device for FaultDevice {
    fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        let open = |options| self.inner.open_queue(options);
        Ok(Box::new(queue::FaultQueue::open(self.shared.clone(), 1, options, open)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::buffer::Buffer;
    use mqfq_blk::device::Reaped;
    use mqfq_blk::device::memory::MemoryDevice;
    use mqfq_blk::tag::Tag;

    const MIB: u64 = 1 << 20;

    /// A faulty device over 1 MiB of memory, one queue of it, and the time.
    struct Rig {
        device: FaultDevice,
        queue: Box<dyn DeviceQueue>,
        now_ns: u64,
    }

    fn open(device: &FaultDevice, hctx: u16) -> Box<dyn DeviceQueue> {
        let options = QueueOptions { hctx: HctxId(hctx), depth: 16, ring: None, interrupt: Arc::new(|_| {}) };
        device.open_queue(options).unwrap()
    }

    impl Rig {
        fn new(plan: FaultPlan) -> Rig {
            let device = FaultDevice::new(Arc::new(MemoryDevice::new(MIB)), plan);
            Rig { queue: open(&device, 0), device, now_ns: 0 }
        }

        fn with_rules(rules: Vec<FaultRule>) -> Rig {
            Rig::new(FaultPlan { seed: 1, rules, ..FaultPlan::default() })
        }

        fn submit(&mut self, command: Command) {
            self.queue.submit(command).unwrap();
            self.queue.ring_doorbell(self.now_ns);
        }

        fn reap(&mut self) -> Vec<Reaped> {
            let mut out = Vec::new();
            self.queue.reap(self.now_ns, &mut out);
            out
        }

        /// Goes from event to event until none is left; returns ended commands with times.
        fn run(&mut self) -> Vec<(u64, Reaped)> {
            let mut all: Vec<(u64, Reaped)> = Vec::new();
            let mut idle = 0;
            while let Some(next_ns) = self.queue.next_event_ns() {
                self.now_ns = self.now_ns.max(next_ns);
                let now_ns = self.now_ns;
                let ended = self.reap();
                idle = if ended.is_empty() { idle + 1 } else { 0 };
                assert!(idle < 1000, "the queue asks to be reaped and hands nothing out");
                all.extend(ended.into_iter().map(|reaped| (now_ns, reaped)));
            }
            all
        }

        #[track_caller]
        fn one(&mut self, command: Command) -> (u64, Status, Option<Buffer>) {
            self.submit(command);
            let mut all = self.run();
            assert_eq!(all.len(), 1);
            let (ns, Reaped { status, buffer, .. }) = all.pop().unwrap();
            (ns, status, buffer)
        }

        #[track_caller]
        fn bytes(&mut self, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
            let (_, status, buffer) = self.one(read(15, offset_bytes, length_bytes));
            assert_eq!(status, Status::Ok);
            buffer.unwrap().as_slice()[..length_bytes as usize].to_vec()
        }

        #[track_caller]
        fn ok(&mut self, command: Command) {
            assert_eq!(self.one(command).1, Status::Ok);
        }
    }

    fn write(tag: u16, offset_bytes: u64, bytes: &[u8]) -> Command {
        let mut buffer = Buffer::new(bytes.len());
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let length_bytes = bytes.len() as u32;
        Command::new(Tag(tag), Op::Write, offset_bytes, length_bytes, Some(buffer))
    }

    fn read(tag: u16, offset_bytes: u64, length_bytes: u32) -> Command {
        let buffer = Some(Buffer::new(length_bytes as usize));
        Command::new(Tag(tag), Op::Read, offset_bytes, length_bytes, buffer)
    }

    fn flush(tag: u16) -> Command {
        Command::new(Tag(tag), Op::Flush, 0, 0, None)
    }

    #[test]
    fn an_error_does_nothing_and_hands_the_buffer_back() {
        let mut rig = Rig::with_rules(vec![FaultRule::of(Kind::Write, When::Always, Fault::Error(Status::NoSpace))]);
        let (_, status, buffer) = rig.one(write(0, 0, &[1; 4096]));
        assert_eq!((status, buffer.unwrap().as_slice()[0]), (Status::NoSpace, 1));
        assert_eq!(rig.bytes(0, 4096), [0; 4096]);
    }

    #[test]
    fn the_nth_means_the_nth_that_fits_and_only_that() {
        // The second (number 1) of the reads that touch bytes 4096..8192 fails.
        let rule =
            FaultRule { bytes: Some(4096..8192), ..FaultRule::of(Kind::Read, When::Nth(1), Fault::Error(Status::Io)) };
        let mut rig = Rig::with_rules(vec![rule]);
        let mut status = |command| rig.one(command).1;
        assert_eq!(status(read(0, 0, 4097)), Status::Ok, "number 0");
        assert_eq!(status(write(0, 4096, &[1])), Status::Ok, "a write");
        assert_eq!(status(read(0, 0, 4096)), Status::Ok, "beside");
        assert_eq!(status(read(0, 8191, 1)), Status::Io, "number 1");
        assert_eq!(status(read(0, 8191, 1)), Status::Ok, "number 2");
    }

    #[test]
    fn chance_comes_out_as_asked_and_the_same_for_the_same_seed() {
        let outcome = |seed| {
            let rules = vec![FaultRule::any(When::Chance(16384), Fault::Error(Status::Io))];
            let mut rig = Rig::new(FaultPlan { seed, rules, ..FaultPlan::default() });
            (0..4000).map(|_| rig.one(flush(0)).1 == Status::Io).collect::<Vec<bool>>()
        };
        let first = outcome(3);
        assert_eq!(first, outcome(3));
        assert_ne!(first, outcome(4));
        // A quarter of 4000: 1000, standard deviation sqrt(4000 * 1/4 * 3/4) = 27; six of them are 164.
        let failed = first.iter().filter(|failed| **failed).count();
        assert!(failed.abs_diff(1000) < 164, "{failed}");
    }

    #[test]
    fn a_delay_holds_one_command_and_a_stall_all_of_them() {
        let mut rig = Rig::with_rules(vec![
            FaultRule::of(Kind::Read, When::Nth(0), Fault::Delay { ns: 500 }),
            FaultRule::of(Kind::Flush, When::Nth(1), Fault::Stall { ns: 9000 }),
        ]);
        rig.submit(read(0, 0, 512));
        rig.submit(flush(1));
        let ends: Vec<(u64, u16)> = rig.run().iter().map(|(ns, reaped)| (*ns, reaped.tag.0)).collect();
        assert_eq!(ends, [(0, 1), (500, 0)]);
        // At 500: a flush that stalls until 9500; a read that has nothing to do with it.
        rig.submit(read(0, 0, 512));
        rig.submit(flush(1));
        let ends: Vec<u64> = rig.run().iter().map(|(ns, _)| *ns).collect();
        assert_eq!(ends, [9500, 9500]);
        rig.device.stall_until(20_000);
        assert_eq!(rig.one(flush(0)).0, 20_000);
    }

    #[test]
    fn a_torn_write_stores_a_prefix_of_sectors_and_fails() {
        let mut seen = [0; 8];
        for seed in 0..100 {
            let rules = vec![FaultRule::of(Kind::Write, When::Always, Fault::Torn(Status::Io))];
            let mut rig = Rig::new(FaultPlan { seed, rules, ..FaultPlan::default() });
            assert_eq!(rig.one(write(0, 0, &[1; 4096])).1, Status::Io);
            let after = rig.bytes(0, 4096);
            let stored = after.iter().take_while(|byte| **byte == 1).count();
            assert_eq!(stored % 512, 0);
            assert!(after[stored..].iter().all(|byte| *byte == 0));
            // Never all eight: that would be a write that was stored and denied, which an error already is.
            seen[stored / 512] += 1;
        }
        assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
    }

    #[test]
    fn a_forgotten_command_never_ends_and_keeps_its_place() {
        let mut rig = Rig::with_rules(vec![FaultRule::any(When::Nth(1), Fault::Forget)]);
        (0..3).for_each(|tag| rig.submit(read(tag, 0, 512)));
        let ended: Vec<u16> = rig.run().iter().map(|(_, reaped)| reaped.tag.0).collect();
        assert_eq!(ended, [0, 2]);
        assert_eq!((rig.device.forgotten(), rig.queue.in_flight(), rig.queue.next_event_ns()), (1, 1, None));
    }

    #[test]
    fn reordered_completions_all_come_in_another_order() {
        let mut rig = Rig::new(FaultPlan { seed: 5, reorder: 4, ..FaultPlan::default() });
        (0..16).for_each(|tag| rig.submit(read(tag, 0, 512)));
        let ended: Vec<u16> = rig.run().iter().map(|(_, reaped)| reaped.tag.0).collect();
        let mut sorted = ended.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..16).collect::<Vec<u16>>());
        assert_ne!(ended, sorted);
    }

    #[test]
    fn reordering_waits_for_delayed_commands_without_spinning() {
        let rules = vec![FaultRule::any(When::Nth(0), Fault::Delay { ns: 100 })];
        let mut rig = Rig::new(FaultPlan { seed: 5, rules, reorder: 4, ..FaultPlan::default() });
        (0..2).for_each(|tag| rig.submit(read(tag, 0, 512)));
        let ends: Vec<u64> = rig.run().iter().map(|(ns, _)| *ns).collect();
        assert_eq!(ends, [100, 100]);
    }

    #[test]
    fn reordering_holds_no_completion_back_for_longer_than_it_says() {
        // Four are gathered and three in flight: the last ends a second later, and two do not wait for it.
        let rules = vec![FaultRule::any(When::Nth(2), Fault::Delay { ns: 1_000_000_000 })];
        let mut rig = Rig::new(FaultPlan { seed: 5, rules, reorder: 4, ..FaultPlan::default() });
        (0..3).for_each(|tag| rig.submit(read(tag, 0, 512)));
        let ends: Vec<u64> = rig.run().iter().map(|(ns, _)| *ns).collect();
        assert_eq!(ends, [REORDER_HOLD_MAX_NS, REORDER_HOLD_MAX_NS, 1_000_000_000]);
    }

    fn cached(seed: u64) -> Rig {
        Rig::new(FaultPlan { seed, volatile_cache: true, ..FaultPlan::default() })
    }

    #[test]
    fn a_power_cut_loses_what_no_flush_covered_for_some_seed_and_never_what_one_did() {
        let (mut lost, mut stayed) = (0, 0);
        for seed in 0..64 {
            let mut rig = cached(seed);
            assert!(rig.device.info().volatile_cache);
            rig.ok(write(0, 0, &[1; 512]));
            rig.ok(flush(0));
            rig.ok(write(0, 0, &[2; 512]));
            rig.ok(write(0, 4096, &[3; 512]));
            rig.ok(Command { fua: true, ..write(0, 8192, &[4; 512]) });
            assert_eq!(rig.bytes(0, 512), [2; 512], "before the cut the last write is what is read");
            rig.device.power_cut();
            let after = rig.bytes(0, 512);
            assert!(after == [1; 512] || after == [2; 512], "seed {seed}: the flushed bytes or the later ones");
            assert_eq!(rig.bytes(8192, 512), [4; 512], "seed {seed}: FUA");
            let unflushed = rig.bytes(4096, 512);
            assert!(unflushed == [0; 512] || unflushed == [3; 512], "seed {seed}: a sector is not torn");
            if unflushed == [0; 512] { lost += 1 } else { stayed += 1 }
        }
        assert!(lost > 0 && stayed > 0, "lost {lost}, stayed {stayed}");
    }

    #[test]
    fn what_a_power_cut_may_lose_is_told_byte_by_byte() {
        let mut rig = cached(1);
        rig.ok(Command { fua: true, ..write(0, 0, &[1; 4096]) });
        assert!(!rig.device.may_lose(0, &[1; 512]), "FUA");
        rig.ok(write(0, 1024, &[2; 512]));
        rig.ok(Command { op: Op::Discard, buffer: None, ..write(0, 1536, &[0; 512]) });
        assert!(rig.device.may_lose(1024, &[2; 512]) && rig.device.may_lose(1536, &[0; 512]));
        assert!(rig.device.may_lose(1024, &[[2; 512], [0; 512]].concat()), "of two writes");
        assert!(!rig.device.may_lose(1024, &[3; 512]), "other bytes than are there");
        assert!(!rig.device.may_lose(512, &[[1; 512], [2; 512]].concat()), "half of them are covered");
        assert!(!rig.device.may_lose(1536, &[0; 1024]), "the other half");
        rig.submit(write(1, 1024, &[4; 512]));
        assert!(rig.device.may_lose(1024, &[4; 512]), "carried out, and not told");
        rig.run();
        rig.ok(flush(0));
        assert!(!rig.device.may_lose(1024, &[4; 512]));
    }

    #[test]
    fn a_flush_leaves_nothing_to_lose_and_the_inner_device_has_it_all() {
        let inner = Arc::new(MemoryDevice::new(MIB));
        let plan = FaultPlan { seed: 1, volatile_cache: true, ..FaultPlan::default() };
        let device = FaultDevice::new(inner.clone(), plan);
        let mut rig = Rig { queue: open(&device, 0), device, now_ns: 0 };
        rig.ok(write(0, 100, &[1; 3000]));
        rig.ok(write(0, 500, &[2; 10]));
        rig.ok(Command { op: Op::Discard, buffer: None, ..write(0, 1000, &[0; 1000]) });
        assert!(!rig.device.is_clean());
        rig.ok(flush(0));
        assert!(rig.device.is_clean());
        let seen = rig.bytes(0, 4096);
        let plain = FaultDevice::new(inner, FaultPlan::default());
        let mut bare = Rig { queue: open(&plain, 0), device: plain, now_ns: 0 };
        assert_eq!(bare.bytes(0, 4096), seen);
        assert_eq!((seen[99], seen[100], seen[505], seen[999], seen[1000], seen[2000]), (0, 1, 2, 1, 0, 1));
    }

    #[test]
    fn two_queues_flush_one_cache_in_turn() {
        let mut rig = cached(1);
        let mut other = open(&rig.device, 1);
        (0..20).for_each(|at| rig.ok(write(0, at * 8192, &[7; 4096])));
        rig.submit(flush(0));
        other.submit(flush(0)).unwrap();
        other.ring_doorbell(0);
        let mut out = Vec::new();
        other.reap(0, &mut out);
        assert_eq!(out.len(), 0, "queue 0 is at it");
        assert_eq!(rig.run().len(), 1);
        for _ in 0..10 {
            other.reap(0, &mut out);
        }
        assert_eq!(out.iter().map(|reaped| reaped.status).collect::<Vec<_>>(), [Status::Ok]);
    }

    #[test]
    fn a_flush_that_the_inner_device_fails_keeps_everything_cached() {
        let failing = vec![FaultRule::of(Kind::Flush, When::Nth(0), Fault::Error(Status::Io))];
        let inner = FaultDevice::new(
            Arc::new(MemoryDevice::new(MIB)),
            FaultPlan { seed: 1, rules: failing, ..FaultPlan::default() },
        );
        let plan = FaultPlan { seed: 1, volatile_cache: true, ..FaultPlan::default() };
        let device = FaultDevice::new(Arc::new(inner), plan);
        let mut rig = Rig { queue: open(&device, 0), device, now_ns: 0 };
        rig.ok(write(0, 0, &[1; 512]));
        assert_eq!(rig.one(flush(0)).1, Status::Io);
        assert!(!rig.device.is_clean());
        rig.ok(flush(0));
        assert!(rig.device.is_clean());
    }

    #[test]
    fn commands_in_flight_at_a_power_cut_fail_and_the_device_lives_on() {
        let mut rig = cached(1);
        rig.ok(write(0, 0, &[1; 512]));
        rig.submit(write(0, 0, &[2; 512]));
        rig.submit(read(1, 0, 512));
        rig.submit(flush(2));
        rig.device.power_cut();
        let ends = rig.run();
        assert!(ends.len() == 3 && ends.iter().all(|(_, reaped)| reaped.status == Status::Io));
        rig.ok(write(0, 0, &[3; 512]));
        rig.ok(flush(0));
        rig.device.power_cut();
        assert_eq!(rig.bytes(0, 512), [3; 512]);
    }

    #[test]
    fn random_writes_and_cuts_never_lose_what_was_flushed() {
        // Model: per byte, the values that it may have: since its last flush each write adds one, a flush or a cut that
        // showed its value leaves one.
        for seed in 0..8 {
            eprintln!("seed {seed}");
            let mut random = Random::new(seed);
            let mut rig = cached(seed);
            let mut may: Vec<Vec<u8>> = vec![vec![0]; 8192];
            for step in 0..300 {
                let start = random.below(8192) as usize;
                let length = random.below((8192 - start) as u64) as usize + 1;
                match random.below(20) {
                    0..12 => {
                        let value = (step % 250) as u8 + 1;
                        let fua = random.below(4) == 0;
                        rig.ok(Command { fua, ..write(0, start as u64, &vec![value; length]) });
                        for values in &mut may[start..start + length] {
                            if fua {
                                values.clear();
                            }
                            values.push(value);
                        }
                    }
                    12..15 => {
                        rig.ok(Command { op: Op::Discard, buffer: None, ..write(0, start as u64, &vec![0; length]) });
                        may[start..start + length].iter_mut().for_each(|values| values.push(0));
                    }
                    15..18 => {
                        rig.ok(flush(0));
                        may.iter_mut().for_each(|values| *values = vec![*values.last().unwrap()]);
                    }
                    _ => {
                        rig.device.power_cut();
                        for (at, (value, values)) in rig.bytes(0, 8192).into_iter().zip(&mut may).enumerate() {
                            assert!(
                                values.contains(&value),
                                "step {step}: byte {at} is {value}, not one of {values:?}"
                            );
                            *values = vec![value];
                        }
                    }
                }
                let latest: Vec<u8> = may.iter().map(|values| *values.last().unwrap()).collect();
                assert!(rig.bytes(0, 8192) == latest, "step {step}: a read shows what was written last");
            }
        }
    }
}
