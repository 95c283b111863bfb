//! Model checks of the gate: one named race each, every interleaving.
//!
//! Run: `cargo xtask loom`.

use super::*;
use mqfq_sched::sync::model::{Arc as ModelArc, UnsafeCell, model, thread};
use std::sync::atomic::AtomicU32 as Count;
use std::sync::atomic::Ordering::Relaxed as Plain;

/// A gate before two regions, and its members.
struct World {
    gate: Gate,
    members: [Member; 3],
    /// Interrupts of each. Outside the model: they order nothing.
    bells: [Arc<Count>; 3],
    /// Contents of region 0: a patch changes them, a write of whole blocks looks at them. The model checker reports two
    /// accesses without an order.
    bytes: UnsafeCell<u32>,
}

/// Members. A and B meet; C is a third.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

const SHARED_ONLY: bool = false;
const ALONE_ONLY: bool = true;

// SAFETY: only a holder of the region uses the bytes; the model checker checks that.
unsafe impl Sync for World {}

impl World {
    fn new() -> ModelArc<World> {
        let gate = Gate::new(2 * REGION_BYTES_MIN);
        let bells: [Arc<Count>; 3] = Default::default();
        let join = |hctx: usize| {
            let bells = bells.clone();
            gate.join(
                HctxId(hctx as u16),
                Arc::new(move |HctxId(whom)| _ = bells[usize::from(whom)].fetch_add(1, Plain)),
            )
        };
        let members = [join(A), join(B), join(C)];
        ModelArc::new(World { gate, members, bells, bytes: UnsafeCell::new(0) })
    }

    fn hold(&self, region: u64, alone: bool) -> Hold {
        self.gate.hold(region * REGION_BYTES_MIN, 1, alone)
    }

    /// Enters region 0 and uses its bytes, or lines up.
    fn try_use(&self, member: usize, hold: &mut Hold) -> bool {
        let is_in = self.gate.enter(&self.members[member], member as u16, hold);
        if is_in {
            self.use_and_leave(member, hold);
        }
        is_in
    }

    fn use_and_leave(&self, member: usize, hold: &mut Hold) {
        if hold.is_alone() {
            // SAFETY: inside alone; the model checker would say so if not.
            self.bytes.with_mut(|bytes| unsafe { *bytes += 1 });
        } else {
            // SAFETY: inside, and no holder is alone; as above.
            self.bytes.with(|bytes| assert!(unsafe { *bytes } < 9));
        }
        self.gate.leave(&self.members[member], hold);
    }

    /// A waiter was let in: uses the bytes.
    fn use_granted(&self, member: usize, hold: &mut Hold) {
        assert_eq!(self.grants(member), [member as u16], "member {member} waits, and nobody will wake it");
        Gate::granted(hold);
        assert!(self.gate.enter(&self.members[member], member as u16, hold), "of one region it now has all");
        self.use_and_leave(member, hold);
    }

    fn grants(&self, member: usize) -> Vec<u16> {
        let mut out = Vec::new();
        self.gate.take_grants(&self.members[member], &mut out);
        out
    }

    fn rung(&self, member: usize) -> u32 {
        self.bells[member].load(Plain)
    }

    fn assert_free(&self) {
        assert!(self.gate.words.iter().all(|word| word.load(Relaxed) == 0), "somebody is still inside");
        assert!(self.gate.lines().waiting.is_empty());
    }
}

/// Race: G3, both orders. A waiter finds the region free, or is let in and rung by the holder that leaves.
fn leaves_beside_one_that_lines_up(holder: bool, waiter: bool) {
    model(move || {
        let world = World::new();
        let mut held = world.hold(0, holder);
        assert!(world.gate.enter(&world.members[A], 0, &mut held));
        let theirs = world.clone();
        let waiting = thread::spawn(move || {
            let mut hold = theirs.hold(0, waiter);
            let is_in = theirs.try_use(B, &mut hold);
            (is_in, hold)
        });
        world.use_and_leave(A, &mut held);
        let (is_in, mut hold) = waiting.join().unwrap();
        if !is_in {
            world.use_granted(B, &mut hold);
        }
        assert_eq!(world.rung(B), u32::from(!is_in), "who was let in by another is rung, once");
        world.assert_free();
    });
}

#[test]
fn loom_a_patch_that_leaves_beside_a_patch_that_lines_up_lets_it_in() {
    leaves_beside_one_that_lines_up(ALONE_ONLY, ALONE_ONLY);
}

#[test]
fn loom_a_patch_that_leaves_beside_a_write_that_lines_up_lets_it_in() {
    leaves_beside_one_that_lines_up(ALONE_ONLY, SHARED_ONLY);
}

#[test]
fn loom_a_write_that_leaves_beside_a_patch_that_lines_up_lets_it_in() {
    leaves_beside_one_that_lines_up(SHARED_ONLY, ALONE_ONLY);
}

