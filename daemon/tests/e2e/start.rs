//! The way from a config to a server: files that would stop it, signals that come too early, machines without io_uring,
//! and configs of tens of thousands of tenants. Messages to a service manager and sockets from one: a test in its
//! place, with the sockets of sd_notify(3) and sd_listen_fds(3). And the forms of the log.

use crate::client::{CMD_WRITE, Client, Request};
use crate::server::{Folder, Server, arg, command, ended, mqfq, pattern};
use mqfq_testing::machine;
use mqfq_testing::tools::need;
use serde_json::Value;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// One export in memory.
pub(crate) const CONFIG: &str = "[server]
workers = 2
[device.d]
kind = \"memory\"
size = \"1MiB\"
[tenant.a]
[export.a]
device = \"d\"
tenant = \"a\"
nbd = \"unix:@/a.sock\"
";

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// NBD's own number for EPERM, for a write to an export that is read-only.
const NBD_EPERM: u32 = 1;

fn make_fifo(path: &Path) {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: `name` is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// Status and stderr of a command that ends by itself.
fn output(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ended(&mut child);
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_fifo_stops_neither_a_start_nor_a_server() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    let (fifo, config) = (server.join("fifo"), server.join("config.toml"));
    make_fifo(&fifo);
    let mqfq = || Command::new(env!("CARGO_BIN_EXE_mqfq"));
    let is_fifo =
        |path: &Path| format!("mqfq: cannot read config {}: it is a FIFO, allowed is a regular file\n", arg(path));
    for what in ["serve", "check"] {
        assert_eq!(output(mqfq().arg(what).arg(&fifo)), (Some(1), is_fifo(&fifo)));
        let folder = server.join("");
        let sentence =
            format!("mqfq: cannot read config {}: it is a directory, allowed is a regular file\n", arg(&folder));
        assert_eq!(output(mqfq().arg(what).arg(&folder)), (Some(1), sentence));
        let of_fifo = server.join("of-fifo.toml");
        let device = format!("kind = \"file\"\npath = \"{}\"", arg(&fifo));
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&of_fifo, text.replace("kind = \"memory\"\nsize = \"1MiB\"", &device)).unwrap();
        let sentence = format!(
            "mqfq: {}:5: device.d.path: cannot open {}: it is a FIFO, allowed is a regular file or a block device\n",
            arg(&of_fifo),
            arg(&fifo)
        );
        assert_eq!(output(mqfq().arg(what).arg(&of_fifo)), (Some(1), sentence));
    }

    // A config that has become one, under a server that runs.
    std::fs::remove_file(&config).unwrap();
    make_fifo(&config);
    server.signal(libc::SIGHUP);
    let reloaded = server.next_line();
    assert_eq!(reloaded["error"], is_fifo(&config)["mqfq: ".len()..].trim_end());
    // The path of its trace is a FIFO, too.
    make_fifo(&server.join("trace.json"));
    server.signal(libc::SIGUSR2);
    assert_eq!(server.next_line()["tracing"], true);
    server.signal(libc::SIGUSR2);
    let traced = server.next_line();
    assert!(traced["trace"].is_null() && traced["tracing"] == false, "{traced}");
    Client::connect(&server.socket("a"), "a").write(0, b"served").unwrap();
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait();
    assert!(status.success(), "{stderr}");
    let allowed = "allowed is a regular file, or a path where nothing is yet";
    let last = stderr.lines().last().unwrap();
    assert_eq!(
        last,
        format!("mqfq: cannot write the trace to {}: it is a FIFO, {allowed}", arg(&server.join("trace.json")))
    );
}

#[test]
fn a_signal_that_waits_ends_the_start_before_anything_is_touched() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let mut command = command(&folder, CONFIG);
    // SAFETY: both calls are safe between fork and exec; a blocked signal that waits is kept over exec.
    unsafe {
        command.pre_exec(|| {
            let mut set = std::mem::MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            libc::raise(libc::SIGTERM);
            Ok(())
        });
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(ended(&mut child).signal(), Some(libc::SIGTERM), "as if it had never been blocked");
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "mqfq: a signal ended it before it was ready\n");
    assert!(output.stdout.is_empty(), "it was never ready");
    assert!(!folder.join("a.sock").exists());
}

