//! The block layer: staging, dispatch, completion, devices, and the workers that run them.

pub mod buffer;
pub mod client;
pub mod device;
pub mod request;
#[cfg(feature = "uring")]
pub mod ring;
