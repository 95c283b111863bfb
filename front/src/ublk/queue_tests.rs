//! A queue against a driver that the tests play: it keeps the driver's rules, and checks that the queue does.

use super::super::device::{About, Order, Recovery};
use super::super::request::tests::export;
use super::*;
use crate::fake::Peer;
use crate::front_end::Ending;
use crate::stats::Stats;
use mqfq_blk::pages::{PLACES, Pages};
use mqfq_testing::random::Random;
use mqfq_testing_devices::solo::rooms;
use mqfq_ublk::abi::op;
use std::sync::{Mutex, mpsc};

const DEPTH: u16 = 4;
const BLOCK: usize = 4096;
const ROOM: usize = 16384;
/// First byte of the export on the device.
const OFFSET: usize = 8192;

/// Owner of a tag.
#[derive(Clone, Debug, PartialEq)]
enum Tag {
    /// It was not fetched.
    Idle,
    /// The driver, for the next request.
    Driver,
    /// The server, with this request.
    Server(Request),
}

#[derive(Clone, Debug, PartialEq)]
struct Request {
    id: u64,
    descriptor: Descriptor,
    /// Bytes of a write.
    bytes: Vec<u8>,
}

type Written = Arc<Mutex<Vec<Descriptor>>>;

impl Describe for Written {
    fn describe(&self, tag: u16) -> Descriptor {
        self.lock().unwrap()[usize::from(tag)]
    }
}

/// The driver, and the block device's users.
struct Driver {
    written: Written,
    tags: Vec<Tag>,
    waiting: VecDeque<Request>,
    /// By request: how it ended, and what was read.
    ended: Vec<(u64, i32, Vec<u8>)>,
    about: Arc<About>,
    orders: mpsc::Receiver<Order>,
    ending: Ending,
    rooms: Arc<CommandFile>,
}

impl Driver {
    fn new(recovery: Recovery) -> Driver {
        let (sender, orders) = mpsc::channel();
        let ending = Ending::default();
        let about = About::new(Arc::new(export()), Stats::new(&NAMES), 1, recovery, ending.clone(), 3, sender);
        Driver {
            written: Arc::new(Mutex::new(vec![Descriptor::default(); DEPTH.into()])),
            tags: vec![Tag::Idle; DEPTH.into()],
            waiting: VecDeque::new(),
            ended: Vec::new(),
            about,
            orders,
            ending,
            rooms: rooms(DEPTH, ROOM),
        }
    }

    fn queue(&mut self) -> Queue<Written> {
        self.rooms = rooms(DEPTH, ROOM);
        let bell = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let (descriptors, file) = (self.written.clone(), self.rooms.clone());
        let parts = Parts { number: 3, depth: DEPTH, descriptors, file, encoded: true, bell, align_bytes: 1 };
        Queue::new(self.about.clone(), parts)
    }

    /// A queue that has fetched, over a device whose bytes are `store`.
    fn serve(&mut self, store: Vec<u8>) -> Peer<Queue<Written>> {
        let queue = self.queue();
        let mut peer = Peer::new(queue, 0);
        peer.fake.store = store;
        self.take(&mut peer);
        assert!(self.tags.iter().all(|tag| *tag == Tag::Driver), "each tag was fetched: {:?}", self.tags);
        peer
    }

    fn ask(&mut self, id: u64, descriptor: Descriptor, bytes: &[u8]) {
        self.waiting.push_back(Request { id, descriptor, bytes: bytes.to_vec() });
    }

    /// Takes what the server gave.
    fn take(&mut self, peer: &mut Peer<Queue<Written>>) {
        for (command, user) in std::mem::take(&mut peer.fake.commands) {
            let bytes = command.bytes();
            let (queue, tag) = (u16::from_ne_bytes([bytes[0], bytes[1]]), u16::from_ne_bytes([bytes[2], bytes[3]]));
            let result = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
            assert_eq!((queue, u32::from(tag), usize::from(tag)), (3, user, command.room));
            let state = &mut self.tags[usize::from(tag)];
            match (command.operation, std::mem::replace(state, Tag::Driver)) {
                (0xc010_7520, Tag::Idle) => {}
                (0xc010_7521, Tag::Server(request)) => {
                    let mut read =
                        vec![0; if request.descriptor.op() == op::READ { result.max(0) as usize } else { 0 }];
                    if !read.is_empty() {
                        let mut buffer = self.rooms.buffer(usize::from(tag), read.len()).expect("it fits");
                        buffer.room(read.len()).copy_to(&mut read);
                    }
                    self.ended.push((request.id, result, read));
                }
                (operation, before) => panic!("command {operation:#x} for tag {tag}, which was {before:?}"),
            }
        }
    }