#[test]
fn a_signal_ends_a_start_that_waits_and_leaves_no_socket_behind() {
    let _machine = machine::shared();
    let folder = Folder::new();
    // A listener that stays silent looks like the socket of a killed server that the kernel has not closed yet.
    let silent = UnixListener::bind(folder.join("b.sock")).unwrap();
    let config = CONFIG.replace("\"unix:@/a.sock\"", "[\"unix:@/a.sock\", \"unix:@/b.sock\"]");
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut command = command(&folder, &config);
        // A shell starts background commands with SIGINT ignored, and their children inherit that.
        // SAFETY: the call is safe between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::signal(signal, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It waits for the greeting.
        let _connection = silent.accept().unwrap();
        assert!(folder.join("a.sock").exists(), "the first address is its own already");
        // SAFETY: no memory is involved; the child is ours and not yet waited for.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
        assert_eq!(ended(&mut child).signal(), Some(signal));
        assert!(!folder.join("a.sock").exists(), "nothing is left behind");
        assert!(folder.join("b.sock").exists(), "and what was another's is still there");
    }
}

/// A command for whose process io_uring_setup fails with `errno`, as a container's seccomp filter has it.
fn without_io_uring(command: &mut Command, errno: u32) -> &mut Command {
    let step = |code: u32, if_true, if_false, k| libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k };
    let filter = [
        // The number of the system call is the first field.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: prctl is safe between fork and exec, and the filter lives in the closure until then.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    }
}

