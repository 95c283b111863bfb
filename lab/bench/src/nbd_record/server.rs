//! The servers that are compared, each started as its own process on a socket of its own.
//!
//! All serve 256 MiB that were written once before anything is read, where the server keeps bytes at all: reading what
//! nobody wrote is a shortcut that servers take differently.

use mqfq_demo::load::{Load, Pattern};
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_demo::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Size of every export.
pub const EXPORT_BYTES: u64 = 256 << 20;

/// Longest time from a server's start to its first answer.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A server with its settings: one line of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    /// Ours, as `mqfq serve` with this device kind and policy.
    Mqfq {
        /// `null` or `memory`.
        device: &'static str,
        /// `none` or `mqfq`.
        policy: &'static str,
    },
    /// nbdkit with its memory plugin.
    NbdkitMemory,
    /// qemu-storage-daemon with its null-co driver, which completes at once and leaves the buffer as it is.
    QemuNull,
}

/// All that are compared, in the order in which each round runs them.
pub const SERVERS: [Server; 6] = [
    Server::Mqfq { device: "null", policy: "none" },
    Server::Mqfq { device: "null", policy: "mqfq" },
    Server::QemuNull,
    Server::Mqfq { device: "memory", policy: "none" },
    Server::Mqfq { device: "memory", policy: "mqfq" },
    Server::NbdkitMemory,
];

impl Server {
    /// Its name in the record.
    pub fn name(&self) -> String {
        match self {
            Server::Mqfq { device, policy } => format!("mqfq {device}, {policy}"),
            Server::NbdkitMemory => "nbdkit memory".into(),
            Server::QemuNull => "qemu-storage-daemon null-co".into(),
        }
    }

    /// Name of its export.
    pub fn export(&self) -> &'static str {
        match self {
            Server::NbdkitMemory => "",
            _ => "e",
        }
    }

    /// The program that it runs, given the path of ours.
    pub fn program(&self, mqfq: &Path) -> PathBuf {
        match self {
            Server::Mqfq { .. } => mqfq.to_owned(),
            Server::NbdkitMemory => "nbdkit".into(),
            Server::QemuNull => "qemu-storage-daemon".into(),
        }
    }

    fn keeps_bytes(&self) -> bool {
        matches!(self, Server::NbdkitMemory | Server::Mqfq { device: "memory", .. })
    }

    fn command(&self, mqfq: &Path, scratch: &Path, socket: &Path) -> Result<Command, String> {
        let mut command = Command::new(self.program(mqfq));
        match self {
            Server::Mqfq { device, policy } => {
                let config = scratch.join("mqfq.toml");
                std::fs::write(&config, config_text(device, policy, socket))
                    .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
                command.arg("serve").arg(config);
            }
            Server::NbdkitMemory => {
                command.args(["--foreground", "--newstyle", "--unix"]).arg(socket).arg("memory");
                command.arg(EXPORT_BYTES.to_string());
            }
            Server::QemuNull => {
                command.args(["--blockdev", &format!("driver=null-co,node-name=n,size={EXPORT_BYTES}")]);
                command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
                command.args(["--export", "type=nbd,id=x,node-name=n,name=e"]);
            }
        }
        Ok(command)
    }
}

fn config_text(device: &str, policy: &str, socket: &Path) -> String {
    let depth = if policy == "none" { "" } else { "depth = 64\nwindow = \"64KiB\"\n" };
    format!(
        "[device.d]\nkind = \"{device}\"\nsize = \"{EXPORT_BYTES}\"\npolicy = \"{policy}\"\n{depth}\n\
         [tenant.t]\nweight = 100\n\n\
         [export.e]\ndevice = \"d\"\ntenant = \"t\"\noffset = \"0\"\nsize = \"{EXPORT_BYTES}\"\nnbd = \"unix:{}\"\n",
        socket.display()
    )
}

/// A server that answers. Dropping it ends it.
pub struct Running {
    child: Child,
    socket: PathBuf,
    _scratch: Scratch,
}

impl Running {
    /// Starts `server`, waits until it answers, and fills what it keeps. `mqfq` is the path of our own program.
    ///
    /// # Errors
    /// One sentence: it could not be started, or gave no answer in time.
    pub fn start(server: Server, mqfq: &Path) -> Result<Running, String> {
        let scratch = Scratch::new()?;
        let socket = scratch.path().join("socket");
        let program = server.program(mqfq).display().to_string();
        let child = server
            .command(mqfq, scratch.path(), &socket)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        let mut running = Running { child, socket, _scratch: scratch };
        running.wait_until_it_answers(server, &program)?;
        Ok(running)
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// CPU time that the process has used, all threads, those that ended too. Nanoseconds in steps of 10 ms.
    ///
    /// # Errors
    /// One sentence, if the process is gone.
    pub fn cpu_ns(&self) -> Result<u64, String> {
        cpu_ns_of(self.child.id())
    }

    fn wait_until_it_answers(&mut self, server: Server, program: &str) -> Result<(), String> {
        let give_up = Instant::now() + START_TIMEOUT;
        let fill = Load {
            write_percent: if server.keeps_bytes() { 100 } else { 0 },
            pattern: Pattern::Sequential,
            ..Load::random_reads(1, 8, 1 << 20)
        };
        let mut tenant = loop {
            match NbdTenant::attach(&self.socket, server.export(), &fill) {
                Ok(tenant) => break tenant,
                Err(error) if Instant::now() > give_up => return Err(format!("{program} does not answer: {error}")),
                Err(_) => {}
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{program} ended at once with {status}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if server.keeps_bytes() {
            let counted = tenant.run_requests(EXPORT_BYTES / u64::from(fill.request_bytes))?;
            if counted.errors > 0 {
                return Err(format!("{program} failed {} writes", counted.errors));
            }
        }
        tenant.detach();
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that this process has used, as [`Running::cpu_ns`].
///
/// # Errors
/// One sentence, if the process is gone.
pub fn cpu_ns_of(process: u32) -> Result<u64, String> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    cpu_ticks(&text)
        .map(|ticks| ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
        .ok_or_else(|| format!("{path} is not in the format of proc(5)"))
}

/// User and system ticks of a `/proc/PID/stat`, fields 14 and 15. The name in field 2 may hold spaces and brackets.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_and_system_whatever_the_name() {
        let stat = "77 (a) b) S 1 77 77 0 -1 4194304 100 0 0 0 250 50 7 8 20 0 1 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("77 (cut off"), None);
    }

    #[test]
    fn our_own_process_has_used_some() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(cpu_ticks(&stat).is_some());
    }
}
