//! Admission of a request: its charge, the bound of its flow, its place in the table; whole, or as parts.

use super::parts::{Cuts, Pending, share};
use super::path_options::Full;
use super::request_path::RequestPath;
use crate::extents::SHEET_BYTES;
use crate::request::{Op, Submission};
use crate::table::{Charge, Owner};
use mqfq_sched::cost::{CostKind, CostModel, CostTerm};
use mqfq_sched::policy::{Entry, Policy};
use mqfq_sched::topology::HctxId;

/// Charge of a submission, by [`Op::index`].
pub(super) struct Charges {
    by_op: [OpCharge; Op::COUNT],
    /// Writing zeroes costs as much as a write.
    zeroes_as_writes: bool,
}

#[derive(Clone, Copy)]
struct OpCharge {
    term: CostTerm,
    kind: CostKind,
    is_sync: bool,
    /// All ones if a staged request holds its payload.
    payload_mask: u32,
}

impl Charges {
    pub(super) fn new(cost: &CostModel, async_writes: bool) -> Charges {
        let of = |kind, is_sync, payload_mask| OpCharge { term: cost.term(kind), kind, is_sync, payload_mask };
        // A client waits for a read, a flush, and for a write unless it is a cache's.
        let read = of(CostKind::Read, true, u32::MAX);
        let write = of(CostKind::Write, !async_writes, u32::MAX);
        let flush = of(CostKind::Flush, true, 0);
        let discard = of(CostKind::Discard, false, 0);
        let zeroes = OpCharge { term: cost.zeroes(), ..discard };
        // As a read of one sheet, however many bytes are asked about.
        let sheet = cost.cost(CostKind::Read, SHEET_BYTES.into());
        let term = CostTerm { base_bytes: sheet.0, per_byte_256ths: 0 };
        let extents = OpCharge { term, is_sync: true, ..discard };
        Charges { by_op: [read, write, flush, discard, zeroes, extents], zeroes_as_writes: cost.write_zeroes.is_none() }
    }

    /// Writes are charged by `term` from now on.
    pub(super) fn set_write(&mut self, term: CostTerm) {
        self.by_op[Op::Write.index()].term = term;
        if self.zeroes_as_writes {
            self.by_op[Op::WriteZeroes { may_unmap: false }.index()].term = term;
        }
    }

    #[inline(always)]
    pub(super) fn of(&self, submission: &Submission) -> Charge {
        let &Submission { op, length_bytes, fua, .. } = submission;
        let &OpCharge { term, kind, is_sync, payload_mask } = &self.by_op[op.index()];
        let (cost, staged_bytes) = (term.cost(u64::from(length_bytes)), length_bytes & payload_mask);
        Charge { cost, kind, is_sync: is_sync | fua, staged_bytes }
    }
}

impl<P: Policy> RequestPath<P> {
    /// Takes in a request that is within the bounds of its flow.
    #[inline(always)]
    pub(super) fn admit(&mut self, owner: Owner, submission: Submission, now_ns: u64) -> Result<Entry, Full> {
        let charge = self.charges.of(&submission);
        let &Submission { flow, offset_bytes, length_bytes, .. } = &submission;
        if !self.staging.admit(flow, charge.staged_bytes) {
            self.counters.stats().refused.add(1);
            return Err(Full(submission));
        }
        let Charge { cost, kind, is_sync, .. } = charge;
        // The table has a place for each staged request of each flow, for each tag, so `admit` is the
        // only bound.
        let Some(place) = self.requests.vacant() else { panic_table_full(self.id) };
        let handle = place.fill(owner, submission, charge, now_ns);
        Ok(Entry { flow, cost, handle, kind, is_sync, offset_bytes, length_bytes })
    }

    /// Least bytes of a submission that may be cut now.
    pub(super) fn cut_from_bytes(&self) -> u32 {
        self.splitting.as_deref().map_or(u32::MAX, |splitting| splitting.control().part_bytes().saturating_add(1))
    }

