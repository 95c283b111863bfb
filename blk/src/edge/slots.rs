//! Slots: names that stay valid while other things come and go.
//!
//! Tenants, exports and devices lie in arrays that the data path indexes. A slot is a place in such an array and a
//! generation: how many had the place before. A thing that is removed frees its place; the next thing there has another
//! generation, so an old name finds nothing instead of another thing.
//!
//! ```text
//!   insert a, b, c      a = 0.0   b = 1.0   c = 2.0        place.generation
//!   remove b            a = 0.0             c = 2.0        the others keep their names; 1.0 finds nothing from now on
//!   insert d            a = 0.0   d = 1.1   c = 2.0
//! ```
//!
//! # Invariants
//! S1. A name is given out once. A place whose generations are used up stays empty for good.
//! S2. There are never more things than the maximum given at the beginning, so arrays of that length hold all places.
//! S3. Places are given out from 0 without gaps first, so arrays that grow in blocks need no more than
//!     [`Slots::places`].
//!
//! For the control plane: it allocates, and one thread owns it.

use mqfq_sched::flow::FlowId;
use std::fmt;
use std::ops::{Index, IndexMut};

/// Most places of any [`Slots`]: a place takes 20 bits of a packed name.
pub const PLACES_MAX: u32 = 1 << Slot::PLACE_BITS;

/// Names one thing among its like for ever: its place, and how many had the place before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    const PLACE_BITS: u32 = 20;
    /// Last generation of a place: 12 bits.
    pub const GENERATION_MAX: u32 = u32::MAX >> Slot::PLACE_BITS;

    /// The first name of a place, 0..[`PLACES_MAX`].
    ///
    /// # Panics
    /// If there is no such place.
    pub const fn first(place: u32) -> Slot {
        assert!(place < PLACES_MAX, "a place beyond 2^20");
        Slot(place)
    }

    /// Index into arrays.
    #[inline(always)]
    pub const fn place(self) -> usize {
        (self.0 & (PLACES_MAX - 1)) as usize
    }

    /// Number of things that had the place before, 0..=[`Slot::GENERATION_MAX`].
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        self.0 >> Slot::PLACE_BITS
    }

    /// The name of the next thing in this place. `None`: the place's generations are used up.
    const fn next(self) -> Option<Slot> {
        match self.0.checked_add(PLACES_MAX) {
            Some(packed) => Some(Slot(packed)),
            None => None,
        }
    }
}

/// The data path knows places: a flow's slot is freed when no request of it is left.
impl From<Slot> for FlowId {
    fn from(slot: Slot) -> FlowId {
        FlowId(slot.place() as u32)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place(), self.generation())
    }
}

/// There are as many as there may be, or every place has been used as often as it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPlace;

#[derive(Clone, Debug)]
enum Entry<T> {
    Taken(Slot, T),
    /// Free, with the name that is given out next.
    Free(Slot),
    UsedUp,
}

/// Things by slot.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    entries: Vec<Entry<T>>,
    /// Places that were freed, last freed first, so that a small table stays small.
    free: Vec<u32>,
    max: u32,
    len: u32,
}

impl<T> Slots<T> {
    /// No things yet, at most `max` of them, 1..=[`PLACES_MAX`].
    ///
    /// # Panics
    /// If `max` is out of range.
    pub fn new(max: u32) -> Slots<T> {
        assert!((1..=PLACES_MAX).contains(&max), "{max} places are out of range, allowed is 1 to {PLACES_MAX}");
        Slots { entries: Vec::new(), free: Vec::new(), max, len: 0 }
    }

