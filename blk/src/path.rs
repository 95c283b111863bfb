//! The options of all that the data path of one device does to requests besides scheduling them.
//!
//! | option | what it is about | told in |
//! |---|---|---|
//! | `merge` | requests that become one command | `merge.rs` |
//! | `split` | requests that go to the device in parts | `split.rs`, `hctx/split.rs` |
//! | `plug` | requests that gather before they are dispatched, so that merges and batches find partners | `worker/mod.rs` |
//! | `timeout_ns`, `retries` | commands that the device does not end | `timeout.rs` |
//! | `async_writes` | what the policy is told of writes | here |
//! | `follow_writes` | what a write is charged | `hctx/follow.rs` |

use crate::device_info::DeviceInfo;
use crate::split::Split;
use std::fmt;
use std::str::FromStr;

/// Which neighbours become one command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Merge {
    /// None: each request is a command of its own.
    #[default]
    None,
    /// A request that begins where the command before it ends.
    Back,
    /// That, and one that ends where the command before it begins.
    Both,
}

impl Merge {
    /// All of them.
    pub const ALL: [Merge; 3] = [Merge::None, Merge::Back, Merge::Both];

    /// Its name in configs and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Merge::None => "none",
            Merge::Back => "back",
            Merge::Both => "both",
        }
    }
}

impl fmt::Display for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Merge {
    type Err = String;

    fn from_str(name: &str) -> Result<Merge, String> {
        let found = Merge::ALL.into_iter().find(|merge| merge.name() == name);
        found.ok_or_else(|| format!("unknown kind of merging {name:?}: choose one of back, both, none"))
    }
}

/// How large a merged command may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeBounds {
    /// Requests in one command; 1: no merging.
    pub segments_max: u16,
    /// Only requests whose offset and length are multiples of this, a power of two, are merged.
    pub align_bytes: u32,
    /// Bytes of one command.
    pub bytes_max: u32,
}

impl MergeBounds {
    /// Of a device of which nothing is known.
    pub const NOTHING: MergeBounds = MergeBounds { segments_max: 1, align_bytes: 1, bytes_max: u32::MAX };
}

/// The options of the data path of one device besides those of its policy: merging, the plug, timeouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOptions {
    /// Which requests are merged, if the device can.
    pub merge: Merge,
    /// What large reads and writes are cut into. A merged command is no longer than a part.
    pub split: Split,
    /// Calls of clients that gather, from the one on that staged the first request, before what they staged is
    /// dispatched; at least 1, which gathers what one call stages. The end of a worker's turn ends it, too.
    pub plug: u32,
    /// A command that the device has not ended after this time is aborted, ns; 0: none ever is.
    pub timeout_ns: u64,
    /// Times that a request is given to the device again after resets, before it fails.
    pub retries: u8,
    /// Nobody waits for a write without FUA: it is a cache's that is written back. A front end cannot know. Off, all
    /// writes are waited for, as direct writes are in Linux, which is how hypervisors write for their guests.
    pub async_writes: bool,
    /// A write is charged by what it costs the device now, and not for good as the cost model says.
    pub follow_writes: bool,
    /// What the device can. [`PathOptions::for_device`] knows; so it does of the next.
    pub bounds: MergeBounds,
    /// The device's block, bytes: parts are multiples of it.
    pub block_bytes: u32,
}

impl PathOptions {
    /// [`PathOptions::plug`] of real workers: some microseconds of a front end's work, and enough requests for a batch.
    pub const PLUG: u32 = 32;

    /// Largest [`PathOptions::plug`] that a config may ask for: as many as one worker's look at its ring brings.
    pub const PLUG_MAX: u32 = 4096;

    /// [`PathOptions::timeout_ns`] as shipped: what Linux's block layer gives a drive.
    pub const TIMEOUT_NS: u64 = 30_000_000_000;

    /// [`PathOptions::retries`] as shipped: as many as Linux's NVMe driver makes.
    pub const RETRIES: u8 = 5;

    /// As shipped, but without timeouts: for time that is made up.
    pub const TIMELESS: PathOptions = PathOptions {
        merge: Merge::None,
        split: Split::Off,
        plug: PathOptions::PLUG,
        timeout_ns: 0,
        retries: PathOptions::RETRIES,
        async_writes: false,
        follow_writes: false,
        bounds: MergeBounds::NOTHING,
        block_bytes: 1,
    };

    /// The same, within what the device can.
    #[must_use]
    pub fn for_device(self, info: &DeviceInfo) -> PathOptions {
        let &DeviceInfo { segments_max, segment_align_bytes, transfer_bytes_max, block_bytes, .. } = info;
        let bounds = MergeBounds { segments_max, align_bytes: segment_align_bytes, bytes_max: transfer_bytes_max };
        PathOptions { bounds, block_bytes, ..self }
    }
}

impl Default for PathOptions {
    /// As shipped.
    fn default() -> PathOptions {
        PathOptions { timeout_ns: PathOptions::TIMEOUT_NS, ..PathOptions::TIMELESS }
    }
}
