//! Virtual cores: many workers on one thread of the real machine, each with its own time.
//!
//! # Shape
//! ```text
//!            heap of (time, core)                  device: its next event
//!                    │ earliest                        │
//!                    ▼                                 ▼
//!   resume a core ── runs the worker's loop until it must wait:
//!        │            • an access to a line that it does not have, and another core comes earlier
//!        │            • a lock that another core holds
//!        │            • it sleeps, or spins for a kick
//!        └── suspend ─┘
//! ```
//! A core is a coroutine with a stack of its own, so it can stop anywhere inside the scheduler, and what another core
//! does to the same words meanwhile really happens in between: compare-and-exchanges fail, locks are contended,
//! wake-ups race.
//!
//! # Order
//! An access that needs a line from elsewhere is made in the order of virtual time over all cores, and those for one
//! line in the order of asking. One that hits the own cache may be made up to a quarter of a transfer early: a real
//! core that has a line goes on using it until another core's request for it has arrived. Without that no
//! compare-and-exchange would succeed on a line that many want. (A locked addition of many cores to one word takes 10
//! ns each on the machine of bench/record, where a line takes 40.) Equal times go by the number of the event, so a run
//! is the same on every machine.
//!
//! # Invariants
//! * A core's time never goes back. A core that is asleep has no entry in the heap but that of its alarm.
//! * A lock that queues (a kernel's spinlock) is handed on in the order in which it was asked for. One that barges is
//!   `std`'s (`cores/futex.rs`): once unlocked, the first compare-and-exchange takes it, mostly that of the core that
//!   had it last.
//!
//! # Cost
//! A switch between coroutines is about 10 ns, a heap operation about 20.

mod futex;

use crate::coherence::{Memory, Need, Ps, ps};
use crate::drive::Drive;
use crate::machine::{Distance, Distances};
use crate::outcome::MemoryOutcome;
use crate::scenario::Machine;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use mqfq_sched_watched::watched::{self, Access, Kind, LINE_BYTES};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// A core's stack. Debug builds keep every temporary; pages that are not touched cost nothing.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 1 << 20 } else { 256 << 10 };

/// No core runs: the simulator itself does.
const NO_CORE: usize = usize::MAX;

/// Reason for which a core waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its turn: it is in the heap, or runs.
    Ready,
    /// To be rung, or for its alarm; since when.
    Asleep(Ps),
    /// To be rung, or for its alarm, without giving up the core.
    Spinning,
    /// A lock.
    Locked,
    /// A cache line.
    Fetching,
    /// Nothing more.
    Ended,
}

struct Core {
    now: Ps,
    state: State,
    /// Entries in the heap of an earlier generation are void.
    generation: u32,
    /// When a core that sleeps or spins goes on, as far as is known.
    wakes_at: Ps,
    /// It was rung before it slept.
    rung_at: Option<Ps>,
    /// The device has something for it that it has not looked at.
    interrupted_at: Option<Ps>,
    slept: Ps,
    sibling: Option<usize>,
    /// When it asked for the line that it waits for.
    asked_at: Option<Ps>,
}

#[derive(Default)]
struct Lock {
    holder: Option<usize>,
    last: Option<usize>,
    /// Waiters of a queued lock, and since when.
    waiting: VecDeque<(usize, Ps)>,
    bytes: u32,
    /// The word of a lock that barges, and the cores that look at it or sleep for it.
    futex: futex::Futex,
}

/// Costs of a core in picoseconds.
struct Costs {
    code_per_access: Ps,
    code_under_lock: Ps,
    lines_under_lock: Ps,
    kick: Ps,
    wake_same_socket: Ps,
    wake_other_socket: Ps,
    sleep: Ps,
    interrupt: Ps,
    /// Time of code while the other thread of the core runs, in 1/1024.
    beside_sibling: u64,
    /// Variation of computing time, in 1/1024 to both sides.
    jitter: u64,
    locks_barge: bool,
    locks_ticket: bool,
    lock_look: Ps,
    futex: Ps,
}

/// Counts of all cores.
#[derive(Clone, Copy, Default, Debug)]
pub struct CoreCounts {
    /// Times that a core was resumed, lines that moved, device events.
    pub events: u64,
    /// Sleepers that were rung by another core.
    pub kicks: u64,
    /// Time slept, all cores, ps.
    pub slept: Ps,
}

