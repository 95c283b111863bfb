//! The hctxs that could dispatch at once if they had a token ("ready": not empty, not throttled, no token).
//!
//! Source: MQFQ section 3.3. The paper flags queues and searches a proximity matrix; here the flags are bits laid out
//! in the order of the topology, so that "nearest" is a few masks on one cache line and not a walk over a list.
//!
//! # Shape
//! One padded line of 16 words per socket (1,024 bits, all the hctxs a device can have). Within it the hctxs of one
//! core are neighbours:
//!
//! ```text
//! socket 0   [ core 0: hctx 0, 1 | core 1: hctx 2, 3 | ... ]
//! socket 1   [ core 0: hctx 8, 9 | ...                     ]
//! ```
//! A search from hctx 2 looks at its own bit, at bits 2..4 (its core), at the rest of the line (its socket), then at
//! the other sockets' lines in ring order.
//!
//! On a line of their own lie two more bits of each hctx:
//!
//! * *shallow*: it is marked, and its first request is the only one of its flow there. Where all flows have many
//!   requests waiting this line does not change, so that each completion may look at it.
//! * *called*: [`ReadySet::call_first`] has claimed it, and its worker has not picked since. Another queue, which gave
//!   it a token, waits meanwhile and does not take that token back.
//!
//! # Invariants
//! R1. A mark is claimed at most once: of all `take_nearest` and `unmark` calls exactly one clears a set bit.
//! R2. A mark stays until it is claimed.
//! R3. `mark` followed by a failed `acquire`, against a token release followed by a search: at least one of the two
//!     sees the other (see the table).
//!
//! # The race that the fences close
//! A queue finds no token and goes to sleep while a completion on another core finds no queue ready:
//!
//! | step | A: the queue without a token      | B: the completion                    |
//! |------|-----------------------------------|--------------------------------------|
//! |  1   | acquire: no token                 |                                      |
//! |  2   |                                   | search: none is ready                |
//! |  3   | mark, **fence**                   | token to the root, **fence**         |
//! |  4   | acquire again                     | search again                         |
//!
//! Each side writes, then reads what the other wrote: the store-buffer pattern. Without a sequentially consistent
//! fence between steps 3 and 4 on *both* sides, both reads may miss, the token lies at the root and the queue sleeps
//! for ever (I4). `mark` ends with its fence and `TokenTree::release_root` and `percolate` with theirs, so no caller
//! can leave one out.
//!
//! # Called beside a search
//! A gives a token to B, which it has called, and is about to sleep itself until B has picked:
//!
//! | step | A: gave B a token, has a request          | B: picks, and is about to sleep |
//! |------|-------------------------------------------|---------------------------------|
//! |  1   | marks itself, **fence**                   | answers, **fence**              |
//! |  2   | looks: B still called? then sleeps        | searches: A marked? then kicks  |
//!
//! As above, one of the two sees the other.
//!
//! # Cost
//! `mark`, `unmark`: one read-modify-write on the own socket's line. `take_nearest` with no queue ready: one read per
//! socket (per line). A claim: one read-modify-write on the line of the claimed hctx. A shallow mark costs one more on
//! the second line, and its end another; `call_first` two, and without a shallow mark one read per socket.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use crate::sync::CachePadded;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::topology::{HCTXS_MAX, HctxId, Topology};

/// Words per socket. (A model's few hctxs need one, and building atomics is most of what a model's run costs.)
const WORDS: usize = if cfg!(mqfq_loom) { 1 } else { HCTXS_MAX / 64 };

/// The set of ready hctxs of one device. See the module's text.
pub struct ReadySet {
    sockets: Box<[Socket]>,
    /// Place of each hctx.
    places: Box<[BitPlace]>,
}

/// One socket's bits and the hctx of each.
struct Socket {
    words: CachePadded<[AtomicU64; WORDS]>,
    due: CachePadded<[Due; WORDS]>,
    hctxs: Box<[HctxId]>,
}

/// Bits of 64 hctxs.
struct Due {
    shallow: AtomicU64,
    called: AtomicU64,
}

impl Due {
    fn new() -> Due {
        Due { shallow: AtomicU64::new(0), called: AtomicU64::new(0) }
    }
}

/// Place of an hctx's bit.
struct BitPlace {
    socket: usize,
    bit: usize,
    /// The bits of its core.
    core: Range<usize>,
}

