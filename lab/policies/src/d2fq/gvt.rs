//! The global virtual time of `d2fq`: one word that names the flow which holds it.
//!
//! Answers: what is the smallest virtual time among the active flows, nearly? Source: D2FQ section 3.4 and Figure 9.
//!
//! # Shape
//! ```text
//!   63                                        17 16             0
//!  |  virtual time of the holder, 47 bits       |  holder, 17 bits |        units of virtual time; all ones: none
//! ```
//! The holder alone moves it up; any other flow takes it by being behind. A flow that leaves is taken off it, and then
//! the flow that completes a request first takes it. So it follows the minimum without ever looking at more than one
//! flow, and is now and then not the minimum: the holder overtakes another flow, or a flow that is ahead takes a word
//! without a holder. Either ends with the next completion of a flow that is behind.
//!
//! # What differs from the paper
//! * 17 bits of holder and not 16: 131,071 flows have names of their own, and more are refused, so no two can be taken
//!   for each other.
//! * The virtual time is that of the flow with the low 17 bits left out: a grain of 128 bytes at the default weight,
//!   where the thresholds are 64 KiB at the least. The word then covers the whole circle of [`VTime`] and compares as
//!   that does, by signed distance, and needs no shift. (A grain of 64 units as elsewhere would leave a circle of 2^53
//!   units, which a flow of weight 1 goes half round in 44 GB: ten seconds of a fast drive. A flow whose one request
//!   takes longer would seem to be ahead.) A flow of a large weight also writes the shared line less than once per
//!   request.
//!
//! # Quantum
//! As in the paper the holder writes the word with each of its completions, and two flows that are served alike take it
//! from each other all the time: with two workers on a device that completes at once, half of what a request costs is
//! the way of this line. With a quantum q the holder writes it only when it has got q ahead of it, and another flow
//! takes it only when it is q behind. So it is off by at most q, either way, and so are the gaps that the thresholds
//! are compared with: nothing in shares, which follow from differences, and q of 8 MiB in when control begins. A flow
//! that finds it without a holder takes it at once, as before.
//!
//! # Invariants
//! G1. It moves back only by a flow that is behind it and not its holder, which becomes its holder.
//! G2. After [`update`](GlobalVtime::update) of a flow, as long as no other thread calls anything, it is at most q
//!     above that flow's virtual time, and at most a grain and q below it if the flow holds it.
//! G3. A release changes the holder and not the time, and takes it off no flow that has completed something since it
//!     was found inactive: else a flow that is ahead could take global virtual time past one that has just come back.
//!
//! # Orderings
//! Relaxed where it is read for its value. A release must not find a flow inactive that an update shows to be active:
//! update releases, release acquires.
//!
//! # Cost
//! An update: a load and a comparison, and for the holder that moved by a grain or a flow that is behind a
//! compare-and-exchange.

use mqfq_sched::flow::FlowId;
use mqfq_sched::sync::CachePadded;
use mqfq_sched::sync::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use mqfq_sched::vtime::{VSpan, VTime};

/// Operations that `d2fq` needs of a global virtual time: [`Gvt`] ships, a comparison puts another in its place.
pub trait GlobalVtime: Send + Sync {
    /// The global virtual time. Called for each request.
    fn now(&self) -> VTime;

    /// A request of `flow` completed and its virtual time is `vtime` now: moves global virtual time if that follows
    /// from it. Returns how far `vtime` was ahead of it before, in units; less than 0 if behind. Called for each
    /// request.
    fn update(&self, flow: FlowId, vtime: VTime) -> i64;

    /// Called by each queue every quarter of the grace period at most, while it completes requests: whichever flow
    /// keeps global virtual time from moving and is inactive by `is_inactive` does not from here on, until its next
    /// `update`. That is the paper's release, on behalf of a flow that went away.
    fn release_inactive(&self, is_inactive: impl Fn(FlowId) -> bool);
}

/// Bits that name the holder.
const ID_BITS: u32 = 17;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
/// Holder field of a word without a holder.
const NO_HOLDER: u64 = ID_MASK;

/// Global virtual time as in Figure 9: a word with the holder and its virtual time.
pub struct Gvt {
    word: CachePadded<AtomicU64>,
    /// How much it must move by to be written, units; 0: at all.
    quantum: i64,
}

impl Gvt {
    /// Unit to which a virtual time is rounded down.
    pub const GRAIN: VSpan = VSpan(1 << ID_BITS);

    /// Most flows that have names of their own.
    pub const FLOWS_MAX: usize = NO_HOLDER as usize;

    /// Global virtual time without a holder, at `start` rounded down, and written as in the paper.
    pub fn new(start: VTime) -> Gvt {
        Gvt::with_quantum(start, VSpan(0))
    }

    /// Global virtual time written only when it would move by more than `quantum`, which is at most a quarter of the
    /// circle: see "Quantum".
    pub fn with_quantum(start: VTime, quantum: VSpan) -> Gvt {
        let word = CachePadded::new(AtomicU64::new(start.raw() & !ID_MASK | NO_HOLDER));
        Gvt { word, quantum: quantum.0 as i64 }
    }

    /// Flow that holds it.
    pub fn holder(&self) -> Option<FlowId> {
        // Relaxed: see the file's text.
        let id = self.word.load(Relaxed) & ID_MASK;
        (id != NO_HOLDER).then_some(FlowId(id as u32))
    }
}

impl GlobalVtime for Gvt {
    #[inline(always)]
    fn now(&self) -> VTime {
        // Relaxed: see the file's text.
        VTime::from_raw(self.word.load(Relaxed) & !ID_MASK)
    }

    #[inline(always)]
    fn update(&self, flow: FlowId, vtime: VTime) -> i64 {
        let my_id = u64::from(flow.0);
        debug_assert!(my_id < NO_HOLDER, "flow {my_id} has no name in a word of {ID_BITS} bits");
        let my_vt = vtime.raw() & !ID_MASK;
        // Relaxed: see the file's text.
        let mut old = self.word.load(Relaxed);
        loop {
            let old_id = old & ID_MASK;
            let ahead = my_vt.wrapping_sub(old & !ID_MASK) as i64;
            let moves = match old_id == my_id {
                true => ahead > self.quantum,
                false => ahead < -self.quantum || old_id == NO_HOLDER,
            };
            if !moves {
                return ahead;
            }
            // Release: pairs with `release_inactive`.
            match self.word.compare_exchange_weak(old, my_vt | my_id, Release, Relaxed) {
                Ok(_) => return ahead,
                Err(now) => old = now,
            }
        }
    }

    /// Figure 9's release, but tried once: if the word has moved since, its holder is back, or has none to give up.
    #[inline]
    fn release_inactive(&self, is_inactive: impl Fn(FlowId) -> bool) {
        // Acquire: pairs with `update`. The flow that moved the word to this value was active, and `is_inactive` sees
        // that.
        let old = self.word.load(Acquire);
        let holder = old & ID_MASK;
        if holder != NO_HOLDER && is_inactive(FlowId(holder as u32)) {
            // Relaxed: it publishes nothing, and a word that has moved is as good as one that was released.
            let _ = self.word.compare_exchange(old, old | NO_HOLDER, Relaxed, Relaxed);
        }
    }
}
