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
//!     different moments; the second must not change the results of the first.)
//! C4. At most `inside_max` commands are inside; further ones wait in their rings and arbitration decides among them.
//!
//! # Cost
//! Per command: one bitmap look-up, the media model's heap, 64 + 16 bytes of ring. No allocation except for new queues.

use crate::arbitration::{
    Arbiter, Arbitration, ArbitrationBurst, ArbitrationFeature, ArbitrationWeights, Mechanism, UnsupportedMechanism,
};
use crate::command::{DatasetRange, Namespace, SubmissionEntry, decode};
use crate::completion::{CompletionEntry, Status};
use crate::media::{Media, MediaOptions};
use crate::presets::{BLOCK_BYTES, Preset, TRANSFER_BYTES_MAX};
use crate::queue::QueueSet;
use crate::queue::{ArbClass, DoorbellError, QueueId, QueuePair, QueuePairOptions};
use crate::spells::Spells;

/// Options of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControllerOptions {
    /// The drive behind it.
    pub media: MediaOptions,
    /// Its one namespace.
    pub namespace: Namespace,
    /// Most queue pairs that can be created, 1..=65535.
    pub queue_pairs_max: u16,
    /// Mechanisms that CAP.AMS offers, and whether the drive honours them.
    pub arbitration: Arbitration,
    /// Commands fetched from a queue per turn, until Set Features says otherwise.
    pub arbitration_burst: ArbitrationBurst,
    /// Seed of the model's random numbers.
    pub seed: u64,
}

impl ControllerOptions {
    /// Options of a controller with this drive, of `size_bytes` rounded down to whole blocks.
    pub fn of(preset: &Preset, size_bytes: u64, queue_pairs_max: u16, seed: u64) -> ControllerOptions {
        ControllerOptions {
            media: preset.media,
            namespace: Namespace {
                blocks: size_bytes / u64::from(BLOCK_BYTES),
                block_bytes: BLOCK_BYTES,
                transfer_bytes_max: TRANSFER_BYTES_MAX,
            },
            queue_pairs_max,
            arbitration: Arbitration::of(preset),
            arbitration_burst: ArbitrationBurst::ONE,
            seed,
        }
    }
}

/// A fetched command.
#[derive(Clone, Copy, Debug)]
struct Inside {
    queue: u16,
    cid: u16,
    status: Status,
    /// Its completion was posted, or its queue is gone: it only holds its place inside until the medium is done with
    /// it.
    is_over: bool,
}

/// The value of a feature that Get Features returns: its SEL field (NVMe 1.3 section 5.14.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// 000b: current.
    Current,
    /// 001b: the value when the controller was enabled.
    Default,
    /// 010b: the value after a reset. No feature here can be saved, so it is the default (section 7.8).
    Saved,
    /// 011b: bit 0 it can be saved, bit 1 it is per namespace, bit 2 it can be changed.
    Capabilities,
}

/// A software NVMe controller: its namespace, queue pairs, arbitration, and commands under way.
#[derive(Debug)]
pub struct Controller {
    namespace: Namespace,
    media: Media,
    arbitration: Arbitration,
    /// CC.AMS.
    mechanism: Mechanism,
    default_feature: ArbitrationFeature,
    /// Chooses the queue to fetch from next; knows the queues with commands to fetch.
    arbiter: Arbiter,
    /// By queue identifier minus one; `None`: not created, or deleted.
    pairs: Box<[Option<QueuePair>]>,
    /// Queues with completions posted since interrupts were last taken.
    news: QueueSet,
    inside: Box<[Inside]>,
    free: Vec<u16>,
    now_ns: u64,
}

