//! A hardware queue that several workers use: the device's queue, its tags, and the commands that wait for them, under
//! one lock.
//!
//! Answers: which worker has which tag, and which gets the next one? Source: blk-mq sections 3.2.2 ("a single dispatch
//! queue will result in cross CPU locking on the dispatch queue lock") and 3.2.3 (tags that the block layer makes and
//! the device uses).
//!
//! # Sets
//! A *set* is three of the device's queues, one of each class
//! ([`MultiQueue::open_class_queues`](crate::MultiQueue::open_class_queues)), under one lock and with one doorbell.
//! Each class has tags and a line of its own, so a class whose tags are all out, with a throttled tenant's commands,
//! keeps no worker from another class's tags. Workers hand their commands over without tags: a request of a direct
//! policy has been given to the device when it was submitted, and waits for a tag where it would wait for the device. A
//! queue that is not a set has one class, whatever its commands say.
//!
//! # The keeper
//! The worker that rang a queue last is its *keeper*: it sleeps no longer than until the queue's next event, and the
//! device interrupts it. A worker with commands of its own in flight looks as well. The worker that looks brings back
//! the completions of all, as the one core does that takes a drive's interrupts (blk-mq section 2.2).
//!
//! | step | K: keeper, about to sleep | B: moves the device on from another queue |
//! |---|---|---|
//! | 1 | nothing has ended; next event at V | |
//! | 2 | | posts completions of this queue, then interrupts: sets `news`, kicks the keeper |
//! | 3 | sleeps until V at most | |
//!
//! The kick comes after `news`, and a kicked worker runs a full turn, in which `news` makes it look, keeper or not. A
//! worker C that rings between B's two steps becomes the keeper; then C's own look, which comes after its doorbell and
//! under the device's lock, has seen what B posted, and K finds nothing.
//!
//! # Ordering
//! The three words are hints beside a lock. `news` is set by Release after the completions are there and taken by
//! Acquire before the look. The keeper is stored before the doorbell, which takes the device's lock; a worker that
//! posts completions after that doorbell has taken the same lock since, and so reads this keeper or a later one.

use super::Interrupt;
use super::port::OwnedCommand;
use mqfq_blk::device::{Command, DeviceQueue, Reaped};
use mqfq_blk::tag::Tag;
use mqfq_blk::tag::TagSet;
use mqfq_sched::policy::{ClassWeights, QueueClass};
use mqfq_sched::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use mqfq_sched::topology::HctxId;
use std::collections::VecDeque;
use std::sync::Arc;

/// No event is known.
const NEVER: u64 = u64::MAX;

/// Tags that a worker may have beside the lock.
const SPARES: usize = 4;

/// No tags. A tag is less than a queue's depth, which is 65535 at most.
const NO_SPARES: u64 = u64::MAX;

/// Fields that the lock protects. They move between cores with the lock, so fields seldom needed lie elsewhere.
pub(super) struct State {
    device: Box<dyn DeviceQueue + Send>,
    tags: TagSet,
    /// Uses, by tag of this queue.
    uses: Box<[Use]>,
    reaped: Vec<Reaped>,
    queued: Box<Queued>,
    /// Number of each that `queued` has, all classes together.
    waiting: u32,
    dispatch: u32,
    /// Commands were put into the device's queue since its doorbell.
    rings: bool,
    keeps_spares: bool,
}

/// Workers and commands that wait for tags.
struct Queued {
    /// Workers without a tag, by how long they have waited.
    waiting: VecDeque<u16>,
    /// By worker: waits, or a tag that came free is kept for it.
    claims: Vec<Claim>,
    /// Commands without a tag, of a software queue that workers share, or of a set, by class.
    dispatch: Box<[VecDeque<OwnedCommand>]>,
}

/// Free tags that one worker may take without the lock, 16 bits each, the next in the lowest; a compare-and-exchange of
/// the worker's takes one. The worker itself puts them there, under the lock, while no worker waits; another that would
/// have to wait takes them all at once, under the lock (Q2).
///
/// Relaxed everywhere: a tag is a number, and its command is touched under the lock alone.
#[repr(align(128))]
struct Spares(AtomicU64);

