//! Commands that the device does not end: each request ends once all the same, with the right status, and tags and
//! tokens are back.

use crate::harness::{Ended, Narrow, RequestSpec, Rig, Setup, is_all};
use mqfq_blk::PolicyKind;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::split::Split;
use mqfq_blk::tag::Tag;
use mqfq_blk::trace::{TraceEvent, TraceMark};
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Kind, OnAbort, OnReset, When};
use std::sync::Arc;

const BLOCK: u32 = 4096;
const MIB: u64 = 1 << 20;
const TIMEOUT_NS: u64 = 1_000_000;

fn path() -> PathOptions {
    PathOptions { timeout_ns: TIMEOUT_NS, ..PathOptions::default() }
}

fn device(rules: Vec<FaultRule>, on_abort: OnAbort, on_reset: OnReset) -> FaultDevice {
    let plan = FaultPlan { seed: 1, rules, on_abort, on_reset, ..FaultPlan::default() };
    FaultDevice::new(Arc::new(MemoryDevice::new(MIB)), plan)
}

fn nth_write(n: u64, fault: Fault) -> FaultRule {
    FaultRule::of(Kind::Write, When::Nth(n), fault)
}

fn at(block: u64) -> u64 {
    block * u64::from(BLOCK)
}

/// The status and end of the request that asked for this block.
#[track_caller]
fn end_of(ended: &[Ended], block: u64) -> (Status, u64) {
    let [only] = &ended.iter().filter(|e| e.asked.offset_bytes == at(block)).collect::<Vec<_>>()[..] else {
        panic!("not exactly one end of block {block}: {ended:?}")
    };
    (only.completion.status, only.completion.device_ns)
}

#[test]
fn a_forgotten_request_is_aborted_and_fails_once() {
    let rules = vec![nth_write(1, Fault::Forget)];
    let device = device(rules, OnAbort::Ends { after_ns: 70 }, OnReset::Refused);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    rig.hctxs[0].start_trace(4);
    (0..3).for_each(|block| rig.write(0, at(block), BLOCK, 1));
    let ended = rig.finish();
    let marks = rig.hctxs[0].take_trace().expect("it was on").marks;
    assert_eq!(marks, [TraceMark { at_ns: TIMEOUT_NS, event: TraceEvent::TimedOut }]);
    assert_eq!(end_of(&ended, 0), (Status::Ok, 0));
    assert_eq!(end_of(&ended, 1), (Status::TimedOut, TIMEOUT_NS + 70));
    rig.assert_clean();
    let stats = rig.stats();
    assert_eq!((stats.timeouts, stats.aborts, stats.resets, stats.replays, stats.stuck), (1, 1, 0, 0, 0));
    assert_eq!(device.forgotten(), 0);
}

#[test]
fn trouble_is_told_once_and_each_time_what_is_new() {
    let rules = vec![nth_write(0, Fault::Forget), nth_write(1, Fault::Forget), nth_write(2, Fault::Forget)];
    let device = device(rules, OnAbort::Ignored, OnReset::Refused);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    let told = |rig: &mut Rig| rig.hctxs[0].take_trouble().map(|it| (it.timeouts, it.resets, it.stuck));
    rig.write(0, at(0), BLOCK, 1);
    rig.run();
    assert_eq!(told(&mut rig), None);
    rig.go_to(TIMEOUT_NS);
    assert_eq!((told(&mut rig), told(&mut rig)), (Some((1, 0, 0)), None));
    // It is stuck; two more come, and time out together.
    rig.go_to(2 * TIMEOUT_NS);
    assert_eq!(told(&mut rig), Some((0, 0, 1)));
    (1..3).for_each(|block| rig.write(0, at(block), BLOCK, 1));
    rig.run();
    rig.go_to(3 * TIMEOUT_NS);
    assert_eq!(told(&mut rig), Some((2, 0, 0)));
    rig.go_to(4 * TIMEOUT_NS);
    assert_eq!((told(&mut rig), told(&mut rig)), (Some((0, 0, 2)), None));
    rig.go_to(5 * TIMEOUT_NS);
    assert_eq!(told(&mut rig), None, "nothing is new");
}

