//! Another process takes the server's place: no client notices, and if it does not come up nothing has happened.

use crate::client::{CMD_READ, CMD_WRITE, Client, Handshake, Request};
use crate::control;
use crate::server::{Folder, Fuse, PATIENCE, Server, arg, command, ended, pattern};
use mqfq_testing::tools::{need, uri};
use mqfq_testing::{machine, user};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A file, memory and a modelled drive, each with an export of 16 MiB.
const CONFIG: &str = r#"
[server]
workers = 2
upgrade = "unix:@/upgrade.sock"
[control]
listen = "unix:@/control.sock"
[device.file]
kind = "file"
path = "@/disk"
[device.memory]
kind = "memory"
size = "16MiB"
[device.drive]
kind = "model"
preset = "flash-460k"
size = "16MiB"
[tenant.t]
[export.file]
device = "file"
tenant = "t"
nbd = "unix:@/file.sock"
[export.memory]
device = "memory"
tenant = "t"
nbd = "unix:@/memory.sock"
[export.drive]
device = "drive"
tenant = "t"
nbd = "unix:@/drive.sock"
"#;

const NAMES: [&str; 3] = ["file", "memory", "drive"];

fn start() -> Server {
    Server::start_in(with_disk(), CONFIG)
}

/// A folder with the file of the file device.
fn with_disk() -> Folder {
    let folder = Folder::new();
    drop(folder.file("disk", 16 * MIB));
    folder
}

fn connect(server: &Server, name: &str) -> Client {
    Client::connect(&server.socket(name), name)
}

/// Writes and reads back what only this place has.
fn works(client: &mut Client, place: u8) {
    let bytes = pattern(8192, place);
    client.write(u64::from(place) * 8192, &bytes).unwrap();
    assert!(client.read(u64::from(place) * 8192, 8192).unwrap() == bytes);
}

/// Checks that [`works`] has written this place.
fn has(client: &mut Client, place: u8) {
    assert!(client.read(u64::from(place) * 8192, 8192).unwrap() == pattern(8192, place), "place {place}");
}

#[test]
fn fio_verifies_through_twenty_upgrades() {
    need!("fio");
    let _machine = machine::shared();
    let mut server = start();
    let jobs: String =
        NAMES.iter().map(|name| format!("[{name}]\nuri={}\n", uri(&server.socket(name), name))).collect();
    let job = format!(
        "[global]\nioengine=nbd\nthread\nrw=randwrite\nbssplit=4k/60:16k/20:64k/10:256k/10\nblockalign=4k\n\
         iodepth=16\nsize=16m\nverify=crc32c\nverify_backlog=64\nverify_fatal=1\nverify_state_save=0\n\
         randseed=3\nloops=1000000\nrate_iops=3000\n{jobs}"
    );
    let aside = Folder::new();
    std::fs::write(aside.join("job.fio"), job).unwrap();
    let mut fio = Command::new("fio");
    fio.args(["--output-format=json", &format!("--output={}", arg(&aside.join("report")))]);
    let mut fio = fio.arg(format!("--aux-path={}", arg(&aside.join("")))).arg(aside.join("job.fio")).spawn().unwrap();
    // Each job has a connection before the first upgrade.
    let connections = |server: &mut Server| {
        let report = server.report();
        report["listeners"].as_array().unwrap().iter().map(|it| it["connections"].as_u64().unwrap()).sum::<u64>()
    };
    while connections(&mut server) < 3 {
        assert!(fio.try_wait().unwrap().is_none(), "fio ended at once");
    }
    let mut pauses_us = Vec::new();
    for _ in 0..20 {
        server = server.replace(CONFIG);
        assert_eq!(server.ready["replaced"]["connections"], 3, "{}", server.ready);
        pauses_us.push(server.ready["replaced"]["pause_us"].as_u64().unwrap());
    }
    assert!(fio.try_wait().unwrap().is_none(), "fio ended before the last upgrade");
    // SAFETY: the child is ours and not yet waited for, so its number is still its own.
    unsafe { libc::kill(fio.id() as libc::pid_t, libc::SIGINT) };
    ended(&mut fio);
    let text = std::fs::read_to_string(aside.join("report")).unwrap();
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    for job in report["jobs"].as_array().unwrap() {
        assert_eq!(job["error"], 0, "{job:#}");
        assert!(job["write"]["io_bytes"].as_u64().unwrap() > 0 && job["read"]["io_bytes"].as_u64().unwrap() > 0);
    }
    pauses_us.sort();
    println!("pauses of 20 upgrades with 3 connections of depth 16: {pauses_us:?} us");
    drop(server.terminate());
}

