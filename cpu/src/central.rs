//! One queue for all cores: which request is next, and what does its program owe afterwards?
//!
//! Source: P-MQFQ sections 2.1 and 3; what [`crate::ideal`] and [`crate::fair_queue`] have in common. A *request* is a
//! thread's wish for one quantum on a core.
//!
//! # Where the paper is silent: the finish tag of a program whose threads still run
//! A request begins at its program's last finish tag (equation 2, rule 2), and a finish tag needs a length (equation
//! 1). A network has packets of known length, one at a time. Here several requests of one program are in service at
//! once, for an unknown time. Three readings are possible:
//!
//! * *The finish tag of the request that ended last.* Then requests that arrive together share a start tag, each
//!   thread's tags follow its own service only, and a program with n threads gets n times what a program with one gets.
//!   That is fairness between threads, which section 1 sets out to replace
//!   (`read_by_the_letter_a_program_of_n_threads_gets_n_shares` in cpu/tests/all/bound.rs).
//! * *The sum of what its requests used so far.* Fair in the long run, but a burst of n requests still shares one start
//!   tag.
//! * *A chain*: our choice. A request that is put on a core is charged at once for all that it may run, so the next one
//!   of its program begins where it would end. When it ends after less, the unused part is given back, and all tags
//!   computed from its finish tag, those of the program's later requests in service and its last finish tag, move back
//!   by as much. For a request that nothing of its program follows this is rule 4 to the letter: its finish tag is its
//!   start tag plus what it ran over the weight.
//!
//! ```text
//!   three in service, at most 10 each     the second ends after 4: the chain closes up
//!    0        10        20        30       0        10   14        24
//!    |---a----|----b----|----c----|F       |---a----|-b--|----c----|F
//! ```
//!
//! A start tag is therefore computed when the request comes to the head of its program, and queued requests need no
//! tags of their own. In a chain no start tag in service is beyond the last finish tag; so of rule 2's maximum the
//! finish tag is always the larger one.
//!
//! A request may have a *floor*: the virtual time at its arrival, below which it does not begin. A floor that held a
//! request up is where a correction of those before it ends (`slack`).
//!
//! # Other choices
//! * Ties (section 2.1: "broken arbitrarily"): the request that arrived first.
//! * With nothing in service virtual time is the largest finish tag, as in start-time fair queueing: a program that
//!   used an idle machine owes nothing.
//! * A thread that is stopped before its quantum is over asks for the rest of it, and goes before its siblings, as
//!   before. That starves none of them, for the quantum is not renewed until it is used up. Only then, and after it
//!   blocked, does the thread go behind them.
//!
//! # Cost
//! Arrival and dispatch: logarithmic in the programs. End: also linear in the program's requests in service. Memory is
//! taken in construction alone, for as many threads as there are.

use crate::order::Order;
use crate::scheduler::{CoreId, Machine, ProgramId, Tasks, ThreadId};
use crate::vtime::{Rate, VSpan, VTime};
use std::array::from_fn;
use std::collections::VecDeque;

/// A queue with `CHAINS` tags per request, of which the first decides and the next ones break its ties.
#[derive(Clone, Debug)]
pub(crate) struct CentralQueue<const CHAINS: usize> {
    programs: Vec<Program<CHAINS>>,
    /// Program of each thread.
    program_of: Vec<ProgramId>,
    /// The core to which a thread is pinned. Empty: no thread is.
    pins: Vec<Option<CoreId>>,
    /// Request of each core.
    in_service: Vec<Option<InService<CHAINS>>>,
    /// The core on which each thread ran last.
    last_core: Vec<Option<CoreId>>,
    /// Most that each thread's next request is charged ahead, ns.
    charge_ns: Vec<u64>,
    /// Cores with a reschedule pending.
    pub asked: Vec<bool>,
    order: Order<Key<CHAINS>>,
    /// Programs by their smallest start tag of the last chain, waiting or in service; kept only if there are several
    /// chains.
    outstanding: Order<VTime>,
    /// The largest finish tags of programs that had nothing left in service.
    served: [VTime; CHAINS],
    arrivals: u64,
    dispatches: u64,
    waiting: usize,
}

