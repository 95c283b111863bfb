//! A figure as SVG: our numbers beside the paper's; and one run as a figure: service received, a bar for each tenant or
//! program. The panels are drawn by [`mqfq_report::panel`].

use super::{Axis, Check, Extent, Figure, Panel, Row, Rows, Shape, X};
use crate::any::AnyOutcome;
use mqfq_report::chart::colour;
use mqfq_report::panel::{self, Along, Point, Series};
use std::fmt::Write;

/// Draws a figure's rows as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(figure: &Figure, rows: &Rows) -> Result<String, String> {
    let quick = if rows.quick { " (quick: fewer points, shorter times)" } else { "" };
    let panels: Vec<panel::Panel> = figure.drawn_panels().map(|panel| drawn(panel, rows)).collect();
    panel::render(&format!("{}{quick}", figure.title), &panels)
}

fn drawn(panel: &Panel, rows: &Rows) -> panel::Panel {
    let own: Vec<&Row> = rows.rows.iter().filter(|row| row.panel == panel.name).collect();
    let leaders: Vec<&str> = panel
        .series
        .iter()
        .filter(|series| series.like.is_none() && !series.as_text)
        .map(|series| series.name.as_str())
        .collect();
    let series = panel.series.iter().map(|series| {
        let leader = series.like.as_deref().unwrap_or(&series.name);
        let at = leaders.iter().position(|name| *name == leader).unwrap_or(0);
        let own = own.iter().filter(|row| row.series == series.name);
        let points = own.map(|row| Point { x: x_at(panel, &row.x), y: row.y, stated: row.paper_y, spread: None });
        Series {
            name: series.name.clone(),
            colour: colour(at),
            dashed: series.like.is_some(),
            as_text: series.as_text,
            points: points.collect(),
        }
    });
    panel::Panel {
        title: panel.title.clone(),
        shape: panel.shape,
        along: along(panel),
        x_label: panel.x_label.clone(),
        y_label: panel.y_label.clone(),
        log_y: panel.log_y,
        ideal: panel.ideal,
        series: series.collect(),
    }
}

fn along(panel: &Panel) -> Along {
    match () {
        () if panel.shape == Shape::Bars || !(panel.log_x || all_numbers(panel)) => {
            Along::Places(panel.points.iter().map(|point| point.x.to_string()).collect())
        }
        () if panel.axis == Axis::Time => Along::Time,
        () if panel.log_x => Along::Doubling,
        () => Along::Numbers,
    }
}

/// Position of an x on the axis: its number, its logarithm to base 2, or its index among the panel's.
fn x_at(panel: &Panel, x: &X) -> f64 {
    match x {
        X::Number(number) if panel.shape == Shape::Lines && panel.log_x => libm::log2(*number),
        X::Number(number) if panel.shape == Shape::Lines && all_numbers(panel) => *number,
        _ => panel.points.iter().position(|point| point.x == *x).unwrap_or(0) as f64,
    }
}

fn all_numbers(panel: &Panel) -> bool {
    // The tail of a distribution would be one point on a linear axis.
    panel.axis != Axis::Percentiles && panel.points.iter().all(|point| matches!(point.x, X::Number(_)))
}

/// Bars drawn at most; more would not be told apart.
const BARS_MAX: usize = 12;

/// Metrics of each tenant: name, axis.
const METRICS: [(&str, &str); 3] =
    [("bytes-per-s", "bytes/s"), ("mean-ns", "mean latency, ns"), ("p99-ns", "99th percentile of latency, ns")];

/// Metrics of each program: name, axis.
const PROGRAM_METRICS: [(&str, &str); 3] =
    [("cores-used", "cores used"), ("items-per-s", "items/s"), ("migrations-per-s", "migrations/s")];

/// Draws the outcome of the scenario that `text` is, as an SVG document.
///
/// # Errors
/// One sentence: the text is no scenario.
pub fn draw_run(file: &str, text: &str, title: &str, outcome: &AnyOutcome, check: Check<'_>) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot draw {file}: {error}");
    let scenario: toml::Table = text.parse().map_err(|error| failed(&error))?;
    let mut figure = format!("[figure]\ntitle = {}\nsource = \"one run\"\nkind = \"bars\"\n", quoted(title));
    let (member, metrics, names): (&str, _, Vec<&str>) = match outcome {
        AnyOutcome::Block(outcome) => {
            ("tenant", METRICS, outcome.tenants.iter().map(|tenant| tenant.name.as_str()).collect())
        }
        AnyOutcome::Cpu(outcome) => {
            ("program", PROGRAM_METRICS, outcome.programs.iter().map(|program| program.name.as_str()).collect())
        }
    };
    for (metric, label) in metrics {
        write!(figure, "[[panel]]\nname = \"{metric}\"\ntitle = \"{label}\"\ny-label = \"{label}\"\n")
            .expect("a string takes all");
        write!(figure, "[[panel.x.point]]\nx = \"{member}s\"\n").expect("a string takes all");
        for name in names.iter().take(BARS_MAX) {
            let name = quoted(name);
            write!(figure, "[[panel.series]]\nname = {name}\nmetric = {{ name = \"{metric}\", {member} = {name} }}\n")
                .expect("a string takes all");
        }
    }
    let nested = toml::Table::from_iter([("scenario".to_string(), toml::Value::Table(scenario))]);
    figure.push_str(&nested.to_string());
    let figure = Figure::read(title, file, &figure, Extent::Full, check).map_err(|error| failed(&error))?;
    let outcomes = vec![outcome.clone(); figure.jobs().len()];
    render(&figure, &figure.assemble(&outcomes))
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}
