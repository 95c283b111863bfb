//! How does it go through systemd's descriptor store? A restart is two steps there: the old process stores its
//! descriptors and ends, the new one is started with them.
//!
//! Each descriptor is stored under a name of its own, [`STATE`] or [`DESCRIPTOR`] and its number, because systemd does
//! not say in which order it gives them back. `FDPOLL=0`: it would drop a socket whose client has left, and with it the
//! place of those behind. They stay stored until the new process serves, so one that does not come up is followed by
//! another one that finds them. Source: sd_notify(3), sd_listen_fds(3), systemd.service(5) "FileDescriptorStoreMax".
//!
//! The state is used once. Its file is the same one in every process that systemd gives it to, and the process that
//! serves empties it ([`StoredDescriptors::use_up`]) before it asks systemd to forget. So whatever systemd hears of
//! that, and when: clients that have been answered since are not taken over a second time.
//!
//! Names are used again. So nothing is stored while something of an earlier server is: beside a new descriptor of its
//! name it would be another client's, and a word to forget it would take the new one along ([`forget_the_rest`]).

use super::handover::{HandoverState, Opened};
use super::new::Inherited;
use super::wire::{memory_file, poll_in, read_memory_file};
use crate::systemd::{self, Passed};
use mqfq_blk::state::{StateReader, StateWriter, VERSIONS};
use sd_notify::NotifyState::Custom;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The name of the file with the state.
const STATE: &str = "mqfq-state";

/// The name of another descriptor, before its number.
const DESCRIPTOR: &str = "mqfq-";

/// For systemd to take one descriptor: its queue holds ten or so. Clients wait meanwhile.
const STORES_MAX: Duration = Duration::from_secs(2);

/// For systemd to forget all descriptors that it need not keep. A caller waits for one attempt at most.
const FORGETS_MAX: Duration = Duration::from_secs(60);
const FORGETS_ATTEMPT: Duration = Duration::from_millis(200);

/// For systemd to take everything.
const BARRIER_MAX: Duration = Duration::from_secs(10);

/// Names that systemd need not keep any longer, the next one to tell it last. Locked while it is told of one.
static UNNEEDED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A thread waits for the rest to be told, and tells it itself.
static IS_URGENT: AtomicBool = AtomicBool::new(false);

/// Room of the store, in descriptors, if there is one.
fn room() -> Option<usize> {
    std::env::var_os("NOTIFY_SOCKET")?;
    std::env::var("FDSTORE").ok()?.parse().ok().filter(|room| *room > 0)
}

/// There is a store: a server that ends leaves its descriptors to the next one.
pub fn is_there() -> bool {
    room().is_some()
}

/// Stores everything; returns the number of descriptors.
///
/// # Errors
/// One sentence, and the engine is as it was.
pub fn keep(opened: Opened, handover: HandoverState, version: u16) -> Result<usize, String> {
    let failed = |error: io::Error| format!("systemd does not store the state: {}", mqfq_report::plain(&error));
    let (opened, mut descriptors) = opened.encode(version);
    let opened_count = descriptors.len();
    let (bytes, more) = handover.encode(version);
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
        let words = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        systemd::send(&[Custom(&words)], &[descriptor], STORES_MAX).map_err(failed)
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
        systemd::send(&[Custom("BARRIER=1")], &[end.as_fd()], STORES_MAX).map_err(failed)?;
        drop(end);
        match poll_in(reader.as_fd(), BARRIER_MAX) {
            true => Ok(needed),
            false => Err(format!("systemd has not stored the state within {} s", BARRIER_MAX.as_secs())),
        }
    };
    let stored = store_all();
    if stored.is_err() {
        // This server goes on with its clients, so no process may go on with any of it later.
        let stored =
            StoredDescriptors { names: names.into_iter().chain([STATE.to_owned()]).collect(), state: Some(state) };
        stored.use_up().map_err(failed)?;
        stored.forget(|_| ());
    }
    stored
}

