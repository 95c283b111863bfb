//! Policy `kyber`: tokens per kind of request, as many as the latency of reads and writes allows.
//!
//! Answers: how many requests of each kind may be on the device if reads shall take 2 ms and writes 10? Source: the
//! description of kyber (its author's posting to linux-block, and the kernel's documentation of its two tunables);
//! "inspired by network routing", says the HotStorage paper, section 2. Written from that.
//!
//! # Shape
//! ```text
//!  worker's own                            shared by all workers                          file
//!  ┌──────────────────────────────────┐    domain tokens: 256 read, 128 write,
//!  │ read    → → →    (batches of 16) │      64 discard, 16 other                       kyber/pool.rs
//!  │ write   → →  and those waited for│    tokens of asynchronous requests: 3/4 of D    kyber/pool.rs
//!  │ discard →                        │    tokens of the device: D                      kyber/pool.rs
//!  │ other   →                        │    latency histograms, read by one worker       kyber/latency.rs
//!  └──────────────────────────────────┘
//! ```
//! A worker goes round its domains, a batch of each. A request needs a token of its domain, one of the asynchronous
//! pool if it is asynchronous, and one of the device, in this order. Pools that cannot run out, because a pool before
//! them is smaller, are not asked.
//!
//! Every 100 ms at most, whichever worker completes a request looks at the latencies and sets the domains' depths.
//!
//! # Waiting
//! A worker that finds a pool empty marks itself there, looks once more, and sleeps. It keeps the tokens that it has of
//! the pools before, one per domain at most, so a request that waits for the device is not passed in its domain
//! meanwhile. Pools are asked in one order, so workers never wait in a circle; and the last one is the device's, whose
//! tokens come back by themselves.
//!
//! A worker that completes a request keeps its tokens for its own next one, without touching the pool, unless it has
//! more than its even part of the pool: then they go to workers that wait.
//!
//! # Differences from Linux's
//! * There are no timers here: the check is made by a completion, so an idle device is not looked at.
//! * Linux holds asynchronous requests back where they get a scheduler tag, at 3/4 of the tags of a queue. Tenants'
//!   requests are admitted before a policy sees them, so here 3/4 of D bounds what is on the device.
//! * Tokens are a count and not a bitmap, and workers that wait are served in a ring.
//! * The submitter says whether a request is asynchronous: the block layer's rule is in docs/use/config.md,
//!   `async-writes`.
//!
//! # Invariants
//! K1 to K3 of `kyber/pool.rs`, and
//! K4. A domain has at most its depth on the device, but for requests there when the depth was lowered.
//! K5. A worker sleeps only if each domain that has requests waits in a pool for which it is marked, and it holds no
//! other token. With K3, a token that a staged request lacks meets it (I4), and by the ring no worker starves.
//!
//! # Cost
//! Within a worker's part of a pool: no shared line is written but by a `pick` that takes a first token. Beyond it, one
//! read-modify-write per pool to take and one to give, and a fence to give. No lock but for the check.

mod latency;
mod options;
mod pool;

pub use options::KyberOptions;

use self::latency::{Control, Latencies, TIMED};
use self::pool::{POOLS, Pools};
use mqfq_sched::cost::CostKind;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{
    Descriptor, DispatchToken, Done, Entry, Grant, Handle, Kick, NotDirect, Pick, Policy, PolicyError, PolicyOptions,
    Registered,
};
use mqfq_sched::sync::{AtomicU64, Mutex, Ordering::Relaxed};
use mqfq_sched::topology::{HctxId, Topology};

/// The kinds of requests that have tokens of their own. They are numbered as their pools are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KyberDomain {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards and writes of zeroes.
    Discard,
    /// The rest: flushes.
    Other,
}

const DOMAINS: usize = 4;

/// The pool of asynchronous requests, and that of all.
const ASYNC: usize = 4;
const DEVICE: usize = 5;

/// Requests of one domain that a worker dispatches before it looks at the next.
const BATCH: [u32; DOMAINS] = [16, 8, 1, 1];

/// Time between two looks at the latencies, ns.
const CHECK_NS: u64 = 100_000_000;

/// "No request".
const NONE: u32 = u32::MAX;

kind!(Kyber);

/// Policy `kyber`: for each kind of request a pool of tokens, as deep as the measured latencies allow.
pub struct Kyber {
    depth: u32,
    hctx_count: u32,
    /// Full depths of the domains.
    depths_max: [u32; DOMAINS],
    /// The pools that can run out.
    binds: [bool; POOLS],
    pools: Pools,
    latencies: Latencies,
    /// When to look at them next.
    check_ns: AtomicU64,
    control: Mutex<Control>,
}

