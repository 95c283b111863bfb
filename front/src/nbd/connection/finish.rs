//! How do a large request and a block status end, well or not? The reply to a large one leaves when nothing of it is
//! left to wait for.

use super::{Connection, PendingRequest, ProtocolPhase};
use crate::nbd::reply::whole_blocks;
use crate::nbd::rule::{Rule, errno_of};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::Context;
use mqfq_blk::extents::{self, Extent, Stored};
use mqfq_blk::request::{Op, Status};

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
        let (is_read, offset_bytes) = (large.op == Op::Read, large.offset_bytes);
        let cookie = self.under_way.remove(place).cookie();
        if !is_read {
            self.replies.done(cookie, offset_bytes);
        }
    }

    /// Answers a block status of `length_bytes`. A device that does not say is taken to have data, which the protocol
    /// always allows; so is one that another process may go on with.
    pub(super) fn answer_status(
        &mut self,
        cookie: u64,
        offset_bytes: u64,
        length_bytes: u32,
        status: Status,
        buffer: Option<Buffer>,
    ) {
        let ProtocolPhase::Transmitting(transmission) = &self.phase else { unreachable!("as in submit") };
        let block_bytes = transmission.session().export.block.min_bytes.into();
        let all = Extent { length_bytes: length_bytes.into(), stored: Stored::Data };
        match (status, &buffer, errno_of(Op::Extents, status)) {
            (Status::Ok, Some(buffer), _) => {
                let extents = whole_blocks(offset_bytes, block_bytes, extents::answered(buffer));
                self.replies.block_status(cookie, offset_bytes, extents);
            }
            (Status::Unsupported | Status::Recalled, ..) | (.., None) => {
                self.replies.block_status(cookie, offset_bytes, std::iter::once(all));
            }
            (.., Some(errno)) => self.replies.error(cookie, offset_bytes, errno, &status.to_string()),
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
        let errno = errno_of(large.op, status).expect("a failure has a number");
        self.replies.error(cookie, large.offset_bytes, errno, &status.to_string());
    }
}
