//! `mqfq ctl`: the API as commands.
//!
//! | file | answers |
//! |---|---|
//! | [`command_line`] | which commands are there, what does one ask for, and what does a flag say of its key? |
//! | `show` | how does an answer look? |
//! | `room` | where on a device is room for an export? |
//! | `file` | in what do the config file and what runs differ, and how is the file made to say what runs? |
//! | [`shell`] | what does a shell complete, and what do the man pages say? |
//!
//! With `--json` the server's answer is printed as it came, with `-o yaml` as YAML.

pub mod command_line;
mod file;
mod room;
pub mod shell;
mod show;

use crate::client::{Ask, Client, Reply, encoded};
use crate::document::Document;
use crate::events::Event;
use crate::model::{Applied, Kind, Reload, State, Status, Thing, ThingList};
use axum::http::{Method, header};
use command_line::{Ctl, CtlRequest, Form, Options};
use file::save_if_asked;
use mqfq_report::{json, print_line};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::IsTerminal;

/// Does what was asked and prints the answer, again and again where it is watched. False: `diff` has found differences.
///
/// # Errors
/// One sentence: the server's, or there is none.
pub fn run(ctl: &Ctl, is_json: bool) -> Result<bool, String> {
    let form = ctl.form.unwrap_or(if is_json { Form::Json } else { Form::Text });
    let Some(period) = ctl.watch else { return once(&ctl.client, &ctl.asked, form) };
    let clears = form == Form::Text && std::io::stdout().is_terminal();
    loop {
        if clears {
            // Home, and everything below is gone (ECMA-48).
            print_line("\x1b[H\x1b[J")?;
        }
        once(&ctl.client, &ctl.asked, form)?;
        std::thread::park_timeout(period);
    }
}

fn once(client: &Client, asked: &CtlRequest, form: Form) -> Result<bool, String> {
    match asked {
        CtlRequest::Diff => file::diff(client, form),
        asked => answer(client, asked, form).map(|()| true),
    }
}

fn answer(client: &Client, asked: &CtlRequest, form: Form) -> Result<(), String> {
    let get = |path: &str| client.ask(Ask::new(Method::GET, path));
    match asked {
        CtlRequest::Status => {
            print(get("/v1/status")?, form, |status: Status| Ok(show::status(&status, &client.address.to_string())))
        }
        // They are for programs: people get JSON, too.
        CtlRequest::Counters => print(get("/v1/counters")?, form, |counters: Value| json(&counters)),
        CtlRequest::Why(Some(name)) => {
            print(get(&format!("/v1/why/{}", encoded(name)))?, form, |said: Said| Ok(said.sentence))
        }
        CtlRequest::Why(None) => print(get("/v1/why")?, form, |all: Vec<Said>| Ok(sentences(all))),
        CtlRequest::Events { after, count } => events(client, *after, *count, form),
        CtlRequest::Config => {
            let wants_toml = Ask::new(Method::GET, "/v1/config").header(header::ACCEPT, "application/toml");
            match form {
                Form::Text => print_line(text(client.ask(wants_toml)?)?.trim_end()),
                _ => print(get("/v1/config")?, form, |config: Value| json(&config)),
            }
        }
        CtlRequest::Reload(Reload { discard_unsaved, dry_run }) => {
            let path = format!("/v1/config/reload?discard-unsaved={discard_unsaved}&dry-run={dry_run}");
            applied(client.ask(Ask::new(Method::POST, path))?, form)
        }
        CtlRequest::Reopen(kind, name) => {
            applied(client.ask(Ask::new(Method::POST, path(*kind, name)? + "/reopen"))?, form)
        }
        CtlRequest::Grow(name) => {
            applied(client.ask(Ask::new(Method::POST, path(Kind::Export, name)? + "/grow"))?, form)
        }
        CtlRequest::Apply { file, options } => file::apply(client, file, options, form),
        CtlRequest::Diff => file::diff(client, form).map(drop),
        CtlRequest::Save { force } => file::save(client, *force, form),
        CtlRequest::List(Kind::Tenant) => print(get("/v1/tenants")?, form, |ThingList { things }| {
            let show::Shares { shares } = get("/v1/shares")?.json()?;
            Ok(show::tenants(&things, &shares))
        }),
        CtlRequest::List(kind) => print(get(&format!("/v1/{}", kind.plural()))?, form, |ThingList { things }| {
            Ok(show::things(*kind, &things))
        }),
        CtlRequest::Show(kind, name) => print(get(&path(*kind, name)?)?, form, |thing: Thing| {
            let configured = if *kind == Kind::Export { Document::default() } else { file::configured(client)? };
            let free = match kind {
                Kind::Device => room::of_device(client, &thing)?.show(),
                _ => String::new(),
            };
            Ok(show::thing(&thing, &configured.users(*kind, name)) + &free)
        }),
        CtlRequest::Add(kind, name, keys, options) => {
            let ask = Ask::new(Method::PUT, path(*kind, name)? + query(options)).header(header::IF_NONE_MATCH, "*");
            match kind {
                Kind::Export => change(client, ask, Some(&room::find(client, keys)?), options, form),
                _ => change(client, ask, Some(keys), options, form),
            }
        }
        CtlRequest::Set(kind, name, keys, options) => {
            if let Some(size) = keys.get("size").filter(|_| *kind == Kind::Export) {
                room::check_resize(client, name, size, options.yes || options.dry_run)?;
            }
            let ask = only_if(Ask::new(Method::PATCH, path(*kind, name)? + query(options)), options);
            change(client, ask, Some(keys), options, form)
        }
        CtlRequest::Remove(kind, name, options) => {
            let ask = only_if(Ask::new(Method::DELETE, path(*kind, name)? + query(options)), options);
            change(client, ask, None, options, form)
        }
    }
}

