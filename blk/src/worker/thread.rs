//! The worker as a thread: one core, one ring, and the state that the workers of an engine share.
//!
//! News from outside reach a worker through its bell (`bell.rs`): a policy's kick, a device's interrupt, mail. Each is
//! published before the bell is rung, and a turn begins with `woke`, so a worker that finds nothing after its
//! `may_sleep` answered true has seen everything published before (W1 of `mqfq_sched::wake`).
//!
//! This file makes all threads that run on, but for the one that closes descriptors (`edge/passed.rs`).

use super::changes::LiveDevices;
use super::{Worker, WorkerOptions};
use crate::ask::Ask;
use crate::client::MakeClient;
use crate::counters::Counters;
use crate::device::null::NullDevice;
use crate::device::{Ailing, Device, DeviceInfo, QueueOptions};
use crate::hctx::{HwCtx, HwCtxOptions};
use crate::path_options::PathOptions;
use crate::ring::{self, DeviceRing, Ring};
use crate::split::SplitControl;
use crate::stage::StageLimits;
use crate::stats::Trouble;
use crate::tuning::Tuning;
use crate::worker::bell::Bell;
use crate::worker::clock::Clock;
use crate::worker::cores::{self, Cpu};
use crate::worker::host::{Ended, Host, HostEvent, Mail};
use crate::worker::steps::Steps;
use crate::worker::wake_up;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::Weight;
use mqfq_sched::policy::{AnyPolicy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::write_cost::WriteCost;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

/// A device's policy, and its tuning.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) policy: Arc<AnyPolicy>,
    pub(crate) tuning: Option<Arc<Tuning>>,
}

/// A device, as the workers share it.
pub(crate) struct SharedDevice {
    pub(crate) device: Arc<dyn Device>,
    /// Policy that workers start with; each keeps it, or the one it was given since.
    pub(crate) running: Mutex<Running>,
    pub(crate) queue_depth: u16,
    pub(crate) limits: Vec<StageLimits>,
    pub(crate) cost: CostModel,
    /// Cost of writes, if it is followed.
    pub(crate) write_cost: Option<Arc<WriteCost>>,
    pub(crate) path: PathOptions,
    pub(crate) split: Arc<SplitControl>,
    /// Counters of each worker, by worker, once it has started.
    pub(crate) counters: Box<[OnceLock<Arc<Counters>>]>,
}

impl SharedDevice {
    pub(crate) fn running(&self) -> Running {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Parts of the device that do not carry out all operations.
    pub(crate) fn ailing(&self) -> Vec<Ailing> {
        let mut ailing = self.device.ailing();
        // A command times out so long after it was sent.
        let sent = ailing.iter_mut().filter_map(|part| part.hangs_since_ns.as_mut());
        sent.for_each(|since_ns| *since_ns = since_ns.saturating_sub(self.path.timeout_ns));
        ailing
    }

    pub(crate) fn set_running(&self, running: Running) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = running;
    }
}

/// A worker's mail, away from its neighbours': each worker takes its own lock in every turn of its loop.
///
/// 128 bytes, not 64: x86-64 prefetches the other line of a pair.
#[derive(Default)]
#[repr(align(128))]
struct Mailbox(Mutex<Letters>);

/// A worker's turns and its use of the machine, away from its neighbours' as above. It alone writes them.
#[derive(Default)]
#[repr(align(128))]
struct Pace {
    /// Turns that have ended.
    turns: AtomicU64,
    /// Time spent spinning, ns.
    spun_ns: AtomicU64,
    /// Time awake for what did not come, ns.
    in_vain_ns: AtomicU64,
    /// The kernel's number of its thread; 0: it has none of its own.
    thread: AtomicI32,
}

/// Mail that waits, and whether a worker will read it.
#[derive(Default)]
struct Letters {
    waiting: VecDeque<Mail>,
    /// The worker panicked: mail to it is dropped, and with it the sender's reply channel.
    is_closed: bool,
}

