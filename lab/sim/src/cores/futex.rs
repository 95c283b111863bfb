//! A lock that barges: `std::sync::Mutex` on Linux, step by step, each of its looks and exchanges an access like any
//! other.
//!
//! # Shape
//! ```text
//!   exchange ──▶ it was free: ours
//!      │ no
//!      ▼
//!   look, 100 times at most, while it is LOCKED ──▶ free: exchange once
//!      │                          ▲                          │ another core was faster
//!      ▼                          │                          ▼
//!   swap CONTENDED ──▶ it was free: ours. Otherwise a system call: sleep if it still is CONTENDED
//!
//!   unlock: swap FREE; it was CONTENDED: a system call, which wakes a sleeper if there is one
//! ```
//! Source: `library/std/src/sys/sync/mutex/futex.rs` of Rust 1.95, in our words. Where locks are held for less than a
//! system call takes, a core that has marked one CONTENDED mostly finds that it no longer is, and neither side sleeps,
//! but both have paid for a call.
//!
//! # How often it looks
//! A look takes a `pause` (24 ns on the machine of bench/record), and the line's way. But a core that exchanges the
//! word back and forth keeps its line for longer than that. Two threads there that hold a mutex for 5 to 10 ns and are
//! away from it for 0, 22, 45 and 90 ns keep it for 70 to 80, 12 to 47, 3 to 8 and 2 to 4 times in a row, and one use
//! in thousands makes a system call. So a core that looks rarely sees it free, hardly slows the holder, and if free
//! takes it. The time from look to look is calibrated to the first (`lock-look-ns`: with 300 ns here it is 88, 9 to
//! 10, 5 to 7 and 3), and for the last a look takes the line as its own, so that the exchange which follows finds it
//! there.

use super::{Access, Cores, Kind, State, in_order, make, suspend, with};
use std::collections::VecDeque;

/// Looks before a waiting core goes to sleep.
const LOOKS: u32 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Word {
    #[default]
    Free,
    Locked,
    /// Locked; its holder must wake a waiter when it unlocks.
    Contended,
}

/// The word, and the cores that wait for it.
#[derive(Default)]
pub(super) struct Futex {
    word: Word,
    sleeping: VecDeque<usize>,
}

impl Cores {
    fn futex(&mut self, address: usize) -> &mut Futex {
        &mut self.locks.entry(address).or_default().futex
    }

    /// Changes the word, and says what it was.
    fn exchange(&mut self, address: usize, word: Word) -> Word {
        std::mem::replace(&mut self.futex(address).word, word)
    }
}

/// An exchange of the word: if it is free it becomes `word`. What it was.
fn exchange_if_free(address: usize, word: Word) -> Word {
    read_modify_write(address);
    with(|cores| match cores.futex(address).word {
        Word::Free => cores.exchange(address, word),
        other => other,
    })
}

fn read_modify_write(address: usize) {
    in_order();
    make(Access { kind: Kind::ReadModifyWrite, address, lock_bytes: 0 });
}

/// Looks until it is free or contended, or has looked often enough.
fn look(address: usize) -> Word {
    for _ in 0..LOOKS {
        read_modify_write(address);
        let word = with(|cores| cores.futex(address).word);
        if word != Word::Locked {
            return word;
        }
        with(|cores| cores.compute_about(cores.costs.lock_look));
    }
    Word::Locked
}

/// Sleeps if the word is contended, as the system call sees it.
fn sleep(address: usize) {
    let half_call = with(|cores| cores.costs.futex / 2);
    with(|cores| cores.compute(half_call));
    in_order();
    let sleeps = with(|cores| {
        let core = cores.current;
        let sleeps = cores.futex(address).word == Word::Contended;
        if sleeps {
            cores.futex(address).sleeping.push_back(core);
            cores.rest(State::Locked);
        }
        sleeps
    });
    if sleeps {
        suspend();
        with(|cores| cores.compute(cores.costs.sleep));
    }
    with(|cores| cores.compute(half_call));
}

/// Takes the lock.
pub(super) fn lock(address: usize, lock_bytes: u32) {
    let since = with(|cores| cores.now());
    if exchange_if_free(address, Word::Locked) != Word::Free {
        wait(address);
        with(|cores| {
            let waited = cores.now() - since;
            cores.memory.waited_for_lock(waited);
        });
    }
    with(|cores| cores.hold(address, lock_bytes, cores.current));
}

/// Until it is ours.
fn wait(address: usize) {
    let mut word = look(address);
    if word == Word::Free {
        word = exchange_if_free(address, Word::Locked);
        if word == Word::Free {
            return;
        }
    }
    loop {
        if word != Word::Contended {
            read_modify_write(address);
            if with(|cores| cores.exchange(address, Word::Contended)) == Word::Free {
                return;
            }
        }
        sleep(address);
        word = look(address);
    }
}

/// Lets the lock go.
pub(super) fn unlock(address: usize) {
    read_modify_write(address);
    if with(|cores| cores.exchange(address, Word::Free)) != Word::Contended {
        return;
    }
    with(|cores| cores.compute(cores.costs.futex));
    in_order();
    with(|cores| {
        let Some(core) = cores.futex(address).sleeping.pop_front() else { return };
        cores.compute(cores.costs.kick);
        let at = cores.now() + cores.wake_latency(core);
        cores.wake(core, at);
    });
}
