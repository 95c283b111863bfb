//! Bounds of one call and of one flow.

use crate::harness::{RequestSpec, Rig, Setup};
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::Op;
use mqfq_blk::{FlowId, HctxId, PolicyKind};
use mqfq_policies::{MQ_DEADLINE, SFQD};

const GIB: u64 = 1 << 30;
const BLOCK: u32 = 4096;

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