#[test]
fn bytes_and_connections_of_every_device_are_there_again_wherever_the_client_is() {
    let _machine = machine::shared();
    let mut server = start();
    let mut clients = NAMES.map(|name| connect(&server, name));
    clients.iter_mut().for_each(|client| works(client, 1));
    // One in the middle of its handshake, one of a header, one of a payload.
    let handshake = Handshake::start(&server.socket("drive"));
    let mut halves = [connect(&server, "file"), connect(&server, "memory")];
    let bytes = pattern(200_000, 9);
    let request = Request { cookie: 5, offset_bytes: MIB, length_bytes: 200_000, ..Request::of(CMD_WRITE) };
    let whole = [request.header(), bytes.clone()].concat();
    for (half, cut) in halves.iter_mut().zip([11, 150_001]) {
        half.stream.write_all(&whole[..cut]).unwrap();
    }
    for place in 2..5 {
        server = server.replace(CONFIG);
        for client in &mut clients {
            has(client, place - 1);
            works(client, place);
        }
    }
    for (half, cut) in halves.iter_mut().zip([11, 150_001]) {
        half.stream.write_all(&whole[cut..]).unwrap();
        assert_eq!(half.reply().unwrap().cookie, 5);
        assert!(half.read(MIB, 200_000).unwrap() == bytes);
    }
    works(&mut handshake.go("drive"), 7);
    // The control plane is the new one's, at the same socket.
    let mut control = UnixStream::connect(server.join("control.sock")).unwrap();
    control.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    control.write_all(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut status = String::new();
    control.read_to_string(&mut status).unwrap();
    let pid = &server.ready["pid"];
    assert!(status.contains(&format!("\"pid\":{pid}")) || status.contains(&format!("\"pid\": {pid}")), "{status}");
    // Newcomers find the listeners, which stay the file's owners to the end.
    works(&mut connect(&server, "file"), 8);
    let sockets = [server.socket("file"), server.join("upgrade.sock"), server.join("control.sock")];
    assert!(sockets.iter().all(|socket| socket.exists()));
    drop((clients, halves));
    server.signal(libc::SIGTERM);
    server.next_line();
    server.next_line();
    server.wait();
    assert!(!sockets.iter().any(|socket| socket.exists()), "they went with the last of the servers");
}

#[test]
fn a_client_that_reads_nothing_gets_all_its_replies_from_the_next_process() {
    let _machine = machine::shared();
    let mut server = start();
    works(&mut connect(&server, "memory"), 0);
    let mut stuck = connect(&server, "memory");
    let mut receiver = stuck.split();
    for cookie in 0..64 {
        stuck.send(Request { cookie, length_bytes: 100_000, ..Request::of(CMD_READ) }, &[]).unwrap();
    }
    let mut other = connect(&server, "file");
    for place in 1..3 {
        works(&mut other, place);
        server = server.replace(CONFIG);
    }
    let mut cookies: Vec<u64> = (0..64)
        .map(|_| {
            let reply = receiver.reply().expect("a reply");
            let mut data = vec![0; 100_000];
            receiver.stream.read_exact(&mut data).unwrap();
            assert!(data[..8192] == pattern(8192, 0));
            reply.cookie
        })
        .collect();
    cookies.sort();
    assert_eq!(cookies, (0..64).collect::<Vec<u64>>());
    drop(server.terminate());
}

#[test]
fn a_server_that_does_not_come_up_changes_nothing_and_says_why() {
    let _machine = machine::shared();
    let mut server = start();
    let mut client = connect(&server, "file");
    let mut expect = |config: String, sentence: &str| {
        works(&mut client, 1);
        let said = server.fail_to_replace(&config);
        assert!(said.contains(sentence), "{said}");
        // A start may also say something about the drive below the file.
        let sentences: Vec<&str> = said.lines().filter(|line| !line.contains("/sys/block/")).collect();
        assert_eq!(sentences.len(), 1, "{said}");
        has(&mut client, 1);
    };
    expect(CONFIG.replace("[tenant.t]", "[tenant.t"), "config.toml:");
    expect(CONFIG.replace("upgrade = ", "#"), "the config has no server.upgrade");
    expect(CONFIG.replace("@/upgrade.sock", "@/elsewhere.sock"), "cannot replace the server at unix:");
    expect(CONFIG.replace("path = \"@/disk\"", "path = \"@/gone\""), "gone: No such file or directory");
    let other = "export \"file\" has a connection and another size than its client was told";
    expect(CONFIG.replace("device = \"file\"\n", "device = \"file\"\nsize = \"1MiB\"\n"), other);
    let gone = CONFIG.replace("[export.file]", "[export.other]");
    expect(gone, "export \"file\" has a connection and is no longer there");
    let larger = CONFIG.replace("kind = \"memory\"\nsize = \"16MiB\"", "kind = \"memory\"\nsize = \"17MiB\"");
    expect(larger, "device memory had 16777216 bytes there and has 17825792 here");
    // The server has said so too.
    server.note_with("not replaced: device memory had 16777216 bytes there and has 17825792 here");
    // The file is still locked, and the sockets are there.
    works(&mut connect(&server, "file"), 2);
    let mut server = server.replace(CONFIG);
    has(&mut client, 1);
    assert!(server.report()["devices"].is_array());
    drop(server.terminate());
}

#[test]
fn a_client_that_waits_for_its_cap_holds_no_upgrade_up() {
    let _machine = machine::shared();
    let folder = with_disk();
    // One request in a second, and 20 are asked for.
    let config = CONFIG.replace("[tenant.t]", "[tenant.t]\nmax-iops = 1");
    let server = Server::start_in(folder, &config);
    let mut client = connect(&server, "memory");
    for cookie in 0..20 {
        client.send(Request { cookie, length_bytes: 512, ..Request::of(CMD_READ) }, &[]).unwrap();
    }
    assert_eq!(client.reply().unwrap().cookie, 0);
    client.stream.read_exact(&mut [0; 512]).unwrap();
    let server = server.replace(&config);
    assert_eq!(server.ready["replaced"]["connections"], 1);
    assert_eq!(client.reply().unwrap().cookie, 1);
}

#[test]
fn a_handshake_that_crosses_an_upgrade_is_still_of_the_user_that_began_it() {
    if !user::is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let _machine = machine::shared();
    let config = CONFIG
        .replace("workers = 2\n", "workers = 2\nsocket-mode = \"666\"\n")
        .replace("[export.drive]\n", "[export.drive]\nallow-uids = [999, 1000]\n");
    let mut server = Server::start_in(with_disk(), &config);
    let [welcome, other] =
        [1000, 1001].map(|uid| user::as_user(uid, uid, || Handshake::start(&server.socket("drive"))));
    server = server.replace(&config);
    works(&mut welcome.go("drive"), 1);
    assert!(other.try_go("drive").is_err());
    server.terminate();
}

/// Another server asks for the disk of this one, and is told which process has it.
fn is_held(server: &Server) {
    let aside = Folder::new();
    let disk = arg(&server.join("disk")).to_owned();
    let other = CONFIG.replace("@/disk", &disk).replace("upgrade = ", "#");
    let output = command(&aside, &other).output().expect("the binary is built");
    let said = String::from_utf8(output.stderr).unwrap();
    let holder = format!("{disk}: is served by process {}\n", server.id());
    assert!(output.status.code() == Some(1) && said.ends_with(&holder), "{said}");
}

#[test]
fn the_process_that_serves_holds_the_file_after_an_upgrade_and_after_the_next() {
    let _machine = machine::shared();
    let mut server = start();
    for _ in 0..3 {
        is_held(&server);
        server = server.replace(CONFIG);
    }
    is_held(&server);
    server.terminate();
}

#[test]
fn a_process_of_another_user_neither_reaches_the_socket_for_upgrades_nor_is_heard_there() {
    if !user::is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let _machine = machine::shared();
    let mut server = start();
    let socket = server.join("upgrade.sock");
    let connect = || user::as_user(1000, 1000, || UnixStream::connect(&socket));
    assert_eq!(connect().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    // As if the permissions had been opened.
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    let (kind, sentence) = hear(&mut connect().unwrap()).unwrap();
    let refused = "user 1000 may not replace a server of user 0, allowed is that user, or root";
    assert_eq!((kind, &String::from_utf8(sentence).unwrap()[..]), (3, refused));
    server.note_with(&format!("not replaced: {refused}"));
    works(&mut self::connect(&server, "file"), 1);
    server.terminate();
}

/// A message of the protocol between two servers: number, body; what comes with it is closed.
fn say(stream: &mut UnixStream, kind: u32, body: &[u8]) {
    let header = [kind.to_be_bytes(), (body.len() as u32).to_be_bytes()].concat();
    stream.write_all(&[&header, body].concat()).unwrap();
}

fn hear(stream: &mut UnixStream) -> Option<(u32, Vec<u8>)> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).ok()?;
    let [kind, length] = [&header[..4], &header[4..]].map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).ok()?;
    Some((kind, body))
}

