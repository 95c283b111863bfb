//! Programs by name.
//!
//! A profile says which steps the threads of a program do and how long they take. What the papers state of a program is
//! kept (see each profile); the rest is ASSUMED and fitted to those statements, and a scenario may set it again. Work
//! is of fixed size, as the native inputs of the suites are: of more threads each does less between two
//! synchronisations.

use super::body::{Body, Role, Step, Time};

/// Settings of a profile in a scenario.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    /// Threads of the program.
    pub threads: u32,
    /// In place of the profile's own time between two synchronisations of a thread, ns.
    pub compute_ns: Option<u64>,
    /// In place of its own time in a critical section, ns.
    pub critical_ns: Option<u64>,
}

impl Parameters {
    /// Parameters of so many threads; all else is the profile's.
    pub fn of(threads: u32) -> Parameters {
        Parameters { threads, compute_ns: None, critical_ns: None }
    }
}

/// A profile.
pub struct Profile {
    /// As a scenario writes it.
    pub name: &'static str,
    /// One line.
    pub what: &'static str,
    /// Least threads that it can have.
    pub threads_min: u32,
    body: fn(Parameters) -> Body,
}

impl Profile {
    /// The program.
    pub fn body(&self, parameters: Parameters) -> Body {
        (self.body)(parameters)
    }
}

/// All of them.
pub const ALL: &[Profile] = &[
    Profile { name: "hog", what: "computes and never waits", threads_min: 1, body: hog },
    Profile { name: "ep", what: "NPB EP: parallel, without synchronisation", threads_min: 1, body: ep },
    Profile {
        name: "streamcluster",
        what: "PARSEC streamcluster: a barrier after each short phase, and a mutex",
        threads_min: 1,
        body: streamcluster,
    },
    Profile {
        name: "dedup",
        what: "PARSEC dedup: a pipeline of five stages with bounded queues",
        threads_min: 5,
        body: dedup,
    },
    Profile { name: "blackscholes", what: "PARSEC: hardly ever a barrier", threads_min: 1, body: parsec::blackscholes },
    Profile {
        name: "bodytrack",
        what: "PARSEC: tasks behind a mutex, a barrier after each phase",
        threads_min: 1,
        body: parsec::bodytrack,
    },
    Profile { name: "canneal", what: "PARSEC: one mutex, often, and barriers", threads_min: 1, body: parsec::canneal },
    Profile { name: "facesim", what: "PARSEC: a barrier after each phase", threads_min: 1, body: parsec::facesim },
    Profile { name: "ferret", what: "PARSEC: a pipeline of six stages", threads_min: 6, body: parsec::ferret },
    Profile {
        name: "fluidanimate",
        what: "PARSEC: many mutexes, a barrier after each phase",
        threads_min: 1,
        body: parsec::fluidanimate,
    },
    Profile {
        name: "raytrace",
        what: "PARSEC: tiles behind a mutex, a barrier a frame",
        threads_min: 1,
        body: parsec::raytrace,
    },
    Profile { name: "swaptions", what: "PARSEC: never waits", threads_min: 1, body: parsec::swaptions },
    Profile { name: "vips", what: "PARSEC: tiles behind a mutex", threads_min: 1, body: parsec::vips },
    Profile {
        name: "x264",
        what: "PARSEC: frames that wait for rows of the one before",
        threads_min: 2,
        body: parsec::x264,
    },
    Profile { name: "bt", what: "NPB: a barrier after each long loop", threads_min: 1, body: npb::bt },
    Profile { name: "cg", what: "NPB: a barrier and a sum after each loop", threads_min: 1, body: npb::cg },
    Profile { name: "ft", what: "NPB: a barrier after each long loop", threads_min: 1, body: npb::ft },
    Profile { name: "is", what: "NPB: a barrier after each loop", threads_min: 1, body: npb::is },
    Profile { name: "lu", what: "NPB: a barrier after each loop", threads_min: 1, body: npb::lu },
    Profile {
        name: "mg",
        what: "NPB: a barrier after each loop, of very different length",
        threads_min: 1,
        body: npb::mg,
    },
    Profile { name: "sp", what: "NPB: a barrier after each loop", threads_min: 1, body: npb::sp },
    Profile { name: "ua", what: "NPB: a barrier after each loop, and mutexes", threads_min: 1, body: npb::ua },
    Profile {
        name: "critical-loop",
        what: "the program of equation 3: all compute, then one computes while the others wait",
        threads_min: 2,
        body: critical_loop,
    },
    Profile { name: "mutex-loop", what: "compute, then compute with the one mutex", threads_min: 1, body: mutex_loop },
    Profile { name: "barrier-loop", what: "compute, then wait for all", threads_min: 1, body: barrier_loop },
];

