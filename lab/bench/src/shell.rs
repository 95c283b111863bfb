//! How results leave a measurement: on stdout, in a folder, in a record. A measurement hands in its rows; all commands
//! print, write and name files alike.

use crate::machine::{self, Machine};
use crate::options::Runs;
use mqfq_report::json;
use mqfq_report::print_line;
use mqfq_report::table::{Align, Table};
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
            self.write_out(folder)?;
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

    /// Writes into `folder` what `--out` asks for.
    ///
    /// # Errors
    /// One sentence: a file that cannot be written.
    pub fn write_out(&mut self, folder: &Path) -> Result<(), String> {
        let prefix = if R::OUT == OutFiles::Picture { "mqfq-" } else { "" };
        self.svg_paths = self.write_pictures(folder, prefix)?;
        if R::OUT == OutFiles::All {
            self.write_pages(folder)?;
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
