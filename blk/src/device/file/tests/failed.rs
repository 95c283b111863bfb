//! Devices that have lost acknowledged writes, or whose drive is gone: are clients told, and which operations still
//! work?

use super::*;
use crate::state::VERSION;
use proptest::prelude::*;

#[test]
fn a_device_that_lost_a_write_fails_alone_for_everybody_until_it_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    for (on_failure, read_ends, health, rest) in [
        (OnFailure::Fail, Status::Io, Health::Failed, "every request"),
        (OnFailure::ReadOnly, Status::Ok, Health::ReadOnly, "whatever is not a read"),
    ] {
        let path = file_of(&folder, MIB);
        let options = FileOptions { direct: Direct::Never, on_failure, ..FileOptions::new(&path) };
        let device = FileDevice::open(&options).unwrap();
        let mut hand = Hand::new(&device, 2);
        // The flush of one tells nothing to the other, which wrote as well.
        hand.submit(1, write(0, 0, &[7; 4096]));
        hand.carry_out_all();
        assert_eq!(hand.reap_one(1).0, Status::Ok);
        assert_eq!(device.health(), Health::Well);
        hand.submit(0, plain(0, Op::Flush, 0, 0));
        let step = hand.one_pushed(FSYNC);
        hand.answer(&step, -libc::EIO);
        assert_eq!(hand.reap_one(0).0, Status::Io);
        assert_eq!(device.health(), health);
        for (command, status) in [
            (plain(0, Op::Flush, 0, 0), Status::Io),
            (write(0, 0, &[1; 4096]), Status::Io),
            (plain(0, Op::Discard, 0, 4096), Status::Io),
            (read(0, 0, 4096), read_ends),
        ] {
            let what = format!("{on_failure:?}: {:?}", command.op);
            hand.submit(1, command);
            hand.carry_out_all();
            assert_eq!(hand.reap_one(1).0, status, "{what}");
        }
        let said = device.check_up();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].ends_with(&format!("{rest} fails until the device is reopened (mqfq ctl device reopen)")),
            "{said:?}"
        );
        assert_eq!(device.check_up(), Vec::<String>::new(), "once");
        // The process that takes over knows of it.
        let next =
            FileDevice::adopt(&options, device.ring_file().unwrap().try_clone_to_owned().unwrap().into()).unwrap();
        next.unpack(device.pack(VERSION).unwrap(), VERSION).unwrap();
        assert_eq!(next.health(), health);
        drop((hand, next, device));
        assert_eq!(FileDevice::open(&options).unwrap().health(), Health::Well);
    }
}

#[test]
fn a_drive_that_is_gone_fails_at_once_and_nothing_asks_it_again() {
    let folder = tempfile::tempdir().unwrap();
    for errno in [libc::ENODEV, libc::ENXIO] {
        let device = device_of(&folder, MIB);
        let mut hand = Hand::new(&device, 2);
        hand.submit(0, read(0, 0, 4096));
        let step = hand.one_pushed(READ);
        hand.answer(&step, -errno);
        assert_eq!(hand.reap_one(0).0, Status::Shutdown);
        assert_eq!(device.health(), Health::Failed);
        hand.submit(1, read(0, 8192, 4096));
        assert_eq!(hand.reap_one(1).0, Status::Io);
        assert_eq!(hand.pushed().len(), 0);
    }
}

/// Linux tells one sync, whichever asks first.
#[test]
fn what_overlaps_with_the_flush_that_is_told_of_a_lost_page_does_not_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let other = |is_flush: bool| match is_flush {
        true => plain(0, Op::Flush, 0, 0),
        false => Command { fua: true, ..write(0, 0, &[1; 4096]) },
    };
    for (is_flush, comes_first) in [(true, false), (false, false), (true, true), (false, true)] {
        let options = FileOptions { direct: Direct::Never, ..FileOptions::new(file_of(&folder, MIB)) };
        let device = FileDevice::open(&options).unwrap();
        let mut hand = Hand::new(&device, 2);
        hand.submit(0, plain(0, Op::Flush, 0, 0));
        let told = hand.one_pushed(FSYNC);
        hand.submit(1, other(is_flush));
        let all_is_well = hand.pushed().pop().expect("it is on the ring");
        let length = if is_flush { 0 } else { 4096 };
        if comes_first {
            hand.answer(&all_is_well, length);
            assert_eq!(hand.reap(1).len(), 0, "nobody knows of it yet");
        }
        hand.answer(&told, -libc::EIO);
        assert_eq!(hand.reap_one(0).0, Status::Io);
        if !comes_first {
            hand.answer(&all_is_well, length);
        }
        assert_eq!(hand.reap_one(1).0, Status::Io, "flush: {is_flush}");
    }
}

