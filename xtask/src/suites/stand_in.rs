//! Our server in the place of `nbdkit`, `qemu-nbd` and `nbd-server`, for test suites that start one of these by name.
//!
//! A suite runs with a folder of scripts of these names first in its `PATH`; each script calls this program with the
//! arguments that the suite gave. If our server can do what the arguments ask for, it is started and a line in
//! [`LOG`] says so; otherwise the real program runs. A case counts as ours only if that line is there.
//!
//! | program | ours if | otherwise |
//! |---|---|---|
//! | `nbdkit` | plugin `memory`, `null` or `data` (bytes and places), or `file` of a regular file; no filter, no old handshake, no pre-shared keys | the real one |
//! | `qemu-nbd` | raw image, a socket, no bitmap and no device node | the real one |
//! | `nbd-server` | a config of plain exports over TCP or a unix socket | the real one |

use mqfq_testing::Folder;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Path of our server. Without it the real programs run: that is the control.
pub const SERVER: &str = "MQFQ_STAND_IN_SERVER";
/// A file that gets one line for each server of ours that was started.
pub const LOG: &str = "MQFQ_STAND_IN_LOG";
/// The scripts' names, each with the real program.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("nbdkit", "/usr/bin/nbdkit"),
    ("qemu-nbd", "/usr/bin/qemu-nbd"),
    ("nbd-server", "/bin/nbd-server:/usr/bin/nbd-server"),
];

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The socket where the suite expects the server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Socket {
    Unix(PathBuf),
    Tcp(String, u16),
    /// A connected socket on stdin, for one client.
    Stdin,
    /// A listening socket was passed as descriptor 3.
    Passed,
    /// None was named; the command of `--run` gets one.
    Any,
}

/// One export as the suite wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Export {
    name: String,
    /// An image file; `None`: memory.
    path: Option<PathBuf>,
    size_bytes: u64,
    is_read_only: bool,
    /// Bytes in a sparse file, by place; a page of nbdkit's around each takes storage. `None`: there is no such file.
    data: Option<BTreeMap<u64, u8>>,
}

/// All that our server is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    exports: Vec<Export>,
    socket: Socket,
    pid_file: Option<PathBuf>,
    /// A shell command to run while serving; its status is the program's.
    run: Option<String>,
    /// Folder with `server-cert.pem`, `server-key.pem` and `ca-cert.pem`, and whether a client must have a certificate.
    tls: Option<(PathBuf, bool)>,
    /// `required` or `optional`.
    tls_mode: &'static str,
    ends_with_parent: bool,
}

impl Order {
    fn new(socket: Socket) -> Order {
        Order {
            exports: Vec::new(),
            socket,
            pid_file: None,
            run: None,
            tls: None,
            tls_mode: "required",
            ends_with_parent: false,
        }
    }
}

/// `stand-in PROGRAM ARGS`: serves, or becomes the real program.
///
/// # Errors
/// One sentence if neither can be started.
pub fn stand_in(program: &str, words: &[&str]) -> Result<i32, String> {
    if let Some(server) = std::env::var_os(SERVER)
        && let Some(order) = order(program, words)
    {
        return serve(Path::new(&server), &order);
    }
    let real =
        PROGRAMS.iter().find(|(name, _)| *name == program).ok_or_else(|| format!("no stand-in for {program}"))?;
    let path =
        real.1.split(':').find(|path| Path::new(path).exists()).ok_or_else(|| format!("{program} is missing"))?;
    Err(format!("{path}: {}", Command::new(path).args(words).exec()))
}

fn order(program: &str, words: &[&str]) -> Option<Order> {
    match program {
        "nbdkit" => nbdkit(words),
        "qemu-nbd" => qemu_nbd(words),
        "nbd-server" => nbd_server(words),
        _ => None,
    }
}

