//! Places besides its drive that reads of a path reach: memory, holes of a file, or the page cache below a loop device.
//!
//! Elevators, and files that the page cache serves, the file device itself warns of
//! ([`mqfq_blk::device::file::FileDevice::warnings`]).

use mqfq_blk::device::file::drive_of;
use rustix::fs::{SeekFrom, major, minor, seek, statfs};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// File systems that keep their files in memory: `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const MEMORY_MAGICS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Part of a file that may be holes without a note.
const HOLES_MAX: f64 = 0.01;

/// One sentence for each thing that keeps reads of `path` from its drive.
pub fn notes(path: &Path) -> Vec<String> {
    notes_of(Path::new("/sys"), path)
}

fn notes_of(sysfs: &Path, path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(metadata) = fs::metadata(path) else { return found };
    if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        let Some(drive) = drive_of(sysfs, major(number), minor(number)) else { return found };
        let name = drive.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("ram") || name.starts_with("zram") {
            found.push(format!("{} is memory: no drive is read", path.display()));
        }
        if let Some(file) = read(&drive.join("loop/backing_file")) {
            if read(&drive.join("loop/dio")).as_deref() == Some("0") {
                found.push(format!(
                    "{name} reads {file} through the page cache, `losetup --direct-io=on /dev/{name}` past it"
                ));
            }
            found.extend(notes_of(sysfs, Path::new(&file)));
        }
        return found;
    }
    if statfs(path).is_ok_and(|system| MEMORY_MAGICS.contains(&(system.f_type as u32))) {
        found.push(format!("{} lies in memory (tmpfs): no drive is read", path.display()));
    }
    let stored_bytes = metadata.blocks() as f64 * 512.0;
    let holes = 1.0 - stored_bytes / metadata.len().max(1) as f64;
    if holes > HOLES_MAX && has_hole(path, metadata.len()) {
        found.push(format!("{:.0}% of {} are holes, whose reads reach no drive", holes * 100.0, path.display()));
    }
    found
}

/// Whether the file system knows of a hole. One that counts no blocks (FUSE) knows of none.
fn has_hole(path: &Path, length_bytes: u64) -> bool {
    let first = fs::File::open(path).ok().and_then(|file| seek(&file, SeekFrom::Hole(0)).ok());
    first.is_some_and(|at_bytes| at_bytes < length_bytes)
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::fs::File;

    #[test]
    fn a_file_of_holes_says_so_and_a_written_one_does_not() {
        let folder = Scratch::new().unwrap();
        let (sparse, written) = (folder.path().join("sparse"), folder.path().join("written"));
        File::create(&sparse).unwrap().set_len(1 << 20).unwrap();
        fs::write(&written, vec![1; 1 << 20]).unwrap();
        File::open(&written).unwrap().sync_all().unwrap();
        let said = |path: &Path| notes(path).into_iter().filter(|note| note.contains("holes")).collect::<Vec<_>>();
        assert_eq!(said(&sparse), [format!("100% of {} are holes, whose reads reach no drive", sparse.display())]);
        assert_eq!(said(&written), [""; 0]);
        assert_eq!(notes(&folder.path().join("nothing")), [""; 0]);
    }
}
