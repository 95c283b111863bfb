//! The five ways in which a multi-queue scheduler goes wrong that MQFQ's structures exist to close, one test each, in
//! the paper's form and in the relaxed one. Each says what to take out to see it fail; each was seen to, in each form
//! alone. (The oracle behind `Env` may notice first.)
//!
//! | hazard                                       | test                                                                   |
//! |----------------------------------------------|------------------------------------------------------------------------|
//! | a far queue starves                          | `a_far_queue_does_not_starve`                                          |
//! | a token is stranded at an idle leaf          | `a_token_is_not_stranded_at_an_idle_leaf`                              |
//! | a wake-up is lost between mark and release   | `loom_token_given_back_meets_the_queue_that_waits_for_it` (a model, in |
//! |                                              | `src/policy/mqfq/loom_tests.rs`: one thread cannot show it)            |
//! | virtual time wraps                           | `virtual_time_that_wraps_changes_nothing`                              |
//! | a flow comes back after a long idle          | `a_flow_that_comes_back_after_a_long_idle_starts_at_virtual_time`,     |
//! |                                              | `i7_idleness_earns_nothing`                                            |

use crate::bench_top;
use bench_top::*;
use mqfq_sched::flow::FlowId;
use mqfq_sched::policy::PolicyOptions;
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::VTime;
use mqfq_testing::oracle::narrow;

const A: FlowId = FlowId(0);
const B: FlowId = FlowId(1);

fn hctx(n: u16) -> HctxId {
    HctxId(n)
}

/// The paper's form and the relaxed one, for `hctx_count` queues.
fn forms(options: PolicyOptions, hctx_count: usize) -> [PolicyOptions; 2] {
    [options, options.relaxed(hctx_count)]
}

/// Two sockets of four; D = 4; T = 64 KiB. Seven tenants on seven hctxs keep everything busy; the eighth, far from most
/// of them, submits one request. While it waits virtual time stands still, so each of the seven dispatches at most what
/// starts within T: 16 requests of 4 KiB and one more. 7 * 17 completions, and D that were on their way.
///
/// Fails if `Mqfq::pick` does not throttle: then each neighbour keeps its token for its own next request, for ever.
#[test]
fn a_far_queue_does_not_starve() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "far"];
    let tenants: Vec<Tenant> = (0..8).map(|n| tenant(names[n], 100, 4 * KIB, &[n as u16])).collect();
    for options in forms(mqfq(4, 64 * KIB), 8) {
        let mut env = Env::new(options, &Topology::new(2, 4, 1), &tenants);
        for name in &names[..7] {
            env.set_backlog(name, 4);
        }
        let far = env.flow("far");
        for _ in 0..50 {
            // Long enough for the last request's interval to pass, so that the next starts at virtual time.
            env.dispatch(7 * 20);
            env.submit(far, hctx(7));
            assert!(!env.pick(hctx(7)), "all tokens are taken");
            let before = env.log.len();
            while env.staged_of(far, hctx(7)) > 0 {
                assert!(env.oracle.is_eligible(hctx(7)), "the smallest start tag is throttled");
                env.complete_oldest();
            }
            let waited = env.log.len() - before;
            assert!(waited <= 7 * 17 + 4, "waited for {waited} dispatches of others");
        }
        env.drain();
    }
}

/// D = 2, both tokens at the leaf of hctx 0, which has use for one; hctx 3, on the other socket, has found none and
/// sleeps.
///
/// Fails if `Mqfq::rest` does not percolate, and if it does not search the ready set.
#[test]
fn a_token_is_not_stranded_at_an_idle_leaf() {
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[3])];
    for options in forms(mqfq(2, MIB), 4) {
        let mut env = Env::new(options, &Topology::new(2, 2, 1), &tenants);
        for _ in 0..3 {
            env.submit(A, hctx(0));
        }
        env.run(hctx(0));
        env.submit(B, hctx(3));
        env.run(hctx(3));
        assert_eq!((env.log.len(), env.staged()), (2, 2), "both tokens are on the device");
        // Both go to the leaf: the third request may use one.
        env.complete_at(0);
        env.complete_at(0);
        env.run(hctx(0));
        assert!(env.kicked.contains(&hctx(3)), "a token lies at the leaf of an idle queue");
        env.run_kicked();
        assert_eq!(env.staged(), 0);
        env.drain();
    }
}

