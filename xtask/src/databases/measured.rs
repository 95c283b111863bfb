//! One measurement, and whether the machine's cores let it count.

use super::postgres::Statements;
use serde_json::{Value, json};
use std::fs::read_to_string;

/// Seconds since 1970 between which statements count.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// The first that counts.
    pub from_s: f64,
    /// The first that no longer counts.
    pub to_s: f64,
}

impl Window {
    /// Whether a time lies in it.
    pub fn has(self, at_s: f64) -> bool {
        (self.from_s..self.to_s).contains(&at_s)
    }

    /// Its length, seconds.
    pub fn length_s(self) -> f64 {
        self.to_s - self.from_s
    }
}

/// The value that this part of all does not exceed, by nearest rank; 0 of none. Sorts them.
pub fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * part).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Part of the time of all cores that is idle, below which the cores were the limit.
const IDLE_MIN: f64 = 0.1;

/// Part of their time that the server's workers wait for a core, above which other programs disturb the figures.
const WAITED_MAX: f64 = 0.1;

/// Readings of the kernel's clocks.
pub struct Clocks {
    /// Ticks of all cores: idle, and all.
    ticks: [f64; 2],
    /// Time that the server's threads worked, and that they waited for a core, ns.
    threads_ns: [f64; 2],
}

/// Use of the cores during a measurement, as parts of time.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Cores {
    /// All cores of the machine: idle.
    pub idle: f64,
    /// The server's workers: at work.
    pub worked: f64,
    /// The server's workers: ready to work, and waiting for a core.
    pub waited: f64,
}

impl Clocks {
    /// A reading now, for the server of that number.
    pub fn now(server_pid: u32) -> Clocks {
        let tasks = std::fs::read_dir(format!("/proc/{server_pid}/task")).into_iter().flatten().flatten();
        let mut threads_ns = [0.0; 2];
        for task in tasks {
            let stat = read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let times = stat.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
            threads_ns.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        }
        Clocks { ticks: ticks(&read_to_string("/proc/stat").unwrap_or_default()), threads_ns }
    }

    /// Use since then, of a server with so many workers.
    pub fn since(&self, then: &Clocks, seconds: f64, workers: usize) -> Cores {
        let [idle, all] = [0, 1].map(|at| self.ticks[at] - then.ticks[at]);
        let threads_ns = [0, 1].map(|at| self.threads_ns[at] - then.threads_ns[at]);
        let [worked, waited] = threads_ns.map(|ns| ns * 1e-9 / (seconds * workers as f64));
        Cores { idle: idle / all.max(1.0), worked, waited }
    }
}

/// Idle ticks and all ticks of the first line of `/proc/stat`. A core that waits for a drive is idle.
fn ticks(stat: &str) -> [f64; 2] {
    let line = stat.lines().next().unwrap_or_default();
    let numbers: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    [numbers.iter().skip(3).take(2).sum(), numbers.iter().sum()]
}

impl Cores {
    /// Why a measurement does not count. `None`: it does.
    pub fn fault(self) -> Option<String> {
        let percent = |part: f64| format!("{:.0}%", part * 100.0);
        if self.idle < IDLE_MIN {
            let (idle, min) = (percent(self.idle), percent(IDLE_MIN));
            return Some(format!("the cores were the limit: {idle} of their time was idle, at least {min} is needed"));
        }
        if self.waited > WAITED_MAX {
            let (waited, max) = (percent(self.waited), percent(WAITED_MAX));
            return Some(format!("the server waited {waited} of the time for a core, at most {max} is allowed"));
        }
        None
    }
}

/// The drive's D and T, as the server found them.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Found {
    /// D in force, units of 4 KiB.
    pub depth: Option<u64>,
    /// T in force, bytes at the default weight.
    pub window_bytes: Option<u64>,
    /// The server's sentence on both.
    pub sentence: String,
}

impl Found {
    /// Those in the counters of a device.
    pub fn of(device: &Value) -> Found {
        let found = &device["in_force"];
        Found {
            depth: found["depth"]["units_now"].as_u64(),
            window_bytes: found["window"]["bytes"].as_u64(),
            sentence: found["sentence"].as_str().unwrap_or_default().into(),
        }
    }
}

/// Commands that the drive got so far.
pub fn dispatched(device: &Value) -> f64 {
    let queues = device["hctxs"].as_array().into_iter().flatten();
    queues.filter_map(|queue| queue["dispatched"].as_f64()).sum()
}

