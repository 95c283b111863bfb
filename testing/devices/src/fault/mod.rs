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
mod destage;
mod extent;
mod queue;

#[cfg(test)]
mod tests;

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
}

impl Kind {
    fn of(op: Op) -> Kind {
        match op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard => Kind::Discard,
            Op::WriteZeroes { .. } => Kind::WriteZeroes,
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
        if self.shared.plan.volatile_cache { destage::TAGS } else { 0 }
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
