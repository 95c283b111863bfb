//! Every fault on every policy: three tenants on two workers, of which one alone meets the faults. Each request ends
//! once with a status that the fault explains, nothing is missing in the end, the others get their shares, and
//! acknowledged bytes are there.
//!
//! The device is the software drive behind the fault device, so time is the drive's. A policy that is new joins by
//! [`mqfq_policies::ALL`].

use crate::harness::{Ended, RequestSpec, Rig, Setup, WINDOW_BYTES, bytes};
use mqfq_blk::PolicyKind;
use mqfq_blk::device::Device;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Op, Status};
use mqfq_blk::split::Split;
use mqfq_policies::{BFQ, KYBER, MQFQ_SERIAL, SFQD};
use mqfq_testing::Random;
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Kind, OnAbort, OnReset, When};
use proptest::prelude::{ProptestConfig, any, proptest};
use std::sync::Arc;

const BLOCK: u32 = 4096;
/// Blocks of each tenant.
const BLOCKS: u64 = 512;
const TENANTS: u32 = 3;
const WORKERS: usize = 2;
/// D, and more than tenant 0 can have out: its forgotten requests hold tokens until they are given up.
const DEPTH: u32 = 24;
/// Requests that each tenant keeps under way on each worker.
const UNDER_WAY: [u32; TENANTS as usize] = [4, 16, 16];
const TIMEOUT_NS: u64 = 1_000_000;
const RUN_NS: u64 = 12_000_000;

/// A kind of trouble.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    name: &'static str,
    fault: Fault,
    when: When,
    on_abort: OnAbort,
    on_reset: OnReset,
    reorder: usize,
}

const fn trouble(name: &'static str, fault: Fault) -> Trouble {
    let (on_abort, on_reset) = (OnAbort::Ends { after_ns: 0 }, OnReset::Works);
    Trouble { name, fault, when: When::Chance(2000), on_abort, on_reset, reorder: 0 }
}

const LATE_NS: u64 = TIMEOUT_NS / 3;

const TROUBLES: [Trouble; 12] = [
    trouble("error", Fault::Error(Status::Io)),
    trouble("delay", Fault::Delay { ns: TIMEOUT_NS / 2 }),
    trouble("delay beyond the timeout", Fault::Delay { ns: TIMEOUT_NS * 3 / 2 }),
    Trouble { when: When::Nth(9), ..trouble("stall", Fault::Stall { ns: TIMEOUT_NS * 3 / 2 }) },
    trouble("torn", Fault::Torn(Status::Io)),
    Trouble { reorder: 6, ..trouble("reorder", Fault::Delay { ns: 0 }) },
    trouble("forget, back by abort", Fault::Forget),
    trouble("lose, back by abort", Fault::Lose),
    Trouble { on_abort: OnAbort::EndsTwice { after_ns: LATE_NS }, ..trouble("late end after abort", Fault::Forget) },
    Trouble { when: When::Nth(9), on_abort: OnAbort::Ignored, ..trouble("abort ignored, reset", Fault::Forget) },
    Trouble { when: When::Nth(9), on_abort: OnAbort::Refused, ..trouble("abort refused, reset", Fault::Lose) },
    Trouble {
        when: When::Nth(9),
        on_abort: OnAbort::Ignored,
        on_reset: OnReset::EndsLate { after_ns: LATE_NS },
        ..trouble("late ends after reset", Fault::Lose)
    },
];

/// Closed loops of reads and writes over each tenant's own blocks, and the bytes that must be read there.
struct Load {
    rig: Rig,
    draw: Random,
    /// Most blocks of a request.
    blocks_max: u64,
    /// By block of the device; `None`: a write that failed leaves either.
    model: Vec<Option<u8>>,
    served_bytes: [u64; TENANTS as usize],
    failed: u64,
    last_ns: [u64; TENANTS as usize],
}

impl Load {
    fn new(setup: &Setup, device: &dyn Device, seed: u64) -> Load {
        let model = vec![Some(0); (u64::from(TENANTS) * BLOCKS) as usize];
        let (rig, draw) = (Rig::new(setup, device), Random::new(seed));
        Load { rig, draw, blocks_max: 1, model, served_bytes: [0; 3], failed: 0, last_ns: [0; 3] }
    }