impl Spares {
    fn take(&self) -> Option<Tag> {
        // Relaxed: see above.
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen != NO_SPARES {
            let left = seen >> 16 | NO_SPARES << 48;
            // Relaxed: see above.
            match self.0.compare_exchange(seen, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Tag(seen as u16)),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Called by the worker itself, under the lock: no other worker changes it meanwhile. False: there is no room.
    fn put(&self, tag: Tag) -> bool {
        // Relaxed: see above.
        let seen = self.0.load(Ordering::Relaxed);
        let has_room = seen >> 48 == NO_SPARES >> 48;
        if has_room {
            // Relaxed: see above.
            self.0.store(seen << 16 | u64::from(tag.0), Ordering::Relaxed);
        }
        has_room
    }

    fn take_all(&self) -> impl Iterator<Item = Tag> + use<> {
        // Relaxed: see above.
        let taken = self.0.swap(NO_SPARES, Ordering::Relaxed);
        (0..SPARES).map(move |at| (taken >> (16 * at)) as u16).take_while(|&tag| tag != u16::MAX).map(Tag)
    }
}

/// Command that a tag is used for, and number of that use: a late end of an earlier use is ignored, as in the contexts
/// above.
#[derive(Clone, Copy)]
struct Use {
    worker: u16,
    own: Tag,
    own_generation: u32,
    /// Odd while the device has the command.
    generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    None,
    Waits,
    Kept(Tag),
}

/// Words that are read without the lock, away from it.
#[repr(align(128))]
struct Hints {
    keeper: AtomicU32,
    /// Commands on the device.
    in_flight: AtomicU32,
    /// Time at which the device next needs a look.
    next_event_ns: AtomicU64,
    /// The device has interrupted since the last look.
    news: AtomicU32,
}

/// A hardware queue that workers share: the device queue, its tags, and the commands that wait for one, under one lock.
#[repr(align(128))]
pub(super) struct HardwareQueue {
    state: Mutex<State>,
    hints: Arc<Hints>,
    /// Spare tags, by worker.
    spares: Box<[Spares]>,
}

#[derive(Default)]
pub(super) struct Brought {
    /// Completions of the looking worker.
    pub(super) own: Vec<Reaped>,
    /// Completions of commands of other workers, with the worker.
    pub(super) others: Vec<(u16, Reaped)>,
    /// Workers for which a tag is kept now.
    pub(super) kick: Vec<u16>,
}

/// Sizes and options of a hardware queue.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) workers: usize,
    pub(super) depth: u16,
    pub(super) is_set: bool,
    /// Workers ask for tags themselves, and may have some to spare.
    pub(super) keeps_spares: bool,
}

impl HardwareQueue {
    /// A queue that `first` is the first worker of. `open` opens the device's, which it is told how to interrupt.
    pub(super) fn open(
        Shape { workers, depth, is_set, keeps_spares }: Shape,
        first: HctxId,
        interrupt: &Interrupt,
        open: impl FnOnce(Interrupt) -> Result<Box<dyn DeviceQueue + Send>, String>,
    ) -> Result<Arc<HardwareQueue>, String> {
        let classes = if is_set { QueueClass::ALL.len() } else { 1 };
        let tags = if is_set { TagSet::with_classes(depth) } else { TagSet::new(depth) };
        let all = tags.all();
        let hints = Arc::new(Hints {
            keeper: AtomicU32::new(first.0.into()),
            in_flight: AtomicU32::new(0),
            next_event_ns: AtomicU64::new(NEVER),
            news: AtomicU32::new(0),
        });
        let (words, kick) = (hints.clone(), interrupt.clone());
        let device = open(Arc::new(move |_| {
            // Release, Relaxed: see "Ordering".
            words.news.store(1, Ordering::Release);
            kick(HctxId(words.keeper.load(Ordering::Relaxed) as u16));
        }))?;
        let state = State {
            device,
            tags,
            uses: vec![Use { worker: 0, own: Tag(0), own_generation: 0, generation: 0 }; all].into(),
            queued: Box::new(Queued {
                waiting: VecDeque::with_capacity(workers),
                claims: vec![Claim::None; workers],
                // Each worker has as many tags of its own.
                dispatch: (0..classes).map(|_| VecDeque::with_capacity(workers * usize::from(depth))).collect(),
            }),
            waiting: 0,
            dispatch: 0,
            rings: false,
            keeps_spares,
            reaped: Vec::with_capacity(all),
        };
        let spares = (0..workers).map(|_| Spares(AtomicU64::new(NO_SPARES))).collect();
        Ok(Arc::new(HardwareQueue { state: Mutex::new(state), hints, spares }))
    }

    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        action(&mut self.state.lock().expect("a worker panicked inside a shared hardware queue"))
    }

