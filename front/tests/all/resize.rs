//! A disk that grows or shrinks while a guest has it: the hypervisor hears of it, asks, and the guest can use it.

use crate::guest::{EVENT_IDX, Guest, IN, Machine, OUT, data_at};
use crate::server::{LIMIT, SIZE_BYTES, Server, ServerOptions};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

/// A message of the server's without a payload: number and flags.
fn heard(channel: &mut UnixStream) -> (u32, u32) {
    let mut bytes = [0; 12];
    channel.read_exact(&mut bytes).unwrap();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(8), 0, "no payload");
    (word(0), word(4))
}

/// The flags of a message for which no answer is asked.
const VERSION: u32 = 1;

fn sectors(guest: &mut Guest) -> u64 {
    let (_, config) = guest.front.get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]).unwrap();
    u64::from_le_bytes(config[..8].try_into().unwrap())
}

fn with_channel(guest: &mut Guest) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(LIMIT)).unwrap();
    guest.front.set_backend_request_fd(&theirs).unwrap();
    ours
}

#[test]
fn a_hypervisor_hears_of_each_size_and_the_guest_can_use_it() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 2, 64, EVENT_IDX);
    let state = &server.exports[0].state;
    // Without a channel no front-end is told; one that makes a channel hears of the change that it has not read.
    state.resize(SIZE_BYTES / 2);
    let mut channel = with_channel(&mut guest);
    assert_eq!(heard(&mut channel), (2, VERSION));
    assert_eq!(sectors(&mut guest), SIZE_BYTES / 2 / 512);
    assert_eq!(guest.one(IN, SIZE_BYTES / 2 / 512, 512), 1, "past its end");
    for size_bytes in [SIZE_BYTES, 2 * SIZE_BYTES] {
        state.resize(size_bytes);
        assert_eq!(heard(&mut channel), (2, VERSION));
    }
    guest.machine.write(data_at(0), &[9; 4096]);
    assert_eq!(guest.one(OUT, SIZE_BYTES / 512, 4096), 0, "without being told the size holds for the next request");
    assert_eq!(sectors(&mut guest), 2 * SIZE_BYTES / 512);
    // A front-end that reads a size by itself is not told of it.
    drop(guest);
    assert_eq!(channel.read_to_end(&mut Vec::new()).unwrap(), 0, "the channel ends with the connection");
    server.drain();
}

#[test]
fn a_channel_on_which_something_is_said_or_that_is_gone_is_let_go_and_the_disk_goes_on() {
    let server = Server::start(ServerOptions::default());
    let mut guest = Guest::attach(&server.socket(0), Machine::new(), 1, 64, EVENT_IDX);
    let state = &server.exports[0].state;
    let mut channel = with_channel(&mut guest);
    state.resize(SIZE_BYTES / 2);
    heard(&mut channel);
    channel.write_all(&[0xff; 20]).unwrap();
    assert_eq!(guest.one(IN, 0, 512), 0);
    drop(channel);
    // A new channel is used again; an unread one costs nothing.
    let mut channel = with_channel(&mut guest);
    state.resize(SIZE_BYTES / 4);
    heard(&mut channel);
    drop(channel);
    assert_eq!((sectors(&mut guest), guest.one(IN, 0, 512)), (SIZE_BYTES / 4 / 512, 0));
    let _unread = with_channel(&mut guest);
    state.resize(SIZE_BYTES);
    assert_eq!(guest.one(IN, SIZE_BYTES / 512 - 1, 512), 0);
    drop(guest);
    server.drain();
}
