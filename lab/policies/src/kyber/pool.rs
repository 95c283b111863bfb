//! Counted tokens that several workers take and wait for.
//!
//! Answers: may this worker have a token of this kind, and if not, which worker gives it one? Source: the tokens of
//! kyber's domains, which Linux keeps in a scalable bitmap each with a list of the hardware queues that wait. Here a
//! count and a set of bits.
//!
//! # Shape
//! ```text
//!   pool     out 16 of 16    waiting { hctx 2, hctx 5 }  last served 2
//!   gifts    hctx 5: one of this pool              (a word per hctx, ten bits per pool)
//! ```
//! A worker that gives a token back while another waits does not put it into the pool: it takes the mark of the next
//! waiter in ring order, puts the token on that hctx's gifts and kicks it. So a token that was waited for cannot be
//! taken by a passer-by, and of n waiters each is served within n gifts.
//!
//! # Invariants
//! K1. Tokens out = tokens that workers hold + gifts. A take leaves at most `limit` out. (A limit that was lowered
//!     below what is out is reached as tokens come back.)
//! K2. A mark is claimed at most once, and its claimer makes one gift to its hctx and kicks that.
//! K3. A worker that marked itself and then found no token sleeps on a promise: a worker that gives one back, or raises
//!     the limit, either sees the mark or had given it before the worker looked.
//!
//! # The race that the fences close (K3)
//! | step | A: finds no token             | B: gives one back                 |
//! |------|-------------------------------|-----------------------------------|
//! |  1   | take: all are out             | no worker waits                   |
//! |  2   | mark, **fence**               | one less is out, **fence**        |
//! |  3   | take again                    | does a worker wait? then take it  |
//! |      |                               | again, for the waiter             |
//! Of the two fences one comes first in their total order: if A's, then B sees the mark; if B's, then A sees the count.
//!
//! # Cost
//! A take is a compare-and-exchange on a line that all share; to give back is one more, a fence, and a look at the
//! marks.

use mqfq_sched::policy::Kick;
use mqfq_sched::sync::CachePadded;
use mqfq_sched::sync::{AtomicU32, AtomicU64, Ordering::Relaxed, fence};
use mqfq_sched::topology::HctxId;

/// Kinds of tokens: one per domain, asynchronous requests, the device.
pub(super) const POOLS: usize = 6;

/// Bits of a count of gifts: of one pool an hctx gets at most one by each of the other workers between two looks.
const GIFT_BITS: usize = 10;

const _: () = assert!(POOLS * GIFT_BITS <= 64 && mqfq_sched::topology::HCTXS_MAX <= 1 << GIFT_BITS);

/// All pools of one device.
pub(super) struct Pools {
    pools: [Pool; POOLS],
    /// By hctx.
    gifts: Box<[CachePadded<AtomicU64>]>,
}

struct Pool {
    out: CachePadded<AtomicU32>,
    limit: CachePadded<AtomicU32>,
    /// One bit per hctx.
    waiting: Box<[CachePadded<AtomicU64>]>,
    /// Hctx that was served last.
    last: CachePadded<AtomicU32>,
}

