//! Tests of the sums that a step reads of several workers, and that no worker waits for another.

use super::*;
use crate::buffer::Buffer;
use crate::device::null::NullDevice;
use crate::device::{Device, QueueOptions};
use crate::hctx::{HwCtx, HwCtxOptions};
use crate::path_options::PathOptions;
use crate::request::{Op, Status, Submission};
use crate::split::Split;
use crate::stage::StageLimits;
use crate::trace::TraceEvent;
use mqfq_sched::cost::CostModel;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, PolicyKind};
use mqfq_sched::topology::Topology;
use mqfq_sched::vtime::VSpan;
use mqfq_sched::window_rule::WINDOW_LEAST;

const US: u64 = 1_000;

fn options(depth: u32) -> PolicyOptions {
    let unit = Some(PolicyOptions::AUTO_TOKEN_UNIT_BYTES);
    PolicyOptions { depth, depth_auto: true, token_unit_bytes: unit, ..PolicyOptions::new(PolicyKind::Mqfq) }
}

fn tuning(depth: u32, workers: usize) -> Arc<Tuning> {
    Tuning::new(&options(depth), workers).expect("its D is to be found")
}

/// Sample that a step at `now_ns` would hand to the controller.
fn sample(tuning: &Tuning, now_ns: u64) -> Sample {
    let read = tuning.tuner.try_with(|tuner| {
        tuning.read(tuner, now_ns);
        tuner.sample
    });
    read.expect("the tuner is free")
}

fn policy(depth: u32, workers: usize) -> AnyPolicy {
    AnyPolicy::new(&options(depth), &Topology::flat(workers), &[Weight::DEFAULT]).expect("good options")
}

/// The end of a request that was in the system for so long.
fn end(total_ns: u64) -> (Owner, Completion) {
    let (queued_ns, device_ns) = (total_ns / 4, total_ns - total_ns / 4);
    let (op, status) = (Op::Read, Status::Ok);
    (Owner(0), Completion { cookie: 0, status, op, length_bytes: 4096, buffer: None, queued_ns, device_ns })
}

/// A reap of requests of so many units, each in the system for so long.
fn reap(meter: &mut Meter, ends: &[(u32, u64)]) {
    ends.iter().for_each(|&(units, total_ns)| meter.completed(units, total_ns));
    meter.end_run();
}

/// So many were reaped: the step, if it is time. True if it has changed anything.
fn reaped(meter: &mut Meter, requests: usize, policy: &AnyPolicy, now_ns: u64) -> bool {
    meter.reaped(requests, now_ns) && meter.step(false, policy, now_ns, &mut |_: HctxId| ())
}

#[test]
fn a_device_whose_depth_is_a_number_has_no_tuning() {
    assert!(Tuning::new(&PolicyOptions::new(PolicyKind::Mqfq), 4).is_none());
}

#[test]
fn a_policy_that_comes_back_begins_with_the_figures_that_were_found() {
    let options = PolicyOptions { window_least: Some(WINDOW_LEAST), ..options(8) }.relaxed(1);
    let new = |options: &PolicyOptions| {
        let policy = AnyPolicy::new(options, &Topology::flat(1), &[Weight::DEFAULT]).expect("good options");
        (policy, Tuning::new(options, 1).expect("its D is to be found"))
    };
    let (policy, before) = new(&options);
    let mut meter = before.meter(HctxId(0), 0);
    let found = |tuning: &Tuning| {
        let InForce { depth, window, .. } = tuning.in_force(0).expect("the tuner is free");
        (depth.expect("it is found"), window.expect("it is found").window_bytes)
    };
    // A drive that does D requests in 100 us whatever D is, until the D found is another.
    let mut now_ns = 0;
    while found(&before).0.chosen < 32 {
        let depth = policy.depth().expect("it has one");
        meter.picked(true, 1);
        (0..depth).for_each(|_| meter.dispatched(1));
        now_ns += 100 * US;
        meter.account(now_ns);
        reap(&mut meter, &[(1, 100 * US)].repeat(depth as usize));
        reaped(&mut meter, depth as usize, &policy, now_ns);
        assert!(now_ns < 10_000_000 * US, "{:?}", found(&before));
    }
    let (state, window_bytes) = found(&before);
    // As it was found, and nothing of it in other units or where another beginning is asked for.
    let others = [
        PolicyOptions { depth: 9, ..options },
        PolicyOptions { token_unit_bytes: Some(8192), ..options },
        PolicyOptions { window: VSpan::from_bytes(128 << 10), ..options },
    ];
    for (is_the_same, options) in [(true, options)].into_iter().chain(others.map(|other| (false, other))) {
        let options = options.relaxed(1);
        let (policy, _) = new(&options);
        let tuning = Tuning::resumed(&options, 1, before.found()).expect("its D is to be found");
        tuning.put_in_force(&policy);
        let (now, now_window_bytes) = found(&tuning);
        let expected = if is_the_same { (state.chosen, state.phases) } else { (options.depth, 0) };
        assert_eq!((now.chosen, now.phases), expected);
        assert_eq!((policy.depth(), now.depth), (Some(expected.0), expected.0));
        assert_eq!(policy.window_terms().map(|terms| terms.window.bytes()), Some(now_window_bytes));
        assert!(!is_the_same || now_window_bytes == window_bytes);
    }
    let number = PolicyOptions { depth_auto: false, ..options };
    assert!(Tuning::new(&number, 1).expect("its T is to be found").found().is_none());
}

