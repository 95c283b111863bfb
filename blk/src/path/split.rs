//! Into parts of how many bytes do large requests go to the device now, and why? How they go is told in
//! `path/parts.rs`; this is the option and the rule of `"auto"`.
//!
//! # Why
//! A small request that comes while the device carries out a large one waits for the rest of it, whatever its weight.
//! Modelled optane, a reader of 4 KiB at depth 1 beside reads of 128 KiB: the device moves 2.4 bytes per ns, so 128 KiB
//! hold it for 54 us, and the small request by itself takes 12 us. In parts of 16 KiB it waits for 7 us at a time.
//! Splitting costs the device commands, so it is done only while it helps small requests.
//!
//! # The rule
//! ```text
//!   small        a read or write of at most SMALL_BYTES that ended well     large   one of at least LARGE_BYTES
//!   by itself    the least time on the device of a small one, lately; of reads and writes the quicker kind's, at least
//!                a quarter of the slower kind's
//!   holds        mean length of the large x time with commands on the device / bytes moved in it
//!
//!   no large, or no small of another flow, in QUIET_WINDOWS windows    ─▶ whole
//!   holds <= by itself (5/4 of it, to begin with)                      ─▶ whole
//!   else parts that hold the device no longer than the small one takes by itself: the largest such power of two,
//!        PART_BYTES at least; of writes the smallest that holds it as long as a small write takes by itself
//! ```
//! With the numbers above: 54 us > 12 us, and 12 us move 29 KiB, so parts of 16 KiB. Modelled flash-460k: 128 KiB hold
//! it for 47 us, a small read by itself takes 97 us: whole. A write of 8 KiB into the cache of flash-60k takes 214 us,
//! which move 52 KiB: parts of 64 KiB. Each part pays for a command, 28 us there: parts of 16 KiB would do 0.75 as much.
//! A size changes if two windows in a row say so, and only by a factor of two at least.
//!
//! # When it is stepped
//! Workers count ([`Seen`]) [`LOOK_REQUESTS`] requests, at most once in [`LOOK_NS`], and bring the counts; a window is
//! [`WINDOW_REQUESTS`] of all workers. Silence changes nothing. A worker that finds another at it keeps its counts. The
//! time with commands on the device is that of the worker that had some for longest: those of several workers overlap.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rule by which large requests are cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Split {
    /// Nothing: each goes to the device whole.
    #[default]
    Off,
    /// Parts of so many bytes, [`Split::BYTES_MIN`] to [`Split::BYTES_MAX`], a multiple of 4 KiB.
    Bytes(u32),
    /// Parts while they help a small request, of a size that the rule finds.
    Auto,
}

impl Split {
    /// Smallest part.
    pub const BYTES_MIN: u32 = 4 << 10;
    /// Largest part.
    pub const BYTES_MAX: u32 = 1 << 20;
    /// Words for the option's values that are not sizes.
    pub const WORDS: [(&str, Split); 2] = [("auto", Split::Auto), ("off", Split::Off)];
    /// Sizes of the option, bytes: from and to, and the size of which they are multiples.
    pub const SIZES: (RangeInclusive<u64>, u64) =
        (Split::BYTES_MIN as u64..=Split::BYTES_MAX as u64, Split::BYTES_MIN as u64);

    /// Parts of so many bytes, which are among [`Split::SIZES`].
    pub const fn of_size(bytes: u64) -> Split {
        Split::Bytes(bytes as u32)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Split::Off => f.write_str("off"),
            Split::Bytes(bytes) => write!(f, "{}KiB", bytes >> 10),
            Split::Auto => f.write_str("auto"),
        }
    }
}

/// Largest request that counts as small, bytes: the page of a database.
pub const SMALL_BYTES: u32 = 16 << 10;

/// Smallest request that counts as large, bytes: two parts at least.
pub const LARGE_BYTES: u32 = 32 << 10;

/// Smallest part that `"auto"` chooses, bytes.
pub const AUTO_BYTES_MIN: u32 = 16 << 10;

/// Parts that `"auto"` may choose, bytes.
const PART_BYTES: [u32; 4] = [AUTO_BYTES_MIN, 32 << 10, 64 << 10, 128 << 10];

/// A part that holds the device for less than this is not worth its command, ns: the path takes half a microsecond.
const PART_NS_MIN: u64 = 2_000;

/// Requests after which a worker brings its counts.
pub const LOOK_REQUESTS: u64 = 64;
/// Shortest time from one count of a worker to its next, ns: of a million requests per second it counts 3 in 100.
pub const LOOK_NS: u64 = 2_000_000;
/// Requests of a window, all workers together.
pub const WINDOW_REQUESTS: u64 = 512;

/// Windows without a small request after which no small one competes: one among 4096 counts.
const QUIET_WINDOWS: u32 = 8;

