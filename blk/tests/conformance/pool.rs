//! A pool of unlike backings: each passes the suite as a device of its own, and none is reached through another (I17).

use crate::SIZE_BYTES;
use crate::harness::{Driver, Rig, pattern, plain, read, write};
use crate::loop_device::LoopDevice;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions, number_of, region_of};
use mqfq_blk::device::{Command, Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::request::{Op, Status};
use mqfq_blk::tag::Tag;
use mqfq_testing::Random;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Files of a pool, and loop devices on them.
struct Files {
    folder: TempDir,
    loops: Vec<LoopDevice>,
}

/// One backing of a pool as a device, as an export sees it.
struct Window {
    pool: Arc<FileDevice>,
    number: u16,
    size_bytes: u64,
}

struct WindowQueue {
    queue: Box<dyn DeviceQueue>,
    first: u64,
}

impl Device for Window {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { size_bytes: self.size_bytes, ..self.pool.info_at(region_of(self.number)) }
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        Ok(Box::new(WindowQueue { queue: self.pool.open_queue(options)?, first: region_of(self.number) }))
    }
}

impl DeviceQueue for WindowQueue {
    fn submit(&mut self, mut command: Command) -> Result<(), QueueFull> {
        command.offset_bytes += self.first;
        self.queue.submit(command).map_err(|QueueFull(mut command)| {
            command.offset_bytes -= self.first;
            QueueFull(command)
        })
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.queue.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        self.queue.reap(now_ns, out);
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.queue.next_event_ns()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn abort(&mut self, tag: Tag, now_ns: u64) -> bool {
        self.queue.abort(tag, now_ns)
    }

    fn follow(&mut self, number: u16) -> Result<(), String> {
        self.queue.follow(number)
    }

    fn ring_event(&mut self, user: u32, result: i32) {
        self.queue.ring_event(user, result);
    }
}

/// The backing of this number among three: a regular file through the page cache, loop devices with blocks of 4096 and
/// of 512 bytes. Where none can be made they are files past the page cache, or through it.
pub fn rig(number: u16) -> Option<Rig> {
    let mut files = Files { folder: tempfile::tempdir().unwrap(), loops: Vec::new() };
    let pool = Arc::new(FileDevice::pool());
    for (of, block_bytes) in [(0, None), (1, Some(4096)), (2, Some(512))] {
        let image = files.folder.path().join(format!("image{of}"));
        std::fs::File::create(&image).unwrap().set_len(SIZE_BYTES).unwrap();
        let attached = block_bytes.map(|block_bytes| LoopDevice::attach_of(&image, block_bytes));
        let path = match attached {
            Some(Ok(device)) => {
                files.loops.push(device);
                files.loops.last().expect("pushed").path.clone()
            }
            Some(Err(reason)) => {
                eprintln!("no loop device: {reason}");
                image
            }
            None => image,
        };
        let direct = if block_bytes.is_some() { Direct::Auto } else { Direct::Never };
        pool.add(of, &FileOptions { direct, ..FileOptions::new(path) }, None).unwrap();
    }
    Some(Rig::new(Window { pool, number, size_bytes: SIZE_BYTES }).holding(files))
}

const FILES: usize = 6;
const NUMBERS: u16 = 4;
/// Bytes of each file. Those that are not served are guards.
const FILE_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: u64 = 4096;

/// A pool, and what each file holds.
struct Model {
    folder: TempDir,
    pool: Arc<FileDevice>,
    rig: Rig,
    files: Vec<Vec<u8>>,
    /// By number: the file, and the bytes that are served.
    there: Vec<Option<(usize, u64)>>,
}

impl Model {
    fn new() -> Model {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<Vec<u8>> = (0..FILES as u64).map(|file| pattern(0, FILE_BYTES as usize, file)).collect();
        let pool = Arc::new(FileDevice::pool());
        // Its own size means nothing here.
        let rig = Rig::new(Window { pool: pool.clone(), number: 0, size_bytes: 0 });
        let model = Model { folder, pool, rig, files, there: vec![None; NUMBERS.into()] };
        (0..FILES).for_each(|file| std::fs::write(model.path(file), &model.files[file]).unwrap());
        model
    }

    fn path(&self, file: usize) -> PathBuf {
        self.folder.path().join(format!("file{file}"))
    }

    fn bytes(random: &mut Random) -> u64 {
        random.between(1, FILE_BYTES / BLOCK_BYTES) * BLOCK_BYTES
    }

