use super::*;
use mqfq_testing::Random;
use std::sync::Condvar;
use std::sync::atomic::{AtomicI64, AtomicUsize};

const MIB: u64 = 1 << 20;

fn gate_and_member(size_bytes: u64) -> (Gate, Member) {
    let gate = Gate::new(size_bytes);
    let member = gate.join(HctxId(0), Arc::new(|_| {}));
    (gate, member)
}

fn grants(gate: &Gate, member: &Member) -> Vec<u16> {
    let mut out = Vec::new();
    gate.take_grants(member, &mut out);
    out
}

#[test]
fn a_device_of_any_size_has_at_most_65536_regions_that_cover_it() {
    for size_bytes in [1, 1 << 20, (1 << 20) + 1, 1 << 36, (1 << 36) + 1, 1 << 60] {
        let gate = Gate::new(size_bytes);
        assert!(gate.words.len() as u64 <= REGIONS_MAX);
        let last = gate.hold(size_bytes - 1, 1, false).last as usize;
        assert_eq!(last, gate.words.len() - 1, "{size_bytes}");
    }
}

#[test]
fn a_hold_covers_its_first_and_last_byte_and_no_region_beyond() {
    let (gate, me) = gate_and_member(3 * MIB);
    for (offset_bytes, length_bytes, regions) in [
        (0, 1, 0..=0),
        (0, 1 << 20, 0..=0),
        (MIB - 1, 1, 0..=0),
        (MIB, 1, 1..=1),
        (MIB - 1, 2, 0..=1),
        (MIB - 4095, 4096, 0..=1),
        (MIB, (1 << 20) + 1, 1..=2),
        (MIB - 1, (1 << 20) + 2, 0..=2),
    ] {
        let context = format!("{offset_bytes}+{length_bytes}");
        let mut hold = gate.hold(offset_bytes, length_bytes, true);
        assert!(gate.enter(&me, 0, &mut hold));
        let held = (0..3).filter(|&region| gate.words[region as usize].load(Relaxed) == ALONE);
        assert!(held.eq(regions), "{context}");
        gate.leave(&me, &mut hold);
        assert!(gate.words.iter().all(|word| word.load(Relaxed) == 0), "{context}");
    }
}

#[test]
fn a_patch_of_the_one_byte_by_which_a_write_crosses_into_a_region_waits_for_it() {
    let (gate, me) = gate_and_member(2 * MIB);
    let mut write = gate.hold(MIB - 4095, 4096, false);
    assert!(gate.enter(&me, 0, &mut write));
    let mut patch = gate.hold(MIB, 1, true);
    assert!(!gate.enter(&me, 1, &mut patch));
    gate.leave(&me, &mut write);
    assert_eq!(grants(&gate, &me), [1]);
}

#[test]
fn whole_block_writes_share_a_region_and_a_patch_waits_for_all_of_them() {
    let (gate, me) = gate_and_member(1 << 20);
    let mut writes = [gate.hold(0, 4096, false), gate.hold(4096, 4096, false)];
    for (tag, hold) in writes.iter_mut().enumerate() {
        assert!(gate.enter(&me, tag as u16, hold));
    }
    let mut patch = gate.hold(10, 5, true);
    assert!(!gate.enter(&me, 2, &mut patch));
    gate.leave(&me, &mut writes[0]);
    assert_eq!(grants(&gate, &me), [0u16; 0], "one write is still inside");
    gate.leave(&me, &mut writes[1]);
    assert_eq!(grants(&gate, &me), [2]);
}

#[test]
fn nobody_passes_one_who_waits() {
    // Held shared; a patch waits; a later write could share, but goes behind the patch.
    let (gate, me) = gate_and_member(1 << 20);
    let mut first = gate.hold(0, 4096, false);
    assert!(gate.enter(&me, 0, &mut first));
    let (mut patch, mut late) = (gate.hold(1, 1, true), gate.hold(8192, 4096, false));
    assert!(!gate.enter(&me, 1, &mut patch));
    assert!(!gate.enter(&me, 2, &mut late));
    gate.leave(&me, &mut first);
    assert_eq!(grants(&gate, &me), [1]);
    Gate::granted(&mut patch);
    gate.leave(&me, &mut patch);
    assert_eq!(grants(&gate, &me), [2]);
    Gate::granted(&mut late);
    gate.leave(&me, &mut late);
    assert!(gate.words.iter().all(|word| word.load(Relaxed) == 0));
    assert!(gate.lines().waiting.is_empty());
}

