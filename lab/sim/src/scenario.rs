//! A scenario: a machine, a device, a policy, tenants, and a duration.
//!
//! The parser reads it from TOML; a figure makes many of one by setting keys. All times are virtual
//! nanoseconds, all sizes bytes.

mod parse;
mod tenant;
#[cfg(test)]
mod tests;

use crate::form::ByHand;
use mqfq_blk_watched::GroupId;
use mqfq_blk_watched::cap::CapLimits;
use mqfq_blk_watched::request::Op;
use mqfq_blk_watched::split::Split;
use mqfq_blk_watched::{CostModel, OwnOptions, PolicyKind, PriorityClass, Weight};
use mqfq_blkmq_watched::QueueLayout;
use mqfq_nvme_watched::Arbitration;
use mqfq_nvme_watched::media::VolatileCache;
use mqfq_nvme_watched::spells::Spells;
use mqfq_sched_watched::goal::GoalControl;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A whole scenario, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Where it runs.
    pub machine: Machine,
    /// Shared device.
    pub device: Device,
    /// Its policy.
    pub policy: Policy,
    /// Groups of tenants; each comes after the one that it is in.
    pub groups: Vec<Group>,
    /// The tenants, in the order of the file; flow number i is tenant i (a tenant with `count` > 1 is that many of
    /// them).
    pub tenants: Vec<Tenant>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Nothing is counted before this.
    pub warm_up_ns: u64,
    /// How long it is counted after that.
    pub measured_ns: u64,
    /// Length of the parts of the run that are told apart; `None`: it is told as a whole.
    pub window_ns: Option<u64>,
    /// Times in which all tenants wait are told apart.
    pub tells_backlog: bool,
}

/// Cores and what they cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Name of the preset that it began with, for reports.
    pub name: String,
    /// 1..=8.
    pub sockets: usize,
    /// Cores of each socket, 1..=1024.
    pub cores_per_socket: usize,
    /// Circuit boards that the sockets are spread over evenly, 1..=`sockets`.
    pub boards: usize,
    /// Hardware threads of each core, 1..=2.
    pub threads_per_core: usize,
    /// Workers, 1..=all hardware threads, at most 1024. They fill one thread of each core of the first socket, then of
    /// the second, and so on, then the second threads (MQFQ section 4).
    pub workers: usize,
    /// Costs of operations.
    pub latency: Latencies,
    /// Accesses to shared memory cost nothing and an operation of the policy is one step: several times faster to
    /// simulate, and right where memory is not the question.
    pub memory_is_free: bool,
    /// A worker's turns end for the sake of fairness, if tenants have sockets
    /// ([`mqfq_blk_watched::worker::WorkerOptions::fair_turns`]); otherwise it serves its sockets one after the other.
    pub intake_is_fair: bool,
    /// Other programs take the cores from the workers. `None`: nothing else runs.
    pub stolen: Option<Stolen>,
}

/// Core time that workers lose: each runs and is stopped in turn, for times drawn evenly from these ranges, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stolen {
    /// Least and longest time between two stops.
    pub runs_ns: (u64, u64),
    /// Least and longest stop.
    pub stops_ns: (u64, u64),
}

