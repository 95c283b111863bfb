//! Machines by name, with the source of every number, and where their workers run.
//!
//! | preset | sockets x cores x threads | what it stands for |
//! |---|---|---|
//! | `haswell-2x8` | 2 x 8 x 2 | MQFQ section 4, NVMf setup: Xeon E5-2630 v3, 2.4 GHz, Linux 4.15 block layer under FIO |
//! | `haswell-2x6` | 2 x 6 x 2 | MQFQ section 4, MQ-SSD setup: Xeon E5-2620 v3, 2.4 GHz, the same |
//! | `user-space-2` | 1 x 2 x 1 | the virtual machine of bench/record: our own worker loop, load inside the workers |
//! | `user-space-8x128` | 8 x 128 x 1 | our own worker loop on a machine that we do not have |
//! | `sandy-bridge-1x6` | 1 x 6 x 1 | blk-mq table 1: i7-3930K, 3.2 GHz, Linux 3.10 |
//! | `westmere-2x6` | 2 x 6 x 1 | blk-mq table 1: X5690, 3.46 GHz, the same |
//! | `nehalem-4x8` | 4 x 8 x 1 | blk-mq table 1: X7560, 2.66 GHz, the same |
//! | `westmere-8x10` | 8 x 10 x 1 | blk-mq table 1: E7-2870, 2.4 GHz, the same; two boards of four sockets |
//! | `skylake-2x4` | 2 x 4 x 1 | D2FQ table 1, machine A: Xeon Gold 5112, 3.6 GHz, 8 cores, Linux 5.3 block layer under FIO |
//! | `cascade-lake-2x12` | 2 x 12 x 1 | D2FQ table 1, machine B: Xeon Gold 6226, 2.7 GHz, 24 cores, the same |
//!
//! # Sources
//! * Atomics, Haswell: a locked instruction takes 18 to 19 cycles, `mfence` 33, a load that hits L1 4 (Agner Fog,
//!   instruction tables, Haswell); at 2.4 GHz 8, 14 and 1.7 ns. Loads of independent words overlap, so a hit is charged
//!   half.
//! * Lines, Haswell-EP: a line modified in another core of the socket takes 40 to 42 ns (Intel Memory Latency Checker
//!   on a E5-2660 v4, its successor; J. McCalpin, Intel forum, topic 700477). From another socket 110 ns: ASSUMED, the
//!   usual 2.5 to 3 times; not read from a table. Memory 90 ns: ASSUMED.
//! * Two threads on a core do 1.25 times what one does: ASSUMED, within the 15 to 30% that vendors state.
//! * A kick across sockets, MQFQ section 4.3.2: an interrupt between processors takes about what a 1 us timer takes. So
//!   1 us to another socket; 0.7 us within a socket is ASSUMED.
//! * Block layer and FIO: section 4 reaches nearly 4 M requests/s of 1 KiB and needs several threads for it, and MQFQ's
//!   3.1 M on 15 to 19 threads are 71% of the peak. So 16 cores carry about 4.4 M: 3.6 us of a core per request. How
//!   they divide among submission, dispatch and completion is ASSUMED.
//! * `user-space-2`: a sleeper on the other virtual core is woken in 25 us, through the hypervisor (measured at depth
//!   1).
//! * `user-space-*`, locks: a futex call that wakes no thread takes 230 ns on that machine, one that does not sleep 290
//!   (measured alone, best of 200). From look to look of a waiting core 300 ns: CALIBRATED to two threads there on one
//!   `std::sync::Mutex` (`cores/futex.rs` has the figures). No plain lines but those in the mutex: `mqfq-serial` has
//!   none, `sfqd` its central queue; what that points to (nodes, lists) is left out.
//! * blk-mq's machines, kernel path: "a single CPU core can sustain an IO submission rate of around 800 thousand IOPS"
//!   (section 1) on the machine with one socket, and of that MQ is 22% below Raw there (section 5.1): 1.25 us of a core
//!   per request, and `dispatch-ns` is what Raw leaves out. CALIBRATED to these two, and to nothing else that the
//!   figures show; between submission and completion the rest is split in half, ASSUMED. On the other machines the same
//!   number of cycles (table 1 has the clocks), ASSUMED; instructions under a lock likewise, from those of MQFQ's
//!   machines.
//! * blk-mq's machines, lines: with one and two sockets 28 ns within a socket and 106 ns to the other (Molka,
//!   Hackenberg, Schöne, Müller, "Memory Performance and Cache Coherency Effects on an Intel Nehalem Multiprocessor
//!   System", PACT 2009: a modified line, X5570, their predecessor), with four and eight 51, 136 and 188 ns (David,
//!   Guerraoui, Trigonakis, "Everything You Always Wanted to Know About Synchronization but Were Afraid to Ask", SOSP
//!   2013, table 2: 109, 289 and 400 cycles at 2.13 GHz on an eight-socket Westmere-EX, none, one and two hops). That
//!   another board is two hops away is ASSUMED.
//! * blk-mq's machines, locks: Linux 3.10 has ticket locks, which take longer to hand on the more cores wait
//!   (Boyd-Wickizer, Kaashoek, Morris, Zeldovich, "Non-scalable locks are dangerous", Linux Symposium 2012): the next
//!   holder reads the line after half of the others, on average.
//! * D2FQ's machines, cores: a Gold 5112 has 4 cores and a Gold 6226 has 12 (Intel ARK), and the paper speaks of
//!   "cores/sockets" (section 4.2) and of "cross-socket communication" beyond 12 cores (section 4.3): two sockets each,
//!   without second threads.
//! * D2FQ's machines, kernel path: one core is full at a depth of 9, and of 14 without the block layer (section 4.3,
//!   figure 16), which then does up to 54% more. Let c be a core's time per request and L what a lone request waits for
//!   besides: 9 c = L + c, and 14 c' = L + c' with c = 1.54 c'. All three hold within 5% with L = 28 us, c = 3.5 us,
//!   c' = 2.25 us; of L the drive takes 18 us for 8 KiB. So 3.5 us for each request, CALIBRATED; `dispatch-ns` is what
//!   the low-latency path leaves out (1.25 us), and between submission and completion the rest is split in half,
//!   ASSUMED. On machine B the same cycles at 2.7 GHz, ASSUMED.
//! * D2FQ's machines, lines: 50 ns within a socket and 130 ns to the other, ASSUMED: the mesh of this generation is
//!   somewhat slower than Haswell's ring. Locked instructions take 18 cycles (Agner Fog, instruction tables,
//!   Skylake-X), a fence 33.
//! * Sockets, all machines: 1 us for a receive and 2 us for a send, which wakes its reader, and 10 GB/s for the copies:
//!   ASSUMED, for two processes on one machine. Only of tenants with a `socket`.
//! * `user-space-*`: calibrated to this project's own measurements with one worker (`mqfq-lab bench scale`, `mqfq-lab
//!   bench overhead`); what they say of two workers is then a prediction, and is checked (`mqfq-lab bench validate`).

