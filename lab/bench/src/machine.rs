//! Description of the machine that made a record.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The machine and its tools.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Name under which its records are kept.
    pub host: String,
    /// Processor, as the kernel names it.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// First line of each tool's `--version`; missing tools are left out.
    pub tools: Vec<String>,
}

impl Machine {
    /// This machine, with the versions of `tools`, under the name `host` or its own.
    pub fn this(host: Option<&str>, tools: &[&str]) -> Machine {
        let uname = rustix::system::uname();
        let own_name = uname.nodename().to_string_lossy().into_owned();
        Machine {
            host: safe_name(host.unwrap_or(&own_name)),
            cpu: std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model_name(&text)).unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname.release().to_string_lossy().into_owned(),
            tools: tools.iter().filter_map(|tool| version(tool)).collect(),
        }
    }
}

/// The product's binary, which cargo puts beside the laboratory's.
///
/// # Errors
/// One sentence: it is not there.
pub fn product() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let product = own.with_file_name("mqfq");
    let missing = || format!("there is no {}, `cargo build --release` builds it", product.display());
    if product.is_file() { Ok(product) } else { Err(missing()) }
}

/// A program given by its path is there, or one given by its name is found.
pub fn has_program(program: &Path) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    // Some tools are root's.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    match program.components().count() {
        1 => std::env::split_paths(&folders).chain(more).any(|folder| folder.join(program).is_file()),
        _ => program.exists(),
    }
}

/// Stdout of a command.
///
/// # Errors
/// The command, and what it said: it does not start, or fails.
pub fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("{command:?}: {} {}", text(&output.stdout), text(&output.stderr)))
}

/// Descriptors of a process, and the KiB that this line of its status has: the fewest of so many looks, because a
/// connection may just be closing.
///
/// # Errors
/// One sentence: it is gone.
pub fn holds(process: u32, memory: &str, looks: usize) -> Result<(usize, u64), String> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut least = (usize::MAX, u64::MAX);
    for _ in 0..looks {
        std::thread::park_timeout(Duration::from_millis(100));
        let status = std::fs::read_to_string(folder.join("status")).map_err(failed)?;
        let line = status.lines().find_map(|line| line.strip_prefix(memory)).unwrap_or("0 kB");
        let kib = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        let descriptors = std::fs::read_dir(folder.join("fd")).map_err(failed)?.count();
        least = (least.0.min(descriptors), least.1.min(kib));
    }
    Ok(least)
}

/// Today in UTC, as `YYYY-MM-DD`.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date((seconds / 86_400) as i64)
}

/// The date `days` after 1970-01-01, in the Gregorian calendar.
fn date(days: i64) -> String {
    // Years of 365.2425 days that begin in March, so that the leap day comes last (Hinnant, "chrono-compatible
    // low-level date algorithms").
    let from_march_0000 = days + 719_468;
    let era = from_march_0000.div_euclid(146_097);
    let day_of_era = from_march_0000.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn version(tool: &str) -> Option<String> {
    let output = Command::new(tool).arg("--version").stdin(Stdio::null()).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_string)
}

fn model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Only what is safe as a folder's name.
fn safe_name(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    match name.trim_start_matches('.') {
        "" => "unnamed".into(),
        name => name.into(),
    }
}

/// CPU time of all threads of this process so far, user and system.
pub fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_know_leap_years() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29", "30 years of 365 days, 7 leap days, 31 + 28");
        assert_eq!(date(11_017), "2000-03-01");
        assert_eq!(date(47_540), "2100-02-28");
        assert_eq!(date(47_541), "2100-03-01", "2100 is no leap year");
    }

    #[test]
    fn a_host_cannot_name_another_folder() {
        assert_eq!(safe_name("../a b"), "-a-b");
        assert_eq!(safe_name(".."), "unnamed");
    }

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let found = ["sh", "/bin/sh", "no-such-program", "/no/such/program"].map(|name| has_program(Path::new(name)));
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn the_processor_is_read_from_the_kernels_text() {
        assert_eq!(model_name("vendor\t: x\nmodel name\t: Fast CPU\n"), Some("Fast CPU".to_string()));
    }
}
