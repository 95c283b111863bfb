//! Flows come and go while an engine runs.
//!
//! Answers: how does a device get another tenant under load, and when may a place that a tenant had be another's?
//!
//! # Places
//! A policy is built with more places for flows than there are flows, [`capacity_of`] them, and each context with room
//! for as much as they may stage. An empty place costs memory alone: no request is submitted for it, so it is in no
//! order, holds no virtual time, and has no part in the weights of its siblings.
//!
//! ```text
//!   added     a place is empty    the policy is told weight and class, each worker the bounds    no request waits
//!             none is empty       another policy with twice the places (`change.rs`)    the device runs empty once
//!   removed   clients are gone    each worker: no request of it is left, its counters go
//!                                 then the policy: its tags go (`Policy::retire`)                no request waits
//! ```
//! Example: a server starts with 5 tenants and has 8 places. Tenants 6, 7 and 8 come without a pause. With the ninth
//! the policy is built again for 16; the present D and T go over into it.
//!
//! Some changes always need another policy: those of the groups and their members, since a policy builds its tree once;
//! and those of a place whose policy cannot forget its last flow (`bfq`).
//!
//! # I7 where a place changes hands
//! A flow's last request completes on every worker, and each says so; then the tags go; then the next flow is told of.
//! The thread that makes the next step sees each one: by a message and its answer.
//! (`loom_flow_in_a_place_that_was_freed_inherits_nothing_of_the_one_before`,
//! `a_flow_in_the_place_of_another_starts_with_nothing_of_it`.)

