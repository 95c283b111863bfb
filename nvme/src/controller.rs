//! The controller: queue pairs, fetching, completion, interrupts, as a function of doorbells and time.
//!
//! # What happens when
//! | event | at | then |
//! |---|---|---|
//! | submission doorbell | `now_ns` | the queue may become a candidate; fetch while there is room inside |
//! | a command ends in the media model | its own time | post its completion, free its place inside, fetch |
//! | completion doorbell | `now_ns` | the queue may become a candidate again; fetch |
//!
//! # Invariants
//! C1. Results do not depend on how often [`Controller::advance`] is called: it handles every event up to `now_ns` in
//!     order, each at its own time, so a poll that comes late fetches the next command when the drive would have.
//! C2. Every command that a valid doorbell announced is completed exactly once, with the status of the first rule that
//!     it breaks or with success.
//! C3. Time does not go back: a `now_ns` before one already given counts as that one. (Workers read their clocks at
//!     different moments; the one that comes second must not change what the first was told.)
//! C4. At most `inside_max` commands are inside; further ones wait in their rings and arbitration decides among them.
//!
//! # Cost
//! Per command: one bitmap look-up, the media model's heap, 64 + 16 bytes of ring. No allocation except for new queues.

use crate::arbitration::round_robin::RoundRobin;
use crate::arbitration::{Arbiter, ArbitrationBurst};
use crate::command::{DatasetRange, Namespace, SubmissionEntry, decode};
use crate::completion::{CompletionEntry, Status};
use crate::media::{Media, MediaOptions};
use crate::queue::{ArbClass, DoorbellError, QueueId, QueuePair, QueuePairOptions};
use crate::queue_set::QueueSet;

/// What a controller is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControllerOptions {
    /// The drive behind it.
    pub media: MediaOptions,
    /// Its one namespace.
    pub namespace: Namespace,
    /// Most queue pairs that can be created, 1..=65535.
    pub queue_pairs_max: u16,
    /// Commands fetched from a queue per turn.
    pub arbitration_burst: ArbitrationBurst,
    /// Of the model's random numbers.
    pub seed: u64,
}

/// A fetched command.
#[derive(Clone, Copy, Debug)]
struct Inside {
    queue: u16,
    cid: u16,
    status: Status,
    /// Its completion was posted, or its queue is gone: only its place inside is left, until the medium is done with it.
    is_over: bool,
}

/// See the file's text.
#[derive(Debug)]
pub struct Controller {
    namespace: Namespace,
    media: Media,
    arbiter: Arbiter,
    pairs: Vec<QueuePair>,
    pairs_max: usize,
    /// Queues that can be fetched from.
    candidates: QueueSet,
    /// Queues with completions posted since interrupts were last taken.
    news: QueueSet,
    inside: Box<[Inside]>,
    free: Vec<u16>,
    now_ns: u64,
}

