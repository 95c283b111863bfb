//! Costs that are known at the end, requests that are given up and workers that are away, under saturation: shares by
//! what requests really cost, within the bound and its term for corrections.

use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, GroupId, Weight};
use mqfq_sched::policy::{
    DispatchToken, Done, Entry, Handle, Mqfq, MqfqQueue, Pick, Policy, PolicyKind, PolicyOptions,
};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::VSpan;
use mqfq_testing::oracle::late_term;
use mqfq_testing::random::{Random, for_seeds};
use std::collections::BTreeSet;

/// A tenant: its weight, its queues, and the announced and the actual costs of its requests, in turn.
struct Tenant {
    weight: u64,
    queues: Vec<usize>,
    costs: Vec<(u64, u64)>,
}

struct Request {
    flow: usize,
    queue: usize,
    announced: Cost,
    actual: Cost,
}

/// Backlogged tenants; a request ends in any order.
struct Scene {
    mqfq: Mqfq,
    tenants: Vec<Tenant>,
    queues: Vec<MqfqQueue>,
    requests: Vec<Request>,
    /// Per queue and tenant: handles, first in, first out.
    staged: Vec<Vec<Vec<u32>>>,
    in_flight: Vec<(usize, Handle, DispatchToken)>,
    kicked: BTreeSet<HctxId>,
    aside: BTreeSet<usize>,
    /// Actual cost of dispatched requests, per tenant.
    served: Vec<u64>,
    dispatched: u64,
    /// Largest and smallest difference of service over weight, for each two tenants.
    differences: Vec<(f64, f64)>,
}

const CAPACITY_REQUESTS: usize = 256;

fn options(depth: u32, window_bytes: u64) -> PolicyOptions {
    PolicyOptions { depth, window: VSpan::from_bytes(window_bytes), ..PolicyOptions::new(PolicyKind::Mqfq) }
}

impl Scene {
    fn new(options: PolicyOptions, queue_count: usize, tenants: Vec<Tenant>) -> Scene {
        let weights: Vec<Weight> = tenants.iter().map(|tenant| Weight::new(tenant.weight).unwrap()).collect();
        let mut mqfq = Mqfq::new(&options, &Topology::flat(queue_count), &weights);
        mqfq.charge_late(false);
        Scene {
            queues: (0..queue_count).map(|at| mqfq.open_queue(HctxId(at as u16), CAPACITY_REQUESTS)).collect(),
            staged: vec![vec![Vec::new(); tenants.len()]; queue_count],
            served: vec![0; tenants.len()],
            differences: vec![(0.0, 0.0); tenants.len() * tenants.len()],
            mqfq,
            tenants,
            requests: Vec::new(),
            in_flight: Vec::new(),
            kicked: BTreeSet::new(),
            aside: BTreeSet::new(),
            dispatched: 0,
        }
    }

    fn submit(&mut self, queue: usize, flow: usize, (announced, actual): (u64, u64)) {
        let handle = self.requests.len() as u32;
        self.requests.push(Request { flow, queue, announced: Cost(announced), actual: Cost(actual) });
        self.submit_again(handle);
    }

    fn submit_again(&mut self, handle: u32) {
        let Request { flow, queue, announced, .. } = self.requests[handle as usize];
        let (entry, kicked) = (Entry::read(FlowId(flow as u32), announced, Handle(handle)), &mut self.kicked);
        self.mqfq.submit(&mut self.queues[queue], entry, 0, &mut |hctx| {
            kicked.insert(hctx);
        });
        self.staged[queue][flow].push(handle);
    }

    /// Every tenant has `backlog` requests at each of its queues whose worker is there.
    fn refill(&mut self, backlog: usize) {
        for flow in 0..self.tenants.len() {
            for at in 0..self.tenants[flow].queues.len() {
                let queue = self.tenants[flow].queues[at];
                while !self.aside.contains(&queue) && self.staged[queue][flow].len() < backlog {
                    let costs = &self.tenants[flow].costs;
                    self.submit(queue, flow, costs[self.requests.len() % costs.len()]);
                }
            }
        }
    }

