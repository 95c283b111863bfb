//! Which requests of a connection are with the block layer, and how is each found when it ends?

use crate::nbd::large::Large;

/// What a reply needs that a completion does not bring. Two requests may have the same cookie, the client's name for
/// them.
#[derive(Debug)]
pub(super) enum Asked {
    /// Handed over as one.
    Whole { cookie: u64, offset_bytes: u64, fua: bool },
    /// Handed over in pieces.
    Large { cookie: u64, large: Box<Large> },
}

impl Asked {
    pub(super) fn cookie(&self) -> u64 {
        match self {
            Asked::Whole { cookie, .. } | Asked::Large { cookie, .. } => *cookie,
        }
    }
}

/// Requests handed to the block layer, by the names we give them there: places in a list, used again. The name of a
/// piece has its own place, among the pieces of its request, in the upper 32 bits.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    places: Vec<Option<Asked>>,
    free: Vec<u32>,
}

impl UnderWay {
    pub(super) fn insert(&mut self, asked: Asked) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(asked);
                place
            }
            None => {
                self.places.push(Some(asked));
                self.places.len() as u32 - 1
            }
        }
    }

    pub(super) fn peek(&self, place: u32) -> Option<&Asked> {
        self.places.get(place as usize)?.as_ref()
    }

    pub(super) fn get(&mut self, place: u32) -> Option<&mut Asked> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// The large request in a place.
    pub(super) fn large(&mut self, place: u32) -> &mut Large {
        match self.get(place) {
            Some(Asked::Large { large, .. }) => large,
            other => panic!("a large request was in place {place}, not {other:?}"),
        }
    }

    pub(super) fn remove(&mut self, place: u32) -> Asked {
        let asked = self.places.get_mut(place as usize).and_then(Option::take);
        self.free.push(place);
        asked.unwrap_or_else(|| panic!("request {place} was answered twice, or never made"))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }
}
