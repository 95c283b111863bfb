//! Figures: scenarios in a sweep, what is shown of their outcomes, and what must hold of it.
//!
//! ```text
//!   file.toml ──read──▶ Figure ──jobs──▶ scenario texts ──(run by the caller, in parallel)──▶ outcomes
//!                          └──────────────── assemble ◀──────────────────────────────────────────┘
//!                                               └──▶ Rows: JSON · CSV · table · picture · claims held or not
//! ```
//! | file | answers |
//! |---|---|
//! | `read.rs` | which keys does a figure's file have? |
//! | `keys.rs` | what does a scenario look like before it is read? |
//! | `metric.rs` | which number of an outcome? |
//! | `programs.rs` | which number of an outcome whose competitors are programs on cores? |
//! | `claim.rs` | what must hold of the numbers? |
//! | `rows.rs` | what comes out, as JSON and CSV |
//! | `picture.rs` | the same, drawn |
//!
//! A point of a panel is one scenario: the base, with the panel's keys, the point's and the series' set on top. Points
//! that need the same scenario share one job, as do the runs of a tenant alone.

mod claim;
mod keys;
mod metric;
mod picture;
mod programs;
mod read;
mod rows;
#[cfg(test)]
mod tests;

pub use mqfq_report::panel::Shape;
pub use picture::{draw_run, render};
pub use rows::{ClaimRow, PanelRow, Row, Rows, ShareRow};

use crate::any::AnyOutcome;
use crate::outcome::TenantOutcome;
use claim::Claim;
use keys::Keys;
use metric::{Metric, Reference};
use mqfq_blk_watched::PolicyKind;
use mqfq_config::{ConfigError, SourceLocation};
use mqfq_policies_watched::REGISTRY;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How much of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// As the file says.
    Full,
    /// With its `quick` settings: fewer points and shorter times, for tests and a first look.
    Quick,
}

/// A figure, checked.
#[derive(Clone, Debug)]
pub struct Figure {
    /// As users name it: `mqfq/8`, or the path of a file.
    pub id: String,
    /// One line.
    pub title: String,
    /// Paper and place.
    pub source: String,
    /// Notes for a reader: what was garbled, what is left out.
    pub note: Option<String>,
    extent: Extent,
    panels: Vec<Panel>,
    paper: Vec<PaperPoint>,
    claims: Vec<Claim>,
    jobs: Vec<Job>,
    cells: Vec<Cell>,
}

/// One scenario to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Purpose, shown while it runs.
    pub label: String,
    /// Name of the figure's file: where the paths in a scenario start.
    pub file: String,
    /// As [`crate::any::AnyScenario::parse`] reads it.
    pub scenario: String,
}

/// One part of a figure with axes of its own.
#[derive(Clone, Debug)]
struct Panel {
    name: String,
    title: String,
    shape: Shape,
    x_label: String,
    y_label: String,
    log_x: bool,
    log_y: bool,
    /// A dashed line at this height, and what it means.
    ideal: Option<f64>,
    axis: Axis,
    points: Vec<Point>,
    series: Vec<Series>,
    base: Keys,
    /// Part of the quick extent.
    quick: bool,
}

/// Meaning of x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Axis {
    /// A scenario each.
    Scenarios,
    /// The time of one run, s; its windows. The panel has one point, which sets their length.
    Time,
    /// The percentiles of one run.
    Percentiles,
}

/// A place on the x axis.
#[derive(Clone, Debug)]
struct Point {
    x: X,
    set: Keys,
    quick: bool,
}

/// A curve, or the bars of one colour.
#[derive(Clone, Debug)]
struct Series {
    name: String,
    set: Keys,
    metric: Metric,
    /// Colour of that series, and dashed: the same in another form.
    like: Option<String>,
    /// A number above the group of bars instead of a bar.
    as_text: bool,
    quick: bool,
    place: SourceLocation,
}

/// Where on the x axis.
#[derive(Clone, PartialEq, Debug)]
pub enum X {
    /// A number.
    Number(f64),
    /// A name.
    Label(String),
}

