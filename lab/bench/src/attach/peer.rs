//! The servers that are compared, each as its own process with a device that does nothing: the way to it is measured.

use crate::nbd_record::server::{EXPORT_BYTES, cpu_ns_of};
use mqfq_demo::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time from a server's start until it can be attached to.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How clients attach. A front end that others bring is a variant here, and an arm where it is matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// Driven by virtio-driver.
    VhostUserBlk,
    /// Driven by fio's engine.
    Nbd,
}

/// Whose server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// Ours with this policy, on the null device.
    Mqfq(&'static str),
    /// With null-co, which leaves a read's buffer as it is.
    QemuStorageDaemon,
    /// With null-co that writes zeroes into it, as our null device does.
    QemuStorageDaemonZeroes,
    /// With its null plugin.
    Nbdkit,
}

/// Ours first: the others are compared with it.
pub const PEERS: [(Front, Server); 8] = [
    (Front::VhostUserBlk, Server::Mqfq("mqfq")),
    (Front::VhostUserBlk, Server::Mqfq("none")),
    (Front::VhostUserBlk, Server::QemuStorageDaemon),
    (Front::VhostUserBlk, Server::QemuStorageDaemonZeroes),
    (Front::Nbd, Server::Mqfq("mqfq")),
    (Front::Nbd, Server::Mqfq("none")),
    (Front::Nbd, Server::QemuStorageDaemon),
    (Front::Nbd, Server::Nbdkit),
];

impl Front {
    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Front::VhostUserBlk => "vhost-user-blk",
            Front::Nbd => "nbd",
        }
    }
}

impl Server {
    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Server::Mqfq(_) => "mqfq",
            Server::QemuStorageDaemon => "qemu-storage-daemon",
            Server::QemuStorageDaemonZeroes => "qemu-storage-daemon, zeroes",
            Server::Nbdkit => "nbdkit",
        }
    }

    /// What decides about order there, in a row.
    pub fn policy(self) -> &'static str {
        match self {
            Server::Mqfq(policy) => policy,
            Server::QemuStorageDaemon | Server::QemuStorageDaemonZeroes | Server::Nbdkit => "null",
        }
    }

    /// The program, given the path of ours.
    pub fn program(self, mqfq: &Path) -> PathBuf {
        match self {
            Server::Mqfq(_) => mqfq.to_owned(),
            Server::QemuStorageDaemon | Server::QemuStorageDaemonZeroes => "qemu-storage-daemon".into(),
            Server::Nbdkit => "nbdkit".into(),
        }
    }
}

/// A server that can be attached to; ends when it is dropped.
pub struct Running {
    child: Child,
    socket: PathBuf,
    _scratch: Scratch,
}

impl Running {
    /// Starts it, and waits until its socket is there.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(front: Front, server: Server, mqfq: &Path) -> Result<Running, String> {
        let scratch = Scratch::new()?;
        let socket = scratch.path().join("socket");
        let mut command = Command::new(server.program(mqfq));
        let at = socket.display();
        match server {
            Server::Mqfq(policy) => {
                let key = if front == Front::Nbd { "nbd" } else { "vhost-user" };
                let depth = if policy == "none" { "" } else { "depth = 64\nwindow = \"64KiB\"\n" };
                let config = format!(
                    "[device.d]\nkind = \"null\"\nsize = \"{EXPORT_BYTES}\"\npolicy = \"{policy}\"\n{depth}\n\
                     [tenant.t]\nweight = 100\n\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\noffset = \"0\"\n\
                     size = \"{EXPORT_BYTES}\"\n{key} = \"unix:{at}\"\n"
                );
                let path = scratch.path().join("mqfq.toml");
                std::fs::write(&path, config).map_err(|error| format!("{}: {error}", path.display()))?;
                command.arg("serve").arg(path);
            }
            Server::QemuStorageDaemon | Server::QemuStorageDaemonZeroes => {
                let zeroes = if server == Server::QemuStorageDaemonZeroes { "on" } else { "off" };
                let node = format!("driver=null-co,node-name=n,size={EXPORT_BYTES},read-zeroes={zeroes}");
                command.args(["--blockdev", &node]);
                match front {
                    Front::Nbd => {
                        command.args(["--nbd-server", &format!("addr.type=unix,addr.path={at}")]);
                        command.args(["--export", "type=nbd,id=x,node-name=n,name=e"]);
                    }
                    Front::VhostUserBlk => {
                        let export = "type=vhost-user-blk,id=x,node-name=n,num-queues=2,addr.type=unix,addr.path=";
                        command.args(["--export", &format!("{export}{at}")]);
                    }
                }
            }
            Server::Nbdkit => {
                command.args(["--foreground", "--newstyle", "--exportname", "e", "--unix"]).arg(&socket);
                command.arg("null").arg(EXPORT_BYTES.to_string());
            }
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", server.name()))?;
        let mut running = Running { child, socket, _scratch: scratch };
        let give_up = Instant::now() + START_TIMEOUT;
        while std::os::unix::net::UnixStream::connect(&running.socket).is_err() {
            if let Ok(Some(status)) = running.child.try_wait() {
                return Err(format!("{} ended at once with {status}", server.name()));
            }
            if Instant::now() > give_up {
                return Err(format!("{} does not listen", server.name()));
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(running)
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// CPU time that the process has used, all threads. Nanoseconds in steps of 10 ms.
    ///
    /// # Errors
    /// One sentence, if the process is gone.
    pub fn cpu_ns(&self) -> Result<u64, String> {
        cpu_ns_of(self.child.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
