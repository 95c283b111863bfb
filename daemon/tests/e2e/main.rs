//! End to end: the built binary, real sockets, and tools that are not ours.
//!
//! One test binary, so that the tests can agree on who may use the machine (`mqfq_testing::machine`). Tools that are
//! missing skip their tests with a printed reason; with `CI=true` or `MQFQ_REQUIRE_TOOLS=1` a missing tool fails them.

mod calibrate;
mod caps;
mod change;
mod checksums;
mod client;
mod config_errors;
mod control;
mod control_generated;
mod control_tls;
mod copies;
mod ctl;
mod drain;
mod fio;
mod forms;
mod goal;
mod hostile;
mod intake;
mod kill;
mod limits;
mod live;
mod memory;
mod negotiation;
mod output;
mod ownership;
mod page;
mod pages;
mod reconnect;
mod sandbox;
mod server;
mod silent;
mod start;
mod systemd;
mod tls;
mod ublk;
mod unsaved;
mod upgrade;
mod vhost_user;
mod why;
