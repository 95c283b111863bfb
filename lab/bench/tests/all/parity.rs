//! Parity: the simulated drive (`sim/src/drive.rs`) and the one that workers use in real time
//! (`blk/src/device/nvme.rs`) are two hosts of one controller. Given the same history of requests they must give the
//! same completions.
//!
//! # What is compared
//! A history: which queue rings its doorbell for which requests at which nanosecond. Both drives get the same preset,
//! size and seed.
//! * By a clock of the test that stands at every event in turn, with every queue looked at each time: the same
//!   completions, at the same nanoseconds, and of one queue in the same order. (Of two queues in the same nanosecond
//!   none comes first.)
//! * By the wall clock, whose readings become the history's times: of each queue the same order, and each completion is
//!   found by the first look at or after the time at which the simulated drive ends it.
//!
//! Not compared: data, which the simulated drive does not move, and what a worker does above the queue.

use mqfq_blk::HctxId;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::{Command, Device, DeviceQueue, QueueOptions};
use mqfq_blk::random::Random;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_nvme::device::{NvmeDevice, NvmeDeviceOptions, PRESETS};
use mqfq_sim::blk;
use mqfq_sim::blk::device::Device as _;
use mqfq_sim::cores::{self, Cores, core};
use mqfq_sim::drive::{Drive, SimDevice};
use mqfq_sim::machine;
use mqfq_sim::scenario::{Device as Described, Machine};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

const SIZE_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 512;
const QUEUES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read,
    Write { fua: bool },
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    what: What,
    offset_bytes: u64,
    length_bytes: u32,
    tag: u16,
}

/// One doorbell. No two of a history are in the same nanosecond.
#[derive(Clone, Debug)]
struct Batch {
    at_ns: u64,
    queue: usize,
    requests: Vec<Request>,
}

/// When, on which queue, which request; in that order.
type Completions = Vec<(u64, usize, u16)>;

/// Bursts on all queues with pauses in between: reads, writes and flushes of 512 B to 256 KiB, one to sixteen of them
/// per doorbell.
fn history(seed: u64, batches: usize, gap_ns: u64) -> Vec<Batch> {
    let mut random = Random::new(seed);
    let mut tags = [0u16; QUEUES];
    let mut at_ns = 0;
    let mut batch = |_| {
        // One gap in eight is long enough for the drive to fall idle on most presets.
        let is_pause = random.below(8) == 0;
        at_ns += 1 + random.below(if is_pause { 40 * gap_ns } else { gap_ns });
        let queue = random.below(QUEUES as u64) as usize;
        let requests = 0..1 + random.below(16);
        let request = |_| {
            let blocks = 1u64 << random.below(10);
            let offset_bytes = random.below(SIZE_BYTES / BLOCK_BYTES - blocks) * BLOCK_BYTES;
            let what = match random.below(20) {
                0 => What::Flush,
                1..6 => What::Write { fua: random.below(2) == 0 },
                _ => What::Read,
            };
            let length_bytes = if what == What::Flush { 0 } else { (blocks * BLOCK_BYTES) as u32 };
            tags[queue] += 1;
            Request { what, offset_bytes, length_bytes, tag: tags[queue] - 1 }
        };
        let requests = requests.map(request).collect();
        Batch { at_ns, queue, requests }
    };
    (0..batches).map(&mut batch).collect()
}

/// Enough for every request of a queue, so that a tag names one request of the history.
fn depth(history: &[Batch]) -> u16 {
    let of =
        |queue| history.iter().filter(|batch| batch.queue == queue).map(|batch| batch.requests.len()).sum::<usize>();
    (0..QUEUES).map(of).max().unwrap_or(0) as u16
}

/// The drive that workers use, one queue per worker.
fn real_queues(preset: &str, seed: u64, depth: u16) -> Vec<Box<dyn DeviceQueue>> {
    let device =
        NvmeDevice::new(NvmeDeviceOptions { preset, size_bytes: SIZE_BYTES, seed, ..NvmeDeviceOptions::default() })
            .unwrap();
    let open = |queue: usize| {
        let hctx = HctxId(queue as u16);
        // Every queue is looked at whenever anything happens.
        device.open_queue(QueueOptions { hctx, depth, ring: None, interrupt: Arc::new(|_| {}) }).unwrap()
    };
    (0..QUEUES).map(open).collect()
}

fn submit_real(queue: &mut dyn DeviceQueue, batch: &Batch, now_ns: u64) {
    for &Request { what, offset_bytes, length_bytes, tag } in &batch.requests {
        let (op, fua) = match what {
            What::Read => (Op::Read, false),
            What::Write { fua } => (Op::Write, fua),
            What::Flush => (Op::Flush, false),
        };
        let buffer = (what != What::Flush).then(|| Buffer::new(length_bytes as usize));
        let command = Command { fua, ..Command::new(Tag(tag), op, offset_bytes, length_bytes, buffer) };
        assert!(queue.submit(command).is_ok(), "the queue is as deep as its history is long");
    }
    queue.ring_doorbell(now_ns);
}

