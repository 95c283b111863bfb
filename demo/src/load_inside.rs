//! Carries a tenant's load inside the workers: no socket, no system call, the block layer and nothing else.
//!
//! # Shape
//! Each of a tenant's connections is a [`Client`] that lives on a worker, as a front end's connection does, but makes
//! its requests itself. Only admission, staging, the policy, dispatch and completion are left between it and the
//! device: the share of a device can be measured without the cost of a protocol, and the cost of a policy without the
//! noise of sockets.
//!
//! The clients of all tenants of a run must agree on when it starts, and learn the time only when their worker first
//! calls them: the first one to be called says when that is, for all ([`Start`]).

use crate::load::{Counted, Load, Requests, Step, Window, scramble};
use mqfq_blk::FlowId;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event, MakeClient, Refused};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use std::sync::{Arc, OnceLock, mpsc};

/// Start of a run, in the engine's nanoseconds; the client that is called first sets it.
pub type Start = Arc<OnceLock<u64>>;

/// Data that all clients of one run share.
#[derive(Clone)]
pub struct Run {
    /// The device they load.
    pub device: DeviceIndex,
    /// When it started.
    pub start: Start,
    /// When it warms up, counts and ends.
    pub window: Window,
}

impl Run {
    /// A run that starts when the first of its clients is called.
    pub fn new(device: DeviceIndex, window: Window) -> Run {
        Run { device, start: Start::default(), window }
    }
}

/// Makes the client for connection `number` of a tenant. Its count comes through `counted` when it has nothing left in
/// flight.
pub fn client(
    run: &Run,
    flow: FlowId,
    load: &Load,
    number: u16,
    counted: mpsc::Sender<Result<Counted, String>>,
) -> MakeClient {
    let (run, load) = (run.clone(), *load);
    Box::new(move || {
        Box::new(InsideClient {
            counted: Counted::new(run.window),
            run,
            flow,
            load,
            number,
            requests: None,
            start_ns: 0,
            begun: vec![(0, 0); usize::from(load.depth)],
            in_flight: 0,
            refused: Vec::new(),
            stopping: false,
            report: Some(counted),
        })
    })
}

struct InsideClient {
    run: Run,
    flow: FlowId,
    load: Load,
    number: u16,
    requests: Option<Requests>,
    counted: Counted,
    start_ns: u64,
    /// By cookie: the begin of a chain, and its steps that have completed.
    begun: Vec<(u64, usize)>,
    in_flight: u32,
    refused: Vec<Submission>,
    stopping: bool,
    report: Option<mpsc::Sender<Result<Counted, String>>>,
}

impl InsideClient {
    /// Begins the next request, under `cookie`, which is below the depth.
    fn submit_next(&mut self, context: &mut dyn Context, cookie: u64, buffer: Option<Buffer>) {
        if !self.load.chain.is_empty() {
            self.begun[cookie as usize] = (context.now_ns().saturating_sub(self.start_ns), 0);
        }
        self.in_flight += 1;
        self.submit_step(context, cookie, buffer);
    }

    /// Submits the step of request `cookie` that its steps so far lead to.
    fn submit_step(&mut self, context: &mut dyn Context, cookie: u64, buffer: Option<Buffer>) {
        let flow = self.flow;
        if self.load.step(self.begun[cookie as usize].1) == Some(Step::Flush) {
            let flush =
                Submission { flow, op: Op::Flush, offset_bytes: 0, length_bytes: 0, fua: false, buffer: None, cookie };
            return self.submit(context, flush);
        }
        let next = self.requests.as_mut().expect("made in start").advance();
        let submission = Submission {
            flow,
            op: if next.write { Op::Write } else { Op::Read },
            offset_bytes: next.offset_bytes,
            length_bytes: self.load.request_bytes,
            fua: false,
            buffer: Some(buffer.unwrap_or_else(|| self.new_buffer())),
            cookie,
        };
        self.submit(context, submission);
    }