/// A word with its value, which is in the same word (`--port=1`, `-p1`) or the next.
fn value<'a>(word: &'a str, names: &[&str], rest: &mut impl Iterator<Item = &'a str>) -> Option<Option<&'a str>> {
    for name in names {
        if word == *name {
            return Some(rest.next());
        }
        let tail = word.strip_prefix(name);
        if let Some(tail) = tail {
            if let Some(of_long) = tail.strip_prefix('=').filter(|_| name.starts_with("--")) {
                return Some(Some(of_long));
            }
            if !name.starts_with("--") {
                return Some(Some(tail));
            }
        }
    }
    None
}

/// `1M`, `512`, `10k`: bytes.
fn size(text: &str) -> Option<u64> {
    let unit = match text.trim_end_matches(['B', 'b']).chars().last()?.to_ascii_lowercase() {
        'k' => 1 << 10,
        'm' => 1 << 20,
        'g' => 1 << 30,
        _ => 1,
    };
    text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse::<u64>().ok()?.checked_mul(unit)
}

fn nbdkit(words: &[&str]) -> Option<Order> {
    let mut order = Order::new(Socket::Any);
    let (mut port, mut address, mut name, mut is_read_only) = (None, "127.0.0.1", "", false);
    let (mut tls, mut certificates, mut verifies) = ("off", None, false);
    let mut plugin = Vec::new();
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        if !plugin.is_empty() && !word.starts_with('-') {
            plugin.push(word);
        } else if let Some(text) = value(word, &["--port", "-p"], &mut rest) {
            port = Some(text?.parse::<u16>().ok()?);
        } else if let Some(text) = value(word, &["--ipaddr", "-i"], &mut rest) {
            address = text?;
        } else if let Some(text) = value(word, &["--pidfile", "-P"], &mut rest) {
            order.pid_file = Some(text?.into());
        } else if let Some(text) = value(word, &["--unix", "-U"], &mut rest) {
            order.socket = if text? == "-" { Socket::Any } else { Socket::Unix(text?.into()) };
        } else if let Some(text) = value(word, &["--export-name", "--exportname", "-e"], &mut rest) {
            name = text?;
        } else if let Some(text) = value(word, &["--run"], &mut rest) {
            order.run = Some(text?.into());
        } else if let Some(text) = value(word, &["--tls"], &mut rest) {
            tls = text?;
        } else if let Some(text) = value(word, &["--tls-certificates"], &mut rest) {
            certificates = Some(PathBuf::from(text?));
        } else if value(word, &["--debug", "-D", "--threads", "-t", "--log", "-l"], &mut rest).is_some() {
        } else {
            match word {
                "-f" | "--foreground" | "-v" | "--verbose" | "-fv" | "-vf" | "-n" | "--newstyle" | "--no-fork" => {}
                "-r" | "--readonly" | "--read-only" => is_read_only = true,
                "-s" | "--single" => order.socket = Socket::Stdin,
                "--exit-with-parent" => order.ends_with_parent = true,
                "--tls-verify-peer" => verifies = true,
                // Options that our server lacks, --help, --version and the like.
                other if other.starts_with('-') => return None,
                name => plugin.push(name),
            }
        }
    }
    if let Some(port) = port {
        order.socket = Socket::Tcp(address.into(), port);
    }
    if std::env::var_os("LISTEN_FDS").is_some() {
        order.socket = Socket::Passed;
    }
    match (tls, certificates) {
        ("off", _) => {}
        ("on", Some(folder)) => (order.tls, order.tls_mode) = (Some((folder, verifies)), "optional"),
        ("require", Some(folder)) => order.tls = Some((folder, verifies)),
        _ => return None,
    }
    let (kind, parameters) = plugin.split_first()?;
    if *kind == "data" {
        order.exports = vec![data(parameters, name, is_read_only)?];
        return Some(order);
    }
    let [parameter] = parameters else { return None };
    let (path, size_bytes) = match *kind {
        // A `null` of ours would answer reads with whatever is in its buffer; zeroes are what nbdkit's gives.
        "memory" | "null" => (None, size(parameter.strip_prefix("size=").unwrap_or(parameter))?),
        "file" => {
            let path = PathBuf::from(parameter.strip_prefix("file=").unwrap_or(parameter));
            let size_bytes = std::fs::metadata(&path).ok().filter(|file| file.is_file())?.len();
            (Some(path), size_bytes)
        }
        _ => return None,
    };
    if parameter.contains('=') && !parameter.starts_with("size=") && !parameter.starts_with("file=") {
        return None;
    }
    order.exports = vec![Export { name: name.into(), path, size_bytes, is_read_only, data: None }];
    (size_bytes > 0).then_some(order)
}

