//! `mqfq-lab bench structures`: each of MQFQ's shared structures alone, beside what it is meant to be better than.
//!
//! Source: MQFQ sections 3.1 to 3.3 and 4.3.1 to 4.3.3. The losers live in [`mqfq_sim::rivals`] and not in sched: the
//! simulator runs the whole policy over them.
//!
//! | file | what |
//! |---|---|
//! | `virtual_time.rs`, `tokens.rs`, `wake_ups.rs` | the three loads, timed on pinned threads; the third has polling in it |
//! | `ideal_wake_ups.rs` | the third again in virtual time, on a machine where nothing takes time |
//! | `lines.rs` | counting accesses and the cache lines that move, on one thread |
//! | `threads.rs` | pinned threads for a given time |
//! | `report.rs`, `picture.rs` | rows, tables, SVG |
//!
//! # Two kinds of numbers
//! Times are of this machine: contenders in turn, round by round, the median with the smallest and the largest. Counts
//! are of no machine: the same source with atomics that write down what is done to them, one operation after the other,
//! and a directory of the copies of lines. A count cannot tell what a transfer costs here; a time cannot tell what 64
//! cores would do. lab/bench/README.md says what would make either lie.

pub mod ideal_wake_ups;
pub mod lines;
pub mod report;
pub mod threads;
pub mod tokens;
pub mod virtual_time;
pub mod wake_ups;

use crate::options::Runs;
use crate::rounds::Rounds;
use crate::shell::Record;
use mqfq_blk::worker::cores::{self, Cpu};
use mqfq_report::progress::Progress;
use mqfq_sched::topology::{HctxId, Topology};
use report::{CountedRow, IdealWakeUp, Place, Row, Structures, TOKENS, VIRTUAL_TIME, WAKE_UP, WakeUp};
use tokens::Pattern;
use virtual_time::Form;
use wake_ups::Way;

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct StructuresOptions {
    /// Threads, each on a CPU of its own; otherwise 1, 2, 4 and so on, and one per CPU.
    #[arg(long, value_parser = crate::options::count(1024))]
    pub workers: Option<usize>,
    /// Queues whose virtual time is kept; otherwise one per worker, 8, 64 and 1024.
    #[arg(long, value_parser = crate::options::count(1024))]
    pub queues: Option<usize>,
    /// How much is measured.
    #[command(flatten)]
    pub runs: Runs<5, 50>,
}

/// Numbers of queues that virtual time is kept for, beside one per worker.
const QUEUES: [usize; 3] = [8, 64, 1024];

/// Machines to count for: sockets, cores of each, hardware threads of each.
const MACHINES: [(usize, usize, usize); 4] = [(1, 1, 1), (1, 2, 1), (1, 16, 1), (2, 16, 2)];

/// Measures and prints.
///
/// # Errors
/// One sentence.
pub fn run(options: &StructuresOptions, json: bool) -> Result<(), String> {
    measure(options)?.publish(&options.runs, json)
}

/// Measures.
///
/// # Errors
/// One sentence.
pub fn measure(options: &StructuresOptions) -> Result<Record<Structures>, String> {
    let cpus = cores::allowed_cpus();
    let counts = worker_counts(options.workers, cpus.len())?;
    let mut loads = Vec::new();
    for &workers in &counts {
        loads.extend(
            queue_counts(options.queues, workers)?.into_iter().map(|queues| Load::VirtualTime { workers, queues }),
        );
        loads.push(Load::Tokens { workers, pattern: Pattern::Kept });
        if workers >= 2 {
            loads.push(Load::Tokens { workers, pattern: Pattern::HandedOn });
            loads.push(Load::WakeUps { workers });
        }
    }
    let mut progress = Progress::new(loads.len() + MACHINES.len());
    let mut rows = Vec::new();
    for load in loads {
        progress.step(&load.name());
        rows.extend(load.measure(&cpus, options)?);
    }
    rows.sort_by_key(|row| [VIRTUAL_TIME, TOKENS, WAKE_UP].iter().position(|&what| what == row.stands_for));
    let mut counted_rows = Vec::new();
    for machine in MACHINES {
        progress.step(&format!("counting for {} workers", machine.0 * machine.1 * machine.2));
        counted_rows.extend(count_for(machine));
    }
    counted_rows.sort_by_key(|row| [VIRTUAL_TIME, TOKENS, WAKE_UP].iter().position(|&what| what == row.stands_for));
    progress.finish();
    let most = *counts.last().expect("at least one worker");
    let placement = cpus[..most].iter().enumerate();
    let results = Structures {
        rows,
        counted_rows,
        placement: placement
            .map(|(worker, cpu)| Place { worker, cpu: cpu.number, core: cpu.core, socket: cpu.socket })
            .collect(),
    };
    Ok(Record::new(results, &options.runs, &[]))
}

