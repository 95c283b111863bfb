//! A recorded trace as a file that trace viewers open: Chrome's Trace Event Format, which Perfetto (ui.perfetto.dev)
//! and chrome://tracing read.
//!
//! Source: "Trace Event Format" (the Chromium project's document), sections "Async Events", "Instant Events", "Metadata
//! Events".
//!
//! | in the viewer | is |
//! |---|---|
//! | a process per tenant and device | the tenant's requests there |
//! | an async slice, `read 4096` | a request from submission to completion; its arguments tell the rest |
//! | in it a slice `queued`, then a slice `device` | staged in the policy; on the device |
//! | a process per device, a thread per worker | what held the worker back, as instants |
//!
//! Requests overlap in any number, so they are async slices, each with an identifier of its own, and not slices of a
//! thread.

use crate::files;
use mqfq_blk::request::Op;
use mqfq_blk::trace::{Trace, TraceRecord};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Names of a device and its tenants.
#[derive(Clone)]
pub struct TracedDevice {
    /// Name of the device.
    pub name: String,
    /// Names of its tenants, by flow.
    pub tenants: Vec<String>,
}

/// Counts of what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Requests in the file.
    pub requests: u64,
    /// Requests that were recorded and overwritten by later ones.
    pub lost: u64,
}

/// An event of the format. Times are in microseconds.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    name: &'a str,
    pid: u64,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// Scope of an instant: it belongs to its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name {
        name: &'a str,
    },
    Request {
        worker: usize,
        client: u32,
        offset_bytes: u64,
        length_bytes: u32,
        fua: bool,
        tag: Option<u16>,
        status: &'a str,
    },
}

/// Writes events as elements of one array.
struct Out<W: Write> {
    out: W,
    is_first: bool,
}

impl<W: Write> Out<W> {
    fn write_event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }

    fn name(&mut self, what: &'static str, pid: u64, tid: u64, name: &str) -> io::Result<()> {
        let args = Some(Args::Name { name });
        self.write_event(&Event { ph: "M", name: what, pid, tid, ts: None, cat: None, id: None, s: None, args })
    }
}

/// Writes `traces`, by worker and then by device, to `path`. `end_ns` is when the recording ended: requests that were
/// under way go up to there.
///
/// # Errors
/// The file cannot be written, or is not a regular one: why, in words.
pub fn write(path: &Path, devices: &[TracedDevice], traces: &[Vec<Trace>], end_ns: u64) -> Result<Written, String> {
    let mut out = Out { out: BufWriter::new(files::create(path)?), is_first: true };
    let written = write_to(&mut out, devices, traces, end_ns);
    written.and_then(|written| out.out.flush().map(|()| written)).map_err(|error| mqfq_report::plain(&error))
}

fn write_to<W: Write>(
    out: &mut Out<W>,
    devices: &[TracedDevice],
    traces: &[Vec<Trace>],
    end_ns: u64,
) -> io::Result<Written> {
    out.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut written = Written::default();
    let mut next_pid = 1;
    // An unused index or place is without a name.
    for (index, device) in devices.iter().enumerate().filter(|(_, device)| !device.name.is_empty()) {
        let device_pid = next_pid;
        out.name("process_name", device_pid, 0, &format!("device {}", device.name))?;
        for (flow, tenant) in device.tenants.iter().enumerate().filter(|(_, tenant)| !tenant.is_empty()) {
            out.name("process_name", device_pid + 1 + flow as u64, 0, &format!("tenant {tenant} on {}", device.name))?;
        }
        next_pid += 1 + device.tenants.len() as u64;
        for (worker, traces) in traces.iter().enumerate() {
            let Some(trace) = traces.get(index) else { continue };
            let tid = worker as u64 + 1;
            out.name("thread_name", device_pid, tid, &format!("worker {worker}"))?;
            for mark in &trace.marks {
                let (name, ts) = (mark.event.name(), Some(us(mark.at_ns)));
                out.write_event(&Event {
                    ph: "i",
                    name,
                    pid: device_pid,
                    tid,
                    ts,
                    cat: None,
                    id: None,
                    s: Some("t"),
                    args: None,
                })?;
            }
            for record in &trace.records {
                written.requests += 1;
                let pid = device_pid + 1 + u64::from(record.flow.0);
                request(out, record, worker, (pid, tid), written.requests, end_ns)?;
            }
            written.lost += trace.records_lost;
        }
    }
    out.out.write_all(b"\n]}\n")?;
    Ok(written)
}

