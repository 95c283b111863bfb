//! A config that stays read: one section of it changes without the others being read or checked again.
//!
//! Answers: is a change of a tenant or an export right, and which plan is that? A section agrees with the others if it
//! agrees with the few that it names, and collides with none. So those are checked together with it, as a config of
//! their own ([`Config::check`]), and possible collisions are looked up beside the config:
//!
//! ```text
//!   export   its tenant and its device             ranges of that device · backings · who listens where · sections of
//!                                                  addresses
//!   tenant   its exports and their devices
//! ```
//! A section that is not right for certain is left to the check of everything, which has the sentence about it.
//!
//! Invariant: it is the reader's config of the whole document, but for the lines, and refuses what that refuses
//! (`a_section_after_the_other_is_the_same_as_all_of_them_at_once`).

use super::machine::Files;
use super::model::{Config, ExportConfig, TenantConfig};
use super::overlap::Ranges;
use super::plan::{ExportPlan, Plan, Range};
use super::pools::{Claimed, Found};
use mqfq_control::Kind;
use mqfq_front::front_end::ExportAddress;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A document written from tables, so its sections are in the order of their names; without groups and weights of
/// exports, since a section of these may change the flows of others.
pub struct CachedConfig {
    /// All sections but tenants and exports.
    rest: Config,
    tenants: BTreeMap<String, TenantConfig>,
    exports: BTreeMap<String, ExportConfig>,
    uses: Uses,
}

/// Resources of exports that two of them cannot share.
#[derive(Default)]
struct Uses {
    /// Ranges of exports, by name.
    at: BTreeMap<String, Range>,
    /// Ranges by device.
    ranges: BTreeMap<String, Ranges>,
    /// Addresses by claim, and by front end and text, and how many exports are served there.
    addresses: BTreeMap<String, (ExportAddress, usize)>,
    /// Number of exports served at an address, by its text alone.
    served: BTreeMap<String, usize>,
    /// Exports of each tenant.
    of_tenant: BTreeMap<String, BTreeSet<String>>,
    /// Files of devices and backings, and backings by export.
    claimed: Claimed,
    found: BTreeMap<String, Found>,
    /// Backings so far: a backing counts as a range of its own here, whatever its number is.
    backings: u64,
}

/// The bytes that an export has, and its backing.
type Taken = (Range, Option<Found>);

/// Counts one more or less.
fn count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, more: bool) {
    let mut entry = match counts.entry(key) {
        Entry::Occupied(entry) => entry,
        Entry::Vacant(entry) => entry.insert_entry(0),
    };
    *entry.get_mut() = if more { *entry.get() + 1 } else { *entry.get() - 1 };
    if *entry.get() == 0 {
        entry.remove();
    }
}

impl Uses {
    fn add(&mut self, export: &ExportConfig, (range, found): Taken) {
        if let Some(found) = found {
            self.claimed.set(&found, Claimed::user(export));
            self.found.insert(export.name.clone(), found);
        }
        self.ranges.entry(export.device.value.clone()).or_default().add(&range, export.shared);
        self.at.insert(export.name.clone(), range);
        for address in export.addresses.iter().map(|located| &located.value) {
            address
                .resources()
                .for_each(|key| self.addresses.entry(key).or_insert_with(|| (address.clone(), 0)).1 += 1);
            count(&mut self.served, address.to_string(), true);
        }
        self.of_tenant.entry(export.tenant.value.clone()).or_default().insert(export.name.clone());
    }

    fn remove(&mut self, export: &ExportConfig) -> Option<Taken> {
        let range = self.at.remove(&export.name)?;
        let found = self.found.remove(&export.name);
        if let Some(found) = &found {
            self.claimed.remove(found, &Claimed::user(export));
        }
        if let Some(ranges) = self.ranges.get_mut(&export.device.value) {
            ranges.remove(&range, export.shared);
        }
        for address in export.addresses.iter().map(|located| &located.value) {
            for key in address.resources() {
                if let Entry::Occupied(mut same) = self.addresses.entry(key) {
                    same.get_mut().1 -= 1;
                    if same.get().1 == 0 {
                        same.remove();
                    }
                }
            }
            count(&mut self.served, address.to_string(), false);
        }
        if let Some(exports) = self.of_tenant.get_mut(&export.tenant.value) {
            exports.remove(&export.name);
        }
        Some((range, found))
    }

