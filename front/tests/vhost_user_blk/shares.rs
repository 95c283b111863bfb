//! Two tenants of weights 1 to 3 on one modelled drive, each with a disk of two queues: what they get is 1 to 3.

use crate::guest::{EVENT_IDX, Guest, IN, Machine};
use crate::server::{SIZE_BYTES, Server, ServerOptions};
use mqfq_blk::device::Device;
use mqfq_blk::device::nvme::{NvmeDevice, NvmeDeviceOptions};
use mqfq_blk::{PolicyKind, PolicyOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const QUEUES: usize = 2;
/// Requests that a queue has under way.
const DEPTH: u16 = 32;
/// Requests of both together that are counted, after as many that are not.
const REQUESTS: u64 = 6_000;

/// Keeps each queue full until it is told to stop; counts ends.
fn load(mut guest: Guest, length: u32, ends: &AtomicU64, stop: &AtomicBool) {
    for queue in 0..QUEUES {
        let base = queue as u16 * DEPTH;
        let heads: Vec<u16> =
            (0..DEPTH).map(|slot| guest.request(queue, base + slot, IN, u64::from(slot) * 8, length)).collect();
        guest.offer(queue, &heads);
    }
    while !stop.load(Ordering::Relaxed) {
        for queue in 0..QUEUES {
            let ended: Vec<u16> = guest.wait(queue, 1).into_iter().map(|(head, _)| head).collect();
            ends.fetch_add(ended.len() as u64, Ordering::Relaxed);
            guest.offer(queue, &ended);
        }
    }
}

/// Ends of the two while `REQUESTS` ended, in bytes.
fn shares(kind: PolicyKind, lengths: [u32; 2]) -> [u64; 2] {
    let options = NvmeDeviceOptions {
        preset: "flash-60k",
        size_bytes: 2 * SIZE_BYTES,
        seed: 1,
        arbitration: None,
        queue_pairs_max: None,
        // A drive that guests can keep busy also on a machine that does much else: 12,000 requests per second.
        slowed: Some(5),
    };
    let device: Arc<dyn Device> = Arc::new(NvmeDevice::new(options).unwrap());
    // Fewer than either keeps under way: both compete all the time.
    let policy = PolicyOptions { depth: 16, ..PolicyOptions::new(kind) };
    let server = Server::start(ServerOptions {
        device,
        weights: vec![100, 300],
        policy,
        workers: 2,
        ..ServerOptions::default()
    });
    let (ends, stop) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let counts = || [0, 1].map(|tenant: usize| ends[tenant].load(Ordering::Relaxed));
    let until = |sum: u64| {
        while counts().iter().sum::<u64>() < sum {
            thread::yield_now();
        }
        counts()
    };
    let bytes = thread::scope(|scope| {
        for tenant in 0..2 {
            let guest = Guest::attach(&server.socket(tenant), Machine::new(), QUEUES, 256, EVENT_IDX);
            let (ends, stop) = (&ends[tenant], &stop);
            scope.spawn(move || load(guest, lengths[tenant], ends, stop));
        }
        let (from, to) = (until(REQUESTS / 4), until(REQUESTS));
        stop.store(true, Ordering::Relaxed);
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
