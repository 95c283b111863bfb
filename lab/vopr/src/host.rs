//! Host of a worker's loop here: virtual time, sockets in memory, real eventfds.
//!
//! A sleep returns at once and says when it would have ended; the world (`world.rs`) steps the worker again then, or
//! when it is kicked, or when something that it asked for can be done.

use crate::net::{self, KnownPipes, SOCKET_BYTES, SharedPipe, path_of};
use crate::world::{self, World};
use mqfq_blk::ask::Ask;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Descriptors, Event, Part};
use mqfq_blk::worker::host::{Ended, Host, HostEvent};
use mqfq_blk::worker::{HasWorkerContext, WorkerContext};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Operation that a client asked for and that has not ended.
enum Asked {
    Receive {
        pipe: Option<SharedPipe>,
        buffer: Buffer,
        start: usize,
        end: usize,
        with_descriptors: bool,
    },
    Send {
        pipe: Option<SharedPipe>,
        parts: Vec<Part>,
        sent: usize,
        descriptors: Vec<OwnedFd>,
    },
    Accept {
        listener: PathBuf,
    },
    /// A count reads the eventfd.
    Wait {
        descriptor: RawFd,
        counts: bool,
        is_ready: bool,
    },
}

struct Operation {
    client: u32,
    user: u32,
    asked: Asked,
}

/// A worker's surroundings.
pub struct VirtualHost {
    world: Rc<World>,
    context: WorkerContext,
    operations: Vec<Operation>,
    pipes: KnownPipes,
    /// Rings of eventfds when the kernel was last asked which waits are over; `None`: there are newer waits.
    polled_at: Option<u64>,
    /// When, in which order asked for, whose, which.
    timers: BinaryHeap<Reverse<(u64, u64, u32, u32)>>,
    asked: u64,
    /// By name: what ended and was not taken. `None`: it was taken back.
    ended: Vec<Option<(u32, Event)>>,
    /// Names that the worker will still ask for, those taken back among them.
    unresolved: usize,
    fresh: Vec<Ended>,
    /// `Some`: it sleeps, until then at most.
    sleep: Option<Option<u64>>,
}

const CANCELED: i32 = Errno::CANCELED.raw_os_error();

impl VirtualHost {
    /// The host of this worker.
    pub fn new(world: Rc<World>, context: WorkerContext) -> VirtualHost {
        VirtualHost {
            world,
            context,
            operations: Vec::new(),
            pipes: KnownPipes::default(),
            polled_at: None,
            timers: BinaryHeap::new(),
            asked: 0,
            ended: Vec::new(),
            unresolved: 0,
            fresh: Vec::new(),
            sleep: None,
        }
    }

    /// It has something to do now.
    pub fn is_ready(&mut self) -> bool {
        let now_ns = world::now_ns();
        let Some(until_ns) = self.sleep else { return true };
        self.context.is_kicked()
            || until_ns.is_some_and(|until_ns| until_ns <= now_ns)
            || self.timers.peek().is_some_and(|Reverse((at_ns, ..))| *at_ns <= now_ns)
            || self.transfer()
    }

    /// When it wakes by itself.
    pub fn next_ns(&self) -> Option<u64> {
        let timer_ns = self.timers.peek().map(|Reverse((at_ns, ..))| *at_ns);
        [self.sleep.flatten(), timer_ns].into_iter().flatten().min()
    }

    /// Its sleep is over.
    pub fn wake(&mut self) {
        if self.sleep.take().is_some() {
            self.context.woke();
        }
    }

    fn finish(&mut self, client: u32, event: Event) {
        self.fresh.push((self.ended.len() as u64, 0));
        self.ended.push(Some((client, event)));
        self.unresolved += 1;
    }

    /// Does what can be done of what was asked for. True: something has ended that was not collected.
    fn transfer(&mut self) -> bool {
        self.poll_all();
        let mut at = 0;
        while at < self.operations.len() {
            if self.can_end(at) {
                let Operation { client, user, asked } = self.operations.remove(at);
                let event = self.end(user, asked);
                self.finish(client, event);
            } else {
                at += 1;
            }
        }
        !self.fresh.is_empty()
    }

