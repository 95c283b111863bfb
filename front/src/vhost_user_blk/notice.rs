//! Telling a front-end that the disk's config space is another one: by a message of ours on the channel that it gave
//! for such (SET_BACKEND_REQ_FD).
//!
//! Source: the vhost-user specification, "Back-end message types". A change while a message is being sent is told after
//! it, once. No answer is asked for: the front-end has the channel as well, and could hold up a reader there.
//!
//! The channel is the front-end's: one that takes no message is closed, and the disk goes on.

use super::connection::user;
use super::disk::{CONFIG_BYTES, Disk};
use super::session::Session;
use super::wire::{BACKEND_CONFIG_CHANGE, message};
use mqfq_blk::client::{Context, Part};
use mqfq_blk::passed::Passed;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Messages to a front-end about its disk's config space.
pub struct Notice {
    /// The config space that the front-end knows, or is being told of.
    told: [u8; CONFIG_BYTES],
    /// A message is being sent.
    is_saying: bool,
    /// Channel of the last message, open until that was sent.
    channel: Option<Arc<Passed>>,
    /// It failed: another one may be given.
    is_broken: bool,
}

impl Notice {
    /// Notice for a front-end that will read the config space of `disk`.
    pub fn new(disk: &Disk) -> Notice {
        let told = disk.config(true);
        Notice { told, is_saying: false, channel: None, is_broken: false }
    }

    /// The front-end reads the config space by itself.
    pub fn read(&mut self, disk: &Disk) {
        self.told = disk.config(true);
    }

    /// Tells the front-end, if `disk` shows another config space than it knows and there is a channel.
    pub fn look(&mut self, context: &mut dyn Context, session: &Session, disk: &Disk) {
        let Some(channel) = session.backend().filter(|_| session.has_config()) else { return };
        if self.is_broken && self.channel.as_ref().is_some_and(|broken| Arc::ptr_eq(broken, channel)) {
            return;
        }
        let now = disk.config(true);
        if self.is_saying || self.told == now {
            return;
        }
        (self.told, self.is_saying, self.is_broken) = (now, true, false);
        self.channel = Some(channel.clone());
        let parts = vec![Part::Bytes(message(BACKEND_CONFIG_CHANGE, 0, &[]))];
        context.send(channel.as_raw_fd(), parts, user::NOTICE);
    }

    /// The message has left, or has not.
    pub fn sent(&mut self, result: Result<(), i32>) {
        (self.is_saying, self.is_broken) = (false, result.is_err());
    }

    /// The connection ends: operations under way on the channel end soon.
    pub fn end(&mut self, context: &mut dyn Context) {
        if let (true, Some(channel)) = (self.is_saying, &self.channel) {
            context.shutdown(channel.as_raw_fd());
        }
    }
}