impl Controller {
    /// A controller without queues, at time 0, enabled with round robin ([`Controller::enable`] chooses anew).
    ///
    /// # Panics
    /// If an option is outside its range: options come from a preset or a test, never from a user.
    pub fn new(options: ControllerOptions) -> Controller {
        let ControllerOptions { media, namespace, queue_pairs_max, arbitration, arbitration_burst, seed } = options;
        let block_bytes = namespace.block_bytes;
        assert!(block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes), "block of {block_bytes} bytes");
        assert!(namespace.blocks > 0 && queue_pairs_max > 0, "no blocks or no queues: {options:?}");
        let pairs_max = queue_pairs_max as usize;
        let default_feature = ArbitrationFeature { burst: arbitration_burst, weights: ArbitrationWeights::EQUAL };
        Controller {
            namespace,
            media: Media::new(media, seed),
            arbitration,
            mechanism: Mechanism::RoundRobin,
            default_feature,
            arbiter: Arbiter::new(false, default_feature, pairs_max),
            pairs: (0..pairs_max).map(|_| None).collect(),
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

    /// Sets the drive's spells from now on.
    pub fn set_spells(&mut self, spells: Spells) {
        self.media.set_spells(spells);
    }

    /// The namespace.
    pub fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// CAP.AMS: does the controller offer this mechanism (NVMe 1.3 section 3.1.1)?
    pub fn offers(&self, mechanism: Mechanism) -> bool {
        self.arbitration.offers(mechanism)
    }

    /// CC.AMS: the mechanism that the controller was enabled with.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Disables the controller and enables it with this arbitration: CC.EN to 0, CC.AMS, CC.EN to 1 (NVMe 1.3 sections
    /// 3.1.5 and 7.6.1; AMS may change only while EN is 0). That is a controller reset (section 7.3.2): every I/O queue
    /// is deleted, features have their defaults. Commands inside keep their places until the medium is done with them.
    ///
    /// # Errors
    /// [`UnsupportedMechanism`], and nothing changed.
    pub fn enable(&mut self, mechanism: Mechanism, now_ns: u64) -> Result<(), UnsupportedMechanism> {
        if !self.offers(mechanism) {
            return Err(UnsupportedMechanism);
        }
        self.advance(now_ns);
        self.pairs.fill_with(|| None);
        self.inside.iter_mut().for_each(|inside| inside.is_over = true);
        self.news.drain(|_| ());
        let is_weighted = mechanism == Mechanism::Weighted && self.arbitration == Arbitration::Weighted;
        self.arbiter = Arbiter::new(is_weighted, self.default_feature, self.pairs.len());
        self.mechanism = mechanism;
        Ok(())
    }

    /// Get Features (NVMe 1.3 section 5.14): dword 0 of its completion. The one feature is [`ArbitrationFeature`].
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`]: no such feature.
    pub fn get_features(&self, feature: u8, select: Select) -> Result<u32, Status> {
        match (feature, select) {
            (ArbitrationFeature::ID, Select::Current) => Ok(self.arbiter.feature().to_dword()),
            (ArbitrationFeature::ID, Select::Default | Select::Saved) => Ok(self.default_feature.to_dword()),
            (ArbitrationFeature::ID, Select::Capabilities) => Ok(1 << 2),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Set Features (NVMe 1.3 section 5.21) with this dword 11, and the SV bit if `save`. It holds beginning with the
    /// next fetch, in the middle of a round too (A1 of [`crate::arbitration`]); a drive that ignores weighted round
    /// robin stores and returns it, and only its burst has an effect.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`]: no such feature. [`Status::FEATURE_NOT_SAVEABLE`]. Nothing changed.
    pub fn set_features(&mut self, feature: u8, dword: u32, save: bool, now_ns: u64) -> Result<(), Status> {
        if feature != ArbitrationFeature::ID {
            return Err(Status::INVALID_FIELD);
        }
        if save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        // Commands fetched before this one were fetched by the old values.
        self.advance(now_ns);
        self.arbiter.set_feature(ArbitrationFeature::from_dword(dword));
        Ok(())
    }

    /// Create I/O Completion Queue and Create I/O Submission Queue in one (NVMe 1.3 sections 5.3 and 5.4), with the
    /// lowest identifier that is free. QPRIO is the class; round robin does not look at it.
    ///
    /// # Errors
    /// The status of these commands: [`Status::INVALID_QUEUE_IDENTIFIER`] if all are in use,
    /// [`Status::INVALID_QUEUE_SIZE`].
    pub fn create_io_queue_pair(&mut self, options: QueuePairOptions) -> Result<QueueId, Status> {
        let free = self.pairs.iter().position(Option::is_none).ok_or(Status::INVALID_QUEUE_IDENTIFIER)?;
        let id = QueueId::from_index(free);
        self.pairs[free] = Some(QueuePair::new(id, options)?);
        Ok(id)
    }