/// Looks at every queue at `now_ns`.
fn look(queues: &mut [Box<dyn DeviceQueue>], now_ns: u64, seen: &mut Completions) {
    for (number, queue) in queues.iter_mut().enumerate() {
        let mut reaped = Vec::new();
        queue.reap(now_ns, &mut reaped);
        for reaped in reaped {
            assert_eq!(reaped.status, Status::Ok);
            seen.push((now_ns, number, reaped.tag.0));
        }
    }
}

/// The real-time drive by a clock that stands at each doorbell and at each event that the drive announces.
fn by_fake_clock(preset: &str, seed: u64, history: &[Batch]) -> Completions {
    let mut queues = real_queues(preset, seed, depth(history));
    let mut seen = Vec::new();
    let mut rung = 0;
    loop {
        let event = queues.iter().filter_map(|queue| queue.next_event_ns()).min();
        let doorbell = history.get(rung).map(|batch| batch.at_ns);
        let Some(now_ns) = event.into_iter().chain(doorbell).min() else { return seen };
        if doorbell == Some(now_ns) {
            let batch = &history[rung];
            submit_real(&mut *queues[batch.queue], batch, now_ns);
            rung += 1;
        }
        look(&mut queues, now_ns, &mut seen);
    }
}

/// The real-time drive by the wall clock: the history with the times that were read, and what each look found, with
/// that look's time and the time of the look before.
fn by_wall_clock(preset: &str, seed: u64, planned: &[Batch]) -> (Vec<Batch>, Vec<(u64, Completions)>) {
    let mut queues = real_queues(preset, seed, depth(planned));
    let (mut history, mut looks): (Vec<Batch>, Vec<(u64, Completions)>) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let mut last_ns = 0;
    while history.len() < planned.len() || queues.iter().any(|queue| queue.in_flight() > 0) {
        let now_ns = start.elapsed().as_nanos() as u64;
        if now_ns <= last_ns {
            continue;
        }
        if let Some(batch) = planned.get(history.len()).filter(|batch| batch.at_ns <= now_ns) {
            submit_real(&mut *queues[batch.queue], batch, now_ns);
            history.push(Batch { at_ns: now_ns, ..batch.clone() });
        }
        let mut seen = Vec::new();
        look(&mut queues, now_ns, &mut seen);
        if !seen.is_empty() {
            looks.push((last_ns, seen));
        }
        last_ns = now_ns;
    }
    (history, looks)
}

/// Cores that cost nothing: what remains is the drive.
fn free_machine() -> Machine {
    let mut machine = machine::preset("user-space-2").unwrap();
    let latency = &mut machine.latency;
    for cost in [
        &mut latency.load_hit_ns,
        &mut latency.store_hit_ns,
        &mut latency.rmw_hit_ns,
        &mut latency.fence_ns,
        &mut latency.transfer_same_socket_ns,
        &mut latency.memory_ns,
        &mut latency.code_per_access_ns,
        &mut latency.wake_same_socket_ns,
        &mut latency.sleep_ns,
        &mut latency.interrupt_ns,
        &mut latency.jitter_share,
    ] {
        *cost = 0.0;
    }
    Machine { cores_per_socket: QUEUES, workers: QUEUES, ..machine }
}

/// The simulated drive: a virtual core per queue that rings when its history says so and looks when it is interrupted.
fn simulated(preset: &str, seed: u64, history: &[Batch]) -> Completions {
    let depth = depth(history);
    let described = Described::new(Some(preset), SIZE_BYTES, depth);
    let drive = Drive::nvme(&described, QUEUES, false, seed, u64::MAX).unwrap();
    let device = SimDevice::new(&described, 0);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let body = |number: usize| -> Box<dyn FnOnce()> {
        let hctx = blk::HctxId(number as u16);
        let options = blk::device::QueueOptions { hctx, depth, interrupt: Arc::new(|_| {}) };
        let mut queue = device.open_queue(options).unwrap();
        let mut batches: Vec<Batch> = history.iter().filter(|batch| batch.queue == number).cloned().collect();
        batches.reverse();
        let seen = seen.clone();
        Box::new(move || {
            while !batches.is_empty() || queue.in_flight() > 0 {
                let now_ns = core::now_ns();
                if let Some(batch) = batches.pop_if(|batch| batch.at_ns == now_ns) {
                    for request in &batch.requests {
                        assert!(queue.submit(command(request)).is_ok(), "the queue is as deep as its history is long");
                    }
                    queue.ring_doorbell(now_ns);
                }
                let mut reaped = Vec::new();
                queue.reap(now_ns, &mut reaped);
                for reaped in reaped {
                    assert_eq!(reaped.status, blk::request::Status::Ok);
                    seen.borrow_mut().push((now_ns, number, reaped.tag.0));
                }
                if !batches.is_empty() || queue.in_flight() > 0 {
                    core::sleep(batches.last().map(|batch| batch.at_ns * 1000));
                }
            }
        })
    };
    let bodies = (0..QUEUES).map(body).collect();
    cores::run(Cores::new(&free_machine(), drive, 1), bodies, || Ok(())).unwrap();
    seen.take()
}