/// Race: each of the last two holders takes the other for the last, or both themselves.
#[test]
fn loom_two_writes_that_leave_together_let_the_patch_in_once() {
    model(|| {
        let world = World::new();
        let (mut mine, mut theirs) = (world.hold(0, SHARED_ONLY), world.hold(0, SHARED_ONLY));
        assert!(world.gate.enter(&world.members[A], 0, &mut mine));
        assert!(world.gate.enter(&world.members[B], 1, &mut theirs));
        let mut patch = world.hold(0, ALONE_ONLY);
        assert!(!world.try_use(C, &mut patch));
        let other = world.clone();
        let leaving = thread::spawn(move || other.use_and_leave(B, &mut theirs));
        world.use_and_leave(A, &mut mine);
        leaving.join().unwrap();
        assert_eq!(world.rung(C), 1);
        world.use_granted(C, &mut patch);
        world.assert_free();
    });
}

/// Race: a region is handed on to a waiter while a third comes. The third enters before or after, never beside.
fn comes_beside_a_grant(comer: bool) {
    model(move || {
        let world = World::new();
        let (mut held, mut next) = (world.hold(0, ALONE_ONLY), world.hold(0, ALONE_ONLY));
        assert!(world.gate.enter(&world.members[A], 0, &mut held));
        assert!(!world.try_use(B, &mut next));
        let theirs = world.clone();
        let third = thread::spawn(move || {
            let mut hold = theirs.hold(0, comer);
            let is_in = theirs.try_use(C, &mut hold);
            (is_in, hold)
        });
        world.use_and_leave(A, &mut held);
        world.use_granted(B, &mut next);
        let (is_in, mut hold) = third.join().unwrap();
        if !is_in {
            world.use_granted(C, &mut hold);
        }
        world.assert_free();
    });
}

#[test]
fn loom_a_patch_that_comes_beside_a_grant_meets_nobody_inside() {
    comes_beside_a_grant(ALONE_ONLY);
}

#[test]
fn loom_a_write_that_comes_beside_a_grant_meets_nobody_inside() {
    comes_beside_a_grant(SHARED_ONLY);
}

/// Race: three come at once, and some of them leave while others line up.
#[test]
fn loom_a_patch_a_write_and_a_patch_that_come_together_take_turns() {
    model(|| {
        let world = World::new();
        let come = |member: usize, alone: bool| {
            let world = world.clone();
            thread::spawn(move || {
                let mut hold = world.hold(0, alone);
                let is_in = world.try_use(member, &mut hold);
                (member, is_in, hold)
            })
        };
        let others = [come(B, SHARED_ONLY), come(C, ALONE_ONLY)];
        let mut mine = world.hold(0, ALONE_ONLY);
        let is_in = world.try_use(A, &mut mine);
        let mut waiting = vec![(A, is_in, mine)];
        waiting.extend(others.map(|other| other.join().unwrap()));
        waiting.retain(|&(_, is_in, _)| !is_in);
        while !waiting.is_empty() {
            let granted =
                waiting.iter().position(|&(member, ..)| world.gate.lines().members[member].granted.len() == 1);
            let (member, _, mut hold) = waiting.remove(granted.expect("somebody waits, and nobody will wake it"));
            world.use_granted(member, &mut hold);
        }
        world.assert_free();
    });
}

/// Race: a grant is noted while its member takes the ones before it. A grant that this look misses the next one brings,
/// and the member is rung for it.
#[test]
fn loom_a_grant_beside_a_look_for_grants_is_not_lost() {
    model(|| {
        let world = World::new();
        let mut held = [world.hold(0, ALONE_ONLY), world.hold(1, ALONE_ONLY)];
        let mut waits = [world.hold(0, ALONE_ONLY), world.hold(1, ALONE_ONLY)];
        for (tag, hold) in (0..).zip(&mut held) {
            assert!(world.gate.enter(&world.members[A], tag, hold));
        }
        for (tag, hold) in (0..).zip(&mut waits) {
            assert!(!world.gate.enter(&world.members[B], tag, hold));
        }
        let theirs = world.clone();
        let looking = thread::spawn(move || theirs.grants(B));
        held.iter_mut().for_each(|hold| world.gate.leave(&world.members[A], hold));
        let mut granted = looking.join().unwrap();
        granted.extend(world.grants(B));
        assert_eq!((granted, world.rung(B)), (vec![0, 1], 2));
    });
}

/// Race: a queue goes away while the region it waits for is handed to it. Either way the one behind it gets its turn.
#[test]
fn loom_a_queue_that_goes_away_beside_its_grant_holds_nobody_up() {
    model(|| {
        let world = World::new();
        let (mut held, mut gone, mut behind) =
            (world.hold(0, ALONE_ONLY), world.hold(0, ALONE_ONLY), world.hold(0, SHARED_ONLY));
        assert!(world.gate.enter(&world.members[A], 0, &mut held));
        assert!(!world.try_use(B, &mut gone));
        assert!(!world.try_use(C, &mut behind));
        let theirs = world.clone();
        let going = thread::spawn(move || {
            let mut granted = Vec::new();
            theirs.gate.withdraw(&theirs.members[B], &mut granted);
            if !granted.is_empty() {
                Gate::granted(&mut gone);
                theirs.use_and_leave(B, &mut gone);
            }
        });
        world.use_and_leave(A, &mut held);
        going.join().unwrap();
        assert_eq!(world.rung(C), 1);
        world.use_granted(C, &mut behind);
        world.assert_free();
    });
}
