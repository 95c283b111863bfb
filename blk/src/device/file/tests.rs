use super::backing::status_of_errno;
use super::*;
use crate::buffer::Buffer;
use crate::device::{Command, Reaped};
use crate::request::{Op, Status};
use crate::ring::{Pending, device_and_user};
use crate::tag::Tag;
use io_uring::{IoUring, squeue};
use mqfq_sched::topology::HctxId;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use tempfile::TempDir;

mod cut;
mod failed;
mod pages;

const MIB: u64 = 1 << 20;

// Opening.

fn file_of(folder: &TempDir, length_bytes: u64) -> PathBuf {
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(length_bytes).unwrap();
    path
}

#[track_caller]
fn expect_refusal(options: &FileOptions, sentence: &str) {
    let expected = format!("{}: {sentence}", options.path.display());
    match FileDevice::open(options) {
        Ok(_) => panic!("opened, expected: {expected}"),
        Err(error) => assert_eq!(error, expected),
    }
}

#[test]
fn what_cannot_be_served_is_refused_in_one_sentence_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    expect_refusal(&FileOptions::new(folder.path().join("nothing")), "no such file or block device");
    expect_refusal(&FileOptions::new(folder.path()), "is a directory, not a file or block device");
    expect_refusal(&FileOptions::new("/dev/null"), "is neither a regular file nor a block device");
    let path = file_of(&folder, 0);
    expect_refusal(&FileOptions::new(&path), "has no bytes to serve; give it a size");
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let larger = FileOptions { size_bytes: Some(8192), ..FileOptions::new(&path) };
    expect_refusal(&larger, "holds 4096 bytes, fewer than the 8192 it is to serve");
    let unsized_new = FileOptions { create: true, ..FileOptions::new(folder.path().join("new")) };
    expect_refusal(&unsized_new, "does not exist, and without a size it cannot be created");
}

#[test]
fn a_file_to_be_measured_is_opened_to_be_read_beside_the_server_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, MIB);
    let server = FileDevice::open(&FileOptions::new(&path)).unwrap();
    let mut measured = FileOptions::to_measure(&path);
    for read_only in [true, false] {
        measured.read_only = read_only;
        let device = FileDevice::open(&measured).unwrap();
        // SAFETY: no memory is involved, and the descriptor is open.
        let flags = unsafe { libc::fcntl(device.one.as_ref().unwrap().file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_ACCMODE, libc::O_RDONLY);
        assert!(device.one.as_ref().unwrap().read_only);
    }
    // The server's lock stays when the file that was measured is closed.
    assert!(FileDevice::open(&FileOptions::new(&path)).is_err());
    drop(server);
    FileDevice::open(&FileOptions::new(&path)).unwrap();
    measured.create = true;
    measured.path = folder.path().join("new");
    expect_refusal(&measured, "no such file or block device");
}

#[test]
fn a_file_of_somebody_else_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 4096);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // SAFETY: no memory is involved. The identity for file accesses is this thread's own and the thread ends with the
    // test; for root it takes the right to override permissions away, for others the call changes nothing.
    unsafe { libc::setfsuid(65534) };
    let refused = FileDevice::open(&FileOptions::new(&path)).err();
    // SAFETY: as above; back to what the folder's removal needs.
    unsafe { libc::setfsuid(libc::geteuid()) };
    assert_eq!(refused, Some(format!("{}: no permission to read and write", path.display())));
}

#[test]
fn a_second_daemon_is_kept_out_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let options = FileOptions::new(file_of(&folder, 4096));
    let first = FileDevice::open(&options).unwrap();
    expect_refusal(&options, &format!("is served by process {}", std::process::id()));
    drop(first);
    FileDevice::open(&options).unwrap();
}

