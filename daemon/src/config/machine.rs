//! Files and devices of the machine, as the checks of a config see them.

use super::difference::Names;
use super::model::Medium;
use super::plan::{DevicePlan, ExportPlan, Plan};
use crate::files;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The machine's answers about a path; a trait so that the checks are tested without files.
pub trait Files {
    /// Size of a regular file or block device, bytes.
    ///
    /// # Errors
    /// It is something else, or cannot be opened: why, in words.
    fn size_bytes(&self, path: &Path) -> Result<u64, String>;

    /// Size as of now, where a check may know an earlier one.
    ///
    /// # Errors
    /// As [`Files::size_bytes`].
    fn size_now_bytes(&self, path: &Path) -> Result<u64, String> {
        self.size_bytes(path)
    }

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

/// The machine's answers about files, so that a file that the server holds is not asked for again: a change costs
/// nothing for the backings that stay, and one of them that hangs does not hold it up.
#[derive(Default)]
pub struct KnownFiles(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: BTreeMap<PathBuf, Look>,
    /// By partition: its disk. `None`: it is no partition.
    disks: BTreeMap<Identity, Option<u64>>,
    /// Number of answers that the machine was asked for.
    asked: usize,
}

/// Answers about a file. `None`: it was not asked for.
#[derive(Default)]
struct Look {
    size_bytes: Option<u64>,
    writable: Option<()>,
    real: Option<PathBuf>,
    identity: Option<Option<Identity>>,
}

impl KnownFiles {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Each answer stands for itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of answers that the machine was asked for.
    #[cfg(test)]
    pub fn asked(&self) -> usize {
        self.lock().asked
    }

    /// The known answer about a file, if `is_held` and there is one, or that of `ask`.
    fn answer<T: Clone>(
        &self,
        path: &Path,
        of: impl Fn(&mut Look) -> &mut Option<T>,
        is_held: bool,
        ask: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        if is_held && let Some(known) = self.lock().files.get_mut(path).and_then(|look| of(look).clone()) {
            return Ok(known);
        }
        // Here it may wait.
        let answer = ask();
        let mut known = self.lock();
        known.asked += 1;
        *of(known.files.entry(path.to_owned()).or_default()) = answer.as_ref().ok().cloned();
        answer
    }

    /// Forgets files that are no backing of the plan of these names.
    pub fn keep(&self, names: &Names) {
        self.lock().files.retain(|path, _| names.paths.contains_key(path));
    }

    fn size_bytes(&self, path: &Path, is_held: bool) -> Result<u64, String> {
        self.answer(path, |look| &mut look.size_bytes, is_held, || RealFiles.size_bytes(path))
    }

    fn canonical(&self, path: &Path, is_held: bool) -> PathBuf {
        let real = self.answer(path, |look| &mut look.real, is_held, || Ok(RealFiles.canonical(path)));
        real.unwrap_or_else(|_| path.to_owned())
    }

    fn whole_disk(&self, device: Identity) -> Option<u64> {
        let Identity::BlockDevice(_) = device else { return None };
        let known = self.lock().disks.get(&device).copied();
        known.unwrap_or_else(|| {
            let disk = RealFiles.whole_disk(device);
            let mut known = self.lock();
            known.asked += 1;
            known.disks.insert(device, disk);
            disk
        })
    }
}

/// The machine's own files, of which the answers are kept.
impl Files for KnownFiles {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        KnownFiles::size_bytes(self, path, false)
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        self.answer(path, |look| &mut look.writable, false, || RealFiles.writable(path))
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        KnownFiles::canonical(self, path, false)
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        self.answer(path, |look| &mut look.identity, false, || Ok(RealFiles.identity(path))).ok().flatten()
    }

    fn whole_disk(&self, device: Identity) -> Option<u64> {
        KnownFiles::whole_disk(self, device)
    }
}

/// A thing of a running plan that is to be opened or looked at again, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again<'p> {
    /// None is.
    Nothing,
    /// A device, and each of its backings.
    Device(&'p str),
    /// The backing of an export.
    Export(&'p str),
}

/// [`Files`] for a server that runs a plan: after it has become another user, it may not be allowed to open again the
/// files that it holds.
pub struct HeldFiles<'p> {
    plan: &'p Plan,
    again: Again<'p>,
    known_files: &'p KnownFiles,
    names: &'p Names,
}

/// A file that the server holds.
struct Held {
    size_bytes: u64,
    read_only: bool,
}