/// The virtual cores of one simulation: their times, the memory between them, and whose turn it is.
pub struct Cores {
    memory: Memory,
    distances: Distances,
    costs: Costs,
    cores: Vec<Core>,
    heap: BinaryHeap<Reverse<(Ps, u64, usize, u32)>>,
    sequence: u64,
    current: usize,
    locks: HashMap<usize, Lock>,
    /// By line: the cores that wait for it, in the order of asking.
    queues: Vec<VecDeque<usize>>,
    ahead: Ps,
    drive: Drive,
    /// Kept for its room.
    interrupted: Vec<usize>,
    counts: CoreCounts,
    stopping: bool,
    random: u64,
    memory_is_free: bool,
}

std::thread_local! {
    static CORES: RefCell<Option<Cores>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

/// Whether an access could be made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Yes,
    /// Others come first: suspend, then try again.
    NotYet,
    /// Suspend; it will have been made.
    Granted,
}

impl Cores {
    /// Cores of a machine around a device.
    pub fn new(machine: &Machine, drive: Drive, seed: u64) -> Cores {
        let latency = &machine.latency;
        let distances = Distances::new(machine);
        let workers = distances.workers();
        let core = |worker| Core {
            now: 0,
            state: State::Ready,
            generation: 0,
            wakes_at: Ps::MAX,
            rung_at: None,
            interrupted_at: None,
            slept: 0,
            sibling: distances.sibling(worker),
            asked_at: None,
        };
        let cores = (0..workers).map(core).collect();
        let costs = Costs {
            code_per_access: ps(latency.code_per_access_ns),
            code_under_lock: ps(latency.code_under_lock_ns),
            lines_under_lock: u64::from(latency.lines_under_lock),
            kick: ps(latency.kick_ns),
            wake_same_socket: ps(latency.wake_same_socket_ns),
            wake_other_socket: ps(latency.wake_other_socket_ns),
            sleep: ps(latency.sleep_ns),
            interrupt: ps(latency.interrupt_ns),
            beside_sibling: (1024.0 * 2.0 / latency.two_threads_factor).round() as u64,
            jitter: (1024.0 * latency.jitter_share).round() as u64,
            locks_barge: latency.locks_barge,
            locks_ticket: latency.locks_ticket,
            lock_look: ps(latency.lock_look_ns),
            futex: ps(latency.futex_ns),
        };
        Cores {
            memory: Memory::new(latency, workers),
            distances,
            costs,
            cores,
            heap: BinaryHeap::new(),
            sequence: 0,
            current: NO_CORE,
            locks: HashMap::new(),
            queues: Vec::new(),
            ahead: ps(latency.transfer_same_socket_ns) / 4,
            drive,
            interrupted: Vec::new(),
            counts: CoreCounts::default(),
            stopping: false,
            memory_is_free: machine.memory_is_free,
            // Spread, and never 0.
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn now(&self) -> Ps {
        self.cores[self.current].now
    }

    /// A core runs, and its locks are words on which it can sleep.
    fn has_futexes(&mut self) -> bool {
        self.costs.locks_barge && self.current != NO_CORE
    }

    /// The current core computes for so long.
    fn compute(&mut self, time: Ps) {
        let Core { sibling, .. } = self.cores[self.current];
        let beside = sibling.is_some_and(|sibling| {
            matches!(self.cores[sibling].state, State::Ready | State::Spinning | State::Locked | State::Fetching)
        });
        self.cores[self.current].now += if beside { time * self.costs.beside_sibling / 1024 } else { time };
    }

    /// As [`Cores::compute`], for what takes a little more or less each time.
    fn compute_about(&mut self, time: Ps) {
        let jitter = time * self.costs.jitter / 1024;
        if jitter == 0 {
            return self.compute(time);
        }
        self.draw();
        self.compute(time - jitter + self.random % (2 * jitter + 1));
    }

    /// The next random number: xorshift64 (Marsaglia 2003).
    fn draw(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
    }

    /// When the next thing happens on another core or in the device.
    #[inline]
    fn next_at(&self) -> Ps {
        let core = self.heap.peek().map_or(Ps::MAX, |Reverse((at, ..))| *at);
        core.min(self.drive.next_event())
    }

    fn enqueue(&mut self, core: usize, at: Ps) {
        let entry = &mut self.cores[core];
        entry.generation += 1;
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, core, entry.generation)));
    }

    /// The current core will go on at its own time, after the cores that come first.
    fn step_back(&mut self) {
        let now = self.now();
        self.enqueue(self.current, now);
    }

    fn access(&mut self, access: Access, is_first_try: bool) -> Made {
        if self.current == NO_CORE {
            return Made::Yes;
        }
        let Access { kind, address, lock_bytes } = access;
        let core = self.current;
        if is_first_try {
            self.compute(self.costs.code_per_access);
        }
        let now = self.now();
        if kind == Kind::Fence {
            self.cores[core].now = self.memory.fence(core, now);
            return Made::Yes;
        }
        let line = self.memory.line(&access);
        let need = self.memory.need(core, line, kind);
        let may_be = if need == Need::Hit && kind != Kind::Lock { now.saturating_sub(self.ahead) } else { now };
        if self.next_at() < may_be {
            self.step_back();
            return Made::NotYet;
        }
        self.counts.events += u64::from(need == Need::Transfer);
        match kind {
            Kind::Lock => return self.lock(address, lock_bytes, line),
            Kind::Unlock => self.unlock(address, line),
            // A store waits in its buffer for the line, and the core does not wait for it.
            Kind::Load | Kind::Touch | Kind::ReadModifyWrite if need == Need::Transfer => {
                return self.fetch(line, kind);
            }
            _ => self.cores[core].now = self.memory.access(core, line, kind, now, &self.distances),
        }
        Made::Yes
    }

    /// Takes a line from elsewhere, in its turn: one that is on its way to another core arrives there, and stays until
    /// our request for it does, a quarter of a transfer later. What the other core does with it in between comes first.
    fn fetch(&mut self, line: u32, kind: Kind) -> Made {
        let core = self.current;
        let now = self.now();
        let asked_at = *self.cores[core].asked_at.get_or_insert(now);
        if self.queues.len() <= line as usize {
            self.queues.resize_with(line as usize + 1, VecDeque::new);
        }
        let reaches_us_at = self.memory.leaves_at(core, line, asked_at, &self.distances);
        let queue = &mut self.queues[line as usize];
        let is_first = queue.front().is_none_or(|&first| first == core);
        if !is_first || now < reaches_us_at {
            if !queue.contains(&core) {
                queue.push_back(core);
            }
            self.cores[core].state = State::Fetching;
            if is_first {
                self.enqueue(core, reaches_us_at);
            }
            return Made::NotYet;
        }
        self.cores[core].asked_at = None;
        self.cores[core].now = self.memory.access(core, line, kind, asked_at, &self.distances);
        let queue = &mut self.queues[line as usize];
        if queue.front() == Some(&core) {
            queue.pop_front();
        }
        if let Some(&next) = queue.front() {
            let asked_at = self.cores[next].asked_at.expect("who waits for a line has asked for it");
            let at = self.memory.leaves_at(next, line, asked_at, &self.distances);
            self.enqueue(next, at);
        }
        Made::Yes
    }

    /// A lock that queues.
    fn lock(&mut self, address: usize, lock_bytes: u32, line: u32) -> Made {
        let core = self.current;
        let now = self.cores[core].now;
        let lock = self.locks.entry(address).or_default();
        if lock.holder.is_none() {
            lock.holder = Some(core);
            self.cores[core].now = self.memory.access(core, line, Kind::Lock, now, &self.distances);
            self.hold(address, lock_bytes, core);
            return Made::Yes;
        }
        lock.waiting.push_back((core, now));
        lock.bytes = lock_bytes;
        self.cores[core].state = State::Locked;
        Made::Granted
    }

    /// Moves the plain lines under a lock here if another core had it before.
    fn hold(&mut self, address: usize, lock_bytes: u32, core: usize) {
        let lock = self.locks.get_mut(&address).expect("it is held");
        if let Some(last) = lock.last.replace(core) {
            let transfer = self.memory.transfer_ps(self.distances.between(core, last));
            // The first line of what the lock is in came with its word.
            let with_it = u64::from(lock_bytes.saturating_sub(1)) / LINE_BYTES as u64;
            self.cores[core].now += (with_it + self.costs.lines_under_lock) * transfer;
        }
        self.cores[core].now += self.costs.code_under_lock;
    }

    fn unlock(&mut self, address: usize, line: u32) {
        let core = self.current;
        let now = self.memory.access(core, line, Kind::Unlock, self.now(), &self.distances);
        self.cores[core].now = now;
        let lock = self.locks.get_mut(&address).expect("a lock that is let go was taken");
        lock.holder = None;
        let now = now + if self.costs.locks_ticket { self.ticket_delay(address) } else { 0 };
        let lock = self.locks.get_mut(&address).expect("a lock that is let go was taken");
        let Some((next, since)) = lock.waiting.pop_front() else { return };
        lock.holder = Some(next);
        let lock_bytes = lock.bytes;
        let waiter = &mut self.cores[next];
        waiter.state = State::Ready;
        waiter.now = waiter.now.max(now);
        self.memory.waited_for_lock(waiter.now - since);
        let from = self.cores[next].now;
        self.cores[next].now = self.memory.access(next, line, Kind::Lock, from, &self.distances);
        self.hold(address, lock_bytes, next);
        let at = self.cores[next].now;
        self.enqueue(next, at);
    }

    /// Time beyond one transfer to hand on a ticket lock: the line is taken from all waiting cores, and the next holder
    /// reads it after some of the others, by chance.
    fn ticket_delay(&mut self, address: usize) -> Ps {
        let waiting = &self.locks[&address].waiting;
        let others = waiting.len().saturating_sub(1) as u64;
        if others == 0 {
            return 0;
        }
        let core = self.current;
        let ways = waiting.iter().map(|&(waiter, _)| self.memory.transfer_ps(self.distances.between(core, waiter)));
        let (sum, farthest) = ways.fold((0, 0), |(sum, farthest), way| (sum + way, way.max(farthest)));
        self.draw();
        farthest + self.random % (others + 1) * (sum / (others + 1))
    }

    /// A core that sleeps or spins goes on at `at`, or earlier if something else has it do so.
    fn wake(&mut self, core: usize, at: Ps) {
        let entry = &mut self.cores[core];
        let at = at.max(entry.now);
        if at < entry.wakes_at {
            entry.wakes_at = at;
            self.enqueue(core, at);
        }
    }

    /// The current core sleeps or spins from now on, and nothing in the heap is its own any more.
    fn rest(&mut self, state: State) {
        let entry = &mut self.cores[self.current];
        entry.state = state;
        entry.generation += 1;
        entry.wakes_at = Ps::MAX;
    }

    /// From the current core's system call to the first instruction of a sleeper.
    fn wake_latency(&self, core: usize) -> Ps {
        match self.distances.between(self.current, core) {
            Distance::Board | Distance::Machine => self.costs.wake_other_socket,
            _ => self.costs.wake_same_socket,
        }
    }

    fn ring(&mut self, core: usize) {
        self.compute(self.costs.kick);
        self.counts.kicks += 1;
        let at = self.now() + self.wake_latency(core);
        match self.cores[core].state {
            State::Asleep(_) => self.wake(core, at),
            // It has said that it will sleep, and is on its way there.
            _ => self.cores[core].rung_at = Some(at),
        }
    }

    fn drive_until(&mut self, at: Ps) {
        let mut interrupted = std::mem::take(&mut self.interrupted);
        self.drive.advance(at, |core| interrupted.push(core));
        for core in interrupted.drain(..) {
            self.cores[core].interrupted_at.get_or_insert(at);
            match self.cores[core].state {
                State::Asleep(_) => self.wake(core, at + self.costs.interrupt),
                State::Spinning => self.wake(core, at),
                _ => {}
            }
        }
        self.interrupted = interrupted;
        self.counts.events += 1;
    }

    /// The next core to run, or `None` if nothing will ever happen again.
    fn next_core(&mut self) -> Option<usize> {
        loop {
            let core_at = self.heap.peek().map(|Reverse((at, ..))| *at);
            let device_at = self.drive.next_event();
            if device_at != Ps::MAX && core_at.is_none_or(|at| device_at <= at) {
                self.drive_until(device_at);
                continue;
            }
            let Reverse((at, _, core, generation)) = self.heap.pop()?;
            let entry = &mut self.cores[core];
            if entry.generation != generation {
                continue;
            }
            if let State::Asleep(since) = entry.state {
                entry.slept += at - since;
            }
            // An older entry of the same core in the heap is void from here on.
            entry.generation += 1;
            entry.now = entry.now.max(at);
            entry.state = State::Ready;
            self.counts.events += 1;
            return Some(core);
        }
    }
}

