use super::*;
use crate::fake::Fake;
use crate::front_end::AddressFault;
use mqfq_blk::state::VERSION;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const NAMES: Names =
    Names { front_end: "test", requests: &[], rules: &["crowded"], crowded_out: 0, handshakes_max: 1024, own: &[] };

/// A client that does nothing, in its place.
struct Idle(#[expect(dead_code, reason = "it holds the place")] ConnectionSlot);

impl Client for Idle {
    mqfq_testing::ignores!(start, event, completed, turn_end, room, drain);

    fn is_done(&self) -> bool {
        false
    }
}

fn listen(address: &SocketAddress, options: ListenOptions) -> Result<SocketListener, String> {
    let idle = |place| Box::new(Idle(place)) as _;
    SocketListener::bind(address, &ExportTable::new([]).unwrap(), options, &NAMES, Box::new(idle))
}

fn bind(path: &Path) -> Result<SocketListener, String> {
    listen(&SocketAddress::Unix(path.to_owned()), ListenOptions::default())
}

/// A directory of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("mqfq-nbd-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn addresses_read_as_they_are_written() {
    let tcp = |host: &str, port| SocketAddress::Tcp { host: host.to_owned(), port };
    for (text, address) in [
        ("unix:/run/mqfq/alice.sock", SocketAddress::Unix(PathBuf::from("/run/mqfq/alice.sock"))),
        ("unix:relative:with:colons", SocketAddress::Unix(PathBuf::from("relative:with:colons"))),
        ("tcp:localhost:10809", tcp("localhost", 10809)),
        ("tcp:0.0.0.0:0", tcp("0.0.0.0", 0)),
        ("tcp:[::1]:10809", tcp("::1", 10809)),
    ] {
        assert_eq!(SocketAddress::parse(text).as_ref(), Ok(&address));
        assert_eq!(address.to_string(), text);
    }
}

#[test]
fn an_address_that_cannot_be_read_says_why() {
    for (text, why) in [
        ("", "expected unix:PATH or tcp:HOST:PORT"),
        ("/run/x.sock", "expected unix:PATH or tcp:HOST:PORT"),
        ("vsock:1:2", "expected unix:PATH or tcp:HOST:PORT"),
        ("unix:", "no path follows"),
        ("tcp:10809", "expected tcp:HOST:PORT"),
        ("tcp::10809", "it names no host"),
        ("tcp:[]:10809", "it names no host"),
        ("tcp:localhost:", "not a number from 0 to 65535"),
        ("tcp:localhost:65536", "not a number from 0 to 65535"),
        ("tcp:::1:10809", "an IPv6 number goes in brackets"),
    ] {
        let Err(AddressFault::Unreadable(fault)) = SocketAddress::parse(text) else { panic!("{text} is read") };
        assert!(fault.contains(why), "{fault}");
    }
}