/// The profile of this name.
pub fn find(name: &str) -> Option<&'static Profile> {
    ALL.iter().find(|profile| profile.name == name)
}

/// The synthetic benchmark of P-MQFQ section 4.2: as many such threads as cores. An item is 1 ms of computing.
fn hog(given: Parameters) -> Body {
    let time = Time::Fixed(given.compute_ns.unwrap_or(1_000_000));
    Body::of(given.threads, vec![Step::Compute(time), Step::Done])
}

/// Embarrassingly parallel (P-MQFQ section 4.2): as a hog, with batches of drawn length. ASSUMED: 5 ms each.
fn ep(given: Parameters) -> Body {
    let time = Time::around(given.compute_ns.unwrap_or(5_000_000), 10);
    Body::of(given.threads, vec![Step::Compute(time), Step::Done])
}

/// Work of all threads between two barriers of streamcluster, ns. ASSUMED; fitted so that 48 threads alone use 14 of 48
/// cores (P-MQFQ section 4.2) with the machine's default costs.
const STREAMCLUSTER_PHASE_NS: u64 = 900_000;

/// Phases between barriers; after every tenth, one thread at a time adds to what all share.
fn streamcluster(given: Parameters) -> Body {
    let threads = given.threads;
    let phase_ns = given.compute_ns.unwrap_or_else(|| (STREAMCLUSTER_PHASE_NS / u64::from(threads)).max(1_000));
    let critical_ns = given.critical_ns.unwrap_or(500);
    let phase = vec![Step::Compute(Time::around(phase_ns, 20)), Step::Barrier(0)];
    let steps = vec![
        Step::Repeat(9, phase.clone()),
        Step::Compute(Time::around(phase_ns, 20)),
        Step::Lock { first: 0, count: 1 },
        Step::Compute(Time::Fixed(critical_ns)),
        Step::Unlock,
        Step::Barrier(0),
        Step::Done,
    ];
    Body { mutexes: 1, barriers: vec![threads], ..Body::of(threads, steps) }
}

/// Places in a queue between two stages. ASSUMED.
const DEDUP_PLACES: u32 = 32;