/// The watcher of a thread that runs virtual cores.
fn on_access(access: Access) {
    match access.kind {
        Kind::Lock if with(Cores::has_futexes) => futex::lock(access.address, access.lock_bytes),
        Kind::Unlock if with(Cores::has_futexes) => futex::unlock(access.address),
        _ => make(access),
    }
}

/// Makes an access, in its turn.
fn make(access: Access) {
    let mut is_first_try = true;
    loop {
        match with(|cores| cores.access(access, is_first_try)) {
            Made::Yes => return,
            Made::NotYet => suspend(),
            Made::Granted => return suspend(),
        }
        is_first_try = false;
    }
}

fn with<R>(action: impl FnOnce(&mut Cores) -> R) -> R {
    CORES.with_borrow_mut(|cores| action(cores.as_mut().expect("inside `run`")))
}

/// Leaves the current core's coroutine until the core is resumed.
fn suspend() {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "only a core can wait");
    // SAFETY: `run` sets the pointer before each resume to the yielder of the coroutine that it resumes; that is the
    // one we are in, so it lives at least as long as this call, and it is on this thread.
    unsafe { (*yielder).suspend(()) };
}

/// Lets cores that are earlier in virtual time go first.
fn in_order() {
    while with(|cores| {
        let waits = cores.next_at() < cores.now();
        if waits {
            cores.step_back();
        }
        waits
    }) {
        suspend();
    }
}

