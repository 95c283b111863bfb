//! The software drive, one queue or set at a time, by hand and in virtual time.

use super::*;
use mqfq_blk::buffer::Buffer;
use mqfq_sched::policy::QueueClass::{self, High, Low, Medium};

const MIB: u64 = 1 << 20;

fn device(size_bytes: u64) -> NvmeDevice {
    NvmeDevice::new(NvmeDeviceOptions { preset: "flash-460k", size_bytes, seed: 1, ..NvmeDeviceOptions::default() })
        .unwrap()
}

/// A queue with a record of its interrupts.
fn queue(device: &NvmeDevice, hctx: u16, depth: u16) -> (Box<dyn DeviceQueue>, Arc<Mutex<Vec<HctxId>>>) {
    let interrupted = Arc::new(Mutex::new(Vec::new()));
    let record = interrupted.clone();
    let options = QueueOptions {
        hctx: HctxId(hctx),
        depth,
        #[cfg(feature = "uring")]
        ring: None,
        interrupt: Arc::new(move |hctx| record.lock().unwrap().push(hctx)),
    };
    (device.open_queue(options).unwrap(), interrupted)
}

fn command(tag: u16, op: Op, offset_bytes: u64, length_bytes: u32, fill: u8) -> Command {
    let buffer = matches!(op, Op::Read | Op::Write).then(|| {
        let mut buffer = Buffer::new(length_bytes as usize);
        buffer.as_mut_slice().fill(fill);
        buffer
    });
    Command::new(Tag(tag), op, offset_bytes, length_bytes, buffer)
}

/// Submits one command and runs until it ended; returns it and when.
fn run(queue: &mut dyn DeviceQueue, command: Command, now_ns: u64) -> (Reaped, u64) {
    queue.submit(command).unwrap();
    queue.ring_doorbell(now_ns);
    let mut out = Vec::new();
    loop {
        let event_ns = queue.next_event_ns().expect("a command is in flight");
        queue.reap(event_ns - 1, &mut out);
        assert!(out.is_empty(), "ended before its time");
        queue.reap(event_ns, &mut out);
        if let Some(reaped) = out.pop() {
            assert!(out.is_empty());
            return (reaped, event_ns);
        }
    }
}

#[test]
fn bytes_come_back_and_each_command_takes_its_time() {
    let device = device(MIB);
    let (mut queue, _) = queue(&device, 0, 4);
    let (written, write_ns) = run(&mut *queue, command(0, Op::Write, 8192, 8192, 7), 0);
    assert_eq!(written.status, Status::Ok);
    // Two pages of 20 us +- 10% at once, then 3666 ns + 8192 B / 2 GB/s = 7762 ns.
    assert!((18_000 + 7_762..=22_000 + 7_762).contains(&write_ns), "{write_ns}");
    let (read, read_ns) = run(&mut *queue, command(1, Op::Read, 8192 - 512, 4096, 0xee), write_ns);
    let bytes = &read.buffer.as_ref().unwrap().as_slice()[..4096];
    assert!(bytes[..512].iter().all(|&byte| byte == 0) && bytes[512..].iter().all(|&byte| byte == 7));
    // 100 us +- 10%, then 2174 ns.
    assert!((92_173..=112_174).contains(&(read_ns - write_ns)), "{}", read_ns - write_ns);
}

#[test]
fn discarded_and_zeroed_bytes_read_as_zero() {
    let device = device(MIB);
    let (mut queue, _) = queue(&device, 0, 4);
    let mut now_ns = 0;
    for op in [Op::Discard, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false }] {
        for step in [command(3, Op::Write, 0, 1536, 7), command(3, op, 512, 512, 0), command(2, Op::Flush, 0, 0, 0)] {
            let (reaped, at_ns) = run(&mut *queue, step, now_ns);
            assert_eq!(reaped.status, Status::Ok);
            now_ns = at_ns;
        }
        let (reaped, at_ns) = run(&mut *queue, command(3, Op::Read, 0, 1536, 0xee), now_ns);
        let bytes = reaped.buffer.unwrap();
        assert_eq!([511, 512, 1023, 1024].map(|at| bytes.as_slice()[at]), [7, 0, 0, 7], "{op:?}");
        now_ns = at_ns;
    }
}

