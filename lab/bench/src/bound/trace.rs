//! Histories of a kernel: what did the elevator's own tracepoints see, and does the bound hold of that?
//!
//! # Format
//! A first line `mqfq-trace depth=D window_kib=T queues=N` with the D and T that were in force throughout, then what
//! ftrace has, by its `counter` clock, of `mqfq_insert`, `mqfq_dispatch` and `mqfq_complete` (kernel/elevator/trace.h),
//! from before the first request on. Lines of other events are passed over.
//!
//! ```text
//!   fio-312  [001] d..2.  17: mqfq_insert: flow=00000000a1b2c3d4 weight=300 hctx=1 tag=5 bytes=4096 units=0 head=8192
//! ```
//!
//! # How the order is taken
//! A tracepoint stamps the end of a submit, the end of a pick, and a moment before the token goes back, as
//! [`super::threads`] does. Where a pick began is not traced. It was after the last event of its own CPU, and after the
//! last insert or dispatch of its own queue, whose lock it holds: a request counts as waiting until the later of these.
//! So what the history claims is certain, and the bounds are those of threads.

use super::history::History;
use super::judge::Verdict;
use super::limits::Limits;
use super::threads::{Stamps, UNDER_WAY, merge};
use mqfq_sched::policy::{PolicyKind, PolicyOptions, WindowTerms};
use mqfq_sched::vtime::VSpan;
use std::collections::HashMap;

/// Bytes of a unit of the elevator's D.
const UNIT_BYTES: u32 = 4096;

/// A history, and what it is allowed.
pub struct Trace {
    /// Events of the flows.
    pub history: History,
    /// The elevator's D, T and form.
    pub options: PolicyOptions,
    /// Hardware queues of the device.
    pub queues: usize,
}

impl Trace {
    /// The history against its bounds.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.history, &Limits::new(&self.options, &self.history.flows).with_under_way(UNDER_WAY))
    }
}

/// `name=NUMBER` among the words of a line.
fn number(line: &str, name: &str) -> Option<u64> {
    word(line, name)?.parse().ok()
}

fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Insert,
    Dispatch,
    Complete,
}

struct Line<'a> {
    kind: Kind,
    cpu: u64,
    flow: &'a str,
    weight: u16,
    queue: u64,
    tag: u64,
    bytes: u64,
}

fn parse_line(line: &str) -> Option<Line<'_>> {
    let (before, after) = line.split_once(": mqfq_")?;
    let (name, words) = after.split_once(':')?;
    let kind = match name {
        "insert" => Kind::Insert,
        "dispatch" => Kind::Dispatch,
        "complete" => Kind::Complete,
        _ => return None,
    };
    let cpu = before.split('[').nth(1)?.split(']').next()?.parse().ok()?;
    Some(Line {
        kind,
        cpu,
        flow: word(words, "flow")?,
        weight: number(words, "weight")?.try_into().ok()?,
        queue: number(words, "hctx")?,
        tag: number(words, "tag")?,
        bytes: number(words, "bytes")?,
    })
}

/// Flows as they first appear: weight, and the queues where they submit.
#[derive(Default)]
struct Flows<'a> {
    names: HashMap<&'a str, u32>,
    terms: Vec<(u16, Vec<u64>)>,
}

impl<'a> Flows<'a> {
    fn number_of(&mut self, line: &Line<'a>) -> Result<u32, String> {
        let next = self.names.len() as u32;
        let flow = *self.names.entry(line.flow).or_insert(next);
        if flow == next {
            self.terms.push((line.weight, Vec::new()));
        }
        let (weight, queues) = &mut self.terms[flow as usize];
        if *weight != line.weight {
            return Err(format!("flow {} changes its weight, and the bound is of one", line.flow));
        }
        if line.kind == Kind::Insert && !queues.contains(&line.queue) {
            queues.push(line.queue);
        }
        Ok(flow)
    }
}

