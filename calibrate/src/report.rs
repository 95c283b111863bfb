//! The tables, the picture and the config as text.

use crate::finding::{Charge, Finding, Profile, Terms};
use crate::sweep::{Curve, Kind, Point};
use mqfq_report::panel::{self, Along, Panel, Series};
use mqfq_report::table::{Align, Table, mb_per_s};
use serde::Serialize;
use std::fmt::Write;

/// The command's one object of JSON.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Measured device, as the user named it.
    pub target: String,
    /// The clock was made up: the device is a model.
    pub virtual_time: bool,
    /// How long the command took, in wall time.
    pub elapsed_s: f64,
    /// Result of the measurement.
    #[serde(flatten)]
    pub finding: Finding,
    /// Text for the config file.
    pub config: String,
    /// Path of the picture.
    pub svg_path: String,
}

/// Microseconds with as many decimals as say something.
fn us(ns: f64) -> String {
    let us = ns / 1000.0;
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

/// A size in the unit in which sizes of requests are told.
fn size(bytes: u32) -> String {
    format!("{} KiB", bytes >> 10)
}

/// Table of the results by kind and size.
pub fn points(curves: &[Curve]) -> Table {
    let mut table = Table::new(&[
        ("requests", Align::Left),
        ("size", Align::Right),
        ("alone us", Align::Right),
        ("p99 us", Align::Right),
        ("knee", Align::Right),
        ("us there", Align::Right),
        ("MB/s there", Align::Right),
        ("best MB/s", Align::Right),
        ("at depth", Align::Right),
        ("requests/s", Align::Right),
    ]);
    for curve in curves {
        let (alone, best) = (curve.alone(), curve.best());
        let of_knee = |text: fn(&Point) -> String| curve.knee().map_or("-".to_string(), text);
        table.row(vec![
            curve.kind.name().to_string(),
            size(curve.request_bytes),
            us(alone.mean_ns),
            us(alone.p99_ns as f64),
            of_knee(|knee| knee.depth.to_string()),
            of_knee(|knee| us(knee.mean_ns)),
            of_knee(|knee| mb_per_s(knee.bytes_per_s)),
            mb_per_s(best.bytes_per_s),
            best.depth.to_string(),
            format!("{:.0}", best.requests_per_s),
        ]);
    }
    table
}

/// Table of the time that a request takes on the full device, by kind.
pub fn terms(terms: &[Terms]) -> Table {
    let mut table = Table::new(&[
        ("requests", Align::Left),
        ("ns per request", Align::Right),
        ("ns per KiB", Align::Right),
        ("which is MB/s", Align::Right),
        ("farthest off the line", Align::Right),
    ]);
    for Terms { kind, line } in terms {
        let bandwidth = if line.per_byte_ns > 0.0 { mb_per_s(1e9 / line.per_byte_ns) } else { "-".to_string() };
        table.row(vec![
            kind.name().to_string(),
            format!("{:.0}", line.per_request_ns),
            format!("{:.1}", line.per_byte_ns * 1024.0),
            bandwidth,
            format!("{:.1}%", line.residual_share * 100.0),
        ]);
    }
    table
}

/// `name` as a key of TOML: bare, or in quotes.
fn key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !name.is_empty() && name.bytes().all(is_bare) {
        return name.to_string();
    }
    let mut quoted = String::from("\"");
    for letter in name.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(letter)),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// The sections of a device called `name`.
pub fn config(name: &str, finding: &Finding) -> String {
    let name = key(name);
    let mut text = String::new();
    if let Some(read) = finding.read {
        let line = |op: &str, Charge { base_bytes, per_byte }: Charge| {
            format!("{op} = {{ base = {base_bytes}, per-byte = {per_byte} }}\n")
        };
        text += &format!("[device.{name}.cost]\n{}", line("read", read));
        match finding.write {
            Some(write) => text += &line("write", write),
            None if finding.profile.write_latency_ns.is_none() => text += "# no term for writes: not measured\n",
            None => text += "# no term for writes: their time does not follow their size\n",
        }
        text.push('\n');
    }
    let Profile { knee_units, knee_requests, latency_ns, bandwidth_bytes_per_s, .. } = finding.profile;
    text += &format!("[device.{name}.profile]\nknee = {knee_units}\nknee-requests = {knee_requests}\n");
    text += &format!("latency = \"{latency_ns}ns\"\nbandwidth = {bandwidth_bytes_per_s}\n");
    if let Some(ns) = finding.profile.write_latency_ns {
        text += &format!("write-latency = \"{ns}ns\"\n");
    }
    if let Some(bytes_per_s) = finding.profile.write_bandwidth_bytes_per_s {
        text += &format!("write-bandwidth = {bytes_per_s}\n");
    }
    text
}

/// Throughput and latency over depth, a curve for each size, and one through their knees.
///
/// # Errors
/// One sentence, if the drawing library fails (it cannot, short of a bug).
pub fn picture(target: &str, curves: &[Curve]) -> Result<String, String> {
    let panels = [Kind::RandomRead, Kind::RandomWrite].into_iter().flat_map(|kind| {
        let of_kind: Vec<&Curve> = curves.iter().filter(|curve| curve.kind == kind).collect();
        let throughput = panel(kind, "throughput", "MB/s", &of_kind, |point| point.bytes_per_s / 1e6);
        let latency = panel(kind, "time of a request, mean", "us", &of_kind, |point| point.mean_ns / 1e3);
        [throughput, Panel { log_y: true, ..latency }]
    });
    let panels: Vec<Panel> = panels.filter(|panel| !panel.series.is_empty()).collect();
    panel::render(&format!("{target}: throughput and latency over depth"), &panels)
}

fn panel(kind: Kind, what: &str, unit: &str, curves: &[&Curve], y: fn(&Point) -> f64) -> Panel {
    let at = |point: &Point| (f64::from(point.depth).log2(), y(point));
    let mut series: Vec<Series> = curves
        .iter()
        .enumerate()
        .map(|(number, curve)| Series::new(size(curve.request_bytes), number, curve.points.iter().map(at)))
        .collect();
    if !series.is_empty() {
        let knees = curves.iter().filter_map(|curve| curve.knee()).map(at);
        series.push(Series { dashed: true, ..Series::new("the knees", series.len(), knees) });
    }
    let title = format!("{}: {what}", kind.name());
    Panel::lines(title, Along::Doubling, "requests in flight", unit).with(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_bare_key_is_quoted() {
        assert_eq!(key("nvme0n1"), "nvme0n1");
        assert_eq!(key("fast disk"), "\"fast disk\"");
        assert_eq!(key("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
        assert_eq!(key(""), "\"\"");
    }

    #[test]
    fn times_have_the_digits_that_say_something() {
        assert_eq!([us(9_810.0), us(102_171.0)], ["9.81", "102.2"]);
    }
}
