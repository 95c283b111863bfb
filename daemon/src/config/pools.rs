//! Pools: which backing has each export of one, is it allowed, and is it another's already?
//!
//! A backing may come from the pool's folders alone, links and `..` followed: a folder that tenants write to gives them
//! no other file. In /dev a link leads to a block device of any name there: so udev names volumes.

use super::machine::{Files, Identity};
use super::model::{Config, DeviceConfig, ExportConfig, Located, Medium};
use super::plan::{ExportPlan, Plan};
use mqfq_blk::device::file::{BACKINGS_MAX, REGION_BYTES, number_of, region_of};
use mqfq_blk::slots::Slot;
use mqfq_config::text::{list, shown};
use mqfq_config::{ConfigError, Entry, Section, join};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Folder of device nodes.
const DEV: &str = "/dev";

/// The backing of an export.
pub(super) struct Backing {
    /// Index of the pool among the config's devices.
    pub(super) device: usize,
    /// The export's addresses there.
    pub(super) range: Range<u64>,
}

/// `folders` of a pool.
///
/// # Errors
/// One is not absolute.
pub(super) fn folders(section: &Section<'_, '_>) -> Result<Vec<PathBuf>, ConfigError> {
    const ALLOWED: &str = "a list of absolute paths of folders";
    let entry = section.require("folders", ALLOWED)?;
    let folders: Vec<PathBuf> = entry.texts(ALLOWED)?.into_iter().map(PathBuf::from).collect();
    match folders.iter().find(|folder| !folder.is_absolute()) {
        Some(folder) => Err(not_absolute(&entry, folder)),
        None if folders.is_empty() => Err(entry.place().error(format!("names no folder, allowed is {ALLOWED}"))),
        None => Ok(folders),
    }
}

/// `path` of an export.
///
/// # Errors
/// It is not absolute.
pub(super) fn path(entry: &Entry<'_, '_>) -> Result<Located<PathBuf>, ConfigError> {
    let value = PathBuf::from(entry.text("an absolute path")?);
    let has_nul = value.to_string_lossy().contains('\0');
    match value.is_absolute() && !has_nul {
        true => Ok(Located { value, place: entry.place() }),
        false => Err(not_absolute(entry, &value)),
    }
}

fn not_absolute(entry: &Entry<'_, '_>, path: &Path) -> ConfigError {
    entry.place().error(format!("{} is no absolute path, allowed is one that begins with /", display(path)))
}

fn display(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

/// The backings of exports of pools, in the order of exports; `None`: an export of another device. Backings of a pool
/// have the numbers from 0 on, in this order.
///
/// # Errors
/// One sentence about the first export whose backing cannot be had.
pub(super) fn backings(config: &Config, files: &dyn Files) -> Result<Vec<Option<Backing>>, ConfigError> {
    let mut pools = BTreeMap::new();
    for (index, device) in config.devices.iter().enumerate() {
        if let Medium::Pool { folders, .. } = &device.medium {
            let real = folders.iter().map(|folder| files.canonical(folder)).collect();
            pools.insert(device.name.as_str(), Pool { index, device, folders, real, count: 0 });
        }
    }
    let mut claimed = Claimed::new(config, files);
    let mut all = Vec::new();
    for export in &config.exports {
        let Some(pool) = pools.get_mut(export.device.value.as_str()) else {
            if let Some(path) = &export.path {
                let name = shown(&export.device.value);
                let why = format!("device {name} is no pool, allowed is path with a device of kind \"pool\"");
                return Err(path.place.error(why));
            }
            all.push(None);
            continue;
        };
        let (found, size_bytes) = backing(export, pool, files)?;
        let path = export.path.as_ref().expect("it has a backing");
        claimed.claim(export, path, &found)?;
        if pool.count == BACKINGS_MAX {
            return Err(path.place.error(format!("a pool has at most {BACKINGS_MAX} backings")));
        }
        let start = region_of(pool.count);
        pool.count += 1;
        all.push(Some(Backing { device: pool.index, range: start..start + size_bytes }));
    }
    Ok(all)
}

/// A pool, and how many exports it has so far.
struct Pool<'c> {
    index: usize,
    device: &'c DeviceConfig,
    folders: &'c [PathBuf],
    /// Its folders, links and `..` followed.
    real: Vec<PathBuf>,
    count: u16,
}

/// A file, as its users tell it from others.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Its path, links and `..` followed.
    real: PathBuf,
    identity: Option<Identity>,
    /// The disk that it is a partition of.
    disk: Option<u64>,
}

impl Found {
    /// The file at a path.
    pub(super) fn at(path: &Path, files: &dyn Files) -> Found {
        let identity = files.identity(path);
        Found { real: files.canonical(path), identity, disk: identity.and_then(|identity| files.whole_disk(identity)) }
    }
}

