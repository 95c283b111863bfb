//! Drives below a file that run a scheduler of their own, and the pool below it that may be full.
//!
//! A second scheduler below destroys the first: it reorders and holds back the requests that we have just ordered, and
//! its queue is full of requests of the greedy tenant before ours can act (Ceph #69017: mClock above a kernel
//! elevator). Linux offers `none` for exactly this case, so anything else is worth a warning. Drives stacked on others
//! (md, dm) schedule where the others are: their `slaves` are asked too, and below a loop device the drive of its file.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A stack of drives deeper than this is a loop in sysfs' links.
const STACK_MAX: usize = 16;

/// One sentence for each drive at or below device number `major:minor` whose I/O scheduler is not `none`. `sysfs` is
/// `/sys`, or what a test made in its place. A file system without a drive (tmpfs, network) has none.
pub(super) fn warnings(sysfs: &Path, major: u32, minor: u32) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(device) = entry(sysfs, major, minor) {
        visit(sysfs, &device, STACK_MAX, &mut found);
    }
    found.sort();
    found.dedup();
    found
}

fn visit(sysfs: &Path, device: &Path, depth_left: usize, found: &mut Vec<String>) {
    let drive = &*whole(device.to_owned());
    if let Some(scheduler) = scheduler(drive)
        && scheduler != "none"
    {
        let name = drive.file_name().unwrap_or_default().to_string_lossy();
        found.push(format!(
            "drive {name} runs the I/O scheduler {scheduler} below this one, which undoes its decisions; \
             `echo none > /sys/block/{name}/queue/scheduler` turns it off"
        ));
    }
    if depth_left == 0 {
        return;
    }
    if let Some(below) = below_loop(sysfs, drive) {
        visit(sysfs, &below, depth_left - 1, found);
    }
    for slave in fs::read_dir(drive.join("slaves")).into_iter().flatten().flatten() {
        if let Ok(slave) = fs::canonicalize(slave.path()) {
            visit(sysfs, &slave, depth_left - 1, found);
        }
    }
}

/// Words for the pool that block device `major:minor` is of and that may be full beside it.
pub(super) fn pool_below(sysfs: &Path, major: u32, minor: u32) -> Option<String> {
    let thin = || Some(format!("a volume of the thin pool {}", thin_pool(sysfs, major, minor)?));
    let ceph = || Some(format!("an image of the Ceph pool {}", ceph_pool(sysfs, major, minor)?));
    thin().or_else(ceph)
}

/// The pool of an image that the kernel's `rbd` has mapped: the image is the block device's parent.
fn ceph_pool(sysfs: &Path, major: u32, minor: u32) -> Option<String> {
    let image = fs::canonicalize(drive_of(sysfs, major, minor)?.join("device")).ok()?;
    let is_rbd = image.parent()?.file_name()? == "rbd";
    is_rbd.then(|| fs::read_to_string(image.join("pool")).ok().map(|pool| pool.trim_end().to_owned()))?
}

/// The thin pool of LVM, VG/POOL, that block device `major:minor` is a volume of. The pool's device below a volume has
/// a UUID that ends in `-tpool`, and a name with the hyphens of the parts doubled.
fn thin_pool(sysfs: &Path, major: u32, minor: u32) -> Option<String> {
    let slaves = fs::read_dir(entry(sysfs, major, minor)?.join("slaves")).ok()?;
    slaves.flatten().find_map(|slave| {
        let read = |name: &str| fs::read_to_string(slave.path().join("dm").join(name)).ok();
        let uuid = read("uuid")?;
        if !uuid.starts_with("LVM-") || !uuid.trim_end().ends_with("-tpool") {
            return None;
        }
        let name = read("name")?.replace("--", "\0");
        let mut parts = name.trim_end().strip_suffix("-tpool")?.split('-').map(|part| part.replace('\0', "-"));
        Some(format!("{}/{}", parts.next()?, parts.next()?))
    })
}

/// The drive below a loop device: that of its file's file system, or its file if that is a block device.
fn below_loop(sysfs: &Path, drive: &Path) -> Option<PathBuf> {
    let file = fs::read_to_string(drive.join("loop/backing_file")).ok()?;
    let metadata = fs::metadata(file.trim_end_matches('\n')).ok()?;
    let number = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    entry(sysfs, libc::major(number), libc::minor(number))
}

/// Folder in `sysfs` of the drive that block device `major:minor` is, or is a partition of. `None`: there is none.
pub fn drive_of(sysfs: &Path, major: u32, minor: u32) -> Option<PathBuf> {
    entry(sysfs, major, minor).map(whole)
}

/// The drive's folder of a device's: a partition is a folder in its drive's.
fn whole(device: PathBuf) -> PathBuf {
    match device.parent() {
        Some(drive) if device.join("partition").exists() => drive.to_owned(),
        _ => device,
    }
}

/// A device's folder in sysfs. The entry is a link into /sys/devices.
fn entry(sysfs: &Path, major: u32, minor: u32) -> Option<PathBuf> {
    fs::canonicalize(sysfs.join(format!("dev/block/{major}:{minor}"))).ok()
}

