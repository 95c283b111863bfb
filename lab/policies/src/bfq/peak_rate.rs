//! How many bytes per second does the device do at its best?
//!
//! Source: Valente and Avanzini 2015 (peak-rate estimation over intervals, with a low-pass filter); 32 samples and 300
//! ms as in Linux 6.12. Ours is simpler than the papers', which must tell sequential from random on disks.
//!
//! # Shape
//! An observation covers time during which at least one request is on the device: waiting for a queue's next request
//! (idling) is the scheduler's doing, and no fault of the device. After 300 ms of that and 32 completions it gives a
//! rate, and the next one begins. The estimate is the first such rate; later ones move it by half of the difference
//! upwards and an eighth downwards, because a light load shows less than the device can do and nothing shows more.

/// Least number of completions in an observation.
const SAMPLES_MIN: u32 = 32;

/// Least time of an observation.
const BUSY_MIN_NS: u64 = 300_000_000;

/// An estimate of the most bytes per second that the device does.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PeakRate {
    bytes_per_s: Option<u64>,
    in_flight: u32,
    /// Since when time is counted, if anything is in flight.
    since_ns: u64,
    busy_ns: u64,
    bytes: u64,
    samples: u32,
}

impl PeakRate {
    /// The estimate, once there is one.
    pub(super) fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// Requests on the device.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A request goes to the device.
    pub(super) fn dispatched(&mut self, now_ns: u64) {
        if self.in_flight == 0 {
            self.since_ns = now_ns;
        }
        self.in_flight += 1;
    }

    /// A request of `bytes` comes back. True if the estimate changed.
    pub(super) fn completed(&mut self, bytes: u64, now_ns: u64) -> bool {
        self.in_flight -= 1;
        self.busy_ns += now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns;
        self.bytes += bytes;
        self.samples += 1;
        if self.samples < SAMPLES_MIN || self.busy_ns < BUSY_MIN_NS {
            return false;
        }
        let rate = (u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy_ns)) as u64;
        (self.bytes, self.busy_ns, self.samples) = (0, 0, 0);
        if rate == 0 {
            // Only flushes and discards came back.
            return false;
        }
        self.bytes_per_s = Some(match self.bytes_per_s {
            None => rate,
            Some(old) if rate > old => old + (rate - old).div_ceil(2),
            Some(old) => old - (old - rate) / 8,
        });
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `requests` of `bytes`, one at a time, each taking `device_ns` and followed by `idle_ns` of nothing.
    fn serve(rate: &mut PeakRate, now_ns: &mut u64, requests: u32, bytes: u64, device_ns: u64, idle_ns: u64) {
        for _ in 0..requests {
            rate.dispatched(*now_ns);
            *now_ns += device_ns;
            rate.completed(bytes, *now_ns);
            *now_ns += idle_ns;
        }
    }

    #[test]
    fn no_estimate_before_32_samples_and_300_ms() {
        let (mut rate, mut now) = (PeakRate::default(), 0);
        // 31 of 10 ms: long enough, too few.
        serve(&mut rate, &mut now, 31, 1 << 20, 10_000_000, 0);
        assert_eq!(rate.bytes_per_s(), None);
        serve(&mut rate, &mut now, 1, 1 << 20, 10_000_000, 0);
        // 1 MiB per 10 ms.
        assert_eq!(rate.bytes_per_s(), Some(104_857_600));
        // 1000 of 100 us: enough, too short.
        let (mut rate, mut now) = (PeakRate::default(), 0);
        serve(&mut rate, &mut now, 2999, 4096, 100_000, 0);
        assert_eq!(rate.bytes_per_s(), None);
        serve(&mut rate, &mut now, 1, 4096, 100_000, 0);
        assert_eq!(rate.bytes_per_s(), Some(40_960_000));
    }

    #[test]
    fn pauses_do_not_count_and_the_estimate_converges() {
        let (mut rate, mut now) = (PeakRate::default(), 0);
        // A first impression that is ten times too slow, then 400 MB/s with 8 ms of waiting after each.
        serve(&mut rate, &mut now, 300, 40_000, 1_000_000, 0);
        assert_eq!(rate.bytes_per_s(), Some(40_000_000));
        serve(&mut rate, &mut now, 3000, 400_000, 1_000_000, 8_000_000);
        let up = rate.bytes_per_s().unwrap();
        assert!((399_000_000..=400_000_000).contains(&up), "{up}");
        // A light load for one observation moves it by an eighth of the difference.
        serve(&mut rate, &mut now, 300, 40_000, 1_000_000, 0);
        let down = rate.bytes_per_s().unwrap();
        assert!((354_000_000..=355_500_000).contains(&down), "{down}");
    }
}
