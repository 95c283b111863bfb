//! Disks of virtual machines: the built binary, and virtio-driver, which is not ours, as the guest.

use crate::server::{Folder, Server, arg, ended, mqfq};
use mqfq_testing::tools::need;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use virtio_driver::{VhostUser, VirtioBlkQueue, VirtioBlkTransport};

const CONFIG: &str = "[device.d]\nkind = \"memory\"\nsize = \"2MiB\"\npolicy = \"mqfq\"\n[tenant.alice]\n\
    [export.alice-root]\ndevice = \"d\"\ntenant = \"alice\"\nvhost-user = \"unix:@/alice\"\n";

#[test]
fn a_guest_writes_and_reads_its_disk() {
    let server = Server::start(CONFIG);
    let path = server.join("alice");
    // All that is offered.
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

/// The boot sector ends QEMU with a status of its own.
#[test]
fn seabios_boots_from_a_disk() {
    need!("qemu-system-x86_64");
    let folder = Folder::new();
    // mov al, 0x15; out 0xf4, al; hlt
    let mut sector = [&[0xb0, 0x15, 0xe6, 0xf4, 0xf4][..], &[0; 505], &[0x55, 0xaa]].concat();
    sector.resize(1 << 20, 0);
    std::fs::write(folder.join("disk"), sector).unwrap();
    let config = CONFIG.replace("kind = \"memory\"\nsize = \"2MiB\"", "kind = \"file\"\npath = \"@/disk\"");
    let server = Server::start_in(folder, &config);
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-m", "64M", "-machine", "q35,memory-backend=mem", "-nodefaults", "-display", "none"]);
    qemu.args(["-object", "memory-backend-memfd,id=mem,size=64M,share=on", "-chardev"]);
    qemu.arg(format!("socket,id=disk,path={}", arg(&server.join("alice"))));
    qemu.args(["-device", "vhost-user-blk-pci,chardev=disk", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    let mut running = qemu.stdin(Stdio::null()).spawn().unwrap();
    assert_eq!(ended(&mut running).code(), Some(0x15 << 1 | 1), "no firmware ends with this");
    server.terminate();
}

#[test]
fn a_disks_socket_is_one_exports_and_no_tcp() {
    let folder = Folder::new();
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
