//! What `mqfq-lab bench structures` reports: rows, tables.

use super::lines::Counted;
use crate::shell::Style;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StructuresReport {
    /// What was timed on this machine, with what was counted for the same numbers of workers and queues.
    pub rows: Vec<Row>,
    /// What was counted for machines of other sizes, one queue per worker.
    pub counted_rows: Vec<CountedRow>,
    /// Where the workers ran: the first n of these for n workers.
    pub placement: Vec<Place>,
    /// How often each measurement was made.
    pub rounds: u32,
    /// Length of each.
    pub milliseconds: u64,
    /// Where the picture lies, if one was asked for.
    pub svg_path: Option<String>,
}

/// Which CPU a worker was bound to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Which worker.
    pub worker: usize,
    /// The kernel's number of its CPU.
    pub cpu: usize,
    /// That CPU's core.
    pub core: u16,
    /// And socket.
    pub socket: u16,
}

/// One structure under one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// `mindicator`, `array-scan`, `array-scan-packed`; `token-tree`, `atomic-counter`, `scalable-bitmap`; `wheel`,
    /// `poll-1us`, `poll-5us`.
    pub structure: String,
    /// `global virtual time`, `dispatch tokens` or `wake-up`: only rows of the same are comparable.
    pub stands_for: String,
    /// Of virtual time: `faithful`, each lead as it is; `relaxed`, rounded down to a quantum.
    pub form: Option<String>,
    /// Of dispatch tokens: `kept` or `handed-on`.
    pub pattern: Option<String>,
    /// Threads, each pinned.
    pub workers: usize,
    /// Queues that the structure was made for.
    pub queues: usize,
    /// Time of one worker per operation, median of the rounds; for a wake-up what a dispatch costs the worker that
    /// moves virtual time.
    pub ns_per_operation: f64,
    /// The round with the smallest.
    pub ns_per_operation_smallest: f64,
    /// The round with the largest.
    pub ns_per_operation_largest: f64,
    /// Operations of all workers together, median of the rounds.
    pub operations_per_s: f64,
    /// Of wake-ups: what it came to.
    #[serde(flatten)]
    pub wake_up: Option<WakeUp>,
    /// Without a clock; absent for more workers than the count can tell apart.
    #[serde(flatten)]
    pub counted: Option<Counted>,
}

/// Real wake-ups, over all rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WakeUp {
    /// How many were measured.
    pub wake_ups: u64,
    /// From the moment virtual time had come far enough until the sleeper knew it: median. `null` without wake-ups.
    pub wake_up_delay_p50_ns: Option<u64>,
    /// 99th percentile.
    pub wake_up_delay_p99_ns: Option<u64>,
    /// CPU time of a sleeping worker over the time that passed.
    pub cpu_share: f64,
    /// How often a sleeping worker ran, all of them together.
    pub reschedules_per_s: f64,
    /// How often among those for nothing.
    pub spurious_reschedules_per_s: f64,
    /// Part of the time in which the worker that moves virtual time was itself too far ahead, because a sleeper had not
    /// come back.
    pub held_up_share: f64,
}

/// One structure on a machine that need not exist.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CountedRow {
    /// As in [`Row`].
    pub structure: String,
    /// As in [`Row`].
    pub stands_for: String,
    /// As in [`Row`].
    pub form: Option<String>,
    /// As in [`Row`].
    pub pattern: Option<String>,
    /// Workers, one queue each.
    pub workers: usize,
    /// Sockets that they are spread over.
    pub sockets: usize,
    /// Hardware threads of a core.
    pub threads_per_core: usize,
    /// What was counted.
    #[serde(flatten)]
    pub counted: Counted,
    /// Of wake-ups: on a machine where nothing takes time.
    #[serde(flatten)]
    pub ideal: Option<IdealWakeUp>,
}

/// Wake-ups where sleeping, waking and computing take no time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IdealWakeUp {
    /// Delay that the structure itself makes: median.
    pub ideal_delay_p50_ns: u64,
    /// 99th percentile.
    pub ideal_delay_p99_ns: u64,
    /// How often a sleeper runs for each time that it may go.
    pub reschedules_per_wake_up: f64,
}

/// As `Row::stands_for`.
pub const VIRTUAL_TIME: &str = "global virtual time";
/// As `Row::stands_for`.
pub const TOKENS: &str = "dispatch tokens";
/// As `Row::stands_for`.
pub const WAKE_UP: &str = "wake-up";

