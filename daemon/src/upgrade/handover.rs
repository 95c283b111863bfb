//! The state that goes from the old process to the new one, as bytes and descriptors; the same over a socket and
//! through systemd's store.
//!
//! | | when | has |
//! |---|---|---|
//! | [`Opened`] | before the old one holds still | descriptors that can be opened only once: of devices, of the control plane and for upgrades; the addresses of clients |
//! | [`HandoverState`] | while it holds still | devices, listeners, connections |
//!
//! Bytes that no such process wrote are refused; nothing is done with any of it before all of it was read.

use mqfq_blk::client::Packed;
use mqfq_blk::state::{StateFault, StateReader, StateWriter, VERSIONS, demand};
use mqfq_front::front_end::ExportAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;

/// First bytes of each [`HandoverState`].
const MAGIC: u64 = u64::from_be_bytes(*b"mqfq-bag");

/// The first version that has the owners of the devices' data.
pub const OWNERSHIP_SINCE: u16 = 3;

/// Name of an address in both processes: its front end and where it is. The way clients are served there may change.
pub fn key(address: &ExportAddress) -> String {
    let at = address.address().claim().unwrap_or_else(|| address.to_string());
    format!("{} {at}", address.front_end().name())
}

/// Name of the file of a backing of a pool. (No device has a slash in its name.)
pub fn backing_key(pool: &str, number: u16, path: &Path) -> String {
    format!("{pool}/{number}{}", path.display())
}

/// The pool, number and path of [`backing_key`].
pub fn backing_of(key: &str) -> Option<(&str, u16, &Path)> {
    let (pool, rest) = key.split_once('/')?;
    let (number, _) = rest.split_once('/')?;
    Some((pool, number.parse().ok()?, Path::new(&rest[number.len()..])))
}

/// Descriptors that both processes have.
#[derive(Debug, Default)]
pub struct Opened {
    /// The process that gives it.
    pub pid: u32,
    /// Files of devices, by the name of the device, and of backings, by [`backing_key`].
    pub files: BTreeMap<String, OwnedFd>,
    /// Listening sockets that are not a front end's, by their address.
    pub sockets: BTreeMap<String, OwnedFd>,
    /// Addresses of clients, by [`key`].
    pub addresses: BTreeSet<String>,
}

impl Opened {
    /// Encodes it as bytes of this version, and descriptors.
    pub fn encode(self, version: u16) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut writer = StateWriter::new(version);
        let mut descriptors = Vec::new();
        writer.u32(self.pid);
        for named in [self.files, self.sockets] {
            writer.u32(named.len() as u32);
            for (name, descriptor) in named {
                writer.bytes(name.as_bytes());
                descriptors.push(descriptor);
            }
        }
        writer.u32(self.addresses.len() as u32);
        self.addresses.iter().for_each(|address| writer.bytes(address.as_bytes()));
        (writer.into_bytes(), descriptors)
    }

    /// Decodes it.
    ///
    /// # Errors
    /// The fault of the bytes.
    pub fn decode(
        reader: &mut StateReader<'_>,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Opened, StateFault> {
        let pid = reader.u32()?;
        let mut both = [BTreeMap::new(), BTreeMap::new()];
        for named in &mut both {
            for _ in 0..reader.u32()? {
                let name = reader.text()?.to_owned();
                named.insert(name, descriptors.next().ok_or(StateFault("came with too few descriptors"))?);
            }
        }
        let [files, sockets] = both;
        let mut addresses = BTreeSet::new();
        for _ in 0..reader.u32()? {
            addresses.insert(reader.text()?.to_owned());
        }
        Ok(Opened { pid, files, sockets, addresses })
    }
}

/// A client of a front end.
#[derive(Debug)]
pub struct HandedClient {
    /// Its address, or the one by which it came, by [`key`].
    pub address: String,
    /// It is the listener.
    pub is_listener: bool,
    /// Packed by its front end.
    pub packed: Packed,
}