#[test]
fn patches_that_cross_each_other_take_turns_instead_of_waiting_in_a_ring() {
    // Three regions. A needs 0 and 1, B needs 1 and 2, C needs 0..=2; entered in every order, all get through.
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (gate, me) = gate_and_member(3 << 20);
        let mib = 1 << 20;
        let mut holds =
            [gate.hold(mib - 1, 2, true), gate.hold(2 * mib - 1, 2, true), gate.hold(0, 3 * mib as u32, true)];
        let mut inside: Vec<u16> = Vec::new();
        for tag in order {
            if gate.enter(&me, tag, &mut holds[tag as usize]) {
                inside.push(tag);
            }
        }
        let mut through = 0;
        while let Some(tag) = inside.pop() {
            through += 1;
            gate.leave(&me, &mut holds[tag as usize]);
            for granted in grants(&gate, &me) {
                let hold = &mut holds[granted as usize];
                Gate::granted(hold);
                if gate.enter(&me, granted, hold) {
                    inside.push(granted);
                }
            }
        }
        assert_eq!(through, 3, "order {order:?}");
    }
}

#[test]
fn a_queue_that_goes_away_while_it_waits_holds_nobody_up() {
    let gate = Gate::new(1 << 20);
    let (a, b) = (gate.join(HctxId(0), Arc::new(|_| {})), gate.join(HctxId(1), Arc::new(|_| {})));
    let (mut write, mut patch, mut late) = (gate.hold(0, 1, false), gate.hold(0, 1, true), gate.hold(0, 1, false));
    assert!(gate.enter(&a, 0, &mut write));
    assert!(!gate.enter(&b, 0, &mut patch));
    assert!(!gate.enter(&a, 1, &mut late));
    gate.withdraw(&b, &mut Vec::new());
    assert_eq!(grants(&gate, &a), [1], "with the patch gone, the late write shares with the first");
}

/// The gate as one would write it on paper: each region's holders and waiters, in order.
#[derive(Default)]
struct Paper {
    inside: [Vec<(u16, bool)>; REGIONS],
    line: [VecDeque<(u16, bool)>; REGIONS],
}

const REGIONS: usize = 4;

impl Paper {
    fn admits(&self, region: usize, alone: bool) -> bool {
        let inside = &self.inside[region];
        inside.is_empty() || (!alone && inside.iter().all(|&(_, alone)| !alone))
    }

    /// Enters from region `from` on; false: it waits.
    fn enter(&mut self, tag: u16, alone: bool, from: usize, last: usize) -> bool {
        for region in from..=last {
            if !self.line[region].is_empty() || !self.admits(region, alone) {
                self.line[region].push_back((tag, alone));
                return false;
            }
            self.inside[region].push((tag, alone));
        }
        true
    }

    /// Returns the tags let into one more region, each with the region.
    fn leave(&mut self, tag: u16, regions: std::ops::RangeInclusive<usize>) -> Vec<(u16, usize)> {
        let mut granted = Vec::new();
        for region in regions {
            self.inside[region].retain(|&(inside, _)| inside != tag);
            while let Some(&(next, alone)) = self.line[region].front()
                && self.admits(region, alone)
            {
                self.line[region].pop_front();
                self.inside[region].push((next, alone));
                granted.push((next, region));
            }
        }
        granted
    }

    /// G1.
    fn assert_nobody_meets(&self) {
        for inside in &self.inside {
            assert!(inside.len() < 2 || inside.iter().all(|&(_, alone)| !alone), "met inside: {inside:?}");
        }
    }
}

/// A write of the history below.
struct Write {
    tag: u16,
    member: usize,
    hold: Hold,
    last: usize,
    is_in: bool,
}

#[test]
fn generated_histories_of_three_queues_agree_with_a_gate_on_paper() {
    const UNDER_WAY: usize = 7;
    for seed in 0..40_u64 {
        let gate = Gate::new(REGIONS as u64 * MIB);
        let rung: Arc<Mutex<Vec<usize>>> = Arc::new(Mutex::new(Vec::new()));
        let join = |hctx| {
            let rung = rung.clone();
            gate.join(HctxId(hctx), Arc::new(move |HctxId(whom)| rung.lock().unwrap().push(whom.into())))
        };
        let members = [join(0), join(1), join(2)];
        let (mut paper, mut writes, mut draw) = (Paper::default(), Vec::<Write>::new(), Random::new(seed));
        let mut below = |bound: u64| draw.below(bound);
        for step in 0..2_000_u16 {
            let inside: Vec<usize> = (0..writes.len()).filter(|&at| writes[at].is_in).collect();
            assert!(writes.is_empty() || !inside.is_empty(), "all wait, nobody is inside (G4)");
            if writes.len() < UNDER_WAY && (inside.is_empty() || below(2) == 0) {
                let (member, alone) = (below(3) as usize, below(3) == 0);
                let first = below(REGIONS as u64);
                let last = (first + below(2)).min(REGIONS as u64 - 1);
                // One byte of its last region.
                let length_bytes = ((last - first) * MIB + 1) as u32;
                let mut hold = gate.hold(first * MIB, length_bytes, alone);
                let is_in = gate.enter(&members[member], step, &mut hold);
                assert_eq!(is_in, paper.enter(step, alone, first as usize, last as usize), "seed {seed}, step {step}");
                writes.push(Write { tag: step, member, hold, last: last as usize, is_in });
                continue;
            }
            let Write { tag, member, mut hold, last, .. } =
                writes.swap_remove(inside[below(inside.len() as u64) as usize]);
            let expected = paper.leave(tag, hold.first as usize..=last);
            gate.leave(&members[member], &mut hold);
            follow(&gate, &members, &mut writes, &mut paper, expected, &format!("seed {seed}, step {step}"));
            let rung = std::mem::take(&mut *rung.lock().unwrap());
            assert!(!rung.contains(&member), "seed {seed}, step {step}: who leaves looks for itself");
        }
    }
}