/// One thread reads, three stages of equal numbers refine, look up and compress, one thread writes. Between two stages
/// is a bounded queue; looking up takes one of 64 mutexes of a table. ASSUMED: times in proportion 1 : 4 : 2 : 14 per
/// chunk, so that compressing is most of it and neither the reader nor the writer is the bottleneck below 64 threads.
fn dedup(given: Parameters) -> Body {
    let middle = given.threads - 2;
    let compress = (middle * 7 / 10).clamp(1, middle - 2);
    let refine = ((middle - compress) * 2 / 3).clamp(1, middle - compress - 1);
    let look_up = middle - compress - refine;
    let compute_ns = given.compute_ns.unwrap_or(100_000);
    let critical_ns = given.critical_ns.unwrap_or(2_000);
    let time = |part: u64| Step::Compute(Time::around(compute_ns * part / 4, 30));
    // Semaphores of queue n: 2n are places, 2n + 1 are items.
    let put = |queue: u32| {
        [
            Step::Down(2 * queue),
            Step::Lock { first: queue, count: 1 },
            Step::Compute(Time::Fixed(200)),
            Step::Unlock,
            Step::Up(2 * queue + 1),
        ]
    };
    let take = |queue: u32| {
        [
            Step::Down(2 * queue + 1),
            Step::Lock { first: queue, count: 1 },
            Step::Compute(Time::Fixed(200)),
            Step::Unlock,
            Step::Up(2 * queue),
        ]
    };
    let stage = |from: Option<u32>, work: Vec<Step>, to: Option<u32>| {
        let mut steps = Vec::new();
        steps.extend(from.into_iter().flat_map(take));
        steps.extend(work);
        steps.extend(to.into_iter().flat_map(put));
        steps
    };
    let table =
        vec![time(2), Step::Lock { first: 4, count: 64 }, Step::Compute(Time::Fixed(critical_ns)), Step::Unlock];
    let roles = vec![
        Role { threads: 1, steps: stage(None, vec![Step::Compute(Time::Fixed(compute_ns / 40))], Some(0)) },
        Role { threads: refine, steps: stage(Some(0), vec![time(4)], Some(1)) },
        Role { threads: look_up, steps: stage(Some(1), table, Some(2)) },
        Role { threads: compress, steps: stage(Some(2), vec![time(14)], Some(3)) },
        Role { threads: 1, steps: stage(Some(3), vec![Step::Compute(Time::Fixed(compute_ns / 40)), Step::Done], None) },
    ];
    let semaphores = (0..4).flat_map(|_| [DEDUP_PLACES, 0]).collect();
    Body { roles, mutexes: 4 + 64, semaphores, ..Body::of(0, Vec::new()) }
}

/// The program of P-MQFQ's equation 3 (section 2.4): every thread computes for l_nc; when all have, one of them
/// computes alone for as long as a quantum, which the paper says is when others get a core again, and then wakes all.
fn critical_loop(given: Parameters) -> Body {
    let others = given.threads - 1;
    let compute = Step::Compute(Time::Fixed(given.compute_ns.unwrap_or(600_000)));
    let first = vec![
        compute.clone(),
        Step::Repeat(others, vec![Step::Down(0)]),
        Step::Compute(Time::Fixed(given.critical_ns.unwrap_or(6_000_000))),
        Step::Repeat(others, vec![Step::Up(1)]),
        Step::Done,
    ];
    let other = vec![compute, Step::Up(0), Step::Down(1)];
    let roles = vec![Role { threads: 1, steps: first }, Role { threads: others, steps: other }];
    Body { roles, semaphores: vec![0, 0], ..Body::of(0, Vec::new()) }
}

/// A non-critical section, then the one critical section.
fn mutex_loop(given: Parameters) -> Body {
    let steps = vec![
        Step::Compute(Time::around(given.compute_ns.unwrap_or(100_000), 10)),
        Step::Lock { first: 0, count: 1 },
        Step::Compute(Time::Fixed(given.critical_ns.unwrap_or(1_000))),
        Step::Unlock,
        Step::Done,
    ];
    Body { mutexes: 1, ..Body::of(given.threads, steps) }
}

