//! Do exports overlap that may not? Ranges of one device are kept in order, so that each export is compared with its
//! neighbours only.

use super::model::{DeviceConfig, ExportConfig};
use super::plan::Range;
use mqfq_config::{ConfigError, join};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The exports of one device that were looked at so far, as ranges by their first byte: `(start, end)`.
#[derive(Default)]
struct Taken {
    /// Ranges of exports that are not shared: no two touch the same byte.
    alone: BTreeMap<u64, u64>,
    /// Union of the shared ranges, so that no two touch the same byte here either.
    shared: BTreeMap<u64, u64>,
}

/// `start..end` touches one of `ranges`, of which no two touch the same byte.
fn touches(ranges: &BTreeMap<u64, u64>, start: u64, end: u64) -> bool {
    ranges.range(..end).next_back().is_some_and(|(_, last_end)| *last_end > start)
}

impl Taken {
    /// Adds an export. False: it has a byte that it may not have.
    fn add(&mut self, start: u64, end: u64, is_shared: bool) -> bool {
        if touches(&self.alone, start, end) || !is_shared && touches(&self.shared, start, end) {
            return false;
        }
        if is_shared {
            self.unite(start, end);
        } else {
            self.alone.insert(start, end);
        }
        true
    }

    /// Each range is swallowed once, so the work of all calls together grows with their number.
    fn unite(&mut self, mut start: u64, mut end: u64) {
        while let Some((&other_start, &other_end)) = self.shared.range(..end).next_back().filter(|(_, e)| **e > start) {
            (start, end) = (start.min(other_start), end.max(other_end));
            self.shared.remove(&other_start);
        }
        self.shared.insert(start, end);
    }
}

/// The exports of one device, of which one after the other comes and goes.
#[derive(Default)]
pub(super) struct Ranges {
    /// Ranges that are not shared, by the first byte, the byte after the last.
    alone: BTreeMap<u64, u64>,
    /// Number of shared ranges, by first byte and byte after the last.
    shared: BTreeMap<(u64, u64), usize>,
    /// No shared one is or was longer, bytes.
    longest: u64,
    count: usize,
}

impl Ranges {
    /// Number of exports.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// An export there would have no byte that it may not have.
    pub(super) fn has_room(&self, Range { start, end, .. }: &Range, is_shared: bool) -> bool {
        // Earlier ranges only as far back as one can reach into it.
        let first = (start.saturating_sub(self.longest), 0);
        let mut near = self.shared.range(first..(*end, 0));
        !touches(&self.alone, *start, *end) && (is_shared || !near.any(|((_, other_end), _)| other_end > start))
    }

    /// Adds an export for which there is room.
    pub(super) fn add(&mut self, Range { start, end, .. }: &Range, is_shared: bool) {
        self.count += 1;
        if is_shared {
            self.longest = self.longest.max(end - start);
            *self.shared.entry((*start, *end)).or_default() += 1;
        } else {
            self.alone.insert(*start, *end);
        }
    }

    /// Removes an export.
    pub(super) fn remove(&mut self, Range { start, end, .. }: &Range, is_shared: bool) {
        self.count -= 1;
        if !is_shared {
            self.alone.remove(start);
        } else if let Entry::Occupied(mut same) = self.shared.entry((*start, *end)) {
            *same.get_mut() -= 1;
            if *same.get() == 0 {
                same.remove();
            }
        }
    }
}

/// Two exports overlap only if both say `shared = true`. The later one in the file is blamed.
///
/// # Errors
/// The first export in the file that overlaps one before it.
pub(super) fn refuse(exports: &[ExportConfig], devices: &[DeviceConfig], ranges: &[Range]) -> Result<(), ConfigError> {
    let mut taken: Vec<Taken> = devices.iter().map(|_| Taken::default()).collect();
    for (later, (export, range)) in exports.iter().zip(ranges).enumerate() {
        if taken[range.device].add(range.start, range.end, export.shared) {
            continue;
        }
        // Only the sentence needs the other export.
        for (other, other_range) in exports.iter().zip(ranges).take(later) {
            let (start, end) = (range.start.max(other_range.start), range.end.min(other_range.end));
            if range.device == other_range.device && start < end && !(export.shared && other.shared) {
                return Err(export.place.error(format!(
                    "overlaps {} in bytes {start} to {} of device {}, allowed only if both say shared = true",
                    join("export", &other.name),
                    end - 1,
                    devices[range.device].name,
                )));
            }
        }
        unreachable!("an export that does not fit overlaps one that was added");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in an order that looks like none, the same in each run.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |last| {
            Some(last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        })
        .map(|number| number >> 33)
    }

    #[test]
    fn every_overlap_is_found_and_no_other() {
        let mut refused = 0;
        for seed in 0..2000 {
            let mut numbers = numbers(seed);
            let mut next = |below: u64| numbers.next().expect("they have no end") % below;
            let mut taken = Taken::default();
            let mut added: Vec<(u64, u64, bool)> = Vec::new();
            for _ in 0..12 {
                let (start, length, is_shared) = (next(40), 1 + next(6), next(2) == 0);
                let end = start + length;
                // The obvious way: with each one.
                let overlaps = added.iter().any(|&(other_start, other_end, other_is_shared)| {
                    start < other_end && other_start < end && !(is_shared && other_is_shared)
                });
                assert_eq!(taken.add(start, end, is_shared), !overlaps, "seed {seed}: {start}..{end} after {added:?}");
                if overlaps {
                    refused += 1;
                } else {
                    added.push((start, end, is_shared));
                }
            }
            // Exports come and go.
            let mut ranges = Ranges::default();
            let mut there: Vec<(Range, bool)> = Vec::new();
            for _ in 0..24 {
                if next(3) == 0 && !there.is_empty() {
                    let (range, is_shared) = there.swap_remove(next(there.len() as u64) as usize);
                    ranges.remove(&range, is_shared);
                }
                let (start, length, is_shared) = (next(40), 1 + next(6), next(2) == 0);
                let range = Range { device: 0, tenant: 0, start, end: start + length };
                let overlaps = there.iter().any(|(other, other_is_shared)| {
                    range.start < other.end && other.start < range.end && !(is_shared && *other_is_shared)
                });
                assert_eq!(ranges.has_room(&range, is_shared), !overlaps, "seed {seed}: {start}, {length} bytes");
                if !overlaps {
                    ranges.add(&range, is_shared);
                    there.push((range, is_shared));
                }
                assert_eq!(ranges.len(), there.len());
            }
        }
        assert!(refused > 2000, "most of these exports overlap: {refused}");
    }
}