/// An export of nbdkit's plugin `data`, if its data are bytes and places.
fn data(parameters: &[&str], name: &str, is_read_only: bool) -> Option<Export> {
    let (mut bytes, mut size_bytes, mut at) = (BTreeMap::new(), None, 0);
    for parameter in parameters {
        match parameter.split_once('=')? {
            ("size", text) => size_bytes = Some(size(text)?),
            ("data", text) => {
                for word in text.split_whitespace() {
                    match word.strip_prefix('@') {
                        Some(place) => at = place.parse().ok()?,
                        None => {
                            bytes.insert(at, word.parse().ok()?);
                            at += 1;
                        }
                    }
                }
            }
            _ => return None,
        }
    }
    let end_bytes = bytes.last_key_value().map_or(0, |(at, _)| at + 1);
    let size_bytes = size_bytes.unwrap_or(end_bytes);
    let export = Export { name: name.into(), path: None, size_bytes, is_read_only, data: Some(bytes) };
    (size_bytes > 0 && end_bytes <= size_bytes).then_some(export)
}

/// The order with its sparse data in files of `folder`.
fn with_files(order: &Order, folder: &Folder) -> std::io::Result<Order> {
    /// nbdkit's, which its suites know.
    const PAGE_BYTES: u64 = 32 << 10;
    let mut order = order.clone();
    for (index, export) in order.exports.iter_mut().enumerate() {
        let Some(data) = &export.data else { continue };
        let path = folder.join(&format!("data{index}"));
        let file = std::fs::File::create(&path)?;
        file.set_len(export.size_bytes)?;
        let page_of = |at: &u64| at / PAGE_BYTES * PAGE_BYTES;
        for page in data.keys().map(page_of).collect::<BTreeSet<u64>>() {
            let length = PAGE_BYTES.min(export.size_bytes - page);
            let bytes: Vec<u8> = (page..page + length).map(|at| data.get(&at).copied().unwrap_or(0)).collect();
            file.write_all_at(&bytes, page)?;
        }
        export.path = Some(path);
    }
    Ok(order)
}

fn qemu_nbd(words: &[&str]) -> Option<Order> {
    let mut order = Order::new(Socket::Any);
    let (mut name, mut is_read_only, mut image, mut is_raw) = ("", false, None, false);
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        if let Some(text) = value(word, &["--socket", "-k"], &mut rest) {
            order.socket = Socket::Unix(text?.into());
        } else if let Some(text) = value(word, &["--format", "-f"], &mut rest) {
            is_raw = text? == "raw";
        } else if let Some(text) = value(word, &["--export-name", "-x"], &mut rest) {
            name = text?;
        } else if let Some(text) = value(word, &["--pid-file"], &mut rest) {
            order.pid_file = Some(text?.into());
        } else if value(word, &["--shared", "-e", "--cache", "--aio", "--discard", "--detect-zeroes"], &mut rest)
            .is_some()
        {
        } else {
            match word {
                "-t" | "--persistent" | "-v" | "--verbose" => {}
                "-r" | "--read-only" => is_read_only = true,
                other if other.starts_with('-') => return None,
                path => image = Some(PathBuf::from(path)),
            }
        }
    }
    let path = image?;
    let size_bytes = std::fs::metadata(&path).ok().filter(|file| file.is_file())?.len();
    order.exports = vec![Export { name: name.into(), path: Some(path), size_bytes, is_read_only, data: None }];
    (is_raw && size_bytes > 0 && order.socket != Socket::Any).then_some(order)
}

