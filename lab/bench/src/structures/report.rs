//! Report of `mqfq-lab bench structures`: rows, tables, and a picture of six panels: above what was timed
//! here, below what was counted.

use super::lines::Counted;
use crate::shell::{OutFiles, Results, Style, or_dash, table, us, whole};
use mqfq_report::panel::{self, Along, Panel, Point, Series};
use mqfq_report::table::Align::{Left, Right};
use mqfq_report::table::Table;
use serde::{Deserialize, Serialize};

/// Results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Structures {
    /// Times on this machine, with the counts for the same numbers of workers and queues.
    pub rows: Vec<Row>,
    /// Counts for machines of other sizes, one queue per worker.
    pub counted_rows: Vec<CountedRow>,
    /// Where the workers ran: the first n of these for n workers.
    pub placement: Vec<Place>,
}

/// Which CPU a worker was bound to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Worker.
    pub worker: usize,
    /// The kernel's number of its CPU.
    pub cpu: usize,
    /// Core of that CPU.
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
    /// Form, for virtual time: `faithful`, each lead as it is; `relaxed`, rounded down to a quantum.
    pub form: Option<String>,
    /// Pattern, for dispatch tokens: `kept` or `handed-on`.
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
    /// Results of wake-ups.
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
    /// Counts.
    #[serde(flatten)]
    pub counted: Counted,
    /// Wake-ups where nothing takes time.
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

impl Structures {
    /// Text for people: a heading and a table for each question.
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

    fn timed(&self, stands_for: &str) -> Table {
        fn counted(row: &Row, of: fn(&Counted) -> f64) -> String {
            or_dash(row.counted.as_ref().map(of), 2)
        }
        table(
            self.rows.iter().filter(|row| row.stands_for == stands_for),
            &[
                ("structure", Left, |row: &Row| row.structure.clone()),
                ("form, pattern", Left, |row| row.form.clone().or_else(|| row.pattern.clone()).unwrap_or_default()),
                ("workers", Right, |row| row.workers.to_string()),
                ("queues", Right, |row| row.queues.to_string()),
                ("ns/op", Right, |row| format!("{:.1}", row.ns_per_operation)),
                ("smallest..largest", Right, |row| {
                    format!("{:.1}..{:.1}", row.ns_per_operation_smallest, row.ns_per_operation_largest)
                }),
                ("Mop/s", Right, |row| format!("{:.2}", row.operations_per_s / 1e6)),
                ("loads", Right, |row| counted(row, |counted| counted.loads_per_operation)),
                ("RMWs", Right, |row| counted(row, |counted| counted.read_modify_writes_per_operation)),
                ("lines touched", Right, |row| counted(row, |counted| counted.lines_touched_per_operation)),
                ("lines moved", Right, |row| counted(row, |counted| counted.line_transfers_per_operation)),
            ],
        )
    }

    fn wake_ups(&self) -> Table {
        fn delay_us(ns: Option<u64>) -> String {
            ns.map_or("-".into(), |ns| us(ns as f64))
        }
        let rows: Vec<(&Row, &WakeUp)> =
            self.rows.iter().filter_map(|row| Some((row, row.wake_up.as_ref()?))).collect();
        table(
            &rows,
            &[
                ("structure", Left, |(row, _): &(&Row, &WakeUp)| row.structure.clone()),
                ("workers", Right, |(row, _)| row.workers.to_string()),
                ("delay p50 us", Right, |(_, wake_up)| delay_us(wake_up.wake_up_delay_p50_ns)),
                ("p99 us", Right, |(_, wake_up)| delay_us(wake_up.wake_up_delay_p99_ns)),
                ("CPU of a sleeper", Right, |(_, wake_up)| format!("{:.1}%", wake_up.cpu_share * 100.0)),
                ("reschedules/s", Right, |(_, wake_up)| whole(wake_up.reschedules_per_s)),
                ("for nothing", Right, |(_, wake_up)| whole(wake_up.spurious_reschedules_per_s)),
                ("ns/op", Right, |(row, _)| format!("{:.1}", row.ns_per_operation)),
                ("held up", Right, |(_, wake_up)| format!("{:.1}%", wake_up.held_up_share * 100.0)),
            ],
        )
    }

    fn counted(&self) -> Table {
        fn two(number: f64) -> String {
            format!("{number:.2}")
        }
        fn ideal(row: &CountedRow, of: fn(&IdealWakeUp) -> f64) -> String {
            row.ideal.as_ref().map_or(String::new(), |ideal| format!("{:.1}", of(ideal)))
        }
        table(
            &self.counted_rows,
            &[
                ("structure", Left, |row: &CountedRow| row.structure.clone()),
                ("form, pattern", Left, |row| row.form.clone().or_else(|| row.pattern.clone()).unwrap_or_default()),
                ("workers", Right, |row| row.workers.to_string()),
                ("sockets", Right, |row| row.sockets.to_string()),
                ("loads", Right, |row| two(row.counted.loads_per_operation)),
                ("stores", Right, |row| two(row.counted.stores_per_operation)),
                ("RMWs", Right, |row| two(row.counted.read_modify_writes_per_operation)),
                ("shared RMWs", Right, |row| two(row.counted.shared_read_modify_writes_per_operation)),
                ("fences", Right, |row| two(row.counted.fences_per_operation)),
                ("lines moved", Right, |row| two(row.counted.line_transfers_per_operation)),
                ("busiest taken", Right, |row| two(row.counted.busiest_line_taken_per_operation)),
                ("delay p50 us", Right, |row| ideal(row, |ideal| ideal.ideal_delay_p50_ns as f64 / 1e3)),
                ("reschedules/wake-up", Right, |row| ideal(row, |ideal| ideal.reschedules_per_wake_up)),
            ],
        )
    }
}

