//! Two tenants of weights 1 to 3 on one modelled drive, each with a disk of two queues: what they get is 1 to 3, also
//! beside a guest that breaks all it has.
//!
//! Time is counted in ends: it goes on by one when a request of the two ends, so a busy machine makes it no longer.

use crate::guest::{EVENT_IDX, Guest, IN, MEMORY_BYTES, Machine, NEXT, OUT, request_at};
use crate::server::{SIZE_BYTES, Server, ServerOptions};
use mqfq_blk::device::Device;
use mqfq_blk::device::nvme::{NvmeDevice, NvmeDeviceOptions};
use mqfq_blk::{PolicyKind, PolicyOptions};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const QUEUES: usize = 2;
/// Requests that a queue has under way.
const DEPTH: u16 = 32;
/// Requests of both together that are counted, after as many that are not.
const REQUESTS: u64 = 6_000;
/// Parts alone, and as many beside a guest that means harm.
const TURNS: u64 = 3;
const ATTEMPTS: u64 = 3;

/// What a tenant had.
#[derive(Default)]
struct Had {
    ends: AtomicU64,
    /// Of each request: when it ended, and how long it took, in ends of both tenants.
    waits: Mutex<Vec<(u64, u64)>>,
}

/// The time, and the ends of each tenant by then.
type Mark = (u64, [u64; 2]);

fn now(all: &[Had]) -> u64 {
    all.iter().map(|had| had.ends.load(Ordering::Relaxed)).sum()
}

/// Keeps each queue of one tenant full until it is told to stop; counts ends.
fn load(mut guest: Guest, length: u32, all: &[Had; 2], own: usize, stop: &AtomicBool) {
    let mut begun = [[0; 256]; QUEUES];
    for queue in 0..QUEUES {
        let base = queue as u16 * DEPTH;
        let heads: Vec<u16> =
            (0..DEPTH).map(|slot| guest.request(queue, base + slot, IN, u64::from(slot) * 8, length)).collect();
        guest.offer(queue, &heads);
    }
    while !stop.load(Ordering::Relaxed) {
        for (queue, begun) in begun.iter_mut().enumerate() {
            let ended: Vec<u16> = guest.wait(queue, 1).into_iter().map(|(head, _)| head).collect();
            all[own].ends.fetch_add(ended.len() as u64, Ordering::Relaxed);
            let now = now(all);
            let waits = ended.iter().map(|head| (now, now - std::mem::replace(&mut begun[usize::from(*head)], now)));
            all[own].waits.lock().unwrap().extend(waits);
            guest.offer(queue, &ended);
        }
    }
}

/// Breaks its ring in another way each time, after a hundred kicks for nothing, and resets its device, until it is
/// told to stop. Returns how often its queue was stopped for it.
fn harm(server: &Server, export: usize, stop: &AtomicBool) -> u64 {
    let mut broken = 0;
    let mut attacks = 0u64;
    let mut guest = Guest::attach(&server.socket(export), Machine::new(), 1, 64, EVENT_IDX);
    while !stop.load(Ordering::Relaxed) {
        (0..100).for_each(|_| guest.kick(0));
        match attacks % 4 {
            // Heads that are none; a table that leads round; an address behind the memory.
            0 => guest.offer(0, &[64]),
            1 => {
                guest.descriptor(0, 5, request_at(0), 16, NEXT, 5);
                guest.offer(0, &[5]);
            }
            2 => {
                guest.descriptor(0, 5, MEMORY_BYTES, 16, NEXT, 6);
                guest.offer(0, &[5]);
            }
            // The same write twice at once.
            _ => {
                let head = guest.request(0, 0, OUT, 0, 4096);
                guest.offer(0, &[head, head]);
            }
        }
        attacks += 1;
        broken += u64::from(crate::guest::readable(guest.queues[0].error.as_raw_fd()));
        guest.reset();
    }
    assert_eq!(broken, attacks, "each breach is noticed");
    broken
}

/// A drive that guests can keep busy also on a machine that does much else: 12,000 requests per second.
fn slow_flash(kind: PolicyKind, weights: &[u16]) -> Server {
    let options = NvmeDeviceOptions {
        preset: "flash-60k",
        size_bytes: weights.len() as u64 * SIZE_BYTES,
        seed: 1,
        arbitration: None,
        queue_pairs_max: None,
        slowed: Some(5),
    };
    let device: Arc<dyn Device> = Arc::new(NvmeDevice::new(options).unwrap());
    // Fewer than either keeps under way: both compete all the time.
    let policy = PolicyOptions { depth: 16, ..PolicyOptions::new(kind) };
    Server::start(ServerOptions { device, weights: weights.to_vec(), policy, workers: 2, ..ServerOptions::default() })
}

