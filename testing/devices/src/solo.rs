//! A ring that serves one device queue by hand, without a worker.

use io_uring::{IoUring, squeue};
use mqfq_blk::command::CommandFile;
use mqfq_blk::device::DeviceQueue;
use mqfq_blk::foreign::ForeignMemory;
use mqfq_blk::ring::{DeviceRing, Pending, device_and_user};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Entries of the ring; more are held back until there is room.
const ENTRIES: u32 = 128;

/// An io_uring that drives one file queue without a worker.
pub struct SoloRing {
    uring: IoUring,
    pending: Pending,
    waiting: VecDeque<squeue::Entry>,
    in_kernel: usize,
}

impl SoloRing {
    /// An idle ring.
    ///
    /// # Errors
    /// The kernel's, most often ENOSYS or EPERM where io_uring is missing or forbidden.
    pub fn new() -> io::Result<SoloRing> {
        let uring = IoUring::new(ENTRIES)?;
        Ok(SoloRing { uring, pending: Pending::default(), waiting: VecDeque::new(), in_kernel: 0 })
    }

    /// The door to give to the queue.
    pub fn device_ring(&self) -> DeviceRing {
        self.pending.door(0)
    }

    /// Entries that the queue pushed and that have not ended.
    pub fn in_flight(&mut self) -> usize {
        self.gather();
        self.waiting.len() + self.in_kernel
    }

    /// Submits the queue's new entries, waits until at least one entry ended if any is in flight, and reports the ended
    /// ones. Returns their number: 0 only if none is in flight, so that none will end before the queue pushes more.
    ///
    /// # Errors
    /// The kernel's, other than an interrupted or postponed wait.
    pub fn turn(&mut self, queue: &mut dyn DeviceQueue) -> io::Result<usize> {
        self.gather();
        while self.in_kernel < ENTRIES as usize
            && let Some(entry) = self.waiting.pop_front()
        {
            // SAFETY: the caller of DeviceRing::push vouches for the entry's pointers until ring_event.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            pushed.map_err(io::Error::other)?;
            self.in_kernel += 1;
        }
        if self.in_kernel == 0 {
            return Ok(0);
        }
        let ended = self.wait()?;
        self.in_kernel -= ended.len();
        for (user_data, result) in &ended {
            queue.ring_event(device_and_user(*user_data).1, *result);
        }
        Ok(ended.len())
    }

    /// Waits for at least one ended entry.
    fn wait(&mut self) -> io::Result<Vec<(u64, i32)>> {
        let transient = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
        loop {
            match self.uring.submit_and_wait(1) {
                Err(error) if !transient.contains(&error.raw_os_error().unwrap_or(0)) => return Err(error),
                _ => {}
            }
            let ended: Vec<_> = self.uring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            if !ended.is_empty() {
                return Ok(ended);
            }
            // A signal ends a wait early, as a success if the same call has submitted something: the end of another
            // thread's child will do, or a stop of the process.
        }
    }

    /// Moves entries that the queue pushed behind those that wait.
    fn gather(&mut self) {
        self.waiting.extend(self.pending.take());
    }
}

/// `count` rooms of `room_bytes` each, all zeroes.
///
/// # Panics
/// If there is no memory, or no `/dev/zero` or `/dev/null`.
pub fn rooms(count: u16, room_bytes: usize) -> Arc<CommandFile> {
    let zero = File::options().read(true).write(true).open("/dev/zero").expect("there is /dev/zero");
    let length_bytes = usize::from(count) * room_bytes;
    let memory = ForeignMemory::map(zero.as_fd(), 0, length_bytes).expect("there is memory");
    let null = OwnedFd::from(File::open("/dev/null").expect("there is /dev/null"));
    // SAFETY: it takes no commands, so it touches no memory.
    unsafe { CommandFile::new(Arc::new(null), memory, room_bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::{opcode, types};
    use mqfq_blk::device::{Command, QueueFull, Reaped};
    use std::io::{Write, pipe};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    /// Hears how entries end.
    struct Listener(Vec<(u32, i32)>);

    impl DeviceQueue for Listener {
        fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
            Err(QueueFull(command))
        }

        fn ring_doorbell(&mut self, _now_ns: u64) {}

        fn reap(&mut self, _now_ns: u64, _out: &mut Vec<Reaped>) {}

        fn next_event_ns(&self) -> Option<u64> {
            None
        }

        fn in_flight(&self) -> usize {
            0
        }

        fn ring_event(&mut self, user: u32, result: i32) {
            self.0.push((user, result));
        }
    }

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_signal: libc::c_int) {
        SIGNALS.fetch_add(1, SeqCst);
    }

    /// Waits until this thread of the process sleeps, or `is_over`.
    fn asleep(thread: i32, is_over: &AtomicBool) {
        let path = format!("/proc/self/task/{thread}/stat");
        while !is_over.load(SeqCst) {
            let stat = std::fs::read_to_string(&path).unwrap();
            // After the name, which ends with the last parenthesis, comes the state.
            if stat.rsplit(')').next().unwrap().trim_start().starts_with('S') {
                return;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_wait_that_a_signal_ends_early_goes_on() {
        // SAFETY: the handler only changes an atomic number; no other test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, count as *const () as libc::sighandler_t) };
        let (reader, mut writer) = pipe().unwrap();
        let mut ring = SoloRing::new().unwrap();
        // Leaked: if the wait ended before the read, the kernel would write to it after the test.
        let byte: &'static mut [u8; 1] = Box::leak(Box::default());
        let entry = opcode::Read::new(types::Fd(reader.as_raw_fd()), byte.as_mut_ptr(), 1).build();
        // SAFETY: the byte lives for ever, and the descriptor is named only once, when the entry is submitted.
        unsafe { ring.device_ring().push(entry, 7) };
        let (is_started, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        // SAFETY: both ask for the calling thread's own name, and involve no memory.
        let (waiter, waiter_id) = unsafe { (libc::pthread_self(), libc::gettid()) };
        let (turned, listener) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_started.load(SeqCst) {
                    std::thread::yield_now();
                }
                asleep(waiter_id, &is_over);
                // SAFETY: the thread lives until this one has ended: it waits for it at the end of the scope.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR2) };
                while SIGNALS.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
                asleep(waiter_id, &is_over);
                writer.write_all(&[42]).unwrap();
            });
            let mut listener = Listener(Vec::new());
            is_started.store(true, SeqCst);
            let turned = ring.turn(&mut listener).unwrap();
            is_over.store(true, SeqCst);
            (turned, listener)
        });
        assert_eq!((turned, listener.0), (1, vec![(7, 1)]));
        assert_eq!(*byte, [42]);
    }
}
