//! The demo's scenes: a modest tenant beside a greedy one, and the policies' settings that suit them.
//!
//! | scene | the modest one | the greedy one |
//! |---|---|---|
//! | `moderate` | a reader of depth 16 | many small reads: the paper's FlashX case (MQFQ section 5.1: slowed 3.78 times under none, 1.33 under MQFQ) |
//! | `shallow` | one small read at a time | large reads, which a depth in requests cannot handle |
//! | `commit` | a database's commits ([`crate::load::COMMIT`]) | large reads; each of the five steps of a commit waits behind them |
//!
//! For large reads tokens are units of 4 KiB, and D is the drive's bandwidth-delay product (lab/bench/README.md, "How D
//! was chosen").

use crate::harness::{self, Tenant};
use crate::load::Load;
use mqfq_blk::{PolicyKind, PolicyOptions, VSpan, Weight};

/// Two tenants, and the policies' settings that suit them.
pub struct Scene {
    /// Short name.
    pub name: &'static str,
    /// One sentence.
    pub description: String,
    /// The modest tenant in a sentence.
    pub modest: &'static str,
    /// The modest one first.
    pub tenants: [Tenant; 2],
    /// D, in tokens.
    pub depth: u32,
    /// T: how far a queue may run ahead of the slowest one.
    pub window: VSpan,
    /// Bytes that a token stands for; `None`: a token is one request.
    pub token_unit_bytes: Option<u32>,
}

impl Scene {
    /// The settings of a policy in this scene, in the form that ships.
    pub fn policy(&self, kind: PolicyKind, workers: usize) -> PolicyOptions {
        let exact = PolicyOptions {
            depth: self.depth,
            window: self.window,
            token_unit_bytes: self.token_unit_bytes,
            ..PolicyOptions::new(kind)
        };
        harness::as_shipped(exact, workers)
    }

    /// Bytes that one commit of the modest tenant counts for. `None`: it reads.
    pub fn commit_bytes(&self) -> Option<u32> {
        let load = &self.tenants[0].load;
        (!load.chain.is_empty()).then(|| load.counted_bytes())
    }
}

const KIB: u32 = 1024;

/// T of every scene.
const WINDOW: VSpan = VSpan::from_bytes(64 << 10);

/// Size of small reads, bytes.
pub const SMALL_BYTES: u32 = 4 * KIB;

/// Size of large reads, bytes.
pub const LARGE_BYTES: u32 = 128 * KIB;

/// Size of a database's page, bytes.
const PAGE_BYTES: u32 = 8 * KIB;

/// Queues of a greedy reader.
const QUEUES: u16 = 8;

/// Requests that a greedy tenant has in flight in each of the scenes of reads, at most.
pub const GREEDY_REQUESTS: [u16; 2] = [1024, 128];

fn tenant(name: &'static str, load: Load) -> Tenant {
    Tenant { name, weight: Weight::DEFAULT, load }
}

/// The two scenes of reads, in which the greedy tenant has about so many requests in flight.
pub fn reads(greedy_requests: [u16; 2]) -> [Scene; 2] {
    let [small, large] = greedy_requests.map(|requests| (requests / QUEUES).max(1));
    let greedy = |depth, bytes| tenant("greedy", Load { seed: 2, ..Load::random_reads(QUEUES, depth, bytes) });
    [
        Scene {
            name: "moderate",
            description: format!("a 4 KiB reader of depth 16 against eight 4 KiB queues of depth {small}"),
            modest: "a reader of 16 small blocks at a time",
            tenants: [tenant("reader", Load::random_reads(1, 16, SMALL_BYTES)), greedy(small, SMALL_BYTES)],
            depth: 64,
            window: WINDOW,
            token_unit_bytes: None,
        },
        Scene {
            name: "shallow",
            description: format!("a 4 KiB reader of depth 1 against eight 128 KiB queues of depth {large}"),
            modest: "a reader of one",
            tenants: [tenant("reader", Load::random_reads(1, 1, SMALL_BYTES)), greedy(large, LARGE_BYTES)],
            depth: 160,
            window: WINDOW,
            token_unit_bytes: Some(SMALL_BYTES),
        },
    ]
}

/// The demo's scenes on the modelled drive.
pub fn all() -> [Scene; 3] {
    let [moderate, shallow] = reads(GREEDY_REQUESTS);
    let commit = Scene {
        name: "commit",
        description: "a database's commits, three 8 KiB writes and two flushes one after the other, against 128 KiB \
                      reads of depth 32"
            .into(),
        modest: "a database",
        tenants: [
            tenant("database", Load::commits(PAGE_BYTES)),
            tenant("bulk", Load { seed: 2, ..Load::random_reads(1, 32, LARGE_BYTES) }),
        ],
        depth: 160,
        window: WINDOW,
        token_unit_bytes: Some(SMALL_BYTES),
    };
    [moderate, shallow, commit]
}

/// The policies that the demo compares: without and with fair queueing.
pub const POLICIES: [PolicyKind; 2] = [PolicyKind::None, PolicyKind::Mqfq];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenes_for_a_drive_only_read_however_slow_it_is() {
        for requests in [GREEDY_REQUESTS, [16, 8], [1, 1]] {
            for scene in reads(requests) {
                for Tenant { load, .. } in &scene.tenants {
                    assert!(load.write_percent == 0 && load.chain.is_empty() && load.depth > 0, "{load:?}");
                }
                assert_eq!(scene.commit_bytes(), None);
            }
        }
    }

    #[test]
    fn the_third_scene_is_a_commit_of_24_kib() {
        let [.., commit] = all();
        assert_eq!((commit.name, commit.commit_bytes()), ("commit", Some(24 * KIB)));
    }
}
