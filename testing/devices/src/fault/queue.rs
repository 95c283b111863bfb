//! One worker's queue on a faulty device.
//!
//! # Shape
//! ```text
//!   submit ─▶ fresh ─doorbell: draw a fault─┬─▶ inner device ─reap─▶ held ─due, not stalled, shuffled─▶ out
//!                                           ├─▶ held                        (error; write into the cache)
//!                                           ├─▶ to_destage ─▶ destage ─▶ held (flush and FUA of the cache)
//!                                           └─▶ silent    (forgotten, or lost after it came back from the inner device)
//! ```

use super::cache::{self, Destage};
use super::extent::{Payload, Piece};
use super::{Fault, Interrupt, OnAbort, OnReset, REORDER_HOLD_MAX_NS, Shared, State, span_of};
use mqfq_blk::device::{Command, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::extents::Stored;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_sched::policy::ClassWeights;
use mqfq_sched::topology::HctxId;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// One worker's queue on a [`FaultDevice`](super::FaultDevice): the inner queue, and the commands that a fault holds
/// back.
pub(super) struct FaultQueue<Q: DeviceQueue + ?Sized> {
    shared: Arc<Shared>,
    inner: Box<Q>,
    hctx: HctxId,
    interrupt: Interrupt,
    /// Commands that each lane takes.
    depth: u16,
    /// By lane: the command's class in a set of class queues, else 0.
    in_flight: Box<[usize]>,
    /// By tag: the lane of the command in flight.
    lanes: Box<[u8]>,
    /// Submitted, with the epoch of then.
    fresh: VecDeque<(u64, Command)>,
    /// Commands for which the inner device had no place.
    refused: VecDeque<Command>,
    /// The inner device has commands that it was not told of.
    rings: bool,
    /// On the inner device.
    inside: HashMap<u16, Inside>,
    /// Ended, not handed out.
    held: Vec<Held>,
    /// Flushes and FUA commands of the cache that wait for their turn.
    to_destage: VecDeque<Waiting>,
    destage: Option<(Destage, Waiting)>,
    /// Will not end by themselves.
    silent: Vec<Reaped>,
    /// Ends of commands that were given back, and when they are told. Against the rules of a device.
    late: Vec<(u64, Tag, u32)>,
    reaped: Vec<Reaped>,
}

/// How to report a command's end on the inner device.
struct Inside {
    epoch: u64,
    offset_bytes: u64,
    length_bytes: u32,
    delay_ns: u64,
    /// Its end is not reported.
    is_lost: bool,
    /// The end to report in place of the inner device's.
    status: Option<Status>,
    /// Pieces over the bytes read when the read began. It need not see later writes.
    cover: Vec<Piece>,
}

struct Held {
    due_ns: u64,
    epoch: u64,
    reaped: Reaped,
}

/// A command that ends when the cache's `span` is stored.
struct Waiting {
    epoch: u64,
    /// Completion to hand out then, with the status of then.
    reaped: Reaped,
    span: Range<u64>,
    delay_ns: u64,
    is_lost: bool,
}

impl<Q: DeviceQueue + ?Sized> FaultQueue<Q> {
    /// A queue of `lanes` lanes over the inner device's that `open` opens.
    pub(super) fn open(
        shared: Arc<Shared>,
        lanes: usize,
        options: QueueOptions,
        open: impl FnOnce(QueueOptions) -> Result<Box<Q>, String>,
    ) -> Result<FaultQueue<Q>, String> {
        let QueueOptions { hctx, depth, interrupt, .. } = &options;
        let (hctx, depth, interrupt) = (*hctx, *depth, interrupt.clone());
        let inner_depth =
            depth.checked_add(if shared.plan.volatile_cache { cache::TAGS } else { 0 }).ok_or_else(|| {
                format!("a device with a volatile cache takes at most {} commands", u16::MAX - cache::TAGS)
            })?;
        Ok(FaultQueue {
            shared,
            inner: open(QueueOptions { depth: inner_depth, ..options })?,
            hctx,
            interrupt,
            depth,
            in_flight: vec![0; lanes].into(),
            lanes: vec![0; lanes * usize::from(depth)].into(),
            fresh: VecDeque::new(),
            refused: VecDeque::new(),
            rings: false,
            inside: HashMap::new(),
            held: Vec::new(),
            to_destage: VecDeque::new(),
            destage: None,
            silent: Vec::new(),
            late: Vec::new(),
            reaped: Vec::new(),
        })
    }

    /// Draws a command's fault and sends it on its way.
    fn begin(&mut self, state: &mut State, epoch: u64, mut command: Command, now_ns: u64) {
        if epoch != state.epoch {
            return self.hold(epoch, now_ns, command.ended(Status::Io));
        }
        let (mut delay_ns, mut is_lost) = (0, false);
        match self.shared.draw(state, &command) {
            None => {}
            Some(Fault::Error(status)) => return self.hold(epoch, now_ns, command.ended(status)),
            Some(Fault::Torn(status)) => return self.tear(state, command, status, now_ns),
            Some(Fault::Delay { ns }) => delay_ns = ns,
            Some(Fault::Stall { ns }) => state.stalled_until_ns = state.stalled_until_ns.max(now_ns.saturating_add(ns)),
            Some(Fault::Forget) => return self.silence(state, command.ended(Status::TimedOut)),
            Some(Fault::Lose) => is_lost = true,
        }
        if command.op == Op::Extents && self.shared.plan.volatile_cache {
            // The inner device has not all bytes.
            let due_ns = now_ns.saturating_add(delay_ns);
            return self.hold(epoch, due_ns, command.ended_as(Stored::Data));
        }
        if !self.shared.plan.volatile_cache || command.op == Op::Read {
            return self.send(state, command, delay_ns, is_lost, None);
        }
        let span = if command.op == Op::Flush { 0..self.shared.info.size_bytes } else { span_of(&command) };
        cache(state, &mut command);
        if is_lost && !(command.op == Op::Flush || command.fua) {
            return self.silence(state, command.ended(Status::TimedOut));
        }
        if command.op == Op::Flush || command.fua {
            self.to_destage.push_back(Waiting { epoch, reaped: command.ended(Status::Ok), span, delay_ns, is_lost });
        } else {
            self.hold(epoch, now_ns.saturating_add(delay_ns), command.ended(Status::Ok));
        }
    }

    /// Carries out some of the first sectors of a write.
    fn tear(&mut self, state: &mut State, mut command: Command, status: Status, now_ns: u64) {
        let sector_bytes = self.shared.sector_bytes();
        let span = span_of(&command);
        let sectors = span.end.div_ceil(sector_bytes) - span.start / sector_bytes;
        let stored = state.random.below(sectors.max(1));
        let end = if stored == 0 { span.start } else { (span.start / sector_bytes + stored) * sector_bytes };
        command.length_bytes = (end - span.start) as u32;
        if matches!(command.op, Op::Read | Op::Flush | Op::Extents) || command.length_bytes == 0 {
            self.hold(state.epoch, now_ns, command.ended(status));
        } else if self.shared.plan.volatile_cache {
            cache(state, &mut command);
            self.hold(state.epoch, now_ns, command.ended(status));
        } else {
            self.send(state, command, 0, false, Some(status));
        }
    }

    /// Sends it to the inner device.
    fn send(&mut self, state: &State, command: Command, delay_ns: u64, is_lost: bool, status: Option<Status>) {
        let cover = if command.op == Op::Read { state.cache.cover(&span_of(&command)) } else { Vec::new() };
        let epoch = state.epoch;
        let Command { offset_bytes, length_bytes, .. } = command;
        self.inside
            .insert(command.tag.0, Inside { epoch, offset_bytes, length_bytes, delay_ns, is_lost, status, cover });
        self.offer(command);
    }

    fn offer(&mut self, command: Command) {
        match self.inner.submit(command) {
            Ok(()) => self.rings = true,
            Err(QueueFull(command)) => self.refused.push_back(command),
        }
    }

    /// Keeps a command that will not end by itself. Its buffer stays with it: a device that has not answered may still
    /// write there.
    fn silence(&mut self, state: &mut State, reaped: Reaped) {
        state.forgotten += 1;
        self.silent.push(reaped);
    }

    fn hold(&mut self, epoch: u64, due_ns: u64, reaped: Reaped) {
        self.held.push(Held { due_ns, epoch, reaped });
    }

    /// Takes all possible steps, and rings the inner device's doorbell.
    fn advance(&mut self, now_ns: u64) {
        let shared = self.shared.clone();
        let mut state = shared.state();
        for command in std::mem::take(&mut self.refused) {
            self.offer(command);
        }
        while let Some((epoch, command)) = self.fresh.pop_front() {
            self.begin(&mut state, epoch, command, now_ns);
        }
        while self.advance_destage(&mut state, now_ns) {}
        let woken = if state.is_destaging { Vec::new() } else { std::mem::take(&mut state.waiting) };
        drop(state);
        if std::mem::take(&mut self.rings) {
            self.inner.ring_doorbell(now_ns);
        }
        for (hctx, interrupt) in woken {
            interrupt(hctx);
        }
    }

    /// One step of the destage under way or the next. False: nothing to do until something ends.
    fn advance_destage(&mut self, state: &mut State, now_ns: u64) -> bool {
        if let Some((destage, _)) = &mut self.destage {
            if let Some(command) = destage.next(state.epoch) {
                self.offer(command);
                return true;
            }
            let Some(status) = destage.end(&mut state.cache, state.epoch) else { return false };
            let (_, Waiting { epoch, reaped, delay_ns, is_lost, .. }) = self.destage.take().expect("just looked at");
            state.is_destaging = false;
            if is_lost {
                self.silence(state, Reaped { status: Status::TimedOut, ..reaped });
            } else {
                self.hold(epoch, now_ns.saturating_add(delay_ns), Reaped { status, ..reaped });
            }
            // Queues that wait go first, or a queue that never runs out of flushes keeps the turn for ever.
            if state.waiting.is_empty() {
                return true;
            }
            if !self.to_destage.is_empty() {
                state.waiting.push((self.hctx, self.interrupt.clone()));
            }
            return false;
        }
        if self.to_destage.is_empty() {
            return false;
        }
        if state.is_destaging {
            if !state.waiting.iter().any(|(hctx, _)| *hctx == self.hctx) {
                state.waiting.push((self.hctx, self.interrupt.clone()));
            }
            return false;
        }
        state.is_destaging = true;
        let waiting = self.to_destage.pop_front().expect("checked");
        let destage = Destage::new(&state.cache, waiting.span.clone(), waiting.epoch, self.depth, &self.shared.info);
        self.destage = Some((destage, waiting));
        true
    }

    /// The tag of a command of the layers above, not of a destage.
    fn is_own(&self, tag: Tag) -> bool {
        usize::from(tag.0) < self.lanes.len()
    }

    /// A command is no longer in flight.
    fn leave(&mut self, tag: Tag) {
        self.in_flight[usize::from(self.lanes[tag.0 as usize])] -= 1;
    }

    /// Takes commands that ended inside.
    fn collect(&mut self, now_ns: u64) {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.inner.reap(now_ns, &mut reaped);
        for mut reaped in reaped.drain(..) {
            let Reaped { tag, status, .. } = reaped;
            if let Some((destage, _)) = self.destage.as_mut().filter(|(destage, _)| destage.owns(tag)) {
                destage.ended(tag, status);
                continue;
            }
            let inside = self.inside.remove(&tag.0).expect("the inner device reaps what it was given, once");
            if status == Status::Ok
                && !inside.cover.is_empty()
                && let Some(buffer) = &mut reaped.buffer
            {
                let mut bytes = vec![0; inside.length_bytes as usize];
                buffer.room(bytes.len()).copy_to(&mut bytes);
                put_over(&inside.cover, inside.offset_bytes, &mut bytes);
                buffer.room(bytes.len()).copy_from(&bytes);
            }
            if inside.is_lost {
                let shared = self.shared.clone();
                self.silence(&mut shared.state(), Reaped { status: Status::TimedOut, ..reaped });
                continue;
            }
            let due_ns = now_ns.saturating_add(inside.delay_ns);
            self.hold(inside.epoch, due_ns, Reaped { status: inside.status.unwrap_or(status), ..reaped });
        }
        self.reaped = reaped;
    }

    /// Something that is not yet held may still end by itself.
    fn expects_more(&self) -> bool {
        !self.inside.is_empty() || !self.to_destage.is_empty() || self.destage.is_some()
    }

    /// Hands out one completion that is due, if any may go.
    fn hand_out(&mut self, state: &mut State, now_ns: u64) -> Option<Reaped> {
        if now_ns < state.stalled_until_ns {
            return None;
        }
        let due: Vec<usize> = (0..self.held.len()).filter(|&index| self.held[index].due_ns <= now_ns).collect();
        let reorder = self.shared.plan.reorder;
        let waits_for_more = due.len() < reorder && (self.expects_more() || due.len() < self.held.len());
        let oldest_ns = due.iter().map(|&index| self.held[index].due_ns).min()?;
        if waits_for_more && now_ns < oldest_ns.saturating_add(REORDER_HOLD_MAX_NS) {
            return None;
        }
        // Not the oldest itself, which would be an order again: others go until it is drawn.
        let chosen = if reorder > 1 { state.random.below(due.len() as u64) as usize } else { 0 };
        let Held { epoch, mut reaped, .. } = self.held.remove(due[chosen]);
        if epoch != state.epoch {
            reaped.status = Status::Io;
        }
        Some(reaped)
    }
}

/// Puts the parts of `cover` that lie within `bytes`, which begin at `at_bytes` of the device, over them.
fn put_over(cover: &[Piece], at_bytes: u64, bytes: &mut [u8]) {
    let span = at_bytes..at_bytes + bytes.len() as u64;
    for piece in cover.iter().filter(|piece| piece.span.start < span.end && span.start < piece.span.end) {
        let Piece { span: Range { start, end }, payload, .. } = piece.clipped(&span);
        payload.copy_to(&mut bytes[(start - at_bytes) as usize..(end - at_bytes) as usize]);
    }
}

/// Puts a command's bytes into the cache.
fn cache(state: &mut State, command: &mut Command) {
    match command.op {
        Op::Write => {
            let mut bytes = vec![0; command.length_bytes as usize];
            command.room().copy_to(&mut bytes);
            state.cache.write(span_of(command), Payload::bytes(&bytes));
        }
        Op::Discard | Op::WriteZeroes { .. } | Op::FastZeroes { .. } => {
            state.cache.write(span_of(command), Payload::Zeroes)
        }
        Op::Read | Op::Flush | Op::Extents => {}
    }
}

impl<Q: DeviceQueue + ?Sized> DeviceQueue for FaultQueue<Q> {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        let lane = if self.in_flight.len() == 1 { 0 } else { command.class.index() };
        if self.in_flight[lane] == self.depth as usize {
            return Err(QueueFull(command));
        }
        self.in_flight[lane] += 1;
        self.lanes[command.tag.0 as usize] = lane as u8;
        let epoch = self.shared.state().epoch;
        self.fresh.push_back((epoch, command));
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.advance(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        self.collect(now_ns);
        // An end can let a destage go on, which can end at once.
        self.advance(now_ns);
        let shared = self.shared.clone();
        let mut state = shared.state();
        while let Some(reaped) = self.hand_out(&mut state, now_ns) {
            self.leave(reaped.tag);
            out.push(reaped);
        }
        for (_, tag, generation) in self.late.extract_if(.., |(due_ns, ..)| *due_ns <= now_ns) {
            out.push(Reaped { tag, generation, status: Status::Ok, buffer: None });
        }
    }

    fn next_event_ns(&self) -> Option<u64> {
        let stalled_until_ns = self.shared.state().stalled_until_ns;
        let mut dues_ns: Vec<u64> = self.held.iter().map(|held| held.due_ns).collect();
        dues_ns.sort_unstable();
        // As in `hand_out`: when enough are due, or all that there will be, or one has been held back for long enough.
        let enough = self.shared.plan.reorder.max(1);
        let last = if self.expects_more() { enough } else { enough.min(dues_ns.len()) };
        let gathered_ns = last.checked_sub(1).and_then(|last| dues_ns.get(last)).copied();
        let held_ns = dues_ns.first().map(|oldest_ns| oldest_ns.saturating_add(REORDER_HOLD_MAX_NS));
        let due_ns = gathered_ns.into_iter().chain(held_ns).min().map(|due_ns| due_ns.max(stalled_until_ns));
        let late_ns = self.late.iter().map(|(due_ns, ..)| *due_ns);
        due_ns.into_iter().chain(self.inner.next_event_ns()).chain(late_ns).min()
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        let (after_ns, again_ns) = match self.shared.plan.on_abort {
            OnAbort::Refused => return false,
            OnAbort::Ignored => return true,
            OnAbort::Ends { after_ns } => (after_ns, None),
            OnAbort::EndsTwice { after_ns } => (0, Some(after_ns)),
        };
        if let Some(place) = self.silent.iter().position(|silent| silent.tag == tag) {
            let silent = self.silent.swap_remove(place);
            self.late.extend(again_ns.map(|again_ns| (now_ns.saturating_add(again_ns), tag, silent.generation)));
            let mut state = self.shared.state();
            state.forgotten -= 1;
            let epoch = state.epoch;
            drop(state);
            self.hold(epoch, now_ns.saturating_add(after_ns), silent);
        }
        true
    }

    fn reset(&mut self, now_ns: u64, given_back: &mut Vec<Reaped>) -> bool {
        let late_ns = match self.shared.plan.on_reset {
            OnReset::Refused => return false,
            OnReset::Works => None,
            OnReset::EndsLate { after_ns } => Some(now_ns.saturating_add(after_ns)),
        };
        let mut inner = Vec::new();
        if !self.inner.reset(now_ns, &mut inner) {
            return false;
        }
        // Commands that ended inside and were not reported.
        self.collect(now_ns);
        let shared = self.shared.clone();
        let mut state = shared.state();
        state.forgotten -= self.silent.len();
        let before = given_back.len();
        let refused = std::mem::take(&mut self.refused);
        given_back.extend(inner.into_iter().filter(|reaped| self.is_own(reaped.tag)));
        given_back.extend(refused.into_iter().filter(|c| self.is_own(c.tag)).map(|c| c.ended(Status::TimedOut)));
        given_back.extend(self.fresh.drain(..).map(|(_, command)| command.ended(Status::TimedOut)));
        given_back.append(&mut self.silent);
        given_back.extend(self.held.drain(..).map(|held| held.reaped));
        given_back.extend(self.to_destage.drain(..).map(|waiting| waiting.reaped));
        self.inside.clear();
        let mut woken = Vec::new();
        if let Some((_, waiting)) = self.destage.take() {
            given_back.push(waiting.reaped);
            state.is_destaging = false;
            woken = std::mem::take(&mut state.waiting);
        }
        drop(state);
        for (hctx, interrupt) in woken {
            interrupt(hctx);
        }
        let given_back = &given_back[before..];
        given_back.iter().for_each(|reaped| self.leave(reaped.tag));
        self.late
            .extend(late_ns.into_iter().flat_map(|at_ns| given_back.iter().map(move |r| (at_ns, r.tag, r.generation))));
        true
    }

    fn in_flight(&self) -> usize {
        self.in_flight.iter().sum()
    }

    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        self.inner.set_class_weights(weights, now_ns)
    }

    fn ring_event(&mut self, user: u32, result: i32) {
        self.inner.ring_event(user, result);
    }
}

impl<Q: DeviceQueue + ?Sized> Drop for FaultQueue<Q> {
    fn drop(&mut self) {
        if self.destage.take().is_some() {
            let mut state = self.shared.state();
            state.is_destaging = false;
            let woken = std::mem::take(&mut state.waiting);
            drop(state);
            for (hctx, interrupt) in woken {
                interrupt(hctx);
            }
        }
    }
}
