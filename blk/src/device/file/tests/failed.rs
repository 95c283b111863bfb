//! Devices that have lost acknowledged writes, or whose drive is gone: who is told, and what is still done?

use super::*;
use crate::state::VERSION;

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

/// Linux tells one of them, whichever asks first.
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
            // Nobody knows of it yet.
            hand.answer(&all_is_well, length);
            assert_eq!(hand.reap_one(1).0, Status::Ok);
        }
        hand.answer(&told, -libc::EIO);
        assert_eq!(hand.reap_one(0).0, Status::Io);
        if !comes_first {
            hand.answer(&all_is_well, length);
            assert_eq!(hand.reap_one(1).0, Status::Io, "flush: {is_flush}");
        }
    }
}
