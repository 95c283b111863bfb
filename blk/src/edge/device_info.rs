//! Description of a device, shared by devices, the data path and clients.

/// Properties of a device.
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
    /// It takes payloads that stay in the kernel ([`crate::pages`]), of requests whose offset and length are multiples
    /// of this, a power of two; 0: it takes none.
    pub pages_align_bytes: u32,
}