/// Costs of a core. See `machine.rs` for the presets and the source of every number.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Latencies {
    /// A load that hits the own cache, ns.
    pub load_hit_ns: f64,
    /// A store into a line that is owned: it goes to the store buffer, ns.
    pub store_hit_ns: f64,
    /// A read-modify-write of a line that is owned, ns.
    pub rmw_hit_ns: f64,
    /// A sequentially consistent fence with an empty store buffer, ns.
    pub fence_ns: f64,
    /// A line that only the other hardware thread of the core had, ns.
    pub transfer_same_core_ns: f64,
    /// A line from another core of the socket, ns.
    pub transfer_same_socket_ns: f64,
    /// A line from another socket, ns.
    pub transfer_other_socket_ns: f64,
    /// A line from a socket of another board, ns.
    pub transfer_other_board_ns: f64,
    /// A line without a copy in any core, ns.
    pub memory_ns: f64,
    /// Work of two busy threads of a core, over that of one alone: 1.0..=2.0.
    pub two_threads_factor: f64,
    /// Instructions of the policy between two of its accesses, ns.
    pub code_per_access_ns: f64,
    /// Instructions of a policy under its lock that touch plain memory, per time the lock is held, ns.
    pub code_under_lock_ns: f64,
    /// Plain lines that move with a lock from another core, beyond those in which the mutex and what it contains lie.
    pub lines_under_lock: u32,
    /// Block layer and front end: from a client's request to the policy, ns.
    pub submit_ns: f64,
    /// From the policy to the device, per request, ns.
    pub dispatch_ns: f64,
    /// From the device to the client, per request, ns.
    pub complete_ns: f64,
    /// A doorbell, ns.
    pub doorbell_ns: f64,
    /// A turn of a worker's loop that finds nothing, ns.
    pub turn_ns: f64,
    /// Cost of a kick of a sleeper to the kicker, ns.
    pub kick_ns: f64,
    /// From the kick to the sleeper's first instruction, same socket, ns.
    pub wake_same_socket_ns: f64,
    /// From the kick to the first instruction, another socket, ns.
    pub wake_other_socket_ns: f64,
    /// Cost of going to sleep and waking up, ns.
    pub sleep_ns: f64,
    /// From a completion in the device to the first instruction of a sleeping worker's handler, ns.
    pub interrupt_ns: f64,
    /// Arming a timer and its interrupt, ns of the core's time.
    pub timer_ns: f64,
    /// Computing outside the policy varies by up to this part, 0.0..=0.5: without it cores of equal load fall into a
    /// step in which they meet always or never.
    pub jitter_share: f64,
    /// An unlocked lock goes to the first core that asks, and a late core sleeps, as with `std::sync::Mutex` on Linux;
    /// otherwise it goes to the core that has waited longest, as with a queued spinlock of a kernel.
    pub locks_barge: bool,
    /// A lock that queues is handed on as a ticket lock is: all waiting cores look at its one line, which must be taken
    /// from all of them, and the next holder reads it after some of the others. Otherwise the next holder has a line of
    /// its own to look at.
    pub locks_ticket: bool,
    /// A receive from a socket, ns, and each byte of it. Only of tenants with [`Tenant::socket`], like the next two.
    pub receive_ns: f64,
    /// See `receive_ns`.
    pub receive_byte_ns: f64,
    /// A send to a socket, ns, and each byte of it.
    pub send_ns: f64,
    /// See `send_ns`.
    pub send_byte_ns: f64,
    /// Words of the layers above the block layer that every core writes, once at each submission and once at each
    /// completion.
    pub shared_words: u32,
    /// From one look of a core that waits for a lock that barges to its next, ns; after 100 it sleeps.
    pub lock_look_ns: f64,
    /// A system call of such a lock that wakes no thread or does not sleep, ns.
    pub futex_ns: f64,
    /// Calls of clients after which what they staged is dispatched
    /// ([`mqfq_blk_watched::path_options::PathOptions::plug`]); 1: each request by itself, as a kernel does.
    pub calls_max: u32,
    /// How long a worker that is held back spins before it sleeps, as long as that pays, ns; 0: it sleeps at once.
    pub patience_ns: f64,
}

/// The device.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    /// `nvme`: one of the presets of the software controller. `None`: the null device, which completes at once.
    pub preset: Option<String>,
    /// Bytes.
    pub size_bytes: u64,
    /// Commands on each hardware queue at once, 1..=65535; on each of three, of a policy that uses class queues.
    pub queue_depth: u16,
    /// Queue pairs that it has.
    pub queue_pairs: u16,
    /// How the controller chooses among queues that have commands; `None`: as its preset says.
    pub arbitration: Option<Arbitration>,
    /// Commands that the controller takes inside; `None`: as its preset says.
    pub inside_max: Option<u16>,
    /// Every time of the drive is multiplied by this.
    pub slowed: u32,
    /// Volatile write cache; `None`: a power cut loses nothing.
    pub volatile_cache: Option<VolatileCache>,
    /// Its behaviour now and then.
    pub spells: Spells,
    /// Clients that do not pass the scheduler.
    pub strangers: Option<Strangers>,
    /// Which queues workers share.
    pub queues: QueueLayout,
    /// Parts of large requests.
    pub split: Split,
    /// Least throughput that latency goals leave, thousandths of the best.
    pub floor_thousandths: u32,
    /// Costs of requests.
    pub cost: CostModel,
    /// The cost of writes is followed from what `cost` says.
    pub follow_writes: bool,
}

impl Device {
    /// Queue pairs of a device of which nothing is said, and most that can be.
    pub const QUEUE_PAIRS: u16 = 3 * 1024;

