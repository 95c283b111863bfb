//! `mqfq-lab sim figure`: one figure, its numbers beside the paper's, and what holds of it.

use mqfq_report::print_line;
use mqfq_report::table::{Align, Table};
use mqfq_sim::figure::{ClaimRow, Extent, Rows, X, render};
use serde::Serialize;
use std::path::PathBuf;

/// Options of `sim figure`.
#[derive(clap::Args, Debug)]
pub struct FigureOptions {
    /// A name that `sim list` tells, such as mqfq/8, or the path of a figure's TOML file.
    pub figure: String,
    /// Write the figure as CSV, JSON and SVG into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Scenarios simulated at once, by default one per CPU.
    #[arg(long, value_parser = super::files::jobs)]
    pub jobs: Option<usize>,
    /// Fewer points and shorter times.
    #[arg(long)]
    pub quick: bool,
    /// Fail if a claim turns out other than the figure's file says.
    #[arg(long)]
    pub check: bool,
}

/// Output of `--json`: the rows, and the names of the written files.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    rows: &'a Rows,
    files: &'a [String],
}

/// Simulates a figure and prints it.
///
/// # Errors
/// One sentence.
pub fn figure(options: &FigureOptions, json: bool) -> Result<(), String> {
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let figure = super::files::read_figure(&options.figure, extent)?;
    let rows = figure.assemble(&super::files::simulate(figure.jobs(), options.jobs)?);
    let mut files = Vec::new();
    if let Some(folder) = &options.out {
        let stem = super::files::file_stem(&figure.id);
        files.push(super::files::write(folder, &format!("{stem}.csv"), &rows.csv()?)?);
        files.push(super::files::write(folder, &format!("{stem}.json"), &(mqfq_report::json(&rows)? + "\n"))?);
        files.push(super::files::write(folder, &format!("{stem}.svg"), &render(&figure, &rows)?)?);
    }
    if json {
        print_line(mqfq_report::json(&Printed { rows: &rows, files: &files })?)?;
    } else {
        print_line(text(&rows).trim_end_matches('\n'))?;
        files.iter().try_for_each(|file| print_line(format_args!("written: {file}")))?;
    }
    let surprises: Vec<&str> = rows.surprises().map(|claim| claim.claim.as_str()).collect();
    match surprises.as_slice() {
        [] => Ok(()),
        _ if !options.check => Ok(()),
        _ => Err(format!("claims that are not as {} says: {}", figure.id, surprises.join("; "))),
    }
}

/// A figure for people.
fn text(rows: &Rows) -> String {
    let mut text = format!("{}\n{}\n", rows.title, rows.source);
    if rows.quick {
        text += "quick: fewer points and shorter times than the figure has\n";
    }
    for panel in &rows.panels {
        text += &format!("\n{}: {}\n", panel.title, panel.y_label);
        text += &panel_table(rows, &panel.panel, &panel.x_label).render();
    }
    if !rows.claims.is_empty() {
        text += "\n";
    }
    for claim in &rows.claims {
        text += &claim_text(claim);
    }
    if let Some(note) = &rows.note {
        text += &format!("\n{}\n", note.trim());
    }
    text
}

/// A column per series, a row per x; what the paper states in brackets.
pub fn panel_table(rows: &Rows, panel: &str, x_label: &str) -> Table {
    let own: Vec<_> = rows.rows.iter().filter(|row| row.panel == panel).collect();
    let mut series: Vec<&str> = Vec::new();
    let mut xs: Vec<&X> = Vec::new();
    for row in &own {
        if !series.contains(&row.series.as_str()) {
            series.push(&row.series);
        }
        if !xs.contains(&&row.x) {
            xs.push(&row.x);
        }
    }
    let columns: Vec<(&str, Align)> =
        [(x_label, Align::Left)].into_iter().chain(series.iter().map(|name| (*name, Align::Right))).collect();
    let mut table = Table::new(&columns);
    for x in xs {
        let cell = |series: &&str| {
            let row = own.iter().find(|row| row.series == *series && row.x == *x)?;
            let paper = row.paper_y.map_or(String::new(), |paper| format!(" ({paper})"));
            Some(super::files::maybe(row.y) + &paper)
        };
        let cells = series.iter().map(|series| cell(series).unwrap_or_default());
        table.row([x.to_string()].into_iter().chain(cells).collect());
    }
    table
}

/// How a claim turned out, as one word or two.
pub fn verdict(claim: &ClaimRow) -> &'static str {
    match (claim.held, claim.not_held_because.is_some()) {
        (true, false) => "OK",
        (false, false) => "NOT",
        (false, true) => "NOT, known",
        (true, true) => "OK, though said not to hold",
    }
}

fn claim_text(claim: &ClaimRow) -> String {
    let paper = match (claim.paper, &claim.paper_where) {
        (Some(paper), Some(place)) => format!("; paper {paper}, {place}"),
        _ => String::new(),
    };
    let why = match (claim.held, &claim.not_held_because) {
        (_, Some(why)) => format!("     known: {}\n", one_line(why)),
        (false, None) => format!("     reason of the claim: {}\n", one_line(&claim.reason)),
        (true, None) => String::new(),
    };
    let (verdict, value, limits) = (verdict(claim), super::files::maybe(claim.value), claim.limits());
    format!("{verdict:<4} {}: {value}; allowed {limits}{paper}\n{why}", claim.claim)
}

/// A text that a file breaks into lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
