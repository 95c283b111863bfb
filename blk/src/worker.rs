//! A worker: one thread, one core, one ring, one hctx per device, and the clients bound to it.
//!
//! # One turn of the loop
//! ```text
//!   mail ─▶ ring events ─▶ clients ─▶ submit ┐
//!                                            ▼
//!                 ┌──────────────▶ run ─▶ doorbell ─▶ reap ─▶ completions ─▶ clients ─┐
//!                 └──────────── while something moved (bounded) ◀────────────────────┘
//!   room ─▶ turn_end of each client that was called ─▶ enter the kernel (sleep if nothing is left to do)
//! ```
//!
//! # Going to sleep
//! A worker that only waits for another one to go on may spin for a while first (`patience.rs`).
//!
//! What others may have for a worker reaches it through its bell (`kick.rs`): a policy's kick, a device's interrupt,
//! mail. Each is published before the bell is rung, and a turn begins with `woke`, so a worker that finds nothing after
//! its `may_sleep` answered true has seen everything published before (W1 of `mqfq_sched::wake`).
//!
//! This file is the only one of the crate that makes threads.

use crate::client::{Client, Context, DeviceIndex, MakeClient, Part, Refused};
use crate::clock::Clock;
use crate::device::{Device, DeviceInfo, QueueOptions};
use crate::hctx::{Full, HwCtx, HwCtxOptions};
use crate::kick::Bell;
use crate::machine::{self, Cpu};
use crate::patience::{Patience, SPIN_NS};
use crate::request::{Completion, Submission};
use crate::ring::{self, Ended, Ring, RingEvent};
use crate::stage::StageLimits;
use crate::stats::{FlowStats, HctxStats};
use crate::table::Owner;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::AnyPolicy;
use mqfq_sched::topology::HctxId;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// Rounds of run and reap in one turn before the worker looks at its sockets again. A device that completes at once
/// would otherwise keep the worker as long as its clients have requests staged.
const ROUNDS_MAX: usize = 4;

/// A message to a worker.
pub(crate) enum Mail {
    /// Make a client here.
    Attach(MakeClient),
    /// Ask every client to drain; report when none is left.
    Drain(mpsc::Sender<()>),
    /// Shut down the sockets that clients wait on: the grace time of a drain is over.
    Abort,
    /// Report counters.
    Snapshot(mpsc::Sender<WorkerStats>),
    /// Leave.
    Stop,
}

/// One worker's counters: per device, its context's and its flows'.
pub(crate) type WorkerStats = Vec<(HctxStats, Vec<FlowStats>)>;

/// What a device is to a worker.
pub(crate) struct SharedDevice {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) policy: Arc<AnyPolicy>,
    pub(crate) queue_depth: u16,
    pub(crate) limits: Vec<StageLimits>,
    pub(crate) cost: CostModel,
}

/// A worker's mail, away from its neighbours': each worker takes its own lock in every turn of its loop.
///
/// 128 bytes, not 64: x86-64 prefetches the other line of a pair.
#[derive(Default)]
#[repr(align(128))]
struct Mailbox(Mutex<Letters>);

/// Mail that waits, and whether anybody will read it.
#[derive(Default)]
struct Letters {
    waiting: VecDeque<Mail>,
    /// The worker panicked: what is sent to it is dropped, and with it whatever the sender waits for.
    is_closed: bool,
}

/// Called with the index of a worker that panicked.
pub(crate) type OnPanic = Box<dyn FnOnce(usize) + Send>;

/// What is to be done when the first worker panics, and whether that has happened.
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

/// What the workers of an engine share.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) bells: Vec<Arc<Bell>>,
    mailboxes: Vec<Mailbox>,
    pub(crate) devices: Vec<SharedDevice>,
    /// A worker whose next device event is nearer than this spins instead of sleeping, ns.
    pub(crate) spin_ns: u64,
    next_worker: AtomicUsize,
    alarm: Mutex<Alarm>,
}

