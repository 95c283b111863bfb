//! The paper's figures, from the simulator: who got what, beside what its weight says.
//!
//! The figures are those of `mqfq-lab sim figure d2fq/N`, run by the same code; see their files in `sim/figures/d2fq`
//! for what each is made of.

use crate::simulate;
use mqfq_report::progress::Progress;
use mqfq_sim::any::{self, AnyOutcome};
use mqfq_sim::embedded;
use mqfq_sim::figure::{ClaimRow, Extent, Figure, Rows, ShareRow, X};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Where the figures' names begin.
const PREFIX: &str = "d2fq/";

/// What a figure shows: a tenant's bandwidth where that is the figure, else its points.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FigureRow {
    /// One tenant under one policy.
    Bandwidth(BandwidthRow),
    /// One point of one curve, or one bar.
    Point(PointRow),
}

/// What a tenant got, and what its weight says that it should have got of the total.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// Its name in configs.
    pub policy: String,
    /// The tenant's name.
    pub tenant: String,
    /// Its weight; 100 is the paper's 8.
    pub weight: u32,
    /// What it got.
    pub bytes_per_s: f64,
    /// The total, divided by the weights of all tenants.
    pub ideal_bytes_per_s: f64,
}

/// A point.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PointRow {
    /// Which curve.
    pub series: String,
    /// Where on the axis: a number, or a name.
    pub x: serde_json::Value,
    /// `null` if there is no such number.
    pub y: Option<f64>,
    /// What the paper's text states, if it does.
    pub paper_y: Option<f64>,
}

/// All figures.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures {
    /// By the paper's number, with a letter where a figure has parts.
    pub rows: BTreeMap<String, Vec<FigureRow>>,
    /// What must hold of them, by figure.
    pub claims: Vec<FigureClaim>,
    /// Name and SVG of each.
    pub pictures: Vec<(String, String)>,
}

/// What must hold of a figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FigureClaim {
    /// Which figure.
    pub figure: String,
    /// One sentence.
    pub claim: String,
    /// What was found.
    pub value: Option<f64>,
    /// It holds.
    pub held: bool,
    /// It turned out as the figure's file says, which of some claims is that they do not hold.
    pub as_expected: bool,
}

/// Simulates all of them.
///
/// # Errors
/// One sentence.
pub fn simulate(quick: bool) -> Result<Figures, String> {
    let extent = if quick { Extent::Quick } else { Extent::Full };
    let mut read = Vec::new();
    for (name, text) in embedded::FIGURES.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let figure = Figure::read(name, &embedded::figure_file(name), text, extent, &any::check);
        read.push(figure.map_err(|error| error.to_string())?);
    }
    let progress = Mutex::new(Progress::new(read.iter().map(|figure| figure.jobs().len()).sum()));
    let mut found = Figures::default();
    for figure in &read {
        let outcomes = simulate::simulate(figure.jobs(), &progress)?;
        let rows = figure.assemble(&outcomes);
        let number = figure.id.trim_start_matches(PREFIX);
        add_points(&mut found.rows, number, &rows);
        add_bandwidths(&mut found.rows, figure, number, &outcomes);
        found.claims.extend(rows.claims.iter().map(|claim| of_claim(&figure.id, claim, &rows)));
        found.pictures.push((figure.id.replace('/', "-"), mqfq_sim::figure::render(figure, &rows)?));
    }
    progress.lock().unwrap_or_else(PoisonError::into_inner).finish();
    Ok(found)
}

/// The panels of a figure with parts are named by their letters.
fn key(number: &str, panel: &str) -> String {
    let mut letters = panel.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) if letter.is_ascii_lowercase() => format!("{number}{letter}"),
        _ => number.to_string(),
    }
}

fn add_points(all: &mut BTreeMap<String, Vec<FigureRow>>, number: &str, rows: &Rows) {
    for row in &rows.rows {
        let x = match &row.x {
            X::Number(number) => (*number).into(),
            X::Label(label) => label.clone().into(),
        };
        let point = PointRow { series: row.series.clone(), x, y: row.y, paper_y: row.paper_y };
        all.entry(key(number, &row.panel)).or_default().push(FigureRow::Point(point));
    }
}

/// Bandwidths of the figure that is about them: 11, whose panels are the three ways to be unequal. In place of its
/// points, which say less.
fn add_bandwidths(all: &mut BTreeMap<String, Vec<FigureRow>>, figure: &Figure, number: &str, outcomes: &[AnyOutcome]) {
    if number != BANDWIDTHS {
        return;
    }
    let mut of_panel: BTreeMap<String, Vec<FigureRow>> = BTreeMap::new();
    for ShareRow { panel, policy, tenant, weight, bytes_per_s, ideal_bytes_per_s, .. } in figure.shares(outcomes) {
        let row = BandwidthRow { policy, tenant, weight, bytes_per_s, ideal_bytes_per_s };
        of_panel.entry(key(number, &panel)).or_default().push(FigureRow::Bandwidth(row));
    }
    all.extend(of_panel);
}

/// The figure of bandwidths.
const BANDWIDTHS: &str = "11";

fn of_claim(figure: &str, claim: &ClaimRow, rows: &Rows) -> FigureClaim {
    FigureClaim {
        figure: figure.into(),
        claim: claim.claim.clone(),
        value: claim.value,
        held: claim.held,
        as_expected: rows.surprises().all(|other| other.claim != claim.claim),
    }
}

impl Figures {
    /// The bandwidths, in the order of the figures.
    pub fn bandwidths(&self) -> impl Iterator<Item = (&str, &BandwidthRow)> {
        self.rows.iter().flat_map(|(figure, rows)| {
            rows.iter().filter_map(move |row| match row {
                FigureRow::Bandwidth(row) => Some((figure.as_str(), row)),
                FigureRow::Point(_) => None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_named_by_letters_are_parts_of_the_figure_and_others_are_the_figure() {
        assert_eq!([key("11", "c"), key("15", "e"), key("5", "latency"), key("6", "")], ["11c", "15e", "5", "6"]);
    }

    #[test]
    fn figure_11_is_who_got_what_beside_what_the_weight_says() {
        let extent = Extent::Quick;
        let text = embedded::figure("d2fq/11").expect("it comes with the program");
        let figure = Figure::read("d2fq/11", &embedded::figure_file("d2fq/11"), text, extent, &any::check).unwrap();
        let progress = Mutex::new(Progress::new(figure.jobs().len()));
        let outcomes = simulate::simulate(figure.jobs(), &progress).unwrap();
        let mut rows = BTreeMap::new();
        add_points(&mut rows, "11", &figure.assemble(&outcomes));
        add_bandwidths(&mut rows, &figure, "11", &outcomes);
        let json = serde_json::to_value(&rows["11c"]).unwrap();
        let all = json.as_array().unwrap();
        let mut sums = BTreeMap::new();
        for row in all {
            let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
            assert!(row["tenant"].is_string() && number("weight") >= 1.0, "{row}");
            let sum: &mut [f64; 2] = sums.entry(row["policy"].as_str().unwrap().to_string()).or_default();
            sum[0] += number("bytes_per_s");
            sum[1] += number("ideal_bytes_per_s");
            let off = number("bytes_per_s") / number("ideal_bytes_per_s") - 1.0;
            assert!(row["policy"] != "d2fq" || off.abs() <= 0.03, "{row}");
        }
        assert!(sums.contains_key("none") && sums.contains_key("d2fq"), "{sums:?}");
        // What is shared out is what there was.
        assert!(sums.values().all(|[got, ideal]| (got / ideal - 1.0).abs() < 1e-9), "{sums:?}");
    }
}
