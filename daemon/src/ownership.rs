//! Whose data does each byte of a device hold, and what must happen before another tenant gets it?
//!
//! ```text
//!   never held ──hold──▶ held by tenants ──release──▶ left by tenants ──another tenant's claim──▶ erase first
//!                          │      ▲                       │                                          │
//!                          │      └──────the tenant again─┘                                    erased, flushed
//!                          └──shrink──▶ unowned: erase before the next claim ────────────────────────┴──▶ held
//! ```
//! | a claim of tenant T meets | and | then |
//! |---|---|---|
//! | bytes that T holds or left | | they are offered as they are |
//! | bytes that no export had | a new export | the same: an image that was put there |
//! | | an export that grows, or `keep-data = false` | they are erased; a device in memory reads as zero there already |
//! | bytes that another tenant left, or unowned | | they are erased |
//! | bytes that another tenant's export holds | both exports are `shared` | they are offered as they are |
//! | | the server starts | nothing is offered until `keep-data` says which: the config may be older than the data |
//! | anything | `keep-data = true` | it is offered as it is |
//!
//! A device that outlives the process has its areas in a [`Record`], which is on disk before an erase begins and before
//! anything is offered. So a server that is killed in between finds the bytes that are still to be erased.

pub mod record;

use crate::config::{DevicePlan, ExportPlan, Medium};
use record::{Fault, Record};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The key of a device's areas.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Kind of the device, and its path or name.
    pub name: String,
    /// The device's bytes outlive the process.
    pub lasts: bool,
    /// Address of its first byte: of a backing of a pool, its region's, which the next process may choose anew.
    pub base: u64,
}

impl Key {
    /// A range of addresses as bytes of what the key is of.
    fn own(&self, range: &Range<u64>) -> Range<u64> {
        range.start - self.base..range.end - self.base
    }
}

/// The key of a device. `None`: it stores nothing, or each of its exports has a backing.
pub type KeyOf = fn(&DevicePlan) -> Option<Key>;

/// The key of a device that [`crate::devices::open`] opens: a file is the same whatever the config calls it.
pub fn key_of(device: &DevicePlan) -> Option<Key> {
    match &device.config.medium {
        Medium::Null { .. } | Medium::Pool { .. } => None,
        Medium::File { path, .. } => Some(file_key(&path.value, 0)),
        Medium::Memory { .. } | Medium::Model { .. } | Medium::Other(_) => {
            Some(Key { name: format!("memory {}", device.config.name), lasts: false, base: 0 })
        }
    }
}

fn file_key(path: &Path, base: u64) -> Key {
    Key { name: format!("file {}", path.display()), lasts: true, base }
}

/// The key of the bytes of an export: its backing's, or its device's by `key_of`.
pub fn key_for(key_of: KeyOf, device: &DevicePlan, export: &ExportPlan) -> Option<Key> {
    match &export.path {
        Some(path) => Some(file_key(path, export.offset_bytes)),
        None => key_of(device),
    }
}

/// Bytes with one history.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Area {
    /// Byte after the last.
    end: u64,
    /// Tenants that may read them as they are. None: they must be erased first.
    tenants: Vec<String>,
    /// Exports in force that have them.
    held: u32,
    /// An export had them when the server before ended, and the config has it no more.
    #[serde(default)]
    is_lost: bool,
}

impl Area {
    fn is_like(&self, other: &Area) -> bool {
        (&self.tenants, self.held, self.is_lost) == (&other.tenants, other.held, other.is_lost)
    }
}

/// The areas of one device, by first byte; between them are bytes that no export had.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Areas(BTreeMap<u64, Area>);

