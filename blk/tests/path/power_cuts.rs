//! Bytes reported as stable are there after a power cut, whatever became of the request on its way: whole or in
//! parts, or sent again, under every policy, over queues of its own and shared ones.
//!
//! The device is memory behind a volatile cache, of which a cut keeps some sectors by chance. So each round first makes
//! old bytes stable, then asks for new ones, FUA and not, side by side; after the cut a block of an acknowledged FUA
//! request holds new bytes alone, and of the others enough hold old ones to show that the cache does lose bytes that
//! nothing covered.

use crate::harness::{RequestSpec, Rig, Setup, bytes, is_all};
use mqfq_blk::device::Device;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::split::Split;
use mqfq_blk::{PolicyKind, Topology};
use mqfq_blkmq::{QueueLayout, QueueMap, SharedQueues, Spread};
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Kind, OnAbort, When};
use mqfq_testing_devices::faulty::Faulty;
use std::sync::Arc;

const BLOCK: u32 = 4096;
const WORKERS: usize = 2;
const QUEUE_DEPTH: u16 = 32;
const OLD: u8 = b'o';

const OPS: [Op; 4] =
    [Op::Write, Op::WriteZeroes { may_unmap: true }, Op::WriteZeroes { may_unmap: false }, Op::Discard];

/// Blocks of a run, in the order of their bytes: which are FUA. Neighbours that are and are not, and several of each.
const RUN: [bool; 8] = [true, true, true, false, false, true, false, true];

/// Blocks of a round: a run of each operation upwards, and one downwards.
const BLOCKS: u64 = (2 * OPS.len() * RUN.len()) as u64;

/// A device through ports of shared queues.
fn shared(inner: Arc<Faulty>, layout: &QueueLayout) -> SharedQueues {
    let map = QueueMap::new(layout, &Topology::flat(WORKERS), &*inner, QUEUE_DEPTH).unwrap();
    SharedQueues::open(inner, map, QUEUE_DEPTH).unwrap()
}

/// Memory behind a volatile cache with these faults.
fn cached(plan: FaultPlan) -> FaultDevice {
    FaultDevice::new(Arc::new(memory()), with_a_cache(plan))
}

fn memory() -> MemoryDevice {
    MemoryDevice::new(BLOCKS * u64::from(BLOCK))
}

fn with_a_cache(plan: FaultPlan) -> FaultPlan {
    FaultPlan { volatile_cache: true, ..plan }
}

fn setup(kind: PolicyKind, path: PathOptions) -> Setup {
    Setup {
        kind,
        workers: WORKERS,
        weights: vec![100, 300],
        depth: 16,
        queue_depth: QUEUE_DEPTH,
        path,
        requests_max: 256,
    }
}

struct Round<'a> {
    rig: Rig,
    device: &'a FaultDevice,
    /// By block: operation and fill of the last request, and whether with FUA.
    asked: Vec<(Op, u8, bool)>,
    /// Blocks without FUA that a cut took old bytes back to, so far.
    lost: usize,
    context: String,
}