fn nbd_server(words: &[&str]) -> Option<Order> {
    let mut order = Order::new(Socket::Tcp("127.0.0.1".into(), 10809));
    let mut config = None;
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        if let Some(path) = value(word, &["-C", "--config-file"], &mut rest) {
            config = Some(path?);
        } else {
            order.pid_file = Some(value(word, &["-p", "--pid-file"], &mut rest)??.into());
        }
    }
    let text = std::fs::read_to_string(config?).ok()?;
    let mut certificate = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if section != "generic" {
                let name = section.into();
                order.exports.push(Export { name, path: None, size_bytes: 0, is_read_only: false, data: None });
            }
            continue;
        }
        let (key, value) = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()))?;
        let last = order.exports.last_mut();
        match (key, last) {
            ("exportname", Some(export)) => export.path = Some(value.into()),
            ("filesize", Some(export)) => export.size_bytes = value.parse().ok()?,
            ("readonly", Some(export)) => export.is_read_only = value == "true",
            // A file of its own that goes with the server: memory is as good.
            ("temporary", Some(export)) if value == "true" => export.path = None,
            ("flush" | "fua" | "rotational" | "listenaddr" | "timeout", _) => {}
            ("unixsock", _) => order.socket = Socket::Unix(value.into()),
            ("port", None) => order.socket = Socket::Tcp("127.0.0.1".into(), value.parse().ok()?),
            ("certfile", None) => certificate = Some(PathBuf::from(value)),
            ("force_tls", _) => order.tls_mode = "required",
            ("keyfile" | "cacertfile" | "tlsprio", None) => {}
            // Copies on write, trees of files, lists, includes.
            _ => return None,
        }
    }
    if let Some(certificate) = certificate {
        order.tls = Some((certificate.parent()?.into(), true));
    }
    // Several exports of one file are two views of the same bytes: our exports have ranges of their own.
    let mut paths = BTreeSet::new();
    for export in &mut order.exports {
        let Some(path) = &export.path else { continue };
        let file = std::fs::metadata(path).ok().filter(|file| file.is_file())?;
        if !paths.insert(path) || export.size_bytes > file.len() {
            return None;
        }
        if export.size_bytes == 0 {
            export.size_bytes = file.len();
        }
    }
    order.exports.iter().all(|export| export.size_bytes > 0).then_some(order).filter(|order| !order.exports.is_empty())
}

/// The config of our server for an order, at `address`.
fn config(order: &Order, address: &str) -> String {
    let mut text = String::from("[server]\nworkers = 1\npin = false\nsocket-mode = \"777\"\n[tenant.t]\n");
    if let Some((folder, verifies)) = &order.tls {
        let file = |name: &str| folder.join(name).display().to_string();
        let _ =
            write!(text, "[tls]\ncertificate = {:?}\nkey = {:?}\n", file("server-cert.pem"), file("server-key.pem"));
        if *verifies {
            let _ = writeln!(text, "client-ca = {:?}", file("ca-cert.pem"));
        }
        let _ = write!(text, "[address.{address:?}]\ntls = {:?}\n", order.tls_mode);
    }
    for (index, export) in order.exports.iter().enumerate() {
        let _ = writeln!(text, "[device.d{index}]");
        match &export.path {
            Some(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let _ = writeln!(
                    text,
                    "kind = \"file\"\npath = {:?}\nexpert.direct = \"never\"",
                    path.display().to_string()
                );
            }
            None => {
                let _ = writeln!(text, "kind = \"memory\"\nsize = {}", export.size_bytes);
            }
        }
        let Export { name, size_bytes, is_read_only, .. } = export;
        let _ = write!(
            text,
            "[export.{name:?}]\ndevice = \"d{index}\"\ntenant = \"t\"\nsize = {size_bytes}\nread-only = {is_read_only}\n\
             nbd = {address:?}\n"
        );
    }
    text
}