    /// Hands out what waits, as far as there are tags.
    fn hand_out(&mut self, peer: &mut Peer<Queue<Written>>) {
        for tag in 0..usize::from(DEPTH) {
            if self.tags[tag] != Tag::Driver {
                continue;
            }
            let Some(request) = self.waiting.pop_front() else { return };
            self.written.lock().unwrap()[tag] = request.descriptor;
            if !request.bytes.is_empty() {
                let length = request.bytes.len();
                self.rooms.buffer(tag, length).expect("it fits").room(length).copy_from(&request.bytes);
            }
            self.tags[tag] = Tag::Server(request);
            peer.client.event(&mut peer.fake, Event::Commanded { user: tag as u32, result: io::OK });
        }
    }

    /// Everything happens that can.
    fn run(&mut self, peer: &mut Peer<Queue<Written>>) {
        loop {
            self.take(peer);
            let before = (self.ended.len(), self.waiting.len());
            self.hand_out(peer);
            peer.client.turn_end(&mut peer.fake);
            peer.run();
            self.take(peer);
            if before == (self.ended.len(), self.waiting.len()) {
                return;
            }
        }
    }

    /// The server's process is gone, as the driver sees it: what it had goes to the next one.
    fn killed(&mut self) {
        for tag in self.tags.iter_mut().rev() {
            if let Tag::Server(request) = std::mem::replace(tag, Tag::Idle) {
                self.waiting.push_front(request);
            }
        }
    }

    /// Takes back the tags that it has.
    fn abort(&mut self, peer: &mut Peer<Queue<Written>>) {
        for (tag, state) in self.tags.iter_mut().enumerate().filter(|(_, state)| **state == Tag::Driver) {
            *state = Tag::Idle;
            peer.client.event(&mut peer.fake, Event::Commanded { user: tag as u32, result: io::ABORT });
        }
        peer.client.turn_end(&mut peer.fake);
    }

    fn result(&self, id: u64) -> i32 {
        let results: Vec<i32> = self.ended.iter().filter(|ended| ended.0 == id).map(|ended| ended.1).collect();
        let [result] = results[..] else { panic!("request {id} ended {} times", results.len()) };
        result
    }
}

fn store() -> Vec<u8> {
    vec![0; OFFSET + (1 << 20) + BLOCK]
}

fn of(operation: u8, flags: u32, block: u64, blocks: u32) -> Descriptor {
    Descriptor { op_flags: u32::from(operation) | flags, start_sector: block * 8, sectors: blocks * 8 }
}

#[test]
fn requests_are_executed_at_their_place_and_end_with_what_the_driver_wants_to_hear() {
    let mut driver = Driver::new(Recovery::None);
    let mut peer = driver.serve(store());
    driver.ask(1, of(op::WRITE, op::FUA, 2, 1), &[7; BLOCK]);
    driver.ask(2, of(op::FLUSH, 0, 0, 0), &[]);
    driver.run(&mut peer);
    driver.ask(3, of(op::READ, 0, 1, 3), &[]);
    driver.run(&mut peer);
    driver.ask(4, of(op::DISCARD, 0, 2, 1), &[]);
    driver.ask(5, of(op::WRITE_ZEROES, op::NO_UNMAP, 5, 256 - 5), &[]);
    driver.run(&mut peer);
    assert_eq!([1, 2, 3, 4, 5].map(|id| driver.result(id)), [4096, 0, 12288, 0, 0]);
    let read = &driver.ended.iter().find(|ended| ended.0 == 3).unwrap().2;
    assert!(read[..BLOCK].iter().chain(&read[2 * BLOCK..]).all(|byte| *byte == 0));
    assert_eq!(read[BLOCK..2 * BLOCK], [7; BLOCK]);
    let at = (OFFSET + 2 * BLOCK) as u64;
    assert_eq!(peer.fake.executed[0], (Op::Write, at, 4096, true));
    peer.status = Status::NoSpace;
    driver.ask(6, of(op::WRITE, 0, 0, 1), &[1; BLOCK]);
    driver.run(&mut peer);
    assert_eq!(driver.result(6), -28);
    let counts = driver.about.stats.counts();
    assert_eq!(counts.requests[..3], [("read", 1), ("write", 2), ("flush", 1)]);
    assert_eq!((counts.read_bytes, counts.written_bytes), (12288, 4096));
}

