//! Activity of a running server and its reasons: from counters to metrics, live figures, a page, `top`, and one
//! sentence for each tenant.
//!
//! ```text
//!   Source (the engine's counters) ──▶ Watcher, once a second ──▶ History ──▶ Interval: rates, entitlements
//!                                         └─▶ Snapshot ──▶ /v1/live ──▶ page, top       └──▶ metrics, why
//! ```
//! Everything here runs on threads of its own, reads counters where workers write them, and is integer arithmetic until
//! it is shown. `history.rs` is the one place where counters become rates.
//!
//! | file | answers |
//! |---|---|
//! | [`source`] | where do counters come from? |
//! | [`history`] | what happened over the last 1, 10 or 60 s? |
//! | [`alone`] | how long does a request take without neighbours? |
//! | [`past`] | what was it like over the last hour? |
//! | [`share`] | what was each tenant entitled to? |
//! | [`why`] | why does a tenant wait? |
//! | [`metrics`] | how does Prometheus get it? |
//! | [`live`] | what do the page and `top` show of a second? |
//! | [`watcher`] | when are the counters read? |
//! | [`routes`] | at which paths is it served? |
//! | [`top`] | how does a terminal show it? |

pub mod alone;
pub mod history;
pub mod live;
pub mod metrics;
pub mod past;
pub mod routes;
pub mod share;
pub mod source;

pub mod watcher;
pub mod why;

pub mod top {
    //! How a terminal shows it: `mqfq top`.
    //!
    //! ```text
    //!   control socket ─▶ control::client: snapshots ┐
    //!   file of --replay ────────────────────────────┼─▶ View: what is selected, sorted, filtered ─▶ draw ─▶ terminal
    //!   keys ────────────────────────────────────────┘        └─▶ PATCH of a weight ─▶ client
    //! ```
    //! | file | answers |
    //! |---|---|
    //! | [`view`] | what is shown, and what does a key do? |
    //! | [`draw`] | how does it look? |
    //! | [`run`](mod@run) | what waits for what? |
    //!
    //! [`view`] and [`draw`] are functions of snapshots and keys: tests draw into memory.

    pub mod draw;
    pub mod run;
    pub mod view;
}
