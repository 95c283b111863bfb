//! I1 to I9 of ARCHITECTURE.md, each as a claim about a small scene. I1, I2 and I8 are also checked at every step of
//! every other test here (`Env::check`); I4 and I6 have files of their own for generated histories, I5 is in
//! `hazards.rs`.

use crate::bench_top;
use bench_top::*;
use mqfq_policies::{MQFQ_SERIAL, SFQD};
use mqfq_sched::cost::{COST_MAX, Cost};
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::{AnyPolicy, Entry, Handle, Pick, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::{VSpan, VTime};
use mqfq_testing::random::for_seeds;
use mqfq_testing::rig::Rig;

const A: FlowId = FlowId(0);
const B: FlowId = FlowId(1);

fn hctx(n: u16) -> HctxId {
    HctxId(n)
}

#[test]
fn i1_tokens_are_conserved_through_every_hand() {
    // D = 3 on two sockets; tokens go from the root to hctx 0, over the machine to hctx 3, and back to the root.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[3])];
    let mut env = Env::new(mqfq(3, MIB), &Topology::new(2, 2, 1), &tenants);
    env.keep_backlogged(4);
    assert_eq!((env.in_flight(), env.policy.free_units()), (3, Some(0)));
    env.dispatch(50).drain();
    assert_eq!((env.in_flight(), env.policy.free_units()), (0, Some(3)));
}

#[test]
fn i2_never_more_than_d_requests_are_out_however_large() {
    // D = 8 units of 4 KiB. Six requests of 32 KiB take 8 units each: the first goes with 8 free units; no second one
    // while it owes nothing but leaves nothing. Six of 12 KiB (3 units): 8 -> 5 -> 2 -> -1, so three are out, with 9
    // units: D + u - 1 = 10.
    let options = PolicyOptions { token_unit_bytes: Some(4096), ..mqfq(8, MIB) };
    for (request_bytes, out) in [(32 * KIB, 1), (12 * KIB, 3), (4 * KIB, 8), (512, 8)] {
        let mut env = Env::flat(options, &[tenant("a", 100, request_bytes, &[0])]);
        env.keep_backlogged(10);
        assert_eq!(env.in_flight(), out, "{request_bytes} bytes");
        env.drain();
    }
}

#[test]
fn i3_a_request_more_than_the_window_ahead_waits() {
    // T = 8 KiB, 4 KiB requests. b's only request pins virtual time at 0 because its worker does not run. a's tags are
    // 0, 4, 8, 12 KiB: the first three may go, the fourth may not.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
    let mut env = Env::flat(mqfq(64, 8 * KIB), &tenants);
    env.submit(B, hctx(1));
    for _ in 0..5 {
        env.submit(A, hctx(0));
    }
    env.run(hctx(0));
    assert_eq!(env.log.len(), 3);
    let rig: &mut Rig = &mut env;
    assert_eq!(rig.policy.pick(&mut rig.queues[0], 0, &mut |_| ()), Pick::Throttled);
}

#[test]
fn i4_dispatch_of_the_slowest_queues_last_request_wakes_those_ahead() {
    // As before; then b's worker runs. Its one dispatch empties its queue, virtual time moves to a's lead, and a is
    // kicked by that very pick: no other worker would ever do it.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
    let mut env = Env::flat(mqfq(64, 8 * KIB), &tenants);
    env.submit(B, hctx(1));
    for _ in 0..5 {
        env.submit(A, hctx(0));
    }
    env.run(hctx(0));
    assert!(env.pick(hctx(1)));
    assert!(env.kicked.contains(&hctx(0)), "a was not told that virtual time moved");
    env.run_kicked();
    assert_eq!(env.staged(), 0);
}

#[test]
fn i4_token_at_an_idle_queue_goes_to_one_that_waits() {
    // D = 1 on two sockets. hctx 0 holds the token; hctx 3 is ready. hctx 0 completes and has nothing more: the token
    // must cross.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[3])];
    let mut env = Env::new(mqfq(1, MIB), &Topology::new(2, 2, 1), &tenants);
    env.submit(A, hctx(0));
    env.run(hctx(0));
    env.submit(B, hctx(3));
    env.run(hctx(3));
    assert_eq!(env.log.len(), 1);
    assert_eq!(env.complete_at(0), hctx(0));
    assert!(env.kicked.contains(&hctx(3)));
    env.run_kicked();
    assert_eq!(env.log.len(), 2);
}

#[test]
fn i4_token_sent_to_a_queue_that_is_idle_by_then_is_passed_on() {
    // Three queues, D = 2. 0 and 1 hold a token each, 1 is ready for another, and so is 2. 0 completes and claims 1
    // (nearest); before 1 sees the kick it completes its own, dispatches with that token, and completes again: idle.
    // The kick comes last, for nothing, and must send the token on to 2.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1]), tenant("c", 100, 4 * KIB, &[2])];
    let mut env = Env::new(mqfq(2, MIB), &Topology::new(2, 2, 1), &tenants);
    env.submit(A, hctx(0));
    env.run(hctx(0));
    env.submit(B, hctx(1));
    env.submit(B, hctx(1));
    env.run(hctx(1));
    env.submit(FlowId(2), hctx(2));
    env.run(hctx(2));
    assert_eq!((env.log.len(), env.in_flight()), (2, 2));
    assert_eq!(env.complete_at(0), hctx(0));
    assert_eq!(env.kicked.iter().copied().collect::<Vec<_>>(), [hctx(1)]);
    env.kicked.clear();
    // hctx 1 is busy with its own: complete, dispatch its second request, complete that.
    assert_eq!(env.complete_at(0), hctx(1));
    assert!(env.pick(hctx(1)));
    assert_eq!(env.complete_at(0), hctx(1));
    // Now the late kick.
    env.run(hctx(1));
    env.run_kicked();
    assert_eq!(env.staged(), 0, "hctx 2 still waits for a token that lies elsewhere");
}

#[test]
fn i4_earlier_head_in_a_throttled_queue_goes_at_once() {
    // Queue 0 is throttled with a's tag 12 KiB, T = 8 KiB; then c, idle so far, submits there: tag 0. It must not wait
    // for a's slot.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1]), tenant("c", 100, 4 * KIB, &[0])];
    let mut env = Env::flat(mqfq(64, 8 * KIB), &tenants);
    env.submit(B, hctx(1));
    for _ in 0..5 {
        env.submit(A, hctx(0));
    }
    env.run(hctx(0));
    env.submit(FlowId(2), hctx(0));
    env.run(hctx(0));
    assert_eq!(env.log.last().map(|last| last.flow), Some(FlowId(2)));
    env.drain();
}

#[test]
fn i4_worker_whose_device_queue_is_full_lets_others_have_its_tokens() {
    // D = 4 but each device queue holds 1. Worker 0 completes with an eligible lead, so the token lies at its leaf; it
    // dispatches, is full again, and pauses. Worker 1 is idle in between and submits: a token must be there for it.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
    let mut env = Env::flat(mqfq(4, MIB), &tenants).device_depth(1);
    env.keep_backlogged(3);
    for _ in 0..20 {
        assert_eq!((env.in_flight_on(hctx(0)), env.in_flight_on(hctx(1))), (1, 1));
        env.complete_oldest();
    }
    env.drain();
}

#[test]
fn a_worker_with_its_share_of_tokens_gives_them_to_one_that_waits() {
    // D = 8. a is alone first and takes all of it; then b comes, within T, and waits for tokens. In the paper's form a
    // keeps them as long as it has requests; with a share of 4 the tokens of its completed requests go to b until b has
    // as many.
    for (token_share, given) in [(0, 0), (4, 4)] {
        let options = PolicyOptions { token_share, ..mqfq(8, MIB) };
        let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
        let mut env = Env::flat(options, &tenants);
        for _ in 0..24 {
            env.submit(A, hctx(0));
        }
        env.run(hctx(0));
        for _ in 0..24 {
            env.submit(B, hctx(1));
        }
        env.run(hctx(1));
        assert_eq!((env.in_flight_on(hctx(0)), env.in_flight_on(hctx(1))), (8, 0));
        for _ in 0..8 {
            // The oldest is a's: b's come behind them. b is awake before a has done what it has to do with its
            // completion.
            let completed = env.complete_at(0);
            env.run_kicked();
            env.run(completed);
        }
        assert_eq!(env.in_flight(), 8, "nothing is lost, and none lies idle");
        assert_eq!(env.in_flight_on(hctx(1)), given, "share {token_share}");
        env.drain();
    }
}

#[test]
fn i5_lead_beyond_what_a_leaf_can_show_waits_for_what_it_shows() {
    // T = 2^50 units, the longest there is, and q = T/2: the slots of the wheel are 2^49 long, and its last is 2^55
    // ahead. The first request of a is 1 TiB at weight 1, so its second starts at 2^56.6; its leaf shows 2^53. When b's
    // queue is empty, virtual time comes to 2^53 and no further before a's worker has looked: so it is that which it
    // must wait for.
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL] {
        let window = PolicyOptions::WINDOW_MAX;
        let options = PolicyOptions { window, quantum: VSpan(window.0 / 2), depth: 4, ..PolicyOptions::new(kind) };
        let policy = AnyPolicy::new(&options, &Topology::flat(2), &[weight(1), weight(100)]).unwrap();
        let mut queues = [0, 1].map(|n| policy.open_queue(hctx(n), 8));
        let mut kicked = Vec::new();
        let mut kick = |other: HctxId| kicked.push(other);
        for (queue, flow, cost) in [(0, A, COST_MAX), (0, A, COST_MAX), (1, B, Cost(4096))] {
            policy.submit(&mut queues[queue], Entry::read(flow, cost, Handle(queue as u32)), 0, &mut kick);
        }
        let mut dispatches = |queue: usize| match policy.pick(&mut queues[queue], 0, &mut kick) {
            Pick::Dispatch(grant) => grant.token.into_units() > 0,
            refusal => {
                assert_eq!(refusal, Pick::Throttled);
                false
            }
        };
        assert_eq!([0, 0, 1].map(&mut dispatches), [true, false, true], "{kind}");
        assert!(dispatches(0), "{kind}: nobody is before it");
        assert_eq!(kicked, [hctx(0)], "{kind}: told that virtual time moved, by the only one that could");
    }
}