/// A number that the paper states.
#[derive(Clone, Debug)]
struct PaperPoint {
    panel: String,
    series: String,
    x: X,
    y: f64,
}

/// A point of a series: which run, and what of it.
#[derive(Clone, Debug)]
struct Cell {
    panel: usize,
    series: usize,
    point: usize,
    job: usize,
    /// Job that it is compared with.
    reference: Option<usize>,
}

impl Job {
    /// The policy that it runs, as its scenario names it.
    pub fn policy(&self) -> &str {
        let named = |text: &str| {
            let table: toml::Table = text.parse().ok()?;
            Some(REGISTRY.find(table.get("policy")?.get("kind")?.as_str()?).ok()?.name())
        };
        named(&self.scenario).unwrap_or(PolicyKind::Mqfq.name())
    }
}

impl fmt::Display for X {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            X::Number(number) => write!(f, "{number}"),
            X::Label(label) => f.write_str(label),
        }
    }
}

impl Figure {
    /// Scenarios to run, each once.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The rows, from the outcomes of [`Figure::jobs`] in their order.
    ///
    /// # Panics
    /// If there are not as many outcomes as jobs.
    pub fn assemble(&self, outcomes: &[AnyOutcome]) -> Rows {
        assert_eq!(outcomes.len(), self.jobs.len(), "one outcome per job");
        let rows: Vec<Row> = self.cells.iter().flat_map(|cell| self.rows_of(cell, outcomes)).collect();
        let claims = self.claims.iter().filter_map(|claim| claim.check(&rows)).collect();
        let panels = self.drawn_panels().map(|panel| PanelRow {
            panel: panel.name.clone(),
            title: panel.title.clone(),
            x_label: panel.x_label.clone(),
            y_label: panel.y_label.clone(),
            ideal: panel.ideal,
        });
        Rows {
            figure: self.id.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            note: self.note.clone(),
            quick: self.extent == Extent::Quick,
            panels: panels.collect(),
            rows,
            claims,
        }
    }

    /// Each tenant's part of the drive in each of the figure's runs, beside its part by weight; from the outcomes of
    /// [`Figure::jobs`] in their order. A run that several series of a panel show is told once, by the first of them.
    ///
    /// # Panics
    /// If there are not as many outcomes as jobs.
    pub fn shares(&self, outcomes: &[AnyOutcome]) -> Vec<ShareRow> {
        assert_eq!(outcomes.len(), self.jobs.len(), "one outcome per job");
        let mut told = BTreeSet::new();
        let mut rows = Vec::new();
        for cell in self.cells.iter().filter(|cell| told.insert((cell.panel, cell.job))) {
            let AnyOutcome::Block(outcome) = &outcomes[cell.job] else { continue };
            let panel = &self.panels[cell.panel];
            let row = |tenant: &TenantOutcome| ShareRow {
                panel: panel.name.clone(),
                series: panel.series[cell.series].name.clone(),
                x: panel.points[cell.point].x.clone(),
                policy: self.jobs[cell.job].policy().to_string(),
                tenant: tenant.name.clone(),
                weight: tenant.weight,
                bytes_per_s: tenant.bytes_per_s,
                ideal_bytes_per_s: tenant.ideal_bytes_per_s,
            };
            rows.extend(outcome.tenants.iter().map(row));
        }
        rows
    }

    /// One row; of a panel over time as many as the run has windows.
    fn rows_of(&self, cell: &Cell, outcomes: &[AnyOutcome]) -> Vec<Row> {
        let panel = &self.panels[cell.panel];
        let (series, point) = (&panel.series[cell.series], &panel.points[cell.point]);
        let outcome = &outcomes[cell.job];
        let row = |x: X, y: Option<f64>| {
            let is_here =
                |paper: &&PaperPoint| paper.panel == panel.name && paper.series == series.name && paper.x == x;
            let paper_y = self.paper.iter().find(is_here).map(|paper| paper.y);
            Row { panel: panel.name.clone(), series: series.name.clone(), x, y, paper_y }
        };
        if panel.axis != Axis::Time {
            let reference = cell.reference.map(|reference| &outcomes[reference]);
            return vec![row(point.x.clone(), series.metric.value(outcome, reference, &point.x))];
        }
        let AnyOutcome::Block(outcome) = outcome else { return Vec::new() };
        let windows = outcome.tenants.iter().map(|tenant| tenant.windows.len()).max().unwrap_or(0);
        let length_ns = outcome.window_ns.unwrap_or(0);
        let at_s = |at: usize| X::Number((at as u64 * length_ns) as f64 / 1e9);
        (0..windows).map(|at| row(at_s(at), series.metric.of_window(outcome, at))).collect()
    }

