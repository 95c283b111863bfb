//! Would the reference have decided so, and does its bound hold of what a real kernel did?
//!
//! Source: the rules and the bound at the head of `cpu/src/ideal.rs`. A trace has each request's start tag, each
//! program's finish tag after a charge, and the number of its threads that wait, so the programs' state is known at
//! each event.
//!
//! # Decisions
//! A request of f that begins while g waits is allowed if `F_f <= F_g`: the reference dispatches the program with the
//! smallest finish tag. A kernel's CPUs decide at once and without a lock, so a CPU may not yet have seen charges of
//! others, and the trace may have two events of different CPUs in another order than the tags were read in. So a
//! decision is *allowed* if `F_f <= F_g` with the tags of some moment in the last [`WINDOW_NS`]: the smallest that f
//! had, and the largest that g had. A preemption is allowed if the arriving request's start tag is smaller than the
//! victim's (rule 3).
//!
//! A thread waits until a CPU picks it, which is before it begins to run: the CPU first needs the lock of the one on
//! whose books the thread is. So a CPU that has said that it picks from g ([`Kind::Pick`]), and has begun nothing
//! since, has one of g's waiting threads, and a third CPU cannot take that one.
//!
//! **Example.** At a tick CPUs 0 and 2 both end a hog's quantum. CPU 0 picks the only waiting thread of g; CPU 2 finds
//! g's queue empty and begins a hog, which is allowed; only then does g's thread begin, on CPU 0.
//!
//! An overdue thread ([`Kind::Overdue`]) is next whatever its program's tag is, and a thread that goes on with the
//! quantum of a sibling ([`Kind::Swap`]) takes nothing from another program: neither request is judged by tags.
//!
//! # The bound
//! [`mqfq_cpu::bound`] over each interval throughout which two programs want more and at whose beginning they are
//! level. q is the longest run of the trace, for quanta end at ticks. The bound is one of programs whose threads may
//! run on any CPU; the trace does not say which may.
//!
//! # Invariants
//! Integers only. The same trace gives the same answer.

use crate::trace::{Event, Head, Kind};
use mqfq_cpu::bound::{self, BoundChecker, PairUnfairness};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// How long a CPU may decide by what it read before, ns: the path from its look at the programs to the new thread's
/// beginning.
pub const WINDOW_NS: u64 = 1_000_000;

/// Most programs of which pairs are checked: those with the most CPU time.
const PAIRS_OF: usize = 16;

/// Result of checking a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Events.
    pub events: u64,
    /// From the first event to the last, ns.
    pub span_ns: u64,
    /// Requests that began while another program waited.
    pub decisions: u64,
    /// Decisions that the reference does not allow.
    pub not_allowed: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Preemptions by a request with no smaller start tag than the preempted one's.
    pub wrong_preemptions: u64,
    /// Longest run, ns.
    pub longest_ns: u64,
    /// Requests of overdue threads.
    pub overdue: u64,
    /// Longest wait of an overdue thread, ns.
    pub longest_wait_ns: u64,
    /// Looks at what all CPUs serve, with at least one line read.
    pub looks: u64,
    /// Cache lines that they have read.
    pub lines: u64,
    /// Most that one has.
    pub most_lines: u64,
    /// Intervals over which the bound was checked.
    pub intervals: u64,
    /// Largest part of the bound that a pair of programs used, in thousandths.
    pub bound_used_permille: u64,
}

#[derive(Clone, Debug, Default)]
struct State {
    finish: u64,
    weight: u32,
    waiting: i32,
    running: u16,
    /// Charged ahead, virtual ns: of the requests in service.
    ahead: u64,
    /// Finish tags of the last window, with the times until which they were true.
    recent: VecDeque<(u64, u64)>,
    /// Time since which it waits.
    waits_since_ns: u64,
}

impl State {
    fn set_finish(&mut self, to: u64, at_ns: u64) {
        self.recent.push_back((at_ns, self.finish));
        self.finish = to;
        self.forget(at_ns);
    }

    fn forget(&mut self, at_ns: u64) {
        while self.recent.front().is_some_and(|(until_ns, _)| until_ns + WINDOW_NS < at_ns) {
            self.recent.pop_front();
        }
    }

    fn tags(&self) -> impl Iterator<Item = u64> {
        self.recent.iter().map(|(_, tag)| *tag).chain([self.finish])
    }

    fn set_waiting(&mut self, waiting: i32, at_ns: u64) {
        if self.waiting <= 0 && waiting > 0 {
            self.waits_since_ns = at_ns;
        }
        self.waiting = waiting;
    }

