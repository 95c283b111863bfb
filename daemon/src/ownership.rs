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
#[cfg(test)]
mod tests;

use crate::config::{DevicePlan, Medium};
use record::{Fault, Record};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

/// The key of a device's areas.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Kind of the device, and its path or name.
    pub name: String,
    /// The device's bytes outlive the process.
    pub lasts: bool,
}

/// The key of a device. `None`: it stores nothing.
pub type KeyOf = fn(&DevicePlan) -> Option<Key>;

/// The key of a device that [`crate::devices::open`] opens: a file is the same whatever the config calls it.
pub fn key_of(device: &DevicePlan) -> Option<Key> {
    match &device.config.medium {
        Medium::Null { .. } => None,
        Medium::File { path, .. } => Some(Key { name: format!("file {}", path.value.display()), lasts: true }),
        Medium::Memory { .. } | Medium::Model { .. } | Medium::Other(_) => {
            Some(Key { name: format!("memory {}", device.config.name), lasts: false })
        }
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
    /// The areas differ from those in the record.
    is_changed: bool,
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
        Ownership { devices, lasting, record, is_changed: false }
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
            self.is_changed = true;
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
        for (piece, area) in areas.pieces(&claim.range) {
            let is_good = match area {
                _ if claim.keep_data == Some(true) => true,
                None => !key.lasts || !(claim.is_grown || claim.keep_data == Some(false)),
                Some(area) => {
                    area.tenants.iter().any(|tenant| tenant == claim.tenant) || claim.is_shared && area.held > 0
                }
            };
            if !is_good {
                ranges.push(piece);
                whose = whose.or_else(|| area.and_then(|area| area.tenants.first().cloned()));
            }
        }
        if ranges.is_empty() { Verdict::Ready } else { Verdict::Erase(ranges, whose) }
    }

    /// The bytes of `claim` are its tenant's from now on, and its export has them.
    pub fn hold(&mut self, claim: &Claim<'_>) {
        let Some(key) = claim.device.as_ref().filter(|_| !claim.range.is_empty()) else { return };
        let (tenant, is_shared) = (claim.tenant, claim.is_shared);
        self.areas(key).change(&claim.range, |area| {
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
        self.areas(key).change(range, |area| area.map(less));
    }

    /// Erases these bytes before any tenant gets them, except those that another export has.
    pub fn give_up(&mut self, device: Option<&Key>, range: &Range<u64>) {
        let Some(key) = device else { return };
        let alone = |area: Option<&Area>| match area {
            Some(area) if area.held > 0 => Some(area.clone()),
            _ => Some(Area::default()),
        };
        self.areas(key).change(range, alone);
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
        self.is_changed = true;
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
                    let held = claim.device.as_ref().and_then(|key| before.get(&key.name));
                    let lost = held.and_then(|areas| lost(areas, &ranges));
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
                        self.areas(key).change(range, |area| Some(Area { is_lost: true, ..area?.clone() }));
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
        let is_needed = self.is_changed && !self.lasting.is_empty();
        if let Some(store) = self.record.as_mut().filter(|_| is_needed) {
            if store.record.is_none() {
                store.open()?;
            }
            let lasting = self.devices.iter().filter(|(name, _)| self.lasting.contains(*name));
            store.record.as_mut().expect("it was opened").write(lasting)?;
        }
        self.is_changed = false;
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
        let lasting = read(record.as_ref()).into_keys().collect();
        Ok(Ownership { devices, lasting, record, is_changed: true })
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