#[test]
fn where_io_uring_is_missing_serve_and_check_say_who_may_have_taken_it() {
    let _machine = machine::shared();
    let folder = Folder::new();
    for (errno, why) in [
        (
            EPERM,
            "it is forbidden here, by the sysctl kernel.io_uring_disabled or by a seccomp filter, such as a container's",
        ),
        (ENOSYS, "the kernel has none, or a seccomp filter, such as a container's, hides it"),
    ] {
        let sentence = format!("mqfq: cannot set up io_uring: {why}\n");
        let serve = output(without_io_uring(&mut command(&folder, CONFIG), errno));
        assert_eq!(serve, (Some(1), sentence.clone()));
        let mut check = Command::new(env!("CARGO_BIN_EXE_mqfq"));
        check.arg("check").arg(folder.join("config.toml"));
        assert_eq!(output(without_io_uring(&mut check, errno)), (Some(1), sentence));
        assert!(!folder.join("a.sock").exists());
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running program's file cannot be opened for writing: like a file on a read-only mount, without the privilege to
/// mount.
#[test]
fn a_file_that_cannot_be_written_is_served_to_readers() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let disk = folder.join("disk");
    std::fs::copy("/bin/sleep", &disk).unwrap();
    let size_bytes = std::fs::metadata(&disk).unwrap().len() / 4096 * 4096;
    let _runs = Running(Command::new(&disk).arg("1000").spawn().unwrap());
    let bytes = std::fs::read(&disk).unwrap();
    let file = format!("kind = \"file\"\npath = \"@/disk\"\nsize = {size_bytes}");
    let config = CONFIG.replace("kind = \"memory\"\nsize = \"1MiB\"", &file);
    let (status, stderr) = output(&mut command(&folder, &config));
    assert_eq!(status, Some(1));
    assert!(stderr.ends_with("disk: cannot be opened to read and write: Text file busy\n"), "{stderr}");

    let server = Server::start_in(folder, &format!("{config}read-only = true\n"));
    let mut client = Client::connect(&server.socket("a"), "a");
    assert!(client.read(0, size_bytes as u32).unwrap() == bytes[..size_bytes as usize]);
    let request = Request { length_bytes: 512, ..Request::of(CMD_WRITE) };
    assert_eq!(client.call(request, &pattern(512, 1)), Err(NBD_EPERM));
    client.flush().unwrap();
    // It is locked like any other, and a second server is told the holder.
    let second = server.join("second.toml");
    let text = std::fs::read_to_string(server.join("config.toml")).unwrap();
    std::fs::write(&second, text.replace("a.sock", "b.sock")).unwrap();
    let stderr = mqfq(&["serve", arg(&second)]).stderr;
    let held = format!("is served by process {}\n", server.ready["pid"]);
    assert!(String::from_utf8_lossy(&stderr).ends_with(&held), "{}", String::from_utf8_lossy(&stderr));
    drop(client);
    server.terminate();
}

/// A config of `tenants`, each with an export, at an address of its own or all at one.
fn config_of(tenants: u64, one_address: bool) -> String {
    let mut text = "[server]\nworkers = 2\n[device.d]\nkind = \"null\"\nsize = \"1TiB\"\n".to_owned();
    for number in 0..tenants {
        let socket = if one_address { 0 } else { number };
        text += &format!(
            "[tenant.t{number}]\nweight = {}\n[export.e{number}]\ndevice = \"d\"\ntenant = \"t{number}\"\noffset = {}\n\
             size = 4096\nshared = {}\nnbd = \"unix:@/{socket}.sock\"\n",
            1 + number % 100,
            number * 4096,
            number % 2 == 0,
        );
    }
    text
}

/// Instructions that `mqfq check` executes for so many tenants, counted by valgrind.
fn instructions(folder: &Folder, tenants: u64, one_address: bool) -> u64 {
    let config = folder.join("config.toml");
    std::fs::write(&config, config_of(tenants, one_address).replace('@', arg(&folder.join("")))).unwrap();
    let counts = folder.join("counts");
    let mut counting = Command::new("valgrind");
    counting.args(["--tool=cachegrind", "--cache-sim=no"]).arg(format!("--cachegrind-out-file={}", arg(&counts)));
    let counted = counting.arg(env!("CARGO_BIN_EXE_mqfq")).arg("check").arg(&config).output().unwrap();
    assert!(counted.status.success(), "{}", String::from_utf8_lossy(&counted.stderr));
    let counts = std::fs::read_to_string(&counts).unwrap();
    let summary = counts.lines().find_map(|line| line.strip_prefix("summary: ")).expect("cachegrind counts");
    summary.trim().parse().expect("a number of instructions")
}

/// Twice as many tenants are twice the work: 2.01 times as many instructions. The cheapest part that is more than that,
/// comparing each name with all before it, makes 2.2 times of it, and shows here before it is felt.
#[test]
fn the_work_of_reading_a_config_grows_with_its_length() {
    need!("valgrind");
    if cfg!(debug_assertions) {
        println!("skipped: a debug build takes minutes for it, and works no differently");
        return;
    }
    let _machine = machine::shared();
    let folder = Folder::new();
    for (tenants, one_address) in [(500, false), (1000, true)] {
        let [one, two, four] = [1, 2, 4].map(|times| instructions(&folder, times * tenants, one_address));
        // Between them what every start costs is gone.
        let (first, second) = (two - one, four - two);
        println!("{tenants} tenants more cost {first} instructions, twice as many {second}");
        assert!(first > tenants * 1000, "a tenant costs more than that: {first}");
        assert!(
            second * 100 < first * 210,
            "{tenants} tenants more cost {first} instructions, twice as many {second} (one address: {one_address})"
        );
    }
}

/// CPU time of a process, ticks; one that has ended and was not waited for has it still.
fn cpu_ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    // Behind the name, which may have blanks: utime and stime are fields 14 and 15.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

/// All that comes after the config, too: sockets, flows, listeners. It ends with less work than it starts with: half of
/// it; more than twice of it when the kernel tries the accept of each socket again.
#[test]
fn a_server_of_two_thousand_tenants_starts_serves_and_ends() {
    let _machine = machine::shared();
    let mut server = Server::start(&config_of(2000, false));
    let start = cpu_ticks(&server);
    assert_eq!(server.ready["exports"].as_array().unwrap().len(), 2000);
    for number in [0, 1999] {
        let socket = server.join(&format!("{number}.sock"));
        assert_eq!(server.ready["exports"][number]["nbd"][0], format!("unix:{}", arg(&socket)));
        assert_eq!(Client::connect(&socket, &format!("e{number}")).read(0, 512).unwrap(), [0; 512]);
    }
    let last = server.join("1999.sock");
    server.signal(libc::SIGTERM);
    server.next_line();
    server.next_line();
    let mut about = std::mem::MaybeUninit::zeroed();
    // SAFETY: the kernel writes one siginfo_t, which is ours; the child stays there to be waited for.
    unsafe { libc::waitid(libc::P_PID, server.id(), about.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
    let end = cpu_ticks(&server) - start;
    let (status, stderr) = server.wait();
    assert!(status.success() && !last.exists(), "{stderr}");
    println!("{start} ticks to start, {end} to end");
    assert!(end < start, "{start} ticks to start, {end} to end");
}

#[test]
fn a_start_logs_each_warning_of_its_config() {
    let unused = |name: &str| format!("[device.{name}]\nkind = \"null\"\nsize = \"1MiB\"\n");
    let export = "[tenant.t]\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/e.sock\"\n";
    let mut server = Server::start(&format!("{}{export}{}{}", unused("d"), unused("one"), unused("two")));
    for name in ["one", "two"] {
        server.note_with(&format!("device.{name}: no export uses this device"));
    }
    server.terminate();
}

const SERVICE_CONFIG: &str = "[server]
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
        let server = command(&folder, SERVICE_CONFIG);
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
    let output = command(&folder, SERVICE_CONFIG).args(["--log-format", "journald"]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "mqfq: cannot log to the journal at /run/systemd/journal/socket: No such file or directory, allowed are \
         --log-format text and json\n"
    );
    assert_eq!((output.status.code(), arg(folder.path()).is_empty()), (Some(1), false));
}