/// The active scheduler of a drive: the one in brackets ("none [mq-deadline] kyber"), or the only one.
fn scheduler(drive: &Path) -> Option<String> {
    let text = fs::read_to_string(drive.join("queue/scheduler")).ok()?;
    let active = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    active.or_else(|| text.split_whitespace().next()).map(str::to_string)
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A drive of a made-up sysfs, `device` being its folder below `devices`.
    fn add(sysfs: &Path, device: &str, number: &str, scheduler: Option<&str>) -> PathBuf {
        let folder = sysfs.join("devices").join(device);
        fs::create_dir_all(folder.join("queue")).unwrap();
        fs::create_dir_all(sysfs.join("dev/block")).unwrap();
        if let Some(scheduler) = scheduler {
            fs::write(folder.join("queue/scheduler"), scheduler).unwrap();
        }
        symlink(&folder, sysfs.join("dev/block").join(number)).unwrap();
        folder
    }

    #[test]
    fn a_drive_with_an_elevator_is_named() {
        let sysfs = tempfile::tempdir().unwrap();
        add(sysfs.path(), "sda", "8:0", Some("none [mq-deadline] kyber bfq\n"));
        let [warning] = &warnings(sysfs.path(), 8, 0)[..] else { panic!("one drive, one warning") };
        assert!(warning.starts_with("drive sda runs the I/O scheduler mq-deadline"), "{warning}");
    }

    #[test]
    fn none_is_silent_and_so_is_what_has_no_drive() {
        let sysfs = tempfile::tempdir().unwrap();
        add(sysfs.path(), "nvme0n1", "259:0", Some("[none] mq-deadline\n"));
        add(sysfs.path(), "md0", "9:0", None);
        assert_eq!(warnings(sysfs.path(), 259, 0), [""; 0]);
        assert_eq!(warnings(sysfs.path(), 9, 0), [""; 0]);
        assert_eq!(warnings(sysfs.path(), 0, 37), [""; 0]);
    }

    #[test]
    fn a_partition_has_its_drives_elevator() {
        let sysfs = tempfile::tempdir().unwrap();
        add(sysfs.path(), "sda", "8:0", Some("[bfq] none\n"));
        let partition = add(sysfs.path(), "sda/sda1", "8:1", None);
        fs::write(partition.join("partition"), "1\n").unwrap();
        let [warning] = &warnings(sysfs.path(), 8, 1)[..] else { panic!("one drive, one warning") };
        assert!(warning.starts_with("drive sda runs the I/O scheduler bfq"), "{warning}");
    }

    #[test]
    fn a_stacked_drive_has_those_of_all_drives_below() {
        // dm-0 on md0 on {sda with bfq, sdb with none}.
        let sysfs = tempfile::tempdir().unwrap();
        let sda = add(sysfs.path(), "sda", "8:0", Some("[bfq] none\n"));
        let sdb = add(sysfs.path(), "sdb", "8:16", Some("bfq [none]\n"));
        let md0 = add(sysfs.path(), "md0", "9:0", None);
        let dm0 = add(sysfs.path(), "dm-0", "253:0", Some("none\n"));
        for (upper, lower) in [(&dm0, &md0), (&md0, &sda), (&md0, &sdb)] {
            fs::create_dir_all(upper.join("slaves")).unwrap();
            symlink(lower, upper.join("slaves").join(lower.file_name().unwrap())).unwrap();
        }
        let [warning] = &warnings(sysfs.path(), 253, 0)[..] else { panic!("one elevator, one warning") };
        assert!(warning.starts_with("drive sda "), "{warning}");
    }

    #[test]
    fn a_thin_volume_and_an_image_of_ceph_are_told_by_their_pools_and_other_volumes_have_none() {
        let sysfs = tempfile::tempdir().unwrap();
        let pool = add(sysfs.path(), "dm-2", "253:2", None);
        let thick = add(sysfs.path(), "dm-3", "253:3", None);
        for (folder, uuid, name) in [(&pool, "LVM-abcd-tpool", "my--vg-pool-tpool"), (&thick, "LVM-ef", "my--vg-thick")]
        {
            fs::create_dir_all(folder.join("dm")).unwrap();
            fs::write(folder.join("dm/uuid"), format!("{uuid}\n")).unwrap();
            fs::write(folder.join("dm/name"), format!("{name}\n")).unwrap();
        }
        for (number, below) in [(4, &pool), (5, &thick)] {
            let volume = add(sysfs.path(), &format!("dm-{number}"), &format!("253:{number}"), None);
            fs::create_dir_all(volume.join("slaves")).unwrap();
            symlink(below, volume.join("slaves").join(below.file_name().unwrap())).unwrap();
        }
        let pools = [2, 3, 4, 5].map(|minor| pool_below(sysfs.path(), 253, minor));
        assert_eq!(pools, [None, None, Some("a volume of the thin pool my-vg/pool".into()), None]);
        // /sys/devices/rbd/0 is the image, and has the disk.
        let image = sysfs.path().join("devices/rbd/0");
        let disk = image.join("block/rbd0");
        fs::create_dir_all(&disk).unwrap();
        fs::write(image.join("pool"), "images\n").unwrap();
        symlink("../..", disk.join("device")).unwrap();
        symlink(&disk, sysfs.path().join("dev/block/251:0")).unwrap();
        assert_eq!(pool_below(sysfs.path(), 251, 0), Some("an image of the Ceph pool images".into()));
    }

    #[test]
    fn a_loop_device_has_the_elevator_of_its_files_drive() {
        let sysfs = tempfile::tempdir().unwrap();
        let file = sysfs.path().join("image");
        fs::write(&file, "").unwrap();
        let below = fs::metadata(&file).unwrap().dev();
        add(sysfs.path(), "sda", &format!("{}:{}", libc::major(below), libc::minor(below)), Some("[bfq] none\n"));
        let loop0 = add(sysfs.path(), "loop0", "7:0", Some("[none] bfq\n"));
        fs::create_dir(loop0.join("loop")).unwrap();
        fs::write(loop0.join("loop/backing_file"), format!("{}\n", file.display())).unwrap();
        let [warning] = &warnings(sysfs.path(), 7, 0)[..] else { panic!("one elevator, one warning") };
        assert!(warning.starts_with("drive sda runs the I/O scheduler bfq"), "{warning}");
    }
}
