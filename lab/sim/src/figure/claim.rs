//! Claims: what must hold of a figure's numbers, with a tolerance and the reason for both.
//!
//! A value is made of the rows in one of two ways, and has to lie between two limits:
//! ```text
//!   of, over         reduce(of) / reduce(over); without `over`, reduce(of)
//!   each = true      of(x) / over(x) at each x by itself; the worst of them is the value
//! ```
//! The tolerance widens the limits by a part of themselves. A claim that is known not to hold says why; then it is an
//! error of the figure's file if it does hold, so that the explanation goes when its cause does.

use super::X;
use super::rows::{ClaimRow, Row};

/// A demand on rows.
#[derive(Clone, Debug)]
pub struct Claim {
    /// One sentence.
    pub what: String,
    /// The value, or its numerator.
    pub of: Operand,
    /// Its denominator.
    pub over: Option<Operand>,
    /// At every x by itself.
    pub each: bool,
    /// Lower limit.
    pub at_least: Option<f64>,
    /// Upper limit.
    pub at_most: Option<f64>,
    /// Part of the limits by which they may be missed.
    pub tolerance: f64,
    /// Why these limits and this tolerance.
    pub reason: String,
    /// The paper's value for it.
    pub paper: Option<f64>,
    /// Where in the paper.
    pub paper_where: Option<String>,
    /// Known not to hold, and why.
    pub not_held_because: Option<String>,
    /// Looked at in the quick extent, too.
    pub quick: bool,
}

/// Rows, and one number of them.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Panels.
    pub panels: Vec<String>,
    /// Series.
    pub series: Vec<String>,
    /// Places; empty: all.
    pub xs: Vec<X>,
    /// If places are numbers, only those from here on.
    pub from: Option<f64>,
    /// If places are numbers, only those before this.
    pub to: Option<f64>,
    /// How they become one.
    pub reduce: Reduce,
}

/// How many numbers become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduce {
    /// Arithmetic mean.
    Mean,
    /// Smallest.
    Min,
    /// Largest.
    Max,
}

