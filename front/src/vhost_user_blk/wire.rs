//! Numbers and layouts of vhost-user and of virtio's block device.
//!
//! Sources: the vhost-user specification (QEMU, docs/interop/vhost-user.rst), VIRTIO 1.2, sections 2.7 (split
//! virtqueues) and 5.2 (block device). A test compares the numbers with those of crates that others wrote.
//!
//! Messages are in the byte order of the machine, rings and requests little-endian.

/// A message's header, bytes: request, flags, size of the payload, four each.
pub const HEADER_BYTES: usize = 12;

/// Longest payload that is taken, bytes. The longest that is sent, SET_MEM_TABLE with 8 regions, has 264, and
/// SET_CONFIG at most 268.
pub const PAYLOAD_BYTES_MAX: usize = 512;

/// The version in a header's flags.
pub const VERSION: u32 = 1;
/// Bits of the version.
pub const VERSION_MASK: u32 = 3;
/// Flag: an answer.
pub const FLAG_REPLY: u32 = 1 << 2;
/// Flag: an answer is wanted.
pub const FLAG_NEED_REPLY: u32 = 1 << 3;

/// In the payload of SET_VRING_KICK, CALL and ERR: the queue.
pub const VRING_INDEX_MASK: u64 = 0xff;
/// In the same: no descriptor comes with it.
pub const VRING_NO_FD: u64 = 1 << 8;

/// In SET_VRING_ADDR: writes to the used ring are logged.
pub const VRING_LOG: u32 = 1;

/// A region of memory in a payload, bytes: guest address, size, user address, offset in the file, eight each.
pub const REGION_BYTES: usize = 32;

/// Regions of one SET_MEM_TABLE, at most.
pub const TABLE_REGIONS_MAX: usize = 8;

/// Makes the messages from a row for each: name, number, and the most descriptors that come with it.
macro_rules! messages {
    ($($name:ident = $number:literal, $descriptors:expr;)*) => {
        /// Messages of a front-end.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the specification's names")]
        pub enum Message {
            $($name = $number,)*
        }

        impl Message {
            /// All that are understood.
            pub const ALL: [Message; [$($number),*].len()] = [$(Message::$name),*];

            /// Descriptors that come with it, at most.
            pub const fn descriptors_max(self) -> usize {
                match self {
                    $(Message::$name => $descriptors,)*
                }
            }
        }
    };
}

messages! {
    GetFeatures = 1, 0;
    SetFeatures = 2, 0;
    SetOwner = 3, 0;
    ResetOwner = 4, 0;
    SetMemTable = 5, TABLE_REGIONS_MAX;
    SetLogBase = 6, 1;
    SetLogFd = 7, 1;
    SetVringNum = 8, 0;
    SetVringAddr = 9, 0;
    SetVringBase = 10, 0;
    GetVringBase = 11, 0;
    SetVringKick = 12, 1;
    SetVringCall = 13, 1;
    SetVringErr = 14, 1;
    GetProtocolFeatures = 15, 0;
    SetProtocolFeatures = 16, 0;
    GetQueueNum = 17, 0;
    SetVringEnable = 18, 0;
    SetBackendReqFd = 21, 1;
    GetConfig = 24, 0;
    SetConfig = 25, 0;
    GetInflightFd = 31, 0;
    SetInflightFd = 32, 1;
    ResetDevice = 34, 0;
    GetMaxMemSlots = 36, 0;
    AddMemReg = 37, 1;
    // The region is known by its addresses; some front-ends send its descriptor as well.
    RemMemReg = 38, 1;
}

impl Message {
    /// The message of this number, if it is understood.
    pub fn of(number: u32) -> Option<Message> {
        Message::ALL.into_iter().find(|message| *message as u32 == number)
    }
}

/// Message of the server on the channel of SET_BACKEND_REQ_FD: the config space is another one.
pub const BACKEND_CONFIG_CHANGE: u32 = 2;

