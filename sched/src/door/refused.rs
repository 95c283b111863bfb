//! Refusals of the front door.

use crate::cost::COST_MAX;
use crate::topology::HCTXS_MAX;
use core::fmt;

/// A scheduler cannot be built so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// Places out of 1..=1024.
    Places(usize),
    /// Tenants out of 1..=2^20.
    Tenants(usize),
    /// Jobs of a place out of 1..=2^24, or of a tenant 0.
    Jobs(usize),
    /// Permits out of 1..=65535.
    Permits(u32),
    /// A typical cost out of 1..=2^40.
    TypicalCost(u64),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Places(count) => write!(f, "{count} places are out of range, allowed is 1 to {HCTXS_MAX}"),
            BuildError::Tenants(count) => write!(f, "{count} tenants are out of range, allowed is 1 to 2^20"),
            BuildError::Jobs(count) => write!(f, "{count} waiting jobs are out of range, allowed is 1 to 2^24"),
            BuildError::Permits(count) => write!(f, "{count} permits are out of range, allowed is 1 to 65535"),
            BuildError::TypicalCost(cost) => {
                write!(f, "a typical cost of {cost} is out of range, allowed is 1 to {}", COST_MAX.0)
            }
        }
    }
}

impl core::error::Error for BuildError {}

/// A call was refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The tenant has as many jobs waiting at this place as it may.
    TenantFull,
    /// As many jobs wait at this place as it holds.
    PlaceFull,
    /// The cost is 0 or more than 2^40.
    CostOutOfRange(u64),
    /// The weight is 0 or more than 10,000.
    WeightOutOfRange(u32),
    /// The tenant was removed.
    TenantGone,
    /// The tenant belongs to another scheduler.
    OtherScheduler,
    /// There are as many tenants as there may be, those included that still have jobs.
    TenantsFull,
    /// There is no such place.
    NoPlace(usize),
    /// The place has an owner already; or all places have workers, and none is left for calls that wait.
    PlaceTaken,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::TenantFull => f.write_str("the tenant has as many jobs waiting as it may"),
            Refused::PlaceFull => f.write_str("as many jobs wait at this place as it holds"),
            Refused::CostOutOfRange(cost) => {
                write!(f, "cost {cost} is out of range, allowed is 1 to {}", COST_MAX.0)
            }
            Refused::WeightOutOfRange(weight) => write!(f, "weight {weight} is out of range, allowed is 1 to 10000"),
            Refused::TenantGone => f.write_str("the tenant was removed"),
            Refused::OtherScheduler => f.write_str("the tenant belongs to another scheduler"),
            Refused::TenantsFull => f.write_str("there are as many tenants as there may be"),
            Refused::NoPlace(place) => write!(f, "place {place} does not exist"),
            Refused::PlaceTaken => f.write_str("the place has an owner"),
        }
    }
}

impl core::error::Error for Refused {}