    /// Delete I/O Submission Queue, then Delete I/O Completion Queue (NVMe 1.3 sections 5.6 and 5.5). Returns the
    /// number of outstanding commands: announced by a doorbell, and without a completion.
    ///
    /// They end with [`Status::ABORTED_SQ_DELETION`], which is not posted: the success of the first command *is* that
    /// status for all of them (section 5.6 forbids to post it afterwards). Completions posted and not read go with
    /// their ring. The order, submission queue first, is the specification's: a completion queue that a submission
    /// queue still names ends its deletion with Invalid Queue Deletion (section 5.5). A pair as one unit cannot break
    /// it. Those inside keep their places until the medium is done with them. The identifier is free again.
    ///
    /// # Errors
    /// [`Status::INVALID_QUEUE_IDENTIFIER`]: there is no such queue.
    pub fn delete_io_queue_pair(&mut self, queue: QueueId, now_ns: u64) -> Result<u32, Status> {
        self.advance(now_ns);
        let index = self.index(queue).ok_or(Status::INVALID_QUEUE_IDENTIFIER)?;
        let Some(pair) = self.pairs[index].take() else { unreachable!("`index` found it") };
        self.forget(index, pair.class());
        Ok(pair.outstanding())
    }

    /// Cleans up after the queue of this index was deleted.
    fn forget(&mut self, index: usize, class: ArbClass) {
        self.inside.iter_mut().filter(|inside| inside.queue as usize == index).for_each(|inside| inside.is_over = true);
        self.arbiter.set_candidate(index, class, false);
        self.news.set(index, false);
    }

    /// Abort (NVMe 1.3 section 5.1): the command ends with [`Status::ABORT_REQUESTED`], at once if it is inside (its
    /// place there stays taken until the medium is done with it), when it is fetched if it waits in its ring. False,
    /// dword 0 of the completion of an Abort being 1: there is no such command, or it has ended.
    ///
    /// A real controller may do less; one that does nothing is `blk`'s fault device.
    pub fn abort(&mut self, queue: QueueId, cid: u16, now_ns: u64) -> bool {
        self.advance(now_ns);
        let Some(index) = self.index(queue) else { return false };
        let is_it = |inside: &&mut Inside| !inside.is_over && inside.queue as usize == index && inside.cid == cid;
        let Some(inside) = self.inside.iter_mut().find(is_it) else { return self.pair_mut(queue).abort_waiting(cid) };
        inside.is_over = true;
        let now_ns = self.now_ns;
        self.pair_mut(queue).post(cid, Status::ABORT_REQUESTED, now_ns);
        self.news.set(index, true);
        true
    }