    /// Between two reaps: brings the counts for `"auto"`, and decides whether to count on.
    pub(super) fn look_at_split(&mut self, now_ns: u64) {
        let Some(splitting) = self.splitting.as_deref_mut() else { return };
        let watches = splitting.look(self.id, self.counters.stats().busy_ns.get(), now_ns);
        self.slow_completions += usize::from(watches);
        self.slow_completions -= usize::from(std::mem::replace(&mut splitting.is_watching, watches));
    }

    /// Parts that ended since the last call and were not the last of their whole.
    pub(super) fn take_ended_parts(&mut self) -> usize {
        self.splitting.as_deref_mut().map_or(0, |splitting| std::mem::take(&mut splitting.ended_parts))
    }

    /// Number of ended parts, which stay for [`RequestPath::take_ended_parts`].
    pub(super) fn ended_parts(&self) -> usize {
        self.splitting.as_deref().map_or(0, |splitting| splitting.ended_parts)
    }

    pub(super) fn cuts(&self, submission: &Submission) -> Option<Cuts> {
        let splitting = self.splitting.as_deref()?;
        // A client that is told of room has a quarter of the bound. With more parts it would be refused each time,
        // while other clients of its flow fill that room.
        splitting.cuts(submission, self.staging.requests_max(submission.flow).div_ceil(4))
    }

    /// Takes in a request as parts, within the bounds of its flow. [`RequestPath::next_part`] brings them.
    pub(super) fn admit_parts(
        &mut self,
        owner: Owner,
        mut submission: Submission,
        cuts: Cuts,
        now_ns: u64,
    ) -> Result<Pending, Full> {
        let charge = self.charges.of(&submission);
        if !self.staging.admit_several(submission.flow, charge.staged_bytes, cuts.parts) {
            self.counters.stats().refused.add(1);
            return Err(Full(submission));
        }
        let splitting = self.splitting.as_deref_mut().expect("a request is cut where there is splitting");
        let whole = splitting.begin(cuts, &mut submission, now_ns);
        self.slow_completions += cuts.parts as usize;
        self.counters.stats().split.add(1);
        self.counters.stats().parts.add(u64::from(cuts.parts));
        Ok(Pending { cuts, whole, owner, charge, submission, taken_bytes: 0, now_ns })
    }

    /// Puts the next part into the table.
    pub(super) fn next_part(&mut self, pending: &mut Pending) -> Option<Entry> {
        let Pending { cuts, whole, owner, charge, ref submission, taken_bytes, now_ns } = *pending;
        let &Submission { flow, op, offset_bytes, length_bytes: whole_bytes, fua, cookie, .. } = submission;
        let left_bytes = whole_bytes - taken_bytes;
        if left_bytes == 0 {
            return None;
        }
        let length_bytes = left_bytes.min(if taken_bytes == 0 { cuts.first_bytes } else { cuts.part_bytes });
        let offset_bytes = offset_bytes + u64::from(taken_bytes);
        pending.taken_bytes += length_bytes;
        let splitting = self.splitting.as_deref_mut().expect("a request is cut where there is splitting");
        let cut = splitting.wholes[whole as usize].cut.as_mut();
        let buffer = cut.map(|cut| cut.part(length_bytes as usize));
        let cost = share(charge.cost, taken_bytes, length_bytes, whole_bytes);
        let staged_bytes = if charge.staged_bytes > 0 { length_bytes } else { 0 };
        let part = Submission { flow, op, offset_bytes, length_bytes, fua, buffer, cookie };
        let charge = Charge { cost, staged_bytes, ..charge };
        let Some(place) = self.requests.vacant() else { super::admit::panic_table_full(self.id) };
        let handle = place.fill(owner, part, charge, now_ns);
        splitting.whole_of[handle.0 as usize] = whole;
        Some(Entry { flow, cost, handle, kind: charge.kind, is_sync: charge.is_sync, offset_bytes, length_bytes })
    }
}

#[cold]
#[inline(never)]
pub(super) fn panic_table_full(id: HctxId) -> ! {
    panic!("{id:?}: the request table is smaller than its bounds");
}
