//! A worker: one core, one hctx per device, and the clients bound to it.
//!
//! # One turn of the loop
//! ```text
//!   mail ─▶ ended operations ─▶ clients ─▶ submit ┐
//!                                                 ▼
//!                 ┌──────────────▶ run ─▶ doorbell ─▶ reap ─▶ completions ─▶ clients ─┐
//!                 └──────────── while something moved (bounded) ◀────────────────────┘
//!   room ─▶ turn_end of each client that was called ─▶ enter the host (sleep if nothing is left to do)
//! ```
//!
//! # Where it runs
//! The loop is a function of state, and of its [`Host`]'s answers: a thread with its io_uring (`thread.rs`, feature
//! `uring`), a virtual core of the simulator, or a test. All of them run this code.
//!
//! # How long a turn is
//! Until nothing moves, or for a few rounds. While flows compete it may end earlier, on the device where they do, so
//! that the sockets are looked at before the policy has lost its choice (`path/fair_intake.rs`); then no sleep follows.
//!
//! # Going to sleep
//! A worker that only waits for another one to go on may spin for a while first (`patience.rs`). It sleeps only if its
//! bell lets it: a kick since the last look makes another turn.
//!
//! # Waits
//! A client asks for a time, or for a descriptor to become ready, and is called then. A client that is done is not kept
//! for the sake of these: they are cancelled, and its number may be given to another at once ([`Host::cancel_waits`]).

#[cfg(feature = "uring")]
pub(crate) mod bell;
mod call;
mod cap_queue;
#[cfg(feature = "uring")]
pub mod clock;
#[cfg(feature = "uring")]
pub mod cores;
pub mod host;
mod live;
mod patience;
mod pause;
#[cfg(feature = "uring")]
pub mod steps;
#[cfg(feature = "uring")]
pub(crate) mod thread;

use crate::ask::CountedAs;
use crate::cap::Caps;
use crate::client::{Client, Context, DeviceIndex, Event, Whose};
use crate::device::DeviceInfo;
use crate::hctx::HwCtx;
use crate::request::Completion;
use crate::table::Owner;
use crate::tuning::Tuning;
use call::Call;
use cap_queue::{NO_TURNSTILE, Turnstiles};
use host::{Ended, Host, HostEvent, Mail, Sweep};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{AnyPolicy, Policy};
use mqfq_sched::topology::HctxId;
use patience::Patience;
use pause::Pausing;
use std::sync::{Arc, mpsc};
#[cfg(feature = "uring")]
pub use thread::{AtDesk, Desk};

use live::{Ending, LiveDevices};

/// Rounds of run and reap in one turn before the worker looks at its sockets again. A device that completes at once
/// would otherwise keep the worker as long as its clients have requests staged.
const ROUNDS_MAX: usize = 4;

/// Places of a table that one turn sweeps: about a microsecond.
const SWEEP_PLACES: usize = 256;

/// Options of a worker, fixed at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerOptions {
    /// A worker whose next device event is nearer than this goes round again instead of sleeping, ns.
    pub spin_ns: u64,
    /// Time that a worker that waits for another spins before it sleeps, ns, as long as that pays; 0: it sleeps at
    /// once.
    pub patience_ns: u64,
    /// Most ended operations that one look at the host brings: memory for so many is taken at the start.
    pub ended_max: usize,
    /// Turns end for the sake of fairness ([`HwCtx::begin_turn`]). Off for clients that have staged all that they have:
    /// there are no sockets in which requests could wait.
    pub fair_turns: bool,
}

impl Default for WorkerOptions {
    /// Options for a device that interrupts, on real cores.
    fn default() -> WorkerOptions {
        WorkerOptions { spin_ns: 0, patience_ns: patience::SPIN_NS, ended_max: 0, fair_turns: true }
    }
}

/// A client and its operations in flight.
struct Slot {
    client: Option<Box<dyn Client>>,
    caps: Option<Arc<Caps>>,
    counts: Counts,
}

