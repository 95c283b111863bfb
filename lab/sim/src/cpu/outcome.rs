//! Outcome of a run.

use serde::Serialize;

/// A whole run. The same scenario gives the same outcome to the last bit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The policy.
    pub scheduler: String,
    /// Cores of the machine.
    pub cores: u32,
    /// Length of the counted part.
    pub measured_ns: u64,
    /// By program of the scenario.
    pub programs: Vec<ProgramOutcome>,
    /// Cores' time on which nothing ran.
    pub idle_ns: u64,
    /// Idle time that waiting threads could have used, wherever they may run.
    pub idle_while_queued_ns: u64,
    /// Discrete events.
    pub events: u64,
    /// Stretches of threads on cores in the scenario's window, in the order in which they ended; empty without one.
    pub timeline: Vec<Stretch>,
}

/// One program.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ProgramOutcome {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: u32,
    /// Its threads.
    pub threads: u32,
    /// Time on cores, of all threads: the sum of the next three.
    pub cpu_ns: u64,
    /// Computing.
    pub useful_ns: u64,
    /// Spinning.
    pub spun_ns: u64,
    /// Switching, moving, waking.
    pub overhead_ns: u64,
    /// Part of the machine's time, 0..=1.
    pub share: f64,
    /// Cores that it used on average.
    pub cores_used: f64,
    /// Pieces of work done.
    pub items: u64,
    /// Pieces of work done, per second.
    pub items_per_s: f64,
    /// Wanting to run and not running, of all threads.
    pub queued_ns: u64,
    /// Times that a thread was put on another core than the one it ran on before.
    pub migrations: u64,
    /// Times that a thread lost its core while it could have gone on.
    pub preemptions: u64,
    /// Times that a core began to run a thread of it after having run another one, or nothing.
    pub context_switches: u64,
    /// Times that a thread blocked.
    pub blocks: u64,
    /// Times that a thread woke.
    pub wakes: u64,
    /// Distinct cores that its threads ran on last, on average: what stacking makes small.
    pub cores_last_mean: f64,
    /// Longest wait of one thread for a core.
    pub queued_ns_max: u64,
    /// By thread.
    pub by_thread: Vec<ThreadOutcome>,
}

/// One thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ThreadOutcome {
    /// Time on cores.
    pub cpu_ns: u64,
    /// Wanting to run and not running.
    pub queued_ns: u64,
}

/// A thread ran on a core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Stretch {
    /// The core that it ran on.
    pub core: u32,
    /// Program, by its number in the scenario.
    pub program: u32,
    /// Thread, by its number in the program.
    pub thread: u32,
    /// Virtual time.
    pub from_ns: u64,
    /// Virtual time.
    pub to_ns: u64,
}

impl Outcome {
    /// The program of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn program(&self, name: &str) -> &ProgramOutcome {
        self.programs.iter().find(|program| program.name == name).expect("a program of the scenario")
    }
}
