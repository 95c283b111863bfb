//! `mqfq-lab sim run`: one scenario, each tenant's part, and the simulation's cost.

use mqfq_report::print_line;
use mqfq_report::table::{Align, Table};
use mqfq_sim::any::{self, AnyScenario};
use mqfq_sim::embedded;
use mqfq_sim::figure::draw_run;
use mqfq_sim::outcome::Outcome;
use mqfq_sim::scenario::Scenario;
use rayon::prelude::*;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Options of `sim run`.
#[derive(clap::Args, Debug)]
pub struct RunOptions {
    /// A name that `sim list` tells, or the path of a scenario's TOML file.
    pub scenario: String,
    /// Write the outcome as JSON, the tenants or programs as CSV, a picture of them, and of programs a timeline
    /// into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Simulate each tenant or program alone as well, for its slowdown.
    #[arg(long)]
    pub alone: bool,
    /// For a scenario of programs: another scheduler than the scenario's.
    #[arg(long, value_name = "KIND")]
    pub scheduler: Option<String>,
}

/// The simulated part of the output: equal for equal scenarios on any machine.
#[derive(Serialize)]
struct Simulated {
    scenario: String,
    machine: String,
    workers: usize,
    policy: String,
    /// The scenario's own keys.
    #[serde(flatten)]
    outcome: Outcome,
    /// By tenant; `null` if they were not run alone.
    alone: Option<Vec<Alone>>,
}

#[derive(Serialize)]
struct Alone {
    name: String,
    alone_bytes_per_s: f64,
    /// `null` if it got nothing beside the others.
    slowdown: Option<f64>,
}

/// Cost of the simulation on this machine, which differs each time.
#[derive(Serialize)]
pub(super) struct Host {
    /// Wall time of the scenario, without the runs of single tenants.
    wall_s: f64,
    events_per_wall_s: f64,
    wall_s_per_virtual_s: f64,
    /// Peak memory of the whole process so far.
    peak_memory_bytes: Option<u64>,
}

impl Host {
    pub(super) fn since(begun: Instant, events: u64, virtual_ns: u64) -> Host {
        let wall_s = begun.elapsed().as_secs_f64();
        Host {
            wall_s,
            events_per_wall_s: events as f64 / wall_s,
            wall_s_per_virtual_s: wall_s / (virtual_ns as f64 / 1e9),
            peak_memory_bytes: peak_memory_bytes(),
        }
    }

    /// One line.
    pub(super) fn show(&self) -> String {
        let peak = self.peak_memory_bytes.map_or("unknown".into(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6));
        format!(
            "simulated in {:.2} s, {:.2} million events/s, {:.1} s per virtual second, peak memory {peak}\n",
            self.wall_s,
            self.events_per_wall_s / 1e6,
            self.wall_s_per_virtual_s,
        )
    }
}

#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    simulated: &'a Simulated,
    host: &'a Host,
    files: &'a [String],
}

/// Simulates a scenario and prints what came of it.
///
/// # Errors
/// One sentence.
pub fn run(options: &RunOptions, as_json: bool) -> Result<(), String> {
    let name = &options.scenario;
    let (file, text) = match embedded::scenario(name) {
        Some(text) => (embedded::scenario_file(name), text.to_owned()),
        None => (name.clone(), super::files::read_file(name, "scenario", embedded::SCENARIOS)?),
    };
    match AnyScenario::parse(&file, &text).map_err(|error| error.to_string())? {
        AnyScenario::Block(_) if options.scheduler.is_some() => {
            Err(format!("--scheduler is for a scenario of programs (kind = \"cpu\"), and {name} has tenants"))
        }
        AnyScenario::Block(scenario) => run_tenants(options, as_json, &file, &text, &scenario),
        AnyScenario::Cpu(scenario) => super::programs::run(options, as_json, &file, &text, &scenario),
    }
}

fn run_tenants(options: &RunOptions, as_json: bool, file: &str, text: &str, scenario: &Scenario) -> Result<(), String> {
    let name = &options.scenario;
    let begun = Instant::now();
    let outcome = mqfq_sim::run::run(scenario)?;
    let host = Host::since(begun, outcome.events, scenario.warm_up_ns + scenario.measured_ns);
    let alone = if options.alone { Some(alone(file, text, scenario, &outcome)?) } else { None };
    let simulated = Simulated {
        scenario: name.clone(),
        machine: scenario.machine.name.clone(),
        workers: scenario.machine.workers,
        policy: scenario.policy.kind.to_string(),
        outcome,
        alone,
    };
    let mut files = Vec::new();
    if let Some(folder) = &options.out {
        let stem = super::files::file_stem(name);
        let json = mqfq_report::json(&simulated)? + "\n";
        files.push(super::files::write(folder, &format!("{stem}.json"), &json)?);
        files.push(super::files::write(folder, &format!("{stem}.csv"), &tenants_csv(&simulated)?)?);
        files.push(super::files::write(folder, &format!("{stem}.svg"), &picture(file, text, &simulated)?)?);
    }
    if as_json {
        print_line(mqfq_report::json(&Printed { simulated: &simulated, host: &host, files: &files })?)?;
    } else {
        print_line(show(&simulated, scenario, &host).trim_end_matches('\n'))?;
        files.iter().try_for_each(|file| print_line(format_args!("written: {file}")))?;
    }
    Ok(())
}