    /// Range and backing of an export in a plan.
    fn of(&mut self, export: &ExportPlan, files: &dyn Files) -> Taken {
        match &export.path {
            None => (range(export.offset_bytes, export.size_bytes), None),
            Some(path) => {
                self.backings += 1;
                (range(self.backings, 1), Some(Found::at(path, files)))
            }
        }
    }

    /// An export that is not among them would collide with none of them.
    fn has_room(&self, export: &ExportConfig, (range, found): &Taken) -> bool {
        if found.as_ref().is_some_and(|found| self.claimed.taken(found).is_some()) {
            return false;
        }
        let is_free = |address: &ExportAddress| {
            !address
                .resources()
                .filter_map(|key| self.addresses.get(&key))
                .any(|(other, _)| address.collides_with(other))
        };
        self.ranges.get(&export.device.value).is_none_or(|ranges| ranges.has_room(range, export.shared))
            && export.addresses.iter().all(|address| is_free(&address.value))
    }
}

/// One section, or that there is none of this name.
pub enum Part {
    /// `[tenant.NAME]`.
    Tenant(String, Option<Box<TenantConfig>>),
    /// `[export.NAME]`.
    Export(String, Option<Box<ExportConfig>>),
}

impl Part {
    /// This thing in `alone`, a document of it alone. `None`: it is of another kind.
    pub fn of(kind: Kind, name: &str, alone: Config) -> Option<Part> {
        match kind {
            Kind::Tenant => Some(Part::Tenant(name.to_owned(), alone.tenants.into_iter().next().map(Box::new))),
            Kind::Export => Some(Part::Export(name.to_owned(), alone.exports.into_iter().next().map(Box::new))),
            Kind::Device | Kind::Group => None,
        }
    }
}

/// A section that is right.
pub enum Right {
    /// It has nothing in force: an export that goes, a tenant without exports.
    Nothing,
    /// The plan of the exports that it names, or of itself.
    Alone(Box<Plan>),
}

impl CachedConfig {
    /// Takes a config and its checked plan. `None`: it has groups, weights of exports, or another order.
    pub fn new(config: Config, plan: &Plan, files: &dyn Files) -> Option<CachedConfig> {
        let is_in_order = config.tenants.is_sorted_by(|one, other| one.name < other.name)
            && config.exports.is_sorted_by(|one, other| one.name < other.name);
        let has_weights = config.exports.iter().any(|export| export.weight.is_some());
        if !is_in_order || has_weights || !config.groups.all().is_empty() {
            return None;
        }
        let mut uses = Uses { claimed: Claimed::new(&config, files), ..Uses::default() };
        // The plan is in the config's order.
        for (export, found) in config.exports.iter().zip(plan.exports.values()) {
            let taken = uses.of(found, files);
            uses.add(export, taken);
        }
        let mut rest = config;
        let (tenants, exports) = (std::mem::take(&mut rest.tenants), std::mem::take(&mut rest.exports));
        Some(CachedConfig {
            tenants: tenants.into_iter().map(|tenant| (tenant.name.clone(), tenant)).collect(),
            exports: exports.into_iter().map(|export| (export.name.clone(), export)).collect(),
            rest,
            uses,
        })
    }

    /// A section instead of the one of its name, if it is right for certain.
    pub fn check(&mut self, part: &Part, files: &dyn Files) -> Option<Right> {
        match part {
            Part::Tenant(name, new) => {
                let exports = self.uses.of_tenant.get(name).filter(|exports| !exports.is_empty());
                match (exports, new) {
                    (None, _) => Some(Right::Nothing),
                    (Some(_), None) => None,
                    (Some(exports), Some(tenant)) => {
                        let exports = exports.iter().map(|export| self.exports[export].clone()).collect();
                        self.alone(tenant, exports, files).map(Right::Alone)
                    }
                }
            }
            Part::Export(name, None) => {
                let export = self.exports.get(name)?;
                let is_last = self.uses.ranges.get(&export.device.value).is_none_or(|ranges| ranges.len() == 1);
                (!is_last && self.leaves_nothing(export, &[])).then_some(Right::Nothing)
            }
            Part::Export(name, Some(export)) => {
                if export.weight.is_some() {
                    return None;
                }
                let tenant = self.tenants.get(&export.tenant.value)?;
                let plan = self.alone(tenant, vec![(**export).clone()], files)?;
                let taken = self.uses.of(plan.exports.values().next()?, files);
                let Some(old) = self.exports.get(name) else {
                    return self.uses.has_room(export, &taken).then_some(Right::Alone(plan));
                };
                // Another backing, or another access to it.
                let backing =
                    |export: &ExportConfig| (export.path.as_ref().map(|path| path.value.clone()), export.read_only);
                if (old.path.is_some() || export.path.is_some()) && backing(old) != backing(export) {
                    return None;
                }
                let texts: Vec<String> = export.addresses.iter().map(|address| address.value.to_string()).collect();
                if old.device.value != export.device.value || !self.leaves_nothing(old, &texts) {
                    return None;
                }
                // Its current state is not a collision.
                let before = self.uses.remove(old)?;
                let has_room = self.uses.has_room(export, &taken);
                self.uses.add(old, before);
                has_room.then_some(Right::Alone(plan))
            }
        }
    }

