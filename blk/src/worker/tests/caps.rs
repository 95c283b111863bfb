//! Clients that wait for caps: on one worker, on several, beside others.

use super::*;
use crate::cap::{Cap, CapLimits, Capped, Caps};
use crate::worker::cap_queue::{CapQueues, NO_CAP_QUEUE};
use mqfq_testing::random::for_seeds;
use std::cell::Cell;

const S_NS: u64 = 1_000_000_000;

/// A witness with caps.
struct WithCaps {
    caps: Arc<Caps>,
    witness: Box<Witness>,
}

impl Client for WithCaps {
    fn start(&mut self, context: &mut dyn Context) {
        context.cap_by(&self.caps);
        self.witness.start(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        self.witness.event(context, event);
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        self.witness.completed(context, completion);
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, context: &mut dyn Context) {
        self.witness.room(context);
    }

    fn drain(&mut self, context: &mut dyn Context) {
        // As a connection does: its requests are handed over first.
        self.witness.saw(context, Saw::Drain);
        self.witness.last_timer = 0;
        self.witness.is_done = self.witness.requests == 0;
    }

    fn is_done(&self) -> bool {
        self.witness.is_done()
    }
}

fn iops(iops: u64) -> Arc<Cap> {
    Cap::new(CapLimits { iops: Some(iops), bytes_per_s: None })
}

fn no_limit() -> Arc<Cap> {
    Cap::new(CapLimits::NONE)
}

fn capped(requests: u64, caps: &Arc<Caps>, log: &Log) -> Box<WithCaps> {
    Box::new(WithCaps { caps: caps.clone(), witness: Witness::new(requests, &[], log) })
}

/// Runs workers, each at its own time, until all have come to `to_ns`: the worker whose time is earliest has its turn.
fn run_to(workers: &mut [Worker<VirtualHost>], to_ns: u64) {
    for worker in &mut *workers {
        worker.core.host.alarms.push(Alarm { at_ns: to_ns, client: u32::MAX, user: 0 });
    }
    while let Some(worker) =
        workers.iter_mut().filter(|of| of.core.host.now_ns < to_ns).min_by_key(|of| of.core.host.now_ns)
    {
        let busy = worker.turn();
        worker.enter(busy);
    }
    for worker in workers {
        // The end of the run is no client's.
        worker.core.host.ended.clear();
        worker.core.host.rung.clear();
    }
}

/// When requests completed.
fn completed(log: &Log) -> Vec<u64> {
    log.borrow().iter().filter_map(|(at_ns, saw)| matches!(saw, Saw::Completed { .. }).then_some(*at_ns)).collect()
}

#[test]
fn a_capped_client_gets_its_rate_and_its_worker_sleeps_meanwhile() {
    let mut workers = workers(1, 0, 16);
    let (log, cap) = (Log::default(), iops(10));
    workers[0].adopt(capped(1000, &Caps::new(no_limit(), cap.clone()), &log));
    run_to(&mut workers, 2 * S_NS);
    let times: Vec<u64> = (0..20).map(|tenth| tenth * S_NS / 10).collect();
    assert_eq!(completed(&log), times);
    let sleeps = &workers[0].host().sleeps;
    assert!((19..=21).contains(&sleeps.len()), "one sleep between two requests: {sleeps:?}");
    assert_eq!(workers[0].hctxs()[0].staged(), 0, "what waits is not backlogged to the policy");
    // The first did not wait, the 21st waits still.
    let waits = cap.waits(Capped::Iops);
    assert_eq!((waits.requests, waits.wait_ns), (19, 19 * S_NS / 10));
    assert_eq!(cap.waits(Capped::Bytes), Default::default());
    // But for what the word rounds, a request waited all the time.
    let held_ns = cap.held_ns(Capped::Iops, 2 * S_NS);
    assert!((2 * S_NS..2 * S_NS + 20 * 1024).contains(&held_ns), "{held_ns}");
    assert_eq!(cap.held_ns(Capped::Bytes, 2 * S_NS), 0);
}

#[test]
fn clients_and_workers_under_one_cap_take_turns_however_low_it_is() {
    for (rate, seconds) in [(1, 120), (10, 12), (1000, 2)] {
        let mut workers = workers_with(3, 0, 16, 8, PathOptions::default());
        let cap = iops(rate);
        let caps = Caps::new(no_limit(), cap.clone());
        let logs: Vec<Log> = (0..4).map(|_| Log::default()).collect();
        // Two clients on the first worker, one on each of the others.
        for (log, worker) in logs.iter().zip([0, 0, 1, 2]) {
            workers[worker].adopt(capped(1_000_000, &caps, log));
        }
        run_to(&mut workers, seconds * S_NS);
        let counts: Vec<u64> = logs.iter().map(|log| completed(log).len() as u64).collect();
        let sum: u64 = counts.iter().sum();
        // Three workers wait at the same time, most of the time or all of it.
        let held_ns = cap.held_ns(Capped::Iops, seconds * S_NS);
        assert!(held_ns > seconds * S_NS / 2 && held_ns < seconds * S_NS + S_NS / 100, "{rate}/s: {held_ns}");
        let ideal = rate * seconds;
        assert!((ideal..=ideal + 1 + rate / 100).contains(&sum), "{rate}/s: {counts:?}");
        // Each worker has a third of it, the clients of the first a half of that.
        let parts = [ideal / 6, ideal / 6, ideal / 3, ideal / 3];
        assert!(
            counts.iter().zip(parts).all(|(count, part)| count.abs_diff(part) <= 2 + part / 10),
            "{rate}: {counts:?}"
        );
    }
}

#[test]
fn a_request_passes_the_cap_of_its_export_and_then_that_of_its_tenant() {
    let mut workers = workers(1, 0, 16);
    let (tenant, slow) = (iops(300), iops(100));
    let (of_slow, of_other) = (Log::default(), Log::default());
    workers[0].adopt(capped(1_000_000, &Caps::new(slow.clone(), tenant.clone()), &of_slow));
    workers[0].adopt(capped(1_000_000, &Caps::new(no_limit(), tenant.clone()), &of_other));
    run_to(&mut workers, 4 * S_NS);
    let counts = [&of_slow, &of_other].map(|log| completed(log).len());
    assert!(counts[0].abs_diff(400) <= 2 && counts[1].abs_diff(800) <= 4, "{counts:?}");
    assert!(slow.waits(Capped::Iops).requests > 0 && tenant.waits(Capped::Iops).requests > 700);
}

#[test]
fn bytes_are_capped_beside_requests() {
    let mut workers = workers(1, 0, 16);
    let log = Log::default();
    let cap = Cap::new(CapLimits { iops: Some(1000), bytes_per_s: Some(100 * u64::from(LENGTH_BYTES)) });
    workers[0].adopt(capped(1_000_000, &Caps::new(cap.clone(), no_limit()), &log));
    run_to(&mut workers, 2 * S_NS);
    assert_eq!(completed(&log).len(), 200);
    assert_eq!((cap.waits(Capped::Iops).requests, cap.waits(Capped::Bytes).requests), (0, 199));
}

#[test]
fn a_limit_that_is_set_holds_at_once_for_those_who_wait_and_for_those_who_had_none() {
    let mut workers = workers(1, 0, 16);
    let (log, cap) = (Log::default(), no_limit());
    // 500 microseconds for each.
    workers[0] = worker(500_000, 16);
    workers[0].adopt(capped(1_000_000, &Caps::new(no_limit(), cap.clone()), &log));
    let upto = |workers: &mut [Worker<VirtualHost>], to_ns: u64, limits: CapLimits| {
        run_to(workers, to_ns);
        cap.set(limits, to_ns);
        workers[0].core.host.mail.push_back(Mail::CapsChanged);
        std::mem::take(&mut *log.borrow_mut()).iter().filter(|(_, saw)| matches!(saw, Saw::Completed { .. })).count()
    };
    let limit = |iops| CapLimits { iops: Some(iops), bytes_per_s: None };
    let free = upto(&mut workers, S_NS, limit(1));
    let one = upto(&mut workers, 11 * S_NS, limit(100));
    let hundred = upto(&mut workers, 12 * S_NS, CapLimits::NONE);
    let free_again = upto(&mut workers, 13 * S_NS, limit(1));
    assert!(free.abs_diff(2000) < 4 && free_again.abs_diff(2000) < 20, "{free} {free_again}");
    // Requests staged before the limit came, 16, go beyond it.
    assert!((26..=28).contains(&one) && hundred.abs_diff(100) <= 2, "{one} {hundred}");
}

#[test]
fn a_client_that_leaves_gives_back_what_it_waited_for() {
    let mut workers = workers(2, 0, 16);
    let caps = Caps::new(no_limit(), Cap::new(CapLimits { iops: None, bytes_per_s: Some(u64::from(LENGTH_BYTES)) }));
    let (stays, leaves) = (Log::default(), Log::default());
    let mut witness = Witness::new(100, &[(S_NS / 2, 7)], &leaves);
    witness.last_timer = 7;
    workers[1].adopt(Box::new(WithCaps { caps: caps.clone(), witness }));
    workers[0].adopt(capped(100, &caps, &stays));
    run_to(&mut workers, 10 * S_NS + 1);
    // The client that leaves had the first. Its reservation stood at 1 s, the other's at 2 s: that did not move when it
    // left, and its reservation goes to the next.
    let times: Vec<u64> = completed(&stays).iter().map(|at_ns| at_ns / S_NS).collect();
    assert_eq!((completed(&leaves).len(), times), (1, vec![2, 2, 3, 4, 5, 6, 7, 8, 9, 10]));
    assert!(leaves.borrow().iter().any(|(_, saw)| *saw == Saw::Dropped));
}

#[test]
fn who_comes_to_the_cap_queue_of_one_that_left_does_not_wait_for_its_time() {
    let mut workers = workers(1, 0, 16);
    // A request costs 102 s, and the claim of the second stands there.
    let slow = Cap::new(CapLimits { iops: None, bytes_per_s: Some(u64::from(LENGTH_BYTES) / 100) });
    let (leaves, comes) = (Log::default(), Log::default());
    let mut witness = Witness::new(2, &[(S_NS / 2, 7)], &leaves);
    witness.last_timer = 7;
    workers[0].adopt(Box::new(WithCaps { caps: Caps::new(no_limit(), slow), witness }));
    run_to(&mut workers, S_NS);
    assert!(leaves.borrow().iter().any(|(_, saw)| *saw == Saw::Dropped));
    workers[0].adopt(capped(1000, &Caps::new(no_limit(), iops(10)), &comes));
    run_to(&mut workers, 3 * S_NS);
    let count = completed(&comes).len();
    assert!((20..=26).contains(&count), "{count}");
}

#[test]
fn a_drain_waits_for_no_cap() {
    let mut worker = worker(0, 2);
    let log = Log::default();
    let caps = Caps::new(no_limit(), Cap::new(CapLimits { iops: Some(1), bytes_per_s: Some(4096) }));
    worker.adopt(capped(50, &caps, &log));
    worker.adopt(capped(50, &caps, &log));
    worker.turn();
    assert_eq!(completed(&log).len(), 1);
    let (sender, _drained) = mpsc::channel();
    worker.core.host.mail.push_back(Mail::Drain(sender));
    (0..60).for_each(|_| _ = worker.turn());
    assert_eq!(completed(&log).len(), 100);
    assert_eq!(worker.host().now_ns, 0, "no time was needed");
}

#[test]
fn a_pause_waits_for_no_cap_and_caps_hold_again_after_it() {
    let mut worker = worker(0, 2);
    let caps = Caps::new(no_limit(), iops(1));
    let (first, second) = (Log::default(), Log::default());
    worker.adopt(capped(50, &caps, &first));
    worker.turn();
    assert_eq!(completed(&first).len(), 1);
    let (sender, _quiet) = mpsc::channel();
    worker.pause(false, sender);
    (0..60).for_each(|_| _ = worker.turn());
    assert_eq!((completed(&first).len(), worker.host().now_ns), (50, 0));
    worker.resume();
    worker.adopt(capped(50, &caps, &second));
    (0..60).for_each(|_| _ = worker.turn());
    assert_eq!(completed(&second).len(), 0, "the first request is not paid for yet");
}

#[test]
fn clients_that_wait_for_the_stage_and_for_a_cap_all_get_on() {
    // One request may be staged, and the device takes 5 ms: sometimes the one is short, sometimes the other.
    let mut workers = vec![worker(5_000_000, 1)];
    let caps = Caps::new(no_limit(), iops(200));
    let logs: Vec<Log> = (0..3).map(|_| Log::default()).collect();
    logs.iter().for_each(|log| workers[0].adopt(capped(1_000_000, &caps, log)));
    run_to(&mut workers, 6 * S_NS);
    let counts: Vec<usize> = logs.iter().map(|log| completed(log).len()).collect();
    let sum: usize = counts.iter().sum();
    assert!((1150..=1210).contains(&sum) && counts.iter().all(|count| count.abs_diff(400) <= 40), "{counts:?}");
}

#[test]
fn a_client_whose_caps_have_no_limit_passes_no_cap_queue() {
    let mut worker = worker(0, 16);
    worker.adopt(capped(3, &Caps::none(), &Log::default()));
    assert_eq!(worker.clients[0].counts.cap_queue, NO_CAP_QUEUE);
    worker.work();
    assert_eq!(worker.host().said[..3], [3, 3, 3]);
}

/// Clients of requests of any lengths ask, in their turn and out of it, find the stage full, have nothing any more when
/// they are told, leave, and come.
#[test]
fn clients_pass_in_the_order_in_which_they_waited_and_each_cap_is_charged_what_passed() {
    // A block costs a whole number of the cap's units.
    const BYTES_PER_S: u64 = 32 << 20;
    const CLIENTS: u64 = 5;
    // Requests that had waited for the stage, and passed before requests that wait here.
    let ahead = Cell::new(0);
    for_seeds(60, |draw| {
        let limit = |is_on: bool| CapLimits { iops: None, bytes_per_s: is_on.then_some(BYTES_PER_S) };
        let limits = draw.of(&[[true, true], [true, false], [false, true]]).map(limit);
        let [export, tenant] = limits.map(Cap::new);
        let caps = Caps::new(export.clone(), tenant.clone());
        let mut cap_queues = CapQueues::default();
        let here = cap_queues.enter(&caps);
        (1..CLIENTS).for_each(|_| assert_eq!(cap_queues.enter(&caps), here));
        let (mut now_ns, mut passed_bytes, mut passed) = (0, 0, 0);
        let mut waiting = VecDeque::new();
        for _ in 0..400 {
            if draw.chance(2) && !waiting.is_empty() {
                now_ns = now_ns.max(cap_queues.next_ns().expect("a client waits"));
            }
            let (client, bytes) = (draw.below(CLIENTS) as u32, 4096 * draw.between(1, 16) as u32);
            let (waits, is_told) = (waiting.contains(&client), draw.chance(8));
            if draw.chance(8) {
                assert_eq!(cap_queues.leave(here, client, now_ns), waits);
                waiting.retain(|other| *other != client);
                assert_eq!(cap_queues.enter(&caps), here, "another one comes");
            } else if cap_queues.pass(here, client, is_told && !waits, bytes, now_ns) {
                assert!(waiting.is_empty() || is_told && !waits, "client {client} is before {waiting:?}");
                ahead.update(|ahead| ahead + usize::from(!waiting.is_empty()));
                // Else the stage is full.
                if !draw.chance(8) {
                    cap_queues.passed(here, bytes, now_ns);
                    (passed_bytes, passed) = (passed_bytes + u64::from(bytes), passed + 1);
                }
            } else if !waits {
                waiting.push_back(client);
            }
            while let Some((_, most)) = cap_queues.take_due(now_ns) {
                for _ in 0..most {
                    let Some(client) = cap_queues.tell(here, now_ns) else { break };
                    assert_eq!(Some(client), waiting.pop_front());
                    for _ in 0..draw.below(3) {
                        let bytes = 4096 * draw.between(1, 16) as u32;
                        if !cap_queues.pass(here, client, false, bytes, now_ns) {
                            waiting.push_back(client);
                            break;
                        }
                        cap_queues.passed(here, bytes, now_ns);
                        (passed_bytes, passed) = (passed_bytes + u64::from(bytes), passed + 1);
                    }
                }
                cap_queues.told(here, now_ns);
            }
        }
        (0..CLIENTS as u32).for_each(|client| _ = cap_queues.leave(here, client, now_ns));
        assert!(passed > 50, "{passed} passed");
        let paid_ns = (passed_bytes * S_NS).div_ceil(BYTES_PER_S);
        for cap in [export, tenant].into_iter().filter(|cap| cap.limits() != CapLimits::NONE) {
            assert_eq!(cap.take(4096, now_ns).at_ns, paid_ns, "of {passed} requests at {now_ns} ns");
        }
    });
    assert!(ahead.get() > 0);
}
