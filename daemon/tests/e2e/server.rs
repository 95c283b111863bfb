//! A running `mqfq serve` and the folder that its config, sockets and files live in.

use crate::client::{CMD_READ, Client, Request};
use mqfq_testing::tools::run_ok;
pub use mqfq_testing::{Folder, arg, pattern};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub const MIB: u64 = 1 << 20;

/// The program under test: the one that ships, or the laboratory's.
pub const BINARY: &str = match (option_env!("CARGO_BIN_EXE_mqfq"), option_env!("CARGO_BIN_EXE_mqfq-lab")) {
    (Some(binary), _) | (None, Some(binary)) => binary,
    (None, None) => panic!("cargo sets one of the two"),
};

/// The program with these arguments, to its end.
pub fn mqfq(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().expect("the binary is built")
}

/// A running server. Killed when dropped.
pub struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The line that said that it is ready.
    pub ready: Value,
    folder: Folder,
}

impl Server {
    /// Starts a server from `config`, in which `@` stands for its folder, and waits until it is ready.
    pub fn start(config: &str) -> Server {
        Server::start_in(Folder::new(), config)
    }

    /// [`Server::start`] with its stderr somewhere else.
    pub fn start_with_stderr(config: &str, stderr: Stdio) -> Server {
        Server::start_with(Folder::new(), config, stderr, |_| {})
    }

    /// [`Server::start`] in a folder that has something already.
    pub fn start_in(folder: Folder, config: &str) -> Server {
        Server::start_with(folder, config, Stdio::piped(), |_| {})
    }

    /// [`Server::start_in`] with no more than `limit` of `resource`, a number of setrlimit(2).
    pub fn start_limited(folder: Folder, config: &str, resource: libc::__rlimit_resource_t, limit: u64) -> Server {
        Server::start_with(folder, config, Stdio::piped(), |command| {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: between fork and exec it makes one system call, which reads a struct of its own.
            unsafe {
                command.pre_exec(move || match libc::setrlimit(resource, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                })
            };
        })
    }

    /// Another server takes the place of this one, which must end well. Its `ready` says for how long no process
    /// served.
    pub fn replace(self, config: &str) -> Server {
        self.replace_with(config, &["--replace"])
    }

    /// [`Server::replace`] with these arguments.
    pub fn replace_with(mut self, config: &str, arguments: &[&str]) -> Server {
        let folder = std::mem::replace(&mut self.folder, Folder::none());
        let replace = |command: &mut Command| {
            command.args(arguments);
        };
        let new = Server::start_with(folder, config, Stdio::piped(), replace);
        assert_eq!(self.next_line()["handed_over"], true);
        self.next_line();
        let (status, stderr) = self.wait();
        assert!(status.success(), "ended with {status}: {stderr}");
        assert_eq!(new.ready["replaced"]["pid"], self.child.id());
        new
    }

    /// The end of a server that should have taken the place of this one: its sentence.
    pub fn fail_to_replace(&self, config: &str) -> String {
        let mut command = command(&self.folder, config);
        command.arg("--replace").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary is built");
        // A server that serves after all would never end.
        let status = ended(&mut child);
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{stderr}");
        stderr.trim_end().to_owned()
    }

    /// [`Server::start_in`] by a command that was made otherwise.
    pub fn start_by(folder: Folder, command: Command) -> Server {
        Server::started(folder, command, Stdio::piped())
    }

    fn start_with(folder: Folder, config: &str, stderr: Stdio, prepare: impl FnOnce(&mut Command)) -> Server {
        let mut command = command(&folder, config);
        prepare(&mut command);
        Server::started(folder, command, stderr)
    }

    fn started(folder: Folder, mut command: Command, stderr: Stdio) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("the binary is built");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut stderr = String::new();
            child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut stderr).unwrap());
            panic!("the server ended with {} before it was ready: {stderr}", child.wait().unwrap());
        }
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"));
        assert_eq!(ready["ready"], true, "{line}");
        Server { child, stdout, ready, folder }
    }

    /// A server with one export per tenant (weight 100) on one device. `device` is the device's keys; each export gets
    /// `size` and the socket `@/NAME.sock`.
    pub fn of_tenants(device: &str, names: &[&str], size_bytes: u64) -> Server {
        let mut config = format!("[server]\nworkers = 2\n[device.d]\n{device}\n");
        for (index, name) in names.iter().enumerate() {
            let offset_bytes = index as u64 * size_bytes;
            config += &format!(
                "[tenant.{name}]\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\noffset = {offset_bytes}\n\
                 size = {size_bytes}\nnbd = \"unix:@/{name}.sock\"\n"
            );
        }
        Server::start(&config)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The socket of the export `name`, if the config put it where [`Server::of_tenants`] does.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(&format!("{name}.sock"))
    }

    /// Id of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill has no memory effects; the child is ours and not yet waited for, so its id is not reused.
        let result = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(result, 0);
    }

    /// The next line that the server prints, as JSON.
    pub fn next_line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }

    /// The counters, after SIGUSR1.
    pub fn report(&mut self) -> Value {
        self.signal(libc::SIGUSR1);
        self.next_line()
    }

    /// The next line on stderr that contains `part`; those before it are passed over. A server that says nothing for
    /// half a minute fails the test instead of hanging it.
    pub fn note_with(&mut self, part: &str) -> String {
        let stderr = self.child.stderr.as_mut().expect("not waited for");
        loop {
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                let mut byte = [0];
                let mut wait = libc::pollfd { fd: stderr.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one pollfd of ours, for the duration of the call.
                let ready = unsafe { libc::poll(&raw mut wait, 1, 30_000) };
                assert_ne!(ready, 0, "the server does not say {part:?}");
                assert_eq!(stderr.read(&mut byte).unwrap(), 1, "stderr ended without {part:?}");
                line.extend(byte);
            }
            let line = String::from_utf8(line).unwrap();
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Waits for the end; returns its status and its stderr, if that was not led elsewhere.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let mut stderr = String::new();
        self.child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut stderr).unwrap());
        (ended(&mut self.child), stderr)
    }

    /// SIGTERM; the server must drain and end well. Returns its counters at the end.
    pub fn terminate(mut self) -> Value {
        self.signal(libc::SIGTERM);
        assert_eq!(self.next_line()["draining"], true);
        let stats = self.next_line();
        let (status, stderr) = self.wait();
        assert!(status.success(), "ended with {status}: {stderr}");
        stats
    }

    /// The last line of a server that leaves its state to another one, and its folder.
    pub fn leaves(mut self) -> (Value, Folder) {
        let line = self.next_line();
        self.next_line();
        let (status, stderr) = self.wait();
        assert!(status.success(), "ended with {status}: {stderr}");
        (line, std::mem::replace(&mut self.folder, Folder::none()))
    }

    /// `kill -9`, at once; gives the folder back for the next server.
    pub fn kill_nine(mut self) -> Folder {
        self.signal(libc::SIGKILL);
        let (status, _) = self.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        std::mem::replace(&mut self.folder, Folder::none())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let mut stderr = String::new();
            if let Some(mut pipe) = self.child.stderr.take() {
                let _ = pipe.read_to_string(&mut stderr);
            }
            eprintln!("the server's stderr: {stderr}");
        }
    }
}