    /// Gives a name that was never given before.
    ///
    /// # Errors
    /// [`NoPlace`].
    pub fn insert(&mut self, thing: T) -> Result<Slot, NoPlace> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.entries.len() < self.max as usize => {
                let place = self.entries.len() as u32;
                self.entries.push(Entry::Free(Slot::first(place)));
                place
            }
            None => return Err(NoPlace),
        };
        let entry = &mut self.entries[place as usize];
        let Entry::Free(slot) = *entry else { unreachable!("only free places are listed as such") };
        *entry = Entry::Taken(slot, thing);
        self.len += 1;
        Ok(slot)
    }

    /// The name that [`Slots::insert`] would give. `None`: as there.
    pub fn next(&self) -> Option<Slot> {
        match self.free.last() {
            Some(place) => match self.entries[*place as usize] {
                Entry::Free(slot) => Some(slot),
                _ => unreachable!("only free places are listed as such"),
            },
            None => (self.entries.len() < self.max as usize).then(|| Slot::first(self.entries.len() as u32)),
        }
    }

    /// Takes the thing out; its place is given to another. The caller has seen to it that no request of it is left.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get_mut(slot.place())?;
        if !matches!(entry, Entry::Taken(taken, _) if *taken == slot) {
            return None;
        }
        let next = match slot.next() {
            Some(next) => {
                self.free.push(slot.place() as u32);
                Entry::Free(next)
            }
            None => Entry::UsedUp,
        };
        self.len -= 1;
        match std::mem::replace(entry, next) {
            Entry::Taken(_, thing) => Some(thing),
            _ => unreachable!("looked at above"),
        }
    }

    /// Gives a thing a name that [`Slots::insert`] gave in a copy; or gives the name back, in a copy in which nothing
    /// else has the place since.
    ///
    /// # Panics
    /// If something has the place, or another name was given out for it.
    pub fn put(&mut self, slot: Slot, thing: T) {
        while self.entries.len() <= slot.place() {
            let place = self.entries.len() as u32;
            self.entries.push(Entry::Free(Slot::first(place)));
            self.free.push(place);
        }
        let entry = &mut self.entries[slot.place()];
        let next = slot.next();
        match entry {
            Entry::Free(free) if *free == slot || Some(*free) == next => {
                self.free.retain(|place| *place as usize != slot.place());
            }
            Entry::UsedUp if next.is_none() => {}
            _ => panic!("the place of {slot:?} is another's"),
        }
        *entry = Entry::Taken(slot, thing);
        self.len += 1;
    }

    /// Puts `thing` in the place of the one of this name, or takes that one out. Returns the thing that was there.
    ///
    /// # Panics
    /// As [`Slots::put`].
    pub fn exchange(&mut self, slot: Slot, thing: Option<T>) -> Option<T> {
        match (thing, self.get_mut(slot)) {
            (Some(thing), Some(before)) => Some(std::mem::replace(before, thing)),
            (Some(thing), None) => {
                self.put(slot, thing);
                None
            }
            (None, _) => self.remove(slot),
        }
    }

    /// The thing of this name, if it is still there.
    pub fn get(&self, slot: Slot) -> Option<&T> {
        match self.entries.get(slot.place())? {
            Entry::Taken(taken, thing) if *taken == slot => Some(thing),
            _ => None,
        }
    }

    /// The thing of this name, if it is still there, to change it.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        match self.entries.get_mut(slot.place())? {
            Entry::Taken(taken, thing) if *taken == slot => Some(thing),
            _ => None,
        }
    }

    /// All things that are there, by place.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Taken(slot, thing) => Some((*slot, thing)),
            Entry::Free(_) | Entry::UsedUp => None,
        })
    }

    /// All things that are there, by place, without their names.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, thing)| thing)
    }

    /// All things that are there, by place, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Taken(_, thing) => Some(thing),
            Entry::Free(_) | Entry::UsedUp => None,
        })
    }

    /// Number of things.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if there are no things.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Places that were ever given out: an array of this length has room for each.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// Most things that there may be.
    pub fn max(&self) -> u32 {
        self.max
    }
}

impl<T> Index<Slot> for Slots<T> {
    type Output = T;

    /// # Panics
    /// If nothing of this name is there: for names that the caller knows to be in use.
    fn index(&self, slot: Slot) -> &T {
        self.get(slot).unwrap_or_else(|| panic!("nothing is at {slot:?} any more"))
    }
}

