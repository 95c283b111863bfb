//! `mqfq-lab sim trace`: where did each program run on a real kernel under `scx_pmqfq`?
//!
//! Source: the events that `scx_pmqfq --trace` records ([`scx_pmqfq::trace`]), drawn by the simulator's timeline.

use mqfq_report::{plain, print_line};
use mqfq_sim::cpu::outcome::Stretch;
use mqfq_sim::cpu::timeline;
use scx_pmqfq::trace::{self, Event, Kind};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Options of `sim trace`.
#[derive(clap::Args, Debug)]
pub struct TraceOptions {
    /// File that `scx_pmqfq --trace` has written.
    pub trace: PathBuf,
    /// The SVG to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// First ms of the picture, from the first event.
    #[arg(long, default_value_t = 0)]
    pub from_ms: u64,
    /// Length of the picture, ms, 1 to 10000.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub length_ms: u64,
    /// Names of the programs, in the order of their CPU time. Others are numbered.
    #[arg(long, value_delimiter = ',')]
    pub names: Vec<String>,
}

/// Draws a trace and says which share each program had in the picture.
///
/// # Errors
/// One sentence: the file is not a trace, or it has nothing in that window.
pub fn trace(options: &TraceOptions, as_json: bool) -> Result<(), String> {
    let path = options.trace.display();
    let bytes = std::fs::read(&options.trace).map_err(|error| format!("{path}: {}", plain(&error)))?;
    let (head, events) = trace::read(&bytes).map_err(|sentence| format!("{path}: {sentence}"))?;
    let first_ns = events.first().map_or(0, |event| event.at_ns);
    let from_ns = first_ns + options.from_ms * 1_000_000;
    let window_ns = (from_ns, from_ns + options.length_ms * 1_000_000);
    let (programs, stretches) = stretches(&events, window_ns);
    if stretches.is_empty() {
        return Err(format!("{path}: nothing runs from {} ms on for {} ms", options.from_ms, options.length_ms));
    }
    let machine_ns = f64::from(head.cpus) * (window_ns.1 - window_ns.0) as f64;
    let name = |at: usize| options.names.get(at).cloned().unwrap_or_else(|| format!("program {at}"));
    let named: Vec<(String, f64)> =
        programs.iter().enumerate().map(|(at, ns)| (name(at), *ns as f64 / machine_ns)).collect();
    let rows: Vec<(&str, f64)> = named.iter().map(|(name, share)| (name.as_str(), *share)).collect();
    let title = format!("{} ms of a kernel under scx_pmqfq", options.length_ms);
    let picture = timeline::draw_stretches(&title, head.cpus, &rows, &stretches, window_ns);
    std::fs::write(&options.out, picture).map_err(|error| format!("{}: {}", options.out.display(), plain(&error)))?;
    if as_json {
        let shares: BTreeMap<&str, f64> = rows.into_iter().collect();
        return print_line(json!({ "stretches": stretches.len(), "share": shares }));
    }
    rows.iter().try_for_each(|(name, share)| print_line(format!("{name}: {:.1}% of the cores", share * 100.0)))
}

/// CPU time of each program in the window, the most first, and the stretches of their threads, numbered in that order.
fn stretches(events: &[Event], window_ns: (u64, u64)) -> (Vec<u64>, Vec<Stretch>) {
    let mut begun: BTreeMap<u16, Event> = BTreeMap::new();
    let mut found: Vec<(u32, Stretch)> = Vec::new();
    for event in events {
        match event.kind {
            Kind::Begin => drop(begun.insert(event.cpu, *event)),
            Kind::End => {
                let Some(begin) = begun.remove(&event.cpu) else { continue };
                let (from_ns, to_ns) = (begin.at_ns.max(window_ns.0), event.at_ns.min(window_ns.1));
                if from_ns < to_ns {
                    let (core, thread) = (event.cpu.into(), begin.pid);
                    found.push((begin.program, Stretch { core, program: 0, thread, from_ns, to_ns }));
                }
            }
            _ => {}
        }
    }
    let mut served: BTreeMap<u32, u64> = BTreeMap::new();
    for (slot, stretch) in &found {
        *served.entry(*slot).or_default() += stretch.to_ns - stretch.from_ns;
    }
    let mut order: Vec<(u64, u32)> = served.into_iter().map(|(slot, ns)| (ns, slot)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let number = |slot: u32| order.iter().position(|(_, other)| *other == slot).unwrap_or(0) as u32;
    let numbered = found.into_iter().map(|(slot, stretch)| Stretch { program: number(slot), ..stretch }).collect();
    (order.into_iter().map(|(ns, _)| ns).collect(), numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_from_a_beginning_to_the_end_on_the_same_cpu_inside_the_window() {
        let event = |kind, at_ns, cpu, program| {
            let (number, tag, other, pid, waiting, writer) = (1, 0, 0, program * 10, 0, cpu);
            Event { number, at_ns, tag, other, program, pid, kind, cpu, waiting, writer, lines: 0, is_pinned: false }
        };
        let events = [
            event(Kind::End, 5, 0, 7),
            event(Kind::Begin, 10, 0, 7),
            event(Kind::Begin, 20, 1, 9),
            event(Kind::End, 30, 0, 7),
            event(Kind::End, 100, 1, 9),
        ];
        let (served, stretches) = stretches(&events, (15, 60));
        assert_eq!(served, [40, 15], "the one with more is first");
        let seen: Vec<_> = stretches.iter().map(|s| (s.core, s.program, s.thread, s.from_ns, s.to_ns)).collect();
        assert_eq!(seen, [(0, 1, 70, 15, 30), (1, 0, 90, 20, 60)]);
    }
}
