//! Shape of a request: its length, whether it writes, and its place.
//!
//! Random and zipfian places are aligned to the length. Popular places of a zipfian tenant are scattered over the
//! device by FNV-1a of the rank modulo their number, as YCSB does it; the hash is keyed by the tenant, so two tenants
//! have different ones. Sequential threads begin at a random place of their own part of the device, and wrap there.

use super::random::{Random, Zipf, fnv};

use super::{Ask, moves};
use crate::scenario::{Load, Pattern};
use std::rc::Rc;

/// One length.
#[derive(Clone, Copy)]
struct Length {
    bytes: u32,
    /// It is chosen by a number below this (of 100) that is not below the one before.
    below: u8,
    /// Aligned places for it on the device.
    places: u64,
    /// `None`: each as likely as the others.
    zipf: Option<Zipf>,
}

/// Shapes that the threads of a tenant share.
pub struct Shapes {
    lengths: Rc<[Length]>,
    read_percent: u8,
    pattern: Pattern,
    /// Keys the scattering.
    tenant_key: u64,
    device_size_bytes: u64,
}

impl Shapes {
    /// The requests of `load` on a device of that size.
    ///
    /// # Errors
    /// There is no size, or one is larger than the device.
    pub fn new(load: &Load, tenant_key: u64, device_size_bytes: u64) -> Result<Shapes, String> {
        let mut below = 0;
        let mut lengths = Vec::new();
        for (bytes, part) in &load.sizes {
            let places = device_size_bytes.checked_div(u64::from(*bytes)).unwrap_or(0);
            if places == 0 {
                return Err(format!("a request of {bytes} bytes does not fit a device of {device_size_bytes}"));
            }
            below += part;
            let zipf = match load.pattern {
                Pattern::Zipf { theta } => Some(Zipf::new(places, theta)),
                Pattern::Random | Pattern::Sequential => None,
            };
            lengths.push(Length { bytes: *bytes, below, places, zipf });
        }
        if below != 100 {
            return Err(format!("the parts of the sizes sum to {below}, allowed is 100"));
        }
        let (read_percent, pattern) = (load.read_percent, load.pattern);
        Ok(Shapes { lengths: lengths.into(), read_percent, pattern, tenant_key, device_size_bytes })
    }

    /// Requests of one of `threads` threads.
    ///
    /// # Errors
    /// Its part of the device is smaller than a sequential request.
    pub fn thread(&self, mut random: Random, thread: u32, threads: u32) -> Result<Shape, String> {
        let longest = self.lengths.iter().map(|length| length.bytes).max().expect("at least one");
        let cursor = match self.pattern {
            Pattern::Sequential => {
                let part_bytes = self.device_size_bytes / u64::from(threads);
                Some(Cursor::new(part_bytes * u64::from(thread), part_bytes, longest, &mut random)?)
            }
            Pattern::Random | Pattern::Zipf { .. } => None,
        };
        let (lengths, read_percent, tenant_key) = (self.lengths.clone(), self.read_percent, self.tenant_key);
        Ok(Shape { lengths, read_percent, tenant_key, cursor, random })
    }
}

/// The requests of one thread.
pub struct Shape {
    lengths: Rc<[Length]>,
    read_percent: u8,
    tenant_key: u64,
    /// Next place of a sequential thread.
    cursor: Option<Cursor>,
    random: Random,
}

impl Shape {
    /// The next request, which came at `arrived_ns`.
    pub fn ask(&mut self, arrived_ns: u64) -> Ask {
        let length = match &self.lengths[..] {
            [only] => only,
            lengths => {
                let drawn = self.random.below(100) as u8;
                lengths.iter().find(|length| drawn < length.below).expect("the parts sum to 100")
            }
        };
        let is_write = !self.random.percent(self.read_percent);
        let offset_bytes = match (&mut self.cursor, &length.zipf) {
            (Some(cursor), _) => cursor.take(length.bytes),
            (None, None) => self.random.below(length.places) * u64::from(length.bytes),
            (None, Some(zipf)) => {
                let rank = zipf.rank(&mut self.random);
                let place = fnv(&(rank ^ self.tenant_key).to_le_bytes()) % length.places;
                place * u64::from(length.bytes)
            }
        };
        Ask { op: moves(is_write), offset_bytes, length_bytes: length.bytes, arrived_ns }
    }

    /// The thread's random numbers, for its times.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// Where a sequential thread is.
pub struct Cursor {
    from_bytes: u64,
    to_bytes: u64,
    at_bytes: u64,
}

impl Cursor {
    /// In so many bytes from `from_bytes` on, for requests of up to `longest` bytes; it begins at a random multiple of
    /// that.
    ///
    /// # Errors
    /// Not one fits.
    pub fn new(from_bytes: u64, size_bytes: u64, longest: u32, random: &mut Random) -> Result<Cursor, String> {
        // Whole blocks, whatever the device is divided by.
        let from_bytes = from_bytes.next_multiple_of(4096);
        let to_bytes = from_bytes.max((from_bytes + size_bytes) / 4096 * 4096);
        let places = (to_bytes - from_bytes) / u64::from(longest);
        if places == 0 {
            return Err(format!("a thread's part of {size_bytes} bytes has no room for {longest} bytes in sequence"));
        }
        Ok(Cursor { from_bytes, to_bytes, at_bytes: from_bytes + random.below(places) * u64::from(longest) })
    }

    /// The place of the next `length_bytes`.
    pub fn take(&mut self, length_bytes: u32) -> u64 {
        if self.at_bytes + u64::from(length_bytes) > self.to_bytes {
            self.at_bytes = self.from_bytes;
        }
        let at_bytes = self.at_bytes;
        self.at_bytes += u64::from(length_bytes);
        at_bytes
    }
}