use crate::scenario::{Latencies, Machine};
use mqfq_sched_watched::topology::{CpuPlace, Topology};

/// Presets, in the order of the table.
pub const NAMES: &[&str] = &[
    "haswell-2x8",
    "haswell-2x6",
    "user-space-2",
    "user-space-8x128",
    "sandy-bridge-1x6",
    "westmere-2x6",
    "nehalem-4x8",
    "westmere-8x10",
    "skylake-2x4",
    "cascade-lake-2x12",
];

/// The figures of MQFQ's two machines.
const HASWELL: Latencies = Latencies {
    load_hit_ns: 0.8,
    store_hit_ns: 0.8,
    rmw_hit_ns: 8.0,
    fence_ns: 14.0,
    transfer_same_core_ns: 5.0,
    transfer_same_socket_ns: 42.0,
    transfer_other_socket_ns: 110.0,
    transfer_other_board_ns: 110.0,
    memory_ns: 90.0,
    two_threads_factor: 1.25,
    code_per_access_ns: 1.5,
    code_under_lock_ns: 30.0,
    lines_under_lock: 2,
    submit_ns: 1500.0,
    dispatch_ns: 600.0,
    complete_ns: 1500.0,
    doorbell_ns: 100.0,
    turn_ns: 50.0,
    kick_ns: 250.0,
    wake_same_socket_ns: 700.0,
    wake_other_socket_ns: 1000.0,
    sleep_ns: 300.0,
    interrupt_ns: 1000.0,
    timer_ns: 400.0,
    jitter_share: 0.05,
    locks_barge: false,
    locks_ticket: false,
    shared_words: 0,
    lock_look_ns: 0.0,
    futex_ns: 0.0,
    calls_max: 1,
    // A kernel has no worker that spins: it is interrupted.
    patience_ns: 0.0,
    receive_ns: 1000.0,
    receive_byte_ns: 0.1,
    send_ns: 2000.0,
    send_byte_ns: 0.1,
};

