//! Which operations does a worker offer a client while it calls it?
//!
//! Everything that a client asks for goes through here: requests to a device, operations of the worker's ring, times.
//! Operations are counted, so that a client that is done is kept until its last one has ended.

use super::turnstile::{NO_TURNSTILE, capped_bytes};
use super::{Core, Counts, Waiting};
use crate::buffer::Buffer;
use crate::cap::Caps;
use crate::client::{Context, DeviceIndex, MakeClient, Part, Refused};
use crate::command::Command;
use crate::device::DeviceInfo;
use crate::hctx::Full;
use crate::host::Host;
use crate::request::Submission;
use crate::table::Owner;
use mqfq_sched::policy::Policy;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

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
        let turnstile = self.counts.turnstile;
        let capped_bytes = if turnstile == NO_TURNSTILE { 0 } else { capped_bytes(&submission) };
        if turnstile != NO_TURNSTILE {
            let is_told = core.told == Some(self.client);
            if !core.turnstiles.pass(turnstile, self.client, is_told, capped_bytes, core.now_ns) {
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
                if turnstile != NO_TURNSTILE {
                    core.turnstiles.passed(turnstile, capped_bytes, core.now_ns);
                }
                Ok(())
            }
            Err(Full(submission)) => {
                core.wait(waiting);
                Err(Refused::TenantFull(submission))
            }
        }
    }

    fn receive(&mut self, socket: RawFd, buffer: Buffer, start: usize, end: usize, user: u32) {
        self.counts.operations += 1;
        self.core.host.receive(self.client, socket, buffer, start, end, user);
    }

    fn send(&mut self, socket: RawFd, parts: Vec<Part>, user: u32) {
        self.counts.operations += 1;
        self.core.host.send(self.client, socket, parts, user);
    }

    fn receive_with_descriptors(&mut self, socket: RawFd, buffer: Buffer, start: usize, end: usize, user: u32) {
        self.counts.operations += 1;
        self.core.host.receive_with_descriptors(self.client, socket, buffer, start, end, user);
    }

    fn send_with_descriptors(&mut self, socket: RawFd, parts: Vec<Part>, descriptors: Vec<OwnedFd>, user: u32) {
        self.counts.operations += 1;
        self.core.host.send_with_descriptors(self.client, socket, parts, descriptors, user);
    }

    fn poll(&mut self, descriptor: RawFd, user: u32) {
        self.counts.waits += 1;
        self.core.host.poll(self.client, descriptor, user);
    }

    fn count(&mut self, event: RawFd, user: u32) {
        self.counts.waits += 1;
        self.core.host.count(self.client, event, user);
    }

    fn signal(&mut self, event: RawFd, user: u32) {
        self.counts.operations += 1;
        self.core.host.signal(self.client, event, user);
    }

    fn command(&mut self, command: Command, user: u32) {
        self.counts.waits += 1;
        self.core.host.command(self.client, command, user);
    }

    fn take_back(&mut self, user: u32) {
        self.counts.waits -= self.core.host.take_back(self.client, user);
    }

    fn accept(&mut self, listener: RawFd, user: u32) {
        self.counts.operations += 1;
        self.core.host.accept(self.client, listener, user);
    }

    fn attach(&mut self, make: MakeClient) {
        self.core.host.attach(make);
    }

    fn shutdown(&mut self, socket: RawFd) {
        self.core.host.shutdown(socket);
    }

    fn interrupt(&mut self) {
        self.core.host.interrupt(self.client);
    }

    fn timer(&mut self, at_ns: u64, user: u32) {
        self.counts.waits += 1;
        self.core.host.timer(self.client, at_ns, user);
    }

    fn cap_by(&mut self, caps: &Arc<Caps>) {
        if self.counts.turnstile != NO_TURNSTILE {
            self.core.turnstiles.leave(self.counts.turnstile, self.client, self.core.now_ns);
            self.counts.turnstile = NO_TURNSTILE;
        }
        if caps.is_limited() {
            self.counts.turnstile = self.core.turnstiles.enter(caps);
        }
        *self.caps = Some(caps.clone());
    }
}
