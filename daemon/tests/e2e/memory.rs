//! Payload memory: clients that announce much and send nothing, or ask for much and read nothing, hold as much as the
//! pages say.

use crate::client::{CMD_READ, CMD_WRITE, Client, Request};
use crate::server::{Server, pattern};
use mqfq_testing::machine;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

const MIB: u64 = 1 << 20;
const CLIENTS: usize = 200;

/// Largest memory that the server has had so far, bytes.
fn peak_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.ready["pid"])).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line of every process");
    line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("a number of KiB") * 1024
}

/// Waits until the server has taken everything that was sent.
fn wait_until_taken(stream: &UnixStream) {
    loop {
        let mut unread: libc::c_int = 0;
        // SAFETY: TIOCOUTQ writes one int, and `unread` is one that lives across the call.
        let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        if unread == 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Two tenants with 64 MiB each of one memory device of which nothing was written, so that it takes no memory itself.
fn server() -> Server {
    Server::of_tenants("kind = \"memory\"\nsize = \"128MiB\"", &["bad", "good"], 64 * MIB)
}

fn good_is_well(server: &Server) {
    let mut good = Client::connect(&server.socket("good"), "good");
    let bytes = pattern(1 << 20, 9);
    good.write(0, &bytes).unwrap();
    good.flush().unwrap();
    assert_eq!(good.read(0, 1 << 20).unwrap(), bytes);
}

#[test]
fn writes_that_are_announced_and_do_not_come_hold_a_piece_each() {
    let _machine = machine::shared();
    let server = server();
    let before = peak_bytes(&server);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&server.socket("bad"), "bad")).collect();
    for client in &mut clients {
        client.send(Request { length_bytes: 32 << 20, ..Request::of(CMD_WRITE) }, &[]).unwrap();
        wait_until_taken(&client.stream);
    }
    good_is_well(&server);
    // 200 pieces of 128 KiB are 25 MiB, 200 receive buffers of 16 KiB 3; the good tenant's bytes and buffers are some.
    let grown = peak_bytes(&server) - before;
    assert!(grown < 64 * MIB, "grew by {} MiB", grown / MIB);
    drop(clients);
    server.terminate();
}

#[test]
fn replies_that_nobody_reads_hold_the_memory_of_one_tenant() {
    let _machine = machine::shared();
    let server = server();
    let before = peak_bytes(&server);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&server.socket("bad"), "bad")).collect();
    for client in &mut clients {
        for _ in 0..2 {
            client.send(Request { length_bytes: 32 << 20, ..Request::of(CMD_READ) }, &[]).unwrap();
        }
        wait_until_taken(&client.stream);
    }
    good_is_well(&server);
    // 64 MiB of the tenant and a piece for each connection, two workers' 16 MiB of spare buffers, and as above.
    let grown = peak_bytes(&server) - before;
    assert!(grown < 160 * MIB, "grew by {} MiB", grown / MIB);
    // Some of them begin to read: all is there, piece by piece.
    for client in &mut clients[..3] {
        for _ in 0..2 {
            assert_eq!(client.reply().expect("an answer").error, 0);
            let mut data = vec![1; 32 << 20];
            std::io::Read::read_exact(&mut client.stream, &mut data).unwrap();
            assert!(data.iter().all(|byte| *byte == 0));
        }
    }
    drop(clients);
    server.terminate();
}

#[test]
fn a_whole_32_mib_goes_there_and_back() {
    let _machine = machine::shared();
    let server = server();
    let mut client = Client::connect(&server.socket("bad"), "bad");
    // Off every boundary, so that the first and the last piece are short.
    let bytes = pattern((32 << 20) - 5, 3);
    client.write(1234, &bytes).unwrap();
    assert!(client.read(1234, bytes.len() as u32).unwrap() == bytes);
    assert_eq!(client.read(0, 1234).unwrap(), vec![0; 1234]);
    server.terminate();
}
