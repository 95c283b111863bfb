//! A guest whose server was killed: every request that it offered ends once, and every acknowledged write is there.
//!
//! The test starts itself again as the server, over a file that delays what it is asked, and kills it in the middle, at
//! a moment that depends on nothing but how far the guest came. The guest is the test: its memory, and the area of
//! requests in flight, outlive each server.

use crate::guest::{EVENT_IDX, FLUSH, Guest, IN, Machine, OUT, data_at, readable};
use crate::server::{SIZE_BYTES, Server, ServerOptions};
use mqfq_blk::device::file::{FileDevice, FileOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Names the folder of file and socket; set only for the victim.
const VICTIM: &str = "MQFQ_TEST_VICTIM_VHOST_USER";

const NAME: &str = "kill::a_server_that_is_killed_again_and_again_ends_every_request_once";

/// Requests that the guest has under way at once, each with descriptors and 4 KiB of its own.
const SLOTS: u16 = 80;

const SIZE: u16 = 256;

/// Rounds of the suite.
const ROUNDS: u32 = 100;

/// Requests of one round, of which the server is killed after about half.
const REQUESTS: u32 = 400;

/// So many rounds in a row are killed after other numbers of ends.
const MOMENTS: u32 = 12;

/// A server; killed when it is dropped.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // An error says that it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `MQFQ_KILL_ROUNDS`, which `cargo xtask kill-test --front vhost-user` sets, or those of the suite.
fn rounds() -> u32 {
    std::env::var("MQFQ_KILL_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("MQFQ_KILL_ROUNDS is a number"))
}

fn serve(folder: &str) -> ! {
    // The kernel lets go of the last one's file when the drive has ended what it had, on a busy machine more than a
    // second later: then a supervisor would start this one again.
    let mut attempts = (0..20).map(|_| FileDevice::open(&FileOptions::new(format!("{folder}/disk"))));
    let device = Arc::new(attempts.find_map(Result::ok).expect("the kernel lets go of the file"));
    let folder = Some(PathBuf::from(folder));
    let server = Server::start(ServerOptions { device, folder, ..ServerOptions::default() });
    println!("ready");
    loop {
        std::thread::park();
        let _ = &server;
    }
}

fn start(folder: &Path) -> Victim {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(VICTIM, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut victim = Victim(child);
    let mut lines = BufReader::new(victim.0.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")), "the server starts");
    victim
}

/// The guest's knowledge of its disk: the value of each block that was acknowledged or offered.
struct Oracle {
    /// By block: what it holds for certain, or what it may hold beside that while a write is under way.
    told: Vec<u32>,
    offered: Vec<Option<u32>>,
    /// By slot: what is under way, if anything.
    slots: Vec<Option<(u32, usize, u32)>>,
    next: u32,
    ends: u32,
    flushes: u32,
}

impl Oracle {
    /// Writes request `slot` of a kind and block that follow from its number: one in four is a read, one in sixteen a
    /// flush. Whatever a flush covers was told to be written before it, and must be there with or without it: a kill
    /// takes nothing from the kernel. The head.
    fn make(&mut self, guest: &Guest, slot: u16) -> u16 {
        let number = self.next;
        self.next += 1;
        // A block has one writer at a time: its slot's.
        let block = usize::from(slot) + usize::from(SLOTS) * (number as usize % 3);
        let kind = match number % 16 {
            8 => FLUSH,
            other if other % 4 == 3 => IN,
            _ => OUT,
        };
        let value = if kind == OUT { number + 1 } else { self.told[block] };
        if kind == OUT {
            guest.machine.write(data_at(slot.into()), &[&value.to_le_bytes()[..]; 1024].concat());
            self.offered[block] = Some(value);
        } else {
            guest.machine.write(data_at(slot.into()), &[0xee; 4096]);
        }
        self.slots[usize::from(slot)] = Some((kind, block, value));
        if kind == FLUSH {
            return guest.request(0, slot, FLUSH, 0, 0);
        }
        guest.request(0, slot, kind, block as u64 * 8, 4096)
    }

    /// Request `slot` has ended: it was under way, ended well, and a read brought what was written.
    fn end(&mut self, guest: &Guest, head: u16, written: u32) {
        let slot = head / 3;
        let (kind, block, value) = self.slots[usize::from(slot)].take().expect("an end of what is under way, once");
        assert_eq!(guest.status(slot), 0);
        if kind == FLUSH {
            self.flushes += 1;
        } else if kind == IN {
            assert_eq!(written, 4097);
            let bytes = guest.machine.read(data_at(slot.into()), 4096);
            assert!(bytes.chunks(4).all(|word| word == value.to_le_bytes()), "block {block} holds {:?}", &bytes[..4]);
        } else {
            (self.told[block], self.offered[block]) = (value, None);
        }
        self.ends += 1;
    }
}

#[test]
fn a_server_that_is_killed_again_and_again_ends_every_request_once() {
    if let Ok(folder) = std::env::var(VICTIM) {
        serve(&folder);
    }
    let name = format!("mqfq-vub-kill-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir(&folder.0).unwrap();
    std::fs::File::create(folder.0.join("disk")).unwrap().set_len(SIZE_BYTES).unwrap();
    let mut machine = Machine::new();
    let blocks = usize::from(SLOTS) * 3;
    let slots = (0..SLOTS).map(|_| None).collect();
    let mut oracle = Oracle { told: vec![0; blocks], offered: vec![None; blocks], slots, next: 0, ends: 0, flushes: 0 };
    let (mut left_over, mut seen) = (0, 0);
    let rounds = rounds();
    for round in 0..rounds {
        let victim = start(&folder.0);
        let mut guest = Guest::attach(&folder.0.join("0"), machine.clone(), 1, SIZE, EVENT_IDX);
        machine = guest.machine.clone();
        // The driver in the guest knows nothing of servers.
        guest.queues[0].seen = seen;
        let last = round + 1 == rounds;
        let from = oracle.ends;
        loop {
            let ended = guest.ended(0);
            for (head, written) in &ended {
                oracle.end(&guest, *head, *written);
            }
            let done = oracle.ends - from;
            let is_quiet = oracle.slots.iter().all(Option::is_none);
            if (!last && done > REQUESTS / 2 + round % MOMENTS * 13) || (last && is_quiet) {
                break;
            }
            let free = (0..SLOTS).filter(|slot| oracle.slots[usize::from(*slot)].is_none()).collect::<Vec<_>>();
            // In the last round what was left ends, and nothing else begins after it.
            if oracle.next < (round + 1) * REQUESTS {
                let heads: Vec<u16> = free.into_iter().map(|slot| oracle.make(&guest, slot)).collect();
                guest.offer(0, &heads);
            }
            if ended.is_empty() {
                assert!(readable(guest.queues[0].call.as_raw_fd()), "{done} have ended in round {round}");
                let _ = guest.queues[0].call.read();
            }
        }
        // Some are under way now, and some have ended unseen.
        drop(victim);
        seen = guest.queues[0].seen;
        left_over += oracle.slots.iter().filter(|slot| slot.is_some()).count();
    }
    println!("{rounds} kills, {} ends, {} of flushes, {left_over} left to other servers", oracle.ends, oracle.flushes);
    assert!(left_over > rounds as usize, "{left_over} were left to other servers");
    assert!(oracle.flushes > rounds * 5, "{} flushes have ended", oracle.flushes);
    let disk = std::fs::read(folder.0.join("disk")).unwrap();
    for (block, value) in oracle.told.iter().enumerate() {
        assert!(disk[block * 4096..(block + 1) * 4096].chunks(4).all(|word| word == value.to_le_bytes()), "{block}");
    }
}
