//! A device that refuses commands for a while: other workers have the refused one's unused tokens, and nothing is
//! forgotten meanwhile.

use crate::harness::{Narrow, RequestSpec, Rig, Setup};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::hctx::HwCtx;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::{HctxId, PolicyKind, PolicyOptions, Topology, Weight};
use mqfq_policies::{BFQ, MQFQ_SERIAL, SFQD};
use mqfq_sched::policy::{AnyPolicy, Policy};
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Kind, When};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4096;

fn device(rules: Vec<FaultRule>) -> FaultDevice {
    FaultDevice::new(Arc::new(MemoryDevice::new(MIB)), FaultPlan { seed: 1, rules, ..FaultPlan::default() })
}

fn write(block: u64) -> RequestSpec {
    RequestSpec { flow: 0, op: Op::Write, offset_bytes: block * u64::from(BLOCK), length_bytes: BLOCK, fill: 1 }
}

#[test]
fn i4_worker_whose_device_refuses_lets_others_have_its_tokens() {
    // D = 2. Worker 0 has one command on the device and one that the device refused, so both tokens; worker 1 waits for
    // one. Worker 0's command ends and the other is refused again: the free token is of no use to worker 0, though it
    // has a request staged, behind that of worker 1. (bfq serves one worker's queue of a flow at a time, and keeps the
    // device for it.)
    for kind in mqfq_policies::ALL.into_iter().filter(|kind| kind.has_depth() && *kind != BFQ) {
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
        let on_device = |rig: &Rig| rig.hctxs.iter().map(|hctx| hctx.stats().dispatched).collect::<Vec<_>>();
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
fn commands_that_the_device_refuses_wait_in_their_order_and_none_is_lost() {
    // The queue takes one command. Every write of block 4 fails.
    for kind in mqfq_policies::ALL {
        let bad = 4 * u64::from(BLOCK)..5 * u64::from(BLOCK);
        let rule = FaultRule { bytes: Some(bad), ..FaultRule::any(When::Always, Fault::Error(Status::Io)) };
        let device = Narrow::new(device(vec![rule]), 1);
        device.set_room(0, 1);
        let mut rig = Rig::new(&Setup { kind, ..Setup::plain(PathOptions::TIMELESS) }, &device);
        (0..20).for_each(|block| _ = rig.submit(0, write(block), false).unwrap());
        let ended: Vec<_> = rig
            .finish()
            .iter()
            .map(|ended| (ended.asked.offset_bytes / u64::from(BLOCK), ended.completion.status == Status::Ok))
            .collect();
        assert_eq!(ended, (0..20).map(|block| (block, block != 4)).collect::<Vec<_>>(), "{kind}");
        assert_eq!(rig.stats().dispatched, 20, "{kind}");
        rig.assert_clean();
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
    // It goes again and ends under the old policy; then the change is made, and later requests are the new one's.
    rig.submit(0, write(2), false).unwrap();
    let ended = rig.run();
    assert_eq!(ended.iter().map(|ended| ended.completion.status).collect::<Vec<_>>(), [Status::Ok]);
    assert!(rig.hctxs[0].is_quiet());
    let options = PolicyOptions::new(SFQD);
    let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).unwrap());
    let queue = policy.open_queue(HctxId(0), 256);
    rig.hctxs[0].thaw(Some((policy.clone(), queue)), rig.now_ns, &mut |_: HctxId| ());
    rig.policy = policy;
    rig.wake_all();
    assert_eq!(rig.finish().len(), 1);
    rig.assert_clean();
}

#[test]
fn a_context_whose_request_waits_for_the_token_of_another_is_not_quiet() {
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL, SFQD] {
        let rule = FaultRule::of(Kind::Write, When::Nth(0), Fault::Delay { ns: 1_000 });
        let setup = Setup { kind, workers: 2, depth: 1, ..Setup::plain(PathOptions::TIMELESS) };
        let mut rig = Rig::new(&setup, &device(vec![rule]));
        (0..2).for_each(|worker| _ = rig.submit(worker, write(worker as u64), false).unwrap());
        assert!(rig.run().is_empty());
        rig.hctxs.iter_mut().for_each(|hctx| hctx.freeze(0));
        let of = |it: &HwCtx<AnyPolicy>| (it.staged(), it.in_flight(), it.is_quiet());
        let seen = |rig: &Rig| rig.hctxs.iter().map(of).collect::<Vec<_>>();
        assert_eq!(seen(&rig), [(0, 1, false), (1, 0, false)], "{kind}");
        assert_eq!((rig.finish().len(), seen(&rig)), (2, vec![(0, 0, true); 2]), "{kind}");
    }
}

#[test]
fn i4_worker_without_a_tag_lets_others_have_its_tokens() {
    // D = 2, queues of one command. Worker 0 has one on the device for long and one staged, worker 1 one for a moment,
    // and worker 2 waits for a token behind them. The token that comes free is of no use to worker 0. (Policies with
    // one queue for all workers grant in its order, whichever worker has a place.)
    for kind in [PolicyKind::Mqfq, MQFQ_SERIAL] {
        let delays = [(0, 10_000), (1, 100), (2, 100)];
        let rules = delays.map(|(nth, ns)| FaultRule::of(Kind::Write, When::Nth(nth), Fault::Delay { ns }));
        let setup = Setup { kind, workers: 3, depth: 2, queue_depth: 1, ..Setup::plain(PathOptions::TIMELESS) };
        let mut rig = Rig::new(&setup, &device(rules.into()));
        for (worker, block) in [(0, 0), (0, 1), (1, 2), (2, 3)] {
            rig.submit(worker, write(block), false).unwrap();
            assert!(rig.run().is_empty());
        }
        let on_device = |rig: &Rig| rig.hctxs.iter().map(|hctx| hctx.stats().dispatched).collect::<Vec<_>>();
        assert_eq!(on_device(&rig), [1, 1, 0], "{kind}");
        let ended: Vec<u64> = rig.go_to(100).iter().map(|ended| ended.asked.offset_bytes / u64::from(BLOCK)).collect();
        assert_eq!((on_device(&rig), ended), (vec![1, 1, 1], vec![2]), "{kind}: worker 2 goes on without worker 0");
        assert_eq!(rig.finish().len(), 3, "{kind}");
        rig.assert_clean();
    }
}
