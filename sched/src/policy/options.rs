//! The options of a policy: its kind, the depth D, the window T, and what a request takes of D.

use super::tunables::{Tunable, Tunables};
use super::{Entry, OwnOptions, PolicyKind};
use crate::cost::{Cost, CostKind};
use crate::flow::{TAG_GRAIN, TreeError, Weight};
use crate::vtime::{VSpan, VTime};
use core::fmt;

/// Everything that a policy needs to know besides the machine and the flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyOptions {
    /// The policy.
    pub kind: PolicyKind,
    /// D: units of depth on the device at once, 1..=65535. `none` has no depth and ignores it.
    pub depth: u32,
    /// D is where a controller starts that changes it ([`crate::depth`]); requests then take what they cost, also more
    /// than D. Only of a policy that [tunes its depth](super::Descriptor::tunes_depth).
    pub depth_auto: bool,
    /// T: how far a start tag may be ahead of global virtual time, 0..=[`PolicyOptions::WINDOW_MAX`]. Only MQFQ has
    /// one.
    pub window: VSpan,
    /// The smallest T that [`Policy::set_window`](super::Policy::set_window) will set, from two grains of a tag up to
    /// the `window` that it begins with; T then can change while the scheduler runs, and quantum and lease with it.
    /// `None`: T stays. Only MQFQ looks at it.
    pub window_least: Option<VSpan>,
    /// Units of D that a request takes. `None`: 1, as in the paper. `Some(unit)`: `ceil(cost / unit)`, within 1..=D,
    /// for devices on which depth in requests is not depth in work; 1 or more, bytes-equivalent.
    pub token_unit_bytes: Option<u32>,
    /// q: unit to which the leaves of the mindicator are rounded down. 0: nothing, as in the paper. Else a power of
    /// two, at most T/2, units: virtual time moves once per q, so the lines that all workers read change once per q and
    /// not with each request. Costs nothing in the bound, and up to q of the window.
    pub quantum: VSpan,
    /// L: how much of a flow's virtual time a queue takes at once ([`crate::flow::Lease`]). 0: as much as the request
    /// needs, as in the paper. At most T/2, units: a flow that submits on k > 1 queues writes its shared line once per
    /// L of service and not with each request. Adds k L to the bound of such a flow.
    pub lease: VSpan,
    /// Tokens that a queue may take from the tree at once if it has requests for them, 1..=65535, and more than 1 also
    /// lets a worker keep the tokens of completed requests until the pick that follows. 1: neither, as in the paper.
    /// The bound has no term for it.
    pub token_batch: u32,
    /// Once a queue has this many units on the device, it passes each freed token to the nearest queue that waits for
    /// one, and not to its own next request. (The token lies where both look: if the own worker is back first, it
    /// may take it again.) With as many before the completion it passes it to a shallow queue that is due before it
    /// (`policy/mqfq/due.rs`). 0: neither, as in the paper. Otherwise a worker with much to
    /// do keeps more tokens than it can use until T stops it, while others sleep. The bound has no term for it: it
    /// decides which queue dispatches, not how much.
    pub token_share: u32,
    /// The two numbers above are a queue's part of D, and follow it where it changes.
    pub tokens_follow_depth: bool,
    /// Options that only one policy looks at.
    pub own: OwnOptions,
    /// Start of virtual time, rounded down to [`crate::flow::TAG_GRAIN`]. Tests start near the wrap.
    pub start: VTime,
}

impl PolicyOptions {
    /// Largest D.
    pub const DEPTH_MAX: u32 = 65_535;

    /// [`PolicyOptions::token_unit_bytes`] where D can be found and nothing else is said, bytes.
    pub const AUTO_TOKEN_UNIT_BYTES: u32 = 4096;

    /// Largest T: 1 TiB at the default weight. More than any device's backlog, and far below what virtual time can
    /// compare.
    pub const WINDOW_MAX: VSpan = VSpan::from_bytes(1 << 40);

    /// Largest [`PolicyOptions::token_batch`].
    pub const TOKEN_BATCH_MAX: u32 = 65_535;

