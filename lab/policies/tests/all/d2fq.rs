//! Policy `d2fq` over a device with class queues, in virtual time: how much of it each tenant gets.
//!
//! The device is the least that D2FQ is made for: each worker has a queue of each class, commands are fetched by
//! weighted round robin over the classes and round robin within one, and so many are worked on at once, each for a time
//! that its length sets.

use mqfq_policies::{D2FQ, D2fq, D2fqOptions, D2fqQueue};
use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    ClassWeights, DirectPolicy, DispatchToken, Done, Handle, OwnOptions, Policy, PolicyOptions, QueueClass,
};
use mqfq_sched::topology::HctxId;
use std::collections::VecDeque;

const KIB: u64 = 1024;
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// A tenant in a closed loop: the same depth and size always.
#[derive(Clone, Copy)]
struct Tenant {
    weight: u64,
    bytes: u64,
    /// Requests that it keeps in flight, at the worker of the same number modulo the workers.
    depth: usize,
    /// Time from which on it asks.
    start_ns: u64,
}

fn tenant(weight: u64, bytes: u64) -> Tenant {
    Tenant { weight, bytes, depth: 256, start_ns: 0 }
}

struct Command {
    tenant: usize,
    worker: usize,
}

/// Weighted round robin over three classes, round robin over the workers' queues of a class, one command at a time on
/// the link.
struct Device {
    queues: [Vec<VecDeque<Command>>; 3],
    next_worker: [usize; 3],
    weights: ClassWeights,
    /// Commands left to each class in this round.
    credits: [u16; 3],
}

impl Device {
    fn new(workers: usize) -> Device {
        let queues = [(); 3].map(|()| (0..workers).map(|_| VecDeque::new()).collect());
        Device { queues, next_worker: [0; 3], weights: ClassWeights::EQUAL, credits: [0; 3] }
    }

    fn fetch(&mut self) -> Option<Command> {
        for _ in 0..2 {
            for class in 0..3 {
                if self.credits[class] == 0 {
                    continue;
                }
                let queues = &mut self.queues[class];
                for n in 0..queues.len() {
                    let worker = (self.next_worker[class] + n) % queues.len();
                    if let Some(command) = queues[worker].pop_front() {
                        self.next_worker[class] = worker + 1;
                        self.credits[class] -= 1;
                        return Some(command);
                    }
                }
            }
            // No class with credit has a command: a new round.
            self.credits = self.weights.by_class();
        }
        None
    }
}

struct Run {
    policy: D2fq,
    queues: Vec<D2fqQueue>,
    device: Device,
    tenants: Vec<Tenant>,
    /// Tenants that have not begun, the next one last.
    waiting: Vec<usize>,
    now_ns: u64,
    bytes: Vec<u64>,
}

const WORKERS: usize = 2;
/// 400 MB/s: enough requests for shares, few enough for a test.
const PS_PER_BYTE: u64 = 2500;

impl Run {
    fn new(options: D2fqOptions, tenants: &[Tenant]) -> Run {
        let own = OwnOptions::of(&options);
        let options = PolicyOptions { own, ..PolicyOptions::new(D2FQ) };
        let weights: Vec<_> = tenants.iter().map(|tenant| Weight::new(tenant.weight).unwrap()).collect();
        let policy = D2fq::new(&options, WORKERS, &weights).unwrap();
        let queues = (0..WORKERS as u16).map(|n| policy.open_queue(HctxId(n), 1024)).collect();
        let mut waiting: Vec<_> = (0..tenants.len()).rev().collect();
        waiting.sort_by_key(|&n| std::cmp::Reverse(tenants[n].start_ns));
        Run {
            policy,
            queues,
            device: Device::new(WORKERS),
            tenants: tenants.to_vec(),
            waiting,
            now_ns: 0,
            bytes: vec![0; tenants.len()],
        }
    }

    fn submit(&mut self, tenant: usize, worker: usize) {
        let (flow, cost) = (FlowId(tenant as u32), Cost(self.tenants[tenant].bytes));
        let queue = &mut self.queues[worker];
        let class = self.policy.class_of(queue, flow, self.now_ns);
        self.policy.dispatched(queue, flow, cost, class, self.now_ns);
        self.device.queues[class.index()][worker].push_back(Command { tenant, worker });
    }

    /// Until then; returns what each tenant was served meanwhile.
    fn until(&mut self, end_ns: u64) -> Vec<u64> {
        let before = self.bytes.clone();
        while self.now_ns < end_ns {
            while let Some(&tenant) = self.waiting.last().filter(|&&n| self.tenants[n].start_ns <= self.now_ns) {
                self.waiting.pop();
                (0..self.tenants[tenant].depth).for_each(|n| self.submit(tenant, n % WORKERS));
            }
            let Command { tenant, worker } = self.device.fetch().expect("closed loops never run dry");
            let bytes = self.tenants[tenant].bytes;
            self.now_ns += bytes * PS_PER_BYTE / 1000;
            self.bytes[tenant] += bytes;
            let done = Done { cost: Cost(bytes), ..Done::read(FlowId(tenant as u32), Handle(0)) };
            let queue = &mut self.queues[worker];
            self.policy.complete(queue, done, DispatchToken::new(0), self.now_ns, &mut |_: HctxId| ());
            if let Some(weights) = self.policy.adjust(queue, self.now_ns) {
                self.device.weights = weights;
            }
            self.submit(tenant, worker);
        }
        self.bytes.iter().zip(before).map(|(now, before)| now - before).collect()
    }

