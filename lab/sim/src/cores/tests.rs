use super::*;
use crate::machine;
use mqfq_sched_watched::watched::{AtomicU64, Mutex};
use std::rc::Rc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// A machine without any cost but those of memory.
fn machine(sockets: usize, cores_per_socket: usize) -> Machine {
    let mut machine = machine::preset("haswell-2x8").unwrap();
    (machine.sockets, machine.cores_per_socket, machine.threads_per_core) = (sockets, cores_per_socket, 1);
    machine.workers = sockets * cores_per_socket;
    machine.latency.code_per_access_ns = 0.0;
    machine.latency.code_under_lock_ns = 0.0;
    machine.latency.lines_under_lock = 0;
    machine.latency.jitter_share = 0.0;
    machine
}

#[repr(align(128))]
struct Padded<T>(T);

fn each<R: 'static>(machine: &Machine, body: impl Fn(usize) -> R + Clone + 'static) -> Finished<R> {
    let bodies = (0..machine.workers).map(|core| {
        let body = body.clone();
        Box::new(move || body(core)) as Box<dyn FnOnce() -> R>
    });
    run(Cores::new(machine, Drive::null(), 1), bodies.collect(), || Ok(())).unwrap()
}

#[test]
fn a_shared_counter_is_as_slow_as_its_line_changes_hands() {
    const TIMES: u64 = 1000;
    let count = |machine: &Machine| {
        let word = Rc::new(Padded(AtomicU64::new(0)));
        let shared = word.clone();
        let finished = each(machine, move |_| {
            for _ in 0..TIMES {
                shared.0.fetch_add(1, AcqRel);
            }
        });
        assert_eq!(word.0.fetch_add(0, AcqRel), TIMES * machine.workers as u64, "nothing is lost");
        finished.end as f64 / 1000.0 / (TIMES * machine.workers as u64) as f64
    };
    let alone = count(&machine(1, 1));
    assert!((8.0..8.2).contains(&alone), "one locked instruction: {alone} ns");
    // All at once: the line goes round every 50 ns, and each core adds a few times while it has it.
    let four = count(&machine(1, 4));
    assert!((1.3 * alone..25.0).contains(&four), "{four} ns");
    // In the order of asking, which is that of the cores: two of eight hand-overs cross, and the whole line waits for
    // them.
    let two_sockets = count(&machine(2, 4));
    assert!((1.1 * four..3.0 * four).contains(&two_sockets), "{two_sockets} ns, {four} ns");
}

#[test]
fn what_only_one_core_touches_costs_the_same_on_any_machine() {
    for (sockets, cores) in [(1, 1), (2, 8), (8, 16)] {
        let finished = each(&machine(sockets, cores), |_| {
            let own = Padded(AtomicU64::new(0));
            for _ in 0..100 {
                own.0.fetch_add(1, AcqRel);
            }
        });
        // From memory once, then 100 times the instruction. Stacks lie apart, so no line is shared.
        let ns = finished.end as f64 / 1000.0;
        assert!((890.0..=891.0).contains(&ns), "{sockets} x {cores}: {ns} ns");
        assert_eq!(finished.memory.transfers_other_socket + finished.memory.transfers_same_socket, 0);
    }
}

#[test]
fn plain_lines_under_a_lock_come_from_who_had_the_lock_before() {
    const TIMES: u64 = 200;
    const LINES: usize = 10;
    // Each core in turn takes the lock and touches so many lines.
    let run = |workers: usize, lines: usize| {
        let shared = Rc::new((Padded(Mutex::new(())), Padded([[0u64; 8]; LINES])));
        let finished = each(&machine(1, workers), move |_| {
            for _ in 0..TIMES {
                let guard = shared.0.0.lock().unwrap();
                (0..lines).for_each(|at| watched::touch(&shared.1.0, at));
                drop(guard);
            }
        });
        (finished.end as f64 / 1000.0 / (TIMES * workers as u64) as f64, finished.memory)
    };
    // Alone: a load that hits, each (and from memory once).
    let (alone, alone_touching) = (run(1, 0).0, run(1, LINES).0);
    assert!((8.0..15.0).contains(&(alone_touching - alone)), "{alone} ns, {alone_touching} ns with lines");
    // Four: a transfer of 42 ns and the load, each.
    let ((four, _), (touching, memory)) = (run(4, 0), run(4, LINES));
    assert!((420.0..440.0).contains(&(touching - four)), "{four} ns, {touching} ns with lines");
    assert_eq!(memory.waited_for_line_ns, 0, "who has the lock waits for nobody's use of the lines");
}

#[test]
fn compare_and_exchange_fails_when_another_core_was_first() {
    let word = Rc::new(Padded(AtomicU64::new(0)));
    let finished = each(&machine(1, 4), move |_| {
        let mut failed = 0u64;
        for _ in 0..200 {
            let mut seen = word.0.load(Acquire);
            while let Err(actual) = word.0.compare_exchange(seen, seen + 1, AcqRel, Acquire) {
                seen = actual;
                failed += 1;
            }
        }
        (failed, word.0.load(Acquire))
    });
    let failed: u64 = finished.results.iter().map(|(failed, _)| failed).sum();
    assert!(failed > 100, "four cores load, then exchange: {failed} of 800 failed");
    assert_eq!(finished.results.iter().map(|(_, seen)| *seen).max(), Some(800));
}

