//! `max-iops` and `max-bytes-per-s` of a tenant or an export: how they are read, what of them differs, and the caps
//! that stand for them while the server runs. docs/use/caps.md has the meaning.

use super::{ConfigError, Plan};
use mqfq_blk::cap::{Cap, CapLimits, Capped, Caps};
use mqfq_blk::engine::Engine;
use mqfq_blk::slots::{Slot, Slots};
use mqfq_config::Section;
use serde_json::Value;
use mqfq_observe::source::Limited;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The keys, of tenants and exports alike.
pub(super) const MAX_IOPS: &str = "max-iops";
pub(super) const MAX_BYTES_PER_S: &str = "max-bytes-per-s";
pub(super) const KEYS: [&str; 2] = [MAX_IOPS, MAX_BYTES_PER_S];

/// The caps in a section.
pub(super) fn read(section: &Section<'_, '_>) -> Result<CapLimits, ConfigError> {
    let [iops, bytes_per_s] = KEYS.map(|key| section.get(key));
    Ok(CapLimits {
        iops: iops.map(|iops| iops.number(CapLimits::IOPS)).transpose()?,
        bytes_per_s: bytes_per_s.map(|bytes| bytes.size(CapLimits::BYTES_PER_S)).transpose()?,
    })
}

/// Whose cap is meant, by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Whose {
    /// A tenant.
    Tenant(String),
    /// An export.
    Export(String),
}

/// The caps that a plan names.
fn limits(plan: &Plan) -> BTreeMap<Whose, CapLimits> {
    let flows = plan.devices.values().flat_map(|device| device.flows.values());
    let tenants = flows.map(|flow| (Whose::Tenant(flow.tenant.clone()), flow.caps));
    let exports = plan.exports.values().map(|export| (Whose::Export(export.name.clone()), export.caps));
    tenants.chain(exports).collect()
}

/// Those of `new`, of the same tenants and exports as `old`, that are not the same.
pub(super) fn changed(old: &Plan, new: &Plan) -> Vec<(Whose, CapLimits)> {
    let old = limits(old);
    limits(new).into_iter().filter(|(whose, limits)| old.get(whose) != Some(limits)).collect()
}

fn slots<T>(all: &Slots<T>) -> Vec<Slot> {
    all.iter().map(|(slot, _)| slot).collect()
}

impl Plan {
    /// From now on this one has these caps.
    pub fn set_caps(&mut self, whose: &Whose, limits: CapLimits) {
        match whose {
            Whose::Tenant(tenant) => {
                for device in slots(&self.devices) {
                    let flows = &mut self.devices[device].flows;
                    for flow in
                        slots(flows).into_iter().filter(|flow| flows[*flow].tenant == *tenant).collect::<Vec<_>>()
                    {
                        flows[flow].caps = limits;
                    }
                }
            }
            Whose::Export(name) => {
                let named = self.exports.iter().find(|(_, export)| export.name == *name).map(|(slot, _)| slot);
                named.into_iter().for_each(|slot| self.exports[slot].caps = limits);
            }
        }
    }
}

/// The caps of a running server. Each tenant and export has one, with limits or without.
pub struct LiveCaps(BTreeMap<Whose, Arc<Cap>>);

impl LiveCaps {
    /// Those of a plan, with nothing used.
    pub fn new(plan: &Plan) -> LiveCaps {
        LiveCaps(limits(plan).into_iter().map(|(whose, limits)| (whose, Cap::new(limits))).collect())
    }

    /// What the clients of an export pass.
    pub fn of(&self, export: &str, tenant: &str) -> Arc<Caps> {
        let cap = |whose| self.0.get(&whose).cloned().unwrap_or_else(|| Cap::new(CapLimits::NONE));
        Caps::new(cap(Whose::Export(export.to_owned())), cap(Whose::Tenant(tenant.to_owned())))
    }

    /// What this one allows.
    pub fn of_whom(&self, whose: &Whose) -> CapLimits {
        self.0.get(whose).map_or(CapLimits::NONE, |cap| cap.limits())
    }

    /// From now on this one allows `limits`.
    pub fn set(&self, engine: &Engine, whose: &Whose, limits: CapLimits) {
        if let Some(cap) = self.0.get(whose) {
            engine.set_cap(cap, limits);
        }
    }
}

/// One limit of a cap, and whose it is.
pub struct WatchedCap {
    tenant: String,
    key: &'static str,
    cap: Arc<Cap>,
    limit: Capped,
}

impl WatchedCap {
    /// How long it has held its tenant back.
    pub fn waited(&self) -> Limited {
        let WatchedCap { tenant, key, cap, limit } = self;
        Limited { tenant: tenant.clone(), key: (*key).to_owned(), waited_ns: cap.waits(*limit).wait_ns }
    }
}

impl LiveCaps {
    /// All of them, to be watched. `tenant_of`: exports and their tenants.
    pub fn watched(&self, tenant_of: &[(String, String)]) -> Vec<WatchedCap> {
        let limits = [(MAX_IOPS, Capped::Iops), (MAX_BYTES_PER_S, Capped::Bytes)];
        let tenant = |whose: &Whose| match whose {
            Whose::Tenant(tenant) => Some(tenant.clone()),
            Whose::Export(export) => Some(tenant_of.iter().find(|(name, _)| name == export)?.1.clone()),
        };
        let whole = |(whose, cap): (&Whose, &Arc<Cap>)| Some((tenant(whose)?, cap.clone()));
        let both = |(tenant, cap): (String, Arc<Cap>)| {
            limits.map(|(key, limit)| WatchedCap { tenant: tenant.clone(), key, cap: cap.clone(), limit })
        };
        self.0.iter().filter_map(whole).flat_map(both).collect()
    }
}

/// As a report of changes shows it.
pub fn shown(limits: CapLimits) -> String {
    let iops = limits.iops.map(|iops| format!("{iops} requests/s"));
    let bytes = limits.bytes_per_s.map(|bytes| format!("{}/s", mqfq_config::size::display(bytes)));
    let both: Vec<String> = iops.into_iter().chain(bytes).collect();
    if both.is_empty() { "none".to_owned() } else { both.join(" and ") }
}

/// What is in force, by key.
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
        assert_eq!(all[&Whose::Tenant("a".into())], capped(Some(500), None));
        assert_eq!(all[&Whose::Export("a".into())], capped(None, Some(10 << 20)));
        assert_eq!(all[&Whose::Tenant("b".into())], CapLimits::NONE);
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
    fn only_caps_that_differ_are_changed() {
        let old = plan(CAPPED).unwrap();
        let changes =
            |from: &str, to: &str| old.changes_to(&plan(&CAPPED.replacen(from, to, 1)).unwrap()).unwrap().caps;
        assert_eq!(changes("[device", "# the same\n[device"), []);
        let to = CapLimits { iops: Some(9), bytes_per_s: None };
        assert_eq!(changes("max-iops = 500", "max-iops = 9"), [(Whose::Tenant("a".into()), to)]);
        assert_eq!(changes("max-bytes-per-s = \"10MiB\"\n", ""), [(Whose::Export("a".into()), CapLimits::NONE)]);
        assert_eq!(changes("tenant = \"b\"", "tenant = \"b\"\nmax-iops = 9"), [(Whose::Export("b".into()), to)]);
    }

    #[test]
    fn a_change_is_shown_in_words() {
        assert_eq!(shown(CapLimits::NONE), "none");
        assert_eq!(shown(CapLimits { iops: Some(5), bytes_per_s: Some(3 << 20) }), "5 requests/s and 3MiB/s");
    }
}
