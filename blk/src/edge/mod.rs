//! Types at the edges of the crate: clients and their operations, requests, buffers, names, and packed state.

pub mod ask;
pub mod buffer;
pub mod cap;
pub mod client;
pub mod command;
pub mod extents;
pub mod foreign;
pub mod list;
pub mod pages;
pub mod random;
pub mod request;
pub mod slots;
pub mod state;
pub mod tag;

#[cfg(feature = "uring")]
mod bus_error;
#[cfg(feature = "uring")]
pub mod passed;
