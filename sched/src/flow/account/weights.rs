//! At which weight does a flow, or a group, compete, and how does that change while requests are under way?

use super::{FlowId, FlowTable, Weight};
use crate::flow::group::{EffectiveWeight, GroupId};
use crate::vtime::VTime;

impl FlowTable {
    /// Changes a weight, from the next request on.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn set_weight(&self, flow: FlowId, weight: Weight) {
        self.cell(flow).rate.set(weight);
        if let Some(hierarchy) = &self.hierarchy {
            hierarchy.reweigh(|flow| self.member(flow));
        }
    }

    /// There are groups.
    pub fn has_groups(&self) -> bool {
        self.hierarchy.is_some()
    }

    /// Changes the weight of a group, from the next request of each flow in it on.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn set_group_weight(&self, group: GroupId, weight: Weight) {
        let Some(hierarchy) = self.hierarchy.as_ref().filter(|hierarchy| (group.0 as usize) < hierarchy.len()) else {
            panic!("group {} does not exist", group.0);
        };
        hierarchy.set_weight(group, weight);
        hierarchy.reweigh(|flow| self.member(flow));
    }

    /// The weight at which a flow competes. One in no group competes if global virtual time has not passed its finish
    /// tag.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn effective_weight(&self, flow: FlowId, global_vtime: VTime) -> EffectiveWeight {
        let rate = &self.cell(flow).rate;
        match &self.hierarchy {
            Some(_) if !rate.member.is_alone() => rate.member.effective_weight(),
            _ => EffectiveWeight {
                millionths: u64::from(rate.weight().get()) * 1_000_000,
                competes: !self.finish_tag(flow).is_before(global_vtime),
            },
        }
    }

    /// The weight at which a group competes. `None`: there is no such group.
    pub fn effective_weight_of(&self, group: GroupId) -> Option<EffectiveWeight> {
        let hierarchy = self.hierarchy.as_ref().filter(|hierarchy| (group.0 as usize) < hierarchy.len())?;
        Some(hierarchy.effective_weight_of(group))
    }
}
