//! Plain text tables: a header, a rule, numbers to the right. No colour, so that they paste into a mail.

/// Which side a column's text keeps to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table under way. Every row has as many cells as there are columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table { columns: columns.iter().map(|(name, align)| (name.to_string(), *align)).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells is not that of the columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row needs one cell per column");
        self.rows.push(cells);
    }

    /// There is more than a header.
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The table as lines, each ended by a newline, none by a space.
    pub fn render(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let widths: Vec<usize> = (0..names.len())
            .map(|at| {
                self.rows
                    .iter()
                    .map(|row| row[at].chars().count())
                    .chain([names[at].chars().count()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        [&names, &rule].into_iter().chain(&self.rows).map(|row| self.line(row, &widths)).collect()
    }

    /// This table in Markdown, for a record.
    pub fn render_markdown(&self) -> String {
        let names = self.columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" | ");
        let rule = self
            .columns
            .iter()
            .map(|(_, align)| match align {
                Align::Left => "---",
                Align::Right => "--:",
            })
            .collect::<Vec<_>>()
            .join("|");
        let rows: String = self.rows.iter().map(|row| format!("| {} |\n", row.join(" | "))).collect();
        format!("| {names} |\n|{rule}|\n{rows}")
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .zip(&self.columns)
            .map(|((cell, &width), (_, align))| {
                let padding = " ".repeat(width - cell.chars().count());
                match align {
                    Align::Left => format!("{cell}{padding}"),
                    Align::Right => format!("{padding}{cell}"),
                }
            })
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    }
}

/// Bandwidth in MB/s (10^6 bytes), with as many decimals as say something.
pub fn mb_per_s(bytes_per_s: f64) -> String {
    let mb = bytes_per_s / 1e6;
    if mb < 10.0 { format!("{mb:.2}") } else { format!("{mb:.1}") }
}

/// A time in milliseconds with three significant decimals below 10 ms.
pub fn ms(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_rows() -> Table {
        let mut table = Table::new(&[("policy", Align::Left), ("MB/s", Align::Right)]);
        table.row(vec!["none".into(), "5.4".into()]);
        table.row(vec!["mqfq-serial".into(), "190.0".into()]);
        table
    }

    #[test]
    fn words_keep_left_and_numbers_right() {
        let expected = "policy        MB/s\n-----------  -----\nnone           5.4\nmqfq-serial  190.0\n";
        assert_eq!(two_rows().render(), expected);
    }

    #[test]
    fn markdown_says_the_same() {
        assert_eq!(
            two_rows().render_markdown(),
            "| policy | MB/s |\n|---|--:|\n| none | 5.4 |\n| mqfq-serial | 190.0 |\n"
        );
    }

    #[test]
    fn numbers_keep_the_digits_that_say_something() {
        assert_eq!(mb_per_s(5_300_000.0), "5.30");
        assert_eq!(mb_per_s(363_640_000.0), "363.6");
        assert_eq!((ms(790_123), ms(46_000_000)), ("0.790".to_string(), "46.0".to_string()));
    }
}
