//! The surroundings of a worker's loop: a thread with its ring, clock and bell, or a virtual core of the simulator.
//!
//! The loop ([`crate::worker`]) decides what is done in which order; the host says what time it is, keeps what was
//! asked of the outside until it has ended, and puts the worker to sleep. There is one host per worker, and it is
//! called by that worker alone, so it needs no lock of its own.
//!
//! # Time
//! A host's clock need not be read twice alike, and never goes back. Methods that end a turn ([`Host::submitted`],
//! [`Host::dispatched`], [`Host::completed`], [`Host::turned`]) tell a host that makes up its time what the loop did;
//! a real one has spent it already, and for it they are nothing.

pub use crate::edge::ask::{Ended, HostEvent};

use crate::ask::Ask;
use crate::client::{ClientFilter, MakeClient, PackedClient, Remains};
use crate::stage::StageLimits;
use crate::stats::Trouble;
use crate::table::Swept;
use crate::trace::Trace;
use crate::tuning::Tuning;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{AnyPolicy, Policy};
use mqfq_sched::topology::HctxId;
use std::io;
use std::sync::{Arc, mpsc};

/// A message to a worker.
pub enum Mail<P: Policy = AnyPolicy> {
    /// Make a client here.
    Attach(MakeClient),
    /// Ask every client to drain; report when none is left.
    Drain(mpsc::Sender<()>),
    /// End what clients wait for: the grace time of a drain is over.
    Abort,
    /// Ask some clients to drain; report when those are gone. Other clients, and later ones, stay.
    DrainSome {
        /// The clients that are asked.
        whose: ClientFilter,
        /// Told once.
        gone: mpsc::Sender<()>,
    },
    /// As [`Mail::Abort`], for some clients.
    AbortSome(ClientFilter),
    /// Find the requests under way on each device, a piece of the table in each turn.
    Sweep(Sweep),
    /// Record requests on every device: see [`crate::hctx::HwCtx::start_trace`].
    StartTrace {
        /// Requests that each context keeps.
        capacity: usize,
    },
    /// Stop recording, and hand over the records, by device.
    TakeTrace(mpsc::Sender<Vec<Trace>>),
    /// Take no more requests into the policy of a device; report when the last that it has is completed.
    Freeze {
        /// Index of the device.
        device: u16,
        /// Told once.
        quiet: mpsc::Sender<()>,
    },
    /// Go on with a device that was frozen.
    Thaw {
        /// Index of the device.
        device: u16,
        /// Another policy and this worker's queue of it; only after every worker has reported that it is quiet. `None`:
        /// the policy stays.
        policy: Option<(Arc<P>, P::Queue)>,
        /// Tuning of that policy; not looked at without one.
        tuning: Option<Arc<Tuning>>,
    },
    /// Limits of caps were set: no request may wait for the old ones.
    CapsChanged,
    /// Ask every client to pause; report when nothing is under way any more.
    Pause {
        /// Requests that wait for a device are given back to clients that take them.
        recalls: bool,
        /// Told once.
        quiet: mpsc::Sender<()>,
    },
    /// Hand over the clients that travel, as soon as nothing is under way.
    Pack {
        /// Version of the state.
        version: u16,
        /// Told once.
        packed: mpsc::Sender<io::Result<Vec<PackedClient>>>,
    },
    /// Go on with every client that was asked to pause.
    Resume,
    /// Report when the meant requests admitted before this are gone.
    AwaitEnd {
        /// Index of the device.
        device: u16,
        /// Requests that are meant.
        whose: Remains,
        /// No caller waits for it any longer then.
        given_up_ns: u64,
        /// Told once.
        gone: mpsc::Sender<()>,
    },
    /// The bounds of a flow from now on; report when they hold.
    SetLimits {
        /// Index of the device.
        device: u16,
        /// The flow whose bounds change.
        flow: FlowId,
        /// Bounds of the flow here.
        limits: StageLimits,
        /// It is another flow than the one before, of which nothing is left.
        is_new: bool,
        /// Told once.
        done: mpsc::Sender<()>,
    },
    /// Room for more flows in the context of a device that is frozen and quiet.
    Grow {
        /// Index of the device.
        device: u16,
        /// Bounds, by flow.
        limits: Arc<[StageLimits]>,
    },
    /// Begin to serve a device; report when it may be asked for, or why not.
    OpenDevice {
        /// Index of the device: a new one, or one whose device was closed.
        device: u16,
        /// Told once.
        opened: mpsc::Sender<Result<(), String>>,
    },
    /// A part of a device is another from now on; report when it is, or why not.
    Follow {
        /// Index of the device.
        device: u16,
        /// Number of the part.
        number: u16,
        /// Told once.
        followed: mpsc::Sender<Result<(), String>>,
    },
    /// Close a device of which no request is left; report when that is done.
    CloseDevice {
        /// Index of the device.
        device: u16,
        /// Told once.
        closed: mpsc::Sender<()>,
    },
    /// Leave the loop.
    Stop,
}

