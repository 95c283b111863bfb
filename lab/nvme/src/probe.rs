//! Do the weights of a device's class queues change who gets bandwidth?
//!
//! A policy that leaves the arbitration to the device (D2FQ) is as good as the device's, and drives were sold that
//! claim weighted round robin and ignore it. So it is measured before the policy is believed.
//!
//! # What is measured
//! ```text
//!   high queue: depth reads of 4 KiB ─┐  weights 16:1, then 1:1     ended reads of each stream, after as many as the
//!   low queue:  depth reads of 4 KiB ─┴─▶ device ─────────────────▶ depth that were fetched before the change
//! ```
//! Each read that ends is followed by another one of its stream, so both keep their depth. A device arbitrates among
//! what it has not fetched yet: the streams must be deeper than it is inside. They begin with 64 reads each, and if
//! 16:1 does not give at least half of that, go on with 320. The high stream then still waits if the device holds fewer
//! than 320 * 17 / 16 = 340, and the low one always. A device that takes 640 reads inside at once arbitrates nothing at
//! these depths, and then the finding that its weights have no effect is true.
//!
//! 204 reads are counted at a time: 12 rounds of 16 + 1. A drive with 256 inside (the preset `zssd`) ends 64 + 204
//! reads of the shallow streams and twice 320 + 204 of the deep ones; with those under way at the end it was asked for
//! 1955. A drive that shows its effect at 64 was asked for 663.
//!
//! # Verdict
//! The ratio of high to low under 16:1 is at least 4, and at least four times that under 1:1: a quarter of a perfect
//! effect. Without any it is the same but for chance; if the reads of both streams ended in random order, the quotient
//! of two such counts would be 1.2 at one standard deviation and 4 at seven. A part of an effect is enough: the device
//! obeys, and the probe did not keep it busy enough to see all of it.
//!
//! # What spoils it
//! * A caller that looks late finds streams that have run empty meanwhile, and then even the best device serves both
//!   alike. So if an eighth of a stream's depth and more ended between two looks, counting begins anew. After 16 times
//!   the next deeper streams are taken, at last 2048 reads each, which bear 512 between two looks. All this up to
//!   100,000 reads.
//! * Other users of the device: probe before opening it to clients.
//!
//! # Invariant
//! The probe ends at most 5 s after its first step, if it is called when it asks to be.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, DeviceInfo, DeviceQueue, Reaped};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::{Tag, TagSet};
use mqfq_blkmq::QueueLimits;
use mqfq_sched::policy::{ClassWeights, QueueClass};
use std::fmt;

pub use mqfq_blk::engine::Finding;

/// Weight of the high stream, while the low one's is 1.
pub const WEIGHT: u16 = 16;

/// Depths of the streams.
struct Rung {
    /// Reads that each keeps under way.
    depth: u16,
    /// Ended reads that do not count after a change: as many as the device may have fetched before it.
    skip: u32,
    /// More of them between two looks, and a stream may have run empty.
    late_max: usize,
}

const RUNGS: [Rung; 3] = [
    Rung { depth: 64, skip: 64, late_max: 8 },
    Rung { depth: 320, skip: 320, late_max: 40 },
    // Only for a late caller.
    Rung { depth: 2048, skip: 512, late_max: 512 },
];

/// Late looks after which the probe goes to the next rung.
const LATE_MAX: u32 = 16;

/// Ended reads that are counted at a time: 12 full rounds.
const COUNTED: u32 = 12 * (WEIGHT as u32 + 1);

/// Reads after which the probe gives up.
const READS_MAX: u64 = 100_000;

/// Time after which the probe gives up.
pub const DEADLINE_NS: u64 = 5_000_000_000;

const READ_BYTES: u64 = 4096;

/// Reads of a stream per doorbell, at most.
const MIXED: usize = 8;

/// Reason why nothing was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The device takes no weights.
    NoWeights,
    /// A read failed.
    ReadFailed(Status),
    /// Too few reads ended before the deadline.
    TooSlow {
        /// Reads that ended.
        ended: u64,
        /// Reads that the device was asked for.
        requests: u64,
    },
    /// The streams ran empty between any two looks.
    TooFast {
        /// Reads that the device was asked for.
        requests: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoWeights => write!(f, "it takes no weights"),
            Failure::ReadFailed(status) => write!(f, "a read of {READ_BYTES} bytes failed: {status}"),
            Failure::TooSlow { ended, requests } => {
                write!(f, "only {ended} of {requests} reads ended within {} s", DEADLINE_NS / 1_000_000_000)
            }
            Failure::TooFast { requests } => {
                write!(f, "reads ended faster than they could be counted, {requests} of them")
            }
        }
    }
}

impl Failure {
    /// The failure as one sentence for the user.
    pub fn sentence(&self, device: &str) -> String {
        format!("device {device}: whether weighted round robin works could not be measured: {self}")
    }
}

/// Answer of the probe to its caller: when to call it again, or its result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// To be called again, at this time or when the device has interrupted.
    At(u64),
    /// Nothing more. The queue is to be dropped with the reads still in it; its weights are equal again.
    Done(Result<Finding, Failure>),
}

