//! Latency goals: `latency` of a tenant or a group, and `throughput-floor` of a device.

use super::model::TenantConfig;
use super::plan::DevicePlan;
use mqfq_blk::engine::FlowGoal;
use mqfq_blk::tuning::Goals;
use mqfq_config::groups::Groups;
use mqfq_config::text::shown as name_shown;
use mqfq_config::{ConfigError, Section, duration};
use std::collections::BTreeSet;

/// The key of a tenant or a group.
pub const LATENCY: &str = "latency";

/// The key of a device.
pub const FLOOR: &str = "throughput-floor";

/// `throughput-floor`, thousandths.
pub(super) fn floor(device: &Section<'_, '_>) -> Result<u32, ConfigError> {
    let floor = device.get(FLOOR).map(|floor| floor.decimal(0.05..=1.0)).transpose()?;
    Ok(floor.map_or(Goals::default().floor_thousandths, |floor| (floor * 1000.0).round() as u32))
}

/// The goal of a tenant on a device with this floor: its own, or that of the nearest group that has one.
pub(super) fn of(tenant: &TenantConfig, groups: &Groups, floor_thousandths: u32) -> Option<FlowGoal> {
    if let Some(goal_ns) = tenant.latency_ns {
        return Some(FlowGoal { owner: format!("tenant {}", name_shown(&tenant.name)), goal_ns, floor_thousandths });
    }
    let mut group = tenant.group;
    while let Some(number) = group {
        let of = &groups.all()[number];
        if let Some(goal_ns) = of.latency_ns {
            return Some(FlowGoal { owner: format!("group {}", name_shown(&of.name)), goal_ns, floor_thousandths });
        }
        group = of.parent;
    }
    None
}

/// A sentence if tenants of a device have goals and it cannot hold them: its D is a number, or its policy has none.
pub(super) fn warning(device: &DevicePlan) -> Option<String> {
    let holds = device.config.policy.options(1).depth_auto;
    let goals = device.flows.values().filter_map(|flow| flow.goal.as_ref());
    let owners: BTreeSet<&str> = goals.map(|goal| goal.owner.as_str()).collect();
    let owners: Vec<&str> = owners.into_iter().collect();
    let sentence = || {
        let owners = owners.join(" and ");
        let why = format!("it does not hold the latency goal of {owners}, allowed is policy mqfq with depth \"auto\"");
        device.config.place.error(why).to_string()
    };
    (!holds && !owners.is_empty()).then(sentence)
}

/// A goal in a report of changes.
pub fn shown(goal: Option<&FlowGoal>) -> String {
    goal.map_or("none".to_owned(), |goal| duration::display(goal.goal_ns))
}

/// A floor in a report of changes.
pub fn shown_floor(thousandths: u32) -> String {
    (f64::from(thousandths) / 1000.0).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Plan, RealFiles};
    use super::*;

    const GOALS: &str = "[device.fast]
kind = \"null\"
size = \"1MiB\"
throughput-floor = 0.6
[group.shops]
latency = \"5ms\"
[tenant.db]
latency = \"2ms\"
group = \"shops\"
[tenant.web]
group = \"shops\"
[tenant.bulk]
[export.db]
device = \"fast\"
tenant = \"db\"
size = \"256KiB\"
nbd = \"unix:/db\"
[export.web]
device = \"fast\"
tenant = \"web\"
offset = \"256KiB\"
size = \"256KiB\"
nbd = \"unix:/web\"
[export.bulk]
device = \"fast\"
tenant = \"bulk\"
offset = \"512KiB\"
nbd = \"unix:/bulk\"
";

    fn plan(text: &str) -> Result<Plan, String> {
        Config::parse("c.toml", text).and_then(|config| config.check(&RealFiles)).map_err(|error| error.to_string())
    }

    fn changed(from: &str, to: &str) -> Result<Plan, String> {
        assert!(GOALS.contains(from), "{from}");
        plan(&GOALS.replacen(from, to, 1))
    }

    #[test]
    fn a_tenant_has_its_own_goal_or_that_of_its_group_and_the_floor_of_its_device() {
        let plan = plan(GOALS).unwrap();
        let device = plan.devices.values().next().unwrap();
        let goal = |owner: &str, ms: u64| {
            Some(FlowGoal { owner: owner.to_owned(), goal_ns: ms * 1_000_000, floor_thousandths: 600 })
        };
        let goals: Vec<_> = device.flows.values().map(|flow| flow.goal.clone()).collect();
        assert_eq!(goals, [goal("tenant db", 2), goal("group shops", 5), None]);
        assert!(plan.warnings.is_empty());
        let default = changed("throughput-floor = 0.6\n", "").unwrap();
        assert_eq!(default.devices.values().next().unwrap().config.floor_thousandths, 700);
        assert_eq!(
            (shown(goals[0].as_ref()), shown(None), shown_floor(600)),
            ("2ms".into(), "none".into(), "0.6".into())
        );
    }

    #[test]
    fn goals_and_floors_out_of_range_are_refused_and_a_goal_that_no_device_holds_is_warned_of() {
        let refusal = |from, to| changed(from, to).expect_err("it is wrong");
        assert_eq!(
            refusal("\"2ms\"", "\"2us\""),
            "c.toml:8: tenant.db.latency: \"2us\" is out of range, allowed is 10us to 10s"
        );
        assert_eq!(
            refusal("\"5ms\"", "\"11s\""),
            "c.toml:6: group.shops.latency: \"11s\" is out of range, allowed is 10us to 10s"
        );
        assert_eq!(
            refusal("0.6", "0.01"),
            "c.toml:4: device.fast.throughput-floor: 0.01 is out of range, allowed is 0.05 to 1"
        );
        assert_eq!(
            changed("0.6", "0.6\nexpert.depth = 64").unwrap().warnings,
            [
                "c.toml:1: device.fast: it does not hold the latency goal of group shops and tenant db, allowed is policy mqfq with depth \"auto\""
            ]
        );
    }
}
