//! The time that a command takes: dies in parallel, then one shared link.
//!
//! # Shape
//! ```text
//!                 die 0  ▮▮▮──────────┐
//!  command ─▶     die 1  ▮▮───────────┤   each page waits for its die (FIFO), then takes the die's latency
//!  pages striped  die 2  ▮────────────┼─▶ link (FIFO) ─▶ done
//!  from a random   ...                │   time per command + bytes / bandwidth
//!  die on         die n  ─────────────┘
//! ```
//! The first stage gives a lone command its latency and hardly ever saturates; the second saturates. Such a drive is
//! full at D = latency times rate, its bandwidth-delay product, as real ones are: the P3700 at 64 = 139 us x 460 K/s
//! (MQFQ, ATC'19, section 4). A model of FIFO dies alone would be full only at many times their number, and its latency
//! there would leave no scheduler a choice between use and latency.
//!
//! With a volatile cache ([`VolatileCache`]) a write is dirty when it has passed the link, and a flush holds the link
//! while it writes back all that is dirty. Nothing is written back before, unless the cache is full: then a write holds
//! the link for as many bytes as it needs room. A write with FUA is written back by itself.
//!
//! Flush, Write Zeroes, Deallocate, hints and refused commands move no data: a latency without a die, then the link's
//! time per command. The model knows nothing of wear or mapping. `spells.rs` adds what a drive does now and then.
//!
//! # Invariants
//! M1. Commands end in the order in which the link began them, and the link begins them in the order in which their
//!     first stage ended (ties: in the order in which they began). So the next end is known as soon as the next command
//!     to leave the first stage is, and nothing that begins later can end before it.
//! M2. Time is in whole nanoseconds. The remainder of the division bytes / bandwidth is carried to the next command of
//!     that direction, so a long run takes exactly bytes / bandwidth, with no drift.
//!
//! # Cost
//! One random number and a few additions per page, one push and pop of a heap of at most `inside_max` per command.
//! No allocation after construction.

use super::spells::Spells;
use crate::random::Random;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The link's time for one command: `command_ns` + bytes / `bytes_per_s`, and no less than for `shortest_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkRate {
    /// Time per command, nanoseconds.
    pub command_ns: u64,
    /// Bandwidth, bytes per second, 1..=2^40.
    pub bytes_per_s: u64,
    /// A shorter transfer takes as long as one of this many bytes: a flash drive whose commands per second are limited
    /// by its controller and its pages does no more of 512 bytes than of 4 KiB. 0: no minimum.
    pub shortest_bytes: u32,
}

impl LinkRate {
    /// Commands per second that the link can carry when each moves `bytes`.
    pub const fn commands_per_s(&self, bytes: u32) -> u64 {
        // 1 / (c ns + bytes / B s) = B * 10^9 / (c * B + bytes * 10^9), with everything in integers of 128 bits.
        let per_command =
            self.command_ns as u128 * self.bytes_per_s as u128 + self.moved_bytes(bytes) as u128 * NS_PER_S as u128;
        (self.bytes_per_s as u128 * NS_PER_S as u128 / per_command) as u64
    }

    /// Bytes whose time a transfer of `bytes` takes. A command that moves none (a flush) is no transfer.
    const fn moved_bytes(&self, bytes: u32) -> u32 {
        if bytes > 0 && bytes < self.shortest_bytes { self.shortest_bytes } else { bytes }
    }
}

/// A write cache that a power cut empties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolatileCache {
    /// Latency of a flush that finds nothing dirty, in place of [`MediaOptions::flush_ns`].
    pub flush_ns: u64,
    /// Bytes per second that are written back, 1..=2^40. All other commands wait meanwhile.
    pub back_bytes_per_s: u64,
    /// Bytes that it holds.
    pub size_bytes: u64,
}

