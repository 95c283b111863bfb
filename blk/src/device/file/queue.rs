//! One worker's queue on a file or a pool: its commands by tag, the ring, and for each backing its name on the ring,
//! its identity at the gate, and syncs that wait.

use super::backing::Backing;
use super::extents;
use super::gate::{self, Gate};
use super::pool::Pool;
use super::syncs::{self, SyncTable};
use super::work::{Next, Target, Work, refusal};
use crate::device::{Command, DeviceQueue, QueueFull, QueueOptions, Reaped};
use crate::request::{Op, Status};
use crate::ring::DeviceRing;
use crate::tag::Tag;
use mqfq_sched::topology::HctxId;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Flag in the name of a ring entry that cancels the tag's entry.
const CANCEL: u32 = 1 << 31;

/// A backing, as one worker's queue uses it.
struct Part {
    backing: Arc<Backing>,
    target: Target,
    /// Its identity at the gate, if the backing has one.
    member: Option<gate::Member>,
    /// Among the syncs of the backing, through the page cache.
    syncs: Option<syncs::Member>,
    /// Commands that wait at the gate.
    at_gate: u16,
    /// It is in [`FileQueue::at_gates`].
    is_listed: bool,
}

impl Part {
    /// Its gate, and this queue's identity there.
    fn gate(&self) -> Option<(&Gate, &gate::Member)> {
        self.backing.gate.as_ref().zip(self.member.as_ref())
    }
}

/// A question for extents that is out.
struct Asked {
    tag: Tag,
    backing: u16,
    is_aborted: bool,
}

/// One worker's queue on a file or a pool: its commands by tag, as operations of the worker's ring.
pub(super) struct FileQueue {
    pool: Arc<Pool>,
    hctx: HctxId,
    interrupt: Arc<dyn Fn(HctxId) + Send + Sync>,
    ring: DeviceRing,
    offset_bits: u32,
    /// By number. `None`: there is no backing.
    parts: Vec<Option<Part>>,
    /// Backings whose submission may sleep.
    sleepers: usize,
    /// Numbers of backings where commands wait at the gate.
    at_gates: Vec<u16>,
    /// Numbers of backings where syncs wait for others.
    holding: Vec<u16>,
    syncs: SyncTable,
    questions: extents::Member,
    /// Questions for extents that are out.
    asked: Vec<Asked>,
    /// By tag. `None`: free, or ended and in `done`.
    works: Vec<Option<Work>>,
    /// Submitted since the last doorbell.
    fresh: Vec<u16>,
    granted: Vec<u16>,
    done: Vec<Reaped>,
    in_flight: usize,
}

/// The backing of a command, which does not go before the command has ended.
fn part(parts: &mut [Option<Part>], number: u16) -> &mut Part {
    parts[number as usize].as_mut().expect("a backing outlives its commands")
}

impl FileQueue {
    pub(super) fn open(pool: Arc<Pool>, options: QueueOptions) -> Result<FileQueue, String> {
        let QueueOptions { hctx, depth, ring, interrupt } = options;
        let ring = ring.ok_or("a file device needs a worker with an io_uring")?;
        let mut queue = FileQueue {
            hctx,
            questions: extents::Member::new(hctx, interrupt.clone()),
            asked: Vec::with_capacity(depth as usize),
            interrupt,
            ring,
            offset_bits: pool.offset_bits,
            parts: Vec::new(),
            sleepers: 0,
            at_gates: Vec::with_capacity(depth as usize),
            holding: Vec::with_capacity(depth as usize),
            syncs: SyncTable::new(depth),
            works: (0..depth).map(|_| None).collect(),
            fresh: Vec::with_capacity(depth as usize),
            granted: Vec::new(),
            done: Vec::with_capacity(depth as usize),
            in_flight: 0,
            pool,
        };
        for (number, backing) in queue.pool.all() {
            queue.put(number, Some(backing));
        }
        Ok(queue)
    }