fn meet(server: &Server, oldest: u16, newest: u16) -> UnixStream {
    let mut stream = UnixStream::connect(server.join("upgrade.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut hello = b"mqfq-new".to_vec();
    hello.extend(oldest.to_be_bytes());
    hello.extend(newest.to_be_bytes());
    hello.extend(7_u32.to_be_bytes());
    say(&mut stream, 1, &hello);
    stream
}

/// A process that has the state, and all of it.
fn take(server: &Server) -> UnixStream {
    let mut stream = meet(server, 1, 1);
    assert_eq!(hear(&mut stream).unwrap().0, 2, "Welcome");
    say(&mut stream, 4, &[]);
    let kinds = [hear(&mut stream).unwrap().0, hear(&mut stream).unwrap().0];
    assert_eq!(kinds, [5, 6], "the state, and the descriptors that it is about");
    stream
}

#[test]
fn a_process_that_dies_or_is_strange_before_and_while_it_takes_over_leaves_the_server_as_it_was() {
    let _machine = machine::shared();
    let mut server = start();
    let mut client = connect(&server, "file");
    // A process of unknown versions is refused; the next version knows this one as well.
    let (kind, sentence) = hear(&mut meet(&server, 5, 6)).unwrap();
    let sentence = String::from_utf8(sentence).unwrap();
    let expected = "process 7 knows versions 5 to 6 of the state, the server that runs knows 1 to 4";
    assert_eq!((kind, &sentence[..]), (3, expected));
    server.note_with(expected);
    let (kind, welcome) = hear(&mut meet(&server, 4, 5)).unwrap();
    assert_eq!((kind, &welcome[..2]), (2, &[0, 4][..]));
    server.note_with("not replaced: process 7 gave up: the other process has ended");
    // Bytes that are not a message.
    UnixStream::connect(server.join("upgrade.sock")).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    server.note_with("not replaced: the other process does not speak as one of ours");
    // It dies when it has the state.
    works(&mut client, 1);
    let stream = take(&server);
    // While it has it, the client waits; its request is answered by the process that serves then.
    client.send(Request { cookie: 4, length_bytes: 8192, offset_bytes: 8192, ..Request::of(CMD_READ) }, &[]).unwrap();
    drop(stream);
    server.note_with("not replaced: the other process has ended");
    assert_eq!(client.reply().unwrap().cookie, 4);
    client.stream.read_exact(&mut [0; 8192]).unwrap();
    has(&mut client, 1);
    // It gets everything, and refuses it in the end.
    let mut stream = take(&server);
    say(&mut stream, 3, b"of this reason");
    server.note_with("not replaced: of this reason");
    works(&mut client, 2);
    let mut server = server.replace(CONFIG);
    has(&mut client, 2);
    assert!(server.report()["devices"].is_array());
    drop(server.terminate());
}

/// Descriptors that a service manager keeps, by name.
fn stored(socket: &UnixDatagram) -> Vec<(String, OwnedFd)> {
    stored_beside(Vec::new(), socket)
}

/// [`stored`], where the manager keeps something already and does one thing that it is told after the other.
fn stored_beside(mut all: Vec<(String, OwnedFd)>, socket: &UnixDatagram) -> Vec<(String, OwnedFd)> {
    loop {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
                .expect("the server tells its manager");
        let text = std::str::from_utf8(&text[..received.bytes]).unwrap().to_owned();
        let descriptors: Vec<OwnedFd> = control
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(passed) => passed.collect::<Vec<_>>(),
                _ => Vec::new(),
            })
            .collect();
        if text.starts_with("BARRIER=1") {
            // The end of the pipe is closed here.
            return all;
        }
        // It says other things as well: that it is ready, that it ends.
        let Some(name) = text.lines().find_map(|line| line.strip_prefix("FDNAME=")) else { continue };
        if text.starts_with("FDSTOREREMOVE=1") {
            all.retain(|(other, _)| other != name);
            continue;
        }
        assert!(text.contains("FDSTORE=1") && text.contains("FDPOLL=0"), "{text}");
        all.extend(descriptors.into_iter().map(|descriptor| (name.to_owned(), descriptor)));
    }
}

