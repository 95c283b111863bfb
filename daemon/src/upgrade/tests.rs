//! Both sides of an upgrade against another process that misbehaves.
//!
//! The other process is [`Fake`]: its messages are in the socket before they are read, so no test waits for a thread.

use super::handover::{HandedClient, Opened};
use super::new::Inherited;
use super::old::{Outcome, hand_over_within, meet, packed, roll_back, send};
use super::wire::memory_file;
use super::wire::{DESCRIPTORS_MAX, Hello, Kind, Link, Message};
use super::*;
use mqfq_blk::client::{Client, Context, Packed, PackedClient};
use mqfq_blk::device::Device;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{Engine, EngineOptions};
use mqfq_blk::state::{VERSION, VERSIONS};
use mqfq_testing::{Folder, user};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// The other process.
struct Fake(Link);

impl Fake {
    /// A fake, and this process' end of the connection.
    fn new() -> (Fake, Link) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Fake(Link::new(theirs).unwrap()), Link::new(ours).unwrap())
    }

    fn says(&mut self, kind: Kind, body: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.0.send(kind, body, descriptors).unwrap();
    }

    fn hears(&mut self, kind: Kind) -> Message {
        self.0.expect(kind, PATIENCE).unwrap()
    }

    /// The last that was said to it, once nothing more comes.
    fn hears_no(&mut self) -> String {
        String::from_utf8(self.hears(Kind::No).body).unwrap()
    }

    /// The file of the state, and the descriptors behind it.
    fn hears_the_state(&mut self) -> (File, Vec<OwnedFd>) {
        let Message { body, descriptors, .. } = self.hears(Kind::State);
        let count = u32::from_be_bytes(body.try_into().unwrap()) as usize;
        let [file] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
        let mut more = Vec::new();
        while more.len() < count {
            more.extend(self.hears(Kind::More).descriptors);
        }
        (file.into(), more)
    }
}

/// A client that travels, and tells when it goes on.
struct Traveller {
    is_paused: bool,
    goes_on: mpsc::Sender<()>,
    fails: bool,
}

impl Client for Traveller {
    mqfq_testing::ignores!(start, event, completed, turn_end, room, drain);

    fn is_done(&self) -> bool {
        false
    }

    fn pause(&mut self, _: &mut dyn Context) {
        self.is_paused = true;
    }

    fn is_paused(&self) -> bool {
        self.is_paused
    }

    fn pack(&self, _: u16) -> io::Result<Option<PackedClient>> {
        let descriptor = if self.fails { Err(io::Error::other("too many")) } else { memory_file(b"its socket") }?;
        let packed = Packed { state: b"traveller".to_vec(), descriptors: vec![descriptor.into()] };
        Ok(Some(PackedClient { listener: 1, is_listener: false, packed }))
    }

    fn resume(&mut self, _: &mut dyn Context) {
        self.is_paused = false;
        self.goes_on.send(()).unwrap();
    }
}

/// A device that cannot travel.
struct Stays(MemoryDevice);

impl Device for Stays {
    fn info(&self) -> mqfq_blk::device::DeviceInfo {
        self.0.info()
    }

    fn open_queue(
        &self,
        options: mqfq_blk::device::QueueOptions,
    ) -> Result<Box<dyn mqfq_blk::device::DeviceQueue>, String> {
        self.0.open_queue(options)
    }

    fn pack(&self, _: u16) -> Result<Packed, String> {
        Err("stays where it is".to_owned())
    }
}

/// A server with a client.
struct Old {
    engine: Engine,
    serving: Serving,
    has_gone_on: mpsc::Receiver<()>,
}

impl Old {
    fn new(fails: bool) -> Old {
        let options = EngineOptions { workers: 1, pin: false, spin_ns: 0, devices: Vec::new() };
        let engine = Engine::start(options).unwrap();
        let (goes_on, has_gone_on) = mpsc::channel();
        let client = Traveller { is_paused: false, goes_on, fails };
        engine.attach(Box::new(move || Box::new(client)));
        let listeners = Mutex::new([(1, "nbd unix:/a".to_owned())].into());
        Old {
            engine,
            serving: Serving { devices: Mutex::default(), listeners, sockets: Vec::new(), ownership: Arc::default() },
            has_gone_on,
        }
    }

