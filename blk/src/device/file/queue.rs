//! One worker's queue on a file: its commands by tag, the ring, the gate, and syncs that wait for others.

use super::Backing;
use super::gate::{Gate, Member};
use super::syncs;
use super::work::{Next, Target, Work, refusal};
use crate::device::{Command, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use crate::request::Status;
use crate::ring::DeviceRing;
use crate::tag::Tag;
use std::sync::Arc;

/// Flag in the name of a ring entry that cancels the tag's entry.
const CANCEL: u32 = 1 << 31;

/// One worker's queue on a file: its commands by tag, as operations of the worker's ring.
pub(super) struct FileQueue {
    backing: Arc<Backing>,
    info: DeviceInfo,
    ring: DeviceRing,
    target: Target,
    /// Its identity at the gate, if the device has one.
    member: Option<Member>,
    /// Among the syncs of the device, through the page cache.
    syncs: Option<syncs::Member>,
    /// By tag. `None`: free, or ended and in `done`.
    works: Vec<Option<Work>>,
    /// Submitted since the last doorbell.
    fresh: Vec<u16>,
    granted: Vec<u16>,
    done: Vec<Reaped>,
    in_flight: usize,
}

impl FileQueue {
    pub(super) fn open(backing: Arc<Backing>, info: DeviceInfo, options: QueueOptions) -> Result<FileQueue, String> {
        let QueueOptions { hctx, depth, ring, interrupt } = options;
        let ring = ring.ok_or("a file device needs a worker with an io_uring")?;
        if backing.may_sleep {
            ring.occupy(depth.into());
        }
        Ok(FileQueue {
            member: backing.gate.as_ref().map(|gate| gate.join(hctx, interrupt.clone())),
            syncs: backing.syncs.as_ref().map(|syncs| syncs.join(hctx, depth, interrupt)),
            target: Target::new(&backing, ring.registered()),
            backing,
            info,
            ring,
            works: (0..depth).map(|_| None).collect(),
            fresh: Vec::with_capacity(depth as usize),
            granted: Vec::new(),
            done: Vec::with_capacity(depth as usize),
            in_flight: 0,
        })
    }

    /// Enters the command's regions at the gate, then takes its first step.
    fn begin(&mut self, tag: u16) {
        let work = self.works[tag as usize].as_mut().expect("only a submitted command begins");
        if let Some(hold) = &mut work.hold
            && let Some((gate, member)) = self.backing.gate.as_ref().zip(self.member.as_ref())
            && !gate.enter(member, tag, hold)
        {
            return;
        }
        let next = work.start(&self.backing);
        if matches!(next, Next::Entry(_))
            && work.is_to_be_stable()
            && let Some((syncs, member)) = self.backing.syncs.as_ref().zip(self.syncs.as_mut())
        {
            syncs.begin(member, tag);
        }
        self.follow(tag, next);
    }

    fn follow(&mut self, tag: u16, next: Next) {
        let slot = &mut self.works[tag as usize];
        match next {
            Next::Entry(_) if slot.as_ref().is_some_and(|work| work.is_aborted) => {
                self.follow(tag, Next::End(Status::TimedOut));
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
                if let Some(hold) = &mut work.hold
                    && let Some((gate, member)) = self.backing.gate.as_ref().zip(self.member.as_ref())
                {
                    gate.leave(member, hold);
                }
                let Command { tag: name, generation, ref mut buffer, .. } = work.command;
                let buffer = buffer.take();
                *slot = None;
                self.hand_out(tag, Reaped { tag: name, generation, status, buffer });
            }
        }
    }

    /// A command has ended. A sync that ended well may have to wait for others.
    fn hand_out(&mut self, tag: u16, mut reaped: Reaped) {
        if let Some((syncs, member)) = self.backing.syncs.as_ref().zip(self.syncs.as_mut())
            && syncs.ended(member, tag)
            && reaped.status == Status::Ok
        {
            if let Some(until) = syncs.must_wait() {
                return syncs.hold(member, until, reaped);
            }
            if self.backing.has_lost_writes() {
                reaped.status = Status::Io;
            }
        }
        self.done.push(reaped);
    }

    /// Hands out syncs whose wait for others is over.
    fn release(&mut self) {
        if let Some((syncs, member)) = self.backing.syncs.as_ref().zip(self.syncs.as_mut()) {
            syncs.release(member, || self.backing.has_lost_writes(), &mut self.done);
        }
    }

    /// Goes on with commands that the gate has let into one more region, by our own leaving or another queue's.
    fn take_grants(&mut self) {
        while let Some((gate, member)) = self.backing.gate.as_ref().zip(self.member.as_ref())
            && gate.take_grants(member, &mut self.granted)
        {
            let mut granted = std::mem::take(&mut self.granted);
            for tag in granted.drain(..) {
                let work = self.works[tag as usize].as_mut().expect("a command that waits has not ended");
                Gate::granted(work.hold.as_mut().expect("a command that waits at the gate has a hold"));
                self.begin(tag);
            }
            self.granted = granted;
        }
    }
}

impl DeviceQueue for FileQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.in_flight >= self.works.len() {
            return Err(QueueFull(command));
        }
        self.in_flight += 1;
        let tag = command.tag.0;
        if let Some(status) = refusal(&command, &self.info) {
            self.done.push(command.ended(status));
            return Ok(());
        }
        let slot = &mut self.works[tag as usize];
        assert!(slot.is_none(), "tag {tag} is in flight twice");
        *slot = Some(Work::new(command, &self.backing, self.target));
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

    fn abort(&mut self, tag: Tag, _now_ns: u64) -> bool {
        // A command at the gate waits for another, and begins when that one has ended.
        let Some(work) = self.works[tag.0 as usize].as_mut().filter(|work| work.is_on_ring) else { return false };
        work.is_aborted = true;
        self.ring.cancel(u32::from(tag.0), CANCEL | u32::from(tag.0));
        true
    }

    fn ring_event(&mut self, user: u32, result: i32) {
        if user & CANCEL != 0 {
            // Found or not, the command's own end gives its outcome.
            return;
        }
        let tag = user as u16;
        let work = self.works[tag as usize].as_mut().expect("an entry ends before its command does");
        work.is_on_ring = false;
        let next = work.ended(&self.backing, result);
        self.follow(tag, next);
        self.take_grants();
        self.release();
    }
}

