//! Promises of every device, one claim per function.

use crate::harness::{Driver, POISON, Rig, pattern, plain, read, write};
use mqfq_blk::device::{Command, QueueFull, Reaped};
use mqfq_blk::extents::Stored;
use mqfq_blk::foreign::ForeignMemory;
use mqfq_blk::request::{Op, Status};
use mqfq_testing::Random;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;

/// Unit of the memory devices' store: the edge where a partial discard is easiest to get wrong.
const CHUNK: u64 = 64 * KIB;

const ZEROES: [Op; 3] = [Op::Discard, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false }];

const FAST: [Op; 2] = [Op::FastZeroes { may_unmap: true }, Op::FastZeroes { may_unmap: false }];

#[track_caller]
fn expect_bytes(seen: &[u8], expected: &[u8], what: &str) {
    if let Some(at) = (0..expected.len()).find(|&at| seen[at] != expected[at]) {
        panic!("{what}: byte {at} of {} is {:#x}, not {:#x}", expected.len(), seen[at], expected[at]);
    }
    assert_eq!(seen.len(), expected.len(), "{what}");
}

/// Spans in blocks and in bytes that begin and end around the edges which devices have inside: blocks, pages, chunks.
fn spans(rig: &Rig) -> Vec<(u64, usize)> {
    let block = rig.block();
    let mut spans = BTreeSet::new();
    for edge in [0, 512, 4 * KIB, CHUNK, 2 * CHUNK] {
        for before in [0, 1, 511, 513, 4 * KIB] {
            for length in [1, 3, 512, 513, 4 * KIB, 4 * KIB + 1, CHUNK + 7] {
                let start = edge.saturating_sub(before) / block * block;
                spans.insert((start, u64::max(length / block * block, block) as usize));
            }
        }
    }
    spans.into_iter().collect()
}

pub fn bytes_never_written_read_as_zero(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    let size = rig.info().size_bytes;
    for (offset, length) in spans(rig) {
        expect_bytes(&driver.read(offset, length), &vec![0; length], "never written");
    }
    let last = rig.block() as usize;
    expect_bytes(&driver.read(size - last as u64, last), &vec![0; last], "the device's end");
}

pub fn what_is_written_is_read_back_and_nothing_beside_it_changes(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    let background = pattern(0, (4 * CHUNK) as usize, 0);
    driver.write(0, &background);
    let mut model = background;
    for (salt, (offset, length)) in spans(rig).into_iter().enumerate() {
        let bytes = pattern(offset, length, salt as u64 + 1);
        driver.write(offset, &bytes);
        model[offset as usize..offset as usize + length].copy_from_slice(&bytes);
        // A little more than was written, so that both edges show.
        let from = offset.saturating_sub(8 * KIB) / rig.block() * rig.block();
        let to = (offset + length as u64 + 8 * KIB).min(model.len() as u64) / rig.block() * rig.block();
        let seen = driver.read(from, (to - from) as usize);
        expect_bytes(&seen, &model[from as usize..to as usize], &format!("around {offset}+{length}"));
    }
    expect_bytes(&driver.read(0, model.len()), &model, "all of it");
}

pub fn the_largest_transfer_and_the_last_byte_work(rig: &Rig) {
    let mut driver = rig.open(0, 2);
    let info = rig.info();
    let length = u64::from(info.transfer_bytes_max).min(info.size_bytes) as usize;
    let offset = info.size_bytes - length as u64;
    let bytes = pattern(offset, length, 3);
    driver.write(offset, &bytes);
    expect_bytes(&driver.read(offset, length), &bytes, "the largest transfer");
    let last = rig.block() as usize;
    driver.write(info.size_bytes - last as u64, &vec![9; last]);
    expect_bytes(&driver.read(info.size_bytes - last as u64, last), &vec![9; last], "the last block");
}

pub fn a_command_hands_its_own_buffer_back(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    for length in [rig.block() as usize, 4096, 3 * rig.block().max(1000) as usize] {
        let bytes = pattern(0, length, 5);
        for mut command in [write(0, rig.block(), &bytes), read(0, rig.block(), length)] {
            let op = command.op;
            let address = command.buffer.as_mut().unwrap().as_mut_ptr();
            let mut buffer = driver.ok(command).expect("with its buffer");
            assert_eq!(buffer.as_mut_ptr(), address, "{op:?}");
            if op == Op::Write {
                expect_bytes(&buffer.as_slice()[..length], &bytes, "a write leaves its bytes alone");
            }
        }
    }
    for op in ZEROES {
        assert!(driver.ok(plain(0, op, 0, rig.block() as usize)).is_none());
    }
    assert!(driver.ok(plain(0, Op::Flush, 0, 0)).is_none());
}

