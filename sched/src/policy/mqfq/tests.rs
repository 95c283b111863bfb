//! The policy by itself, on one thread: what it reports, what follows a change of D, and how often it wakes others.

use super::*;
use crate::base::random::Random;
use crate::cost::COST_MAX;
use crate::policy::PolicyKind;

mod waiting;

const FLOW: FlowId = FlowId(0);

fn policy(options: PolicyOptions, topology: &Topology, flows: usize) -> Mqfq {
    options.validate_for(&vec![Weight::DEFAULT; flows]).expect("options of a test are in range");
    Mqfq::new(&options, topology, &vec![Weight::DEFAULT; flows])
}

fn submit(policy: &Mqfq, queue: &mut MqfqQueue, flow: u32, cost: u64, handle: u32) {
    policy.submit(queue, Entry::read(FlowId(flow), Cost(cost), Handle(handle)), 0, &mut |_| ());
}

fn dispatched(policy: &Mqfq, queue: &mut MqfqQueue, kicked: &mut Vec<HctxId>) -> Grant {
    match policy.pick(queue, 0, &mut |hctx| kicked.push(hctx)) {
        Pick::Dispatch(grant) => grant,
        other => panic!("{other:?}, a request should go"),
    }
}

#[test]
fn it_tells_what_it_holds() {
    let options = PolicyOptions { depth: 2, start: VTime::from_raw(6400), ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = policy(options, &Topology::flat(1), 3);
    let mut queue = policy.open_queue(HctxId(0), 8);
    let told = |queue: &MqfqQueue| {
        (policy.staged(queue), policy.staged_flows(queue), Registered::free_units(&policy), policy.is_out_of_units())
    };
    assert_eq!(told(&queue), (0, 0, Some(2), false));
    for (flow, handle) in [(0, 0), (2, 1), (2, 2)] {
        submit(&policy, &mut queue, flow, 4096, handle);
    }
    assert_eq!(told(&queue), (3, 2, Some(2), false));
    let one = dispatched(&policy, &mut queue, &mut Vec::new());
    assert_eq!((told(&queue), one.flow), ((2, 1, Some(1), false), FLOW));
    let two = dispatched(&policy, &mut queue, &mut Vec::new());
    assert_eq!(told(&queue), (1, 1, Some(0), true));
    assert_eq!(Registered::depth(&policy), Some(2));
    assert_eq!(Registered::global_vtime(&policy), Some(VTime::from_raw(6400 + 4096 * 1024)));
    assert_eq!(policy.window_terms(), Some(options.terms()));
    let weight = Registered::effective_weight(&policy, FLOW).expect("every flow has one");
    assert_eq!(weight, policy.flows.effective_weight(FLOW, policy.global_vtime()));
    _ = [one, two].map(|grant| grant.token.into_units());
}

#[test]
fn of_a_flow_in_a_group_one_lease_is_charged_ahead_and_no_more() {
    // L is 32 KiB: eight requests behind the first.
    let options = PolicyOptions { depth: 64, ..PolicyOptions::new(PolicyKind::Mqfq) }.relaxed(1);
    let mut policy = policy(options, &Topology::flat(1), 1);
    let group = crate::flow::Group { weight: Weight::DEFAULT, parent: None };
    policy.set_tree(&Tree { groups: vec![group], of_flow: vec![Some(GroupId(0))] });
    let mut queue = policy.open_queue(HctxId(0), 64);
    (0..40).for_each(|handle| submit(&policy, &mut queue, 0, 4096, handle));
    let mut tags = Vec::new();
    let mut grants = Vec::new();
    for handle in 0..40 {
        if handle == 20 {
            policy.set_group_weight(GroupId(0), Weight::new(200).expect("in range"));
        }
        tags.push(queue.stage.peek().expect("40 are staged").start_tag);
        let grant = dispatched(&policy, &mut queue, &mut Vec::new());
        assert_eq!(grant.handle, Handle(handle));
        grants.push(grant);
    }
    let kib: Vec<i64> = tags.windows(2).map(|pair| pair[1].since(pair[0]) / (1024 * 1024)).collect();
    let ahead = (options.lease.bytes() / 4096) as usize;
    // Requests that had their intervals keep them, at most so many from the change on; the rest is half as long.
    let old = kib.iter().take_while(|&&span| span == 4).count();
    assert!((20..=20 + ahead + 1).contains(&old), "{old} at the old weight, {kib:?}");
    assert!(kib[old..].iter().all(|&span| span == 2), "{kib:?}");
    grants.into_iter().for_each(|grant| _ = grant.token.into_units());
}

#[test]
fn a_flow_that_is_retired_starts_at_virtual_time() {
    // 1 MiB is charged; virtual time has got to its start alone.
    let policy = policy(PolicyOptions::new(PolicyKind::Mqfq), &Topology::flat(1), 2);
    let mut queue = policy.open_queue(HctxId(0), 8);
    submit(&policy, &mut queue, 0, 1 << 20, 0);
    let grant = dispatched(&policy, &mut queue, &mut Vec::new());
    assert!(policy.retire(FLOW));
    submit(&policy, &mut queue, 0, 512, 1);
    assert_eq!(queue.stage.lead(), Some(VTime::ZERO));
    policy.set_weight(FlowId(1), Weight::MAX);
    assert_eq!(policy.flows.weight(FlowId(1)), Weight::MAX);
    grant.token.into_units();
}

#[test]
fn a_group_has_the_weight_that_is_set() {
    let tree = Tree {
        groups: vec![crate::flow::Group { parent: None, weight: Weight::DEFAULT }; 2],
        of_flow: vec![Some(GroupId(0)), Some(GroupId(1))],
    };
    let mut policy = policy(PolicyOptions::new(PolicyKind::Mqfq), &Topology::flat(1), 2);
    Registered::set_tree(&mut policy, &tree);
    let mut queue = policy.open_queue(HctxId(0), 8);
    let weight = |policy: &Mqfq, group| Registered::effective_weight_of(policy, GroupId(group));
    let of = |millionths, competes| Some(EffectiveWeight { millionths, competes });
    assert_eq!(weight(&policy, 0), of(100_000_000, false));
    policy.set_group_weight(GroupId(0), Weight::new(300).expect("in range"));
    submit(&policy, &mut queue, 0, 4096, 0);
    submit(&policy, &mut queue, 1, 4096, 1);
    assert_eq!([weight(&policy, 0), weight(&policy, 1)], [of(300_000_000, true), of(100_000_000, true)]);
}

#[test]
fn batch_and_share_follow_a_depth_that_changes() {
    // 2 queues: of D = 16 each has a share of 8 and takes 2 at once; of D = 64 it is 32 and 8.
    let options = PolicyOptions {
        depth: 16,
        depth_auto: true,
        token_unit_bytes: Some(4096),
        ..PolicyOptions::new(PolicyKind::Mqfq)
    };
    let policy = policy(options.relaxed(2), &Topology::flat(2), 2);
    let [mut one, mut two] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 100));
    for number in 0..90 {
        submit(&policy, &mut one, 0, 4096, number);
    }
    let mut kicked = Vec::new();
    let mut out: Vec<Grant> = (0..16).map(|_| dispatched(&policy, &mut one, &mut kicked)).collect();
    assert_eq!((one.batch, one.share, one.room), (2, 8, -8));
    assert_eq!(policy.pick(&mut one, 0, &mut |_| ()), Pick::NoToken);
    // The other queue waits too; a larger D wakes both.
    submit(&policy, &mut two, 1, 4096, 90);
    assert_eq!(policy.pick(&mut two, 0, &mut |_| ()), Pick::NoToken);
    assert!(policy.set_depth(HctxId(0), 64, &mut |hctx| kicked.push(hctx)));
    assert_eq!(kicked, [HctxId(1)], "the own worker picks after it");
    assert_eq!(Registered::depth(&policy), Some(64));
    out.push(dispatched(&policy, &mut one, &mut kicked));
    assert_eq!((one.batch, one.share, one.room), (8, 32, 32 - 17));
    // Seven more lie at the own leaf, and are taken without asking another queue.
    assert_eq!(policy.tokens.root_units(), 64 - 16 - 8);
    out.extend((0..7).map(|_| dispatched(&policy, &mut one, &mut kicked)));
    assert_eq!(policy.tokens.root_units(), 64 - 16 - 8);
    // With a smaller D, the debt is paid first; then a queue that has more than its share out gives away.
    assert!(policy.set_depth(HctxId(0), 4, &mut |hctx| kicked.push(hctx)));
    kicked.clear();
    assert_eq!(policy.pick(&mut two, 0, &mut |_| ()), Pick::NoToken);
    for _ in 0..20 {
        let grant = out.pop().expect("24 are out");
        policy.complete(&mut one, Done::read(grant.flow, grant.handle), grant.token, 0, &mut |_| ());
    }
    assert_eq!((policy.tokens.root_units(), out.len()), (0, 4));
    // It learns of its share of 2 where it finds no token.
    assert_eq!(policy.pick(&mut one, 0, &mut |_| ()), Pick::NoToken);
    assert_eq!((one.batch, one.share, one.room), (1, 2, -2));
    let grant = out.pop().expect("4 are out");
    let done = Done::read(grant.flow, grant.handle);
    policy.complete(&mut one, done, grant.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!((kicked, policy.free_units()), (vec![HctxId(1)], 1));
    out.push(dispatched(&policy, &mut two, &mut Vec::new()));
    out.into_iter().for_each(|grant| {
        grant.token.into_units();
    });
}