fn serve(server: &Path, order: &Order) -> Result<i32, String> {
    let folder = Folder::new();
    let own = folder.join("s.sock");
    let (socket, address) = match &order.socket {
        Socket::Unix(path) => {
            let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let address = format!("unix:{}", path.display());
            (Socket::Unix(path), address)
        }
        Socket::Tcp(host, port) => (order.socket.clone(), format!("tcp:{host}:{port}")),
        Socket::Passed => (Socket::Passed, passed_address()?),
        Socket::Stdin | Socket::Any => (Socket::Unix(own.clone()), format!("unix:{}", own.display())),
    };
    let file = folder.join("stand-in.toml");
    let order = &with_files(order, &folder).map_err(|error| format!("{}: {error}", folder.path().display()))?;
    std::fs::write(&file, config(order, &address)).map_err(|error| format!("{}: {error}", file.display()))?;
    note(&address);
    let mut command = if order.ends_with_parent {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(server);
        command
    } else {
        Command::new(server)
    };
    command.arg("serve").arg(&file).stdout(Stdio::null());
    // Some suites compare all that a server prints.
    if let Some(said) = said() {
        command.stderr(said);
    }
    match (&order.run, &order.socket) {
        (Some(run), _) => {
            let mut child =
                command.stdin(Stdio::null()).spawn().map_err(|error| format!("{}: {error}", server.display()))?;
            wait_for(&socket, &mut child)?;
            let status = shell(run, order, &socket);
            end(child);
            status
        }
        (None, Socket::Stdin) => {
            let mut child =
                command.stdin(Stdio::null()).spawn().map_err(|error| format!("{}: {error}", server.display()))?;
            wait_for(&socket, &mut child)?;
            if let Some(pid_file) = &order.pid_file {
                write_whole(&pid_file.to_string_lossy(), &std::process::id().to_string())?;
            }
            let result = join(&own);
            end(child);
            result.map(|()| 0)
        }
        (None, _) => {
            if let Some(pid_file) = &order.pid_file {
                announce(&socket, pid_file)?;
            }
            if order.socket == Socket::Passed {
                command.env("LISTEN_PID", std::process::id().to_string());
            }
            // The folder must outlive this process: the runner removes the case's TMPDIR.
            std::mem::forget(folder);
            Err(format!("{}: {}", server.display(), command.exec()))
        }
    }
}

/// A file beside [`LOG`], to append to.
fn said() -> Option<std::fs::File> {
    let mut path = std::env::var_os(LOG)?;
    path.push(".said");
    std::fs::OpenOptions::new().create(true).append(true).open(path).ok()
}

fn note(address: &str) {
    let Some(log) = std::env::var_os(LOG) else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
    let _ = file.and_then(|mut file| writeln!(file, "{address}"));
}

/// Address of the listening socket that a suite passed as descriptor 3.
fn passed_address() -> Result<String, String> {
    let text =
        std::fs::read_to_string("/proc/self/net/unix").map_err(|error| format!("/proc/self/net/unix: {error}"))?;
    let link = std::fs::read_link("/proc/self/fd/3").map_err(|error| format!("descriptor 3: {error}"))?;
    let link = link.to_string_lossy().into_owned();
    let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
    let line = text.lines().find(|line| line.split_whitespace().nth(6) == Some(inode));
    let path =
        line.and_then(|line| line.split_whitespace().nth(7)).ok_or("descriptor 3 is no unix socket with a path")?;
    Ok(format!("unix:{path}"))
}

fn connects(socket: &Socket) -> bool {
    match socket {
        Socket::Unix(path) => UnixStream::connect(path).is_ok(),
        Socket::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).is_ok(),
        _ => true,
    }
}

