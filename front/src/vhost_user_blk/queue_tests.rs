//! One queue and a worker that does what the test says, in virtual time.

use super::super::disk::tests::export;
use super::super::guest::GuestMemory;
use super::super::guest::tests::file;
use super::super::inflight::{Areas, SplitArea};
use super::super::poll::{CALM_NS, PARTS};
use super::super::queue_control::{ExclusiveAccess, bell};
use super::super::ring::Ring;
use super::super::run::{SHOWN_AT_ONCE, Start};
use super::super::split::tests::{offer, queue as ring_in_memory, read16, write};
use super::super::wire::request;
use super::*;
use crate::fake::Peer;
use mqfq_blk::client::POLL_NS_MIN;
use std::os::fd::AsFd;

const SIZE: u16 = 32;

/// Longest and shortest while of looks, ns.
const POLL_NS_MAX: u64 = POLL_NS_MIN;
const POLL_NS_LEAST: u64 = POLL_NS_MAX / PARTS;

/// Where tables of descriptors stand, and how far apart.
const TABLES_AT: u64 = 0x40000;
const TABLE_BYTES: u64 = 0x4000;

/// A queue that runs on a ring, with what the test needs to play its guest.
struct Rig {
    peer: Peer<Queue>,
    memory: GuestMemory,
    control: Arc<QueueControl>,
    offered: u16,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(1 << 20, false)
    }

    /// May hold `bytes_max` of payloads.
    fn with(bytes_max: u64, is_writethrough: bool) -> Rig {
        Rig::on(bytes_max, is_writethrough, None)
    }

    fn on(bytes_max: u64, is_writethrough: bool, area: Option<SplitArea>) -> Rig {
        let (memory, ring) = ring_in_memory(SIZE, true);
        let bell = Arc::new(bell().unwrap());
        let exclusive = Arc::new(ExclusiveAccess::default()).take(&bell).unwrap();
        let control = QueueControl::new(bell).unwrap();
        let export = Arc::new(export());
        let about =
            About { number: 1, disk: Disk::new(&export), export, bytes_max, stats: Stats::new(&NAMES), log: None };
        let event = || Arc::new(super::super::queue_control::bell().unwrap().into());
        control.order(Order::Start(Box::new(Start {
            ring: Ring::new(ring, area, true),
            memory: memory.clone(),
            is_writethrough,
            kick: event(),
            call: Some(event()),
            error: None,
            log: None,
        })));
        let peer = Peer::new(Queue::new(about, control.clone(), exclusive), 2 << 20);
        Rig { peer, memory, control, offered: 0 }
    }

    /// Offers a flush under each of these heads, which are even.
    fn offer(&mut self, heads: &[u16]) {
        for head in heads {
            let (at, header) = (u64::from(*head) * 16, 0x20000 + u64::from(*head) * 64);
            write(&self.memory, header, &[&request::FLUSH.to_le_bytes()[..], &[0; 12], &[0xff]].concat());
            let descriptor = |addr: u64, length: u32, flags: u16| {
                let next = (head + 1).to_le_bytes();
                [&addr.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next].concat()
            };
            write(&self.memory, at, &[descriptor(header, 16, 1), descriptor(header + 16, 1, 2)].concat());
        }
        offer(&self.memory, SIZE, self.offered, heads);
        self.offered = self.offered.wrapping_add(heads.len() as u16);
    }

    /// Offers a request of `kind` with its header, `data` and status in an indirect table: (address, bytes, flags).
    fn offer_many(&mut self, head: u16, header: &[u8], data: &[(u64, u32, u16)]) {
        let header_at = 0x20000 + u64::from(head) * 64;
        write(&self.memory, header_at, &[header, &[0xff]].concat());
        let mut table = vec![(header_at, header.len() as u32, 1)];
        table.extend(data.iter().map(|(at, length, flags)| (*at, *length, flags | 1)));
        table.push((header_at + header.len() as u64, 1, 2));
        let bytes: Vec<u8> = (1u16..)
            .zip(&table)
            .flat_map(|(next, (at, length, flags))| {
                [&at.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
            })
            .collect();
        let table_at = TABLES_AT + u64::from(head) * TABLE_BYTES;
        write(&self.memory, table_at, &bytes);
        let indirect = [&table_at.to_le_bytes()[..], &(bytes.len() as u32).to_le_bytes(), &[4, 0, 0, 0]].concat();
        write(&self.memory, u64::from(head) * 16, &indirect);
        offer(&self.memory, SIZE, self.offered, &[head]);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Capacity that the heads of its ring have for spans.
    fn spans_kept(&self) -> usize {
        let run = self.peer.client.run.as_ref().unwrap();
        run.requests.iter().map(|request| request.spans.capacity()).max().unwrap()
    }

    fn held_bytes(&self) -> u64 {
        self.peer.client.account.held_bytes()
    }

    /// The guest kicks `ns` after whatever was last.
    fn kick_after(&mut self, ns: u64) {
        self.peer.fake.now_ns += ns;
        self.peer.fake.waits.retain(|wait| *wait != user::KICK);
        self.peer.client.event(&mut self.peer.fake, Event::Counted { user: user::KICK, result: Ok(1) });
        self.peer.client.turn_end(&mut self.peer.fake);
        self.peer.run();
    }

    /// Ends that the guest sees.
    fn used(&self) -> u16 {
        read16(&self.memory, 0x8002)
    }

    /// The head of which a kick is wanted.
    fn kick_event(&self) -> u16 {
        read16(&self.memory, 0x8004 + u64::from(SIZE) * 8)
    }

    fn is_looking(&self) -> bool {
        self.peer.fake.timers.iter().any(|(_, user)| *user == user::POLL)
    }

    /// Lets so much time pass in looks. True: it looks on.
    fn look_for(&mut self, ns: u64) -> bool {
        for _ in 0..ns / 1_000 {
            self.peer.pass_ns(1_000);
        }
        self.is_looking()
    }

    /// Lets time pass in looks of `step_ns` until it looks no more; how long that took.
    fn look_until_quiet(&mut self, step_ns: u64) -> u64 {
        let mut passed_ns = 0;
        while self.is_looking() {
            assert!(passed_ns <= 2 * POLL_NS_MAX, "an idle guest is looked at for ever");
            self.peer.pass_ns(step_ns);
            passed_ns += step_ns;
        }
        passed_ns
    }
}

#[test]
fn a_guest_that_kicks_seldom_is_not_looked_at() {
    let mut rig = Rig::new();
    for round in 0..10 {
        rig.offer(&[0]);
        rig.kick_after(POLL_NS_MAX + 1);
        assert_eq!((rig.used(), rig.kick_event()), (round + 1, round + 1), "asks for a kick at the next head");
        assert!(!rig.is_looking());
    }
}

#[test]
fn a_guest_that_answers_soon_is_looked_at_instead_of_kicking_until_it_pauses() {
    let mut rig = Rig::new();
    let answer_ns = POLL_NS_LEAST * 3;
    let mut kicks = 0;
    for _ in 0..4 {
        rig.offer(&[2]);
        rig.kick_after(answer_ns);
        kicks += 1;
        if rig.is_looking() && rig.look_for(answer_ns) {
            break;
        }
    }
    assert_eq!(kicks, 3, "6, 12 and then 25 us, within which the next answer comes");
    for _ in 0..10 {
        let used = rig.used();
        rig.offer(&[4]);
        rig.peer.pass_ns(1_000);
        assert_eq!(rig.used(), used + 1, "found without a kick");
        assert!(rig.look_for(answer_ns));
    }
    let quiet_ns = rig.look_until_quiet(1_000);
    assert!((POLL_NS_LEAST..=POLL_NS_MAX + 1_000).contains(&quiet_ns), "{quiet_ns} ns");
    assert_eq!(rig.kick_event(), rig.offered, "and then a kick is asked for");
    // Nothing comes any more: no looks, and none after the kick that ends the pause.
    rig.peer.pass_ns(1_000_000_000);
    assert!(!rig.is_looking());
    rig.offer(&[6]);
    rig.kick_after(1);
    assert!(!rig.is_looking());
}

#[test]
fn looks_that_bring_nothing_for_long_are_given_up_for_a_while() {
    let mut rig = Rig::new();
    // The guest answers after each while has passed, as one does that waits for our processor.
    for _ in 0..5 {
        rig.look_until_quiet(1_000);
        rig.offer(&[0]);
        rig.kick_after(1_000);
    }
    assert!(!rig.is_looking(), "6, 12, 25 and 50 us brought nothing");
    for _ in 0..CALM_NS / POLL_NS_MAX - 1 {
        rig.offer(&[0]);
        rig.kick_after(POLL_NS_MAX - 1_000);
        assert!(!rig.is_looking());
    }
    for _ in 0..3 {
        rig.offer(&[0]);
        rig.kick_after(POLL_NS_MAX - 1_000);
    }
    assert!(rig.is_looking(), "and are tried again");
}

#[test]
fn the_answer_to_an_end_is_looked_for_however_long_the_request_took() {
    let mut rig = Rig::new();
    for _ in 0..6 {
        rig.offer(&[0]);
        rig.kick_after(POLL_NS_LEAST / 2);
    }
    rig.peer.executes = false;
    rig.offer(&[2]);
    rig.peer.pass_ns(1_000);
    rig.look_until_quiet(1_000);
    rig.peer.pass_ns(1_000_000);
    rig.peer.executes = true;
    rig.peer.run();
    assert!(rig.is_looking());
    let used = rig.used();
    rig.offer(&[4]);
    rig.peer.pass_ns(1_000);
    assert_eq!(rig.used(), used + 1, "without a kick");
}

#[test]
fn the_first_of_many_ends_are_shown_before_the_turn_is_over() {
    let mut rig = Rig::new();
    rig.peer.executes = false;
    rig.offer(&[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
    rig.kick_after(1);
    rig.peer.execute_some(10);
    assert_eq!(usize::from(rig.used()), SHOWN_AT_ONCE);
    rig.peer.client.turn_end(&mut rig.peer.fake);
    assert_eq!(rig.used(), 10);
}

#[test]
fn a_turn_takes_16_heads_and_the_next_one_those_behind_them_without_a_kick_and_all_while_flows_compete() {
    for (is_contended, taken) in [(false, 16), (true, 24)] {
        let mut rig = Rig::new();
        (rig.peer.executes, rig.peer.fake.is_contended) = (false, is_contended);
        (0..24).for_each(|head| rig.offer_many(head, &header(request::FLUSH, 0), &[]));
        rig.kick_after(1);
        assert_eq!(rig.peer.fake.staged.len(), taken);
        rig.peer.pass_ns(0);
        assert_eq!(rig.peer.fake.staged.len(), 24);
    }
}

#[test]
fn a_tenant_without_room_leaves_its_heads_in_the_ring_and_gets_each_done_later() {
    let mut rig = Rig::new();
    (rig.peer.fake.staged_max, rig.peer.executes) = (1, false);
    rig.offer(&[0, 2, 4, 6]);
    rig.kick_after(1);
    assert_eq!(rig.peer.fake.staged.len(), 1);
    for ended in 1..=4 {
        assert_eq!(rig.used(), ended - 1);
        rig.peer.execute_some(1);
        rig.peer.client.turn_end(&mut rig.peer.fake);
    }
    assert_eq!(rig.used(), 4);
}

#[test]
fn a_ring_that_stops_ends_what_it_took_and_says_where_it_is() {
    let mut rig = Rig::new();
    rig.peer.executes = false;
    rig.offer(&[0, 2]);
    rig.kick_after(1);
    rig.control.order(Order::Stop);
    rig.peer.client.event(&mut rig.peer.fake, Event::Counted { user: user::ORDER, result: Ok(1) });
    rig.peer.client.turn_end(&mut rig.peer.fake);
    rig.offer(&[4]);
    assert!(matches!(rig.control.state(), super::super::queue_control::State::Busy { .. }));
    assert!(!rig.peer.fake.waits.contains(&user::KICK), "kicks are no longer its affair");
    rig.peer.executes = true;
    rig.peer.run();
    assert_eq!(rig.control.state(), super::super::queue_control::State::Quiet(2));
    assert_eq!(rig.used(), 2, "the third is not taken");
}

#[test]
fn a_queue_that_leaves_waits_for_no_cap() {
    let mut rig = Rig::new();
    let caps = rig.peer.fake.caps.clone().expect("it said what its requests pass");
    assert!(Arc::ptr_eq(&caps, &export_of(&rig).caps));
    (rig.peer.fake.staged_max, rig.peer.executes) = (1, false);
    rig.offer(&[0, 2]);
    rig.kick_after(1);
    assert_eq!(rig.peer.fake.staged.len(), 1, "the other waits as for a cap");
    rig.peer.fake.staged_max = 0;
    rig.control.order(Order::Leave);
    rig.peer.client.event(&mut rig.peer.fake, Event::Counted { user: user::ORDER, result: Ok(1) });
    assert_eq!(rig.peer.fake.staged.len(), 2, "it is handed over without being told of room");
    assert!(!Arc::ptr_eq(rig.peer.fake.caps.as_ref().unwrap(), &caps));
}

#[test]
fn what_waits_of_a_front_end_that_has_gone_is_given_up_and_left_for_its_next_session() {
    let file = file(4096);
    let memory = mqfq_blk::foreign::ForeignMemory::map(file.as_fd(), 0, 4096).unwrap();
    let areas = Areas::new(memory, 0, 1, SIZE).unwrap();
    for has_area in [true, false] {
        let mut rig = Rig::on(1 << 20, false, areas.queue(0, SIZE).unwrap().filter(|_| has_area));
        (rig.peer.fake.staged_max, rig.peer.executes) = (3, false);
        rig.offer(&[0, 2, 4, 6]);
        rig.kick_after(1);
        assert_eq!(rig.peer.fake.staged.len(), 3, "the fourth waits for room");
        rig.control.order(Order::GiveUp);
        rig.peer.fake.staged_max = 0;
        rig.peer.client.event(&mut rig.peer.fake, Event::Counted { user: user::ORDER, result: Ok(1) });
        assert_eq!(rig.peer.fake.withdrawals, usize::from(has_area));
        rig.peer.execute_some(1);
        if has_area {
            rig.peer.status = Status::Recalled;
            rig.peer.execute_some(2);
        } else {
            rig.peer.execute_some(3);
        }
        rig.peer.client.turn_end(&mut rig.peer.fake);
        assert!(rig.peer.client.is_done());
        assert_eq!(rig.used(), if has_area { 1 } else { 4 }, "what was on the device is shown");
        if has_area {
            let left = areas.queue(0, SIZE).unwrap().unwrap().take_over(rig.used());
            assert_eq!(left.expect("there was a session"), [2, 4, 6]);
        }
    }
}

fn export_of(rig: &Rig) -> &Export {
    &rig.peer.client.about.export
}

#[test]
fn a_disk_that_grows_is_larger_from_the_next_request_on() {
    let mut rig = Rig::new();
    assert_eq!(rig.peer.client.about.disk.size_bytes(), 1 << 20);
    export_of(&rig).state.resize(2 << 20);
    rig.offer(&[0]);
    rig.kick_after(1);
    assert_eq!(rig.peer.client.about.disk.size_bytes(), 2 << 20);
}

/// A header: a kind and a sector.
fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// `count` places of `bytes` for the device to write, of which no two are neighbours.
fn places(count: u64, bytes: u32) -> Vec<(u64, u32, u16)> {
    (0..count).map(|place| (0x30000 + place * 2 * u64::from(bytes), bytes, 2)).collect()
}

#[test]
fn what_many_places_of_a_request_take_is_given_back_with_its_end() {
    let mut rig = Rig::new();
    for head in 0..SIZE {
        rig.offer_many(head, &header(request::GET_ID, 0), &places(800, 1));
    }
    rig.kick_after(1);
    for _ in 0..SIZE {
        assert!(rig.held_bytes() <= u64::from(SIZE) * 800 * size_of::<Span>() as u64);
        rig.peer.pass_ns(1);
    }
    assert_eq!(rig.used(), SIZE);
    assert!(rig.spans_kept() <= 8, "{} spans are kept for a head", rig.spans_kept());
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn requests_in_many_places_wait_where_their_tenant_has_no_memory_for_those() {
    // Two requests' lists of 64 places.
    let list_bytes = 64 * size_of::<Span>() as u64;
    let mut rig = Rig::with(2 * list_bytes, false);
    rig.peer.executes = false;
    for head in 0..6 {
        rig.offer_many(head, &header(request::IN, u64::from(head)), &places(64, 8));
    }
    rig.kick_after(1);
    let mut ended = 0;
    while ended < 6 {
        // Its list, or two and a copy that is always given.
        assert!(rig.held_bytes() <= 2 * list_bytes + Buffer::memory_bytes(512), "{} bytes", rig.held_bytes());
        assert!(rig.peer.client.run.as_ref().unwrap().waits() == (ended < 5), "after {ended} ends");
        assert!(rig.peer.execute_some(1));
        rig.peer.client.turn_end(&mut rig.peer.fake);
        rig.peer.pass_ns(1_000);
        ended += 1;
        assert_eq!(rig.used(), ended);
    }
    assert_eq!((rig.held_bytes(), rig.spans_kept() <= 8), (0, true));
}

#[test]
fn a_ring_that_breaks_gives_the_memory_of_its_requests_back_when_the_last_has_ended() {
    let mut rig = Rig::new();
    rig.peer.executes = false;
    for head in 0..2 {
        rig.offer_many(head, &header(request::IN, 0), &places(64, 8));
    }
    rig.kick_after(1);
    rig.offer(&[SIZE]);
    rig.kick_after(1);
    // A copy that ends still needs the places that it goes to.
    for left in [2, 1] {
        let copies_bytes = left * Buffer::memory_bytes(512);
        assert_eq!(rig.held_bytes(), 2 * 64 * size_of::<Span>() as u64 + copies_bytes, "{left} are left");
        assert!(rig.peer.execute_some(1));
        rig.peer.client.turn_end(&mut rig.peer.fake);
    }
    assert_eq!((rig.held_bytes(), rig.spans_kept()), (0, 0), "the front-end may leave the ring so for ever");
    assert_eq!(rig.used(), 0, "nothing of a broken ring is shown");
    rig.control.order(Order::Stop);
    rig.peer.client.event(&mut rig.peer.fake, Event::Counted { user: user::ORDER, result: Ok(1) });
    rig.peer.client.turn_end(&mut rig.peer.fake);
    assert!(matches!(rig.control.state(), super::super::queue_control::State::Quiet(_)));
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn each_change_of_a_guest_that_does_not_flush_is_stable_when_it_ends_whichever_way_it_goes() {
    for is_writethrough in [false, true] {
        let mut rig = Rig::with(1 << 20, is_writethrough);
        let data = |at: u64, bytes: u32| (at, bytes, 0);
        // In one place, in one place behind a header of its own, in many places, and two kinds of ranges.
        rig.offer_many(0, &header(request::OUT, 0), &[data(0x30000, 512)]);
        rig.offer_many(1, &header(request::OUT, 8), &[data(0x30000, 256), data(0x30200, 256)]);
        let range = [&8u64.to_le_bytes()[..], &1u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
        write(&rig.memory, 0x38000, &range);
        rig.offer_many(2, &header(request::DISCARD, 0), &[data(0x38000, 16)]);
        rig.offer_many(3, &header(request::WRITE_ZEROES, 0), &[data(0x38000, 16)]);
        rig.offer_many(4, &header(request::IN, 0), &[(0x30000, 512, 2)]);
        rig.offer_many(5, &header(request::FLUSH, 0), &[]);
        rig.kick_after(1);
        let executed: Vec<(Op, bool)> = rig.peer.fake.executed.iter().map(|(op, _, _, fua)| (*op, *fua)).collect();
        let expected = [
            (Op::Write, is_writethrough),
            (Op::Write, is_writethrough),
            (Op::Discard, is_writethrough),
            (Op::WriteZeroes { may_unmap: false }, is_writethrough),
            (Op::Read, false),
            (Op::Flush, false),
        ];
        assert_eq!(executed, expected);
        assert_eq!(rig.used(), 6);
    }
}

/// Each way of a request that waits for room: whole, whole behind a copy of its header, in copies, and as a range. None
/// of them is handed over once its disk is shorter or read-only.
#[test]
fn what_waits_for_room_is_refused_where_its_disk_has_become_shorter_or_read_only() {
    for is_shorter in [true, false] {
        let mut rig = Rig::new();
        (rig.peer.fake.staged_max, rig.peer.executes) = (1, false);
        rig.offer(&[0]);
        let range = [&8u64.to_le_bytes()[..], &1u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
        write(&rig.memory, 0x38000, &range);
        let (one, two) = ([(0x30000, 512, 0)], [(0x30000, 256, 0), (0x30200, 256, 0)]);
        type Spans<'a> = &'a [(u64, u32, u16)];
        let requests: [(u32, u64, Spans<'_>); 5] = [
            (request::OUT, 8, &one),
            (request::OUT, 8, &two),
            (request::DISCARD, 0, &[(0x38000, 16, 0)]),
            (request::WRITE_ZEROES, 0, &[(0x38000, 16, 0)]),
            (request::IN, 8, &[(0x30000, 512, 2)]),
        ];
        let mut executed = 1;
        for (head, (kind, sector, data)) in (2..).zip(requests) {
            // One is on the device, and this one waits.
            rig.offer_many(head, &header(kind, sector), data);
            rig.kick_after(1);
            let state = &export_of(&rig).state;
            if is_shorter {
                state.resize(4096)
            } else {
                state.set_read_only(true)
            }
            let is_served = kind == request::IN && !is_shorter;
            assert!(rig.peer.execute_some(1));
            rig.peer.client.turn_end(&mut rig.peer.fake);
            assert_eq!(rig.peer.fake.staged.len(), usize::from(is_served), "kind {kind}");
            assert!(rig.peer.execute_some(usize::from(is_served)) == is_served);
            rig.peer.client.turn_end(&mut rig.peer.fake);
            executed += usize::from(is_served);
            assert_eq!((rig.peer.fake.executed.len(), rig.held_bytes()), (executed, 0), "kind {kind}");
            assert_eq!(rig.used(), 2 * (head - 1), "kind {kind}: each ends");
            let mut status = [0];
            let status_at = 0x20000 + u64::from(head) * 64 + 16;
            rig.memory.read(&rig.memory.span(status_at, 1).unwrap(), &mut status);
            assert_eq!(status == [0], is_served, "kind {kind}: status {status:?}");
            // All is as before, for the next one.
            let state = &export_of(&rig).state;
            state.resize(1 << 20);
            state.set_read_only(false);
            rig.offer(&[0]);
            rig.kick_after(1);
            executed += 1;
        }
    }
}
