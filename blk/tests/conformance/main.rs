//! One suite of claims for every device, and engines with real threads, files and rings. A device is a line at the end
//! of this file; a claim is a function in `bodies.rs` and a line in `conformance!`, and holds for all devices.

#![cfg(feature = "uring")]

mod bodies;
mod doors;
mod files;
mod harness;
mod live;
mod loop_device;
mod path_engine;
mod policy_change;
mod pool;
mod watchdog;

use harness::{Classes, Rig};
use loop_device::LoopDevice;
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::model::{ModelDevice, presets};
use mqfq_blk::device::null::NullDevice;
use mqfq_blkmq::{MultiQueue, QueueLayout, Spread};
use mqfq_nvme::device::{NvmeDevice, NvmeDeviceOptions};
use mqfq_testing_devices::fault::{Fault, FaultDevice, FaultPlan, FaultRule, When};
use mqfq_testing_devices::faulty::Faulty;
use std::sync::Arc;

const SIZE_BYTES: u64 = 48 << 20;

/// The claims of `bodies.rs` that follow the semicolon, as tests of the device that `$make` makes; `None`: skipped,
/// `$make` has said why.
macro_rules! claims {
    ($device:ident, $make:expr; $($claim:ident)*) => {
        mod $device {
            use super::*;
            $(
                #[test]
                fn $claim() {
                    let rig: Option<Rig> = $make;
                    if let Some(rig) = rig {
                        bodies::$claim(&rig.watched(concat!(stringify!($device), "::", stringify!($claim))));
                    }
                }
            )*
        }
    };
}

/// All claims.
macro_rules! conformance {
    ($device:ident, $make:expr) => {
        claims! { $device, $make;
            bytes_never_written_read_as_zero
            what_is_written_is_read_back_and_nothing_beside_it_changes
            the_largest_transfer_and_the_last_byte_work
            a_command_hands_its_own_buffer_back
            every_command_is_reaped_once_at_every_depth
            discarded_and_zeroed_bytes_read_as_zero_and_their_neighbours_stay
            fast_zeroes_are_carried_out_or_change_nothing
            bytes_written_after_a_discard_are_kept
            flush_and_fua_end_well_and_change_no_byte
            a_read_fills_every_byte_it_states
            a_queue_sees_what_another_was_told_is_written
            random_operations_agree_with_an_array
            data_is_never_called_a_hole_and_a_hole_reads_as_zero
            data_is_no_hole_for_those_who_ask_while_it_is_written
            neighbours_in_one_block_lose_nothing_to_each_other
            somebody_elses_memory_is_filled_and_nothing_beside_it_changes
            somebody_elses_memory_is_written_from_where_it_lies
        }
    };
}

fn memory() -> MemoryDevice {
    MemoryDevice::new(SIZE_BYTES)
}

fn nvme(preset: &str) -> Option<Rig> {
    Some(Rig::new(
        NvmeDevice::new(NvmeDeviceOptions { preset, size_bytes: SIZE_BYTES, seed: 1, ..NvmeDeviceOptions::default() })
            .unwrap(),
    ))
}

fn fault(inner: impl Device + 'static, plan: FaultPlan) -> Option<Rig> {
    Some(Rig::new(FaultDevice::new(Arc::new(inner), plan)))
}