/// Counts of many steps: dispatched, throttled, without a token, idle, kicks, and marks that were left at the end.
fn counts(options: PolicyOptions, topology: &Topology, seed: u64) -> [usize; 6] {
    let hctxs = topology.hctx_count();
    let policy = policy(options, topology, 6);
    let mut queues: Vec<MqfqQueue> = (0..hctxs).map(|hctx| policy.open_queue(HctxId(hctx as u16), 64)).collect();
    let mut rng = Random::new(seed);
    let (mut out, mut counts) = (Vec::new(), [0; 6]);
    for step in 0..20_000 {
        let hctx = rng.index(hctxs);
        let mut kicks = 0;
        let mut kick = |_| kicks += 1;
        match rng.index(8) {
            0..=2 if policy.staged(&queues[hctx]) < 60 => {
                let cost = rng.of(&[512, 4096, 4096, 65_536]);
                let entry = Entry::read(FlowId(rng.index(6) as u32), Cost(cost), Handle(step));
                policy.submit(&mut queues[hctx], entry, 0, &mut kick);
            }
            3 | 4 if !out.is_empty() => {
                let (hctx, grant): (usize, Grant) = out.swap_remove(rng.index(out.len()));
                policy.complete(&mut queues[hctx], Done::read(grant.flow, grant.handle), grant.token, 0, &mut kick);
            }
            5 if options.depth_auto && rng.chance(100) => {
                policy.set_depth(HctxId(hctx as u16), 1 + rng.index(40) as u32, &mut kick);
            }
            _ => match policy.pick(&mut queues[hctx], 0, &mut kick) {
                Pick::Dispatch(grant) => {
                    counts[0] += 1;
                    out.push((hctx, grant));
                }
                Pick::Throttled => counts[1] += 1,
                Pick::NoToken => counts[2] += 1,
                _ => counts[3] += 1,
            },
        }
        counts[4] += kicks;
    }
    while policy.ready.take_nearest(HctxId(0)).is_some() {
        counts[5] += 1;
    }
    out.into_iter().for_each(|(_, grant)| {
        grant.token.into_units();
    });
    counts
}

