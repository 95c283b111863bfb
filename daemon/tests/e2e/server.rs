//! A running `mqfq serve` and the folder that its config, sockets and files live in.

pub use mqfq_testing::{Folder, arg, pattern};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// `mqfq` with these arguments, to its end.
pub fn mqfq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mqfq")).args(args).output().expect("the binary is built")
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
    /// Starts one from `config`, in which `@` stands for the server's folder, and waits until it is ready.
    pub fn start(config: &str) -> Server {
        Server::start_in(Folder::new(), config)
    }

    /// As `start`, in a folder that has something already.
    pub fn start_in(folder: Folder, config: &str) -> Server {
        let path = folder.join("config.toml");
        std::fs::write(&path, config.replace('@', arg(folder.path()))).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_mqfq"))
            .args(["serve", "--json", "--stats", "--trace"])
            .arg(folder.join("trace.json"))
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary is built");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut stderr = String::new();
            child.stderr.take().expect("piped").read_to_string(&mut stderr).unwrap();
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

    /// Waits for the end; returns how it ended and what was on stderr.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let mut stderr = String::new();
        self.child.stderr.take().expect("waited for once").read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap(), stderr)
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
