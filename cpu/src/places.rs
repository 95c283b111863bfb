//! Which program does a cgroup belong to, where there are more cgroups than places?
//!
//! The reference of `cpu/scx/bpf/slots.h`: the kernel's scheduler has a table of programs of a fixed length.
//!
//! # The rule
//! A new cgroup gets a place if its parent has one, a place is free, and the parent and each cgroup above it have fewer
//! places below them than their *room*. The root's room is the whole table; that of another cgroup is three quarters of
//! its parent's. A cgroup without a place is part of the program of the nearest cgroup above it that has one.
//!
//! # What follows
//! A user who may make cgroups below `a` uses at most three quarters of the places of its parent, so a quarter is left
//! to the cgroups beside `a`. A cgroup beyond the room adds to no program's share but `a`'s own.
//!
//! # Cost
//! Linear in the depth.

/// A cgroup, by its number; the root is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CgroupId(pub u32);

/// Cgroups and their places.
#[derive(Clone, Debug)]
pub struct Places {
    cgroups: Vec<Cgroup>,
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Cgroup {
    parent: Option<CgroupId>,
    place: Option<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Places below it, and the most that there may be.
    below: u32,
    room: u32,
}

impl Places {
    /// The root alone, with one of `count` places. `kept` of the others are for programs that are not cgroups.
    pub fn new(count: u32, kept: u32) -> Places {
        let root = Cgroup { parent: None, place: Some(Place { below: 0, room: count }) };
        Places { cgroups: vec![root], free: count.saturating_sub(1 + kept) }
    }

    fn above(&self, from: Option<CgroupId>) -> impl Iterator<Item = CgroupId> {
        std::iter::successors(from, |cgroup| self.cgroups[cgroup.0 as usize].parent)
    }

    fn place(&self, cgroup: CgroupId) -> Option<Place> {
        self.cgroups[cgroup.0 as usize].place
    }

    fn count(&mut self, from: Option<CgroupId>, by: i32) {
        for cgroup in self.above(from).collect::<Vec<_>>() {
            if let Some(place) = &mut self.cgroups[cgroup.0 as usize].place {
                place.below = place.below.wrapping_add_signed(by);
            }
        }
    }

    /// Makes a cgroup, with a place if there is room for one.
    pub fn make(&mut self, parent: CgroupId) -> CgroupId {
        let has_room = |above: CgroupId| self.place(above).is_some_and(|place| place.below < place.room);
        let room = self.place(parent).map_or(0, |place| place.room / 4 * 3);
        let place = (self.free > 0 && self.above(Some(parent)).all(has_room)).then_some(Place { below: 0, room });
        if place.is_some() {
            self.free -= 1;
            self.count(Some(parent), 1);
        }
        self.cgroups.push(Cgroup { parent: Some(parent), place });
        CgroupId(self.cgroups.len() as u32 - 1)
    }

    /// Removes a cgroup that has none below it and is not the root. Its place is free again.
    pub fn remove(&mut self, cgroup: CgroupId) {
        let at = &mut self.cgroups[cgroup.0 as usize];
        let parent = at.parent;
        if at.place.take().is_some() {
            self.free += 1;
            self.count(parent, -1);
        }
    }