pub fn every_command_is_reaped_once_at_every_depth(rig: &Rig) {
    for (hctx, depth) in [1, 2, 65].into_iter().enumerate() {
        let mut driver = rig.open(hctx as u16, depth);
        for round in 0..3 {
            fill(rig, &mut driver, depth, round);
            let mut tags = BTreeSet::new();
            while driver.in_flight() > 0 {
                for Reaped { tag, status, .. } in driver.wait() {
                    assert_eq!(status, Status::Ok);
                    assert!(tags.insert(tag.0), "{tag:?} was reaped twice");
                }
                assert_eq!(driver.in_flight(), depth as usize - tags.len());
            }
            assert_eq!(tags, (0..depth).collect::<BTreeSet<u16>>());
            assert!(driver.turn().is_empty());
        }
    }
}

/// Submits as many commands of all kinds as the queue takes, and one more, which it must refuse.
fn fill(rig: &Rig, driver: &mut Driver, depth: u16, round: u64) {
    let (block, at) = (rig.block(), |tag: u16| u64::from(tag) * 8 * KIB);
    for tag in 0..depth {
        let command = match (u64::from(tag) + round) % 5 {
            0 => write(tag, at(tag), &pattern(at(tag), 4096, round)),
            1 => read(tag, at(tag) + block, block as usize),
            2 => plain(tag, Op::Discard, at(tag), 4096),
            3 => plain(tag, Op::Flush, 0, 0),
            _ => plain(tag, Op::WriteZeroes { may_unmap: false }, at(tag), block as usize),
        };
        driver.submit(command).expect("below its depth a queue is not full");
    }
    driver.ring_doorbell();
    let one_more = write(depth, 7 * block, &vec![7; block as usize]);
    let QueueFull(mut back) = driver.submit(one_more).expect_err("at its depth a queue is full");
    let address = back.buffer.as_mut().unwrap().as_mut_ptr();
    assert_eq!((back.tag.0, back.op, back.offset_bytes), (depth, Op::Write, 7 * block));
    expect_bytes(&back.buffer.as_ref().unwrap().as_slice()[..block as usize], &vec![7; block as usize], "untouched");
    let QueueFull(mut again) = driver.submit(back).expect_err("still full");
    assert_eq!(again.buffer.as_mut().unwrap().as_mut_ptr(), address);
}

pub fn discarded_and_zeroed_bytes_read_as_zero_and_their_neighbours_stay(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    for op in ZEROES {
        let mut model = pattern(0, (4 * CHUNK) as usize, 8);
        driver.write(0, &model);
        for (offset, length) in spans(rig).into_iter().step_by(3) {
            driver.ok(plain(0, op, offset, length));
            model[offset as usize..offset as usize + length].fill(0);
            expect_bytes(&driver.read(offset, length), &vec![0; length], &format!("{op:?} at {offset}+{length}"));
        }
        expect_bytes(&driver.read(0, model.len()), &model, &format!("after every {op:?}"));
    }
    // Longer than any transfer may be, over written and never written bytes alike.
    for op in ZEROES {
        driver.write(MIB - rig.block(), &vec![1; 2 * rig.block() as usize]);
        driver.ok(plain(0, op, 0, rig.info().size_bytes as usize));
        expect_bytes(&driver.read(MIB - 4096, 8192), &[0; 8192], &format!("{op:?} of everything"));
    }
}

/// Whether it is carried out is for the device to say.
pub fn fast_zeroes_are_carried_out_or_change_nothing(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    let background = pattern(0, (4 * CHUNK) as usize, 0);
    for op in FAST {
        for (offset, length) in spans(rig).into_iter().filter(|(offset, length)| offset + *length as u64 <= 3 * CHUNK) {
            driver.write(0, &background[..4 * CHUNK as usize]);
            let Reaped { status, .. } = driver.run(plain(0, op, offset, length));
            let mut expected = background.clone();
            match status {
                Status::Ok => expected[offset as usize..offset as usize + length].fill(0),
                status => assert_eq!(status, Status::Unsupported, "{op:?} {offset}+{length}"),
            }
            expect_bytes(&driver.read(0, expected.len()), &expected, &format!("{op:?} {offset}+{length} {status}"));
        }
    }
}