/// Says "stop" when it goes, also if a test fails meanwhile.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the first two tenants of `server` under load, while `meanwhile` says, which may wait for a number of ends.
fn under_load<T>(server: &Server, lengths: [u32; 2], meanwhile: impl FnOnce(&dyn Fn(u64), &[Had; 2]) -> T) -> T {
    let (all, stop) = ([Had::default(), Had::default()], AtomicBool::new(false));
    let until = |sum: u64| {
        while now(&all) < sum {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        for (tenant, length) in lengths.into_iter().enumerate() {
            let guest = Guest::attach(&server.socket(tenant), Machine::new(), QUEUES, 256, EVENT_IDX);
            let (all, stop) = (&all, &stop);
            scope.spawn(move || load(guest, length, all, tenant, stop));
        }
        let _stop = Stop(&stop);
        meanwhile(&until, &all)
    })
}

fn ends(all: &[Had; 2]) -> [u64; 2] {
    [0, 1].map(|tenant: usize| all[tenant].ends.load(Ordering::Relaxed))
}

/// Ends of the two while `REQUESTS` ended, in bytes.
fn shares(kind: PolicyKind, lengths: [u32; 2]) -> [u64; 2] {
    let server = slow_flash(kind, &[100, 300]);
    let bytes = under_load(&server, lengths, |until, all| {
        until(REQUESTS / 4);
        let from = ends(all);
        until(REQUESTS);
        let to = ends(all);
        [0, 1].map(|tenant| (to[tenant] - from[tenant]) * u64::from(lengths[tenant]))
    });
    server.drain();
    bytes
}

/// What 99 of 100 requests that ended in these parts took at most, in ends.
fn p99_ends(had: &Had, parts: &[[Mark; 2]]) -> u64 {
    let is_in = |at: u64| parts.iter().any(|[from, to]| (from.0..to.0).contains(&at));
    let waits = had.waits.lock().unwrap();
    let mut taken: Vec<u64> = waits.iter().filter(|(at, _)| is_in(*at)).map(|(_, wait)| *wait).collect();
    taken.sort_unstable();
    taken[taken.len() * 99 / 100]
}

#[test]
fn two_guests_get_what_their_weights_say() {
    for lengths in [[4096, 4096], [8192, 4096]] {
        let [one, three] = shares(PolicyKind::Mqfq, lengths);
        let ratio = three as f64 / one as f64;
        assert!((2.9..3.1).contains(&ratio), "{ratio:.3} at {lengths:?}");
    }
    let [one, three] = shares(PolicyKind::None, [4096, 4096]);
    assert!(three < 2 * one, "without a policy there are no shares: {one} and {three}");
}

/// Shares and p99 of two tenants, alone and beside a third that means harm: are the second as good as the first?
fn beside_harm() -> (bool, String) {
    let server = slow_flash(PolicyKind::Mqfq, &[100, 300, 100]);
    // Parts alone and beside the third tenant in turns, after a first one in which all is set up: whatever else this
    // machine does is in both.
    let mut parts: [Vec<[Mark; 2]>; 2] = Default::default();
    let (broken, ratios, p99s) = under_load(&server, [4096, 4096], |until, all| {
        let mark = || (now(all), ends(all));
        let part = |from: u64| {
            let begin = mark();
            until(from + REQUESTS / 2);
            [begin, mark()]
        };
        until(REQUESTS / 4);
        let mut broken = 0;
        for _ in 0..TURNS {
            parts[0].push(part(now(all)));
            let stop = AtomicBool::new(false);
            broken += thread::scope(|scope| {
                let harmful = scope.spawn(|| harm(&server, 2, &stop));
                {
                    let _stop = Stop(&stop);
                    parts[1].push(part(now(all)));
                }
                harmful.join().unwrap()
            });
        }
        let had =
            |parts: &[[Mark; 2]], own: usize| -> u64 { parts.iter().map(|[from, to]| to.1[own] - from.1[own]).sum() };
        let ratios = [0, 1].map(|kind: usize| had(&parts[kind], 1) as f64 / had(&parts[kind], 0) as f64);
        let p99s = [0, 1].map(|kind: usize| [0, 1].map(|own: usize| p99_ends(&all[own], &parts[kind])));
        (broken, ratios, p99s)
    });
    server.drain();
    assert!(broken >= 4 * TURNS, "{broken} breaches are no attack");
    let is_shared = ratios.iter().all(|ratio| (2.9..3.1).contains(ratio));
    // 10%, and what the drive has at once: in which order it ends that is its own matter.
    let is_as_good = is_shared && (0..2).all(|tenant: usize| p99s[1][tenant] <= p99s[0][tenant] * 11 / 10 + 16);
    let said =
        format!("{broken} breaches; shares alone and beside them {ratios:.3?}; p99 of the two, in ends {p99s:?}");
    (is_as_good, said)
}

#[test]
fn a_guest_that_breaks_all_it_has_costs_its_neighbours_neither_their_shares_nor_their_p99() {
    // A processor that is taken away in the wrong moment makes a tail longer, and never shorter: what the guest costs
    // is in each attempt.
    let mut said = Vec::new();
    for _ in 0..ATTEMPTS {
        let (is_as_good, what) = beside_harm();
        println!("{what}");
        if is_as_good {
            return;
        }
        said.push(what);
    }
    panic!("alone, then beside: {said:#?}");
}
