//! The log of clients that were refused or closed: at most a line per address and second, however many there are.

use mqfq_blk::worker::clock::Clock;
use mqfq_front::front_end::Log;
use std::sync::{Arc, Mutex, PoisonError};

/// Between two lines about one address, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// The lines of one address.
#[derive(Default)]
struct Lines {
    said_ns: Option<u64>,
    left_out: u64,
}

impl Lines {
    /// The line to write now.
    fn note(&mut self, line: &str, now_ns: u64) -> Option<String> {
        if self.said_ns.is_some_and(|said_ns| now_ns < said_ns + PAUSE_NS) {
            self.left_out += 1;
            return None;
        }
        self.said_ns = Some(now_ns);
        Some(match std::mem::take(&mut self.left_out) {
            0 => line.to_owned(),
            left_out => format!("{line} ({left_out} lines before it were left out)"),
        })
    }
}

/// A log for one address. `say` is called on workers, with a line and the export that it is about: it must neither wait
/// nor panic.
pub fn connection_log(say: impl Fn(&str, Option<&str>) + Send + Sync + 'static) -> Log {
    let (clock, lines) = (Clock::start(), Mutex::new(Lines::default()));
    Arc::new(move |line| {
        let said = lines.lock().unwrap_or_else(PoisonError::into_inner).note(line.text, clock.now_ns());
        said.iter().for_each(|text| say(text, line.export));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_per_second_and_what_was_left_out_is_counted() {
        let mut lines = Lines::default();
        assert_eq!(lines.note("a", 5).as_deref(), Some("a"));
        assert_eq!(lines.note("b", 6), None);
        assert_eq!(lines.note("c", PAUSE_NS + 4), None);
        assert_eq!(lines.note("d", PAUSE_NS + 5).as_deref(), Some("d (2 lines before it were left out)"));
        assert_eq!(lines.note("e", 3 * PAUSE_NS).as_deref(), Some("e"));
    }
}
