//! Several files on one engine: each queue's entries reach its own file, and a file is free once its engine is gone.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event};
use mqfq_blk::device::Device;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions};
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::{CostModel, FlowId, PolicyKind, PolicyOptions, PriorityClass, Weight};
use std::path::Path;
use std::sync::{Arc, mpsc};

const BLOCK_BYTES: u32 = 4096;

/// Writes one block, flushes, reads it back and sends the first byte read.
struct WriteThenRead {
    device: DeviceIndex,
    block: u8,
    fill: u8,
    read: Option<mpsc::Sender<u8>>,
}

impl WriteThenRead {
    fn submit(&self, context: &mut dyn Context, op: Op) {
        let length_bytes = if op == Op::Flush { 0 } else { BLOCK_BYTES };
        let buffer = (op != Op::Flush).then(|| {
            let mut buffer = Buffer::new(BLOCK_BYTES as usize);
            buffer.as_mut_slice().fill(self.fill);
            buffer
        });
        let offset_bytes = u64::from(self.block) * u64::from(length_bytes);
        let flow = FlowId(0);
        let submission = Submission { flow, op, offset_bytes, length_bytes, fua: false, buffer, cookie: 0 };
        context.submit(self.device, submission).expect("one request at a time");
    }
}

impl Client for WriteThenRead {
    fn start(&mut self, context: &mut dyn Context) {
        self.submit(context, Op::Write);
    }

    fn event(&mut self, _context: &mut dyn Context, event: Event) {
        unreachable!("it has no socket, yet {event:?}");
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        assert_eq!(completion.status, Status::Ok, "{:?}", completion.op);
        match completion.op {
            Op::Write => self.submit(context, Op::Flush),
            Op::Flush => {
                self.fill = 0xee;
                self.submit(context, Op::Read);
            }
            _ => {
                let buffer = completion.buffer.expect("a read's buffer comes back");
                let read = self.read.take().expect("one read");
                read.send(buffer.as_slice()[0]).expect("the test waits for it");
            }
        }
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, _context: &mut dyn Context) {}

    fn is_done(&self) -> bool {
        self.read.is_none()
    }
}

fn open(path: &Path) -> Arc<dyn Device> {
    let options =
        FileOptions { size_bytes: Some(1 << 20), direct: Direct::Never, create: true, ..FileOptions::new(path) };
    Arc::new(FileDevice::open(&options).expect("free, and in a folder of ours"))
}

fn engine(devices: Vec<Arc<dyn Device>>) -> Engine {
    let options = |device| DeviceOptions {
        grouping: Default::default(),
        name: "device".into(),
        device,
        policy: PolicyOptions::new(PolicyKind::Mqfq),
        prepare: None,
        queue_depth: 8,
        flows: vec![FlowOptions {
            name: "a".into(),
            weight: Weight::DEFAULT,
            class: PriorityClass::default(),
            limits: StageLimits::DEFAULT,
            goal: None,
        }],
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    };
    let devices = devices.into_iter().map(options).collect();
    Engine::start(EngineOptions { workers: 2, pin: false, spin_ns: 0, devices }).unwrap()
}

/// Writes `fill` to `block` on that worker and returns what it reads back.
fn write_then_read(engine: &Engine, worker: usize, device: u16, block: u8, fill: u8) -> u8 {
    let (sender, read) = mpsc::channel();
    let client = WriteThenRead { device: DeviceIndex(device), block, fill, read: Some(sender) };
    engine.attach_to(worker, Box::new(move || Box::new(client)));
    read.recv().expect("the worker lives")
}

#[test]
fn entries_of_each_queue_reach_its_own_file() {
    // Device 1 has no file, so places among the registered files and devices with a file are not the same numbers.
    let folder = tempfile::tempdir().unwrap();
    let paths = ["first", "second"].map(|name| folder.path().join(name));
    let null: Arc<dyn Device> = Arc::new(NullDevice::new(1 << 20));
    let engine = engine(vec![open(&paths[0]), null, open(&paths[1])]);
    for worker in [0, 1] {
        for (device, fill) in [(0, 10), (2, 20)] {
            let fill = fill + worker as u8;
            assert_eq!(write_then_read(&engine, worker, device, worker as u8, fill), fill);
        }
        assert_eq!(write_then_read(&engine, worker, 1, 0, 99), 0, "the null device has nothing to read");
    }
    drop(engine);
    for (path, fills) in paths.iter().zip([[10, 11], [20, 21]]) {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!([bytes[0], bytes[BLOCK_BYTES as usize]], fills, "{}", path.display());
    }
}

#[test]
fn a_file_is_free_as_soon_as_its_engine_is_gone() {
    // The kernel takes rings down in the background, and until then they keep their registered files open. Fails
    // without the explicit end of the lock in `Backing`'s drop. (Opening would not show it: that waits a while for the
    // kernel.)
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for fill in 1..20 {
        let engine = engine(vec![open(&path)]);
        assert_eq!(write_then_read(&engine, 0, 0, 0, fill), fill);
        drop(engine);
        std::fs::File::open(&path).unwrap().try_lock().expect("nobody holds it");
    }
}
