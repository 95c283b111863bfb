//! One worker's way into queues that it shares with others, as a device queue like any other.
//!
//! Answers: where does a command of mine wait, and how does its end come back to me? The context above knows nothing of
//! it: it makes tags of its own, rings and reaps.
//!
//! # Shape
//! ```text
//!   submit    own staging ──▶ tag of the hardware queue, or refused and kicked later
//!             shared staging ──▶ software queue (lock)               SQ ──▶ the one queue (the one lock)
//!             set ──▶ gathered for the doorbell, which puts them into the lines of their classes
//!   doorbell  ──▶ hardware queue (lock): device, doorbell, reap ──┬──▶ own completions
//!   reap      ──▶ inbox; hardware queue, if it is due ────────────┴──▶ another's inbox (its lock), kick
//! ```
//! A device that completes at once has completed by the end of the doorbell, on the worker that rang: the lock need not
//! be taken again. SQ takes its lock for each insertion, each dispatch, and for completion, as blk-mq section 2.2 says.

use super::hardware::{Brought, HardwareQueue};
use super::{Interrupt, SoftwareQueue};
use mqfq_blk::device::{Command, DeviceQueue, QueueFull, Reaped};
use mqfq_blk::tag::Tag;
use mqfq_sched::policy::ClassWeights;
use mqfq_sched::sync::{AtomicU32, Mutex, Ordering};
use mqfq_sched::topology::HctxId;
use std::sync::Arc;

/// Commands that a worker takes from a shared software queue at once.
const BATCH_MAX: usize = 64;

/// A command, and whose it is.
pub(super) struct OwnedCommand {
    pub(super) worker: u16,
    pub(super) command: Command,
}

/// Completions that another worker brought back. Alone on its lines: each worker looks at its own in every turn.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Inbox {
    reaped: Mutex<Vec<Reaped>>,
    /// Completions may have come.
    news: AtomicU32,
}

impl Inbox {
    fn push(&self, reaped: Reaped) {
        self.reaped.lock().expect("a worker panicked at an inbox").push(reaped);
        // Release: pairs with the Acquire in `has_news`. The kick that follows comes after it.
        self.news.store(1, Ordering::Release);
    }

    fn has_news(&self) -> bool {
        // Acquire: pairs with the Release in `push`. 0 although one was just pushed: the kick that follows brings us
        // back.
        self.news.load(Ordering::Acquire) != 0
    }

    fn take(&self, out: &mut Vec<Reaped>) {
        // Relaxed: before the lock, so that what is pushed after we looked sets it again.
        self.news.store(0, Ordering::Relaxed);
        out.append(&mut self.reaped.lock().expect("a worker panicked at an inbox"));
    }
}

/// Place where commands wait for the hardware queue.
pub(super) enum Staging {
    /// In the context's policy; here are the commands that have a tag and wait for the doorbell.
    Own(Vec<(Tag, Command)>),
    /// In a software queue that workers share.
    Shared(Arc<SoftwareQueue>),
    /// In the hardware queue itself.
    UnderOneLock,
    /// Until the doorbell here, then in the hardware queue, which is a set.
    Set(Vec<OwnedCommand>),
}

/// One worker's device queue onto a shared hardware queue: it stages commands there and takes their completions out of
/// its inbox.
pub(super) struct Port {
    worker: u16,
    staging: Staging,
    hardware: Arc<HardwareQueue>,
    inboxes: Arc<[Inbox]>,
    interrupt: Interrupt,
    depth: usize,
    /// Commands given to us and not handed out.
    in_flight: usize,
    /// True while a tag is kept for us.
    may_retry: bool,
    brought: Brought,
    /// Commands on the way from a software queue.
    batch: Vec<OwnedCommand>,
}

