//! A kill before any store, in tests: the store unwinds, and nothing behind it happens.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// Stores until the kill; `None`: none comes.
    static STORES_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Killed;

/// Before each store that outlives the server.
pub fn step() {
    match STORES_LEFT.get() {
        Some(0) => resume_unwind(Box::new(Killed)),
        left => STORES_LEFT.set(left.map(|stores| stores - 1)),
    }
}

/// Does `turn`, which is killed once it has made so many stores, and says whether it came to its end.
pub fn after(stores: usize, turn: impl FnOnce()) -> bool {
    STORES_LEFT.set(Some(stores));
    let done = catch_unwind(AssertUnwindSafe(turn));
    STORES_LEFT.set(None);
    match done {
        Ok(()) => true,
        Err(why) if why.is::<Killed>() => false,
        Err(why) => resume_unwind(why),
    }
}