#[derive(Clone, Copy)]
struct Counts {
    /// Operations that keep this client alive.
    operations: u32,
    requests: u32,
    /// Timers, polls, counts and commands.
    waits: u32,
    called: bool,
    /// Turnstile that it passes, or [`NO_TURNSTILE`].
    turnstile: u32,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { operations: 0, requests: 0, waits: 0, called: false, turnstile: NO_TURNSTILE }
    }
}

/// A client that was refused, and for which flow. At most one of a kind, however often it was refused.
#[derive(PartialEq, Eq)]
struct Waiting {
    device: DeviceIndex,
    flow: FlowId,
    client: u32,
}

/// Everything that a client may reach through its context.
struct Core<H: Host<P>, P: Policy> {
    // Dropped before the device queues, whose memory a host's ring may still point to.
    host: H,
    now_ns: u64,
    /// Number of this turn.
    turn: u64,
    hctxs: Vec<HwCtx<P>>,
    infos: Vec<DeviceInfo>,
    waiting: Vec<Waiting>,
    /// The client that is being told of room: it alone need not wait behind others.
    told: Option<u32>,
    options: WorkerOptions,
    /// A request was staged since the last run.
    staged: bool,
    /// By device.
    plugs: Vec<Plug>,
    turnstiles: Turnstiles,
}

/// Requests of one device gather while clients are called, so that one doorbell is for many. Not for
/// long: a flow with requests staged holds global virtual time where it is, and so may keep the device
/// from others. Where clients take long, it should not be for the length of a whole turn.
struct Plug {
    /// Calls of clients that gather ([`crate::path_options::PathOptions::plug`]).
    calls_max: u32,
    /// Calls since the first request, that call included.
    calls: u32,
    /// A request has gathered.
    is_in: bool,
    /// Flow of the last submission.
    last_flow: FlowId,
}

/// Outcome of a round of run and reap.
#[derive(Clone, Copy, Default)]
struct Round {
    /// There may be more to dispatch.
    again: bool,
    /// A request was dispatched or collected.
    has_moved: bool,
}

impl Plug {
    fn of<P: Policy>(hctx: &HwCtx<P>) -> Plug {
        Plug { calls_max: hctx.plug(), calls: 0, is_in: false, last_flow: FlowId(0) }
    }

    fn pull(&mut self) {
        (self.calls, self.is_in) = (0, false);
    }
}

/// Flows that have room again, clients of one that are told, and clients that found a place.
#[derive(Default)]
struct Room {
    flows: Vec<FlowId>,
    told: Vec<u32>,
    served: Vec<u32>,
}

/// One worker: its host, one hctx per device, and the clients that are bound to it.
pub struct Worker<H: Host<P>, P: Policy = AnyPolicy> {
    core: Core<H, P>,
    clients: Vec<Slot>,
    free: Vec<u32>,
    called: Vec<u32>,
    completions: Vec<(Owner, Completion)>,
    ended: Vec<Ended>,
    /// Lists of [`Worker::tell_room`], empty between two calls.
    room: Room,
    patience: Patience,
    /// The last turn found nothing to do.
    is_idle: bool,
    /// Since when it goes round for a device event that is near.
    goes_round_ns: Option<u64>,
    drained: Option<mpsc::Sender<()>>,
    /// Drains of some clients that are not over.
    leaving: Vec<Leaving>,
    /// Devices that are frozen and not yet quiet, and the waiting callers.
    freezing: Vec<(u16, mpsc::Sender<()>)>,
    /// A look at all requests, of which a piece is made in each turn.
    sweeping: Option<Sweep>,
    pausing: Pausing,
    /// Requests of which some are left, and the waiting callers.
    ending: Vec<Ending>,
    /// How devices come and go; `None`: those of the start stay.
    devices: Option<LiveDevices<H, P>>,
    draining: bool,
    stopped: bool,
}

/// Clients that were asked to drain and are not gone, and the waiting caller.
struct Leaving {
    whose: Whose,
    clients: Vec<u32>,
    gone: mpsc::Sender<()>,
}

impl Waiting {
    fn is_for(&self, device: DeviceIndex, flow: FlowId) -> bool {
        self.device == device && self.flow == flow
    }
}