#[test]
fn what_workers_count_adds_up_and_goes_on_while_they_sleep() {
    let tuning = tuning(64, 2);
    let [mut a, mut b] = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
    a.dispatched(32);
    b.dispatched(1);
    b.account(4 * US);
    reap(&mut b, &[(1, 4 * US)]);
    reap(&mut a, &[]);
    // A has not woken up since: its 32 units count all the same.
    let sample = sample(&tuning, 10 * US);
    assert_eq!((sample.units(), sample.requests(), sample.out_units), (1, 1, 32));
    assert_eq!(sample.device_unit_ns, 32 * 10 * US + 4 * US);
    assert_eq!(sample.system_unit_ns, 4 * US);
}

#[test]
fn what_is_given_back_is_no_work_of_the_device() {
    let tuning = tuning(64, 1);
    let mut meter = tuning.meter(HctxId(0), 0);
    meter.dispatched(8);
    meter.dispatched(1);
    meter.given_back(8);
    reap(&mut meter, &[(1, 3 * US)]);
    let sample = sample(&tuning, 10 * US);
    assert_eq!((sample.units(), sample.requests(), sample.out_units), (1, 1, 0));
    assert_eq!(sample.system_unit_ns, 3 * US);
}

#[test]
fn as_many_units_as_requests_are_requests_of_one_unit_each() {
    let tuning = tuning(64, 1);
    let mut meter = tuning.meter(HctxId(0), 0);
    [1, 1, 1, 1, 4].into_iter().for_each(|units| meter.dispatched(units));
    assert!(!meter.has_out(5), "eight units");
    reap(&mut meter, &[(4, 2 * US)]);
    assert!(meter.has_out(4));
    meter.completed_ones(&[]);
    meter.completed_ones(&[end(7 * US)]);
    // 3, 4 and 5 us: the first and the last tell their sum.
    meter.completed_ones(&[3, 4, 5].map(|us| end(us * US)));
    let sample = sample(&tuning, 10 * US);
    let work = [1, 4].map(|units| (sample.work[class_of(units)].requests, sample.work[class_of(units)].units));
    assert_eq!((work, sample.out_units), ([(4, 4), (1, 4)], 0));
    assert_eq!(sample.system_unit_ns, (4 * 2 + 7 + 12) * US);
}

#[test]
fn workers_that_wait_half_of_the_time_each_are_taken_to_wait_three_quarters_together() {
    let tuning = tuning(64, 2);
    let mut meters = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
    sample(&tuning, 0);
    for meter in &mut meters {
        meter.picked(true, 1);
        meter.account(50 * US);
        meter.picked(false, 0);
        meter.account(100 * US);
    }
    let waiting_ns = sample(&tuning, 100 * US).waiting_ns;
    assert!(waiting_ns.abs_diff(75 * US) < 10, "{waiting_ns}");
}

#[test]
fn a_silence_is_what_the_silences_of_all_workers_have_in_common() {
    let tuning = tuning(64, 2);
    let policy = policy(64, 2);
    let mut meters = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
    let mut reap = |worker: usize, at_ns| _ = reaped(&mut meters[worker], 1, &policy, at_ns);
    // Worker 0 is silent from 10 to 60, worker 1 from 20 to 90.
    for (worker, at_us) in [(0, 5), (1, 10), (0, 10), (1, 20), (0, 60), (0, 80), (1, 90), (0, 95)] {
        reap(worker, at_us * US);
    }
    assert_eq!(sample(&tuning, 100 * US).silence_ns, 40 * US, "from 20 to 60");
    // And from 95 on nothing came, for longer than all before.
    assert_eq!(sample(&tuning, 1000 * US).silence_ns, 905 * US);
}