    /// The farthest that a tenant's bytes over its weight are from the mean, in thousandths of it.
    fn worst_permille(&self, bytes: &[u64]) -> u64 {
        let total_weight: u64 = self.tenants.iter().map(|tenant| tenant.weight).sum();
        let total: u64 = bytes.iter().sum();
        let off = |(tenant, &bytes): (&Tenant, &u64)| {
            let due = total * tenant.weight / total_weight;
            bytes.abs_diff(due) * 1000 / due
        };
        self.tenants.iter().zip(bytes).map(off).max().unwrap()
    }
}

#[test]
fn weights_8_6_4_2_get_their_shares_within_3_percent() {
    // Figure 11c. As in the paper's terms the default weight is the largest: 100 here, 8 there.
    let tenants = [100, 75, 50, 25].map(|weight| tenant(weight, 8 * KIB));
    let mut run = Run::new(D2fqOptions::DEFAULT, &tenants);
    run.until(3 * S);
    let bytes = run.until(8 * S);
    assert!(run.worst_permille(&bytes) <= 30, "{bytes:?} at ratio {}", run.policy.ratio());
    assert!(run.policy.ratio() < 32, "ratio {} has not come down from 256", run.policy.ratio());
}

#[test]
fn twice_the_size_gets_no_more_within_3_percent() {
    // Figure 11a, where round robin gives the larger twice as much.
    let tenants = [tenant(100, 4 * KIB), tenant(100, 8 * KIB)];
    let mut run = Run::new(D2fqOptions::DEFAULT, &tenants);
    run.until(3 * S);
    let bytes = run.until(6 * S);
    assert!(run.worst_permille(&bytes) <= 30, "{bytes:?} at ratio {}", run.policy.ratio());
    let [held_back, other] = [1, 0].map(|flow| run.policy.class_bytes(FlowId(flow))[1..].iter().sum::<u64>());
    assert!(held_back > 100 * other, "{held_back} bytes of the larger were held back, and {other} of the smaller");
}

#[test]
fn three_times_the_depth_gets_no_more_within_3_percent() {
    // Figure 11b.
    let tenants = [Tenant { depth: 768, ..tenant(100, 8 * KIB) }, tenant(100, 8 * KIB)];
    let mut run = Run::new(D2fqOptions::DEFAULT, &tenants);
    run.until(3 * S);
    let bytes = run.until(6 * S);
    assert!(run.worst_permille(&bytes) <= 30, "{bytes:?} at ratio {}", run.policy.ratio());
}

/// One tenant of weight 1 and, from the start or later on, seven of weight 3.
fn one_and_seven(start_ns: u64) -> Vec<Tenant> {
    let seven = [Tenant { start_ns, ..tenant(75, 4 * KIB) }; 7];
    [tenant(25, 4 * KIB)].into_iter().chain(seven).collect()
}

#[test]
fn a_ratio_of_3_does_not_keep_1_to_3_beside_seven() {
    // Figures 6 and 15a: seven share the high queues, so a ratio of 21 is needed.
    let mut fixed = Run::new(D2fqOptions { class_ratio: 3, ..D2fqOptions::DEFAULT }, &one_and_seven(0));
    fixed.until(2 * S);
    let bytes = fixed.until(5 * S);
    // In the low queues it gets 1 of 4, and each of the seven 3/28: more than twice, where a third is due.
    assert!(bytes[0] > 2 * bytes[1], "{bytes:?}");

    let mut dynamic = Run::new(D2fqOptions::DEFAULT, &one_and_seven(0));
    dynamic.until(4 * S);
    let bytes = dynamic.until(12 * S);
    assert!(dynamic.worst_permille(&bytes) <= 30, "{bytes:?} at ratio {}", dynamic.policy.ratio());
}

#[test]
fn the_ratio_follows_who_is_there() {
    // Alone: 1. With seven of three times the weight: about 21, in seconds (the paper: 17-18, as the medium queues
    // help).
    let mut run = Run::new(D2fqOptions::DEFAULT, &one_and_seven(5 * S));
    run.until(5 * S - MS);
    assert_eq!(run.policy.ratio(), 1);
    assert_eq!(run.policy.class_bytes(FlowId(0))[1..], [0, 0], "who is alone is never held back");
    run.until(15 * S);
    let ratio = run.policy.ratio();
    assert!((8..=64).contains(&ratio), "ratio {ratio}");
    let bytes = run.until(20 * S);
    // 5 and not 3 percent: what it got ahead when they came, at ratio 1, is taken back. At a ratio of 22 where 21 keeps
    // the distance, by a part in 22.
    assert!(run.worst_permille(&bytes) <= 50, "{bytes:?} at ratio {}", run.policy.ratio());
    assert_eq!(run.device.weights, run.policy.class_weights());
    assert!(run.device.weights.by_class()[QueueClass::Medium.index()] > 1);
}
