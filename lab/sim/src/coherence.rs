//! Cost of an access to memory: cores that have a cache line, and cores that wait for it.
//!
//! # The model
//! A line is with no core, with one core that may write it, or with several that may read it: MESI without a
//! distinction of E and M. A core that loads a line with no copy elsewhere has it alone, and its first store is a hit.
//! An access that the core's own copy allows is a hit. Any other takes the line from the others: a load from the
//! nearest that has it, a write from all, and so as long as from the farthest. A line that is on its way to a core must
//! arrive before it can leave again, so requests for one line are served one after the other, in the order in which
//! they were made:
//!
//! ```text
//!   core 0   rmw ████████████░                       transfer, then the operation itself
//!   core 1    rmw ............████████████░          waits for the line, then its own transfer
//!   core 2      rmw ......................████████████░
//! ```
//! That queue is what makes a shared counter cost more with every core. Reads of a line that several have are not
//! queued: the last-level cache serves them side by side.
//!
//! Stores go to a store buffer (x86-TSO): the core goes on, and only its next read-modify-write or fence waits until
//! they have arrived. Loads are charged one after the other; a real core overlaps those that do not depend on each
//! other.
//!
//! # What it leaves out
//! Capacity (a line stays until another takes it), prefetching, bandwidth of the interconnect, and false sharing with
//! plain data: only words of `sched::sync` are seen. Speculation: a core that spins on a line sees it change after one
//! transfer.
//!
//! # Cost
//! One look into a hash map and a few comparisons per access; a word of bits per line and 64 cores.

use crate::machine::{Distance, Distances};
use crate::outcome::MemoryOutcome;
use crate::scenario::Latencies;
use mqfq_sched_watched::watched::{Access, Kind, LINE_BYTES};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;

/// Virtual time of a core, picoseconds.
pub type Ps = u64;

/// Nanoseconds as a parameter says them.
pub fn ps(ns: f64) -> Ps {
    (ns * 1000.0).round() as Ps
}

/// Places for lines looked up last. Structures are aligned to two lines, so an odd number spreads them better.
const RECENT: usize = 4093;

/// Told the address of each line of words when it is first seen. A test sets it that knows how memory was allocated: a
/// word that shares its line with something else makes a figure depend on where the allocator put both.
pub static LINE_SEEN: OnceLock<fn(usize)> = OnceLock::new();

/// The largest address of a process, x86-64; what lies above is made up, and stands for no memory.
const ADDRESS_MAX: usize = (1 << 47) - 1;

/// No core.
const NOBODY: u16 = u16::MAX;

/// Latencies in picoseconds.
struct Costs {
    load_hit: Ps,
    store_hit: Ps,
    rmw_hit: Ps,
    fence: Ps,
    memory: Ps,
    same_core: Ps,
    same_socket: Ps,
    other_socket: Ps,
    other_board: Ps,
}

/// Copies of each line. By itself it counts transfers, without times.
pub struct Copies {
    numbers: HashMap<usize, u32, BuildHasherDefault<LineHasher>>,
    /// The last line looked up in each place, with its number: most accesses are to a few of them.
    recent: Box<[(usize, u32)]>,
    /// By line: the only core that has it, or the mark for none.
    owners: Vec<u16>,
    /// `words` words per line: the cores that have a copy.
    copies: Vec<u64>,
    words: usize,
}

impl Copies {
    /// No core has a copy of any line.
    pub fn new(cores: usize) -> Copies {
        Copies {
            numbers: HashMap::default(),
            recent: vec![(usize::MAX, 0); RECENT].into(),
            owners: Vec::new(),
            copies: Vec::new(),
            words: cores.div_ceil(64),
        }
    }

    /// The number of the line that an access is to: lines are numbered as they are first seen.
    #[inline]
    pub fn line(&mut self, access: &Access) -> u32 {
        let line = access.line();
        let place = line % RECENT;
        let (known, number) = self.recent[place];
        if known == line {
            return number;
        }
        let number = self.find(line);
        self.recent[place] = (line, number);
        number
    }

    fn find(&mut self, line: usize) -> u32 {
        let next = self.owners.len() as u32;
        let number = *self.numbers.entry(line).or_insert(next);
        if number == next {
            if let Some(told) = LINE_SEEN.get()
                && line <= ADDRESS_MAX / LINE_BYTES
            {
                told(line * LINE_BYTES);
            }
            self.owners.push(NOBODY);
            self.copies.resize(self.copies.len() + self.words, 0);
        }
        number
    }

