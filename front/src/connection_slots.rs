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
mod tests {
    use super::*;
    use crate::export::{BlockSizes, ExportId, ExportState};
    use crate::memory::TenantMemory;
    use crate::stats::Names;
    use mqfq_blk::FlowId;
    use mqfq_blk::client::DeviceIndex;
    use mqfq_blk::slots::Slot;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    const NAMES: Names = Names {
        front_end: "test",
        requests: &[],
        rules: &["other", "crowded"],
        crowded_out: 1,
        handshakes_max: 1024,
        own: &[],
    };

    fn export(tenant: u32) -> Export {
        Export {
            name: format!("of {tenant}"),
            description: String::new(),
            device: DeviceIndex(0),
            flow: FlowId(tenant),
            id: ExportId(Slot::first(tenant)),
            tenant: TenantId(Slot::first(tenant)),
            state: ExportState::default(),
            offset_bytes: 0,
            size_bytes: 1,
            read_only: false,
            block: BlockSizes::DEFAULT,
            memory: TenantMemory::unbounded(),
            caps: mqfq_blk::cap::Caps::none(),
        }
    }

    fn places(connections_max: usize, tenants: u32) -> Arc<ConnectionSlots> {
        let exports = ExportTable::new((0..tenants).map(export)).unwrap();
        ConnectionSlots::new(
            &exports,
            &ListenOptions { connections_max, ..ListenOptions::default() },
            Stats::new(&NAMES),
        )
    }

    /// A connection, and its client's end.
    fn enter(places: &Arc<ConnectionSlots>) -> (ConnectionSlot, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (places.enter(ours.into()), theirs)
    }

    fn connected(places: &Arc<ConnectionSlots>, tenant: u32) -> Option<ConnectionSlot> {
        let (mut place, _) = enter(places);
        place.choose(&export(tenant)).then_some(place)
    }

    /// As many connections of `tenant` as may be, at most `most`.
    fn fill(places: &Arc<ConnectionSlots>, tenant: u32, most: usize) -> Vec<ConnectionSlot> {
        std::iter::from_fn(|| connected(places, tenant)).take(most).collect()
    }

    /// The client's end says that ours was closed.
    fn is_closed(mut client: &UnixStream) -> bool {
        client.set_nonblocking(true).unwrap();
        matches!(client.read(&mut [0]), Ok(0))
    }

    #[test]
    fn one_tenant_cannot_take_what_is_guaranteed_to_another() {
        // The example of the file's text: M = 1024, n = 2, g = 256, 512 shared.
        let places = places(1024, 2);
        let mut first = fill(&places, 0, 2000);
        assert_eq!(first.len(), 768, "256 of its own and 512 shared");
        let second = fill(&places, 1, 2000);
        assert_eq!(second.len(), 256, "P1, and P2: 768 + 256 = 1024");
        assert_eq!(places.stats.counts().connections_refused, 2, "the 769th and the 257th");
        // A shared place that comes back is free for any tenant; a guaranteed one is not.
        first.pop();
        let shared = connected(&places, 1);
        assert!(shared.is_some() && connected(&places, 0).is_none() && connected(&places, 1).is_none());
        drop(shared);
        first.extend(connected(&places, 0));
        assert_eq!(first.len(), 768);
        drop(second);
        assert!(connected(&places, 0).is_none(), "what the second had was its own");
    }

    #[test]
    fn a_tenant_alone_may_have_all_places() {
        for connections_max in [1, 2, 7, 1024] {
            assert_eq!(fill(&places(connections_max, 1), 0, 2000).len(), connections_max);
        }
    }

    #[test]
    fn everybody_has_a_place_even_where_tenants_outnumber_places() {
        let places = places(3, 5);
        let all: Vec<ConnectionSlot> = (0..5).filter_map(|tenant| connected(&places, tenant)).collect();
        assert_eq!(all.len(), 5);
        assert!((0..5).all(|tenant| connected(&places, tenant).is_none()));
    }

    #[test]
    fn whatever_comes_and_goes_the_guarantee_and_the_sum_hold() {
        // 24 places, 3 tenants: 4 guaranteed to each, 12 shared. A fixed sequence of arrivals and departures, beside a
        // count by hand.
        let places = places(24, 3);
        let mut held: [Vec<ConnectionSlot>; 3] = Default::default();
        let mut draw = 1u32;
        for _ in 0..2000 {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let tenant = (draw >> 8) as usize % 3;
            // Departures are rarer, so that the listener is full most of the time.
            if draw >> 16 & 3 == 0 {
                held[tenant].pop();
                continue;
            }
            let shared: usize = held.iter().map(|places| places.len().saturating_sub(4)).sum();
            let expected = held[tenant].len() < 4 || shared < 12;
            let place = connected(&places, tenant as u32);
            assert_eq!(place.is_some(), expected, "{:?}", held.each_ref().map(Vec::len));
            held[tenant].extend(place);
            assert!(held.iter().map(Vec::len).sum::<usize>() <= 24);
        }
        drop(held);
        let taken = places.taken();
        assert_eq!((taken.connections.len(), taken.shared), (0, 0));
    }

    #[test]
    fn the_oldest_handshake_is_closed_for_a_new_one_and_nobody_who_has_chosen() {
        // 2 connections, so 16 handshakes at a time.
        let places = places(2, 1);
        let (mut chosen, chosen_client) = enter(&places);
        assert!(chosen.choose(&export(0)));
        let all: Vec<_> = (0..16).map(|_| enter(&places)).collect();
        assert!(!is_closed(&chosen_client) && all.iter().all(|(_, client)| !is_closed(client)));
        let (late, late_client) = enter(&places);
        let closed: Vec<bool> = all.iter().map(|(_, client)| is_closed(client)).collect();
        assert_eq!(closed, [vec![true], vec![false; 15]].concat());
        assert!(!is_closed(&chosen_client) && !is_closed(&late_client));
        assert_eq!(places.stats.broken(1usize), 1);
        // One that ends by itself makes room.
        drop(late);
        let _another = enter(&places);
        assert_eq!(places.stats.broken(1usize), 1);
    }

