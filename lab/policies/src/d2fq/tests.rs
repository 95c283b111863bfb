//! Figures 9 and 10 step by step, the faults that the published code is known for, and an oracle on generated
//! histories.

use super::*;
use mqfq_sched::cost::COST_MAX;
use mqfq_sched::policy::OwnOptions;
use mqfq_sched::topology::HCTXS_MAX;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// Past the default grace period.
const LATER: u64 = 3 * MS;

fn weights(weights: &[u64]) -> Vec<Weight> {
    weights.iter().map(|&weight| Weight::new(weight).unwrap()).collect()
}

/// A policy with its queues, and a time.
struct Rig {
    policy: D2fq,
    queues: Vec<D2fqQueue>,
    now_ns: u64,
}

impl Rig {
    fn with(options: PolicyOptions, hctx_count: u16, flows: &[Weight]) -> Rig {
        let policy = D2fq::new(&options, usize::from(hctx_count), flows).unwrap();
        let queues = (0..hctx_count).map(|n| policy.open_queue(HctxId(n), 16)).collect();
        Rig { policy, queues, now_ns: 0 }
    }

    fn new(hctx_count: u16, flows: &[u64]) -> Rig {
        Rig::with(PolicyOptions::new(KIND), hctx_count, &weights(flows))
    }

    fn class(&self, queue: usize, flow: u32) -> QueueClass {
        self.policy.class_of(&self.queues[queue], FlowId(flow), self.now_ns)
    }

    fn submit(&mut self, queue: usize, flow: u32, bytes: u64) -> QueueClass {
        let class = self.class(queue, flow);
        self.policy.dispatched(&mut self.queues[queue], FlowId(flow), Cost(bytes), class, self.now_ns);
        class
    }

    fn complete(&mut self, queue: usize, flow: u32, bytes: u64) {
        let done = Done { cost: Cost(bytes), ..Done::read(FlowId(flow), mqfq_sched::policy::Handle(0)) };
        let token = DispatchToken::new(0);
        self.policy.complete(&mut self.queues[queue], done, token, self.now_ns, &mut |_: HctxId| ());
    }

    /// One request, from submission to completion.
    fn serve(&mut self, queue: usize, flow: u32, bytes: u64) -> QueueClass {
        let class = self.submit(queue, flow, bytes);
        self.complete(queue, flow, bytes);
        class
    }

    fn vt(&self, flow: u32) -> VTime {
        self.policy.flow_vtime(FlowId(flow))
    }

    fn gvt(&self) -> VTime {
        self.policy.global_vtime()
    }

    fn holder(&self) -> Option<u32> {
        self.policy.gvt().holder().map(|flow| flow.0)
    }

    /// How far a flow is ahead of gvt, in bytes at the default weight.
    fn ahead_bytes(&self, flow: u32) -> i64 {
        self.vt(flow).since(self.gvt()) / 1024
    }
}

#[test]
fn the_class_follows_the_gap_at_exactly_the_thresholds() {
    // tau_m = 4 MiB, tau_l = 8 MiB. Flow 0 stays at gvt with a request in flight, and flow 1 starts there.
    use QueueClass::{High, Low, Medium};
    let mut rig = Rig::new(1, &[100, 100]);
    rig.submit(0, 0, 4096);
    rig.serve(0, 0, 4096);
    rig.submit(0, 1, 1);
    assert_eq!((rig.vt(1), rig.holder()), (rig.gvt(), Some(0)));
    let mut at = Vec::new();
    for bytes in [0, 4 * MIB - 1, 1, 4 * MIB - 1, 1, 1 << 40] {
        rig.serve(0, 1, bytes);
        at.push((rig.ahead_bytes(1), rig.class(0, 1)));
    }
    let expected = [(0, High), (4 * MIB - 1, High), (4 * MIB, Medium), (8 * MIB - 1, Medium), (8 * MIB, Low)];
    assert_eq!(at[..5], expected.map(|(bytes, class)| (bytes as i64, class)));
    assert_eq!((at[5].1, rig.class(0, 0)), (Low, High));
}

