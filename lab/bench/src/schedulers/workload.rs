//! Requests of the paper's tenants ("Do we still need IO schedulers for low-latency disks?", section 3.2), and a
//! key-value store's look-ups. A cell of the study is a policy, a workload and a depth.

use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_demo::harness::as_shipped;
use mqfq_demo::load::Load;

/// A tenant: its requests, and what its threads compute between an answer and the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// Its requests.
    pub load: Load,
    /// Computing of the client, on a core of its own, ns.
    pub think_ns: u64,
}

/// A workload at some depth is one or many tenants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// One process that keeps its depth in flight, on one queue.
    Single(Mix),
    /// As many processes as the depth, each with one request in flight, over all queues.
    Multi(Mix),
    /// As many reading processes as the depth, half of them of 4 KiB and half of 8 KiB.
    Sizes,
    /// As many threads of a key-value store as the depth, each looking up one key after the other.
    PointLookup,
}

/// Reads, writes, or half of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
    /// Half of each.
    Mixed,
}

impl Mix {
    const ALL: [Mix; 3] = [Mix::Read, Mix::Write, Mix::Mixed];

    const fn write_percent(self) -> u8 {
        match self {
            Mix::Read => 0,
            Mix::Write => 100,
            Mix::Mixed => 50,
        }
    }
}

/// Depths of the paper: 1 to 128, powers of two.
pub const DEPTHS: [u16; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Depths of a quick run.
pub const QUICK_DEPTHS: [u16; 3] = [1, 8, 64];

/// Most threads of look-ups: the paper's figure 5.
const LOOKUP_THREADS_MAX: u16 = 32;

/// The paper's smaller request.
pub const REQUEST_BYTES: u32 = 4096;

/// A data block that holds one value of 4,096 bytes and a key of 16 is a little longer than 4 KiB and lies anywhere in
/// its file, so it spans two pages, which is what the page cache asks for. (With direct reads `db_bench` 7.8 asks for
/// 4,608 bytes in 93 of 100 reads and for 5,120 otherwise, as strace shows.) Index and filter blocks of such a database
/// stay in memory.
const LOOKUP_BYTES: u32 = 8192;

/// Computing of a look-up besides reading: `db_bench` 7.8, `readrandom`, one thread, no compression, everything in its
/// block cache, takes 4.1 and 4.2 us per look-up on the machine of bench/record.
const LOOKUP_CPU_NS: u64 = 4_000;

impl Workload {
    /// All of them.
    pub fn all() -> Vec<Workload> {
        let mut all: Vec<Workload> = Mix::ALL.map(Workload::Single).to_vec();
        all.extend(Mix::ALL.map(Workload::Multi));
        all.extend([Workload::Sizes, Workload::PointLookup]);
        all
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Single(Mix::Read) => "single-read",
            Workload::Single(Mix::Write) => "single-write",
            Workload::Single(Mix::Mixed) => "single-mixed",
            Workload::Multi(Mix::Read) => "multi-read",
            Workload::Multi(Mix::Write) => "multi-write",
            Workload::Multi(Mix::Mixed) => "multi-mixed",
            Workload::Sizes => "multi-read-4k-8k",
            Workload::PointLookup => "point-lookup",
        }
    }

    /// It writes.
    pub const fn writes(self) -> bool {
        matches!(self, Workload::Single(mix) | Workload::Multi(mix) if mix.write_percent() > 0)
    }

    /// One process, hence one queue.
    pub const fn is_single(self) -> bool {
        matches!(self, Workload::Single(_))
    }

    /// The depths, of `all`, that it has.
    pub fn depths(self, all: &[u16]) -> Vec<u16> {
        let has = |depth: u16| match self {
            Workload::Sizes => depth >= 2,
            Workload::PointLookup => depth <= LOOKUP_THREADS_MAX,
            _ => true,
        };
        all.iter().copied().filter(|&depth| has(depth)).collect()
    }

    /// Its tenants at this depth.
    pub fn tenants(self, depth: u16) -> Vec<Tenant> {
        let load = |seed: u64, depth, request_bytes, write_percent| Load {
            seed,
            write_percent,
            ..Load::random_reads(1, depth, request_bytes)
        };
        let many = |one: &dyn Fn(u64) -> Tenant| (1..=u64::from(depth)).map(one).collect();
        match self {
            Workload::Single(mix) => {
                vec![Tenant { load: load(1, depth, REQUEST_BYTES, mix.write_percent()), think_ns: 0 }]
            }
            Workload::Multi(mix) => {
                many(&|seed| Tenant { load: load(seed, 1, REQUEST_BYTES, mix.write_percent()), think_ns: 0 })
            }
            Workload::Sizes => many(&|seed| {
                let bytes = REQUEST_BYTES << (seed % 2);
                Tenant { load: load(seed, 1, bytes, 0), think_ns: 0 }
            }),
            Workload::PointLookup => {
                many(&|seed| Tenant { load: load(seed, 1, LOOKUP_BYTES, 0), think_ns: LOOKUP_CPU_NS })
            }
        }
    }
}