type Key<const CHAINS: usize> = ([VTime; CHAINS], u64);

#[derive(Clone, Debug)]
struct Program<const CHAINS: usize> {
    rate: Rate,
    finish: [VTime; CHAINS],
    waiting: VecDeque<Waiting<CHAINS>>,
    /// Sum of what all waiting requests may run, ns.
    waiting_ns: u64,
    /// Its requests in service, in the order of their dispatch.
    first: Option<CoreId>,
    last: Option<CoreId>,
    running: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiting<const CHAINS: usize> {
    thread: ThreadId,
    floor: [VTime; CHAINS],
    left_ns: u64,
    arrival: u64,
}

/// A request on a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InService<const CHAINS: usize> {
    pub thread: ThreadId,
    pub program: ProgramId,
    pub start: [VTime; CHAINS],
    pub since_ns: u64,
    /// Longest run, ns.
    pub granted_ns: u64,
    /// The part of it that was charged ahead, ns.
    pub charged_ns: u64,
    /// Rest of its quantum when it began; not less than the granted part.
    pub left_ns: u64,
    /// Number of the dispatch.
    pub dispatch: u64,
    /// The program's next request in service.
    next: Option<CoreId>,
    /// Distance by which the tag after it may still move back.
    slack: [VSpan; CHAINS],
}

impl<const CHAINS: usize> CentralQueue<CHAINS> {
    /// An empty queue, with nothing in service.
    ///
    /// # Errors
    /// One sentence: one queue for all cores cannot keep a thread on one of them.
    pub fn new(machine: &Machine, tasks: &Tasks) -> Result<CentralQueue<CHAINS>, String> {
        let threads = || (0..tasks.threads() as u32).map(ThreadId);
        if let Some((thread, pin)) = threads().find_map(|thread| Some((thread, tasks.pin(thread)?))) {
            return Err(format!(
                "thread {} is pinned to core {}, and a scheduler with one queue for all cores allows no pinned thread",
                thread.0, pin.0
            ));
        }
        Ok(CentralQueue::with_pins(machine, tasks))
    }

    /// An empty queue, with nothing in service. Where a thread is pinned, a core looks at all programs for the first
    /// thread that it may run.
    pub fn with_pins(machine: &Machine, tasks: &Tasks) -> CentralQueue<CHAINS> {
        let threads = || (0..tasks.threads() as u32).map(ThreadId);
        let pins: Vec<Option<CoreId>> = threads().map(|thread| tasks.pin(thread)).collect();
        let has_pins = pins.iter().any(Option::is_some);
        let programs = (0..tasks.programs() as u16).map(ProgramId).map(|program| Program {
            rate: Rate::of(tasks.weight(program)),
            finish: [VTime::ZERO; CHAINS],
            waiting: VecDeque::with_capacity(tasks.threads_of(program).len()),
            waiting_ns: 0,
            first: None,
            last: None,
            running: 0,
        });
        CentralQueue {
            programs: programs.collect(),
            program_of: threads().map(|thread| tasks.program_of(thread)).collect(),
            pins: if has_pins { pins } else { Vec::new() },
            in_service: vec![None; machine.cores()],
            last_core: vec![None; tasks.threads()],
            charge_ns: vec![u64::MAX; tasks.threads()],
            asked: vec![false; machine.cores()],
            order: Order::new(tasks.programs()),
            outstanding: Order::new(tasks.programs()),
            served: [VTime::ZERO; CHAINS],
            arrivals: 0,
            dispatches: 0,
            waiting: 0,
        }
    }

    pub fn program_of(&self, thread: ThreadId) -> ProgramId {
        self.program_of[thread.index()]
    }

    pub fn rate(&self, program: ProgramId) -> Rate {
        self.programs[program.index()].rate
    }

