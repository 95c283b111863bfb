//! Flows: their names and weights, what each is charged, and the groups that they are in.

mod account;
mod group;
mod weight;

pub(crate) use account::{Ahead, check};
pub use account::{FlowTable, Interval, Lease, Rate, TAG_GRAIN, align};
pub use group::{EffectiveWeight, Group, GroupId, Tree, TreeError};
pub use weight::{FRACTION_BITS, FlowId, Weight, WeightOutOfRange, units_per_cost};
