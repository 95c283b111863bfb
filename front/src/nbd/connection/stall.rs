//! A connection whose client takes no replies, or has sent half of a request and no more, is closed after a while: its
//! place, its buffers and its share of the tenant's memory are for clients that get on.
//!
//! Two things wait for a client, and each has the time since when:
//!
//! | waits | since | ends when |
//! |---|---|---|
//! | a send | it was asked for | the kernel has taken all of it: [`SEND_BYTES_MAX`](super::super::reply) or one part |
//! | a receive in the middle of a request, or of a record of TLS | it was asked for | a byte has come |
//!
//! One timer looks, at the earliest end of the time; a connection without either has none. While the connection does
//! not read for its own reasons (limits, memory, a full tenant) no receive waits, and the client is not blamed.

use super::{Connection, Life, ProtocolPhase, user};
use crate::nbd::rule::Rule;
use mqfq_blk::client::Context;

/// Time since which this client is waited for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    receiving_since_ns: u64,
    sending_since_ns: u64,
    /// A timer is running.
    is_timed: bool,
}

impl Waits {
    pub(super) fn receives(&mut self, now_ns: u64) {
        self.receiving_since_ns = now_ns;
    }

    pub(super) fn sends(&mut self, now_ns: u64) {
        self.sending_since_ns = now_ns;
    }
}

impl Connection {
    /// When its client is to have got on; `None`: it is not waited for.
    fn stalls_at_ns(&self) -> Option<u64> {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else { return None };
        let is_half = !transmission.between_requests()
            || self.inbox.is_holding()
            || self.channel.as_ref().is_some_and(|channel| channel.is_holding());
        let receiving = (self.receiving && is_half).then_some(self.waits.receiving_since_ns);
        let sending = self.replies.is_sending().then_some(self.waits.sending_since_ns);
        let since_ns = receiving.into_iter().chain(sending).min()?;
        // Saturating: a limit of centuries is none.
        let limit_ns = u64::try_from(self.options.listen.stall_timeout_now().as_nanos()).unwrap_or(u64::MAX);
        Some(since_ns.saturating_add(limit_ns))
    }

    /// At the end of a turn: sees to a timer if the client is waited for.
    pub(super) fn await_client(&mut self, context: &mut dyn Context) {
        if self.waits.is_timed || self.life == Life::Closed {
            return;
        }
        if let Some(at_ns) = self.stalls_at_ns() {
            self.waits.is_timed = true;
            context.timer(at_ns, user::STALL);
        }
    }

    /// The time of the handshake has passed, wherever the connection is by now.
    pub(super) fn handshake_is_over_time(&mut self, context: &mut dyn Context) {
        if self.paused {
            self.is_late = true;
        } else if matches!(self.phase, ProtocolPhase::Negotiating(_)) && self.life != Life::Closed {
            self.broke(Rule::HandshakeTooSlow);
            self.close(context);
        }
    }

    /// The timer has ended. If the client got on meanwhile, the end of the turn asks for the next one.
    pub(super) fn look_at_client(&mut self, context: &mut dyn Context) {
        self.waits.is_timed = false;
        let is_over = self.stalls_at_ns().is_some_and(|at_ns| at_ns <= context.now_ns());
        if is_over && self.life != Life::Closed && !self.paused {
            self.broke(Rule::Stalled);
            self.close(context);
        }
    }
}
