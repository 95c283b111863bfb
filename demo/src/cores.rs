//! How busy this process kept its cores, and how long it waited for them.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// CPU time of this process so far, seconds.
pub fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A reading of this process's clocks.
pub struct Cores {
    at: Instant,
    cpu_s: f64,
    wait_s: f64,
}

/// Parts of the time of as many cores as there are workers.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Shares {
    /// The process worked.
    pub worked: f64,
    /// Its threads were ready to work and another program, or another of them, had the core.
    pub waited: f64,
}

impl Shares {
    /// The larger of each.
    pub fn max(self, other: Shares) -> Shares {
        Shares { worked: self.worked.max(other.worked), waited: self.waited.max(other.waited) }
    }
}

impl Cores {
    /// A reading now.
    pub fn now() -> Cores {
        Cores { at: Instant::now(), cpu_s: cpu_s(), wait_s: wait_s() }
    }

    /// Shares since then, of as many cores as there are workers.
    pub fn since(&self, workers: usize) -> Shares {
        let now = Cores::now();
        let cores_s = (now.at - self.at).as_secs_f64().max(1e-9) * workers as f64;
        let share = |now_s: f64, then_s: f64| ((now_s - then_s) / cores_s).clamp(0.0, 1.0);
        Shares { worked: share(now.cpu_s, self.cpu_s), waited: share(now.wait_s, self.wait_s) }
    }
}

/// Time that the threads of this process, as many as there are now, waited for a core so far, seconds: 0 on a kernel
/// without that statistic.
fn wait_s() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waited_ns = |stat: String| stat.split_whitespace().nth(1)?.parse::<u64>().ok();
    let of_thread = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("schedstat")).ok().and_then(waited_ns).unwrap_or(0)
    };
    threads.map(of_thread).sum::<u64>() as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_works_as_long_as_its_cpu_time_says() {
        let before = Cores::now();
        let begun_s = cpu_s();
        while cpu_s() < begun_s + 0.02 {}
        let shares = before.since(1);
        assert!(shares.worked > 0.0 && shares.waited >= 0.0, "{shares:?}");
        assert!(shares.worked == 1.0 || shares.worked * before.at.elapsed().as_secs_f64() >= 0.02, "{shares:?}");
    }

    #[test]
    fn the_larger_of_each_share_counts() {
        let (a, b) = (Shares { worked: 0.5, waited: 0.1 }, Shares { worked: 0.4, waited: 0.2 });
        assert_eq!(a.max(b), Shares { worked: 0.5, waited: 0.2 });
    }
}