impl VolatileCache {
    /// As [`MediaOptions::slowed`].
    pub const fn slowed(self, numerator: u64, denominator: u64) -> VolatileCache {
        let VolatileCache { flush_ns, back_bytes_per_s, size_bytes } = self;
        VolatileCache {
            flush_ns: ns(flush_ns, numerator, denominator),
            back_bytes_per_s: (back_bytes_per_s * denominator + numerator / 2) / numerator,
            size_bytes,
        }
    }
}

/// A time multiplied by `numerator / denominator`.
const fn ns(ns: u64, numerator: u64, denominator: u64) -> u64 {
    (ns * numerator + denominator / 2) / denominator
}

/// A drive's times. Latencies are means; each page of a read or write varies by +-10%, evenly spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MediaOptions {
    /// Dies working in parallel, 1..=65535.
    pub dies: u16,
    /// Bytes that one die reads or programs at a time, at least 1.
    pub page_bytes: u32,
    /// Die time of a page read.
    pub read_ns: u64,
    /// Die time of a page written (into a protected cache, if the drive has one).
    pub write_ns: u64,
    /// Die time of a page written with FUA; the same as `write_ns` where the cache survives a power cut.
    pub write_through_ns: u64,
    /// Latency of a flush.
    pub flush_ns: u64,
    /// Latency of a Dataset Management deallocate.
    pub deallocate_ns: u64,
    /// Latency of a Write Zeroes.
    pub write_zeroes_ns: u64,
    /// The link for reads and for commands without data.
    pub read_link: LinkRate,
    /// The link for writes.
    pub write_link: LinkRate,
    /// `None`: the cache, if there is one, survives a power cut.
    pub cache: Option<VolatileCache>,
    /// Most commands inside the drive; further ones wait in their submission rings. 1..=65535.
    pub inside_max: u16,
}

impl MediaOptions {
    /// This drive with every time multiplied by `numerator / denominator`, so that ratios and the bandwidth-delay
    /// product stay as they are.
    pub const fn slowed(self, numerator: u64, denominator: u64) -> MediaOptions {
        const fn link(link: LinkRate, numerator: u64, denominator: u64) -> LinkRate {
            LinkRate {
                command_ns: ns(link.command_ns, numerator, denominator),
                bytes_per_s: (link.bytes_per_s * denominator + numerator / 2) / numerator,
                ..link
            }
        }
        let cache = match self.cache {
            Some(cache) => Some(cache.slowed(numerator, denominator)),
            None => None,
        };
        MediaOptions {
            cache,
            read_ns: ns(self.read_ns, numerator, denominator),
            write_ns: ns(self.write_ns, numerator, denominator),
            write_through_ns: ns(self.write_through_ns, numerator, denominator),
            flush_ns: ns(self.flush_ns, numerator, denominator),
            deallocate_ns: ns(self.deallocate_ns, numerator, denominator),
            write_zeroes_ns: ns(self.write_zeroes_ns, numerator, denominator),
            read_link: link(self.read_link, numerator, denominator),
            write_link: link(self.write_link, numerator, denominator),
            ..self
        }
    }
}

const NS_PER_S: u64 = 1_000_000_000;

/// The parts of a command that its time depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Data from the medium to the host.
    Read {
        /// Length of the data, bytes.
        bytes: u32,
    },
    /// Data from the host to the medium.
    Write {
        /// Length of the data, bytes.
        bytes: u32,
        /// FUA: past any cache.
        fua: bool,
    },
    /// Flush; transfers no data.
    Flush,
    /// Write Zeroes; transfers no data.
    WriteZeroes,
    /// Deallocate or discard; transfers no data.
    Deallocate,
    /// A hint, which the drive accepts and ignores.
    Hint,
}

/// The link's work for a command.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    bytes: u32,
    write: bool,
    cached: Cached,
}

/// Effect of a command on a volatile cache.
#[derive(Clone, Copy, Debug)]
enum Cached {
    /// None.
    Nothing,
    /// Its bytes become dirty.
    Dirties,
    /// Its own bytes are written back.
    WritesThrough,
    /// All that is dirty is written back.
    WritesBack,
}