impl Areas {
    /// An area begins at `at`, if one has that byte.
    fn split(&mut self, at: u64) {
        let Some((_, area)) = self.0.range_mut(..at).next_back() else { return };
        if area.end > at {
            let rest = area.clone();
            area.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Pieces of `range` in order, each with one history.
    fn pieces(&self, range: &Range<u64>) -> Vec<(Range<u64>, Option<&Area>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let first = self.0.range(..=at).next_back().map_or(at, |(start, _)| *start);
        for (start, area) in self.0.range(first..range.end).filter(|(_, area)| area.end > range.start) {
            let (start, end) = ((*start).max(range.start), area.end.min(range.end));
            if at < start {
                pieces.push((at..start, None));
            }
            pieces.push((start..end, Some(area)));
            at = end;
        }
        if at < range.end {
            pieces.push((at..range.end, None));
        }
        pieces
    }

    /// Replaces each piece of `range` by the result of `change`.
    fn change(&mut self, range: &Range<u64>, change: impl Fn(Option<&Area>) -> Option<Area>) {
        self.split(range.start);
        self.split(range.end);
        let pieces = self.pieces(range).into_iter();
        let changed: Vec<_> = pieces.map(|(piece, area)| (piece, change(area))).collect();
        for (piece, area) in changed {
            self.0.remove(&piece.start);
            if let Some(area) = area {
                self.0.insert(piece.start, Area { end: piece.end, ..area });
            }
        }
        self.unite(range);
    }

    /// Neighbours in and at `range` with the same history are one area.
    fn unite(&mut self, range: &Range<u64>) {
        let from = self.0.range(..range.start).next_back().map_or(range.start, |(start, _)| *start);
        let starts: Vec<u64> = self.0.range(from..=range.end).map(|(start, _)| *start).collect();
        for start in starts {
            let Some((before, area)) = self.0.range(..start).next_back() else { continue };
            let before = *before;
            if area.end == start && area.is_like(&self.0[&start]) {
                let end = self.0.remove(&start).map_or(start, |area| area.end);
                self.0.get_mut(&before).expect("it was looked at").end = end;
            }
        }
    }
}

/// An export wants bytes that it has not yet.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Device that holds the bytes; `None`: it stores nothing.
    pub device: Option<Key>,
    /// Bytes of the device that the export lacks.
    pub range: Range<u64>,
    /// Tenant of the export.
    pub tenant: &'a str,
    /// The key `shared` of the export.
    pub is_shared: bool,
    /// The key `keep-data` of the export, if it is set.
    pub keep_data: Option<bool>,
    /// The export has bytes already, and grows.
    pub is_grown: bool,
}

/// The step that a claim needs before it is offered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The bytes can be offered as they are.
    Ready,
    /// These bytes are erased first; the tenant that had them, if any.
    Erase(Vec<Range<u64>>, Option<String>),
    /// `keep-data` must first decide about these bytes, which are this tenant's.
    Ask(Vec<Range<u64>>, String),
}

impl Verdict {
    /// Bytes that cannot be offered yet.
    pub fn ranges(&self) -> &[Range<u64>] {
        match self {
            Verdict::Ready => &[],
            Verdict::Erase(ranges, _) | Verdict::Ask(ranges, _) => ranges,
        }
    }

    /// The first byte that cannot be offered yet, of bytes up to `end`.
    pub fn good_until(&self, end: u64) -> u64 {
        self.ranges().first().map_or(end, |range| range.start)
    }
}

/// The areas of all devices.
#[derive(Default)]
pub struct Ownership {
    devices: BTreeMap<String, Areas>,
    /// Devices that outlive the process.
    lasting: BTreeSet<String>,
    record: Option<Store>,
    /// Devices whose areas may differ from those in the record.
    changed: BTreeSet<String>,
}

/// A record, which is opened when a device needs it.
pub struct Store {
    path: PathBuf,
    record: Option<Record>,
}

impl Store {
    /// A store at this path, not open yet.
    pub fn at(path: PathBuf) -> Store {
        Store { path, record: None }
    }

    /// Opens it, or reads again what another process has written since.
    ///
    /// # Errors
    /// As [`Record::open`].
    pub fn open(&mut self) -> Result<(), Fault> {
        match &mut self.record {
            Some(record) => record.read_again()?,
            none => *none = Some(Record::open(&self.path)?),
        }
        Ok(())
    }
}

impl Ownership {
    /// The areas in `record`, if it is open; `None`: nothing is kept.
    pub fn new(record: Option<Store>) -> Ownership {
        let devices = read(record.as_ref());
        let lasting = devices.keys().cloned().collect();
        Ownership { devices, lasting, record, changed: BTreeSet::new() }
    }

    /// Doubts that bytes without an export are zeroes, on a device that does not last: the process that served before
    /// did not keep their owners.
    pub fn doubt(&mut self, device: Option<&Key>, size_bytes: u64) {
        if device.is_some_and(|key| !key.lasts) {
            self.give_up(device, &(0..size_bytes));
        }
    }

    fn areas(&mut self, key: &Key) -> &mut Areas {
        if key.lasts {
            self.changed.insert(key.name.clone());
            self.lasting.insert(key.name.clone());
        }
        self.devices.entry(key.name.clone()).or_default()
    }

