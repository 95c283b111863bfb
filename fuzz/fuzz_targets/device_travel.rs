//! The bytes of a device in memory, from another process: no state and no file make it panic, or take memory that did
//! not come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqfq_blk::client::Packed;
use mqfq_blk::device::Device;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::state::VERSION;
use rustix::fs::MemfdFlags;

const DEVICE_BYTES: u64 = 1 << 20;

// The first byte says how many chunks the file has.
fuzz_target!(|bytes: &[u8]| {
    let Some((&chunks, state)) = bytes.split_first() else { return };
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, u64::from(chunks % 4) << 16).expect("a length");
    let descriptors = if chunks >= 128 { Vec::new() } else { vec![file] };
    let packed = Packed { state: state.to_vec(), descriptors };
    let _ = MemoryDevice::new(DEVICE_BYTES).unpack(packed, VERSION);
});
