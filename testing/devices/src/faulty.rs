//! A device that goes wrong on purpose, below queues that workers share.

use crate::fault::{FaultDevice, FaultPlan};
use mqfq_blk::device::{Device, DeviceInfo, DeviceQueue, QueueOptions};
use mqfq_blkmq::{MultiQueue, QueueLimits};
use mqfq_sched::topology::CpuPlace;
use std::ops::Deref;
use std::sync::Arc;

/// A [`FaultDevice`] whose queues workers can share.
pub struct Faulty {
    inner: Arc<dyn MultiQueue>,
    fault: FaultDevice,
}

impl Faulty {
    /// `inner`, with the faults of `plan`.
    pub fn new(inner: Arc<dyn MultiQueue>, plan: FaultPlan) -> Faulty {
        Faulty { fault: FaultDevice::new(inner.clone(), plan), inner }
    }
}

impl Deref for Faulty {
    type Target = FaultDevice;

    fn deref(&self) -> &FaultDevice {
        &self.fault
    }
}

impl Device for Faulty {
    fn info(&self) -> DeviceInfo {
        self.fault.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        self.fault.open_queue(options)
    }
}

impl MultiQueue for Faulty {
    fn queue_limits(&self) -> QueueLimits {
        let limits = self.inner.queue_limits();
        // A device without room for the cache's own commands is refused when its queue is opened.
        QueueLimits { depth_max: limits.depth_max.saturating_sub(self.fault.own_commands()).max(1), ..limits }
    }

    fn map_queues(&self, workers: &[CpuPlace], queues: usize) -> Vec<u16> {
        self.inner.map_queues(workers, queues)
    }

    fn open_shared_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        self.fault.open_over(1, options, |options| self.inner.open_shared_queue(options))
    }

    /// With a cache that is written back by commands of its own there are none: they would need a class.
    fn offers_class_queues(&self) -> bool {
        self.inner.offers_class_queues() && self.fault.own_commands() == 0
    }

    fn open_class_queues(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue + Send>, String> {
        if self.fault.own_commands() > 0 {
            return Err("a fault device with a volatile cache has no class queues".to_string());
        }
        self.fault.open_over(3, options, |options| self.inner.open_class_queues(options))
    }
}