/// Operations of a core's own code. Only inside [`run`], on a core.
pub mod core {
    use super::{Ps, State, in_order, suspend, with};
    use crate::drive::Drive;

    /// The core's time, whole nanoseconds.
    pub fn now_ns() -> u64 {
        with(|cores| cores.now()) / 1000
    }

    /// The core computes for about so long.
    pub fn compute(time: Ps) {
        with(|cores| cores.compute_about(time));
    }

    /// Something has been put where the core of this number will find it, and its wake word said that it sleeps.
    pub fn ring(core: usize) {
        with(|cores| cores.ring(core));
    }

    /// Something has been put where the core of this number will find it, and it does not sleep; but it may spin.
    pub fn nudge(core: usize) {
        with(|cores| {
            if cores.cores[core].state == State::Spinning {
                let arrives = cores.memory.transfer_ps(cores.distances.between(cores.current, core));
                let at = cores.now() + arrives;
                cores.wake(core, at);
            }
        });
    }

    /// Sleeps until it is rung, interrupted, or `until`.
    pub fn sleep(until: Option<Ps>) {
        in_order();
        with(|cores| {
            let at = cores.current;
            let core = &mut cores.cores[at];
            let now = core.now;
            let rung = core.rung_at.take();
            let interrupted = core.interrupted_at.map(|at| at + cores.costs.interrupt);
            let stop = cores.stopping.then_some(now);
            cores.rest(State::Asleep(now));
            [rung, interrupted, until, stop].into_iter().flatten().for_each(|alarm| cores.wake(at, alarm));
        });
        suspend();
        with(|cores| {
            let time = cores.costs.sleep;
            cores.cores[cores.current].rung_at = None;
            cores.compute(time);
        });
    }