/// Bits of GET_PROTOCOL_FEATURES.
pub mod protocol {
    #![expect(missing_docs, reason = "the specification's names")]
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// Bits of GET_FEATURES.
pub mod feature {
    #![expect(missing_docs, reason = "the specification's names")]
    pub const BLK_SEG_MAX: u64 = 1 << 2;
    pub const BLK_RO: u64 = 1 << 5;
    pub const BLK_BLK_SIZE: u64 = 1 << 6;
    pub const BLK_FLUSH: u64 = 1 << 9;
    pub const BLK_TOPOLOGY: u64 = 1 << 10;
    pub const BLK_CONFIG_WCE: u64 = 1 << 11;
    pub const BLK_MQ: u64 = 1 << 12;
    pub const BLK_DISCARD: u64 = 1 << 13;
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
    pub const LOG_ALL: u64 = 1 << 26;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// A descriptor, bytes: address 8, length 4, flags 2, next 2.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Flag of a descriptor: another follows.
pub const DESCRIPTOR_NEXT: u16 = 1;
/// Flag of a descriptor: the device writes there.
pub const DESCRIPTOR_WRITE: u16 = 2;
/// Flag of a descriptor: its memory is a table of descriptors.
pub const DESCRIPTOR_INDIRECT: u16 = 4;

/// The available ring without its entries of 2 bytes: flags, index before them, an event behind them, two bytes each.
pub const AVAIL_BYTES: usize = 6;
/// The used ring without its entries.
pub const USED_BYTES: usize = 6;
/// An entry of the used ring, bytes: head 4, length 4.
pub const USED_ENTRY_BYTES: usize = 8;
/// In the available ring's flags: no interrupt is wanted.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: no kick is wanted.
pub const USED_NO_NOTIFY: u16 = 1;
/// Largest size of a queue that is taken, a power of two. What a guest gets unless it is told otherwise: 128 or 256.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// A block request's header, bytes: type 4, reserved 4, sector 8.
pub const REQUEST_HEADER_BYTES: usize = 16;
/// Unit of sectors, whatever the block is, bytes.
pub const SECTOR_BYTES: u64 = 512;
/// A range to discard or to zero, bytes: sector 8, sectors 4, flags 4.
pub const RANGE_BYTES: usize = 16;
/// Flag of a range to zero: storage may be released.
pub const RANGE_UNMAP: u32 = 1;
/// Length of the answer to GET_ID, bytes.
pub const ID_BYTES: usize = 20;

/// Types of requests.
pub mod request {
    #![expect(missing_docs, reason = "the specification's names")]
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Values of the byte at a request's end.
pub mod status {
    #![expect(missing_docs, reason = "the specification's names")]
    pub const OK: u8 = 0;
    pub const IOERR: u8 = 1;
    pub const UNSUPP: u8 = 2;
}

/// A payload that is read from its front. What is not there reads as `None`.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    /// The next 8 bytes.
    pub fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*first))
    }

    /// The next 4 bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*first))
    }

    /// The next 2 bytes.
    pub fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_ne_bytes(*first))
    }
}

/// A message's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Number of the message.
    pub request: u32,
    /// Version and flags.
    pub flags: u32,
    /// Bytes of the payload that follows.
    pub size: u32,
}

impl Header {
    /// The header that `bytes` begin with.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let mut fields = Fields(bytes);
        Some(Header { request: fields.u32()?, flags: fields.u32()?, size: fields.u32()? })
    }

    /// The answer to a message of this header.
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        message(self.request, FLAG_REPLY, payload)
    }
}

