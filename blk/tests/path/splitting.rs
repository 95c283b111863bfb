//! A large request goes to the device in parts, and its client notices nothing but the time.

use crate::harness::{Ended, RequestSpec, Rig, Setup, WINDOW_BYTES, bytes, is_all};
use mqfq_blk::device::Device;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::hctx::HwCtx;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::split::{Seen, Split, SplitControl, WINDOW_REQUESTS, Whose};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{FlowId, HctxId, PolicyKind, PolicyOptions, Topology, Weight};
use mqfq_sched::policy::{AnyPolicy, Policy};
use mqfq_testing::Random;
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Kind, When};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4096;
const PART: u32 = 4 * BLOCK;

fn path(split: Split) -> PathOptions {
    PathOptions { split, ..PathOptions::TIMELESS }
}

fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(4 * MIB))
}

#[test]
fn a_request_in_parts_is_charged_and_counted_once() {
    let counted = |split| {
        let device = memory();
        let mut rig = Rig::new(&Setup::plain(path(split)), &*device);
        rig.write(0, 4096, 10 * PART, 1);
        rig.read(0, 0, 3 * BLOCK);
        assert_eq!(rig.finish().len(), 2);
        let stats = rig.hctxs[0].counters().read_flow(FlowId(0)).expect("the flow was served");
        (stats.cost, stats.completed, stats.bytes, stats.failed)
    };
    let whole = counted(Split::Off);
    assert_eq!(whole.0, u64::from(10 * PART + 3 * BLOCK));
    assert_eq!(counted(Split::Bytes(PART)), whole);
}

#[test]
fn bytes_cross_the_borders_of_parts_unchanged() {
    // The bytes read differ in every byte from those of a shifted or swapped part.
    for kind in mqfq_policies::ALL {
        let device = memory();
        let setup = Setup { kind, ..Setup::plain(path(Split::Bytes(PART))) };
        let mut rig = Rig::new(&setup, &*device);
        let mut draw = Random::new(3);
        let mut model = vec![0u8; MIB as usize];
        for round in 0..40 {
            // On any byte: this device has no blocks.
            let offset_bytes = draw.below(MIB - 200_000);
            let length_bytes = 1 + draw.below(200_000) as u32;
            let range = offset_bytes as usize..offset_bytes as usize + length_bytes as usize;
            if round % 2 == 0 {
                let pattern: Vec<u8> = range.clone().map(|at| (at / 7 + at / 4099 + round) as u8).collect();
                model[range].copy_from_slice(&pattern);
                rig.write_bytes(0, offset_bytes, &pattern);
                assert_eq!(rig.finish()[0].completion.status, Status::Ok);
            } else {
                rig.read(0, offset_bytes, length_bytes);
                let ended = rig.finish().remove(0);
                assert!(bytes(&ended) == &model[range], "{kind}: {length_bytes} at {offset_bytes}");
            }
        }
        let stats = rig.stats();
        assert!(stats.split > 30 && stats.parts > 4 * stats.split, "{kind}: {stats:?}");
        assert_eq!(stats.dispatched, stats.parts + 40 - stats.split, "{kind}: {stats:?}");
        rig.assert_clean();
    }
}

#[test]
fn a_whole_has_one_completion_with_its_own_length_and_times() {
    let device = ModelDevice::new(presets::OPTANE, 4 * MIB, 0).unwrap();
    // D is 4 requests of 8 parts: the other requests go when the first have come back.
    let setup = Setup { kind: PolicyKind::Mqfq, depth: 4, ..Setup::plain(path(Split::Bytes(PART))) };
    let mut rig = Rig::new(&setup, &device);
    rig.now_ns = 1000;
    rig.read(0, 0, 8 * PART);
    rig.now_ns = 3000;
    let ended = rig.finish();
    let [Ended { completion, .. }] = &ended[..] else { panic!("{} ends", ended.len()) };
    assert_eq!((completion.status, completion.op, completion.length_bytes), (Status::Ok, Op::Read, 8 * PART));
    assert_eq!(
        (completion.queued_ns, completion.device_ns),
        (2000, rig.now_ns - 3000),
        "from its first part to its last"
    );
    let flows = rig.hctxs[0].counters().read_flow(FlowId(0)).unwrap();
    assert_eq!((flows.requests(), flows.transferred_bytes()), (1, u64::from(8 * PART)), "it counts as one");
    assert_eq!((rig.stats().split, rig.stats().parts, rig.stats().dispatched), (1, 8, 8));
    rig.assert_clean();
}

