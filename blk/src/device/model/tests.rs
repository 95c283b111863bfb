//! The modelled drive, one queue at a time, by hand and in virtual time. `lab/nvme` holds its times against those of
//! the controller with rings.

use super::presets::{FLASH_460K, ZSSD};
use super::*;
use crate::buffer::Buffer;
use media::MediaOptions;

const MIB: u64 = 1 << 20;

fn device(preset: Preset) -> ModelDevice {
    ModelDevice::new(preset, 64 * MIB, 1).unwrap()
}

/// A drive with room for so many commands inside.
fn narrow(inside_max: u16) -> ModelDevice {
    device(Preset { media: MediaOptions { inside_max, ..ZSSD.media }, ..ZSSD })
}

/// A queue with a record of its interrupts.
fn queue(device: &ModelDevice, hctx: u16, depth: u16) -> (Box<dyn DeviceQueue>, Arc<Mutex<Vec<HctxId>>>) {
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

/// Writes of a block to the block of their tag, submitted and announced at time 0.
fn write_blocks(queue: &mut dyn DeviceQueue, tags: std::ops::Range<u16>) {
    for tag in tags {
        queue.submit(command(tag, Op::Write, u64::from(tag) * 512, 512, 7)).unwrap();
    }
    queue.ring_doorbell(0);
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

/// Tags in the order in which the commands ended, and their status.
fn ends(queue: &mut dyn DeviceQueue) -> Vec<(u16, Status)> {
    let mut out = Vec::new();
    while let Some(event_ns) = queue.next_event_ns() {
        queue.reap(event_ns, &mut out);
    }
    out.iter().map(|reaped| (reaped.tag.0, reaped.status)).collect()
}

/// True if a block of the drive holds what [`write_blocks`] writes.
fn is_written(device: &ModelDevice, block: u64) -> bool {
    let mut bytes = [0; 512];
    device.shared.store.read(block * 512, &mut bytes);
    bytes == [7; 512]
}

#[test]
fn each_operation_takes_its_time_and_bytes_come_back() {
    let device = device(FLASH_460K);
    let (mut queue, _) = queue(&device, 0, 4);
    let (_, wrote_ns) = run(&mut *queue, command(0, Op::Write, 8192, 8192, 7), 0);
    // Two pages of 20 us +- 10% at once, then 3666 ns + 8192 B / 2 GB/s = 7762 ns.
    assert!((18_000 + 7_762..=22_000 + 7_762).contains(&wrote_ns), "{wrote_ns}");
    let (read, read_ns) = run(&mut *queue, command(1, Op::Read, 8192 - 512, 4096, 0xee), wrote_ns);
    let bytes = read.buffer.unwrap();
    assert_eq!([0, 511, 512, 4095].map(|at| bytes.as_slice()[at]), [0, 0, 7, 7]);
    // 100 us +- 10%, then 2174 ns.
    assert!((92_173..=112_174).contains(&(read_ns - wrote_ns)), "{}", read_ns - wrote_ns);
    let mut now_ns = read_ns;
    for op in [Op::Discard, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false }, Op::Flush] {
        let length_bytes = if op == Op::Flush { 0 } else { 48 << 20 };
        let (reaped, ended_ns) = run(&mut *queue, command(2, op, 0, length_bytes, 0), now_ns);
        assert_eq!((reaped.status, ended_ns - now_ns), (Status::Ok, 20_711), "{op:?} moves no bytes");
        now_ns = ended_ns;
    }
    assert!(!is_written(&device, 16), "discarded and zeroed bytes read as zero");
}

#[test]
fn a_worker_that_moves_the_drive_interrupts_the_owners_of_the_ended_commands() {
    let device = device(FLASH_460K);
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
fn a_full_drive_fetches_from_each_queue_in_turn() {
    let device = narrow(1);
    let queues = [0, 1, 2].map(|hctx| queue(&device, hctx, 4).0);
    let mut queues = queues.map(|mut queue| {
        write_blocks(&mut *queue, 0..3);
        queue
    });
    let mut order = Vec::new();
    while let Some(event_ns) = queues.iter().filter_map(|queue| queue.next_event_ns()).min() {
        for (index, queue) in queues.iter_mut().enumerate() {
            let mut out = Vec::new();
            queue.reap(event_ns, &mut out);
            order.extend(out.iter().map(|_| index));
        }
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_full_queue_gives_the_command_back() {
    let device = device(FLASH_460K);
    let (mut queue, _) = queue(&device, 0, 2);
    (0..2).for_each(|tag| queue.submit(command(tag, Op::Read, 0, 512, 0)).unwrap());
    let QueueFull(back) = queue.submit(command(5, Op::Read, 0, 512, 0)).unwrap_err();
    assert_eq!((back.tag, queue.in_flight()), (Tag(5), 2));
    assert_eq!(queue.next_event_ns(), None, "the doorbell was not rung");
}

#[test]
fn an_aborted_command_ends_at_once_wherever_it_is_and_is_not_carried_out() {
    let device = narrow(2);
    let (mut queue, _) = queue(&device, 0, 4);
    write_blocks(&mut *queue, 0..3);
    // 0 and 1 are inside, 2 waits.
    assert!(queue.abort(Tag(0), 0) && queue.abort(Tag(2), 0) && !queue.abort(Tag(3), 0));
    let mut out = Vec::new();
    queue.reap(0, &mut out);
    let mut ended: Vec<_> = out.iter().map(|end| (end.tag.0, end.status)).collect();
    ended.sort_by_key(|&(tag, _)| tag);
    assert_eq!(ended, [(0, Status::TimedOut), (2, Status::TimedOut)]);
    // The medium is not done with 0, so that of two further commands one waits for it or for 1.
    write_blocks(&mut *queue, 2..4);
    assert_eq!(device.shared.lock().waiting, 2);
    assert_eq!(ends(&mut *queue).len(), 3);
    assert_eq!([0, 1, 2, 3].map(|block| is_written(&device, block)), [false, true, true, true]);
}

#[test]
fn a_reset_gives_back_what_has_not_ended_and_none_of_it_is_carried_out() {
    let device = device(FLASH_460K);
    let (mut queue, _) = queue(&device, 0, 8);
    write_blocks(&mut *queue, 0..4);
    // One command has ended by the time of the reset, and is reaped as usual.
    let first_ns = queue.next_event_ns().unwrap();
    let mut given_back = Vec::new();
    assert!(queue.reset(first_ns, &mut given_back));
    assert_eq!((given_back.len(), queue.in_flight()), (3, 1));
    assert!(given_back.iter().all(|reaped| reaped.buffer.is_some()));
    queue.submit(command(given_back[0].tag.0, Op::Flush, 0, 0, 0)).unwrap();
    queue.ring_doorbell(first_ns);
    assert_eq!(ends(&mut *queue).iter().map(|&(_, status)| status).collect::<Vec<_>>(), [Status::Ok; 2]);
    assert_eq!((queue.in_flight(), queue.next_event_ns()), (0, None));
    assert_eq!((0..4).filter(|&block| is_written(&device, block)).count(), 1);
}

#[test]
fn a_dropped_queue_ends_its_commands_and_the_others_go_on() {
    let device = narrow(2);
    let (mut dropped, _) = queue(&device, 0, 4);
    let (mut stays, _) = queue(&device, 1, 4);
    write_blocks(&mut *dropped, 0..3);
    write_blocks(&mut *stays, 8..8);
    stays.submit(command(1, Op::Flush, 0, 0, 0)).unwrap();
    stays.ring_doorbell(0);
    drop(dropped);
    assert_eq!(ends(&mut *stays), [(1, Status::Ok)]);
    assert!((0..3).all(|block| !is_written(&device, block)));
    let (mut again, _) = queue(&device, 0, 4);
    write_blocks(&mut *again, 1..2);
    assert_eq!(ends(&mut *again), [(1, Status::Ok)]);
    assert_eq!(device.shared.lock().lanes.len(), 2, "it has the place of the dropped one");
}

#[test]
fn a_size_that_is_no_multiple_of_a_block_is_answered_with_a_sentence() {
    let refused = |size_bytes| ModelDevice::new(ZSSD, size_bytes, 0).err();
    let sentence = "a modelled drive's size is a multiple of 512 bytes, not 1000";
    assert_eq!(refused(1000).as_deref(), Some(sentence));
    assert!(refused(0).is_some() && refused(512).is_none());
}
