//! A device that refuses commands for a while: others have what the refused worker cannot use, and nothing is forgotten
//! meanwhile.

use crate::harness::{Asked, Narrow, Rig, Setup};
use mqfq_blk::device::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Kind, When};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::path::{Merge, PathOptions};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::{HctxId, PolicyKind, PolicyOptions, Topology, Weight};
use mqfq_sched::policy::{AnyPolicy, Policy};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4096;

fn device(rules: Vec<FaultRule>) -> FaultDevice {
    FaultDevice::new(Arc::new(MemoryDevice::new(MIB)), FaultPlan { seed: 1, rules, ..FaultPlan::default() })
}

fn write(block: u64) -> Asked {
    Asked { flow: 0, op: Op::Write, offset_bytes: block * u64::from(BLOCK), length_bytes: BLOCK, fill: 1 }
}

#[test]
fn i4_worker_whose_device_refuses_lets_others_have_its_tokens() {
    // D = 2. Worker 0 has one command on the device and one that the device refused, so both tokens; worker 1 waits for
    // one. Worker 0's command ends and the other is refused again: the free token is of no use to worker 0, though it
    // has a request staged, behind that of worker 1. (bfq serves one worker's queue of a flow at a time, and keeps the
    // device for it.)
    for kind in PolicyKind::ALL.into_iter().filter(|kind| kind.has_depth() && *kind != PolicyKind::Bfq) {
        let faulty = device(Vec::new());
        faulty.stall_until(100);
        let device = Narrow::new(faulty, 2);
        device.set_room(0, 1);
        let setup = Setup { kind, workers: 2, depth: 2, ..Setup::plain(PathOptions::TIMELESS) };
        let mut rig = Rig::new(&setup, &device);
        for (worker, block) in [(0, 0), (0, 1), (1, 2), (0, 3)] {
            rig.submit(worker, write(block), false).unwrap();
            assert!(rig.run().is_empty());
        }
        let on_device = |rig: &Rig| rig.hctxs.iter().map(|hctx| hctx.stats().commands).collect::<Vec<_>>();
        assert!(rig.hctxs[0].is_blocked(), "{kind}");
        assert_eq!(on_device(&rig), [1, 0], "{kind}: no token is left for worker 1");
        device.set_room(0, 0);
        let ended: Vec<u64> = rig.go_to(100).iter().map(|ended| ended.asked.offset_bytes / u64::from(BLOCK)).collect();
        assert!(rig.hctxs[0].is_blocked(), "{kind}");
        assert_eq!((on_device(&rig), ended), (vec![1, 1], vec![0, 2]), "{kind}: worker 1 goes on without worker 0");
        device.set_room(0, 1);
        rig.wake_all();
        assert_eq!(rig.finish().len(), 2, "{kind}");
        rig.assert_clean();
    }
}

#[test]
fn merged_commands_that_the_device_refuses_wait_in_their_order_and_none_is_lost() {
    // The queue takes one command. Each third block opens a command of two; when one is refused, the next is open
    // already. Every write of block 4 fails, so its command is taken apart, and the two go again, the second when the
    // first has made room.
    for kind in PolicyKind::ALL {
        for merge in Merge::ALL {
            let bad = 4 * u64::from(BLOCK)..5 * u64::from(BLOCK);
            let rule = FaultRule { bytes: Some(bad), ..FaultRule::any(When::Always, Fault::Error(Status::Io)) };
            let device = Narrow::new(device(vec![rule]), 1);
            device.set_room(0, 1);
            let setup = Setup { kind, ..Setup::plain(PathOptions { merge, ..PathOptions::TIMELESS }) };
            let mut rig = Rig::new(&setup, &device);
            let blocks: Vec<u64> = (0..30).filter(|block| block % 3 < 2).collect();
            for &block in &blocks {
                rig.submit(0, write(block), false).unwrap();
            }
            let mut ended: Vec<_> = rig
                .finish()
                .iter()
                .map(|ended| (ended.asked.offset_bytes / u64::from(BLOCK), ended.completion.status == Status::Ok))
                .collect();
            if merge == Merge::None {
                assert!(ended.is_sorted(), "{kind}: {ended:?}");
            }
            ended.sort_unstable();
            let expected: Vec<_> = blocks.into_iter().map(|block| (block, block != 4)).collect();
            assert_eq!(ended, expected, "{kind} {merge}");
            // Twenty requests, of which two went twice; or half as many commands and those two.
            let stats = rig.stats();
            let expected = if merge == Merge::None { (0, 20, 20) } else { (1, 22, 12) };
            assert_eq!((stats.taken_apart, stats.dispatched, stats.commands), expected, "{kind} {merge}");
            rig.assert_clean();
        }
    }
}