    /// A tag for a command of `worker`'s, which then must be [`HardwareQueue::send`]t. `None`: it waits from now on,
    /// and will be kicked when a tag is kept for it.
    pub(super) fn acquire(&self, worker: u16) -> Option<Tag> {
        let own = &self.spares[usize::from(worker)];
        own.take().or_else(|| self.with(|state| state.acquire(worker, &self.spares)))
    }

    /// Puts commands with tags of this queue into the device's, rings, and looks for completions.
    pub(super) fn send(&self, worker: u16, now_ns: u64, commands: &mut Vec<(Tag, Command)>, brought: &mut Brought) {
        // Relaxed: see "Ordering".
        self.hints.keeper.store(worker.into(), Ordering::Relaxed);
        self.with(|state| {
            commands.drain(..).for_each(|(tag, command)| state.put(tag, OwnedCommand { worker, command }));
            self.turn(state, worker, now_ns, brought);
        });
    }

    /// Takes commands without tags, dispatches as many as there are tags, and looks for completions.
    pub(super) fn take(&self, worker: u16, now_ns: u64, commands: &mut Vec<OwnedCommand>, brought: &mut Brought) {
        // Relaxed: see "Ordering".
        self.hints.keeper.store(worker.into(), Ordering::Relaxed);
        self.with(|state| {
            commands.drain(..).for_each(|command| state.queue(command));
            self.turn(state, worker, now_ns, brought);
        });
    }

    pub(super) fn insert(&self, command: OwnedCommand) {
        self.with(|state| state.queue(command));
    }

    /// SQ's dispatch of one command of any worker. False: there is none, or no tag.
    pub(super) fn dispatch_one(&self, worker: u16, now_ns: u64) -> bool {
        // Relaxed: see "Ordering".
        self.hints.keeper.store(worker.into(), Ordering::Relaxed);
        self.with(|state| {
            let dispatched = state.dispatch_next();
            state.ring(now_ns);
            self.hint(state);
            dispatched
        })
    }

    /// Whether there may be completions to bring back.
    pub(super) fn is_due(&self, worker: u16, has_own: bool, now_ns: u64) -> bool {
        self.next_event_ns(worker, has_own).is_some_and(|next_ns| next_ns <= now_ns)
    }

    /// Time at which `worker` must look, if nothing else happens before.
    pub(super) fn next_event_ns(&self, worker: u16, has_own: bool) -> Option<u64> {
        let Hints { keeper, in_flight, next_event_ns, news } = &*self.hints;
        // Relaxed: a worker has seen its own last store, and other workers look for their own commands.
        if in_flight.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Acquire: see "Ordering".
        if news.load(Ordering::Acquire) != 0 {
            return Some(0);
        }
        // Relaxed: as above.
        let looks = has_own || keeper.load(Ordering::Relaxed) == u32::from(worker);
        // Relaxed: as new as what this worker stored last, or newer.
        let next_ns = next_event_ns.load(Ordering::Relaxed);
        (looks && next_ns != NEVER).then_some(next_ns)
    }

    pub(super) fn reap(&self, worker: u16, now_ns: u64, brought: &mut Brought) {
        self.with(|state| self.turn(state, worker, now_ns, brought));
    }