#[test]
fn a_command_that_ends_after_all_counts_as_it_ended() {
    for on_abort in [OnAbort::Ignored, OnAbort::Refused, OnAbort::Ends { after_ns: 0 }] {
        let rules = vec![nth_write(0, Fault::Delay { ns: TIMEOUT_NS * 3 / 2 })];
        let device = device(rules, on_abort, OnReset::Works);
        let mut rig = Rig::new(&Setup::plain(path()), &device);
        rig.write(0, 0, BLOCK, 7);
        assert_eq!(end_of(&rig.finish(), 0), (Status::Ok, TIMEOUT_NS * 3 / 2));
        let stats = rig.stats();
        assert_eq!((stats.timeouts, stats.resets, stats.stuck), (1, 0, 0), "{on_abort:?}");
        rig.read(0, 0, BLOCK);
        assert!(is_all(&rig.finish()[0], 7));
        rig.assert_clean();
    }
}

#[test]
fn a_device_that_stalls_and_returns_loses_nothing() {
    let rules = vec![nth_write(0, Fault::Stall { ns: TIMEOUT_NS * 3 / 2 })];
    let device = device(rules, OnAbort::Ends { after_ns: 0 }, OnReset::Works);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    (0..20).for_each(|block| rig.write(0, at(block), BLOCK, block as u8 + 1));
    let ended = rig.finish();
    assert!(ended.len() == 20 && ended.iter().all(|ended| ended.completion.status == Status::Ok));
    (0..20).for_each(|block| rig.read(0, at(block), BLOCK));
    assert!(rig.finish().iter().all(|ended| is_all(ended, (ended.asked.offset_bytes / at(1)) as u8 + 1)));
    rig.assert_clean();
}

#[test]
fn a_reset_is_told_and_recorded_each_time_and_the_next_command_has_a_timeout_of_its_own() {
    let rules = vec![FaultRule::of(Kind::Write, When::Always, Fault::Forget)];
    let device = device(rules, OnAbort::Ignored, OnReset::Works);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    for begin_ns in [0, TIMEOUT_NS * 5 / 2, TIMEOUT_NS * 6] {
        rig.hctxs[0].start_trace(4);
        rig.now_ns = begin_ns;
        rig.write(0, at(0), BLOCK, 1);
        assert!(rig.run().is_empty());
        let mut told = Vec::new();
        for at_ns in [1, 2].map(|timeouts| begin_ns + timeouts * TIMEOUT_NS) {
            assert_eq!(rig.next_event_ns(), Some(at_ns), "from {begin_ns} on");
            rig.go_to(at_ns);
            told.extend(rig.hctxs[0].take_trouble().map(|it| (it.timeouts, it.resets, it.stuck)));
        }
        assert_eq!(told, [(1, 0, 0), (0, 1, 0)]);
        let marks = rig.hctxs[0].take_trace().expect("it was on").marks;
        let marks: Vec<_> = marks.iter().map(|mark| (mark.at_ns - begin_ns, mark.event)).collect();
        assert_eq!(marks, [(TIMEOUT_NS, TraceEvent::TimedOut), (2 * TIMEOUT_NS, TraceEvent::Reset)]);
    }
    rig.assert_clean();
}

/// Every end comes twice, the second time with a payload of its own; a reset gives back all that has ended as well.
struct Twice(FaultDevice);

struct TwiceQueue {
    inner: Box<dyn DeviceQueue>,
    ended: Vec<(Tag, u32)>,
}

fn once_more(&(tag, generation): &(Tag, u32)) -> Reaped {
    let buffer = Some(Buffer::new(BLOCK as usize));
    Reaped { tag, generation, status: Status::Ok, buffer }
}

impl Device for Twice {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(TwiceQueue { inner: self.0.open_queue(options)?, ended: Vec::new() }))
    }
}

impl DeviceQueue for TwiceQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.inner.submit(command)
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.inner.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        let before = out.len();
        self.inner.reap(now_ns, out);
        let ended: Vec<_> = out[before..].iter().map(|reaped| (reaped.tag, reaped.generation)).collect();
        out.extend(ended.iter().map(once_more));
        self.ended.extend(ended);
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.inner.next_event_ns()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        given_back.extend(self.ended.iter().map(once_more));
        self.inner.reset(now_ns, given_back)
    }
}

