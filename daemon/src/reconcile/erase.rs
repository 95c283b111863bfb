//! Zeroes for bytes that change tenants, written through the engine as requests of the tenant that gets them.
//!
//! An eraser is a client of the engine, so that its requests are scheduled beside all others: the tenant that gets the
//! bytes pays for them with its own share of the device, no worker waits, and a device that hangs holds up this export
//! alone. It asks for [`IN_FLIGHT`] pieces at a time, and at the end for a flush: erased bytes stay so after a power
//! cut. It travels to no other process; that one begins again from its record.

use mqfq_blk::FlowId;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event, Label, Refused};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Bytes of a request. Where a file system can only write zeroes, one of them still takes a fraction of a second.
const PIECE_BYTES: u64 = 8 << 20;

/// Requests under way at a time: some for a device with several channels, few beside the tenants' own.
const IN_FLIGHT: usize = 4;

/// Requests of one erase that may fail and are repeated.
const RETRIES_MAX: u32 = 16;

/// The cookie of the flush.
const FLUSH: u64 = u64::MAX;

/// Progress of an erase, shared by the worker that runs it and its observers.
#[derive(Debug)]
pub struct Job {
    /// All bytes to erase.
    pub total_bytes: u64,
    done_bytes: AtomicU64,
    state: AtomicU8,
    is_cancelled: AtomicBool,
}

/// The state of an erase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It goes on.
    Runs,
    /// All bytes read as zero, also after a power cut.
    Done,
    /// Its requests failed again and again.
    Failed,
    /// It was cancelled or drained.
    Gone,
}

impl State {
    const ALL: [State; 4] = [State::Runs, State::Done, State::Failed, State::Gone];
}

impl Job {
    /// The job to erase `ranges`.
    pub fn new(ranges: &[Range<u64>]) -> Arc<Job> {
        Arc::new(Job {
            total_bytes: ranges.iter().map(|range| range.end - range.start).sum(),
            done_bytes: AtomicU64::new(0),
            state: AtomicU8::new(State::Runs as u8),
            is_cancelled: AtomicBool::new(false),
        })
    }

    /// Bytes that are zeroes.
    pub fn done_bytes(&self) -> u64 {
        // Relaxed: a number for people.
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Its state.
    pub fn state(&self) -> State {
        // Acquire: pairs with the Release in `set`: a thread that sees the end offers the bytes.
        State::ALL[usize::from(self.state.load(Ordering::Acquire))]
    }

    fn set(&self, state: State) {
        // Release: pairs with the Acquire in `state`.
        self.state.store(state as u8, Ordering::Release);
    }

    /// No request of it is handed over by a worker that has heard of anything that was done after this.
    pub fn cancel(&self) {
        // Release: pairs with the Acquire in `Eraser::is_stopped`.
        self.is_cancelled.store(true, Ordering::Release);
    }
}

/// The client that does it.
pub struct Eraser {
    job: Arc<Job>,
    device: DeviceIndex,
    flow: FlowId,
    /// The export that waits for the bytes: it is drained with that one.
    export: u64,
    /// Pieces to ask for; each is in one request.
    left: VecDeque<Range<u64>>,
    /// Pieces under way.
    under_way: Vec<Range<u64>>,
    /// First byte, by which the flush is addressed.
    first: u64,
    is_flushing: bool,
    failures: u32,
    is_paused: bool,
    is_drained: bool,
}

impl Eraser {
    /// An eraser of `ranges` of a device, charged to `flow`.
    pub fn new(job: Arc<Job>, device: DeviceIndex, flow: FlowId, export: u64, ranges: &[Range<u64>]) -> Eraser {
        Eraser {
            job,
            device,
            flow,
            export,
            left: ranges.iter().cloned().collect(),
            under_way: Vec::with_capacity(IN_FLIGHT),
            first: ranges.first().map_or(0, |range| range.start),
            is_flushing: false,
            failures: 0,
            is_paused: false,
            is_drained: false,
        }
    }

    fn is_stopped(&self) -> bool {
        // Acquire: pairs with the Release in `Job::cancel`.
        let is_cancelled = self.job.is_cancelled.load(Ordering::Acquire);
        is_cancelled || self.is_drained || self.has_failed() || self.job.state() != State::Runs
    }

    fn has_failed(&self) -> bool {
        self.failures > RETRIES_MAX
    }

    fn go_on(&mut self, context: &mut dyn Context) {
        if self.is_stopped() && self.is_idle() && self.job.state() == State::Runs {
            self.job.set(if self.has_failed() { State::Failed } else { State::Gone });
        }
        while !self.is_stopped() && !self.is_paused && !self.is_flushing && self.under_way.len() < IN_FLIGHT {
            let Some(range) = self.left.front().cloned() else {
                if self.under_way.is_empty() {
                    self.is_flushing = self.ask(context, Op::Flush, self.first..self.first, FLUSH);
                }
                return;
            };
            let piece = range.start..range.end.min(range.start + PIECE_BYTES);
            if !self.ask(context, Op::WriteZeroes { may_unmap: true }, piece.clone(), piece.start) {
                return;
            }
            match piece.end < range.end {
                true => self.left[0].start = piece.end,
                false => drop(self.left.pop_front()),
            }
            self.under_way.push(piece);
        }
    }

    /// Submits a piece. False: there is no room yet.
    fn ask(&self, context: &mut dyn Context, op: Op, piece: Range<u64>, cookie: u64) -> bool {
        let submission = Submission {
            flow: self.flow,
            op,
            offset_bytes: piece.start,
            length_bytes: (piece.end - piece.start) as u32,
            fua: false,
            buffer: None,
            cookie,
        };
        match context.submit(self.device, submission) {
            Ok(()) => true,
            Err(Refused::TenantFull(_)) => false,
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && !self.is_flushing
    }
}

impl Client for Eraser {
    fn start(&mut self, context: &mut dyn Context) {
        self.go_on(context);
    }

    fn event(&mut self, _: &mut dyn Context, _: Event) {}

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        let is_good = completion.status == Status::Ok;
        if !is_good {
            self.failures += 1;
        }
        if completion.cookie == FLUSH {
            self.is_flushing = false;
            if is_good {
                self.job.set(State::Done);
            }
        } else if let Some(at) = self.under_way.iter().position(|piece| piece.start == completion.cookie) {
            let piece = self.under_way.swap_remove(at);
            match is_good {
                // Relaxed: a number for people.
                true => _ = self.job.done_bytes.fetch_add(piece.end - piece.start, Ordering::Relaxed),
                false => self.left.push_back(piece),
            }
        }
        self.go_on(context);
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        self.go_on(context);
    }

    fn drain(&mut self, context: &mut dyn Context) {
        self.is_drained = true;
        self.go_on(context);
    }

    fn is_done(&self) -> bool {
        self.is_stopped() && self.is_idle()
    }

    fn pause(&mut self, _: &mut dyn Context) {
        self.is_paused = true;
    }

    fn is_paused(&self) -> bool {
        self.is_idle()
    }

    fn resume(&mut self, context: &mut dyn Context) {
        self.is_paused = false;
        self.go_on(context);
    }

    fn label(&self) -> Label {
        Label { client: None, export: Some(self.export) }
    }
}

impl Drop for Eraser {
    fn drop(&mut self) {
        if self.job.state() == State::Runs {
            self.job.set(State::Gone);
        }
    }
}