/// The figures of this project's own loop.
const USER_SPACE: Latencies = Latencies {
    load_hit_ns: 0.4,
    store_hit_ns: 0.4,
    rmw_hit_ns: 2.4,
    fence_ns: 2.0,
    transfer_same_core_ns: 5.0,
    transfer_same_socket_ns: 40.0,
    transfer_other_socket_ns: 120.0,
    transfer_other_board_ns: 120.0,
    memory_ns: 80.0,
    two_threads_factor: 1.25,
    code_per_access_ns: 0.6,
    code_under_lock_ns: 2.0,
    lines_under_lock: 0,
    submit_ns: 40.0,
    dispatch_ns: 20.0,
    complete_ns: 40.0,
    doorbell_ns: 2.0,
    turn_ns: 60.0,
    kick_ns: 1500.0,
    wake_same_socket_ns: 5000.0,
    wake_other_socket_ns: 6000.0,
    sleep_ns: 1500.0,
    interrupt_ns: 0.0,
    timer_ns: 500.0,
    jitter_share: 0.05,
    locks_barge: true,
    locks_ticket: false,
    shared_words: 0,
    lock_look_ns: 300.0,
    futex_ns: 250.0,
    calls_max: 32,
    patience_ns: 50_000.0,
    receive_ns: 1000.0,
    receive_byte_ns: 0.1,
    send_ns: 2000.0,
    send_byte_ns: 0.1,
};

/// Clock of the machine that the kernel's path was calibrated on, GHz: Sandy Bridge-E of blk-mq table 1.
const CALIBRATED_GHZ: f64 = 3.2;

/// The figures of one of blk-mq's machines: the same instructions at another clock, and its own way between caches.
const fn linux_3_10(ghz: f64, same_socket_ns: f64, other_socket_ns: f64, other_board_ns: f64) -> Latencies {
    let slower = CALIBRATED_GHZ / ghz;
    Latencies {
        load_hit_ns: 0.6 * slower,
        store_hit_ns: 0.6 * slower,
        rmw_hit_ns: 6.0 * slower,
        fence_ns: 10.0 * slower,
        transfer_same_socket_ns: same_socket_ns,
        transfer_other_socket_ns: other_socket_ns,
        transfer_other_board_ns: other_board_ns,
        code_per_access_ns: 1.1 * slower,
        code_under_lock_ns: 22.0 * slower,
        submit_ns: 440.0 * slower,
        dispatch_ns: 230.0 * slower,
        complete_ns: 440.0 * slower,
        doorbell_ns: 0.0,
        turn_ns: 40.0 * slower,
        locks_ticket: true,
        ..HASWELL
    }
}

/// Clock of D2FQ's machine A, on which the kernel's path of its figure 16 was measured, GHz.
const MACHINE_A_GHZ: f64 = 3.6;

/// The figures of one of D2FQ's machines.
const fn linux_5_3(ghz: f64) -> Latencies {
    let slower = MACHINE_A_GHZ / ghz;
    Latencies {
        load_hit_ns: 0.6 * slower,
        store_hit_ns: 0.6 * slower,
        rmw_hit_ns: 5.0 * slower,
        fence_ns: 9.0 * slower,
        transfer_same_socket_ns: 50.0,
        transfer_other_socket_ns: 130.0,
        transfer_other_board_ns: 130.0,
        code_per_access_ns: 1.0 * slower,
        code_under_lock_ns: 20.0 * slower,
        submit_ns: 1125.0 * slower,
        dispatch_ns: 1250.0 * slower,
        complete_ns: 1125.0 * slower,
        doorbell_ns: 100.0,
        turn_ns: 40.0 * slower,
        ..HASWELL
    }
}