#[test]
fn a_look_refuses_what_opening_would_and_takes_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, MIB);
    let (options, none) = (FileOptions::new(&path), FileOptions::new(folder.path().join("none")));
    assert!(FileDevice::look(&options).is_ok());
    let device = FileDevice::open(&options).unwrap();
    assert!(FileDevice::look(&options).is_ok(), "it is served");
    drop(device);
    let larger = FileOptions { size_bytes: Some(2 * MIB), create: true, ..options };
    for wrong in [larger, FileOptions { create: true, size_bytes: Some(MIB), ..none }, FileOptions::new(folder.path())]
    {
        let refused = FileDevice::look(&wrong).unwrap_err();
        assert_eq!(refused, FileDevice::open(&FileOptions { create: false, ..wrong }).err().unwrap());
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn create_makes_a_private_file_or_extends_a_short_one_and_never_cuts_a_long_one() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let sized = |size_bytes| FileOptions { size_bytes: Some(size_bytes), create: true, ..FileOptions::new(&path) };
    for (asked_bytes, length_bytes) in [(MIB, MIB), (2 * MIB, 2 * MIB), (MIB, 2 * MIB)] {
        assert_eq!(FileDevice::open(&sized(asked_bytes)).unwrap().info().size_bytes, asked_bytes);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length_bytes);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_ends_inside_a_block_goes_through_the_page_cache_with_a_warning_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = file_of(&folder, 1000);
    let device = FileDevice::open(&FileOptions::new(&path)).unwrap();
    assert_eq!((device.direct_block_bytes(), device.info().size_bytes), (None, 1000));
    assert!(device.warnings().iter().any(|warning| warning.ends_with("; using the page cache")));
    drop(device);
    let always = FileOptions { direct: Direct::Always, ..FileOptions::new(&path) };
    let refusal = FileDevice::open(&always).err().unwrap();
    assert!(refusal.contains("direct I/O is demanded, but"), "{refusal}");
    let never = FileOptions { direct: Direct::Never, ..FileOptions::new(&path) };
    assert!(FileDevice::open(&never).unwrap().warnings().iter().all(|warning| !warning.contains("page cache")));
}

#[test]
fn each_errno_becomes_what_a_front_end_can_say() {
    for (errno, status) in [
        (libc::EIO, Status::Io),
        (libc::ENOSPC, Status::NoSpace),
        (libc::EDQUOT, Status::NoSpace),
        (libc::EINVAL, Status::Invalid),
        (libc::EOPNOTSUPP, Status::Unsupported),
        (libc::ECANCELED, Status::Shutdown),
        (libc::EFAULT, Status::Io),
    ] {
        assert_eq!(status_of_errno(errno), status, "errno {errno}");
    }
}

// One queue or several with a kernel in the test's hands: each entry is carried out when the test says so, or answered
// without the kernel.

struct Hand {
    uring: IoUring,
    pending: Pending,
    queues: Vec<Box<dyn DeviceQueue>>,
    interrupted: Arc<Mutex<Vec<u16>>>,
}

/// An entry that a queue pushed.
struct Pushed {
    queue: usize,
    user: u32,
    entry: squeue::Entry,
    opcode: u8,
    flags: u32,
}

const READ: u8 = 22;
const WRITE: u8 = 23;
const FSYNC: u8 = 3;
const FALLOCATE: u8 = 17;

impl Hand {
    fn new(device: &FileDevice, queues: u16) -> Hand {
        let (pending, interrupted) = (Pending::default(), Arc::new(Mutex::new(Vec::new())));
        let open = |hctx| {
            let interrupted = interrupted.clone();
            let options = QueueOptions {
                hctx: HctxId(hctx),
                depth: 8,
                ring: Some(pending.door(hctx)),
                interrupt: Arc::new(move |hctx| interrupted.lock().unwrap().push(hctx.0)),
            };
            device.open_queue(options).unwrap()
        };
        let queues = (0..queues).map(open).collect();
        Hand { uring: IoUring::new(8).unwrap(), pending, queues, interrupted }
    }

    fn submit(&mut self, queue: usize, command: Command) {
        self.queues[queue].submit(command).unwrap();
        self.queues[queue].ring_doorbell(0);
    }

    /// Entries pushed since the last call.
    fn pushed(&mut self) -> Vec<Pushed> {
        let look = |entry: squeue::Entry| {
            // SAFETY: an entry is the 64 bytes of struct io_uring_sqe: opcode in byte 0, rw_flags /
            // fsync_flags in 28..32, user_data in 32..40.
            let bytes: [u8; 64] = unsafe { std::mem::transmute_copy(&entry) };
            let flags = u32::from_ne_bytes(bytes[28..32].try_into().unwrap());
            let (queue, user) = device_and_user(u64::from_ne_bytes(bytes[32..40].try_into().unwrap()));
            Pushed { queue: queue as usize, user, entry, opcode: bytes[0], flags }
        };
        self.pending.take().into_iter().map(look).collect()
    }

