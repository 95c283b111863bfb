//! Where connections come from: a listening socket that is itself a client of a worker.
//!
//! Each connection accepted is handed to the engine, which chooses the worker where it lives.

use super::places::Places;
use super::{Connection, NbdOptions, NbdStats};
use crate::export::ExportTable;
use mqfq_blk::client::{Client, Context, Event, MakeClient};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::fs::File;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// From an accept that found no descriptor, with the reserve given up already, to the next one.
const RETRY_NS: u64 = 10_000_000;

/// Where a listener listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `tcp:HOST:PORT`; port 0 lets the kernel choose.
    Tcp {
        /// Name or number; an IPv6 number without its brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Address {
    /// Reads `unix:PATH` or `tcp:HOST:PORT`.
    ///
    /// # Errors
    /// One sentence for the user.
    pub fn parse(text: &str) -> Result<Address, String> {
        let wrong = |why: &str| Err(format!("{text:?} is not an address to listen on: {why}"));
        match text.split_once(':') {
            Some(("unix", "")) => wrong("no path follows \"unix:\""),
            Some(("unix", path)) => Ok(Address::Unix(PathBuf::from(path))),
            Some(("tcp", rest)) => {
                let Some((host, port)) = rest.rsplit_once(':') else { return wrong("expected tcp:HOST:PORT") };
                let Ok(port) = port.parse() else { return wrong("its port is not a number from 0 to 65535") };
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                match bare.unwrap_or(host) {
                    "" => wrong("it names no host; 0.0.0.0 or [::] listens on all"),
                    host if bare.is_none() && host.contains(':') => wrong("an IPv6 number goes in brackets"),
                    host => Ok(Address::Tcp { host: host.to_owned(), port }),
                }
            }
            _ => wrong("expected unix:PATH or tcp:HOST:PORT"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// A listening socket with the exports that it offers.
pub struct NbdListener {
    socket: OwnedFd,
    address: Address,
    /// Unlinks the unix socket when dropped.
    _file: Option<SocketFile>,
    exports: Arc<ExportTable>,
    options: Arc<NbdOptions>,
    stats: Arc<NbdStats>,
    places: Arc<Places>,
    done: bool,
}

impl NbdListener {
    /// Listens on `address`. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    pub fn bind(address: &Address, exports: Arc<ExportTable>, options: NbdOptions) -> Result<NbdListener, String> {
        // One waiting place for each client that may be served, within what kernels commonly allow.
        let backlog = options.connections_max.clamp(128, 4096) as i32;
        let (socket, address, file) = match address {
            Address::Unix(path) => {
                let (socket, file) = listen_unix(path, options.socket_mode, backlog)
                    .map_err(|why| format!("cannot listen on {address}: {why}"))?;
                (socket, address.clone(), Some(file))
            }
            Address::Tcp { host, port } => {
                let (socket, port) =
                    listen_tcp(host, *port, backlog).map_err(|why| format!("cannot listen on {address}: {why}"))?;
                (socket, Address::Tcp { host: host.clone(), port }, None)
            }
        };
        options.reserve.take_back();
        let stats = NbdStats::new();
        Ok(NbdListener {
            socket,
            address,
            _file: file,
            places: Places::new(&exports, &options, stats.clone()),
            exports,
            options: Arc::new(options),
            stats,
            done: false,
        })
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Counters of its connections.
    pub fn stats(&self) -> Arc<NbdStats> {
        self.stats.clone()
    }

    /// As the engine wants it.
    pub fn into_client(self) -> MakeClient {
        Box::new(move || Box::new(self))
    }

    fn accept(&self, context: &mut dyn Context) {
        context.accept(self.socket.as_raw_fd(), 0);
    }

    fn accepted(&mut self, context: &mut dyn Context, socket: OwnedFd) {
        let reserve = &self.options.reserve;
        if !reserve.take_back() {
            // This client got the reserve's descriptor, and there is still no other: turn it away, and have a reserve
            // again.
            drop(socket);
            reserve.take_back();
            self.stats.count_refused();
            self.say("no file descriptor is left: a client was turned away");
            return;
        }
        if let Address::Tcp { .. } = self.address {
            // Replies leave when they are gathered; and a peer that vanished shall be noticed. Neither can be refused
            // by a socket that is connected, and if it is not, the first receive says so.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
        }
        let connection = Connection::new(socket, self.exports.clone(), self.options.clone(), &self.places);
        context.attach(Box::new(move || Box::new(connection)));
    }

    fn say(&self, what: impl fmt::Display) {
        if let Some(log) = &self.options.log {
            log(&format!("nbd: {}: {what}", self.address));
        }
    }
}

impl Client for NbdListener {
    fn start(&mut self, context: &mut dyn Context) {
        self.accept(context);
    }

    fn event(&mut self, context: &mut dyn Context, event: Event) {
        let result = match event {
            _ if self.done => return,
            Event::Accepted { result, .. } => result,
            Event::Timer { .. } => return self.accept(context),
            other => unreachable!("a listener only accepts, yet got {other:?}"),
        };
        match result.map_err(Errno::from_raw_os_error) {
            Ok(socket) => self.accepted(context, socket),
            // The kernel takes the descriptor before it looks for a client, so this says nothing of whether one waits.
            Err(Errno::MFILE | Errno::NFILE) => {
                if !self.options.reserve.give_up() {
                    // Nobody tells when a descriptor comes back.
                    return context.timer(context.now_ns().saturating_add(RETRY_NS), 0);
                }
            }
            // The client gave up first, or the kernel was short of memory for a moment.
            Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN | Errno::PROTO | Errno::NOMEM | Errno::NOBUFS) => {}
            // Errors that Linux hands over from the new connection's network. Source: accept(2).
            Err(
                Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                | Errno::PERM,
            ) => {}
            Err(errno) => {
                self.done = true;
                self.say(format_args!("no longer listening: {errno}"));
                return;
            }
        }
        self.accept(context);
    }

    fn completed(&mut self, _context: &mut dyn Context, completion: mqfq_blk::request::Completion) {
        unreachable!("a listener submits nothing, yet got {completion:?}");
    }

    fn turn_end(&mut self, _context: &mut dyn Context) {}

    fn room(&mut self, _context: &mut dyn Context) {}

    fn drain(&mut self, context: &mut dyn Context) {
        self.done = true;
        context.shutdown(self.socket.as_raw_fd());
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

fn listen_tcp(host: &str, port: u16, backlog: i32) -> Result<(OwnedFd, u16), String> {
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let listener = TcpListener::bind(&addresses[..]).map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    // A second listen only changes the backlog, which std sets to 128.
    rustix::net::listen(&listener, backlog).map_err(|errno| errno.to_string())?;
    Ok((listener.into(), port))
}

/// Binds, sets the permissions, and listens, in this order: until the last step nobody can connect.
///
/// Two servers that start at once on one path must not take each other's socket for a stale one, so the steps are done
/// under a lock of the directory. (Where the directory cannot be opened they are done without: then only such a race
/// goes unnoticed.)
fn listen_unix(path: &Path, mode: u32, backlog: i32) -> Result<(OwnedFd, SocketFile), String> {
    let address = SocketAddrUnix::new(path)
        .map_err(|_| "a socket's path has at most 107 bytes and no NUL; use a shorter one".to_owned())?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let lock = File::open(directory).ok();
    if let Some(lock) = &lock {
        let _ = lock.lock();
    }
    let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = open().map_err(|errno| errno.to_string())?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &address)?;
            rustix::net::bind(&socket, &address).map_err(|errno| errno.to_string())?;
        }
        other => other.map_err(|errno| errno.to_string())?,
    }
    let file = SocketFile::new(path)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|errno| format!("its permissions: {errno}"))?;
    rustix::net::listen(&socket, backlog).map_err(|errno| errno.to_string())?;
    Ok((socket, file))
}

/// Unlinks the socket at `path` if nobody listens on it.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), String> {
    let stat = rustix::fs::lstat(path).map_err(|errno| errno.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err("the file exists and is not a socket".to_owned());
    }
    // Not blocking: a server that is there but does not accept must not hold us up.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    match rustix::net::connect(probe.map_err(|errno| errno.to_string())?.as_fd(), address) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(|errno| format!("stale, but {errno}")),
        Ok(()) | Err(Errno::AGAIN) => Err("a server is already listening there".to_owned()),
        Err(errno) => Err(format!("the socket exists and cannot be tried: {errno}")),
    }
}

/// Our socket's file; unlinked at the end, unless the path leads to another one by then.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> Result<SocketFile, String> {
        let identity = identity(path).map_err(|errno| errno.to_string())?;
        Ok(SocketFile { path: path.to_owned(), identity })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path) == Ok(self.identity) {
            // Nobody is left to be told; a file that stays is recognised as stale by the next server.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> Result<(u64, u64), Errno> {
    rustix::fs::lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