/// Each tenant simulated alone. A scenario may share its trace within a thread only, so each thread reads its own.
fn alone(file: &str, text: &str, scenario: &Scenario, together: &Outcome) -> Result<Vec<Alone>, String> {
    let one = |index: usize| {
        let scenario = Scenario::parse(file, text).map_err(|error| error.to_string())?;
        let outcome = mqfq_sim::run::run(&scenario.alone(index))?;
        let (alone, shared) = (outcome.tenants[0].bytes_per_s, together.tenants[index].bytes_per_s);
        Ok(Alone {
            name: outcome.tenants[0].name.clone(),
            alone_bytes_per_s: alone,
            slowdown: (shared > 0.0).then(|| alone / shared),
        })
    };
    (0..scenario.tenants.len()).into_par_iter().with_max_len(1).map(one).collect()
}

/// The outcome as a picture.
fn picture(file: &str, text: &str, simulated: &Simulated) -> Result<String, String> {
    let Simulated { scenario, policy, workers, machine, outcome, .. } = simulated;
    let title = format!("{scenario} under {policy}, {workers} workers of {machine}");
    draw_run(file, text, &title, &outcome.clone().into(), &any::check)
}

/// The columns of a tenant, as text.
fn cells(simulated: &Simulated, index: usize) -> Vec<String> {
    let outcome = &simulated.outcome;
    let tenant = &outcome.tenants[index];
    let share = if outcome.bytes_per_s > 0.0 { tenant.bytes_per_s / outcome.bytes_per_s } else { 0.0 };
    let alone = simulated.alone.as_ref().map(|alone| &alone[index]);
    vec![
        tenant.name.clone(),
        tenant.weight.to_string(),
        format!("{:.0}", tenant.requests_per_s),
        format!("{:.1}", tenant.bytes_per_s / 1e6),
        format!("{share:.4}"),
        super::files::maybe(alone.and_then(|alone| alone.slowdown)),
        format!("{:.1}", tenant.mean_ns / 1e3),
        format!("{:.1}", tenant.p50_ns as f64 / 1e3),
        format!("{:.1}", tenant.p99_ns as f64 / 1e3),
        format!("{:.4}", tenant.share_deviation_max),
    ]
}

const COLUMNS: [(&str, Align); 10] = [
    ("tenant", Align::Left),
    ("weight", Align::Right),
    ("requests/s", Align::Right),
    ("MB/s", Align::Right),
    ("share", Align::Right),
    ("slowdown", Align::Right),
    ("mean us", Align::Right),
    ("p50 us", Align::Right),
    ("p99 us", Align::Right),
    ("deviation", Align::Right),
];

fn tenants_csv(simulated: &Simulated) -> Result<String, String> {
    let header = [
        "tenant",
        "weight",
        "requests_per_s",
        "mb_per_s",
        "share",
        "slowdown",
        "mean_us",
        "p50_us",
        "p99_us",
        "share_deviation_max",
    ];
    super::files::csv(&header, (0..simulated.outcome.tenants.len()).map(|index| cells(simulated, index)))
}

fn show(simulated: &Simulated, scenario: &Scenario, host: &Host) -> String {
    let outcome = &simulated.outcome;
    let mut table = Table::new(&COLUMNS);
    (0..outcome.tenants.len()).for_each(|index| table.row(cells(simulated, index)));
    let memory = &outcome.memory;
    let requests: u64 = outcome.tenants.iter().map(|tenant| tenant.requests).sum();
    let per_request =
        |count: u64| if requests == 0 { "-".into() } else { format!("{:.2}", count as f64 / requests as f64) };
    format!(
        "{} under {} on {} workers of {}\n\n{}\n\
         all tenants: {:.0} requests/s, {:.1} MB/s; cores busy {:.1}%\n\
         per second: {:.0} kicks, {:.0} reschedules, {:.0} throttled, {:.0} without a token\n\
         per request: {} accesses; lines from the same core {}, socket {}, another socket {}; waited {} ns for lines, {} ns for locks\n\
         measured {:.6} s of virtual time after {:.6} s; {} events\n{}",
        simulated.scenario,
        simulated.policy,
        simulated.workers,
        simulated.machine,
        table.render(),
        outcome.requests_per_s,
        outcome.bytes_per_s / 1e6,
        outcome.busy_share * 100.0,
        outcome.kicks_per_s,
        outcome.reschedules_per_s,
        outcome.throttled_per_s,
        outcome.no_token_per_s,
        per_request(memory.accesses),
        per_request(memory.transfers_same_core),
        per_request(memory.transfers_same_socket),
        per_request(memory.transfers_other_socket),
        per_request(memory.waited_for_line_ns),
        per_request(memory.waited_for_lock_ns),
        outcome.measured_ns as f64 / 1e9,
        scenario.warm_up_ns as f64 / 1e9,
        outcome.events,
        host.show(),
    )
}

/// Most memory that this process ever held, as the kernel counts it (`VmHWM` of /proc/self/status).
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