impl<T> IndexMut<Slot> for Slots<T> {
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        self.get_mut(slot).unwrap_or_else(|| panic!("nothing is at {slot:?} any more"))
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_renumbered_when_another_goes() {
        let mut slots = Slots::new(8);
        let [a, b, c] = ["a", "b", "c"].map(|name| slots.insert(name).unwrap());
        assert_eq!(slots.remove(b), Some("b"));
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (Some(&"a"), None, Some(&"c")));
        let next = slots.next();
        let d = slots.insert("d").unwrap();
        assert_eq!((next, slots.next().map(Slot::place)), (Some(d), Some(3)));
        assert_eq!(format!("{a:?} {b:?} {c:?} {d:?}"), "0.0 1.0 2.0 1.1");
        assert_eq!((slots.get(b), slots.get(d), slots.places()), (None, Some(&"d"), 3));
        assert_eq!(slots.remove(b), None, "an old name takes nobody along");
        assert_eq!(slots.remove(d), Some("d"));
        slots.put(d, "d again");
        assert_eq!((slots.get(d), slots.len()), (Some(&"d again"), 3));
        assert_eq!(slots.insert("e").map(Slot::place), Ok(3), "nobody is put beside it");
    }

    #[test]
    fn names_that_a_copy_gave_are_had_in_any_order_and_the_places_between_them_stay_free() {
        let mut slots = Slots::new(8);
        let [a, b] = ["a", "b"].map(|name| slots.insert(name).unwrap());
        slots.remove(b).unwrap();
        let mut copy = slots.clone();
        let [c, d, e] = ["c", "d", "e"].map(|name| copy.insert(name).unwrap());
        assert_eq!(format!("{c:?} {d:?} {e:?}"), "1.1 2.0 3.0");
        assert_eq!([slots.exchange(e, Some("e")), slots.exchange(c, Some("c"))], [None, None]);
        assert_eq!(
            [slots.exchange(a, Some("A")), slots.exchange(c, None), slots.exchange(d, None)],
            [Some("a"), Some("c"), None]
        );
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(a, &"A"), (e, &"e")]);
        let more = ["f", "g", "h"].map(|name| slots.insert(name).unwrap());
        assert_eq!((format!("{more:?}"), slots.len()), ("[1.2, 2.0, 4.0]".to_owned(), 5));
    }

    #[test]
    fn a_place_whose_generations_are_used_up_stays_empty() {
        let mut slots = Slots::new(1);
        for generation in 0..=Slot::GENERATION_MAX {
            let slot = slots.insert(()).unwrap();
            assert_eq!((slot.place(), slot.generation()), (0, generation));
            assert_eq!((slots.next(), slots.insert(())), (None, Err(NoPlace)), "one at a time");
            slots.remove(slot).unwrap();
        }
        assert_eq!(slots.insert(()), Err(NoPlace));
        assert!(slots.is_empty());
        // After its last name a place is never used again.
        let mut last = Slot::first(0);
        while let Some(next) = last.next() {
            last = next;
        }
        slots.put(last, ());
        assert_eq!((slots.get(last), slots.len()), (Some(&()), 1));
        slots.remove(last).unwrap();
        assert!(std::panic::catch_unwind(move || slots.put(Slot::first(0), ())).is_err());
    }

    #[test]
    fn a_thing_is_changed_by_its_own_name_alone() {
        let mut slots = Slots::new(3);
        assert_eq!((slots.is_empty(), slots.len(), slots.max(), slots.next()), (true, 0, 3, Some(Slot::first(0))));
        let [a, b] = [1, 2].map(|thing| slots.insert(thing).unwrap());
        slots.remove(a).unwrap();
        let again = slots.insert(10).unwrap();
        slots.values_mut().for_each(|thing| *thing *= 3);
        *slots.get_mut(b).unwrap() += 1;
        slots[again] += 2;
        assert!([a, Slot::first(2)].iter().all(|&old| slots.get_mut(old).is_none()));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(again, &32), (b, &7)]);
        assert_eq!((slots.is_empty(), slots.len(), slots.values().sum::<i32>()), (false, 2, 39));
        slots.insert(0).unwrap();
        assert_eq!((slots.next(), slots.insert(0)), (None, Err(NoPlace)), "there are three");
    }

    #[test]
    #[should_panic(expected = "the place of 0.0 is another's")]
    fn a_name_is_not_given_back_when_another_was_given_out_for_its_place() {
        let mut slots = Slots::new(1);
        let first = slots.insert(()).unwrap();
        slots.remove(first).unwrap();
        let second = slots.insert(()).unwrap();
        slots.remove(second).unwrap();
        slots.put(first, ());
    }

    #[test]
    fn the_last_place_has_a_name() {
        let slot = Slot::first(PLACES_MAX - 1);
        assert_eq!((slot.place(), slot.generation()), (PLACES_MAX as usize - 1, 0));
        assert_eq!(slot.next().map(|slot| (slot.place(), slot.generation())), Some((PLACES_MAX as usize - 1, 1)));
    }
}
