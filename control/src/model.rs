//! Requests to a server and its answers: the trait that the server implements, and its nouns.
//!
//! One truth: what is configured is a document with a revision. The file at the start, SIGHUP, `mqfq ctl` and HTTP are
//! ways to propose another document; a proposal is taken as a whole or not at all.

use crate::document::Document;
use crate::events::Events;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A server. The methods are called on threads of the control plane that may wait.
pub trait Server: Send + Sync + 'static {
    /// State of the process. Does not wait for a change under way.
    fn status(&self) -> Status;

    /// Configured and in force, as of the last change. Does not wait for a change under way.
    fn state(&self) -> Arc<State>;

    /// The document of the present revision, with the revision.
    fn configured(&self) -> (Arc<Document>, u64);

    /// Has a proposal checked and applied, as a whole or not at all. Waits for the one before it and for what it
    /// takes.
    ///
    /// # Errors
    /// Why not, in one sentence; nothing has changed.
    fn propose(&self, proposal: &Proposal) -> Result<Applied, Refusal>;

    /// The config file, as it was read last; `None`: there is none.
    fn file(&self) -> Option<ConfigFile>;

    /// Reads the config file again and proposes its document.
    ///
    /// # Errors
    /// As of [`Server::propose`], the file cannot be read, or changes that it does not have would be lost.
    fn reload(&self, by: &By, how: Reload) -> Result<Applied, Refusal>;

    /// Closes a device, or the backing of an export of a pool, and opens it anew, as it is configured: one that has
    /// failed is well again. Its clients are disconnected before. Waits as of [`Server::propose`].
    ///
    /// # Errors
    /// There is no such thing, it is not used, or it cannot be closed or opened.
    fn reopen(&self, kind: Kind, name: &str, by: &By) -> Result<Applied, Refusal>;

    /// Gives an export of a pool all that its backing has by now, unless its size is configured.
    ///
    /// # Errors
    /// There is no such export, it cannot grow by itself, or as of [`Server::propose`].
    fn grow(&self, export: &str, by: &By) -> Result<Applied, Refusal>;

    /// Tells that this text was written to the config file: [`Server::file`] answers it from then on.
    fn saved(&self, text: String);

    /// Gives memory that a large document has taken back to the system, if the allocator keeps it.
    fn give_memory_back(&self) {}

    /// The counters, as SIGUSR1 prints them with `--json`. Asks every worker.
    fn counters(&self) -> Value;

    /// Events of the server.
    fn events(&self) -> &Events;
}

/// The config file as it was read last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigFile {
    /// Its path, absolute.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// The four kinds of things that have names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// `[device.NAME]`.
    Device,
    /// `[group.NAME]`.
    Group,
    /// `[tenant.NAME]`.
    Tenant,
    /// `[export.NAME]`.
    Export,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Device, Kind::Group, Kind::Tenant, Kind::Export];

    /// The section in the config.
    pub const fn section(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Group => "group",
            Kind::Tenant => "tenant",
            Kind::Export => "export",
        }
    }

    /// The collection in the API.
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::Device => "devices",
            Kind::Group => "groups",
            Kind::Tenant => "tenants",
            Kind::Export => "exports",
        }
    }
}

/// Way by which a client came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// The config file, at the start.
    File,
    /// The config file, read again.
    Sighup,
    /// `mqfq ctl`, as it says itself.
    Ctl,
    /// Another client of the API.
    Http,
}

/// Author of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct By {
    /// Its way.
    pub via: Via,
    /// The user, as the kernel says of the peer of a unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The process, as the kernel says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The address of a TCP peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl By {
    /// Returns a client that came this way, of which nothing else is known.
    pub const fn via(via: Via) -> By {
        By { via, uid: None, pid: None, address: None }
    }
}

/// A change of one thing or of everything.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Another document.
    Whole(Document),
    /// This thing has these keys and no others.
    Put(Kind, String, Map<String, Value>),
    /// Keys of this thing, which exists, that get other values; `null` takes one away (RFC 7396).
    Patch(Kind, String, Map<String, Value>),
    /// This thing is gone.
    Delete(Kind, String),
}

