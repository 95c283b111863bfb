//! Files that another process cuts, replaces or removes while they are served.

use super::*;
use crate::state::VERSION;
use std::sync::atomic::Ordering;

/// A device of 64 KiB whose file is then cut to 5000 bytes: the second block of 4096 ends in its middle.
fn cut_device(folder: &TempDir, direct: Direct) -> (FileDevice, PathBuf) {
    let path = folder.path().join(format!("{direct:?}"));
    std::fs::write(&path, vec![0xaa; 65536]).unwrap();
    let device = FileDevice::open(&FileOptions { direct, ..FileOptions::new(&path) }).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    (device, path)
}

#[test]
fn a_read_that_meets_the_end_of_a_file_cut_short_fails_and_from_then_on_nothing_claims_to_be_stable() {
    let folder = tempfile::tempdir().unwrap();
    for direct in [Direct::Auto, Direct::Never] {
        for (offset_bytes, length_bytes) in [(0, 12288), (4097, 1000), (4096, 4096), (8192, 12288), (60000, 5)] {
            let (device, path) = cut_device(&folder, direct);
            let mut hand = Hand::new(&device, 2);
            let mut status_of = |command: Command| {
                hand.submit(1, command);
                hand.carry_out_all();
                hand.reap_one(1).0
            };
            let context = format!("{direct:?} at {offset_bytes}");
            assert_eq!(status_of(plain(0, Op::Flush, 0, 0)), Status::Ok, "{context}: nobody has noticed");
            assert_eq!(status_of(read(0, offset_bytes, length_bytes)), Status::Io, "{context}");
            assert_eq!(status_of(plain(0, Op::Flush, 0, 0)), Status::Io, "{context}");
            assert_eq!(status_of(Command { fua: true, ..write(0, 0, &[1; 4096]) }), Status::Io, "{context}");
            // Bytes before the cut are there, and no write makes the file long again.
            assert_eq!(status_of(write(0, 0, &[1; 4096])), Status::Ok, "{context}");
            assert_eq!(status_of(read(0, 0, 4096)), Status::Ok, "{context}");
            for command in [
                write(0, 61440, &[1; 4096]),
                write(0, 61441, &[1; 8]),
                plain(0, Op::WriteZeroes { may_unmap: false }, 61440, 4096),
                plain(0, Op::Discard, 61440, 4096),
            ] {
                assert_eq!(status_of(command), Status::Io, "{context}");
            }
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 5000, "{context}");
        }
    }
}

#[test]
fn a_write_of_part_of_a_block_that_was_cut_off_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (device, path) = cut_device(&folder, Direct::Auto);
    if device.direct_block_bytes().is_none() {
        return eprintln!("skipped: no direct I/O here");
    }
    let mut hand = Hand::new(&device, 1);
    hand.submit(0, write(0, 8192 + 50, &[1; 8]));
    hand.carry_out_all();
    assert_eq!(hand.reap_one(0).0, Status::Io);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 5000);
}

#[test]
fn a_file_cut_behind_the_bytes_that_are_served_is_as_good_as_before() {
    let folder = tempfile::tempdir().unwrap();
    for direct in [Direct::Auto, Direct::Never] {
        let path = folder.path().join(format!("{direct:?}"));
        std::fs::write(&path, vec![0xaa; 8192]).unwrap();
        let options = FileOptions { direct, size_bytes: Some(5000), ..FileOptions::new(&path) };
        let device = FileDevice::open(&options).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(5001).unwrap();
        let mut hand = Hand::new(&device, 1);
        hand.submit(0, read(0, 4096, 904));
        hand.carry_out_all();
        let (status, buffer) = hand.reap_one(0);
        assert_eq!((status, &buffer.unwrap().as_slice()[..904]), (Status::Ok, &[0xaa; 904][..]), "{direct:?}");
        assert_eq!(device.check_up(), Vec::<String>::new());
    }
}