    /// A backing, or none, is in the place of the one before, of which nothing is under way.
    fn put(&mut self, number: u16, backing: Option<Arc<Backing>>) {
        let place = usize::from(number);
        if self.parts.len() <= place {
            self.parts.resize_with(place + 1, || None);
        }
        if let Some(gone) = self.parts[place].take() {
            self.leave(number, gone);
        }
        self.parts[place] = backing.map(|backing| {
            self.sleepers += usize::from(backing.may_sleep);
            if backing.may_sleep && self.sleepers == 1 {
                self.ring.occupy(self.works.len() as u32);
            }
            Part {
                member: backing.gate.as_ref().map(|gate| gate.join(self.hctx, self.interrupt.clone())),
                syncs: backing.syncs.as_ref().map(|syncs| syncs.join(self.hctx, self.interrupt.clone())),
                target: Target::new(&backing, self.ring.register(backing.as_fd())),
                backing,
                at_gate: 0,
                is_listed: false,
            }
        });
        while self.parts.last().is_some_and(Option::is_none) {
            self.parts.pop();
        }
    }

    /// Enters the command's regions at the gate, then takes its first step.
    fn begin(&mut self, tag: u16) {
        let work = self.works[tag as usize].as_mut().expect("only a submitted command begins");
        let part = part(&mut self.parts, work.backing);
        if let Some(hold) = &mut work.hold
            && let Some((gate, member)) = part.gate()
            && !gate.enter(member, tag, hold)
        {
            part.at_gate += 1;
            if !std::mem::replace(&mut part.is_listed, true) {
                self.at_gates.push(work.backing);
            }
            return;
        }
        let next = work.start(&part.backing);
        if matches!(next, Next::Entry(_))
            && work.is_to_be_stable()
            && let Some((syncs, member)) = part.backing.syncs.as_ref().zip(part.syncs.as_mut())
        {
            syncs.begin(member, &mut self.syncs, tag);
        }
        self.go_on(tag, next);
    }

    fn go_on(&mut self, tag: u16, next: Next) {
        let slot = &mut self.works[tag as usize];
        match next {
            Next::Entry(_) if slot.as_ref().is_some_and(|work| work.is_aborted) => {
                self.go_on(tag, Next::End(Status::TimedOut));
            }
            Next::Entry(entry) => {
                slot.as_mut().expect("a step belongs to a command").is_on_ring = true;
                // SAFETY: the entry points into buffers that the work owns (K1). It stays in `works` until `ring_event`
                // has been called for this entry, and `drop` leaks it if it still has an entry on the ring, together
                // with the descriptor.
                unsafe { self.ring.push(entry, u32::from(tag)) };
            }
            Next::End(status) => {
                // Ended where it lies: a work is several cache lines, which need not be moved to be dropped.
                let work = slot.as_mut().expect("a step belongs to a command");
                let number = work.backing;
                if let Some(hold) = &mut work.hold
                    && let Some((gate, member)) = part(&mut self.parts, number).gate()
                {
                    gate.leave(member, hold);
                }
                let Command { tag: name, generation, ref mut buffer, .. } = work.command;
                let buffer = buffer.take();
                *slot = None;
                self.hand_out(number, tag, Reaped { tag: name, generation, status, buffer });
            }
        }
    }

    /// A command that is none of the ring's: refused, or a question for extents.
    #[cold]
    fn refused(&mut self, number: u16, command: Command, status: Status) {
        if command.op != Op::Extents || status != Status::Unsupported {
            return self.done.push(command.ended(status));
        }
        let end_bytes = command.offset_bytes + u64::from(command.length_bytes);
        let backing = part(&mut self.parts, number).backing.clone();
        if backing.hanging.is_some() {
            return self.done.push(command.ended(Status::TimedOut));
        }
        if backing.refuses(Op::Read) || end_bytes > backing.watch.ends_at_bytes() {
            return self.done.push(command.ended(Status::Io));
        }
        let questions = backing.questions.clone();
        self.asked.push(Asked { tag: command.tag, backing: number, is_aborted: false });
        self.questions.ask(&questions, backing, command.offset_bytes, command);
    }

    /// Takes the answers to questions for extents.
    #[cold]
    fn take_answers(&mut self) {
        let before = self.done.len();
        self.questions.take(&mut self.done);
        for answered in &self.done[before..] {
            let place = self.asked.iter().position(|asked| asked.tag == answered.tag);
            let asked = self.asked.swap_remove(place.expect("each answer has its question"));
            if asked.is_aborted && self.pool.is_pool() {
                part(&mut self.parts, asked.backing).backing.hanging.end();
            }
        }
    }