    /// One more request of this tenant, of blocks with none under way.
    fn ask(&mut self, worker: usize, flow: u32) {
        let blocks = if self.blocks_max > 1 { 1 + self.draw.below(self.blocks_max) } else { 1 };
        let length_bytes = blocks as u32 * BLOCK;
        let offset_bytes = loop {
            let block = u64::from(flow) * BLOCKS + self.draw.below(BLOCKS - (blocks - 1));
            let start_bytes = block * u64::from(BLOCK);
            let end_bytes = start_bytes + u64::from(length_bytes);
            let is_apart = |asked: &RequestSpec| {
                end_bytes <= asked.offset_bytes || start_bytes >= asked.offset_bytes + u64::from(asked.length_bytes)
            };
            if self.rig.outstanding.values().all(is_apart) {
                break start_bytes;
            }
        };
        let op = if self.draw.below(2) == 0 { Op::Read } else { Op::Write };
        let (fill, fua) = (self.draw.below(255) as u8 + 1, op == Op::Write && self.draw.below(8) == 0);
        let asked = RequestSpec { flow, op, offset_bytes, length_bytes, fill };
        self.rig.submit(worker, asked, fua).expect("within the bound");
    }

    fn take(&mut self, ended: &Ended, context: &str) {
        let Ended { asked, completion, .. } = ended;
        let first = (asked.offset_bytes / u64::from(BLOCK)) as usize;
        let blocks = first..first + (asked.length_bytes / BLOCK) as usize;
        let flow = asked.flow as usize;
        self.last_ns[flow] = self.rig.now_ns;
        if completion.status != Status::Ok {
            assert_eq!(flow, 0, "{context}: tenant {flow} met no fault, yet: {}", completion.status);
            self.failed += 1;
            if asked.op == Op::Write {
                self.model[blocks].fill(None);
            }
            return;
        }
        self.served_bytes[flow] += u64::from(asked.length_bytes);
        if asked.op == Op::Write {
            return self.model[blocks].fill(Some(asked.fill));
        }
        for (block, seen) in blocks.zip(bytes(ended).chunks(BLOCK as usize)) {
            if let Some(fill) = self.model[block] {
                assert!(seen.iter().all(|&byte| byte == fill), "{context}: block {block} is not {fill}");
            }
        }
    }

    /// Keeps the loops going until `until_ns`, then lets them run out.
    fn run(&mut self, until_ns: u64, context: &str) {
        for worker in 0..WORKERS {
            for flow in 0..TENANTS {
                (0..UNDER_WAY[flow as usize]).for_each(|_| self.ask(worker, flow));
            }
        }
        let mut ended = self.rig.run();
        while self.rig.now_ns < until_ns {
            for ended in &ended {
                self.take(ended, context);
                self.ask(ended.worker, ended.asked.flow);
            }
            ended = self.rig.run();
            if ended.is_empty() {
                ended = self.rig.advance().unwrap_or_else(|| panic!("{context}: nothing will ever happen"));
            }
        }
        ended.extend(self.rig.finish());
        ended.iter().for_each(|ended| self.take(ended, context));
    }

    /// Reads back every block.
    fn check(&mut self, context: &str) {
        for block in 0..self.model.len() as u64 {
            let asked = RequestSpec {
                flow: (block / BLOCKS) as u32,
                op: Op::Read,
                offset_bytes: block * u64::from(BLOCK),
                length_bytes: BLOCK,
                fill: 0,
            };
            if self.rig.submit(0, asked, false).is_none() || block % 64 == 63 {
                self.rig.finish().iter().for_each(|ended| self.take(ended, context));
            }
        }
        self.rig.finish().iter().for_each(|ended| self.take(ended, context));
    }
}

fn setup(kind: PolicyKind, path: PathOptions, queue_depth: u16) -> Setup {
    let weights = vec![100; TENANTS as usize];
    Setup { kind, workers: WORKERS, weights, depth: DEPTH, queue_depth, path, requests_max: 256 }
}

