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
