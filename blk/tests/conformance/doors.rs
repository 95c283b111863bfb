//! A worker's services besides sockets and requests of its own memory, through real rings: descriptors that become
//! ready, eventfds, messages with descriptors, clients without a socket, payloads in foreign memory, and the
//! drain of some clients.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, ClientFilter, Context, DESCRIPTORS_MAX, DeviceIndex, Event, Label, Part};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::foreign::ForeignMemory;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The limit is for the day on which a test fails.
const LIMIT: Duration = Duration::from_secs(20);

/// Calls of a client.
enum Step {
    Start,
    Event(Event),
    Completed(Completion),
    TurnEnd,
    Drain,
    Abort,
}

/// Called for each step; true: the client is done.
type Act = Box<dyn FnMut(&mut dyn Context, Step) -> bool + Send>;

/// A client that follows the test's script. Its channels close when it is dropped.
struct Scripted {
    act: Act,
    label: Label,
    is_done: bool,
}

impl Scripted {
    fn step(&mut self, context: &mut dyn Context, step: Step) {
        self.is_done |= (self.act)(context, step);
    }
}

impl Client for Scripted {
    fn start(&mut self, context: &mut dyn Context) {
        self.step(context, Step::Start);
    }
    fn event(&mut self, context: &mut dyn Context, event: Event) {
        self.step(context, Step::Event(event));
    }
    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        self.step(context, Step::Completed(completion));
    }
    fn turn_end(&mut self, context: &mut dyn Context) {
        self.step(context, Step::TurnEnd);
    }
    fn room(&mut self, _: &mut dyn Context) {
        unreachable!("there is room for all that it submits");
    }
    fn drain(&mut self, context: &mut dyn Context) {
        // Its label from now on does not matter to a caller that waits for its end.
        self.label = Label::default();
        self.step(context, Step::Drain);
    }
    fn abort(&mut self, context: &mut dyn Context) {
        self.step(context, Step::Abort);
    }
    fn is_done(&self) -> bool {
        self.is_done
    }
    fn label(&self) -> Label {
        self.label
    }
}

fn engine(workers: usize) -> Engine {
    let limits = StageLimits { requests_max: 64, bytes_max: 1 << 20 };
    let flow = FlowOptions { limits, ..FlowOptions::new("a") };
    let (memory, policy) = (Arc::new(MemoryDevice::new(1 << 20)), PolicyOptions::new(PolicyKind::Mqfq));
    let device = DeviceOptions::new("memory", memory, policy, vec![flow]);
    Engine::start(EngineOptions { workers, pin: false, spin_ns: 0, devices: vec![device] }).unwrap()
}

fn attach_as(engine: &Engine, label: Label, act: impl FnMut(&mut dyn Context, Step) -> bool + Send + 'static) {
    engine.attach(Box::new(move || Box::new(Scripted { act: Box::new(act), label, is_done: false })));
}

fn attach(engine: &Engine, act: impl FnMut(&mut dyn Context, Step) -> bool + Send + 'static) {
    attach_as(engine, Label::default(), act);
}

/// An eventfd; not blocking, as hypervisors make them, or blocking.
fn eventfd(flags: libc::c_int) -> OwnedFd {
    // SAFETY: eventfd takes no pointers; a non-negative result is a descriptor that is not shared.
    unsafe {
        let event = libc::eventfd(0, libc::EFD_CLOEXEC | flags);
        assert!(event >= 0);
        OwnedFd::from_raw_fd(event)
    }
}

fn add(event: &File, value: u64) {
    (&*event).write_all(&value.to_ne_bytes()).unwrap();
}

