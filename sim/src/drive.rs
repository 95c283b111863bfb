//! The device of a simulation: the software NVMe controller that ships, driven by virtual time.
//!
//! The real device (`blk::device::nvme`) has no thread of its own, so whichever worker looks moves the controller on for all. Here the
//! simulator does, at the controller's own events, and its interrupts wake cores. Commands, rings, doorbells, arbitration and the
//! model of the medium are the same code; no bytes move. `null` completes each command at its doorbell.

use crate::coherence::Ps;
use crate::cores::core;
use mqfq_blk_watched::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk_watched::queues::Interrupt;
use mqfq_blk_watched::request::{Op, Status};
use mqfq_nvme::presets::{BLOCK_BYTES, TRANSFER_BYTES_MAX};
use mqfq_nvme::{ArbClass, Controller, HostQueuePair, Preset, QueuePairOptions, SubmissionEntry};
use std::sync::{Mutex, PoisonError};

/// Queue pairs that the controller can make: one per worker.
const QUEUE_PAIRS_MAX: u16 = 1024;

/// What the cores share.
pub struct Drive {
    /// `None`: the null device.
    controller: Option<Controller>,
    /// By hardware queue.
    pairs: Vec<HostQueuePair>,
    /// By hardware queue: the worker that rang it last, which is interrupted for it.
    keepers: Vec<usize>,
    next_event: Ps,
}

impl Drive {
    /// The null device.
    pub fn null() -> Drive {
        Drive { controller: None, pairs: Vec::new(), keepers: Vec::new(), next_event: Ps::MAX }
    }

    /// A drive with so many queue pairs.
    ///
    /// # Errors
    /// One sentence: a preset that is not there (it lists them), a depth that the controller does not take.
    pub fn nvme(preset: &str, size_bytes: u64, queues: usize, queue_depth: u16, seed: u64) -> Result<Drive, String> {
        let preset = Preset::by_name(preset).map_err(|unknown| unknown.to_string())?;
        let mut controller = Controller::new(preset.controller(size_bytes, QUEUE_PAIRS_MAX, seed));
        let mut pairs = Vec::new();
        for _ in 0..queues {
            let options = QueuePairOptions { entries: u32::from(queue_depth) + 1, class: ArbClass::default() };
            let pair = HostQueuePair::create(&mut controller, options)
                .map_err(|status| format!("the NVMe controller refused a queue of depth {queue_depth}: {status}"))?;
            pairs.push(pair);
        }
        Ok(Drive { controller: Some(controller), pairs, keepers: (0..queues).collect(), next_event: Ps::MAX })
    }

    /// When the controller next does something by itself.
    #[inline]
    pub fn next_event(&self) -> Ps {
        self.next_event
    }

    /// Moves the controller to `at`, and names the workers that have completions now.
    pub fn advance(&mut self, at: Ps, mut interrupt: impl FnMut(usize)) {
        let controller = self.controller.as_mut().expect("the null device has no events");
        controller.advance(at / 1000);
        // Queue identifiers begin at 1 and are given out in order.
        controller.take_interrupts(|queue| interrupt(self.keepers[usize::from(queue.0) - 1]));
        self.look_ahead();
    }

    fn look_ahead(&mut self) {
        let next = self.controller.as_ref().and_then(Controller::next_event_ns);
        self.next_event = next.map_or(Ps::MAX, |ns| ns * 1000);
    }

    /// Puts commands into a queue's ring and rings its doorbell.
    fn ring(&mut self, queue: usize, worker: usize, now: Ps, entries: &mut Vec<SubmissionEntry>) {
        let controller = self.controller.as_mut().expect("a drive");
        self.keepers[queue] = worker;
        let pair = &mut self.pairs[queue];
        for entry in entries.drain(..) {
            // As many slots as tags; the queue keeps count.
            pair.submit(controller, entry).unwrap_or_else(|full| panic!("no slot for {full:?}"));
        }
        // Rounded down: the controller has been moved to its events up to here, and not beyond.
        pair.ring(controller, now / 1000);
        self.look_ahead();
    }

