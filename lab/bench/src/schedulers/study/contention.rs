//! A modest tenant beside a greedy one, under each policy, on one drive: what Table 1 and the figures of the paper
//! leave out ("further research is needed to analyze the role of schedulers for the purpose of fairness").
//!
//! # Fairness
//! Both tenants have the same weight, so each may have what it asks for as long as that is no more than half of the
//! drive. What the modest one gets, over the smaller of what it has alone and half of what both get together, is its
//! `fair_share`: 1 is fair.
//!
//! # Which D
//! D is a matter of the drive, and depth in requests is not depth in work (ARCHITECTURE.md, "The one idea"). So here a
//! token is 4 KiB, and D is the smallest of [`DEPTHS`] with which `mqfq` leaves both antagonists [`KEPT`] of what
//! `none` gives: the drive's knee. It is part of the answer. The schedulers of Linux have no D; they get Linux's tags.

use super::path::{PathOptions, Seen, Until};
use crate::schedulers::count::Costs;
use crate::schedulers::workload::{REQUEST_BYTES, Tenant, WORKERS, is_of_linux, policy};
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_blkmq::BlockLayer;
use mqfq_demo::harness::as_shipped;
use mqfq_demo::load::Load;
use mqfq_nvme::Preset;

/// Loads of a greedy tenant and a modest one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Antagonist {
    /// Eight queues of 128 reads of 4 KiB, against 16 reads of 4 KiB: the FlashX case of MQFQ (section 5.1).
    Crowd,
    /// Eight queues of 16 reads of 128 KiB, against a single 4 KiB read.
    Bulk,
}

impl Antagonist {
    /// Both.
    pub const ALL: [Antagonist; 2] = [Antagonist::Crowd, Antagonist::Bulk];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Antagonist::Crowd => "crowd",
            Antagonist::Bulk => "bulk",
        }
    }

    /// One line.
    pub const fn description(self) -> &'static str {
        match self {
            Antagonist::Crowd => "16 reads of 4 KiB in flight beside 8 queues of 128 reads of 4 KiB",
            Antagonist::Bulk => "a single 4 KiB read in flight beside 8 queues of 16 reads of 128 KiB",
        }
    }

    /// The modest tenant, and the greedy one.
    fn tenants(self) -> [Tenant; 2] {
        let (depth, greedy) = match self {
            Antagonist::Crowd => (16, Load::random_reads(8, 128, REQUEST_BYTES)),
            Antagonist::Bulk => (1, Load::random_reads(8, 16, 32 * REQUEST_BYTES)),
        };
        let modest = Load::random_reads(1, depth, REQUEST_BYTES);
        [modest, Load { seed: 2, ..greedy }].map(|load| Tenant { load, think_ns: 0 })
    }
}

/// D that are tried, in units of 4 KiB.
pub const DEPTHS: [u32; 12] = [8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512];

/// Least total of `mqfq` over that of `none`.
pub const KEPT: f64 = 0.97;

/// One policy beside one antagonist.
#[derive(Clone, PartialEq, Debug)]
pub struct Contended {
    /// Policy.
    pub kind: PolicyKind,
    /// Antagonist.
    pub antagonist: Antagonist,
    /// The modest tenant alone, under the same policy.
    pub alone: Seen,
    /// The modest tenant beside the greedy one.
    pub shared: Seen,
    /// Both together, bytes per second.
    pub total_bytes_per_s: f64,
}

impl Contended {
    /// Service of the modest tenant alone over its service now.
    pub fn slowdown(&self) -> f64 {
        self.alone.bytes_per_s / self.shared.bytes_per_s.max(1.0)
    }

    /// Throughput beside the other tenant, over the smaller of half the total and what the tenant does alone; at most
    /// 1.
    pub fn fair_share(&self) -> f64 {
        let due = self.alone.bytes_per_s.min(self.total_bytes_per_s / 2.0);
        (self.shared.bytes_per_s / due).min(1.0)
    }
}

/// The modelled drive under two tenants, and how long they run on it.
#[derive(Clone, Copy)]
pub struct Drive {
    /// Its times and its parallelism, by the name of a modelled drive.
    pub preset: Preset,
    /// As in [`Until::Requests`].
    pub requests: u64,
}

/// The settings of `mqfq` and its like with this D.
pub fn fair_policy(kind: PolicyKind, depth: u32) -> PolicyOptions {
    if kind == PolicyKind::None || is_of_linux(kind) {
        return policy(kind, WORKERS);
    }
    as_shipped(PolicyOptions { depth, token_unit_bytes: Some(REQUEST_BYTES), ..PolicyOptions::new(kind) }, WORKERS)
}

impl Drive {
    /// The modest tenant alone, then both.
    ///
    /// # Errors
    /// One sentence.
    pub fn contend(&self, antagonist: Antagonist, policy: PolicyOptions, costs: Costs) -> Result<Contended, String> {
        let tenants = antagonist.tenants();
        let alone = self.run(&tenants[..1], policy, costs)?.remove(0);
        let mut both = self.run(&tenants, policy, costs)?;
        let total_bytes_per_s = both.iter().map(|seen| seen.bytes_per_s).sum();
        Ok(Contended { kind: policy.kind, antagonist, alone, shared: both.remove(0), total_bytes_per_s })
    }

    fn run(&self, tenants: &[Tenant], policy: PolicyOptions, costs: Costs) -> Result<Vec<Seen>, String> {
        let path = PathOptions {
            drive: self.preset,
            policy,
            layer: BlockLayer::Mq,
            queue_depth: mqfq_demo::drive::DEMO_QUEUE_DEPTH,
            tenants,
            workers: WORKERS,
            costs,
        };
        path.run(Until::Requests(self.requests))
    }

    /// The drive's knee; the largest D that is tried, if none is enough.
    ///
    /// # Errors
    /// One sentence.
    pub fn knee(&self, none: Costs, mqfq: Costs) -> Result<u32, String> {
        let mut totals = Vec::new();
        for antagonist in Antagonist::ALL {
            let of_none = self.run(&antagonist.tenants(), fair_policy(PolicyKind::None, 1), none)?;
            totals.push(of_none.iter().map(|seen| seen.bytes_per_s).sum::<f64>());
        }
        for depth in DEPTHS {
            let mut keeps = true;
            for (antagonist, of_none) in Antagonist::ALL.into_iter().zip(&totals) {
                let both = self.run(&antagonist.tenants(), fair_policy(PolicyKind::Mqfq, depth), mqfq)?;
                keeps &= both.iter().map(|seen| seen.bytes_per_s).sum::<f64>() >= KEPT * of_none;
            }
            if keeps {
                return Ok(depth);
            }
        }
        Ok(DEPTHS[DEPTHS.len() - 1])
    }
}
