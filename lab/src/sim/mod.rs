//! `mqfq-lab sim`: figures and scenarios through the simulator.
//!
//! The simulator is one function of a scenario. This module adds files, threads, clocks and tables. Many scenarios are
//! run at once, each on one thread; how many at once changes the time that it takes and nothing else.

mod figure;
mod html;
mod input;
mod list;
mod output;
mod programs;
mod report;
mod run;
#[cfg(test)]
mod tests;
mod trace;

pub use figure::{FigureOptions, figure};
pub use list::list;
pub use report::{ReportOptions, report};
pub use run::{RunOptions, run};
pub use trace::{TraceOptions, trace};
