//! Where does a thread wake, and when does it move? The only knowledge that CFS's cores have of each other.
//!
//! Sources: Lozi et al. section 2.2 and 3.3; "Scheduler Domains" in the kernel's documentation; P-MQFQ section 2.2: the
//! decaying number of runnable threads decides which core is busiest.
//!
//! Three occasions:
//!
//! * **Wake-up.** Its own core, or its waker's if that is less loaded; then an idle core of that core's socket, if
//!   there is one.
//! * **A core becomes idle.** It pulls one thread from the busiest queue that has one to give, in its socket first.
//! * **Every 4 ms** a core that runs something pulls from the busiest queue of its socket, and one core of the socket
//!   from that of the busiest socket, until half of the difference in load has moved. If an idle core exists while
//!   threads wait, it is woken.
//!
//! # CPU stacking
//! Nothing here stacks threads on purpose. Threads that block often leave their cores lightly loaded, and a waker has
//! just run on such a core: so the woken threads go to their wakers' cores, to fewer and fewer cores. Balancing undoes
//! that in part, slowly, because a thread that blocks often has little load to move.
//! `lab/sim/tests/all/cpu.rs` holds both.

use super::Cfs;
use crate::scheduler::{CoreId, Effects, Spent, ThreadId};
use std::ops::Range;

/// Cores among which a core looks for threads.
const SOCKET: usize = 0;
const MACHINE: usize = 1;

/// Balancing within a socket is this many times as frequent as in the machine. ASSUMED: documented is only that larger
/// domains balance less often.
const MACHINE_PERIODS: u64 = 4;

impl Cfs {
    /// The core for a waking thread.
    pub(super) fn core_for(&self, thread: ThreadId, waker: Option<CoreId>, now_ns: u64) -> CoreId {
        let entity = &self.threads[thread.index()];
        let allowed = &entity.allowed;
        let near = match waker {
            Some(waker) if self.options.wake_affine && waker != entity.core && allowed.contains(&waker.index()) => {
                // Its own load counts where it is, and would count there.
                let there = self.load(waker, now_ns) + entity.load.load(now_ns);
                if there < self.load(entity.core, now_ns) { waker } else { entity.core }
            }
            _ => entity.core,
        };
        let socket = self.machine.socket_of(near);
        let reach = socket.start.max(allowed.start)..socket.end.min(allowed.end);
        self.idle.next_from(near, reach).unwrap_or(near)
    }

    /// `core` has nothing to run.
    pub(super) fn pull_because_idle(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) {
        if self.crowded.is_empty() {
            return;
        }
        let socket = self.machine.socket_of(core);
        for range in [socket, 0..self.machine.cores()] {
            out.spent(core, Spent::Scan { cores: range.len() as u16 });
            // A core with no thread to give is as good as idle, so the next busiest is asked.
            let mut busiest: Vec<(u64, CoreId)> =
                self.crowded.within(range).map(|from| (self.load(from, now_ns), from)).collect();
            while let Some(at) = (0..busiest.len()).max_by_key(|at| (busiest[*at].0, std::cmp::Reverse(busiest[*at].1)))
            {
                let (_, from) = busiest.swap_remove(at);
                let movable = self.movable(from, core, now_ns).next();
                if let Some(thread) = movable {
                    self.pull(thread, core, now_ns, out);
                    return;
                }
            }
        }
    }

    /// A tick on `core`, which runs something.
    pub(super) fn balance(&mut self, core: CoreId, now_ns: u64, out: &mut dyn Effects) {
        let queue = &mut self.queues[core.index()];
        let mut due = [false; 2];
        for (level, periods) in [(SOCKET, 1), (MACHINE, MACHINE_PERIODS)] {
            if now_ns >= queue.balance_at_ns[level] {
                queue.balance_at_ns[level] = now_ns + periods * self.options.balance_ns;
                due[level] = true;
            }
        }
        let socket = self.machine.socket_of(core);
        if due[SOCKET] {
            if self.crowded.has(core)
                && let Some(idle) = self.idle.next_from(core, 0..self.machine.cores())
            {
                out.reschedule(idle);
            }
            self.pull_busiest(core, socket.clone(), now_ns, out);
        }
        if due[MACHINE] && socket.start == core.index() && self.machine.sockets() > 1 {
            let sockets = (0..self.machine.sockets()).map(|at| at * socket.len()..(at + 1) * socket.len());
            let load = |range: &Range<usize>| range.clone().map(|at| self.queues[at].load.load(now_ns)).sum::<u64>();
            let ours = load(&socket);
            let busiest = sockets
                .filter(|other| *other != socket)
                .map(|other| (load(&other), other))
                .max_by_key(|(load, other)| (*load, std::cmp::Reverse(other.start)));
            if let Some((theirs, range)) = busiest
                && theirs * 100 > ours * u64::from(self.options.imbalance_percent)
            {
                self.pull_busiest(core, range, now_ns, out);
            }
        }
    }

    /// Pulls half of the load that the busiest core of `range` has above `core`.
    fn pull_busiest(&mut self, core: CoreId, range: Range<usize>, now_ns: u64, out: &mut dyn Effects) {
        out.spent(core, Spent::Scan { cores: range.len() as u16 });
        let candidates = self.crowded.within(range).filter(|from| *from != core);
        let busiest = candidates
            .map(|from| (self.load(from, now_ns), from))
            .max_by_key(|(load, from)| (*load, std::cmp::Reverse(*from)));
        let Some((theirs, from)) = busiest else { return };
        let ours = self.load(core, now_ns);
        if theirs * 100 <= ours * u64::from(self.options.imbalance_percent) {
            return;
        }
        let mut left = (theirs - ours) / 2;
        let candidates: Vec<(u64, ThreadId)> = self
            .movable(from, core, now_ns)
            .map(|thread| (self.threads[thread.index()].load.load(now_ns), thread))
            .collect();
        for (load, thread) in candidates {
            // To move more than twice of what is missing would only turn it around.
            if left == 0 || load / 2 > left {
                continue;
            }
            left = left.saturating_sub(load.max(1));
            self.pull(thread, core, now_ns, out);
        }
    }

    /// The threads that wait on `from` and may go to `to`: the one that would wait longest first, and none that has
    /// just run.
    fn movable(&self, from: CoreId, to: CoreId, now_ns: u64) -> impl Iterator<Item = ThreadId> {
        let is_cold = move |thread: &ThreadId| {
            let stopped_ns = self.threads[thread.index()].stopped_ns;
            stopped_ns == 0 || now_ns >= stopped_ns + self.options.cache_hot_ns
        };
        self.waiting(from).rev().filter(move |thread| self.may_move(*thread, to, now_ns)).filter(is_cold)
    }

    fn pull(&mut self, thread: ThreadId, to: CoreId, now_ns: u64, out: &mut dyn Effects) {
        out.spent(to, Spent::DoubleLock);
        let vruntime = self.vruntime_on(thread, to);
        self.place(thread, to, vruntime, now_ns);
    }
}