    /// The program's last finish tags.
    pub fn finish(&self, program: ProgramId) -> [VTime; CHAINS] {
        self.programs[program.index()].finish
    }

    /// The program has nothing waiting or in service: it is not backlogged in the words of rule 2.
    pub fn is_idle(&self, program: ProgramId) -> bool {
        let program = &self.programs[program.index()];
        program.running == 0 && program.waiting.is_empty()
    }

    /// The thread has a request that waits.
    pub fn is_waiting(&self, thread: ThreadId) -> bool {
        self.programs[self.program_of(thread).index()].waiting.iter().any(|waiting| waiting.thread == thread)
    }

    /// Requests that wait, of all programs.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The thread that would be dispatched now, and its start tag in the chain that decides.
    pub fn first(&self) -> Option<(ThreadId, VTime)> {
        let ((start, _), program) = self.order.first()?;
        Some((self.programs[program].waiting.front()?.thread, start[0]))
    }

    /// The core to which the thread is pinned.
    pub fn pin(&self, thread: ThreadId) -> Option<CoreId> {
        self.pins.get(thread.index()).copied().flatten()
    }

    fn may_run(&self, thread: ThreadId, core: CoreId) -> bool {
        self.pin(thread).is_none_or(|pin| pin == core)
    }

    /// As [`CentralQueue::first`], of the threads that may run on that core.
    pub fn first_on(&self, core: CoreId) -> Option<(ThreadId, VTime)> {
        if self.pins.is_empty() {
            return self.first();
        }
        let of = |program: &Program<CHAINS>| {
            let head = program.waiting.iter().find(|head| self.may_run(head.thread, core))?;
            Some((larger(program.finish, head.floor), head.arrival, head.thread))
        };
        let first = self.programs.iter().filter_map(of).min_by_key(|(start, arrival, _)| (*start, *arrival));
        first.map(|(start, _, thread)| (thread, start[0]))
    }

    /// The request on that core.
    pub fn on(&self, core: CoreId) -> Option<&InService<CHAINS>> {
        self.in_service[core.index()].as_ref()
    }

    /// All requests in service.
    pub fn all_in_service(&self) -> impl Iterator<Item = (CoreId, &InService<CHAINS>)> {
        self.in_service.iter().enumerate().filter_map(|(at, on)| Some((CoreId(at as u16), on.as_ref()?)))
    }

    /// The largest start tag in service of that chain, or where it stays while nothing is.
    pub fn largest_in_service(&self, chain: usize) -> VTime {
        self.all_in_service().map(|(_, on)| on.start[chain]).max().unwrap_or(self.served[chain])
    }

    /// The smallest start tag of the last chain of all that waits or is in service, or where it stays while there is
    /// nothing. Kept only with several chains.
    pub fn smallest_outstanding(&self) -> VTime {
        self.outstanding.first().map_or(self.served[CHAINS - 1], |(smallest, _)| smallest)
    }

    /// The smallest start tag of one program's requests in the last chain. A program's start tags never decrease, and
    /// its waiting requests have the latest ones.
    fn smallest_of(&self, program: &Program<CHAINS>) -> Option<VTime> {
        const { assert!(CHAINS > 0) };
        match program.first {
            Some(core) => self.in_service[core.index()].as_ref().map(|on| on.start[CHAINS - 1]),
            None => program.waiting.front().map(|head| larger(program.finish, head.floor)[CHAINS - 1]),
        }
    }

    /// The program's charge so far, without what is charged ahead.
    pub fn progress(&self, program: ProgramId, chain: usize, now_ns: u64) -> VTime {
        let Program { finish, rate, .. } = self.programs[program.index()];
        let of_it = || self.all_in_service().filter(|(_, on)| on.program == program);
        let ahead = |on: &InService<CHAINS>| on.charged_ns.saturating_sub(now_ns - on.since_ns);
        let beyond = |on: &InService<CHAINS>| (now_ns - on.since_ns).saturating_sub(on.charged_ns);
        let ahead = rate.span(of_it().map(|(_, on)| ahead(on)).sum());
        finish[chain].minus(ahead).plus(rate.span(of_it().map(|(_, on)| beyond(on)).sum()))
    }

