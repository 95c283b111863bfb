//! `mqfq-lab sim`: figures and scenarios through the simulator.
//!
//! The simulator is one function of a scenario. This module adds files, threads, clocks and tables. Many scenarios are
//! run at once, each on one thread; how many at once changes the time that it takes and nothing else.

mod figure;
mod files;
mod list;
mod programs;
mod report;
mod run;
mod trace;

pub use figure::{FigureOptions, figure};
pub use list::list;
pub use report::{ReportOptions, report};
pub use run::{RunOptions, run};
pub use trace::{TraceOptions, trace};

#[cfg(test)]
mod tests {
    //! Tests of the commands that need no simulation.

    use super::files::file_stem;
    use super::*;
    use mqfq_sim::figure::{ClaimRow, PanelRow, Row, Rows, X};

    fn rows() -> Rows {
        let row = |series: &str, x, y, paper_y| Row { panel: "p".into(), series: series.into(), x, y, paper_y };
        let claim = |held, not_held_because| ClaimRow {
            claim: "a < b".into(),
            value: Some(2.5),
            at_least: Some(2.6),
            at_most: None,
            tolerance: 0.0,
            held,
            reason: "because".into(),
            paper: Some(2.6),
            paper_where: Some("page 7".into()),
            not_held_because,
        };
        Rows {
            figure: "mqfq/8".into(),
            title: "A title".into(),
            source: "a paper".into(),
            note: None,
            quick: false,
            panels: vec![PanelRow {
                panel: "p".into(),
                title: "P".into(),
                x_label: "cores".into(),
                y_label: "requests/s".into(),
                ideal: None,
            }],
            rows: vec![
                row("mqfq", X::Number(1.0), Some(1.5), None),
                row("mqfq", X::Number(2.0), Some(3.25), Some(3.1)),
                row("none", X::Number(2.0), None, None),
            ],
            claims: vec![claim(false, None), claim(false, Some("no such cache".into())), claim(true, None)],
        }
    }

    #[test]
    fn files_of_a_figure_are_named_after_it() {
        assert_eq!(file_stem("mqfq/8"), "mqfq-8");
        assert_eq!(file_stem("some/where/own.toml"), "own");
    }

    #[test]
    fn a_panel_is_a_table_with_the_papers_numbers_in_brackets() {
        let table = figure::panel_table(&rows(), "p", "cores").render();
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["cores", "mqfq", "none"]);
        assert_eq!(lines[2], ["1", "1.500"], "none was not simulated there");
        assert_eq!(lines[3], ["2", "3.250", "(3.1)", "-"], "none has no such number");
    }

    #[test]
    fn the_page_tells_of_each_claim_what_was_found_and_why_it_does_not_hold() {
        let page = report::page(&[rows()], &["<svg/>".into()]);
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.contains("<svg/>") && !page.contains("http"), "nothing is fetched");
        assert!(page.contains("1 of 3") && page.contains("a &lt; b"));
        assert!(page.contains(">NOT<") && page.contains(">NOT, known<") && page.contains(">OK<"));
        assert!(page.contains("Does not hold: no such cache") && page.contains("paper: page 7"));
    }
}
