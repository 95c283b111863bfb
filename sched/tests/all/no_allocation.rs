//! After the last `open_queue`, no policy allocates: the data path of a busy device must not wait for an allocator, and
//! a full machine must still be able to complete what it has.

use mqfq_policies::{BFQ, BfqOptions, MQ_DEADLINE};
use mqfq_sched::class::PriorityClass;
use mqfq_sched::cost::{Cost, CostKind};
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::flow::{Group, GroupId, Tree};
use mqfq_sched::policy::{
    AnyPolicy, DirectPolicy, DispatchToken, Done, Entry, Grant, Handle, OwnOptions, Pick, Policy, PolicyOptions,
};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_testing::Random;
use mqfq_testing::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often each operation ended in each way: a path that was never taken has not been shown to be free of allocation.
#[derive(Default, Debug)]
struct Seen {
    dispatched: u64,
    throttled: u64,
    no_token: u64,
    later: u64,
    idle: u64,
    paused: u64,
    kicked: u64,
}

const HCTXS: u16 = 4;
const CAPACITY: usize = 64;
/// Commands that a device queue takes.
const ROOM: usize = 4;

/// The request of a round: every kind, waited for or not, anywhere on the device.
fn entry(flow: u32, cost: Cost, round: u32, number: u64) -> Entry {
    let kinds = [CostKind::Read, CostKind::Read, CostKind::Write, CostKind::Write, CostKind::Discard, CostKind::Flush];
    let kind = kinds[round as usize % kinds.len()];
    let is_sync = matches!(kind, CostKind::Read | CostKind::Flush) || round.is_multiple_of(4);
    Entry { kind, is_sync, offset_bytes: number % 1000 * 4096, ..Entry::read(FlowId(flow), cost, Handle(round)) }
}

/// The end of a request; one in a hundred was under way since the start.
fn done(grant: &Grant, now_ns: u64) -> Done {
    let Entry { kind, is_sync, .. } = entry(grant.flow.0, Cost(1), grant.handle.0, 0);
    let began_ns = if grant.handle.0.is_multiple_of(100) { 0 } else { now_ns };
    Done { kind, is_sync, submitted_ns: began_ns, dispatched_ns: began_ns, ..Done::read(grant.flow, grant.handle) }
}

/// Drives a policy through every operation and counts what it allocates once its queues are open.
fn churn(options: &PolicyOptions, flows: u32, rounds: u32, tree: &Tree) -> (u64, Seen) {
    let weights = vec![Weight::DEFAULT; flows as usize];
    let policy = AnyPolicy::with_tree(options, &Topology::new(2, 2, 1), &weights, tree).unwrap();
    let mut queues: Vec<_> = (0..HCTXS).map(|n| policy.open_queue(HctxId(n), CAPACITY)).collect();
    let mut in_flight: Vec<_> = (0..HCTXS).map(|_| Vec::with_capacity(ROOM)).collect();
    let mut kicked = [false; HCTXS as usize];
    let mut draw = Random::new(u64::from(flows));
    let mut seen = Seen::default();
    let before = allocations();
    for round in 0..rounds {
        let now_ns = u64::from(round) * 1_000_000;
        // A kicked worker comes first.
        let n = kicked.iter().position(|&kicked| kicked).unwrap_or(draw.below(u64::from(HCTXS)) as usize);
        kicked[n] = false;
        let mut kick = |hctx: HctxId| {
            seen.kicked += 1;
            kicked[hctx.index()] = true;
        };
        let queue = &mut queues[n];
        // Bursts, and pauses in which all queues run dry.
        for _ in 0..if round % 1000 < 200 { draw.below(12) } else { 0 } {
            if policy.staged(queue) < CAPACITY {
                let cost = Cost([1, 512, 4096, 65_536][draw.below(4) as usize]);
                let entry = entry(draw.below(u64::from(flows)) as u32, cost, round, draw.below(1 << 20));
                policy.submit(queue, entry, now_ns, &mut kick);
            }
        }
        loop {
            if in_flight[n].len() == ROOM {
                policy.pause(queue, &mut kick);
                seen.paused += 1;
                break;
            }
            match policy.pick(queue, now_ns, &mut kick) {
                Pick::Dispatch(grant) => {
                    seen.dispatched += 1;
                    in_flight[n].push(grant);
                    continue;
                }
                Pick::Throttled => seen.throttled += 1,
                Pick::NoToken => seen.no_token += 1,
                Pick::Later(_) => seen.later += 1,
                Pick::Idle => seen.idle += 1,
            }
            break;
        }
        policy.set_weight(
            FlowId(draw.below(u64::from(flows)) as u32),
            Weight::new(1 + draw.below(u64::from(Weight::MAX.get()))).unwrap(),
        );
        policy.set_class(
            FlowId(draw.below(u64::from(flows)) as u32),
            PriorityClass::ALL[if draw.below(20) == 0 { draw.below(3) as usize } else { 1 }],
        );
        for _ in 0..draw.below(ROOM as u64 + 1) {
            if let Some(grant) = in_flight[n].pop() {
                policy.complete(queue, done(&grant, now_ns), grant.token, now_ns, &mut kick);
            }
        }
    }
    let allocated = allocations() - before;
    for (queue, grants) in queues.iter_mut().zip(in_flight) {
        grants
            .into_iter()
            .for_each(|grant| policy.complete(queue, done(&grant, 0), grant.token, 0, &mut |_: HctxId| ()));
    }
    (allocated, seen)
}