    /// Options for `kind`, in the paper's form; the rest as in the paper's SSD setup (MQFQ section 4: D = 64,
    /// T = 45 KB, rounded to 64 KiB).
    pub const fn new(kind: PolicyKind) -> Self {
        PolicyOptions {
            kind,
            depth: 64,
            depth_auto: false,
            window: VSpan::from_bytes(64 << 10),
            window_least: None,
            token_unit_bytes: None,
            quantum: VSpan(0),
            lease: VSpan(0),
            token_batch: 1,
            token_share: 0,
            tokens_follow_depth: false,
            own: OwnOptions::DEFAULT,
            start: VTime::ZERO,
        }
    }

    /// Returns these options in the relaxed form, for `hctx_count` queues; 0 count as 1.
    ///
    /// The lease is T/2 divided by the queues, but at least T/16, so that the leases that eight queues hold on one flow
    /// lie within T/2. The quantum is that, rounded down to a power of two (none for T below 128 bytes): a queue that
    /// waits for virtual time waits for the slowest of all, and the more they are, the more of T a step of T/4 would
    /// cost. A batch is a quarter of a queue's part of D, 1 to 32 tokens: queues that take more at once keep from each
    /// other what the device could use. A queue's share of tokens is its part of D, at least 1; none if there is but
    /// one queue.
    #[must_use]
    pub const fn relaxed(self, hctx_count: usize) -> Self {
        let WindowTerms { quantum, lease, .. } = WindowTerms::relaxed(self.window, hctx_count);
        let (token_batch, token_share) = Self::token_parts(self.depth, hctx_count);
        PolicyOptions { quantum, lease, token_batch, token_share, tokens_follow_depth: self.depth_auto, ..self }
    }

    /// The batch and the share of tokens of [`PolicyOptions::relaxed`], for D units and so many queues.
    pub(super) const fn token_parts(depth: u32, hctx_count: usize) -> (u32, u32) {
        let hctx_count = if hctx_count == 0 { 1 } else { hctx_count };
        let quarter = depth as usize / (4 * hctx_count);
        let token_batch = if quarter < 1 {
            1
        } else if quarter > 32 {
            32
        } else {
            quarter as u32
        };
        let token_share = depth / hctx_count as u32;
        // With one queue there is no other to give to.
        let token_share = if hctx_count == 1 {
            0
        } else if token_share == 0 {
            1
        } else {
            token_share
        };
        (token_batch, token_share)
    }

    /// Virtual time from one step of a hierarchy to the next, at least ([`crate::flow`]), beside this T.
    pub const fn step_period(window: VSpan) -> VSpan {
        VSpan(8 * window.0)
    }

    /// T and what goes with it.
    pub const fn terms(&self) -> WindowTerms {
        let PolicyOptions { window, quantum, lease, .. } = *self;
        WindowTerms { window, quantum, lease }
    }

    /// Another T and what goes with it, for so many queues, in the form of these options: the exact one has neither
    /// quantum nor lease.
    pub const fn terms_of(&self, window: VSpan, hctx_count: usize) -> WindowTerms {
        match self.lease.0 {
            0 => WindowTerms { window, quantum: VSpan(0), lease: VSpan(0) },
            _ => WindowTerms::relaxed(window, hctx_count),
        }
    }

    /// Returns these options with another T and what goes with it.
    #[must_use]
    pub const fn with_terms(self, terms: WindowTerms) -> Self {
        let WindowTerms { window, quantum, lease } = terms;
        PolicyOptions { window, quantum, lease, ..self }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if self.depth == 0 || self.depth > Self::DEPTH_MAX {
            return Err(PolicyError::DepthOutOfRange(self.depth));
        }
        if self.depth_auto && !self.kind.tunes_depth() {
            return Err(PolicyError::DepthNotTuned(self.kind));
        }
        if self.window.0 > Self::WINDOW_MAX.0 {
            return Err(PolicyError::WindowTooLong(self.window));
        }
        let is_wrong = |least: &VSpan| least.0 < 2 * crate::flow::TAG_GRAIN.0 || *least > self.window;
        if let Some(least) = self.window_least.filter(is_wrong) {
            return Err(PolicyError::LeastWindowOutOfRange { least, window: self.window });
        }
        if let Some(0) = self.token_unit_bytes {
            return Err(PolicyError::TokenUnitZero);
        }
        self.terms().validate()?;
        if self.token_batch == 0 || self.token_batch > Self::TOKEN_BATCH_MAX {
            return Err(PolicyError::TokenBatchOutOfRange(self.token_batch));
        }
        self.own.validate(self.kind)
    }

