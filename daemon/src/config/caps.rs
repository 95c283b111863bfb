//! `max-iops` and `max-bytes-per-s` of a tenant or an export: their reading, their differences, and the caps that a
//! running server has for them. docs/use/tenants.md has the meaning.

use super::plan::Plan;
use mqfq_blk::cap::{Cap, CapLimits, Capped, Caps};
use mqfq_blk::engine::Engine;
use mqfq_config::{ConfigError, Section};
use mqfq_observe::source::Limited;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests per second, of a tenant or an export.
pub const MAX_IOPS: &str = "max-iops";
/// Bytes per second of their reads and writes.
pub const MAX_BYTES_PER_S: &str = "max-bytes-per-s";
/// The keys, of tenants and exports alike.
pub const KEYS: [&str; 2] = [MAX_IOPS, MAX_BYTES_PER_S];

/// The caps in a section.
pub(super) fn read(section: &Section<'_, '_>) -> Result<CapLimits, ConfigError> {
    let [iops, bytes_per_s] = KEYS.map(|key| section.get(key));
    Ok(CapLimits {
        iops: iops.map(|iops| iops.number(CapLimits::IOPS)).transpose()?,
        bytes_per_s: bytes_per_s.map(|bytes| bytes.size(CapLimits::BYTES_PER_S)).transpose()?,
    })
}

/// The owner of a cap, by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CapOwner {
    /// A tenant.
    Tenant(String),
    /// An export.
    Export(String),
}

/// The caps that a plan names.
fn limits(plan: &Plan) -> BTreeMap<CapOwner, CapLimits> {
    let flows = plan.devices.values().flat_map(|device| device.flows.values());
    let tenants = flows.map(|flow| (CapOwner::Tenant(flow.tenant.clone()), flow.caps));
    let exports = plan.exports.values().map(|export| (CapOwner::Export(export.name.clone()), export.caps));
    tenants.chain(exports).collect()
}

/// The caps of a running server. Each tenant and export has one, with limits or without.
pub struct LiveCaps(BTreeMap<CapOwner, Arc<Cap>>);

impl LiveCaps {
    /// The caps of a plan, with nothing used.
    pub fn new(plan: &Plan) -> LiveCaps {
        LiveCaps(limits(plan).into_iter().map(|(owner, limits)| (owner, Cap::new(limits))).collect())
    }

    /// The caps that the clients of an export pass.
    pub fn of(&self, export: &str, tenant: &str) -> Arc<Caps> {
        let cap = |owner| self.0.get(&owner).cloned().unwrap_or_else(|| Cap::new(CapLimits::NONE));
        Caps::new(cap(CapOwner::Export(export.to_owned())), cap(CapOwner::Tenant(tenant.to_owned())))
    }

    /// The limits of a tenant. `None`: there is no such tenant.
    pub fn limits_of(&self, tenant: &str) -> Option<CapLimits> {
        self.0.get(&CapOwner::Tenant(tenant.to_owned())).map(|cap| cap.limits())
    }

    /// Sets the limits of an owner that has a cap.
    pub fn set(&self, engine: &Engine, owner: &CapOwner, limits: CapLimits) {
        if let Some(cap) = self.0.get(owner).filter(|cap| cap.limits() != limits) {
            engine.set_cap(cap, limits);
        }
    }

    /// Adds an owner's cap. True: it had none.
    pub fn add(&mut self, owner: CapOwner, limits: CapLimits) -> bool {
        let count = self.0.len();
        self.0.entry(owner).or_insert_with(|| Cap::new(limits));
        self.0.len() > count
    }

    /// Removes an owner's cap.
    pub fn remove(&mut self, owner: &CapOwner) {
        self.0.remove(owner);
    }

    /// Each owner in `plan` has a cap with its limits, and no other has one.
    #[cfg(debug_assertions)]
    pub fn are_of(&self, plan: &Plan) -> bool {
        let limits = limits(plan);
        self.0.len() == limits.len() && self.0.iter().all(|(owner, cap)| limits.get(owner) == Some(&cap.limits()))
    }
}

/// A cap, and its owner: name of the flow or, for a tenant whose exports have weights, of all its flows together.
struct WatchedCap {
    tenant: String,
    cap: Arc<Cap>,
}

/// The limits of all caps of a running server, for its observers. Clones are of one list.
#[derive(Clone, Default)]
pub struct WatchedCaps(Arc<Mutex<BTreeMap<CapOwner, WatchedCap>>>);

impl WatchedCaps {
    fn all(&self) -> MutexGuard<'_, BTreeMap<CapOwner, WatchedCap>> {
        // It is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the cap of `owner` in `caps`, for the flow or tenant of this name.
    pub fn add(&self, caps: &LiveCaps, owner: CapOwner, tenant: &str) {
        if let Some(cap) = caps.0.get(&owner) {
            self.all().insert(owner, WatchedCap { tenant: tenant.to_owned(), cap: cap.clone() });
        }
    }

    /// Removes a cap.
    pub fn remove(&self, owner: &CapOwner) {
        self.all().remove(owner);
    }