#[test]
fn an_end_that_comes_again_is_counted_and_its_payload_is_nobodys() {
    let device = Twice(device(vec![nth_write(3, Fault::Forget)], OnAbort::Refused, OnReset::Works));
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    (0..3).for_each(|block| rig.write(0, at(block), BLOCK, 1));
    assert_eq!((rig.finish().len(), rig.stats().late_completions), (3, 3));
    rig.write(0, at(3), BLOCK, 1);
    let ended = rig.finish();
    assert_eq!((ended.len(), end_of(&ended, 3).0), (1, Status::TimedOut));
    assert_eq!((rig.stats().late_completions, rig.stats().resets), (6, 1));
    rig.assert_clean();
}

/// Block 0 is forgotten; block 1 is sent later, so that it has not timed out when the queue is reset, and takes
/// `delay_ns`.
fn a_reset(device: &FaultDevice, path: PathOptions) -> (Rig, Vec<Ended>) {
    let mut rig = Rig::new(&Setup::plain(path), device);
    rig.write(0, at(0), BLOCK, 1);
    rig.run();
    // The look at one timeout.
    rig.advance();
    rig.now_ns = TIMEOUT_NS * 3 / 2;
    rig.write(0, at(1), BLOCK, 2);
    let ended = rig.finish();
    (rig, ended)
}

#[test]
fn after_a_reset_the_request_that_timed_out_fails_and_the_others_are_replayed() {
    for how in [Fault::Forget, Fault::Lose] {
        for on_abort in [OnAbort::Ignored, OnAbort::Refused] {
            let rules = vec![nth_write(0, how), nth_write(1, Fault::Forget)];
            let device = device(rules, on_abort, OnReset::Works);
            let (mut rig, ended) = a_reset(&device, path());
            assert_eq!(end_of(&ended, 0), (Status::TimedOut, 2 * TIMEOUT_NS), "aborted after one, reset after another");
            assert_eq!(end_of(&ended, 1).0, Status::Ok);
            let stats = rig.stats();
            assert_eq!((stats.resets, stats.replays, stats.late_completions, device.forgotten()), (1, 1, 0, 0));
            rig.read(0, at(1), BLOCK);
            assert!(is_all(&rig.finish()[0], 2));
            rig.assert_clean();
        }
    }
}

#[test]
fn a_request_that_may_not_be_replayed_fails_instead_and_never_both() {
    let rules = vec![nth_write(0, Fault::Forget), nth_write(1, Fault::Forget)];
    let device = device(rules, OnAbort::Ignored, OnReset::Works);
    let (rig, ended) = a_reset(&device, PathOptions { retries: 0, ..path() });
    assert_eq!((end_of(&ended, 0).0, end_of(&ended, 1).0), (Status::TimedOut, Status::TimedOut));
    assert_eq!((rig.stats().resets, rig.stats().replays, rig.stats().dispatched), (1, 0, 2));
    rig.assert_clean();
}

#[test]
fn a_request_that_every_reset_takes_along_is_replayed_as_often_as_it_may() {
    // Every write is forgotten, so each that the device takes is aborted one timeout later and leads to a reset after
    // another. The victim never times out itself: the queue takes one command, the next to hang, while the victim is
    // refused for a timeout and a half. So it has been on the device for half a timeout when the reset comes.
    const VICTIM: u64 = 99;
    for retries in [0, 1, 2, 5] {
        let rules = vec![FaultRule::of(Kind::Write, When::Always, Fault::Forget)];
        let device = Narrow::new(device(rules, OnAbort::Ignored, OnReset::Works), 1);
        let mut rig = Rig::new(&Setup::plain(PathOptions { retries, ..path() }), &device);
        rig.write(0, at(0), BLOCK, 1);
        let mut ended = rig.run();
        let rounds = u64::from(retries) + 1;
        for round in 0..rounds {
            let begin_ns = round * 2 * TIMEOUT_NS;
            ended.extend(rig.go_to(begin_ns + TIMEOUT_NS));
            rig.now_ns = begin_ns + TIMEOUT_NS * 3 / 2;
            if round == 0 {
                rig.write(0, at(VICTIM), BLOCK, 1);
            }
            rig.write(0, at(round + 1), BLOCK, 1);
            device.set_room(0, 2);
            ended.extend(rig.go_to(begin_ns + TIMEOUT_NS * 3 / 2));
            assert!(rig.hctxs[0].is_blocked(), "the next to hang waits for a place");
            device.set_room(0, 1);
            ended.extend(rig.go_to(begin_ns + TIMEOUT_NS * 2));
            let stats = rig.stats();
            let replays = (round + 1).min(retries.into());
            assert_eq!((stats.timeouts, stats.resets, stats.replays), (round + 1, round + 1, replays), "{retries}");
        }
        assert_eq!(ended.len() as u64, rounds + 1, "each that hung, and the victim");
        let device_ns = rounds * 2 * TIMEOUT_NS - TIMEOUT_NS * 3 / 2;
        assert_eq!(end_of(&ended, VICTIM), (Status::TimedOut, device_ns), "{retries} retries");
        assert_eq!(end_of(&rig.finish(), rounds).0, Status::TimedOut);
        rig.assert_clean();
    }
}

