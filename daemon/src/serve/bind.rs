//! Sockets are bound, and the addresses of exports are listened on.

use super::options::{Failure, Start};
use super::prepare::Prepared;
use crate::connection_log::connection_log;
use crate::live::{MakeOptions, Owners, Trust};
use crate::log_format::{About, Level};
use crate::upgrade::Received;
use crate::{control, upgrade};
use mqfq_control::Listen;
use mqfq_front::front_end::{Ending, ExportAddress, ListenOptions, Listener};
use mqfq_front::inherited::Inherited;
use mqfq_front::socket::{Listening, SocketAddress};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Listeners, and the parts of which later ones are made.
pub(super) struct Bound {
    /// Listeners by [`upgrade::key`]; those of a server that is replaced come later.
    pub(super) listeners: BTreeMap<String, Box<dyn Listener>>,
    pub(super) owners: Owners,
    /// Options of the listener of an address.
    pub(super) make_options: MakeOptions,
    /// The options that all listeners share.
    pub(super) shared: ListenOptions,
    pub(super) upgrade: Option<(SocketAddress, Listening)>,
    /// `None`: there is no control plane.
    pub(super) control: Option<Vec<Listen>>,
    /// Sockets that came from another process.
    pub(super) taken: Vec<SocketAddress>,
    pub(super) trust: Arc<Trust>,
}

/// Binds the sockets of the control plane and for upgrades, and listens on the addresses of exports.
pub(super) fn bind(
    start: Start<'_>,
    prepared: &Prepared,
    received: &mut Received,
    activated: &Arc<Inherited>,
) -> Result<Bound, Failure> {
    let server = &prepared.plan.server;
    let trust = Trust::new(&prepared.plan.trust);
    let mut taken = Vec::new();
    let mut inherited = |address: &SocketAddress| received.socket(address).inspect(|_| taken.push(address.clone()));
    let control = prepared.control.as_ref();
    let control = control.map(|control| control::listen(control, trust.control(), &mut inherited)).transpose()?;
    let upgrade = server.upgrade.as_ref().map(|at| {
        let listening = upgrade::listen(at, 0o600, 8, inherited(at))?;
        Ok::<_, String>((at.clone(), listening))
    });
    let upgrade = upgrade.transpose()?;
    let shared = ListenOptions {
        connections_max: server.connections_max,
        socket_mode: server.socket_mode,
        handshake_timeout: Duration::from_secs(server.handshake_s),
        stall_timeout: Duration::from_secs(server.stall_s),
        bytes_in_flight_max: server.connection_memory_bytes,
        inherited: activated.clone(),
        workers: prepared.workers,
        replaces: start.options.replace,
        ending: Ending::default(),
        ..ListenOptions::default()
    };
    let owners = Owners::new(&prepared.plan);
    let make_options = make_options(start, &shared, &owners, &trust);
    let mut listeners = BTreeMap::new();
    for (address, table) in prepared.tables.iter().filter(|(address, _)| !received.listens_at(address)) {
        if !address.address().claim().is_some_and(|claim| activated.has(&claim)) {
            address.address().await_predecessor(&|| start.signals.stop_is_pending());
        }
        start.go_on()?;
        listeners.insert(upgrade::key(address), address.address().listen(table.clone(), &make_options(address))?);
    }
    Ok(Bound { listeners, owners, make_options, shared, upgrade, control, taken, trust })
}

/// Listeners have the shared options, their address's TLS, and a log that names a client's tenant.
fn make_options(start: Start<'_>, shared: &ListenOptions, owners: &Owners, trust: &Arc<Trust>) -> MakeOptions {
    let (notes, owners, shared, trust) = (start.output.clone(), owners.clone(), shared.clone(), trust.clone());
    Arc::new(move |address: &ExportAddress| {
        let (notes, owners, at) = (notes.clone(), owners.clone(), address.to_string());
        let log = connection_log(move |line, export| {
            let tenant = export.and_then(|export| owners.of(export));
            let tenant = tenant.as_deref();
            notes.say(Level::Notice, About { tenant, export, address: Some(&at), ..About::default() }, line);
        });
        ListenOptions { log: Some(log), tls: trust.at(address), ..shared.clone() }
    })
}
