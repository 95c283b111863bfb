//! A change of one tenant or one export, at a price that does not grow with the others.
//!
//! Answers: what of a running server does one section touch? The plan of that section alone is compared with what runs
//! of it, by the same function as whole plans are, and each step of [`Reconciler::apply`] is made for these things
//! alone, in the same order. What is not plain is left to [`Reconciler::propose`]: an export that moves, bytes or
//! listeners that wait for somebody, groups, and whatever would be refused, since the sentence about it is there.
//!
//! Invariant: what runs after it is what runs after the same change of everything
//! (`generated_changes_say_and_do_the_same_by_either_way`); a server with debug assertions looks after each one.

use super::names::{FlowOf, Names};
use super::*;
use crate::config::trust::TrustPlan;
use crate::config::{ExportPlan, same_device};
use crate::live::{ExportOwner, Whose as Owner};
use mqfq_blk::engine::FlowOptions;
use mqfq_blk::slots::Slots;
use mqfq_front::FRONT_ENDS;
use mqfq_front::front_end::FrontEnd;
use std::collections::btree_map::Entry;

/// What was done, or why nothing.
type Done = Result<Vec<Change>, Refusals>;

/// An export that comes, as its section's plan has it.
struct Coming<'p> {
    device: &'p DevicePlan,
    flow: &'p FlowPlan,
    export: &'p ExportPlan,
    trust: &'p TrustPlan,
}

impl<'p> Coming<'p> {
    fn of(part: &'p Plan, name: &str) -> Option<Coming<'p>> {
        let export = part.exports.values().find(|export| export.name == name)?;
        let device = &part.devices[export.device];
        Some(Coming { device, flow: &device.flows[export.flow], export, trust: &part.trust })
    }
}

impl Reconciler {
    /// By name, what is in force. `None`: groups compete.
    pub fn names(&mut self) -> Option<&Names> {
        if self.names.is_none() {
            self.names = Names::new(&self.plan);
        }
        self.names.as_ref()
    }

    /// Calls `of` with the names, which it keeps.
    fn with_names<T>(&mut self, of: impl FnOnce(&mut Reconciler, &mut Names) -> Option<T>) -> Option<T> {
        self.look_again(true);
        self.follow_closed();
        if !self.unended.is_empty() || !self.waiting.is_empty() || !self.closed.is_empty() {
            return None;
        }
        self.names()?;
        let mut names = self.names.take()?;
        let done = of(self, &mut names);
        debug_assert_eq!(Some(&names), Names::new(&self.plan).as_ref());
        self.names = Some(names);
        #[cfg(debug_assertions)]
        self.assert_whole();
        done
    }

    fn device(&self, name: &str) -> Option<(Slot, &DevicePlan)> {
        self.plan.devices.iter().find(|(_, device)| device.config.name == name)
    }

    /// A tenant is as in `part`, which has it and its exports alone. `None`: nothing was done, and nothing is said.
    pub fn propose_tenant(&mut self, tenant: &str, part: &Plan) -> Option<Done> {
        self.with_names(|this, names| {
            let flows = names.flows.get(tenant)?;
            let mut changed = Vec::new();
            for device in part.devices.values() {
                let (slot, before) = this.device(&device.config.name)?;
                let (flow, new) = (flows.get(&slot)?.flow, device.flows.values().next()?);
                changed.push((slot, flow, before.flows[flow].clone(), new.clone()));
            }
            let mut exports = Vec::new();
            for new in part.exports.values() {
                exports.push((*names.exports.get(&new.name)?, new.clients.clone()));
            }
            // As in whole plans.
            changed.sort_by_key(|(slot, ..)| *slot);
            exports.sort_by_key(|(slot, _)| *slot);
            if changed.len() != flows.len() || exports.len() != names.of_tenant.get(tenant)?.len() {
                return None;
            }
            Some(this.change_tenant(tenant, &changed, exports))
        })
    }

