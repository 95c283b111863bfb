//! How does the same go through systemd's descriptor store? A restart is two steps there: the old process stores what
//! it has and ends, the new one is started with it.
//!
//! Each descriptor is stored under a name of its own, [`STATE`] or [`DESCRIPTOR`] and its number, because systemd does
//! not say in which order it gives them back. `FDPOLL=0`: it would drop a socket whose client has left, and with it the
//! place of those behind. They stay stored until the new process serves, so one that does not come up is followed by
//! another one that finds them. Source: sd_notify(3), sd_listen_fds(3), systemd.service(5) "FileDescriptorStoreMax".

use super::luggage::{Luggage, Opened};
use super::new::Inherited;
use super::wire::poll_in;
use super::{memory_file, read_memory_file};
use crate::systemd::Passed;
use mqfq_blk::state::{StateReader, StateWriter, VERSIONS};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The name of the file with the state.
const STATE: &str = "mqfq-state";

/// With its number, the name of a descriptor that the state is about.
const DESCRIPTOR: &str = "mqfq-";

/// For systemd to take one message: its queue holds ten or so.
const NOTIFY_MAX: Duration = Duration::from_secs(2);

/// For systemd to have taken everything.
const BARRIER_MAX: Duration = Duration::from_secs(10);

/// How many descriptors the store takes, if there is one.
fn room() -> Option<usize> {
    std::env::var_os("NOTIFY_SOCKET")?;
    std::env::var("FDSTORE").ok()?.parse().ok().filter(|room| *room > 0)
}

/// A server that ends is to leave what it has to the next one, which systemd starts.
pub fn is_there() -> bool {
    room().is_some()
}

/// Stores everything; how many descriptors.
///
/// # Errors
/// One sentence, and the engine is as it was.
pub fn keep(opened: Opened, luggage: Luggage, version: u16) -> Result<usize, String> {
    let failed = |error: io::Error| format!("systemd does not store the state: {}", crate::plain(&error));
    let (opened, mut descriptors) = opened.encode(version);
    let opened_count = descriptors.len();
    let (bytes, more) = luggage.encode(version);
    descriptors.extend(more);
    let mut writer = StateWriter::new(version);
    writer.u16(version);
    writer.bytes(&opened);
    writer.u32(opened_count as u32);
    writer.u32(descriptors.len() as u32);
    writer.bytes(&bytes);
    let (needed, room) = (descriptors.len() + 1, room().unwrap_or(0));
    if needed > room {
        return Err(format!(
            "systemd stores {room} descriptors and {needed} are needed: raise FileDescriptorStoreMax of the unit"
        ));
    }
    let store = |name: &str, descriptor: BorrowedFd<'_>| {
        notify(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), &[descriptor]).map_err(failed)
    };
    let state = memory_file(&writer.into_bytes()).map_err(failed)?;
    let names: Vec<String> = (0..descriptors.len()).map(|number| format!("{DESCRIPTOR}{number}")).collect();
    let store_all = || {
        for (name, descriptor) in names.iter().zip(&descriptors) {
            store(name, descriptor.as_fd())?;
        }
        // Last: without it the others mean nothing.
        store(STATE, state.as_fd())?;
        // systemd closes its end when it has read everything before.
        let (reader, end) = io::pipe().map_err(failed)?;
        notify("BARRIER=1", &[end.as_fd()]).map_err(failed)?;
        drop(end);
        match poll_in(reader.as_fd(), BARRIER_MAX) {
            true => Ok(needed),
            false => Err(format!("systemd has not stored the state within {} s", BARRIER_MAX.as_secs())),
        }
    };
    let stored = store_all();
    if stored.is_err() {
        // This server goes on with its clients, so nobody may go on with a part of it, or with all of it later.
        forget(&names.into_iter().chain([STATE.to_owned()]).collect::<Vec<_>>());
    }
    stored
}

/// It is one of those under which [`keep`] stores.
fn is_ours(name: &str) -> bool {
    let number = name.strip_prefix(DESCRIPTOR);
    name == STATE || number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What a process that has ended left there for this one, taken out of what was `passed`, and the names under which it
/// is stored.
///
/// # Errors
/// One sentence: it makes no sense.
pub fn kept(passed: &mut Vec<Passed>) -> Result<Option<(Inherited, Vec<String>)>, String> {
    let mut named: BTreeMap<String, OwnedFd> = passed.extract_if(.., |(name, _)| is_ours(name)).collect();
    let Some(state) = named.remove(STATE) else { return Ok(None) };
    let all = named.keys().cloned().chain([STATE.to_owned()]).collect();
    let failed = |why: String| format!("what the server before had left to systemd cannot be taken over: {why}");
    let bytes = read_memory_file(state).map_err(|error| failed(crate::plain(&error)))?;
    let inherited = decode(&bytes, named).map_err(failed)?;
    Ok(Some((inherited, all)))
}

fn decode(bytes: &[u8], mut named: BTreeMap<String, OwnedFd>) -> Result<Inherited, String> {
    let version = StateReader::new(0, bytes).u16()?;
    if !VERSIONS.contains(&version) {
        let (from, to) = (VERSIONS.start(), VERSIONS.end());
        return Err(format!("its state is of version {version}, known here are {from} to {to}"));
    }
    let mut reader = StateReader::new(version, bytes);
    reader.u16()?;
    let (opened, opened_count) = (reader.bytes()?, reader.u32()? as usize);
    let (count, luggage) = (reader.u32()? as usize, reader.bytes()?);
    reader.end()?;
    let mut descriptors = Vec::new();
    for number in 0..count {
        let name = format!("{DESCRIPTOR}{number}");
        descriptors.push(named.remove(&name).ok_or_else(|| format!("descriptor {name} of {count} is not there"))?);
    }
    if opened_count > count {
        return Err("its state came with too few descriptors".to_owned());
    }
    let more = descriptors.split_off(opened_count);
    let opened = Opened::decode(&mut StateReader::new(version, opened), &mut descriptors.into_iter())?;
    let (luggage, version) = Luggage::decode(luggage, more)?;
    Ok(Inherited::of_store(opened, luggage, version))
}

/// Everything was taken: systemd need not keep it any longer.
pub fn forget(names: &[String]) {
    // The state first: descriptors that stay stored mean nothing without it. One that does not listen is not asked on.
    let remove = |name: &String| notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]);
    let _ = names.iter().rev().try_for_each(remove);
}

fn notify(text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let path = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    let path = path.as_encoded_bytes();
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(path)?,
    };
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(NOTIFY_MAX))?;
    let mut space = [MaybeUninit::uninit(); 64];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    let text = [IoSlice::new(text.as_bytes())];
    rustix::net::sendmsg_addr(&socket, &address, &text, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