impl Pools {
    pub fn new(limits: [u32; POOLS], hctx_count: usize) -> Pools {
        let pool = |limit| Pool {
            out: CachePadded::new(AtomicU32::new(0)),
            limit: CachePadded::new(AtomicU32::new(limit)),
            waiting: (0..hctx_count.div_ceil(64)).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            last: CachePadded::new(AtomicU32::new(0)),
        };
        Pools { pools: limits.map(pool), gifts: (0..hctx_count).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Takes a token.
    pub fn take(&self, pool: usize) -> bool {
        let Pool { out, limit, .. } = &self.pools[pool];
        // Relaxed, all: the count carries nothing but itself; the fences of the table order it where it matters.
        let mut seen = out.load(Relaxed);
        while seen < limit.load(Relaxed) {
            match out.compare_exchange(seen, seen + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Gives a token back: to the next waiter, or into the pool.
    pub fn give_back(&self, pool: usize, from: HctxId, kick: &mut impl Kick) {
        let Pool { out, limit, .. } = &self.pools[pool];
        loop {
            // Relaxed: a lowered limit that is seen late lets one more go round.
            if out.load(Relaxed) <= limit.load(Relaxed)
                && let Some(hctx) = self.claim(pool)
            {
                return self.make_gift(pool, hctx, from, kick);
            }
            // Relaxed: ordered by the fence that follows.
            out.fetch_sub(1, Relaxed);
            // Pairs with the fence in `wait`.
            fence(mqfq_sched::sync::Ordering::SeqCst);
            if !self.is_waited_for(pool) || !self.take(pool) {
                return;
            }
        }
    }

    /// Changes how many may be out; waiters get what that adds.
    pub fn set_limit(&self, pool: usize, limit: u32, from: HctxId, kick: &mut impl Kick) {
        // Relaxed: ordered by the fence that follows.
        self.pools[pool].limit.store(limit, Relaxed);
        // Pairs with the fence in `wait`: as if tokens were given back.
        fence(mqfq_sched::sync::Ordering::SeqCst);
        while self.is_waited_for(pool) && self.take(pool) {
            self.give_back(pool, from, kick);
        }
    }

    /// Tokens that may be out.
    pub fn limit(&self, pool: usize) -> u32 {
        // Relaxed: a number that changes ten times a second at most.
        self.pools[pool].limit.load(Relaxed)
    }

    /// Tokens that are out. Exact while no worker is inside.
    pub fn out(&self, pool: usize) -> u32 {
        // Relaxed: as the limit.
        self.pools[pool].out.load(Relaxed)
    }

    /// Says that `hctx` waits for a token. It must then look once more.
    pub fn wait(&self, pool: usize, hctx: HctxId) {
        let (word, bit) = self.bit(pool, hctx);
        // Relaxed: the bit carries nothing but itself, and the fence orders it before the look that follows.
        word.fetch_or(bit, Relaxed);
        // Pairs with the fences in `give_back` and `set_limit`.
        fence(mqfq_sched::sync::Ordering::SeqCst);
    }

    /// `hctx` waits no longer. If its mark was claimed, a gift and a kick will come.
    pub fn leave(&self, pool: usize, hctx: HctxId) {
        let (word, bit) = self.bit(pool, hctx);
        // Relaxed: only this worker marks it; of threads that clear a bit, atomicity lets one win.
        if word.load(Relaxed) & bit != 0 {
            word.fetch_and(!bit, Relaxed);
        }
    }

    /// Takes the tokens that others gave to `hctx` since the last call, per pool.
    pub fn collect(&self, hctx: HctxId, mut each: impl FnMut(usize, u32)) {
        let gifts = &self.gifts[hctx.index()];
        // Relaxed, both: tokens carry nothing; the giver kicks after it gave, so a gift that is missed here is found
        // after that.
        if gifts.load(Relaxed) == 0 {
            return;
        }
        let gifts = gifts.swap(0, Relaxed);
        for pool in 0..POOLS {
            match gifts >> (pool * GIFT_BITS) & ((1 << GIFT_BITS) - 1) {
                0 => {}
                count => each(pool, count as u32),
            }
        }
    }

    fn make_gift(&self, pool: usize, to: HctxId, from: HctxId, kick: &mut impl Kick) {
        // Relaxed: the kick orders it; a worker's gift to itself it sees anyway.
        self.gifts[to.index()].fetch_add(1 << (pool * GIFT_BITS), Relaxed);
        // Our own worker picks after any operation that gives back.
        if to != from {
            kick.kick(to);
        }
    }

    fn is_waited_for(&self, pool: usize) -> bool {
        // Relaxed: ordered by the caller's fence.
        self.pools[pool].waiting.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Claims the mark of the next waiter in ring order.
    fn claim(&self, pool: usize) -> Option<HctxId> {
        let Pool { waiting, last, .. } = &self.pools[pool];
        if !self.is_waited_for(pool) {
            return None;
        }
        // Relaxed: where the ring begins decides the order and not which waiters are served.
        let start = last.load(Relaxed) as usize + 1;
        // The word of `start` twice: first what lies behind it, at last what lies before it.
        for turn in 0..=waiting.len() {
            let at = (start / 64 + turn) % waiting.len();
            let skip = if turn == 0 && start / 64 < waiting.len() { start % 64 } else { 0 };
            let mask = u64::MAX << skip;
            let word = &waiting[at];
            // Relaxed: the read-modify-write below finds a stale bit out.
            let mut marked = word.load(Relaxed) & mask;
            while marked != 0 {
                let bit = marked & marked.wrapping_neg();
                // Relaxed: atomicity alone decides which worker claims (K2).
                let found = word.fetch_and(!bit, Relaxed);
                if found & bit != 0 {
                    let hctx = (at * 64) as u32 + bit.trailing_zeros();
                    // Relaxed: as the load.
                    last.store(hctx, Relaxed);
                    return Some(HctxId(hctx as u16));
                }
                marked = found & mask;
            }
        }
        None
    }

    fn bit(&self, pool: usize, hctx: HctxId) -> (&AtomicU64, u64) {
        (&self.pools[pool].waiting[hctx.index() / 64], 1 << (hctx.index() % 64))
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    fn gifts(pools: &Pools, hctx: u16) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        pools.collect(HctxId(hctx), |pool, count| found.push((pool, count)));
        found
    }

    #[test]
    fn no_more_than_the_limit_are_out() {
        let pools = Pools::new([2; POOLS], 1);
        assert_eq!([0; 3].map(|_| pools.take(3)), [true, true, false]);
        pools.give_back(3, HctxId(0), &mut |_| panic!("no request waits"));
        assert_eq!((pools.take(3), pools.take(3), pools.out(3), pools.out(2)), (true, false, 2, 0));
    }

    #[test]
    fn a_token_that_is_waited_for_goes_to_the_next_in_the_ring() {
        // 130 hctxs: three words. The giver is hctx 1, and waits too.
        let pools = Pools::new([1; POOLS], 130);
        assert!(pools.take(0));
        let waiters = [1, 63, 64, 129];
        let mut served = Vec::new();
        for _ in 0..8 {
            waiters.iter().for_each(|&hctx| pools.wait(0, HctxId(hctx)));
            let mut kicked = Vec::new();
            pools.give_back(0, HctxId(1), &mut |hctx: HctxId| kicked.push(hctx.0));
            assert!(!pools.take(0), "it was not for whoever comes by");
            let taker = waiters.into_iter().find(|&hctx| gifts(&pools, hctx) == [(0, 1)]).expect("a gift");
            assert_eq!(kicked, if taker == 1 { vec![] } else { vec![taker] });
            served.push(taker);
        }
        assert_eq!(served, [1, 63, 64, 129, 1, 63, 64, 129]);
    }

    #[test]
    fn who_left_gets_nothing() {
        let pools = Pools::new([1; POOLS], 2);
        assert!(pools.take(5));
        pools.wait(5, HctxId(1));
        pools.leave(5, HctxId(1));
        pools.give_back(5, HctxId(0), &mut |_| panic!("no request waits"));
        assert_eq!((gifts(&pools, 1), pools.out(5)), (vec![], 0));
    }

    #[test]
    fn a_raised_limit_is_given_to_those_who_wait_and_a_lowered_one_swallows_tokens() {
        let pools = Pools::new([2; POOLS], 4);
        assert!(pools.take(1) && pools.take(1));
        (1..4).for_each(|hctx| pools.wait(1, HctxId(hctx)));
        pools.set_limit(1, 1, HctxId(0), &mut |_| panic!("there is less than before"));
        pools.give_back(1, HctxId(0), &mut |_| panic!("one more than allowed was out"));
        assert_eq!(pools.out(1), 1);
        let mut kicked = Vec::new();
        pools.set_limit(1, 3, HctxId(0), &mut |hctx: HctxId| kicked.push(hctx.0));
        assert_eq!((kicked, pools.out(1)), (vec![1, 2], 3));
        assert_eq!([1, 2, 3].map(|hctx| gifts(&pools, hctx).len()), [1, 1, 0]);
    }
}