/// Windows after which the least time of a small request is forgotten, at most twice as many.
const EPOCH_WINDOWS: u32 = 64;

/// Whose requests were seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Whose {
    /// No request was seen.
    #[default]
    Nobody,
    /// Requests of one flow.
    One(u32),
    /// Requests of several flows.
    Several,
}

impl Whose {
    /// Notes a request of this flow.
    #[inline]
    pub fn note(&mut self, flow: u32) {
        match *self {
            Whose::Nobody => *self = Whose::One(flow),
            Whose::One(other) if other != flow => *self = Whose::Several,
            Whose::One(_) | Whose::Several => {}
        }
    }

    fn join(&mut self, other: Whose) {
        match other {
            Whose::Nobody => {}
            Whose::One(flow) => self.note(flow),
            Whose::Several => *self = Whose::Several,
        }
    }
}

/// Counts of requests that ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Requests.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Flows of the small requests.
    pub small: Whose,
    /// Least time on the device of a small read and of a small write, ns; `None`: there was none.
    pub small_least_ns: [Option<u64>; 2],
    /// Flows of the large requests.
    pub large: Whose,
    /// Number of the large requests, and their bytes.
    pub large_requests: u64,
    /// Bytes of the large ones.
    pub large_bytes: u64,
    /// Writes among the large ones.
    pub large_writes: u64,
}

impl Seen {
    /// A read or write of `flow` ended well, `device_ns` after it went to the device.
    #[inline]
    pub fn note(&mut self, flow: u32, is_write: bool, length_bytes: u32, device_ns: u64) {
        self.requests += 1;
        self.bytes += u64::from(length_bytes);
        if length_bytes <= SMALL_BYTES {
            self.small.note(flow);
            let least_ns = &mut self.small_least_ns[usize::from(is_write)];
            *least_ns = Some(least_ns.map_or(device_ns, |least_ns| least_ns.min(device_ns)));
        } else if length_bytes >= LARGE_BYTES {
            self.large.note(flow);
            self.large_requests += 1;
            self.large_bytes += u64::from(length_bytes);
            self.large_writes += u64::from(is_write);
        }
    }

    fn join(&mut self, other: &Seen) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.small.join(other.small);
        for (least_ns, &other_ns) in self.small_least_ns.iter_mut().zip(&other.small_least_ns) {
            *least_ns = least(*least_ns, other_ns);
        }
        self.large.join(other.large);
        self.large_requests += other.large_requests;
        self.large_bytes += other.large_bytes;
        self.large_writes += other.large_writes;
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Reason why large requests go whole or in parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The config says so.
    Configured,
    /// The policy leaves it to the device how much it has at once, so parts would hold nothing back.
    NoDepth,
    /// Too few requests have ended to say anything.
    Unknown,
    /// No large requests lately.
    NobodyLarge,
    /// No small requests lately.
    NobodySmall,
    /// One tenant alone has all of the small and the large requests.
    OneTenant,
    /// A large one holds the device no longer than a small one takes by itself.
    HoldsBriefly,
    /// A large one would hold the device longer than a small one takes by itself.
    HoldsLong,
    /// A tenant's latency goal asks for smaller ones than all that.
    Goal,
}

/// Form in which large requests of a device go to it now, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitState {
    /// Parts go to the device, of so many bytes. `None`: large requests go whole.
    pub part_bytes: Option<u32>,
    /// Reason for it.
    pub reason: Reason,
    /// Time for which a large request would hold the device, ns; 0: not known.
    pub holds_ns: u64,
    /// Time that a small one takes by itself, ns; 0: not known.
    pub small_ns: u64,
}

impl SplitState {
    const fn configured(split: Split) -> SplitState {
        let (part_bytes, reason) = match split {
            Split::Off => (None, Reason::Configured),
            Split::Bytes(bytes) => (Some(bytes), Reason::Configured),
            Split::Auto => (None, Reason::Unknown),
        };
        SplitState { part_bytes, reason, holds_ns: 0, small_ns: 0 }
    }
}

impl fmt::Display for SplitState {
    /// For example `split off: too few requests yet`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part_bytes {
            Some(bytes) => write!(f, "split {}KiB: ", bytes >> 10)?,
            None => f.write_str("split off: ")?,
        }
        let (holds_us, small_us) = (self.holds_ns / 1000, self.small_ns / 1000);
        match self.reason {
            Reason::Configured => f.write_str("configured"),
            Reason::NoDepth => f.write_str("the policy has no depth"),
            Reason::Unknown => f.write_str("too few requests yet"),
            Reason::NobodyLarge => f.write_str("nobody large"),
            Reason::NobodySmall => f.write_str("nobody small"),
            Reason::OneTenant => f.write_str("one tenant has the small and the large requests"),
            Reason::Goal => f.write_str("for a latency goal"),
            Reason::HoldsBriefly | Reason::HoldsLong => {
                let holds = if self.reason == Reason::HoldsLong { "would hold" } else { "holds" };
                write!(f, "a large request {holds} the device for {holds_us} us, ")?;
                write!(f, "a small one takes {small_us} us by itself")
            }
        }
    }
}