    #[test]
    fn handshakes_of_another_process_have_places_however_many_they_are() {
        // 16 at a time. The other process had shut down more than it had noticed to be gone.
        let places = places(2, 1);
        let handed_over = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (places.enter_handed_over(ours.into()), theirs)
        };
        let mut all: Vec<_> = (0..18).map(|_| handed_over()).collect();
        let (mut chosen, client) = handed_over();
        assert!(chosen.choose(&export(0)), "one that has an export comes behind them");
        let is_anybody_closed = || is_closed(&client) || all.iter().any(|(_, client)| is_closed(client));
        assert!(!is_anybody_closed() && places.stats.broken(1usize) == 0, "they may be the other's again");
        let (_next, next) = enter(&places);
        let closed: Vec<bool> = all.iter().map(|(_, client)| is_closed(client)).collect();
        assert_eq!(closed, [vec![true; 3], vec![false; 15]].concat(), "15 and the next");
        assert!(!is_closed(&client) && !is_closed(&next));
        all.clear();
    }

    #[test]
    fn who_was_closed_takes_no_place_of_its_tenant() {
        let places = places(1, 1);
        let (mut oldest, client) = enter(&places);
        let others: Vec<_> = (0..16).map(|_| enter(&places)).collect();
        assert!(is_closed(&client));
        // It had sent its choice before it was closed.
        assert!(oldest.choose(&export(0)));
        drop(others);
        let (mut other, _client) = enter(&places);
        assert!(other.choose(&export(0)), "the only place is free");
        drop(oldest);
        assert!(connected(&places, 0).is_none(), "and taken once");
    }

    #[test]
    fn a_refusal_is_counted_and_said_and_leaves_the_handshake_as_it_was() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let listener: Arc<std::sync::OnceLock<Arc<ConnectionSlots>>> = Arc::default();
        let log: Log = Arc::new({
            let (said, listener) = (said.clone(), listener.clone());
            move |line: LogLine<'_>| {
                said.lock().unwrap().push((line.export.map(str::to_owned), line.text.to_owned()));
                assert!(listener.get().unwrap().taken.try_lock().is_ok(), "a slow log holds nobody up");
            }
        });
        let exports = ExportTable::new([export(0), export(1)]).unwrap();
        let options = ListenOptions { connections_max: 2, log: Some(log), ..ListenOptions::default() };
        let places = ConnectionSlots::new(&exports, &options, Stats::new(&NAMES));
        assert!(listener.set(places.clone()).is_ok());
        let _first = connected(&places, 0).unwrap();
        let (mut second, _client) = enter(&places);
        assert!(!second.choose(&export(0)));
        assert!(second.choose(&export(1)), "another tenant's export");
        let counts = places.stats.counts();
        assert_eq!((counts.connections, counts.connections_total, counts.connections_refused), (2, 2, 1));
        let line = "test: a client of export \"of 0\" was refused: its tenant has 1 connections here, and what is left of 2 is kept for \
                others (1 for each tenant)";
        assert_eq!(std::mem::take(&mut *said.lock().unwrap()), [(Some("of 0".to_owned()), line.to_owned())]);
        let _all: Vec<_> = (0..17).map(|_| enter(&places)).collect();
        let line = "test: 16 clients have not chosen an export, the oldest of them was closed for the next one";
        assert_eq!(*said.lock().unwrap(), [(None, line.to_owned())]);
    }

    #[test]
    fn guarantees_follow_the_tenants_that_come_and_go_and_nobody_is_closed() {
        let places = places(8, 1);
        let mut first = fill(&places, 0, 100);
        assert_eq!(first.len(), 8, "alone");
        // Two tenants: 2 guaranteed to each, 4 shared; the first holds 6 beyond its own.
        let both = ExportTable::new([export(0), export(1)]).unwrap();
        places.share(&both, 8);
        assert_eq!(fill(&places, 1, 100).len(), 2, "P1, although 8 are taken");
        assert!(connected(&places, 0).is_none());
        first.truncate(4);
        assert_eq!(first.iter().chain(&fill(&places, 1, 100)).count(), 8, "4 and 4 of 8");
        places.share(&ExportTable::new([export(0)]).unwrap(), 16);
        first.extend(fill(&places, 0, 100));
        assert_eq!(first.len(), 16);
        drop(first);
        assert_eq!(fill(&places, 0, 100).len(), 16, "all came back");
    }

    #[test]
    fn a_listener_that_goes_takes_those_along_who_have_not_chosen() {
        let places = places(8, 1);
        let (_waiting, waiting_client) = enter(&places);
        let (mut chosen, chosen_client) = enter(&places);
        let (_last, last_client) = enter(&places);
        assert!(chosen.choose(&export(0)));
        places.close_handshakes();
        assert!(is_closed(&waiting_client) && !is_closed(&chosen_client) && is_closed(&last_client));
    }

    #[test]
    fn each_listener_has_a_number_of_its_own_which_its_places_say() {
        let listeners = [places(8, 1), places(8, 1)];
        assert_ne!(listeners[0].number(), listeners[1].number());
        for places in &listeners {
            assert_eq!(enter(places).0.listener(), places.number());
        }
    }
}