    /// Virtual ns of `ns`.
    fn span(&self, ns: u64) -> u64 {
        (u128::from(ns) * 100 / u128::from(self.weight.max(1))) as u64
    }
}

/// A request in service.
#[derive(Clone, Copy)]
struct Service {
    program: u32,
    charged_ns: u64,
    span: u64,
    since_ns: u64,
}

/// Checks a trace.
pub fn check(head: &Head, events: &[Event]) -> Found {
    let mut found = Found { events: events.len() as u64, ..Found::default() };
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return found };
    found.span_ns = last.at_ns - first.at_ns;
    let longest = events.iter().filter(|event| event.kind == Kind::End).map(|event| event.other).max();
    found.longest_ns = longest.unwrap_or(0);
    let watched = most_served(events);
    let weights: Vec<u32> = watched.iter().map(|slot| weight_of(events, *slot)).collect();
    let mut bounds = BoundChecker::new(&weights);
    let mut programs: BTreeMap<u32, State> = BTreeMap::new();
    for event in events {
        programs.entry(event.program).or_default().weight = weight_of(events, event.program);
    }
    let mut serving: Vec<Option<Service>> = vec![None; head.cpus as usize];
    // By CPU: the program from which it is taking a thread.
    let mut picking: Vec<Option<u32>> = vec![None; head.cpus as usize];
    // CPUs whose next request, or the one in service, is an overdue thread's: its program and the thread.
    let mut overdue: Vec<Option<(u32, u32)>> = vec![None; head.cpus as usize];
    // CPUs whose next request goes on with a sibling's quantum.
    let mut swaps: Vec<bool> = vec![false; head.cpus as usize];
    // Threads on their way to a CPU that they take: they wait no longer.
    let mut coming: BTreeMap<u32, u32> = BTreeMap::new();
    // Threads that wait for the one CPU on which they may run.
    let mut pinned: BTreeMap<u32, (u32, u16)> = BTreeMap::new();
    // Threads whose request has ended, before the trace says whether they want another one.
    let mut between: BTreeMap<u32, u32> = BTreeMap::new();
    for event in events {
        found.looks += u64::from(event.lines > 0);
        found.lines += u64::from(event.lines);
        found.most_lines = found.most_lines.max(event.lines.into());
        let Some(f) = programs.get_mut(&event.program) else { continue };
        let cpu = usize::from(event.cpu);
        if matches!(event.kind, Kind::Arrive | Kind::Begin | Kind::Block) {
            between.remove(&event.pid);
            coming.remove(&event.pid);
            pinned.remove(&event.pid);
        }
        match event.kind {
            Kind::Arrive => {
                f.set_finish(event.tag, event.at_ns);
                if event.is_pinned {
                    pinned.insert(event.pid, (event.program, event.cpu));
                }
            }
            Kind::Preempt => {
                found.preemptions += 1;
                found.wrong_preemptions += u64::from(event.tag >= event.other);
                coming.insert(event.pid, event.program);
            }
            Kind::Begin => {
                let span = f.span(event.other);
                f.set_finish(event.tag + span, event.at_ns);
                f.running += 1;
                f.ahead += span;
                if let Some(on) = serving.get_mut(cpu) {
                    let begun =
                        Service { program: event.program, charged_ns: event.other, span, since_ns: event.at_ns };
                    *on = Some(begun);
                }
                let smallest = f.recent.iter().map(|(_, tag)| *tag).chain([event.tag]).min().unwrap_or(event.tag);
                // A thread that began to wait after this CPU looked could not be picked.
                if let Some(picks) = picking.get_mut(cpu) {
                    *picks = None;
                }
                let picked = |slot: &u32| picking.iter().flatten().filter(|of| *of == slot).count();
                let elsewhere = |slot: &u32| pinned.values().filter(|(of, on)| of == slot && *on != event.cpu).count();
                let comes = |slot: &u32| coming.values().filter(|of| *of == slot).count();
                let taken = |slot: &u32| (picked(slot) + comes(slot) + elsewhere(slot)) as i32;
                let waited =
                    |slot: &u32, g: &State| g.waiting > taken(slot) && g.waits_since_ns + WINDOW_NS < event.at_ns;
                let others = || programs.iter().filter(|(slot, g)| **slot != event.program && waited(slot, g));
                let is_swap = swaps.get_mut(cpu).is_some_and(std::mem::take);
                let is_overdue = overdue.get(cpu).is_some_and(|of| *of == Some((event.program, event.pid)));
                let is_judged = !is_swap && !is_overdue;
                if is_judged && others().next().is_some() {
                    found.decisions += 1;
                    let is_behind = |g: &State| g.tags().max().is_some_and(|most| most < smallest);
                    found.not_allowed += u64::from(others().any(|(_, g)| is_behind(g)));
                }
            }
            Kind::End => {
                f.set_finish(event.tag, event.at_ns);
                between.insert(event.pid, event.program);
                if let Some(on) = serving.get_mut(cpu).and_then(Option::take) {
                    f.running = f.running.saturating_sub(1);
                    f.ahead = f.ahead.saturating_sub(on.span);
                }
            }
            Kind::Pick => {
                if let Some(picks) = picking.get_mut(cpu) {
                    *picks = Some(event.program);
                }
            }
            Kind::Overdue => {
                found.overdue += 1;
                found.longest_wait_ns = found.longest_wait_ns.max(event.other);
                if let Some(of) = overdue.get_mut(cpu) {
                    *of = Some((event.program, event.pid));
                }
            }
            Kind::Swap => {
                if let Some(swap) = swaps.get_mut(cpu) {
                    *swap = true;
                }
            }
            Kind::Block | Kind::Weight => {}
        }
        if event.kind == Kind::End
            && let Some(of) = overdue.get_mut(cpu)
            && of.is_some_and(|(_, pid)| pid == event.pid)
        {
            *of = None;
        }
        if let Some(f) = programs.get_mut(&event.program) {
            f.set_waiting(event.waiting, event.at_ns);
        }
        let online = head.cpus.min(u32::from(u16::MAX)) as u16;
        let running: Vec<u16> = watched.iter().map(|slot| programs[slot].running).collect();
        let wants_more = |slot: &u32| {
            let f = &programs[slot];
            let wants = f.waiting > 0 || f.running == online || between.values().any(|of| of == slot);
            // An interval ends where a program is given what its tags do not give it.
            wants && !overdue.iter().flatten().any(|(of, _)| of == slot)
        };
        let wants: Vec<bool> = watched.iter().map(wants_more).collect();
        let q_ns = found.longest_ns;
        let progress = |slot: u32| {
            let of_it = serving.iter().flatten().filter(|on| on.program == slot);
            let left = |on: &Service| on.charged_ns.saturating_sub(event.at_ns - on.since_ns);
            programs[&slot].finish as i64 - of_it.map(|on| programs[&slot].span(left(on)) as i64).sum::<i64>()
        };
        bounds.moment(event.at_ns - first.at_ns, &running, &wants, |a, b| {
            let (a, b) = (watched[a], watched[b]);
            let (f, g) = (&programs[&a], &programs[&b]);
            let may_lead = |f: &State, g: &State| f.span(q_ns) as i64 + g.span(q_ns) as i64 * (i64::from(online) - 1);
            f.finish as i64 - progress(b) <= may_lead(f, g) && g.finish as i64 - progress(a) <= may_lead(g, f)
        });
    }
    let (pairs, intervals) = bounds.finish();
    found.intervals = intervals;
    let used = |pair: &PairUnfairness| {
        let most = bound::bound(head.cpus.into(), found.longest_ns, weights[pair.first], weights[pair.second]);
        u64::try_from(pair.worst * 1000 / most.max(1)).unwrap_or(u64::MAX)
    };
    found.bound_used_permille = pairs.iter().map(used).max().unwrap_or(0);
    found
}

