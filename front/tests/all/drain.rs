//! The drain of one export, through real sockets and workers: its clients go, no new one gets it, the others go on.

use mqfq_blk::client::DeviceIndex;
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::slots::{Slot, Slots};
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions};
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::{BlockSizes, Export, ExportId, ExportState, ExportTable, TenantId};
use mqfq_front::front_end::{ListenOptions, drain_export};
use mqfq_front::memory::TenantMemory;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The limit is for the day on which a test fails.
const LIMIT: Duration = Duration::from_secs(20);

const SIZE_BYTES: u64 = 1 << 20;

fn engine() -> Engine {
    let (memory, policy) = (Arc::new(MemoryDevice::new(SIZE_BYTES)), PolicyOptions::new(PolicyKind::Mqfq));
    let device = DeviceOptions::new("memory", memory, policy, vec![FlowOptions::new("a")]);
    Engine::start(EngineOptions { workers: 2, pin: false, spin_ns: 0, devices: vec![device] }).unwrap()
}

/// An NBD client that chose `export` by NBD_OPT_EXPORT_NAME, or `None` if it was closed for that.
fn connect(path: &Path, export: &str) -> Option<UnixStream> {
    let mut socket = UnixStream::connect(path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle, no zeroes; IHAVEOPT, option 1.
    let mut hello = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes()].concat();
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    socket.write_all(&hello).unwrap();
    let mut size = [0; 10];
    socket.read_exact(&mut size).ok()?;
    assert_eq!(size[..8], SIZE_BYTES.to_be_bytes());
    Some(socket)
}

/// Reads the first 512 bytes.
fn read(socket: &mut UnixStream) {
    let mut request = [&0x2560_9513u32.to_be_bytes()[..], &[0; 4], &7u64.to_be_bytes(), &[0; 8]].concat();
    request.extend(512u32.to_be_bytes());
    socket.write_all(&request).unwrap();
    let mut reply = [0; 16 + 512];
    socket.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
}

#[test]
fn an_export_is_drained_and_the_others_go_on() {
    let folder = std::env::temp_dir().join(format!("mqfq-front-drain-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("s");
    let engine = engine();
    let mut slots = Slots::new(8);
    let [a, b] = ["a", "b"].map(|name| Export {
        id: ExportId(slots.insert(name).unwrap()),
        name: name.to_owned(),
        description: String::new(),
        device: DeviceIndex(0),
        flow: FlowId(0),
        tenant: TenantId(Slot::first(0)),
        state: ExportState::default(),
        offset_bytes: 0,
        size_bytes: SIZE_BYTES,
        read_only: false,
        block: BlockSizes::DEFAULT,
        memory: TenantMemory::unbounded(),
        caps: mqfq_blk::cap::Caps::none(),
    });
    let table = Arc::new(ExportTable::new([a.clone(), b.clone()]).unwrap());
    let nbd = FRONT_ENDS.iter().find(|front_end| front_end.name() == "nbd").unwrap();
    let address = nbd.parse(&format!("unix:{}", path.display())).unwrap();
    let listener = address.listen(table, &ListenOptions::default()).unwrap();
    let stats = listener.stats();
    listener.into_clients().into_iter().for_each(|client| engine.attach(client));

    let mut of_a: Vec<UnixStream> = (0..3).map(|_| connect(&path, "a").unwrap()).collect();
    let mut of_b = connect(&path, "b").unwrap();
    of_a.iter_mut().chain([&mut of_b]).for_each(read);
    assert!(drain_export(&engine, &a, LIMIT), "nobody had to be cut off");
    assert_eq!(stats.counts().connections, 1);
    for mut socket in of_a {
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "closed");
    }
    read(&mut of_b);
    assert!(connect(&path, "a").is_none(), "it is not there any more");
    read(&mut connect(&path, "b").unwrap());
    assert!(engine.drain(LIMIT));
    drop(engine);
    assert!(!path.exists(), "the socket's file went with the listener");
    std::fs::remove_dir(&folder).unwrap();
}