#[derive(Clone, Copy)]
struct Staged {
    handle: Handle,
    flow: FlowId,
    /// Order of submission; wraps.
    arrival: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Line {
    first: u32,
    last: u32,
}

/// State of one worker.
pub struct KyberQueue {
    hctx: HctxId,
    requests: Box<[Staged]>,
    first_free: u32,
    staged: usize,
    arrivals: u32,
    /// By domain: asynchronous requests, and synchronous ones.
    lines: [[Line; 2]; DOMAINS],
    /// The domain whose turn it is, and how many of its batch went.
    domain: usize,
    in_batch: u32,
    /// Tokens in hand, by pool.
    stock: [u32; POOLS],
    /// Tokens of its requests on the device, by pool.
    held: [u32; POOLS],
    /// Pools at which it is marked, one bit each.
    marked: u8,
}

impl Kyber {
    /// A scheduler for `hctx_count` queues. The options have been validated.
    pub(super) fn new(options: &PolicyOptions, hctx_count: usize) -> Self {
        let kyber: KyberOptions = options.own.get();
        let depths_max = [kyber.read_depth, kyber.write_depth, kyber.discard_depth, kyber.other_depth];
        // At least one: an asynchronous request must be able to go.
        let async_max = (options.depth * 3 / 4).max(1);
        let [read, write, discard, other] = depths_max;
        let mut binds = [true; POOLS];
        binds[ASYNC] = write.saturating_add(discard) > async_max;
        binds[DEVICE] = [read, write, discard, other].into_iter().fold(0, u32::saturating_add) > options.depth;
        Kyber {
            depth: options.depth,
            hctx_count: hctx_count as u32,
            depths_max,
            binds,
            pools: Pools::new([read, write, discard, other, async_max, options.depth], hctx_count),
            latencies: Latencies::new(
                [kyber.read_latency_ns, kyber.write_latency_ns, kyber.discard_latency_ns],
                hctx_count,
            ),
            check_ns: AtomicU64::new(0),
            control: Mutex::new(Control::default()),
        }
    }

    /// Units of D that no request holds. Exact while no worker is inside the policy.
    pub fn free_units(&self) -> i64 {
        let out = if self.binds[DEVICE] {
            self.pools.out(DEVICE)
        } else {
            (0..DOMAINS).map(|domain| self.pools.out(domain)).sum()
        };
        i64::from(self.depth) - i64::from(out)
    }

    /// How many requests of a domain may be on the device now.
    pub fn domain_depth(&self, domain: KyberDomain) -> u32 {
        self.pools.limit(domain as usize)
    }

    /// Tokens of a domain that are out. Exact while no worker is inside the policy.
    pub fn domain_out(&self, domain: KyberDomain) -> u32 {
        self.pools.out(domain as usize)
    }

    /// No mark of ours stands, and what others gave is in hand.
    fn collect(&self, queue: &mut KyberQueue) {
        for pool in bits(std::mem::take(&mut queue.marked)) {
            self.pools.leave(pool, queue.hctx);
        }
        self.pools.collect(queue.hctx, |pool, count| queue.stock[pool] += count);
    }

    /// The pools that a request goes through, in order.
    fn path(&self, domain: usize, is_sync: bool) -> impl Iterator<Item = usize> {
        let pools = [(domain, true), (ASYNC, !is_sync && self.binds[ASYNC]), (DEVICE, self.binds[DEVICE])];
        pools.into_iter().filter_map(|(pool, is_asked)| is_asked.then_some(pool))
    }

    /// Has all tokens of one request in hand, or says at which pool there was none.
    fn acquire(&self, queue: &mut KyberQueue, domain: usize, is_sync: bool) -> Result<(), usize> {
        for pool in self.path(domain, is_sync) {
            if queue.stock[pool] == 0 {
                if !self.pools.take(pool) {
                    return Err(pool);
                }
                queue.stock[pool] = 1;
            }
        }
        Ok(())
    }

