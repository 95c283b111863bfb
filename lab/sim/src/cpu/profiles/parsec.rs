//! PARSEC 3.0, as far as P-MQFQ's figures show it: twelve programs with pthreads and native inputs (section 4.1).
//!
//! # Where the numbers are from
//! The kind of synchronisation is the suite's: data-parallel programs with barriers, thread pools with conditions,
//! pipelines, locks. How often is derived from what Bienia et al. count ("The PARSEC Benchmark Suite: Characterization
//! and Architectural Implications", Princeton TR-811-08: instructions, locks, barriers and conditions of a run with
//! input simlarge): work between two of them = instructions / count, at one instruction per ns, which is ASSUMED, and
//! rounded, since inputs and machines differ from P-MQFQ's. Where P-MQFQ says otherwise, it decides, and the row says
//! CALIBRATED:
//!
//! | program | in the suite | here | of that |
//! |---|---|---|---|
//! | blackscholes | 8 barriers in 2.7 G instructions | barrier each 300 ms of a thread's work | counted |
//! | bodytrack | 115 k locks, 619 barriers, 2.0 k conditions in 14 G | 20 ms between barriers, of all threads; queue of tasks | counted |
//! | canneal | 34 locks in 7.3 G; a barrier at each temperature | a lock each 200 us of a thread's work, for 8 us; barrier each 60 of those | CALIBRATED: "fine-grained programs, such as streamcluster and canneal, were unable to utilize their fair shares even in solo mode" (4.2): 19 of 48 cores |
//! | dedup | 159 k locks, 1.6 k conditions in 37 G; five stages | pipeline of five stages, 64 table mutexes; 0.5 ms of work and eight locks a chunk | structure; times ASSUMED near the count |
//! | facesim | 14.5 k locks, 3.1 k conditions in 30 G | barrier each 10 ms, of all threads | counted |
//! | ferret | 346 k locks, 1.3 k conditions in 24 G; six stages | pipeline of six stages, a query 10 ms | structure; times ASSUMED |
//! | fluidanimate | 17.8 M locks in 14 G; barriers in each of 8 phases of a frame | 512 mutexes, a lock each 100 us; barrier each 20 ms of all threads | CALIBRATED: locks of cells hardly ever meet and are not told one by one |
//! | raytrace | locks for tiles, a barrier per frame | a lock per tile of 400 us, barrier per 64 tiles of a thread | ASSUMED |
//! | streamcluster | 130 k barriers in 22 G | barrier each 0.9 ms, of all threads | CALIBRATED: 1400% of 48 cores alone (4.2) |
//! | swaptions | 23 locks in 14 G | never waits in 100 ms | counted |
//! | vips | 34 k locks, 6.4 k conditions in 31 G | tiles of 5 ms behind one lock | counted |
//! | x264 | 17 k locks, 1.1 k conditions in 32 G; a frame waits for rows of the one before | a ring of semaphores, a row 1.5 ms | counted |
//!
//! "Of all threads" is a fixed amount of work that the threads divide among them, so that each does less of it the more
//! there are: native inputs do not grow with the machine.

use super::super::body::{Body, Role, Step, Time};
use super::Parameters;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

fn around(ns: u64) -> Step {
    Step::Compute(Time::around(ns, 20))
}

/// Work of all threads, for one of them.
fn part(all_ns: u64, given: Parameters) -> u64 {
    given.compute_ns.unwrap_or((all_ns / u64::from(given.threads)).max(US))
}

/// `steps` and a barrier of all threads, over and over.
fn with_barrier(given: Parameters, mut steps: Vec<Step>) -> Body {
    steps.extend([Step::Barrier(0), Step::Done]);
    Body { barriers: vec![given.threads], ..Body::of(given.threads, steps) }
}

/// A critical section of the one mutex, or of one of many.
fn critical(count: u32, ns: u64) -> [Step; 3] {
    [Step::Lock { first: 0, count }, Step::Compute(Time::Fixed(ns)), Step::Unlock]
}

pub fn blackscholes(given: Parameters) -> Body {
    with_barrier(given, vec![around(given.compute_ns.unwrap_or(300 * MS))])
}

/// Each phase is a list of tasks that the threads take one by one.
pub fn bodytrack(given: Parameters) -> Body {
    let task_ns = part(20 * MS, given) / 4;
    let mut task = vec![around(task_ns.max(1))];
    task.extend(critical(1, given.critical_ns.unwrap_or(500)));
    Body { mutexes: 1, ..with_barrier(given, vec![Step::Repeat(4, task)]) }
}

