//! Addresses of sockets, and how to listen on them: for every front end whose clients connect.
//!
//! A unix socket is a file. It has its permissions before a client can connect, a stale one is replaced, and the
//! server's own is removed at the end.

mod lock;

use rustix::fs::{Access, FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest path of a unix socket, bytes: `sockaddr_un` has 108 and the last is a NUL.
pub const PATH_BYTES_MAX: usize = 107;

/// Forms that [`SocketAddress::parse`] takes, for an error's "allowed is".
pub const ADDRESSES: &str = "\"unix:PATH\" (at most 107 bytes), \"tcp:HOST:PORT\"";

const NOT_A_SOCKET: &str = "the file exists and is not a socket";

/// Reason why a text is no address of a front end. The sentence begins with the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddressFault {
    /// "... is not an address to listen on: {0}"
    Unreadable(String),
    /// "... {0}, allowed is ..."
    Refused(String),
}

/// Where a listener listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketAddress {
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

impl SocketAddress {
    /// As [`crate::front_end::Address::network`].
    pub fn network(&self) -> Option<bool> {
        let SocketAddress::Tcp { host, .. } = self else { return None };
        let is_loopback = match host.parse::<std::net::IpAddr>() {
            Ok(number) => number.to_canonical().is_loopback(),
            Err(_) => host == "localhost",
        };
        Some(!is_loopback)
    }

    /// Reads `unix:PATH` or `tcp:HOST:PORT`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<SocketAddress, AddressFault> {
        let wrong = |why: &str| Err(AddressFault::Unreadable(why.to_owned()));
        if text.contains('\0') {
            return Err(AddressFault::Refused("holds a NUL character, which ends a path".to_owned()));
        }
        match text.split_once(':') {
            Some(("unix", "")) => wrong("no path follows \"unix:\""),
            Some(("unix", path)) if path.len() > PATH_BYTES_MAX => {
                Err(AddressFault::Refused("is too long for a socket".to_owned()))
            }
            Some(("unix", path)) => Ok(SocketAddress::Unix(PathBuf::from(path))),
            Some(("tcp", rest)) => {
                let Some((host, port)) = rest.rsplit_once(':') else { return wrong("expected tcp:HOST:PORT") };
                let Ok(port) = port.parse() else { return wrong("its port is not a number from 0 to 65535") };
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                match bare.unwrap_or(host) {
                    "" => wrong("it names no host; 0.0.0.0 or [::] listens on all"),
                    host if bare.is_none() && host.contains(':') => wrong("an IPv6 number goes in brackets"),
                    host => Ok(SocketAddress::Tcp { host: host.to_owned(), port }),
                }
            }
            _ => wrong("expected unix:PATH or tcp:HOST:PORT"),
        }
    }
}

impl SocketAddress {
    /// See [`crate::front_end::Address::claim`].
    pub fn claim(&self) -> Option<String> {
        match self {
            SocketAddress::Tcp { port: 0, .. } => None,
            _ => Some(self.to_string()),
        }
    }

    /// Listens on it with room for `backlog` waiting clients. A stale socket file is replaced; the new one has `mode`.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    pub fn listen(&self, mode: u32, backlog: i32) -> Result<Listening, String> {
        let failed = |why: String| format!("cannot listen on {self}: {why}");
        match self {
            SocketAddress::Unix(path) => {
                let (socket, file) = listen_unix(path, mode, backlog).map_err(failed)?;
                Ok(Listening { socket, address: self.clone(), file: Some(file) })
            }
            SocketAddress::Tcp { host, port } => {
                let (socket, port) = listen_tcp(host, *port, backlog).map_err(failed)?;
                Ok(Listening { socket, address: SocketAddress::Tcp { host: host.clone(), port }, file: None })
            }
        }
    }

    /// Checks that [`SocketAddress::listen`] can succeed on this machine as it is, but for another server that listens
    /// there now. Makes nothing: a TCP port is bound for a moment, and no client can connect to it.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    pub fn could_listen(&self) -> Result<(), String> {
        let could = match self {
            SocketAddress::Unix(path) => could_listen_unix(path),
            SocketAddress::Tcp { host, port } => could_listen_tcp(host, *port),
        };
        could.map_err(|why| format!("cannot listen on {self}: {why}"))
    }

    /// Guard that removes the socket's file when dropped, if there is one: for a process that goes on listening in
    /// another's place.
    pub fn own_file(&self) -> Option<impl Send + use<>> {
        self.file()
    }

    fn file(&self) -> Option<SocketFile> {
        match self {
            // A file removed meanwhile needs no guard.
            SocketAddress::Unix(path) => SocketFile::new(path).ok(),
            SocketAddress::Tcp { .. } => None,
        }
    }

    /// `socket` is a socket that listens there.
    pub fn is_where(&self, socket: &OwnedFd) -> bool {
        self.adopted_address(socket).is_ok()
    }

    fn adopted_address(&self, socket: &OwnedFd) -> Result<SocketAddress, String> {
        if !sockopt::socket_acceptconn(socket).unwrap_or(false) {
            return Err("what was handed over does not listen".to_owned());
        }
        let name = rustix::net::getsockname(socket).map_err(|errno| errno.to_string())?;
        let address = match self {
            SocketAddress::Unix(path) => {
                let bound = SocketAddrUnix::try_from(name).ok();
                let is_there = bound.as_ref().and_then(|bound| bound.path_bytes()) == Some(path.as_os_str().as_bytes());
                is_there.then(|| self.clone())
            }
            SocketAddress::Tcp { host, port } => {
                let bound = std::net::SocketAddr::try_from(name).ok().map(|bound| bound.port());
                let port = bound.filter(|bound| *port == 0 || bound == port);
                port.map(|port| SocketAddress::Tcp { host: host.clone(), port })
            }
        };
        address.ok_or_else(|| "what was handed over listens elsewhere".to_owned())
    }

    /// Goes on with a socket on which another process has listened on it. Its file stays the other's until
    /// [`Listening::own`].
    ///
    /// # Errors
    /// One sentence for the user, which names the address: the socket does not listen there.
    pub fn adopt(&self, socket: OwnedFd) -> Result<Listening, String> {
        let address =
            self.adopted_address(&socket).map_err(|why| format!("cannot go on listening on {self}: {why}"))?;
        Ok(Listening { socket, address, file: None })
    }
}

