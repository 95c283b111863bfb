//! A tenant's thread as a client of the block layer, on a virtual core; and what all tenants were given.

use crate::backlog::Wait;
use crate::cores::core;
use crate::outcome::WindowOutcome;
use crate::workload::{Ask, Source, Step};
use hdrhistogram::Histogram;
use mqfq_blk_watched::FlowId;
use mqfq_blk_watched::cap::Caps;
use mqfq_blk_watched::client::{Client, Context, DeviceIndex, Event, Refused};
use mqfq_blk_watched::request::{Completion, Status, Submission};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Longest latency told apart, ns (100 s).
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Service of one tenant (or as many as its `count` says) in the part of the run that counts.
pub struct Given {
    /// Completed.
    pub requests: u64,
    /// By number within `count`: bytes completed.
    pub bytes: Vec<u64>,
    /// Arrival to completion.
    pub total_ns: Histogram<u64>,
    /// Arrival to completion, summed.
    pub total_ns_sum: u128,
    /// Requests completed in each part of the whole run.
    pub windows: Vec<WindowOutcome>,
    /// Its requests, if times in which all tenants wait are told apart.
    pub waits: Vec<Wait>,
}

impl Given {
    /// Nothing, to `count` tenants.
    pub fn new(count: u32) -> Given {
        let total_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("1 ns to 100 s is a valid range");
        Given {
            requests: 0,
            bytes: vec![0; count as usize],
            total_ns,
            total_ns_sum: 0,
            windows: Vec::new(),
            waits: Vec::new(),
        }
    }
}

/// Results of a run, written by all clients.
pub struct Recorder {
    /// By tenant of the scenario.
    pub given: Vec<Given>,
    /// Counted from here, ns.
    pub from_ns: u64,
    /// To here, ns; no request is made after it.
    pub to_ns: u64,
    /// Length of the parts of the run that are told apart, ns.
    pub window_ns: Option<u64>,
    /// [`Given::waits`] are kept.
    pub tells_backlog: bool,
    /// Requests under way.
    pub in_flight: u64,
    /// Requests that failed.
    pub failed: u64,
}

impl Recorder {
    /// A request that was made has completed. `arrived_ns`: when it arrived; `None`: it is a step of a chain, not its
    /// last.
    pub fn completed(&mut self, whose: &Identity, length_bytes: u32, arrived_ns: Option<u64>, now_ns: u64) {
        self.in_flight -= 1;
        self.window(whose.tenant, now_ns, length_bytes, arrived_ns.is_some());
        if (self.from_ns..self.to_ns).contains(&now_ns) {
            let given = &mut self.given[whose.tenant];
            given.bytes[whose.number as usize] += u64::from(length_bytes);
            let Some(arrived_ns) = arrived_ns else { return };
            let total_ns = now_ns.saturating_sub(arrived_ns);
            given.requests += 1;
            given.total_ns.saturating_record(total_ns);
            given.total_ns_sum += u128::from(total_ns);
        }
    }

    /// A request was dispatched at this time, and waited so long until then.
    fn waited(&mut self, whose: &Identity, dispatched_ns: u64, queued_ns: u64, bytes: u32) {
        if self.tells_backlog && (self.from_ns..self.to_ns).contains(&dispatched_ns) {
            let queued_ns = queued_ns.min(dispatched_ns - self.from_ns);
            self.given[whose.tenant].waits.push(Wait { dispatched_ns, queued_ns, bytes });
        }
    }

    /// So many bytes completed, at the end of a request or before it: adds them to their part of the run.
    fn window(&mut self, tenant: usize, now_ns: u64, bytes: u32, is_end: bool) {
        let Some(window_ns) = self.window_ns.filter(|_| now_ns < self.to_ns) else { return };
        let windows = &mut self.given[tenant].windows;
        let at = (now_ns / window_ns) as usize;
        if windows.len() <= at {
            // All of them at once: a tenant that gets nothing later on has zeros there.
            windows.resize(self.to_ns.div_ceil(window_ns) as usize, WindowOutcome::default());
        }
        windows[at].requests += u64::from(is_end);
        windows[at].bytes += u64::from(bytes);
    }
}

/// Owner of a client.
#[derive(Clone, Copy)]
pub struct Identity {
    /// Tenant of the scenario.
    pub tenant: usize,
    /// Number within its `count`.
    pub number: u32,
    /// Its flow.
    pub flow: FlowId,
    /// Nothing before this, ns.
    pub start_ns: u64,
    /// Nothing new after this, ns.
    pub stop_ns: u64,
    /// Computing before each request, ns. It is the application's time: the core may be interrupted meanwhile.
    pub cpu_ns: u64,
}