#[test]
fn thresholds_in_bytes_are_in_proportion_to_the_weight() {
    // The paper's 8 MB at weight 8 are 1 MB at weight 1. Here 8 MiB at 100: 1 MiB at 12.5; 800 and 50 are 64 and 4 MiB.
    for (weight, low_bytes) in [(100, 8 * MIB), (50, 4 * MIB), (800, 64 * MIB), (1, 83_886)] {
        let mut rig = Rig::new(1, &[100, weight]);
        rig.submit(0, 0, 4096);
        rig.submit(0, 0, 4096);
        rig.complete(0, 0, 1);
        rig.submit(0, 1, 1);
        let (mut served, mut medium_from, mut low_from) = (0, None, None);
        let step = low_bytes / 64;
        while low_from.is_none() {
            match rig.serve(0, 1, step) {
                QueueClass::High => (),
                QueueClass::Medium => medium_from = medium_from.or(Some(served)),
                QueueClass::Low => low_from = Some(served),
            }
            served += step;
        }
        let (medium_from, low_from) = (medium_from.unwrap(), low_from.unwrap());
        assert!(low_from.abs_diff(low_bytes) <= step, "{low_from} bytes at weight {weight}");
        assert!(medium_from.abs_diff(low_bytes / 2) <= step, "{medium_from} bytes at weight {weight}");
    }
}

#[test]
fn a_flow_behind_the_holder_gets_high_and_takes_global_virtual_time() {
    // An unsigned gap would be huge here.
    let mut rig = Rig::new(1, &[100, 100]);
    rig.submit(0, 1, 4096);
    rig.submit(0, 0, 4096);
    for _ in 0..64 {
        rig.serve(0, 0, MIB);
    }
    assert_eq!((rig.holder(), rig.ahead_bytes(0), rig.ahead_bytes(1)), (Some(0), 0, -64 * MIB as i64));
    assert_eq!(rig.class(0, 1), QueueClass::High);
    rig.complete(0, 1, 4096);
    assert_eq!((rig.holder(), rig.gvt()), (Some(1), rig.vt(1)));
    assert_eq!(rig.class(0, 0), QueueClass::Low);
}

#[test]
fn flows_65536_apart_are_not_taken_for_each_other() {
    const APART: u32 = 65_536;
    let mut rig = Rig::new(1, &vec![100; APART as usize + 1]);
    rig.submit(0, 0, 4096);
    rig.submit(0, APART, 4096);
    rig.complete(0, 0, 4096);
    assert_eq!(rig.holder(), Some(0));
    // Ahead of the holder, and not the holder: gvt stays.
    rig.serve(0, APART, MIB);
    rig.submit(0, APART, 4096);
    assert_eq!((rig.holder(), rig.gvt()), (Some(0), rig.vt(0)));
    // Nor does its release release the holder.
    rig.policy.gvt().release_inactive(|flow| flow == FlowId(APART));
    assert_eq!(rig.holder(), Some(0));
    rig.policy.gvt().release_inactive(|flow| flow == FlowId(0));
    assert_eq!(rig.holder(), None);
}

#[test]
fn the_last_flow_with_a_name_of_its_own_is_told_from_nobody() {
    let gvt = Gvt::new(VTime::ZERO);
    let last = FlowId(Gvt::FLOWS_MAX as u32 - 1);
    gvt.update(last, VTime::from_raw(1 << 30));
    assert_eq!(gvt.holder(), Some(last));
    // It has a holder, so a flow ahead does not take it.
    gvt.update(FlowId(0), VTime::from_raw(1 << 31));
    assert_eq!((gvt.holder(), gvt.now()), (Some(last), VTime::from_raw(1 << 30)));
    gvt.release_inactive(|flow| flow == last);
    assert_eq!((gvt.holder(), gvt.now()), (None, VTime::from_raw(1 << 30)));
}

#[test]
fn more_flows_than_there_are_names_are_refused() {
    let refused = |count: usize| {
        let flows = vec![Weight::DEFAULT; count];
        D2fq::new(&PolicyOptions::new(KIND), 1, &flows).err().map(|error| error.to_string())
    };
    assert_eq!(refused(131_072).as_deref(), Some("131072 flows are too many for d2fq, allowed is up to 131071"));
    assert_eq!(refused(131_071), None);
    assert_eq!(refused(0).as_deref(), Some("a scheduler needs at least one flow"));
}