    fn change_tenant(
        &mut self,
        tenant: &str,
        changed: &[(Slot, Slot, FlowPlan, FlowPlan)],
        exports: Vec<(Slot, Arc<mqfq_front::identity::Access>)>,
    ) -> Done {
        let (mut old, mut new) = (self.nothing(), self.nothing());
        let mut places = BTreeMap::new();
        for (slot, _, before, after) in changed {
            let at = [put_device(&mut old, &self.plan.devices[*slot]), put_device(&mut new, &self.plan.devices[*slot])];
            places.insert(*slot, at);
            old.devices[at[0]].flows.insert(before.clone()).expect("there is room for one");
            new.devices[at[1]].flows.insert(after.clone()).expect("there is room for one");
        }
        for (slot, clients) in &exports {
            let export = &self.plan.exports[*slot];
            let [before, after] = places[&export.device];
            let flow = Slot::first(0);
            let one = ExportPlan { device: before, flow, ..export.clone() };
            let other = ExportPlan { device: after, flow, clients: clients.clone(), ..export.clone() };
            old.exports.insert(one).expect("there is room");
            new.exports.insert(other).expect("there is room");
        }
        let changes = self.between(&old, &new);
        let mut made: Vec<(Slot, Slot, &FlowPlan)> = Vec::new();
        for (slot, flow, before, after) in changed {
            if options(before) == options(after) {
                continue;
            }
            if let Err(sentence) = self.put_flow(*slot, *flow, Some(after)) {
                let back = made.into_iter().rev().map(|(slot, flow, before)| self.put_flow(slot, flow, Some(before)));
                back.collect::<Vec<_>>().into_iter().for_each(|result| self.told(result));
                return Err(sentence.into());
            }
            made.push((*slot, *flow, before));
        }
        if let Some((.., before, after)) = changed.first() {
            self.things.caps.set(&self.engine, &Whose::Tenant(tenant.to_owned()), after.caps);
            if before.memory_bytes != after.memory_bytes {
                self.things.tenants.limit(tenant, after.memory_bytes);
            }
        }
        for (slot, flow, _, after) in changed {
            self.plan.devices[*slot].flows[*flow] = after.clone();
        }
        for (slot, clients) in exports {
            if self.plan.exports[slot].clients != clients {
                self.things.exports[&slot].door.admit(clients.clone());
                self.plan.exports[slot].clients = clients;
            }
        }
        Ok(changes)
    }

    /// An export is as in `part`, which has it alone; without a part it is gone. `None`: as
    /// [`Reconciler::propose_tenant`].
    pub fn propose_export(&mut self, name: &str, part: Option<&Plan>) -> Option<Done> {
        self.with_names(|this, names| match (names.exports.get(name).copied(), part) {
            (None, None) => None,
            (None, Some(part)) => this.come(names, &Coming::of(part, name)?),
            (Some(slot), None) => Some(Ok(this.go(names, slot))),
            (Some(slot), Some(part)) => this.change_export(names, slot, &Coming::of(part, name)?),
        })
    }

    /// The device of an export that comes or changes, which is as it was.
    fn same_device(&self, coming: &Coming<'_>) -> Option<Slot> {
        let (slot, device) = self.device(&coming.device.config.name)?;
        let is_same = same_device(device, coming.device) && device.config.policy == coming.device.config.policy;
        // A device that was opened to be read alone stays so.
        let is_open = !device.read_only || coming.export.read_only;
        (is_same && is_open).then_some(slot)
    }

    fn come(&mut self, names: &mut Names, coming: &Coming<'_>) -> Option<Done> {
        let Coming { flow, export, .. } = coming;
        let device = self.same_device(coming)?;
        let tenant = &*flow.tenant;
        let had_flow = names.flows.get(tenant).and_then(|flows| flows.get(&device)).map(|of| of.flow);
        let flow_slot = match had_flow {
            Some(slot) => slot,
            None => self.plan.devices[device].flows.next()?,
        };
        let slot = self.plan.exports.next()?;
        let export = ExportPlan { device, flow: flow_slot, ..(*export).clone() };
        if !self.is_ready(&export, 0, tenant) {
            return None;
        }
        let changes = {
            let (mut old, mut new) = (self.nothing(), self.nothing());
            let [before, after] = [&mut old, &mut new].map(|plan| put_device(plan, &self.plan.devices[device]));
            if had_flow.is_some() {
                old.devices[before].flows.insert((*flow).clone()).expect("there is room for one");
            }
            let flow = new.devices[after].flows.insert((*flow).clone()).expect("there is room for one");
            new.exports.insert(ExportPlan { device: after, flow, ..export.clone() }).expect("there is room");
            self.between(&old, &new)
        };
        // What it has of its own is there before it is, and goes again if something fails.
        let own = [Whose::Export(export.name.clone()), Whose::Tenant(tenant.to_owned())];
        let is_new = self.things.tenants.come(tenant, flow.memory_bytes).ok()?;
        let come = [export.caps, flow.caps];
        let came: Vec<Whose> = own
            .iter()
            .zip(come)
            .filter(|(whose, caps)| self.things.caps.come((*whose).clone(), *caps))
            .map(|(w, _)| w.clone())
            .collect();
        self.things.trust.learn(coming.trust);
        let made =
            self.made(slot, &export, tenant, None).ok().and_then(|made| Some((made, self.bind_of(&export).ok()?)));
        let added = made.map(|made| match had_flow {
            Some(_) => Ok(made),
            None => self.put_flow(device, flow_slot, Some(flow)).map(|()| made),
        });
        let (made, bound) = match added {
            Some(Ok(made)) => made,
            failed => {
                came.iter().for_each(|whose| self.things.caps.go(whose));
                if is_new {
                    self.things.tenants.go(tenant);
                }
                return failed.map(|failed| Err(failed.err().unwrap_or_default().into()));
            }
        };
        if is_new {
            self.things.tenants.share(self.plan.server.memory_bytes);
        }
        self.things.owners.come(&export.name, ExportOwner::new(&coming.device.config.name, flow));
        let flow_name = flow.name();
        let [own, tenants] = own;
        self.things.watched_caps.come(&self.things.caps, own, &flow_name);
        self.things.watched_caps.come(&self.things.caps, tenants, tenant);
        if had_flow.is_none() {
            let given = self.plan.devices[device].flows.insert((*flow).clone());
            debug_assert_eq!(given, Ok(flow_slot));
        }
        names.come(&export.name, tenant, slot, (device, flow_slot));
        let addresses = export.addresses.clone();
        let given = self.plan.exports.insert(export);
        debug_assert_eq!(given, Ok(slot));
        self.things.exports.insert(slot, made);
        self.plan.trust.modes.extend(coming.trust.modes.clone());
        self.claim_planned(vec![(slot, 0)]);
        self.offer_at(names, slot, &addresses, bound);
        Some(Ok(changes))
    }

