//! Requests of things that are gone, which a device has not ended.
//!
//! Answers: what becomes of a change while a device hangs? It goes on without the parts that the device keeps: the
//! index of a removed device is not used again, and bytes that such a request may still write are not offered (I11 of
//! `docs/inside/invariants.md`), until a later look finds that the requests have ended. Each proposal looks first.

use crate::config::difference::Difference;
use crate::config::{ExportPlan, Plan};
use mqfq_blk::client::Remains;
use mqfq_blk::engine::Engine;
use mqfq_blk::slots::Slot;
use mqfq_config::text::shown;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// For all workers to say that no request is left.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// [`LOOK`] where many things share the time: each proposal waits for all of them.
const LOOK_LEAST: Duration = Duration::from_millis(5);

/// Bytes of a device that requests of an export may still reach.
struct Bytes {
    device: Slot,
    range: Range<u64>,
    export: String,
}

/// All remains.
#[derive(Default)]
pub struct PendingIo {
    /// Indices of devices that were removed.
    devices: BTreeSet<usize>,
    bytes: Vec<Bytes>,
    /// Devices that still lack the flows or the policy of the plan.
    behind: BTreeSet<Slot>,
}

impl PendingIo {
    /// Forgets requests that have ended since. True: there were some.
    pub fn look(&mut self, engine: &Engine) -> bool {
        let before = (self.devices.len(), self.bytes.len());
        let count = u32::try_from(before.0 + before.1).unwrap_or(u32::MAX).max(1);
        let patience = (LOOK / count).max(LOOK_LEAST);
        self.bytes.retain(|bytes| is_left(engine, bytes.device, &bytes.range, patience));
        self.devices.retain(|place| engine.remove_device(*place, patience).is_err());
        before != (self.devices.len(), self.bytes.len())
    }

    /// Indices that no device may have.
    pub fn places(&self) -> &BTreeSet<usize> {
        &self.devices
    }

    /// Devices, and the first of the bytes there that requests may still reach.
    pub fn regions(&self) -> impl Iterator<Item = (Slot, u64)> {
        self.bytes.iter().map(|bytes| (bytes.device, bytes.range.start))
    }

    /// A device was removed; unless it `is_gone` it has not ended its requests, and keeps its index.
    pub fn device(&mut self, device: Slot, is_gone: bool) {
        self.bytes.retain(|bytes| bytes.device != device);
        if !is_gone {
            self.devices.insert(device.place());
        }
    }

    /// Notes whether a device has the flows and the policy of the plan.
    pub fn follow(&mut self, device: Slot, is_planned: bool) {
        match is_planned {
            true => drop(self.behind.remove(&device)),
            false => drop(self.behind.insert(device)),
        }
    }

    /// Devices that lack the plan's flows or policy.
    pub fn behind(&self) -> Vec<Slot> {
        self.behind.iter().copied().collect()
    }

    /// Looks at `range` of a device, which was `export`'s. True: something is left, and the bytes are not offered.
    pub fn bytes(&mut self, engine: &Engine, device: Slot, range: Range<u64>, export: &str) -> bool {
        let is_left = is_left(engine, device, &range, LOOK);
        if is_left {
            self.bytes.push(Bytes { device, range, export: export.to_owned() });
        }
        is_left
    }

    /// Such bytes are in the range of an export, beyond the first `had`, which are its own.
    pub fn is_in_the_way(&self, export: &ExportPlan, had: u64) -> bool {
        self.of(export, had).is_some()
    }

    /// Refuses a change that offers such bytes to an export that does not have them `before`.
    ///
    /// # Errors
    /// One sentence, with the place.
    pub fn refuse(&self, new: &Difference, before: &Plan) -> Result<(), String> {
        for (slot, export) in &new.exports {
            let Some(export) = export else { continue };
            let had = before.exports.get(*slot).map_or(0, |before| before.size_bytes);
            if had < export.size_bytes
                && let Some(Bytes { device, range: Range { start, end }, export: gone }) = self.of(export, had)
            {
                let (device, gone) = (&before.devices[*device].config.name, shown(gone));
                return Err(export
                    .place
                    .error(format!(
                        "requests that export {gone} had may still write to bytes {start} to {} of device {device}, \
                         which has not ended them: allowed is other bytes, or to ask again later",
                        end - 1
                    ))
                    .to_string());
            }
        }
        Ok(())
    }

    fn of(&self, export: &ExportPlan, had: u64) -> Option<&Bytes> {
        let new = export.offset_bytes + had..export.offset_bytes + export.size_bytes;
        let is_here = |bytes: &&Bytes| {
            bytes.device == export.device && bytes.range.start < new.end && new.start < bytes.range.end
        };
        self.bytes.iter().find(is_here)
    }
}

fn is_left(engine: &Engine, device: Slot, range: &Range<u64>, patience: Duration) -> bool {
    engine.await_end(device.place(), Remains::Bytes(range.start, range.end), patience).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, RealFiles};

    fn plan(exports: &[(&str, u64)]) -> Plan {
        let section = |(name, offset): &(&str, u64)| {
            let keys = format!("device = \"d\"\ntenant = \"t\"\noffset = {offset}\nsize = 4096\nnbd = \"unix:/s\"");
            format!("[export.{name}]\n{keys}\n")
        };
        let exports: String = exports.iter().map(section).collect();
        let text = format!("[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n{exports}");
        Config::parse("c.toml", &text).unwrap().check(&RealFiles).unwrap()
    }

    #[test]
    fn no_export_that_comes_gets_bytes_that_requests_may_still_reach() {
        let before = plan(&[("there", 0)]);
        let new = before
            .aligned(&plan(&[("there", 0), ("a", 8192), ("b", 16384)]), &crate::config::TakenPlaces::default())
            .unwrap();
        let new = Difference::between(&before, &new);
        let device = before.devices.iter().next().unwrap().0;
        for (start, is_refused) in [(0, false), (4096, false), (8192, true), (16384, true), (20480, false)] {
            let bytes = vec![Bytes { device, range: start..start + 4096, export: "gone".to_owned() }];
            let refused = PendingIo { bytes, ..PendingIo::default() }.refuse(&new, &before);
            assert_eq!(refused.is_err(), is_refused, "{start}: {refused:?}");
        }
    }
}
