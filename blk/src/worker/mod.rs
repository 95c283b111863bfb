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
//! A turn lasts until nothing moves, or for a few rounds. On a device where flows compete it may end earlier: the
//! worker looks at the sockets before the policy has lost its choice (`path/fair_intake.rs`), and does not sleep then.
//!
//! # Going to sleep
//! A worker that only waits for another one to go on may spin for a while first (`patience.rs`). It sleeps only if its
//! bell lets it: a kick since the last look makes another turn.
//!
//! # Waits
//! A client asks for a time, or for a descriptor to become ready, and is called then. A client that is done is not kept
//! for the sake of these: they are cancelled, and its number may be given to another at once ([`Host::cancel_waits`]).

use crate::client::POLL_NS_MIN;

#[cfg(feature = "uring")]
pub(crate) mod bell;
mod cap_queue;
mod changes;
mod clients;
#[cfg(feature = "uring")]
pub mod clock;
#[cfg(feature = "uring")]
pub mod cores;
mod devices;
pub mod host;
mod patience;
#[cfg(feature = "uring")]
pub mod steps;
#[cfg(feature = "uring")]
pub(crate) mod thread;
#[cfg(feature = "uring")]
pub(crate) mod wake_up;

#[cfg(feature = "uring")]
pub use thread::{HasWorkerContext, WorkerContext};

use crate::client::{Client, ClientFilter};
use crate::device::DeviceInfo;
use crate::hctx::HwCtx;
use crate::request::Completion;
use crate::table::Owner;
use crate::tuning::Tuning;
use cap_queue::CapQueues;
use changes::{AwaitedEnd, LiveDevices, Pausing};
use clients::{Counts, RoomNotices, Slot};
use devices::{Core, Plug};
use host::{Ended, Host, Mail, Sweep};
use mqfq_sched::policy::{AnyPolicy, Policy};
use mqfq_sched::topology::HctxId;
use patience::Patience;
use std::sync::{Arc, mpsc};

/// Rounds of run and reap in one turn before the worker looks at its sockets again. A device that completes at once
/// would otherwise keep the worker as long as its clients have requests staged.
const ROUNDS_MAX: usize = 4;

/// Places of a table that one turn sweeps: about a microsecond.
const SWEEP_PLACES: usize = 256;

/// One worker: its host, one hctx per device, and the clients that are bound to it.
pub struct Worker<H: Host<P>, P: Policy = AnyPolicy> {
    core: Core<H, P>,
    clients: Vec<Slot>,
    free: Vec<u32>,
    called: Vec<u32>,
    completions: Vec<(Owner, Completion)>,
    ended: Vec<Ended>,
    /// Lists of [`Worker::tell_room`], empty between two calls.
    room: RoomNotices,
    patience: Patience,
    /// The last turn found nothing to do.
    is_idle: bool,
    /// Time since which it goes round for a device event that is near.
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
    ending: Vec<AwaitedEnd>,
    /// Source of devices that come and go; `None`: those of the start stay.
    devices: Option<LiveDevices<H, P>>,
    draining: bool,
    stopped: bool,
}

/// # Panics
/// At an error of the host: it is broken, and with it every connection. Nothing that a client does leads here.
fn alive(result: std::io::Result<()>) {
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Clients that were asked to drain and are not gone, and the waiting caller.
struct Leaving {
    whose: ClientFilter,
    clients: Vec<u32>,
    gone: mpsc::Sender<()>,
}

impl<H: Host<P>, P: Policy> Worker<H, P> {
    /// A worker without clients. `hctxs` are its contexts and `infos` their devices' properties, both by
    /// [`DeviceIndex`](crate::client::DeviceIndex).
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
                cap_queues: CapQueues::default(),
                withdrawing: Vec::new(),
            },
            clients: Vec::new(),
            free: Vec::new(),
            called: Vec::new(),
            completions: Vec::with_capacity(completions_max),
            ended: Vec::with_capacity(options.ended_max),
            room: RoomNotices::default(),
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
        let RoomNotices { told, served, .. } = &mut self.room;
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

    /// Its contexts, by [`DeviceIndex`](crate::client::DeviceIndex).
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
        if self.core.cap_queues.next_ns().is_some() {
            self.tell_cap_queues();
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
            // First what was asked for: replies, and commands to a drive.
            alive(self.core.host.enter());
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
        alive(result);
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
                Mail::Follow { device, number, followed } => {
                    drop(followed.send(self.core.hctxs[device as usize].device_mut().follow(number)));
                }
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
        self.core.cap_queues.open(true);
        for client in 0..self.clients.len() as u32 {
            self.call(client, |client, context| client.drain(context));
        }
    }

    fn clients_of(&self, whose: ClientFilter) -> impl Iterator<Item = u32> {
        let is_meant = move |slot: &Slot| slot.client.as_ref().is_some_and(|client| whose.includes(client.label()));
        self.clients.iter().zip(0..).filter(move |(slot, _)| is_meant(slot)).map(|(_, number)| number)
    }

    fn drain_some(&mut self, whose: ClientFilter, gone: mpsc::Sender<()>) {
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
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests;
#[cfg(all(test, not(mqfq_loom)))]
mod turn_tests;

// Options of a worker, fixed at its start.

/// Options of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerOptions {
    /// A worker whose next device event is nearer than this goes round again instead of sleeping, ns.
    pub spin_ns: u64,
    /// Time that a worker that waits for another spins before it sleeps, ns, as long as that pays; 0: it sleeps at
    /// once.
    pub patience_ns: u64,
    /// Longest time that looking for a client's next request pays, ns.
    pub poll_ns: u64,
    /// Most ended operations that one look at the host brings: memory for so many is taken at the start.
    pub ended_max: usize,
    /// Turns end for the sake of fairness ([`HwCtx::begin_turn`](crate::hctx::HwCtx::begin_turn)). Off for clients that
    /// have staged all that they have: there are no sockets in which requests could wait.
    pub fair_turns: bool,
}

impl Default for WorkerOptions {
    /// Options for a device that interrupts, on real cores.
    fn default() -> WorkerOptions {
        WorkerOptions { spin_ns: 0, patience_ns: POLL_NS_MIN, poll_ns: POLL_NS_MIN, ended_max: 0, fair_turns: true }
    }
}