pub fn bytes_written_after_a_discard_are_kept(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    for (salt, op) in ZEROES.into_iter().enumerate() {
        driver.write(0, &pattern(0, CHUNK as usize, 1));
        driver.ok(plain(0, op, 0, CHUNK as usize));
        let (offset, length) = (5 * rig.block(), 2 * rig.block() as usize);
        let bytes = pattern(offset, length, salt as u64);
        driver.write(offset, &bytes);
        expect_bytes(&driver.read(offset, length), &bytes, "written over zeroes");
        expect_bytes(&driver.read(0, offset as usize), &vec![0; offset as usize], "before it");
    }
}

pub fn flush_and_fua_end_well_and_change_no_byte(rig: &Rig) {
    let mut driver = rig.open(0, 4);
    let block = rig.block() as usize;
    driver.ok(plain(0, Op::Flush, 0, 0));
    let bytes = pattern(rig.block(), 3 * block, 2);
    driver.ok(Command { fua: true, ..write(0, rig.block(), &bytes) });
    driver.ok(plain(0, Op::Flush, 0, 0));
    expect_bytes(&driver.read(rig.block(), 3 * block), &bytes, "FUA write");
    for op in ZEROES {
        driver.write(rig.block(), &bytes);
        driver.ok(Command { fua: true, ..plain(0, op, 2 * rig.block(), block) });
        let expected = [&bytes[..block], &vec![0; block], &bytes[2 * block..]].concat();
        expect_bytes(&driver.read(rig.block(), 3 * block), &expected, "FUA zeroes");
    }
}

pub fn a_read_fills_every_byte_it_states(rig: &Rig) {
    // All buffers of the reads below come back poisoned from a former use; 32 reads at once, over holes and data mixed.
    let mut driver = rig.open(0, 32);
    let block = rig.block();
    for at in (0..32).step_by(3) {
        driver.write(at * 16 * KIB + block, &vec![1; block as usize]);
    }
    for tag in 0..32_u16 {
        driver.submit(read(tag, u64::from(tag) * 16 * KIB, (16 * KIB) as usize)).unwrap();
    }
    driver.ring_doorbell();
    for Reaped { tag, buffer, .. } in driver.wait_all() {
        let poisoned = buffer.unwrap().as_slice()[..(16 * KIB) as usize].iter().filter(|byte| **byte == POISON).count();
        assert_eq!(poisoned, 0, "{tag:?} shows another tenant's bytes");
    }
}

pub fn a_queue_sees_what_another_was_told_is_written(rig: &Rig) {
    let (mut a, mut b) = (rig.open(0, 4), rig.open(1, 4));
    for round in 0..20_u64 {
        let offset = round * 3 * rig.block();
        let length = 5 * rig.block() as usize;
        let bytes = pattern(offset, length, round);
        let (writer, reader) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        writer.write(offset, &bytes);
        expect_bytes(&reader.read(offset, length), &bytes, "written by the other queue");
        writer.ok(plain(0, Op::Discard, offset, rig.block() as usize));
        expect_bytes(&reader.read(offset, rig.block() as usize), &vec![0; rig.block() as usize], "discarded by it");
    }
}

/// 64 KiB of memory that a file's owner shares with us, filled with poison.
fn foreign_memory() -> Arc<ForeignMemory> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 * KIB).unwrap();
    let memory = ForeignMemory::map(file.as_fd(), 0, 64 << 10).unwrap();
    assert!(memory.copy_from(0, &[POISON; 64 << 10]));
    memory
}

fn foreign_bytes(memory: &ForeignMemory, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    assert!(memory.copy_to(offset, &mut bytes));
    bytes
}

pub fn somebody_elses_memory_is_filled_and_nothing_beside_it_changes(rig: &Rig) {
    let mut driver = rig.open(0, 2);
    let block = rig.block() as usize;
    let memory = foreign_memory();
    // At a page, and where no drive can put bytes.
    for at in [4096, 4096 + 512, 4096 + 7] {
        for length in [block, 3 * block.max(1000)] {
            assert!(memory.copy_from(0, &[POISON; 64 << 10]));
            let command = Command { buffer: memory.buffer(at, length), ..read(0, rig.block(), length) };
            let buffer = driver.ok(command).expect("with its buffer");
            assert!(buffer.is_foreign() && buffer.capacity_bytes() == length);
            let around = foreign_bytes(&memory, at - 100, length + 200);
            let expected = [&[POISON; 100][..], &vec![0; length], &[POISON; 100]].concat();
            expect_bytes(&around, &expected, &format!("{length} bytes to {at}"));
        }
    }
}