    #[track_caller]
    fn one_pushed(&mut self, opcode: u8) -> Pushed {
        let mut all = self.pushed();
        assert_eq!(all.iter().map(|pushed| pushed.opcode).collect::<Vec<_>>(), [opcode]);
        all.pop().unwrap()
    }

    /// Lets the kernel do it; answers its result, of which the queue hears nothing yet.
    fn kernel(&mut self, pushed: &Pushed) -> i32 {
        // SAFETY: the queue that pushed it holds its buffers until its ring_event.
        unsafe { self.uring.submission().push(&pushed.entry) }.unwrap();
        loop {
            let waited = self.uring.submit_and_wait(1);
            let is_interrupted = waited.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted);
            assert!(waited.is_ok() || is_interrupted, "{waited:?}");
            // None: a signal or a stop of the process ended the wait.
            if let Some(ended) = self.uring.completion().next() {
                return ended.result();
            }
        }
    }

    fn answer(&mut self, pushed: &Pushed, result: i32) {
        self.queues[pushed.queue].ring_event(pushed.user, result);
    }

    fn carry_out(&mut self, pushed: &Pushed) {
        let result = self.kernel(pushed);
        self.answer(pushed, result);
    }

    fn carry_out_all(&mut self) {
        loop {
            let pushed = self.pushed();
            if pushed.is_empty() {
                return;
            }
            for pushed in &pushed {
                self.carry_out(pushed);
            }
        }
    }

    fn reap(&mut self, queue: usize) -> Vec<Reaped> {
        let mut out = Vec::new();
        self.queues[queue].reap(0, &mut out);
        out
    }

    #[track_caller]
    fn reap_one(&mut self, queue: usize) -> (Status, Option<Buffer>) {
        let mut out = self.reap(queue);
        assert_eq!(out.len(), 1, "exactly one command ended");
        let Reaped { status, buffer, .. } = out.pop().unwrap();
        (status, buffer)
    }
}

fn write(tag: u16, offset_bytes: u64, bytes: &[u8]) -> Command {
    let mut buffer = Buffer::new(bytes.len());
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let length_bytes = bytes.len() as u32;
    Command::new(Tag(tag), Op::Write, offset_bytes, length_bytes, Some(buffer))
}

fn read(tag: u16, offset_bytes: u64, length_bytes: u32) -> Command {
    let mut buffer = Buffer::new(length_bytes as usize);
    buffer.as_mut_slice().fill(0xee);
    Command::new(Tag(tag), Op::Read, offset_bytes, length_bytes, Some(buffer))
}

fn plain(tag: u16, op: Op, offset_bytes: u64, length_bytes: u32) -> Command {
    Command::new(Tag(tag), op, offset_bytes, length_bytes, None)
}

/// A device on a file of `size_bytes`, all 0xaa. Direct, in blocks of some power of two of at most 4096, unless the
/// temporary folder cannot; `None` then, and the test has nothing to say.
fn direct_device(folder: &TempDir, size_bytes: u64) -> Option<(FileDevice, PathBuf)> {
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0xaa; size_bytes as usize]).unwrap();
    let device = FileDevice::open(&FileOptions { direct: Direct::Always, ..FileOptions::new(&path) });
    match device {
        Ok(device) if device.direct_block_bytes().is_some_and(|block| block <= 4096) => Some((device, path)),
        Ok(_) => None,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

fn buffered_device(folder: &TempDir, size_bytes: u64) -> (FileDevice, PathBuf) {
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0xaa; size_bytes as usize]).unwrap();
    (FileDevice::open(&FileOptions { direct: Direct::Never, ..FileOptions::new(&path) }).unwrap(), path)
}

fn bytes_at(path: &Path, offset_bytes: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset_bytes).unwrap();
    bytes
}