/// The machine of this name, with a worker on each of its hardware threads.
pub fn preset(name: &str) -> Option<Machine> {
    let at = NAMES.iter().position(|known| *known == name)?;
    let (boards, sockets, cores_per_socket, threads_per_core, latency) = [
        (1, 2, 8, 2, HASWELL),
        (1, 2, 6, 2, HASWELL),
        (1, 1, 2, 1, Latencies { wake_same_socket_ns: 25_000.0, ..USER_SPACE }),
        (1, 8, 128, 1, USER_SPACE),
        (1, 1, 6, 1, linux_3_10(3.2, 28.0, 106.0, 106.0)),
        (1, 2, 6, 1, linux_3_10(3.46, 28.0, 106.0, 106.0)),
        (1, 4, 8, 1, linux_3_10(2.66, 51.0, 136.0, 136.0)),
        (2, 8, 10, 1, linux_3_10(2.4, 51.0, 136.0, 188.0)),
        (1, 2, 4, 1, linux_5_3(MACHINE_A_GHZ)),
        (1, 2, 12, 1, linux_5_3(2.7)),
    ][at];
    let workers = sockets * cores_per_socket * threads_per_core;
    Some(Machine {
        name: name.to_string(),
        sockets,
        boards,
        cores_per_socket,
        threads_per_core,
        workers,
        latency,
        memory_is_free: false,
        intake_is_fair: true,
        stolen: None,
    })
}

/// Where each worker runs: one thread of each core of the first socket, then of the second, and so on, then the second
/// threads (MQFQ section 4).
pub fn places(machine: &Machine) -> Vec<CpuPlace> {
    let cores = machine.sockets * machine.cores_per_socket;
    let place = |worker: usize| {
        let core = worker % cores;
        CpuPlace { socket: (core / machine.cores_per_socket) as u16, core: (core % machine.cores_per_socket) as u16 }
    };
    (0..machine.workers).map(place).collect()
}

/// Distances between workers, and the workers that share a core.
pub struct Distances {
    places: Vec<CpuPlace>,
    sockets_per_board: u16,
}

/// How far apart two workers are; nearer is less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// They are the same.
    Own,
    /// Hardware threads of one core.
    Core,
    /// Cores of one socket.
    Socket,
    /// Sockets of one board.
    Board,
    /// Different boards.
    Machine,
}

impl Distances {
    /// Distances of the workers of a machine.
    pub fn new(machine: &Machine) -> Distances {
        Distances { places: places(machine), sockets_per_board: machine.sockets.div_ceil(machine.boards) as u16 }
    }

    /// How far apart two workers are.
    #[inline]
    pub fn between(&self, a: usize, b: usize) -> Distance {
        if a == b {
            return Distance::Own;
        }
        let board = |place: CpuPlace| place.socket / self.sockets_per_board;
        match (self.places[a], self.places[b]) {
            (a, b) if a == b => Distance::Core,
            (a, b) if a.socket == b.socket => Distance::Socket,
            (a, b) if board(a) == board(b) => Distance::Board,
            _ => Distance::Machine,
        }
    }

    /// The worker on the other hardware thread of the same core, if there is one.
    pub fn sibling(&self, worker: usize) -> Option<usize> {
        (0..self.places.len()).find(|&other| other != worker && self.places[other] == self.places[worker])
    }

    /// Workers.
    pub fn workers(&self) -> usize {
        self.places.len()
    }

    /// Topology for the scheduler.
    pub fn topology(&self) -> Topology {
        Topology::from_places(&self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_fill_one_thread_of_each_core_socket_by_socket() {
        let machine = preset("haswell-2x8").unwrap();
        let places = places(&machine);
        assert_eq!(places.len(), 32);
        let at = |worker: usize| (places[worker].socket, places[worker].core);
        assert_eq!([at(0), at(7), at(8), at(15), at(16), at(31)], [(0, 0), (0, 7), (1, 0), (1, 7), (0, 0), (1, 7)]);
        let distances = Distances::new(&machine);
        assert_eq!(distances.between(0, 16), Distance::Core);
        assert_eq!(distances.between(0, 7), Distance::Socket);
        assert_eq!(distances.between(0, 8), Distance::Board);
        assert_eq!((distances.sibling(3), distances.sibling(19)), (Some(19), Some(3)));
    }

    #[test]
    fn sockets_of_two_boards_are_farther_apart_than_those_of_one() {
        let distances = Distances::new(&preset("westmere-8x10").unwrap());
        let between = |a, b| distances.between(a, b);
        assert_eq!(
            [between(0, 9), between(0, 10), between(0, 39), between(0, 40), between(79, 40)],
            [Distance::Socket, Distance::Board, Distance::Board, Distance::Machine, Distance::Board]
        );
    }

    #[test]
    fn every_name_is_a_machine_and_nothing_else_is() {
        for name in NAMES {
            assert_eq!(preset(name).unwrap().name, *name);
        }
        assert!(preset("haswell").is_none());
    }
}
