use super::*;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::Reaped;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::tag::Tag;

const MIB: u64 = 1 << 20;

/// A faulty device over 1 MiB of memory, one queue of it, and the time.
struct Rig {
    device: FaultDevice,
    queue: Box<dyn DeviceQueue>,
    now_ns: u64,
}

fn open(device: &FaultDevice, hctx: u16) -> Box<dyn DeviceQueue> {
    let options = QueueOptions { hctx: HctxId(hctx), depth: 16, ring: None, interrupt: Arc::new(|_| {}) };
    device.open_queue(options).unwrap()
}

impl Rig {
    fn new(plan: FaultPlan) -> Rig {
        let device = FaultDevice::new(Arc::new(MemoryDevice::new(MIB)), plan);
        Rig { queue: open(&device, 0), device, now_ns: 0 }
    }

    fn with_rules(rules: Vec<FaultRule>) -> Rig {
        Rig::new(FaultPlan { seed: 1, rules, ..FaultPlan::default() })
    }

    fn submit(&mut self, command: Command) {
        self.queue.submit(command).unwrap();
        self.queue.ring_doorbell(self.now_ns);
    }

    fn reap(&mut self) -> Vec<Reaped> {
        let mut out = Vec::new();
        self.queue.reap(self.now_ns, &mut out);
        out
    }

    /// Goes from event to event until none is left; returns ended commands with times.
    fn run(&mut self) -> Vec<(u64, Reaped)> {
        let mut all: Vec<(u64, Reaped)> = Vec::new();
        let mut idle = 0;
        while let Some(next_ns) = self.queue.next_event_ns() {
            self.now_ns = self.now_ns.max(next_ns);
            let now_ns = self.now_ns;
            let ended = self.reap();
            idle = if ended.is_empty() { idle + 1 } else { 0 };
            assert!(idle < 1000, "the queue asks to be reaped and hands nothing out");
            all.extend(ended.into_iter().map(|reaped| (now_ns, reaped)));
        }
        all
    }

    #[track_caller]
    fn one(&mut self, command: Command) -> (u64, Status, Option<Buffer>) {
        self.submit(command);
        let mut all = self.run();
        assert_eq!(all.len(), 1);
        let (ns, Reaped { status, buffer, .. }) = all.pop().unwrap();
        (ns, status, buffer)
    }

    #[track_caller]
    fn bytes(&mut self, offset_bytes: u64, length_bytes: u32) -> Vec<u8> {
        let (_, status, buffer) = self.one(read(15, offset_bytes, length_bytes));
        assert_eq!(status, Status::Ok);
        buffer.unwrap().as_slice()[..length_bytes as usize].to_vec()
    }

    #[track_caller]
    fn ok(&mut self, command: Command) {
        assert_eq!(self.one(command).1, Status::Ok);
    }
}

fn write(tag: u16, offset_bytes: u64, bytes: &[u8]) -> Command {
    let mut buffer = Buffer::new(bytes.len());
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let length_bytes = bytes.len() as u32;
    Command::new(Tag(tag), Op::Write, offset_bytes, length_bytes, Some(buffer))
}

fn read(tag: u16, offset_bytes: u64, length_bytes: u32) -> Command {
    let buffer = Some(Buffer::new(length_bytes as usize));
    Command::new(Tag(tag), Op::Read, offset_bytes, length_bytes, buffer)
}

fn flush(tag: u16) -> Command {
    Command::new(Tag(tag), Op::Flush, 0, 0, None)
}

#[test]
fn an_error_does_nothing_and_hands_the_buffer_back() {
    let mut rig = Rig::with_rules(vec![FaultRule::of(Kind::Write, When::Always, Fault::Error(Status::NoSpace))]);
    let (_, status, buffer) = rig.one(write(0, 0, &[1; 4096]));
    assert_eq!((status, buffer.unwrap().as_slice()[0]), (Status::NoSpace, 1));
    assert_eq!(rig.bytes(0, 4096), [0; 4096]);
}

#[test]
fn the_nth_means_the_nth_that_fits_and_only_that() {
    // The second (number 1) of the reads that touch bytes 4096..8192 fails.
    let rule =
        FaultRule { bytes: Some(4096..8192), ..FaultRule::of(Kind::Read, When::Nth(1), Fault::Error(Status::Io)) };
    let mut rig = Rig::with_rules(vec![rule]);
    let mut status = |command| rig.one(command).1;
    assert_eq!(status(read(0, 0, 4097)), Status::Ok, "number 0");
    assert_eq!(status(write(0, 4096, &[1])), Status::Ok, "a write");
    assert_eq!(status(read(0, 0, 4096)), Status::Ok, "beside");
    assert_eq!(status(read(0, 8191, 1)), Status::Io, "number 1");
    assert_eq!(status(read(0, 8191, 1)), Status::Ok, "number 2");
}