/// Linux tells one sync, whichever asks first; here the other is reaped first.
#[test]
fn a_sync_that_ended_well_is_not_heard_of_before_those_that_were_under_way_then() {
    let folder = tempfile::tempdir().unwrap();
    let fua = |tag| Command { fua: true, ..write(tag, 0, &[1; 4096]) };
    let flush = |tag| plain(tag, Op::Flush, 0, 0);
    for (well_queue, is_flush, told, status) in [
        (0, true, -libc::EIO, Status::Io),
        (1, true, -libc::EIO, Status::Io),
        (0, false, -libc::EIO, Status::Io),
        (1, false, -libc::EIO, Status::Io),
        (0, true, 0, Status::Ok),
        (1, false, 0, Status::Ok),
    ] {
        let context = format!("queue {well_queue}, flush {is_flush}, told {told}");
        let options = FileOptions { direct: Direct::Never, ..FileOptions::new(file_of(&folder, MIB)) };
        let device = FileDevice::open(&options).unwrap();
        let mut hand = Hand::new(&device, 3);
        hand.submit(0, flush(0));
        let first = hand.one_pushed(FSYNC);
        hand.submit(well_queue, if is_flush { flush(1) } else { fua(1) });
        let well = hand.pushed().pop().expect("it is on the ring");
        hand.answer(&well, if is_flush { 0 } else { 4096 });
        assert_eq!(hand.reap(well_queue).len(), 0, "{context}: the other may have been told instead");
        // A later sync asks the kernel later: a sync that has ended does not wait for it, and reads wait for no sync.
        hand.submit(2, flush(2));
        let later = hand.one_pushed(FSYNC);
        hand.submit(well_queue, read(3, 0, 4096));
        hand.carry_out_all();
        assert_eq!(hand.reap_one(well_queue).0, Status::Ok, "{context}");
        assert_eq!(*hand.interrupted.lock().unwrap(), Vec::<u16>::new());
        hand.answer(&first, told);
        let expected = if well_queue == 1 { vec![1] } else { vec![] };
        assert_eq!(*hand.interrupted.lock().unwrap(), expected, "{context}: it is woken");
        let ended = |hand: &mut Hand| {
            let all = [hand.reap(0), hand.reap(1)].into_iter().flatten();
            all.map(|reaped| (reaped.tag.0, reaped.status)).collect::<Vec<_>>()
        };
        let mut all = ended(&mut hand);
        let is_told = told != 0;
        assert_eq!(all.contains(&(0, Status::Io)), is_told, "{context}: one that ended well waits for the later one");
        assert!(all.contains(&(1, status)), "{context}: {all:?}");
        hand.answer(&later, 0);
        assert_eq!(hand.reap_one(2).0, status, "{context}");
        all.append(&mut ended(&mut hand));
        all.sort_by_key(|(tag, _)| *tag);
        assert_eq!(all, [(0, status), (1, status)], "{context}");
        assert_eq!(hand.queues.iter().map(|queue| queue.in_flight()).sum::<usize>(), 0);
    }
}

#[test]
fn past_the_page_cache_a_flush_waits_for_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, _)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, plain(0, Op::Flush, 0, 0));
    hand.one_pushed(FSYNC);
    hand.submit(1, plain(0, Op::Flush, 0, 0));
    let other = hand.one_pushed(FSYNC);
    hand.answer(&other, 0);
    assert_eq!(hand.reap_one(1).0, Status::Ok);
}

#[test]
fn of_a_queue_that_is_gone_nobody_knows_what_its_syncs_were_told() {
    let folder = tempfile::tempdir().unwrap();
    let (device, _) = buffered_device(&folder, MIB);
    let mut hand = Hand::new(&device, 2);
    hand.submit(1, plain(0, Op::Flush, 0, 0));
    hand.one_pushed(FSYNC);
    hand.submit(0, plain(0, Op::Flush, 0, 0));
    let well = hand.one_pushed(FSYNC);
    hand.answer(&well, 0);
    assert_eq!(hand.reap(0).len(), 0);
    hand.queues.pop();
    assert_eq!(*hand.interrupted.lock().unwrap(), [0]);
    assert_eq!(hand.reap_one(0).0, Status::Io);
    assert_eq!(device.health(), Health::Failed);
}

