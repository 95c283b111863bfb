//! Drives with a model of time under real threads: several workers move one drive, and each gets its own commands back.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::device::{Command, Device, DeviceQueue, QueueOptions};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_nvme::device::NvmeDevice;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const WORKERS: u16 = 3;
const DEPTH: u16 = 16;
const COMMANDS_PER_WORKER: u64 = 4_000;
/// Bytes that belong to one worker.
const REGION_BYTES: u64 = 16 << 20;

/// State that the workers share, as in the real engine: a clock, and a bell for each that makes it run a turn.
struct Machine {
    now_ns: AtomicU64,
    bells: [AtomicBool; WORKERS as usize],
}

/// One worker: writes a value of its own to a block, reads the block back, over and over, `DEPTH` blocks at once. It
/// takes a turn when its bell rang or the event that it waits for is due; until then it only lets time pass.
fn work(device: &dyn Device, machine: &Arc<Machine>, worker: u16) {
    let bells = machine.clone();
    let mut queue = device
        .open_queue(QueueOptions {
            hctx: HctxId(worker),
            depth: DEPTH,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(move |HctxId(hctx)| bells.bells[hctx as usize].store(true, Ordering::Release)),
        })
        .expect("a queue for each worker");
    let block = |tag: u16| u64::from(worker) * REGION_BYTES + u64::from(tag) * 4096;
    let command = |op, tag: u16, fill: u8| {
        let mut buffer = Buffer::new(4096);
        buffer.as_mut_slice().fill(fill);
        let offset_bytes = block(tag);
        Command::new(Tag(tag), op, offset_bytes, 4096, Some(buffer))
    };
    let value = |round: u64| (round * 7 + u64::from(worker) + 1) as u8;
    // By tag: how many of its commands have ended. Even: the next is a write, odd: the read that checks it.
    let mut ended = [0u64; DEPTH as usize];
    let mut left = COMMANDS_PER_WORKER;
    (0..DEPTH).for_each(|tag| queue.submit(command(Op::Write, tag, value(0))).expect("room for each tag"));
    left -= u64::from(DEPTH);
    queue.ring_doorbell(machine.now_ns.load(Ordering::Acquire));
    let mut out = Vec::new();
    while queue.in_flight() > 0 {
        sleep(&*queue, machine, worker);
        let now_ns = machine.now_ns.load(Ordering::Acquire);
        queue.reap(now_ns, &mut out);
        for reaped in out.drain(..) {
            assert_eq!(reaped.status, Status::Ok);
            let Tag(tag) = reaped.tag;
            let count = &mut ended[tag as usize];
            if *count % 2 == 1 {
                let bytes = &reaped.buffer.as_ref().expect("the read's buffer").as_slice()[..4096];
                assert!(bytes.iter().all(|&byte| byte == value(*count / 2)), "worker {worker} block {tag}");
            }
            *count += 1;
            if left > 0 {
                left -= 1;
                // A read's buffer begins with a fill that must be gone at its end.
                let next = match *count % 2 {
                    0 => command(Op::Write, tag, value(*count / 2)),
                    _ => command(Op::Read, tag, !value(*count / 2)),
                };
                queue.submit(next).expect("its tag is free again");
            }
        }
        queue.ring_doorbell(now_ns);
    }
    assert_eq!(ended.iter().sum::<u64>(), COMMANDS_PER_WORKER);
}

/// Sleeps like a worker: looks once when its next event is, then only at the bell and the clock.
fn sleep(queue: &dyn DeviceQueue, machine: &Machine, worker: u16) {
    let until_ns = queue.next_event_ns().expect("commands are in flight and were announced");
    let bell = &machine.bells[worker as usize];
    while !bell.swap(false, Ordering::AcqRel) && machine.now_ns.load(Ordering::Acquire) < until_ns {
        // Time passes a little for each look, so that workers overtake each other in all ways.
        machine.now_ns.fetch_add(100, Ordering::AcqRel);
    }
}

#[test]
fn each_worker_gets_its_own_commands_back_although_any_of_them_moves_the_drive() {
    let size_bytes = u64::from(WORKERS) * REGION_BYTES;
    let model = ModelDevice::new(presets::FLASH_460K, size_bytes, 11).expect("whole blocks");
    let nvme = NvmeDevice::with_preset(presets::FLASH_460K, size_bytes, 11).expect("whole blocks");
    for device in [&model as &dyn Device, &nvme] {
        let machine = Arc::new(Machine { now_ns: AtomicU64::new(0), bells: [const { AtomicBool::new(false) }; 3] });
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let machine = &machine;
                scope.spawn(move || work(device, machine, worker));
            }
        });
    }
}
