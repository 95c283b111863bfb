//! A software NVMe controller as a pure state machine, and the device of blk on top of it.
//!
//! ```text
//!  host side                          controller                                     media model
//!  write_submission ─▶ submission ring ─▶ arbitration ─▶ decode ─▶ inside (bounded) ─▶ dies ─▶ link ─┐
//!  ring_submission_doorbell ─┘            (fetches while there is room inside)                       │
//!  read_completion  ◀─ completion ring ◀─ post, phase bit, interrupt ◀───────────────────────────────┘
//!  ring_completion_doorbell ─▶ frees its slots
//! ```
//!
//! The controller has no clock, thread or I/O: its driver passes the time in ([`Controller::advance`]). A device polls
//! it with the clock, a simulator with virtual time, and both get the same results: between two doorbells nothing
//! depends on how often `advance` is called. The controller moves no data. It decides *when* a command ends and *with
//! which status*; the host keeps the bytes and names them by the opaque PRP fields.
//!
//! The host side touches rings and doorbells only, so a real controller can take this one's place. Sections cited are
//! those of the NVM Express Base Specification, revision 1.3 ("NVMe 1.3"), the last one that holds the base, the PCIe
//! transport and the NVM command set in one document. There is no admin queue: the settings of an admin command are
//! arguments or methods here, with the status of the command.
//!
//! | file | noun |
//! |---|---|
//! | [`command`] | the 64-byte submission entry and what its fields mean |
//! | [`completion`] | the 16-byte completion entry and the status field |
//! | [`queue`] | a pair of rings as the controller sees it; doorbell rules |
//! | [`arbitration`] | which submission queue is fetched from next |
//! | [`controller`] | the state machine |
//! | [`host`] | the driver's half of a queue pair |
//! | [`device`] | the controller as a device of blk |
//! | `probe` | whether a device's weights have an effect |
//! | `choice` | the first policy of a device whose policy needs them |
//!
//! [`media`], [`presets`] and [`spells`] are those of blk's own modelled drive.

pub mod arbitration;
#[cfg(feature = "uring")]
pub mod choice;
pub mod command;
pub mod completion;
pub mod controller;
pub mod device;
pub mod host;
#[cfg(feature = "uring")]
pub mod probe;
pub mod queue;

pub use arbitration::{Arbitration, ArbitrationFeature, ArbitrationWeights, Mechanism};
pub use command::{DatasetRange, SubmissionEntry};
pub use completion::{CompletionEntry, Status};
pub use controller::{Controller, ControllerOptions, Select};
pub use host::{Completion, HostQueuePair, RingFull};
pub use mqfq_blk::device::model::{media, presets, spells};
pub use presets::Preset;
pub use queue::{ArbClass, DoorbellError, QueueId, QueuePairOptions};
