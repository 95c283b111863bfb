//! Identity of a client, and access to exports: by the names in its certificate, or by the user of its process.
//!
//! An export without a list is open to any client that reaches its address. With lists, a client must be in one: a name
//! of its certificate in `identities`, its user in `uids`, its group in `gids`. A client without a certificate has no
//! name, and a client of another machine has no user.
//!
//! Names are compared as they are, but those of DNS without regard to the case of ASCII letters; no name has wildcards.
//! Sources: RFC 5280, 4.2.1.6 (subject alternative name) and A.1 (common name); unix(7), SO_PEERCRED.

#[cfg(feature = "tls")]
mod certificate;

#[cfg(feature = "tls")]
pub use certificate::names;
#[cfg(feature = "tls")]
pub(crate) use certificate::rsa_bits;

use std::fmt;
use std::os::fd::BorrowedFd;

/// Kind of a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// `dns`: a dNSName.
    Dns,
    /// `uri`: a uniformResourceIdentifier, such as a SPIFFE ID.
    Uri,
    /// `email`: an rfc822Name.
    Email,
    /// `cn`: the subject's common name.
    CommonName,
}

impl Kind {
    /// All, in the order of their keys in messages.
    pub const ALL: [Kind; 4] = [Kind::Dns, Kind::Uri, Kind::Email, Kind::CommonName];

    /// Name in the config.
    pub const fn key(self) -> &'static str {
        match self {
            Kind::Dns => "dns",
            Kind::Uri => "uri",
            Kind::Email => "email",
            Kind::CommonName => "cn",
        }
    }
}

/// Longest name, bytes: as long as an export's.
pub const NAME_BYTES_MAX: usize = 4096;

/// Forms that [`Identity::parse`] takes, for an error's "allowed is".
pub const IDENTITIES: &str = "\"dns:NAME\", \"uri:URI\", \"email:ADDRESS\", \"cn:NAME\"";

/// A name that a certificate can have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    kind: Kind,
    name: String,
}

impl Identity {
    /// `None`: no certificate can have this name, or one that people would read as another.
    pub fn new(kind: Kind, name: &str) -> Option<Identity> {
        let is_clear = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control);
        let name = if kind == Kind::Dns { name.to_ascii_lowercase() } else { name.to_owned() };
        is_clear.then_some(Identity { kind, name })
    }

    /// Reads `KIND:NAME`.
    pub fn parse(text: &str) -> Option<Identity> {
        let (key, name) = text.split_once(':')?;
        Identity::new(Kind::ALL.into_iter().find(|kind| kind.key() == key)?, name)
    }

    /// The name, if it is one of DNS.
    pub fn dns(&self) -> Option<&str> {
        (self.kind == Kind::Dns).then_some(&self.name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.key(), self.name)
    }
}

/// The process at the other end of a unix socket, when it connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The process, which may have handed the socket on since.
    pub pid: i32,
}

/// Names and credentials known of a client.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Peer {
    /// The names in its certificate, which a trusted authority has signed. None without one.
    pub names: Vec<Identity>,
    /// `None`: not of this machine, or the kernel does not say.
    pub credentials: Option<Credentials>,
}

impl Peer {
    /// Peer at the other end of `socket`, which must be open.
    pub fn of_socket(socket: BorrowedFd<'_>) -> Peer {
        // A TCP socket answers with a process of 0, or an error.
        let found = rustix::net::sockopt::socket_peercred(socket).ok();
        let credentials = found.filter(|_| is_unix(socket)).map(|found| Credentials {
            uid: found.uid.as_raw(),
            gid: found.gid.as_raw(),
            pid: found.pid.as_raw_nonzero().get(),
        });
        Peer { names: Vec::new(), credentials }
    }
}

fn is_unix(socket: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_domain(socket).is_ok_and(|domain| domain == rustix::net::AddressFamily::UNIX)
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.names[..], self.credentials) {
            ([], None) => f.write_str("a client without a name"),
            ([], Some(Credentials { uid, gid, pid })) => write!(f, "process {pid} of user {uid}, group {gid}"),
            (names, _) => {
                let names: Vec<String> = names.iter().map(Identity::to_string).collect();
                write!(f, "{:?}", names.join(" "))
            }
        }
    }
}