#[test]
fn a_queue_takes_tokens_for_what_it_has_staged_up_to_its_batch_and_no_more() {
    // D = 8 on two sockets. a has some requests staged and picks once; b, on the other socket, finds what a has left.
    for (token_batch, staged, left) in [(1, 3, 7), (2, 3, 6), (3, 3, 5), (16, 3, 5), (16, 1, 7)] {
        let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[3])];
        let mut env = Env::new(PolicyOptions { token_batch, ..mqfq(8, MIB) }, &Topology::new(2, 2, 1), &tenants);
        (0..staged).for_each(|_| env.submit(A, hctx(0)));
        assert!(env.pick(hctx(0)));
        (0..9).for_each(|_| env.submit(B, hctx(3)));
        let found = (0..9).take_while(|_| env.pick(hctx(3))).count();
        assert_eq!(found, left, "a batch of {token_batch}, {staged} staged");
        env.drain();
    }
}

#[test]
fn i7_flow_that_keeps_one_request_in_flight_loses_no_more_than_the_window() {
    // Deceptive idleness: b submits its next request when the last one completes, so it is never backlogged at that
    // moment and starts at virtual time again. While its request is staged, virtual time stands there and a dispatches
    // what starts within T of it: 5 requests (0, 4, 8, 12, 16 KiB); while it is on the device, D = 2 may pass it by. So
    // one of 8 dispatches is b's.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
    let mut env = Env::flat(mqfq(2, 16 * KIB), &tenants);
    env.set_backlog("a", 8);
    for _ in 0..200 {
        env.submit(B, hctx(1));
        env.run(hctx(1));
        while env.staged_of(B, hctx(1)) > 0 || env.in_flight_on(hctx(1)) > 0 {
            env.complete_oldest();
        }
    }
    assert!(env.log.len() <= 8 * 200 + 2, "{} dispatches for 200 of b's", env.log.len());
    env.drain();
}