#[test]
fn a_command_that_the_device_refuses_does_not_time_out_before_it_is_there() {
    // The queue takes one command. The first takes one and a half timeouts; the second is refused as long, and takes
    // nine tenths then.
    let (first_ns, second_ns) = (TIMEOUT_NS * 3 / 2, TIMEOUT_NS * 9 / 10);
    let rules = vec![nth_write(0, Fault::Delay { ns: first_ns }), nth_write(1, Fault::Delay { ns: second_ns })];
    let device = Narrow::new(device(rules, OnAbort::Ignored, OnReset::Refused), 1);
    device.set_room(0, 1);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    (0..2).for_each(|block| rig.write(0, at(block), BLOCK, 1));
    let ended = rig.finish();
    assert_eq!((end_of(&ended, 0), end_of(&ended, 1).0), ((Status::Ok, first_ns), Status::Ok));
    assert_eq!(rig.now_ns, first_ns + second_ns);
    let stats = rig.stats();
    assert_eq!((stats.timeouts, stats.aborts, stats.stuck), (1, 1, 0), "the first alone");
    rig.assert_clean();
}

#[test]
fn a_replay_has_a_full_timeout() {
    // The second command was dispatched half a timeout before the reset. Its replay takes nine tenths of one, or hangs
    // as well.
    let replay_ns = TIMEOUT_NS * 9 / 10;
    for hangs in [false, true] {
        let replay = if hangs { Fault::Forget } else { Fault::Delay { ns: replay_ns } };
        let rules = vec![nth_write(0, Fault::Forget), nth_write(1, Fault::Forget), nth_write(2, replay)];
        let device = device(rules, OnAbort::Ignored, OnReset::Works);
        let (rig, ended) = a_reset(&device, path());
        assert_eq!(end_of(&ended, 0), (Status::TimedOut, 2 * TIMEOUT_NS));
        // From its dispatch: half a timeout, then the replay, to its end or until it is aborted and reset in its turn.
        let (status, replay_ns) = if hangs { (Status::TimedOut, 2 * TIMEOUT_NS) } else { (Status::Ok, replay_ns) };
        assert_eq!(end_of(&ended, 1), (status, TIMEOUT_NS / 2 + replay_ns));
        let (count, stats) = (1 + u64::from(hangs), rig.stats());
        assert_eq!((stats.timeouts, stats.resets, stats.replays), (count, count, 1));
        rig.assert_clean();
    }
}

#[test]
fn a_command_is_noticed_an_eighth_of_its_timeout_late_at_most() {
    // The first command arms the look; the second, which hangs, is given to the device so much later. Looks are an
    // eighth apart.
    for later_ns in [0, 1, TIMEOUT_NS / 100, TIMEOUT_NS / 8, TIMEOUT_NS / 2, TIMEOUT_NS - 1] {
        let rules = vec![nth_write(0, Fault::Delay { ns: TIMEOUT_NS * 2 }), nth_write(1, Fault::Forget)];
        let device = device(rules, OnAbort::Ends { after_ns: 0 }, OnReset::Refused);
        let mut rig = Rig::new(&Setup::plain(path()), &device);
        rig.write(0, at(0), BLOCK, 1);
        rig.run();
        rig.now_ns = later_ns;
        rig.write(0, at(1), BLOCK, 1);
        let (status, device_ns) = end_of(&rig.finish(), 1);
        assert_eq!(status, Status::TimedOut);
        assert!((TIMEOUT_NS..=TIMEOUT_NS + TIMEOUT_NS / 8).contains(&device_ns), "{device_ns} ns, sent at {later_ns}");
        rig.assert_clean();
    }
}

