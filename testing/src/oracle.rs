//! MQFQ as one would write it on paper: one thread, sorted lists, plain counters, numbers that do not wrap.
//!
//! Answers: what may happen next? Source: MQFQ section 2.1 and Figure 2. Tests hold the real scheduler against
//! it: on one hctx the order is the same to the request; on several, where the paper leaves the
//! choice of queue open, every dispatch must be one that the oracle admits, and virtual time and token count must agree
//! after every step.
//!
//! The relaxed form (`PolicyOptions::quantum`, `lease`, `token_batch`) is a parameter here too: leads that are shown
//! rounded down, and leases as a plain account per queue and flow. A token batch changes nothing that the oracle sees.
//! T, quantum and lease may change. What a queue shows is rounded by the quantum of its last dispatch or new lead, or
//! of its last look if it was too far ahead then.
//!
//! A scheduler may give a request its interval only when it is the first of its flow in its queue, as the kernel's
//! elevator does: [`Oracle::submit_deferred`].
//!
//! It shares two numbers with the scheduler, on purpose: the reciprocal of a weight and the grain of a tag
//! (`sched/src/flow/account.rs`). With others, tags would differ in the last digit and nothing could be compared for
//! equality.
//!
//! # Cost
//! Whatever it takes. Allocates. For tests only.

use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, TAG_GRAIN, Weight, align, units_per_cost};
use mqfq_sched::policy::{Entry, Handle, PolicyOptions, WindowTerms};
use mqfq_sched::topology::HctxId;
use mqfq_sched::vtime::VTime;

/// A position of virtual time that does not wrap: units since virtual time 0, any number of turns of the circle.
pub type WideVTime = u128;

/// Term of a flow in the bound, in bytes-equivalent, if its costs are known at the end ("Corrections",
/// `sched/src/flow/account.rs`): `charged` requests are charged and not ended at most, the error of one is `error` at
/// most, and the flow's largest request is `largest`.
pub const fn late_term(charged: i128, error: i128, largest: i128) -> i128 {
    3 * charged * error + largest
}

/// The point on the circle that a wide position lies at.
pub const fn narrow(position: WideVTime) -> VTime {
    VTime::from_raw(position as u64)
}

/// A staged request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OracleRequest {
    /// Start of its interval of virtual time.
    pub start_tag: WideVTime,
    /// End of its interval of virtual time.
    pub finish_tag: WideVTime,
    /// Breaks ties between equal intervals.
    pub arrival: u64,
    /// Flow that it belongs to.
    pub flow: FlowId,
    /// The caller's name for it.
    pub handle: Handle,
    /// Its cost before weight, bytes-equivalent.
    pub cost: Cost,
    /// Units of D that it takes.
    pub units: u32,
}

/// Why a request may not be dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAdmitted {
    /// Another request of this hctx comes first, or there is none.
    NotLead,
    /// Its start tag is more than T ahead of global virtual time.
    Throttled,
    /// No unit of D is free.
    NoToken,
}

#[derive(Clone, Copy)]
struct OracleFlow {
    weight: Weight,
    finish_tag: WideVTime,
    /// Below one grain, in 2^-32ths of a unit.
    carry: u128,
    /// Units that were leased and not used, and lie before the finish tag.
    credit: u128,
}

/// Piece of a flow's virtual time that a queue has taken, while the flow has requests there.
#[derive(Clone, Copy)]
struct OracleLease {
    flow: FlowId,
    next: WideVTime,
    end: WideVTime,
    refund: u128,
    carry: u128,
}

