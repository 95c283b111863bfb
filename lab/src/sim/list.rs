//! `mqfq-lab sim list`: what comes with the program.

use mqfq_report::print_line;
use mqfq_report::table::{Align, Table};
use mqfq_sim::cpu::profiles;
use mqfq_sim::cpu::schedulers::SchedulerKind;
use mqfq_sim::figure::Extent;
use mqfq_sim::{embedded, machine, workload::models};
use serde::Serialize;

#[derive(Serialize)]
struct List {
    figures: Vec<ListedFigure>,
    scenarios: Vec<Listed>,
    machines: Vec<ListedMachine>,
    drives: Vec<Listed>,
    applications: Vec<&'static str>,
    programs: Vec<Listed>,
    schedulers: Vec<&'static str>,
}

#[derive(Serialize)]
struct ListedFigure {
    figure: String,
    title: String,
    source: String,
    /// Runs of the simulator.
    simulations: usize,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    summary: String,
}

#[derive(Serialize)]
struct ListedMachine {
    name: String,
    sockets: usize,
    cores_per_socket: usize,
    threads_per_core: usize,
}

/// Prints the list.
///
/// # Errors
/// One sentence, if a figure of the program is broken.
pub fn list(json: bool) -> Result<(), String> {
    let list = gather()?;
    if json {
        print_line(mqfq_report::json(&list)?)?;
        return Ok(());
    }
    let rows = |headers: &[(&str, Align)], rows: Vec<Vec<String>>| {
        let mut table = Table::new(headers);
        rows.into_iter().for_each(|row| table.row(row));
        print_line(table.render())
    };
    rows(
        &[("figure", Align::Left), ("simulations", Align::Right), ("title", Align::Left)],
        list.figures.into_iter().map(|one| vec![one.figure, one.simulations.to_string(), one.title]).collect(),
    )?;
    // The first sentence: the rest is for readers of the file.
    let first = |summary: String| summary.split_inclusive(". ").next().unwrap_or_default().trim_end().to_string();
    let named = |list: Vec<Listed>| list.into_iter().map(|one| vec![one.name, first(one.summary)]).collect();
    rows(&[("scenario", Align::Left), ("what", Align::Left)], named(list.scenarios))?;
    let shape = |one: ListedMachine| {
        vec![one.name, format!("{} x {} x {}", one.sockets, one.cores_per_socket, one.threads_per_core)]
    };
    let machines = list.machines.into_iter().map(shape).collect();
    rows(&[("machine", Align::Left), ("sockets x cores x threads", Align::Left)], machines)?;
    rows(&[("drive", Align::Left), ("what", Align::Left)], named(list.drives))?;
    rows(&[("program", Align::Left), ("what", Align::Left)], named(list.programs))?;
    print_line(format_args!("applications: {}", list.applications.join(", ")))?;
    print_line(format_args!("schedulers of programs: {}", list.schedulers.join(", ")))?;
    Ok(())
}

fn gather() -> Result<List, String> {
    let figure = |(name, _): &(&str, &str)| {
        let figure = super::files::read_figure(name, Extent::Full)?;
        let simulations = figure.jobs().len();
        Ok(ListedFigure { figure: figure.id, title: figure.title, source: figure.source, simulations })
    };
    let scenario = |(name, text): &(&str, &str)| Listed { name: (*name).into(), summary: embedded::summary(text) };
    let machine = |name: &&str| {
        let machine = machine::preset(name).expect("a name of the list");
        ListedMachine {
            name: machine.name,
            sockets: machine.sockets,
            cores_per_socket: machine.cores_per_socket,
            threads_per_core: machine.threads_per_core,
        }
    };
    let drives = mqfq_blk::device::model::presets::ALL.iter();
    Ok(List {
        figures: embedded::FIGURES.iter().map(figure).collect::<Result<_, String>>()?,
        scenarios: embedded::SCENARIOS.iter().map(scenario).collect(),
        machines: machine::NAMES.iter().map(machine).collect(),
        drives: drives.map(|drive| Listed { name: drive.name.into(), summary: drive.summary.into() }).collect(),
        applications: models::NAMES.to_vec(),
        programs: profiles::ALL
            .iter()
            .map(|profile| Listed { name: profile.name.into(), summary: profile.what.into() })
            .collect(),
        schedulers: SchedulerKind::NAMES.to_vec(),
    })
}