#[test]
fn a_holder_that_never_comes_back_gives_global_virtual_time_up() {
    let mut rig = Rig::new(2, &[100, 100]);
    rig.submit(0, 1, 4096);
    rig.serve(1, 0, 4096);
    assert_eq!(rig.holder(), Some(0));
    // Within the grace period its place is kept, and the other runs ahead.
    rig.now_ns = 2 * MS;
    rig.serve(0, 1, 16 * MIB);
    assert_eq!((rig.holder(), rig.class(0, 1)), (Some(0), QueueClass::Low));
    // After it the next look of any worker takes it off.
    rig.now_ns = 2 * MS + MS / 2 + 1;
    rig.serve(0, 1, 4096);
    assert_eq!((rig.holder(), rig.gvt(), rig.class(0, 1)), (Some(1), rig.vt(1), QueueClass::High));
}

#[test]
fn a_holder_that_returns_in_time_keeps_its_place() {
    let mut rig = Rig::new(2, &[100, 100]);
    rig.submit(0, 1, 4096);
    rig.serve(1, 0, 4096);
    let held = rig.gvt();
    for _ in 0..10 {
        // It thinks for 2 ms each time, and the other looks each time.
        rig.now_ns += 2 * MS;
        rig.serve(0, 1, 16 * MIB);
        assert_eq!((rig.holder(), rig.class(0, 1)), (Some(0), QueueClass::Low));
        assert_eq!(rig.serve(1, 0, 4096), QueueClass::High);
    }
    assert_eq!(rig.vt(0).since(held), 10 * 4096 * 1024, "it pays for what it got, and was not put anywhere");
}

#[test]
fn a_flow_that_was_away_starts_at_global_virtual_time() {
    let mut rig = Rig::new(1, &[100, 100, 100]);
    rig.submit(0, 0, 4096);
    rig.serve(0, 0, 64 * MIB);
    rig.submit(0, 2, 4096);
    rig.serve(0, 2, 16 * MIB);
    rig.complete(0, 2, 4096);
    assert_eq!(rig.class(0, 2), QueueClass::Low);
    rig.now_ns += LATER;
    // Neither what flow 1 did not use nor what flow 2 got ahead counts any more.
    for flow in [1, 2] {
        assert_eq!(rig.submit(0, flow, 4096), QueueClass::High);
        assert_eq!(rig.vt(flow), rig.gvt());
    }
}

#[test]
fn what_a_worker_has_in_flight_keeps_a_flow_active_at_all_workers() {
    let mut rig = Rig::new(2, &[100, 100]);
    rig.submit(0, 0, 4096);
    rig.submit(1, 1, 4096);
    rig.serve(1, 1, 16 * MIB);
    rig.complete(0, 0, 4096);
    rig.submit(0, 0, 4096);
    rig.now_ns += 100 * LATER;
    assert_eq!(rig.class(0, 1), QueueClass::Low);
    assert!(rig.policy.is_active(FlowId(1), rig.now_ns));
    rig.complete(1, 1, 4096);
    rig.now_ns += LATER;
    assert_eq!(rig.class(0, 1), QueueClass::High);
    assert!(!rig.policy.is_active(FlowId(1), rig.now_ns));
}

/// At once, not after a grace period, and on each queue.
#[test]
fn the_next_flow_in_a_place_inherits_nothing() {
    // 512 bytes at weight 10,000 are 5242.88 units: a fraction is carried on both queues.
    let mut rig = Rig::new(2, &[100, 10_000, 10_000]);
    rig.submit(0, 0, 4096);
    rig.serve(0, 0, 64 * MIB);
    for flow in [1, 2] {
        for queue in 0..2 {
            rig.serve(queue, flow, 2048 * MIB);
            rig.serve(queue, flow, 512);
        }
    }
    let of_other = (rig.vt(2), rig.policy.class_bytes(FlowId(2)));
    assert_eq!(rig.class(0, 1), QueueClass::Low);
    assert!(rig.policy.retire(FlowId(1)));
    assert_eq!((rig.class(0, 1), rig.policy.class_bytes(FlowId(1))), (QueueClass::High, [0; 3]));
    for queue in 0..2 {
        let before = if queue == 0 { rig.gvt() } else { rig.vt(1) };
        rig.serve(queue, 1, 512);
        assert_eq!(rig.vt(1).since(before), 5242, "queue {queue}: no fraction was left");
    }
    assert_eq!((rig.vt(2), rig.policy.class_bytes(FlowId(2))), of_other, "the flow beside it stays as it was");
}

