//! How does a large request end, well or not? Its reply leaves when nothing of it is left to wait for.

use super::{Connection, PendingRequest, ProtocolPhase};
use crate::nbd::rule::{Rule, errno_of_status};
use mqfq_blk::client::Context;
use mqfq_blk::request::Op;

impl Connection {
    /// The rest of a large write is not waited for. The write gets no answer, and the connection waits for its pieces
    /// under way.
    pub(super) fn cut_write(&mut self) {
        let Some(place) = self.writing.take() else { return };
        let large = self.under_way.large(place);
        large.cut();
        if large.is_over() {
            self.under_way.remove(place);
        }
    }

    /// Answers a large request of which nothing is left to wait for.
    pub(super) fn finish_if_over(&mut self, context: &mut dyn Context, place: u32) {
        let large = self.under_way.large(place);
        if !large.is_over() {
            return;
        }
        self.issuing.retain(|issuing| *issuing != place);
        let large = self.under_way.large(place);
        if large.is_cut() {
            self.under_way.remove(place);
            return;
        }
        if large.failed().is_some() && large.is_streaming() {
            // The header said that all is well. Source: NBD protocol, "NBD_CMD_READ": only the end of the connection
            // can say otherwise.
            self.broke(Rule::FailedInTheMiddle);
            return self.close(context);
        }
        if large.failed().is_some() {
            return self.answer_failed(place);
        }
        let is_read = large.op == Op::Read;
        let cookie = self.under_way.remove(place).cookie();
        if !is_read {
            self.replies.done(cookie);
        }
    }

    fn answer_failed(&mut self, place: u32) {
        let PendingRequest::Large { cookie, mut large } = self.under_way.remove(place) else {
            unreachable!("a large one failed")
        };
        let ProtocolPhase::Transmitting(transmission) = &mut self.phase else { unreachable!("as in submit") };
        for buffer in large.take_ready() {
            transmission.account().give(buffer.capacity_bytes() as u64);
        }
        let status = large.failed().expect("as its name says");
        let errno = errno_of_status(status).expect("a failure has a number");
        self.replies.error(cookie, errno, &status.to_string());
    }
}
