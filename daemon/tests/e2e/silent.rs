//! A file system that does not answer: FUSE, whose server has been stopped.

use crate::client::{CMD_FLUSH, CMD_READ, Client, Request};
use crate::server::{Folder, Server, arg, command};
use mqfq_testing::{machine, tools};
use std::path::PathBuf;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// A file in a file system of its own, which QEMU serves from another file. It is unmounted when dropped, and requests
/// that wait for it end.
struct Fuse {
    path: PathBuf,
    server: libc::pid_t,
}

impl Fuse {
    fn start(folder: &Folder, size_bytes: u64) -> Fuse {
        let (path, pid_file) = (folder.file("fuse", 0), folder.join("fuse.pid"));
        let block = format!("driver=file,node-name=f,filename={}", arg(&folder.file("behind", size_bytes)));
        let export = format!("type=fuse,id=x,node-name=f,writable=on,mountpoint={}", arg(&path));
        let daemon = ["--daemonize", "--pidfile", arg(&pid_file), "--blockdev", &block, "--export", &export];
        tools::run_ok("qemu-storage-daemon", &daemon);
        let server = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        Fuse { path, server }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill has no memory effects. The process is ours, and lives until this is dropped.
        assert_eq!(unsafe { libc::kill(self.server, signal) }, 0);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.path).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
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
    let fuse = Fuse::start(&folder, 64 * MIB);
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