/// A measurement under way. It keeps no clock: its caller says what time it is.
pub struct Probe {
    size_bytes: u64,
    read_bytes: u32,
    /// Most reads of a stream.
    depth_max: u16,
    /// Index into [`RUNGS`].
    rung: usize,
    /// Late looks on this rung.
    late: u32,
    /// Under 16:1, once it is known: then equal weights are being measured.
    weighted_ratio: Option<f64>,
    start_ns: Option<u64>,
    streams: [Stream; 2],
    buffers: Vec<Buffer>,
    reaped: Vec<Reaped>,
    /// Ended reads to let pass before the count goes on.
    skip: u32,
    requests: u64,
    ended: u64,
}

struct Stream {
    class: QueueClass,
    in_flight: u16,
    free: Vec<Tag>,
    counted: u32,
}

impl Probe {
    /// A probe for a device like this.
    pub fn new(info: DeviceInfo, limits: QueueLimits) -> Probe {
        let depth_max = RUNGS[RUNGS.len() - 1].depth.min(limits.depth_max).min(TagSet::CLASS_DEPTH_MAX);
        let stream = |class, first: u16| Stream {
            class,
            in_flight: 0,
            free: (first..first + depth_max).rev().map(Tag).collect(),
            counted: 0,
        };
        let block_bytes = u64::from(info.block_bytes);
        Probe {
            size_bytes: info.size_bytes,
            read_bytes: READ_BYTES.max(block_bytes).min(info.size_bytes) as u32,
            depth_max,
            rung: 0,
            late: 0,
            weighted_ratio: None,
            start_ns: None,
            streams: [stream(QueueClass::High, 0), stream(QueueClass::Low, depth_max)],
            buffers: Vec::new(),
            reaped: Vec::new(),
            skip: RUNGS[0].skip,
            requests: 0,
            ended: 0,
        }
    }

    /// How deep the set of class queues is to be opened that it is given.
    pub fn queue_depth(&self) -> u16 {
        self.depth_max
    }

    /// Depth of the streams now.
    fn depth(&self) -> u16 {
        RUNGS[self.rung].depth.min(self.depth_max)
    }

    /// Goes on with deeper streams, if there are any.
    fn deepen(&mut self) {
        self.late = 0;
        self.rung = (self.rung + 1).min(RUNGS.len() - 1);
        self.begin_count();
    }

    /// Takes ended reads from the set, counts them, and asks for more.
    pub fn step(&mut self, queue: &mut dyn DeviceQueue, now_ns: u64) -> Step {
        let begins = self.start_ns.is_none();
        let start_ns = *self.start_ns.get_or_insert(now_ns);
        if begins && !queue.set_class_weights(ClassWeights { high: WEIGHT, ..ClassWeights::EQUAL }, now_ns) {
            return Step::Done(Err(Failure::NoWeights));
        }
        let outcome = self.take(queue, now_ns).and_then(|()| self.judge(queue, now_ns)).transpose();
        let elapsed_ns = now_ns.saturating_sub(start_ns);
        let requests = self.requests;
        let outcome = outcome.or_else(|| {
            let late = elapsed_ns >= DEADLINE_NS;
            let ended = self.ended;
            (late.then_some(Failure::TooSlow { ended, requests }))
                .or((ended >= READS_MAX).then_some(Failure::TooFast { requests }))
                .map(Err)
        });
        if let Some(outcome) = outcome {
            queue.set_class_weights(ClassWeights::EQUAL, now_ns);
            return Step::Done(outcome.map(|finding| Finding { elapsed_ns, ..finding }));
        }
        self.fill(queue, now_ns);
        let deadline_ns = start_ns.saturating_add(DEADLINE_NS);
        Step::At(queue.next_event_ns().map_or(deadline_ns, |event_ns| event_ns.clamp(now_ns, deadline_ns)))
    }

    /// Steps to the end. `wait` waits until the time that it is given, or less long, and says what time it is then.
    ///
    /// # Errors
    /// Why nothing was found.
    pub fn run(
        mut self,
        queue: &mut dyn DeviceQueue,
        mut now_ns: u64,
        mut wait: impl FnMut(u64) -> u64,
    ) -> Result<Finding, Failure> {
        loop {
            match self.step(queue, now_ns) {
                Step::At(ns) => now_ns = wait(ns),
                Step::Done(outcome) => return outcome,
            }
        }
    }