impl ReadySet {
    /// An empty set for the hctxs of `topology`.
    #[allow(clippy::missing_panics_doc, reason = "each hctx has a place in its topology")]
    pub fn new(topology: &Topology) -> ReadySet {
        let by_place = topology.by_place();
        let mut places: Vec<Option<BitPlace>> = Vec::new();
        places.resize_with(topology.hctx_count(), || None);
        let mut sockets = Vec::new();
        for hctxs in by_place.chunk_by(|&a, &b| topology.place(a).socket == topology.place(b).socket) {
            let mut bit = 0;
            for core in hctxs.chunk_by(|&a, &b| topology.place(a) == topology.place(b)) {
                let range = bit..bit + core.len();
                for &hctx in core {
                    places[hctx.index()] = Some(BitPlace { socket: sockets.len(), bit, core: range.clone() });
                    bit += 1;
                }
            }
            let words = CachePadded::new(core::array::from_fn(|_| AtomicU64::new(0)));
            let due = CachePadded::new(core::array::from_fn(|_| Due::new()));
            sockets.push(Socket { words, due, hctxs: hctxs.into() });
        }
        let places = places.into_iter().map(|place| place.expect("every hctx has a place")).collect();
        ReadySet { sockets: sockets.into(), places }
    }

    /// Says that `hctx` would dispatch if it had a token. The caller must then try once more to get one.
    ///
    /// Ends with a sequentially consistent fence, so that "once more" sees every token whose releaser did not see the
    /// mark (the table above).
    pub fn mark(&self, hctx: HctxId) {
        let (word, bit) = self.word(hctx);
        // Relaxed: the bit carries nothing but itself, and the fence orders it before the reads that follow.
        word.fetch_or(bit, Ordering::Relaxed);
        // Pairs with the fences at the end of `TokenTree::release_root` and `TokenTree::percolate`, and in `answer`. If
        // this one is first in their total order, the releaser's next search sees the mark; if theirs is, our next
        // acquire sees the token.
        fence(Ordering::SeqCst);
    }