/// Rule for the clients that an export takes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Access {
    /// Names of certificates.
    pub identities: Vec<Identity>,
    /// Users of this machine.
    pub uids: Vec<u32>,
    /// Groups of this machine: the one that a process runs with.
    pub gids: Vec<u32>,
}

impl Access {
    /// It admits every client.
    pub fn is_open(&self) -> bool {
        let Access { identities, uids, gids } = self;
        identities.is_empty() && uids.is_empty() && gids.is_empty()
    }

    /// It admits `peer`.
    pub fn admits(&self, peer: &Peer) -> bool {
        self.is_open()
            || peer.names.iter().any(|name| self.identities.contains(name))
            || peer.credentials.is_some_and(|of| self.uids.contains(&of.uid) || self.gids.contains(&of.gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_testing::user;
    use std::os::fd::AsFd;

    fn name(text: &str) -> Identity {
        Identity::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_name_has_a_kind_and_is_compared_as_it_is() {
        assert_eq!(name("dns:A.Example"), name("dns:a.example"));
        assert_ne!(name("cn:A"), name("cn:a"));
        assert_ne!(name("dns:a"), name("cn:a"), "another kind is another name");
        assert_eq!(name("uri:spiffe://example/a:b").to_string(), "uri:spiffe://example/a:b");
        for text in ["", "a", "ip:1", "dns:", "cn:a\0b", "cn:a\nb", "Dns:a"] {
            assert_eq!(Identity::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_client_must_be_in_one_of_the_lists_that_there_are() {
        let named = Peer { names: vec![name("cn:x"), name("dns:a")], credentials: None };
        let local = Peer { names: vec![], credentials: Some(Credentials { uid: 7, gid: 8, pid: 9 }) };
        let nobody = Peer::default();
        let admitted = |access: &Access| [&named, &local, &nobody].map(|peer| access.admits(peer));
        assert_eq!(admitted(&Access::default()), [true; 3]);
        let identities = vec![name("dns:a")];
        assert_eq!(admitted(&Access { identities: identities.clone(), ..Access::default() }), [true, false, false]);
        assert_eq!(admitted(&Access { uids: vec![7], ..Access::default() }), [false, true, false]);
        assert_eq!(admitted(&Access { gids: vec![8], ..Access::default() }), [false, true, false]);
        assert_eq!(admitted(&Access { uids: vec![8], gids: vec![7], ..Access::default() }), [false; 3]);
        assert_eq!(admitted(&Access { identities, uids: vec![7], gids: vec![] }), [true, true, false]);
    }

    #[test]
    fn every_entry_of_every_list_counts() {
        let local = |uid, gid| Peer { names: vec![], credentials: Some(Credentials { uid, gid, pid: 9 }) };
        let named = |names: &[&str]| Peer { names: names.iter().map(|text| name(text)).collect(), credentials: None };
        let (uids, gids) = (vec![5, 6], vec![7, 8]);
        let access = Access { identities: vec![name("dns:a"), name("dns:b")], uids, gids };
        for peer in [local(5, 1), local(6, 1), local(1, 7), local(1, 8), named(&["dns:a"]), named(&["cn:x", "dns:b"])] {
            assert!(access.admits(&peer), "{peer}");
        }
        // Among them the numbers of the other list.
        for peer in [local(1, 1), local(7, 5), local(8, 6), named(&["cn:a", "dns:c"]), named(&[])] {
            assert!(!access.admits(&peer), "{peer}");
        }
    }

    #[test]
    fn a_unix_socket_says_who_connected_and_tcp_does_not() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let of = Peer::of_socket(one.as_fd()).credentials.unwrap();
        assert_eq!(of.pid as u32, std::process::id());
        assert_eq!(of.uid, std::fs::metadata("/proc/self").map(|of| std::os::unix::fs::MetadataExt::uid(&of)).unwrap());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(Peer::of_socket(tcp.as_fd()), Peer::default());
        if user::is_root() {
            let (theirs, _other) = user::as_user(5, 8, || std::os::unix::net::UnixStream::pair().unwrap());
            let of = Peer::of_socket(theirs.as_fd()).credentials.unwrap();
            assert_eq!((of.uid, of.gid), (5, 8), "who made the socket, and not who asks");
        }
    }
}
