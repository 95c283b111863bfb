//! Messages of a front-end and their answers, without a socket, and without queues that run.

use super::super::disk::tests::export;
use super::super::guest::tests::file;
use super::super::queue_control::bell;
use super::super::wire::QUEUE_SIZE_MAX;
use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;

const SIZE: u16 = 8;

fn session() -> Session {
    Session::new(Disk::new(&export()))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn event() -> OwnedFd {
    bell().unwrap()
}

impl Session {
    /// Sends `message` without a descriptor; returns the payload of its answer.
    fn say(&mut self, message: Message, payload: &[u8]) -> Result<Vec<u8>, Rule> {
        self.take(message, payload, Vec::new()).map(|answer| answer.payload.unwrap_or_default())
    }

    /// Sends `message` with a descriptor.
    fn give(&mut self, message: Message, payload: &[u8], descriptor: OwnedFd) -> Result<Vec<u8>, Rule> {
        self.take(message, payload, vec![descriptor.into()]).map(|answer| answer.payload.unwrap_or_default())
    }

    fn negotiate(&mut self, features: u64) {
        assert_eq!(self.say(Message::SetFeatures, &longs(&[features])), Ok(vec![]));
    }

    /// Memory, and all that `queue` needs to run but for being enabled.
    fn set_up(&mut self, queue: u32) {
        let region = longs(&[0, 1 << 20, 0, 0]);
        self.give(Message::SetMemTable, &[words(&[1, 0]), region].concat(), file(1 << 20)).unwrap();
        self.say(Message::SetVringNum, &words(&[queue, SIZE.into()])).unwrap();
        let addresses = [words(&[queue, 0]), longs(&[0, 0x8000, 0x5000, 0])].concat();
        self.say(Message::SetVringAddr, &addresses).unwrap();
        self.give(Message::SetVringKick, &longs(&[queue.into()]), event()).unwrap();
    }

    fn runs(&self, queue: u16) -> Result<bool, Rule> {
        self.ready(queue).map(|start| start.is_some())
    }
}

#[test]
fn a_front_end_is_offered_what_the_disk_has_and_may_take_no_more() {
    let mut session = session();
    let all = Disk::new(&export()).features();
    assert_eq!(session.say(Message::GetFeatures, &[]), Ok(longs(&[all])));
    // The packed ring is one that no front-end is offered.
    const RING_PACKED: u64 = 1 << 34;
    for (bits, refused) in [
        (0, None),
        (all, None),
        // A guest that found the disk read-only.
        (feature::BLK_RO, None),
        (feature::BLK_FLUSH | 1 << 63, Some(Rule::UnofferedFeatures)),
        (all | RING_PACKED, Some(Rule::UnofferedFeatures)),
    ] {
        assert_eq!(session.say(Message::SetFeatures, &longs(&[bits])).err(), refused, "{bits:#x}");
    }
    assert_eq!(session.say(Message::GetProtocolFeatures, &[]), Ok(longs(&[PROTOCOL])));
    assert!(!session.acknowledges() && !session.has_config());
    let beyond = longs(&[PROTOCOL | 1 << 63]);
    assert_eq!(session.say(Message::SetProtocolFeatures, &beyond), Err(Rule::UnofferedFeatures));
    assert!(!session.acknowledges() && !session.has_config(), "nothing has changed");
    for bits in [protocol::REPLY_ACK, protocol::CONFIG, PROTOCOL, 0] {
        session.say(Message::SetProtocolFeatures, &longs(&[bits])).unwrap();
        let expected = (bits & protocol::REPLY_ACK != 0, bits & protocol::CONFIG != 0);
        assert_eq!((session.acknowledges(), session.has_config()), expected, "{bits:#x}");
    }
    assert_eq!(session.say(Message::GetQueueNum, &[]), Ok(longs(&[64])));
    assert_eq!(session.say(Message::GetMaxMemSlots, &[]), Ok(longs(&[64])));
}

#[test]
fn a_message_stops_the_queues_that_it_changes_something_for_and_no_others() {
    use Message::*;
    let of_one = [
        SetVringNum,
        SetVringAddr,
        SetVringBase,
        GetVringBase,
        SetVringEnable,
        SetVringKick,
        SetVringCall,
        SetVringErr,
    ];
    let of_all =
        [SetFeatures, SetMemTable, AddMemReg, RemMemReg, SetLogBase, SetConfig, SetInflightFd, ResetOwner, ResetDevice];
    // These say nothing about a queue that another front-end may be running.
    let before_all = [
        GetFeatures,
        GetProtocolFeatures,
        SetProtocolFeatures,
        GetQueueNum,
        GetMaxMemSlots,
        SetOwner,
        SetBackendReqFd,
        SetVringCall,
        SetVringErr,
        GetConfig,
    ];
    let session = session();
    for message in Message::ALL {
        // Queue 5, without a descriptor.
        let expected = match message {
            _ if of_one.contains(&message) => [Stops::One(5), Stops::None],
            _ if of_all.contains(&message) => [Stops::All; 2],
            _ => [Stops::None; 2],
        };
        let stops = [&longs(&[5 | VRING_NO_FD])[..], &[]].map(|payload| session.stops(message, payload));
        assert_eq!(stops, expected, "{message:?}");
        assert_eq!(Session::is_preamble(message), before_all.contains(&message), "{message:?}");
    }
}

#[test]
fn a_payload_that_is_cut_short_or_has_too_many_descriptors_is_refused() {
    use Message::*;
    let region = longs(&[0, 4096, 0, 0]);
    let table = [
        (SetMemTable, [words(&[1, 0]), region.clone()].concat(), 8),
        (AddMemReg, [longs(&[0]), region.clone()].concat(), 1),
        (RemMemReg, [longs(&[0]), region].concat(), 1),
        (SetLogBase, longs(&[64, 0]), 1),
        (SetInflightFd, [longs(&[4096, 0]), vec![1, 0, 8, 0]].concat(), 1),
        (SetVringKick, longs(&[0]), 1),
        (SetVringCall, longs(&[0]), 1),
        (SetVringErr, longs(&[0]), 1),
        (GetInflightFd, [longs(&[0, 0]), vec![1, 0, 8, 0]].concat(), 0),
        (SetFeatures, longs(&[0]), 0),
        (SetProtocolFeatures, longs(&[0]), 0),
        (SetVringNum, words(&[0, 8]), 0),
        (SetVringBase, words(&[0, 8]), 0),
        (GetVringBase, words(&[0, 0]), 0),
        (SetVringEnable, words(&[0, 1]), 0),
        (SetVringAddr, [words(&[0, 0]), longs(&[0, 0, 0, 0])].concat(), 0),
        (GetConfig, words(&[0, 4, 0, 0]), 0),
        (SetConfig, words(&[32, 4, 0, 0]), 0),
    ];
    for (message, payload, most) in &table {
        for length in 0..payload.len() {
            let descriptors = (0..*most.min(&1)).map(|_| file(4096).into()).collect();
            let refused = session().take(*message, &payload[..length], descriptors).unwrap_err();
            assert_eq!(refused, Rule::BadPayload, "{message:?}, {length} bytes");
        }
    }
    for message in Message::ALL {
        let most = match table.iter().find(|(other, _, _)| *other == message) {
            Some((_, _, most)) => *most,
            None => usize::from(matches!(message, SetLogFd | SetBackendReqFd)),
        };
        let descriptors = (0..=most).map(|_| file(4096).into()).collect();
        let refused = session().take(message, &[], descriptors).unwrap_err();
        assert_eq!(refused, Rule::BadDescriptors, "{message:?} with {}", most + 1);
    }
}

#[test]
fn a_queue_runs_when_it_was_described_started_and_enabled() {
    let mut session = session();
    assert_eq!(session.runs(3), Ok(false));
    session.set_up(3);
    assert_eq!((session.runs(3), session.runs(2)), (Ok(true), Ok(false)), "without protocol features it is enabled");
    session.negotiate(feature::PROTOCOL_FEATURES);
    assert_eq!(session.runs(3), Ok(false));
    let enable = |session: &mut Session, on| session.say(Message::SetVringEnable, &words(&[3, on])).unwrap();
    enable(&mut session, 1);
    assert_eq!(session.runs(3), Ok(true));
    enable(&mut session, 0);
    assert_eq!(session.runs(3), Ok(false));
    enable(&mut session, 1);
    let start = session.ready(3).unwrap().unwrap();
    assert_eq!((start.ring.size(), start.call.is_some(), start.error.is_some()), (SIZE, false, false));
    for message in [Message::SetVringCall, Message::SetVringErr] {
        session.give(message, &longs(&[3]), event()).unwrap();
    }
    let start = session.ready(3).unwrap().unwrap();
    assert!(start.call.is_some() && start.error.is_some());
    session.say(Message::SetVringCall, &longs(&[3 | VRING_NO_FD])).unwrap();
    assert!(session.ready(3).unwrap().unwrap().call.is_none(), "the guest polls");
    // Where it has stopped is said, and its descriptors are given anew.
    session.stopped(3, 7);
    assert_eq!(session.say(Message::GetVringBase, &words(&[3, 0])), Ok(words(&[3, 7])));
    assert_eq!(session.runs(3), Ok(false));
    session.give(Message::SetVringKick, &longs(&[3]), event()).unwrap();
    assert_eq!(session.ready(3).unwrap().unwrap().ring.base(), 7);
    session.say(Message::ResetDevice, &[]).unwrap();
    assert_eq!(session.runs(3), Ok(false));
}

#[test]
fn numbers_of_a_queue_are_taken_up_to_their_limits() {
    let mut session = session();
    let mut say = |message, queue: u32, number: u32| session.say(message, &words(&[queue, number])).err();
    for (size, refused) in [
        (0, Some(Rule::BadQueueSize)),
        (1, None),
        (3, Some(Rule::BadQueueSize)),
        (QUEUE_SIZE_MAX.into(), None),
        (2 * u32::from(QUEUE_SIZE_MAX), Some(Rule::BadQueueSize)),
        (1 << 16 | 8, Some(Rule::BadQueueSize)),
    ] {
        assert_eq!(say(Message::SetVringNum, 63, size), refused, "{size}");
    }
    for message in [Message::SetVringNum, Message::SetVringBase, Message::GetVringBase, Message::SetVringEnable] {
        assert_eq!((say(message, 63, 1), say(message, 64, 1)), (None, Some(Rule::NoSuchQueue)), "{message:?}");
    }
    // An entry of the available ring has 16 bits.
    assert_eq!(say(Message::SetVringBase, 0, 0xffff), None);
    assert_eq!(say(Message::SetVringBase, 0, 0x1_0000), Some(Rule::BadPayload));
    assert_eq!(session.say(Message::GetVringBase, &words(&[0, 0])), Ok(words(&[0, 0xffff])));
}

#[test]
fn an_event_comes_with_its_descriptor_or_says_that_it_has_none() {
    let mut session = session();
    for message in [Message::SetVringKick, Message::SetVringCall, Message::SetVringErr] {
        let polled = if message == Message::SetVringKick { Some(Rule::BadDescriptors) } else { None };
        assert_eq!(session.say(message, &longs(&[VRING_NO_FD])).err(), polled, "{message:?}");
        assert_eq!(session.say(message, &longs(&[0])), Err(Rule::BadDescriptors), "{message:?}");
        assert_eq!(session.give(message, &longs(&[VRING_NO_FD]), event()), Err(Rule::BadDescriptors), "{message:?}");
        assert_eq!(session.give(message, &longs(&[64]), event()), Err(Rule::NoSuchQueue), "{message:?}");
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(session.give(message, &longs(&[0]), reader.into()), Err(Rule::UnfitDescriptor), "{message:?}");
        // The signalled side may never read, so a write must not wait for it.
        let waiting = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let ours = waiting.try_clone().unwrap();
        session.give(message, &longs(&[0]), waiting).unwrap();
        assert!(rustix::fs::fcntl_getfl(&ours).unwrap().contains(rustix::fs::OFlags::NONBLOCK), "{message:?}");
    }
    assert!(session.backend().is_none());
    assert_eq!(session.say(Message::SetBackendReqFd, &[]), Err(Rule::BadDescriptors));
    assert_eq!(session.give(Message::SetBackendReqFd, &[], event()), Err(Rule::UnfitDescriptor));
    let socket = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
    session.give(Message::SetBackendReqFd, &[], socket()).unwrap();
    assert!(session.backend().is_some());
}

#[test]
fn a_table_replaces_the_memory_whole_and_regions_come_and_go_one_by_one() {
    let mut session = session();
    let region = |at: u64| longs(&[at, 4096, at, 0]);
    let table = |regions: &[u64]| {
        let regions: Vec<Vec<u8>> = regions.iter().map(|at| region(*at)).collect();
        [words(&[regions.len() as u32, 0]), regions.concat()].concat()
    };
    let files = |count: usize| -> Vec<Passed> { (0..count).map(|_| file(4096).into()).collect() };
    let eight: Vec<u64> = (0..8).map(|number| number << 12).collect();
    session.take(Message::SetMemTable, &table(&eight), files(8)).unwrap();
    assert_eq!(session.memory.len(), 8);
    for (regions, count, rule) in [
        (&eight[..2], 1, Rule::BadDescriptors),
        (&eight[..2], 3, Rule::BadDescriptors),
        (&[0, 2048], 2, Rule::BadRegion),
    ] {
        let refused = session.take(Message::SetMemTable, &table(regions), files(count)).unwrap_err();
        assert_eq!((refused, session.memory.len()), (rule, 8), "all stay");
    }
    session.take(Message::SetMemTable, &table(&[1 << 20]), files(1)).unwrap();
    assert!(session.memory.span(1 << 20, 4096).is_some() && session.memory.span(0, 1).is_none());
    let single = [longs(&[0]), region(0)].concat();
    assert_eq!(session.say(Message::AddMemReg, &single), Err(Rule::BadDescriptors));
    session.give(Message::AddMemReg, &single, file(4096)).unwrap();
    assert!(session.memory.span(0, 4096).is_some());
    session.say(Message::RemMemReg, &single).unwrap();
    assert_eq!((session.memory.len(), session.say(Message::RemMemReg, &single)), (1, Err(Rule::BadRegion)));
}

#[test]
fn a_log_is_written_where_it_begins_in_its_file_and_only_if_that_was_agreed_on() {
    const OFFSET: u64 = 4096 + 8;
    let mut session = session();
    session.set_up(0);
    let bits = file(3 * 4096);
    let ours = File::from(bits.try_clone().unwrap());
    let payload = longs(&[16, OFFSET]);
    assert_eq!(session.say(Message::SetLogBase, &payload), Err(Rule::BadDescriptors));
    assert_eq!(session.give(Message::SetLogBase, &payload, bits), Ok(payload), "the front-end waits for that");
    assert!(session.ready(0).unwrap().unwrap().log.is_none());
    session.negotiate(feature::LOG_ALL);
    let (log, used) = session.ready(0).unwrap().unwrap().log.unwrap();
    assert_eq!(used, None, "nobody asked for the used ring's");
    // Pages 0 and 127: the first and the last bit of the log.
    log.mark_range(0, 1);
    log.mark_range(127 << 12, 4096 + 1);
    let mut marked = [0; 18];
    ours.read_exact_at(&mut marked, OFFSET - 1).unwrap();
    let mut expected = [0; 18];
    (expected[1], expected[16]) = (1, 0x80);
    assert_eq!(marked, expected);
    let addresses = [words(&[0, VRING_LOG]), longs(&[0, 0x8000, 0x5000, 0x1234])].concat();
    session.say(Message::SetVringAddr, &addresses).unwrap();
    assert_eq!(session.ready(0).unwrap().unwrap().log.unwrap().1, Some(0x1234));
    for (length, offset, refused) in [
        (LOG_BYTES_MAX, 0, None),
        (LOG_BYTES_MAX + 1, 0, Some(Rule::BadRegion)),
        (4096, LOG_BYTES_MAX + 4096, None),
        (4097, LOG_BYTES_MAX + 4096, Some(Rule::BadRegion)),
        (4096, u64::MAX - 4095, Some(Rule::BadRegion)),
    ] {
        let given = session.give(Message::SetLogBase, &longs(&[length, offset]), file(LOG_BYTES_MAX + 8192));
        assert_eq!(given.err(), refused, "{length} from {offset}");
    }
}

#[test]
fn the_config_space_is_read_in_any_part_and_written_at_one_byte() {
    let mut session = session();
    let config = Disk::new(&export()).config(true);
    let header = |offset: usize, size: usize| words(&[offset as u32, size as u32, 0]);
    let read = |session: &mut Session, offset: usize, size: usize| {
        let answer = session.say(Message::GetConfig, &[header(offset, size), vec![0xaa; size]].concat())?;
        assert_eq!(answer[..12], header(offset, size));
        Ok(answer[12..].to_vec())
    };
    let with_zeroes = [&config[..], &[0; 256 - CONFIG_BYTES]].concat();
    for (offset, size) in [(0, 256), (0, 1), (32, 1), (20, 40), (59, 2), (255, 1), (200, 56)] {
        assert_eq!(
            read(&mut session, offset, size),
            Ok(with_zeroes[offset..offset + size].to_vec()),
            "{offset} {size}"
        );
    }
    for (offset, size) in [(0, 0), (0, 257), (255, 2), (256, 1), (u32::MAX as usize, 1)] {
        assert_eq!(read(&mut session, offset, size), Err(Rule::BadPayload), "{offset} {size}");
    }
    let longer = [header(0, 1), vec![0; 2]].concat();
    assert_eq!(session.say(Message::GetConfig, &longer), Err(Rule::BadPayload));

    let write = |session: &mut Session, offset: usize, data: &[u8]| {
        session.say(Message::SetConfig, &[header(offset, data.len()), data.to_vec()].concat()).err()
    };
    assert_eq!(write(&mut session, WRITEBACK_AT, &[0]), Some(Rule::BadConfig), "nobody agreed on it");
    session.negotiate(feature::BLK_CONFIG_WCE);
    for (offset, data) in [(WRITEBACK_AT, &[2][..]), (WRITEBACK_AT - 1, &[0]), (WRITEBACK_AT, &[0, 0])] {
        assert_eq!(write(&mut session, offset, data), Some(Rule::BadConfig), "{data:?} at {offset}");
    }
    assert_eq!(read(&mut session, WRITEBACK_AT, 1), Ok(vec![1]), "nothing has changed");
    for value in [0, 1, 0] {
        assert_eq!(write(&mut session, WRITEBACK_AT, &[value]), None);
        assert_eq!(read(&mut session, WRITEBACK_AT, 1), Ok(vec![value]));
    }
    session.say(Message::ResetOwner, &[]).unwrap();
    assert_eq!(read(&mut session, WRITEBACK_AT, 1), Ok(vec![1]), "as it is for a guest that has said nothing");
    let shrunk = crate::export::Export { size_bytes: 1 << 19, ..export() };
    session.set_disk(Disk::new(&shrunk));
    assert_eq!(read(&mut session, 0, 8), Ok(1024u64.to_le_bytes().to_vec()), "sectors");
}

#[test]
fn writes_are_stable_at_their_end_unless_the_guest_says_that_it_flushes() {
    let mut session = session();
    session.set_up(0);
    let mut is_writethrough = |features, writeback: u8| {
        session.negotiate(features | feature::BLK_CONFIG_WCE);
        session.say(Message::SetConfig, &[words(&[32, 1, 0]), vec![writeback]].concat()).unwrap();
        session.negotiate(features);
        session.ready(0).unwrap().unwrap().is_writethrough
    };
    let both = feature::BLK_CONFIG_WCE | feature::BLK_FLUSH;
    assert!(is_writethrough(0, 1), "it never flushes");
    assert!(!is_writethrough(feature::BLK_FLUSH, 0), "it cannot have said so");
    assert!(!is_writethrough(both, 1) && is_writethrough(both, 0));
}

#[test]
fn an_area_of_requests_under_way_is_used_where_it_begins_in_its_file() {
    // Version and number of entries of queue 1 stand 8 bytes behind the beginning of the second area.
    let area_bytes = inflight::queue_bytes(SIZE);
    let noted = |session: &Session, file: &File, at: usize| {
        session.ready(1).unwrap().unwrap().ring.take_over();
        let mut words = [0; 4];
        file.read_exact_at(&mut words, (at + area_bytes + 8) as u64).unwrap();
        words
    };
    let sizes = vec![2, 0, SIZE as u8, 0];
    let mut session = session();
    session.set_up(1);
    let ask = [longs(&[0, 0]), sizes.clone()].concat();
    let answer = session.take(Message::GetInflightFd, &ask, vec![]).unwrap();
    let length = 2 * area_bytes as u64;
    assert_eq!(answer.payload, Some([longs(&[length, 0]), sizes.clone(), vec![0; 4]].concat()));
    assert_eq!(noted(&session, &File::from(answer.descriptor.unwrap()), 0), [1, 0, SIZE as u8, 0]);
    let own = file(3 * 4096);
    let ours = File::from(own.try_clone().unwrap());
    let at = 4096 + 64;
    let payload = [longs(&[length, at as u64]), sizes].concat();
    assert_eq!(session.say(Message::SetInflightFd, &payload), Err(Rule::BadDescriptors));
    session.give(Message::SetInflightFd, &payload, own).unwrap();
    assert_eq!(noted(&session, &ours, at), [1, 0, SIZE as u8, 0]);
    session.say(Message::ResetDevice, &[]).unwrap();
    let mut version = [1; 2];
    ours.read_exact_at(&mut version, (at + area_bytes + 8) as u64).unwrap();
    assert_eq!(version, [0, 0], "nothing is under way after a reset");
    let beyond = [longs(&[length, 3 * 4096 - length + 8]), vec![2, 0, SIZE as u8, 0]].concat();
    assert_eq!(session.give(Message::SetInflightFd, &beyond, file(3 * 4096)), Err(Rule::BadInflight));
    // Longer than its queues need: what is behind them is not mapped.
    let sparse = [longs(&[1 << 46, 0]), vec![2, 0, SIZE as u8, 0]].concat();
    session.give(Message::SetInflightFd, &sparse, file(1 << 46)).unwrap();
    let short = [longs(&[length - 1, 0]), vec![2, 0, SIZE as u8, 0]].concat();
    assert_eq!(session.give(Message::SetInflightFd, &short, file(4096)), Err(Rule::BadInflight));
}
