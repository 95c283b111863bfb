//! When may the place of a flow be another's, and with what does that one start?

use super::{Charged, FlowId, FlowTable, align};
use crate::sync::Ordering::Relaxed;
use crate::vtime::VTime;

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