fn path(kind: Kind, name: &str) -> Result<String, String> {
    let section = kind.section();
    if name.is_empty() {
        return Err(format!("the {section} without a name has no path, allowed is mqfq ctl apply with a whole config"));
    }
    Ok(format!("/v1/{}/{}", kind.plural(), encoded(name)))
}

fn change(
    client: &Client,
    ask: Ask,
    keys: Option<&Map<String, Value>>,
    options: &Options,
    form: Form,
) -> Result<(), String> {
    let ask = match keys {
        Some(keys) => ask.body("application/json", json(keys)?),
        None => ask,
    };
    applied(client.ask(ask)?, form)?;
    save_if_asked(client, options, form)
}

/// A verdict: whatever answers it says a sentence, and more for programs.
#[derive(Deserialize)]
struct Said {
    sentence: String,
}

fn sentences(all: Vec<Said>) -> String {
    match all.is_empty() {
        true => "no tenant has been watched for long enough yet, or there is none".to_owned(),
        false => all.into_iter().map(|said| said.sentence + "\n").collect(),
    }
}

fn events(client: &Client, after: Option<u64>, count: Option<u64>, form: Form) -> Result<(), String> {
    let path = after.map_or("/v1/events".to_owned(), |after| format!("/v1/events?after={after}"));
    let mut left = count;
    let each = |event: Event| {
        if form == Form::Yaml {
            // Each is a document of its own.
            print_line("---")?;
        }
        form.print(&event, show::event)?;
        left = left.map(|left| left - 1);
        Ok(left != Some(0))
    };
    client.events(Ask::new(Method::GET, path), each)
}

impl Form {
    /// Prints a value, or for people what `text` says of it.
    pub(super) fn print<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), String> {
        match self {
            Form::Text => print_line(text(value).trim_end()),
            Form::Json => print_line(json(value)?),
            Form::Yaml => print_line(yaml(value)?.trim_end()),
        }
    }
}

pub(super) fn yaml(value: &impl Serialize) -> Result<String, String> {
    serde_saphyr::to_string(value).map_err(|error| format!("cannot be written as YAML: {error}"))
}

/// Prints what came of a change.
pub(super) fn applied(reply: Reply, form: Form) -> Result<(), String> {
    print(reply, form, |applied: Applied| Ok(show::applied(&applied)))
}

/// The text of a good answer.
pub(super) fn text(reply: Reply) -> Result<String, String> {
    let reply = reply.good().map_err(|problem| problem.detail)?;
    Ok(String::from_utf8_lossy(&reply.body).into_owned())
}

pub(super) fn print<T>(reply: Reply, form: Form, show: impl FnOnce(T) -> Result<String, String>) -> Result<(), String>
where
    T: serde::de::DeserializeOwned,
{
    let line = match form {
        Form::Text => show(reply.json()?)?,
        Form::Json => text(reply)?,
        Form::Yaml => yaml(&reply.json::<Value>()?)?,
    };
    print_line(line.trim_end())
}

pub(super) fn query(options: &Options) -> &'static str {
    if options.dry_run { "?dry-run" } else { "" }
}

pub(super) fn only_if(ask: Ask, options: &Options) -> Ask {
    match options.revision {
        Some(revision) => ask.header(header::IF_MATCH, format!("\"{revision}\"")),
        None => ask,
    }
}

pub(super) fn state(client: &Client) -> Result<State, String> {
    let mut state = State { revision: 0, things: Default::default() };
    for kind in Kind::ALL {
        let reply = client.ask(Ask::new(Method::GET, format!("/v1/{}", kind.plural())))?;
        state.things.insert(kind.plural().to_owned(), reply.json::<ThingList>()?.things);
    }
    Ok(state)
}