    /// A question for extents has timed out: it goes on.
    #[cold]
    fn abort_asked(&mut self, tag: Tag, now_ns: u64) {
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.tag == tag) else { return };
        if !std::mem::replace(&mut asked.is_aborted, true) && self.pool.is_pool() {
            part(&mut self.parts, asked.backing).backing.hanging.begin(now_ns);
        }
    }

    /// A command has ended. A sync that ended well may have to wait for others.
    fn hand_out(&mut self, number: u16, tag: u16, mut reaped: Reaped) {
        let part = part(&mut self.parts, number);
        if let Some((syncs, member)) = part.backing.syncs.as_ref().zip(part.syncs.as_mut())
            && syncs.ended(member, &mut self.syncs, tag)
            && reaped.status == Status::Ok
        {
            if let Some(until) = syncs.must_wait() {
                if !member.holds_some() {
                    self.holding.push(number);
                }
                return syncs.hold(member, &mut self.syncs, until, reaped);
            }
            if part.backing.has_lost_writes() {
                reaped.status = Status::Io;
            }
        }
        self.done.push(reaped);
    }

    /// Hands out syncs whose wait for others is over.
    #[inline]
    fn release(&mut self) {
        if !self.holding.is_empty() {
            self.release_held();
        }
    }

    fn release_held(&mut self) {
        let Self { holding, parts, syncs: table, done, .. } = self;
        holding.retain(|number| {
            let part = part(parts, *number);
            let Some((syncs, member)) = part.backing.syncs.as_ref().zip(part.syncs.as_mut()) else { return false };
            syncs.release(member, table, || part.backing.has_lost_writes(), done);
            member.holds_some()
        });
    }

    /// Goes on with commands that a gate has let into one more region, by our own leaving or another queue's.
    #[inline]
    fn take_grants(&mut self) {
        if !self.at_gates.is_empty() {
            self.take_all_grants();
        }
    }

    fn take_all_grants(&mut self) {
        let mut at = 0;
        while let Some(&number) = self.at_gates.get(at) {
            let part = part(&mut self.parts, number);
            let has_some = part.gate().is_some_and(|(gate, member)| gate.take_grants(member, &mut self.granted));
            if !has_some {
                at += 1;
                continue;
            }
            part.at_gate -= self.granted.len() as u16;
            let mut granted = std::mem::take(&mut self.granted);
            for tag in granted.drain(..) {
                let work = self.works[tag as usize].as_mut().expect("a command that waits has not ended");
                Gate::granted(work.hold.as_mut().expect("a command that waits at the gate has a hold"));
                self.begin(tag);
            }
            self.granted = granted;
            // Commands that ended just now may have let others in anywhere.
            at = 0;
        }
        let parts = &mut self.parts;
        self.at_gates.retain(|number| {
            let part = part(parts, *number);
            part.is_listed = part.at_gate > 0;
            part.is_listed
        });
    }

    /// Syncs of this backing wait for others.
    fn is_held(&self, number: u16) -> bool {
        self.holding.contains(&number)
    }

    /// Gives up the queue's part in the shared state of a backing. Its commands that are still there are not carried
    /// out any further.
    fn leave(&mut self, number: u16, mut gone: Part) {
        if let Some(place) = gone.target.registered() {
            self.ring.unregister(place);
        }
        self.sleepers -= usize::from(gone.backing.may_sleep);
        if gone.backing.may_sleep && self.sleepers == 0 {
            self.ring.vacate(self.works.len() as u32);
        }
        if let Some((gate, member)) = gone.gate() {
            let mut granted = Vec::new();
            gate.withdraw(member, &mut granted);
            for tag in granted {
                if let Some(hold) = self.works[tag as usize].as_mut().and_then(|work| work.hold.as_mut()) {
                    Gate::granted(hold);
                }
            }
            for work in self.works.iter_mut().flatten().filter(|work| work.backing == number) {
                // A patch on the ring would put back old bytes over later writes: its regions stay closed. No late
                // write of whole blocks was acknowledged, so it harms no client.
                if let Some(hold) = &mut work.hold
                    && !(work.is_on_ring && hold.is_alone())
                {
                    gate.leave(member, hold);
                }
            }
        }
        if let Some((syncs, member)) = gone.backing.syncs.as_ref().zip(gone.syncs.as_mut()) {
            // The kernel's answers to these syncs are lost.
            syncs.withdraw(member, || gone.backing.note_lost_writes());
        }
        if self.works.iter().flatten().any(|work| work.backing == number && work.is_on_ring) {
            // Entries not yet submitted may name the descriptor by number, which must not come to mean another file.
            std::mem::forget(gone.backing);
        }
    }
}

