//! The hierarchy: groups above tenants, and a tenant above its exports.
//!
//! Answers: which flows and which groups of flows does a device have? A tenant is one flow on each of its devices. If
//! one of its exports has a weight, each of its exports is a flow instead, and the tenant the group that they are in.
//!
//! ```text
//!   [group.acme]                     group acme
//!   [tenant.shop]  group = "acme"     ├── group shop     a tenant whose exports have weights
//!   [export.db]    weight = 300       │    ├── flow db
//!   [export.logs]                     │    └── flow logs
//!   [tenant.mail]  group = "acme"     └── flow mail      a tenant whose exports have none
//! ```
//! A device has only the groups of tenants with an export there.

use super::keys::known;
use super::model::{DeviceConfig, ExportConfig, TenantConfig};
use super::plan::{DevicePlan, GroupPlan, Range};
use mqfq_blk::{Group, GroupId, Tree};
use mqfq_blk::{PolicyKind, Weight};
use mqfq_config::ConfigError;
use mqfq_config::groups::Groups;
use mqfq_config::text::shown;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The groups of a device and their members, as the engine takes them.
pub fn tree(groups: &[GroupPlan], of_flow: impl Iterator<Item = Option<GroupId>>) -> Tree {
    let group = |group: &GroupPlan| Group { weight: group.weight, parent: group.parent };
    Tree { groups: groups.iter().map(group).collect(), of_flow: of_flow.collect() }
}

/// A line of the picture of a device's groups.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Relative {
    /// `group NAME`, `tenant NAME` or `export NAME`.
    pub name: String,
    /// Number of groups above it.
    pub depth: usize,
    /// Its weight.
    pub weight: u16,
    /// Its part of the device while all compete.
    pub share: f64,
}

/// The groups of a device and their members, from the top. Empty: it has no groups.
pub fn relatives(device: &DevicePlan) -> Vec<Relative> {
    let mut lines = Vec::new();
    if !device.groups.is_empty() {
        push_relatives(device, None, 0, 1.0, &mut lines);
    }
    lines
}

fn push_relatives(device: &DevicePlan, parent: Option<GroupId>, depth: usize, share: f64, lines: &mut Vec<Relative>) {
    let groups = || (0..).map(GroupId).zip(&device.groups).filter(move |(_, group)| group.parent == parent);
    let flows = || device.flows.values().filter(move |flow| flow.group == parent);
    let of_groups = groups().map(|(_, group)| group.weight.get());
    let all: f64 = of_groups.chain(flows().map(|flow| flow.weight.get())).map(f64::from).sum();
    let line = |name, weight: Weight| {
        let weight = weight.get();
        Relative { name, depth, weight, share: share * f64::from(weight) / all }
    };
    for (number, group) in groups() {
        let own = line(group.called(), group.weight);
        let share = own.share;
        lines.push(own);
        push_relatives(device, Some(number), depth + 1, share, lines);
    }
    for flow in flows() {
        let name = match &flow.export {
            Some(export) => format!("export {}", shown(export)),
            None => format!("tenant {}", shown(&flow.tenant)),
        };
        lines.push(line(name, flow.weight));
    }
}

/// A flow to be: a tenant, or one export of it, by their numbers in the config.
pub(super) struct Member {
    pub(super) tenant: usize,
    pub(super) export: Option<usize>,
    pub(super) group: Option<GroupId>,
}

/// All families of a config.
pub(super) struct Families<'a> {
    groups: &'a Groups,
    tenants: &'a [TenantConfig],
    /// Exports by tenant and device, for tenants whose exports are flows.
    exports: BTreeMap<(usize, usize), Vec<usize>>,
    /// Tenants whose exports are flows.
    pub(super) split: Vec<bool>,
}

