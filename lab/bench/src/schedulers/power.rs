//! Energy of an I/O, by a stated model: the paper had a meter at the wall, we have not.
//!
//! ```text
//!   watts = idle + busy cores x core + the drive's utilisation x drive
//!   joules per million I/Os = watts / I/Os per second x 1,000,000
//! ```
//! So energy is time at first: a policy that ends the same work sooner lets the machine idle sooner (section 4.2). The
//! defaults stand for the paper's machine, a Dell PowerEdge R230 with four cores and an Optane P4801X. Section 6 says
//! that full load takes 52 W more than the moment after it; Intel's product brief of the P4800X has 14 W active and 5 W
//! idle, so 9 W are the drive's and the other 43 W those of four cores. Idle, 36 W, is ASSUMED: the paper does not say
//! it.

use serde::{Deserialize, Serialize};

/// The model's numbers.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Power {
    /// The machine when nothing runs.
    pub idle_w: f64,
    /// A core that is busy all the time, above that.
    pub core_w: f64,
    /// The drive at its full rate, above that.
    pub drive_w: f64,
}

impl Default for Power {
    fn default() -> Power {
        Power { idle_w: 36.0, core_w: 10.75, drive_w: 9.0 }
    }
}

impl Power {
    /// Energy of a million I/Os at `iops`, each taking `cpu_ns_per_io` of a core, on a drive that does at most
    /// `iops_max`.
    pub fn joules_per_million(&self, iops: f64, cpu_ns_per_io: f64, iops_max: f64) -> f64 {
        if iops <= 0.0 {
            return 0.0;
        }
        let busy_cores = cpu_ns_per_io * 1e-9 * iops;
        let utilisation = if iops_max > 0.0 { (iops / iops_max).min(1.0) } else { 1.0 };
        let watts = self.idle_w + busy_cores * self.core_w + utilisation * self.drive_w;
        watts * 1e6 / iops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_load_takes_52_watts_more_than_idle_as_the_paper_says() {
        let Power { idle_w, core_w, drive_w } = Power::default();
        assert_eq!(4.0 * core_w + drive_w, 52.0);
        // 400,000 per second with 10 us of a core each: 4 cores, the drive full. 88 W / 0.4 M/s = 220 J per million.
        let joules = Power::default().joules_per_million(400_000.0, 10_000.0, 400_000.0);
        assert!((joules - (idle_w + 52.0) / 0.4).abs() < 1e-9, "{joules}");
    }

    #[test]
    fn twice_as_fast_at_the_same_watts_is_half_the_energy() {
        let idle = Power { idle_w: 50.0, core_w: 0.0, drive_w: 0.0 };
        let at = |iops| idle.joules_per_million(iops, 1000.0, 0.0);
        assert_eq!(at(100_000.0), 2.0 * at(200_000.0));
        assert_eq!(at(0.0), 0.0, "nothing was done, and infinity is no JSON");
    }
}