#[test]
fn a_patch_does_not_put_back_what_another_queue_wrote_meanwhile() {
    // The table of gate.rs: queue 0 patches 100 bytes of block 7, queue 1 writes all of the block between its two
    // steps.
    let folder = tempfile::tempdir().unwrap();
    let Some((device, path)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, write(0, 7 * 4096 + 50, &[1; 100]));
    let step = hand.one_pushed(READ);
    hand.carry_out(&step);
    let step = hand.one_pushed(WRITE);
    hand.submit(1, write(0, 7 * 4096, &[2; 4096]));
    assert_eq!(hand.pushed().len(), 0, "the write of the block waits for the patch");
    hand.carry_out(&step);
    assert_eq!(hand.reap_one(0).0, Status::Ok);
    assert_eq!(*hand.interrupted.lock().unwrap(), [1]);
    assert_eq!(hand.reap(1).len(), 0);
    hand.carry_out_all();
    assert_eq!(hand.reap_one(1).0, Status::Ok);
    assert_eq!(bytes_at(&path, 7 * 4096, 4096), [2; 4096]);
}

#[test]
fn a_patch_waits_for_a_write_that_is_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, path)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 2);
    hand.submit(1, write(0, 0, &[2; 4096]));
    let block = hand.one_pushed(WRITE);
    hand.submit(0, write(0, 50, &[1; 100]));
    assert_eq!(hand.pushed().len(), 0, "the patch waits for the write of the block");
    hand.carry_out(&block);
    assert_eq!(hand.reap(0).len(), 0, "let in, not done");
    hand.carry_out_all();
    assert_eq!(hand.reap_one(0).0, Status::Ok);
    let expected = [vec![2; 50], vec![1; 100], vec![2; 4096 - 150]].concat();
    assert_eq!(bytes_at(&path, 0, 4096), expected);
}

#[test]
fn two_patches_of_one_block_by_one_queue_both_stay() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, path)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 1);
    hand.submit(0, write(0, 10, &[1; 10]));
    hand.submit(0, write(1, 30, &[2; 10]));
    hand.carry_out_all();
    assert_eq!(hand.reap(0).len(), 2);
    let expected = [vec![0xaa; 10], vec![1; 10], vec![0xaa; 10], vec![2; 10], vec![0xaa; 10]].concat();
    assert_eq!(bytes_at(&path, 0, 50), expected);
}

#[test]
fn a_hole_waits_for_a_patch_of_a_block_inside_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, path)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, write(0, 4096 + 50, &[1; 100]));
    let step = hand.one_pushed(READ);
    hand.carry_out(&step);
    hand.submit(1, plain(0, Op::Discard, 0, 16384));
    let step = hand.one_pushed(WRITE);
    hand.carry_out(&step);
    hand.reap(1);
    hand.carry_out_all();
    assert_eq!(bytes_at(&path, 0, 16384), [0; 16384]);
}

#[test]
fn a_patch_holds_up_neither_reads_nor_writes_far_away() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, _)) = direct_device(&folder, 3 * MIB) else { return };
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, write(0, 50, &[1; 100]));
    assert_eq!(hand.pushed().len(), 1);
    hand.submit(1, read(0, 0, 4096));
    hand.submit(1, write(1, 2 * MIB, &[2; 4096]));
    assert_eq!(hand.pushed().len(), 2);
}

#[test]
fn through_the_page_cache_nothing_is_aligned_and_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (device, path) = buffered_device(&folder, MIB);
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, write(0, 1, &[1; 5]));
    hand.submit(1, write(0, 2, &[2; 1]));
    let steps = hand.pushed();
    assert!(steps.iter().all(|step| step.opcode == WRITE) && steps.len() == 2);
    for step in &steps {
        hand.carry_out(step);
    }
    assert_eq!(bytes_at(&path, 0, 8), [0xaa, 1, 2, 1, 1, 1, 0xaa, 0xaa]);
}

