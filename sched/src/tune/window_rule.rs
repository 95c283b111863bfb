//! How far apart may queues run? A rule for T, while a policy runs.
//!
//! Answers: which window T goes with a depth of D units when so many flows have requests waiting? Source: none; MQFQ
//! section 4 leaves T to the administrator. What T costs was measured in the simulator (docs/inside/window.md).
//!
//! # Rule
//! A request that comes to a queue of its own starts at virtual time, and each of the n flows that have requests
//! waiting in other queues may be T ahead of it: up to n T of service goes first. A flow in two queues counts twice,
//! and where one queue alone waits n is 1, since a queue is never ahead of itself. On the device the request stands
//! behind D units in any case.
//! A T that makes the first much larger than the second costs latency; a smaller one costs wake-ups and saves little.
//! So the two are made equal:
//!
//! ```text
//!   T = D * unit / n      rounded down to a power of two, 16 KiB to 256 KiB
//! ```
//! n is a mean over the last steps.
//!
//! A worker that keeps up with the device reaps about one completion at a time. One that reaps [`BEHIND_ENTER`] or
//! more, as a mean over the steps, is behind: requests wait for workers and not for the device, and what goes first on
//! another worker takes nothing from the one that has come. But all workers wait for the one whose turn is not over,
//! which dispatches dozens of requests, so a T that is shorter than the turns makes full cores wait. Then
//!
//! ```text
//!   T = 256 KiB * workers      rounded up to a power of two, 1 MiB to 16 MiB
//! ```
//! until the mean falls below [`BEHIND_LEAVE`]. A turn is up to 64 requests, 256 KiB of 4 KiB each, so T is what one
//! tenant can get in a turn of all workers. One worker waits for no other's turn: its T is the quotient.
//!
//! T is bytes at the default weight: the rule takes a tenant's weight to be that, so with all weights at 1000 queues
//! may run 10 times as far apart in bytes of service.
//!
//! # Example
//! D is 129 units of 4 KiB, 516 KiB in all. 16 flows wait: 516 / 16 = 32.25, T = 32 KiB. It stays as long as the
//! quotient is at least 24 KiB (21.5 flows) and less than 80 KiB (6.45 flows): a mean that swings by a quarter about
//! a power of two changes nothing. If four wait, the quotient is 129 KiB, T = 128 KiB; if one waits, T is 256 KiB, the
//! most. On a device that answers at once 16 workers reap 7 completions at once: they are behind, and T is 4 MiB.
//!
//! # Invariants
//! N1. T is a power of two of bytes, from [`WINDOW_LEAST`] to [`WINDOW_MOST`], or while workers are behind the one that
//!     follows from their number; it changes by a factor of two or more.
//! N2. After a change, the next one needs a quotient that is another by a sixth at least, or a mean of completions that
//!     is another by a factor of two.
//! N3. A step in which no flow waits changes nothing.
//!
//! # Cost
//! A step is a few additions and one division. No clock: time passes by steps.

use crate::policy::PolicyOptions;
use crate::vtime::VSpan;
use core::fmt;

/// The smallest T that the rule sets: 16 KiB.
pub const WINDOW_LEAST: VSpan = VSpan::from_bytes(16 << 10);

/// The largest T that the rule sets: 256 KiB.
pub const WINDOW_MOST: VSpan = VSpan::from_bytes(256 << 10);

/// Workers are behind from so many completions per reap on, as a mean.
pub const BEHIND_ENTER: u64 = 4;

/// Workers are no longer behind below so many.
pub const BEHIND_LEAVE: u64 = 2;

/// Bytes that a turn of a worker may give to one tenant: 64 requests of 4 KiB.
const TURN_BYTES: u64 = 256 << 10;

/// The range of T while workers are behind: 1 MiB to 16 MiB.
const BEHIND_RANGE_BYTES: (u64, u64) = (1 << 20, 16 << 20);

/// A unit of D where requests are counted and not their bytes: the request that most drives are made for.
const REQUEST_BYTES: u32 = 4096;