#[test]
fn a_large_read_is_one_command() {
    // 128 KiB as one command: one time per command, 711 ns + 46811 ns, after 32 dies at once.
    let device = device(64 * MIB);
    let (mut queue, _) = queue(&device, 0, 4);
    let (_, at_ns) = run(&mut *queue, command(0, Op::Read, 0, 128 << 10, 0), 0);
    assert!((90_000 + 47_522..=110_000 + 47_523).contains(&at_ns), "{at_ns}");
    assert_eq!(device.info().transfer_bytes_max, 32 << 20);
    let (reaped, _) = run(&mut *queue, command(0, Op::Read, 0, 32 << 20, 0xee), at_ns);
    assert_eq!(reaped.status, Status::Ok);
    assert!(reaped.buffer.unwrap().as_slice()[..32 << 20].iter().all(|&byte| byte == 0), "never written");
}

#[test]
fn a_long_write_zeroes_is_several_commands_and_one_completion() {
    // 100 MiB are 32 + 32 + 32 + 4 MiB: four times 20 us + 711 ns, one after the other.
    let device = device(200 * MIB);
    let (mut queue, _) = queue(&device, 0, 1);
    let (_, start_ns) = run(&mut *queue, command(0, Op::Write, 100 * MIB - 512, 1024, 7), 0);
    let zeroes = command(0, Op::WriteZeroes { may_unmap: true }, 0, 100 << 20, 0);
    let (reaped, at_ns) = run(&mut *queue, zeroes, start_ns);
    assert_eq!((reaped.status, at_ns - start_ns), (Status::Ok, 4 * 20_711));
    assert_eq!(queue.in_flight(), 0);
    let (reaped, _) = run(&mut *queue, command(0, Op::Read, 100 * MIB - 512, 1024, 0xee), at_ns);
    let bytes = reaped.buffer.unwrap();
    assert_eq!([0, 511, 512, 1023].map(|at| bytes.as_slice()[at]), [0, 0, 7, 7]);
}