impl Transfer {
    const NO_DATA: Transfer = Transfer { bytes: 0, write: false, cached: Cached::Nothing };
}

/// A command in the first stage: the time when it leaves, and its place among those that leave at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Leaving {
    at_ns: u64,
    order: u64,
    slot: u16,
}

/// The medium of a drive. Commands are named by a slot below `inside_max`.
#[derive(Debug)]
pub struct Media {
    options: MediaOptions,
    random: Random,
    /// Time when each die has done all its work.
    dies: Box<[u64]>,
    transfers: Box<[Transfer]>,
    first_stage: BinaryHeap<Reverse<Leaving>>,
    begun: u64,
    link: Link,
    /// Commands on the link and their ends, in order.
    ending: VecDeque<(u64, u16)>,
    spells: Spells,
}

/// The second stage.
#[derive(Debug)]
struct Link {
    busy_until_ns: u64,
    /// Remainders of the divisions, in bytes x 10^9 modulo the bandwidth: reads, writes (M2).
    carry: [u64; 2],
    /// Bytes in the volatile cache that were not written back.
    dirty_bytes: u64,
}

/// End of a transfer, and what it leaves behind.
struct End {
    at_ns: u64,
    carry: u64,
    dirty_bytes: u64,
}

impl Link {
    /// Bytes that a transfer writes back, and those that are dirty afterwards.
    fn written_back(&self, cache: &VolatileCache, transfer: Transfer) -> (u64, u64) {
        let bytes = u64::from(transfer.bytes);
        match transfer.cached {
            Cached::Nothing => (0, self.dirty_bytes),
            Cached::Dirties => {
                let dirty_bytes = self.dirty_bytes + bytes;
                let back_bytes = dirty_bytes.saturating_sub(cache.size_bytes);
                (back_bytes, dirty_bytes - back_bytes)
            }
            Cached::WritesThrough => (bytes, self.dirty_bytes),
            Cached::WritesBack => (self.dirty_bytes, 0),
        }
    }

    /// End of a transfer that comes at `at_ns`.
    fn end(&self, options: &MediaOptions, spells: &Spells, at_ns: u64, transfer: Transfer) -> End {
        let rate = if transfer.write { &options.write_link } else { &options.read_link };
        // Below 2^32 x 2^30 + 2^40: no overflow.
        let bytes_ns = u64::from(rate.moved_bytes(transfer.bytes)) * NS_PER_S + self.carry[usize::from(transfer.write)];
        let begin_ns = spells.after_pause(at_ns.max(self.busy_until_ns));
        let (back_ns, dirty_bytes) = match &options.cache {
            Some(cache) => {
                let (back_bytes, dirty_bytes) = self.written_back(cache, transfer);
                let back_ns = u128::from(back_bytes) * u128::from(NS_PER_S) / u128::from(cache.back_bytes_per_s);
                (back_ns as u64, dirty_bytes)
            }
            None => (0, 0),
        };
        let mut took_ns = (rate.command_ns + bytes_ns / rate.bytes_per_s + back_ns) * spells.slowed(begin_ns);
        if transfer.write {
            took_ns = spells.drifted(took_ns, begin_ns);
        }
        End { at_ns: begin_ns + took_ns, carry: bytes_ns % rate.bytes_per_s, dirty_bytes }
    }
}

impl Media {
    /// A medium at rest, whose random numbers are those of `seed`.
    ///
    /// # Panics
    /// If an option is outside its range: options come from a preset or a test.
    pub fn new(options: MediaOptions, seed: u64) -> Media {
        let MediaOptions { dies, page_bytes, inside_max, read_link, write_link, .. } = options;
        assert!(dies >= 1 && page_bytes >= 1 && inside_max >= 1, "a drive without dies, pages or room: {options:?}");
        let rates = [read_link.bytes_per_s, write_link.bytes_per_s];
        for bytes_per_s in rates.into_iter().chain(options.cache.map(|cache| cache.back_bytes_per_s)) {
            assert!((1..=1 << 40).contains(&bytes_per_s), "bandwidth of {bytes_per_s} bytes/s, not 1..=2^40");
        }
        let inside_max = inside_max as usize;
        Media {
            options,
            random: Random::new(seed),
            dies: vec![0; dies as usize].into_boxed_slice(),
            transfers: vec![Transfer::NO_DATA; inside_max].into_boxed_slice(),
            first_stage: BinaryHeap::with_capacity(inside_max),
            begun: 0,
            link: Link { busy_until_ns: 0, carry: [0; 2], dirty_bytes: 0 },
            ending: VecDeque::with_capacity(inside_max),
            spells: Spells::default(),
        }
    }