    /// Checks every field, and the number of flows.
    ///
    /// # Errors
    /// The first field that is out of range, or the number of flows.
    pub fn validate_for(&self, flows: &[Weight]) -> Result<(), PolicyError> {
        self.validate()?;
        if flows.is_empty() {
            return Err(PolicyError::NoFlows);
        }
        if flows.len() > u32::MAX as usize {
            return Err(PolicyError::TooManyFlows(flows.len()));
        }
        Ok(())
    }

    /// Units of depth that a request of `cost` takes: 1..=[`PolicyOptions::units_max`].
    #[inline]
    pub fn units(&self, cost: Cost) -> u32 {
        match self.token_unit_bytes {
            None => 1,
            Some(unit) => cost.0.div_ceil(u64::from(unit)).clamp(1, u64::from(self.units_max())) as u32,
        }
    }

    /// Units of depth that a request takes. One that moves no bytes takes one unit, however long it is: with the units
    /// of its length a write of 1 GiB of zeroes would hold back all others until it ends.
    #[inline]
    pub fn units_of(&self, entry: &Entry) -> u32 {
        match self.units(entry.cost) {
            units if units > 1 && entry.kind == CostKind::Discard => 1,
            units => units,
        }
    }

    /// Units that a request takes at most: D; where that changes, the largest D, so that what a request takes does not
    /// depend on when it came.
    #[inline]
    pub const fn units_max(&self) -> u32 {
        if self.depth_auto { Self::DEPTH_MAX } else { self.depth }
    }
}

impl WindowTerms {
    /// Checks quantum and lease.
    ///
    /// # Errors
    /// The first that is out of range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let WindowTerms { window, quantum, lease } = *self;
        if quantum.0 != 0 && (!quantum.0.is_power_of_two() || quantum.0 > window.0 / 2) {
            return Err(PolicyError::QuantumOutOfRange { quantum, window });
        }
        if lease.0 > window.0 / 2 || lease.0 % crate::flow::TAG_GRAIN.0 != 0 {
            return Err(PolicyError::LeaseOutOfRange { lease, window });
        }
        Ok(())
    }
}

/// Checks every field of a policy's options.
///
/// # Errors
/// The first field that is out of range.
pub fn validate_own<O: Tunables>(kind: PolicyKind, own: &O) -> Result<(), PolicyError> {
    let mut own = *own;
    for key in O::KEYS.iter().chain(O::FIXED) {
        let (value, unit, least, most) = match (key.at)(&mut own) {
            Tunable::Time(value, allowed) => (*value, " ns", *allowed.start(), *allowed.end()),
            Tunable::Size(value, allowed) => (*value, " bytes", *allowed.start(), *allowed.end()),
            Tunable::Count(value, allowed) => {
                (u64::from(*value), "", u64::from(*allowed.start()), u64::from(*allowed.end()))
            }
            Tunable::Flag(_) => continue,
        };
        if value < least || value > most {
            return Err(PolicyError::TunableOutOfRange { kind, name: key.text.name, value, unit, least, most });
        }
    }
    Ok(())
}