#[test]
fn a_read_or_write_that_ends_early_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, path)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 1);
    // The first answer claims 4096 bytes that no kernel moved: these bytes stay as they were, the rest must be right.
    hand.submit(0, read(0, 0, 12288));
    let first = hand.one_pushed(READ);
    hand.answer(&first, 4096);
    hand.carry_out_all();
    let (status, buffer) = hand.reap_one(0);
    let buffer = buffer.unwrap();
    assert_eq!(status, Status::Ok);
    assert_eq!(buffer.as_slice()[..4096], [0xee; 4096]);
    assert_eq!(buffer.as_slice()[4096..12288], [0xaa; 8192]);

    hand.submit(0, write(0, 0, &[1; 12288]));
    let first = hand.one_pushed(WRITE);
    hand.answer(&first, 4096);
    hand.carry_out_all();
    assert_eq!(hand.reap_one(0).0, Status::Ok);
    assert_eq!(bytes_at(&path, 0, 12288), [vec![0xaa; 4096], vec![1; 8192]].concat());
}

#[test]
fn a_write_that_gets_nowhere_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (device, _) = buffered_device(&folder, MIB);
    let mut hand = Hand::new(&device, 1);
    hand.submit(0, write(0, 0, &[1; 4096]));
    let step = hand.one_pushed(WRITE);
    hand.answer(&step, 0);
    assert_eq!(hand.reap_one(0).0, Status::Io);
}

#[test]
fn interrupted_calls_are_made_again_but_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let (device, _) = buffered_device(&folder, MIB);
    let mut hand = Hand::new(&device, 1);
    hand.submit(0, read(0, 0, 4096));
    for errno in [libc::EINTR, libc::EAGAIN, libc::EINTR] {
        let step = hand.one_pushed(READ);
        hand.answer(&step, -errno);
    }
    hand.carry_out_all();
    assert_eq!(hand.reap_one(0).0, Status::Ok);
    hand.submit(0, read(0, 0, 4096));
    let mut tries = 0;
    while let Some(step) = hand.pushed().pop() {
        tries += 1;
        hand.answer(&step, -libc::EAGAIN);
    }
    assert_eq!(tries, 101, "once, and 100 times again");
    assert_eq!(hand.reap_one(0).0, Status::Io);
}

#[test]
fn zeroes_are_written_where_the_file_system_can_do_nothing_better() {
    // Per operation, which steps the file system refuses; then all is written. The device remembers refusals.
    let folder = tempfile::tempdir().unwrap();
    for (op, refused) in
        [(Op::Discard, 2), (Op::WriteZeroes { may_unmap: true }, 2), (Op::WriteZeroes { may_unmap: false }, 1)]
    {
        let (device, path) = buffered_device(&folder, MIB);
        let mut hand = Hand::new(&device, 1);
        hand.submit(0, plain(0, op, 1000, 600_000));
        for _ in 0..refused {
            let step = hand.one_pushed(FALLOCATE);
            hand.answer(&step, -libc::EOPNOTSUPP);
        }
        // 600 000 bytes in pieces of 262 144: three writes.
        for _ in 0..3 {
            let step = hand.one_pushed(WRITE);
            hand.carry_out(&step);
        }
        assert_eq!(hand.reap_one(0).0, Status::Ok);
        let expected = [vec![0xaa; 1000], vec![0; 600_000], vec![0xaa; 1000]].concat();
        assert_eq!(bytes_at(&path, 0, 602_000), expected, "{op:?}");
        hand.submit(0, plain(0, op, 0, 10));
        let step = hand.one_pushed(WRITE);
        hand.carry_out(&step);
    }
}

#[test]
fn zeroes_that_must_be_fast_are_refused_at_once_where_the_file_system_would_write_them() {
    let folder = tempfile::tempdir().unwrap();
    for (may_unmap, refused) in [(true, 2), (false, 1)] {
        let (device, path) = buffered_device(&folder, MIB);
        let mut hand = Hand::new(&device, 1);
        let fast = |at| plain(0, Op::FastZeroes { may_unmap }, at, 600_000);
        hand.submit(0, fast(0));
        let step = hand.one_pushed(FALLOCATE);
        hand.carry_out(&step);
        assert_eq!(hand.reap_one(0).0, Status::Ok);
        hand.submit(0, fast(1000));
        for _ in 0..refused {
            let step = hand.one_pushed(FALLOCATE);
            hand.answer(&step, -libc::EOPNOTSUPP);
        }
        assert_eq!(hand.reap_one(0).0, Status::Unsupported);
        // The first use has found out.
        hand.submit(0, fast(1000));
        assert_eq!((hand.reap_one(0).0, hand.pushed().len()), (Status::Unsupported, 0));
        assert_eq!(bytes_at(&path, 600_000, 1000), [0xaa; 1000]);
    }
    // Bytes before a whole block would have to be read and written first.
    let Some((device, _)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 1);
    for (offset_bytes, length_bytes) in [(1, 3 * 4096), (0, 100)] {
        hand.submit(0, plain(0, Op::FastZeroes { may_unmap: true }, offset_bytes, length_bytes));
        assert_eq!((hand.reap_one(0).0, hand.pushed().len()), (Status::Unsupported, 0));
    }
}