    /// Sets the spells from now on.
    pub fn set_spells(&mut self, spells: Spells) {
        self.spells = spells;
    }

    /// Begins a command. `None` is a refused command: it costs the link's time per command and no more.
    pub fn begin(&mut self, work: Option<Work>, slot: u16, now_ns: u64) {
        let options = &self.options;
        let (at_ns, transfer) = match work {
            Some(Work::Read { bytes }) => {
                (self.stripe(bytes, options.read_ns, now_ns), Transfer { bytes, ..Transfer::NO_DATA })
            }
            Some(Work::Write { bytes, fua }) => {
                let die_ns = if fua { options.write_through_ns } else { options.write_ns };
                let cached = if fua { Cached::WritesThrough } else { Cached::Dirties };
                (self.stripe(bytes, die_ns, now_ns), Transfer { bytes, write: true, cached })
            }
            Some(Work::Flush) => {
                let flush_ns = options.cache.map_or(options.flush_ns, |cache| cache.flush_ns);
                (now_ns + flush_ns, Transfer { cached: Cached::WritesBack, ..Transfer::NO_DATA })
            }
            Some(Work::Deallocate) => (now_ns + options.deallocate_ns, Transfer::NO_DATA),
            Some(Work::WriteZeroes) => (now_ns + options.write_zeroes_ns, Transfer::NO_DATA),
            Some(Work::Hint) | None => (now_ns, Transfer::NO_DATA),
        };
        self.transfers[slot as usize] = transfer;
        self.first_stage.push(Reverse(Leaving { at_ns, order: self.begun, slot }));
        self.begun += 1;
    }

    /// Gives the pages of a transfer to consecutive dies, beginning with a random one; returns the time when the last
    /// is done. A longer transfer goes round, and a die then works on several pages in turn.
    fn stripe(&mut self, bytes: u32, die_ns: u64, now_ns: u64) -> u64 {
        let die_ns = die_ns * self.spells.slowed(now_ns);
        let pages = bytes.div_ceil(self.options.page_bytes).max(1);
        let dies = self.dies.len();
        let mut die = self.random.below(dies as u64) as usize;
        // +-10%: between 9/10 and 11/10 of the latency, both included.
        let shortest_ns = die_ns - die_ns / 10;
        let spread_ns = die_ns / 10 * 2 + 1;
        let mut last_ns = now_ns;
        for _ in 0..pages {
            let begin_ns = self.dies[die].max(now_ns);
            let end_ns = begin_ns + shortest_ns + self.random.below(spread_ns);
            self.dies[die] = end_ns;
            last_ns = last_ns.max(end_ns);
            die = if die + 1 == dies { 0 } else { die + 1 };
        }
        match self.spells.late {
            Some(late) if self.random.below(1000) < u64::from(late.permille) => {
                now_ns + (last_ns - now_ns) * u64::from(late.times)
            }
            _ => last_ns,
        }
    }

    /// End of the next command, if nothing new begins before (by M1 a new one cannot end sooner than a command that has
    /// left the first stage by then).
    pub fn next_end_ns(&self) -> Option<u64> {
        if let Some(&(end_ns, _)) = self.ending.front() {
            return Some(end_ns);
        }
        let Reverse(leaving) = self.first_stage.peek()?;
        Some(self.link.end(&self.options, &self.spells, leaving.at_ns, self.transfers[leaving.slot as usize]).at_ns)
    }

