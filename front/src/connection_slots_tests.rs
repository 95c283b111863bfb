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
    ConnectionSlots::new(&exports, &ListenOptions { connections_max, ..ListenOptions::default() }, Stats::new(&NAMES))
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