    /// The limits of each owner, with the name of its flow or tenant.
    pub fn limits(&self) -> BTreeMap<CapOwner, (String, CapLimits)> {
        let of = |(owner, watched): (&CapOwner, &WatchedCap)| {
            (owner.clone(), (watched.tenant.clone(), watched.cap.limits()))
        };
        self.all().iter().map(of).collect()
    }

    /// Time for which each cap has held its tenant back until now, if it has.
    pub fn waited(&self, now_ns: u64) -> Vec<Limited> {
        let of = |(owner, WatchedCap { tenant, cap }): (&CapOwner, &WatchedCap)| {
            let export = match owner {
                CapOwner::Tenant(_) => None,
                CapOwner::Export(export) => Some(export.clone()),
            };
            let limits = [(MAX_IOPS, Capped::Iops), (MAX_BYTES_PER_S, Capped::Bytes)];
            let limited = |(key, limit): (&str, Capped)| {
                let waited_ns = cap.held_ns(limit, now_ns);
                let (tenant, export, key) = (tenant.clone(), export.clone(), key.to_owned());
                (waited_ns > 0).then_some(Limited { tenant, export, key, waited_ns })
            };
            limits.map(limited)
        };
        self.all().iter().flat_map(of).flatten().collect()
    }
}

/// The text of a report of changes.
pub fn shown(limits: CapLimits) -> String {
    let iops = limits.iops.map(|iops| format!("{iops} requests/s"));
    let bytes = limits.bytes_per_s.map(|bytes| format!("{}/s", mqfq_config::size::display(bytes)));
    let both: Vec<String> = iops.into_iter().chain(bytes).collect();
    if both.is_empty() { "none".to_owned() } else { both.join(" and ") }
}

/// The limits that are set, by key.
pub fn in_force(limits: CapLimits) -> impl Iterator<Item = (String, Value)> {
    let of = |(key, limit): (&str, Option<u64>)| Some((key.to_owned(), limit?.into()));
    [(MAX_IOPS, limits.iops), (MAX_BYTES_PER_S, limits.bytes_per_s)].into_iter().filter_map(of)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, RealFiles};
    use super::*;

    const CAPPED: &str = "[device.fast]
kind = \"null\"
size = \"1MiB\"
[tenant.a]
max-iops = 500
[tenant.b]
[export.a]
device = \"fast\"
tenant = \"a\"
size = \"256KiB\"
max-bytes-per-s = \"10MiB\"
nbd = \"unix:/a\"
[export.b]
device = \"fast\"
tenant = \"b\"
offset = \"512KiB\"
nbd = \"unix:/b\"
";

    fn plan(text: &str) -> Result<Plan, String> {
        Config::parse("c.toml", text).and_then(|config| config.check(&RealFiles)).map_err(|error| error.to_string())
    }

    #[test]
    fn caps_are_read_and_wrong_ones_are_refused_in_a_sentence() {
        let all = limits(&plan(CAPPED).unwrap());
        let capped = |iops, bytes_per_s| CapLimits { iops, bytes_per_s };
        assert_eq!(all[&CapOwner::Tenant("a".into())], capped(Some(500), None));
        assert_eq!(all[&CapOwner::Export("a".into())], capped(None, Some(10 << 20)));
        assert_eq!(all[&CapOwner::Tenant("b".into())], CapLimits::NONE);
        assert_eq!(all.len(), 4);
        let refused = |from: &str, to: &str| plan(&CAPPED.replacen(from, to, 1)).unwrap_err();
        assert_eq!(
            refused("max-iops = 500", "max-iops = 0"),
            "c.toml:5: tenant.a.max-iops: 0 is out of range, allowed is 1 to 100000000"
        );
        assert_eq!(
            refused("\"10MiB\"", "\"1KiB\""),
            "c.toml:11: export.a.max-bytes-per-s: \"1KiB\" is out of range, allowed is 4KiB to 128GiB"
        );
    }

    #[test]
    fn caps_are_those_of_a_plan_if_each_has_its_limits() {
        let running = LiveCaps::new(&plan(CAPPED).unwrap());
        let is_of = |from: &str, to: &str| running.are_of(&plan(&CAPPED.replacen(from, to, 1)).unwrap());
        assert!(is_of("[tenant.b]", "[tenant.b]\nweight = 7"));
        for (from, to) in [("500", "501"), ("[tenant.b]", "[tenant.b]\nmax-iops = 9"), ("10MiB", "11MiB")] {
            assert!(!is_of(from, to), "{to}");
        }
    }

    #[test]
    fn a_watched_cap_has_the_name_of_its_flow() {
        let (running, watched) = (LiveCaps::new(&plan(CAPPED).unwrap()), WatchedCaps::default());
        let owners = [(CapOwner::Tenant("a".into()), "a"), (CapOwner::Export("a".into()), "a/a")];
        owners.iter().for_each(|(owner, name)| watched.add(&running, owner.clone(), name));
        let limits = watched.limits();
        owners.iter().for_each(|(owner, name)| assert_eq!(limits[owner].0, *name));
    }

    #[test]
    fn a_change_is_shown_in_words() {
        assert_eq!(shown(CapLimits::NONE), "none");
        assert_eq!(shown(CapLimits { iops: Some(5), bytes_per_s: Some(3 << 20) }), "5 requests/s and 3MiB/s");
    }
}
