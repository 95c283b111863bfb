//! A workload on a software drive, as a scenario of the simulator in which a request takes its workers what its
//! instructions take.
//!
//! # What it answers
//! What a workload gives on a drive if cores take time: requests per second, latencies, and the time of a core per
//! request. A sleeping thread here is woken after tens of microseconds, more than the drives of this study take for a
//! request, so depth 1 cannot be measured with a clock.
//!
//! # What takes time
//! Instructions are counted ([`crate::schedulers::count`]) and charged at submission and completion. Locked
//! instructions, lines of other cores and waiting for locks come on top, at the rates of [`crate::scenario::MACHINE`];
//! the rates that it has for plain code are off, or that would be charged twice.
//!
//! Picking is charged with the submission, so a request that waits in the policy was charged for it when it came: the
//! work of a worker in all is right, and only a request that is picked long after it was staged is picked for nothing.
//! For the same reason a lock is held for less than its holder's instructions take, so that the waiting for locks shown
//! is the least that there is.
//!
//! # What is not in it
//! System calls, sockets, interrupts, waking up (`mqfq-lab bench scale` and `mqfq-lab bench intake` have them).

use crate::scenario::{Setup, Text, in_turn};
use crate::schedulers::count::Costs;
use crate::schedulers::workload::Tenant;
use mqfq_blk::PolicyOptions;
use mqfq_blkmq::BlockLayer;
use mqfq_nvme::Preset;
use mqfq_sim::outcome::Outcome;

/// Size of the drive that tenants spread over. Its model chooses dies at random.
const DRIVE_BYTES: u64 = 64 << 30;

/// When it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After the time in which a full drive completes so many of the largest requests; the first tenth is warm-up.
    Requests(u64),
    /// At this time; the first quarter is warm-up.
    Ns(u64),
}

/// A run.
pub struct PathOptions<'a> {
    /// The drive.
    pub drive: Preset,
    /// Policy.
    pub policy: PolicyOptions,
    /// Block layer.
    pub layer: BlockLayer,
    /// Commands on each worker's device queue.
    pub queue_depth: u16,
    /// Tenants; each is a flow of the default weight.
    pub tenants: &'a [Tenant],
    /// Workers; connections take them in turn.
    pub workers: usize,
    /// Cost of a request.
    pub costs: Costs,
}

/// Service of a tenant, or of all of them together.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Median from the client's request to its answer.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Time of a core for each request, of whichever tenant.
    pub cpu_ns_per_io: f64,
}

impl PathOptions<'_> {
    /// Service of each tenant.
    ///
    /// # Errors
    /// One sentence: a policy or a load that cannot be.
    pub fn run(&self, until: Until) -> Result<Vec<Seen>, String> {
        let outcome = self.simulate(until)?;
        let cpu_ns_per_io = outcome.cpu_ns_per_request.unwrap_or(0.0);
        let seen = outcome.tenants.iter().map(|tenant| Seen {
            iops: tenant.requests_per_s,
            bytes_per_s: tenant.bytes_per_s,
            p50_ns: tenant.p50_ns,
            p99_ns: tenant.p99_ns,
            mean_ns: tenant.mean_ns,
            cpu_ns_per_io,
        });
        Ok(seen.collect())
    }

    /// Service of all tenants together.
    ///
    /// # Errors
    /// As [`PathOptions::run`].
    pub fn run_together(&self, until: Until) -> Result<Seen, String> {
        let outcome = self.simulate(until)?;
        let total_ns: f64 = outcome.tenants.iter().map(|tenant| tenant.mean_ns * tenant.requests as f64).sum();
        let requests: u64 = outcome.tenants.iter().map(|tenant| tenant.requests).sum();
        Ok(Seen {
            iops: outcome.requests_per_s,
            bytes_per_s: outcome.bytes_per_s,
            p50_ns: outcome.together.p50_ns,
            p99_ns: outcome.together.p99_ns,
            mean_ns: total_ns / requests.max(1) as f64,
            cpu_ns_per_io: outcome.cpu_ns_per_request.unwrap_or(0.0),
        })
    }

    fn simulate(&self, until: Until) -> Result<Outcome, String> {
        let largest = self.tenants.iter().map(|tenant| tenant.load.request_bytes).max().ok_or("nobody asks")?;
        let (end_ns, warm_up_ns) = match until {
            Until::Requests(requests) => {
                let ns = requests * 1_000_000_000 / self.drive.media.read_link.commands_per_s(largest).max(1);
                (ns, ns / 10)
            }
            Until::Ns(ns) => (ns, ns / 4),
        };
        let mut text = Text::new(&Setup {
            warm_up_ns,
            measured_ns: end_ns - warm_up_ns,
            workers: self.workers,
            machine: &machine(self.costs),
            device: &format!(
                "kind = \"nvme\"\npreset = \"{}\"\nsize = \"{DRIVE_BYTES}\"\nqueue-depth = {}\n",
                self.drive.name, self.queue_depth
            ),
            layer: self.layer,
            policy: &self.policy,
        });
        let mut connections = 0;
        for (number, Tenant { load, think_ns }) in self.tenants.iter().enumerate() {
            let on_workers = in_turn(load, connections, self.workers);
            connections += on_workers.len();
            text.tenant(&format!("tenant-{number}"), 100, load, &on_workers, *think_ns);
        }
        text.run("schedulers")
    }
}