#[test]
fn only_reads_and_writes_that_are_longer_than_a_part_are_cut() {
    let device = memory();
    let mut rig = Rig::new(&Setup::plain(path(Split::Bytes(PART))), &*device);
    rig.read(0, 0, PART);
    rig.write(0, 0, PART, 1);
    rig.ask(0, Op::Flush, 0, 0, 0);
    rig.ask(0, Op::Discard, 0, 64 * PART, 0);
    rig.ask(0, Op::WriteZeroes { may_unmap: false }, 0, 64 * PART, 0);
    assert_eq!((rig.finish().len(), rig.stats().dispatched, rig.stats().split), (5, 5, 0));
    rig.read(0, 0, PART + 1);
    rig.write(0, 100, PART, 1);
    assert_eq!((rig.finish().len(), rig.stats().dispatched, rig.stats().split), (2, 8, 1));
    rig.assert_clean();
}

#[test]
fn a_request_of_which_a_part_fails_fails_once_when_all_its_parts_have_ended() {
    for nth in 0..4 {
        let rules = vec![
            FaultRule::of(Kind::Write, When::Nth(nth), Fault::Error(Status::NoSpace)),
            FaultRule::of(Kind::Write, When::Nth(3), Fault::Error(Status::Io)),
            FaultRule::of(Kind::Write, When::Nth(1), Fault::Delay { ns: 50_000 }),
        ];
        let device = FaultDevice::new(memory(), FaultPlan { rules, ..FaultPlan::default() });
        let mut rig = Rig::new(&Setup::plain(path(Split::Bytes(PART))), &device);
        rig.write(0, 0, 4 * PART, b'n');
        let mut ended = rig.run();
        // The second part, if it does not fail, is the last to end.
        assert_eq!(ended.is_empty(), nth != 1, "a failure is told when nothing of the request is under way");
        ended.extend(rig.finish());
        let [Ended { completion, .. }] = &ended[..] else { panic!("{} ends", ended.len()) };
        assert_eq!(completion.status, if nth == 3 { Status::NoSpace } else { completion.status });
        assert!([Status::NoSpace, Status::Io].contains(&completion.status), "{}", completion.status);
        assert!(completion.buffer.as_ref().is_some_and(|buffer| buffer.capacity_bytes() >= 4 * PART as usize));
        rig.assert_clean();
        // The parts that did not fail were carried out.
        (0..4).for_each(|part| rig.read(0, part * u64::from(PART), PART));
        let written = rig.finish().iter().filter(|ended| is_all(ended, b'n')).count();
        assert_eq!(written, if nth == 3 { 3 } else { 2 });
    }
}

#[test]
fn parts_are_a_quarter_of_what_the_flow_may_stage_and_a_flow_that_is_full_is_told_of_room() {
    let device = memory();
    let plain = Setup::plain(path(Split::Bytes(BLOCK)));
    let mut rig = Rig::new(&Setup { requests_max: 24, ..plain }, &*device);
    // 16 parts are 6 of 12 KiB, of which the last is 4 KiB: a client that is told of room finds that much.
    let large = RequestSpec { flow: 0, op: Op::Read, offset_bytes: 0, length_bytes: 16 * BLOCK, fill: 0 };
    let blocks = |count: u32| RequestSpec { length_bytes: count * BLOCK, ..large };
    assert!(rig.submit(0, large, false).is_some());
    assert_eq!((rig.stats().parts, rig.hctxs[0].staged()), (6, 6));
    (0..3).for_each(|_| assert!(rig.submit(0, large, false).is_some()));
    assert!(rig.submit(0, blocks(1), false).is_none(), "its bound is staged");
    assert_eq!((rig.finish().len(), rig.stats().refused), (4, 1));
    // 18 parts, four, and four more than 24: the last request comes back in one piece.
    (0..3).for_each(|_| assert!(rig.submit(0, large, false).is_some()));
    assert!(rig.submit(0, blocks(4), false).is_some() && rig.submit(0, blocks(4), false).is_none());
    assert!(rig.submit(0, blocks(2), false).is_some());
    assert_eq!(rig.finish().len(), 5);
    rig.assert_clean();
}