/// Options that no policy can be built from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// D is 0 or too large.
    DepthOutOfRange(u32),
    /// D is to be found for a policy that has none, or has that of its device's queue.
    DepthNotTuned(PolicyKind),
    /// T is too long.
    WindowTooLong(VSpan),
    /// The smallest window is shorter than two grains of a tag, or longer than the window.
    LeastWindowOutOfRange {
        /// Smallest window asked for.
        least: VSpan,
        /// The window T that it begins with.
        window: VSpan,
    },
    /// The token unit is 0.
    TokenUnitZero,
    /// The quantum is not a power of two, or more than T/2.
    QuantumOutOfRange {
        /// Quantum asked for.
        quantum: VSpan,
        /// The window T that bounds it.
        window: VSpan,
    },
    /// The lease is not a multiple of the grain of tags, or more than T/2.
    LeaseOutOfRange {
        /// Lease asked for.
        lease: VSpan,
        /// The window T that bounds it.
        window: VSpan,
    },
    /// The token batch is 0 or too large.
    TokenBatchOutOfRange(u32),
    /// A tunable of one policy is out of range.
    TunableOutOfRange {
        /// The policy that has the tunable.
        kind: PolicyKind,
        /// Its name in configs.
        name: &'static str,
        /// Value asked for.
        value: u64,
        /// Text after each number: a space and the unit, or nothing.
        unit: &'static str,
        /// Smallest allowed.
        least: u64,
        /// Largest allowed.
        most: u64,
    },
    /// There are no flows.
    NoFlows,
    /// There are more flows than can be numbered: 2^32 - 1.
    TooManyFlows(usize),
    /// There are more flows than one policy can tell apart.
    TooManyFlowsOf {
        /// The policy that was asked for.
        kind: PolicyKind,
        /// Flows that were asked for.
        count: usize,
        /// Most allowed.
        most: usize,
    },
    /// The flows are in groups, which the policy has not.
    NoGroups(PolicyKind),
    /// The groups are no tree.
    Tree(TreeError),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::DepthOutOfRange(depth) => {
                write!(f, "depth {depth} is out of range, allowed is 1 to {}", PolicyOptions::DEPTH_MAX)
            }
            PolicyError::DepthNotTuned(kind) => {
                write!(f, "depth \"auto\" is no setting of policy {kind}")
            }
            PolicyError::WindowTooLong(window) => write!(
                f,
                "window of {} bytes is too long, allowed is up to {} bytes",
                window.bytes(),
                PolicyOptions::WINDOW_MAX.bytes()
            ),
            PolicyError::LeastWindowOutOfRange { least, window } => write!(
                f,
                "smallest window of {} units is out of range, allowed is {} to the window, {} units",
                least.0,
                2 * crate::flow::TAG_GRAIN.0,
                window.0
            ),
            PolicyError::TokenUnitZero => write!(f, "token unit of 0 bytes is out of range, allowed is 1 or more"),
            PolicyError::QuantumOutOfRange { quantum, window } => write!(
                f,
                "quantum of {} units is out of range, allowed is 0 or a power of two up to half the window, {} units",
                quantum.0,
                window.0 / 2
            ),
            PolicyError::LeaseOutOfRange { lease, window } => write!(
                f,
                "lease of {} units is out of range, allowed is a multiple of {} up to half the window, {} units",
                lease.0,
                crate::flow::TAG_GRAIN.0,
                window.0 / 2
            ),
            PolicyError::TokenBatchOutOfRange(batch) => {
                write!(f, "token batch {batch} is out of range, allowed is 1 to {}", PolicyOptions::TOKEN_BATCH_MAX)
            }
            PolicyError::TunableOutOfRange { kind, name, value, unit, least, most } => {
                write!(f, "{name} of {value}{unit} is out of range for {kind}, allowed is {least} to {most}{unit}")
            }
            PolicyError::NoFlows => write!(f, "a scheduler needs at least one flow"),
            PolicyError::TooManyFlowsOf { kind, count, most } => {
                write!(f, "{count} flows are too many for {kind}, allowed is up to {most}")
            }
            PolicyError::NoGroups(kind) => {
                write!(f, "policy {kind} knows no groups")
            }
            PolicyError::Tree(error) => write!(f, "{error}"),
            PolicyError::TooManyFlows(count) => write!(f, "{count} flows are too many, allowed is up to {}", u32::MAX),
        }
    }
}

impl core::error::Error for PolicyError {}

/// T, and the numbers of the relaxed form that follow from it; they can change while MQFQ runs. Fields as in
/// [`PolicyOptions`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowTerms {
    /// T.
    pub window: VSpan,
    /// q.
    pub quantum: VSpan,
    /// L.
    pub lease: VSpan,
}