#[test]
fn a_depth_that_the_controller_wants_is_in_force_after_the_step() {
    let (tuning, policy) = (tuning(64, 1), policy(64, 1));
    let mut meter = tuning.meter(HctxId(0), 0);
    // Four of the waiting requests go at a time, each 1 us: more than four gain nothing, and all is seen.
    let (mut now_ns, mut steps, mut changes) = (0, 0, 0);
    let mut depth = 64;
    while steps < 100_000 && changes < 3 {
        steps += 1;
        let batch = depth.min(4);
        (0..batch).for_each(|_| meter.dispatched(1));
        meter.picked(true, 1);
        now_ns += u64::from(batch) * US;
        meter.account(now_ns);
        reap(&mut meter, &[(1, 100 * US); 4][..batch as usize]);
        changes += usize::from(reaped(&mut meter, batch as usize, &policy, now_ns));
        depth = policy.depth().expect("mqfq has one");
        let in_force = tuning.in_force(now_ns).expect("the tuner is free");
        assert_eq!((in_force.depth.map(|state| state.depth), in_force.window), (Some(depth), None));
    }
    assert_eq!(changes, 3, "candidates were tried");
    let epoch = tuning.tuner.try_with(|tuner| tuner.controller.as_ref().map(Controller::epoch)).flatten();
    // Relaxed: one thread.
    assert_eq!(epoch, Some(tuning.epoch.0.load(Ordering::Relaxed)), "workers see that a time has begun");
    assert!(epoch > Some(0));
    // The longest of the silences since then counts, and not the last.
    for after_us in [10, 60, 70] {
        reaped(&mut meter, 1, &policy, now_ns + after_us * US);
    }
    assert_eq!(sample(&tuning, now_ns + 80 * US).silence_ns, 50 * US);
}

#[test]
fn a_step_is_due_after_32_completions_and_four_for_each_worker() {
    for (workers, due) in [(1, 32), (8, 32), (9, 36), (64, 256)] {
        let mut meter = tuning(64, workers).meter(HctxId(0), 0);
        assert_eq!((meter.reaped(due - 1, US), meter.reaped(1, US)), (false, true), "{workers} workers");
    }
}

#[test]
fn a_window_that_the_rule_wants_is_in_force_after_the_step() {
    // D is 129 units of 4 KiB. Three of four workers are held back: 516 KiB over 3 is 172 KiB.
    let window_least = Some(WINDOW_LEAST);
    let options = PolicyOptions { depth_auto: false, window_least, ..options(129) }.relaxed(4);
    let policy = AnyPolicy::new(&options, &Topology::flat(4), &[Weight::DEFAULT]).expect("good options");
    let tuning = Tuning::new(&options, 4).expect("its T is to be found");
    let mut meters = [0, 1, 2, 3].map(|hctx| tuning.meter(HctxId(hctx), 0));
    for (worker, meter) in meters.iter_mut().enumerate() {
        meter.picked(worker == 0, u64::from(worker < 3));
    }
    let mut step = |now_ns| reaped(&mut meters[3], 32, &policy, now_ns);
    let changed_ns = (1..100).map(|at_us| at_us * US).find(|&now_ns| step(now_ns)).expect("T changes");
    assert_eq!(policy.window_terms(), Some(options.terms_of(VSpan::from_bytes(128 << 10), 4)));
    let in_force = tuning.in_force(changed_ns).expect("the tuner is free");
    let window = in_force.window.expect("it is found");
    assert_eq!((window.window_bytes, window.changed_ns, in_force.depth), (128 << 10, changed_ns, None));
    assert!((200..1000).all(|at_us| !step(at_us * US)), "and stays");
}

#[test]
fn the_rule_of_the_window_hears_how_many_requests_a_reap_finds() {
    let options = PolicyOptions { depth_auto: false, window_least: Some(WINDOW_LEAST), ..options(129) }.relaxed(2);
    let policy = AnyPolicy::new(&options, &Topology::flat(2), &[Weight::DEFAULT]).expect("good options");
    let tuning = Tuning::new(&options, 2).expect("its T is to be found");
    let [mut waits, mut reaps] = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
    waits.picked(true, 1);
    for at_us in 1..=200 {
        reaps.dispatched(8);
        reap(&mut reaps, &[(1, US); 8]);
        reaped(&mut reaps, 8, &policy, at_us * US);
    }
    let window = tuning.in_force(201 * US).expect("the tuner is free").window.expect("it is found");
    assert!((400..=800).contains(&window.reaped_hundredths), "{window:?}");
}

