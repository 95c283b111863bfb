//! P-MQFQ as its paper defines it: one queue for all cores, and a lagging program may take a core from one that is
//! ahead.
//!
//! Source: P-MQFQ section 3, rules 1 to 4 and "Fairness Analysis". `central.rs` has the finish tags of a program with
//! several requests in service, the ties, and the fate of a preempted thread.
//!
//! # The rules
//! 1. System virtual time v is the largest start tag in service; a program's virtual time is the largest of its own in
//!    service.
//! 2. A request of a backlogged program (one that has a request on a core or waiting) begins at the program's last
//!    finish tag; that of another program is aligned to v: it begins at v, or at the program's last finish tag if that
//!    is later. The paper says "aligned" only; equation 2 has the maximum, and without it a program that is ahead could
//!    go back to v by blocking for an instant (`a_program_that_is_ahead_gains_nothing_by_blocking_for_an_instant`).
//! 3. A request that arrives with a start tag below v preempts the request with the largest start tag in service.
//! 4. The preempted request is charged for its run; v is then the second largest.
//! 5. Ours, if asked for: no thread waits without bound. [`crate::patience`] has the rule, the bound and its price.
//! 6. Ours, if asked for ([`Ideal::prompt`]): a request of a program that was not backlogged, behind which no other
//!    waits with a smaller tag, also preempts a request whose program's last finish tag is beyond its own. Of several
//!    it is the one whose program's finish tag is the largest once it has paid for its run. By rule 2 the new request
//!    begins at v, the largest start tag, so rule 3 alone lets it wait for the end of a quantum.
//! 7. Ours, if asked for ([`Ideal::kin`]): a thread that wakes and takes no core by the rules above goes on with the
//!    quantum of a sibling that is ahead of it in CPU time and has run for m: of several, that of the one on the core
//!    where it ran last, else of the furthest ahead. A thread that slept begins at most 16 quanta behind the furthest.
//!    m is l_min for a thread that last ran for at most a 60th of a quantum, or that is a quantum behind and slept for
//!    16 times as long as it last ran; else m is a third of a quantum. Such a thread waits before the others if no
//!    sibling has a core, and once more if the rest of the quantum is over.
//! 8. Ours, if asked for ([`Ideal::light`]), for threads that wake together for short. A thread that slept for 4 times
//!    as long as it last ran is *light*. Its request is charged ahead for twice that run, at least a 30th of a quantum,
//!    and may preempt by rule 6 although its program is backlogged. A program that was away begins at the largest *own
//!    point* in service instead of v: a program's own point is its progress, or its largest start tag in service if
//!    that is smaller. Else a program would begin up to D - 1 quanta beyond a program of D hogs, and one light thread
//!    in service would keep its siblings from all other cores.
//!
//! # Choices
//! * An idle core is used first: no request is preempted while one is free.
//! * *Minimum slice.* A request that has run for less than `min_slice_ns` cannot be preempted. The largest start tag
//!   among the others is preempted. If there is none, the request whose slice is over first is preempted at that
//!   moment, if another still is before it. With 0 this is rule 3.
//! * A quantum that expires is an arrival as well (section 3: the thread "immediately re-submits"). Its core is free
//!   then and takes the first request of all; only if that is another one may the new request preempt elsewhere.
//! * Corrections of start tags are not arrivals: a waiting request whose sibling ended early has a smaller start tag
//!   then, and preempts no request for it.
//! * A core that was told to stop and has not yet is as good as preempted: v leaves it out.
//!
//! # How unfair it can be
//! Section 3 gives (D + 1)(l_min/phi_f + l_min/phi_g) for any interval throughout which both are backlogged. **That
//! does not hold for the rules as they are printed**, and cpu/tests/all/bound.rs has the histories:
//!
//! * Rule 3 acts on arrivals, and between two arrivals a request may run for its quantum l_max. Two hogs on one core
//!   take turns of l_max whatever l_min is. (The analysis has "at any time"; rule 3 does not.)
//! * A program with fewer threads than its share of the cores is backlogged in the words of rule 2 and falls behind
//!   without end. When it then wakes more threads, rule 2 lets it make up for all of it, and the other gets nothing for
//!   as long, the fault that section 2.4 finds in Min-SFQ(D).
//!
//! The bound that holds needs three definitions. A program *wants more* while one of its threads waits or all cores run
//! it. q is the most that a request may run at once: `min_slice_ns` with [`Preemption::EverySlice`], `quantum_ns` else.
//! f and g are *level* when neither's tags, with all that it has in service, lie further beyond the other's progress
//! than q/phi of its own and D - 1 times q/phi of the other. Then over every interval throughout which both want more
//! and at whose beginning they are level
//!
//! ```text
//!   | w_f/phi_f - w_g/phi_g |  <=  D (q/phi_f + q/phi_g)
//! ```
//!
//! *Why.* Let P be a program's progress (what it ran over its weight) and F its last finish tag: P <= F, for F is P
//! plus what is charged ahead. A core is given to f at time s only if F_f <= F_g then, for g, which wants more, has a
//! request in the queue at that moment (it does not run on all cores: one is being given away). Let t be any time and s
//! the last time before it at which f was given a core. Nothing of f begins after s, so P_f(t) <= F_f(s) + q/phi_f. And
//! P_g(t) >= P_g(s) >= F_g(s) - (D - 1) q/phi_g, for at most D - 1 cores run g. So f is ahead by at most
//! q/phi_f + (D - 1) q/phi_g; g likewise, by q/phi_g + (D - 1) q/phi_f. Over an interval the difference moves from one
//! of these ends to the other at most, and their sum is the bound. Before f was given any core in the interval, being
//! level says the same of it. Preemption only gives cores to the program with the smaller start tag.
//!
//! With q = l_min this is the printed bound, with D for D + 1. The programs become level: until then the one that is
//! ahead is given no core. Checked over every interval of generated histories by [`crate::bound`].
//!
//! Rule 6 makes it (D + 1)(q/phi_f + q/phi_g). The core is given to f while F_f <= F_g, but g then gets back at most
//! q/phi_g that its request had not used, so f is ahead by q/phi_f + D q/phi_g at most. It is no credit: the program
//! begins at v as without the rule, and is charged. It costs one switch for each time that a program wakes.
//!
//! Rule 7 changes no bound. The sibling's request ends and the thread's begins with the rest of its quantum: F_f is the
//! same, and the two together run for at most q, as one request of f that began while F_f <= F_g. It is no credit
//! either: siblings with equal needs have equal CPU time, within 16 quanta. It costs two switches for each time that a
//! brief thread wakes; of the others, for at most one in 17 of its runs, or in a third of a quantum of a sibling's.
//!
//! Rule 8 makes it 2 (a + b + (D - 1) max(a, b)) with a = q/phi_f and b = q/phi_g, which is rule 6's for equal weights.
//! A request may now run for q beyond its charge. Let R_f be what P_f comes to when all that f has in service has run
//! for all that it may: R_f <= F_f + n a while f has n cores. At time s, when f was last given a core, F_f <= F_g, so
//! P_f(t) <= R_f(s) <= F_f + n a with the new core among the n, and P_g(t) >= F_g - m b with m <= D - n + 1 cores of g
//! before. So f is ahead by at most n a + (D - n + 1) b <= a + b + (D - 1) max(a, b) = X, and g likewise. *Level* now
//! means R_f - P_g <= X and R_g - P_f <= X; until a core is given to f again it is ahead by no more. Sleep gives no
//! credit: no tag moves back, and a program begins at or beyond the progress of each one in service less one quantum
//! of that one, as by rule 2, or one for each of that one's light requests there. So none of these leads it by more
//! than X. The rule costs two switches for each time that a light thread wakes.
//!
//! Preemption on arrival (rule 3) gives no better bound but a short wait: a woken thread of a program that lags is on a
//! core within l_min, however long quanta are. That ends deceptive idleness.
//!
//! # Cost
//! Logarithmic in the programs that wait, and linear in the cores. No memory after construction.

