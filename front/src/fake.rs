//! A worker and a device in memory, for tests: what a connection asks for is done when the test says so.

use mqfq_blk::ask::Ask;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::cap::Caps;
use mqfq_blk::client::{Client, Context, Descriptors, DeviceIndex, Event, MakeClient, POLL_NS_MIN, Part, Refused};
use mqfq_blk::command::Command;
use mqfq_blk::device::DeviceInfo;
use mqfq_blk::extents::{Answer, Stored};
use mqfq_blk::request::{Completion, Op, Status, Submission};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A receive in flight.
pub struct Receive {
    pub buffer: Buffer,
    pub start: usize,
    pub end: usize,
    pub user: u32,
}

/// The worker's side.
#[derive(Default)]
pub struct Fake {
    pub now_ns: u64,
    /// Longest time that looks pay; 0: the least of a worker.
    pub poll_ns: u64,
    /// Time of looks that found nothing.
    pub in_vain_ns: u64,
    /// `None`: each time is a turn.
    pub turn: Option<u64>,
    /// Flows compete.
    pub is_contended: bool,
    /// The device's bytes.
    pub store: Vec<u8>,
    /// Requests handed over and not executed.
    pub staged: VecDeque<Submission>,
    /// Requests that may be staged; 0 means any number.
    pub staged_max: usize,
    /// Requests that were executed.
    pub executed: Vec<(Op, u64, u32, bool)>,
    pub receive: Option<Receive>,
    pub send: Option<(Vec<Part>, u32)>,
    /// Descriptors that went with sends.
    pub passed: Vec<OwnedFd>,
    /// Polls and counts that the client waits for, by name.
    pub waits: Vec<u32>,
    /// Names of signals that have not ended.
    pub signals: VecDeque<u32>,
    pub accepts: usize,
    pub attached: Vec<MakeClient>,
    pub shut_down: bool,
    /// Times that the client gave its requests up.
    pub withdrawals: usize,
    /// Commands to a driver, with their names.
    pub commands: Vec<(Command, u32)>,
    /// Times that were asked for, with their names.
    pub timers: Vec<(u64, u32)>,
    pub refused: bool,
    /// Caps that the client last set for its requests.
    pub caps: Option<Arc<Caps>>,
}

impl Context for Fake {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn turn(&self) -> u64 {
        self.turn.unwrap_or(self.now_ns)
    }

    fn is_contended(&self, _: DeviceIndex) -> bool {
        self.is_contended
    }

    fn poll_ns(&self) -> u64 {
        if self.poll_ns == 0 { POLL_NS_MIN } else { self.poll_ns }
    }

    fn looked_in_vain(&mut self, ns: u64) {
        self.in_vain_ns += ns;
    }

    fn device(&self, _device: DeviceIndex) -> DeviceInfo {
        DeviceInfo {
            size_bytes: self.store.len() as u64,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: 32 << 20,
            volatile_cache: false,
            pages_align_bytes: 0,
        }
    }

    fn submit(&mut self, device: DeviceIndex, submission: Submission) -> Result<(), Refused> {
        assert_eq!(device, DeviceIndex(0));
        let end_bytes = submission.offset_bytes + u64::from(submission.length_bytes);
        assert!(end_bytes <= self.store.len() as u64, "{submission:?} ends past the device");
        if self.staged_max > 0 && self.staged.len() >= self.staged_max {
            self.refused = true;
            return Err(Refused::TenantFull(submission));
        }
        self.staged.push_back(submission);
        Ok(())
    }

    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Receive { buffer, start, end, user, .. } => {
                assert!(start < end && end <= buffer.capacity_bytes());
                let before = self.receive.replace(Receive { buffer, start, end, user });
                assert!(before.is_none(), "two receives at once");
            }
            Ask::Send { parts, descriptors, user, .. } => {
                assert!(parts.iter().all(|part| !part.as_slice().is_empty()), "sends nothing");
                self.passed.extend(descriptors);
                let before = self.send.replace((parts, user));
                assert!(before.is_none(), "two sends at once");
            }
            Ask::Accept { .. } => self.accepts += 1,
            Ask::Signal { user, .. } => self.signals.push_back(user),
            Ask::Poll { user, .. } | Ask::Count { user, .. } => self.waits.push(user),
            Ask::Timer { at_ns, user } => self.timers.push((at_ns, user)),
            Ask::Command { command, user } => self.commands.push((command, user)),
            Ask::Attach { make } => self.attached.push(make),
            Ask::Shutdown { .. } => self.shut_down = true,
            // Operations here end when the test says so.
            Ask::Interrupt => {}
        }
    }

    fn take_back(&mut self, user: u32) {
        self.waits.retain(|other| *other != user);
    }

    fn withdraw(&mut self) {
        self.withdrawals += 1;
    }

    fn cap_by(&mut self, caps: &Arc<Caps>) {
        self.caps = Some(caps.clone());
    }
}