/// Called with the index of a worker that panicked.
pub(crate) type OnPanic = Box<dyn FnOnce(usize) + Send>;

/// Called with the index of a device whose commands take too long, on the worker's thread: by several at once.
pub(crate) type OnTrouble = Box<dyn Fn(usize, Trouble) + Send + Sync>;

/// Action for the first worker that panics, and whether one has.
#[derive(Default)]
struct Alarm {
    panicked: Option<usize>,
    action: Option<OnPanic>,
}

impl Alarm {
    /// The action, with its argument, once there are both.
    fn due(&mut self) -> Option<(OnPanic, usize)> {
        self.panicked.and_then(|worker| Some((self.action.take()?, worker)))
    }
}

/// State that the workers of an engine share.
pub(crate) struct EngineShared {
    pub(crate) clock: Clock,
    /// How the caller steps the workers; `None`: each has a thread of its own.
    pub(crate) steps: Option<Steps>,
    pub(crate) bells: Vec<Arc<Bell>>,
    mailboxes: Vec<Mailbox>,
    /// By index; `None` where there was a device and is no other yet. Looked at when a worker begins, or is told that a
    /// device has come.
    devices: Mutex<Vec<Option<Arc<SharedDevice>>>>,
    paces: Vec<Pace>,
    /// A worker whose next device event is nearer than this spins instead of sleeping, ns.
    pub(crate) spin_ns: u64,
    /// Time for which staying awake pays, ns ([`wake_up::poll_ns`]).
    pub(crate) poll_ns: u64,
    next_worker: AtomicUsize,
    alarm: Mutex<Alarm>,
    on_trouble: OnceLock<OnTrouble>,
}

impl EngineShared {
    pub(crate) fn new(
        clock: Clock,
        steps: Option<Steps>,
        bells: Vec<Arc<Bell>>,
        devices: Vec<Arc<SharedDevice>>,
        spin_ns: u64,
        poll_ns: u64,
    ) -> EngineShared {
        let mailboxes = bells.iter().map(|_| Mailbox::default()).collect();
        let devices = Mutex::new(devices.into_iter().map(Some).collect());
        let paces = bells.iter().map(|_| Pace::default()).collect();
        EngineShared {
            clock,
            steps,
            bells,
            mailboxes,
            paces,
            devices,
            spin_ns,
            poll_ns,
            next_worker: AtomicUsize::new(0),
            alarm: Mutex::default(),
            on_trouble: OnceLock::new(),
        }
    }

    /// The device of an index, if there is one.
    pub(crate) fn device(&self, index: usize) -> Option<Arc<SharedDevice>> {
        self.devices().get(index).cloned().flatten()
    }

