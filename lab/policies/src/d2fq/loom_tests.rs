//! Model checks of global virtual time and of activation: one race each.
//!
//! Run: `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p mqfq-policies --release --lib loom`.

use super::*;
use mqfq_sched::sync::model::{Arc, model, thread};

/// So many grains.
fn at(grains: u64) -> VTime {
    VTime::from_raw(grains * Gvt::GRAIN.0)
}

const HOLDER: FlowId = FlowId(0);
const OTHER: FlowId = FlowId(1);

/// Global virtual time held by [`HOLDER`], at 100 grains.
fn held() -> Gvt {
    let gvt = Gvt::new(VTime::ZERO);
    gvt.update(HOLDER, at(100));
    gvt
}

/// Race: the holder moves up from 100 to 300 while a flow at 50 completes (Figure 9, update against update). The flow
/// behind has it at the end (G2): the holder's move does not run over it. Shown to fail if `update` stores without
/// comparing.
#[test]
fn loom_the_holders_move_does_not_run_over_a_flow_behind() {
    model(|| {
        let gvt = Arc::new(held());
        let theirs = gvt.clone();
        let holder = thread::spawn(move || theirs.update(HOLDER, at(300)));
        gvt.update(OTHER, at(50));
        holder.join().unwrap();
        assert_eq!((gvt.holder(), gvt.now()), (Some(OTHER), at(50)));
    });
}

/// Race: two flows behind the holder complete at once; the one farther behind has it at the end, in either order. Shown
/// to fail if a failed compare-and-exchange is not tried again.
#[test]
fn loom_of_two_flows_behind_the_one_farther_behind_has_it() {
    model(|| {
        let gvt = Arc::new(held());
        let theirs = gvt.clone();
        let farther = thread::spawn(move || theirs.update(FlowId(2), at(20)));
        gvt.update(OTHER, at(50));
        farther.join().unwrap();
        assert_eq!((gvt.holder(), gvt.now()), (Some(FlowId(2)), at(20)));
    });
}

/// Race: a worker releases on behalf of the holder, which it found inactive, while a flow behind takes global virtual
/// time (update against release): it is not taken off that flow. Shown to fail if the release stores without comparing.
#[test]
fn loom_a_release_is_not_of_who_took_it_meanwhile() {
    model(|| {
        let gvt = Arc::new(held());
        let theirs = gvt.clone();
        let behind = thread::spawn(move || theirs.update(OTHER, at(50)));
        gvt.release_inactive(|flow| flow == HOLDER);
        behind.join().unwrap();
        assert_eq!((gvt.holder(), gvt.now()), (Some(OTHER), at(50)));
    });
}

/// Two workers, two flows. [`HOLDER`] holds global virtual time and has been away since time 0, [`OTHER`] is far ahead
/// with a request in flight.
fn away() -> (Arc<D2fq>, [D2fqQueue; 2]) {
    let policy = Arc::new(D2fq::new(&PolicyOptions::new(KIND), 2, &[Weight::DEFAULT; 2]).unwrap());
    let [mut mine, mut theirs] = [0, 1].map(|n| policy.open_queue(HctxId(n), 1));
    policy.dispatched(&mut theirs, HOLDER, Cost(1 << 20), QueueClass::High, 0);
    complete(&policy, &mut theirs, HOLDER, 1 << 20, 0);
    policy.dispatched(&mut mine, OTHER, Cost(1 << 24), QueueClass::High, 0);
    (policy, [mine, theirs])
}

/// Past the grace period.
const NOW_NS: u64 = 10_000_000;

fn complete(policy: &D2fq, queue: &mut D2fqQueue, flow: FlowId, bytes: u64, now_ns: u64) {
    let done = Done { cost: Cost(bytes), ..Done::read(flow, mqfq_sched::policy::Handle(0)) };
    policy.complete(queue, done, DispatchToken::new(0), now_ns, &mut |_: HctxId| ());
}

/// Race: a worker looks, finds the holder inactive, releases it and takes global virtual time for a flow that is ahead,
/// while the holder comes back, is put at global virtual time and completes (release against activation). At the end
/// global virtual time is past neither flow (G3), and the returning flow has paid. Shown to fail if the release is
/// tried again after the word has moved, and if `update` does not release or `release_inactive` does not acquire.
#[test]
fn loom_a_holder_that_comes_back_is_not_left_behind() {
    model(|| {
        let (policy, [mut mine, mut theirs]) = away();
        let held = policy.global_vtime();
        let other = policy.clone();
        let returning = thread::spawn(move || {
            other.dispatched(&mut theirs, HOLDER, Cost(1 << 20), QueueClass::High, NOW_NS);
            // It looks at no holder: the other worker has looked.
            theirs.next_look_ns = u64::MAX;
            complete(&other, &mut theirs, HOLDER, 1 << 20, NOW_NS);
        });
        complete(&policy, &mut mine, OTHER, 1 << 24, NOW_NS);
        returning.join().unwrap();
        let (gvt, ahead) = (policy.global_vtime(), policy.flow_vtime(OTHER));
        let [returned, other] = [HOLDER, OTHER].map(|flow| policy.flow_vtime(flow));
        assert!(!returned.is_before(gvt) && !other.is_before(gvt), "{gvt:?} is past {returned:?} or {other:?}");
        let paid = VSpan::from_bytes(1 << 20);
        assert!(
            [held, ahead].map(|start| start.plus(paid)).contains(&returned),
            "{returned:?} after {held:?} or {ahead:?}"
        );
    });
}

/// Race: a flow that was away has its next requests at two workers at once, one of which completes (activation against
/// activation). It is put at global virtual time before a worker charges it, and no charge is lost (F2). Shown to fail
/// if it is put there by a store, if it counts as active before it is, if `charge` or `leave` does not release, and if
/// `enter` does not acquire.
#[test]
fn loom_a_flow_that_returns_at_two_workers_pays_from_global_virtual_time_on() {
    model(|| {
        let (policy, [mut mine, mut theirs]) = away();
        // Global virtual time moves on without it.
        complete(&policy, &mut mine, OTHER, 1 << 24, NOW_NS);
        let start = policy.global_vtime();
        let other = policy.clone();
        let returning = thread::spawn(move || {
            theirs.next_look_ns = u64::MAX;
            other.dispatched(&mut theirs, HOLDER, Cost(1 << 20), QueueClass::High, NOW_NS);
            complete(&other, &mut theirs, HOLDER, 1 << 20, NOW_NS);
        });
        policy.dispatched(&mut mine, HOLDER, Cost(1 << 20), QueueClass::High, NOW_NS);
        returning.join().unwrap();
        assert_eq!(policy.flow_vtime(HOLDER), start.plus(VSpan::from_bytes(1 << 20)));
        assert!(!policy.flow_vtime(OTHER).is_before(policy.global_vtime()));
    });
}