impl Drop for FileQueue {
    /// A worker that stops in order has nothing in flight. One that panics may: the kernel still reads from and writes
    /// to the buffers of entries on the ring, at an unknown time, so they are leaked, and with them the
    /// descriptor (entries not yet submitted may name it by number, which must not come to mean another file).
    fn drop(&mut self) {
        if self.backing.may_sleep {
            self.ring.vacate(self.works.len() as u32);
        }
        if let Some((gate, member)) = self.backing.gate.as_ref().zip(self.member.as_ref()) {
            let mut granted = Vec::new();
            gate.withdraw(member, &mut granted);
            for tag in granted {
                if let Some(hold) = self.works[tag as usize].as_mut().and_then(|work| work.hold.as_mut()) {
                    Gate::granted(hold);
                }
            }
            for work in self.works.iter_mut().flatten() {
                // A patch on the ring would put back old bytes over later writes: its regions stay closed. No late
                // write of whole blocks was acknowledged, so it harms no client.
                if let Some(hold) = &mut work.hold
                    && !(work.is_on_ring && hold.is_alone())
                {
                    gate.leave(member, hold);
                }
            }
        }
        if let Some((syncs, member)) = self.backing.syncs.as_ref().zip(self.syncs.as_mut()) {
            // The kernel's answers to these syncs are lost.
            syncs.withdraw(member, || self.backing.note_lost_writes());
        }
        let leaked = self.works.drain(..).flatten().filter(|work| work.is_on_ring).map(std::mem::forget).count();
        if leaked > 0 {
            std::mem::forget(self.backing.clone());
        }
    }
}
