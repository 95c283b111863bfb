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
//! | [`scenes`] | the tenants that meet |
//! | [`demo`] | the command on the modelled drive |
//! | [`on_drive`] | the command on a drive of the user's |
//! | [`cores`] | how busy the cores were |
//! | [`beneath`] | what a path's reads reach besides its drive |
//! | [`report`] | the JSON, the tables and the sentence |
//! | [`scratch`] | a folder for sockets |
//!
//! The laboratory's measurements run on the same loads and the same harness.

pub mod beneath;
pub mod cores;
pub mod demo;
pub mod drive;
pub mod harness;
pub mod load;
pub mod load_inside;
pub mod load_nbd;
pub mod nbd_client;
pub mod nbd_wire;
pub mod on_drive;
pub mod phases;
pub mod report;
pub mod scenes;
pub mod scratch;
