//! `mqfq-lab sim report`: every figure that comes with the program, on one page.
//! The page is one file, with nothing fetched from elsewhere.

use super::figure::verdict;
use super::files::maybe;
use mqfq_report::print_line;
use mqfq_sim::embedded;
use mqfq_sim::figure::{ClaimRow, Extent, Figure, Job, PanelRow, Rows, render};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// Options of `sim report`.
#[derive(clap::Args, Debug)]
pub struct ReportOptions {
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "mqfq-report.html")]
    pub out: PathBuf,
    /// Scenarios simulated at once, by default one per CPU.
    #[arg(long, value_parser = super::files::jobs)]
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
    let read = |(name, _): &(&str, &str)| super::files::read_figure(name, extent);
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
    let outcomes = super::files::simulate(&jobs, options.jobs)?;
    let mut all = Vec::new();
    let mut pictures = Vec::new();
    for figure in &figures {
        let own: Vec<_> = figure.jobs().iter().map(|job| outcomes[known[job.scenario.as_str()]].clone()).collect();
        let rows = figure.assemble(&own);
        pictures.push(render(figure, &rows)?);
        all.push(rows);
    }
    let page = page(&all, &pictures);
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

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0}td,th{border-bottom:1px solid #ccc;padding:.2rem .7rem;text-align:left;vertical-align:top}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}.ok{color:#060}.not{color:#a00}\
.why{color:#555;font-size:90%}h2{margin-top:3rem;border-top:2px solid #222;padding-top:.5rem}";

/// The whole page. `pictures` are SVG, one for each of `figures`.
pub fn page(figures: &[Rows], pictures: &[String]) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page += "<title>mqfq: the papers' figures, simulated</title>\n";
    page += &format!("<style>{STYLE}</style></head><body>\n<h1>The papers' figures, simulated</h1>\n");
    page += "<p>Each figure comes out of the scheduler and block layer that ship, run on virtual cores in virtual time. \
             Where the paper's text states a number, it stands beside ours. What must hold of a figure is told below it, \
             with the reason for its limits; what does not hold is told as well.</p>\n";
    if figures.iter().any(|rows| rows.quick) {
        page += "<p><b>Quick: fewer points and shorter times than the figures have.</b></p>\n";
    }
    page += &contents(figures);
    for (rows, picture) in figures.iter().zip(pictures) {
        page += &figure(rows, picture);
    }
    page + "</body></html>\n"
}

fn contents(figures: &[Rows]) -> String {
    let mut table =
        String::from("<table><tr><th>figure</th><th>title</th><th class=\"n\">claims that hold</th></tr>\n");
    for rows in figures {
        let held = rows.claims.iter().filter(|claim| claim.held).count();
        let (id, title, all) = (escape(&rows.figure), escape(&rows.title), rows.claims.len());
        let class = if held == all { "ok" } else { "not" };
        let _ = writeln!(
            table,
            "<tr><td><a href=\"#{id}\">{id}</a></td><td>{title}</td><td class=\"n {class}\">{held} of {all}</td></tr>"
        );
    }
    table + "</table>\n"
}

fn figure(rows: &Rows, picture: &str) -> String {
    let (id, title, source) = (escape(&rows.figure), escape(&rows.title), escape(&rows.source));
    let mut text = format!("<h2 id=\"{id}\">{title}</h2>\n<p>{source}</p>\n");
    if let Some(note) = &rows.note {
        let _ = writeln!(text, "<p>{}</p>", escape(note.trim()));
    }
    text += picture;
    text += &claims(&rows.claims);
    text += "<details><summary>Numbers</summary>\n";
    rows.panels.iter().for_each(|panel| text += &numbers(rows, panel));
    text + "</details>\n"
}

fn claims(claims: &[ClaimRow]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let mut table = String::from(
        "<table><tr><th></th><th>claim, and why</th><th class=\"n\">simulated</th><th class=\"n\">paper</th><th>allowed</th></tr>\n",
    );
    for claim in claims {
        let (class, verdict) = (if claim.held { "ok" } else { "not" }, verdict(claim));
        let place = claim.paper_where.as_ref().map_or(String::new(), |place| format!("<br>paper: {}", escape(place)));
        let known = match &claim.not_held_because {
            Some(why) => format!("<br><b>Does not hold: {}</b>", escape(why.trim())),
            None => String::new(),
        };
        let _ = writeln!(
            table,
            "<tr><td class=\"{class}\">{verdict}</td><td>{}<div class=\"why\">{}{place}{known}</div></td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td>{}</td></tr>",
            escape(&claim.claim),
            escape(claim.reason.trim()),
            maybe(claim.value),
            claim.paper.map_or(String::new(), |paper| paper.to_string()),
            claim.limits(),
        );
    }
    table + "</table>\n"
}

fn numbers(rows: &Rows, panel: &PanelRow) -> String {
    let mut table = format!("<p>{}: {}</p>\n", escape(&panel.title), escape(&panel.y_label));
    let _ = writeln!(
        table,
        "<table><tr><th>series</th><th class=\"n\">{}</th><th class=\"n\">simulated</th><th class=\"n\">paper</th></tr>",
        if panel.x_label.is_empty() { "x".into() } else { escape(&panel.x_label) }
    );
    for row in rows.rows.iter().filter(|row| row.panel == panel.panel) {
        let (series, x) = (escape(&row.series), escape(&row.x.to_string()));
        let (y, paper) = (maybe(row.y), row.paper_y.map_or(String::new(), |paper| paper.to_string()));
        let _ = writeln!(
            table,
            "<tr><td>{series}</td><td class=\"n\">{x}</td><td class=\"n\">{y}</td><td class=\"n\">{paper}</td></tr>"
        );
    }
    table + "</table>\n"
}

/// Text inside an element or an attribute in double quotes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_file_is_no_markup() {
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
