//! From which submission queue does the controller fetch next?
//!
//! Source: NVMe 1.3 section 4.11. CC.AMS selects the mechanism when a controller is enabled (section 3.1.5), from those
//! that CAP.AMS offers (section 3.1.1). Every controller has round robin ([`round_robin`]); weighted round robin with
//! urgent priority class is optional ([`weighted`]). Each queue carries its class in either ([`crate::ArbClass`]).
//!
//! Arbitration decides the order of *fetching*. A drive with room inside fetches at once and arbitrates nothing: only
//! when it is full inside do the submission queues compete.
//!
//! # Invariant
//! A1. A change by Set Features holds beginning with the next fetch. The arbiter counts grants, not remainders: a class
//!     or queue in its turn keeps its count of grants since the turn began and goes on to the new limit, or ends its
//!     turn if it is at or past that. Nothing else of the state changes.

pub mod round_robin;
pub mod weighted;

use crate::presets::{Preset, ZSSD};
use crate::queue::ArbClass;
use round_robin::RoundRobin;
use std::fmt;
use weighted::WeightedRoundRobin;

/// Most commands fetched from one queue before the next has its turn: AB of the Arbitration feature (NVMe 1.3 section
/// 5.21.1.1), which holds a power of two, or 7 for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArbitrationBurst(u8);

impl ArbitrationBurst {
    /// One command per turn: the recommendation of a controller without a better one (RAB = 0).
    pub const ONE: ArbitrationBurst = ArbitrationBurst(0);
    /// The controller fetches from a queue until it is empty.
    pub const NO_LIMIT: ArbitrationBurst = ArbitrationBurst(7);

    /// The burst of this value of the field, 0..=7.
    pub const fn from_field(field: u8) -> Option<ArbitrationBurst> {
        if field <= 7 { Some(ArbitrationBurst(field)) } else { None }
    }

    /// Commands per turn.
    pub const fn commands(self) -> u32 {
        if self.0 == 7 { u32::MAX } else { 1 << self.0 }
    }
}

/// Commands of each class per arbitration round, 1..=256: HPW, MPW and LPW of the Arbitration feature, which are 0's
/// based.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArbitrationWeights {
    high: u8,
    medium: u8,
    low: u8,
}

impl ArbitrationWeights {
    /// One command of each class per round: the default.
    pub const EQUAL: ArbitrationWeights = ArbitrationWeights { high: 0, medium: 0, low: 0 };

    /// The weights of these commands per round. `None`: one is not in 1..=256.
    pub const fn new(high: u16, medium: u16, low: u16) -> Option<ArbitrationWeights> {
        if high < 1 || high > 256 || medium < 1 || medium > 256 || low < 1 || low > 256 {
            return None;
        }
        Some(ArbitrationWeights { high: (high - 1) as u8, medium: (medium - 1) as u8, low: (low - 1) as u8 })
    }

    /// Commands per round of high, medium and low.
    pub const fn commands(self) -> [u32; 3] {
        [self.high as u32 + 1, self.medium as u32 + 1, self.low as u32 + 1]
    }
}

/// The Arbitration feature (NVMe 1.3 section 5.21.1.1): what Set Features writes in dword 11 and Get Features returns
/// in dword 0.
///
/// ```text
///  HPW 31:24   MPW 23:16   LPW 15:8   reserved 7:3   AB 2:0
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArbitrationFeature {
    /// AB. Holds under either mechanism.
    pub burst: ArbitrationBurst,
    /// HPW, MPW, LPW. Kept under round robin, but without consequence there.
    pub weights: ArbitrationWeights,
}

impl ArbitrationFeature {
    /// The feature identifier (field FID).
    pub const ID: u8 = 0x01;

    /// The feature of the command's dword. Reserved bits are ignored.
    pub const fn from_dword(dword: u32) -> ArbitrationFeature {
        let [fields, low, medium, high] = dword.to_le_bytes();
        ArbitrationFeature { burst: ArbitrationBurst(fields & 7), weights: ArbitrationWeights { high, medium, low } }
    }

    /// The command's dword.
    pub const fn to_dword(self) -> u32 {
        let ArbitrationWeights { high, medium, low } = self.weights;
        u32::from_le_bytes([self.burst.0, low, medium, high])
    }
}

/// CC.AMS (NVMe 1.3 section 3.1.5): the mechanism that a controller is enabled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mechanism {
    /// 000b.
    RoundRobin,
    /// 001b: weighted round robin with urgent priority class.
    Weighted,
}

/// The arbitration that a drive offers in CAP.AMS (NVMe 1.3 section 3.1.1), and the one that it performs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arbitration {
    /// CAP.AMS has no bit set: round robin only.
    RoundRobin,
    /// CAP.AMS offers weighted round robin, and the drive does it.
    Weighted,
    /// CAP.AMS offers weighted round robin, the drive takes classes and weights, and goes on with round robin. Such
    /// drives were sold.
    WeightedIgnored,
}

impl Arbitration {
    /// Arbitration of a drive: the SZ985 has weighted round robin (D2FQ, FAST'21, Table 1), the others have not.
    pub fn of(preset: &Preset) -> Arbitration {
        if preset.name == ZSSD.name { Arbitration::Weighted } else { Arbitration::RoundRobin }
    }