/// The weight that the trace says last, the default one if it says none.
fn weight_of(events: &[Event], slot: u32) -> u32 {
    let said = |event: &&Event| event.kind == Kind::Weight && event.program == slot;
    events.iter().rev().find(said).map_or(100, |event| event.other as u32)
}

fn most_served(events: &[Event]) -> Vec<u32> {
    let mut served: BTreeMap<u32, u64> = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind == Kind::End) {
        *served.entry(event.program).or_default() += event.other;
    }
    let mut slots: Vec<(u64, u32)> = served.into_iter().map(|(slot, ns)| (ns, slot)).collect();
    slots.sort_unstable_by(|a, b| b.cmp(a));
    slots.truncate(PAIRS_OF);
    slots.into_iter().map(|(_, slot)| slot).collect()
}

impl Found {
    /// As one object.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "version": 1, "events": self.events, "span_ns": self.span_ns, "decisions": self.decisions,
            "not_allowed": self.not_allowed, "preemptions": self.preemptions,
            "wrong_preemptions": self.wrong_preemptions, "longest_run_ns": self.longest_ns,
            "overdue": self.overdue, "longest_overdue_wait_ns": self.longest_wait_ns,
            "intervals": self.intervals, "bound_used_permille": self.bound_used_permille,
            "looks": self.looks, "lines_read": self.lines, "most_lines_read": self.most_lines,
        })
    }

    /// # Errors
    /// One sentence: the first thing that the reference does not allow.
    pub fn verdict(&self) -> Result<(), String> {
        if self.not_allowed > 0 {
            return Err(format!("{} of {} decisions are none of the reference's", self.not_allowed, self.decisions));
        }
        if self.wrong_preemptions > 0 {
            let (wrong, all) = (self.wrong_preemptions, self.preemptions);
            return Err(format!("{wrong} of {all} preemptions are of a request with no larger start tag"));
        }
        if self.bound_used_permille > 1000 {
            return Err(format!("two programs came apart by {} thousandths of the bound", self.bound_used_permille));
        }
        Ok(())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000);
        writeln!(to, "{} events in {}; longest run {}", self.events, ms(self.span_ns), ms(self.longest_ns))?;
        writeln!(to, "decisions while another program waited: {}, not allowed: {}", self.decisions, self.not_allowed)?;
        writeln!(to, "preemptions: {}, wrong: {}", self.preemptions, self.wrong_preemptions)?;
        writeln!(to, "overdue threads: {}, longest wait of one {}", self.overdue, ms(self.longest_wait_ns))?;
        let mean = self.lines as f64 / self.looks.max(1) as f64;
        let (looks, most) = (self.looks, self.most_lines);
        writeln!(to, "looks at all CPUs: {looks}, of {mean:.1} cache lines, {most} at most")?;
        let permille = self.bound_used_permille;
        write!(
            to,
            "intervals: {}; worst is {}.{}% of D(q/phi_f + q/phi_g)",
            self.intervals,
            permille / 10,
            permille % 10
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head { cpus: 1, slice_ns: 3_000_000, lag_ns: 100_000_000 };

    struct Script(Vec<Event>);

    impl Script {
        fn add(&mut self, at_ns: u64, kind: Kind, program: u32, tag: u64, other: u64, waiting: i32) {
            let number = self.0.len() as u64 + 1;
            let event = Event {
                number,
                at_ns,
                tag,
                other,
                program,
                pid: program,
                kind,
                cpu: 0,
                waiting,
                writer: 0,
                lines: 2,
                is_pinned: false,
            };
            self.0.push(event);
        }
    }

    const Q: u64 = 3_000_000;

    /// Three hogs on one CPU take turns of 3 ms.
    fn turns(count: u64) -> Script {
        let mut script = Script(Vec::new());
        (1..=3).for_each(|f| script.add(0, Kind::Arrive, f, 0, 0, 1));
        for turn in 0..count {
            script.turn(turn, 1 + (turn % 3) as u32, turn / 3 * Q, (turn / 3 + 1) * Q);
        }
        script
    }

    impl Script {
        fn turn(&mut self, turn: u64, f: u32, start: u64, finish: u64) {
            self.add(turn * Q, Kind::Begin, f, start, Q, 0);
            self.add((turn + 1) * Q, Kind::End, f, finish, Q, 0);
            self.add((turn + 1) * Q, Kind::Arrive, f, finish, 0, 1);
        }
    }

    #[test]
    fn turns_are_allowed_and_come_apart_by_half_of_the_bound() {
        let found = check(&HEAD, &turns(12).0);
        assert_eq!((found.decisions, found.not_allowed), (11, 0), "at the first one nobody has waited for a window");
        // Between two programs on one CPU: q of 2 q.
        assert_eq!((found.longest_ns, found.bound_used_permille), (Q, 500));
        assert!(found.intervals > 10 && found.verdict().is_ok());
        assert_eq!((found.looks, found.lines, found.most_lines), (found.events, 2 * found.events, 2));
    }

    #[test]
    fn a_program_that_is_ahead_must_not_begin_while_another_waits() {
        let mut script = turns(6);
        // Each has had two turns. The first takes the next two.
        (6..8).for_each(|turn| script.turn(turn, 1, (turn - 4) * Q, (turn - 3) * Q));
        let found = check(&HEAD, &script.0);
        assert_eq!(found.verdict().unwrap_err(), "1 of 7 decisions are none of the reference's");
    }

    #[test]
    fn an_overdue_thread_is_next_whatever_the_tags_say() {
        let mut script = turns(6);
        for turn in 6..8 {
            script.add(turn * Q, Kind::Overdue, 1, (turn - 4) * Q, 32_000_000 + turn, 1);
            script.turn(turn, 1, (turn - 4) * Q, (turn - 3) * Q);
        }
        let found = check(&HEAD, &script.0);
        assert_eq!((found.overdue, found.longest_wait_ns, found.not_allowed), (2, 32_000_007, 0));
        assert!(found.verdict().is_ok() && format!("{found}").contains("longest wait of one 32.000 ms"), "{found}");
    }

    #[test]
    fn an_overdue_thread_is_picked_before_the_request_that_runs_has_ended() {
        let mut script = turns(6);
        // Each has had two turns, and the second a third one, when a thread of the first is overdue.
        script.add(6 * Q, Kind::Begin, 2, 2 * Q, Q, 0);
        script.add(7 * Q, Kind::Overdue, 1, 2 * Q, 32_000_000, 1);
        script.add(7 * Q, Kind::End, 2, 3 * Q, Q, 0);
        script.add(7 * Q, Kind::Arrive, 2, 3 * Q, 0, 1);
        script.turn(7, 1, 6 * Q, 7 * Q);
        assert_eq!(check(&HEAD, &script.0).not_allowed, 0, "the third waits with a smaller tag");
        script.turn(8, 1, 7 * Q, 8 * Q);
        assert_eq!(check(&HEAD, &script.0).not_allowed, 1, "that turn alone is an overdue one");
    }

    #[test]
    fn a_thread_that_goes_on_with_a_siblings_quantum_is_not_judged() {
        let mut script = turns(6);
        for turn in 6..8 {
            script.add(turn * Q, Kind::Swap, 1, (turn - 4) * Q, Q, 0);
            script.turn(turn, 1, (turn - 4) * Q, (turn - 3) * Q);
        }
        assert_eq!(check(&HEAD, &script.0).not_allowed, 0);
        // For one request only.
        script.turn(8, 1, 4 * Q, 5 * Q);
        assert_eq!(check(&HEAD, &script.0).not_allowed, 1);
    }

    #[test]
    fn a_preemption_is_of_a_request_that_is_further_ahead() {
        let mut script = turns(2);
        script.add(7_000_000, Kind::Preempt, 2, 5, 5, 0);
        assert_eq!(check(&HEAD, &script.0).wrong_preemptions, 1);
    }

    #[test]
    fn a_thread_on_its_way_to_the_cpu_that_it_takes_waits_no_longer() {
        let head = Head { cpus: 3, ..HEAD };
        // Each has had two turns. The first begins a third one while a thread of the second is on its way to CPU 1.
        let decided = |on_their_way: &[u32]| {
            let mut script = turns(6);
            for program in on_their_way {
                script.add(6 * Q, Kind::Preempt, *program, 2 * Q, 3 * Q, 1);
                script.0.last_mut().unwrap().cpu = *program as u16 - 1;
            }
            script.turn(6, 1, 2 * Q, 3 * Q);
            script.turn(7, 1, 3 * Q, 4 * Q);
            check(&head, &script.0).not_allowed
        };
        assert_eq!((decided(&[]), decided(&[2]), decided(&[2, 3])), (1, 1, 0));
    }

    #[test]
    fn a_thread_that_waits_for_another_cpu_alone_is_not_passed_over() {
        let decided = |on: u16| {
            let mut script = turns(6);
            // Each has had two turns. The first begins a third one on CPU 0; the two others may run on one CPU each.
            for event in script.0.iter_mut().rev().filter(|event| event.kind == Kind::Arrive && event.program > 1) {
                (event.is_pinned, event.cpu) = (true, on);
            }
            script.turn(6, 1, 2 * Q, 3 * Q);
            script.turn(7, 1, 3 * Q, 4 * Q);
            check(&Head { cpus: 2, ..HEAD }, &script.0).not_allowed
        };
        assert_eq!((decided(0), decided(1)), (1, 0));
    }

    #[test]
    fn programs_that_come_apart_break_the_bound() {
        let mut script = turns(3);
        // The others wait all the time and get nothing. The tags of the first stand still, so no decision looks wrong.
        (3..12).for_each(|turn| script.turn(turn, 1, Q, Q));
        let found = check(&HEAD, &script.0);
        assert_eq!(found.not_allowed, 0);
        assert!(found.bound_used_permille > 1000, "{found}");
        assert!(found.verdict().unwrap_err().starts_with("two programs came apart"));
    }
}