    /// Waits for a nudge or an interrupt without letting go of the core, until `until` at most.
    pub fn spin(until: Ps) {
        in_order();
        let spins = with(|cores| {
            let at = cores.current;
            if cores.cores[at].interrupted_at.is_some() || cores.cores[at].now >= until {
                return false;
            }
            cores.rest(State::Spinning);
            cores.wake(at, until);
            true
        });
        if spins {
            suspend();
        }
    }

    /// The device, in the order of virtual time.
    pub fn device<R>(action: impl FnOnce(&mut Drive, usize, Ps) -> R) -> R {
        in_order();
        with(|cores| {
            let (core, now) = (cores.current, cores.now());
            action(&mut cores.drive, core, now)
        })
    }

    /// The device has something for the core that it has not looked at.
    pub fn is_interrupted() -> bool {
        with(|cores| cores.cores[cores.current].interrupted_at.is_some())
    }

    /// The core has looked at what the device has for it.
    pub fn interrupt_taken() {
        with(|cores| {
            let current = cores.current;
            cores.cores[current].interrupted_at = None;
        });
    }

    /// The run is over: leave.
    pub fn is_stopping() -> bool {
        with(|cores| cores.stopping)
    }
}

/// Results of a run of the cores.
pub struct Finished<R> {
    /// Values returned by each core's body.
    pub results: Vec<R>,
    /// Counts of the cores.
    pub counts: CoreCounts,
    /// Costs of memory.
    pub memory: MemoryOutcome,
    /// Time that each core slept.
    pub slept: Vec<Ps>,
    /// When the last core ended.
    pub end: Ps,
}

