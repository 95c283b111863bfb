//! The servers that are compared, each started as its own process on a socket of its own.
//!
//! All serve 256 MiB that were written once before anything is read, where the server keeps bytes at all: reading what
//! unwritten bytes is a shortcut that servers take differently.

use mqfq_demo::load::{Load, Pattern};
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_demo::scratch::Scratch;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Size of every export.
pub const EXPORT_BYTES: u64 = 256 << 20;

/// Longest time from a server's start until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Name of the socket that clients attach to.
const SOCKET: &str = "socket";

/// Front end. Another one is a variant here, with its lines in [`SERVERS`], and an arm where it is matched.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// A disk of a virtual machine.
    VhostUserBlk,
    /// A network block device.
    Nbd,
}

impl Front {
    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Front::VhostUserBlk => "vhost-user-blk",
            Front::Nbd => "nbd",
        }
    }
}

/// A server with its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    /// How clients attach.
    pub front: Front,
    /// `mqfq`, `qemu-storage-daemon` or `nbdkit`.
    pub program: &'static str,
    /// Ours: `null` and `memory`. QEMU's: `null-co`, which leaves a read's buffer as it is, and `null-co, zeroes`,
    /// which writes zeroes into it as our null device does. nbdkit's: the plugin. [`FILE`]: the file or block device
    /// that the command names.
    pub device: &'static str,
    /// Policy; `-` of others, which have none.
    pub policy: &'static str,
}

const fn server(front: Front, program: &'static str, device: &'static str, policy: &'static str) -> Server {
    Server { front, program, device, policy }
}

/// All servers. Ours under `mqfq` come first: the others are compared with them.
pub const SERVERS: [Server; 18] = [
    server(Front::VhostUserBlk, "mqfq", "null", "mqfq"),
    server(Front::VhostUserBlk, "mqfq", "null", "none"),
    server(Front::VhostUserBlk, "qemu-storage-daemon", "null-co", "-"),
    server(Front::VhostUserBlk, "qemu-storage-daemon", "null-co, zeroes", "-"),
    server(Front::Nbd, "mqfq", "null", "mqfq"),
    server(Front::Nbd, "mqfq", "null", "none"),
    server(Front::Nbd, "qemu-storage-daemon", "null-co", "-"),
    server(Front::Nbd, "nbdkit", "null", "-"),
    server(Front::Nbd, "mqfq", MEMORY, "mqfq"),
    server(Front::Nbd, "mqfq", MEMORY, "none"),
    server(Front::Nbd, "nbdkit", MEMORY, "-"),
    server(Front::VhostUserBlk, "mqfq", FILE, "mqfq"),
    server(Front::VhostUserBlk, "mqfq", FILE, "none"),
    server(Front::VhostUserBlk, "qemu-storage-daemon", FILE, "-"),
    server(Front::Nbd, "mqfq", FILE, "mqfq"),
    server(Front::Nbd, "mqfq", FILE, "none"),
    server(Front::Nbd, "qemu-storage-daemon", FILE, "-"),
    server(Front::Nbd, "nbdkit", FILE, "-"),
];

/// A device that keeps its bytes in the server's memory.
const MEMORY: &str = "memory";

/// A device that is a file or block device.
const FILE: &str = "file";

/// Programs and files that servers are started with.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// Our program.
    pub mqfq: &'a Path,
    /// File or block device of the servers of `file`; without it the other servers are run.
    pub file: Option<&'a Path>,
}

impl Server {
    /// The program.
    pub fn path(&self, ground: Ground<'_>) -> PathBuf {
        if self.program == "mqfq" { ground.mqfq.to_owned() } else { self.program.into() }
    }

    /// It serves the device that is measured.
    pub fn is_of(&self, ground: Ground<'_>) -> bool {
        (self.device == FILE) == ground.file.is_some()
    }

    /// Ours under `mqfq`, by the same front end and on a device of the same kind.
    pub fn is_compared_with(&self, ours: &Server) -> bool {
        (ours.program, ours.policy, ours.front) == ("mqfq", "mqfq", self.front)
            && [FILE, MEMORY].iter().all(|kind| (ours.device == *kind) == (self.device == *kind))
    }