#[test]
fn a_command_that_was_stuck_fails_when_a_reset_gives_it_back_after_all() {
    // Block 0 hangs, and the first reset is refused. Block 1 hangs later; the reset that follows works and gives back
    // both, and block 2, which has time left.
    let rules = (0..3).map(|n| nth_write(n, Fault::Forget)).collect();
    let device = Narrow::new(device(rules, OnAbort::Ignored, OnReset::Works), 1);
    device.refuse_resets(true);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    rig.write(0, at(0), BLOCK, 1);
    rig.run();
    (1..=2).for_each(|n| assert!(rig.go_to(n * TIMEOUT_NS).is_empty()));
    assert_eq!((rig.stats().timeouts, rig.stats().stuck, rig.stats().resets), (1, 1, 0));
    device.refuse_resets(false);
    rig.write(0, at(1), BLOCK, 1);
    rig.go_to(2 * TIMEOUT_NS);
    rig.go_to(3 * TIMEOUT_NS);
    rig.now_ns = TIMEOUT_NS * 7 / 2;
    rig.write(0, at(2), BLOCK, 1);
    let ended = rig.finish();
    let statuses = [0, 1, 2].map(|block| end_of(&ended, block).0);
    assert_eq!(statuses, [Status::TimedOut, Status::TimedOut, Status::Ok], "who timed out is not done again");
    assert_eq!((rig.stats().timeouts, rig.stats().resets, rig.stats().replays), (2, 1, 1));
    rig.assert_clean();
}

#[test]
fn a_device_that_can_do_nothing_is_waited_for() {
    let rules = vec![nth_write(0, Fault::Delay { ns: 9 * TIMEOUT_NS })];
    let device = device(rules, OnAbort::Refused, OnReset::Refused);
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    rig.write(0, 0, BLOCK, 1);
    assert_eq!(end_of(&rig.finish(), 0), (Status::Ok, 9 * TIMEOUT_NS));
    let stats = rig.stats();
    assert_eq!((stats.timeouts, stats.aborts, stats.resets, stats.stuck), (1, 0, 0, 1));
    rig.assert_clean();
}

#[test]
fn a_late_end_of_an_earlier_use_of_a_tag_ends_nobody() {
    // One tag. Block 0 is given up; block 1 takes the tag next, for half a timeout, and the device says "ended" of
    // block 0 meanwhile.
    let late = TIMEOUT_NS / 4;
    let after_abort = (OnAbort::EndsTwice { after_ns: late }, OnReset::Refused);
    let after_reset = (OnAbort::Ignored, OnReset::EndsLate { after_ns: late });
    for (on_abort, on_reset) in [after_abort, after_reset] {
        let rules = vec![nth_write(0, Fault::Forget), nth_write(1, Fault::Delay { ns: TIMEOUT_NS / 2 })];
        let device = device(rules, on_abort, on_reset);
        let mut rig = Rig::new(&Setup { queue_depth: 1, ..Setup::plain(path()) }, &device);
        rig.write(0, at(0), BLOCK, 1);
        rig.write(0, at(1), BLOCK, 2);
        let ended = rig.finish();
        assert_eq!(end_of(&ended, 0).0, Status::TimedOut);
        assert_eq!(end_of(&ended, 1), (Status::Ok, TIMEOUT_NS / 2), "{on_abort:?}: by its own end and no other");
        assert_eq!(rig.stats().late_completions, 1);
        rig.assert_clean();
    }
}