/// A client of the connection under test, and the world around both.
pub struct Peer<C> {
    pub client: C,
    pub fake: Fake,
    /// Bytes sent by the peer, not yet received.
    pub incoming: VecDeque<u8>,
    /// Descriptors that come with the next bytes.
    pub incoming_descriptors: Vec<OwnedFd>,
    /// The peer sends no more.
    pub ended: bool,
    /// The peer reads all bytes that it is sent.
    pub reads: bool,
    /// The device works.
    pub executes: bool,
    /// Status of the device's answers.
    pub status: Status,
    /// At most so many bytes come with one receive.
    pub piece_bytes: usize,
    /// Bytes that the peer has read.
    pub read: Vec<u8>,
    /// Sends that ended.
    pub sends: usize,
    /// Timers that are due come in the next turn. False: only when a test lets time pass.
    pub has_turns: bool,
}

impl<C: Client> Peer<C> {
    /// Starts `client` on a device of `store_bytes` zero bytes.
    pub fn new(client: C, store_bytes: usize) -> Peer<C> {
        let fake = Fake { store: vec![0; store_bytes], ..Fake::default() };
        let mut peer = Peer {
            client,
            fake,
            incoming: VecDeque::new(),
            incoming_descriptors: Vec::new(),
            ended: false,
            reads: true,
            executes: true,
            status: Status::Ok,
            piece_bytes: usize::MAX,
            read: Vec::new(),
            sends: 0,
            has_turns: false,
        };
        peer.client.start(&mut peer.fake);
        peer.client.turn_end(&mut peer.fake);
        peer.run();
        peer
    }

    /// Sends `bytes` and lets everything happen that can.
    pub fn say(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
        self.run();
    }