/// See the module's text.
#[derive(Clone)]
pub struct Oracle {
    options: PolicyOptions,
    global_vtime: WideVTime,
    free_units: i64,
    /// The largest D so far.
    depth_max: u32,
    /// Units that each request on the device took.
    out_units: Vec<u32>,
    flows: Vec<OracleFlow>,
    /// Staged requests per hctx, sorted by (start tag, finish tag, arrival).
    queues: Vec<Vec<OracleRequest>>,
    /// Lead that each hctx shows.
    shown: Vec<Option<WideVTime>>,
    /// Leases per hctx, one per flow that has requests there.
    leases: Vec<Vec<OracleLease>>,
    /// Per hctx, requests behind their flow's first that have no interval yet, in the order they came.
    deferred: Vec<Vec<Entry>>,
    arrivals: u64,
}

/// A grain of a tag, in 2^-32ths of a unit.
const GRAIN_FIXED: u128 = (TAG_GRAIN.0 as u128) << 32;

impl Oracle {
    /// A scheduler of `hctx_count` queues and `weights.len()` flows, all idle.
    pub fn new(options: &PolicyOptions, hctx_count: usize, weights: &[Weight]) -> Self {
        let start = WideVTime::from(align(options.start).raw());
        let flow = |&weight| OracleFlow { weight, finish_tag: start, carry: 0, credit: 0 };
        Oracle {
            options: *options,
            global_vtime: start,
            free_units: i64::from(options.depth),
            depth_max: options.depth,
            out_units: Vec::new(),
            flows: weights.iter().map(flow).collect(),
            queues: vec![Vec::new(); hctx_count],
            shown: vec![None; hctx_count],
            leases: vec![Vec::new(); hctx_count],
            deferred: vec![Vec::new(); hctx_count],
            arrivals: 0,
        }
    }

    /// Takes in a request and returns it with its tags.
    pub fn submit(&mut self, hctx: HctxId, entry: Entry) -> OracleRequest {
        let lease = self.leases[hctx.0 as usize].iter().position(|lease| lease.flow == entry.flow);
        let (start_tag, finish_tag) = match lease {
            Some(lease) if self.options.lease.0 > 0 => self.charge_leased(hctx, lease, entry.cost),
            _ => self.charge(entry.flow, entry.cost),
        };
        if lease.is_none() {
            let mut lease = OracleLease { flow: entry.flow, next: finish_tag, end: finish_tag, refund: 0, carry: 0 };
            if self.options.lease.0 > 0 && start_tag == finish_tag {
                let flow = &mut self.flows[entry.flow.0 as usize];
                flow.finish_tag += u128::from(TAG_GRAIN.0);
                lease.end = flow.finish_tag;
            }
            self.leases[hctx.0 as usize].push(lease);
        }
        self.stage(hctx, &entry, start_tag, finish_tag)
    }

    /// Takes in a request, which gets its interval when it is the first of its flow in its queue. Returns it if that is
    /// now. Needs a lease; all requests of a history are submitted by this, or none.
    pub fn submit_deferred(&mut self, hctx: HctxId, entry: Entry) -> Option<OracleRequest> {
        if self.queues[hctx.0 as usize].iter().any(|staged| staged.flow == entry.flow) {
            self.deferred[hctx.0 as usize].push(entry);
            return None;
        }
        Some(self.submit(hctx, entry))
    }

    fn stage(&mut self, hctx: HctxId, entry: &Entry, start_tag: WideVTime, finish_tag: WideVTime) -> OracleRequest {
        let request = OracleRequest {
            start_tag,
            finish_tag,
            arrival: self.arrivals,
            flow: entry.flow,
            handle: entry.handle,
            cost: entry.cost,
            units: self.options.units_of(entry),
        };
        self.arrivals += 1;
        let queue = &mut self.queues[hctx.0 as usize];
        queue.push(request.clone());
        queue.sort_by_key(|staged| (staged.start_tag, staged.finish_tag, staged.arrival));
        if queue[0].arrival == request.arrival {
            self.show(hctx);
        }
        request
    }

