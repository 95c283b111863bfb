//! What a device says of itself: the noun that devices, the data path and clients share.

/// What a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Size; requests beyond it are refused above.
    pub size_bytes: u64,
    /// Offsets and lengths must be multiples of this, a power of two; 1 = any.
    pub block_bytes: u32,
    /// Best size and alignment of a request, a power of two, at least `block_bytes`.
    pub preferred_bytes: u32,
    /// Largest read or write, bytes.
    pub transfer_bytes_max: u32,
    /// A completed write may be lost in a crash until a flush completes.
    pub volatile_cache: bool,
    /// Requests that one command may be made of, each with a buffer of its own; 1: the device cannot.
    pub segments_max: u16,
    /// Only requests whose offset and length are multiples of this, a power of two, may share a command.
    pub segment_align_bytes: u32,
    /// It takes payloads that stay in the kernel ([`crate::pages`]), of requests whose offset and length are multiples
    /// of this, a power of two; 0: it takes none.
    pub pages_align_bytes: u32,
}