    fn drawn_panels(&self) -> impl Iterator<Item = &Panel> {
        self.panels.iter().filter(|panel| self.keeps(panel.quick))
    }

    fn keeps(&self, quick: bool) -> bool {
        quick || self.extent == Extent::Full
    }

    /// Fills in jobs and cells; `last` is set over everything.
    fn expand(&mut self, file: &str, last: &Keys, check: Check<'_>) -> Result<(), ConfigError> {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        let mut jobs: Vec<Job> = Vec::new();
        let mut job = |keys: &Keys, label: String, place: &SourceLocation| -> Result<usize, ConfigError> {
            let text = keys.text();
            if let Some(&index) = known.get(&text) {
                return Ok(index);
            }
            // Lines of the generated text mean nothing to the author of the figure.
            check(file, &text).map_err(|error| {
                let place = keys.place(&error.key).unwrap_or(place);
                // Named by its place already, unless the place is only the nearest.
                let bare = |key: &str| key.replace('"', "");
                let named = bare(place.key()).ends_with(&bare(&error.key));
                let key = if named { String::new() } else { format!("{}: ", error.key) };
                place.error(format!("{key}{} (the scenario of {label})", error.message))
            })?;
            known.insert(text.clone(), jobs.len());
            jobs.push(Job { label, file: file.into(), scenario: text });
            Ok(jobs.len() - 1)
        };
        let mut cells = Vec::new();
        for (panel_at, panel) in self.panels.iter().enumerate().filter(|(_, panel)| self.keeps(panel.quick)) {
            for (series_at, series) in panel.series.iter().enumerate().filter(|(_, series)| self.keeps(series.quick)) {
                for (point_at, point) in panel.points.iter().enumerate().filter(|(_, point)| self.keeps(point.quick)) {
                    let keys = panel.base.with(&point.set).with(&series.set).with(last);
                    let (section, member) = (series.metric.kind.section(), series.metric.member.as_deref());
                    let known = keys.names(section);
                    if known.is_empty() {
                        let name = series.metric.kind.name;
                        let none = format!("the metric {name} is of {section}s, and the scenario has none");
                        return Err(series.place.error(none));
                    }
                    if let Some(member) = member.filter(|member| !known.contains(member)) {
                        let known = known.join(", ");
                        return Err(series
                            .place
                            .error(format!("there is no {section} \"{member}\", there are {known}")));
                    }
                    let label = format!("{}, {} at {}", panel.name, series.name, point.x);
                    let reference = match (series.metric.kind.reference, member) {
                        (Reference::Alone, Some(member)) => {
                            let keys = keys.alone(member).with(&series.metric.alone);
                            Some(job(&keys, format!("{label}, {member} alone"), &series.place)?)
                        }
                        (Reference::Baseline, _) => {
                            let keys = keys.with(&series.metric.baseline);
                            Some(job(&keys, format!("{label}, baseline"), &series.place)?)
                        }
                        _ => None,
                    };
                    let job = job(&keys, label, &series.place)?;
                    cells.push(Cell { panel: panel_at, series: series_at, point: point_at, job, reference });
                }
            }
        }
        (self.jobs, self.cells) = (jobs, cells);
        Ok(())
    }
}

/// Reads a scenario's text, its second argument, as that of the file of this name, and says what is wrong with it.
pub type Check<'a> = &'a dyn Fn(&str, &str) -> Result<(), ConfigError>;
