//! Place of the databases: server, modelled drive, bridge to the kernel, file systems, limit on the page cache.
//!
//! ```text
//! postgres, db_bench ─▶ ext4 ─▶ loop device ─▶ nbdfuse (libnbd) ─▶ NBD ─▶ mqfq ─▶ modelled drive
//!                                                   fio's engine `nbd` ─▶ NBD ─┘
//! ```
//!
//! The loop device does direct I/O, so a page is cached once, above ext4. A memory cgroup keeps that cache smaller than
//! the data. The mount lies in a mount namespace of this process: it ends with the process, however that ends.

use crate::run::{command, run, shown};
use mqfq_testing::{Folder, arg};
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The modelled drive: two cores can fill it through sockets.
pub const PRESET: &str = "flash-60k";

/// Workers of the server.
pub const WORKERS: usize = 2;

/// Page cache and memory of one database, bytes: less than half of its data.
const CACHE_BYTES: u64 = 256 << 20;

/// Patience with a program that starts or ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets so much time pass: what is measured lives in wall time.
pub fn pass(time: Duration) {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// A child that is told to end, and waited for, when it is dropped.
pub struct Running {
    child: Child,
    signal: &'static str,
}

impl Running {
    /// Starts it; `signal` ends it.
    ///
    /// # Errors
    /// One sentence if it cannot start.
    pub fn start(command: &mut Command, signal: &'static str) -> Result<Running, String> {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("{}: {error}", shown(command)))?;
        Ok(Running { child, signal })
    }

    /// Process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `is_ready`.
    ///
    /// # Errors
    /// One sentence if it ends before, or takes longer than [`PATIENCE`].
    pub fn wait_until(&mut self, name: &str, is_ready: impl Fn() -> bool) -> Result<(), String> {
        let begun = Instant::now();
        while !is_ready() {
            let status = self.child.try_wait().map_err(|error| format!("{name}: {error}"))?;
            if let Some(status) = status {
                return Err(format!("{name} ended at its start ({status})"));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{name} is not ready after {} s", PATIENCE.as_secs()));
            }
            pass(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").args([self.signal, &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

/// A memory cgroup, of either version.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A new group of `name` with at most [`CACHE_BYTES`].
    fn new(name: &str) -> Result<MemoryGroup, String> {
        let name = format!("mqfq-databases-{}-{name}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) = match v1.is_dir() {
            true => (v1, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        // Groups of earlier runs that were killed.
        for old in std::fs::read_dir(root).into_iter().flatten().flatten() {
            let name = old.file_name().to_string_lossy().into_owned();
            let process = name.strip_prefix("mqfq-databases-").and_then(|rest| rest.split('-').next());
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = std::fs::remove_dir(old.path());
            }
        }
        let path = root.join(name);
        let written =
            std::fs::create_dir(&path).and_then(|()| std::fs::write(path.join(limit), CACHE_BYTES.to_string()));
        let group = MemoryGroup(path);
        written.map_err(|error| format!("{}: no limit on the page cache: {error}", group.0.display()))?;
        Ok(group)
    }

    /// `program` as `user`, in this group.
    pub fn command(&self, user: &str, program: &Path) -> Command {
        let script = "echo $$ > \"$1\"/cgroup.procs && shift && exec \"$@\"";
        let mut command = command("sh", ["-c", script, "sh", arg(&self.0)]);
        command.args(["setpriv", "--reuid", user, "--regid", user, "--clear-groups", arg(program)]).current_dir("/");
        command
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// An ext4 on an export. Fields are dropped in their order.
pub struct Volume {
    /// Where it is mounted.
    pub path: PathBuf,
    mount: Option<Mount>,
    device: String,
    _bridge: Running,
    /// Limit on memory of what works on it.
    pub group: MemoryGroup,
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.mount = None;
        let _ = Command::new("losetup").args(["--detach", &self.device]).stderr(Stdio::null()).status();
        let _ = Command::new("umount").arg(self.path.with_extension("fuse")).stderr(Stdio::null()).status();
    }
}

impl Volume {
    /// Makes a file system on `export`, and mounts it.
    ///
    /// # Errors
    /// One sentence if a program fails or the kernel refuses.
    pub fn attach(server: &Server, export: &str) -> Result<Volume, String> {
        let fuse = server.folder.join(&format!("{export}.fuse"));
        let path = server.folder.join(export);
        for folder in [&fuse, &path] {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let file = fuse.join("disk");
        let mut bridge = Running::start(&mut command("nbdfuse", [arg(&file), &server.uri(export)]), "-TERM")?;
        bridge.wait_until("nbdfuse", || file.is_file())?;
        let losetup = ["--direct-io=on", "--sector-size", "4096", "--find", "--show", arg(&file)];
        let device = crate::run::output(&mut command("losetup", losetup))?.trim().to_owned();
        let mut volume = Volume { path, mount: None, device, _bridge: bridge, group: MemoryGroup::new(export)? };
        // All of its tables now: the kernel would write them beside a measurement.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(&mut command("mkfs.ext4", ["-q", "-F", "-E", lazy, &volume.device]))?;
        volume.mount()?;
        Ok(volume)
    }

    fn mount(&mut self) -> Result<(), String> {
        run(&mut command("mount", ["-o", "noatime", &self.device, arg(&self.path)]))?;
        self.mount = Some(Mount(self.path.clone()));
        Ok(())
    }

    /// Mounts it anew, for the last time: the page cache has nothing of it.
    ///
    /// # Errors
    /// One sentence if the kernel refuses.
    pub fn remount(&mut self) -> Result<(), String> {
        self.mount = None;
        self.mount()?;
        // In use, so the kernel detaches it with the mount, also when this process is killed.
        run(&mut command("losetup", ["--detach", &self.device]))
    }
}

/// The server on the modelled drive.
pub struct Server {
    program: PathBuf,
    running: Running,
    /// Sockets, logs and mount points.
    pub folder: Folder,
}

/// Exports: name and tenant, offset and size in GiB.
const EXPORTS: [(&str, u32, u32); 3] = [("db", 0, 3), ("other", 3, 3), ("bulk", 6, 1)];

impl Server {
    /// Starts `program` with the exports `db`, `other` and `bulk`, each of a tenant of its name, under `none`.
    ///
    /// # Errors
    /// One sentence if it does not start.
    pub fn start(program: &Path) -> Result<Server, String> {
        let folder = Folder::new();
        let text = config(&folder);
        Server::with(program, folder, &text, &EXPORTS.map(|(name, ..)| name))
    }

    /// Starts `program` with a config whose exports have the sockets `NAME.sock` in `folder`, and whose control plane
    /// listens at `control.sock` there.
    ///
    /// # Errors
    /// One sentence if it does not start.
    pub fn with(program: &Path, folder: Folder, text: &str, exports: &[&str]) -> Result<Server, String> {
        let file = folder.join("mqfq.toml");
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let log = folder.join("mqfq.log");
        let open = std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut serve = command(arg(program), ["serve", arg(&file)]);
        serve.stderr(open.try_clone().map_err(|error| error.to_string())?).stdout(open);
        eprintln!("$ {}", shown(&serve));
        let mut running = Running::start(&mut serve, "-TERM")?;
        let sockets: Vec<PathBuf> = exports.iter().map(|name| folder.join(&format!("{name}.sock"))).collect();
        let is_ready = || sockets.iter().all(|socket| UnixStream::connect(socket).is_ok());
        running
            .wait_until("mqfq serve", is_ready)
            .map_err(|error| format!("{error}: {}", std::fs::read_to_string(&log).unwrap_or_default().trim()))?;
        Ok(Server { program: program.into(), running, folder })
    }

    /// NBD URI of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.folder.join(&format!("{export}.sock")).display())
    }

    /// Process number.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Output of `mqfq ctl`.
    ///
    /// # Errors
    /// One sentence if the server refuses.
    pub fn ctl(&self, words: &[&str]) -> Result<String, String> {
        let socket = format!("unix:{}", self.folder.join("control.sock").display());
        let mut ctl = command(arg(&self.program), ["ctl", "--socket", &socket]);
        ctl.args(words).stderr(Stdio::piped());
        let output = ctl.output().map_err(|error| format!("{}: {error}", shown(&ctl)))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{}: {}", shown(&ctl), String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Counters of the drive.
    ///
    /// # Errors
    /// One sentence if the server does not answer.
    pub fn counters(&self) -> Result<Value, String> {
        let text = self.ctl(&["counters"])?;
        let all: Value = serde_json::from_str(&text).map_err(|error| format!("counters: {error}"))?;
        Ok(all["devices"][0].clone())
    }
}

fn config(folder: &Folder) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let size: u32 = EXPORTS.iter().map(|(_, _, size)| size).sum();
    let mut text = format!(
        "[server]\nworkers = {WORKERS}\n[control]\nlisten = \"unix:{}\"\n\
         [device.drive]\nkind = \"model\"\npreset = \"{PRESET}\"\nsize = \"{size}GiB\"\npolicy = \"none\"\n",
        at("control.sock")
    );
    for (name, offset, size) in EXPORTS {
        text += &format!(
            "[tenant.{name}]\n[export.{name}]\ndevice = \"drive\"\ntenant = \"{name}\"\noffset = \"{offset}GiB\"\n\
             size = \"{size}GiB\"\nnbd = \"unix:{}\"\n",
            at(&format!("{name}.sock"))
        );
    }
    text
}