/// Virtual time starts 64 KiB before the end of the circle: the same 600 dispatches as from 0, across the wrap.
///
/// Fails if `VTime::is_before` compares positions and not their difference.
#[test]
fn virtual_time_that_wraps_changes_nothing() {
    let tenants = [tenant("a", 100, 4 * KIB, &[0, 1]), tenant("b", 300, 4 * KIB, &[1]), tenant("c", 50, 9 * KIB, &[2])];
    for options in forms(mqfq(3, 64 * KIB), 3) {
        let run = |start: VTime| {
            let mut env = Env::flat(PolicyOptions { start, ..options }, &tenants);
            env.keep_backlogged(4).dispatch(600).drain();
            (env.log.clone(), env.policy.global_vtime().expect("mqfq has one"))
        };
        // A multiple of every quantum.
        let near_the_end = VTime::from_raw(0u64.wrapping_sub(1 << 26));
        let (from_zero, _) = run(VTime::ZERO);
        let (across, last) = run(near_the_end);
        assert!(last.raw() < near_the_end.raw(), "the test means to cross the wrap: {last:?}");
        assert_eq!(from_zero, across);
    }
}

/// Busy's requests of 1 TiB at weight 1 are 2^40 * 102400 units long: 164 of them are the circle. The sleeper comes
/// back after 0 to 3 turns, in steps that are no divisor of one, and starts at virtual time, not in its future. (That
/// each such request lies farther ahead than the mindicator reaches is part of the test.)
///
/// Fails if `FlowTable::refresh_if_due` does nothing: a stale finish tag would compare as up to half a circle ahead,
/// and the sleeper would be throttled.
#[test]
fn a_flow_that_comes_back_after_a_long_idle_starts_at_virtual_time() {
    let tenants = [tenant("busy", 1, 1 << 40, &[0]), tenant("sleeper", 100, 4 * KIB, &[1])];
    for turns in (1..500).step_by(61) {
        for options in forms(PolicyOptions { start: VTime::from_raw(u64::MAX / 3), ..mqfq(4, 64 * KIB) }, 2) {
            let mut env = Env::flat(options, &tenants);
            env.submit(B, hctx(1));
            env.run_all();
            for _ in 0..turns {
                env.submit(A, hctx(0));
                env.run_all();
                env.complete_oldest();
            }
            env.submit(A, hctx(0));
            env.submit(B, hctx(1));
            let lead = env.oracle.lead(hctx(1)).expect("just submitted");
            assert_eq!(Some(narrow(lead.start_tag)), env.policy.global_vtime(), "after {turns} requests");
            env.run_all();
            assert_eq!(env.staged_of(B, hctx(1)), 0, "after {turns} requests the sleeper is throttled");
            env.drain();
        }
    }
}

/// b sleeps for 1000 dispatches of a. From then on both are backlogged and get the same, not b everything: 1000
/// dispatches, 500 each, give or take 2T + two requests.
///
/// Fails if `FlowTable::charge` (in the relaxed form `charge_first`) does not raise the finish tag to virtual time: b
/// would start in the past, and get all until it has caught up.
#[test]
fn i7_idleness_earns_nothing() {
    let tenants = [tenant("a", 100, 4 * KIB, &[0]), tenant("b", 100, 4 * KIB, &[1])];
    for options in forms(mqfq(4, 16 * KIB), 2) {
        let mut env = Env::flat(options, &tenants);
        env.set_backlog("a", 4).dispatch(1000);
        let before = env.dispatched_bytes("a");
        env.set_backlog("b", 4).dispatch(1000);
        let (a, b) = (env.dispatched_bytes("a") - before, env.dispatched_bytes("b"));
        assert!(a.abs_diff(b) <= 2 * 16 * KIB + 2 * 4 * KIB, "{a} and {b} bytes after the sleep");
        env.drain();
    }
}
