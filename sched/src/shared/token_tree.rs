//! Dispatch tokens, kept near the workers that use them.
//!
//! D tokens are all the permission there is to have requests on the device. Those not in use lie in the nodes of the
//! machine's tree, so that a worker that completes and dispatches its own requests works on a line of its own, and
//! only tokens that change hands travel, no farther up than their takers' common ancestor.
//!
//! Source: MQFQ section 3.2 and figure 3. Difference from the paper: a request may take several tokens (depth in
//! requests is not depth in work), by going into debt at the root.
//!
//! # Shape
//! ```text
//!                 root 2                  any hctx may take these; the only count that may be negative
//!               /        \
//!        socket 0: 0     socket 1: 1      any hctx of the socket
//!         /     \          /    \
//!    core: 0   core: 3    ...             any hctx of the core
//!     /  \      /  \
//!    0    1    0    0                     one hctx each; only its own worker touches it
//! ```
//! Levels with one child are left out.
//!
//! # Several units at once
//! Waiting until n tokens lie in one place starves: one-token requests take each as it comes, and two waiters can hold
//! halves for ever. So a request of n units gathers up to n from its own path; if that is not enough, it takes the
//! rest from the root *if that leaves the world with at least one free token to start from*, and the root goes
//! negative. The next release pays the root's debt first.
//!
//! # Invariants
//! T1. Tokens in the tree + units in `DispatchToken`s + units in the hands of a running call = D (I1).
//! T2. Only the root is ever negative, and while D stays, not below 1 - (units of the largest request). So at most D
//!     requests are on the device, and at most D + units_max - 1 units (I2). For a D that changes, see below.
//! T3. `acquire` of any size succeeds if the own path holds a token and the root owes nothing: a big request needs no
//!     more luck than a small one, and two of them cannot wait for each other's halves.
//! T4. After `percolate(h)` with no concurrent release to it, the path of h below the root holds nothing.
//!
//! # Another D
//! `set_depth` adds the difference at the root, in one step: more tokens lie there for workers that wait, or the root
//! owes them. D = 100, all out, becomes 64: the root holds -36, the next 36 units that come back pay, and 64 are out. A
//! debt does not call tokens back that lie free at a leaf; their worker may use each once, and its release pays. So T1
//! holds with the D of now, and T2 with the largest D since the root last owed nothing: units on the device are at most
//! that D + units_max - 1.
//!
//! # Races
//! *Two `acquire`s, one token.* The count of an inner node changes by compare-and-exchange: one gets it. A leaf is its
//! worker's own: no other worker reads it, save for reports, and it changes by a plain load and store.
//!
//! *`percolate` beside `acquire`.* While the token is in the hand of the one, the other sees it nowhere. It marks
//! itself ready, fences and looks again; `percolate` and `release_root` fence after they added, and their caller then
//! searches the ready set. One of the two finds the other: the table is in `ready_set.rs`.
//!
//! *`set_depth` beside all of them.* It is an addition to the root, as a release to it is: what it adds meets the
//! workers that look for it in the ready set by the same fence, and what it takes meets a payer as any debt does. Two
//! calls add up.
//!
//! *Debt beside `release_local`.* The releaser may not see the debt and puts its token at its leaf. That worker uses
//! it, and its next release pays; or it goes to sleep and percolates, which pays too. T2 counts both.
//!
//! # Cost
//! `acquire` and `release_local` on the common path: a load and a store of the own leaf, no read-modify-write, plus,
//! for the release, one read of the root's line (it changes only when tokens pass through the root). A level up is a
//! read-modify-write on a line shared by the core, the socket, the machine. `percolate`: one read per level, one
//! read-modify-write per level that holds tokens, one on the root if there were any.
//!
//! # Several tokens at once
//! A queue that has n requests to dispatch may take tokens for all of them with the read-modify-write that it needs for
//! the first (`spare` in [`TokenTree::acquire_batch`]); tokens that it does not need yet lie at its leaf. They are free
//! tokens on the path of an awake worker, as the ones that `release_local` puts there, and go the same ways.

use crate::sync::{AtomicI64, AtomicU32, CachePadded, Ordering, fence};
use crate::topology::{HctxId, Topology, TreeShape};
use alloc::boxed::Box;

