//! One queue and a worker that does what the test says, in virtual time.

use super::super::disk::tests::export;
use super::super::guest::GuestMemory;
use super::super::line::{Seats, bell};
use super::super::poll::{CALM_NS, POLL_NS_LEAST, POLL_NS_MAX};
use super::super::ring::Ring;
use super::super::run::{SHOWN_AT_ONCE, Start};
use super::super::split::tests::{offer, queue as ring_in_memory, read16, write};
use super::super::wire::request;
use super::*;
use crate::fake::Peer;

const SIZE: u16 = 32;

/// A queue that runs on a ring, with what the test needs to play its guest.
struct Rig {
    peer: Peer<Queue>,
    memory: GuestMemory,
    line: Arc<Line>,
    offered: u16,
}

impl Rig {
    fn new() -> Rig {
        let (memory, ring) = ring_in_memory(SIZE, true);
        let bell = Arc::new(bell().unwrap());
        let seat = Arc::new(Seats::default()).take(&bell).unwrap();
        let line = Line::new(bell).unwrap();
        let export = Arc::new(export());
        let about = About {
            number: 1,
            disk: Disk::new(&export),
            export,
            bytes_max: 1 << 20,
            stats: Stats::new(&NAMES),
            log: None,
        };
        let event = || Arc::new(super::super::line::bell().unwrap());
        line.order(Order::Start(Box::new(Start {
            ring: Ring::split(ring, None, false),
            memory: memory.clone(),
            is_writethrough: false,
            kick: event(),
            call: Some(event()),
            error: None,
            log: None,
        })));
        let peer = Peer::new(Queue::new(about, line.clone(), seat), 2 << 20);
        Rig { peer, memory, line, offered: 0 }
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
    rig.line.order(Order::Stop);
    rig.peer.client.event(&mut rig.peer.fake, Event::Counted { user: user::ORDER, result: Ok(1) });
    rig.peer.client.turn_end(&mut rig.peer.fake);
    rig.offer(&[4]);
    assert!(matches!(rig.line.state(), super::super::line::State::Busy { .. }));
    assert!(!rig.peer.fake.waits.contains(&user::KICK), "kicks are no longer its affair");
    rig.peer.executes = true;
    rig.peer.run();
    assert_eq!(rig.line.state(), super::super::line::State::Quiet(2));
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
    rig.line.order(Order::Leave);
    rig.peer.client.event(&mut rig.peer.fake, Event::Counted { user: user::ORDER, result: Ok(1) });
    assert_eq!(rig.peer.fake.staged.len(), 2, "it is handed over without being told of room");
    assert!(!Arc::ptr_eq(rig.peer.fake.caps.as_ref().unwrap(), &caps));
}

fn export_of(rig: &Rig) -> &Export {
    &rig.peer.client.about.export
}

#[test]
fn a_disk_that_grows_is_larger_from_the_next_request_on() {
    let mut rig = Rig::new();
    assert_eq!(rig.peer.client.about.disk.size_bytes(), 1 << 20);
    export_of(&rig).door.resize(2 << 20);
    rig.offer(&[0]);
    rig.kick_after(1);
    assert_eq!(rig.peer.client.about.disk.size_bytes(), 2 << 20);
}
