//! The demo, and what it is made of: tenants that load an engine, over real NBD sockets or inside its workers.
//!
//! | file | noun |
//! |---|---|
//! | [`load`] | closed-loop load: what a tenant asks for, and what was counted |
//! | [`load_nbd`], [`nbd_client`], [`nbd_wire`] | the load over real NBD sockets |
//! | [`load_inside`] | the load inside the workers |
//! | [`drive`] | the modelled drive that they load |
//! | [`harness`] | an engine with tenants attached |
//! | [`phases`] | each tenant alone, then all together |
//! | [`demo`] | the command |
//! | [`report`] | its JSON and its table |
//! | [`scratch`] | a folder for sockets |
//!
//! The laboratory's measurements run on the same loads and the same harness.

pub mod demo;
pub mod drive;
pub mod harness;
pub mod load;
pub mod load_inside;
pub mod load_nbd;
pub mod nbd_client;
pub mod nbd_wire;
pub mod phases;
pub mod report;
pub mod scratch;