fn device(trouble: &Trouble, seed: u64) -> FaultDevice {
    let size_bytes = u64::from(TENANTS) * BLOCKS * u64::from(BLOCK);
    let inner = ModelDevice::new(presets::FLASH_460K, size_bytes, seed).unwrap();
    let &Trouble { fault, when, on_abort, on_reset, reorder, .. } = trouble;
    let rule = |kind| FaultRule {
        bytes: Some(0..BLOCKS * u64::from(BLOCK)),
        ..FaultRule { kind: Some(kind), ..FaultRule::any(when, fault) }
    };
    // Two stalls, one after the other, would last beyond a reset, and then all tenants' requests rightly fail.
    let kinds: &[Kind] = if matches!(fault, Fault::Stall { .. }) { &[Kind::Write] } else { &[Kind::Write, Kind::Read] };
    let rules = kinds.iter().map(|&kind| rule(kind)).collect();
    FaultDevice::new(Arc::new(inner), FaultPlan { seed, rules, reorder, on_abort, on_reset, ..FaultPlan::default() })
}

#[test]
fn every_fault_on_every_policy_harms_its_own_tenant_alone() {
    for kind in mqfq_policies::ALL {
        for trouble in &TROUBLES {
            let context = &format!("{} on {kind}", trouble.name);
            let device = device(trouble, 11);
            let path = PathOptions { timeout_ns: TIMEOUT_NS, ..PathOptions::default() };
            let mut load = Load::new(&setup(kind, path, 32), &device, 5);
            load.run(RUN_NS, context);
            load.rig.assert_clean();
            let (stats, served) = (load.rig.stats(), load.served_bytes);
            // The fault was met, with the outcome that the plan gives.
            let fails = matches!(trouble.fault, Fault::Error(_) | Fault::Torn(_) | Fault::Forget | Fault::Lose);
            assert_eq!(load.failed > 0, fails, "{context}: {} failed", load.failed);
            let hangs = matches!(trouble.fault, Fault::Forget | Fault::Lose);
            let resets = hangs && !matches!(trouble.on_abort, OnAbort::Ends { .. } | OnAbort::EndsTwice { .. });
            assert_eq!(stats.resets > 0, resets, "{context}: {stats:?}");
            let is_late = matches!(trouble.on_abort, OnAbort::EndsTwice { .. })
                || matches!(trouble.on_reset, OnReset::EndsLate { .. });
            assert_eq!(stats.late_completions > 0, is_late, "{context}: {stats:?}");
            assert_eq!((stats.stuck, device.forgotten()), (0, 0), "{context}");
            // The other tenants went on to the end, and where the policy gives shares, to equal ones.
            assert!(load.last_ns[1].min(load.last_ns[2]) > RUN_NS * 9 / 10, "{context}: {:?}", load.last_ns);
            if [PolicyKind::Mqfq, MQFQ_SERIAL, SFQD].contains(&kind) {
                // I6 with equal weights, and requests that all cost a block.
                let bound = 2 * WINDOW_BYTES + u64::from(DEPTH + 1) * 2 * u64::from(BLOCK);
                assert!(served[1] > 3 * bound, "{context}: {served:?} is too short a run to say anything");
                assert!(served[1].abs_diff(served[2]) <= bound, "{context}: {served:?}");
            }
            let served_all: u64 = served[1..].iter().sum();
            // bfq has one queue at a time on the device, and waits.
            let least = if kind == BFQ { 1 << 20 } else { 4 << 20 };
            assert!(served_all > least, "{context}: {served:?}");
            load.check(context);
            load.rig.assert_clean();
        }
    }
}

