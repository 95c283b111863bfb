//! fio's io_uring engine on the same file, in several settings.
//!
//! As people start it, fio makes one system call per request. That is a comparison with how fio is used, not with what
//! io_uring can do, so the settings go on to everything that makes fio faster here, and the report compares with
//! whichever was fastest.

use super::{DEPTH, REQUEST_BYTES, Seen, WARM_UP_MS};
use crate::fio;
use std::path::Path;
use std::process::Command;

/// One way to start fio.
#[derive(Debug)]
pub(super) struct Settings {
    /// Its name in the report.
    pub(super) case: &'static str,
    arguments: &'static [&'static str],
}

/// From plain to all that helps.
pub(super) const SETTINGS: [Settings; 3] = [
    Settings { case: "fio io_uring", arguments: &[] },
    Settings { case: "fio io_uring, registered", arguments: &["--fixedbufs=1", "--registerfiles=1"] },
    Settings {
        case: "fio io_uring, batched",
        // 64 requests to a system call, no clock per request, the file registered. Not --fixedbufs: reads of a page
        // are slower with it.
        arguments: &[
            "--registerfiles=1",
            "--iodepth_batch=64",
            "--iodepth_batch_complete_min=64",
            "--iodepth_batch_complete_max=64",
            "--gtod_reduce=1",
        ],
    },
];

/// Runs fio once.
///
/// # Errors
/// One sentence.
pub(super) fn run(settings: &Settings, path: &Path, size_bytes: u64, measured_ms: u64) -> Result<Seen, String> {
    let path = path.to_str().filter(|path| !path.contains([':', '\\']));
    let path = path.ok_or("fio cannot be given a path with a colon, a backslash or bytes that are not text")?;
    let mut command = Command::new("fio");
    command
        .args(["--name=file", "--ioengine=io_uring", "--direct=0", "--rw=randread", "--numjobs=1", "--readonly"])
        // Ours keeps no map of what was read either; and the page cache must stay as it is.
        .args(["--norandommap", "--randrepeat=0", "--invalidate=0", "--allow_file_create=0"])
        .arg(format!("--filename={path}"))
        .arg(format!("--size={size_bytes}"))
        .arg(format!("--bs={REQUEST_BYTES}"))
        .arg(format!("--iodepth={DEPTH}"))
        .arg(format!("--ramp_time={WARM_UP_MS}ms"))
        .arg(format!("--runtime={measured_ms}ms"))
        .args(["--time_based", "--output-format=json"])
        .args(settings.arguments);
    parse(&fio::run(&mut command)?)
}

fn parse(text: &str) -> Result<Seen, String> {
    let job = &fio::first_job(text)?;
    let number = |value: &serde_json::Value, key: &str| {
        value[key].as_f64().ok_or_else(|| format!("fio's output has no number at \"{key}\""))
    };
    let requests_per_s = number(&job["read"], "iops")?;
    if requests_per_s <= 0.0 {
        return Err("fio made no request".into());
    }
    // Shares of the measured time, in percent.
    let busy = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
    Ok(Seen { requests_per_s, cpu_ns_per_request: busy * 1e9 / requests_per_s })
}

/// True if fio is there and has its io_uring engine.
pub(super) fn is_there() -> bool {
    fio::has_engine("io_uring")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_cpu_becomes_time_per_request() {
        let text = r#"fio: advice { "jobs": [ { "error": 0, "usr_cpu": 20.0, "sys_cpu": 60.0, "read": { "iops": 800000.0 } } ] }"#;
        let text = text.replacen("fio: advice {", "fio: advice\n{", 1);
        let seen = parse(&text).unwrap();
        assert_eq!(seen.requests_per_s, 800_000.0);
        assert!((seen.cpu_ns_per_request - 1000.0).abs() < 1e-6, "80% of 1,250 ns");
    }

    #[test]
    fn a_failed_or_empty_job_is_not_a_number() {
        assert_eq!(
            parse(r#"{ "jobs": [ { "error": 22, "read": {} } ] }"#),
            Err("fio's job failed with error 22".to_string())
        );
        let idle = r#"{ "jobs": [ { "error": 0, "usr_cpu": 0, "sys_cpu": 0, "read": { "iops": 0 } } ] }"#;
        assert_eq!(parse(idle), Err("fio made no request".to_string()));
        assert!(parse("").unwrap_err().contains("not JSON"));
    }
}
