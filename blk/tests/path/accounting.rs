//! Counters of a context's device, the samples that its recorder keeps, and charges that follow the cost of writes.

use crate::harness::{Rig, Setup};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::device::{Device, QueueOptions};
use mqfq_blk::hctx::{HwCtx, HwCtxOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status, Submission};
use mqfq_blk::split::Split;
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::trace::TraceEvent;
use mqfq_blk::{CostModel, FlowId, HctxId, PolicyKind, PolicyOptions, Topology, Weight};
use mqfq_policies::{BFQ, KYBER, SFQD};
use mqfq_sched::policy::AnyPolicy;
use mqfq_sched::write_cost::WriteCost;
use std::sync::Arc;

/// D = 2, one flow, memory.
fn context() -> HwCtx<AnyPolicy> {
    let options = PolicyOptions { depth: 2, ..PolicyOptions::new(PolicyKind::Mqfq) };
    context_of(AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).unwrap(), PathOptions::default())
}

fn context_of(policy: AnyPolicy, path: PathOptions) -> HwCtx<AnyPolicy> {
    context_of_flows(1, policy, path)
}

fn context_of_flows(flows: usize, policy: AnyPolicy, path: PathOptions) -> HwCtx<AnyPolicy> {
    context_of_worker(HctxId(0), flows, Arc::new(policy), path)
}

fn context_of_worker(worker: HctxId, flows: usize, policy: Arc<AnyPolicy>, path: PathOptions) -> HwCtx<AnyPolicy> {
    let queue = QueueOptions {
        hctx: worker,
        depth: 8,
        #[cfg(feature = "uring")]
        ring: None,
        interrupt: Arc::new(|_| {}),
    };
    HwCtx::new(HwCtxOptions {
        id: worker,
        policy,
        device: MemoryDevice::new(1 << 20).open_queue(queue).unwrap(),
        queue_depth: 8,
        limits: vec![StageLimits::DEFAULT; flows],
        cost: CostModel::FLAT,
        path,
    })
}

fn submit(hctx: &mut HwCtx<AnyPolicy>, op: Op, offset_bytes: u64, now_ns: u64) {
    submit_with(hctx, op, offset_bytes, false, now_ns);
}

fn submit_with(hctx: &mut HwCtx<AnyPolicy>, op: Op, offset_bytes: u64, fua: bool, now_ns: u64) {
    let submission = Submission {
        flow: FlowId(0),
        op,
        offset_bytes,
        length_bytes: 4096,
        fua,
        buffer: Some(Buffer::new(4096)),
        cookie: offset_bytes,
    };
    hctx.submit(Owner(5), submission, now_ns, &mut |_: HctxId| ()).unwrap();
}

fn run(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64) -> usize {
    hctx.run(now_ns, &mut |_: HctxId| ()).dispatched
}

fn reap(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64) -> usize {
    hctx.reap(now_ns, &mut |_: HctxId| (), &mut Vec::new())
}

#[test]
fn time_on_the_device_is_counted_once_and_by_commands() {
    let mut hctx = context();
    (0..3).for_each(|n| submit(&mut hctx, Op::Read, n * 4096, 100));
    assert_eq!(run(&mut hctx, 200), 2, "D = 2");
    let stats = hctx.stats();
    assert_eq!((stats.in_flight, stats.staged, stats.busy_ns, stats.in_flight_ns), (2, 1, 0, 0));
    assert_eq!(reap(&mut hctx, 700), 2);
    let stats = hctx.stats();
    assert_eq!((stats.busy_ns, stats.in_flight_ns), (500, 1000), "two commands for 500 ns");
    assert_eq!(run(&mut hctx, 1700), 1);
    assert_eq!(reap(&mut hctx, 1800), 1);
    let stats = hctx.stats();
    assert_eq!((stats.in_flight, stats.staged), (0, 0));
    assert_eq!((stats.busy_ns, stats.in_flight_ns), (600, 1100), "nothing was there for 1000 ns, then one for 100");
    let flow = hctx.counters().read_flow(FlowId(0)).unwrap();
    // From 100 to 700 twice, from 100 to 1800.
    assert_eq!((flow.completed[0], flow.bytes[0], flow.total_ns_sum[0]), (3, 3 * 4096, 2 * 600 + 1700));
}