/// One fault on one policy: each request ends once, acknowledged bytes are there, and nothing is missing in the end.
fn ends_every_request_once(kind: PolicyKind, trouble: &Trouble, split: Split, queue_depth: u16, seed: u64) {
    let name = trouble.name;
    let request_blocks = if split == Split::Off { 1 } else { 12 };
    // Half the timeout, which a stall leaves, is longer than the drive takes for two full queues.
    let command_blocks = if let Split::Bytes(bytes) = split { (bytes / BLOCK) as u16 } else { request_blocks as u16 };
    let queue_depth = queue_depth.min(80 / command_blocks);
    let context = &format!("{name} on {kind}, split {split}, depth {queue_depth}, seed {seed}");
    let device = device(trouble, seed);
    let path = PathOptions { timeout_ns: TIMEOUT_NS, split, ..PathOptions::default() };
    let mut load = Load::new(&setup(kind, path, queue_depth), &device, seed);
    load.blocks_max = request_blocks;
    load.run(RUN_NS / 6, context);
    load.rig.assert_clean();
    assert!(split == Split::Off || split == Split::Auto || load.rig.stats().split > 0, "{context}: nothing was cut");
    load.check(context);
    load.rig.assert_clean();
    assert_eq!(device.forgotten(), 0, "{context}");
}

/// The fault device once gathered completions without end: of 7 commands it waited for 6 ends, and with most of the 7
/// places taken by ends that were held back, one was passed over for longer than the timeout. The first case here is
/// from a generated test.
#[test]
fn completions_out_of_order_come_before_the_timeout_on_a_queue_of_few_places() {
    let reorder = TROUBLES.iter().find(|trouble| trouble.name == "reorder").expect("there is one");
    ends_every_request_once(KYBER, reorder, Split::Off, 7, 3_249_634_530_885_717_873);
    for kind in mqfq_policies::ALL {
        (0..8).for_each(|seed| ends_every_request_once(kind, reorder, Split::Off, 7, seed));
    }
}

/// The loops once moved to the first worker where requests ended one at a time, and 31 requests in 251 parts met its
/// bound of 256.
#[test]
fn a_delay_beyond_the_timeout_meets_requests_in_parts_within_the_bound_of_each_worker() {
    let delay = TROUBLES.iter().find(|trouble| trouble.name == "delay beyond the timeout").expect("there is one");
    let seed = 13_582_830_272_471_196_270;
    ends_every_request_once(PolicyKind::None, delay, Split::Bytes(4096), 16, seed);
}

const SPLITS: [Split; 4] = [Split::Off, Split::Bytes(4096), Split::Bytes(12288), Split::Auto];

/// Each trouble meets parts of a block and of three, whatever the generated test draws.
#[test]
fn every_fault_ends_requests_in_parts_once() {
    for (n, trouble) in TROUBLES.iter().enumerate() {
        for (m, split) in [Split::Bytes(4096), Split::Bytes(12288)].into_iter().enumerate() {
            let kind = mqfq_policies::ALL[(n + 3 * m) % mqfq_policies::ALL.len()];
            ends_every_request_once(kind, trouble, split, 24, 7);
            ends_every_request_once(PolicyKind::Mqfq, trouble, split, 5, 8);
        }
    }
}

/// A drawn case in which a request was once refused at the staging bound, under each trouble and split.
#[test]
fn a_drawn_case_that_met_the_staging_bound_ends_every_request_once() {
    for (trouble, split) in TROUBLES.iter().flat_map(|trouble| SPLITS.map(|split| (trouble, split))) {
        ends_every_request_once(PolicyKind::None, trouble, split, 16, 13_582_830_272_471_196_270);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Draws everything else, too: parts, depth of the queues, how the device answers aborts and resets, and when.
    #[test]
    fn any_fault_on_any_policy_with_any_options_ends_every_request_once(
        policy in 0..mqfq_policies::ALL.len(),
        trouble in 0..TROUBLES.len(),
        split in 0..SPLITS.len(),
        queue_depth in 1..40u16,
        answers in 0..4usize,
        seed in any::<u64>(),
    ) {
        let (kind, mut trouble) = (mqfq_policies::ALL[policy], TROUBLES[trouble]);
        trouble.on_abort = [
            trouble.on_abort,
            OnAbort::Ends { after_ns: LATE_NS },
            OnAbort::EndsTwice { after_ns: LATE_NS },
            OnAbort::Ends { after_ns: 2 * TIMEOUT_NS },
        ][answers];
        ends_every_request_once(kind, &trouble, SPLITS[split], queue_depth, seed);
    }
}
