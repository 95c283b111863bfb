//! Drives by name, with the source of every number.
//!
//! | preset | 4 KiB reads/s | die time | link: per command + bandwidth | full at D | source |
//! |---|---|---|---|---|---|
//! | `flash-460k` | 460 K | 100 us | 711 ns + 2.8 GB/s | 64 | Intel P3700 |
//! | `flash-60k` | 60 K | 770 us | 5475 ns + 364 MB/s | 64 | the same, every time x 7.7 |
//! | `optane` | 550 K | 8 us | 111 ns + 2.4 GB/s | 6 | Intel P4800X |
//! | `nvmf-dram` | 1.16 M (4 M of 1 KiB) | 23 us | 45 ns + 5 GB/s | 128 (1 KiB) | MQFQ's NVMe-over-RDMA target |
//! | `zssd` | 750 K | 15 us | 53 ns + 3.2 GB/s | 13 | Samsung SZ985 |
//!
//! Read columns come from data sheets and papers. The number of dies is the model's: enough that dies do not saturate
//! before the link (MQFQ section 4 measures the parallelism as a whole, which is D). So are the latencies of flush,
//! deallocate and Write Zeroes, for which there is no source: on drives whose cache survives a power cut they are
//! controller work, and take the time of a cached write. [`Preset::volatile_cache`] is that of a like drive whose cache
//! does not.

use super::media::{LinkRate, MediaOptions, VolatileCache};
use std::fmt;

/// Logical block of every preset, bytes: the drives' own default.
pub const BLOCK_BYTES: u32 = 512;

/// Longest transfer of one command, bytes: 32 MiB, the largest value of NLB in blocks of 512 bytes (NVMe 1.3 section
/// 6.9) and what NBD clients expect to be allowed. More than the drives' own MDTS (128 KiB on the P3700), so that a
/// large request is one command and the model, not a splitter above it, decides how large requests delay small ones.
pub const TRANSFER_BYTES_MAX: u32 = 32 << 20;

/// A named drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preset {
    /// Name in configurations.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// The drive's service times and parallelism.
    pub media: MediaOptions,
    /// Write cache of a like drive without power-loss protection; this one has it only if it is asked for. `None`: the
    /// medium is written directly.
    pub volatile_cache: Option<VolatileCache>,
}

/// Write cache of flash without power-loss protection that writes `back_bytes_per_s`.
///
/// * Fixed part: a Samsung 990 PRO, which says that its cache is volatile, takes 1643 us for a write of 8 KiB and a
///   flush (fdatasync on xfs, pg_test_fsync; T. Poder, tanelpoder.com, 2025-05-27).
/// * What is dirty is written back at the data sheet's sequential rate: ASSUMED.
/// * 64 MiB of the drive's memory, ASSUMED: the rest of it holds the mapping.
const fn unprotected(back_bytes_per_s: u64) -> Option<VolatileCache> {
    Some(VolatileCache { flush_ns: 1_600_000, back_bytes_per_s, size_bytes: 64 << 20 })
}

/// The Intel SSD DC P3700 of MQFQ's experiments.
///
/// Data sheet (Intel 330566): 460 K random 4 KiB reads/s, 2800 MB/s sequential read, 175 K random writes/s, 2000 MB/s
/// sequential write, 20 us sequential latency; random read latency 115 us typical at depth 1 by Intel, 78 us measured
/// (AnandTech 11209). MQFQ section 4: saturated at D = 64.
///
/// * Reads: 4096 B / 2.8 GB/s = 1463 ns; 711 ns per command make it 2174 ns = 1 / 460 K.
/// * Shorter reads are no faster: MQFQ section 4.1 has Aerospike use the full drive with nearly 0.5 M reads of 512
///   bytes per second.
/// * Full at 64: 64 x 2174 ns = 139 us, which leaves a die time of 100 us and room for uneven dies.
/// * Writes: 4096 B / 2 GB/s = 2048 ns; 3666 ns per command make it 5714 ns = 1 / 175 K. Into the cache: 20 us. The
///   cache is protected (data sheet: enhanced power-loss data protection), so FUA and flush cost no more.
/// * 256 commands inside, one for each die. There is no source for a P3700's number; with this one a depth-16 reader
///   beside 8 x 128 is slowed 5.4 times, of the order of the paper's unscheduled devices (FlashX beside FIO, 3.78
///   times, Figure 6).
pub const FLASH_460K: Preset = Preset {
    name: "flash-460k",
    summary: "flash like the Intel P3700: 460 K 4 KiB reads/s, 2.8 GB/s, full at depth 64",
    media: MediaOptions {
        dies: 256,
        page_bytes: 4096,
        read_ns: 100_000,
        write_ns: 20_000,
        write_through_ns: 20_000,
        flush_ns: 20_000,
        deallocate_ns: 20_000,
        write_zeroes_ns: 20_000,
        read_link: LinkRate { command_ns: 711, bytes_per_s: 2_800_000_000, shortest_bytes: 4096 },
        write_link: LinkRate { command_ns: 3_666, bytes_per_s: 2_000_000_000, shortest_bytes: 4096 },
        cache: None,
        inside_max: 256,
    },
    volatile_cache: unprotected(2_000_000_000),
};