/// Checks that the gate let in the paper's tags; all go on.
fn follow(
    gate: &Gate,
    members: &[Member],
    writes: &mut [Write],
    paper: &mut Paper,
    mut expected: Vec<(u16, usize)>,
    context: &str,
) {
    paper.assert_nobody_meets();
    let mut granted: Vec<u16> = members.iter().flat_map(|member| grants(gate, member)).collect();
    granted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(granted, expected.iter().map(|&(tag, _)| tag).collect::<Vec<_>>(), "{context}");
    for (tag, region) in expected {
        let write = writes.iter_mut().find(|write| write.tag == tag).expect("who is let in is under way");
        Gate::granted(&mut write.hold);
        write.is_in = gate.enter(&members[write.member], tag, &mut write.hold);
        let is_in = paper.enter(tag, write.hold.alone, region + 1, write.last);
        assert_eq!(write.is_in, is_in, "{context}, tag {tag}");
        paper.assert_nobody_meets();
    }
}

#[test]
fn threads_that_are_inside_for_a_while_never_meet_and_each_gets_in_as_often_as_it_asks() {
    // Four queues over three regions, every third write a patch of two regions. `inside` counts per region: +1 a
    // sharer, -1000 a patch. A holder lets the others run, so that on few cores, too, they would meet. A lost
    // wake-up shows as a thread that waits for its bell for ever.
    const ROUNDS: usize = 500;
    const YIELDS: usize = 3;
    let gate = Gate::new(3 * MIB);
    let inside: [AtomicI64; 3] = Default::default();
    let bells: Vec<_> = (0..4).map(|_| Arc::new((Mutex::new(false), Condvar::new()))).collect();
    let (entered, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begins = std::sync::Barrier::new(4);
    let work = |hctx: u16| {
        let rung = bells.clone();
        // HctxId of a member is its thread's number, whatever order they joined in.
        let ring = move |HctxId(whom): HctxId| {
            *rung[usize::from(whom)].0.lock().unwrap() = true;
            rung[usize::from(whom)].1.notify_one();
        };
        let member = gate.join(HctxId(hctx), Arc::new(ring));
        let (flag, bell) = &*bells[usize::from(hctx)];
        if hctx != 0 {
            begins.wait();
        }
        for round in 0..ROUNDS {
            let alone = (round + usize::from(hctx)).is_multiple_of(3);
            let first = (round * 7 + usize::from(hctx)) % 2;
            let mut hold = gate.hold(first as u64 * MIB, (1 << 20) + 1, alone);
            let mut is_in = gate.enter(&member, 0, &mut hold);
            waited.fetch_add(usize::from(!is_in), Relaxed);
            while !is_in {
                let mut rung = bell.wait_while(flag.lock().unwrap(), |rung| !*rung).unwrap();
                *rung = false;
                drop(rung);
                for _ in grants(&gate, &member) {
                    Gate::granted(&mut hold);
                    is_in = gate.enter(&member, 0, &mut hold);
                }
            }
            let weight = if alone { -1000 } else { 1 };
            for region in &inside[first..=first + 1] {
                let before = region.fetch_add(weight, Relaxed);
                assert!(if alone { before == 0 } else { before >= 0 }, "met inside: {before}");
            }
            if (hctx, round) == (0, 0) {
                // Alone inside, until another has to wait: on a busy machine none might meet another.
                begins.wait();
                while waited.load(Relaxed) == 0 {
                    std::thread::yield_now();
                }
            }
            (0..YIELDS).for_each(|_| std::thread::yield_now());
            entered.fetch_add(1, Relaxed);
            for region in &inside[first..=first + 1] {
                region.fetch_sub(weight, Relaxed);
            }
            gate.leave(&member, &mut hold);
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|hctx| {
            _ = {
                let work = &work;
                scope.spawn(move || work(hctx))
            }
        })
    });
    assert_eq!(entered.load(Relaxed), 4 * ROUNDS);
    assert!(waited.load(Relaxed) > 0, "nobody ever waited");
    assert!(gate.words.iter().all(|word| word.load(Relaxed) == 0));
}
