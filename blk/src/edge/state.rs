//! How is the state of a process written for the one that takes its place?
//!
//! Integers in network order, and bytes behind their length. A piece of state is written and read by code of one kind,
//! field by field, so there are no names in it. There is one version for all of it.
//!
//! # Versions
//! V1. A writer writes the version that both processes know and that is the highest ([`agree`]).
//! V2. A field that came with version `n` is written and read by [`StateWriter::since`] and [`StateReader::since`]: a
//!     state of an older version has not got it, and the reader has a value in its place.
//! V3. A version is read for as long as a release may meet it: the one before at least. Nothing else is guessed; a
//!     state of another version is refused, and so is one with bytes left over.
//!
//! The reader trusts nothing: lengths are compared with what there is before memory is taken, and the meaning of the
//! numbers is checked by their kind.

use std::fmt;
use std::ops::RangeInclusive;

/// The version that this code writes, and the newest that it reads.
pub const VERSION: u16 = 4;

/// The version from which on requests travel that were given back to a connection.
pub const RECALLED_SINCE: u16 = 2;

/// The version from which on a handshake travels in the middle of a list of exports.
pub const LISTING_SINCE: u16 = 3;

/// The version from which on extended headers travel, and requests to zero bytes fast.
pub const EXTENDED_SINCE: u16 = 4;

/// The versions that this code writes and reads.
pub const VERSIONS: RangeInclusive<u16> = 1..=VERSION;

/// The highest version that is among both. `None`: there is none.
pub fn agree(ours: RangeInclusive<u16>, theirs: RangeInclusive<u16>) -> Option<u16> {
    let lowest = *ours.start().max(theirs.start());
    let highest = *ours.end().min(theirs.end());
    (lowest <= highest && lowest > 0).then_some(highest)
}

/// A state that cannot be what a writer wrote. The words follow "its state ".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateFault(pub &'static str);

impl fmt::Display for StateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its state {}", self.0)
    }
}

impl From<StateFault> for String {
    fn from(fault: StateFault) -> String {
        fault.to_string()
    }
}

/// Refuses the state with these words unless `is_right`.
///
/// # Errors
/// It is not.
pub fn demand(is_right: bool, otherwise: &'static str) -> Result<(), StateFault> {
    if is_right { Ok(()) } else { Err(StateFault(otherwise)) }
}

/// A piece of state that is being written.
#[derive(Debug)]
pub struct StateWriter {
    version: u16,
    bytes: Vec<u8>,
}

impl StateWriter {
    /// An empty state of this version.
    pub fn new(version: u16) -> StateWriter {
        StateWriter { version, bytes: Vec::new() }
    }

    /// The version that it is of.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Yes or no.
    pub fn flag(&mut self, flag: bool) {
        self.bytes.push(flag.into());
    }

    /// An integer of 8 bits.
    pub fn u8(&mut self, number: u8) {
        self.bytes.push(number);
    }

    /// An integer of 16 bits.
    pub fn u16(&mut self, number: u16) {
        self.bytes.extend(number.to_be_bytes());
    }

    /// An integer of 32 bits.
    pub fn u32(&mut self, number: u32) {
        self.bytes.extend(number.to_be_bytes());
    }

    /// An integer of 64 bits.
    pub fn u64(&mut self, number: u64) {
        self.bytes.extend(number.to_be_bytes());
    }

    /// Bytes and how many they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A field that came with `version`.
    pub fn since(&mut self, version: u16, write: impl FnOnce(&mut StateWriter)) {
        if self.version >= version {
            write(self);
        }
    }

    /// The written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A piece of state that is being read.
#[derive(Debug)]
pub struct StateReader<'a> {
    version: u16,
    left: &'a [u8],
}

impl<'a> StateReader<'a> {
    /// All of `bytes`, a state of this version.
    pub fn new(version: u16, bytes: &'a [u8]) -> StateReader<'a> {
        StateReader { version, left: bytes }
    }

    /// The version that it is of.
    pub fn version(&self) -> u16 {
        self.version
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateFault> {
        let (taken, left) = self.left.split_first_chunk().ok_or(StateFault("ends too early"))?;
        self.left = left;
        Ok(*taken)
    }

    /// Yes or no.
    ///
    /// # Errors
    /// It is neither, or there is nothing left. The latter holds for all that follow.
    pub fn flag(&mut self) -> Result<bool, StateFault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(StateFault("has a flag that is neither 0 nor 1")),
        }
    }

    /// An integer of 8 bits.
    ///
    /// # Errors
    /// As [`StateReader::flag`].
    pub fn u8(&mut self) -> Result<u8, StateFault> {
        self.array().map(u8::from_be_bytes)
    }

    /// An integer of 16 bits.
    ///
    /// # Errors
    /// As [`StateReader::flag`].
    pub fn u16(&mut self) -> Result<u16, StateFault> {
        self.array().map(u16::from_be_bytes)
    }