    /// A step of request `cookie` has completed: submits the next one. The buffer, if it was the last.
    fn go_on(&mut self, context: &mut dyn Context, cookie: u64, buffer: Option<Buffer>) -> Option<Option<Buffer>> {
        if self.load.chain.is_empty() {
            return Some(buffer);
        }
        let (_, done) = &mut self.begun[cookie as usize];
        *done += 1;
        if self.load.step(*done).is_none() {
            return Some(buffer);
        }
        self.submit_step(context, cookie, buffer);
        None
    }

    /// A buffer for one request at a time. Written bytes must not be all zeros, which some drives do not store.
    fn new_buffer(&self) -> Buffer {
        let mut buffer = Buffer::new(self.load.request_bytes as usize);
        if self.load.write_percent > 0 {
            scramble(buffer.as_mut_slice(), self.load.seed + u64::from(self.in_flight));
        }
        buffer
    }

    fn submit(&mut self, context: &mut dyn Context, submission: Submission) {
        if let Err(Refused::TenantFull(submission)) = context.submit(self.run.device, submission) {
            self.refused.push(submission);
        }
    }

    /// Gives the count away once nothing is left.
    fn report_if_over(&mut self) {
        if self.in_flight == 0
            && let Some(report) = self.report.take()
        {
            // A run whose reader has given up needs no answer.
            drop(report.send(Ok(self.counted.clone())));
        }
    }
}

impl Client for InsideClient {
    fn start(&mut self, context: &mut dyn Context) {
        let now_ns = context.now_ns();
        self.start_ns = *self.run.start.get_or_init(|| now_ns);
        match Requests::new(&self.load, self.number, context.device(self.run.device).size_bytes) {
            Ok(requests) => self.requests = Some(requests),
            Err(error) => {
                if let Some(report) = self.report.take() {
                    drop(report.send(Err(error)));
                }
                return;
            }
        }
        for cookie in 0..self.load.depth {
            self.submit_next(context, cookie.into(), None);
        }
        self.report_if_over();
    }

    fn event(&mut self, _context: &mut dyn Context, event: Event) {
        unreachable!("this client asked for no socket operation, yet one ended: {event:?}");
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        // A client on another worker may have said the start a moment after this worker read its clock.
        let at_ns = context.now_ns().saturating_sub(self.start_ns);
        let Completion { cookie, mut buffer, .. } = completion;
        match completion.status {
            Status::Ok => {
                let Some(last) = self.go_on(context, cookie, buffer) else { return };
                buffer = last;
                let total_ns = match self.load.chain {
                    [] => completion.queued_ns + completion.device_ns,
                    _ => at_ns.saturating_sub(self.begun[cookie as usize].0),
                };
                self.counted.record(at_ns, total_ns, self.load.counted_bytes());
            }
            _ => self.counted.errors += 1,
        }
        self.in_flight -= 1;
        if at_ns < self.run.window.end_ns && !self.stopping {
            self.submit_next(context, cookie, buffer);
        } else {
            self.stopping = true;
            // Refused requests never reached the device; they are not submitted again.
            self.in_flight -= self.refused.len() as u32;
            self.refused.clear();
            self.report_if_over();
        }
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        for submission in std::mem::take(&mut self.refused) {
            self.submit(context, submission);
        }
    }

    fn drain(&mut self, _context: &mut dyn Context) {
        self.stopping = true;
        self.in_flight -= self.refused.len() as u32;
        self.refused.clear();
        self.report_if_over();
    }