/// The rule of `"auto"`: windows in, sizes out.
#[derive(Clone, Debug)]
struct Rule {
    state: SplitState,
    /// Windows since a small request that another flow's large request could hold up.
    quiet_windows: u32,
    /// Least times of small requests in this epoch and in the one before, of reads and of writes, ns.
    least_ns: [[Option<u64>; 2]; 2],
    epoch_windows: u32,
    candidate: Option<u32>,
}

impl Rule {
    fn new() -> Rule {
        let state = SplitState::configured(Split::Auto);
        Rule { state, quiet_windows: 0, least_ns: [[None; 2]; 2], epoch_windows: 0, candidate: None }
    }

    /// A window has ended, in which the device was busy for `busy_ns`.
    fn step(&mut self, seen: &Seen, busy_ns: u64) {
        self.forget_old();
        for (least_ns, &now_ns) in self.least_ns[0].iter_mut().zip(&seen.small_least_ns) {
            *least_ns = least(*least_ns, now_ns);
        }
        let why_not = match (seen.small, seen.large) {
            (_, Whose::Nobody) => Some(Reason::NobodyLarge),
            (Whose::Nobody, _) => Some(Reason::NobodySmall),
            (Whose::One(small), Whose::One(large)) if small == large => Some(Reason::OneTenant),
            _ => None,
        };
        let small_ns = self.small_ns();
        match why_not {
            Some(reason) => {
                self.quiet_windows = self.quiet_windows.saturating_add(1);
                if self.quiet_windows >= QUIET_WINDOWS || self.state.part_bytes.is_none() {
                    self.candidate = None;
                    self.state = SplitState { part_bytes: None, reason, holds_ns: 0, small_ns };
                }
            }
            None => {
                self.quiet_windows = 0;
                self.weigh(seen, busy_ns, small_ns);
            }
        }
    }

    /// Weighs whether parts help, while small and large ones compete.
    fn weigh(&mut self, seen: &Seen, busy_ns: u64, small_ns: u64) {
        let (bytes, busy_ns) = (u128::from(seen.bytes.max(1)), u128::from(busy_ns.max(1)));
        let large_bytes = seen.large_bytes / seen.large_requests.max(1);
        let holds_ns = u64::try_from(u128::from(large_bytes) * busy_ns / bytes).unwrap_or(u64::MAX);
        let now = self.state.part_bytes;
        // Whole requests are split only for a clear gain.
        let enough_ns = if now.is_none() { small_ns.saturating_add(small_ns / 4) } else { small_ns };
        let moved_bytes = |ns: u64| u128::from(ns) * bytes / busy_ns;
        // Most of a small write's time may be what a command costs.
        let write_ns = if seen.large_writes * 2 > seen.large_requests { self.kind_ns(1).unwrap_or(0) } else { 0 };
        let part_of = |ns: u64| {
            let least_ns = (u128::from(ns) * u128::from(write_ns) / u128::from(small_ns.max(1))) as u64;
            largest_part(moved_bytes(ns)).max(dearest_part(moved_bytes(least_ns.max(PART_NS_MIN))))
        };
        let chosen = (holds_ns > enough_ns).then(|| part_of(small_ns)).filter(|&part| u64::from(part) < large_bytes);
        // At the border between two sizes the one in force stays: it would be chosen with a quarter more or less.
        let is_border = now.is_some_and(|now| {
            chosen.is_some() && [small_ns - small_ns / 5, small_ns + small_ns / 4].map(part_of).contains(&now)
        });
        let chosen = if is_border { now } else { chosen };
        let part_bytes = if chosen == self.candidate { chosen } else { now };
        self.candidate = chosen;
        let reason = if holds_ns > enough_ns { Reason::HoldsLong } else { Reason::HoldsBriefly };
        self.state = SplitState { part_bytes, reason, holds_ns, small_ns };
    }

    /// Time that a small request takes by itself, ns.
    fn small_ns(&self) -> u64 {
        let [read_ns, write_ns] = [0, 1].map(|kind| self.kind_ns(kind));
        least(read_ns, write_ns).max(read_ns.max(write_ns).map(|slower_ns| slower_ns / 4)).unwrap_or(0)
    }

    /// Least time of a small read (0) or write (1), ns.
    fn kind_ns(&self, kind: usize) -> Option<u64> {
        least(self.least_ns[0][kind], self.least_ns[1][kind])
    }

