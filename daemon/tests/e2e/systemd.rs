//! Messages to a service manager and sockets from one: a test in its place, with the sockets of sd_notify(3) and
//! sd_listen_fds(3). And the forms of the log.

use crate::client::Client;
use crate::server::{Folder, arg, command, ended};
use mqfq_testing::machine;
use serde_json::Value;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CONFIG: &str = "[server]
workers = 2
[device.d]
kind = \"memory\"
size = \"1MiB\"
[tenant.web]
[export.a]
device = \"d\"
tenant = \"web\"
nbd = \"unix:@/a.sock\"
";

/// A server under a service manager.
struct Managed {
    child: Child,
    notify: UnixDatagram,
    folder: Folder,
}

impl Managed {
    /// Starts it with these options, and passes it `socket`, if there is one, as descriptor 3.
    fn start(options: &[&str], socket: Option<UnixListener>, folder: Folder) -> Managed {
        let notify = UnixDatagram::bind(folder.join("notify")).unwrap();
        notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let server = command(&folder, CONFIG);
        let passed = if socket.is_some() { "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=a" } else { "" };
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec 3<&0 </dev/null; {passed} exec \"$0\" \"$@\""));
        shell.arg(server.get_program()).args(server.get_args()).args(options);
        shell.env("NOTIFY_SOCKET", folder.join("notify")).env("WATCHDOG_USEC", "400000");
        shell.stdin(socket.map_or(Stdio::null(), |socket| OwnedFd::from(socket).into()));
        let child = shell.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Managed { child, notify, folder }
    }

    /// The next thing that it tells; how often it has answered the watchdog before.
    fn told(&self) -> (String, usize) {
        let mut alive = 0;
        loop {
            let mut text = [0; 4096];
            let bytes = self.notify.recv(&mut text).expect("it tells something");
            match String::from_utf8_lossy(&text[..bytes]).trim() {
                "WATCHDOG=1" => alive += 1,
                text => return (text.to_owned(), alive),
            }
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: kill has no memory effects; the child is ours and not yet waited for, so its id is not reused.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    /// Ends it; returns its stderr.
    fn end(mut self) -> String {
        self.signal(libc::SIGTERM);
        assert!(self.told().0.starts_with("STOPPING=1"));
        assert!(ended(&mut self.child).success());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_manager_is_told_of_every_step_and_its_socket_is_used() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let path = folder.join("a.sock");
    let socket = UnixListener::bind(&path).unwrap();
    let of_manager = socket.try_clone().unwrap();
    let mut server = Managed::start(&[], Some(socket), folder);
    let (ready, _) = server.told();
    assert_eq!(ready, "READY=1\nSTATUS=1 exports, 2 workers");
    let mut client = Client::connect(&path, "a");
    client.write(0, &[7; 512]).unwrap();
    // Three answers: the workers sleep, and turn when they are asked to.
    for _ in 0..3 {
        let mut text = [0; 64];
        let bytes = server.notify.recv(&mut text).unwrap();
        assert_eq!(&text[..bytes], b"WATCHDOG=1\n");
    }
    server.signal(libc::SIGHUP);
    let (reloading, _) = server.told();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(server.told().0, ready);
    assert_eq!(client.read(0, 512).unwrap(), [7; 512]);
    drop(client);
    // The folder outlives the server.
    let _folder = std::mem::replace(&mut server.folder, Folder::new());
    assert_eq!(server.end(), "");
    assert!(path.exists(), "its file is the service manager's");
    UnixStream::connect(&path).expect("so is the socket, which goes on listening");
    drop(of_manager);
}

#[test]
fn a_socket_that_no_export_uses_is_named_and_the_log_has_fields() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let socket = UnixListener::bind(folder.join("other.sock")).unwrap();
    let server = Managed::start(&["--log-format", "json"], Some(socket), folder);
    server.told();
    let mut client = Client::connect(&server.folder.join("a.sock"), "a");
    std::io::Write::write_all(&mut client.stream, &[0; 28]).unwrap();
    assert!(client.is_closed());
    let said = server.end();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let [left, broken] = &lines[..] else { panic!("{said}") };
    assert_eq!(left["message"], "the socket \"a\" was passed to this server, and no export is served there");
    assert!(
        broken["message"].as_str().unwrap().starts_with("nbd: closing a connection of export \"a\": bad_request_magic")
    );
    assert_eq!(
        (&broken["tenant"], &broken["export"], &broken["level"]),
        (&"web".into(), &"a".into(), &"notice".into())
    );
    assert!(broken["address"].as_str().unwrap().ends_with("a.sock") && broken["time"].is_string(), "{broken}");
}

#[test]
fn a_log_without_a_journal_is_refused_in_a_sentence() {
    if std::path::Path::new("/run/systemd/journal/socket").exists() {
        return;
    }
    let _machine = machine::shared();
    let folder = Folder::new();
    let output = command(&folder, CONFIG).args(["--log-format", "journald"]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "mqfq: cannot log to the journal at /run/systemd/journal/socket: No such file or directory, allowed are \
         --log-format text and json\n"
    );
    assert_eq!((output.status.code(), arg(folder.path()).is_empty()), (Some(1), false));
}