#[test]
fn a_descriptor_that_makes_no_sense_costs_its_request_alone() {
    let mut driver = Driver::new(Recovery::None);
    let mut peer = driver.serve(store());
    let hostile = [
        of(op::WRITE, 0, 256, 1),
        of(op::WRITE, 0, u64::MAX / 8, 1),
        of(op::WRITE, 0, 0, 5),
        of(op::READ, 0, 0, u32::MAX / 8),
        of(op::READ, 0, 0, 0),
        Descriptor { op_flags: 1, sectors: 1, start_sector: 3 },
        Descriptor { op_flags: u32::MAX, sectors: u32::MAX, start_sector: u64::MAX },
        of(13, 0, 0, 1),
    ];
    for (id, descriptor) in (0..).zip(hostile) {
        driver.ask(id, descriptor, &[0xee; BLOCK]);
    }
    driver.run(&mut peer);
    assert!((0..8).all(|id| driver.result(id) < 0), "{:?}", driver.ended);
    assert!(peer.fake.executed.is_empty() && peer.fake.store.iter().all(|byte| *byte == 0));
    let counts = driver.about.stats.counts();
    assert_eq!(counts.broken_rules.iter().map(|(_, times)| times).sum::<u64>(), 8, "{counts:?}");
    driver.ask(9, of(op::READ, 0, 0, 1), &[]);
    driver.run(&mut peer);
    assert_eq!(driver.result(9), 4096, "the queue goes on");
}

#[test]
fn a_device_that_is_stopped_takes_its_queue_with_it_once_its_last_request_has_ended() {
    let mut driver = Driver::new(Recovery::Reissue);
    let mut peer = driver.serve(store());
    peer.executes = false;
    driver.ask(1, of(op::WRITE, 0, 0, 1), &[1; BLOCK]);
    driver.run(&mut peer);
    peer.drain();
    // The export is removed: the block device's last writes are executed.
    driver.ask(2, of(op::WRITE, 0, 1, 1), &[2; BLOCK]);
    driver.run(&mut peer);
    driver.abort(&mut peer);
    assert!(!peer.client.is_done(), "two requests are under way");
    peer.executes = true;
    driver.run(&mut peer);
    assert_eq!([1, 2].map(|id| driver.result(id)), [4096; 2]);
    assert!(!peer.client.is_done());
    driver.abort(&mut peer);
    assert!(peer.client.is_done());
    drop(peer);
    assert_eq!([(); 2].map(|()| driver.orders.try_recv()), [Ok(Order::Vacate), Ok(Order::QueueGone(3))]);
}

/// The first is under way and does not end; the second has no room.
fn two_writes_of_which_one_has_room(driver: &mut Driver, peer: &mut Peer<Queue<Written>>) {
    peer.executes = false;
    peer.fake.staged_max = 1;
    for id in 1..=2 {
        driver.ask(id, of(op::WRITE, 0, id, 1), &[id as u8; BLOCK]);
    }
    driver.run(peer);
}

#[test]
fn what_waits_for_room_is_refused_where_its_device_has_become_shorter_or_read_only() {
    for (is_shorter, refused) in [(true, -28), (false, -22)] {
        let mut driver = Driver::new(Recovery::None);
        let mut peer = driver.serve(store());
        two_writes_of_which_one_has_room(&mut driver, &mut peer);
        let state = &driver.about.export.state;
        if is_shorter {
            state.resize(2 * BLOCK as u64)
        } else {
            state.set_read_only(true)
        }
        // The first was handed over before, and its room is taken by the third.
        driver.ask(3, of(op::READ, 0, 0, 1), &[]);
        peer.executes = true;
        driver.run(&mut peer);
        assert_eq!([1, 2, 3].map(|id| driver.result(id)), [4096, refused, 4096]);
        assert_eq!(peer.fake.executed.len(), 2);
    }
}