/// [`FLASH_460K`] in slow motion: every time x 7.7, hence the same D and the same ratios, and slow enough that two
/// cores saturate it through sockets.
pub const FLASH_60K: Preset = Preset {
    name: "flash-60k",
    summary: "flash-460k with every time x 7.7: 60 K 4 KiB reads/s, 364 MB/s, full at depth 64",
    media: FLASH_460K.media.slowed(77, 10),
    volatile_cache: match FLASH_460K.volatile_cache {
        Some(cache) => Some(cache.slowed(77, 10)),
        None => None,
    },
};

/// An Intel Optane SSD DC P4800X.
///
/// Data sheet: 550 K random 4 KiB reads/s and 500 K writes/s at depth 16, 2400 / 2000 MB/s, under 10 us typical;
/// measured 8.9 us and 585 K (AnandTech 11209). Through the kernel 12.5 us, polled 7.8 us (low-latency disks,
/// HotStorage'23, Table 1, on its sibling P4801X).
///
/// * Reads: 4096 B / 2.4 GB/s = 1707 ns; 111 ns per command make it 1818 ns = 1 / 550 K. 8 us before that: 9.8 us
///   alone.
/// * Writes: 500 K need 2.05 GB/s, so the sheet's 2000 MB/s is rounded; 50 ns + 4096 B / 2.1 GB/s = 2000 ns.
/// * No cache: a write is on the medium when it ends, and a flush has no work.
pub const OPTANE: Preset = Preset {
    name: "optane",
    summary: "3D XPoint like the Intel P4800X: 10 us, 550 K 4 KiB reads/s, 2.4 GB/s, full at depth 6",
    media: MediaOptions {
        dies: 64,
        page_bytes: 4096,
        read_ns: 8_000,
        write_ns: 8_000,
        write_through_ns: 8_000,
        flush_ns: 1_000,
        deallocate_ns: 8_000,
        write_zeroes_ns: 8_000,
        read_link: LinkRate { command_ns: 111, bytes_per_s: 2_400_000_000, shortest_bytes: 0 },
        write_link: LinkRate { command_ns: 50, bytes_per_s: 2_100_000_000, shortest_bytes: 0 },
        cache: None,
        inside_max: 256,
    },
    volatile_cache: None,
};

/// MQFQ's second setup (section 4): an NVMe over RDMA target that serves from DRAM, nearly 4 M reads/s of 1 KiB,
/// internal parallelism 128, over 40 Gbit/s ports.
///
/// * 1024 B / 5 GB/s (40 Gbit/s) = 205 ns; 45 ns per command make it 250 ns = 1 / 4 M.
/// * Full at 128: 128 x 250 ns = 32 us, in the proportion of the P3700's 100 of 139 us: 23 us of network and target.
/// * Writes go over the same wire into the same memory.
/// * Only the queues limit a target: 32 queue pairs of 128 commands (SPDK's default of max_queue_depth).
pub const NVMF_DRAM: Preset = Preset {
    name: "nvmf-dram",
    summary: "NVMe over RDMA from DRAM: 4 M 1 KiB reads/s, 5 GB/s, full at depth 128",
    media: MediaOptions {
        dies: 512,
        page_bytes: 4096,
        read_ns: 23_000,
        write_ns: 23_000,
        write_through_ns: 23_000,
        flush_ns: 23_000,
        deallocate_ns: 23_000,
        write_zeroes_ns: 23_000,
        read_link: LinkRate { command_ns: 45, bytes_per_s: 5_000_000_000, shortest_bytes: 0 },
        write_link: LinkRate { command_ns: 45, bytes_per_s: 5_000_000_000, shortest_bytes: 0 },
        cache: None,
        inside_max: 4096,
    },
    volatile_cache: None,
};