/// Parts of a queue that the mean is kept in.
const PARTS: u64 = 4096;

/// The mean moves by this part of the difference in each step, so that it forgets within some dozen steps.
const MEAN_STEPS: i64 = 32;

/// Reason of the T in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowReason {
    /// No queue has waited yet.
    Start,
    /// T is the quotient, rounded.
    Quotient,
    /// The quotient is smaller than the least.
    Least,
    /// The quotient is larger than the most.
    Most,
    /// Workers are behind: requests wait for them and not for the device.
    Workers,
}

/// The window in force, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowState {
    /// T, bytes at the default weight.
    pub window_bytes: u64,
    /// Why.
    pub reason: WindowReason,
    /// D of the last step, units.
    pub depth: u32,
    /// Bytes of a unit.
    pub unit_bytes: u32,
    /// Flows that wait, mean, in hundredths.
    pub waiting_hundredths: u64,
    /// Completions per reap, mean, in hundredths.
    pub reaped_hundredths: u64,
    /// Times that T has changed.
    pub changes: u64,
    /// When it changed last, ns, as the caller counts time; 0: never.
    pub changed_ns: u64,
}

/// "129 units of 4KiB over 16.0 flows that wait"; a size in whole KiB, or else in bytes.
impl fmt::Display for WindowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowState { depth, unit_bytes, waiting_hundredths, reaped_hundredths, .. } = *self;
        let bound = match self.reason {
            WindowReason::Start => return f.write_str("no queue has waited yet"),
            WindowReason::Workers => {
                let (whole, tenth) = (reaped_hundredths / 100, reaped_hundredths % 100 / 10);
                return write!(f, "the CPU is the limit: a worker reaps {whole}.{tenth} completions at once");
            }
            WindowReason::Quotient => "",
            WindowReason::Least => ", which would be less",
            WindowReason::Most => ", which would be more",
        };
        write!(f, "{depth} units of ")?;
        match unit_bytes % 1024 {
            0 => write!(f, "{}KiB", unit_bytes / 1024)?,
            _ => write!(f, "{unit_bytes} bytes")?,
        }
        let (whole, tenth) = (waiting_hundredths / 100, waiting_hundredths % 100 / 10);
        write!(f, " over {whole}.{tenth} flows that wait{bound}")
    }
}

/// The rule, and what it remembers of a device. See the module's text.
#[derive(Clone, Debug)]
pub struct WindowRule {
    /// Flows that wait, mean, in [`PARTS`]; 0: none has waited yet.
    waiting_parts: u64,
    /// Completions per reap, mean, in [`PARTS`].
    reaped_parts: u64,
    is_behind: bool,
    /// T while workers are behind. `None`: there is one, which waits for no other's turn.
    behind_bytes: Option<u64>,
    state: WindowState,
}

/// Input of a step of the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Flows that have requests waiting, each in each queue; 1 if a single queue waits.
    pub waiting: u32,
    /// Requests that have completed since the last step.
    pub completed: u64,
    /// Reaps that found them; 0: nothing is known of that.
    pub reaps: u64,
}

impl WindowRule {
    /// A rule for so many workers, that begins with the T of `options`, moved into the rule's range.
    pub fn new(options: &PolicyOptions, workers: usize) -> WindowRule {
        let window_bytes = options.window.bytes().clamp(WINDOW_LEAST.bytes(), WINDOW_MOST.bytes());
        let state = WindowState {
            window_bytes: 1 << window_bytes.ilog2(),
            reason: WindowReason::Start,
            depth: options.depth,
            unit_bytes: options.token_unit_bytes.unwrap_or(REQUEST_BYTES),
            waiting_hundredths: 0,
            reaped_hundredths: 100,
            changes: 0,
            changed_ns: 0,
        };
        let (least, most) = BEHIND_RANGE_BYTES;
        let turns_bytes = (TURN_BYTES * workers as u64).next_power_of_two().clamp(least, most);
        let behind_bytes = (workers > 1).then_some(turns_bytes);
        WindowRule { waiting_parts: 0, reaped_parts: PARTS, is_behind: false, behind_bytes, state }
    }

