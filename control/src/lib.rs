//! The control plane: the running state as one value, read and changed over HTTP.
//!
//! ```text
//!   client ──HTTP──▶ listen (one thread, tokio) ──▶ api ──▶ trait Server ──▶ the server: check, reconcile
//!                                                    └─◀── state, events, counters ──┘
//! ```
//! This crate knows no device, no engine and no config key: what it is told of them are documents (tables of TOML) and
//! the sentences of the config's reader. Nothing here runs on a worker's thread, and no worker waits for it.
//!
//! | file | answers |
//! |---|---|
//! | [`model`] | what is asked of a server, and what does it answer? |
//! | [`document`] | what does a change make of the configured values? |
//! | [`ledger`] | which revision is it, and who set which value when? |
//! | [`unsaved`] | which changes does the config file not have? |
//! | [`journal`] | which changes did a server have that ended before they were saved? |
//! | [`config_file`] | how is the config file made to say what is configured? |
//! | [`events`] | what has happened since event N? |
//! | [`api`] | which routes are there, and what does each do? |
//! | `strict` | does a body of JSON say each thing once? |
//! | [`problem`] | how is a refusal an answer of HTTP? |
//! | [`listen`] | who may connect, and how long may a client take? |
//! | [`admission`] | may a client of a TCP address come in? |
//! | [`client`] | how is a server asked? |
//! | [`proxy`] | how does a browser reach the page? |
//! | [`tls`] | how does a client know a server of TCP, and the server its clients? |
//! | [`ctl`] | what are the commands of `mqfq ctl`? |
//!
//! # Bounds
//! Connections, event streams, sizes of bodies, and the time that a client may take for a header, a body, or for
//! reading an answer are constants of [`listen`] and [`api`]: a client that hangs costs one place for seconds.

pub mod admission;
pub mod api;
pub mod client;
pub mod config_file;
pub mod ctl;
pub mod document;
pub mod events;
pub mod journal;
pub mod ledger;
pub mod listen;
pub mod model;
pub mod problem;
pub mod proxy;
mod stream;
mod strict;
pub mod time;
pub mod tls;
pub mod unsaved;

pub use api::Route;
pub use listen::{Control, Listen, start};
pub use model::{Applied, By, Edit, Kind, Match, Proposal, Refusal, Reload, Server, State, Status, Thing, Via};