/// The plainest program with a barrier.
fn barrier_loop(given: Parameters) -> Body {
    let time = Time::around(given.compute_ns.unwrap_or(100_000), 10);
    let steps = vec![Step::Compute(time), Step::Barrier(0), Step::Done];
    Body { barriers: vec![given.threads], ..Body::of(given.threads, steps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_a_program_at_every_size() {
        for profile in ALL {
            for threads in [profile.threads_min, 6, 12, 13, 48, 256] {
                let body = profile.body(Parameters::of(threads.max(profile.threads_min)));
                assert_eq!(body.check(), Ok(()), "{} with {threads}", profile.name);
                assert_eq!(body.threads(), threads.max(profile.threads_min), "{}", profile.name);
                assert!(body.roles.iter().all(|role| role.threads > 0), "{} with {threads}", profile.name);
            }
        }
    }
}

mod npb {
    //! NAS parallel benchmarks, OpenMP, class C, blocking (P-MQFQ section 4.1): nine programs.
    //!
    //! # Where the numbers are from
    //! All are loops that end with a barrier of all threads, and P-MQFQ says that they "have much longer non-critical
    //! sections and less frequent synchronization" than PARSEC's (section 4.2), but for EP, which "is embarrassingly
    //! parallel and uses no synchronization". The number of iterations is that of the suite's class C (BT 200, CG 75
    //! with 25 steps of conjugate gradients each, FT 20, IS 10, LU 250, MG 20, SP 400, UA 200); how many parallel loops
    //! an iteration has, and how long one takes, is ASSUMED: work of all threads between two barriers, at ten seconds
    //! and more of 48 cores a program.
    //!
    //! | program | work of all threads between two barriers | what else |
    //! |---|---|---|
    //! | BT | 200 ms | |
    //! | CG | 30 ms | a sum of all threads after each, behind a mutex |
    //! | EP | none: no barrier | |
    //! | FT | 400 ms | |
    //! | IS | 60 ms | |
    //! | LU | 100 ms | |
    //! | MG | 10 to 160 ms: coarse and fine grids in turn | |
    //! | SP | 80 ms | |
    //! | UA | 40 ms | 64 mutexes of shared points |

    use super::super::body::{Body, Step, Time};
    use super::Parameters;

    const MS: u64 = 1_000_000;

    fn phase(all_ns: u64, given: Parameters) -> Step {
        Step::Compute(Time::around(given.compute_ns.unwrap_or((all_ns / u64::from(given.threads)).max(1_000)), 10))
    }

    fn loops(given: Parameters, mut steps: Vec<Step>) -> Body {
        steps.extend([Step::Barrier(0), Step::Done]);
        Body { barriers: vec![given.threads], ..Body::of(given.threads, steps) }
    }

    pub fn bt(given: Parameters) -> Body {
        loops(given, vec![phase(200 * MS, given)])
    }

    pub fn cg(given: Parameters) -> Body {
        let sum = Step::Compute(Time::Fixed(given.critical_ns.unwrap_or(300)));
        let steps = vec![phase(30 * MS, given), Step::Lock { first: 0, count: 1 }, sum, Step::Unlock];
        Body { mutexes: 1, ..loops(given, steps) }
    }

    pub fn ft(given: Parameters) -> Body {
        loops(given, vec![phase(400 * MS, given)])
    }

    pub fn is(given: Parameters) -> Body {
        loops(given, vec![phase(60 * MS, given)])
    }

    pub fn lu(given: Parameters) -> Body {
        loops(given, vec![phase(100 * MS, given)])
    }

    /// Down to the coarse grid and back.
    pub fn mg(given: Parameters) -> Body {
        let grids = [160, 40, 10, 40].map(|ms| [phase(ms * MS, given), Step::Barrier(0)]);
        let mut steps: Vec<Step> = grids.into_iter().flatten().collect();
        steps.pop();
        loops(given, steps)
    }

    pub fn sp(given: Parameters) -> Body {
        loops(given, vec![phase(80 * MS, given)])
    }

    pub fn ua(given: Parameters) -> Body {
        let point = Step::Compute(Time::Fixed(given.critical_ns.unwrap_or(1_000)));
        let steps = vec![phase(40 * MS, given), Step::Lock { first: 0, count: 64 }, point, Step::Unlock];
        Body { mutexes: 64, ..loops(given, steps) }
    }
}

mod parsec {
    //! PARSEC 3.0, as far as P-MQFQ's figures show it: twelve programs with pthreads and native inputs (section 4.1).
    //!
    //! # Where the numbers are from
    //! The kind of synchronisation is the suite's: data-parallel programs with barriers, thread pools with conditions,
    //! pipelines, locks. How often is derived from what Bienia et al. count ("The PARSEC Benchmark Suite:
    //! Characterization and Architectural Implications", Princeton TR-811-08: instructions, locks, barriers and
    //! conditions of a run with input simlarge): work between two of them = instructions / count, at one instruction
    //! per ns, which is ASSUMED, and rounded, since inputs and machines differ from P-MQFQ's. Where P-MQFQ says
    //! otherwise, it decides, and the row says CALIBRATED:
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
    //! "Of all threads" is a fixed amount of work that the threads divide among them, so that each does less of it the
    //! more there are: native inputs do not grow with the machine.

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
}
