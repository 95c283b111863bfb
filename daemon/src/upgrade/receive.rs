//! Brings what another process hands over to its place here: files to devices, sockets to listeners, state to
//! connections.

use super::handover::{HandedClient, HandoverState, backing_key, key};
use super::new::{Inherited, Taking};
use super::store::{self, StoredDescriptors};
use crate::systemd::Passed;
use mqfq_blk::client::{MakeClient, Packed};
use mqfq_blk::device::Device;
use mqfq_front::export::ExportTable;
use mqfq_front::front_end::{ExportAddress, HandedOver, ListenOptions, Listener};
use mqfq_front::socket::SocketAddress;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The handover of another process, if there is one.
#[derive(Debug, Default)]
pub struct Received {
    inherited: Option<Inherited>,
    taking: Option<Taking>,
    /// Descriptors that systemd keeps until all is well.
    stored: StoredDescriptors,
    /// The other process has ended and cannot serve on.
    is_last: bool,
}

/// An address with the exports that are offered there.
type Table = (ExportAddress, Arc<ExportTable>);

impl Received {
    /// Takes over from the server at `address` if it is to be replaced, or from a server before that has left
    /// descriptors in `passed`. `discards_unsaved`: as in [`Inherited::of_running`].
    ///
    /// # Errors
    /// One sentence: there is nothing to be replaced, or it makes no sense.
    pub fn new(
        replace: bool,
        discards_unsaved: bool,
        address: Option<&SocketAddress>,
        passed: &mut Vec<Passed>,
    ) -> Result<Received, String> {
        match (replace, address) {
            (true, Some(address)) => {
                let inherited = Some(Inherited::of_running(address, discards_unsaved)?);
                Ok(Received { inherited, ..Received::default() })
            }
            (true, None) => Err("the config has no server.upgrade, which says where the server is that --replace \
                                 means, allowed is upgrade = \"unix:PATH\" in [server]"
                .to_owned()),
            (false, _) => {
                let (inherited, stored) = store::stored(passed)?;
                Ok(Received { inherited, taking: None, stored, is_last: true })
            }
        }
    }

    /// The file of a device, by the device's name; once.
    pub fn file(&mut self, device: &str) -> Option<File> {
        self.inherited.as_mut()?.file(device)
    }

    /// The file of a backing of a pool; once.
    pub fn backing(&mut self, pool: &str, number: u16, path: &Path) -> Option<File> {
        self.inherited.as_mut()?.file(&backing_key(pool, number, path))
    }

    /// Numbers that the other process has for backings, by the name of the pool and the path.
    pub fn numbers(&self) -> BTreeMap<(String, PathBuf), u16> {
        self.inherited.as_ref().map(Inherited::numbers).unwrap_or_default()
    }

    /// A listening socket that is not a front end's; once.
    pub fn socket(&mut self, address: &SocketAddress) -> Option<OwnedFd> {
        self.inherited.as_mut()?.socket(address)
    }

    /// [`Received::socket`] has one.
    pub fn has_socket(&self, address: &SocketAddress) -> bool {
        self.inherited.as_ref().is_some_and(|inherited| inherited.has_socket(address))
    }

    /// The listener at this address comes along.
    pub fn listens_at(&self, address: &ExportAddress) -> bool {
        self.inherited.as_ref().is_some_and(|inherited| inherited.listens_at(&key(address)))
    }

    /// Lets the other process hold still, calls `before` with its handover, and brings everything to its place, as
    /// [`install`] does; from here on clients wait.
    ///
    /// # Errors
    /// One sentence: the other process cannot hold still; or as [`install`]. The other process serves on.
    pub fn install(
        &mut self,
        devices: &[(String, Arc<dyn Device>)],
        tables: &[Table],
        before: impl FnOnce(Option<&HandoverState>) -> Result<(), String>,
        listen: impl Fn(&ExportAddress) -> ListenOptions,
    ) -> Result<HandoverResult, String> {
        let Some(inherited) = self.inherited.take() else { return before(None).map(|()| HandoverResult::default()) };
        let taking = self.taking.insert(inherited.take()?);
        before(Some(&taking.handover))?;
        install(std::mem::take(&mut taking.handover), taking.version, self.is_last, devices, tables, listen)
    }

    /// The handover, for the commit.
    pub fn taking(&mut self) -> Option<Taking> {
        self.taking.take()
    }

    /// This process serves from now on: no other one takes over systemd's descriptors.
    ///
    /// # Errors
    /// One sentence.
    pub fn is_over(&self) -> Result<(), String> {
        let failed = |error| format!("what systemd keeps cannot be marked as used: {}", mqfq_report::plain(&error));
        self.stored.use_up().map_err(failed)
    }