impl StructuresReport {
    /// What people read: a heading and a table for each question.
    pub fn tables(&self) -> Vec<(String, Table)> {
        let titled = |stands_for: &str, operation: &str| format!("{stands_for}: an operation is {operation}");
        let mut tables = vec![
            (titled(VIRTUAL_TIME, "a lead moved up and virtual time brought up to date"), self.timed(VIRTUAL_TIME)),
            (titled(TOKENS, "a token given back and one taken, or handed to another"), self.timed(TOKENS)),
        ];
        if self.rows.iter().any(|row| row.wake_up.is_some()) {
            tables.push((titled(WAKE_UP, "a dispatch of the worker that moves virtual time"), self.wake_ups()));
        }
        tables.push((
            "counted, per operation, for machines of other sizes (one queue per worker)".into(),
            self.counted(),
        ));
        tables
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let place = |Place { worker, cpu, core, socket }: &Place| {
            format!("worker {worker} on CPU {cpu} (core {core}, socket {socket})\n")
        };
        let mut text: String = self.placement.iter().map(place).collect();
        for (title, table) in self.tables() {
            text += &format!("\n{title}\n\n{}\n", table.render());
        }
        if let Some(path) = &self.svg_path {
            text += &format!("The picture: {path}\n");
        }
        text
    }

    /// For a record.
    pub fn markdown(&self) -> String {
        format!("# The structures of MQFQ beside their rivals\n\n{}", Style::Markdown.tables(self.tables()))
    }

    fn timed(&self, stands_for: &str) -> Table {
        let mut table = Table::new(&[
            ("structure", Align::Left),
            ("form, pattern", Align::Left),
            ("workers", Align::Right),
            ("queues", Align::Right),
            ("ns/op", Align::Right),
            ("smallest..largest", Align::Right),
            ("Mop/s", Align::Right),
            ("loads", Align::Right),
            ("RMWs", Align::Right),
            ("lines touched", Align::Right),
            ("lines moved", Align::Right),
        ]);
        for row in self.rows.iter().filter(|row| row.stands_for == stands_for) {
            let counted =
                |of: fn(&Counted) -> f64| row.counted.map_or("-".into(), |counted| format!("{:.2}", of(&counted)));
            table.row(vec![
                row.structure.clone(),
                row.form.clone().or_else(|| row.pattern.clone()).unwrap_or_default(),
                row.workers.to_string(),
                row.queues.to_string(),
                format!("{:.1}", row.ns_per_operation),
                format!("{:.1}..{:.1}", row.ns_per_operation_smallest, row.ns_per_operation_largest),
                format!("{:.2}", row.operations_per_s / 1e6),
                counted(|counted| counted.loads_per_operation),
                counted(|counted| counted.read_modify_writes_per_operation),
                counted(|counted| counted.lines_touched_per_operation),
                counted(|counted| counted.line_transfers_per_operation),
            ]);
        }
        table
    }

    fn wake_ups(&self) -> Table {
        let mut table = Table::new(&[
            ("structure", Align::Left),
            ("workers", Align::Right),
            ("delay p50 us", Align::Right),
            ("p99 us", Align::Right),
            ("CPU of a sleeper", Align::Right),
            ("reschedules/s", Align::Right),
            ("for nothing", Align::Right),
            ("ns/op", Align::Right),
            ("held up", Align::Right),
        ]);
        let us = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1e3));
        for row in &self.rows {
            let Some(wake_up) = &row.wake_up else { continue };
            table.row(vec![
                row.structure.clone(),
                row.workers.to_string(),
                us(wake_up.wake_up_delay_p50_ns),
                us(wake_up.wake_up_delay_p99_ns),
                format!("{:.1}%", wake_up.cpu_share * 100.0),
                format!("{:.0}", wake_up.reschedules_per_s),
                format!("{:.0}", wake_up.spurious_reschedules_per_s),
                format!("{:.1}", row.ns_per_operation),
                format!("{:.1}%", wake_up.held_up_share * 100.0),
            ]);
        }
        table
    }

    fn counted(&self) -> Table {
        let mut table = Table::new(&[
            ("structure", Align::Left),
            ("form, pattern", Align::Left),
            ("workers", Align::Right),
            ("sockets", Align::Right),
            ("loads", Align::Right),
            ("stores", Align::Right),
            ("RMWs", Align::Right),
            ("shared RMWs", Align::Right),
            ("fences", Align::Right),
            ("lines moved", Align::Right),
            ("busiest taken", Align::Right),
            ("delay p50 us", Align::Right),
            ("reschedules/wake-up", Align::Right),
        ]);
        for row in &self.counted_rows {
            let ideal = |of: &dyn Fn(&IdealWakeUp) -> String| row.ideal.as_ref().map_or(String::new(), of);
            let counted = &row.counted;
            table.row(vec![
                row.structure.clone(),
                row.form.clone().or_else(|| row.pattern.clone()).unwrap_or_default(),
                row.workers.to_string(),
                row.sockets.to_string(),
                format!("{:.2}", counted.loads_per_operation),
                format!("{:.2}", counted.stores_per_operation),
                format!("{:.2}", counted.read_modify_writes_per_operation),
                format!("{:.2}", counted.shared_read_modify_writes_per_operation),
                format!("{:.2}", counted.fences_per_operation),
                format!("{:.2}", counted.line_transfers_per_operation),
                format!("{:.2}", counted.busiest_line_taken_per_operation),
                ideal(&|ideal| format!("{:.1}", ideal.ideal_delay_p50_ns as f64 / 1e3)),
                ideal(&|ideal| format!("{:.1}", ideal.reschedules_per_wake_up)),
            ]);
        }
        table
    }
}