#[test]
fn a_socket_has_its_permissions_and_goes_with_its_listener() {
    let directory = Directory::new("mode");
    let path = directory.socket();
    let listener = bind(&path).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    UnixStream::connect(&path).unwrap();
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_path_where_somebody_listens_is_refused() {
    let directory = Directory::new("live");
    let path = directory.socket();
    let live = UnixListener::bind(&path).unwrap();
    let error = bind(&path).err().unwrap();
    assert_eq!(error, format!("cannot listen on unix:{}: a server is already listening there", path.display()));
    drop(live);
}

#[test]
fn a_server_that_is_too_busy_to_accept_is_still_there() {
    let directory = Directory::new("busy");
    let path = directory.socket();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    // One more than the backlog waits; then a connection that may not block fails.
    let _first = UnixStream::connect(&path).unwrap();
    assert!(bind(&path).err().unwrap().contains("already listening"));
}

#[test]
fn a_socket_that_nobody_listens_on_is_replaced() {
    let directory = Directory::new("stale");
    let path = directory.socket();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves the file behind, as a killed server does");
    let _listener = bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let directory = Directory::new("file");
    let path = directory.socket();
    std::fs::write(&path, "precious").unwrap();
    assert!(bind(&path).err().unwrap().ends_with("the file exists and is not a socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_listener_does_not_unlink_the_socket_of_its_successor() {
    let directory = Directory::new("successor");
    let path = directory.socket();
    let first = bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = bind(&path).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_path_too_long_or_without_a_directory_says_so() {
    let long = SocketAddress::parse(&format!("unix:/tmp/{}", "x".repeat(108)));
    assert_eq!(long, Err(AddressFault::Refused("is too long for a socket".to_owned())));
    let error = bind(Path::new(&format!("/tmp/{}", "x".repeat(108)))).err().unwrap();
    assert!(error.contains("at most 107 bytes"), "{error}");
    let error = bind(Path::new("/nowhere/at/all/s")).err().unwrap();
    assert!(error.contains("No such file or directory"), "{error}");
}

#[test]
fn tcp_listens_on_the_port_that_the_kernel_chose() {
    let address = SocketAddress::parse("tcp:127.0.0.1:0").unwrap();
    let listener = listen(&address, ListenOptions::default()).unwrap();
    let SocketAddress::Tcp { host, port } = listener.address().clone() else { panic!("tcp stays tcp") };
    std::net::TcpStream::connect((host.as_str(), port)).unwrap();
    let error = listen(listener.address(), ListenOptions::default()).err().unwrap();
    assert!(error.contains("cannot listen on tcp:127.0.0.1:"), "{error}");
    assert!(error.contains("in use"), "{error}");
}

/// A listener on a socket of its own, on a worker that does nothing by itself.
fn listening(directory: &Directory, options: ListenOptions) -> (SocketListener, Fake) {
    let address = SocketAddress::Unix(directory.socket());
    let mut listener = listen(&address, options).unwrap();
    let mut fake = Fake::default();
    listener.start(&mut fake);
    assert_eq!(fake.accepts, 1);
    (listener, fake)
}

fn accepted(result: Result<OwnedFd, i32>) -> Event {
    Event::Accepted { user: 0, result }
}

/// Two ends of a connection: the one to be accepted, and the client's.
fn pair() -> (OwnedFd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours.into(), theirs)
}

/// The client's end says that ours was closed.
fn is_closed(mut client: &UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    matches!(client.read(&mut [0]), Ok(0))
}

#[test]
fn connections_are_handed_to_the_engine_and_the_oldest_that_says_nothing_is_closed() {
    let directory = Directory::new("limit");
    // Two connections, so 16 handshakes.
    let (mut listener, mut fake) =
        listening(&directory, ListenOptions { connections_max: 2, ..ListenOptions::default() });
    let clients: Vec<UnixStream> = (0..17)
        .map(|_| {
            let (ours, theirs) = pair();
            listener.event(&mut fake, accepted(Ok(ours)));
            theirs
        })
        .collect();
    assert_eq!((fake.attached.len(), fake.accepts), (17, 18), "and it goes on accepting");
    assert_eq!(clients.iter().map(is_closed).collect::<Vec<_>>(), [vec![true], vec![false; 16]].concat());
    // A connection that was handed over and never lived gives its place back as well.
    fake.attached.pop();
    listener.event(&mut fake, accepted(Ok(pair().0)));
    assert!(!is_closed(&clients[1]));
    let counts = listener.stats().counts();
    assert_eq!((counts.connections, counts.connections_total, counts.connections_refused), (17, 18, 0));
}

/// Number of descriptors that [`Scarce`] still gives.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// A reserve of a process that has [`LEFT`] descriptors.
fn scarce() -> Arc<Reserve> {
    Arc::new(Reserve::opened_by(|| {
        // Relaxed: one thread.
        LEFT.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        File::open("/dev/null").ok().map(OwnedFd::from)
    }))
}

#[test]
fn a_process_without_descriptors_turns_clients_away_until_there_are_some_and_then_none() {
    let directory = Directory::new("descriptors");
    // The only test that uses it. One descriptor for the reserve, then none.
    LEFT.store(1, Relaxed);
    let said = Arc::new(Mutex::new(Vec::new()));
    let log = {
        let said = said.clone();
        Arc::new(move |line: LogLine<'_>| said.lock().unwrap().push(line.text.to_owned()))
    };
    let options = ListenOptions { reserve: scarce(), log: Some(log), ..ListenOptions::default() };
    let (mut listener, mut fake) = listening(&directory, options);
    let none = || accepted(Err(Errno::MFILE.raw_os_error()));
    listener.event(&mut fake, none());
    let (ours, theirs) = pair();
    listener.event(&mut fake, accepted(Ok(ours)));
    assert!(is_closed(&theirs), "it got the reserve's");
    assert_eq!((fake.attached.len(), fake.accepts, fake.timers.len()), (0, 3, 0));
    assert_eq!(listener.stats().counts().connections_refused, 1);
    let line = format!("test: {}: no file descriptor is left: a client was turned away", listener.address());
    assert_eq!(*said.lock().unwrap(), [line]);
    // Nothing was left for the reserve, and the accept finds nothing either: it is tried again later, not at once.
    listener.event(&mut fake, none());
    assert_eq!((fake.accepts, fake.timers.len()), (3, 1));
    listener.event(&mut fake, Event::Timer { user: 0 });
    assert_eq!(fake.accepts, 4);
    // Others were closed meanwhile: the first client to come is served.
    LEFT.store(1, Relaxed);
    let (ours, theirs) = pair();
    listener.event(&mut fake, accepted(Ok(ours)));
    assert!(!is_closed(&theirs));
    assert_eq!((fake.attached.len(), fake.accepts), (1, 5));
}

#[test]
fn a_passing_error_is_passed_over_and_a_lasting_one_ends_it() {
    let directory = Directory::new("errors");
    let (mut listener, mut fake) = listening(&directory, ListenOptions::default());
    listener.event(&mut fake, accepted(Err(Errno::CONNABORTED.raw_os_error())));
    assert_eq!((listener.is_done(), fake.accepts), (false, 2));
    listener.event(&mut fake, accepted(Err(Errno::BADF.raw_os_error())));
    assert_eq!((listener.is_done(), fake.accepts), (true, 2));
}

#[test]
fn a_drained_listener_takes_nobody_any_more() {
    let directory = Directory::new("drain");
    let (mut listener, mut fake) = listening(&directory, ListenOptions::default());
    listener.drain(&mut fake);
    assert!(listener.is_done() && fake.shut_down);
    let (ours, theirs) = pair();
    listener.event(&mut fake, accepted(Ok(ours)));
    assert!(is_closed(&theirs));
    assert_eq!((fake.attached.len(), fake.accepts), (0, 1));
}

#[test]
fn a_socket_that_was_lent_is_there_again_when_its_listener_was_not_wanted_after_all() {
    let directory = Directory::new("lent");
    let path = directory.socket();
    let manager = UnixListener::bind(&path).unwrap();
    let lent = manager.try_clone().unwrap().into();
    let inherited = Arc::new(Inherited::new(vec![("s".to_owned(), lent)]));
    let address = SocketAddress::Unix(path.clone());
    let options = ListenOptions { inherited: inherited.clone(), ..ListenOptions::default() };
    for _ in 0..2 {
        let listener = listen(&address, options.clone()).unwrap();
        assert_eq!(inherited.left().len(), 0, "it is in use");
        drop(listener);
        assert_eq!(inherited.left().len(), 1, "nobody has started it");
        assert!(path.exists(), "its file is the service manager's");
    }
    let mut listener = listen(&address, options.clone()).unwrap();
    let mut fake = Fake::default();
    listener.start(&mut fake);
    Client::drain(&mut listener, &mut fake);
    assert_eq!(inherited.left().len(), 1, "once it is drained, and once alone");
    drop(listener);
    assert_eq!(inherited.left().len(), 1);
    UnixStream::connect(&path).expect("it listens on");
}

#[test]
fn connections_that_were_accepted_and_not_begun_begin_in_the_next_process() {
    let directory = Directory::new("adopted");
    let (mut listener, mut fake) = listening(&directory, ListenOptions::default());
    Client::pause(&mut listener, &mut fake);
    let clients = [pair(), pair()].map(|(ours, theirs)| {
        listener.event(&mut fake, accepted(Ok(ours)));
        theirs
    });
    let packed = Client::pack(&listener, VERSION).unwrap().unwrap().packed;
    drop(listener);
    let idle = |place| Box::new(Idle(place)) as _;
    let (address, exports) = (SocketAddress::Unix(directory.socket()), ExportTable::new([]).unwrap());
    let handed_over = HandedOver { packed, version: VERSION };
    let mut listener =
        SocketListener::adopt(&address, handed_over, &exports, ListenOptions::default(), &NAMES, Box::new(idle))
            .unwrap();
    let mut fake = Fake::default();
    listener.start(&mut fake);
    assert_eq!((fake.attached.len(), fake.accepts), (2, 1));
    assert!(!clients.iter().any(is_closed));
}

#[test]
fn a_client_that_passes_a_descriptor_where_none_is_taken_is_refused_by_the_kernel() {
    use mqfq_testing::stranger::pass;
    let directory = Directory::new("passed");
    let mut listener = bind(&directory.socket()).unwrap();
    if !mqfq_blk::passed::refuse(&listener.listening.socket) {
        println!("skipped: this kernel is older than Linux 6.16");
        return;
    }
    // Before the listener begins, and after.
    let early = UnixStream::connect(directory.socket()).unwrap();
    let mut fake = Fake::default();
    listener.start(&mut fake);
    let late = UnixStream::connect(directory.socket()).unwrap();
    for _ in 0..2 {
        let accepted = rustix::net::accept(&listener.listening.socket).unwrap();
        listener.event(&mut fake, Event::Accepted { user: 0, result: Ok(accepted) });
    }
    let file = File::open("/dev/null").unwrap();
    for client in [&early, &late] {
        assert_eq!(pass(client, b"x", &[std::os::fd::AsFd::as_fd(&file)]), Err(Errno::PERM));
        assert_eq!(pass(client, b"x", &[]), Ok(()));
    }
    drop(fake.attached);
}
