//! Values that each sector of each tenant may hold: the judge of every byte that a read brings.
//!
//! Each sector that is written gets a value of its own, with its tenant and its number in it, so a read tells whose
//! bytes it brought and of which write.
//!
//! ```text
//!   now    what a read may bring      written and told                  that value alone
//!                                     a write under way                 that value too
//!                                     a write that failed               both, until the next that is told
//!                                     a write that a cut went through   the same
//!   cut    what a power cut may       since the last write that a       all of them
//!          leave                      flush covered, or FUA was told
//! ```
//!
//! A write without FUA may go to the drive as several commands: parts, pieces, a repetition. If the power is cut when
//! the drive has ended one of them, its bytes may be gone, and the drive says nothing: the others and the write end
//! well. A flush makes up for nothing then, for there is nothing left to flush. The drive's cache tells which sectors
//! that holds for; in all others such a write is like any other. With FUA each command is there when it ends.
//!
//! Rules: a client asks for no write of a sector that it has a write of under way, and each sector has one client that
//! writes it. So the values of a sector are in an order, whatever becomes of requests on their way.

/// Unit of writes, bytes.
pub const SECTOR_BYTES: usize = 512;

/// 8-byte words of a sector: word i holds the value plus i.
const WORDS: u64 = SECTOR_BYTES as u64 / 8;

/// When something was told that never was.
const UNTOLD: u64 = u64::MAX;

/// A value, and when the client was told that it was written.
#[derive(Clone, Copy, Debug)]
struct Written {
    value: u64,
    asked_at: u64,
    told_at: u64,
}

impl Written {
    /// The value before any write.
    const ZERO: Written = Written { value: 0, asked_at: 0, told_at: 0 };
}

#[derive(Clone, Debug)]
struct Sector {
    now: Vec<u64>,
    /// Value on the device, if it is known.
    last: Option<u64>,
    cut: Vec<Written>,
    is_writing: bool,
    /// A cut may have lost the bytes of the write under way.
    is_cut: bool,
    readers: u32,
    /// It was erased while a write was under way that the client has not heard of yet.
    is_erased: bool,
    /// An erase was given up before its end: it holds zeroes or what it held before.
    is_doubtful: bool,
}

impl Default for Sector {
    fn default() -> Sector {
        Sector {
            now: vec![0],
            last: Some(0),
            cut: vec![Written::ZERO],
            is_writing: false,
            is_cut: false,
            readers: 0,
            is_erased: false,
            is_doubtful: false,
        }
    }
}

/// Values that one tenant's export may hold.
pub struct Oracle {
    tenant: u8,
    sectors: Vec<Sector>,
    next: u64,
    /// Counts what is asked and told, for the order of flushes and writes.
    clock: u64,
    /// Sectors that a flush may settle.
    unsettled: Vec<u32>,
    /// Sectors with a write for which no client waits, and which may come at any time.
    ghosts: Vec<u32>,
    /// Sectors of the export, and the time since which it has them.
    limit: (usize, u64),
    /// Time of its last shrink.
    shrunk_at: u64,
    /// Time since which it may not be written to.
    read_only_since: Option<u64>,
}

/// A sector's bytes.
fn bytes_of(value: u64) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    let step = u64::from(value != 0);
    for (place, word) in (0..).zip(bytes.as_chunks_mut::<8>().0) {
        *word = (value + place * step).to_le_bytes();
    }
    bytes
}

/// Whose value it is.
fn tenant_of(value: u64) -> u8 {
    (value >> 56) as u8
}

impl Oracle {
    /// An export of zeroes. `tenant`: not 0.
    pub fn new(tenant: u8, sectors: usize) -> Oracle {
        Oracle {
            tenant,
            sectors: vec![Sector::default(); sectors],
            next: 0,
            clock: 1,
            unsettled: Vec::new(),
            ghosts: Vec::new(),
            limit: (sectors, 0),
            shrunk_at: 0,
            read_only_since: None,
        }
    }

    /// The export has so many sectors from now on: what is asked for later does not end well beyond.
    pub fn limit(&mut self, sectors: usize) {
        let now = self.tick();
        if sectors < self.limit.0 {
            self.shrunk_at = now;
        }
        self.limit = (sectors, now);
    }

