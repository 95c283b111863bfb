//! How results leave a measurement: on stdout, in a folder, in a record. A measurement hands in its rows; all commands
//! print, write and name files alike. And interleaved rounds: the order of the measurements, and their summary.

use crate::contender::Runs;
use crate::machine::{self, Machine};
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use mqfq_report::{json, print_line};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Kind of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// A terminal.
    Text,
    /// A record.
    Markdown,
}

impl Style {
    /// A table.
    pub fn table(self, table: &Table) -> String {
        match self {
            Style::Text => table.render(),
            Style::Markdown => table.render_markdown(),
        }
    }

    /// Tables under their headings, without those that have no rows.
    pub fn tables(self, tables: impl IntoIterator<Item = (String, Table)>) -> String {
        let mark = if self == Style::Markdown { "## " } else { "" };
        let all = tables.into_iter().filter(|(_, table)| table.has_rows());
        all.map(|(heading, table)| format!("{mark}{heading}\n\n{}", self.table(&table))).collect::<Vec<_>>().join("\n")
    }
}

/// Files written into the folder of `--out`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutFiles {
    /// `mqfq-NAME.svg`.
    Picture,
    /// All files of a record.
    All,
}

/// Results of one measurement.
pub trait Results: Serialize {
    /// Command's name, and that of its files.
    const NAME: &'static str;
    /// Heading of the page in a record.
    const TITLE: &'static str;
    /// Files for `--out`.
    const OUT: OutFiles = OutFiles::Picture;

    /// Text above the tables, line by line.
    fn head(&self) -> Vec<String>;

    /// The tables.
    fn body(&self, style: Style) -> String;

    /// Why there are no results, if there are none.
    fn skipped(&self) -> Option<&str> {
        None
    }

    /// Pictures for a machine of this name, each with the name of its file without `.svg`.
    ///
    /// # Errors
    /// One sentence: one cannot be drawn.
    fn pictures(&self, _host: &str) -> Result<Vec<(String, String)>, String> {
        Ok(Vec::new())
    }
}

/// Results, and when, where and how often they were taken.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record<R> {
    /// Results of the command.
    #[serde(flatten)]
    pub results: R,
    /// Day, UTC.
    pub date: String,
    /// Machine that it was measured on.
    pub machine: Machine,
    /// Interleaved rounds; 0: no clock was read.
    pub rounds: u32,
    /// Length of each measurement, milliseconds.
    pub measured_ms: u64,
    /// Notes for the reader: what was left out, and what limits the numbers.
    pub notes: Vec<String>,
    /// Where the pictures lie, if some were drawn.
    pub svg_paths: Vec<String>,
}

impl<R> std::ops::Deref for Record<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.results
    }
}

impl<R: Results> Record<R> {
    /// Results of today, on this machine with the versions of `tools`.
    pub fn new<const ROUNDS: u32, const MS: u64>(results: R, runs: &Runs<ROUNDS, MS>, tools: &[&str]) -> Record<R> {
        Record {
            results,
            date: machine::today(),
            machine: Machine::this(runs.host.as_deref(), tools),
            rounds: runs.rounds,
            measured_ms: runs.measured_ms,
            notes: Vec::new(),
            svg_paths: Vec::new(),
        }
    }

    fn head(&self) -> Vec<String> {
        let Machine { host, cpu, cpus, kernel, tools } = &self.machine;
        let mut head = vec![format!("{} on {host}: {cpu} ({cpus} CPUs), Linux {kernel}", self.date)];
        head.extend((!tools.is_empty()).then(|| format!("tools: {}", tools.join("; "))));
        head.extend(self.results.head());
        let (rounds, ms) = (self.rounds, self.measured_ms);
        head.extend((rounds > 0).then(|| format!("{rounds} interleaved rounds of {ms} ms: median, smallest, largest")));
        head.extend(self.notes.iter().map(|note| format!("note: {note}")));
        head
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        if let Some(reason) = self.results.skipped() {
            return format!("skipped: {reason}\n");
        }
        let pictures: String = self.svg_paths.iter().map(|path| format!("\npicture: {path}\n")).collect();
        format!("{}\n\n{}{pictures}", self.head().join("\n"), self.results.body(Style::Text))
    }

