//! Resources that run out: places for connections, descriptors, the length of a file. Only the clients concerned
//! notice; and what a server leaves behind when it ends. Payload memory: clients that announce much and send nothing,
//! or ask for much and read nothing, hold as much as the pages say.

use crate::client::{CMD_READ, CMD_WRITE, Client, ENOSPC, Handshake, Request};
use crate::server::{Folder, Server, pattern};
use mqfq_testing::machine;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const EIO: u32 = 5;
const ERR_POLICY: u32 = (1 << 31) + 2;

/// Two tenants, `a` and `b`, on one address with so many `connections`.
fn shared_address(connections: usize) -> String {
    let mut config =
        format!("[server]\nworkers = 2\nconnections = {connections}\n[device.d]\nkind = \"memory\"\nsize = \"8MiB\"\n");
    for (name, offset) in [("a", "0"), ("b", "\"4MiB\"")] {
        config += &format!(
            "[tenant.{name}]\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\noffset = {offset}\nsize = \"4MiB\"\n\
             nbd = \"unix:@/s.sock\"\n"
        );
    }
    config
}

/// Eight places and two tenants: two are guaranteed to each, and four are shared.
#[test]
fn a_tenant_with_all_the_connections_that_it_can_get_does_not_keep_another_out() {
    let _machine = machine::shared();
    let mut server = Server::start(&shared_address(8));
    let socket = server.socket("s");
    let mut held = Vec::new();
    let (handshake, kind, text) = loop {
        match Handshake::start(&socket).try_go("a") {
            Ok(client) => held.push(client),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((held.len(), kind), (6, ERR_POLICY), "{text}");
    assert!(text.starts_with("the export's tenant has as many connections"), "{text}");
    let line = server.note_with("was refused");
    assert!(
        line.starts_with("mqfq: nbd: a client of export \"a\" was refused: its tenant has 6 connections here"),
        "{line}"
    );
    // A client that was refused one export may have another; and silent clients are in no client's way.
    let mut first = handshake.go("b");
    let silent: Vec<Handshake> = (0..100).map(|_| Handshake::greeted(&socket)).collect();
    let mut second = Client::connect(&socket, "b");
    for client in [&mut first, &mut second] {
        client.write(0, &pattern(4096, 5)).unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), pattern(4096, 5));
    }
    let (_, kind, _) = Handshake::start(&socket).try_go("b").err().expect("all eight are taken");
    assert_eq!(kind, ERR_POLICY);
    for client in &mut held {
        client.read(0, 4096).unwrap();
    }
    let report = &server.report()["listeners"][0];
    assert_eq!(
        (&report["connections_refused"], &report["broken_rules"]["too_many_connections"]),
        (&2.into(), &2.into())
    );
    // 100 and the client refused last, of which 16 stay.
    assert!(report["broken_rules"]["handshake_crowded_out"].as_u64().unwrap() >= 84, "{report}");
    drop((held, first, second, silent));
    server.terminate();
}

#[test]
fn descriptors_that_come_back_serve_the_next_client() {
    let _machine = machine::shared();
    let mut server = Server::start_limited(Folder::new(), &shared_address(1000), libc::RLIMIT_NOFILE, 40);
    let socket = server.socket("s");
    let mut clients = Vec::new();
    while let Some(handshake) = Handshake::try_greeted(&socket) {
        clients.push(handshake);
        assert!(clients.len() < 40, "more clients than descriptors");
    }
    assert!(clients.len() > 5, "{} clients had a place", clients.len());
    let line = server.note_with("no file descriptor is left");
    assert!(line.ends_with("s.sock: no file descriptor is left: a client was turned away\n"), "{line}");
    assert_eq!(server.report()["listeners"][0]["connections_refused"], 1);
    let left = clients.len() - 5;
    clients.truncate(left);
    // The kernel has their descriptors back when the server has noticed.
    while server.report()["listeners"][0]["connections"] != left {}
    assert!(Handshake::try_greeted(&socket).is_some(), "the first one since then");
    drop(clients);
    server.terminate();
}

#[test]
fn an_address_costs_one_descriptor() {
    let _machine = machine::shared();
    let descriptors = |addresses: u32| {
        let mut config = "[server]\nworkers = 2\n[device.d]\nkind = \"null\"\nsize = \"1MiB\"\n[tenant.t]\n".to_owned();
        for number in 0..addresses {
            config += &format!(
                "[export.e{number}]\ndevice = \"d\"\ntenant = \"t\"\nshared = true\nnbd = \"unix:@/{number}.sock\"\n"
            );
        }
        let server = Server::start(&config);
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.ready["pid"])).unwrap().count();
        server.terminate();
        open
    };
    assert_eq!(descriptors(9) - descriptors(1), 8);
}

