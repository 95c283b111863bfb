//! A scenario: a machine, a scheduler, programs, and a duration.
//!
//! The parser reads it from TOML (`parse.rs`); tests and figures make it by hand. All times are virtual nanoseconds.

use super::body::Body;
use super::schedulers::SchedulerKind;
use mqfq_cpu::scheduler::{CoreId, Machine, Tasks};

/// A whole scenario, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Where it runs.
    pub machine: Machine,
    /// Costs on this machine.
    pub costs: Costs,
    /// Scheduler.
    pub scheduler: SchedulerKind,
    /// The programs, in the order of the file.
    pub programs: Vec<Program>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Nothing is counted before this.
    pub warm_up_ns: u64,
    /// How long it is counted after that.
    pub measured_ns: u64,
    /// Each thread begins somewhere in this time.
    pub start_spread_ns: u64,
    /// The stretches between these two times are kept.
    pub window_ns: Option<(u64, u64)>,
}

/// A program and its rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Work of its threads.
    pub body: Body,
    /// Its weight, 1 to [`Program::WEIGHT_MAX`]: as cgroup v2's `cpu.weight`, and as a tenant's of the block layer.
    pub weight: u32,
    /// Where its threads may run.
    pub pin: Pin,
}

impl Program {
    /// Weight of a program that has none of its own.
    pub const WEIGHT_DEFAULT: u32 = 100;
    /// Largest weight.
    pub const WEIGHT_MAX: u32 = 10_000;

    /// The weight in the units of schedulers, whose default is that of Linux's nice 0: in proportion, rounded.
    fn scheduler_weight(&self) -> u32 {
        (self.weight * Tasks::WEIGHT_DEFAULT + Self::WEIGHT_DEFAULT / 2) / Self::WEIGHT_DEFAULT
    }
}

/// Where threads may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Anywhere.
    Nowhere,
    /// Thread n only on core n.
    OneToOne,
}

/// Costs of operations, ns. The cost of a cache that must be filled again is in those of switching and moving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// A core runs another thread than before, or one after having been idle.
    pub context_switch_ns: u64,
    /// A thread runs on another core of its socket.
    pub migration_ns: u64,
    /// A thread runs on another socket.
    pub migration_other_socket_ns: u64,
    /// Two run queues are locked.
    pub double_lock_ns: u64,
    /// Another core's queue is looked at.
    pub scan_ns: u64,
    /// A thread wakes another one.
    pub wake_ns: u64,
    /// From one core's "pick again" to the other core.
    pub interrupt_ns: u64,
}

impl Costs {
    /// Nothing costs anything: what a policy does by itself.
    pub const NONE: Costs = Costs {
        context_switch_ns: 0,
        migration_ns: 0,
        migration_other_socket_ns: 0,
        double_lock_ns: 0,
        scan_ns: 0,
        wake_ns: 0,
        interrupt_ns: 0,
    };

    /// Linux on the bare machine. A context switch without cache misses took 3.8 us on a 2.0 GHz Xeon (Li, Ding and
    /// Shen, "Quantifying the Cost of Context Switch", ExpCS 2007); on the 2012 machines of P-MQFQ 2 us are ASSUMED.
    /// All others are ASSUMED: a wake-up by futex about 1 us, an interrupt to another core 1 us, and caches that a
    /// thread fills again in 5 us, from another socket in 10 us.
    pub const NATIVE: Costs = Costs {
        context_switch_ns: 2_000,
        migration_ns: 5_000,
        migration_other_socket_ns: 10_000,
        double_lock_ns: 500,
        scan_ns: 20,
        wake_ns: 1_000,
        interrupt_ns: 1_000,
    };

    /// Virtual CPUs: blocking, waking and interrupting each leave the guest ("expensive virtual CPU context switching
    /// due to blocking synchronization", P-MQFQ section 4.5). ASSUMED: that adds 3 us to a switch, and 2 us to a
    /// wake-up and an interrupt.
    pub const VIRTUAL: Costs = Costs { context_switch_ns: 5_000, wake_ns: 3_000, interrupt_ns: 3_000, ..Costs::NATIVE };
}

impl Scenario {
    /// The threads as a policy sees them.
    pub fn tasks(&self) -> Tasks {
        let mut tasks = Tasks::default();
        for program in &self.programs {
            let id = tasks.add_program(program.scheduler_weight());
            for thread in 0..program.body.threads() {
                let pin = match program.pin {
                    Pin::Nowhere => None,
                    Pin::OneToOne => Some(CoreId(thread as u16)),
                };
                tasks.add_thread(id, pin);
            }
        }
        tasks
    }

    /// The scenario with this program alone: the most that it can use.
    #[must_use]
    pub fn alone(&self, program: usize) -> Scenario {
        Scenario { programs: vec![self.programs[program].clone()], ..self.clone() }
    }
}