    /// The cgroup of whose program it is part: itself if it has a place.
    pub fn program_of(&self, cgroup: CgroupId) -> CgroupId {
        self.above(Some(cgroup)).find(|above| self.place(*above).is_some()).unwrap_or(CgroupId(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_hand::ByHand;
    use crate::ideal::{Ideal, IdealOptions};
    use crate::scheduler::{Machine, Tasks};
    use mqfq_testing::Random;

    const ROOT: CgroupId = CgroupId(0);

    /// As the kernel's scheduler has them: one is for the kernel's threads.
    fn places() -> Places {
        Places::new(32_768, 1)
    }

    fn make(places: &mut Places, parent: CgroupId, count: usize) -> Vec<CgroupId> {
        (0..count).map(|_| places.make(parent)).collect()
    }

    #[test]
    fn each_of_20_000_cgroups_of_one_parent_is_a_program() {
        let mut places = places();
        let parent = places.make(ROOT);
        let crowd = make(&mut places, parent, 20_000);
        assert!(crowd.iter().all(|cgroup| places.program_of(*cgroup) == *cgroup));
    }

    #[test]
    fn a_cgroup_beyond_the_room_is_in_its_parents_program_and_leaves_others_a_quarter() {
        let mut places = places();
        let (greedy, other) = (places.make(ROOT), places.make(ROOT));
        let inner = places.make(greedy);
        let mut own = |parent, count| {
            let made = make(&mut places, parent, count);
            let (has, rest): (Vec<_>, Vec<_>) = made.iter().partition(|cgroup| places.program_of(**cgroup) == **cgroup);
            // All of the rest are in one program: the parent's.
            assert!(rest.iter().all(|cgroup| places.program_of(*cgroup) == parent), "below {parent:?}");
            has.len()
        };
        // Three quarters of three quarters, then what is left of three quarters.
        assert_eq!(own(inner, 40_000), 18_432);
        assert_eq!(own(greedy, 40_000), 24_576 - 18_432 - 1);
        assert_eq!(own(other, 5_000), 5_000);
        let below = places.make(inner);
        let nested = places.make(below);
        assert_eq!((places.program_of(below), places.program_of(nested)), (inner, inner));
    }

    #[test]
    fn places_of_generated_histories_are_counted_and_come_back() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut places = Places::new(64, 1);
            let mut alive = vec![ROOT];
            for _ in 0..2_000 {
                let at = random.scaled(alive.len() as u64) as usize;
                let is_leaf =
                    |of: CgroupId| !alive.iter().any(|cgroup| places.cgroups[cgroup.0 as usize].parent == Some(of));
                if at > 0 && random.scaled(5) < 2 && is_leaf(alive[at]) {
                    places.remove(alive.swap_remove(at));
                } else if alive.len() < 200 {
                    let made = places.make(alive[at]);
                    alive.push(made);
                }
                let with = |of: &&CgroupId| places.place(**of).is_some();
                assert_eq!(places.free, 63 - alive.iter().filter(with).count() as u32);
                for of in alive.iter().filter(with) {
                    let below = alive.iter().filter(with).filter(|each| **each != *of);
                    let below =
                        below.filter(|each| places.above(Some(**each)).any(|above| above == *of)).count() as u32;
                    let place = places.place(*of).unwrap();
                    assert_eq!(place.below, below, "seed {seed}");
                    assert!(below <= place.room);
                }
            }
        }
    }

    #[test]
    fn among_20_000_programs_those_that_run_have_their_shares() {
        // 1000 : 100 : 100 of four cores; the last 100 are those of 20 in a crowd of 20,000, spread over all places.
        let mut tasks = Tasks::default();
        let large = tasks.add_program(1000);
        let mut awake: Vec<_> = (0..4).map(|_| tasks.add_thread(large, None)).collect();
        let small = tasks.add_program(100);
        awake.push(tasks.add_thread(small, None));
        for number in 0..20_000 {
            let program = tasks.add_program(5);
            let thread = tasks.add_thread(program, None);
            if number % 1_000 == 999 {
                awake.push(thread);
            }
        }
        let machine = Machine::new(4, 1).unwrap();
        let options = IdealOptions { quantum_ns: 1_000_000, ..IdealOptions::default() };
        let mut hand = ByHand::new(Ideal::new(&machine, &tasks, options).unwrap(), &machine, &tasks);
        awake.iter().for_each(|thread| hand.wake(*thread));
        hand.run_to(3_000_000_000);
        let part = |threads: &[crate::scheduler::ThreadId]| {
            threads.iter().map(|thread| hand.ran_ns(*thread)).sum::<u64>() as f64 / 12e9
        };
        let found = [part(&awake[..4]), part(&awake[4..5]), part(&awake[5..])];
        for (found, due) in found.into_iter().zip([1000.0 / 1200.0, 100.0 / 1200.0, 100.0 / 1200.0]) {
            assert!((found - due).abs() < 0.03 * due, "{found}, due {due}");
        }
    }
}