    fn hands_over(&self, link: Link, patience: Duration) -> Outcome {
        hand_over_within(patience, (link, VERSION), &self.engine, &self.serving)
    }

    /// The engine holds still: no client was told to go on.
    fn assert_still(&self) {
        // A worker does one thing that it is told after the other.
        self.engine.pack(VERSION, PATIENCE).unwrap();
        assert!(self.has_gone_on.try_recv().is_err(), "two processes serve");
    }

    fn assert_serves(&self, outcome: Outcome, why: &str) {
        let Outcome::RolledBack(sentence) = outcome else { panic!("nobody serves: {why}") };
        assert!(sentence.contains(why), "{sentence}");
        self.has_gone_on.recv_timeout(PATIENCE).expect("its clients go on");
    }
}

/// Bytes of a file of memory.
fn length_bytes(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

#[test]
fn a_process_that_takes_over_at_the_last_moment_serves_and_the_old_one_goes_on_with_nothing() {
    // In time.
    let (old, (mut fake, link)) = (Old::new(false), Fake::new());
    fake.says(Kind::Taken, &[], &[]);
    assert!(matches!(old.hands_over(link, PATIENCE), Outcome::Replaced(Some(pid)) if pid == std::process::id()));
    old.assert_still();
    let (state, descriptors) = fake.hears_the_state();
    assert!(length_bytes(&state) > 0 && descriptors.len() == 1);

    // The old one has given up waiting, and then looks.
    for before in [&[][..], &[Kind::Ready], &[Kind::No, Kind::More]] {
        let (old, (mut fake, link)) = (Old::new(false), Fake::new());
        old.engine.pause(true, PATIENCE).unwrap();
        let state = memory_file(b"the state").unwrap();
        before.iter().for_each(|kind| fake.says(*kind, b"", &[]));
        fake.says(Kind::Taken, &[], &[]);
        let outcome = roll_back(link, &old.engine, Some(state.try_clone().unwrap()), "it is late".to_owned());
        assert!(matches!(outcome, Outcome::Replaced(_)), "behind {before:?}");
        old.assert_still();
        assert_eq!(length_bytes(&state), 9, "what the new one reads is its own");
    }
}

/// The new one takes over at any moment while the old one gives up: its own send tells each of them which one serves.
#[test]
fn a_process_that_takes_over_while_the_old_one_gives_up_serves_exactly_if_its_word_was_sent() {
    let old = Old::new(false);
    for round in 0..2000 {
        let (mut fake, link) = Fake::new();
        let (sent, outcome) = std::thread::scope(|scope| {
            let takes = scope.spawn(move || {
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                // It is there until the old one has given up, as a process that has not read the No.
                (fake.0.send(Kind::Taken, &[], &[]).is_ok(), fake)
            });
            let outcome = roll_back(link, &old.engine, None, "it is late".to_owned());
            (takes.join().unwrap().0, outcome)
        });
        assert_eq!(sent, matches!(outcome, Outcome::Replaced(_)), "round {round}: {outcome:?}");
    }
}

#[test]
fn a_process_that_says_nothing_or_dies_leaves_the_old_one_serving_and_what_it_has_is_of_the_past() {
    for is_there in [true, false] {
        let (old, (fake, link)) = (Old::new(false), Fake::new());
        let mut fake = Some(fake).filter(|_| is_there);
        let why = if is_there { "the other process said nothing for 0 s" } else { "the other process did not take" };
        let outcome = old.hands_over(link, Duration::ZERO);
        old.assert_serves(outcome, why);
        if let Some(fake) = &mut fake {
            let (state, _) = fake.hears_the_state();
            assert!(fake.hears_no().starts_with(why));
            assert_eq!(length_bytes(&state), 0, "one that did not hear the No does not go on with it");
            assert!(fake.0.send(Kind::Taken, &[], &[]).is_err(), "it cannot take over any more");
        }
        // The next process is served as the first would have been.
        let (mut fake, link) = Fake::new();
        fake.says(Kind::Taken, &[], &[]);
        assert!(matches!(old.hands_over(link, PATIENCE), Outcome::Replaced(_)));
        old.assert_still();
    }
}

#[test]
fn a_process_that_says_something_else_instead_of_taking_over_is_no_successor() {
    for (kind, body, why) in [
        (Kind::No, &b"of this reason"[..], "of this reason"),
        (Kind::Ready, b"", "the other process said Ready and not Taken"),
        (Kind::State, b"\0\0\0\0", "the other process said State and not Taken"),
    ] {
        let (old, (mut fake, link)) = (Old::new(false), Fake::new());
        fake.says(kind, body, &[]);
        let outcome = old.hands_over(link, PATIENCE);
        old.assert_serves(outcome, why);
        let (state, _) = fake.hears_the_state();
        assert_eq!((fake.hears_no().as_str(), length_bytes(&state)), (why, 0));
    }
}

#[test]
fn a_server_that_cannot_pack_one_thing_of_many_says_so_and_serves_on() {
    let (old, (mut fake, link)) = (Old::new(true), Fake::new());
    let outcome = old.hands_over(link, PATIENCE);
    old.assert_serves(outcome, "a connection's descriptor cannot be copied: too many");
    assert_eq!(fake.hears_no(), "a connection's descriptor cannot be copied: too many");

    let (old, (mut fake, link)) = (Old::new(false), Fake::new());
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(4096));
    let stays: Arc<dyn Device> = Arc::new(Stays(MemoryDevice::new(4096)));
    *old.serving.devices.lock().unwrap() = vec![("goes".to_owned(), device), ("one".to_owned(), stays)];
    let outcome = old.hands_over(link, PATIENCE);
    old.assert_serves(outcome, "device one stays where it is");
    assert_eq!(fake.hears_no(), "device one stays where it is");
}