    /// All devices, by index.
    pub(crate) fn devices(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedDevice>>>> {
        // A list is whole even if its holder panicked.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a worker's answer.
    ///
    /// # Errors
    /// As [`mpsc::Receiver::recv_timeout`].
    pub(crate) fn answer<T>(&self, answers: &mpsc::Receiver<T>, patience: Duration) -> Result<T, RecvTimeoutError> {
        match self.steps {
            None => answers.recv_timeout(patience),
            Some(steps) => steps.answer(answers, patience),
        }
    }

    pub(crate) fn send(&self, worker: usize, mail: Mail) {
        let mut letters = self.mailbox(worker);
        if letters.is_closed {
            // Not under the lock: a client's constructor is dropped with it, which may do anything.
            drop(letters);
            drop(mail);
            return;
        }
        letters.waiting.push_back(mail);
        drop(letters);
        self.bells[worker].kick();
    }

    /// The worker panicked and is gone: its answers are waited for no longer, and callers that asked are told.
    fn close(&self, worker: usize) {
        let mut letters = self.mailbox(worker);
        letters.is_closed = true;
        let unread = std::mem::take(&mut letters.waiting);
        drop(letters);
        // First: values dropped with the letters may panic, too.
        self.raise_alarm(|alarm| alarm.panicked = alarm.panicked.or(Some(worker)));
        drop(unread);
    }

    /// Has `action` called once if a worker panics, or has already.
    pub(crate) fn on_panic(&self, action: OnPanic) {
        self.raise_alarm(|alarm| alarm.action = Some(action));
    }

    /// Has `action` called whenever commands take too long. The first action stays.
    pub(crate) fn on_trouble(&self, action: OnTrouble) {
        // A later one is dropped.
        let _ = self.on_trouble.set(action);
    }

    fn raise_alarm(&self, change: impl FnOnce(&mut Alarm)) {
        let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut alarm);
        let due = alarm.due();
        drop(alarm);
        if let Some((action, worker)) = due {
            action(worker);
        }
    }

    /// Gives a client to the next worker, round robin.
    pub(crate) fn attach(&self, make: MakeClient) {
        // Relaxed: any spread will do; only the count matters.
        let next = self.next_worker.fetch_add(1, Ordering::Relaxed);
        self.send(next % self.bells.len(), Mail::Attach(make));
    }

    pub(crate) fn turns(&self) -> Vec<u64> {
        // Relaxed: nothing else is ordered by them; whether they move is all that is asked.
        self.paces.iter().map(|pace| pace.turns.load(Ordering::Relaxed)).collect()
    }

    /// For how long each worker wanted a core until now, ns ([`crate::engine::WorkerStats::wanted_ns`]).
    pub(crate) fn wanted_ns(&self, worker: usize) -> Option<u64> {
        let Pace { spun_ns, thread, .. } = &self.paces[worker];
        // Relaxed, both: each is right for itself, and late is as good.
        let (thread, spun_ns) = (thread.load(Ordering::Relaxed), spun_ns.load(Ordering::Relaxed));
        let wanted_ns = (thread != 0).then(|| cores::wanted_ns(thread))??;
        Some(wanted_ns.saturating_sub(spun_ns))
    }

    /// Time that a worker was awake for what did not come, ns ([`crate::engine::WorkerStats::in_vain_ns`]).
    pub(crate) fn in_vain_ns(&self, worker: usize) -> u64 {
        // Relaxed: late is as good.
        self.paces[worker].in_vain_ns.load(Ordering::Relaxed)
    }

    fn mailbox(&self, worker: usize) -> MutexGuard<'_, Letters> {
        // A queue of messages is whole even if a sender panicked.
        self.mailboxes[worker].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the worker's thread. Reports once whether it could open its ring and device queues.
pub(crate) fn start(
    shared: Arc<EngineShared>,
    index: usize,
    cpu: Option<Cpu>,
    started: mpsc::Sender<Result<(), String>>,
) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(format!("mqfq-worker-{index}")).spawn(move || {
        // Relaxed: it is read for reports alone.
        shared.paces[index].thread.store(cores::this_thread(), Ordering::Relaxed);
        if let Some(cpu) = cpu {
            // Pinning is for speed; where it is not allowed the worker floats.
            let _ = cores::pin(cpu);
        }
        let all_shared = shared.clone();
        // Values that a panic leaves behind are dropped on its way up here; only the shared mailbox and alarm are used
        // after it.
        let ended = catch_unwind(AssertUnwindSafe(move || match open(shared, index) {
            Ok(mut worker) => {
                let told = started.send(Ok(()));
                drop(started);
                if told.is_ok() {
                    worker.work();
                }
            }
            // The engine that started us waits for this; if it is gone the result has no reader.
            Err(error) => drop(started.send(Err(error))),
        }));
        if ended.is_err() && catch_unwind(AssertUnwindSafe(|| all_shared.close(index))).is_err() {
            // The action on the panic failed: the panic would go unreported, and the worker's clients wait for ever.
            std::process::abort();
        }
    })
}

/// Sets a ring up and drops it: could a worker have one here?
///
/// # Errors
/// One sentence.
pub(crate) fn check_ring() -> Result<(), String> {
    let bell = Bell::new().map_err(|error| format!("cannot make an eventfd: {error}"))?;
    Ring::new(bell.event()).map(drop).map_err(|error| ring::cannot_set_up(&error))
}

/// The worker of this index, with its ring and its queue of each device.
fn open(shared: Arc<EngineShared>, index: usize) -> Result<Worker<ThreadHost>, String> {
    let ring = Ring::new(shared.bells[index].event())
        .map_err(|error| format!("worker {index}: {}", ring::cannot_set_up(&error)))?;
    let host = ThreadHost { context: WorkerContext { shared, index }, ring };
    WorkerContext::worker(host, ring::COMPLETION_ENTRIES as usize)
}

/// A stand-in for a device that is gone: it is never asked for anything.
fn vacant() -> (HwCtx<AnyPolicy>, DeviceInfo) {
    let id = HctxId(0);
    let device = NullDevice::new(1);
    let options = QueueOptions { hctx: id, depth: 1, ring: None, interrupt: Arc::new(|_| ()) };
    let queue = device.open_queue(options).expect("a null device has as many queues as it is asked for");
    let policy = AnyPolicy::new(&PolicyOptions::new(PolicyKind::None), &Topology::flat(1), &[Weight::DEFAULT]);
    let hctx = HwCtx::new(HwCtxOptions {
        id,
        policy: Arc::new(policy.expect("a policy without options")),
        device: queue,
        queue_depth: 1,
        limits: vec![StageLimits { requests_max: 0, bytes_max: 0 }],
        cost: CostModel::FLAT,
        path: PathOptions::default().for_device(&device.info()),
    });
    (hctx, device.info())
}

/// A worker's part in its engine, on any host: its bell, its mail, its queue of each device.
pub struct WorkerContext {
    pub(crate) shared: Arc<EngineShared>,
    pub(crate) index: usize,
}

/// The part of a [`Host`] that the context of a [`HasWorkerContext`] has. Goes into the implementation of `Host`.
#[macro_export]
macro_rules! worker_context {
    () => {
        fn kick(&mut self, hctx: $crate::HctxId) {
            $crate::worker::HasWorkerContext::worker_context(self).kick(hctx);
        }

        fn may_sleep(&mut self) -> bool {
            $crate::worker::HasWorkerContext::worker_context(self).may_sleep()
        }

        fn is_kicked(&mut self) -> bool {
            $crate::worker::HasWorkerContext::worker_context(self).is_kicked()
        }

        fn take_mail(&mut self) -> Option<$crate::worker::host::Mail> {
            $crate::worker::HasWorkerContext::worker_context(self).take_mail()
        }

        fn spun(&mut self, ns: u64) {
            $crate::worker::HasWorkerContext::worker_context(self).spun(ns);
        }

        fn in_vain(&mut self, ns: u64) {
            $crate::worker::HasWorkerContext::worker_context(self).in_vain(ns);
        }

        fn troubled(&mut self, device: usize, trouble: $crate::stats::Trouble) {
            $crate::worker::HasWorkerContext::worker_context(self).troubled(device, trouble);
        }
    };
}

/// A host with the context of a worker: [`worker_context!`](crate::worker_context) hands the context's part of [`Host`]
/// to it.
pub trait HasWorkerContext: Host {
    /// It.
    fn worker_context(&self) -> &WorkerContext;

