//! The device of a simulation: the software NVMe controller, driven by virtual time.
//!
//! The real device (`nvme::device`) has no thread of its own, so whichever worker looks moves the controller on
//! for all. Here the simulator does, at the controller's own events, and its interrupts wake cores. Commands, rings,
//! doorbells, arbitration and the model of the medium are the same code; no bytes move. `null` completes each command
//! at its doorbell.

use crate::coherence::Ps;
use crate::cores::core;
use crate::outcome::WeightsOutcome;
use crate::scenario;
use crate::workload::random::{Random, fnv};
use mqfq_blk_watched::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk_watched::request::{Op, Status};
use mqfq_blkmq_watched::{Interrupt, MultiQueue, QueueLimits};
use mqfq_nvme_watched::arbitration::ArbitrationBurst;
use mqfq_nvme_watched::presets::{BLOCK_BYTES, TRANSFER_BYTES_MAX};
use mqfq_nvme_watched::{
    ArbClass, Arbitration, ArbitrationFeature, ArbitrationWeights, Controller, ControllerOptions, HostQueuePair,
    Mechanism, Preset, QueuePairOptions, SubmissionEntry, media::MediaOptions,
};
use mqfq_sched_watched::policy::{ClassWeights, QueueClass};
use std::sync::{Arc, Mutex, PoisonError};

/// Queues of a set, one of each class.
const CLASSES: usize = QueueClass::ALL.len();

/// Drive that the cores share.
pub struct Drive {
    /// `None`: the null device.
    controller: Option<Controller>,
    /// By hardware queue, and by class if each is a set of three.
    pairs: Vec<HostQueuePair>,
    /// Queue pairs of one hardware queue: 1, or one of each class.
    of_each: usize,
    /// By hardware queue: the worker that rang it last, which is interrupted for it.
    keepers: Vec<usize>,
    strangers: Option<Strangers>,
    next_event: Ps,
}

/// Clients that do not pass the scheduler, with a queue pair of their own.
struct Strangers {
    options: scenario::Strangers,
    pair: HostQueuePair,
    /// Reads that may be sent: the identifiers that are free.
    free: Vec<u16>,
    random: Random,
    /// Places that they read.
    places: u64,
    /// No new read from here on, ns.
    end_ns: u64,
    /// When their next visit begins, ns; `u64::MAX`: never.
    wake_ns: u64,
}

impl Strangers {
    fn new(options: scenario::Strangers, pair: HostQueuePair, size_bytes: u64, seed: u64, end_ns: u64) -> Strangers {
        let (free, random) = ((0..options.depth).collect(), Random::of(seed, fnv(b"strangers"), 0, 0));
        let places = (size_bytes / u64::from(options.size_bytes)).max(1);
        Strangers { options, pair, free, random, places, end_ns, wake_ns: 0 }
    }

    /// Takes what has ended, and sends as much again while a visit lasts.
    fn step(&mut self, controller: &mut Controller, now_ns: u64) {
        while let Some(completion) = self.pair.poll(controller) {
            self.free.push(completion.cid);
        }
        self.pair.ring_completions(controller, now_ns);
        let scenario::Strangers { size_bytes, every_ns, length_ns, .. } = self.options;
        if now_ns < self.end_ns && now_ns % every_ns < length_ns {
            let blocks = size_bytes / BLOCK_BYTES;
            while let Some(cid) = self.free.pop() {
                let slba = self.random.below(self.places) * u64::from(blocks);
                let entry = SubmissionEntry::read(cid, slba, blocks, u64::from(cid));
                self.pair.submit(controller, entry).unwrap_or_else(|full| panic!("no slot for {full:?}"));
            }
            self.pair.ring(controller, now_ns);
        }
        let next_ns = (now_ns / every_ns + 1) * every_ns;
        self.wake_ns = if next_ns < self.end_ns { next_ns } else { u64::MAX };
    }
}

impl Drive {
    /// The null device.
    pub fn null() -> Drive {
        Drive {
            controller: None,
            pairs: Vec::new(),
            of_each: 1,
            keepers: Vec::new(),
            strangers: None,
            next_event: Ps::MAX,
        }
    }

