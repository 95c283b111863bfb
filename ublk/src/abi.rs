//! Which numbers and structures does the driver speak?
//!
//! Source: `include/uapi/linux/ublk_cmd.h` of Linux 6.1, 6.12 and 7.x (GPL-2.0 WITH Linux-syscall-note OR MIT), written
//! down here as numbers and offsets. All values are in the machine's byte order. Structures are made and read as
//! bytes, so that no layout of a Rust type is relied on.

/// Operations on `/dev/ublk-control`, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads the kernel's description of a device.
    GetDevInfo,
    /// Adds a device, without its block device.
    AddDev,
    /// Removes a device, with its block device.
    DelDev,
    /// Adds the block device, once every request has been fetched.
    StartDev,
    /// Removes the block device, once its requests have ended.
    StopDev,
    /// Sets the block device's parameters.
    SetParams,
    /// Begins the recovery of a device by another process.
    StartUserRecovery,
    /// Ends the recovery, once every request has been fetched.
    EndUserRecovery,
    /// Reads the features of this kernel. Linux 6.5.
    GetFeatures,
    /// As [`Operation::DelDev`], and does not wait for processes that have the block device open. Linux 6.9.
    DelDevAsync,
    /// Changes the block device's size. Linux 6.16.
    UpdateSize,
    /// As [`Operation::GetDevInfo`], for a process that may open the device's file, named by its path. Linux 6.4.
    GetDevInfoByPath,
}

impl Operation {
    /// Its number, and whether it only reads (`_IOR`), which is part of its code.
    const fn number(self) -> (u32, bool) {
        match self {
            Operation::GetDevInfo => (0x02, true),
            Operation::AddDev => (0x04, false),
            Operation::DelDev => (0x05, false),
            Operation::StartDev => (0x06, false),
            Operation::StopDev => (0x07, false),
            Operation::SetParams => (0x08, false),
            Operation::StartUserRecovery => (0x10, false),
            Operation::EndUserRecovery => (0x11, false),
            Operation::GetFeatures => (0x13, true),
            Operation::DelDevAsync => (0x14, true),
            Operation::UpdateSize => (0x15, false),
            Operation::GetDevInfoByPath => (0x12, true),
        }
    }

    /// As the driver takes it: an ioctl code from Linux 6.4 on (`encoded`), its bare number before.
    pub const fn code(self, encoded: bool) -> u32 {
        let (number, reads) = self.number();
        if encoded { ioctl_code(number, CONTROL_BYTES as u32, reads) } else { number }
    }
}

/// `_IOR` or `_IOWR` of the magic `u`. Source: `include/uapi/asm-generic/ioctl.h`.
const fn ioctl_code(number: u32, bytes: u32, reads_only: bool) -> u32 {
    let direction = if reads_only { 2 } else { 3 };
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | number
}

/// Operations on `/dev/ublkcN`.
pub mod io {
    /// Takes the first request of a tag.
    pub const FETCH: u32 = 0x20;
    /// Ends a tag's request, and takes the next one.
    pub const COMMIT_AND_FETCH: u32 = 0x21;

    /// As the driver takes it, see [`super::Operation::code`].
    pub const fn code(operation: u32, encoded: bool) -> u32 {
        if encoded { super::ioctl_code(operation, 16, false) } else { operation }
    }

    /// A fetch ended: there is a request.
    pub const OK: i32 = 0;
    /// A fetch ended: there will be none, and the tag is not to be fetched again. -ENODEV.
    pub const ABORT: i32 = -19;

    /// The front of `struct ublksrv_io_cmd`; the address of the room follows.
    pub fn head(queue: u16, tag: u16, result: i32) -> [u8; 8] {
        let mut head = [0; 8];
        head[..2].copy_from_slice(&queue.to_ne_bytes());
        head[2..4].copy_from_slice(&tag.to_ne_bytes());
        head[4..].copy_from_slice(&result.to_ne_bytes());
        head
    }
}

