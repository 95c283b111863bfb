//! `d2fq` against Figures 9 and 10 as one would write them on paper: one thread, and numbers that do not wrap. Both
//! agree to the unit.

use super::*;
use mqfq_sched::policy::Handle;
use proptest::collection::vec;
use proptest::prelude::*;

/// A byte at each is a multiple of half a unit: 102,400, 2,048, 1,024 and 12.5 units. So the oracle is exact.
const WEIGHTS: [u64; 4] = [1, 50, 100, 8192];
const GRAIN: i128 = Gvt::GRAIN.0 as i128;

#[derive(Clone, Default)]
struct OracleFlow {
    vt: i128,
    /// The half unit that each queue has not charged yet.
    carry_halves: [i128; QUEUES],
    in_flight: [u32; QUEUES],
    /// None: never active.
    idle_since_ns: Option<u64>,
    weight: u64,
}

/// Figures 9 and 10, with a grace period that is looked at.
struct Oracle {
    flows: Vec<OracleFlow>,
    gvt: i128,
    holder: Option<usize>,
    next_look_ns: [u64; QUEUES],
    grace_ns: u64,
    low: i128,
}

impl Oracle {
    fn is_active(&self, flow: usize, now_ns: u64) -> bool {
        let OracleFlow { in_flight, idle_since_ns, .. } = &self.flows[flow];
        in_flight.iter().any(|&count| count > 0)
            || idle_since_ns.is_some_and(|since_ns| now_ns - since_ns <= self.grace_ns)
    }

    /// Equation 1.
    fn class(&self, flow: usize, now_ns: u64) -> QueueClass {
        let gap = if self.is_active(flow, now_ns) { self.flows[flow].vt - self.gvt } else { 0 };
        match () {
            () if gap < self.low / 2 => QueueClass::High,
            () if gap < self.low => QueueClass::Medium,
            () => QueueClass::Low,
        }
    }

    fn dispatch(&mut self, queue: usize, flow: usize, now_ns: u64) {
        if !self.is_active(flow, now_ns) {
            self.flows[flow].vt = self.gvt;
        }
        self.flows[flow].in_flight[queue] += 1;
    }

    fn complete(&mut self, queue: usize, flow: usize, bytes: u64, now_ns: u64) {
        let own = &mut self.flows[flow];
        let halves = i128::from(bytes) * (2 * 102_400 / i128::from(own.weight)) + own.carry_halves[queue];
        own.vt += halves / 2;
        own.carry_halves[queue] = halves % 2;
        own.in_flight[queue] -= 1;
        if own.in_flight[queue] == 0 {
            own.idle_since_ns = Some(now_ns);
        }
        if now_ns >= self.next_look_ns[queue] {
            self.next_look_ns[queue] = now_ns + self.grace_ns / 4;
            if self.holder.is_some_and(|holder| !self.is_active(holder, now_ns)) {
                self.holder = None;
            }
        }
        let vt = self.flows[flow].vt.div_euclid(GRAIN) * GRAIN;
        let takes = match self.holder {
            None => true,
            Some(holder) if holder == flow => vt > self.gvt,
            Some(_) => vt < self.gvt,
        };
        if takes {
            (self.gvt, self.holder) = (vt, Some(flow));
        }
    }
}

const QUEUES: usize = 2;
const FLOWS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Submit { queue: usize, flow: usize, bytes: u64 },
    Complete { nth: usize },
    Wait { ns: u64 },
    Weigh { flow: usize, weight: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![Just(1), Just(512), 1u64..1 << 17, Just(4 << 20), Just(64 << 20)];
    prop_oneof![
        8 => (0..QUEUES, 0..FLOWS, bytes).prop_map(|(queue, flow, bytes)| Step::Submit { queue, flow, bytes }),
        8 => (0..64usize).prop_map(|nth| Step::Complete { nth }),
        3 => prop_oneof![Just(1u64), 0u64..500_000, Just(2_000_000), Just(2_000_001)].prop_map(|ns| Step::Wait { ns }),
        1 => (0..FLOWS, 0..WEIGHTS.len()).prop_map(|(flow, weight)| Step::Weigh { flow, weight }),
    ]
}

proptest! {
    #[test]
    fn histories_are_those_of_the_papers_figures(
        steps in vec(step(), 1..200),
        // Anywhere, and shortly before the wrap.
        start in prop_oneof![
            any::<u64>(),
            Just(u64::MAX),
            (1u64..1 << 42).prop_map(|before| 0u64.wrapping_sub(before)),
        ],
    ) {
        let options = PolicyOptions { start: VTime::from_raw(start), ..PolicyOptions::new(KIND) };
        let weights = [2, 2, 3, 0].map(|n| Weight::new(WEIGHTS[n]).unwrap());
        let policy = D2fq::new(&options, QUEUES, &weights).unwrap();
        let mut queues = [0, 1].map(|n| policy.open_queue(HctxId(n), 64));
        let start = D2fq::start(&options);
        let mut oracle = Oracle {
            flows: weights.map(|weight| OracleFlow { weight: weight.get().into(), ..OracleFlow::default() }).into(),
            gvt: 0,
            holder: None,
            next_look_ns: [0; QUEUES],
            grace_ns: options.own.get::<D2fqOptions>().grace_period_ns,
            low: policy.thresholds().low.0.into(),
        };
        let mut in_flight: Vec<(usize, usize, u64)> = Vec::new();
        let mut now_ns = 0;
        for step in steps {
            match step {
                Step::Submit { queue, flow, bytes } => {
                    let name = FlowId(flow as u32);
                    let class = policy.class_of(&queues[queue], name, now_ns);
                    prop_assert_eq!(class, oracle.class(flow, now_ns), "flow {} at {}", flow, now_ns);
                    policy.dispatched(&mut queues[queue], name, Cost(bytes), class, now_ns);
                    oracle.dispatch(queue, flow, now_ns);
                    in_flight.push((queue, flow, bytes));
                }
                Step::Complete { nth } if !in_flight.is_empty() => {
                    let (queue, flow, bytes) = in_flight.swap_remove(nth % in_flight.len());
                    let done = Done { cost: Cost(bytes), ..Done::read(FlowId(flow as u32), Handle(0)) };
                    let token = DispatchToken::new(0);
                    policy.complete(&mut queues[queue], done, token, now_ns, &mut |_: HctxId| ());
                    oracle.complete(queue, flow, bytes, now_ns);
                }
                Step::Complete { .. } => (),
                Step::Wait { ns } => now_ns += ns,
                Step::Weigh { flow, weight } => {
                    policy.set_weight(FlowId(flow as u32), Weight::new(WEIGHTS[weight]).unwrap());
                    oracle.flows[flow].weight = WEIGHTS[weight];
                }
            }
            for flow in 0..FLOWS {
                prop_assert_eq!(policy.is_active(FlowId(flow as u32), now_ns), oracle.is_active(flow, now_ns));
                let vt = policy.flow_vtime(FlowId(flow as u32)).since(start);
                prop_assert_eq!(i128::from(vt), oracle.flows[flow].vt, "flow {} at {}", flow, now_ns);
            }
            prop_assert_eq!(i128::from(policy.global_vtime().since(start)), oracle.gvt);
            prop_assert_eq!(policy.gvt().holder(), oracle.holder.map(|flow| FlowId(flow as u32)));
        }
    }
}
