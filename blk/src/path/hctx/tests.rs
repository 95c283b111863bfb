//! Tests of a context's inside: why ends are looked at, and what is left behind.

use super::*;
use crate::buffer::Buffer;
use crate::client::Remains;
use crate::device::null::NullDevice;
use crate::device::{Device, QueueOptions};
use crate::path::admit::Charges;
use crate::path_options::PathOptions;
use crate::request::Op;
use crate::split::{LOOK_NS, LOOK_REQUESTS, Split};
use mqfq_policies::D2FQ;
use mqfq_sched::cost::{CostModel, CostTerm};
use mqfq_sched::flow::Weight;
use mqfq_sched::policy::{AnyPolicy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::Topology;

const BLOCK: u32 = 4096;

fn no_kick(hctx: HctxId) {
    panic!("{hctx:?} has nothing staged, yet it is kicked");
}

/// One worker over first come, first served, on a device that ends all at once and takes so many commands.
fn context_on(device_depth: u16, flows: usize, path: PathOptions) -> HwCtx<AnyPolicy> {
    context_of(PolicyKind::None, &NullDevice::new(1 << 30), device_depth, flows, path)
}

fn context_of(
    kind: PolicyKind,
    device: &dyn Device,
    device_depth: u16,
    flows: usize,
    path: PathOptions,
) -> HwCtx<AnyPolicy> {
    let options = PolicyOptions { depth: 64, ..PolicyOptions::new(kind) };
    let policy =
        AnyPolicy::new(&options, &Topology::flat(1), &vec![Weight::DEFAULT; flows.max(1)]).expect("good options");
    let device = device.open_queue(QueueOptions {
        hctx: HctxId(0),
        depth: device_depth,
        #[cfg(feature = "uring")]
        ring: None,
        interrupt: Arc::new(no_kick),
    });
    HwCtx::new(HwCtxOptions {
        id: HctxId(0),
        policy: Arc::new(policy),
        device: device.expect("it has no limits"),
        queue_depth: 8,
        limits: vec![StageLimits { requests_max: 64, bytes_max: 1 << 30 }; flows],
        cost: CostModel::FLAT,
        path,
    })
}

pub(in crate::path) fn context(path: PathOptions) -> HwCtx<AnyPolicy> {
    context_on(8, 1, path)
}

fn asked(op: Op, offset_bytes: u64, length_bytes: u32) -> Submission {
    let buffer = (op != Op::Flush).then(|| Buffer::new(length_bytes as usize));
    Submission { flow: FlowId(0), op, offset_bytes, length_bytes, fua: false, buffer, cookie: 0 }
}

fn submit_at(hctx: &mut HwCtx<AnyPolicy>, submission: Submission, now_ns: u64) -> bool {
    hctx.submit(Owner(0), submission, now_ns, &mut no_kick).is_ok()
}

pub(in crate::path) fn submit(hctx: &mut HwCtx<AnyPolicy>, op: Op, offset_bytes: u64, length_bytes: u32) -> bool {
    submit_at(hctx, asked(op, offset_bytes, length_bytes), 0)
}

/// Runs and reaps once. Returns the requests that ended.
pub(in crate::path) fn serve(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64) -> usize {
    hctx.run(now_ns, &mut no_kick);
    reap(hctx, now_ns)
}

pub(in crate::path) fn reap(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64) -> usize {
    hctx.reap(now_ns, &mut no_kick, &mut Vec::new())
}

#[test]
fn for_auto_every_end_is_counted_until_it_is_enough_and_again_after_a_while() {
    let mut hctx = context(PathOptions { split: Split::Auto, ..PathOptions::TIMELESS });
    for begin_ns in [0, LOOK_NS, 2 * LOOK_NS] {
        assert_eq!(hctx.shared.slow_completions, 1, "counted from {begin_ns} ns on");
        for n in 1..=LOOK_REQUESTS {
            assert!(submit(&mut hctx, Op::Read, 0, BLOCK));
            assert_eq!(serve(&mut hctx, begin_ns), 1);
            assert_eq!(hctx.shared.slow_completions, usize::from(n < LOOK_REQUESTS), "after {n}");
        }
        let looks = [LOOK_NS - 1, LOOK_NS].map(|after_ns| {
            serve(&mut hctx, begin_ns + after_ns);
            hctx.shared.slow_completions
        });
        assert_eq!(looks, [0, 1]);
    }
}

#[test]
fn a_context_without_flows_is_looked_at_like_any_other() {
    let mut hctx = context_on(8, 0, PathOptions::TIMELESS);
    hctx.begin_turn();
    hctx.looked(FlowId(0));
    assert_eq!(hctx.run(0, &mut no_kick), Run { dispatched: 0, again: false });
}

#[test]
fn without_a_block_layer_a_refused_submission_comes_back_whole() {
    // Eight tags on a device queue that takes as many, or three.
    for (device_depth, taken) in [(8, 8), (3, 3)] {
        let mut hctx = context_on(device_depth, 2, PathOptions::TIMELESS).raw();
        (0..taken).for_each(|_| assert!(submit(&mut hctx, Op::Read, 0, BLOCK)));
        let told = |it: &Submission| {
            let held_bytes = it.buffer.as_ref().map(Buffer::capacity_bytes);
            (it.flow, it.op, it.offset_bytes, it.length_bytes, it.fua, it.cookie, held_bytes)
        };
        let write = asked(Op::Write, 5 * u64::from(BLOCK), 2 * BLOCK);
        let write = Submission { flow: FlowId(1), fua: true, cookie: 77, ..write };
        let expected = told(&write);
        let Full(refused) = hctx.submit(Owner(0), write, 0, &mut no_kick).expect_err("the device queue is full");
        assert_eq!(told(&refused), expected);
    }
}

#[test]
fn without_a_block_layer_each_refusal_is_counted() {
    // Eight tags on a device queue that takes as many, or three.
    for (device_depth, taken) in [(8, 8), (3, 3)] {
        let mut hctx = context_on(device_depth, 1, PathOptions::TIMELESS).raw();
        let count = (0..20).filter(|_| submit(&mut hctx, Op::Read, 0, BLOCK)).count();
        assert_eq!((count, hctx.stats().refused), (taken, 20 - taken as u64));
        assert_eq!(serve(&mut hctx, 0), taken);
    }
}

#[test]
fn without_a_block_layer_there_is_no_table_nothing_is_cut_and_a_reap_tells_of_its_own_ends() {
    let mut hctx = context(PathOptions { split: Split::Auto, ..PathOptions::TIMELESS }).raw();
    assert_eq!((hctx.shared.requests.room(), hctx.shared.slow_completions, hctx.split_state()), (0, 0, None));
    assert_eq!(hctx.detour_from_bytes, u32::MAX);
    let mut out = Vec::new();
    for expected in [3, 2] {
        (0..expected).for_each(|_| assert!(submit(&mut hctx, Op::Read, 0, BLOCK)));
        hctx.run(0, &mut no_kick);
        assert_eq!(hctx.reap(0, &mut no_kick, &mut out), expected);
    }
    assert_eq!(out.iter().map(|(_, ended)| ended.length_bytes).collect::<Vec<_>>(), [BLOCK; 5]);
}

#[test]
fn parts_were_admitted_when_their_request_was() {
    let mut hctx = context(PathOptions { split: Split::Bytes(BLOCK), ..PathOptions::TIMELESS });
    assert!(submit_at(&mut hctx, asked(Op::Read, 0, 4 * BLOCK), 5000));
    let has_any = |until_ns| hctx.has_any(Remains::Flow(FlowId(0)), until_ns);
    assert_eq!((hctx.stats().parts, has_any(4999), has_any(5000)), (4, false, true));
}

#[test]
fn a_policy_is_told_where_a_request_begins_whole_or_in_parts() {
    let mut hctx = context(PathOptions { split: Split::Bytes(BLOCK), ..PathOptions::TIMELESS });
    let shared = &mut hctx.shared;
    let whole = shared.admit(Owner(0), asked(Op::Read, 3 * u64::from(BLOCK), BLOCK), 0).expect("there is room");
    assert_eq!((whole.offset_bytes, whole.length_bytes), (3 * u64::from(BLOCK), BLOCK));
    let large = asked(Op::Read, 8 * u64::from(BLOCK), 2 * BLOCK);
    let cuts = shared.cuts(&large).expect("it is longer than a part");
    let mut pending = shared.admit_parts(Owner(0), large, cuts, 0).expect("there is room");
    let parts = std::iter::from_fn(|| shared.next_part(&mut pending)).map(|part| part.offset_bytes);
    assert_eq!(parts.collect::<Vec<_>>(), [8, 9].map(|block| block * u64::from(BLOCK)));
}

#[test]
fn a_table_has_a_place_for_each_staged_request_and_each_tag() {
    let mut hctx = context(PathOptions::TIMELESS);
    assert_eq!(hctx.shared.requests.room(), 64 + 8);
    hctx = hctx.with_class_queues();
    assert_eq!(hctx.shared.requests.room(), 64 + 3 * 8);
}

#[test]
fn only_what_is_longer_than_a_part_takes_the_detour_and_nothing_does_once_a_freeze_is_over() {
    for (split, from_bytes) in [(Split::Off, u32::MAX), (Split::Bytes(BLOCK), BLOCK + 1)] {
        let mut hctx = context(PathOptions { split, ..PathOptions::TIMELESS });
        assert_eq!(hctx.detour_from_bytes, from_bytes, "{split}");
        hctx.freeze(0);
        assert_eq!(hctx.detour_from_bytes, 0, "{split}");
        hctx.thaw(None, 0, &mut no_kick);
        assert_eq!(hctx.detour_from_bytes, from_bytes, "{split}");
    }
}

#[test]
fn time_in_which_the_device_had_nothing_is_not_counted_whichever_way_requests_go() {
    for kind in [PolicyKind::None, D2FQ] {
        let mut hctx = context_of(kind, &NullDevice::new(1 << 30), 8, 1, PathOptions::TIMELESS);
        for (submitted_ns, ended_ns) in [(100, 700), (1700, 1800), (5000, 5001)] {
            assert!(submit_at(&mut hctx, asked(Op::Read, 0, BLOCK), submitted_ns));
            hctx.run(submitted_ns, &mut no_kick);
            assert_eq!(reap(&mut hctx, ended_ns), 1);
            hctx.run(ended_ns, &mut no_kick);
        }
        assert_eq!((hctx.stats().busy_ns, hctx.stats().in_flight_ns), (701, 701), "{kind}");
        // Nine for eight tags: the last goes when the device has had nothing for a while.
        (0..9).for_each(|_| assert!(submit_at(&mut hctx, asked(Op::Read, 0, BLOCK), 10_000)));
        hctx.run(10_000, &mut no_kick);
        assert_eq!((reap(&mut hctx, 10_100), serve(&mut hctx, 10_300), reap(&mut hctx, 10_400)), (8, 1, 0), "{kind}");
        assert_eq!(hctx.stats().busy_ns, 801, "{kind}");
    }
}

#[test]
fn a_sweep_counts_what_is_staged_and_on_the_device_when_it_begins() {
    let mut hctx = context(PathOptions::TIMELESS);
    (0..10).for_each(|_| assert!(submit(&mut hctx, Op::Read, 0, BLOCK)));
    hctx.run(0, &mut no_kick);
    let mut found = Swept::new(1);
    assert_eq!(hctx.sweep(0, 4, &mut found), Some(4));
    // Eight of them end meanwhile.
    assert_eq!(reap(&mut hctx, 0), 8);
    assert_eq!(hctx.sweep(4, 100, &mut found), None);
    assert_eq!((found.in_flight, found.staged), (8, 2));
    assert_eq!(serve(&mut hctx, 0), 2);
}

#[test]
fn zeroes_are_charged_as_writes_are_now_unless_they_have_a_cost_of_their_own() {
    let [now, own] = [3, 5].map(|times| CostTerm { base_bytes: 0, per_byte_256ths: 256 * times });
    for (write_zeroes, expected) in [(None, 3), (Some(own), 5)] {
        let mut charges = Charges::new(&CostModel { write_zeroes, ..CostModel::FLAT }, false);
        charges.set_write(now);
        let zeroes = Op::WriteZeroes { may_unmap: true };
        let costs = [Op::Read, Op::Write, zeroes].map(|op| charges.of(&asked(op, 0, BLOCK)).cost.0);
        assert_eq!(costs, [1, 3, expected].map(|times| times * u64::from(BLOCK)));
    }
}