    /// The first request of a domain, if it can go; notes where it waits and what it holds if not.
    fn first_of(&self, queue: &mut KyberQueue, domain: usize, lacks: &mut Lacks) -> Option<Grant> {
        for is_sync in queue.by_arrival(domain).into_iter().flatten() {
            match self.acquire(queue, domain, is_sync) {
                Ok(()) => {
                    for pool in self.path(domain, is_sync) {
                        queue.stock[pool] -= 1;
                        queue.held[pool] += 1;
                    }
                    let Staged { handle, flow, .. } = queue.pop(domain, is_sync);
                    return Some(Grant { handle, flow, token: DispatchToken::new(1) });
                }
                Err(pool) => {
                    lacks.at |= 1 << pool;
                    if pool != domain {
                        lacks.domains |= 1 << domain;
                    }
                    if pool == DEVICE && !is_sync && self.binds[ASYNC] {
                        lacks.asyncs |= 1 << domain;
                    }
                    if pool != ASYNC {
                        // The other line needs the same token.
                        return None;
                    }
                }
            }
        }
        None
    }

    /// The next request in turn that can go.
    fn next(&self, queue: &mut KyberQueue, lacks: &mut Lacks) -> Option<Grant> {
        // The domain in turn twice: what is left of its batch, and a new one if no other has anything.
        for _ in 0..=DOMAINS {
            let domain = queue.domain;
            if queue.in_batch < BATCH[domain]
                && !queue.is_empty(domain)
                && let Some(grant) = self.first_of(queue, domain, lacks)
            {
                queue.in_batch += 1;
                return Some(grant);
            }
            queue.domain = (domain + 1) % DOMAINS;
            queue.in_batch = 0;
        }
        None
    }

    /// Whether the tokens of a request that has ended are for the own queue's next one.
    fn keeps(&self, queue: &KyberQueue, pool: usize) -> bool {
        let has_use = match pool {
            ASYNC => (0..DOMAINS).any(|domain| queue.lines[domain][0].first != NONE),
            DEVICE => queue.staged > 0,
            domain => !queue.is_empty(domain),
        };
        let held = queue.held[pool] + queue.stock[pool];
        has_use && u64::from(held) * u64::from(self.hctx_count) <= u64::from(self.pools.limit(pool))
    }

    /// Looks at the latencies and sets the depths that follow.
    #[inline(never)]
    fn check(&self, from: HctxId, now_ns: u64, check_ns: u64, kick: &mut impl Kick) {
        // Relaxed: it decides which worker looks, and carries nothing.
        if self.check_ns.compare_exchange(check_ns, now_ns.saturating_add(CHECK_NS), Relaxed, Relaxed).is_err() {
            return;
        }
        // A panic under the lock is a bug of ours that has already been reported; the others need not follow.
        let mut control = self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (domain, quarters) in control.evaluate(&self.latencies, now_ns).into_iter().enumerate() {
            let Some(quarters) = quarters else { continue };
            let depth = u64::from(self.pools.limit(domain)) * u64::from(quarters) / 4;
            let depth = depth.clamp(1, u64::from(self.depths_max[domain])) as u32;
            self.pools.set_limit(domain, depth, from, kick);
        }
    }
}

/// Why nothing could go.
#[derive(Default)]
struct Lacks {
    /// Pools that had no token, one bit each.
    at: u8,
    /// Domains of which a request waits farther on and holds the domain's token meanwhile, one bit each.
    domains: u8,
    /// Domains of which a waiting request holds an asynchronous token, one bit each.
    asyncs: u8,
}

impl Lacks {
    /// Tokens of a pool that requests which wait hold.
    fn keep(&self, pool: usize) -> u32 {
        match pool {
            DEVICE => 0,
            ASYNC => self.asyncs.count_ones(),
            domain => u32::from(self.domains >> domain & 1),
        }
    }
}

impl KyberQueue {
    fn is_empty(&self, domain: usize) -> bool {
        self.lines[domain].iter().all(|line| line.first == NONE)
    }

    /// Lines of a domain that hold something, the one with the earlier request first: true for synchronous requests.
    fn by_arrival(&self, domain: usize) -> [Option<bool>; 2] {
        let [relaxed, sync] = self.lines[domain].map(|line| self.requests.get(line.first as usize));
        match (relaxed, sync) {
            (Some(relaxed), Some(sync)) => {
                let sync_first = (sync.arrival.wrapping_sub(relaxed.arrival) as i32) < 0;
                [Some(sync_first), Some(!sync_first)]
            }
            (relaxed, sync) => [relaxed.map(|_| false), sync.map(|_| true)],
        }
    }

