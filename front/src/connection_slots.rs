//! The places of one listener, for handshakes and for the connections of each tenant.
//!
//! Which tenant a client belongs to is not known before its handshake ends. So a connection has two places, one after
//! the other:
//!
//! ```text
//!            accepted                       chose an export                     ended
//!   client ───────────▶ place of a handshake ──────────────▶ place of its tenant ─────▶
//!                       │ more come than there are places:  │ its tenant may have no more:
//!                       ▼ the oldest is closed              ▼ refused, the handshake goes on
//! ```
//!
//! # The rule for tenants
//! M places, n tenants that have an export here. Each tenant is guaranteed g = M / 2n places, at least one. The M - n g
//! that are left are shared: a tenant that has g takes of them as long as there are any.
//!
//! P1. A tenant with fewer than g connections is always admitted. No connection is closed for that: the shared part
//!     leaves out the guaranteed places, used or not.
//! P2. At most M connections are admitted, or n if that is more.
//! P3. A tenant alone may have all M, a tenant among others M - (n - 1) g.
//!
//! 1024 places and two tenants: 256 guaranteed to each and 512 shared, so one may have 768 while the other has none,
//! and the other then still gets 256.
//!
//! # Handshakes
//! At most [`handshakes_max`] at a time. A silent client keeps no other out and is closed for others; a client that
//! chooses an export before as many others come is never closed.

use crate::export::TenantId;
use crate::export::{Export, ExportTable};
use crate::identity::Peer;
use crate::listen_options::{ListenOptions, Log, LogLine, next_client};
use crate::stats::{Names, Stats};
use mqfq_blk::passed::Passed;
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fewest and most places for handshakes. Fewer would close honest clients that come together; more are descriptors and
/// 8 KiB each for unknown clients.
const HANDSHAKES: std::ops::RangeInclusive<usize> = 16..=HANDSHAKES_MAX;

/// Most handshakes at a time of a front end whose clients hold nothing but their socket before they choose.
pub const HANDSHAKES_MAX: usize = 1024;

/// Handshakes at a time on a listener that takes so many connections: as many, within 16 and 1024.
pub fn handshakes_max(connections_max: usize) -> usize {
    connections_max.clamp(*HANDSHAKES.start(), *HANDSHAKES.end())
}

/// The places of one listener.
pub struct ConnectionSlots {
    /// Number of the listener, unique.
    number: u64,
    taken: Mutex<Taken>,
    stats: Arc<Stats>,
    log: Option<Log>,
}

/// Most places of each kind.
#[derive(Clone, Copy)]
struct Most {
    connections: usize,
    handshakes: usize,
    /// Places guaranteed to each tenant.
    guaranteed: usize,
    /// Places that all tenants share.
    shared: usize,
}

impl Most {
    /// The tenants are those of `exports`.
    fn new(exports: &ExportTable, connections: usize, names: &Names) -> Most {
        let tenants = exports.tenants().max(1);
        let guaranteed = (connections / (2 * tenants)).max(1);
        let shared = connections.saturating_sub(tenants * guaranteed);
        let handshakes = handshakes_max(connections).min(names.handshakes_max);
        Most { connections, handshakes, guaranteed, shared }
    }
}

struct Taken {
    most: Most,
    /// Sockets by number, which is by age.
    handshakes: BTreeMap<u64, Arc<Passed>>,
    handshakes_total: u64,
    /// By tenant; none for a tenant without connections.
    connections: BTreeMap<TenantId, usize>,
    /// Connections beyond what their tenants are guaranteed.
    shared: usize,
}

impl ConnectionSlots {
    /// All free. The tenants are those of `exports`.
    pub fn new(exports: &ExportTable, options: &ListenOptions, stats: Arc<Stats>) -> Arc<ConnectionSlots> {
        let taken = Taken {
            most: Most::new(exports, options.connections_max, stats.names()),
            handshakes: BTreeMap::new(),
            handshakes_total: 0,
            connections: BTreeMap::new(),
            shared: 0,
        };
        Arc::new(ConnectionSlots { number: next_client(), taken: Mutex::new(taken), stats, log: options.log.clone() })
    }

    /// The tenants are those of `exports` from now on, and there are so many places. No connection is closed for it:
    /// where too many are held now, none is admitted beyond a guarantee until enough have gone. With more tenants each
    /// guarantee is smaller, and connections beyond it count as shared.
    pub fn share(&self, exports: &ExportTable, connections_max: usize) {
        let most = Most::new(exports, connections_max, self.stats.names());
        let mut taken = self.taken();
        taken.shared = taken.connections.values().map(|count| count.saturating_sub(most.guaranteed)).sum();
        taken.most = most;
    }

    /// A place for the handshake of a connection that was accepted as `socket`. The oldest handshake is closed if there
    /// was none left.
    pub fn enter(self: &Arc<ConnectionSlots>, socket: OwnedFd) -> ConnectionSlot {
        self.enter_by_door(socket.into())
    }