#[test]
fn write_zeroes_that_may_not_unmap_never_makes_a_hole() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let (device, path) = buffered_device(&folder, MIB);
    File::open(&path).unwrap().sync_all().unwrap();
    let stored = || std::fs::metadata(&path).unwrap().blocks();
    let before = stored();
    let mut hand = Hand::new(&device, 1);
    hand.submit(0, plain(0, Op::WriteZeroes { may_unmap: false }, 0, MIB as u32));
    hand.carry_out_all();
    assert!(stored() >= before, "{} sectors of {before} are left", stored());
    assert_eq!(bytes_at(&path, 0, MIB as usize), vec![0; MIB as usize]);
}

#[test]
fn fua_makes_the_last_step_stable() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, _)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 1);
    let steps = |hand: &mut Hand, command: Command| {
        hand.submit(0, Command { fua: true, ..command });
        let mut seen = Vec::new();
        while let Some(step) = hand.pushed().pop() {
            seen.push((step.opcode, step.flags));
            hand.carry_out(&step);
        }
        assert_eq!(hand.reap_one(0).0, Status::Ok);
        seen
    };
    let (dsync, datasync) = (libc::RWF_DSYNC as u32, 1);
    assert_eq!(steps(&mut hand, write(0, 0, &[1; 4096])), [(WRITE, dsync)]);
    assert_eq!(steps(&mut hand, write(0, 1, &[1; 8])), [(READ, 0), (WRITE, dsync)]);
    // Bytes 1..=8195: a patch at each end and the whole block between, then one sync for all.
    let zeroes = [(READ, 0), (WRITE, 0), (FALLOCATE, 0), (READ, 0), (WRITE, 0), (FSYNC, datasync)];
    assert_eq!(steps(&mut hand, plain(0, Op::WriteZeroes { may_unmap: true }, 1, 8194)), zeroes);
}

#[test]
fn once_the_page_cache_has_lost_a_write_no_flush_claims_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let (device, _) = buffered_device(&folder, MIB);
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, plain(0, Op::Flush, 0, 0));
    let step = hand.one_pushed(FSYNC);
    hand.answer(&step, -libc::EIO);
    assert_eq!(hand.reap_one(0).0, Status::Io);
    hand.submit(1, plain(0, Op::Flush, 0, 0));
    assert_eq!(hand.reap_one(1).0, Status::Io);
    hand.submit(1, Command { fua: true, ..write(0, 0, &[1]) });
    assert_eq!(hand.reap_one(1).0, Status::Io);
    assert_eq!(hand.pushed().len(), 0);
}

#[test]
fn a_drive_that_failed_a_flush_may_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, _)) = direct_device(&folder, MIB) else { return };
    let mut hand = Hand::new(&device, 1);
    hand.submit(0, plain(0, Op::Flush, 0, 0));
    let step = hand.one_pushed(FSYNC);
    hand.answer(&step, -libc::EIO);
    assert_eq!(hand.reap_one(0).0, Status::Io);
    hand.submit(0, plain(0, Op::Flush, 0, 0));
    hand.carry_out_all();
    assert_eq!(hand.reap_one(0).0, Status::Ok);
}