#[test]
fn a_weight_changes_what_completions_from_then_on_charge() {
    let mut rig = Rig::new(1, &[100]);
    rig.submit(0, 0, MIB);
    rig.submit(0, 0, MIB);
    rig.complete(0, 0, MIB);
    let before = rig.vt(0);
    rig.policy.set_weight(FlowId(0), Weight::new(400).unwrap());
    assert_eq!(rig.vt(0), before, "virtual time does not jump");
    rig.complete(0, 0, MIB);
    assert_eq!((before.since(VTime::ZERO), rig.vt(0).since(before)), (1 << 30, 1 << 28));
}

#[test]
fn nothing_is_lost_to_rounding() {
    // 512 bytes at weight 10,000 are 5242.88 units, 3 at 700 are 438.86: the fraction is carried.
    for (weight, bytes, exact) in [(10_000, 512, 524_288_000u64), (700, 3, 43_885_714)] {
        let mut rig = Rig::new(1, &[weight]);
        for _ in 0..100_000 {
            rig.serve(0, 0, bytes);
        }
        assert!(rig.vt(0).raw().abs_diff(exact) <= 1, "{:?} instead of {exact}", rig.vt(0));
    }
}

#[test]
fn classes_are_the_same_across_the_wrap() {
    let classes = |start: VTime| {
        let options = PolicyOptions { start, ..PolicyOptions::new(KIND) };
        let mut rig = Rig::with(options, 1, &weights(&[100, 300]));
        rig.submit(0, 0, 4096);
        rig.submit(0, 1, 4096);
        (0..400).map(|n| rig.serve(0, u32::from(n % 4 == 0), MIB / 2)).collect::<Vec<_>>()
    };
    let at_zero = classes(VTime::ZERO);
    for class in QueueClass::ALL {
        assert!(at_zero.contains(&class), "the test means to use all classes");
    }
    for before in [1, 1 << 20, 1 << 30, 20 << 30] {
        assert_eq!(classes(VTime::from_raw(0u64.wrapping_sub(before))), at_zero);
    }
}

#[test]
fn a_flow_far_ahead_stays_where_it_compares() {
    for start in [VTime::ZERO, VTime::from_raw(u64::MAX - 5), VTime::from_raw(1 << 63)] {
        let options = PolicyOptions { start, ..PolicyOptions::new(KIND) };
        let mut rig = Rig::with(options, 1, &weights(&[100, 1]));
        rig.submit(0, 0, 4096);
        rig.serve(0, 0, 4096);
        rig.submit(0, 1, 1);
        // 1 TiB at weight 1 is nearly 2^57 units: 16 of them would be a quarter of what compares, 64 all of it.
        for n in 0..300 {
            rig.serve(0, 1, COST_MAX.0);
            let gap = rig.vt(1).since(rig.gvt());
            assert!(gap > 0 && gap <= DISTANCE_MAX.0 as i64, "{gap} after {n}");
            assert_eq!(rig.class(0, 1), QueueClass::Low);
        }
        assert_eq!(rig.vt(1).since(rig.gvt()), DISTANCE_MAX.0 as i64);
        // And with requests that are added blindly.
        for _ in 0..1000 {
            rig.serve(0, 1, 10 << 30);
        }
        assert_eq!(rig.vt(1).since(rig.gvt()), DISTANCE_MAX.0 as i64);
    }
}

