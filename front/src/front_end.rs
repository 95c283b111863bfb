//! What a front end is to the rest of the product: addresses, listeners, counters, limits, drain.
//!
//! A front end is a folder of this crate and a line of the registry ([`crate::FRONT_ENDS`]). Whoever reads the config,
//! serves and reports goes through these traits and names none of them.
//!
//! ```text
//!   key and text ─FrontEnd::parse▶ Address ─listen▶ Listener ─into_clients▶ clients, which the engine calls
//!     of the config                    │                └─stats▶ counters, which the daemon prints
//!                                      └ await_predecessor: a socket that a killed server leaves
//! ```
//!
//! # Who does what
//! | of a front end | of this crate, for all | of the daemon |
//! |---|---|---|
//! | its protocol, and a [`mqfq_blk::client::Client`] for each connection or queue | [`crate::listener`]: accepts on sockets | which exports are where |
//! | which addresses it understands | [`crate::socket`]: those of sockets, the file at a path | reads the config |
//! | names of its counters ([`crate::stats::Names`]) | [`crate::stats`]: the counters | prints them |
//! | which memory it counts | [`crate::memory`]: what a connection, a tenant, the server may hold | the limits |
//! | when a connection belongs to a tenant | [`crate::places`]: connections of each tenant | how many |
//! | what a client does when it drains | [`crate::export::Door`]: no new clients of an export | when |
//!
//! # Upgrade
//! Another process takes the place of this one, with its listeners and connections (`docs/use/upgrade.md`). A front end
//! says which descriptors and which state of its clients travel:
//!
//! | step | process | of a front end |
//! |---|---|---|
//! | hold still | old | [`mqfq_blk::client::Client::pause`], of listeners and connections |
//! | hand over | old | [`mqfq_blk::client::Client::pack`] |
//! | take | new | [`Address::adopt`], then [`Listener::adopt`] for each of its connections |
//! | go on | new; old if there was no new one | the client is started; [`mqfq_blk::client::Client::resume`] |
//!
//! A front end that implements none of it is drained as at the end of the server, and listens again in the new process.
//!
//! # Drain
//! All clients: [`mqfq_blk::engine::Engine::drain`]. Those of one export: [`drain_export`]. One client:
//! `Engine::drain_some` with the number of its label. A front end says in [`mqfq_blk::client::Client::label`] which
//! export a client uses, and refuses new ones where [`crate::export::Door::is_closed`].

use crate::export::{Export, ExportTable};
use crate::inherited::Inherited;
use crate::memory::MemoryLimits;
use crate::places::Places;
use crate::reserve::Reserve;
use crate::stats::Stats;
use crate::tls::Offer;
use mqfq_blk::client::{MakeClient, Packed, Whose};
use mqfq_blk::engine::Engine;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Takes one line about a client that was refused, or closed for a broken rule. Called on workers: it neither waits nor
/// panics.
pub type Log = Arc<dyn Fn(LogLine<'_>) + Send + Sync>;

/// A line of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLine<'a> {
    /// A sentence.
    pub text: &'a str,
    /// The export that the client has or wants, if it has said so.
    pub export: Option<&'a str>,
}

/// A way for tenants to attach.
pub trait FrontEnd: Sync {
    /// The config key of its addresses in `[export.NAME]`, and the beginning of its lines in the log.
    fn name(&self) -> &'static str;

    /// The addresses that its key takes, for an error's "allowed is".
    fn addresses(&self) -> &'static str;

    /// An address may be a number in the config, without quotes. As it stands here: it may not.
    fn takes_numbers(&self) -> bool {
        false
    }

    /// The address that `text` names.
    ///
    /// # Errors
    /// What is wrong with it.
    fn parse(&self, text: &str) -> Result<Arc<dyn Address>, AddressFault>;

    /// Keys of `[export.NAME]` beside the address's: how an address of this front end behaves. As it stands here: none.
    fn manners(&self) -> &'static [Manner] {
        &[]
    }

    /// The address that `text` names, with one of [`Manner::values`] for each of [`FrontEnd::manners`], in their order.
    ///
    /// # Errors
    /// As [`FrontEnd::parse`].
    fn parse_with(&self, text: &str, values: &[&str]) -> Result<Arc<dyn Address>, AddressFault> {
        let _ = values;
        self.parse(text)
    }
}