/// The free dispatch tokens of one device. See the module's text.
pub struct TokenTree {
    shape: TreeShape,
    /// Tokens per node other than the root, leaves first, as in `shape`.
    counts: Box<[CachePadded<AtomicI64>]>,
    root: CachePadded<AtomicI64>,
    /// D. Only `set_depth` writes it; the path does not read it.
    depth: AtomicU32,
    /// Units that one request may take at most.
    units_max: u32,
}

impl TokenTree {
    /// `depth` tokens (D), at least 1, all at the root.
    ///
    /// # Panics
    /// If `depth` is 0.
    pub fn new(topology: &Topology, depth: u32) -> TokenTree {
        TokenTree::for_requests(topology, depth, depth)
    }

    /// As [`TokenTree::new`], for requests that take up to `units_max` units, which may be more than D.
    ///
    /// # Panics
    /// If `depth` is 0.
    pub fn for_requests(topology: &Topology, depth: u32, units_max: u32) -> TokenTree {
        assert!(depth >= 1, "with a depth of {depth} nothing would ever be dispatched");
        // No limit on the fan-out: no operation reads all the children of a node.
        let shape = TreeShape::new(topology, usize::MAX);
        // The root is the last node.
        let counts = (0..shape.root()).map(|_| CachePadded::new(AtomicI64::new(0))).collect();
        let root = CachePadded::new(AtomicI64::new(i64::from(depth)));
        TokenTree { shape, counts, root, depth: AtomicU32::new(depth), units_max }
    }

    /// The depth D, in tokens.
    pub fn depth(&self) -> u32 {
        // Relaxed: a number for reports; what it permits lies in the tree.
        self.depth.load(Ordering::Relaxed)
    }

    /// Changes D, 1 or more, to hold at once for what is dispatched from now on; see "Another D". The caller must then
    /// search the ready set if there are tokens at the root; a sequentially consistent fence stands between.
    ///
    /// # Panics
    /// If `depth` is 0.
    pub fn set_depth(&self, depth: u32) {
        assert!(depth >= 1, "with a depth of {depth} nothing would ever be dispatched");
        // Relaxed: a number for reports. A swap, so that two changes at once come to the sum of their differences.
        let before = self.depth.swap(depth, Ordering::Relaxed);
        // Release: as in `release_to`. New tokens had no holder, but their takers see what the caller did.
        self.root.fetch_add(i64::from(depth) - i64::from(before), Ordering::Release);
        // Pairs with the fence in `ReadySet::mark`.
        fence(Ordering::SeqCst);
    }

    /// Takes `units` tokens (1..=`units_max`, which is D unless said otherwise) for a request of `hctx`: from its
    /// leaf, core, socket, the root, in this order. None if there are none on that path (or, for more than one unit,
    /// if they do not leave the root above 0 before the debt).
    ///
    /// Only the owner of `hctx` may call this, and whatever else adds to or takes from its leaf: `acquire_batch`,
    /// `release_local`, `percolate`.
    ///
    /// # Panics
    /// If `units` is 0 or more than a request may take.
    pub fn acquire(&self, hctx: HctxId, units: u32) -> Option<DispatchToken> {
        self.acquire_batch(hctx, units, 0)
    }

    /// As [`TokenTree::acquire`], from the own leaf alone: the common path, without a shared line.
    #[inline]
    pub fn acquire_own(&self, hctx: HctxId, units: u32) -> Option<DispatchToken> {
        let leaf = self.leaf(hctx.index());
        let left = leaf.get() - i64::from(units);
        if left < 0 {
            return None;
        }
        leaf.set(left);
        Some(DispatchToken::new(units))
    }