/// None of this is promised, but each kick is a worker that wakes: a change of these numbers is meant, or it is a wake
/// too many or too few.
#[test]
fn how_often_it_wakes_others_is_known() {
    let paper = PolicyOptions {
        depth: 6,
        window: VSpan::from_bytes(64 << 10),
        token_unit_bytes: Some(4096),
        ..PolicyOptions::new(PolicyKind::Mqfq)
    };
    let deep = PolicyOptions { depth: 40, ..paper };
    let (four, eight) = (Topology::flat(4), Topology::new(2, 2, 2));
    let requests = PolicyOptions { token_unit_bytes: None, ..paper };
    let auto = PolicyOptions { depth_auto: true, ..deep };
    assert_eq!(counts(paper, &four, 1), [3413, 2400, 7114, 15, 622, 3]);
    assert_eq!(counts(requests, &eight, 2), [4165, 4199, 2809, 23, 1355, 0]);
    assert_eq!(counts(deep.relaxed(8), &eight, 3), [4206, 4903, 1984, 23, 1379, 4]);
    assert_eq!(counts(auto.relaxed(4), &four, 4), [4068, 2452, 5078, 18, 742, 0]);
    assert_eq!(counts(auto.relaxed(8), &eight, 5), [3608, 4948, 3689, 46, 1428, 4]);
}

// A window that is set: what is in force then, and what follows it.

const KIB: u64 = 1024;