impl Controller {
    /// A controller without queues, at time 0.
    ///
    /// # Panics
    /// If an option is outside its range: options come from a preset or a test, never from a user.
    pub fn new(options: ControllerOptions) -> Controller {
        let ControllerOptions { media, namespace, queue_pairs_max, arbitration_burst, seed } = options;
        let block_bytes = namespace.block_bytes;
        assert!(block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes), "block of {block_bytes} bytes");
        assert!(namespace.blocks > 0 && queue_pairs_max > 0, "no blocks or no queues: {options:?}");
        let pairs_max = queue_pairs_max as usize;
        Controller {
            namespace,
            media: Media::new(media, seed),
            arbiter: Arbiter::RoundRobin(RoundRobin::new(arbitration_burst)),
            pairs: Vec::with_capacity(pairs_max),
            pairs_max,
            candidates: QueueSet::new(pairs_max),
            news: QueueSet::new(pairs_max),
            inside: vec![
                Inside { queue: 0, cid: 0, status: Status::SUCCESS, is_over: true };
                media.inside_max as usize
            ]
            .into(),
            free: (0..media.inside_max).rev().collect(),
            now_ns: 0,
        }
    }

    /// What there is to address.
    pub fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// Create I/O Completion Queue and Create I/O Submission Queue in one (NVMe 1.3 sections 5.3 and 5.4).
    ///
    /// # Errors
    /// The status that these commands end with: [`Status::INVALID_QUEUE_IDENTIFIER`] if all are in use,
    /// [`Status::INVALID_QUEUE_SIZE`].
    pub fn create_io_queue_pair(&mut self, options: QueuePairOptions) -> Result<QueueId, Status> {
        if self.pairs.len() == self.pairs_max {
            return Err(Status::INVALID_QUEUE_IDENTIFIER);
        }
        let id = QueueId::from_index(self.pairs.len());
        self.pairs.push(QueuePair::new(id, options)?);
        Ok(id)
    }

    /// Abort (NVMe 1.3 section 5.1): the command ends with [`Status::ABORT_REQUESTED`], at once if it is inside (its place there stays
    /// taken until the medium is done with it), when it is fetched if it waits in its ring. False, dword 0 of the completion
    /// of an Abort being 1: there is no such command, or it has ended.
    ///
    /// A real controller may do less; one that does nothing is `blk`'s fault device.
    pub fn abort(&mut self, queue: QueueId, cid: u16, now_ns: u64) -> bool {
        self.advance(now_ns);
        let Some(index) = queue.index().filter(|&index| index < self.pairs.len()) else { return false };
        let is_it = |inside: &&mut Inside| !inside.is_over && inside.queue as usize == index && inside.cid == cid;
        let Some(inside) = self.inside.iter_mut().find(is_it) else { return self.pairs[index].abort_waiting(cid) };
        inside.is_over = true;
        self.pairs[index].post(cid, Status::ABORT_REQUESTED, self.now_ns);
        self.news.set(index, true);
        true
    }

    /// Delete I/O Submission Queue and Delete I/O Completion Queue (NVMe 1.3 sections 5.6 and 5.5), and both created again with the same
    /// identifier and size: what a driver does about a queue that no longer answers. Commands of the queue are not completed
    /// any more; those inside keep their places until the medium is done with them.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn recreate_io_queue_pair(&mut self, queue: QueueId, now_ns: u64) {
        self.advance(now_ns);
        let pair = self.pair_mut(queue);
        let options = QueuePairOptions { entries: pair.entries(), class: pair.class() };
        *pair = QueuePair::new(queue, options).expect("it was created with these options before");
        let index = queue.index().expect("pair_mut found it");
        self.inside.iter_mut().filter(|inside| inside.queue as usize == index).for_each(|inside| inside.is_over = true);
        self.candidates.set(index, false);
        self.news.set(index, false);
    }

    /// Arbitration class of a queue.
    pub fn queue_class(&self, queue: QueueId) -> Option<ArbClass> {
        Some(self.pairs.get(queue.index()?)?.class())
    }

    /// Entries of a queue's rings.
    pub fn queue_entries(&self, queue: QueueId) -> Option<u32> {
        Some(self.pairs.get(queue.index()?)?.entries())
    }

    /// Host memory: writes a slot of the submission ring. The controller looks at it only after the doorbell.
    ///
    /// # Panics
    /// If there is no such queue or slot.
    pub fn write_submission(&mut self, queue: QueueId, slot: u16, entry: SubmissionEntry) {
        self.pair_mut(queue).write_submission(slot, entry);
    }

    /// Host memory: writes an entry of the queue's table of ranges, of as many entries as its rings. A Dataset Management
    /// command names it by its index; it must stay as it is until the command is completed.
    ///
    /// # Panics
    /// If there is no such queue or entry.
    pub fn write_dataset_range(&mut self, queue: QueueId, index: u16, range: DatasetRange) {
        self.pair_mut(queue).write_range(index, range);
    }

    /// Host memory: reads a slot of the completion ring, new or old; the phase bit tells.
    ///
    /// # Panics
    /// If there is no such queue or slot.
    pub fn read_completion(&self, queue: QueueId, slot: u16) -> CompletionEntry {
        self.pair(queue).completion(slot)
    }

    /// When the entry in this slot was posted, nanoseconds of model time: what a bus analyser would show. The poll that
    /// finds it may come later.
    ///
    /// # Panics
    /// If there is no such queue or slot.
    pub fn completion_posted_ns(&self, queue: QueueId, slot: u16) -> u64 {
        self.pair(queue).posted_ns(slot)
    }

    /// Submission Queue y Tail Doorbell (NVMe 1.3 section 3.1.16): entries before `tail` are there.
    ///
    /// # Errors
    /// [`DoorbellError`], and nothing changes.
    pub fn ring_submission_doorbell(&mut self, queue: QueueId, tail: u16, now_ns: u64) -> Result<(), DoorbellError> {
        self.doorbell(queue, now_ns, |pair| pair.ring_submission(tail))
    }

    /// Completion Queue y Head Doorbell (NVMe 1.3 section 3.1.17): entries before `head` may be overwritten.
    ///
    /// # Errors
    /// [`DoorbellError`], and nothing changes.
    pub fn ring_completion_doorbell(&mut self, queue: QueueId, head: u16, now_ns: u64) -> Result<(), DoorbellError> {
        self.doorbell(queue, now_ns, |pair| pair.ring_completion(head))
    }

    fn doorbell(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        ring: impl FnOnce(&mut QueuePair) -> Result<(), DoorbellError>,
    ) -> Result<(), DoorbellError> {
        // What happened before the doorbell happens first.
        self.advance(now_ns);
        let index = queue.index().filter(|&index| index < self.pairs.len()).ok_or(DoorbellError::InvalidRegister)?;
        ring(&mut self.pairs[index])?;
        self.candidates.set(index, self.pairs[index].is_candidate());
        self.fetch();
        Ok(())
    }

    /// Handles everything that happens up to `now_ns`, nanoseconds since the start.
    pub fn advance(&mut self, now_ns: u64) {
        let now_ns = self.now_ns.max(now_ns);
        while let Some((ended_ns, slot)) = self.media.next_ended(now_ns) {
            self.now_ns = ended_ns;
            let Inside { queue, cid, status, is_over } = self.inside[slot as usize];
            self.inside[slot as usize].is_over = true;
            self.free.push(slot);
            if !is_over {
                let index = queue as usize;
                self.pairs[index].post(cid, status, ended_ns);
                self.news.set(index, true);
            }
            self.fetch();
        }
        self.now_ns = now_ns;
    }

    /// Fetches while there is room inside and something to fetch.
    fn fetch(&mut self) {
        while let Some(&slot) = self.free.last() {
            let Some(index) = self.arbiter.pick(&self.candidates) else { return };
            self.free.pop();
            let pair = &mut self.pairs[index];
            let (entry, is_aborted) = pair.fetch();
            self.candidates.set(index, pair.is_candidate());
            let decoded = match is_aborted {
                false => decode(&entry, &self.namespace, |prp1| pair.range(prp1)),
                true => Err(Status::ABORT_REQUESTED),
            };
            let status = decoded.err().unwrap_or(Status::SUCCESS);
            self.inside[slot as usize] = Inside { queue: index as u16, cid: entry.cid(), status, is_over: false };
            self.media.begin(decoded.ok(), slot, self.now_ns);
        }
    }

    /// When the next completion will be posted, if no doorbell is rung before. `None`: nothing is inside.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.media.next_end_ns()
    }

    /// Calls `each` with every queue whose completion ring got entries since the last call (NVMe 1.3 section 7.5: one
    /// vector per completion queue, no coalescing).
    pub fn take_interrupts(&mut self, mut each: impl FnMut(QueueId)) {
        self.news.drain(|index| each(QueueId::from_index(index)));
    }

    /// Commands inside the drive, at most `inside_max`.
    pub fn inside(&self) -> usize {
        self.inside.len() - self.free.len()
    }

    fn pair(&self, queue: QueueId) -> &QueuePair {
        queue.index().and_then(|index| self.pairs.get(index)).unwrap_or_else(|| panic!("there is no {queue:?}"))
    }

    fn pair_mut(&mut self, queue: QueueId) -> &mut QueuePair {
        queue.index().and_then(|index| self.pairs.get_mut(index)).unwrap_or_else(|| panic!("there is no {queue:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostQueuePair;
    use crate::presets::FLASH_460K;

    fn controller(inside_max: u16) -> Controller {
        let media = MediaOptions { inside_max, ..FLASH_460K.media };
        let namespace = Namespace { blocks: 1 << 20, block_bytes: 512, transfer_bytes_max: 128 << 10 };
        Controller::new(ControllerOptions {
            media,
            namespace,
            queue_pairs_max: 4,
            arbitration_burst: ArbitrationBurst::ONE,
            seed: 1,
        })
    }

    fn queue(controller: &mut Controller, entries: u32) -> HostQueuePair {
        HostQueuePair::create(controller, QueuePairOptions { entries, class: ArbClass::default() }).unwrap()
    }

    #[test]
    fn only_so_many_queues_can_be_created() {
        let mut controller = controller(256);
        let options = QueuePairOptions { entries: 16, class: ArbClass::Urgent };
        for id in 1..=4 {
            assert_eq!(controller.create_io_queue_pair(options), Ok(QueueId(id)), "identifiers begin at 1");
        }
        assert_eq!(controller.create_io_queue_pair(options), Err(Status::INVALID_QUEUE_IDENTIFIER));
        assert_eq!(controller.queue_class(QueueId(2)), Some(ArbClass::Urgent));
        assert_eq!(controller.queue_entries(QueueId(2)), Some(16));
        assert_eq!(controller.queue_class(QueueId(0)), None);
    }

    #[test]
    fn a_doorbell_of_no_queue_is_reported_and_ignored() {
        let mut controller = controller(256);
        queue(&mut controller, 8);
        for missing in [0, 2, 9] {
            let rung = controller.ring_submission_doorbell(QueueId(missing), 1, 0);
            assert_eq!(rung, Err(DoorbellError::InvalidRegister));
        }
        assert_eq!(controller.ring_submission_doorbell(QueueId(1), 8, 0), Err(DoorbellError::InvalidValue));
        assert_eq!(controller.ring_completion_doorbell(QueueId(1), 1, 0), Err(DoorbellError::InvalidValue));
        assert_eq!(controller.next_event_ns(), None);
    }

    #[test]
    fn a_refused_command_is_completed_with_its_status_and_the_next_goes_on() {
        let mut controller = controller(256);
        let mut host = queue(&mut controller, 16);
        let entries = [
            SubmissionEntry::new(0x7f, 0, 1),
            SubmissionEntry::read(1, 1 << 20, 1, 0),
            SubmissionEntry::read(2, 0, 257, 0),
            SubmissionEntry::flush(3),
        ];
        entries.into_iter().for_each(|entry| host.submit(&mut controller, entry).unwrap());
        host.ring(&mut controller, 0);
        controller.advance(1_000_000_000);
        let mut ended: Vec<_> = std::iter::from_fn(|| host.poll(&mut controller)).collect();
        ended.sort_by_key(|completion| completion.cid);
        let statuses: Vec<_> = ended.iter().map(|completion| completion.status).collect();
        assert_eq!(
            statuses,
            [Status::INVALID_OPCODE, Status::LBA_OUT_OF_RANGE, Status::INVALID_FIELD, Status::SUCCESS]
        );
    }

    #[test]
    fn a_deallocate_reads_its_range_from_the_queues_table() {
        let mut controller = controller(256);
        let mut host = queue(&mut controller, 16);
        controller.write_dataset_range(host.id(), 7, DatasetRange { slba: 0, blocks: 1 << 20 });
        controller.write_dataset_range(host.id(), 8, DatasetRange { slba: 1, blocks: 1 << 20 });
        host.submit(&mut controller, SubmissionEntry::deallocate(0, 7)).unwrap();
        host.submit(&mut controller, SubmissionEntry::deallocate(1, 8)).unwrap();
        host.submit(&mut controller, SubmissionEntry::deallocate(2, 16)).unwrap();
        host.ring(&mut controller, 0);
        controller.advance(1_000_000_000);
        let statuses: Vec<_> = std::iter::from_fn(|| host.poll(&mut controller)).map(|ended| ended.status).collect();
        // Refused commands wait for no medium, so the good one ends last.
        assert_eq!(statuses, [Status::LBA_OUT_OF_RANGE, Status::DATA_TRANSFER_ERROR, Status::SUCCESS]);
    }

    #[test]
    fn commands_beyond_the_limit_wait_in_their_rings() {
        let mut controller = controller(4);
        let mut host = queue(&mut controller, 16);
        (0..10).for_each(|cid| host.submit(&mut controller, SubmissionEntry::read(cid, 0, 8, 0)).unwrap());
        host.ring(&mut controller, 0);
        assert_eq!(controller.inside(), 4);
        // Each end lets one in: still 4 inside after 6 of 10 have ended, and SQHD says that all are fetched.
        for ended in 1..=10 {
            controller.advance(controller.next_event_ns().unwrap());
            assert!(host.poll(&mut controller).is_some());
            assert_eq!(controller.inside(), (10 - ended).min(4));
        }
        assert_eq!(controller.next_event_ns(), None);
    }

    #[test]
    fn interrupts_name_the_queues_with_news_once() {
        let mut controller = controller(256);
        let mut hosts = [8, 8, 8].map(|entries| queue(&mut controller, entries));
        for host in [0, 2] {
            hosts[host].submit(&mut controller, SubmissionEntry::flush(0)).unwrap();
            hosts[host].ring(&mut controller, 0);
        }
        controller.advance(1_000_000_000);
        let mut named = Vec::new();
        controller.take_interrupts(|id| named.push(id));
        assert_eq!(named, [QueueId(1), QueueId(3)]);
        controller.take_interrupts(|id| panic!("{id:?} was already named"));
    }

    #[test]
    fn an_aborted_command_ends_once_wherever_it_is() {
        // Room for two inside: 0 and 1 are there, 2 and 3 wait in the ring.
        let mut controller = controller(2);
        let mut host = queue(&mut controller, 16);
        (0..4).for_each(|cid| host.submit(&mut controller, SubmissionEntry::read(cid, 0, 8, 0)).unwrap());
        host.ring(&mut controller, 0);
        assert!(controller.abort(host.id(), 1, 10) && controller.abort(host.id(), 3, 10));
        assert!(!controller.abort(host.id(), 1, 10) && !controller.abort(host.id(), 9, 10), "ended, and never there");
        let first = host.poll(&mut controller).unwrap();
        assert_eq!((first.cid, first.status, first.posted_ns), (1, Status::ABORT_REQUESTED, 10));
        assert_eq!(controller.inside(), 2, "the die is still busy with it");
        controller.advance(1_000_000_000);
        let mut ended: Vec<_> = std::iter::from_fn(|| host.poll(&mut controller)).map(|e| (e.cid, e.status)).collect();
        ended.sort_by_key(|&(cid, _)| cid);
        assert_eq!(ended, [(0, Status::SUCCESS), (2, Status::SUCCESS), (3, Status::ABORT_REQUESTED)]);
        assert_eq!(controller.inside(), 0);
    }

    #[test]
    fn a_queue_that_was_deleted_and_created_again_completes_nothing_of_before() {
        let mut controller = controller(2);
        let mut host = queue(&mut controller, 8);
        (0..4).for_each(|cid| host.submit(&mut controller, SubmissionEntry::read(cid, 0, 8, 0)).unwrap());
        host.ring(&mut controller, 0);
        host.recreate(&mut controller, 10);
        assert_eq!(controller.inside(), 2, "the dies are still busy");
        host.submit(&mut controller, SubmissionEntry::flush(0)).unwrap();
        host.ring(&mut controller, 10);
        controller.advance(1_000_000_000);
        let ended: Vec<_> = std::iter::from_fn(|| host.poll(&mut controller)).map(|e| (e.cid, e.status)).collect();
        assert_eq!(ended, [(0, Status::SUCCESS)], "the flush, and once");
        assert_eq!(controller.inside(), 0);
    }

    #[test]
    fn time_does_not_go_back() {
        // The first worker's clock says 1 ms, the second's says 0: its command begins at 1 ms all the same.
        let mut controller = controller(256);
        let mut host = queue(&mut controller, 8);
        controller.advance(1_000_000);
        host.submit(&mut controller, SubmissionEntry::flush(0)).unwrap();
        host.ring(&mut controller, 0);
        let flush_ns = FLASH_460K.media.flush_ns + FLASH_460K.media.read_link.command_ns;
        assert_eq!(controller.next_event_ns(), Some(1_000_000 + flush_ns));
    }
}