/// A key that a front end has beside its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manner {
    /// Its name.
    pub key: &'static str,
    /// What it takes; the first where it is not given.
    pub values: &'static [&'static str],
}

/// Why a text is no address of a front end. The sentence begins with the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddressFault {
    /// "... is not an address to listen on: {0}"
    Unreadable(String),
    /// "... {0}, allowed is ..."
    Refused(String),
}

/// Where a front end can listen.
pub trait Address: fmt::Display + fmt::Debug + Send + Sync {
    /// What of the machine it takes, such as `unix:/run/a.sock`: two addresses with the same collide, whichever front
    /// ends they are of. `None`: nothing that can be told beforehand.
    fn claim(&self) -> Option<String>;

    /// `None`: it is on this machine alone. Else whether it is beyond its loopback, by how it is written.
    fn network(&self) -> Option<bool> {
        None
    }

    /// It has TLS, if it is given [`ListenOptions::tls`].
    fn can_encrypt(&self) -> bool {
        false
    }

    /// Folders of devices that it opens while it serves.
    fn folders(&self) -> &'static [&'static str] {
        &[]
    }

    /// It is root's as long as it serves, so a server that becomes another user cannot have it.
    fn needs_root(&self) -> bool {
        false
    }

    /// Its clients are asked who they are where an export wants to know ([`crate::identity`]).
    fn tells_clients_apart(&self) -> bool {
        false
    }

    /// It can offer several exports, so that to name it in several is no collision.
    fn takes_several_exports(&self) -> bool {
        true
    }

    /// Returns when nothing is left there of a server that was killed, or after a few seconds, or when `give_up` says
    /// so. Whoever lives there is met again, and refused, by [`Address::listen`].
    fn await_predecessor(&self, give_up: &dyn Fn() -> bool) {
        let _ = give_up;
    }

    /// Whether [`Address::listen`] can succeed on this machine as it is, but for another server that has the address
    /// now. Makes nothing, and disturbs no server.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    fn could_listen(&self) -> Result<(), String>;

    /// Listens there. What it makes (a socket's file) is removed with the listener's last client.
    ///
    /// # Errors
    /// One sentence for the user, which names the address.
    fn listen(&self, exports: Arc<ExportTable>, options: &ListenOptions) -> Result<Box<dyn Listener>, String>;

    /// Goes on listening there with what another process had packed of its listener. Until its first client is started
    /// it accepts nobody, and dropping it removes nothing: it still is the other process's.
    ///
    /// # Errors
    /// One sentence, which names the address: this is no such listener. As it stands here: it cannot.
    fn adopt(
        &self,
        travelled: Travelled,
        exports: Arc<ExportTable>,
        options: &ListenOptions,
    ) -> Result<Box<dyn Listener>, String> {
        let _ = (travelled, exports, options);
        Err("its listener cannot be taken over".to_owned())
    }
}

/// What came from another process, and which version its state is of.
#[derive(Debug)]
pub struct Travelled {
    /// As packed there.
    pub packed: Packed,
    /// See [`mqfq_blk::state`].
    pub version: u16,
}

/// A place where clients come from.
pub trait Listener: Send {
    /// Where it listens, with what the kernel chose (a port).
    fn address(&self) -> String;

    /// Counters of its clients.
    fn stats(&self) -> Arc<Stats>;

    /// Its number in [`mqfq_blk::client::PackedClient`], and of the label of its own client
    /// ([`mqfq_blk::client::Label::client`]), so that it can be closed alone. As it stands here: one that no client
    /// has.
    fn number(&self) -> u64 {
        u64::MAX
    }

    /// Whom of its clients it lets in, which changes with the exports that it offers. As it stands here: nobody counts
    /// them.
    fn places(&self) -> Option<Arc<Places>> {
        None
    }

    /// The file that it has made where clients find it, which has [`ListenOptions::socket_mode`]. As it stands here:
    /// none.
    fn file(&self) -> Option<PathBuf> {
        None
    }

    /// A connection that another process's listener had accepted at this address. It takes a place here now, and goes
    /// on when it is started.
    ///
    /// # Errors
    /// One sentence: a state that no connection can have, or that is not of an export here. As it stands here: it
    /// cannot.
    fn adopt(&self, travelled: Travelled) -> Result<MakeClient, String> {
        let _ = travelled;
        Err("its connections cannot be taken over".to_owned())
    }

