//! `mqfq-lab sim run` of a scenario of programs: each program's part of the cores, its work, and where it ran.

use super::run::{Host, RunOptions};
use mqfq_report::print_line;
use mqfq_report::table::{Align, Table};
use mqfq_sim::any;
use mqfq_sim::cpu::schedulers::SchedulerKind;
use mqfq_sim::cpu::{self, Outcome, Scenario, timeline};
use mqfq_sim::figure::draw_run;
use serde::Serialize;
use std::time::Instant;

/// The simulated part of the output: equal for equal scenarios on any machine.
#[derive(Serialize)]
struct Simulated<'a> {
    scenario: &'a str,
    /// The scenario's own keys.
    #[serde(flatten)]
    outcome: &'a Outcome,
    /// By program; `null` if they were not run alone.
    alone: Option<Vec<Alone>>,
}

#[derive(Serialize)]
struct Alone {
    name: String,
    alone_cores_used: f64,
    alone_items_per_s: f64,
    /// `null` if nothing was done beside the others.
    slowdown: Option<f64>,
}

#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    simulated: &'a Simulated<'a>,
    host: &'a Host,
    files: &'a [String],
}

/// Simulates a scenario and prints what came of it.
///
/// # Errors
/// One sentence.
pub fn run(options: &RunOptions, as_json: bool, file: &str, text: &str, scenario: &Scenario) -> Result<(), String> {
    let mut scenario = scenario.clone();
    let mut stem = super::files::file_stem(&options.scenario);
    if let Some(name) = &options.scheduler {
        scenario.scheduler = SchedulerKind::parse(name)?;
        stem = format!("{stem}-{name}");
    }
    let scenario = &scenario;
    let begun = Instant::now();
    let outcome = cpu::run(scenario)?;
    let host = Host::since(begun, outcome.events, scenario.warm_up_ns + scenario.measured_ns);
    let alone = if options.alone { Some(alone(scenario, &outcome)?) } else { None };
    let simulated = Simulated { scenario: &options.scenario, outcome: &outcome, alone };
    let mut files = Vec::new();
    if let Some(folder) = &options.out {
        let title = format!("{} under {}, {} cores", options.scenario, outcome.scheduler, outcome.cores);
        let json = mqfq_report::json(&simulated)? + "\n";
        files.push(super::files::write(folder, &format!("{stem}.json"), &json)?);
        files.push(super::files::write(folder, &format!("{stem}.csv"), &programs_csv(&simulated)?)?);
        let picture = draw_run(file, text, &title, &outcome.clone().into(), &any::check)?;
        files.push(super::files::write(folder, &format!("{stem}.svg"), &picture)?);
        if let Some(window_ns) = scenario.window_ns {
            let picture = timeline::draw(&title, &outcome, window_ns);
            files.push(super::files::write(folder, &format!("{stem}-timeline.svg"), &picture)?);
        }
    }
    if as_json {
        print_line(mqfq_report::json(&Printed { simulated: &simulated, host: &host, files: &files })?)?;
    } else {
        print_line(show(&simulated, scenario, &host).trim_end_matches('\n'))?;
        files.iter().try_for_each(|file| print_line(format_args!("written: {file}")))?;
    }
    Ok(())
}

/// Each program simulated alone.
fn alone(scenario: &Scenario, together: &Outcome) -> Result<Vec<Alone>, String> {
    let one = |index: usize| {
        let alone = cpu::run(&scenario.alone(index))?.programs.swap_remove(0);
        let shared = together.programs[index].items_per_s;
        Ok(Alone {
            slowdown: (shared > 0.0).then(|| alone.items_per_s / shared),
            name: alone.name,
            alone_cores_used: alone.cores_used,
            alone_items_per_s: alone.items_per_s,
        })
    };
    (0..scenario.programs.len()).map(one).collect()
}

const COLUMNS: [(&str, Align); 10] = [
    ("program", Align::Left),
    ("weight", Align::Right),
    ("threads", Align::Right),
    ("cores", Align::Right),
    ("of fair", Align::Right),
    ("items/s", Align::Right),
    ("slowdown", Align::Right),
    ("blocks/s", Align::Right),
    ("moves/s", Align::Right),
    ("longest wait ms", Align::Right),
];

/// The columns of a program, as text.
fn cells(simulated: &Simulated<'_>, index: usize) -> Vec<String> {
    let outcome = simulated.outcome;
    let program = &outcome.programs[index];
    let weights: f64 = outcome.programs.iter().map(|program| f64::from(program.weight)).sum();
    let fair = f64::from(outcome.cores) * f64::from(program.weight) / weights;
    let per_s = |count: u64| count as f64 / (outcome.measured_ns as f64 * 1e-9);
    let alone = simulated.alone.as_ref().map(|alone| &alone[index]);
    vec![
        program.name.clone(),
        program.weight.to_string(),
        program.threads.to_string(),
        format!("{:.2}", program.cores_used),
        format!("{:.3}", program.cores_used / fair),
        format!("{:.0}", program.items_per_s),
        super::files::maybe(alone.and_then(|alone| alone.slowdown)),
        format!("{:.0}", per_s(program.blocks)),
        format!("{:.0}", per_s(program.migrations)),
        format!("{:.2}", program.queued_ns_max as f64 / 1e6),
    ]
}

fn programs_csv(simulated: &Simulated<'_>) -> Result<String, String> {
    let header = [
        "program",
        "weight",
        "threads",
        "cores_used",
        "of_fair",
        "items_per_s",
        "slowdown",
        "blocks_per_s",
        "migrations_per_s",
        "longest_wait_ms",
    ];
    super::files::csv(&header, (0..simulated.outcome.programs.len()).map(|index| cells(simulated, index)))
}

fn show(simulated: &Simulated<'_>, scenario: &Scenario, host: &Host) -> String {
    let outcome = simulated.outcome;
    let mut table = Table::new(&COLUMNS);
    (0..outcome.programs.len()).for_each(|index| table.row(cells(simulated, index)));
    let all_ns = outcome.measured_ns as f64 * f64::from(outcome.cores);
    format!(
        "{} under {} on {} cores\n\n{}\ncores idle {:.1}%, of which somebody could have used {:.1}%\n\
         measured {:.6} s of virtual time after {:.6} s; {} events\n{}",
        simulated.scenario,
        outcome.scheduler,
        outcome.cores,
        table.render(),
        outcome.idle_ns as f64 / all_ns * 100.0,
        outcome.idle_while_queued_ns as f64 / all_ns * 100.0,
        outcome.measured_ns as f64 / 1e9,
        scenario.warm_up_ns as f64 / 1e9,
        outcome.events,
        host.show(),
    )
}
