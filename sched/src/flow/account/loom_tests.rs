//! Model checks of leases: one named race each. "Shown to fail" says which change of the code this model was seen to
//! catch.
//!
//! Checks of all of them, once the threads have ended: no two requests of the flow overlap (F2), the tags that one
//! queue cuts increase (I9), the credit and what is in hand are within k L (L1), and the flow was charged for what it
//! asked, to the last fraction (F3).
//!
//! Run: `cargo xtask loom`.

use super::*;
use crate::mindicator::Mindicator;
use crate::sync::Ordering::{Acquire, Release};
use crate::sync::model::{Arc, model, thread};
use crate::topology::{HctxId, Topology};

const FLOW: FlowId = FlowId(0);
/// A byte at the default weight.
const BYTE: u64 = 1024;
/// L: four bytes.
const LENGTH: VSpan = VSpan(4 * BYTE);

/// One queue that the flow has requests in.
struct Queue {
    lease: Lease,
    cut: Vec<Interval>,
    asked: u64,
}

impl Queue {
    /// The flow comes to this queue with a request of `cost` bytes.
    fn enter(flows: &FlowTable, cost: u64, now: VTime) -> Queue {
        let (interval, lease) = flows.charge_first(FLOW, Cost(cost), now);
        Queue { lease, cut: vec![interval], asked: cost }
    }

    fn submit(&mut self, flows: &FlowTable, cost: u64, now: VTime) {
        self.cut.push(flows.charge_leased(FLOW, Cost(cost), now, &mut self.lease, LENGTH));
        self.asked += cost;
    }

    /// The flow leaves this queue.
    fn leave(&mut self, flows: &FlowTable) {
        flows.give_back(FLOW, core::mem::take(&mut self.lease));
    }

    fn in_hand(&self) -> u64 {
        self.lease.left().0 + self.lease.refund
    }
}

/// A flow of `weight` and its queues: each has come with one byte, in this order.
fn scene<const K: usize>(weight: Weight) -> (Arc<FlowTable>, [Queue; K]) {
    let flows = Arc::new(FlowTable::new(&[weight], VTime::ZERO));
    let queues = core::array::from_fn(|_| Queue::enter(&flows, 1, VTime::ZERO));
    (flows, queues)
}