    /// A drive with so many hardware queues, each a queue pair, or, with `has_classes`, one of each class. Strangers
    /// leave it at `end_ns`.
    ///
    /// # Errors
    /// One sentence: a preset that is not there (it lists them), a depth that the controller does not take.
    pub fn nvme(
        device: &scenario::Device,
        queues: usize,
        has_classes: bool,
        seed: u64,
        end_ns: u64,
    ) -> Result<Drive, String> {
        let &scenario::Device { size_bytes, queue_depth, inside_max, slowed, volatile_cache, spells, .. } = device;
        let preset = device.preset.as_deref().ok_or("the null device has no controller")?;
        let preset = Preset::by_name(preset).map_err(|unknown| unknown.to_string())?;
        let mut options = ControllerOptions::of(&preset, size_bytes, scenario::Device::QUEUE_PAIRS, seed);
        options.media = MediaOptions { cache: volatile_cache, ..options.media }.slowed(slowed.into(), 1);
        options.media.inside_max = inside_max.unwrap_or(options.media.inside_max);
        options.arbitration = device.arbitration.unwrap_or(options.arbitration);
        let mut controller = Controller::new(options);
        controller.set_spells(spells);
        if has_classes {
            let refused =
                |_| "this drive offers no weighted round robin, which queues of several classes need".to_string();
            controller.enable(Mechanism::Weighted, 0).map_err(refused)?;
        }
        let classes: &[ArbClass] = match has_classes {
            true => &[ArbClass::High, ArbClass::Medium, ArbClass::Low],
            false => &[ArbClass::Medium],
        };
        let mut pair = |depth: u16, class| {
            let options = QueuePairOptions { entries: u32::from(depth) + 1, class };
            HostQueuePair::create(&mut controller, options)
                .map_err(|status| format!("the NVMe controller refused a queue of depth {depth}: {status}"))
        };
        let mut pairs = Vec::new();
        for _ in 0..queues {
            for &class in classes {
                pairs.push(pair(queue_depth, class)?);
            }
        }
        let strangers = match device.strangers {
            Some(options) => {
                let pair = pair(options.depth, ArbClass::Medium)?;
                Some(Strangers::new(options, pair, size_bytes, seed, end_ns))
            }
            None => None,
        };
        let (of_each, keepers) = (classes.len(), (0..queues).collect());
        let mut drive = Drive { controller: Some(controller), pairs, of_each, keepers, strangers, next_event: Ps::MAX };
        drive.look_ahead();
        Ok(drive)
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
        let mut has_strangers = self.strangers.as_ref().is_some_and(|strangers| strangers.wake_ns <= at / 1000);
        // Queue identifiers begin at 1 and are given out in order; the last are the strangers'.
        controller.take_interrupts(|queue| match self.keepers.get((usize::from(queue.0) - 1) / self.of_each) {
            Some(&worker) => interrupt(worker),
            None => has_strangers = true,
        });
        if let Some(strangers) = self.strangers.as_mut().filter(|_| has_strangers) {
            strangers.step(controller, at / 1000);
        }
        self.look_ahead();
    }

    fn look_ahead(&mut self) {
        let next = self.controller.as_ref().and_then(Controller::next_event_ns).unwrap_or(u64::MAX);
        let visit = self.strangers.as_ref().map_or(u64::MAX, |strangers| strangers.wake_ns);
        self.next_event = next.min(visit).checked_mul(1000).unwrap_or(Ps::MAX);
    }

    /// Puts commands into the rings of a hardware queue's classes and rings the doorbell of each that got some.
    fn ring(&mut self, queue: usize, worker: usize, now: Ps, staged: &mut [Vec<SubmissionEntry>]) {
        let controller = self.controller.as_mut().expect("a drive");
        self.keepers[queue] = worker;
        let pairs = &mut self.pairs[queue * self.of_each..][..self.of_each];
        for (pair, entries) in pairs.iter_mut().zip(staged).filter(|(_, entries)| !entries.is_empty()) {
            for entry in entries.drain(..) {
                // As many slots as tags; the queue keeps count.
                pair.submit(controller, entry).unwrap_or_else(|full| panic!("no slot for {full:?}"));
            }
            // Rounded down: the controller has been moved to its events up to here, and not beyond.
            pair.ring(controller, now / 1000);
        }
        self.look_ahead();
    }

    /// Set Features: the weights of the classes, from now on.
    fn set_class_weights(&mut self, weights: ClassWeights, now: Ps) {
        let controller = self.controller.as_mut().expect("a drive");
        let [high, medium, low] = weights.by_class();
        let weights = ArbitrationWeights::new(high, medium, low).expect("a policy's weights are 1 to 256");
        let feature = ArbitrationFeature { burst: ArbitrationBurst::ONE, weights };
        let set = controller.set_features(ArbitrationFeature::ID, feature.to_dword(), false, now / 1000);
        set.expect("a controller that was enabled has this feature");
        self.look_ahead();
    }

    /// Takes what ended from the rings of a hardware queue.
    fn poll(&mut self, queue: usize, now: Ps, mut each: impl FnMut(u16, bool)) {
        let controller = self.controller.as_mut().expect("a drive");
        for pair in &mut self.pairs[queue * self.of_each..][..self.of_each] {
            while let Some(completion) = pair.poll(controller) {
                each(completion.cid, completion.status.is_success());
            }
            pair.ring_completions(controller, now / 1000);
        }
        self.look_ahead();
    }
}

/// Device as blk sees it: one for a whole run, a queue of it for each worker.
pub struct SimDevice {
    info: DeviceInfo,
    is_null: bool,
    limits: QueueLimits,
    /// It arbitrates among queues of different classes by their weights.
    has_classes: bool,
    class_weights: Arc<Mutex<Vec<WeightsOutcome>>>,
    /// Time of a core for each command it gives to the device, before it releases its locks.
    submit: Ps,
    /// Interrupt handler of each open queue.
    interrupts: Mutex<Vec<Interrupt>>,
}