    /// The operation can end now. A send moves bytes as far as there is room.
    fn can_end(&mut self, at: usize) -> bool {
        match &mut self.operations[at].asked {
            Asked::Receive { pipe: None, .. } | Asked::Send { pipe: None, .. } => true,
            Asked::Receive { pipe: Some(pipe), .. } => {
                let pipe = pipe.borrow();
                !pipe.to_server.is_empty() || pipe.is_left || pipe.is_shut
            }
            Asked::Send { pipe: Some(pipe), parts, sent, descriptors } => {
                let mut pipe = pipe.borrow_mut();
                if pipe.is_left || pipe.is_shut {
                    return true;
                }
                let mut room = SOCKET_BYTES.saturating_sub(pipe.to_client.len());
                pipe.descriptors_to_client.append(descriptors);
                let mut skip = *sent;
                for part in parts.iter() {
                    let bytes = part.as_slice();
                    let from = skip.min(bytes.len());
                    skip -= from;
                    let count = (bytes.len() - from).min(room);
                    pipe.to_client.extend_from_slice(&bytes[from..from + count]);
                    (room, *sent) = (room - count, *sent + count);
                    if from + count < bytes.len() {
                        return false;
                    }
                }
                true
            }
            Asked::Accept { listener } => self.world.net.borrow().has_waiting(listener),
            Asked::Wait { is_ready, .. } => *is_ready,
        }
    }

