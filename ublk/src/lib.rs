//! The kernel's ublk driver (`ublk_drv`), from below: numbers and structures ([`abi`]), commands to `/dev/ublk-control`
//! ([`control`]), and the memory that a queue shares with the driver ([`queue`]).
//!
//! A ublk device is a block device whose requests a process executes. Source: Documentation/block/ublk.rst. The front
//! end in `front/src/ublk` treats the requests; it is safe code, and everything unsafe about the driver is here.
//!
//! ```text
//!   /dev/ublk-control ◀─ add, set parameters, start, stop, delete, recover ── control, a thread that may wait
//!   /dev/ublkcN       ◀─ fetch, commit and fetch ───────────────────────────── a worker's ring, one for each queue
//!        └─ mapped: a descriptor of 24 bytes for each request                    queue
//!   /dev/ublkbN       the block device
//! ```
//!
//! Invariant: nothing here waits but [`control`], whose callers are no workers.

pub mod abi;
pub mod control;
pub mod queue;