    /// [`ConnectionSlots::enter`] for a socket on which descriptors may lie.
    pub fn enter_by_door(self: &Arc<ConnectionSlots>, socket: Passed) -> ConnectionSlot {
        let place = self.hold(socket);
        while let Some(most) = self.close_oldest() {
            self.stats.count_broken(self.stats.names().crowded_out);
            self.say(None, || {
                format!("{most} clients have not chosen an export, the oldest of them was closed for the next one")
            });
        }
        place
    }

    /// Closes the oldest handshake if there are too many. How many there may be; `None`: there are no more.
    fn close_oldest(&self) -> Option<usize> {
        let mut taken = self.taken();
        let most = taken.most.handshakes;
        let (_, oldest) = if taken.handshakes.len() > most { taken.handshakes.pop_first()? } else { return None };
        drop(taken);
        // The worker where it lives finds that its client has left. An error says that it has done so by itself.
        let _ = rustix::net::shutdown(&*oldest, Shutdown::Both);
        Some(most)
    }

    /// [`ConnectionSlots::enter`] for a connection that another process has accepted. No other is closed for it,
    /// however many there are: that process has them as well, and goes on with them if this one does not come up. If
    /// they are too many, the oldest are closed for the next one that is accepted here.
    pub fn enter_handed_over(self: &Arc<ConnectionSlots>, socket: OwnedFd) -> ConnectionSlot {
        self.hold(socket.into())
    }

    fn hold(self: &Arc<ConnectionSlots>, socket: Passed) -> ConnectionSlot {
        let socket = Arc::new(socket);
        let mut taken = self.taken();
        let number = taken.handshakes_total;
        taken.handshakes_total += 1;
        taken.handshakes.insert(number, socket.clone());
        drop(taken);
        self.stats.count_opened();
        ConnectionSlot { places: self.clone(), socket, held: Held::Handshake(number) }
    }

    /// Closes clients that have not chosen an export: the listener is gone, and another's exports are not for them.
    pub fn close_handshakes(&self) {
        for socket in std::mem::take(&mut self.taken().handshakes).values() {
            // As in `enter`.
            let _ = rustix::net::shutdown(&**socket, Shutdown::Both);
        }
    }

    /// The number of their listener.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing that can panic is done under the lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, export: Option<&str>, line: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            let text = format!("{}: {}", self.stats.names().front_end, line());
            log(LogLine { text: &text, export });
        }
    }
}

/// One open connection's place, and its socket. Free when dropped.
pub struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    socket: Arc<Passed>,
    held: Held,
}

#[derive(Clone, Copy)]
enum Held {
    /// Or nothing, if it was closed for another one and has not noticed.
    Handshake(u64),
    Connection {
        tenant: TenantId,
    },
}

impl ConnectionSlot {
    /// Counters of its listener.
    pub fn stats(&self) -> &Stats {
        &self.places.stats
    }

    /// The number of its listener.
    pub fn listener(&self) -> u64 {
        self.places.number
    }

    /// Another descriptor of its socket.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Shared handle of the counters, for clients that live longer than the connection.
    pub fn shared_stats(&self) -> Arc<Stats> {
        self.places.stats.clone()
    }

    /// Its socket.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Peer at the other end of its socket.
    pub fn peer(&self) -> Peer {
        Peer::of_socket(self.socket.as_fd())
    }

    /// The handshake's place becomes one of the export's tenant. False: the tenant may have no more, and nothing
    /// changed.
    ///
    /// A handshake that was closed for another one meanwhile is told nothing here: its socket says so.
    pub fn choose(&mut self, export: &Export) -> bool {
        let Held::Handshake(number) = self.held else { return true };
        let mut taken = self.places.taken();
        let Most { connections: connections_max, guaranteed, shared: shared_max, .. } = taken.most;
        if !taken.handshakes.contains_key(&number) {
            return true;
        }
        let of_tenant = taken.connections.get(&export.tenant).copied().unwrap_or(0);
        if of_tenant >= guaranteed && taken.shared >= shared_max {
            drop(taken);
            self.places.stats.count_refused();
            self.places.say(Some(&export.name), || {
                format!(
                    "a client of export {:?} was refused: its tenant has {of_tenant} connections here, and what is left of \
                     {connections_max} is kept for others ({guaranteed} for each tenant)",
                    export.name
                )
            });
            return false;
        }
        taken.shared += usize::from(of_tenant >= guaranteed);
        taken.connections.insert(export.tenant, of_tenant + 1);
        taken.handshakes.remove(&number);
        self.held = Held::Connection { tenant: export.tenant };
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        match self.held {
            Held::Handshake(number) => drop(taken.handshakes.remove(&number)),
            Held::Connection { tenant } => {
                let left = taken.connections.get(&tenant).map_or(0, |count| count - 1);
                taken.shared -= usize::from(left >= taken.most.guaranteed);
                if left > 0 {
                    taken.connections.insert(tenant, left)
                } else {
                    taken.connections.remove(&tenant)
                };
            }
        }
        drop(taken);
        self.places.stats.count_closed();
    }
}

#[cfg(test)]
#[path = "connection_slots_tests.rs"]
mod tests;