/// The next `count` names that it need not keep any longer.
fn removed(socket: &UnixDatagram, count: usize) -> Vec<String> {
    let mut text = [0; 4096];
    let mut next = || loop {
        let length = socket.recv(&mut text).expect("the server tells its manager");
        let text = std::str::from_utf8(&text[..length]).unwrap();
        if let Some(name) = text.strip_prefix("FDSTOREREMOVE=1\nFDNAME=") {
            return name.trim_end().to_owned();
        }
    };
    (0..count).map(|_| next()).collect()
}

/// A folder with the disk, and the socket in it that systemd hears a server on.
fn with_manager() -> (Folder, UnixDatagram) {
    let folder = with_disk();
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    (folder, manager)
}

/// A server of `folder` as systemd starts it: with the stored descriptors, from number 3 on.
fn by_manager(folder: Folder, config: &str, kept: Vec<(String, OwnedFd)>, room: &str) -> Server {
    let made = command(&folder, config);
    let mut shell = Command::new("/bin/sh");
    let names: Vec<&str> = kept.iter().map(|(name, _)| &name[..]).collect();
    shell.env("NOTIFY_SOCKET", folder.join("notify")).env("FDSTORE", room);
    if names.is_empty() {
        // As systemd starts a server for which it keeps nothing.
        shell.args(["-c", "exec \"$@\"", "sh"]);
    } else {
        shell.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]);
        shell.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    shell.arg(made.get_program()).args(made.get_args());
    // SAFETY: between fork and exec it makes system calls alone. The copies above all others come first, so that none
    // is closed by those that take its number.
    unsafe {
        shell.pre_exec(move || {
            let high: Vec<i32> =
                kept.iter().map(|(_, descriptor)| libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD, 500)).collect();
            for (place, descriptor) in high.into_iter().enumerate() {
                if libc::dup2(descriptor, 3 + place as i32) < 0 || libc::close(descriptor) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        })
    };
    Server::start_by(folder, shell)
}