/// Reads a trace.
///
/// # Errors
/// One sentence, with the line: no first line, a line that contradicts what went before, events that were lost.
pub fn parse(text: &str) -> Result<Trace, String> {
    let head = text.lines().next().unwrap_or_default();
    let of_head = |name| {
        number(head, name).filter(|_| head.starts_with("mqfq-trace ")).ok_or_else(|| {
            format!("line 1 of a trace is `mqfq-trace depth=D window_kib=T queues=N`, and has no number for {name}")
        })
    };
    let (depth, window_kib, queues) = (of_head("depth")?, of_head("window_kib")?, of_head("queues")? as usize);
    let window = VSpan::from_bytes(window_kib << 10);
    let options = PolicyOptions {
        depth: depth.try_into().map_err(|_| format!("D of {depth} units is out of range"))?,
        window,
        token_unit_bytes: Some(UNIT_BYTES),
        ..PolicyOptions::new(PolicyKind::Mqfq)
    };
    let options = options.with_terms(WindowTerms::relaxed(window, queues));
    let mut flows = Flows::default();
    let mut stamps: Vec<Stamps> = Vec::new();
    // For each queue's tag, the request that holds it.
    let mut holders: HashMap<(u64, u64), usize> = HashMap::new();
    // The last event of a CPU, and of a queue's lock.
    let (mut of_cpu, mut of_queue): (HashMap<u64, u64>, HashMap<u64, u64>) = Default::default();
    for (at, text) in text.lines().enumerate().skip(1) {
        let wrong = |what: &str| format!("line {} of the trace: {what}: {}", at + 1, text.trim());
        if text.contains("LOST") {
            return Err(wrong("events were lost"));
        }
        let Some(line) = parse_line(text) else { continue };
        let flow = flows.number_of(&line)?;
        // Room for the beginning of a pick, right after an event.
        let stamp = 2 * at as u64;
        let holder = (line.queue, line.tag);
        match line.kind {
            Kind::Insert => {
                let bytes = line.bytes;
                let request =
                    Stamps { flow, bytes, submitted: stamp, pick_began: None, dispatched: None, completed: None };
                if holders.insert(holder, stamps.len()).is_some() {
                    return Err(wrong("this tag is held already"));
                }
                stamps.push(request);
            }
            Kind::Dispatch => {
                let request = holders.get(&holder).map(|&request| &mut stamps[request]);
                let request = request.filter(|request| request.flow == flow && request.dispatched.is_none());
                let request = request.ok_or_else(|| wrong("nothing that waits has this tag"))?;
                let seen = [of_cpu.get(&line.cpu), of_queue.get(&line.queue)];
                let began = seen.into_iter().flatten().copied().fold(request.submitted, u64::max) + 1;
                // Merging may have made it larger.
                (request.bytes, request.pick_began, request.dispatched) = (line.bytes, Some(began), Some(stamp));
            }
            Kind::Complete => {
                let request = holders.remove(&holder).map(|request| &mut stamps[request]);
                let request = request.filter(|request| request.flow == flow && request.dispatched.is_some());
                request.ok_or_else(|| wrong("nothing on the device has this tag"))?.completed = Some(stamp);
            }
        }
        of_cpu.insert(line.cpu, stamp);
        if line.kind != Kind::Complete {
            of_queue.insert(line.queue, stamp);
        }
    }
    if stamps.is_empty() {
        return Err("the trace has no request".into());
    }
    let terms = flows.terms.iter().map(|(weight, queues)| (*weight, queues.len() as u32));
    Ok(Trace { history: merge(History::new(terms), &[stamps]), options, queues })
}

#[cfg(test)]
mod tests {
    use super::super::history::Event;
    use super::*;

    const HEAD: &str = "mqfq-trace depth=2 window_kib=16 queues=2\n";