#[test]
fn a_server_that_ends_answers_what_it_had_and_leaves_what_comes_to_the_next_one() {
    let mut driver = Driver::new(Recovery::Reissue);
    let mut peer = driver.serve(store());
    two_writes_of_which_one_has_room(&mut driver, &mut peer);
    driver.ending.begin();
    peer.drain();
    driver.ask(3, of(op::WRITE, 0, 3, 1), &[3; BLOCK]);
    driver.run(&mut peer);
    assert!(!peer.client.is_done());
    peer.executes = true;
    driver.run(&mut peer);
    assert!(peer.client.is_done(), "with tags that the driver has");
    assert_eq!(driver.ended, [(1, 4096, vec![])]);
    assert_eq!(peer.fake.executed.len(), 1, "the second had no room, and the third was held");
    assert_eq!(driver.about.stats.counts().own[0], ("held", 1));
    let store = std::mem::take(&mut peer.fake.store);
    drop(peer);
    driver.killed();
    let mut peer = driver.serve(store);
    driver.run(&mut peer);
    assert_eq!([1, 2, 3].map(|id| driver.result(id)), [4096; 3]);
}

#[test]
fn a_pause_holds_requests_and_its_end_begins_them() {
    let mut driver = Driver::new(Recovery::None);
    let mut peer = driver.serve(store());
    peer.client.pause(&mut peer.fake);
    assert!(peer.client.is_paused());
    driver.ask(1, of(op::READ, 0, 0, 1), &[]);
    driver.run(&mut peer);
    assert!(peer.client.is_paused() && driver.ended.is_empty() && peer.fake.staged.is_empty());
    peer.client.resume(&mut peer.fake);
    driver.run(&mut peer);
    assert_eq!(driver.result(1), 4096);
}

#[test]
fn the_end_of_a_drains_grace_ends_a_queue_that_would_wait() {
    let mut driver = Driver::new(Recovery::None);
    let mut peer = driver.serve(store());
    driver.ending.begin();
    peer.drain();
    assert!(!peer.client.is_done(), "the driver has its tags");
    peer.client.event(&mut peer.fake, Event::Counted { user: BELL, result: Err(125) });
    assert!(peer.client.is_done());
}

#[test]
fn an_export_that_is_not_gone_in_time_ends_its_requests_until_the_driver_has_its_tags() {
    let mut driver = Driver::new(Recovery::Reissue);
    let mut peer = driver.serve(store());
    two_writes_of_which_one_has_room(&mut driver, &mut peer);
    peer.drain();
    peer.client.event(&mut peer.fake, Event::Counted { user: BELL, result: Err(125) });
    driver.ask(3, of(op::WRITE, 0, 3, 1), &[3; BLOCK]);
    driver.run(&mut peer);
    assert_eq!([2, 3].map(|id| driver.result(id)), [-5; 2], "it had no room, and it came late");
    assert!(!peer.client.is_done());
    peer.executes = true;
    driver.run(&mut peer);
    assert_eq!((driver.result(1), peer.fake.executed.len()), (4096, 1));
    driver.abort(&mut peer);
    assert!(peer.client.is_done());
}

#[test]
fn a_pause_in_which_every_tag_is_held_is_no_end() {
    let mut driver = Driver::new(Recovery::Reissue);
    let mut peer = driver.serve(store());
    peer.client.pause(&mut peer.fake);
    for id in 0..u64::from(DEPTH) {
        driver.ask(id, of(op::READ, 0, id, 1), &[]);
    }
    driver.run(&mut peer);
    assert!(peer.client.is_paused() && !peer.client.is_done());
    peer.client.resume(&mut peer.fake);
    driver.run(&mut peer);
    assert!((0..u64::from(DEPTH)).all(|id| driver.result(id) == 4096));
}

/// One block, and what it holds if every request on it ended as it should.
struct Model {
    blocks: Vec<u8>,
    /// Blocks with a request that has not ended.
    busy: Vec<Option<u64>>,
}

