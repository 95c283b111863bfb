//! A bound on how long a runnable thread waits, whatever the tags say: rule 5 of [`crate::ideal`].
//!
//! Ours; the paper has no such rule. Shares alone give none: a thread that may run on one core waits for ever if a
//! program that can never have its share keeps that core, and 64 threads of weight 1 beside weight 100 wait for
//! seconds.
//!
//! # The rule
//! A thread that waits is on the *books* of one core: the one to which it is pinned, else the one with the fewest
//! threads on its books. It is *overdue* after W (`wait_ns`). While the first on a core's books is overdue, every
//! second request of that core is that thread's, and no request of that core is longer than s (`slice_ns`). A request
//! that runs when the first thread becomes overdue ends then, after the minimum slice. Requests are charged as always.
//!
//! # The bound
//! A thread that is the j-th on its core's books when it begins to wait runs within
//!
//! ```text
//!   W + max(s, l_min) + (2 j - 1) s,   which is  W + 2 j s  with  l_min <= s
//! ```
//!
//! *Why.* Let it begin to wait at t. From t + W on it is overdue, and so are the j - 1 before it, which began earlier;
//! those that come later are behind it. At t + W its core runs a request that is at most s long, or ends within l_min:
//! the core picks by t + W + max(s, l_min). That pick or the next one, s later, is of the first on the books, and then
//! every second one, 2 s apart, until it is the thread's turn. A core without a request has no thread on its books: a
//! waking thread takes an idle core first.
//!
//! # The price
//! Let X_f be the CPU time that f has by this rule in an interval. The bound at the head of `ideal.rs` becomes
//!
//! ```text
//!   | w_f/phi_f - w_g/phi_g |  <=  D (q/phi_f + q/phi_g) + X_f/phi_f + X_g/phi_g
//! ```
//!
//! by the same argument, with s the last time before t at which f was given a core *by tags*. Each thread is overdue at
//! most once in W and has s then, so a program with n threads that wait has at most n s in each W: with s = W/128, each
//! costs others at most 1/128 of a core, and all together half of the cores. A program whose share is at least that
//! costs nothing: it is charged, and so is given less by tags.

use crate::scheduler::{CoreId, ThreadId};
use std::collections::VecDeque;

/// Bounds of the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Wait after which a thread is overdue, ns: W.
    pub wait_ns: u64,
    /// Longest request of a core with an overdue thread, ns: s.
    pub slice_ns: u64,
}

/// The threads that wait, by the core that answers for each.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub patience: Patience,
    /// For each core, threads in the order in which they began to wait, and the times of that.
    waiting: Vec<VecDeque<(ThreadId, u64)>>,
    /// The core whose books have the thread.
    core_of: Vec<Option<CoreId>>,
    /// The last request of the core was an overdue thread's.
    was_overdue: Vec<bool>,
}

impl Books {
    pub fn new(patience: Patience, cores: usize, threads: usize) -> Books {
        Books {
            patience,
            waiting: vec![VecDeque::with_capacity(threads); cores],
            core_of: vec![None; threads],
            was_overdue: vec![false; cores],
        }
    }

    /// A thread begins to wait.
    pub fn join(&mut self, thread: ThreadId, pin: Option<CoreId>, now_ns: u64) {
        let fewest = || (0..self.waiting.len()).min_by_key(|core| self.waiting[*core].len()).unwrap_or(0);
        let core = pin.unwrap_or_else(|| CoreId(fewest() as u16));
        self.waiting[core.index()].push_back((thread, now_ns));
        self.core_of[thread.index()] = Some(core);
    }

    /// A thread waits no longer.
    pub fn leave(&mut self, thread: ThreadId) {
        let Some(core) = self.core_of[thread.index()].take() else { return };
        let books = &mut self.waiting[core.index()];
        if let Some(at) = books.iter().position(|(other, _)| *other == thread) {
            books.remove(at);
        }
    }

    /// The thread's place on the books that have it, from 1.
    pub fn place(&self, thread: ThreadId) -> Option<usize> {
        let books = &self.waiting[self.core_of[thread.index()]?.index()];
        Some(books.iter().position(|(other, _)| *other == thread)? + 1)
    }

    /// Time at which the first on the core's books is overdue.
    pub fn overdue_ns(&self, core: CoreId) -> Option<u64> {
        self.waiting[core.index()].front().map(|(_, since_ns)| since_ns + self.patience.wait_ns)
    }

    /// The core picks. Returns the overdue thread that is next by this rule, and the longest that the request may be.
    pub fn pick(&mut self, core: CoreId, now_ns: u64) -> (Option<ThreadId>, u64) {
        if self.overdue_ns(core).is_none_or(|overdue_ns| overdue_ns > now_ns) {
            self.was_overdue[core.index()] = false;
            return (None, u64::MAX);
        }
        let is_its_turn = !self.was_overdue[core.index()];
        self.was_overdue[core.index()] = is_its_turn;
        let first = self.waiting[core.index()].front().map(|(thread, _)| *thread);
        (first.filter(|_| is_its_turn), self.patience.slice_ns)
    }

    /// The core's last request was an overdue thread's.
    pub fn was_overdue(&self, core: CoreId) -> bool {
        self.was_overdue[core.index()]
    }
}
