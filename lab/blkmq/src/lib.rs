//! The two levels of queues of Linux's blk-mq: from workers to software queues to hardware queues.
//!
//! Source: Bjørling, Axboe, Nellans, Bonnet, "Linux Block IO: Introducing Multi-queue SSD Access on Multi-core
//! Systems", SYSTOR 2013 (cited as "blk-mq section n"), section 3.2 for the two levels, section 2 for one queue and one
//! lock (SQ).
//!
//! # Shape
//! ```text
//!   workers            0    1    2    3         a context each ([`mqfq_blk::hctx`])
//!   software queues    a    a    b    b         per core (the context's own), per socket, or a single one   ── a lock each
//!   hardware queues    A    A    B    B         per core (the worker's own), per socket, or a single one    ── a lock each
//!   device                 one queue each
//! ```
//! For a policy that names class queues a hardware queue is a *set* of three of the device's ([`QueueMap::of_sets`]);
//! the rest is as above.
//!
//! Where both levels are per core, as in the product, nothing of this is built: a context has its policy's queue and
//! the device's, and no lock. Otherwise the engine serves a [`SharedQueues`] in place of the device. Each worker opens
//! a [`Port`] of it, a [`DeviceQueue`] like any other, and the shared queues lie behind it:
//!
//! | file | noun |
//! |---|---|
//! | `device.rs` | the device over another one's shared queues, and the place where an engine gets it |
//! | `multi_queue.rs` | the part of a device that only shared queues need |
//! | `map.rs` | which worker uses which queue of each level |
//! | `hardware.rs` | a hardware queue: the device's queue, its tags, and the commands that wait for them, under one lock |
//! | `port.rs` | one worker's way into both, and the inbox by which its completions come back |
//!
//! # Invariants
//! Q1. A command that a port took is handed out once, by the same port, with the tag that it came with (I10).
//! Q2. A tag of a hardware queue is free, or spare, only if no worker waits for one: a freed tag is kept for the worker
//!     that has waited longest, which is kicked. So no worker starves behind another, and no wake-up is lost: waiting
//!     and freeing happen under the same lock.
//! Q3. A command in a software queue is dispatched by the worker that put it there, unless another did before, in the
//!     doorbell that follows; a command for which a hardware queue has no tag, by the worker that brings a
//!     completion back to it.
//!
//! In a set all of this holds for each class by itself: a class without tags keeps none of another's commands waiting.
//!
//! # Cost
//! Per core: nothing. A shared hardware queue: its lock once per doorbell and per reap that finds something, and once
//! per five commands of a batch for tags; a shared set needs no lock for tags. A shared software queue: its lock twice
//! per command. SQ: one lock, three times per command. A completion for another worker: the lock of its inbox and a
//! kick.

mod device;
mod hardware;
mod map;
mod multi_queue;
mod port;
#[cfg(test)]
mod tests;

pub use device::SharedQueues;
#[cfg(feature = "uring")]
pub use device::{prepare, share};
pub use map::{BlockLayer, HardwareQueues, QueueLayout, QueueMap, Spread};
pub use multi_queue::{MultiQueue, QueueLimits, multi_queue};

use hardware::{HardwareQueue, Shape};
use mqfq_blk::device::{DeviceQueue, QueueOptions};
use mqfq_sched::policy::QueueClass;
use mqfq_sched::sync::Mutex;
use mqfq_sched::topology::HctxId;
use port::{Inbox, OwnedCommand, Port, Staging};
use std::collections::VecDeque;
use std::sync::Arc;

/// Makes the worker of an hctx look at its queues.
pub type Interrupt = Arc<dyn Fn(HctxId) + Send + Sync>;

/// The shared queues of one device.
pub struct DeviceQueues {
    map: QueueMap,
    /// Software queues; none if each worker has its own.
    software: Vec<Arc<SoftwareQueue>>,
    /// Hardware queues; none if each worker has its own.
    hardware: Vec<Arc<HardwareQueue>>,
    inboxes: Arc<[Inbox]>,
    interrupt: Interrupt,
}

/// Commands that wait for a hardware queue, and whose they are. On lines of its own: where an allocator puts it does
/// not decide whose lock slows whose.
#[repr(align(128))]
struct SoftwareQueue(Mutex<VecDeque<OwnedCommand>>);

// Two of them never lie on one line.
const _: () = assert!(align_of::<SoftwareQueue>() == 128);

impl DeviceQueues {
    /// The queues of `map` on `device`, each hardware queue with `depth` tags, each set with so many of each class.
    /// `interrupt` must reach every worker of the map.
    ///
    /// # Errors
    /// One sentence: the device has no queues that workers can share.
    pub fn open(
        device: &dyn MultiQueue,
        map: QueueMap,
        depth: u16,
        interrupt: Interrupt,
    ) -> Result<DeviceQueues, String> {
        let workers = map.workers();
        let mut queues = DeviceQueues {
            software: Vec::new(),
            hardware: Vec::new(),
            inboxes: (0..workers).map(|_| Inbox::default()).collect(),
            interrupt,
            map,
        };
        if queues.map.is_private() {
            return Ok(queues);
        }
        let is_set = queues.map.is_of_sets();
        // Where a worker asks for tags itself.
        let keeps_spares = queues.map.layer() != BlockLayer::Sq && !queues.map.has_shared_software() && !is_set;
        let shape = Shape { workers, depth, is_set, keeps_spares };
        for number in 0..queues.map.hardware_queues() {
            let first = queues.map.worker_of(number);
            let open = |interrupt: Interrupt| {
                let options = QueueOptions {
                    hctx: first,
                    depth,
                    #[cfg(feature = "uring")]
                    ring: None,
                    interrupt,
                };
                if is_set { device.open_class_queues(options) } else { device.open_shared_queue(options) }
            };
            queues.hardware.push(HardwareQueue::open(shape, first, &queues.interrupt, open)?);
        }
        if queues.map.has_shared_software() {
            let room = workers * usize::from(depth);
            let software = || Arc::new(SoftwareQueue(Mutex::new(VecDeque::with_capacity(room))));
            queues.software = (0..queues.map.software_queues()).map(|_| software()).collect();
        }
        Ok(queues)
    }

    /// Assignment of workers to queues.
    pub fn map(&self) -> &QueueMap {
        &self.map
    }

    /// The worker's way into the shared queues, for its context in place of a queue of the device: `depth` of its
    /// commands at once, in a set of each class. `None`: it has one of its own.
    pub fn port(&self, hctx: HctxId, depth: u16) -> Option<Box<dyn DeviceQueue>> {
        let hardware = self.hardware.get(self.map.hardware_of(hctx))?.clone();
        let is_set = self.map.is_of_sets();
        let depth = usize::from(depth) * if is_set { QueueClass::ALL.len() } else { 1 };
        let staging = match self.map.layer() {
            _ if is_set => Staging::Set(Vec::with_capacity(depth)),
            BlockLayer::Sq => Staging::UnderOneLock,
            _ => match self.software.get(self.map.software_of(hctx)) {
                Some(shared) => Staging::Shared(shared.clone()),
                None => Staging::Own(Vec::with_capacity(depth)),
            },
        };
        Some(Box::new(Port::new(hctx, staging, hardware, self.inboxes.clone(), self.interrupt.clone(), depth)))
    }
}
