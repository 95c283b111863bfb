//! Smallest lead start tag over all hctxs, and the global virtual time that follows it, without a lock.
//!
//! Source: the mindicator of Liu, Luchangco and Spear (ICDCS 2013) as used in MQFQ section 3.1, where a change goes up
//! only as far as it changes a minimum. The protocol here is our own: lowering and raising are two different walks,
//! because they owe different things. A *lower* value must be at the root when `publish` returns (M1, or virtual time
//! runs past it); a *higher* one may be late, but a thread must bring it up (M3, or virtual time stops for ever).
//!
//! # Shape
//! ```text
//!            root: 40            each node shows the smallest of its children
//!           /        \
//!        40            55        at most 8 children; levels with one child are left out
//!       /  \          /  \
//!     40    --      90    55     leaves are hctxs, written only by their owner; "--" is an empty queue
//! ```
//! A node is one word, `{ lead: 50 bits, occupied, covered, version: 12 bits }`. The lead is virtual time in grains of
//! 64 units (1/16 byte-equivalent), rounded down, and compared on a circle of 2^50 grains; hence `REACH`. Beside the
//! tree there is one word: global virtual time, 64 bits, which `query` moves up to what the root shows.
//!
//! # Invariants
//! M1. `query` never passes the smallest lead of an hctx whose `publish` returned and whose next `publish` or `depart`
//!     has not begun, unless global virtual time had passed it before ("returned" in the sense of happens-before).
//! M2. Global virtual time never goes back (I8): a lead that arrives late and low is dispatched first and moves
//!     nothing.
//! M3. No raise is lost: when all calls have returned, each node shows exactly the smallest of its children; and if
//!     each caller calls `query` after its `publish` or `depart`, global virtual time is the smallest lead then.
//! M4. With no queue present, global virtual time keeps its value.
//!
//! # Lowering (a queue becomes backlogged, or gets an earlier lead)
//! Leaf := L, then each node on the way up := min(node, L) by compare-and-exchange *with a new version, also when the
//! value stays the same*. That is the whole of M1 for one node: a raiser that read the children before cannot succeed.
//!
//! | step | A: hctx 0 (lead 40) empties       | B: hctx 1 gets a lead of 40      | node {lead, version} |
//! |------|-----------------------------------|----------------------------------|----------------------|
//! |  1   | leaf := --, reads children: none  |                                  | {40, 7}              |
//! |  2   |                                   | leaf := 40, node := min(40, 40)  | --> {40, 8}          |
//! |  3   | CAS {40, 7} -> {--, 7} fails      |                                  | {40, 8}              |
//! |  4   | reads children again: 40          |                                  | {40, 8}              |
//!
//! Going on to the root each time would make the root's line a bottleneck for queues that fill and empty at the
//! same virtual time. But stopping at a node that already shows a value <= L is wrong: the thread that put it there may
//! not have brought it to the root yet. So a node has a bit, *covered*: "no ancestor shows more than this node, nor
//! will before this node is lowered". A walk that gets to a covered node with a value <= L, and has changed its
//! version, may stop. The bit is cleared by a lowering, kept by a raise (ancestors at most the old value are at most
//! the new one), and set by a walk that has come to its end, on each node that shows its L (its own leaf still shows L,
//! so nothing under that node can have been above L since the walk passed).
//!
//! # Raising (a lead was dispatched, or the queue is empty)
//! Leaf := higher, then at each node: if the smallest child is above the node, put it there, go on to the parent. If
//! not, stop: some other child holds the value, and the thread that raises *that* will see ours. Both decisions look at
//! words that others write, after having written one that others look at, so each comes after a fence:
//!
//! | step | A: hctx 0 goes from 40 to 60        | B: hctx 1 goes from 40 to 70         | node |
//! |------|-------------------------------------|--------------------------------------|------|
//! |  1   | leaf 0 := 60, **fence**             | leaf 1 := 70, **fence**              | 40   |
//! |  2   | reads leaf 1: 40, so 40 stays, stop | reads leaf 0: 40, so 40 stays, stop  | 40   |
//!
//! With the fences one of the two reads in step 2 sees the other's leaf. The same holds one level up, between a raiser
//! that stops without a write because the node is below what its child had shown, and one that has just written the
//! old value of that child: after its write it fences and reads the children again.
//!
//! A version that comes round (4,096 changes between a read and its compare-and-exchange, and the same value) can
//! raise a node wrongly; the second look at the children after each raise repairs it at once.
//!
//! # Cost
//! In cache-line transfers, for a leaf that is one of c <= 8 children, below h nodes (h = 1 for 8 hctxs of one socket,
//! 2 for 64, 4 for 1,024):
//!
//! | call | reads of shared lines | writes of shared lines | fences |
//! |---|---|---|---|
//! | `publish` of the same grain | 0 | 0 | 0 |
//! | `publish` higher or `depart`, a sibling is lower | 1 | own leaf | 1 |
//! | the same, and it was the smallest of k <= h nodes | c per node | own leaf, k nodes | k + 1 at most |
//! | `publish` lower, first covered node is the k-th | 0 | own leaf, k nodes (those lowered: twice) | 0 |
//! | `query` | 2 | virtual time, if it moves | 0 |
//! | `global_vtime` | 1 | 0 | 0 |
//!
//! (`publish` reads global virtual time too, which its caller has just read.)
//!
//! With one hctx there is one store and nothing else.
//!
//! Lock-free: a compare-and-exchange fails only because another one succeeded.

