//! What goes to another machine with a guest: the device's state, out of one server and into another.

use crate::guest::{EVENT_IDX, Guest, Machine};
use crate::server::{LIMIT, Server, ServerOptions};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const WCE: u64 = 1 << 11;
const SAVE: u32 = 0;
const LOAD: u32 = 1;

/// A hypervisor of which there is nothing but its socket.
struct Raw(UnixStream);

impl Raw {
    fn connect(server: &Server) -> Raw {
        let socket = UnixStream::connect(server.socket(0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Raw(socket)
    }

    /// Sends words as the payload of message `number`, and gives the number that comes back.
    fn ask(&mut self, number: u32, words: &[u32], descriptors: &[i32]) -> u64 {
        let all = [number, 1, words.len() as u32 * 4].into_iter().chain(words.iter().copied());
        let bytes: Vec<u8> = all.flat_map(u32::to_ne_bytes).collect();
        assert_eq!(self.0.send_with_fds(&[&bytes[..]], descriptors).unwrap(), bytes.len());
        let mut answer = [0; 20];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..4], number.to_ne_bytes());
        u64::from_ne_bytes(*answer.last_chunk().unwrap())
    }

    fn transfer(&mut self, direction: u32, pipe: &impl AsRawFd) -> u64 {
        self.ask(42, &[direction, 0], &[pipe.as_raw_fd()])
    }

    fn check(&mut self) -> u64 {
        self.ask(43, &[], &[])
    }

    fn save(&mut self) -> Vec<u8> {
        let (mut reader, writer): (PipeReader, PipeWriter) = std::io::pipe().unwrap();
        assert_eq!(self.transfer(SAVE, &writer), 1 << 8, "no descriptor, no fault");
        drop(writer);
        let mut state = Vec::new();
        reader.read_to_end(&mut state).unwrap();
        assert_eq!(self.check(), 0);
        state
    }

    fn load(&mut self, state: &[u8]) -> u64 {
        let (reader, mut writer) = std::io::pipe().unwrap();
        assert_eq!(self.transfer(LOAD, &reader), 1 << 8);
        drop(reader);
        writer.write_all(state).unwrap();
        drop(writer);
        self.check()
    }

    fn writeback(&mut self) -> u8 {
        let words: Vec<u8> = [24u32, 1, 13, 32, 1, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        self.0.write_all(&[&words[..], &[0]].concat()).unwrap();
        let mut answer = [0; 25];
        self.0.read_exact(&mut answer).unwrap();
        answer[24]
    }
}

#[test]
fn a_cache_that_a_guest_turned_off_is_off_on_the_machine_where_it_goes_to() {
    let (from, to) = (Server::start(ServerOptions::default()), Server::start(ServerOptions::default()));
    let mut guest = Guest::attach(&from.socket(0), Machine::new(), 1, 64, EVENT_IDX | WCE);
    guest.front.set_config(32, VhostUserConfigFlags::WRITABLE, &[0]).unwrap();
    let mut state = Vec::new();
    for off in [false, true] {
        // The same connection, by its socket: the crate has no such message.
        let mut raw = Raw(UnixStream::from(duplicate(&guest)));
        if off {
            guest.front.get_vring_base(0).unwrap();
            state = raw.save();
        } else {
            let (_reader, writer) = std::io::pipe().unwrap();
            assert_eq!(raw.transfer(SAVE, &writer), 1 << 8 | 1, "a queue runs");
        }
    }
    let mut other = Raw::connect(&to);
    assert_eq!(other.writeback(), 1);
    assert_eq!((other.load(&state), other.writeback()), (0, 0));
    assert_eq!(other.save(), state, "and it would go on as it came");
    assert_eq!(other.check(), 1, "nothing was transferred since");
    // A state that is none, or of a larger disk.
    assert_eq!(other.load(&state[1..]), 1);
    to.exports[0].door.resize(512);
    assert_eq!((other.load(&state), other.writeback()), (1, 0));
    let file = rustix::fs::memfd_create("state", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(other.transfer(LOAD, &file), 1 << 8 | 1, "a file is no pipe");
    assert_eq!((from.broken(0, "bad_state"), to.broken(0, "bad_state")), (1, 3));
    drop((guest, other));
    from.drain();
    to.drain();
}

fn duplicate(guest: &Guest) -> std::os::fd::OwnedFd {
    use std::os::fd::BorrowedFd;
    // SAFETY: the guest has it open.
    let socket = unsafe { BorrowedFd::borrow_raw(guest.front.as_raw_fd()) };
    socket.try_clone_to_owned().unwrap()
}