    /// A drive of a preset, or the null device, as it is if nothing more is said of it.
    pub fn new(preset: Option<&str>, size_bytes: u64, queue_depth: u16) -> Device {
        Device {
            preset: preset.map(str::to_string),
            size_bytes,
            queue_depth,
            queue_pairs: Device::QUEUE_PAIRS,
            arbitration: None,
            inside_max: None,
            slowed: 1,
            volatile_cache: None,
            spells: Spells::default(),
            strangers: None,
            queues: QueueLayout::default(),
            split: Split::Off,
            floor_thousandths: GoalControl::FLOOR_THOUSANDTHS,
            cost: CostModel::FLAT,
            follow_writes: false,
        }
    }
}

/// Clients of the drive that do not pass the scheduler: they read at random places in the first part of each period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strangers {
    /// Reads in flight.
    pub depth: u16,
    /// Bytes of each.
    pub size_bytes: u32,
    /// The period, at least 1 ns.
    pub every_ns: u64,
    /// Length of the first part, at most the period, ns.
    pub length_ns: u64,
}

/// The policy and its options.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    /// The policy, by kind.
    pub kind: PolicyKind,
    /// D, or where it starts.
    pub depth: u32,
    /// A controller finds D.
    pub depth_auto: bool,
    /// T at the default weight, bytes, or where it starts.
    pub window_bytes: u64,
    /// A rule finds T.
    pub window_auto: bool,
    /// Relaxed form, set by hand; `None`: the paper's form.
    pub relaxed: Option<ByHand>,
    /// One unit of D per so many bytes; `None`: one per request.
    pub token_unit_bytes: Option<u32>,
    /// Virtual-time structure.
    pub virtual_time: VirtualTimeKind,
    /// Token structure.
    pub tokens: TokensKind,
    /// Release of throttled queues.
    pub unthrottle: Unthrottle,
    /// Options of a single policy.
    pub own: OwnOptions,
    /// Structure of `d2fq`'s global virtual time.
    pub global_vtime: GvtKind,
}

/// Virtual-time structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VirtualTimeKind {
    /// The scheduler's own.
    Mindicator,
    /// A scan of all leads after each change (MQFQ section 4.3.1).
    ArrayScan,
    /// Nothing: no queue is ever throttled (MQFQ section 4.3.3 disables virtual time to compare tokens).
    Off,
}

/// Structure of `d2fq`'s global virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GvtKind {
    /// The scheduler's own: one word that a flow holds.
    Sloppy,
    /// A leaf for each flow.
    Mindicator,
    /// A scan of all flows at each access.
    SerialScan,
    /// Nothing.
    Off,
}

/// Token structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokensKind {
    /// The scheduler's own.
    TokenTree,
    /// One counter.
    AtomicCounter,
    /// A scalable bitmap.
    ScalableBitmap,
}

/// Release of throttled queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unthrottle {
    /// By the wheel, the scheduler's own.
    Wheel,
    /// By looking again after so many ns (MQFQ section 4.3.2).
    Poll {
        /// Period, ns.
        period_ns: u64,
    },
}

/// A group of tenants, or of groups.
pub use mqfq_blk_watched::Group;

/// A tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct Tenant {
    /// Name; with `count` > 1 they are NAME-0, NAME-1 and so on.
    pub name: String,
    /// How many such tenants there are, at least 1. They differ in seed and placement only.
    pub count: u32,
    /// Weight of each.
    pub weight: Weight,
    /// The group that each is in.
    pub group: Option<GroupId>,
    /// Priority class of each, for policies that have them.
    pub class: PriorityClass,
    /// Threads of each, at least 1; with a `background` one client more. Where they run: [`Tenant::worker_of`].
    pub threads: u32,
    /// The worker of the first thread.
    pub first_worker: usize,
    /// Workers by number, which its threads take in turn; empty: all, from `first_worker` on.
    pub on_workers: Vec<usize>,
    /// Each thread's requests come through a socket of its own. `None`: the thread lives inside its worker, and what it
    /// asks for is staged at once.
    pub socket: Option<SocketOptions>,
    /// Most that each may have, over all its threads.
    pub caps: CapLimits,
    /// Latency goal of each, ns; 0: none.
    pub goal_ns: u64,
    /// Load of each thread.
    pub load: Load,
    /// Load of one more thread, due to theirs.
    pub background: Option<Background>,
    /// Before this, nothing.
    pub start_ns: u64,
    /// After this, nothing more; `None`: until the end.
    pub stop_ns: Option<u64>,
}