    /// The door of a device's queue to the host's ring, if it has one.
    fn device_ring(&self, device: u16) -> Option<DeviceRing> {
        let _ = device;
        None
    }

    /// Drops a device; operations that its queue has put on the host are no events any more.
    fn close_device(&mut self, device: u16) {
        let _ = device;
    }
}

impl WorkerContext {
    fn bell(&self) -> &Bell {
        &self.shared.bells[self.index]
    }

    fn id(&self) -> HctxId {
        HctxId(u16::try_from(self.index).expect("fewer than 65536 workers"))
    }

    /// The worker's place in the engine.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The engine's time, ns.
    pub fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    /// See [`Host::kick`].
    pub fn kick(&self, hctx: HctxId) {
        self.shared.bells[hctx.0 as usize].kick();
    }

    /// See [`Host::may_sleep`].
    pub fn may_sleep(&self) -> bool {
        self.bell().may_sleep()
    }

    /// See [`Host::woke`].
    pub fn woke(&self) {
        self.bell().woke();
    }

    /// See [`Host::is_kicked`].
    pub fn is_kicked(&self) -> bool {
        self.bell().is_kicked()
    }

    /// See [`Host::take_mail`].
    pub fn take_mail(&self) -> Option<Mail> {
        self.shared.mailbox(self.index).waiting.pop_front()
    }