#[test]
fn a_restart_by_systemd_goes_through_its_descriptor_store() {
    let _machine = machine::shared();
    let (folder, manager) = with_manager();
    let server = by_manager(folder, CONFIG, Vec::new(), "64");
    let mut clients = NAMES.map(|name| connect(&server, name));
    clients.iter_mut().for_each(|client| works(client, 1));
    server.signal(libc::SIGTERM);
    let mut kept = stored(&manager);
    let (line, folder) = server.leaves();
    // Three sockets and the connections of each, two sockets for servers and people, the file, two devices' bytes, the
    // state.
    assert_eq!((line["stored"].as_u64(), kept.len()), (Some(12), 12), "{line}");
    // In another order than they came.
    kept.reverse();
    // No process serves; a client's request is answered by the next server.
    clients[0]
        .send(Request { cookie: 4, length_bytes: 8192, offset_bytes: 8192, ..Request::of(CMD_READ) }, &[])
        .unwrap();
    let all = kept.len();
    // The manager has other things to do: more is said than its queue holds, and the server does not wait for it.
    let mut server = by_manager(folder, CONFIG, kept, "64");
    let forgotten = removed(&manager, all);
    assert_eq!((forgotten[0].as_str(), forgotten.len()), ("mqfq-state", all));
    assert_eq!(clients[0].reply().unwrap().cookie, 4);
    clients[0].stream.read_exact(&mut [0; 8192]).unwrap();
    clients.iter_mut().for_each(|client| has(client, 1));
    clients.iter_mut().for_each(|client| works(client, 2));
    works(&mut connect(&server, "drive"), 3);
    is_held(&server);
    // A server of the store can be replaced as any other, and its manager is told the new process.
    server = server.replace(CONFIG);
    let process = format!("MAINPID={}\n", server.id());
    let mut text = [0; 4096];
    while manager.recv(&mut text).map(|length| &text[..length] != process.as_bytes()).expect("it is told") {}
    clients.iter_mut().for_each(|client| has(client, 2));
    drop(clients);
    server.terminate();
}