    /// The rest of an export that `had` so many bytes can be offered as it is.
    fn is_ready(&self, export: &ExportPlan, had: u64, tenant: &str) -> bool {
        let claim = withheld::claim_of(export, &self.plan.devices[export.device], self.things.key_of, had, tenant);
        self.ownership().verdict(&claim) == Verdict::Ready
    }

    /// An export as clients have it.
    fn made(&self, slot: Slot, export: &ExportPlan, tenant: &str, before: Option<&Export>) -> Result<Export, String> {
        let Things { tenants, caps, devices, .. } = &self.things;
        let owner = Owner::new(slot, export, tenant, (tenants, caps), before);
        let made = live::fit(export, owner, &self.plan.devices[export.device], &*devices[&export.device])?;
        // What is wrong with it is found before anything is touched.
        ExportTable::new([made.clone()])?;
        Ok(made)
    }

    /// Listeners of an export that there are not, of which nobody has let a client in.
    fn bind_of(&self, export: &ExportPlan) -> Result<Vec<Bound>, String> {
        let new = export.addresses.iter().filter(|address| self.things.listeners.of(address).is_none());
        new.map(|address| self.bind_one(address)).collect()
    }

    /// An export is offered at these addresses, of which some are new. Its clients come last.
    fn offer_at(&mut self, names: &mut Names, slot: Slot, addresses: &[ExportAddress], bound: Vec<Bound>) {
        let mut clients: Vec<MakeClient> = Vec::new();
        for Bound { address, table, listener } in bound {
            names.listeners.insert(format!("{address:?}"), self.plan.listeners.len());
            self.plan.listeners.push((address.clone(), Vec::new()));
            self.things.serving.call(listener.number(), Some(upgrade::key(&address)));
            self.things.listeners.add(address, table, &*listener);
            clients.extend(listener.into_clients());
        }
        for address in addresses {
            let (Some(at), Some(listener)) =
                (names.listeners.get(&format!("{address:?}")), self.things.listeners.of(address))
            else {
                continue;
            };
            let (exports, slots) = (&self.plan.exports, &mut self.plan.listeners[*at].1);
            // In the order of names, as the document has them.
            let name = |slot: &Slot| exports[*slot].name.as_str();
            let place = slots.partition_point(|other| name(other) < name(&slot));
            if slots.get(place) != Some(&slot) {
                slots.insert(place, slot);
            }
            if is_nowhere(&self.waiting, slot) {
                continue;
            }
            listener.table.put(place, self.things.exports[&slot].clone()).expect("an export that was looked at before");
            if let Some(places) = &listener.places {
                places.share(&listener.table, self.plan.server.connections_max);
            }
        }
        clients.into_iter().for_each(|client| self.engine.attach(client));
    }

