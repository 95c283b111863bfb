//! Backings of pools that come, grow and go with their exports.
//!
//! A backing is opened before anything is touched, and every worker has it before a client may ask. One that goes is
//! closed when its clients are gone and no request of theirs is left; until then no other has its number (B2 of
//! `blk/src/device/file/pool.rs`).

use super::*;
use crate::config::TakenPlaces;
use crate::devices;
use mqfq_blk::device::file::{REGION_BYTES, number_of, region_of};

impl Reconciler {
    /// Places that nothing new may have.
    pub(super) fn taken(&self) -> TakenPlaces {
        let mut backings = self.closing.clone();
        backings.extend(self.pending_io.regions().map(|(device, at)| (device, number_of(at))));
        TakenPlaces { devices: self.pending_io.places().clone(), backings }
    }

    /// Opens backings that come, and has others serve as many bytes as their exports are to have.
    pub(super) fn open_backings(
        &self,
        new: &Difference,
        devices: &BTreeMap<Slot, Arc<dyn Device>>,
        came: &mut Came,
    ) -> Result<(), String> {
        let mut warnings = Vec::new();
        let result = self.open_each(new, devices, came, &mut warnings);
        warnings.iter().for_each(|warning| self.runtime.output.note(warning));
        result
    }

    fn open_each(
        &self,
        new: &Difference,
        devices: &BTreeMap<Slot, Arc<dyn Device>>,
        came: &mut Came,
        warnings: &mut Vec<String>,
    ) -> Result<(), String> {
        let exports = new.exports.values().flatten().filter(|export| export.path.is_some());
        for export in exports {
            let (device, number) = (export.device, number_of(export.offset_bytes));
            let plan = new.device(&self.plan, device);
            if let Some(fresh) = devices.get(&device) {
                devices::add_backing(&**fresh, plan, export, None, warnings).map_err(|error| error.to_string())?;
                continue;
            }
            let running = &*self.runtime.devices[&device];
            if self.names.backings.get(&device).is_some_and(|numbers| numbers.contains(&number)) {
                devices::grow_backing(running, export).map_err(|error| error.to_string())?;
            } else {
                devices::add_backing(running, plan, export, None, warnings).map_err(|error| error.to_string())?;
                came.backings.insert((device, number));
            }
        }
        Ok(())
    }

    /// Every worker has these backings of pools that run.
    pub(super) fn follow_backings(&self, backings: &BTreeSet<(Slot, u16)>) -> Result<(), String> {
        backings.iter().try_for_each(|(device, number)| self.engine.follow(device.place(), *number))
    }

    /// A change fails: its backings go again, of which there is no client.
    pub(super) fn close_again(&mut self, came: &Came) {
        self.closing.extend(&came.backings);
        self.close_those_without_requests();
    }

    /// Closes backings that the plan has no more.
    pub(super) fn close_backings(&mut self, before: &Difference) {
        let plan = &self.plan;
        self.closing.retain(|(device, _)| plan.devices.get(*device).is_some());
        let gone = before.exports.values().flatten().filter(|export| export.path.is_some());
        let gone = gone.filter(|export| plan.devices.get(export.device).is_some());
        let gone: Vec<(Slot, u16)> = gone.map(|export| (export.device, number_of(export.offset_bytes))).collect();
        if gone.is_empty() {
            return;
        }
        let there = &self.names.backings;
        let is_gone =
            |(device, number): &(Slot, u16)| there.get(device).is_none_or(|numbers| !numbers.contains(number));
        self.closing.extend(gone.into_iter().filter(is_gone).collect::<Vec<_>>());
        self.close_those_without_requests();
    }

    /// Closes backings of which no request is left, and keeps the others.
    pub(super) fn close_those_without_requests(&mut self) {
        let waits: BTreeSet<(Slot, u16)> =
            self.pending_io.regions().map(|(device, at)| (device, number_of(at))).collect();
        let (engine, runtime) = (&self.engine, &self.runtime);
        self.closing.retain(|backing| {
            let (device, number) = *backing;
            let region = region_of(number);
            let ended =
                || engine.await_end(device.place(), Remains::Bytes(region, region + REGION_BYTES), pending_io::LOOK);
            if waits.contains(backing) || ended().is_err() {
                return true;
            }
            devices::remove_backing(&*runtime.devices[&device], number);
            engine.follow(device.place(), number).is_err()
        });
    }

    /// An export whose backing was seen to have more bytes than it had, since the last call; its size is not
    /// configured.
    pub fn grown_backing(&self) -> Option<String> {
        let grown = self
            .runtime
            .devices
            .iter()
            .find_map(|(slot, device)| Some((*slot, devices::pool(&**device)?.take_grown()?)));
        let (device, number) = grown?;
        let is_it = |export: &&ExportPlan| {
            export.device == device && export.path.is_some() && number_of(export.offset_bytes) == number
        };
        let export = self.plan.exports.values().find(is_it)?;
        (!export.has_size).then(|| export.name.clone())
    }

    /// Closes the backing of an export, after its clients, and puts `plan` in force, which has it: it is opened anew.
    /// Others are served on.
    ///
    /// # Errors
    /// As [`Reconciler::reopen`].
    pub fn reopen_backing(&mut self, name: &str, plan: &Plan) -> Result<(), Refusals> {
        if let Some(slot) = self.names.exports.get(name).copied() {
            let export = &self.plan.exports[slot];
            let (device, number) = (export.device, number_of(export.offset_bytes));
            let Some(without) = self.plan.without_export(slot) else {
                let device = self.plan.devices[device].config.name.clone();
                return self.reopen(&device, plan);
            };
            self.refuse_to_unbind(&format!("export {name}"), &without)?;
            self.propose(&without, false)?;
            let end = Instant::now() + self.patience();
            while self.closing.contains(&(device, number)) {
                if Instant::now() >= end {
                    return Err(format!("it has not ended its requests within {} s", self.patience().as_secs()).into());
                }
                std::thread::park_timeout(CLOSED_AGAIN);
                self.look_again(false);
            }
        }
        self.propose(plan, false).map(drop)
    }
}
