//! The driver's half of a queue pair: where to write next, where to read next, which phase is new.
//!
//! Knows of the controller only its rings and doorbells, so it would drive a real one as well. `submit` any number,
//! then `ring` once; `poll` until it returns `None`, then `ring_completions` once.

use crate::command::{DatasetRange, SubmissionEntry};
use crate::completion::Status;
use crate::controller::Controller;
use crate::queue::{QueueId, QueuePairOptions};

/// The submission ring has no free slot. The command was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingFull(pub SubmissionEntry);

/// A command's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Identifier of the command (field CID).
    pub cid: u16,
    /// Status of the command.
    pub status: Status,
    /// Time when the controller posted it, nanoseconds; before the poll that found it.
    pub posted_ns: u64,
}

/// One queue pair, from the host's side.
#[derive(Debug)]
pub struct HostQueuePair {
    id: QueueId,
    entries: u32,
    /// Next slot to write; last value of the doorbell.
    submission_tail: u16,
    rung_tail: u16,
    /// The controller's head as far as known: SQHD of the last completion read.
    submission_head: u16,
    /// Next slot to read; last value of the doorbell.
    completion_head: u16,
    rung_head: u16,
    /// P of an entry that is new on this pass.
    phase: bool,
}

impl HostQueuePair {
    /// Creates a pair on the controller.
    ///
    /// # Errors
    /// The controller's status.
    pub fn create(controller: &mut Controller, options: QueuePairOptions) -> Result<HostQueuePair, Status> {
        let id = controller.create_io_queue_pair(options)?;
        Ok(HostQueuePair::empty(id, options.entries))
    }

    fn empty(id: QueueId, entries: u32) -> HostQueuePair {
        HostQueuePair {
            id,
            entries,
            submission_tail: 0,
            rung_tail: 0,
            submission_head: 0,
            completion_head: 0,
            rung_head: 0,
            phase: true,
        }
    }

    /// Deletes the pair and creates it again ([`Controller::recreate_io_queue_pair`]): its rings are empty.
    pub fn recreate(&mut self, controller: &mut Controller, now_ns: u64) {
        controller.recreate_io_queue_pair(self.id, now_ns);
        let &mut HostQueuePair { id, entries, .. } = self;
        *self = HostQueuePair::empty(id, entries);
    }

    /// Allows [`HostQueuePair::submit_deallocate`] identifiers below this; without it, below the ring's size.
    pub fn reserve_deallocates(&self, controller: &mut Controller, cids: usize) {
        controller.reserve_dataset_ranges(self.id, cids);
    }

    /// Deletes the pair ([`Controller::delete_io_queue_pair`]): returns the number of outstanding commands. None of
    /// them is completed.
    pub fn delete(self, controller: &mut Controller, now_ns: u64) -> u32 {
        let deleted = controller.delete_io_queue_pair(self.id, now_ns);
        deleted.unwrap_or_else(|status| panic!("{:?}: {status}", self.id))
    }

    /// Identifier of the pair.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Puts a command into the ring; the controller sees it after [`HostQueuePair::ring`].
    ///
    /// # Errors
    /// [`RingFull`] with the command. Slots become known to be free by the SQHD of completions.
    pub fn submit(&mut self, controller: &mut Controller, entry: SubmissionEntry) -> Result<(), RingFull> {
        let next = self.after(self.submission_tail);
        if next == self.submission_head {
            return Err(RingFull(entry));
        }
        controller.write_submission(self.id, self.submission_tail, entry);
        self.submission_tail = next;
        Ok(())
    }

    /// Puts a deallocate of `range` into the ring. Its identifier is also its place in the range table, so it must be
    /// below the ring's size, or the limit of [`HostQueuePair::reserve_deallocates`].
    ///
    /// # Errors
    /// [`RingFull`] with the command.
    pub fn submit_deallocate(
        &mut self,
        controller: &mut Controller,
        cid: u16,
        range: DatasetRange,
    ) -> Result<(), RingFull> {
        controller.write_dataset_range(self.id, cid, range);
        self.submit(controller, SubmissionEntry::deallocate(cid, cid))
    }