    /// The page in a record.
    pub fn markdown(&self) -> String {
        let head: String = self.head().iter().map(|line| format!("* {line}\n")).collect();
        let reason = self.results.skipped().map(|reason| format!("Skipped: {reason}\n"));
        let body = reason.unwrap_or_else(|| self.results.body(Style::Markdown));
        format!("# {}\n\n{head}\n{body}\nWhat would make these numbers lie: see lab/bench/README.md.\n", R::TITLE)
    }

    /// Draws, prints and records.
    ///
    /// # Errors
    /// One sentence: something cannot be drawn or written.
    pub fn publish<const ROUNDS: u32, const MS: u64>(
        &mut self,
        runs: &Runs<ROUNDS, MS>,
        as_json: bool,
    ) -> Result<(), String> {
        if let Some(folder) = &runs.out {
            let prefix = if R::OUT == OutFiles::Picture { "mqfq-" } else { "" };
            self.svg_paths = self.write_pictures(folder, prefix)?;
            if R::OUT == OutFiles::All {
                self.write_pages(folder)?;
            }
        }
        print(self, as_json, || self.text())?;
        if let Some(root) = &runs.record {
            let folder = root.join(&self.machine.host).join(&self.date);
            self.write_pictures(&folder, "")?;
            self.write_pages(&folder)?;
            eprintln!("wrote {}", folder.display());
        }
        Ok(())
    }

    fn write_pictures(&self, folder: &Path, prefix: &str) -> Result<Vec<String>, String> {
        let pictures = self.results.pictures(&self.machine.host)?.into_iter();
        let written = pictures.map(|(name, svg)| write(folder, &format!("{prefix}{name}.svg"), &svg));
        written.map(|path| Ok(path?.display().to_string())).collect()
    }

    fn write_pages(&self, folder: &Path) -> Result<(), String> {
        write(folder, &format!("{}.json", R::NAME), &(json(self)? + "\n"))?;
        write(folder, &format!("{}.md", R::NAME), &self.markdown())?;
        Ok(())
    }
}

/// A column of a table: its name, its side, and what it says of a row.
pub type Column<R> = (&'static str, Align, fn(&R) -> String);

/// A line for each row, a column for each of `columns`.
pub fn table<'r, R: 'r>(rows: impl IntoIterator<Item = &'r R>, columns: &[Column<R>]) -> Table {
    let names: Vec<(&str, Align)> = columns.iter().map(|(name, align, _)| (*name, *align)).collect();
    let mut table = Table::new(&names);
    for row in rows {
        table.row(columns.iter().map(|(.., cell)| cell(row)).collect());
    }
    table
}

/// A number without decimals.
pub fn whole(number: f64) -> String {
    format!("{number:.0}")
}

/// A number in millions.
pub fn millions(number: f64) -> String {
    format!("{:.3}", number / 1e6)
}

/// Nanoseconds as microseconds.
pub fn us(ns: f64) -> String {
    format!("{:.1}", ns / 1e3)
}

/// A number with so many decimals, or a dash.
pub fn or_dash(number: Option<f64>, decimals: usize) -> String {
    number.map_or("-".into(), |number| format!("{number:.decimals$}"))
}

/// One JSON object, or a text.
///
/// # Errors
/// One sentence: the results cannot be written as JSON.
pub fn print(results: &impl Serialize, as_json: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if as_json {
        print_line(json(results)?)?;
    } else {
        print_line(text().trim_end_matches('\n'))?;
    }
    Ok(())
}

/// Writes a file into a folder, which is made.
///
/// # Errors
/// One sentence naming the folder or the file.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// The program that callgrind runs: the one that is given, or the one that is running.
///
/// # Errors
/// One sentence: the running program's path is unknown.
pub fn program(given: Option<&PathBuf>) -> Result<PathBuf, String> {
    match given {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}")),
    }
}

// Interleaved rounds: order of the measurements, and summary of the values.
//
// A machine drifts: other guests, heat, clocks. Each round measures every case once and begins with another one than
// the round before, so that drift falls on all alike. What is said is the median with the smallest and the largest; a
// ratio is taken within each round, because a slow round is slow for both.