/// A thread's connection to its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketOptions {
    /// Buffer of the kernel, in each direction, bytes.
    pub buffer_bytes: u64,
    /// From one end to the other, ns.
    pub network_ns: u64,
}

/// Load of a thread of a tenant. Sources in [`crate::workload`].
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// When requests come.
    pub arrival: Arrival,
    /// Sizes with their parts in 100, which sum to 100. Empty if the requests come from a trace, which says that and
    /// the next two itself.
    pub sizes: Vec<(u32, u8)>,
    /// Reads, percent.
    pub read_percent: u8,
    /// Where they go.
    pub pattern: Pattern,
    /// Computing for each request on its core, ns.
    pub cpu_ns: u64,
}

/// When requests come.
#[derive(Clone, PartialEq, Debug)]
pub enum Arrival {
    /// Closed loop: so many in flight; each completion is followed by the next request `think_ns` later.
    Closed {
        /// Requests in flight.
        depth: u32,
        /// From a completion to the next request; the core is free meanwhile.
        think_ns: u64,
        /// Bursts: on for the first, off for the second, ns, from the tenant's start on.
        bursts: Option<(u64, u64)>,
    },
    /// Closed loop of chains: steps of which each waits for the one before. A chain counts as one request.
    Chain {
        /// Operations of the steps, at least one: reads, writes and flushes.
        steps: Arc<[Op]>,
        /// From the end of a chain to the next one; the core is free meanwhile.
        think_ns: u64,
    },
    /// Open loop: by the clock, whatever has completed.
    Open {
        /// Requests per second of each thread.
        rate_per_s: f64,
        /// Exponential gaps; otherwise equal ones.
        poisson: bool,
        /// Bursts: on for the first, off for the second, ns; the rate is that while on.
        bursts: Option<(u64, u64)>,
    },
    /// Phases of so many requests at a depth, with computing between them (FlashX).
    Phases {
        /// Requests in flight.
        depth: u32,
        /// Requests of a phase, of each thread.
        requests: u32,
        /// Computing after a phase, ns; the tenant's threads wait for each other first.
        compute_ns: u64,
    },
    /// A recorded trace, its times multiplied by `stretch`; the thread's part of its requests is every n-th of n
    /// threads.
    Trace {
        /// Recorded requests.
        trace: crate::workload::Trace,
        /// 1.0: as recorded.
        stretch: f64,
        /// Requests in flight at most; `None`: as many as the recorded times say.
        depth: Option<u32>,
    },
}

/// Large sequential requests that follow from what the threads do: flushes and compactions of a log-structured store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Background {
    /// Bytes that it must read and write for each completed request of a thread, on average.
    pub per_request_bytes: u32,
    /// Size of each of its requests.
    pub size_bytes: u32,
    /// Reads, percent.
    pub read_percent: u8,
    /// Its requests in flight.
    pub depth: u32,
}

/// Where requests go.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pattern {
    /// Anywhere, aligned to the size.
    Random,
    /// One after the other, each thread in its own part.
    Sequential,
    /// Zipfian over the aligned places, scattered; theta in 0..1 exclusive, as YCSB.
    Zipf {
        /// Skew.
        theta: f64,
    },
}

impl Tenant {
    /// Clients of each such tenant: its threads, and one for its background.
    pub fn clients(&self) -> u32 {
        self.threads + u32::from(self.background.is_some())
    }

    /// Where client `client` (0-based, the background last) of tenant number `number` runs: the clients of all such
    /// tenants, in this order, take the workers in turn, from `first_worker` on, or those of `on_workers`.
    pub fn worker_of(&self, number: u32, client: u32, workers: usize) -> usize {
        let turn = number as usize * self.clients() as usize + client as usize;
        match self.on_workers.len() {
            0 => (self.first_worker + turn) % workers,
            listed => self.on_workers[turn % listed],
        }
    }
}

impl Scenario {
    /// Flows: each of the `count` tenants of each entry is one.
    pub fn flows(&self) -> u64 {
        self.tenants.iter().map(|tenant| u64::from(tenant.count)).sum()
    }

    /// Returns the scenario with this tenant alone: its slowdown is compared with that.
    #[must_use]
    pub fn alone(&self, tenant: usize) -> Scenario {
        Scenario { tenants: vec![self.tenants[tenant].clone()], ..self.clone() }
    }
}
