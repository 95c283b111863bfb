//! Drives that outlive servers, behind the door by which the reconciler opens devices.
//!
//! A drive may answer nothing for a long time, beside one that does.

use super::wish::{self, DEVICES, EXPORTS, PLACES};
use super::{DRAIN_NS, Run, STALL_NS};
use crate::script::Config;
use crate::server::{EXPORT_BYTES, plan};
use crate::world;
use mqfq_blk::client::Packed;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::{Device, DeviceInfo, DeviceQueue, QueueOptions};
use mqfq_blk::random::Random;
use mqfq_daemon::config::{ConfigError, DevicePlan};
use mqfq_daemon::ownership::Key;
use mqfq_testing_devices::fault::{FaultDevice, FaultPlan};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Fault of a drive that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    No,
    /// It cannot be opened.
    Drive,
    /// This worker and those behind it cannot open their queues.
    Queue(u16),
}

/// All drives.
pub struct Drives {
    drives: [Arc<FaultDevice>; DEVICES],
    fault: Cell<Fault>,
    /// By drive: its object in the server that opened it last.
    opened: RefCell<[Option<Weak<Drive>>; DEVICES]>,
}

thread_local! {
    static DRIVES: RefCell<Option<Rc<Drives>>> = const { RefCell::new(None) };
}

impl Drives {
    /// Drives of zeroes, which this thread's reconcilers open from now on.
    pub fn begin(config: &Config) -> Rc<Drives> {
        let drive = |number: usize| {
            let size_bytes = PLACES.div_ceil(DEVICES) as u64 * EXPORT_BYTES;
            let plan = FaultPlan { seed: config.get("seed") ^ number as u64, ..plan(config) };
            Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(size_bytes)), plan))
        };
        let drives = Rc::new(Drives {
            drives: std::array::from_fn(drive),
            fault: Cell::new(Fault::No),
            opened: RefCell::default(),
        });
        DRIVES.set(Some(drives.clone()));
        drives
    }

    /// Sets the fault of drives that come from now on.
    pub fn set_fault(&self, fault: Fault) {
        self.fault.set(fault);
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<FaultDevice>; DEVICES] {
        &self.drives
    }
}

/// See `mqfq_daemon::reconcile::OpenDevice`. A drive that the server has not closed is locked, as a file is.
///
/// # Errors
/// As [`Fault::Drive`] says; or it is open.
pub fn open(device: &DevicePlan, _warnings: &mut Vec<String>) -> Result<Arc<dyn Device>, ConfigError> {
    let drives = DRIVES.with_borrow(Clone::clone).expect("drives were begun on this thread");
    if drives.fault.get() == Fault::Drive {
        return Err(device.config.place.error("the drive is not there"));
    }
    let is_open = drives.opened.borrow()[number(device)].as_ref().is_some_and(|drive| drive.strong_count() > 0);
    match is_open {
        true => Err(device.config.place.error(IN_USE)),
        false => Ok(adopt(device)),
    }
}

/// Why a drive that the server has not closed cannot be opened.
pub const IN_USE: &str = "the drive is in use";

fn number(device: &DevicePlan) -> usize {
    device.config.name[1..].parse().expect("d and a number")
}

/// Opens a drive that the server before may have open.
pub fn adopt(device: &DevicePlan) -> Arc<dyn Device> {
    let drives = DRIVES.with_borrow(Clone::clone).expect("drives were begun on this thread");
    let drive = Arc::new(Drive { inner: drives.drives[number(device)].clone(), fault: drives.fault.get() });
    drives.opened.borrow_mut()[number(device)] = Some(Arc::downgrade(&drive));
    drive
}

/// A drive is known by its name, and lasts.
pub fn key_of(device: &DevicePlan) -> Option<Key> {
    Some(Key { name: device.config.name.clone(), lasts: true, base: 0 })
}

struct Drive {
    inner: Arc<FaultDevice>,
    fault: Fault,
}

impl Device for Drive {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        match self.fault {
            Fault::Queue(first) if options.hctx.0 >= first => Err("the drive has no queue left".to_owned()),
            _ => self.inner.open_queue(options),
        }
    }

    /// The drive lasts, and its object in a process does not.
    fn pack(&self, _version: u16) -> Result<Packed, String> {
        Ok(Packed { state: Vec::new(), descriptors: Vec::new() })
    }

    fn unpack(&self, _packed: Packed, _version: u16) -> Result<(), String> {
        Ok(())
    }
}

/// Longest that 20 requests of each client take beside a drive that is silent, ns.
const SERVED_NS: u64 = 250_000_000;

/// A client whose server receives fewer bytes at once takes longer by itself.
const PIECE_BYTES: usize = 512;

/// Longest that a stop takes whatever drives do, ns: `drain-s`, and what the engine gives the last requests.
const STOP_NS: u64 = DRAIN_NS + 5_000_000_000 + 1_000_000;

impl Run {
    /// One drive answers nothing for a long time. Tenants without an export there are served meanwhile, and a server
    /// that is told to stop ends.
    pub(super) fn silence(&mut self, silent: usize, seed: u64) {
        let (others_move, mut random) = (self.stalled_until_ns <= world::now_ns(), Random::new(seed));
        self.stalled_until_ns = self.stalled_until_ns.max(world::now_ns() + STALL_NS);
        self.drives.all()[silent].stall_until(self.stalled_until_ns);
        let device = |export: &wish::Export| wish::at(export.place).0;
        let exports = self.wish.exports.clone();
        let harmed: Vec<usize> =
            exports.iter().flatten().filter(|export| device(export) == silent).map(|export| export.tenant).collect();
        for number in (0..EXPORTS).filter(|number| exports[*number].is_some()) {
            self.connect(number);
            self.clients.borrow_mut()[number].want(20, &mut random);
        }
        world::run(SERVED_NS);
        for (client, export) in self.clients.borrow().iter().zip(&exports) {
            let Some(export) = export.as_ref().filter(|export| others_move && !harmed.contains(&export.tenant)) else {
                continue;
            };
            let left = client.under_way();
            let is_slow = client.manners().piece_bytes < PIECE_BYTES;
            let is_served = client.is_away() || is_slow || (left == 0 && client.is_idle());
            assert!(
                is_served,
                "a foreign fault is local (I14): {left} requests of {client} at drive {} wait for drive {silent}",
                device(export)
            );
        }
        if random.chance(32768) {
            let began_ns = world::now_ns();
            let is_drained = self.managed().engine.drain(Duration::from_nanos(DRAIN_NS));
            let took_ns = world::now_ns() - began_ns;
            assert!(took_ns <= STOP_NS, "a server that is told to stop has not ended after {took_ns} ns: {is_drained}");
            self.kill(false);
        }
    }
}