use crate::central::CentralQueue;
use crate::patience::{Books, Patience};
use crate::scheduler::{CoreId, Effects, Machine, ProgramId, Run, Scheduler, Stop, Tasks, ThreadId};
use crate::vtime::VTime;
use std::cmp::Reverse;

/// A request in service: its start tag, and the number of its dispatch, which distinguishes two of one tag.
type Place = (VTime, u64);

/// Moments at which a request may lose its core before its quantum is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preemption {
    /// Never. Not P-MQFQ: for comparison.
    Never,
    /// When another one arrives: rule 3.
    OnArrival,
    /// At the end of each minimum slice the request is charged, and goes on only if it still is first: the "at any
    /// time" of the fairness analysis.
    EverySlice,
}

/// Settings of the ideal scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdealOptions {
    /// Longest run of a thread before its siblings have their turn, ns: l_max.
    pub quantum_ns: u64,
    /// Shortest run of a thread before it can be preempted, ns: l_min.
    pub min_slice_ns: u64,
    /// Moments of preemption.
    pub preemption: Preemption,
}

impl Default for IdealOptions {
    /// The rules as printed. 6 ms and 0.75 ms are the latency and the granularity that CFS begins with before it scales
    /// them by the cores; the paper names no values.
    fn default() -> IdealOptions {
        IdealOptions { quantum_ns: 6_000_000, min_slice_ns: 750_000, preemption: Preemption::OnArrival }
    }
}