    /// The next interval of the flow itself.
    fn charge(&mut self, flow: FlowId, cost: Cost) -> (WideVTime, WideVTime) {
        let global_vtime = self.global_vtime;
        let flow = &mut self.flows[flow.0 as usize];
        let span_fixed = u128::from(cost.0) * u128::from(units_per_cost(flow.weight)) + flow.carry;
        flow.carry = span_fixed % GRAIN_FIXED;
        flow.catch_up(global_vtime);
        let start_tag = flow.finish_tag;
        flow.finish_tag += span_fixed / GRAIN_FIXED * u128::from(TAG_GRAIN.0);
        (start_tag, flow.finish_tag)
    }

    /// The next interval of a queue's lease, after making it long enough.
    fn charge_leased(&mut self, hctx: HctxId, lease: usize, cost: Cost) -> (WideVTime, WideVTime) {
        let global_vtime = self.global_vtime;
        let lease = &mut self.leases[hctx.0 as usize][lease];
        let flow = &mut self.flows[lease.flow.0 as usize];
        let span_fixed = u128::from(cost.0) * u128::from(units_per_cost(flow.weight)) + lease.carry;
        lease.carry = span_fixed % GRAIN_FIXED;
        let span = span_fixed / GRAIN_FIXED * u128::from(TAG_GRAIN.0);
        if lease.end - lease.next + lease.refund < span {
            flow.catch_up(global_vtime);
            let wanted = span.max(u128::from(self.options.lease.0)) - (lease.end - lease.next) - lease.refund;
            let credit = flow.credit.min(wanted - u128::from(TAG_GRAIN.0));
            flow.credit -= credit;
            lease.refund += credit;
            if flow.finish_tag != lease.end {
                lease.refund += lease.end - lease.next;
                lease.next = flow.finish_tag;
            }
            flow.finish_tag += wanted - credit;
            lease.end = flow.finish_tag;
        }
        let refunded = lease.refund.min(span);
        lease.refund -= refunded;
        let start_tag = lease.next;
        lease.next += span - refunded;
        (start_tag, lease.next)
    }

    /// The flow has left a queue: what it did not use goes back.
    fn give_back(&mut self, mut lease: OracleLease) {
        let flow = &mut self.flows[lease.flow.0 as usize];
        flow.carry += lease.carry;
        if flow.carry >= GRAIN_FIXED {
            flow.carry -= GRAIN_FIXED;
            let grain = u128::from(TAG_GRAIN.0);
            if lease.refund >= grain {
                lease.refund -= grain;
            } else if lease.end - lease.next >= grain {
                lease.next += grain;
            } else {
                flow.finish_tag += grain;
            }
        }
        flow.credit += lease.refund;
        if flow.finish_tag == lease.end {
            flow.finish_tag = lease.next;
        } else {
            flow.credit += lease.end - lease.next;
        }
    }

    /// The first request of a queue.
    pub fn lead(&self, hctx: HctxId) -> Option<&OracleRequest> {
        self.queues[hctx.0 as usize].first()
    }

    /// True if the queue holds a request, the first of which is within T of global virtual time.
    pub fn is_eligible(&self, hctx: HctxId) -> bool {
        self.lead(hctx).is_some_and(|lead| lead.start_tag <= self.global_vtime + u128::from(self.options.window.0))
    }

    /// A queue that is about to pick and is too far ahead shows its lead anew, if it shows less than the quantum in
    /// force asks for. Virtual time may move.
    pub fn look(&mut self, hctx: HctxId) {
        let rounded = self.lead(hctx).map(|lead| self.rounded(lead.start_tag));
        if !self.is_eligible(hctx) && self.shown[hctx.0 as usize] < rounded {
            self.show(hctx);
        }
    }

    /// T, quantum and lease are these from now on. What queues show stays until they look or dispatch.
    pub fn set_window(&mut self, terms: WindowTerms) {
        self.options = self.options.with_terms(terms);
    }

