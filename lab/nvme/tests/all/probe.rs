//! The probe tells drives whose weights count from those whose weights do not, in virtual time.

use mqfq_blk::HctxId;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, Device, DeviceQueue, QueueOptions};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_blkmq::MultiQueue;
use mqfq_nvme::device::{Arbitration, NvmeDevice, NvmeDeviceOptions, Preset};
use mqfq_nvme::probe::{DEADLINE_NS, Failure, Finding, Probe};
use mqfq_sched::policy::QueueClass;
use mqfq_testing_devices::fault::{Fault, FaultPlan, FaultRule, When};
use mqfq_testing_devices::faulty::Faulty;
use std::sync::Arc;

const SIZE_BYTES: u64 = 64 << 20;

fn drive(preset: &str, arbitration: Arbitration) -> NvmeDevice {
    let arbitration = Some(arbitration);
    let options = NvmeDeviceOptions { preset, size_bytes: SIZE_BYTES, seed: 5, arbitration, ..Default::default() };
    NvmeDevice::new(options).unwrap()
}

fn open(device: &dyn MultiQueue, depth: u16) -> Box<dyn DeviceQueue + Send> {
    let options = QueueOptions {
        hctx: HctxId(0),
        depth,
        #[cfg(feature = "uring")]
        ring: None,
        interrupt: Arc::new(|_| ()),
    };
    device.open_class_queues(options).unwrap()
}

/// Probes with a caller that looks `late_ns` after each event.
fn run(device: &dyn MultiQueue, late_ns: u64) -> Result<Finding, Failure> {
    let probe = Probe::new(device.info(), device.queue_limits());
    let mut queue = open(device, probe.queue_depth());
    probe.run(&mut *queue, 1_000, |at_ns| at_ns + late_ns)
}

#[track_caller]
fn assert_within(value: f64, lowest: f64, highest: f64) {
    assert!((lowest..=highest).contains(&value), "{value} is not in {lowest}..={highest}");
}

#[test]
fn a_drive_that_does_as_it_says_shows_the_weights() {
    // 12 rounds of 16 + 1: a low read more or less is 14.6 or 17.5, two are 13.6 or 19.3.
    let found = run(&drive("zssd", Arbitration::Weighted), 0).unwrap();
    assert_within(found.weighted_ratio, 13.5, 19.5);
    assert_within(found.equal_ratio, 0.9, 1.1);
    assert!(found.has_effect());
    assert_eq!(found.expected_ratio, 16.0);
    // It holds 256 inside: the shallow streams of 2 x 64 did not show it. The cost is as in the file's text.
    assert_eq!((found.depth, found.requests), (320, 1955));
    let sentence = found.sentence("fast");
    assert!(
        sentence.starts_with("device fast: weighted round robin works (high:low weights 16:1 gave 1"),
        "{sentence}"
    );
    assert!(sentence.ends_with(" over 1955 reads)"), "{sentence}");
}

#[test]
fn a_drive_with_little_room_inside_shows_the_weights_at_once() {
    let zssd = Preset::by_name("zssd").unwrap();
    let media = mqfq_nvme::media::MediaOptions { inside_max: 32, ..zssd.media };
    let found = run(&NvmeDevice::with_preset(Preset { media, ..zssd }, SIZE_BYTES, 5).unwrap(), 0).unwrap();
    assert_within(found.weighted_ratio, 13.5, 19.5);
    assert_eq!((found.depth, found.requests), (64, 663));
}

#[test]
fn a_drive_that_ignores_weights_and_one_that_takes_everything_inside_show_none() {
    // The second has weighted round robin, but 640 of 4096 places inside are no reason to choose.
    for (preset, arbitration) in [("zssd", Arbitration::WeightedIgnored), ("nvmf-dram", Arbitration::Weighted)] {
        let found = run(&drive(preset, arbitration), 0).unwrap();
        assert_within(found.weighted_ratio, 0.75, 1.33);
        assert_within(found.equal_ratio, 0.75, 1.33);
        assert!(!found.has_effect());
        let sentence = found.sentence("d");
        assert!(sentence.starts_with("device d: weighted round robin has no effect (high:low weights 16:1 gave "));
        assert!(found.requests <= 2000, "{sentence}");
    }
}

#[test]
fn whoever_looks_late_now_and_then_finds_the_same() {
    // Every 1000th look comes 5 ms late: by then all reads have ended, of either stream.
    let device = drive("zssd", Arbitration::Weighted);
    let probe = Probe::new(device.info(), device.queue_limits());
    let mut queue = open(&device, probe.queue_depth());
    let mut looks = 0;
    let found = probe.run(&mut *queue, 0, |at_ns| {
        looks += 1;
        at_ns + if looks % 1000 == 0 { 5_000_000 } else { 0 }
    });
    let found = found.unwrap();
    assert_within(found.weighted_ratio, 13.5, 19.5);
    assert_within(found.equal_ratio, 0.9, 1.1);
    assert!(found.requests > 1955, "it began to count anew");
}