    /// Each address of an export is in `stay`, or has another export, or is in no section of its own.
    fn leaves_nothing(&self, export: &ExportConfig, stay: &[String]) -> bool {
        let mut all = export.addresses.iter().map(|address| address.value.to_string());
        all.all(|text| {
            stay.contains(&text) || self.uses.served.get(&text) != Some(&1) || !self.rest.trust.is_about(&text)
        })
    }

    /// A tenant and exports of it as a config of their own, with the devices that they name. `None`: they are not
    /// right, or there is something to be warned about.
    fn alone(&self, tenant: &TenantConfig, exports: Vec<ExportConfig>, files: &dyn Files) -> Option<Box<Plan>> {
        let names: BTreeSet<&str> = exports.iter().map(|export| &*export.device.value).collect();
        let texts: BTreeSet<String> =
            exports.iter().flat_map(|export| &export.addresses).map(|address| address.value.to_string()).collect();
        let devices = self.rest.devices.iter().filter(|device| names.contains(&*device.name)).cloned().collect();
        let config = Config {
            server: self.rest.server.clone(),
            trust: self.rest.trust.of(&|text| texts.contains(text)),
            control: self.rest.control.clone(),
            devices,
            groups: self.rest.groups.clone(),
            tenants: vec![tenant.clone()],
            exports,
            place: self.rest.place.clone(),
        };
        let plan = config.check_with(files, false).ok()?;
        plan.warnings.is_empty().then(|| Box::new(plan))
    }

    /// A section that was found to be right is so from now on.
    pub fn set(&mut self, part: Part, right: &Right, files: &dyn Files) {
        match part {
            Part::Tenant(name, None) => drop(self.tenants.remove(&name)),
            Part::Tenant(name, Some(tenant)) => drop(self.tenants.insert(name, *tenant)),
            Part::Export(name, new) => {
                if let Some(old) = self.exports.remove(&name) {
                    self.uses.remove(&old);
                }
                let found = match right {
                    Right::Alone(plan) => plan.exports.values().next(),
                    Right::Nothing => None,
                };
                if let (Some(export), Some(found)) = (new, found) {
                    let taken = self.uses.of(found, files);
                    self.uses.add(&export, taken);
                    self.exports.insert(name, *export);
                }
            }
        }
    }

    /// The whole config.
    #[cfg(test)]
    fn config(&self) -> Config {
        Config {
            tenants: self.tenants.values().cloned().collect(),
            exports: self.exports.values().cloned().collect(),
            ..self.rest.clone()
        }
    }
}

/// Bytes of a device, whichever.
fn range(start: u64, length: u64) -> Range {
    Range { device: 0, tenant: 0, start, end: start + length }
}

#[cfg(test)]
mod tests {
    use super::super::RealFiles;
    use super::super::difference::{Difference, Names};
    use super::*;
    use mqfq_blk::slots::Slot;
    use mqfq_control::Edit;
    use mqfq_control::document::Document;
    use mqfq_testing::Random;
    use serde_json::{Map, Value, json};

