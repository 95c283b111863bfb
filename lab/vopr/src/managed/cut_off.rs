//! Clients that stay and whose connection the server may end: a large read failed when a part of its simple reply had
//! been sent, and no error number can say so any more. And exports that clients can choose.

use super::Run;
use super::wish::{self, SOCKETS, Wish};
use mqfq_front::export::Export;
use mqfq_front::memory::PIECE_BYTES_MAX;
use mqfq_front::nbd::rule::Rule;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// By address: reads that failed in the middle, so far.
pub type FailedReads = BTreeMap<String, u64>;

impl Run {
    /// Counts of the running server.
    pub(super) fn failed_reads(&self) -> FailedReads {
        let all = self.managed().running.with_runtime(|runtime| runtime.listeners.counts().all());
        let count = |rules: Vec<(&str, u64)>| {
            rules.iter().filter(|(rule, _)| *rule == Rule::FailedInTheMiddle.name()).map(|(_, count)| count).sum()
        };
        all.into_iter().map(|(address, counts)| (address, count(counts.broken_rules))).collect()
    }

    pub(super) fn is_served(&self, client: usize) -> bool {
        self.clients.borrow()[client].is_served()
    }

    /// Whether the drive of `client` failed a large read of it in the middle, since `failed`. The wish was `before`.
    pub(super) fn is_cut_off(&self, client: usize, before: &Wish, failed: &FailedReads) -> bool {
        let (Some(was), Some(export)) = (&before.exports[client], &self.wish.exports[client]) else { return false };
        let now = self.failed_reads();
        // An address that is gone has no counts any more.
        let is_counted = failed.iter().any(|(address, count)| now.get(address).is_none_or(|now| now > count));
        let (device, tenant) = (format!("d{}", wish::at(export.place).0), format!("t{}", export.tenant));
        let devices = self.managed().engine.sums().devices;
        let flows = devices.iter().filter(|one| one.name == device).flat_map(|one| &one.flows);
        let has_failed = flows.filter(|flow| flow.name == tenant).any(|flow| flow.stats.failed > 0);
        let is_large = self.clients.borrow()[client].lost_read_bytes() > PIECE_BYTES_MAX as usize;
        // A read beyond the end of an export that shrinks is no failure of a drive.
        is_large && is_counted && has_failed && was.quarters <= export.quarters
    }
}

impl Run {
    /// The exports of these numbers that are offered, at each address.
    pub(super) fn offered(&self, numbers: &[usize]) -> BTreeMap<usize, Vec<Weak<Export>>> {
        self.managed().running.with_runtime(|runtime| {
            let listeners = (0..SOCKETS).filter_map(|socket| runtime.listeners.of(&self.address(socket)));
            let all: Vec<Arc<Export>> = listeners.flat_map(|listener| listener.table.all()).collect();
            let of = |number: &usize| {
                let name = format!("e{number}");
                (*number, all.iter().filter(|export| export.name == name).map(Arc::downgrade).collect())
            };
            numbers.iter().map(of).collect()
        })
    }
}