impl WindowTerms {
    /// The terms of the relaxed form for T = `window` and so many queues, 0 of which count as 1: see
    /// [`PolicyOptions::relaxed`](super::PolicyOptions::relaxed).
    pub const fn relaxed(window: VSpan, hctx_count: usize) -> WindowTerms {
        let queues = match hctx_count {
            0 => 1,
            1..8 => hctx_count as u64,
            _ => 8,
        };
        let lease = window.0 / (2 * queues);
        let quantum = if window.0 < VSpan::from_bytes(128).0 { 0 } else { 1 << lease.ilog2() };
        WindowTerms { window, quantum: VSpan(quantum), lease: VSpan(lease - lease % TAG_GRAIN.0) }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_numbers_are_named() {
        let good = PolicyOptions::new(PolicyKind::Mqfq);
        assert_eq!(good.validate(), Ok(()));
        let sentence = |options: PolicyOptions| options.validate().unwrap_err().to_string();
        assert_eq!(sentence(PolicyOptions { depth: 0, ..good }), "depth 0 is out of range, allowed is 1 to 65535");
        assert_eq!(
            sentence(PolicyOptions { depth: 65_536, ..good }),
            "depth 65536 is out of range, allowed is 1 to 65535"
        );
        assert_eq!(
            sentence(PolicyOptions { window: VSpan::from_bytes(1 << 41), ..good }),
            "window of 2199023255552 bytes is too long, allowed is up to 1099511627776 bytes"
        );
        assert_eq!(
            sentence(PolicyOptions { token_unit_bytes: Some(0), ..good }),
            "token unit of 0 bytes is out of range, allowed is 1 or more"
        );
    }

    #[test]
    fn the_relaxed_form_is_valid_for_every_window_and_number_of_queues() {
        for window in
            [0, 1, 63, 64, 1000, 128 << 10, 1 << 26, (1 << 26) + 1, (1 << 27) - 1, PolicyOptions::WINDOW_MAX.0]
        {
            for hctx_count in [1, 2, 3, 16, 1024] {
                let window = VSpan(window);
                let options = PolicyOptions { window, ..PolicyOptions::new(PolicyKind::Mqfq) }.relaxed(hctx_count);
                assert_eq!(options.validate(), Ok(()), "{options:?} for {hctx_count} queues");
            }
        }
        // T = 64 KiB: two queues round to 16 KiB and lease 16 KiB, one 32 KiB of each.
        let options = PolicyOptions::new(PolicyKind::Mqfq);
        let [two, one] = [2, 1].map(|queues| options.relaxed(queues));
        assert_eq!([two.quantum, two.lease].map(VSpan::bytes), [16 << 10; 2]);
        assert_eq!([one.quantum, one.lease].map(VSpan::bytes), [32 << 10; 2]);
    }

    #[test]
    fn relaxed_numbers_out_of_range_are_named() {
        let good = PolicyOptions { window: VSpan(1000), ..PolicyOptions::new(PolicyKind::Mqfq) };
        let sentence = |options: PolicyOptions| options.validate().unwrap_err().to_string();
        for quantum in [VSpan(3), VSpan(512)] {
            let expected = format!(
                "quantum of {} units is out of range, allowed is 0 or a power of two up to half the window, 500 units",
                quantum.0
            );
            assert_eq!(sentence(PolicyOptions { quantum, ..good }), expected);
        }
        assert_eq!(
            sentence(PolicyOptions { lease: VSpan(512), ..good }),
            "lease of 512 units is out of range, allowed is a multiple of 64 up to half the window, 500 units"
        );
        assert_eq!(
            sentence(PolicyOptions { token_batch: 0, ..good }),
            "token batch 0 is out of range, allowed is 1 to 65535"
        );
    }

    #[test]
    fn units_round_up_and_stay_within_the_depth() {
        let one = PolicyOptions::new(PolicyKind::Mqfq);
        assert_eq!(one.units(Cost(1 << 30)), 1);
        let weighted = PolicyOptions { depth: 64, token_unit_bytes: Some(4096), ..one };
        // 1 byte, one unit, one byte more than a unit, 128 KiB = 32 units, 1 GiB = 262144 units, of which 64.
        let costs = [1, 4096, 4097, 128 << 10, 1 << 30];
        assert_eq!(costs.map(|cost| weighted.units(Cost(cost))), [1, 1, 2, 32, 64]);
        let entry =
            |kind| Entry { kind, ..Entry::read(crate::flow::FlowId(0), Cost(1 << 20), crate::policy::Handle(0)) };
        let kinds = [CostKind::Read, CostKind::Write, CostKind::Flush, CostKind::Discard];
        assert_eq!(kinds.map(|kind| weighted.units_of(&entry(kind))), [64, 64, 64, 1]);
    }
}