/// The command of a server in `folder`; writes `config` there with the folder in place of each `@`.
pub fn command(folder: &Folder, config: &str) -> Command {
    let path = folder.join("config.toml");
    std::fs::write(&path, config.replace('@', arg(folder.path()))).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--json", "--stats", "--trace"]).arg(folder.join("trace.json")).arg(path);
    command
}

/// Longest wait for the end of a process that should end by itself: one that hangs fails a test instead of stopping it.
const END_MAX_MS: i32 = 60_000;

/// Waits for the end of `child`.
pub fn ended(child: &mut Child) -> ExitStatus {
    // SAFETY: no memory is involved; the child is ours and not yet waited for.
    let end = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) } as libc::c_int;
    assert!(end >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and ours alone.
    let end = unsafe { OwnedFd::from_raw_fd(end) };
    let mut readable = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd is there to be read and written.
    let is_over = unsafe { libc::poll(&raw mut readable, 1, END_MAX_MS) } > 0;
    if !is_over {
        let _ = child.kill();
        let _ = child.wait();
        panic!("it has not ended after {END_MAX_MS} ms");
    }
    child.wait().unwrap()
}

/// Changes the config by `change`, and returns the server's answer.
pub fn reload(server: &mut Server, change: impl Fn(String) -> String) -> Value {
    let path = server.join("config.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, change(text)).unwrap();
    server.signal(libc::SIGHUP);
    server.next_line()
}

/// A config with another policy.
pub fn with_policy(text: String, policy: &str) -> String {
    let lines = text
        .lines()
        .map(|line| if line.starts_with("policy") { format!("policy = \"{policy}\"") } else { line.into() });
    lines.collect::<Vec<String>>().join("\n")
}

/// A verdict is of ten seconds at most, on a machine that may do something else meanwhile.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps so many of these requests in flight, and waits for `pause` before each.
pub fn paced(server: &Server, export: &str, depth: u32, request: Request, pause: Duration, is_over: &AtomicBool) {
    let mut client = Client::connect(&server.socket(export), export);
    let mut data = vec![0; if request.command == CMD_READ { request.length_bytes as usize } else { 0 }];
    (0..depth).for_each(|_| client.send(request, &[]).unwrap());
    while !is_over.load(Relaxed) {
        assert_eq!(client.reply().expect("an answer").error, 0);
        client.stream.read_exact(&mut data).unwrap();
        std::thread::park_timeout(pause);
        client.send(request, &[]).unwrap();
    }
}

/// Keeps so many of these requests in flight.
pub fn load(server: &Server, export: &str, depth: u32, request: Request, is_over: &AtomicBool) {
    paced(server, export, depth, request, Duration::ZERO, is_over);
}

/// A file in a file system of its own, which QEMU serves from another file. It is unmounted when dropped, and requests
/// that wait for it end.
pub struct Fuse {
    pub path: PathBuf,
    server: libc::pid_t,
}

impl Fuse {
    /// Serves `name` in `folder` from the file `behind` there.
    pub fn start(folder: &Folder, name: &str, size_bytes: u64) -> Fuse {
        Fuse::of(folder, name, &format!("driver=file,filename={}", arg(&folder.file("behind", size_bytes))))
    }

    /// Serves `name` in `folder`, of zeroes, each request after 2 ms and one at a time.
    pub fn slow(folder: &Folder, name: &str, size_bytes: u64) -> Fuse {
        Fuse::of(folder, name, &format!("driver=null-co,size={size_bytes},latency-ns=2000000,read-zeroes=on"))
    }

    fn of(folder: &Folder, name: &str, driver: &str) -> Fuse {
        let (path, pid_file) = (folder.file(name, 0), folder.join(&format!("{name}.pid")));
        let block = format!("node-name=f,{driver}");
        let export = format!("type=fuse,id=x,node-name=f,writable=on,mountpoint={}", arg(&path));
        let daemon = ["--daemonize", "--pidfile", arg(&pid_file), "--blockdev", &block, "--export", &export];
        run_ok("qemu-storage-daemon", &daemon);
        let server = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        Fuse { path, server }
    }

    pub fn signal(&self, signal: libc::c_int) {
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
