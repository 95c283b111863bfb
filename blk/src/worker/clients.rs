//! The clients of a worker: their calls, their orders, and the turn in which each is told of room.
//!
//! Everything that a client asks for goes through its `Call`: requests to a device, operations of the worker's ring,
//! times. Operations are counted, so that a client that is done is kept until its last one has ended.

use super::Worker;
use super::cap_queue::{NO_CAP_QUEUE, capped_bytes};
use super::devices::{Core, Waiting};
use super::host::{Host, HostEvent};
use crate::ask::{Ask, CountedAs};
use crate::cap::Caps;
use crate::client::{Client, Context, DeviceIndex, Event, Refused};
use crate::device::DeviceInfo;
use crate::hctx::Full;
use crate::request::Submission;
use crate::table::Owner;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Policy;
use std::sync::Arc;

/// A client and its operations in flight.
pub(super) struct Slot {
    pub(super) client: Option<Box<dyn Client>>,
    pub(super) caps: Option<Arc<Caps>>,
    pub(super) counts: Counts,
}

#[derive(Clone, Copy)]
pub(super) struct Counts {
    /// Operations that keep this client alive.
    pub(super) operations: u32,
    pub(super) requests: u32,
    /// Timers, polls, counts and commands.
    pub(super) waits: u32,
    pub(super) called: bool,
    /// Cap queue that it passes, or [`NO_CAP_QUEUE`].
    pub(super) cap_queue: u32,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { operations: 0, requests: 0, waits: 0, called: false, cap_queue: NO_CAP_QUEUE }
    }
}

/// Flows that have room again, clients of such a flow that are told, and clients that found a place.
#[derive(Default)]
pub(super) struct RoomNotices {
    pub(super) flows: Vec<FlowId>,
    pub(super) told: Vec<u32>,
    pub(super) served: Vec<u32>,
}

/// The context of one call into one client.
pub(super) struct Call<'a, H: Host<P>, P: Policy> {
    pub(super) core: &'a mut Core<H, P>,
    pub(super) counts: &'a mut Counts,
    pub(super) caps: &'a mut Option<Arc<Caps>>,
    pub(super) client: u32,
}

impl<H: Host<P>, P: Policy> Context for Call<'_, H, P> {
    fn now_ns(&self) -> u64 {
        self.core.now_ns
    }

    fn turn(&self) -> u64 {
        self.core.turn
    }

    fn poll_ns(&self) -> u64 {
        self.core.options.poll_ns
    }

    fn looked_in_vain(&mut self, ns: u64) {
        self.core.host.in_vain(ns);
    }

    fn is_contended(&self, device: DeviceIndex) -> bool {
        self.core.hctxs[device.0 as usize].is_contended()
    }

    fn device(&self, device: DeviceIndex) -> DeviceInfo {
        self.core.infos[device.0 as usize]
    }

    fn submit(&mut self, device: DeviceIndex, submission: Submission) -> Result<(), Refused> {
        let flow = submission.flow;
        let core = &mut *self.core;
        // Behind clients that wait already, or a client that refills each place as it frees would never let the flow
        // fall to the level at which the others are told, and they would wait for ever.
        let waiting = Waiting { device, flow, client: self.client };
        if core.told != Some(self.client) && core.waiting.iter().any(|other| other.is_for(device, flow)) {
            core.wait(waiting);
            return Err(Refused::TenantFull(submission));
        }
        let cap_queue = self.counts.cap_queue;
        let capped_bytes = if cap_queue == NO_CAP_QUEUE { 0 } else { capped_bytes(&submission) };
        if cap_queue != NO_CAP_QUEUE {
            let is_told = core.told == Some(self.client);
            if !core.cap_queues.pass(cap_queue, self.client, is_told, capped_bytes, core.now_ns) {
                return Err(Refused::TenantFull(submission));
            }
        }
        let Core { host, hctxs, .. } = core;
        host.submitted();
        let hctx = &mut hctxs[device.0 as usize];
        match hctx.submit(Owner(self.client), submission, core.now_ns, &mut |hctx| host.kick(hctx)) {
            Ok(()) => {
                core.staged = true;
                let plug = &mut core.plugs[device.0 as usize];
                (plug.is_in, plug.last_flow) = (true, flow);
                self.counts.requests += 1;
                if cap_queue != NO_CAP_QUEUE {
                    core.cap_queues.passed(cap_queue, capped_bytes, core.now_ns);
                }
                Ok(())
            }
            Err(Full(submission)) => {
                core.wait(waiting);
                Err(Refused::TenantFull(submission))
            }
        }
    }

    #[inline]
    fn ask(&mut self, ask: Ask) {
        match ask.counted_as() {
            CountedAs::Operation => self.counts.operations += 1,
            CountedAs::Wait => self.counts.waits += 1,
            CountedAs::Nothing => {}
        }
        self.core.host.ask(self.client, ask);
    }

    fn take_back(&mut self, user: u32) {
        self.counts.waits -= self.core.host.take_back(self.client, user);
    }

    fn withdraw(&mut self) {
        if self.counts.requests > 0 {
            self.core.withdrawing.push(self.client);
        }
    }

    fn cap_by(&mut self, caps: &Arc<Caps>) {
        if self.counts.cap_queue != NO_CAP_QUEUE {
            self.core.cap_queues.leave(self.counts.cap_queue, self.client, self.core.now_ns);
            self.counts.cap_queue = NO_CAP_QUEUE;
        }
        if caps.is_limited() {
            self.counts.cap_queue = self.core.cap_queues.enter(caps);
        }
        *self.caps = Some(caps.clone());
    }
}

