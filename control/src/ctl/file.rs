//! In what do the config file and what runs differ, and how is the file made to say what runs?
//!
//! `save` runs where the file is, with the rights of its caller, and tells the server what it has written.

use super::answer::{applied, only_if, query, state};
use super::command_line::{Form, Options};
use super::show;
use crate::client::{Ask, Client};
use crate::config_file::{self, How, read};
use crate::document::Document;
use crate::model::{ConfigFile, KeyChange, Kind, SetBy, State};
use axum::http::Method;
use mqfq_config::join;
use mqfq_config::text::{counted, shown, utf8};
use mqfq_report::plain;
use mqfq_report::table::{Align, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::Read;
use std::path::Path;

const TOML: &str = "application/toml";

#[derive(Deserialize)]
struct Configured {
    revision: u64,
    config: Map<String, Value>,
}

/// A line of `diff`.
#[derive(Serialize)]
struct Difference {
    #[serde(flatten)]
    change: KeyChange,
    set_by: Option<SetBy>,
}

#[derive(Serialize)]
struct Saved {
    file: String,
    revision: u64,
    changes: Vec<KeyChange>,
}

/// Puts the config in `path` in force.
///
/// # Errors
/// One sentence, with the file's name and line where it is about the file.
pub(super) fn apply(client: &Client, path: &Path, options: &Options, form: Form) -> Result<(), String> {
    let (name, text) = match path == Path::new("-") {
        true => ("stdin".to_owned(), read_stdin()?),
        false => (shown(&path.to_string_lossy()), read(path)?),
    };
    let ask = Ask::new(Method::PUT, format!("/v1/config{}", query(options))).body(TOML, text);
    let reply = client.ask(only_if(ask, options))?;
    match reply.clone().good() {
        Err(problem) if problem.line.is_some() => {
            // The server calls it "config".
            let detail = problem.detail.strip_prefix("config:").unwrap_or(&problem.detail);
            Err(format!("{name}:{detail}"))
        }
        _ => {
            applied(reply, form)?;
            save_if_asked(client, options, form)
        }
    }
}

/// Prints in what the file and the server differ. True: in nothing.
///
/// # Errors
/// One sentence.
pub(super) fn diff(client: &Client, form: Form) -> Result<bool, String> {
    let (file, running) = (file(client)?, running(client)?);
    // A file of another machine is known as the server has read it.
    let text = read(Path::new(&file.path)).unwrap_or(file.text);
    let of_file = Document::parse(&text).map_err(|fault| format!("{}:{fault}", shown(&file.path)))?;
    let of_server = Document::from_json(&running.config).map_err(|refusal| refusal.sentence)?;
    let state = state(client)?;
    let difference = |change: KeyChange| Difference { set_by: set_by(&state, &change.key).cloned(), change };
    let differences: Vec<Difference> = of_file.changes_to(&of_server).into_iter().map(difference).collect();
    let is_same = differences.is_empty();
    form.print(&differences, |differences| match is_same {
        true => format!("{} says what runs", shown(&file.path)),
        false => table(differences),
    })?;
    Ok(is_same)
}

fn table(differences: &[Difference]) -> String {
    let columns = ["key", "file", "server", "set by", "at"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    for Difference { change, set_by } in differences {
        let (from, to) = (show::value(Some(&change.from)), show::value(Some(&change.to)));
        let (who, at) =
            set_by.as_ref().map_or(("-".into(), "-".into()), |set_by| (show::who(set_by), set_by.at.clone()));
        table.row(vec![change.key.clone(), from, to, who, at]);
    }
    table.render()
}

/// Returns the author of a thing's key.
fn set_by<'s>(state: &'s State, key: &str) -> Option<&'s SetBy> {
    Kind::ALL
        .iter()
        .find_map(|kind| {
            state.things.get(kind.plural())?.iter().find_map(|thing| {
                let under = format!("{}.", join(kind.section(), &thing.name));
                let rest = key.strip_prefix(&under)?;
                thing.set_by.iter().find(|(name, _)| rest == **name || rest.starts_with(&format!("{name}.")))
            })
        })
        .map(|(_, set_by)| set_by)
}

/// Writes what is configured to the file.
///
/// # Errors
/// One sentence: the file has changed since the server read it, or cannot be written.
pub(super) fn save(client: &Client, force: bool, form: Form) -> Result<(), String> {
    let (file, running) = (file(client)?, running(client)?);
    let of_server = Document::from_json(&running.config).map_err(|refusal| refusal.sentence)?;
    let how = How { force, may_chown: true };
    let config_file::Saved { text, changes } = config_file::save(Path::new(&file.path), &file.text, &of_server, how)?;
    let told = client.ask(Ask::new(Method::POST, "/v1/config/saved").body(TOML, text))?;
    told.good().map_err(|problem| problem.detail)?;
    let name = shown(&file.path);
    let saved = Saved { file: file.path, revision: running.revision, changes };
    form.print(&saved, |Saved { revision, changes, .. }| match changes.len() {
        0 => format!("{name} says what runs already, revision {revision}"),
        number => format!("{name}: {} written, revision {revision}", counted(number, "key")),
    })
}

fn file(client: &Client) -> Result<ConfigFile, String> {
    client.ask(Ask::new(Method::GET, "/v1/config/file"))?.json()
}

/// All that is configured.
///
/// Reads the configured document.
/// One sentence.
pub(super) fn configured(client: &Client) -> Result<Document, String> {
    Document::from_json(&running(client)?.config).map_err(|refusal| refusal.sentence)
}

fn running(client: &Client) -> Result<Configured, String> {
    client.ask(Ask::new(Method::GET, "/v1/config"))?.json()
}

fn read_stdin() -> Result<String, String> {
    let mut bytes = Vec::new();
    // One byte more than the server takes, so that it says so.
    let most = crate::api::CONFIG_BYTES_MAX as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| plain(&error));
    read.and_then(|_| utf8(bytes)).map_err(|why| format!("cannot read stdin: {why}"))
}

/// Writes a change that is in force to the config file.
pub(super) fn save_if_asked(client: &Client, options: &Options, form: Form) -> Result<(), String> {
    if !options.save {
        return Ok(());
    }
    save(client, false, form).map_err(|why| format!("the change is in force and not saved: {why}"))
}
