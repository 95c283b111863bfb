//! The cores that this process may use, and their distances: read from the kernel.

use mqfq_sched::topology::{CpuPlace, Topology};
use std::fs;

/// A logical CPU that this process may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// The kernel's number.
    pub number: usize,
    /// Core of the CPU, numbered within the machine.
    pub core: u16,
    /// Socket of the CPU.
    pub socket: u16,
}

/// The CPUs that this process may run on, in the order in which workers take them: first one hardware thread of each
/// core of the first socket, then of the next, then the second threads (the placement of MQFQ section 4).
pub fn allowed_cpus() -> Vec<Cpu> {
    // SAFETY: cpu_set_t is a bit array, for which all-zero is the empty set; the call writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: the number is below CPU_SETSIZE, the size of the set in bits.
    let is_allowed = |number: &usize| unsafe { libc::CPU_ISSET(*number, &set) };
    let numbers: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_allowed).collect();
    let read = |number: usize, name: &str| {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{number}/topology/{name}"));
        text.ok().and_then(|text| text.trim().parse::<u32>().ok())
    };
    // A machine that tells nothing gets one socket and a core per CPU.
    let places: Vec<(u32, u32)> = numbers
        .iter()
        .map(|&number| {
            (read(number, "physical_package_id").unwrap_or(0), read(number, "core_id").unwrap_or(number as u32))
        })
        .collect();
    let mut sockets: Vec<u32> = places.iter().map(|&(socket, _)| socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    let mut cores = places.clone();
    cores.sort_unstable();
    cores.dedup();
    let mut cpus: Vec<(usize, Cpu)> = Vec::new();
    for (&number, place) in numbers.iter().zip(&places) {
        let socket = sockets.binary_search(&place.0).expect("its own socket is in the list") as u16;
        let core = cores.binary_search(place).expect("its own core is in the list") as u16;
        let thread = cpus.iter().filter(|(_, cpu)| cpu.core == core).count();
        cpus.push((thread, Cpu { number, core, socket }));
    }
    cpus.sort_by_key(|&(thread, cpu)| (thread, cpu.socket, cpu.core));
    cpus.into_iter().map(|(_, cpu)| cpu).collect()
}

/// The kernel's number of the calling thread.
pub(crate) fn this_thread() -> i32 {
    // SAFETY: it takes no argument and cannot fail.
    unsafe { libc::gettid() }
}

/// For how long a thread of this process has run or waited for a core, ns. `None`: the kernel does not say, or the
/// thread is gone. Source: `Documentation/scheduler/sched-stats.rst`, the first two numbers of a task's `schedstat`.
pub(crate) fn wanted_ns(thread: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
    Some(numbers.next()?? + numbers.next()??)
}

/// The topology of `workers` workers that take `cpus` in order, and again from the start if there are more workers.
pub fn topology(cpus: &[Cpu], workers: usize) -> Topology {
    let places: Vec<CpuPlace> = (0..workers)
        .map(|worker| {
            let cpu = cpus[worker % cpus.len()];
            CpuPlace { core: cpu.core, socket: cpu.socket }
        })
        .collect();
    Topology::from_places(&places)
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The kernel's; a worker that cannot be pinned runs unpinned.
pub fn pin(cpu: Cpu) -> std::io::Result<()> {
    // SAFETY: as in allowed_cpus; the number came from a set of that size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu.number, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_cpu_for_us() {
        let cpus = allowed_cpus();
        assert!(!cpus.is_empty());
        assert_eq!(topology(&cpus, 5).hctx_count(), 5);
    }
}
