//! Model checks: one named race each. A model's wheel has 4 buckets of one word (see `BUCKETS`).
//!
//! Run: `cargo xtask loom`.

use super::*;
use crate::sync::model::{Arc, model, thread};
use crate::topology::Topology;

const H0: HctxId = HctxId(0);
const H1: HctxId = HctxId(1);

/// Virtual time that hctx 0's lead moves, and a wheel: T = 1023 units, so b = 128.
struct World {
    tree: Mindicator,
    wheel: ThrottleWheel,
}

const WINDOW: u64 = 1023;

impl World {
    fn new() -> Arc<World> {
        let tree = Mindicator::new(&Topology::flat(1), VTime::ZERO);
        let wheel = ThrottleWheel::new(2, VSpan(WINDOW), VTime::ZERO);
        assert_eq!(wheel.slot_span(), VSpan(128));
        Arc::new(World { tree, wheel })
    }

    /// hctx 0 goes to `units`, takes virtual time along and turns the wheel. Returns how often hctx 1 was unthrottled.
    fn advance(&self, units: u64) -> u32 {
        self.tree.publish(H0, VTime::from_raw(units));
        self.turn()
    }

    fn turn(&self) -> u32 {
        let mut unthrottled = 0;
        self.wheel.turn(self.tree.query(), |hctx| {
            assert_eq!(hctx, H1);
            unthrottled += 1;
        });
        unthrottled
    }

    fn throttle(&self, lead: u64) -> Option<WheelSlot> {
        self.wheel.throttle(H1, VTime::from_raw(lead), || self.tree.global_vtime())
    }
}

/// Race: the table in the module's text, both orders. hctx 1 is due at 1279 - 1023 = 256 = slot 2; virtual time goes to
/// 256. Shown to fail without the fence in `throttle` and without the one in `turn`.
#[test]
fn loom_a_place_taken_beside_a_turn_is_not_lost() {
    model(|| {
        let world = World::new();
        let theirs = world.clone();
        let turner = thread::spawn(move || theirs.advance(256));
        let place = world.throttle(256 + WINDOW);
        let unthrottled = turner.join().unwrap();
        assert!(place.is_none() || unthrottled == 1, "hctx 1 waits in {place:?} and nobody will wake it");
    });
}

/// Race: the place is only the last bucket (lead far ahead) and is passed meanwhile: hctx 1 must have a place that
/// virtual time has not reached, or have been unthrottled. Shown to fail if `throttle` returns its place
/// without comparing it with virtual time again.
#[test]
fn loom_a_place_in_the_last_bucket_that_is_passed_is_taken_anew() {
    model(|| {
        let world = World::new();
        let theirs = world.clone();
        // 4 buckets: the last place at virtual time 0 is slot 3 = 384. Virtual time goes to 512 = slot 4.
        let turner = thread::spawn(move || theirs.advance(512));
        let place = world.throttle(10_000 + WINDOW).expect("not due before 10,000");
        let unthrottled = turner.join().unwrap();
        assert!(VTime::from_raw(512).is_before(place.0) || unthrottled == 1, "{place:?}");
    });
}

/// Race: two workers turn, one with an older virtual time. One wake, not two, not none (W2), and the position ends at
/// the later (W3). Shown to fail if the position is moved by a store.
#[test]
fn loom_two_turners_wake_a_queue_once_and_leave_the_later_position() {
    model(|| {
        let world = World::new();
        world.tree.publish(H0, VTime::ZERO);
        world.throttle(256 + WINDOW).expect("not due at 0");
        let turn_to = |world: &World, units| {
            let mut unthrottled = 0;
            world.wheel.turn(VTime::from_raw(units), |_| unthrottled += 1);
            unthrottled
        };
        let theirs = world.clone();
        let other = thread::spawn(move || turn_to(&theirs, 256));
        let ours = turn_to(&world, 384);
        assert_eq!(ours + other.join().unwrap(), 1);
        assert_eq!(world.wheel.position.load(Ordering::Relaxed), 384);
    });
}