/// Takes `CORES` and the watcher back, whatever happens.
struct Installed(Option<watched::Watcher>);

impl Drop for Installed {
    fn drop(&mut self) {
        watched::watch(self.0);
        CORES.set(None);
        YIELDER.set(std::ptr::null());
    }
}

/// Runs `bodies`, one per core, until nothing will happen any more; asks `is_idle` then whether that is right (else it
/// says what is wrong), tells the cores to stop, and waits for them.
///
/// # Errors
/// What `is_idle` said.
pub fn run<R: 'static>(
    cores: Cores,
    bodies: Vec<Box<dyn FnOnce() -> R>>,
    is_idle: impl Fn() -> Result<(), String>,
) -> Result<Finished<R>, String> {
    let watcher: Option<watched::Watcher> = if cores.memory_is_free { None } else { Some(on_access) };
    let _installed = Installed(watched::watch(watcher));
    CORES.set(Some(cores));
    let mut running: Vec<_> = bodies.into_iter().map(coroutine).collect::<Result<_, String>>()?;
    let mut results: Vec<Option<R>> = running.iter().map(|_| None).collect();
    with(|cores| (0..running.len()).for_each(|core| cores.enqueue(core, 0)));
    loop {
        let Some(core) = with(Cores::next_core) else {
            if with(|cores| cores.stopping) {
                break;
            }
            is_idle()?;
            with(|cores| {
                cores.stopping = true;
                for core in 0..cores.cores.len() {
                    if matches!(cores.cores[core].state, State::Asleep(_)) {
                        let now = cores.cores[core].now;
                        cores.wake(core, now);
                    }
                }
            });
            continue;
        };
        with(|cores| cores.current = core);
        YIELDER.set(running[core].1.get());
        let ended = running[core].0.resume(());
        with(|cores| {
            cores.current = NO_CORE;
            if matches!(ended, CoroutineResult::Return(_)) {
                cores.cores[core].state = State::Ended;
            }
        });
        if let CoroutineResult::Return(result) = ended {
            results[core] = Some(result);
        }
    }
    let results: Option<Vec<R>> = results.into_iter().collect();
    let results = results.ok_or("a core neither ended nor will ever go on: the simulator lost an event")?;
    Ok(with(|cores| {
        let slept: Vec<Ps> = cores.cores.iter().map(|core| core.slept).collect();
        cores.counts.slept = slept.iter().sum();
        let end = cores.cores.iter().map(|core| core.now).max().unwrap_or(0);
        Finished { results, counts: cores.counts, memory: cores.memory.take_counts(), slept, end }
    }))
}

type Running<R> = (Coroutine<(), (), R>, std::rc::Rc<Cell<*const Yielder<(), ()>>>);

/// A core's coroutine, and where it leaves its yielder once it has started.
fn coroutine<R: 'static>(body: Box<dyn FnOnce() -> R>) -> Result<Running<R>, String> {
    let stack = DefaultStack::new(STACK_BYTES).map_err(|error| format!("no memory for a virtual core: {error}"))?;
    let place = std::rc::Rc::new(Cell::new(std::ptr::null()));
    let own = place.clone();
    let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        own.set(std::ptr::from_ref(yielder));
        YIELDER.set(std::ptr::from_ref(yielder));
        body()
    });
    Ok((coroutine, place))
}

#[cfg(test)]
mod tests;
