//! How busy the cores were: by this process, and by everything on the machine.

use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// CPU time of this process so far, seconds.
pub fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A reading of the cores' clocks.
pub struct Cores {
    at: Instant,
    own_s: f64,
    /// Idle and all time of all CPUs, in ticks. `None`: there is no /proc.
    machine: Option<[u64; 2]>,
}

impl Cores {
    /// A reading now.
    pub fn now() -> Cores {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Cores { at: Instant::now(), own_s: cpu_s(), machine: machine(&text) }
    }

    /// Part of the time since then in which the cores worked, 0 to 1: this process's, which has so many workers, or
    /// all of the machine, whichever is more.
    pub fn busy_share(&self, workers: usize) -> f64 {
        let now = Cores::now();
        let wall_s = (now.at - self.at).as_secs_f64().max(1e-9);
        let own = (now.own_s - self.own_s) / (wall_s * workers as f64);
        let machine = self.machine.zip(now.machine).map_or(0.0, |([idle, all], [idle_now, all_now])| {
            1.0 - idle_now.saturating_sub(idle) as f64 / all_now.saturating_sub(all).max(1) as f64
        });
        own.max(machine).clamp(0.0, 1.0)
    }
}

/// Idle and all time by /proc/stat. Its first line has the ticks of all CPUs: user, nice, system, idle, waiting for
/// I/O (which is idle too), interrupts, soft interrupts, stolen; then guests', which are in the first two.
fn machine(stat: &str) -> Option<[u64; 2]> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = ticks.map_while(|tick| tick.parse().ok()).collect();
    Some([ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_drive_is_idle_and_guests_count_once() {
        let stat = "cpu  10 20 30 400 500 1 2 3 999 999\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(machine(stat), Some([900, 966]));
        assert_eq!(machine(""), None);
    }

    #[test]
    fn a_share_is_between_nothing_and_all() {
        let share = Cores::now().busy_share(1);
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
