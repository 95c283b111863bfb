//! One run as a figure: service received, a bar for each tenant or program.

use super::{Check, Extent, Figure, render};
use crate::any::AnyOutcome;
use std::fmt::Write;

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
