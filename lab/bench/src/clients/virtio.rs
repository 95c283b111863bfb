//! The guest of a virtual disk of another author: virtio-driver, one thread for all queues.
//!
//! Each queue is kept full. The thread takes what has ended, puts as much in again, and sleeps only when no queue had
//! anything: as a guest does whose driver is interrupted.

use super::driver::{REQUEST_BYTES, Seen, WARM_UP_MS};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use virtio_driver::{VhostUser, VirtioBlkQueue, VirtioBlkTransport};

/// All features that a server has and the driver takes, but the log, and packed rings, of which the driver says a wrong
/// beginning by vhost-user.
const FEATURES: u64 = !(1 << 26 | 1 << 34);

/// Longer than any request takes.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Longest latency that is told apart, ns.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// Payloads, in memory that the server maps.
struct Payloads {
    file: OwnedFd,
    start: NonNull<u8>,
    length_bytes: usize,
}

impl Payloads {
    fn new(length_bytes: usize) -> Result<Payloads, String> {
        let failed = |error| format!("cannot make {length_bytes} bytes of shared memory: {error}");
        let file = memfd_create("payloads", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, length_bytes as u64).map_err(failed)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a file that is as long.
        let start = unsafe { mmap(std::ptr::null_mut(), length_bytes, access, MapFlags::SHARED, &file, 0) };
        let start = NonNull::new(start.map_err(failed)?.cast()).ok_or("a mapping at address 0")?;
        Ok(Payloads { file, start, length_bytes })
    }

    fn at(&self, number: usize) -> *mut u8 {
        let at = number * REQUEST_BYTES as usize;
        assert!(at + REQUEST_BYTES as usize <= self.length_bytes);
        // SAFETY: inside, checked above.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Drop for Payloads {
    fn drop(&mut self) {
        // An error would say that it is no mapping. SAFETY: mapped by `new`; queues and transport are gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}

/// A driver that is attached.
pub struct Guest {
    // Dropped first: queues lie in the transport's memory, and the transport has the payloads mapped.
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    transport: Box<VirtioBlkTransport>,
    payloads: Payloads,
    depth: usize,
    blocks: u64,
}

impl Guest {
    /// Attaches to the disk at `socket` with so many queues, each with so many requests under way.
    ///
    /// # Errors
    /// One sentence.
    pub fn attach(socket: &Path, queues: u16, depth: u16) -> Result<Guest, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", socket.display());
        let path = socket.to_str().ok_or("a socket's path that is no text")?;
        let transport = VhostUser::new(path, FEATURES).map_err(|error| format!("{path}: {error}"))?;
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        let depth = usize::from(depth);
        let payloads = Payloads::new(usize::from(queues) * depth * REQUEST_BYTES as usize)?;
        let start = payloads.start.as_ptr().addr();
        transport.map_mem_region(start, payloads.length_bytes, payloads.file.as_raw_fd(), 0).map_err(failed)?;
        let capacity = u64::from(transport.get_config().map_err(failed)?.capacity);
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, queues.into(), 128).map_err(failed)?;
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        Ok(Guest { queues, transport, payloads, depth, blocks: capacity * 512 / u64::from(REQUEST_BYTES) })
    }

    /// Reads 4 KiB at random for so long, after a while that is not measured.
    ///
    /// # Errors
    /// One sentence: a request failed, or did not end.
    pub fn read(&mut self, measured_ms: u64) -> Result<Seen, String> {
        let Guest { queues, transport, payloads, depth, blocks } = self;
        let calls: Vec<_> = (0..queues.len()).map(|queue| transport.get_completion_fd(queue)).collect();
        let kicks: Vec<_> = (0..queues.len()).map(|queue| transport.get_submission_notifier(queue)).collect();
        let begun = Instant::now();
        let from = begun + Duration::from_millis(WARM_UP_MS);
        let until = from + Duration::from_millis(measured_ms);
        let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("a valid range");
        let mut asked = vec![begun; queues.len() * *depth];
        let mut free: Vec<Vec<usize>> = (0..queues.len()).map(|_| (0..*depth).collect()).collect();
        let (mut random, mut all, mut under_way) = (0x9e37_79b9_7f4a_7c15u64, 0, 0);
        loop {
            let (now, mut any) = (Instant::now(), false);
            for (queue, ring) in queues.iter_mut().enumerate() {
                for end in ring.completions() {
                    if end.ret != 0 {
                        return Err(format!("a read failed with {}", end.ret));
                    }
                    (any, all, under_way) = (true, all + 1, under_way - 1);
                    if now >= from && now < until {
                        let took = now - asked[queue * *depth + end.context];
                        latency.saturating_record((took.as_nanos() as u64).max(1));
                    }
                    free[queue].push(end.context);
                }
                if now >= until || free[queue].is_empty() {
                    continue;
                }
                while let Some(slot) = free[queue].pop() {
                    // Source: Marsaglia, "Xorshift RNGs".
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let number = queue * *depth + slot;
                    asked[number] = now;
                    let (place, to) = (random % *blocks * u64::from(REQUEST_BYTES), payloads.at(number));
                    // SAFETY: only this request uses the slot's payload until its end, and it is mapped longer than the
                    // queues.
                    unsafe { ring.read_raw(place, to, REQUEST_BYTES as usize, slot) }
                        .map_err(|error| format!("a read was not taken: {error}"))?;
                    under_way += 1;
                }
                if ring.avail_notif_needed() {
                    kicks[queue].notify().map_err(|error| format!("a kick failed: {error}"))?;
                }
            }
            if under_way == 0 {
                break;
            }
            if !any {
                sleep(&calls.iter().map(|call| call.as_raw_fd()).collect::<Vec<_>>())?;
                calls.iter().for_each(|call| _ = call.read());
            }
        }
        let requests = latency.len();
        let iops = requests as f64 / (measured_ms as f64 / 1e3);
        Ok(Seen { requests, requests_in_all: all, iops, p99_ns: latency.value_at_quantile(0.99) })
    }
}

/// Until one of them says that something has ended.
fn sleep(calls: &[i32]) -> Result<(), String> {
    // SAFETY: the transport has them open.
    let calls = calls.iter().map(|call| unsafe { BorrowedFd::borrow_raw(*call) });
    let mut polls: Vec<PollFd<'_>> = calls.map(|call| PollFd::from_borrowed_fd(call, PollFlags::IN)).collect();
    match poll(&mut polls, Some(&PATIENCE)) {
        Ok(0) => Err(format!("no read ended within {} s", PATIENCE.tv_sec)),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(format!("poll: {error}")),
    }
}