/// The name is one of [`keep`]'s.
fn is_ours(name: &str) -> bool {
    let number = name.strip_prefix(DESCRIPTOR);
    name == STATE || number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Names of all that is stored, by whatever process.
#[derive(Debug, Default)]
pub struct StoredDescriptors {
    /// The state last.
    names: Vec<String>,
    state: Option<File>,
}

impl StoredDescriptors {
    /// Keeps other processes from taking it over.
    ///
    /// # Errors
    /// The file cannot be emptied.
    pub fn use_up(&self) -> io::Result<()> {
        self.state.as_ref().map_or(Ok(()), |state| state.set_len(0))
    }

    /// Tells systemd that it need not keep it any longer, on a thread of its own: it may have other things to do. `say`
    /// is called if it does not hear of it.
    pub fn forget(self, say: impl FnOnce(&str) + Send + 'static) {
        // The state first: descriptors that stay stored mean nothing without it.
        unneeded().extend(self.names);
        let forget = move || {
            let mut until = Instant::now() + FORGETS_MAX;
            // Relaxed: the thread that sets it tells the rest, whether or not this one sees it.
            while !IS_URGENT.load(Ordering::Relaxed) {
                match forget_one(FORGETS_ATTEMPT) {
                    Ok(true) => until = Instant::now() + FORGETS_MAX,
                    Ok(false) => return,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {}
                    Err(error) => return say(&untold(&error)),
                }
            }
        };
        // Without a thread they stay stored until something else is.
        let _ = std::thread::Builder::new().name("mqfq-forget".into()).spawn(forget);
    }
}

fn unneeded() -> MutexGuard<'static, Vec<String>> {
    // A list is whole after each statement.
    UNNEEDED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn untold(error: &io::Error) -> String {
    let error = mqfq_report::plain(error);
    format!("systemd keeps descriptors that nobody needs any more, and cannot be told so: {error}")
}

/// Tells systemd of the next one; whether there was one.
fn forget_one(patience: Duration) -> io::Result<bool> {
    let mut left = unneeded();
    let Some(name) = left.last() else { return Ok(false) };
    let words = format!("FDSTOREREMOVE=1\nFDNAME={name}");
    systemd::send(&[Custom(&words)], &[], patience)?;
    left.pop();
    Ok(true)
}

/// Tells systemd of all that it need not keep any longer: before anything else is stored, and before the process ends
/// while systemd goes on with another one.
///
/// # Errors
/// One sentence: it does not hear of it.
pub fn forget_the_rest() -> Result<(), String> {
    // Relaxed: the lock orders the rest.
    IS_URGENT.store(true, Ordering::Relaxed);
    let result = loop {
        match forget_one(STORES_MAX) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(untold(&error)),
        }
    };
    // Relaxed: as above.
    IS_URGENT.store(false, Ordering::Relaxed);
    result
}

/// The handover of a process that has ended, if it was not used yet, taken out of `passed`; and all that is stored.
///
/// # Errors
/// One sentence: it makes no sense.
pub fn stored(passed: &mut Vec<Passed>) -> Result<(Option<Inherited>, StoredDescriptors), String> {
    let failed = |why: String| format!("what the server before had left to systemd cannot be taken over: {why}");
    let mut named: BTreeMap<String, OwnedFd> = passed.extract_if(.., |(name, _)| is_ours(name)).collect();
    let Some(state) = named.remove(STATE) else {
        return Ok((None, StoredDescriptors { names: named.into_keys().collect(), state: None }));
    };
    let names = named.keys().cloned().chain([STATE.to_owned()]).collect();
    let state = File::from(state);
    let bytes = state.try_clone().and_then(|mut state| read_memory_file(&mut state));
    let bytes = bytes.map_err(|error| failed(mqfq_report::plain(&error)))?;
    let inherited = if bytes.is_empty() { None } else { Some(decode(&bytes, named).map_err(failed)?) };
    Ok((inherited, StoredDescriptors { names, state: Some(state) }))
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
    let (count, handover) = (reader.u32()? as usize, reader.bytes()?);
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
    let (handover, version) = HandoverState::decode(handover, more)?;
    Ok(Inherited::of_store(opened, handover, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_ours_has_a_number_and_nothing_else_in_its_name() {
        let with = |end: &str| is_ours(&format!("{DESCRIPTOR}{end}"));
        assert!(is_ours(STATE) && with("0") && with("17"));
        assert!(!is_ours("listen") && !with("") && !with("1x") && !with("x1"));
    }
}
