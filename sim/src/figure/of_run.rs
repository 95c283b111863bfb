//! One run as a figure: who got what, a bar for each tenant.

use super::{Check, Extent, Figure, render};
use crate::outcome::Outcome;
use std::fmt::Write;

/// Tenants drawn at most; more bars would not be told apart.
const TENANTS_MAX: usize = 12;

/// What is drawn of each tenant: metric, label of the axis.
const METRICS: [(&str, &str); 3] =
    [("bytes-per-s", "bytes/s"), ("mean-ns", "mean latency, ns"), ("p99-ns", "99th percentile of latency, ns")];

/// Draws the outcome of the scenario that `text` is, as an SVG document.
///
/// # Errors
/// One sentence: the text is no scenario.
pub fn draw_run(file: &str, text: &str, title: &str, outcome: &Outcome, check: Check<'_>) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot draw {file}: {error}");
    let scenario: toml::Table = text.parse().map_err(|error| failed(&error))?;
    let mut figure = format!("[figure]\ntitle = {}\nsource = \"one run\"\nkind = \"bars\"\n", quoted(title));
    for (metric, label) in METRICS {
        write!(figure, "[[panel]]\nname = \"{metric}\"\ntitle = \"{label}\"\ny-label = \"{label}\"\n")
            .expect("a string takes all");
        figure.push_str("[[panel.x.point]]\nx = \"tenants\"\n");
        for tenant in outcome.tenants.iter().take(TENANTS_MAX) {
            let name = quoted(&tenant.name);
            write!(figure, "[[panel.series]]\nname = {name}\nmetric = {{ name = \"{metric}\", tenant = {name} }}\n")
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