#[test]
fn the_recorder_has_each_step_of_each_request_and_what_held_them_back() {
    let mut hctx = context();
    submit(&mut hctx, Op::Read, 0, 10);
    run(&mut hctx, 20);
    assert_eq!(hctx.take_trace(), None, "it was off");
    hctx.start_trace(2);
    reap(&mut hctx, 30);
    submit(&mut hctx, Op::Write, 4096, 40);
    submit(&mut hctx, Op::Write, 8192, 41);
    submit(&mut hctx, Op::Write, 12288, 42);
    run(&mut hctx, 50);
    reap(&mut hctx, 60);
    run(&mut hctx, 70);
    submit(&mut hctx, Op::Read, 16384, 80);
    let trace = hctx.take_trace().unwrap();
    let steps: Vec<_> = trace
        .records
        .iter()
        .map(|r| (r.op, r.offset_bytes, r.submitted_ns, r.dispatched_ns, r.tag.is_some(), r.completed))
        .collect();
    let ok = |at_ns| Some((at_ns, Status::Ok));
    // The first completed after the start and was overwritten; the last two are under way, in any order.
    assert_eq!(steps[0], (Op::Write, 4096, 40, Some(50), true, ok(60)));
    assert_eq!(steps[1], (Op::Write, 8192, 41, Some(50), true, ok(60)));
    assert!(steps[2..].contains(&(Op::Write, 12288, 42, Some(70), true, None)));
    assert!(steps[2..].contains(&(Op::Read, 16384, 80, None, false, None)));
    assert_eq!((steps.len(), trace.records_lost), (4, 1));
    assert!(trace.records.iter().all(|record| record.owner == Owner(5) && record.flow == FlowId(0)));
    let marks: Vec<_> = trace.marks.iter().map(|mark| (mark.at_ns, mark.event)).collect();
    assert_eq!(marks, [(50, TraceEvent::NoToken)]);
    assert_eq!(hctx.take_trace(), None, "taking it stops it");
    reap(&mut hctx, 90);
    run(&mut hctx, 90);
    reap(&mut hctx, 95);
}

/// Three quarters of kyber's D are for requests that no client waits for.
#[test]
fn writes_are_waited_for_unless_the_device_says_that_a_cache_writes_them_back() {
    for (async_writes, fua, on_device) in [(false, false, 8), (true, false, 6), (true, true, 8)] {
        let options = PolicyOptions { depth: 8, ..PolicyOptions::new(KYBER) };
        let policy = AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).unwrap();
        let path = PathOptions { async_writes, ..PathOptions::default() };
        let mut hctx = context_of(policy, path);
        for n in 0..8 {
            submit_with(&mut hctx, Op::Write, n * 4096, fua, 0);
        }
        assert_eq!(run(&mut hctx, 10), on_device, "async {async_writes}, FUA {fua}");
        while hctx.admitted() > 0 {
            reap(&mut hctx, 20);
            run(&mut hctx, 20);
        }
    }
}

/// Three quarters of D again, for each kind of request as it ships.
#[test]
fn nobody_waits_for_discards_and_zeroes_without_fua() {
    let zeroes = Op::WriteZeroes { may_unmap: true };
    for (op, fua, on_device) in [
        (Op::Read, false, 8),
        (Op::Write, false, 8),
        (Op::Discard, false, 6),
        (zeroes, false, 6),
        (Op::Discard, true, 8),
        (zeroes, true, 8),
    ] {
        let options = PolicyOptions { depth: 8, ..PolicyOptions::new(KYBER) };
        let policy = AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).unwrap();
        let mut hctx = context_of(policy, PathOptions::default());
        (0..8).for_each(|n| submit_with(&mut hctx, op, n * 4096, fua, 0));
        assert_eq!(run(&mut hctx, 10), on_device, "{op:?}, FUA {fua}");
        while hctx.admitted() > 0 {
            reap(&mut hctx, 20);
            run(&mut hctx, 20);
        }
    }
}

/// Two flows of equal weight, D in units of 4 KiB.
fn two_flows(depth: u32) -> HwCtx<AnyPolicy> {
    let options = PolicyOptions { depth, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT; 2]).unwrap();
    context_of_flows(2, policy, PathOptions::default())
}

fn submit_of(hctx: &mut HwCtx<AnyPolicy>, flow: u32, op: Op, length_bytes: u32) {
    let buffer = matches!(op, Op::Read | Op::Write).then(|| Buffer::new(length_bytes as usize));
    let flow = FlowId(flow);
    let submission = Submission { flow, op, offset_bytes: 0, length_bytes, fua: false, buffer, cookie: flow.0.into() };
    hctx.submit(Owner(5), submission, 0, &mut |_: HctxId| ()).unwrap();
}