#[test]
fn the_users_that_may_replace_a_server_are_its_own_and_root_and_no_others() {
    if !user::is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let met = |server: u32, visitor: u32| {
        // Both ends are of the user that has made them.
        let (ours, theirs) = user::as_user(visitor, visitor, || UnixStream::pair().unwrap());
        let (mut fake, mut link) = (Fake(Link::new(theirs).unwrap()), Link::new(ours).unwrap());
        fake.says(Kind::Hello, &hello().encode(), &[]);
        fake.says(Kind::Ready, &[], &[]);
        let met = user::as_user(server, server, || meet(&mut link, &|| Ok(Opened::default()), &|| Ok(())));
        assert_eq!(fake.0.receive(Duration::ZERO).is_ok(), met.is_ok(), "nothing is given to one that may not");
        met
    };
    for (server, visitor) in [(1000, 1000), (1000, 0), (0, 0)] {
        assert_eq!(met(server, visitor), Ok(VERSION), "user {visitor} replaces a server of user {server}");
    }
    for (server, visitor) in [(1000, 1001), (1000, 999), (0, 1000)] {
        let refused =
            format!("user {visitor} may not replace a server of user {server}, allowed is that user, or root");
        assert_eq!(met(server, visitor), Err(refused));
    }
}

fn hello() -> Hello {
    Hello { versions: (*VERSIONS.start(), *VERSIONS.end()), pid: std::process::id(), discards_unsaved: false }
}

/// Descriptors of files that hold these numbers.
fn numbered(numbers: std::ops::Range<usize>) -> Vec<OwnedFd> {
    numbers.map(|number| memory_file(&(number as u64).to_be_bytes()).unwrap().into()).collect()
}

/// The number in a file of [`numbered`].
fn number(descriptor: OwnedFd) -> usize {
    let mut bytes = [0; 8];
    File::from(descriptor).read_exact_at(&mut bytes, 0).unwrap();
    u64::from_be_bytes(bytes) as usize
}