fn with_window_to_set() -> PolicyOptions {
    let (window, window_least) = (VSpan::from_bytes(256 * KIB), Some(VSpan::from_bytes(16 * KIB)));
    PolicyOptions { window, window_least, ..PolicyOptions::new(PolicyKind::Mqfq) }
}

#[test]
fn the_terms_in_force_are_those_that_were_set_last() {
    let exact = with_window_to_set();
    for options in [exact, exact.relaxed(2)] {
        let policy = policy(options, &Topology::flat(2), 1);
        assert_eq!(policy.window_terms(), Some(options.terms()));
        for kib in [16, 64, 1024] {
            let terms = options.terms_of(VSpan::from_bytes(kib * KIB), 2);
            policy.set_window(&terms);
            assert_eq!(policy.window_terms(), Some(terms));
        }
    }
}

#[test]
fn a_shorter_window_makes_steps_of_the_groups_come_sooner() {
    let mut policy = policy(with_window_to_set(), &Topology::flat(1), 2);
    let group = crate::flow::Group { weight: Weight::DEFAULT, parent: None };
    policy.set_tree(&Tree { groups: vec![group], of_flow: vec![Some(GroupId(0)); 2] });
    policy.set_window(&policy.options.terms_of(VSpan::from_bytes(16 * KIB), 1));
    // One flow with much, and one with half of a period, 64 KiB, at weight 50.
    let _ = policy.flows.charge(FLOW, Cost(1 << 30), VTime::ZERO);
    let _ = policy.flows.charge(FlowId(1), Cost(32 * KIB), VTime::ZERO);
    let weights = [64, VSpan::from_bytes(128 * KIB).0 + 64].map(|now| {
        policy.flows.refresh_if_due(VTime::from_raw(now));
        let weight = Registered::effective_weight(&policy, FLOW).expect("every flow has one");
        (weight.millionths + 500_000) / 1_000_000
    });
    assert_eq!(weights, [50, 75], "eight windows after the first look the other is content with half of its part");
}

// The longest requests there are: leads beyond what a leaf can show, and virtual time that goes around.

/// One request of 1 TiB at weight 1, units: 12.5 times as far as a leaf shows.
const LONGEST: u64 = COST_MAX.0 * 1024 * 100;

/// The longest requests of `FLOW` at weight 1; a flow of weight 100 beside it.
fn light(topology: &Topology) -> Mqfq {
    let options = PolicyOptions::new(PolicyKind::Mqfq);
    let weights = [Weight::MIN, Weight::DEFAULT];
    options.validate_for(&weights).expect("options of a test are in range");
    Mqfq::new(&options, topology, &weights)
}

fn end(policy: &Mqfq, queue: &mut MqfqQueue, grant: Grant) {
    policy.complete(queue, Done::read(grant.flow, grant.handle), grant.token, 0, &mut |_| ());
}

#[test]
fn virtual_time_comes_to_the_only_lead_however_far_it_is() {
    let policy = light(&Topology::flat(1));
    let mut queue = policy.open_queue(HctxId(0), 8);
    (0..3).for_each(|handle| submit(&policy, &mut queue, 0, COST_MAX.0, handle));
    for done in 1..3 {
        let grant = dispatched(&policy, &mut queue, &mut Vec::new());
        assert_eq!(policy.global_vtime(), VTime::from_raw(done * LONGEST));
        assert_eq!(queue.stage.lead(), Some(policy.global_vtime()));
        end(&policy, &mut queue, grant);
    }
}

#[test]
fn a_queue_whose_lead_is_farther_than_a_leaf_shows_waits_for_the_others_and_then_goes() {
    let policy = light(&Topology::flat(2));
    let [mut far, mut near] = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 8));
    submit(&policy, &mut near, 1, 4096, 0);
    (0..2).for_each(|handle| submit(&policy, &mut far, 0, COST_MAX.0, handle));
    let mut kicked = Vec::new();
    let first = dispatched(&policy, &mut far, &mut kicked);
    assert_eq!(policy.pick(&mut far, 0, &mut |hctx| kicked.push(hctx)), Pick::Throttled);
    assert_eq!((policy.global_vtime(), kicked.as_slice()), (VTime::ZERO, &[][..]));
    let last = dispatched(&policy, &mut near, &mut kicked);
    assert_eq!(kicked, [HctxId(0)], "nobody else holds virtual time");
    let second = dispatched(&policy, &mut far, &mut kicked);
    assert_eq!(policy.global_vtime(), VTime::from_raw(LONGEST));
    end(&policy, &mut near, last);
    [first, second].into_iter().for_each(|grant| end(&policy, &mut far, grant));
}