fn wait_for(socket: &Socket, child: &mut Child) -> Result<(), String> {
    let mut ended = None;
    wait_until(|| {
        ended = child.try_wait().ok().flatten();
        ended.is_some() || connects(socket)
    });
    match ended {
        Some(status) => Err(format!("our server ended before it listened ({status})")),
        None if connects(socket) => Ok(()),
        None => Err("our server does not listen".into()),
    }
}

/// Returns when `condition` holds, or false after [`START_LIMIT`].
pub(super) fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + START_LIMIT;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

/// Another process writes the file as soon as the server listens; this process becomes the server, so that signals and
/// the status are the server's.
fn announce(socket: &Socket, pid_file: &Path) -> Result<(), String> {
    let (kind, place) = match socket {
        Socket::Unix(path) => ("unix", path.display().to_string()),
        Socket::Tcp(host, port) => ("tcp", format!("{host}:{port}")),
        _ => ("none", String::new()),
    };
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new(own);
    command.args(["stand-in", "announce", kind, &place]).arg(pid_file).arg(std::process::id().to_string());
    command.stdin(Stdio::null()).spawn().map(drop).map_err(|error| format!("the announcer: {error}"))
}

/// `stand-in announce KIND PLACE FILE PID`.
///
/// # Errors
/// One sentence if nothing listens there in time, or the file cannot be written.
pub fn announce_when_ready(kind: &str, place: &str, file: &str, pid: &str) -> Result<(), String> {
    let socket = match (kind, place.rsplit_once(':')) {
        ("unix", _) => Socket::Unix(place.into()),
        ("tcp", Some((host, port))) => Socket::Tcp(host.into(), port.parse().map_err(|_| format!("port {port}"))?),
        _ => Socket::Passed,
    };
    if !wait_until(|| connects(&socket)) {
        return Err(format!("nothing listens at {place}"));
    }
    write_whole(file, pid)
}

/// In one step: a suite that sees the file reads a whole number in it.
fn write_whole(file: &str, pid: &str) -> Result<(), String> {
    let new = format!("{file}.new");
    let written = std::fs::write(&new, format!("{pid}\n")).and_then(|()| std::fs::rename(&new, file));
    written.map_err(|error| format!("{file}: {error}"))
}

/// The command of `--run` with nbdkit's variables.
fn shell(run: &str, order: &Order, socket: &Socket) -> Result<i32, String> {
    let name = order.exports.first().map_or("", |export| &export.name);
    let (uri, path, port) = match socket {
        Socket::Unix(path) => {
            (format!("nbd+unix:///{name}?socket={}", path.display()), path.display().to_string(), String::new())
        }
        Socket::Tcp(host, port) => (format!("nbd://{host}:{port}/{name}"), String::new(), port.to_string()),
        _ => (String::new(), String::new(), String::new()),
    };
    let nbd = format!("nbd:unix:{path}");
    let assign =
        [("uri", &uri), ("unixsocket", &path), ("port", &port), ("nbd", &nbd), ("exportname", &name.to_string())];
    let assign: String = assign.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
    let status = Command::new("bash").arg("-c").arg(format!("{assign}{run}")).status();
    let status = status.map_err(|error| format!("bash: {error}"))?;
    Ok(status.code().unwrap_or(1))
}