#[test]
fn whoever_moves_the_controller_interrupts_the_owners_of_what_ended() {
    let device = device(MIB);
    let (mut a, a_interrupted) = queue(&device, 4, 8);
    let (mut b, b_interrupted) = queue(&device, 7, 8);
    a.submit(command(0, Op::Read, 0, 4096, 0)).unwrap();
    a.ring_doorbell(0);
    assert_eq!(b.next_event_ns(), None, "nothing of its own is in flight");
    // B's doorbell a second later finds that A's read has long ended.
    b.submit(command(0, Op::Flush, 0, 0, 0)).unwrap();
    b.ring_doorbell(1_000_000_000);
    assert_eq!(*b_interrupted.lock().unwrap(), [HctxId(4)]);
    assert_eq!(a.next_event_ns(), Some(0), "at once");
    let mut out = Vec::new();
    // A's clock is behind; its completion is there all the same.
    a.reap(0, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(a.next_event_ns(), None);
    assert!(a_interrupted.lock().unwrap().is_empty());
}

#[test]
fn a_reset_gives_back_what_has_not_ended_and_none_of_it_is_carried_out() {
    let device = device(MIB);
    let (mut queue, _) = queue(&device, 0, 8);
    (0..4).for_each(|tag| queue.submit(command(tag, Op::Write, u64::from(tag) * 4096, 4096, 7)).unwrap());
    queue.ring_doorbell(0);
    // One command has ended by the time of the reset, and is reaped as usual.
    let first_ns = queue.next_event_ns().unwrap();
    let (mut given_back, mut out) = (Vec::new(), Vec::new());
    assert!(queue.reset(first_ns, &mut given_back));
    assert_eq!((given_back.len(), queue.in_flight()), (3, 1));
    assert!(given_back.iter().all(|reaped| reaped.buffer.is_some()));
    let again = command(given_back[0].tag.0, Op::Flush, 0, 0, 0);
    queue.submit(again).unwrap();
    queue.ring_doorbell(first_ns);
    queue.reap(1_000_000_000, &mut out);
    assert_eq!(out.iter().map(|reaped| reaped.status).collect::<Vec<_>>(), [Status::Ok; 2]);
    assert_eq!((queue.in_flight(), queue.next_event_ns()), (0, None));
    let written = (0..4).filter(|tag| {
        let mut bytes = [0; 4096];
        device.shared.store.read(tag * 4096, &mut bytes);
        bytes == [7; 4096]
    });
    assert_eq!(written.count(), 1);
}

#[test]
fn a_full_queue_gives_the_command_back() {
    let device = device(MIB);
    let (mut queue, _) = queue(&device, 0, 2);
    (0..2).for_each(|tag| queue.submit(command(tag, Op::Read, 0, 512, 0)).unwrap());
    let QueueFull(back) = queue.submit(command(5, Op::Read, 0, 512, 0)).unwrap_err();
    assert_eq!((back.tag, queue.in_flight()), (Tag(5), 2));
    assert_eq!(queue.next_event_ns(), None, "the doorbell was not rung");
}

#[test]
fn a_full_queue_of_random_work_ends_once_each_over_many_passes_of_the_rings() {
    // 3000 commands through rings of 17 entries, reaped late or early as it falls.
    let device = device(64 * MIB);
    let (mut queue, _) = queue(&device, 0, 16);
    let mut random = mqfq_blk::random::Random::new(3);
    let (mut free, mut out): (Vec<u16>, Vec<_>) = ((0..16).collect(), Vec::new());
    let (mut submitted, mut ended, mut now_ns) = (0, 0, 0);
    while ended < 3000 {
        while submitted < 3000 && random.below(4) > 0 {
            let Some(tag) = free.pop() else { break };
            let op = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes { may_unmap: false }];
            let op = op[random.below(5) as usize];
            let length_bytes = if op == Op::Flush { 0 } else { 512 << random.below(8) };
            queue.submit(command(tag, op, random.below(1000) * 4096, length_bytes, 1)).unwrap();
            submitted += 1;
        }
        queue.ring_doorbell(now_ns);
        now_ns += random.below(60_000);
        queue.reap(now_ns, &mut out);
        for reaped in out.drain(..) {
            assert_eq!(reaped.status, Status::Ok);
            assert!(!free.contains(&reaped.tag.0), "{:?} ended twice", reaped.tag);
            free.push(reaped.tag.0);
            ended += 1;
        }
        assert_eq!(queue.in_flight(), 16 - free.len());
    }
    assert_eq!(free.len(), 16);
}

#[test]
fn bad_options_are_answered_with_a_sentence() {
    let named = |preset, size_bytes| {
        NvmeDevice::new(NvmeDeviceOptions { preset, size_bytes, seed: 0, ..NvmeDeviceOptions::default() }).err()
    };
    assert_eq!(
        named("floppy", MIB).unwrap(),
        "unknown preset \"floppy\": choose one of flash-460k, flash-60k, optane, nvmf-dram, zssd"
    );
    let sentence = "an nvme device's size is a multiple of 512 bytes, not 1000";
    assert_eq!(named("zssd", 1000).unwrap(), sentence);
    assert!(named("zssd", 0).is_some());
    assert!(PRESETS.iter().all(|preset| named(preset.name, MIB).is_none()));
}

/// A drive with weighted round robin that holds `inside_max` commands.
fn weighted(inside_max: u16, queue_pairs_max: u16) -> NvmeDevice {
    let zssd = Preset::by_name("zssd").unwrap();
    let media = crate::media::MediaOptions { inside_max, ..zssd.media };
    NvmeDevice::build(Preset { media, ..zssd }, Arbitration::Weighted, MIB, queue_pairs_max, 1).unwrap()
}