impl IdealOptions {
    fn check(&self) -> Result<(), String> {
        let IdealOptions { quantum_ns, min_slice_ns, preemption } = *self;
        if quantum_ns == 0 {
            return Err("a quantum of 0 ns, allowed is 1 or more".into());
        }
        if min_slice_ns > quantum_ns {
            return Err(format!(
                "a minimum slice of {min_slice_ns} ns, allowed is at most the quantum of {quantum_ns} ns"
            ));
        }
        if min_slice_ns == 0 && preemption == Preemption::EverySlice {
            return Err("a minimum slice of 0 ns, allowed is 1 or more if every slice is to end".into());
        }
        Ok(())
    }

    /// The most that a request may run at once: the length that bounds unfairness.
    pub fn slice_ns(&self) -> u64 {
        match self.preemption {
            Preemption::EverySlice => self.min_slice_ns,
            Preemption::Never | Preemption::OnArrival => self.quantum_ns,
        }
    }
}

/// Places of threads among their siblings, for rule 7.
#[derive(Clone, Debug)]
struct Kin {
    quantum_ns: u64,
    min_slice_ns: u64,
    of: Vec<Sibling>,
    /// Largest place of a thread that was given a core, by program.
    furthest_ns: Vec<u64>,
}

/// A thread among its siblings.
#[derive(Clone, Copy, Default, Debug)]
struct Sibling {
    /// CPU time, ns, counted from where the siblings were.
    at_ns: u64,
    /// CPU time since it woke, and between waking and sleeping the last time, ns.
    runs_ns: u64,
    ran_ns: u64,
    slept_since_ns: u64,
    /// It slept for 16 times `ran_ns`, and for 4 times that.
    is_rare: bool,
    is_light: bool,
}

impl Kin {
    /// The thread is behind that place, and brief, or a quantum behind it and rare.
    fn is_soon(&self, thread: ThreadId, place_ns: u64) -> bool {
        let of = &self.of[thread.index()];
        let is_brief = of.ran_ns <= self.quantum_ns / 60;
        of.at_ns < place_ns && (is_brief || (of.is_rare && place_ns - of.at_ns >= self.quantum_ns))
    }