/// Cores of the paper's machine (section 3.1), hence workers where many processes ask. One process asks on one queue.
pub const WORKERS: usize = 4;

/// Requests that a scheduler of Linux holds on a device at once: its tags, twice the block layer's default of 128 for a
/// queue with a scheduler.
pub const ELEVATOR_DEPTH: u32 = 256;

/// One cell of the study: a policy, a workload and a depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Policy.
    pub kind: PolicyKind,
    /// Requests of its tenants.
    pub workload: Workload,
    /// Requests in flight in all.
    pub depth: u16,
}

impl Cell {
    /// All of them; the policies of a workload and depth stand next to each other.
    pub fn all(depths: &[u16]) -> Vec<Cell> {
        let mut all = Vec::new();
        for workload in Workload::all() {
            for depth in workload.depths(depths) {
                all.extend(mqfq_policies::STAGED.map(|kind| Cell { kind, workload, depth }));
            }
        }
        all
    }

    /// Workers that it runs on.
    pub fn workers(&self) -> usize {
        if self.workload.is_single() { 1 } else { WORKERS }
    }

    /// The policy's options: as a config that says nothing but `policy` gets them; the kernel's schedulers get the
    /// kernel's depth.
    pub fn policy(&self) -> PolicyOptions {
        policy(self.kind, self.workers())
    }
}

/// As [`Cell::policy`], on so many workers.
pub fn policy(kind: PolicyKind, workers: usize) -> PolicyOptions {
    let options = PolicyOptions::new(kind);
    let depth = if is_of_linux(kind) { ELEVATOR_DEPTH } else { options.depth };
    as_shipped(PolicyOptions { depth, ..options }, workers)
}

/// One of the schedulers that Linux has. They know no D of their own: their depth is that of the tags.
pub fn is_of_linux(kind: PolicyKind) -> bool {
    kind.is_elevator()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_is_as_many_requests_in_flight_whoever_asks() {
        for workload in Workload::all() {
            for depth in workload.depths(&DEPTHS) {
                let tenants = workload.tenants(depth);
                let in_flight: u32 = tenants.iter().map(|t| u32::from(t.load.connections * t.load.depth)).sum();
                assert_eq!(in_flight, u32::from(depth), "{workload:?}");
                assert_eq!(tenants.len() == 1, workload.is_single() || depth == 1, "{workload:?}");
                let writes = tenants.iter().any(|tenant| tenant.load.write_percent > 0);
                assert_eq!(writes, workload.writes(), "{workload:?}");
            }
        }
    }

    #[test]
    fn half_the_tenants_of_two_sizes_have_each() {
        let tenants = Workload::Sizes.tenants(8);
        assert_eq!(tenants.iter().filter(|tenant| tenant.load.request_bytes == 8192).count(), 4);
        assert_eq!(Workload::Sizes.depths(&DEPTHS)[0], 2, "one process has no half");
    }

    #[test]
    fn no_two_workloads_share_a_name() {
        let mut names: Vec<&str> = Workload::all().iter().map(|workload| workload.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Workload::all().len());
    }
}
