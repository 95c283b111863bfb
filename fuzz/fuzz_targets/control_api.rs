//! Clients of the control plane: no bytes on its socket make it panic, every answer is one of HTTP, and a change that
//! is refused leaves document and revision as they were. The config's own reader judges each change; no server is
//! behind it.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mqfq_control::document::Document;
use mqfq_control::events::Events;
use mqfq_control::ledger::Ledger;
use mqfq_control::listen::Transport;
use mqfq_control::model::{ConfigFile, Fault, State};
use mqfq_control::{Applied, By, Control, Kind, Listen, Proposal, Refusal, Reload, Server, Status, Via, start};
use mqfq_daemon::config::{Config, Files};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

const CONFIG: &str = "\
[device.d0]
kind = \"memory\"
size = \"1GiB\"
policy = \"mqfq\"

[tenant.t0]
weight = 100

[export.e0]
device = \"d0\"
tenant = \"t0\"
size = \"64MiB\"
nbd = [\"unix:/run/mqfq-fuzz\"]
";

/// Most time of a whole conversation.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Arbitrary, Debug)]
enum Body {
    Nothing,
    Bytes(Vec<u8>),
    /// Keys that there are, with values of all kinds.
    Keys(Vec<(u8, Thing)>),
    Toml(String),
}

#[derive(Arbitrary, Debug)]
enum Thing {
    Null,
    Flag(bool),
    Number(i64),
    Decimal(f64),
    Text(String),
    Size(u16),
    Words(Vec<String>),
    Of(u8),
}

#[derive(Arbitrary, Debug)]
enum Said {
    Request { method: u8, path: u8, name: u8, other: String, only_if: Option<u16>, dry_run: bool, body: Body },
    Raw(Vec<u8>),
}

const METHODS: [&str; 6] = ["GET", "PUT", "PATCH", "DELETE", "POST", "HEAD"];
const PATHS: [&str; 11] = [
    "/v1/status",
    "/v1/counters",
    "/v1/openapi.json",
    "/v1/config",
    "/v1/config/file",
    "/v1/config/saved",
    "/v1/devices/",
    "/v1/groups/",
    "/v1/tenants/",
    "/v1/exports/",
    "/v1/",
];
const NAMES: [&str; 8] = ["d0", "t0", "e0", "d1", "t1", "e1", "", "%2e"];
const KEYS: [&str; 14] = [
    "kind",
    "size",
    "policy",
    "depth",
    "weight",
    "device",
    "tenant",
    "nbd",
    "max-iops",
    "offset",
    "read-only",
    "description",
    "parent",
    "class",
];

fn value(thing: &Thing) -> Value {
    match thing {
        Thing::Null => Value::Null,
        Thing::Flag(flag) => (*flag).into(),
        Thing::Number(number) => (*number).into(),
        Thing::Decimal(number) => (*number).into(),
        Thing::Text(text) => text.as_str().into(),
        Thing::Size(size) => format!("{size}MiB").into(),
        Thing::Words(words) => words.clone().into(),
        Thing::Of(place) => {
            ["memory", "mqfq", "none", "d0", "t0", "unix:/run/mqfq-fuzz-2"][usize::from(place % 6)].into()
        }
    }
}

fn say(said: &[Said]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for one in said {
        match one {
            Said::Raw(raw) => bytes.extend_from_slice(raw),
            Said::Request { method, path, name, other, only_if, dry_run, body } => {
                let path = PATHS[usize::from(*path) % PATHS.len()];
                let name = match usize::from(*name) {
                    _ if !path.ends_with('/') => "".to_owned(),
                    known if known < NAMES.len() => NAMES[known].to_owned(),
                    _ => mqfq_control::client::encoded(other),
                };
                let (body, media_type) = match body {
                    Body::Nothing => (Vec::new(), ""),
                    Body::Bytes(bytes) => (bytes.clone(), "application/json"),
                    Body::Toml(text) => (text.clone().into_bytes(), "application/toml"),
                    Body::Keys(keys) => {
                        let pair = |(key, thing): &(u8, Thing)| match KEYS[usize::from(*key) % KEYS.len()] {
                            "depth" => ("expert".to_owned(), json!({ "depth": value(thing) })),
                            key => (key.to_owned(), value(thing)),
                        };
                        let all: Map<String, Value> = keys.iter().map(pair).collect();
                        (serde_json::to_vec(&all).unwrap_or_default(), "application/json")
                    }
                };
                let method = METHODS[usize::from(*method) % METHODS.len()];
                let query = if *dry_run { "?dry-run=true" } else { "" };
                let mut head = format!("{method} {path}{name}{query} HTTP/1.1\r\nhost: fuzz\r\n");
                if !media_type.is_empty() {
                    let _ = write!(head, "content-type: {media_type}\r\n");
                }
                if let Some(revision) = only_if {
                    let _ = write!(head, "if-match: \"{revision}\"\r\n");
                }
                let _ = write!(head, "content-length: {}\r\n\r\n", body.len());
                bytes.extend_from_slice(head.as_bytes());
                bytes.extend_from_slice(&body);
            }
        }
    }
    bytes
}

/// A server on paper: its documents are read as those of a real one are.
struct Paper {
    ledger: Mutex<Ledger>,
    events: Events,
}

/// Files of every size, for no test depends on the machine's.
struct AnyFiles;

impl Files for AnyFiles {
    fn size_bytes(&self, _: &Path) -> Result<u64, String> {
        Ok(1 << 30)
    }

    fn writable(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }

    fn canonical(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

impl Paper {
    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("a panic ends the process")
    }
}

fn fresh() -> Ledger {
    let document = Document::parse(CONFIG).expect("a right config");
    Ledger::new(document, By::via(Via::File), SystemTime::UNIX_EPOCH)
}

impl Server for Paper {
    fn status(&self) -> Status {
        let revision = self.ledger().revision();
        let (version, config, things) = (String::new(), None, Default::default());
        let (listen, troubled, draining) = (vec![], Default::default(), false);
        let (pid, uptime_s, workers, unsaved) = (1, 0, 0, 0);
        Status { version, pid, uptime_s, workers, revision, unsaved, draining, config, listen, things, troubled }
    }

    fn state(&self) -> Arc<State> {
        Arc::new(self.ledger().state(|_, _| Map::new()))
    }

    fn configured(&self) -> (Arc<Document>, u64) {
        let ledger = self.ledger();
        (ledger.document(), ledger.revision())
    }

    fn propose(&self, proposal: &Proposal) -> Result<Applied, Refusal> {
        let mut ledger = self.ledger();
        let candidate = ledger.candidate(proposal)?;
        let (text, _) = candidate.document.text();
        let again = Document::parse(&text).expect("what was written can be read");
        assert!(again.table() == candidate.document.table(), "a document reads as it was written");
        let read = Config::parse("the config", &text).and_then(|config| config.check(&AnyFiles));
        read.map_err(|error| Refusal::new(Fault::Bad, error.to_string()))?;
        let (changes, created) = (candidate.changes.clone(), candidate.created);
        if !proposal.dry_run {
            ledger.accept(candidate, &proposal.by, SystemTime::UNIX_EPOCH);
        }
        Ok(ledger.applied(changes, created, proposal.dry_run))
    }

    fn file(&self) -> Option<ConfigFile> {
        Some(ConfigFile { path: "/fuzz.toml".to_owned(), text: CONFIG.to_owned() })
    }

    fn reload(&self, _: &By, _: Reload) -> Result<Applied, Refusal> {
        Err(Refusal::new(Fault::Broken, "it has no file"))
    }

    fn reopen(&self, _: Kind, _: &str, _: &By) -> Result<Applied, Refusal> {
        Err(Refusal::new(Fault::Missing, "it has no device"))
    }

    fn grow(&self, _: &str, _: &By) -> Result<Applied, Refusal> {
        Err(Refusal::new(Fault::Missing, "it has no pool"))
    }

    fn saved(&self, _: String) {}

    fn counters(&self) -> Value {
        Value::Null
    }

    fn events(&self) -> &Events {
        &self.events
    }
}

struct Served {
    paper: Arc<Paper>,
    path: PathBuf,
    _control: Control,
}

static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("mqfq-fuzz-control-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let first = Config::parse("the config", CONFIG).and_then(|config| config.check(&AnyFiles).map(drop));
    first.unwrap_or_else(|error| panic!("{error}"));
    let listener = UnixListener::bind(&path).expect("a socket");
    let paper = Arc::new(Paper { ledger: Mutex::new(fresh()), events: Events::default() });
    let listen =
        Listen { socket: listener.into(), address: String::new(), transport: Transport::Unix, keep: Box::new(()) };
    let control = start(vec![listen], paper.clone(), Vec::new()).expect("it starts");
    Served { paper, path, _control: control }
});

fuzz_target!(|said: Vec<Said>| {
    let served = &*SERVED;
    *served.paper.ledger() = fresh();
    let Ok(mut client) = UnixStream::connect(&served.path) else { return };
    client.set_read_timeout(Some(PATIENCE)).expect("a time");
    client.set_write_timeout(Some(PATIENCE)).expect("a time");
    // It may have been closed for what was said before.
    let _ = client.write_all(&say(&said));
    let _ = client.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answer));
    let ledger = served.paper.ledger();
    let is_first = ledger.document().table() == Document::parse(CONFIG).expect("a right config").table();
    assert!(is_first || ledger.revision() > 1, "a change has a revision");
    if let Err(error) = Config::parse("the config", &ledger.document().text().0) {
        panic!("what is in force cannot be read: {error}");
    }
});