#[test]
fn a_replay_takes_back_nothing_that_a_flush_covered() {
    // Block 0 is written and flushed. Then a write of block 1 is lost, one of block 2 is under way, and the queue is
    // reset. Block 0 is not written again, block 2 is replayed; block 1 failed and is written anew, and flushed.
    // A cut of power takes nothing back, and no write of before the reset comes later.
    for late in [OnReset::Works, OnReset::EndsLate { after_ns: 10 }] {
        for how in [Fault::Forget, Fault::Lose] {
            let plan = FaultPlan {
                seed: 1,
                rules: vec![nth_write(1, how), nth_write(2, Fault::Lose)],
                volatile_cache: true,
                on_reset: late,
                ..FaultPlan::default()
            };
            let device = FaultDevice::new(Arc::new(MemoryDevice::new(MIB)), plan);
            let mut rig = Rig::new(&Setup::plain(path()), &device);
            let flush = |rig: &mut Rig| {
                rig.ask(0, Op::Flush, 0, 0, 0);
                assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::Ok));
            };
            rig.write(0, at(0), BLOCK, 10);
            rig.finish();
            flush(&mut rig);
            let begin_ns = rig.now_ns;
            rig.write(0, at(1), BLOCK, 11);
            rig.run();
            rig.advance();
            rig.now_ns = begin_ns + TIMEOUT_NS * 3 / 2;
            rig.write(0, at(2), BLOCK, 12);
            let ended = rig.finish();
            assert_eq!((end_of(&ended, 1).0, end_of(&ended, 2).0), (Status::TimedOut, Status::Ok));
            assert_eq!((rig.stats().resets, rig.stats().replays), (1, 1));
            rig.write(0, at(1), BLOCK, 21);
            rig.finish();
            flush(&mut rig);
            device.power_cut();
            (0..3).for_each(|block| rig.read(0, at(block), BLOCK));
            for ended in rig.finish() {
                let fill = [10, 21, 12][(ended.asked.offset_bytes / at(1)) as usize];
                assert!(is_all(&ended, fill), "{how:?} {late:?}: block at {}", ended.asked.offset_bytes);
            }
            rig.assert_clean();
        }
    }
}

#[test]
fn a_modelled_drive_gives_up_what_it_is_asked_to() {
    // A timeout shorter than a read: all 8 time out. Commands that the drive still has are aborted, none is carried
    // out.
    let device = ModelDevice::new(presets::FLASH_460K, 16 * MIB, 1).unwrap();
    let mut rig = Rig::new(&Setup::plain(PathOptions { timeout_ns: 1_000, ..path() }), &device);
    (0..8).for_each(|block| rig.write(0, at(block), BLOCK, 1));
    let ended = rig.finish();
    assert_eq!(ended.len(), 8);
    assert!(ended.iter().all(|ended| ended.completion.status == Status::TimedOut), "{ended:?}");
    assert_eq!((rig.stats().timeouts, rig.stats().aborts, rig.stats().resets), (8, 8, 0));
    rig.assert_clean();
    // Again with the same drive, and enough time.
    let mut rig = Rig::new(&Setup::plain(path()), &device);
    (0..8).for_each(|block| rig.read(0, at(block), BLOCK));
    assert!(rig.finish().iter().all(|ended| is_all(ended, 0)), "an aborted write was carried out");
    rig.assert_clean();
}

#[test]
fn without_a_timeout_nothing_is_ever_looked_at() {
    let device = device(vec![nth_write(0, Fault::Forget)], OnAbort::Ends { after_ns: 0 }, OnReset::Works);
    let mut rig = Rig::new(&Setup::plain(PathOptions::TIMELESS), &device);
    let asked = RequestSpec { flow: 0, op: Op::Write, offset_bytes: 0, length_bytes: BLOCK, fill: 1 };
    rig.submit(0, asked, false).unwrap();
    assert!(rig.run().is_empty());
    assert_eq!(rig.next_event_ns(), None);
    rig.now_ns = u64::MAX / 2;
    rig.wake_all();
    assert!(rig.run().is_empty());
    assert_eq!((rig.stats().timeouts, device.forgotten()), (0, 1));
}

/// A device of parts, of which one may hang beside the others.
struct Parts(FaultDevice, bool);

struct PartsQueue(Box<dyn DeviceQueue>, bool);

