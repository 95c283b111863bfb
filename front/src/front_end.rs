//! Interface of a front end to the rest of the product: addresses, listeners, counters, limits, drain.
//!
//! A front end is a folder of this crate and a line of the registry ([`crate::FRONT_ENDS`]). Code that reads the
//! config, serves and reports uses these traits and names no front end.

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
//! | when a connection belongs to a tenant | [`crate::connection_slots`]: connections of each tenant | how many |
//! | what a client does when it drains | [`crate::export::ExportState`]: no new clients of an export | when |
//!
//! # Upgrade
//! Another process takes the place of this one, with its listeners and connections (`docs/use/upgrade.md`). A front end
//! says which descriptors and which state of its clients are handed over:
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
//! export a client uses, and refuses new ones where [`crate::export::ExportState::is_closed`].

pub use crate::listen_options::{Ending, LimitsSince, ListenOptions, Log, LogLine, next_client};
pub use crate::socket::AddressFault;

use crate::connection_slots::ConnectionSlots;
use crate::export::{Export, ExportTable};
use crate::stats::Stats;
use mqfq_blk::client::{ClientFilter, MakeClient, Packed};
use mqfq_blk::engine::Engine;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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

    /// Its clients' queues are polled, so `poll` of an export has a meaning.
    fn polls(&self) -> bool {
        false
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
    /// Values that it takes; the first is the default.
    pub values: &'static [&'static str],
}

/// Address where a front end can listen.
pub trait Address: fmt::Display + fmt::Debug + Send + Sync {
    /// Resource of the machine that it takes, such as `unix:/run/a.sock`: two addresses with one claim collide, also
    /// those of different front ends. `None`: not known beforehand.
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

    /// Its clients are asked for their identity where an export wants it ([`crate::identity`]).
    fn tells_clients_apart(&self) -> bool {
        false
    }

    /// It can offer several exports, so that to name it in several is no collision.
    fn takes_several_exports(&self) -> bool {
        true
    }

    /// Returns when nothing is left there of a server that was killed, or after a few seconds, or when `give_up` says
    /// so. If a server lives there, [`Address::listen`] meets it again and fails.
    fn await_predecessor(&self, give_up: &dyn Fn() -> bool) {
        let _ = give_up;
    }

    /// Checks that [`Address::listen`] can succeed on this machine as it is, but for another server that has the
    /// address now. Makes nothing, and disturbs no server.
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
    /// it accepts no client, and dropping it removes nothing: it still belongs to the other process.
    ///
    /// # Errors
    /// One sentence, which names the address: this is no such listener. As it stands here: it cannot.
    fn adopt(
        &self,
        handed_over: HandedOver,
        exports: Arc<ExportTable>,
        options: &ListenOptions,
    ) -> Result<Box<dyn Listener>, String> {
        let _ = (handed_over, exports, options);
        Err("its listener cannot be taken over".to_owned())
    }
}

/// State of a client or listener that came from another process, with its version.
#[derive(Debug)]
pub struct HandedOver {
    /// State as packed there.
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

    /// Places that decide which clients it admits; they change with the exports that it offers. Default: `None`,
    /// clients are not counted.
    fn places(&self) -> Option<Arc<ConnectionSlots>> {
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
    fn adopt(&self, handed_over: HandedOver) -> Result<MakeClient, String> {
        let _ = handed_over;
        Err("its connections cannot be taken over".to_owned())
    }

    /// Clients that the engine runs on its workers: one that accepts connections, or one for each queue.
    fn into_clients(self: Box<Self>) -> Vec<MakeClient>;
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

    /// Parses `text` with values of the front end's [`FrontEnd::manners`], in their order.
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

    /// Front end of the address.
    pub fn front_end(&self) -> &'static dyn FrontEnd {
        self.front_end
    }

    /// The address itself.
    pub fn address(&self) -> &dyn Address {
        &*self.address
    }

    /// Name of the address among those of all front ends: front end and text.
    pub fn key(&self) -> String {
        ExportAddress::key_of(self.front_end, &self.address)
    }

    /// [`ExportAddress::key`] of the address with this text.
    pub fn key_of(front_end: &dyn FrontEnd, text: impl fmt::Display) -> String {
        format!("{} at {text}", front_end.name())
    }

    /// Names by which addresses that collide find each other: two that collide have one in common.
    pub fn resources(&self) -> impl Iterator<Item = String> {
        self.address.claim().into_iter().chain([self.key()])
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
        f.write_str(&self.key())
    }
}

impl PartialEq for ExportAddress {
    fn eq(&self, other: &ExportAddress) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ExportAddress {}

/// Closes a listener, by its [`Listener::number`]: its files or devices are removed, and no client comes by it any
/// more; its earlier clients stay. Returns whether it was gone within `grace`: a socket's listener has no requests and
/// waits for nothing; a block device's waits for the kernel and for the device's users.
pub fn close_listener(engine: &Engine, number: u64, grace: Duration) -> bool {
    engine.drain_some(ClientFilter::Client(number), grace)
}

/// Takes no new clients of `export`, on any of its addresses, and drains those that it has. Clients still there after
/// `grace` have what they wait for ended. Returns whether none had to be. The other exports go on.
pub fn drain_export(engine: &Engine, export: &Export, grace: Duration) -> bool {
    export.state.close();
    engine.drain_some(ClientFilter::Export(export.id.number()), grace)
}