pub fn canneal(given: Parameters) -> Body {
    let mut swap = vec![around(given.compute_ns.unwrap_or(200 * US))];
    swap.extend(critical(1, given.critical_ns.unwrap_or(8 * US)));
    Body { mutexes: 1, ..with_barrier(given, vec![Step::Repeat(60, swap)]) }
}

pub fn facesim(given: Parameters) -> Body {
    with_barrier(given, vec![around(part(10 * MS, given))])
}

/// Load, segment, extract, index, rank, out: the four in the middle in parallel, and ranking most of it.
pub fn ferret(given: Parameters) -> Body {
    let middle = given.threads - 2;
    // A quarter each, so that no stage is without a thread; ranking has what is left over.
    let quarter = (middle / 4).max(1);
    let stages = [quarter, quarter, quarter, middle - 3 * quarter];
    let query_ns = given.compute_ns.unwrap_or(10 * MS);
    // A stage's part of the query follows its threads, so that none waits for the other for long.
    let parts = stages.map(|threads| query_ns * u64::from(threads) / u64::from(middle));
    let ends_ns = query_ns / u64::from(middle) / 2;
    let times = [ends_ns, parts[0], parts[1], parts[2], parts[3], ends_ns];
    let threads = [1, stages[0], stages[1], stages[2], stages[3], 1];
    pipeline(&threads, &times, PLACES)
}

/// Places in a queue between two stages. ASSUMED.
const PLACES: u32 = 20;

/// Stages with a bounded queue between each two, as places and items.
fn pipeline(threads: &[u32], times_ns: &[u64], places: u32) -> Body {
    let last = threads.len() - 1;
    let role = |stage: usize| {
        let mut steps = Vec::new();
        let of_queue = |queue: usize, down: u32, up: u32| {
            let queue = queue as u32;
            [
                Step::Down(2 * queue + down),
                Step::Lock { first: queue, count: 1 },
                Step::Compute(Time::Fixed(200)),
                Step::Unlock,
                Step::Up(2 * queue + up),
            ]
        };
        if stage > 0 {
            steps.extend(of_queue(stage - 1, 1, 0));
        }
        steps.push(Step::Compute(Time::around(times_ns[stage].max(1), 30)));
        if stage < last {
            steps.extend(of_queue(stage, 0, 1));
        } else {
            steps.push(Step::Done);
        }
        Role { threads: threads[stage], steps }
    };
    Body {
        roles: (0..=last).map(role).collect(),
        mutexes: last as u32,
        semaphores: (0..last).flat_map(|_| [places, 0]).collect(),
        ..Body::of(0, Vec::new())
    }
}

pub fn fluidanimate(given: Parameters) -> Body {
    let cells_ns = given.compute_ns.unwrap_or(100 * US);
    let all = (20 * MS / u64::from(given.threads) / cells_ns).max(1);
    let mut cells = vec![around(cells_ns)];
    cells.extend(critical(512, given.critical_ns.unwrap_or(1_000)));
    Body { mutexes: 512, ..with_barrier(given, vec![Step::Repeat(all as u32, cells)]) }
}

pub fn raytrace(given: Parameters) -> Body {
    let mut tile = vec![around(given.compute_ns.unwrap_or(400 * US))];
    tile.extend(critical(1, given.critical_ns.unwrap_or(500)));
    Body { mutexes: 1, ..with_barrier(given, vec![Step::Repeat(64, tile)]) }
}

pub fn swaptions(given: Parameters) -> Body {
    Body::of(given.threads, vec![around(given.compute_ns.unwrap_or(100 * MS)), Step::Done])
}

pub fn vips(given: Parameters) -> Body {
    let mut tile = vec![around(given.compute_ns.unwrap_or(5 * MS))];
    tile.extend(critical(1, given.critical_ns.unwrap_or(20 * US)));
    tile.push(Step::Done);
    Body { mutexes: 1, ..Body::of(given.threads, tile) }
}

/// Thread n codes frames n, n + threads and so on: row by row, each after the row of the frame before.
pub fn x264(given: Parameters) -> Body {
    let threads = given.threads;
    let row_ns = given.compute_ns.unwrap_or(1_500 * US);
    let role = |number: u32| Role {
        threads: 1,
        steps: vec![Step::Down(number), around(row_ns), Step::Up((number + 1) % threads), Step::Done],
    };
    // Frames in flight are some rows apart: so many rows each thread may be ahead.
    Body {
        roles: (0..threads).map(role).collect(),
        semaphores: vec![AHEAD_ROWS; threads as usize],
        ..Body::of(0, Vec::new())
    }
}

/// Rows between two frames that are coded at once. ASSUMED.
const AHEAD_ROWS: u32 = 2;