impl<H: Host<P>, P: Policy> Core<H, P> {
    fn wait(&mut self, waiting: Waiting) {
        if !self.waiting.contains(&waiting) {
            self.waiting.push(waiting);
        }
    }

    /// Dispatches and collects on every device once.
    fn run_devices(&mut self, completions: &mut Vec<(Owner, Completion)>) -> Round {
        let mut round = Round::default();
        self.staged = false;
        self.plugs.iter_mut().for_each(Plug::pull);
        let Core { host, hctxs, now_ns, .. } = self;
        for (device, hctx) in hctxs.iter_mut().enumerate() {
            let run = hctx.run(*now_ns, &mut |other: HctxId| host.kick(other));
            host.dispatched(run.dispatched);
            let reaped = hctx.reap(*now_ns, &mut |other: HctxId| host.kick(other), completions);
            host.completed(reaped);
            if let Some(trouble) = hctx.take_trouble() {
                host.troubled(device, trouble);
            }
            // A reap frees tags and tokens, which only the next run can use.
            let has_moved = run.dispatched > 0 || reaped > 0;
            round.again |= run.again || reaped > 0;
            round.has_moved |= has_moved;
        }
        round
    }

    /// A client was called. Hands requests that the policies grant to the devices for which enough have gathered,
    /// without looking for completions.
    fn dispatch_if_due(&mut self) {
        let Core { host, hctxs, now_ns, plugs, staged, .. } = self;
        let mut more = false;
        for (hctx, plug) in hctxs.iter_mut().zip(plugs) {
            plug.calls += u32::from(plug.is_in);
            if plug.is_in && plug.calls >= plug.calls_max {
                plug.pull();
                let run = hctx.run(*now_ns, &mut |other: HctxId| host.kick(other));
                host.dispatched(run.dispatched);
                more |= run.again;
            }
            more |= plug.is_in;
        }
        *staged = more;
    }

    /// A policy holds back the requests staged here until another worker has gone on.
    fn is_held_back(&self) -> bool {
        self.hctxs.iter().any(HwCtx::is_held_back)
    }

    /// Waits for a kick, or anything else to do, without sleeping. False if nothing came within the worker's patience.
    fn spin(&mut self, next_ns: Option<u64>) -> bool {
        let began_ns = self.now_ns;
        let until_ns = began_ns + self.options.patience_ns;
        let mut now_ns = began_ns;
        let something_came = loop {
            if self.host.is_kicked() {
                // Spent here, or the turn after the next would be made for this kick as well, for nothing.
                self.host.woke();
                break true;
            }
            now_ns = self.host.now_ns();
            if self.host.has_ended() || next_ns.is_some_and(|next| next <= now_ns) {
                break true;
            }
            if now_ns > until_ns {
                // The sleep that follows is shorter by the time spun.
                self.now_ns = now_ns;
                break false;
            }
            self.host.spin_hint();
        };
        self.host.spun(now_ns - began_ns);
        something_came
    }

    /// Time at which the worker must look at a device again, if nothing else happens before.
    fn next_event_ns(&self) -> Option<u64> {
        self.hctxs.iter().filter_map(HwCtx::next_event_ns).chain(self.turnstiles.next_ns()).min()
    }
}

impl<H: Host<P>, P: Policy> Worker<H, P> {
    /// A worker without clients. `hctxs` are its contexts and `infos` their devices' properties, both by
    /// [`DeviceIndex`].
    pub fn new(mut host: H, hctxs: Vec<HwCtx<P>>, infos: Vec<DeviceInfo>, options: WorkerOptions) -> Worker<H, P> {
        assert_eq!(hctxs.len(), infos.len(), "a context for each device");
        // Most completions of one reap of all devices.
        let completions_max = hctxs.iter().map(HwCtx::queue_depth).sum();
        let now_ns = host.now_ns();
        let plugs = hctxs.iter().map(Plug::of).collect();
        Worker {
            core: Core {
                host,
                now_ns,
                turn: 0,
                hctxs,
                infos,
                waiting: Vec::new(),
                told: None,
                options,
                staged: false,
                plugs,
                turnstiles: Turnstiles::default(),
            },
            clients: Vec::new(),
            free: Vec::new(),
            called: Vec::new(),
            completions: Vec::with_capacity(completions_max),
            ended: Vec::with_capacity(options.ended_max),
            room: Room::default(),
            patience: Patience::default(),
            is_idle: false,
            goes_round_ns: None,
            drained: None,
            leaving: Vec::new(),
            freezing: Vec::new(),
            sweeping: None,
            pausing: Pausing::default(),
            ending: Vec::new(),
            devices: None,
            draining: false,
            stopped: false,
        }
    }