/// Bits of a device's flags and of GET_FEATURES.
pub mod feature {
    /// The server may have a request's pages in its ring instead of a copy. Linux 6.15.
    pub const ZERO_COPY: u64 = 1;
    /// The block device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// A server's unfinished requests go to the next server. Otherwise they fail.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// A user without CAP_SYS_ADMIN may add it.
    pub const UNPRIVILEGED: u64 = 1 << 5;
    /// Operations are ioctl codes.
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    /// While there is no server, requests fail. Otherwise they wait.
    pub const USER_RECOVERY_FAIL_IO: u64 = 1 << 9;
    /// The driver puts a request's pages in the server's ring, and takes them out, by itself. Linux 6.16.
    pub const AUTO_BUF_REG: u64 = 1 << 11;
    /// Features of a device whose payloads stay in the kernel.
    pub const PAGES: u64 = ZERO_COPY | AUTO_BUF_REG;
    /// Another process may take it from its server, which is told that its requests were taken back. Linux 6.16.
    pub const QUIESCE: u64 = 1 << 12;
    /// Features of Linux 6.1, which has no GET_FEATURES.
    pub const OF_6_1: u64 = USER_RECOVERY | USER_RECOVERY_REISSUE;
    /// Features of Linux 6.4, which has ioctl codes but no GET_FEATURES.
    pub const OF_6_4: u64 = OF_6_1 | UNPRIVILEGED | IOCTL_ENCODE;
}

/// States of a device.
pub mod state {
    /// The device has no block device.
    pub const DEAD: u16 = 0;
    /// A process serves the device.
    pub const LIVE: u16 = 1;
    /// No process serves the device, and requests wait.
    pub const QUIESCED: u16 = 2;
    /// No process serves the device, and requests fail.
    pub const FAIL_IO: u16 = 3;
}

/// Where a queue's descriptors are mapped, by queue, and how far apart: each queue may have [`DEPTH_MAX`] of them.
pub const DESCRIPTOR_BYTES: usize = 24;

/// Most requests of a queue.
pub const DEPTH_MAX: u16 = 4096;

/// Length of a control command.
pub const CONTROL_BYTES: usize = 32;

/// Stands for "the next number that is free".
pub const ANY_NUMBER: u32 = u32::MAX;

/// `struct ublksrv_ctrl_cmd`, of a command that is for no queue. The first `path_length` of the `length` bytes at
/// `address` are the path of the device's file; 0: none is given.
pub fn control(number: u32, address: u64, length: u16, data: u64, path_length: u16) -> [u8; CONTROL_BYTES] {
    let mut bytes = [0; CONTROL_BYTES];
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    bytes[6..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes[24..26].copy_from_slice(&path_length.to_ne_bytes());
    bytes
}

/// `struct ublksrv_ctrl_dev_info`: what a device is to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DevInfo {
    /// Hardware queues of the block device.
    pub queues: u16,
    /// Requests of each.
    pub depth: u16,
    /// One of [`state`]; the driver's.
    pub state: u16,
    /// Largest read or write, bytes: room for it is behind each command's address.
    pub room_bytes: u32,
    /// N of `/dev/ublkbN`.
    pub number: u32,
    /// Process that serves it; the driver has it from START_DEV.
    pub pid: i32,
    /// Bits of [`feature`].
    pub flags: u64,
    /// The server's own, which the driver keeps.
    pub stamp: u64,
}

/// Length of a [`DevInfo`] as bytes.
pub const DEV_INFO_BYTES: usize = 64;

impl DevInfo {
    /// Payloads of its requests stay in the kernel.
    pub fn has_pages(&self) -> bool {
        self.flags & feature::AUTO_BUF_REG != 0
    }

    /// As the driver reads it.
    pub fn to_bytes(self) -> [u8; DEV_INFO_BYTES] {
        let mut bytes = [0; DEV_INFO_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.queues.to_ne_bytes());
        put(2, &self.depth.to_ne_bytes());
        put(4, &self.state.to_ne_bytes());
        put(8, &self.room_bytes.to_ne_bytes());
        put(12, &self.number.to_ne_bytes());
        put(16, &self.pid.to_ne_bytes());
        put(24, &self.flags.to_ne_bytes());
        put(32, &self.stamp.to_ne_bytes());
        bytes
    }