    fn wakes(&mut self, thread: ThreadId, program: ProgramId, now_ns: u64) {
        let least_ns = self.furthest_ns[program.index()].saturating_sub(16 * self.quantum_ns);
        let place = &mut self.of[thread.index()];
        place.at_ns = place.at_ns.max(least_ns);
        place.is_rare = now_ns - place.slept_since_ns >= 16 * place.ran_ns;
        place.is_light = now_ns - place.slept_since_ns >= 4 * place.ran_ns;
    }

    fn stops(&mut self, thread: ThreadId, ran_ns: u64, sleeps: bool, now_ns: u64) {
        let place = &mut self.of[thread.index()];
        place.at_ns += ran_ns;
        place.runs_ns += ran_ns;
        if sleeps {
            (place.ran_ns, place.runs_ns, place.slept_since_ns) = (place.runs_ns, 0, now_ns);
        }
    }

    fn begins(&mut self, thread: ThreadId, program: ProgramId) {
        let furthest_ns = &mut self.furthest_ns[program.index()];
        *furthest_ns = (*furthest_ns).max(self.of[thread.index()].at_ns);
    }

    /// The place of a sibling whose quantum the thread may go on with.
    fn ahead_ns(&self, thread: ThreadId, sibling: ThreadId, ran_ns: u64) -> Option<u64> {
        let reached_ns = self.of[sibling.index()].at_ns + ran_ns;
        let least_ns = if self.is_soon(thread, reached_ns) { 0 } else { self.quantum_ns / 3 };
        let is_ahead = reached_ns > self.of[thread.index()].at_ns;
        (is_ahead && ran_ns >= least_ns.max(self.min_slice_ns)).then_some(reached_ns)
    }
}

/// The ideal scheduler.
#[derive(Clone, Debug)]
pub struct Ideal {
    options: IdealOptions,
    queue: CentralQueue<1>,
    /// Cores for which a request waits until the minimum slice is over, and the time of that.
    due_ns: Vec<Option<u64>>,
    preempted: u64,
    /// Rule 6 is in force.
    is_prompt: bool,
    /// Rule 7, if it is in force.
    kin: Option<Kin>,
    /// Rule 8 is in force.
    is_light: bool,
    /// The thread for which a core was taken by rule 6 or 7.
    promised: Vec<Option<ThreadId>>,
    /// Rule 5, if it is in force.
    books: Option<Books>,
    /// CPU time that each program had by rule 5, ns.
    by_patience_ns: Vec<u64>,
}

impl Ideal {
    /// A scheduler for these threads on these cores.
    ///
    /// # Errors
    /// One sentence: options that contradict each other, or a thread that is pinned.
    pub fn new(machine: &Machine, tasks: &Tasks, options: IdealOptions) -> Result<Ideal, String> {
        options.check()?;
        let queue = CentralQueue::new(machine, tasks)?;
        let by_patience_ns = vec![0; tasks.programs()];
        let due_ns = vec![None; machine.cores()];
        let promised = vec![None; machine.cores()];
        Ok(Ideal {
            options,
            queue,
            due_ns,
            preempted: 0,
            is_prompt: false,
            kin: None,
            is_light: false,
            promised,
            books: None,
            by_patience_ns,
        })
    }

    /// This scheduler with rule 6.
    #[must_use]
    pub fn prompt(mut self) -> Ideal {
        self.is_prompt = true;
        self
    }

    /// This scheduler with rule 7.
    #[must_use]
    pub fn kin(mut self, tasks: &Tasks) -> Ideal {
        let IdealOptions { quantum_ns, min_slice_ns, .. } = self.options;
        let of = vec![Sibling::default(); tasks.threads()];
        self.kin = Some(Kin { quantum_ns, min_slice_ns, of, furthest_ns: vec![0; tasks.programs()] });
        self
    }