    fn pick(&mut self, queue: usize) -> bool {
        let kicked = &mut self.kicked;
        let picked = self.mqfq.pick(&mut self.queues[queue], 0, &mut |hctx| {
            kicked.insert(hctx);
        });
        let Pick::Dispatch(grant) = picked else { return false };
        let Request { flow, actual, .. } = self.requests[grant.handle.0 as usize];
        assert_eq!(self.staged[queue][flow].remove(0), grant.handle.0, "I9");
        self.served[flow] += actual.0;
        self.dispatched += 1;
        self.in_flight.push((queue, grant.handle, grant.token));
        self.note();
        true
    }

    fn note(&mut self) {
        let over_weight: Vec<f64> = self
            .served
            .iter()
            .zip(&self.tenants)
            .map(|(&served, tenant)| served as f64 * 100.0 / tenant.weight as f64)
            .collect();
        for f in 0..over_weight.len() {
            for m in 0..f {
                let (least, most) = &mut self.differences[f * over_weight.len() + m];
                let difference = over_weight[f] - over_weight[m];
                (*least, *most) = (least.min(difference), most.max(difference));
            }
        }
    }

    fn end(&mut self, at: usize) {
        let (queue, handle, token) = self.in_flight.swap_remove(at);
        let Request { flow, announced, actual, .. } = self.requests[handle.0 as usize];
        self.mqfq.correct(FlowId(flow as u32), announced, actual);
        let (done, kicked) = (Done::read(FlowId(flow as u32), handle), &mut self.kicked);
        let mut kick = |hctx| {
            kicked.insert(hctx);
        };
        if self.aside.contains(&queue) {
            self.mqfq.give_back(HctxId(queue as u16), token, &mut kick);
        } else {
            self.mqfq.complete(&mut self.queues[queue], done, token, 0, &mut kick);
            self.kicked.insert(HctxId(queue as u16));
        }
    }

    fn withdraw(&mut self, handle: u32) {
        let Request { flow, queue, announced, .. } = self.requests[handle as usize];
        let kicked = &mut self.kicked;
        let name = (FlowId(flow as u32), Handle(handle), announced);
        assert!(self.mqfq.withdraw(&mut self.queues[queue], name, &mut |hctx| {
            kicked.insert(hctx);
        }));
        self.staged[queue][flow].retain(|&other| other != handle);
        self.kicked.insert(HctxId(queue as u16));
    }

    fn step_aside(&mut self, queue: usize) -> Vec<u32> {
        let (requests, kicked) = (&self.requests, &mut self.kicked);
        let mut left = Vec::new();
        self.mqfq.step_aside(
            &mut self.queues[queue],
            |flow, handle| {
                assert_eq!(requests[handle.0 as usize].flow as u32, flow.0);
                left.push(handle.0);
                requests[handle.0 as usize].announced
            },
            &mut |hctx| {
                kicked.insert(hctx);
            },
        );
        for of_flow in &mut self.staged[queue] {
            let came: Vec<u32> = std::mem::take(of_flow);
            assert!(left.iter().filter(|handle| came.contains(handle)).eq(&came), "the order of a flow");
        }
        self.aside.insert(queue);
        left
    }

    fn come_back(&mut self, queue: usize, left: Vec<u32>) {
        self.aside.remove(&queue);
        for handle in left {
            self.submit_again(handle);
        }
        self.kicked.insert(HctxId(queue as u16));
    }

    fn run(&mut self, backlog: usize) {
        self.refill(backlog);
        while let Some(hctx) = self.kicked.pop_first() {
            while self.pick(hctx.index()) {
                self.refill(backlog);
            }
        }
    }

    fn run_all(&mut self, backlog: usize) {
        self.kicked.extend((0..self.queues.len() as u16).map(HctxId));
        self.run(backlog);
    }

    fn ratio(&self, a: usize, b: usize) -> f64 {
        self.served[b] as f64 / self.served[a] as f64
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for (_, _, token) in self.in_flight.drain(..) {
            let _ = token.into_units();
        }
    }
}