#[test]
fn a_write_past_the_limit_on_file_sizes_fails_alone() {
    let _machine = machine::shared();
    let folder = Folder::new();
    folder.file("disk", 4 * MIB);
    let mut config = "[server]\nworkers = 2\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\n".to_owned();
    for (name, offset) in [("near", "0"), ("far", "\"2MiB\"")] {
        config += &format!(
            "[tenant.{name}]\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\noffset = {offset}\nsize = \"2MiB\"\n\
             nbd = \"unix:@/{name}.sock\"\n"
        );
    }
    let server = Server::start_limited(folder, &config, libc::RLIMIT_FSIZE, MIB);
    let mut far = Client::connect(&server.socket("far"), "far");
    let mut near = Client::connect(&server.socket("near"), "near");
    assert_eq!(far.write(0, &[1; 8192]), Err(ENOSPC));
    near.write(0, &[2; 8192]).unwrap();
    near.flush().unwrap();
    assert_eq!((near.read(0, 1).unwrap(), far.read(0, 1).unwrap()), (vec![2], vec![0]));
    server.terminate();
}

/// A server with one export, `e`, of all of the file `disk` in `folder`.
fn serve_file(folder: Folder) -> Server {
    let config = "[server]\nworkers = 2\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\n[tenant.t]\n[export.e]\ndevice = \"d\"\n\
                  tenant = \"t\"\nnbd = \"unix:@/e.sock\"\n";
    Server::start_in(folder, config)
}

#[test]
fn a_file_that_is_cut_under_the_server_is_told_and_nothing_claims_to_be_well() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let path = folder.file("disk", MIB);
    let mut server = serve_file(folder);
    let mut client = Client::connect(&server.socket("e"), "e");
    client.write(MIB / 2, &pattern(4096, 3)).unwrap();
    client.flush().unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(MIB / 4).unwrap();
    assert_eq!(client.read(MIB / 2, 4096), Err(EIO));
    assert_eq!(client.flush(), Err(EIO));
    assert_eq!(client.write(MIB - 4096, &[1; 4096]), Err(EIO), "it would make the file long again");
    client.read(0, 4096).unwrap();
    let line = server.note_with("was cut");
    assert!(line.contains(&format!("device d: {}: was cut to ", path.display())), "{line}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB / 4);
    drop(client);
    server.terminate();
}

#[test]
fn a_file_that_is_replaced_under_the_server_is_told_and_served_on() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let (path, other) = (folder.file("disk", MIB), folder.file("other", MIB));
    let mut server = serve_file(folder);
    let mut client = Client::connect(&server.socket("e"), "e");
    client.write(0, &pattern(4096, 3)).unwrap();
    std::fs::rename(other, &path).unwrap();
    let line = server.note_with("was removed or replaced");
    assert!(line.contains(&format!("device d: {}: ", path.display())), "{line}");
    assert_eq!(client.read(0, 4096).unwrap(), pattern(4096, 3));
    assert_eq!(std::fs::read(&path).unwrap()[..4096], [0; 4096]);
    drop(client);
    server.terminate();
}

/// A tmpfs, unmounted at the end even if it is in use.
struct Mount(PathBuf);

impl Mount {
    /// `None`: this process may not.
    fn new(path: PathBuf) -> Option<Mount> {
        std::fs::create_dir(&path).unwrap();
        let target = c_string(&path);
        // SAFETY: the strings end with NUL; tmpfs takes no data.
        let result = unsafe { libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
        (result == 0).then_some(Mount(path))
    }

    /// Unmounts as `umount` does.
    fn unmount(&self) -> std::io::Result<()> {
        // SAFETY: the string ends with NUL.
        match unsafe { libc::umount2(c_string(&self.0).as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: as above. An error says that nothing is mounted there.
        unsafe { libc::umount2(c_string(&self.0).as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

#[test]
fn what_a_server_that_has_ended_served_can_be_unmounted_at_once() {
    let _machine = machine::shared();
    for direct in ["auto", "never", "auto"] {
        let folder = Folder::new();
        let Some(mount) = Mount::new(folder.join("mnt")) else {
            return println!("skipped: only root may mount");
        };
        folder.file("mnt/disk", MIB);
        let config = format!(
            "[server]\nworkers = 2\n[device.d]\nkind = \"file\"\npath = \"@/mnt/disk\"\nexpert.direct = \"{direct}\"\n[tenant.t]\n\
             [export.e]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/mnt/e.sock\"\n"
        );
        let mut server = Server::start_in(folder, &config);
        let mut client = Client::connect(&server.join("mnt/e.sock"), "e");
        client.write(1, &pattern(100_000, 1)).unwrap();
        client.flush().unwrap();
        // The client stays: to end it is the server's part.
        server.signal(libc::SIGTERM);
        let (status, stderr) = server.wait();
        assert!(status.success(), "{stderr}");
        mount.unmount().unwrap_or_else(|error| panic!("direct = {direct}: {error}"));
    }
}

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
