//! Large sequential requests that follow from a tenant's own: flushes and compactions.
//!
//! Each completed request of a thread adds to a debt in bytes, which the background pays in requests of its size. It
//! falls behind where the device is too slow for both; a store that then stops taking writes is not modelled.

use super::random::Random;
use super::shape::Cursor;
use super::{Ask, Source, Step, moves};
use crate::scenario;
use std::cell::Cell;
use std::rc::Rc;

/// How often the background looks whether it owes a request, ns. At 1 MiB per request and 5 GB/s one is owed every 200
/// us.
const LOOK_NS: u64 = 100_000;

/// Bytes owed.
pub type Debt = Rc<Cell<u64>>;

/// A thread whose completed requests add to the debt.
pub struct Owing {
    /// The thread.
    pub source: Box<dyn Source>,
    /// Shared by the tenant.
    pub debt: Debt,
    /// Bytes per request.
    pub per_request_bytes: u32,
}

impl Source for Owing {
    fn next(&mut self, now_ns: u64) -> Step {
        self.source.next(now_ns)
    }

    fn completed(&mut self, now_ns: u64) -> bool {
        let counts = self.source.completed(now_ns);
        if counts {
            self.debt.set(self.debt.get() + u64::from(self.per_request_bytes));
        }
        counts
    }
}

/// Pays the debt.
pub struct Background {
    options: scenario::Background,
    debt: Debt,
    random: Random,
    reads: Cursor,
    writes: Cursor,
    in_flight: u32,
}

impl Background {
    /// Reading at one place of the device and writing at another.
    ///
    /// # Errors
    /// A request is larger than the device.
    pub fn new(
        options: scenario::Background,
        debt: Debt,
        device_size_bytes: u64,
        mut random: Random,
    ) -> Result<Background, String> {
        let reads = Cursor::new(0, device_size_bytes, options.size_bytes, &mut random)?;
        let writes = Cursor::new(0, device_size_bytes, options.size_bytes, &mut random)?;
        Ok(Background { options, debt, random, reads, writes, in_flight: 0 })
    }
}

impl Source for Background {
    fn next(&mut self, now_ns: u64) -> Step {
        let length_bytes = self.options.size_bytes;
        if self.in_flight == self.options.depth {
            return Step::WaitForCompletion;
        }
        let Some(left) = self.debt.get().checked_sub(u64::from(length_bytes)) else {
            return Step::WaitUntil(now_ns + LOOK_NS);
        };
        self.debt.set(left);
        self.in_flight += 1;
        let is_write = !self.random.percent(self.options.read_percent);
        let cursor = if is_write { &mut self.writes } else { &mut self.reads };
        let (op, offset_bytes) = (moves(is_write), cursor.take(length_bytes));
        Step::Ask(Ask { op, offset_bytes, length_bytes, arrived_ns: now_ns })
    }

    fn completed(&mut self, _now_ns: u64) -> bool {
        self.in_flight -= 1;
        true
    }
}
