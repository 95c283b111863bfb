//! How is an answer of the server read and printed, and what do all changes carry?

use super::command_line::{Form, Options};
use super::show;
use crate::client::{Ask, Client, Reply};
use crate::model::{Applied, Kind, State, ThingList};
use axum::http::{Method, header};
use mqfq_report::{json, print_line};
use serde::Serialize;
use serde_json::Value;

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
