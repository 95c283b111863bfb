//! A value alone on its cache lines, so that writing it never slows the readers of its neighbour.

use core::ops::Deref;

/// Keeps `T` away from every other value.
///
/// 128 bytes, not 64: x86-64 prefetches the other line of a pair and recent aarch64 cores have lines of 128 bytes, so
/// 64 would still let two neighbours disturb each other.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// `value`, padded.
    pub fn new(value: T) -> Self {
        CachePadded(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

// Whatever is padded starts its own pair of lines and fills it.
const _: () = assert!(align_of::<CachePadded<u8>>() == 128 && size_of::<CachePadded<u64>>() == 128);
