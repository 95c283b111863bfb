//! The part of a device that only shared queues need.
//!
//! A worker of the product opens a queue of its own and keeps it on its thread. Queues that workers share change
//! threads, and there may be fewer of them than workers, or three for one worker.

use crate::map::nearest;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::ModelDevice;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::device::{Device, DeviceInfo, DeviceQueue, QueueOptions};
use mqfq_sched::topology::CpuPlace;
use std::any::Any;
use std::sync::Arc;

/// Number and depth of a device's queues (blk-mq section 3.3: "the number of submission queues that it supports as
/// well as the size of these queues").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Queues that can be open at once, at least 1.
    pub queues_max: u32,
    /// Commands in flight on one of them, at least 1.
    pub depth_max: u16,
}

impl QueueLimits {
    /// A queue for each worker there can be, as deep as tags go: limits of a device whose queues are plain memory.
    pub const UNLIMITED: QueueLimits = QueueLimits { queues_max: 1024, depth_max: u16::MAX };
}

/// A device whose queues workers can share.
pub trait MultiQueue: Device {
    /// Number and depth of its queues. Constant.
    fn queue_limits(&self) -> QueueLimits {
        QueueLimits::UNLIMITED
    }

    /// Queue among `queues` hardware queues, 1 or more, for each worker, given the workers' places (blk-mq section 3.3,
    /// "HW submission queue mapping function"). Every queue must have a worker.
    fn map_queues(&self, workers: &[CpuPlace], queues: usize) -> Vec<u16> {
        nearest(workers, queues)
    }

    /// A queue that several workers use in turn, under a lock; called once for each, on any thread. Its `interrupt`
    /// reaches a worker that looks after the queue, whatever hctx it is called with.
    ///
    /// # Errors
    /// One sentence for the user.
    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String>;

    /// Whether it says that it arbitrates among queues of different classes by their weights (CAP.AMS of NVMe). The
    /// effect is measured by lab/nvme. Constant.
    fn offers_class_queues(&self) -> bool {
        false
    }

    /// A set of three queues, one of each class, as [`Device::has_class_queues`] describes it. Dropped, the queues are
    /// deleted. It counts as three of [`QueueLimits::queues_max`].
    ///
    /// # Errors
    /// One sentence for the user; as it stands here, that the device has none.
    fn open_class_queues(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        let _ = options;
        Err("it has no weighted round robin among classes of queues".to_string())
    }
}

impl MultiQueue for NullDevice {
    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(Box::new(self.queue(&options)))
    }
}

impl MultiQueue for MemoryDevice {
    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(Box::new(self.queue(&options)))
    }
}

impl MultiQueue for ModelDevice {
    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Ok(Box::new(self.queue(options)))
    }
}

/// A device whose queues are bound to their workers' threads.
struct Bound(Arc<dyn Device>);

impl Device for Bound {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        self.0.open_queue(options)
    }
}

impl MultiQueue for Bound {
    fn open_shared_queue(&self, _: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        Err("its queues belong to one worker each: allowed is one hardware queue per core".to_string())
    }
}

/// This device of the product, with what it has for shared queues: `file` refuses to open any.
pub fn multi_queue(device: &Arc<dyn Device>) -> Arc<dyn MultiQueue> {
    fn known<D: MultiQueue>(device: &Arc<dyn Device>) -> Option<Arc<dyn MultiQueue>> {
        let any: Arc<dyn Any + Send + Sync> = device.clone();
        Some(any.downcast::<D>().ok()?)
    }
    let known =
        [known::<NullDevice>, known::<MemoryDevice>, known::<ModelDevice>].into_iter().find_map(|of| of(device));
    known.unwrap_or_else(|| Arc::new(Bound(device.clone())))
}