#[test]
fn a_tenant_that_writes_zeroes_gets_no_more_than_one_that_writes() {
    for may_unmap in [false, true] {
        let mut hctx = two_flows(1);
        let loads = [(Op::WriteZeroes { may_unmap }, 256 << 10), (Op::Write, 16 << 10)];
        for (flow, (op, length_bytes)) in (0..).zip(loads) {
            (0..8).for_each(|_| submit_of(&mut hctx, flow, op, length_bytes));
        }
        let mut bytes = [0u64; 2];
        let mut ended = Vec::new();
        for now_ns in 1..2000 {
            run(&mut hctx, now_ns);
            hctx.reap(now_ns, &mut |_: HctxId| (), &mut ended);
            for (_, completion) in ended.drain(..) {
                let flow = completion.cookie as u32;
                bytes[flow as usize] += u64::from(completion.length_bytes);
                let (op, length_bytes) = loads[flow as usize];
                submit_of(&mut hctx, flow, op, length_bytes);
            }
        }
        assert!(bytes[0] > 20 << 20 && bytes[0].abs_diff(bytes[1]) < 1 << 20, "{bytes:?}");
        while hctx.admitted() > 0 {
            run(&mut hctx, 3000);
            reap(&mut hctx, 3000);
        }
    }
}

#[test]
fn zeroes_and_discards_hold_a_unit_of_d_however_long_they_are() {
    for op in [Op::WriteZeroes { may_unmap: false }, Op::Discard] {
        let mut hctx = two_flows(4);
        submit_of(&mut hctx, 0, op, 1 << 20);
        (0..4).for_each(|_| submit_of(&mut hctx, 1, Op::Read, 4096));
        assert_eq!(run(&mut hctx, 1), 4, "{op:?} and three reads");
        for now_ns in 2..1000 {
            reap(&mut hctx, now_ns);
            run(&mut hctx, now_ns);
            if hctx.admitted() == 0 {
                break;
            }
        }
        let cost = |flow: u32| hctx.counters().read_flow(FlowId(flow)).map(|stats| stats.cost);
        assert_eq!((cost(0), cost(1)), (Some(if op == Op::Discard { 4096 } else { 1 << 20 }), Some(4 * 4096)));
    }
}

#[test]
fn the_recorder_has_each_part_and_each_change_of_policy() {
    let options = PolicyOptions::new(PolicyKind::None);
    let policy = AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT]).unwrap();
    let mut hctx = context_of(policy, PathOptions { split: Split::Bytes(4096), ..PathOptions::default() });
    hctx.start_trace(8);
    let submission = Submission {
        flow: FlowId(0),
        op: Op::Read,
        offset_bytes: 4096,
        length_bytes: 8192,
        fua: false,
        buffer: Some(Buffer::new(8192)),
        cookie: 0,
    };
    hctx.submit(Owner(5), submission, 10, &mut |_: HctxId| ()).unwrap();
    assert_eq!((run(&mut hctx, 20), reap(&mut hctx, 30)), (2, 2));
    hctx.freeze(40);
    hctx.thaw(None, 50, &mut |_: HctxId| ());
    let trace = hctx.take_trace().unwrap();
    let parts: Vec<_> = trace.records.iter().map(|it| (it.offset_bytes, it.length_bytes, it.completed)).collect();
    assert_eq!(parts, [4096, 8192].map(|at| (at, 4096, Some((30, Status::Ok)))));
    let marks: Vec<_> = trace.marks.iter().map(|mark| (mark.at_ns, mark.event)).collect();
    assert_eq!(marks, [(40, TraceEvent::Frozen), (50, TraceEvent::Thawed)]);
}

