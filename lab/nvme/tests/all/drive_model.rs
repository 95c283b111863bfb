//! The drive behaves as the papers' drives do: latency alone, saturation, and unfairness under round robin.

use crate::closed_loop;

use closed_loop::{Got, Reader, run, run_on};
use mqfq_nvme::arbitration::ArbitrationBurst;
use mqfq_nvme::media::{LinkRate, MediaOptions};
use mqfq_nvme::presets::{self, FLASH_60K, FLASH_460K, NVMF_DRAM, OPTANE, ZSSD};
use mqfq_nvme::{
    ArbClass, Arbitration, ArbitrationFeature, ArbitrationWeights, Controller, ControllerOptions, Mechanism, Preset,
};

const MS: u64 = 1_000_000;

fn options(preset: Preset) -> ControllerOptions {
    ControllerOptions::of(&preset, 1 << 30, 64, 1)
}

fn alone(preset: Preset, reader: Reader, duration_ns: u64) -> Got {
    run(options(preset), &[reader], duration_ns)[0]
}

#[track_caller]
fn assert_within(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{value} is not {expected} within {tolerance}");
}

#[test]
fn at_depth_1_a_read_takes_the_die_time_and_the_link_time() {
    // The mean of the die time is the preset's; a queue of its own means no waiting. Several thousand samples of +-10%
    // (standard deviation 5.8%) put the mean within 0.5%.
    for Preset { name, media, .. } in presets::ALL {
        let preset = Preset::by_name(name).unwrap();
        let link_ns = 1e9 / media.read_link.commands_per_s(4096) as f64;
        let expected_ns = media.read_ns as f64 + link_ns;
        let got = alone(preset, Reader { queues: 1, depth: 1, bytes: 4096 }, 4000 * media.read_ns);
        assert_within(got.latency_ns, expected_ns, 0.005);
        assert_within(got.bytes_per_s, 4096.0 / expected_ns * 1e9, 0.005);
    }
}

#[test]
fn saturated_the_link_alone_sets_the_rate() {
    // 8 x 64 reads of each size keep the link busy without a gap after the first die time: 1 / (711 ns + bytes / 2.8
    // GB/s), less than 4 KiB as fast as 4 KiB. Of 50 ms the first 0.1 to 0.2 go by before the first end: 0.4%.
    for (bytes, expected_per_s) in [(512, 1e9 / 2173.857), (4096, 1e9 / 2173.857), (131_072, 1e9 / 47_522.4)] {
        let got = alone(FLASH_460K, Reader { queues: 8, depth: 64, bytes }, 50 * MS);
        assert_within(got.commands as f64 * 20.0, expected_per_s, 0.01);
    }
}

#[test]
fn flash_is_full_at_depth_64_and_not_at_32() {
    // D = 64 is latency x rate: 139 us x 460 K/s. 460 K x 4096 B = 1884 MB/s. At 32 the latency of 102 us gives no more
    // than 32 / 102 us = 313 K/s.
    let rate_at = |depth| alone(FLASH_460K, Reader { queues: 1, depth, bytes: 4096 }, 100 * MS).bytes_per_s / 4096.0;
    let at_64 = rate_at(64);
    assert!((0.95 * 460e3..=460.1e3).contains(&at_64), "{at_64}");
    let at_32 = rate_at(32);
    assert!((0.8 * 313e3..=313e3).contains(&at_32), "{at_32}");
    assert_within(rate_at(128), 460e3, 0.01);
}

#[test]
fn other_presets_reach_their_sources_figures() {
    // Optane: 550 K at depth 16 is its data sheet's sentence. The RDMA target: nearly 4 M of 1 KiB from 16 queues.
    assert_within(
        alone(OPTANE, Reader { queues: 1, depth: 16, bytes: 4096 }, 20 * MS).commands as f64 * 50.0,
        550e3,
        0.02,
    );
    let rate = alone(NVMF_DRAM, Reader { queues: 16, depth: 16, bytes: 1024 }, 5 * MS).commands as f64 * 200.0;
    assert_within(rate, 4e6, 0.02);
}

#[test]
fn slow_motion_has_the_same_shape() {
    // Every time x 7.7: the same run 7.7 times as long gives the same number of commands.
    let mixed = [Reader { queues: 1, depth: 16, bytes: 4096 }, Reader { queues: 4, depth: 32, bytes: 16384 }];
    let fast = run(options(FLASH_460K), &mixed, 20 * MS);
    let slow = run(options(FLASH_60K), &mixed, 154 * MS);
    for (fast, slow) in fast.iter().zip(&slow) {
        assert_within(slow.commands as f64, fast.commands as f64, 0.01);
        assert_within(slow.latency_ns, fast.latency_ns * 7.7, 0.01);
    }
}