impl Round<'_> {
    fn new<'a>(setup: &Setup, door: &dyn Device, device: &'a FaultDevice, context: String) -> Round<'a> {
        let asked = vec![(Op::Write, OLD, false); BLOCKS as usize];
        Round { rig: Rig::new(setup, door), device, asked, lost: 0, context }
    }

    fn ask(&mut self, block: u64, op: Op, fill: u8, fua: bool) {
        let flow = (block / 8 % 2) as u32;
        let asked = RequestSpec { flow, op, offset_bytes: block * u64::from(BLOCK), length_bytes: BLOCK, fill };
        let worker = (block / RUN.len() as u64) as usize % WORKERS;
        self.rig.submit(worker, asked, fua).expect("within the bound");
    }

    fn finish(&mut self) {
        for ended in self.rig.finish() {
            assert_eq!(ended.completion.status, Status::Ok, "{}: {:?}", self.context, ended.asked);
        }
    }

    /// All blocks are full of `OLD`, which no cut takes back.
    fn make_old_bytes_stable(&mut self) {
        (0..BLOCKS).for_each(|block| self.ask(block, Op::Write, OLD, false));
        self.finish();
        let asked = RequestSpec { flow: 0, op: Op::Flush, offset_bytes: 0, length_bytes: 0, fill: 0 };
        self.rig.submit(0, asked, false).expect("within the bound");
        self.finish();
        assert!(self.device.is_clean(), "{}: after a flush", self.context);
    }

    /// A run of each operation upwards, and one downwards.
    fn ask_for_new_bytes(&mut self, fill: u8) {
        for (n, op) in (0..).zip(OPS.into_iter().chain(OPS)) {
            let upwards = (0..RUN.len()).map(|at| (n * RUN.len() + at, RUN[at]));
            let run: Vec<(usize, bool)> = if n < OPS.len() { upwards.collect() } else { upwards.rev().collect() };
            for (block, fua) in run {
                self.asked[block] = (op, if op == Op::Write { fill } else { 0 }, fua);
                self.ask(block as u64, op, fill, fua);
            }
        }
        self.finish();
    }

    /// Cuts the power and reads everything back.
    fn cut_and_check(&mut self) {
        assert!(!self.device.is_clean(), "{}: what is not FUA is cached", self.context);
        self.device.power_cut();
        (0..BLOCKS).for_each(|block| self.ask(block, Op::Read, 0, false));
        for ended in self.rig.finish() {
            let (block, seen) = (ended.asked.offset_bytes / u64::from(BLOCK), bytes(&ended));
            let (op, fill, fua) = self.asked[block as usize];
            let is_new = seen.iter().all(|&byte| byte == fill);
            assert!(is_new || !fua, "{}: the cut lost block {block}, {op:?} with FUA", self.context);
            assert!(seen.iter().all(|&byte| [fill, OLD].contains(&byte)), "{}: block {block}", self.context);
            self.lost += usize::from(!is_new);
        }
    }

    fn run(&mut self, fill: u8) {
        self.make_old_bytes_stable();
        self.ask_for_new_bytes(fill);
        self.cut_and_check();
    }
}

/// Rounds of one setup on one device; `layout`: its queues are shared.
fn survives(kind: PolicyKind, path: PathOptions, plan: FaultPlan, layout: Option<QueueLayout>) -> Rig {
    let context = format!("{kind}, {plan:?}, {layout:?}");
    let device = Arc::new(Faulty::new(Arc::new(memory()), with_a_cache(plan)));
    let mut round = match &layout {
        None => Round::new(&setup(kind, path), &*device, &device, context),
        Some(layout) => Round::new(&setup(kind, path), &shared(device.clone(), layout), &device, context),
    };
    (1..=3).for_each(|fill| round.run(fill));
    // 24 of the 64 blocks are not FUA; a cut brings one in four back whole, and the others in parts.
    assert!(round.lost > 24, "{}: {} of 72 were lost", round.context, round.lost);
    round.rig.assert_clean();
    round.rig
}

#[test]
fn acknowledged_fua_requests_survive_a_power_cut_under_every_policy() {
    for kind in mqfq_policies::ALL {
        survives(kind, PathOptions::TIMELESS, FaultPlan { seed: 7, ..FaultPlan::default() }, None);
    }
}

#[test]
fn acknowledged_fua_requests_survive_a_power_cut_over_shared_queues() {
    let layouts = [
        QueueLayout::SQ,
        QueueLayout::mq(Spread::PerCore, Spread::Single),
        QueueLayout::mq(Spread::Single, Spread::PerCore),
    ];
    for layout in layouts {
        for kind in mqfq_policies::ALL {
            survives(kind, PathOptions::TIMELESS, FaultPlan { seed: 8, ..FaultPlan::default() }, Some(layout));
        }
    }
}

/// The first four blocks full of old bytes that no cut takes back.
fn with_old_bytes(kind: PolicyKind, path: PathOptions, device: &FaultDevice) -> Rig {
    let mut rig = Rig::new(&setup(kind, path), device);
    rig.write(0, 0, 4 * BLOCK, OLD);
    assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::Ok));
    rig.ask(0, Op::Flush, 0, 0, 0);
    assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::Ok));
    rig
}