    fn forget_old(&mut self) {
        self.epoch_windows += 1;
        if self.epoch_windows > EPOCH_WINDOWS {
            self.epoch_windows = 1;
            self.least_ns = [[None; 2], self.least_ns[0]];
        }
    }
}

/// The largest part of at most so many bytes, or the smallest of all.
fn largest_part(bytes: u128) -> u32 {
    PART_BYTES.into_iter().rev().find(|&part| u128::from(part) <= bytes).unwrap_or(PART_BYTES[0])
}

/// The smallest part of at least so many bytes, or the largest of all.
fn dearest_part(bytes: u128) -> u32 {
    PART_BYTES.into_iter().find(|&part| u128::from(part) >= bytes).unwrap_or(PART_BYTES[3])
}

/// The splitting of one device, shared by its workers.
#[derive(Debug)]
pub struct SplitControl {
    split: Split,
    /// Bytes of a part now, by the rule; `u32::MAX`: large requests go whole.
    part_bytes: AtomicU32,
    /// Largest part that a latency goal leaves, bytes; `u32::MAX`: any.
    limit_bytes: AtomicU32,
    /// The present policy gains from parts.
    applies: AtomicBool,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    rule: Rule,
    seen: Seen,
    /// Time with commands on the device, by worker, ns.
    busy_ns: Box<[u64]>,
}

impl SplitControl {
    /// Control for a device of so many workers.
    pub fn new(split: Split, workers: usize) -> SplitControl {
        let part_bytes = AtomicU32::new(SplitState::configured(split).part_bytes.unwrap_or(u32::MAX));
        let busy_ns = vec![0; workers.max(1)].into();
        let window = Mutex::new(Window { rule: Rule::new(), seen: Seen::default(), busy_ns });
        let limit_bytes = AtomicU32::new(u32::MAX);
        SplitControl { split, part_bytes, limit_bytes, applies: AtomicBool::new(true), window }
    }

    /// Bytes of a part now; `u32::MAX`: large requests go whole.
    #[inline]
    pub fn part_bytes(&self) -> u32 {
        // Relaxed: a number that nothing else is ordered by; a worker that sees it late cuts a few requests more or
        // fewer. Pairs with the store in `bring`.
        self.part_bytes.load(Ordering::Relaxed).min(self.limit_bytes.load(Ordering::Relaxed))
    }