impl<'p> HeldFiles<'p> {
    /// The files of a plan, of these names.
    pub fn new(plan: &'p Plan, names: &'p Names, again: Again<'p>, known_files: &'p KnownFiles) -> HeldFiles<'p> {
        HeldFiles { plan, again, known_files, names }
    }

    /// The export with this backing, which is not to be looked at again.
    fn backing(&self, path: &Path) -> Option<&'p ExportPlan> {
        let export = &self.plan.exports[*self.names.paths.get(path)?];
        let is_again = match self.again {
            Again::Nothing => false,
            Again::Device(name) => self.plan.devices[export.device].config.name == name,
            Again::Export(name) => export.name == name,
        };
        (!is_again).then_some(export)
    }

    fn is_held(&self, path: &Path) -> bool {
        self.backing(path).is_some()
    }

    /// Bytes and access of a file that is held: `None` if it is not, or it is to be opened again, or is gone.
    fn held(&self, path: &Path) -> Option<Held> {
        let is_its = |device: &&DevicePlan| match &device.config.medium {
            Medium::File { path: own, .. } => {
                own.value == path && self.again != Again::Device(device.config.name.as_str())
            }
            _ => false,
        };
        let device = self.plan.devices.values().find(is_its).map(|device| (device.size_bytes, device.read_only));
        let of_export = |export: &ExportPlan| (export.size_bytes, export.read_only);
        let (size_bytes, read_only) = device.or_else(|| self.backing(path).map(of_export))?;
        let about = std::fs::metadata(path).ok()?;
        Some(Held { size_bytes: if about.is_file() { about.len() } else { size_bytes }, read_only })
    }
}

impl Files for HeldFiles<'_> {
    fn size_bytes(&self, path: &Path) -> Result<u64, String> {
        let found = self.known_files.size_bytes(path, self.is_held(path));
        found.or_else(|why| self.held(path).map(|held| held.size_bytes).ok_or(why))
    }

    fn size_now_bytes(&self, path: &Path) -> Result<u64, String> {
        let found = self.known_files.size_bytes(path, false);
        found.or_else(|why| self.held(path).map(|held| held.size_bytes).ok_or(why))
    }

    fn writable(&self, path: &Path) -> Result<(), String> {
        let is_held = || self.held(path).is_some_and(|held| !held.read_only);
        let found =
            self.known_files.answer(path, |look| &mut look.writable, self.is_held(path), || RealFiles.writable(path));
        found.or_else(|why| if is_held() { Ok(()) } else { Err(why) })
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        self.known_files.canonical(path, self.is_held(path))
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let ask = || Ok(RealFiles.identity(path));
        self.known_files.answer(path, |look| &mut look.identity, self.is_held(path), ask).ok().flatten()
    }

    fn whole_disk(&self, device: Identity) -> Option<u64> {
        self.known_files.whole_disk(device)
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
    use crate::config::Config;
    use std::fs::File;

    #[test]
    fn a_check_of_a_running_plan_looks_at_backings_that_come_or_are_to_be_looked_at_again_alone() {
        let folder = mqfq_testing::Folder::new();
        let at = folder.path().display();
        let export = |number: usize, more: &str| {
            let file = folder.file(&number.to_string(), 4096);
            format!(
                "[export.e{number}]\ndevice = \"p\"\ntenant = \"t\"\nnbd = \"unix:{at}/s\"\npath = \"{}\"\n{more}",
                file.display()
            )
        };
        let asked = [3, 30].map(|count| {
            let head = format!("[tenant.t]\n[device.p]\nkind = \"pool\"\nfolders = [\"{at}\"]\n");
            let text: String = (0..count).fold(head, |text, number| text + &export(number, ""));
            let known_files = KnownFiles::default();
            let plan = Config::parse("c.toml", &text).unwrap().check(&known_files).unwrap();
            let names = Names::new(&plan);
            let again = |text: &str, again: Again<'_>| {
                known_files.keep(&names);
                let before = known_files.asked();
                let config = Config::parse("c.toml", text).unwrap();
                let sizes = config
                    .check(&HeldFiles::new(&plan, &names, again, &known_files))
                    .map(|plan| plan.exports.values().map(|export| export.size_bytes).collect::<Vec<u64>>());
                (known_files.asked() - before, sizes.map_err(|error| error.to_string()))
            };
            let one_more = text.clone() + &export(count, "");
            // All that are there have grown, and one is gone.
            for number in 0..count {
                File::options().write(true).open(folder.join(&number.to_string())).unwrap().set_len(8192).unwrap();
            }
            std::fs::remove_file(folder.join("2")).unwrap();
            let same = again(&text, Again::Nothing);
            assert_eq!(same.1, Ok(vec![4096; count]));
            let more = again(&one_more, Again::Nothing);
            assert_eq!(more.1, Ok(vec![4096; count + 1]));
            let grown = again(&text, Again::Export("e1"));
            assert_eq!(grown.1, Ok([vec![4096, 8192], vec![4096; count - 2]].concat()));
            let larger = text.replacen("/0\"\n", "/0\"\nsize = 8192\n", 1);
            assert_eq!(again(&larger, Again::Nothing).1, Ok([vec![8192, 8192], vec![4096; count - 2]].concat()));
            let gone = again(&text, Again::Export("e2")).1.unwrap_err();
            assert!(gone.contains("export.e2.path: cannot open"), "{gone}");
            [same.0, more.0, grown.0]
        });
        // The folder; and size, path, identity and access of the one.
        assert_eq!(asked, [[1, 5, 5]; 2]);
    }

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