    /// The step that `claim` needs while the server runs.
    pub fn verdict(&self, claim: &Claim<'_>) -> Verdict {
        let Some(key) = &claim.device else { return Verdict::Ready };
        let none = Areas::default();
        let areas = self.devices.get(&key.name).unwrap_or(&none);
        let (mut ranges, mut whose) = (Vec::new(), None);
        for (piece, area) in areas.pieces(&key.own(&claim.range)) {
            let is_good = match area {
                _ if claim.keep_data == Some(true) => true,
                None => !key.lasts || !(claim.is_grown || claim.keep_data == Some(false)),
                Some(area) => {
                    area.tenants.iter().any(|tenant| tenant == claim.tenant) || claim.is_shared && area.held > 0
                }
            };
            if !is_good {
                ranges.push(piece.start + key.base..piece.end + key.base);
                whose = whose.or_else(|| area.and_then(|area| area.tenants.first().cloned()));
            }
        }
        if ranges.is_empty() { Verdict::Ready } else { Verdict::Erase(ranges, whose) }
    }

    /// The bytes of `claim` are its tenant's from now on, and its export has them.
    pub fn hold(&mut self, claim: &Claim<'_>) {
        let Some(key) = claim.device.as_ref().filter(|_| !claim.range.is_empty()) else { return };
        let (tenant, is_shared) = (claim.tenant, claim.is_shared);
        self.areas(key).change(&key.own(&claim.range), |area| {
            let live = area.filter(|area| is_shared && area.held > 0);
            let (mut tenants, held) = live.map_or((Vec::new(), 0), |area| (area.tenants.clone(), area.held));
            if !tenants.iter().any(|other| other == tenant) {
                tenants.push(tenant.to_owned());
                tenants.sort();
            }
            Some(Area { end: 0, tenants, held: held + 1, is_lost: false })
        });
    }

    /// An export has these bytes no more. Its tenant may have them again.
    pub fn release(&mut self, device: Option<&Key>, range: &Range<u64>) {
        let Some(key) = device else { return };
        let less = |area: &Area| Area { held: area.held.saturating_sub(1), ..area.clone() };
        self.areas(key).change(&key.own(range), |area| area.map(less));
    }

    /// Erases these bytes before any tenant gets them, except those that another export has.
    pub fn give_up(&mut self, device: Option<&Key>, range: &Range<u64>) {
        let Some(key) = device else { return };
        let alone = |area: Option<&Area>| match area {
            Some(area) if area.held > 0 => Some(area.clone()),
            _ => Some(Area::default()),
        };
        self.areas(key).change(&key.own(range), alone);
    }

    /// A device is gone, and its bytes with it unless they last.
    pub fn forget(&mut self, device: Option<&Key>) {
        if let Some(key) = device.filter(|key| !key.lasts) {
            self.devices.remove(&key.name);
        }
    }