    /// T.
    pub fn window(&self) -> VSpan {
        VSpan::from_bytes(self.state.window_bytes)
    }

    /// The window in force, and why.
    pub fn state(&self) -> WindowState {
        self.state
    }

    /// D is `depth` units, 1 or more. Takes in counts since the last step. Returns T.
    pub fn step(&mut self, depth: u32, seen: Seen, now_ns: u64) -> VSpan {
        let Seen { waiting, completed, reaps } = seen;
        if waiting > 0 {
            self.follow(waiting);
            self.follow_workers(completed, reaps);
            let quotient = u64::from(depth) * u64::from(self.state.unit_bytes) * PARTS / self.waiting_parts;
            self.state.depth = depth;
            self.decide(quotient, now_ns);
        }
        self.window()
    }

    fn follow(&mut self, waiting: u32) {
        let now = u64::from(waiting) * PARTS;
        self.waiting_parts = match self.waiting_parts {
            0 => now,
            // Never 0: `now` is a flow at least.
            mean => mean.saturating_add_signed((now as i64 - mean as i64) / MEAN_STEPS),
        };
        self.state.waiting_hundredths = self.waiting_parts * 100 / PARTS;
    }

    fn follow_workers(&mut self, completed: u64, reaps: u64) {
        let Some(now) = (completed.min(1 << 32) * PARTS).checked_div(reaps) else { return };
        let further = (now as i64 - self.reaped_parts as i64) / MEAN_STEPS;
        self.reaped_parts = self.reaped_parts.saturating_add_signed(further);
        let limit = if self.is_behind { BEHIND_LEAVE } else { BEHIND_ENTER };
        self.is_behind = self.reaped_parts >= limit * PARTS;
        self.state.reaped_hundredths = self.reaped_parts * 100 / PARTS;
    }