#[test]
fn a_flow_far_behind_is_taken_along() {
    // Flow 1 has one request that does not come back, while flow 0 goes round the circle four times.
    let mut rig = Rig::new(1, &[1, 100]);
    rig.submit(0, 1, 4096);
    rig.submit(0, 0, 4096);
    let mut turns = 0;
    let mut last = rig.gvt();
    while turns < 4 {
        rig.serve(0, 0, COST_MAX.0);
        rig.now_ns += MS;
        assert_eq!(rig.class(0, 1), QueueClass::High);
        assert_eq!(rig.class(0, 0), QueueClass::High);
        turns += u32::from(rig.gvt().raw() < last.raw());
        last = rig.gvt();
        let behind = rig.gvt().since(rig.vt(1));
        // Distance left at a look, plus an eighth of the circle until the next, and the charge of two requests.
        assert!((0..=2 * DISTANCE_MAX.0 as i64 + (1 << 58)).contains(&behind), "{behind} units behind");
    }
    rig.complete(0, 1, 4096);
    assert_eq!(rig.holder(), Some(1));
    assert_eq!(rig.class(0, 0), QueueClass::Low);
}

#[test]
fn what_each_class_was_used_for_is_told() {
    let mut rig = Rig::new(2, &[100, 100, 100, 100, 100, 100]);
    for (queue, bytes, class) in [(0, 1, QueueClass::High), (1, 20, QueueClass::Medium), (1, 300, QueueClass::Low)] {
        for flow in [0, 5] {
            let bytes = bytes * u64::from(flow + 1);
            rig.policy.dispatched(&mut rig.queues[queue], FlowId(flow), Cost(bytes), class, 0);
        }
    }
    rig.policy.dispatched(&mut rig.queues[0], FlowId(0), Cost(4000), QueueClass::Low, 0);
    assert_eq!(rig.policy.class_bytes(FlowId(0)), [1, 20, 4300]);
    assert_eq!(rig.policy.class_bytes(FlowId(5)), [6, 120, 1800]);
    assert_eq!(rig.policy.class_bytes(FlowId(4)), [0; 3]);
}

#[test]
fn one_worker_adjusts_once_per_period() {
    let mut rig = Rig::new(2, &[100]);
    let adjust = |rig: &mut Rig, queue: usize, now_ns: u64| rig.policy.adjust(&mut rig.queues[queue], now_ns);
    let first = ClassWeights { high: 256, medium: 16, low: 1 };
    assert_eq!(adjust(&mut rig, 1, 0), Some(first));
    assert_eq!(adjust(&mut rig, 0, 0), None);
    assert_eq!((rig.policy.ratio(), rig.policy.class_weights()), (256, first));
    rig.serve(0, 0, 4096);
    assert_eq!(adjust(&mut rig, 0, 999 * MS), None);
    assert_eq!(adjust(&mut rig, 0, 1000 * MS), Some(ClassWeights::EQUAL));
    assert_eq!((adjust(&mut rig, 1, 1001 * MS), rig.policy.ratio()), (None, 1));
}

#[test]
fn a_flow_that_was_put_at_global_virtual_time_says_nothing_of_the_ratio() {
    // Flow 1 is active when the first period ends and when the second does, both times 20 MiB ahead of flow 0. Equation
    // 2 knows what it grew by in between if it stayed, and not if it was away and was put at gvt.
    let ratio = |away_ns: u64| {
        let mut rig = Rig::new(1, &[100, 100]);
        let adjust = |rig: &mut Rig| {
            let now_ns = rig.now_ns;
            rig.policy.adjust(&mut rig.queues[0], now_ns)
        };
        adjust(&mut rig);
        rig.now_ns = 1000 * MS;
        (0..2).for_each(|flow| assert_eq!(rig.serve(0, flow, 4096), QueueClass::High));
        assert_eq!((adjust(&mut rig), rig.policy.ratio()), (Some(ClassWeights::EQUAL), 1));
        // Flow 0 keeps a request in flight, so that gvt is its virtual time.
        rig.submit(0, 0, 4096);
        rig.serve(0, 0, MIB);
        rig.now_ns += away_ns;
        rig.submit(0, 1, MIB);
        rig.serve(0, 1, 20 * MIB);
        rig.now_ns = 2000 * MS;
        assert!(rig.ahead_bytes(1) >= 16 * MIB as i64, "tau_w");
        adjust(&mut rig);
        rig.policy.ratio()
    };
    // 20 times 1 MiB, rounded down, and one.
    assert_eq!(ratio(0), 21);
    assert_eq!(ratio(LATER), 1);
}

