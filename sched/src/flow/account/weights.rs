//! At which weight does a flow, or a group, compete, and how does that change while requests are under way? When may
//! the place of a flow be another's?

use super::{Charged, FlowId, FlowTable, Weight, align};
use crate::flow::group::{EffectiveWeight, GroupId};
use crate::sync::Ordering::Relaxed;
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

// When may the place of a flow be another's, and with what does that one start?

impl FlowTable {
    /// Gives the place of a flow to another from now on, which starts at `global_vtime` and inherits nothing: neither
    /// the tag, the fraction and the credit of the old one, nor what virtual time has skipped (I7).
    ///
    /// The caller has seen the end of the last request of the old flow on every queue, and so the return of every lease
    /// ([`FlowTable::give_back`]), and shows this to threads that charge the next one: both by an Acquire that pairs
    /// with a Release.
    ///
    /// # Panics
    /// If the flow is unknown.
    pub fn retire(&self, flow: FlowId, global_vtime: VTime) {
        let Charged { finish, carry, credit, skipped } = &self.cell(flow).charged;
        // Relaxed: no thread charges the flow, see above. A worker that refreshes raises the tag to a virtual time that
        // has passed, or finds nothing to raise.
        carry.store(0, Relaxed);
        credit.store(0, Relaxed);
        skipped.store(0, Relaxed);
        finish.store(align(global_vtime).raw(), Relaxed);
    }
}
