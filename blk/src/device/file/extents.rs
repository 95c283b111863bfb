//! Which bytes of the file are stored? The file system is asked by lseek, which may sleep: so a closer asks
//! ([`crate::passed`]), never a worker, and a file system that does not answer holds up its own questions alone.
//!
//! ```text
//!   worker: submit ─▶ questions of the file ─▶ closer: lseek ─▶ answers of the queue ─ interrupt ─▶ worker: reap
//! ```
//!
//! # What an answer is worth
//! A write that has ended has its storage, and Linux calls pages that are only in its cache data. So a byte that was
//! written before the question is data, unless something has zeroed it since; a question beside a write may see either.
//! Bytes behind the end of a file that was cut are an error, as for a read. Blocks of a block device are data.

use crate::device::{Command, Reaped};
use crate::extents::{Answer, Stored};
use crate::passed::{MayWait, give_to_closers};
use crate::request::Status;
use mqfq_sched::topology::HctxId;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Questions about one file, which are answered one after the other.
#[derive(Default)]
pub(super) struct Questions(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    questions: VecDeque<Question>,
    /// A closer has them, or will.
    is_listed: bool,
}

struct Question {
    /// Kept no longer than it is used: the last owner closes the file.
    file: Arc<dyn AsFd + Send + Sync>,
    /// First byte, in the file.
    offset_bytes: u64,
    command: Command,
    to: Arc<Answers>,
}

/// Answered questions of one device queue.
struct Answers {
    ended: Mutex<Vec<Reaped>>,
    hctx: HctxId,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
}

/// A device queue, as the questions know it.
pub(super) struct Member {
    answers: Arc<Answers>,
    /// Questions that were asked and not taken back.
    out: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A list is whole after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// A queue whose worker hears of answers by `interrupt` with `hctx`.
    pub(super) fn new(hctx: HctxId, interrupt: Arc<dyn Fn(HctxId) + Send + Sync>) -> Member {
        Member { answers: Arc::new(Answers { ended: Mutex::default(), hctx, interrupt }), out: 0 }
    }

    /// Asks about the bytes from `offset_bytes` of `file` on, whose questions these are; [`Member::take`] has the
    /// answer, later.
    pub(super) fn ask(
        &mut self,
        questions: &Arc<Questions>,
        file: Arc<dyn AsFd + Send + Sync>,
        offset_bytes: u64,
        command: Command,
    ) {
        self.out += 1;
        let question = Question { file, offset_bytes, command, to: self.answers.clone() };
        let mut waiting = locked(&questions.0);
        waiting.questions.push_back(question);
        let is_listed = std::mem::replace(&mut waiting.is_listed, true);
        drop(waiting);
        if !is_listed && !give_to_closers(questions.clone()) {
            // An engine that is stepped, a test: there is nothing to hold up.
            questions.work();
        }
    }

    /// Questions are out.
    pub(super) fn waits(&self) -> bool {
        self.out > 0
    }

    /// Moves the answers that have come to `out`.
    #[cold]
    pub(super) fn take(&mut self, out: &mut Vec<Reaped>) {
        let mut ended = locked(&self.answers.ended);
        self.out -= ended.len();
        out.append(&mut ended);
    }
}

impl MayWait for Questions {
    fn work(&self) {
        loop {
            let mut waiting = locked(&self.0);
            let Some(Question { file, offset_bytes, mut command, to }) = waiting.questions.pop_front() else {
                waiting.is_listed = false;
                return;
            };
            drop(waiting);
            // Here it may wait.
            let status = answer(file.as_fd(), offset_bytes, command.answer());
            // Before its worker hears of the end: who closes the device after that shall find no other owner.
            drop(file);
            locked(&to.ended).push(command.ended(status));
            (to.interrupt)(to.hctx);
        }
    }
}

/// Extents of a file from `offset_bytes` on.
fn answer(file: BorrowedFd<'_>, offset_bytes: u64, mut answer: Answer<'_>) -> Status {
    let mut at_bytes = offset_bytes;
    while answer.left_bytes() > 0 {
        let end_bytes = at_bytes + answer.left_bytes();
        let data_bytes = match seek(file, at_bytes, libc::SEEK_DATA) {
            Ok(data_bytes) => data_bytes.clamp(at_bytes, end_bytes),
            // No data up to the end of the file, wherever that is by now.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => match seek(file, 0, libc::SEEK_END) {
                Ok(length_bytes) if length_bytes >= end_bytes => end_bytes,
                _ => return Status::Io,
            },
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => at_bytes,
            Err(_) => return Status::Io,
        };
        if !answer.push(data_bytes - at_bytes, Stored::Hole) {
            break;
        }
        // Bytes of which the file system cannot tell are data, up to the end.
        let hole_bytes = seek(file, data_bytes, libc::SEEK_HOLE).unwrap_or(end_bytes);
        let hole_bytes = if hole_bytes > data_bytes { hole_bytes.min(end_bytes) } else { end_bytes };
        if !answer.push(hole_bytes - data_bytes, Stored::Data) {
            break;
        }
        at_bytes = hole_bytes;
    }
    Status::Ok
}

/// Nothing else uses the position of the file.
fn seek(file: BorrowedFd<'_>, offset_bytes: u64, whence: libc::c_int) -> io::Result<u64> {
    let offset = libc::off64_t::try_from(offset_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: no memory is involved, and the descriptor is open.
    let found = unsafe { libc::lseek64(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;
    use crate::extents::{answered, ask};
    use Stored::{Data, Hole};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    fn map(file: &File, offset_bytes: u64, length_bytes: u64, most: usize) -> (Status, Vec<(u64, Stored)>) {
        let mut buffer = ask(most);
        let status = answer(file.as_fd(), offset_bytes, Answer::new(&mut buffer, length_bytes));
        (status, answered(&buffer).map(|extent| (extent.length_bytes, extent.stored)).collect())
    }

    #[test]
    fn holes_of_a_file_are_told_and_what_was_cut_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * MIB).unwrap();
        let whole = |most| map(&file, 0, 8 * MIB, most);
        assert_eq!(whole(9), (Status::Ok, vec![(8 * MIB, Hole)]));
        file.write_all_at(&[1; MIB as usize], MIB).unwrap();
        file.write_all_at(&[1; MIB as usize], 4 * MIB).unwrap();
        let all = [(MIB, Hole), (MIB, Data), (2 * MIB, Hole), (MIB, Data), (3 * MIB, Hole)];
        assert_eq!(whole(9), (Status::Ok, all.to_vec()));
        assert_eq!(whole(2), (Status::Ok, all[..2].to_vec()));
        assert_eq!(map(&file, MIB + 4096, 4096, 9), (Status::Ok, vec![(4096, Data)]));
        assert_eq!(map(&file, 3 * MIB, MIB, 9), (Status::Ok, vec![(MIB, Hole)]));
        file.set_len(6 * MIB).unwrap();
        assert_eq!(map(&file, 5 * MIB, MIB, 9), (Status::Ok, vec![(MIB, Hole)]));
        assert_eq!(map(&file, 5 * MIB, 2 * MIB, 9).0, Status::Io);
    }
}