#[test]
fn who_finds_the_flag_taken_goes_on_without() {
    let once = TryOnce::new(1);
    let outer = once.try_with(|value| {
        assert_eq!(once.try_with(|_| ()), None, "somebody is inside");
        *value += 1;
        *value
    });
    assert_eq!((outer, once.try_with(|value| *value)), (Some(2), Some(2)));
}

#[test]
fn flows_count_where_several_queues_wait_and_one_queue_alone_counts_once() {
    let tuning = tuning(64, 2);
    let mut meters = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
    let counted = || tuning.tuner.try_with(|tuner| tuning.read(tuner, US)).expect("the tuner is free");
    meters[0].picked(true, 5);
    assert_eq!(counted(), 1);
    meters[1].picked(false, 2);
    assert_eq!(counted(), 7);
    meters[0].picked(false, 0);
    assert_eq!(counted(), 1);
}

#[test]
fn a_worker_that_comes_later_was_neither_silent_nor_busy_before() {
    let tuning = tuning(64, 1);
    let mut meter = tuning.meter(HctxId(0), 1000 * US);
    meter.dispatched(2);
    meter.picked(false, 0);
    let sample = sample(&tuning, 1010 * US);
    assert_eq!((sample.silence_ns, sample.device_unit_ns), (10 * US, 20 * US));
}

#[test]
fn an_earlier_time_counts_nothing_and_takes_nothing_back() {
    let tuning = tuning(64, 1);
    let mut meter = tuning.meter(HctxId(0), 0);
    meter.dispatched(1);
    [100, 50, 100].into_iter().for_each(|at_us| meter.account(at_us * US));
    assert_eq!(sample(&tuning, 100 * US).device_unit_ns, 100 * US);
}

#[test]
fn reaps_count_that_found_something_and_those_that_left_nothing_on_the_device() {
    let tuning = tuning(64, 2);
    let mut meters = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
    meters.iter_mut().for_each(|meter| (0..3).for_each(|_| meter.dispatched(1)));
    meters[0].dispatched(1);
    for (worker, requests) in [(0, 1), (0, 0), (1, 3), (0, 1), (0, 1), (0, 1), (1, 0)] {
        reap(&mut meters[worker], &[(1, US)].repeat(requests));
        assert!(!meters[worker].reaped(requests, US), "it is not time for a step");
    }
    let reaps = tuning.tuner.try_with(|tuner| {
        tuning.read(tuner, 10 * US);
        (tuner.reaps, tuner.empty_reaps)
    });
    assert_eq!(reaps, Some((5, 2)));
}

#[test]
fn of_silences_as_long_as_each_other_the_first_counts_but_one_that_goes_on_does_before() {
    let silence_ns = |now_us, reaps: &[(usize, u64)]| {
        let (tuning, policy) = (tuning(64, 2), policy(64, 2));
        let mut meters = [0, 1].map(|hctx| tuning.meter(HctxId(hctx), 0));
        reaps.iter().for_each(|&(worker, at_us)| _ = reaped(&mut meters[worker], 1, &policy, at_us * US));
        sample(&tuning, now_us * US).silence_ns
    };
    // Worker 0 was silent until 10 and until 20, worker 1 is since 10.
    assert_eq!(silence_ns(25, &[(0, 10), (1, 10), (0, 20)]), 0);
    // Worker 0 was silent until 10 and is since then, worker 1 is since 5.
    assert_eq!(silence_ns(20, &[(1, 5), (0, 10)]), 10 * US);
}

#[test]
fn a_controller_is_told_of_parts_and_a_meter_knows_what_is_found() {
    let (tuning, policy) = (tuning(64, 1), policy(64, 1));
    let mut meter = tuning.meter(HctxId(0), 0);
    for is_in_parts in [true, false] {
        meter.step(is_in_parts, &policy, US, &mut |_: HctxId| ());
        assert_eq!(tuning.tuner.try_with(|tuner| tuner.sample.is_in_parts), Some(is_in_parts));
    }
    let window = PolicyOptions { depth_auto: false, window_least: Some(WINDOW_LEAST), ..options(64) };
    let of_window = Tuning::new(&window, 1).expect("its T is to be found").meter(HctxId(0), 0);
    let meters = [&meter, &of_window, &Meter::off()].map(|meter| (meter.is_on(), meter.finds_depth()));
    assert_eq!(meters, [(true, true), (true, false), (false, false)]);
}

// Tests of the figures of its requests that a context hands to the tuning of its policy.

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
    assert_eq!(sample(&tuned.tuning, 90 * US).waiting_ns, 20 * US, "no request has waited since");
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