    /// As [`TokenTree::acquire`]. If the leaf does not hold enough, up to `spare` tokens more are taken from where the
    /// rest is found, and left at the leaf. A debt is never made for them.
    ///
    /// # Panics
    /// If `units` is 0 or more than a request may take.
    pub fn acquire_batch(&self, hctx: HctxId, units: u32, spare: u32) -> Option<DispatchToken> {
        assert!((1..=self.units_max).contains(&units), "{units} units of a depth of {}", self.depth());
        if let Some(token) = self.acquire_own(hctx, units) {
            return Some(token);
        }
        let (leaf, root) = (self.leaf(self.shape.leaf(hctx)), self.shape.root());
        let (wanted, spare) = (i64::from(units), i64::from(spare));
        let mut hand = leaf.take();
        let mut node = self.shape.parent(hctx.index());
        while node != root && hand < wanted {
            hand += self.take_up_to(node, wanted - hand + spare);
            node = self.shape.parent(node);
        }
        if hand < wanted {
            hand = self.take_rest_from_root(wanted, hand, spare)?;
        }
        if hand > wanted {
            leaf.set(hand - wanted);
        }
        Some(DispatchToken::new(units))
    }

    /// Gives a token back to the leaf of `hctx`, for its own next request; a debt of the root is paid first. Returns
    /// how many units the leaf got.
    #[inline]
    pub fn release_local(&self, hctx: HctxId, token: DispatchToken) -> u32 {
        let mut left = i64::from(token.into_units());
        if self.root_units() < 0 {
            left -= self.pay_debt(left);
        }
        let leaf = self.leaf(hctx.index());
        leaf.set(leaf.get() + left);
        left as u32
    }

    /// Gives a token of `from` back for `to`: to the lowest node that both can take from; a debt of the root is paid
    /// first. Returns how many units that node got. The caller must kick `to` (also if the answer is 0: it claimed it).
    pub fn release_toward(&self, from: HctxId, to: HctxId, token: DispatchToken) -> u32 {
        if from == to {
            return self.release_local(from, token);
        }
        self.release_to(self.shape.lowest_common_ancestor(from, to), token)
    }

    /// Gives a token back for any queue. The caller must then search the ready set; a sequentially consistent fence
    /// stands between (table in `ready_set.rs`).
    pub fn release_root(&self, token: DispatchToken) {
        let units = i64::from(token.into_units());
        // Release: as in `release_to`.
        self.root.fetch_add(units, Ordering::Release);
        // Pairs with the fence in `ReadySet::mark`.
        fence(Ordering::SeqCst);
    }

    /// Moves all tokens on the path of `hctx` to the root and returns how many. For a queue that goes to sleep: no
    /// other worker may be awake to use them (I4). If the answer is not 0, the caller must search the ready set; a
    /// sequentially consistent fence stands between.
    pub fn percolate(&self, hctx: HctxId) -> u64 {
        let root = self.shape.root();
        let mut hand = self.leaf(self.shape.leaf(hctx)).take();
        let mut node = self.shape.parent(hctx.index());
        while node != root {
            hand += self.take_up_to(node, i64::MAX);
            node = self.shape.parent(node);
        }
        if hand > 0 {
            // Release: as in `release_to`; the Acquire with which we took passes on what the releasers gave.
            self.root.fetch_add(hand, Ordering::Release);
            // Pairs with the fence in `ReadySet::mark`.
            fence(Ordering::SeqCst);
        }
        hand as u64
    }

    /// Tokens at the root; negative is a debt. A hint, unless a sequentially consistent fence of the caller's stands
    /// before it.
    #[inline]
    pub fn root_units(&self) -> i64 {
        // Relaxed: a count without content; `acquire` decides.
        self.root.load(Ordering::Relaxed)
    }

    /// Tokens in the whole tree. Exact only while no thread calls anything else; for tests and reports.
    pub fn total_units(&self) -> i64 {
        // Relaxed: as `root_units`.
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<i64>() + self.root_units()
    }