/// Waits for an eventfd that is not 0, blocking or not, and takes its count.
fn take(event: &File) -> u64 {
    let mut readable = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes the one structure.
    assert_eq!(unsafe { libc::poll(&raw mut readable, 1, LIMIT.as_millis() as libc::c_int) }, 1);
    let mut bytes = [0; 8];
    (&*event).read_exact(&mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

#[test]
fn any_descriptor_can_be_waited_for() {
    let engine = engine(1);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (saw, seen) = mpsc::channel();
    attach(&engine, move |context, step| {
        match step {
            Step::Start => context.poll(reader.as_raw_fd(), 5),
            Step::Event(Event::Ready { user, result }) => {
                let mut byte = [0];
                (&reader).read_exact(&mut byte).unwrap();
                saw.send((user, result, byte[0])).unwrap();
                context.poll(reader.as_raw_fd(), user + 1);
            }
            Step::TurnEnd => {}
            _ => return true,
        }
        false
    });
    for byte in 0..3 {
        writer.write_all(&[byte]).unwrap();
        assert_eq!(seen.recv_timeout(LIMIT), Ok((5 + u32::from(byte), Ok(()), byte)));
    }
    // It waits for an event that will never come, and that does not keep it.
    assert!(engine.drain(LIMIT));
    assert!(seen.recv().is_err(), "it is gone");
}

#[test]
fn a_wait_that_was_taken_back_says_nothing_and_the_number_of_its_file_may_be_anothers() {
    let engine = engine(1);
    let (go, mut go_writer) = std::io::pipe().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (saw, seen) = mpsc::channel();
    let mut reader = Some(reader);
    attach(&engine, move |context, step| {
        match step {
            Step::Start => {
                let waited = reader.as_ref().unwrap().as_raw_fd();
                context.poll(waited, 1);
                context.poll(waited, 1);
                context.poll(go.as_raw_fd(), 2);
            }
            Step::Event(Event::Ready { user: 2, .. }) => {
                // One more, which the kernel has not seen yet.
                context.poll(reader.as_ref().unwrap().as_raw_fd(), 1);
                context.take_back(1);
                reader = None;
                saw.send(0).unwrap();
                context.timer(context.now_ns() + 1_000_000, 0);
            }
            Step::Event(Event::Timer { .. }) => saw.send(9).unwrap(),
            Step::Event(Event::Ready { user, .. }) => saw.send(user).unwrap(),
            Step::Drain => return true,
            _ => {}
        }
        false
    });
    go_writer.write_all(b"x").unwrap();
    assert_eq!(seen.recv_timeout(LIMIT), Ok(0));
    assert_eq!(seen.recv_timeout(LIMIT), Ok(9), "the timer, and nothing before it");
    // The worker has been in the kernel since, which dropped its references for the waits.
    assert_eq!(writer.write_all(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe, "nobody holds the reader");
    assert!(engine.drain(LIMIT));
    assert!(seen.recv().is_err());
}

#[test]
fn an_eventfd_is_read_by_the_ring_whether_it_blocks_or_not() {
    let engine = engine(1);
    for flags in [0, libc::EFD_NONBLOCK] {
        let event = eventfd(flags);
        let kick = File::from(event.try_clone().unwrap());
        let (saw, seen) = mpsc::channel();
        attach(&engine, move |context, step| {
            match step {
                Step::Start => context.count(event.as_raw_fd(), 3),
                Step::Event(Event::Counted { user: 3, result }) => {
                    saw.send(result).unwrap();
                    context.count(event.as_raw_fd(), 3);
                }
                _ => {}
            }
            false
        });
        add(&kick, 7);
        let mut sum = seen.recv_timeout(LIMIT).unwrap().unwrap();
        assert_eq!(sum, 7);
        for _ in 0..100 {
            add(&kick, 1);
        }
        while sum < 107 {
            sum += seen.recv_timeout(LIMIT).unwrap().unwrap();
        }
        assert_eq!(sum, 107, "every kick is seen once");
    }
}

#[test]
fn what_is_full_or_no_eventfd_is_told_at_once_and_holds_nobody_up() {
    let engine = engine(1);
    let full = eventfd(libc::EFD_NONBLOCK);
    // One less than the count that an eventfd cannot hold.
    add(&File::from(full.try_clone().unwrap()), u64::MAX - 1);
    let (pipe, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"abc").unwrap();
    let (saw, seen) = mpsc::channel();
    attach(&engine, move |context, step| {
        match step {
            Step::Start => {
                context.signal(full.as_raw_fd(), 1);
                context.count(pipe.as_raw_fd(), 2);
            }
            Step::Event(Event::Signalled { user: 1, result }) => saw.send(result).unwrap(),
            Step::Event(Event::Counted { user: 2, result }) => saw.send(result.map(|_| ())).unwrap(),
            Step::Drain => return true,
            _ => {}
        }
        false
    });
    let mut both = [seen.recv_timeout(LIMIT).unwrap(), seen.recv_timeout(LIMIT).unwrap()];
    both.sort();
    assert_eq!(both, [Err(libc::EAGAIN), Err(libc::EINVAL)]);
    assert!(engine.drain(LIMIT), "nothing of it is under way");
}

#[test]
fn a_drain_whose_time_is_over_ends_waits() {
    let engine = engine(2);
    let (saw, seen) = mpsc::channel();
    for _ in 0..2 {
        let (event, saw) = (eventfd(0), saw.clone());
        attach(&engine, move |context, step| match step {
            Step::Start => {
                context.poll(event.as_raw_fd(), 0);
                context.count(event.as_raw_fd(), 1);
                false
            }
            Step::Event(Event::Ready { result, .. }) => {
                saw.send(result.map(|()| 0)).unwrap();
                false
            }
            Step::Event(Event::Counted { result, .. }) => {
                saw.send(result).unwrap();
                true
            }
            // It does not want to.
            _ => false,
        });
    }
    drop(saw);
    assert!(!engine.drain(Duration::from_millis(1)), "they had to be cut off");
    assert_eq!(seen.iter().collect::<Vec<_>>(), [Err(libc::ECANCELED); 4]);
}

/// A file with these bytes, at its start.
fn file_of(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file.into()
}

#[test]
fn descriptors_go_with_bytes_and_come_with_bytes() {
    let engine = engine(1);
    let (left, right) = UnixStream::pair().unwrap();
    let parts = || vec![Part::Bytes(vec![1; 100_000]), Part::Bytes(Vec::new()), Part::Bytes(vec![2; 100_000])];
    let mut sends = 0;
    attach(&engine, move |context, step| match step {
        Step::Start => {
            let files = (0..DESCRIPTORS_MAX).map(|number| file_of(&[number as u8])).collect();
            // More than a socket takes at once: the rest follows without descriptors.
            context.send_with_descriptors(left.as_raw_fd(), parts(), files, 8);
            false
        }
        Step::Event(Event::Sent { user, parts, result }) => {
            assert_eq!((user, parts.len(), result), (8 + sends, 3, Ok(())));
            sends += 1;
            if sends == 1 {
                // The state of the first send is used again, and its descriptors are not.
                context.send(left.as_raw_fd(), parts, 9);
            }
            sends == 2
        }
        _ => false,
    });
    let (saw, seen) = mpsc::channel();
    attach(&engine, move |context, step| {
        match step {
            Step::Start => {
                context.receive_with_descriptors(right.as_raw_fd(), Buffer::new(1 << 20), 10, 1 << 20, 4);
            }
            Step::Event(Event::Received { user: 4, buffer, result, descriptors }) => {
                let length = result.unwrap();
                assert!(length == 0 || (1..=2).contains(&buffer.as_slice()[10 + length - 1]));
                let is_over = length == 0;
                saw.send((length, descriptors.is_cut(), descriptors.into_vec())).unwrap();
                if !is_over {
                    context.receive_with_descriptors(right.as_raw_fd(), buffer, 10, 1 << 20, 4);
                }
                return is_over;
            }
            _ => {}
        }
        false
    });
    let (mut bytes, mut files) = (0, Vec::new());
    for (length, is_cut, descriptors) in seen {
        assert!(!is_cut && (files.is_empty() || descriptors.is_empty()), "they come with the first bytes, once");
        bytes += length;
        files.extend(descriptors);
    }
    assert_eq!((bytes, files.len()), (400_000, DESCRIPTORS_MAX));
    for (number, file) in files.into_iter().enumerate() {
        // SAFETY: F_GETFD takes no pointer.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        let mut content = Vec::new();
        File::from(file).read_to_end(&mut content).unwrap();
        assert_eq!(content, [number as u8], "in order");
    }
}

/// Sends a byte with `count` copies of `descriptor`, in one message.
fn send_many(socket: &UnixStream, descriptor: RawFd, count: usize) {
    let descriptors = vec![descriptor; count];
    let bytes = size_of_val(&descriptors[..]) as u32;
    let mut control = vec![0u64; 256];
    let mut byte = 1u8;
    let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the control buffer has room for a header and as many descriptors as the kernel lets pass (253), is
    // aligned for the header, and lives as long as the call; all-zero is a valid msghdr.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
        let first = &mut *libc::CMSG_FIRSTHDR(&raw const header);
        (first.cmsg_level, first.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        first.cmsg_len = libc::CMSG_LEN(bytes) as usize;
        let data = libc::CMSG_DATA(first);
        data.copy_from_nonoverlapping(descriptors.as_ptr().cast(), bytes as usize);
        libc::sendmsg(socket.as_raw_fd(), &raw const header, 0)
    };
    assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
}

#[test]
fn all_descriptors_that_the_kernel_sends_at_once_come_and_those_that_nobody_takes_are_closed() {
    let engine = engine(1);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    send_many(&ours, reader.as_raw_fd(), DESCRIPTORS_MAX);
    drop(reader);
    let (saw, seen) = mpsc::channel();
    attach(&engine, move |context, step| {
        match step {
            Step::Start => context.receive_with_descriptors(theirs.as_raw_fd(), Buffer::new(64), 0, 64, 0),
            Step::Event(Event::Received { result, descriptors, .. }) => {
                saw.send((result, descriptors.len(), descriptors.is_cut())).unwrap();
                return true;
            }
            _ => {}
        }
        false
    });
    assert_eq!(seen.recv_timeout(LIMIT), Ok((Ok(1), DESCRIPTORS_MAX, false)));
    assert!(seen.recv().is_err(), "the client is gone, and with it what nobody took");
    assert_eq!(writer.write_all(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe, "all copies are closed");
}

/// A request of a guest's ring: where its bytes lie in its memory, and where on the disk.
const AT: usize = 4096 + 100;
const LENGTH: usize = 3000;

fn submission(op: Op, memory: &Arc<ForeignMemory>, at: usize) -> Submission {
    Submission {
        flow: FlowId(0),
        op,
        offset_bytes: 77,
        length_bytes: LENGTH as u32,
        fua: false,
        buffer: memory.buffer(at, LENGTH),
        cookie: u64::from(op == Op::Read),
    }
}

#[test]
fn a_client_without_a_socket_is_kicked_completes_in_memory_signals_and_is_drained() {
    let engine = engine(2);
    let file = tempfile::tempfile().unwrap();
    file.set_len(16384).unwrap();
    let guest = ForeignMemory::map(file.as_fd(), 0, 16384).unwrap();
    let memory = ForeignMemory::map(file.as_fd(), 0, 16384).unwrap();
    let (kick, call) = (eventfd(libc::EFD_NONBLOCK), eventfd(libc::EFD_NONBLOCK));
    let (kicker, called) = (File::from(kick.try_clone().unwrap()), File::from(call.try_clone().unwrap()));
    let (alive, dropped) = mpsc::channel::<()>();
    let (mut signalling, mut unsaid, mut turns) = (false, 0u64, 0);
    attach(&engine, move |context, step| {
        let _alive = &alive;
        match step {
            Step::Start => context.count(kick.as_raw_fd(), 0),
            Step::Event(Event::Counted { result, .. }) => {
                // Kicked once for both.
                assert!(result.unwrap() > 0);
                context.submit(DeviceIndex(0), submission(Op::Write, &memory, AT)).unwrap();
                context.count(kick.as_raw_fd(), 0);
            }
            Step::Completed(completion) => {
                assert_eq!(completion.status, Status::Ok);
                assert!(completion.buffer.as_ref().is_some_and(Buffer::is_foreign));
                match completion.op {
                    Op::Write => context.submit(DeviceIndex(0), submission(Op::Read, &memory, 8192)).unwrap(),
                    _ => unsaid += 1,
                }
            }
            Step::Event(Event::Signalled { result, .. }) => {
                assert_eq!(result, Ok(()));
                signalling = false;
            }
            Step::TurnEnd => {
                turns += 1;
                if unsaid > 0 && !signalling {
                    // The "used ring": how many have ended.
                    assert!(memory.copy_from(0, &unsaid.to_ne_bytes()));
                    (signalling, unsaid) = (true, 0);
                    context.signal(call.as_raw_fd(), 0);
                }
            }
            Step::Abort => {}
            Step::Drain => return true,
            Step::Event(other) => panic!("{other:?}"),
        }
        assert!(turns < 1_000_000);
        false
    });
    for round in 1..=5u8 {
        let bytes: Vec<u8> = (0..LENGTH).map(|at| at as u8 ^ round).collect();
        assert!(guest.copy_from(AT, &bytes));
        add(&kicker, 1);
        assert_eq!(take(&called), 1);
        let mut back = vec![0; LENGTH];
        assert!(guest.copy_to(8192, &mut back));
        assert!(back == bytes, "round {round}");
        let mut ended = [0; 8];
        assert!(guest.copy_to(0, &mut ended));
        assert_eq!(u64::from_ne_bytes(ended), 1);
    }
    assert!(dropped.try_recv().is_err_and(|error| error == mpsc::TryRecvError::Empty), "it lives");
    assert!(engine.drain(LIMIT));
    assert!(dropped.recv().is_err(), "it was dropped though it waited for a kick");
    assert_eq!(mqfq_blk::table::lost_requests(), 0);
}

#[test]
fn one_client_or_those_of_one_export_drain_and_the_others_go_on() {
    let engine = engine(3);
    let mut ends = Vec::new();
    for number in 0..6u64 {
        let (alive, dropped) = mpsc::channel::<()>();
        let event = eventfd(0);
        let label = Label { client: Some(number), export: Some(number % 2) };
        // One has nothing in flight that a cut-off could end.
        let (stubborn, quiet) = (matches!(number, 3 | 5), number == 3);
        attach_as(&engine, label, move |context, step| {
            let _alive = &alive;
            match step {
                Step::Start if !quiet => context.poll(event.as_raw_fd(), 0),
                Step::Event(Event::Ready { result: Err(libc::ECANCELED), .. }) => return true,
                Step::Drain => return !stubborn,
                Step::Abort => return quiet,
                _ => {}
            }
            false
        });
        ends.push(dropped);
    }
    let living = || -> Vec<usize> {
        let lives = |end: &mpsc::Receiver<()>| end.try_recv() == Err(mpsc::TryRecvError::Empty);
        (0..6).filter(|&number| lives(&ends[number])).collect()
    };
    assert!(engine.drain_some(ClientFilter::Client(2), LIMIT));
    assert_eq!(living(), [0, 1, 3, 4, 5]);
    assert!(engine.drain_some(ClientFilter::Client(2), LIMIT), "nobody is left to wait for");
    assert!(
        !engine.drain_some(ClientFilter::Export(1), Duration::from_millis(1)),
        "the third and the fifth had to be cut off"
    );
    assert_eq!(living(), [0, 4]);
    assert!(engine.drain(LIMIT));
    assert_eq!(living(), [0; 0]);
}
