//! Neighbours become one command, and nobody notices but the device.

use crate::harness::{Asked, Rig, Setup, WINDOW_BYTES, bytes, is_all};
use mqfq_blk::PolicyKind;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::fault::{Fault, FaultDevice, FaultPlan, FaultRule, OnAbort, When};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::device::nvme::{NvmeDevice, NvmeDeviceOptions};
use mqfq_blk::device::{Device, DeviceInfo};
use mqfq_blk::pages::Pages;
use mqfq_blk::path::{Merge, PathOptions};
use mqfq_blk::request::{Op, Status};
use mqfq_testing::Random;
use std::collections::BTreeMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4096;

fn path(merge: Merge) -> PathOptions {
    PathOptions { merge, ..PathOptions::TIMELESS }
}

fn memory() -> MemoryDevice {
    MemoryDevice::new(4 * MIB)
}

/// Commands that so many blocks, read in this order, become.
fn commands(merge: Merge, device: &dyn Device, blocks: &[u64]) -> u64 {
    let mut rig = Rig::new(&Setup::plain(path(merge)), device);
    blocks.iter().for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
    let ended = rig.finish();
    assert_eq!(ended.len(), blocks.len());
    rig.assert_clean();
    let stats = rig.stats();
    assert_eq!((stats.dispatched, stats.commands + stats.merged), (blocks.len() as u64, blocks.len() as u64));
    stats.commands
}

#[test]
fn merging_is_switched_off_to_the_back_and_both_ways() {
    let (up, down) = ([0, 1, 2, 3], [9, 8, 7, 6]);
    for (merge, ascending, descending) in [(Merge::None, 4, 4), (Merge::Back, 1, 4), (Merge::Both, 1, 1)] {
        assert_eq!(commands(merge, &memory(), &up), ascending, "{merge}");
        assert_eq!(commands(merge, &memory(), &down), descending, "{merge}");
    }
    // Out from the middle: each joins at one end or the other. A gap, and an overlap, is no neighbour.
    assert_eq!(commands(Merge::Both, &memory(), &[5, 6, 4, 7, 3]), 1);
    assert_eq!(commands(Merge::Both, &memory(), &[0, 2, 4, 4, 4]), 5);
}

#[test]
fn each_request_gets_its_own_bytes_and_its_own_end() {
    for order in [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [3, 4, 2, 5, 1, 6, 0, 7]] {
        let mut rig = Rig::new(&Setup::plain(path(Merge::Both)), &memory());
        order.iter().for_each(|&block| rig.write(0, block * u64::from(BLOCK), BLOCK, block as u8 + 1));
        let written = rig.finish();
        assert!(written.iter().all(|ended| ended.completion.status == Status::Ok));
        order.iter().for_each(|&block| rig.read(0, block * u64::from(BLOCK), BLOCK));
        let read = rig.finish();
        assert_eq!((written.len(), read.len(), rig.stats().commands), (8, 8, 2), "{order:?}");
        for ended in read {
            assert!(is_all(&ended, (ended.asked.offset_bytes / u64::from(BLOCK)) as u8 + 1), "{order:?}");
        }
        rig.assert_clean();
    }
}

/// A null device with other limits.
fn limited(segments_max: u16, transfer_bytes_max: u32, segment_align_bytes: u32) -> NullDevice {
    let info = NullDevice::new(MIB).info();
    NullDevice::with_info(DeviceInfo { segments_max, transfer_bytes_max, segment_align_bytes, ..info })
}

#[test]
fn a_command_is_no_larger_than_the_device_allows() {
    let sixteen: Vec<u64> = (0..16).collect();
    assert_eq!(commands(Merge::Both, &limited(1, 1 << 20, 1), &sixteen), 16, "the device cannot");
    assert_eq!(commands(Merge::Both, &limited(3, 1 << 20, 1), &sixteen), 6, "16 of at most 3");
    assert_eq!(commands(Merge::Both, &limited(99, 5 * BLOCK, 1), &sixteen), 4, "16 of at most 5");
    assert_eq!(commands(Merge::Both, &limited(99, 1 << 20, BLOCK), &sixteen), 1);
    assert_eq!(commands(Merge::Both, &limited(99, 1 << 20, 2 * BLOCK), &sixteen), 16, "half a unit each");
}