/// Bytes that a tenant read and wrote so far.
pub fn served_bytes(device: &Value, tenant: &str) -> f64 {
    let tenants = device["tenants"].as_array();
    let found = tenants.into_iter().flatten().find(|it| it["name"] == tenant);
    let bytes = |operation: &str| found.map_or(0.0, |it| it["operations"][operation]["bytes"].as_f64().unwrap_or(0.0));
    bytes("read") + bytes("write")
}

/// One measurement.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Sample {
    /// Round, from 1 on.
    pub round: u32,
    /// Name of the scene.
    pub scene: &'static str,
    /// `none`, `mqfq` or `goal`.
    pub setting: &'static str,
    /// Statements of the database.
    pub statements: Statements,
    /// MB/s of the neighbour.
    pub bulk_mb_per_s: Option<f64>,
    /// Part of the bytes of two databases that the first one had.
    pub share: Option<f64>,
    /// D and T at the end.
    pub found: Found,
    /// The server's verdict on the database.
    pub why: String,
    /// Use of the cores.
    pub cores: Cores,
    /// CPU time of the server for each command of the drive, us.
    pub cpu_us: f64,
    /// Load of the machine at the end, over a minute.
    pub load: f64,
}

impl Sample {
    /// As JSON, with the reason why it does not count.
    pub fn json(&self) -> Value {
        let Statements { per_s, read_ms, commit_ms } = self.statements;
        json!({
            "round": self.round, "scene": self.scene, "setting": self.setting, "per_s": per_s,
            "read_p50_ms": read_ms[0], "read_p99_ms": read_ms[1],
            "commit_p50_ms": commit_ms[0], "commit_p99_ms": commit_ms[1],
            "bulk_mb_per_s": self.bulk_mb_per_s, "share": self.share,
            "depth_units": self.found.depth, "window_bytes": self.found.window_bytes, "found": self.found.sentence,
            "why": self.why, "cores_idle": self.cores.idle, "server_worked": self.cores.worked, "server_waited": self.cores.waited,
            "server_us_per_command": self.cpu_us, "load": self.load,
            "left_out": self.cores.fault(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(
            [0.0, 0.2, 0.21, 0.5, 0.99, 1.0].map(|part| percentile(&mut values, part)),
            [1., 1., 2., 3., 5., 5.]
        );
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn idle_time_is_that_of_all_cores_with_waits_for_drives() {
        let stat = "cpu  10 20 30 400 50 6 7 8 1000 1000\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
        assert_eq!(ticks(stat), [450.0, 531.0]);
        let clocks = |idle, all, threads_ns| Clocks { ticks: [idle, all], threads_ns };
        let cores = clocks(450.0, 600.0, [9e9, 3e9]).since(&clocks(400.0, 400.0, [4e9, 1e9]), 10.0, 2);
        assert_eq!(cores, Cores { idle: 0.25, worked: 0.25, waited: 0.1 });
    }

    #[test]
    fn a_measurement_counts_where_cores_were_left() {
        let fault = |idle, waited| Cores { idle, worked: 0.5, waited }.fault();
        assert_eq!([fault(0.1, 0.1), fault(1.0, 0.0)], [None, None]);
        assert!(fault(0.09, 0.0).unwrap().starts_with("the cores were the limit: 9% of"));
        assert!(fault(0.5, 0.11).unwrap().starts_with("the server waited 11% of"));
    }

    #[test]
    fn depth_window_and_bytes_are_read_from_the_counters() {
        let device = json!({
            "in_force": { "depth": { "units": 161, "units_now": 97 }, "window": { "bytes": 65536 }, "sentence": "D 161" },
            "hctxs": [{ "dispatched": 5 }, { "dispatched": 6 }],
            "tenants": [{ "name": "db", "operations": { "read": { "bytes": 3 }, "write": { "bytes": 4 } } }],
        });
        let found = Found { depth: Some(97), window_bytes: Some(65536), sentence: "D 161".into() };
        assert_eq!(Found::of(&device), found);
        assert_eq!(Found::of(&json!({ "in_force": null })), Found::default());
        assert_eq!([served_bytes(&device, "db"), served_bytes(&device, "other")], [7.0, 0.0]);
        assert_eq!(dispatched(&device), 11.0);
    }
}