#[test]
fn a_lock_is_held_by_one_and_handed_on_in_order() {
    let lock = Rc::new(Padded(Mutex::new(Vec::new())));
    let order = lock.clone();
    let finished = each(&machine(1, 8), move |core| {
        // One after the other, a nanosecond apart: all ask while the first still holds it.
        super::core::compute(core as u64 * 1000);
        let mut inside = lock.0.lock().unwrap();
        inside.push(core);
        // Held over many accesses of its own and of others.
        let own = Padded(AtomicU64::new(0));
        for _ in 0..100 {
            own.0.fetch_add(1, AcqRel);
        }
        assert_eq!(inside.last(), Some(&core), "somebody else was inside");
    });
    assert_eq!(*order.0.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    // The last waits for seven others, some 800 ns each.
    assert!(finished.memory.waited_for_lock_ns > (1..8).sum::<u64>() * 800, "{:?}", finished.memory);
}

#[test]
fn a_lock_that_barges_stays_where_it_is_and_nobody_waits_for_ever() {
    let returns = |barge: bool| {
        let mut machine = machine(1, 2);
        machine.latency.locks_barge = barge;
        machine.latency.lock_look_ns = 300.0;
        machine.latency.futex_ns = 250.0;
        let lock = Rc::new(Padded(Mutex::new(Vec::new())));
        let holders = lock.clone();
        each(&machine, move |core| {
            for _ in 0..500 {
                let mut inside = lock.0.lock().unwrap();
                inside.push(core);
                // Longer than the line takes, so that the other finds it locked.
                super::core::compute(60_000);
                drop(inside);
                super::core::compute(5_000);
            }
        });
        let holders = holders.0.lock().unwrap();
        assert_eq!(holders.len(), 1000);
        holders.windows(2).filter(|pair| pair[0] == pair[1]).count()
    };
    let (queued, barging) = (returns(false), returns(true));
    assert!(queued < 10, "both want it, and it goes to and fro: {queued} returns");
    assert!(barging > 600, "the holder is back before those that wait have seen it free: {barging} returns");
}

#[test]
fn a_store_waits_in_the_buffer_and_a_fence_for_it() {
    let word = Rc::new(Padded(AtomicU64::new(0)));
    let finished = each(&machine(1, 2), move |core| {
        let now = || super::core::now_ns();
        if core == 0 {
            word.0.fetch_add(1, AcqRel);
            return (0, 0);
        }
        super::core::compute(1_000_000);
        let start = now();
        word.0.store(7, Release);
        let stored = now();
        mqfq_sched_watched::watched::fence(std::sync::atomic::Ordering::SeqCst);
        (stored - start, now() - start)
    });
    let (store_ns, fenced_ns) = finished.results[1];
    assert!(store_ns <= 1, "{store_ns}");
    assert!((42 + 14..=42 + 15).contains(&fenced_ns), "the line comes, then the fence: {fenced_ns}");
}

#[test]
fn a_sleeper_wakes_when_it_is_rung_and_not_before() {
    let finished = each(&machine(2, 1), |core| {
        if core == 0 {
            super::core::sleep(None);
            return super::core::now_ns();
        }
        super::core::compute(5_000_000);
        super::core::ring(0);
        0
    });
    // 5 us, the kick itself, the way to the other socket, waking up.
    assert_eq!(finished.results[0], 5000 + 250 + 1000 + 300);
    assert_eq!(finished.counts.kicks, 1);
}

#[test]
fn a_ring_before_the_sleep_is_not_lost() {
    let finished = each(&machine(1, 2), |core| {
        if core == 1 {
            super::core::ring(0);
            return true;
        }
        super::core::compute(10_000_000);
        super::core::sleep(None);
        super::core::now_ns() < 20_000
    });
    assert!(finished.results[0]);
}

#[test]
fn two_threads_of_a_core_slow_each_other_down() {
    let mut machine = machine(1, 1);
    (machine.threads_per_core, machine.workers) = (2, 2);
    let both = each(&machine, |_| {
        for _ in 0..100 {
            super::core::compute(1_000_000);
            super::core::device(|_, _, _| ());
        }
    });
    // Together 1.25 times one: 200 us of work in 160.
    let us = both.end as f64 / 1e6;
    assert!((155.0..=161.0).contains(&us), "{us}");
}

#[test]
fn the_same_run_gives_the_same_times_wherever_memory_lies() {
    let go = |size: usize| {
        let moved = vec![0u8; size];
        let words: Rc<Vec<Padded<AtomicU64>>> = Rc::new((0..8).map(|_| Padded(AtomicU64::new(0))).collect());
        let finished = each(&machine(2, 4), move |core| {
            for turn in 0..200 {
                words[(core + turn) % 8].0.fetch_add(1, AcqRel);
                words[turn % 8].0.load(Acquire);
            }
        });
        drop(moved);
        (finished.end, finished.counts.events, finished.memory)
    };
    let first = go(0);
    assert!((1..50).all(|size| go(size * 1237) == first));
}

#[test]
fn who_sleeps_for_ever_is_an_error_and_leaves_nothing_behind() {
    let lock = Rc::new(Padded(Mutex::new(0)));
    let held = lock.clone();
    let body = Box::new(move || {
        let _inside = held.0.lock().unwrap();
        super::core::sleep(None);
    });
    let bodies: Vec<Box<dyn FnOnce()>> = vec![body];
    let said = run(Cores::new(&machine(1, 1), Drive::null(), 1), bodies, || Err("nobody will wake it".into()));
    assert_eq!(said.err().unwrap(), "nobody will wake it");
    assert_eq!(Rc::strong_count(&lock), 1, "the core's stack was unwound");
    assert!(watched::watch(None).is_none(), "nobody watches any more");
}

#[test]
fn a_ring_does_not_put_an_alarm_off() {
    let finished = each(&machine(2, 1), |core| {
        if core == 0 {
            super::core::sleep(Some(5_500_000));
            return super::core::now_ns();
        }
        super::core::compute(5_000_000);
        super::core::ring(0);
        0
    });
    // The ring would have it awake at 6.25 us; its alarm comes first, then waking up.
    assert_eq!(finished.results[0], 5500 + 300);
}
