//! Applications by name: what they ask of a device, with where each number is from.
//!
//! A model is a load with every key set; a scenario may set each again. *Free* are the parameters that no source gives:
//! they are calibrated to what a paper measured, or stand for a choice of the application's operator.
//!
//! # `flashx-pagerank`
//! | what | value | from |
//! |---|---|---|
//! | graph | soc-LiveJournal1: 4,847,571 vertices, 68,993,773 edges | MQFQ section 4.1; SNAP's page of it |
//! | phases | one iteration: each active vertex reads its out-edges; a barrier; the next | FlashX `pagerank`, `graph_engine`: `request_partial_vertices(OUT_EDGE)`, two pthread barriers |
//! | requests of a phase | 68,993,773 x 4 B / 4 KiB = 67,377 pages, over 4 threads 16,845 | the edge list (`vertex_id_t` is 32 bits) read once; ASSUMED: all vertices active, each page read once |
//! | size | 4 KiB, all reads | SAFS `PAGE_SIZE`; ASSUMED: no two pages merged |
//! | pattern | random | vertices are dealt to the threads in ranges of 2^10 (`part_range_size_log = 10`); ASSUMED: a thread's pages are scattered |
//! | threads | 4 | `graph_config`: `num_threads = 4` |
//! | depth | 8, *free* | SAFS bounds a file's requests to 32 (`io_depth_per_file = 32`), here over 4 threads. Section 4.1: "does not maintain a large queue depth" |
//! | compute | 2 ms, *free* | none; sets which part of the device's throughput it reaches alone |
//! | cpu | 2 us, *free* | none |
//!
//! # `aerospike`
//! | what | value | from |
//! |---|---|---|
//! | requests | 512 B reads, direct I/O, each transaction is one | MQFQ section 4.1; aerospike-server `LO_IO_MIN_SIZE 512` |
//! | pattern | random | ASSUMED: keys are hashed, so places are scattered |
//! | threads | 16 | one per core of the NVMf setup (2 x 8, section 4); ASSUMED |
//! | depth | 8, *free* | enough that cores and not latency bound it |
//! | cpu | 12 us, *free* | nearly 1 M transactions/s before "running out of CPUs" (section 4.1): 16 cores / 1 M/s = 16 us each, less about 4 us of block layer. 0.5 M/s on 12 cores need 24 us or less, so the SSD bounds it there, as the paper says |
//!
//! # `ycsb-a` to `ycsb-f` (on RocksDB)
//! | workload | operations | requests here | puts per request |
//! |---|---|---|---|
//! | A | 50 read, 50 update | one block read each | 0.5 |
//! | B | 95 read, 5 update | one block read each | 0.05 |
//! | C | 100 read | one block read each | 0 |
//! | D | 95 read of the latest, 5 insert | one block read per read | 0.05 / 0.95 |
//! | E | 95 scan of 1 to 100 records, 5 insert | one read of 4 to 100 KiB per scan | 0.05 / 0.95 |
//! | F | 50 read, 50 read-modify-write | one block read each | 0.5 |
//!
//! * Operations and distributions: YCSB `workloads/workload[a-f]`. Zipfian with 0.99: `ZipfianGenerator`. D's "latest"
//!   is drawn as zipfian: ASSUMED, the device sees the same skew, only the popular places move.
//! * An update reads the record before it writes it (`RocksDBClient.update`: get, then put). A read-modify-write reads
//!   it twice; the second finds it in memory: ASSUMED.
//! * Records of 10 fields of 100 B, here 1 KiB. Scans: `maxscanlength=100`, uniform. One request per scan: ASSUMED, in
//!   truth read-ahead makes several of it.
//! * A read is one data block of 4 KiB (RocksDB `block_size` default), not in memory: ASSUMED, with all index blocks
//!   and filters in memory and a data set much larger than it.
//! * A put goes to memory. On the device it causes large sequential requests in the background (log, flush,
//!   compaction), 1 MiB each (`writable_file_max_buffer_size` default). Per put of 1 KiB 10 KiB written and 9 KiB read,
//!   *free*: levels grow tenfold (`max_bytes_for_level_multiplier`), and write amplification of leveled compaction is
//!   commonly told as 10 to 30; the log and the flush are not read back.
//! * Threads 16, depth 1 (a YCSB thread waits for each operation), *free*. cpu 5 us, *free*.