    /// Whether an access can be made with what the core has. A fence needs nothing.
    #[inline]
    pub fn need(&self, core: usize, line: u32, kind: Kind) -> Need {
        let owner = self.owners[line as usize];
        let is_hit = owner == core as u16 || (kind == Kind::Load && owner == NOBODY && self.has(core, line));
        if is_hit { Need::Hit } else { Need::Transfer }
    }

    /// The line has come to the core, which made an access of this kind.
    #[inline]
    pub fn moved(&mut self, core: usize, line: u32, kind: Kind) {
        let is_alone = kind != Kind::Load || self.is_nobodys(line);
        self.owners[line as usize] = if is_alone { core as u16 } else { NOBODY };
        let start = line as usize * self.words;
        if is_alone {
            self.copies[start..start + self.words].fill(0);
        }
        self.copies[start + core / 64] |= 1 << (core % 64);
    }

    /// The cores that have a copy, 64 to a word.
    pub fn holders(&self, line: u32) -> &[u64] {
        &self.copies[line as usize * self.words..][..self.words]
    }

    fn is_nobodys(&self, line: u32) -> bool {
        self.owners[line as usize] == NOBODY && self.holders(line).iter().all(|&word| word == 0)
    }

    #[inline]
    fn has(&self, core: usize, line: u32) -> bool {
        self.copies[line as usize * self.words + core / 64] & 1 << (core % 64) != 0
    }
}

/// The cache lines of all cores, and what an access to each costs.
pub struct Memory {
    costs: Costs,
    copies: Copies,
    /// By line: when it arrives where it is going, and cannot leave before.
    free_at: Vec<Ps>,
    /// By core: when the last of its stores arrives.
    drained_at: Vec<Ps>,
    counts: MemoryOutcome,
}

/// Requirement of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Nothing: the core's own copy will do.
    Hit,
    /// The line, from somewhere else.
    Transfer,
}

impl Memory {
    /// No core has a copy of any line.
    pub fn new(latency: &Latencies, cores: usize) -> Memory {
        let costs = Costs {
            load_hit: ps(latency.load_hit_ns),
            store_hit: ps(latency.store_hit_ns),
            rmw_hit: ps(latency.rmw_hit_ns),
            fence: ps(latency.fence_ns),
            memory: ps(latency.memory_ns),
            same_core: ps(latency.transfer_same_core_ns),
            same_socket: ps(latency.transfer_same_socket_ns),
            other_socket: ps(latency.transfer_other_socket_ns),
            other_board: ps(latency.transfer_other_board_ns),
        };
        Memory {
            costs,
            copies: Copies::new(cores),
            free_at: Vec::new(),
            drained_at: vec![0; cores],
            counts: MemoryOutcome::default(),
        }
    }

    /// As [`Copies::line`].
    #[inline]
    pub fn line(&mut self, access: &Access) -> u32 {
        let line = self.copies.line(access);
        if line as usize == self.free_at.len() {
            self.free_at.push(0);
        }
        line
    }

    /// As [`Copies::need`].
    #[inline]
    pub fn need(&self, core: usize, line: u32, kind: Kind) -> Need {
        self.copies.need(core, line, kind)
    }

    /// Makes an access at `now`; the core goes on at the time returned.
    pub fn access(&mut self, core: usize, line: u32, kind: Kind, now: Ps, distances: &Distances) -> Ps {
        self.counts.accesses += 1;
        let now = if kind.is_read_modify_write() { now.max(self.drained_at[core]) } else { now };
        let is_hit = self.need(core, line, kind) == Need::Hit;
        let at = line as usize;
        match kind {
            Kind::Fence => unreachable!("a fence has no line"),
            // An own store may still be on its way, but a load of that word is served from the store buffer.
            Kind::Load if is_hit => now + self.costs.load_hit,
            Kind::Load => {
                // One that several have stays free: the last-level cache serves them side by side.
                let is_shared = self.copies.owners[at] == NOBODY && !self.copies.is_nobodys(line);
                let arrives_at = self.transfer(core, line, now, Ord::min, distances);
                self.copies.moved(core, line, kind);
                if !is_shared {
                    self.free_at[at] = arrives_at;
                }
                arrives_at + self.costs.load_hit
            }
            Kind::Touch if is_hit => now + self.costs.load_hit,
            Kind::Touch => {
                let arrives_at = self.transfer(core, line, now, Ord::max, distances);
                self.take(core, line, kind, arrives_at);
                arrives_at + self.costs.load_hit
            }
            Kind::Store if is_hit => now + self.costs.store_hit,
            Kind::Store => {
                let arrives_at = self.transfer(core, line, now, Ord::max, distances);
                self.take(core, line, kind, arrives_at);
                self.drained_at[core] = self.drained_at[core].max(arrives_at);
                now + self.costs.store_hit
            }
            Kind::ReadModifyWrite | Kind::Lock | Kind::Unlock if is_hit => now + self.costs.rmw_hit,
            Kind::ReadModifyWrite | Kind::Lock | Kind::Unlock => {
                let done_at = self.transfer(core, line, now, Ord::max, distances) + self.costs.rmw_hit;
                self.take(core, line, kind, done_at);
                done_at
            }
        }
    }

