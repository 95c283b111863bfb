//! The device over another one's shared queues.
//!
//! An engine gets it in place of the device, before any queue is opened (`prepare`): the number of workers and their
//! places are known then, and the worker's loop needs no word about it.

use crate::map::QueueMap;
use crate::multi_queue::MultiQueue;
use crate::{DeviceQueues, Interrupt};
use mqfq_blk::device::{Device, DeviceInfo, DeviceQueue, Health, QueueOptions};
use mqfq_sched::topology::HctxId;
use std::sync::{Arc, OnceLock};

/// A device through queues that its workers share. The queue that a worker opens is its port into them.
pub struct SharedQueues {
    device: Arc<dyn MultiQueue>,
    queues: DeviceQueues,
    /// By worker, once it has opened its queue; before, it has nothing to be interrupted for.
    interrupts: Arc<[OnceLock<Interrupt>]>,
}

impl SharedQueues {
    /// The queues of `map` on `device`, each hardware queue with `depth` tags, each set with so many of each class.
    ///
    /// # Errors
    /// One sentence: the device has no queues that workers can share.
    pub fn open(device: Arc<dyn MultiQueue>, map: QueueMap, depth: u16) -> Result<SharedQueues, String> {
        let interrupts: Arc<[OnceLock<Interrupt>]> = (0..map.workers()).map(|_| OnceLock::new()).collect();
        let known = interrupts.clone();
        let interrupt: Interrupt = Arc::new(move |hctx| {
            if let Some(interrupt) = known[hctx.index()].get() {
                interrupt(hctx);
            }
        });
        let queues = DeviceQueues::open(&*device, map, depth, interrupt)?;
        Ok(SharedQueues { device, queues, interrupts })
    }
}

impl Device for SharedQueues {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    #[cfg(feature = "uring")]
    fn ring_file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.device.ring_file()
    }

    fn check_up(&self) -> Vec<String> {
        self.device.check_up()
    }

    fn health(&self) -> Health {
        self.device.health()
    }

    #[cfg(feature = "uring")]
    fn pack(&self, version: u16) -> Result<mqfq_blk::client::Packed, String> {
        self.device.pack(version)
    }

    #[cfg(feature = "uring")]
    fn unpack(&self, packed: mqfq_blk::client::Packed, version: u16) -> Result<(), String> {
        self.device.unpack(packed, version)
    }

    fn own(&self) {
        self.device.own();
    }

    fn has_class_queues(&self) -> bool {
        self.queues.map().is_of_sets()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        let hctx: HctxId = options.hctx;
        if let Some(port) = self.queues.port(hctx, options.depth) {
            // A worker opens a device once.
            let _ = self.interrupts[hctx.index()].set(options.interrupt);
            return Ok(port);
        }
        if self.queues.map().is_of_sets() {
            Ok(self.device.open_class_queues(options)?)
        } else {
            self.device.open_queue(options)
        }
    }
}

#[cfg(feature = "uring")]
pub use engine::{prepare, share};

#[cfg(feature = "uring")]
mod engine {
    use super::SharedQueues;
    use crate::map::{QueueLayout, QueueMap};
    use crate::multi_queue::MultiQueue;
    use mqfq_blk::engine::{DeviceOptions, Prepare, Settled};
    use mqfq_sched::policy::PolicyKind;
    use mqfq_sched::topology::Topology;
    use std::sync::Arc;

    /// Has an engine serve `device`, which is that of the options, through queues of `layout`, under the configured
    /// policy.
    pub fn prepare(device: Arc<dyn MultiQueue>, layout: QueueLayout) -> Prepare {
        Arc::new(move |options, topology, _| {
            let policy = options.policy;
            share(options, &device, &layout, topology, policy.kind)?;
            Ok(Settled::configured(policy))
        })
    }

    /// Puts queues of `layout` for the workers of `topology` in the place of `device`, which is that of the options,
    /// where the layout differs from a queue per worker.
    ///
    /// # Errors
    /// One sentence: a policy that cannot run on the layout or the device; more queues, or deeper ones, than the device
    /// has; no queues that workers can share.
    pub fn share(
        options: &mut DeviceOptions,
        device: &Arc<dyn MultiQueue>,
        layout: &QueueLayout,
        topology: &Topology,
        kind: PolicyKind,
    ) -> Result<(), String> {
        layout.check_policy(kind)?;
        if kind.is_direct() && !device.offers_class_queues() {
            return Err("it has no weighted round robin among classes of queues".to_owned());
        }
        let make_map = if kind.is_direct() { QueueMap::of_sets } else { QueueMap::new };
        let map = make_map(layout, topology, &**device, options.queue_depth)?;
        options.path.bypass = layout.layer.is_bypass();
        if map.is_of_sets() || !map.is_private() {
            options.device = Arc::new(SharedQueues::open(device.clone(), map, options.queue_depth)?);
        }
        Ok(())
    }
}