fn class_queues(device: &NvmeDevice, hctx: u16, depth: u16) -> Result<Box<dyn DeviceQueue + Send>, String> {
    device.open_class_queues(QueueOptions {
        hctx: HctxId(hctx),
        depth,
        #[cfg(feature = "uring")]
        ring: None,
        interrupt: Arc::new(|_| ()),
    })
}

fn of_class(tag: u16, class: QueueClass) -> Command {
    Command { class, ..command(tag, Op::Write, u64::from(tag) * 512, 512, tag as u8 + 1) }
}

/// Tags in the order in which the commands ended.
fn ends(queue: &mut dyn DeviceQueue) -> Vec<u16> {
    let mut out = Vec::new();
    while let Some(event_ns) = queue.next_event_ns() {
        queue.reap(event_ns, &mut out);
    }
    assert!(out.iter().all(|reaped| reaped.status == Status::Ok));
    out.iter().map(|reaped| reaped.tag.0).collect()
}

#[test]
fn a_set_sends_each_command_to_the_queue_of_its_class_and_the_weights_count() {
    let letter = |tag: u16| ["h", "m", "l"][tag as usize / 6];
    for (arbitration, expected) in
        [(Arbitration::Weighted, "hhhmml hhhmml mml lll"), (Arbitration::WeightedIgnored, "hml hml hml hml hml hml")]
    {
        let zssd = Preset::by_name("zssd").unwrap();
        let media = crate::media::MediaOptions { inside_max: 1, ..zssd.media };
        let device = NvmeDevice::build(Preset { media, ..zssd }, arbitration, MIB, 3, 1).unwrap();
        assert!(device.offers_class_queues(), "it says so, whatever it does");
        let mut queue = class_queues(&device, 0, 6).unwrap();
        assert!(queue.set_class_weights(ClassWeights { high: 3, medium: 2, low: 1 }, 0));
        for tag in 0..18 {
            queue.submit(of_class(tag, QueueClass::ALL[tag as usize / 6])).unwrap();
        }
        queue.ring_doorbell(0);
        let order: String = ends(&mut *queue).into_iter().map(letter).collect();
        // The first high one was fetched when nothing else was there. In the third round high is empty.
        assert_eq!(order, expected.replace(' ', ""), "{arbitration:?}");
        let mut bytes = [0; 512];
        device.shared.store.read(17 * 512, &mut bytes);
        assert_eq!(bytes, [18; 512], "the tag is beyond its queue's depth");
    }
}