#[test]
fn a_context_that_has_something_to_send_again_is_not_quiet() {
    // Block 0 hangs, block 1 is given back with it by a reset: no tag is out then and nothing staged, and yet a request
    // is on its way.
    const TIMEOUT_NS: u64 = 1_000_000;
    let rules = (0..2).map(|n| FaultRule::of(Kind::Write, When::Nth(n), Fault::Forget)).collect();
    let path = PathOptions { timeout_ns: TIMEOUT_NS, ..PathOptions::default() };
    let mut rig = Rig::new(&Setup { kind: PolicyKind::Mqfq, ..Setup::plain(path) }, &device(rules));
    rig.submit(0, write(0), false).unwrap();
    rig.run();
    rig.go_to(TIMEOUT_NS);
    rig.now_ns = TIMEOUT_NS * 3 / 2;
    rig.submit(0, write(1), false).unwrap();
    rig.run();
    rig.hctxs[0].freeze(rig.now_ns);
    rig.now_ns = TIMEOUT_NS * 2;
    let ended = rig.reap(0);
    assert_eq!(ended.iter().map(|ended| ended.completion.status).collect::<Vec<_>>(), [Status::TimedOut]);
    let hctx = &rig.hctxs[0];
    assert_eq!((hctx.staged(), hctx.in_flight(), hctx.admitted(), hctx.is_quiet()), (0, 0, 1, false));
    // It goes again and ends under the old policy; then the change is made, and what came meanwhile is the new one's.
    rig.submit(0, write(2), false).unwrap();
    let ended = rig.run();
    assert_eq!(ended.iter().map(|ended| ended.completion.status).collect::<Vec<_>>(), [Status::Ok]);
    assert!(rig.hctxs[0].is_quiet());
    let options = PolicyOptions::new(PolicyKind::Sfqd);
    let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).unwrap());
    let queue = policy.open_queue(HctxId(0), 256);
    rig.hctxs[0].thaw(Some((policy.clone(), queue)), rig.now_ns, &mut |_: HctxId| ());
    rig.policy = policy;
    rig.wake_all();
    assert_eq!(rig.finish().len(), 1);
    rig.assert_clean();
}

#[test]
fn i4_worker_without_a_tag_lets_others_have_its_tokens() {
    // D = 2, queues of one command. Worker 0 has one on the device for long and one staged, worker 1 one for a moment,
    // and worker 2 waits for a token behind them. The token that comes free is of no use to worker 0. (Policies with
    // one queue for all workers grant in its order, whoever has a place.)
    for kind in [PolicyKind::Mqfq, PolicyKind::MqfqSerial] {
        let delays = [(0, 10_000), (1, 100), (2, 100)];
        let rules = delays.map(|(nth, ns)| FaultRule::of(Kind::Write, When::Nth(nth), Fault::Delay { ns }));
        let setup = Setup { kind, workers: 3, depth: 2, queue_depth: 1, ..Setup::plain(PathOptions::TIMELESS) };
        let mut rig = Rig::new(&setup, &device(rules.into()));
        for (worker, block) in [(0, 0), (0, 1), (1, 2), (2, 3)] {
            rig.submit(worker, write(block), false).unwrap();
            assert!(rig.run().is_empty());
        }
        let on_device = |rig: &Rig| rig.hctxs.iter().map(|hctx| hctx.stats().commands).collect::<Vec<_>>();
        assert_eq!(on_device(&rig), [1, 1, 0], "{kind}");
        let ended: Vec<u64> = rig.go_to(100).iter().map(|ended| ended.asked.offset_bytes / u64::from(BLOCK)).collect();
        assert_eq!((on_device(&rig), ended), (vec![1, 1, 1], vec![2]), "{kind}: worker 2 goes on without worker 0");
        assert_eq!(rig.finish().len(), 3, "{kind}");
        rig.assert_clean();
    }
}

#[test]
fn a_request_that_goes_again_is_known_by_its_new_tag() {
    // Two share a command, which fails; they go again alone, with a tag each.
    let rule = FaultRule { bytes: Some(0..1), ..FaultRule::any(When::Always, Fault::Error(Status::Io)) };
    let path = PathOptions { merge: Merge::Back, ..PathOptions::TIMELESS };
    let mut rig = Rig::new(&Setup::plain(path), &device(vec![rule]));
    rig.hctxs[0].start_trace(4);
    (0..2).for_each(|block| _ = rig.submit(0, write(block), false).unwrap());
    assert_eq!(rig.finish().len(), 2);
    let mut tags: Vec<_> = rig.hctxs[0].take_trace().unwrap().records.iter().map(|it| it.tag.unwrap().0).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1]);
    rig.assert_clean();
}