impl Device for Parts {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(PartsQueue(self.0.open_queue(options)?, self.1)))
    }
}

impl DeviceQueue for PartsQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.0.submit(command)
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.0.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        self.0.reap(now_ns, out);
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.0.next_event_ns()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn has_parts(&self) -> bool {
        self.1
    }
}

#[test]
fn i17_a_part_that_hangs_holds_depth_for_one_timeout_and_every_request_ends_once() {
    for has_parts in [false, true] {
        let delay = Fault::Delay { ns: 50 * TIMEOUT_NS };
        let rules = (0..2).map(|n| nth_write(n, delay)).collect();
        let device = Parts(device(rules, OnAbort::Refused, OnReset::Refused), has_parts);
        let setup = Setup { kind: PolicyKind::Mqfq, weights: vec![100, 100], depth: 2, ..Setup::plain(path()) };
        let mut rig = Rig::new(&setup, &device);
        (0..2).for_each(|block| rig.write(0, at(block), BLOCK, 7));
        let mut ended = rig.run();
        (2..8).for_each(|block| rig.read(1, at(block), BLOCK));
        ended.extend(rig.run());
        assert!(ended.is_empty(), "all tokens are at the part that hangs");
        ended.extend(rig.go_to(TIMEOUT_NS));
        let reads = ended.iter().filter(|ended| ended.asked.op == Op::Read).count();
        assert_eq!(reads, if has_parts { 6 } else { 0 }, "the others have the depth again");
        ended.extend(rig.finish());
        assert!(ended.len() == 8 && ended.iter().all(|ended| ended.completion.status == Status::Ok));
        rig.assert_clean();
        (0..2).for_each(|block| rig.read(0, at(block), BLOCK));
        assert!(rig.finish().iter().all(|ended| is_all(ended, 7)));
        rig.assert_clean();
    }
}

#[test]
fn i17_beside_a_part_that_hangs_p99_grows_by_the_depth_that_it_held_and_for_one_timeout() {
    const DEPTH: u64 = 8;
    const READ_NS: u64 = TIMEOUT_NS / 100;
    const READS: usize = 168;
    // p99 of reads that end in the first timeout, or soon after, and of later ones, beside so many writes that hang.
    let p99 = |hanging: u64| {
        let hang = (0..hanging).map(|n| nth_write(n, Fault::Delay { ns: 50 * TIMEOUT_NS }));
        let slow = FaultRule::of(Kind::Read, When::Always, Fault::Delay { ns: READ_NS });
        let device = Parts(device(hang.chain([slow]).collect(), OnAbort::Refused, OnReset::Refused), true);
        let (kind, weights) = (PolicyKind::Mqfq, vec![100, 100]);
        let mut rig = Rig::new(&Setup { kind, weights, depth: DEPTH as u32, ..Setup::plain(path()) }, &device);
        (0..hanging).for_each(|block| rig.write(0, at(block), BLOCK, 7));
        assert!(rig.run().is_empty());
        let block_of = |n: usize| DEPTH + n as u64;
        (0..READS).for_each(|n| rig.read(1, at(block_of(n)), BLOCK));
        let (mut begun_ns, mut took_ns) = ([0; READS], [Vec::new(), Vec::new()]);
        let mut ended = rig.run();
        while rig.now_ns < 4 * TIMEOUT_NS {
            for end in ended {
                assert_eq!((end.asked.op, end.completion.status), (Op::Read, Status::Ok));
                let n = (end.asked.offset_bytes / u64::from(BLOCK) - DEPTH) as usize;
                took_ns[usize::from(rig.now_ns > TIMEOUT_NS * 3 / 2)].push(rig.now_ns - begun_ns[n]);
                begun_ns[n] = rig.now_ns;
                rig.read(1, at(block_of(n)), BLOCK);
            }
            ended = rig.run();
            ended.extend(rig.go_to(rig.now_ns + READ_NS));
        }
        took_ns.map(|mut each| {
            each.sort();
            each[each.len() * 99 / 100]
        })
    };
    let [plain_ns, _] = p99(0);
    for hanging in [1, 2, 4] {
        let [beside_ns, later_ns] = p99(hanging);
        assert!(beside_ns > plain_ns && beside_ns * (DEPTH - hanging) <= plain_ns * DEPTH, "{hanging}: {beside_ns}");
        assert_eq!(later_ns, plain_ns, "{hanging} beside {DEPTH}");
    }
}