/// A message's bytes.
pub fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    for word in [request, VERSION | flags, payload.len() as u32] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures as Protocol};
    use virtio_bindings::{virtio_blk as blk, virtio_config as config, virtio_ring as ring};

    #[test]
    fn the_numbers_are_those_of_others() {
        let theirs: Vec<u32> = [
            FrontendReq::GET_FEATURES,
            FrontendReq::SET_FEATURES,
            FrontendReq::SET_OWNER,
            FrontendReq::RESET_OWNER,
            FrontendReq::SET_MEM_TABLE,
            FrontendReq::SET_LOG_BASE,
            FrontendReq::SET_LOG_FD,
            FrontendReq::SET_VRING_NUM,
            FrontendReq::SET_VRING_ADDR,
            FrontendReq::SET_VRING_BASE,
            FrontendReq::GET_VRING_BASE,
            FrontendReq::SET_VRING_KICK,
            FrontendReq::SET_VRING_CALL,
            FrontendReq::SET_VRING_ERR,
            FrontendReq::GET_PROTOCOL_FEATURES,
            FrontendReq::SET_PROTOCOL_FEATURES,
            FrontendReq::GET_QUEUE_NUM,
            FrontendReq::SET_VRING_ENABLE,
            FrontendReq::SET_BACKEND_REQ_FD,
            FrontendReq::GET_CONFIG,
            FrontendReq::SET_CONFIG,
            FrontendReq::GET_INFLIGHT_FD,
            FrontendReq::SET_INFLIGHT_FD,
            FrontendReq::RESET_DEVICE,
            FrontendReq::GET_MAX_MEM_SLOTS,
            FrontendReq::ADD_MEM_REG,
            FrontendReq::REM_MEM_REG,
        ]
        .map(u32::from)
        .to_vec();
        assert_eq!(Message::ALL.map(|message| message as u32).to_vec(), theirs);
        for (ours, theirs) in [
            (protocol::MQ, Protocol::MQ),
            (protocol::LOG_SHMFD, Protocol::LOG_SHMFD),
            (protocol::REPLY_ACK, Protocol::REPLY_ACK),
            (protocol::BACKEND_REQ, Protocol::BACKEND_REQ),
            (protocol::CONFIG, Protocol::CONFIG),
            (protocol::INFLIGHT_SHMFD, Protocol::INFLIGHT_SHMFD),
            (protocol::RESET_DEVICE, Protocol::RESET_DEVICE),
            (protocol::CONFIGURE_MEM_SLOTS, Protocol::CONFIGURE_MEM_SLOTS),
        ] {
            assert_eq!(ours, theirs.bits());
        }
        for (ours, theirs) in [
            (feature::BLK_SEG_MAX, blk::VIRTIO_BLK_F_SEG_MAX),
            (feature::BLK_RO, blk::VIRTIO_BLK_F_RO),
            (feature::BLK_BLK_SIZE, blk::VIRTIO_BLK_F_BLK_SIZE),
            (feature::BLK_FLUSH, blk::VIRTIO_BLK_F_FLUSH),
            (feature::BLK_TOPOLOGY, blk::VIRTIO_BLK_F_TOPOLOGY),
            (feature::BLK_CONFIG_WCE, blk::VIRTIO_BLK_F_CONFIG_WCE),
            (feature::BLK_MQ, blk::VIRTIO_BLK_F_MQ),
            (feature::BLK_DISCARD, blk::VIRTIO_BLK_F_DISCARD),
            (feature::BLK_WRITE_ZEROES, blk::VIRTIO_BLK_F_WRITE_ZEROES),
            (feature::INDIRECT, ring::VIRTIO_RING_F_INDIRECT_DESC),
            (feature::EVENT_IDX, ring::VIRTIO_RING_F_EVENT_IDX),
            (feature::VERSION_1, config::VIRTIO_F_VERSION_1),
        ] {
            assert_eq!(ours, 1 << theirs);
        }
        for (ours, theirs) in [
            (request::IN, blk::VIRTIO_BLK_T_IN),
            (request::OUT, blk::VIRTIO_BLK_T_OUT),
            (request::FLUSH, blk::VIRTIO_BLK_T_FLUSH),
            (request::GET_ID, blk::VIRTIO_BLK_T_GET_ID),
            (request::DISCARD, blk::VIRTIO_BLK_T_DISCARD),
            (request::WRITE_ZEROES, blk::VIRTIO_BLK_T_WRITE_ZEROES),
            (status::OK.into(), blk::VIRTIO_BLK_S_OK),
            (status::IOERR.into(), blk::VIRTIO_BLK_S_IOERR),
            (status::UNSUPP.into(), blk::VIRTIO_BLK_S_UNSUPP),
            (DESCRIPTOR_NEXT.into(), ring::VRING_DESC_F_NEXT),
            (DESCRIPTOR_WRITE.into(), ring::VRING_DESC_F_WRITE),
            (DESCRIPTOR_INDIRECT.into(), ring::VRING_DESC_F_INDIRECT),
            (AVAIL_NO_INTERRUPT.into(), ring::VRING_AVAIL_F_NO_INTERRUPT),
            (USED_NO_NOTIFY.into(), ring::VRING_USED_F_NO_NOTIFY),
            (RANGE_UNMAP, blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP),
            (ID_BYTES as u32, blk::VIRTIO_BLK_ID_BYTES),
        ] {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_message_reads_as_it_was_written() {
        let bytes = message(24, FLAG_NEED_REPLY, &[7; 9]);
        assert_eq!(Header::read(&bytes), Some(Header { request: 24, flags: 9, size: 9 }));
        assert_eq!(&bytes[HEADER_BYTES..], [7; 9]);
        assert_eq!(Header::read(&bytes[..11]), None);
    }
}
