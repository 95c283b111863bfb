//! The price of a wake-up, and how long staying awake pays.
//!
//! A thread that sleeps and is kicked runs again after 2 us on bare metal and 50 us in some virtual machines. A worker
//! that waits for another one, or looks for a guest's next request, stays awake for [`poll_ns`]: four wake-ups, because
//! the peer itself may have to be woken, work, and kick. The price is measured once, before the workers start, if there
//! are more CPUs than workers. Rules that end waits in vain ([`super::patience`], and of vhost-user-blk `poll.rs`) stay
//! as they are.
//!
//! For example, wake-ups of 2 us and 10 us give 50 us, the least, one of 50 us gives 200 us, and one of 1 ms, on a
//! machine whose cores are busy, gives 250 us, the most.

use crate::client::POLL_NS_MIN;
use crate::worker::clock::Clock;
use crate::worker::cores::{self, Cpu};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Most of [`poll_ns`], ns.
const POLL_NS_MAX: u64 = 250_000;

/// Time for which staying awake pays where a wake-up takes `wake_up_ns`, ns: 50 to 250 us.
pub(crate) fn poll_ns(wake_up_ns: Option<u64>) -> u64 {
    wake_up_ns.map_or(POLL_NS_MIN, |ns| ns.saturating_mul(4).clamp(POLL_NS_MIN, POLL_NS_MAX))
}

/// Longest spin of a worker among so many, ns: a lone one has no kick to wait for, and its drive's ends wake it.
pub(crate) fn spin_ns(workers: usize, poll_ns: u64) -> u64 {
    if workers > 1 { poll_ns } else { 0 }
}

/// Kicks of a measurement, an odd number.
const KICKS: usize = 15;

/// Pause before and after each kick, so that the kicked core is idle.
const PAUSE: Duration = Duration::from_millis(1);

/// Time from a kick of a thread that sleeps on one of `cpus` until it runs, ns: the lower quartile of 15 kicks 1 ms
/// apart, so that a core that is busy now and then says little. `None`: there is one CPU, or no thread could be had.
pub(crate) fn measure(cpus: &[Cpu], clock: Clock) -> Option<u64> {
    let [own, .., other] = *cpus else { return None };
    // Kicks until now, and when the last was seen.
    let (kicks, seen_ns) = (&AtomicUsize::new(0), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sleeps = move || {
            let is_there = cores::pin(other).is_ok();
            for kick in 1..=KICKS {
                // Acquire: pairs with the Release of each kick.
                while kicks.load(Ordering::Acquire) < kick {
                    std::thread::park();
                }
                // Release: pairs with the Acquire after a kick.
                seen_ns.store(clock.now_ns(), Ordering::Release);
            }
            is_there
        };
        let sleeper = std::thread::Builder::new().name("mqfq-kicked".into()).spawn_scoped(scope, sleeps).ok()?;
        let (kicked, last) = (sleeper.thread().clone(), sleeper.thread().clone());
        let kicks_it = move || {
            let is_there = cores::pin(own).is_ok();
            let price_of = |kick: usize| {
                std::thread::sleep(PAUSE);
                let kicked_ns = clock.now_ns();
                // Release: pairs with the Acquire of the sleeper.
                kicks.store(kick, Ordering::Release);
                kicked.unpark();
                std::thread::sleep(PAUSE);
                // A kick that was not seen in that time was of a busy core: the longest pause stands for it.
                // Acquire: pairs with the Release of the sleeper.
                seen_ns.load(Ordering::Acquire).checked_sub(kicked_ns).unwrap_or(PAUSE.as_nanos() as u64)
            };
            let mut prices_ns: Vec<u64> = (1..=KICKS).map(price_of).collect();
            prices_ns.sort_unstable();
            is_there.then_some(prices_ns[KICKS / 4])
        };
        let kicking = std::thread::Builder::new().name("mqfq-kicking".into()).spawn_scoped(scope, kicks_it);
        let price_ns = kicking.map(|thread| thread.join().expect("it does not panic"));
        // Release: pairs with the Acquire of the sleeper.
        kicks.store(KICKS, Ordering::Release);
        last.unpark();
        let is_there = sleeper.join().expect("it does not panic");
        price_ns.ok()?.filter(|_| is_there)
    })
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn staying_awake_pays_for_four_wake_ups_within_bounds() {
        let cases = [(None, 50), (Some(2), 50), (Some(20), 80), (Some(50), 200), (Some(1_000), 250)];
        for (wake_up_us, expected_us) in cases {
            assert_eq!(poll_ns(wake_up_us.map(|us: u64| us * 1_000)), expected_us * 1_000, "{wake_up_us:?}");
        }
        assert_eq!(poll_ns(Some(u64::MAX)), POLL_NS_MAX);
    }

    #[test]
    fn a_lone_worker_does_not_spin() {
        assert_eq!([1, 2, 64].map(|workers| spin_ns(workers, 80_000)), [0, 80_000, 80_000]);
    }

    #[test]
    fn a_wake_up_has_a_price_where_there_are_two_cpus() {
        let cpus = crate::worker::cores::allowed_cpus();
        assert_eq!(measure(&cpus[..1], Clock::start()), None);
        if cpus.len() > 1 {
            assert!(measure(&cpus, Clock::start()).is_some_and(|ns| ns > 0));
        }
    }
}