impl Operand {
    fn rows<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let named = |row: &&Row| {
            self.panels.contains(&row.panel)
                && self.series.contains(&row.series)
                && (self.xs.is_empty() || self.xs.contains(&row.x))
                && self.is_within(&row.x)
        };
        rows.iter().filter(named).collect()
    }

    fn is_within(&self, x: &X) -> bool {
        match x {
            X::Number(x) => self.from.is_none_or(|from| *x >= from) && self.to.is_none_or(|to| *x < to),
            X::Label(_) => true,
        }
    }

    /// `None` if one of the numbers does not exist.
    fn value(&self, rows: &[&Row]) -> Option<f64> {
        let values: Option<Vec<f64>> = rows.iter().map(|row| row.y).collect();
        let values = values?;
        Some(match self.reduce {
            Reduce::Mean => values.iter().sum::<f64>() / values.len() as f64,
            Reduce::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            Reduce::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

impl Claim {
    /// Checks the claim; `None` if the extent left nothing to look at.
    pub fn check(&self, rows: &[Row]) -> Option<ClaimRow> {
        let of = self.of.rows(rows);
        let over = self.over.as_ref().map(|over| (over, over.rows(rows)));
        if of.is_empty() || over.as_ref().is_some_and(|(_, over)| over.is_empty()) {
            return None;
        }
        let value = if self.each { self.worst(&of, over.map(|(_, rows)| rows)) } else { self.whole(&of, over) };
        Some(ClaimRow {
            claim: self.what.clone(),
            value,
            at_least: self.at_least,
            at_most: self.at_most,
            tolerance: self.tolerance,
            held: value.is_some_and(|value| self.violation(value) <= 0.0),
            reason: self.reason.clone(),
            paper: self.paper,
            paper_where: self.paper_where.clone(),
            not_held_because: self.not_held_because.clone(),
        })
    }

    fn whole(&self, of: &[&Row], over: Option<(&Operand, Vec<&Row>)>) -> Option<f64> {
        let numerator = self.of.value(of)?;
        match over {
            None => Some(numerator),
            Some((operand, rows)) => quotient(numerator, operand.value(&rows)?),
        }
    }

    fn worst(&self, of: &[&Row], over: Option<Vec<&Row>>) -> Option<f64> {
        let at = |row: &&Row| match &over {
            None => row.y,
            Some(over) => {
                let partner =
                    over.iter().find(|other| other.x == row.x && (other.panel == row.panel || self.apart()))?;
                quotient(row.y?, partner.y?)
            }
        };
        let values: Option<Vec<f64>> = of.iter().map(at).collect();
        values?.into_iter().max_by(|a, b| self.violation(*a).total_cmp(&self.violation(*b)))
    }

    /// The two sides come from different panels, so that a row's partner is not in its own.
    fn apart(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.panels != self.of.panels)
    }

    /// How far past its limits a value is, with the tolerance; not above 0 where it holds.
    fn violation(&self, value: f64) -> f64 {
        let below = self.at_least.map_or(f64::NEG_INFINITY, |limit| limit - self.tolerance * limit.abs() - value);
        let above = self.at_most.map_or(f64::NEG_INFINITY, |limit| value - limit - self.tolerance * limit.abs());
        below.max(above)
    }
}

fn quotient(numerator: f64, denominator: f64) -> Option<f64> {
    (denominator != 0.0).then(|| numerator / denominator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |series: &str, x: f64, y| Row {
            panel: "p".into(),
            series: series.into(),
            x: X::Number(x),
            y,
            paper_y: None,
        };
        vec![
            row("a", 1.0, Some(10.0)),
            row("a", 2.0, Some(30.0)),
            row("b", 1.0, Some(5.0)),
            row("b", 2.0, Some(10.0)),
            row("c", 1.0, None),
        ]
    }

    fn operand(series: &str, xs: &[f64], reduce: Reduce) -> Operand {
        let xs = xs.iter().map(|&x| X::Number(x)).collect();
        Operand { panels: vec!["p".into()], series: vec![series.into()], xs, from: None, to: None, reduce }
    }

    fn claim(of: Operand, over: Option<Operand>) -> Claim {
        Claim {
            what: "w".into(),
            of,
            over,
            each: false,
            at_least: Some(2.6),
            at_most: None,
            tolerance: 0.0,
            reason: "r".into(),
            paper: None,
            paper_where: None,
            not_held_because: None,
            quick: true,
        }
    }

    #[test]
    fn a_ratio_of_means_is_not_the_worst_ratio() {
        let mut claim = claim(operand("a", &[], Reduce::Mean), Some(operand("b", &[], Reduce::Mean)));
        let whole = claim.check(&rows()).unwrap();
        assert_eq!((whole.value, whole.held), (Some(20.0 / 7.5), true), "2.67");
        claim.each = true;
        let each = claim.check(&rows()).unwrap();
        assert_eq!((each.value, each.held), (Some(2.0), false), "10/5 is worse than 30/10");
    }

    #[test]
    fn the_tolerance_widens_both_limits() {
        let held = |at_least, at_most, tolerance| {
            let of = operand("a", &[1.0], Reduce::Mean);
            Claim { at_least, at_most, tolerance, ..claim(of, None) }.check(&rows()).unwrap().held
        };
        assert!(!held(Some(10.5), None, 0.0) && held(Some(10.5), None, 0.05), "10 >= 9.975");
        assert!(!held(None, Some(9.6), 0.0) && held(None, Some(9.6), 0.05), "10 <= 10.08");
        assert!(held(Some(10.0), Some(10.0), 0.0));
    }

    #[test]
    fn a_range_takes_its_start_and_leaves_its_end() {
        let within = |from, to| {
            let of = Operand { from, to, ..operand("a", &[], Reduce::Max) };
            claim(of, None).check(&rows()).and_then(|row| row.value)
        };
        assert_eq!((within(Some(1.0), Some(2.0)), within(Some(2.0), None)), (Some(10.0), Some(30.0)));
        assert_eq!(within(Some(2.5), None), None, "nothing to look at");
    }

    #[test]
    fn smallest_and_largest() {
        let value = |reduce| claim(operand("a", &[], reduce), None).check(&rows()).unwrap().value;
        assert_eq!((value(Reduce::Min), value(Reduce::Max)), (Some(10.0), Some(30.0)));
    }

    #[test]
    fn a_number_that_does_not_exist_holds_nothing_and_no_rows_are_no_verdict() {
        let starved = claim(operand("c", &[], Reduce::Mean), None).check(&rows()).unwrap();
        assert_eq!((starved.value, starved.held), (None, false));
        assert!(claim(operand("a", &[7.0], Reduce::Mean), None).check(&rows()).is_none());
    }
}
