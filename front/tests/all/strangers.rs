//! Descriptors and memory that a stranger passes to make the server wait, or to take from it what it has little of.

use crate::guest::{EVENT_IDX, Guest, IN, Machine, data_at};
use crate::hostile::{Neighbour, two};
use crate::server::{LIMIT, Server, ServerOptions};
use mqfq_testing::stranger::number::*;
use mqfq_testing::stranger::{answer, event, lingering, message, pass, sparse};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::VhostUserFrontend;

/// Protocol features: answers to all messages.
const REPLY_ACK: u64 = 1 << 3;

fn connect(server: &Server, export: usize) -> UnixStream {
    let socket = UnixStream::connect(server.socket(export)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// The server has closed it, whether or not it had read all.
fn is_closed(mut socket: &UnixStream) -> bool {
    match socket.read_to_end(&mut Vec::new()) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A front-end whose messages, said by `say`, are read when all of them have been sent: until then another one has the
/// export. So the copies that the server gets are the last ones.
fn say_at_once(server: &Server, say: impl FnOnce(&UnixStream)) -> UnixStream {
    let holder = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    let socket = connect(server, 0);
    pass(&socket, &message(SET_PROTOCOL_FEATURES, &[REPLY_ACK]), &[]).unwrap();
    assert_eq!(answer(&socket).unwrap(), 0);
    pass(&socket, &message(SET_FEATURES, &[0]), &[]).unwrap();
    say(&socket);
    drop(holder);
    assert_eq!(answer(&socket).unwrap(), 0);
    socket
}

#[test]
fn descriptors_whose_close_waits_are_refused_and_hold_up_no_worker() {
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    let mut peers = Vec::new();
    let mut harm = |socket: &UnixStream, message: &[u8], times: usize| {
        let (file, peer) = lingering();
        pass(socket, message, &vec![file.as_fd(); times]).unwrap();
        peers.push(peer);
    };
    let messages = [
        (SET_VRING_CALL, &[0][..]),
        (SET_VRING_ERR, &[0]),
        (SET_BACKEND_REQ_FD, &[]),
        (SET_VRING_KICK, &[0]),
        (SET_MEM_TABLE, &[1, 0, 4096, 0, 0]),
        (SET_LOG_BASE, &[4096, 0]),
        (SET_INFLIGHT_FD, &[4096, 0, 1 | 8 << 16]),
        (ADD_MEM_REG, &[0, 0, 4096, 0, 0]),
    ];
    // Connections live on the two workers by turns.
    for _ in 0..2 {
        let socket = say_at_once(&server, |socket| {
            messages.iter().for_each(|(number, words)| harm(socket, &message(*number, words), 1));
            // After this one it is closed, with what it has not read.
            harm(socket, &message(SET_VRING_CALL, &[0]), 200);
            (0..20).for_each(|_| harm(socket, &message(SET_VRING_CALL, &[0]), 1));
        });
        for (number, _) in messages {
            assert_ne!(answer(&socket).unwrap(), 0, "message {number}");
        }
        assert!(is_closed(&socket));
        neighbour.is_unharmed();
    }
    assert_eq!(["unfit_descriptor", "unfit_memory"].map(|rule| server.broken(0, rule)), [2 * 4, 2 * 4]);
    let said = server.log.lock().unwrap().iter().any(|line| line.contains("must be an eventfd"));
    assert!(said, "the log says what may be passed");
    drop((peers, neighbour));
    server.drain();
}

#[test]
fn a_guest_of_128_tib_is_refused_what_is_too_much_and_served_with_the_rest() {
    let server = two();
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    let sparse = sparse(1 << 46);
    let mut region = guest.machine.region();
    (region.memory_size, region.mmap_handle) = (2 << 40, sparse.as_raw_fd());
    let mut taken = 0;
    for number in 0..63u64 {
        (region.guest_phys_addr, region.userspace_addr) = ((number + 1) << 42, (number + 1) << 42);
        taken += u64::from(guest.front.add_mem_region(&region).is_ok());
    }
    assert_eq!((taken, server.broken(0, "too_much_mapped")), (7, 56), "16 TiB, its own memory among them");
    // Unwritten chunks of the device are mapped now.

    let mut neighbour = Neighbour::attach(&server);
    neighbour.is_unharmed();
    assert_eq!(guest.one(IN, 0, 4096), 0);
    drop((guest, neighbour));
    server.drain();
}

#[test]
fn descriptors_of_those_who_only_look_are_bounded_by_their_places() {
    let server = Server::start(ServerOptions::default());
    let events: Vec<OwnedFd> = (0..64).map(|_| event()).collect();
    let looks = || {
        let socket = connect(&server, 0);
        pass(&socket, &message(SET_PROTOCOL_FEATURES, &[REPLY_ACK]), &[]).unwrap();
        answer(&socket).unwrap();
        for (number, event) in events.iter().enumerate() {
            for kind in [SET_VRING_CALL, SET_VRING_ERR] {
                pass(&socket, &message(kind, &[number as u64]), &[event.as_fd()]).unwrap();
                assert_eq!(answer(&socket).unwrap(), 0);
            }
        }
        socket
    };
    let sockets: Vec<UnixStream> = (0..20).map(|_| looks()).collect();
    let (closed, open) = sockets.split_at(12);
    assert!(closed.iter().all(is_closed), "the oldest are closed for the next one");
    assert_eq!(server.broken(0, "handshake_crowded_out"), 12);
    // The others are served.
    for socket in open {
        pass(socket, &message(SET_PROTOCOL_FEATURES, &[REPLY_ACK]), &[]).unwrap();
        assert_eq!(answer(socket).unwrap(), 0);
    }
    drop(sockets);
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    assert_eq!((guest.one(IN, 0, 4096), guest.machine.read(data_at(0), 1)), (0, vec![0]));
    drop(guest);
    server.drain();
}

#[test]
fn an_address_with_too_many_open_descriptors_takes_no_more_until_they_are_closed() {
    let server = two();
    let mut neighbour = Neighbour::attach(&server);
    let (waits, peer) = lingering();
    let event = event();
    let harm = || {
        let socket = connect(&server, 0);
        // One that is closed at once takes no message.
        let _ = pass(&socket, &message(200, &[]), &[event.as_fd(); 253]);
        socket
    };
    // All that comes later waits behind the first.
    let mut waits = Some(waits);
    let first = say_at_once(&server, |socket| {
        pass(socket, &message(200, &[]), &[waits.take().unwrap().as_fd()]).unwrap();
    });
    assert_ne!(answer(&first).unwrap(), 0);
    drop(first);
    // 9 times 253 are more than 2048.
    for _ in 0..9 {
        assert!(is_closed(&harm()));
    }
    let counted = || server.stats[0].counts().connections_total;
    let before = counted();
    let mut late: Vec<UnixStream> = (0..5).map(|_| harm()).collect();
    (0..20).for_each(|_| neighbour.is_unharmed());
    assert!(counted() <= before + 1, "the accept that was under way is the last one");
    drop(peer);
    assert!(late.drain(..).all(|socket| is_closed(&socket)), "and then they are");
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    assert_eq!(guest.one(IN, 0, 4096), 0);
    drop((guest, neighbour));
    server.drain();
}
