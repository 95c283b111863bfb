//! What comes from another process, on its way to its place here: files to devices, sockets to listeners, state to
//! connections.

use super::luggage::{Passenger, key};
use super::new::{Inherited, Taking};
use super::store;
use crate::systemd::Passed;
use mqfq_blk::client::MakeClient;
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
    kept: Vec<String>,
}

/// An address with the exports that are offered there.
type Table = (ExportAddress, Arc<ExportTable>);

impl Arrival {
    /// From the server at `address` if it is to be replaced; else from what systemd has `passed`, if a server before
    /// has left something.
    ///
    /// # Errors
    /// One sentence: there is nothing to be replaced, or it makes no sense.
    pub fn new(replace: bool, address: Option<&SocketAddress>, passed: &mut Vec<Passed>) -> Result<Arrival, String> {
        match (replace, address) {
            (true, Some(address)) => {
                Ok(Arrival { inherited: Some(Inherited::of_running(address)?), ..Arrival::default() })
            }
            (true, None) => Err("the config has no server.upgrade, which says where the server is that --replace \
                                 means, allowed is upgrade = \"unix:PATH\" in [server]"
                .to_owned()),
            (false, _) => {
                let kept = store::kept(passed)?;
                let (inherited, kept) = kept.map_or((None, Vec::new()), |(inherited, kept)| (Some(inherited), kept));
                Ok(Arrival { inherited, taking: None, kept })
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

    /// The listener at this address comes along.
    pub fn listens_at(&self, address: &ExportAddress) -> bool {
        self.inherited.as_ref().is_some_and(|inherited| inherited.listens_at(&key(address)))
    }

    /// Lets the other process hold still and brings everything to its place; from here on clients wait. Listeners come
    /// by [`key`]. `listen` are the options of a listener at an address.
    ///
    /// # Errors
    /// One sentence: something has no place here. The other process serves on.
    pub fn board(
        &mut self,
        devices: &[(String, Arc<dyn Device>)],
        tables: &[Table],
        listen: impl Fn(&ExportAddress) -> ListenOptions,
    ) -> Result<Boarded, String> {
        let mut boarded = Boarded::default();
        let Some(inherited) = self.inherited.take() else { return Ok(boarded) };
        let taking = self.taking.insert(inherited.take()?);
        let version = taking.version;
        for (name, packed) in std::mem::take(&mut taking.luggage.devices) {
            let (_, device) = devices
                .iter()
                .find(|(other, _)| *other == name)
                .ok_or_else(|| format!("device {name} is served and the config has none of this name"))?;
            device.unpack(packed, version).map_err(|why| format!("device {name} {why}"))?;
        }
        let mut clients = std::mem::take(&mut taking.luggage.clients);
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
            let listener = boarded.listeners.get(&address);
            let listener = listener.ok_or_else(|| format!("{address} has connections and is no longer listened on"))?;
            boarded.connections.push(listener.adopt(travelled)?);
        }
        Ok(boarded)
    }

    /// What came, for the commit.
    pub fn taking(&mut self) -> Option<Taking> {
        self.taking.take()
    }

    /// All is well: systemd forgets what it kept.
    pub fn is_over(&self) {
        store::forget(&self.kept);
    }

    /// Tells a server that runs why it is not replaced.
    pub fn give_up(&mut self, sentence: &str) {
        self.inherited.iter_mut().for_each(|inherited| inherited.give_up(sentence));
        self.taking.iter_mut().for_each(|taking| taking.give_up(sentence));
    }
}

/// What has found its place.
#[derive(Default)]
pub struct Boarded {
    /// By [`key`].
    pub listeners: BTreeMap<String, Box<dyn Listener>>,
    /// Not started.
    pub connections: Vec<MakeClient>,
}