    /// Asks the device to give up a command of `worker`'s, by the tag that it has there.
    pub(super) fn abort(&self, worker: u16, own: Tag, now_ns: u64) -> bool {
        self.with(|state| {
            let is_it = |of: &Use| of.worker == worker && of.own == own && !of.generation.is_multiple_of(2);
            let Some(tag) = state.uses.iter().position(is_it) else { return false };
            let asked = state.device.abort(Tag(tag as u16), now_ns);
            self.hint(state);
            asked
        })
    }

    /// Removes the claim and the tags of a worker that goes away. Returns the worker for which its tag is kept now.
    pub(super) fn leave(&self, worker: u16) -> Option<u16> {
        // A worker that panicked may have left the lock poisoned; then none goes on here anyway.
        let Ok(mut state) = self.state.lock() else { return None };
        // If there are spares, no worker waits. One that has to wait later would find them here all the same
        // (`State::acquire` takes all spares), so this changes only where it looks first.
        self.spares[usize::from(worker)].take_all().for_each(|tag| state.tags.release(tag));
        match std::mem::replace(&mut state.queued.claims[usize::from(worker)], Claim::None) {
            Claim::None => None,
            Claim::Waits => {
                state.queued.waiting.retain(|&other| other != worker);
                state.waiting -= 1;
                None
            }
            Claim::Kept(tag) => state.release(tag, None),
        }
    }

    pub(super) fn set_class_weights(&self, weights: ClassWeights, now_ns: u64) -> bool {
        self.with(|state| {
            let is_set = state.device.set_class_weights(weights, now_ns);
            // The device may have moved.
            self.hint(state);
            is_set
        })
    }

    /// Dispatches, rings and reaps until neither moves anything.
    fn turn(&self, state: &mut State, worker: u16, now_ns: u64, brought: &mut Brought) {
        loop {
            while state.dispatch_next() {}
            state.ring(now_ns);
            // Acquire: see "Ordering". A later announcement is found by the worker that is kicked for it.
            if self.hints.news.load(Ordering::Acquire) != 0 {
                self.hints.news.swap(0, Ordering::Acquire);
            }
            let own = Some(&self.spares[usize::from(worker)]).filter(|_| state.keeps_spares);
            if state.reap(worker, own, now_ns, brought) == 0 || state.dispatch == 0 {
                break;
            }
        }
        self.hint(state);
    }

    fn hint(&self, state: &State) {
        // Relaxed: stored under the lock; see `next_event_ns` for its readers.
        self.hints.in_flight.store(state.device.in_flight() as u32, Ordering::Relaxed);
        self.hints.next_event_ns.store(state.device.next_event_ns().unwrap_or(NEVER), Ordering::Relaxed);
    }
}

impl State {
    /// Puts a command without a tag behind those of its class.
    fn queue(&mut self, command: OwnedCommand) {
        let line = if self.tags.has_classes() { command.command.class.index() } else { 0 };
        self.dispatch += 1;
        self.queued.dispatch[line].push_back(command);
    }

    /// A tag for `worker`, of a queue that is not a set.
    fn acquire(&mut self, worker: u16, spares: &[Spares]) -> Option<Tag> {
        let claim = &mut self.queued.claims[usize::from(worker)];
        match *claim {
            Claim::Kept(tag) => {
                *claim = Claim::None;
                return Some(tag);
            }
            Claim::Waits => return None,
            Claim::None => {}
        }
        // Q2: a free tag has no owner.
        let tags = &mut self.tags;
        if let Some(tag) = tags.acquire() {
            // More for the rest of a batch, while there is enough for all workers' spares.
            while tags.free() > SPARES * spares.len()
                && let Some(more) = tags.acquire()
            {
                if !spares[usize::from(worker)].put(more) {
                    tags.release(more);
                    break;
                }
            }
            return Some(tag);
        }
        for spares in spares {
            spares.take_all().for_each(|tag| tags.release(tag));
        }
        let tag = tags.acquire();
        if tag.is_none() {
            *claim = Claim::Waits;
            self.waiting += 1;
            self.queued.waiting.push_back(worker);
        }
        tag
    }