    /// An export is offered at these addresses no more; where nothing is offered then nobody listens.
    fn withdraw_at(&mut self, names: &mut Names, slot: Slot, addresses: &[ExportAddress]) {
        for address in addresses {
            let Entry::Occupied(entry) = names.listeners.entry(format!("{address:?}")) else { continue };
            let at = *entry.get();
            let slots = &mut self.plan.listeners[at].1;
            slots.retain(|other| *other != slot);
            if let Some(listener) = self.things.listeners.of(address).filter(|_| !slots.is_empty()) {
                listener.table.take(&self.plan.exports[slot].name);
                if let Some(places) = &listener.places {
                    places.share(&listener.table, self.plan.server.connections_max);
                }
                continue;
            }
            entry.remove();
            self.plan.listeners.swap_remove(at);
            if let Some((moved, _)) = self.plan.listeners.get(at) {
                names.listeners.insert(format!("{moved:?}"), at);
            }
            // Two front ends may write theirs alike.
            let text = address.to_string();
            let is_at =
                |front_end: &&dyn FrontEnd| names.listeners.contains_key(&format!("{} at {text}", front_end.name()));
            if FRONT_ENDS.iter().any(is_at) {
                continue;
            }
            self.plan.trust.modes.remove(&text);
            self.things.trust.forget(&text);
        }
    }

    /// Listeners of an export that nobody else is served at, other than at `stay`: nobody comes there any more.
    fn close_at(&mut self, names: &Names, slot: Slot, addresses: &[ExportAddress]) {
        let grace = Duration::from_secs(self.plan.server.drain_s);
        for address in addresses {
            let at = names.listeners.get(&format!("{address:?}"));
            if at.is_some_and(|at| self.plan.listeners[*at].1 == [slot])
                && let Some(gone) = self.things.listeners.take(address)
            {
                self.close(gone, grace);
            }
        }
    }

    fn go(&mut self, names: &mut Names, slot: Slot) -> Vec<Change> {
        let export = self.plan.exports[slot].clone();
        let (device, flow_slot) = (export.device, export.flow);
        let flow = self.plan.devices[device].flows[flow_slot].clone();
        let tenant = &*flow.tenant;
        let of = names.flows[tenant][&device];
        let changes = {
            let (mut old, mut new) = (self.nothing(), self.nothing());
            let [before, after] = [&mut old, &mut new].map(|plan| put_device(plan, &self.plan.devices[device]));
            let at = old.devices[before].flows.insert(flow.clone()).expect("there is room for one");
            if of.exports > 1 {
                new.devices[after].flows.insert(flow.clone()).expect("there is room for one");
            }
            old.exports.insert(ExportPlan { device: before, flow: at, ..export.clone() }).expect("there is room");
            self.between(&old, &new)
        };
        let grace = Duration::from_secs(self.plan.server.drain_s);
        self.close_at(names, slot, &export.addresses);
        let live = self.things.exports[&slot].clone();
        if !front_end::drain_export(&self.engine, &live, grace) {
            self.tell_late(slot, &live, grace);
        }
        self.release(slot, export.size_bytes);
        let committed = self.ownership().commit();
        self.told(committed);
        let is_last = names.flows[tenant].len() == 1 && of.exports == 1;
        let whose = Whose::Export(export.name.clone());
        self.things.caps.go(&whose);
        self.things.watched_caps.go(&whose);
        if is_last {
            let whose = Whose::Tenant(tenant.to_owned());
            self.things.caps.go(&whose);
            self.things.watched_caps.go(&whose);
            self.things.tenants.go(tenant);
            self.things.tenants.share(self.plan.server.memory_bytes);
        }
        self.things.owners.go(&export.name);
        self.withdraw_at(names, slot, &export.addresses);
        if of == (FlowOf { flow: flow_slot, exports: 1 }) {
            let gone = self.put_flow(device, flow_slot, None);
            let gone = gone.inspect_err(|_| self.unended.follow(device, false));
            self.told(gone);
            self.plan.devices[device].flows.remove(flow_slot);
        }
        names.go(&export.name, tenant, slot, device);
        self.plan.exports.remove(slot);
        self.things.exports.remove(&slot);
        self.follow_closed();
        changes
    }