    /// The largest own point of the programs in service: a program's progress, or its largest start tag if that is
    /// smaller. With nothing in service as [`CentralQueue::largest_in_service`].
    pub fn largest_own_point(&self, chain: usize, now_ns: u64) -> VTime {
        let own = |program: ProgramId| {
            let last = self.programs[program.index()].last?;
            let start = self.on(last)?.start[chain];
            Some(start.min(self.progress(program, chain, now_ns)))
        };
        let programs = (0..self.programs.len() as u16).map(ProgramId);
        programs.filter_map(own).max().unwrap_or(self.served[chain])
    }

    /// Takes an idle core without a pending reschedule for `thread`: the one where it ran last if that is idle, else
    /// the first.
    pub fn take_idle_core(&mut self, thread: ThreadId) -> Option<CoreId> {
        let is_idle = |core: &CoreId| {
            self.in_service[core.index()].is_none() && !self.asked[core.index()] && self.may_run(thread, *core)
        };
        let last = self.last_core[thread.index()].filter(is_idle);
        let core = last.or_else(|| (0..self.asked.len() as u16).map(CoreId).find(is_idle))?;
        self.asked[core.index()] = true;
        Some(core)
    }

    /// Where the thread ran last.
    pub fn last_core(&self, thread: ThreadId) -> Option<CoreId> {
        self.last_core[thread.index()]
    }

    /// Sets the floors of the program's next request, before which it does not begin.
    pub fn align(&mut self, program: ProgramId, to: [VTime; CHAINS]) {
        let program = &mut self.programs[program.index()];
        debug_assert!(program.running == 0 && program.waiting.is_empty(), "only an idle program is aligned");
        program.finish = larger(program.finish, to);
    }

    /// A request behind all others of its program. Returns where it would begin if those before it ran for all that
    /// they may; floors apart.
    pub fn push_back(&mut self, thread: ThreadId, floor: [VTime; CHAINS], left_ns: u64) -> [VTime; CHAINS] {
        let arrival = self.next_arrival();
        let at = self.program_of(thread).index();
        let program = &mut self.programs[at];
        let before = program.rate.span(program.waiting_ns);
        program.waiting.push_back(Waiting { thread, floor, left_ns, arrival });
        program.waiting_ns += left_ns;
        let start = program.finish.map(|finish| finish.plus(before));
        self.reorder(at);
        start
    }

    /// A request before all others of its program. Returns where it would begin, floors apart.
    pub fn push_front(&mut self, thread: ThreadId, floor: [VTime; CHAINS], left_ns: u64) -> [VTime; CHAINS] {
        let at = self.program_of(thread).index();
        let arrival = self.next_arrival();
        let program = &mut self.programs[at];
        program.waiting.push_front(Waiting { thread, floor, left_ns, arrival });
        program.waiting_ns += left_ns;
        let start = program.finish;
        self.reorder(at);
        start
    }

    fn next_arrival(&mut self) -> u64 {
        self.waiting += 1;
        self.arrivals += 1;
        self.arrivals
    }

    /// The thread's request, which waits, may run for so long at most.
    pub fn shorten(&mut self, thread: ThreadId, left_ns: u64) {
        let program = &mut self.programs[self.program_of[thread.index()].index()];
        if let Some(request) = program.waiting.iter_mut().find(|request| request.thread == thread) {
            program.waiting_ns -= request.left_ns.saturating_sub(left_ns);
            request.left_ns = request.left_ns.min(left_ns);
        }
    }

    /// The thread's next request is charged for so long ahead at most.
    pub fn charge(&mut self, thread: ThreadId, most_ns: u64) {
        self.charge_ns[thread.index()] = most_ns;
    }