/// A Samsung SZ985 Z-SSD of 800 GB, D2FQ's drive.
///
/// Data sheet: 750 K / 170 K random 4 KiB reads / writes per second, 3.2 / 3.2 GB/s, read latency 12 to 20 us, write 16
/// us; power-loss protected.
///
/// * Reads: 4096 B / 3.2 GB/s = 1280 ns; 53 ns per command make it 1333 ns = 1 / 750 K. 15 us before that: 16.3 us
///   alone.
/// * Writes: 1280 ns; 4602 ns per command make it 5882 ns = 1 / 170 K. Into the cache: 10 us, 16 us alone.
pub const ZSSD: Preset = Preset {
    name: "zssd",
    summary: "Z-NAND like the Samsung SZ985: 16 us, 750 K 4 KiB reads/s, 3.2 GB/s, full at depth 13",
    media: MediaOptions {
        dies: 128,
        page_bytes: 4096,
        read_ns: 15_000,
        write_ns: 10_000,
        write_through_ns: 10_000,
        flush_ns: 10_000,
        deallocate_ns: 10_000,
        write_zeroes_ns: 10_000,
        read_link: LinkRate { command_ns: 53, bytes_per_s: 3_200_000_000, shortest_bytes: 0 },
        write_link: LinkRate { command_ns: 4_602, bytes_per_s: 3_200_000_000, shortest_bytes: 0 },
        cache: None,
        inside_max: 256,
    },
    volatile_cache: unprotected(3_200_000_000),
};

/// All presets.
pub const ALL: [Preset; 5] = [FLASH_460K, FLASH_60K, OPTANE, NVMF_DRAM, ZSSD];

/// There is no preset of this name. The message lists the presets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPreset(pub String);

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ALL.map(|preset| preset.name).join(", ");
        write!(f, "unknown preset {:?}: choose one of {names}", self.0)
    }
}

impl std::error::Error for UnknownPreset {}

impl Preset {
    /// The preset of this name.
    ///
    /// # Errors
    /// [`UnknownPreset`].
    pub fn by_name(name: &str) -> Result<Preset, UnknownPreset> {
        ALL.into_iter().find(|preset| preset.name == name).ok_or_else(|| UnknownPreset(name.to_owned()))
    }

    /// This drive with every time multiplied by `times`, at least 1.
    pub const fn slowed(self, times: u16) -> Preset {
        let volatile_cache = match self.volatile_cache {
            Some(cache) => Some(cache.slowed(times as u64, 1)),
            None => None,
        };
        Preset { media: self.media.slowed(times as u64, 1), volatile_cache, ..self }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    /// Within 0.1% of the figure in the source.
    fn close(rate: u64, stated: u64) -> bool {
        rate.abs_diff(stated) * 1000 <= stated
    }

    #[test]
    fn links_carry_the_rates_of_their_sources() {
        assert!(close(FLASH_460K.media.read_link.commands_per_s(4096), 460_000));
        assert!(close(FLASH_460K.media.write_link.commands_per_s(4096), 175_000));
        assert!(close(OPTANE.media.read_link.commands_per_s(4096), 550_000));
        assert!(close(OPTANE.media.write_link.commands_per_s(4096), 500_000));
        assert!(close(NVMF_DRAM.media.read_link.commands_per_s(1024), 4_000_000));
        assert!(close(ZSSD.media.read_link.commands_per_s(4096), 750_000));
        assert!(close(ZSSD.media.write_link.commands_per_s(4096), 170_000));
    }

    #[test]
    fn slow_motion_is_7_7_times_as_slow_at_every_size() {
        for bytes in [512, 4096, 65536, 131072] {
            let fast = FLASH_460K.media.read_link.commands_per_s(bytes);
            let slow = FLASH_60K.media.read_link.commands_per_s(bytes);
            // fast / slow = 7.7; 0.1% for rounding to whole nanoseconds and commands.
            assert!((slow * 77 / 10).abs_diff(fast) * 1000 <= fast, "{bytes}: {fast} / {slow}");
        }
        assert_eq!(FLASH_60K.media.read_ns, 770_000);
        assert_eq!(FLASH_60K.media.dies, FLASH_460K.media.dies);
    }

    #[test]
    fn dies_are_no_bottleneck() {
        // Pages per second of all dies, against the link at one page per command: at least 3 times as many, so that the
        // unevenness of a random choice of dies does not cost throughput.
        for Preset { name, media, .. } in ALL {
            let dies_per_s = u64::from(media.dies) * 1_000_000_000 / media.read_ns;
            assert!(dies_per_s >= 3 * media.read_link.commands_per_s(media.page_bytes), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(Preset::by_name("zssd"), Ok(ZSSD));
        let sentence = Preset::by_name("floppy").unwrap_err().to_string();
        let expected = "unknown preset \"floppy\": choose one of flash-460k, flash-60k, optane, nvmf-dram, zssd";
        assert_eq!(sentence, expected);
    }
}