#[test]
fn whoever_always_looks_late_is_told_so_and_not_that_there_is_no_effect() {
    let failure = run(&drive("zssd", Arbitration::Weighted), 5_000_000).unwrap_err();
    let Failure::TooFast { requests } = failure else { panic!("{failure:?}") };
    let sentence = format!(
        "device d: whether weighted round robin works could not be measured: reads ended faster than they could be \
         counted, {requests} of them"
    );
    assert_eq!(failure.sentence("d"), sentence);
}

#[test]
fn the_weights_are_equal_again() {
    // One inside, so that the order in which reads end is that of the arbitration.
    let zssd = Preset::by_name("zssd").unwrap();
    let media = mqfq_nvme::media::MediaOptions { inside_max: 1, ..zssd.media };
    let device = NvmeDevice::with_preset(Preset { media, ..zssd }, SIZE_BYTES, 5).unwrap();
    assert!(run(&device, 0).unwrap().has_effect());
    let mut queue = open(&device, 8);
    for tag in 0..16 {
        let class = if tag < 8 { QueueClass::High } else { QueueClass::Low };
        let read = Command::new(Tag(tag), Op::Read, 0, 4096, Some(Buffer::new(4096)));
        queue.submit(Command { class, ..read }).unwrap();
    }
    queue.ring_doorbell(10_000_000_000);
    let mut ends = Vec::new();
    while let Some(event_ns) = queue.next_event_ns() {
        queue.reap(event_ns, &mut ends);
    }
    let high: Vec<bool> = ends.iter().map(|end| end.tag.0 < 8).collect();
    assert_eq!(high.len(), 16);
    assert!(high.chunks(2).all(|pair| pair[0] != pair[1]), "in turn: {high:?}");
}

#[test]
fn the_queues_are_free_again() {
    // Room for one set only.
    let options = NvmeDeviceOptions {
        preset: "zssd",
        size_bytes: SIZE_BYTES,
        queue_pairs_max: Some(3),
        ..NvmeDeviceOptions::default()
    };
    let device = NvmeDevice::new(options).unwrap();
    assert!(run(&device, 0).unwrap().has_effect());
    assert!(run(&device, 0).unwrap().has_effect(), "the first one's queues are deleted");
}

#[test]
fn reads_that_never_end_are_told_at_the_deadline() {
    for (when, most) in [(When::Always, 0), (When::Chance(60_000), 100)] {
        let rules = vec![FaultRule::any(when, Fault::Lose)];
        let plan = FaultPlan { seed: 1, rules, ..FaultPlan::default() };
        let device = Faulty::new(Arc::new(drive("zssd", Arbitration::Weighted)), plan);
        let probe = Probe::new(device.info(), device.queue_limits());
        let mut queue = open(&device, probe.queue_depth());
        let mut last_ns = 0;
        let failure = probe.run(&mut *queue, 0, |at_ns| {
            last_ns = at_ns;
            at_ns
        });
        let Err(failure @ Failure::TooSlow { ended, requests }) = failure else { panic!("{failure:?}") };
        assert_eq!(last_ns, DEADLINE_NS);
        assert!(ended <= most, "{ended}");
        let sentence = format!(
            "device d: whether weighted round robin works could not be measured: only {ended} of {requests} reads ended \
             within 5 s"
        );
        assert_eq!(failure.sentence("d"), sentence);
    }
}

#[test]
fn a_read_that_fails_ends_it() {
    let rules = vec![FaultRule::any(When::Nth(200), Fault::Error(Status::Io))];
    let plan = FaultPlan { seed: 1, rules, ..FaultPlan::default() };
    let device = Faulty::new(Arc::new(drive("zssd", Arbitration::Weighted)), plan);
    assert_eq!(run(&device, 0), Err(Failure::ReadFailed(Status::Io)));
}

#[cfg(feature = "uring")]
#[test]
fn by_the_clock_a_drive_that_ignores_weights_has_no_effect_and_one_without_class_queues_is_refused() {
    // By the clock, on a busy machine, it can also find that it looked too late. It never finds an effect where there
    // is none.
    match mqfq_nvme::probe::measure(&drive("flash-60k", Arbitration::WeightedIgnored), "d") {
        Ok(found) => assert!(!found.has_effect(), "{found:?}"),
        Err(sentence) => assert!(sentence.contains("could not be measured"), "{sentence}"),
    }
    let refusal = mqfq_nvme::probe::measure(&drive("flash-60k", Arbitration::RoundRobin), "d").unwrap_err();
    assert_eq!(refusal, "device d: it has no weighted round robin among classes of queues");
}