#[test]
fn a_flow_that_slept_while_virtual_time_went_half_around_starts_at_virtual_time() {
    let policy = light(&Topology::flat(1));
    let mut queue = policy.open_queue(HctxId(0), 8);
    // 100 requests of a 164th of the circle each.
    for flow in core::iter::once(1).chain([0; 100]) {
        submit(&policy, &mut queue, flow, if flow == 0 { COST_MAX.0 } else { 4096 }, 0);
        let grant = dispatched(&policy, &mut queue, &mut Vec::new());
        end(&policy, &mut queue, grant);
    }
    let now = policy.global_vtime();
    assert!(now.raw() > 1 << 63, "{now:?}");
    submit(&policy, &mut queue, 1, 4096, 0);
    assert_eq!(queue.stage.lead(), Some(now));
}

#[test]
fn a_request_shorter_than_a_grain_takes_nothing_in_the_exact_form_and_a_grain_in_the_relaxed() {
    // L3 in `flow/account.rs`: with leases it holds back what another queue gives back.
    let exact = PolicyOptions::new(PolicyKind::Mqfq);
    for (options, taken) in [(exact, 0), (exact.relaxed(1), TAG_GRAIN.0)] {
        let policy = Mqfq::new(&options, &Topology::flat(1), &[Weight::MAX]);
        let mut queue = policy.open_queue(HctxId(0), 8);
        submit(&policy, &mut queue, 0, 1, 0);
        assert_eq!(policy.flows.finish_tag(FLOW), VTime::from_raw(taken));
    }
}

/// A request given back on queue 0 ends where one of queue 1 begins that is cheaper than a grain, and so of length 0.
#[test]
fn tags_of_a_queue_stay_in_order_when_another_gives_back_what_lies_before_a_request_of_length_0() {
    let options = PolicyOptions { depth: 4, ..PolicyOptions::new(PolicyKind::Mqfq) };
    for options in [options, PolicyOptions { lease: VSpan(0), ..options.relaxed(2) }] {
        let mut policy = Mqfq::new(&options, &Topology::flat(2), &[Weight::MAX, Weight::DEFAULT]);
        policy.charge_late(false);
        let [mut zero, mut one] = [0, 1].map(|at| policy.open_queue(HctxId(at), 8));
        submit(&policy, &mut zero, 1, 4096, 0);
        submit(&policy, &mut zero, 0, 4096, 1);
        // A cost of 1 is a sixth of a grain.
        (0..3).for_each(|handle| submit(&policy, &mut one, 0, 1, handle));
        let first = one.stage.lead().expect("three are staged");
        assert_eq!(first, VTime::ZERO.plus(VSpan(4096 * 1024 / 100 / 64 * 64)), "behind the other queue's");
        assert!(policy.withdraw(&mut zero, (FLOW, Handle(1), Cost(4096)), &mut |_| ()));
        for _ in 0..2 {
            let grant = dispatched(&policy, &mut one, &mut Vec::new());
            _ = grant.token.into_units();
            assert_eq!(one.stage.lead(), Some(first), "I9");
        }
        _ = dispatched(&policy, &mut one, &mut Vec::new()).token.into_units();
        // The axis has the order of its own: what comes next begins before.
        submit(&policy, &mut one, 0, 4096, 3);
        assert!(one.stage.lead().is_some_and(|lead| lead.is_before(first)));
    }
}

// The worked examples of `mod.rs`, run.

const A: FlowId = FlowId(0);
const B: FlowId = FlowId(1);
const REQUEST_BYTES: u64 = 4096;
const REQUESTS: u32 = 8;

