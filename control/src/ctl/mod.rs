//! `mqfq ctl`: the API as commands.
//!
//! | file | answers |
//! |---|---|
//! | [`command_line`] | which commands are there, and what does one ask for? |
//! | `show` | how does an answer look? |
//! | `file` | in what do the config file and what runs differ, and how is the file made to say what runs? |
//! | [`shell`] | what does a shell complete, and what do the man pages say? |
//!
//! With `--json` the server's answer is printed as it came.

pub mod command_line;
mod file;
pub mod shell;
mod show;

use crate::client::{Ask, Client, Reply, encoded};
use crate::events::Event;
use crate::model::{Applied, Kind, State, Status, Thing};
use axum::http::{Method, header};
use command_line::{Asked, Options};
use mqfq_report::{json, print_line};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The things of one kind, as a list answers.
#[derive(Deserialize)]
struct Things {
    things: Vec<Thing>,
}

/// Does what was asked and prints the answer.
///
/// # Errors
/// One sentence: the server's, or there is none.
pub fn run(client: &Client, asked: &Asked, is_json: bool) -> Result<(), String> {
    let get = |path: &str| client.ask(Ask::new(Method::GET, path));
    match asked {
        Asked::Status => {
            print(get("/v1/status")?, is_json, |status: Status| Ok(show::status(&status, &client.address.to_string())))
        }
        Asked::Counters => print_line(text(get("/v1/counters")?)?),
        Asked::Why(name) => why(get(&format!("/v1/why/{}", encoded(name)))?, is_json),
        Asked::Events { after, count } => events(client, *after, *count, is_json),
        Asked::Config => {
            let wants_toml = Ask::new(Method::GET, "/v1/config").header(header::ACCEPT, "application/toml");
            let reply = if is_json { get("/v1/config")? } else { client.ask(wants_toml)? };
            print_line(text(reply)?.trim_end())
        }
        Asked::Reload => applied(client.ask(Ask::new(Method::POST, "/v1/config/reload"))?, is_json),
        Asked::Reopen(name) => {
            applied(client.ask(Ask::new(Method::POST, path(Kind::Device, name)? + "/reopen"))?, is_json)
        }
        Asked::Apply { file, options } => file::apply(client, file, options, is_json),
        Asked::Diff => file::diff(client, is_json),
        Asked::Save { force } => file::save(client, *force, is_json),
        Asked::List(kind) => print(get(&format!("/v1/{}", kind.plural()))?, is_json, |Things { things }| {
            Ok(show::things(*kind, &things))
        }),
        Asked::Show(kind, name) => print(get(&path(*kind, name)?)?, is_json, |thing: Thing| Ok(show::thing(&thing))),
        Asked::Add(kind, name, keys, options) => {
            let ask = Ask::new(Method::PUT, path(*kind, name)? + query(options)).header(header::IF_NONE_MATCH, "*");
            change(client, ask, Some(keys), is_json)
        }
        Asked::Set(kind, name, keys, options) => {
            let ask = only_if(Ask::new(Method::PATCH, path(*kind, name)? + query(options)), options);
            change(client, ask, Some(keys), is_json)
        }
        Asked::Remove(kind, name, options) => {
            let ask = only_if(Ask::new(Method::DELETE, path(*kind, name)? + query(options)), options);
            change(client, ask, None, is_json)
        }
    }
}

/// Names of the things of a kind.
///
/// # Errors
/// One sentence.
pub fn names(client: &Client, kind: Kind) -> Result<Vec<String>, String> {
    let reply = client.ask(Ask::new(Method::GET, format!("/v1/{}", kind.plural())))?;
    Ok(reply.json::<Things>()?.things.into_iter().map(|thing| thing.name).collect())
}

fn path(kind: Kind, name: &str) -> Result<String, String> {
    let section = kind.section();
    if name.is_empty() {
        return Err(format!("the {section} without a name has no path, allowed is mqfq ctl apply with a whole config"));
    }
    Ok(format!("/v1/{}/{}", kind.plural(), encoded(name)))
}

fn query(options: &Options) -> &'static str {
    if options.dry_run { "?dry-run" } else { "" }
}

fn only_if(ask: Ask, options: &Options) -> Ask {
    match options.revision {
        Some(revision) => ask.header(header::IF_MATCH, format!("\"{revision}\"")),
        None => ask,
    }
}

fn change(client: &Client, ask: Ask, keys: Option<&Map<String, Value>>, is_json: bool) -> Result<(), String> {
    let ask = match keys {
        Some(keys) => ask.body("application/json", json(keys)?),
        None => ask,
    };
    applied(client.ask(ask)?, is_json)
}

/// Prints what came of a change.
fn applied(reply: Reply, is_json: bool) -> Result<(), String> {
    print(reply, is_json, |applied: Applied| Ok(show::applied(&applied)))
}

/// The text of a good answer.
fn text(reply: Reply) -> Result<String, String> {
    let reply = reply.good().map_err(|problem| problem.detail)?;
    Ok(String::from_utf8_lossy(&reply.body).into_owned())
}

fn print<T>(reply: Reply, is_json: bool, show: impl FnOnce(T) -> Result<String, String>) -> Result<(), String>
where
    T: serde::de::DeserializeOwned,
{
    let line = if is_json { text(reply)? } else { show(reply.json()?)? };
    print_line(line.trim_end())
}

/// The verdict: whatever answers it says a sentence, and more for programs.
fn why(reply: Reply, is_json: bool) -> Result<(), String> {
    let text = text(reply)?;
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    match said.get("sentence").and_then(Value::as_str) {
        Some(sentence) if !is_json => print_line(sentence),
        _ => print_line(text.trim_end()),
    }
}

fn events(client: &Client, after: Option<u64>, count: Option<u64>, is_json: bool) -> Result<(), String> {
    let path = after.map_or("/v1/events".to_owned(), |after| format!("/v1/events?after={after}"));
    let mut left = count;
    let each = |event: Event| {
        print_line(if is_json { json(&event)? } else { show::event(&event) })?;
        left = left.map(|left| left - 1);
        Ok(left != Some(0))
    };
    client.events(Ask::new(Method::GET, path), each)
}

/// What runs, of all kinds.
fn state(client: &Client) -> Result<State, String> {
    let mut state = State { revision: 0, things: Default::default() };
    for kind in Kind::ALL {
        let reply = client.ask(Ask::new(Method::GET, format!("/v1/{}", kind.plural())))?;
        state.things.insert(kind.plural().to_owned(), reply.json::<Things>()?.things);
    }
    Ok(state)
}
