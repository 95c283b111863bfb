//! Neighbours of a database: fio over NBD, on an export of their own.

use super::ground::Server;
use crate::run::{command, shown};
use serde_json::Value;
use std::process::{Child, Stdio};

/// A neighbour's load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Neighbour {
    /// 128 KiB reads, 32 at a time.
    Reads,
    /// 128 KiB writes, 32 at a time.
    Writes,
    /// 1 MiB reads one after the other, 4 at a time.
    Backup,
    /// Four writers of 8 KiB, each with a flush after each write.
    Flushes,
}

/// fio at work.
pub struct Load {
    child: Child,
    name: String,
}

impl Neighbour {
    fn options(self) -> &'static [&'static str] {
        match self {
            Neighbour::Reads => &["--rw=randread", "--bs=128k", "--iodepth=32"],
            Neighbour::Writes => &["--rw=randwrite", "--bs=128k", "--iodepth=32"],
            Neighbour::Backup => &["--rw=read", "--bs=1m", "--iodepth=4"],
            Neighbour::Flushes => &["--rw=randwrite", "--bs=8k", "--iodepth=1", "--fsync=1", "--numjobs=4"],
        }
    }

    /// Starts it for `warm_up_s` that do not count and `seconds` that do.
    ///
    /// # Errors
    /// One sentence if fio does not start.
    pub fn start(self, server: &Server, warm_up_s: u32, seconds: u32) -> Result<Load, String> {
        let mut fio = command("fio", ["--name=bulk", "--ioengine=nbd", "--time_based", "--group_reporting"]);
        fio.args(["--size=1g", "--output-format=json"]).args(self.options());
        fio.arg(format!("--uri={}", server.uri("bulk")));
        fio.args([format!("--ramp_time={warm_up_s}"), format!("--runtime={seconds}")]);
        // fio leaves a state file in its folder when it is interrupted.
        fio.current_dir(server.folder.path());
        fio.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let name = shown(&fio);
        let child = fio.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Load { child, name })
    }
}

impl Load {
    /// Waits for its end; MB/s.
    ///
    /// # Errors
    /// One sentence if fio failed.
    pub fn finish(self) -> Result<f64, String> {
        let output = self.child.wait_with_output().map_err(|error| format!("{}: {error}", self.name))?;
        let text = String::from_utf8_lossy(&output.stdout);
        mb_per_s(&text).ok_or_else(|| format!("{}: {} without its figures: {text}", self.name, output.status))
    }
}

/// Both directions together.
fn mb_per_s(text: &str) -> Option<f64> {
    // fio may write a sentence before its report.
    let report: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = &report["jobs"][0];
    let of = |direction: &str| job[direction]["bw_bytes"].as_f64();
    Some((of("read")? + of("write")?) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_both_directions() {
        let text = r#"note: {"jobs": [{"read": {"bw_bytes": 350000000}, "write": {"bw_bytes": 2500000}}]}"#;
        assert_eq!(mb_per_s(&text.replace("note: ", "")), Some(352.5));
        assert_eq!(mb_per_s(text), Some(352.5));
        assert_eq!(mb_per_s("fio: cannot connect"), None);
    }
}