#[test]
fn every_request_ends_once_and_no_acknowledged_write_is_lost_whenever_the_server_is_killed() {
    const BLOCKS: usize = 16;
    let mut kills = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut driver = Driver::new(Recovery::Reissue);
        let mut model = Model { blocks: vec![0; BLOCKS], busy: vec![None; BLOCKS] };
        let mut asked = Vec::new();
        let mut peer = driver.serve(store());
        for id in 0..400 {
            let block = random.index(BLOCKS);
            if model.busy[block].is_none() {
                let value = random.between(1, 255) as u8;
                let operation = random.of(&[op::READ, op::WRITE, op::WRITE, op::DISCARD]);
                model.busy[block] = Some(id);
                let bytes = if operation == op::WRITE { vec![value; BLOCK] } else { Vec::new() };
                driver.ask(id, of(operation, 0, block as u64, 1), &bytes);
                asked.push((id, block, operation, value));
            }
            peer.executes = random.chance(2);
            peer.fake.staged_max = random.below(3) as usize;
            if !peer.executes && !peer.fake.staged.is_empty() {
                // Some of what is staged is executed, in an order of the device's.
                let one = random.index(peer.fake.staged.len());
                let submission = peer.fake.staged.remove(one).unwrap();
                peer.fake.staged.push_front(submission);
                peer.execute_some(1);
            }
            driver.run(&mut peer);
            if random.chance(20) {
                kills += 1;
                let store = std::mem::take(&mut peer.fake.store);
                // Staged requests are not executed; executed and uncommitted ones are asked for again.
                drop(peer);
                driver.killed();
                peer = driver.serve(store);
            }
            for (id, result, read) in &driver.ended {
                let Some(at) = asked.iter().position(|asked| asked.0 == *id) else { panic!("{id} ended again") };
                let (_, block, operation, value) = asked.swap_remove(at);
                model.busy[block] = None;
                match operation {
                    op::READ => assert!(*read == vec![model.blocks[block]; BLOCK], "request {id}, seed {seed}"),
                    op::WRITE => model.blocks[block] = value,
                    _ => model.blocks[block] = 0,
                }
                assert!(*result >= 0);
            }
            driver.ended.clear();
        }
    }
    assert!(kills > 400, "{kills}");
}

#[test]
fn a_queue_whose_payloads_stay_in_the_kernel_names_its_own_places_and_gives_none_back_that_may_be_in_use() {
    let pages = Pages::take(8, PLACES).unwrap();
    let numbers: Vec<u16> = (0..8).map(|at| pages.number(at)).collect();
    let mut driver = Driver::new(Recovery::Reissue);
    let mut queue = driver.queue();
    let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    // The second of two queues.
    queue.parts.file = CommandFile::of_pages(null, pages, DEPTH, ROOM);
    queue.parts.align_bytes = 4096;
    let mut peer = Peer::new(queue, 0);
    peer.executes = false;
    peer.fake.store = store();
    let fetched = std::mem::take(&mut peer.fake.commands);
    let places: Vec<u16> = fetched.iter().map(|(command, _)| command.parts().1.unwrap()).collect();
    assert_eq!(places, numbers[4..]);
    assert!(fetched.iter().all(|(command, _)| command.bytes()[8..] == [0; 8]), "the driver is given no address");
    drop(fetched);
    driver.written.lock().unwrap()[2] = of(op::WRITE, op::FUA, 1, 2);
    peer.client.event(&mut peer.fake, Event::Commanded { user: 2, result: io::OK });
    let [submission] = peer.fake.staged.make_contiguous() else { panic!("one request") };
    let buffer = submission.buffer.as_ref().unwrap();
    assert_eq!((buffer.pages().unwrap().place, buffer.capacity_bytes()), (numbers[6], 2 * BLOCK));
    peer.fake.staged.clear();
    // It goes while the driver has tags, and one request has not ended: its pages may be at their place for long.
    drop(peer);
    let later: Vec<Arc<Pages>> = (0..64).map(|_| Pages::take(8, PLACES).unwrap()).collect();
    assert!(later.iter().all(|pages| (0..8).all(|at| !numbers.contains(&pages.number(at)))));
}