    fn command(&self, ground: Ground<'_>, folder: &Path) -> Result<Command, String> {
        let socket = folder.join(SOCKET);
        let at = socket.display();
        let file = ground.file.map(|file| file.display().to_string()).unwrap_or_default();
        let mut command = Command::new(self.path(ground));
        match self.program {
            "mqfq" => {
                let key = if self.front == Front::Nbd { "nbd" } else { "vhost-user" };
                let depth = if self.policy == "none" { "" } else { "expert = { depth = 64, window = \"64KiB\" }\n" };
                let (place, access) = match self.device {
                    FILE => (format!("path = \"{file}\""), "read-only = true\n"),
                    _ => (format!("size = \"{EXPORT_BYTES}\""), ""),
                };
                let config = format!(
                    "[device.d]\nkind = \"{}\"\n{place}\npolicy = \"{}\"\n{depth}\n[tenant.t]\nweight = 100\n\n\
                     [export.e]\ndevice = \"d\"\ntenant = \"t\"\n{access}{key} = \"unix:{at}\"\n",
                    self.device, self.policy
                );
                command.arg("serve").arg(write_config(folder, &config)?);
            }
            "nbdkit" => {
                command.args(["--foreground", "--newstyle", "--exportname", "e", "--unix"]).arg(&socket);
                match self.device {
                    FILE => command.args(["--readonly", FILE, &file]),
                    plugin => command.args([plugin, &EXPORT_BYTES.to_string()]),
                };
            }
            _ => {
                let null = |zeroes| format!("driver=null-co,node-name=n,size={EXPORT_BYTES},read-zeroes={zeroes}");
                let node = match self.device {
                    FILE => {
                        let is_file = std::fs::metadata(&file).is_ok_and(|metadata| metadata.is_file());
                        let driver = if is_file { "file" } else { "host_device" };
                        let how = "read-only=on,cache.direct=on,aio=io_uring";
                        format!("driver={driver},node-name=n,filename={file},{how}")
                    }
                    "null-co" => null("off"),
                    _ => null("on"),
                };
                command.args(["--blockdev", &node]);
                if self.front == Front::Nbd {
                    command.args(["--nbd-server", &format!("addr.type=unix,addr.path={at}")]);
                    command.args(["--export", "type=nbd,id=x,node-name=n,name=e"]);
                } else {
                    let export = "type=vhost-user-blk,id=x,node-name=n,num-queues=2,addr.type=unix,addr.path=";
                    command.args(["--export", &format!("{export}{at}")]);
                }
            }
        }
        Ok(command)
    }
}

fn write_config(folder: &Path, text: &str) -> Result<PathBuf, String> {
    let path = folder.join("mqfq.toml");
    std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// A server that listens. Dropping it ends it.
pub struct Running {
    child: Child,
    scratch: Scratch,
}

impl Running {
    /// Starts `server`, waits until it listens, and fills its memory, if it has any.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(server: Server, ground: Ground<'_>) -> Result<Running, String> {
        let scratch = Scratch::new()?;
        let running = Running::spawn(server.command(ground, scratch.path())?, scratch, &[SOCKET])?;
        if server.device == MEMORY {
            let fill = Load { write_percent: 100, pattern: Pattern::Sequential, ..Load::random_reads(1, 8, 1 << 20) };
            let mut tenant = NbdTenant::attach(&running.socket(), "e", &fill)?;
            let counted = tenant.run_requests(EXPORT_BYTES / u64::from(fill.request_bytes))?;
            if counted.errors > 0 {
                return Err(format!("{} failed {} writes", server.program, counted.errors));
            }
            tenant.detach();
        }
        Ok(running)
    }

    /// Starts `mqfq serve` with the config that is made for a folder, in which it listens at `sockets`.
    ///
    /// # Errors
    /// One sentence.
    pub fn serve(mqfq: &Path, config: impl FnOnce(&Path) -> String, sockets: &[&str]) -> Result<Running, String> {
        let scratch = Scratch::new()?;
        let mut command = Command::new(mqfq);
        command.arg("serve").arg(write_config(scratch.path(), &config(scratch.path()))?);
        Running::spawn(command, scratch, sockets)
    }

    fn spawn(mut command: Command, scratch: Scratch, sockets: &[&str]) -> Result<Running, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {name}: {error}"))?;
        let mut running = Running { child, scratch };
        let give_up = Instant::now() + START_TIMEOUT;
        while !sockets.iter().all(|socket| UnixStream::connect(running.path(socket)).is_ok()) {
            if let Ok(Some(status)) = running.child.try_wait() {
                return Err(format!("{name} ended at once with {status}"));
            }
            if Instant::now() > give_up {
                return Err(format!("{name} does not listen"));
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(running)
    }

    /// A file of its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.path(SOCKET)
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Time that its threads with names like this have had a core, ns; not of those that have ended.
    ///
    /// # Errors
    /// One sentence, if the process is gone.
    pub fn on_cpu_ns(&self, name: &str) -> Result<u64, String> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let tasks = std::fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        let is_named =
            |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|own| own.starts_with(name));
        let on_cpu_ns = |task: PathBuf| {
            let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(tasks.flatten().map(|task| task.path()).filter(is_named).map(on_cpu_ns).sum())
    }

    /// CPU time that the process has used, all threads, those that ended too. Nanoseconds in steps of 10 ms.
    ///
    /// # Errors
    /// One sentence, if the process is gone.
    pub fn cpu_ns(&self) -> Result<u64, String> {
        Ok(self.user_and_kernel_ns()?.iter().sum())
    }

    /// As [`Running::cpu_ns`], apart: of the program itself, and in the kernel.
    ///
    /// # Errors
    /// One sentence, if the process is gone.
    pub fn user_and_kernel_ns(&self) -> Result<[u64; 2], String> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
        let ticks = cpu_ticks(&text).ok_or_else(|| format!("{path} is not in the format of proc(5)"))?;
        Ok(ticks.map(|ticks| ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system ticks of a `/proc/PID/stat`, fields 14 and 15. The name in field 2 may hold spaces and brackets.
fn cpu_ticks(stat: &str) -> Option<[u64; 2]> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(11);
    Some([fields.next()?.parse().ok()?, fields.next()?.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_of_user_and_kernel_whatever_the_name() {
        let stat = "77 (a) b) S 1 77 77 0 -1 4194304 100 0 0 0 250 50 7 8 20 0 1 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some([250, 50]));
        assert_eq!(cpu_ticks("77 (cut off"), None);
        assert!(cpu_ticks(&std::fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }
}