    fn push(&mut self, entry: &Entry) {
        let Entry { flow, handle, kind, is_sync, .. } = *entry;
        let request = self.first_free;
        let capacity_requests = self.requests.len();
        let Some(place) = self.requests.get_mut(request as usize) else {
            panic!("a queue of {capacity_requests} requests is full");
        };
        self.first_free = place.next;
        *place = Staged { handle, flow, arrival: self.arrivals, next: NONE };
        self.arrivals = self.arrivals.wrapping_add(1);
        self.staged += 1;
        let line = &mut self.lines[domain(kind) as usize][usize::from(is_sync)];
        match self.requests.get_mut(line.last as usize) {
            Some(last) => last.next = request,
            None => line.first = request,
        }
        line.last = request;
    }

    fn pop(&mut self, domain: usize, is_sync: bool) -> Staged {
        let line = &mut self.lines[domain][usize::from(is_sync)];
        let first = line.first;
        let staged = self.requests[first as usize];
        line.first = staged.next;
        if staged.next == NONE {
            line.last = NONE;
        }
        self.requests[first as usize].next = self.first_free;
        self.first_free = first;
        self.staged -= 1;
        staged
    }
}

fn domain(kind: CostKind) -> KyberDomain {
    match kind {
        CostKind::Read => KyberDomain::Read,
        CostKind::Write => KyberDomain::Write,
        CostKind::Discard => KyberDomain::Discard,
        CostKind::Flush => KyberDomain::Other,
    }
}

/// The numbers of the bits that are set.
fn bits(mut set: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (bit < POOLS).then_some(bit)
    })
}

impl Policy for Kyber {
    type Queue = KyberQueue;
    type Direct<'a> = NotDirect;

    fn open_queue(&self, hctx: HctxId, capacity_requests: usize) -> KyberQueue {
        let capacity = u32::try_from(capacity_requests).ok().filter(|&capacity| capacity < NONE);
        let capacity = capacity.expect("fewer than 2^32 - 1 requests are staged in a queue");
        let next = |n: u32| if n + 1 == capacity { NONE } else { n + 1 };
        KyberQueue {
            hctx,
            requests: (0..capacity)
                .map(|n| Staged { handle: Handle(0), flow: FlowId(0), arrival: 0, next: next(n) })
                .collect(),
            first_free: if capacity == 0 { NONE } else { 0 },
            staged: 0,
            arrivals: 0,
            lines: [[Line { first: NONE, last: NONE }; 2]; DOMAINS],
            domain: 0,
            in_batch: 0,
            stock: [0; POOLS],
            held: [0; POOLS],
            marked: 0,
        }
    }

    fn submit(&self, queue: &mut KyberQueue, entry: Entry, _now_ns: u64, _kick: &mut impl Kick) {
        queue.push(&entry);
    }

    fn pick(&self, queue: &mut KyberQueue, _now_ns: u64, kick: &mut impl Kick) -> Pick {
        self.collect(queue);
        loop {
            let mut lacks = Lacks::default();
            if let Some(grant) = self.next(queue, &mut lacks) {
                return Pick::Dispatch(grant);
            }
            // Nothing can go. No mark where nothing is lacking any more; and what no request that waits holds goes
            // back.
            for pool in bits(queue.marked & !lacks.at) {
                self.pools.leave(pool, queue.hctx);
            }
            for pool in 0..POOLS {
                while queue.stock[pool] > lacks.keep(pool) {
                    queue.stock[pool] -= 1;
                    self.pools.give_back(pool, queue.hctx, kick);
                }
            }
            if queue.staged == 0 {
                return Pick::Idle;
            }
            let new = lacks.at & !queue.marked;
            queue.marked = lacks.at;
            if new == 0 {
                return Pick::NoToken;
            }
            // Each ends with the fence of the table in `pool.rs`; then we look once more.
            bits(new).for_each(|pool| self.pools.wait(pool, queue.hctx));
        }
    }

    fn complete(&self, queue: &mut KyberQueue, done: Done, token: DispatchToken, now_ns: u64, kick: &mut impl Kick) {
        let units = token.into_units();
        debug_assert_eq!(units, 1, "a token of {units} units came back to a policy that hands out one at a time");
        let domain = domain(done.kind) as usize;
        for pool in self.path(domain, done.is_sync) {
            let keeps = self.keeps(queue, pool);
            queue.held[pool] -= 1;
            if keeps {
                // The pick that follows uses it or gives it back.
                queue.stock[pool] += 1;
            } else {
                self.pools.give_back(pool, queue.hctx, kick);
            }
        }
        if domain < TIMED {
            let [device_ns, total_ns] = [done.dispatched_ns, done.submitted_ns].map(|ns| now_ns.saturating_sub(ns));
            self.latencies.record(queue.hctx, domain, device_ns, total_ns);
        }
        // Relaxed: a hint; `check` decides.
        let check_ns = self.check_ns.load(Relaxed);
        if now_ns >= check_ns {
            self.check(queue.hctx, now_ns, check_ns, kick);
        }
    }

