//! Requests of things that are gone, which a device has not ended.
//!
//! Answers: what becomes of a change while a device hangs? It goes on without what the device keeps: the index of a
//! device that was removed is nobody's, and bytes that such a request may still write are offered to nobody (I11 of
//! `ARCHITECTURE.md`), until a later look finds that the requests have ended. Each proposal looks first.

use crate::config::{ExportPlan, Plan};
use mqfq_blk::client::Remains;
use mqfq_blk::engine::Engine;
use mqfq_blk::slots::Slot;
use mqfq_config::text::shown;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// For all workers to say that nothing is left, if that is so.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// The same where many things are looked at, which share the time: each proposal waits for all of them.
const LOOK_LEAST: Duration = Duration::from_millis(5);

/// Bytes of a device that requests of an export may still reach.
struct Bytes {
    device: Slot,
    range: Range<u64>,
    export: String,
}

/// All that is left.
#[derive(Default)]
pub struct Unended {
    /// Indices of devices that were removed.
    devices: BTreeSet<usize>,
    bytes: Vec<Bytes>,
    /// Devices whose flows or policy are not those of the plan.
    behind: BTreeSet<Slot>,
}

impl Unended {
    /// Forgets what has ended since. True: there was something.
    pub fn look(&mut self, engine: &Engine) -> bool {
        let before = (self.devices.len(), self.bytes.len());
        let count = u32::try_from(before.0 + before.1).unwrap_or(u32::MAX).max(1);
        let patience = (LOOK / count).max(LOOK_LEAST);
        self.bytes.retain(|bytes| is_left(engine, bytes.device, &bytes.range, patience));
        self.devices.retain(|place| engine.remove_device(*place, patience).is_err());
        before != (self.devices.len(), self.bytes.len())
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.bytes.is_empty() && self.behind.is_empty()
    }

    /// Indices that no device may have.
    pub fn places(&self) -> &BTreeSet<usize> {
        &self.devices
    }

    /// A device was removed; unless it `is_gone` it has not ended its requests, and keeps its index.
    pub fn device(&mut self, device: Slot, is_gone: bool) {
        self.bytes.retain(|bytes| bytes.device != device);
        if !is_gone {
            self.devices.insert(device.place());
        }
    }

    /// Flows or the policy of a device were to be those of the plan. Unless it `is_planned` it has others still.
    pub fn follow(&mut self, device: Slot, is_planned: bool) {
        match is_planned {
            true => drop(self.behind.remove(&device)),
            false => drop(self.behind.insert(device)),
        }
    }

    /// Devices that have others than the plan's.
    pub fn behind(&self) -> Vec<Slot> {
        self.behind.iter().copied().collect()
    }

    /// Looks at `range` of a device, which was `export`'s. True: something is left, and from now on nobody gets it.
    pub fn bytes(&mut self, engine: &Engine, device: Slot, range: Range<u64>, export: &str) -> bool {
        let is_left = is_left(engine, device, &range, LOOK);
        if is_left {
            self.bytes.push(Bytes { device, range, export: export.to_owned() });
        }
        is_left
    }

    /// An export whose first `had` bytes are its own would get such bytes with the rest.
    pub fn is_in_the_way(&self, export: &ExportPlan, had: u64) -> bool {
        self.of(export, had).is_some()
    }

    /// Refuses a plan that offers such bytes to somebody who does not have them `before`.
    ///
    /// # Errors
    /// One sentence, with the place.
    pub fn refuse(&self, plan: &Plan, before: &Plan) -> Result<(), String> {
        for (slot, export) in plan.exports.iter() {
            let had = before.exports.get(slot).map_or(0, |before| before.size_bytes);
            if let Some(Bytes { device, range: Range { start, end }, export: gone }) = self.of(export, had) {
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
