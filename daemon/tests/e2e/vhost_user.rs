//! Disks of virtual machines: the built binary, and virtio-driver, which nobody here wrote, as the guest.

use crate::server::{Server, mqfq};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use virtio_driver::{VhostUser, VirtioBlkQueue, VirtioBlkTransport};

const CONFIG: &str = "[device.d]\nkind = \"memory\"\nsize = \"2MiB\"\npolicy = \"mqfq\"\n[tenant.alice]\n\
    [export.alice-root]\ndevice = \"d\"\ntenant = \"alice\"\nvhost-user = \"unix:@/alice\"\n";

#[test]
fn a_guest_writes_and_reads_its_disk() {
    let server = Server::start(CONFIG);
    let path = server.join("alice");
    // All that is offered: it would begin packed rings, which an export must ask for, at base 0 instead of 0x8000.
    let features = u64::MAX;
    let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(path.to_str().unwrap(), features).unwrap());
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    // SAFETY: a new mapping of a file that is as long; it lives as long as the process.
    let bytes = unsafe {
        let (access, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_fd().as_raw_fd());
        let start = libc::mmap(std::ptr::null_mut(), 8192, access, libc::MAP_SHARED, descriptor, 0);
        assert_ne!(start, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(start.cast::<u8>(), 8192)
    };
    transport.map_mem_region(bytes.as_ptr() as usize, 8192, file.as_raw_fd(), 0).unwrap();
    let mut queues = VirtioBlkQueue::<()>::setup_queues(&mut *transport, 1, 64).unwrap();
    queues[0].set_used_notif_enabled(true);
    let (call, kick) = (transport.get_completion_fd(0), transport.get_submission_notifier(0));
    let end = |queue: &mut VirtioBlkQueue<'_, ()>| {
        kick.notify().unwrap();
        loop {
            if let Some(end) = queue.completions().next() {
                return end.ret;
            }
            let mut readable = libc::pollfd { fd: call.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the kernel reads and writes the one structure.
            assert_eq!(unsafe { libc::poll(&raw mut readable, 1, 20_000) }, 1);
            let _ = call.read();
        }
    };
    let (out, into) = bytes.split_at_mut(4096);
    out.fill(7);
    queues[0].write(4096, out, ()).unwrap();
    assert_eq!(end(&mut queues[0]), 0);
    queues[0].read(4096, into, ()).unwrap();
    assert_eq!(end(&mut queues[0]), 0);
    assert_eq!(into, [7; 4096]);
    drop(queues);
    server.terminate();
}

/// GET_FEATURES says that rings may be packed.
fn offers_packed_rings(server: &Server) -> bool {
    let mut socket = UnixStream::connect(server.join("alice")).unwrap();
    let (get_features, version, payload_bytes) = (1_u32, 1_u32, 0_u32);
    socket.write_all(&[get_features, version, payload_bytes].map(u32::to_ne_bytes).concat()).unwrap();
    let (mut header, mut features) = ([0; 12], [0; 8]);
    socket.read_exact(&mut header).unwrap();
    socket.read_exact(&mut features).unwrap();
    u64::from_ne_bytes(features) & 1 << 34 != 0
}

#[test]
fn a_server_that_takes_over_offers_the_rings_of_its_own_config_at_the_same_socket() {
    let config = |rings: &str| format!("[server]\nupgrade = \"unix:@/upgrade.sock\"\n{CONFIG}rings = \"{rings}\"\n");
    let mut server = Server::start(&config("split"));
    assert!(!offers_packed_rings(&server));
    for rings in ["packed", "split"] {
        server = server.replace(&config(rings));
        assert_eq!(offers_packed_rings(&server), rings == "packed");
    }
    server.terminate();
}

#[test]
fn a_disks_socket_is_one_exports_and_no_tcp() {
    let folder = mqfq_testing::Folder::new();
    let check = |config: &str| {
        let path = folder.path().join("config.toml");
        std::fs::write(&path, config.replace('@', folder.path().to_str().unwrap())).unwrap();
        String::from_utf8(mqfq(&["check", path.to_str().unwrap()]).stderr).unwrap()
    };
    let tcp = check(&CONFIG.replace("unix:@/alice", "tcp:localhost:1"));
    assert!(tcp.contains("a guest's memory cannot be shared over TCP, allowed is \"unix:PATH\""), "{tcp}");
    let second = "[export.other]\ndevice = \"d\"\ntenant = \"alice\"\nshared = true\nvhost-user = \"unix:@/alice\"\n";
    let twice = check(&format!("{}shared = true\n{second}", CONFIG));
    assert!(twice.contains("allowed is another address"), "{twice}");
}