#[test]
fn round_robin_favours_large_requests() {
    // One command each in turn: 64 KiB against 4 KiB shares bytes 16 : 1 (MQFQ section 4.1, Figure 5 left). A turn of
    // both takes 26.3 us, so 500 ms are 19000 turns. Of the 256 inside at the end most are large ones, which have been
    // fetched and not ended: up to 256 / 19000 = 1.3% too few.
    let got = run(
        options(FLASH_460K),
        &[Reader { queues: 2, depth: 128, bytes: 4096 }, Reader { queues: 2, depth: 128, bytes: 65536 }],
        500 * MS,
    );
    assert_within(got[1].bytes_per_s / got[0].bytes_per_s, 16.0, 0.02);
}

#[test]
fn round_robin_favours_many_queues() {
    // Equal loads on one queue and on four: 1 : 4 (MQFQ section 4.1, Figure 5 middle, has 1 : 2).
    let got = run(
        options(FLASH_460K),
        &[Reader { queues: 1, depth: 128, bytes: 4096 }, Reader { queues: 4, depth: 128, bytes: 4096 }],
        100 * MS,
    );
    assert_within(got[1].bytes_per_s / got[0].bytes_per_s, 4.0, 0.03);
}

#[test]
fn a_longer_burst_does_not_change_the_share_of_saturating_queues() {
    // Equal bursts for all queues: the same share as with single commands.
    let burst =
        ControllerOptions { arbitration_burst: ArbitrationBurst::from_field(3).unwrap(), ..options(FLASH_460K) };
    let got = run(
        burst,
        &[Reader { queues: 1, depth: 128, bytes: 4096 }, Reader { queues: 2, depth: 128, bytes: 4096 }],
        100 * MS,
    );
    assert_within(got[1].bytes_per_s / got[0].bytes_per_s, 2.0, 0.03);
}

#[test]
fn each_queue_alone_is_as_fast_whatever_its_number() {
    // One queue of 128 or four of 32: the same drive, the same rate.
    let one = alone(FLASH_460K, Reader { queues: 1, depth: 128, bytes: 4096 }, 50 * MS);
    let four = alone(FLASH_460K, Reader { queues: 4, depth: 32, bytes: 4096 }, 50 * MS);
    assert_within(one.bytes_per_s, four.bytes_per_s, 0.01);
}

/// Three equal readers, one of each class, of which each could saturate the drive alone: their bytes per second.
fn by_class(arbitration: Arbitration, preset: Preset, depth: u16, weights: [u16; 3]) -> [f64; 3] {
    let mut controller = Controller::new(ControllerOptions { arbitration, ..options(preset) });
    controller.enable(Mechanism::Weighted, 0).unwrap();
    let [high, medium, low] = weights;
    let weights = ArbitrationWeights::new(high, medium, low).unwrap();
    let dword = ArbitrationFeature { burst: ArbitrationBurst::ONE, weights }.to_dword();
    controller.set_features(ArbitrationFeature::ID, dword, false, 0).unwrap();
    let classes = [ArbClass::High, ArbClass::Medium, ArbClass::Low];
    let got = run_on(controller, &[Reader { queues: 1, depth, bytes: 4096 }; 3], &classes, 200 * MS);
    [0, 1, 2].map(|reader| got[reader].bytes_per_s)
}

#[test]
fn weighted_round_robin_shares_bandwidth_by_the_weights() {
    // 256 fit inside, so each of three readers of depth 512 always has commands that wait. 150 K reads in 200 ms; what
    // is inside at the end, 256 of them by other shares than those that ended, is the tolerance.
    let [high, medium, low] = by_class(Arbitration::Weighted, ZSSD, 512, [16, 4, 1]);
    assert_within(high / medium, 4.0, 0.02);
    assert_within(medium / low, 4.0, 0.05);
    let [high, medium, low] = by_class(Arbitration::Weighted, ZSSD, 512, [1, 1, 1]);
    assert_within(high / medium, 1.0, 0.01);
    assert_within(medium / low, 1.0, 0.01);
}