/// A device of parts that refuses what comes while a command of its has timed out and not ended, and until then.
struct Hangs(FaultDevice, u64);

struct HangsQueue {
    queue: Box<dyn DeviceQueue>,
    until_ns: u64,
    hanging: Vec<Tag>,
    new: Vec<Command>,
    refused: Vec<Reaped>,
}

impl Device for Hangs {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        let (queue, until_ns) = (self.0.open_queue(options)?, self.1);
        Ok(Box::new(HangsQueue { queue, until_ns, hanging: Vec::new(), new: Vec::new(), refused: Vec::new() }))
    }
}

impl DeviceQueue for HangsQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.new.push(command);
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        let is_over = now_ns < TIMEOUT_NS || now_ns >= self.until_ns;
        for command in self.new.drain(..) {
            if self.hanging.is_empty() && is_over {
                self.queue.submit(command).expect("the queue has room");
            } else {
                self.refused.push(command.ended(Status::TimedOut));
            }
        }
        self.queue.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        let before = out.len();
        self.queue.reap(now_ns, out);
        self.hanging.retain(|tag| out[before..].iter().all(|ended| ended.tag != *tag));
        out.append(&mut self.refused);
    }

    fn next_event_ns(&self) -> Option<u64> {
        if self.refused.is_empty() { self.queue.next_event_ns() } else { Some(0) }
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight() + self.new.len() + self.refused.len()
    }

    fn abort(&mut self, tag: Tag, _: u64) -> bool {
        self.hanging.push(tag);
        false
    }

    fn has_parts(&self) -> bool {
        true
    }
}

#[test]
fn i17_a_request_in_parts_of_which_some_hang_waits_as_a_whole_and_ends_well() {
    // The first command, a part, hangs for 3 timeouts, the second for so many; the device refuses for so many.
    for (second, until) in [(3, 0), (6, 0), (3, 5)] {
        // And a little more, so that no look is due then.
        let delays = [3, second].map(|count| Fault::Delay { ns: count * TIMEOUT_NS + TIMEOUT_NS / 20 });
        let rules = (0..2).map(|n| nth_write(n, delays[n as usize])).collect();
        let device = Hangs(device(rules, OnAbort::Refused, OnReset::Refused), until * TIMEOUT_NS);
        let path = PathOptions { split: Split::Bytes(BLOCK), ..path() };
        let (kind, weights) = (PolicyKind::Mqfq, vec![100, 100]);
        let mut rig = Rig::new(&Setup { kind, weights, depth: 2, ..Setup::plain(path) }, &device);
        rig.write(0, at(0), 4 * BLOCK, 7);
        // With it the second command is another tenant's.
        if second > 3 {
            rig.write(1, at(16), BLOCK, 9);
        }
        assert!(rig.run().is_empty());
        assert!(rig.go_to(TIMEOUT_NS * 3 / 2).is_empty(), "two commands hang, and the other parts wait");
        rig.read(1, at(8), 2 * BLOCK);
        assert_eq!(end_of(&rig.run(), 8).0, Status::TimedOut, "what comes now is refused, in parts or not");
        let ended = rig.finish();
        assert!(ended.len() == 1 + usize::from(second > 3), "each once: {ended:?}");
        assert!(ended.iter().all(|ended| ended.completion.status == Status::Ok), "{second} {until}: {ended:?}");
        // At once where the last that hangs is of the same worker, else at the next look.
        let last_ns = (TIMEOUT_NS * second + TIMEOUT_NS / 20).max(TIMEOUT_NS * until);
        let late_ns = TIMEOUT_NS / if until > 0 { 4 } else { 50 };
        assert!((last_ns..last_ns + late_ns).contains(&end_of(&ended, 0).1), "{second} {until}: {ended:?}");
        rig.assert_clean();
        rig.read(0, at(0), 4 * BLOCK);
        assert!(rig.finish().iter().all(|ended| is_all(ended, 7)));
        rig.assert_clean();
    }
}