#[test]
fn chance_comes_out_as_asked_and_the_same_for_the_same_seed() {
    let outcome = |seed| {
        let rules = vec![FaultRule::any(When::Chance(16384), Fault::Error(Status::Io))];
        let mut rig = Rig::new(FaultPlan { seed, rules, ..FaultPlan::default() });
        (0..4000).map(|_| rig.one(flush(0)).1 == Status::Io).collect::<Vec<bool>>()
    };
    let first = outcome(3);
    assert_eq!(first, outcome(3));
    assert_ne!(first, outcome(4));
    // A quarter of 4000: 1000, standard deviation sqrt(4000 * 1/4 * 3/4) = 27; six of them are 164.
    let failed = first.iter().filter(|failed| **failed).count();
    assert!(failed.abs_diff(1000) < 164, "{failed}");
}

#[test]
fn a_delay_holds_one_command_and_a_stall_all_of_them() {
    let mut rig = Rig::with_rules(vec![
        FaultRule::of(Kind::Read, When::Nth(0), Fault::Delay { ns: 500 }),
        FaultRule::of(Kind::Flush, When::Nth(1), Fault::Stall { ns: 9000 }),
    ]);
    rig.submit(read(0, 0, 512));
    rig.submit(flush(1));
    let ends: Vec<(u64, u16)> = rig.run().iter().map(|(ns, reaped)| (*ns, reaped.tag.0)).collect();
    assert_eq!(ends, [(0, 1), (500, 0)]);
    // At 500: a flush that stalls until 9500; a read that has nothing to do with it.
    rig.submit(read(0, 0, 512));
    rig.submit(flush(1));
    let ends: Vec<u64> = rig.run().iter().map(|(ns, _)| *ns).collect();
    assert_eq!(ends, [9500, 9500]);
    rig.device.stall_until(20_000);
    assert_eq!(rig.one(flush(0)).0, 20_000);
}

#[test]
fn a_torn_write_stores_a_prefix_of_sectors_and_fails() {
    let mut seen = [0; 8];
    for seed in 0..100 {
        let rules = vec![FaultRule::of(Kind::Write, When::Always, Fault::Torn(Status::Io))];
        let mut rig = Rig::new(FaultPlan { seed, rules, ..FaultPlan::default() });
        assert_eq!(rig.one(write(0, 0, &[1; 4096])).1, Status::Io);
        let after = rig.bytes(0, 4096);
        let stored = after.iter().take_while(|byte| **byte == 1).count();
        assert_eq!(stored % 512, 0);
        assert!(after[stored..].iter().all(|byte| *byte == 0));
        // Never all eight: that would be a write that was stored and denied, which an error already is.
        seen[stored / 512] += 1;
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn a_forgotten_command_never_ends_and_keeps_its_place() {
    let mut rig = Rig::with_rules(vec![FaultRule::any(When::Nth(1), Fault::Forget)]);
    (0..3).for_each(|tag| rig.submit(read(tag, 0, 512)));
    let ended: Vec<u16> = rig.run().iter().map(|(_, reaped)| reaped.tag.0).collect();
    assert_eq!(ended, [0, 2]);
    assert_eq!((rig.device.forgotten(), rig.queue.in_flight(), rig.queue.next_event_ns()), (1, 1, None));
}

#[test]
fn reordered_completions_all_come_in_another_order() {
    let mut rig = Rig::new(FaultPlan { seed: 5, reorder: 4, ..FaultPlan::default() });
    (0..16).for_each(|tag| rig.submit(read(tag, 0, 512)));
    let ended: Vec<u16> = rig.run().iter().map(|(_, reaped)| reaped.tag.0).collect();
    let mut sorted = ended.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..16).collect::<Vec<u16>>());
    assert_ne!(ended, sorted);
}

#[test]
fn reordering_waits_for_delayed_commands_without_spinning() {
    let rules = vec![FaultRule::any(When::Nth(0), Fault::Delay { ns: 100 })];
    let mut rig = Rig::new(FaultPlan { seed: 5, rules, reorder: 4, ..FaultPlan::default() });
    (0..2).for_each(|tag| rig.submit(read(tag, 0, 512)));
    let ends: Vec<u64> = rig.run().iter().map(|(ns, _)| *ns).collect();
    assert_eq!(ends, [100, 100]);
}

