//! Disks of virtual machines: the built binary, and virtio-driver, which is not ours, as the guest. Block devices of
//! the kernel: where there is no driver, one sentence says so; where there is one, see the guest's tests. And a file
//! system that does not answer: FUSE, whose server has been stopped.

use crate::client::{CMD_FLUSH, CMD_READ, Client, Request};
use crate::server::{Folder, Fuse, MIB, Server, arg, command, ended, mqfq};
use mqfq_testing::machine;
use mqfq_testing::tools::{self, need};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
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

const UBLK_CONFIG: &str = "[device.d]\nkind = \"memory\"\nsize = \"2MiB\"\n[tenant.alice]\n\
    [export.alice-root]\ndevice = \"d\"\ntenant = \"alice\"\nublk = 0\nrecovery = \"reissue\"\n";

#[test]
fn without_the_driver_a_block_device_is_refused_in_one_sentence() {
    let folder = Folder::new();
    let path = folder.join("config.toml");
    std::fs::write(&path, UBLK_CONFIG).unwrap();
    if Path::new("/dev/ublk-control").exists() {
        eprintln!("left out: this machine has the driver, and its devices may be in use");
        return;
    }
    for command in ["check", "serve"] {
        let refused = mqfq(&[command, path.to_str().unwrap()]);
        assert_eq!(
            String::from_utf8_lossy(&refused.stderr),
            "mqfq: cannot serve ublk 0 (recovery reissue): /dev/ublk-control is missing: this kernel has no ublk \
             driver, or `modprobe ublk_drv` was not run\n"
        );
        assert_eq!(refused.status.code(), Some(1));
    }
}

/// The device of a file, its tenant, and its export on a socket of the same name.
fn device(name: &str, path: &str) -> String {
    format!(
        "[device.{name}]\nkind = \"file\"\npath = \"{path}\"\nexpert.direct = \"never\"\n[tenant.{name}]\n\
         [export.{name}]\ndevice = \"{name}\"\ntenant = \"{name}\"\nnbd = \"unix:@/{name}.sock\"\n"
    )
}

/// A read of a FUSE file first asks its server whether the file can be polled, and so puts the thread to sleep that
/// submits it. More flushes are under way on each worker than the kernel makes threads for by itself, four per core.
#[test]
fn a_file_system_that_does_not_answer_holds_up_its_own_tenants_alone_and_another_server_may_have_the_other_disks() {
    tools::need!("qemu-storage-daemon");
    if !std::path::Path::new("/dev/fuse").exists() {
        println!("skipped: this kernel has no FUSE");
        return;
    }
    let _machine = machine::shared();
    let folder = Folder::new();
    folder.file("good", MIB);
    let fuse = Fuse::start(&folder, "fuse", 64 * MIB);
    let good = device("good", "@/good");
    let both = format!("[server]\nworkers = 2\ndrain-s = 1\n{}{good}", device("slow", arg(&fuse.path)));
    let mut server = Server::start_in(folder, &both);
    // Before the server, whose end waits for it.
    let fuse = fuse;
    fuse.signal(libc::SIGSTOP);
    let mut waiting: Vec<Client> = (0..4).map(|_| Client::connect(&server.socket("slow"), "slow")).collect();
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    // For each of two workers more than the kernel makes threads for, and half of the device's 64 at most.
    let flushes = (2 * (4 * cores + 1)).min(60);
    for (number, client) in (0..64).zip((0..4).cycle()) {
        let read = Request { offset_bytes: number * MIB, length_bytes: 4096, ..Request::of(CMD_READ) };
        let request = if number < flushes { Request::of(CMD_FLUSH) } else { read };
        waiting[client].send(Request { cookie: number, ..request }, &[]).unwrap();
    }
    for turn in 0..4 {
        let mut client = Client::connect(&server.socket("good"), "good");
        client.write(turn * 4096, &[turn as u8; 4096]).unwrap();
        client.flush().unwrap();
        assert_eq!(client.read(turn * 4096, 4096).unwrap(), [turn as u8; 4096]);
    }
    server.signal(libc::SIGTERM);
    server.note_with("device slow has not ended 64 requests within twice 1 s");
    // The kernel keeps the process, but not its other files.
    let next = Server::start_by(Folder::none(), command(server.folder(), &format!("[server]\nworkers = 1\n{good}")));
    let mut client = Client::connect(&server.socket("good"), "good");
    assert_eq!(client.read(3 * 4096, 4096).unwrap(), [3; 4096]);
    drop((client, next));
    drop(fuse);
    let (status, _) = server.wait();
    assert_eq!(status.code(), Some(1));
}