    /// As the driver wrote it.
    pub fn from_bytes(bytes: &[u8; DEV_INFO_BYTES]) -> DevInfo {
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        DevInfo {
            queues: u16_at(0),
            depth: u16_at(2),
            state: u16_at(4),
            room_bytes: u32_at(8),
            number: u32_at(12),
            pid: u32_at(16) as i32,
            flags: u64_at(24),
            stamp: u64_at(32),
        }
    }
}

/// `struct ublk_params` with its basic part, that of discards, and that of memory if it is asked for: what the block
/// device is like. A sector has 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// It cannot be written to.
    pub read_only: bool,
    /// Writes may be lost until they are flushed; it takes flushes and FUA.
    pub volatile_cache: bool,
    /// Logarithm of the smallest request, bytes: 9 to 12.
    pub logical_shift: u8,
    /// Logarithm of the smallest write without a read before it, bytes.
    pub physical_shift: u8,
    /// Logarithm of the best size of a request, bytes.
    pub best_shift: u8,
    /// Largest read or write, sectors: at least 8, a page.
    pub sectors_max: u32,
    /// Size, sectors.
    pub sectors: u64,
    /// Largest discard, and largest zeroing, sectors; 0: none.
    pub range_sectors_max: u32,
    /// Where payloads begin in their users' memory: at a multiple of this, bytes, a power of two of at most a page; 0:
    /// where the kernel lets them. Linux 6.15.
    pub memory_align_bytes: u32,
}

/// Length of [`Params`] as bytes, at most.
pub const PARAMS_BYTES: usize = 116;

/// Length of [`Params`] without the part of memory, which older kernels do not have.
const PARAMS_BYTES_SHORT: usize = 60;

