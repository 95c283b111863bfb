//! CPU time of this process.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process so far, user and system.
pub fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