    /// Rings the submission doorbell if there is something new.
    pub fn ring(&mut self, controller: &mut Controller, now_ns: u64) {
        if self.submission_tail != self.rung_tail {
            let rung = controller.ring_submission_doorbell(self.id, self.submission_tail, now_ns);
            rung.unwrap_or_else(|error| panic!("{:?} tail {}: {error}", self.id, self.submission_tail));
            self.rung_tail = self.submission_tail;
        }
    }

    /// The next completion, if one was posted.
    pub fn poll(&mut self, controller: &mut Controller) -> Option<Completion> {
        let entry = controller.read_completion(self.id, self.completion_head);
        if entry.phase() != self.phase {
            return None;
        }
        let posted_ns = controller.completion_posted_ns(self.id, self.completion_head);
        self.completion_head = self.after(self.completion_head);
        if self.completion_head == 0 {
            self.phase = !self.phase;
        }
        self.submission_head = entry.submission_head();
        Some(Completion { cid: entry.cid(), status: entry.status(), posted_ns })
    }

    /// Rings the completion doorbell if something was read: its slots may be used again.
    pub fn ring_completions(&mut self, controller: &mut Controller, now_ns: u64) {
        if self.completion_head != self.rung_head {
            let rung = controller.ring_completion_doorbell(self.id, self.completion_head, now_ns);
            rung.unwrap_or_else(|error| panic!("{:?} head {}: {error}", self.id, self.completion_head));
            self.rung_head = self.completion_head;
        }
    }

    fn after(&self, slot: u16) -> u16 {
        if u32::from(slot) + 1 == self.entries { 0 } else { slot + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::ControllerOptions;
    use crate::presets::FLASH_460K;
    use crate::queue::ArbClass;

    fn setup(entries: u32) -> (Controller, HostQueuePair) {
        let mut controller = Controller::new(ControllerOptions::of(&FLASH_460K, 1 << 30, 1, 7));
        let options = QueuePairOptions { entries, class: ArbClass::default() };
        let host = HostQueuePair::create(&mut controller, options).unwrap();
        (controller, host)
    }

    #[test]
    fn a_full_ring_gives_the_command_back() {
        let (mut controller, mut host) = setup(4);
        for cid in 0..3 {
            assert_eq!(host.submit(&mut controller, SubmissionEntry::flush(cid)), Ok(()));
        }
        let fourth = SubmissionEntry::flush(3);
        assert_eq!(host.submit(&mut controller, fourth), Err(RingFull(fourth)));
        // Fetched at the doorbell, but the host learns of it only by a completion.
        host.ring(&mut controller, 0);
        assert_eq!(host.submit(&mut controller, fourth), Err(RingFull(fourth)));
        controller.advance(1_000_000);
        assert_eq!(host.poll(&mut controller).unwrap().cid, 0);
        assert_eq!(host.submit(&mut controller, fourth), Ok(()));
    }

    #[test]
    fn old_entries_are_not_read_twice_over_many_passes() {
        // 3 entries, 2 in use: 100 commands are 33 passes and a bit, and the phase changes with each.
        let (mut controller, mut host) = setup(3);
        let mut now_ns = 0;
        for cid in 0..100 {
            host.submit(&mut controller, SubmissionEntry::flush(cid)).unwrap();
            host.ring(&mut controller, now_ns);
            assert_eq!(host.poll(&mut controller), None);
            now_ns = controller.next_event_ns().unwrap();
            controller.advance(now_ns);
            let completion = host.poll(&mut controller).unwrap();
            assert_eq!((completion.cid, completion.posted_ns), (cid, now_ns));
            assert_eq!(host.poll(&mut controller), None);
            host.ring_completions(&mut controller, now_ns);
        }
    }

    #[test]
    fn a_host_that_does_not_free_completions_stops_its_own_queue_only() {
        let (mut controller, mut host) = setup(3);
        for cid in 0..2 {
            host.submit(&mut controller, SubmissionEntry::flush(cid)).unwrap();
        }
        host.ring(&mut controller, 0);
        controller.advance(1_000_000);
        assert!(host.poll(&mut controller).is_some() && host.poll(&mut controller).is_some());
        host.submit(&mut controller, SubmissionEntry::flush(2)).unwrap();
        host.ring(&mut controller, 1_000_000);
        assert_eq!(controller.next_event_ns(), None, "both completion slots are still the host's");
        host.ring_completions(&mut controller, 2_000_000);
        assert!(controller.next_event_ns().is_some_and(|at_ns| at_ns > 2_000_000));
    }
}
