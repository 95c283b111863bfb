//! Settings in TOML, read key by key: every refusal says where, what is wrong and what is allowed.
//!
//! ```text
//!   text ──Source──▶ spanned tree ──Section──▶ Entry ──▶ a number, a size, a duration, a choice ... or one sentence
//! ```
//! Shared by the daemon's config and the simulator's scenarios, which know their own keys; this crate knows none.
//! Nothing is clamped, and no unknown key is passed over.

pub mod groups;
mod owned;
mod reader;
pub mod text;
mod units;

pub use owned::{Owner, read_owned};
pub use reader::{ConfigError, Entry, Section, Source, SourceLocation, join};
pub use units::{duration, size};