#[test]
fn a_fixed_ratio_stays() {
    let d2fq = D2fqOptions { class_ratio: 3, ..D2fqOptions::DEFAULT };
    let own = OwnOptions::of(&d2fq);
    let mut rig = Rig::with(PolicyOptions { own, ..PolicyOptions::new(KIND) }, 1, &weights(&[100]));
    let weights = ClassWeights { high: 3, medium: 2, low: 1 };
    assert_eq!(rig.policy.adjust(&mut rig.queues[0], 5), Some(weights));
    rig.serve(0, 0, 4096);
    assert_eq!((rig.policy.adjust(&mut rig.queues[0], u64::MAX - 1), rig.policy.ratio()), (None, 3));
}

#[test]
fn thresholds_follow_the_one_that_is_set() {
    let thresholds = |low_threshold_bytes: u64| {
        let d2fq = D2fqOptions { low_threshold_bytes, ..D2fqOptions::DEFAULT };
        let own = OwnOptions::of(&d2fq);
        let options = PolicyOptions { own, ..PolicyOptions::new(KIND) };
        let Thresholds { medium, low, unfair } = D2fq::new(&options, 1, &[Weight::DEFAULT]).unwrap().thresholds();
        [medium, low, unfair].map(VSpan::bytes)
    };
    assert_eq!(thresholds(8 * MIB), [4 * MIB, 8 * MIB, 16 * MIB]);
    assert_eq!(thresholds(D2fqOptions::LOW_THRESHOLD_MAX_BYTES), [1 << 39, 1 << 40, 1 << 41]);
}

#[test]
#[should_panic(expected = "flow 1 does not exist, there are 1")]
fn an_unknown_flow_is_named() {
    Rig::new(1, &[100]).class(0, 1);
}

#[test]
fn as_many_queues_as_there_may_be() {
    let mut rig = Rig::new(HCTXS_MAX as u16, &[100, 100, 100, 100, 100]);
    for queue in 0..HCTXS_MAX {
        rig.serve(queue, 4, 1000);
    }
    assert_eq!(rig.policy.class_bytes(FlowId(4)), [1000 * HCTXS_MAX as u64, 0, 0]);
}

#[test]
fn with_a_quantum_the_word_is_written_once_per_quantum_and_is_off_by_no_more() {
    let q = VSpan::from_bytes(64 << 10);
    let at = |bytes: u64| VTime::ZERO.plus(VSpan::from_bytes(bytes));
    let gvt = Gvt::with_quantum(VTime::ZERO, q);
    assert_eq!(gvt.update(FlowId(1), at(4096)), VSpan::from_bytes(4096).0 as i64, "nobody held it: taken at once");
    assert_eq!((gvt.now(), gvt.holder()), (at(4096), Some(FlowId(1))));
    // The holder goes on by 16 pages and is not written; by one more, it is.
    for page in 2..=17 {
        gvt.update(FlowId(1), at(page * 4096));
        assert_eq!(gvt.now(), at(4096), "page {page}");
    }
    gvt.update(FlowId(1), at(18 * 4096));
    assert_eq!(gvt.now(), at(18 * 4096));
    // Another flow behind by the quantum leaves it; by more, takes it.
    gvt.update(FlowId(2), at(2 * 4096));
    assert_eq!((gvt.now(), gvt.holder()), (at(18 * 4096), Some(FlowId(1))));
    gvt.update(FlowId(2), at(4096));
    assert_eq!((gvt.now(), gvt.holder()), (at(4096), Some(FlowId(2))));
    // A sixteenth of the threshold is the most that counts.
    let options = D2fqOptions { low_threshold_bytes: 512 << 10, ..D2fqOptions::SHIPPED };
    assert_eq!(
        [options, D2fqOptions::SHIPPED, D2fqOptions::DEFAULT].map(|of| of.vtime_quantum().bytes()),
        [32 << 10, 64 << 10, 0]
    );
}