/// Bytes served to each tenant of a drive, of which one reads large requests and one small ones, both backlogged.
fn served(split: Split, weights: &[u64]) -> Vec<u64> {
    let device = ModelDevice::new(presets::OPTANE, 64 * MIB, 0).unwrap();
    let (kind, depth) = (PolicyKind::Mqfq, 8);
    let setup = Setup { kind, weights: weights.to_vec(), depth, ..Setup::plain(path(split)) };
    let mut rig = Rig::new(&setup, &device);
    let lengths = [8 * PART, BLOCK];
    let mut draw = Random::new(9);
    let mut served = vec![0; 2];
    let mut ask = |rig: &mut Rig, flow: usize| {
        let length_bytes = lengths[flow];
        let offset_bytes = draw.below(32 * MIB / u64::from(length_bytes)) * u64::from(length_bytes);
        rig.read(flow as u32, offset_bytes + 32 * MIB * flow as u64, length_bytes);
    };
    (0..8).for_each(|_| ask(&mut rig, 0));
    (0..64).for_each(|_| ask(&mut rig, 1));
    let mut ended = rig.run();
    while rig.now_ns < 20_000_000 {
        for ended in &ended {
            served[ended.asked.flow as usize] += u64::from(ended.asked.length_bytes);
            ask(&mut rig, ended.asked.flow as usize);
        }
        ended = rig.run();
        if ended.is_empty() {
            ended = rig.advance().expect("both are backlogged");
        }
    }
    rig.finish();
    rig.assert_clean();
    assert_eq!(rig.stats().split > 0, split != Split::Off);
    served
}

#[test]
fn shares_are_those_of_the_weights_whole_or_in_parts() {
    for split in [Split::Off, Split::Bytes(PART), Split::Bytes(BLOCK)] {
        for weights in [[300, 100], [100, 300]] {
            let served = served(split, &weights);
            // I6 at the lightest weight of 100: two windows, twice D + 1 of the longest; and the parts of a request
            // that are not counted before its last part has ended.
            let longest = u64::from(if split == Split::Off { 8 * PART } else { PART });
            let normal = [0, 1].map(|flow| served[flow] * 100 / weights[flow]);
            let bound = 2 * WINDOW_BYTES + 2 * 9 * longest + u64::from(8 * PART);
            assert!(normal[0] > 3 * bound, "{split} {weights:?}: {served:?} is too short a run");
            assert!(normal[0].abs_diff(normal[1]) <= bound, "{split} {weights:?}: {served:?}, bound {bound}");
        }
    }
}

#[test]
fn a_frozen_context_keeps_parts_and_stages_them_with_the_next_policy() {
    let device = memory();
    let setup = Setup::plain(path(Split::Bytes(PART)));
    let mut rig = Rig::new(&setup, &*device);
    rig.write(0, 0, 8 * PART, b'x');
    rig.finish();
    rig.hctxs[0].freeze(rig.now_ns);
    rig.read(0, 0, 8 * PART);
    assert!(rig.run().is_empty() && rig.hctxs[0].is_quiet());
    let before = rig.stats().split;
    rig.read(0, 100, PART);
    assert_eq!(rig.stats().split, before, "it is no longer than a part");
    let now_ns = rig.now_ns;
    rig.hctxs[0].thaw(None, now_ns, &mut |_: mqfq_blk::HctxId| {});
    rig.wake_all();
    let ended = rig.finish();
    assert!(ended.len() == 2 && ended.iter().all(|ended| is_all(ended, b'x')));
    rig.assert_clean();
}

#[test]
fn a_context_that_has_grown_takes_as_many_parts_as_it_has_places() {
    let device = memory();
    let setup = Setup { requests_max: 16, queue_depth: 4, ..Setup::plain(path(Split::Bytes(PART))) };
    let mut rig = Rig::new(&setup, &*device);
    rig.write(0, 0, 4 * PART, b'x');
    rig.finish();
    rig.hctxs[0].freeze(rig.now_ns);
    let limits = [StageLimits { requests_max: 256, bytes_max: 64 << 20 }; 3];
    rig.hctxs[0].grow(&limits);
    let options = PolicyOptions::new(PolicyKind::None);
    let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT; 3]).unwrap());
    let queue = policy.open_queue(HctxId(0), HwCtx::<AnyPolicy>::capacity_requests(&limits));
    rig.hctxs[0].thaw(Some((policy.clone(), queue)), rig.now_ns, &mut |_: HctxId| {});
    rig.policy = policy;
    (0..3).for_each(|flow| rig.hctxs[0].set_limits(FlowId(flow), limits[0]));
    for flow in 0..3 {
        (0..128).for_each(|_| rig.read(flow, 0, 2 * PART));
    }
    assert_eq!((rig.hctxs[0].admitted(), rig.stats().parts), (3 * 256, 3 * 256 + 4));
    let ended = rig.finish();
    assert!(ended.len() == 3 * 128 && ended.iter().all(|ended| is_all(ended, b'x')));
    rig.assert_clean();
}