/// 1, 2, 4 and so on up to one per CPU, or the one that was asked for. A worker without a CPU of its own would measure
/// the kernel's time slices.
fn worker_counts(asked: Option<usize>, cpus: usize) -> Result<Vec<usize>, String> {
    match asked {
        Some(workers) if workers > cpus => {
            Err(format!("{workers} workers need a CPU each, and this process may use {cpus}"))
        }
        Some(workers) => Ok(vec![workers]),
        None => {
            let mut counts: Vec<usize> =
                std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|&count| count < cpus).collect();
            counts.push(cpus);
            Ok(counts)
        }
    }
}

fn queue_counts(asked: Option<usize>, workers: usize) -> Result<Vec<usize>, String> {
    match asked {
        Some(queues) if queues < workers => Err(format!("{workers} workers need a queue each, not {queues} in all")),
        Some(queues) => Ok(vec![queues]),
        None => Ok([workers].into_iter().chain(QUEUES.into_iter().filter(|&queues| queues > workers)).collect()),
    }
}

/// A group of contenders that are run in turn.
#[derive(Clone, Copy)]
enum Load {
    VirtualTime { workers: usize, queues: usize },
    Tokens { workers: usize, pattern: Pattern },
    WakeUps { workers: usize },
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::VirtualTime { workers, queues } => format!("{VIRTUAL_TIME}, {workers} workers, {queues} queues"),
            Load::Tokens { workers, pattern } => format!("{TOKENS} {}, {workers} workers", pattern.name()),
            Load::WakeUps { workers } => format!("{WAKE_UP}, {workers} workers"),
        }
    }

    fn measure(self, cpus: &[Cpu], options: &StructuresOptions) -> Result<Vec<Row>, String> {
        let (rounds, ms) = (options.runs.rounds, options.runs.measured_ms);
        match self {
            Load::VirtualTime { workers, queues } => {
                let (cpus, topology) = (&cpus[..workers], cores::topology(&cpus[..workers], queues));
                let all = virtual_time_contenders();
                let timed = in_turn(&all, rounds, |(form, structure)| structure.time(form, cpus, &topology, ms))?;
                let rows = all.iter().zip(timed).map(|(&(form, structure), timed)| {
                    let counted = (workers <= lines::WORKERS_MAX).then(|| structure.count(form, &topology, workers));
                    let form = Some(form.name().to_string());
                    Row { form, counted, ..row(structure.name(), VIRTUAL_TIME, workers, queues, &timed) }
                });
                Ok(rows.collect())
            }
            Load::Tokens { workers, pattern } => {
                let (cpus, topology) = (&cpus[..workers], cores::topology(&cpus[..workers], workers));
                let all = tokens::Structure::ALL;
                let timed = in_turn(&all, rounds, |structure| structure.time(pattern, cpus, &topology, ms))?;
                let rows = all.iter().zip(timed).map(|(structure, timed)| {
                    let counted = (workers <= lines::WORKERS_MAX).then(|| structure.count(pattern, &topology));
                    let pattern = Some(pattern.name().to_string());
                    Row { pattern, counted, ..row(structure.name(), TOKENS, workers, workers, &timed) }
                });
                Ok(rows.collect())
            }
            Load::WakeUps { workers } => {
                let (cpus, topology) = (&cpus[..workers], cores::topology(&cpus[..workers], workers));
                let mut measured: Vec<Vec<wake_ups::Measured>> = Way::ALL.iter().map(|_| Vec::new()).collect();
                for _ in 0..rounds {
                    for (way, rounds) in Way::ALL.iter().zip(&mut measured) {
                        rounds.push(wake_ups::measure(*way, cpus, &topology, ms)?);
                    }
                }
                let rows = Way::ALL.iter().zip(measured).map(|(&way, rounds)| {
                    let counted = (workers <= lines::WORKERS_MAX).then(|| ideal_wake_ups::play(way, &topology).counted);
                    wake_up_row(way, workers, &rounds, counted)
                });
                Ok(rows.collect())
            }
        }
    }
}

