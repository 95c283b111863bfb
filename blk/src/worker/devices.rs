//! The devices of a worker, and all else that its clients may reach: run, reap, spin.

use super::WorkerOptions;
use super::cap_queue::CapQueues;
use super::host::Host;
use crate::client::DeviceIndex;
use crate::device::DeviceInfo;
use crate::hctx::HwCtx;
use crate::request::Completion;
use crate::table::Owner;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::Policy;
use mqfq_sched::topology::HctxId;

/// A client that was refused, and for which flow. At most one of a kind, however often it was refused.
#[derive(PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) device: DeviceIndex,
    pub(super) flow: FlowId,
    pub(super) client: u32,
}

impl Waiting {
    pub(super) fn is_for(&self, device: DeviceIndex, flow: FlowId) -> bool {
        self.device == device && self.flow == flow
    }
}

/// Everything that a client may reach through its context.
pub(super) struct Core<H: Host<P>, P: Policy> {
    // Dropped before the device queues, whose memory a host's ring may still point to.
    pub(super) host: H,
    pub(super) now_ns: u64,
    /// Number of this turn.
    pub(super) turn: u64,
    pub(super) hctxs: Vec<HwCtx<P>>,
    pub(super) infos: Vec<DeviceInfo>,
    pub(super) waiting: Vec<Waiting>,
    /// The client that is being told of room: it alone need not wait behind others.
    pub(super) told: Option<u32>,
    pub(super) options: WorkerOptions,
    /// A request was staged since the last run.
    pub(super) staged: bool,
    /// By device.
    pub(super) plugs: Vec<Plug>,
    pub(super) cap_queues: CapQueues,
    /// Clients that have given their waiting requests up.
    pub(super) withdrawing: Vec<u32>,
}

/// Requests of one device gather while clients are called, so that one doorbell is for many. Not for
/// long: a flow with requests staged holds global virtual time where it is, and so may keep the device
/// from others. Where clients take long, it should not be for the length of a whole turn.
pub(super) struct Plug {
    /// Calls of clients that gather ([`crate::path_options::PathOptions::plug`]).
    pub(super) calls_max: u32,
    /// Calls since the first request, that call included.
    pub(super) calls: u32,
    /// A request has gathered.
    pub(super) is_in: bool,
    /// Flow of the last submission.
    pub(super) last_flow: FlowId,
}

/// Outcome of a round of run and reap.
#[derive(Clone, Copy, Default)]
pub(super) struct Round {
    /// There may be more to dispatch.
    pub(super) again: bool,
    /// A request was dispatched or collected.
    pub(super) has_moved: bool,
}

impl Plug {
    pub(super) fn of<P: Policy>(hctx: &HwCtx<P>) -> Plug {
        Plug { calls_max: hctx.plug(), calls: 0, is_in: false, last_flow: FlowId(0) }
    }

    fn pull(&mut self) {
        (self.calls, self.is_in) = (0, false);
    }
}

impl<H: Host<P>, P: Policy> Core<H, P> {
    pub(super) fn wait(&mut self, waiting: Waiting) {
        if !self.waiting.contains(&waiting) {
            self.waiting.push(waiting);
        }
    }

    /// Dispatches and collects on every device once.
    pub(super) fn run_devices(&mut self, completions: &mut Vec<(Owner, Completion)>) -> Round {
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
    pub(super) fn dispatch_if_due(&mut self) {
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
    pub(super) fn is_held_back(&self) -> bool {
        self.hctxs.iter().any(HwCtx::is_held_back)
    }

    /// Waits for a kick, or anything else to do, without sleeping. False if nothing came within the worker's patience.
    pub(super) fn spin(&mut self, next_ns: Option<u64>) -> bool {
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
        if !something_came {
            self.host.in_vain(now_ns - began_ns);
        }
        something_came
    }

    /// Time at which the worker must look at a device again, if nothing else happens before.
    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.hctxs.iter().filter_map(HwCtx::next_event_ns).chain(self.cap_queues.next_ns()).min()
    }
}
