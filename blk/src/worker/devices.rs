//! The devices of a worker, and all else that its clients may reach: run, reap, spin, and whether a spin pays.

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

// Whether a worker that waits for another one's kick should spin or sleep.
//
// Answers: will the kick come sooner than a sleep and a wake-up take? A queue that is ahead of virtual time, or lacks
// a token, waits for another worker's next step, which on a fast device is a microsecond away; to sleep and be woken
// takes ten or more. On a slow device it is a millisecond away, and spinning only burns a core. Which it is, is
// learnt: spin for as long as a sleep would cost, and after each time in vain leave the next 1, 2, 4, ... waits to
// sleep. So at worst the cost is twice that of knowing in advance while waits are short, and vanishes while they are
// long.

/// Most waits in a row that are slept through before spinning is tried again.
const SKIPS_MAX: u32 = 16;

/// Decides for one worker whether its next wait spins or sleeps, by how its last spins ended.
#[derive(Default)]
pub(crate) struct Patience {
    /// Waits to sleep through before the next spin.
    skips: u32,
    /// Value of `skips` after the next spin in vain.
    next_skips: u32,
}

impl Patience {
    /// Whether to spin at the start of a wait.
    pub(crate) fn spins(&mut self) -> bool {
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        true
    }

    /// A spin has ended; something came, or the time was up.
    pub(crate) fn spun(&mut self, something_came: bool) {
        if something_came {
            *self = Patience::default();
        } else {
            self.skips = self.next_skips.max(1);
            self.next_skips = (2 * self.skips).min(SKIPS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_in_vain_becomes_rare_and_one_success_restores_it() {
        let mut patience = Patience::default();
        let mut spins = 0;
        for _ in 0..10_000 {
            if patience.spins() {
                spins += 1;
                patience.spun(false);
            }
        }
        // 1, 2, 4 and 8 waits are slept through after the first four spins, then 16 after each.
        assert!((580..=600).contains(&spins), "{spins} spins in 10,000 waits");
        while !patience.spins() {}
        patience.spun(true);
        // As at the start: the waits slept through after each spin in vain grow from one again.
        let mut skipped = || {
            let skipped = (0..).take_while(|_| !patience.spins()).count();
            patience.spun(false);
            skipped
        };
        assert_eq!([(); 7].map(|()| skipped()), [0, 1, 2, 4, 8, 16, 16]);
    }
}
