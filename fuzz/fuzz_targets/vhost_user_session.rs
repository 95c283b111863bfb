//! A front-end's messages: none makes it panic, and a queue that can run has its rings inside the memory.
#![no_main]

#[path = "../export.rs"]
mod export;

use arbitrary::Arbitrary;
use export::export;
use libfuzzer_sys::fuzz_target;
use mqfq_front::export::BlockSizes;
use mqfq_front::vhost_user_blk::chain::Chain;
use mqfq_front::vhost_user_blk::disk::Disk;
use mqfq_front::vhost_user_blk::session::{Session, Stops};
use mqfq_front::vhost_user_blk::wire::Message;
use std::os::fd::OwnedFd;

const MEMORY_BYTES: u64 = 256 << 10;

#[derive(Arbitrary, Debug)]
enum Said {
    /// Numbers as the message has them, most of them small.
    Words { message: u8, words: Vec<u16>, descriptors: u8 },
    /// A region at a place that rings can have.
    Region { at: u8, pages: u8, offset: u8 },
    /// A ring at such a place.
    Ring { queue: u8, at: [u8; 3], log: bool },
    Raw { message: u8, bytes: Vec<u8>, descriptors: u8 },
    /// Whether rings have events, and a ring of 8 or 16 that is started.
    Features { has_events: bool, queue: u8 },
    /// Bytes of the guest's memory, which all regions share.
    Bytes { at: u16, bytes: Vec<u8> },
}

fn file() -> OwnedFd {
    let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, MEMORY_BYTES).unwrap();
    file
}

fn words_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

impl Said {
    fn message(&self) -> (Message, Vec<u8>, usize) {
        let of = |number: u8| Message::ALL[usize::from(number) % Message::ALL.len()];
        match self {
            Said::Words { message, words, descriptors } => {
                let bytes = words.iter().flat_map(|word| u32::from(*word).to_ne_bytes()).collect();
                (of(*message), bytes, usize::from(descriptors % 10))
            }
            Said::Region { at, pages, offset } => {
                let (at, size) = (u64::from(*at) << 12, u64::from(*pages) << 12);
                (Message::AddMemReg, words_of(&[0, at, size, at, u64::from(*offset) << 8]), 1)
            }
            Said::Ring { queue, at, log } => {
                let [descriptors, used, avail] = at.map(|at| u64::from(at) << 10);
                let index = u64::from(queue % 70) | u64::from(*log) << 32;
                (Message::SetVringAddr, words_of(&[index, descriptors, used, avail, 0]), 0)
            }
            Said::Features { has_events, .. } => {
                let bits = u64::from(*has_events) << 29 | 1 << 28;
                (Message::SetFeatures, words_of(&[bits]), 0)
            }
            Said::Bytes { .. } => (Message::GetFeatures, Vec::new(), 0),
            Said::Raw { message, bytes, descriptors } => (of(*message), bytes.clone(), usize::from(descriptors % 3)),
        }
    }
}

fuzz_target!(|said: Vec<Said>| {
    let shared = file();
    let export = export(0, 1 << 20, false, BlockSizes::DEFAULT);
    let mut session = Session::new(Disk::new(&export));
    for said in said.iter().take(64) {
        let (message, payload, descriptors) = said.message();
        if let Stops::One(queue) = session.stops(message, &payload) {
            assert!(queue < 256);
        }
        if let Said::Bytes { at, bytes } = said {
            let _ = rustix::io::pwrite(&shared, bytes, (*at).into());
        }
        let files = (0..descriptors).map(|_| shared.try_clone().unwrap().into()).collect();
        if let Ok(answer) = session.take(message, &payload, files) {
            assert!(answer.descriptor.is_none() || answer.payload.is_some());
        }
        if let Said::Features { queue, .. } = said {
            let queue = u64::from(queue % 2);
            let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            let _ = session.take(Message::SetVringNum, &words_of(&[queue | 8 << 32]), Vec::new());
            let _ = session.take(Message::SetVringKick, &words_of(&[queue]), vec![kick.into()]);
        }
        for queue in [0, 1, 63] {
            if let Ok(Some(mut start)) = session.ready(queue) {
                // Reads and writes what it says is its own: outside, this would be a fault.
                start.ring.take_over();
                let mut chain = Chain::default();
                for _ in 0..3 {
                    let taken = start.ring.take(&start.memory, &mut chain, true);
                    let _ = start.ring.arm();
                    let Ok(Some(head)) = taken else { break };
                    assert!(head < start.ring.size());
                    start.ring.push(head, 1);
                    start.ring.publish();
                    start.ring.wants_signal();
                }
            }
        }
    }
});