#[test]
fn contexts_that_decide_together_cut_what_one_of_them_found() {
    let control = Arc::new(SplitControl::new(Split::Auto, 1));
    // A small request takes 10 us, and a large one holds the device for 55.
    let large_requests = WINDOW_REQUESTS / 2;
    let (large_bytes, small_bytes) = (large_requests * (128 << 10), large_requests * 4096);
    let seen = Seen {
        requests: WINDOW_REQUESTS,
        bytes: large_bytes + small_bytes,
        small: Whose::One(0),
        small_least_ns: [Some(10_000), None],
        large: Whose::One(1),
        large_requests,
        large_bytes,
        large_writes: 0,
    };
    (0..2).for_each(|_| assert!(control.bring(0, &seen, seen.bytes * 10 / 24)));
    let part_bytes = control.part_bytes();
    assert!(control.is_in_parts() && part_bytes < 128 << 10);
    let setup = Setup { kind: PolicyKind::Mqfq, ..Setup::plain(path(Split::Auto)) };
    let mut rig = Rig::new(&setup, &*memory());
    rig.read(0, 0, 128 << 10);
    rig.finish();
    assert_eq!(rig.stats().split, 0, "by itself it has seen too little");
    let hctx = rig.hctxs.remove(0).with_split(control.clone());
    assert_eq!(hctx.split_state(), Some(control.state()));
    rig.hctxs.push(hctx);
    rig.read(0, 0, 128 << 10);
    rig.finish();
    assert_eq!((rig.stats().split, rig.stats().parts), (1, u64::from((128 << 10) / part_bytes)));
    rig.assert_clean();
}

#[test]
fn auto_cuts_while_a_small_request_of_somebody_else_competes_and_not_otherwise() {
    let device: Arc<dyn Device> = Arc::new(ModelDevice::new(presets::OPTANE, 64 * MIB, 0).unwrap());
    let kind = PolicyKind::Mqfq;
    let setup = Setup { kind, weights: vec![100, 100], depth: 4, ..Setup::plain(path(Split::Auto)) };
    let mut rig = Rig::new(&setup, &*device);
    let mut draw = Random::new(2);
    let mut run = |rig: &mut Rig, until_ns: u64, with_small: bool| {
        let mut ask = |rig: &mut Rig, flow: u32| {
            let length_bytes = if flow == 0 { BLOCK } else { 8 * PART };
            rig.read(flow, draw.below(64 * MIB / u64::from(length_bytes)) * u64::from(length_bytes), length_bytes);
        };
        (0..4).for_each(|_| ask(rig, 1));
        if with_small {
            ask(rig, 0);
        }
        let before = rig.stats().split;
        let mut ended = rig.run();
        while rig.now_ns < until_ns {
            ended.iter().for_each(|ended| ask(rig, ended.asked.flow));
            ended = rig.run();
            if ended.is_empty() {
                ended = rig.advance().expect("somebody is backlogged");
            }
        }
        rig.finish();
        (rig.stats().split - before, rig.hctxs[0].split_state().unwrap().to_string())
    };
    let ms = 1_000_000;
    assert_eq!(run(&mut rig, 200 * ms, false), (0, "split off: nobody small".to_owned()));
    let (split, state) = run(&mut rig, 400 * ms, true);
    assert!(
        split > 1000 && state.starts_with("split 16KiB: a large request would hold the device for 5"),
        "{split} {state}"
    );
    let (_, state) = run(&mut rig, 700 * ms, false);
    assert_eq!(state, "split off: nobody small");
    assert_eq!(run(&mut rig, 800 * ms, false).0, 0);
    rig.assert_clean();
}

#[test]
fn a_request_in_parts_that_is_refused_is_counted() {
    let setup = Setup { requests_max: 16, ..Setup::plain(path(Split::Bytes(BLOCK))) };
    let mut rig = Rig::new(&setup, &*memory());
    let asked = RequestSpec { flow: 0, op: Op::Read, offset_bytes: 0, length_bytes: 4 * BLOCK, fill: 0 };
    let taken = (0..6).filter(|_| rig.submit(0, asked, false).is_some()).count();
    assert_eq!((taken, rig.stats().refused, rig.stats().split), (4, 2, 4));
    assert_eq!(rig.finish().len(), 4);
    rig.assert_clean();
}