    fn change_export(&mut self, names: &mut Names, slot: Slot, coming: &Coming<'_>) -> Option<Done> {
        let device = self.same_device(coming)?;
        let before = self.plan.exports[slot].clone();
        let flow = self.plan.devices[device].flows.get(before.flow)?;
        let export = ExportPlan { device, flow: before.flow, ..coming.export.clone() };
        if (before.device, before.offset_bytes) != (device, export.offset_bytes) || flow.tenant != coming.flow.tenant {
            return None;
        }
        let tenant = flow.tenant.clone();
        let is_grown = before.size_bytes < export.size_bytes;
        if before.keep_data != export.keep_data || is_grown && !self.is_ready(&export, before.size_bytes, &tenant) {
            return None;
        }
        let changes = {
            let (mut old, mut new) = (self.nothing(), self.nothing());
            for (plan, export) in [(&mut old, &before), (&mut new, &export)] {
                let at = put_device(plan, &self.plan.devices[device]);
                let flow = plan.devices[at].flows.insert(flow.clone()).expect("there is room for one");
                plan.exports.insert(ExportPlan { device: at, flow, ..export.clone() }).expect("there is room");
            }
            self.between(&old, &new)
        };
        let live = self.things.exports.get(&slot)?;
        let made = self.made(slot, &export, &tenant, Some(live)).ok()?;
        self.things.trust.learn(coming.trust);
        let bound = self.bind_of(&export).ok()?;
        let gone: Vec<ExportAddress> =
            before.addresses.iter().filter(|address| !export.addresses.contains(address)).cloned().collect();
        let grace = Duration::from_secs(self.plan.server.drain_s);
        self.close_at(names, slot, &gone);
        self.plan.trust.modes.extend(coming.trust.modes.clone());
        self.shrink(Some(before.read_only), before.size_bytes, &export, &made.door, grace);
        self.things.caps.set(&self.engine, &Whose::Export(export.name.clone()), export.caps);
        self.withdraw_at(names, slot, &gone);
        let addresses = export.addresses.clone();
        self.plan.exports[slot] = export;
        self.things.exports.insert(slot, made);
        // With it what a shrink gave up is recorded.
        self.claim_planned(if is_grown { vec![(slot, before.size_bytes)] } else { Vec::new() });
        self.offer_at(names, slot, &addresses, bound);
        self.follow_closed();
        Some(Ok(changes))
    }

    /// A device's place has this flow from now on, or none.
    fn put_flow(&self, device: Slot, flow: Slot, is: Option<&FlowPlan>) -> Result<(), String> {
        let changed = BTreeMap::from([(flow.place(), is.map(options))]);
        self.engine.change_flows(device.place(), &changed, self.patience())
    }

    /// A plan of nothing yet, to be compared with another one.
    pub(super) fn nothing(&self) -> Plan {
        Plan {
            server: self.plan.server.clone(),
            devices: Slots::new(self.plan.devices.max()),
            exports: Slots::new(self.plan.exports.max()),
            listeners: Vec::new(),
            trust: Default::default(),
            warnings: Vec::new(),
        }
    }

    fn between(&self, old: &Plan, new: &Plan) -> Vec<Change> {
        difference::between(old, new, &|_, _| unreachable!("a device's policy is the same"))
    }

    /// What runs is what the plan says.
    #[cfg(debug_assertions)]
    fn assert_whole(&self) {
        if !self.waiting.is_empty() {
            return;
        }
        let names = |slots: &[Slot]| slots.iter().map(|slot| self.plan.exports[*slot].name.clone()).collect::<Vec<_>>();
        for (address, slots) in &self.plan.listeners {
            let offered = self.things.listeners.of(address).expect("bound").table.all();
            assert_eq!(offered.iter().map(|export| export.name.clone()).collect::<Vec<_>>(), names(slots), "{address}");
        }
        for (slot, export) in self.plan.exports.iter() {
            let live = &self.things.exports[&slot];
            assert_eq!(
                (live.size_bytes, live.read_only, live.device),
                (export.size_bytes, export.read_only, export.device.into())
            );
        }
        assert_eq!(self.things.exports.len(), self.plan.exports.len());
        let Things { caps, tenants, owners, .. } = &self.things;
        assert!(caps.are_of(&self.plan) && tenants.are_of(&self.plan) && owners.are_of(&self.plan));
    }
}

/// A flow as the engine takes it.
fn options(flow: &FlowPlan) -> FlowOptions {
    FlowOptions { name: flow.name(), weight: flow.weight, class: flow.class, limits: flow.staged }
}

/// A device in a plan, without flows.
fn put_device(plan: &mut Plan, device: &DevicePlan) -> Slot {
    let none = Slots::new(device.flows.max());
    let device = DevicePlan {
        config: device.config.clone(),
        size_bytes: device.size_bytes,
        read_only: device.read_only,
        flows: none,
        groups: Vec::new(),
    };
    plan.devices.insert(device).expect("there is room for each of them")
}
