//! Tests of the figures of its requests that a context hands to the tuning of its policy.

use super::*;
use crate::buffer::Buffer;
use crate::device::null::NullDevice;
use crate::device::{Device, QueueOptions};
use crate::hctx::{HwCtx, HwCtxOptions};
use crate::path_options::PathOptions;
use crate::request::Submission;
use crate::split::Split;
use crate::stage::StageLimits;
use crate::trace::TraceEvent;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::FlowId;

const UNIT: u32 = PolicyOptions::AUTO_TOKEN_UNIT_BYTES;

struct Tuned {
    hctx: HwCtx<AnyPolicy>,
    policy: Arc<AnyPolicy>,
    tuning: Arc<Tuning>,
    ended: Vec<(Owner, Completion)>,
}

impl Tuned {
    fn new(depth: u32, split: Split) -> Tuned {
        Tuned::on(HctxId(0), Arc::new(policy(depth, 1)), tuning(depth, 1), split)
    }

    fn on(worker: HctxId, policy: Arc<AnyPolicy>, tuning: Arc<Tuning>, split: Split) -> Tuned {
        let interrupt: Arc<dyn Fn(HctxId) + Send + Sync> = Arc::new(|_| ());
        let device = NullDevice::new(1 << 30).open_queue(QueueOptions {
            hctx: worker,
            depth: 64,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt,
        });
        let mut hctx = HwCtx::new(HwCtxOptions {
            id: worker,
            policy: policy.clone(),
            device: device.expect("it has no limits"),
            queue_depth: 64,
            limits: vec![StageLimits::DEFAULT],
            cost: CostModel::FLAT,
            path: PathOptions { split, ..PathOptions::TIMELESS },
        });
        hctx.set_tuning(Some(tuning.clone()), 0);
        Tuned { hctx, policy, tuning, ended: Vec::new() }
    }

    fn read(&mut self, units: u32, now_ns: u64) {
        let (flow, op, length_bytes) = (FlowId(0), Op::Read, units * UNIT);
        let buffer = Some(Buffer::new(length_bytes as usize));
        let submission = Submission { flow, op, offset_bytes: 0, length_bytes, fua: false, buffer, cookie: 0 };
        self.hctx.submit(Owner(0), submission, now_ns, &mut |_: HctxId| ()).expect("within the bound");
    }

    fn run(&mut self, now_ns: u64) -> usize {
        self.hctx.run(now_ns, &mut |_: HctxId| ()).dispatched
    }

    /// Appends to `ended`. Returns the requests that ended, and parts.
    fn reap(&mut self, now_ns: u64) -> usize {
        self.hctx.reap(now_ns, &mut |_: HctxId| (), &mut self.ended)
    }

    fn reaps(&self, now_ns: u64) -> u32 {
        let reaps = self.tuning.tuner.try_with(|tuner| {
            self.tuning.read(tuner, now_ns);
            tuner.reaps
        });
        reaps.expect("the tuner is free")
    }
}

#[test]
fn what_goes_to_the_device_and_comes_back_is_measured() {
    let mut tuned = Tuned::new(64, Split::Off);
    [1, 2, 9].into_iter().for_each(|at_us| tuned.read(1, at_us * US));
    assert_eq!(tuned.run(10 * US), 3);
    let seen = sample(&tuned.tuning, 15 * US);
    assert_eq!((seen.out_units, seen.requests(), seen.device_unit_ns), (3, 0, 15 * US));
    assert_eq!(tuned.reap(20 * US), 3);
    // They took 19, 18 and 11 us. Among those of one unit the first and the last stand for all: three times 15.
    let seen = sample(&tuned.tuning, 20 * US);
    assert_eq!((seen.out_units, seen.requests(), seen.units(), seen.system_unit_ns), (0, 3, 3, 45 * US));
    // Requests of several units are counted one by one.
    [(1, 20), (8, 21), (8, 29)].into_iter().for_each(|(units, at_us)| tuned.read(units, at_us * US));
    assert_eq!((tuned.run(30 * US), tuned.reap(40 * US)), (3, 3));
    let seen = sample(&tuned.tuning, 40 * US);
    assert_eq!((seen.out_units, seen.requests(), seen.units(), seen.device_unit_ns), (0, 6, 20, (30 + 170) * US));
    assert_eq!(seen.system_unit_ns, (45 + 20 + 8 * 19 + 8 * 11) * US);
    assert_eq!((tuned.reap(50 * US), tuned.reaps(50 * US), tuned.ended.len()), (0, 2, 6), "the last found nothing");
}

