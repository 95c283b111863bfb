//! Which queue has received most service lately?
//!
//! Source: P-MQFQ section 3.2: "tracks the progression of per-queue minimum vruntime in a 3ms time window and considers
//! the queue with the largest vruntime advancement as the one receiving most service". On Xen the window is an
//! accounting period, and the queue that discarded the fewest credits in it has advanced most.
//!
//! # What it approximates
//! The ideal preempts the largest start tag in service. Start tags of two queues do not compare, for each queue has an
//! axis of its own. Their advance over the same time does: a queue with one hog advances by 3 ms in 3 ms, one that two
//! threads share by half of that.
//!
//! # What it gives up
//! * All that is older than the window. A thread that was treated badly for longer is not owed for it.
//! * The owner of the service: an advance is the queue's, and the thread that runs there at the moment may have had
//!   little of it.
//! * With slices as long as the window, two threads that share a queue advance it in steps: by the whole window or not
//!   at all. The margin and the rule that a queue is preempted once in a window ([`super::preempt`]) keep this from
//!   doing harm.
//!
//! # Shape
//! Each queue's virtual time is noted at its ticks and stops, where it changes. The window slides: its advance is that
//! since the last note that is a window old.
//!
//! # Cost
//! One note per tick and stop, of which those of one window are kept, at most one in a sixteenth of it.

use crate::scheduler::CoreId;
use std::collections::VecDeque;

/// Most notes of one window.
const NOTES: u64 = 16;

/// Virtual time of a queue.
#[derive(Clone, Copy)]
struct Note {
    at_ns: u64,
    virtual_time: i64,
}

/// Each queue's advance in the last window.
pub struct Progress {
    window_ns: u64,
    queues: Vec<VecDeque<Note>>,
}

impl Progress {
    /// Nothing has advanced.
    pub fn new(cores: usize, window_ns: u64) -> Progress {
        let begin = VecDeque::from([Note { at_ns: 0, virtual_time: 0 }]);
        Progress { window_ns, queues: vec![begin; cores] }
    }

    /// Notes the queue's virtual time.
    pub fn note(&mut self, core: CoreId, virtual_time: i64, now_ns: u64) {
        let notes = &mut self.queues[core.index()];
        while notes.get(1).is_some_and(|second| second.at_ns + self.window_ns <= now_ns) {
            notes.pop_front();
        }
        let is_due = notes.back().is_none_or(|last| last.at_ns + self.window_ns / NOTES < now_ns);
        if is_due {
            notes.push_back(Note { at_ns: now_ns, virtual_time });
        }
    }

    /// Advance in the last window of the queue, which is at `virtual_time`. If its last note from before the window is
    /// older than that (it was idle), the part of it that falls to one window.
    pub fn advance(&self, core: CoreId, virtual_time: i64, now_ns: u64) -> i64 {
        let notes = &self.queues[core.index()];
        let from = notes.iter().rev().find(|note| note.at_ns + self.window_ns <= now_ns).or(notes.front());
        let Some(from) = from else { return 0 };
        let advance = virtual_time - from.virtual_time;
        let took_ns = now_ns - from.at_ns;
        if took_ns <= self.window_ns {
            return advance;
        }
        (i128::from(advance) * i128::from(self.window_ns) / i128::from(took_ns)) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_queue_that_one_thread_has_to_itself_advances_by_the_window_and_a_shared_one_by_half() {
        let mut progress = Progress::new(2, 4 * MS);
        for tick in 1..20 {
            progress.note(CoreId(0), (tick * MS) as i64, tick * MS);
            progress.note(CoreId(1), (tick / 2 * MS) as i64, tick * MS);
        }
        assert_eq!(progress.advance(CoreId(0), 20 * MS as i64, 20 * MS), 4 * MS as i64);
        assert_eq!(progress.advance(CoreId(1), 10 * MS as i64, 20 * MS), 2 * MS as i64);
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut progress = Progress::new(1, 3 * MS);
        let mut virtual_time = 0;
        for tick in 1..=100 {
            virtual_time += if tick <= 90 { MS as i64 } else { 0 };
            progress.note(CoreId(0), virtual_time, tick * MS);
        }
        assert_eq!(progress.advance(CoreId(0), virtual_time, 100 * MS), 0);
    }

    #[test]
    fn many_notes_in_a_window_take_no_more_room() {
        let mut progress = Progress::new(1, 3 * MS);
        for at in 0..100_000 {
            progress.note(CoreId(0), at, at as u64 * 1000);
        }
        assert!(progress.queues[0].len() as u64 <= NOTES + 2, "{}", progress.queues[0].len());
        let advance = progress.advance(CoreId(0), 100_000, 100 * MS);
        assert!((2990..=3200).contains(&advance), "1 per us: {advance}");
    }
}
