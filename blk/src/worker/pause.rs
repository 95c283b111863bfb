//! A worker that holds still, so that another process can take the engine's place.
//!
//! Every client is asked to pause, and requests that wait for a device are given back if all clients take them. When
//! none has an operation or request under way and no context has anything on its device, the worker reports that it is
//! quiet; the clients' state is handed over only then. A client that comes meanwhile (another worker had accepted it
//! before it was asked) is started and paused at once, and the worker is quiet again when that has ended; if it takes
//! nothing back, nothing more is given back. Timers and polls stay: they move no byte.
//!
//! Invariant: while a worker is quiet, it changes no socket and no device.

use super::Worker;
use super::clients::Slot;
use crate::client::PackedClient;
use crate::worker::host::Host;
use mqfq_sched::policy::Policy;
use std::io;
use std::sync::mpsc;

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