/// A new sparse file in a folder of its own.
fn file(direct: Direct) -> Option<(FileDevice, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions {
        size_bytes: Some(SIZE_BYTES),
        direct,
        create: true,
        ..FileOptions::new(folder.path().join("disk"))
    };
    match FileDevice::open(&options) {
        Ok(device) => Some((device, folder)),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

fn file_rig(direct: Direct) -> Option<Rig> {
    file(direct).map(|(device, folder)| Rig::new(device).holding(folder))
}

fn fault_over_file() -> Option<Rig> {
    let (device, folder) = file(Direct::Auto)?;
    fault(device, FaultPlan { seed: 1, reorder: 2, volatile_cache: true, ..FaultPlan::default() })
        .map(|rig| rig.holding(folder))
}

/// A block device: a loop device on a new sparse file. Making one takes privileges.
fn loop_rig(direct: Direct) -> Option<Rig> {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(SIZE_BYTES).unwrap();
    let attachment = match LoopDevice::attach(&image) {
        Ok(attachment) => attachment,
        Err(reason) => {
            eprintln!("skipped: no loop device: {reason}");
            return None;
        }
    };
    let device = FileDevice::open(&FileOptions { direct, ..FileOptions::new(&attachment.path) }).unwrap();
    assert_eq!(device.info().size_bytes, SIZE_BYTES);
    assert_eq!(device.direct_block_bytes(), (direct == Direct::Always).then_some(512));
    Some(Rig::new(device).holding((attachment, folder)))
}

// Null keeps nothing, so only the claims about commands and buffers mean something.
claims! { null, Some(Rig::new(NullDevice::new(SIZE_BYTES)));
    bytes_never_written_read_as_zero
    a_command_hands_its_own_buffer_back
    every_command_is_reaped_once_at_every_depth
    a_read_fills_every_byte_it_states
    somebody_elses_memory_is_filled_and_nothing_beside_it_changes
}

conformance!(memory_device, Some(Rig::new(memory())));
conformance!(model_flash, Some(Rig::new(ModelDevice::new(presets::FLASH_460K, SIZE_BYTES, 1).unwrap())));
conformance!(nvme_flash, nvme("flash-460k"));
conformance!(nvme_optane, nvme("optane"));
conformance!(file_direct, file_rig(Direct::Always));
conformance!(file_through_the_page_cache, file_rig(Direct::Never));
conformance!(block_device_direct, loop_rig(Direct::Always));
conformance!(block_device_through_the_page_cache, loop_rig(Direct::Never));
conformance!(pool_of_three_a_regular_file, pool::rig(0));
conformance!(pool_of_three_blocks_of_4096, pool::rig(1));
conformance!(pool_of_three_blocks_of_512, pool::rig(2));
conformance!(fault_without_a_plan, fault(memory(), FaultPlan::default()));
conformance!(fault_that_delays_and_reorders, {
    let rules = vec![FaultRule::any(When::Chance(20_000), Fault::Delay { ns: 10_000 })];
    fault(memory(), FaultPlan { seed: 1, rules, reorder: 4, ..FaultPlan::default() })
});
conformance!(fault_with_a_volatile_cache, {
    fault(memory(), FaultPlan { seed: 1, volatile_cache: true, ..FaultPlan::default() })
});
conformance!(fault_with_a_volatile_cache_over_a_file, fault_over_file());

/// Over one hardware queue that all share, and for `sq` one lock.
fn shared(inner: impl MultiQueue) -> Option<Rig> {
    Some(Rig::new(harness::shared(inner, QueueLayout::mq(Spread::PerCore, Spread::Single))))
}

claims! { shared_null, shared(NullDevice::new(SIZE_BYTES));
    bytes_never_written_read_as_zero
    a_command_hands_its_own_buffer_back
    every_command_is_reaped_once_at_every_depth
    a_read_fills_every_byte_it_states
    somebody_elses_memory_is_filled_and_nothing_beside_it_changes
}

conformance!(shared_memory, shared(memory()));
conformance!(shared_memory_behind_one_software_queue, {
    Some(Rig::new(harness::shared(memory(), QueueLayout::mq(Spread::Single, Spread::PerCore))))
});
conformance!(shared_memory_under_one_lock, Some(Rig::new(harness::shared(memory(), QueueLayout::SQ))));
conformance!(shared_nvme, {
    shared(
        NvmeDevice::new(NvmeDeviceOptions {
            preset: "flash-460k",
            size_bytes: SIZE_BYTES,
            seed: 1,
            ..NvmeDeviceOptions::default()
        })
        .unwrap(),
    )
});
conformance!(shared_fault_that_delays_and_reorders, {
    let rules = vec![FaultRule::any(When::Chance(20_000), Fault::Delay { ns: 10_000 })];
    shared(Faulty::new(Arc::new(memory()), FaultPlan { seed: 1, rules, reorder: 4, ..FaultPlan::default() }))
});
conformance!(shared_fault_with_a_volatile_cache, {
    let plan = FaultPlan { seed: 1, volatile_cache: true, ..FaultPlan::default() };
    shared(Faulty::new(Arc::new(memory()), plan))
});

/// A drive of the preset that has weighted round robin, under queues of all classes.
fn zssd() -> NvmeDevice {
    let options = NvmeDeviceOptions { preset: "zssd", size_bytes: SIZE_BYTES, ..NvmeDeviceOptions::default() };
    NvmeDevice::new(options).unwrap()
}

conformance!(class_queues, Some(Rig::new(Classes(Arc::new(zssd())))));
conformance!(class_queues_that_delay_and_reorder, {
    let rules = vec![FaultRule::any(When::Chance(20_000), Fault::Delay { ns: 10_000 })];
    let plan = FaultPlan { seed: 1, rules, reorder: 4, ..FaultPlan::default() };
    Some(Rig::new(Classes(Arc::new(Faulty::new(Arc::new(zssd()), plan)))))
});

#[test]
fn a_block_device_is_served_once() {
    let Some(rig) = loop_rig(Direct::Always) else { return };
    let path = rig.held::<(LoopDevice, tempfile::TempDir)>().0.path.clone();
    let refusal = FileDevice::open(&FileOptions::new(&path)).err();
    assert_eq!(refusal, Some(format!("{}: is served by process {}", path.display(), std::process::id())));
}