impl Edit {
    /// The thing that it is about; `None`: everything.
    pub fn thing(&self) -> Option<(Kind, &str)> {
        match self {
            Edit::Whole(_) => None,
            Edit::Put(kind, name, _) | Edit::Patch(kind, name, _) | Edit::Delete(kind, name) => Some((*kind, name)),
        }
    }
}

/// Which revision a change is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Match {
    /// One of these, `If-Match`; `None`: any that is there (`*`).
    Revision(Option<Vec<u64>>),
    /// There is none yet: `If-None-Match: *`.
    Absent,
}

/// A wanted change.
#[derive(Clone, PartialEq, Debug)]
pub struct Proposal {
    /// The change that is wanted.
    pub edit: Edit,
    /// Its author.
    pub by: By,
    /// Only if this holds.
    pub only_if: Option<Match>,
    /// Only say what would come of it.
    pub dry_run: bool,
}

/// How the config file is read again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reload {
    /// Changes that the file does not have may be lost.
    pub discard_unsaved: bool,
    /// Only say what would come of it.
    pub dry_run: bool,
}

/// A key that has another value in the document.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeyChange {
    /// Its full name, such as `tenant.web.weight`.
    pub key: String,
    /// Before; `null`: it was not there.
    pub from: Value,
    /// After; `null`: it is not there.
    pub to: Value,
}

/// Result of a proposal.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Applied {
    /// Revision of the document after it.
    pub revision: u64,
    /// There was something to change.
    pub changed: bool,
    /// It was only tried.
    pub dry_run: bool,
    /// The thing was not there before.
    pub created: bool,
    /// The keys.
    pub changes: Vec<KeyChange>,
    /// Effects on the running server, done or planned, a sentence each; empty: the change concerns nothing in use.
    pub done: Vec<String>,
    /// About what is right and does nothing.
    pub warnings: Vec<String>,
}

/// Why a proposal was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Kind of fault.
    pub fault: Fault,
    /// One sentence: place, fault, what is allowed.
    pub sentence: String,
    /// The key that it is about, if it is about one.
    pub key: Option<String>,
    /// The line, if the document came as text.
    pub line: Option<usize>,
}

impl Refusal {
    /// A refusal that is about no key. The sentence is one printable line, without numbers of errors.
    pub fn new(fault: Fault, sentence: impl Into<String>) -> Refusal {
        Refusal { fault, sentence: mqfq_config::text::sentence(&sentence.into()), key: None, line: None }
    }
}

/// Kinds of refusals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It cannot be read, or what it says is not allowed.
    Bad,
    /// There is no such thing.
    Missing,
    /// It is right, and does not go with what is there or cannot be done now.
    Conflict,
    /// The revision is another one.
    Stale,
    /// The server has another trouble.
    Broken,
}

/// State of the process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// Since it was ready, s.
    pub uptime_s: u64,
    /// Worker threads.
    pub workers: usize,
    /// Revision of the document.
    pub revision: u64,
    /// Changes that the config file does not have.
    #[serde(default)]
    pub unsaved: usize,
    /// The end was asked for.
    pub draining: bool,
    /// The config file's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Where the control plane listens.
    pub listen: Vec<String>,
    /// Number of things of each kind, by the collection's name.
    pub things: BTreeMap<String, usize>,
    /// Devices that do not do everything any more, by name: in which state each is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub troubled: BTreeMap<String, String>,
}

/// Configured and in force.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Revision of the document.
    pub revision: u64,
    /// Things of each collection, by name.
    pub things: BTreeMap<String, Vec<Thing>>,
}

/// One device, group, tenant or export.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Thing {
    /// Its name.
    pub name: String,
    /// The revision that changed it last: its `ETag`.
    pub revision: u64,
    /// Its section, as it is configured.
    pub configured: Map<String, Value>,
    /// Values in force, with defaults and values found at run time; empty: not in use.
    pub in_force: Map<String, Value>,
    /// Last author of each key.
    pub set_by: BTreeMap<String, SetBy>,
}

/// Things of one kind, as the API lists them.
#[derive(Deserialize)]
pub struct ThingList {
    /// The things, by name.
    pub things: Vec<Thing>,
}

/// Author and time of a value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetBy {
    /// Author.
    #[serde(flatten)]
    pub by: By,
    /// When, UTC.
    pub at: String,
    /// The revision that has it first.
    pub revision: u64,
}
