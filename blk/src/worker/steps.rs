//! An engine whose workers are stepped: a program turns them, and no thread of the engine's.
//!
//! A program that has all workers on one thread (a simulation of the whole server, in virtual time) makes the engine
//! with [`crate::engine::Engine::start_stepped`], gets a [`crate::worker::WorkerContext`] for each worker, and makes
//! the workers on hosts of its own. The engine then makes no thread, no ring and no eventfd, and asks for the time
//! here.
//!
//! Where the engine of a server waits for its workers' answers, this one has the program go on until they are there:
//! the same orders and answers, in one order that the program decides.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// The program that steps the workers of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// The time, ns. It never goes back.
    pub now_ns: fn() -> u64,
    /// Steps one worker that has something to do; if none has, goes on in time to when one will, but not past this time
    /// (ns). False: that time has come, or nothing will happen before it.
    pub go_on: fn(u64) -> bool,
}

impl Steps {
    /// As [`Receiver::recv_timeout`], of an answer that a worker gives in one of its next steps.
    ///
    /// # Errors
    /// As there.
    pub fn answer<T>(self, answers: &Receiver<T>, patience: Duration) -> Result<T, RecvTimeoutError> {
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = (self.now_ns)().saturating_add(patience_ns);
        loop {
            match answers.try_recv() {
                Ok(answer) => return Ok(answer),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if (self.go_on)(until_ns) => {}
                Err(TryRecvError::Empty) => return Err(RecvTimeoutError::Timeout),
            }
        }
    }
}