impl DeviceQueue for FileQueue {
    fn submit(&mut self, mut command: Command) -> Result<(), QueueFull> {
        if self.in_flight >= self.works.len() {
            return Err(QueueFull(command));
        }
        self.in_flight += 1;
        let tag = command.tag.0;
        let number = (command.offset_bytes >> self.offset_bits) as usize;
        let Some(Some(part)) = self.parts.get(number) else {
            self.done.push(command.ended(Status::Invalid));
            return Ok(());
        };
        command.offset_bytes &= (1 << self.offset_bits) - 1;
        if let Some(status) = refusal(&command, &part.backing) {
            self.refused(number as u16, command, status);
            return Ok(());
        }
        let slot = &mut self.works[tag as usize];
        assert!(slot.is_none(), "tag {tag} is in flight twice");
        *slot = Some(Work::new(command, number as u16, &part.backing, part.target));
        self.fresh.push(tag);
        Ok(())
    }

    fn ring_doorbell(&mut self, _now_ns: u64) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for tag in fresh.drain(..) {
            self.begin(tag);
        }
        self.fresh = fresh;
        self.take_grants();
    }

    fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
        self.take_grants();
        self.release();
        if self.questions.waits() {
            self.take_answers();
        }
        self.in_flight -= self.done.len();
        out.append(&mut self.done);
    }

    fn next_event_ns(&self) -> Option<u64> {
        // A command that ended without the ring (a refusal, an empty write) is handed out at once, others by the ring.
        (!self.done.is_empty()).then_some(0)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        // A command at the gate waits for another, and begins when that one has ended.
        let Some(work) = self.works[tag.0 as usize].as_mut().filter(|work| work.is_on_ring) else {
            self.abort_asked(tag, now_ns);
            return false;
        };
        if !std::mem::replace(&mut work.is_aborted, true) && self.pool.is_pool() {
            part(&mut self.parts, work.backing).backing.hanging.begin(now_ns);
        }
        self.ring.cancel(u32::from(tag.0), CANCEL | u32::from(tag.0));
        true
    }

    fn has_parts(&self) -> bool {
        self.pool.is_pool()
    }

    fn follow(&mut self, number: u16) -> Result<(), String> {
        let now = self.pool.get(number.into());
        let before = self.parts.get(usize::from(number)).and_then(Option::as_ref);
        let is_same = match (&now, before) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, &before.backing),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            let has_works = self.works.iter().flatten().any(|work| work.backing == number);
            if has_works || self.is_held(number) || self.asked.iter().any(|asked| asked.backing == number) {
                return Err("a backing has not ended its requests".to_owned());
            }
            self.put(number, now);
        }
        Ok(())
    }

    fn ring_event(&mut self, user: u32, result: i32) {
        if user & CANCEL != 0 {
            // Found or not, the command's own end gives its outcome.
            return;
        }
        let tag = user as u16;
        let work = self.works[tag as usize].as_mut().expect("an entry ends before its command does");
        work.is_on_ring = false;
        let part = part(&mut self.parts, work.backing);
        if work.is_aborted && self.pool.is_pool() {
            // An aborted command has no further step.
            part.backing.hanging.end();
        }
        let next = work.ended(&part.backing, result);
        self.go_on(tag, next);
        self.take_grants();
        self.release();
    }
}

impl Drop for FileQueue {
    /// A worker that stops in order has nothing in flight. One that panics may: the kernel still reads from and writes
    /// to the buffers of entries on the ring, at an unknown time, so they are leaked, and with them the
    /// descriptors.
    fn drop(&mut self) {
        for number in 0..self.parts.len() {
            if let Some(gone) = self.parts[number].take() {
                self.leave(number as u16, gone);
            }
        }
        self.works.drain(..).flatten().filter(|work| work.is_on_ring).for_each(std::mem::forget);
    }
}