    fn event(at: u64, cpu: u64, name: &str, flow: &str, tag: u64, bytes: u64) -> String {
        format!(
            "  fio-9  [00{cpu}] d..2.  {at}: mqfq_{name}: flow={flow} weight=100 hctx={cpu} tag={tag} bytes={bytes} \
             units=1 head=0\n"
        )
    }

    fn trace(events: &[(u64, &str, &str, u64)]) -> String {
        let lines = events.iter().zip(0..).map(|((cpu, name, flow, tag), at)| event(at, *cpu, name, flow, *tag, 4096));
        HEAD.to_owned() + &lines.collect::<String>()
    }

    #[test]
    fn a_request_waits_until_the_last_event_before_its_pick() {
        let text = trace(&[
            (0, "insert", "a", 1),
            (1, "insert", "b", 1),
            (0, "insert", "a", 2),
            (0, "dispatch", "a", 1),
            (1, "dispatch", "b", 1),
            (0, "complete", "a", 1),
            (0, "dispatch", "a", 2),
        ]);
        let dispatched = |flow| Event::Dispatched { flow, bytes: 4096 };
        assert_eq!(
            parse(&text).unwrap().history.events,
            [
                Event::Backlogged { flow: 0 },
                Event::Backlogged { flow: 1 },
                // Its queue's last event was its own insert.
                Event::Drained { flow: 1 },
                dispatched(0),
                dispatched(1),
                Event::Completed { flow: 0, bytes: 4096 },
                // Its CPU's last event was the completion.
                Event::Drained { flow: 0 },
                dispatched(0),
            ]
        );
    }

    #[test]
    fn a_scheduler_that_serves_one_of_two_is_found_out() {
        // Both keep four requests waiting, and a alone is served. The bound of D = 2, T = 16 KiB is below 200 of them.
        let mut events: Vec<(u64, &str, &str, u64)> = (0..4).map(|tag| (1, "insert", "b", tag)).collect();
        events.extend((0..4).map(|tag| (0, "insert", "a", tag)));
        for round in 0..400 {
            events.extend([(0, "dispatch", "a", round % 4), (0, "complete", "a", round % 4)]);
            events.push((0, "insert", "a", round % 4));
        }
        let verdict = parse(&trace(&events)).unwrap().verdict();
        assert_eq!(verdict.broken(), ["the bound on service dispatched", "the tight bound", "Theorem 2"]);
        // Served in turn, the same requests keep it.
        let mut events: Vec<(u64, &str, &str, u64)> = (0..4).map(|tag| (1, "insert", "b", tag)).collect();
        events.extend((0..4).map(|tag| (0, "insert", "a", tag)));
        for round in 0..400 {
            for (cpu, flow) in [(0, "a"), (1, "b")] {
                events.extend([(cpu, "dispatch", flow, round % 4), (cpu, "complete", flow, round % 4)]);
                events.push((cpu, "insert", flow, round % 4));
            }
        }
        let verdict = parse(&trace(&events)).unwrap().verdict();
        assert!(verdict.broken().is_empty() && verdict.intervals > 1000);
    }

    #[test]
    fn what_cannot_have_happened_is_refused_with_its_line() {
        let sentence = |text: &str| parse(text).err().expect("it is wrong");
        assert_eq!(
            sentence("depth=2\n"),
            "line 1 of a trace is `mqfq-trace depth=D window_kib=T queues=N`, and has no number for depth"
        );
        assert_eq!(sentence(HEAD), "the trace has no request");
        assert!(sentence(&trace(&[(0, "dispatch", "a", 1)])).starts_with("line 2 of the trace: nothing that waits"));
        let twice = trace(&[(0, "insert", "a", 1), (0, "insert", "a", 1)]);
        assert!(sentence(&twice).starts_with("line 3 of the trace: this tag is held already"));
        let lost = trace(&[(0, "insert", "a", 1)]) + "CPU:0 [LOST 12 EVENTS]\n";
        assert!(sentence(&lost).starts_with("line 3 of the trace: events were lost"));
    }
}
