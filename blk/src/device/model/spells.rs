//! Temporary disturbances of a drive, to test how its users cope with them.
//!
//! Answers: how long does a command take while the drive is slow, pauses, or is late? No preset has spells.
//!
//! | spell | stands for |
//! |---|---|
//! | slow for a while | thermal throttling, a rebuild behind the drive |
//! | pauses | garbage collection that stops the link |
//! | late commands | reads that are retried in the drive: a heavy tail |
//! | writes that drift | garbage collection, as a host sees it: writes become dearer and cheaper again |

/// The spells of a drive; by default none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spells {
    /// Every time is multiplied for a while.
    pub slow: Option<Slow>,
    /// The link stands still from time to time.
    pub pauses: Option<Pauses>,
    /// Some commands are late.
    pub late: Option<Late>,
    /// The time of writes on the link changes.
    pub write_drift: Option<Drift>,
}

/// An interval in which the drive is slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slow {
    /// Start, ns.
    pub from_ns: u64,
    /// End, ns.
    pub until_ns: u64,
    /// Factor of all times, 1..=1000.
    pub times: u32,
}

/// A pause at the beginning of each period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pauses {
    /// The period, at least 1 ns.
    pub every_ns: u64,
    /// Length of the pause, less than the period, ns.
    pub length_ns: u64,
}

/// Commands that take longer in their dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late {
    /// Number of such commands in 1000.
    pub permille: u32,
    /// Factor of the time in their dies, 1..=1000.
    pub times: u32,
}

/// Change of the link's time of a write: evenly up to `times` as much in the first half of each period, and back in
/// the second. A function of the time at which the transfer begins, so the model still does not depend on being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drift {
    /// Largest factor, 1..=64.
    pub times: u16,
    /// Length of a period, at least 2 ns.
    pub period_ns: u64,
}

impl Drift {
    /// Time of a write at `at_ns`, in 256ths of its time without drift.
    pub fn factor_256ths(&self, at_ns: u64) -> u64 {
        let at_ns = at_ns % self.period_ns;
        let from_end_ns = at_ns.min(self.period_ns - at_ns);
        let half_ns = u128::from(self.period_ns / 2);
        256 + (u128::from(self.times - 1) * 256 * u128::from(from_end_ns) / half_ns) as u64
    }
}

impl Spells {
    /// Factor of all times at `at_ns`.
    pub(crate) fn slowed(&self, at_ns: u64) -> u64 {
        match self.slow {
            Some(Slow { from_ns, until_ns, times }) if (from_ns..until_ns).contains(&at_ns) => times.into(),
            _ => 1,
        }
    }

    /// Time at which the link may begin a transfer that could begin at `at_ns` without pauses.
    pub(crate) fn after_pause(&self, at_ns: u64) -> u64 {
        match self.pauses {
            Some(Pauses { every_ns, length_ns }) => {
                let into_ns = at_ns % every_ns;
                at_ns + length_ns.saturating_sub(into_ns)
            }
            None => at_ns,
        }
    }

    /// Time on the link of a write that begins at `at_ns` and takes `took_ns` without drift.
    pub(crate) fn drifted(&self, took_ns: u64, at_ns: u64) -> u64 {
        match self.write_drift {
            Some(drift) => took_ns * drift.factor_256ths(at_ns) / 256,
            None => took_ns,
        }
    }
}