pub fn somebody_elses_memory_is_written_from_where_it_lies(rig: &Rig) {
    let mut driver = rig.open(0, 2);
    let block = rig.block() as usize;
    let (memory, offset) = (foreign_memory(), 4 * rig.block());
    for at in [4096, 4096 + 512, 4096 + 7] {
        for (length, fua) in [(block, false), (3 * block.max(1000), true)] {
            let bytes = pattern(at as u64, length, 11);
            assert!(memory.copy_from(at, &bytes));
            let command = write(0, offset, &bytes);
            driver.ok(Command { fua, buffer: memory.buffer(at, length), ..command });
            expect_bytes(&driver.read(offset, length), &bytes, &format!("{length} bytes from {at}"));
            expect_bytes(&foreign_bytes(&memory, at, length), &bytes, "a write leaves its bytes alone");
        }
    }
}

pub fn random_operations_agree_with_an_array(rig: &Rig) {
    for seed in 0..3 {
        eprintln!("seed {seed}");
        random_operations(rig, seed);
    }
}

/// Up to eight commands at once that do not touch each other's bytes, against an array.
fn random_operations(rig: &Rig, seed: u64) {
    const SPACE: u64 = 256 * KIB;
    let mut choices = Random::new(seed);
    let mut driver = rig.open(seed as u16, 8);
    driver.ok(plain(0, Op::WriteZeroes { may_unmap: true }, 0, SPACE as usize));
    let mut model = vec![0_u8; SPACE as usize];
    let block = rig.block();
    for step in 0..60 {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut reads: HashMap<u16, (u64, usize)> = HashMap::new();
        for tag in 0..8_u16 {
            let reach = [8 * KIB, 40 * KIB][choices.scaled(2) as usize];
            let offset = choices.scaled(SPACE / block) * block;
            let length = ((choices.scaled(reach) / block + 1) * block).min(SPACE - offset);
            if taken.iter().any(|(start, end)| offset < *end && *start < offset + length) {
                continue;
            }
            taken.push((offset, offset + length));
            let room = &mut model[offset as usize..(offset + length) as usize];
            let command = match choices.scaled(10) {
                0..4 => {
                    room.copy_from_slice(&pattern(offset, length as usize, step));
                    write(tag, offset, room)
                }
                4 => {
                    room.fill(0);
                    plain(tag, ZEROES[choices.scaled(3) as usize], offset, length as usize)
                }
                5 => plain(tag, Op::Flush, 0, 0),
                _ => {
                    reads.insert(tag, (offset, length as usize));
                    read(tag, offset, length as usize)
                }
            };
            let fua = choices.scaled(8) == 0 && matches!(command.op, Op::Write | Op::Discard | Op::WriteZeroes { .. });
            driver.submit(Command { fua, ..command }).expect("eight at most");
        }
        driver.ring_doorbell();
        for Reaped { tag, status, buffer, .. } in driver.wait_all() {
            assert_eq!(status, Status::Ok, "seed {seed}, step {step}");
            if let Some((offset, length)) = reads.remove(&tag.0) {
                let expected = &model[offset as usize..offset as usize + length];
                let what = format!("seed {seed}, step {step}, {offset}+{length}");
                expect_bytes(&buffer.unwrap().as_slice()[..length], expected, &what);
            }
        }
    }
    expect_bytes(&driver.read(0, model.len()), &model, &format!("seed {seed}, at the end"));
}

/// Random writes, discards and zeroes, and after each the extents around it against an array: a hole or zeroes are
/// bytes that read as zero.
pub fn data_is_never_called_a_hole_and_a_hole_reads_as_zero(rig: &Rig) {
    const SPACE: u64 = 512 * KIB;
    mqfq_blk::passed::start_closers().unwrap();
    let mut choices = Random::new(1);
    let mut driver = rig.open(0, 4);
    let mut model = vec![0_u8; SPACE as usize];
    let block = rig.block();
    for step in 0..150 {
        let mut span = |reach: u64| {
            let offset = choices.scaled(SPACE / block) * block;
            (offset, ((choices.scaled(reach) / block + 1) * block).min(SPACE - offset))
        };
        let (offset, length) = span([8 * KIB, 200 * KIB][step % 2]);
        let (asked, asked_length) = span(SPACE);
        let room = &mut model[offset as usize..(offset + length) as usize];
        match step % 3 {
            0 | 1 => {
                room.copy_from_slice(&pattern(offset, length as usize, step as u64));
                driver.write(offset, room);
            }
            _ => {
                room.fill(0);
                driver.ok(plain(0, ZEROES[step / 3 % 3], offset, length as usize));
            }
        }
        for (from, length) in [(0, SPACE), (asked, asked_length)] {
            for (at, length, stored) in driver.extents(from, length, [1, 3, 511][step % 3]) {
                let bytes = &model[at as usize..(at + length) as usize];
                let is_zero = bytes.iter().all(|byte| *byte == 0);
                assert!(stored == Stored::Data || is_zero, "step {step}: {length} bytes at {at} are no {stored:?}");
            }
        }
    }
}

