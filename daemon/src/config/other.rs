//! The seam for what does not ship: kinds of device and keys that a program adds to those of the product.

use mqfq_blk::PolicyOptions;
use mqfq_blk::device::Device;
use mqfq_blk::engine::Prepare;
use mqfq_config::{ConfigError, Section};
use std::fmt;
use std::sync::Arc;

/// Kinds of the laboratory, which this program refuses with a hint.
pub(super) const LABORATORY: [&str; 1] = ["nvme"];

/// Keys of `[server]` that the laboratory alone has, which this program refuses with a hint.
pub(super) const LABORATORY_SERVER_KEYS: [&str; 1] = ["spin-us"];

/// Keys of `[device.NAME]` that the laboratory alone has, which this program refuses with a hint.
pub(super) const LABORATORY_KEYS: [&str; 13] = [
    "token-unit",
    "form",
    "quantum",
    "lease",
    "token-share",
    "token-batch",
    "without-wrr",
    "block-layer",
    "software-queues",
    "hardware-queues",
    "async-writes",
    "arbitration",
    "queue-pairs",
];

/// A kind of device that does not ship.
pub struct OtherKind {
    /// Value of `kind`.
    pub name: &'static str,
    /// Keys of `[device.NAME]` that not all kinds have, `kind` among them.
    pub keys: &'static [&'static str],
    /// Keys of `[device.NAME.expert]` that not all kinds have.
    pub expert: &'static [&'static str],
    /// Reads them.
    pub read: fn(&Section<'_, '_>) -> Result<OtherMedium, ConfigError>,
}

/// Keys that a program adds to a section, and the function that reads them, after those of the product, into `T`.
pub struct OtherKeys<T> {
    /// The keys.
    pub keys: &'static [&'static str],
    /// Reads them.
    pub read: fn(&Section<'_, '_>, &mut T) -> Result<(), ConfigError>,
}

/// Options of a policy as keys of a program change them.
#[derive(Clone)]
pub struct OtherOptions {
    /// All settings; options of the same settings are the same.
    pub settings: String,
    /// Makes the options for so many workers from those of the product's keys that do not depend on the workers.
    pub make: MakeOptions,
}

/// Makes options for so many workers.
pub type MakeOptions = Arc<dyn Fn(PolicyOptions, usize) -> PolicyOptions + Send + Sync>;

impl PartialEq for OtherOptions {
    fn eq(&self, other: &OtherOptions) -> bool {
        self.settings == other.settings
    }
}

impl fmt::Debug for OtherOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.settings)
    }
}

impl<T> OtherKeys<T> {
    /// No keys.
    pub const NONE: OtherKeys<T> = OtherKeys { keys: &[], read: |_, _| Ok(()) };
}

/// A device of another kind, as its section describes it.
#[derive(Clone)]
pub struct OtherMedium {
    /// Bytes of the device.
    pub size_bytes: u64,
    /// All settings; devices of the same settings are the same.
    pub settings: String,
    /// Opens it, or gives the reason against it in one sentence.
    pub open: OpenOther,
}

/// Opens a device of another kind.
pub type OpenOther = Arc<dyn Fn() -> Result<Arc<dyn Device>, String> + Send + Sync>;

/// The work on a device before it is served that keys of another program ask for.
#[derive(Clone, Default)]
pub struct Preparation {
    /// All settings; preparations of the same settings are the same.
    pub settings: String,
    /// Prepares it; `None`: nothing is to do.
    pub prepare: Option<Prepare>,
}

impl PartialEq for Preparation {
    fn eq(&self, other: &Preparation) -> bool {
        self.settings == other.settings
    }
}

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.settings)
    }
}

impl PartialEq for OtherMedium {
    fn eq(&self, other: &OtherMedium) -> bool {
        (self.size_bytes, &self.settings) == (other.size_bytes, &other.settings)
    }
}

impl fmt::Debug for OtherMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.settings, self.size_bytes)
    }
}