#[test]
fn a_check_up_says_once_that_the_file_was_cut_and_from_then_on_nothing_goes_beyond_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (device, path) = cut_device(&folder, Direct::Auto);
    let sentence = format!(
        "{}: was cut to 5000 bytes while 65536 are served: whatever reaches beyond them fails, and every flush, until the \
         device is reopened (mqfq ctl device reopen) or the server started anew",
        path.display()
    );
    assert_eq!(device.check_up(), [sentence]);
    assert_eq!(device.check_up(), Vec::<String>::new());
    // Long again, but what was cut off is gone.
    File::options().write(true).open(&path).unwrap().set_len(65536).unwrap();
    let mut hand = Hand::new(&device, 1);
    for (command, status) in [
        (read(0, 0, 4096), Status::Ok),
        (read(0, 8192, 4096), Status::Io),
        (write(0, 8192, &[1; 4096]), Status::Io),
        (plain(0, Op::Flush, 0, 0), Status::Io),
    ] {
        hand.submit(0, command);
        hand.carry_out_all();
        assert_eq!(hand.reap_one(0).0, status);
    }
}

#[test]
fn a_check_up_says_each_time_anew_that_the_name_is_no_longer_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 4096);
    let device = FileDevice::open(&FileOptions::new(&path)).unwrap();
    assert_eq!(device.check_up(), Vec::<String>::new());
    let sentence = format!(
        "{}: was removed or replaced: the file that was opened is served on, and if it has no other name, its bytes end with the \
         server",
        path.display()
    );
    let aside = folder.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    assert_eq!(device.check_up(), std::slice::from_ref(&sentence));
    // Another file of that name is no news; that the first one is back ends it, and then it is news again.
    File::create(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(device.check_up(), Vec::<String>::new());
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(device.check_up(), Vec::<String>::new());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(device.check_up(), [sentence]);
}

// A file that another process serves, taken over with its lock.

fn copy(device: &FileDevice) -> File {
    device.one.as_ref().unwrap().file.try_clone().unwrap()
}

#[test]
fn a_file_that_was_taken_over_stays_locked_whoever_of_the_two_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions::new(file_of(&folder, 4096));
    let old = FileDevice::open(&options).unwrap();
    // (The signature of a process goes when it closes any descriptor of the file, and here both are one process.)
    let is_locked = || File::open(&options.path).unwrap().try_lock().is_err();
    // The new one does not come up.
    drop(FileDevice::adopt(&options, copy(&old)).unwrap());
    assert!(is_locked());
    // It does, and the old process ends, which closes its files and drops nothing else.
    let new = FileDevice::adopt(&options, copy(&old)).unwrap();
    old.one.as_ref().unwrap().is_own.store(false, Ordering::Relaxed);
    drop(old);
    assert!(is_locked());
    new.own();
    expect_refusal(&options, &format!("is served by process {}", std::process::id()));
    drop(new);
    FileDevice::open(&options).unwrap();
}

#[test]
fn a_path_that_leads_to_another_file_by_now_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions::new(file_of(&folder, 4096));
    let old = FileDevice::open(&options).unwrap();
    std::fs::rename(&options.path, folder.path().join("moved")).unwrap();
    file_of(&folder, 4096);
    let refused = FileDevice::adopt(&options, copy(&old)).err().unwrap();
    assert_eq!(refused, format!("{}: is another file than the one that is served", options.path.display()));
}

#[test]
fn what_the_page_cache_has_lost_is_lost_in_the_next_process_too() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions::new(file_of(&folder, 4096));
    let old = FileDevice::open(&options).unwrap();
    let new = FileDevice::adopt(&options, copy(&old)).unwrap();
    for is_lost in [false, true] {
        old.one.as_ref().unwrap().lost_writes.store(is_lost, Ordering::Relaxed);
        new.unpack(old.pack(VERSION).unwrap(), VERSION).unwrap();
        assert_eq!(new.one.as_ref().unwrap().lost_writes.load(Ordering::Relaxed), is_lost);
    }
    let mut packed = old.pack(VERSION).unwrap();
    packed.state[7] += 1;
    let refused = new.unpack(packed, VERSION).unwrap_err();
    assert!(refused.starts_with("had ") && refused.ends_with(" and has 4096 here"), "{refused}");
}