#[test]
fn a_full_class_keeps_nothing_from_the_others() {
    let device = weighted(256, 3);
    let mut queue = class_queues(&device, 0, 2).unwrap();
    (0..2).for_each(|tag| queue.submit(of_class(tag, High)).unwrap());
    let QueueFull(back) = queue.submit(of_class(5, High)).unwrap_err();
    assert_eq!((back.tag, back.class, queue.in_flight()), (Tag(5), High, 2));
    (2..4).for_each(|tag| queue.submit(of_class(tag, Low)).unwrap());
    queue.submit(of_class(4, Medium)).unwrap();
    queue.ring_doorbell(0);
    assert_eq!(ends(&mut *queue).len(), 5);
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn an_abort_finds_its_command_in_any_class_and_a_reset_begins_all_three_anew() {
    let device = weighted(2, 3);
    let mut queue = class_queues(&device, 0, 2).unwrap();
    let classes = [Low, High, Medium, Low, Medium, High];
    for (tag, class) in (0..).zip(classes) {
        queue.submit(of_class(tag, class)).unwrap();
    }
    queue.ring_doorbell(0);
    // Both high ones are inside. The first low one waits in its ring, and ends when it is fetched.
    assert!(queue.abort(Tag(1), 0) && queue.abort(Tag(0), 0) && !queue.abort(Tag(6), 0));
    let mut out = Vec::new();
    queue.reap(0, &mut out);
    assert_eq!(out.iter().map(|end| (end.tag.0, end.status)).collect::<Vec<_>>(), [(1, Status::TimedOut)]);
    let mut given_back = Vec::new();
    assert!(queue.reset(0, &mut given_back));
    let mut tags: Vec<u16> = given_back.iter().map(|reaped| reaped.tag.0).collect();
    tags.sort_unstable();
    assert_eq!((tags, queue.in_flight()), (vec![0, 2, 3, 4, 5], 0));
    for (tag, class) in (0..).zip(classes) {
        queue.submit(of_class(tag, class)).unwrap();
    }
    queue.ring_doorbell(0);
    assert_eq!(ends(&mut *queue).len(), 6, "of now, and none of before");
}

#[test]
fn whoever_moves_the_controller_interrupts_the_owner_of_a_set_once() {
    let device = weighted(256, 8);
    let mut set = class_queues(&device, 4, 8).unwrap();
    for (tag, class) in (0..).zip(QueueClass::ALL) {
        set.submit(of_class(tag, class)).unwrap();
    }
    set.ring_doorbell(0);
    let (mut other, interrupted) = queue(&device, 7, 8);
    other.submit(command(0, Op::Flush, 0, 0, 0)).unwrap();
    other.ring_doorbell(1_000_000_000);
    assert_eq!(*interrupted.lock().unwrap(), [HctxId(4)], "for all three queues");
    assert_eq!(set.next_event_ns(), Some(0));
    let mut out = Vec::new();
    set.reap(0, &mut out);
    assert_eq!(out.len(), 3);
}

#[test]
fn a_dropped_queue_is_deleted_with_what_is_in_it_and_its_place_is_free() {
    // As many as D2FQ's drive has: ten sets, and two left.
    let device = weighted(256, 32);
    let mut sets: Vec<_> = (0..10).map(|hctx| class_queues(&device, hctx, 4).unwrap()).collect();
    let refusal = class_queues(&device, 10, 4).err().unwrap();
    let sentence =
        "the NVMe controller refused a set of 3 queues of depth 4: fewer than 3 of its 32 queue pairs are free";
    assert_eq!(refusal, sentence);
    let plain: Vec<_> = (10..12).map(|hctx| queue(&device, hctx, 4).0).collect();
    assert_eq!(device.queue_limits().queues_max, 32);
    let mut dropped = sets.remove(3);
    dropped.submit(of_class(0, Low)).unwrap();
    dropped.ring_doorbell(0);
    drop(dropped);
    drop(plain);
    // Its write was inside, and is not carried out.
    let mut again = class_queues(&device, 3, 4).unwrap();
    again.submit(of_class(1, Low)).unwrap();
    again.ring_doorbell(0);
    assert_eq!(ends(&mut *again), [1]);
    let mut bytes = [9; 512];
    device.shared.store.read(0, &mut bytes);
    assert_eq!(bytes, [0; 512]);
    sets[0].submit(of_class(2, High)).unwrap();
    sets[0].ring_doorbell(0);
    assert_eq!(ends(&mut *sets[0]), [2], "the others go on");
}

#[test]
fn a_drive_without_weighted_round_robin_has_no_class_queues() {
    let device = device(MIB);
    assert!(!device.offers_class_queues());
    let refusal = class_queues(&device, 0, 4).err().unwrap();
    assert_eq!(refusal, "it has no weighted round robin among classes of queues");
    let (mut plain, _) = queue(&device, 0, 4);
    assert!(!plain.set_class_weights(ClassWeights::EQUAL, 0));
    // Any preset can be given it.
    let options = NvmeDeviceOptions {
        preset: "flash-460k",
        size_bytes: MIB,
        arbitration: Some(Arbitration::Weighted),
        ..Default::default()
    };
    let device = NvmeDevice::new(options).unwrap();
    assert!(device.offers_class_queues());
    let refusal = class_queues(&device, 0, 21_846).err().unwrap();
    let sentence = "three class queues of 21846 commands each have no tags: allowed are up to 21845 each";
    assert_eq!(refusal, sentence);
    let none = NvmeDeviceOptions { queue_pairs_max: Some(0), ..options };
    assert_eq!(NvmeDevice::new(none).err().unwrap(), "an nvme device has at least 1 queue pair, not 0");
}
