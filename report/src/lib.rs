//! Results for people and programs: a table, a picture, one JSON object, and progress while one waits.
//!
//! | file | answers |
//! |---|---|
//! | [`table`] | how do rows become text? |
//! | [`chart`] | how does every picture look? |
//! | [`panel`] | how do curves and bars become a picture? |
//! | [`plot`] | how do tenants over time become a picture? |
//! | [`progress`] | how far is a long command? |
//! | [`command_line`] | which arguments has the program, or which sentence says why none? |
//! | [`mod@emit`] | how is a report one line of JSON, and an error one sentence? |

pub mod chart;
pub mod command_line;
mod emit;
pub mod panel;
pub mod plot;
pub mod progress;
pub mod table;

pub use emit::{json, plain, print_line};