#[test]
fn a_drive_that_ignores_weights_and_one_with_room_inside_share_equally() {
    for (arbitration, preset) in [(Arbitration::WeightedIgnored, ZSSD), (Arbitration::Weighted, NVMF_DRAM)] {
        // 3 x 512 fit inside the RDMA target's 4096: nothing ever waits, and nothing is arbitrated.
        let [high, _, low] = by_class(arbitration, preset, 512, [16, 4, 1]);
        assert_within(high / low, 1.0, 0.02);
    }
}

/// An independent model of the same two stages (a page of Python, in floating point, without rings) with 700 ns per
/// command: what it printed for its cases under `none`, which is what the controller does by itself.
mod quick_model {
    use super::*;

    /// Slowdown of the victim and the total of both, as the model printed them.
    struct Expected {
        victim_slowdown: f64,
        total_mb_per_s: f64,
        victim_alone_mb_per_s: f64,
    }

    #[track_caller]
    fn case(victim: Reader, antagonist: Reader, duration_ns: u64, expected: Expected) {
        let media = MediaOptions {
            read_link: LinkRate { command_ns: 700, bytes_per_s: 2_800_000_000, shortest_bytes: 0 },
            ..FLASH_460K.media
        };
        let drive = Preset { media, ..FLASH_460K };
        let alone = alone(drive, victim, duration_ns).bytes_per_s;
        let [victim, antagonist] = run(options(drive), &[victim, antagonist], duration_ns)[..] else { unreachable!() };
        assert_within(alone / 1e6, expected.victim_alone_mb_per_s, 0.02);
        assert_within(alone / victim.bytes_per_s, expected.victim_slowdown, 0.05);
        assert_within((victim.bytes_per_s + antagonist.bytes_per_s) / 1e6, expected.total_mb_per_s, 0.02);
    }

    #[test]
    fn a_depth_16_reader_beside_8_x_128_is_slowed_5_4_times() {
        // "QD16 4K vs 8x128 4K none: victim slowdown 5.36, total 1893.5, alone 621". Alone its 16 are done in 105 us.
        // With 256 inside each command has 256 x 2.163 us = 554 us of link before it: 5.3 times, and the wait for its
        // turn.
        case(
            Reader { queues: 1, depth: 16, bytes: 4096 },
            Reader { queues: 8, depth: 128, bytes: 4096 },
            200 * MS,
            Expected { victim_slowdown: 5.36, total_mb_per_s: 1893.5, victim_alone_mb_per_s: 621.0 },
        );
    }

    #[test]
    fn a_depth_1_reader_beside_large_reads_is_slowed_59_times() {
        // "QD1 4K vs 8x16 128K none: victim slowdown 58.84, total 2758.0, alone 40". All 128 reads of 128 KiB fit
        // inside: 128 x 47.5 us = 6.08 ms of link before it, against 102 us alone: 59.6 times.
        case(
            Reader { queues: 1, depth: 1, bytes: 4096 },
            Reader { queues: 8, depth: 16, bytes: 131_072 },
            600 * MS,
            Expected { victim_slowdown: 58.84, total_mb_per_s: 2758.0, victim_alone_mb_per_s: 40.0 },
        );
    }

    #[test]
    fn saturating_queues_share_1_to_8() {
        // "1x128 4K vs 8x128 4K none: victim slowdown 9.00, total 1893.5, alone 1894": one of nine queues.
        case(
            Reader { queues: 1, depth: 128, bytes: 4096 },
            Reader { queues: 8, depth: 128, bytes: 4096 },
            100 * MS,
            Expected { victim_slowdown: 9.0, total_mb_per_s: 1893.5, victim_alone_mb_per_s: 1894.0 },
        );
    }

    #[test]
    fn small_against_large_reads_is_slowed_12_times() {
        // "4x64 4K vs 4x64 64K none: victim slowdown 12.14, total 2650.3, alone 1894".
        case(
            Reader { queues: 4, depth: 64, bytes: 4096 },
            Reader { queues: 4, depth: 64, bytes: 65536 },
            200 * MS,
            Expected { victim_slowdown: 12.14, total_mb_per_s: 2650.3, victim_alone_mb_per_s: 1894.0 },
        );
    }
}

mod model {
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
                assert_eq!(
                    differs,
                    None,
                    "{}, {inside_max}: {:?}",
                    preset.name,
                    differs.map(|at| (model[at], nvme[at]))
                );
                assert!(model.iter().any(|end| end.4.is_some_and(|byte| byte != 0)), "bytes come back");
            }
        }
    }
}