#[test]
fn only_requests_of_one_flow_one_operation_and_one_fua_share_a_command() {
    let commands_of = |asked: &[(u32, Op, bool)]| {
        let setup = Setup { weights: vec![100, 100], ..Setup::plain(path(Merge::Both)) };
        let mut rig = Rig::new(&setup, &memory());
        for (n, &(flow, op, fua)) in (0..).zip(asked) {
            let length_bytes = if op == Op::Flush { 0 } else { BLOCK };
            let asked = Asked { flow, op, offset_bytes: n * u64::from(BLOCK), length_bytes, fill: 1 };
            rig.submit(0, asked, fua).unwrap();
        }
        rig.finish();
        rig.assert_clean();
        rig.stats().commands
    };
    let (read, write, discard) = (Op::Read, Op::Write, Op::Discard);
    assert_eq!(commands_of(&[(0, read, false), (1, read, false), (0, read, false)]), 3, "flows");
    assert_eq!(commands_of(&[(0, read, false), (0, write, false), (0, write, false)]), 2, "operations");
    assert_eq!(commands_of(&[(0, write, false), (0, write, true), (0, write, true)]), 2, "FUA");
    assert_eq!(commands_of(&[(0, discard, false), (0, discard, false)]), 1, "discards have no buffers");
    assert_eq!(commands_of(&[(0, Op::Flush, false), (0, Op::Flush, false)]), 2, "flushes");
    let (may, may_not) = (Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false });
    assert_eq!(commands_of(&[(0, may, false), (0, may, false), (0, may_not, false)]), 2, "zeroes");
}

#[test]
fn pages_that_stay_in_the_kernel_go_alone() {
    let pages = Pages::take(8).unwrap();
    // Writes: the null device does not look at their bytes, which are not here.
    let mut rig = Rig::new(&Setup::plain(path(Merge::Both)), &NullDevice::new(MIB));
    for block in 0..8u16 {
        let asked =
            Asked { flow: 0, op: Op::Write, offset_bytes: u64::from(block) * 4096, length_bytes: BLOCK, fill: 0 };
        let is_here = [0, 1, 4].contains(&block);
        let buffer =
            if is_here { Buffer::new(BLOCK as usize) } else { Buffer::of_pages(&pages, block, BLOCK as usize) };
        rig.submit_with(0, asked, false, Some(buffer)).unwrap();
    }
    let ended = rig.finish();
    assert!(ended.iter().all(|ended| ended.completion.status == Status::Ok));
    rig.assert_clean();
    // The first two together, and each of the others by itself.
    assert_eq!((ended.len(), rig.stats().commands), (8, 7));
}

#[test]
fn a_bad_sector_fails_only_the_request_that_covers_it() {
    for torn in [false, true] {
        let fault = if torn { Fault::Torn(Status::Io) } else { Fault::Error(Status::Io) };
        let sector = u64::from(BLOCK) * 5 + 512..u64::from(BLOCK) * 5 + 1024;
        let rule = FaultRule { bytes: Some(sector), ..FaultRule::any(When::Always, fault) };
        let plan = FaultPlan { seed: 4, rules: vec![rule], ..FaultPlan::default() };
        let device = FaultDevice::new(Arc::new(memory()), plan);
        let mut rig = Rig::new(&Setup::plain(path(Merge::Both)), &device);
        (0..8).for_each(|block| rig.write(0, block * u64::from(BLOCK), BLOCK, block as u8 + 1));
        let statuses = |ended: &[crate::harness::Ended]| {
            let by_block =
                ended.iter().map(|e| (e.asked.offset_bytes / u64::from(BLOCK), e.completion.status == Status::Ok));
            by_block.collect::<BTreeMap<u64, bool>>()
        };
        let only_5_failed: BTreeMap<u64, bool> = (0..8).map(|block| (block, block != 5)).collect();
        assert_eq!(statuses(&rig.finish()), only_5_failed);
        // One merged command, then eight alone.
        assert_eq!((rig.stats().commands, rig.stats().taken_apart), (9, 1));
        (0..8).for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
        let read = rig.finish();
        assert_eq!(statuses(&read), only_5_failed);
        for ended in read.iter().filter(|ended| ended.completion.status == Status::Ok) {
            assert!(is_all(ended, (ended.asked.offset_bytes / u64::from(BLOCK)) as u8 + 1));
        }
        rig.assert_clean();
    }
}