fn command(&Request { what, offset_bytes, length_bytes, tag }: &Request) -> blk::device::Command {
    use blk::request::Op;
    let (op, fua) = match what {
        What::Read => (Op::Read, false),
        What::Write { fua } => (Op::Write, fua),
        What::Flush => (Op::Flush, false),
    };
    blk::device::Command { fua, ..blk::device::Command::new(blk::tag::Tag(tag), op, offset_bytes, length_bytes, None) }
}

/// By time, then queue; within one of each the order in which they were seen stays.
fn ordered(mut completions: Completions) -> Completions {
    completions.sort_by_key(|&(at_ns, queue, _)| (at_ns, queue));
    completions
}

#[test]
fn both_drives_end_the_same_requests_in_the_same_order_at_the_same_nanosecond() {
    for preset in PRESETS.map(|preset| preset.name) {
        for seed in 1..=6 {
            // Faster than any of the drives, and slower than most.
            let history = history(seed, 300, if seed % 2 == 0 { 50_000 } else { 500_000 });
            let requests: usize = history.iter().map(|batch| batch.requests.len()).sum();
            let real = ordered(by_fake_clock(preset, seed, &history));
            let simulated = ordered(simulated(preset, seed, &history));
            assert_eq!(real.len(), requests, "{preset}, seed {seed}");
            let differs = real.iter().zip(&simulated).position(|(real, simulated)| real != simulated);
            let around = |at: usize| (&real[at], &simulated[at]);
            assert_eq!(differs, None, "{preset}, seed {seed}: {:?}", differs.map(around));
            assert_eq!(simulated.len(), requests, "{preset}, seed {seed}");
            // It is no queue of its own that each request waits in: they overtake each other.
            let first = real.iter().filter(|(_, queue, _)| *queue == 0).map(|(.., tag)| *tag);
            assert!(!first.is_sorted(), "{preset}, seed {seed}: completions of queue 0 are in the order of submission");
        }
    }
}

#[test]
fn another_history_or_seed_ends_otherwise() {
    // The result compared by the test above depends on its input.
    let given = history(1, 300, 500_000);
    let ends = |seed, history: &[Batch]| by_fake_clock("flash-60k", seed, history);
    let before = ends(1, &given);
    assert!(before == ends(1, &given), "the same again");
    assert!(before != ends(2, &given), "the drive's seed");
    let mut later = given.clone();
    later[0].at_ns += 1;
    assert!(before != ends(1, &later), "a nanosecond");
    let mut shorter = given;
    let mut requests = shorter.iter_mut().flat_map(|batch| &mut batch.requests);
    requests.find(|request| request.length_bytes > 512).unwrap().length_bytes -= 512;
    assert!(before != ends(1, &shorter), "a block");
}

#[test]
fn by_the_wall_clock_each_look_finds_what_the_simulated_drive_has_ended_by_then() {
    for (preset, seed) in [("flash-60k", 7), ("optane", 8), ("nvmf-dram", 9)] {
        let (history, looks) = by_wall_clock(preset, seed, &history(seed, 200, 50_000));
        let mut simulated = ordered(simulated(preset, seed, &history));
        for (before_ns, seen) in looks {
            let now_ns = seen[0].0;
            let found: Vec<(usize, u16)> = seen.iter().map(|&(_, queue, tag)| (queue, tag)).collect();
            let ended = simulated.partition_point(|&(at_ns, ..)| at_ns <= now_ns);
            assert!(
                simulated[..ended].iter().all(|&(at_ns, ..)| at_ns > before_ns),
                "{preset}: not found when it had ended"
            );
            let mut expected: Vec<(usize, u16)> =
                simulated.drain(..ended).map(|(_, queue, tag)| (queue, tag)).collect();
            // One look goes over the queues in turn.
            expected.sort_by_key(|&(queue, _)| queue);
            assert_eq!(found, expected, "{preset}, the look at {now_ns} ns");
        }
        assert!(simulated.is_empty(), "{preset}: never found {simulated:?}");
    }
}