    fn decide(&mut self, quotient: u64, now_ns: u64) {
        let (least, most) = (WINDOW_LEAST.bytes(), WINDOW_MOST.bytes());
        let window = self.state.window_bytes;
        let behind = self.behind_bytes.filter(|_| self.is_behind);
        let stays = behind.is_none() && quotient >= window - window / 4 && quotient < 2 * window + window / 2;
        let wanted = behind.unwrap_or(1 << quotient.clamp(least, most).ilog2());
        self.state.reason = match quotient {
            _ if behind.is_some() => WindowReason::Workers,
            _ if quotient < least => WindowReason::Least,
            _ if quotient >= 2 * most => WindowReason::Most,
            _ => WindowReason::Quotient,
        };
        if !stays && wanted != window {
            self.state.window_bytes = wanted;
            self.state.changes += 1;
            self.state.changed_ns = now_ns;
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    fn rule(window_kib: u64) -> WindowRule {
        let window = VSpan::from_bytes(window_kib << 10);
        let options = PolicyOptions { window, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) };
        WindowRule::new(&options, 4)
    }

    /// So many flows wait, for workers that keep up with the device.
    fn waits(waiting: u32) -> Seen {
        Seen { waiting, completed: 64, reaps: 60 }
    }

    /// T in KiB once the mean has come to `waiting`.
    fn settled(rule: &mut WindowRule, depth: u32, waiting: u32) -> u64 {
        (0..400).for_each(|_| _ = rule.step(depth, waits(waiting), 0));
        rule.window().bytes() >> 10
    }

    #[test]
    fn the_example_of_the_text() {
        for (waiting, window_kib) in [(16, 32), (4, 128), (1, 256), (1024, 16), (16, 32)] {
            assert_eq!(settled(&mut rule(32), 129, waiting), window_kib, "{waiting} queues");
        }
        let mut rule = rule(64);
        assert_eq!(settled(&mut rule, 129, 16), 32);
        assert_eq!(settled(&mut rule, 129, 21), 32, "24.6 KiB");
        assert_eq!(settled(&mut rule, 129, 22), 16, "23.5 KiB");
        assert_eq!(settled(&mut rule, 129, 21), 16, "24.6 KiB is less than 2.5 times 16");
        assert_eq!(rule.state().to_string(), "129 units of 4KiB over 21.0 flows that wait");
        assert_eq!(settled(&mut rule, 129, 60), 16);
        assert_eq!(rule.state().to_string(), "129 units of 4KiB over 59.9 flows that wait, which would be less");
    }

    #[test]
    fn a_rule_begins_with_the_depth_of_its_options_and_one_completion_a_turn() {
        let mut rule = rule(64);
        let state = rule.state();
        let depth = PolicyOptions::new(PolicyKind::Mqfq).depth;
        assert_eq!((state.depth, state.unit_bytes, state.reaped_hundredths), (depth, 4096, 100));
        rule.step(depth, Seen { waiting: 1, completed: 64, reaps: 64 }, 0);
        assert_eq!(rule.state().reaped_hundredths, 100);
    }

    #[test]
    fn nothing_that_waits_changes_nothing() {
        let mut rule = rule(64);
        assert_eq!(settled(&mut rule, 4096, 0), 64);
        assert_eq!(rule.state().to_string(), "no queue has waited yet");
        assert_eq!(settled(&mut rule, 129, 16), 32);
        assert_eq!((settled(&mut rule, 4096, 0), rule.state().depth), (32, 129));
    }

    #[test]
    fn a_count_that_swings_by_a_quarter_changes_t_once_at_most() {
        // At every power of two of queues the quotient lies on the edge of two windows.
        for queues in [4, 8, 16] {
            let mut rule = rule(64);
            settled(&mut rule, 128, queues);
            let before = rule.state().changes;
            for step in 0..4000u32 {
                // Half a thousand steps of a quarter more, then of a quarter less.
                let waiting = if step / 500 % 2 == 0 { queues + queues / 4 } else { queues - queues / 4 };
                rule.step(128, waits(waiting), 0);
            }
            assert!(rule.state().changes <= before + 1, "{:?}", rule.state());
        }
    }

    #[test]
    fn any_history_keeps_to_powers_of_two_in_range_and_says_why() {
        let mut rule = rule(1024);
        assert_eq!(rule.window(), WINDOW_MOST, "it begins in its range");
        let (mut state, mut behind) = (1u64, 0);
        for step in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (depth, waiting) = (1 + (state >> 40) as u32 % 65_535, (state >> 33) as u32 % 1025);
            // Half a thousand steps of workers that keep up, then of some that do not, or of nothing known.
            let reaps = [64, (state >> 20) % 17][(state >> 8) as usize % 2 * (step / 500 % 2)];
            let seen = Seen { waiting, completed: 64, reaps };
            let before = rule.state();
            let window = rule.step(depth, seen, 7);
            let after = rule.state();
            match after.reason {
                WindowReason::Workers => assert_eq!(window.bytes(), 1 << 20, "four workers"),
                _ => assert!(window.bytes().is_power_of_two() && (WINDOW_LEAST..=WINDOW_MOST).contains(&window)),
            }
            behind += u32::from(after.reason == WindowReason::Workers);
            let has_changed = before.window_bytes != after.window_bytes;
            assert_eq!(after.changes - before.changes, u64::from(has_changed));
            match after.reason {
                WindowReason::Least if has_changed => assert_eq!(window, WINDOW_LEAST),
                WindowReason::Most if has_changed => assert_eq!(window, WINDOW_MOST),
                _ => {}
            }
        }
        assert_eq!(rule.state().changed_ns, 7);
        assert!((10_000..90_000).contains(&behind), "{behind} steps with workers behind");
    }