    /// A server starts with these exports, in this order: what each needs.
    pub fn start(&mut self, claims: &[Claim<'_>]) -> Vec<Verdict> {
        let before = self.devices.clone();
        self.changed.extend(self.devices.keys().cloned());
        for areas in self.devices.values_mut() {
            areas.0.values_mut().for_each(|area| (area.held, area.is_lost) = (0, false));
        }
        let is_own = |this: &Ownership, claim: &Claim<'_>| {
            let unasked = Claim { is_shared: false, ..claim.clone() };
            this.verdict(&unasked) == Verdict::Ready
        };
        let own: Vec<bool> = claims.iter().map(|claim| is_own(self, claim)).collect();
        for (claim, _) in claims.iter().zip(&own).filter(|(_, is_own)| **is_own) {
            self.hold(claim);
        }
        let mut verdicts = Vec::new();
        for (claim, is_own) in claims.iter().zip(own) {
            let verdict = if is_own { Verdict::Ready } else { self.verdict(claim) };
            let verdict = match verdict {
                Verdict::Erase(ranges, whose) if claim.keep_data.is_none() => {
                    let key = claim.device.as_ref();
                    let held = key.and_then(|key| Some((key, before.get(&key.name)?)));
                    let own = |key: &Key| ranges.iter().map(|range| key.own(range)).collect::<Vec<_>>();
                    let lost = held.and_then(|(key, areas)| lost(areas, &own(key)));
                    match lost {
                        Some(whose) => Verdict::Ask(ranges, whose),
                        None => Verdict::Erase(ranges, whose),
                    }
                }
                verdict => verdict,
            };
            if !is_own {
                let good = Claim { range: claim.range.start..verdict.good_until(claim.range.end), ..claim.clone() };
                self.hold(&good);
            }
            if let Some(key) = &claim.device {
                verdict.ranges().iter().for_each(|range| match verdict {
                    // The next start is to ask again.
                    Verdict::Ask(..) => {
                        let lost = |area: Option<&Area>| Some(Area { is_lost: true, ..area?.clone() });
                        self.areas(key).change(&key.own(range), lost);
                    }
                    _ => self.give_up(claim.device.as_ref(), range),
                });
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    /// Writes the areas in force to disk, for devices that outlive the process.
    ///
    /// # Errors
    /// One sentence: it could not be written.
    pub fn commit(&mut self) -> Result<(), String> {
        let is_needed = !self.changed.is_empty() && !self.lasting.is_empty();
        if let Some(store) = self.record.as_mut().filter(|_| is_needed) {
            if store.record.is_none() {
                store.open()?;
            }
            let changed = self.changed.intersection(&self.lasting).map(|name| (name, self.devices.get(name)));
            store.record.as_mut().expect("it was opened").write(changed)?;
        }
        self.changed.clear();
        Ok(())
    }

    /// All areas, for the process that takes this one's place.
    pub fn pack(&self) -> Vec<u8> {
        serde_json::to_vec(&self.devices).unwrap_or_default()
    }

    /// Unpacks the areas. `record`: their store from now on.
    ///
    /// # Errors
    /// One sentence: the bytes are something else.
    pub fn unpack(bytes: &[u8], record: Option<Store>) -> Result<Ownership, String> {
        let devices = serde_json::from_slice(bytes).map_err(|_| "the state of whose bytes devices hold is damaged")?;
        let lasting: BTreeSet<String> = read(record.as_ref()).into_keys().collect();
        Ok(Ownership { devices, changed: lasting.clone(), lasting, record })
    }
}

fn read(record: Option<&Store>) -> BTreeMap<String, Areas> {
    record.and_then(|store| store.record.as_ref()).map(Record::read).unwrap_or_default()
}

/// A tenant whose export had some of `ranges` when the last server ended.
fn lost(areas: &Areas, ranges: &[Range<u64>]) -> Option<String> {
    let mut pieces = ranges.iter().flat_map(|range| areas.pieces(range));
    pieces.find_map(|(_, area)| area.filter(|area| area.held > 0 || area.is_lost)?.tenants.first().cloned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::single_range_in_vec_init, reason = "lists of ranges that happen to have one")]

    use super::record::{path_for, paths};
    use super::*;
    use mqfq_testing::{Folder, Random};
    use std::path::Path;

    const LASTING: &str = "file /d";

    fn key(lasts: bool) -> Key {
        Key { name: LASTING.to_owned(), lasts, base: 0 }
    }

    fn opened(path: &Path) -> Ownership {
        let mut store = Store::at(path.to_owned());
        store.open().unwrap();
        Ownership::new(Some(store))
    }

    fn claim(range: Range<u64>, tenant: &str) -> Claim<'_> {
        Claim { device: Some(key(true)), range, tenant, is_shared: false, keep_data: None, is_grown: false }
    }

    fn erase(range: Range<u64>, whose: Option<&str>) -> Verdict {
        Verdict::Erase(vec![range], whose.map(str::to_owned))
    }

    #[test]
    fn bytes_that_change_tenants_are_erased_and_those_that_come_back_are_not() {
        let mut ownership = Ownership::default();
        assert_eq!(ownership.verdict(&claim(0..100, "a")), Verdict::Ready, "an image that was put there");
        ownership.hold(&claim(0..100, "a"));
        ownership.release(Some(&key(true)), &(0..100));
        assert_eq!(ownership.verdict(&claim(0..100, "a")), Verdict::Ready);
        assert_eq!(ownership.verdict(&claim(50..150, "b")), erase(50..100, Some("a")));
        let kept = Claim { keep_data: Some(true), ..claim(50..150, "b") };
        assert_eq!(ownership.verdict(&kept), Verdict::Ready);
        let blank = Claim { keep_data: Some(false), ..claim(90..150, "b") };
        assert_eq!(ownership.verdict(&blank), Verdict::Erase(vec![90..100, 100..150], Some("a".into())));
        ownership.hold(&kept);
        assert_eq!(ownership.verdict(&claim(0..100, "a")), erase(50..100, Some("b")), "they were b's meanwhile");
    }

    #[test]
    fn an_export_that_grows_reads_zeroes_there_and_a_device_in_memory_has_them_already() {
        let mut ownership = Ownership::default();
        ownership.hold(&claim(0..100, "a"));
        let grown = Claim { is_grown: true, ..claim(100..200, "a") };
        assert_eq!(ownership.verdict(&grown), erase(100..200, None));
        let in_memory = Claim { device: Some(Key { name: "memory d".into(), lasts: false, base: 0 }), ..grown.clone() };
        assert_eq!(ownership.verdict(&in_memory), Verdict::Ready);
        // It shrinks and grows again: the bytes are not even its own.
        ownership.release(Some(&key(true)), &(50..100));
        ownership.give_up(Some(&key(true)), &(50..100));
        let again = Claim { is_grown: true, ..claim(50..100, "a") };
        assert_eq!(ownership.verdict(&again), erase(50..100, None));
        assert_eq!(ownership.verdict(&claim(50..100, "a")), erase(50..100, None));
    }

    #[test]
    fn exports_that_share_bytes_all_have_them_until_the_last_is_gone() {
        let mut ownership = Ownership::default();
        let shared = |tenant| Claim { is_shared: true, ..claim(0..100, tenant) };
        ownership.hold(&shared("a"));
        assert_eq!(ownership.verdict(&shared("b")), Verdict::Ready);
        ownership.hold(&shared("b"));
        ownership.release(Some(&key(true)), &(0..100));
        ownership.give_up(Some(&key(true)), &(0..100));
        assert_eq!(ownership.verdict(&shared("c")), Verdict::Ready, "one of them is still there");
        ownership.release(Some(&key(true)), &(0..100));
        assert_eq!(ownership.verdict(&shared("c")), erase(0..100, Some("a")));
        assert_eq!(ownership.verdict(&shared("b")), Verdict::Ready);
    }

    #[test]
    fn a_start_asks_about_bytes_that_were_held_and_erases_what_was_left() {
        let folder = Folder::new();
        let path = folder.join("owners");
        let opened = || opened(&path);
        let mut ownership = opened();
        ["a", "b"].iter().zip([0..100, 100..200]).for_each(|(tenant, range)| ownership.hold(&claim(range, tenant)));
        ownership.release(Some(&key(true)), &(100..200));
        ownership.commit().unwrap();
        for whose in [Some("b"), None] {
            let mut next = opened();
            let verdicts = next.start(&[claim(0..100, "c"), claim(100..150, "c"), claim(150..300, "b")]);
            assert_eq!(verdicts, [Verdict::Ask(vec![0..100], "a".into()), erase(100..150, whose), Verdict::Ready]);
            // It asks again at the next start.
            next.commit().unwrap();
            let kept = Claim { keep_data: Some(true), ..claim(0..100, "c") };
            assert_eq!(next.verdict(&kept), Verdict::Ready);
        }
        let mut same = opened();
        assert_eq!(same.start(&[claim(0..100, "a")]), [Verdict::Ready]);
        let told = Claim { keep_data: Some(false), ..claim(0..100, "c") };
        assert_eq!(opened().start(&[told]), [erase(0..100, Some("a"))], "it was said");
    }

    #[test]
    fn a_start_counts_the_exports_of_each_device_anew() {
        let keys = ["file /d", "file /e", "file /f"].map(|name| Key { name: name.to_owned(), lasts: true, base: 0 });
        let of = |key: &Key, tenant| Claim { device: Some(key.clone()), is_shared: true, ..claim(0..100, tenant) };
        // As an upgrade hands them over: held by the exports of the server before.
        let mut next = Ownership::default();
        keys.iter().for_each(|key| next.hold(&of(key, "a")));
        assert_eq!(
            next.start(&keys.each_ref().map(|key| of(key, "a"))),
            [Verdict::Ready, Verdict::Ready, Verdict::Ready]
        );
        for key in &keys {
            next.release(Some(key), &(0..100));
            // Were it still held, an export that may share bytes would have them as they are.
            assert_eq!(next.verdict(&of(key, "b")), erase(0..100, Some("a")), "{}", key.name);
        }
    }

    #[test]
    fn an_upgrade_hands_over_the_bytes_of_each_device_and_each_stays_in_the_record() {
        let folder = Folder::new();
        let path = folder.join("owners");
        let of = |name: &str, tenant| Claim {
            device: Some(Key { name: name.into(), lasts: true, base: 0 }),
            ..claim(0..100, tenant)
        };
        let mut old = opened(&path);
        let names = ["file /d", "file /e"];
        names.iter().for_each(|name| old.hold(&of(name, "a")));
        old.commit().unwrap();
        let bytes = old.pack();
        drop(old);
        let mut store = Store::at(path.clone());
        store.open().unwrap();
        let mut new = Ownership::unpack(&bytes, Some(store)).unwrap();
        names.iter().for_each(|name| assert_eq!(new.verdict(&of(name, "b")), erase(0..100, Some("a")), "{name}"));
        new.commit().unwrap();
        drop(new);
        let next = opened(&path);
        names.iter().for_each(|name| assert_eq!(next.verdict(&of(name, "b")), erase(0..100, Some("a")), "{name}"));
    }

    #[test]
    fn a_file_is_known_by_its_path_and_lasts_and_memory_by_its_name_and_does_not() {
        let folder = Folder::new();
        let disk = folder.join("disk");
        std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
        let export =
            |name: &str| format!("[export.{name}]\ndevice = \"{name}\"\ntenant = \"t\"\nnbd = \"unix:/{name}\"\n");
        let text = format!(
            "[device.f]\nkind = \"file\"\npath = {disk:?}\n[device.m]\nkind = \"memory\"\nsize = \"1MiB\"\n[tenant.t]\n{}{}",
            export("f"),
            export("m")
        );
        let plan = crate::config::Config::parse("c.toml", &text).unwrap().check(&crate::config::RealFiles).unwrap();
        let keys: Vec<Option<Key>> = plan.devices.values().map(key_of).collect();
        let file = Key { name: format!("file {}", disk.display()), lasts: true, base: 0 };
        assert_eq!(keys, [Some(file), Some(Key { name: "memory m".into(), lasts: false, base: 0 })]);
    }

    #[test]
    fn a_start_lets_exports_share_that_say_so_and_no_other() {
        let mut ownership = Ownership::default();
        ownership.hold(&claim(0..100, "a"));
        let shared = |tenant| Claim { is_shared: true, ..claim(0..100, tenant) };
        let mut both = Ownership { devices: ownership.devices.clone(), ..Ownership::default() };
        assert_eq!(both.start(&[shared("b"), shared("a")]), [Verdict::Ready, Verdict::Ready]);
        let mut one = Ownership { devices: ownership.devices.clone(), ..Ownership::default() };
        assert_eq!(one.start(&[shared("b")]), [Verdict::Ask(vec![0..100], "a".into())]);
    }

    #[test]
    fn a_write_of_the_record_that_is_cut_short_leaves_the_one_before() {
        let folder = Folder::new();
        let path = folder.join("owners");
        let mut ownership = opened(&path);
        for tenant in ["a", "b"] {
            ownership.hold(&claim(0..100, tenant));
            ownership.commit().unwrap();
        }
        let newest = |files: [std::path::PathBuf; 2]| {
            files.into_iter().max_by_key(|file| std::fs::read_to_string(file).unwrap().contains("\"b\"")).unwrap()
        };
        let newest = newest(paths(&path));
        let whole = std::fs::read(&newest).unwrap();
        let verdict = || opened(&path).verdict(&claim(0..100, "a"));
        assert_eq!(verdict(), erase(0..100, Some("b")));
        for length in 0..whole.len() {
            std::fs::write(&newest, &whole[..length]).unwrap();
            assert_eq!(verdict(), Verdict::Ready, "{length} bytes: the record before is a's");
        }
        paths(&path).iter().for_each(|file| std::fs::write(file, "[").unwrap());
        assert!(String::from(Record::open(&path).err().unwrap()).contains("are damaged: allowed is to remove both"));
    }

    #[test]
    fn a_write_of_some_devices_leaves_the_others_in_the_record_and_one_that_fails_changes_nothing() {
        let folder = Folder::new();
        let path = folder.join("owners");
        let mut ownership = opened(&path);
        let on = |name: &str| Claim { device: Some(Key { name: name.into(), ..key(true) }), ..claim(0..100, "a") };
        for name in ["file /d", "file /\"d\\", "file /e"] {
            ownership.hold(&on(name));
            ownership.commit().unwrap();
        }
        assert_eq!(opened(&path).devices, ownership.devices);
        let record = ownership.record.as_mut().and_then(|store| store.record.as_mut()).unwrap();
        let (name, before) = ("file /e".to_owned(), record.read::<Areas>());
        record.break_files();
        assert!(record.write::<Areas>([(&name, None)].into_iter()).unwrap_err().contains("cannot be kept in"));
        assert_eq!(record.read::<Areas>(), before);
        let mut again = opened(&path);
        again
            .record
            .as_mut()
            .and_then(|store| store.record.as_mut())
            .unwrap()
            .write::<Areas>([(&name, None)].into_iter())
            .unwrap();
        assert_eq!(opened(&path).devices.into_keys().collect::<Vec<_>>(), ["file /\"d\\", "file /d"]);
    }

    #[test]
    fn the_record_is_in_the_folder_that_systemd_gives_or_beside_the_config() {
        let at = |folders| path_for(Path::new("/etc/mqfq/a.toml"), folders);
        assert_eq!(at(None), Path::new("/etc/mqfq/a.toml.owners"));
        assert_eq!(at(Some("/var/lib/mqfq:/var/lib/other")), Path::new("/var/lib/mqfq/a.toml.owners"));
        assert_eq!(path_for(Path::new("a.toml"), Some("")), Path::new("a.toml.owners"));
    }

    /// The state of each byte, the obvious way.
    #[derive(Clone, PartialEq, Debug, Default)]
    struct Byte {
        tenants: Vec<String>,
        held: u32,
        is_known: bool,
    }

    #[test]
    fn generated_claims_are_judged_as_byte_by_byte() {
        const BYTES: u64 = 24;
        let mut erased = 0;
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut bytes = vec![Byte::default(); BYTES as usize];
            let mut ownership = Ownership::default();
            let mut held: Vec<(Range<u64>, bool)> = Vec::new();
            for step in 0..60 {
                let start = random.below(BYTES - 1);
                let range = start..start + 1 + random.below(BYTES - start);
                let at = range.start as usize..range.end as usize;
                let tenant = ["a", "b", "c"][random.below(3) as usize];
                if random.below(3) == 0 && !held.is_empty() {
                    let (range, gives_up) = held.swap_remove(random.below(held.len() as u64) as usize);
                    ownership.release(Some(&key(true)), &range);
                    if gives_up {
                        ownership.give_up(Some(&key(true)), &range);
                    }
                    for byte in &mut bytes[range.start as usize..range.end as usize] {
                        byte.held -= 1;
                        if gives_up && byte.held == 0 {
                            byte.tenants.clear();
                        }
                    }
                    continue;
                }
                let is_shared = random.below(2) == 0;
                if bytes[at.clone()].iter().any(|byte| byte.held > 0) && !is_shared {
                    continue;
                }
                let claim = Claim { is_shared, is_grown: random.below(2) == 0, ..claim(range.clone(), tenant) };
                let is_good = |byte: &Byte| match byte.is_known {
                    false => !claim.is_grown,
                    true => byte.tenants.contains(&tenant.to_owned()) || is_shared && byte.held > 0,
                };
                let bad: Vec<u64> = range.clone().filter(|at| !is_good(&bytes[*at as usize])).collect();
                match ownership.verdict(&claim) {
                    Verdict::Ready => assert_eq!(bad, [0; 0], "seed {seed}, step {step}"),
                    Verdict::Erase(ranges, _) => {
                        assert_eq!(ranges.into_iter().flatten().collect::<Vec<_>>(), bad, "seed {seed}, step {step}");
                        erased += 1;
                    }
                    Verdict::Ask(..) => panic!("only a start asks"),
                }
                ownership.hold(&claim);
                for byte in &mut bytes[at] {
                    if !(is_shared && byte.held > 0) {
                        (byte.tenants, byte.held) = (Vec::new(), 0);
                    }
                    if !byte.tenants.contains(&tenant.to_owned()) {
                        byte.tenants.push(tenant.to_owned());
                    }
                    (byte.held, byte.is_known) = (byte.held + 1, true);
                }
                held.push((range, random.below(2) == 0));
            }
            let areas = &ownership.devices[LASTING].0;
            let pairs = areas.iter().zip(areas.iter().skip(1));
            pairs.for_each(|((_, one), (start, other))| assert!(one.end < *start || !one.is_like(other), "{areas:?}"));
        }
        assert!(erased > 1000, "{erased} claims needed an erase");
    }
}