impl<H: Host<P>, P: Policy> Worker<H, P> {
    pub(super) fn take_ended(&mut self) {
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

    pub(super) fn deliver(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for (Owner(client), completion) in completions.drain(..) {
            self.clients[client as usize].counts.requests -= 1;
            self.call(client, |client, context| client.completed(context, completion));
            self.dispatch_if_due();
        }
        self.completions = completions;
    }

    /// Tells the clients that were refused that there is room again, in the order in which they were refused. The next
    /// time clients that got a place now go behind those that got none.
    pub(super) fn tell_room(&mut self) {
        let mut room = std::mem::take(&mut self.room);
        let RoomNotices { flows, told, served } = &mut room;
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

    /// Takes back the waiting requests of clients that have gone.
    #[cold]
    fn withdraw(&mut self) {
        let now_ns = self.core.now_ns;
        while let Some(client) = self.core.withdrawing.pop() {
            let Core { host, hctxs, .. } = &mut self.core;
            for hctx in hctxs {
                let ended = hctx.withdraw(Owner(client), now_ns, &mut |other| host.kick(other), &mut self.completions);
                host.completed(ended);
            }
        }
        self.deliver();
        // Another turn: the policies are asked what goes in their place.
        self.core.staged = true;
    }

    pub(super) fn end_turn(&mut self) {
        if !self.core.withdrawing.is_empty() {
            self.withdraw();
        }
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
                let cap_queue = std::mem::replace(&mut slot.counts.cap_queue, NO_CAP_QUEUE);
                if cap_queue != NO_CAP_QUEUE {
                    self.core.cap_queues.leave(cap_queue, client, self.core.now_ns);
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
    pub(super) fn dispatch_if_due(&mut self) {
        if self.core.staged {
            self.core.dispatch_if_due();
        }
    }

    /// Calls a client, and sees to it that its turn is ended.
    pub(super) fn call(&mut self, client: u32, action: impl FnOnce(&mut dyn Client, &mut dyn Context)) {
        let counts = &mut self.clients[client as usize].counts;
        if !std::mem::replace(&mut counts.called, true) {
            self.called.push(client);
        }
        self.call_quietly(client, action);
    }

    pub(super) fn call_quietly(&mut self, client: u32, action: impl FnOnce(&mut dyn Client, &mut dyn Context)) {
        let slot = &mut self.clients[client as usize];
        let Slot { client: boxed, caps, counts } = slot;
        if let Some(boxed) = boxed {
            action(&mut **boxed, &mut Call { core: &mut self.core, counts, caps, client });
        }
    }

    /// As in `drain`: requests that this client still has pass at once.
    pub(super) fn uncap(&mut self, client: u32) {
        let slot = &mut self.clients[client as usize];
        slot.caps = None;
        let cap_queue = std::mem::replace(&mut slot.counts.cap_queue, NO_CAP_QUEUE);
        if cap_queue != NO_CAP_QUEUE && self.core.cap_queues.leave(cap_queue, client, self.core.now_ns) {
            self.call(client, |client, context| client.room(context));
        }
    }

    /// Clients whose caps have limits now pass a cap queue, and none waits for a limit that is no more.
    pub(super) fn caps_changed(&mut self) {
        for Slot { caps, counts, .. } in &mut self.clients {
            if let Some(caps) = caps.as_ref().filter(|caps| counts.cap_queue == NO_CAP_QUEUE && caps.is_limited()) {
                counts.cap_queue = self.core.cap_queues.enter(caps);
            }
        }
        self.core.cap_queues.give_back_unused(self.core.now_ns);
    }

    /// Tells clients that have waited for a cap, in the order of their turns, as many as it lets through.
    pub(super) fn tell_cap_queues(&mut self) {
        let now_ns = self.core.now_ns;
        while let Some((cap_queue, waiting)) = self.core.cap_queues.take_due(now_ns) {
            for _ in 0..waiting {
                let Some(client) = self.core.cap_queues.tell(cap_queue, now_ns) else { break };
                self.call(client, |client, context| client.room(context));
                self.dispatch_if_due();
            }
            self.core.cap_queues.told(cap_queue, now_ns);
        }
    }
}