use super::{Current, Engine, FlowGoal, FlowOptions, Grouping};
use crate::client::Remains;
use crate::stage::StageLimits;
use crate::tuning::{Goal, Goals};
use crate::worker::host::Mail;
use mqfq_sched::flow::{FlowId, GroupId, Tree, Weight};
use mqfq_sched::policy::{AnyPolicy, Policy, PolicyError, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::Duration;

/// Most requests that one worker stages on one device, all flows together (about 60 MiB of table), and a quarter more
/// for flows to come. With more flows than fit at their configured bound, each flow's bound shrinks to its equal part,
/// but not below one request.
const STAGED_REQUESTS_MAX: usize = 1 << 18;

/// Fewest places for flows.
const PLACES_MIN: usize = 8;

/// Places of a policy that is built for so many flows: the next power of two, at least 8.
fn capacity_of(flows: usize) -> usize {
    (flows + 1).next_power_of_two().max(PLACES_MIN)
}

/// Places and bounds of a device's policy and contexts.
pub(super) struct FlowCapacity {
    /// By place, the bounds that contexts have room for.
    pub(super) limits: Vec<StageLimits>,
    /// Requests that a flow in a place that was empty may stage, at least.
    spare_requests: u32,
    /// Most that any flow may stage.
    fair_part: u32,
    /// By place, the group that the policy has it in.
    of_flow: Vec<Option<GroupId>>,
    /// Places that the policy cannot give to another.
    stale: BTreeSet<usize>,
}

impl FlowCapacity {
    fn new(flows: &[Option<FlowOptions>], tree: &Tree, capacity: usize) -> FlowCapacity {
        let taken = flows.iter().flatten().count();
        let part = |all: usize, of: usize| u32::try_from((all / of.max(1)).max(1)).unwrap_or(u32::MAX);
        let fair_part = part(STAGED_REQUESTS_MAX, taken);
        let default = StageLimits::DEFAULT;
        let spare_requests = part(STAGED_REQUESTS_MAX / 4, capacity - taken).min(default.requests_max);
        let limits_of = |place: usize| match flows.get(place).and_then(Option::as_ref) {
            Some(FlowOptions { limits, .. }) => {
                StageLimits { requests_max: limits.requests_max.min(fair_part), ..*limits }
            }
            None => StageLimits { requests_max: spare_requests, ..default },
        };
        let mut of_flow = tree.of_flow.clone();
        of_flow.resize(capacity, None);
        let limits = (0..capacity).map(limits_of).collect();
        FlowCapacity { limits, spare_requests, fair_part, of_flow, stale: BTreeSet::new() }
    }

    /// Raises each place's bound to the one in `before`.
    pub(super) fn at_least(mut self, before: &[StageLimits]) -> FlowCapacity {
        for (limits, before) in self.limits.iter_mut().zip(before) {
            limits.requests_max = limits.requests_max.max(before.requests_max);
        }
        self
    }

    /// A flow in a place that asks for more than the default, and has not asked for it before, gets that here, or as
    /// much of it as it would get of another policy.
    fn is_enough_for_more(&self, place: usize, before: Option<StageLimits>, wanted: StageLimits) -> bool {
        let had = before.map_or(0, |before| before.requests_max).max(StageLimits::DEFAULT.requests_max);
        let has = self.limits.get(place).map_or(0, |limits| limits.requests_max);
        wanted.requests_max <= had || has >= wanted.requests_max.min(self.fair_part)
    }

    /// Bounds of a flow in a place, if they are room enough for what it asks for: always in a policy built for it, and
    /// never more than the fair part.
    fn bounds(&self, place: usize, wanted: StageLimits) -> Option<StageLimits> {
        let has = self.limits.get(place)?.requests_max;
        let is_enough = has >= wanted.requests_max.min(self.spare_requests).min(self.fair_part);
        is_enough.then(|| StageLimits { requests_max: wanted.requests_max.min(has), ..wanted })
    }
}

/// A policy for these flows, by place, and for more to come; where it cannot have more, for these alone.
pub(super) fn build(
    options: &PolicyOptions,
    topology: &Topology,
    flows: &[Option<FlowOptions>],
    tree: &Tree,
) -> Result<(AnyPolicy, FlowCapacity), PolicyError> {
    let weight = |flow: &Option<FlowOptions>| flow.as_ref().map_or(Weight::DEFAULT, |flow| flow.weight);
    let mut weights: Vec<Weight> = flows.iter().map(weight).collect();
    weights.resize(capacity_of(flows.len()), Weight::DEFAULT);
    let policy = AnyPolicy::with_tree(options, topology, &weights, tree).or_else(|_| {
        AnyPolicy::with_tree(options, topology, &weights[..flows.len()], tree)
            .inspect(|_| weights.truncate(flows.len()))
    })?;
    for (place, flow) in flows.iter().enumerate() {
        if let Some(flow) = flow {
            policy.set_class(FlowId(place as u32), flow.class);
        }
    }
    Ok((policy, FlowCapacity::new(flows, tree, weights.len())))
}

/// A device's number in a message.
pub(super) fn index(device: usize) -> u16 {
    u16::try_from(device).expect("as many devices as `check` allows")
}

/// The groups are the same but for their weights.
fn same_groups(one: &Tree, other: &Tree) -> bool {
    one.groups.len() == other.groups.len()
        && one.groups.iter().zip(&other.groups).all(|(one, other)| one.parent == other.parent)
}

/// True if the policy of a device has these groups and members, once some places are others.
fn has_groups(at: &Current, changed: &BTreeMap<usize, Option<FlowOptions>>, grouping: &Grouping) -> bool {
    let group_of = |place: usize| grouping.tree.of_flow.get(place).copied().flatten();
    let is_taken = |place: usize| match changed.get(&place) {
        Some(flow) => flow.is_some(),
        None => at.flows.get(place).is_some_and(Option::is_some),
    };
    let is_right = |place: usize| !is_taken(place) || at.capacity.of_flow[place] == group_of(place);
    same_groups(&at.grouping.tree, &grouping.tree) && (0..at.capacity.of_flow.len()).all(is_right)
}

/// Returns `flows` with the changed ones.
fn with(
    mut flows: Vec<Option<FlowOptions>>,
    changed: &BTreeMap<usize, Option<FlowOptions>>,
) -> Vec<Option<FlowOptions>> {
    let places = changed.last_key_value().map_or(0, |(place, _)| place + 1);
    flows.resize(flows.len().max(places), None);
    changed.iter().for_each(|(place, flow)| flows[*place].clone_from(flow));
    flows
}

/// The change of one place: a flow leaves it, a flow has it from now on, or both.
struct FlowChange {
    place: usize,
    leaves: bool,
    /// Options until now of a flow that stays.
    was: Option<FlowOptions>,
    /// Options from now on of a flow that stays or comes.
    is: Option<FlowOptions>,
}

impl FlowChange {
    /// A flow of another name is another flow.
    fn new(at: &Current, place: usize, is: Option<&FlowOptions>) -> FlowChange {
        let had = at.flows.get(place).cloned().flatten();
        let stays = had.as_ref().zip(is).is_some_and(|(had, is)| had.name == is.name);
        let (leaves, was) = if stays { (false, had) } else { (had.is_some(), None) };
        FlowChange { place, leaves, was, is: is.cloned() }
    }

    fn id(&self) -> FlowId {
        FlowId(self.place as u32)
    }

    /// The policy and the contexts of the device have what the flow needs. `keeps_groups`: no flow changes its group.
    fn fits(&self, at: &Current, keeps_groups: bool) -> bool {
        let Some(FlowOptions { limits, .. }) = self.is else { return true };
        let before = self.was.as_ref().map(|was| was.limits);
        let has_room_to_wait = !at.shared.path.bypass;
        at.capacity.bounds(self.place, limits).is_some()
            && (!has_room_to_wait || at.capacity.is_enough_for_more(self.place, before, limits))
            && (self.was.is_some() || !at.capacity.stale.contains(&self.place))
            && (!keeps_groups || at.capacity.of_flow[self.place].is_none())
    }
}

/// Time after the caller's patience at which a worker forgets the question, ns.
const GIVES_UP_NS: u64 = 1_000_000_000;

impl Engine {
    /// Gives a device these flows, by place (`FlowId`), in these groups: some come, some go, of some the weight, class
    /// or bounds are others. Those that stay notice nothing, or have their requests wait once while the policy is
    /// built again (the file's text). The clients of removed flows are gone: none submits for them any more.
    ///
    /// A flow of another name is another flow.
    ///
    /// # Errors
    /// One sentence, and the device goes on as before: a policy that cannot have these flows, or requests that the
    /// device did not complete within `patience`.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn set_flows(
        &self,
        device: usize,
        flows: &[Option<FlowOptions>],
        grouping: &Grouping,
        patience: Duration,
    ) -> Result<(), String> {
        let _changing = self.changing();
        let before = self.of(device, |at| at.flows.clone());
        let at = |flows: &[Option<FlowOptions>], place: usize| flows.get(place).cloned().flatten();
        // Places never get fewer: until this returns, a reader of counters asks the policy for the old ones.
        let places = 0..before.len().max(flows.len());
        let both = places.map(|place| (place, at(&before, place), at(flows, place)));
        let changed = both.filter(|(_, had, is)| had != is).map(|(place, _, is)| (place, is)).collect();
        self.put_flows(device, &changed, Some(grouping), patience)
    }

    /// Changes these places alone, `None` where a flow goes: the price does not grow with the flows that stay,
    /// unless the policy is built again. Without a `grouping` the groups stay, and no flow that changes is in one.
    ///
    /// # Errors
    /// As [`Engine::set_flows`].
    ///
    /// # Panics
    /// If there is no such device.
    pub fn change_flows(
        &self,
        device: usize,
        changed: &BTreeMap<usize, Option<FlowOptions>>,
        grouping: Option<&Grouping>,
        patience: Duration,
    ) -> Result<(), String> {
        let _changing = self.changing();
        self.put_flows(device, changed, grouping, patience)
    }

    /// `changed` differ from the present flows. `grouping`: of all flows, where groups may differ as well.
    fn put_flows(
        &self,
        device: usize,
        changed: &BTreeMap<usize, Option<FlowOptions>>,
        grouping: Option<&Grouping>,
        patience: Duration,
    ) -> Result<(), String> {
        let has_goal = |flow: &Option<FlowOptions>| flow.as_ref().is_some_and(|flow| flow.goal.is_some());
        let (name, changes, fits, had_goal) = self.of(device, |at| {
            let changes: Vec<FlowChange> =
                changed.iter().map(|(&place, flow)| FlowChange::new(at, place, flow.as_ref())).collect();
            let fits = changes.iter().all(|change| change.fits(at, grouping.is_none()))
                && grouping.is_none_or(|grouping| has_groups(at, changed, grouping));
            let had_goal = changed.keys().any(|place| at.flows.get(*place).is_some_and(has_goal));
            (at.name.clone(), changes, fits, had_goal)
        });
        for change in changes.iter().filter(|change| change.leaves) {
            self.await_end(device, Remains::Flow(change.id()), patience)
                .map_err(|reason| format!("device {name}: {reason}"))?;
        }
        if !fits {
            self.refuse_without_room_to_wait(device)?;
            let (flows, tree) = self.of(device, |at| {
                let tree = grouping.map_or(&at.grouping.tree, |grouping| &grouping.tree);
                (with(at.flows.clone(), changed), tree.clone())
            });
            self.rebuild(device, &flows, &tree, patience).map_err(|reason| format!("device {name}: {reason}"))?;
        }
        let stale = self.apply_changes(device, &changes, fits);
        if let Some(grouping) = grouping.filter(|_| fits) {
            self.apply_group_weights(device, &grouping.tree);
        }
        self.with(device, |at| {
            at.flows = with(std::mem::take(&mut at.flows), changed);
            if let Some(grouping) = grouping {
                at.grouping = grouping.clone();
            }
            at.capacity.stale.extend(stale);
        });
        // All are looked at: what changes without a goal before and after does not come here.
        if had_goal || changed.values().any(has_goal) {
            self.put_goals(device);
        }
        Ok(())
    }

    /// Tells policy and workers of the changes. `fits`: the policy is the one from before. Returns the places that it
    /// cannot give to another flow.
    fn apply_changes(&self, device: usize, changes: &[FlowChange], fits: bool) -> Vec<usize> {
        let policy = self.shared_device(device).running().policy;
        let mut stale = Vec::new();
        for change in changes.iter().filter(|change| change.leaves) {
            let nothing = StageLimits { requests_max: 0, bytes_max: 0 };
            self.set_limits(device, change.id(), nothing, true);
            // A policy that was built just now has nothing to forget.
            if fits && !policy.retire(change.id()) {
                stale.push(change.place);
            }
        }
        for change in changes {
            let (Some(is), was, id) = (&change.is, &change.was, change.id()) else { continue };
            if was.as_ref().is_none_or(|was| was.weight != is.weight) {
                policy.set_weight(id, is.weight);
            }
            if was.as_ref().is_none_or(|was| was.class != is.class) {
                policy.set_class(id, is.class);
            }
            if was.as_ref().is_none_or(|was| was.limits != is.limits) {
                let bounds = self.of(device, |at| at.capacity.bounds(change.place, is.limits));
                self.set_limits(device, id, bounds.expect("looked at above, or built"), was.is_none());
            }
        }
        stale
    }

    /// Tells the policy of the groups' weights that differ from those in force.
    fn apply_group_weights(&self, device: usize, tree: &Tree) {
        let policy = self.shared_device(device).running().policy;
        let before = self.of(device, |at| at.grouping.tree.groups.clone());
        for (number, (group, before)) in (0..).map(GroupId).zip(tree.groups.iter().zip(&before)) {
            if group.weight != before.weight {
                policy.set_group_weight(number, group.weight);
            }
        }
    }

    /// Waits until no request of `whose` that was admitted before this call is left on a device.
    ///
    /// # Errors
    /// Half a sentence: some are left after `patience`.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn await_end(&self, device: usize, whose: Remains, patience: Duration) -> Result<(), String> {
        let _ = self.shared_device(device);
        // Later than here: a caller that still waits is told the truth.
        let until_ns = self.clock().now_ns().saturating_add(super::nanoseconds(patience));
        let given_up_ns = until_ns.saturating_add(GIVES_UP_NS);
        self.ask_all(patience, |gone| Mail::AwaitEnd { device: index(device), whose, given_up_ns, gone }).map(drop)
    }

    /// The bounds of a flow, on each worker, when this returns.
    fn set_limits(&self, device: usize, flow: FlowId, limits: StageLimits, is_new: bool) {
        // A worker that has panicked stages nothing more.
        let _ =
            self.ask_all(Duration::MAX, |done| Mail::SetLimits { device: index(device), flow, limits, is_new, done });
    }

    /// Puts a policy of the same options in place, for these flows.
    fn rebuild(
        &self,
        device: usize,
        flows: &[Option<FlowOptions>],
        tree: &Tree,
        patience: Duration,
    ) -> Result<(), String> {
        let options = self.of(device, |at| at.policy);
        let (policy, capacity) = build(&options, &self.topology, flows, tree).map_err(|error| error.to_string())?;
        // Parameters found while the policy ran stay in force, and their controller goes on. They go over when all
        // workers are quiet: until then each completion may change them, and a D not the controller's would stay.
        let running = self.shared_device(device).running();
        let before = running.policy;
        let take_over = |policy: &AnyPolicy| {
            if let Some(depth) = before.depth() {
                policy.set_depth(HctxId(0), depth, &mut |_: HctxId| ());
            }
            if let Some(terms) = before.window_terms().filter(|_| options.window_least.is_some()) {
                policy.set_window(&terms);
            }
        };
        self.replace(device, policy, capacity, running.tuning, patience, take_over)
    }

    /// Sends a message to each worker, and waits for all answers.
    pub(super) fn ask_all<T>(
        &self,
        patience: Duration,
        mail: impl Fn(mpsc::Sender<T>) -> Mail,
    ) -> Result<Vec<T>, String> {
        let (sender, answers) = mpsc::channel();
        (0..self.workers()).for_each(|worker| self.shared.send(worker, mail(sender.clone())));
        drop(sender);
        let clock = self.clock();
        let until_ns = clock.now_ns().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let answer = |_| {
            let left = Duration::from_nanos(until_ns.saturating_sub(clock.now_ns()));
            self.shared.answer(&answers, left).map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => {
                    format!("requests did not come back from it within {} s", patience.as_secs_f64())
                }
                mpsc::RecvTimeoutError::Disconnected => "a worker has ended".to_owned(),
            })
        };
        (0..self.workers()).map(answer).collect()
    }
}

