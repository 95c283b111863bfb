//! Weight raising: whose weight counts for more for a while, because a person may be waiting?
//!
//! Source: Valente and Andreolini, "Improving Application Responsiveness with the BFQ Disk I/O Scheduler", SYSTOR 2012;
//! Valente and Avanzini
//! 2015. Two kinds: an *interactive* flow is new or has been idle for long, and is raised by 30 for a while; a *soft
//! real-time* flow asks for little at a time and then pauses, like a player, and is raised by 100 times as much, for
//! shorter.
//!
//! # What is soft real-time
//! ```text
//!   batch: ██ █ ██        next batch            a batch begins with the first request after a time without any
//!          │      └ done  │                     it may not use more than 7000 sectors per second, so it is looked at
//!          └ began        └ not before:           when the next begins: began + bytes / rate, and
//!                                                 done + slice-idle + 4 ms
//! ```
//! The second is there because a greedy flow that is served slowly is idle too when its request is done, but only for a
//! moment.
//!
//! # What is simpler than in Linux
//! The duration of interactive raising is constant; there it follows the device's rate, and ends early for a flow that
//! has read much. Raised is the flow (the tenant), not one queue of it: there a queue's raised weight counts within its
//! group only.

/// Factor on an interactive flow's weight.
const INTERACTIVE: u64 = 30;

/// Factor on a soft real-time flow's weight.
const SOFT_REAL_TIME: u64 = 100 * INTERACTIVE;

/// How long a flow must have been idle to be interactive when it comes back.
const IDLE_LONG_NS: u64 = 2_000_000_000;

/// How long an interactive flow stays raised.
const INTERACTIVE_NS: u64 = 3_000_000_000;

/// How long a soft real-time flow stays raised, if it is not found to be one again.
const SOFT_REAL_TIME_NS: u64 = 300_000_000;

/// Most that a soft real-time flow may use: 7000 sectors per second.
const SOFT_REAL_TIME_BYTES_PER_S: u64 = 7000 * 512;

/// Beyond slice-idle, how much longer it must pause.
const PAUSE_NS: u64 = 4_000_000;

/// A flow's state. All of it is about times at which the flow had nothing staged and nothing on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raising {
    /// 1: not raised.
    coefficient: u64,
    until_ns: u64,
    /// Since when it is idle, or was last; `None`: it is new.
    idle_since_ns: Option<u64>,
    batch_began_ns: u64,
    batch_bytes: u64,
    /// A batch that begins from then on is soft real-time.
    soft_from_ns: u64,
}

impl Raising {
    /// State of a flow that has asked for nothing.
    pub(super) const NEW: Raising = Raising {
        coefficient: 1,
        until_ns: 0,
        idle_since_ns: None,
        batch_began_ns: 0,
        batch_bytes: 0,
        soft_from_ns: u64::MAX,
    };

    /// Current factor on the flow's weight.
    pub(super) fn coefficient(&self) -> u64 {
        self.coefficient
    }

    /// It is raised.
    pub(super) fn is_raised(&self) -> bool {
        self.coefficient > 1
    }

    /// A batch begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.lapse(now_ns);
        if self.idle_since_ns.is_none_or(|since| now_ns.saturating_sub(since) >= IDLE_LONG_NS) {
            (self.coefficient, self.until_ns) = (INTERACTIVE, now_ns + INTERACTIVE_NS);
        } else if now_ns >= self.soft_from_ns {
            (self.coefficient, self.until_ns) = (SOFT_REAL_TIME, now_ns + SOFT_REAL_TIME_NS);
        }
        (self.batch_began_ns, self.batch_bytes) = (now_ns, 0);
    }

    /// The flow uses so much.
    pub(super) fn serve(&mut self, bytes: u64) {
        self.batch_bytes += bytes;
    }

    /// A batch is over.
    pub(super) fn end(&mut self, now_ns: u64, slice_idle_ns: u64) {
        let at_rate_ns = u128::from(self.batch_bytes) * 1_000_000_000 / u128::from(SOFT_REAL_TIME_BYTES_PER_S);
        let at_rate_ns = self.batch_began_ns.saturating_add(u64::try_from(at_rate_ns).unwrap_or(u64::MAX));
        self.soft_from_ns = at_rate_ns.max(now_ns + slice_idle_ns + PAUSE_NS);
        self.idle_since_ns = Some(now_ns);
    }

    /// Raising ends by itself. True if it does now.
    pub(super) fn lapse(&mut self, now_ns: u64) -> bool {
        let ends = self.is_raised() && now_ns >= self.until_ns;
        if ends {
            self.coefficient = 1;
        }
        ends
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Batches of `bytes` that take `busy_ns`, each `pause_ns` after the last; the coefficient when each began.
    fn batches(raising: &mut Raising, from_ns: u64, count: u64, bytes: u64, busy_ns: u64, pause_ns: u64) -> Vec<u64> {
        let batch = |n| {
            let began = from_ns + n * (busy_ns + pause_ns);
            raising.begin(began);
            raising.serve(bytes);
            raising.end(began + busy_ns, 8 * MS);
            raising.coefficient()
        };
        (0..count).map(batch).collect()
    }

    #[test]
    fn new_and_long_idle_flows_are_interactive_for_three_seconds() {
        let mut raising = Raising::NEW;
        raising.begin(0);
        assert_eq!(raising.coefficient(), 30);
        assert!(!raising.lapse(2999 * MS));
        assert!(raising.lapse(3000 * MS));
        raising.end(5000 * MS, 8 * MS);
        // Idle for less than two seconds and then for two. (It used nothing, so it is soft real-time the first time.)
        raising.begin(5001 * MS);
        assert_eq!(raising.coefficient(), 1);
        raising.end(5002 * MS, 8 * MS);
        raising.begin(7002 * MS);
        assert_eq!(raising.coefficient(), 30);
    }

    #[test]
    fn a_player_is_soft_real_time_and_a_greedy_flow_is_not() {
        // 64 KiB each 40 ms: 1.6 MB/s of 3.58.
        let (mut player, settled) = (Raising::NEW, 10_000 * MS);
        player.begin(0);
        player.end(settled - 20 * MS, 8 * MS);
        assert_eq!(batches(&mut player, settled, 5, 64 << 10, 5 * MS, 35 * MS), [3000; 5]);
        // 256 KiB each 40 ms is 6.5 MB/s: what its one small request before the first batch earned ends after 300 ms, 8
        // batches.
        let mut reader = Raising::NEW;
        reader.begin(0);
        reader.end(settled - 20 * MS, 8 * MS);
        assert_eq!(batches(&mut reader, settled, 20, 256 << 10, 5 * MS, 35 * MS)[8..], [1; 12]);
        // 4 KiB after each other: served once in 100 ms it uses little, but it asks again at once.
        let mut greedy = Raising::NEW;
        greedy.begin(0);
        greedy.end(settled, 8 * MS);
        assert_eq!(batches(&mut greedy, settled + MS, 5, 4096, 100 * MS, MS), [1; 5]);
    }
}