use crate::sync::CachePadded;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::topology::{HctxId, Topology, TreeShape};
use crate::vtime::{VSpan, VTime};
use alloc::boxed::Box;

/// Most children of a node. A raise reads them all, and each is a line that another worker writes: 8 keeps that below a
/// microsecond even if every read misses, with 4 nodes above each leaf for 1,024 hctxs.
const FANOUT_MAX: usize = 8;

/// The smallest lead over all hctxs, and global virtual time. See the module's text.
pub struct Mindicator {
    shape: TreeShape,
    /// Leaves first, the root last, as in `shape`.
    nodes: Box<[CachePadded<AtomicU64>]>,
    global_vtime: CachePadded<AtomicU64>,
}

impl Mindicator {
    /// Resolution of leads, in units: a power of two. Global virtual time may be up to `GRAIN - 1` units (1/16
    /// byte-equivalent) below the smallest lead with nothing on its way; it is never above. A comparison of a lead with
    /// global virtual time must allow at least that, or the smallest lead waits for itself.
    pub const GRAIN: VSpan = VSpan(1 << GRAIN_SHIFT);

    /// Largest distance of a lead from global virtual time, either way: almost 2^54 units, 16 TiB at the default weight
    /// and 164 GiB at weight 1. Two leads are then less than half the circle of leads apart, also when rounded.
    pub const REACH: VSpan = VSpan((1 << (LEAD_BITS - 2 + GRAIN_SHIFT)) - Self::GRAIN.0);

    /// No queue present, virtual time at `start`.
    pub fn new(topology: &Topology, start: VTime) -> Mindicator {
        let shape = TreeShape::new(topology, FANOUT_MAX);
        let nodes = (0..shape.node_count()).map(|_| CachePadded::new(AtomicU64::new(Word::EMPTY.0))).collect();
        Mindicator { shape, nodes, global_vtime: CachePadded::new(AtomicU64::new(start.raw())) }
    }