/// Runs the two parts on two threads and returns both queues.
fn race(
    flows: &Arc<FlowTable>,
    (mut first, on_first): (Queue, impl FnOnce(&FlowTable, &mut Queue)),
    (mut second, on_second): (Queue, impl FnOnce(&FlowTable, &mut Queue) + 'static),
) -> [Queue; 2] {
    let theirs = flows.clone();
    let other = thread::spawn(move || {
        on_second(&theirs, &mut second);
        second
    });
    on_first(flows, &mut first);
    [first, other.join().unwrap()]
}

fn assert_order(queues: &[Queue]) {
    for queue in queues {
        assert!(queue.cut.is_sorted_by(|a, b| !b.start_tag.is_before(a.start_tag)), "I9: {:?}", queue.cut);
    }
    let mut all: Vec<Interval> = queues.iter().flat_map(|queue| &queue.cut).copied().collect();
    all.retain(|interval| interval.span.0 > 0);
    all.sort_by_key(|interval| interval.start_tag.raw());
    assert!(all.is_sorted_by(|a, b| !b.start_tag.is_before(a.finish_tag())), "F2: {all:?}");
}

/// F2, I9, L1 and F3, of a flow that virtual time has not passed.
fn assert_accounts(flows: &FlowTable, queues: &[Queue]) {
    assert_order(queues);
    let charged = &flows.cell(FLOW).charged;
    // Relaxed: the other threads have been joined.
    let credit = charged.credit.load(Relaxed);
    let in_hand: u64 = queues.iter().map(Queue::in_hand).sum();
    assert!(credit + in_hand <= queues.len() as u64 * LENGTH.0, "L1: {credit} and {in_hand}");
    assert_paid(flows, queues);
}

/// F3, of a flow that virtual time has not passed.
fn assert_paid(flows: &FlowTable, queues: &[Queue]) {
    let charged = &flows.cell(FLOW).charged;
    // Relaxed: the other threads have been joined.
    let (finish, credit, carry) =
        (charged.finish.load(Relaxed), charged.credit.load(Relaxed), charged.carry.load(Relaxed));
    let in_hand: u64 = queues.iter().map(Queue::in_hand).sum();
    let carried: u64 = queues.iter().map(|queue| queue.lease.carry).sum::<u64>() + (carry & FRACTION_MASK);
    let asked: u64 = queues.iter().map(|queue| queue.asked).sum();
    let paid = u128::from(finish - credit - in_hand) << FRACTION_BITS;
    let rate = flows.cell(FLOW).rate.units_per_cost.load(Relaxed);
    assert_eq!(paid + u128::from(carried), u128::from(asked) * u128::from(rate), "F3");
}

/// Race: two queues take a lease at once. Shown to fail if `renew` adds by a load and a store.
#[test]
fn loom_a_lease_taken_beside_a_lease() {
    model(|| {
        let (flows, [zero, one]) = scene(Weight::DEFAULT);
        let part = |flows: &FlowTable, queue: &mut Queue| {
            queue.submit(flows, 1, VTime::ZERO);
            queue.submit(flows, 4, VTime::ZERO);
        };
        let queues = race(&flows, (zero, part), (one, part));
        assert_accounts(&flows, &queues);
    });
}

/// Race: one queue gives back what lies last on the axis while another takes. Shown to fail if `put_back` looks whether
/// it is the last and then stores, and if it adds no credit where the exchange fails.
#[test]
fn loom_a_lease_taken_beside_a_lease_given_back() {
    model(|| {
        let (flows, [zero, mut one]) = scene(Weight::DEFAULT);
        one.submit(&flows, 1, VTime::ZERO);
        let queues = race(
            &flows,
            (zero, |flows: &FlowTable, queue: &mut Queue| {
                queue.submit(flows, 1, VTime::ZERO);
                queue.submit(flows, 4, VTime::ZERO);
            }),
            (one, |flows: &FlowTable, queue: &mut Queue| queue.leave(flows)),
        );
        assert_accounts(&flows, &queues);
    });
}

/// Race: two queues give back at once, one of them the last on the axis; what the other leaves is credit. Both keep
/// fractions, which may make a grain together. Shown to fail if credit is added by a load and a store (with a third
/// queue behind both), and if the fractions are.
#[test]
fn loom_a_lease_given_back_beside_a_lease_given_back() {
    for has_third in [false, true] {
        model(move || {
            // Three bytes at weight 700 are 6.857 grains; each byte 2.29.
            let (flows, [mut zero, mut one, mut two]) = scene(Weight::new(700).unwrap());
            zero.submit(&flows, 3, VTime::ZERO);
            one.submit(&flows, 3, VTime::ZERO);
            if has_third {
                two.submit(&flows, 3, VTime::ZERO);
            }
            let leave = |flows: &FlowTable, queue: &mut Queue| queue.leave(flows);
            let [zero, one] = race(&flows, (zero, leave), (one, leave));
            assert_accounts(&flows, &[zero, one, two]);
        });
    }
}

/// Race: a queue leaves a hole while another, that is out of its lease, takes credit first. Shown to fail if
/// `take_credit` stores what it computed.
#[test]
fn loom_credit_taken_beside_credit_given() {
    model(|| {
        let (flows, [mut zero, mut one, mut two]) = scene(Weight::DEFAULT);
        zero.submit(&flows, 2, VTime::ZERO);
        one.submit(&flows, 2, VTime::ZERO);
        two.submit(&flows, 1, VTime::ZERO);
        // Some credit is there: two bytes of queue 1, which comes back.
        one.leave(&flows);
        let [zero, one] = race(
            &flows,
            (zero, |flows: &FlowTable, queue: &mut Queue| queue.leave(flows)),
            (one, |flows: &FlowTable, queue: &mut Queue| queue.submit(flows, 3, VTime::ZERO)),
        );
        assert_accounts(&flows, &[zero, one, two]);
    });
}

/// Race: two queues take from one credit. Shown to fail if `take_credit` stores what it computed.
#[test]
fn loom_credit_is_taken_once() {
    model(|| {
        let (flows, [zero, mut one, two]) = scene(Weight::DEFAULT);
        let mut behind = Queue::enter(&flows, 1, VTime::ZERO);
        one.submit(&flows, 1, VTime::ZERO);
        behind.submit(&flows, 1, VTime::ZERO);
        // Three bytes.
        one.leave(&flows);
        let part = |flows: &FlowTable, queue: &mut Queue| queue.submit(flows, 2, VTime::ZERO);
        let [zero, two] = race(&flows, (zero, part), (two, part));
        assert_accounts(&flows, &[zero, one, two, behind]);
    });
}

/// Race: a queue takes all of its lease from credit, while the one whose lease is last on the axis gives it back. The
/// first has requests staged, and must not get an earlier tag next (L3).
/// Shown to fail if `renew` takes no grain from the axis.
#[test]
fn loom_a_lease_out_of_credit_beside_the_last_given_back() {
    model(|| {
        let (flows, [mut zero, mut one, mut two]) = scene(Weight::DEFAULT);
        for queue in [&mut zero, &mut two, &mut one] {
            queue.submit(&flows, 1, VTime::ZERO);
        }
        zero.submit(&flows, 2, VTime::ZERO);
        // Three bytes of credit; queue 0 needs three bytes for its lease of four, one of which it has.
        two.leave(&flows);
        let [zero, one] = race(
            &flows,
            (zero, |flows: &FlowTable, queue: &mut Queue| (0..3).for_each(|_| queue.submit(flows, 2, VTime::ZERO))),
            (one, |flows: &FlowTable, queue: &mut Queue| queue.leave(flows)),
        );
        assert_accounts(&flows, &[zero, one, two]);
    });
}

/// Race: the flow was idle and virtual time is ahead of it: two queues catch up, and one of them takes a lease at once.
/// No tag lies before the virtual time that was passed in (F1). Shown to fail if `raise` stores instead of exchanging.
#[test]
fn loom_catching_up_beside_catching_up_and_a_lease() {
    model(|| {
        let flows = Arc::new(FlowTable::new(&[Weight::DEFAULT], VTime::ZERO));
        let enter = |flows: &FlowTable, now: u64| {
            let now = VTime::from_raw(now);
            let mut queue = Queue::enter(flows, 1, now);
            queue.submit(flows, 1, now);
            assert!(queue.cut.iter().all(|interval| !interval.start_tag.is_before(now)), "F1: {:?}", queue.cut);
            queue
        };
        let theirs = flows.clone();
        let other = thread::spawn(move || enter(&theirs, 64 * BYTE));
        let ours = enter(&flows, 80 * BYTE);
        assert_order(&[ours, other.join().unwrap()]);
    });
}

/// Race: a queue that was stopped half-way gives back a lease that virtual time has passed, while another catches up.
/// The finish tag does not follow it back (F1), and the credit that may be left of it is within L1.
/// Shown to fail if `put_back` stores.
#[test]
fn loom_catching_up_beside_a_lease_given_back() {
    model(|| {
        let (flows, [mut zero]) = scene(Weight::DEFAULT);
        zero.submit(&flows, 1, VTime::ZERO);
        let theirs = flows.clone();
        let leaving = thread::spawn(move || {
            zero.leave(&theirs);
            zero
        });
        let now = VTime::from_raw(80 * BYTE);
        let mut one = Queue::enter(&flows, 1, now);
        one.submit(&flows, 1, now);
        assert!(one.cut.iter().all(|interval| !interval.start_tag.is_before(now)), "F1: {:?}", one.cut);
        let queues = [leaving.join().unwrap(), one];
        assert_order(&queues);
        // Relaxed: the other thread has been joined.
        let credit = flows.cell(FLOW).charged.credit.load(Relaxed);
        assert!(credit + queues[1].in_hand() <= 2 * LENGTH.0, "L1: {credit} and {}", queues[1].in_hand());
    });
}

/// A flow whose queue 0 has leased [2, 5) behind a request that starts at byte 1, and another flow at byte 4.
fn lease_that_holds_virtual_time_back() -> (Arc<FlowTable>, Arc<Mindicator>, Queue) {
    let tree = Arc::new(Mindicator::new(&Topology::flat(2), VTime::ZERO));
    let (flows, [mut zero]) = scene(Weight::DEFAULT);
    zero.submit(&flows, 1, VTime::ZERO);
    tree.publish(HctxId(0), VTime::from_raw(BYTE));
    tree.publish(HctxId(1), VTime::from_raw(4 * BYTE));
    tree.query();
    (flows, tree, zero)
}

/// Race: a queue gives its lease back, goes, and so moves virtual time past the lease's unused part; another queue
/// reads that virtual time and charges. It must see the finish tag that was put back, or it would not raise it (F1).
/// Shown to fail with Relaxed in place of the Acquire in `Mindicator::global_vtime`.
#[test]
fn loom_virtual_time_that_a_lease_held_back_comes_with_the_finish_tag() {
    model(|| {
        let (flows, tree, mut zero) = lease_that_holds_virtual_time_back();
        let (theirs, their_tree) = (flows.clone(), tree.clone());
        let leaving = thread::spawn(move || {
            zero.leave(&theirs);
            their_tree.depart(HctxId(0));
            their_tree.query();
            zero
        });
        let now = tree.global_vtime();
        let one = Queue::enter(&flows, 1, now);
        assert!(!one.cut[0].start_tag.is_before(now), "F1: {:?} at {now:?}", one.cut);
        assert_order(&[leaving.join().unwrap(), one]);
    });
}

/// Race: as above, but a third thread moves virtual time, after it has seen at the root that the queue is gone. Shown
/// to fail with Relaxed in place of the Acquire at the root in `Mindicator::query`, or without the Release in its
/// compare-and-exchange, or without the Release with which `raise_node` changes the root.
#[test]
fn loom_virtual_time_that_a_third_moved_comes_with_the_finish_tag() {
    model(|| {
        let (flows, tree, mut zero) = lease_that_holds_virtual_time_back();
        let (theirs, their_tree) = (flows.clone(), tree.clone());
        let leaving = thread::spawn(move || {
            zero.leave(&theirs);
            their_tree.depart(HctxId(0));
            zero
        });
        let third = tree.clone();
        let moving = thread::spawn(move || third.query());
        let now = tree.global_vtime();
        let one = Queue::enter(&flows, 1, now);
        assert!(!one.cut[0].start_tag.is_before(now), "F1: {:?} at {now:?}", one.cut);
        assert_order(&[leaving.join().unwrap(), one]);
        moving.join().unwrap();
    });
}

/// A flow is removed while a worker completes the last of its requests: the next flow in its place starts at global
/// virtual time and inherits nothing (I7), whatever the order.
///
/// Shown to fail: `retire` without the look whether the worker has reported; and with a Relaxed look.
#[test]
fn loom_flow_in_a_place_that_was_freed_inherits_nothing_of_the_one_before() {
    model(|| {
        let (flows, [mut staying, mut leaving]) = scene::<2>(Weight::DEFAULT);
        // The rest of its lease when it leaves is credit, since the other queue has taken after it.
        leaving.submit(&flows, 1, VTime::ZERO);
        staying.submit(&flows, 3, VTime::ZERO);
        let has_left = Arc::new(AtomicU32::new(0));
        let (theirs, reports) = (flows.clone(), has_left.clone());
        let worker = thread::spawn(move || {
            leaving.leave(&theirs);
            reports.store(1, Release);
        });
        staying.leave(&flows);
        let now = VTime::from_raw(BYTE);
        if has_left.load(Acquire) == 1 {
            flows.retire(FLOW, now);
            let next = Queue::enter(&flows, 2, now);
            assert_eq!(next.cut[0].start_tag, now, "neither a debt nor an advance");
            assert_eq!((flows.cell(FLOW).charged.credit.load(Relaxed), next.in_hand()), (0, 0));
        }
        worker.join().unwrap();
    });
}

/// Race: a debt and a refund beside leases that are taken and given back, with credit to use. Shown to fail if `owe`
/// takes credit by a load and a store, and if a refund is added so.
#[test]
fn loom_corrections_beside_leases_lose_nothing() {
    model(|| {
        let (flows, [mut zero, mut one]) = scene(Weight::DEFAULT);
        one.submit(&flows, 1, VTime::ZERO);
        zero.submit(&flows, 1, VTime::ZERO);
        flows.correct(FLOW, Cost(2), Cost(1), VTime::ZERO);
        zero.asked -= 1;
        let queues = race(
            &flows,
            (zero, |flows: &FlowTable, queue: &mut Queue| {
                flows.correct(FLOW, Cost(1), Cost(3), VTime::ZERO);
                queue.asked += 2;
                flows.correct(FLOW, Cost(2), Cost(1), VTime::ZERO);
                queue.asked -= 1;
            }),
            (one, |flows: &FlowTable, queue: &mut Queue| {
                queue.submit(flows, 5, VTime::ZERO);
                queue.leave(flows);
            }),
        );
        assert_paid(&flows, &queues);
    });
}

/// Race: two threads take back what was charged last on the axis and what came before it. Shown to fail if the finish
/// tag is lowered by a load and a store.
#[test]
fn loom_taken_back_beside_a_charge_is_credit_or_axis() {
    model(|| {
        let mut flows = FlowTable::new(&[Weight::DEFAULT], VTime::ZERO);
        flows.charge_late(false);
        let flows = Arc::new(flows);
        let [first, second] = [2, 3].map(|cost| flows.charge(FLOW, Cost(cost), VTime::ZERO));
        let theirs = flows.clone();
        let other = thread::spawn(move || theirs.charge(FLOW, Cost(4), VTime::ZERO));
        flows.take_back(FLOW, (Cost(3), second), true, None, VTime::ZERO);
        flows.take_back(FLOW, (Cost(2), first), true, None, VTime::ZERO);
        let third = other.join().unwrap();
        let charged = &flows.cell(FLOW).charged;
        // Relaxed, both: the other thread has been joined.
        let (finish, credit) = (charged.finish.load(Relaxed), charged.credit.load(Relaxed));
        assert!(finish >= third.finish_tag().raw(), "F2: {finish} in {third:?}");
        // Credit that the third one used is missing in its length.
        assert_eq!(finish - credit, 4 * BYTE, "F3: {finish}, credit {credit}, {third:?}");
    });
}
