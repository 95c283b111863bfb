//! A disk under virtio-driver, which is not ours: its identity, every kind of request, many queues.

use crate::guest::readable;
use crate::server::{SIZE_BYTES, Server, ServerOptions};
use mqfq_blk::{PolicyKind, PolicyOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags as Blk, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags, iovec,
};

/// A mapping of a file of its own, which the driver shares with the server.
pub struct Shared {
    file: OwnedFd,
    start: *mut u8,
    length: usize,
}

impl Shared {
    pub fn new(length: usize) -> Shared {
        let file = rustix::fs::memfd_create("payload", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        // SAFETY: a new mapping of a file that is as long.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_fd().as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        Shared { file, start: start.cast(), length }
    }

    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.length);
        // SAFETY: inside.
        unsafe { self.start.add(at) }
    }

    pub fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.length);
        // SAFETY: inside; the server writes there only while a request does.
        unsafe { self.at(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.length);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at(at), length).to_vec() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

pub type Queue = VirtioBlkQueue<'static, usize>;

/// A driver with queues.
pub struct Driver {
    // Dropped first: the queues lie in the transport's memory.
    pub queues: Vec<Queue>,
    pub transport: Box<VirtioBlkTransport>,
    pub shared: Shared,
}

/// All but the log.
pub const ALL: u64 = !(1 << 26);

impl Driver {
    pub fn attach(server: &Server, export: usize, queues: usize, size: u16, features: u64) -> Driver {
        Driver::attach_at(&server.socket(export), queues, size, features)
    }

    fn attach_at(path: &Path, queues: usize, size: u16, features: u64) -> Driver {
        let transport = VhostUser::new(path.to_str().unwrap(), features).unwrap();
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        let shared = Shared::new(4 << 20);
        transport.map_mem_region(shared.at(0) as usize, shared.length, shared.file.as_raw_fd(), 0).unwrap();
        let mut queues = Queue::setup_queues(&mut *transport, queues, size).unwrap();
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        Driver { queues, transport, shared }
    }

    pub fn kick(&mut self, queue: usize) {
        if self.queues[queue].avail_notif_needed() {
            self.transport.get_submission_notifier(queue).notify().unwrap();
        }
    }

    /// Waits for `count` ends of a queue: contexts and results.
    pub fn wait(&mut self, queue: usize, count: usize) -> Vec<(usize, i32)> {
        let call = self.transport.get_completion_fd(queue);
        let mut ends = Vec::new();
        loop {
            ends.extend(self.queues[queue].completions().map(|end| (end.context, end.ret)));
            if ends.len() >= count {
                return ends;
            }
            assert!(readable(call.as_raw_fd()), "{} of {count} have ended", ends.len());
            let _ = call.read();
        }
    }

    /// The end of the one request of queue 0.
    fn end(&mut self) -> i32 {
        self.kick(0);
        let ends = self.wait(0, 1);
        assert_eq!(ends.len(), 1);
        ends[0].1
    }
}

fn vector(shared: &Shared, at: usize, length: usize) -> iovec {
    iovec { iov_base: shared.at(at).cast(), iov_len: length }
}

#[test]
fn a_driver_finds_the_disk_that_the_export_is() {
    let server = Server::start(ServerOptions::default());
    let driver = Driver::attach(&server, 0, 1, 128, ALL);
    let features = Blk::from_bits_truncate(driver.transport.get_features());
    let wanted = Blk::SEG_MAX
        | Blk::BLK_SIZE
        | Blk::FLUSH
        | Blk::TOPOLOGY
        | Blk::CONFIG_WCE
        | Blk::MQ
        | Blk::DISCARD
        | Blk::WRITE_ZEROES;
    assert!(features.contains(wanted) && !features.intersects(Blk::RO | Blk::SIZE_MAX));
    let config = driver.transport.get_config().unwrap();
    assert_eq!(u64::from(config.capacity), SIZE_BYTES / 512);
    assert_eq!((u32::from(config.blk_size), u16::from(config.num_queues), config.writeback), (512, 64, 1));
    assert_eq!((u32::from(config.seg_max), u32::from(config.max_discard_seg)), (126, 16));
    assert_eq!(driver.transport.max_queues(), Some(64));
    drop(driver);
    server.drain();
}