    /// Takes the first request of all that `core` may run and puts it there, for `slice_ns` at most.
    pub fn dispatch(&mut self, core: CoreId, now_ns: u64, slice_ns: u64) -> Option<&InService<CHAINS>> {
        let (thread, _) = self.first_on(core)?;
        self.dispatch_thread(thread, core, now_ns, slice_ns)
    }

    /// Puts the request of that thread, if it waits, on `core`, for `slice_ns` at most.
    pub fn dispatch_thread(
        &mut self,
        thread: ThreadId,
        core: CoreId,
        now_ns: u64,
        slice_ns: u64,
    ) -> Option<&InService<CHAINS>> {
        let at = self.program_of(thread).index();
        let program = &mut self.programs[at];
        let place = program.waiting.iter().position(|waiting| waiting.thread == thread)?;
        let Waiting { thread, floor, left_ns, .. } = program.waiting.remove(place)?;
        program.waiting_ns -= left_ns;
        self.waiting -= 1;
        let granted_ns = left_ns.min(slice_ns);
        let charged_ns = granted_ns.min(std::mem::replace(&mut self.charge_ns[thread.index()], u64::MAX));
        let start = larger(program.finish, floor);
        if let Some(before) = program.last.and_then(|last| self.in_service[last.index()].as_mut()) {
            before.next = Some(core);
            let finish = program.finish;
            before.slack = from_fn(|chain| before.slack[chain].min(finish[chain].ahead_of(floor[chain])));
        }
        program.finish = start.map(|start| start.plus(program.rate.span(charged_ns)));
        program.first = program.first.or(Some(core));
        program.last = Some(core);
        program.running += 1;
        self.dispatches += 1;
        self.last_core[thread.index()] = Some(core);
        let on = &mut self.in_service[core.index()];
        assert!(on.is_none(), "{core:?} picks while it runs something");
        *on = Some(InService {
            thread,
            program: ProgramId(at as u16),
            start,
            since_ns: now_ns,
            granted_ns,
            charged_ns,
            left_ns,
            dispatch: self.dispatches,
            next: None,
            slack: [VSpan::ENDLESS; CHAINS],
        });
        self.reorder(at);
        self.on(core)
    }

    /// Ends the request on `core` after `ran_ns`; the unused part of its charge goes back.
    pub fn end(&mut self, core: CoreId, ran_ns: u64) -> InService<CHAINS> {
        let mut ended = self.in_service[core.index()].take().expect("a core that stops ran something");
        let at = ended.program.index();
        let program = &mut self.programs[at];
        let unused = program.rate.span(ended.charged_ns.saturating_sub(ran_ns));
        let mut back = [unused; CHAINS];
        pass_on(&mut back, &mut ended.slack);
        let mut before = None;
        let mut walk = program.first;
        while let Some(other) = walk.filter(|other| *other != core) {
            before = Some(other);
            walk = self.in_service[other.index()].as_ref().and_then(|on| on.next);
        }
        match before.and_then(|before: CoreId| self.in_service[before.index()].as_mut()) {
            Some(before) => {
                before.next = ended.next;
                before.slack = from_fn(|chain| before.slack[chain].min(ended.slack[chain]));
            }
            None => program.first = ended.next,
        }
        if program.last == Some(core) {
            program.last = before;
        }
        let mut walk = ended.next;
        while let Some(later) = walk.and_then(|later| self.in_service[later.index()].as_mut()) {
            later.start = from_fn(|chain| later.start[chain].minus(back[chain]));
            pass_on(&mut back, &mut later.slack);
            walk = later.next;
        }
        // It ran for longer than was charged ahead, or a driver stopped it late: it pays for that, too.
        let late = program.rate.span(ran_ns.saturating_sub(ended.charged_ns));
        program.finish = from_fn(|chain| program.finish[chain].minus(back[chain]).plus(late));
        program.running -= 1;
        if program.running == 0 {
            self.served = larger(self.served, program.finish);
        }
        self.reorder(at);
        ended
    }