    /// The lead start tag of `hctx` is `lead` now: it arrives, or its lead changes. Only the owner of `hctx` may call
    /// this (and `depart`). When it returns, M1 holds for `lead`.
    ///
    /// A higher lead than before may let virtual time move: call [`Mindicator::query`] afterwards (M3).
    ///
    /// # Panics
    /// If `lead` is farther than [`Mindicator::REACH`] from global virtual time.
    pub fn publish(&self, hctx: HctxId, lead: VTime) {
        let gap = lead.since(self.global_vtime());
        assert!(
            gap.unsigned_abs() <= Self::REACH.0,
            "lead {lead:?} of {hctx:?} is {gap} units from global virtual time, more than {:?}",
            Self::REACH
        );
        let leaf = self.shape.leaf(hctx);
        let after = Word::leaf(lead);
        if self.is_alone() {
            return self.show(after);
        }
        // Relaxed: no other thread writes our leaf.
        let before = Word(self.nodes[leaf].load(Ordering::Relaxed));
        if after.is_below(before) {
            // Relaxed: readers see it by our compare-and-exchange on the parent (Release).
            self.nodes[leaf].store(after.0, Ordering::Relaxed);
            self.lower(leaf, after);
        } else if before.is_below(after) {
            self.raise(leaf, before, after);
        }
        // Else the same grain: nothing to tell.
    }

    /// `hctx` has nothing staged any more. Call [`Mindicator::query`] afterwards (M3). Nothing happens if it is not
    /// present.
    pub fn depart(&self, hctx: HctxId) {
        let leaf = self.shape.leaf(hctx);
        if self.is_alone() {
            return self.show(Word::EMPTY);
        }
        // Relaxed: no other thread writes our leaf.
        let before = Word(self.nodes[leaf].load(Ordering::Relaxed));
        if before.is_occupied() {
            self.raise(leaf, before, Word::EMPTY);
        }
    }

    /// There is one hctx: a leaf and the root above it.
    fn is_alone(&self) -> bool {
        self.nodes.len() == 2
    }

    /// With one hctx the minimum is its lead: the root has one writer and needs no walk.
    fn show(&self, lead: Word) {
        // Release: pairs with the Acquire in `query`, as the compare-and-exchange of a walk does.
        self.nodes[self.shape.root()].store(lead.0, Ordering::Release);
    }

    /// Moves global virtual time up to the smallest lead, if that is later, and returns it.
    pub fn query(&self) -> VTime {
        // Acquire: pairs with the Release of the compare-and-exchange that put this value at the root; with the Release
        // below it says that a thread that sees a virtual time also sees the leads that it came from, and what their
        // owners did before: leases on flows need that (`flow/account.rs`, F1). The rest of this crate does not (M1 is
        // coherence of the root's word, the wheel has its fences).
        let root = Word(self.nodes[self.shape.root()].load(Ordering::Acquire));
        let mut now = self.global_vtime();
        if !root.is_occupied() {
            return now;
        }
        // `now` only places the 50 bits on the full circle; any value within REACH does, and it only moves forward.
        let smallest = root.lead_near(now);
        while now.is_before(smallest) {
            // Release: pairs with the Acquire in `global_vtime`, see above. Acquire on both outcomes: the same.
            let raised =
                self.global_vtime.compare_exchange_weak(now.raw(), smallest.raw(), Ordering::AcqRel, Ordering::Acquire);
            match raised {
                Ok(_) => return smallest,
                Err(actual) => now = VTime::from_raw(actual),
            }
        }
        now
    }

    /// Global virtual time, as the last `query` left it.
    #[inline]
    pub fn global_vtime(&self) -> VTime {
        // Acquire: pairs with the Release in `query`, see there.
        VTime::from_raw(self.global_vtime.load(Ordering::Acquire))
    }

    /// Lead that `hctx` shows, near global virtual time `now`; None if it is not present, or alone. Any thread may ask;
    /// the answer may be old.
    pub fn lead_of(&self, hctx: HctxId, now: VTime) -> Option<VTime> {
        // Relaxed: a number that decides which queue gets a token, and carries nothing.
        let leaf = Word(self.nodes[self.shape.leaf(hctx)].load(Ordering::Relaxed));
        leaf.is_occupied().then(|| leaf.lead_near(now))
    }

