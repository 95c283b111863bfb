//! A file that another process serves, taken over with its lock.

use super::*;
use crate::state::VERSION;
use std::sync::atomic::Ordering;

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