    /// See [`Ask::Attach`].
    pub fn attach(&self, make: MakeClient) {
        self.shared.attach(make);
    }

    /// See [`Host::troubled`].
    pub fn troubled(&self, device: usize, trouble: Trouble) {
        if let Some(action) = self.shared.on_trouble.get() {
            action(device, trouble);
        }
    }

    /// See [`Host::turned`].
    pub fn turned(&self) {
        let Pace { turns, .. } = &self.shared.paces[self.index];
        // Relaxed, both: this worker alone writes it.
        turns.store(turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// See [`Host::spun`].
    pub fn spun(&self, ns: u64) {
        let Pace { spun_ns, .. } = &self.shared.paces[self.index];
        // Relaxed, both: as above.
        spun_ns.store(spun_ns.load(Ordering::Relaxed).wrapping_add(ns), Ordering::Relaxed);
    }

    /// See [`Host::in_vain`].
    pub fn in_vain(&self, ns: u64) {
        let Pace { in_vain_ns, .. } = &self.shared.paces[self.index];
        // Relaxed, both: as above.
        in_vain_ns.store(in_vain_ns.load(Ordering::Relaxed).wrapping_add(ns), Ordering::Relaxed);
    }

    /// The worker that sits here, with its queue of each device. Once.
    ///
    /// # Errors
    /// One sentence: a device queue that could not be opened.
    pub fn worker<H: HasWorkerContext>(host: H, ended_max: usize) -> Result<Worker<H>, String> {
        let shared = host.worker_context().shared.clone();
        let devices: Vec<Arc<SharedDevice>> = shared.devices().iter().flatten().cloned().collect();
        let hctxs: Result<Vec<_>, String> = devices
            .iter()
            .zip(0..)
            .map(|(device, number)| host.worker_context().open_context(device, host.device_ring(number)))
            .collect();
        let infos: Vec<DeviceInfo> = devices.iter().map(|device| device.device.info()).collect();
        let mut options = WorkerOptions { spin_ns: shared.spin_ns, ended_max, ..WorkerOptions::default() };
        if shared.steps.is_none() {
            options.patience_ns = wake_up::spin_ns(shared.bells.len(), shared.poll_ns);
            options.poll_ns = shared.poll_ns;
        }
        let devices = LiveDevices { open: open_device::<H>, close: close_device::<H> };
        Ok(Worker::new(host, hctxs?, infos, options).with_devices(devices))
    }

    /// This worker's context of a device.
    fn open_context(&self, device: &SharedDevice, ring: Option<DeviceRing>) -> Result<HwCtx<AnyPolicy>, String> {
        let bells = self.shared.bells.clone();
        let queue = device.device.open_queue(QueueOptions {
            hctx: self.id(),
            depth: device.queue_depth,
            ring,
            interrupt: Arc::new(move |hctx: HctxId| bells[hctx.0 as usize].kick()),
        })?;
        let Running { policy, tuning } = device.running();
        let mut hctx = HwCtx::new(HwCtxOptions {
            id: self.id(),
            policy,
            device: queue,
            queue_depth: device.queue_depth,
            limits: device.limits.clone(),
            cost: device.cost,
            path: device.path.for_device(&device.device.info()),
        });
        hctx.set_tuning(tuning, self.shared.clock.now_ns());
        let hctx = hctx.with_split(device.split.clone());
        let hctx = if device.device.has_class_queues() { hctx.with_class_queues() } else { hctx };
        let hctx = match &device.write_cost {
            Some(cost) => hctx.with_write_cost(cost.clone()),
            None => hctx,
        };
        let hctx = if device.path.bypass { hctx.raw() } else { hctx };
        // A worker opens a device once.
        let _ = device.counters[self.index].set(hctx.counters().clone());
        Ok(hctx)
    }
}

fn open_device<H: HasWorkerContext>(host: &mut H, device: u16) -> Result<(HwCtx<AnyPolicy>, DeviceInfo), String> {
    let context = host.worker_context();
    let shared = context.shared.device(device.into()).ok_or("it has gone before it was opened")?;
    Ok((context.open_context(&shared, host.device_ring(device))?, shared.device.info()))
}

fn close_device<H: HasWorkerContext>(host: &mut H, device: u16) -> (HwCtx<AnyPolicy>, DeviceInfo) {
    host.close_device(device);
    vacant()
}

/// A worker's surroundings on a thread: see [`Host`].
struct ThreadHost {
    context: WorkerContext,
    ring: Ring,
}

impl ThreadHost {
    fn entered(&self, result: io::Result<()>) -> io::Result<()> {
        let index = self.context.index;
        result.map_err(|error| io::Error::new(error.kind(), format!("worker {index}: io_uring_enter: {error}")))
    }
}

impl HasWorkerContext for ThreadHost {
    fn worker_context(&self) -> &WorkerContext {
        &self.context
    }

    fn device_ring(&self, device: u16) -> Option<DeviceRing> {
        Some(self.ring.device_ring(device))
    }

    fn close_device(&mut self, device: u16) {
        self.ring.close_device(device);
    }
}

impl Host for ThreadHost {
    crate::worker_context!();

    fn now_ns(&mut self) -> u64 {
        self.context.now_ns()
    }

    fn woke(&mut self) {
        self.context.woke();
    }

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        self.ring.collect(ended);
    }

    fn resolve(&mut self, ended: Ended) -> Option<HostEvent> {
        self.ring.resolve(ended)
    }

    fn has_ended(&mut self) -> bool {
        self.ring.has_ended()
    }

    fn enter(&mut self) -> io::Result<()> {
        let result = self.ring.enter();
        self.entered(result)
    }

    fn enter_and_wait(&mut self, wait_ns: Option<u64>, _is_held_back: bool) -> io::Result<()> {
        let result = self.ring.enter_and_wait(wait_ns);
        self.entered(result)
    }

    fn spin_hint(&mut self) {
        std::hint::spin_loop();
    }

    #[inline]
    fn ask(&mut self, client: u32, ask: Ask) {
        match ask {
            Ask::Attach { make } => self.context.attach(make),
            Ask::Timer { at_ns, user } => {
                // A timer owns nothing: see `Ring::ask`.
                std::mem::forget(ask);
                // Counted from when the ring is entered, which is later: the timer is never early.
                let wait_ns = at_ns.saturating_sub(self.context.now_ns());
                self.ring.timer(client, Duration::from_nanos(wait_ns), user);
            }
            ask => self.ring.ask(client, ask),
        }
    }

    fn take_back(&mut self, client: u32, user: u32) -> u32 {
        self.ring.take_back(client, user)
    }

    fn abort(&mut self, client: Option<u32>) {
        self.ring.abort(client);
    }

    fn turned(&mut self) {
        self.context.turned();
    }

    fn cancel_waits(&mut self, client: u32) {
        self.ring.cancel_waits(client);
    }
}