    /// One change of the backings, or an attempt.
    fn change(&mut self, random: &mut Random) -> u16 {
        let number = random.below(NUMBERS.into()) as u16;
        match self.there[usize::from(number)] {
            None => {
                let file = random.index(FILES);
                let (path, size_bytes) = (self.path(file), Model::bytes(random));
                let direct = if random.chance(2) { Direct::Never } else { Direct::Auto };
                let options = FileOptions { size_bytes: Some(size_bytes), direct, ..FileOptions::new(path) };
                let is_free = self.there.iter().flatten().all(|(other, _)| *other != file);
                assert_eq!(self.pool.add(number, &options, None).is_ok(), is_free, "a file is one backing's");
                if is_free {
                    self.there[usize::from(number)] = Some((file, size_bytes));
                }
            }
            Some((file, size_bytes)) if random.chance(2) => {
                let wanted = Model::bytes(random);
                self.pool.grow(number, wanted).unwrap();
                self.there[usize::from(number)] = Some((file, size_bytes.max(wanted)));
                assert!(self.pool.grow(number, FILE_BYTES + 1).is_err(), "more than there is");
            }
            Some((file, _)) => {
                assert_eq!(self.pool.remove(number), Some(self.path(file)));
                self.there[usize::from(number)] = None;
            }
        }
        number
    }

    /// A request anywhere, also where no backing is.
    fn ask(&mut self, random: &mut Random, driver: &mut Driver) {
        let number = random.below(u64::from(NUMBERS) + 1) as u16;
        let (at, length) = (random.below(FILE_BYTES + BLOCK_BYTES), random.between(1, 3 * BLOCK_BYTES) as usize);
        let address = region_of(number) + at;
        assert_eq!(number_of(address), number);
        let there = self.there.get(usize::from(number)).copied().flatten();
        let fits = there.filter(|(_, size_bytes)| at + length as u64 <= *size_bytes);
        let bytes = pattern(address, length, random.below(100));
        let range = at as usize..at as usize + length;
        let command = match random.below(4) {
            0 => write(0, address, &bytes),
            1 => read(0, address, length),
            2 => plain(0, Op::WriteZeroes { may_unmap: random.chance(2) }, address, length),
            _ => plain(0, Op::Flush, region_of(number), 0),
        };
        let op = command.op;
        let reaped = driver.run(command);
        let is_good = if op == Op::Flush { there.is_some() } else { fits.is_some() };
        assert_eq!(reaped.status, if is_good { Status::Ok } else { Status::Invalid }, "{op:?} at {at} of {number}");
        let (true, Some((file, _))) = (is_good, fits) else { return };
        let held = &mut self.files[file][range];
        match op {
            Op::Write => held.copy_from_slice(&bytes),
            Op::WriteZeroes { .. } => held.fill(0),
            Op::Read => assert_eq!(&reaped.buffer.unwrap().as_slice()[..length], held),
            _ => {}
        }
    }

    fn assert_all(&self, context: &str) {
        for (file, held) in self.files.iter().enumerate() {
            assert!(contents(&self.path(file)) == *held, "{context}: file {file} holds other bytes");
        }
    }
}

fn contents(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES as usize];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn i17_backings_that_come_go_and_grow_are_reached_by_their_own_numbers_alone() {
    for seed in 0..30 {
        let random = &mut Random::new(seed);
        let mut model = Model::new();
        let mut drivers = [model.rig.open(0, 8), model.rig.open(1, 8)];
        for _ in 0..60 {
            if random.chance(3) {
                let number = model.change(random);
                drivers.iter_mut().for_each(|driver| driver.follow(number));
            } else {
                let driver = random.index(2);
                model.ask(random, &mut drivers[driver]);
            }
        }
        drop(drivers);
        model.assert_all(&format!("seed {seed}"));
    }
}

#[test]
fn a_backing_with_a_command_under_way_is_kept_and_its_number_is_no_others() {
    let mut model = Model::new();
    for (number, file) in [(0, 0), (1, 1)] {
        model.pool.add(number, &FileOptions::new(model.path(file)), None).unwrap();
    }
    let mut driver = model.rig.open(0, 8);
    driver.submit(write(3, region_of(1), &[7; 512])).unwrap();
    model.pool.remove(1);
    model.pool.add(1, &FileOptions::new(model.path(2)), None).unwrap();
    assert_eq!(driver.try_follow(1), Err("a backing has not ended its requests".to_owned()));
    driver.ring_doorbell();
    assert_eq!(driver.wait_all()[0].status, Status::Ok);
    model.files[1][..512].fill(7);
    driver.follow(1);
    driver.write(region_of(1), &[9; 512]);
    model.files[2][..512].fill(9);
    driver.ok(plain(0, Op::Flush, region_of(1), 0));
    drop(driver);
    model.assert_all("after the change");
    // No queue has the first of them any more, and its lock went with it.
    drop(FileDevice::open(&FileOptions::new(model.path(1))).unwrap());
}