#[test]
fn a_restart_while_systemd_has_not_forgotten_the_last_one_mixes_nothing_up() {
    let _machine = machine::shared();
    let (folder, manager) = with_manager();
    let server = by_manager(folder, CONFIG, Vec::new(), "512");
    let mut clients = NAMES.map(|name| connect(&server, name));
    clients.iter_mut().for_each(|client| works(client, 1));
    // So many that systemd is still being told when the second restart comes.
    let crowd: Vec<Client> = (0..300).map(|_| connect(&server, "memory")).collect();
    server.signal(libc::SIGTERM);
    let kept = stored(&manager);
    let (_, folder) = server.leaves();
    let copy = |(name, descriptor): &(String, OwnedFd)| (name.clone(), descriptor.try_clone().unwrap());
    let copies = kept.iter().map(copy).collect();
    // The manager is busy: its queue holds names to forget, and has no room for all of them.
    let server = by_manager(folder, CONFIG, kept, "512");
    clients.iter_mut().for_each(|client| works(client, 2));
    server.signal(libc::SIGTERM);
    let kept = stored_beside(copies, &manager);
    let (line, folder) = server.leaves();
    let names: BTreeSet<&str> = kept.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!((line["stored"].as_u64(), kept.len(), names.len()), (Some(312), 312, 312), "{line} {names:?}");
    let server = by_manager(folder, CONFIG, kept, "512");
    clients.iter_mut().for_each(|client| has(client, 2));
    removed(&manager, 312);
    drop((clients, crowd));
    server.terminate();
}

#[test]
fn what_was_never_saved_stops_no_start_and_the_state_is_used_once() {
    let _machine = machine::shared();
    let (folder, manager) = with_manager();
    // As if another device, an address and two exports had been added over the API.
    let added = "[device.more]\nkind = \"memory\"\nsize = \"1MiB\"\n\
                 [export.more]\ndevice = \"more\"\ntenant = \"t\"\nnbd = [\"unix:@/more.sock\", \"unix:@/file.sock\"]\n";
    let server = by_manager(folder, &format!("{CONFIG}{added}"), Vec::new(), "64");
    let mut client = connect(&server, "file");
    let mut others = [connect(&server, "more"), Client::connect(&server.socket("file"), "more")];
    others.iter_mut().for_each(|client| works(client, 1));
    works(&mut client, 1);
    server.signal(libc::SIGTERM);
    let kept = stored(&manager);
    let (all, state) = (kept.len(), kept.iter().find(|(name, _)| name == "mqfq-state").unwrap().1.try_clone().unwrap());
    let (_, folder) = server.leaves();
    let mut server = by_manager(folder, CONFIG, kept, "64");
    for sentence in [
        "and closed: a connection to unix:",
        "and closed: device more is served and the config has none of this name",
        "more.sock has connections and is no longer listened on",
    ] {
        server.note_with(sentence);
    }
    removed(&manager, all);
    assert!(others.iter_mut().all(Client::is_closed));
    has(&mut client, 1);
    works(&mut client, 2);
    // A manager that has not heard that it need not keep the state gives it to the next server as well.
    let folder = server.kill_nine();
    let server = by_manager(folder, CONFIG, vec![("mqfq-state".to_owned(), state)], "64");
    assert_eq!(removed(&manager, 1), ["mqfq-state"]);
    has(&mut connect(&server, "file"), 2);
}

#[test]
fn a_store_that_is_too_small_or_of_another_version_is_refused_in_a_sentence() {
    let _machine = machine::shared();
    let folder = with_disk();
    let _manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    let mut server = by_manager(folder, CONFIG, Vec::new(), "3");
    server.signal(libc::SIGTERM);
    server.note_with("not stored: systemd stores 3 descriptors and 9 are needed: raise FileDescriptorStoreMax");
    assert_eq!(server.next_line()["draining"], true);
    let (status, _) = server.wait();
    assert!(status.success());
}

/// fio with a verified job on each of some exports, until it is told to end.
struct Fio {
    child: Child,
    aside: Folder,
}

impl Fio {
    fn start(server: &Server, names: &[String]) -> Fio {
        let aside = Folder::new();
        let seeds = 1..;
        let jobs = names.iter().zip(seeds).map(|(name, seed)| {
            // QEMU 7.2 mixes up the bytes of writes that are under way on FUSE at once: fio sees it without us.
            let how =
                if name == "e38" { "iodepth=1\nbssplit=4k/100" } else { "iodepth=8\nbssplit=4k/70:16k/20:64k/10" };
            format!("[{name}]\nuri={}\nrandseed={seed}\n{how}\n", uri(&server.socket("all"), name))
        });
        let job = format!(
            "[global]\nioengine=nbd\nthread\nrw=randwrite\nblockalign=4k\n\
             size=3m\nverify=crc32c\nverify_backlog=64\nverify_fatal=1\nverify_state_save=0\nloops=1000000\n\
             rate_iops=20\n{}",
            jobs.collect::<String>()
        );
        std::fs::write(aside.join("job.fio"), job).unwrap();
        let mut fio = Command::new("fio");
        fio.args(["--output-format=json", &format!("--output={}", arg(&aside.join("report")))]);
        fio.arg(format!("--aux-path={}", arg(&aside.join("")))).arg(aside.join("job.fio"));
        Fio { child: fio.stderr(Stdio::null()).spawn().unwrap(), aside }
    }