    /// Asks the kernel which of the waits are over, unless nothing has happened that ends one.
    fn poll_all(&mut self) {
        if self.polled_at.replace(net::rings()) == Some(net::rings()) {
            return;
        }
        let mut polls = Vec::new();
        for one in &self.operations {
            if let Asked::Wait { descriptor, .. } = one.asked {
                // SAFETY: the client keeps it open until its wait has ended or was taken back.
                let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
                polls.push(PollFd::from_borrowed_fd(borrowed, PollFlags::IN));
            }
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if polls.is_empty() || !rustix::event::poll(&mut polls, Some(&now)).is_ok_and(|count| count > 0) {
            return;
        }
        let ready: Vec<bool> = polls.iter().map(|poll| !poll.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        for one in &mut self.operations {
            if let Asked::Wait { is_ready, .. } = &mut one.asked {
                *is_ready = ready.next().unwrap_or(false);
            }
        }
    }

    fn end(&mut self, user: u32, asked: Asked) -> Event {
        match asked {
            Asked::Receive { pipe, mut buffer, start, end, with_descriptors } => {
                let (mut count, mut descriptors) = (0, Vec::new());
                if let Some(pipe) = pipe {
                    let mut pipe = pipe.borrow_mut();
                    if !pipe.is_shut {
                        count = pipe.to_server.len().min(end - start).min(pipe.piece_bytes.max(1));
                        let room = &mut buffer.as_mut_slice()[start..start + count];
                        let (one, other) = pipe.to_server.as_slices();
                        let first = count.min(one.len());
                        room[..first].copy_from_slice(&one[..first]);
                        room[first..].copy_from_slice(&other[..count - first]);
                        pipe.to_server.drain(..count);
                        descriptors = std::mem::take(&mut pipe.descriptors);
                    }
                }
                let kept = if with_descriptors { descriptors } else { Vec::new() };
                Event::Received { user, buffer, result: Ok(count), descriptors: Descriptors::new(kept, false) }
            }
            Asked::Send { pipe, parts, .. } => {
                let is_broken = pipe.is_none_or(|pipe| pipe.borrow().is_left || pipe.borrow().is_shut);
                let result = if is_broken { Err(Errno::PIPE.raw_os_error()) } else { Ok(()) };
                Event::Sent { user, parts, result }
            }
            Asked::Accept { listener } => {
                let socket = self.world.net.borrow_mut().accept(&listener).expect("looked at just now");
                Event::Accepted { user, result: Ok(socket) }
            }
            Asked::Wait { counts: false, .. } => Event::Ready { user, result: Ok(()) },
            Asked::Wait { descriptor: event, .. } => {
                let mut value = [0; 8];
                // SAFETY: the client keeps it open until this has ended.
                let read = rustix::io::read(unsafe { BorrowedFd::borrow_raw(event) }, &mut value);
                let result = read.map(|_| u64::from_ne_bytes(value)).map_err(Errno::raw_os_error);
                Event::Counted { user, result }
            }
        }
    }

    fn pipe(&mut self, socket: RawFd) -> Option<SharedPipe> {
        self.pipes.get(&self.world.net.borrow(), socket)
    }

    /// Ends what is meant where it stands.
    fn cut(&mut self, is_meant: impl Fn(&Operation) -> bool) {
        let (meant, kept) = std::mem::take(&mut self.operations).into_iter().partition(|one| is_meant(one));
        self.operations = kept;
        let meant: Vec<Operation> = meant;
        for Operation { client, user, asked } in meant {
            let event = match asked {
                Asked::Receive { buffer, .. } => {
                    Event::Received { user, buffer, result: Err(CANCELED), descriptors: Descriptors::NONE }
                }
                Asked::Send { parts, sent: 0, .. } => Event::SentInPart { user, parts, sent_bytes: 0 },
                Asked::Send { parts, sent, .. } => Event::SentInPart { user, parts, sent_bytes: sent },
                Asked::Accept { .. } => Event::Accepted { user, result: Err(CANCELED) },
                Asked::Wait { counts: true, .. } => Event::Counted { user, result: Err(CANCELED) },
                Asked::Wait { .. } => Event::Ready { user, result: Err(CANCELED) },
            };
            self.finish(client, event);
        }
    }
}

impl HasWorkerContext for VirtualHost {
    fn worker_context(&self) -> &WorkerContext {
        &self.context
    }
}

impl Host for VirtualHost {
    mqfq_blk::worker_context!();

    fn now_ns(&mut self) -> u64 {
        world::now_ns()
    }

    fn woke(&mut self) {
        // The sleep that it comes back from has not been slept.
        if self.sleep.is_none() {
            self.context.woke();
        }
    }

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        let now_ns = world::now_ns();
        while self.timers.peek().is_some_and(|Reverse((at_ns, ..))| *at_ns <= now_ns) {
            let Some(Reverse((_, _, client, user))) = self.timers.pop() else { break };
            self.finish(client, Event::Timer { user });
        }
        ended.append(&mut self.fresh);
    }

    fn resolve(&mut self, (name, _): Ended) -> Option<HostEvent> {
        let ended = self.ended[name as usize].take();
        self.unresolved -= 1;
        if self.unresolved == 0 {
            self.ended.clear();
        }
        let (client, event) = ended?;
        Some(HostEvent::Client { client, event })
    }

    fn has_ended(&mut self) -> bool {
        !self.fresh.is_empty()
    }

    fn enter(&mut self) -> io::Result<()> {
        self.transfer();
        Ok(())
    }

    fn enter_and_wait(&mut self, wait_ns: Option<u64>, _is_held_back: bool) -> io::Result<()> {
        if !self.transfer() {
            self.sleep = Some(wait_ns.map(|wait_ns| world::now_ns().saturating_add(wait_ns)));
        }
        Ok(())
    }

    fn spin_hint(&mut self) {
        world::pass(10_000);
    }

    fn ask(&mut self, client: u32, ask: Ask) {
        let (user, asked) = match ask {
            Ask::Receive { socket, buffer, start, end, with_descriptors, user } => {
                (user, Asked::Receive { pipe: self.pipe(socket), buffer, start, end, with_descriptors })
            }
            Ask::Send { socket, parts, descriptors, user } => {
                (user, Asked::Send { pipe: self.pipe(socket), parts, sent: 0, descriptors })
            }
            Ask::Accept { listener, user } => {
                (user, Asked::Accept { listener: path_of(listener).expect("it listens") })
            }
            Ask::Signal { event, user } => {
                // SAFETY: the client keeps it open until the signal has ended.
                let borrowed = unsafe { BorrowedFd::borrow_raw(event) };
                let result = net::ring(borrowed).map_err(Errno::raw_os_error);
                return self.finish(client, Event::Signalled { user, result });
            }
            Ask::Poll { descriptor, user } => (user, Asked::Wait { descriptor, counts: false, is_ready: false }),
            Ask::Count { event, user } => (user, Asked::Wait { descriptor: event, counts: true, is_ready: false }),
            Ask::Timer { at_ns, user } => {
                self.asked += 1;
                return self.timers.push(Reverse((at_ns, self.asked, client, user)));
            }
            Ask::Command { .. } => unreachable!("no client here gives commands to a driver"),
            Ask::Attach { make } => return self.context.attach(make),
            Ask::Shutdown { socket } => return self.shutdown(socket),
            Ask::Interrupt => return self.interrupt(client),
        };
        if matches!(asked, Asked::Wait { .. }) {
            self.polled_at = None;
        }
        self.operations.push(Operation { client, user, asked });
    }

    fn abort(&mut self, client: Option<u32>) {
        let is_meant = |one: &Operation| client.is_none_or(|client| client == one.client);
        for one in self.operations.iter().filter(|one| is_meant(one)) {
            if let Asked::Receive { pipe: Some(pipe), .. } | Asked::Send { pipe: Some(pipe), .. } = &one.asked {
                pipe.borrow_mut().is_shut = true;
            }
        }
        let is_wait = |one: &Operation| !matches!(one.asked, Asked::Receive { .. } | Asked::Send { .. });
        self.cut(|one| is_meant(one) && is_wait(one));
    }

    fn take_back(&mut self, client: u32, user: u32) -> u32 {
        let before = self.operations.len();
        let is_meant =
            |one: &Operation| one.client == client && one.user == user && matches!(one.asked, Asked::Wait { .. });
        self.operations.retain(|one| !is_meant(one));
        let mut count = (before - self.operations.len()) as u32;
        for ended in &mut self.ended {
            let is_meant = |(whose, event): &(u32, Event)| {
                *whose == client
                    && matches!(event, Event::Counted { user: other, .. } | Event::Ready { user: other, .. }
                        if *other == user)
            };
            if ended.as_ref().is_some_and(is_meant) {
                *ended = None;
                count += 1;
            }
        }
        count
    }

    fn cancel_waits(&mut self, client: u32) {
        self.timers.retain(|Reverse((_, _, whose, _))| *whose != client);
        self.operations.retain(|one| one.client != client || !matches!(one.asked, Asked::Wait { .. }));
        for ended in &mut self.ended {
            let is_wait =
                |event: &Event| matches!(event, Event::Timer { .. } | Event::Counted { .. } | Event::Ready { .. });
            if ended.as_ref().is_some_and(|(whose, event)| *whose == client && is_wait(event)) {
                *ended = None;
            }
        }
    }

    fn turned(&mut self) {
        self.context.turned();
        world::pass(self.world.turn_ns);
    }
}

impl VirtualHost {
    fn interrupt(&mut self, client: u32) {
        let is_io =
            |one: &Operation| matches!(one.asked, Asked::Receive { .. } | Asked::Send { .. } | Asked::Accept { .. });
        self.transfer();
        self.cut(|one| one.client == client && is_io(one));
    }

    fn shutdown(&mut self, socket: RawFd) {
        // A listener has a number that a connection may have had.
        let pipe = self.world.net.borrow().pipe(net::identity(socket)).cloned();
        match pipe {
            Some(pipe) => pipe.borrow_mut().is_shut = true,
            None => path_of(socket).iter().for_each(|path| self.end_accepts(path)),
        }
    }

    /// A listening socket was shut down: what waits to accept there ends, as the kernel's EINVAL.
    fn end_accepts(&mut self, path: &Path) {
        let is_meant = |one: &Operation| matches!(&one.asked, Asked::Accept { listener } if listener == path);
        let (meant, kept) = std::mem::take(&mut self.operations).into_iter().partition(|one| is_meant(one));
        self.operations = kept;
        let meant: Vec<Operation> = meant;
        for Operation { client, user, .. } in meant {
            self.finish(client, Event::Accepted { user, result: Err(Errno::INVAL.raw_os_error()) });
        }
    }
}