impl Shared {
    pub(crate) fn new(clock: Clock, bells: Vec<Arc<Bell>>, devices: Vec<SharedDevice>, spin_ns: u64) -> Shared {
        let mailboxes = bells.iter().map(|_| Mailbox::default()).collect();
        Shared { clock, bells, mailboxes, devices, spin_ns, next_worker: AtomicUsize::new(0), alarm: Mutex::default() }
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

    /// The worker panicked and is gone: nobody waits for its answers any more, and whoever asked is told.
    fn close(&self, worker: usize) {
        let mut letters = self.mailbox(worker);
        letters.is_closed = true;
        let unread = std::mem::take(&mut letters.waiting);
        drop(letters);
        drop(unread);
        self.raise_alarm(|alarm| alarm.panicked = alarm.panicked.or(Some(worker)));
    }

    /// Has `action` called once if a worker panics, or has already.
    pub(crate) fn on_panic(&self, action: OnPanic) {
        self.raise_alarm(|alarm| alarm.action = Some(action));
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

    fn mailbox(&self, worker: usize) -> MutexGuard<'_, Letters> {
        // A queue of messages is whole even if a sender panicked.
        self.mailboxes[worker].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the worker's thread. Reports once whether it could open its ring and device queues.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    index: usize,
    cpu: Option<Cpu>,
    started: mpsc::Sender<Result<(), String>>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(format!("mqfq-worker-{index}")).spawn(move || {
        if let Some(cpu) = cpu {
            // Pinning is for speed; where it is not allowed the worker floats.
            let _ = machine::pin(cpu);
        }
        let all_shared = shared.clone();
        // What a panic leaves behind is dropped on its way up here; only the shared mailbox and alarm are used after it.
        let ended = catch_unwind(AssertUnwindSafe(move || match Worker::new(shared, index) {
            Ok(mut worker) => {
                let told = started.send(Ok(()));
                drop(started);
                if told.is_ok() {
                    worker.work();
                }
            }
            // The engine that started us waits for this; if it is gone there is nobody to tell.
            Err(error) => drop(started.send(Err(error))),
        }));
        if ended.is_err() {
            all_shared.close(index);
        }
    })
}

/// A client and what it has in flight.
struct Slot {
    client: Option<Box<dyn Client>>,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    operations: u32,
    requests: u32,
    called: bool,
}

/// A client that was refused, and for which flow. At most one of a kind, however often it was refused.
#[derive(PartialEq, Eq)]
struct Waiting {
    device: DeviceIndex,
    flow: FlowId,
    client: u32,
}

/// Everything that a client may reach through its context.
struct Core {
    shared: Arc<Shared>,
    now_ns: u64,
    ring: Ring,
    hctxs: Vec<HwCtx<AnyPolicy>>,
    infos: Vec<DeviceInfo>,
    waiting: Vec<Waiting>,
    /// The client that is being told of room: it alone need not wait behind others.
    told: Option<u32>,
    index: usize,
    /// A request was staged since the last run.
    staged: bool,
}

struct Worker {
    core: Core,
    clients: Vec<Slot>,
    free: Vec<u32>,
    called: Vec<u32>,
    completions: Vec<(Owner, Completion)>,
    ended: Vec<Ended>,
    patience: Patience,
    drained: Option<mpsc::Sender<()>>,
    draining: bool,
    stopped: bool,
}

/// The context of one call into one client.
struct Call<'a> {
    core: &'a mut Core,
    counts: &'a mut Counts,
    client: u32,
}

impl Context for Call<'_> {
    fn now_ns(&self) -> u64 {
        self.core.now_ns
    }

    fn device(&self, device: DeviceIndex) -> DeviceInfo {
        self.core.infos[device.0 as usize]
    }