    /// Brings `lead`, which `leaf` shows now, to the root or to a covered node. See "Lowering".
    fn lower(&self, leaf: usize, lead: Word) {
        let mut node = leaf;
        while node != self.shape.root() {
            node = self.shape.parent(node);
            if self.lower_node(node, lead) {
                break;
            }
        }
        let end = node;
        node = self.shape.parent(leaf);
        while node != end {
            self.set_covered(node, lead);
            node = self.shape.parent(node);
        }
    }

    /// node := min(node, lead), with a new version. True if the walk may stop here.
    fn lower_node(&self, node: usize, lead: Word) -> bool {
        let word = &self.nodes[node];
        // Relaxed: only a first guess for the compare-and-exchange.
        let mut before = Word(word.load(Ordering::Relaxed));
        loop {
            let lowers = lead.is_below(before);
            let after = if lowers { before.next(lead, false) } else { before.next(before, before.is_covered()) };
            // Release: pairs with the Acquire load in `raise_node`. A raiser that starts from this word or a later one
            // also sees our leaf (or what we wrote to the child), and one that started before fails on the version.
            // Acquire: if we stop here because the node is covered, the ancestors that `set_covered`'s caller wrote
            // happened before, and so before whatever our caller does next.
            match word.compare_exchange_weak(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return !lowers && after.is_covered(),
                Err(actual) => before = Word(actual),
            }
        }
    }

    /// Marks `node` as covered if it shows `lead`, which our leaf still holds and which our walk brought to the root.
    fn set_covered(&self, node: usize, lead: Word) {
        let word = &self.nodes[node];
        // Relaxed: only a first guess for the compare-and-exchange.
        let mut before = Word(word.load(Ordering::Relaxed));
        while before.shows_same(lead) && !before.is_covered() {
            // Release: pairs with the Acquire in `lower_node`; carries our walk above this node.
            let after = before.next(before, true);
            match word.compare_exchange_weak(before.0, after.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(actual) => before = Word(actual),
            }
        }
    }

    /// `leaf` goes from `before` up to `after`. See "Raising".
    fn raise(&self, leaf: usize, before: Word, after: Word) {
        // Relaxed: seen through our compare-and-exchange on the parent, or through the fence in `raise_node`.
        self.nodes[leaf].store(after.0, Ordering::Relaxed);
        let mut child_had = before;
        // The leaf was not followed by a fence; each compare-and-exchange further up is.
        let mut fenced = false;
        let mut node = leaf;
        while node != self.shape.root() {
            node = self.shape.parent(node);
            match self.raise_node(node, child_had, fenced) {
                Some(node_had) => child_had = node_had,
                None => return,
            }
            fenced = true;
        }
    }

    /// Makes `node` show the smallest of its children, one of which has just gone up from `child_had`. Returns what
    /// the node showed before, None if it had not to be changed. `fenced`: a sequentially consistent fence stands
    /// between the change of the child and this call.
    fn raise_node(&self, node: usize, child_had: Word, mut fenced: bool) -> Option<Word> {
        let mut node_had: Option<Word> = None;
        loop {
            // Acquire: pairs with the Release of every compare-and-exchange on this word; the children that we read
            // below are at least as new as those that it was made from.
            let shown = Word(self.nodes[node].load(Ordering::Acquire));
            // If the node is below what our child had, it is not our child that holds it down: no need to read them
            // all.
            let held_by_another = node_had.is_none() && shown.is_below(child_had);
            let smallest = if held_by_another { shown } else { self.smallest_child(node) };
            if smallest.shows_same(shown) {
                if fenced {
                    return node_had;
                }
                // Pairs with the same fence of any other raiser. If ours is first in their total order, it sees our
                // child and does what has to be done; if its is first, our second look sees its child or its node.
                fence(Ordering::SeqCst);
                fenced = true;
                continue;
            }
            // `smallest` below the node: a thread is on its way up with it, or a version came round; either way right.
            let after = shown.next(smallest, shown.is_covered() && !smallest.is_below(shown));
            // Release: pairs with the Acquire above and in `query`; a thread that starts from this word sees children
            // no older than we did, and what our caller did before it came here (leases need that, see `query`). (M1
            // and M3 would hold without: the releases of lowering threads reach through any later read-modify-write,
            // and raisers have their fences.) Relaxed on failure: we start again.
            let swapped =
                self.nodes[node].compare_exchange(shown.0, after.0, Ordering::Release, Ordering::Relaxed).is_ok();
            if swapped {
                node_had = Some(node_had.map_or(shown, |had| if shown.is_below(had) { shown } else { had }));
                // Pairs with the fence of a raiser that stopped at this node because it was below what its child had,
                // while we held that child's old value in `smallest`: then we see the child's new value now. It also
                // stands between our change of this node and our look at its parent.
                fence(Ordering::SeqCst);
                fenced = true;
            }
        }
    }