    /// Takes what ended from a queue's ring.
    fn poll(&mut self, queue: usize, now: Ps, mut each: impl FnMut(u16, bool)) {
        let controller = self.controller.as_mut().expect("a drive");
        let pair = &mut self.pairs[queue];
        while let Some(completion) = pair.poll(controller) {
            each(completion.cid, completion.status.is_success());
        }
        pair.ring_completions(controller, now / 1000);
        self.look_ahead();
    }
}

/// What blk sees of it: one for a whole run, a queue of it for each worker.
pub struct SimDevice {
    info: DeviceInfo,
    is_null: bool,
    /// What a core does for each command it gives to the device, before it lets go of what it holds.
    submit: Ps,
    /// What the interrupt of each queue opened calls.
    interrupts: Mutex<Vec<Interrupt>>,
}

impl SimDevice {
    /// A device of so many bytes.
    pub fn new(size_bytes: u64, is_null: bool, submit: Ps) -> SimDevice {
        let info = DeviceInfo {
            size_bytes,
            block_bytes: if is_null { 1 } else { BLOCK_BYTES },
            preferred_bytes: 4096,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            volatile_cache: false,
            segments_max: 1,
            segment_align_bytes: 1,
        };
        SimDevice { info, is_null, submit, interrupts: Mutex::default() }
    }
}

impl SimDevice {
    /// What the interrupt of this queue calls. Not before it is open.
    pub fn interrupt_of(&self, queue: usize) -> Interrupt {
        self.interrupts.lock().unwrap_or_else(PoisonError::into_inner)[queue].clone()
    }
}

impl Device for SimDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(self.open_shared_queue(options)?)
    }

    /// Queues are opened in the order of their numbers.
    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        let depth = usize::from(options.depth);
        let mut interrupts = self.interrupts.lock().unwrap_or_else(PoisonError::into_inner);
        let number = interrupts.len();
        interrupts.push(options.interrupt);
        let flights = (0..depth).map(|_| None).collect();
        let ended = Vec::with_capacity(depth);
        Ok(Box::new(SimQueue {
            number,
            submit: self.submit,
            is_null: self.is_null,
            flights,
            in_flight: 0,
            staged: Vec::with_capacity(depth),
            ended,
        }))
    }
}

/// One queue.
struct SimQueue {
    number: usize,
    submit: Ps,
    is_null: bool,
    /// By tag.
    flights: Box<[Option<Command>]>,
    in_flight: usize,
    staged: Vec<SubmissionEntry>,
    ended: Vec<Reaped>,
}

fn entry(command: &Command) -> SubmissionEntry {
    let cid = command.tag.0;
    let blocks = command.length_bytes.div_ceil(BLOCK_BYTES);
    let slba = command.offset_bytes / u64::from(BLOCK_BYTES);
    match command.op {
        Op::Read => SubmissionEntry::read(cid, slba, blocks, u64::from(cid)),
        Op::Write => SubmissionEntry::write(cid, slba, blocks, command.fua, u64::from(cid)),
        _ => SubmissionEntry::flush(cid),
    }
}

impl DeviceQueue for SimQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.in_flight == self.flights.len() {
            return Err(QueueFull(command));
        }
        self.in_flight += 1;
        if self.submit > 0 {
            core::compute(self.submit);
        }
        if self.is_null {
            self.ended.push(command.ended(Status::Ok));
            return Ok(());
        }
        self.staged.push(entry(&command));
        let tag = usize::from(command.tag.0);
        let before = self.flights[tag].replace(command);
        assert!(before.is_none(), "tag {tag} is already in flight");
        Ok(())
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {
        if !self.staged.is_empty() {
            core::device(|drive, worker, now| drive.ring(self.number, worker, now, &mut self.staged));
        }
    }

    fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
        if self.in_flight == 0 {
            return;
        }
        if !self.is_null {
            let SimQueue { flights, ended, number, .. } = self;
            core::device(|drive, _, now| {
                drive.poll(*number, now, |cid, is_success| {
                    let command = flights[usize::from(cid)].take().expect("it was in flight");
                    let status = if is_success { Status::Ok } else { Status::Io };
                    ended.push(command.ended(status));
                });
            });
            core::interrupt_taken();
        }
        self.in_flight -= self.ended.len();
        out.append(&mut self.ended);
    }

    fn next_event_ns(&self) -> Option<u64> {
        // The null device's completions are there already; a drive interrupts.
        (!self.ended.is_empty()).then_some(0)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