/// The rows of the one table in `text` that begins with this head, cell by cell.
fn rows<'a>(text: &'a str, prefix: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let table = lines.skip_while(|line| !line.starts_with("| worker |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// A point of virtual time as the tables write it.
fn kib(units: u64) -> String {
    format!("{:.2}", units as f64 / VSpan::from_bytes(1024).0 as f64)
}

/// The policy, its two queues, and the queues that were kicked.
struct Scene {
    policy: Mqfq,
    queues: [MqfqQueue; 2],
    kicked: Vec<HctxId>,
}

impl Scene {
    fn new() -> Scene {
        let options =
            PolicyOptions { depth: 8, window: VSpan::from_bytes(5 << 10), ..PolicyOptions::new(PolicyKind::Mqfq) };
        let weights = [Weight::new(100).unwrap(), Weight::new(300).unwrap()];
        let policy = Mqfq::new(&options, &Topology::flat(2), &weights);
        let mut queues = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), REQUESTS as usize));
        for number in 0..REQUESTS {
            for (flow, queue) in [A, B].into_iter().zip(&mut queues) {
                let entry = Entry::read(flow, Cost(REQUEST_BYTES), Handle(number));
                policy.submit(queue, entry, 0, &mut |_| ());
            }
        }
        Scene { policy, queues, kicked: Vec::new() }
    }

    fn pick(&mut self, worker: usize) -> Pick {
        self.policy.pick(&mut self.queues[worker], 0, &mut |hctx| self.kicked.push(hctx))
    }

    /// A row of the table: the worker picks and says what came of it.
    fn turn(&mut self, worker: usize, granted: &mut Vec<Grant>) -> Vec<String> {
        let now = self.policy.global_vtime();
        let lead = self.queues[worker].stage.lead().expect("requests wait throughout the example");
        let result = match self.pick(worker) {
            Pick::Dispatch(grant) => {
                granted.push(grant);
                format!("dispatch {}", granted.len())
            }
            Pick::Throttled => "throttled".into(),
            Pick::NoToken => "no token".into(),
            other => panic!("no turn of the example ends in {other:?}"),
        };
        let worker = ["A", "B"][worker].to_string();
        let window_end = now.plus(self.policy.options.window);
        vec![worker, kib(now.raw()), kib(lead.raw()), kib(window_end.raw()), result]
    }
}

#[test]
fn the_worked_example_of_a_window_that_changes() {
    let kib = |kib: u64| VSpan::from_bytes(kib << 10);
    let (depth, window_least) = (200, Some(kib(16)));
    let options = PolicyOptions { depth, window: kib(256), window_least, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = Mqfq::new(&options, &Topology::flat(2), &[Weight::DEFAULT; 2]);
    let mut queues = [0, 1].map(|hctx| policy.open_queue(HctxId(hctx), 100));
    for number in 0..100 {
        for (flow, queue) in [A, B].into_iter().zip(&mut queues) {
            policy.submit(queue, Entry::read(flow, Cost(REQUEST_BYTES), Handle(number)), 0, &mut |_| ());
        }
    }
    let mut dispatched = |worker: usize| match policy.pick(&mut queues[worker], 0, &mut |_| ()) {
        Pick::Dispatch(grant) => grant.token.into_units() == 1,
        _ => false,
    };
    // Until it is throttled.
    assert_eq!((0..100).take_while(|_| dispatched(0)).count(), 65, "of f");
    policy.set_window(&options.terms_of(kib(16), 2));
    assert!(!dispatched(0));
    let of_m =
        (1..100).find(|_| dispatched(1) && policy.wheel.is_due(VTime::ZERO.plus(kib(260)), policy.global_vtime()));
    assert_eq!((of_m, policy.global_vtime()), (Some(61), VTime::ZERO.plus(kib(244))));
    assert!(dispatched(0), "f's next");
}

#[test]
fn the_worked_example_at_the_head_of_this_file() {
    let mut scene = Scene::new();
    let mut granted = Vec::new();
    let happened: Vec<Vec<String>> = (0..12).map(|turn| scene.turn(turn % 2, &mut granted)).collect();
    let file = rows(include_str!("mod.rs"), "//! ");
    assert_eq!(file, happened, "the table at the head of mod.rs");

    // The end of A's first read, and the queue that has its token then.
    scene.kicked.clear();
    let first = granted.remove(0);
    let Scene { policy, queues, kicked } = &mut scene;
    policy.complete(&mut queues[0], Done::read(A, first.handle), first.token, 0, &mut |hctx| kicked.push(hctx));
    assert_eq!(scene.pick(0), Pick::Throttled);
    assert_eq!(scene.kicked, [HctxId(1)]);
    let turn = scene.turn(1, &mut granted);
    assert_eq!(turn, ["B", "6.67", "6.67", "11.67", "dispatch 8"], "the seven others are still on the device");
    for grant in granted {
        grant.token.into_units();
    }
}