#[test]
fn a_part_that_came_back_is_work_of_the_device() {
    let mut tuned = Tuned::new(4, Split::Bytes(UNIT));
    tuned.read(8, 0);
    assert_eq!((tuned.run(0), tuned.reap(10 * US)), (4, 4));
    assert_eq!((tuned.ended.len(), tuned.reaps(10 * US)), (0, 1));
    assert_eq!((tuned.run(10 * US), tuned.reap(20 * US), tuned.ended.len()), (4, 4, 1));
    let seen = sample(&tuned.tuning, 20 * US);
    assert_eq!((seen.requests(), seen.units(), seen.system_unit_ns), (8, 8, 4 * (10 + 20) * US));
    // No part is under way any more: the first and the last stand for all again.
    [21, 22, 29].into_iter().for_each(|at_us| tuned.read(1, at_us * US));
    assert_eq!((tuned.run(30 * US), tuned.reap(40 * US)), (3, 3));
    assert_eq!(sample(&tuned.tuning, 40 * US).system_unit_ns, (4 * (10 + 20) + 3 * (19 + 11) / 2) * US);
}

#[test]
fn what_came_back_unexecuted_says_nothing_of_the_device() {
    for (split, at_once) in [(Split::Off, 1), (Split::Bytes(UNIT), 4)] {
        let mut tuned = Tuned::new(4, split);
        (0..3).for_each(|_| tuned.read(4, 0));
        assert_eq!(tuned.run(0), at_once);
        tuned.hctx.recall(true);
        tuned.reap(10 * US);
        for _ in 0..3 {
            tuned.run(20 * US);
            tuned.reap(20 * US);
        }
        let back = tuned.ended.iter().filter(|(_, end)| end.status == Status::Recalled).count();
        assert_eq!((tuned.ended.len(), back), (3, 2));
        let seen = sample(&tuned.tuning, 20 * US);
        assert_eq!((seen.out_units, seen.requests(), seen.units()), (0, at_once as u64, 4), "{split}");
    }
}

#[test]
fn a_depth_that_was_found_is_in_force_and_recorded() {
    let mut tuned = Tuned::new(64, Split::Off);
    tuned.hctx.start_trace(16);
    let mut now_ns = 0;
    while tuned.policy.depth() == Some(64) {
        while tuned.hctx.staged() < 128 {
            tuned.read(1, now_ns);
        }
        let dispatched = tuned.run(now_ns);
        now_ns += dispatched as u64 * US;
        assert_eq!(tuned.reap(now_ns), dispatched);
        tuned.ended.clear();
        assert!(now_ns < 1_000_000 * US, "no candidate was tried");
    }
    let marks = tuned.hctx.take_trace().expect("it was on").marks;
    let tunings: Vec<u64> = marks.iter().filter(|mark| mark.event == TraceEvent::Tuned).map(|it| it.at_ns).collect();
    assert_eq!(tunings, [now_ns]);
}

#[test]
fn whoever_is_left_without_a_token_waits_and_whoever_is_throttled_if_no_unit_is_free() {
    // With one worker and D = 1 the second of two reads has no token until the first is back.
    let mut tuned = Tuned::new(1, Split::Off);
    (0..2).for_each(|_| tuned.read(1, 0));
    assert_eq!(tuned.run(0), 1);
    assert_eq!(sample(&tuned.tuning, 10 * US).waiting_ns, 10 * US);
    assert_eq!((tuned.reap(20 * US), tuned.run(20 * US)), (1, 1));
    assert_eq!(sample(&tuned.tuning, 90 * US).waiting_ns, 20 * US, "nobody has waited since");
    tuned.reap(90 * US);
    // Worker 1 is throttled behind the read that is staged on worker 0, with 16 units out.
    for (depth_auto, depth, waits) in [(true, 16, true), (true, 64, false), (false, 16, false)] {
        let window_least = (!depth_auto).then_some(WINDOW_LEAST);
        let options = PolicyOptions { depth_auto, window_least, ..options(depth) };
        let policy = AnyPolicy::new(&options, &Topology::flat(2), &[Weight::DEFAULT]).expect("good options");
        let (policy, tuning) = (Arc::new(policy), Tuning::new(&options, 2).expect("D or T is to be found"));
        let mut workers = [0, 1].map(|worker| Tuned::on(HctxId(worker), policy.clone(), tuning.clone(), Split::Off));
        workers[0].read(1, 0);
        (0..3).for_each(|_| workers[1].read(16, 0));
        assert_eq!(workers[1].run(0), 1, "T is 16 units");
        assert_eq!(workers[1].hctx.stats().throttled, 1);
        let waited_ns = sample(&tuning, 10 * US).waiting_ns;
        assert_eq!(waited_ns, if waits { 10 * US } else { 0 }, "D found: {depth_auto}, D = {depth}");
        for at_us in 20..40 {
            workers.iter_mut().for_each(|worker| _ = (worker.run(at_us * US), worker.reap(at_us * US)));
        }
        assert_eq!([0, 1].map(|worker: usize| workers[worker].ended.len()), [1, 3]);
    }
}