#[test]
fn reordering_holds_no_completion_back_for_longer_than_it_says() {
    // Four are gathered and three in flight: the last ends a second later, and two do not wait for it.
    let rules = vec![FaultRule::any(When::Nth(2), Fault::Delay { ns: 1_000_000_000 })];
    let mut rig = Rig::new(FaultPlan { seed: 5, rules, reorder: 4, ..FaultPlan::default() });
    (0..3).for_each(|tag| rig.submit(read(tag, 0, 512)));
    let ends: Vec<u64> = rig.run().iter().map(|(ns, _)| *ns).collect();
    assert_eq!(ends, [REORDER_HOLD_MAX_NS, REORDER_HOLD_MAX_NS, 1_000_000_000]);
}

fn cached(seed: u64) -> Rig {
    Rig::new(FaultPlan { seed, volatile_cache: true, ..FaultPlan::default() })
}

#[test]
fn a_power_cut_loses_what_no_flush_covered_for_some_seed_and_never_what_one_did() {
    let (mut lost, mut stayed) = (0, 0);
    for seed in 0..64 {
        let mut rig = cached(seed);
        assert!(rig.device.info().volatile_cache);
        rig.ok(write(0, 0, &[1; 512]));
        rig.ok(flush(0));
        rig.ok(write(0, 0, &[2; 512]));
        rig.ok(write(0, 4096, &[3; 512]));
        rig.ok(Command { fua: true, ..write(0, 8192, &[4; 512]) });
        assert_eq!(rig.bytes(0, 512), [2; 512], "before the cut the last write is what is read");
        rig.device.power_cut();
        let after = rig.bytes(0, 512);
        assert!(after == [1; 512] || after == [2; 512], "seed {seed}: the flushed bytes or the later ones");
        assert_eq!(rig.bytes(8192, 512), [4; 512], "seed {seed}: FUA");
        let unflushed = rig.bytes(4096, 512);
        assert!(unflushed == [0; 512] || unflushed == [3; 512], "seed {seed}: a sector is not torn");
        if unflushed == [0; 512] { lost += 1 } else { stayed += 1 }
    }
    assert!(lost > 0 && stayed > 0, "lost {lost}, stayed {stayed}");
}

#[test]
fn what_a_power_cut_may_lose_is_told_byte_by_byte() {
    let mut rig = cached(1);
    rig.ok(Command { fua: true, ..write(0, 0, &[1; 4096]) });
    assert!(!rig.device.may_lose(0, &[1; 512]), "FUA");
    rig.ok(write(0, 1024, &[2; 512]));
    rig.ok(Command { op: Op::Discard, buffer: None, ..write(0, 1536, &[0; 512]) });
    assert!(rig.device.may_lose(1024, &[2; 512]) && rig.device.may_lose(1536, &[0; 512]));
    assert!(rig.device.may_lose(1024, &[[2; 512], [0; 512]].concat()), "of two writes");
    assert!(!rig.device.may_lose(1024, &[3; 512]), "other bytes than are there");
    assert!(!rig.device.may_lose(512, &[[1; 512], [2; 512]].concat()), "half of them are covered");
    assert!(!rig.device.may_lose(1536, &[0; 1024]), "the other half");
    rig.submit(write(1, 1024, &[4; 512]));
    assert!(rig.device.may_lose(1024, &[4; 512]), "carried out, and not told");
    rig.run();
    rig.ok(flush(0));
    assert!(!rig.device.may_lose(1024, &[4; 512]));
}

#[test]
fn a_flush_leaves_nothing_to_lose_and_the_inner_device_has_it_all() {
    let inner = Arc::new(MemoryDevice::new(MIB));
    let plan = FaultPlan { seed: 1, volatile_cache: true, ..FaultPlan::default() };
    let device = FaultDevice::new(inner.clone(), plan);
    let mut rig = Rig { queue: open(&device, 0), device, now_ns: 0 };
    rig.ok(write(0, 100, &[1; 3000]));
    rig.ok(write(0, 500, &[2; 10]));
    rig.ok(Command { op: Op::Discard, buffer: None, ..write(0, 1000, &[0; 1000]) });
    assert!(!rig.device.is_clean());
    rig.ok(flush(0));
    assert!(rig.device.is_clean());
    let seen = rig.bytes(0, 4096);
    let plain = FaultDevice::new(inner, FaultPlan::default());
    let mut bare = Rig { queue: open(&plain, 0), device: plain, now_ns: 0 };
    assert_eq!(bare.bytes(0, 4096), seen);
    assert_eq!((seen[99], seen[100], seen[505], seen[999], seen[1000], seen[2000]), (0, 1, 2, 1, 0, 1));
}