    fn pause(&self, queue: &mut KyberQueue, kick: &mut impl Kick) {
        self.collect(queue);
        for pool in 0..POOLS {
            while queue.stock[pool] > 0 {
                queue.stock[pool] -= 1;
                self.pools.give_back(pool, queue.hctx, kick);
            }
        }
    }

    fn set_weight(&self, _flow: FlowId, _weight: Weight) {}

    fn staged(&self, queue: &KyberQueue) -> usize {
        queue.staged
    }
}

impl Registered for Kyber {
    const ABOUT: Descriptor = Descriptor {
        has_depth: true,
        is_elevator: true,
        ..Descriptor::new("kyber", "tokens per kind of request, as many as latency targets allow")
    };

    type Options = KyberOptions;

    fn make(options: &PolicyOptions, topology: &Topology, _flows: &[Weight]) -> Result<Self, PolicyError> {
        Ok(Kyber::new(options, topology.hctx_count()))
    }

    fn free_units(&self) -> Option<i64> {
        Some(self.free_units())
    }
}

#[cfg(all(test, mqfq_loom))]
mod loom_tests {
    //! Model checks of waiting for a token, with what wakes the worker that waits.
    //!
    //! Run: `cargo xtask loom`.

    use super::*;
    use crate::sleeper_model::{one_token_passes_to_a_worker_that_falls_asleep, options};
    use crate::{KYBER, KyberOptions};
    use mqfq_sched::policy::OwnOptions;
    use mqfq_sched::sync::model::{Arc, Builder, thread};
    use mqfq_sched::wake::WakeWord;

    /// Race: A completes and gives the device's only token back, while B, which has just found none, falls asleep (K3).
    /// Shown to fail without the fence in `give_back` or that in `wait`, and if a gift is not kicked for.
    #[test]
    fn loom_device_token_meets_a_worker_that_falls_asleep() {
        Builder::new().check(|| {
            one_token_passes_to_a_worker_that_falls_asleep(Kyber::new(&options(KYBER), 2));
        });
    }

    /// Race: as above, with the only token of a domain, on a device that has room.
    #[test]
    fn loom_domain_token_meets_a_worker_that_falls_asleep() {
        Builder::new().check(|| {
            let kyber = KyberOptions { read_depth: 1, ..KyberOptions::DEFAULT };
            let own = OwnOptions::of(&kyber);
            let options = PolicyOptions { depth: 1000, own, ..options(KYBER) };
            one_token_passes_to_a_worker_that_falls_asleep(Kyber::new(&options, 2));
        });
    }

    /// Race: the only token that is out stays out; A raises the limit while B, which has found no token, falls asleep
    /// (K3). Shown to fail without the fence in `set_limit` or that in `wait`, and if a gift is not kicked for.
    #[test]
    fn loom_raised_depth_meets_a_worker_that_falls_asleep() {
        Builder::new().check(|| {
            let pools = Arc::new(Pools::new([1; POOLS], 2));
            assert!(pools.take(0));
            let word = Arc::new(WakeWord::default());
            let (their_pools, their_word) = (pools.clone(), word.clone());
            let raising = thread::spawn(move || {
                let mut rings = 0;
                their_pools.set_limit(0, 2, HctxId(0), &mut |_| rings += u32::from(their_word.kick()));
                rings
            });
            let gifts = || {
                let mut tokens = 0;
                pools.collect(HctxId(1), |_, count| tokens += count);
                tokens
            };
            let mut tokens = u32::from(pools.take(0));
            let mut asleep = false;
            if tokens == 0 {
                pools.wait(0, HctxId(1));
                tokens += u32::from(pools.take(0));
                while tokens == 0 && !asleep {
                    asleep = word.may_sleep();
                    tokens += gifts();
                }
            }
            let rings = raising.join().unwrap();
            tokens += gifts();
            assert_eq!(tokens, 1, "the limit is two, one is out, and the worker has {tokens}");
            assert!(!asleep || rings == 1, "a token was given, the worker sleeps, and nobody rings");
            assert_eq!(pools.out(0), 2);
        });
    }
}