/// Paper's form and the relaxed one.
fn forms(options: PolicyOptions, queues: usize) -> [PolicyOptions; 2] {
    [options, options.relaxed(queues)]
}

fn tenant(weight: u64, queues: &[usize], costs: &[(u64, u64)]) -> Tenant {
    Tenant { weight, queues: queues.to_vec(), costs: costs.to_vec() }
}

#[test]
fn shares_follow_what_requests_cost_and_not_what_was_announced() {
    // Announced 256 each; one tenant's cost 1,024, the other's 128. Weights 1:3: without the correction 0.376.
    for queues in [1, 2] {
        for options in forms(options(16, 64 << 10), queues) {
            let tenants = vec![tenant(100, &[0], &[(256, 1024)]), tenant(300, &[queues - 1], &[(256, 128)])];
            let mut scene = Scene::new(options, queues, tenants);
            scene.run_all(32);
            while scene.dispatched < 200_000 {
                scene.end(0);
                scene.run(32);
            }
            assert!((2.95..=3.05).contains(&scene.ratio(0, 1)), "{queues} queues: {}", scene.ratio(0, 1));
        }
    }
}

#[test]
fn requests_that_time_out_while_they_wait_cost_their_tenant_nothing() {
    // After each end of a request 4 of the second tenant's are given up: the oldest, the newest, two between.
    for queues in [1, 2] {
        for options in forms(options(16, 64 << 10), queues) {
            let tenants = vec![tenant(100, &[0], &[(1024, 1024)]), tenant(300, &[queues - 1], &[(1024, 1024)])];
            let mut scene = Scene::new(options, queues, tenants);
            scene.run_all(32);
            let mut random = Random::new(1);
            while scene.dispatched < 200_000 {
                for kind in 0..4 {
                    let waiting = &scene.staged[queues - 1][1];
                    let at = [0, waiting.len() - 1, random.index(waiting.len()), random.index(waiting.len())][kind];
                    let handle = waiting[at];
                    scene.withdraw(handle);
                }
                scene.end(0);
                scene.run(32);
            }
            assert!((2.95..=3.05).contains(&scene.ratio(0, 1)), "{queues} queues: {}", scene.ratio(0, 1));
        }
    }
}

/// I6 with its term for corrections: for each two tenants, over every interval, as all are backlogged throughout.
#[test]
fn i6_holds_for_actual_costs_with_corrections_and_withdrawals() {
    for_seeds(300, |random| {
        let queue_count = 1 + random.index(3);
        let depth = random.of(&[1, 2, 8, 24]);
        let tenants: Vec<Tenant> = (0..2 + random.index(3))
            .map(|_| {
                let mut queues: Vec<usize> = (0..queue_count).filter(|_| random.chance(2)).collect();
                if queues.is_empty() {
                    queues.push(random.index(queue_count));
                }
                let costs = (0..1 + random.index(3))
                    .map(|_| (random.of(&[1, 100, 4096, 20_001]), random.of(&[1, 77, 4096, 40_000])))
                    .collect();
                Tenant { weight: random.of(&[30, 100, 100, 300, 700]), queues, costs }
            })
            .collect();
        let window_bytes = random.of(&[4 << 10, 64 << 10]);
        let options = forms(options(depth, window_bytes), queue_count)[random.index(2)];
        let withdraws = random.chance(2);
        let mut scene = Scene::new(options, queue_count, tenants);
        scene.run_all(8);
        while scene.dispatched < 6000 {
            if withdraws && random.chance(3) {
                let queue = random.index(queue_count);
                let flow = random.index(scene.tenants.len());
                if let Some(&handle) = scene.staged[queue][flow].get(random.index(8)) {
                    scene.withdraw(handle);
                }
            }
            scene.end(random.index(scene.in_flight.len()));
            scene.run(8);
        }
        let term = |flow: usize| {
            let Tenant { weight, queues, costs } = &scene.tenants[flow];
            let most = costs.iter().map(|&(announced, actual)| announced.max(actual)).max().unwrap();
            let error = costs.iter().map(|&(announced, actual)| announced.abs_diff(actual)).max().unwrap();
            let error = if withdraws { most } else { error };
            // Charged and not ended: on the device, and per queue the first of the flow.
            let charged = i128::from(depth) + queues.len() as i128;
            let bytes = i128::from(most) + late_term(charged, error.into(), most.into());
            bytes as f64 * 100.0 / *weight as f64 + 1.0
        };
        for f in 0..scene.tenants.len() {
            for m in 0..f {
                let (least, most) = scene.differences[f * scene.tenants.len() + m];
                let bound = 2.0 * window_bytes as f64 + term(f) + term(m);
                assert!(most - least <= bound, "tenants {f} and {m}: {} of {bound}", most - least);
            }
        }
        // Everything comes back (I1).
        while !scene.in_flight.is_empty() {
            scene.end(0);
        }
        assert_eq!(scene.mqfq.free_units(), i64::from(depth));
    });
}