fn ask_with_fua(rig: &mut Rig, op: Op, block: u64, fill: u8) {
    let asked = RequestSpec { flow: 0, op, offset_bytes: block * u64::from(BLOCK), length_bytes: BLOCK, fill };
    rig.submit(0, asked, true).expect("within the bound");
}

/// After a power cut these blocks are full of `fill`.
fn expect_after_a_cut(rig: &mut Rig, device: &FaultDevice, blocks: std::ops::Range<u64>, fill: u8, context: &str) {
    device.power_cut();
    blocks.for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
    for ended in rig.finish() {
        let block = ended.asked.offset_bytes / u64::from(BLOCK);
        assert!(is_all(&ended, fill), "{context}: the cut lost block {block}");
    }
    rig.assert_clean();
}

#[test]
fn a_fua_request_that_a_reset_gave_back_is_still_fua_when_it_goes_again() {
    const TIMEOUT_NS: u64 = 1_000_000;
    for (op, of) in OPS.into_iter().zip([Kind::Write, Kind::WriteZeroes, Kind::WriteZeroes, Kind::Discard]) {
        // The second write is forgotten, which ends in a reset; with it the FUA request comes back, forgotten, too.
        let nth = if op == Op::Write { 2 } else { 0 };
        let forget = |kind, nth| FaultRule::of(kind, When::Nth(nth), Fault::Forget);
        let rules = vec![forget(Kind::Write, 1), forget(of, nth)];
        let device = cached(FaultPlan { seed: 10, rules, ..FaultPlan::default() });
        let path = PathOptions { timeout_ns: TIMEOUT_NS, ..PathOptions::default() };
        let mut rig = with_old_bytes(PolicyKind::None, path, &device);
        rig.write(0, 3 * u64::from(BLOCK), BLOCK, b'x');
        rig.run();
        rig.advance();
        // Later, so that it has not timed out when the queue is reset.
        rig.now_ns += TIMEOUT_NS / 2;
        let fill = if op == Op::Write { b'n' } else { 0 };
        ask_with_fua(&mut rig, op, 0, fill);
        let mut statuses: Vec<(u64, Status)> =
            rig.finish().iter().map(|ended| (ended.asked.offset_bytes, ended.completion.status)).collect();
        statuses.sort_unstable_by_key(|&(offset_bytes, _)| offset_bytes);
        let context = format!("{op:?}");
        assert_eq!(statuses, [(0, Status::Ok), (3 * u64::from(BLOCK), Status::TimedOut)], "{context}");
        assert_eq!((rig.stats().resets, rig.stats().replays), (1, 1), "{context}");
        expect_after_a_cut(&mut rig, &device, 0..1, fill, &context);
    }
}

