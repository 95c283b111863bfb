//! Where on a device is room for an export? Computed here, from what the server says is in force.
//!
//! The server refuses exports that overlap, so a change that another client makes in between costs an answer, not a
//! byte.

use crate::client::{Ask, Client};
use crate::model::{Kind, Thing, ThingList};
use axum::http::Method;
use mqfq_config::size;
use mqfq_config::text::shown;
use serde_json::{Map, Value};
use std::ops::Range;

/// Exports begin at multiples of the first of these that has room, bytes: what is fast on all drives, then what all
/// drives take.
const ALIGNMENTS: [u64; 2] = [1 << 20, 1 << 16];

/// A device's size where only opening it says which: the server knows.
const UNKNOWN: u64 = 1 << 62;

/// A device and what of it exports have.
pub(super) struct Device {
    name: String,
    size_bytes: u64,
    /// In order, with the names of the exports.
    taken: Vec<(Range<u64>, String)>,
}

fn number(thing: &Thing, key: &str) -> Option<u64> {
    let value = thing.in_force.get(key).or(thing.configured.get(key))?;
    bytes(value)
}

/// A size as the config has it.
fn bytes(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| size::parse(value.as_str()?))
}

fn text<'a>(thing: &'a Thing, key: &str) -> Option<&'a str> {
    thing.in_force.get(key).or(thing.configured.get(key))?.as_str()
}

impl Device {
    fn new(device: &Thing, exports: &[Thing]) -> Device {
        let is_here = |export: &&Thing| text(export, "device") == Some(&device.name);
        let range = |export: &Thing| {
            let start = number(export, "offset").unwrap_or(0);
            Some((start..start + number(export, "size")?, export.name.clone()))
        };
        let mut taken: Vec<_> = exports.iter().filter(is_here).filter_map(range).collect();
        taken.sort_by_key(|(range, _)| (range.start, range.end));
        Device { name: device.name.clone(), size_bytes: number(device, "size").unwrap_or(UNKNOWN), taken }
    }