    /// Takes the mark of `hctx` back; true if it was there, false if it was claimed (a kick is on its way).
    pub fn unmark(&self, hctx: HctxId) -> bool {
        let (word, bit) = self.word(hctx);
        // Relaxed load: only the worker of `hctx` marks it, so if it reads 0 here, the mark was claimed or never made.
        // (A mark made by another worker in the meantime may stay and cost one kick for nothing.)
        // Relaxed read-modify-write: it is atomic, so one claimant wins; it carries nothing.
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Says that `hctx`, which marks itself next, has a first request that is the only one of its flow, or that it is
    /// no longer marked so. Only the worker of `hctx` may call this.
    pub fn set_shallow(&self, hctx: HctxId, is_shallow: bool) {
        let (due, bit) = self.due(hctx);
        // Relaxed: a hint, which others clear only with a claim.
        if (due.shallow.load(Ordering::Relaxed) & bit != 0) != is_shallow {
            // Relaxed: as above.
            let _ = match is_shallow {
                true => due.shallow.fetch_or(bit, Ordering::Relaxed),
                false => due.shallow.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }

    /// Claims the shallow hctx, other than `from`, for which `rank` is smallest, of those that have a rank; of equal
    /// ones the first found. It is called until its worker calls [`ReadySet::answer`]; the caller must see to it that
    /// the worker picks again. `None` also if another claimed it meanwhile.
    #[inline]
    pub fn call_first<R: PartialOrd>(&self, from: HctxId, rank: impl Fn(HctxId) -> Option<R>) -> Option<HctxId> {
        let mut first: Option<(R, HctxId)> = None;
        for socket in &self.sockets {
            for (number, due) in socket.due[..socket.hctxs.len().div_ceil(64)].iter().enumerate() {
                // Relaxed: a stale bit is found out by the claim below; a missed one is seen at the next completion.
                let mut shallow = due.shallow.load(Ordering::Relaxed);
                while shallow != 0 {
                    let hctx = socket.hctxs[number * 64 + shallow.trailing_zeros() as usize];
                    shallow &= shallow - 1;
                    let Some(rank) = (if hctx == from { None } else { rank(hctx) }) else { continue };
                    if first.as_ref().is_none_or(|(smallest, _)| rank < *smallest) {
                        first = Some((rank, hctx));
                    }
                }
            }
        }
        first.and_then(|(_, hctx)| self.call(hctx))
    }

    #[inline(never)]
    fn call(&self, hctx: HctxId) -> Option<HctxId> {
        let ((word, bit), (due, _)) = (self.word(hctx), self.due(hctx));
        // Relaxed: as in `claim`.
        let is_claimed = word.fetch_and(!bit, Ordering::Relaxed) & bit != 0;
        // Relaxed: a hint.
        due.shallow.fetch_and(!bit, Ordering::Relaxed);
        if !is_claimed {
            return None;
        }
        // Relaxed: the kick that follows makes its worker pick, and answer, after this.
        due.called.fetch_or(bit, Ordering::Relaxed);
        Some(hctx)
    }

    /// The worker of `hctx` picks: `hctx` is no longer called. Ends with a sequentially consistent fence if it was.
    pub fn answer(&self, hctx: HctxId) {
        let (due, bit) = self.due(hctx);
        // Relaxed: the caller of `call_first` has kicked us since, or will.
        if due.called.load(Ordering::Relaxed) & bit != 0 {
            // Relaxed: the fence orders it before the search that follows.
            due.called.fetch_and(!bit, Ordering::Relaxed);
            // Pairs with the fence in `mark` (the second table).
            fence(Ordering::SeqCst);
        }
    }

    /// True while `hctx` is called. A hint, unless [`ReadySet::mark`] stands before it.
    pub fn is_called(&self, hctx: HctxId) -> bool {
        let (due, bit) = self.due(hctx);
        // Relaxed: the fence in `mark` orders it.
        due.called.load(Ordering::Relaxed) & bit != 0
    }

    /// Claims the ready hctx nearest to `from` (itself first): clears its mark. The caller must see to it that the
    /// worker of that hctx picks again.
    pub fn take_nearest(&self, from: HctxId) -> Option<HctxId> {
        let place = &self.places[from.index()];
        let own = &self.sockets[place.socket];
        if !own.is_empty() {
            let (core, bit) = (&place.core, place.bit);
            // Ring order within a distance, so that not every worker asks for the same one.
            let nearest_first =
                [bit..bit + 1, bit + 1..core.end, core.start..bit, core.end..own.hctxs.len(), 0..core.start];
            if let Some(hctx) = nearest_first.into_iter().find_map(|bits| own.claim(bits)) {
                return Some(hctx);
            }
        }
        let (before, after) = self.sockets.split_at(place.socket);
        let others = after[1..].iter().chain(before);
        others.filter(|socket| !socket.is_empty()).find_map(|socket| socket.claim(0..socket.hctxs.len()))
    }

    /// True if a queue is marked. A hint, unless a sequentially consistent fence of the caller's stands before it.
    pub fn any(&self) -> bool {
        self.sockets.iter().any(|socket| !socket.is_empty())
    }

    fn due(&self, hctx: HctxId) -> (&Due, u64) {
        let place = &self.places[hctx.index()];
        (&self.sockets[place.socket].due[place.bit / 64], 1 << (place.bit % 64))
    }

    fn word(&self, hctx: HctxId) -> (&AtomicU64, u64) {
        let place = &self.places[hctx.index()];
        (&self.sockets[place.socket].words[place.bit / 64], 1 << (place.bit % 64))
    }
}

impl Socket {
    fn is_empty(&self) -> bool {
        // Relaxed: the caller's fence (see the table) is what makes a miss impossible where it would matter.
        self.words[..self.hctxs.len().div_ceil(64)].iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Claims the lowest set bit of `bits`.
    fn claim(&self, bits: Range<usize>) -> Option<HctxId> {
        let mut next = bits.start;
        while next < bits.end {
            let word_end = (next / 64 + 1) * 64;
            let mask = mask(next % 64, bits.end.min(word_end) - (next / 64) * 64);
            let word = &self.words[next / 64];
            // Relaxed: a stale bit is found out by the read-modify-write below; a missed one: see `is_empty`.
            let mut marked = word.load(Ordering::Relaxed) & mask;
            while marked != 0 {
                let bit = marked & marked.wrapping_neg();
                // Relaxed: atomicity alone decides which worker claims (R1). What the claimed queue needs to see, it
                // sees by the kick that its claimant sends, which synchronises by itself.
                let found = word.fetch_and(!bit, Ordering::Relaxed);
                if found & bit != 0 {
                    return Some(self.hctxs[(next / 64) * 64 + bit.trailing_zeros() as usize]);
                }
                marked = found & mask;
            }
            next = word_end;
        }
        None
    }
}

/// Bits `start..end` of a word, `end` at most 64.
fn mask(start: usize, end: usize) -> u64 {
    (u64::MAX << start) & (u64::MAX >> (64 - end))
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests;

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    //! Sequential tests, and agreement with a search by distance.

    use proptest::prelude::*;

    use super::*;
    use crate::topology::CpuPlace;

    #[test]
    fn the_nearest_is_claimed_first() {
        // 0 1 | 2 3 || 4 5 | 6 7: from 5 the order is 5, its core 4, its socket 6 7, the rest.
        let ready = ReadySet::new(&Topology::new(2, 2, 2));
        (0..8).for_each(|hctx| ready.mark(HctxId(hctx)));
        let claims: Vec<u16> = core::iter::from_fn(|| ready.take_nearest(HctxId(5))).map(|hctx| hctx.0).collect();
        assert_eq!(claims, [5, 4, 6, 7, 0, 1, 2, 3]);
        assert!(!ready.any());
    }

    #[test]
    fn a_mark_can_be_taken_back_once() {
        let ready = ReadySet::new(&Topology::flat(100));
        assert!(!ready.unmark(HctxId(77)));
        ready.mark(HctxId(77));
        ready.mark(HctxId(77));
        assert!(ready.any() && ready.unmark(HctxId(77)));
        assert!(!ready.any() && !ready.unmark(HctxId(77)));
    }

    #[test]
    fn the_shallow_mark_of_smallest_rank_is_called_until_its_worker_answers() {
        // Bits of two words on two sockets.
        let places: Vec<CpuPlace> = (0..160).map(|n| CpuPlace { socket: n / 80, core: n % 80 }).collect();
        let ready = ReadySet::new(&Topology::from_places(&places));
        let all = [3, 70, 90, 155].map(HctxId);
        all.iter().for_each(|hctx| {
            ready.set_shallow(*hctx, *hctx != HctxId(3));
            ready.mark(*hctx);
        });
        // Not the caller itself, and none without a rank.
        let rank = |hctx: HctxId| (hctx != HctxId(155)).then_some(200 - hctx.0);
        assert_eq!(ready.call_first(HctxId(90), rank), Some(HctxId(70)));
        assert!(ready.is_called(HctxId(70)) && !ready.unmark(HctxId(70)), "the mark is claimed");
        assert_eq!(ready.call_first(HctxId(70), rank), Some(HctxId(90)));
        assert_eq!(ready.call_first(HctxId(0), rank), None, "3 is marked and not shallow, and 155 has no rank");
        assert!(all.map(|hctx| ready.is_called(hctx)) == [false, true, true, false]);
        ready.answer(HctxId(70));
        assert!(!ready.is_called(HctxId(70)) && ready.is_called(HctxId(90)));
    }

    #[test]
    fn a_shallow_mark_that_another_has_claimed_is_not_called() {
        let ready = ReadySet::new(&Topology::flat(2));
        ready.set_shallow(HctxId(1), true);
        ready.mark(HctxId(1));
        assert_eq!(ready.take_nearest(HctxId(0)), Some(HctxId(1)));
        assert_eq!(ready.call_first(HctxId(0), |_| Some(0)), None);
        assert!(!ready.is_called(HctxId(1)));
    }

    #[test]
    fn masks_cover_whole_and_partial_words() {
        assert_eq!(mask(0, 64), u64::MAX);
        assert_eq!(mask(63, 64), 1 << 63);
        assert_eq!(mask(2, 5), 0b11100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Model: a set of numbers, and the smallest distance to one of them (at one distance any order is as near).
        #[test]
        fn it_agrees_with_a_search_by_distance(
            size in prop::sample::select(vec![1usize, 2, 16, 100, 1024]),
            scatter in any::<u64>(),
            ops in prop::collection::vec((any::<u16>(), 0..4), 1..200),
        ) {
            let places: Vec<CpuPlace> = (0..size as u64)
                .map(|i| (i + 1).wrapping_mul(scatter | 1) >> 20)
                .map(|bits| CpuPlace { socket: (bits % 3) as u16, core: (bits / 3 % 150) as u16 })
                .collect();
            let topology = Topology::from_places(&places);
            let ready = ReadySet::new(&topology);
            let mut model = std::collections::BTreeSet::new();
            for (number, kind) in ops {
                let hctx = HctxId(number % size as u16);
                match kind {
                    0 | 1 => {
                        ready.mark(hctx);
                        model.insert(hctx);
                    }
                    2 => prop_assert_eq!(ready.unmark(hctx), model.remove(&hctx)),
                    _ => {
                        let nearest = model.iter().map(|&other| topology.distance(hctx, other)).min();
                        let claimed = ready.take_nearest(hctx);
                        prop_assert_eq!(claimed.map(|claimed| topology.distance(hctx, claimed)), nearest);
                        if let Some(claimed) = claimed {
                            prop_assert!(model.remove(&claimed), "{:?} was not marked", claimed);
                        }
                    }
                }
                prop_assert_eq!(ready.any(), !model.is_empty());
            }
        }
    }
}
