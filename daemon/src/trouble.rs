//! What is said on stderr of devices whose commands take too long: at most a line per device and second, however many there are.

use mqfq_blk::stats::Trouble;

/// Between two lines about one device, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// What is to be said of one device.
#[derive(Clone, Default)]
struct Untold {
    trouble: Trouble,
    /// When something was last said.
    said_ns: Option<u64>,
}

/// The devices, by index.
pub struct TroubleLog {
    names: Vec<String>,
    untold: Vec<Untold>,
}

impl TroubleLog {
    /// Nothing has happened.
    pub fn new(names: Vec<String>) -> TroubleLog {
        TroubleLog { untold: vec![Untold::default(); names.len()], names }
    }

    /// Takes note. The line to say now, with what was kept back since the last one.
    pub fn note(&mut self, device: usize, trouble: Trouble, now_ns: u64) -> Option<String> {
        let Untold { trouble: sum, said_ns } = &mut self.untold[device];
        sum.timeouts += trouble.timeouts;
        sum.resets += trouble.resets;
        sum.stuck += trouble.stuck;
        if said_ns.is_some_and(|said_ns| now_ns < said_ns + PAUSE_NS) {
            return None;
        }
        *said_ns = Some(now_ns);
        let Trouble { timeouts, resets, stuck } = std::mem::take(sum);
        let parts = [(timeouts, "timed out"), (stuck, "are stuck, the device can neither abort nor reset them")];
        let commands: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} commands {what}"))
            .chain((resets > 0).then(|| format!("its queue was reset {resets} times")))
            .collect();
        Some(format!("device {}: {}", self.names[device], commands.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_of_once_a_second_and_nothing_is_left_out() {
        let mut log = TroubleLog::new(vec!["fast".into(), "slow".into()]);
        let timeouts = |timeouts| Trouble { timeouts, ..Trouble::default() };
        assert_eq!(log.note(0, timeouts(3), 0).as_deref(), Some("device fast: 3 commands timed out"));
        assert_eq!(log.note(0, timeouts(2), PAUSE_NS - 1), None);
        assert_eq!(
            log.note(1, Trouble { stuck: 1, resets: 2, timeouts: 0 }, 5).as_deref(),
            Some(
                "device slow: 1 commands are stuck, the device can neither abort nor reset them, its queue was reset 2 times"
            )
        );
        assert_eq!(log.note(0, timeouts(4), PAUSE_NS).as_deref(), Some("device fast: 6 commands timed out"));
    }
}