/// One thread of a tenant, as a client of the block layer.
pub struct SimClient {
    identity: Identity,
    source: Box<dyn Source>,
    recorder: Rc<RefCell<Recorder>>,
    caps: Option<Arc<Caps>>,
    refused: Option<Submission>,
    /// Requests that are being computed, with the time when each will be made.
    computed: VecDeque<(u64, Ask)>,
    /// Until then it computes.
    busy_until_ns: u64,
    /// When the timer that was asked for last will come; earlier ones that have not come are of no meaning any more.
    timer_ns: Option<u64>,
    /// Its name.
    timer: u32,
    in_flight: u64,
    is_over: bool,
}

impl SimClient {
    /// A client that makes what `source` says, and passes `caps` if there are any.
    pub fn new(
        identity: Identity,
        source: Box<dyn Source>,
        recorder: Rc<RefCell<Recorder>>,
        caps: Option<Arc<Caps>>,
    ) -> SimClient {
        SimClient {
            identity,
            source,
            recorder,
            caps,
            refused: None,
            computed: VecDeque::new(),
            busy_until_ns: 0,
            timer_ns: None,
            timer: 0,
            in_flight: 0,
            is_over: false,
        }
    }

    /// Makes the requests that are due, and asks the source for more until it says to wait.
    fn pump(&mut self, context: &mut dyn Context) {
        let now_ns = core::now_ns();
        while self.refused.is_none()
            && let Some((_, ask)) = self.computed.pop_front_if(|(at_ns, _)| *at_ns <= now_ns)
        {
            self.submit_ask(context, ask);
        }
        while self.refused.is_none() && !self.is_over {
            let now_ns = core::now_ns();
            if now_ns >= self.identity.stop_ns {
                self.is_over = true;
                break;
            }
            match self.source.next(now_ns) {
                Step::Ask(ask) => self.ask(context, ask),
                Step::WaitUntil(at_ns) => {
                    if at_ns < self.identity.stop_ns {
                        self.wake_at(context, at_ns.max(now_ns + 1));
                    }
                    break;
                }
                Step::WaitForCompletion => break,
                Step::Done => self.is_over = true,
            }
        }
        if let Some(&(at_ns, _)) = self.computed.front() {
            self.wake_at(context, at_ns);
        }
    }

    fn wake_at(&mut self, context: &mut dyn Context, at_ns: u64) {
        if self.timer_ns.is_none_or(|timer_ns| at_ns < timer_ns) {
            self.timer_ns = Some(at_ns);
            self.timer = self.timer.wrapping_add(1);
            context.timer(at_ns, self.timer);
        }
    }

    fn ask(&mut self, context: &mut dyn Context, ask: Ask) {
        self.in_flight += 1;
        self.recorder.borrow_mut().in_flight += 1;
        if self.identity.cpu_ns == 0 {
            return self.submit_ask(context, ask);
        }
        self.busy_until_ns = self.busy_until_ns.max(core::now_ns()) + self.identity.cpu_ns;
        self.computed.push_back((self.busy_until_ns, ask));
    }

    fn submit_ask(&mut self, context: &mut dyn Context, ask: Ask) {
        let Ask { op, offset_bytes, length_bytes, arrived_ns } = ask;
        self.submit(
            context,
            Submission {
                flow: self.identity.flow,
                op,
                offset_bytes,
                length_bytes,
                fua: false,
                // No bytes move.
                buffer: None,
                cookie: arrived_ns,
            },
        );
    }

    fn submit(&mut self, context: &mut dyn Context, submission: Submission) {
        if let Err(Refused::TenantFull(submission)) = context.submit(DeviceIndex(0), submission) {
            self.refused = Some(submission);
        }
    }
}

impl Client for SimClient {
    fn start(&mut self, context: &mut dyn Context) {
        self.caps.iter().for_each(|caps| context.cap_by(caps));
        if self.identity.start_ns == 0 {
            self.pump(context);
        } else {
            self.wake_at(context, self.identity.start_ns);
        }
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        // One that a nearer timer has replaced asks for nothing: each would ask for the next, and there would be ever
        // more of them.
        if let Event::Timer { user } = event
            && user == self.timer
        {
            self.timer_ns = None;
            self.pump(context);
        }
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let now_ns = core::now_ns();
        self.in_flight -= 1;
        self.recorder.borrow_mut().failed += u64::from(completion.status != Status::Ok);
        let Completion { length_bytes, cookie: arrived_ns, queued_ns, device_ns, .. } = completion;
        self.recorder.borrow_mut().waited(&self.identity, now_ns.saturating_sub(device_ns), queued_ns, length_bytes);
        let counts = self.source.completed(now_ns);
        self.recorder.borrow_mut().completed(&self.identity, length_bytes, counts.then_some(arrived_ns), now_ns);
        self.pump(context);
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        if let Some(submission) = self.refused.take() {
            self.submit(context, submission);
        }
        self.pump(context);
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.is_over = true;
    }

    fn is_done(&self) -> bool {
        self.is_over && self.in_flight == 0
    }
}