impl<'a> Families<'a> {
    pub(super) fn new(
        groups: &'a Groups,
        tenants: &'a [TenantConfig],
        exports: &[ExportConfig],
        ranges: &[Range],
    ) -> Families<'a> {
        let mut split = vec![false; tenants.len()];
        for (export, range) in exports.iter().zip(ranges) {
            split[range.tenant] |= export.weight.is_some();
        }
        let mut by_place: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (export, range) in ranges.iter().enumerate().filter(|(_, range)| split[range.tenant]) {
            by_place.entry((range.tenant, range.device)).or_default().push(export);
        }
        Families { groups, tenants, exports: by_place, split }
    }

    /// The groups of a device that these tenants use, and its flows.
    pub(super) fn on(&self, device: usize, tenants: &BTreeSet<usize>) -> (Vec<GroupPlan>, Vec<Member>) {
        let mut is_used = vec![false; self.groups.all().len()];
        for tenant in tenants {
            let mut group = self.tenants[*tenant].group;
            while let Some(used) = group {
                is_used[used] = true;
                group = self.groups.all()[used].parent;
            }
        }
        let mut plans: Vec<GroupPlan> = Vec::new();
        // Indexed by number in the config. A parent comes before its children there, and so here.
        let mut numbers = vec![None; is_used.len()];
        for (index, group) in self.groups.all().iter().enumerate().filter(|(index, _)| is_used[*index]) {
            numbers[index] = Some(GroupId(plans.len() as u32));
            let weight = group.weight.map_or(Weight::DEFAULT, |weight| Weight::new(weight).expect("in range"));
            let parent = group.parent.and_then(|parent| numbers[parent]);
            plans.push(GroupPlan { name: group.name.clone(), is_tenant: false, weight, parent });
        }
        let mut members = Vec::new();
        for &tenant in tenants {
            let TenantConfig { name, weight, group, .. } = &self.tenants[tenant];
            let parent = group.and_then(|group| numbers[group]);
            let Some(exports) = self.exports.get(&(tenant, device)) else {
                members.push(Member { tenant, export: None, group: parent });
                continue;
            };
            let own = Some(GroupId(plans.len() as u32));
            plans.push(GroupPlan { name: name.clone(), is_tenant: true, weight: *weight, parent });
            members.extend(exports.iter().map(|&export| Member { tenant, export: Some(export), group: own }));
        }
        (plans, members)
    }
}