    /// Takes in the reads that ended.
    fn take(&mut self, queue: &mut dyn DeviceQueue, now_ns: u64) -> Result<(), Failure> {
        let mut reaped = std::mem::take(&mut self.reaped);
        queue.reap(now_ns, &mut reaped);
        // Too many at a time: a stream may have run empty. They say nothing, and the next ones were fetched by what
        // they left.
        let is_void = reaped.len() > RUNGS[self.rung].late_max;
        if is_void {
            self.late += 1;
            if self.late < LATE_MAX { self.begin_count() } else { self.deepen() }
        }
        // By the batch: the order within one is that of the rings, not of the ends.
        let counts = !is_void && self.skip == 0;
        if !is_void {
            self.skip = self.skip.saturating_sub(reaped.len() as u32);
        }
        for Reaped { tag, status, buffer, .. } in reaped.drain(..) {
            if status != Status::Ok {
                return Err(Failure::ReadFailed(status));
            }
            let stream = &mut self.streams[usize::from(tag.0 >= self.depth_max)];
            stream.in_flight -= 1;
            stream.free.push(tag);
            self.ended += 1;
            self.buffers.extend(buffer);
            stream.counted += u32::from(counts);
        }
        self.reaped = reaped;
        Ok(())
    }

    /// Begins to count: reads that ended so far do not count, nor do those that the device has fetched by now.
    fn begin_count(&mut self) {
        self.skip = RUNGS[self.rung].skip;
        self.streams.iter_mut().for_each(|stream| stream.counted = 0);
    }

    /// Verdict or next step, if enough reads are counted.
    fn judge(&mut self, queue: &mut dyn DeviceQueue, now_ns: u64) -> Result<Option<Finding>, Failure> {
        let [high, low] = [0, 1].map(|stream: usize| self.streams[stream].counted);
        if high + low < COUNTED {
            return Ok(None);
        }
        let ratio = f64::from(high) / f64::from(low.max(1));
        self.begin_count();
        let Some(weighted_ratio) = self.weighted_ratio else {
            if ratio < f64::from(WEIGHT) / 2.0 && self.rung == 0 {
                self.deepen();
                return Ok(None);
            }
            self.weighted_ratio = Some(ratio);
            queue.set_class_weights(ClassWeights::EQUAL, now_ns);
            return Ok(None);
        };
        Ok(Some(Finding {
            expected_ratio: WEIGHT.into(),
            weighted_ratio,
            equal_ratio: ratio,
            depth: self.depth(),
            requests: self.requests,
            elapsed_ns: 0,
        }))
    }

    /// Each stream gets its depth, a few reads of either at a time: a device that takes all of them inside has them
    /// mixed, and not the one stream behind the other.
    fn fill(&mut self, queue: &mut dyn DeviceQueue, now_ns: u64) {
        loop {
            let before = self.requests;
            for turn in 0..2 * MIXED {
                self.ask(turn % 2, queue);
            }
            if self.requests == before {
                return;
            }
            queue.ring_doorbell(now_ns);
        }
    }

    /// Asks for one more read of a stream that is below its depth.
    fn ask(&mut self, stream: usize, queue: &mut dyn DeviceQueue) {
        let depth = self.depth();
        let stream = &mut self.streams[stream];
        if stream.in_flight >= depth {
            return;
        }
        let Some(tag) = stream.free.pop() else { return };
        let buffer = self.buffers.pop().unwrap_or_else(|| Buffer::new(self.read_bytes as usize));
        // Steps of a large odd number of reads, so that neighbours in time are not neighbours on the device.
        let places = (self.size_bytes / u64::from(self.read_bytes)).max(1);
        let offset_bytes = self.requests.wrapping_mul(0x9e37_79b1) % places * u64::from(self.read_bytes);
        let mut command = Command::new(tag, Op::Read, offset_bytes, self.read_bytes, Some(buffer));
        command.class = stream.class;
        if let Err(full) = queue.submit(command) {
            // The queue is less deep than it was asked to be: its room sets the depth.
            stream.free.push(full.0.tag);
            self.buffers.extend(full.0.buffer);
            return;
        }
        stream.in_flight += 1;
        self.requests += 1;
    }
}

/// Measures a device that is not in use yet, on the caller's thread, by the clock and without waiting idly between
/// reads: a few milliseconds on a drive, more on a busy machine, at most 5 s.
///
/// # Errors
/// One sentence, that begins with the device's name.
pub fn measure(device: &dyn mqfq_blkmq::MultiQueue, name: &str) -> Result<Finding, String> {
    use mqfq_blk::device::QueueOptions;
    use mqfq_blk::worker::clock::Clock;
    use mqfq_sched::topology::HctxId;
    use std::sync::Arc;
    use std::time::Duration;

    let probe = Probe::new(device.info(), device.queue_limits());
    let thread = std::thread::current();
    let (depth, interrupt) = (probe.queue_depth(), Arc::new(move |_| thread.unpark()));
    let options = QueueOptions { hctx: HctxId(0), depth, ring: None, interrupt };
    let mut queue = device.open_class_queues(options).map_err(|why| format!("device {name}: {why}"))?;
    let clock = Clock::start();
    let wait = |at_ns: u64| {
        let left_ns = at_ns.saturating_sub(clock.now_ns());
        match left_ns {
            // To be woken takes 50 us and more, and a yield on a busy machine whole milliseconds, in which a fast drive
            // ends a stream.
            0..2_000_000 => std::hint::spin_loop(),
            _ => std::thread::park_timeout(Duration::from_millis(1)),
        }
        clock.now_ns()
    };
    probe.run(&mut *queue, clock.now_ns(), wait).map_err(|why| why.sentence(name))
}