#[test]
fn two_queues_flush_one_cache_in_turn() {
    let mut rig = cached(1);
    let mut other = open(&rig.device, 1);
    (0..20).for_each(|at| rig.ok(write(0, at * 8192, &[7; 4096])));
    rig.submit(flush(0));
    other.submit(flush(0)).unwrap();
    other.ring_doorbell(0);
    let mut out = Vec::new();
    other.reap(0, &mut out);
    assert_eq!(out.len(), 0, "queue 0 is at it");
    assert_eq!(rig.run().len(), 1);
    for _ in 0..10 {
        other.reap(0, &mut out);
    }
    assert_eq!(out.iter().map(|reaped| reaped.status).collect::<Vec<_>>(), [Status::Ok]);
}

#[test]
fn a_flush_that_the_inner_device_fails_keeps_everything_cached() {
    let failing = vec![FaultRule::of(Kind::Flush, When::Nth(0), Fault::Error(Status::Io))];
    let inner = FaultDevice::new(
        Arc::new(MemoryDevice::new(MIB)),
        FaultPlan { seed: 1, rules: failing, ..FaultPlan::default() },
    );
    let plan = FaultPlan { seed: 1, volatile_cache: true, ..FaultPlan::default() };
    let device = FaultDevice::new(Arc::new(inner), plan);
    let mut rig = Rig { queue: open(&device, 0), device, now_ns: 0 };
    rig.ok(write(0, 0, &[1; 512]));
    assert_eq!(rig.one(flush(0)).1, Status::Io);
    assert!(!rig.device.is_clean());
    rig.ok(flush(0));
    assert!(rig.device.is_clean());
}

#[test]
fn commands_in_flight_at_a_power_cut_fail_and_the_device_lives_on() {
    let mut rig = cached(1);
    rig.ok(write(0, 0, &[1; 512]));
    rig.submit(write(0, 0, &[2; 512]));
    rig.submit(read(1, 0, 512));
    rig.submit(flush(2));
    rig.device.power_cut();
    let ends = rig.run();
    assert!(ends.len() == 3 && ends.iter().all(|(_, reaped)| reaped.status == Status::Io));
    rig.ok(write(0, 0, &[3; 512]));
    rig.ok(flush(0));
    rig.device.power_cut();
    assert_eq!(rig.bytes(0, 512), [3; 512]);
}

#[test]
fn random_writes_and_cuts_never_lose_what_was_flushed() {
    // Model: per byte, the values that it may have: since its last flush each write adds one, a flush or a cut that
    // showed its value leaves one.
    for seed in 0..8 {
        eprintln!("seed {seed}");
        let mut random = Random::new(seed);
        let mut rig = cached(seed);
        let mut may: Vec<Vec<u8>> = vec![vec![0]; 8192];
        for step in 0..300 {
            let start = random.below(8192) as usize;
            let length = random.below((8192 - start) as u64) as usize + 1;
            match random.below(20) {
                0..12 => {
                    let value = (step % 250) as u8 + 1;
                    let fua = random.below(4) == 0;
                    rig.ok(Command { fua, ..write(0, start as u64, &vec![value; length]) });
                    for values in &mut may[start..start + length] {
                        if fua {
                            values.clear();
                        }
                        values.push(value);
                    }
                }
                12..15 => {
                    rig.ok(Command { op: Op::Discard, buffer: None, ..write(0, start as u64, &vec![0; length]) });
                    may[start..start + length].iter_mut().for_each(|values| values.push(0));
                }
                15..18 => {
                    rig.ok(flush(0));
                    may.iter_mut().for_each(|values| *values = vec![*values.last().unwrap()]);
                }
                _ => {
                    rig.device.power_cut();
                    for (at, (value, values)) in rig.bytes(0, 8192).into_iter().zip(&mut may).enumerate() {
                        assert!(values.contains(&value), "step {step}: byte {at} is {value}, not one of {values:?}");
                        *values = vec![value];
                    }
                }
            }
            let latest: Vec<u8> = may.iter().map(|values| *values.last().unwrap()).collect();
            assert!(rig.bytes(0, 8192) == latest, "step {step}: a read shows what was written last");
        }
    }
}
