//! End to end: the built binary, real sockets, and tools that are not ours.
//!
//! One test binary, so that the tests can agree on who may use the machine (`mqfq_testing::machine`). Tools that are
//! missing skip their tests with a printed reason; with `CI=true` or `MQFQ_REQUIRE_TOOLS=1` a missing tool fails them.

mod calibrate;
mod checksums;
mod client;
mod config_errors;
mod control;
mod control_generated;
mod copies;
mod ctl;
mod drain;
mod goal;
mod hostile;
mod image;
mod intake;
mod kill;
mod limits;
mod live;
mod negotiation;
mod ownership;
mod page;
mod pages;
mod pools;
mod sandbox;
mod server;
mod start;
mod tls;
mod upgrade;
mod vhost_user;
mod why;