/// A look at all requests of one worker, in pieces.
#[derive(Debug)]
pub struct Sweep {
    /// Requests found, by device. The caller brings the memory.
    pub found: Vec<Swept>,
    /// Given `found` at the end.
    pub reply: mpsc::Sender<Vec<Swept>>,
    /// The device and the place at which it goes on.
    pub at: (usize, usize),
}

/// The surroundings of one worker: its clock, bell, mail, sockets and sleep.
pub trait Host<P: Policy = AnyPolicy> {
    /// Nanoseconds since the engine started.
    fn now_ns(&mut self) -> u64;

    /// Makes the worker of `hctx` run a full turn soon. The work for it was published before.
    fn kick(&mut self, hctx: HctxId);

    /// The own bell, when a turn found nothing to do: see [`mqfq_sched::wake::WakeWord::may_sleep`].
    fn may_sleep(&mut self) -> bool;

    /// The own bell: the worker runs again. See [`mqfq_sched::wake::WakeWord::woke`].
    fn woke(&mut self);

    /// The own bell: whether it was kicked. See [`mqfq_sched::wake::WakeWord::is_kicked`].
    fn is_kicked(&mut self) -> bool;

    /// The next message, if there is one. Its sender has rung the bell after.
    fn take_mail(&mut self) -> Option<Mail<P>>;

    /// Appends operations that ended since the last call.
    fn collect(&mut self, ended: &mut Vec<Ended>);

    /// Meaning of an ended operation. `None`: nothing to the loop (a client's operation goes on, or a timer was
    /// cancelled).
    fn resolve(&mut self, ended: Ended) -> Option<HostEvent>;

    /// True if something has ended that [`Host::collect`] would find, perhaps after a [`Host::enter`].
    fn has_ended(&mut self) -> bool;

    /// Starts the operations asked for, without waiting.
    ///
    /// # Errors
    /// The host itself is broken, and with it every client: the worker panics.
    fn enter(&mut self) -> io::Result<()>;

    /// As [`Host::enter`], then sleeps until a kick, an ended operation, or for `wait_ns`. `is_held_back`: the policy
    /// holds back the requests staged here until another worker has gone on (a host that has been asked to poll instead
    /// of relying on kicks wakes up for that).
    ///
    /// # Errors
    /// As [`Host::enter`].
    fn enter_and_wait(&mut self, wait_ns: Option<u64>, is_held_back: bool) -> io::Result<()>;

    /// Called once per look of a worker that spins.
    fn spin_hint(&mut self);

    /// The worker spun for so long, ns: a core was used, and nothing done.
    fn spun(&mut self, ns: u64) {
        let _ = ns;
    }

    /// The worker stayed awake for so long, ns, for what did not come.
    fn in_vain(&mut self, ns: u64) {
        let _ = ns;
    }

    /// Starts an operation of a client, whose end [`Host::collect`] finds; all but [`Ask::Attach`] and
    /// [`Ask::Shutdown`] concern this client alone. A host whose clients ask for some kinds alone panics at the others.
    fn ask(&mut self, client: u32, ask: Ask);

    /// See [`crate::client::Context::take_back`]. How many there were. As it stands here: a host without polls.
    fn take_back(&mut self, client: u32, user: u32) -> u32 {
        let _ = (client, user);
        0
    }

    /// Ends what this client's operations wait for, or every client's: shuts down their sockets, and ends polls and
    /// counts with ECANCELED. As it stands here: a host without sockets and polls.
    fn abort(&mut self, client: Option<u32>) {
        let _ = client;
    }

    /// Forgets the timers, polls and counts of this client: none of them is resolved to an event any more, not even one
    /// that has ended and was collected. The client is dropped, with its descriptors, and its number given to another
    /// after this.
    fn cancel_waits(&mut self, client: u32);

    /// A client's request reached the block layer.
    #[inline(always)]
    fn submitted(&mut self) {}

    /// So many requests (perhaps none) went to a device, with one doorbell.
    #[inline(always)]
    fn dispatched(&mut self, count: usize) {
        let _ = count;
    }

    /// So many requests (perhaps none) were collected from a device; their clients are called next.
    #[inline(always)]
    fn completed(&mut self, count: usize) {
        let _ = count;
    }

    /// Commands of this device take too long.
    fn troubled(&mut self, device: usize, trouble: Trouble) {
        let _ = (device, trouble);
    }

    /// A turn of the loop is over.
    #[inline(always)]
    fn turned(&mut self) {}
}
