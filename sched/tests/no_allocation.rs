//! After the last `open_queue`, no policy allocates: the data path of a busy device must not wait for an allocator, and
//! a full machine must still be able to complete what it has.

use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::policy::{AnyPolicy, Entry, Handle, Pick, Policy, PolicyKind, PolicyOptions};
use mqfq_sched::topology::{HctxId, Topology};
use mqfq_sched::vtime::VTime;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; the counter is a plain thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: our caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: our caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

#[test]
fn nothing_allocates_after_the_queues_are_open() {
    let (hctxs, flows, capacity) = (4u16, 100u32, 64);
    for kind in PolicyKind::ALL {
        for token_unit_bytes in [None, Some(4096)] {
            // Virtual time wraps and all flows are refreshed on the way; the depth is small enough to throttle and to
            // starve.
            let start = VTime::from_raw(u64::MAX - (1 << 30));
            let options = PolicyOptions { depth: 5, token_unit_bytes, start, ..PolicyOptions::new(kind) };
            let topology = Topology::new(2, 2, 1);
            let policy = AnyPolicy::new(&options, &topology, &vec![Weight::DEFAULT; flows as usize]).unwrap();
            let mut queues: Vec<_> = (0..hctxs).map(|n| policy.open_queue(HctxId(n), capacity)).collect();
            let mut in_flight: Vec<_> = (0..hctxs).map(|_| Vec::with_capacity(capacity)).collect();
            let before = allocations();
            let mut kicks = 0u64;
            let mut dispatched = 0u64;
            for round in 0..2000u32 {
                let n = (round % u32::from(hctxs)) as usize;
                let queue = &mut queues[n];
                let mut kick = |_: HctxId| kicks += 1;
                while policy.staged(queue) < capacity / 2 {
                    let flow = FlowId((round.wrapping_mul(7) + policy.staged(queue) as u32) % flows);
                    policy.submit(
                        queue,
                        Entry { flow, cost: Cost(1 + u64::from(round) * 37), handle: Handle(round) },
                        0,
                        &mut kick,
                    );
                }
                while in_flight[n].len() < capacity / 2 {
                    let Pick::Dispatch(grant) = policy.pick(queue, 0, &mut kick) else { break };
                    dispatched += 1;
                    in_flight[n].push(grant);
                }
                policy.pause(queue, &mut kick);
                policy.set_weight(FlowId(round % flows), Weight::new(u64::from(1 + round % 10_000)).unwrap());
                while let Some(grant) = in_flight[n].pop() {
                    policy.complete(queue, grant.flow, grant.token, 0, &mut kick);
                }
            }
            assert_eq!(allocations() - before, 0, "{kind} allocated");
            assert!(dispatched > 500, "{kind} dispatched only {dispatched} requests, the test shows nothing");
        }
    }
}
