//! Bounds of one call and of one flow; and a device that refuses commands for a while: other workers have the refused
//! one's unused tokens, and nothing is forgotten meanwhile.

use crate::harness::{Narrow, RequestSpec, Rig, Setup};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::hctx::HwCtx;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::{FlowId, HctxId, PolicyKind, PolicyOptions, Topology, Weight};
use mqfq_policies::{BFQ, MQ_DEADLINE, MQFQ_SERIAL, SFQD};
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

// Bounds of one call and of one flow.

const GIB: u64 = 1 << 30;

#[test]
fn a_run_dispatches_a_batch_at_most_and_says_that_there_is_more() {
    let setup = Setup { queue_depth: 1000, requests_max: 1000, ..Setup::plain(PathOptions::TIMELESS) };
    let mut rig = Rig::new(&setup, &NullDevice::new(GIB));
    (0..150).for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
    let runs = [(); 4].map(|()| {
        let run = rig.hctxs[0].run(0, &mut |_: HctxId| panic!("nobody else is there"));
        (run.dispatched, run.again)
    });
    assert_eq!(runs, [(64, true), (64, true), (22, false), (0, false)]);
    assert_eq!(rig.finish().len(), 150);
    rig.assert_clean();
}

#[test]
fn a_flows_bound_in_bytes_is_of_what_holds_memory() {
    // 64 MiB may be staged. A discard or a zeroing names bytes and holds none.
    let asked = |op| RequestSpec { flow: 0, op, offset_bytes: 0, length_bytes: 32 << 20, fill: 1 };
    let staged = |op| {
        let mut rig = Rig::new(&Setup::plain(PathOptions::TIMELESS), &NullDevice::new(GIB));
        let count = (0..10).take_while(|_| rig.submit(0, asked(op), false).is_some()).count();
        assert_eq!(rig.finish().len(), count);
        rig.assert_clean();
        count
    };
    let counts = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes { may_unmap: true }].map(staged);
    assert_eq!(counts, [2, 2, 10, 10]);
}

#[test]
fn a_run_whose_turn_ends_says_that_there_is_more() {
    // Two flows compete, so a client is given 192 KiB in a turn.
    const LARGE: u32 = 64 << 10;
    let setup = Setup { weights: vec![100, 100], ..Setup::plain(PathOptions::TIMELESS) };
    let mut rig = Rig::new(&setup, &NullDevice::new(GIB));
    rig.hctxs[0].begin_turn();
    (0..8).for_each(|n| rig.read(0, n * u64::from(LARGE), LARGE));
    rig.read(1, 0, BLOCK);
    rig.hctxs[0].looked(FlowId(0));
    let run = |rig: &mut Rig| {
        let run = rig.hctxs[0].run(0, &mut |_: HctxId| panic!("nobody else is there"));
        (run.dispatched, run.again)
    };
    assert_eq!([run(&mut rig), run(&mut rig)], [(3, true), (0, true)], "nothing more before the next turn");
    rig.hctxs[0].begin_turn();
    assert_eq!(run(&mut rig), (3, true));
    rig.hctxs[0].begin_turn();
    assert_eq!(run(&mut rig), (1, true), "the last of a flow stays while the sockets are looked at");
    rig.hctxs[0].begin_turn();
    rig.hctxs[0].looked(FlowId(0));
    assert_eq!(run(&mut rig), (2, false));
    assert_eq!(rig.finish().len(), 9);
    rig.assert_clean();
}