/// A file system that finds room when it writes pages back, and there is none, tells that the next sync: here a write
/// with FUA, of which it could be the write's own answer.
#[test]
fn no_space_for_a_write_with_fua_is_told_apart_from_no_space_for_pages_that_were_lost() {
    let folder = tempfile::tempdir().unwrap();
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        for (again, health) in [(-errno, Health::Well), (4096, Health::Failed)] {
            let options = FileOptions { direct: Direct::Never, ..FileOptions::new(file_of(&folder, MIB)) };
            let device = FileDevice::open(&options).unwrap();
            let mut hand = Hand::new(&device, 1);
            hand.submit(0, Command { fua: true, ..write(0, 0, &[1; 4096]) });
            let first = hand.one_pushed(WRITE);
            assert_eq!(first.flags, libc::RWF_DSYNC as u32);
            hand.answer(&first, -errno);
            let second = hand.one_pushed(WRITE);
            assert_eq!(second.flags, 0, "alone");
            hand.answer(&second, again);
            assert_eq!(hand.reap(0).pop().unwrap().status, Status::NoSpace);
            assert_eq!(device.health(), health, "{errno}, then {again}");
        }
    }
}

/// Linux answers neither ENODEV nor ENXIO for a drive that was pulled out: it has no bytes any more.
#[test]
fn a_block_device_without_bytes_is_a_drive_that_was_pulled_out() {
    let folder = tempfile::tempdir().unwrap();
    for (on_failure, health) in [(OnFailure::Fail, Health::Failed), (OnFailure::ReadOnly, Health::ReadOnly)] {
        let path = file_of(&folder, MIB);
        let options = FileOptions { on_failure, ..FileOptions::new(&path) };
        let mut opened = open::open(&options).unwrap();
        opened.backing.watch.take_for_block_device();
        let device = FileDevice::of(opened).unwrap();
        let mut hand = Hand::new(&device, 1);
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        std::fs::remove_file(&path).unwrap();
        let said = device.check_up();
        assert_eq!(device.health(), health);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(": has failed: acknowledged writes were lost, or the drive is gone"), "{said:?}");
        assert_eq!(device.check_up(), Vec::<String>::new(), "once");
        for command in [read(0, 0, 4096), write(0, 0, &[1; 4096]), plain(0, Op::Flush, 0, 0)] {
            hand.submit(0, command);
            assert_eq!(hand.reap_one(0).0, Status::Io);
        }
        assert_eq!(hand.pushed().len(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// Each change, aligned or not, whichever `fallocate` the file system refuses, past the page cache or through it:
    /// with FUA a sync follows each step that is not stable by itself, without FUA none is asked for. One step that
    /// fails fails the change, and where the page cache may have lost pages by it, the device.
    #[test]
    fn a_change_with_fua_is_stable_at_its_end_or_fails(
        op in prop::sample::select(vec![
            Op::Write, Op::Discard, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false },
        ]),
        (is_direct, is_aligned, fua) in any::<(bool, bool, bool)>(),
        (start_bytes, length_bytes) in (0..300_000u64, 1..600_000u32),
        refused in 0..3,
        fails_at in prop::option::of(0..5usize),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = file_of(&folder, MIB);
        let direct = if is_direct { Direct::Auto } else { Direct::Never };
        let device = FileDevice::open(&FileOptions { direct, ..FileOptions::new(&path) }).unwrap();
        let is_cached = device.direct_block_bytes().is_none();
        let grain = if is_aligned { 4096 } else { 1 };
        let start_bytes = start_bytes / grain * grain;
        let length_bytes = length_bytes.next_multiple_of(grain as u32);
        std::fs::write(&path, vec![0xaa; MIB as usize]).unwrap();
        let command = match op {
            Op::Write => write(0, start_bytes, &vec![0; length_bytes as usize]),
            op => plain(0, op, start_bytes, length_bytes),
        };
        let changed = start_bytes as usize..(start_bytes + u64::from(command.length_bytes)) as usize;
        let mut hand = Hand::new(&device, 1);
        hand.submit(0, Command { fua, ..command });
        let (mut is_volatile, mut refused, mut failed) = (false, refused, None);
        for number in 0.. {
            let Some(step) = hand.pushed().pop() else { break };
            let is_stable = step.opcode == FSYNC || step.opcode != FALLOCATE && step.flags == libc::RWF_DSYNC as u32;
            prop_assert!(fua || !is_stable, "nothing is to be stable");
            if fails_at == Some(number) {
                failed = Some(step.opcode);
                hand.answer(&step, -libc::EIO);
            } else if step.opcode == FALLOCATE && refused > 0 {
                refused -= 1;
                hand.answer(&step, -libc::EOPNOTSUPP);
            } else {
                is_volatile = step.opcode != FSYNC && (is_volatile || step.opcode != READ && !is_stable);
                if step.opcode == FSYNC { hand.answer(&step, 0) } else { hand.carry_out(&step) }
            }
        }
        let status = hand.reap(0).pop().expect("it has ended").status;
        prop_assert_eq!(status, if failed.is_some() { Status::Io } else { Status::Ok });
        prop_assert!(failed.is_some() || !fua || !is_volatile, "{:?} is not stable", op);
        let has_lost = is_cached && fua && failed.is_some_and(|opcode| ![READ, FALLOCATE].contains(&opcode));
        prop_assert_eq!(device.health(), if has_lost { Health::Failed } else { Health::Well });
        if failed.is_none() {
            let mut expected = vec![0xaa; MIB as usize];
            expected[changed].fill(0);
            prop_assert!(bytes_at(&path, 0, MIB as usize) == expected, "other bytes than those are 0");
        }
    }
}

#[test]
fn i17_a_backing_that_hangs_fails_its_own_exports_alone() {
    let folder = tempfile::tempdir().unwrap();
    let pool = FileDevice::pool();
    for number in 0..2 {
        let path = folder.path().join(number.to_string());
        File::create(&path).unwrap().set_len(MIB).unwrap();
        pool.add(number, &FileOptions { direct: Direct::Never, ..FileOptions::new(&path) }, None).unwrap();
    }
    let mut hand = Hand::new(&pool, 2);
    let hangs = region_of(1);
    hand.submit(0, read(0, hangs, 4096));
    let late = hand.one_pushed(READ);
    assert!(pool.ailing().is_empty());
    assert!(hand.queues[0].has_parts() && hand.queues[0].abort(Tag(0), 7));
    assert!(hand.pushed().iter().all(|pushed| pushed.opcode != READ), "it is cancelled, as far as the kernel can");
    let ails = |since_ns| {
        let part = folder.path().join("1").display().to_string();
        [Ailing { part, offset_bytes: hangs, state: "hanging", pool_below: None, hangs_since_ns: Some(since_ns) }]
    };
    assert_eq!(pool.ailing(), ails(7));
    let path = folder.path().join("1").display().to_string();
    // On every worker; nothing of it gets to the kernel.
    for queue in 0..2 {
        hand.submit(queue, read(1, hangs + 8192, 4096));
        assert_eq!(hand.reap_one(queue).0, Status::TimedOut);
        hand.submit(queue, plain(1, Op::Flush, hangs, 0));
        assert_eq!(hand.reap_one(queue).0, Status::TimedOut);
        let question = plain(1, Op::Extents, hangs, 4096);
        hand.submit(queue, Command { buffer: Some(crate::extents::ask(1)), ..question });
        assert_eq!(hand.reap_one(queue).0, Status::TimedOut);
        assert!(hand.pushed().is_empty());
        hand.submit(queue, write(1, 0, &[7; 512]));
        let pushed = hand.one_pushed(WRITE);
        hand.carry_out(&pushed);
        assert_eq!(hand.reap_one(queue).0, Status::Ok, "the other backing");
    }
    // It answers after all, and is as it was.
    hand.carry_out(&late);
    assert_eq!(hand.reap_one(0).0, Status::Ok);
    assert!(pool.ailing().is_empty());
    hand.submit(1, read(1, hangs, 4096));
    let pushed = hand.one_pushed(READ);
    hand.carry_out(&pushed);
    assert_eq!(hand.reap_one(1).0, Status::Ok);
    // Space that is missing is told once in a while.
    for round in 0..2 {
        hand.submit(1, write(1, hangs, &[7; 512]));
        let pushed = hand.one_pushed(WRITE);
        hand.answer(&pushed, -libc::ENOSPC);
        assert_eq!(hand.reap_one(1).0, Status::NoSpace);
        let told = [format!("{path}: has no space for a write")];
        assert_eq!(pool.check_up(), if round == 0 { &told[..] } else { &[] });
    }
    // So does one of which a question for extents alone has no end.
    let question = Command { buffer: Some(crate::extents::ask(1)), ..plain(1, Op::Extents, hangs, 4096) };
    hand.submit(0, question);
    assert!(!hand.queues[0].abort(Tag(1), 9) && !hand.queues[0].abort(Tag(1), 11));
    assert_eq!(pool.ailing(), ails(9));
    hand.submit(1, read(0, hangs, 4096));
    assert_eq!(hand.reap_one(1).0, Status::TimedOut);
    assert!(hand.queues[0].follow(1).is_ok() && pool.remove(1).is_some());
    assert!(hand.queues[0].follow(1).is_err(), "its number is free when the question has ended");
    assert_eq!(hand.reap_one(0).0, Status::Ok);
    assert!(hand.queues[0].follow(1).is_ok());
}
