//! What did a real kernel decide under `scx_pmqfq`? The records that its scheduler leaves, without the scheduler.
//!
//! The scheduler is `bpf/pmqfq.bpf.c` (GPL-2.0-only, see `bpf/LICENSE`); `main.rs` loads it, with the feature `bpf`.

pub mod check;
pub mod program;
pub mod settings;
pub mod trace;
