//! ublk: an export is a block device of the kernel below us, `/dev/ublkbN`, whose requests our workers execute.
//!
//! `docs/use/ublk.md` says how it is set up. The driver's numbers and everything unsafe about it are the crate
//! `mqfq-ublk`'s. The parts here, from the config inwards:
//!
//! | module | answers |
//! |---|---|
//! | `front_end` | which addresses, and what is refused before the server is ready? |
//! | [`plan`] | whose is the device that is there, and what is to be done about it? |
//! | [`device`] | in which order is the driver told, on a thread that may wait? |
//! | [`recovery_holder`] | how do that thread and the workers meet? |
//! | [`queue`] | what does one queue do with its tags and the block layer? |
//! | [`request`] | what does a descriptor ask for, and is it one that we execute? |
//!
//! ```text
//!   recovery holder (a client) ── Go, Leave ──▶ device (a thread) ── commands ──▶ /dev/ublk-control
//!          ◀── queues, the end ───────      ▲
//!   attaches each queue (a client) ─────────┘ gone
//!          └─ fetches, and commits what has ended ────────────────────▶ /dev/ublkcN
//! ```
//!
//! # Who is trusted with what
//! The kernel is trusted with this process anyway. A descriptor's operation, range and flags come from a user of the
//! block device, and are checked against the export as it is now.

pub mod device;
mod front_end;
pub mod plan;
pub mod queue;
pub mod recovery_holder;
pub mod request;

pub use front_end::Ublk;

use crate::stats::{Names, names_of};
use request::Rule;

/// Names of its counters.
pub static NAMES: Names = Names {
    front_end: "ublk",
    requests: request::REQUESTS,
    rules: names_of!(Rule),
    // There are no connections, so none is crowded out.
    crowded_out: 0,
    handshakes_max: 0,
    own: &["held", "recoveries"],
};

/// Values of the key `zero-copy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZeroCopy {
    /// Payloads stay in the kernel where that changes nothing else: the block device keeps its block.
    Auto,
    /// Payloads are copied.
    Off,
    /// Payloads stay in the kernel if they can, and the log has the reason if they cannot.
    On,
}

impl ZeroCopy {
    /// Values of the key, in the order of the variants.
    pub const VALUES: &[&str] = &["auto", "off", "on"];

    /// The value that is called so.
    pub fn named(name: &str) -> Option<ZeroCopy> {
        variant(Self::VALUES, [ZeroCopy::Auto, ZeroCopy::Off, ZeroCopy::On], name)
    }
}

/// The variant whose value of a key is called so: `values` and `variants` are in one order.
fn variant<T, const N: usize>(values: &[&str], variants: [T; N], name: &str) -> Option<T> {
    values.iter().zip(variants).find_map(|(value, variant)| (*value == name).then_some(variant))
}

/// Numbers that only this front end has, by place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Own {
    /// Requests that came while the server made room for another, and were left to it.
    Held,
    /// Devices that were taken over from a server that had gone.
    Recoveries,
}
