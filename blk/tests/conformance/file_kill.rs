//! State of a file device after a kill of its process: every write reported as stable is there, and no lock.
//!
//! The test starts itself again as the victim, which writes records and says on its standard output which of them are
//! stable; it is killed in the middle, at a moment that depends on nothing but how far it came.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::file::{FileDevice, FileOptions};
use mqfq_blk::device::{Command as DeviceCommand, Device, DeviceQueue, QueueOptions, Reaped};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_sched::topology::HctxId;
use mqfq_testing_devices::solo::SoloRing;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Names the file; set only for the victim.
const VICTIM: &str = "MQFQ_TEST_VICTIM_FILE";

/// Records of the file, each of 5000 bytes: no block's multiple.
const RECORDS: u64 = 64;
const RECORD_BYTES: usize = 5000;

/// Writes in flight at once; they become stable together.
const BATCH: u64 = 8;

const ROUNDS: u64 = 8;

struct Queue {
    queue: Box<dyn DeviceQueue>,
    ring: SoloRing,
}

impl Queue {
    fn open(path: &str) -> Queue {
        let device = FileDevice::open(&FileOptions::new(path)).unwrap();
        let ring = SoloRing::new().unwrap();
        let options =
            QueueOptions { hctx: HctxId(0), depth: 16, ring: Some(ring.device_ring()), interrupt: Arc::new(|_| {}) };
        Queue { queue: device.open_queue(options).unwrap(), ring }
    }

    fn submit(&mut self, op: Op, tag: u64, offset_bytes: u64, buffer: Option<Buffer>, length: usize) {
        let length_bytes = length as u32;
        let command = DeviceCommand::new(Tag(tag as u16), op, offset_bytes, length_bytes, buffer);
        self.queue.submit(command).unwrap();
    }

    fn finish(&mut self) -> Vec<Reaped> {
        self.queue.ring_doorbell(0);
        let mut all = Vec::new();
        while self.queue.in_flight() > 0 {
            self.ring.turn(&mut *self.queue).unwrap();
            self.queue.reap(0, &mut all);
        }
        assert!(all.iter().all(|reaped| reaped.status == Status::Ok));
        all
    }
}

/// Record `number` lives at place `number % RECORDS` and is full of this.
fn content(number: u64) -> u8 {
    (number % 251) as u8 + 1
}

#[test]
fn a_killed_process_loses_no_write_that_a_flush_covered_and_leaves_no_lock() {
    if let Ok(path) = std::env::var(VICTIM) {
        write_until_killed(&path);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk").to_str().unwrap().to_string();
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    for round in 0..ROUNDS {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "file_kill::a_killed_process_loses_no_write_that_a_flush_covered_and_leaves_no_lock",
                "--nocapture",
            ])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut stable = 0;
        while stable < 3 * RECORDS + round * BATCH {
            stable = told(&lines.next().expect("the victim lives until it is killed").unwrap()).unwrap_or(stable);
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Lines printed before the kill count.
        stable = lines.map_while(Result::ok).filter_map(|line| told(&line)).last().unwrap_or(stable);
        verify(&path, stable, round);
    }
}

fn told(line: &str) -> Option<u64> {
    line.strip_prefix("stable below ")?.parse().ok()
}

fn write_until_killed(path: &str) -> ! {
    let mut queue = Queue::open(path);
    for first in (0..).step_by(BATCH as usize) {
        for number in first..first + BATCH {
            let mut buffer = Buffer::new(RECORD_BYTES);
            buffer.as_mut_slice().fill(content(number));
            let offset_bytes = number % RECORDS * RECORD_BYTES as u64;
            queue.submit(Op::Write, number - first, offset_bytes, Some(buffer), RECORD_BYTES);
        }
        queue.finish();
        queue.submit(Op::Flush, 0, 0, None, 0);
        queue.finish();
        println!("stable below {}", first + BATCH);
        std::io::stdout().flush().unwrap();
    }
    unreachable!("numbers do not end")
}

/// Each byte of a place is of the last stable record there, or of the batch that was on its way.
fn verify(path: &str, stable: u64, round: u64) {
    let mut queue = Queue::open(path);
    for place in 0..RECORDS {
        queue.submit(Op::Read, 0, place * RECORD_BYTES as u64, Some(Buffer::new(RECORD_BYTES)), RECORD_BYTES);
        let buffer = queue.finish().pop().unwrap().buffer.unwrap();
        let last_stable = (stable - 1 - place) / RECORDS * RECORDS + place;
        let on_its_way = (stable..stable + BATCH).find(|number| number % RECORDS == place).map(content);
        for (at, &byte) in buffer.as_slice()[..RECORD_BYTES].iter().enumerate() {
            let is_right = byte == content(last_stable) || Some(byte) == on_its_way;
            assert!(is_right, "round {round}: byte {at} of place {place} is {byte}, not of record {last_stable}");
        }
    }
}