    fn smallest_child(&self, node: usize) -> Word {
        let words = self.shape.children(node).iter().map(|&child| {
            // Relaxed: the Acquire on the node, or the fence, comes before; a newer value is always welcome.
            Word(self.nodes[child as usize].load(Ordering::Relaxed))
        });
        words.reduce(|a, b| if b.is_below(a) { b } else { a }).expect("an inner node has children")
    }
}

const GRAIN_SHIFT: u32 = 6;
const LEAD_BITS: u32 = 50;
const VERSION_BITS: u32 = 12;
const _: () = assert!(LEAD_BITS + VERSION_BITS + 2 == u64::BITS && LEAD_BITS + GRAIN_SHIFT <= u64::BITS);

/// A node's word: `lead` in the high bits, then `occupied`, `covered`, `version`. A leaf uses the first two.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;
    const COVERED: u64 = 1 << VERSION_BITS;
    const OCCUPIED: u64 = 1 << (VERSION_BITS + 1);
    const LEAD_SHIFT: u32 = VERSION_BITS + 2;
    /// No queue below. Not covered: the first to arrive covers it.
    const EMPTY: Word = Word(0);

    const fn leaf(lead: VTime) -> Word {
        // The shift drops the lead's high bits; `lead_near` brings them back.
        Word(((lead.raw() >> GRAIN_SHIFT) << Self::LEAD_SHIFT) | Self::OCCUPIED)
    }

    /// Word with the value of `shown` and the version after this one.
    const fn next(self, shown: Word, covered: bool) -> Word {
        let version = self.0.wrapping_add(1) & Self::VERSION_MASK;
        Word(shown.value() | if covered { Self::COVERED } else { 0 } | version)
    }

    /// Lead and `occupied`: what the node says about its subtree.
    const fn value(self) -> u64 {
        self.0 & !(Self::VERSION_MASK | Self::COVERED)
    }

    const fn is_occupied(self) -> bool {
        self.0 & Self::OCCUPIED != 0
    }

    const fn is_covered(self) -> bool {
        self.0 & Self::COVERED != 0
    }

    const fn shows_same(self, other: Word) -> bool {
        self.value() == other.value()
    }

    /// True if `self` shows an earlier lead than `other`; empty is later than any lead.
    const fn is_below(self, other: Word) -> bool {
        match (self.is_occupied(), other.is_occupied()) {
            // Both leads sit in the high bits, so the sign of the difference is that on the circle of 2^50.
            (true, true) => (self.value().wrapping_sub(other.value()) as i64) < 0,
            (occupied, other_occupied) => occupied && !other_occupied,
        }
    }

    /// The lead as a point of the full circle, given one within REACH of it.
    const fn lead_near(self, near: VTime) -> VTime {
        let grains_near = near.raw() >> GRAIN_SHIFT;
        let lead = self.0 >> Self::LEAD_SHIFT;
        // Sign-extend the difference from 50 bits.
        let unused = u64::BITS - LEAD_BITS;
        let difference = (lead.wrapping_sub(grains_near) << unused) as i64 >> unused;
        VTime::from_raw(grains_near.wrapping_add_signed(difference) << GRAIN_SHIFT)
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;
