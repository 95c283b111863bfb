//! Any bytes in a ublk descriptor or in the driver's answer about a device: none cause a panic, and accepted requests
//! lie in the export, in whole blocks, and in the room for their bytes.
#![no_main]

#[path = "../export.rs"]
mod export;

use arbitrary::Arbitrary;
use export::export;
use libfuzzer_sys::fuzz_target;
use mqfq_blk::request::Op;
use mqfq_front::export::BlockSizes;
use mqfq_front::ublk::plan::{self, Plan};
use mqfq_front::ublk::request::{RANGE_BYTES_MAX, REQUESTS, validate};
use mqfq_ublk::abi::{DESCRIPTOR_BYTES, DEV_INFO_BYTES, Descriptor, DevInfo};

#[derive(Arbitrary, Debug)]
struct Input {
    descriptors: Vec<[u8; DESCRIPTOR_BYTES]>,
    info: [u8; DEV_INFO_BYTES],
    offset_blocks: u32,
    size_blocks: u16,
    block_exp: u8,
    align_exp: u8,
    room_bytes: u32,
    payload_bytes_max: u32,
    read_only: bool,
    /// The export has become so small while requests were on their way.
    shrunk_blocks: Option<u16>,
    is_owner_alive: bool,
    name: String,
}

fuzz_target!(|input: Input| {
    let block_bytes = 1u32 << (input.block_exp % 13).max(9);
    let align_bytes = 1u32 << (input.align_exp % 13);
    let offset_bytes = u64::from(input.offset_blocks) * u64::from(block_bytes);
    let size_bytes = (u64::from(input.size_blocks) + 1) * u64::from(block_bytes);
    let block = BlockSizes {
        min_bytes: block_bytes,
        preferred_bytes: 4096,
        payload_bytes_max: input.payload_bytes_max,
        pages_align_bytes: 0,
    };
    let export = export(offset_bytes, size_bytes, input.read_only, block);
    if let Some(blocks) = input.shrunk_blocks {
        export.state.resize(size_bytes.min((u64::from(blocks) + 1) * u64::from(block_bytes)));
    }
    let end_bytes = offset_bytes + export.size_now_bytes();
    for bytes in &input.descriptors {
        let descriptor = Descriptor::from_bytes(bytes);
        let Ok(asked) = validate(descriptor, &export, input.room_bytes as usize, align_bytes) else { continue };
        assert!(asked.op.index() < REQUESTS.len());
        if asked.op == Op::Flush {
            assert_eq!((asked.offset_bytes, asked.length_bytes), (0, 0));
            continue;
        }
        assert!(asked.length_bytes > 0 && asked.length_bytes % block_bytes == 0);
        assert!(asked.offset_bytes >= offset_bytes && asked.offset_bytes + u64::from(asked.length_bytes) <= end_bytes);
        assert!((asked.offset_bytes - offset_bytes) % u64::from(block_bytes.max(align_bytes)) == 0);
        match asked.op {
            Op::Read | Op::Write => {
                assert!(asked.length_bytes <= input.room_bytes && asked.length_bytes <= input.payload_bytes_max);
            }
            _ => assert!(asked.length_bytes <= RANGE_BYTES_MAX),
        }
        assert!(asked.op == Op::Read || !input.read_only);
    }
    let info = DevInfo::from_bytes(&input.info);
    assert_eq!(DevInfo::from_bytes(&info.to_bytes()), info);
    let plan = plan::plan(&info, Some(&input.name), input.is_owner_alive, false);
    if matches!(plan, Plan::Recover | Plan::Replace) {
        assert!(info.stamp == plan::stamp(&input.name), "another's device is taken");
        assert!(plan == Plan::Recover || !input.is_owner_alive, "a device is deleted whose server runs");
    }
});
