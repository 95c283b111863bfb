//! Sockets are bound, and the addresses of exports are listened on.

use super::options::{Failure, Start};
use super::prepare::Prepared;
use crate::control;
use crate::live::{MakeOptions, Owners, Trust};
use crate::log_format::{About, Level};
use crate::upgrade::{self, Received};
use mqfq_blk::worker::clock::Clock;
use mqfq_control::Listen;
use mqfq_front::front_end::{Ending, ExportAddress, ListenOptions, Listener, Log};
use mqfq_front::socket::{Listening, SocketAddress};
use mqfq_front::takeover::Inherited;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Between two lines about one address, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// The lines of one address.
#[derive(Default)]
struct Lines {
    said_ns: Option<u64>,
    left_out: u64,
}

impl Lines {
    /// The line to write now.
    fn note(&mut self, line: &str, now_ns: u64) -> Option<String> {
        if self.said_ns.is_some_and(|said_ns| now_ns < said_ns + PAUSE_NS) {
            self.left_out += 1;
            return None;
        }
        self.said_ns = Some(now_ns);
        Some(match std::mem::take(&mut self.left_out) {
            0 => line.to_owned(),
            left_out => format!("{line} ({left_out} lines before it were left out)"),
        })
    }
}

/// A log for one address. `say` is called on workers, with a line and the export that it is about: it must neither wait
/// nor panic.
pub fn connection_log(say: impl Fn(&str, Option<&str>) + Send + Sync + 'static) -> Log {
    let (clock, lines) = (Clock::start(), Mutex::new(Lines::default()));
    Arc::new(move |line| {
        let said = lines.lock().unwrap_or_else(PoisonError::into_inner).note(line.text, clock.now_ns());
        said.iter().for_each(|text| say(text, line.export));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_per_second_and_what_was_left_out_is_counted() {
        let mut lines = Lines::default();
        assert_eq!(lines.note("a", 5).as_deref(), Some("a"));
        assert_eq!(lines.note("b", 6), None);
        assert_eq!(lines.note("c", PAUSE_NS + 4), None);
        assert_eq!(lines.note("d", PAUSE_NS + 5).as_deref(), Some("d (2 lines before it were left out)"));
        assert_eq!(lines.note("e", 3 * PAUSE_NS).as_deref(), Some("e"));
    }
}
