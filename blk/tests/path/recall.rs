//! Requests that wait for the device go back to their client, and none is lost, done twice or answered twice.

use crate::harness::{RequestSpec, Rig, Setup};
use mqfq_blk::FlowId;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::hctx::HwCtx;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::split::Split;
use mqfq_policies::BFQ;
use mqfq_testing_devices::fault::{FaultDevice, FaultPlan};
use std::sync::Arc;

const BLOCK: u32 = 4096;
const WRITES: u64 = 120;
const DEPTH: u16 = 4;

fn rigs() -> impl Iterator<Item = (String, Rig)> {
    let paths = [Split::Off, Split::Bytes(2 * BLOCK)].map(|split| PathOptions { split, ..PathOptions::TIMELESS });
    paths.into_iter().flat_map(|path| mqfq_policies::ALL.into_iter().map(move |kind| (kind, path))).map(
        |(kind, path)| {
            let device = FaultDevice::new(Arc::new(MemoryDevice::new(4 << 20)), FaultPlan::default());
            device.stall_until(1_000);
            let what = format!("{kind}, {path:?}");
            let setup = Setup {
                kind,
                workers: 2,
                weights: vec![100, 300],
                depth: u32::from(DEPTH),
                queue_depth: DEPTH,
                ..Setup::plain(path)
            };
            (what, Rig::new(&setup, &device))
        },
    )
}

/// A write of four blocks, each second one right behind the one before it.
fn write(number: u64) -> RequestSpec {
    let offset_bytes = number * 4 * u64::from(BLOCK);
    RequestSpec { flow: (number % 2) as u32, op: Op::Write, offset_bytes, length_bytes: 4 * BLOCK, fill: number as u8 }
}

#[test]
fn what_waits_is_given_back_with_its_payload_when_the_device_has_ended_what_it_has() {
    for (what, mut rig) in rigs() {
        for number in 0..WRITES {
            rig.submit((number / 2 % 2) as usize, write(number), false).expect("within the bound");
        }
        let mut ended = rig.run();
        rig.hctxs.iter_mut().for_each(|hctx| hctx.recall(true));
        // The device holds still until 1 us, and has all tokens.
        rig.wake_all();
        ended.extend(rig.finish());
        rig.assert_clean();
        if rig.policy.kind() != BFQ {
            // BFQ waits for better requests.
            assert_eq!(rig.now_ns, 1_000, "{what}");
        }
        assert_eq!(ended.len() as u64, WRITES, "{what}");
        let mut back = Vec::new();
        for one in ended {
            match one.completion.status {
                Status::Ok => {}
                Status::Recalled => {
                    let buffer = one.completion.buffer.expect("with its payload");
                    let payload = &buffer.as_slice()[..one.asked.length_bytes as usize];
                    assert!(payload.iter().all(|byte| *byte == one.asked.fill), "{what}");
                    back.push(one.asked);
                }
                status => panic!("{what}: {status}"),
            }
        }
        assert!(back.len() as u64 >= WRITES / 2, "{what}: {} of {WRITES} came back", back.len());
        let counted = |rig: &Rig| -> u64 {
            let flows = |hctx: &HwCtx<_>| (0..hctx.counters().flows() as u32).map(FlowId);
            let of = |hctx| flows(hctx).filter_map(|flow| hctx.counters().read_flow(flow));
            rig.hctxs.iter().flat_map(of).map(|flow| flow.completed.iter().sum::<u64>()).sum()
        };
        assert_eq!(counted(&rig), WRITES - back.len() as u64, "{what}: what came back has not ended");
        // No process took its place: the requests go again, and end.
        rig.hctxs.iter_mut().for_each(|hctx| hctx.recall(false));
        for asked in &back {
            rig.submit(0, *asked, false).expect("within the bound");
        }
        let again = rig.finish();
        assert!(again.iter().all(|ended| ended.completion.status == Status::Ok), "{what}");
        assert_eq!((again.len(), counted(&rig)), (back.len(), WRITES), "{what}");
        rig.assert_clean();
        rig.read(0, 0, (WRITES as u32) * 4 * BLOCK);
        let read = rig.finish().pop().unwrap().completion.buffer.unwrap();
        let expected = |at: usize| (at / (4 * BLOCK as usize)) as u8;
        let whole = (WRITES as usize) * 4 * BLOCK as usize;
        assert!((0..whole).step_by(BLOCK as usize).all(|at| read.as_slice()[at] == expected(at)), "{what}");
    }
}

#[test]
fn what_was_submitted_just_before_and_has_no_doorbell_yet_is_carried_out() {
    for kind in mqfq_policies::ALL {
        let device = ModelDevice::new(presets::FLASH_60K, 4 << 20, 1).unwrap();
        let mut rig = Rig::new(&Setup { kind, ..Setup::plain(PathOptions::TIMELESS) }, &device);
        for number in 0..3 {
            rig.submit(0, write(2 * number), false).expect("within the bound");
        }
        // A policy that stages nothing has put them into the queue, and rings when it is run.
        rig.hctxs[0].recall(true);
        let ended = rig.finish();
        let expected = if kind.is_direct() { Status::Ok } else { Status::Recalled };
        assert!(ended.iter().all(|ended| ended.completion.status == expected), "{kind}: {ended:?}");
        assert_eq!(ended.len(), 3, "{kind}");
        rig.assert_clean();
    }
}

#[test]
fn a_context_of_which_nothing_was_recalled_goes_on_when_recalling_ends() {
    let mut rig = Rig::new(&Setup::plain(PathOptions::TIMELESS), &MemoryDevice::new(4 << 20));
    for (is_on, status) in [(false, Status::Ok), (true, Status::Recalled), (false, Status::Ok)] {
        rig.hctxs[0].recall(is_on);
        rig.submit(0, RequestSpec { flow: 0, ..write(0) }, false).expect("within the bound");
        let ended = rig.finish();
        assert_eq!(ended.iter().map(|ended| ended.completion.status).collect::<Vec<_>>(), [status]);
    }
    rig.assert_clean();
}
