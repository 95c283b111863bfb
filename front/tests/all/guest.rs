//! A guest of our own: rust-vmm's front-end for the messages, and rings that are written byte by byte, so that they can
//! be wrong.
//!
//! ```text
//!   memory   queue q at q * 64 KiB: descriptors at 0, available ring at 20 KiB, used ring at 32 KiB
//!            request i at 2 MiB + i * 16 KiB: header at 0, status at 16, range or data at 4 KiB
//! ```

use crate::server::LIMIT;
use mqfq_blk::foreign::ForeignMemory;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures as Protocol};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Bytes of memory.
pub const MEMORY_BYTES: u64 = 8 << 20;

/// Where the front-end says that the guest's first byte is: any number, for both sides translate it.
const USER: u64 = 0x7f00_0000_0000;

/// The guest's address of its first byte.
pub const BASE: u64 = 0x4000_0000;

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;

pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const LOG_ALL: u64 = 1 << 26;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;

/// Memory that outlives a server, and the area of requests under way.
#[derive(Clone)]
pub struct Machine {
    pub file: Arc<OwnedFd>,
    pub memory: Arc<ForeignMemory>,
    pub inflight: Option<(Arc<File>, VhostUserInflight)>,
}

impl Machine {
    pub fn new() -> Machine {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY_BYTES).unwrap();
        let memory = ForeignMemory::map(file.as_fd(), 0, MEMORY_BYTES as usize).unwrap();
        Machine { file: Arc::new(file), memory, inflight: None }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.memory.copy_from(at as usize, bytes));
    }

    pub fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(self.memory.copy_to(at as usize, &mut bytes));
        bytes
    }

    fn word(&self, at: u64) -> u16 {
        self.memory.atomic_u16(at as usize).unwrap().load(Ordering::Acquire)
    }

    pub fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: MEMORY_BYTES,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }
}

/// One queue's side of the driver.
pub struct Queue {
    number: u64,
    pub size: u16,
    pub offered: u16,
    pub seen: u16,
    pub kick: EventFd,
    pub call: EventFd,
    pub error: EventFd,
}

/// A guest that is attached.
pub struct Guest {
    pub machine: Machine,
    pub front: Frontend,
    pub queues: Vec<Queue>,
    pub features: u64,
}

/// Where request `i` has its bytes, in the guest's memory.
pub fn request_at(request: u64) -> u64 {
    (2 << 20) + request * (16 << 10)
}

pub fn data_at(request: u64) -> u64 {
    request_at(request) + 4096
}

impl Guest {
    /// Attaches `machine` with `count` queues of `size`, with all features that are offered and in `mask`.
    pub fn attach(socket: &Path, machine: Machine, count: usize, size: u16, mask: u64) -> Guest {
        Guest::try_attach(socket, machine, count, size, mask).unwrap()
    }

    pub fn try_attach(
        socket: &Path,
        machine: Machine,
        count: usize,
        size: u16,
        mask: u64,
    ) -> Result<Guest, vhost::Error> {
        let mut front = Frontend::connect(socket, 64)?;
        front.set_owner()?;
        let mask = mask | PROTOCOL_FEATURES | VERSION_1;
        let features = front.get_features()? & mask;
        let protocol = front.get_protocol_features()?;
        assert!(protocol.contains(Protocol::INFLIGHT_SHMFD | Protocol::REPLY_ACK | Protocol::MQ | Protocol::CONFIG));
        front.set_protocol_features(protocol)?;
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front.set_features(features)?;
        let mut guest = Guest { machine, front, queues: Vec::new(), features };
        guest.front.set_mem_table(&[guest.machine.region()])?;
        match &guest.machine.inflight {
            Some((file, about)) => guest.front.set_inflight_fd(about, file.as_raw_fd())?,
            None => {
                let wanted = VhostUserInflight::new(0, 0, count as u16, size);
                let (about, file) = guest.front.get_inflight_fd(&wanted)?;
                guest.machine.inflight = Some((Arc::new(file), about));
            }
        }
        for number in 0..count {
            guest.add_queue(number, size)?;
        }
        Ok(guest)
    }

    /// A driver that resets the device and begins anew with one queue, in the same area of requests under way.
    pub fn reset(&mut self) {
        self.front.reset_device().unwrap();
        let size = self.queues[0].size;
        self.queues.clear();
        self.machine.write(0, &[0; 0x10000]);
        self.add_queue(0, size).unwrap();
    }