#[test]
fn each_of_many_descriptors_arrives_where_it_belongs() {
    crate::signals::raise_open_files_limit();
    // Each way takes three messages.
    const COUNT: usize = 2 * DESCRIPTORS_MAX + 3;
    let name = |number: usize| format!("unix:/{number:04}");
    let folder = Folder::new();
    let path = folder.join("upgrade");
    let listener = UnixListener::bind(&path).unwrap();
    let old = std::thread::spawn(move || {
        let mut link = Link::new(listener.accept().unwrap().0).unwrap();
        let opened = || {
            let sockets = (0..COUNT).map(name).zip(numbered(0..COUNT)).collect();
            Ok(Opened { pid: std::process::id(), sockets, ..Opened::default() })
        };
        let version = meet(&mut link, &opened, &|| Ok(())).unwrap();
        let client = |descriptor| HandedClient {
            address: "nbd unix:/a".to_owned(),
            is_listener: false,
            packed: Packed { state: Vec::new(), descriptors: vec![descriptor] },
        };
        let clients = numbered(COUNT..2 * COUNT).into_iter().map(client).collect();
        let (file, descriptors) =
            packed(HandoverState { since_ns: 0, ownership: Vec::new(), devices: Vec::new(), clients }, version)
                .unwrap();
        send(&mut link, &file, descriptors).unwrap();
        link.expect(Kind::Taken, PATIENCE).map(drop)
    });
    let mut inherited = Inherited::of_running(&SocketAddress::Unix(path), false).unwrap();
    for at in 0..COUNT {
        let socket = inherited.socket(&SocketAddress::Unix(format!("/{at:04}").into())).expect("it came");
        assert_eq!(number(socket), at);
    }
    let mut taking = inherited.take().unwrap();
    let clients = std::mem::take(&mut taking.handover).clients;
    let came: Vec<usize> = clients.into_iter().flat_map(|client| client.packed.descriptors).map(number).collect();
    assert_eq!(came, (COUNT..2 * COUNT).collect::<Vec<_>>());
    taking.commit().unwrap();
    assert_eq!(old.join().unwrap(), Ok(()));
}

#[test]
fn a_server_that_fails_in_the_middle_of_its_state_is_not_replaced() {
    let file = memory_file(b"no state").unwrap();
    let file = file.as_fd();
    let welcome =
        [&VERSION.to_be_bytes()[..], &0u32.to_be_bytes(), &Opened { pid: 7, ..Opened::default() }.encode(VERSION).0]
            .concat();
    // The old one's messages once the new one is ready.
    type Says<'a> = &'a [(Kind, &'a [u8], &'a [BorrowedFd<'a>])];
    let cases: &[(Says<'_>, &str)] = &[
        (&[], "cannot replace process 7: the other process has ended"),
        (
            &[(Kind::No, b"requests were still under way", &[])],
            "cannot replace process 7: requests were still under way",
        ),
        (&[(Kind::State, &[0, 0, 0, 0], &[])], "its state came without a file"),
        (&[(Kind::State, &[0, 0, 0, 0], &[file, file])], "its state came without a file"),
        (&[(Kind::State, &[0, 0, 0, 2], &[file]), (Kind::More, &[], &[file])], "the other process has ended"),
        (&[(Kind::State, &[0, 0, 0, 2], &[file]), (Kind::Welcome, &[], &[])], "said Welcome and not More"),
        (&[(Kind::State, &[0, 0, 0, 0], &[file])], "its state was not written by a process like this"),
        (&[(Kind::State, &[0], &[file])], "its state ends too early"),
    ];
    for (says, sentence) in cases {
        let folder = Folder::new();
        let path = folder.join("upgrade");
        let listener = UnixListener::bind(&path).unwrap();
        let inherited = std::thread::scope(|scope| {
            let inherited = scope.spawn(|| Inherited::of_running(&SocketAddress::Unix(path.clone()), false));
            let mut fake = Fake(Link::new(listener.accept().unwrap().0).unwrap());
            assert_eq!(Hello::decode(&fake.hears(Kind::Hello).body), Ok(hello()));
            fake.says(Kind::Welcome, &welcome, &[]);
            let inherited = inherited.join().unwrap().unwrap();
            says.iter().for_each(|(kind, body, descriptors)| fake.says(*kind, body, descriptors));
            inherited
        });
        let refused = inherited.take().map(drop).unwrap_err();
        assert!(refused.starts_with("cannot replace process 7: ") && refused.contains(sentence), "{refused}");
    }
}
