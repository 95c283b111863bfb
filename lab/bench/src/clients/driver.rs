//! The clients: virtio-driver for vhost-user-blk; for NBD fio's engine, and our own client.
//!
//! NBD has both, because each can be the bottleneck: fio spends more CPU per request than the servers do, and our own
//! client was written by the same people as one of the servers. A difference that only one of them sees is not a
//! difference.

use super::server::Front;
use super::virtio::Guest;
use crate::fio;
use mqfq_demo::load::{Load, Window};
use mqfq_demo::load_nbd::NbdTenant;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Size of every request.
pub const REQUEST_BYTES: u32 = 4096;

/// A client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Driver {
    /// virtio-driver: one thread for all queues.
    Virtio,
    /// Ours: one thread for all connections.
    Own,
    /// fio: one thread per connection.
    Fio,
}

/// Results of one run of a driver.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// Requests in the measured part.
    pub requests: u64,
    /// Requests in the whole run, warm-up included: what the server's CPU time is divided by.
    pub requests_in_all: u64,
    /// Requests per second.
    pub iops: f64,
    /// 99th percentile of request to completion.
    pub p99_ns: u64,
}

/// Task of a driver.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Task<'a> {
    /// Where the server listens.
    pub socket: &'a Path,
    /// Name of the export.
    pub export: &'a str,
    /// Queues, or connections.
    pub queues: u16,
    /// Requests in flight on each.
    pub depth: u16,
    /// Length of the measured part.
    pub measured_ms: u64,
}

/// Before anything is counted: enough for caches, branch predictors and a core's clock.
pub const WARM_UP_MS: u64 = 200;

impl Driver {
    /// Its name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Virtio => "virtio-driver",
            Driver::Own => "own",
            Driver::Fio => "fio",
        }
    }

    /// Installed drivers of a front end.
    pub fn of(front: Front) -> Vec<Driver> {
        let all = if front == Front::Nbd { vec![Driver::Own, Driver::Fio] } else { vec![Driver::Virtio] };
        all.into_iter().filter(|driver| driver.is_there()).collect()
    }

    /// It is installed, and knows what it is to drive.
    pub fn is_there(self) -> bool {
        self != Driver::Fio || fio::has_engine("nbd")
    }

    /// Runs 4 KiB random reads.
    ///
    /// # Errors
    /// One sentence.
    pub fn run(self, task: &Task<'_>) -> Result<Seen, String> {
        match self {
            Driver::Virtio => Guest::attach(task.socket, task.queues, task.depth)?.read(task.measured_ms),
            Driver::Own => run_own(task),
            Driver::Fio => run_fio(task),
        }
    }
}

fn run_own(task: &Task<'_>) -> Result<Seen, String> {
    let load = Load::random_reads(task.queues, task.depth, REQUEST_BYTES);
    let mut tenant = NbdTenant::attach(task.socket, task.export, &load)?;
    let counted = tenant.run(Instant::now(), Window::from_ms(WARM_UP_MS, task.measured_ms))?;
    tenant.detach();
    if counted.errors > 0 {
        return Err(format!("the server failed {} reads", counted.errors));
    }
    Ok(Seen {
        requests: counted.requests,
        requests_in_all: counted.series_bytes.iter().sum::<u64>() / u64::from(REQUEST_BYTES),
        iops: counted.requests_per_s(),
        p99_ns: counted.p99_ns(),
    })
}

fn run_fio(task: &Task<'_>) -> Result<Seen, String> {
    // fio counts the ramp's requests nowhere, so there is no ramp: start-up is in its figures, and in the CPU time.
    let mut command = Command::new("fio");
    command
        .args(["--name=nbd", "--ioengine=nbd", "--rw=randread", "--norandommap", "--randrepeat=0", "--thread"])
        .arg(format!("--uri=nbd+unix:///{}?socket={}", task.export, task.socket.display()))
        .arg(format!("--bs={REQUEST_BYTES}"))
        .arg(format!("--iodepth={}", task.depth))
        .arg(format!("--numjobs={}", task.queues))
        .args(["--time_based", "--group_reporting", "--output-format=json"])
        .arg(format!("--runtime={}ms", WARM_UP_MS + task.measured_ms));
    parse_fio(&fio::run(&mut command)?)
}

fn parse_fio(text: &str) -> Result<Seen, String> {
    let job = fio::first_job(text)?;
    let read = &job["read"];
    let requests = fio::number(read, "total_ios")? as u64;
    Ok(Seen {
        requests,
        requests_in_all: requests,
        iops: fio::number(read, "iops")?,
        p99_ns: fio::number(&read["clat_ns"]["percentile"], "99.000000")? as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_read_past_its_advice() {
        let text = r#"fio: this platform does not support ...
            { "fio version": "fio-3.33", "jobs": [ { "error": 0, "read": { "total_ios": 1000, "iops": 500.5,
              "clat_ns": { "percentile": { "99.000000": 73000 } } } } ] }"#;
        let seen = Seen { requests: 1000, requests_in_all: 1000, iops: 500.5, p99_ns: 73_000 };
        assert_eq!(parse_fio(text), Ok(seen));
    }

    #[test]
    fn a_failed_job_is_not_a_number() {
        let text = r#"{ "jobs": [ { "error": 5, "read": {} } ] }"#;
        assert_eq!(parse_fio(text), Err("fio's job failed with error 5".to_string()));
        assert!(parse_fio("").unwrap_err().contains("not JSON"));
    }
}