    fn is_done(&self) -> bool {
        self.report.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::ask::Ask;
    use mqfq_blk::device::DeviceInfo;

    /// A block layer that takes `room` requests and completes them when told.
    struct Bench {
        now_ns: u64,
        room: usize,
        staged: Vec<Submission>,
    }

    impl Context for Bench {
        fn now_ns(&self) -> u64 {
            self.now_ns
        }

        fn device(&self, _device: DeviceIndex) -> DeviceInfo {
            DeviceInfo {
                size_bytes: 1 << 20,
                block_bytes: 512,
                preferred_bytes: 4096,
                transfer_bytes_max: 1 << 20,
                volatile_cache: false,
                pages_align_bytes: 0,
            }
        }

        fn submit(&mut self, _device: DeviceIndex, submission: Submission) -> Result<(), Refused> {
            if self.staged.len() == self.room {
                return Err(Refused::TenantFull(submission));
            }
            self.staged.push(submission);
            Ok(())
        }

        fn ask(&mut self, _: Ask) {
            unreachable!("it has no sockets, and its clock is the completions")
        }

        fn take_back(&mut self, _: u32) {
            unreachable!("it waits for no descriptor")
        }
    }

    fn complete_one(bench: &mut Bench, client: &mut dyn Client) {
        let done = bench.staged.remove(0);
        let completion = Completion {
            cookie: done.cookie,
            status: Status::Ok,
            op: done.op,
            length_bytes: done.length_bytes,
            buffer: done.buffer,
            queued_ns: 1_000,
            device_ns: 99_000,
        };
        client.completed(bench, completion);
    }

    #[test]
    fn it_keeps_its_depth_until_the_end_and_then_reports_once() {
        let (sender, counted) = mpsc::channel();
        let run = Run::new(DeviceIndex(0), Window::from_ms(0, 10));
        let mut client = client(&run, FlowId(0), &Load::random_reads(1, 3, 4096), 0, sender)();
        let mut bench = Bench { now_ns: 500, room: 100, staged: Vec::new() };
        client.start(&mut bench);
        assert_eq!(bench.staged.len(), 3);
        for _ in 0..5 {
            bench.now_ns += 1_000_000;
            complete_one(&mut bench, &mut *client);
            assert_eq!(bench.staged.len(), 3, "each completion is followed by the next request");
        }
        bench.now_ns = 500 + 10_000_000;
        for _ in 0..3 {
            assert!(!client.is_done());
            complete_one(&mut bench, &mut *client);
        }
        assert!(client.is_done() && bench.staged.is_empty());
        let counted = counted.recv().unwrap().unwrap();
        assert_eq!((counted.requests, counted.bytes), (5, 5 * 4096), "the three after the end do not count");
        assert!(counted.total_ns.min().abs_diff(100_000) <= 100, "1 us queued + 99 us on the device, three digits");
    }

    #[test]
    fn a_step_of_a_commit_waits_for_the_one_before_and_the_whole_counts_once() {
        let (sender, counted) = mpsc::channel();
        let run = Run::new(DeviceIndex(0), Window::from_ms(0, 10));
        let mut client = client(&run, FlowId(0), &Load::commits(8192), 0, sender)();
        let mut bench = Bench { now_ns: 500, room: 100, staged: Vec::new() };
        client.start(&mut bench);
        let mut steps = Vec::new();
        // Two commits of five steps, one millisecond each; the second ends with the window.
        while let [step] = &bench.staged[..] {
            steps.push((step.op, step.length_bytes));
            bench.now_ns += 1_000_000;
            complete_one(&mut bench, &mut *client);
        }
        let (write, flush) = ((Op::Write, 8192), (Op::Flush, 0));
        assert_eq!(steps, [write, write, flush, write, flush].repeat(2));
        let counted = counted.recv().unwrap().unwrap();
        assert_eq!((counted.requests, counted.bytes), (1, 3 * 8192), "the second does not count");
        assert!(counted.total_ns.max().abs_diff(5_000_000) <= 5_000, "all five steps, three digits");
    }

    #[test]
    fn a_refused_request_is_asked_again_when_there_is_room() {
        let (sender, counted) = mpsc::channel();
        let run = Run::new(DeviceIndex(0), Window::from_ms(0, 10));
        let mut client = client(&run, FlowId(0), &Load::random_reads(1, 4, 4096), 0, sender)();
        let mut bench = Bench { now_ns: 0, room: 2, staged: Vec::new() };
        client.start(&mut bench);
        assert_eq!(bench.staged.len(), 2);
        bench.room = 100;
        client.room(&mut bench);
        assert_eq!(bench.staged.len(), 4);
        client.drain(&mut bench);
        while !bench.staged.is_empty() {
            complete_one(&mut bench, &mut *client);
        }
        assert!(client.is_done());
        assert_eq!(counted.recv().unwrap().unwrap().requests, 4);
    }
}
