//! Requests of a connection that are with the block layer, and how each is found when it ends.

use crate::nbd::large::Large;

/// Data that a reply needs and a completion lacks. Two requests may have the same cookie, the client's name for them.
#[derive(Debug)]
pub(super) enum PendingRequest {
    /// A request handed over whole.
    Whole { cookie: u64, offset_bytes: u64, fua: bool },
    /// A request handed over in pieces.
    Large { cookie: u64, large: Box<Large> },
}

impl PendingRequest {
    pub(super) fn cookie(&self) -> u64 {
        match self {
            PendingRequest::Whole { cookie, .. } | PendingRequest::Large { cookie, .. } => *cookie,
        }
    }
}

/// Requests handed to the block layer, by the names we give them there: places in a list, used again. The name of a
/// piece has its own place, among the pieces of its request, in the upper 32 bits.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    places: Vec<Option<PendingRequest>>,
    free: Vec<u32>,
}

impl UnderWay {
    pub(super) fn insert(&mut self, asked: PendingRequest) -> u32 {
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

    pub(super) fn peek(&self, place: u32) -> Option<&PendingRequest> {
        self.places.get(place as usize)?.as_ref()
    }

    pub(super) fn get(&mut self, place: u32) -> Option<&mut PendingRequest> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// The large request in a place.
    pub(super) fn large(&mut self, place: u32) -> &mut Large {
        match self.get(place) {
            Some(PendingRequest::Large { large, .. }) => large,
            other => panic!("a large request was in place {place}, not {other:?}"),
        }
    }

    pub(super) fn remove(&mut self, place: u32) -> PendingRequest {
        let asked = self.places.get_mut(place as usize).and_then(Option::take);
        self.free.push(place);
        asked.unwrap_or_else(|| panic!("request {place} was answered twice, or never made"))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }
}