    /// Whether `handle` may be dispatched from `hctx` now.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, hctx: HctxId, handle: Handle) -> Result<(), NotAdmitted> {
        if self.lead(hctx).is_none_or(|lead| lead.handle != handle) {
            return Err(NotAdmitted::NotLead);
        }
        if !self.is_eligible(hctx) {
            return Err(NotAdmitted::Throttled);
        }
        if !self.may_find_token() {
            return Err(NotAdmitted::NoToken);
        }
        Ok(())
    }

    /// True if a unit may lie somewhere for a request. While every request takes one unit, that is "one is free". A
    /// request of several may go as soon as one is free and owes the rest; while it owes, units that lay elsewhere
    /// already may still be used, so the sum may be 0 or less. Only one request can owe at a time, because no request
    /// may borrow from a debt, and it never owes all that it took. A reduction of D is owed in the same way, and where
    /// free units lie, the oracle does not know: so by as much as D was ever larger.
    fn may_find_token(&self) -> bool {
        let owed_max = self.out_units.iter().max().map_or(0, |units| i64::from(units - 1));
        let reduced = i64::from(self.depth_max - self.options.depth);
        self.free_units + owed_max + reduced > 0 && self.out_units.len() < self.depth_max as usize
    }

    /// Changes D for what is dispatched from now on.
    pub fn set_depth(&mut self, depth: u32) {
        self.free_units += i64::from(depth) - i64::from(self.options.depth);
        self.options.depth = depth;
        self.depth_max = self.depth_max.max(depth);
    }

    /// Dispatches the first request of `hctx`, if it may be.
    ///
    /// # Errors
    /// Why it may not.
    pub fn dispatch(&mut self, hctx: HctxId) -> Result<OracleRequest, NotAdmitted> {
        let handle = self.lead(hctx).ok_or(NotAdmitted::NotLead)?.handle;
        self.admits(hctx, handle)?;
        let queue = &mut self.queues[hctx.0 as usize];
        let request = queue.remove(0);
        let next = self.deferred[hctx.0 as usize].iter().position(|entry| entry.flow == request.flow);
        if let Some(next) = next {
            let entry = self.deferred[hctx.0 as usize].remove(next);
            let leases = &self.leases[hctx.0 as usize];
            let lease = leases.iter().position(|lease| lease.flow == entry.flow).expect("its flow has requests here");
            let (start_tag, finish_tag) = self.charge_leased(hctx, lease, entry.cost);
            self.stage(hctx, &entry, start_tag, finish_tag);
        } else if !queue.iter().any(|other| other.flow == request.flow) {
            let leases = &mut self.leases[hctx.0 as usize];
            let lease = leases.iter().position(|lease| lease.flow == request.flow).expect("it had requests here");
            let lease = leases.swap_remove(lease);
            self.give_back(lease);
        }
        self.free_units -= i64::from(request.units);
        self.out_units.push(request.units);
        self.show(hctx);
        Ok(request)
    }

    /// The device finished a request that took `units`.
    ///
    /// # Panics
    /// If no request on the device took as many.
    pub fn complete(&mut self, units: u32) {
        let position = self.out_units.iter().position(|&out| out == units);
        self.out_units.swap_remove(position.unwrap_or_else(|| panic!("no request of {units} units is out")));
        self.free_units += i64::from(units);
    }

    /// Changes a weight from the next request on.
    pub fn set_weight(&mut self, flow: FlowId, weight: Weight) {
        self.flows[flow.0 as usize].weight = weight;
    }

    /// Smallest start tag staged, never going back (I8); what it was last while nothing is staged.
    pub fn global_vtime(&self) -> WideVTime {
        self.global_vtime
    }

    /// Units of D that are free. Negative while a request of several units is paid off.
    pub fn free_units(&self) -> i64 {
        self.free_units
    }

    /// Requests staged in a queue.
    pub fn staged(&self, hctx: HctxId) -> usize {
        self.queues[hctx.0 as usize].len() + self.deferred[hctx.0 as usize].len()
    }

    /// True if the flow has a request staged anywhere (the paper's "backlogged").
    pub fn is_backlogged(&self, flow: FlowId) -> bool {
        // Deferred requests wait behind a request of their flow.
        self.queues.iter().flatten().any(|request| request.flow == flow)
    }

    /// A queue that a work-conserving scheduler must serve now: a unit is free and its first request is within T.
    /// Scheduler at rest and `Some` here is a broken I4.
    pub fn must_serve(&self) -> Option<HctxId> {
        let eligible = (0..self.queues.len()).map(|n| HctxId(n as u16)).find(|&hctx| self.is_eligible(hctx));
        eligible.filter(|_| self.free_units > 0)
    }

    fn rounded(&self, lead: WideVTime) -> WideVTime {
        lead - lead % u128::from(self.options.quantum.0.max(1))
    }

    /// A queue shows its lead, and virtual time follows the smallest that is shown.
    fn show(&mut self, hctx: HctxId) {
        self.shown[hctx.0 as usize] = self.lead(hctx).map(|lead| self.rounded(lead.start_tag));
        if let Some(least) = self.shown.iter().flatten().min() {
            self.global_vtime = self.global_vtime.max(*least);
        }
    }
}