    /// What the engine makes live on its workers: a client that accepts connections, or one for each queue.
    fn into_clients(self: Box<Self>) -> Vec<MakeClient>;
}

/// Whether the server ends, so that what outlives it is told from what goes while it serves others. Clones are of one.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    /// It ends: all clients will be drained.
    pub fn begin(&self) {
        // Release: pairs with the Acquire in `has_begun`. Drains are asked for by messages sent after this.
        self.0.store(true, Ordering::Release);
    }

    /// It ends.
    pub fn has_begun(&self) -> bool {
        // Acquire: pairs with the Release in `begin`.
        self.0.load(Ordering::Acquire)
    }
}

/// Limits that hold for the clients of one listener, whatever they speak.
#[derive(Clone)]
pub struct ListenOptions {
    /// Connections that have chosen an export; half of them are guaranteed to the tenants, in equal parts
    /// ([`crate::places`]). Handshakes have places of their own, [`crate::places::handshakes_max`]. Default 1024.
    pub connections_max: usize,
    /// Memory of the payloads of one connection, bytes; one request or piece always fits. Default
    /// [`MemoryLimits::CONNECTION_BYTES`].
    pub bytes_in_flight_max: u64,
    /// From the start of a connection to the end of its handshake; one that takes longer is closed, so that clients who
    /// say nothing do not stay. Default 10 s.
    pub handshake_timeout: Duration,
    /// From the moment that a client is waited for in the middle of something (a reply that it takes, the rest of a
    /// request) to its next byte; one that takes longer is closed. For front ends that have such clients. Default 60 s.
    pub stall_timeout: Duration,
    /// Permissions of a unix socket. Default 0o600: who may reach a tenant's bytes is for the administrator to say.
    pub socket_mode: u32,
    /// For all listeners of a process; each [`Default`] has its own.
    pub reserve: Arc<Reserve>,
    /// Sockets that are listened on already, for all listeners of a process. Default: none.
    pub inherited: Arc<Inherited>,
    /// Encryption, for front ends that can. Default: none.
    pub tls: Option<Offer>,
    /// What of these limits was changed since, for all listeners of a process.
    pub since: Arc<LimitsSince>,
    /// Workers of the engine. Default 1.
    pub workers: usize,
    /// The process takes the place of another one, which serves until then. Default: no.
    pub replaces: bool,
    /// For all listeners of a process: whether it ends. Default: it does not.
    pub ending: Ending,
    /// Where lines about broken connections and refused clients go. Default: nowhere; [`Stats`] counts them anyway.
    pub log: Option<Log>,
}

impl ListenOptions {
    /// [`ListenOptions::bytes_in_flight_max`] of a connection that begins now.
    pub fn bytes_in_flight_max_now(&self) -> u64 {
        self.since.bytes_in_flight_max.now().unwrap_or(self.bytes_in_flight_max)
    }

    /// [`ListenOptions::handshake_timeout`] of a connection that begins now.
    pub fn handshake_timeout_now(&self) -> Duration {
        self.since.handshake_timeout_ns.now().map_or(self.handshake_timeout, Duration::from_nanos)
    }

    /// [`ListenOptions::stall_timeout`] from now on.
    pub fn stall_timeout_now(&self) -> Duration {
        self.since.stall_timeout_ns.now().map_or(self.stall_timeout, Duration::from_nanos)
    }

    /// [`ListenOptions::socket_mode`] of a socket that is made now.
    pub fn socket_mode_now(&self) -> u32 {
        self.since.socket_mode.now().map_or(self.socket_mode, |mode| mode as u32)
    }
}

/// Limits that were changed while clients are served. Who has come before keeps what was.
#[derive(Debug, Default)]
pub struct LimitsSince {
    bytes_in_flight_max: Since,
    handshake_timeout_ns: Since,
    stall_timeout_ns: Since,
    socket_mode: Since,
}

impl LimitsSince {
    /// From now on these.
    pub fn set(
        &self,
        bytes_in_flight_max: u64,
        handshake_timeout: Duration,
        stall_timeout: Duration,
        socket_mode: u32,
    ) {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1);
        self.bytes_in_flight_max.set(bytes_in_flight_max);
        self.handshake_timeout_ns.set(ns(handshake_timeout));
        self.stall_timeout_ns.set(ns(stall_timeout));
        self.socket_mode.set(socket_mode.into());
    }
}