    /// No part is larger than this for a latency goal's sake from now on; `u32::MAX`: any is. Under `"auto"` alone.
    #[inline]
    pub fn limit(&self, bytes: u32) {
        // Relaxed: as `part_bytes`. Mostly it is the same, and no line is written.
        if self.split == Split::Auto && self.limit_bytes.load(Ordering::Relaxed) != bytes {
            self.limit_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// True if large requests go in parts now.
    #[inline]
    pub fn is_in_parts(&self) -> bool {
        self.part_bytes() != u32::MAX
    }

    /// The policy that orders requests from now on has a depth, or none: `"auto"` splits only where there is one.
    /// Called while no context has requests in a policy: before the first one, and between two.
    pub fn set_policy(&self, has_depth: bool) {
        // Held: a worker in `bring` must not put a size in force after this. Workers try the lock and never wait.
        let window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed, both: a context gets its policy by a channel, which orders them before what it does with it.
        self.applies.store(has_depth || self.split != Split::Auto, Ordering::Relaxed);
        if self.split == Split::Auto {
            let part_bytes = window.rule.state.part_bytes.filter(|_| has_depth).unwrap_or(u32::MAX);
            self.part_bytes.store(part_bytes, Ordering::Relaxed);
            self.limit(u32::MAX);
        }
    }

    /// True if large requests may be cut under the present policy.
    pub fn applies(&self) -> bool {
        // Relaxed: see `set_policy`.
        self.applies.load(Ordering::Relaxed)
    }

    /// Form in which large requests go to the device now, and the reason.
    pub fn state(&self) -> SplitState {
        match self.split {
            Split::Auto if !self.applies() => {
                SplitState { reason: Reason::NoDepth, ..SplitState::configured(Split::Auto) }
            }
            Split::Auto => {
                let state = self.window.lock().unwrap_or_else(PoisonError::into_inner).rule.state;
                // Relaxed: see `limit`.
                let limit = Some(self.limit_bytes.load(Ordering::Relaxed)).filter(|&bytes| bytes != u32::MAX);
                let is_less = limit.is_some_and(|limit| state.part_bytes.is_none_or(|bytes| limit < bytes));
                if is_less { SplitState { part_bytes: limit, reason: Reason::Goal, ..state } } else { state }
            }
            split => SplitState::configured(split),
        }
    }

    /// Takes in the counts of a worker, and its time with commands on the device meanwhile, ns. False: another thread
    /// is at it, and nothing happened.
    pub fn bring(&self, worker: usize, seen: &Seen, busy_ns: u64) -> bool {
        let Ok(mut window) = self.window.try_lock() else { return false };
        let window: &mut MutexGuard<'_, Window> = &mut window;
        window.seen.join(seen);
        let last = window.busy_ns.len() - 1;
        window.busy_ns[worker.min(last)] += busy_ns;
        if window.seen.requests >= WINDOW_REQUESTS {
            let seen = std::mem::take(&mut window.seen);
            let busy_ns = window.busy_ns.iter().copied().max().unwrap_or(0);
            window.busy_ns.fill(0);
            window.rule.step(&seen, busy_ns);
            // Relaxed: pairs with the load in `part_bytes`.
            let part_bytes = window.rule.state.part_bytes.filter(|_| self.applies()).unwrap_or(u32::MAX);
            self.part_bytes.store(part_bytes, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;

    #[test]
    fn the_least_time_of_small_reads_and_that_of_small_writes_are_of_all_that_was_seen() {
        let of = |times: &[(bool, u64)]| {
            let mut seen = Seen::default();
            times.iter().for_each(|&(is_write, device_ns)| seen.note(0, is_write, SMALL_BYTES, device_ns));
            seen
        };
        let mut all = of(&[(false, 9), (false, 7), (true, 30)]);
        assert_eq!(all.small_least_ns, [Some(7), Some(30)]);
        all.join(&of(&[(false, 8), (true, 20)]));
        assert_eq!(all.small_least_ns, [Some(7), Some(20)]);
        all.join(&of(&[]));
        all.note(0, false, LARGE_BYTES, 1);
        assert_eq!(all.small_least_ns, [Some(7), Some(20)]);
        // A rule forgets them by epochs, each by its own.
        let mut rule = Rule::new();
        rule.step(&all, 1);
        rule.step(&of(&[(true, 10)]), 1);
        assert_eq!(rule.least_ns[0], [Some(7), Some(10)]);
    }

    /// A device that moves so many bytes per microsecond and takes so long for a small request by itself.
    struct Device {
        bytes_per_us: u64,
        small_ns: u64,
    }

    const OPTANE: Device = Device { bytes_per_us: 2400, small_ns: 10_300 };
    const FLASH: Device = Device { bytes_per_us: 3050, small_ns: 75_000 };

    impl Device {
        /// One window of requests of these flows and lengths, in equal numbers.
        fn window(&self, requests: &[(u32, u32)]) -> (Seen, u64) {
            let mut seen = Seen::default();
            for &(flow, length_bytes) in requests.iter().cycle().take(WINDOW_REQUESTS as usize) {
                let device_ns = self.small_ns + u64::from(length_bytes) * 1000 / self.bytes_per_us;
                seen.note(flow, false, length_bytes, device_ns);
            }
            (seen, seen.bytes * 1000 / self.bytes_per_us)
        }

        /// States of a rule after each of so many such windows.
        fn states(&self, rule: &mut Rule, requests: &[(u32, u32)], windows: usize) -> Vec<String> {
            let (seen, busy_ns) = self.window(requests);
            (0..windows).map(|_| (rule.step(&seen, busy_ns), rule.state.to_string()).1).collect()
        }
    }

    const SMALL: (u32, u32) = (0, 4 * KIB);
    const LARGE: (u32, u32) = (1, 128 * KIB);

    #[test]
    fn a_large_request_that_holds_the_device_for_long_is_split_while_somebody_small_competes() {
        let mut rule = Rule::new();
        let states = OPTANE.states(&mut rule, &[SMALL, LARGE], 3);
        let about = "54 us, a small one takes 12 us by itself";
        let whole = format!("split off: a large request would hold the device for {about}");
        let parts = format!("split 16KiB: a large request would hold the device for {about}");
        assert_eq!(states, [whole, parts.clone(), parts.clone()], "two windows say so");
        // One small request among 4096 counts; none does not.
        let quiet = OPTANE.states(&mut rule, &[LARGE], 8);
        assert_eq!(quiet[..7], [(); 7].map(|()| parts.clone()));
        assert_eq!(quiet[7], "split off: nobody small");
        assert_eq!(OPTANE.states(&mut rule, &[SMALL], 1), ["split off: nobody large"]);
    }

    #[test]
    fn a_device_that_takes_long_for_a_small_request_gets_large_ones_whole() {
        let rule = &mut Rule::new();
        let expected = "split off: a large request holds the device for 42 us, a small one takes 76 us by itself";
        assert!(FLASH.states(rule, &[SMALL, LARGE], 20).iter().all(|state| state == expected));
        // A request of 1 MiB holds it for 343 us; 76 us move 232 KB.
        assert_eq!(FLASH.states(rule, &[SMALL, (1, 1024 * KIB)], 2)[1][..13], *"split 128KiB:");
    }

    #[test]
    fn one_tenant_alone_is_not_split_for_and_several_are() {
        let mut rule = Rule::new();
        let own = OPTANE.states(&mut rule, &[(3, 4 * KIB), (3, 128 * KIB)], 1);
        assert_eq!(own, ["split off: one tenant has the small and the large requests"]);
        let both = OPTANE.states(&mut rule, &[(3, 4 * KIB), (3, 128 * KIB), (4, 128 * KIB)], 2);
        assert_eq!(both[1][..12], *"split 16KiB:");
        assert_eq!(OPTANE.states(&mut Rule::new(), &[(0, 20 * KIB)], 1), ["split off: nobody large"], "neither is");
    }

    #[test]
    fn a_fast_device_is_not_asked_for_parts_that_are_not_worth_their_command() {
        // 11 GB/s: 2 us move 22 KB.
        let mut rule = Rule::new();
        let fast = Device { bytes_per_us: 11_000, small_ns: 500 };
        assert_eq!(fast.states(&mut rule, &[SMALL, LARGE], 2)[1][..12], *"split 32KiB:");
    }

    #[test]
    fn the_size_stays_at_a_border_and_follows_a_device_that_has_changed() {
        let mut rule = Rule::new();
        // 13.6 us move 32 KiB at 2.4 bytes per ns.
        let states = |rule: &mut Rule, small_ns| {
            let device = Device { bytes_per_us: 2400, small_ns };
            device.states(rule, &[SMALL, LARGE], 4).last().unwrap()[..11].to_owned()
        };
        assert_eq!(states(&mut rule, 10_000), "split 16KiB");
        // The least time is remembered for an epoch or two.
        let slower = Device { bytes_per_us: 2400, small_ns: 13_000 };
        let sizes = slower.states(&mut rule, &[SMALL, LARGE], 2 * EPOCH_WINDOWS as usize + 4);
        assert!(sizes.iter().all(|size| size.starts_with("split 16KiB")), "14.7 us are a border");
        let slower = Device { bytes_per_us: 2400, small_ns: 20_000 };
        let sizes = slower.states(&mut rule, &[SMALL, LARGE], 2 * EPOCH_WINDOWS as usize + 4);
        assert!(sizes[0].starts_with("split 16KiB") && sizes.last().unwrap().starts_with("split 32KiB"));
        assert_eq!(sizes.iter().zip(&sizes[1..]).filter(|(one, next)| one[..11] != next[..11]).count(), 1);
    }

    #[test]
    fn requests_are_small_or_large_up_to_their_lengths_and_those_between_are_neither() {
        let mut seen = Seen::default();
        let lengths = [SMALL_BYTES, SMALL_BYTES + 1, LARGE_BYTES - 1, LARGE_BYTES];
        for (flow, length_bytes) in (0..).zip(lengths) {
            seen.note(flow, false, length_bytes, 10);
        }
        assert_eq!((seen.small, seen.large, seen.large_requests), (Whose::One(0), Whose::One(3), 1));
        assert_eq!((seen.large_bytes, seen.bytes), (LARGE_BYTES.into(), lengths.iter().sum::<u32>().into()));
    }

    #[test]
    fn a_size_is_what_fits_and_what_just_fits_is_that_size() {
        let [least, .., most] = PART_BYTES;
        for part in PART_BYTES {
            let bytes = u128::from(part);
            assert_eq!((largest_part(bytes), dearest_part(bytes)), (part, part));
            let nearest = (largest_part(bytes - 1), dearest_part(bytes + 1));
            assert_eq!(nearest, ((part / 2).max(least), (part * 2).min(most)));
        }
        assert_eq!((largest_part(0), dearest_part(0)), (least, least));
        assert_eq!((largest_part(u128::MAX), dearest_part(u128::MAX)), (most, most));
    }

    /// Size of parts after two windows of large requests of 128 KiB that take so long each, beside small ones.
    fn weighed(rule: &mut Rule, large_bytes: u32, large_ns: u64, small_ns: u64) -> Option<u32> {
        let bytes = u64::from(large_bytes);
        let seen = Seen { bytes, large_bytes: bytes, large_requests: 1, ..Seen::default() };
        (0..2).for_each(|_| rule.weigh(&seen, large_ns, small_ns));
        rule.state.part_bytes
    }

    #[test]
    fn whole_requests_are_cut_when_they_hold_the_device_for_more_than_five_quarters_of_a_small_one() {
        let of = |large_ns| weighed(&mut Rule::new(), 128 * KIB, large_ns, 80_000);
        assert_eq!([of(100_000), of(100_001)], [None, Some(64 * KIB)]);
        let mut briefly = Rule::new();
        weighed(&mut briefly, 128 * KIB, 100_000, 80_000);
        assert_eq!(briefly.state.reason, Reason::HoldsBriefly);
        // And go whole again when they hold it for no longer than that.
        let mut rule = Rule::new();
        let sizes = [100_001, 99_000, 80_001, 80_000].map(|large_ns| weighed(&mut rule, 128 * KIB, large_ns, 80_000));
        assert_eq!(sizes, [Some(64 * KIB), Some(64 * KIB), Some(64 * KIB), None]);
    }

    #[test]
    fn a_part_as_long_as_the_request_is_none() {
        // 15 bytes per ns: 2 us move 30,000 bytes, so no part is shorter than 32 KiB.
        let of = |large_bytes: u32| weighed(&mut Rule::new(), large_bytes, u64::from(large_bytes) / 15, 500);
        assert_eq!([of(32 * KIB), of(33 * KIB)], [None, Some(32 * KIB)]);
    }

    #[test]
    fn a_size_stays_while_a_quarter_more_or_less_would_choose_it() {
        // 1 byte per ns, so a small request's time is the length that it allows.
        let of = |rule: &mut Rule, small_bytes: u64| weighed(rule, 128 * KIB, 128 << 10, small_bytes);
        let mut rule = Rule::new();
        let sizes =
            [40 << 10, (26 << 10) + 300, 26 << 10, 25 << 10, (39 << 10), (41 << 10)].map(|it| of(&mut rule, it));
        let [p16, p32] = [16, 32].map(|kib| Some(kib * KIB));
        assert_eq!(sizes, [p32, p32, p32, p16, p16, p32]);
    }

    #[test]
    fn a_quiet_window_takes_back_what_the_one_before_has_said() {
        let mut rule = Rule::new();
        let is_whole = |rule: &mut Rule, requests: &[(u32, u32)]| {
            OPTANE.states(rule, requests, 1);
            rule.state.part_bytes.is_none()
        };
        for _ in 0..3 {
            assert!(is_whole(&mut rule, &[SMALL, LARGE]) && is_whole(&mut rule, &[LARGE]), "no two in a row");
        }
        assert!(is_whole(&mut rule, &[SMALL, LARGE]) && !is_whole(&mut rule, &[SMALL, LARGE]));
    }

    #[test]
    fn the_quicker_kind_of_small_requests_counts_and_at_least_a_quarter_of_the_slower() {
        // A large one holds the device for 43 us. Writes may end in the drive's cache after 10 us; the reads wait.
        let of = |write_ns| {
            let (mut rule, mut seen) = (Rule::new(), Seen::default());
            for n in 0..WINDOW_REQUESTS {
                seen.note(0, n % 2 == 0, 4096, if n % 2 == 0 { write_ns } else { 75_000 });
                seen.note(1, false, 128 << 10, 200_000);
            }
            (0..3).for_each(|_| rule.step(&seen, seen.bytes * 1000 / 3050));
            (rule.state.part_bytes.map(|bytes| bytes >> 10), rule.state.small_ns)
        };
        assert_eq!(of(75_000), (None, 75_000));
        assert_eq!([of(20_000), of(10_000)], [(Some(32), 20_000), (Some(32), 18_750)]);
    }

    #[test]
    fn parts_that_are_writes_hold_the_device_as_long_as_a_small_write_at_least() {
        // 1 byte per ns. Of four large requests so many are writes; a small write takes as long as 40 KiB.
        let of = |large_writes, small_ns| {
            let mut rule = Rule::new();
            rule.least_ns[0] = [Some(small_ns), Some(40 << 10)];
            let (bytes, large_bytes, large_requests) = (512 << 10, 512 << 10, 4);
            let seen = Seen { bytes, large_bytes, large_requests, large_writes, ..Seen::default() };
            (0..2).for_each(|_| rule.weigh(&seen, 512 << 10, small_ns));
            rule.state.part_bytes.map(|bytes| bytes >> 10)
        };
        assert_eq!([0, 2, 3, 4].map(|writes| of(writes, 40 << 10)), [32, 32, 64, 64].map(Some));
        assert_eq!([of(4, 70 << 10), of(4, 102 << 10)], [Some(64), Some(64)], "a read takes longer");
    }

    #[test]
    fn workers_bring_what_they_saw_and_one_window_ends_for_all() {
        let control = SplitControl::new(Split::Auto, 2);
        assert_eq!(control.state().to_string(), "split off: too few requests yet");
        let (seen, busy_ns) = OPTANE.window(&[SMALL, LARGE]);
        // Both were busy all the time: that is as much time as one had.
        let half = Seen { requests: seen.requests / 2, ..seen };
        for _ in 0..4 {
            assert!(control.bring(0, &half, busy_ns * 2) && control.bring(1, &half, busy_ns * 2));
        }
        assert_eq!((control.part_bytes(), control.state().holds_ns / 1000), (16 << 10, 54));
        let held = control.window.lock().unwrap();
        assert!(!control.bring(0, &seen, 1), "no request waits");
        drop(held);
        // No time, no bytes, no large ones: nothing to divide by.
        let nothing = Seen { requests: WINDOW_REQUESTS, ..Seen::default() };
        assert!(control.bring(0, &nothing, 0));
        Rule::new().weigh(&Seen::default(), 0, 0);
    }

    #[test]
    fn auto_is_for_policies_with_a_depth_and_a_size_for_all() {
        let [auto, size] = [Split::Auto, Split::Bytes(16 << 10)].map(|split| SplitControl::new(split, 1));
        let (seen, busy_ns) = OPTANE.window(&[SMALL, LARGE]);
        assert!(!auto.is_in_parts());
        (0..2).for_each(|_| assert!(auto.bring(0, &seen, busy_ns)));
        assert_eq!((auto.part_bytes(), auto.is_in_parts()), (16 << 10, true));
        [&auto, &size].iter().for_each(|control| control.set_policy(false));
        assert_eq!((auto.part_bytes(), auto.is_in_parts()), (u32::MAX, false), "at once");
        assert_eq!(auto.state().to_string(), "split off: the policy has no depth");
        assert!(auto.bring(0, &seen, busy_ns) && !auto.applies() && size.applies());
        assert_eq!((auto.part_bytes(), size.part_bytes()), (u32::MAX, 16 << 10));
        auto.set_policy(true);
        assert_eq!(auto.part_bytes(), 16 << 10, "at once");
        assert!(auto.bring(0, &seen, busy_ns) && auto.part_bytes() == 16 << 10);
    }

    #[test]
    fn a_latency_goal_asks_for_smaller_parts_of_auto_alone_and_until_it_is_over() {
        let [auto, size] = [Split::Auto, Split::Bytes(256 << 10)].map(|split| SplitControl::new(split, 1));
        [&auto, &size].iter().for_each(|control| control.limit(64 << 10));
        assert_eq!((auto.part_bytes(), size.part_bytes()), (64 << 10, 256 << 10));
        assert_eq!(auto.state().to_string(), "split 64KiB: for a latency goal");
        auto.set_policy(false);
        assert!(!auto.is_in_parts(), "with another policy it asks again");
    }

    #[test]
    fn of_what_workers_bring_the_least_time_counts_and_one_beyond_the_last_is_the_last() {
        for workers in [1, 2] {
            let control = SplitControl::new(Split::Auto, workers);
            for (worker, small_ns) in [(0, 30_000), (1, 10_000), (7, 20_000)] {
                let (seen, busy_ns) = Device { bytes_per_us: 4096, small_ns }.window(&[SMALL]);
                let third = Seen { requests: seen.requests / 3 + 1, ..seen };
                assert!(control.bring(worker, &third, busy_ns));
            }
            assert_eq!(control.state().small_ns, 11_000, "and a microsecond for 4 KiB");
        }
    }

    #[test]
    fn a_least_time_is_remembered_for_the_rest_of_its_epoch_and_the_next() {
        let mut rule = Rule::new();
        let [fast, slow] = [10, 20].map(|us| Device { bytes_per_us: 4096, small_ns: us * 1000 - 1000 });
        fast.states(&mut rule, &[SMALL], 1);
        for window in 2..=2 * EPOCH_WINDOWS {
            slow.states(&mut rule, &[SMALL], 1);
            assert_eq!(rule.state.small_ns, 10_000, "window {window}");
        }
        slow.states(&mut rule, &[SMALL], 1);
        assert_eq!(rule.state.small_ns, 20_000);
    }

    #[test]
    fn quiet_windows_count_from_the_last_one_in_which_somebody_competed() {
        let mut rule = Rule::new();
        OPTANE.states(&mut rule, &[SMALL, LARGE], 2);
        for _ in 0..3 {
            OPTANE.states(&mut rule, &[LARGE], QUIET_WINDOWS as usize - 1);
            assert!(rule.state.part_bytes.is_some());
            OPTANE.states(&mut rule, &[SMALL, LARGE], 1);
        }
        OPTANE.states(&mut rule, &[LARGE], QUIET_WINDOWS as usize);
        assert!(rule.state.part_bytes.is_none());
    }

    #[test]
    fn a_configured_size_is_what_it_says() {
        let state = |split| SplitControl::new(split, 1).state().to_string();
        let states = [Split::Off, Split::Bytes(16 << 10), Split::Auto].map(state);
        assert_eq!(states, ["split off: configured", "split 16KiB: configured", "split off: too few requests yet"]);
        assert_eq!(SplitControl::new(Split::Off, 1).part_bytes(), u32::MAX);
        let names = [Split::Off, Split::Bytes(8192), Split::Auto].map(|split| split.to_string());
        assert_eq!(names, ["off", "8KiB", "auto"]);
    }
}
