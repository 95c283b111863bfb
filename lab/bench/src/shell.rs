//! How results leave a measurement: on stdout, in a folder, in a record. A measurement hands in its rows; all commands
//! print, write and name files alike.

use crate::machine::Machine;
use mqfq_report::json;
use mqfq_report::print_line;
use mqfq_report::table::Table;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Somebody at a terminal.
    Text,
    /// Somebody in a record.
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

/// What is written into the folder of `--out`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutFiles {
    /// `mqfq-NAME.svg`.
    Picture,
    /// What a record has.
    All,
}

/// The results of one measurement.
pub trait Results: Serialize {
    /// As the command is called, and its files.
    const NAME: &'static str;
    /// Heading of the page in a record.
    const TITLE: &'static str;
    /// What `--out` is for.
    const OUT: OutFiles = OutFiles::Picture;

    /// The machine and the day that the record is kept under.
    fn place(&self) -> (&Machine, &str);

    /// What stands above the tables, line by line.
    fn head(&self) -> Vec<String>;

    /// The same for a record.
    fn head_of_record(&self) -> Vec<String> {
        self.head()
    }

    /// The tables.
    fn body(&self, style: Style) -> String;

    /// Why there are no results, if there are none.
    fn skipped(&self) -> Option<&str> {
        None
    }

    /// Pictures, each with the name of its file without `.svg`.
    ///
    /// # Errors
    /// One sentence: one cannot be drawn.
    fn pictures(&self) -> Result<Vec<(String, String)>, String> {
        Ok(Vec::new())
    }

    /// The pictures of `--out` lie here.
    fn drawn(&mut self, _paths: Vec<String>) {}

    /// Where they lie.
    fn picture_paths(&self) -> Vec<&str> {
        Vec::new()
    }

    /// For a terminal.
    fn text(&self) -> String {
        if let Some(reason) = self.skipped() {
            return format!("skipped: {reason}\n");
        }
        let pictures: String = self.picture_paths().iter().map(|path| format!("\npicture: {path}\n")).collect();
        format!("{}\n\n{}{pictures}", self.head().join("\n"), self.body(Style::Text))
    }

    /// The page in a record.
    fn markdown(&self) -> String {
        let head: String = self.head_of_record().iter().map(|line| format!("* {line}\n")).collect();
        let body = self.skipped().map_or_else(|| self.body(Style::Markdown), |reason| format!("Skipped: {reason}\n"));
        format!(
            "# {}\n\n{head}\n{body}\nWhat would make these numbers lie: see lab/bench/README.md, `mqfq-lab bench {}`.\n",
            Self::TITLE,
            Self::NAME
        )
    }
}

/// The first line of most heads: day, machine, processor, kernel.
pub fn place_line(date: &str, machine: &Machine) -> String {
    let Machine { host, cpu, cpus, kernel, .. } = machine;
    format!("{date} on {host}: {cpu} ({cpus} CPUs), Linux {kernel}")
}

/// Notes as lines of a head.
pub fn notes(notes: &[String]) -> impl Iterator<Item = String> {
    notes.iter().map(|note| format!("note: {note}"))
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

/// Where results go besides stdout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Output<'a> {
    /// One JSON object on stdout in place of tables.
    pub json: bool,
    /// The folder of `--out`.
    pub out: Option<&'a Path>,
    /// Root under which `HOST/DATE/NAME.{json,md}` and the pictures are written; those of the same day are replaced.
    pub record: Option<&'a Path>,
}

/// Draws, prints and records.
///
/// # Errors
/// One sentence: something cannot be drawn or written.
pub fn publish<R: Results>(results: &mut R, output: Output<'_>) -> Result<(), String> {
    if let Some(folder) = output.out {
        let prefix = if R::OUT == OutFiles::Picture { "mqfq-" } else { "" };
        let paths = write_pictures(results, folder, prefix)?;
        results.drawn(paths);
        if R::OUT == OutFiles::All {
            write_pages(results, folder)?;
        }
    }
    print(results, output.json, || results.text())?;
    if let Some(root) = output.record {
        let (machine, date) = results.place();
        let folder = root.join(&machine.host).join(date);
        write_pictures(results, &folder, "")?;
        write_pages(results, &folder)?;
        eprintln!("wrote {}", folder.display());
    }
    Ok(())
}

fn write_pictures(results: &impl Results, folder: &Path, prefix: &str) -> Result<Vec<String>, String> {
    let written =
        results.pictures()?.into_iter().map(|(name, svg)| write(folder, &format!("{prefix}{name}.svg"), &svg));
    written.map(|path| Ok(path?.display().to_string())).collect()
}

fn write_pages<R: Results>(results: &R, folder: &Path) -> Result<(), String> {
    write(folder, &format!("{}.json", R::NAME), &(json(results)? + "\n"))?;
    write(folder, &format!("{}.md", R::NAME), &results.markdown())?;
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