/// A number that was set, below `u64::MAX`.
#[derive(Debug)]
struct Since(AtomicU64);

impl Default for Since {
    fn default() -> Since {
        Since(AtomicU64::new(u64::MAX))
    }
}

impl Since {
    fn now(&self) -> Option<u64> {
        // Relaxed: a number that nothing else is ordered by; a connection that begins meanwhile has either.
        Some(self.0.load(Ordering::Relaxed)).filter(|number| *number != u64::MAX)
    }

    fn set(&self, number: u64) {
        // Relaxed: see `now`.
        self.0.store(number, Ordering::Relaxed);
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            connections_max: 1024,
            bytes_in_flight_max: MemoryLimits::CONNECTION_BYTES,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            socket_mode: 0o600,
            reserve: Arc::default(),
            inherited: Arc::default(),
            tls: None,
            since: Arc::default(),
            workers: 1,
            replaces: false,
            ending: Ending::default(),
            log: None,
        }
    }
}

impl fmt::Debug for ListenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenOptions")
            .field("connections_max", &self.connections_max)
            .field("bytes_in_flight_max", &self.bytes_in_flight_max)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("stall_timeout", &self.stall_timeout)
            .field("socket_mode", &format_args!("{:#o}", self.socket_mode))
            .field("tls", &self.tls)
            .field("log", &self.log.is_some())
            .finish()
    }
}

/// An address and whose it is, as a config names it.
#[derive(Clone)]
pub struct ExportAddress {
    front_end: &'static dyn FrontEnd,
    address: Arc<dyn Address>,
}

impl ExportAddress {
    /// The address that `text` names to a front end.
    ///
    /// # Errors
    /// As [`FrontEnd::parse`].
    pub fn parse(front_end: &'static dyn FrontEnd, text: &str) -> Result<ExportAddress, AddressFault> {
        Ok(ExportAddress { front_end, address: front_end.parse(text)? })
    }

    /// The same with values of the front end's [`FrontEnd::manners`], in their order.
    ///
    /// # Errors
    /// As [`FrontEnd::parse_with`].
    pub fn parse_with(
        front_end: &'static dyn FrontEnd,
        text: &str,
        values: &[&str],
    ) -> Result<ExportAddress, AddressFault> {
        Ok(ExportAddress { front_end, address: front_end.parse_with(text, values)? })
    }

    /// Whose address it is.
    pub fn front_end(&self) -> &'static dyn FrontEnd {
        self.front_end
    }

    /// The address itself.
    pub fn address(&self) -> &dyn Address {
        &*self.address
    }

    /// Front end and text, of which there is one for each address.
    fn key(&self) -> (&'static str, String) {
        (self.front_end.name(), self.address.to_string())
    }

    /// They are not the same address, or one that cannot be shared, and both cannot be listened on.
    pub fn collides_with(&self, other: &ExportAddress) -> bool {
        if self == other {
            return !self.address.takes_several_exports();
        }
        self.address.claim().is_some_and(|claim| other.address.claim() == Some(claim))
    }
}

impl fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.front_end.name(), self.address)
    }
}

impl PartialEq for ExportAddress {
    fn eq(&self, other: &ExportAddress) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ExportAddress {}

/// A number for a client's label, another one at each call.
pub fn next_client() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only that it is another one matters.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Closes a listener, by its [`Listener::number`]: what it has made is removed, and nobody comes by it any more. Who
/// has come by it stays. Returns whether it was gone within `grace`: a socket's has no requests, and nothing that it
/// could wait for; a block device's waits for the kernel, and for whoever uses it.
pub fn close_listener(engine: &Engine, number: u64, grace: Duration) -> bool {
    engine.drain_some(Whose::Client(number), grace)
}

/// Takes no new clients of `export`, on any of its addresses, and drains those that it has. Clients still there after
/// `grace` have what they wait for ended. Returns whether none had to be. The other exports go on.
pub fn drain_export(engine: &Engine, export: &Export, grace: Duration) -> bool {
    export.door.close();
    engine.drain_some(Whose::Export(export.id.number()), grace)
}
