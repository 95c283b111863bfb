//! Which operations does a worker offer a client while it calls it?
//!
//! Everything that a client asks for goes through here: requests to a device, operations of the worker's ring, times.
//! Operations are counted, so that a client that is done is kept until its last one has ended.

use super::cap_queue::{NO_TURNSTILE, capped_bytes};
use super::{Core, Counts, Waiting};
use crate::ask::{Ask, CountedAs};
use crate::cap::Caps;
use crate::client::{Context, DeviceIndex, Refused};
use crate::device::DeviceInfo;
use crate::hctx::Full;
use crate::request::Submission;
use crate::table::Owner;
use crate::worker::host::Host;
use mqfq_sched::policy::Policy;
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