/// The values of some rounds, in ascending order.
#[derive(Clone, PartialEq, Debug)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Rounds of values in any order.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Rounds {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Rounds(values)
    }

    /// The middle one, the mean of the two middle ones if there is no middle; 0 of none.
    pub fn median(&self) -> f64 {
        match self.0.len() {
            0 => 0.0,
            count if count % 2 == 1 => self.0[count / 2],
            count => (self.0[count / 2 - 1] + self.0[count / 2]) / 2.0,
        }
    }

    /// 0 of none.
    pub fn smallest(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    /// 0 of none.
    pub fn largest(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }
}

/// Median of `value` over the rounds.
pub fn median<S>(rounds: &[S], value: impl Fn(&S) -> f64) -> f64 {
    Rounds::of(rounds.iter().map(value)).median()
}

/// Median of the ratios of `value` within each round.
pub fn ratio<S>(ours: &[S], theirs: &[S], value: impl Fn(&S) -> f64) -> f64 {
    Rounds::of(ours.iter().zip(theirs).map(|(ours, theirs)| value(ours) / value(theirs))).median()
}

/// Median ratio without rounds in which theirs was nothing, as in an instant on a busy machine; `None` if all were
/// such.
pub fn ratio_of_any<S>(ours: &[S], theirs: &[S], value: impl Fn(&S) -> f64) -> Option<f64> {
    let is_any = |(_, theirs): &(&S, &S)| value(theirs) > 0.0;
    let mut any = ours.iter().zip(theirs).filter(is_any).peekable();
    any.peek()?;
    Some(Rounds::of(any.map(|(ours, theirs)| value(ours) / value(theirs))).median())
}

/// Runs `cases` cases in so many rounds; those of one group of `group` are compared and stay near each other. `name`
/// says what a case is called while it runs. The values come back by case, one per round.
///
/// # Errors
/// The first of `run`.
pub fn interleaved<S>(
    rounds: u32,
    (cases, group): (usize, usize),
    progress: &mut Progress,
    name: impl Fn(usize) -> String,
    mut run: impl FnMut(usize) -> Result<S, String>,
) -> Result<Vec<Vec<S>>, String> {
    let mut seen: Vec<Vec<S>> = (0..cases).map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for first in (0..cases).step_by(group.max(1)) {
            let length = group.min(cases - first);
            for step in 0..length {
                let at = first + (step + round) % length;
                progress.step(&format!("{}, round {}", name(at), round + 1));
                seen[at].push(run(at)?);
            }
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(Rounds::of([8.0, 1.0, 4.0, 2.0]).median(), 3.0);
        assert_eq!(Rounds::of([]).median(), 0.0);
        let rounds = Rounds::of([3.0, 1.0, 2.0]);
        assert_eq!((rounds.smallest(), rounds.median(), rounds.largest()), (1.0, 2.0, 3.0));
    }

    #[test]
    fn a_ratio_is_taken_within_its_round() {
        // The machine halves its speed in the second round: each ratio is 0.9 all the same.
        assert_eq!(ratio(&[900.0, 450.0, 900.0], &[1000.0, 500.0, 1000.0], |rate| *rate), 0.9);
        assert_eq!(ratio_of_any(&[5.0, 6.0], &[0.0, 3.0], |rate| *rate), Some(2.0));
        assert_eq!(ratio_of_any(&[5.0], &[0.0], |rate| *rate), None);
    }

    #[test]
    fn each_round_begins_with_another_case_of_each_group() {
        let mut order = Vec::new();
        let mut progress = Progress::new(10);
        let seen = interleaved(
            2,
            (5, 3),
            &mut progress,
            |at| at.to_string(),
            |at| {
                order.push(at);
                Ok(order.len())
            },
        );
        assert_eq!(seen.unwrap(), [vec![1, 8], vec![2, 6], vec![3, 7], vec![4, 10], vec![5, 9]]);
        assert_eq!(order, [0, 1, 2, 3, 4, 1, 2, 0, 4, 3]);
    }
}