    /// These sectors were erased. `is_alive`: its client stays, and what it asked for since the export was longer came
    /// after that, if at all. Else nothing that was asked for before may still come there.
    pub fn erase(&mut self, from: usize, count: usize, is_alive: bool) {
        let since = if is_alive { self.shrunk_at } else { u64::MAX };
        for at in from..from + count {
            let is_ghost = self.ghosts.contains(&(at as u32));
            let sector = &mut self.sectors[at];
            // The client is going to hear of a write from before it.
            sector.is_doubtful = false;
            sector.is_erased =
                sector.is_writing && !is_ghost && sector.cut.last().is_some_and(|it| it.asked_at <= since);
            let is_erased = sector.is_erased;
            sector.cut.retain(|it| it.asked_at > since || is_erased && it.told_at == UNTOLD);
            sector.cut.insert(0, Written::ZERO);
            if sector.readers == 0 {
                sector.now.clear();
            }
            sector.now.extend(sector.cut.iter().map(|written| written.value));
            let told = sector.cut.iter().filter(|written| written.told_at != UNTOLD);
            sector.last = match sector.cut.len() {
                1 => Some(0),
                _ => told.max_by_key(|written| written.told_at).filter(|it| it.told_at > 0).map(|it| it.value),
            };
        }
    }

    /// These sectors were to be erased, and it is not known how far that came.
    pub fn doubt(&mut self, from: usize, count: usize) {
        self.sectors[from..from + count].iter_mut().for_each(|sector| sector.is_doubtful = true);
    }

    /// Sectors that the export has.
    pub fn limited(&self) -> usize {
        self.limit.0
    }

    /// Requests from now on may not change anything, or may again.
    pub fn read_only(&mut self, read_only: bool) {
        let now = self.tick();
        self.read_only_since = read_only.then_some(now);
    }

    /// Whether a request that was asked for then may end well.
    ///
    /// # Errors
    /// One sentence: why not.
    pub fn may_end_well(&self, asked_at: u64, from: usize, count: usize, changes: bool) -> Result<(), String> {
        let (sectors, since) = self.limit;
        if asked_at > since && from + count > sectors {
            return Err(format!(
                "isolation (I11): sectors {from} to {} are beyond {sectors} and were served",
                from + count
            ));
        }
        if changes && self.read_only_since.is_some_and(|since| asked_at > since) {
            return Err("isolation (I11): a write ended well while the export was read-only".to_owned());
        }
        Ok(())
    }

    /// Sectors of the export.
    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// The order in which something is asked or told.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// None of these sectors has a write under way.
    pub fn is_free(&self, from: usize, count: usize) -> bool {
        self.sectors[from..from + count].iter().all(|sector| !sector.is_writing)
    }

    /// A write is asked for; its bytes, and the first sector's value. `zeroes`: it stores zeroes, and has no bytes.
    pub fn write_begins(&mut self, from: usize, count: usize, zeroes: bool, bytes: &mut Vec<u8>) -> Vec<u64> {
        let mut values = Vec::with_capacity(count);
        for at in from..from + count {
            self.next += 1;
            let value = if zeroes { 0 } else { (u64::from(self.tenant) << 56) | (self.next * WORDS) };
            let sector = &mut self.sectors[at];
            assert!(!sector.is_writing, "the clients' own rule");
            (sector.is_writing, sector.is_cut) = (true, false);
            if !sector.now.contains(&value) {
                sector.now.push(value);
            }
            sector.cut.push(Written { value, asked_at: self.clock, told_at: UNTOLD });
            self.unsettled.push(at as u32);
            if !zeroes {
                bytes.extend(bytes_of(value));
            }
            values.push(value);
        }
        values
    }

    /// A write has ended: well, or in doubt.
    pub fn write_ends(&mut self, from: usize, values: &[u64], is_good: bool, fua: bool) {
        let told_at = self.tick();
        for (sector, &value) in self.sectors[from..].iter_mut().zip(values) {
            sector.is_writing = false;
            if std::mem::take(&mut sector.is_erased) {
                sector.now.push(value);
                sector.last = None;
                continue;
            }
            if !is_good || (sector.is_cut && !fua) {
                sector.last = None;
                continue;
            }
            sector.last = Some(value);
            sector.is_doubtful = false;
            if sector.readers == 0 {
                sector.now.clear();
                sector.now.push(value);
            }
            let at = sector.cut.iter().rposition(|written| written.value == value && written.told_at == UNTOLD);
            let at = at.expect("it was asked for");
            sector.cut[at].told_at = told_at;
            if fua {
                sector.cut.drain(..at);
            }
        }
    }

    /// A flush that was asked for at `asked_at` has ended well.
    pub fn flushed(&mut self, asked_at: u64) {
        let sectors = &mut self.sectors;
        self.unsettled.sort_unstable();
        self.unsettled.dedup();
        self.unsettled.retain(|&at| {
            let cut = &mut sectors[at as usize].cut;
            if let Some(covered) = cut.iter().rposition(|written| written.told_at < asked_at) {
                cut.drain(..covered);
            }
            cut.len() > 1 || cut[0].told_at == UNTOLD
        });
    }

