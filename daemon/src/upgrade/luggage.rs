//! What goes from the old process to the new one, as bytes and descriptors; the same over a socket and through
//! systemd's store.
//!
//! | | when | has |
//! |---|---|---|
//! | [`Opened`] | before the old one holds still | what can be opened only once: files of devices, sockets of the control plane and for upgrades; the addresses where clients come |
//! | [`Luggage`] | while it holds still | devices, listeners, connections |
//!
//! Bytes that no such process wrote are refused; nothing is done with any of it before all of it was read.

use mqfq_blk::client::Packed;
use mqfq_blk::state::{StateFault, StateReader, StateWriter, VERSIONS, demand};
use mqfq_front::front_end::ExportAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// What begins each [`Luggage`].
const MAGIC: u64 = u64::from_be_bytes(*b"mqfq-bag");

/// The version from which on it travels whose data devices hold.
pub const OWNERSHIP_SINCE: u16 = 3;

/// What an address is called in both: its front end and where it is. How clients are served there may change.
pub fn key(address: &ExportAddress) -> String {
    let at = address.address().claim().unwrap_or_else(|| address.to_string());
    format!("{} {at}", address.front_end().name())
}

/// What both processes have open for a while.
#[derive(Debug, Default)]
pub struct Opened {
    /// The process that gives it.
    pub pid: u32,
    /// Files of devices, by the name of the device.
    pub files: BTreeMap<String, OwnedFd>,
    /// Listening sockets that are no front end's, by their address.
    pub sockets: BTreeMap<String, OwnedFd>,
    /// Where clients come, by [`key`].
    pub addresses: BTreeSet<String>,
}

impl Opened {
    /// As bytes of this version, and descriptors.
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

    /// The opposite.
    ///
    /// # Errors
    /// What is wrong with the bytes.
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
pub struct Passenger {
    /// Where it listens, or by which address it came, by [`key`].
    pub address: String,
    /// It is the listener.
    pub is_listener: bool,
    /// What its front end packed.
    pub packed: Packed,
}

/// Everything that lives in the process.
#[derive(Debug, Default)]
pub struct Luggage {
    /// When it held still, ns of CLOCK_MONOTONIC: for the length of the pause.
    pub since_ns: u64,
    /// Whose data devices hold, as [`crate::ownership::Ownership::pack`] writes it; empty: it was not kept.
    pub ownership: Vec<u8>,
    /// By the name of the device.
    pub devices: Vec<(String, Packed)>,
    /// Listeners and connections.
    pub clients: Vec<Passenger>,
}

impl Luggage {
    /// As bytes of this version, and descriptors.
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
        for Passenger { address, is_listener, packed } in self.clients {
            writer.bytes(address.as_bytes());
            writer.flag(is_listener);
            pack(&mut writer, packed);
        }
        (writer.into_bytes(), descriptors)
    }

    /// The opposite, and the version that it is of.
    ///
    /// # Errors
    /// What is wrong with the bytes, or a version that is not known here.
    pub fn decode(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<(Luggage, u16), StateFault> {
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
        let mut luggage = Luggage { since_ns, ownership, ..Luggage::default() };
        for _ in 0..reader.u32()? {
            let name = reader.text()?.to_owned();
            luggage.devices.push((name, unpack(&mut reader)?));
        }
        for _ in 0..reader.u32()? {
            let (address, is_listener) = (reader.text()?.to_owned(), reader.flag()?);
            luggage.clients.push(Passenger { address, is_listener, packed: unpack(&mut reader)? });
        }
        reader.end()?;
        demand(descriptors.next().is_none(), "came with too many descriptors")?;
        Ok((luggage, version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::state::VERSION;
    use std::fs::File;

    #[test]
    fn a_socket_is_the_same_place_however_clients_are_served_there() {
        let keys = |name: &str, text: &str, manners: &[&str]| -> Vec<String> {
            let front_end = *mqfq_front::FRONT_ENDS.iter().find(|front_end| front_end.name() == name).unwrap();
            let key_of = |manner: &&str| key(&ExportAddress::parse_with(front_end, text, &[manner]).unwrap());
            manners.iter().map(key_of).collect()
        };
        assert_eq!(keys("vhost-user", "unix:/a", &["split", "packed"]), ["vhost-user unix:/a"; 2]);
        assert_eq!(keys("nbd", "unix:/a", &[""]), ["nbd unix:/a"]);
        assert_eq!(keys("nbd", "tcp:localhost:0", &[""]), ["nbd tcp:localhost:0"]);
    }

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn packed(state: &[u8], descriptors: usize) -> Packed {
        Packed { state: state.to_vec(), descriptors: (0..descriptors).map(|_| null()).collect() }
    }

    fn luggage() -> Luggage {
        let client = |is_listener, packed| Passenger { address: "nbd unix:/a".to_owned(), is_listener, packed };
        Luggage {
            since_ns: 5,
            ownership: b"whose".to_vec(),
            devices: vec![("d".to_owned(), packed(b"device", 1))],
            clients: vec![client(true, packed(b"", 3)), client(false, packed(b"half a request", 1))],
        }
    }

    fn told(luggage: &Luggage) -> String {
        let of = |packed: &Packed| format!("{:?} and {}", packed.state, packed.descriptors.len());
        let mut text = format!("{} {:?} ", luggage.since_ns, luggage.ownership);
        luggage.devices.iter().for_each(|(name, packed)| text += &format!("{name} {}, ", of(packed)));
        let clients = luggage.clients.iter();
        clients.for_each(|it| text += &format!("{} {} {}, ", it.address, it.is_listener, of(&it.packed)));
        text
    }

    #[test]
    fn everything_that_is_packed_is_there_again() {
        let (bytes, descriptors) = luggage().encode(VERSION);
        assert_eq!(descriptors.len(), 5);
        let (read, version) = Luggage::decode(&bytes, descriptors).unwrap();
        assert_eq!((told(&read), version), (told(&luggage()), VERSION));
        let opened = Opened {
            pid: 7,
            files: [("d".to_owned(), null())].into(),
            sockets: [("unix:/u".to_owned(), null()), ("unix:/v".to_owned(), null())].into(),
            addresses: ["nbd unix:/a".to_owned()].into(),
        };
        let (bytes, descriptors) = opened.encode(VERSION);
        let mut descriptors = descriptors.into_iter();
        let read = Opened::decode(&mut StateReader::new(VERSION, &bytes), &mut descriptors).unwrap();
        assert_eq!((read.pid, read.files.len(), read.sockets.len(), read.addresses.len()), (7, 1, 2, 1));
        assert!(descriptors.next().is_none());
    }

    #[test]
    fn a_state_of_the_next_version_is_refused_and_so_is_each_part_of_one() {
        let decode = |bytes: &[u8]| Luggage::decode(bytes, (0..5).map(|_| null()).collect()).map(drop);
        let (next, _) = luggage().encode(VERSION + 1);
        assert_eq!(decode(&next), Err(StateFault("is of a version that is not known here")));
        let (bytes, _) = luggage().encode(VERSION);
        assert_eq!(decode(&bytes), Ok(()));
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), Err(StateFault("ends too early")), "{length} bytes");
        }
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), Err(StateFault("has bytes left over")));
        let with = |count| Luggage::decode(&bytes, (0..count).map(|_| null()).collect()).map(drop);
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
