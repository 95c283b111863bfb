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
//! n is a mean over the last steps. T is bytes at the default weight, as ever: the rule takes a tenant's weight to be
//! that, so with all weights at 1000 queues may run 10 times as far apart in bytes of service.
//!
//! # Example
//! D is 129 units of 4 KiB, 516 KiB in all. 16 flows wait: 516 / 16 = 32.25, T = 32 KiB. It stays as long as the
//! quotient is at least 24 KiB (21.5 flows) and less than 80 KiB (6.45 flows): a mean that swings by a quarter about
//! a power of two changes nothing. If four wait, the quotient is 129 KiB, T = 128 KiB; if one waits, T is 256 KiB, the
//! most.
//!
//! # Invariants
//! N1. T is a power of two of bytes, from [`WINDOW_LEAST`] to [`WINDOW_MOST`]; it changes by a factor of two or more.
//! N2. After a change, the next one needs a quotient that is another by a sixth at least.
//! N3. A step in which no flow waits changes nothing.
//!
//! # Cost
//! A step is a few additions and one division. No clock: time passes by steps.

use crate::policy::PolicyOptions;
use crate::vtime::VSpan;
use std::fmt;

/// The smallest T that the rule sets: 16 KiB.
pub const WINDOW_LEAST: VSpan = VSpan::from_bytes(16 << 10);

/// The largest T that the rule sets: 256 KiB.
pub const WINDOW_MOST: VSpan = VSpan::from_bytes(256 << 10);

/// A unit of D where requests are counted and not their bytes: the request that most drives are made for.
const REQUEST_BYTES: u32 = 4096;

/// Parts of a queue that the mean is kept in.
const PARTS: u64 = 4096;

/// The mean moves by this part of the difference in each step, so that it forgets within some dozen steps.
const MEAN_STEPS: i64 = 32;

/// Why T is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowReason {
    /// No queue has waited yet.
    Start,
    /// It is the quotient, rounded.
    Quotient,
    /// The quotient is smaller than the least.
    Least,
    /// The quotient is larger than the most.
    Most,
}

/// What is in force, and why.
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
    /// Times that T has changed.
    pub changes: u64,
    /// When it changed last, ns, as the caller counts time; 0: never.
    pub changed_ns: u64,
}

/// "129 units of 4KiB over 16.0 flows that wait"; a size in whole KiB, or else in bytes.
impl fmt::Display for WindowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowState { depth, unit_bytes, waiting_hundredths, .. } = *self;
        let bound = match self.reason {
            WindowReason::Start => return f.write_str("no queue has waited yet"),
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
    /// Flows that wait, mean, in [`PARTS`]; 0: nobody has waited yet.
    waiting_parts: u64,
    state: WindowState,
}

impl WindowRule {
    /// A rule that begins with the T of `options`, moved into the rule's range.
    pub fn new(options: &PolicyOptions) -> WindowRule {
        let window_bytes = options.window.bytes().clamp(WINDOW_LEAST.bytes(), WINDOW_MOST.bytes());
        let state = WindowState {
            window_bytes: 1 << window_bytes.ilog2(),
            reason: WindowReason::Start,
            depth: options.depth,
            unit_bytes: options.token_unit_bytes.unwrap_or(REQUEST_BYTES),
            waiting_hundredths: 0,
            changes: 0,
            changed_ns: 0,
        };
        WindowRule { waiting_parts: 0, state }
    }

    /// T.
    pub fn window(&self) -> VSpan {
        VSpan::from_bytes(self.state.window_bytes)
    }

    /// What is in force, and why.
    pub fn state(&self) -> WindowState {
        self.state
    }

    /// D is `depth` units, 1 or more, and `waiting` flows have requests waiting. Returns T.
    pub fn step(&mut self, depth: u32, waiting: u32, now_ns: u64) -> VSpan {
        if waiting > 0 {
            self.follow(waiting);
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

    fn decide(&mut self, quotient: u64, now_ns: u64) {
        let (least, most) = (WINDOW_LEAST.bytes(), WINDOW_MOST.bytes());
        let window = self.state.window_bytes;
        let stays = quotient >= window - window / 4 && quotient < 2 * window + window / 2;
        let wanted = 1 << quotient.clamp(least, most).ilog2();
        self.state.reason = match quotient {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    fn rule(window_kib: u64) -> WindowRule {
        let window = VSpan::from_bytes(window_kib << 10);
        WindowRule::new(&PolicyOptions { window, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) })
    }

    /// T in KiB once the mean has come to `waiting`.
    fn settled(rule: &mut WindowRule, depth: u32, waiting: u32) -> u64 {
        (0..400).for_each(|_| _ = rule.step(depth, waiting, 0));
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
    fn nothing_that_waits_changes_nothing() {
        let mut rule = rule(64);
        assert_eq!(settled(&mut rule, 4096, 0), 64);
        assert_eq!(rule.state().to_string(), "no queue has waited yet");
        assert_eq!(settled(&mut rule, 129, 16), 32);
        assert_eq!((settled(&mut rule, 4096, 0), rule.state().depth), (32, 129));
    }

    #[test]
    fn a_count_that_swings_by_a_quarter_changes_t_once_at_most() {
        // Of every power of two of queues: the quotient lies on the edge of two windows.
        for queues in [4, 8, 16] {
            let mut rule = rule(64);
            settled(&mut rule, 128, queues);
            let before = rule.state().changes;
            for step in 0..4000u32 {
                // Half a thousand steps of a quarter more, then of a quarter less.
                let waiting = if step / 500 % 2 == 0 { queues + queues / 4 } else { queues - queues / 4 };
                rule.step(128, waiting, 0);
            }
            assert!(rule.state().changes <= before + 1, "{:?}", rule.state());
        }
    }

    #[test]
    fn any_history_keeps_to_powers_of_two_in_range_and_says_why() {
        let mut rule = rule(1024);
        assert_eq!(rule.window(), WINDOW_MOST, "it begins in its range");
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (depth, waiting) = (1 + (state >> 40) as u32 % 65_535, (state >> 33) as u32 % 1025);
            let before = rule.state();
            let window = rule.step(depth, waiting, 7);
            assert!(window.bytes().is_power_of_two() && (WINDOW_LEAST..=WINDOW_MOST).contains(&window));
            let after = rule.state();
            let has_changed = before.window_bytes != after.window_bytes;
            assert_eq!(after.changes - before.changes, u64::from(has_changed));
            match after.reason {
                WindowReason::Least if has_changed => assert_eq!(window, WINDOW_LEAST),
                WindowReason::Most if has_changed => assert_eq!(window, WINDOW_MOST),
                _ => {}
            }
        }
        assert_eq!(rule.state().changed_ns, 7);
    }
}