    fn submit(&mut self, device: DeviceIndex, submission: Submission) -> Result<(), Refused> {
        let flow = submission.flow;
        let core = &mut *self.core;
        // Behind those who wait already, or a client that refills each place as it frees would never let the flow fall to
        // where the others are told, and they would wait for ever.
        let waiting = Waiting { device, flow, client: self.client };
        if core.told != Some(self.client) && core.waiting.iter().any(|other| other.is_for(device, flow)) {
            core.wait(waiting);
            return Err(Refused::TenantFull(submission));
        }
        let bells = &core.shared.bells;
        let hctx = &mut core.hctxs[device.0 as usize];
        match hctx.submit(Owner(self.client), submission, core.now_ns, &mut |hctx| kick(bells, hctx)) {
            Ok(()) => {
                core.staged = true;
                self.counts.requests += 1;
                Ok(())
            }
            Err(Full(submission)) => {
                core.wait(waiting);
                Err(Refused::TenantFull(submission))
            }
        }
    }

    fn receive(&mut self, socket: RawFd, buffer: crate::buffer::Buffer, start: usize, end: usize, user: u32) {
        self.counts.operations += 1;
        self.core.ring.receive(self.client, socket, buffer, start, end, user);
    }

    fn send(&mut self, socket: RawFd, parts: Vec<Part>, user: u32) {
        self.counts.operations += 1;
        self.core.ring.send(self.client, socket, parts, user);
    }

    fn accept(&mut self, listener: RawFd, user: u32) {
        self.counts.operations += 1;
        self.core.ring.accept(self.client, listener, user);
    }

    fn attach(&mut self, make: MakeClient) {
        self.core.shared.attach(make);
    }

    fn shutdown(&mut self, socket: RawFd) {
        ring::shutdown(socket);
    }
}

fn kick(bells: &[Arc<Bell>], hctx: HctxId) {
    bells[hctx.0 as usize].kick();
}

impl Waiting {
    fn is_for(&self, device: DeviceIndex, flow: FlowId) -> bool {
        self.device == device && self.flow == flow
    }
}

impl Core {
    fn wait(&mut self, waiting: Waiting) {
        if !self.waiting.contains(&waiting) {
            self.waiting.push(waiting);
        }
    }

    fn new(shared: Arc<Shared>, index: usize) -> Result<Core, String> {
        let mut ring = Ring::new(shared.bells[index].event())
            .map_err(|error| format!("worker {index} cannot set up io_uring: {error}"))?;
        ring.register_files(&shared.devices.iter().map(|device| device.device.ring_file()).collect::<Vec<_>>());
        let id = HctxId(u16::try_from(index).expect("fewer than 65536 workers"));
        let mut hctxs = Vec::new();
        for (number, device) in shared.devices.iter().enumerate() {
            let bells = shared.bells.clone();
            let queue = device.device.open_queue(QueueOptions {
                hctx: id,
                depth: device.queue_depth,
                ring: Some(ring.device_ring(u16::try_from(number).expect("fewer than 65536 devices"))),
                interrupt: Arc::new(move |hctx| kick(&bells, hctx)),
            })?;
            hctxs.push(HwCtx::new(HwCtxOptions {
                id,
                policy: device.policy.clone(),
                device: queue,
                queue_depth: device.queue_depth,
                limits: device.limits.clone(),
                cost: device.cost,
            }));
        }
        let infos = shared.devices.iter().map(|device| device.device.info()).collect();
        let now_ns = shared.clock.now_ns();
        Ok(Core { shared, now_ns, ring, hctxs, infos, waiting: Vec::new(), told: None, index, staged: false })
    }

    /// Dispatches and collects on every device until nothing moves, or for [`ROUNDS_MAX`] rounds. True: there is more.
    fn run_devices(&mut self, completions: &mut Vec<(Owner, Completion)>) -> bool {
        let bells = &self.shared.bells;
        let mut kick = |hctx| kick(bells, hctx);
        let mut again = false;
        self.staged = false;
        for hctx in &mut self.hctxs {
            let run = hctx.run(self.now_ns, &mut kick);
            let reaped = hctx.reap(self.now_ns, &mut kick, completions);
            // A reap frees tags and tokens, which only the next run can use.
            again |= run.again || reaped > 0;
        }
        again
    }

    /// A policy holds back what is staged here until another worker has gone on.
    fn is_held_back(&self) -> bool {
        self.hctxs.iter().any(HwCtx::is_held_back)
    }