/// A listening socket; its file goes with it.
pub struct Listening {
    /// The socket.
    pub socket: OwnedFd,
    /// Where it listens, with the port that the kernel chose.
    pub address: SocketAddress,
    file: Option<SocketFile>,
}

impl Listening {
    /// From now on its file goes with it, if it has one and that was another process's.
    pub fn own(&mut self) {
        if self.file.is_none() {
            self.file = self.address.file();
        }
    }

    /// The socket, its address, and a guard that removes the socket's file when dropped: for listening without this
    /// crate.
    pub fn into_parts(self) -> (OwnedFd, SocketAddress, impl Send + use<>) {
        (self.socket, self.address, self.file)
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            SocketAddress::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            SocketAddress::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
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

/// Checks that one of its addresses can be bound, or is another server's.
fn could_listen_tcp(host: &str, port: u16) -> Result<(), String> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut result = Err(Errno::ADDRNOTAVAIL);
    for address in addresses {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        result = socket.and_then(|socket| {
            // As of a listener: connections of a server that has ended are not in the way.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &address)
        });
        match result {
            Ok(()) | Err(Errno::ADDRINUSE) => return Ok(()),
            // A service manager, which may have a low port, listens there for the server.
            Err(Errno::ACCESS) if is_listening(port) => return Ok(()),
            Err(_) => {}
        }
    }
    result.map_err(|errno| errno.to_string())
}

/// True if any socket of this machine listens at the port. Source: proc_net_tcp.rst of Linux; 0A is TCP_LISTEN.
fn is_listening(port: u16) -> bool {
    let end = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table
            .lines()
            .map(str::split_ascii_whitespace)
            .any(|mut words| words.nth(1).is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A"))
    })
}

/// Checks that a socket is there, be it stale, another server's or a service manager's, or can be made in its folder.
fn could_listen_unix(path: &Path) -> Result<(), String> {
    match rustix::fs::lstat(path) {
        Ok(about) if FileType::from_raw_mode(about.st_mode) == FileType::Socket => return Ok(()),
        Ok(_) => return Err(NOT_A_SOCKET.to_owned()),
        Err(_) => {}
    }
    let folder = folder_of(path);
    let shown = folder.display();
    let about = rustix::fs::stat(folder).map_err(|errno| match errno {
        Errno::NOENT => {
            format!(
                "there is no folder {shown}, allowed is one that exists (RuntimeDirectory= of a systemd unit makes it)"
            )
        }
        errno => format!("the folder {shown}: {errno}"),
    })?;
    if FileType::from_raw_mode(about.st_mode) != FileType::Directory {
        return Err(format!("{shown} is not a folder"));
    }
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|errno| format!("nothing can be made in the folder {shown}: {errno}"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Binds, sets the permissions, and listens, in this order: until the last step no client can connect.
///
/// Two servers that start at once on one path must not take each other's socket for a stale one, so the steps are done
/// under a lock. (Where it cannot be had they are done without: then only such a race goes unnoticed.)
fn listen_unix(path: &Path, mode: u32, backlog: i32) -> Result<(OwnedFd, SocketFile), String> {
    let address = SocketAddrUnix::new(path)
        .map_err(|_| "a socket's path has at most 107 bytes and no NUL; use a shorter one".to_owned())?;
    let _lock = lock::Lock::take(folder_of(path), lock::WITHIN)?;
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

/// Unlinks the socket at `path` if no process listens on it.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), String> {
    let stat = rustix::fs::lstat(path).map_err(|errno| errno.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(NOT_A_SOCKET.to_owned());
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
            // An error cannot be reported here; the next server recognises a file that stays as stale.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> Result<(u64, u64), Errno> {
    rustix::fs::lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_it_could_listen_is_found_out_without_a_trace() {
        let folder = mqfq_testing::Folder::new();
        let unix = |name: &str| SocketAddress::Unix(folder.path().join(name));
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!((unix("free").could_listen(), names()), (Ok(()), 0));
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(unix("file").could_listen().unwrap_err().ends_with("the file exists and is not a socket"));
        assert!(unix("file/socket").could_listen().unwrap_err().ends_with("file is not a folder"));
        let listener = std::os::unix::net::UnixListener::bind(folder.path().join("taken")).unwrap();
        assert_eq!(unix("taken").could_listen(), Ok(()), "another server's, which is not disturbed");
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody came");
        drop(listener);
        assert_eq!(unix("taken").could_listen(), Ok(()), "a stale one is replaced");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let tcp = |host: &str, port| SocketAddress::Tcp { host: host.to_owned(), port }.could_listen();
        assert_eq!((tcp("127.0.0.1", port), tcp("127.0.0.1", 0), is_listening(port)), (Ok(()), Ok(()), true));
        // An address of documentation (RFC 5737), which is no machine's.
        assert!(tcp("192.0.2.1", 0).is_err());
    }
}