    #[inline]
    fn leaf(&self, leaf: usize) -> Leaf<'_> {
        debug_assert!(self.shape.is_leaf(leaf), "node {leaf} is no hctx's");
        Leaf(&self.counts[leaf])
    }

    /// Takes what `node` (neither a leaf nor the root) has, at most `wanted`.
    fn take_up_to(&self, node: usize, wanted: i64) -> i64 {
        let count = &self.counts[node];
        // Relaxed: a count of 0 missed or seen too late is the caller's race with the releaser, closed by the fences
        // of the ready set; anything else is checked by the compare-and-exchange.
        let mut have = count.load(Ordering::Relaxed);
        while have > 0 {
            let taken = have.min(wanted);
            // Acquire: pairs with the Release in `release_to`. A token's holder sees everything its last holder did,
            // such as reaping the request that held it.
            match count.compare_exchange_weak(have, have - taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(actual) => have = actual,
            }
        }
        0
    }

    /// With `hand` tokens gathered, takes the rest of `wanted` from the root, and up to `spare` more if they are there.
    /// Returns how many are in hand then; None if root and hand together hold no free token: then the hand's tokens are
    /// at the root.
    fn take_rest_from_root(&self, wanted: i64, hand: i64, spare: i64) -> Option<i64> {
        let root = &self.root;
        // Relaxed: as in `take_up_to`.
        let mut have = root.load(Ordering::Relaxed);
        loop {
            let enough = have + hand > 0;
            if !enough && hand == 0 {
                return None;
            }
            let (taken, left) = if enough {
                let left = have + hand - wanted;
                let spare = spare.min(left).max(0);
                (Some(wanted + spare), left - spare)
            } else {
                (None, have + hand)
            };
            // Acquire: as in `take_up_to`. Release: if our hand goes into the debt, as in `release_to`.
            match root.compare_exchange_weak(have, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(actual) => have = actual,
            }
        }
    }

    fn count(&self, node: usize) -> &AtomicI64 {
        // The root is the last node, and stands apart.
        self.counts.get(node).unwrap_or(&self.root)
    }

    fn release_to(&self, node: usize, token: DispatchToken) -> u32 {
        let units = i64::from(token.into_units());
        let left = units - self.pay_debt(units);
        if left > 0 {
            // Release: pairs with the Acquire of its taker. No fence: the caller kicks the queue it gave the token to,
            // which need not find it by a search.
            self.count(node).fetch_add(left, Ordering::Release);
        }
        left as u32
    }

    /// Pays the root's debt with up to `units`; returns how many that took.
    fn pay_debt(&self, units: i64) -> i64 {
        let root = &self.root;
        // Relaxed: see "debt and release_local" in the table of races.
        let mut have = root.load(Ordering::Relaxed);
        while have < 0 {
            let paid = units.min(-have);
            // Release: as in `release_to`.
            match root.compare_exchange_weak(have, have + paid, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return paid,
                Err(actual) => have = actual,
            }
        }
        0
    }
}

/// The count of an hctx, in the hands of its owner.
#[derive(Clone, Copy)]
struct Leaf<'a>(&'a AtomicI64);

impl Leaf<'_> {
    #[inline]
    fn get(self) -> i64 {
        // Relaxed: no other worker writes our leaf.
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(self, units: i64) {
        // Relaxed: no other worker reads our leaf, save `total_units`, which makes no promise.
        self.0.store(units, Ordering::Relaxed);
    }

    fn take(self) -> i64 {
        let units = self.get();
        if units > 0 {
            self.set(0);
        }
        units
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;
#[cfg(all(test, not(mqfq_loom)))]
mod tests;

// A unit of depth that is held: where it comes from, and that it goes back.

/// Permission for requests on the device (the paper's "slot"): must go back by
/// [`Policy::complete`](crate::policy::Policy::complete).
///
/// Holding one means that its units are counted out of the depth D. A policy without a depth hands out 0 units.
/// Dropping one that holds units is a bug: debug builds panic.
#[must_use = "a dispatch token that is not given back shrinks the device's depth for ever"]
#[derive(PartialEq, Eq, Debug)]
pub struct DispatchToken {
    units: u32,
}

impl DispatchToken {
    /// A token of `units` units of depth. Only for policies and their tests: the units must come out of a count.
    #[inline]
    pub const fn new(units: u32) -> Self {
        DispatchToken { units }
    }

    /// Units of depth held.
    #[inline]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Gives the units back to the caller, who must put them into a count.
    #[inline]
    pub fn into_units(mut self) -> u32 {
        core::mem::take(&mut self.units)
    }
}

impl Drop for DispatchToken {
    fn drop(&mut self) {
        debug_assert!(
            self.units == 0 || crate::sync::is_unwinding(),
            "a dispatch token of {} units was lost",
            self.units
        );
    }
}