/// Keys of the machine: what a request costs, and the rates that this study leaves out.
fn machine(costs: Costs) -> String {
    let ns = |ps: u64| ps as f64 / 1000.0;
    let charged = [("submit-ns", ns(costs.to_device_ps)), ("complete-ns", ns(costs.back_ps))];
    let off = ["dispatch-ns", "load-hit-ns", "store-hit-ns", "code-per-access-ns", "doorbell-ns", "turn-ns", "kick-ns"];
    let asleep = ["wake-same-socket-ns", "wake-other-socket-ns", "sleep-ns", "interrupt-ns", "timer-ns", "patience-ns"];
    let keys = charged.into_iter().chain(off.into_iter().chain(asleep).map(|key| (key, 0.0)));
    let lines: String = keys.map(|(key, ns)| format!("{key} = {ns:?}\n")).collect();
    format!("[machine.latency]\njitter-share = 0.0\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::PolicyKind;
    use mqfq_demo::load::Load;
    use mqfq_policies::{MQ_DEADLINE, MQFQ_SERIAL, SFQD};

    fn reads(kind: PolicyKind, depth: u16, costs: Costs, workers: usize) -> Seen {
        let drive = Preset::by_name("optane").unwrap();
        let load = Load::random_reads(workers as u16, depth / workers as u16, 4096);
        let tenants = [Tenant { load, think_ns: 0 }];
        let (policy, queue_depth, layer) = (PolicyOptions::new(kind), 256, BlockLayer::Mq);
        let options = PathOptions { drive, policy, layer, queue_depth, tenants: &tenants, workers, costs };
        options.run_together(Until::Requests(20_000)).unwrap()
    }

    fn read_at_depth(kind: PolicyKind, depth: u16, costs: Costs) -> Seen {
        reads(kind, depth, costs, 1)
    }

    const FREE: Costs = Costs { to_device_ps: 0, back_ps: 0 };

    #[test]
    fn a_request_takes_the_drives_time_and_its_own_instructions() {
        // 8 us of medium, a little more or less, and 1,818 ns of link, and locked instructions; then 300 ns there and
        // 200 ns back. A latency of 10 us is told to 8 ns.
        for kind in mqfq_policies::ALL {
            let free = read_at_depth(kind, 1, FREE);
            let paid = read_at_depth(kind, 1, Costs { to_device_ps: 300_000, back_ps: 200_000 });
            assert!(free.p50_ns.abs_diff(9_818) <= 100, "{kind}: {}", free.p50_ns);
            assert!(paid.p50_ns.abs_diff(free.p50_ns + 500) <= 10, "{kind}: {} and {}", paid.p50_ns, free.p50_ns);
            assert!((paid.iops * paid.mean_ns * 1e-9 - 1.0).abs() < 1e-3, "{kind}: a closed loop of depth 1: {paid:?}");
        }
    }

    #[test]
    fn a_core_that_is_busy_all_the_time_is_what_limits() {
        // 5 us a request: 200 thousand per second, of the 550 thousand that the drive has.
        let seen = read_at_depth(PolicyKind::None, 64, Costs { to_device_ps: 3_000_000, back_ps: 2_000_000 });
        assert!((seen.iops / 200_000.0 - 1.0).abs() < 0.02, "{}", seen.iops);
        assert!((seen.cpu_ns_per_io / 5_000.0 - 1.0).abs() < 0.02, "{}", seen.cpu_ns_per_io);
        let drive = read_at_depth(PolicyKind::None, 64, FREE);
        assert!((drive.iops / 550_000.0 - 1.0).abs() < 0.02, "{}", drive.iops);
    }

    #[test]
    fn what_workers_share_costs_them_time_that_is_in_no_instruction() {
        // Instructions are the same for all: the rest of a core's time is lines and locks.
        let cpu_ns = |kind, workers| reads(kind, 64, FREE, workers).cpu_ns_per_io;
        for kind in [SFQD, MQ_DEADLINE, MQFQ_SERIAL] {
            let (alone, four, none) = (cpu_ns(kind, 1), cpu_ns(kind, 4), cpu_ns(PolicyKind::None, 4));
            assert!(four > 2.0 * alone, "{kind}: {four} ns on four workers, {alone} on one");
            assert!(four > 10.0 * none, "{kind}: {four} ns, none {none}");
        }
    }
}