    /// Systemd need not keep it any longer; `say` is called if it does not hear of it.
    pub fn forget(&mut self, say: impl FnOnce(&str) + Send + 'static) {
        std::mem::take(&mut self.stored).forget(say);
    }

    /// Tells a server that runs why it is not replaced.
    pub fn give_up(&mut self, sentence: &str) {
        self.inherited.iter_mut().for_each(|inherited| inherited.give_up(sentence));
        self.taking.iter_mut().for_each(|taking| taking.give_up(sentence));
    }
}

/// Brings everything to its place. Listeners come by [`key`]. `listen` are the options of a listener at an address.
///
/// If the process has ended (`is_last`), clients and devices without a place here are left behind: a change that was
/// never saved would keep every server from starting.
///
/// # Errors
/// One sentence: something has no place here; or a device has another size.
pub fn install(
    handover: HandoverState,
    version: u16,
    is_last: bool,
    devices: &[(String, Arc<dyn Device>)],
    tables: &[Table],
    listen: impl Fn(&ExportAddress) -> ListenOptions,
) -> Result<HandoverResult, String> {
    let mut result = HandoverResult::default();
    let mut left = Left { is_allowed: is_last, sentences: BTreeMap::new() };
    for (name, packed) in handover.devices {
        let Some((_, device)) = devices.iter().find(|(other, _)| *other == name) else {
            left.behind(format!("device {name} is served and the config has none of this name"))?;
            continue;
        };
        device.unpack(packed, version).map_err(|why| format!("device {name} {why}"))?;
    }
    let mut clients = handover.clients;
    // Connections have a place when their listener has one.
    clients.sort_by_key(|client| !client.is_listener);
    for HandedClient { address, is_listener, packed } in clients {
        let handed_over = HandedOver { packed, version };
        if is_listener {
            // The address may be gone: its connections, if there are any, say so.
            let table = tables.iter().find(|(other, _)| key(other) == address);
            if let Some((at, table)) = table {
                result.listeners.insert(address, at.address().adopt(handed_over, table.clone(), &listen(at))?);
            }
            continue;
        }
        let Some(listener) = result.listeners.get(&address) else {
            left.behind(format!("{address} has connections and is no longer listened on"))?;
            continue;
        };
        // Its export may be offered elsewhere alone by now; at an address with TLS no connection is taken in without
        // it.
        let elsewhere = tables.iter().filter(|(at, _)| key(at) != address && is_same_kind(at, &address));
        let elsewhere = elsewhere.filter(|(at, _)| listen(at).tls.is_none());
        let elsewhere = elsewhere.filter_map(|(at, _)| result.listeners.get(&key(at)));
        match adopt(handed_over, &**listener, elsewhere.map(|listener| &**listener)) {
            Ok(client) => result.connections.push(client),
            Err(why) => left.behind(why)?,
        }
    }
    result.left = left.sentences();
    Ok(result)
}

fn is_same_kind(at: &ExportAddress, key: &str) -> bool {
    key.split(' ').next() == Some(at.front_end().name())
}

/// Gives a connection a place with the listener by which it came, or else with the first that has one.
fn adopt<'a>(
    handed_over: HandedOver,
    listener: &dyn Listener,
    mut elsewhere: impl Iterator<Item = &'a dyn Listener>,
) -> Result<MakeClient, String> {
    let copy = |HandedOver { packed, version }: &HandedOver| {
        let descriptors = packed.descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>().ok()?;
        Some(HandedOver { packed: Packed { state: packed.state.clone(), descriptors }, version: *version })
    };
    let Some(other) = elsewhere.next() else { return listener.adopt(handed_over) };
    let Some(kept) = copy(&handed_over) else { return listener.adopt(handed_over) };
    listener.adopt(handed_over).or_else(|why| {
        let mut elsewhere = std::iter::once(other).chain(elsewhere);
        elsewhere.find_map(|listener| listener.adopt(copy(&kept)?).ok()).ok_or(why)
    })
}

/// Things that have found their places.
#[derive(Default)]
pub struct HandoverResult {
    /// Listeners, by [`key`].
    pub listeners: BTreeMap<String, Box<dyn Listener>>,
    /// Connections, not started.
    pub connections: Vec<MakeClient>,
    /// Sentences about those that have found none.
    pub left: Vec<String>,
}

/// Things left behind, if that may be.
struct Left {
    is_allowed: bool,
    /// The reasons, and how often each.
    sentences: BTreeMap<String, usize>,
}

impl Left {
    /// Leaves a thing behind, for this reason.
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
