//! What comes from another process, on its way to its place here: files to devices, sockets to listeners, state to
//! connections.

use super::luggage::{Luggage, Passenger, key};
use super::new::{Inherited, Taking};
use super::store::{self, Kept};
use crate::systemd::Passed;
use mqfq_blk::client::{MakeClient, Packed};
use mqfq_blk::device::Device;
use mqfq_front::export::ExportTable;
use mqfq_front::front_end::{ExportAddress, ListenOptions, Listener, Travelled};
use mqfq_front::socket::SocketAddress;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What another process has left or lends, if there is one.
#[derive(Debug, Default)]
pub struct Arrival {
    inherited: Option<Inherited>,
    taking: Option<Taking>,
    /// What systemd keeps until all is well.
    kept: Kept,
    /// The other process has ended: there is nobody who could serve on.
    is_last: bool,
}

/// An address with the exports that are offered there.
type Table = (ExportAddress, Arc<ExportTable>);

impl Arrival {
    /// From the server at `address` if it is to be replaced; else from what systemd has `passed`, if a server before
    /// has left something. `discards_unsaved`: as of [`Inherited::of_running`].
    ///
    /// # Errors
    /// One sentence: there is nothing to be replaced, or it makes no sense.
    pub fn new(
        replace: bool,
        discards_unsaved: bool,
        address: Option<&SocketAddress>,
        passed: &mut Vec<Passed>,
    ) -> Result<Arrival, String> {
        match (replace, address) {
            (true, Some(address)) => {
                let inherited = Some(Inherited::of_running(address, discards_unsaved)?);
                Ok(Arrival { inherited, ..Arrival::default() })
            }
            (true, None) => Err("the config has no server.upgrade, which says where the server is that --replace \
                                 means, allowed is upgrade = \"unix:PATH\" in [server]"
                .to_owned()),
            (false, _) => {
                let (inherited, kept) = store::kept(passed)?;
                Ok(Arrival { inherited, taking: None, kept, is_last: true })
            }
        }
    }

    /// The file of a device, by the device's name; once.
    pub fn file(&mut self, device: &str) -> Option<File> {
        self.inherited.as_mut()?.file(device)
    }

    /// A listening socket that is no front end's; once.
    pub fn socket(&mut self, address: &SocketAddress) -> Option<OwnedFd> {
        self.inherited.as_mut()?.socket(address)
    }

    /// [`Arrival::socket`] has one.
    pub fn has_socket(&self, address: &SocketAddress) -> bool {
        self.inherited.as_ref().is_some_and(|inherited| inherited.has_socket(address))
    }

    /// The listener at this address comes along.
    pub fn listens_at(&self, address: &ExportAddress) -> bool {
        self.inherited.as_ref().is_some_and(|inherited| inherited.listens_at(&key(address)))
    }

    /// Lets the other process hold still, calls `before` with what comes, and brings everything to its place, as
    /// [`board`] does; from here on clients wait.
    ///
    /// # Errors
    /// One sentence: the other process cannot hold still; or as [`board`]. The other process serves on.
    pub fn board(
        &mut self,
        devices: &[(String, Arc<dyn Device>)],
        tables: &[Table],
        before: impl FnOnce(Option<&Luggage>) -> Result<(), String>,
        listen: impl Fn(&ExportAddress) -> ListenOptions,
    ) -> Result<Boarded, String> {
        let Some(inherited) = self.inherited.take() else { return before(None).map(|()| Boarded::default()) };
        let taking = self.taking.insert(inherited.take()?);
        before(Some(&taking.luggage))?;
        board(std::mem::take(&mut taking.luggage), taking.version, self.is_last, devices, tables, listen)
    }

    /// What came, for the commit.
    pub fn taking(&mut self) -> Option<Taking> {
        self.taking.take()
    }

    /// This process serves from now on: no other one takes over what systemd keeps.
    ///
    /// # Errors
    /// One sentence.
    pub fn is_over(&self) -> Result<(), String> {
        let failed = |error| format!("what systemd keeps cannot be marked as used: {}", crate::plain(&error));
        self.kept.use_up().map_err(failed)
    }

    /// Systemd need not keep it any longer; `say` is called if it does not hear of it.
    pub fn forget(&mut self, say: impl FnOnce(&str) + Send + 'static) {
        std::mem::take(&mut self.kept).forget(say);
    }

    /// Tells a server that runs why it is not replaced.
    pub fn give_up(&mut self, sentence: &str) {
        self.inherited.iter_mut().for_each(|inherited| inherited.give_up(sentence));
        self.taking.iter_mut().for_each(|taking| taking.give_up(sentence));
    }
}