/// A thread writes block after block, and says how many it was told are written; others ask meanwhile, and find no
/// hole among those that were written before they asked. Behind them another thread discards.
pub fn data_is_no_hole_for_those_who_ask_while_it_is_written(rig: &Rig) {
    const BLOCKS: u64 = 96;
    mqfq_blk::passed::start_closers().unwrap();
    let (opener, done) = (&rig.opener(), &AtomicU64::new(0));
    let block = rig.block().max(512);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut driver = opener(0, 4);
            for place in 0..BLOCKS {
                driver.write(place * 20 * KIB, &pattern(place, block as usize, 7));
                done.store(place + 1, SeqCst);
            }
        });
        scope.spawn(move || {
            let mut driver = opener(1, 4);
            while done.load(SeqCst) < BLOCKS {
                driver.ok(plain(0, Op::Discard, BLOCKS * 20 * KIB, 64 * KIB as usize));
            }
        });
        for hctx in 2..4 {
            scope.spawn(move || {
                let mut driver = opener(hctx, 4);
                loop {
                    let before = done.load(SeqCst);
                    for (at, length, stored) in driver.extents(0, BLOCKS * 20 * KIB, 511) {
                        let first = at.div_ceil(20 * KIB);
                        let is_data = stored == Stored::Data || first * 20 * KIB >= at + length || first >= before;
                        assert!(is_data, "{stored:?} from {at} to {}, {before} were written", at + length);
                    }
                    if before == BLOCKS {
                        break;
                    }
                }
            });
        }
    });
}

/// Threads that write next to each other, in the same blocks, each in bytes of its own, and one that overwrites whole
/// blocks around another's: no acknowledged byte may be lost. (On a device that patches blocks by reading and
/// writing them this loses bytes within a few rounds unless it takes care.)
pub fn neighbours_in_one_block_lose_nothing_to_each_other(rig: &Rig) {
    const ROUNDS: u64 = 60;
    let block = rig.block();
    let opener = rig.opener();
    std::thread::scope(|scope| {
        // Threads 0..3: cells of three units in turn over 24 KiB; eight writes of a thread at once.
        for thread in 0..3_u16 {
            let opener = &opener;
            scope.spawn(move || {
                let mut driver = opener(thread, 8);
                let cell = 3 * block.max(37);
                let cell = cell / block * block;
                let places: Vec<u64> = (0..24 * KIB / cell / 3).map(|n| (n * 3 + u64::from(thread)) * cell).collect();
                for round in 0..ROUNDS {
                    for batch in places.chunks(8) {
                        for (tag, &offset) in batch.iter().enumerate() {
                            driver.submit(write(tag as u16, offset, &pattern(offset, cell as usize, round))).unwrap();
                        }
                        driver.ring_doorbell();
                        assert!(driver.wait_all().iter().all(|reaped| reaped.status == Status::Ok));
                        for &offset in batch.iter().take(2) {
                            let seen = driver.read(offset, cell as usize);
                            expect_bytes(&seen, &pattern(offset, cell as usize, round), &format!("round {round}"));
                        }
                    }
                }
            });
        }
        // Threads 3 and 4: the one overwrites 8 KiB, the other only the middle of it. Outside of the middle the first
        // one's bytes must stand.
        let base = 64 * KIB;
        let (middle, middle_length) =
            (3 * block.max(1000) / block * block, (2 * block.max(300) / block * block) as usize);
        let opener = &opener;
        scope.spawn(move || {
            let mut driver = opener(3, 8);
            for round in 0..8 * ROUNDS {
                let bytes = pattern(base, (8 * KIB) as usize, round);
                driver.write(base, &bytes);
                let seen = driver.read(base, bytes.len());
                let after = middle as usize + middle_length;
                expect_bytes(&seen[..middle as usize], &bytes[..middle as usize], &format!("round {round}, before"));
                expect_bytes(&seen[after..], &bytes[after..], &format!("round {round}, after"));
            }
        });
        scope.spawn(move || {
            let mut driver = opener(4, 8);
            for round in 0..8 * ROUNDS {
                driver.write(base + middle, &pattern(base, middle_length, round + 7));
            }
        });
    });
}
