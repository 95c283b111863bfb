//! The upper edge: what tenants attach to. Protocols live here and nowhere else; scheduling does not live here at all.
#![forbid(unsafe_code)]

pub mod export;
pub mod memory;
#[cfg(feature = "nbd")]
pub mod nbd;