    /// All values, with their names in configurations.
    pub const ALL: [(&'static str, Arbitration); 3] = [
        ("rr", Arbitration::RoundRobin),
        ("wrr", Arbitration::Weighted),
        ("wrr-ignored", Arbitration::WeightedIgnored),
    ];

    /// As in a configuration.
    ///
    /// # Errors
    /// [`UnknownArbitration`].
    pub fn by_name(name: &str) -> Result<Arbitration, UnknownArbitration> {
        let found = Arbitration::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, arbitration)| arbitration).ok_or_else(|| UnknownArbitration(name.to_owned()))
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        Arbitration::ALL.into_iter().find(|&(_, known)| known == self).map_or("", |(name, _)| name)
    }

    /// Does CAP.AMS have the bit of this mechanism? Round robin has none; it is always there.
    pub fn offers(self, mechanism: Mechanism) -> bool {
        mechanism == Mechanism::RoundRobin || self != Arbitration::RoundRobin
    }
}

/// There is no arbitration of this name. The message lists the names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownArbitration(pub String);

impl fmt::Display for UnknownArbitration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Arbitration::ALL.map(|(name, _)| name).join(", ");
        write!(f, "unknown arbitration {:?}: choose one of {names}", self.0)
    }
}

impl std::error::Error for UnknownArbitration {}

/// CC.AMS names a mechanism that CAP.AMS does not offer. Section 3.1.5 leaves the result undefined; this controller is
/// not enabled and stays as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnsupportedMechanism;

impl fmt::Display for UnsupportedMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the controller offers no weighted round robin (CAP.AMS)")
    }
}

impl std::error::Error for UnsupportedMechanism {}

/// The mechanism in force, and the queues with commands to fetch.
#[derive(Debug)]
pub(crate) struct Arbiter {
    feature: ArbitrationFeature,
    order: Order,
}

#[derive(Debug)]
enum Order {
    RoundRobin(RoundRobin),
    Weighted(WeightedRoundRobin),
}

impl Arbiter {
    /// An arbiter of queue indices below `bound`, none of them a candidate.
    pub(crate) fn new(is_weighted: bool, feature: ArbitrationFeature, bound: usize) -> Arbiter {
        let order = match is_weighted {
            false => Order::RoundRobin(RoundRobin::new(bound)),
            true => Order::Weighted(WeightedRoundRobin::new(bound)),
        };
        Arbiter { feature, order }
    }

    pub(crate) fn feature(&self) -> ArbitrationFeature {
        self.feature
    }

    /// Sets weights and burst; they hold beginning with the next fetch (A1).
    pub(crate) fn set_feature(&mut self, feature: ArbitrationFeature) {
        self.feature = feature;
    }

    /// Sets whether a queue of this class is a candidate: has a command that may be fetched.
    pub(crate) fn set_candidate(&mut self, index: usize, class: ArbClass, is_candidate: bool) {
        match &mut self.order {
            Order::RoundRobin(order) => order.set_candidate(index, is_candidate),
            Order::Weighted(order) => order.set_candidate(index, class, is_candidate),
        }
    }

    /// Chooses one of the queues with something to fetch and counts the fetch; `None` if there is none.
    pub(crate) fn pick(&mut self) -> Option<usize> {
        let burst_commands = self.feature.burst.commands();
        match &mut self.order {
            Order::RoundRobin(order) => order.pick(burst_commands),
            Order::Weighted(order) => order.pick(burst_commands, self.feature.weights.commands()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_field_is_a_power_of_two_and_seven_means_no_limit() {
        let commands = [0, 1, 6, 7].map(|field| ArbitrationBurst::from_field(field).unwrap().commands());
        assert_eq!(commands, [1, 2, 64, u32::MAX]);
        assert_eq!(ArbitrationBurst::from_field(8), None, "the field has 3 bits");
    }

    #[test]
    fn the_feature_lies_in_its_dword_where_the_specification_puts_it() {
        let weights = ArbitrationWeights::new(256, 16, 1).unwrap();
        let feature = ArbitrationFeature { burst: ArbitrationBurst::from_field(3).unwrap(), weights };
        assert_eq!(feature.to_dword(), 0xff0f_0003, "HPW 255, MPW 15, LPW 0 (0's based), AB 3");
        assert_eq!(ArbitrationFeature::from_dword(0xff0f_0003), feature);
        assert_eq!(ArbitrationFeature::from_dword(0xff0f_00fb), feature, "reserved bits are ignored");
        assert_eq!(weights.commands(), [256, 16, 1]);
    }

    #[test]
    fn weights_outside_the_fields_are_refused() {
        for bad in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (257, 1, 1), (1, 257, 1), (1, 1, 257)] {
            assert_eq!(ArbitrationWeights::new(bad.0, bad.1, bad.2), None, "{bad:?}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        for (name, arbitration) in Arbitration::ALL {
            assert_eq!((Arbitration::by_name(name), arbitration.name()), (Ok(arbitration), name));
        }
        let sentence = Arbitration::by_name("fifo").unwrap_err().to_string();
        assert_eq!(sentence, "unknown arbitration \"fifo\": choose one of rr, wrr, wrr-ignored");
    }
}
