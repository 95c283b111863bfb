//! `mqfq-lab bench library`: what the front door of the core costs per request, beside what one would write oneself.
//!
//! One thread and two, no device ([`turns`]): the relaxed form's calls, the front door with a lock per call and with
//! one per turn, a heap and a deficit round robin, each under a mutex. Interleaved rounds ([`crate::rounds`]). The time
//! is a thread's: two threads that do not hinder each other have the same as one.
//!
//! # What would make it lie
//! A warm cache, equal costs, equal weights, and on one thread a mutex that no other one wants: all are for the round
//! robin. Two threads on two hardware threads of one core, or beside a third: look at the least time of the rounds.

pub mod turns;

use crate::rounds::{Rounds, interleaved};
use crate::shell;
use mqfq_report::progress::Progress;
use mqfq_report::table::{Align, Table};
use serde::Serialize;
use turns::{TURN, Turns, Way};

/// Options.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct LibraryOptions {
    /// Interleaved rounds, of which the median counts.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
}

/// Numbers of tenants.
const TENANTS: [usize; 3] = [2, 8, 128];

/// Numbers of threads.
const THREADS: [usize; 2] = [1, 2];

/// Turns of a thread before each measurement, and in it.
const TURNS: (u64, u64) = (70, 1000);

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LibraryReport {
    /// One entry per number of threads, of tenants, and way.
    pub rows: Vec<LibraryRow>,
    /// Permits out at once for each thread, and requests per turn.
    pub depth: usize,
    /// Interleaved rounds.
    pub rounds: u32,
}

/// One way to share.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LibraryRow {
    /// `relaxed`, `door, ...`, `heap ...`, `DRR ...`.
    pub way: &'static str,
    /// Threads, each with jobs of all tenants.
    pub threads: usize,
    /// Tenants that wait all the time.
    pub tenants: usize,
    /// Time of a thread per request, from pushed to ended: median of the rounds.
    pub ns_per_request: f64,
    /// Smallest of the rounds.
    pub ns_per_request_min: f64,
    /// Largest of the rounds.
    pub ns_per_request_max: f64,
}

/// Measures and prints.
///
/// # Errors
/// One sentence.
pub fn run(options: &LibraryOptions, json: bool) -> Result<(), String> {
    let report = measure(options)?;
    shell::print(&report, json, || report.text())
}

/// Measures.
///
/// # Errors
/// None today.
pub fn measure(options: &LibraryOptions) -> Result<LibraryReport, String> {
    let of_threads = |threads| TENANTS.iter().map(move |&tenants| (threads, tenants));
    let of_tenants = |(threads, tenants)| Way::ALL.map(|way| (threads, tenants, way));
    let cases: Vec<(usize, usize, Way)> = THREADS.into_iter().flat_map(of_threads).flat_map(of_tenants).collect();
    let mut turns: Vec<Turns> =
        cases.iter().map(|&(threads, tenants, way)| Turns::new(way, tenants, threads)).collect();
    let mut progress = Progress::new(options.rounds as usize * cases.len());
    let name = |at: usize| cases[at].2.name().to_string();
    let seen = interleaved(options.rounds, (cases.len(), Way::ALL.len()), &mut progress, name, |at| {
        turns[at].run(TURNS.0 * TURN as u64);
        Ok(turns[at].run(TURNS.1 * TURN as u64))
    })?;
    progress.finish();
    let rows = cases.iter().zip(seen).map(|(&(threads, tenants, way), ns)| {
        let ns = Rounds::of(ns);
        LibraryRow {
            way: way.name(),
            threads,
            tenants,
            ns_per_request: ns.median(),
            ns_per_request_min: ns.smallest(),
            ns_per_request_max: ns.largest(),
        }
    });
    Ok(LibraryReport { rows: rows.collect(), depth: TURN, rounds: options.rounds })
}

impl LibraryReport {
    /// The table, for a terminal.
    pub fn text(&self) -> String {
        let mut table = Table::new(&[
            ("threads", Align::Right),
            ("tenants", Align::Right),
            ("way", Align::Left),
            ("ns", Align::Right),
            ("least", Align::Right),
        ]);
        for row in &self.rows {
            table.row(vec![
                row.threads.to_string(),
                row.tenants.to_string(),
                row.way.into(),
                format!("{:.1}", row.ns_per_request),
                format!("{:.1}", row.ns_per_request_min),
            ]);
        }
        format!(
            "time of a thread per request, D = {} for each; ns: median of {} rounds\n\n{}",
            self.depth,
            self.rounds,
            table.render()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_measured_for_every_number_of_tenants() {
        let report = measure(&LibraryOptions { rounds: 1 }).unwrap();
        assert_eq!(report.rows.len(), THREADS.len() * TENANTS.len() * Way::ALL.len());
        assert!(report.rows.iter().all(|row| row.ns_per_request > 0.0));
        assert_eq!(
            report.text().lines().filter(|line| line.contains("door, a lock per turn")).count(),
            2 * TENANTS.len()
        );
    }
}