    /// Waits for a kick, or anything else to do, without sleeping. False if nothing came within [`SPIN_NS`].
    fn spin(&mut self, next_ns: Option<u64>) -> bool {
        let until_ns = self.now_ns + SPIN_NS;
        loop {
            if self.shared.bells[self.index].is_kicked() {
                self.shared.bells[self.index].woke();
                return true;
            }
            let now_ns = self.shared.clock.now_ns();
            if self.ring.has_ended() || next_ns.is_some_and(|next| next <= now_ns) {
                return true;
            }
            if now_ns > until_ns {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// When the worker must look at a device again, if nothing else happens before.
    fn next_event_ns(&self) -> Option<u64> {
        self.hctxs.iter().filter_map(HwCtx::next_event_ns).min()
    }
}

impl Worker {
    fn new(shared: Arc<Shared>, index: usize) -> Result<Worker, String> {
        // What one reap of each device brings at most.
        let completions_max = shared.devices.iter().map(|device| usize::from(device.queue_depth)).sum();
        Ok(Worker {
            core: Core::new(shared, index)?,
            clients: Vec::new(),
            free: Vec::new(),
            called: Vec::new(),
            completions: Vec::with_capacity(completions_max),
            ended: Vec::with_capacity(ring::COMPLETION_ENTRIES as usize),
            patience: Patience::default(),
            drained: None,
            draining: false,
            stopped: false,
        })
    }

    fn work(&mut self) {
        loop {
            let busy = self.turn();
            // Before the next sleep: the kick that brought the stop is spent, and no other will come.
            if self.stopped {
                return;
            }
            self.enter(busy);
        }
    }

    fn turn(&mut self) -> bool {
        self.core.now_ns = self.core.shared.clock.now_ns();
        self.take_mail();
        self.take_ring_events();
        let mut again = true;
        for _ in 0..ROUNDS_MAX {
            again = self.core.run_devices(&mut self.completions);
            self.deliver();
            if !again && !self.core.staged {
                break;
            }
            self.core.now_ns = self.core.shared.clock.now_ns();
        }
        self.tell_room();
        self.end_turn();
        // Clients may have submitted in their last calls.
        again || self.core.staged
    }

    fn enter(&mut self, busy: bool) {
        let now_ns = self.core.now_ns;
        let next_ns = self.core.next_event_ns();
        let soon = next_ns.is_some_and(|next| next <= now_ns + self.core.shared.spin_ns);
        let mut spun = false;
        if !busy && !soon && self.core.is_held_back() && self.patience.spins() {
            let something_came = self.core.spin(next_ns);
            self.patience.spun(something_came);
            spun = something_came;
        }
        let bell = &self.core.shared.bells[self.core.index];
        let result = if busy || soon || spun || !bell.may_sleep() {
            self.core.ring.enter()
        } else {
            let wait_ns = next_ns.map(|next| next.saturating_sub(now_ns));
            let result = self.core.ring.enter_and_wait(wait_ns);
            self.core.shared.bells[self.core.index].woke();
            result
        };
        if let Err(error) = result {
            // Nothing that a client does leads here: the ring itself is broken, and with it every connection.
            panic!("worker {}: io_uring_enter: {error}", self.core.index);
        }
    }

    fn take_mail(&mut self) {
        loop {
            let mail = self.core.shared.mailbox(self.core.index).waiting.pop_front();
            match mail {
                None => return,
                Some(Mail::Attach(make)) => self.attach(make),
                Some(Mail::Drain(done)) => self.drain(done),
                Some(Mail::Abort) => self.core.ring.shutdown_all(),
                Some(Mail::Snapshot(reply)) => {
                    let stats = self.core.hctxs.iter_mut().map(|hctx| (*hctx.stats(), hctx.flow_stats().to_vec()));
                    // A reader that no longer waits needs no answer.
                    drop(reply.send(stats.collect()));
                }
                Some(Mail::Stop) => self.stopped = true,
            }
        }
    }

    fn attach(&mut self, make: MakeClient) {
        if self.draining {
            return;
        }
        let slot = Slot { client: Some(make()), counts: Counts::default() };
        let client = if let Some(client) = self.free.pop() {
            self.clients[client as usize] = slot;
            client
        } else {
            self.clients.push(slot);
            (self.clients.len() - 1) as u32
        };
        self.call(client, |client, context| client.start(context));
    }

    fn drain(&mut self, done: mpsc::Sender<()>) {
        self.draining = true;
        self.drained = Some(done);
        for client in 0..self.clients.len() as u32 {
            self.call(client, |client, context| client.drain(context));
        }
    }

    fn take_ring_events(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.core.ring.collect(&mut ended);
        for ended in ended.drain(..) {
            match self.core.ring.resolve(ended) {
                Some(RingEvent::Client { client, event }) => {
                    self.clients[client as usize].counts.operations -= 1;
                    self.call(client, |client, context| client.event(context, event));
                }
                Some(RingEvent::Device { device, user, result }) => {
                    self.core.hctxs[device as usize].device_mut().ring_event(user, result);
                }
                Some(RingEvent::Bell) | None => {}
            }
        }
        self.ended = ended;
    }

    fn deliver(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for (Owner(client), completion) in completions.drain(..) {
            self.clients[client as usize].counts.requests -= 1;
            self.call(client, |client, context| client.completed(context, completion));
        }
        self.completions = completions;
    }

    /// Tells the clients that were refused that there is room again, in the order in which they were refused. Who got a
    /// place waits behind who got none next time.
    fn tell_room(&mut self) {
        for device in 0..self.core.hctxs.len() {
            let flows: Vec<FlowId> = self.core.hctxs[device].take_room().collect();
            let device = DeviceIndex(device as u16);
            for flow in flows {
                let told: Vec<Waiting> = self.core.waiting.extract_if(.., |w| w.is_for(device, flow)).collect();
                let mut served = Vec::new();
                for Waiting { client, .. } in told {
                    let requests = |worker: &Worker| worker.clients[client as usize].counts.requests;
                    let before = requests(self);
                    self.core.told = Some(client);
                    self.call(client, |client, context| client.room(context));
                    self.core.told = None;
                    if requests(self) > before {
                        served.push(client);
                    }
                }
                self.core
                    .waiting
                    .sort_by_key(|waiting| waiting.is_for(device, flow) && served.contains(&waiting.client));
            }
        }
    }

    fn end_turn(&mut self) {
        let mut called = std::mem::take(&mut self.called);
        for client in called.drain(..) {
            self.clients[client as usize].counts.called = false;
            self.call_quietly(client, |client, context| client.turn_end(context));
            let slot = &mut self.clients[client as usize];
            let Counts { operations, requests, .. } = slot.counts;
            let over = operations == 0 && requests == 0 && slot.client.as_ref().is_some_and(|client| client.is_done());
            if over {
                slot.client = None;
                self.core.waiting.retain(|waiting| waiting.client != client);
                self.free.push(client);
            }
        }
        self.called = called;
        let done = self.draining && self.clients.iter().all(|slot| slot.client.is_none());
        if let Some(drained) = self.drained.take_if(|_| done) {
            // An engine that no longer waits needs no answer.
            let _ = drained.send(());
        }
    }

    /// Calls a client, and sees to it that its turn is ended.
    fn call(&mut self, client: u32, action: impl FnOnce(&mut dyn Client, &mut dyn Context)) {
        let counts = &mut self.clients[client as usize].counts;
        if !std::mem::replace(&mut counts.called, true) {
            self.called.push(client);
        }
        self.call_quietly(client, action);
    }

    fn call_quietly(&mut self, client: u32, action: impl FnOnce(&mut dyn Client, &mut dyn Context)) {
        let slot = &mut self.clients[client as usize];
        if let Some(boxed) = &mut slot.client {
            action(&mut **boxed, &mut Call { core: &mut self.core, counts: &mut slot.counts, client });
        }
    }
}