/// The file of an export of a pool, and the bytes that it has of it.
fn backing(export: &ExportConfig, pool: &Pool<'_>, files: &dyn Files) -> Result<(Found, u64), ConfigError> {
    if let Some(offset) = &export.offset {
        return Err(offset.place.error("is not for an export of a pool, which has all of its backing from byte 0 on"));
    }
    let Some(path) = &export.path else {
        let allowed = "allowed is path, a file or block device in one of its folders";
        return Err(export.place.error(format!("device {} is a pool: {allowed}", shown(&pool.device.name))));
    };
    let failed = |why: String| path.place.error(format!("cannot open {}: {why}", display(&path.value)));
    let held = files.size_bytes(&path.value).map_err(failed)?;
    let found = Found::at(&path.value, files);
    if !pool.may_have(&path.value, &found, files) {
        let folders = list(pool.folders.iter().map(|folder| folder.to_str().unwrap_or_default()));
        let is_real = found.real == path.value;
        let leads = if is_real { String::new() } else { format!(" leads to {} and", display(&found.real)) };
        return Err(path.place.error(format!(
            "{}{leads} lies outside of the folders of its pool, allowed are {folders}",
            display(&path.value)
        )));
    }
    if !export.read_only {
        files.writable(&path.value).map_err(|why| {
            let shown = display(&path.value);
            path.place.error(format!("cannot write to {shown}: {why}, allowed is an export with read-only = true"))
        })?;
    }
    let is_more = export.size.as_ref().is_some_and(|size| size.value > held);
    let held = if is_more { files.size_now_bytes(&path.value).map_err(failed)? } else { held };
    let most = held.min(REGION_BYTES);
    if most == 0 {
        let empty = format!("{} is empty, allowed is a file that has its full size", display(&path.value));
        return Err(path.place.error(empty));
    }
    match &export.size {
        Some(size) if size.value > most => {
            let (bytes, shown) = (size.value, display(&path.value));
            Err(size.place.error(format!("{bytes} bytes is more than {shown} has, allowed is 1 to {most}")))
        }
        Some(size) => Ok((found, size.value)),
        None => Ok((found, most)),
    }
}

impl Pool<'_> {
    /// A file may be a backing of it.
    fn may_have(&self, path: &Path, found: &Found, files: &dyn Files) -> bool {
        if self.real.iter().any(|folder| found.real.starts_with(folder)) {
            return true;
        }
        let dev = Path::new(DEV);
        let is_device = found.real.starts_with(dev) && matches!(found.identity, Some(Identity::BlockDevice(_)));
        let Some(named) = path.parent().filter(|_| is_device).map(|folder| files.canonical(folder)) else {
            return false;
        };
        self.real.iter().any(|folder| folder.starts_with(dev) && named.starts_with(folder))
    }
}

/// The users of files and disks so far.
#[derive(Default)]
pub(super) struct Claimed {
    by_path: BTreeMap<PathBuf, String>,
    by_identity: BTreeMap<Identity, String>,
    /// Users of partitions, by the number of their whole disk.
    parts: BTreeMap<u64, BTreeSet<String>>,
}

impl Claimed {
    /// The files of devices.
    pub(super) fn new(config: &Config, files: &dyn Files) -> Claimed {
        let mut claimed = Claimed::default();
        for device in &config.devices {
            if let Medium::File { path, .. } = &device.medium {
                claimed.set(&Found::at(&path.value, files), format!("device {}", shown(&device.name)));
            }
        }
        claimed
    }

    /// The user of a file.
    pub(super) fn user(export: &ExportConfig) -> String {
        join("export", &export.name)
    }

    pub(super) fn set(&mut self, found: &Found, user: String) {
        if let Some(disk) = found.disk {
            self.parts.entry(disk).or_default().insert(user.clone());
        }
        if let Some(identity) = found.identity {
            self.by_identity.insert(identity, user.clone());
        }
        self.by_path.insert(found.real.clone(), user);
    }

    pub(super) fn remove(&mut self, found: &Found, user: &str) {
        if let Some(disk) = found.disk
            && let Some(users) = self.parts.get_mut(&disk)
        {
            users.remove(user);
            if users.is_empty() {
                self.parts.remove(&disk);
            }
        }
        if let Some(identity) = &found.identity {
            self.by_identity.remove(identity);
        }
        self.by_path.remove(&found.real);
    }

    /// Another has it, or a part of it, or the disk that it is a part of: what it is.
    pub(super) fn taken(&self, found: &Found) -> Option<String> {
        let same = self.by_path.get(&found.real).or_else(|| self.by_identity.get(found.identity.as_ref()?));
        let whole = || self.by_identity.get(&Identity::BlockDevice(found.disk?));
        let part = || match &found.identity {
            Some(Identity::BlockDevice(number)) => self.parts.get(number)?.first(),
            _ => None,
        };
        match (same, whole(), part()) {
            (Some(user), ..) => Some(format!("is the backing of {user} already")),
            (_, Some(user), _) => Some(format!("is a partition of the disk that {user} has")),
            (.., Some(user)) => Some(format!("is the disk of the partition that {user} has")),
            _ => None,
        }
    }