    /// Moves the model to the next command that ends at or before `now_ns`, and returns the command and its end.
    pub fn next_ended(&mut self, now_ns: u64) -> Option<(u64, u16)> {
        loop {
            let end_ns = self.ending.front().map(|&(end_ns, _)| end_ns);
            let leave_ns = self.first_stage.peek().map(|Reverse(leaving)| leaving.at_ns);
            match (leave_ns, end_ns) {
                // Leaving the first stage goes before ending at the same time: the link is FIFO, so it makes no
                // difference to the times, and one order must be the rule.
                (Some(leave_ns), end_ns) if leave_ns <= now_ns && end_ns.is_none_or(|end_ns| leave_ns <= end_ns) => {
                    let Some(Reverse(leaving)) = self.first_stage.pop() else { unreachable!("it was just looked at") };
                    self.enter_link(leaving);
                }
                (_, Some(end_ns)) if end_ns <= now_ns => return self.ending.pop_front(),
                _ => return None,
            }
        }
    }

    fn enter_link(&mut self, leaving: Leaving) {
        let transfer = self.transfers[leaving.slot as usize];
        let End { at_ns, carry, dirty_bytes } = self.link.end(&self.options, &self.spells, leaving.at_ns, transfer);
        self.link.busy_until_ns = at_ns;
        self.link.carry[usize::from(transfer.write)] = carry;
        self.link.dirty_bytes = dirty_bytes;
        self.ending.push_back((at_ns, leaving.slot));
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::super::spells::{Drift, Late, Pauses, Slow};
    use super::*;

    const LINK: LinkRate = LinkRate { command_ns: 700, bytes_per_s: 3_000_000_000, shortest_bytes: 0 };

    fn options() -> MediaOptions {
        MediaOptions {
            dies: 4,
            page_bytes: 4096,
            read_ns: 100_000,
            write_ns: 20_000,
            write_through_ns: 20_000,
            flush_ns: 5_000,
            deallocate_ns: 6_000,
            write_zeroes_ns: 7_000,
            read_link: LINK,
            write_link: LinkRate { command_ns: 1_000, bytes_per_s: 1_000_000_000, shortest_bytes: 0 },
            cache: None,
            inside_max: 1000,
        }
    }

    /// Ends of everything that was begun.
    fn drain(media: &mut Media) -> Vec<(u64, u16)> {
        std::iter::from_fn(|| media.next_ended(u64::MAX)).collect()
    }

    #[test]
    fn a_lone_read_takes_the_die_and_then_the_link() {
        // 100 us +- 10% on the die; 700 ns + 4096 B / 3 GB/s = 700 + 1365 ns on the link.
        for seed in 0..100 {
            let mut media = Media::new(options(), seed);
            media.begin(Some(Work::Read { bytes: 4096 }), 0, 50);
            let [(end_ns, 0)] = drain(&mut media)[..] else { panic!("one command, one end") };
            assert!((50 + 90_000 + 2_065..=50 + 110_000 + 2_065).contains(&end_ns), "{end_ns}");
        }
    }

    #[test]
    fn commands_without_data_take_their_latency_and_the_links_time_per_command() {
        let works = [Work::Flush, Work::Deallocate, Work::WriteZeroes, Work::Hint].map(Some);
        for (work, latency_ns) in works.into_iter().chain([None]).zip([5_000, 6_000, 7_000, 0, 0]) {
            let mut media = Media::new(options(), 1);
            media.begin(work, 3, 1_000_000);
            assert_eq!(media.next_end_ns(), Some(1_000_000 + latency_ns + 700));
            assert_eq!(drain(&mut media), [(1_000_000 + latency_ns + 700, 3)]);
        }
    }

    #[test]
    fn the_link_loses_no_fraction_of_a_nanosecond() {
        // 3 GB/s: 4096 B take 1365 1/3 ns. A thousand and two of them that wait for the link take 1002 * 700 + 1002 *
        // 4096 / 3 = 701_400 + 1_368_064 ns, with no remainder.
        let mut media = Media::new(MediaOptions { read_ns: 0, inside_max: 2000, ..options() }, 1);
        (0..1002).for_each(|slot| media.begin(Some(Work::Read { bytes: 4096 }), slot, 0));
        assert_eq!(drain(&mut media).last().unwrap().0, 701_400 + 1_368_064);
    }

    #[test]
    fn a_drive_is_slow_for_a_while_pauses_and_is_late_as_it_is_told() {
        let end = |spells: Spells, now_ns: u64| {
            let mut media = Media::new(MediaOptions { read_ns: 0, ..options() }, 1);
            media.set_spells(spells);
            media.begin(Some(Work::Read { bytes: 3000 }), 0, now_ns);
            media.next_ended(u64::MAX).unwrap().0 - now_ns
        };
        // 700 ns + 3000 B / 3 GB/s.
        assert_eq!(end(Spells::default(), 50), 1700);
        let slow = Some(Slow { from_ns: 1000, until_ns: 2000, times: 4 });
        let slow = Spells { slow, ..Spells::default() };
        assert_eq!([999, 1000, 1999, 2000].map(|now_ns| end(slow, now_ns)), [1700, 6800, 6800, 1700]);
        let pauses = Some(Pauses { every_ns: 10_000, length_ns: 3000 });
        let pauses = Spells { pauses, ..Spells::default() };
        assert_eq!([10_000, 12_999, 13_000].map(|now_ns| end(pauses, now_ns)), [4700, 1701, 1700]);
        // Each is late: ten times as long in its die, and no longer on the link.
        let mut media = Media::new(options(), 1);
        media.set_spells(Spells { late: Some(Late { permille: 1000, times: 10 }), ..Spells::default() });
        media.begin(Some(Work::Read { bytes: 3000 }), 0, 0);
        let (end_ns, _) = media.next_ended(u64::MAX).unwrap();
        assert!((900_000 + 1700..=1_100_000 + 1700).contains(&end_ns), "{end_ns}");
    }

    #[test]
    fn writes_have_their_own_latency_and_rate() {
        let mut media = Media::new(MediaOptions { write_through_ns: 200_000, ..options() }, 1);
        media.begin(Some(Work::Write { bytes: 4096, fua: false }), 0, 0);
        let (end_ns, _) = media.next_ended(u64::MAX).unwrap();
        // 20 us +- 10%, then 1000 ns + 4096 ns.
        assert!((18_000 + 5_096..=22_000 + 5_096).contains(&end_ns), "{end_ns}");
        media.begin(Some(Work::Write { bytes: 4096, fua: true }), 0, 1_000_000);
        let (end_ns, _) = media.next_ended(u64::MAX).unwrap();
        assert!((1_180_000 + 5_096..=1_220_000 + 5_096).contains(&end_ns), "{end_ns}");
    }

    #[test]
    fn a_drive_that_collects_garbage_takes_longer_for_writes_and_then_no_more() {
        // In a second from 1 to 4 times and back: 2.5 times after a quarter, 4 after a half, 2.5 after three quarters.
        let drift = Drift { times: 4, period_ns: 1_000_000_000 };
        let at_ms = [0, 250, 500, 750, 1000, 1250].map(|ms| drift.factor_256ths(ms * 1_000_000));
        assert_eq!(at_ms, [256, 640, 1024, 640, 256, 640]);
        let mut media = Media::new(MediaOptions { write_ns: 0, read_ns: 0, ..options() }, 1);
        media.set_spells(Spells { write_drift: Some(drift), ..Spells::default() });
        media.begin(Some(Work::Write { bytes: 4096, fua: false }), 0, 500_000_000);
        assert_eq!(media.next_ended(u64::MAX), Some((500_000_000 + 4 * 5_096, 0)));
        media.begin(Some(Work::Read { bytes: 4096 }), 0, 500_100_000);
        assert_eq!(media.next_ended(u64::MAX), Some((500_100_000 + 2_065, 0)), "a read takes what it took");
    }

    #[test]
    fn a_transfer_longer_than_the_dies_goes_round() {
        // 12 pages on 4 dies: three in turn on each, 300 us +- 10%; then 700 ns + 49152 B / 3 GB/s = 17_084 ns.
        let mut media = Media::new(options(), 9);
        media.begin(Some(Work::Read { bytes: 12 * 4096 }), 0, 0);
        let (end_ns, _) = media.next_ended(u64::MAX).unwrap();
        assert!((270_000 + 17_084..=330_000 + 17_084).contains(&end_ns), "{end_ns}");
    }

    #[test]
    fn one_die_serves_in_order() {
        // One die: five reads of 1 ms +- 10% wait for each other, so the n-th ends after n of them and its own link
        // time of 700 ns + 512 B / 3 GB/s = 171 ns.
        let mut media = Media::new(MediaOptions { dies: 1, read_ns: 1_000_000, ..options() }, 2);
        (0..5).for_each(|slot| media.begin(Some(Work::Read { bytes: 512 }), slot, 0));
        let ends = drain(&mut media);
        assert_eq!(ends.iter().map(|&(_, slot)| slot).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for (turn, &(end_ns, _)) in (1..).zip(&ends) {
            assert!((turn * 900_000 + 870..=turn * 1_100_000 + 871).contains(&end_ns), "{ends:?}");
        }
    }

    #[test]
    fn a_flush_of_a_volatile_cache_holds_the_link_for_all_that_is_dirty() {
        // 10 bytes per microsecond are written back.
        let cache = VolatileCache { flush_ns: 50_000, back_bytes_per_s: 10_000_000, size_bytes: 10_000 };
        let mut media = Media::new(MediaOptions { cache: Some(cache), write_ns: 0, ..options() }, 1);
        let mut took_ns = |work, now_ns| {
            media.begin(Some(work), 0, now_ns);
            assert_eq!(media.next_ended(media.next_end_ns().unwrap() - 1), None);
            media.next_ended(u64::MAX).unwrap().0 - now_ns
        };
        let write = |bytes| Work::Write { bytes, fua: false };
        let mut at_ns = (1..).map(|second| second * NS_PER_S);
        let mut took = |work| took_ns(work, at_ns.next().unwrap());
        assert_eq!(took(Work::Flush), 50_700, "nothing is dirty: the fixed part, and a command on the link");
        assert_eq!(took(write(4096)), 5_096, "into the cache");
        assert_eq!(took(write(4096)), 5_096);
        assert_eq!(took(Work::Flush), 50_700 + 819_200, "8192 bytes");
        assert_eq!(took(Work::Flush), 50_700, "once");
        assert_eq!(took(write(8000)), 9_000);
        assert_eq!(took(write(3000)), 4_000 + 100_000, "1000 bytes more than there is room for");
        let fua_ns = took(Work::Write { bytes: 100, fua: true });
        assert!((18_000..=22_000).contains(&(fua_ns - 1_100 - 10_000)), "its own bytes and no other: {fua_ns}");
        assert_eq!(took(Work::Flush), 50_700 + 1_000_000, "a full cache");
    }

    #[test]
    fn next_end_foretells_the_next_end() {
        let mut media = Media::new(options(), 4);
        (0..50).for_each(|slot| media.begin(Some(Work::Read { bytes: 4096 << (slot % 3) }), slot, 0));
        while let Some(foretold_ns) = media.next_end_ns() {
            assert_eq!(media.next_ended(foretold_ns - 1), None);
            assert_eq!(media.next_ended(foretold_ns).unwrap().0, foretold_ns);
        }
    }

    #[test]
    fn the_rate_of_the_link_is_the_inverse_of_its_time() {
        // 700 ns + 4096 B / 3 GB/s = 2065.33 ns -> 484183 per second.
        assert_eq!(LINK.commands_per_s(4096), 484_183);
    }
}