fn virtual_time_contenders() -> Vec<(Form, virtual_time::Structure)> {
    Form::ALL.iter().flat_map(|&form| virtual_time::Structure::ALL.map(|structure| (form, structure))).collect()
}

/// Operations and the time that they took, ns, of each round of a contender.
type Timed = Vec<(u64, u64)>;

/// Each contender once per round.
fn in_turn<S: Copy>(
    contenders: &[S],
    rounds: u32,
    mut time: impl FnMut(S) -> Result<(u64, u64), String>,
) -> Result<Vec<Timed>, String> {
    let mut timed: Vec<Timed> = contenders.iter().map(|_| Timed::new()).collect();
    for _ in 0..rounds {
        for (&contender, rounds) in contenders.iter().zip(&mut timed) {
            rounds.push(time(contender)?);
        }
    }
    Ok(timed)
}

fn row(structure: &str, stands_for: &str, workers: usize, queues: usize, rounds: &Timed) -> Row {
    let per_operation = |&(operations, elapsed_ns): &(u64, u64)| elapsed_ns as f64 / operations.max(1) as f64;
    let ns = Rounds::of(rounds.iter().map(|round| per_operation(round) * workers as f64));
    Row {
        structure: structure.into(),
        stands_for: stands_for.into(),
        form: None,
        pattern: None,
        workers,
        queues,
        ns_per_operation: ns.median(),
        ns_per_operation_smallest: ns.smallest(),
        ns_per_operation_largest: ns.largest(),
        operations_per_s: workers as f64 * 1e9 / ns.median(),
        wake_up: None,
        counted: None,
    }
}

fn wake_up_row(way: Way, workers: usize, rounds: &[wake_ups::Measured], counted: Option<lines::Counted>) -> Row {
    let step_ns = Rounds::of(rounds.iter().map(|round| round.step_busy_ns as f64 / round.steps.max(1) as f64));
    let per_s = Rounds::of(rounds.iter().map(|round| round.steps as f64 * 1e9 / round.elapsed_ns as f64));
    let sum = |of: fn(&wake_ups::Measured) -> u64| rounds.iter().map(of).sum::<u64>() as f64;
    let elapsed_ns = sum(|round| round.elapsed_ns);
    let mut delays_ns = rounds[0].delays_ns.clone();
    // The histograms are alike and grow, so that nothing is left out.
    rounds[1..].iter().for_each(|round| delays_ns.add(&round.delays_ns).expect("a histogram that resizes"));
    let delay_ns = |quantile: f64| (!delays_ns.is_empty()).then(|| delays_ns.value_at_quantile(quantile));
    Row {
        structure: way.name(),
        stands_for: WAKE_UP.into(),
        form: None,
        pattern: None,
        workers,
        queues: workers,
        ns_per_operation: step_ns.median(),
        ns_per_operation_smallest: step_ns.smallest(),
        ns_per_operation_largest: step_ns.largest(),
        operations_per_s: per_s.median(),
        wake_up: Some(WakeUp {
            wake_ups: delays_ns.len(),
            wake_up_delay_p50_ns: delay_ns(0.5),
            wake_up_delay_p99_ns: delay_ns(0.99),
            cpu_share: sum(|round| round.sleepers_cpu_ns) / elapsed_ns / (workers - 1) as f64,
            reschedules_per_s: sum(|round| round.reschedules) * 1e9 / elapsed_ns,
            spurious_reschedules_per_s: sum(|round| round.spurious) * 1e9 / elapsed_ns,
            held_up_share: sum(|round| round.held_up_ns) / elapsed_ns,
        }),
        counted,
    }
}