/// As [`churn`], for a direct policy, which has other operations. Returns also how often each class was named, and a
/// ratio set.
fn churn_direct(options: &PolicyOptions, flows: u32, rounds: u32) -> (u64, [u64; 3], u64) {
    let policy = AnyPolicy::new(options, &Topology::new(2, 2, 1), &vec![Weight::DEFAULT; flows as usize]).unwrap();
    let direct = policy.as_direct().expect("only of a direct policy");
    let mut queues: Vec<_> = (0..HCTXS).map(|n| policy.open_queue(HctxId(n), CAPACITY)).collect();
    let mut in_flight: Vec<Vec<(u32, Cost)>> = (0..HCTXS).map(|_| Vec::with_capacity(CAPACITY)).collect();
    let mut draw = Random::new(u64::from(flows));
    let (mut named, mut adjusted) = ([0; 3], 0);
    let before = allocations();
    for round in 0..rounds {
        let now_ns = u64::from(round) * 1_000_000;
        let n = draw.below(u64::from(HCTXS)) as usize;
        // Bursts, and pauses past the grace period.
        for _ in 0..if round % 1000 < 800 { draw.below(12) } else { 0 } {
            if in_flight[n].len() < CAPACITY {
                // The last flow asks for little, so the others are ahead of it.
                let flow = draw.below(u64::from(flows)) as u32;
                let cost = Cost(if flow + 1 == flows { 512 } else { 1 << (9 + draw.below(16)) });
                let class = direct.class_of(&queues[n], FlowId(flow), now_ns);
                named[class.index()] += 1;
                direct.dispatched(&mut queues[n], FlowId(flow), cost, class, now_ns);
                in_flight[n].push((flow, cost));
            }
        }
        policy.set_weight(
            FlowId(draw.below(u64::from(flows)) as u32),
            Weight::new(1 + draw.below(u64::from(Weight::MAX.get()))).unwrap(),
        );
        for _ in 0..draw.below(12) {
            if let Some((flow, cost)) = in_flight[n].pop() {
                let done = Done { cost, ..Done::read(FlowId(flow), Handle(0)) };
                policy.complete(&mut queues[n], done, DispatchToken::new(0), now_ns, &mut |_: HctxId| ());
            }
        }
        adjusted += u64::from(direct.adjust(&mut queues[n], now_ns).is_some());
    }
    (allocations() - before, named, adjusted)
}

