//! Two tenants of weights 1 to 3 on one modelled drive, each with a disk of two queues: what they get is 1 to 3. What
//! they get beside a guest that breaks all it has is judged in virtual time (`lab/vopr`); here it breaks it in earnest.
//!
//! Time is counted in ends: it goes on by one when a request of the two ends, so a busy machine makes it no longer.

use crate::guest::{EVENT_IDX, Guest, IN, MEMORY_BYTES, Machine, NEXT, OUT, request_at};
use crate::server::{SIZE_BYTES, Server, ServerOptions};
use mqfq_blk::device::Device;
use mqfq_blk::device::model::{ModelDevice, presets::FLASH_60K};
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_testing::SetAtEnd;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const QUEUES: usize = 2;
/// Requests that a queue has under way.
const DEPTH: u16 = 32;
/// Requests of both together that are counted, after as many that are not.
const REQUESTS: u64 = 6_000;
/// Ends of each tenant.
type Ends = [AtomicU64; 2];

fn now(all: &Ends) -> u64 {
    ends(all).iter().sum()
}

/// Keeps each queue of one tenant full until it is told to stop; counts ends.
fn load(mut guest: Guest, length: u32, own: &AtomicU64, stop: &AtomicBool) {
    let _stop = SetAtEnd(stop);
    for queue in 0..QUEUES {
        let base = queue as u16 * DEPTH;
        let heads: Vec<u16> =
            (0..DEPTH).map(|slot| guest.request(queue, base + slot, IN, u64::from(slot) * 8, length)).collect();
        guest.offer(queue, &heads);
    }
    while !stop.load(Ordering::Relaxed) {
        for queue in 0..QUEUES {
            let ended: Vec<u16> = guest.wait(queue, 1).into_iter().map(|(head, _)| head).collect();
            own.fetch_add(ended.len() as u64, Ordering::Relaxed);
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
            // One write twice at once.
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
    let size_bytes = weights.len() as u64 * SIZE_BYTES;
    let device: Arc<dyn Device> = Arc::new(ModelDevice::new(FLASH_60K.slowed(5), size_bytes, 1).unwrap());
    // Fewer than either keeps under way: both compete all the time.
    let policy = PolicyOptions { depth: 16, ..PolicyOptions::new(kind) };
    Server::start(ServerOptions { device, weights: weights.to_vec(), policy, workers: 2, ..ServerOptions::default() })
}

/// Runs the first two tenants of `server` under load, while `meanwhile` says, which may wait for a number of ends.
fn under_load<T>(server: &Server, lengths: [u32; 2], meanwhile: impl FnOnce(&dyn Fn(u64), &Ends) -> T) -> T {
    let (all, stop) = (Ends::default(), AtomicBool::new(false));
    let until = |sum: u64| {
        while now(&all) < sum {
            assert!(!stop.load(Ordering::Relaxed), "a guest has failed");
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        for (tenant, length) in lengths.into_iter().enumerate() {
            let guest = Guest::attach(&server.socket(tenant), Machine::new(), QUEUES, 256, EVENT_IDX);
            let (own, stop) = (&all[tenant], &stop);
            scope.spawn(move || load(guest, length, own, stop));
        }
        let _stop = SetAtEnd(&stop);
        meanwhile(&until, &all)
    })
}

fn ends(all: &Ends) -> [u64; 2] {
    all.each_ref().map(|ends| ends.load(Ordering::Relaxed))
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

#[test]
fn a_guest_that_breaks_all_it_has_is_stopped_each_time_and_its_neighbours_go_on() {
    let server = slow_flash(PolicyKind::Mqfq, &[100, 300, 100]);
    under_load(&server, [4096, 4096], |until, all| {
        let (stop, before) = (AtomicBool::new(false), ends(all));
        let broken = thread::scope(|scope| {
            let harmful = scope.spawn(|| harm(&server, 2, &stop));
            {
                let _stop = SetAtEnd(&stop);
                until(now(all) + REQUESTS);
            }
            harmful.join().unwrap()
        });
        let had: Vec<u64> = ends(all).into_iter().zip(before).map(|(ends, before)| ends - before).collect();
        assert!(broken >= 4 && had.iter().all(|had| *had > 0), "{broken} breaches, {had:?} requests ended beside them");
    });
    server.drain();
}
