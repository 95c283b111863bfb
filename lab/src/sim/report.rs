//! `mqfq-lab sim report`: every figure that comes with the program, on one page.

use super::html;
use mqfq_report::print_line;
use mqfq_sim::embedded;
use mqfq_sim::figure::{Extent, Figure, Job, Rows, render};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Options of `sim report`.
#[derive(clap::Args, Debug)]
pub struct ReportOptions {
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "mqfq-report.html")]
    pub out: PathBuf,
    /// Scenarios simulated at once, by default one per CPU.
    #[arg(long, value_parser = super::input::jobs)]
    pub jobs: Option<usize>,
    /// Fewer points and shorter times.
    #[arg(long)]
    pub quick: bool,
}

#[derive(Serialize)]
struct Printed<'a> {
    figures: &'a [Rows],
    html_path: String,
}

/// Simulates all figures and writes the page.
///
/// # Errors
/// One sentence.
pub fn report(options: &ReportOptions, json: bool) -> Result<(), String> {
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    let read = |(name, _): &(&str, &str)| super::input::read_figure(name, extent);
    let figures: Vec<Figure> = embedded::FIGURES.iter().map(read).collect::<Result<_, _>>()?;
    // Figures that need the same scenario share its run.
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut jobs: Vec<Job> = Vec::new();
    for job in figures.iter().flat_map(Figure::jobs) {
        known.entry(&job.scenario).or_insert_with(|| {
            jobs.push(job.clone());
            jobs.len() - 1
        });
    }
    let outcomes = super::input::simulate(&jobs, options.jobs)?;
    let mut all = Vec::new();
    let mut pictures = Vec::new();
    for figure in &figures {
        let own: Vec<_> = figure.jobs().iter().map(|job| outcomes[known[job.scenario.as_str()]].clone()).collect();
        let rows = figure.assemble(&own);
        pictures.push(render(figure, &rows)?);
        all.push(rows);
    }
    let page = html::page(&all, &pictures);
    std::fs::write(&options.out, page)
        .map_err(|error| format!("cannot write {}: {}", options.out.display(), crate::plain(&error)))?;
    let html_path = options.out.display().to_string();
    if json {
        print_line(mqfq_report::json(&Printed { figures: &all, html_path })?)?;
    } else {
        for rows in &all {
            let held = rows.claims.iter().filter(|claim| claim.held).count();
            print_line(format_args!("{:<12} {held} of {} claims hold", rows.figure, rows.claims.len()))?;
        }
        print_line(format_args!("written: {html_path}"))?;
    }
    Ok(())
}
