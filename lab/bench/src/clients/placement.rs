//! Which CPUs server and driver may use: the largest single influence on the figures of a small machine.
//!
//! At depth 1 a request on one core is two context switches, and on two cores two wake-ups of an idle core, which on a
//! virtual machine leave the guest and take ten times as long. Left to itself the kernel does now this, now that. So
//! each server is run both ways: `free` says what a user gets, `apart` what a server does with CPUs of its own.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where server and driver run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Placement {
    /// The kernel decides.
    Free,
    /// The server on the first half of the CPUs, the driver on the second.
    Apart,
}

/// The CPUs of this process, halved.
pub struct Cpus {
    all: CpuSet,
    first: CpuSet,
    second: CpuSet,
    count: usize,
}

impl Placement {
    /// Its name in the record.
    pub const fn name(self) -> &'static str {
        match self {
            Placement::Free => "free",
            Placement::Apart => "apart",
        }
    }
}

impl Cpus {
    /// CPUs that this thread may use now.
    ///
    /// # Errors
    /// One sentence, if the kernel does not say.
    pub fn allowed() -> Result<Cpus, String> {
        let all = sched_getaffinity(None).map_err(|error| format!("cannot read the CPUs of this process: {error}"))?;
        let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&number| all.is_set(number)).collect();
        let (mut first, mut second) = (CpuSet::new(), CpuSet::new());
        for (at, &number) in numbers.iter().enumerate() {
            if at < numbers.len() / 2 { first.set(number) } else { second.set(number) }
        }
        Ok(Cpus { all, first, second, count: numbers.len() })
    }

    /// The placements that this machine allows: with one CPU nothing can be apart.
    pub fn placements(&self) -> &'static [Placement] {
        if self.count >= 2 { &[Placement::Free, Placement::Apart] } else { &[Placement::Free] }
    }

    /// From now on this thread, and every process that it starts, is placed as a server.
    ///
    /// # Errors
    /// One sentence, if the kernel refuses.
    pub fn be_server(&self, placement: Placement) -> Result<(), String> {
        self.be(placement, &self.first)
    }

    /// From now on this thread, and every process that it starts, is placed as a driver.
    ///
    /// # Errors
    /// One sentence, if the kernel refuses.
    pub fn be_driver(&self, placement: Placement) -> Result<(), String> {
        self.be(placement, &self.second)
    }

    fn be(&self, placement: Placement, half: &CpuSet) -> Result<(), String> {
        let cpus = if placement == Placement::Free { &self.all } else { half };
        sched_setaffinity(None, cpus).map_err(|error| format!("cannot choose CPUs: {error}"))
    }
}

impl Drop for Cpus {
    fn drop(&mut self) {
        // It was allowed before.
        let _ = sched_setaffinity(None, &self.all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apart_means_no_cpu_in_common_and_ends_with_the_value() {
        let before = sched_getaffinity(None).unwrap();
        let cpus = Cpus::allowed().unwrap();
        for &placement in cpus.placements() {
            cpus.be_server(placement).unwrap();
            let server = sched_getaffinity(None).unwrap();
            cpus.be_driver(placement).unwrap();
            let driver = sched_getaffinity(None).unwrap();
            let common = (0..CpuSet::MAX_CPU).filter(|&cpu| server.is_set(cpu) && driver.is_set(cpu)).count();
            assert_eq!(common, if placement == Placement::Apart { 0 } else { cpus.count });
        }
        drop(cpus);
        assert!(sched_getaffinity(None).unwrap() == before);
    }
}