impl OracleFlow {
    /// A flow that was idle starts at virtual time, and has nothing to its credit.
    fn catch_up(&mut self, global_vtime: WideVTime) {
        if self.finish_tag < global_vtime {
            self.finish_tag = global_vtime;
            self.credit = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_sched::policy::PolicyKind;
    use mqfq_sched::vtime::VSpan;

    const A: HctxId = HctxId(0);
    const B: HctxId = HctxId(1);

    fn entry(flow: u32, cost: u64, handle: u32) -> Entry {
        Entry::read(FlowId(flow), Cost(cost), Handle(handle))
    }

    #[test]
    fn window_holds_back_the_queue_that_is_ahead() {
        // T = 4096 bytes, requests of 4096 bytes. Queue A: tags 0, 1, 2, 3 (in requests); queue B: tag 0. B's request
        // pins virtual time at 0, so A may dispatch tags 0 and 1 and no more until B has gone.
        let window = VSpan::from_bytes(4096);
        let options = PolicyOptions { window, ..PolicyOptions::new(PolicyKind::Mqfq) };
        let mut oracle = Oracle::new(&options, 2, &[Weight::DEFAULT; 2]);
        for n in 0..4 {
            assert_eq!(oracle.submit(A, entry(0, 4096, n)).start_tag, u128::from(n) * 4096 * 1024);
        }
        oracle.submit(B, entry(1, 4096, 9));
        assert_eq!(oracle.dispatch(A).unwrap().handle, Handle(0));
        assert_eq!(oracle.dispatch(A).unwrap().handle, Handle(1));
        assert_eq!(oracle.dispatch(A).unwrap_err(), NotAdmitted::Throttled);
        assert_eq!(oracle.must_serve(), Some(B));
        assert_eq!(oracle.dispatch(B).unwrap().handle, Handle(9));
        assert_eq!(oracle.global_vtime(), 2 * 4096 * 1024);
        assert_eq!(oracle.dispatch(A).unwrap().handle, Handle(2));
    }

    #[test]
    fn depth_is_the_only_other_limit() {
        let options = PolicyOptions { depth: 1, ..PolicyOptions::new(PolicyKind::Mqfq) };
        let mut oracle = Oracle::new(&options, 1, &[Weight::DEFAULT]);
        oracle.submit(A, entry(0, 1, 0));
        oracle.submit(A, entry(0, 1, 1));
        let first = oracle.dispatch(A).unwrap();
        assert_eq!(oracle.dispatch(A).unwrap_err(), NotAdmitted::NoToken);
        oracle.complete(first.units);
        assert!(oracle.dispatch(A).is_ok());
        assert_eq!(oracle.dispatch(A).unwrap_err(), NotAdmitted::NotLead);
    }
}