#[test]
fn merged_commands_that_end_fail_or_hang_leave_the_pool_of_merges_whole() {
    // Two tags: one of the command that is open, one for the request that may join it. So fourteen requests beyond one
    // for each tag may be in flight, and seven of every eight are merged. Were they not counted out when their command
    // is taken apart, the third command would find no room.
    const TIMEOUT_NS: u64 = 1_000_000;
    let bad = u64::from(BLOCK) * 5..u64::from(BLOCK) * 5 + 1;
    for (fault, merge) in [Fault::Error(Status::Io), Fault::Forget].into_iter().zip([Merge::Back, Merge::Both]) {
        let rule = FaultRule { bytes: Some(bad.clone()), ..FaultRule::any(When::Always, fault) };
        let plan = FaultPlan { seed: 4, rules: vec![rule], on_abort: OnAbort::Ignored, ..FaultPlan::default() };
        let device = FaultDevice::new(Arc::new(limited(8, 1 << 20, 1)), plan);
        let path = PathOptions { timeout_ns: TIMEOUT_NS, ..path(merge) };
        let mut rig = Rig::new(&Setup { queue_depth: 2, ..Setup::plain(path) }, &device);
        for round in 1..=20 {
            (0..8).for_each(|block| rig.write(0, block * u64::from(BLOCK), BLOCK, 1));
            let failed = rig.finish().iter().filter(|ended| ended.completion.status != Status::Ok).count();
            (8..16).for_each(|block| rig.write(0, block * u64::from(BLOCK), BLOCK, 1));
            assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::Ok));
            let stats = rig.stats();
            assert_eq!(
                (failed, stats.merged, stats.taken_apart, stats.commands),
                (1, 14 * round, round, 10 * round),
                "{fault:?}, {merge}"
            );
        }
        rig.assert_clean();
    }
}

#[test]
fn a_sequential_tenant_at_depth_32_makes_a_thirtieth_of_the_commands() {
    // A closed loop in batches, as behind a plug: 32 reads end together, 32 follow.
    let count = |merge| {
        let device = NvmeDevice::new(NvmeDeviceOptions {
            preset: "flash-460k",
            size_bytes: 64 * MIB,
            seed: 1,
            ..NvmeDeviceOptions::default()
        })
        .unwrap();
        let mut rig = Rig::new(&Setup::plain(path(merge)), &device);
        for batch in 0..50 {
            (0..32).for_each(|n| rig.read(0, (batch * 32 + n) * u64::from(BLOCK), BLOCK));
            assert_eq!(rig.finish().len(), 32);
        }
        rig.assert_clean();
        (rig.stats().commands, rig.now_ns)
    };
    let ((merged, _), (alone, _)) = (count(Merge::Back), count(Merge::None));
    // 128 KiB, 32 blocks of 4 KiB, is the drive's largest transfer.
    assert_eq!((merged, alone), (50, 1600));
}

#[test]
fn shares_of_a_sequential_and_a_random_tenant_are_those_of_their_weights_merged_or_not() {
    // Two tenants of weights 300 and 100 keep 128 reads of 4 KiB staged or out; the first reads on and on, the other
    // anywhere. The policy grants them three to one, so three reads of the first are one command.
    for merge in [Merge::None, Merge::Both] {
        let device = NvmeDevice::new(NvmeDeviceOptions {
            preset: "flash-460k",
            size_bytes: 256 * MIB,
            seed: 1,
            ..NvmeDeviceOptions::default()
        })
        .unwrap();
        let setup = Setup { kind: PolicyKind::Mqfq, weights: vec![300, 100], ..Setup::plain(path(merge)) };
        let (mut rig, mut draw) = (Rig::new(&setup, &device), Random::new(5));
        let (mut at_block, mut served) = (0, [0u64; 2]);
        let mut ask = |rig: &mut Rig, flow: u32| {
            at_block = (at_block + 1) % 60_000;
            let block = if flow == 0 { at_block } else { draw.below(60_000) };
            rig.read(flow, block * u64::from(BLOCK), BLOCK);
        };
        // More than D each, so that both wait throughout.
        (0..2).for_each(|flow| (0..128).for_each(|_| ask(&mut rig, flow)));
        rig.run();
        // Looked at every 40 us, as by a worker that has other things to do: some twenty reads end in between.
        for look in 1..1250 {
            rig.now_ns = look * 40_000;
            rig.wake_all();
            for ended in rig.run() {
                served[ended.asked.flow as usize] += u64::from(ended.asked.length_bytes);
                ask(&mut rig, ended.asked.flow);
            }
            rig.run();
        }
        // I6: 2T + (D + 1)(l + l/3) of service at weight 100, both requests being 4 KiB.
        let bound = 2 * WINDOW_BYTES + 65 * (u64::from(BLOCK) + u64::from(BLOCK) / 3);
        assert!(served[1] > 8 * bound, "{merge}: {served:?} is too short a run to say anything");
        assert!(served[1].abs_diff(served[0] / 3) <= bound, "{merge}: {served:?}");
        let stats = rig.stats();
        assert_eq!(stats.merged > stats.dispatched / 10, merge == Merge::Both, "{stats:?}");
    }
}

