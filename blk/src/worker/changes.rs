//! A worker's part in changes while it runs: bounds of flows, devices that come and go, and requests whose end a caller
//! waits for (`engine/flows.rs`, `engine/change.rs`); and below a worker that holds still for another process.
//!
//! Answers: when may a place, a range of bytes or an index be another's, as far as this worker is concerned? It is told
//! by mail, between two turns of the loop, and answers when the last request of its own has ended.

use super::Worker;
use super::clients::Slot;
use super::devices::{Core, Plug};
use crate::client::{PackedClient, Remains};
use crate::device::DeviceInfo;
use crate::hctx::HwCtx;
use crate::stage::StageLimits;
use crate::worker::host::Host;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Policy;
use std::io;
use std::sync::mpsc;

/// The context of a device, and its properties.
pub(super) type Opened<P> = (HwCtx<P>, DeviceInfo);

/// Opens and closes devices of a host.
pub(super) struct LiveDevices<H, P: Policy> {
    /// The context of a device that has come; or one sentence for the user.
    pub(super) open: fn(&mut H, u16) -> Result<Opened<P>, String>,
    /// A device goes: returns a stand-in until the next. Nothing that its queue has put on the host is an event any
    /// more.
    pub(super) close: fn(&mut H, u16) -> Opened<P>,
}

/// Requests that were admitted by a time, and the caller that waits for the last one's end.
pub(super) struct AwaitedEnd {
    device: u16,
    whose: Remains,
    until_ns: u64,
    /// End of the caller's patience.
    given_up_ns: u64,
    gone: mpsc::Sender<()>,
}

impl<H: Host<P>, P: Policy> Core<H, P> {
    /// Puts a device's context in the place of the old one, or behind the last.
    fn put(&mut self, device: u16, (hctx, info): Opened<P>) {
        let (device, plug) = (usize::from(device), Plug::of(&hctx));
        if device < self.hctxs.len() {
            (self.hctxs[device], self.infos[device], self.plugs[device]) = (hctx, info, plug);
            return;
        }
        assert_eq!(device, self.hctxs.len(), "devices come in the order of their indices");
        self.hctxs.push(hctx);
        self.infos.push(info);
        self.plugs.push(plug);
    }
}

impl<H: Host<P>, P: Policy> Worker<H, P> {
    /// Sets how devices come and go on its host.
    #[must_use]
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "only the loop on a thread has devices that come"))]
    pub(super) fn with_devices(self, devices: LiveDevices<H, P>) -> Worker<H, P> {
        Worker { devices: Some(devices), ..self }
    }

    pub(super) fn await_end(&mut self, device: u16, whose: Remains, given_up_ns: u64, gone: mpsc::Sender<()>) {
        self.ending.push(AwaitedEnd { device, whose, until_ns: self.core.now_ns, given_up_ns, gone });
    }

    /// Reports the requests of which none is left.
    pub(super) fn tell_ended(&mut self) {
        let (hctxs, now_ns) = (&self.core.hctxs, self.core.now_ns);
        // Expired questions go unanswered: on a device that hangs, each would else cost a look in every turn.
        self.ending.retain(|ending| now_ns < ending.given_up_ns);
        let is_over = |ending: &mut AwaitedEnd| !hctxs[ending.device as usize].has_any(ending.whose, ending.until_ns);
        for AwaitedEnd { gone, .. } in self.ending.extract_if(.., is_over) {
            // A caller that no longer waits needs no answer.
            let _ = gone.send(());
        }
    }

    pub(super) fn set_limits(&mut self, device: u16, flow: FlowId, limits: StageLimits, is_new: bool) {
        let hctx = &mut self.core.hctxs[device as usize];
        if is_new {
            hctx.forget(flow);
        }
        hctx.set_limits(flow, limits);
    }

    pub(super) fn open_device(&mut self, device: u16) -> Result<(), String> {
        let Some(LiveDevices { open, .. }) = &self.devices else {
            return Err("it has come too late: this worker has the devices of its start".to_owned());
        };
        let opened = open(&mut self.core.host, device)?;
        self.core.put(device, opened);
        self.completions.reserve(self.core.hctxs.iter().map(HwCtx::queue_depth).sum());
        Ok(())
    }

    pub(super) fn close_device(&mut self, device: u16) {
        let left = self.core.hctxs.get(device as usize).map_or(0, HwCtx::admitted);
        assert_eq!(left, 0, "device {device} goes with its requests");
        let Some(LiveDevices { close, .. }) = &self.devices else { unreachable!("none has come") };
        let vacant = close(&mut self.core.host, device);
        self.core.put(device, vacant);
    }
}