impl Port {
    pub(super) fn new(
        hctx: HctxId,
        staging: Staging,
        hardware: Arc<HardwareQueue>,
        inboxes: Arc<[Inbox]>,
        interrupt: Interrupt,
        depth: usize,
    ) -> Port {
        let batch = Vec::with_capacity(if matches!(staging, Staging::Shared(_)) { BATCH_MAX } else { 0 });
        let brought = Brought {
            own: Vec::with_capacity(depth),
            others: Vec::with_capacity(depth),
            kick: Vec::with_capacity(inboxes.len()),
        };
        Port {
            worker: hctx.0,
            staging,
            hardware,
            inboxes,
            interrupt,
            depth,
            in_flight: 0,
            may_retry: false,
            brought,
            batch,
        }
    }

    fn inbox(&self) -> &Inbox {
        &self.inboxes[usize::from(self.worker)]
    }

    /// Whether commands of ours are neither here nor known to have ended.
    fn has_own_out(&self) -> bool {
        self.in_flight > self.brought.own.len()
    }

    /// Gives other workers their completions and kicks; no lock of a queue is held.
    fn deliver(&mut self) {
        let Brought { others, kick, .. } = &mut self.brought;
        for (worker, reaped) in others.drain(..) {
            self.inboxes[usize::from(worker)].push(reaped);
            kick.push(worker);
        }
        kick.sort_unstable();
        kick.dedup();
        for worker in kick.drain(..) {
            if worker == self.worker {
                self.may_retry = true;
            } else {
                (self.interrupt)(HctxId(worker));
            }
        }
    }
}

impl DeviceQueue for Port {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        if self.in_flight == self.depth {
            return Err(QueueFull(command));
        }
        match &mut self.staging {
            Staging::Own(tagged) => match self.hardware.acquire(self.worker) {
                Some(tag) => tagged.push((tag, command)),
                None => return Err(QueueFull(command)),
            },
            Staging::Shared(software) => {
                let command = OwnedCommand { worker: self.worker, command };
                software.0.lock().expect("a worker panicked at a software queue").push_back(command);
            }
            Staging::UnderOneLock => self.hardware.insert(OwnedCommand { worker: self.worker, command }),
            Staging::Set(fresh) => fresh.push(OwnedCommand { worker: self.worker, command }),
        }
        self.may_retry = false;
        self.in_flight += 1;
        Ok(())
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        let Port { worker, staging, hardware, brought, batch, .. } = self;
        match staging {
            Staging::Own(tagged) => {
                if !tagged.is_empty() {
                    hardware.send(*worker, now_ns, tagged, brought);
                }
            }
            // Q3: until nothing is left, so that what this worker put in is not.
            Staging::Shared(software) => loop {
                {
                    let mut staged = software.0.lock().expect("a worker panicked at a software queue");
                    let count = staged.len().min(BATCH_MAX);
                    batch.extend(staged.drain(..count));
                }
                if batch.is_empty() {
                    break;
                }
                hardware.take(*worker, now_ns, batch, brought);
            },
            Staging::UnderOneLock => while hardware.dispatch_one(*worker, now_ns) {},
            Staging::Set(fresh) => {
                if !fresh.is_empty() {
                    hardware.take(*worker, now_ns, fresh, brought);
                }
            }
        }
        self.deliver();
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        if self.hardware.is_due(self.worker, self.has_own_out(), now_ns) {
            self.hardware.reap(self.worker, now_ns, &mut self.brought);
            self.deliver();
        }
        let before = out.len();
        if self.inbox().has_news() {
            self.inbox().take(out);
        }
        out.append(&mut self.brought.own);
        self.in_flight -= out.len() - before;
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        // A shared queue is not reset: it has commands of other workers, which did not ask for that.
        self.hardware.abort(self.worker, tag, now_ns)
    }

    fn set_class_weights(&mut self, weights: ClassWeights, now_ns: u64) -> bool {
        self.hardware.set_class_weights(weights, now_ns)
    }

    fn next_event_ns(&self) -> Option<u64> {
        if self.may_retry || !self.brought.own.is_empty() || self.inbox().has_news() {
            return Some(0);
        }
        self.hardware.next_event_ns(self.worker, self.has_own_out())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(next) = self.hardware.leave(self.worker) {
            (self.interrupt)(HctxId(next));
        }
    }
}