    /// A read is asked for.
    pub fn read_begins(&mut self, from: usize, count: usize) {
        self.sectors[from..from + count].iter_mut().for_each(|sector| sector.readers += 1);
    }

    /// A read has ended with these bytes; `None`: without.
    ///
    /// # Errors
    /// One sentence: bytes that may not be there.
    pub fn read_ends(&mut self, from: usize, count: usize, bytes: Option<&[u8]>) -> Result<(), String> {
        for at in from..from + count {
            if let Some(bytes) = bytes {
                let bytes = &bytes[(at - from) * SECTOR_BYTES..][..SECTOR_BYTES];
                self.look(at, bytes)?;
            }
            let sector = &mut self.sectors[at];
            sector.readers -= 1;
            if sector.readers == 0
                && !sector.is_writing
                && let Some(last) = sector.last
            {
                sector.now.clear();
                sector.now.push(last);
            }
        }
        Ok(())
    }

    fn look(&self, at: usize, bytes: &[u8]) -> Result<(), String> {
        let word = |place: usize| u64::from_le_bytes(bytes[place * 8..][..8].try_into().expect("8 bytes"));
        let (value, tenant) = (word(0), self.tenant);
        let step = u64::from(value != 0);
        let wanted = |place: usize| value.wrapping_add(place as u64 * step);
        if let Some(torn) = (1..SECTOR_BYTES / 8).find(|&place| word(place) != wanted(place)) {
            return Err(format!(
                "sector {at} of tenant {tenant} is torn: word 0 is {value:#x}, word {torn} is {:#x}",
                word(torn)
            ));
        }
        if value != 0 && tenant_of(value) != tenant {
            return Err(format!("isolation (I11): sector {at} of tenant {tenant} holds {value:#x}, another tenant's"));
        }
        let sector = &self.sectors[at];
        if sector.now.contains(&value) || sector.is_doubtful {
            return Ok(());
        }
        Err(format!("sector {at} of tenant {tenant} holds {value:#x}, which is none of {:x?}", sector.now))
    }

    /// The client gets no answer any more. A write may still be carried out: see [`Oracle::rest`].
    pub fn forsaken(&mut self, from: usize, count: usize, is_write: bool) {
        for at in from..from + count {
            if is_write {
                self.ghosts.push(at as u32);
            } else {
                self.sectors[at].readers -= 1;
            }
        }
    }

    /// No request that was forsaken is under way any more: the server has ended, or has nothing left to do.
    pub fn rest(&mut self) {
        for at in self.ghosts.drain(..) {
            let sector = &mut self.sectors[at as usize];
            (sector.is_writing, sector.last) = (false, None);
        }
    }

    /// The power is cut: each sector holds one of what was not covered. `may_lose`: the drive has stored these bytes in
    /// this sector, and may lose them.
    pub fn cut(&mut self, may_lose: impl Fn(usize, &[u8]) -> bool) {
        for (at, sector) in self.sectors.iter_mut().enumerate() {
            if let Some(written) = sector.cut.last().filter(|_| sector.is_writing) {
                sector.is_cut |= may_lose(at, &bytes_of(written.value));
            }
            // A read under way may still bring the values that it has seen.
            if sector.readers == 0 {
                sector.now.clear();
            }
            sector.now.extend(sector.cut.iter().map(|written| written.value));
            sector.now.sort_unstable();
            sector.now.dedup();
            sector.last = (sector.cut.len() == 1 && !sector.is_writing).then(|| sector.cut[0].value);
            if sector.cut.len() > 1 {
                // Any of them, and the next cut takes none back that this one left: but which one is not known.
                sector.cut.iter_mut().for_each(|written| written.told_at = UNTOLD);
                self.unsettled.push(at as u32);
            }
        }
    }

