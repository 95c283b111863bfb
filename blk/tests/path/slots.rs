//! Slots beside a map from every name given out to its value.

use mqfq_blk::slots::{NoPlace, Slot, Slots};
use proptest::prelude::*;
use std::collections::HashMap;

proptest! {
    #[test]
    fn a_name_finds_its_thing_or_nothing(
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200),
    ) {
        const MAX: u32 = 7;
        let mut slots = Slots::new(MAX);
        let mut given: Vec<Slot> = Vec::new();
        let mut there: HashMap<Slot, usize> = HashMap::new();
        for (step, (inserts, index)) in steps.into_iter().enumerate() {
            if inserts {
                match slots.insert(step) {
                    Ok(slot) => {
                        prop_assert!(!given.contains(&slot), "{slot:?} was given out before");
                        given.push(slot);
                        there.insert(slot, step);
                    }
                    Err(NoPlace) => prop_assert_eq!(there.len(), MAX as usize),
                }
            } else if !given.is_empty() {
                let slot = *index.get(&given);
                prop_assert_eq!(slots.remove(slot), there.remove(&slot));
            }
            for slot in &given {
                prop_assert_eq!(slots.get(*slot), there.get(slot));
            }
            prop_assert_eq!(slots.len(), there.len());
            prop_assert!(slots.iter().all(|(slot, thing)| there.get(&slot) == Some(thing)));
            prop_assert!(slots.places() <= MAX as usize);
        }
    }
}