/// Bytes between the connected socket on stdin and the server's, until either side ends.
fn join(own: &Path) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("stdin: {error}");
    let client: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(broken)?;
    let client = UnixStream::from(client);
    let server = UnixStream::connect(own).map_err(broken)?;
    let (mut from_client, mut to_server) = (client.try_clone().map_err(broken)?, server.try_clone().map_err(broken)?);
    let up = std::thread::spawn(move || {
        pump(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(std::net::Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    pump(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(std::net::Shutdown::Both);
    let _ = up.join();
    Ok(())
}

fn pump(from: &mut UnixStream, to: &mut UnixStream) {
    let mut piece = vec![0; 1 << 18];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
}

fn end(mut child: Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).status();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn a_memory_of_nbdkit_is_ours_and_filters_and_other_plugins_are_not() {
        let order = nbdkit(&words("-s --exit-with-parent -v -e x memory size=1M")).expect("ours");
        assert_eq!((order.socket, order.ends_with_parent), (Socket::Stdin, true));
        let export = Export { name: "x".into(), path: None, size_bytes: 1 << 20, is_read_only: false, data: None };
        assert_eq!(order.exports, [export]);
        let order = nbdkit(&words("-f -p 1234 -P /tmp/p -r memory 64k")).expect("ours");
        assert_eq!(order.socket, Socket::Tcp("127.0.0.1".into(), 1234));
        assert_eq!(order.pid_file, Some("/tmp/p".into()));
        assert_eq!((order.exports[0].size_bytes, order.exports[0].is_read_only), (65536, true));
        for other in [
            "--filter=delay memory 1M",
            "-o memory 1M",
            "pattern 1M",
            "--version",
            "memory 0",
            "memory size=1M allocator=zstd",
            "data data=<FILE",
            "data data=1 size=0",
            "data data=300",
        ] {
            assert_eq!(nbdkit(&words(other)), None, "{other}");
        }
    }

    #[test]
    fn bytes_of_nbdkits_data_are_in_pages_of_a_sparse_file() {
        use std::os::unix::fs::MetadataExt;
        let order = nbdkit(&["-U", "-", "data", "data=1 @131072 2 3", "size=8G"]).expect("ours");
        let folder = Folder::new();
        let order = with_files(&order, &folder).expect("written");
        let path = order.exports[0].path.as_ref().expect("a file");
        let file = std::fs::metadata(path).expect("there");
        assert_eq!((order.exports[0].size_bytes, file.len()), (8 << 30, 8 << 30));
        assert!(file.blocks() * 512 < 1 << 20, "{} blocks", file.blocks());
        let mut bytes = [0; 3];
        std::fs::File::open(path).expect("there").read_exact_at(&mut bytes, 131_072).expect("read");
        assert_eq!(bytes, [2, 3, 0]);
        assert_eq!(nbdkit(&["data", "data=@9 1"]).expect("ours").exports[0].size_bytes, 10);
    }

    #[test]
    fn a_raw_image_of_qemu_nbd_is_ours_and_other_formats_are_not() {
        let folder = Folder::new();
        let image = folder.file("image", 4096);
        let image = image.to_str().expect("utf-8");
        let line = ["--pid-file=/p", "-v", "-t", "-k", "/s", "-f", "raw", "-e", "42", "-x", "", image];
        let order = qemu_nbd(&line).expect("ours");
        assert_eq!((order.socket, order.pid_file), (Socket::Unix("/s".into()), Some("/p".into())));
        assert_eq!((order.exports[0].name.as_str(), order.exports[0].size_bytes), ("", 4096));
        let line = ["-t", "-k", "/s", "-f", "qcow2", "-x", "", image];
        assert_eq!(qemu_nbd(&line), None);
    }

    #[test]
    fn a_config_of_nbd_server_is_ours_unless_exports_share_a_file() {
        let folder = Folder::new();
        let (image, config) = (folder.file("image", 4096), folder.join("c"));
        let export = |name: &str, rest: &str| format!("[{name}]\nexportname = {}\n{rest}", image.display());
        let read = |text: String| {
            std::fs::write(&config, text).expect("written");
            nbd_server(&["-C", config.to_str().expect("utf-8"), "-p", "/p"])
        };
        let order = read(format!("[generic]\n{}", export("a", "readonly = true\n"))).expect("ours");
        assert_eq!(order.exports[0].name, "a");
        assert!(order.exports[0].is_read_only);
        assert_eq!(read(format!("[generic]\n{}{}", export("a", ""), export("b", ""))), None);
        assert_eq!(read(format!("[generic]\n{}", export("a", "copyonwrite = true\n"))), None);
    }
}