    /// An integer of 32 bits.
    ///
    /// # Errors
    /// As [`StateReader::flag`].
    pub fn u32(&mut self) -> Result<u32, StateFault> {
        self.array().map(u32::from_be_bytes)
    }

    /// An integer of 64 bits.
    ///
    /// # Errors
    /// As [`StateReader::flag`].
    pub fn u64(&mut self) -> Result<u64, StateFault> {
        self.array().map(u64::from_be_bytes)
    }

    /// As many bytes as their length says.
    ///
    /// # Errors
    /// As [`StateReader::flag`].
    pub fn bytes(&mut self) -> Result<&'a [u8], StateFault> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let (taken, left) = self.left.split_at_checked(length).ok_or(StateFault("ends too early"))?;
        self.left = left;
        Ok(taken)
    }

    /// A text, after its length.
    ///
    /// # Errors
    /// It is not UTF-8, or as [`StateReader::flag`].
    pub fn text(&mut self) -> Result<&'a str, StateFault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| StateFault("has a text that is no UTF-8"))
    }

    /// A field that came with `version`; `before` is its value in a state without it.
    ///
    /// # Errors
    /// As `read` says.
    pub fn since<T>(
        &mut self,
        version: u16,
        before: T,
        read: impl FnOnce(&mut StateReader<'a>) -> Result<T, StateFault>,
    ) -> Result<T, StateFault> {
        if self.version >= version { read(self) } else { Ok(before) }
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn end(&self) -> Result<(), StateFault> {
        demand(self.left.is_empty(), "has bytes left over")
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_written_is_read_again_and_no_piece_of_it_is() {
        let mut writer = StateWriter::new(1);
        writer.flag(true);
        writer.u8(2);
        writer.u16(0x304);
        writer.u32(0x506_0708);
        writer.u64(u64::MAX - 1);
        writer.bytes("nine".as_bytes());
        let bytes = writer.into_bytes();
        let read = |bytes: &[u8]| {
            let mut reader = StateReader::new(1, bytes);
            let all = (reader.flag()?, reader.u8()?, reader.u16()?, reader.u32()?, reader.u64()?, reader.text()?.len());
            reader.end().map(|()| all)
        };
        assert_eq!(read(&bytes), Ok((true, 2, 0x304, 0x506_0708, u64::MAX - 1, 4)));
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Err(StateFault("ends too early")), "{length} bytes");
        }
        assert_eq!(read(&[&bytes[..], b"x"].concat()), Err(StateFault("has bytes left over")));
        // A length that no memory has is compared, not taken.
        assert_eq!(StateReader::new(1, &[0xff; 8]).bytes(), Err(StateFault("ends too early")));
        assert_eq!(StateReader::new(1, &[2]).flag(), Err(StateFault("has a flag that is neither 0 nor 1")));
    }

    #[test]
    fn two_processes_agree_on_the_newest_version_that_both_know() {
        assert_eq!(agree(1..=1, 1..=1), Some(1));
        assert_eq!(agree(1..=1, 1..=2), Some(1), "the newer one steps back");
        assert_eq!(agree(1..=2, 1..=1), Some(1));
        assert_eq!(agree(2..=3, 1..=2), Some(2));
        assert_eq!(agree(1..=1, 2..=3), None);
        assert_eq!(agree(2..=3, 1..=1), None);
        assert_eq!(agree(1..=1, RangeInclusive::new(1, 0)), None, "a range of nothing");
        assert_eq!(agree(0..=1, 0..=0), None, "there is no version 0");
    }

    /// A kind of state that has got a field in a version that does not exist yet.
    #[derive(Clone, PartialEq, Debug)]
    struct Kind {
        old: u32,
        new: u8,
    }

    const NEXT: u16 = VERSION + 1;

    fn written(kind: &Kind, version: u16) -> Vec<u8> {
        let mut writer = StateWriter::new(version);
        writer.u32(kind.old);
        writer.since(NEXT, |writer| writer.u8(kind.new));
        writer.into_bytes()
    }

    fn read(bytes: &[u8], version: u16) -> Result<Kind, StateFault> {
        let mut reader = StateReader::new(version, bytes);
        let kind = Kind { old: reader.u32()?, new: reader.since(NEXT, 7, StateReader::u8)? };
        reader.end().map(|()| kind)
    }

    #[test]
    fn the_code_of_the_next_version_reads_and_writes_the_state_of_this_one() {
        let kind = Kind { old: 5, new: 6 };
        assert_eq!(read(&written(&kind, NEXT), NEXT), Ok(kind.clone()));
        assert_eq!(read(&written(&kind, VERSION), VERSION), Ok(Kind { old: 5, new: 7 }));
        // This version's code would find a field too many.
        assert_eq!(read(&written(&kind, NEXT), VERSION), Err(StateFault("has bytes left over")));
    }
}
