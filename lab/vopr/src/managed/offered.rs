//! Exports that clients can choose.

use super::Run;
use super::wish::SOCKETS;
use mqfq_front::export::Export;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

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