    fn add_queue(&mut self, number: usize, size: u16) -> Result<(), vhost::Error> {
        let event = || EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let at = number as u64 * 0x10000;
        let used = self.machine.word(at + 0x8002);
        let offered = self.machine.word(at + 0x5002);
        let queue =
            Queue { number: number as u64, size, offered, seen: used, kick: event(), call: event(), error: event() };
        let addresses = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: USER + at,
            used_ring_addr: USER + at + 0x8000,
            avail_ring_addr: USER + at + 0x5000,
            log_addr: None,
        };
        self.front.set_vring_num(number, size)?;
        // A hypervisor that has lost its server knows the used index.
        self.front.set_vring_base(number, used)?;
        self.front.set_vring_addr(number, &addresses)?;
        self.front.set_vring_call(number, &queue.call)?;
        self.front.set_vring_err(number, &queue.error)?;
        self.front.set_vring_kick(number, &queue.kick)?;
        self.front.set_vring_enable(number, true)?;
        self.queues.push(queue);
        Ok(())
    }

    /// Writes a descriptor of a queue.
    pub fn descriptor(&self, queue: usize, place: u16, at: u64, length: u32, flags: u16, next: u16) {
        let bytes =
            [&(BASE + at).to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.machine.write(self.queues[queue].number * 0x10000 + u64::from(place) * 16, &bytes);
    }

    /// Writes request `i` with its descriptors 3 * i and the two behind it: `kind` at `sector`, with `length` bytes of
    /// data. Its status byte says 0xff. The head.
    pub fn request(&self, queue: usize, request: u16, kind: u32, sector: u64, length: u32) -> u16 {
        let (head, at) = (request * 3, request_at(request.into()));
        self.machine.write(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes(), &[0xff]].concat());
        let data = if kind == IN { WRITE } else { 0 };
        self.descriptor(queue, head, at, 16, NEXT, if length > 0 { head + 1 } else { head + 2 });
        self.descriptor(queue, head + 1, at + 4096, length, data | NEXT, head + 2);
        self.descriptor(queue, head + 2, at + 16, 1, WRITE, 0);
        head
    }

    /// Puts heads into the available ring, and kicks.
    pub fn offer(&mut self, queue: usize, heads: &[u16]) {
        self.offer_quietly(queue, heads);
        self.kick(queue);
    }

    pub fn offer_quietly(&mut self, queue: usize, heads: &[u16]) {
        let Queue { number, size, offered, .. } = &mut self.queues[queue];
        let at = *number * 0x10000 + 0x5000;
        for head in heads {
            self.machine.write(at + 4 + u64::from(*offered % *size) * 2, &head.to_le_bytes());
            *offered = offered.wrapping_add(1);
        }
        self.machine.memory.atomic_u16(at as usize + 2).unwrap().store(*offered, Ordering::Release);
    }

    pub fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Heads that have ended since the last look, with the lengths written.
    pub fn ended(&mut self, queue: usize) -> Vec<(u16, u32)> {
        let Queue { number, size, seen, .. } = &mut self.queues[queue];
        let at = *number * 0x10000 + 0x8000;
        let mut heads = Vec::new();
        loop {
            while *seen != self.machine.word(at + 2) {
                let entry = self.machine.read(at + 4 + u64::from(*seen % *size) * 8, 8);
                let word = |from: usize| u32::from_le_bytes(entry[from..from + 4].try_into().unwrap());
                heads.push((word(0) as u16, word(4)));
                *seen = seen.wrapping_add(1);
            }
            // "Interrupt me at the next one", unless it came meanwhile.
            self.machine.write(*number * 0x10000 + 0x5004 + u64::from(*size) * 2, &seen.to_le_bytes());
            std::sync::atomic::fence(Ordering::SeqCst);
            if *seen == self.machine.word(at + 2) {
                return heads;
            }
        }
    }

    /// Waits until `count` have ended.
    pub fn wait(&mut self, queue: usize, count: usize) -> Vec<(u16, u32)> {
        let mut heads = Vec::new();
        loop {
            heads.extend(self.ended(queue));
            if heads.len() >= count {
                return heads;
            }
            assert!(readable(self.queues[queue].call.as_raw_fd()), "{} of {count} have ended", heads.len());
            let _ = self.queues[queue].call.read();
        }
    }

    /// The status byte of a request.
    pub fn status(&self, request: u16) -> u8 {
        self.machine.read(request_at(request.into()) + 16, 1)[0]
    }

    /// Does one request of `kind` on queue 0, and says how it ended.
    pub fn one(&mut self, kind: u32, sector: u64, length: u32) -> u8 {
        let head = self.request(0, 0, kind, sector, length);
        self.offer(0, &[head]);
        assert_eq!(self.wait(0, 1)[0].0, head);
        self.status(0)
    }
}

/// Waits until a descriptor can be read, within the limit.
pub fn readable(descriptor: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes the one structure.
    unsafe { libc::poll(&raw mut poll, 1, LIMIT.as_millis() as libc::c_int) == 1 }
}