    /// # Errors
    /// It is [taken](Claimed::taken).
    fn claim(&mut self, export: &ExportConfig, path: &Located<PathBuf>, found: &Found) -> Result<(), ConfigError> {
        let Some(taken) = self.taken(found) else {
            self.set(found, Claimed::user(export));
            return Ok(());
        };
        let shown = display(&path.value);
        Err(path.place.error(format!("{shown} {taken}, allowed is one of them")))
    }
}

/// Numbers of backings in a plan, and those that no other backing may have yet.
pub(super) struct Numbers {
    /// By pool and path: the number, and whether it is opened to be read alone.
    known: BTreeMap<(Slot, PathBuf), (u16, bool)>,
    taken: BTreeSet<(Slot, u16)>,
    /// By pool: the numbers below are taken.
    next: BTreeMap<Slot, u16>,
}

impl Numbers {
    /// Numbers of `plan`, and others that are `taken`.
    pub(super) fn new(plan: &Plan, taken: &BTreeSet<(Slot, u16)>) -> Numbers {
        let mut numbers = Numbers { known: BTreeMap::new(), taken: taken.clone(), next: BTreeMap::new() };
        for export in plan.exports.values() {
            if let Some(path) = &export.path {
                let number = number_of(export.offset_bytes);
                numbers.known.insert((export.device, path.clone()), (number, export.read_only));
                numbers.taken.insert((export.device, number));
            }
        }
        numbers
    }

    /// An export of a new plan with the number that its backing has, or with a free one.
    ///
    /// # Errors
    /// One sentence: the backing is open to be read alone, or there is no number.
    pub(super) fn place(&mut self, export: ExportPlan) -> Result<ExportPlan, String> {
        let Some(path) = export.path.clone() else { return Ok(export) };
        let device = export.device;
        let number = match self.known.get(&(device, path.clone())) {
            Some((_, true)) if !export.read_only => {
                let why = "its backing is open to be read alone, and a writable export cannot have it while serving: \
                           allowed is to remove the export that has it, and then to add this one";
                return Err(export.place.error(why).to_string());
            }
            Some((number, _)) => *number,
            None => {
                let next = self.next.entry(device).or_default();
                let is_free = |number: &u16| !self.taken.contains(&(device, *number));
                let too_many = || format!("with those that go there are more than {BACKINGS_MAX} backings");
                let free = (*next..BACKINGS_MAX).find(is_free);
                *next = free.ok_or_else(|| export.place.error(too_many()).to_string())?;
                *next
            }
        };
        self.taken.insert((device, number));
        self.known.insert((device, path), (number, export.read_only));
        Ok(ExportPlan { offset_bytes: region_of(number), ..export })
    }
}

impl Plan {
    /// Gives backings the numbers that another process has for them, by the name of the pool and the path, and others
    /// none of those.
    pub fn keep_numbers(&mut self, theirs: &BTreeMap<(String, PathBuf), u16>) {
        let slots: Vec<Slot> = self.exports.iter().map(|(slot, _)| slot).collect();
        let device =
            |plan: &Plan, name: &str| plan.devices.iter().find(|(_, it)| it.config.name == name).map(|(at, _)| at);
        let mut numbers = Numbers { known: BTreeMap::new(), taken: BTreeSet::new(), next: BTreeMap::new() };
        for ((name, path), number) in theirs {
            if let Some(device) = device(self, name) {
                numbers.known.insert((device, path.clone()), (*number, false));
                numbers.taken.insert((device, *number));
            }
        }
        for slot in slots {
            // It refuses no more than the numbers that there are, of which the check has counted fewer.
            if let Ok(placed) = numbers.place(self.exports[slot].clone()) {
                self.exports[slot] = placed;
            }
        }
    }

    /// This plan without an export, and without what it alone uses. `None`: its device would have none.
    pub fn without_export(&self, slot: Slot) -> Option<Plan> {
        let mut plan = self.clone();
        let export = plan.exports.remove(slot)?;
        plan.exports.values().any(|other| other.device == export.device).then_some(())?;
        if !plan.exports.values().any(|other| (other.device, other.flow) == (export.device, export.flow)) {
            plan.devices[export.device].flows.remove(export.flow);
        }
        plan.listeners.iter_mut().for_each(|(_, exports)| exports.retain(|other| *other != slot));
        plan.listeners.retain(|(_, exports)| !exports.is_empty());
        Some(plan)
    }
}