    /// Ranges outside all exports, in order.
    fn free(&self) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        let mut at = 0;
        for (range, _) in &self.taken {
            if at < range.start {
                free.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < self.size_bytes {
            free.push(at..self.size_bytes);
        }
        free
    }

    /// The first place for so many bytes.
    fn first_fit(&self, size_bytes: u64) -> Option<u64> {
        let fits = |align: u64| {
            let mut starts = self.free().into_iter().map(move |free| (free.start.next_multiple_of(align), free.end));
            starts.find(|(start, end)| start.checked_add(size_bytes).is_some_and(|last| last <= *end))
        };
        ALIGNMENTS.into_iter().find_map(fits).map(|(start, _)| start)
    }

    /// For `ctl device show`: what is free, in words.
    pub(super) fn show(&self) -> String {
        if self.size_bytes == UNKNOWN {
            return "free: all of it\n".to_owned();
        }
        let free = self.free();
        let sum: u64 = free.iter().map(|range| range.end - range.start).sum();
        let lines = free.iter().map(|Range { start, end }| {
            format!("free: {} at offset {}\n", size::display(end - start), size::display(*start))
        });
        let last = format!("free in all: {} of {}\n", size::display(sum), size::display(self.size_bytes));
        lines.chain([last]).collect()
    }
}

fn things(client: &Client, kind: Kind) -> Result<Vec<Thing>, String> {
    let reply = client.ask(Ask::new(Method::GET, format!("/v1/{}", kind.plural())))?;
    Ok(reply.json::<ThingList>()?.things)
}

/// The device that a reply is about, with its exports.
///
/// # Errors
/// One sentence.
pub(super) fn of_device(client: &Client, device: &Thing) -> Result<Device, String> {
    Ok(Device::new(device, &things(client, Kind::Export)?))
}

/// Gives an export that comes a device and a place, where `keys` have a size and no offset. Nothing of the operator's
/// is at a place that he did not name: the export begins with zeroes there, unless `keys` say otherwise.
///
/// # Errors
/// One sentence: there is no room.
pub(super) fn find(client: &Client, keys: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let mut keys = keys.clone();
    let Some(size_bytes) =
        keys.get("size").and_then(bytes).filter(|_| !keys.contains_key("offset") && !keys.contains_key("path"))
    else {
        return Ok(keys);
    };
    let (devices, exports) = (things(client, Kind::Device)?, things(client, Kind::Export)?);
    let wanted = keys.get("device").and_then(Value::as_str).map(str::to_owned);
    let is_wanted = |device: &&Thing| wanted.as_ref().is_none_or(|wanted| *wanted == device.name);
    let is_pool = |device: &&Thing| text(device, "kind") == Some("pool");
    let devices = devices.iter().filter(is_wanted).filter(|device| !is_pool(device));
    let devices: Vec<Device> = devices.map(|device| Device::new(device, &exports)).collect();
    if devices.is_empty() {
        // The server has the sentence about it.
        return Ok(keys);
    }
    let found = devices.iter().find_map(|device| Some((device, device.first_fit(size_bytes)?)));
    let Some((device, offset)) = found else {
        let largest = |device: &Device| device.free().into_iter().map(|free| free.end - free.start).max().unwrap_or(0);
        let room = |device: &Device| match largest(device) {
            0 => format!("device {} is full", shown(&device.name)),
            most => format!("device {} has {}", shown(&device.name), size::display(most)),
        };
        let rooms = devices.iter().map(room);
        let (size, rooms) = (size::display(size_bytes), rooms.collect::<Vec<_>>().join(", "));
        return Err(format!("no device has room for {size} in one piece: {rooms}"));
    };
    keys.insert("device".to_owned(), device.name.clone().into());
    keys.insert("offset".to_owned(), size::display(offset).into());
    keys.entry("keep-data").or_insert(false.into());
    Ok(keys)
}

/// Refuses another size of an export that loses bytes unless that `is_meant`, or that another export is in the way of.
///
/// # Errors
/// One sentence.
pub(super) fn check_resize(client: &Client, name: &str, to: &Value, is_meant: bool) -> Result<(), String> {
    let Some(to) = bytes(to) else { return Ok(()) };
    let exports = things(client, Kind::Export)?;
    let Some(export) = exports.iter().find(|export| export.name == name) else { return Ok(()) };
    let (Some(from), Some(device)) = (number(export, "size"), text(export, "device")) else { return Ok(()) };
    let name = shown(name);
    if to < from && !is_meant {
        let (from, to) = (size::display(from), size::display(to));
        return Err(format!("export {name} shrinks from {from} to {to}, and what is beyond is lost: --yes does it"));
    }
    let is_shared = export.configured.get("shared") == Some(&Value::Bool(true));
    let start = number(export, "offset").unwrap_or(0);
    let devices = things(client, Kind::Device)?;
    let Some(device) = devices.iter().find(|other| other.name == device) else { return Ok(()) };
    let device = Device::new(device, &exports);
    let is_behind = |(range, other): &&(Range<u64>, String)| {
        *other != export.name && range.start >= start + from && range.start < start + to
    };
    if let Some((range, other)) = device.taken.iter().find(is_behind).filter(|_| to > from && !is_shared) {
        let (most, other) = (size::display(range.start - start), shown(other));
        return Err(format!(
            "export {other} begins where export {name} would have to end, and a resize moves nothing: allowed is up to \
             {most}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::single_range_in_vec_init, reason = "lists of ranges that happen to have one")]

    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn thing(name: &str, in_force: Value) -> Thing {
        let (configured, in_force) = (Map::new(), in_force.as_object().unwrap().clone());
        Thing { name: name.to_owned(), revision: 1, configured, in_force, set_by: BTreeMap::new() }
    }

    fn device(size: u64, exports: &[(u64, u64)]) -> Device {
        let export = |(offset, size): &(u64, u64)| {
            thing(&format!("e{offset}"), json!({ "device": "d", "offset": offset, "size": size }))
        };
        let others = [thing("other", json!({ "device": "e", "offset": 0, "size": size }))];
        let exports: Vec<Thing> = exports.iter().map(export).chain(others).collect();
        Device::new(&thing("d", json!({ "size": size })), &exports)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_free_is_what_no_export_has_also_where_they_share() {
        assert_eq!(device(100, &[]).free(), [0..100]);
        assert_eq!(device(100, &[(0, 100)]).free(), [0..0; 0]);
        assert_eq!(device(100, &[(60, 10), (10, 20), (15, 30)]).free(), [0..10, 45..60, 70..100]);
        let said = device(4 * MIB, &[(MIB, MIB)]).show();
        let expected = "free: 1MiB at offset 0\nfree: 2MiB at offset 2MiB\nfree in all: 3MiB of 4MiB\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn the_first_aligned_place_that_is_large_enough_is_found() {
        let sparse = device(8 * MIB, &[(0, 4096), (2 * MIB, MIB)]);
        assert_eq!(sparse.first_fit(MIB), Some(MIB));
        assert_eq!(sparse.first_fit(2 * MIB), Some(3 * MIB));
        assert_eq!((sparse.first_fit(6 * MIB), sparse.first_fit(5 * MIB)), (None, Some(3 * MIB)));
        // Less than a whole MiB is left: the smaller alignment.
        assert_eq!(device(MIB, &[(0, 4096)]).first_fit(MIB / 2), Some(65_536));
    }

    #[test]
    fn a_device_that_nobody_has_opened_has_all_of_its_room() {
        let unopened = Device::new(&thing("d", json!({})), &[]);
        assert_eq!((unopened.first_fit(1 << 40), unopened.show().as_str()), (Some(0), "free: all of it\n"));
    }
}