    /// Turns until [`Mail::Stop`] comes.
    ///
    /// # Panics
    /// If the host says that it is broken.
    pub fn work(&mut self) {
        while self.step() {}
    }

    /// One turn, and the entry of the host that follows it. False: [`Mail::Stop`] has come, and there is no other turn.
    ///
    /// For a caller that steps several workers on one thread: such a host's [`Host::enter_and_wait`] returns at once,
    /// and the next step comes when the sleep would have ended.
    ///
    /// # Panics
    /// As [`Worker::work`].
    pub fn step(&mut self) -> bool {
        let busy = self.turn();
        // Before the next sleep: the kick that brought the stop is spent, and no other will come.
        if !self.stopped {
            self.enter(busy);
        }
        !self.stopped
    }

    /// Takes in a client that was made elsewhere, and starts it. A client that comes while the worker drains is
    /// dropped.
    ///
    /// For an embedder that runs the worker on its own thread: a client that comes by [`Mail::Attach`] must be `Send`,
    /// this one need not.
    pub fn adopt(&mut self, client: Box<dyn Client>) {
        if self.draining {
            return;
        }
        let slot = Slot { client: Some(client), caps: None, counts: Counts::default() };
        let client = if let Some(client) = self.free.pop() {
            self.clients[client as usize] = slot;
            client
        } else {
            self.clients.push(slot);
            (self.clients.len() - 1) as u32
        };
        // Room for clients that wait on one device; memory for more is taken when they do.
        let clients = self.clients.len();
        let Room { told, served, .. } = &mut self.room;
        [told, served].into_iter().for_each(|list| list.reserve(clients));
        self.core.waiting.reserve(clients.saturating_sub(self.core.waiting.len()));
        self.call(client, |client, context| client.start(context));
        self.pause_newcomer(client);
    }

    /// The host it runs on.
    pub fn host(&self) -> &H {
        &self.core.host
    }

