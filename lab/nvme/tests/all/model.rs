//! blk's modelled drive beside the controller with rings: the same commands end at the same times.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::device::{Command, Device, DeviceQueue, QueueOptions};
use mqfq_blk::random::Random;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_nvme::device::NvmeDevice;
use mqfq_nvme::media::MediaOptions;
use mqfq_nvme::presets::Preset;
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const QUEUES: u16 = 3;
const DEPTH: u16 = 24;

/// An ended command: when it was found, on which queue, its tag and the first byte that it read.
type End = (u64, usize, u16, Status, Option<u8>);

/// Runs a history that `seed` determines, and returns its ends in order of time, queue and tag.
fn ends(device: &dyn Device, seed: u64) -> Vec<End> {
    let open = |hctx| {
        let options = QueueOptions {
            hctx: HctxId(hctx),
            depth: DEPTH,
            #[cfg(feature = "uring")]
            ring: None,
            interrupt: Arc::new(|_| ()),
        };
        device.open_queue(options).unwrap()
    };
    let mut queues: Vec<Box<dyn DeviceQueue>> = (0..QUEUES).map(open).collect();
    let mut free: Vec<Vec<u16>> = queues.iter().map(|_| (0..DEPTH).collect()).collect();
    let (mut random, mut now_ns, mut found, mut left) = (Random::new(seed), 0, Vec::new(), 2_000);
    while found.len() < 2_000 {
        let queue = random.below(QUEUES.into()) as usize;
        for _ in 0..random.below(12) {
            let Some(tag) = free[queue].pop().filter(|_| left > 0) else { break };
            let ops = [Op::Read, Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes { may_unmap: false }];
            let op = ops[random.below(6) as usize];
            let length_bytes = if op == Op::Flush { 0 } else { 512 << random.below(9) };
            let buffer = matches!(op, Op::Read | Op::Write).then(|| {
                let mut buffer = Buffer::new(length_bytes as usize);
                buffer.as_mut_slice().fill(random.below(255) as u8);
                buffer
            });
            let mut command = Command::new(Tag(tag), op, random.below(900) * 512, length_bytes, buffer);
            command.fua = op == Op::Write && random.below(4) == 0;
            queues[queue].submit(command).unwrap();
            left -= 1;
        }
        queues[queue].ring_doorbell(now_ns);
        // Looks are late as often as they are in time.
        let events = queues.iter().filter_map(|queue| queue.next_event_ns());
        let event_ns = events.min().unwrap_or(now_ns);
        now_ns = now_ns.max(event_ns) + if random.below(2) == 0 { 0 } else { random.below(30_000) };
        for (index, queue) in queues.iter_mut().enumerate() {
            let mut out = Vec::new();
            queue.reap(now_ns, &mut out);
            out.sort_by_key(|reaped| reaped.tag.0);
            for reaped in out {
                let byte = reaped.buffer.map(|buffer| buffer.as_slice()[0]);
                found.push((now_ns, index, reaped.tag.0, reaped.status, byte));
                free[index].push(reaped.tag.0);
            }
        }
    }
    found
}

#[test]
fn the_modelled_drive_ends_each_command_when_the_controller_with_rings_does() {
    for preset in presets::ALL {
        // Room for all inside, and for so few that queues wait for their turns.
        for inside_max in [preset.media.inside_max, 3] {
            let preset = Preset { media: MediaOptions { inside_max, ..preset.media }, ..preset };
            let model = ends(&ModelDevice::new(preset, MIB, 5).unwrap(), 9);
            let nvme = ends(&NvmeDevice::with_preset(preset, MIB, 5).unwrap(), 9);
            let differs = model.iter().zip(&nvme).position(|(model, nvme)| model != nvme);
            assert_eq!(differs, None, "{}, {inside_max}: {:?}", preset.name, differs.map(|at| (model[at], nvme[at])));
            assert!(model.iter().any(|end| end.4.is_some_and(|byte| byte != 0)), "bytes come back");
        }
    }
}