// A worker that holds still, so that another process can take the engine's place.
//
// Every client is asked to pause, and requests that wait for a device are given back if all clients take them. When
// none has an operation or request under way and no context has anything on its device, the worker reports that it is
// quiet; the clients' state is handed over only then. A client that comes meanwhile (another worker had accepted it
// before it was asked) is started and paused at once, and the worker is quiet again when that has ended; if it takes
// nothing back, nothing more is given back. Timers and polls stay: they move no byte.
//
// Invariant: while a worker is quiet, it changes no socket and no device.

/// State of a pause of the clients, and the waiting callers.
#[derive(Default)]
pub(super) struct Pausing {
    is_on: bool,
    quiet: Option<mpsc::Sender<()>>,
    pack: Option<(u16, Reply)>,
}

type Reply = mpsc::Sender<io::Result<Vec<PackedClient>>>;

impl Pausing {
    /// A caller waits for an answer.
    pub(super) fn is_asked(&self) -> bool {
        self.quiet.is_some() || self.pack.is_some()
    }

    pub(super) fn pack_when_quiet(&mut self, version: u16, reply: Reply) {
        self.pack = Some((version, reply));
    }
}

impl<H: Host<P>, P: Policy> Worker<H, P> {
    pub(super) fn pause(&mut self, recalls: bool, quiet: mpsc::Sender<()>) {
        self.pausing = Pausing { is_on: true, quiet: Some(quiet), pack: None };
        if recalls && self.clients.iter().all(takes_back) {
            self.recall(true);
        }
        // As in a drain: requests that were read go on past their caps.
        self.core.cap_queues.open(true);
        for client in 0..self.clients.len() as u32 {
            self.call(client, |client, context| client.pause(context));
        }
    }

    /// A client that has just been started, if the others are paused.
    pub(super) fn pause_newcomer(&mut self, client: u32) {
        if self.pausing.is_on {
            if !takes_back(&self.clients[client as usize]) {
                self.recall(false);
            }
            self.call(client, |client, context| client.pause(context));
        }
    }

    pub(super) fn resume(&mut self) {
        self.pausing = Pausing::default();
        self.recall(false);
        self.core.cap_queues.open(false);
        for client in 0..self.clients.len() as u32 {
            self.call(client, |client, context| client.resume(context));
        }
    }

    fn recall(&mut self, is_on: bool) {
        self.core.hctxs.iter_mut().for_each(|hctx| hctx.recall(is_on));
    }

    /// Reports and hands over if everything is quiet.
    pub(super) fn tell_paused(&mut self) {
        let is_quiet = |slot: &Slot| {
            let counts = slot.counts;
            counts.operations == 0
                && counts.requests == 0
                && slot.client.as_ref().is_none_or(|client| client.is_paused())
        };
        if !self.clients.iter().all(is_quiet) || !self.core.hctxs.iter().all(|hctx| hctx.is_idle()) {
            return;
        }
        // A caller that no longer waits has the workers resumed.
        if let Some(quiet) = self.pausing.quiet.take() {
            let _ = quiet.send(());
        }
        if let Some((version, reply)) = self.pausing.pack.take() {
            let clients = self.clients.iter().filter_map(|slot| slot.client.as_ref());
            let _ = reply.send(clients.filter_map(|client| client.pack(version).transpose()).collect());
        }
    }
}

fn takes_back(slot: &Slot) -> bool {
    slot.client.as_ref().is_none_or(|client| client.takes_back())
}