    /// This scheduler with rules 6, 7 and 8.
    #[must_use]
    pub fn light(self, tasks: &Tasks) -> Ideal {
        let mut ideal = self.prompt().kin(tasks);
        ideal.is_light = true;
        ideal
    }

    /// One with rule 5. Threads may be pinned; the bound on shares is then that of programs without pinned threads.
    ///
    /// # Errors
    /// One sentence: options that contradict each other.
    pub fn patient(
        machine: &Machine,
        tasks: &Tasks,
        options: IdealOptions,
        patience: Patience,
    ) -> Result<Ideal, String> {
        options.check()?;
        if patience.slice_ns == 0 {
            return Err("a slice of 0 ns for overdue threads, allowed is 1 or more".into());
        }
        Ok(Ideal {
            options,
            queue: CentralQueue::with_pins(machine, tasks),
            due_ns: vec![None; machine.cores()],
            preempted: 0,
            is_prompt: false,
            kin: None,
            is_light: false,
            promised: vec![None; machine.cores()],
            books: Some(Books::new(patience, machine.cores(), tasks.threads())),
            by_patience_ns: vec![0; tasks.programs()],
        })
    }

    /// The thread's place on the books of the core that answers for it, from 1; `None`: it does not wait.
    pub fn place(&self, thread: ThreadId) -> Option<usize> {
        self.books.as_ref()?.place(thread)
    }

    /// CPU time that the program had by rule 5, ns.
    pub fn by_patience_ns(&self, program: ProgramId) -> u64 {
        self.by_patience_ns[program.index()]
    }

    /// Time at which the request on `core` ends for an overdue thread.
    fn overdue_ns(&self, core: CoreId) -> Option<u64> {
        let (books, on) = (self.books.as_ref()?, self.queue.on(core)?);
        let overdue_ns = books.overdue_ns(core)?.max(on.since_ns + self.options.min_slice_ns);
        let is_short = on.granted_ns <= books.patience.slice_ns;
        (!is_short && !self.queue.asked[core.index()]).then_some(overdue_ns)
    }

    fn joins(&mut self, thread: ThreadId, now_ns: u64) {
        let pin = self.queue.pin(thread);
        if let Some(books) = &mut self.books {
            books.join(thread, pin, now_ns);
        }
    }

    /// The options.
    pub fn options(&self) -> &IdealOptions {
        &self.options
    }

    /// v: the largest start tag in service; with nothing in service, the largest finish tag.
    pub fn virtual_time(&self) -> VTime {
        self.queue.largest_in_service(0)
    }

    /// Where a program begins that was away: v, or by rule 8.
    fn beginning(&self, now_ns: u64) -> VTime {
        if self.is_light { self.queue.largest_own_point(0, now_ns) } else { self.virtual_time() }
    }

    /// The program's virtual time: its largest start tag in service.
    pub fn program_virtual_time(&self, program: ProgramId) -> Option<VTime> {
        self.queue.all_in_service().filter(|(_, on)| on.program == program).map(|(_, on)| on.start[0]).max()
    }

    /// The start tag of the request in service on `core`.
    pub fn start_tag(&self, core: CoreId) -> Option<VTime> {
        self.queue.on(core).map(|on| on.start[0])
    }

    /// The program's last finish tag, with all that it has in service charged ahead.
    pub fn finish_tag(&self, program: ProgramId) -> VTime {
        self.queue.finish(program)[0]
    }

    /// The program's charge by now.
    pub fn progress(&self, program: ProgramId, now_ns: u64) -> VTime {
        self.queue.progress(program, 0, now_ns)
    }

    /// Requests that lost their core to an arriving one.
    pub fn preempted(&self) -> u64 {
        self.preempted
    }

