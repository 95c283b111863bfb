//! The load: on each worker a client with so many reads in flight, which times each by the clock.
//!
//! A completion's own times are those of its worker's turns, and a device that completes at once begins and ends a
//! request within one turn. So the client reads the clock: once per completion, which is also when its next request is
//! made.

use super::load::Setup;
use hdrhistogram::Histogram;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event, MakeClient, Refused};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::worker::clock::Clock;
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions};
use mqfq_blkmq::QueueLayout;
use mqfq_demo::load::Window;
use std::sync::mpsc;
use std::time::Duration;

/// Size of each read: the paper's (section 4.2).
pub const REQUEST_BYTES: u32 = 512;

/// Not counted, ms.
const WARM_UP_MS: u64 = 20;

/// Size of the device: nothing is kept, so it costs nothing.
const DEVICE_BYTES: u64 = 64 << 30;

/// Longest latency told apart, ns.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Commands of a hardware queue, shared or not: enough for every worker's.
const QUEUE_DEPTH: u16 = 16_384;

/// Results of one measurement, all workers together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen {
    /// Completed per second.
    pub iops: f64,
    /// From a request's submission to the call that brings its completion.
    pub mean_ns: f64,
    /// From a request's submission to the call that brings its completion, 99th percentile.
    pub p99_ns: u64,
    /// From a request's submission to the call that brings its completion, the longest.
    pub max_ns: u64,
}

struct Counted {
    requests: u64,
    total_ns: Histogram<u64>,
    errors: u64,
}

struct Reader {
    clock: Clock,
    window: Window,
    depth: u16,
    number: u64,
    start_ns: u64,
    in_flight: u16,
    next_block: u64,
    stopping: bool,
    refused: Vec<Submission>,
    counted: Option<(Counted, mpsc::Sender<Counted>)>,
}

impl Reader {
    fn submit(&mut self, context: &mut dyn Context, buffer: Buffer, now_ns: u64) {
        // A step that visits every block of the device before it comes back.
        self.next_block = (self.next_block + 1_000_003) % (DEVICE_BYTES / u64::from(REQUEST_BYTES));
        let submission = Submission {
            flow: FlowId(0),
            op: Op::Read,
            offset_bytes: self.next_block * u64::from(REQUEST_BYTES),
            length_bytes: REQUEST_BYTES,
            fua: false,
            buffer: Some(buffer),
            cookie: now_ns,
        };
        self.in_flight += 1;
        self.offer(context, submission);
    }

    fn offer(&mut self, context: &mut dyn Context, submission: Submission) {
        if let Err(Refused::TenantFull(submission)) = context.submit(DeviceIndex(0), submission) {
            self.refused.push(submission);
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.in_flight -= self.refused.len() as u16;
        self.refused.clear();
        if self.in_flight == 0
            && let Some((counted, sender)) = self.counted.take()
        {
            // A run whose reader has given up needs no answer.
            drop(sender.send(counted));
        }
    }
}

impl Client for Reader {
    fn start(&mut self, context: &mut dyn Context) {
        self.next_block = self.number * 7919;
        self.start_ns = self.clock.now_ns();
        for _ in 0..self.depth {
            let buffer = Buffer::new(REQUEST_BYTES as usize);
            self.submit(context, buffer, self.start_ns);
        }
    }

    fn event(&mut self, _: &mut dyn Context, event: Event) {
        unreachable!("this client asked for nothing, yet {event:?} came");
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let now_ns = self.clock.now_ns();
        let at_ns = now_ns - self.start_ns;
        self.in_flight -= 1;
        if let Some((counted, _)) = &mut self.counted {
            counted.errors += u64::from(completion.status != Status::Ok);
            if (self.window.warm_up_ns..self.window.end_ns).contains(&at_ns) {
                counted.requests += 1;
                counted.total_ns.saturating_record(now_ns - completion.cookie);
            }
        }
        if at_ns < self.window.end_ns && !self.stopping {
            self.submit(context, completion.buffer.expect("a read's buffer comes back"), now_ns);
        } else {
            self.stop();
        }
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        for submission in std::mem::take(&mut self.refused) {
            self.offer(context, submission);
        }
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.stop();
    }

    fn is_done(&self) -> bool {
        self.counted.is_none()
    }
}

/// Measures once: `depth` reads in flight on each of so many workers.
///
/// # Errors
/// One sentence.
pub fn measure(queues: QueueLayout, workers: usize, depth: u16, measured_ms: u64) -> Result<Seen, String> {
    let private = queues == QueueLayout::default() || queues == QueueLayout::RAW;
    let engine = super::load::engine(Setup {
        workers,
        device_bytes: DEVICE_BYTES,
        policy: PolicyOptions::new(PolicyKind::None),
        queue_depth: if private { depth } else { QUEUE_DEPTH },
        flows: 1,
        flow_depth: depth,
        request_bytes: REQUEST_BYTES,
        queues,
    })?;
    let window = Window::from_ms(WARM_UP_MS, measured_ms);
    let (sender, counts) = mpsc::channel();
    for worker in 0..workers {
        let (clock, sender) = (engine.clock(), sender.clone());
        let total_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("1 ns to 100 s is a valid range");
        let make: MakeClient = Box::new(move || {
            Box::new(Reader {
                clock,
                window,
                depth,
                number: worker as u64,
                start_ns: 0,
                in_flight: 0,
                next_block: 0,
                stopping: false,
                refused: Vec::new(),
                counted: Some((Counted { requests: 0, total_ns, errors: 0 }, sender)),
            })
        });
        engine.attach_to(worker, make);
    }
    drop(sender);
    let mut total_ns = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("as above");
    let (mut requests, mut errors) = (0, 0);
    for counted in counts {
        requests += counted.requests;
        errors += counted.errors;
        total_ns.add(&counted.total_ns).expect("histograms of one shape");
    }
    engine.drain(Duration::from_secs(5));
    if errors > 0 {
        return Err(format!("{errors} requests failed, which the null device never does"));
    }
    Ok(Seen {
        iops: requests as f64 / window.measured_s(),
        mean_ns: total_ns.mean(),
        p99_ns: total_ns.value_at_quantile(0.99),
        max_ns: total_ns.max(),
    })
}