    /// Ends it. Of each job: its error, its bytes, and the 99th percentile of its writes, us.
    fn end(mut self) -> Vec<(u64, u64, u64)> {
        // SAFETY: the child is ours and not yet waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
        ended(&mut self.child);
        let text = std::fs::read_to_string(self.aside.join("report")).unwrap();
        let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let job = |job: &Value| {
            let p99_ns = number(&job["write"]["clat_ns"]["percentile"]["99.000000"]);
            let bytes = number(&job["write"]["io_bytes"]).min(number(&job["read"]["io_bytes"]));
            (number(&job["error"]), bytes, p99_ns / 1000)
        };
        report["jobs"].as_array().unwrap().iter().map(job).collect()
    }
}

/// Forty exports of one pool are written and verified at once, while one backing fails, one hangs, and two more come
/// and go, through an upgrade: nothing is lost, and no byte is in another backing. `MQFQ_FORTY_S`: seconds of each
/// half, the first without faults. `cargo xtask soak` sets it; the suite leaves it out.
#[test]
fn i17_forty_exports_verify_beside_one_that_fails_one_that_hangs_and_two_that_come_and_go() {
    let Ok(seconds) = std::env::var("MQFQ_FORTY_S") else { return println!("left out: MQFQ_FORTY_S is not set") };
    need!("fio", "qemu-storage-daemon");
    let half = Duration::from_secs(seconds.parse().expect("a number"));
    let _machine = machine::shared();
    const SIZE: u64 = 4 * MIB;
    const GUARD: u64 = MIB / 16;
    let folder = Folder::new();
    std::fs::create_dir(folder.join("images")).unwrap();
    let names: Vec<String> = (0..40).map(|number| format!("e{number}")).collect();
    let guard = pattern(GUARD as usize, 9);
    let fuse = Fuse::start(&folder, "images/e38", SIZE + GUARD);
    let image = |name: &str| match name {
        "e38" => "behind".to_owned(),
        name => format!("images/{name}"),
    };
    for name in names.iter().map(String::as_str).chain(["x0", "x1", "beside"]) {
        let path = folder.join(&image(name));
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.set_len(SIZE + GUARD).unwrap();
        file.write_all_at(&guard, SIZE).unwrap();
    }
    let mut text = "[server]\nworkers = 2\nupgrade = \"unix:@/upgrade.sock\"\n[control]\nlisten = \
                    \"unix:@/control.sock\"\n[device.ssd]\nkind = \"pool\"\nfolders = [\"@/images\"]\ntimeout = \"1s\"\n\
                    expert.depth = 64\n[tenant.x]\n"
        .to_owned();
    for name in &names {
        text += &format!(
            "[tenant.{name}]\n[export.{name}]\ndevice = \"ssd\"\ntenant = \"{name}\"\nsize = {SIZE}\n\
             path = \"@/images/{name}\"\nnbd = \"unix:@/all.sock\"\n"
        );
    }
    let mut server = Server::start_in(folder, &text);
    let connect = |server: &Server, name: &str| Client::connect(&server.socket("all"), name);
    // Behind the bytes of fio.
    let kept = pattern(8192, 5);
    for name in &names {
        let mut client = connect(&server, name);
        client.write(SIZE - 8192, &kept).unwrap();
        client.flush().unwrap();
    }
    let (well, ill) = (&names[..38], &names[38..]);
    let fio = Fio::start(&server, &names);
    std::thread::park_timeout(half);
    let before = fio.end();
    assert!(before.iter().all(|(error, bytes, _)| *error == 0 && *bytes > 0), "{before:?}");

    let (others, own) = (Fio::start(&server, well), Fio::start(&server, ill));
    let begun = Instant::now();
    std::thread::park_timeout(half / 4);
    let said = |server: &Server, args: &[&str]| control::said(&control::ctl(server, args));
    let ails = |server: &Server, path: &str, state: &str| {
        let status: Value = serde_json::from_str(&said(server, &["status", "--json"])).unwrap();
        status["troubled"][format!("ssd: {}", server.join(path).display())] == state
    };
    // First: no look at the others comes while a look at one hangs.
    let failing = File::options().write(true).open(server.join("images/e39")).unwrap();
    failing.set_len(0).unwrap();
    while !ails(&server, "images/e39", "cut") {
        assert!(begun.elapsed() < PATIENCE);
    }
    fuse.signal(libc::SIGSTOP);
    let mut stopped = connect(&server, "e38");
    let ask = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
    (0..40).for_each(|_| stopped.send(ask, &[]).unwrap());
    while !ails(&server, "images/e38", "hanging") {
        assert!(begun.elapsed() < 2 * PATIENCE);
    }
    println!("both ail after {:.1} s: {}", begun.elapsed().as_secs_f64(), crate::why::said(&server, "e38").trim());
    let mut rounds = 0;
    let nbd = format!("unix:{}", server.socket("all").display());
    let size = SIZE.to_string();
    let mut come_and_go = |server: &Server, least: usize, until: Duration| {
        for round in 0.. {
            if round >= least && begun.elapsed() >= until {
                break;
            }
            for name in ["x0", "x1"] {
                let image = server.join(&format!("images/{name}"));
                let args = ["export", "add", name, "--device", "ssd", "--tenant", "x", "--path", arg(&image)];
                said(server, &[&args[..], &["--size", &size, "--nbd", &nbd]].concat());
                let mut client = connect(server, name);
                client.write(8192 * (rounds % 64), &pattern(8192, rounds as u8)).unwrap();
                client.flush().unwrap();
                assert!(client.read(8192 * (rounds % 64), 8192).unwrap() == pattern(8192, rounds as u8));
                said(server, &["export", "rm", name]);
                assert!(client.is_closed());
            }
            rounds += 1;
        }
    };
    come_and_go(&server, 3, half / 2);
    // A server that would take over waits for the backing, and the one that serves serves on.
    let mut waiting = command(server.folder(), &text);
    let mut waiting = waiting.arg("--replace").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    come_and_go(&server, 3, half * 3 / 4);
    println!("an upgrade while one hangs: {:?}", waiting.try_wait().unwrap());
    let _ = waiting.kill();
    let _ = waiting.wait();
    assert!(ails(&server, "images/e38", "hanging"));
    fuse.signal(libc::SIGCONT);
    while ails(&server, "images/e38", "hanging") {
        assert!(begun.elapsed() < 4 * PATIENCE);
    }
    failing.set_len(SIZE + GUARD).unwrap();
    failing.write_all_at(&guard, SIZE).unwrap();
    server = server.replace(&text);
    println!("upgrade: pause of {} us", server.ready["replaced"]["pause_us"]);
    come_and_go(&server, 3, half);
    let (others, own) = (others.end(), own.end());
    assert!(others.iter().all(|(error, bytes, _)| *error == 0 && *bytes > 0), "{others:?}");
    assert!(own.iter().all(|(error, ..)| *error != libc::EILSEQ as u64), "{own:?}");
    // It is as it was until it is opened anew.
    assert!(connect(&server, "e39").flush().is_err());
    said(&server, &["export", "reopen", "e39"]);
    connect(&server, "e39").flush().unwrap();
    for name in &names[..39] {
        assert!(connect(&server, name).read(SIZE - 8192, 8192).unwrap() == kept, "{name}");
    }
    let bytes = |name: &str, offset_bytes: u64, length: u64| {
        let mut bytes = vec![0; length as usize];
        File::open(server.join(&image(name))).unwrap().read_exact_at(&mut bytes, offset_bytes).unwrap();
        bytes
    };
    for name in names.iter().map(String::as_str).chain(["x0", "x1", "beside"]) {
        assert!(bytes(name, SIZE, GUARD) == guard, "{name}: its guard");
    }
    assert!(bytes("beside", 0, SIZE).iter().all(|byte| *byte == 0));
    let of = |jobs: &[(u64, u64, u64)]| {
        let mut p99_us: Vec<u64> = jobs.iter().map(|(.., p99_us)| *p99_us).collect();
        p99_us.sort();
        let mib = jobs.iter().map(|(_, bytes, _)| bytes).sum::<u64>() / MIB;
        format!(
            "p99 of writes by export: median {} us, most {} us; {mib} MiB",
            p99_us[p99_us.len() / 2],
            p99_us[p99_us.len() - 1]
        )
    };
    println!("load {}", std::fs::read_to_string("/proc/loadavg").unwrap().trim());
    println!("forty, none ails:       {}", of(&before));
    println!("38 beside the ailing:   {}", of(&others));
    println!(
        "the two ended with errors {:?}; {rounds} rounds of two that came and went",
        own.iter().map(|(error, ..)| error).collect::<Vec<_>>()
    );
    drop(server.terminate());
}