impl SimDevice {
    /// Device of a scenario. `submit`: time of a core for each command.
    pub fn new(device: &scenario::Device, submit: Ps) -> SimDevice {
        let is_null = device.preset.is_none();
        let info = DeviceInfo {
            size_bytes: device.size_bytes,
            block_bytes: if is_null { 1 } else { BLOCK_BYTES },
            preferred_bytes: 4096,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            volatile_cache: device.volatile_cache.is_some(),
            pages_align_bytes: 0,
        };
        let limits = QueueLimits { queues_max: device.queue_pairs.into(), ..QueueLimits::UNLIMITED };
        let preset = device.preset.as_deref().and_then(|name| Preset::by_name(name).ok());
        let arbitration = preset.map(|preset| device.arbitration.unwrap_or(Arbitration::of(&preset)));
        let has_classes = arbitration.is_some_and(|arbitration| arbitration.offers(Mechanism::Weighted));
        let (class_weights, interrupts) = Default::default();
        SimDevice { info, is_null, limits, has_classes, class_weights, submit, interrupts }
    }

    /// Weights set so far on its class queues.
    pub fn class_weights(&self) -> Vec<WeightsOutcome> {
        self.class_weights.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The next queue, with so many classes. Queues are opened in the order of their numbers.
    fn open(&self, options: QueueOptions, classes: usize) -> Box<SimQueue> {
        let depth = usize::from(options.depth);
        let mut interrupts = self.interrupts.lock().unwrap_or_else(PoisonError::into_inner);
        let number = interrupts.len();
        interrupts.push(options.interrupt);
        Box::new(SimQueue {
            number,
            submit: self.submit,
            is_null: self.is_null,
            depth,
            flights: (0..classes * depth).map(|_| None).collect(),
            in_flight: vec![0; classes].into(),
            staged: (0..classes).map(|_| Vec::with_capacity(depth)).collect(),
            ended: Vec::with_capacity(classes * depth),
            class_weights: self.class_weights.clone(),
        })
    }
}

impl SimDevice {
    /// Interrupt handler of this queue, which must be open.
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
}

impl MultiQueue for SimDevice {
    fn queue_limits(&self) -> QueueLimits {
        self.limits
    }

    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(self.open(options, 1))
    }

    fn offers_class_queues(&self) -> bool {
        self.has_classes
    }

    fn open_class_queues(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(self.open(options, CLASSES))
    }
}

/// One hardware queue, or a set of three.
struct SimQueue {
    number: usize,
    submit: Ps,
    is_null: bool,
    /// Depth of each class.
    depth: usize,
    /// By tag: a tag names a command among those of all classes.
    flights: Box<[Option<Command>]>,
    /// By class.
    in_flight: Box<[usize]>,
    /// By class.
    staged: Box<[Vec<SubmissionEntry>]>,
    ended: Vec<Reaped>,
    class_weights: Arc<Mutex<Vec<WeightsOutcome>>>,
}

impl SimQueue {
    /// Class queue of a command.
    fn class(&self, command: &Command) -> usize {
        if self.staged.len() == 1 { 0 } else { command.class.index() }
    }
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
        let class = self.class(&command);
        if self.in_flight[class] == self.depth {
            return Err(QueueFull(command));
        }
        self.in_flight[class] += 1;
        if self.submit > 0 {
            core::compute(self.submit);
        }
        if self.is_null {
            self.ended.push(command.ended(Status::Ok));
            return Ok(());
        }
        self.staged[class].push(entry(&command));
        let tag = usize::from(command.tag.0);
        let before = self.flights[tag].replace(command);
        assert!(before.is_none(), "tag {tag} is already in flight");
        Ok(())
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {
        if self.staged.iter().any(|entries| !entries.is_empty()) {
            core::device(|drive, worker, now| drive.ring(self.number, worker, now, &mut self.staged));
        }
    }

    fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
        if self.in_flight() == 0 {
            return;
        }
        if self.is_null {
            self.in_flight[0] -= self.ended.len();
        } else {
            let SimQueue { flights, ended, number, in_flight, .. } = self;
            let has_classes = in_flight.len() > 1;
            core::device(|drive, _, now| {
                drive.poll(*number, now, |cid, is_success| {
                    let command = flights[usize::from(cid)].take().expect("it was in flight");
                    in_flight[if has_classes { command.class.index() } else { 0 }] -= 1;
                    let status = if is_success { Status::Ok } else { Status::Io };
                    ended.push(command.ended(status));
                });
            });
            core::interrupt_taken();
        }
        out.append(&mut self.ended);
    }

    fn next_event_ns(&self) -> Option<u64> {
        // The null device's completions are there already; a drive interrupts.
        (!self.ended.is_empty()).then_some(0)
    }

    fn in_flight(&self) -> usize {
        self.in_flight.iter().sum()
    }

    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        if self.staged.len() == 1 {
            return false;
        }
        core::device(|drive, _, now| drive.set_class_weights(weights, now));
        let ClassWeights { high, medium, low } = weights;
        let mut set = self.class_weights.lock().unwrap_or_else(PoisonError::into_inner);
        set.push(WeightsOutcome { at_ns: now_ns, high, medium, low });
        true
    }
}