    /// Values that a power cut may leave beyond one in each sector: what the cache may lose.
    pub fn uncovered(&self) -> usize {
        self.sectors.iter().map(|sector| sector.cut.len() - 1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(oracle: &mut Oracle, at: usize, is_good: bool, fua: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let values = oracle.write_begins(at, 1, false, &mut bytes);
        oracle.write_ends(at, &values, is_good, fua);
        bytes
    }

    fn read(oracle: &mut Oracle, at: usize, bytes: &[u8]) -> Result<(), String> {
        oracle.read_begins(at, 1);
        // A read that was wrong ends the simulation, and here the reader.
        oracle.read_ends(at, 1, Some(bytes)).inspect_err(|_| oracle.forsaken(at, 1, false))
    }

    #[test]
    fn what_was_told_is_there_and_what_failed_may_be() {
        let mut oracle = Oracle::new(1, 4);
        let zeroes = [0; SECTOR_BYTES];
        let old = write(&mut oracle, 0, true, false);
        assert!(read(&mut oracle, 0, &old).is_ok());
        assert!(read(&mut oracle, 0, &zeroes).unwrap_err().contains("none of"));
        let new = write(&mut oracle, 0, false, false);
        assert!(read(&mut oracle, 0, &old).is_ok() && read(&mut oracle, 0, &new).is_ok());
    }

    #[test]
    fn a_cut_leaves_what_a_flush_covered_or_something_later() {
        let mut oracle = Oracle::new(1, 4);
        let zeroes = [0; SECTOR_BYTES];
        let covered = write(&mut oracle, 0, true, false);
        let asked_at = oracle.tick();
        let later = write(&mut oracle, 0, true, false);
        oracle.flushed(asked_at);
        oracle.cut(|_, _| false);
        assert!(read(&mut oracle, 0, &covered).is_ok() && read(&mut oracle, 0, &later).is_ok());
        assert!(read(&mut oracle, 0, &zeroes).is_err(), "the flush covered what came after it");
        let asked_at = oracle.tick();
        oracle.flushed(asked_at);
        oracle.cut(|_, _| false);
        assert!(read(&mut oracle, 0, &covered).is_ok(), "the first cut may have left it");
    }

    #[test]
    fn a_write_with_fua_is_there_after_a_cut() {
        let mut oracle = Oracle::new(1, 4);
        let lost = write(&mut oracle, 0, true, false);
        let kept = write(&mut oracle, 0, true, true);
        oracle.cut(|_, _| false);
        assert!(read(&mut oracle, 0, &kept).is_ok() && read(&mut oracle, 0, &lost).is_err());
    }

    #[test]
    fn a_write_that_a_cut_went_through_may_be_lost_where_the_drive_had_it_unless_it_is_fua() {
        for fua in [false, true] {
            let mut oracle = Oracle::new(1, 4);
            let old: Vec<Vec<u8>> = (0..2).map(|at| write(&mut oracle, at, true, true)).collect();
            // A write of two parts: the drive has ended the first and has not begun the second.
            let mut new = Vec::new();
            let values = oracle.write_begins(0, 2, false, &mut new);
            let (first, second) = new.split_at(SECTOR_BYTES);
            oracle.cut(|at, bytes| at == 0 && bytes == first && !fua);
            assert!(read(&mut oracle, 0, &old[0]).is_ok() && read(&mut oracle, 1, &old[1]).is_ok());
            oracle.write_ends(0, &values, true, fua);
            let asked_at = oracle.tick();
            oracle.flushed(asked_at);
            assert_eq!(read(&mut oracle, 0, &old[0]).is_ok(), !fua, "what was lost before a flush it does not bring");
            assert!(read(&mut oracle, 0, first).is_ok() && read(&mut oracle, 1, second).is_ok());
            assert!(read(&mut oracle, 1, &old[1]).is_err(), "the part that came after the cut");
            oracle.cut(|_, _| false);
            assert_eq!(read(&mut oracle, 0, &old[0]).is_ok(), !fua);
            assert!(read(&mut oracle, 1, &old[1]).is_err(), "a flush covered it");
            // The next write is certain again.
            let next = write(&mut oracle, 0, true, false);
            assert!(read(&mut oracle, 0, &next).is_ok() && read(&mut oracle, 0, &old[0]).is_err());
        }
    }

    #[test]
    fn what_was_erased_reads_as_zero_also_after_a_cut_and_a_write_after_it_is_there() {
        let mut oracle = Oracle::new(1, 4);
        let old = write(&mut oracle, 0, true, false);
        oracle.erase(0, 4, false);
        let zeroes = [0; SECTOR_BYTES];
        assert!(read(&mut oracle, 0, &zeroes).is_ok() && read(&mut oracle, 0, &old).is_err());
        oracle.cut(|_, _| false);
        assert!(read(&mut oracle, 0, &zeroes).is_ok() && read(&mut oracle, 0, &old).is_err());
        let new = write(&mut oracle, 0, true, true);
        assert!(read(&mut oracle, 0, &new).is_ok() && read(&mut oracle, 0, &zeroes).is_err());
    }

    #[test]
    fn anothers_bytes_and_torn_sectors_are_told_apart() {
        let (mut one, mut other) = (Oracle::new(1, 4), Oracle::new(2, 4));
        let mut bytes = write(&mut other, 0, true, false);
        assert!(read(&mut one, 0, &bytes).unwrap_err().contains("isolation"));
        bytes[100] ^= 1;
        assert!(read(&mut one, 0, &bytes).unwrap_err().contains("torn"));
    }
}