/// All contenders on one machine of [`MACHINES`].
fn count_for(machine: (usize, usize, usize)) -> Vec<CountedRow> {
    let (sockets, cores, threads_per_core) = machine;
    let topology = Topology::new(sockets, cores, threads_per_core);
    let workers = topology.hctx_count();
    let row = |structure: &str, stands_for: &str, counted| CountedRow {
        structure: structure.into(),
        stands_for: stands_for.into(),
        form: None,
        pattern: None,
        workers,
        sockets,
        threads_per_core,
        counted,
        ideal: None,
    };
    let mut rows: Vec<CountedRow> = virtual_time_contenders()
        .into_iter()
        .map(|(form, structure)| CountedRow {
            form: Some(form.name().into()),
            ..row(structure.name(), VIRTUAL_TIME, structure.count(form, &topology, workers))
        })
        .collect();
    for pattern in [Pattern::Kept, Pattern::HandedOn].into_iter().take(workers.min(2)) {
        rows.extend(tokens::Structure::ALL.iter().map(|structure| CountedRow {
            pattern: Some(pattern.name().into()),
            ..row(structure.name(), TOKENS, structure.count(pattern, &topology))
        }));
    }
    if workers >= 2 {
        rows.extend(Way::ALL.iter().map(|&way| {
            let played = ideal_wake_ups::play(way, &topology);
            let wake_ups = played.delays_ns.len();
            let delay_ns = |percent: usize| played.delays_ns[(wake_ups - 1) * percent / 100];
            let ideal = IdealWakeUp {
                ideal_delay_p50_ns: delay_ns(50),
                ideal_delay_p99_ns: delay_ns(99),
                reschedules_per_wake_up: played.reschedules as f64 / wake_ups as f64,
            };
            CountedRow { ideal: Some(ideal), ..row(&way.name(), WAKE_UP, played.counted) }
        }));
    }
    rows
}

/// Returns the places for the source that counts.
fn counted_topology(topology: &Topology) -> mqfq_sched_watched::topology::Topology {
    use mqfq_sched_watched::topology::{CpuPlace, Topology};
    let places: Vec<CpuPlace> = (0..topology.hctx_count() as u16)
        .map(|hctx| topology.place(HctxId(hctx)))
        .map(|place| CpuPlace { socket: place.socket, core: place.core })
        .collect();
    Topology::from_places(&places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_double_up_to_one_per_cpu() {
        assert_eq!(worker_counts(None, 1).unwrap(), [1]);
        assert_eq!(worker_counts(None, 2).unwrap(), [1, 2]);
        assert_eq!(worker_counts(None, 16).unwrap(), [1, 2, 4, 8, 16]);
        assert_eq!(worker_counts(None, 12).unwrap(), [1, 2, 4, 8, 12]);
        assert_eq!(worker_counts(Some(3), 4).unwrap(), [3]);
        assert_eq!(worker_counts(Some(5), 2).unwrap_err(), "5 workers need a CPU each, and this process may use 2");
    }

    #[test]
    fn every_worker_has_a_queue() {
        assert_eq!(queue_counts(None, 1).unwrap(), [1, 8, 64, 1024]);
        assert_eq!(queue_counts(None, 8).unwrap(), [8, 64, 1024]);
        assert_eq!(queue_counts(None, 100).unwrap(), [100, 1024]);
        assert_eq!(queue_counts(Some(1), 2).unwrap_err(), "2 workers need a queue each, not 1 in all");
    }
}