/// Brings everything to its place. Listeners come by [`key`]. `listen` are the options of a listener at an address.
///
/// Of a process that has ended (`is_last`), clients and devices without a place here are left behind: a change that was
/// never saved would keep every server from starting.
///
/// # Errors
/// One sentence: something has no place here; or a device has another size.
pub fn board(
    luggage: Luggage,
    version: u16,
    is_last: bool,
    devices: &[(String, Arc<dyn Device>)],
    tables: &[Table],
    listen: impl Fn(&ExportAddress) -> ListenOptions,
) -> Result<Boarded, String> {
    let mut boarded = Boarded::default();
    let mut left = Left { is_allowed: is_last, sentences: BTreeMap::new() };
    for (name, packed) in luggage.devices {
        let Some((_, device)) = devices.iter().find(|(other, _)| *other == name) else {
            left.behind(format!("device {name} is served and the config has none of this name"))?;
            continue;
        };
        device.unpack(packed, version).map_err(|why| format!("device {name} {why}"))?;
    }
    let mut clients = luggage.clients;
    // Connections have a place when their listener has one.
    clients.sort_by_key(|client| !client.is_listener);
    for Passenger { address, is_listener, packed } in clients {
        let travelled = Travelled { packed, version };
        if is_listener {
            // An address that is no longer there: its connections, if it has any, say so.
            let table = tables.iter().find(|(other, _)| key(other) == address);
            if let Some((at, table)) = table {
                boarded.listeners.insert(address, at.address().adopt(travelled, table.clone(), &listen(at))?);
            }
            continue;
        }
        let Some(listener) = boarded.listeners.get(&address) else {
            left.behind(format!("{address} has connections and is no longer listened on"))?;
            continue;
        };
        // Its export may be offered elsewhere alone by now; where TLS is asked for nobody is taken in without.
        let elsewhere = tables.iter().filter(|(at, _)| key(at) != address && is_same_kind(at, &address));
        let elsewhere = elsewhere.filter(|(at, _)| listen(at).tls.is_none());
        let elsewhere = elsewhere.filter_map(|(at, _)| boarded.listeners.get(&key(at)));
        match adopt(travelled, &**listener, elsewhere.map(|listener| &**listener)) {
            Ok(client) => boarded.connections.push(client),
            Err(why) => left.behind(why)?,
        }
    }
    boarded.left = left.sentences();
    Ok(boarded)
}

fn is_same_kind(at: &ExportAddress, key: &str) -> bool {
    key.split(' ').next() == Some(at.front_end().name())
}

/// Gives a connection a place with the listener by which it came, or else with the first that has one.
fn adopt<'a>(
    travelled: Travelled,
    listener: &dyn Listener,
    mut elsewhere: impl Iterator<Item = &'a dyn Listener>,
) -> Result<MakeClient, String> {
    let copy = |Travelled { packed, version }: &Travelled| {
        let descriptors = packed.descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>().ok()?;
        Some(Travelled { packed: Packed { state: packed.state.clone(), descriptors }, version: *version })
    };
    let Some(other) = elsewhere.next() else { return listener.adopt(travelled) };
    let Some(kept) = copy(&travelled) else { return listener.adopt(travelled) };
    listener.adopt(travelled).or_else(|why| {
        let mut elsewhere = std::iter::once(other).chain(elsewhere);
        elsewhere.find_map(|listener| listener.adopt(copy(&kept)?).ok()).ok_or(why)
    })
}

/// What has found its place.
#[derive(Default)]
pub struct Boarded {
    /// By [`key`].
    pub listeners: BTreeMap<String, Box<dyn Listener>>,
    /// Not started.
    pub connections: Vec<MakeClient>,
    /// Sentences about what has found none.
    pub left: Vec<String>,
}

/// What is left behind, if that may be.
struct Left {
    is_allowed: bool,
    /// Why, and how often.
    sentences: BTreeMap<String, usize>,
}

impl Left {
    /// Something has no place here, for this reason.
    fn behind(&mut self, why: String) -> Result<(), String> {
        if !self.is_allowed {
            return Err(why);
        }
        *self.sentences.entry(why).or_insert(0) += 1;
        Ok(())
    }

    fn sentences(self) -> Vec<String> {
        let times = |count| if count == 1 { String::new() } else { format!(" ({count} times)") };
        let said = |(why, count)| format!("left behind by the server before, and closed: {why}{}", times(count));
        self.sentences.into_iter().map(said).collect()
    }
}
