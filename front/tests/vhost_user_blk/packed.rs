//! The driver's side of a packed ring, byte by byte: descriptors in the order of the ring, ends wherever they come.
//!
//! What the driver knows outlives servers with the machine's memory.

use crate::guest::{BASE, EVENT_IDX, FLUSH, Guest, IN, INDIRECT, Machine, NEXT, OUT, data_at, request_at};
use crate::server::{Server, ServerOptions};
use mqfq_blk::foreign::ForeignMemory;
use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};

/// The feature.
pub const PACKED: u64 = 1 << 34;

/// Both counters 1, both places 0.
pub const NEW: u32 = 0x8000_8000;

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A descriptor: address, length, flags.
pub type Descriptor = (u64, u32, u16);

#[derive(Clone, Copy, Debug)]
struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    fn step(&mut self, slots: u16, size: u16) {
        self.slot += slots;
        if self.slot >= size {
            (self.slot, self.wrap) = (self.slot - size, !self.wrap);
        }
    }
}

/// What the driver knows of its ring at address 0.
#[derive(Debug)]
pub struct Side {
    avail: Place,
    used: Place,
    /// By id: descriptors that are written, and not offered.
    written: BTreeMap<u16, Vec<Descriptor>>,
    /// By id: slots of what is under way.
    offered: BTreeMap<u16, u16>,
}

impl Default for Side {
    fn default() -> Side {
        let start = Place { slot: 0, wrap: true };
        Side { avail: start, used: start, written: BTreeMap::new(), offered: BTreeMap::new() }
    }
}

impl Side {
    pub fn write(&mut self, id: u16, descriptors: Vec<Descriptor>) {
        self.written.insert(id, descriptors);
    }

    pub fn offer(&mut self, memory: &ForeignMemory, size: u16, id: u16) {
        let descriptors = self.written.remove(&id).expect("it was written");
        let first = self.avail;
        let mut flags_of_first = 0;
        for (number, (at, length, flags)) in descriptors.iter().enumerate() {
            let flags = flags | if self.avail.wrap { AVAIL } else { USED };
            let place = usize::from(self.avail.slot) * 16;
            let bytes = [&(BASE + at).to_le_bytes()[..], &length.to_le_bytes(), &id.to_le_bytes()].concat();
            assert!(memory.copy_from(place, &bytes));
            if number == 0 {
                flags_of_first = flags;
            } else {
                memory.atomic_u16(place + 14).unwrap().store(flags, Ordering::Relaxed);
            }
            self.avail.step(1, size);
        }
        // Release: pairs with the device's acquire.
        memory.atomic_u16(usize::from(first.slot) * 16 + 14).unwrap().store(flags_of_first, Ordering::Release);
        assert!(self.offered.insert(id, descriptors.len() as u16).is_none());
    }

    /// Ids and lengths of what has ended; asks to be woken at the next end.
    pub fn ended(&mut self, memory: &ForeignMemory, size: u16, has_events: bool) -> Vec<(u16, u32)> {
        let mut ends = Vec::new();
        loop {
            while self.has_ended(memory) {
                let mut bytes = [0; 8];
                assert!(memory.copy_to(usize::from(self.used.slot) * 16 + 8, &mut bytes));
                let id = u16::from_le_bytes([bytes[4], bytes[5]]);
                ends.push((id, u32::from_le_bytes(*bytes.first_chunk().unwrap())));
                let slots = self.offered.remove(&id).expect("an end of what is under way, once");
                self.used.step(slots, size);
            }
            let event = |at: usize, value: u16| memory.atomic_u16(0x5000 + at).unwrap().store(value, Ordering::Relaxed);
            event(0, self.used.slot | u16::from(self.used.wrap) << 15);
            event(2, if has_events { 2 } else { 0 });
            fence(Ordering::SeqCst);
            if !self.has_ended(memory) {
                return ends;
            }
        }
    }

    fn has_ended(&self, memory: &ForeignMemory) -> bool {
        let flags = memory.atomic_u16(usize::from(self.used.slot) * 16 + 14).unwrap().load(Ordering::Acquire);
        !self.offered.is_empty() && (flags & AVAIL != 0) == self.used.wrap && (flags & USED != 0) == self.used.wrap
    }
}

#[test]
fn a_packed_ring_does_what_a_split_one_does_for_many_laps() {
    let server = Server::start(ServerOptions::default());
    for mask in [PACKED, PACKED | EVENT_IDX, PACKED | EVENT_IDX | INDIRECT] {
        let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 32, mask);
        for round in 0..40u16 {
            let kind = if round % 2 == 0 { OUT } else { IN };
            let value = |request: u16| (round / 2 * 7 + request) as u8;
            let heads: Vec<u16> = (0..9)
                .map(|request| {
                    let bytes = if kind == OUT { [value(request); 4096] } else { [0; 4096] };
                    guest.machine.write(data_at(request.into()), &bytes);
                    guest.request(0, request, kind, u64::from(request) * 8, 4096)
                })
                .collect();
            guest.offer(0, &heads);
            assert_eq!(guest.wait(0, 9).len(), 9);
            for request in 0..9 {
                assert_eq!(guest.status(request), 0);
                assert!(guest.machine.read(data_at(request.into()), 4096) == [value(request); 4096], "{round}");
            }
        }
        assert_eq!(guest.one(FLUSH, 0, 0), 0);
        if mask & INDIRECT != 0 {
            // Header, data and status in a table of their own.
            let table = request_at(20);
            let entry = |at: u64, length: u32, flags: u16| {
                [&(BASE + at).to_le_bytes()[..], &length.to_le_bytes(), &[0; 2], &flags.to_le_bytes()].concat()
            };
            guest.request(0, 1, IN, 8, 4096);
            let (at, data) = (request_at(1), data_at(1));
            let rest = [entry(at, 16, NEXT), entry(data, 4096, 2), entry(at + 16, 1, 2)].concat();
            guest.machine.write(table, &rest);
            guest.machine.packed.lock().unwrap().write(1, vec![(table, 48, 4)]);
            guest.offer(0, &[3]);
            assert_eq!((guest.wait(0, 1), guest.status(1)), (vec![(3, 4097)], 0));
        }
    }
    server.drain();
}

#[test]
fn a_packed_ring_goes_on_with_another_connection_where_it_was() {
    let server = Server::start(ServerOptions::default());
    let mut machine = Machine::new();
    let mut ended = 0;
    for round in 0..30u16 {
        let mut guest = Guest::attach(&server.socket(0), machine.clone(), 1, 32, PACKED | EVENT_IDX);
        machine = guest.machine.clone();
        ended += guest.ended(0).len();
        while ended < usize::from(round) * 5 {
            ended += guest.wait(0, 1).len();
        }
        assert_eq!(ended, usize::from(round) * 5, "each once");
        let heads: Vec<u16> = (0..5).map(|request| guest.request(0, request, IN, u64::from(request), 512)).collect();
        // Some of them are taken before the front-end is gone.
        guest.offer(0, &heads);
    }
    server.drain();
}
