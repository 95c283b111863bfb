//! Files and devices of the machine, as the checks of a config see them.

use super::model::Medium;
use super::plan::{DevicePlan, ExportPlan, Plan};
use crate::files;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The machine's answers about a path; a trait so that the checks are tested without files.
pub trait Files {
    /// Size of a regular file or block device, bytes.
    ///
    /// # Errors
    /// It is something else, or cannot be opened: why, in words.
    fn size_bytes(&self, path: &Path) -> Result<u64, String>;

    /// Whether this process may write to it.
    ///
    /// # Errors
    /// It may not: why, in words.
    fn writable(&self, path: &Path) -> Result<(), String>;

    /// One spelling of a file's path.
    fn canonical(&self, path: &Path) -> PathBuf;

    /// The file that a path leads to; `None`: it is not known.
    fn identity(&self, path: &Path) -> Option<Identity> {
        let _ = path;
        None
    }

    /// Number of the disk that a partition is a part of. `None`: it is no partition.
    fn whole_disk(&self, device: Identity) -> Option<u64> {
        let _ = device;
        None
    }
}

/// A file, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Identity {
    /// A block device of this number.
    BlockDevice(u64),
    /// A file of this file system and of this number there.
    File(u64, u64),
}

/// The machine's own files.
pub struct RealFiles;

impl Files for RealFiles {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        files::device_size_bytes(path)
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        files::writable(path)
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let about = std::fs::metadata(path).ok()?;
        Some(match about.file_type().is_block_device() {
            true => Identity::BlockDevice(about.rdev()),
            false => Identity::File(about.dev(), about.ino()),
        })
    }

    fn whole_disk(&self, device: Identity) -> Option<u64> {
        let Identity::BlockDevice(number) = device else { return None };
        whole_disk(Path::new("/sys"), number)
    }
}

/// [`Files`] for a server that runs a plan: after it has become another user, it may not be allowed to open again the
/// files that it holds.
pub struct HeldFiles<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// A device of it that is to be opened again all the same, by name.
    pub but: Option<&'p str>,
}

/// A file that the server holds.
struct Held {
    size_bytes: u64,
    read_only: bool,
}

impl HeldFiles<'_> {
    /// Bytes and access of a file that is held: `None` if it is not, or it is to be opened again, or is gone.
    fn held(&self, path: &Path) -> Option<Held> {
        let is_its = |device: &&DevicePlan| match &device.config.medium {
            Medium::File { path: own, .. } => own.value == path && self.but != Some(device.config.name.as_str()),
            _ => false,
        };
        let is_backing = |export: &&ExportPlan| {
            export.path.as_deref() == Some(path)
                && self.but != Some(self.plan.devices[export.device].config.name.as_str())
        };
        let of_export = |export: &ExportPlan| (export.size_bytes, export.read_only);
        let device = self.plan.devices.values().find(is_its).map(|device| (device.size_bytes, device.read_only));
        let (size_bytes, read_only) = device.or_else(|| self.plan.exports.values().find(is_backing).map(of_export))?;
        let about = std::fs::metadata(path).ok()?;
        Some(Held { size_bytes: if about.is_file() { about.len() } else { size_bytes }, read_only })
    }
}

impl Files for HeldFiles<'_> {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        RealFiles.size_bytes(path).or_else(|why| self.held(path).map(|held| held.size_bytes).ok_or(why))
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        let is_held = || self.held(path).is_some_and(|held| !held.read_only);
        RealFiles.writable(path).or_else(|why| if is_held() { Ok(()) } else { Err(why) })
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        RealFiles.canonical(path)
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        RealFiles.identity(path)
    }

    fn whole_disk(&self, device: Identity) -> Option<u64> {
        RealFiles.whole_disk(device)
    }
}

/// Number of the disk that the partition of this number is a part of, by the tree of `sys`.
fn whole_disk(sys: &Path, number: u64) -> Option<u64> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let device = std::fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    device.join("partition").exists().then_some(())?;
    let text = std::fs::read_to_string(device.parent()?.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_known_by_its_disk_and_a_disk_is_none() {
        let sys = mqfq_testing::Folder::new();
        let disk = sys.join("devices/pci/sda");
        std::fs::create_dir_all(disk.join("sda1")).unwrap();
        std::fs::create_dir_all(sys.join("dev/block")).unwrap();
        std::fs::write(disk.join("dev"), "8:0\n").unwrap();
        std::fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        for (number, folder) in [("8:0", &disk), ("8:1", &disk.join("sda1"))] {
            std::os::unix::fs::symlink(folder, sys.join("dev/block").join(number)).unwrap();
        }
        let of = |minor| whole_disk(sys.path(), libc::makedev(8, minor));
        assert_eq!([of(0), of(1), of(2)], [None, Some(libc::makedev(8, 0)), None]);
    }
}