#[test]
fn a_worker_whose_device_queue_is_full_passes_on_what_it_cannot_use() {
    // Four units of depth, and queues of two commands. One of the units waits with the third request of worker 1; with
    // two of its commands back, it has one more than it has commands for.
    for kind in [SFQD, MQ_DEADLINE] {
        let setup = Setup { kind, workers: 2, depth: 4, queue_depth: 2, ..Setup::plain(PathOptions::TIMELESS) };
        let mut rig = Rig::new(&setup, &NullDevice::new(GIB));
        for (n, worker) in [1, 0, 1, 1, 1, 0].into_iter().enumerate() {
            let offset_bytes = n as u64 * u64::from(BLOCK);
            let asked = RequestSpec { flow: 0, op: Op::Read, offset_bytes, length_bytes: BLOCK, fill: 0 };
            rig.submit(worker, asked, false).expect("within the bound");
        }
        let in_flight_after_runs = |rig: &mut Rig, due: &[usize]| {
            let mut due = due.to_vec();
            while let Some(worker) = due.pop() {
                rig.hctxs[worker].run(0, &mut |to: HctxId| due.push(to.index()));
            }
            [rig.hctxs[0].in_flight(), rig.hctxs[1].in_flight()]
        };
        assert_eq!(in_flight_after_runs(&mut rig, &[0, 1]), [1, 2], "{kind}");
        rig.reap(1);
        assert_eq!(in_flight_after_runs(&mut rig, &[1]), [2, 2], "{kind}");
    }
}

#[test]
fn whoever_lets_others_go_ends_its_turns_for_their_sake() {
    // Flow 1 is throttled on worker 1 behind what flow 0 has staged on worker 0, where no other flow is.
    const LARGE: u32 = 64 << 10;
    let kind = PolicyKind::Mqfq;
    let setup = Setup { kind, workers: 2, weights: vec![100, 100], ..Setup::plain(PathOptions::TIMELESS) };
    let mut rig = Rig::new(&setup, &NullDevice::new(GIB));
    let reads = |rig: &mut Rig, flow: u32, count: u64| {
        (0..count).for_each(|n| {
            let asked =
                RequestSpec { flow, op: Op::Read, offset_bytes: n * u64::from(LARGE), length_bytes: LARGE, fill: 0 };
            rig.submit(flow as usize, asked, false).expect("within the bound");
        });
    };
    reads(&mut rig, 0, 4);
    reads(&mut rig, 1, 20);
    let mut kicked = Vec::new();
    assert!(rig.hctxs[1].run(0, &mut |to: HctxId| kicked.push(to)).dispatched < 20 && kicked.is_empty());
    assert!(rig.hctxs[1].is_held_back());
    let mut turn = |rig: &mut Rig| {
        rig.hctxs[0].begin_turn();
        let run = rig.hctxs[0].run(0, &mut |to: HctxId| kicked.push(to));
        (run.dispatched, run.again)
    };
    assert_eq!(turn(&mut rig), (4, false), "nobody is known to compete");
    reads(&mut rig, 0, 5);
    assert_eq!(turn(&mut rig), (3, true), "192 KiB for each client");
    assert!(kicked.iter().all(|to| *to == HctxId(1)) && !kicked.is_empty());
}

#[test]
fn a_flow_whose_last_request_was_held_back_for_nothing_goes_on_the_next_time() {
    const LARGE: u32 = 64 << 10;
    let setup = Setup { weights: vec![100, 100], ..Setup::plain(PathOptions::TIMELESS) };
    let mut rig = Rig::new(&setup, &NullDevice::new(GIB));
    let turn = |rig: &mut Rig| {
        rig.hctxs[0].begin_turn();
        (0..2).for_each(|n| rig.read(0, n * u64::from(LARGE), LARGE));
        rig.read(1, 0, BLOCK);
        rig.hctxs[0].looked(FlowId(0));
        let runs = [(); 2].map(|()| {
            let run = rig.hctxs[0].run(0, &mut |_: HctxId| panic!("nobody else is there"));
            (run.dispatched, run.again)
        });
        // The sockets bring nothing.
        rig.hctxs[0].begin_turn();
        rig.hctxs[0].looked(FlowId(0));
        while rig.hctxs[0].run(0, &mut |_: HctxId| panic!("nobody else is there")).again {
            rig.hctxs[0].begin_turn();
        }
        assert_eq!(rig.reap(0).len(), 3);
        runs
    };
    assert_eq!(turn(&mut rig), [(1, true), (0, true)]);
    assert_eq!(turn(&mut rig), [(3, false), (0, false)]);
    assert_eq!(turn(&mut rig), [(1, true), (0, true)]);
    rig.assert_clean();
}
