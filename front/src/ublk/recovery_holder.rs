//! Where the thread that speaks to the driver and the workers meet.
//!
//! The recovery holder is a client without requests. It tells the thread when to begin and to end, attaches the queues
//! that the thread made, and stays until the thread has ended: so a drain that waits for clients waits for the
//! device's end.

use super::device::{Meeting, Order};
use mqfq_blk::client::{Client, Context, Event, Label};
use mqfq_blk::request::Completion;
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};

/// The client.
pub struct RecoveryHolder {
    meeting: Arc<Meeting>,
    orders: mpsc::Sender<Order>,
    /// Tells whether a device stays behind that is told to leave now.
    stays: Box<dyn Fn() -> bool + Send>,
    number: u64,
    /// The thread has ended, or the recovery holder no longer waits for it.
    is_done: bool,
}

impl RecoveryHolder {
    /// Holder of the thread that takes `orders` and meets it at `meeting`.
    pub fn new(
        meeting: Arc<Meeting>,
        orders: mpsc::Sender<Order>,
        stays: Box<dyn Fn() -> bool + Send>,
        number: u64,
    ) -> RecoveryHolder {
        RecoveryHolder { meeting, orders, stays, number, is_done: false }
    }

    fn tell(&self, order: Order) {
        // A thread that has ended has said so.
        let _ = self.orders.send(order);
    }
}

impl Client for RecoveryHolder {
    fn start(&mut self, context: &mut dyn Context) {
        context.count(self.meeting.bell.as_raw_fd(), 0);
        self.tell(Order::Go);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        let Event::Counted { result, .. } = event else {
            unreachable!("a recovery holder waits for its bell, yet got {event:?}")
        };
        self.meeting.take_queues().into_iter().for_each(|queue| context.attach(queue));
        // An error: the grace time of a drain is over.
        self.is_done = self.meeting.has_ended() || result.is_err();
        if !self.is_done {
            context.count(self.meeting.bell.as_raw_fd(), 0);
        }
    }

    fn completed(&mut self, _context: &mut dyn Context, completion: Completion) {
        unreachable!("a recovery holder submits nothing, yet got {completion:?}");
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, _context: &mut dyn Context) {
        self.tell(Order::Leave { stays: (self.stays)() });
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    /// It has nothing under way, and the next process makes its own.
    fn pause(&mut self, _context: &mut dyn Context) {}

    fn is_paused(&self) -> bool {
        true
    }

    /// The number stays when its export goes, and may be another one's.
    fn label(&self) -> Label {
        Label { client: Some(self.number), export: None }
    }
}
