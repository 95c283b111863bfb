//! `max-iops` and `max-bytes-per-s` of a tenant or an export: how they are read, what of them differs, and the caps
//! that stand for them while the server runs. docs/use/caps.md has the meaning.

use super::{ConfigError, ExportPlan, Plan};
use mqfq_blk::cap::{Cap, CapLimits, Capped, Caps};
use mqfq_blk::engine::Engine;
use mqfq_config::Section;
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

/// Those that are others in `new` than in `old`, of who is in both; what they were and what they are to be.
pub fn changed(old: &Plan, new: &Plan) -> Vec<(Whose, CapLimits, CapLimits)> {
    let old = limits(old);
    let changed = |(whose, to): (Whose, CapLimits)| {
        let from = *old.get(&whose)?;
        (from != to).then_some((whose, from, to))
    };
    limits(new).into_iter().filter_map(changed).collect()
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

    /// What a tenant may do. `None`: there is no such tenant.
    pub fn limits_of(&self, tenant: &str) -> Option<CapLimits> {
        self.0.get(&Whose::Tenant(tenant.to_owned())).map(|cap| cap.limits())
    }

    /// Has one for each tenant and export of `plan` as well.
    pub fn add(&mut self, plan: &Plan) {
        for (whose, limits) in limits(plan) {
            self.0.entry(whose).or_insert_with(|| Cap::new(limits));
        }
    }

    /// From now on somebody who is there may do what `limits` say.
    pub fn set(&self, engine: &Engine, whose: &Whose, limits: CapLimits) {
        if let Some(cap) = self.0.get(whose).filter(|cap| cap.limits() != limits) {
            engine.set_cap(cap, limits);
        }
    }

    /// Has one for somebody as well. True: it had none.
    pub fn come(&mut self, whose: Whose, limits: CapLimits) -> bool {
        let count = self.0.len();
        self.0.entry(whose).or_insert_with(|| Cap::new(limits));
        self.0.len() > count
    }

    /// Has none for somebody.
    pub fn go(&mut self, whose: &Whose) {
        self.0.remove(whose);
    }

    /// There is one for each whom `plan` names, with its limits, and no other.
    #[cfg(debug_assertions)]
    pub fn are_of(&self, plan: &Plan) -> bool {
        let limits = limits(plan);
        self.0.len() == limits.len() && self.0.iter().all(|(whose, cap)| limits.get(whose) == Some(&cap.limits()))
    }

    /// From now on they allow what `plan` says, and there are no others.
    pub fn follow(&mut self, engine: &Engine, plan: &Plan) {
        self.add(plan);
        let limits = limits(plan);
        self.0.retain(|whose, _| limits.contains_key(whose));
        for (whose, cap) in &self.0 {
            if limits.get(whose).is_some_and(|limits| *limits != cap.limits()) {
                engine.set_cap(cap, limits[whose]);
            }
        }
    }
}

/// A cap, and whose it is: name of the flow or, of a tenant whose exports have weights, of all its flows together.
struct WatchedCap {
    tenant: String,
    cap: Arc<Cap>,
}

/// The limits of all caps of a running server, for who watches it. Clones are of one list.
#[derive(Clone, Default)]
pub struct WatchedCaps(Arc<Mutex<BTreeMap<Whose, WatchedCap>>>);

impl WatchedCaps {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Whose, WatchedCap>> {
        // It is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of `caps` as well, which somebody of the flow or tenant of this name has.
    pub fn come(&self, caps: &LiveCaps, whose: Whose, tenant: &str) {
        if let Some(cap) = caps.0.get(&whose) {
            self.all().insert(whose, WatchedCap { tenant: tenant.to_owned(), cap: cap.clone() });
        }
    }

    /// One less.
    pub fn go(&self, whose: &Whose) {
        self.all().remove(whose);
    }

    /// From now on they are those of `caps`, whose exports and tenants are the plan's.
    pub fn follow(&self, caps: &LiveCaps, plan: &Plan) {
        let flow = |export: &ExportPlan| plan.devices[export.device].flows[export.flow].name();
        let flow_of: BTreeMap<&str, String> =
            plan.exports.values().map(|export| (export.name.as_str(), flow(export))).collect();
        let watched = |(whose, cap): (&Whose, &Arc<Cap>)| {
            let tenant = match whose {
                Whose::Tenant(tenant) => tenant.clone(),
                Whose::Export(export) => flow_of.get(export.as_str())?.clone(),
            };
            Some((whose.clone(), WatchedCap { tenant, cap: cap.clone() }))
        };
        *self.all() = caps.0.iter().filter_map(watched).collect();
    }

    /// What each allows, with the name of its flow or tenant.
    pub fn limits(&self) -> BTreeMap<Whose, (String, CapLimits)> {
        let of =
            |(whose, watched): (&Whose, &WatchedCap)| (whose.clone(), (watched.tenant.clone(), watched.cap.limits()));
        self.all().iter().map(of).collect()
    }

    /// How long they have held tenants back until now, of each that has.
    pub fn waited(&self, now_ns: u64) -> Vec<Limited> {
        let of = |(whose, WatchedCap { tenant, cap }): (&Whose, &WatchedCap)| {
            let export = match whose {
                Whose::Tenant(_) => None,
                Whose::Export(export) => Some(export.clone()),
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
        let changes = |from: &str, to: &str| changed(&old, &plan(&CAPPED.replacen(from, to, 1)).unwrap());
        assert_eq!(changes("[device", "# the same\n[device"), []);
        let of = |iops, bytes_per_s| CapLimits { iops, bytes_per_s };
        let (tenant, export) = (|name: &str| Whose::Tenant(name.into()), |name: &str| Whose::Export(name.into()));
        assert_eq!(changes("max-iops = 500", "max-iops = 9"), [(tenant("a"), of(Some(500), None), of(Some(9), None))]);
        let less = changes("max-bytes-per-s = \"10MiB\"\n", "");
        assert_eq!(less, [(export("a"), of(None, Some(10 << 20)), CapLimits::NONE)]);
        let more = changes("tenant = \"b\"", "tenant = \"b\"\nmax-iops = 9");
        assert_eq!(more, [(export("b"), CapLimits::NONE, of(Some(9), None))]);
        assert_eq!(changes("[tenant.b]", "[tenant.c]\n[tenant.b]"), [], "who comes has no other caps than before");
    }

    #[test]
    fn a_change_is_shown_in_words() {
        assert_eq!(shown(CapLimits::NONE), "none");
        assert_eq!(shown(CapLimits { iops: Some(5), bytes_per_s: Some(3 << 20) }), "5 requests/s and 3MiB/s");
    }
}
