//! Programs by name.
//!
//! A profile says which steps the threads of a program do and how long they take. What the papers state of a program is
//! kept (see each profile); the rest is ASSUMED and fitted to those statements, and a scenario may set it again. Work
//! is of fixed size, as the native inputs of the suites are: of more threads each does less between two
//! synchronisations.

mod npb;
mod parsec;

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
