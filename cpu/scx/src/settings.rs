//! How does the scheduler decide? The settings of a file, checked.
//!
//! ```toml
//! by = "cgroup"        # what a program is: "cgroup" or "process"
//! slice = "3ms"
//! min-slice = "0us"
//! lag = "100ms"
//! wait = "20ms"
//! stall = "5s"
//! preempt = true
//! ignore-cpu-max = false
//! ```
//! Each key may be missing. Invariant: a value out of its range is refused, nothing is clamped.

use mqfq_config::{ConfigError, Section, Source};
use std::ops::RangeInclusive;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A program is one of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A cgroup of the cpu controller, with its cpu.weight.
    Cgroup,
    /// A process with all its threads; all weigh the same.
    Process,
}

/// Settings of the scheduler; `docs/use/scx_pmqfq.md` explains them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A program.
    pub by: By,
    /// Longest run of a thread before its siblings have their turn, ns.
    pub slice_ns: u64,
    /// Shortest run of a thread before it can be preempted, ns.
    pub min_slice_ns: u64,
    /// Most that a program may be behind, ns of CPU time.
    pub lag_ns: u64,
    /// A thread that waits for so long is overdue, ns; 0: none ever is.
    pub wait_ns: u64,
    /// A thread that waits for so long has the kernel take the scheduler out, ns.
    pub stall_ns: u64,
    /// A thread that wakes may take a CPU.
    pub preempts: bool,
    /// The scheduler is loaded although a cgroup has an upper limit, which it does not enforce.
    pub ignores_cpu_max: bool,
}

/// Range of `slice`.
pub const SLICE_NS: RangeInclusive<u64> = 100 * US..=100 * MS;
/// Range of `min-slice`.
pub const MIN_SLICE_NS: RangeInclusive<u64> = 0..=100 * MS;
/// Range of `lag`.
pub const LAG_NS: RangeInclusive<u64> = 0..=10_000 * MS;
/// Range of `wait`, beside 0.
pub const WAIT_NS: RangeInclusive<u64> = 5 * MS..=1_000 * MS;
/// Range of `stall`.
pub const STALL_NS: RangeInclusive<u64> = 100 * MS..=30_000 * MS;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            by: By::Cgroup,
            slice_ns: 3 * MS,
            min_slice_ns: 0,
            lag_ns: 100 * MS,
            wait_ns: 20 * MS,
            stall_ns: 5_000 * MS,
            preempts: true,
            ignores_cpu_max: false,
        }
    }
}

impl Settings {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// One sentence: the place, what is wrong there, and what is allowed.
    pub fn read(file: &str, text: &str) -> Result<Settings, String> {
        Settings::parse(file, text).map_err(|error| error.to_string())
    }

    fn parse(file: &str, text: &str) -> Result<Settings, ConfigError> {
        let source = Source::new(file, text);
        let tree = source.parse()?;
        let keys = &["by", "slice", "min-slice", "lag", "wait", "stall", "preempt", "ignore-cpu-max"];
        let root = Section::root(&source, tree.get_ref(), keys)?;
        let mut settings = Settings::default();
        if let Some(entry) = root.get("by") {
            let is_cgroup = entry.choice(&["cgroup", "process"])? == "cgroup";
            settings.by = if is_cgroup { By::Cgroup } else { By::Process };
        }
        for (key, ns, range) in [
            ("slice", &mut settings.slice_ns, SLICE_NS),
            ("min-slice", &mut settings.min_slice_ns, MIN_SLICE_NS),
            ("lag", &mut settings.lag_ns, LAG_NS),
            ("wait", &mut settings.wait_ns, 0..=*WAIT_NS.end()),
            ("stall", &mut settings.stall_ns, STALL_NS),
        ] {
            if let Some(entry) = root.get(key) {
                *ns = entry.duration_ns(range)?;
            }
        }
        for (key, flag) in [("preempt", &mut settings.preempts), ("ignore-cpu-max", &mut settings.ignores_cpu_max)] {
            if let Some(entry) = root.get(key) {
                *flag = entry.flag()?;
            }
        }
        settings.check().map_err(|why| root.place().error(why))?;
        Ok(settings)
    }

    /// # Errors
    /// One sentence: the minimum slice is longer than the slice, or the wait too short.
    pub fn check(&self) -> Result<(), String> {
        if self.wait_ns > 0 && !WAIT_NS.contains(&self.wait_ns) {
            let (wait_ms, least_ms, most_ms) = (self.wait_ns / MS, WAIT_NS.start() / MS, WAIT_NS.end() / MS);
            return Err(format!("a wait of {wait_ms} ms, allowed is 0, or {least_ms} to {most_ms} ms"));
        }
        if self.min_slice_ns > self.slice_ns {
            let (least, most) = (self.min_slice_ns / US, self.slice_ns / US);
            return Err(format!("a minimum slice of {least} us, allowed is at most the slice of {most} us"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_what_it_names_and_leaves_the_rest() {
        let text = "by = \"process\"\nslice = \"5ms\"\nmin-slice = \"250us\"\npreempt = false\nignore-cpu-max = true";
        let read = Settings::read("s.toml", text).unwrap();
        let (slice_ns, min_slice_ns) = (5 * MS, 250 * US);
        let (by, preempts, ignores_cpu_max) = (By::Process, false, true);
        assert_eq!(read, Settings { by, slice_ns, min_slice_ns, preempts, ignores_cpu_max, ..Settings::default() });
        assert_eq!(Settings::read("s.toml", ""), Ok(Settings::default()));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place_and_what_is_allowed() {
        let refusal = |text| Settings::read("s.toml", text).unwrap_err();
        assert!(refusal("\nlag = \"20s\"").starts_with("s.toml:2: lag"), "{}", refusal("\nlag = \"20s\""));
        let unknown = refusal("quantum = \"3ms\"");
        assert!(
            unknown.ends_with("allowed are by, slice, min-slice, lag, wait, stall, preempt, ignore-cpu-max"),
            "{unknown}"
        );
        let short = refusal("wait = \"4ms\"");
        assert!(short.ends_with("a wait of 4 ms, allowed is 0, or 5 to 1000 ms"), "{short}");
        assert_eq!(Settings::read("s.toml", "wait = \"0ms\"").map(|read| read.wait_ns), Ok(0));
        let long = refusal("slice = \"1ms\"\nmin-slice = \"2ms\"");
        assert!(long.ends_with("a minimum slice of 2000 us, allowed is at most the slice of 1000 us"), "{long}");
    }
}