    /// Two devices, an export that stays, for there must be one, and one that may be the last of its device and
    /// address.
    const START: &str = "[control]
listen = \"unix:/2\"
[device.d]
kind = \"memory\"
size = \"1MiB\"
[device.e]
kind = \"memory\"
size = \"1MiB\"
[tenant.base]
[export.base]
device = \"d\"
tenant = \"base\"
offset = \"512KiB\"
nbd = \"unix:/base\"
[address.\"unix:/1\"]
tls = \"off\"
[export.kept]
device = \"e\"
tenant = \"base\"
offset = \"768KiB\"
size = \"4KiB\"
nbd = [\"unix:/base\", \"unix:/1\"]
[device.p]
kind = \"pool\"
folders = [\"@\"]
[export.pool]
device = \"p\"
tenant = \"base\"
path = \"@/pool\"
nbd = \"unix:/base\"
";

    fn keys(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// An edit of one of a few tenants and exports, right or wrong: names that are missing, ranges that overlap, keys
    /// that there are not.
    fn edit(random: &mut Random, folder: &str) -> Edit {
        let mut one_of = |most: u64| random.below(most);
        let name = ["a", "b", "c.d", "kept"][one_of(4) as usize].to_owned();
        let tenants =
            [json!({ "weight": 7 }), json!({}), json!({ "memory": "1MiB", "max-iops": 9 }), json!({ "no": 1 })];
        let tenant = keys(tenants[one_of(4) as usize].clone());
        let (device, whose) = (["d", "e"][one_of(2) as usize], ["a", "b", "c.d", "none"][one_of(4) as usize]);
        let (offset, size) = (one_of(8) * 4096, (1 + one_of(3)) * 4096);
        let addresses = ["unix:/0", "unix:/1", "unix:/2", "unix:/base", "tcp:127.0.0.1:7", "tcp:0.0.0.0:7"];
        // One address, or two.
        let (first, second) = (one_of(6) as usize, one_of(12) as usize);
        let nbd = if second < 6 && second != first {
            json!([addresses[first], addresses[second]])
        } else {
            json!(addresses[first])
        };
        let mut export = keys(json!({
            "device": device, "tenant": whose, "offset": offset, "size": size, "nbd": nbd, "shared": one_of(3) == 0,
        }));
        if one_of(3) == 0 {
            // Its own file mostly; another's, and another name of one, too.
            let file = ["a", "b", "c.d", "kept", "pool", "link", &name, &name, &name, &name, &name, &name]
                [one_of(12) as usize];
            export = keys(
                json!({ "device": "p", "tenant": whose, "path": format!("{folder}/{file}"), "nbd": export["nbd"] }),
            );
            if one_of(4) == 0 {
                export.insert("size".into(), json!(4096 * (1 + one_of(3))));
            }
        }
        let more = [json!({}), json!({ "vhost-user": "unix:/0" }), json!({ "weight": 7 }), json!({ "allow-uids": 7 })];
        export.extend(keys(more[(one_of(12) as usize).saturating_sub(8)].clone()));
        match one_of(6) {
            0 => Edit::Put(Kind::Tenant, name, tenant),
            1 => Edit::Patch(Kind::Tenant, name, tenant),
            2 => Edit::Delete(Kind::Tenant, name),
            3 => Edit::Put(Kind::Export, name, export),
            4 => Edit::Patch(Kind::Export, name, keys(json!({ "size": size, "read-only": one_of(2) == 0 }))),
            _ => Edit::Delete(Kind::Export, name),
        }
    }

    /// The debug text of a value, without the lines where it stands.
    fn without_lines(text: &str) -> String {
        let mut parts = text.split("line: ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |all, part| all + part.trim_start_matches(|digit: char| digit.is_ascii_digit()))
    }

    #[test]
    fn a_section_after_the_other_is_the_same_as_all_of_them_at_once() {
        let read = |document: &Document| Config::parse("config", &document.text().0);
        let folder = mqfq_testing::Folder::new();
        ["a", "b", "c.d", "kept", "pool"].iter().for_each(|name| drop(folder.file(name, 8192)));
        std::os::unix::fs::symlink(folder.join("a"), folder.join("link")).unwrap();
        let here = folder.path().display().to_string();
        let start = START.replace('@', &here);
        let mut document = Document::from_json(&Document::parse(&start).unwrap().to_json()).unwrap();
        let plan = |config: Config| config.check(&RealFiles);
        let first = read(&document).unwrap();
        // The plan that a server runs, which changes by the differences of sections.
        let mut runs = plan(first.clone()).unwrap();
        let mut names = Names::new(&runs);
        let mut kept = CachedConfig::new(first.clone(), &plan(first).unwrap(), &RealFiles).unwrap();
        let mut random = Random::new(7);
        let (mut taken, mut refused, mut long, mut backings) = (0, 0, 0, 0);
        for _ in 0..1500 {
            let edit = edit(&mut random, &here);
            let (kind, name) = edit.thing().unwrap();
            let Ok(whole) = document.edited(&edit) else { continue };
            let mut alone = Document::default();
            if let Some((_, keys)) = whole.things(kind).find(|(one, _)| *one == name) {
                alone = alone.edited(&Edit::Put(kind, name.to_owned(), keys)).unwrap();
            }
            let (alone, all) = (read(&alone), read(&whole));
            assert_eq!(alone.is_ok(), all.is_ok(), "what is wrong with a section is wrong with it alone");
            let (Ok(alone), Ok(all)) = (alone, all) else { continue };
            let before = format!("{:?}", kept.config());
            let part = Part::of(kind, name, alone).unwrap();
            let right = kept.check(&part, &RealFiles);
            assert_eq!(format!("{:?}", kept.config()), before, "a look changes nothing");
            match (right, plan(all.clone())) {
                (Some(right), Ok(plan)) if plan.warnings.is_empty() => {
                    if let Right::Alone(alone) = &right {
                        alone.exports.values().for_each(|export| is_in(&plan, alone, export));
                    }
                    let alone = match &right {
                        Right::Alone(alone) => Some(&**alone),
                        Right::Nothing => None,
                    };
                    let gone = (alone.is_none() && kind == Kind::Export).then_some(name);
                    let new = runs.difference_of(&names, alone, gone, &BTreeSet::new()).expect("devices stay");
                    let before = runs.clone();
                    let old = runs.exchange(&mut names, new);
                    assert_eq!(names, Names::new(&runs));
                    is_all_of(&runs, &plan);
                    // The way back ends where it began.
                    let new = runs.exchange(&mut names, old);
                    is_all_of(&runs, &before);
                    runs.exchange(&mut names, new);
                    assert_eq!(names, Names::new(&runs));
                    kept.set(part, &right, &RealFiles);
                    taken += 1;
                    backings += usize::from(format!("{edit:?}").contains("path"));
                    document = whole;
                    assert_eq!(without_lines(&format!("{:?}", kept.config())), without_lines(&format!("{all:?}")));
                }
                (Some(_), other) => panic!("{edit:?}: taken here, and there {other:?}"),
                // A server with warnings takes the long way.
                (None, Ok(plan))
                    if plan.warnings.is_empty() && CachedConfig::new(all.clone(), &plan, &RealFiles).is_some() =>
                {
                    let target = runs.aligned(&plan, &crate::config::TakenPlaces::default()).unwrap();
                    let new = Difference::between(&runs, &target);
                    runs.exchange(&mut names, new);
                    assert_eq!(names, Names::new(&runs));
                    is_all_of(&runs, &plan);
                    (kept, document) = (CachedConfig::new(all, &plan, &RealFiles).unwrap(), whole);
                    long += 1;
                }
                (None, _) => refused += 1,
            }
        }
        assert!(taken > 150 && refused > 150 && long < taken / 5, "{taken}, {long} the long way, {refused} refused");
        assert!(backings > 10, "{backings} backings came or changed");
    }

    /// Two plans have the same exports, flows, addresses and modes.
    fn is_all_of(runs: &Plan, plan: &Plan) {
        runs.exports.values().for_each(|export| is_in(plan, runs, export));
        let shown = |of: &Plan| {
            let flows = of.devices.values().flat_map(|device| device.flows.values());
            let mut flows: Vec<String> = flows.map(|flow| format!("{flow:?}")).collect();
            flows.sort();
            let name = |slot: &Slot| of.exports[*slot].name.clone();
            let offered = |slots: &Vec<Slot>| slots.iter().map(name).collect::<BTreeSet<String>>();
            let listeners: BTreeMap<String, _> =
                of.listeners.iter().map(|(address, slots)| (address.key(), offered(slots))).collect();
            (of.exports.len(), of.devices.len(), flows, listeners, of.trust.modes.clone())
        };
        assert_eq!(shown(runs), shown(plan));
    }

    /// An export of a plan is the same in another one, its flow and device too.
    fn is_in(whole: &Plan, alone: &Plan, export: &super::super::ExportPlan) {
        let other = whole.exports.values().find(|other| other.name == export.name).expect("it is there");
        let shown = |plan: &Plan, export: &super::super::ExportPlan| {
            let device = &plan.devices[export.device];
            let flow = format!("{:?} {:?} {}", device.flows[export.flow], device.config.name, device.size_bytes);
            let modes = export.addresses.iter().map(|address| plan.trust.modes[&address.to_string()]);
            let modes = modes.collect::<Vec<_>>();
            // A backing alone has another number than among others.
            let offset_bytes = if export.path.is_some() { 0 } else { export.offset_bytes };
            let slots = super::super::ExportPlan {
                device: Slot::first(0),
                flow: Slot::first(0),
                offset_bytes,
                ..export.clone()
            };
            without_lines(&format!("{slots:?} {flow} {modes:?}"))
        };
        assert_eq!(shown(alone, export), shown(whole, other));
    }
}