    /// Ends a use of the tag. Returns the worker for which the tag is kept, if any waits; otherwise it goes to the
    /// spares of the looking worker, if they have room.
    fn release(&mut self, tag: Tag, spares: Option<&Spares>) -> Option<u16> {
        if self.waiting == 0 {
            if !spares.is_some_and(|spares| spares.put(tag)) {
                self.tags.release(tag);
            }
            return None;
        }
        self.waiting -= 1;
        let next = self.queued.waiting.pop_front().expect("as many as were counted");
        self.queued.claims[usize::from(next)] = Claim::Kept(tag);
        Some(next)
    }

    fn put(&mut self, tag: Tag, OwnedCommand { worker, command }: OwnedCommand) {
        let of = &mut self.uses[usize::from(tag.0)];
        let generation = of.generation.wrapping_add(1);
        *of = Use { worker, own: command.tag, own_generation: command.generation, generation };
        let command = Command { tag, generation, ..command };
        // As many places as tags.
        self.device
            .submit(command)
            .unwrap_or_else(|full| panic!("the device's queue has no place for {:?}", full.0.tag));
        self.rings = true;
    }

    /// Dispatches one command of each class that has a tag for it. False: there was none.
    fn dispatch_next(&mut self) -> bool {
        if self.dispatch == 0 {
            return false;
        }
        let before = self.dispatch;
        for (line, class) in QueueClass::ALL.into_iter().enumerate().take(self.queued.dispatch.len()) {
            if self.queued.dispatch[line].is_empty() {
                continue;
            }
            let Some(tag) = self.tags.acquire_of(class) else { continue };
            let next = self.queued.dispatch[line].pop_front().expect("it is not empty");
            self.dispatch -= 1;
            self.put(tag, next);
        }
        self.dispatch < before
    }