/// Refuses groups on a device whose policy, or its fallback, has none.
pub(super) fn refuse_unable(device: &DeviceConfig, groups: &[GroupPlan]) -> Result<(), ConfigError> {
    let Some(group) = groups.first() else { return Ok(()) };
    let kinds = [Some(device.policy.options(1)), device.policy.fallback(1)].map(|of| of.map(|policy| policy.kind));
    let unable = kinds.into_iter().flatten().find(|kind| !kind.has_groups());
    match unable {
        None => Ok(()),
        Some(kind) => {
            let why = match group.is_tenant {
                true => format!("exports of {} have weights", group.called()),
                false => format!("its tenants are in {}", group.called()),
            };
            Err(device.place.error(format!(
                "{why}, and policy {kind} knows no groups and no weights of exports, allowed with them are {}",
                known().additions.policies.which(PolicyKind::has_groups)
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, RealFiles};
    use super::*;

    const FAMILY: &str = "[device.fast]
kind = \"null\"
size = \"1MiB\"
policy = \"mqfq\"
[group.shops]
group = \"acme\"
[group.acme]
weight = 300
[group.nobody]
[tenant.shop]
group = \"shops\"
[tenant.mail]
group = \"acme\"
weight = 200
[tenant.other]
[export.db]
device = \"fast\"
tenant = \"shop\"
weight = 300
size = \"64KiB\"
nbd = \"unix:/db\"
[export.logs]
device = \"fast\"
tenant = \"shop\"
offset = \"64KiB\"
size = \"64KiB\"
nbd = \"unix:/logs\"
[export.mail]
device = \"fast\"
tenant = \"mail\"
offset = \"128KiB\"
size = \"64KiB\"
nbd = \"unix:/mail\"
[export.other]
device = \"fast\"
tenant = \"other\"
offset = \"192KiB\"
nbd = \"unix:/other\"
";

    fn plan(text: &str) -> Result<super::super::Plan, String> {
        Config::parse("c.toml", text).and_then(|config| config.check(&RealFiles)).map_err(|error| error.to_string())
    }

    fn refusal(from: &str, to: &str) -> String {
        assert!(FAMILY.contains(from), "{from}");
        plan(&FAMILY.replacen(from, to, 1)).expect_err("the change is wrong")
    }

    #[test]
    fn tenants_are_in_groups_and_exports_with_weights_in_their_tenant() {
        let plan = plan(FAMILY).unwrap();
        let device = plan.devices.values().next().unwrap();
        let told: Vec<_> = relatives(device)
            .into_iter()
            .map(|of| (of.depth, of.name, of.weight, (of.share * 1e4).round() as u32))
            .collect();
        let line = |depth, name: &str, weight, share| (depth, name.to_owned(), weight, share);
        // acme has 3/4, of which mail 2/3; shop has the third of its group, db three quarters of that.
        assert_eq!(
            told,
            [
                line(0, "group acme", 300, 7500),
                line(1, "group shops", 100, 2500),
                line(2, "tenant shop", 100, 2500),
                line(3, "export db", 300, 1875),
                line(3, "export logs", 100, 625),
                line(1, "tenant mail", 200, 5000),
                line(0, "tenant other", 100, 2500),
            ]
        );
        let flows: Vec<String> = device.flows.values().map(super::super::FlowPlan::name).collect();
        assert_eq!(flows, ["shop/db", "shop/logs", "mail", "other"]);
        let own = |export: &super::super::ExportPlan| device.flows[export.flow].name();
        assert_eq!(plan.exports.values().map(own).collect::<Vec<_>>(), flows);
    }

    #[test]
    fn each_group_is_shown_with_its_members() {
        let plan = plan(&FAMILY.replacen("[tenant.other]", "[tenant.other]\ngroup = \"nobody\"", 1)).unwrap();
        let lines = relatives(plan.devices.values().next().unwrap()).into_iter();
        let told: Vec<_> = lines.filter(|of| of.depth == 0 || of.name == "tenant other").map(|of| of.name).collect();
        assert_eq!(told, ["group acme", "group nobody", "tenant other"]);
    }

    #[test]
    fn without_groups_and_weights_of_exports_a_tenant_is_one_flow_in_no_group() {
        let text = FAMILY.replacen("weight = 300\nsize", "size", 1).replace("group = \"", "# \"");
        let plan = plan(&text).unwrap();
        let device = plan.devices.values().next().unwrap();
        assert_eq!((device.flows.len(), device.groups.len(), relatives(device).len()), (3, 0, 0));
        assert!(tree(&device.groups, device.flows.values().map(|flow| flow.group)).is_empty());
    }

    #[test]
    fn what_does_not_go_is_refused_in_a_sentence() {
        assert_eq!(
            refusal("policy = \"mqfq\"", "policy = \"bfq\""),
            "c.toml:1: device.fast: its tenants are in group acme, and policy bfq knows no groups and no weights of exports, \
             allowed with them are mqfq, mqfq-serial and sfqd"
        );
        assert_eq!(
            refusal("group = \"acme\"\nweight = 200", "group = \"acne\""),
            "c.toml:13: tenant.mail.group: there is no group \"acne\", defined are acme, nobody, shops; did you mean acme?"
        );
        assert_eq!(
            refusal("[group.nobody]", "[group.nobody]\ngroup = \"shops\""),
            "c.toml:9: group.nobody.group: it lies 3 groups deep, allowed are 2 groups in each other"
        );
        assert_eq!(
            refusal("tenant = \"shop\"\nweight = 300", "tenant = \"shop\"\nweight = 10001"),
            "c.toml:19: export.db.weight: 10001 is out of range, allowed is 1 to 10000"
        );
    }

    #[test]
    fn weights_and_groups_change_at_each_level_and_groups_that_stay_keep_their_numbers() {
        let old = plan(FAMILY).unwrap();
        let groups = |from: &str, to: &str| {
            assert!(FAMILY.contains(from), "{from}");
            let aligned = old
                .aligned(&plan(&FAMILY.replacen(from, to, 1)).unwrap(), &crate::config::TakenPlaces::default())
                .unwrap();
            let device = aligned.devices.values().next().unwrap();
            let parents = device.groups.iter().map(|group| group.parent.map(|parent| parent.0));
            (device.groups.iter().map(|group| group.weight.get()).collect::<Vec<_>>(), parents.collect::<Vec<_>>())
        };
        let parents = vec![None, Some(0), Some(1)];
        assert_eq!(groups("[device", "# the same\n[device"), (vec![300, 100, 100], parents.clone()));
        let of_acme = groups("[group.acme]\nweight = 300", "[group.acme]\nweight = 50");
        assert_eq!(of_acme, (vec![50, 100, 100], parents.clone()));
        assert_eq!(groups("[tenant.shop]", "[tenant.shop]\nweight = 7"), (vec![300, 100, 7], parents));
        let moved = groups("[group.shops]\ngroup = \"acme\"", "[group.shops]");
        assert_eq!(moved.1.iter().filter(|parent| parent.is_none()).count(), 2, "shops is beside acme");
    }
}