    /// Are the two programs level? See the head of this file.
    pub fn are_level(&self, f: ProgramId, g: ProgramId, now_ns: u64) -> bool {
        if self.is_light {
            return self.are_level_light(f, g, now_ns);
        }
        let cores = self.due_ns.len() as u64;
        let slice = |program| self.queue.rate(program).span(self.options.slice_ns());
        let may_lead = |a, b| slice(a).plus(slice(b).times(cores - 1));
        let leads = |a, b| self.finish_tag(a).ahead_of(self.progress(b, now_ns));
        leads(f, g) <= may_lead(f, g) && leads(g, f) <= may_lead(g, f)
    }

    /// With rule 8, where a request may run on beyond its charge: R of the head of this file.
    fn are_level_light(&self, f: ProgramId, g: ProgramId, now_ns: u64) -> bool {
        let slice = |program| self.queue.rate(program).span(self.options.slice_ns());
        let most = slice(f).plus(slice(g)).plus(slice(f).max(slice(g)).times(self.due_ns.len() as u64 - 1));
        // Where the program is once all that it has in service has run for all that it may.
        let reaches = |program| {
            let of_it = self.queue.all_in_service().filter(|(_, on)| on.program == program);
            let beyond_ns = of_it.map(|(_, on)| on.granted_ns - on.charged_ns).sum();
            self.finish_tag(program).plus(self.queue.rate(program).span(beyond_ns))
        };
        let leads = |a, b| reaches(a).ahead_of(self.progress(b, now_ns)) <= most;
        leads(f, g) && leads(g, f)
    }

    /// Rule 7, for a thread that woke up.
    fn swap(&mut self, thread: ThreadId, now_ns: u64, out: &mut dyn Effects) {
        let (Some(kin), pin, program) = (&self.kin, self.queue.pin(thread), self.queue.program_of(thread)) else {
            return;
        };
        let last = self.queue.last_core(thread);
        let mut best: Option<(bool, u64, Reverse<CoreId>, u64)> = None;
        for (core, on) in self.queue.all_in_service().filter(|(_, on)| on.program == program) {
            let is_overdue = self.books.as_ref().is_some_and(|books| books.was_overdue(core));
            if self.queue.asked[core.index()] || is_overdue || pin.is_some_and(|pin| pin != core) {
                continue;
            }
            let ran_ns = now_ns - on.since_ns;
            let rest_ns = on.left_ns.saturating_sub(ran_ns);
            if let Some(reached_ns) = kin.ahead_ns(thread, on.thread, ran_ns).filter(|_| rest_ns > 0) {
                best = best.max(Some((last == Some(core), reached_ns, Reverse(core), rest_ns)));
            }
        }
        if let Some((_, _, Reverse(core), rest_ns)) = best {
            self.queue.shorten(thread, rest_ns);
            self.due_ns[core.index()] = None;
            self.promised[core.index()] = Some(thread);
            self.take(core, out);
        }
    }

    /// Rule 3, for a request that arrived with this start tag and found no idle core. Returns whether it takes one, now
    /// or when a minimum slice is over.
    fn preempt(&mut self, thread: ThreadId, start: VTime, now_ns: u64, out: &mut dyn Effects) -> bool {
        let pin = self.queue.pin(thread);
        let mut largest: Option<(Place, CoreId)> = None;
        let mut soonest: Option<(u64, Reverse<Place>, CoreId)> = None;
        for (core, on) in self.queue.all_in_service() {
            if on.start[0] <= start || self.queue.asked[core.index()] || self.due_ns[core.index()].is_some() {
                continue;
            }
            if pin.is_some_and(|pin| pin != core) || self.books.as_ref().is_some_and(|books| books.was_overdue(core)) {
                continue;
            }
            // Between equal start tags the later dispatch counts as larger.
            let key = (on.start[0], on.dispatch);
            let over_ns = on.since_ns + self.options.min_slice_ns;
            if over_ns <= now_ns {
                largest = largest.max(Some((key, core)));
            } else if soonest.is_none_or(|(other_ns, other, _)| (over_ns, Reverse(key)) < (other_ns, other)) {
                soonest = Some((over_ns, Reverse(key), core));
            }
        }
        if let Some((_, core)) = largest {
            self.take(core, out);
        } else if let Some((over_ns, _, core)) = soonest {
            self.due_ns[core.index()] = Some(over_ns);
        }
        largest.is_some() || soonest.is_some()
    }

