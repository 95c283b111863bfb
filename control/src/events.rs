//! Events since event N: the last events, numbered, for any number of readers.
//!
//! A reader that is slower than events come finds a gap in their numbers and is told; no writer waits for it.

use crate::time::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokio::sync::watch;

/// Events that are kept.
pub const EVENTS_MAX: usize = 1024;

/// Something that happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// From 1, without gaps.
    pub id: u64,
    /// When, UTC.
    pub at: String,
    /// `change`, `refused`, `trouble`, `note` or `draining`.
    pub kind: String,
    /// One sentence.
    pub sentence: String,
    /// More, for programs; `null`: nothing.
    pub data: Value,
}

/// The last [`EVENTS_MAX`] events.
pub struct Events {
    kept: Mutex<VecDeque<Arc<Event>>>,
    last: watch::Sender<u64>,
}

impl Default for Events {
    fn default() -> Self {
        Events { kept: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Events {
    /// Adds one. Called on any thread but a worker's: it takes a lock and memory.
    pub fn push(&self, kind: &str, sentence: impl Into<String>, data: Value) {
        let mut kept = self.kept();
        let id = *self.last.borrow() + 1;
        let (kind, sentence) = (kind.to_owned(), sentence.into());
        if kept.len() == EVENTS_MAX {
            kept.pop_front();
        }
        kept.push_back(Arc::new(Event { id, at: rfc3339(SystemTime::now()), kind, sentence, data }));
        self.last.send_replace(id);
    }

    /// The number of the last one; 0: none has happened.
    pub fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Changes when something happens.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// The first event after number `after` that is kept, and how many between were not.
    pub fn next(&self, after: u64) -> Option<(Arc<Event>, u64)> {
        let kept = self.kept();
        let first = kept.front()?.id;
        let wanted = (after + 1).max(first);
        let event = kept.get((wanted - first) as usize)?.clone();
        Some((event, wanted - after - 1))
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<Event>>> {
        // Whole at each unlock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_each_event_once_and_a_slow_one_learns_how_many_it_missed() {
        let events = Events::default();
        assert_eq!((events.last(), events.next(0)), (0, None));
        for number in 1..=EVENTS_MAX as u64 + 7 {
            events.push("note", number.to_string(), Value::from(number));
        }
        let (event, missed) = events.next(3).unwrap();
        assert_eq!((event.id, missed, event.sentence.as_str()), (8, 4, "8"));
        assert_eq!((event.kind.as_str(), &event.data), ("note", &Value::from(8)));
        assert!(event.at.starts_with("20") && event.at.ends_with('Z'), "{}", event.at);
        assert_eq!(events.next(8).unwrap().0.id, 9);
        assert_eq!(events.next(events.last()), None);
    }
}