    /// Updates the program's place among the others, after a change of its tags, its head or its requests in service.
    fn reorder(&mut self, at: usize) {
        let program = &self.programs[at];
        if CHAINS > 1 {
            match self.smallest_of(program) {
                Some(smallest) => self.outstanding.set(at, smallest),
                None => self.outstanding.remove(at),
            }
        }
        match program.waiting.front() {
            Some(head) => self.order.set(at, (larger(program.finish, head.floor), head.arrival)),
            None => self.order.remove(at),
        }
    }
}

fn larger<const CHAINS: usize>(a: [VTime; CHAINS], b: [VTime; CHAINS]) -> [VTime; CHAINS] {
    from_fn(|chain| a[chain].max(b[chain]))
}

/// The rest of a correction after a link with this slack.
fn pass_on<const CHAINS: usize>(back: &mut [VSpan; CHAINS], slack: &mut [VSpan; CHAINS]) {
    for chain in 0..CHAINS {
        back[chain] = back[chain].min(slack[chain]);
        slack[chain] = slack[chain].minus(back[chain]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: [VTime; 1] = [VTime::ZERO];

    /// One program of this many threads, at the default weight.
    fn one_program(threads: usize) -> CentralQueue<1> {
        let mut tasks = Tasks::default();
        let program = tasks.add_program(Tasks::WEIGHT_DEFAULT);
        for _ in 0..threads {
            tasks.add_thread(program, None);
        }
        CentralQueue::new(&Machine::new(4, 1).unwrap(), &tasks).unwrap()
    }

    fn at(ns: u64) -> VTime {
        VTime::ZERO.plus(Rate::of(Tasks::WEIGHT_DEFAULT).span(ns))
    }

    fn starts(queue: &CentralQueue<1>) -> Vec<u64> {
        queue.all_in_service().map(|(_, on)| on.start[0].whole_ns()).collect()
    }

    #[test]
    fn a_chain_closes_up_when_one_of_it_ends_early() {
        let mut queue = one_program(3);
        for thread in 0..3 {
            queue.push_back(ThreadId(thread), NONE, 10);
            queue.dispatch(CoreId(thread as u16), 0, 10);
        }
        assert_eq!((starts(&queue), queue.finish(ProgramId(0))[0].whole_ns()), (vec![0, 10, 20], 30));
        queue.end(CoreId(1), 4);
        assert_eq!((starts(&queue), queue.finish(ProgramId(0))[0].whole_ns()), (vec![0, 14], 24));
        // For the last request it is rule 4: 14 + 3.
        queue.end(CoreId(2), 3);
        assert_eq!(queue.finish(ProgramId(0))[0].whole_ns(), 17);
        queue.end(CoreId(0), 10);
        assert_eq!(queue.finish(ProgramId(0))[0].whole_ns(), 17, "10 + 4 + 3");
        assert_eq!(queue.largest_in_service(0).whole_ns(), 17, "nothing is in service");
    }

    #[test]
    fn a_correction_ends_at_a_floor_that_held_a_request_up() {
        // The second began at its floor of 25, not at 10 where the first would end: that the first ends early is no
        // news to it, whether it is still there or not.
        for second_is_there in [true, false] {
            let mut queue = one_program(3);
            queue.push_back(ThreadId(0), NONE, 10);
            queue.dispatch(CoreId(0), 0, 10);
            queue.push_back(ThreadId(1), [at(25)], 10);
            queue.dispatch(CoreId(1), 0, 10);
            if !second_is_there {
                queue.end(CoreId(1), 10);
            }
            queue.end(CoreId(0), 1);
            assert_eq!(queue.finish(ProgramId(0))[0].whole_ns(), 35);
        }
        // Nor if there was one between them that is gone.
        let mut queue = one_program(3);
        for (thread, floor) in [NONE, NONE, [at(25)]].into_iter().enumerate() {
            queue.push_back(ThreadId(thread as u32), floor, 10);
            queue.dispatch(CoreId(thread as u16), 0, 10);
        }
        assert_eq!(starts(&queue), [0, 10, 25]);
        queue.end(CoreId(1), 10);
        queue.end(CoreId(0), 1);
        assert_eq!((starts(&queue), queue.finish(ProgramId(0))[0].whole_ns()), (vec![25], 35));
        // A floor of 7 leaves 3 of the way back.
        let mut queue = one_program(2);
        queue.push_back(ThreadId(0), NONE, 10);
        queue.dispatch(CoreId(0), 0, 10);
        queue.push_back(ThreadId(1), [at(7)], 10);
        queue.dispatch(CoreId(1), 0, 10);
        queue.end(CoreId(0), 1);
        assert_eq!((starts(&queue), queue.finish(ProgramId(0))[0].whole_ns()), (vec![7], 17));
    }

    #[test]
    fn progress_is_what_ran_and_not_what_is_charged_ahead() {
        let mut queue = one_program(2);
        queue.push_back(ThreadId(0), NONE, 10);
        queue.push_back(ThreadId(1), NONE, 10);
        queue.dispatch(CoreId(0), 0, 10);
        queue.dispatch(CoreId(1), 2, 10);
        assert_eq!(queue.progress(ProgramId(0), 0, 5).whole_ns(), 5 + 3);
        queue.end(CoreId(0), 10);
        assert_eq!(queue.progress(ProgramId(0), 0, 10).whole_ns(), 10 + 8);
    }

    #[test]
    fn a_request_tells_where_it_would_begin_behind_those_that_wait() {
        let mut queue = one_program(3);
        let start = |start: [VTime; 1]| start[0].whole_ns();
        assert_eq!(start(queue.push_back(ThreadId(0), NONE, 10)), 0);
        assert_eq!(start(queue.push_back(ThreadId(1), NONE, 10)), 10);
        assert_eq!(start(queue.push_front(ThreadId(2), NONE, 4)), 0);
        assert_eq!(queue.first().map(|(thread, _)| thread), Some(ThreadId(2)));
        assert_eq!(queue.dispatch(CoreId(0), 0, 10).unwrap().granted_ns, 4);
        assert_eq!(queue.first(), Some((ThreadId(0), at(4))));
    }

    proptest! {
        #[test]
        fn the_smallest_outstanding_tag_is_that_of_a_search_through_all(
            steps in prop::collection::vec((0u32..12, 0u64..60, 0u64..=10), 1..200)
        ) {
            let mut tasks = Tasks::default();
            for weight in [1024, 512, 256, 4096] {
                let program = tasks.add_program(weight);
                (0..3).for_each(|_| { tasks.add_thread(program, None); });
            }
            let mut queue: CentralQueue<2> = CentralQueue::new(&Machine::new(4, 1).unwrap(), &tasks).unwrap();
            let mut blocked: Vec<ThreadId> = (0..12).map(ThreadId).collect();
            for (choice, floor, ran_ns) in steps {
                let core = CoreId((choice % 4) as u16);
                if queue.on(core).is_some() && choice % 3 == 0 {
                    blocked.push(queue.end(core, ran_ns).thread);
                } else if queue.on(core).is_none() && choice % 2 == 0 {
                    queue.dispatch(core, 0, 10);
                } else if !blocked.is_empty() {
                    let thread = blocked.swap_remove(choice as usize % blocked.len());
                    queue.push_back(thread, [at(floor), at(floor / 2)], 10);
                }
                let waiting = queue.programs.iter().filter_map(|program| {
                    Some(program.finish[1].max(program.waiting.front()?.floor[1]))
                });
                let smallest = waiting.chain(queue.all_in_service().map(|(_, on)| on.start[1])).min();
                prop_assert_eq!(queue.smallest_outstanding(), smallest.unwrap_or(queue.served[1]));
            }
        }
    }
}
