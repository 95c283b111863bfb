//! How does a request that waits for the device get back to its client?
//!
//! By a device queue in front of the real one that ends each command at once, with [`Status::Recalled`]. So the policy,
//! the tokens and parts see a request go to the device and end, and the data path pays nothing for it: the queue is put
//! there when it is asked for first, and hands on when it is asked for no more.
//!
//! Invariant: a recalled request was not carried out, unless it is a part of a request of which other parts were. Such
//! a request is carried out again, as a whole, before it is answered.

use crate::device::{Command, DeviceQueue, QueueFull, Reaped};
use crate::request::Status;
use crate::tag::Tag;
use mqfq_sched::policy::ClassWeights;
use std::cell::Cell;
use std::rc::Rc;

/// Gives commands back while `is_on`; hands them on otherwise.
pub(super) struct Recall {
    device: Box<dyn DeviceQueue>,
    is_on: Rc<Cell<bool>>,
    given_back: Vec<Reaped>,
}

impl Recall {
    pub(super) fn new(device: Box<dyn DeviceQueue>, is_on: Rc<Cell<bool>>) -> Recall {
        Recall { device, is_on, given_back: Vec::new() }
    }
}

impl DeviceQueue for Recall {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if !self.is_on.get() {
            return self.device.submit(command);
        }
        self.given_back.push(command.ended(Status::Recalled));
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        // Also while it is on: a policy that stages nothing may have submitted just before.
        self.device.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        self.device.reap(now_ns, out);
        out.append(&mut self.given_back);
    }

    fn next_event_ns(&self) -> Option<u64> {
        if self.given_back.is_empty() { self.device.next_event_ns() } else { Some(0) }
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight() + self.given_back.len()
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        self.given_back.iter().any(|ended| ended.tag == tag) || self.device.abort(tag, now_ns)
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        self.device.reset(now_ns, given_back)
    }

    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        self.device.set_class_weights(weights, now_ns)
    }

    fn has_parts(&self) -> bool {
        self.device.has_parts()
    }

    fn follow(&mut self, number: u16) -> Result<(), String> {
        self.device.follow(number)
    }

    fn ring_event(&mut self, user: u32, result: i32) {
        self.device.ring_event(user, result);
    }
}

/// A stand-in where a queue was taken out.
pub(super) struct Nowhere;

impl DeviceQueue for Nowhere {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        Err(QueueFull(command))
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {}

    fn reap(&mut self, _now_ns: u64, _out: &mut Vec<Reaped>) {}

    fn next_event_ns(&self) -> Option<u64> {
        None
    }

    fn in_flight(&self) -> usize {
        0
    }
}