#[test]
fn nothing_allocates_after_the_queues_of_a_direct_policy_are_open() {
    for kind in mqfq_policies::ALL.into_iter().filter(|kind| kind.is_direct()) {
        for flows in [1, 8, 1000] {
            // Virtual time wraps on the way.
            let options = PolicyOptions { start: VTime::from_raw(u64::MAX - (1 << 34)), ..PolicyOptions::new(kind) };
            let (allocated, named, adjusted) = churn_direct(&options, flows, 20_000);
            assert_eq!(allocated, 0, "{kind} with {flows} flows");
            let expected = if flows == 1 { &named[..1] } else { &named[..] };
            assert!(expected.iter().all(|&count| count >= 10) && adjusted >= 2, "{flows}: {named:?} {adjusted}");
        }
    }
}

#[test]
fn nothing_allocates_after_the_queues_are_open() {
    // A direct policy is never asked to submit or pick: the test above.
    for kind in mqfq_policies::ALL.into_iter().filter(|kind| !kind.is_direct()) {
        for flows in [1, 8, 1000] {
            for token_unit_bytes in [None, Some(4096)] {
                // Virtual time wraps and all flows are refreshed on the way; D is small enough to starve queues of
                // tokens, T to throttle them.
                let options = PolicyOptions {
                    depth: 5,
                    window: VSpan::from_bytes(16 << 10),
                    token_unit_bytes,
                    start: VTime::from_raw(u64::MAX - (1 << 30)),
                    // Two rounds, or 1000 flows would wait for each other most of the time.
                    own: OwnOptions::of(&BfqOptions { slice_idle_ns: 2_000_000, ..BfqOptions::DEFAULT }),
                    ..PolicyOptions::new(kind)
                };
                for options in [options, options.relaxed(usize::from(HCTXS))] {
                    let (allocated, seen) = churn(&options, flows, 10_000, &Tree::default());
                    assert_eq!(allocated, 0, "{flows} flows, {options:?}: {seen:?}");
                    let mut often = vec![seen.dispatched, seen.idle];
                    if kind != BFQ || flows < 1000 {
                        // Where each of many is waited for in turn no device queue fills up.
                        often.push(seen.paused);
                    }
                    if kind.has_depth() {
                        often.extend([seen.no_token, seen.kicked]);
                    }
                    if kind.has_window() {
                        often.push(seen.throttled);
                    }
                    if kind == MQ_DEADLINE || kind == BFQ && flows > 1 {
                        often.push(seen.later);
                    }
                    assert!(often.iter().all(|&count| count >= 10), "{flows} flows, {options:?}: too rarely, {seen:?}");
                }
            }
        }
    }
}

#[test]
fn no_policy_with_groups_allocates_once_its_queues_are_open() {
    let group = |parent| Group { weight: Weight::DEFAULT, parent };
    let tree = Tree {
        groups: vec![group(None), group(Some(GroupId(0))), group(None)],
        of_flow: (0..12).map(|flow| [None, Some(GroupId(0)), Some(GroupId(1)), Some(GroupId(2))][flow % 4]).collect(),
    };
    for kind in mqfq_policies::ALL.into_iter().filter(|kind| kind.has_groups()) {
        let options = PolicyOptions { depth: 6, ..PolicyOptions::new(kind) };
        for options in [options, options.relaxed(usize::from(HCTXS))] {
            let (allocated, seen) = churn(&options, 12, 10_000, &tree);
            assert_eq!(allocated, 0, "{options:?}: {seen:?}");
            assert!(seen.dispatched > 1000 && seen.idle > 10, "too rarely, {seen:?}");
        }
    }
}

#[test]
fn an_allocation_would_be_counted() {
    let before = allocations();
    std::hint::black_box(vec![0u8; 16]);
    assert_eq!(allocations() - before, 1);
}