    /// Rule 6, for a request of a program that was idle. Returns whether a core was told to take it.
    fn preempt_late(&mut self, thread: ThreadId, start: VTime, now_ns: u64, out: &mut dyn Effects) -> bool {
        let pin = self.queue.pin(thread);
        let program = self.queue.program_of(thread);
        let is_other = |first: ThreadId| first != thread && (!self.is_light || self.queue.program_of(first) != program);
        if !self.is_prompt || self.queue.first().is_some_and(|(first, tag)| is_other(first) && tag <= start) {
            return false;
        }
        let mut furthest: Option<(Place, CoreId)> = None;
        for (core, on) in self.queue.all_in_service() {
            let ran_ns = now_ns - on.since_ns;
            let is_overdue = self.books.as_ref().is_some_and(|books| books.was_overdue(core));
            let is_kept = self.queue.asked[core.index()] || is_overdue || pin.is_some_and(|pin| pin != core);
            let finish = self.queue.finish(on.program)[0];
            if ran_ns >= self.options.min_slice_ns && !is_kept && on.program != program && finish > start {
                let unused_ns = on.charged_ns.saturating_sub(ran_ns);
                let paid = finish.minus(self.queue.rate(on.program).span(unused_ns));
                furthest = furthest.max(Some(((paid, on.dispatch), core)));
            }
        }
        if let Some((_, core)) = furthest {
            self.due_ns[core.index()] = None;
            self.promised[core.index()] = Some(thread);
            self.take(core, out);
        }
        furthest.is_some()
    }

    fn take(&mut self, core: CoreId, out: &mut dyn Effects) {
        self.queue.asked[core.index()] = true;
        self.preempted += 1;
        out.reschedule(core);
    }
}

impl Scheduler for Ideal {
    fn wake(&mut self, thread: ThreadId, _: Option<CoreId>, now_ns: u64, out: &mut dyn Effects) {
        let program = self.queue.program_of(thread);
        let was_idle = self.queue.is_idle(program);
        if was_idle {
            let now = self.beginning(now_ns);
            self.queue.align(program, [now]);
        }
        let mut is_light = false;
        if let Some(kin) = &mut self.kin {
            kin.wakes(thread, program, now_ns);
            is_light = self.is_light && kin.of[thread.index()].is_light;
            if is_light {
                self.queue.charge(thread, (2 * kin.of[thread.index()].ran_ns).max(self.options.quantum_ns / 30));
            }
        }
        let is_soon = |kin: &Kin| kin.is_soon(thread, kin.furthest_ns[program.index()]);
        let [start] = if self.kin.as_ref().is_some_and(is_soon) {
            self.queue.push_front(thread, [VTime::ZERO], self.options.quantum_ns)
        } else {
            self.queue.push_back(thread, [VTime::ZERO], self.options.quantum_ns)
        };
        let [late] = if is_light { self.queue.finish(program) } else { [start] };
        self.joins(thread, now_ns);
        if let Some(core) = self.queue.take_idle_core(thread) {
            out.reschedule(core);
        } else if self.options.preemption == Preemption::OnArrival
            && !((was_idle || is_light) && self.preempt_late(thread, late, now_ns, out))
            && !self.preempt(thread, start, now_ns, out)
        {
            self.swap(thread, now_ns, out);
        }
    }