#[test]
fn i7_with_sfqd_an_idle_device_ends_what_was_served_before() {
    // a has a MiB while it is alone, then the device is idle. When both come, neither is owed anything: they alternate.
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[0])];
    let mut env = Env::flat(PolicyOptions { depth: 1, ..PolicyOptions::new(SFQD) }, &tenants);
    env.submit_cost(A, hctx(0), Cost(MIB));
    env.drain();
    let before = env.log.len();
    for _ in 0..8 {
        env.submit(A, hctx(0));
        env.submit(B, hctx(0));
    }
    env.drain();
    let flows: Vec<FlowId> = env.log[before..].iter().map(|dispatched| dispatched.flow).collect();
    assert_eq!(flows, [A, B].repeat(8));
}

#[test]
fn i8_virtual_time_stands_while_nothing_is_staged() {
    let mut env = Env::flat(mqfq(4, 16 * KIB), &[tenant("a", 100, 4 * KIB, &[0])]);
    for _ in 0..3 {
        env.submit(A, hctx(0));
    }
    env.drain();
    // Start tags were 0, 4 and 8 KiB; the last was the smallest staged before nothing was.
    let last = VTime::from_raw(2 * 4 * KIB * 1024);
    assert_eq!(env.policy.global_vtime(), Some(last));
    env.run_all();
    assert_eq!(env.policy.global_vtime(), Some(last));
}

#[test]
fn i9_flow_leaves_each_queue_in_the_order_it_came() {
    for_seeds(20, |rng| {
        let tenants =
            [tenant("a", 100, 4 * KIB, &[0, 1]), tenant("b", 300, 4 * KIB, &[0]), tenant("c", 7, 512, &[0, 1])];
        let mut env = Env::flat(mqfq(3, 8 * KIB), &tenants);
        for _ in 0..300 {
            let flow = rng.index(3);
            let at = hctx(rng.of(&tenants[flow].hctxs));
            env.submit_cost(FlowId(flow as u32), at, Cost(1 + rng.next_u64() % (64 * KIB)));
            if rng.chance(2) {
                env.run(at);
            }
            if env.in_flight() > 0 && rng.chance(2) {
                let position = rng.index(env.in_flight());
                let worker = env.complete_at(position);
                env.run(worker);
                env.run_kicked();
            }
        }
        env.drain();
        for flow in 0..3 {
            for at in 0..2 {
                let of = env.log.iter().filter(|d| d.flow == FlowId(flow) && d.hctx == hctx(at));
                assert!(of.map(|d| d.handle.0).is_sorted(), "flow {flow} left queue {at} out of order");
            }
        }
    });
}