    /// The host it runs on.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.core.host
    }

    /// Its contexts, by [`DeviceIndex`].
    pub fn hctxs(&self) -> &[HwCtx<P>] {
        &self.core.hctxs
    }

    /// Ends it where it stands: its clients are dropped, and their admitted requests remain in the contexts.
    pub fn into_parts(self) -> (H, Vec<HwCtx<P>>) {
        (self.core.host, self.core.hctxs)
    }

    /// One turn. True: there is more to do already.
    fn turn(&mut self) -> bool {
        self.core.now_ns = self.core.host.now_ns();
        if let Some(since_ns) = self.goes_round_ns.take() {
            self.core.host.spun(self.core.now_ns - since_ns);
        }
        self.core.turn = self.core.turn.wrapping_add(1);
        self.take_mail();
        if self.core.options.fair_turns {
            self.core.hctxs.iter_mut().for_each(HwCtx::begin_turn);
        }
        self.take_ended();
        if self.core.turnstiles.next_ns().is_some() {
            self.tell_turnstiles();
        }
        if self.core.options.fair_turns {
            let Core { hctxs, plugs, .. } = &mut self.core;
            hctxs.iter_mut().zip(plugs).for_each(|(hctx, plug)| hctx.looked(plug.last_flow));
        }
        let mut again = true;
        for _ in 0..ROUNDS_MAX {
            let round = self.core.run_devices(&mut self.completions);
            again = round.again;
            self.is_idle &= !round.has_moved;
            self.deliver();
            // If nothing moved although there is more, it waits for the next turn.
            let goes_on = again && round.has_moved;
            if !self.core.staged && !goes_on {
                break;
            }
            self.core.now_ns = self.core.host.now_ns();
        }
        self.tell_room();
        self.end_turn();
        if !self.freezing.is_empty() {
            self.tell_quiet();
        }
        if self.sweeping.is_some() {
            self.sweep();
        }
        if self.pausing.is_asked() {
            self.tell_paused();
        }
        if !self.ending.is_empty() {
            self.tell_ended();
        }
        self.core.host.turned();
        // Clients may have submitted in their last calls.
        again || self.core.staged || self.sweeping.is_some()
    }

    fn enter(&mut self, busy: bool) {
        let now_ns = self.core.now_ns;
        let next_ns = self.core.next_event_ns();
        let WorkerOptions { spin_ns, patience_ns, .. } = self.core.options;
        let soon = next_ns.is_some_and(|next| next <= now_ns + spin_ns);
        let mut spun = false;
        let is_held_back = !busy && !soon && self.core.is_held_back();
        if is_held_back && patience_ns > 0 && self.patience.spins() {
            let something_came = self.core.spin(next_ns);
            self.patience.spun(something_came);
            spun = something_came;
        }
        let Core { host, now_ns, .. } = &mut self.core;
        let result = if busy || soon || spun || !host.may_sleep() {
            self.goes_round_ns = (soon && !busy && self.is_idle).then_some(*now_ns);
            host.enter()
        } else {
            let wait_ns = next_ns.map(|next| next.saturating_sub(*now_ns));
            let result = host.enter_and_wait(wait_ns, is_held_back);
            host.woke();
            result
        };
        if let Err(error) = result {
            // Nothing that a client does leads here: the host itself is broken, and with it every connection.
            panic!("{error}");
        }
    }

    fn take_mail(&mut self) {
        while let Some(mail) = self.core.host.take_mail() {
            match mail {
                // Not even made if it would be dropped at once.
                Mail::Attach(_) if self.draining => {}
                Mail::Attach(make) => self.adopt(make()),
                Mail::Drain(done) => self.drain(done),
                Mail::Abort => {
                    self.core.host.abort(None);
                    self.abort(0..self.clients.len() as u32);
                }
                Mail::DrainSome { whose, gone } => self.drain_some(whose, gone),
                // Clients that were asked to drain, whatever their label is now.
                Mail::AbortSome(whose) => {
                    let meant = self.leaving.iter().filter(|leaving| leaving.whose == whose);
                    let clients: Vec<u32> = meant.flat_map(|leaving| &leaving.clients).copied().collect();
                    clients.iter().for_each(|client| self.core.host.abort(Some(*client)));
                    self.abort(clients);
                }
                // An earlier sweep is dropped: its caller no longer waits.
                Mail::Sweep(sweep) => self.sweeping = Some(sweep),
                Mail::StartTrace { capacity } => {
                    self.core.hctxs.iter_mut().for_each(|hctx| hctx.start_trace(capacity));
                }
                Mail::TakeTrace(reply) => {
                    let traces = self.core.hctxs.iter_mut().map(|hctx| hctx.take_trace().unwrap_or_default());
                    // As above.
                    drop(reply.send(traces.collect()));
                }
                Mail::Freeze { device, quiet } => {
                    self.core.hctxs[device as usize].freeze(self.core.now_ns);
                    self.freezing.push((device, quiet));
                }
                Mail::Thaw { device, policy, tuning } => self.thaw(device, policy, tuning),
                Mail::CapsChanged => self.caps_changed(),
                Mail::Pause { recalls, quiet } => self.pause(recalls, quiet),
                Mail::Pack { version, packed } => self.pausing.pack_when_quiet(version, packed),
                Mail::Resume => self.resume(),
                Mail::AwaitEnd { device, whose, given_up_ns, gone } => {
                    self.await_end(device, whose, given_up_ns, gone);
                }
                Mail::SetLimits { device, flow, limits, is_new, done } => {
                    self.set_limits(device, flow, limits, is_new);
                    // A caller that no longer waits needs no answer.
                    let _ = done.send(());
                }
                Mail::Grow { device, limits } => self.core.hctxs[device as usize].grow(&limits),
                Mail::OpenDevice { device, opened } => drop(opened.send(self.open_device(device))),
                Mail::CloseDevice { device, closed } => {
                    self.close_device(device);
                    let _ = closed.send(());
                }
                Mail::Stop => self.stopped = true,
            }
        }
    }

    fn thaw(&mut self, device: u16, policy: Option<(Arc<P>, P::Queue)>, tuning: Option<Arc<Tuning>>) {
        self.freezing.retain(|(freezing, _)| *freezing != device);
        let Core { host, hctxs, now_ns, staged, .. } = &mut self.core;
        if policy.is_some() {
            hctxs[device as usize].set_tuning(tuning, *now_ns);
        }
        hctxs[device as usize].thaw(policy, *now_ns, &mut |other: HctxId| host.kick(other));
        *staged = true;
    }

    /// Looks at the next piece of the requests.
    #[cold]
    fn sweep(&mut self) {
        let Some(Sweep { mut found, reply, at: (device, place) }) = self.sweeping.take() else { return };
        let more = match (self.core.hctxs.get(device), found.get_mut(device)) {
            (Some(hctx), Some(found)) => hctx.sweep(place, SWEEP_PLACES, found),
            _ => None,
        };
        let at = more.map_or((device + 1, 0), |place| (device, place));
        if at.0 < found.len() {
            self.sweeping = Some(Sweep { found, reply, at });
        } else {
            // A reader that no longer waits needs no answer.
            drop(reply.send(found));
        }
    }

    /// Reports the devices that are quiet now.
    fn tell_quiet(&mut self) {
        let hctxs = &self.core.hctxs;
        for (_, waiter) in self.freezing.extract_if(.., |(device, _)| hctxs[*device as usize].is_quiet()) {
            // A caller that no longer waits thaws us all the same.
            let _ = waiter.send(());
        }
    }

    fn drain(&mut self, done: mpsc::Sender<()>) {
        self.draining = true;
        self.drained = Some(done);
        // The grace time is short, and a cap may ask for hours.
        self.core.turnstiles.open(true);
        for client in 0..self.clients.len() as u32 {
            self.call(client, |client, context| client.drain(context));
        }
    }

    fn clients_of(&self, whose: Whose) -> impl Iterator<Item = u32> {
        let is_meant = move |slot: &Slot| slot.client.as_ref().is_some_and(|client| whose.includes(client.label()));
        self.clients.iter().zip(0..).filter(move |(slot, _)| is_meant(slot)).map(|(_, number)| number)
    }

    fn drain_some(&mut self, whose: Whose, gone: mpsc::Sender<()>) {
        let clients: Vec<u32> = self.clients_of(whose).collect();
        for client in &clients {
            self.uncap(*client);
            self.call(*client, |client, context| client.drain(context));
        }
        self.leaving.push(Leaving { whose, clients, gone });
    }

    fn abort(&mut self, clients: impl IntoIterator<Item = u32>) {
        for client in clients {
            self.call(client, |client, context| client.abort(context));
        }
    }

    /// Reports the drains of which no client is left.
    fn tell_gone(&mut self) {
        for leaving in self.leaving.extract_if(.., |leaving| leaving.clients.is_empty()) {
            // An engine that no longer waits needs no answer.
            let _ = leaving.gone.send(());
        }
    }

    fn take_ended(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        self.core.host.collect(&mut ended);
        self.is_idle = ended.is_empty();
        for ended in ended.drain(..) {
            match self.core.host.resolve(ended) {
                Some(HostEvent::Client { client, event }) => {
                    let counts = &mut self.clients[client as usize].counts;
                    match event.counted_as() {
                        CountedAs::Operation => counts.operations -= 1,
                        CountedAs::Wait => counts.waits -= 1,
                        CountedAs::Nothing => {}
                    }
                    if let Event::Timer { .. } = event {
                        // It may have ended after this turn's time was read, and a client is told that its time has
                        // come.
                        self.core.now_ns = self.core.host.now_ns();
                    }
                    self.call(client, |client, context| client.event(context, event));
                    self.dispatch_if_due();
                }
                Some(HostEvent::Device { device, user, result }) => {
                    self.core.hctxs[device as usize].device_mut().ring_event(user, result);
                }
                Some(HostEvent::Bell) | None => {}
            }
        }
        self.ended = ended;
    }

    fn deliver(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for (Owner(client), completion) in completions.drain(..) {
            self.clients[client as usize].counts.requests -= 1;
            self.call(client, |client, context| client.completed(context, completion));
            self.dispatch_if_due();
        }
        self.completions = completions;
    }

    /// Tells the clients that were refused that there is room again, in the order in which they were refused. A client
    /// that got a place goes behind those that got none next time.
    fn tell_room(&mut self) {
        let mut room = std::mem::take(&mut self.room);
        let Room { flows, told, served } = &mut room;
        for device in 0..self.core.hctxs.len() {
            flows.extend(self.core.hctxs[device].take_room());
            let device = DeviceIndex(device as u16);
            for flow in flows.drain(..) {
                let waited = self.core.waiting.extract_if(.., |waiting| waiting.is_for(device, flow));
                told.extend(waited.map(|waiting| waiting.client));
                for client in told.drain(..) {
                    let requests = |worker: &Self| worker.clients[client as usize].counts.requests;
                    let before = requests(self);
                    self.core.told = Some(client);
                    self.call(client, |client, context| client.room(context));
                    self.core.told = None;
                    if requests(self) > before {
                        served.push(client);
                    }
                }
                for client in served.drain(..) {
                    let is_its = |waiting: &Waiting| waiting.is_for(device, flow) && waiting.client == client;
                    if let Some(at) = self.core.waiting.iter().position(is_its) {
                        self.core.waiting[at..].rotate_left(1);
                    }
                }
            }
        }
        self.room = room;
    }

    fn end_turn(&mut self) {
        let mut called = std::mem::take(&mut self.called);
        for client in called.drain(..) {
            self.clients[client as usize].counts.called = false;
            self.call_quietly(client, |client, context| client.turn_end(context));
            let slot = &mut self.clients[client as usize];
            let Counts { operations, requests, waits, .. } = slot.counts;
            let over = operations == 0 && requests == 0 && slot.client.as_ref().is_some_and(|client| client.is_done());
            if over {
                let done = slot.client.take();
                if waits > 0 {
                    self.core.host.cancel_waits(client);
                }
                // After that: it closes the descriptors that it waited for.
                drop(done);
                slot.caps = None;
                let turnstile = std::mem::replace(&mut slot.counts.turnstile, NO_TURNSTILE);
                if turnstile != NO_TURNSTILE {
                    self.core.turnstiles.leave(turnstile, client, self.core.now_ns);
                }
                self.leaving.iter_mut().for_each(|leaving| leaving.clients.retain(|other| *other != client));
                // Else clients behind it would wait until the next room, at which none would answer in its place.
                self.core.waiting.retain(|waiting| waiting.client != client);
                self.free.push(client);
            }
        }
        self.called = called;
        if !self.leaving.is_empty() {
            self.tell_gone();
        }
        let done = self.draining && self.clients.iter().all(|slot| slot.client.is_none());
        if let Some(drained) = self.drained.take_if(|_| done) {
            // An engine that no longer waits needs no answer.
            let _ = drained.send(());
        }
    }

    /// After a call of a client: later clients shall not wait for its requests, nor it for theirs.
    fn dispatch_if_due(&mut self) {
        if self.core.staged {
            self.core.dispatch_if_due();
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
        let Slot { client: boxed, caps, counts } = slot;
        if let Some(boxed) = boxed {
            action(&mut **boxed, &mut Call { core: &mut self.core, counts, caps, client });
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;