#[test]
fn every_kind_of_request_is_done() {
    for features in [ALL, ALL & !VirtioFeatureFlags::RING_EVENT_IDX.bits()] {
        let server = Server::start(ServerOptions::default());
        let mut driver = Driver::attach(&server, 0, 1, 128, features);
        let pattern: Vec<u8> = (0..32768).map(|at| (at / 7) as u8).collect();
        driver.shared.fill(0, &pattern);
        let from = driver.shared.at(0);
        // SAFETY: the mapping lives as long as the driver.
        unsafe { driver.queues[0].write_raw(4096, from, 32768, 0).unwrap() };
        assert_eq!(driver.end(), 0);
        driver.queues[0].flush(0).unwrap();
        assert_eq!(driver.end(), 0);
        driver.queues[0].discard(8192, 4096, 0).unwrap();
        assert_eq!(driver.end(), 0);
        driver.queues[0].write_zeroes(16384, 4096, false, 0).unwrap();
        assert_eq!(driver.end(), 0);
        driver.queues[0].write_zeroes(24576, 512, true, 0).unwrap();
        assert_eq!(driver.end(), 0);
        // In three places, of which none is long.
        let vectors = [
            vector(&driver.shared, 1 << 20, 512),
            vector(&driver.shared, 2 << 20, 28672),
            vector(&driver.shared, 3 << 20, 3584),
        ];
        // SAFETY: as above.
        unsafe { driver.queues[0].readv(4096, vectors.as_ptr(), 3, 0).unwrap() };
        assert_eq!(driver.end(), 0);
        let back = [
            driver.shared.bytes(1 << 20, 512),
            driver.shared.bytes(2 << 20, 28672),
            driver.shared.bytes(3 << 20, 3584),
        ];
        let mut expected = pattern;
        for (from, length) in [(4096, 4096), (12288, 4096), (20480, 512)] {
            expected[from..from + length].fill(0);
        }
        assert!(back.concat() == expected);
        assert_eq!(server.own(0, "copied_bytes"), 32768, "the read in three places, and nothing else");
        let past_the_end = driver.queues[0].discard(SIZE_BYTES, 512, 0);
        past_the_end.unwrap();
        assert_eq!(driver.end(), -libc::EIO);
        assert_eq!(server.broken(0, "bad_range"), 1);
        drop(driver);
        server.drain();
    }
}

#[test]
fn a_read_only_disk_says_so_and_refuses_writes() {
    let server = Server::start(ServerOptions { read_only: true, ..ServerOptions::default() });
    let mut driver = Driver::attach(&server, 0, 1, 128, ALL);
    assert!(Blk::from_bits_truncate(driver.transport.get_features()).contains(Blk::RO));
    let from = driver.shared.at(0);
    // SAFETY: the mapping lives as long as the driver.
    unsafe { driver.queues[0].write_raw(0, from, 4096, 0).unwrap() };
    assert_eq!(driver.end(), -libc::EIO);
    // SAFETY: as above.
    unsafe { driver.queues[0].read_raw(0, from, 4096, 0).unwrap() };
    assert_eq!(driver.end(), 0);
}

#[test]
fn many_queues_on_several_workers_each_get_their_own() {
    const QUEUES: usize = 8;
    const ROUNDS: usize = 20;
    const DEPTH: usize = 16;
    for kind in [PolicyKind::Mqfq, PolicyKind::None] {
        let server =
            Server::start(ServerOptions { workers: 3, policy: PolicyOptions::new(kind), ..ServerOptions::default() });
        let mut driver = Driver::attach(&server, 0, QUEUES, 64, ALL);
        for round in 0..ROUNDS {
            for queue in 0..QUEUES {
                for slot in 0..DEPTH {
                    let at = (queue * DEPTH + slot) * 8192;
                    driver.shared.fill(at, &[(round * 31 + queue * 7 + slot) as u8; 4096]);
                    let (from, place) = (driver.shared.at(at), ((queue * DEPTH + slot) * 4096) as u64);
                    // SAFETY: the mapping lives as long as the driver.
                    unsafe { driver.queues[queue].write_raw(place, from, 4096, slot).unwrap() };
                }
                driver.kick(queue);
            }
            for queue in 0..QUEUES {
                assert!(driver.wait(queue, DEPTH).iter().all(|(_, result)| *result == 0));
                for slot in 0..DEPTH {
                    let (place, number) = (((queue * DEPTH + slot) * 4096) as u64, queue * DEPTH + slot);
                    let to = driver.shared.at(number * 8192 + 4096);
                    // SAFETY: as above.
                    unsafe { driver.queues[queue].read_raw(place, to, 4096, slot).unwrap() };
                }
                driver.kick(queue);
                assert!(driver.wait(queue, DEPTH).iter().all(|(_, result)| *result == 0));
                for slot in 0..DEPTH {
                    let at = (queue * DEPTH + slot) * 8192;
                    assert!(driver.shared.bytes(at + 4096, 4096) == [(round * 31 + queue * 7 + slot) as u8; 4096]);
                }
            }
        }
        drop(driver);
        server.drain();
        let stats = server.stats[0].counts();
        let sum = (QUEUES * ROUNDS * DEPTH) as u64;
        assert_eq!((stats.requests[0], stats.requests[1]), (("read", sum), ("write", sum)));
        assert_eq!((stats.connections, server.own(0, "copied_bytes")), (0, 0));
    }
}