    /// Sends `bytes` and returns the answer, behind the bytes that were not read before.
    pub fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.say(bytes);
        std::mem::take(&mut self.read)
    }

    /// Ends the peer's half.
    pub fn end(&mut self) {
        self.ended = true;
        self.run();
    }

    /// Time passes: timers that are due by then come.
    pub fn pass_ns(&mut self, ns: u64) {
        let now_ns = self.fake.now_ns + ns;
        self.fake.now_ns = now_ns;
        self.tell_time();
        self.run();
    }

    /// Timers that are due come, each in a turn. False: none was.
    fn tell_time(&mut self) -> bool {
        let now_ns = self.fake.now_ns;
        let due: Vec<(u64, u32)> = self.fake.timers.extract_if(.., |(at_ns, _)| *at_ns <= now_ns).collect();
        for (_, user) in &due {
            self.client.event(&mut self.fake, Event::Timer { user: *user });
            self.client.turn_end(&mut self.fake);
        }
        !due.is_empty()
    }

    /// The engine drains.
    pub fn drain(&mut self) {
        self.client.drain(&mut self.fake);
        self.client.turn_end(&mut self.fake);
        self.run();
    }

    /// The worker may drop the client.
    pub fn gone(&self) -> bool {
        let idle = self.fake.receive.is_none() && self.fake.send.is_none() && self.fake.staged.is_empty();
        self.client.is_done() && idle
    }

    /// Turns the worker's loop until nothing more happens.
    pub fn run(&mut self) {
        while self.turn() {}
    }

    /// One turn of the worker. False: nothing happened.
    pub fn turn(&mut self) -> bool {
        let told = self.has_turns && self.tell_time();
        let received = self.receive();
        let executed = self.executes && self.execute();
        let sent = self.reads && self.finish_send(Ok(()));
        let signalled = self.finish_signal();
        if received || executed || sent || signalled {
            self.client.turn_end(&mut self.fake);
        }
        told || received || executed || sent || signalled
    }

    fn finish_signal(&mut self) -> bool {
        let Some(user) = self.fake.signals.pop_front() else { return false };
        self.client.event(&mut self.fake, Event::Signalled { user, result: Ok(()) });
        true
    }

    fn receive(&mut self) -> bool {
        let over = self.ended || self.fake.shut_down;
        let Some(receive) = self.fake.receive.take_if(|_| !self.incoming.is_empty() || over) else { return false };
        let Receive { mut buffer, start, end, user } = receive;
        let count = if self.fake.shut_down { 0 } else { self.incoming.len().min(end - start).min(self.piece_bytes) };
        for byte in &mut buffer.as_mut_slice()[start..start + count] {
            *byte = self.incoming.pop_front().expect("counted");
        }
        let descriptors = Descriptors::new(std::mem::take(&mut self.incoming_descriptors), false);
        self.client.event(&mut self.fake, Event::Received { user, buffer, result: Ok(count), descriptors });
        true
    }

    /// Ends the send in flight, if there is one.
    pub fn finish_send(&mut self, result: Result<(), i32>) -> bool {
        let Some((parts, user)) = self.fake.send.take() else { return false };
        let result = if self.fake.shut_down { Err(32) } else { result };
        if result.is_ok() {
            self.read.extend(parts.iter().flat_map(|part| part.as_slice()));
            self.sends += 1;
        }
        self.client.event(&mut self.fake, Event::Sent { user, parts, result });
        true
    }

    /// Executes the requests that are staged now, in order. False: nothing was.
    pub fn execute(&mut self) -> bool {
        self.execute_some(self.fake.staged.len())
    }

    /// Executes the first `count` staged requests.
    pub fn execute_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let submission = self.fake.staged.pop_front().expect("counted");
            let completion = self.executed(submission);
            self.client.completed(&mut self.fake, completion);
        }
        if std::mem::take(&mut self.fake.refused) {
            self.client.room(&mut self.fake);
        }
        count > 0
    }

    fn executed(&mut self, submission: Submission) -> Completion {
        let Submission { op, offset_bytes, length_bytes, fua, mut buffer, cookie, .. } = submission;
        let from = offset_bytes as usize;
        let range = from..from + length_bytes as usize;
        let length = range.len();
        match (op, &mut buffer) {
            _ if self.status != Status::Ok => {}
            (Op::Read, Some(buffer)) => buffer.room(length).copy_from(&self.fake.store[range]),
            (Op::Write, Some(buffer)) => buffer.room(length).copy_to(&mut self.fake.store[range]),
            (Op::Flush, None) => {}
            (Op::Extents, Some(buffer)) => {
                let mut answer = Answer::new(buffer, length_bytes.into());
                for block in self.fake.store[range].chunks(512) {
                    let stored = if block.iter().all(|byte| *byte == 0) { Stored::Hole } else { Stored::Data };
                    answer.push(block.len() as u64, stored);
                }
            }
            (Op::Discard | Op::WriteZeroes { .. } | Op::FastZeroes { .. }, None) => self.fake.store[range].fill(0),
            (op, buffer) => panic!("{op:?} with buffer {buffer:?}"),
        }
        if self.status != Status::Recalled {
            self.fake.executed.push((op, offset_bytes, length_bytes, fua));
        }
        Completion { cookie, status: self.status, op, length_bytes, buffer, queued_ns: 0, device_ns: 0 }
    }
}