#[test]
fn who_is_held_back_is_counted_and_recorded_with_the_reason_until_the_policy_is_asked_again() {
    // Without a token: D is 2.
    let mut hctx = context();
    hctx.start_trace(4);
    (0..3).for_each(|n| submit(&mut hctx, Op::Read, n * 4096, 0));
    run(&mut hctx, 100);
    reap(&mut hctx, 700);
    run(&mut hctx, 800);
    let stats = hctx.stats();
    assert_eq!((stats.no_token, stats.no_token_ns, stats.throttled, stats.throttled_ns), (1, 700, 0, 0));
    reap(&mut hctx, 900);
    // Throttled: worker 0 has the first request of the flow staged, and T is over for worker 1.
    let options = PolicyOptions { depth: 64, ..PolicyOptions::new(PolicyKind::Mqfq) };
    let policy = Arc::new(AnyPolicy::new(&options, &Topology::flat(2), &[Weight::DEFAULT]).unwrap());
    let mut hctxs = [0, 1].map(|worker| context_of_worker(HctxId(worker), 1, policy.clone(), PathOptions::default()));
    submit_of(&mut hctxs[0], 0, Op::Read, 4096);
    (0..3).for_each(|_| submit_of(&mut hctxs[1], 0, Op::Read, 64 << 10));
    hctxs[1].start_trace(4);
    assert_eq!(run(&mut hctxs[1], 100), 1);
    assert_eq!(run(&mut hctxs[0], 400), 1);
    assert_eq!(run(&mut hctxs[1], 500), 2);
    let stats = hctxs[1].stats();
    assert_eq!((stats.no_token, stats.no_token_ns, stats.throttled, stats.throttled_ns), (0, 0, 1, 400));
    let marks = hctxs[1].take_trace().unwrap().marks;
    assert_eq!(marks.iter().map(|it| (it.at_ns, it.event)).collect::<Vec<_>>(), [(100, TraceEvent::Throttled)]);
    hctxs.iter_mut().for_each(|hctx| _ = reap(hctx, 600));
}

#[test]
fn a_wait_for_a_better_request_is_counted_and_recorded() {
    let options = PolicyOptions { depth: 1, ..PolicyOptions::new(BFQ) };
    let policy = AnyPolicy::new(&options, &Topology::flat(1), &[Weight::DEFAULT; 2]).unwrap();
    let mut hctx = context_of_flows(2, policy, PathOptions::default());
    hctx.start_trace(4);
    submit_of(&mut hctx, 0, Op::Read, 4096);
    assert_eq!(run(&mut hctx, 10), 1);
    reap(&mut hctx, 20);
    submit_of(&mut hctx, 1, Op::Read, 4096);
    assert_eq!((run(&mut hctx, 30), hctx.stats().later), (0, 1), "flow 0 may have another one");
    let later_ns = hctx.next_event_ns().expect("it will be asked again");
    let marks = hctx.take_trace().unwrap().marks;
    assert_eq!(marks.iter().map(|it| (it.at_ns, it.event)).collect::<Vec<_>>(), [(30, TraceEvent::Later)]);
    assert_eq!((run(&mut hctx, later_ns), reap(&mut hctx, later_ns + 1)), (1, 1));
}

// Charges that follow a device's cost of writes.

const BLOCK: u32 = 4096;

#[test]
fn a_reader_and_a_writer_share_the_time_of_a_device_that_takes_three_times_as_long_for_a_write() {
    // Equal weights, one command at a time, and both flows always have another request waiting.
    const READ_NS: u64 = 40_000;
    const WRITE_NS: u64 = 3 * READ_NS;
    let cost = Arc::new(WriteCost::new(CostModel::FLAT, 1));
    let setup = Setup { kind: SFQD, weights: vec![100, 100], depth: 1, ..Setup::plain(PathOptions::TIMELESS) };
    let mut rig = Rig::new(&setup, &NullDevice::new(1 << 30));
    rig.hctxs = rig.hctxs.into_iter().map(|hctx| hctx.with_write_cost(cost.clone())).collect();
    let ask = |rig: &mut Rig, op| rig.ask((op == Op::Write).into(), op, 0, BLOCK, 1);
    [Op::Read, Op::Write, Op::Read, Op::Write].into_iter().for_each(|op| ask(&mut rig, op));
    let mut of_each_ns = [0; 2];
    // About 512 requests are a phase, and nine phases a round of the estimate.
    for n in 0..60_000 {
        rig.hctxs[0].run(rig.now_ns, &mut |_: HctxId| panic!("nobody else is there"));
        for ended in rig.reap(0) {
            let op = ended.asked.op;
            let took_ns = if op == Op::Write { WRITE_NS } else { READ_NS };
            rig.now_ns += took_ns;
            if n >= 30_000 {
                of_each_ns[usize::from(op == Op::Write)] += took_ns;
            }
            ask(&mut rig, op);
        }
    }
    let found = cost.estimate_256ths();
    assert!(found.abs_diff(3 * 256) < 40, "{found} is not 768");
    let [read_ns, write_ns] = of_each_ns;
    assert!(read_ns.abs_diff(write_ns) < (read_ns + write_ns) / 50, "{read_ns} and {write_ns} ns");
}