// Latency goals of a device's flows, as its tuning holds them.

/// The goals of these flows, by place: one for each owner.
pub(super) fn goals_of(flows: &[Option<FlowOptions>]) -> Goals {
    let mut by_owner: BTreeMap<&str, Goal> = BTreeMap::new();
    let mut floor_thousandths = None;
    for (flow, options) in (0..).map(FlowId).zip(flows) {
        let Some(FlowGoal { owner, goal_ns, floor_thousandths: floor }) =
            options.as_ref().and_then(|of| of.goal.as_ref())
        else {
            continue;
        };
        let new = || Goal { name: owner.clone(), goal_ns: *goal_ns, flows: Vec::new() };
        by_owner.entry(owner).or_insert_with(new).flows.push(flow);
        floor_thousandths = floor_thousandths.max(Some(*floor));
    }
    let default = Goals::default();
    Goals {
        floor_thousandths: floor_thousandths.unwrap_or(default.floor_thousandths),
        goals: by_owner.into_values().collect(),
    }
}

impl Engine {
    /// Has the tuning of a device hold the goals of its present flows.
    pub(super) fn put_goals(&self, device: usize) {
        let goals = self.of(device, |at| goals_of(&at.flows));
        if let Some(tuning) = self.shared_device(device).running().tuning {
            tuning.set_goals(&goals);
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    fn flows(count: usize) -> Vec<Option<FlowOptions>> {
        (0..count).map(|_| Some(FlowOptions::new("a"))).collect()
    }

    #[test]
    fn a_policy_that_was_built_for_flows_has_room_for_each_of_them_however_many_they_are() {
        let tree = Tree::default();
        for taken in [1, 7, 1000, 1023, 1024, 1640, 1648, 1700, 2046, 2047, 3500, 13_500, 60_000, 65_535] {
            let mut all = flows(taken);
            let capacity = FlowCapacity::new(&all, &tree, capacity_of(taken));
            let more = StageLimits { requests_max: 300, ..StageLimits::DEFAULT };
            let lacks = |capacity: &FlowCapacity, place: usize, wanted| capacity.bounds(place, wanted).is_none();
            assert!((0..taken).all(|place| !lacks(&capacity, place, StageLimits::DEFAULT)), "{taken} flows");
            // Another one comes, and one asks for more: built for both, if it must be built.
            all.push(Some(FlowOptions::new("b")));
            if let Some(first) = &mut all[0] {
                first.limits = more;
            }
            let built = FlowCapacity::new(&all, &tree, capacity_of(all.len())).at_least(&capacity.limits);
            assert!(!lacks(&built, 0, more) && !lacks(&built, taken, StageLimits::DEFAULT), "{taken} flows and one");
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod goals_tests {
    use super::*;

    #[test]
    fn flows_of_one_owner_have_one_goal_and_the_largest_floor_counts() {
        let flow = |name: &str, owner: Option<&str>, floor_thousandths| {
            let goal = owner.map(|owner| FlowGoal { owner: owner.to_owned(), goal_ns: 7, floor_thousandths });
            Some(FlowOptions { goal, ..FlowOptions::new(name) })
        };
        let flows = [flow("a", Some("x"), 500), None, flow("b", None, 0), flow("c", Some("x"), 600)];
        let goal = Goal { name: "x".into(), goal_ns: 7, flows: vec![FlowId(0), FlowId(3)] };
        assert_eq!(goals_of(&flows), Goals { floor_thousandths: 600, goals: vec![goal] });
        assert_eq!(goals_of(&flows[1..3]), Goals::default());
    }
}