#[test]
fn a_worker_that_stands_aside_holds_nobody_and_comes_back_without_credit_or_debt() {
    for options in forms(options(4, 16 << 10), 2) {
        let tenants = vec![tenant(100, &[0], &[(4096, 4096)]), tenant(100, &[1], &[(4096, 4096)])];
        let mut scene = Scene::new(options, 2, tenants);
        scene.run_all(16);
        for _ in 0..20 {
            let before = scene.served.clone();
            for _ in 0..200 {
                scene.end(0);
                scene.run(16);
            }
            let [zero, one] = [0, 1].map(|flow| (scene.served[flow] - before[flow]) / 4096);
            assert!(zero.abs_diff(one) <= 16, "together: {zero} and {one}");
            let left = scene.step_aside(0);
            assert!(left.len() >= 15);
            let before = scene.served[1];
            for _ in 0..200 {
                scene.end(0);
                scene.run(16);
            }
            assert!((scene.served[1] - before) / 4096 >= 196, "the other one has the whole of D");
            scene.come_back(0, left);
            scene.run(16);
        }
    }
}

#[test]
fn a_queue_that_is_closed_leaves_nothing_and_its_place_is_free() {
    for options in forms(options(4, 16 << 10), 2) {
        let tenants = vec![tenant(100, &[0, 1], &[(4096, 4096)]), tenant(100, &[1], &[(4096, 4096)])];
        let mut scene = Scene::new(options, 2, tenants);
        scene.run_all(16);
        assert_eq!(scene.mqfq.free_units(), 0);
        let queue = std::mem::replace(
            &mut scene.queues[0],
            Mqfq::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).open_queue(HctxId(0), 1),
        );
        let mut handles = 0;
        scene.mqfq.close(
            queue,
            |_, _| {
                handles += 1;
                Cost(4096)
            },
            &mut |_| (),
        );
        assert!(handles >= 15);
        scene.staged[0].iter_mut().for_each(Vec::clear);
        scene.aside.insert(0);
        for _ in 0..400 {
            scene.end(0);
            scene.run(16);
        }
        scene.queues[0] = scene.mqfq.open_queue(HctxId(0), CAPACITY_REQUESTS);
        scene.come_back(0, Vec::new());
        let before = scene.dispatched;
        for _ in 0..400 {
            scene.end(0);
            scene.run(16);
        }
        assert!(scene.dispatched - before >= 396);
        while !scene.in_flight.is_empty() {
            scene.end(0);
        }
        assert_eq!(scene.mqfq.free_units(), 4);
    }
}

#[test]
fn numbers_out_of_range_do_not_panic() {
    let options = options(4, 16 << 10);
    assert_eq!(options.relaxed(0), options.relaxed(1));
    let mqfq = Mqfq::new(&options, &Topology::flat(1), &[Weight::DEFAULT]);
    // Without groups it does nothing, whatever the group.
    mqfq.set_group_weight(GroupId(3), Weight::DEFAULT);
    for depth in [0, 65_536, u32::MAX] {
        assert!(!mqfq.set_depth(HctxId(0), depth, &mut |_| ()), "{depth}");
    }
    assert_eq!(mqfq.depth(), Some(4));
    assert!(mqfq.set_depth(HctxId(0), 65_535, &mut |_| ()));
}
