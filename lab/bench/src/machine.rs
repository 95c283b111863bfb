//! What a record says about where it was made.

use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

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
    fn the_processor_is_read_from_the_kernels_text() {
        assert_eq!(model_name("vendor\t: x\nmodel name\t: Fast CPU\n"), Some("Fast CPU".to_string()));
    }
}