    fn ring(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.rings) {
            self.device.ring_doorbell(now_ns);
        }
    }

    fn reap(&mut self, worker: u16, spares: Option<&Spares>, now_ns: u64, brought: &mut Brought) -> usize {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.device.reap(now_ns, &mut reaped);
        let mut count = 0;
        for reaped in reaped.drain(..) {
            let tag = reaped.tag;
            let of = &mut self.uses[usize::from(tag.0)];
            if of.generation != reaped.generation {
                continue;
            }
            of.generation = of.generation.wrapping_add(1);
            let &mut Use { worker: whose, own, own_generation, .. } = of;
            brought.kick.extend(self.release(tag, spares));
            count += 1;
            let reaped = Reaped { tag: own, generation: own_generation, ..reaped };
            if whose == worker { brought.own.push(reaped) } else { brought.others.push((whose, reaped)) }
        }
        self.reaped = reaped;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MultiQueue;
    use mqfq_blk::device::QueueOptions;
    use mqfq_blk::device::null::NullDevice;

    fn queue(workers: usize, depth: u16) -> Arc<HardwareQueue> {
        let shape = Shape { workers, depth, is_set: false, keeps_spares: true };
        let interrupt: Interrupt = Arc::new(|_| ());
        let open = |interrupt| {
            NullDevice::new(1 << 20).open_shared_queue(QueueOptions {
                hctx: HctxId(0),
                depth,
                #[cfg(feature = "uring")]
                ring: None,
                interrupt,
            })
        };
        HardwareQueue::open(shape, HctxId(0), &interrupt, open).expect("it has no limits")
    }

    fn spares(queue: &HardwareQueue, worker: u16) -> usize {
        // Relaxed: one thread.
        let word = queue.spares[usize::from(worker)].0.load(Ordering::Relaxed);
        (0..SPARES).filter(|at| (word >> (16 * at)) as u16 != u16::MAX).count()
    }

    #[test]
    fn a_worker_gets_up_to_four_tags_more_while_there_is_enough_for_everybodys() {
        // Two workers: eight tags are to stay.
        for (depth, more, free) in [(1, 0, 0), (8, 0, 7), (9, 0, 8), (10, 1, 8), (12, 3, 8), (13, 4, 8), (64, 4, 59)] {
            let queue = queue(2, depth);
            assert!(queue.acquire(0).is_some());
            let state = |queue: &HardwareQueue| (spares(queue, 0), queue.with(|state| state.tags.free()));
            assert_eq!(state(&queue), (more, free), "a depth of {depth}");
            if more > 0 {
                assert!(queue.acquire(0).is_some());
                assert_eq!(state(&queue), (more - 1, free), "the second comes without the lock");
            }
        }
    }

    #[test]
    fn tags_to_spare_are_taken_last_put_first_and_by_others_all_at_once() {
        let spares = Spares(AtomicU64::new(NO_SPARES));
        assert_eq!(spares.take(), None);
        let put = [3, 0, 7, 65_000, 9].map(|tag| spares.put(Tag(tag)));
        assert_eq!(put, [true, true, true, true, false]);
        assert_eq!(spares.take(), Some(Tag(65_000)));
        assert_eq!(spares.take_all().collect::<Vec<_>>(), [Tag(7), Tag(0), Tag(3)]);
        assert_eq!((spares.take(), spares.take_all().count()), (None, 0));
    }

    #[test]
    fn a_worker_without_a_tag_takes_those_that_others_have_to_spare() {
        let queue = queue(2, 13);
        let mut tags: Vec<Tag> = (0..5).flat_map(|_| queue.acquire(0)).collect();
        tags.extend((0..8).flat_map(|_| queue.acquire(1)));
        tags.sort_by_key(|tag| tag.0);
        assert_eq!(tags, (0..13).map(Tag).collect::<Vec<_>>(), "each once");
        assert_eq!((queue.acquire(0), queue.acquire(1)), (None, None));
        // With spares at worker 1, worker 0 finds them.
        let queue = self::queue(2, 13);
        assert!(queue.acquire(1).is_some());
        assert_eq!((0..13).flat_map(|_| queue.acquire(0)).count(), 12);
    }

    /// A device that keeps what it gets, and is asked to give up the commands in the list.
    struct Keeps {
        commands: Vec<Command>,
        aborted: Arc<Mutex<Vec<Tag>>>,
        ends: bool,
        next_event_ns: u64,
    }

    impl DeviceQueue for Keeps {
        fn submit(&mut self, command: Command) -> Result<(), mqfq_blk::device::QueueFull> {
            self.commands.push(command);
            Ok(())
        }

        fn ring_doorbell(&mut self, _: u64) {}

        fn reap(&mut self, _: u64, out: &mut Vec<Reaped>) {
            let ended = if self.ends { self.commands.len() } else { 0 };
            out.extend(self.commands.drain(..ended).map(|command| command.ended(mqfq_blk::request::Status::Ok)));
        }

        fn next_event_ns(&self) -> Option<u64> {
            Some(self.next_event_ns).filter(|_| !self.commands.is_empty())
        }

        fn in_flight(&self) -> usize {
            self.commands.len()
        }

        fn abort(&mut self, tag: Tag, _: u64) -> bool {
            self.aborted.lock().unwrap().push(tag);
            self.next_event_ns = 70;
            true
        }

        fn set_class_weights(&mut self, _: ClassWeights, _: u64) -> bool {
            self.next_event_ns = 7;
            true
        }
    }

    fn keeping(ends: bool) -> (Arc<HardwareQueue>, Arc<Mutex<Vec<Tag>>>) {
        let (shape, aborted) = (Shape { workers: 2, depth: 4, is_set: false, keeps_spares: false }, Arc::default());
        let device = Keeps { commands: Vec::new(), aborted: Arc::clone(&aborted), ends, next_event_ns: 700 };
        let queue = HardwareQueue::open(shape, HctxId(0), &(Arc::new(|_| ()) as Interrupt), |_| Ok(Box::new(device)));
        (queue.expect("it has no limits"), aborted)
    }

    fn read(worker: u16, tag: u16) -> OwnedCommand {
        OwnedCommand { worker, command: Command::new(Tag(tag), mqfq_blk::request::Op::Read, 0, 0, None) }
    }

    #[test]
    fn a_worker_gives_up_its_own_command_by_its_own_tag_and_no_other() {
        let (queue, aborted) = keeping(false);
        assert!(!queue.abort(0, Tag(0), 0), "nothing is there");
        // Tags of the queue: 0 and 1 for the tags 7 and 5 of worker 0, 2 and 3 for the tags 5 and 6 of worker 1.
        let mut brought = Brought::default();
        queue.take(0, 0, &mut vec![read(0, 7), read(0, 5)], &mut brought);
        queue.take(1, 0, &mut vec![read(1, 5), read(1, 6)], &mut brought);
        let asked = [(0, 5), (1, 5), (1, 7), (0, 6), (2, 5), (0, 7), (1, 6)];
        let done = asked.map(|(worker, own)| queue.abort(worker, Tag(own), 0));
        assert_eq!(done, [true, true, false, false, false, true, true]);
        assert_eq!(*aborted.lock().unwrap(), [1, 2, 0, 3].map(Tag));
    }

    #[test]
    fn what_has_ended_is_not_given_up_and_its_list_is_used_again() {
        let (queue, aborted) = keeping(true);
        let mut brought = Brought::default();
        queue.take(0, 0, &mut vec![read(0, 7)], &mut brought);
        assert_eq!((brought.own.len(), queue.abort(0, Tag(7), 0)), (1, false));
        assert!(aborted.lock().unwrap().is_empty());
        assert_eq!(queue.with(|state| state.reaped.capacity()), 4, "no memory is taken for the next ones");
    }

    #[test]
    fn who_dispatches_a_command_looks_after_the_queue() {
        let (queue, _) = keeping(false);
        assert!(!queue.dispatch_one(0, 0));
        for worker in [1, 0] {
            queue.insert(read(0, worker));
            assert!(queue.dispatch_one(worker, 0));
            let looks = [0, 1].map(|other| queue.next_event_ns(other, false));
            assert_eq!(looks, [0, 1].map(|other| Some(700).filter(|_| other == worker)));
        }
        assert_eq!(queue.next_event_ns(1, true), Some(700), "and whoever has commands there");
        assert_eq!([699, 700].map(|now_ns| queue.is_due(0, false, now_ns)), [false, true]);
    }

    #[test]
    fn who_hands_over_commands_with_or_without_tags_looks_after_the_queue() {
        let (queue, _) = keeping(false);
        let looks = |queue: &HardwareQueue| [0, 1].map(|worker| queue.next_event_ns(worker, false).is_some());
        let mut brought = Brought::default();
        queue.take(1, 0, &mut vec![read(1, 7)], &mut brought);
        assert_eq!(looks(&queue), [false, true]);
        for (worker, expected) in [(0, [true, false]), (1, [false, true])] {
            let tag = queue.acquire(worker).expect("three are free");
            queue.send(worker, 0, &mut vec![(tag, read(worker, 5).command)], &mut brought);
            assert_eq!(looks(&queue), expected);
        }
        queue.take(0, 0, &mut vec![read(0, 9)], &mut brought);
        assert_eq!(looks(&queue), [true, false]);
    }

    #[test]
    fn a_device_that_moves_when_it_is_asked_for_something_is_looked_at_in_time() {
        let (queue, _) = keeping(false);
        queue.take(0, 0, &mut vec![read(0, 7)], &mut Brought::default());
        let next_ns = |queue: &HardwareQueue| queue.next_event_ns(0, true);
        assert_eq!(next_ns(&queue), Some(700));
        assert!(queue.abort(0, Tag(7), 0));
        assert_eq!(next_ns(&queue), Some(70));
        assert!(queue.set_class_weights(ClassWeights { high: 3, medium: 2, low: 1 }, 0));
        assert_eq!(next_ns(&queue), Some(7));
    }

    #[test]
    fn a_worker_that_goes_away_keeps_no_tags_to_spare() {
        let queue = queue(2, 13);
        assert!(queue.acquire(0).is_some());
        assert_eq!((spares(&queue, 0), queue.leave(0), spares(&queue, 0)), (4, None, 0));
        assert_eq!(queue.with(|state| state.tags.free()), 12);
    }
}