    #[test]
    fn t_is_a_turn_of_all_workers_while_they_are_behind() {
        let windows_kib = [(2, 1024), (3, 1024), (4, 1024), (5, 2048), (16, 4096), (64, 16_384), (128, 16_384)];
        for (workers, window_kib) in windows_kib {
            let mut rule = WindowRule::new(&PolicyOptions::new(PolicyKind::Mqfq), workers);
            // Seven per reap, as 16 workers find them on a device that answers at once. The mean begins at one.
            let (depth, seen) = (64, Seen { waiting: 32, completed: 64, reaps: 9 });
            let steps = (1..400).find(|_| rule.step(depth, seen, 0) > WINDOW_MOST).expect("a longer T");
            assert_eq!((rule.window().bytes() >> 10, rule.state().reason), (window_kib, WindowReason::Workers));
            assert!((10..40).contains(&steps), "{steps} steps: not at a single burst, and within 40 of 32 completions");
            // Three per reap are less than they were, and no sign that the workers keep up.
            (0..400).for_each(|_| _ = rule.step(depth, Seen { reaps: 21, ..seen }, 0));
            assert_eq!(rule.window().bytes() >> 10, window_kib);
            assert_eq!(rule.state().to_string(), "the CPU is the limit: a worker reaps 3.0 completions at once");
            // No flow waits, or no reap: nothing is learnt.
            (0..400).for_each(|_| _ = rule.step(depth, Seen { waiting: 0, reaps: 64, ..seen }, 0));
            (0..400).for_each(|_| _ = rule.step(depth, Seen { reaps: 0, ..seen }, 0));
            assert_eq!(rule.window().bytes() >> 10, window_kib);
            // One per reap: the device is the limit, and T is the quotient, 8 KiB and so the least.
            (0..400).for_each(|_| _ = rule.step(depth, Seen { reaps: 64, ..seen }, 0));
            assert_eq!((rule.window(), rule.state().reason), (WINDOW_LEAST, WindowReason::Least));
        }
        let mut alone = WindowRule::new(&PolicyOptions::new(PolicyKind::Mqfq), 1);
        (0..400).for_each(|_| _ = alone.step(64, Seen { waiting: 1, completed: 64, reaps: 1 }, 0));
        assert_eq!(alone.window(), WINDOW_MOST, "one worker waits for nobody's turn");
    }

    #[test]
    fn workers_are_behind_from_a_mean_of_four_on_and_until_two_is_not_reached() {
        let at = |mean_parts: u64, is_behind: bool, reaps: u64| {
            let mut rule = WindowRule { reaped_parts: mean_parts, is_behind, ..rule(64) };
            // As many completions per reap as the mean has, so that it stays.
            rule.follow_workers(mean_parts * reaps / PARTS, reaps);
            assert_eq!(rule.reaped_parts, mean_parts);
            rule.is_behind
        };
        let (enter, leave) = (BEHIND_ENTER * PARTS, BEHIND_LEAVE * PARTS);
        assert_eq!([enter - 1, enter].map(|mean| at(mean, false, PARTS)), [false, true]);
        assert_eq!([leave - 1, leave].map(|mean| at(mean, true, PARTS)), [false, true]);
    }

    #[test]
    fn t_changes_at_three_quarters_and_at_two_and_a_half_times_itself() {
        const KIB: u64 = 1024;
        let decided = |quotient| {
            let mut rule = rule(64);
            rule.decide(quotient, 5);
            let WindowState { window_bytes, changes, changed_ns, .. } = rule.state();
            assert_eq!((changes, changed_ns), if window_bytes == 64 * KIB { (0, 0) } else { (1, 5) });
            window_bytes / KIB
        };
        let around = [48 * KIB - 1, 48 * KIB, 160 * KIB - 1, 160 * KIB].map(decided);
        assert_eq!(around, [32, 64, 64, 128]);
        let reason = |quotient| {
            let mut rule = rule(64);
            rule.decide(quotient, 0);
            rule.state().reason
        };
        let (least, most) = (WINDOW_LEAST.bytes(), 2 * WINDOW_MOST.bytes());
        assert_eq!([least - 1, least].map(reason), [WindowReason::Least, WindowReason::Quotient]);
        assert_eq!([most - 1, most].map(reason), [WindowReason::Quotient, WindowReason::Most]);
    }
}