/// Writes a request's slice and, inside it, those of its steps.
fn request<W: Write>(
    out: &mut Out<W>,
    record: &TraceRecord,
    worker: usize,
    (pid, tid): (u64, u64),
    id: u64,
    end_ns: u64,
) -> io::Result<()> {
    let status = record.completed.map_or("under way".to_owned(), |(_, status)| status.to_string());
    let completed_ns = record.completed.map_or(end_ns, |(at_ns, _)| at_ns).max(record.submitted_ns);
    let args = Args::Request {
        worker,
        client: record.owner.0,
        offset_bytes: record.offset_bytes,
        length_bytes: record.length_bytes,
        fua: record.fua,
        tag: record.tag.map(|tag| tag.0),
        status: &status,
    };
    let name = match record.op {
        Op::Read => format!("read {}", record.length_bytes),
        Op::Write => format!("write {}", record.length_bytes),
        Op::Flush => "flush".to_owned(),
        Op::Discard => format!("discard {}", record.length_bytes),
        Op::WriteZeroes { .. } => format!("write zeroes {}", record.length_bytes),
        Op::FastZeroes { .. } => format!("fast zeroes {}", record.length_bytes),
        Op::Extents => format!("extents {}", record.length_bytes),
    };
    let mut slice = |ph, name: &str, at_ns, args| {
        let (cat, id, ts) = (Some("request"), Some(id), Some(us(at_ns)));
        out.write_event(&Event { ph, name, pid, tid, ts, cat, id, s: None, args })
    };
    slice("b", &name, record.submitted_ns, Some(args))?;
    let left_ns = record.dispatched_ns.unwrap_or(completed_ns);
    slice("b", "queued", record.submitted_ns, None)?;
    slice("e", "queued", left_ns, None)?;
    if let Some(dispatched_ns) = record.dispatched_ns {
        slice("b", "device", dispatched_ns, None)?;
        slice("e", "device", completed_ns, None)?;
    }
    slice("e", &name, completed_ns, None)
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::FlowId;
    use mqfq_blk::request::Status;
    use mqfq_blk::table::Owner;
    use mqfq_blk::tag::Tag;
    use mqfq_blk::trace::{TraceEvent, TraceMark};

    #[test]
    fn a_request_is_a_slice_with_its_steps_inside() {
        let record = TraceRecord {
            owner: Owner(3),
            flow: FlowId(1),
            op: Op::Write,
            fua: true,
            offset_bytes: 8192,
            length_bytes: 512,
            submitted_ns: 1_000,
            dispatched_ns: Some(2_500),
            tag: Some(Tag(9)),
            completed: Some((4_000, Status::Io)),
        };
        let staged = TraceRecord { dispatched_ns: None, tag: None, completed: None, ..record };
        let marks = vec![TraceMark { at_ns: 1_500, event: TraceEvent::Throttled }];
        let trace = Trace { records: vec![record, staged], records_lost: 4, marks, marks_lost: 0 };
        let devices = [TracedDevice { name: "fast".into(), tenants: vec!["alice".into(), "bob".into()] }];
        let mut out = Out { out: Vec::new(), is_first: true };
        let written = write_to(&mut out, &devices, &[vec![Trace::default()], vec![trace]], 9_000).unwrap();
        assert_eq!(written, Written { requests: 2, lost: 4 });
        let json: serde_json::Value = serde_json::from_slice(&out.out).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let named: Vec<_> =
            events.iter().filter(|event| event["ph"] == "M").map(|event| &event["args"]["name"]).collect();
        assert_eq!(named, ["device fast", "tenant alice on fast", "tenant bob on fast", "worker 0", "worker 1"]);
        let of = |id: u64| {
            let of_id = events.iter().filter(move |event| event["id"] == id);
            of_id.map(|e| format!("{} {} {} pid {} tid {}", e["ph"], e["name"], e["ts"], e["pid"], e["tid"])).collect()
        };
        let whole: Vec<String> = of(1);
        let expected = [
            "\"b\" \"write 512\" 1.0",
            "\"b\" \"queued\" 1.0",
            "\"e\" \"queued\" 2.5",
            "\"b\" \"device\" 2.5",
            "\"e\" \"device\" 4.0",
            "\"e\" \"write 512\" 4.0",
        ];
        assert_eq!(whole, expected.map(|event| format!("{event} pid 3 tid 2")));
        // Under way and staged: to the end of the recording, without a slice on the device.
        let staged: Vec<String> = of(2);
        let ends: Vec<&String> = staged.iter().filter(|event| event.starts_with("\"e\"")).collect();
        assert!(staged.len() == 4 && ends.iter().all(|event| event.contains(" 9.0 ")), "{staged:?}");
        let args = &events.iter().find(|event| event["id"] == 1).unwrap()["args"];
        assert_eq!(args["status"], "I/O error");
        assert_eq!((&args["tag"], &args["offset_bytes"], &args["worker"]), (&9.into(), &8192.into(), &1.into()));
        let mark = events.iter().find(|event| event["ph"] == "i").unwrap();
        assert_eq!((&mark["name"], &mark["pid"], &mark["tid"]), (&"throttled".into(), &1.into(), &2.into()));
    }
}
