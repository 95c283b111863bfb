//! Output of a figure: the contract of `mqfq-lab sim figure --json`, and CSV. Keys are stable.

use super::X;
use serde::{Serialize, Serializer};

/// A figure with its numbers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rows {
    /// As users name it.
    pub figure: String,
    /// One line.
    pub title: String,
    /// Which paper and where.
    pub source: String,
    /// Notes for a reader.
    pub note: Option<String>,
    /// Fewer points and shorter times than the figure has.
    pub quick: bool,
    /// The panels that the rows belong to.
    pub panels: Vec<PanelRow>,
    /// One entry per point.
    pub rows: Vec<Row>,
    /// One entry per claim that the points suffice for.
    pub claims: Vec<ClaimRow>,
}

/// Labels of a panel.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PanelRow {
    /// Its name.
    pub panel: String,
    /// One line.
    pub title: String,
    /// Quantity of x, with its unit.
    pub x_label: String,
    /// Quantity of y, with its unit.
    pub y_label: String,
    /// Ideal value.
    pub ideal: Option<f64>,
}

/// A point.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Panel.
    pub panel: String,
    /// Series.
    pub series: String,
    /// A number or a name.
    pub x: X,
    /// Simulated; `null` if it does not exist (the slowdown of a tenant that got nothing).
    pub y: Option<f64>,
    /// Stated by the paper; `null` if it states none.
    pub paper_y: Option<f64>,
}

/// A tenant's service in one run, and its part by weight.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ShareRow {
    /// Panel.
    pub panel: String,
    /// The first series that shows the run.
    pub series: String,
    /// Where on its axis; 0 where that is the time of the run.
    pub x: X,
    /// Policy.
    pub policy: String,
    /// Tenant.
    pub tenant: String,
    /// Weight of each, if there are several such tenants.
    pub weight: u32,
    /// In the time that counts; of all such tenants.
    pub bytes_per_s: f64,
    /// Its part of what all got, by weight.
    pub ideal_bytes_per_s: f64,
}

/// A claim and what was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClaimRow {
    /// One sentence.
    pub claim: String,
    /// Value found; `null` if it does not exist.
    pub value: Option<f64>,
    /// Lower limit.
    pub at_least: Option<f64>,
    /// Upper limit.
    pub at_most: Option<f64>,
    /// Part of the limits by which they may be missed.
    pub tolerance: f64,
    /// Within limits and tolerance.
    pub held: bool,
    /// Why these limits.
    pub reason: String,
    /// The paper's value for it.
    pub paper: Option<f64>,
    /// The place in the paper that says so.
    pub paper_where: Option<String>,
    /// It is known not to hold, and why.
    pub not_held_because: Option<String>,
}

impl Rows {
    /// The rows as CSV (RFC 4180), with a header. What does not exist is empty.
    ///
    /// # Errors
    /// One sentence, if the library fails (it cannot, short of a bug: it writes into memory).
    pub fn csv(&self) -> Result<String, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot write CSV: {error}");
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["figure", "panel", "series", "x", "y", "paper_y"]).map_err(|error| failed(&error))?;
        let number = |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
        for row in &self.rows {
            let x = row.x.to_string();
            writer
                .write_record([&self.figure, &row.panel, &row.series, &x, &number(row.y), &number(row.paper_y)])
                .map_err(|error| failed(&error))?;
        }
        let bytes = writer.into_inner().map_err(|error| failed(&error))?;
        String::from_utf8(bytes).map_err(|error| failed(&error))
    }

    /// Claims that are not what the figure's file says of them: broken without a known reason, or held in spite of one.
    pub fn surprises(&self) -> impl Iterator<Item = &ClaimRow> {
        self.claims.iter().filter(|claim| claim.held == claim.not_held_because.is_some())
    }
}

impl ClaimRow {
    /// The limits as words: "at least 2.6, 10% less allowed".
    pub fn limits(&self) -> String {
        let limits = match (self.at_least, self.at_most) {
            (Some(least), Some(most)) if least == most => format!("{least}"),
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => String::new(),
        };
        if self.tolerance == 0.0 { limits } else { format!("{limits}, give or take {}%", percent(self.tolerance)) }
    }
}

/// A part of one in per cent, without what binary fractions add.
fn percent(part: f64) -> f64 {
    (part * 1e4).round() / 1e2
}

impl Serialize for X {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // A number of workers is 4 and not 4.0.
            X::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                serializer.serialize_i64(*number as i64)
            }
            X::Number(number) => serializer.serialize_f64(*number),
            X::Label(label) => serializer.serialize_str(label),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Rows {
        let row = |x, y, paper_y| Row { panel: "main".into(), series: "mqfq, \"relaxed\"".into(), x, y, paper_y };
        Rows {
            figure: "mqfq/8".into(),
            title: String::new(),
            source: String::new(),
            note: None,
            quick: false,
            panels: vec![],
            rows: vec![row(X::Number(4.0), Some(2.5), None), row(X::Label("none".into()), None, Some(3.0))],
            claims: vec![],
        }
    }

    #[test]
    fn csv_quotes_what_needs_it_and_leaves_empty_what_does_not_exist() {
        let expected = "figure,panel,series,x,y,paper_y\nmqfq/8,main,\"mqfq, \"\"relaxed\"\"\",4,2.5,\n\
                        mqfq/8,main,\"mqfq, \"\"relaxed\"\"\",none,,3\n";
        assert_eq!(rows().csv().unwrap(), expected);
    }

    #[test]
    fn limits_are_words() {
        let claim = |at_least, at_most, tolerance| ClaimRow {
            claim: String::new(),
            value: None,
            at_least,
            at_most,
            tolerance,
            held: false,
            reason: String::new(),
            paper: None,
            paper_where: None,
            not_held_because: None,
        };
        assert_eq!(claim(Some(2.6), None, 0.07).limits(), "at least 2.6, give or take 7%");
        assert_eq!(claim(None, Some(1.33), 0.0).limits(), "at most 1.33");
        assert_eq!(claim(Some(2.0), Some(2.0), 0.05).limits(), "2, give or take 5%");
    }
}
