//! What is compared: five ways from a client to the drive.

use mqfq_blk::queues::BlockLayer;
use mqfq_blk::{D2fqOptions, OwnOptions, PolicyKind, PolicyOptions};
use mqfq_demo::harness::as_shipped;

/// A policy, and the block layer that it stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stack {
    /// Nobody schedules.
    None,
    /// The device does.
    D2fq,
    /// The same as published: global virtual time is written with each completion of its holder.
    D2fqExact,
    /// As `d2fq`, without staging, merging and counters: LL-D2FQ (D2FQ section 4.3).
    LowLatency,
    /// The host does.
    Mqfq,
}

impl Stack {
    /// All of them; the others are read as ratios to the first.
    pub const ALL: [Stack; 5] = [Stack::None, Stack::D2fq, Stack::D2fqExact, Stack::LowLatency, Stack::Mqfq];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Stack::None => "none",
            Stack::D2fq => "d2fq",
            Stack::D2fqExact => "d2fq-exact",
            Stack::LowLatency => "ll-d2fq",
            Stack::Mqfq => "mqfq",
        }
    }

    /// Its block layer.
    pub const fn layer(self) -> BlockLayer {
        match self {
            Stack::LowLatency => BlockLayer::LowLatency,
            _ => BlockLayer::Mq,
        }
    }

    /// Its policy, as a config that says nothing else gets it.
    pub fn policy(self, workers: usize) -> PolicyOptions {
        let kind = match self {
            Stack::None => PolicyKind::None,
            Stack::D2fq | Stack::D2fqExact | Stack::LowLatency => PolicyKind::D2fq,
            Stack::Mqfq => PolicyKind::Mqfq,
        };
        let d2fq = if self == Stack::D2fqExact { D2fqOptions::DEFAULT } else { D2fqOptions::SHIPPED };
        let own = OwnOptions { d2fq, ..OwnOptions::DEFAULT };
        as_shipped(PolicyOptions { own, ..PolicyOptions::new(kind) }, workers)
    }
}

/// One measurement in virtual time: so many equal tenants, each with so many reads in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Which way.
    pub stack: Stack,
    /// Tenants.
    pub tenants: u16,
    /// Requests that each keeps in flight.
    pub depth: u16,
    /// Of each request.
    pub request_bytes: u32,
}

/// Depths of Figure 16.
pub const LONE_DEPTHS: [u16; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Depths of a quick run.
pub const QUICK_LONE_DEPTHS: [u16; 3] = [1, 4, 16];

/// Of the requests in Figure 16.
pub const LONE_REQUEST_BYTES: u32 = 8192;

/// Tenants that always have more to do than the drive can: what a request costs while there is something to decide.
const BUSY: (u16, u16, u32) = (8, 32, 4096);

impl Cell {
    /// All of them: the busy tenants on each stack, then the lone one at each depth.
    pub fn all(depths: &[u16]) -> Vec<Cell> {
        let (tenants, depth, request_bytes) = BUSY;
        let mut all: Vec<Cell> = Stack::ALL.map(|stack| Cell { stack, tenants, depth, request_bytes }).into();
        for &depth in depths {
            let lone = |stack| Cell { stack, tenants: 1, depth, request_bytes: LONE_REQUEST_BYTES };
            all.extend(Stack::ALL.map(lone));
        }
        all
    }

    /// There is one tenant.
    pub fn is_lone(&self) -> bool {
        self.tenants == 1
    }
}