/// The live things of a process.
#[derive(Debug, Default)]
pub struct HandoverState {
    /// When it held still, ns of CLOCK_MONOTONIC: for the length of the pause.
    pub since_ns: u64,
    /// Owners of the devices' data, by [`crate::ownership::Ownership::pack`]; empty: they were not kept.
    pub ownership: Vec<u8>,
    /// Devices, by name.
    pub devices: Vec<(String, Packed)>,
    /// Listeners and connections.
    pub clients: Vec<HandedClient>,
}

impl HandoverState {
    /// Encodes it as bytes of this version, and descriptors.
    pub fn encode(self, version: u16) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut writer = StateWriter::new(version);
        let mut descriptors = Vec::new();
        let mut pack = |writer: &mut StateWriter, packed: Packed| {
            writer.bytes(&packed.state);
            writer.u32(packed.descriptors.len() as u32);
            descriptors.extend(packed.descriptors);
        };
        writer.u64(MAGIC);
        writer.u16(version);
        writer.u64(self.since_ns);
        writer.since(OWNERSHIP_SINCE, |writer| writer.bytes(&self.ownership));
        writer.u32(self.devices.len() as u32);
        for (name, packed) in self.devices {
            writer.bytes(name.as_bytes());
            pack(&mut writer, packed);
        }
        writer.u32(self.clients.len() as u32);
        for HandedClient { address, is_listener, packed } in self.clients {
            writer.bytes(address.as_bytes());
            writer.flag(is_listener);
            pack(&mut writer, packed);
        }
        (writer.into_bytes(), descriptors)
    }

    /// Decodes it; returns its version as well.
    ///
    /// # Errors
    /// The fault of the bytes, or a version that is not known here.
    pub fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<(HandoverState, u16), StateFault> {
        let mut descriptors = descriptors.into_iter();
        let mut reader = StateReader::new(0, bytes);
        demand(reader.u64()? == MAGIC, "was not written by a process like this")?;
        let version = reader.u16()?;
        demand(VERSIONS.contains(&version), "is of a version that is not known here")?;
        let mut unpack = |reader: &mut StateReader<'_>| {
            let state = reader.bytes()?.to_vec();
            let count = reader.u32()? as usize;
            let descriptors: Vec<OwnedFd> = descriptors.by_ref().take(count).collect();
            demand(descriptors.len() == count, "came with too few descriptors")?;
            Ok::<Packed, StateFault>(Packed { state, descriptors })
        };
        let since_ns = reader.u64()?;
        let ownership = if version >= OWNERSHIP_SINCE { reader.bytes()?.to_vec() } else { Vec::new() };
        let mut handover = HandoverState { since_ns, ownership, ..HandoverState::default() };
        for _ in 0..reader.u32()? {
            let name = reader.text()?.to_owned();
            handover.devices.push((name, unpack(&mut reader)?));
        }
        for _ in 0..reader.u32()? {
            let (address, is_listener) = (reader.text()?.to_owned(), reader.flag()?);
            handover.clients.push(HandedClient { address, is_listener, packed: unpack(&mut reader)? });
        }
        reader.end()?;
        demand(descriptors.next().is_none(), "came with too many descriptors")?;
        Ok((handover, version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::state::VERSION;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_is_the_same_place_however_clients_are_served_there() {
        let key_of = |name: &str, text: &str, manners: &[&str]| {
            let front_end = *mqfq_front::FRONT_ENDS.iter().find(|front_end| front_end.name() == name).unwrap();
            key(&ExportAddress::parse_with(front_end, text, manners).unwrap())
        };
        assert_eq!([["none"], ["reissue"]].map(|recovery| key_of("ublk", "7", &recovery)), ["ublk ublk:7"; 2]);
        assert_eq!(key_of("nbd", "unix:/a", &[]), "nbd unix:/a");
        assert_eq!(key_of("nbd", "tcp:localhost:0", &[]), "nbd tcp:localhost:0");
    }

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn packed(state: &[u8], descriptors: usize) -> Packed {
        Packed { state: state.to_vec(), descriptors: (0..descriptors).map(|_| null()).collect() }
    }

    fn handover() -> HandoverState {
        let client = |is_listener, packed| HandedClient { address: "nbd unix:/a".to_owned(), is_listener, packed };
        HandoverState {
            since_ns: 5,
            ownership: b"whose".to_vec(),
            devices: vec![("d".to_owned(), packed(b"device", 1))],
            clients: vec![client(true, packed(b"", 3)), client(false, packed(b"half a request", 1))],
        }
    }

    fn told(handover: &HandoverState) -> String {
        let of = |packed: &Packed| format!("{:?} and {}", packed.state, packed.descriptors.len());
        let mut text = format!("{} {:?} ", handover.since_ns, handover.ownership);
        handover.devices.iter().for_each(|(name, packed)| text += &format!("{name} {}, ", of(packed)));
        let clients = handover.clients.iter();
        clients.for_each(|it| text += &format!("{} {} {}, ", it.address, it.is_listener, of(&it.packed)));
        text
    }

    #[test]
    fn everything_that_is_packed_is_there_again() {
        let (bytes, descriptors) = handover().encode(VERSION);
        assert_eq!(descriptors.len(), 5);
        let (read, version) = HandoverState::decode(&bytes, descriptors).unwrap();
        assert_eq!((told(&read), version), (told(&handover()), VERSION));
    }

    /// Two of each thing, each with a descriptor of its own.
    fn opened() -> Opened {
        let named = |names: [&str; 2]| names.map(|name| (name.to_owned(), null())).into();
        Opened {
            pid: 7,
            files: named(["d", "e"]),
            sockets: named(["unix:/u", "unix:/v"]),
            addresses: ["nbd unix:/a", "ublk ublk:7"].map(str::to_owned).into(),
        }
    }

    #[test]
    fn each_file_and_socket_comes_with_the_descriptor_of_its_name() {
        let sent = opened();
        let numbers = |named: &BTreeMap<String, OwnedFd>| -> Vec<(String, i32)> {
            named.iter().map(|(name, descriptor)| (name.clone(), descriptor.as_raw_fd())).collect()
        };
        let (files, sockets, addresses) = (numbers(&sent.files), numbers(&sent.sockets), sent.addresses.clone());
        let (bytes, descriptors) = sent.encode(VERSION);
        let mut descriptors = descriptors.into_iter();
        let read = Opened::decode(&mut StateReader::new(VERSION, &bytes), &mut descriptors).unwrap();
        assert_eq!((read.pid, numbers(&read.files), numbers(&read.sockets)), (7, files, sockets));
        assert_eq!(read.addresses, addresses);
        assert!(descriptors.next().is_none());
    }

    #[test]
    fn opened_files_that_are_cut_short_or_lack_a_descriptor_are_refused() {
        let decode = |bytes: &[u8], descriptors: usize| {
            let mut descriptors = (0..descriptors).map(|_| null());
            Opened::decode(&mut StateReader::new(VERSION, bytes), &mut descriptors).map(drop)
        };
        let (bytes, _) = opened().encode(VERSION);
        assert_eq!(decode(&bytes, 4), Ok(()));
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], 4), Err(StateFault("ends too early")), "{length} bytes");
        }
        for count in 0..4 {
            assert_eq!(decode(&bytes, count), Err(StateFault("came with too few descriptors")), "{count}");
        }
    }

    #[test]
    fn a_state_of_the_next_version_is_refused_and_so_is_each_part_of_one() {
        let decode = |bytes: &[u8]| HandoverState::decode(bytes, (0..5).map(|_| null()).collect()).map(drop);
        let (next, _) = handover().encode(VERSION + 1);
        assert_eq!(decode(&next), Err(StateFault("is of a version that is not known here")));
        let (bytes, _) = handover().encode(VERSION);
        assert_eq!(decode(&bytes), Ok(()));
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), Err(StateFault("ends too early")), "{length} bytes");
        }
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), Err(StateFault("has bytes left over")));
        let with = |count| HandoverState::decode(&bytes, (0..count).map(|_| null()).collect()).map(drop);
        assert_eq!(with(4), Err(StateFault("came with too few descriptors")));
        assert_eq!(with(6), Err(StateFault("came with too many descriptors")));
        // Any byte changed: refused, or another state, and no panic.
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            let _ = decode(&changed);
        }
    }
}