impl Results for Structures {
    const NAME: &'static str = "structures";
    const TITLE: &'static str = "The structures of MQFQ beside their rivals";
    const OUT: OutFiles = OutFiles::All;

    fn head(&self) -> Vec<String> {
        let place = |Place { worker, cpu, core, socket }: &Place| {
            format!("worker {worker} on CPU {cpu} (core {core}, socket {socket})")
        };
        self.placement.iter().map(place).collect()
    }

    fn body(&self, style: Style) -> String {
        style.tables(self.tables())
    }

    fn pictures(&self, _: &str) -> Result<Vec<(String, String)>, String> {
        Ok(vec![("structures".into(), render(self)?)])
    }
}

/// Draws the report as an SVG document.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn render(report: &Structures) -> Result<String, String> {
    let title = "MQFQ's structures beside their rivals: timed on this machine (above), counted for others (below)";
    panel::render(title, &panels(report))
}

fn panels(report: &Structures) -> [Panel; 6] {
    let most = report.placement.len();
    let timed = |title: &str, places: &str, keep: &dyn Fn(&Row) -> bool, place: &dyn Fn(&Row) -> usize| {
        let rows = report.rows.iter().filter(|row| keep(row));
        let points = rows.map(|row| (name(&row.structure, &row.form), place(row), row.ns_per_operation));
        panel(title, places, "ns per operation of a worker", points.collect())
    };
    let counted = |title: &str, keep: &dyn Fn(&CountedRow) -> bool| {
        let rows = report.counted_rows.iter().filter(|row| keep(row));
        let points =
            rows.map(|row| (name(&row.structure, &row.form), row.workers, row.counted.line_transfers_per_operation));
        panel(title, "workers", "line transfers per operation", points.collect())
    };
    let is = |row: &Row, pattern: &str| row.pattern.as_deref() == Some(pattern);
    let delays = report.rows.iter().filter(|row| row.workers == most).filter_map(|row| {
        let delay_ns = row.wake_up.as_ref()?.wake_up_delay_p50_ns?;
        Some((row.structure.clone(), row.workers, delay_ns as f64))
    });
    let delays: Vec<_> = delays
        .chain(report.counted_rows.iter().filter_map(|row| {
            let ideal = row.ideal.as_ref().filter(|_| row.workers == 2)?;
            Some((row.structure.clone(), 0, ideal.ideal_delay_p50_ns as f64))
        }))
        .collect();
    let place = |workers: usize| if workers == 0 { "ideal machine".into() } else { format!("here, {workers} workers") };
    let wake_ups = panel_of("wake-up: median delay", "", "ns", delays, &place);
    [
        timed(
            &format!("global virtual time, {most} workers"),
            "queues",
            &|row| row.stands_for == VIRTUAL_TIME && row.workers == most,
            &|row| row.queues,
        ),
        timed("dispatch tokens, handed on", "workers", &|row| is(row, "handed-on"), &|row| row.workers),
        wake_ups,
        counted("global virtual time, one queue per worker", &|row| row.stands_for == VIRTUAL_TIME),
        counted("dispatch tokens, kept", &|row| row.stands_for == TOKENS && row.pattern.as_deref() == Some("kept")),
        counted("wake-up: per dispatch of the mover", &|row| row.stands_for == WAKE_UP),
    ]
}

fn name(structure: &str, form: &Option<String>) -> String {
    match form.as_deref() {
        None | Some("faithful") => structure.into(),
        Some(form) => format!("{structure}, {form}"),
    }
}

fn panel(title: &str, places: &str, values: &str, points: Vec<(String, usize, f64)>) -> Panel {
    panel_of(title, places, values, points, &|place| place.to_string())
}

/// A panel of values over a few places, one curve per structure; `text` says what a place is called.
fn panel_of(
    title: &str,
    places: &str,
    values: &str,
    points: Vec<(String, usize, f64)>,
    text: &dyn Fn(usize) -> String,
) -> Panel {
    let mut at: Vec<usize> = points.iter().map(|&(_, place, _)| place).collect();
    at.sort_unstable();
    at.dedup();
    let title = if at.is_empty() { format!("{title}: not measured with one worker") } else { title.into() };
    let points = points.into_iter().map(|(name, place, value)| {
        let x = at.binary_search(&place).expect("every place is in the list") as f64;
        (name, Point { x, y: Some(value), ..Point::default() })
    });
    let series = Series::by_name(points);
    Panel::lines(title, Along::Places(at.iter().map(|&place| text(place)).collect()), places, values).with(series)
}