use crate::scenario::{Arrival, Background, Load, Pattern};

/// Settings of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// Threads of the tenant.
    pub threads: u32,
    /// Load of each thread.
    pub load: Load,
    /// Load that follows from it.
    pub background: Option<Background>,
}

/// Models, in the order of this file.
pub const NAMES: &[&str] =
    &["flashx-pagerank", "aerospike", "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"];

/// Edges of soc-LiveJournal1.
const LIVEJOURNAL_EDGES: u64 = 68_993_773;

/// Threads of FlashX.
const FLASHX_THREADS: u32 = 4;

/// Bytes that one put of RocksDB makes the background read and write.
const PUT_BYTES: u64 = 19 << 10;

/// Reads among 100 of these: 9 of 19.
const PUT_READ_PERCENT: u8 = 47;

/// The model of that name.
pub fn model(name: &str) -> Option<Model> {
    let random_reads = |arrival, size_bytes, cpu_ns| Load {
        arrival,
        sizes: vec![(size_bytes, 100)],
        read_percent: 100,
        pattern: Pattern::Random,
        cpu_ns,
    };
    Some(match name {
        "flashx-pagerank" => {
            let pages = (LIVEJOURNAL_EDGES * 4).div_ceil(4096);
            let requests = pages.div_ceil(u64::from(FLASHX_THREADS)) as u32;
            let arrival = Arrival::Phases { depth: 8, requests, compute_ns: 2_000_000 };
            Model { threads: FLASHX_THREADS, load: random_reads(arrival, 4096, 2_000), background: None }
        }
        "aerospike" => {
            let arrival = Arrival::Closed { depth: 8, think_ns: 0, bursts: None };
            Model { threads: 16, load: random_reads(arrival, 512, 12_000), background: None }
        }
        "ycsb-a" | "ycsb-f" => ycsb((1, 2), vec![(4096, 100)]),
        "ycsb-b" => ycsb((1, 20), vec![(4096, 100)]),
        "ycsb-c" => ycsb((0, 1), vec![(4096, 100)]),
        "ycsb-d" => ycsb((5, 95), vec![(4096, 100)]),
        // 1 to 100 records of 1 KiB in blocks of 4 KiB: 25 sizes, 4 of 100 each.
        "ycsb-e" => ycsb((5, 95), (1..=25).map(|blocks| (blocks * 4096, 4)).collect()),
        _ => return None,
    })
}

/// A workload that makes `puts.0 / puts.1` puts per request.
fn ycsb(puts: (u64, u64), sizes: Vec<(u32, u8)>) -> Model {
    let per_request_bytes = (PUT_BYTES * puts.0 / puts.1) as u32;
    let background = Background { per_request_bytes, size_bytes: 1 << 20, read_percent: PUT_READ_PERCENT, depth: 2 };
    Model {
        threads: 16,
        load: Load {
            arrival: Arrival::Closed { depth: 1, think_ns: 0, bursts: None },
            sizes,
            read_percent: 100,
            pattern: Pattern::Zipf { theta: 0.99 },
            cpu_ns: 5_000,
        },
        background: (per_request_bytes > 0).then_some(background),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_model_whose_sizes_sum_to_100() {
        for name in NAMES {
            let model = model(name).unwrap_or_else(|| panic!("{name} is a model"));
            let sum: u32 = model.load.sizes.iter().map(|(_, part)| u32::from(*part)).sum();
            assert_eq!(sum, 100, "{name}");
        }
        assert_eq!(model("ycsb-g"), None);
    }

    #[test]
    fn one_phase_of_pagerank_reads_the_edge_list_once() {
        let model = model("flashx-pagerank").unwrap();
        let Arrival::Phases { requests, .. } = model.load.arrival else { panic!("phases") };
        // 68,993,773 edges of 4 B are 67,377 pages of 4 KiB; 4 threads read 16,845 each, at most 3 too many.
        assert_eq!((requests, model.threads), (16_845, 4));
    }
}