/// Race: one worker raises virtual time and is stopped before it turns; another reads the new time and turns in its
/// place. Shown to fail without the fence in `turn`. (It holds whatever the ordering of virtual time itself: the
/// turner's fence comes after a read that saw the raise.)
#[test]
fn loom_a_turner_that_only_read_the_new_virtual_time_loses_nobody() {
    model(|| {
        let world = World::new();
        let raiser = world.clone();
        let raising = thread::spawn(move || {
            raiser.tree.publish(H0, VTime::from_raw(256));
            raiser.tree.query();
        });
        let turner = world.clone();
        let turning = thread::spawn(move || {
            let now = turner.tree.global_vtime();
            let mut unthrottled = false;
            turner.wheel.turn(now, |_| unthrottled = true);
            (now, unthrottled)
        });
        let place = world.throttle(256 + WINDOW);
        raising.join().unwrap();
        let (now, unthrottled) = turning.join().unwrap();
        assert!(place.is_none() || unthrottled || now == VTime::ZERO, "{place:?} was passed");
    });
}

/// Race: two turners, one far behind, beside a queue that takes a place in a bucket that the late one is about to
/// empty. W1 for the new place.
#[test]
fn loom_a_late_turner_does_not_swallow_a_new_place() {
    model(|| {
        let world = World::new();
        world.tree.publish(H0, VTime::from_raw(128));
        let theirs = world.clone();
        let late = thread::spawn(move || theirs.turn());
        // Slot 5 uses bucket 1, the bucket of slot 1 = 128 that the late turner empties.
        let early = world.advance(384);
        let place = world.throttle(640 + WINDOW).expect("not due at 384");
        assert_eq!(place.0.raw(), 640);
        let woken = early + late.join().unwrap() + world.advance(640);
        assert_eq!(woken, 1, "by the late turner for nothing, or in time");
    });
}

/// Race: the owner gives its place up while a turner takes it out: exactly one has it (W2).
#[test]
fn loom_a_withdrawal_beside_a_turn_is_settled_once() {
    model(|| {
        let world = World::new();
        let place = world.throttle(256 + WINDOW).expect("not due at 0");
        let theirs = world.clone();
        let turner = thread::spawn(move || theirs.advance(256));
        let withdrawn = world.wheel.withdraw(H1, place);
        let unthrottled = turner.join().unwrap();
        assert_eq!(u32::from(withdrawn) + unthrottled, 1);
    });
}

/// A wheel for windows of 256 units and more, so b = 128, with T = 512.
fn wheel_of_windows() -> Arc<ThrottleWheel> {
    let wheel = ThrottleWheel::for_windows(2, VSpan(256), VSpan(512), VTime::ZERO);
    assert_eq!(wheel.slot_span(), VSpan(128));
    Arc::new(wheel)
}

/// Race: the second table in the module's text, both orders, for a longer window and a shorter one. hctx 1 has a lead
/// of 1024 and virtual time stands at 0: with T = 512 its slot is that of 512, with T = 768 that of 256, with T = 256
/// the last that there is, that of 384. What it is left with is a place of the new window, or it was unthrottled. Shown
/// to fail without the fence in `throttle`, without the one in `set_window`, if `throttle` does not look at the window
/// again, and if `set_window` empties no bucket.
#[test]
fn loom_a_place_taken_beside_a_change_of_the_window_is_of_the_new_one_or_given_up() {
    for (window, slot) in [(768, 256), (256, 384)] {
        model(move || {
            let wheel = wheel_of_windows();
            let theirs = wheel.clone();
            let setter = thread::spawn(move || {
                let mut unthrottled = 0;
                theirs.set_window(VSpan(window), |_| unthrottled += 1);
                unthrottled
            });
            let place = wheel.throttle(H1, VTime::from_raw(1024), || VTime::ZERO).expect("not due at 0");
            let unthrottled = setter.join().unwrap();
            assert!(unthrottled == 1 || place.0.raw() == slot, "{place:?} with T = {window}");
        });
    }
}

/// Race: a turner and a setter empty the same bucket: one wake (W2).
#[test]
fn loom_a_turn_beside_a_change_of_the_window_wakes_a_queue_once() {
    model(|| {
        let wheel = wheel_of_windows();
        wheel.throttle(H1, VTime::from_raw(768), || VTime::ZERO).expect("not due at 0");
        let theirs = wheel.clone();
        let setter = thread::spawn(move || {
            let mut unthrottled = 0;
            theirs.set_window(VSpan(768), |_| unthrottled += 1);
            unthrottled
        });
        let mut unthrottled = 0;
        wheel.turn(VTime::from_raw(256), |_| unthrottled += 1);
        assert_eq!(unthrottled + setter.join().unwrap(), 1);
    });
}