#[test]
fn data_is_right_under_every_policy_on_every_device_whatever_is_merged() {
    // Random neighbours, reads and writes and zeroes, compared with an array. Requests under way never overlap: order
    // among those is nobody's promise.
    const BLOCKS: u64 = 64;
    for kind in PolicyKind::ALL {
        for (number, merge) in [Merge::Back, Merge::Both, Merge::Both].into_iter().enumerate() {
            let size_bytes = BLOCKS * u64::from(BLOCK);
            let device: Arc<dyn Device> = match number {
                0 => Arc::new(MemoryDevice::new(size_bytes)),
                1 => Arc::new(
                    NvmeDevice::new(NvmeDeviceOptions {
                        preset: "flash-460k",
                        size_bytes,
                        seed: 1,
                        ..NvmeDeviceOptions::default()
                    })
                    .unwrap(),
                ),
                _ => {
                    let plan = FaultPlan { seed: 3, reorder: 4, volatile_cache: true, ..FaultPlan::default() };
                    Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(size_bytes)), plan))
                }
            };
            let setup =
                Setup { kind, workers: 2, weights: vec![100, 300], queue_depth: 4, ..Setup::plain(path(merge)) };
            let (mut rig, mut draw) = (Rig::new(&setup, &*device), Random::new(number as u64));
            let mut model = vec![0u8; BLOCKS as usize];
            for _ in 0..150 {
                // A run of neighbours, up or down, of one operation.
                let (start, count) = (draw.below(BLOCKS), draw.below(8) + 1);
                let down = draw.below(2) == 1;
                let op = [Op::Read, Op::Write, Op::Discard, Op::Write][draw.below(4) as usize];
                let (worker, flow, fua) = (draw.below(2) as usize, draw.below(2) as u32, draw.below(4) == 0);
                let fill = draw.below(250) as u8 + 1;
                for n in 0..count {
                    let block = if down { start.checked_sub(n) } else { Some(start + n).filter(|&b| b < BLOCKS) };
                    let Some(block) = block else { break };
                    let offset_bytes = block * u64::from(BLOCK);
                    if rig.outstanding.values().any(|asked| asked.offset_bytes == offset_bytes) {
                        continue;
                    }
                    let asked = Asked { flow, op, offset_bytes, length_bytes: BLOCK, fill };
                    if rig.submit(worker, asked, fua && op != Op::Read).is_none() {
                        break;
                    }
                }
                let ended = if draw.below(3) == 0 { rig.finish() } else { rig.advance().unwrap_or_default() };
                for ended in ended {
                    let block = (ended.asked.offset_bytes / u64::from(BLOCK)) as usize;
                    assert_eq!(ended.completion.status, Status::Ok);
                    match ended.asked.op {
                        Op::Read => assert!(
                            is_all(&ended, model[block]),
                            "{kind} {merge}: block {block}: {:?}",
                            &bytes(&ended)[..8]
                        ),
                        Op::Write => model[block] = ended.asked.fill,
                        _ => model[block] = 0,
                    }
                }
            }
            for ended in rig.finish() {
                let block = (ended.asked.offset_bytes / u64::from(BLOCK)) as usize;
                match ended.asked.op {
                    Op::Read => assert!(is_all(&ended, model[block])),
                    Op::Write => model[block] = ended.asked.fill,
                    _ => model[block] = 0,
                }
            }
            (0..BLOCKS).for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
            for ended in rig.finish() {
                let block = (ended.asked.offset_bytes / u64::from(BLOCK)) as usize;
                assert!(is_all(&ended, model[block]), "{kind} {merge}: block {block} in the end");
            }
            assert!(rig.stats().merged > 0, "{kind} {merge}: nothing was merged");
            rig.assert_clean();
        }
    }
}