#[test]
fn what_the_layers_above_should_have_refused_never_reaches_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let (device, _) = buffered_device(&folder, MIB);
    let mut hand = Hand::new(&device, 1);
    let without_buffer = Command { buffer: None, ..read(0, 0, 4096) };
    let small_buffer = Command { length_bytes: 8192, ..read(0, 0, 4096) };
    let behind_the_end = Command { op: Op::Extents, ..read(0, MIB - 1, 2) };
    let unanswerable = plain(0, Op::Extents, 0, 1);
    for command in [
        read(0, MIB, 1),
        read(0, u64::MAX, 1),
        plain(0, Op::Discard, 1, MIB as u32),
        without_buffer,
        small_buffer,
        behind_the_end,
        unanswerable,
    ] {
        hand.submit(0, command);
        assert_eq!(hand.reap_one(0).0, Status::Invalid);
    }
    assert_eq!(hand.pushed().len(), 0);
}

#[test]
fn a_queue_dropped_in_the_middle_leaks_what_the_kernel_may_touch() {
    let folder = tempfile::tempdir().unwrap();
    let Some((device, path)) = direct_device(&folder, MIB) else { return };
    let block_bytes = device.direct_block_bytes().unwrap() as i32;
    let mut hand = Hand::new(&device, 2);
    hand.submit(0, read(0, 0, 4096));
    hand.submit(0, write(1, 4096 + 50, &[1; 100]));
    let steps = hand.pushed();
    hand.submit(0, write(2, 8192 + 50, &[1; 100]));
    hand.queues.remove(0);
    drop(device);
    for step in &steps {
        // Late, into memory that is still there and through a descriptor that is still this file.
        assert_eq!(hand.kernel(step), if step.user == 0 { 4096 } else { block_bytes });
    }
    assert_eq!(bytes_at(&path, 0, 16384), [0xaa; 16384]);
    drop(hand);
    let again = File::open(&path).unwrap();
    // SAFETY: no memory is involved, and the descriptor is open.
    let locked = unsafe { libc::flock(again.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    assert_eq!(locked, -1, "the leaked descriptor keeps the lock");
}

#[test]
fn without_a_ring_there_is_no_queue() {
    let folder = tempfile::tempdir().unwrap();
    let (device, _) = buffered_device(&folder, MIB);
    let options = QueueOptions { hctx: HctxId(0), depth: 1, ring: None, interrupt: Arc::new(|_| {}) };
    assert_eq!(device.open_queue(options).err(), Some("a file device needs a worker with an io_uring".to_string()));
}

// Commands that are aborted.

const ASYNC_CANCEL: u8 = 14;

fn device_of(folder: &TempDir, size_bytes: u64) -> FileDevice {
    FileDevice::open(&FileOptions::new(file_of(folder, size_bytes))).unwrap()
}

#[test]
fn an_aborted_command_is_cancelled_and_ends_once() {
    let folder = tempfile::tempdir().unwrap();
    let device = device_of(&folder, MIB);
    let mut hand = Hand::new(&device, 1);
    for (answer, status) in [
        (-libc::ECANCELED, Status::TimedOut),
        (-libc::EINTR, Status::TimedOut),
        (4096, Status::Ok),
        (-libc::EIO, Status::Io),
    ] {
        assert!(!hand.queues[0].abort(Tag(3), 0), "there is no such command");
        hand.submit(0, write(3, 0, &[1; 4096]));
        let pushed = hand.one_pushed(WRITE);
        assert!(hand.queues[0].abort(Tag(3), 0));
        let cancel = hand.one_pushed(ASYNC_CANCEL);
        assert!(hand.reap(0).is_empty(), "the kernel still has its buffer");
        hand.answer(&cancel, 0);
        hand.answer(&pushed, answer);
        assert_eq!(hand.reap_one(0).0, status);
        assert_eq!((hand.pushed().len(), hand.queues[0].in_flight()), (0, 0));
    }
    // Cut short after its first block, and no further step begins.
    hand.submit(0, write(0, 0, &[1; 3 * 4096]));
    let pushed = hand.one_pushed(WRITE);
    assert!(hand.queues[0].abort(Tag(0), 0));
    hand.one_pushed(ASYNC_CANCEL);
    hand.answer(&pushed, 4096);
    assert_eq!((hand.pushed().len(), hand.reap(0).pop().unwrap().status), (0, Status::TimedOut));
}