    fn stop(&mut self, core: CoreId, thread: ThreadId, why: Stop, ran_ns: u64, now_ns: u64, out: &mut dyn Effects) {
        self.due_ns[core.index()] = None;
        let ended = self.queue.end(core, ran_ns);
        if self.books.as_ref().is_some_and(|books| books.was_overdue(core)) {
            self.by_patience_ns[ended.program.index()] += ran_ns;
        }
        if let Some(kin) = &mut self.kin {
            kin.stops(thread, ran_ns, !why.is_runnable(), now_ns);
        }
        if !why.is_runnable() {
            return;
        }
        // An expired grant counts as used up, even if the machine took a part of it for the switch: else it might
        // never be.
        let used_ns = if why == Stop::Expired { ended.granted_ns } else { ran_ns };
        let left_ns = ended.left_ns.saturating_sub(used_ns);
        // A rest too short to be worth a slice is not kept.
        let had_rest = ended.left_ns < self.options.quantum_ns;
        let is_soon = |kin: &Kin| had_rest && kin.is_soon(thread, kin.furthest_ns[ended.program.index()]);
        let [start] = if left_ns >= self.options.min_slice_ns.max(1) {
            self.queue.push_front(thread, [VTime::ZERO], left_ns)
        } else if self.kin.as_ref().is_some_and(is_soon) {
            self.queue.push_front(thread, [VTime::ZERO], self.options.quantum_ns)
        } else {
            self.queue.push_back(thread, [VTime::ZERO], self.options.quantum_ns)
        };
        self.joins(thread, now_ns);
        let stays = self.queue.first_on(core).is_some_and(|(first, _)| first == thread);
        // With rule 5 a core may be idle while pinned threads wait for another one. This one is about to pick.
        self.queue.asked[core.index()] = true;
        if self.books.is_some()
            && let Some(idle) = self.queue.take_idle_core(thread)
        {
            out.reschedule(idle);
        } else if self.options.preemption == Preemption::OnArrival && !stays {
            self.preempt(thread, start, now_ns, out);
        }
    }

    fn pick(&mut self, core: CoreId, now_ns: u64, _: &mut dyn Effects) -> Option<Run> {
        self.queue.asked[core.index()] = false;
        let (overdue, most_ns) = self.books.as_mut().map_or((None, u64::MAX), |books| books.pick(core, now_ns));
        let slice_ns = self.options.slice_ns().min(most_ns);
        let promised = self.promised[core.index()].take().filter(|thread| self.queue.is_waiting(*thread));
        let on = match overdue.or(promised) {
            Some(thread) => self.queue.dispatch_thread(thread, core, now_ns, slice_ns)?,
            None => self.queue.dispatch(core, now_ns, slice_ns)?,
        };
        let run = Run { thread: on.thread, until_ns: Some(now_ns + on.granted_ns) };
        if let Some(books) = &mut self.books {
            books.leave(run.thread);
        }
        let program = self.queue.program_of(run.thread);
        if let Some(kin) = &mut self.kin {
            kin.begins(run.thread, program);
        }
        Some(run)
    }

    fn next_timer_ns(&self) -> Option<u64> {
        let overdue = (0..self.due_ns.len()).filter_map(|core| self.overdue_ns(CoreId(core as u16)));
        self.due_ns.iter().flatten().copied().chain(overdue).min()
    }

    fn timer(&mut self, now_ns: u64, out: &mut dyn Effects) {
        for at in 0..self.due_ns.len() {
            let core = CoreId(at as u16);
            if self.overdue_ns(core).is_some_and(|overdue_ns| overdue_ns <= now_ns) {
                self.due_ns[at] = None;
                self.take(core, out);
                continue;
            }
            if self.due_ns[at].is_none_or(|due_ns| due_ns > now_ns) {
                continue;
            }
            self.due_ns[at] = None;
            // Each core with a pending reschedule takes a waiting request; one that came for this core may have found
            // another one meanwhile.
            let somebody_is_left = self.queue.waiting() > self.queue.asked.iter().filter(|asked| **asked).count();
            let is_behind = match (self.queue.first_on(core), self.queue.on(core)) {
                (Some((_, first)), Some(on)) => first < on.start[0],
                _ => false,
            };
            if somebody_is_left && is_behind {
                self.take(core, out);
            }
        }
    }
}