    /// Delete I/O Submission Queue and Delete I/O Completion Queue (NVMe 1.3 sections 5.6 and 5.5), and both created
    /// again with the same identifier and size, as a driver does with a queue that no longer answers. Commands of the
    /// queue are not completed any more; those inside keep their places until the medium is done with them.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn recreate_io_queue_pair(&mut self, queue: QueueId, now_ns: u64) {
        self.advance(now_ns);
        let pair = self.pair_mut(queue);
        let options = QueuePairOptions { entries: pair.entries(), class: pair.class() };
        let ranges = pair.range_entries();
        *pair = QueuePair::new(queue, options).expect("it was created with these options before");
        pair.reserve_ranges(ranges);
        self.forget(queue.index().expect("pair_mut found it"), options.class);
    }

    /// Arbitration class of a queue.
    pub fn queue_class(&self, queue: QueueId) -> Option<ArbClass> {
        Some(self.pairs.get(queue.index()?)?.as_ref()?.class())
    }

    /// Entries of a queue's rings.
    pub fn queue_entries(&self, queue: QueueId) -> Option<u32> {
        Some(self.pairs.get(queue.index()?)?.as_ref()?.entries())
    }

    /// Host memory: writes a slot of the submission ring. The controller looks at it only after the doorbell.
    ///
    /// # Panics
    /// If there is no such queue or slot.
    pub fn write_submission(&mut self, queue: QueueId, slot: u16, entry: SubmissionEntry) {
        self.pair_mut(queue).write_submission(slot, entry);
    }

    /// Host memory: makes the queue's table of ranges at least this long, while no command names an entry of it. Its
    /// first length is that of the rings.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn reserve_dataset_ranges(&mut self, queue: QueueId, entries: usize) {
        self.pair_mut(queue).reserve_ranges(entries);
    }

    /// Host memory: writes an entry of the queue's table of ranges. A Dataset Management
    /// command names it by its index; it must stay as it is until the command is completed.
    ///
    /// # Panics
    /// If there is no such queue or entry.
    pub fn write_dataset_range(&mut self, queue: QueueId, index: u16, range: DatasetRange) {
        self.pair_mut(queue).write_range(index, range);
    }

    /// Host memory: reads a slot of the completion ring, new or old as the phase bit shows.
    ///
    /// # Panics
    /// If there is no such queue or slot.
    pub fn read_completion(&self, queue: QueueId, slot: u16) -> CompletionEntry {
        self.pair(queue).completion(slot)
    }

    /// Time when the entry in this slot was posted, nanoseconds of model time, as on a bus analyser. The poll that
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
        // Events before the doorbell happen first.
        self.advance(now_ns);
        let index = queue.index().ok_or(DoorbellError::InvalidRegister)?;
        let pair = self.pairs.get_mut(index).and_then(Option::as_mut).ok_or(DoorbellError::InvalidRegister)?;
        ring(pair)?;
        self.arbiter.set_candidate(index, pair.class(), pair.is_candidate());
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
                self.pair_at(index).post(cid, status, ended_ns);
                self.news.set(index, true);
            }
            self.fetch();
        }
        self.now_ns = now_ns;
    }

    /// Fetches while there is room inside and something to fetch.
    fn fetch(&mut self) {
        while let Some(&slot) = self.free.last() {
            let Some(index) = self.arbiter.pick() else { return };
            self.free.pop();
            let pair = self.pairs[index].as_mut().expect("a queue that can be fetched from exists");
            let (entry, is_aborted) = pair.fetch();
            self.arbiter.set_candidate(index, pair.class(), pair.is_candidate());
            let decoded = match is_aborted {
                false => decode(&entry, &self.namespace, |prp1| pair.range(prp1)),
                true => Err(Status::ABORT_REQUESTED),
            };
            let status = decoded.err().unwrap_or(Status::SUCCESS);
            self.inside[slot as usize] = Inside { queue: index as u16, cid: entry.cid(), status, is_over: false };
            self.media.begin(decoded.ok(), slot, self.now_ns);
        }
    }

    /// Time when the next completion will be posted, if no doorbell is rung before. `None`: nothing is inside.
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

    /// Index of an existing queue.
    fn index(&self, queue: QueueId) -> Option<usize> {
        queue.index().filter(|&index| self.pairs.get(index).is_some_and(Option::is_some))
    }

    fn pair(&self, queue: QueueId) -> &QueuePair {
        let pair = queue.index().and_then(|index| self.pairs.get(index)?.as_ref());
        pair.unwrap_or_else(|| panic!("there is no {queue:?}"))
    }

    fn pair_mut(&mut self, queue: QueueId) -> &mut QueuePair {
        let pair = queue.index().and_then(|index| self.pairs.get_mut(index)?.as_mut());
        pair.unwrap_or_else(|| panic!("there is no {queue:?}"))
    }

    fn pair_at(&mut self, index: usize) -> &mut QueuePair {
        self.pairs[index].as_mut().expect("a queue with a command inside that is not over exists")
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
            arbitration: Arbitration::RoundRobin,
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

    /// One that offers weighted round robin, with room for one inside, so that it arbitrates every command.
    fn weighted(arbitration: Arbitration) -> Controller {
        let media = MediaOptions { inside_max: 1, ..FLASH_460K.media };
        let namespace = Namespace { blocks: 1 << 20, block_bytes: 512, transfer_bytes_max: 128 << 10 };
        let burst = ArbitrationBurst::ONE;
        let (queue_pairs_max, seed) = (4, 1);
        let options =
            ControllerOptions { media, namespace, queue_pairs_max, arbitration, arbitration_burst: burst, seed };
        Controller::new(options)
    }

    /// Flushes of a low and of a high queue, one of the low ahead, with 3 high to 1 low: in which order do they end?
    fn order_of_ends(controller: &mut Controller, now_ns: u64) -> String {
        let weights = ArbitrationWeights::new(3, 1, 1).unwrap();
        let dword = ArbitrationFeature { burst: ArbitrationBurst::ONE, weights }.to_dword();
        controller.set_features(ArbitrationFeature::ID, dword, false, now_ns).unwrap();
        let classes = [(ArbClass::Low, "l"), (ArbClass::High, "h")];
        let mut hosts = classes.map(|(class, letter)| {
            let mut host = HostQueuePair::create(controller, QueuePairOptions { entries: 16, class }).unwrap();
            (0..6).for_each(|cid| host.submit(controller, SubmissionEntry::flush(cid)).unwrap());
            host.ring(controller, now_ns);
            (host, letter)
        });
        controller.advance(now_ns + 1_000_000_000);
        let mut ended = Vec::new();
        for (host, letter) in &mut hosts {
            ended.extend(std::iter::from_fn(|| host.poll(controller)).map(|end| (end.posted_ns, *letter)));
        }
        ended.sort_unstable();
        ended.into_iter().map(|(_, letter)| letter).collect()
    }

    #[test]
    fn cc_ams_chooses_the_mechanism_and_the_classes_count_under_weighted_only() {
        let mut controller = weighted(Arbitration::Weighted);
        assert_eq!(controller.mechanism(), Mechanism::RoundRobin);
        assert_eq!(order_of_ends(&mut controller, 0), "lhlhlhlhlhlh", "round robin does not look at classes");
        controller.enable(Mechanism::Weighted, 1_000_000_000).unwrap();
        assert_eq!(controller.mechanism(), Mechanism::Weighted);
        assert_eq!(order_of_ends(&mut controller, 1_000_000_000), "lhhhlhhhllll", "the first low was alone");
        let mut ignorant = weighted(Arbitration::WeightedIgnored);
        ignorant.enable(Mechanism::Weighted, 0).unwrap();
        assert_eq!(order_of_ends(&mut ignorant, 0), "lhlhlhlhlhlh", "it takes all and does nothing");
    }

    #[test]
    fn a_mechanism_that_cap_does_not_offer_is_refused() {
        let mut controller = weighted(Arbitration::RoundRobin);
        let host = queue(&mut controller, 8);
        assert!(controller.offers(Mechanism::RoundRobin) && !controller.offers(Mechanism::Weighted));
        assert_eq!(controller.enable(Mechanism::Weighted, 0), Err(UnsupportedMechanism));
        assert_eq!(controller.queue_entries(host.id()), Some(8), "nothing changed");
        assert_eq!(controller.enable(Mechanism::RoundRobin, 0), Ok(()));
        assert_eq!(controller.queue_entries(host.id()), None, "a reset deletes the queues");
    }

    #[test]
    fn the_arbitration_feature_is_set_and_read_back_and_a_reset_brings_the_default() {
        let mut controller = weighted(Arbitration::Weighted);
        controller.enable(Mechanism::Weighted, 0).unwrap();
        let id = ArbitrationFeature::ID;
        assert_eq!(controller.get_features(id, Select::Current), Ok(0), "equal weights, a burst of one");
        assert_eq!(controller.set_features(id, 0x0f03_0002, false, 0), Ok(()));
        let selects = [Select::Current, Select::Default, Select::Saved, Select::Capabilities];
        let values = selects.map(|select| controller.get_features(id, select).unwrap());
        assert_eq!(values, [0x0f03_0002, 0, 0, 4], "it can be changed and not saved");
        assert_eq!(controller.set_features(id, 0, true, 0), Err(Status::FEATURE_NOT_SAVEABLE));
        assert_eq!(controller.set_features(0x02, 0, false, 0), Err(Status::INVALID_FIELD));
        assert_eq!(controller.get_features(0x02, Select::Current), Err(Status::INVALID_FIELD));
        assert_eq!(controller.get_features(id, Select::Current), Ok(0x0f03_0002), "neither changed it");
        controller.enable(Mechanism::Weighted, 0).unwrap();
        assert_eq!(controller.get_features(id, Select::Current), Ok(0));
    }

    #[test]
    fn a_deleted_queue_completes_nothing_and_its_identifier_is_free() {
        let mut controller = controller(2);
        let mut hosts = [8, 8].map(|entries| queue(&mut controller, entries));
        for host in &mut hosts {
            (0..4).for_each(|cid| host.submit(&mut controller, SubmissionEntry::read(cid, 0, 8, 0)).unwrap());
            host.ring(&mut controller, 0);
        }
        let [first, mut second] = hosts;
        let id = first.id();
        assert_eq!(first.delete(&mut controller, 10), 4, "two inside and two in the ring");
        assert_eq!(controller.inside(), 2, "the dies are still busy");
        assert_eq!(controller.ring_submission_doorbell(id, 1, 10), Err(DoorbellError::InvalidRegister));
        assert!(!controller.abort(id, 0, 10));
        assert_eq!(controller.delete_io_queue_pair(id, 10), Err(Status::INVALID_QUEUE_IDENTIFIER));
        let mut again = queue(&mut controller, 8);
        assert_eq!(again.id(), id);
        again.submit(&mut controller, SubmissionEntry::flush(7)).unwrap();
        again.ring(&mut controller, 10);
        controller.advance(1_000_000_000);
        assert_eq!(again.poll(&mut controller).map(|end| end.cid), Some(7));
        assert_eq!(again.poll(&mut controller), None, "nothing of the queue before");
        assert_eq!(std::iter::from_fn(|| second.poll(&mut controller)).count(), 4);
        assert_eq!(controller.inside(), 0);
        assert_eq!(second.delete(&mut controller, 1_000_000_000), 0);
        let mut named = 0;
        controller.take_interrupts(|_| named += 1);
        assert_eq!(named, 1, "of the queue that is still there");
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