impl Params {
    /// As the driver reads them.
    pub fn to_bytes(self) -> [u8; PARAMS_BYTES] {
        const READ_ONLY: u32 = 1;
        const VOLATILE_CACHE: u32 = 1 << 2;
        const FUA: u32 = 1 << 3;
        const BASIC: u32 = 1;
        const DISCARD: u32 = 2;
        const MEMORY: u32 = 1 << 4;
        let (parts, length) = match self.memory_align_bytes {
            0 => (BASIC | DISCARD, PARAMS_BYTES_SHORT),
            _ => (BASIC | DISCARD | MEMORY, PARAMS_BYTES),
        };
        let cache = if self.volatile_cache { VOLATILE_CACHE | FUA } else { 0 };
        let attributes = cache | if self.read_only { READ_ONLY } else { 0 };
        let mut bytes = [0; PARAMS_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(length as u32).to_ne_bytes());
        put(4, &parts.to_ne_bytes());
        put(8, &attributes.to_ne_bytes());
        put(12, &[self.logical_shift, self.physical_shift, self.best_shift, self.logical_shift]);
        put(16, &self.sectors_max.to_ne_bytes());
        put(24, &self.sectors.to_ne_bytes());
        // Behind the parts of zones and of numbers, which are not set. A mask.
        put(108, &self.memory_align_bytes.saturating_sub(1).to_ne_bytes());
        // From here on discards: alignment 0, granularity, most of a discard, most of a zeroing, one segment.
        put(44, &(1u32 << self.logical_shift).to_ne_bytes());
        put(48, &self.range_sectors_max.to_ne_bytes());
        put(52, &self.range_sectors_max.to_ne_bytes());
        put(56, &1u16.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_io_desc`: a request, as the driver describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor {
    /// Operation in the lowest byte, flags above.
    pub op_flags: u32,
    /// Length.
    pub sectors: u32,
    /// First sector.
    pub start_sector: u64,
}

/// Operations of a descriptor.
pub mod op {
    /// Bytes into the room.
    pub const READ: u8 = 0;
    /// The room's bytes.
    pub const WRITE: u8 = 1;
    /// Writes that have ended survive a crash from then on.
    pub const FLUSH: u8 = 2;
    /// The bytes are no longer needed.
    pub const DISCARD: u8 = 3;
    /// The bytes read as zero.
    pub const WRITE_ZEROES: u8 = 5;
    /// Flag: stable before its end.
    pub const FUA: u32 = 1 << 13;
    /// Flag of a zeroing: the range stays allocated.
    pub const NO_UNMAP: u32 = 1 << 15;
}

impl Descriptor {
    /// Reads a descriptor's bytes; the address at its end is ours, and known.
    pub fn from_bytes(bytes: &[u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let start_sector = u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 + byte]));
        Descriptor { op_flags: u32_at(0), sectors: u32_at(4), start_sector }
    }

    /// One of [`op`], or another.
    pub fn op(self) -> u8 {
        self.op_flags as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: what the header's macros come to, by a C compiler.
    #[test]
    fn codes_are_those_of_the_header() {
        let codes = [
            (Operation::GetDevInfo, 0x8020_7502),
            (Operation::AddDev, 0xc020_7504),
            (Operation::DelDev, 0xc020_7505),
            (Operation::StartDev, 0xc020_7506),
            (Operation::StopDev, 0xc020_7507),
            (Operation::SetParams, 0xc020_7508),
            (Operation::StartUserRecovery, 0xc020_7510),
            (Operation::EndUserRecovery, 0xc020_7511),
            (Operation::GetFeatures, 0x8020_7513),
            (Operation::DelDevAsync, 0x8020_7514),
            (Operation::UpdateSize, 0xc020_7515),
            (Operation::GetDevInfoByPath, 0x8020_7512),
        ];
        for (operation, code) in codes {
            assert_eq!((operation.code(true), operation.code(false)), (code, code & 0xff), "{operation:?}");
        }
        assert_eq!(io::code(io::FETCH, true), 0xc010_7520);
        assert_eq!(io::code(io::COMMIT_AND_FETCH, true), 0xc010_7521);
        assert_eq!(io::code(io::FETCH, false), 0x20);
    }

    #[test]
    fn structures_have_their_members_where_the_header_has_them() {
        let info = DevInfo {
            queues: 0x0102,
            depth: 0x0304,
            state: 0x0506,
            room_bytes: 0x0708_090a,
            number: 0x0b0c_0d0e,
            pid: 0x0f10_1112,
            flags: 0x1314_1516_1718_191a,
            stamp: 0x1b1c_1d1e_1f20_2122,
        };
        let bytes = info.to_bytes();
        assert_eq!(DevInfo::from_bytes(&bytes), info);
        assert_eq!(bytes[8..12], 0x0708_090au32.to_ne_bytes());
        assert_eq!(bytes[24..32], 0x1314_1516_1718_191au64.to_ne_bytes());
        let params = Params {
            read_only: true,
            volatile_cache: true,
            logical_shift: 9,
            physical_shift: 12,
            best_shift: 13,
            sectors_max: 256,
            sectors: 1 << 40,
            range_sectors_max: 8192,
            memory_align_bytes: 0,
        };
        let bytes = params.to_bytes();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([0, 4, 8, 16, 44, 48, 52].map(u32_at), [60, 3, 0b1101, 256, 512, 8192, 8192]);
        assert_eq!(bytes[12..16], [9, 12, 13, 9]);
        assert_eq!(bytes[24..32], (1u64 << 40).to_ne_bytes());
        assert_eq!(bytes[56..60], [1u16.to_ne_bytes(), [0; 2]].concat());
        assert!(bytes[60..].iter().all(|byte| *byte == 0), "an older kernel reads no further");
        let bytes = Params { memory_align_bytes: 4096, ..params }.to_bytes();
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([0, 4, 56, 108, 112].map(u32_at), [116, 0x13, 1, 4095, 0]);
        let control = control(7, 0x1122, 64, 9, 0x0a0b);
        assert_eq!(control[4..6], [0xff; 2]);
        assert_eq!((control[6..8].to_vec(), control[16]), (64u16.to_ne_bytes().to_vec(), 9));
        assert_eq!(control[24..26], 0x0a0bu16.to_ne_bytes());
    }

    #[test]
    fn a_descriptor_is_read_as_it_was_written() {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..4].copy_from_slice(&(u32::from(op::WRITE) | op::FUA).to_ne_bytes());
        bytes[4..8].copy_from_slice(&8u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&77u64.to_ne_bytes());
        bytes[16..].copy_from_slice(&u64::MAX.to_ne_bytes());
        let descriptor = Descriptor::from_bytes(&bytes);
        assert_eq!((descriptor.op(), descriptor.sectors, descriptor.start_sector), (op::WRITE, 8, 77));
        assert!(descriptor.op_flags & op::FUA != 0);
    }
}