#[test]
fn every_part_of_an_acknowledged_fua_write_survives_a_power_cut() {
    const HALF: u32 = BLOCKS as u32 / 2;
    for kind in mqfq_policies::ALL {
        let context = format!("{kind}");
        // The tenth command is a part, which is forgotten, given back by a reset and goes again.
        let rules = vec![FaultRule::of(Kind::Write, When::Nth(9), Fault::Forget)];
        let plan = FaultPlan { seed: 10, rules, on_abort: OnAbort::Refused, ..FaultPlan::default() };
        let device = cached(plan);
        let (split, timeout_ns) = (Split::Bytes(3 * BLOCK), 1_000_000);
        let mut rig = Rig::new(&setup(kind, PathOptions { split, timeout_ns, ..PathOptions::TIMELESS }), &device);
        let write = |rig: &mut Rig, first: u32, blocks: u32, fill: u8, fua: bool| {
            let (offset_bytes, length_bytes) = (u64::from(first * BLOCK), blocks * BLOCK);
            rig.submit(0, RequestSpec { flow: 0, op: Op::Write, offset_bytes, length_bytes, fill }, fua)
                .expect("within the bound");
        };
        write(&mut rig, 0, 2 * HALF, OLD, true);
        assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::TimedOut), "{context}: the culprit");
        write(&mut rig, 0, 2 * HALF, OLD, true);
        assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::Ok), "{context}");
        assert!(device.is_clean(), "{context}: FUA is each part's");
        write(&mut rig, 0, HALF, b'n', true);
        write(&mut rig, HALF, HALF, b'n', false);
        let ended = rig.finish();
        assert!(ended.len() == 2 && ended.iter().all(|ended| ended.completion.status == Status::Ok), "{context}");
        device.power_cut();
        (0..BLOCKS).for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
        let mut lost = 0;
        for ended in rig.finish() {
            let is_new = is_all(&ended, b'n');
            assert!(is_new || ended.asked.offset_bytes >= u64::from(HALF * BLOCK), "{context}: {:?}", ended.asked);
            lost += usize::from(!is_new);
        }
        assert!(lost > 4, "{context}: {lost} blocks without FUA were lost, so the others' luck proves nothing");
        assert_eq!((rig.stats().split, rig.stats().resets), (4, 1), "{context}");
        rig.assert_clean();
    }
}

#[test]
fn a_cut_between_two_parts_takes_the_one_that_had_ended_without_a_word_unless_it_is_fua() {
    for (kind, fua) in mqfq_policies::ALL.into_iter().flat_map(|kind| [true, false].map(|fua| (kind, fua))) {
        let mut lost = 0;
        for seed in 0..16 {
            let context = format!("{kind}, FUA {fua}, seed {seed}");
            let rules = vec![FaultRule::of(Kind::Write, When::Always, Fault::Delay { ns: 1_000 })];
            let device = cached(FaultPlan { seed, rules, ..FaultPlan::default() });
            let path = PathOptions { split: Split::Bytes(BLOCK), ..PathOptions::TIMELESS };
            // One tag, so one part goes when the other has ended.
            let mut rig = Rig::new(&Setup { queue_depth: 1, ..setup(kind, path) }, &device);
            let write = |rig: &mut Rig, fill: u8, fua: bool| {
                let asked = RequestSpec { flow: 0, op: Op::Write, offset_bytes: 0, length_bytes: 2 * BLOCK, fill };
                rig.submit(0, asked, fua).expect("within the bound");
            };
            write(&mut rig, OLD, true);
            assert!(rig.finish().iter().all(|ended| ended.completion.status == Status::Ok), "{context}");
            write(&mut rig, b'n', fua);
            rig.run();
            let in_flight = |rig: &Rig| rig.hctxs[0].in_flight();
            assert_eq!(in_flight(&rig), 1, "{context}: one part");
            while in_flight(&rig) > 0 {
                rig.now_ns = rig.now_ns.max(rig.next_event_ns().expect("it ends"));
                assert!(rig.reap(0).is_empty(), "{context}: there is another part");
            }
            let may_lose = |block| device.may_lose(block * u64::from(BLOCK), &[b'n'; BLOCK as usize]);
            let cached: Vec<u64> = (0..2).filter(|&block| may_lose(block)).collect();
            assert_eq!(cached.len(), usize::from(!fua), "{context}");
            device.power_cut();
            let ended = rig.finish();
            assert_eq!(ended.len(), 1, "{context}");
            assert_eq!(ended[0].completion.status, Status::Ok, "{context}: nobody was told of the cut");
            (0..2).for_each(|block| rig.read(0, block * u64::from(BLOCK), BLOCK));
            for ended in rig.finish().iter().filter(|ended| !is_all(ended, b'n')) {
                let block = ended.asked.offset_bytes / u64::from(BLOCK);
                assert!(cached.contains(&block), "{context}: block {block} was FUA, or came after the cut");
                lost += 1;
            }
            assert_eq!(rig.stats().split, 2, "{context}");
            rig.assert_clean();
        }
        assert_eq!(lost > 4, !fua, "{kind}, FUA {fua}: lost {lost} of 16");
    }
}