    /// A fence at `now`; the core goes on at the time returned.
    pub fn fence(&mut self, core: usize, now: Ps) -> Ps {
        self.counts.accesses += 1;
        now.max(self.drained_at[core]) + self.costs.fence
    }

    /// Time at which a line that `core` asked for at `asked_at` leaves its place: at once, or if it is on its way to a
    /// core, a quarter of our transfer after it has arrived there.
    pub fn leaves_at(&self, core: usize, line: u32, asked_at: Ps, distances: &Distances) -> Ps {
        let (owner, free_at) = (self.copies.owners[line as usize], self.free_at[line as usize]);
        if free_at <= asked_at || owner == NOBODY {
            return asked_at.max(free_at);
        }
        free_at + self.transfer_ps(distances.between(core, owner as usize)) / 4
    }

    /// Time to move a line over this distance.
    #[inline]
    pub fn transfer_ps(&self, distance: Distance) -> Ps {
        match distance {
            Distance::Own => 0,
            Distance::Core => self.costs.same_core,
            Distance::Socket => self.costs.same_socket,
            Distance::Board => self.costs.other_socket,
            Distance::Machine => self.costs.other_board,
        }
    }

    /// A core waited so long for a lock.
    pub fn waited_for_lock(&mut self, waited: Ps) {
        self.counts.waited_for_lock_ns += waited / 1000;
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&mut self) -> MemoryOutcome {
        std::mem::take(&mut self.counts)
    }

    /// Brings a line; when it arrives.
    fn transfer(&mut self, core: usize, line: u32, now: Ps, choose: Choose, distances: &Distances) -> Ps {
        let free_at = self.free_at[line as usize];
        let start = now.max(free_at);
        self.counts.waited_for_line_ns += (start - now) / 1000;
        let Some(distance) = self.distance(core, line, choose, distances) else {
            return start + self.costs.memory;
        };
        match distance {
            Distance::Own => {}
            Distance::Core => self.counts.transfers_same_core += 1,
            Distance::Socket => self.counts.transfers_same_socket += 1,
            Distance::Board | Distance::Machine => self.counts.transfers_other_socket += 1,
        }
        start + self.transfer_ps(distance)
    }

    /// Distance of the copy that `choose` picks; `None`: no core has any.
    fn distance(&self, core: usize, line: u32, choose: Choose, distances: &Distances) -> Option<Distance> {
        let owner = self.copies.owners[line as usize];
        if owner != NOBODY {
            return Some(distances.between(core, owner as usize));
        }
        let mut found: Option<Distance> = None;
        for (at, &word) in self.copies.holders(line).iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let other = at * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if other != core {
                    let distance = distances.between(core, other);
                    found = Some(found.map_or(distance, |so_far| choose(so_far, distance)));
                }
            }
        }
        found
    }

    fn take(&mut self, core: usize, line: u32, kind: Kind, free_at: Ps) {
        self.copies.moved(core, line, kind);
        self.free_at[line as usize] = free_at;
    }
}

/// The nearer or the farther of two.
type Choose = fn(Distance, Distance) -> Distance;

/// Hash for maps whose keys are lines: those are numbers already, and the standard hash takes longer than all the rest
/// of an access.
#[derive(Default)]
pub struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(byte.into()));
    }

    fn write_usize(&mut self, line: usize) {
        // 2^64 over the golden ratio. The map looks at the upper bits as well as at the lower ones.
        self.0 = (self.0 ^ line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
